"""Blocks as Arrow record batches.

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

Blocks and the large types of Arrow both have int64 offsets, so values and offsets are not copied.

A vector is a plain fixed_size_list, which every reader shows as an array. The tensor type adds nothing to it but the
shape, and readers without the type show the same list. A tensor of several axes would lose its shape in a plain list.
polars and Parquet do not support a fixed_size_list of size 0.

Numbers, bytes, row splits, and the nesting of fixed shapes keep their memory. Copied are bool (Arrow packs bits), text
(NumPy stores strings one by one), bfloat16, and arrays that are not contiguous. The offsets of a block begin with 0:
a block that is cut from a larger one has row splits of its own and shares the values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock
from dask_tfrecord.errors import SchemaError, explain_missing
from dask_tfrecord.features import Feature
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.rows.graph import Chunk

with explain_missing("Arrow, DataFrames and Parquet need", "pyarrow", "arrow"):
    import pyarrow as pa


def arrow_schema(schema: Schema, *, tensors: bool = True) -> pa.Schema:
    """Return the Arrow schema of columns.

    Each field has metadata: `feature` and `feature_class`, `dtype` (NumPy's name), `shape` of a row as JSON (-1 for a
    length that differs between rows), and `class_names` as JSON if they are known. The metadata of the schema has
    `dask_tfrecord.features.schema`, the JSON of `Schema`.
    """
    for name in schema:
        if "\0" in name:
            raise SchemaError(
                f"column {name!r}: Arrow ends names at a zero byte: give another name to its feature, or by map_blocks"
            )
    fields = []
    for name, feature in schema.items():
        # NaT is a null.
        has_nulls = feature.item_dtype.kind in "mM"
        kind = arrow_type(feature, tensors=tensors)
        fields.append(pa.field(name, kind, nullable=has_nulls, metadata=_field_metadata(schema, name)))
    return pa.schema(fields, metadata={"dask_tfrecord.schema": schema.to_json()})


def _field_metadata(schema: Schema, name: str) -> dict[str, str]:
    """Describe a feature in the metadata of its Arrow field, for readers."""
    feature = schema[name]
    own = feature.row_shape[feature.ragged_rank :] if feature.own_shapes else ()
    shape = (*(-1,) * feature.ragged_rank, *own, *feature.item_shape)
    dtype = "bytes" if feature.is_bytes else feature.item_dtype.name
    metadata = {
        "feature": repr(feature),
        "feature_class": type(feature).__name__,
        "dtype": "text" if feature.item_dtype.kind == "T" else dtype,
        "shape": json.dumps(shape),
    }
    if name in schema.classes:
        metadata["class_names"] = json.dumps(schema.classes[name], ensure_ascii=False)
    return metadata


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
    """Return the type for arrays with one shape: nested fixed-size lists, or lists if they are empty."""
    if 0 in shape:
        return pa.large_list(value)
    for size in reversed(shape):
        value = pa.list_(value, size)
    return value


def _value_type(dtype: np.dtype[Any]) -> pa.DataType:
    """Return the Arrow type of single values."""
    if dtype.kind == "T":
        return pa.large_string()
    if dtype.kind == "O":
        return pa.large_binary()
    return pa.from_numpy_dtype(number_dtype(dtype))


def number_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of numbers in Arrow: native, or what holds bfloat16, complex numbers and days."""
    if dtype.name == "bfloat16":
        return np.dtype(np.float32)
    if dtype.kind == "c":
        return np.dtype(f"f{dtype.itemsize // 2}")
    if dtype.kind in "mM" and np.datetime_data(dtype)[0] == "D":
        return np.dtype(f"{dtype.kind}8[s]")
    return dtype.newbyteorder("=")


