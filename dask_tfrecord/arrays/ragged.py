"""Rows of differing length as dask arrays: flat values and splits, or padded to one length."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from numpy.typing import NDArray

from dask_tfrecord.arrays.backing import Backing
from dask_tfrecord.arrays.graph import Chunk, view
from dask_tfrecord.columns.blocks import RaggedBlock, to_array
from dask_tfrecord.errors import FeatureError
from dask_tfrecord.features import Feature

__all__ = ["padded_column", "ragged_column"]

_INT = np.dtype(np.int64)


def ragged_column(backing: Backing, name: str, feature: Feature) -> tuple[da.Array, ...]:
    """Values of one column, its row splits from the outermost on, and shapes where rows have their own.

    The chunks of what is no row are of unknown sizes; all come from one decode per chunk.
    """
    chunks = backing.chunks([name])
    token = tokenize(chunks.name, name)
    unknown = (np.nan,) * chunks.numblocks[0]
    shape = (unknown, *feature.item_shape)
    arrays = [view(_values, chunks, name, f"tfrecord-values-{token}", shape, feature.item_dtype)]
    for level in range(max(1, feature.ragged_rank)):
        arrays.append(_row_splits(chunks, name, level, backing.sizes if level == 0 else unknown))
    if feature.own_shapes:
        shape = (backing.sizes, feature.own_shapes)
        arrays.append(view(_shapes, chunks, name, f"tfrecord-shapes-{token}", shape, _INT))
    return tuple(arrays)


def _row_splits(chunks: da.Array, name: str, level: int, sizes: tuple[float, ...]) -> da.Array:
    option = (name, level)
    token = tokenize(chunks.name, option)
    # Where the values of each chunk begin; chunks may be empty, so whole rows can't be summed up one after the other.
    totals = view(_total, chunks, option, f"tfrecord-totals-{token}", ((1,) * chunks.numblocks[0],), _INT)
    starts = da.cumsum(totals, axis=0) - totals
    ends = view(_ends, chunks, option, f"tfrecord-ends-{token}", (sizes,), _INT, starts)
    zero = da.zeros(1, dtype=np.int64, chunks=1)
    row_splits: da.Array = da.concatenate([zero, ends], allow_unknown_chunksizes=True)
    return row_splits


def padded_column(backing: Backing, name: str, feature: Feature, length: int | Sequence[int], value: Any) -> da.Array:
    """One column with every row filled up to `length`.

    Raises
    ------
    ValueError
        If there is no length for each level of rows, one is negative, or the dtype of the column can't hold `value`.
    """
    dtype = feature.item_dtype
    lengths, value = _lengths(length, name, feature), _filling(value, dtype, name)
    chunks = backing.chunks([name])
    starts = np.concatenate([[0], np.cumsum(backing.sizes)[:-1]])
    option = (name, lengths, value)
    key = f"tfrecord-padded-{tokenize(chunks.name, option)}"
    shape = (backing.sizes, *lengths, *feature.item_shape)
    return view(_padded, chunks, option, key, shape, dtype, da.from_array(starts, chunks=1))


def _lengths(length: int | Sequence[int], name: str, feature: Feature) -> tuple[int, ...]:
    """Check the lengths of rows, the outermost first."""
    given = (length,) if not isinstance(length, Sequence) else length
    lengths = tuple(map(operator.index, given))
    if len(lengths) != feature.ragged_rank:
        raise ValueError(
            f"column {name!r} has {feature.ragged_rank} levels of rows, and each of them is padded to a length of its "
            f"own: give a tuple of as many; got length={length!r}"
        )
    if min(lengths) < 0:
        raise ValueError(f"rows are padded to no or more values; got length={length!r}")
    return lengths


def _filling(value: Any, dtype: np.dtype[Any], name: str) -> Any:
    """Find what shorter rows are filled with: `value` in the dtype of the column, or its zero."""
    if dtype.kind == "O":
        if value is not None and not isinstance(value, bytes):
            raise ValueError(f"the padding of {name!r}, a column of bytes, is bytes; got {value!r}")
        return value or b""
    given = np.asarray(0 if value is None else value)
    fits = given.ndim == 0 and given.dtype.kind in ("biufc" if dtype.kind == "c" else "biuf")
    if fits and dtype.kind in "biu":
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        fits = bool(np.isfinite(given)) and int(given) == given and low <= int(given) <= high
    with np.errstate(over="ignore"):
        filling = given.astype(dtype) if fits else given
    # Rounding is fine, another value is not.
    if not fits or np.isinf(filling) != np.isinf(given):
        raise ValueError(f"the padding {value!r} is no {dtype}, which the values of {name!r} are")
    return filling[()]


def _level(chunk: Chunk, name: str, level: int) -> Any:
    """Find the rows of one level, the outermost being 0."""
    block: Any = chunk.blocks[name]
    for _ in range(level):
        block = block.values
    return block


def _values(chunk: Chunk, name: str) -> NDArray[Any]:
    block = _level(chunk, name, 1)
    return to_array(block.flat_values if isinstance(block, RaggedBlock) else block)


def _shapes(chunk: Chunk, name: str) -> NDArray[np.int64]:
    shapes: NDArray[np.int64] = _level(chunk, name, 0).shapes
    return shapes


def _total(chunk: Chunk, option: tuple[str, int]) -> NDArray[np.int64]:
    total: NDArray[np.int64] = _level(chunk, *option).row_splits[-1:]
    return total


def _ends(chunk: Chunk, option: tuple[str, int], start: NDArray[np.int64]) -> NDArray[np.int64]:
    ends: NDArray[np.int64] = start + _level(chunk, *option).row_splits[1:]
    return ends


def _padded(chunk: Chunk, option: tuple[str, tuple[int, ...], Any], start: NDArray[np.float64]) -> NDArray[Any]:
    name, lengths, value = option
    outer: list[NDArray[np.int64]] = []
    for level, length in enumerate(lengths):
        splits = _level(chunk, name, level).row_splits
        longer = np.flatnonzero(np.diff(splits) > length)
        if len(longer):
            row, count = int(longer[0]), int(np.diff(splits)[longer[0]])
            for ends in reversed(outer):
                row = int(np.searchsorted(ends, row, side="right")) - 1
            where = "" if np.isnan(start[0]) else f" in row {int(start[0]) + row}"
            raise FeatureError(
                f"feature {name!r} holds {count} {'values' if level == len(lengths) - 1 else 'rows'}{where} where "
                f"padded(length={length if len(lengths) == 1 else lengths}) takes {length} at the most; nothing is cut "
                f"off: give a larger length"
            )
        outer.append(splits)
    return _filled(_level(chunk, name, 0), lengths, value)


def _filled(block: RaggedBlock, lengths: tuple[int, ...], value: Any) -> NDArray[Any]:
    values = block.values
    if isinstance(values, RaggedBlock):
        values = _filled(values, lengths[1:], value)
    return RaggedBlock(values, block.row_splits).padded(lengths[0], value)
