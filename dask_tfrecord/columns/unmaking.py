"""From blocks to what records hold: what each kind of column leaves under its keys, the way back from `making`.

Everything is done for all rows at once, on flat arrays. What is wrong with a row is a `RowError` that has its number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.columns.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock, splits_of
from dask_tfrecord.columns.casting import listed
from dask_tfrecord.columns.parts import KINDS
from dask_tfrecord.columns.rows import RowError
from dask_tfrecord.columns.tensor_writing import tensor_head, tensors
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

__all__ = [
    "Keyed",
    "check_lengths",
    "fixed",
    "in_steps",
    "padded",
    "partitioned",
    "ragged",
    "raw",
    "sparse",
    "tensor",
]

_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Keyed:
    """What one key of the records, or one feature list, holds.

    Attributes
    ----------
    key : str
        The key.
    values : ndarray
        Flat: int64, float32, or the uint8 of all bytes values.
    count : int
        Values of each row, or of each step, where no splits tell.
    row_splits : ndarray of int64, or None
        Where the values, or the steps, of each row end.
    value_splits : ndarray of int64, or None
        Where each bytes value ends.
    step_splits : ndarray of int64, or None
        Where the values of each step end.
    steps : bool
        A feature list.
    prefix : bytes
        What stands before each bytes value.
    """

    key: str
    values: NDArray[Any]
    count: int = 1
    row_splits: _Ints | None = None
    value_splits: _Ints | None = None
    step_splits: _Ints | None = None
    steps: bool = False
    prefix: bytes = b""

    def field(self) -> _native.Field:
        """Tell the native encoder."""
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

    def same(self, other: Keyed) -> bool:
        """Whether another column holds the same values for the key."""
        mine, others = ((of.count, of.steps, of.prefix, of.values.tobytes()) for of in (self, other))
        pairs = ("row_splits", "value_splits", "step_splits")
        return mine == others and all(_equal(getattr(self, name), getattr(other, name)) for name in pairs)


def _equal(one: _Ints | None, other: _Ints | None) -> bool:
    return one is other if one is None or other is None else np.array_equal(one, other)


def _flat(key: str, values: NDArray[Any] | BytesBlock) -> Keyed:
    """All values of a key, one after the other."""
    if isinstance(values, BytesBlock):
        return Keyed(key, np.ascontiguousarray(values.values), value_splits=np.ascontiguousarray(values.splits))
    return Keyed(key, listed(values))


def _rows_of(key: str, block: RaggedBlock) -> Keyed:
    """Values in rows, at one level."""
    try:
        flat = _flat(key, block.flat_values)
    except RowError as error:
        raise RowError(int(np.searchsorted(block.row_splits, error.row, side="right")) - 1, error.message) from None
    inner = math.prod(block.flat_values.shape[1:])
    return replace(flat, row_splits=block.row_splits * inner if inner != 1 else np.ascontiguousarray(block.row_splits))


def fixed(key: str, block: Block) -> Keyed:
    """As many values in every row."""
    assert isinstance(block, np.ndarray | BytesBlock)
    return replace(_flat(key, block), count=math.prod(block.shape[1:]))


def ragged(key: str, block: Block) -> Keyed:
    """Rows of values."""
    assert isinstance(block, RaggedBlock)
    return _rows_of(key, block)


def in_steps(block: Block, of_steps: Callable[[Any], Sequence[Keyed]]) -> list[Keyed]:
    """Rows of steps, of which `of_steps` says what each holds as if it were a row."""
    assert isinstance(block, RaggedBlock)
    try:
        inside = of_steps(block.values)
    except RowError as error:
        row = int(np.searchsorted(block.row_splits, error.row, side="right")) - 1
        step = error.row - int(block.row_splits[row])
        raise RowError(row, f"{error.message}, in step {step}") from None
    splits = np.ascontiguousarray(block.row_splits)
    return [replace(keyed, steps=True, step_splits=keyed.row_splits, row_splits=splits) for keyed in inside]


def padded(feature: FixedLenSequenceFeature, block: Block, lengths: Block | None) -> RaggedBlock:
    """Rows of steps without their padding; all steps where nobody says how many there are.

    Raises
    ------
    RowError
        If a length is negative, or more than the padded row has.
    """
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
        raise RowError(row, f"holds {most} steps, padding included, where its lengths say {counts[row]}")
    there = (np.arange(most) < counts[:, None]).ravel()
    steps = _steps(block, feature)
    kept: Any = steps[there] if isinstance(steps, np.ndarray) else steps.take(np.flatnonzero(there))
    return RaggedBlock(kept, splits_of(counts))


def _steps(block: NDArray[Any] | BytesBlock, feature: FixedLenSequenceFeature) -> NDArray[Any] | BytesBlock:
    shape = (block.shape[0] * block.shape[1], *feature.shape)
    return block.reshape(shape) if isinstance(block, np.ndarray) else BytesBlock(block.values, block.splits, shape)


def check_lengths(counts: _Ints, lengths: Block | None) -> None:
    """Refuse lengths that are not those of the rows."""
    if lengths is not None and len(wrong := np.flatnonzero(counts != np.asarray(lengths))):
        row = int(wrong[0])
        raise RowError(row, f"holds {counts[row]} steps where its lengths say {np.asarray(lengths)[row]}")


def raw(key: str, feature: RawFeature, block: Block) -> Keyed:
    """Arrays as the bytes of one value, in the byte order of the file."""
    rows: Any = block.values if isinstance(block, RaggedBlock) else block
    values = np.ascontiguousarray(rows, feature.stored_dtype).reshape(-1).view(np.uint8)
    ends = block.row_splits if isinstance(block, RaggedBlock) else np.arange(len(block) + 1, dtype=np.int64)
    return Keyed(key, values, value_splits=ends * feature.nbytes)


def tensor(key: str, feature: TensorFeature, block: Block) -> Keyed:
    """Arrays as serialized tensors."""
    if isinstance(block, np.ndarray):
        # One head for all of them.
        values = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
        nbytes = math.prod(block.shape[1:]) * block.dtype.itemsize
        head = tensor_head(feature.dtype, block.shape[1:], nbytes)
        return Keyed(key, values, value_splits=np.arange(len(block) + 1, dtype=np.int64) * nbytes, prefix=head)
    assert isinstance(block, ArraysBlock | BytesBlock)
    return _flat(key, tensors(feature.dtype, block))


def sparse(name: str, feature: SparseFeature, blocks: Mapping[str, Block]) -> list[Keyed]:
    """Values, and their places along each axis.

    Raises
    ------
    RowError
        If a row has another number of places than of values, or a place or the shape is not of the feature's size.
    """
    indices, values = blocks[f"{name}.indices"], blocks[f"{name}.values"]
    assert isinstance(indices, RaggedBlock) and isinstance(values, RaggedBlock)
    if len(wrong := np.flatnonzero(np.diff(indices.row_splits) != np.diff(values.row_splits))):
        raise RowError(int(wrong[0]), "holds another number of indices than of values")
    places: Any = np.asarray(indices.values)
    size = np.array(feature.size)
    if len(wrong := np.flatnonzero(((places < 0) | (places >= size)).any(axis=1))):
        row = int(np.searchsorted(indices.row_splits, wrong[0], side="right")) - 1
        raise RowError(row, f"holds an index {tuple(places[wrong[0]].tolist())} outside of the size {feature.size}")
    shape = blocks.get(f"{name}.shape")
    if shape is not None and len(wrong := np.flatnonzero((np.asarray(shape) != size).any(axis=1))):
        found = tuple(np.asarray(shape)[wrong[0]].tolist())
        raise RowError(int(wrong[0]), f"is of shape {found} where the feature has the size {feature.size}")
    axes = [
        ragged(key, RaggedBlock(np.ascontiguousarray(places[:, axis]), indices.row_splits))
        for axis, key in enumerate(feature.index_key)
    ]
    return [*axes, ragged(feature.value_key, values)]


def partitioned(name: str, feature: RaggedFeature, block: Block) -> list[Keyed]:
    """Rows of rows of values: the values, and what each partition says of how they are cut.

    Raises
    ------
    RowError
        If a partition can't say how a row is cut: uniform rows of another length, or row ids where the last row is
        empty.
    """
    # Of the groups (records, or steps): where they end among the items of each level.
    assert isinstance(block, RaggedBlock)
    made: list[Keyed] = []
    ends, inside = block.row_splits, block.values
    for partition in feature.partitions[: feature.ragged_rank - 1]:
        assert isinstance(inside, RaggedBlock)
        splits = inside.row_splits
        if isinstance(partition, KeyedPartition):
            entries, cuts = _ENTRIES[type(partition)](splits, ends)
            made.append(Keyed(partition.key, entries, row_splits=cuts))
        elif len(other := np.flatnonzero(np.diff(splits) != partition.length)):  # type: ignore[attr-defined]
            row = int(np.searchsorted(ends, other[0], side="right")) - 1
            raise RowError(row, f"holds a row of {np.diff(splits)[other[0]]} where {partition!r} cuts all alike")
        ends, inside = splits[ends], inside.values
    key = name if feature.value_key is None else feature.value_key
    return [_rows_of(key, RaggedBlock(inside, np.ascontiguousarray(ends))), *made]


# Each finds the entries of a partition, and where those of each group end: `splits` cut the next level into rows, and
# `ends` say where the rows of each group end.


def _lengths(splits: _Ints, ends: _Ints) -> tuple[_Ints, _Ints]:
    return np.diff(splits), np.ascontiguousarray(ends)


def _base(splits: _Ints, ends: _Ints) -> _Ints:
    """Where the group of each row begins on the next level."""
    return np.repeat(splits[ends[:-1]], np.diff(ends))


def _limits(splits: _Ints, ends: _Ints) -> tuple[_Ints, _Ints]:
    return splits[1:] - _base(splits, ends), np.ascontiguousarray(ends)


def _starts(splits: _Ints, ends: _Ints) -> tuple[_Ints, _Ints]:
    return splits[:-1] - _base(splits, ends), np.ascontiguousarray(ends)


def _splits(splits: _Ints, ends: _Ints) -> tuple[_Ints, _Ints]:
    # One more in each group than it has rows.
    groups = len(ends) - 1
    more = np.diff(ends) + 1
    place = np.arange(int(more.sum())) - np.repeat(np.arange(groups), more)
    return splits[place] - np.repeat(splits[ends[:-1]], more), ends + np.arange(groups + 1)


def _row_ids(splits: _Ints, ends: _Ints) -> tuple[_Ints, _Ints]:
    lengths, rows = np.diff(splits), np.diff(ends)
    last = np.zeros(len(rows), bool)
    last[rows > 0] = lengths[ends[1:][rows > 0] - 1] == 0
    if last.any():
        raise RowError(int(np.flatnonzero(last)[0]), "ends with an empty row, which ValueRowIds can't say")
    numbers = np.arange(len(lengths)) - np.repeat(ends[:-1], rows)
    return np.repeat(numbers, lengths), splits[ends]


_ENTRIES: dict[type[KeyedPartition], Callable[[_Ints, _Ints], tuple[_Ints, _Ints]]] = {
    RowLengths: _lengths,
    RowSplits: _splits,
    RowLimits: _limits,
    RowStarts: _starts,
    ValueRowIds: _row_ids,
}
