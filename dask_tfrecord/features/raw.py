"""Arrays in the bytes of a value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_tfrecord._native import Content, ValueLayout
from dask_tfrecord.blocks import (
    ArraysBlock,
    Block,
    BytesBlock,
    RaggedBlock,
    RowLimitError,
    broadcast_zeros,
    first_true,
    row_of_value,
)
from dask_tfrecord.errors import SchemaError, plural
from dask_tfrecord.features.base import Feature
from dask_tfrecord.features.dtypes import checked_dtype, checked_shape, numpy_dtype
from dask_tfrecord.features.encoded import (
    Encoded,
    EncodedArray,
    checked_compression,
    checked_count,
    deflated,
    iter_values,
)
from dask_tfrecord.features.images.pixels import ImageEncoding
from dask_tfrecord.features.keyed_values import KeyedValues, flat
from dask_tfrecord.features.keys import Decoded, KeySpec, Scope
from dask_tfrecord.features.size_keys import check_size_keys, keyed_sizes, shapes_of_keys, size_specs, sizes_and_keys
from dask_tfrecord.features.tensor import TensorFeature
from dask_tfrecord.features.tfds_entries import Entry, sequence_entry, tensor_entry
from dask_tfrecord.shards.deflate import inflated_value


@dataclass(frozen=True, slots=True, repr=False)
class RawFeature(EncodedArray):
    """Read an array that is stored as raw bytes, like `tf.io.decode_raw`.

    Parameters
    ----------
    shape : tuple of int
        Shape of one array; its bytes are in C order. One size may be -1, which the number of bytes then determines: if
        it is the first size, rows are ragged; otherwise each row is an array with its own shape. If a key of the record
        contains the size, as one int64, give its name: ``("image/height", "image/width", 3)``. `to_tfrecord` writes
        these keys, too.
    dtype : str or dtype
        Any numeric or bool NumPy dtype, or ``"bfloat16"``, in the byte order of the file (``">i2"``). Decoded arrays
        have native byte order.
    count : int, optional
        Number of arrays per record, each in a bytes value of its own: rows have the shape ``(count, *shape)``. -1 for
        any number, including zero. By default a record has one array.
    compression_type : {"ZLIB", "GZIP"}, optional
        Compression of each bytes value, as `tf.io.decode_compressed` reads it.
    size_keys : tuple of str, optional
        Keys of the sizes that are -1, as an alternative to names in `shape`. If several sizes are open, one key may
        list all sizes of the array: ``RawFeature((None, None, None), "uint8", size_keys=["image_shape"])``.
    value_key : str, optional
        Key of the values in the record, by default the name of the feature. Several features may read the same key.

    Examples
    --------
    >>> RawFeature((64, 64, 3), "float32").nbytes
    49152
    >>> RawFeature((64, 64, 3), "float32", count=2).block_shape
    (2, 64, 64, 3)
    """

    shape: tuple[int, ...]
    # Required, as in FixedLenFeature.
    dtype: str = field(default_factory=str)
    count: int | None = field(default=None, kw_only=True)
    compression_type: str | None = field(default=None, kw_only=True)
    size_keys: tuple[str, ...] = field(default=(), kw_only=True)
    value_key: str | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:
        # Arguments accept more types than the fields store.
        def __init__(
            self,
            shape: int | Sequence[int | str | None],
            dtype: Any,
            *,
            count: int | None = None,
            compression_type: str | None = None,
            size_keys: Sequence[str] = (),
            value_key: str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        compression = checked_compression(self.compression_type, "RawFeature")
        given, size_keys = sizes_and_keys(self.shape, self.size_keys, "RawFeature")
        shape = checked_shape(given, "RawFeature", open_sizes=100)
        count = checked_count(self.count, "RawFeature", () if size_keys else shape)
        if isinstance(self.dtype, str) and not self.dtype:
            raise SchemaError(f"RawFeature needs a dtype, as in RawFeature({shape}, 'uint8')")
        dtype = checked_dtype(self.dtype, "RawFeature")
        if size_keys:
            check_size_keys(size_keys, shape, "RawFeature")
            if count is not None:
                raise SchemaError("RawFeature: sizes in keys need one array per record; remove count")
        elif shape.count(-1) > 1:
            raise SchemaError(
                f"RawFeature: the number of bytes determines only one open size; got shape {shape} with "
                f"{shape.count(-1)}"
            )
        if -1 in shape and 0 in shape:
            raise SchemaError(f"RawFeature: rows without bytes can't be counted; got shape {shape}")
        self._set(shape=shape, dtype=dtype, count=count, compression_type=compression, size_keys=size_keys)

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

    def keys(self, key: str, scope: Scope) -> tuple[KeySpec, ...] | None:
        """Specify one array with a known size, or bytes values; then the keys with sizes."""
        if self.size_keys:
            return (KeySpec(key, "bytes", ValueLayout.FIXED), *size_specs(self)) if scope == "value" else None
        if scope != "value" or self.count is not None or self.compression_type is not None or -1 in self.shape:
            return Encoded.keys(self, key, scope)
        dtype = self.stored_dtype
        # The parts of a complex number are swapped by themselves.
        number = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
        swap = 1 if dtype.isnative else number
        content = Content.BOOLEANS if dtype.kind == "b" else Content.ANY
        return (KeySpec(key, "bytes", ValueLayout.RAW, self.nbytes, swap, content=content),)

    def tfds_entry(self, name: str, labels: Sequence[str] | None, format: str) -> Entry | None:
        """Describe a tensor that is stored as bytes, or a sequence of them."""
        if self.count is not None:
            return sequence_entry(self.with_count(None).tfds_entry(name, labels, format), self.count)
        if self.size_keys or not self.stored_dtype.isnative or self.compression_type not in (None, "ZLIB"):
            return None
        return tensor_entry(self.stored_dtype.name, self.shape, "zlib" if self.compression_type else "bytes")

    def keys_for_sizes(self, keys: tuple[KeySpec, ...]) -> tuple[KeySpec, ...]:
        """Return the keys of compressed bytes, and of bool, whose bytes are checked."""
        return keys if self.compression_type is not None or self.stored_dtype.kind == "b" else keys[1:]

    def assemble(self, decoded: Decoded) -> Block:
        """Assemble arrays from bytes values: one or several a row, with one size or a multiple of it."""
        if self.compression_type is not None:
            decoded = self._inflated(self.compression_type, decoded)
        files = decoded.keys[0].encoded()
        is_open, sizes = -1 in self.shape, np.diff(files.splits)
        shapes = None
        if self.size_keys:
            shapes = shapes_of_keys(self, decoded.keys[1:], sizes, self.stored_dtype.itemsize, "byte")
        if (number := first_true(sizes % self.nbytes != 0 if is_open else sizes != self.nbytes)) is not None:
            needed = f"a multiple of {self.nbytes:,}" if is_open else f"{self.nbytes:,}"
            raise decoded.error(self, number, f"holds {plural(sizes[number], 'byte')}; {self} needs {needed}")
        dtype = self.stored_dtype
        if dtype.kind == "b" and (at := first_true(files.values > 1)) is not None:
            number, _ = row_of_value(files.splits, at)
            raise decoded.error(self, number, f"holds a byte {files.values[at]}; {self} accepts 0 and 1")
        if decoded.keys[0].values is None:
            numbers = broadcast_zeros(self.item_dtype, int(files.splits[-1]) // dtype.itemsize)
        else:
            numbers = files.values.view(dtype).astype(self.item_dtype, copy=False)
        if not is_open:
            block = decoded.in_rows(self, numbers.reshape(len(files), *self.shape))
            return decoded.into(block) if isinstance(block, np.ndarray) else block
        if self.ragged_rank and decoded.keys[0].row_splits is None:
            return RaggedBlock(numbers.reshape(-1, *self.shape[1:]), files.splits // self.nbytes)
        if shapes is None:
            shapes = np.tile(np.array(self.shape, np.int64), (len(files), 1))
            shapes[:, self.shape.index(-1)] = sizes // self.nbytes
        return decoded.in_rows(self, ArraysBlock(numbers, files.splits // dtype.itemsize, shapes))

    def _inflated(self, compression: str, decoded: Decoded) -> Decoded:
        """Return the decompressed bytes values."""
        files = decoded.keys[0].encoded()
        limit = decoded.limit
        is_open = -1 in self.shape
        inflated, size = [], 0
        for number, file in enumerate(iter_values(files)):
            # One byte more than accepted, to find values that are too long; 0 for any number.
            most = 0 if is_open else self.nbytes + 1
            if is_open and limit is not None:
                most = limit.nbytes - size + 1
            value, whole = inflated_value(file, compression, most)
            size += len(value)
            if limit is not None and size > limit.nbytes:
                raise decoded.error(self, number, limit.message(), RowLimitError)
            if not is_open and len(value) > self.nbytes:
                raise decoded.error(self, number, f"holds more than {plural(self.nbytes, 'byte')}, which {self} needs")
            if not whole:
                raise decoded.error(self, number, f"holds damaged {compression} data, which {self} can't inflate")
            inflated.append(value)
        block = BytesBlock.of(inflated)
        values = decoded.keys[0]._replace(values=block.values, value_splits=block.splits)
        return decoded._replace(keys=[values, *decoded.keys[1:]])

    def item(self) -> Feature | None:
        """Return the feature that reads one array, or rows from an array whose length is open."""
        if self.count == -1:
            return self.with_count(None)
        if self.own_shapes and self.shape[0] < 0:
            # Sizes of items are not stored, and arrays that differ in shape are laid out like tensors.
            return TensorFeature(self.shape[1:], self.item_dtype)
        return replace(self, shape=self.shape[1:], size_keys=()) if self.ragged_rank else None

    def encode_block(self, key: str, block: Any, encoding: ImageEncoding) -> list[KeyedValues]:
        """Return one bytes value for each array, in the byte order of the file."""
        rows: Any = block.values if isinstance(block, RaggedBlock | ArraysBlock) else block
        keyed = keyed_sizes(self, block) if self.size_keys else []
        values = np.ascontiguousarray(rows, self.stored_dtype).reshape(-1).view(np.uint8)
        if isinstance(block, ArraysBlock):
            splits = block.row_splits * self.stored_dtype.itemsize
        else:
            ends = block.row_splits if isinstance(block, RaggedBlock) else np.arange(len(block) + 1, dtype=np.int64)
            splits = ends * self.nbytes
        if self.compression_type is None:
            return [KeyedValues(key, values, value_splits=splits), *keyed]
        arrays = BytesBlock(values, splits, (len(block),))
        return [flat(key, deflated(arrays, self.compression_type)), *keyed]
