"""Numbers from one dtype to another on their way into records: what does not fit is refused, floats may round.

Blocks of any form are cast, and the row that holds a misfit is found again. Imports blocks, features and rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.columns.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock, splits_of
from dask_tfrecord.columns.rows import RowError
from dask_tfrecord.features.values import stored_kind

__all__ = ["cast", "castable", "listed", "to_bytes"]


def castable(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether values of one dtype may become values of another: integers floats, but floats never integers."""
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
    """Make the numbers of a block those of another dtype.

    Parameters
    ----------
    block : Block
        Of numbers.
    dtype : dtype
        One that they are `castable` to.

    Raises
    ------
    RowError
        If an integer does not fit, or is not the same as a float, or a float overflows. Rounding a float is no error.
    """
    if isinstance(block, RaggedBlock):
        return RaggedBlock(_within(block.values, block.row_splits, dtype), block.row_splits)
    if isinstance(block, ArraysBlock):
        return ArraysBlock(_within(block.values, block.row_splits, dtype), block.row_splits, block.shapes)
    if isinstance(block, BytesBlock) or block.dtype == dtype:
        return block
    with np.errstate(all="ignore"):
        made = block.astype(dtype)
    _refuse(block, _misfits(block, made), f"that {dtype} does not hold")
    return made


def _within(values: Any, row_splits: NDArray[np.int64], dtype: np.dtype[Any]) -> Any:
    try:
        return cast(values, dtype)
    except RowError as error:
        row = int(np.searchsorted(row_splits, error.row, side="right")) - 1
        raise RowError(row, error.message) from None


def _misfits(given: NDArray[Any], made: NDArray[Any]) -> NDArray[np.bool_]:
    """Find what is not what it was."""
    if _kind(given.dtype) != "integer":
        lost: NDArray[np.bool_] = np.isfinite(given) & ~np.isfinite(made)
        return lost
    if _kind(made.dtype) == "integer":
        # A number of eight bytes that changes its sign is the same bits.
        other: NDArray[np.bool_] = (made.astype(given.dtype) != given) | ((made < 0) != (given < 0))
        return other
    most = _most_integer(made.dtype)
    out: NDArray[np.bool_] = (given > most) | (given < -most) if given.dtype.kind == "i" else given > most
    return out if most < np.iinfo(given.dtype if given.dtype.kind != "b" else np.uint8).max else np.zeros_like(out)


def _most_integer(dtype: np.dtype[Any]) -> int:
    """Up to where a float holds every integer."""
    bits = {"bfloat16": 8, "float16": 11, "float32": 24, "complex64": 24}.get(dtype.name, 53)
    return 1 << bits


def _refuse(values: NDArray[Any], bad: NDArray[np.bool_], why: str) -> None:
    if bad.any():
        place = int(np.flatnonzero(bad.ravel())[0])
        raise RowError(place // max(1, math.prod(values.shape[1:])), f"holds {values.ravel()[place]}, {why}")


def listed(values: NDArray[Any]) -> NDArray[Any]:
    """Make numbers what an Example lists, flat and in one piece: int64, or float32.

    Raises
    ------
    RowError
        If an unsigned integer is too large, or a float is another one in 32 bits.
    """
    kind = np.dtype(stored_kind(values.dtype.name))
    with np.errstate(all="ignore"):
        made = np.ascontiguousarray(values, kind).reshape(-1)
    if values.dtype == np.uint64:
        _refuse(values, made.reshape(values.shape) < 0, "past the int64 that an Example lists")
    if values.dtype == np.float64:
        back = made.reshape(values.shape).astype(np.float64)
        other = (back != values) & ~(np.isnan(back) & np.isnan(values))
        _refuse(
            values, other, "which is another number in the float32 that an Example lists: round it to float32 first"
        )
    return made


def to_bytes(block: Block) -> Block:
    """Encode strings to UTF-8, at any level of rows; bytes stay what they are."""
    if isinstance(block, RaggedBlock):
        values: Any = to_bytes(block.values)
        return RaggedBlock(values, block.row_splits)
    if not isinstance(block, np.ndarray):
        return block
    items = [item.encode() for item in block.ravel().tolist()]
    splits = splits_of(np.array([len(item) for item in items], np.int64))
    return BytesBlock(np.frombuffer(b"".join(items), np.uint8), splits, block.shape)
