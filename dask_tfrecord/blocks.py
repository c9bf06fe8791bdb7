"""Blocks: decoded rows in flat NumPy arrays, copies of their rows, and the memory limit.

A block of bytes, of ragged rows or of arrays consists of two or more NumPy arrays. It pickles as those buffers (out of
band, by protocol 5), and `sys.getsizeof`, which dask calls, returns their size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_tfrecord import _native
from dask_tfrecord.advice import no_attribute
from dask_tfrecord.errors import Location, MemoryLimitError


class Layout(Protocol):
    """Dtype and shape of the rows of a block; a `Feature` has them."""

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of the values of a block: object for bytes."""

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of a row, or of each value in a ragged row."""

    @property
    def ragged_rank(self) -> int:
        """Levels of rows of variable length."""

    @property
    def own_shapes(self) -> int:
        """Number of axes if each row has its own shape, otherwise 0."""

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Shape of one record in a column."""

    @property
    def block_dtype(self) -> np.dtype[Any]:
        """The dtype of a column."""

    @property
    def is_bytes(self) -> bool:
        """Values of a block are bytes."""

    @property
    def is_dense(self) -> bool:
        """Blocks are arrays of numbers."""


# Arrays of columns by name.
Arrays = Mapping[str, NDArray[Any]]


class _Buffers:
    """Arrays that hold a block together."""

    __slots__ = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        buffers = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return sum(block_nbytes(buffer) for buffer in buffers if not isinstance(buffer, tuple))

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + self.nbytes

    def take(self, index: NDArray[np.int64]) -> Self:
        """Copy the rows of `index`."""
        taken: Self = gather_rows([self], None, index)
        return taken


