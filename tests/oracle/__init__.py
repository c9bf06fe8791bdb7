"""Test oracle: an independent reference implementation in plain Python, and hypothesis strategies.

The oracle reads and writes TFRecord files with `struct` and the `crc32c` package, parses records with the protobuf
library, and builds columns value by value. It shares no code with the library: its messages are TensorFlow's, and it
knows features by the JSON of their schema. It is slow, short and easy to check. The strategies draw schemas, records
that match them or differ in one detail, and equivalent encodings of one record. They require the extra ``test``.
"""

from oracle.columns import Refusal, expected_columns, expected_refusals
from oracle.encodings import wire_encodings
from oracle.files import borders, framed, masked_crc, read_oracle, read_payloads, write_oracle
from oracle.records import example_lists, examples, sequence_examples
from oracle.strategies import features, schemas

__all__ = [
    "Refusal",
    "borders",
    "example_lists",
    "examples",
    "expected_columns",
    "expected_refusals",
    "features",
    "framed",
    "masked_crc",
    "read_oracle",
    "read_payloads",
    "schemas",
    "sequence_examples",
    "wire_encodings",
    "write_oracle",
]
