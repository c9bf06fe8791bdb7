"""An independent judge for tests: records read, written and turned into arrays in plain Python.

Nothing here shares code with what it judges: framing is `struct` and the `crc32c` package, decoding is protobuf's own
parser, and columns are built value by value. Slow, short, and meant to be read. The hypothesis strategies make schemas,
records that fit them or do not quite, and the many legal encodings of one record; they need the extra ``test``.
"""

from dask_tfrecord.testing.encodings import wire_encodings
from dask_tfrecord.testing.files import masked_crc, read_oracle, read_payloads, write_oracle
from dask_tfrecord.testing.oracle import expected_columns, expected_refusals
from dask_tfrecord.testing.records import examples, sequence_examples
from dask_tfrecord.testing.strategies import features, schemas

__all__ = [
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
