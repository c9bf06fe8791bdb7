"""Casts of numbers, and values of keys from blocks, one function per kind of column: the inverse of `assemble`.

All rows are processed at once, as flat arrays. An invalid row raises a `RowError`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.columns.assemble import KINDS
from dask_tfrecord.columns.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock, RowError, place, splits_of
from dask_tfrecord.columns.encoded_values import tensor_head, tensors
from dask_tfrecord.errors import plural
from dask_tfrecord.features import (
    FixedLenSequenceFeature,
    KeyedPartition,
    RaggedFeature,
    RawFeature,
    RowLengths,
    RowLimits,
    RowSplits,
    RowStarts,
    SparseFeature,
    TensorFeature,
    ValueRowIds,
)
from dask_tfrecord.features.base import stored_kind
from dask_tfrecord.features.encoded import COMPRESSION_WBITS


def castable(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Return whether a dtype may be cast to another: integers to floats, but never floats to integers."""
    order = {"integer": 0, "float": 1, "complex": 2}
    kinds = _kind(given), _kind(wanted)
    return given == wanted or (all(kind in order for kind in kinds) and order[kinds[0]] <= order[kinds[1]])


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype.kind in "biu":
        return "integer"
    if dtype.kind == "f" or dtype.name == "bfloat16":
        return "float"
    return "complex" if dtype.kind == "c" else dtype.kind


def cast(block: Block, dtype: np.dtype[Any]) -> Block:
    """Cast the numbers of a block to another dtype."""
    if isinstance(block, RaggedBlock):
        return RaggedBlock(_within(block.values, block.row_splits, dtype), block.row_splits)
    if isinstance(block, ArraysBlock):
        return ArraysBlock(_within(block.values, block.row_splits, dtype), block.row_splits, block.shapes)
    if isinstance(block, BytesBlock) or block.dtype == dtype:
        return block
    with np.errstate(all="ignore"):
        result = block.astype(dtype)
    _refuse(block, _misfits(block, result), f"which does not fit {dtype}")
    return result


def _within(values: Any, row_splits: NDArray[np.int64], dtype: np.dtype[Any]) -> Any:
    try:
        return cast(values, dtype)
    except RowError as error:
        raise RowError(place(row_splits, error.row)[0], error.message) from None


