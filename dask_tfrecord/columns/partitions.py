"""The partitions of a `RaggedFeature`: what cuts the values of records, or of steps, into rows of rows.

Everything is done for all records at once. A group is what one list of partition values belongs to: a record, or a
step of a feature list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.columns.blocks import Block, RaggedBlock, splits_of
from dask_tfrecord.columns.making import flat_values, row_splits_of
from dask_tfrecord.columns.parts import Taken
from dask_tfrecord.columns.rows import RowError
from dask_tfrecord.features import (
    Feature,
    KeyedPartition,
    RaggedFeature,
    RowLengths,
    RowLimits,
    RowSplits,
    RowStarts,
    UniformRowLength,
    ValueRowIds,
)

__all__ = ["partitioned"]

_Ints = NDArray[np.int64]
# Value row ids may leave rows out, and a number of eight bytes can leave out more than any memory holds.
MOST_ROWS = 1 << 24


def partitioned(feature: Feature, taken: Sequence[Taken], rows: int, out: NDArray[Any] | None) -> Block:
    """Rows of rows of values.

    Raises
    ------
    RowError
        If partitions do not fit the values of a record, or of a step of it.
    """
    assert isinstance(feature, RaggedFeature)
    values, *keyed = taken
    groups = _Groups(values)
    partitions = list(feature.partitions)
    counts = np.diff(groups.splits)
    inner = feature.item_shape
    if inner:
        counts = groups.divided(counts, math.prod(inner), feature)
        del partitions[-len(inner) :]
    block: Any = flat_values(values, feature.item_dtype, inner)
    for partition in reversed(partitions):
        if isinstance(partition, UniformRowLength):
            counts = groups.divided(counts, partition.length, feature)
            lengths = np.full(int(counts.sum()), partition.length, np.int64)
        else:
            assert isinstance(partition, KeyedPartition)
            lengths, counts = groups.cut(partition, keyed.pop(), counts)
        block = RaggedBlock(block, splits_of(lengths))
    block = RaggedBlock(block, splits_of(counts))
    return block if values.step_splits is None else RaggedBlock(block, row_splits_of(values))


class _Groups:
    """The records, or all of their steps."""

    def __init__(self, values: Taken) -> None:
        self.steps = values.step_splits is not None
        self.row_splits = row_splits_of(values)
        self.splits = self.row_splits if values.step_splits is None else values.step_splits

    def refuse(self, bad: NDArray[np.bool_], say: Callable[[int], str]) -> None:
        """Refuse the first group with which something is wrong, in the words that are said of it."""
        wrong = np.flatnonzero(bad)
        if not len(wrong):
            return
        group = int(wrong[0])
        if not self.steps:
            raise RowError(group, say(group))
        row = int(np.searchsorted(self.row_splits, group, side="right")) - 1
        raise RowError(row, f"{say(group)}, in step {group - int(self.row_splits[row])}")

    def divided(self, counts: _Ints, length: int, feature: RaggedFeature) -> _Ints:
        """Rows of one length."""
        self.refuse(
            counts % length != 0,
            lambda group: f"holds {counts[group]} values, which are no whole rows of {length}, as {feature} has them",
        )
        return counts // length

    def cut(self, partition: KeyedPartition, part: Taken, counts: _Ints) -> tuple[_Ints, _Ints]:
        """Lengths of all rows, and how many rows there are in each group."""
        splits = row_splits_of(part) if part.step_splits is None else part.step_splits
        if self.steps:
            other = np.diff(row_splits_of(part)) != np.diff(self.row_splits)
            if other.any():
                row = int(np.flatnonzero(other)[0])
                raise RowError(row, f"has another number of steps in {partition.key!r} than in its values")
        entries: Any = part.values
        entries = entries.view(np.int64)

        def misfit(group: int) -> str:
            found = entries[splits[group] : splits[group + 1]].tolist()
            if not found:
                return (
                    f"has nothing in {partition.key!r}, by which {partition!r} cuts its {counts[group]} values or rows"
                )
            shown = f"{found[:10]!r:.100}" + (" and more" if len(found) > 10 else "")
            return f"holds {shown} as {partition!r}, which do not cut its {counts[group]} values or rows"

        self.refuse(_any(splits, (entries < 0) | (entries > _most(partition, counts))), misfit)
        lengths, rows, fits = _RULES[type(partition)](entries, splits, counts)
        self.refuse(~fits, misfit)
        self.refuse(_any(splits_of(rows), lengths < 0), misfit)
        totals = splits_of(lengths)[splits_of(rows)]
        self.refuse(np.diff(totals) != counts, misfit)
        return lengths, rows


def _most(partition: KeyedPartition, counts: _Ints) -> int:
    """Bound the entries of a partition, so that sums stay sums."""
    return MOST_ROWS if isinstance(partition, ValueRowIds) else int(counts.max(initial=0))


def _any(splits: _Ints, bad: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether something is wrong with an entry of each group."""
    return np.diff(splits_of(bad)[splits]) > 0


_Cut = tuple[_Ints, _Ints, NDArray[np.bool_]]


def _lengths(entries: _Ints, splits: _Ints, counts: _Ints) -> _Cut:
    return entries, np.diff(splits), np.ones(len(counts), bool)


def _splits(entries: _Ints, splits: _Ints, counts: _Ints) -> _Cut:
    """All but the first entry of a group end a row; a group without entries has no rows."""
    number = np.diff(splits)
    some = number > 0
    first = np.zeros(len(entries), bool)
    first[splits[:-1][some]] = True
    begins_at_0 = np.ones(len(counts), bool)
    begins_at_0[some] = entries[splits[:-1][some]] == 0
    lengths = np.diff(entries, prepend=0)[~first]
    return lengths, number - some, begins_at_0


def _limits(entries: _Ints, splits: _Ints, counts: _Ints) -> _Cut:
    number = np.diff(splits)
    before = np.concatenate([np.zeros(1, np.int64), entries])[:-1]
    before[splits[:-1][number > 0]] = 0
    return entries - before, number, np.ones(len(counts), bool)


def _starts(entries: _Ints, splits: _Ints, counts: _Ints) -> _Cut:
    number = np.diff(splits)
    some = number > 0
    after = np.concatenate([entries, np.zeros(1, np.int64)])[1:]
    after[splits[1:][some] - 1] = counts[some]
    begins_at_0 = np.ones(len(counts), bool)
    begins_at_0[some] = entries[splits[:-1][some]] == 0
    return after - entries, number, begins_at_0


def _row_ids(entries: _Ints, splits: _Ints, counts: _Ints) -> _Cut:
    """One entry for each value: the row that it is in; rows that none names are empty."""
    number = np.diff(splits)
    some = number > 0
    fits = number == counts
    steps = np.diff(entries, prepend=0)
    steps[splits[:-1][some]] = 0
    fits &= ~_any(splits, steps < 0)
    rows = np.zeros(len(counts), np.int64)
    rows[some] = entries[splits[1:][some] - 1] + 1
    if not fits.all() or rows.sum() > MOST_ROWS + len(entries):
        return np.zeros(0, np.int64), np.zeros(len(counts), np.int64), fits & (rows <= MOST_ROWS // max(len(rows), 1))
    first = np.repeat(splits_of(rows)[:-1], number)
    return np.bincount(first + entries, minlength=int(rows.sum())), rows, fits


_RULES = {RowLengths: _lengths, RowSplits: _splits, RowLimits: _limits, RowStarts: _starts, ValueRowIds: _row_ids}
