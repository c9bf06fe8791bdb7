"""Arrays, tensors, images and text in bytes values: assembled to blocks, and tensors and images encoded again.

TensorProto is defined in
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/framework/tensor.proto: numbers are stored in
``tensor_content``, strings in ``string_val``.
"""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord._native import Fault
from dask_tfrecord.columns.blocks import (
    ArraysBlock,
    Block,
    BytesBlock,
    KeyOutput,
    MemoryLimit,
    RaggedBlock,
    RowError,
    RowLimitError,
    bytes_of,
    flat_values,
    into,
    place,
    row_splits_of,
    splits_of,
    tensor_spec,
    to_text,
    weightless,
)
from dask_tfrecord.errors import plural
from dask_tfrecord.features import (
    COMPRESSION_WBITS,
    TENSOR_DTYPES,
    Encoded,
    Feature,
    ImageFeature,
    RawFeature,
    TensorFeature,
    TextFeature,
)
from dask_tfrecord.images.codecs import ImageError
from dask_tfrecord.images.pixels import ImageEncoding, decode_image, encode_image, image_shape

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
    """Serialize the fields that precede the content of a tensor of numbers."""
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
    """Parse tensors; those of one shape straight into an array."""
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
    """Serialize tensors of strings, or of different shapes."""
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


def image_rows(
    feature: ImageFeature, files: BytesBlock, row_splits: NDArray[np.int64] | None, out: NDArray[Any] | None
) -> NDArray[Any]:
    """Decode images of one shape."""
    array = np.empty((len(files), *feature.value_shape), feature.item_dtype) if out is None else out
    for number, file in enumerate(_iter_files(files)):
        with _naming_row(row_splits, number):
            _decode(feature, file, array[number])
    return array


def image_arrays(
    feature: ImageFeature, files: BytesBlock, row_splits: NDArray[np.int64] | None, limit: MemoryLimit | None = None
) -> ArraysBlock:
    """Decode images of any shape. All headers are read first, to allocate one array for the pixels."""
    shapes = _shapes(feature, files, row_splits)
    splits = splits_of(shapes.prod(axis=1))
    if limit is not None:
        limit.check_ends(splits[1:] if row_splits is None else splits[row_splits[1:]], feature.item_dtype.itemsize)
    values = np.empty(int(splits[-1]), feature.item_dtype)
    for number, file in enumerate(_iter_files(files)):
        slot = values[splits[number] : splits[number + 1]].reshape(shapes[number])
        with _naming_row(row_splits, number):
            _decode(feature, file, slot)
    return ArraysBlock(values, splits, shapes)


def image_zeros(feature: ImageFeature, files: BytesBlock, row_splits: NDArray[np.int64] | None) -> ArraysBlock:
    """Return zeros in the shapes that the headers of the images have, without allocating them."""
    shapes = _shapes(feature, files, row_splits)
    splits = splits_of(shapes.prod(axis=1))
    return ArraysBlock(weightless(feature.item_dtype, int(splits[-1])), splits, shapes)


