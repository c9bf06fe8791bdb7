"""Items of rows: values of ragged rows as rows of their own, their features, and partitions of `RaggedFeature`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.columns.blocks import (
    ArraysBlock,
    Block,
    BytesBlock,
    KeyOutput,
    MemoryLimit,
    RaggedBlock,
    RowError,
    flat_values,
    place,
    row_splits_of,
    rows_of,
    splits_of,
    take_rows,
    to_array,
)
from dask_tfrecord.columns.encoded_values import raw_values, text_values, values_assembler
from dask_tfrecord.errors import plural
from dask_tfrecord.features import (
    Encoded,
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    KeyedPartition,
    RaggedFeature,
    RawFeature,
    RowLengths,
    RowLimits,
    RowSplits,
    RowStarts,
    TensorFeature,
    TextFeature,
    UniformRowLength,
    ValueRowIds,
    VarLenFeature,
)
from dask_tfrecord.schema import Schema

# Column of the record that an item belongs to.
RECORD = "record"


def lengths_column(name: str, feature: Feature) -> str | None:
    """Return the column that holds the row lengths of a padded column; None for other columns."""
    return f"{name}.lengths" if isinstance(feature, FixedLenSequenceFeature) else None


def item_feature(feature: Feature) -> Feature | None:
    """Return the feature of the items of a column; None if its rows do not vary in length.

    Items of a fixed shape are dense, or bytes. Items of nested rows have one level of rows less.
    """
    if isinstance(feature, FixedLenSequenceFeature):
        return FixedLenFeature(feature.shape, feature.dtype)
    if isinstance(feature, Encoded):
        if isinstance(feature, RawFeature | TensorFeature | TextFeature) and feature.count == -1:
            return replace(feature, count=None)
        if feature.ragged_rank or (isinstance(feature, TensorFeature) and feature.own_shapes and feature.shape[0] < 0):
            return type(feature)(**{**feature.arguments(), "shape": feature.shape[1:]})
        return None
    if isinstance(feature, RaggedFeature) and feature.values is not None:
        return _item_of_decoded(feature.values, feature)
    if feature.ragged_rank > 1:
        return VarLenFeature(feature.dtype, shape=feature.shape[1:])
    return FixedLenFeature(feature.item_shape, feature.dtype) if feature.ragged_rank else None


def _item_of_decoded(values: Encoded, feature: RaggedFeature) -> Feature:
    """Return the feature of the rows within rows of decoded values."""
    levels, sizes = feature.ragged_rank - 1, tuple(map(UniformRowLength, feature.uniform_sizes))
    if levels or sizes:
        # One level of rows less; keys are those of no record.
        outer = tuple(RowLengths(f"{level}") for level in range(levels - 1))
        return RaggedFeature("bytes", partitions=(*outer, *sizes), values=values)
    return values


def _row_lengths(block: Block) -> NDArray[np.int64]:
    """Return the number of items of each row: of ragged rows, of arrays along their first axis, or as listed."""
    if isinstance(block, RaggedBlock):
        return np.diff(block.row_splits)
    if isinstance(block, ArraysBlock):
        return block.shapes[:, 0]
    lengths: NDArray[np.int64] = to_array(block)
    return lengths


def _block_items(block: Block, lengths: NDArray[np.int64], feature: Feature) -> Block:
    """Return the items of all rows of a block as the rows of a block."""
    if isinstance(block, RaggedBlock):
        values = block.values
        if isinstance(values, ArraysBlock) and not feature.own_shapes:
            # The only open size is that of ragged rows.
            each = math.prod(feature.item_shape)
            return RaggedBlock(to_array(values.values).reshape(-1, *feature.item_shape), values.row_splits // each)
        return values
    if isinstance(block, ArraysBlock):
        return _array_items(block, lengths, feature)
    kept = np.arange(block.shape[1]) < lengths[:, None]
    if isinstance(block, BytesBlock):
        steps = BytesBlock(block.values, block.splits, (kept.size, *feature.item_shape))
        return steps.take(np.flatnonzero(kept))
    items: NDArray[np.generic] = to_array(block)[kept]
    return items


def _array_items(block: ArraysBlock, lengths: NDArray[np.int64], feature: Feature) -> Block:
    """Cut arrays along their first axis."""
    values = block.values
    if feature.own_shapes:
        shapes = np.repeat(block.shapes[:, 1:], lengths, axis=0)
        return ArraysBlock(values, splits_of(shapes.prod(axis=1)), shapes)
    shape = (int(lengths.sum()), *feature.item_shape)
    if isinstance(values, BytesBlock):
        return BytesBlock(values.values, values.splits, shape)
    return values.reshape(shape)


@dataclass(frozen=True, slots=True, eq=False)
class ItemPlan:
    """Columns of items, and the columns of records that they are made of."""

    group: tuple[str, ...]
    repeated: tuple[str, ...]
    records: Schema
    schema: Schema
    encoded: tuple[str, ...] = ()  # images that are read as bytes, to decode those of the requested items only

    def __dask_tokenize__(self) -> object:
        schemas = self.records.__dask_tokenize__(), self.schema.__dask_tokenize__()
        return "dask_tfrecord.ItemPlan", self.group, self.repeated, schemas, self.encoded

    def lengths_of(self, name: str) -> str:
        """Return the column that determines the row lengths of a column of the group."""
        return lengths_column(name, self.records[name]) or name

    def needs_values(self, names: Sequence[str]) -> bool:
        """Return True if blocks of some columns of items need the values of ragged rows, not only their sizes."""
        features = [self.schema[name] for name in names if name in self.group]
        return any(not (of.ragged_rank or of.own_shapes or of.is_bytes) for of in features)

    def needed(self, names: Sequence[str], *, counted: bool) -> tuple[str, ...]:
        """Return the columns of records to read for some columns of items; lengths are read if they are not counted."""
        found = [name for name in names if name != RECORD]
        found += [self.lengths_of(name) for name in found if name in self.group]
        if not counted and not any(name in self.group for name in names):
            found.append(self.lengths_of(self.group[0]))
        return tuple(dict.fromkeys(found))

    def items(
        self,
        names: Sequence[str],
        blocks: Mapping[str, Block],
        lengths: NDArray[np.int64],
        picked: slice | NDArray[np.int64],
        first_record: int | NDArray[np.int64] = 0,
    ) -> dict[str, Block]:
        """Return items of blocks of records; those of `encoded` columns as bytes."""
        made: dict[str, Block] = {}
        if any(name not in self.group for name in names):
            records: NDArray[np.int64] = np.repeat(np.arange(len(lengths)), lengths)[picked]
        for name in names:
            if name == RECORD:
                made[name] = first_record[records] if isinstance(first_record, np.ndarray) else first_record + records
            elif name in self.group:
                made[name] = _picked(_block_items(blocks[name], lengths, self.schema[name]), picked)
            else:
                made[name] = take_rows(blocks[name], records)
        return made

    def flat_outputs(self, out: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the arrays of `out` that the flat values of ragged columns of records may be decoded to."""
        return {
            name: array
            for name, array in out.items()
            if name in self.group
            and self.records[name].ragged_rank == 1
            and self.records[name].item_dtype == array.dtype
        }

    def check_lengths(self, blocks: Mapping[str, Block], expected: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Return the row lengths of the columns of the group among some blocks."""
        found = [(name, _row_lengths(blocks[at])) for name in self.group if (at := self.lengths_of(name)) in blocks]
        other = ""
        for name, lengths in found:
            if expected is None:
                expected, other = lengths, name
            different = np.flatnonzero(lengths != expected)
            if len(different):
                row = int(different[0])
                raise UnequalLengths(row, name, int(expected[row]), int(lengths[row]), other)
        assert expected is not None
        return expected


class UnequalLengths(RowError):
    """Column of a group whose length differs in one row from another column, or from the counted length."""

    def __init__(self, row: int, name: str, expected: int, found: int, other: str) -> None:
        message = f"holds {plural(found, 'item')}; expected {expected:,}, "
        if other:
            message += (
                f"as in {other!r}: columns that are exploded together have equal lengths in every record; give explode "
                f"a list of columns that share theirs"
            )
        else:
            message += "as counted by explode: the rows have changed since, or a function returns other rows each time"
        super().__init__(row, message)
        self.name = name


def _picked(block: Block, picked: slice | NDArray[np.int64]) -> Block:
    if not isinstance(picked, slice):
        return take_rows(block, picked)
    if 2 * (picked.stop - picked.start) < len(block):
        # A view of a few items would keep all of them in memory.
        return take_rows(block, np.arange(picked.start, picked.stop))
    return rows_of(block, picked.start, picked.stop)


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
