"""Items of rows: values of ragged rows as rows of their own, and the features that describe them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.columns.blocks import (
    ArraysBlock,
    Block,
    BytesBlock,
    RaggedBlock,
    RowError,
    rows_of,
    splits_of,
    take_rows,
    to_array,
)
from dask_tfrecord.errors import plural
from dask_tfrecord.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    RawFeature,
    RowLengths,
    TensorFeature,
    TextFeature,
    UniformRowLength,
    VarLenFeature,
)
from dask_tfrecord.features.encoded import Encoded
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
