"""Decoded rows in flat buffers: what tasks hand to each other before rows become Python objects.

A block of bytes or ragged rows is two or three NumPy arrays. It pickles as those buffers (out of band, by protocol 5)
and says its real size to whoever asks `sys.getsizeof`, as dask does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features import Feature, FixedLenFeature, RawFeature, TextFeature, VarLenFeature

__all__ = [
    "Block",
    "BytesBlock",
    "RaggedBlock",
    "block_nbytes",
    "concatenate",
    "conform",
    "feature_of",
    "frozen",
    "release_memory",
    "rows_of",
    "take_rows",
    "to_array",
    "to_text",
    "zero_rows",
]


@dataclass(frozen=True, slots=True, eq=False)
class BytesBlock:
    """Bytes values in one buffer.

    Attributes
    ----------
    values : ndarray of uint8, shape (nbytes,)
        All bytes, one value after the other.
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
        """Rows ``start`` to ``stop``, sharing memory."""
        each = math.prod(self.shape[1:])
        splits = self.splits[start * each : stop * each + 1]
        return BytesBlock(self.values[splits[0] : splits[-1]], splits - splits[0], (stop - start, *self.shape[1:]))

    def take(self, index: NDArray[np.int64]) -> BytesBlock:
        """Copy the rows of `index`."""
        each = math.prod(self.shape[1:])
        values = (index[:, None] * each + np.arange(each)).ravel()
        items, splits = _items(self.splits, values)
        return BytesBlock(self.values[items], splits, (len(index), *self.shape[1:]))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.object_]:
        out = np.empty(len(self.splits) - 1, object)
        out[:] = _native.bytes_list(self.values, self.splits)
        return out.reshape(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class RaggedBlock:
    """Rows of differing length: all values, and where each row ends.

    Attributes
    ----------
    values : ndarray of shape (nvalues, *inner), or BytesBlock
        The rows' values, one row after the other.
    row_splits : ndarray of int64, shape (rows + 1,)
        Row ``i`` is ``values[row_splits[i]:row_splits[i + 1]]``, as in `tf.RaggedTensor`.
    """

    values: NDArray[Any] | BytesBlock
    row_splits: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    @property
    def shape(self) -> tuple[int]:
        """One object per row."""
        return (len(self),)

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return self.values.nbytes + self.row_splits.nbytes

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + self.nbytes

    def rows(self, start: int, stop: int) -> RaggedBlock:
        """Rows ``start`` to ``stop``, sharing memory."""
        splits = self.row_splits[start : stop + 1]
        first, last = int(splits[0]), int(splits[-1])
        values = self.values
        inner = values.rows(first, last) if isinstance(values, BytesBlock) else values[first:last]
        return RaggedBlock(inner, splits - first)

    def take(self, index: NDArray[np.int64]) -> RaggedBlock:
        """Copy the rows of `index`."""
        items, splits = _items(self.row_splits, index)
        values = self.values
        return RaggedBlock(values.take(items) if isinstance(values, BytesBlock) else values[items], splits)

    def padded(self, length: int, value: Any) -> NDArray[Any]:
        """Rows of one length, which none exceeds, filled with `value` where they are shorter.

        Returns
        -------
        ndarray of shape (rows, length, *inner)
        """
        lengths = np.diff(self.row_splits)
        values = np.asarray(self.values)
        out = np.full((len(self), length, *values.shape[1:]), value, values.dtype)
        out[np.arange(length) < lengths[:, None]] = values
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.object_]:
        values = np.asarray(self.values)
        ends = self.row_splits.tolist()
        out = np.empty(len(self), object)
        for row, (start, stop) in enumerate(pairwise(ends)):
            # A copy: a view would keep the whole block alive for as long as one of its rows is.
            out[row] = values[start:stop].copy()
        return out


Block = NDArray[Any] | BytesBlock | RaggedBlock


def to_array(block: Block) -> NDArray[Any]:
    """Make a block what users see: rows of bytes or ragged values become Python objects here and nowhere else."""
    return np.asarray(block)


def block_nbytes(block: Block) -> int:
    """Count the decoded bytes of a block, and those of strings, which NumPy keeps elsewhere."""
    if isinstance(block, np.ndarray) and block.dtype.kind == "T":
        return block.nbytes + int(np.strings.str_len(block).sum())
    return block.nbytes


def release_memory() -> None:
    """Give the memory of dropped blocks back to the system: allocators keep some for each thread that ever had any."""
    _native.release_memory()


