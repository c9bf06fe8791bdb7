"""Arrays, tensors, images and text in bytes values: assembled to blocks, and tensors and images encoded again.

TensorProto is defined in
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/framework/tensor.proto: numbers are stored in
``tensor_content``, strings in ``string_val``.
"""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord._native import Fault, ValueLayout
from dask_tfrecord.blocks import (
    ArraysBlock,
    Block,
    BytesBlock,
    RaggedBlock,
    RowError,
    RowLimitError,
    first_true,
    place,
    placing,
    splits_of,
    to_text,
    weightless,
)
from dask_tfrecord.errors import plural
from dask_tfrecord.features import (
    COMPRESSION_WBITS,
    TENSOR_DTYPES,
    Encoded,
    ImageFeature,
    RawFeature,
    TensorFeature,
    TextFeature,
)
from dask_tfrecord.features.keys import Assemble, Decoded, KeySpec
from dask_tfrecord.images.codecs import ImageError
from dask_tfrecord.images.pixels import ImageEncoding, decode_image, encode_image, image_shape
from dask_tfrecord.messages import Dim, TensorProto, TensorShapeProto, varint_bytes

# Tag of the content of a tensor of numbers, which no other field follows.
_CONTENT = b"\x22"


def _tensor(dtype: str, shape: Sequence[int], strings: Sequence[bytes] = ()) -> bytes:
    """Serialize a tensor of strings, or the fields that precede the content of a tensor of numbers."""
    dims = TensorShapeProto(dim=[Dim(size=size) for size in shape])
    message = TensorProto(dtype=TENSOR_DTYPES[dtype].number, tensor_shape=dims, string_val=strings)
    return message.SerializeToString()


@lru_cache(4096)
def tensor_head(dtype: str, shape: tuple[int, ...], nbytes: int) -> bytes:
    """Serialize what precedes the content of a tensor of numbers."""
    return _tensor(dtype, shape) + (_CONTENT + varint_bytes(nbytes) if nbytes else b"")


def found_tensor(text: str, number: int) -> str:
    """Describe a tensor that does not fit: by the text of the native reader, or by the number of its dtype."""
    if text:
        return text
    if not number:
        return "bytes that are not a serialized tensor"
    names = {dtype.number: name for name, dtype in TENSOR_DTYPES.items()}
    return f"a tensor of dtype {names[number]}" if number in names else f"a tensor of dtype number {number}"


def tensor_spec(key: str, feature: TensorFeature) -> KeySpec:
    """Return the spec of one serialized tensor."""
    return KeySpec(key, "bytes", ValueLayout.TENSOR, tensor=(feature.dtype, feature.shape))


def tensors(feature: TensorFeature, decoded: Decoded) -> Block:
    """Assemble tensors of any shape, one per row, which the decoder has parsed."""
    (output,) = decoded.keys
    assert output.shapes is not None
    shapes = output.shapes.reshape(decoded.rows, feature.own_shapes)
    return ArraysBlock(output.flat(feature.item_dtype), output.record_splits, shapes)


def tensor_values(feature: TensorFeature, decoded: Decoded) -> Block:
    """Parse the tensors of each row; those of one shape straight into an array."""
    messages, limit = decoded.keys[0].encoded(), decoded.limit
    shape = (len(messages), *feature.shape)
    array = None
    if feature.dtype != "bytes" and not feature.own_shapes:
        if limit is not None:
            limit.check_ends(decoded.ends[1:], math.prod(feature.shape) * feature.item_dtype.itemsize)
        array = np.empty(shape, feature.item_dtype) if decoded.out is None else decoded.out.reshape(shape)
    output, problem = _native.read_tensors(
        np.ascontiguousarray(messages.values),
        np.ascontiguousarray(messages.splits),
        tensor_spec("", feature).to_native(),
        None if array is None else array.reshape(-1).view(np.uint8),
        sys.maxsize if limit is None else limit.nbytes,
    )
    if problem.fault is Fault.FULL and limit is not None:
        raise decoded.error(feature, problem.step, limit.message(), RowLimitError)
    if problem.fault is not Fault.NONE:
        found = found_tensor(problem.text.decode(), problem.found)
        raise decoded.error(
            feature, problem.step, f"holds {found} where {feature} takes tensors of its dtype and shape"
        )
    if array is not None:
        return decoded.in_rows(feature, array)
    assert output.values is not None
    values: Any = output.values.view(np.uint8 if feature.dtype == "bytes" else feature.item_dtype)
    if output.value_splits is not None:
        items = (len(output.value_splits) - 1,) if feature.own_shapes else shape
        values = BytesBlock(values, output.value_splits, items)
    if feature.own_shapes:
        assert output.row_splits is not None and output.shapes is not None
        values = ArraysBlock(values, output.row_splits, output.shapes.reshape(-1, feature.own_shapes))
    return decoded.in_rows(feature, values)


