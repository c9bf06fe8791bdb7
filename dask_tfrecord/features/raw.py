"""Arrays in the bytes of a value."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.dtypes import Shape, checked_dtype, checked_shape, numpy_dtype
from dask_tfrecord.features.encoded import Encoded, checked_count

# Window sizes of zlib, by the names of `tf.io.decode_compressed`.
COMPRESSION_WBITS = {"ZLIB": 15, "GZIP": 31}


@dataclass(frozen=True, slots=True, repr=False)
class RawFeature(Encoded):
    """An array stored as the bytes of one value, as `tf.io.decode_raw` reads it.

    Parameters
    ----------
    shape : tuple of int
        Shape of one array; its bytes are in C order. One size may be -1: the number of bytes determines it. With a
        leading -1, rows are ragged; elsewhere, each row is an array of its own shape.
    dtype : str or dtype
        Any numeric or bool NumPy dtype, or ``"bfloat16"``, with the byte order of the file (``">i2"``). Decoded
        arrays have native byte order.
    count : int, optional
        Number of arrays per record, each in a bytes value of its own: rows have the shape ``(count, *shape)``. -1 for
        any number, zero included. By default a record holds one array of shape `shape`.
    compression_type : {"ZLIB", "GZIP"}, optional
        Compression of each bytes value, as `tf.io.decode_compressed` reads it.

    Examples
    --------
    >>> RawFeature((64, 64, 3), "float32").nbytes
    49152
    >>> RawFeature((64, 64, 3), "float32", count=2).block_shape
    (2, 64, 64, 3)
    """

    shape: tuple[int, ...]
    dtype: str
    count: int | None = field(default=None, kw_only=True)
    compression_type: str | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:
        # Arguments accept more types than the fields store.
        def __init__(
            self, shape: Shape, dtype: Any, *, count: int | None = None, compression_type: str | None = None
        ) -> None: ...

    def __post_init__(self) -> None:
        if self.compression_type not in (None, "", *COMPRESSION_WBITS):
            raise SchemaError(
                f"RawFeature: expected compression_type 'ZLIB', 'GZIP' or None; got {self.compression_type!r}"
            )
        shape = checked_shape(self.shape, "RawFeature", open_sizes=100)
        count = checked_count(self.count, "RawFeature")
        dtype = checked_dtype(self.dtype, "RawFeature")
        if shape.count(-1) > 1:
            raise SchemaError(
                f"RawFeature: the number of bytes determines one open size; got shape {shape} with {shape.count(-1)}"
            )
        if -1 in shape and 0 in shape:
            raise SchemaError(f"RawFeature: rows of no bytes cannot be counted; got shape {shape}")
        if count not in (None, -1) and -1 in shape:
            raise SchemaError(f"RawFeature: a fixed number of arrays per record needs a known shape; got {shape}")
        self._set(shape=shape, dtype=dtype, count=count, compression_type=self.compression_type or None)

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The dtype in the file, byte order included."""
        return numpy_dtype(self.dtype, "RawFeature")

    @property
    def nbytes(self) -> int:
        """Bytes of one value; if a size is open, of 1 along that axis."""
        return math.prod(size for size in self.shape if size != -1) * self.stored_dtype.itemsize

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of a decoded array, in native byte order."""
        return self.stored_dtype.newbyteorder("=")

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Shape of one array, without the open length of ragged rows."""
        return self.shape[self._has_ragged_rows :]

    @property
    def _has_ragged_rows(self) -> bool:
        """Return whether a record holds one array of an open length."""
        return self.count is None and self.shape[:1] == (-1,)

    @property
    def ragged_rank(self) -> int:
        """1 if the length or the number of arrays is open, otherwise 0."""
        return int(self._has_ragged_rows or self.count == -1)

    @property
    def own_shapes(self) -> int:
        """Number of axes if arrays differ in another size than the length of ragged rows, otherwise 0."""
        return len(self.shape) if -1 in self.shape and not self._has_ragged_rows else 0