@dataclass(frozen=True, slots=True, eq=False)
class BytesBlock(_Buffers):
    """Bytes values, stored in one buffer.

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

    @classmethod
    def of(cls, values: Sequence[bytes], shape: tuple[int, ...] | None = None) -> BytesBlock:
        """Make a block by copying bytes objects, by default one per row."""
        splits = splits_of(np.fromiter(map(len, values), np.int64, len(values)))
        return cls(np.frombuffer(b"".join(values), np.uint8), splits, (len(values),) if shape is None else shape)

    def __len__(self) -> int:
        return self.shape[0]

    def reshape(self, shape: tuple[int, ...]) -> BytesBlock:
        """Return the same values in rows of a different shape."""
        return BytesBlock(self.values, self.splits, shape)

    def rows(self, start: int, stop: int) -> BytesBlock:
        """Return rows ``start`` to ``stop``, sharing memory."""
        each = math.prod(self.shape[1:])
        splits = self.splits[start * each : stop * each + 1]
        return BytesBlock(self.values[splits[0] : splits[-1]], splits - splits[0], (stop - start, *self.shape[1:]))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.object_]:
        return _native.bytes_rows(self.values, self.splits).reshape(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class RaggedBlock(_Buffers):
    """Rows of variable length, stored as the values of all rows and the offsets between rows.

    Attributes
    ----------
    values : ndarray of shape ``(nvalues, *inner)``, BytesBlock, ArraysBlock or RaggedBlock
        Values of all rows, concatenated; an ArraysBlock if each value is an array with its own shape, a RaggedBlock if
        rows are nested.
    row_splits : ndarray of int64, shape (rows + 1,)
        Row ``i`` is ``values[row_splits[i]:row_splits[i + 1]]``, as in `tf.RaggedTensor`.
    """

    values: NDArray[Any] | BytesBlock | ArraysBlock | RaggedBlock
    row_splits: NDArray[np.int64]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("ragged", self, name)

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    def __iter__(self) -> Iterator[Any]:
        return iter(self.views())

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

    def rows(self, start: int, stop: int) -> RaggedBlock:
        """Return rows ``start`` to ``stop``, sharing memory."""
        splits = self.row_splits[start : stop + 1]
        first, last = int(splits[0]), int(splits[-1])
        values = self.values
        inner = values[first:last] if isinstance(values, np.ndarray) else values.rows(first, last)
        return RaggedBlock(inner, splits - first)

    def padded(self, length: int, value: Any, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Pad rows with `value` to `length`, which must not be less than the longest row.

        Returns
        -------
        ndarray of shape (rows, length, *inner)
        """
        values = np.asarray(self.values)
        if values.dtype.kind not in "OT":
            return gather_padded([RaggedBlock(values, self.row_splits)], None, None, length, value, out)
        out = np.full((len(self), length, *values.shape[1:]), value, values.dtype)
        out[np.arange(length) < np.diff(self.row_splits)[:, None]] = values
        return out

    def truncated(self, length: int) -> RaggedBlock:
        """Copy the first `length` values of each row, or the whole row if it is shorter."""
        starts, lengths = self.row_splits[:-1], np.diff(self.row_splits)
        # Every second row of these splits is what follows the kept values.
        splits = np.append(np.stack([starts, starts + np.minimum(lengths, length)], axis=1), self.row_splits[-1:])
        return RaggedBlock(self.values, splits).take(np.arange(0, 2 * len(self), 2))

    def views(self) -> NDArray[np.object_]:
        """Get each row as a view of the values. A single view keeps the values of all rows in memory.

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
class ArraysBlock(_Buffers):
    """Rows that are arrays with one dtype and as many axes each, whose shapes differ."""

    values: NDArray[Any] | BytesBlock
    row_splits: NDArray[np.int64]
    shapes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.shapes)

    @property
    def shape(self) -> tuple[int]:
        """Shape of the column: one object per row."""
        return (len(self),)

    def rows(self, start: int, stop: int) -> ArraysBlock:
        """Return rows ``start`` to ``stop``, sharing memory."""
        flat = RaggedBlock(self.values, self.row_splits).rows(start, stop)
        return ArraysBlock(flat.flat_values, flat.row_splits, self.shapes[start:stop])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.object_]:
        flat = np.asarray(RaggedBlock(self.values, self.row_splits))
        out = np.empty(len(self), object)
        for row, shape in enumerate(self.shapes.tolist()):
            out[row] = flat[row].reshape(shape)
        return out


Block = NDArray[Any] | BytesBlock | RaggedBlock | ArraysBlock


def write_rows(block: Block, out: NDArray[Any], *, views: bool = False) -> None:
    """Copy a block to an array that users see; objects are made in place. With `views`, ragged rows are views."""
    if out.dtype.kind == "O" and out.flags.c_contiguous and isinstance(block, BytesBlock):
        _native.bytes_rows(block.values, block.splits, out.reshape(-1))
    elif out.dtype.kind == "O" and out.flags.c_contiguous and isinstance(block, RaggedBlock):
        splits = np.ascontiguousarray(block.row_splits, np.int64)
        _native.array_rows(np.asarray(block.values), splits, not views, out)
    else:
        out[...] = to_array(block)


def to_array(block: Block) -> NDArray[Any]:
    """Convert a block to the array that users see. Only here do rows of bytes or ragged values become objects."""
    return np.asarray(block)


def texts(block: Block) -> list[str]:
    """Return a block's rows as text; bytes are decoded as UTF-8."""
    rows = to_array(block).tolist()
    return [row.decode("utf-8", "replace") if isinstance(row, bytes) else row for row in rows]


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


def gather_rows(blocks: Sequence[Any], owners: NDArray[np.int64] | None, index: NDArray[np.int64]) -> Any:
    """Copy row ``index[i]`` from block ``owners[i]``, or from the only block."""
    first = blocks[0]
    if isinstance(first, np.ndarray):
        return _gather_items(blocks, owners, index)
    if isinstance(first, BytesBlock):
        rows, each = len(index), math.prod(first.shape[1:])
        if each != 1:
            index = (index[:, None] * each + np.arange(each)).ravel()
            owners = None if owners is None else np.repeat(owners, each)
        files = [block.values for block in blocks], [block.splits for block in blocks]
        return BytesBlock(*_gather_values(*files, owners, index), (rows, *first.shape[1:]))
    inner, outer = [block.values for block in blocks], [block.row_splits for block in blocks]
    if isinstance(inner[0], np.ndarray) and inner[0].dtype.kind not in "OT":
        values, splits = _gather_values(inner, outer, owners, index)
    else:
        splits = gather_splits(outer, owners, index)
        starts = _gather_items([each[:-1] for each in outer], owners, index)
        lengths = np.diff(splits)
        items = np.arange(splits[-1]) + np.repeat(starts - splits[:-1], lengths)
        values = gather_rows(inner, None if owners is None else np.repeat(owners, lengths), items)
    if isinstance(first, ArraysBlock):
        return ArraysBlock(values, splits, _gather_items([block.shapes for block in blocks], owners, index))
    return RaggedBlock(values, splits)


