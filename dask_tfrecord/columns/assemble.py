"""Assemble blocks from the outputs of the native decoder, with one function per kind of column.

Each function is called with the feature of the schema, the outputs of its keys for all rows, the number of rows, and,
for a dense column, an optional array to write to. It processes flat arrays of all rows at once, and reports an invalid
row as a `RowError`. If values were only counted, zeros that share the memory of one replace them.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.columns.blocks import (
    ArraysBlock,
    Block,
    BytesBlock,
    RaggedBlock,
    RowError,
    place,
    splits_of,
    take_rows,
    to_text,
    weightless,
)
from dask_tfrecord.columns.images import image_arrays, image_rows, image_zeros
from dask_tfrecord.columns.memory_limit import MemoryLimit, RowLimitError
from dask_tfrecord.columns.native_spec import KeyOutput
from dask_tfrecord.columns.tensors import read_tensors
from dask_tfrecord.errors import plural
from dask_tfrecord.features import (
    Encoded,
    Feature,
    FixedLenSequenceFeature,
    ImageFeature,
    RawFeature,
    SparseFeature,
    TensorFeature,
    TextFeature,
    default_array,
)
from dask_tfrecord.features.encoded import COMPRESSION_WBITS

__all__ = [
    "Assemble",
    "Prepare",
    "arrays",
    "fixed_bytes",
    "flat_values",
    "image_sizes",
    "image_values",
    "inflated_values",
    "items",
    "lengths",
    "padded_steps",
    "padded_values",
    "ragged",
    "raw_arrays",
    "raw_rows",
    "raw_values",
    "row_splits_of",
    "sorted_indices",
    "sparse_indices",
    "sparse_shape",
    "sparse_values",
    "tensor_values",
    "text",
    "text_values",
    "value_steps",
    "values_assembler",
]

Assemble = Callable[[Feature, Sequence[KeyOutput], int, NDArray[Any] | None], Block]
# Processes the outputs of a feature once for all of its columns.
Prepare = Callable[[Feature, Sequence[KeyOutput]], Sequence[KeyOutput]]


def flat_values(output: KeyOutput, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> NDArray[Any] | BytesBlock:
    """Return the values of an output, each of shape `shape`."""
    numbers: Any
    if output.value_splits is not None:
        values, splits = _bytes_of(output)
        return BytesBlock(values, splits, ((len(splits) - 1) // math.prod(shape), *shape))
    numbers = weightless(dtype, output.total) if output.values is None else output.values.view(dtype)
    shaped: NDArray[Any] = numbers.reshape(-1, *shape)
    return shaped


def _bytes_of(output: KeyOutput) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    assert output.value_splits is not None
    values = weightless(np.uint8, output.total) if output.values is None else output.values
    return values, output.value_splits


def row_splits_of(output: KeyOutput) -> NDArray[np.int64]:
    """Return the offsets between records."""
    assert output.row_splits is not None
    return output.row_splits


def fixed_bytes(feature: Feature, outputs: Sequence[KeyOutput], rows: int, out: NDArray[Any] | None) -> Block:
    """Assemble rows with a fixed number of bytes values."""
    return BytesBlock(*_bytes_of(outputs[0]), (rows, *feature.item_shape))


def text(feature: Feature, outputs: Sequence[KeyOutput], rows: int, out: NDArray[Any] | None) -> Block:
    """Assemble strings."""
    return to_text(BytesBlock(*_bytes_of(outputs[0]), (rows,)))


def text_values(feature: Feature, outputs: Sequence[KeyOutput], rows: int, out: NDArray[Any] | None) -> Block:
    """Assemble rows of strings."""
    values, splits = _bytes_of(outputs[0])
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
    values, splits = _bytes_of(outputs[0])
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
    return _into(block, out) if isinstance(block, np.ndarray) else block


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
    values, splits = _bytes_of(outputs[0])
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
    values, splits = _bytes_of(outputs[0])
    ends = value_rows(outputs[0], rows)
    files = BytesBlock(values, splits, (len(splits) - 1,))
    slots = None if out is None else out.reshape(len(files), *feature.shape)
    tensors = read_tensors(feature, files, ends, slots, limit)
    return _in_rows(tensors, feature, outputs[0], rows)


def ragged(feature: Feature, outputs: Sequence[KeyOutput], rows: int, out: NDArray[Any] | None) -> Block:
    """Assemble rows of values, or of steps of values."""
    (output,) = outputs
    each = math.prod(feature.item_shape)
    values, splits = flat_values(output, feature.item_dtype, feature.item_shape), row_splits_of(output)
    if output.step_splits is None:
        return RaggedBlock(values, splits // each if each > 1 else splits)
    return RaggedBlock(RaggedBlock(values, output.step_splits // each if each > 1 else output.step_splits), splits)


def items(feature: Feature, outputs: Sequence[KeyOutput], rows: int, out: NDArray[Any] | None) -> Block:
    """Assemble rows of items with a fixed number of values each."""
    (output,) = outputs
    return RaggedBlock(flat_values(output, feature.item_dtype, feature.item_shape), row_splits_of(output))


def raw_rows(feature: Feature, outputs: Sequence[KeyOutput], rows: int, out: NDArray[Any] | None) -> Block:
    """Assemble rows of numbers from bytes of any length."""
    assert isinstance(feature, RawFeature)
    values, splits = _bytes_of(outputs[0])
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


def padded_values(feature: Feature, outputs: Sequence[KeyOutput], rows: int, out: NDArray[Any] | None) -> Block:
    """Assemble steps from the values of records, padded to the length of the feature."""
    return _padded(feature, outputs[0], row_splits_of(outputs[0]) // math.prod(feature.shape), out)


def padded_steps(feature: Feature, outputs: Sequence[KeyOutput], rows: int, out: NDArray[Any] | None) -> Block:
    """Assemble the steps of feature lists, padded to the length of the feature."""
    return _padded(feature, outputs[0], row_splits_of(outputs[0]), out)


def _padded(feature: Feature, output: KeyOutput, steps: NDArray[np.int64], out: NDArray[Any] | None) -> Block:
    assert isinstance(feature, FixedLenSequenceFeature)
    counts = np.diff(steps)
    length = feature.item_shape[0]
    longer = np.flatnonzero(counts > length)
    if len(longer):
        row = int(longer[0])
        raise RowError(row, f"holds {plural(counts[row], 'step')}; {feature} accepts at most {length}")
    shape = (len(counts), *feature.item_shape)
    if feature.is_bytes:
        is_step = np.arange(length) < counts[:, None]
        return _padded_bytes(feature, output, np.repeat(is_step.ravel(), math.prod(feature.shape)), shape)
    assert output.values is not None
    array = np.empty(shape, feature.item_dtype) if out is None else out
    # A default of -0.0 is falsy, but differs from 0.
    default = 0 if feature.default_value is None else feature.default_value
    filler = default_array(default, feature.item_dtype, feature.shape).tobytes()
    _native.pad_rows(output.values, np.ascontiguousarray(steps), filler, length, array.reshape(-1).view(np.uint8))
    return array


def _padded_bytes(
    feature: FixedLenSequenceFeature, output: KeyOutput, is_step: NDArray[np.bool_], shape: tuple[int, ...]
) -> BytesBlock:
    values, splits = _bytes_of(output)
    filling = np.frombuffer(feature.default_value or b"", np.uint8)
    sizes = np.full(len(is_step), len(filling), np.int64)
    sizes[is_step] = np.diff(splits)
    ends = splits_of(sizes)
    if output.values is None:
        values = weightless(np.uint8, int(ends[-1]))
    elif len(filling):
        is_value = np.repeat(is_step, sizes)
        spread = np.empty(len(is_value), np.uint8)
        spread[is_value] = values
        spread[~is_value] = np.tile(filling, int((~is_step).sum()))
        values = spread
    return BytesBlock(values, ends, shape)


def lengths(feature: Feature, outputs: Sequence[KeyOutput], rows: int, out: NDArray[Any] | None) -> Block:
    """Count the steps of each row."""
    return _into(np.diff(row_splits_of(outputs[0])), out)


def value_steps(feature: Feature, outputs: Sequence[KeyOutput], rows: int, out: NDArray[Any] | None) -> Block:
    """Count the steps that the values of each row form."""
    return _into(np.diff(row_splits_of(outputs[0])) // math.prod(feature.shape), out)


def _into(values: NDArray[Any], out: NDArray[Any] | None) -> NDArray[Any]:
    if out is None:
        return values
    out[...] = values
    return out


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
    values, splits = _bytes_of(outputs[0])
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
    values, splits = _bytes_of(outputs[0])
    if feature.own_shapes:
        files = BytesBlock(values, splits, (len(splits) - 1,))
        return _in_rows(image_zeros(feature, files, outputs[0].row_splits), feature, outputs[0], rows)
    zeros = weightless(feature.item_dtype, (len(splits) - 1, *feature.item_shape))
    return RaggedBlock(zeros, row_splits_of(outputs[0]))


def sorted_indices(feature: Feature, outputs: Sequence[KeyOutput]) -> Sequence[KeyOutput]:
    """Return two outputs of a sparse feature: its indices, checked and ascending, and its values."""
    assert isinstance(feature, SparseFeature)
    *axes, values = outputs
    splits = row_splits_of(values)
    for key, axis in zip(feature.index_key, axes, strict=True):
        differing = np.flatnonzero(np.diff(row_splits_of(axis)) != np.diff(splits))
        if len(differing):
            row = int(differing[0])
            found, expected = (int(np.diff(row_splits_of(output))[row]) for output in (axis, values))
            raise RowError(
                row, f"holds {found} indices in {key!r} for {plural(expected, 'value')} in {feature.value_key!r}"
            )
    indices = np.stack([np.asarray(flat_values(axis, np.dtype(np.int64))) for axis in axes], axis=1)
    outside = np.flatnonzero(((indices < 0) | (indices >= np.array(feature.size))).any(axis=1))
    if len(outside):
        row = int(np.searchsorted(splits, outside[0], side="right")) - 1
        raise RowError(row, f"holds an index {tuple(indices[outside[0]].tolist())} outside of size {feature.size}")
    if not feature.already_sorted:
        order = np.empty(len(indices), np.int64)
        _native.sort_rows(indices.reshape(-1), indices.shape[1], splits, order)
        indices = indices[order]
        values = _reordered(values, order, feature.item_dtype)
    return KeyOutput(indices.reshape(-1).view(np.uint8), None, None, splits, None), values


def _reordered(output: KeyOutput, order: NDArray[np.int64], dtype: np.dtype[Any]) -> KeyOutput:
    """Return the values of an output in another order."""
    if output.values is None:
        ends = None if output.value_splits is None else splits_of(np.diff(output.value_splits)[order])
        return output._replace(value_splits=ends)
    flat = take_rows(flat_values(output, dtype), order)
    if isinstance(flat, BytesBlock):
        return output._replace(values=flat.values, value_splits=flat.splits)
    return output._replace(values=np.asarray(flat).view(np.uint8))


def sparse_indices(feature: Feature, outputs: Sequence[KeyOutput], rows: int, out: NDArray[Any] | None) -> Block:
    """Assemble the indices of sparse values, one row of axes per value."""
    indices, _ = outputs
    return RaggedBlock(flat_values(indices, np.dtype(np.int64), (len(feature.shape),)), row_splits_of(indices))


def sparse_values(feature: Feature, outputs: Sequence[KeyOutput], rows: int, out: NDArray[Any] | None) -> Block:
    """Assemble sparse values in the order of their indices."""
    _, values = outputs
    return RaggedBlock(flat_values(values, feature.item_dtype), row_splits_of(values))


def sparse_shape(feature: Feature, outputs: Sequence[KeyOutput], rows: int, out: NDArray[Any] | None) -> Block:
    """Repeat the lengths of the axes for every row."""
    return _into(np.tile(np.array(feature.shape, np.int64), (rows, 1)), out)
