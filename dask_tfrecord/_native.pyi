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

def bytes_list(values: NDArray[np.uint8], splits: NDArray[np.int64]) -> list[bytes]:
    """Make a bytes object of each ``values[splits[i]:splits[i + 1]]``."""

def release_memory() -> None:
    """Give memory that was freed back to the system, where the allocator keeps it."""

class Decoder:
    """Records into columns: key, kind, layout, count, swap, text and boolean of each."""

    def __init__(
        self, columns: Sequence[tuple[bytes, int, int, int, int, bool, bool]], check_crc: bool, closed: bool
    ) -> None: ...
    def lend(self, column: int, memory: NDArray[np.uint8]) -> None:
        """Let a fixed or raw column write into `memory`, which holds every row to come."""

    def feed(self, buffer: NDArray[np.uint8], begin: int, end: int, limit: int) -> tuple[int, int, int, int]:
        """Decode records of ``buffer[begin:end]``: records, bytes consumed, why it stopped, bytes needed."""

    def expect(self, times: float) -> None:
        """Reserve room for about `times` what was decoded so far."""

    def problem(self) -> tuple[int, int, int, bytes]:
        """After `FEATURE`: the fault, the column or -1, what was found, the unknown key."""

    def take(
        self, column: int
    ) -> tuple[NDArray[np.generic] | None, NDArray[np.int64] | None, NDArray[np.int64] | None]:
        """Values (None where they were lent), splits between bytes values, row splits; each once."""
