"""Serialize arrays as TensorProto messages, as `tf.io.serialize_tensor` does.

Numbers are stored in ``tensor_content``, strings in ``string_val``. The message is defined in
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/framework/tensor.proto
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from dask_tfrecord.columns.blocks import ArraysBlock, BytesBlock, splits_of
from dask_tfrecord.features.base import TENSOR_DTYPES

__all__ = ["tensor_head", "tensors"]

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
