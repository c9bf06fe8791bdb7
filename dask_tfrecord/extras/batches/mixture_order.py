"""Order of the rows in a mixture: a function of weights, sizes, seeds and epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.blocks import Arrays, Block, concatenate, splits_of, union, zero_rows
from dask_tfrecord.extras.batches.row_order import EpochUnits, RowOrder, ascending_rows
from dask_tfrecord.extras.batches.row_reader import RowReader
from dask_tfrecord.rows.permutation import CHOICES, permutation, random_bits
from dask_tfrecord.rows.rows import Rows

# Rows of a mixture whose choices are computed together, and bits of the random number of a choice.
_CHOICE_ROWS, _CHOICE_BITS = 4096, 53


class Choices:
    """Which data set each row in a mixture comes from, and which row there.

    Each row of the mixture is a random number, and weights divide the range of these numbers among the data sets. Where
    a data set ends, a phase begins, in which the remaining data sets divide the range. The numbers of a block of rows
    have a seed of their own, and the rows before each block are counted once: any row is found without those before it.
    """

    def __init__(
        self, sizes: Sequence[int], weights: Sequence[float], seed: int, stop_on_empty: bool, *, seed_given: bool
    ) -> None:
        self.sizes, self.weights = np.array(sizes, np.int64), np.array(weights, np.float64)
        self.seed, self.stop_on_empty, self.seed_given = seed, stop_on_empty, seed_given
        self.starts = splits_of(self.sizes)  # first row of each data set, if they are numbered together
        is_open = np.ones(len(self.sizes), bool) if stop_on_empty else self.sizes > 0
        # First row of each phase, and the borders of the ranges of numbers in it.
        self._phases, self._borders = [0], [self._divide_range(is_open)]
        self.nrows, self.counts = 0, np.zeros(len(self.sizes), np.int64)
        before = [self.counts]
        while is_open.any():
            has_ended = self._count_choices()
            if self.nrows % _CHOICE_ROWS == 0:
                before.append(self.counts)
            if has_ended:
                is_open = np.zeros_like(is_open) if stop_on_empty else self.counts < self.sizes
                self._phases.append(self.nrows)
                self._borders.append(self._divide_range(is_open))
        self._before = np.array(before)

    def _count_choices(self) -> bool:
        """Count the rows up to the end of a block, or of the last phase; return whether that phase has ended."""
        block, within = divmod(self.nrows, _CHOICE_ROWS)
        chosen = self._choose(self._random_numbers(block)[within:], -1)
        rows = self.counts[chosen] + _occurrences_before(chosen)
        if self.stop_on_empty:
            # A mixture ends before the first row that does not exist.
            ends = np.flatnonzero(rows == self.sizes[chosen])
        else:
            # A phase ends after the last row of a data set.
            ends = np.flatnonzero(rows == self.sizes[chosen] - 1) + 1
        nrows = int(ends[0]) if len(ends) else len(rows)
        self.counts = self.counts + np.bincount(chosen[:nrows], minlength=len(self.sizes))
        self.nrows += nrows
        return len(ends) > 0

    @property
    def options(self) -> dict[str, Any]:
        """Options that determine the choices, as JSON values."""
        return {"weights": self.weights.tolist(), "seed": self.seed, "stop_on_empty_dataset": self.stop_on_empty}

    def with_seed(self, seed: int) -> Choices:
        """Return the choices of another seed."""
        return Choices(self.sizes.tolist(), self.weights.tolist(), seed, self.stop_on_empty, seed_given=self.seed_given)

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find each row's data set, and its number there."""
        sources, rows = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        blocks = positions // _CHOICE_ROWS
        for block in union(blocks).tolist():
            start, numbers = block * _CHOICE_ROWS, self._random_numbers(block)
            chosen = np.empty(_CHOICE_ROWS, np.int64)
            first, last = np.searchsorted(self._phases, [start, start + _CHOICE_ROWS - 1], side="right").tolist()
            for phase in range(first - 1, last):
                begin = max(self._phases[phase] - start, 0)
                chosen[begin:] = self._choose(numbers[begin:], phase)
            found = self._before[block][chosen] + _occurrences_before(chosen)
            here = np.flatnonzero(blocks == block)
            within = positions[here] - start
            sources[here], rows[here] = chosen[within], found[within]
        return sources, rows

    def _divide_range(self, is_open: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the borders between the ranges of numbers of open data sets."""
        shares = np.where(is_open, self.weights, 0.0)
        sums = list(accumulate((shares / (shares.max() or 1.0)).tolist()))
        return np.array([int(each / (sums[-1] or 1.0) * 2.0**_CHOICE_BITS) for each in sums[:-1]], np.int64)

    def _choose(self, numbers: NDArray[np.int64], phase: int) -> NDArray[np.int64]:
        return np.searchsorted(self._borders[phase], numbers, side="right")

    def _random_numbers(self, block: int) -> NDArray[np.int64]:
        bits = np.asarray(random_bits(self.seed, block, CHOICES).random_raw(_CHOICE_ROWS), np.uint64)
        return (bits >> np.uint64(64 - _CHOICE_BITS)).astype(np.int64)


def _occurrences_before(chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how often the value of each element occurs before it."""
    order = np.argsort(chosen, kind="stable")
    ranks = np.empty(len(chosen), np.int64)
    ranks[order] = np.arange(len(chosen)) - np.searchsorted(chosen[order], chosen[order])
    return ranks


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """One data set's rows in an epoch's order, as ranges or single rows."""

    starts: NDArray[np.integer]
    ends: NDArray[np.int64] | None  # positions after each range; None for single rows

    def rows(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows at positions of the stream."""
        if self.ends is None:
            return self.starts[positions].astype(np.int64)
        ranges = np.searchsorted(self.ends, positions, side="right")
        firsts = np.where(ranges > 0, self.ends[ranges - 1], 0)
        return self.starts[ranges] + (positions - firsts)


@dataclass(frozen=True, slots=True, eq=False)
class MixedOrder(RowOrder):
    """Order of the rows in a mixture: a unit is a range whose rows follow each data set's order.

    Rows are numbered as if the data sets followed each other. Units of equal size keep the memory of a mixture as small
    as for one data set. `borders` separate the units of all data sets.
    """

    choices: Choices
    parts: tuple[NDArray[np.int64], ...]  # borders of the units of each data set

    def epoch(self, number: int) -> MixedUnits:
        """Return the units of an epoch."""
        assert self.span is not None
        cuts = union(np.arange(*self.span, self.unit_rows), self.span)
        streams = tuple(self._rows_of_data_set(part, borders, number) for part, borders in enumerate(self.parts))
        return MixedUnits(self, number, cuts[:-1], cuts[1:], None, self.choices, streams)

    def _rows_of_data_set(self, part: int, borders: NDArray[np.int64], epoch: int) -> Stream:
        """Return the rows of a data set in the order of an epoch."""
        if self.shuffle == "full":
            return Stream(permutation(int(borders[-1]), self.seed, epoch, part), None)
        starts, stops = self.ranges(borders, epoch, part)
        return Stream(starts, np.cumsum(stops - starts))


@dataclass(frozen=True, slots=True, eq=False)
class MixedUnits(EpochUnits):
    """Units that one shard reads in an epoch; `starts` and `stops` count the mixture's rows."""

    choices: Choices
    streams: tuple[Stream, ...]

    def key(self, unit: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows of a unit in ascending order, and their order in the stream."""
        sources, positions = self.choices.locate(np.arange(self.starts[unit], self.stops[unit]))
        rows = np.empty(len(sources), np.int64)
        for part in union(sources).tolist():
            chosen = sources == part
            rows[chosen] = self.choices.starts[part] + self.streams[part].rows(positions[chosen])
        return ascending_rows(rows)


class ChainedReader(RowReader):
    """Reader of the rows of several data sets with the same columns, numbered as if they followed each other."""

    def __init__(self, mixed: Sequence[Rows]) -> None:
        self._readers = [RowReader(rows) for rows in mixed]
        self._starts = splits_of([rows.nrows or 0 for rows in mixed])
        self.names, self.schema = mixed[0].names, mixed[0].schema

    def read(self, key: Any, scheduler: Any = None, out: Arrays | None = None) -> dict[str, Block]:
        """Read rows by ascending numbers."""
        cuts = np.searchsorted(key, self._starts)
        parts = []
        # Parts of dense columns are read to their places.
        none = {name: zero_rows(self.schema[name]) for name in self.names}
        dense = {
            name: rows for name, rows in none.items() if isinstance(rows, np.ndarray) and rows.dtype.kind in "biufc"
        }
        into = {name: np.empty((len(key), *rows.shape[1:]), rows.dtype) for name, rows in dense.items()} | dict(
            out or {}
        )
        for reader, first, (start, stop) in zip(self._readers, self._starts.tolist(), pairwise(cuts), strict=False):
            rows = key[start:stop] - first
            if len(rows):
                adjacent = rows[-1] - rows[0] + 1 == len(rows)
                here = {name: array[start:stop] for name, array in into.items()}
                parts.append(reader.read(slice(int(rows[0]), int(rows[-1]) + 1) if adjacent else rows, scheduler, here))
        return {n: into[n] if n in into else concatenate([part[n] for part in parts]) for n in self.names}

    def describe(self, number: int) -> str:
        """Return the file and the record of a row as text for errors."""
        part = int(np.searchsorted(self._starts, number, side="right")) - 1
        return self._readers[part].describe(number - int(self._starts[part]))
