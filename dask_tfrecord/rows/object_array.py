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
from dask_tfrecord.rows.dask_private import reduction_name

_HEADER_NBYTES = sys.getsizeof(np.empty(0))


class ObjectArray(np.ndarray[Any, Any]):
    """Chunk with objects or text; slices keep this class, results of functions are plain arrays.

    Reducing rows that differ in length raises TypeError, because NumPy can't add arrays of different shapes. Comparing
    bytes with text does, too, because NumPy would find no equal row. Errors name the column where it is known.
    """

    column: str | None = None
    # Larger than for plain arrays, so that NumPy joins both to this class.
    __array_priority__ = 0.1

    def __array_finalize__(self, obj: Any) -> None:
        self.column = getattr(obj, "column", None)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        first = self.flat[0] if self.size else None
        if isinstance(first, np.ndarray) and (refusal := self.refusal(ufunc, method)):
            raise TypeError(refusal)
        if isinstance(first, bytes | str) and ufunc in (np.equal, np.not_equal):
            for value in inputs:
                if isinstance(first, bytes) and isinstance(value, str):
                    raise TypeError(
                        f"the rows are bytes, which never equal text: write {value.encode()!r} instead of {value!r}, "
                        f"or read the column with TextFeature()"
                    )
                if isinstance(first, str) and isinstance(value, bytes):
                    raise TypeError(f"the rows are text: write {value.decode(errors='replace')!r} instead of {value!r}")
        plain = [np.asarray(value) if isinstance(value, ObjectArray) else value for value in inputs]
        if out is not None:
            kwargs["out"] = tuple(np.asarray(each) if isinstance(each, ObjectArray) else each for each in out)
        return getattr(ufunc, method)(*plain, **kwargs)

    def refusal(self, ufunc: np.ufunc, method: str) -> str:
        """Return the error about a function of rows that differ in length or shape; no text if it is called."""
        if method != "reduce":
            return ""
        name = repr(self.column) if self.column else "name"
        done = reduction_name() or _REDUCTIONS.get(ufunc, "sum")
        return (
            f"cannot compute the {done} of rows that differ in length or shape. For the values of all rows, write "
            f"`values, *row_splits = ds.ragged({name}); values.{done}().compute()`; for one number per row, write "
            f"`[row.{done}() if row.size else None for row in ds[{name}].compute()]`"
        )

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Call a function of NumPy; chunks that are joined are a chunk of their column."""
        # dask joins chunks of classes that define this method by `numpy.concatenate`, and others without their class.
        found = super().__array_function__(func, types, args, kwargs)
        if func is np.concatenate and isinstance(found, ObjectArray):
            found.column = getattr(args[0][0], "column", None)
        return found

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array[()] if return_scalar else np.asarray(array)

    def __repr__(self) -> str:
        return repr(np.asarray(self))


# Methods of arrays by the function of NumPy that reduces.
_REDUCTIONS: dict[np.ufunc, str] = {
    **{np.add: "sum", np.maximum: "max", np.minimum: "min", np.multiply: "prod"},
    **{np.logical_and: "all", np.logical_or: "any"},
}


def as_chunk(block: Block, column: str) -> NDArray[Any]:
    """Convert a block to a chunk of a dask array, the column of this name."""
    array = to_array(block)
    if array.dtype.kind not in "OT":
        return array
    chunk = array.view(ObjectArray)
    chunk.column = column
    return chunk


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
