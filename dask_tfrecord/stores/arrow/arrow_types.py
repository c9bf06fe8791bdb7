"""Arrow types of columns, and the schema of record batches.

The type of a column follows from its feature alone, so that all chunks of a data set have one schema:

==========================================  =========================================================
rows of a column                            Arrow type
==========================================  =========================================================
numbers, bool                               the same type; bfloat16 is float32
bytes, text                                 large_binary, large_string
fixed shape of one axis                     fixed_size_list
fixed shape of more axes                    arrow.fixed_shape_tensor; nested fixed_size_list in lists
rows of no values (a size of 0)             large_list, always empty
ragged                                      large_list, nested for more levels
own shape per row                           struct of data (large_list) and shape (fixed_size_list of int64)
complex                                     floats with a last axis of size 2
==========================================  =========================================================

Offsets of blocks are int64, as those of the large types are, so values and offsets are not copied.

A vector is a plain fixed_size_list, which every reader shows as an array. The tensor type adds nothing to it but the
shape, and readers without the type show the same list. A tensor of several axes would lose its shape in a plain list.
polars and Parquet do not support a fixed_size_list of size 0.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features import Encoded, Feature
from dask_tfrecord.schema import Schema

__all__ = ["arrow_schema", "arrow_type", "fixed_type", "number_dtype"]


def arrow_schema(schema: Schema, *, tensors: bool = True) -> pa.Schema:
    """Return the Arrow schema of columns.

    Parameters
    ----------
    schema : Schema
        Features of the columns.
    tensors : bool, default True
        Use the tensor type for shapes of several axes; otherwise nested lists.

    Returns
    -------
    pyarrow.Schema
        Each field has metadata: `feature` and `feature_class`, `dtype` (NumPy's name), `shape` of a row as JSON (-1
        for a length that differs between rows), and `class_names` as JSON if they are known. The metadata of the schema
        has `dask_tfrecord.schema`, the JSON of `Schema`.
    """
    for name in schema:
        if "\0" in name:
            raise SchemaError(
                f"column {name!r}: Arrow ends names at a zero byte: give another name to its feature, or by map_blocks"
            )
    fields = [
        pa.field(name, arrow_type(feature, tensors=tensors), nullable=False, metadata=_metadata(schema, name))
        for name, feature in schema.items()
    ]
    return pa.schema(fields, metadata={"dask_tfrecord.schema": schema.to_json()})


def _metadata(schema: Schema, name: str) -> dict[str, str]:
    feature = schema[name]
    own = feature.value_shape if feature.own_shapes and isinstance(feature, Encoded) else ()
    shape = (*(-1,) * feature.ragged_rank, *own, *feature.item_shape)
    metadata = {
        "feature": repr(feature),
        "feature_class": type(feature).__name__,
        "dtype": _dtype_name(feature),
        "shape": json.dumps(shape),
    }
    if name in schema.classes:
        metadata["class_names"] = json.dumps(schema.classes[name], ensure_ascii=False)
    return metadata


def _dtype_name(feature: Feature) -> str:
    if feature.item_dtype.kind == "T":
        return "text"
    return "bytes" if feature.is_bytes else feature.item_dtype.name


def arrow_type(feature: Feature, *, tensors: bool = True) -> pa.DataType:
    """Return the Arrow type of a column."""
    value = _value_type(feature.item_dtype)
    shape: tuple[int, ...] = feature.item_shape
    if feature.item_dtype.kind == "c":
        shape = (*shape, 2)
    if feature.own_shapes:
        data, sizes = pa.large_list(fixed_type(value, shape)), pa.list_(pa.int64(), feature.own_shapes)
        arrays = pa.struct([pa.field("data", data), pa.field("shape", sizes)])
        return pa.large_list(arrays) if feature.ragged_rank else arrays
    # pyarrow reads no tensors of bool.
    is_number = pa.types.is_integer(value) or pa.types.is_floating(value)
    if tensors and is_number and not feature.ragged_rank and len(shape) > 1 and 0 not in shape:
        return pa.fixed_shape_tensor(value, shape)
    made = fixed_type(value, shape)
    for _ in range(feature.ragged_rank):
        made = pa.large_list(made)
    return made


def fixed_type(value: pa.DataType, shape: tuple[int, ...]) -> pa.DataType:
    """Return the type of arrays of one shape: nested lists of fixed sizes, or lists if there are no values."""
    if 0 in shape:
        return pa.large_list(value)
    for size in reversed(shape):
        value = pa.list_(value, size)
    return value


def _value_type(dtype: np.dtype[Any]) -> pa.DataType:
    if dtype.kind == "T":
        return pa.large_string()
    if dtype.kind == "O":
        return pa.large_binary()
    return pa.from_numpy_dtype(number_dtype(dtype))


def number_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of numbers in Arrow: native, float32 for bfloat16, and the parts of complex numbers."""
    if dtype.name == "bfloat16":
        return np.dtype(np.float32)
    if dtype.kind == "c":
        return np.dtype(f"f{dtype.itemsize // 2}")
    return dtype.newbyteorder("=")
