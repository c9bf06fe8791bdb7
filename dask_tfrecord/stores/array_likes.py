"""Array-likes of all kinds as a data set: dask, NumPy and Zarr arrays, xarray's, ragged rows and lists.

Nothing large is loaded here: arrays that are read on demand stay so, and are cut along their rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.arrays.backing import cut_along_rows, held_arrays, with_any_length
from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.columns.blocks import ArraysBlock, BytesBlock, RaggedBlock
from dask_tfrecord.columns.conform import feature_of
from dask_tfrecord.columns.recipes import Parser
from dask_tfrecord.columns.record_schema import given_features
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RawFeature,
    TensorFeature,
    TextFeature,
    VarLenFeature,
)
from dask_tfrecord.schema import Schema

__all__ = ["as_dataset", "of_one_dimension"]

# Decoded bytes of a chunk where arrays have none.
_CHUNK_NBYTES = 64 << 20
# What an object of Python is taken for.
_OBJECT_NBYTES = 1 << 10
_SAY = "say what it is in features="


def as_dataset(
    arrays: Mapping[str, Any],
    features: Mapping[str, Any] | None = None,
    sequence_features: Mapping[str, Any] | None = None,
) -> Dataset:
    """Make a data set of arrays, in the chunks of the first one that has any.

    Parameters
    ----------
    arrays : mapping of str to array-like
        As many rows of each, along the first axis; an xarray Dataset is one, of its data variables.
    features, sequence_features : mapping of str to feature, optional
        What is known of arrays of objects, which could be anything.

    Raises
    ------
    SchemaError
        If there are none, they differ in their rows, or one is of a dtype or of objects that no feature has.
    """
    if not isinstance(arrays, Mapping):
        raise SchemaError(f"arrays is a Dataset, or a mapping of names to arrays; got {type(arrays).__name__}")
    forms = _forms(features, sequence_features)
    plain = {name: _plain(array, f"array {name!r}") for name, array in of_one_dimension(arrays).items()}
    rows = {name: array.shape[0] if array.shape else np.nan for name, array in plain.items()}
    if len(set(rows.values())) != 1 or np.isnan(list(rows.values())).any():
        raise SchemaError(f"records are made of one or more arrays of as many rows each, which are known; got {rows}")
    columns: dict[str, Feature] = {}
    for name, array in plain.items():
        columns[name], plain[name] = _column(name, array, forms.get(name))
    sizes = _sizes(list(plain.values()))
    found = {
        name: array if isinstance(array, da.Array) else cut_along_rows(array, sizes) for name, array in plain.items()
    }
    return Dataset(held_arrays(found, Schema(columns), sizes, {}), list(found))


def _forms(features: Mapping[str, Any] | None, sequence_features: Mapping[str, Any] | None) -> dict[str, Feature]:
    """Find how columns look that features are said of."""
    context, lists = given_features(features, sequence_features)
    schema = Schema(context, sequence_features=lists)
    forms = dict(Parser(schema).columns)
    for name, feature in schema.items():
        if isinstance(feature, FixedLenSequenceFeature):
            # Objects are rows without padding.
            forms[name] = VarLenFeature(feature.dtype, shape=(-1, *feature.shape))
    return forms


def of_one_dimension(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Take the data of xarray's arrays, whose first dimensions have to be one and the same; others stay what they are.

    Raises
    ------
    SchemaError
        If they are not.
    """
    # The `dims` of HDF5's are no names.
    first = {name: array.dims[:1] for name, array in arrays.items() if isinstance(getattr(array, "dims", None), tuple)}
    if len(set(first.values())) > 1:
        raise SchemaError(
            f"rows are along the first dimension, which is not the same for all variables: {first}; transpose them, or "
            f"pick those that are written"
        )
    return {name: _data_of(array) if first.get(name) else array for name, array in arrays.items()}


def _data_of(array: Any) -> Any:
    """Take the data of a DataArray; what is read on demand stays so."""
    if array.chunks is None:
        rows, *others = array.dims
        array = array.chunk({rows: -1 if array.dtype.kind == "O" else "auto"} | dict.fromkeys(others, -1))
    return array.data


