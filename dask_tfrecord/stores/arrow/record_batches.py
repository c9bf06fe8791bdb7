"""Record batches of blocks, without a copy of values and offsets where Arrow has the same layout.

Numbers, bytes, row splits, and the nesting of fixed shapes keep their memory. Copied are bool (Arrow packs bits), text
(NumPy stores strings one by one), bfloat16, and arrays that are not contiguous. The offsets of a block begin with 0:
a block that is cut from a larger one has row splits of its own and shares the values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dask_tfrecord.arrays.rows import Chunk
from dask_tfrecord.columns.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema import Schema
from dask_tfrecord.stores.arrow.arrow_types import arrow_schema, number_dtype

__all__ = ["BatchMaker"]


@dataclass(frozen=True, slots=True)
class BatchMaker:
    """Conversion of chunks to record batches; it pickles.

    Attributes
    ----------
    schema : Schema
        Features of the columns.
    tensors : bool
        Use the tensor type for shapes of several axes.
    """

    schema: Schema
    tensors: bool = True

    @property
    def arrow(self) -> pa.Schema:
        """Schema of the batches."""
        return arrow_schema(self.schema, tensors=self.tensors)

    def __call__(self, chunk: Chunk) -> pa.RecordBatch:
        """Convert a chunk."""
        return self.from_blocks(chunk.blocks)

    def from_blocks(self, blocks: Mapping[str, Block]) -> pa.RecordBatch:
        """Convert blocks of the same number of rows."""
        schema = self.arrow
        arrays = [_array(blocks[field.name], field.type) for field in schema]
        # pyarrow would cast arrays of other types.
        for field, array in zip(schema, arrays, strict=True):
            assert array.type == field.type, f"{field.name!r}: expected {field.type}; got {array.type}"
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def check_columns(self, rows: int | None) -> None:
        """Raise if rows have no column: a record batch without columns has no rows.

        Raises
        ------
        SchemaError
            If there are rows and no columns.
        """
        if not self.schema and rows != 0:
            raise SchemaError("rows without a column cannot be record batches: select one column or more")


def _array(block: Block, kind: pa.DataType) -> pa.Array:
    """Convert a block to an array of a type."""
    if isinstance(block, RaggedBlock):
        return _list_array(block.row_splits, _array(block.values, kind.value_type), kind)
    if isinstance(block, ArraysBlock):
        data = _list_array(block.row_splits, _array(block.values, kind[0].type.value_type), kind[0].type)
        arrays = [data, _array(block.shapes, kind[1].type)]
        return pa.StructArray.from_arrays(arrays, fields=[kind[0], kind[1]])
    if isinstance(kind, pa.BaseExtensionType):
        rows, size = block.shape[0], kind.storage_type.list_size
        storage = pa.Array.from_buffers(kind.storage_type, rows, [None], children=[_values(block)])
        assert len(storage.values) == rows * size
        return pa.ExtensionArray.from_storage(kind, storage)
    return _nested(_values(block), len(block), kind)


def _nested(values: pa.Array, rows: int, kind: pa.DataType) -> pa.Array:
    """Nest flat values in lists of fixed sizes."""
    if pa.types.is_large_list(kind):
        # Rows of no values.
        return _list_array(np.zeros(rows + 1, np.int64), values, kind)
    if not pa.types.is_fixed_size_list(kind):
        return values
    inner = _nested(values, rows * kind.list_size, kind.value_type)
    return pa.Array.from_buffers(kind, rows, [None], children=[inner])


def _list_array(splits: NDArray[np.int64], values: pa.Array, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(splits) - 1, [None, _buffer(splits)], children=[values])


def _values(block: NDArray[Any] | BytesBlock) -> pa.Array:
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
    flat = flat.astype(dtype, copy=False)
    if dtype.kind == "b":
        return pa.array(flat)
    return pa.Array.from_buffers(pa.from_numpy_dtype(dtype), len(flat), [None, _buffer(flat)])


def _buffer(array: NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(np.ascontiguousarray(array))
