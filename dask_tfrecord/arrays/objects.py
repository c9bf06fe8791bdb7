"""Rows of objects and of text as arrays whose memory dask knows.

dask counts 8 bytes per object and 16 per string of a NumPy array, so a worker would neither spill them nor pause.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from dask.sizeof import sizeof
from numpy.typing import NDArray

from dask_tfrecord.blocks import Block, block_nbytes, to_array

_HEADER_NBYTES = sys.getsizeof(np.empty(0))


class ObjectArray(np.ndarray[Any, Any]):
    """Array of objects or text as a chunk of a dask array; slices are such arrays, results of functions are plain."""

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array[()] if return_scalar else np.asarray(array)

    def __repr__(self) -> str:
        return repr(np.asarray(self))


def as_chunk(block: Block) -> NDArray[Any]:
    """Convert a block to a chunk of a dask array."""
    array = to_array(block)
    return array.view(ObjectArray) if array.dtype.kind in "OT" else array


def objects_nbytes(array: NDArray[Any]) -> int:
    """Return the memory of an array with its objects and strings, in bytes."""
    array = np.asarray(array)
    if array.dtype.kind != "O":
        return block_nbytes(array)
    items: list[Any] = array.ravel().tolist()
    if set(map(type, items)) <= {bytes}:
        return array.nbytes + sum(map(sys.getsizeof, items))
    return array.nbytes + sum(map(_object_nbytes, items))


def _object_nbytes(item: Any) -> int:
    if not isinstance(item, np.ndarray):
        return sys.getsizeof(item)
    return _HEADER_NBYTES + (objects_nbytes(item) if item.dtype.kind in "OT" else item.nbytes)


sizeof.register(ObjectArray, objects_nbytes)