def serialize_tensors(dtype: str, block: ArraysBlock | BytesBlock) -> BytesBlock:
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
                _tensor(dtype, shape, items[start:stop])
                for shape, (start, stop) in zip(shapes, pairwise(ends.tolist()), strict=True)
            ]
        )
    content = memoryview(np.ascontiguousarray(values).view(np.uint8).data)
    return BytesBlock.of(
        [
            tensor_head(dtype, tuple(shape), stop - start) + bytes(content[start:stop])
            for shape, (start, stop) in zip(shapes, pairwise((ends * values.itemsize).tolist()), strict=True)
        ]
    )


def image_values(feature: ImageFeature, decoded: Decoded) -> Block:
    """Decode images: one per row, or several. Of images of any shape, all headers are read first, to allocate once."""
    files, ends, limit = decoded.keys[0].encoded(), decoded.ends, decoded.limit
    if feature.own_shapes:
        shapes = _image_shapes(feature, files, decoded)
        splits = splits_of(shapes.prod(axis=1))
        if limit is not None:
            limit.check_ends(splits[ends[1:]], feature.item_dtype.itemsize)
        block: Any = ArraysBlock(np.empty(int(splits[-1]), feature.item_dtype), splits, shapes)
    else:
        shape = (len(files), *feature.value_shape)
        if limit is not None and decoded.out is None:
            limit.check_ends(ends[1:], math.prod(feature.value_shape) * feature.item_dtype.itemsize)
        block = np.empty(shape, feature.item_dtype) if decoded.out is None else decoded.out.reshape(shape)
    for number, (file, slot) in enumerate(zip(_iter_files(files), _iter_arrays(block), strict=True)):
        with _naming_row(feature, decoded, number):
            decode_image(file, feature, slot)
    return decoded.in_rows(feature, block)


def image_sizes(feature: ImageFeature, decoded: Decoded) -> Block:
    """Assemble images of the correct sizes whose pixels are zero, without allocating them."""
    files = decoded.keys[0].encoded()
    if not feature.own_shapes:
        return decoded.in_rows(feature, weightless(feature.item_dtype, (len(files), *feature.item_shape)))
    shapes = _image_shapes(feature, files, decoded)
    splits = splits_of(shapes.prod(axis=1))
    return decoded.in_rows(feature, ArraysBlock(weightless(feature.item_dtype, int(splits[-1])), splits, shapes))


def _image_shapes(feature: ImageFeature, files: BytesBlock, decoded: Decoded) -> NDArray[np.int64]:
    """Read the shape of each decoded image, and compare it with the shape of the feature."""
    shapes = np.empty((len(files), 3), np.int64)
    expected = np.array(feature.value_shape)
    for number, file in enumerate(_iter_files(files)):
        with _naming_row(feature, decoded, number):
            shapes[number] = image_shape(file, feature)
            if ((expected != -1) & (expected != shapes[number])).any():
                raise ImageError(f"an image of shape {tuple(shapes[number].tolist())}; expected {feature.value_shape}")
    return shapes


@contextmanager
def _naming_row(feature: ImageFeature, decoded: Decoded, number: int) -> Iterator[None]:
    """Raise an `ImageError` of image `number` as an error of its row."""
    try:
        yield
    except ImageError as error:
        raise decoded.error(feature, number, f"holds {error}") from None


def _iter_files(files: BytesBlock) -> Iterator[memoryview]:
    data = memoryview(files.values.data)
    for start, stop in pairwise(files.splits.tolist()):
        yield data[start:stop]


def _iter_arrays(block: Block) -> Iterator[NDArray[Any]]:
    """Yield a view of each row."""
    if isinstance(block, ArraysBlock):
        values = np.asarray(block.values)
        for shape, (start, stop) in zip(block.shapes.tolist(), pairwise(block.row_splits.tolist()), strict=True):
            yield values[start:stop].reshape(shape)
    else:
        yield from np.asarray(block)


