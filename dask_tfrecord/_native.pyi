"""Framing and Example decoding in C++; `records` and `columns` use it, nobody else."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Why a walk over records stopped.
MORE: int  # the block ends within a record
LIMIT: int  # as many records as were asked for
FRAMING: int  # a CRC does not hold
FEATURE: int  # a record holds but is not what the columns take

def scan(buffer: NDArray[np.uint8], begin: int, end: int, limit: int, check_crc: bool) -> tuple[int, int, int, int]:
    """Walk the headers in ``buffer[begin:end]``: records, bytes to the next border, why it stopped, bytes needed."""

def find_header(buffer: NDArray[np.uint8], begin: int, end: int, room: int) -> int:
    """Look for a header that holds, of a record that ends within `room` bytes: how far it is from `begin`, or -1."""

def bytes_list(values: NDArray[np.uint8], splits: NDArray[np.int64]) -> list[bytes]:
    """Make a bytes object of each ``values[splits[i]:splits[i + 1]]``."""

def release_memory() -> None:
    """Give memory that was freed back to the system, where the allocator keeps it."""

class Column:
    """What one column takes of a record: a key, the kind and layout of its values, and what they have to be."""

    def __init__(
        self,
        key: bytes,
        kind: int,
        layout: int,
        *,
        count: int = 1,
        swap: int = 1,
        text: bool = False,
        boolean: bool = False,
        list: bool = False,
        optional: bool = False,
        cast: int = 0,
        fallback: Sequence[bytes] = (),
        tensor_dtype: int = 0,
        tensor_item: int = 0,
        tensor_shape: Sequence[int] = (),
    ) -> None: ...

class Decoder:
    """Records into columns."""

    def __init__(
        self, columns: Sequence[Column], check_crc: bool, closed: bool, sequence_example: bool = False
    ) -> None: ...
    def lend(self, column: int, memory: NDArray[np.uint8]) -> None:
        """Let a dense column write into `memory`, which holds every row to come."""

    def feed(self, buffer: NDArray[np.uint8], begin: int, end: int, limit: int) -> tuple[int, int, int, int]:
        """Decode records of ``buffer[begin:end]``: records, bytes consumed, why it stopped, bytes needed."""

    def expect(self, times: float) -> None:
        """Reserve room for about `times` what was decoded so far."""

    def problem(self) -> tuple[int, int, int, int, bytes]:
        """After `FEATURE`: the fault, the column or -1, the step or -1, what was found, and a text about it."""

    def take(
        self, column: int
    ) -> tuple[
        NDArray[np.uint8] | None,
        NDArray[np.int64] | None,
        NDArray[np.int64] | None,
        NDArray[np.int64] | None,
        NDArray[np.int64] | None,
    ]:
        """Bytes of the values (None where memory was lent), and where bytes values, steps and rows end, and shapes."""

class Field:
    """What one key of the records holds, in flat arrays: values, and where those of each row or step end."""

    def __init__(
        self,
        key: bytes,
        kind: int,
        values: NDArray[np.uint8],
        *,
        list: bool = False,
        count: int = 1,
        prefix: bytes = b"",
        value_splits: NDArray[np.int64] | None = None,
        step_splits: NDArray[np.int64] | None = None,
        row_splits: NDArray[np.int64] | None = None,
    ) -> None: ...

class Encoder:
    """Columns into records."""

    def __init__(self, fields: Sequence[Field], rows: int, sequence_example: bool = False) -> None: ...
    def encode(self, first: int, out: NDArray[np.uint8]) -> tuple[int, int, int]:
        """Write records from row `first` on into `out`: records, bytes, and the bytes that the next one needs."""
