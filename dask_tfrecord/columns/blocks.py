"""Blocks: decoded rows in flat buffers, their assembly from the outputs of the native decoder, and the memory limit.

A block of bytes, of ragged rows or of arrays consists of two or more NumPy arrays. It pickles as those buffers (out of
band, by protocol 5), and `sys.getsizeof`, which dask calls, returns their size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord._native import Cast, DataType, Kind, Message, ValueLayout
from dask_tfrecord.errors import Location, MemoryLimitError, plural
from dask_tfrecord.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RawFeature,
    SparseFeature,
    TensorFeature,
    TextFeature,
    default_array,
    stored_kind,
)


@dataclass(frozen=True, slots=True, eq=False)
class BytesBlock:
    """Bytes values in one buffer.

    Attributes
    ----------
    values : ndarray of uint8, shape (nbytes,)
        Bytes of all values, concatenated.
    splits : ndarray of int64, shape (nvalues + 1,)
        Value ``i`` is ``values[splits[i]:splits[i + 1]]``.
    shape : tuple of int
        ``(rows, *shape of one row)``, in C order.
    """

    values: NDArray[np.uint8]
    splits: NDArray[np.int64]
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return self.values.nbytes + self.splits.nbytes

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + self.nbytes

    def rows(self, start: int, stop: int) -> BytesBlock:
        """Return rows ``start`` to ``stop``, sharing memory."""
        each = math.prod(self.shape[1:])
        splits = self.splits[start * each : stop * each + 1]
        return BytesBlock(self.values[splits[0] : splits[-1]], splits - splits[0], (stop - start, *self.shape[1:]))

    def take(self, index: NDArray[np.int64]) -> BytesBlock:
        """Copy the rows of `index`."""
        each = math.prod(self.shape[1:])
        values, splits = _take_values(self.values, self.splits, (index[:, None] * each + np.arange(each)).ravel())
        return BytesBlock(values, splits, (len(index), *self.shape[1:]))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.object_]:
        out = np.empty(len(self.splits) - 1, object)
        out[:] = _native.bytes_list(self.values, self.splits)
        return out.reshape(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class RaggedBlock:
    """Rows of variable length: all values, and the offsets between rows.

    Attributes
    ----------
    values : ndarray of shape ``(nvalues, *inner)``, BytesBlock, ArraysBlock or RaggedBlock
        Values of all rows, concatenated; an ArraysBlock if each is an array of its own shape, a RaggedBlock if rows
        are nested.
    row_splits : ndarray of int64, shape (rows + 1,)
        Row ``i`` is ``values[row_splits[i]:row_splits[i + 1]]``, as in `tf.RaggedTensor`.
    """

    values: NDArray[Any] | BytesBlock | ArraysBlock | RaggedBlock
    row_splits: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    @property
    def shape(self) -> tuple[int]:
        """Shape of the column: one object per row."""
        return (len(self),)

    @property
    def flat_values(self) -> NDArray[Any] | BytesBlock:
        """Values of the innermost rows, or of all arrays."""
        if isinstance(self.values, RaggedBlock):
            return self.values.flat_values
        return self.values.values if isinstance(self.values, ArraysBlock) else self.values

    @property
    def ragged_rank(self) -> int:
        """Levels of rows."""
        return 1 + (self.values.ragged_rank if isinstance(self.values, RaggedBlock) else 0)

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return self.values.nbytes + self.row_splits.nbytes

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + self.nbytes

    def rows(self, start: int, stop: int) -> RaggedBlock:
        """Return rows ``start`` to ``stop``, sharing memory."""
        splits = self.row_splits[start : stop + 1]
        first, last = int(splits[0]), int(splits[-1])
        values = self.values
        inner = values[first:last] if isinstance(values, np.ndarray) else values.rows(first, last)
        return RaggedBlock(inner, splits - first)

    def take(self, index: NDArray[np.int64]) -> RaggedBlock:
        """Copy the rows of `index`."""
        if isinstance(self.values, np.ndarray):
            return RaggedBlock(*_take_values(self.values, self.row_splits, index))
        lengths = self.row_splits[index + 1] - self.row_splits[index]
        splits = splits_of(lengths)
        items = np.arange(splits[-1]) + np.repeat(self.row_splits[index] - splits[:-1], lengths)
        return RaggedBlock(self.values.take(items), splits)

    def padded(self, length: int, value: Any) -> NDArray[Any]:
        """Return rows padded with `value` to `length`, which must be at least that of the longest row.

        Returns
        -------
        ndarray of shape (rows, length, *inner)
        """
        values = np.asarray(self.values)
        shape = (len(self), length, *values.shape[1:])
        if values.dtype.kind in "OT":
            out = np.full(shape, value, values.dtype)
            out[np.arange(length) < np.diff(self.row_splits)[:, None]] = values
            return out
        out = np.empty(shape, values.dtype)
        if out.size:
            filler = np.full(shape[2:], value, values.dtype).tobytes()
            splits = np.ascontiguousarray(self.row_splits, np.int64)
            _native.pad_rows(_as_bytes(values), splits, filler, length, out.reshape(-1).view(np.uint8))
        return out

    def truncated(self, length: int) -> RaggedBlock:
        """Copy the first `length` values of each row, or all of a shorter row."""
        starts, lengths = self.row_splits[:-1], np.diff(self.row_splits)
        # Every second row of these splits is what follows the kept values.
        splits = np.append(np.stack([starts, starts + np.minimum(lengths, length)], axis=1), self.row_splits[-1:])
        return RaggedBlock(self.values, splits).take(np.arange(0, 2 * len(self), 2))

    def views(self) -> NDArray[np.object_]:
        """Return each row as a view of the values. A single view keeps the values of all rows in memory.

        Returns
        -------
        ndarray of object, shape (rows,)
        """
        return self._objects(copies=False)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.object_]:
        # A view of one row would keep the whole block alive.
        return self._objects(copies=True)

    def _objects(self, copies: bool) -> NDArray[np.object_]:
        splits = np.ascontiguousarray(self.row_splits, np.int64)
        return _native.array_rows(np.asarray(self.values), splits, copies)


@dataclass(frozen=True, slots=True, eq=False)
class ArraysBlock:
    """Rows that are arrays of one dtype and number of axes, each of its own shape."""

    values: NDArray[Any] | BytesBlock
    row_splits: NDArray[np.int64]
    shapes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.shapes)

    @property
    def shape(self) -> tuple[int]:
        """Shape of the column: one object per row."""
        return (len(self),)

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return self.values.nbytes + self.row_splits.nbytes + self.shapes.nbytes

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + self.nbytes

    def rows(self, start: int, stop: int) -> ArraysBlock:
        """Return rows ``start`` to ``stop``, sharing memory."""
        flat = RaggedBlock(self.values, self.row_splits).rows(start, stop)
        return ArraysBlock(flat.flat_values, flat.row_splits, self.shapes[start:stop])

    def take(self, index: NDArray[np.int64]) -> ArraysBlock:
        """Copy the rows of `index`."""
        flat = RaggedBlock(self.values, self.row_splits).take(index)
        return ArraysBlock(flat.flat_values, flat.row_splits, self.shapes[index])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.object_]:
        flat = np.asarray(RaggedBlock(self.values, self.row_splits))
        out = np.empty(len(self), object)
        for row, shape in enumerate(self.shapes.tolist()):
            out[row] = flat[row].reshape(shape)
        return out


Block = NDArray[Any] | BytesBlock | RaggedBlock | ArraysBlock


def to_array(block: Block) -> NDArray[Any]:
    """Convert a block to the array that users see. Only here do rows of bytes or ragged values become objects."""
    return np.asarray(block)


def block_nbytes(block: Block) -> int:
    """Return the decoded bytes of a block, including strings, which NumPy stores outside of the array."""
    if isinstance(block, np.ndarray) and block.dtype.kind == "T":
        return block.nbytes + int(np.strings.str_len(block).sum())
    return block.nbytes


def release_memory() -> None:
    """Return the memory of freed blocks to the system; allocators keep some of it for each thread."""
    _native.release_memory()


def to_text(block: BytesBlock) -> NDArray[Any]:
    """Decode a block of UTF-8 to a `StringDType` array."""
    out = np.empty(len(block.splits) - 1, np.dtypes.StringDType())
    _native.pack_text(block.values, block.splits, out)
    return out.reshape(block.shape)


def rows_of(block: Block, start: int, stop: int) -> Block:
    """Return rows ``start`` to ``stop`` of any block, sharing memory."""
    return block[start:stop] if isinstance(block, np.ndarray) else block.rows(start, stop)


def take_rows(block: Block, index: NDArray[np.int64]) -> Block:
    """Copy the rows of `index` of any block."""
    return block[index] if isinstance(block, np.ndarray) else block.take(index)


def frozen(block: Block) -> Block:
    """Return a read-only view of a block whose memory is shared."""
    if isinstance(block, RaggedBlock):
        return RaggedBlock(frozen(block.values), _read_only(block.row_splits))
    if isinstance(block, ArraysBlock):
        values: Any = frozen(block.values)
        return ArraysBlock(values, _read_only(block.row_splits), _read_only(block.shapes))
    return _read_only(block) if isinstance(block, np.ndarray) else block


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def concatenate(blocks: Sequence[Any]) -> Any:
    """Concatenate blocks of one feature."""
    first = blocks[0]
    if len(blocks) == 1:
        return first
    if isinstance(first, np.ndarray):
        return np.concatenate(blocks)
    values = concatenate([block.values for block in blocks])
    if isinstance(first, BytesBlock):
        shape = (sum(map(len, blocks)), *first.shape[1:])
        return BytesBlock(values, _concatenate_splits([block.splits for block in blocks]), shape)
    splits = _concatenate_splits([block.row_splits for block in blocks])
    if isinstance(first, ArraysBlock):
        return ArraysBlock(values, splits, np.concatenate([block.shapes for block in blocks]))
    return RaggedBlock(values, splits)


def _concatenate_splits(splits: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return splits_of(np.concatenate([np.diff(each) for each in splits]))


def splits_of(lengths: NDArray[np.int64] | NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the offsets between rows of these lengths, beginning with 0."""
    out = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=out[1:])
    return out


