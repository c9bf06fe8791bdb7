"""Split the values of records, or of steps, into nested rows by the partitions of a `RaggedFeature`.

All records are processed at once. A group is the scope of one list of partition values: a record, or a step of a
feature list. See https://www.tensorflow.org/guide/ragged_tensor for the encodings of partitions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.columns.assemble import KeyOutput, flat_values, row_splits_of
from dask_tfrecord.columns.blocks import Block, BytesBlock, MemoryLimit, RaggedBlock, RowError, place, splits_of
from dask_tfrecord.columns.encoded_values import raw_values, text_values, values_assembler
from dask_tfrecord.errors import plural
from dask_tfrecord.features import (
    Encoded,
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

_Ints = NDArray[np.int64]
# ValueRowIds may skip rows, and an 8-byte id may skip more rows than fit into memory.
MAX_ROWS = 1 << 24


def partitioned(
    feature: Feature,
    outputs: Sequence[KeyOutput],
    rows: int,
    out: NDArray[Any] | None,
    limit: MemoryLimit | None = None,
) -> Block:
    """Assemble nested rows of values."""
    assert isinstance(feature, RaggedFeature)
    values, *keyed = outputs
    groups = _Groups(values)
    partitions = list(feature.partitions)
    counts = np.diff(groups.splits)
    inner = feature.uniform_sizes
    if inner:
        counts = groups.divided(counts, math.prod(inner), feature)
        del partitions[-len(inner) :]
    block: Any
    if feature.values is None:
        block = flat_values(values, feature.item_dtype, inner)
    else:
        block = _decoded(feature.values, values, rows, limit, inner)
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


def _decoded(
    feature: Encoded, output: KeyOutput, rows: int, limit: MemoryLimit | None, inner: tuple[int, ...]
) -> NDArray[Any] | BytesBlock:
    """Decode each bytes value, and group the arrays by the innermost uniform partitions."""
    assembler = values_assembler(feature)
    options = {} if assembler in (raw_values, text_values) else {"limit": limit}
    decoded = assembler(feature, [output], rows, None, **options)
    assert isinstance(decoded, RaggedBlock)
    values: Any = decoded.values
    shape = (len(values) // math.prod(inner), *inner, *values.shape[1:])
    return values.reshape(shape) if isinstance(values, np.ndarray) else BytesBlock(values.values, values.splits, shape)


class _Groups:
    """All records, or all of their steps."""

    def __init__(self, values: KeyOutput) -> None:
        self.steps = values.step_splits is not None
        self.row_splits = row_splits_of(values)
        self.splits = self.row_splits if values.step_splits is None else values.step_splits

    def refuse(self, bad: NDArray[np.bool_], describe: Callable[[int], str]) -> None:
        """Raise an error of the first invalid group, with the text that `describe` returns for it."""
        wrong = np.flatnonzero(bad)
        if not len(wrong):
            return
        group = int(wrong[0])
        if not self.steps:
            raise RowError(group, describe(group))
        row, step = place(self.row_splits, group)
        raise RowError(row, describe(group), step)

    def divided(self, counts: _Ints, length: int, feature: RaggedFeature) -> _Ints:
        """Return the number of rows per group, for rows of one length."""
        self.refuse(
            counts % length != 0,
            lambda group: (
                f"holds {plural(counts[group], 'value')}, not a multiple of {length}, the row length of {feature}"
            ),
        )
        return counts // length

    def cut(self, partition: KeyedPartition, output: KeyOutput, counts: _Ints) -> tuple[_Ints, _Ints]:
        """Return the lengths of all rows, and the number of rows per group."""
        splits = row_splits_of(output) if output.step_splits is None else output.step_splits
        if self.steps:
            other = np.diff(row_splits_of(output)) != np.diff(self.row_splits)
            if other.any():
                row = int(np.flatnonzero(other)[0])
                raise RowError(row, f"has another number of steps in {partition.key!r} than in its values")
        entries: Any = output.values
        entries = entries.view(np.int64)

        def misfit(group: int) -> str:
            found = entries[splits[group] : splits[group + 1]].tolist()
            if not found:
                cut = f"its {counts[group]:,} values or rows"
                return f"has no values in {partition.key!r}; {partition!r} must split {cut}"
            shown = f"{found[:10]!r:.100}" + (" and more" if len(found) > 10 else "")
            return f"holds {shown} as {partition!r}, which do not split its {counts[group]:,} values or rows"

        self.refuse(_any(splits, (entries < 0) | (entries > _upper_bound(partition, counts))), misfit)
        lengths, rows, fits = _RULES[type(partition)](entries, splits, counts)
        self.refuse(~fits, misfit)
        self.refuse(_any(splits_of(rows), lengths < 0), misfit)
        totals = splits_of(lengths)[splits_of(rows)]
        self.refuse(np.diff(totals) != counts, misfit)
        return lengths, rows


def _upper_bound(partition: KeyedPartition, counts: _Ints) -> int:
    """Return an upper bound for the entries of a partition, which prevents overflow of sums."""
    return MAX_ROWS if isinstance(partition, ValueRowIds) else int(counts.max(initial=0))


def _any(splits: _Ints, bad: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return for each group whether one of its entries is bad."""
    return np.diff(splits_of(bad)[splits]) > 0


_Cut = tuple[_Ints, _Ints, NDArray[np.bool_]]


def _lengths(entries: _Ints, splits: _Ints, counts: _Ints) -> _Cut:
    return entries, np.diff(splits), np.ones(len(counts), bool)


def _splits(entries: _Ints, splits: _Ints, counts: _Ints) -> _Cut:
    """Each entry of a group but the first one ends a row; a group without entries contains no rows."""
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
    """Each entry is the row of a value; skipped rows are empty."""
    number = np.diff(splits)
    some = number > 0
    fits = number == counts
    steps = np.diff(entries, prepend=0)
    steps[splits[:-1][some]] = 0
    fits &= ~_any(splits, steps < 0)
    rows = np.zeros(len(counts), np.int64)
    rows[some] = entries[splits[1:][some] - 1] + 1
    if not fits.all() or rows.sum() > MAX_ROWS + len(entries):
        return np.zeros(0, np.int64), np.zeros(len(counts), np.int64), fits & (rows <= MAX_ROWS // max(len(rows), 1))
    first = np.repeat(splits_of(rows)[:-1], number)
    return np.bincount(first + entries, minlength=int(rows.sum())), rows, fits


_RULES = {RowLengths: _lengths, RowSplits: _splits, RowLimits: _limits, RowStarts: _starts, ValueRowIds: _row_ids}
