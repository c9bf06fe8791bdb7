"""Assemble rows of arrays and text from bytes values: raw arrays, tensors, images, strings.

The functions have the signature `Assemble`; those whose sizes follow from the encoded values also take a memory limit.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.columns.assemble import bytes_of, flat_values, into, row_splits_of
from dask_tfrecord.columns.blocks import (
    ArraysBlock,
    Block,
    BytesBlock,
    RaggedBlock,
    RowError,
    place,
    splits_of,
    to_text,
    weightless,
)
from dask_tfrecord.columns.images import image_arrays, image_rows, image_zeros
from dask_tfrecord.columns.memory_limit import MemoryLimit, RowLimitError
from dask_tfrecord.columns.native_spec import KeyOutput
from dask_tfrecord.columns.tensors import read_tensors
from dask_tfrecord.errors import plural
from dask_tfrecord.features import Encoded, Feature, ImageFeature, RawFeature, TensorFeature, TextFeature
from dask_tfrecord.features.encoded import COMPRESSION_WBITS

__all__ = [
    "arrays",
    "image_sizes",
    "image_values",
    "inflated_values",
    "raw_arrays",
    "raw_rows",
    "raw_values",
    "tensor_values",
    "text",
    "text_values",
    "values_assembler",
]


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
        row = int(np.searchsorted(splits, wrong[0], side="right")) - 1
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