def to_text(block: BytesBlock) -> NDArray[Any]:
    """Decode a block of UTF-8 to a `StringDType` array."""
    data = block.values.tobytes()
    ends = block.splits.tolist()
    if data.isascii():
        text = data.decode("ascii")
        rows = [text[start:stop] for start, stop in pairwise(ends)]
    else:
        rows = [data[start:stop].decode() for start, stop in pairwise(ends)]
    return np.array(rows, dtype=np.dtypes.StringDType()).reshape(block.shape)


def rows_of(block: Block, start: int, stop: int) -> Block:
    """Rows ``start`` to ``stop`` of any block, sharing memory."""
    return block[start:stop] if isinstance(block, np.ndarray) else block.rows(start, stop)


def take_rows(block: Block, index: NDArray[np.int64]) -> Block:
    """Copy the rows of `index` of any block."""
    return block[index] if isinstance(block, np.ndarray) else block.take(index)


def frozen(block: Block) -> Block:
    """Wrap the same memory so that it can't be written to: others hold it too."""
    if isinstance(block, RaggedBlock):
        values = block.values if isinstance(block.values, BytesBlock) else _read_only(block.values)
        return RaggedBlock(values, _read_only(block.row_splits))
    return _read_only(block) if isinstance(block, np.ndarray) else block


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def concatenate(blocks: Sequence[Block]) -> Block:
    """Blocks of one feature as one block, in order."""
    if len(blocks) == 1:
        return blocks[0]
    ragged = [block for block in blocks if isinstance(block, RaggedBlock)]
    if ragged:
        return RaggedBlock(_flat([part.values for part in ragged]), _joined([part.row_splits for part in ragged]))
    return _flat([block for block in blocks if not isinstance(block, RaggedBlock)])


def _flat(blocks: Sequence[NDArray[Any] | BytesBlock]) -> NDArray[Any] | BytesBlock:
    parts = [block for block in blocks if isinstance(block, BytesBlock)]
    if not parts:
        return np.concatenate([block for block in blocks if isinstance(block, np.ndarray)])
    values = np.concatenate([part.values for part in parts])
    return BytesBlock(values, _joined([part.splits for part in parts]), (sum(map(len, parts)), *parts[0].shape[1:]))


