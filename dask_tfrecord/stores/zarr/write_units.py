"""Write units of a layout, and the tasks that write them. Pure values.

Exactly one task writes a write unit. For a flat array a unit is a shard, or a chunk of an array without shards; for
arrays that are chunked along rows, it is the chunks or shards of the same rows. A task reads the rows of some units of
rows, and also writes the flat units whose middle is in these rows. It reads other rows only for these flat units, so
that two tasks read the same rows only at the ends of a task.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.schema import Schema
from dask_tfrecord.settings import limits
from dask_tfrecord.stores.flat_arrays import Levels
from dask_tfrecord.stores.zarr.layout import ArraySpec, ZarrLayout

__all__ = ["WriteTask", "WriteUnit", "count_tasks", "plan_single_tasks", "plan_tasks", "plan_units"]

# Most units of rows of one task.
_MAX_ROW_UNITS = 8


@dataclass(frozen=True, slots=True)
class WriteUnit:
    """Entries that one task writes, and the rows that it reads for them.

    Attributes
    ----------
    number : int
        Number within the layout.
    array : ArraySpec or None
        Flat array; None for a unit of rows, of all arrays that are chunked along rows.
    start, stop : int
        Range of entries of that array, or of rows.
    first, past : int
        Range of rows that are read for it.
    before, after : dict of str to tuple of int
        Items of each level of the flat features, rows first, before the first row and after the last one.
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
class WriteTask:
    """Units that one task writes, and the rows that it reads.

    Attributes
    ----------
    units : tuple of WriteUnit
        Units, those of rows first.
    spans : tuple of (int, int)
        Ranges of rows that are read at once, ascending; each is entirely inside or outside of each unit.
    """

    units: tuple[WriteUnit, ...]
    spans: tuple[tuple[int, int], ...]

    @property
    def rows(self) -> tuple[int, int]:
        """Range of all rows that it reads."""
        return (self.spans[0][0], self.spans[-1][1]) if self.spans else (0, 0)

    def features(self, schema: Schema) -> list[str]:
        """Return the names of the features that it reads."""
        if any(unit.array is None for unit in self.units):
            return list(schema)
        names = {unit.array.feature for unit in self.units if unit.array is not None}
        return [name for name in schema if name in names]


def plan_units(layout: ZarrLayout, schema: Schema) -> Iterator[WriteUnit]:
    """Yield all write units of a layout, rows first."""
    number = count()
    for start, stop in _row_ranges(0, layout.nrows, layout.grid.unit):
        yield _row_unit(layout, next(number), start, stop)
    for array in layout.arrays:
        if not array.by_rows:
            level, stride = Levels.from_feature(schema[array.feature]).level_and_stride(array.part)
            before = layout.border_counts.items[array.feature][:, level] * stride
            for start in range(0, array.shape[0], array.unit):
                yield _flat_unit(layout, next(number), array, before, start, min(start + array.unit, array.shape[0]))


def plan_tasks(layout: ZarrLayout, units: Sequence[WriteUnit]) -> Iterator[WriteTask]:
    """Group units into tasks: flat units with the rows that hold most of their entries."""
    task_rows = layout.grid.unit * _row_units_per_task(layout)
    # A unit past the last row holds only the final split.
    last = max(layout.nrows - 1, 0)

    def task_number(unit: WriteUnit) -> int:
        return min((unit.first + unit.past) // 2, last) // task_rows

    for _, group in groupby(sorted(units, key=task_number), task_number):
        yield _task(layout, tuple(group))


def plan_single_tasks(layout: ZarrLayout, units: Iterable[WriteUnit]) -> Iterator[WriteTask]:
    """Make a task of each unit, for rows in memory: reading them again is free."""
    return (_task(layout, (unit,)) for unit in units)


def count_tasks(layout: ZarrLayout) -> int:
    """Count the tasks of all units."""
    return math.ceil(layout.nrow_units / _row_units_per_task(layout))


def _row_units_per_task(layout: ZarrLayout) -> int:
    return min(max(1, layout.nrow_units // limits().min_write_tasks), _MAX_ROW_UNITS)


def _task(layout: ZarrLayout, units: tuple[WriteUnit, ...]) -> WriteTask:
    """Divide the rows that units need into spans, at the ends of each unit."""
    borders = sorted({row for unit in units for row in (unit.first, unit.past)})
    spans: list[tuple[int, int]] = []
    for first, past in pairwise(borders):
        if any(unit.first <= first < unit.past for unit in units):
            spans += _spans(layout, first, past)
    return WriteTask(units, tuple(spans))


def _spans(layout: ZarrLayout, first: int, past: int) -> Iterable[tuple[int, int]]:
    if not layout.border_counts.items:
        return _row_ranges(first, past, layout.grid.most)
    low, high = np.searchsorted(layout.border_counts.rows, [first, past]).tolist()
    return layout.border_counts.spans(low, high, layout.grid.most)


def _row_unit(layout: ZarrLayout, number: int, start: int, stop: int) -> WriteUnit:
    counts = layout.border_counts
    if not counts.items:
        return WriteUnit(number, None, start, stop, start, stop, {}, {})
    low, high = np.searchsorted(counts.rows, [start, stop]).tolist()
    return WriteUnit(
        number, None, start, stop, start, stop, counts.at(low, counts.items), counts.at(high, counts.items)
    )


def _flat_unit(
    layout: ZarrLayout, number: int, array: ArraySpec, before: NDArray[np.int64], start: int, stop: int
) -> WriteUnit:
    """Return the unit of entries `start` to `stop`, with all rows that hold some of them."""
    counts = layout.border_counts
    low = int(np.searchsorted(before, start, side="right")) - 1
    # The last entry of splits does not belong to a row.
    high = max(low, int(np.searchsorted(before, min(stop, before[-1]), side="left")))
    first, past = counts.rows[[low, high]].tolist()
    names = (array.feature,)
    return WriteUnit(number, array, start, stop, first, past, counts.at(low, names), counts.at(high, names))


def _row_ranges(first: int, past: int, rows: int) -> Iterator[tuple[int, int]]:
    """Divide rows into ranges; without rows there is one empty range, for the first split."""
    for start in range(first, max(past, first + 1), rows):
        yield start, min(start + rows, past)
