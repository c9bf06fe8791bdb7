"""From what the native decoder hands back to blocks: what each kind of column does with its parts.

Each maker is called with the feature as it was asked for, what its parts have of all rows, the number of rows, and an
array to fill where the column is dense and somebody has one. It works on flat arrays of all rows at once; what is wrong
with a row is a `RowError` that has its number. Where the values of a part were counted alone, zeros that take no memory
stand for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.columns.blocks import (
    ArraysBlock,
    Block,
    BytesBlock,
    RaggedBlock,
    splits_of,
    take_rows,
    to_text,
    weightless,
)
from dask_tfrecord.columns.encoded import image_arrays, image_rows, image_zeros
from dask_tfrecord.columns.parts import Taken
from dask_tfrecord.columns.rows import RowError
from dask_tfrecord.features import (
    Feature,
    FixedLenSequenceFeature,
    ImageFeature,
    RawFeature,
    SparseFeature,
    default_array,
)

__all__ = [
    "Make",
    "Prepare",
    "arrays",
    "fixed_bytes",
    "flat_values",
    "image_sizes",
    "images",
    "lengths",
    "padded_steps",
    "padded_values",
    "ragged",
    "raw_rows",
    "row_splits_of",
    "sorted_places",
    "sparse_indices",
    "sparse_shape",
    "sparse_values",
    "text",
    "value_steps",
]

Make = Callable[[Feature, Sequence[Taken], int, NDArray[Any] | None], Block]
# What is done to the parts of a feature once, for all of its columns.
Prepare = Callable[[Feature, Sequence[Taken]], Sequence[Taken]]


def flat_values(part: Taken, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> NDArray[Any] | BytesBlock:
    """Line up the values of a part, each of that shape."""
    numbers: Any
    if part.value_splits is not None:
        values, splits = _bytes_of(part)
        return BytesBlock(values, splits, ((len(splits) - 1) // math.prod(shape), *shape))
    numbers = weightless(dtype, part.total) if part.values is None else part.values.view(dtype)
    shaped: NDArray[Any] = numbers.reshape(-1, *shape)
    return shaped


def _bytes_of(part: Taken) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    assert part.value_splits is not None
    values = weightless(np.uint8, part.total) if part.values is None else part.values
    return values, part.value_splits


def row_splits_of(part: Taken) -> NDArray[np.int64]:
    """Where records end."""
    assert part.row_splits is not None
    return part.row_splits


def fixed_bytes(feature: Feature, taken: Sequence[Taken], rows: int, out: NDArray[Any] | None) -> Block:
    """As many bytes values in each row."""
    return BytesBlock(*_bytes_of(taken[0]), (rows, *feature.item_shape))


def text(feature: Feature, taken: Sequence[Taken], rows: int, out: NDArray[Any] | None) -> Block:
    """Strings."""
    return to_text(BytesBlock(*_bytes_of(taken[0]), (rows,)))


def ragged(feature: Feature, taken: Sequence[Taken], rows: int, out: NDArray[Any] | None) -> Block:
    """Rows of values, or of steps of values."""
    (part,) = taken
    each = math.prod(feature.item_shape)
    values, splits = flat_values(part, feature.item_dtype, feature.item_shape), row_splits_of(part)
    if part.step_splits is None:
        return RaggedBlock(values, splits // each if each > 1 else splits)
    return RaggedBlock(RaggedBlock(values, part.step_splits // each if each > 1 else part.step_splits), splits)


def raw_rows(feature: Feature, taken: Sequence[Taken], rows: int, out: NDArray[Any] | None) -> Block:
    """Bytes of any length as rows of numbers."""
    assert isinstance(feature, RawFeature)
    values, splits = _bytes_of(taken[0])
    odd = np.flatnonzero(np.diff(splits) % feature.nbytes)
    if len(odd):
        row = int(odd[0])
        raise RowError(row, f"holds {np.diff(splits)[row]} bytes where {feature} takes a multiple of {feature.nbytes}")
    ends = splits // feature.nbytes
    if taken[0].values is None:
        return RaggedBlock(weightless(feature.item_dtype, (int(ends[-1]), *feature.item_shape)), ends)
    if feature.stored_dtype.kind == "b" and (wrong := np.flatnonzero(values > 1)).size:
        row = int(np.searchsorted(splits, wrong[0], side="right")) - 1
        raise RowError(row, f"holds a byte {values[wrong[0]]} where {feature} takes 0 and 1")
    numbers = values.view(feature.stored_dtype).astype(feature.item_dtype, copy=False)
    return RaggedBlock(numbers.reshape(-1, *feature.item_shape), ends)


def padded_values(feature: Feature, taken: Sequence[Taken], rows: int, out: NDArray[Any] | None) -> Block:
    """Cut the values of records into steps, and fill up to as many as the longest record has."""
    return _padded(feature, taken[0], row_splits_of(taken[0]) // math.prod(feature.shape), out)


def padded_steps(feature: Feature, taken: Sequence[Taken], rows: int, out: NDArray[Any] | None) -> Block:
    """Fill up the steps of feature lists to as many as the longest record has."""
    return _padded(feature, taken[0], row_splits_of(taken[0]), out)


def _padded(feature: Feature, part: Taken, steps: NDArray[np.int64], out: NDArray[Any] | None) -> Block:
    assert isinstance(feature, FixedLenSequenceFeature)
    counts = np.diff(steps)
    length = feature.item_shape[0]
    longer = np.flatnonzero(counts > length)
    if len(longer):
        row = int(longer[0])
        raise RowError(row, f"holds {counts[row]} steps where {feature} takes {length} at the most")
    shape = (len(counts), *feature.item_shape)
    if feature.is_bytes:
        place = np.arange(length) < counts[:, None]
        return _padded_bytes(feature, part, np.repeat(place.ravel(), math.prod(feature.shape)), shape)
    assert part.values is not None
    array = np.empty(shape, feature.item_dtype) if out is None else out
    # The default may be -0.0, which is false and not 0.
    default = 0 if feature.default_value is None else feature.default_value
    filler = default_array(default, feature.item_dtype, feature.shape).tobytes()
    _native.pad_rows(part.values, np.ascontiguousarray(steps), filler, length, array.reshape(-1).view(np.uint8))
    return array


def _padded_bytes(
    feature: FixedLenSequenceFeature, part: Taken, place: NDArray[np.bool_], shape: tuple[int, ...]
) -> BytesBlock:
    values, splits = _bytes_of(part)
    filling = np.frombuffer(feature.default_value or b"", np.uint8)
    sizes = np.full(len(place), len(filling), np.int64)
    sizes[place] = np.diff(splits)
    ends = splits_of(sizes)
    if part.values is None:
        values = weightless(np.uint8, int(ends[-1]))
    elif len(filling):
        is_value = np.repeat(place, sizes)
        spread = np.empty(len(is_value), np.uint8)
        spread[is_value] = values
        spread[~is_value] = np.tile(filling, int((~place).sum()))
        values = spread
    return BytesBlock(values, ends, shape)


def lengths(feature: Feature, taken: Sequence[Taken], rows: int, out: NDArray[Any] | None) -> Block:
    """How many steps each row has."""
    return _into(np.diff(row_splits_of(taken[0])), out)


def value_steps(feature: Feature, taken: Sequence[Taken], rows: int, out: NDArray[Any] | None) -> Block:
    """How many steps the values of each row make."""
    return _into(np.diff(row_splits_of(taken[0])) // math.prod(feature.shape), out)


def _into(values: NDArray[Any], out: NDArray[Any] | None) -> NDArray[Any]:
    if out is None:
        return values
    out[...] = values
    return out


def arrays(feature: Feature, taken: Sequence[Taken], rows: int, out: NDArray[Any] | None) -> Block:
    """Tensors of any shape."""
    (part,) = taken
    assert part.shapes is not None
    values = flat_values(part, feature.item_dtype)
    return ArraysBlock(values, row_splits_of(part), part.shapes.reshape(rows, feature.own_shapes))


def images(feature: Feature, taken: Sequence[Taken], rows: int, out: NDArray[Any] | None) -> Block:
    """Files decoded: one in each row, or any number."""
    assert isinstance(feature, ImageFeature)
    values, splits = _bytes_of(taken[0])
    files = BytesBlock(values, splits, (len(splits) - 1,))
    if feature.own_shapes:
        return image_arrays(feature, files)
    if not feature.ragged_rank:
        return image_rows(feature, files, np.arange(rows + 1), out)
    ends = row_splits_of(taken[0])
    return RaggedBlock(image_rows(feature, files, ends, None), ends)


def image_sizes(feature: Feature, taken: Sequence[Taken], rows: int, out: NDArray[Any] | None) -> Block:
    """Files of which only the sizes are looked at: the pixels are zeros."""
    assert isinstance(feature, ImageFeature)
    values, splits = _bytes_of(taken[0])
    if feature.own_shapes:
        return image_zeros(feature, BytesBlock(values, splits, (len(splits) - 1,)))
    zeros = weightless(feature.item_dtype, (len(splits) - 1, *feature.item_shape))
    return RaggedBlock(zeros, row_splits_of(taken[0]))


def sorted_places(feature: Feature, taken: Sequence[Taken]) -> Sequence[Taken]:
    """Make two parts of those of a sparse feature: the places, all within the size and ascending, and the values."""
    assert isinstance(feature, SparseFeature)
    *axes, values = taken
    splits = row_splits_of(values)
    for key, axis in zip(feature.index_key, axes, strict=True):
        differing = np.flatnonzero(np.diff(row_splits_of(axis)) != np.diff(splits))
        if len(differing):
            row = int(differing[0])
            found, wanted = (int(np.diff(row_splits_of(part))[row]) for part in (axis, values))
            raise RowError(row, f"holds {found} indices in {key!r} for {wanted} values in {feature.value_key!r}")
    indices = np.stack([np.asarray(flat_values(axis, np.dtype(np.int64))) for axis in axes], axis=1)
    outside = np.flatnonzero(((indices < 0) | (indices >= np.array(feature.size))).any(axis=1))
    if len(outside):
        row = int(np.searchsorted(splits, outside[0], side="right")) - 1
        raise RowError(row, f"holds an index {tuple(indices[outside[0]].tolist())} outside of the size {feature.size}")
    if not feature.already_sorted:
        order = np.empty(len(indices), np.int64)
        _native.sort_rows(indices.reshape(-1), indices.shape[1], splits, order)
        indices = indices[order]
        values = _reordered(values, order, feature.item_dtype)
    return Taken(indices.reshape(-1).view(np.uint8), None, None, splits, None), values


def _reordered(part: Taken, order: NDArray[np.int64], dtype: np.dtype[Any]) -> Taken:
    """Put the values of a part in that order."""
    if part.values is None:
        ends = None if part.value_splits is None else splits_of(np.diff(part.value_splits)[order])
        return part._replace(value_splits=ends)
    flat = take_rows(flat_values(part, dtype), order)
    if isinstance(flat, BytesBlock):
        return part._replace(values=flat.values, value_splits=flat.splits)
    return part._replace(values=np.asarray(flat).view(np.uint8))


def sparse_indices(feature: Feature, taken: Sequence[Taken], rows: int, out: NDArray[Any] | None) -> Block:
    """Lay out the places of sparse values, a row of axes for each."""
    places, _ = taken
    return RaggedBlock(flat_values(places, np.dtype(np.int64), (len(feature.shape),)), row_splits_of(places))


def sparse_values(feature: Feature, taken: Sequence[Taken], rows: int, out: NDArray[Any] | None) -> Block:
    """Sparse values, in the order of their places."""
    _, values = taken
    return RaggedBlock(flat_values(values, feature.item_dtype), row_splits_of(values))


def sparse_shape(feature: Feature, taken: Sequence[Taken], rows: int, out: NDArray[Any] | None) -> Block:
    """Repeat the sizes of the axes for every row."""
    return _into(np.tile(np.array(feature.shape, np.int64), (rows, 1)), out)
