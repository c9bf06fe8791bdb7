"""Columns of objects and text for xarray: selecting one row returns an array without axes, which holds the object.

NumPy returns the object itself. xarray would take a row that is an array for the data of the variable, and bytes and
text would have another dtype.
"""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from dask.base import normalize_token, tokenize
from numpy.typing import NDArray

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.arrays.rows import LazyColumn
from dask_tfrecord.errors import printable

__all__ = ["BoxedArray", "boxed_column"]


class BoxedArray(np.ndarray[Any, Any]):
    """Array of objects or text whose single elements are arrays without axes."""

    # Concatenations with other arrays keep the class.
    __array_priority__ = 1.0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if isinstance(found, BoxedArray):
            return found
        box = np.empty((), self.dtype)
        box[()] = found
        return box.view(BoxedArray)


class _BoxedColumn(LazyColumn):
    """Column whose selected rows are `BoxedArray`."""

    def __dask_tokenize__(self) -> object:
        return normalize_token(("dask_tfrecord.BoxedColumn", self.source, self.name))

    def __getitem__(self, key: Any) -> Any:
        rows, *rest = key if isinstance(key, tuple) else (key,)
        if isinstance(rows, int | np.integer):
            return _boxed(super().__getitem__(([int(rows)], *rest)))[0]
        return _boxed(super().__getitem__(key))


def _boxed(array: NDArray[Any]) -> BoxedArray:
    return array.view(BoxedArray)


def boxed_column(dataset: Dataset, name: str, array: da.Array | None = None) -> da.Array:
    """Return a column of objects or text as a dask array of `BoxedArray`.

    Parameters
    ----------
    dataset : Dataset
        The rows.
    name : str
        Name of the column.
    array : dask array, optional
        Array of the column that is decoded with others; by default the column is decoded on its own.
    """
    feature = dataset.schema[name]
    dtype = feature.block_dtype if array is None else array.dtype
    meta: NDArray[Any] = np.empty((0,) * (1 + len(feature.block_shape)), dtype)
    source, borders = dataset.source, dataset.borders
    if array is not None or source is None or borders is None:
        own = dataset[name] if array is None else array
        mapped: da.Array = da.map_blocks(_boxed, own, dtype=dtype, meta=meta)
        return mapped
    column = _BoxedColumn(source, name)
    chunks = (dataset.chunks, *((size,) for size in column.shape[1:]))
    key = f"tfrecord-{printable(name)}-{tokenize(column, chunks)}"
    lazy: da.Array = da.from_array(column, chunks=chunks, name=key, asarray=False, lock=False, meta=meta)
    return lazy