def gather_padded(
    blocks: Sequence[RaggedBlock],
    owners: NDArray[np.int64] | None,
    index: NDArray[np.int64] | None,
    length: int,
    value: Any,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Copy rows of numbers as `gather_rows` does, or all of the only block, padded with `value` to `length`."""
    values = [np.asarray(block.values) for block in blocks]
    if out is None:
        rows = len(blocks[0]) if index is None else len(index)
        out = np.empty((rows, length, *values[0].shape[1:]), values[0].dtype)
    if out.size:
        filler = np.full(out.shape[2:], value, out.dtype).tobytes()
        splits = [np.ascontiguousarray(block.row_splits, np.int64) for block in blocks]
        _native.pad_rows(list(map(_as_bytes, values)), splits, owners, index, filler, length, _as_bytes(out))
    return out


def pad_levels(
    block: RaggedBlock,
    lengths: Sequence[int | None],
    value: Any,
    refuse: Callable[[int, str, int], Exception],
    *,
    truncate: bool = False,
) -> NDArray[Any]:
    """Pad rows at each level to a length, None for the length of the longest row.

    Longer rows are cut if `truncate`; otherwise `refuse` returns the error of a row, with what it holds and the length.
    """
    counts = np.diff(block.row_splits)
    longest = int(counts.max(initial=0))
    length = longest if lengths[0] is None else lengths[0]
    if longest > length:
        if not truncate:
            row = int(np.argmax(counts > length))
            raise refuse(row, f"{counts[row]} {'rows' if lengths[1:] else 'values'}", length)
        block = block.truncated(length)
    values, splits = block.values, block.row_splits
    if isinstance(values, RaggedBlock):

        def refuse_outer(row: int, held: str, length: int) -> Exception:
            return refuse(row_of_value(splits, row)[0], held, length)

        block = RaggedBlock(pad_levels(values, lengths[1:], value, refuse_outer, truncate=truncate), splits)
    return block.padded(length, value)


def _gather_items(
    arrays: Sequence[NDArray[Any]], owners: NDArray[np.int64] | None, index: NDArray[np.int64]
) -> NDArray[Any]:
    """Copy items of arrays."""
    first = arrays[0]
    if owners is None:
        return first[index]
    out = np.empty((len(index), *first.shape[1:]), first.dtype)
    if first.dtype.kind in "OT" or not all(array.flags.c_contiguous for array in arrays):
        # NumPy stores strings outside of the array.
        for number, array in enumerate(arrays):
            chosen = owners == number
            out[chosen] = array[index[chosen]]
    elif out.size:
        _native.take_rows(list(map(_as_bytes, arrays)), [], out.nbytes // len(out), owners, index, _as_bytes(out))
    return out


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
        return BytesBlock(values, splits_of(np.concatenate([np.diff(block.splits) for block in blocks])), shape)
    splits = splits_of(np.concatenate([np.diff(block.row_splits) for block in blocks]))
    if isinstance(first, ArraysBlock):
        return ArraysBlock(values, splits, np.concatenate([block.shapes for block in blocks]))
    return RaggedBlock(values, splits)


def flatten_block(block: Block) -> tuple[list[NDArray[np.int64]], NDArray[Any]]:
    """Return the splits of a block, outermost first, and its values."""
    splits = []
    while isinstance(block, RaggedBlock | ArraysBlock):
        splits.append(block.row_splits)
        block = block.values
    if isinstance(block, BytesBlock):
        splits.append(block.splits)
        block = block.values
    return splits, block


def splits_of(lengths: NDArray[Any] | Sequence[int]) -> NDArray[np.int64]:
    """Return the offsets between rows of these lengths, beginning with 0."""
    out = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=out[1:])
    return out


def union(*numbers: ArrayLike) -> NDArray[np.int64]:
    """Return the distinct ones of all these numbers, ascending.

    Not by `numpy.unique`: since it hashes, it aborts the process if the interpreter ends while a daemon thread is in it
    (the destructor that takes the GIL back, https://github.com/numpy/numpy/pull/30329, must not be unwound).
    """
    found: NDArray[np.int64] = np.sort(np.concatenate([np.asarray(each, np.int64) for each in numbers]))
    new = np.ones(len(found), bool)
    new[1:] = found[1:] != found[:-1]
    return found[new]


def gather_splits(
    splits: Sequence[NDArray[np.int64]], owners: NDArray[np.int64] | None, index: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the offsets between rows that are gathered."""
    out = np.empty(len(index) + 1, np.int64)
    _native.take_splits(splits, owners, index, out)
    return out


def _gather_values(
    values: Sequence[NDArray[Any]],
    splits: Sequence[NDArray[np.int64]],
    owners: NDArray[np.int64] | None,
    index: NDArray[np.int64],
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Copy the values of rows, and return them with their splits."""
    index = np.ascontiguousarray(index, np.int64)
    splits = [np.ascontiguousarray(each, np.int64) for each in splits]
    taken, first = gather_splits(splits, owners, index), values[0]
    if first.size and not any(first.strides):
        # All items share the memory of one.
        return np.broadcast_to(first[0], (int(taken[-1]), *first.shape[1:])), taken
    out = np.empty((int(taken[-1]), *first.shape[1:]), first.dtype)
    if out.size:
        # An index of items would need several times the memory of the values.
        item = first.dtype.itemsize * math.prod(first.shape[1:])
        _native.take_rows(list(map(_as_bytes, values)), splits, item, owners, index, _as_bytes(out))
    return out, taken


def _as_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def broadcast_zeros(dtype: Any, shape: int | tuple[int, ...]) -> NDArray[Any]:
    """Return zeros that share one item's memory, for blocks whose splits alone are needed."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def zero_rows(feature: Layout) -> Block:
    """Return an empty block of the feature."""
    shape = (0, *feature.item_shape)
    block: Any = BytesBlock.of([], shape) if feature.is_bytes else np.empty(shape, feature.item_dtype)
    if feature.own_shapes:
        block = ArraysBlock(block, np.zeros(1, np.int64), np.zeros((0, feature.own_shapes), np.int64))
    for _ in range(feature.ragged_rank):
        block = RaggedBlock(block, np.zeros(1, np.int64))
    rows: Block = block
    return rows


def row_of_value(row_splits: NDArray[np.int64], number: int) -> tuple[int, int]:
    """Return the row of a value, and its number in the row."""
    row = int(np.searchsorted(row_splits, number, side="right")) - 1
    return row, number - int(row_splits[row])


def first_true(mask: Any) -> int | None:
    """Return the index of the first true item."""
    found = np.flatnonzero(mask)
    return int(found[0]) if len(found) else None


class RowError(ValueError):
    """Error of one row, identified by its index in the block."""

    def __init__(self, row: int, message: str, item: int | None = None) -> None:
        super().__init__(row, message, item)
        self.row = row
        self.message = message
        self.item = item


@contextmanager
def as_row_error(row_splits: NDArray[np.int64], *, item: bool = False) -> Iterator[None]:
    """Raise an error about a flat value again as one about its row; `item` adds the value's position."""
    try:
        yield
    except RowError as error:
        row, number = row_of_value(row_splits, error.row)
        raise type(error)(row, error.message, number if item else error.item) from None


class RowLimitError(RowError):
    """Error of the row that makes a column of a block exceed the memory limit."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The most bytes that one column of a block may take."""

    nbytes: int
    setting: str

    def check_rows(self, rows: int, feature: Layout) -> None:
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
def allocating(name: str, feature: Layout, runs: Sequence[Any] = ()) -> Iterator[None]:
    """Add the feature and its shape to the error if memory for a block cannot be allocated."""
    try:
        yield
    except MemoryError as error:
        text = f"feature {name!r}, shape {feature.block_shape} of {feature.block_dtype} for each row: {error}"
        location = Location(runs[0].shard.path, runs[0].first, None, name) if runs else None
        raise MemoryLimitError(f"{text}; read fewer rows at once (chunks=)", location) from error