def _misfits(given: NDArray[Any], result: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the values that the cast changed, other than by rounding floats."""
    if _kind(given.dtype) != "integer":
        lost: NDArray[np.bool_] = np.isfinite(given) & ~np.isfinite(result)
        return lost
    if _kind(result.dtype) == "integer":
        # An 8-byte integer that changes its sign keeps its bits, so that casting it back hides the change.
        other: NDArray[np.bool_] = (result.astype(given.dtype) != given) | ((result < 0) != (given < 0))
        return other
    largest = _largest_exact_integer(result.dtype)
    out: NDArray[np.bool_] = (given > largest) | (given < -largest) if given.dtype.kind == "i" else given > largest
    return out if largest < np.iinfo(given.dtype if given.dtype.kind != "b" else np.uint8).max else np.zeros_like(out)


def _largest_exact_integer(dtype: np.dtype[Any]) -> int:
    """Return the bound up to which a float represents every integer."""
    bits = {"bfloat16": 8, "float16": 11, "float32": 24, "complex64": 24}.get(dtype.name, 53)
    return 1 << bits


def _refuse(values: NDArray[Any], bad: NDArray[np.bool_], why: str) -> None:
    if bad.any():
        position = int(np.flatnonzero(bad.ravel())[0])
        raise RowError(position // max(1, math.prod(values.shape[1:])), f"holds {values.ravel()[position]}, {why}")


def listed(values: NDArray[Any]) -> NDArray[Any]:
    """Return numbers as an Example lists them: int64 or float32, flat and contiguous."""
    kind = np.dtype(stored_kind(values.dtype.name))
    with np.errstate(all="ignore"):
        result = np.ascontiguousarray(values, kind).reshape(-1)
    if values.dtype == np.uint64:
        _refuse(values, result.reshape(values.shape) < 0, "which exceeds int64, the integers of an Example")
    if values.dtype == np.float64:
        back = result.reshape(values.shape).astype(np.float64)
        other = (back != values) & ~(np.isnan(back) & np.isnan(values))
        _refuse(values, other, "which float32, the floats of an Example, cannot represent: round it to float32 first")
    return result


def to_bytes(block: Block) -> Block:
    """Encode strings to UTF-8, at any level of rows; return bytes unchanged."""
    if isinstance(block, RaggedBlock):
        values: Any = to_bytes(block.values)
        return RaggedBlock(values, block.row_splits)
    if not isinstance(block, np.ndarray):
        return block
    items = [item.encode() for item in block.ravel().tolist()]
    splits = splits_of(np.array([len(item) for item in items], np.int64))
    return BytesBlock(np.frombuffer(b"".join(items), np.uint8), splits, block.shape)


_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class KeyedValues:
    """Values of one key, or of one feature list, in all records."""

    key: str
    values: NDArray[Any]  # flat: int64, float32, or the uint8 of all bytes values
    count: int = 1  # values per row, or per step, if the splits are None
    row_splits: _Ints | None = None  # in values or steps
    value_splits: _Ints | None = None  # of bytes values
    step_splits: _Ints | None = None  # in values
    steps: bool = False  # the key is a feature list
    prefix: bytes = b""  # written before each bytes value

    def field(self) -> _native.Field:
        """Return the specification for the native encoder."""
        kind = KINDS["bytes" if self.value_splits is not None else self.values.dtype.name]
        return _native.Field(
            self.key.encode(),
            kind,
            self.values.view(np.uint8),
            list=self.steps,
            count=self.count,
            prefix=self.prefix,
            value_splits=self.value_splits,
            step_splits=self.step_splits,
            row_splits=self.row_splits,
        )

    def same(self, other: KeyedValues) -> bool:
        """Return whether another column has the same values for the key."""
        own, others = ((of.count, of.steps, of.prefix, of.values.tobytes()) for of in (self, other))
        pairs = ("row_splits", "value_splits", "step_splits")
        return own == others and all(_equal(getattr(self, name), getattr(other, name)) for name in pairs)


def _equal(one: _Ints | None, other: _Ints | None) -> bool:
    return one is other if one is None or other is None else np.array_equal(one, other)


def _flat(key: str, values: NDArray[Any] | BytesBlock) -> KeyedValues:
    """Return all values of a key, concatenated."""
    if isinstance(values, BytesBlock):
        return KeyedValues(key, np.ascontiguousarray(values.values), value_splits=np.ascontiguousarray(values.splits))
    return KeyedValues(key, listed(values))


def _rows_of(key: str, block: RaggedBlock) -> KeyedValues:
    """Return values in one level of rows."""
    try:
        flat = _flat(key, block.flat_values)
    except RowError as error:
        raise RowError(place(block.row_splits, error.row)[0], error.message) from None
    inner = math.prod(block.flat_values.shape[1:])
    return replace(flat, row_splits=block.row_splits * inner if inner != 1 else np.ascontiguousarray(block.row_splits))


def fixed(key: str, block: Block) -> KeyedValues:
    """Disassemble rows of a fixed number of values."""
    assert isinstance(block, np.ndarray | BytesBlock)
    return replace(_flat(key, block), count=math.prod(block.shape[1:]))


def flatten_ragged(key: str, block: Block) -> KeyedValues:
    """Disassemble rows of values."""
    assert isinstance(block, RaggedBlock)
    return _rows_of(key, block)


def in_steps(block: Block, of_steps: Callable[[Any], Sequence[KeyedValues]]) -> list[KeyedValues]:
    """Disassemble rows of steps; `of_steps` disassembles the steps as if they were rows."""
    assert isinstance(block, RaggedBlock)
    try:
        inside = of_steps(block.values)
    except RowError as error:
        row, step = place(block.row_splits, error.row)
        raise RowError(row, error.message, step) from None
    splits = np.ascontiguousarray(block.row_splits)
    return [replace(keyed, steps=True, step_splits=keyed.row_splits, row_splits=splits) for keyed in inside]


def in_rows(block: Block, count: int, of_values: Callable[[Any], Sequence[KeyedValues]]) -> list[KeyedValues]:
    """Disassemble rows of `count` bytes values, -1 for any number; `of_values` treats each value as a row."""
    assert isinstance(block, RaggedBlock)
    try:
        inside = of_values(block.values)
    except RowError as error:
        row, value = place(block.row_splits, error.row)
        raise RowError(row, f"{error.message}, in value {value}") from None
    if count >= 0:
        return [replace(keyed, count=count) for keyed in inside]
    splits = np.ascontiguousarray(block.row_splits)
    return [replace(keyed, row_splits=splits) for keyed in inside]


def padded(feature: FixedLenSequenceFeature, block: Block, lengths: Block | None) -> RaggedBlock:
    """Return rows of steps without padding; all steps if `lengths` is None."""
    if isinstance(block, RaggedBlock):
        check_lengths(np.diff(block.row_splits), lengths)
        return block
    assert isinstance(block, np.ndarray | BytesBlock)
    rows, most = block.shape[:2]
    if lengths is None:
        splits = np.arange(rows + 1, dtype=np.int64) * most
        return RaggedBlock(_steps(block, feature), splits)
    counts = np.asarray(lengths).astype(np.int64)
    wrong = np.flatnonzero((counts < 0) | (counts > most))
    if len(wrong):
        row = int(wrong[0])
        raise RowError(row, f"holds {plural(most, 'step')}, including padding; its lengths column has {counts[row]}")
    there = (np.arange(most) < counts[:, None]).ravel()
    steps = _steps(block, feature)
    kept: Any = steps[there] if isinstance(steps, np.ndarray) else steps.take(np.flatnonzero(there))
    return RaggedBlock(kept, splits_of(counts))


def _steps(block: NDArray[Any] | BytesBlock, feature: FixedLenSequenceFeature) -> NDArray[Any] | BytesBlock:
    shape = (block.shape[0] * block.shape[1], *feature.shape)
    return block.reshape(shape) if isinstance(block, np.ndarray) else BytesBlock(block.values, block.splits, shape)


def check_lengths(counts: _Ints, lengths: Block | None) -> None:
    """Refuse lengths that differ from those of the rows."""
    if lengths is not None and len(wrong := np.flatnonzero(counts != np.asarray(lengths))):
        row = int(wrong[0])
        raise RowError(row, f"holds {plural(counts[row], 'step')}; its lengths column has {np.asarray(lengths)[row]}")


def raw(key: str, feature: RawFeature, block: Block) -> KeyedValues:
    """Disassemble arrays into one bytes value each, in the byte order of the file."""
    rows: Any = block.values if isinstance(block, RaggedBlock | ArraysBlock) else block
    values = np.ascontiguousarray(rows, feature.stored_dtype).reshape(-1).view(np.uint8)
    if isinstance(block, ArraysBlock):
        splits = block.row_splits * feature.stored_dtype.itemsize
    else:
        ends = block.row_splits if isinstance(block, RaggedBlock) else np.arange(len(block) + 1, dtype=np.int64)
        splits = ends * feature.nbytes
    if feature.compression_type is None:
        return KeyedValues(key, values, value_splits=splits)
    deflated = []
    for start, stop in pairwise(splits.tolist()):
        deflate = zlib.compressobj(wbits=COMPRESSION_WBITS[feature.compression_type])
        deflated.append(deflate.compress(values[start:stop].tobytes()) + deflate.flush())
    sizes = np.array([len(value) for value in deflated], np.int64)
    return KeyedValues(key, np.frombuffer(b"".join(deflated), np.uint8), value_splits=splits_of(sizes))


def tensor(key: str, feature: TensorFeature, block: Block) -> KeyedValues:
    """Disassemble arrays into serialized tensors."""
    if isinstance(block, np.ndarray):
        # Tensors of one shape share their head.
        values = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
        nbytes = math.prod(block.shape[1:]) * block.dtype.itemsize
        head = tensor_head(feature.dtype, block.shape[1:], nbytes)
        return KeyedValues(key, values, value_splits=np.arange(len(block) + 1, dtype=np.int64) * nbytes, prefix=head)
    assert isinstance(block, ArraysBlock | BytesBlock)
    return _flat(key, tensors(feature.dtype, block))


def sparse(name: str, feature: SparseFeature, blocks: Mapping[str, Block]) -> list[KeyedValues]:
    """Disassemble a sparse feature into its values, and their indices along each axis."""
    indices, values = blocks[f"{name}.indices"], blocks[f"{name}.values"]
    assert isinstance(indices, RaggedBlock) and isinstance(values, RaggedBlock)
    if len(wrong := np.flatnonzero(np.diff(indices.row_splits) != np.diff(values.row_splits))):
        raise RowError(
            int(wrong[0]),
            f"holds {np.diff(indices.row_splits)[wrong[0]]} indices for {np.diff(values.row_splits)[wrong[0]]} values",
        )
    coordinates: Any = np.asarray(indices.values)
    size = np.array(feature.size)
    if len(wrong := np.flatnonzero(((coordinates < 0) | (coordinates >= size)).any(axis=1))):
        row = place(indices.row_splits, int(wrong[0]))[0]
        raise RowError(row, f"holds an index {tuple(coordinates[wrong[0]].tolist())} outside of size {feature.size}")
    shape = blocks.get(f"{name}.shape")
    if shape is not None and len(wrong := np.flatnonzero((np.asarray(shape) != size).any(axis=1))):
        found = tuple(np.asarray(shape)[wrong[0]].tolist())
        raise RowError(int(wrong[0]), f"has shape {found}; expected {feature.size}, the size of the feature")
    axes = [
        flatten_ragged(key, RaggedBlock(np.ascontiguousarray(coordinates[:, axis]), indices.row_splits))
        for axis, key in enumerate(feature.index_key)
    ]
    return [*axes, flatten_ragged(feature.value_key, values)]


def flatten_partitioned(
    name: str, feature: RaggedFeature, block: Block, of_values: Callable[[Any], Sequence[KeyedValues]] | None = None
) -> list[KeyedValues]:
    """Disassemble nested rows into their values and the entries of each partition.

    `of_values` encodes arrays as bytes values, one per row.
    """
    # `ends`: offsets between groups (records, or steps), in items of the current level.
    assert isinstance(block, RaggedBlock)
    result: list[KeyedValues] = []
    ends, inside = block.row_splits, block.values
    for partition in feature.partitions[: feature.ragged_rank - 1]:
        assert isinstance(inside, RaggedBlock)
        splits = inside.row_splits
        if isinstance(partition, KeyedPartition):
            entries, offsets = _ENTRIES[type(partition)](splits, ends)
            result.append(KeyedValues(partition.key, entries, row_splits=offsets))
        elif len(other := np.flatnonzero(np.diff(splits) != partition.length)):  # type: ignore[attr-defined]
            row = place(ends, int(other[0]))[0]
            raise RowError(
                row, f"holds a row of {np.diff(splits)[other[0]]} items, which {partition!r} cannot represent"
            )
        ends, inside = splits[ends], inside.values
    key, ends = name if feature.value_key is None else feature.value_key, np.ascontiguousarray(ends)
    if of_values is None:
        return [_rows_of(key, RaggedBlock(inside, ends)), *result]
    each = math.prod(feature.uniform_sizes)
    (values,) = in_rows(RaggedBlock(_merged_rows(inside, len(feature.uniform_sizes)), ends * each), -1, of_values)
    return [replace(values, key=key), *result]


def _merged_rows(block: Any, axes: int) -> Any:
    """Return the rows of a block whose first `axes` axes after that of rows are merged with it."""
    shape = (math.prod(block.shape[: axes + 1]), *block.shape[axes + 1 :])
    return block.reshape(shape) if isinstance(block, np.ndarray) else BytesBlock(block.values, block.splits, shape)


# Each function returns the entries of a partition, and the offsets between groups of entries. `splits` are the offsets
# between rows, in items of the next level; `ends` the offsets between groups, in rows.


def _lengths(splits: _Ints, ends: _Ints) -> tuple[_Ints, _Ints]:
    return np.diff(splits), np.ascontiguousarray(ends)


def _base(splits: _Ints, ends: _Ints) -> _Ints:
    """Return for each row the start of its group, in items of the next level."""
    return np.repeat(splits[ends[:-1]], np.diff(ends))


def _limits(splits: _Ints, ends: _Ints) -> tuple[_Ints, _Ints]:
    return splits[1:] - _base(splits, ends), np.ascontiguousarray(ends)


def _starts(splits: _Ints, ends: _Ints) -> tuple[_Ints, _Ints]:
    return splits[:-1] - _base(splits, ends), np.ascontiguousarray(ends)


def _splits(splits: _Ints, ends: _Ints) -> tuple[_Ints, _Ints]:
    # Each group has one entry more than rows.
    groups = len(ends) - 1
    more = np.diff(ends) + 1
    positions = np.arange(int(more.sum())) - np.repeat(np.arange(groups), more)
    return splits[positions] - np.repeat(splits[ends[:-1]], more), ends + np.arange(groups + 1)


def _row_ids(splits: _Ints, ends: _Ints) -> tuple[_Ints, _Ints]:
    lengths, rows = np.diff(splits), np.diff(ends)
    last = np.zeros(len(rows), bool)
    last[rows > 0] = lengths[ends[1:][rows > 0] - 1] == 0
    if last.any():
        raise RowError(int(np.flatnonzero(last)[0]), "ends with an empty row, which ValueRowIds cannot represent")
    numbers = np.arange(len(lengths)) - np.repeat(ends[:-1], rows)
    return np.repeat(numbers, lengths), splits[ends]


_ENTRIES: dict[type[KeyedPartition], Callable[[_Ints, _Ints], tuple[_Ints, _Ints]]] = {
    RowLengths: _lengths,
    RowSplits: _splits,
    RowLimits: _limits,
    RowStarts: _starts,
    ValueRowIds: _row_ids,
}
