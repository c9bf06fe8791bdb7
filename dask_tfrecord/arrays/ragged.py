"""Ragged columns as dask arrays: flat values and row splits, or padded to a fixed length."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from numpy.typing import NDArray

from dask_tfrecord.arrays.exploded_source import locate_row
from dask_tfrecord.arrays.graph import Chunk, block_array
from dask_tfrecord.arrays.rows import Rows
from dask_tfrecord.arrays.sources import Source
from dask_tfrecord.columns.blocks import RaggedBlock, to_array
from dask_tfrecord.errors import FeatureError, SchemaError
from dask_tfrecord.features import Feature

__all__ = ["check_ragged", "padded_column", "padding_value", "ragged_column"]

_INT = np.dtype(np.int64)


def ragged_column(rows: Rows, name: str, feature: Feature) -> tuple[da.Array, ...]:
    """Return the flat values of a column, its row splits from the outermost on, and shapes if each row has its own.

    All arrays share one decode per chunk. Arrays without an entry per row have chunks of unknown sizes.

    Raises
    ------
    SchemaError
        If all rows have the same shape.
    """
    _check_ragged(name, feature)
    chunks = rows.chunks([name])
    token = tokenize(chunks.name, name)
    unknown = (np.nan,) * chunks.numblocks[0]
    shape = (unknown, *feature.item_shape)
    arrays = [block_array(_values, chunks, name, f"tfrecord-values-{token}", shape, feature.item_dtype)]
    for level in range(feature.ragged_rank + bool(feature.own_shapes)):
        arrays.append(_row_splits(chunks, name, level, rows.sizes if level == 0 else unknown))
    if feature.own_shapes:
        shape = (unknown if feature.ragged_rank else rows.sizes, feature.own_shapes)
        arrays.append(block_array(_shapes, chunks, name, f"tfrecord-shapes-{token}", shape, _INT))
    return tuple(arrays)


def _row_splits(chunks: da.Array, name: str, level: int, sizes: tuple[float, ...]) -> da.Array:
    option = (name, level)
    token = tokenize(chunks.name, option)
    # First value of each chunk. Chunks may be empty, so the last split of the previous chunk is not enough.
    totals = block_array(_total, chunks, option, f"tfrecord-totals-{token}", ((1,) * chunks.numblocks[0],), _INT)
    starts = da.cumsum(totals, axis=0) - totals
    ends = block_array(_ends, chunks, option, f"tfrecord-ends-{token}", (sizes,), _INT, starts)
    zero = da.zeros(1, dtype=np.int64, chunks=1)
    row_splits: da.Array = da.concatenate([zero, ends], allow_unknown_chunksizes=True)
    return row_splits


def padded_column(rows: Rows, name: str, feature: Feature, length: int | Sequence[int], value: Any) -> da.Array:
    """Return a column with every row padded to `length`.

    Raises
    ------
    SchemaError
        If the rows are not ragged.
    ValueError
        If the number of lengths differs from the levels of the rows, a length is negative, or the dtype of the column
        cannot represent `value`.
    """
    check_ragged(name, feature)
    dtype = feature.item_dtype
    lengths, value = _lengths(length, name, feature), padding_value(value, dtype, name)
    chunks = rows.chunks([name])
    option = (name, lengths, value, rows.source, rows.borders)
    key = f"tfrecord-padded-{tokenize(chunks.name, option)}"
    shape = (rows.sizes, *lengths, *feature.item_shape)
    return block_array(_padded, chunks, option, key, shape, dtype, da.arange(rows.nchunks, chunks=1))


def _check_ragged(name: str, feature: Feature) -> None:
    if not feature.ragged_rank and not feature.own_shapes:
        raise SchemaError(f"column {name!r} is {feature}, of one shape in all rows: it is an array as it is")


def check_ragged(name: str, feature: Feature) -> None:
    """Check that the rows of a column can be padded.

    Raises
    ------
    SchemaError
        If all rows have the same shape, or each row is an array of its own shape.
    """
    _check_ragged(name, feature)
    if feature.own_shapes:
        raise SchemaError(f"column {name!r} is {feature}, of arrays: only rows of differing length are padded")


def _lengths(length: int | Sequence[int], name: str, feature: Feature) -> tuple[int, ...]:
    """Check the padded lengths, the outermost first."""
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


def padding_value(value: Any, dtype: np.dtype[Any], name: str) -> Any:
    """Return the padding in the dtype of the column; its zero by default.

    Raises
    ------
    ValueError
        If the dtype cannot represent `value`.
    """
    if dtype.kind == "O":
        if value is not None and not isinstance(value, bytes):
            raise ValueError(f"the padding of {name!r}, a column of bytes, is bytes; got {value!r}")
        return value or b""
    if dtype.kind == "T":
        if value is not None and not isinstance(value, str):
            raise ValueError(f"the padding of {name!r}, a column of text, is str; got {value!r}")
        return value or ""
    given = np.asarray(0 if value is None else value)
    fits = given.ndim == 0 and given.dtype.kind in ("biufc" if dtype.kind == "c" else "biuf")
    if fits and dtype.kind in "biu":
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        fits = bool(np.isfinite(given)) and int(given) == given and low <= int(given) <= high
    with np.errstate(over="ignore"):
        filling = given.astype(dtype) if fits else given
    # Rounding of floats is accepted.
    if not fits or np.isinf(filling) != np.isinf(given):
        raise ValueError(f"the padding {value!r} is no {dtype}, which the values of {name!r} are")
    return filling[()]


def _level(chunk: Chunk, name: str, level: int) -> Any:
    """Return the block of one level; 0 is the outermost."""
    block: Any = chunk.blocks[name]
    for _ in range(level):
        block = block.values
    return block


def _values(chunk: Chunk, name: str) -> NDArray[Any]:
    block = _level(chunk, name, 0)
    return to_array(block.flat_values if isinstance(block, RaggedBlock) else block.values)


def _shapes(chunk: Chunk, name: str) -> NDArray[np.int64]:
    block = _level(chunk, name, 0)
    arrays: Any = block.values if isinstance(block, RaggedBlock) else block
    shapes: NDArray[np.int64] = arrays.shapes
    return shapes


def _total(chunk: Chunk, option: tuple[str, int]) -> NDArray[np.int64]:
    total: NDArray[np.int64] = _level(chunk, *option).row_splits[-1:]
    return total


def _ends(chunk: Chunk, option: tuple[str, int], start: NDArray[np.int64]) -> NDArray[np.int64]:
    ends: NDArray[np.int64] = start + _level(chunk, *option).row_splits[1:]
    return ends


def _padded(
    chunk: Chunk,
    option: tuple[str, tuple[int, ...], Any, Source | None, NDArray[np.int64] | None],
    number: NDArray[np.int64],
) -> NDArray[Any]:
    name, lengths, value, source, borders = option
    outer: list[NDArray[np.int64]] = []
    for level, length in enumerate(lengths):
        splits = _level(chunk, name, level).row_splits
        longer = np.flatnonzero(np.diff(splits) > length)
        if len(longer):
            row, count = int(longer[0]), int(np.diff(splits)[longer[0]])
            for ends in reversed(outer):
                row = int(np.searchsorted(ends, row, side="right")) - 1
            place, where = None, f" in row {row} of chunk {int(number[0])}"
            if borders is not None:
                where = f" in row {int(borders[number[0]]) + row}"
                place = None if source is None else locate_row(source, int(borders[number[0]]), row, name)
            elif source is not None:
                where = f"{where}, {source.describe(int(number[0]))},"
            raise FeatureError(
                f"feature {name!r} holds {count} {'values' if level == len(lengths) - 1 else 'rows'}{where} where "
                f"padded(length={length if len(lengths) == 1 else lengths}) takes {length} at the most; nothing is cut "
                f"off: give a larger length",
                place,
            )
        outer.append(splits)
    return _filled(_level(chunk, name, 0), lengths, value)


def _filled(block: RaggedBlock, lengths: tuple[int, ...], value: Any) -> NDArray[Any]:
    values = block.values
    if isinstance(values, RaggedBlock):
        values = _filled(values, lengths[1:], value)
    return RaggedBlock(values, block.row_splits).padded(lengths[0], value)
