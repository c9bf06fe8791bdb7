"""Order of the rows of an epoch: a function of seed, epoch and options, computed from row numbers alone.

An epoch is a stream of units. A unit is a range of rows that one thread reads: consecutive rows, rows of a permutation,
or a chunk whose rows are not counted. With a window, each row of the stream moves forward by a random distance below
the window, and rows are delivered in the order of their new positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["EpochUnits", "RowOrder", "Shuffle", "permutation"]

Shuffle = Literal[False, "window", "full"]
# Streams of random bits of an epoch.
_ORDER, _DISTANCES = 0, 1


@dataclass(frozen=True, slots=True, eq=False)
class RowOrder:
    """Order of rows in all epochs.

    Attributes
    ----------
    nrows : int or None
        Rows of the data set; None if they are not counted.
    borders : ndarray of int64
        First row of each unit, and the number of rows. For rows that are not counted, numbers of chunks.
    shuffle : False, "window" or "full"
        Kind of shuffling.
    window : int
        Rows of the mixing window; 1 for a stream in order.
    unit_rows : int
        Rows of a unit of a permutation.
    seed : int
        Seed of all random numbers.
    shard : tuple of int
        Index and number of the shards that share an epoch.
    """

    nrows: int | None
    borders: NDArray[np.int64]
    shuffle: Shuffle
    window: int
    unit_rows: int
    seed: int
    shard: tuple[int, int]

    @property
    def span(self) -> tuple[int, int] | None:
        """First and last position, exclusive, of this shard in the stream of an epoch; None without counts."""
        if self.nrows is None:
            return None
        index, number = self.shard
        return index * self.nrows // number, (index + 1) * self.nrows // number

    def epoch(self, number: int) -> EpochUnits:
        """Return the units of an epoch."""
        if self.shuffle == "full":
            assert self.span is not None and self.nrows is not None
            rows = permutation(self.nrows, self.seed, number)[slice(*self.span)]
            cuts = np.append(np.arange(0, len(rows), self.unit_rows), len(rows)) if len(rows) else np.zeros(1, np.int64)
            return EpochUnits(self, number, cuts[:-1], cuts[1:], rows)
        units = len(self.borders) - 1
        order = permutation(units, self.seed, number) if self.shuffle else np.arange(units)
        starts, stops = self.borders[:-1][order], self.borders[1:][order]
        if self.span is not None:
            # Positions of the units in the stream; those at the ends of the shard are cut.
            ends = np.cumsum(stops - starts)
            first = ends - (stops - starts)
            low, high = self.span
            starts, stops = starts + np.maximum(low - first, 0), stops - np.maximum(ends - high, 0)
            kept = starts < stops
            starts, stops = starts[kept], stops[kept]
        return EpochUnits(self, number, starts, stops, None)


@dataclass(frozen=True, slots=True, eq=False)
class EpochUnits:
    """Units of one epoch of a shard, in the order of the stream.

    Attributes
    ----------
    order : RowOrder
        Order of all epochs.
    epoch : int
        Number of the epoch.
    starts, stops : ndarray of int64, shape (nunits,)
        Rows of each unit, as positions in `rows` if that is given.
    rows : ndarray of integers or None
        Rows of a permutation.
    """

    order: RowOrder
    epoch: int
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    rows: NDArray[np.integer] | None

    def __len__(self) -> int:
        return len(self.starts)

    def key(self, unit: int) -> tuple[int | slice | NDArray[np.int64], NDArray[np.int64] | None]:
        """Return the argument of `RowReader.read`, and the order of its rows in the stream, or None if unchanged."""
        start, stop = int(self.starts[unit]), int(self.stops[unit])
        if self.order.nrows is None:
            return start, None
        if self.rows is None:
            return slice(start, stop), None
        rows = self.rows[start:stop].astype(np.int64)
        ascending = np.argsort(rows)
        order = np.empty(len(rows), np.int64)
        order[ascending] = np.arange(len(rows))
        return rows[ascending], order

    def size(self, unit: int) -> int | None:
        """Return the rows of a unit; None if they are not counted."""
        return None if self.order.nrows is None else int(self.stops[unit] - self.starts[unit])

    def places(self, unit: int, start: int, size: int) -> NDArray[np.int64]:
        """Return distinct, sorted keys of the rows of a unit, in the order of delivery.

        A key is ``(position + distance) * window + window - 1 - distance`` for a row at a position of the stream that
        moves by a distance below the window.
        """
        positions = np.arange(start, start + size, dtype=np.int64)
        window = self.order.window
        if window == 1:
            return positions
        bits = _bits(self.order.seed, self.epoch, _DISTANCES, unit).random_raw(size)
        distances = (np.asarray(bits, np.uint64) % np.uint64(window)).astype(np.int64)
        return np.sort((positions + distances) * window + (window - 1 - distances))

    def positions(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions in the stream of keys of `places`."""
        window = self.order.window
        return keys if window == 1 else keys // window - (window - 1 - keys % window)


def permutation(count: int, seed: int, epoch: int) -> NDArray[np.integer]:
    """Return a random permutation of ``range(count)``, the same with every release of NumPy.

    It sorts random bits. Their lowest bits are the numbers, so equal random bits cannot make the result depend on the
    method of sorting.
    """
    shift = np.uint64(max(count - 1, 1).bit_length())
    keys = np.asarray(_bits(seed, epoch, _ORDER).random_raw(count), np.uint64)
    keys <<= shift
    keys |= np.arange(count, dtype=np.uint64)
    keys.sort()
    keys &= (np.uint64(1) << shift) - np.uint64(1)
    return keys.astype(np.uint32 if count <= 1 << 32 else np.int64)


def _bits(*entropy: int) -> np.random.PCG64:
    # NumPy guarantees the stream of a bit generator, but not that of the methods of `Generator`.
    return np.random.PCG64(np.random.SeedSequence(entropy))
