"""Assemble blocks from the outputs of the native decoder, with one function per kind of column.

Each function is called with the feature of the schema, the outputs of its keys for all rows, the number of rows, and,
for a dense column, an optional array to write to. It processes flat arrays of all rows at once, and reports an invalid
row as a `RowError`. If values were only counted, zeros that share the memory of one replace them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.columns.blocks import (
    Block,
    BytesBlock,
    RaggedBlock,
    RowError,
    splits_of,
    take_rows,
    weightless,
)
from dask_tfrecord.columns.native_spec import KeyOutput
from dask_tfrecord.errors import plural
from dask_tfrecord.features import (
    Feature,
    FixedLenSequenceFeature,
    SparseFeature,
    default_array,
)

__all__ = [
    "Assemble",
    "Prepare",
    "bytes_of",
    "fixed_bytes",
    "flat_values",
    "into",
    "items",
    "lengths",
    "padded_steps",
    "padded_values",
    "ragged",
    "row_splits_of",
    "sorted_indices",
    "sparse_indices",
    "sparse_shape",
    "sparse_values",
    "value_steps",
]

Assemble = Callable[[Feature, Sequence[KeyOutput], int, NDArray[Any] | None], Block]
# Processes the outputs of a feature once for all of its columns.
Prepare = Callable[[Feature, Sequence[KeyOutput]], Sequence[KeyOutput]]


def flat_values(output: KeyOutput, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> NDArray[Any] | BytesBlock:
    """Return the values of an output, each of shape `shape`."""
    numbers: Any
    if output.value_splits is not None:
        values, splits = bytes_of(output)
        return BytesBlock(values, splits, ((len(splits) - 1) // math.prod(shape), *shape))
    numbers = weightless(dtype, output.total) if output.values is None else output.values.view(dtype)
    shaped: NDArray[Any] = numbers.reshape(-1, *shape)
    return shaped


def bytes_of(output: KeyOutput) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the bytes and the splits of the bytes values of an output."""
    assert output.value_splits is not None
    values = weightless(np.uint8, output.total) if output.values is None else output.values
    return values, output.value_splits


def row_splits_of(output: KeyOutput) -> NDArray[np.int64]:
    """Return the offsets between records."""
    assert output.row_splits is not None
    return output.row_splits


def fixed_bytes(feature: Feature, outputs: Sequence[KeyOutput], rows: int, out: NDArray[Any] | None) -> Block:
    """Assemble rows with a fixed number of bytes values."""
    return BytesBlock(*bytes_of(outputs[0]), (rows, *feature.item_shape))


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
    values, splits = bytes_of(output)
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
    return into(np.diff(row_splits_of(outputs[0])), out)


def value_steps(feature: Feature, outputs: Sequence[KeyOutput], rows: int, out: NDArray[Any] | None) -> Block:
    """Count the steps that the values of each row form."""
    return into(np.diff(row_splits_of(outputs[0])) // math.prod(feature.shape), out)


def into(values: NDArray[Any], out: NDArray[Any] | None) -> NDArray[Any]:
    """Return values, copied to an output array if there is one."""
    if out is None:
        return values
    out[...] = values
    return out


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
    return into(np.tile(np.array(feature.shape, np.int64), (rows, 1)), out)
