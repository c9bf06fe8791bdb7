"""Test oracle: an independent reference implementation in plain Python, and hypothesis strategies.

The oracle reads and writes TFRecord files with `struct` and the `crc32c` package, parses records with the protobuf
library, and builds columns value by value. It shares no decoding code with the library; it is slow, short and easy to
check. The strategies draw schemas, records that match them or differ in one detail, and equivalent encodings of one
record. They require the extra ``test``.
"""

from dask_tfrecord.testing.encodings import wire_encodings
from dask_tfrecord.testing.oracle import expected_columns, expected_refusals
from dask_tfrecord.testing.oracle_files import masked_crc, read_oracle, read_payloads, write_oracle
from dask_tfrecord.testing.records import example_lists, examples, sequence_examples
from dask_tfrecord.testing.strategies import features, schemas

__all__ = [
    "example_lists",
    "examples",
    "expected_columns",
    "expected_refusals",
    "features",
    "masked_crc",
    "read_oracle",
    "read_payloads",
    "schemas",
    "sequence_examples",
    "wire_encodings",
    "write_oracle",
]
