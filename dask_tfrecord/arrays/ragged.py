"""Rows of differing length as dask arrays: flat values and splits, or padded to one length."""

from __future__ import annotations

import operator
from typing import Any, cast

import dask.array as da
import numpy as np
from dask.base import tokenize
from numpy.typing import NDArray

from dask_tfrecord.arrays.backing import Backing
from dask_tfrecord.arrays.graph import Chunk, view
from dask_tfrecord.columns.blocks import RaggedBlock, to_array
from dask_tfrecord.errors import FeatureError
from dask_tfrecord.features import VarLenFeature

__all__ = ["padded_column", "ragged_column"]


def ragged_column(backing: Backing, name: str, feature: VarLenFeature) -> tuple[da.Array, da.Array]:
    """Values (chunks of unknown size) and row splits of one column; both come from one decode per chunk."""
    chunks = backing.chunks([name])
    number = chunks.numblocks[0]
    token = tokenize(chunks.name, name)
    shape = ((np.nan,) * number, *feature.shape[1:])
    values = view(_values, chunks, name, f"tfrecord-values-{token}", shape, _values_dtype(feature))
    # Where the values of each chunk begin; chunks may be empty, so whole rows can't be summed up one after the other.
    totals = view(_total, chunks, name, f"tfrecord-totals-{token}", ((1,) * number,), np.dtype(np.int64))
    starts = da.cumsum(totals, axis=0) - totals
    ends = view(_ends, chunks, name, f"tfrecord-ends-{token}", (backing.sizes,), np.dtype(np.int64), starts)
    zero = da.zeros(1, dtype=np.int64, chunks=1)
    return values, da.concatenate([zero, ends], allow_unknown_chunksizes=True)


def padded_column(backing: Backing, name: str, feature: VarLenFeature, length: int, value: Any) -> da.Array:
    """One column with every row filled up to `length`.

    Raises
    ------
    ValueError
        If the length is negative, or the dtype of the column can't hold `value`.
    """
    dtype = _values_dtype(feature)
    length, value = operator.index(length), _filling(value, dtype, name)
    if length < 0:
        raise ValueError(f"rows are padded to no or more values; got length={length}")
    chunks = backing.chunks([name])
    starts = np.concatenate([[0], np.cumsum(backing.sizes)[:-1]])
    option = (name, length, value)
    key = f"tfrecord-padded-{tokenize(chunks.name, option)}"
    shape = (backing.sizes, length, *feature.shape[1:])
    return view(_padded, chunks, option, key, shape, dtype, da.from_array(starts, chunks=1))


def _values_dtype(feature: VarLenFeature) -> np.dtype[Any]:
    return np.dtype(object if feature.dtype == "bytes" else feature.dtype)


def _filling(value: Any, dtype: np.dtype[Any], name: str) -> Any:
    """Find what shorter rows are filled with: `value` in the dtype of the column, or its zero."""
    if dtype.kind == "O":
        if value is not None and not isinstance(value, bytes):
            raise ValueError(f"the padding of {name!r}, a column of bytes, is bytes; got {value!r}")
        return value or b""
    given = np.asarray(0 if value is None else value)
    fits = given.ndim == 0 and given.dtype.kind in "biuf"
    if fits and dtype.kind == "i":
        fits = bool(np.isfinite(given)) and int(given) == given and -(2**63) <= int(given) < 2**63
    with np.errstate(over="ignore"):
        filling = given.astype(dtype) if fits else given
    # Rounding is fine, another value is not.
    if not fits or np.isinf(filling) != np.isinf(given):
        raise ValueError(f"the padding {value!r} is no {dtype}, which the values of {name!r} are")
    return filling[()]


def _block(chunk: Chunk, name: str) -> RaggedBlock:
    return cast(RaggedBlock, chunk.blocks[name])


def _values(chunk: Chunk, name: str) -> NDArray[Any]:
    return to_array(_block(chunk, name).values)


def _total(chunk: Chunk, name: str) -> NDArray[np.int64]:
    return _block(chunk, name).row_splits[-1:]


def _ends(chunk: Chunk, name: str, start: NDArray[np.int64]) -> NDArray[np.int64]:
    return start + _block(chunk, name).row_splits[1:]


def _padded(chunk: Chunk, option: tuple[str, int, Any], start: NDArray[np.float64]) -> NDArray[Any]:
    name, length, value = option
    block = _block(chunk, name)
    lengths = np.diff(block.row_splits)
    longer = np.flatnonzero(lengths > length)
    if len(longer):
        row = int(longer[0])
        where = "" if np.isnan(start[0]) else f" in row {int(start[0]) + row}"
        raise FeatureError(
            f"feature {name!r} holds {int(lengths[row])} values{where} where padded(length={length}) takes as many at "
            f"the most; nothing is cut off: give a larger length"
        )
    return block.padded(length, value)
