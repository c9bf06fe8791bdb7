"""What tasks write, and what they read for it. Pure values.

A write unit is written by one task: of flat values it is a shard, or a chunk where the array has no shards; of all that
is laid out by rows, those of the same rows. A job is what one task does: it reads the rows of some units, and writes
with them the units of flat values of which the middle lies in these rows. Rows beside its own it reads for those alone,
so that only some rows at the ends of a job are read twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.schema import Schema
from dask_tfrecord.stores.layout import ArraySpec, Layout
from dask_tfrecord.stores.levels import Levels

__all__ = ["Job", "Unit", "count_jobs", "jobs_of", "single_jobs", "units_of"]

# Jobs that there are at least, where there are as many units of rows, and units of rows that one has at most.
_MANY_JOBS = 256
_MOST_ROW_UNITS = 8


@dataclass(frozen=True, slots=True)
class Unit:
    """What is written by one task, and from which rows.

    Attributes
    ----------
    number : int
        Which of the layout's units it is.
    array : ArraySpec or None
        The flat array of which entries are written; None for rows of everything that is laid out by rows.
    start, stop : int
        Entries of that array, or rows.
    first, past : int
        The first row that is read for it, and the one past the last.
    before, after : dict of str to tuple of int
        Items of each level of the flat features, rows first, before the first row that is read and past the last.
    """

    number: int
    array: ArraySpec | None
    start: int
    stop: int
    first: int
    past: int
    before: Mapping[str, tuple[int, ...]]
    after: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Job:
    """What one task does.

    Attributes
    ----------
    units : tuple of Unit
        What it writes, those of rows first.
    spans : tuple of (int, int)
        First row and past-the-last row of what is read at once, one after the other; each lies within a unit, or beside
        it.
    """

    units: tuple[Unit, ...]
    spans: tuple[tuple[int, int], ...]

    @property
    def rows(self) -> tuple[int, int]:
        """All rows that it reads, from the first to the one past the last."""
        return (self.spans[0][0], self.spans[-1][1]) if self.spans else (0, 0)

    def features(self, schema: Schema) -> list[str]:
        """Name the features that it reads of them."""
        if any(unit.array is None for unit in self.units):
            return list(schema)
        asked = {unit.array.feature for unit in self.units if unit.array is not None}
        return [name for name in schema if name in asked]


def units_of(layout: Layout, schema: Schema) -> Iterator[Unit]:
    """Every write unit of a layout, rows first."""
    number = count()
    for start, stop in _cut(0, layout.nrows, layout.grid.unit):
        yield _row_unit(layout, next(number), start, stop)
    for array in layout.arrays:
        if not array.by_rows:
            level, stride = Levels.of(schema[array.feature]).place(array.part)
            before = layout.tally.items[array.feature][:, level] * stride
            for start in range(0, array.shape[0], array.unit):
                yield _flat_unit(layout, next(number), array, before, start, min(start + array.unit, array.shape[0]))


def jobs_of(layout: Layout, units: Sequence[Unit]) -> Iterator[Job]:
    """Make jobs of units that are to be written: flat values with the rows in which most of them lie."""
    together = layout.grid.unit * _row_units_together(layout)
    # Who begins past the last row has the end of the last one, and no row.
    last = max(layout.nrows - 1, 0)

    def place(unit: Unit) -> int:
        return min((unit.first + unit.past) // 2, last) // together

    for _, found in groupby(sorted(units, key=place), place):
        yield _job(layout, tuple(found))


def single_jobs(layout: Layout, units: Iterable[Unit]) -> Iterator[Job]:
    """Make a job of each unit: rows that are in memory are not read again."""
    return (_job(layout, (unit,)) for unit in units)


def count_jobs(layout: Layout) -> int:
    """Count the jobs of all units; flat values lie in none but the rows that there are."""
    return math.ceil(layout.nrow_units / _row_units_together(layout))


def _row_units_together(layout: Layout) -> int:
    return min(max(1, layout.nrow_units // _MANY_JOBS), _MOST_ROW_UNITS)


def _job(layout: Layout, units: tuple[Unit, ...]) -> Job:
    """Cut the rows that units need into pieces, wherever one of them begins or ends."""
    borders = sorted({row for unit in units for row in (unit.first, unit.past)})
    spans: list[tuple[int, int]] = []
    for first, past in pairwise(borders):
        if any(unit.first <= first < unit.past for unit in units):
            spans += _pieces(layout, first, past)
    return Job(units, tuple(spans))


def _pieces(layout: Layout, first: int, past: int) -> Iterable[tuple[int, int]]:
    if not layout.tally.items:
        return _cut(first, past, layout.grid.most)
    low, high = np.searchsorted(layout.tally.rows, [first, past]).tolist()
    return layout.tally.spans(low, high, layout.grid.most)


def _row_unit(layout: Layout, number: int, start: int, stop: int) -> Unit:
    tally = layout.tally
    if not tally.items:
        return Unit(number, None, start, stop, start, stop, {}, {})
    low, high = np.searchsorted(tally.rows, [start, stop]).tolist()
    return Unit(number, None, start, stop, start, stop, tally.at(low, tally.items), tally.at(high, tally.items))


def _flat_unit(layout: Layout, number: int, array: ArraySpec, before: NDArray[np.int64], start: int, stop: int) -> Unit:
    """Between the borders that hold entries ``start`` to ``stop``: rows that lie across an end of it, too."""
    tally = layout.tally
    low = int(np.searchsorted(before, start, side="right")) - 1
    # The last entry of splits belongs to no row.
    high = max(low, int(np.searchsorted(before, min(stop, before[-1]), side="left")))
    first, past = tally.rows[[low, high]].tolist()
    names = (array.feature,)
    return Unit(number, array, start, stop, first, past, tally.at(low, names), tally.at(high, names))


def _cut(first: int, past: int, rows: int) -> Iterator[tuple[int, int]]:
    """Cut rows into parts; where there are none, there is one part without any, which has the first split."""
    for start in range(first, max(past, first + 1), rows):
        yield start, min(start + rows, past)
