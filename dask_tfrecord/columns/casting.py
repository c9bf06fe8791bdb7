"""Cast numbers before they are written to records: values that do not fit are refused, floats may be rounded.

Blocks of any layout are cast. An error names the row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.columns.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock, RowError, splits_of
from dask_tfrecord.features.base import stored_kind

__all__ = ["cast", "castable", "listed", "to_bytes"]


def castable(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Return whether a dtype may be cast to another: integers to floats, but never floats to integers."""
    order = {"integer": 0, "float": 1, "complex": 2}
    kinds = _kind(given), _kind(wanted)
    return given == wanted or (all(kind in order for kind in kinds) and order[kinds[0]] <= order[kinds[1]])


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype.kind in "biu":
        return "integer"
    if dtype.kind == "f" or dtype.name == "bfloat16":
        return "float"
    return "complex" if dtype.kind == "c" else dtype.kind


def cast(block: Block, dtype: np.dtype[Any]) -> Block:
    """Cast the numbers of a block to another dtype.

    Parameters
    ----------
    block : Block
        Block of numbers.
    dtype : dtype
        A dtype that they are `castable` to.

    Raises
    ------
    RowError
        If an integer does not fit or has no exact float, or a float overflows. Floats may be rounded.
    """
    if isinstance(block, RaggedBlock):
        return RaggedBlock(_within(block.values, block.row_splits, dtype), block.row_splits)
    if isinstance(block, ArraysBlock):
        return ArraysBlock(_within(block.values, block.row_splits, dtype), block.row_splits, block.shapes)
    if isinstance(block, BytesBlock) or block.dtype == dtype:
        return block
    with np.errstate(all="ignore"):
        result = block.astype(dtype)
    _refuse(block, _misfits(block, result), f"which does not fit {dtype}")
    return result


def _within(values: Any, row_splits: NDArray[np.int64], dtype: np.dtype[Any]) -> Any:
    try:
        return cast(values, dtype)
    except RowError as error:
        row = int(np.searchsorted(row_splits, error.row, side="right")) - 1
        raise RowError(row, error.message) from None


def _misfits(given: NDArray[Any], result: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the values that the cast changed, other than by rounding floats."""
    if _kind(given.dtype) != "integer":
        lost: NDArray[np.bool_] = np.isfinite(given) & ~np.isfinite(result)
        return lost
    if _kind(result.dtype) == "integer":
        # An 8-byte integer that changes its sign keeps its bits, so that casting it back hides the change.
        other: NDArray[np.bool_] = (result.astype(given.dtype) != given) | ((result < 0) != (given < 0))
        return other
    largest = _largest_exact_integer(result.dtype)
    out: NDArray[np.bool_] = (given > largest) | (given < -largest) if given.dtype.kind == "i" else given > largest
    return out if largest < np.iinfo(given.dtype if given.dtype.kind != "b" else np.uint8).max else np.zeros_like(out)


def _largest_exact_integer(dtype: np.dtype[Any]) -> int:
    """Return the bound up to which a float represents every integer."""
    bits = {"bfloat16": 8, "float16": 11, "float32": 24, "complex64": 24}.get(dtype.name, 53)
    return 1 << bits


def _refuse(values: NDArray[Any], bad: NDArray[np.bool_], why: str) -> None:
    if bad.any():
        position = int(np.flatnonzero(bad.ravel())[0])
        raise RowError(position // max(1, math.prod(values.shape[1:])), f"holds {values.ravel()[position]}, {why}")


def listed(values: NDArray[Any]) -> NDArray[Any]:
    """Return numbers as an Example lists them: int64 or float32, flat and contiguous.

    Raises
    ------
    RowError
        If an unsigned integer exceeds int64, or a float64 is not exact in float32.
    """
    kind = np.dtype(stored_kind(values.dtype.name))
    with np.errstate(all="ignore"):
        result = np.ascontiguousarray(values, kind).reshape(-1)
    if values.dtype == np.uint64:
        _refuse(values, result.reshape(values.shape) < 0, "which exceeds int64, the integers of an Example")
    if values.dtype == np.float64:
        back = result.reshape(values.shape).astype(np.float64)
        other = (back != values) & ~(np.isnan(back) & np.isnan(values))
        _refuse(values, other, "which float32, the floats of an Example, cannot represent: round it to float32 first")
    return result


def to_bytes(block: Block) -> Block:
    """Encode strings to UTF-8, at any level of rows; return bytes unchanged."""
    if isinstance(block, RaggedBlock):
        values: Any = to_bytes(block.values)
        return RaggedBlock(values, block.row_splits)
    if not isinstance(block, np.ndarray):
        return block
    items = [item.encode() for item in block.ravel().tolist()]
    splits = splits_of(np.array([len(item) for item in items], np.int64))
    return BytesBlock(np.frombuffer(b"".join(items), np.uint8), splits, block.shape)
