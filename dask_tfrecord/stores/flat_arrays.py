"""Flat arrays of variable-length columns: splits, each indexing into the next, and values.

Columns of bytes, ragged columns and columns of arrays with their own shapes are a chain of levels. Items of level 0 are
rows; the first splits divide the items of level 1 among them, and so on. Items of the last level are the entries of
``NAME.values``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.columns.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock
from dask_tfrecord.errors import FeatureError, Location, plural
from dask_tfrecord.features import Feature
from dask_tfrecord.schema import Schema
from dask_tfrecord.settings import limits

_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Levels:
    """The flat arrays of a column."""

    # Suffixes of the splits, outermost first; none if the column is one array.
    splits: tuple[str, ...]
    # Entries of each of them per item of its level; an item of a shape has several bytes values.
    strides: tuple[int, ...]
    # Decoded bytes of an item of the last level.
    item_nbytes: int
    # Axes of arrays with shapes of their own; else 0.
    axes: int
    # Level whose items have these shapes: 0 if rows are arrays, 1 if rows are lists of arrays.
    shapes_level: int

    @property
    def shapes(self) -> str | None:
        """Suffix of the array of shapes: ``"shapes"`` of rows, ``"item_shapes"`` of their items; None without."""
        return None if not self.axes else "item_shapes" if self.shapes_level else "shapes"

    @classmethod
    @lru_cache
    def from_feature(cls, feature: Feature) -> Levels:
        """Return the levels of the column of a feature."""
        strides = [1] * (feature.ragged_rank + bool(feature.own_shapes))
        item_nbytes = math.prod(feature.item_shape) * feature.item_dtype.itemsize
        if feature.is_bytes:
            strides.append(math.prod(feature.item_shape))
            item_nbytes = 1
        names = ["row_splits" if level == 0 else f"row_splits_{level}" for level in range(len(strides))]
        if feature.is_bytes and len(names) > 1:
            names[-1] = "byte_splits"
        return cls(tuple(names), tuple(strides), item_nbytes, feature.own_shapes, feature.ragged_rank)

    def row_nbytes(self) -> tuple[float, float]:
        """Return the bytes of a row in the arrays along the rows: splits and shapes."""
        return 8.0 * self.strides[0], 0.0 if self.shapes_level else 8.0 * self.axes

    def level_and_stride(self, suffix: str) -> tuple[int, int]:
        """Return the level of an array of the column, and its entries per item of that level."""
        if suffix in self.splits:
            level = self.splits.index(suffix)
            return level, self.strides[level]
        return (len(self.splits) if suffix == "values" else self.shapes_level), 1

    def entries(self, suffix: str, items: Sequence[int]) -> int:
        """Return the entries of an array for these items of each level, without the final split."""
        level, stride = self.level_and_stride(suffix)
        return items[level] * stride

    def items(self, block: Block) -> list[_Ints]:
        """Return the items of each level before each row of a block, and after its last row."""
        found = [np.arange(len(block) + 1)]
        for splits, stride in zip(flatten_block(block)[0], self.strides, strict=True):
            # The first splits have one entry per row.
            found.append(splits if len(found) == stride == 1 else splits[found[-1] * stride])
        return found

    def nbytes(self, items: Sequence[_Ints]) -> _Ints:
        """Return the decoded bytes of these items of each level."""
        nbytes: _Ints = items[-1] * self.item_nbytes
        for level, stride in zip(items, self.strides, strict=False):
            nbytes += level * (8 * stride)
        return nbytes + items[self.shapes_level] * (8 * self.axes)

    def to_block(
        self, feature: Feature, rows: int, splits: Sequence[_Ints], values: NDArray[Any], shapes: _Ints | None
    ) -> Block:
        """Assemble a block.

        Parameters
        ----------
        feature : Feature
            Feature of the column.
        rows : int
            Rows of the block.
        splits : sequence of ndarray of int64
            Splits, outermost first, each starting at 0.
        values : ndarray
            Items of the last level.
        shapes : ndarray of int64, shape (arrays, axes), or None
            Shapes of the arrays; None if they share one.
        """
        block: Any = values
        *outer, last = splits
        if feature.is_bytes:
            items = int(outer[-1][-1]) if outer else rows
            block = BytesBlock(values, last, (items, *feature.item_shape))
        else:
            outer.append(last)
        if shapes is not None:
            block = ArraysBlock(block, outer.pop(), shapes)
        for ends in reversed(outer):
            block = RaggedBlock(block, ends)
        made: Block = block
        return made


def flatten_block(block: Block) -> tuple[list[_Ints], NDArray[Any]]:
    """Return the splits of a block, outermost first, and its values."""
    splits = []
    while isinstance(block, RaggedBlock | ArraysBlock):
        splits.append(block.row_splits)
        block = block.values
    if isinstance(block, BytesBlock):
        splits.append(block.splits)
        block = block.values
    return splits, block


def shapes_of(block: Block) -> _Ints:
    """Return the shapes of the arrays of a block, rows or items of rows."""
    arrays = block.values if isinstance(block, RaggedBlock) else block
    assert isinstance(arrays, ArraysBlock)
    return arrays.shapes


def is_flat(feature: Feature) -> bool:
    """Return True if the column of a feature is stored as flat values and splits."""
    return bool(Levels.from_feature(feature).splits)


def flat_levels(schema: Schema) -> dict[str, Levels]:
    """Return the levels of the columns that are stored as flat values and splits."""
    levels = {name: Levels.from_feature(feature) for name, feature in schema.items()}
    return {name: each for name, each in levels.items() if each.splits}


def check_group_lengths(
    groups: Mapping[str, Sequence[str]], blocks: Mapping[str, Block], locate: Callable[[int, str], Location]
) -> None:
    """Check that the columns of each group have one number of items in each row.

    Parameters
    ----------
    groups : mapping of str to sequence of str
        Columns of each group; those without a block are not checked.
    blocks : mapping of str to block
        Rows of columns.
    locate : callable
        Returns the location of a row of the blocks, and of a feature, for the error.

    Raises
    ------
    FeatureError
        If a row differs.
    """
    for group, names in groups.items():
        first, *others = [name for name in names if name in blocks] or [""]
        for name in others:
            splits, own = (_row_splits(blocks[each]) for each in (first, name))
            if not np.array_equal(splits, own):
                lengths, found = np.diff(splits), np.diff(own)
                row = int(np.flatnonzero(lengths != found)[0])
                number = plural(int(found[row]), "item")
                raise FeatureError(
                    f"feature {name!r} has {number}, expected {lengths[row]:,} as in {first!r}: features of group "
                    f"{group!r} have one number of items in each record. to_zarr takes groups= without one of them, "
                    f"and to_tfrecord takes features= with a Schema that has other groups",
                    locate(row, name),
                )


def _row_splits(block: Block) -> _Ints:
    """Return the splits of ragged rows; rows of an array have one length."""
    if isinstance(block, RaggedBlock):
        return block.row_splits
    return np.arange(len(block) + 1, dtype=np.int64) * block.shape[1]


@dataclass(frozen=True, slots=True, eq=False)
class BorderCounts:
    """Items of the flat features before some borders between rows."""

    # The borders, ascending: the first row, the first row of each unit, the number of rows.
    rows: NDArray[np.int64]
    # Items of each level of a feature before each border, rows first.
    items: dict[str, NDArray[np.int64]]
    # Decoded bytes of all flat features before each border.
    sizes: NDArray[np.int64]

    @classmethod
    def concatenate(cls, schema: Schema, counts: Sequence[BorderCounts]) -> BorderCounts:
        """Concatenate the counts of consecutive rows; each starts at its own first row with zero items."""
        none = np.zeros(1, np.int64)
        items = {
            name: _join_cumulative([each.items[name] for each in counts], (len(levels.splits) + 1,))
            for name, levels in flat_levels(schema).items()
        }
        rows = np.concatenate([none, *(each.rows[1:] for each in counts)])
        return cls(rows, items, _join_cumulative([each.sizes for each in counts], ()))

    def at(self, border: int, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Return the items of some features before a border."""
        return {name: tuple(self.items[name][border].tolist()) for name in names}

    def spans(self, low: int, high: int, most_rows: int) -> tuple[tuple[int, int], ...]:
        """Divide the rows between two borders into spans, each of `most_rows` and `Limits.read_nbytes` at most."""
        chosen = [low]
        while chosen[-1] < high:
            last = chosen[-1]
            past = min(
                int(np.searchsorted(self.sizes, self.sizes[last] + limits().read_nbytes, side="right")),
                int(np.searchsorted(self.rows, self.rows[last] + most_rows, side="right")),
            )
            chosen.append(min(max(past - 1, last + 1), high))
        return tuple(pairwise(self.rows[chosen].tolist()))


def _join_cumulative(totals: Sequence[NDArray[np.int64]], shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Join cumulative sums of that shape that each start at zero."""
    steps = [np.diff(part, axis=0) for part in totals]
    return np.cumsum(np.concatenate([np.zeros((1, *shape), np.int64), *steps]), axis=0)
