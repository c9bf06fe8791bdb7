"""Features whose values are encoded as bytes: raw arrays, tensors, images, text.

TensorFlow decodes them in a step after parsing; each docstring names its function.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.base import Feature, Shape, checked_dtype, checked_shape, numpy_dtype

# Window sizes of zlib, by the names of `tf.io.decode_compressed`.
COMPRESSION_WBITS = {"ZLIB": 15, "GZIP": 31}
IMAGE_DTYPES = ("uint8", "uint16", "float16", "float32", "float64")
# Channels that can be requested; 0 for those of the file.
IMAGE_CHANNELS = (0, 1, 3, 4)


class Encoded(Feature):
    """A feature whose stored values are bytes.

    Attributes
    ----------
    count : int or None
        Bytes values per record: None for one without an axis of its own, -1 for any number.
    """

    __slots__ = ()
    count: Any

    @property
    @abstractmethod
    def value_shape(self) -> tuple[int, ...]:
        """Shape of the array in one bytes value; -1 for an open size."""

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of a row, or of one array of a ragged row; ``()`` if arrays differ in shape."""
        if self.own_shapes:
            return ()
        several = self.count is not None and self.count >= 0
        return (self.count, *self.value_shape) if several else self.value_shape

    @property
    def ragged_rank(self) -> int:
        """1 if a record holds any number of arrays, otherwise 0."""
        return int(self.count == -1)


def _checked_count(count: Any, owner: str) -> int | None:
    """Check the number of values per record: None for one, -1 for any number."""
    if count is None:
        return None
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or (count < 1 and count != -1):
        raise SchemaError(
            f"{owner}: expected count=-1 for any number of values per record, a positive number, or None for one; "
            f"got {count!r}"
        )
    return int(count)


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
        count = _checked_count(self.count, "RawFeature")
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


@dataclass(frozen=True, slots=True, repr=False)
class TensorFeature(Encoded):
    """A tensor stored as a serialized TensorProto, as `tf.io.parse_tensor` reads it.

    Parameters
    ----------
    shape : tuple of int or None
        Shape of one tensor. None or -1 accepts any size: each row is then an array of its own shape.
    dtype : str or dtype
        The tensor's dtype: numeric, bool, ``"bfloat16"``, or ``"bytes"`` for strings. Another dtype in a record is an
        error; values are not cast.
    count : int, optional
        Number of tensors per record, each in a bytes value of its own: rows have the shape ``(count, *shape)``. -1 for
        any number, zero included. By default a record holds one tensor.

    Examples
    --------
    >>> TensorFeature((None, 3), "float32").shape
    (-1, 3)
    >>> TensorFeature((4, 3), "float32", count=2).block_shape
    (2, 4, 3)
    """

    shape: tuple[int, ...]
    dtype: str
    count: int | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:
        # Arguments accept more types than the fields store.
        def __init__(self, shape: Shape, dtype: Any, *, count: int | None = None) -> None: ...

    def __post_init__(self) -> None:
        shape = checked_shape(self.shape, "TensorFeature", open_sizes=100)
        count = _checked_count(self.count, "TensorFeature")
        if count not in (None, -1) and -1 in shape:
            raise SchemaError(f"TensorFeature: a fixed number of tensors per record needs a known shape; got {shape}")
        dtype: Any = self.dtype
        name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
        if dtype in (bytes, object) or name in ("bytes", "string", "object"):
            dtype = "bytes"
        else:
            dtype = checked_dtype(dtype, "TensorFeature")
            if not numpy_dtype(dtype, "TensorFeature").isnative:
                raise SchemaError(f"TensorFeature: a TensorProto has one byte order, little-endian; got {dtype}")
        self._set(shape=shape, dtype=dtype, count=count)

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of a decoded array: object for strings."""
        return np.dtype(object) if self.dtype == "bytes" else numpy_dtype(self.dtype, "TensorFeature")

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Shape of one tensor."""
        return self.shape

    @property
    def own_shapes(self) -> int:
        """Number of axes if a size is open, otherwise 0."""
        return len(self.shape) if -1 in self.shape else 0


