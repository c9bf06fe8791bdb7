"""Values of keys, as the native encoder takes them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.blocks import Block, BytesBlock, RaggedBlock, RowError, as_row_error, first_true
from dask_tfrecord.errors import plural
from dask_tfrecord.features.dtypes import stored_kind
from dask_tfrecord.features.keys import KINDS

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
        splits = ("row_splits", "value_splits", "step_splits")
        return own == others and all(np.array_equal(getattr(self, name), getattr(other, name)) for name in splits)


def refuse_values(values: NDArray[Any], bad: NDArray[np.bool_], why: str) -> None:
    """Raise an error of the first row with a bad value."""
    if (position := first_true(bad)) is not None:
        raise RowError(position // max(1, math.prod(values.shape[1:])), f"holds {values.ravel()[position]}, {why}")


def listed(values: NDArray[Any]) -> NDArray[Any]:
    """Return numbers as an Example lists them: int64 or float32, flat and contiguous."""
    kind = np.dtype(stored_kind(values.dtype.name))
    with np.errstate(all="ignore"):
        result = np.ascontiguousarray(values, kind).reshape(-1)
    if values.dtype == np.uint64:
        refuse_values(values, result.reshape(values.shape) < 0, "which exceeds int64, the integers of an Example")
    if values.dtype == np.float64:
        back = result.reshape(values.shape).astype(np.float64)
        other = (back != values) & ~(np.isnan(back) & np.isnan(values))
        refuse_values(
            values, other, "which float32, the floats of an Example, cannot represent: round it to float32 first"
        )
    return result


def flat(key: str, values: NDArray[Any] | BytesBlock) -> KeyedValues:
    """Return all values of a key, concatenated."""
    if isinstance(values, BytesBlock):
        return KeyedValues(key, np.ascontiguousarray(values.values), value_splits=np.ascontiguousarray(values.splits))
    return KeyedValues(key, listed(values))


def fixed(key: str, block: Any) -> KeyedValues:
    """Disassemble rows of a fixed number of values."""
    return replace(flat(key, block), count=math.prod(block.shape[1:]))


def in_rows(key: str, block: RaggedBlock) -> KeyedValues:
    """Disassemble rows of values."""
    with as_row_error(block.row_splits):
        values = flat(key, block.flat_values)
    inner = math.prod(block.flat_values.shape[1:])
    return replace(
        values, row_splits=block.row_splits * inner if inner != 1 else np.ascontiguousarray(block.row_splits)
    )


def in_levels(block: Any, levels: int) -> Any:
    """Return rows with `levels` ragged levels; rows of one length get evenly spaced splits."""
    if not levels:
        return block
    if isinstance(block, RaggedBlock):
        return RaggedBlock(in_levels(block.values, levels - 1), block.row_splits)
    rows, length, *inner = block.shape
    values = block.reshape((rows * length, *inner))
    return RaggedBlock(in_levels(values, levels - 1), np.arange(rows + 1, dtype=np.int64) * length)


def check_lengths(counts: _Ints, lengths: Block | None) -> None:
    """Refuse lengths that differ from the lengths of rows."""
    if lengths is not None and (row := first_true(counts != np.asarray(lengths))) is not None:
        raise RowError(row, f"holds {plural(counts[row], 'step')}; its lengths column has {np.asarray(lengths)[row]}")
