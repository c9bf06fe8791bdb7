"""Keys that the native decoder extracts, and the assembly of blocks from its outputs, one function per kind of column.

Each function takes the feature of the schema, the outputs of its keys for all rows, the number of rows, and, for a
dense column, an optional array to write to. It processes flat arrays of all rows at once, and reports an invalid row as
a `RowError`. If values were only counted, zeros that share the memory of one replace them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord._native import Cast, DataType, Kind, Message, ValueLayout
from dask_tfrecord.columns.blocks import (
    Block,
    BytesBlock,
    RaggedBlock,
    RowError,
    place,
    splits_of,
    take_rows,
    weightless,
)
from dask_tfrecord.errors import plural
from dask_tfrecord.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RawFeature,
    SparseFeature,
    TensorFeature,
    TextFeature,
    default_array,
)
from dask_tfrecord.features.base import stored_kind

_CASTS = {member.name.lower(): member for member in Cast if member is not Cast.NONE}
MESSAGES = {
    "Example": Message.EXAMPLE,
    "SequenceExample": Message.SEQUENCE_EXAMPLE,
    "ExampleListWithContext": Message.EXAMPLE_LIST,
}
KINDS = {"bytes": Kind.BYTES, "float32": Kind.FLOATS, "int64": Kind.INT64}


class KeyOutput(NamedTuple):
    """Decoded values of one key in all records."""

    values: NDArray[np.uint8] | None  # None if they are in an output buffer of the caller, or were only counted
    value_splits: NDArray[np.int64] | None  # of bytes values
    step_splits: NDArray[np.int64] | None  # of values by steps of a ragged feature list, or by items
    row_splits: NDArray[np.int64] | None  # of values, or of steps, by record
    shapes: NDArray[np.int64] | None  # of tensors, flattened
    each: int = 1  # numbers in each step, if their number is fixed

    @classmethod
    def from_native(cls, output: _native.ColumnOutput, spec: KeySpec) -> KeyOutput:
        """Copy the references to the arrays of a native output."""
        each = spec.count if spec.steps and spec.layout == ValueLayout.FIXED and output.value_splits is None else 1
        return cls(output.values, output.value_splits, output.step_splits, output.row_splits, output.shapes, each)

    @property
    def total(self) -> int:
        """Number of values of all records; for bytes values their total size."""
        ends = next(ends for ends in (self.value_splits, self.step_splits, self.row_splits) if ends is not None)
        return int(ends[-1]) * self.each


@dataclass(frozen=True, slots=True)
class KeySpec:
    """Kind and layout of the values of one key of a record, or of one feature list or key of items."""

    key: str
    dtype: str  # of the values after casting; "bytes" for everything that is stored as bytes
    layout: ValueLayout
    # Fixed: values per record or step; ragged: divisor of their number; raw: bytes; located: floats, or bytes.
    count: int = 1
    swap: int = 1  # raw: bytes per item whose order is reversed
    text: bool = False  # values are UTF-8
    boolean: bool = False  # raw bytes are 0 or 1
    steps: bool = False  # a feature list, or a key of items
    optional: bool = False  # a record may lack the feature list, or, if the shape is empty, the feature
    counted: bool = False  # values are validated, but only splits and shapes are kept
    fallback: tuple[bytes, ...] = ()  # stored values of a record or item without values
    tensor: tuple[str, tuple[int, ...]] | None = None  # dtype and shape, -1 for an open size

    @property
    def kind(self) -> Kind:
        """List of a Feature message that holds the values."""
        return KINDS[stored_kind(self.dtype)]

    def to_native(self) -> _native.ColumnSpec:
        """Return the specification that the native decoder takes."""
        tensor: dict[str, Any] = {}
        if self.tensor is not None:
            dtype, shape = self.tensor
            item_dtype = TensorFeature((), dtype).item_dtype
            tensor = {
                "tensor_dtype": DataType[dtype.upper()],
                "tensor_item": 0 if dtype == "bytes" else item_dtype.itemsize,
                "tensor_shape": shape,
            }
        return _native.ColumnSpec(
            self.key.encode(),
            self.kind,
            self.layout,
            count=self.count,
            swap=self.swap,
            text=self.text,
            boolean=self.boolean,
            list=self.steps,
            optional=self.optional,
            counted=self.counted,
            cast=_CASTS.get(self.dtype, Cast.NONE),
            fallback=self.fallback,
            **tensor,
        )


def unset_column(key: str, steps: bool) -> _native.ColumnSpec:
    """Return the specification of a key, of items if `steps`, that must not hold values."""
    return _native.ColumnSpec(key.encode(), Kind.NONE, ValueLayout.UNSET, list=steps)


def fixed_spec(key: str, feature: FixedLenFeature) -> KeySpec:
    """Return the spec of a feature with a fixed number of values."""
    count = math.prod(feature.shape)
    if feature.default_value is None:
        return KeySpec(key, feature.dtype, ValueLayout.FIXED, count)
    values = default_array(feature.default_value, feature.item_dtype, feature.shape)
    fallback = tuple(values.ravel().tolist()) if feature.is_bytes else (values.tobytes(),)
    return KeySpec(key, feature.dtype, ValueLayout.FIXED, count, optional=True, fallback=fallback)


def values_spec(key: str, count: int, *, text: bool = False) -> KeySpec:
    """Return the spec of `count` bytes values in every record, -1 for any number."""
    if count < 0:
        return KeySpec(key, "bytes", ValueLayout.RAGGED, text=text)
    return KeySpec(key, "bytes", ValueLayout.FIXED, count, text=text)


def bytes_spec(key: str, feature: TextFeature | None = None, *, steps: bool = False) -> KeySpec:
    """Return the spec of one bytes value in every record or step; text if a feature is given."""
    default = None if feature is None else feature.default_value
    fallback = () if default is None else (default.encode(),)
    text = feature is not None
    return KeySpec(key, "bytes", ValueLayout.FIXED, text=text, steps=steps, optional=steps, fallback=fallback)


def ragged_spec(key: str, dtype: str, each: int = 1, *, steps: bool = False) -> KeySpec:
    """Return the spec of a variable number of values in every record or step, a multiple of `each`."""
    return KeySpec(key, dtype, ValueLayout.RAGGED, each, steps=steps, optional=steps)


def steps_spec(key: str, dtype: str, each: int, *, optional: bool) -> KeySpec:
    """Return the spec of a feature list whose steps have `each` values."""
    return KeySpec(key, dtype, ValueLayout.FIXED, each, steps=True, optional=optional)


def raw_spec(key: str, feature: RawFeature) -> KeySpec:
    """Return the spec of one bytes value of a known size."""
    dtype = feature.stored_dtype
    swap = 1 if dtype.isnative else dtype.itemsize // (2 if dtype.kind == "c" else 1)
    return KeySpec(key, "bytes", ValueLayout.RAW, feature.nbytes, swap, boolean=dtype.kind == "b")


def located_spec(key: str, feature: FixedLenFeature | RawFeature) -> KeySpec:
    """Return the spec of the stream offset of a known number of floats, or of one bytes value of a known size."""
    if isinstance(feature, RawFeature):
        return KeySpec(key, "bytes", ValueLayout.LOCATED, feature.nbytes, boolean=feature.stored_dtype.kind == "b")
    return KeySpec(key, feature.dtype, ValueLayout.LOCATED, math.prod(feature.shape))


def tensor_spec(key: str, feature: TensorFeature) -> KeySpec:
    """Return the spec of one serialized tensor."""
    return KeySpec(key, "bytes", ValueLayout.TENSOR, tensor=(feature.dtype, feature.shape))


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
        row = place(splits, int(outside[0]))[0]
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
