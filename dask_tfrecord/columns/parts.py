"""What the native decoder reads of a record: a part for each key, and what it hands back.

The numbers are those of native/columns.hpp and native/casts.hpp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.features import FixedLenFeature, RawFeature, TensorFeature, TextFeature, default_array
from dask_tfrecord.features.values import stored_kind

__all__ = [
    "DATA_TYPES",
    "KINDS",
    "Layout",
    "Part",
    "Taken",
    "bytes_part",
    "fixed_part",
    "located_part",
    "ragged_part",
    "raw_part",
    "steps_part",
    "tensor_part",
    "unset_column",
]

KINDS = {"bytes": 1, "float32": 2, "int64": 3}
_CASTS = ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float64")
# The DataType numbers of TensorFlow's types.proto.
DATA_TYPES = {
    "float32": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 5,
    "int8": 6,
    "bytes": 7,
    "complex64": 8,
    "int64": 9,
    "bool": 10,
    "bfloat16": 14,
    "uint16": 17,
    "complex128": 18,
    "float16": 19,
    "uint32": 22,
    "uint64": 23,
}


class Layout(IntEnum):
    """How the values of a key are laid out."""

    FIXED = 0
    RAGGED = 1
    RAW = 2
    SKIPPED = 3
    UNSET = 4
    TENSOR = 5
    LOCATED = 6


class Taken(NamedTuple):
    """What a part has of all records that were read.

    Attributes
    ----------
    values : ndarray of uint8, or None
        The values' bytes; None where they went into memory that was lent or offered, or were counted alone.
    value_splits : ndarray of int64, or None
        Where each bytes value ends.
    step_splits : ndarray of int64, or None
        Where the values of each step of a ragged feature list end.
    row_splits : ndarray of int64, or None
        Where each record ends, among the values or the steps.
    shapes : ndarray of int64, or None
        The sizes of each tensor, one after the other.
    """

    values: NDArray[np.uint8] | None
    value_splits: NDArray[np.int64] | None
    step_splits: NDArray[np.int64] | None
    row_splits: NDArray[np.int64] | None
    shapes: NDArray[np.int64] | None

    @property
    def total(self) -> int:
        """Values of all records: bytes, where the values are those."""
        ends = next(ends for ends in (self.value_splits, self.step_splits, self.row_splits) if ends is not None)
        return int(ends[-1])


@dataclass(frozen=True, slots=True)
class Part:
    """One key of a record, or one feature list, and what its values have to be.

    Attributes
    ----------
    key : str
        The key.
    dtype : str
        Of the values, once they are cast; ``"bytes"`` for those and what is stored so.
    layout : Layout
        How they are laid out.
    count : int
        Fixed: values per record or step; ragged: what their number is a multiple of; raw: bytes; located: floats, or
        bytes of the one value.
    swap : int
        Raw: bytes per item whose order is turned round.
    text, boolean : bool
        Values are UTF-8; raw bytes are 0 or 1.
    steps : bool
        A feature list.
    optional : bool
        A record may lack the feature list; or, of a shape of no values, the feature: its default is no fallback.
    counted : bool
        Values are judged and counted as ever, and not kept: there are splits and shapes alone.
    fallback : tuple of bytes
        What a record without values has instead, as it is stored.
    tensor : tuple of (str, tuple of int), optional
        Dtype and shape of tensors, -1 for an open size.
    """

    key: str
    dtype: str
    layout: Layout
    count: int = 1
    swap: int = 1
    text: bool = False
    boolean: bool = False
    steps: bool = False
    optional: bool = False
    counted: bool = False
    fallback: tuple[bytes, ...] = ()
    tensor: tuple[str, tuple[int, ...]] | None = None

    @property
    def kind(self) -> int:
        """Number of the list that the values are in."""
        return KINDS[stored_kind(self.dtype)]

    def column(self) -> _native.Column:
        """Tell the native decoder."""
        tensor: dict[str, Any] = {}
        if self.tensor is not None:
            dtype, shape = self.tensor
            item = 0 if dtype == "bytes" else np.dtype(_numpy(dtype)).itemsize
            tensor = {"tensor_dtype": DATA_TYPES[dtype], "tensor_item": item, "tensor_shape": shape}
        return _native.Column(
            self.key.encode(),
            self.kind,
            int(self.layout),
            count=self.count,
            swap=self.swap,
            text=self.text,
            boolean=self.boolean,
            list=self.steps,
            optional=self.optional,
            counted=self.counted,
            cast=_CASTS.index(self.dtype) + 1 if self.dtype in _CASTS else 0,
            fallback=self.fallback,
            **tensor,
        )


def _numpy(dtype: str) -> Any:
    return TensorFeature((), dtype).item_dtype


def unset_column(key: str) -> _native.Column:
    """Tell the native decoder of a key that may not hold anything."""
    return _native.Column(key.encode(), 0, int(Layout.UNSET))


def fixed_part(key: str, feature: FixedLenFeature) -> Part:
    """As many values in every record."""
    count = math.prod(feature.shape)
    if feature.default_value is None:
        return Part(key, feature.dtype, Layout.FIXED, count)
    values = default_array(feature.default_value, feature.item_dtype, feature.shape)
    fallback = tuple(values.ravel().tolist()) if feature.is_bytes else (values.tobytes(),)
    return Part(key, feature.dtype, Layout.FIXED, count, optional=True, fallback=fallback)


def bytes_part(key: str, feature: TextFeature | None = None, *, steps: bool = False) -> Part:
    """One bytes value in every record or step; text where a feature says so."""
    if feature is None:
        return Part(key, "bytes", Layout.FIXED, steps=steps, optional=steps)
    default = feature.default_value
    return Part(key, "bytes", Layout.FIXED, text=True, fallback=() if default is None else (default.encode(),))


def ragged_part(key: str, dtype: str, each: int = 1, *, steps: bool = False) -> Part:
    """Any number of values in every record or step, a multiple of `each`."""
    return Part(key, dtype, Layout.RAGGED, each, steps=steps, optional=steps)


def steps_part(key: str, dtype: str, each: int, *, optional: bool) -> Part:
    """Take steps of `each` values in a feature list."""
    return Part(key, dtype, Layout.FIXED, each, steps=True, optional=optional)


def raw_part(key: str, feature: RawFeature) -> Part:
    """One bytes value of known size."""
    dtype = feature.stored_dtype
    swap = 1 if dtype.isnative else dtype.itemsize // (2 if dtype.kind == "c" else 1)
    return Part(key, "bytes", Layout.RAW, feature.nbytes, swap, boolean=dtype.kind == "b")


def located_part(key: str, feature: FixedLenFeature | RawFeature) -> Part:
    """Find where as many floats, or one bytes value of known size, begin: a byte of the stream for every record."""
    if isinstance(feature, RawFeature):
        return Part(key, "bytes", Layout.LOCATED, feature.nbytes, boolean=feature.stored_dtype.kind == "b")
    return Part(key, feature.dtype, Layout.LOCATED, math.prod(feature.shape))


def tensor_part(key: str, feature: TensorFeature) -> Part:
    """One serialized tensor."""
    return Part(key, "bytes", Layout.TENSOR, tensor=(feature.dtype, feature.shape))