def _plain(given: Any, owner: str) -> Any:
    """Make sure of a dask, NumPy or Zarr array, or flat blocks."""
    if isinstance(given, RaggedBlock | BytesBlock | ArraysBlock):
        return given
    if isinstance(given, list | tuple):
        given = _of_list(given)
    if not all(hasattr(given, name) for name in ("shape", "dtype", "__getitem__")):
        raise SchemaError(f"{owner}: expected an array with an axis of rows; got {given!r:.100}")
    return with_any_length(given) if isinstance(given, np.ndarray | da.Array) else given


def _of_list(rows: Sequence[Any]) -> NDArray[Any]:
    """Numbers as NumPy makes them; what else there may be stays objects, which `bytes` would not survive."""
    try:
        array = np.asarray(rows)
        if array.dtype.kind in "biufc":
            return array
    except ValueError:
        pass  # rows that differ in length
    objects = np.empty(len(rows), object)
    objects[:] = [np.asarray(row) if isinstance(row, list | tuple) else row for row in rows]
    return objects


def _column(name: str, array: Any, form: Feature | None) -> tuple[Feature, Any]:
    """Find the feature that blocks of an array are of."""
    if isinstance(array, RaggedBlock | BytesBlock | ArraysBlock):
        return feature_of(array, f"array {name!r}"), np.asarray(array)
    if array.dtype.kind != "O":
        return feature_of(array, f"array {name!r}"), array
    if form is not None and (form.block_dtype.kind == "O" or isinstance(form, TextFeature)):
        # Bytes with an axis for every size of a row are as many in each of them, padding included.
        filled = form.is_bytes and array.ndim == 1 + len(form.shape) > 1
        return FixedLenFeature(array.shape[1:], "bytes") if filled else form, array
    if not isinstance(array, np.ndarray):
        raise SchemaError(f"array {name!r} is of objects, which may be anything: {_SAY}, as VarLenFeature(dtype)")
    return _look(name, array), array


def _look(name: str, array: NDArray[np.object_]) -> Feature:
    """Find what the objects of an array are; they are all there to be looked at."""
    items = array.ravel().tolist()
    types = set(map(type, items))
    if all(issubclass(kind, bytes) for kind in types):
        return FixedLenFeature(array.shape[1:], "bytes")
    if all(issubclass(kind, str) for kind in types) and array.ndim == 1:
        return TextFeature()
    rows = [np.asarray(item) for item in items] if array.ndim == 1 else []
    dtypes = {row.dtype for row in rows if row.size}
    if len(dtypes) == 1 and len({row.shape[1:] for row in rows}) == 1 and rows[0].ndim:
        (dtype,) = dtypes
        shape = (-1, *rows[0].shape[1:])
        if dtype.kind == "O" and all(isinstance(item, bytes) for row in rows for item in row.ravel()):
            return VarLenFeature("bytes", shape=shape)
        if dtype.kind in "biuf" or dtype.name == "bfloat16":
            return VarLenFeature(dtype, shape=shape)
        if dtype.kind == "c":
            return RawFeature(shape, dtype)
    if len(dtypes) == 1 and len({row.ndim for row in rows}) == 1 and rows[0].ndim:
        (dtype,) = dtypes
        if dtype.kind in "biufc" or dtype.name == "bfloat16":
            return TensorFeature((-1,) * rows[0].ndim, dtype)
    found = sorted(kind.__name__ for kind in types)
    raise SchemaError(f"array {name!r} is of objects ({', '.join(found[:5])}) that are of no one feature: {_SAY}")


def _sizes(arrays: Sequence[Any]) -> tuple[int, ...]:
    """Rows of the chunks: of the first dask array, else as many as are not too large."""
    for array in arrays:
        if isinstance(array, da.Array):
            return tuple(array.chunks[0])
    rows = int(arrays[0].shape[0])
    nbytes = sum(
        float(np.prod(array.shape[1:])) * (array.dtype.itemsize if array.dtype.kind != "O" else _OBJECT_NBYTES)
        for array in arrays
    )
    each = max(1, int(_CHUNK_NBYTES / max(nbytes, 1.0)))
    # What Zarr and HDF5 keep together is read together.
    steps = [array.chunks[0] for array in arrays if getattr(array, "chunks", None)]
    if steps and each > max(steps):
        each -= each % max(steps)
    return tuple(min(each, rows - start) for start in range(0, rows, each)) or (0,)
