"""Serialized tensors.

TensorProto is defined in
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/framework/tensor.proto: numbers are stored in
``tensor_content``, strings in ``string_val``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dask_tfrecord import _native
from dask_tfrecord._native import DataType, Fault, ValueLayout
from dask_tfrecord.blocks import ArraysBlock, Block, BytesBlock, RowLimitError
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.base import Feature
from dask_tfrecord.features.dtypes import Shape, checked_dtype, checked_shape, numpy_dtype
from dask_tfrecord.features.encoded import Encoded, EncodedArray, checked_count
from dask_tfrecord.features.images.pixels import ImageEncoding
from dask_tfrecord.features.keyed_values import KeyedValues, flat
from dask_tfrecord.features.keys import Decoded, KeySpec, Scope
from dask_tfrecord.messages import Dim, TensorProto, TensorShapeProto, varint_bytes


class TensorDType(NamedTuple):
    """Representation of a dtype in a serialized TensorProto."""

    itemsize: int  # bytes per value in `tensor_content`; 0 for strings, which are not stored there
    values_field: int  # number of the field that lists values one by one


def tensor_dtype_number(dtype: str) -> int:
    """Return the number of a dtype in the enum tensorflow.DataType."""
    return int(DataType[dtype.upper()].value)


# https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/framework/types.proto and tensor.proto.
TENSOR_DTYPES = {
    "float32": TensorDType(4, 5),
    "float64": TensorDType(8, 6),
    "int32": TensorDType(4, 7),
    "uint8": TensorDType(1, 7),
    "int16": TensorDType(2, 7),
    "int8": TensorDType(1, 7),
    "bytes": TensorDType(0, 8),
    "complex64": TensorDType(8, 9),
    "int64": TensorDType(8, 10),
    "bool": TensorDType(1, 11),
    "bfloat16": TensorDType(2, 13),
    "uint16": TensorDType(2, 7),
    "complex128": TensorDType(16, 12),
    "float16": TensorDType(2, 13),
    "uint32": TensorDType(4, 16),
    "uint64": TensorDType(8, 17),
}


@dataclass(frozen=True, slots=True, repr=False)
class TensorFeature(EncodedArray):
    """Read a tensor that is stored as a serialized TensorProto, like `tf.io.parse_tensor`.

    Parameters
    ----------
    shape : tuple of int or None
        Shape of one tensor. None or -1 accepts any size; each row is then an array with its own shape.
    dtype : str or dtype
        The tensor's dtype: numeric, bool, ``"bfloat16"``, or ``"bytes"`` for strings. A different dtype in a record is
        an error; values are not cast.
    count : int, optional
        Number of tensors per record, each in a bytes value of its own: rows have the shape ``(count, *shape)``. -1 for
        any number, including zero. By default a record has one tensor.
    value_key : str, optional
        Key of the values in the record, by default the name of the feature. Several features may read the same key.

    Examples
    --------
    >>> TensorFeature((None, 3), "float32").shape
    (-1, 3)
    >>> TensorFeature((4, 3), "float32", count=2).block_shape
    (2, 4, 3)
    """

    shape: tuple[int, ...]
    # Required, as in FixedLenFeature.
    dtype: str = field(default_factory=str)
    count: int | None = field(default=None, kw_only=True)
    value_key: str | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:
        # Arguments accept more types than the fields store.
        def __init__(
            self, shape: Shape, dtype: Any, *, count: int | None = None, value_key: str | None = None
        ) -> None: ...

    def __post_init__(self) -> None:
        shape = checked_shape(self.shape, "TensorFeature", open_sizes=100)
        count = checked_count(self.count, "TensorFeature", shape)
        dtype: Any = self.dtype
        if isinstance(dtype, str) and not dtype:
            raise SchemaError(f"TensorFeature needs a dtype, as in TensorFeature({shape}, 'float32')")
        name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
        if dtype in (bytes, object) or name in ("bytes", "string", "object"):
            dtype = "bytes"
        else:
            dtype = checked_dtype(dtype, "TensorFeature")
            if not numpy_dtype(dtype, "TensorFeature").isnative:
                raise SchemaError(f"TensorFeature: a TensorProto has one byte order, little-endian; got {dtype}")
        self._set(shape=shape, dtype=dtype, count=count)

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of a decoded array: object for strings."""
        return np.dtype(object) if self.dtype == "bytes" else numpy_dtype(self.dtype, "TensorFeature")

    @property
    def _has_ragged_rows(self) -> bool:
        """Return False: a tensor of an open length is a row of its own shape."""
        return False

    def keys(self, key: str, scope: Scope) -> tuple[KeySpec, ...] | None:
        """Return the spec of one tensor that the decoder parses, or of bytes values."""
        return (self._parsed_key(key),) if scope == "value" and self.count is None else Encoded.keys(self, key, scope)

    def _parsed_key(self, key: str) -> KeySpec:
        return KeySpec(key, "bytes", ValueLayout.TENSOR, tensor=(self.dtype, self.shape))

    def keys_for_sizes(self, keys: tuple[KeySpec, ...]) -> tuple[KeySpec, ...]:
        """Return the keys of tensors that the decoder does not parse."""
        return tuple(each for each in keys if not _is_parsed(each))

    def assemble(self, decoded: Decoded) -> Block:
        """Return tensors that the decoder has parsed, or parse each row's."""
        output = decoded.keys[0]
        if not _is_parsed(output.spec):
            return self._parse(decoded)
        if not self.own_shapes:
            return output.encoded().reshape((decoded.rows, *self.item_shape))
        assert output.shapes is not None
        shapes = output.shapes.reshape(decoded.rows, self.own_shapes)
        return ArraysBlock(output.flat(self.item_dtype), output.record_splits, shapes)

    def _parse(self, decoded: Decoded) -> Block:
        """Parse the tensors of each row; tensors of one shape straight into an array."""
        messages, limit = decoded.keys[0].encoded(), decoded.limit
        shape = (len(messages), *self.shape)
        array = None
        if self.dtype != "bytes" and not self.own_shapes:
            if limit is not None:
                limit.check_ends(decoded.splits_of_files[1:], math.prod(self.shape) * self.item_dtype.itemsize)
            array = np.empty(shape, self.item_dtype) if decoded.out is None else decoded.out.reshape(shape)
        output, problem = _native.read_tensors(
            np.ascontiguousarray(messages.values),
            np.ascontiguousarray(messages.splits),
            self._parsed_key("").to_native(),
            None if array is None else array.reshape(-1).view(np.uint8),
            sys.maxsize if limit is None else limit.nbytes,
        )
        if problem.fault is Fault.FULL and limit is not None:
            raise decoded.error(self, problem.step, limit.message(), RowLimitError)
        if problem.fault is not Fault.NONE:
            found = found_tensor(problem.text.decode(), problem.found)
            raise decoded.error(self, problem.step, f"holds {found}, but {self} takes tensors of its dtype and shape")
        if array is not None:
            return decoded.in_rows(self, array)
        assert output.values is not None
        values: Any = output.values.view(np.uint8 if self.dtype == "bytes" else self.item_dtype)
        if output.value_splits is not None:
            items = (len(output.value_splits) - 1,) if self.own_shapes else shape
            values = BytesBlock(values, output.value_splits, items)
        if self.own_shapes:
            assert output.row_splits is not None and output.shapes is not None
            values = ArraysBlock(values, output.row_splits, output.shapes.reshape(-1, self.own_shapes))
        return decoded.in_rows(self, values)

    def item(self) -> Feature | None:
        """Return the feature that reads one tensor, or rows from tensors whose length is open."""
        if self.count == -1:
            return self.with_count(None)
        return replace(self, shape=self.shape[1:]) if self.own_shapes and self.shape[0] < 0 else None

    def encode_block(self, key: str, block: Any, encoding: ImageEncoding) -> list[KeyedValues]:
        """Return serialized tensors."""
        if isinstance(block, np.ndarray):
            # Tensors of one shape share their head.
            values = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
            nbytes = math.prod(block.shape[1:]) * block.dtype.itemsize
            head = _tensor_head(self.dtype, block.shape[1:], nbytes)
            return [
                KeyedValues(key, values, value_splits=np.arange(len(block) + 1, dtype=np.int64) * nbytes, prefix=head)
            ]
        assert isinstance(block, ArraysBlock | BytesBlock)
        return [flat(key, _serialize_tensors(self.dtype, block))]


