"""Object columns of xarray: selecting one row returns an array without axes, which holds the object.

NumPy returns the object itself, and xarray would take a row that is an array for the data of the variable.
"""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from dask.base import normalize_token, tokenize
from numpy.typing import NDArray

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.arrays.graph import LazyColumn

__all__ = ["BoxedArray", "boxed", "boxed_column"]


class BoxedArray(np.ndarray[Any, Any]):
    """Array of objects whose single elements are arrays without axes."""

    # Concatenations with other arrays keep the class.
    __array_priority__ = 1.0

    def __getitem__(self, key: Any) -> Any:
        return boxed(super().__getitem__(key))


class _BoxedColumn(LazyColumn):
    """Column whose selected rows are `BoxedArray`."""

    def __dask_tokenize__(self) -> object:
        return normalize_token(("dask_tfrecord.BoxedColumn", self.source, self.name))

    def __getitem__(self, key: Any) -> Any:
        return boxed(super().__getitem__(key))


def boxed(found: Any) -> BoxedArray:
    """Return selected objects as an array: one object has no axes."""
    if isinstance(found, BoxedArray):
        return found
    if isinstance(found, np.ndarray) and found.dtype == np.dtype(object):
        return found.view(BoxedArray)
    box = np.empty((), object)
    box[()] = found
    return box.view(BoxedArray)


def boxed_column(dataset: Dataset, name: str, array: da.Array | None = None) -> da.Array:
    """Return a column of objects as a dask array of `BoxedArray`.

    Parameters
    ----------
    dataset : Dataset
        The rows.
    name : str
        Name of the column.
    array : dask array, optional
        Array of the column that is decoded with others; by default the column is decoded on its own.
    """
    meta: NDArray[Any] = np.empty((0,) * (1 + len(dataset.schema[name].block_shape)), object)
    source, borders = dataset.source, dataset.borders
    if array is not None or source is None or borders is None:
        own = dataset[name] if array is None else array
        mapped: da.Array = da.map_blocks(boxed, own, dtype=object, meta=meta)
        return mapped
    column = _BoxedColumn(source, name)
    chunks = (dataset.chunks, *((size,) for size in column.shape[1:]))
    key = f"tfrecord-{name}-{tokenize(column, chunks)}"
    lazy: da.Array = da.from_array(column, chunks=chunks, name=key, asarray=False, lock=False, meta=meta)
    return lazy
