"""Keys of a record: the request of each to the native core, and the output that it returns.

The core gets key specs as data, and no feature class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord._native import Cast, Content, DataType, Kind, Message, ValueLayout
from dask_tfrecord.blocks import Block, BytesBlock, MemoryLimit, RaggedBlock, RowError, broadcast_zeros, row_of_value
from dask_tfrecord.features.dtypes import numpy_dtype, stored_kind

_CASTS = {member.name.lower(): member for member in Cast if member is not Cast.NONE}
MESSAGES = {
    "Example": Message.EXAMPLE,
    "SequenceExample": Message.SEQUENCE_EXAMPLE,
    "ExampleListWithContext": Message.EXAMPLE_LIST,
}
KINDS = {"bytes": Kind.BYTES, "float32": Kind.FLOATS, "int64": Kind.INT64}


@dataclass(frozen=True, slots=True)
class KeySpec:
    """Kind and layout of the values under one key of a record, a feature list or an item.

    `Column.close` in `native/columns.hpp` decides what becomes of a record that lacks the key: its default value, a
    ragged row without values, or an error.
    """

    key: str
    dtype: str  # of the values after casting; "bytes" for everything that is stored as bytes
    layout: ValueLayout
    # Fixed: values per record or step; ragged: divisor of their number; raw: bytes.
    count: int = 1
    swap: int = 1  # raw: bytes per item whose order is reversed
    content: Content = Content.ANY
    steps: bool = False  # a feature list, or a key of items
    optional: bool = False  # a record may lack the feature list, or, if the shape is empty, the feature
    counted: bool = False  # values are validated, but only splits and shapes are kept
    default_value: tuple[bytes, ...] = ()  # stored values of a record or item without values
    tensor: tuple[str, tuple[int, ...]] | None = None  # dtype and shape, -1 for an open size

    @property
    def is_direct(self) -> bool:
        """The decoder writes the values into an array: a known number of numbers in every record."""
        if self.steps:
            return False
        if self.layout == ValueLayout.TENSOR:
            assert self.tensor is not None
            return self.tensor[0] != "bytes" and -1 not in self.tensor[1]
        return self.layout == ValueLayout.RAW or (self.layout == ValueLayout.FIXED and self.dtype != "bytes")

    @property
    def kind(self) -> Kind:
        """List of a Feature message that holds the values."""
        return KINDS[stored_kind(self.dtype)]

    def to_native(self) -> _native.ColumnSpec:
        """Return the specification that the native decoder takes."""
        tensor: dict[str, Any] = {}
        if self.tensor is not None:
            dtype, shape = self.tensor
            tensor = {
                "tensor_dtype": DataType[dtype.upper()],
                "tensor_item": 0 if dtype == "bytes" else numpy_dtype(dtype, "").itemsize,
                "tensor_shape": shape,
            }
        return _native.ColumnSpec(
            self.key.encode(),
            self.kind,
            self.layout,
            count=self.count,
            swap=self.swap,
            content=self.content,
            list=self.steps,
            optional=self.optional,
            counted=self.counted,
            cast=_CASTS.get(self.dtype, Cast.NONE),
            default_value=self.default_value,
            **tensor,
        )


class KeyOutput(NamedTuple):
    """Values decoded from one key or message field, in all records."""

    spec: Any  # of type KeySpec, or FieldSpec
    values: NDArray[np.uint8] | None  # None if they are in an output buffer of the caller, or were only counted
    value_splits: NDArray[np.int64] | None  # of bytes values
    step_splits: NDArray[np.int64] | None  # of values by steps of a ragged feature list, or by items
    row_splits: NDArray[np.int64] | None  # of values, or of steps, by record; of nested fields by item
    shapes: NDArray[np.int64] | None  # of tensors, flattened
    outer: tuple[NDArray[np.int64], ...] = ()  # row splits of the repeated messages around, the outermost first

    @classmethod
    def from_native(cls, output: _native.ColumnOutput, spec: Any) -> KeyOutput:
        """Copy the references to the arrays of a native output."""
        return cls(spec, output.values, output.value_splits, output.step_splits, output.row_splits, output.shapes)

    @property
    def total(self) -> int:
        """Number of values of all records; for bytes values their total size."""
        ends = next(ends for ends in (self.value_splits, self.step_splits, self.row_splits) if ends is not None)
        in_steps = self.spec.steps and self.spec.layout == ValueLayout.FIXED and self.value_splits is None
        return int(ends[-1]) * (self.spec.count if in_steps else 1)

    @property
    def levels(self) -> tuple[NDArray[np.int64], ...]:
        """Row splits of all levels, the outermost first."""
        return self.outer if self.row_splits is None else (*self.outer, self.row_splits)

    @property
    def record_splits(self) -> NDArray[np.int64]:
        """Offsets between records."""
        assert self.row_splits is not None
        return self.row_splits

    def encoded(self) -> BytesBlock:
        """Return the bytes values."""
        assert self.value_splits is not None
        values = broadcast_zeros(np.uint8, self.total) if self.values is None else self.values
        return BytesBlock(values, self.value_splits, (len(self.value_splits) - 1,))

    def flat(self, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> Any:
        """Return the values in an array or a block of bytes, each of shape `shape`."""
        if self.value_splits is not None:
            values = self.encoded()
            return values.reshape((len(values) // math.prod(shape), *shape))
        numbers = broadcast_zeros(dtype, self.total) if self.values is None else self.values.view(dtype)
        return numbers.reshape(-1, *shape)


class Decoded(NamedTuple):
    """Outputs of the keys of a feature for a chunk, to assemble its block from."""

    keys: Sequence[KeyOutput]
    rows: int
    out: NDArray[Any] | None = None  # of a dense block
    limit: MemoryLimit | None = None
    values: bool = True  # if False, right row splits and shapes are enough: values of ragged rows may be zeros

    @classmethod
    def of(cls, values: BytesBlock) -> Decoded:
        """Return values, one per row, as if they were decoded."""
        spec = KeySpec("", "bytes", ValueLayout.FIXED)
        return cls([KeyOutput(spec, values.values, values.splits, None, None, None)], len(values))

    @property
    def splits_of_files(self) -> NDArray[np.int64]:
        """Offsets between records, counted in bytes values of the first key."""
        output = self.keys[0]
        if output.row_splits is not None:
            return output.row_splits
        assert output.value_splits is not None
        return np.arange(self.rows + 1, dtype=np.int64) * ((len(output.value_splits) - 1) // max(self.rows, 1))

    def error(self, feature: Any, number: int, message: str, kind: type[RowError] = RowError) -> RowError:
        """Return the error of a bytes value of the first key."""
        row, item = row_of_value(self.splits_of_files, number)
        return kind(row, message, None if feature.count is None and self.keys[0].row_splits is None else item)

    def in_rows(self, feature: Any, values: Any) -> Block:
        """Group decoded values, one for each bytes value of the first key, into the rows of the records."""
        block: Block = values
        if self.keys[0].row_splits is not None:
            return RaggedBlock(values, self.keys[0].row_splits)
        if feature.count is not None:
            block = values.reshape((self.rows, feature.count, *values.shape[1:]))
        return block

    def into(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values, copied to the output array if there is one."""
        if self.out is None:
            return values
        self.out[...] = values
        return self.out


Assemble = Callable[[Any, Decoded], Block]
# A feature describes the values of a record, of each step of a feature list, or of each item.
Scope = Literal["value", "step", "item"]


def number_content(mixed: bool) -> Content:
    """Return what numbers must be if some records list floats as integers, or if none does."""
    return Content.MIXED if mixed else Content.ANY


def ragged_key(
    key: str, dtype: str, each: int = 1, *, scope: Scope = "value", content: Content = Content.ANY
) -> KeySpec:
    """Specify any number of values in a record, step or item, in multiples of `each`."""
    steps = scope != "value"
    return KeySpec(key, dtype, ValueLayout.RAGGED, each, steps=steps, optional=steps, content=content)


def values_in_rows(output: KeyOutput, dtype: np.dtype[Any], shape: tuple[int, ...], each: int = 1) -> RaggedBlock:
    """Make rows from values with a shape, or from steps; `each` entries are one value."""
    values = output.flat(dtype, shape)
    rows, steps = output.record_splits, output.step_splits
    if steps is None:
        return RaggedBlock(values, rows // each if each > 1 else rows)
    return RaggedBlock(RaggedBlock(values, steps // each if each > 1 else steps), rows)