@dataclass(frozen=True, slots=True)
class BatchMaker:
    """Conversion of chunks to record batches; it pickles."""

    schema: Schema
    tensors: bool = True  # the tensor type for shapes of several axes; otherwise nested lists

    @property
    def arrow(self) -> pa.Schema:
        """Schema of the batches."""
        return arrow_schema(self.schema, tensors=self.tensors)

    def __call__(self, chunk: Chunk, number: int = 0) -> pa.RecordBatch:
        """Convert a chunk."""
        return self.from_blocks(chunk.blocks)

    def from_blocks(self, blocks: Mapping[str, Block]) -> pa.RecordBatch:
        """Convert blocks of the same number of rows."""
        schema = self.arrow
        arrays = [_arrow_array(blocks[field.name], field.type) for field in schema]
        # pyarrow would cast arrays of other types.
        for field, array in zip(schema, arrays, strict=True):
            assert array.type == field.type, f"{field.name!r}: expected {field.type}; got {array.type}"
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def check_columns(self, rows: int | None) -> None:
        """Refuse rows without columns: a record batch without columns lacks rows."""
        if not self.schema and rows != 0:
            raise SchemaError("rows without columns can't become record batches: select at least one column")


def _arrow_array(block: Block, kind: pa.DataType) -> pa.Array:
    """Convert a block to an array of a type."""
    if isinstance(block, RaggedBlock):
        return _list_array(block.row_splits, _arrow_array(block.values, kind.value_type), kind)
    if isinstance(block, ArraysBlock):
        data = _list_array(block.row_splits, _arrow_array(block.values, kind[0].type.value_type), kind[0].type)
        arrays = [data, _arrow_array(block.shapes, kind[1].type)]
        return pa.StructArray.from_arrays(arrays, fields=[kind[0], kind[1]])
    if isinstance(kind, pa.BaseExtensionType):
        rows, size = block.shape[0], kind.storage_type.list_size
        storage = pa.Array.from_buffers(kind.storage_type, rows, [None], children=[_flat_dense_values(block)])
        assert len(storage.values) == rows * size
        return pa.ExtensionArray.from_storage(kind, storage)
    return _fixed_lists(_flat_dense_values(block), len(block), kind)


def _fixed_lists(values: pa.Array, rows: int, kind: pa.DataType) -> pa.Array:
    """Nest flat values in lists of fixed sizes."""
    if pa.types.is_large_list(kind):
        # Rows of no values.
        return _list_array(np.zeros(rows + 1, np.int64), values, kind)
    if not pa.types.is_fixed_size_list(kind):
        return values
    inner = _fixed_lists(values, rows * kind.list_size, kind.value_type)
    return pa.Array.from_buffers(kind, rows, [None], children=[inner])


def _list_array(splits: NDArray[np.int64], values: pa.Array, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(splits) - 1, [None, _buffer(splits)], children=[values])


def _flat_dense_values(block: NDArray[Any] | BytesBlock) -> pa.Array:
    """Return the values of a dense block as a flat array."""
    if isinstance(block, BytesBlock):
        count = math.prod(block.shape)
        return pa.Array.from_buffers(pa.large_binary(), count, [None, _buffer(block.splits), _buffer(block.values)])
    flat = np.ascontiguousarray(block).reshape(-1)
    if flat.dtype.kind == "T":
        return pa.array(flat.tolist(), pa.large_string())
    dtype = number_dtype(flat.dtype)
    if flat.dtype.kind == "c":
        flat = flat.astype(flat.dtype.newbyteorder("="), copy=False).view(dtype)
    given, flat = flat, flat.astype(dtype, copy=False)
    if dtype.kind in "mM" and (flat[~np.isnat(given)] != given[~np.isnat(given)]).any():
        raise SchemaError(f"Arrow has seconds in place of days, and no number of 64 bits for some of {given.dtype}")
    if dtype.kind in "bmM":
        return pa.array(flat)
    return pa.Array.from_buffers(pa.from_numpy_dtype(dtype), len(flat), [None, _buffer(flat)])


def _buffer(array: NDArray[Any]) -> pa.Buffer:
    # The buffer protocol does not support dates.
    array = array.view(np.int64) if array.dtype.kind in "mM" else array
    return pa.py_buffer(np.ascontiguousarray(array))
