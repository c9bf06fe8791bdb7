"""Columns whose rows differ in size, as flat arrays: splits, each of which cuts the next, and values.

A column of bytes, of ragged rows or of arrays of their own shapes is a chain of levels. The items of level 0 are rows;
those of level 1 are what the first splits cut; those of the last level are the entries of ``NAME.values``. Pure values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.columns.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock
from dask_tfrecord.features import Feature

__all__ = ["Levels", "flat_arrays", "is_flat", "is_part"]

_Ints = NDArray[np.int64]
_PART = re.compile("values|shapes|byte_splits|row_splits(_[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Levels:
    """The flat arrays of a column.

    Attributes
    ----------
    splits : tuple of str
        Names of the splits, outermost first; none where the column is one array.
    strides : tuple of int
        Entries that each of them has for an item of its level: bytes values of a shape are several to an item.
    item_nbytes : int
        Decoded bytes of an item of the last level.
    axes : int
        Axes of rows that each have a shape of their own, which is in ``NAME.shapes``; else 0.
    """

    splits: tuple[str, ...]
    strides: tuple[int, ...]
    item_nbytes: int
    axes: int

    @classmethod
    def of(cls, feature: Feature) -> Levels:
        """Find the levels of a feature's column."""
        strides = [1] * (feature.ragged_rank + bool(feature.own_shapes))
        item_nbytes = math.prod(feature.item_shape) * feature.item_dtype.itemsize
        if feature.is_bytes:
            strides.append(math.prod(feature.item_shape))
            item_nbytes = 1
        names = ["row_splits" if level == 0 else f"row_splits_{level}" for level in range(len(strides))]
        if feature.is_bytes and len(names) > 1:
            names[-1] = "byte_splits"
        return cls(tuple(names), tuple(strides), item_nbytes, feature.own_shapes)

    def place(self, part: str) -> tuple[int, int]:
        """Find the level that an array of the column is laid out by, and its entries for each item there."""
        if part in self.splits:
            level = self.splits.index(part)
            return level, self.strides[level]
        return (len(self.splits) if part == "values" else 0), 1

    def entries(self, part: str, items: Sequence[int]) -> int:
        """Count the entries of an array for that many items of each level; its last split is one more."""
        level, stride = self.place(part)
        return items[level] * stride

    def items(self, block: Block) -> list[_Ints]:
        """Items of each level before each row of a block, and past its last."""
        found = [np.arange(len(block) + 1)]
        for splits, stride in zip(flat_arrays(block)[0], self.strides, strict=True):
            # Of the first ones there is one for each row.
            found.append(splits if len(found) == stride == 1 else splits[found[-1] * stride])
        return found

    def nbytes(self, items: Sequence[_Ints]) -> _Ints:
        """Count the decoded bytes of that many items of each level."""
        nbytes: _Ints = items[-1] * self.item_nbytes
        for level, stride in zip(items, (self.strides[0] + self.axes, *self.strides[1:]), strict=False):
            nbytes += level * (8 * stride)
        return nbytes

    def block(
        self, feature: Feature, rows: int, splits: Sequence[_Ints], values: NDArray[Any], shapes: _Ints | None
    ) -> Block:
        """Put a block together.

        Parameters
        ----------
        feature : Feature
            What the column is.
        rows : int
            Rows of the block.
        splits : sequence of ndarray of int64
            Outermost first, each from 0 on.
        values : ndarray
            As many as the last splits say.
        shapes : ndarray of int64, shape (rows, axes), or None
            Where rows have shapes of their own.
        """
        block: Any = values
        *cuts, last = splits
        if feature.is_bytes:
            items = int(cuts[-1][-1]) if cuts else rows
            block = BytesBlock(values, last, (items, *feature.item_shape))
        else:
            cuts.append(last)
        if shapes is not None:
            return ArraysBlock(block, cuts[0], shapes)
        for ends in reversed(cuts):
            block = RaggedBlock(block, ends)
        made: Block = block
        return made


def flat_arrays(block: Block) -> tuple[list[_Ints], NDArray[Any]]:
    """Take a block apart: its splits, outermost first, and its values."""
    splits = []
    while isinstance(block, RaggedBlock | ArraysBlock):
        splits.append(block.row_splits)
        block = block.values
    if isinstance(block, BytesBlock):
        splits.append(block.splits)
        block = block.values
    return splits, block


def is_flat(feature: Feature) -> bool:
    """Whether a feature's column is laid out as flat values and splits."""
    return bool(Levels.of(feature).splits)


def is_part(name: str) -> bool:
    """Whether a name may be that of a part of a column."""
    return _PART.fullmatch(name) is not None
