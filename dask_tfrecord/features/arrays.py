"""The base of features that decode each bytes value to an array by a Python method: of users, too."""

from __future__ import annotations

import datetime
import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.blocks import (
    ArraysBlock,
    Block,
    BytesBlock,
    RaggedBlock,
    RowError,
    RowLimitError,
    splits_of,
    to_text,
)
from dask_tfrecord.errors import SchemaError, redact
from dask_tfrecord.features.base import Feature
from dask_tfrecord.features.dtypes import checked_decoded_dtype, checked_shape, values_dtype
from dask_tfrecord.features.encoded import EncodedArray, checked_count, iter_arrays, iter_values
from dask_tfrecord.features.images.pixels import ImageEncoding
from dask_tfrecord.features.keyed_values import KeyedValues, flat
from dask_tfrecord.features.keys import Decoded
from dask_tfrecord.features.listed import FixedLenFeature
from dask_tfrecord.features.raw import RawFeature
from dask_tfrecord.features.tensor import TensorFeature
from dask_tfrecord.features.text import TextFeature


class ArrayFeature(EncodedArray):
    """Base of feature classes whose bytes values are arrays in a format of their own.

    A subclass is a frozen dataclass with three attributes, as arguments or as constants of the class, and two methods.
    `register_feature` makes it known by its name.

    Attributes
    ----------
    shape : tuple of int
        Shape of one array, with -1 for sizes that differ between values. With a leading -1 alone, rows are ragged;
        otherwise each row is an array of its own shape.
    dtype : str
        The dtype of the arrays: numeric, bool, ``"text"``, or times like ``"datetime64[s]"``. Text has the shape
        ``()``, or one axis; text and times have no open size but a leading one.
    count : int or None
        Bytes values per record: None for one, -1 for any number. It has to be an argument, with the default None.
    """

    __slots__ = ()

    def decode_value(self, value: bytes) -> Any:
        """Return the array in one bytes value. Every exception becomes an error that names the record."""
        raise NotImplementedError

    def encode_value(self, array: NDArray[Any]) -> bytes:
        """Return the bytes of one array. Every exception becomes an error that names the record."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        """Check dtype, shape and count."""
        owner = type(self).__name__
        shape, dtype = checked_shape(self.shape, owner, open_sizes=100), checked_decoded_dtype(self.dtype, owner)
        count = checked_count(self.count, owner, shape)
        if -1 in shape and 0 in shape:
            raise SchemaError(f"{owner}: rows without values can't be counted; got shape {shape}")
        if not values_dtype(dtype).isnative:
            raise SchemaError(f"{owner}: decoded arrays have native byte order; got dtype {dtype}")
        kind = values_dtype(dtype).kind
        if kind in "mMT" and -1 in shape[(count is None) :]:
            raise SchemaError(
                f"{owner}: arrays of {dtype} must have one known shape, or an open first size alone; got {shape}"
            )
        if kind == "T" and len(shape) + (count is not None) > 1:
            raise SchemaError(f"{owner}: a row has one text, or a list of texts; got shape {shape}, count {count}")
        self._set(shape=shape, dtype=dtype, count=count)

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of a decoded array."""
        return values_dtype(self.dtype)

    def item(self) -> Feature | None:
        """Return the feature that reads one array, or rows from an array whose length is open."""
        if self.count == -1:
            return self.with_count(None)
        if self.shape[:1] != (-1,):
            return None
        kind, inner = self.item_dtype.kind, self.shape[1:]
        if kind == "T":
            return TextFeature()
        if kind in "mM":
            return FixedLenFeature(inner, self.item_dtype)
        # Arrays that differ in shape are laid out like tensors, also with one open size.
        return TensorFeature(inner, self.item_dtype) if -1 in inner else RawFeature(inner, self.item_dtype)

    def reason_not_written(self) -> str | None:
        """Return why arrays can't be written, if the class lacks `encode_value`."""
        return "has no encode_value" if type(self).encode_value is ArrayFeature.encode_value else None

    def assemble(self, decoded: Decoded) -> Block:
        """Decode each bytes value by `decode_value`."""
        arrays, nbytes, limit = [], 0, decoded.limit
        for number, value in enumerate(iter_values(decoded.keys[0].encoded())):
            try:
                array = _own_array(self.decode_value(bytes(value)), self.item_dtype)
            except (MemoryError, RecursionError):
                raise
            except Exception as error:
                raise decoded.error(self, number, f"can't be decoded by {self}: {_error_text(error)}") from error
            nbytes += array.nbytes
            if limit is not None and nbytes > limit.nbytes:
                raise decoded.error(self, number, limit.message(), RowLimitError)
            if array.dtype != self.item_dtype or not self._fits(array.shape):
                found = f"an array of {array.dtype} and shape {array.shape}"
                raise decoded.error(self, number, f"is decoded to {found}; {self} takes {self.dtype} and {self.shape}")
            arrays.append(array)
        return self._join_arrays(arrays, decoded)

    def _fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self.shape) and all(
            size in (-1, found) for size, found in zip(self.shape, shape, strict=True)
        )

    def _join_arrays(self, arrays: list[NDArray[Any]], decoded: Decoded) -> Block:
        """Join arrays to a block: dense, with rows of variable length, or each of its own shape."""
        dtype = self.item_dtype
        if not self.own_shapes and not self._has_ragged_rows:
            values = np.empty((len(arrays), *self.shape), dtype)
            for number, array in enumerate(arrays):
                values[number] = array
            block = decoded.in_rows(self, values)
            return decoded.into(block) if isinstance(block, np.ndarray) else block
        flat_values = np.concatenate([np.empty(0, dtype), *(array.ravel() for array in arrays)])
        ends = splits_of([array.size for array in arrays])
        if self._has_ragged_rows and decoded.keys[0].row_splits is None:
            inner = self.shape[1:]
            return RaggedBlock(flat_values.reshape(-1, *inner), ends // math.prod(inner))
        shapes = np.array([array.shape for array in arrays], np.int64).reshape(len(arrays), len(self.shape))
        return decoded.in_rows(self, ArraysBlock(flat_values, ends, shapes))

    def encode_block(self, key: str, block: Any, encoding: ImageEncoding) -> list[KeyedValues]:
        """Encode each array by `encode_value`."""
        values: Any = block.values if isinstance(block, RaggedBlock) else block
        if isinstance(values, BytesBlock):
            values = to_text(values)
        rows: Any = iter_arrays(values)
        if isinstance(block, RaggedBlock):
            rows = (np.asarray(values)[start:stop] for start, stop in pairwise(block.row_splits.tolist()))
        encoded = []
        for row, array in enumerate(rows):
            try:
                # The arrays belong to the caller, and a task may run again: the function gets a copy.
                made = self.encode_value(np.asarray(array).copy())
                # `bytes(5)` would make five zeros.
                if not isinstance(made, bytes | bytearray | memoryview):
                    raise TypeError(f"expected bytes; got {type(made).__name__}")
                encoded.append(bytes(made))
            except (MemoryError, RecursionError):
                raise
            except Exception as error:
                raise RowError(row, f"can't be encoded by {self}: {_error_text(error)}") from error
        return [flat(key, BytesBlock.of(encoded))]


def _own_array(given: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a copy of a decoded array: a function may return the same memory for each value."""
    if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
        raise TypeError("it returned an array with masked values; fill them, as in array.filled(0)")
    if dtype.kind in "mM":
        return _own_times(np.asarray(given), dtype)
    if dtype.kind != "T":
        return np.asarray(given).copy()
    # NumPy would make text of any object, and drop zeros at the end of texts of a list.
    if isinstance(given, str):
        # NumPy's own drops zeros at its end, too.
        given = "".join(given)
    texts = np.asarray(given, None if hasattr(given, "dtype") else object).astype(object)
    if others := [text for text in texts.ravel().tolist() if not isinstance(text, str)]:
        raise TypeError(f"expected text; got {others[0]!r:.50}")
    return texts.astype(dtype)


def _own_times(given: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert times of another unit, and Python's, to a unit that holds them."""
    if given.dtype == object and all(type(each) in _TIMES for each in given.ravel().tolist()):
        given = given.astype(f"{dtype.kind}8[us]")
    if given.dtype.kind != dtype.kind:
        return given.copy()
    made = given.astype(dtype)
    if not ((made == given) | np.isnat(given)).all():
        raise ValueError(f"{dtype} can't store times of {given.dtype} without rounding")
    return made


_TIMES = (datetime.date, datetime.datetime, datetime.timedelta)


def _error_text(error: Exception) -> str:
    """Return the name and the text of an error of a user's code, whose text may be an error, too."""
    try:
        return f"{type(error).__name__}: {redact(error)}"
    except Exception:
        return type(error).__name__