def encode_images(encoding: ImageEncoding, block: Block) -> Block:
    """Encode the images of a block, one or any number per row."""
    if isinstance(block, RaggedBlock):
        with placing(block.row_splits, item=True):
            files: Any = encode_images(encoding, block.values)
        return RaggedBlock(files, block.row_splits)
    encoded = []
    for row, image in enumerate(_iter_arrays(block)):
        try:
            encoded.append(encode_image(encoding, image))
        except ImageError as error:
            raise RowError(row, f"holds {error}") from None
    return BytesBlock.of(encoded)


def text_values(feature: TextFeature, decoded: Decoded) -> Block:
    """Assemble strings, one per row or several."""
    values = decoded.keys[0].encoded()
    try:
        return decoded.in_rows(feature, to_text(values))
    except UnicodeDecodeError as error:
        number = next(number for number, value in enumerate(_iter_files(values)) if not _is_utf8(value))
        reason = f"is not valid UTF-8 where {feature} takes text; FixedLenFeature((), 'bytes') reads any bytes"
        raise decoded.error(feature, number, reason) from error


def _is_utf8(value: memoryview) -> bool:
    try:
        str(value, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def raw_values(feature: RawFeature, decoded: Decoded) -> Block:
    """Assemble arrays from bytes values, one per row or several, of one size or of a multiple of it."""
    if feature.compression_type is not None:
        decoded = _inflated(feature, feature.compression_type, decoded)
    files = decoded.keys[0].encoded()
    is_open, sizes = -1 in feature.shape, np.diff(files.splits)
    if (number := first_true(sizes % feature.nbytes != 0 if is_open else sizes != feature.nbytes)) is not None:
        needed = f"a multiple of {feature.nbytes}" if is_open else f"{feature.nbytes}"
        raise decoded.error(feature, number, f"holds {plural(sizes[number], 'byte')}; {feature} needs {needed}")
    dtype = feature.stored_dtype
    if dtype.kind == "b" and (at := first_true(files.values > 1)) is not None:
        number, _ = place(files.splits, at)
        raise decoded.error(feature, number, f"holds a byte {files.values[at]}; {feature} accepts 0 and 1")
    if decoded.keys[0].values is None:
        numbers = weightless(feature.item_dtype, int(files.splits[-1]) // dtype.itemsize)
    else:
        numbers = files.values.view(dtype).astype(feature.item_dtype, copy=False)
    if not is_open:
        block = decoded.in_rows(feature, numbers.reshape(len(files), *feature.shape))
        return decoded.into(block) if isinstance(block, np.ndarray) else block
    if feature.ragged_rank and decoded.keys[0].row_splits is None:
        return RaggedBlock(numbers.reshape(-1, *feature.shape[1:]), files.splits // feature.nbytes)
    shapes = np.tile(np.array(feature.shape, np.int64), (len(files), 1))
    shapes[:, feature.shape.index(-1)] = sizes // feature.nbytes
    return decoded.in_rows(feature, ArraysBlock(numbers, files.splits // dtype.itemsize, shapes))


def _inflated(feature: RawFeature, compression: str, decoded: Decoded) -> Decoded:
    """Return the decompressed bytes values."""
    files, limit, is_open = decoded.keys[0].encoded(), decoded.limit, -1 in feature.shape
    inflated, size = [], 0
    for number, file in enumerate(_iter_files(files)):
        # One byte more than accepted, to find values that are too long; 0 for any number.
        most = feature.nbytes + 1 if not is_open else 0 if limit is None else limit.nbytes - size + 1
        inflate = zlib.decompressobj(COMPRESSION_WBITS[compression])
        try:
            value, damaged = inflate.decompress(file, most), False
        except zlib.error:
            value, damaged = b"", True
        size += len(value)
        if limit is not None and size > limit.nbytes:
            raise decoded.error(feature, number, limit.message(), RowLimitError)
        if not is_open and len(value) > feature.nbytes:
            raise decoded.error(
                feature, number, f"holds more than {plural(feature.nbytes, 'byte')}, which {feature} needs"
            )
        if damaged or not inflate.eof or inflate.unused_data:
            raise decoded.error(feature, number, f"holds damaged {compression} data where {feature} takes it")
        inflated.append(value)
    block = BytesBlock.of(inflated)
    return decoded._replace(keys=[decoded.keys[0]._replace(values=block.values, value_splits=block.splits)])


def values_assembler(feature: Encoded) -> Assemble:
    """Return the assembler of bytes values that are decoded in Python."""
    by_class: dict[type[Encoded], Assemble] = {
        RawFeature: raw_values,
        TensorFeature: tensor_values,
        ImageFeature: image_values,
        TextFeature: text_values,
    }
    return by_class[type(feature)]
