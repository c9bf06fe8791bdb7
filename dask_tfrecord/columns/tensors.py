"""Parse TensorProto messages to arrays, and serialize arrays, as `tf.io.parse_tensor` and `tf.io.serialize_tensor` do.

Numbers are stored in ``tensor_content``, strings in ``string_val``. The message is defined in
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/framework/tensor.proto
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord._native import Fault
from dask_tfrecord.columns.blocks import ArraysBlock, BytesBlock, RowError, place, splits_of
from dask_tfrecord.columns.memory_limit import MemoryLimit, RowLimitError
from dask_tfrecord.columns.native_spec import tensor_spec
from dask_tfrecord.features import TensorFeature
from dask_tfrecord.features.base import TENSOR_DTYPES

__all__ = ["found_tensor", "read_tensors", "tensor_head", "tensors"]

# Tags of length-delimited fields.
_SHAPE, _DIM, _CONTENT, _STRING = 0x12, 0x12, 0x22, 0x42
_DTYPE, _SIZE = 0x08, 0x08


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(tag: int, body: bytes) -> bytes:
    return bytes([tag]) + _varint(len(body)) + body


@lru_cache(4096)
def tensor_head(dtype: str, shape: tuple[int, ...], nbytes: int) -> bytes:
    """Serialize the fields that precede the content of a tensor of numbers.

    Parameters
    ----------
    dtype : str
        Dtype of the tensor.
    shape : tuple of int
        Shape of the tensor.
    nbytes : int
        Bytes of its content; without content, the field is omitted, as in proto3.
    """
    # proto3 omits a size of 0, too.
    sizes = b"".join(_field(_DIM, bytes([_SIZE]) + _varint(size) if size else b"") for size in shape)
    head = bytes([_DTYPE, TENSOR_DTYPES[dtype].number]) + _field(_SHAPE, sizes)
    return head + bytes([_CONTENT]) + _varint(nbytes) if nbytes else head


def found_tensor(text: str, number: int) -> str:
    """Describe a tensor that does not fit: by the text of the native reader, or by the number of its dtype."""
    if text:
        return text
    if not number:
        return "bytes that are not a serialized tensor"
    names = {dtype.number: name for name, dtype in TENSOR_DTYPES.items()}
    return f"a tensor of dtype {names[number]}" if number in names else f"a tensor of dtype number {number}"


def read_tensors(
    feature: TensorFeature,
    messages: BytesBlock,
    row_splits: NDArray[np.int64],
    out: NDArray[Any] | None,
    limit: MemoryLimit | None,
) -> NDArray[Any] | BytesBlock | ArraysBlock:
    """Parse tensors; those of one shape straight into an array.

    Parameters
    ----------
    feature : TensorFeature
        Shape and dtype of each tensor.
    messages : BytesBlock
        One message per tensor.
    row_splits : ndarray of int64
        Splits of the tensors into rows, to name the row and the tensor of an error.
    out : ndarray, optional
        Array to write to.
    limit : MemoryLimit, optional
        Limit of the memory of the tensors.

    Returns
    -------
    ndarray or BytesBlock of shape (messages, *shape), or ArraysBlock
        `out`, or a new array; a BytesBlock for strings; an ArraysBlock if a size is open.

    Raises
    ------
    RowError
        If a message is not a tensor of this dtype and shape, or the limit is exceeded.
    """
    shape = (len(messages), *feature.shape)
    array = None
    if feature.dtype != "bytes" and not feature.own_shapes:
        if limit is not None:
            limit.check_ends(row_splits[1:], math.prod(feature.shape) * feature.item_dtype.itemsize)
        array = np.empty(shape, feature.item_dtype) if out is None else out
    output, problem = _native.read_tensors(
        np.ascontiguousarray(messages.values),
        np.ascontiguousarray(messages.splits),
        tensor_spec("", feature).to_native(),
        None if array is None else array.reshape(-1).view(np.uint8),
        sys.maxsize if limit is None else limit.nbytes,
    )
    if problem.fault is not Fault.NONE:
        row, item = place(row_splits, problem.step)
        if problem.fault is Fault.FULL and limit is not None:
            raise RowLimitError(row, limit.message(), item)
        found = found_tensor(problem.text.decode(), problem.found)
        raise RowError(row, f"holds {found} where {feature} takes tensors of its dtype and shape", item)
    if array is not None:
        return array
    assert output.values is not None
    values: Any = output.values.view(np.uint8 if feature.dtype == "bytes" else feature.item_dtype)
    if output.value_splits is not None:
        items = (len(output.value_splits) - 1,) if feature.own_shapes else shape
        values = BytesBlock(values, output.value_splits, items)
    if not feature.own_shapes:
        strings: BytesBlock = values
        return strings
    assert output.row_splits is not None and output.shapes is not None
    return ArraysBlock(values, output.row_splits, output.shapes.reshape(-1, feature.own_shapes))


def tensors(dtype: str, block: ArraysBlock | BytesBlock) -> BytesBlock:
    """Serialize tensors of strings, or of different shapes.

    Parameters
    ----------
    dtype : str
        Dtype of the tensors.
    block : ArraysBlock or BytesBlock
        One tensor per row.

    Returns
    -------
    BytesBlock
        One message per row.
    """
    messages = list(_of_strings(block) if dtype == "bytes" else _of_numbers(dtype, block))
    splits = splits_of(np.array([len(message) for message in messages], np.int64))
    return BytesBlock(np.frombuffer(b"".join(messages), np.uint8), splits, (len(messages),))


def _of_numbers(dtype: str, block: ArraysBlock | BytesBlock) -> Iterator[bytes]:
    assert isinstance(block, ArraysBlock) and isinstance(block.values, np.ndarray)
    content = memoryview(np.ascontiguousarray(block.values).view(np.uint8).data)
    ends = (block.row_splits * block.values.itemsize).tolist()
    for row, shape in enumerate(block.shapes.tolist()):
        start, stop = ends[row], ends[row + 1]
        yield tensor_head(dtype, tuple(shape), stop - start) + bytes(content[start:stop])


def _of_strings(block: ArraysBlock | BytesBlock) -> Iterator[bytes]:
    values = block.values if isinstance(block, ArraysBlock) else block
    assert isinstance(values, BytesBlock)
    items: Sequence[bytes] = np.asarray(values).ravel().tolist()
    each = len(items) // max(1, len(block))
    shapes = block.shapes.tolist() if isinstance(block, ArraysBlock) else [block.shape[1:]] * len(block)
    ends = (
        block.row_splits.tolist() if isinstance(block, ArraysBlock) else [each * row for row in range(len(block) + 1)]
    )
    for row, shape in enumerate(shapes):
        head = tensor_head("bytes", tuple(shape), 0)
        yield head + b"".join(_field(_STRING, item) for item in items[ends[row] : ends[row + 1]])
