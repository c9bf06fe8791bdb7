"""Order of the rows of an epoch, and the units that are read for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.rows.permutation import DISTANCES, permutation, random_bits

Shuffle = Literal[False, "window", "full"]


@dataclass(frozen=True, slots=True, eq=False)
class RowOrder:
    """Order of rows in all epochs."""

    nrows: int | None  # None if they are not counted
    borders: NDArray[np.int64]  # of units; numbers of chunks if rows are not counted
    shuffle: Shuffle
    window: int  # rows of the mixing window; 1 for a stream in order
    unit_rows: int  # rows of a unit of a permutation
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
        starts, stops = self.ranges(self.borders, number)
        if self.span is not None:
            # Positions of the units in the stream; those at the ends of the shard are cut.
            ends = np.cumsum(stops - starts)
            first = ends - (stops - starts)
            low, high = self.span
            starts, stops = starts + np.maximum(low - first, 0), stops - np.maximum(ends - high, 0)
            kept = starts < stops
            starts, stops = starts[kept], stops[kept]
        return EpochUnits(self, number, starts, stops, None)

    def ranges(self, borders: NDArray[np.int64], *entropy: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where the ranges between borders begin and end, in the order that `entropy` and the seed give them."""
        number = len(borders) - 1
        order = permutation(number, self.seed, *entropy) if self.shuffle else np.arange(number)
        return borders[:-1][order], borders[1:][order]


@dataclass(frozen=True, slots=True, eq=False)
class EpochUnits:
    """The units that one shard reads in an epoch, in stream order."""

    order: RowOrder
    epoch: int
    starts: NDArray[np.int64]  # rows of each unit; positions in `rows` if that is given
    stops: NDArray[np.int64]
    rows: NDArray[np.integer] | None  # of a permutation

    def __len__(self) -> int:
        return len(self.starts)

    def key(self, unit: int) -> tuple[int | slice | NDArray[np.int64], NDArray[np.int64] | None]:
        """Return the argument of `RowReader.read`, and the order of its rows in the stream, or None if unchanged."""
        start, stop = int(self.starts[unit]), int(self.stops[unit])
        if self.order.nrows is None:
            return start, None
        if self.rows is None:
            return slice(start, stop), None
        return ascending_rows(self.rows[start:stop].astype(np.int64))

    def places(self, unit: int, start: int, size: int) -> NDArray[np.int64]:
        """Draw a unit's row keys: distinct, and sorted in delivery order.

        A key is ``(position + distance) * window + window - 1 - distance`` for a row at a position of the stream that
        moves by a distance below the window.
        """
        positions = np.arange(start, start + size, dtype=np.int64)
        window = self.order.window
        if window == 1:
            return positions
        bits = random_bits(self.order.seed, self.epoch, DISTANCES, unit).random_raw(size)
        distances = (np.asarray(bits, np.uint64) % np.uint64(window)).astype(np.int64)
        return np.sort((positions + distances) * window + (window - 1 - distances))

    def positions(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions in the stream of keys of `places`."""
        window = self.order.window
        return keys if window == 1 else keys // window - (window - 1 - keys % window)


def ascending_rows(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return distinct rows in ascending order, and the place of each of the rows in it."""
    ascending = np.argsort(rows)
    order = np.empty(len(rows), np.int64)
    order[ascending] = np.arange(len(rows))
    return rows[ascending], order