def _shapes(feature: ImageFeature, files: BytesBlock, row_splits: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Read the shape of each decoded image, and compare it with the shape of the feature."""
    shapes = np.empty((len(files), 3), np.int64)
    expected = np.array(feature.value_shape)
    for number, file in enumerate(_iter_files(files)):
        with _naming_row(row_splits, number):
            shapes[number] = image_shape(file, channels=feature.channels, size=feature.size)
            if ((expected != -1) & (expected != shapes[number])).any():
                raise ImageError(f"an image of shape {tuple(shapes[number].tolist())}; expected {feature.value_shape}")
    return shapes


def _decode(feature: ImageFeature, file: memoryview, out: NDArray[Any]) -> None:
    decode_image(
        file, channels=feature.channels, dtype=feature.item_dtype, size=feature.size, fast=feature.fast, out=out
    )


def _iter_files(files: BytesBlock) -> Iterator[memoryview]:
    data = memoryview(files.values.data)
    ends = files.splits.tolist()
    for number in range(len(ends) - 1):
        yield data[ends[number] : ends[number + 1]]


def encode_images(encoding: ImageEncoding, block: Block) -> Block:
    """Encode the images of a block, one or any number per row."""
    if isinstance(block, RaggedBlock):
        files = _encode(encoding, block.values, block.row_splits)
        return RaggedBlock(files, block.row_splits)
    return _encode(encoding, block, None)


def _encode(encoding: ImageEncoding, images: Any, row_splits: NDArray[np.int64] | None) -> BytesBlock:
    files = []
    for number, image in enumerate(_iter_images(images)):
        with _naming_row(row_splits, number):
            files.append(encode_image(encoding, image))
    splits = splits_of(np.array([len(file) for file in files], np.int64))
    return BytesBlock(np.frombuffer(b"".join(files), np.uint8), splits, (len(files),))


def _iter_images(block: Block) -> Iterator[NDArray[Any]]:
    if isinstance(block, ArraysBlock):
        values, ends = np.asarray(block.values), block.row_splits.tolist()
        for row, shape in enumerate(block.shapes.tolist()):
            yield values[ends[row] : ends[row + 1]].reshape(shape)
    else:
        yield from np.asarray(block)


@contextmanager
def _naming_row(row_splits: NDArray[np.int64] | None, number: int) -> Iterator[None]:
    """Raise an `ImageError` of image `number` as an error of its row, which is `number` without splits."""
    try:
        yield
    except ImageError as error:
        row, item = (number, None) if row_splits is None else place(row_splits, number)
        raise RowError(row, f"holds {error}", item) from None


def text(feature: Feature, outputs: Sequence[KeyOutput], rows: int, out: NDArray[Any] | None) -> Block:
    """Assemble strings."""
    return to_text(BytesBlock(*bytes_of(outputs[0]), (rows,)))


def text_values(feature: Feature, outputs: Sequence[KeyOutput], rows: int, out: NDArray[Any] | None) -> Block:
    """Assemble rows of strings."""
    values, splits = bytes_of(outputs[0])
    count = len(splits) - 1
    if outputs[0].values is None:
        return RaggedBlock(weightless(feature.item_dtype, count), row_splits_of(outputs[0]))
    return _in_rows(to_text(BytesBlock(values, splits, (count,))), feature, outputs[0], rows)


def _in_rows(values: NDArray[Any] | BytesBlock | ArraysBlock, feature: Feature, output: KeyOutput, rows: int) -> Block:
    """Group decoded values, one for each bytes value of the output, into the rows of the records."""
    if output.row_splits is not None:
        return RaggedBlock(values, output.row_splits)
    assert isinstance(feature, Encoded)
    if feature.count is None:
        return values
    assert not isinstance(values, ArraysBlock)
    shape = (rows, feature.count, *values.shape[1:])
    return values.reshape(shape) if isinstance(values, np.ndarray) else BytesBlock(values.values, values.splits, shape)


def value_rows(output: KeyOutput, rows: int) -> NDArray[np.int64]:
    """Return the splits of the bytes values by record."""
    if output.row_splits is not None:
        return output.row_splits
    assert output.value_splits is not None
    return np.arange(rows + 1, dtype=np.int64) * ((len(output.value_splits) - 1) // max(rows, 1))


def raw_values(feature: Feature, outputs: Sequence[KeyOutput], rows: int, out: NDArray[Any] | None) -> Block:
    """Assemble rows of arrays, each from one bytes value."""
    assert isinstance(feature, RawFeature)
    if -1 in feature.shape:
        return raw_arrays(feature, outputs, rows, out)
    values, splits = bytes_of(outputs[0])
    ends, sizes = value_rows(outputs[0], rows), np.diff(splits)
    if len(wrong := np.flatnonzero(sizes != feature.nbytes)):
        row, item = place(ends, int(wrong[0]))
        raise RowError(row, f"holds {plural(sizes[wrong[0]], 'byte')}; {feature} needs {feature.nbytes}", item)
    shape = (len(sizes), *feature.value_shape)
    if outputs[0].values is None:
        return RaggedBlock(weightless(feature.item_dtype, shape), ends)
    if feature.stored_dtype.kind == "b" and len(wrong := np.flatnonzero(values > 1)):
        row, item = place(ends, int(wrong[0]) // feature.nbytes)
        raise RowError(row, f"holds a byte {values[wrong[0]]}; {feature} accepts 0 and 1", item)
    numbers = values.view(feature.stored_dtype).astype(feature.item_dtype, copy=False)
    block = _in_rows(numbers.reshape(shape), feature, outputs[0], rows)
    return into(block, out) if isinstance(block, np.ndarray) else block


def values_assembler(feature: Encoded) -> Callable[..., Block]:
    """Return the assembler of several bytes values per record."""
    match feature:
        case RawFeature():
            return raw_values if feature.compression_type is None else inflated_values
        case TensorFeature():
            return tensor_values
        case TextFeature():
            return text_values
    return image_values


def inflated_values(
    feature: Feature,
    outputs: Sequence[KeyOutput],
    rows: int,
    out: NDArray[Any] | None,
    limit: MemoryLimit | None = None,
) -> Block:
    """Assemble arrays from compressed bytes values."""
    assert isinstance(feature, RawFeature) and feature.compression_type is not None
    values, splits = bytes_of(outputs[0])
    ends, size = value_rows(outputs[0], rows), 0
    inflated = []
    for number, (start, stop) in enumerate(pairwise(splits.tolist())):
        row, item = place(ends, number)
        value_number = None if feature.count is None and outputs[0].row_splits is None else item
        # One byte more than accepted, to find values that are too long; 0 for any number.
        most = feature.nbytes + 1 if -1 not in feature.shape else 0 if limit is None else limit.nbytes - size + 1
        inflate = zlib.decompressobj(COMPRESSION_WBITS[feature.compression_type])
        try:
            value, damaged = inflate.decompress(values[start:stop].tobytes(), most), False
        except zlib.error:
            value, damaged = b"", True
        size += len(value)
        if limit is not None and size > limit.nbytes:
            raise RowLimitError(row, limit.message(), value_number)
        if -1 not in feature.shape and len(value) > feature.nbytes:
            raise RowError(
                row, f"holds more than {plural(feature.nbytes, 'byte')}, which {feature} needs", value_number
            )
        if damaged or not inflate.eof or inflate.unused_data:
            raise RowError(row, f"holds damaged {feature.compression_type} data where {feature} takes it", value_number)
        inflated.append(value)
    sizes = np.array([len(value) for value in inflated], np.int64)
    output = outputs[0]._replace(values=np.frombuffer(b"".join(inflated), np.uint8), value_splits=splits_of(sizes))
    is_row = output.row_splits is None and feature.shape[:1] == (-1,)
    return (raw_rows if is_row else raw_values)(feature, [output], rows, out)


def tensor_values(
    feature: Feature,
    outputs: Sequence[KeyOutput],
    rows: int,
    out: NDArray[Any] | None,
    limit: MemoryLimit | None = None,
) -> Block:
    """Assemble rows of tensors, each from one bytes value."""
    assert isinstance(feature, TensorFeature)
    values, splits = bytes_of(outputs[0])
    ends = value_rows(outputs[0], rows)
    files = BytesBlock(values, splits, (len(splits) - 1,))
    slots = None if out is None else out.reshape(len(files), *feature.shape)
    tensors = read_tensors(feature, files, ends, slots, limit)
    return _in_rows(tensors, feature, outputs[0], rows)


def raw_rows(feature: Feature, outputs: Sequence[KeyOutput], rows: int, out: NDArray[Any] | None) -> Block:
    """Assemble rows of numbers from bytes of any length."""
    assert isinstance(feature, RawFeature)
    values, splits = bytes_of(outputs[0])
    odd = np.flatnonzero(np.diff(splits) % feature.nbytes)
    if len(odd):
        row = int(odd[0])
        raise RowError(
            row, f"holds {plural(np.diff(splits)[row], 'byte')}; {feature} needs a multiple of {feature.nbytes}"
        )
    ends = splits // feature.nbytes
    item_shape = tuple(size for size in feature.shape if size != -1)
    if outputs[0].values is None:
        return RaggedBlock(weightless(feature.item_dtype, (int(ends[-1]), *item_shape)), ends)
    if feature.stored_dtype.kind == "b" and (wrong := np.flatnonzero(values > 1)).size:
        row = place(splits, int(wrong[0]))[0]
        raise RowError(row, f"holds a byte {values[wrong[0]]}; {feature} accepts 0 and 1")
    numbers = values.view(feature.stored_dtype).astype(feature.item_dtype, copy=False)
    return RaggedBlock(numbers.reshape(-1, *item_shape), ends)


def raw_arrays(feature: Feature, outputs: Sequence[KeyOutput], rows: int, out: NDArray[Any] | None) -> Block:
    """Assemble arrays of one open size from bytes of any length."""
    assert isinstance(feature, RawFeature)
    try:
        flat = raw_rows(feature, outputs, rows, out)
    except RowError as error:
        if outputs[0].row_splits is None:
            raise
        row, item = place(outputs[0].row_splits, error.row)
        raise RowError(row, error.message, item) from None
    assert isinstance(flat, RaggedBlock)
    each = feature.nbytes // feature.item_dtype.itemsize
    shapes = np.tile(np.array(feature.shape, np.int64), (len(flat), 1))
    shapes[:, feature.shape.index(-1)] = np.diff(flat.row_splits)
    values: Any = flat.values
    # Zeros that share the memory of one stay so.
    values = values.reshape(-1) if values.size == 0 or any(values.strides) else weightless(values.dtype, values.size)
    return _in_rows(ArraysBlock(values, flat.row_splits * each, shapes), feature, outputs[0], rows)


def arrays(feature: Feature, outputs: Sequence[KeyOutput], rows: int, out: NDArray[Any] | None) -> Block:
    """Assemble tensors of any shape."""
    (output,) = outputs
    assert output.shapes is not None
    values = flat_values(output, feature.item_dtype)
    return ArraysBlock(values, row_splits_of(output), output.shapes.reshape(rows, feature.own_shapes))


def image_values(
    feature: Feature,
    outputs: Sequence[KeyOutput],
    rows: int,
    out: NDArray[Any] | None,
    limit: MemoryLimit | None = None,
) -> Block:
    """Decode images: one per row, or any number."""
    assert isinstance(feature, ImageFeature)
    values, splits = bytes_of(outputs[0])
    files = BytesBlock(values, splits, (len(splits) - 1,))
    single = feature.count is None and outputs[0].row_splits is None
    if feature.own_shapes:
        several = None if single else value_rows(outputs[0], rows)
        return _in_rows(image_arrays(feature, files, several, limit), feature, outputs[0], rows)
    if single:
        return image_rows(feature, files, None, out)
    ends = value_rows(outputs[0], rows)
    if limit is not None:
        limit.check_ends(ends[1:], math.prod(feature.value_shape) * feature.item_dtype.itemsize)
    pixels = None if out is None else out.reshape(len(files), *feature.value_shape)
    return _in_rows(image_rows(feature, files, ends, pixels), feature, outputs[0], rows)


def image_sizes(feature: Feature, outputs: Sequence[KeyOutput], rows: int, out: NDArray[Any] | None) -> Block:
    """Assemble images of the correct sizes whose pixels are zero."""
    assert isinstance(feature, ImageFeature)
    values, splits = bytes_of(outputs[0])
    if feature.own_shapes:
        files = BytesBlock(values, splits, (len(splits) - 1,))
        return _in_rows(image_zeros(feature, files, outputs[0].row_splits), feature, outputs[0], rows)
    zeros = weightless(feature.item_dtype, (len(splits) - 1, *feature.item_shape))
    return RaggedBlock(zeros, row_splits_of(outputs[0]))
