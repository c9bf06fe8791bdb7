"""Arrays whose chunks are not those of the rows that they stand beside: what making them so takes. Pure values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import dask.array as da
import numpy as np
from dask.utils import format_bytes

__all__ = ["Recut", "recut_arrays"]


@dataclass(frozen=True, slots=True)
class Recut:
    """An array that is rechunked, and held twice where that is done.

    Attributes
    ----------
    name : str
        The column.
    before, after : tuple of tuple of int
        Its chunks as they come, and as they are made: of the rows of the data set, whole along all other axes.
    itemsize : int
        Bytes of a value.
    """

    name: str
    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    itemsize: int

    @property
    def held_nbytes(self) -> int:
        """Bytes of the chunks that one chunk is made of, at the most: they are there while it is."""
        old, new = (np.concatenate([[0], np.cumsum(chunks[0])]) for chunks in (self.before, self.after))
        low = np.searchsorted(old, new[:-1], side="right") - 1
        high = np.maximum(np.searchsorted(old, new[1:], side="left"), low)
        rows = int((old[high] - old[low]).max(initial=0))
        return rows * math.prod(map(sum, self.after[1:])) * self.itemsize

    @staticmethod
    def largest(chunks: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
        """Give the shape of the largest chunk."""
        return tuple(map(max, chunks))

    def __str__(self) -> str:
        rows = ", ".join(f"{size:,}" for size in self.after[0][:3]) + (", …" if len(self.after[0]) > 3 else "")
        return (
            f"{self.name!r} is rechunked from {_chunks(self.before)} to {_chunks(self.after)}, which holds "
            f"{format_bytes(self.held_nbytes)} of it for each thread: chunks of ({rows}) rows, whole along other axes, "
            f"are taken as they are"
        )


def recut_arrays(arrays: Iterable[tuple[str, da.Array]], sizes: Sequence[float]) -> tuple[Recut, ...]:
    """Find the arrays that are not in chunks of `sizes` rows; those of no known number of rows are."""
    found = []
    for name, array in arrays:
        after = (tuple(sizes), *((size,) for size in array.shape[1:]))
        rows = [size for size in array.chunks[0] if size]
        differ = not np.isnan(rows).any() and rows != [size for size in sizes if size]
        if differ or any(number > 1 for number in array.numblocks[1:]):
            found.append(Recut(name, array.chunks, after, array.dtype.itemsize))
    return tuple(found)


def _chunks(chunks: tuple[tuple[int, ...], ...]) -> str:
    number = math.prod(map(len, chunks))
    largest = " x ".join(f"{size:,}" for size in Recut.largest(chunks))
    return f"{number:,} chunk{'' if number == 1 else 's'} of {'' if number == 1 else 'up to '}{largest}"