def _take_values(
    values: NDArray[Any], splits: NDArray[np.int64], index: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Copy the values of the rows `index`, and return them with their splits."""
    # The rows may be few of many: lengths of all of them would cost more.
    taken = splits_of(splits[index + 1] - splits[index])
    if values.size and not any(values.strides):
        # All items share the memory of one.
        return np.broadcast_to(values[0], (int(taken[-1]), *values.shape[1:])), taken
    out = np.empty((int(taken[-1]), *values.shape[1:]), values.dtype)
    if values.dtype.kind == "T":
        # NumPy stores strings outside of the array.
        rows = np.repeat(splits[index] - taken[:-1], np.diff(taken))
        return values[np.arange(taken[-1]) + rows], taken
    if out.size:
        item = values.dtype.itemsize * math.prod(values.shape[1:])
        # An index of items would need several times the memory of the values.
        splits, index = np.ascontiguousarray(splits, np.int64), np.ascontiguousarray(index, np.int64)
        _native.take_rows(_as_bytes(values), splits, item, index, _as_bytes(out))
    return out, taken


def _as_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def weightless(dtype: Any, shape: int | tuple[int, ...]) -> NDArray[Any]:
    """Return zeros of any shape that share the memory of one: values of blocks whose splits alone are needed."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def zero_rows(feature: Feature) -> Block:
    """Return an empty block of the feature."""
    block: Any = np.empty((0, *feature.item_shape), feature.item_dtype)
    if feature.is_bytes:
        block = BytesBlock(np.empty(0, np.uint8), np.zeros(1, np.int64), (0, *feature.item_shape))
    if feature.own_shapes:
        block = ArraysBlock(block, np.zeros(1, np.int64), np.zeros((0, feature.own_shapes), np.int64))
    for _ in range(feature.ragged_rank):
        block = RaggedBlock(block, np.zeros(1, np.int64))
    zero: Block = block
    return zero


def place(row_splits: NDArray[np.int64], number: int) -> tuple[int, int]:
    """Return the row of a value, and its number in the row."""
    row = int(np.searchsorted(row_splits, number, side="right")) - 1
    return row, number - int(row_splits[row])


class RowError(ValueError):
    """Error of one row, identified by its index in the block."""

    def __init__(self, row: int, message: str, item: int | None = None) -> None:
        super().__init__(row, message, item)
        self.row = row
        self.message = message
        self.item = item


class RowLimitError(RowError):
    """Error of the row that makes a column of a block exceed the memory limit."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Limit of the bytes of one column of a block."""

    nbytes: int
    setting: str

    def check_rows(self, rows: int, feature: Feature) -> None:
        """Check rows of a fixed size; rows of other features pass."""
        if not feature.is_dense or feature.block_dtype.kind in "OT":
            return
        row_nbytes = math.prod(feature.block_shape) * feature.block_dtype.itemsize
        if rows * row_nbytes > self.nbytes:
            raise RowLimitError(self.nbytes // row_nbytes, self.message(rows * row_nbytes))

    def check_ends(self, ends: NDArray[np.int64], item_nbytes: int) -> None:
        """Check rows of different sizes; `ends` holds the end of each row, in items."""
        if len(ends) and int(ends[-1]) * item_nbytes > self.nbytes:
            row = int(np.searchsorted(ends, self.nbytes // item_nbytes, side="right"))
            raise RowLimitError(row, self.message(int(ends[-1]) * item_nbytes))

    def message(self, nbytes: int | None = None) -> str:
        """Describe a block that exceeds the limit; without `nbytes`, its size beyond this row is unknown."""
        takes = "more" if nbytes is None else f"{nbytes:,} bytes"
        return (
            f"decodes to {takes} in one block where {self.nbytes:,} bytes are the most, which this record exceeds: "
            f"read fewer rows at once (chunks=), or set {self.setting} in the dask configuration of the process that "
            f"reads"
        )


@contextmanager
def allocating(name: str, feature: Feature, runs: Sequence[Any] = ()) -> Iterator[None]:
    """Add the feature and its shape to the error if memory for a block cannot be allocated."""
    try:
        yield
    except MemoryError as error:
        text = f"feature {name!r}, shape {feature.block_shape} of {feature.block_dtype} for each row: {error}"
        location = Location(runs[0].shard.path, runs[0].first, None, name) if runs else None
        raise MemoryLimitError(f"{text}; read fewer rows at once (chunks=)", location) from error


@contextmanager
def decoding(names: Sequence[str], path: str, record: int) -> Iterator[None]:
    """Add the features, the file and the first record to the error if the decoder runs out of memory."""
    try:
        yield
    except MemoryLimitError:
        raise
    except MemoryError as error:
        text = f"no memory to decode features {', '.join(map(repr, names))} from here on"
        raise MemoryLimitError(f"{text}; read fewer rows at once (chunks=)", Location(path, record)) from error


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
