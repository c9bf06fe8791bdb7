"""Key specs: what the native decoder extracts for each key of a record, and the output of one key."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord._native import Cast, DataType, Kind, Message, ValueLayout
from dask_tfrecord.features import FixedLenFeature, RawFeature, TensorFeature, TextFeature, default_array
from dask_tfrecord.features.base import stored_kind

__all__ = [
    "KINDS",
    "MESSAGES",
    "KeyOutput",
    "KeySpec",
    "bytes_spec",
    "fixed_spec",
    "located_spec",
    "ragged_spec",
    "raw_spec",
    "steps_spec",
    "tensor_spec",
    "unset_column",
    "values_spec",
]

_CASTS = {member.name.lower(): member for member in Cast if member is not Cast.NONE}
MESSAGES = {
    "Example": Message.EXAMPLE,
    "SequenceExample": Message.SEQUENCE_EXAMPLE,
    "ExampleListWithContext": Message.EXAMPLE_LIST,
}
KINDS = {"bytes": Kind.BYTES, "float32": Kind.FLOATS, "int64": Kind.INT64}


class KeyOutput(NamedTuple):
    """Decoded values of one key in all records.

    Attributes
    ----------
    values : ndarray of uint8, or None
        Bytes of the values; None if they are in an output buffer of the caller, or were only counted.
    value_splits : ndarray of int64, or None
        Splits of the bytes values.
    step_splits : ndarray of int64, or None
        Splits of the values by the steps of a ragged feature list, or by items.
    row_splits : ndarray of int64, or None
        Splits of the values, or the steps, by record.
    shapes : ndarray of int64, or None
        Shapes of the tensors, flattened.
    each : int
        Numbers in each step, if their number is fixed.
    """

    values: NDArray[np.uint8] | None
    value_splits: NDArray[np.int64] | None
    step_splits: NDArray[np.int64] | None
    row_splits: NDArray[np.int64] | None
    shapes: NDArray[np.int64] | None
    each: int = 1

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
    """Kind and layout of the values of one key of a record, or of one feature list or key of items.

    Attributes
    ----------
    key : str
        Key of the feature.
    dtype : str
        Dtype of the values after casting; ``"bytes"`` for everything that is stored as bytes.
    layout : ValueLayout
        Layout of the values.
    count : int
        Fixed: values per record or step; ragged: divisor of the number of values; raw: bytes; located: floats, or
        bytes of the one value.
    swap : int
        Raw: bytes per item whose order is reversed.
    text, boolean : bool
        Values are UTF-8; raw bytes are 0 or 1.
    steps : bool
        A feature list, or a key of items.
    optional : bool
        A record may lack the feature list, or, if the shape is empty, the feature.
    counted : bool
        Values are validated and counted, but only splits and shapes are kept.
    fallback : tuple of bytes
        Stored values of a record or item without values.
    tensor : tuple of (str, tuple of int), optional
        Dtype and shape of tensors, -1 for an open size.
    """

    key: str
    dtype: str
    layout: ValueLayout
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
