"""Blocks: decoded rows in flat buffers, before they become Python objects, and the memory limit of one column.

A block of bytes, of ragged rows or of arrays consists of two or more NumPy arrays. It pickles as those buffers (out of
band, by protocol 5), and `sys.getsizeof`, which dask calls, returns their size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.errors import Location, MemoryLimitError
from dask_tfrecord.features import Feature


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