@dataclass(frozen=True, slots=True, repr=False)
class ImageFeature(Encoded):
    """An encoded image: JPEG, PNG, BMP, GIF (its first frame) or WebP, as `tf.io.decode_image` reads it.

    Needs Pillow: ``pip install 'dask-tfrecord[image]'``, which installs simplejpeg too, for speed. As in TensorFlow,
    the orientation in EXIF data is ignored.

    Parameters
    ----------
    shape : tuple of int or None, optional
        ``(height, width, channels)``. If all are known, blocks are dense and an image of another shape is an error. By
        default, or if one is None, each row is an array of its own shape. With shape ``(count, height, width,
        channels)``, a record holds `count` images; -1 for any number, whose sizes may be open, too.
    dtype : str or dtype, default "uint8"
        ``"uint8"``, ``"uint16"`` (16 bit PNG), or a float dtype, scaled to [0, 1] as by
        `tf.image.convert_image_dtype`.
    size : tuple of int, optional
        ``(height, width)`` to resize to, as by `tf.image.resize` with its defaults: bilinear, not antialiased.
        Integers are rounded to the nearest.
    channels : int, default 0
        0 for those of the file, or 1, 3 or 4 to convert to, as by `tf.io.decode_image`.
    fast : bool, default False
        Decode JPEG with libjpeg's fast DCT, TensorFlow's default. By default the accurate DCT is used, TensorFlow's
        ``dct_method="INTEGER_ACCURATE"``. The levels of both differ by a few, of noise at quality 100 by dozens; on
        most processors both are equally fast. True needs simplejpeg.

    Examples
    --------
    >>> ImageFeature(size=(224, 224), channels=3, dtype="float32").block_shape
    (224, 224, 3)
    """

    shape: tuple[int, ...] | None = None
    dtype: str = "uint8"
    size: tuple[int, int] | None = None
    channels: int = 0
    fast: bool = False

    if TYPE_CHECKING:
        # Arguments accept more types than the fields store.
        def __init__(
            self,
            shape: Shape | None = None,
            dtype: Any = "uint8",
            size: Shape | None = None,
            channels: int = 0,
            fast: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        dtype = numpy_dtype(self.dtype, "ImageFeature").name
        if dtype not in IMAGE_DTYPES:
            raise SchemaError(f"ImageFeature: expected dtype {', '.join(IMAGE_DTYPES)}; got {self.dtype!r}")
        if self.channels not in IMAGE_CHANNELS:
            raise SchemaError(
                f"ImageFeature: expected channels 0 (those of the file), 1, 3 or 4; got {self.channels!r}"
            )
        size = None if self.size is None else checked_shape(self.size, "ImageFeature")
        shape = (-1, -1, -1) if self.shape is None else checked_shape(self.shape, "ImageFeature", open_sizes=4)
        if len(shape) not in (3, 4) or (len(shape) == 4 and shape[0] == 0):
            raise SchemaError(
                f"ImageFeature: expected shape (height, width, channels), or (count, height, width, channels) for "
                f"several images per record, -1 for any number; got {shape}"
            )
        if size is not None and (len(size) != 2 or 0 in size):
            raise SchemaError(f"ImageFeature: expected size (height, width), both positive; got {size}")
        *images, height, width, bands = shape
        decoded = (*(size or (height, width)), self.channels or bands)
        given = (height, width, bands)
        if any(one not in (-1, other) for one, other in zip(given, decoded, strict=True)):
            raise SchemaError(
                f"ImageFeature: shape {shape} contradicts size={size} and channels={self.channels}; omit it, or give "
                f"the shape of decoded images, {(*images, *decoded)}"
            )
        if images and images[0] > 0 and -1 in decoded:
            raise SchemaError(f"ImageFeature: a fixed number of images per record needs a known shape; got {shape}")
        shape = (*images, *decoded)
        open_shape = None if shape == (-1, -1, -1) else shape
        self._set(shape=open_shape, dtype=dtype, size=size, channels=int(self.channels), fast=bool(self.fast))

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of a decoded image."""
        return np.dtype(self.dtype)

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return (-1, -1, -1) if self.shape is None else self.shape[-3:]

    @property
    def count(self) -> int | None:
        """Images per record: the first of four sizes, or None for one."""
        return self.shape[0] if self.shape is not None and len(self.shape) == 4 else None

    @property
    def own_shapes(self) -> int:
        """3 if images differ in size, otherwise 0."""
        return 3 if self.shape is None or -1 in self.shape[-3:] else 0


@dataclass(frozen=True, slots=True, repr=False)
class TextFeature(Encoded):
    """UTF-8 strings, decoded to NumPy's `StringDType`.

    Invalid UTF-8 raises an error that names the record, and the step of a sequence feature.

    Parameters
    ----------
    default_value : str, optional
        Value of a record that lacks the feature, or whose list is empty or unset.
    count : int, optional
        Number of strings per record; -1 for any number, zero included. By default a record holds one, and rows are
        strings.

    Examples
    --------
    >>> TextFeature()
    TextFeature()
    """

    default_value: str | None = field(default=None)
    count: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        count = _checked_count(self.count, "TextFeature")
        default = self.default_value.decode() if isinstance(self.default_value, bytes) else self.default_value
        if default is not None and not isinstance(default, str):
            raise SchemaError(f"TextFeature: expected text as default value; got {default!r}")
        if default is not None and count is not None:
            raise SchemaError("TextFeature: default_value is for one string per record; remove it, or count")
        self._set(default_value=default, count=count)

    @property
    def dtype(self) -> str:
        """The kind of the stored value: bytes."""
        return "bytes"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record: a scalar, or a number of strings."""
        return () if self.count is None else (self.count,)

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of a decoded array: `numpy.dtypes.StringDType`."""
        return np.dtypes.StringDType()

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Shape of one string: a scalar."""
        return ()
