"""Rows of differing length as dask arrays: flat values and splits, or padded to one length."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from numpy.typing import NDArray

from dask_tfrecord.arrays.backing import Backing
from dask_tfrecord.columns.blocks import RaggedBlock, to_array
from dask_tfrecord.errors import FeatureError
from dask_tfrecord.schema import VarLenFeature

__all__ = ["padded_column", "ragged_column"]


def ragged_column(backing: Backing, name: str, feature: VarLenFeature) -> tuple[da.Array, da.Array]:
    """Values (chunks of unknown size) and row splits of one column; both come from one decode per chunk."""
    chunks = backing.chunks([name])
    inner = feature.shape[1:]
    dtype = _values_dtype(feature)
    token = tokenize(chunks.name, name)
    axes = tuple(range(1 + len(inner)))
    values = da.blockwise(
        _values,
        axes,
        chunks,
        (0,),
        name,
        None,
        name=f"tfrecord-values-{token}",
        dtype=dtype,
        meta=np.empty((0,) * len(axes), dtype),
        adjust_chunks={0: (np.nan,) * chunks.numblocks[0]},
        new_axes=dict(zip(axes[1:], inner, strict=True)),
    )
    lengths = da.blockwise(
        _lengths,
        (0,),
        chunks,
        (0,),
        name,
        None,
        name=f"tfrecord-lengths-{token}",
        dtype=np.int64,
        meta=np.empty(0, np.int64),
        adjust_chunks={0: backing.sizes},
    )
    zero = da.zeros(1, dtype=np.int64, chunks=1)
    return values, da.concatenate([zero, da.cumsum(lengths, axis=0)], allow_unknown_chunksizes=True)


def padded_column(backing: Backing, name: str, feature: VarLenFeature, length: int, value: Any) -> da.Array:
    """One column with every row filled up to `length`.

    Raises
    ------
    ValueError
        If the dtype of the column can't hold `value`.
    """
    dtype = _values_dtype(feature)
    filling = np.array(value).astype(dtype)
    if dtype != object and not (filling == value or (value != value and filling != filling)):
        raise ValueError(f"the padding {value!r} is no {dtype}, which the values of {name!r} are")
    chunks = backing.chunks([name])
    starts = np.concatenate([[0], np.cumsum(backing.sizes)[:-1]])
    inner = feature.shape[1:]
    axes = tuple(range(2 + len(inner)))
    return da.blockwise(
        _padded,
        axes,
        chunks,
        (0,),
        da.from_array(starts, chunks=1),
        (0,),
        name=f"tfrecord-padded-{tokenize(chunks.name, name, length, value)}",
        dtype=dtype,
        meta=np.empty((0,) * len(axes), dtype),
        adjust_chunks={0: backing.sizes},
        new_axes=dict(zip(axes[1:], (length, *inner), strict=True)),
        feature_name=name,
        length=length,
        value=value,
    )


def _values_dtype(feature: VarLenFeature) -> np.dtype[Any]:
    return np.dtype(object if feature.dtype == "bytes" else feature.dtype)


def _block(chunk: NDArray[np.object_], name: str) -> RaggedBlock:
    block: RaggedBlock = chunk[0][name]
    return block


def _values(chunk: NDArray[np.object_], name: str) -> NDArray[Any]:
    return to_array(_block(chunk, name).values)


def _lengths(chunk: NDArray[np.object_], name: str) -> NDArray[np.int64]:
    return np.diff(_block(chunk, name).row_splits)


def _padded(
    chunk: NDArray[np.object_], start: NDArray[np.float64], feature_name: str, length: int, value: Any
) -> NDArray[Any]:
    block = _block(chunk, feature_name)
    lengths = np.diff(block.row_splits)
    longer = np.flatnonzero(lengths > length)
    if len(longer):
        row = int(longer[0])
        where = "" if np.isnan(start[0]) else f" in row {int(start[0]) + row}"
        raise FeatureError(
            f"feature {feature_name!r} holds {int(lengths[row])} values{where} where padded(length={length}) takes as "
            f"many at the most; nothing is cut off: give a larger length"
        )
    return block.padded(length, value)