def _is_parsed(spec: Any) -> bool:
    """Return whether the decoder parses tensors, rather than returning their bytes."""
    return isinstance(spec, KeySpec) and spec.layout == ValueLayout.TENSOR


def found_tensor(text: str, number: int) -> str:
    """Describe a tensor that does not fit: by the text of the native reader, or by the number of its dtype."""
    if text:
        return text
    if not number:
        return "bytes that are not a serialized tensor"
    names = {tensor_dtype_number(name): name for name in TENSOR_DTYPES}
    return f"a tensor of dtype {names[number]}" if number in names else f"a tensor of dtype number {number}"


# Tag of the content in a tensor of numbers, which no other field follows.
_CONTENT = b"\x22"


def _serialized_tensor(dtype: str, shape: Sequence[int], strings: Sequence[bytes] = ()) -> bytes:
    """Serialize a string tensor, or the fields in front of a numeric tensor's content."""
    dims = TensorShapeProto(dim=[Dim(size=size) for size in shape])
    message = TensorProto(dtype=tensor_dtype_number(dtype), tensor_shape=dims, string_val=strings)
    return message.SerializeToString()


@lru_cache(4096)
def _tensor_head(dtype: str, shape: tuple[int, ...], nbytes: int) -> bytes:
    """Serialize what precedes the content of a tensor of numbers."""
    return _serialized_tensor(dtype, shape) + (_CONTENT + varint_bytes(nbytes) if nbytes else b"")


def _serialize_tensors(dtype: str, block: ArraysBlock | BytesBlock) -> BytesBlock:
    """Serialize tensors of strings, or of different shapes."""
    if isinstance(block, ArraysBlock):
        values, ends, shapes = block.values, block.row_splits, block.shapes.tolist()
    else:
        each = math.prod(block.shape[1:])
        values, ends = block, np.arange(len(block) + 1, dtype=np.int64) * each
        shapes = [block.shape[1:]] * len(block)
    if isinstance(values, BytesBlock):
        items: list[bytes] = np.asarray(values).ravel().tolist()
        return BytesBlock.of(
            [
                _serialized_tensor(dtype, shape, items[start:stop])
                for shape, (start, stop) in zip(shapes, pairwise(ends.tolist()), strict=True)
            ]
        )
    content = memoryview(np.ascontiguousarray(values).view(np.uint8).data)
    return BytesBlock.of(
        [
            _tensor_head(dtype, tuple(shape), stop - start) + bytes(content[start:stop])
            for shape, (start, stop) in zip(shapes, pairwise((ends * values.itemsize).tolist()), strict=True)
        ]
    )