def _joined(splits: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return _splits(np.concatenate([np.diff(part) for part in splits]))


def _splits(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    out = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=out[1:])
    return out


def _items(splits: NDArray[np.int64], index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the values of the rows `index` are, and the splits of those rows."""
    lengths = np.diff(splits)[index]
    ends = _splits(lengths)
    return np.arange(ends[-1]) + np.repeat(splits[index] - ends[:-1], lengths), ends


def zero_rows(feature: Feature) -> Block:
    """Make a block of the feature with no rows."""
    splits = np.zeros(1, np.int64)
    if isinstance(feature, VarLenFeature):
        inner = feature.shape[1:]
        values = np.empty((0, *inner), feature.dtype) if feature.dtype != "bytes" else None
        return RaggedBlock(BytesBlock(np.empty(0, np.uint8), splits, (0, *inner)) if values is None else values, splits)
    if feature.block_dtype == np.dtype(object):
        return BytesBlock(np.empty(0, np.uint8), splits, (0, *feature.block_shape))
    return np.empty((0, *feature.block_shape), feature.block_dtype)


def feature_of(array: Any, owner: str) -> Feature:
    """Describe blocks like `array` by a feature.

    Raises
    ------
    SchemaError
        If it is no array of rows, of a dtype that no feature has, or of objects, which may be anything.
    """
    if isinstance(array, RaggedBlock):
        values = array.values
        dtype = "bytes" if isinstance(values, BytesBlock) else str(values.dtype)
        return VarLenFeature(dtype, shape=(-1, *values.shape[1:]))
    if isinstance(array, BytesBlock):
        return FixedLenFeature(array.shape[1:], "bytes")
    if not hasattr(array, "dtype") or len(getattr(array, "shape", ())) == 0:
        raise SchemaError(f"{owner}: expected an array with an axis of rows; got {array!r:.100}")
    dtype, shape = array.dtype, tuple(array.shape[1:])
    if isinstance(dtype, np.dtypes.StringDType) and not shape:
        return TextFeature()
    if dtype.name in ("int64", "float32"):
        return FixedLenFeature(shape, dtype.name)
    if dtype.kind in "biufc":
        return RawFeature(shape, dtype.newbyteorder("="))
    raise SchemaError(
        f"{owner}: an array of dtype {dtype} and shape {shape} per row is no feature{_HINTS.get(dtype.kind, '')}"
    )


_HINTS = {
    "O": "; say what the objects are: FixedLenFeature(shape, 'bytes') or VarLenFeature(dtype) in a template",
    "S": "; NumPy's S drops zero bytes at the end: make it an object array of bytes",
    "U": "; text is of dtype numpy.dtypes.StringDType()",
}


def conform(feature: Feature, array: Any, owner: str) -> Block:
    """Make `array` a block of `feature`.

    Raises
    ------
    SchemaError
        If it is of another shape or dtype. Nothing is cast but the numbers of Python lists.
    """
    if isinstance(feature, VarLenFeature):
        array = _checked(array, owner) if isinstance(array, RaggedBlock) else _ragged(feature, array, owner)
    elif isinstance(feature, TextFeature):
        array = _text(array, owner)
    elif feature.block_dtype == np.dtype(object) and not isinstance(array, BytesBlock):
        # Lists of bytes would become NumPy's S, which drops zero bytes.
        array = _bytes(array if isinstance(array, np.ndarray) else np.asarray(array, object), owner)
    elif not isinstance(array, RaggedBlock | BytesBlock):
        array = np.asarray(array)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
    found = feature_of(array, owner)
    if (found.item_dtype, found.item_shape, found.ragged_rank) != (
        feature.item_dtype,
        feature.item_shape,
        feature.ragged_rank,
    ):
        raise SchemaError(f"{owner} as {found} where {feature} was promised")
    block: Block = array
    return block


def _checked(block: RaggedBlock, owner: str) -> RaggedBlock:
    """Look over a block that somebody else made: its splits have to fit its values."""
    values, splits = block.values, np.asarray(block.row_splits)
    if not isinstance(values, BytesBlock):
        values = np.asarray(values)
        values = _bytes(values, owner) if values.dtype.kind == "O" else values
    if splits.ndim != 1 or splits.dtype.kind not in "iu" or not len(splits):
        raise SchemaError(f"{owner}: row_splits is an array of ints, one more than rows; got {splits!r:.100}")
    if splits[0] != 0 or splits[-1] != len(values) or (np.diff(splits.astype(np.int64)) < 0).any():
        raise SchemaError(
            f"{owner}: row_splits ascend from 0 to the number of values, {len(values)}; got {splits!r:.100}"
        )
    return RaggedBlock(values, splits.astype(np.int64, copy=False))


def _ragged(feature: VarLenFeature, rows: Any, owner: str) -> RaggedBlock:
    """Rows of arrays, as an object array or a list, in flat buffers."""
    inner = feature.shape[1:]
    dtype = np.dtype(object if feature.dtype == "bytes" else feature.dtype)
    parts = []
    for number, row in enumerate(rows):
        part = np.asarray(row, object if dtype.kind == "O" else None)
        fits = part.dtype == dtype or (isinstance(row, list | tuple) and np.can_cast(part.dtype, dtype, "same_kind"))
        if part.size and not (fits and part.ndim and part.shape[1:] == inner):
            raise SchemaError(
                f"{owner}: row {number} is of dtype {part.dtype} and shape {part.shape} where {feature} was promised"
            )
        parts.append(part.astype(dtype, copy=False).reshape(-1, *inner))
    values = np.concatenate([np.empty((0, *inner), dtype), *parts])
    splits = _splits(np.array([len(part) for part in parts], np.int64))
    return RaggedBlock(_bytes(values, owner) if dtype.kind == "O" else values, splits)


def _text(array: Any, owner: str) -> NDArray[Any]:
    """Strings as `StringDType`, which would make strings of anything."""
    given = array if isinstance(getattr(array, "dtype", None), np.dtype) else np.asarray(array, object)
    if given.dtype.kind == "O":
        _refuse_others(given, str, owner)
    elif given.dtype.kind not in "TU":
        raise SchemaError(f"{owner} as {given.dtype} where text was promised")
    return np.asarray(given, dtype=np.dtypes.StringDType())


def _bytes(array: NDArray[Any], owner: str) -> BytesBlock:
    """Put an array of `bytes` objects into flat buffers."""
    if array.dtype.kind != "O":
        raise SchemaError(f"{owner} as {array.dtype} where bytes were promised{_HINTS['S']}")
    _refuse_others(array, bytes, owner)
    items = array.ravel().tolist()
    splits = _splits(np.array([len(item) for item in items], np.int64))
    return BytesBlock(np.frombuffer(b"".join(items), np.uint8), splits, array.shape)


def _refuse_others(array: NDArray[np.object_], kind: type, owner: str) -> None:
    other = next((item for item in array.ravel().tolist() if not isinstance(item, kind)), None)
    if other is not None:
        raise SchemaError(f"{owner} with {other!r:.100} in it, where {kind.__name__} objects were promised")
