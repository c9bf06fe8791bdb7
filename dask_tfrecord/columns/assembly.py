"""Assembly of blocks from the outputs of the native decoder."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.blocks import (
    Block,
    BytesBlock,
    MemoryLimit,
    RaggedBlock,
    RowError,
    first_true,
    place,
    splits_of,
    weightless,
)
from dask_tfrecord.errors import plural
from dask_tfrecord.features import Feature, FixedLenFeature, FixedLenSequenceFeature, SparseFeature, default_array
from dask_tfrecord.features.keys import Assemble, Decoded, KeyOutput


@dataclass(frozen=True, slots=True)
class ColumnDecoder:
    """Keys of one column, and the assembly of its blocks."""

    feature: Feature  # dtype and shape of the blocks
    source: str  # name of the schema's feature that the column belongs to
    parsed: Feature  # the schema's feature
    specs: tuple[Any, ...]  # of type KeySpec, or FieldSpec
    assembler: Assemble | None  # None if the decoder writes the only key directly into an array
    # Processes the outputs before `assembler`, once for all columns of a feature.
    prepare: Callable[[Any, Sequence[KeyOutput], MemoryLimit | None], Sequence[KeyOutput]] | None = None
    unit: str = "value"  # what a row consists of, for errors: "value", "step" or "item"
    classes: tuple[str, ...] = ()  # names of the values of an enum
    groups: tuple[str, ...] = ()  # of the columns that share its rows at each level, the outermost first

    @property
    def keeps_values(self) -> bool:
        """The flat values of its blocks are the unchanged output of the decoder."""
        whole = self.assembler in (ragged, fixed_bytes) and self.prepare is None
        return whole and not any(spec.counted for spec in self.specs)


def fixed_bytes(feature: Feature, decoded: Decoded) -> Block:
    """Assemble rows with a fixed number of bytes values."""
    return decoded.keys[0].encoded().reshape((decoded.rows, *feature.item_shape))


def numbers(feature: Feature, decoded: Decoded) -> Block:
    """Assemble rows with one number each, which other columns share."""
    return decoded.into(decoded.keys[0].flat(feature.item_dtype))


def ragged(feature: Feature, decoded: Decoded) -> Block:
    """Assemble rows of values, of steps of values, or of items with a fixed number of values."""
    (output,) = decoded.keys
    each = 1 if isinstance(feature, FixedLenFeature) else math.prod(feature.item_shape)
    values = output.flat(feature.item_dtype, feature.item_shape)
    rows, steps = output.record_splits, output.step_splits
    if steps is None:
        return RaggedBlock(values, rows // each if each > 1 else rows)
    return RaggedBlock(RaggedBlock(values, steps // each if each > 1 else steps), rows)


def _step_splits(feature: Feature, output: KeyOutput) -> NDArray[np.int64]:
    """Return the offsets between records, in steps: those of a feature list, or those that the values form."""
    return output.record_splits if output.spec.steps else output.record_splits // math.prod(feature.shape)


def lengths(feature: Feature, decoded: Decoded) -> Block:
    """Count the steps of each row."""
    return decoded.into(np.diff(_step_splits(feature, decoded.keys[0])))


def padded(feature: FixedLenSequenceFeature, decoded: Decoded) -> Block:
    """Assemble steps, padded to the length of the feature."""
    output = decoded.keys[0]
    steps = _step_splits(feature, output)
    counts = np.diff(steps)
    length = feature.item_shape[0]
    if (row := first_true(counts > length)) is not None:
        raise RowError(row, f"holds {plural(counts[row], 'step')}; {feature} accepts at most {length}")
    if feature.is_bytes:
        is_step = np.repeat((np.arange(length) < counts[:, None]).ravel(), math.prod(feature.shape))
        return _padded_bytes(feature, output, is_step, (len(counts), *feature.item_shape))
    # A default of -0.0 is falsy, but differs from 0.
    default = 0 if feature.default_value is None else feature.default_value
    filler = default_array(default, feature.item_dtype, feature.shape)
    return RaggedBlock(output.flat(feature.item_dtype, feature.shape), steps).padded(length, filler, decoded.out)


def _padded_bytes(
    feature: FixedLenSequenceFeature, output: KeyOutput, is_step: NDArray[np.bool_], shape: tuple[int, ...]
) -> BytesBlock:
    given = output.encoded()
    filling = np.frombuffer(feature.default_value or b"", np.uint8)
    sizes = np.full(len(is_step), len(filling), np.int64)
    sizes[is_step] = np.diff(given.splits)
    ends = splits_of(sizes)
    values = given.values
    if output.values is None:
        values = weightless(np.uint8, int(ends[-1]))
    elif len(filling):
        is_value = np.repeat(is_step, sizes)
        values = np.empty(len(is_value), np.uint8)
        values[is_value] = given.values
        values[~is_value] = np.tile(filling, int((~is_step).sum()))
    return BytesBlock(values, ends, shape)


def sorted_indices(
    feature: SparseFeature, outputs: Sequence[KeyOutput], limit: MemoryLimit | None
) -> Sequence[KeyOutput]:
    """Return two outputs of a sparse feature: its indices, checked and ascending, and its values."""
    *axes, values = outputs
    splits = values.record_splits
    for key, axis in zip(feature.index_key, axes, strict=True):
        found, expected = np.diff(axis.record_splits), np.diff(splits)
        if (row := first_true(found != expected)) is not None:
            raise RowError(
                row,
                f"holds {found[row]} indices in {key!r} for {plural(expected[row], 'value')} in {feature.value_key!r}",
            )
    columns = [axis.flat(np.dtype(np.int64)) for axis in axes]
    indices = np.stack(columns, axis=1) if len(columns) > 1 else columns[0][:, None]
    check_indices(feature, indices, splits)
    if not feature.already_sorted:
        flat, order = indices.reshape(-1), np.empty(len(indices), np.int64)
        arrays = [flat.view(np.uint8)]
        if values.values is not None and values.value_splits is None:
            arrays.append(values.values)
        out = [np.empty_like(array) for array in arrays]
        _native.sort_rows(flat, indices.shape[1], splits, order, arrays, out)
        values = values._replace(values=out[1]) if len(out) > 1 else _reordered(values, order)
        return axes[0]._replace(values=out[0]), values
    return axes[0]._replace(values=indices.reshape(-1).view(np.uint8)), values


def check_indices(feature: SparseFeature, indices: NDArray[np.int64], row_splits: NDArray[np.int64]) -> None:
    """Refuse indices outside of the size of the feature."""
    outside = ((indices < 0) | (indices >= np.array(feature.size))).any(axis=1)
    if (number := first_true(outside)) is not None:
        index = tuple(indices[number].tolist())
        raise RowError(place(row_splits, number)[0], f"holds an index {index} outside of size {feature.size}")


def _reordered(output: KeyOutput, order: NDArray[np.int64]) -> KeyOutput:
    """Return the byte strings of an output, or what was counted of the values, in another order."""
    if output.values is None:
        ends = None if output.value_splits is None else splits_of(np.diff(output.value_splits)[order])
        return output._replace(value_splits=ends)
    strings = output.encoded().take(order)
    return output._replace(values=strings.values, value_splits=strings.splits)


def sparse_indices(feature: SparseFeature, decoded: Decoded) -> Block:
    """Assemble the indices of sparse values, one row of axes per value."""
    indices, _ = decoded.keys
    return RaggedBlock(indices.flat(np.dtype(np.int64), (len(feature.shape),)), indices.record_splits)


def sparse_values(feature: SparseFeature, decoded: Decoded) -> Block:
    """Assemble sparse values in the order of their indices."""
    _, values = decoded.keys
    return RaggedBlock(values.flat(feature.item_dtype), values.record_splits)


def sparse_shape(feature: SparseFeature, decoded: Decoded) -> Block:
    """Repeat the lengths of the axes for every row."""
    return decoded.into(np.tile(np.array(feature.shape, np.int64), (decoded.rows, 1)))
