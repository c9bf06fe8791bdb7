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

def check_records(buffer: NDArray[np.uint8], begin: int, end: int) -> tuple[int, int, int, int]:
    """Walk whole records in ``buffer[begin:end]`` whose CRCs hold: as `scan` returns it."""

def find_header(buffer: NDArray[np.uint8], begin: int, end: int, room: int) -> int:
    """Look for a header that holds, of a record that ends within `room` bytes: how far it is from `begin`, or -1."""

def bytes_list(values: NDArray[np.uint8], splits: NDArray[np.int64]) -> list[bytes]:
    """Make a bytes object of each ``values[splits[i]:splits[i + 1]]``."""

def take_rows(
    values: NDArray[np.uint8], splits: NDArray[np.int64], item: int, index: NDArray[np.int64], out: NDArray[np.uint8]
) -> None:
    """Copy the rows of `index`, of items of `item` bytes, one behind the other; they fill `out` to its end."""

def pad_rows(
    values: NDArray[np.uint8], splits: NDArray[np.int64], filler: bytes, length: int, out: NDArray[np.uint8]
) -> None:
    """Copy rows of items, which are as long as `filler`, into slots of `length` items, and fill these up."""

def sort_rows(places: NDArray[np.int64], axes: int, splits: NDArray[np.int64], order: NDArray[np.int64]) -> None:
    """Find the order in which the places of each row ascend, by one axis after the other; equal ones keep theirs."""

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
        counted: bool = False,
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

    def offer(self, column: int, memory: NDArray[np.uint8]) -> None:
        """Let values of rows that differ in size begin in `memory`; where it is too small they move to their own."""

    def feed(
        self, buffer: NDArray[np.uint8], begin: int, end: int, limit: int, offset: int = 0
    ) -> tuple[int, int, int, int]:
        """Decode records of ``buffer[begin:end]``, which lies at byte `offset` of the stream.

        Records, bytes consumed, why it stopped, bytes needed.
        """

    def pick(
        self, buffer: NDArray[np.uint8], begin: int, end: int, first: int, wanted: NDArray[np.int64], offset: int = 0
    ) -> tuple[int, int, int, int]:
        """Decode the records with the ascending numbers `wanted`, where ``buffer[begin]`` begins record `first`.

        Records passed, and bytes, which may lie beyond `end` where a record was skipped; why it stopped, bytes needed.
        """

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
        """Bytes of the values, and where bytes values, steps and rows end, and shapes.

        The first are None where memory was lent, and where they were counted alone.
        """

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

class Resync:
    """Stretches of records that hold, in a stream of which not all holds.

    A stretch is ``(start, end, records, root, lost, sealed, promised, reach, payload)``; `root` is -1 where nothing
    tells how many records lie before it.
    """

    def __init__(self, start: int, size: int, boundary: bool) -> None:
        """Begin at `start`, where a record begins or not; a `size` of -1 is not known."""

    def feed(self, buffer: NDArray[np.uint8], begin: int, end: int, last: bool) -> int:
        """Look at the bytes from `position` on; how many of them are done with."""

    @property
    def position(self) -> int: ...
    @property
    def holding(self) -> int:
        """Records that hold and hold records themselves, so far."""

    @property
    def looked(self) -> int:
        """Bytes, each as often as it was looked at."""

    def last(self) -> tuple[int, int, int]:
        """Give the last stretch so far: ``start, end, records``."""

    def stretches(self) -> list[tuple[int, int, int, int, int, bool, int, int, bool]]: ...
    def tail(self) -> tuple[int, int]:
        """After the last bytes: `root` and `lost` of what is behind the last stretch."""
