"""Features whose values are bytes that stand for something else: raw arrays, tensors, images, text.

TensorFlow leaves these to the pipeline behind the parsing; each docstring names the function that decodes it there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.values import Feature, Shape, checked_dtype, checked_shape, numpy_dtype

__all__ = ["Encoded", "ImageFeature", "RawFeature", "TensorFeature", "TextFeature"]

_IMAGE_DTYPES = ("uint8", "uint16", "float16", "float32", "float64")


class Encoded(Feature):
    """A feature whose stored value is bytes."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, repr=False)
class RawFeature(Encoded):
    """An array stored as the bytes of one value, as `tf.io.decode_raw` reads it.

    Parameters
    ----------
    shape : tuple of int
        Shape of one record's array; its bytes are in C order. A leading -1 takes any number of bytes that the rest
        divides, and makes rows of differing length.
    dtype : str or dtype
        Any numeric or bool NumPy dtype, or ``"bfloat16"``; it carries the byte order of the file (``">i2"``). Decoded
        arrays are in native order.

    Examples
    --------
    >>> RawFeature((64, 64, 3), "float32").nbytes
    49152
    """

    shape: tuple[int, ...]
    dtype: str

    if TYPE_CHECKING:
        # Arguments may be more than what they are kept as.
        def __init__(self, shape: Shape, dtype: Any) -> None: ...

    def __post_init__(self) -> None:
        shape = checked_shape(self.shape, "RawFeature", open_sizes=1)
        dtype = checked_dtype(self.dtype, "RawFeature")
        if shape[:1] == (-1,) and 0 in shape:
            raise SchemaError(f"RawFeature: rows of no bytes can't be counted; got shape {shape}")
        self._set(shape=shape, dtype=dtype)

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The dtype in the file, byte order included."""
        return numpy_dtype(self.dtype, "RawFeature")

    @property
    def nbytes(self) -> int:
        """Bytes of one record's value, or what divides them where its length is open."""
        return math.prod(self.item_shape) * self.stored_dtype.itemsize

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of a decoded array, in native byte order."""
        return self.stored_dtype.newbyteorder("=")

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Sizes that are known."""
        return self.shape[self.ragged_rank :]

    @property
    def ragged_rank(self) -> int:
        """1 where the length is open."""
        return int(self.shape[:1] == (-1,))


@dataclass(frozen=True, slots=True, repr=False)
class TensorFeature(Encoded):
    """A tensor stored as a serialized TensorProto, as `tf.io.parse_tensor` reads it.

    Parameters
    ----------
    shape : tuple of int or None
        Shape of one record's tensor. None or -1 is any size: each row is then an array of its own shape.
    dtype : str or dtype
        The tensor's dtype: numeric, bool, ``"bfloat16"``, or ``"bytes"`` for strings. Another dtype in a record is an
        error, nothing is cast.

    Examples
    --------
    >>> TensorFeature((None, 3), "float32").shape
    (-1, 3)
    """

    shape: tuple[int, ...]
    dtype: str

    if TYPE_CHECKING:
        # Arguments may be more than what they are kept as.
        def __init__(self, shape: Shape, dtype: Any) -> None: ...

    def __post_init__(self) -> None:
        shape = checked_shape(self.shape, "TensorFeature", open_sizes=100)
        dtype: Any = self.dtype
        name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
        if dtype in (bytes, object) or name in ("bytes", "string", "object"):
            dtype = "bytes"
        else:
            dtype = checked_dtype(dtype, "TensorFeature")
            if not numpy_dtype(dtype, "TensorFeature").isnative:
                raise SchemaError(f"TensorFeature: a TensorProto has one byte order; got {dtype}")
        self._set(shape=shape, dtype=dtype)

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of a decoded array: object for strings."""
        return np.dtype(object) if self.dtype == "bytes" else numpy_dtype(self.dtype, "TensorFeature")

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of one record's tensor."""
        return () if self.own_shapes else self.shape

    @property
    def own_shapes(self) -> int:
        """Number of axes where a size is open, else 0."""
        return len(self.shape) if -1 in self.shape else 0


@dataclass(frozen=True, slots=True, repr=False)
class ImageFeature(Encoded):
    """An encoded image: JPEG, PNG, BMP, GIF (its first frame) or WebP, as `tf.io.decode_image` reads it.

    Needs Pillow: ``pip install 'dask-tfrecord[image]'``. The orientation that EXIF asks for is left alone, as
    TensorFlow leaves it.

    Parameters
    ----------
    shape : tuple of int or None, optional
        ``(height, width, channels)``. If all are known, blocks are dense and an image of another shape is an error; by
        default, or where one is None, each row is an array of its own shape. With another size in front, -1, a record
        holds any number of images of one shape.
    dtype : str or dtype, default "uint8"
        ``"uint8"``, ``"uint16"`` (16 bit PNG), or a float type, which scales to [0, 1] as
        `tf.image.convert_image_dtype` does. JPEG is decoded by the accurate DCT, TensorFlow's
        ``dct_method="INTEGER_ACCURATE"``; its faster default differs by some levels.
    size : tuple of int, optional
        ``(height, width)`` to resize to, as `tf.image.resize` does by default: bilinear, not antialiased. Integers are
        rounded to the nearest.
    channels : int, default 0
        0 for those of the file, or 1, 3 or 4 to convert to, as `tf.io.decode_image` does.

    Examples
    --------
    >>> ImageFeature(size=(224, 224), channels=3, dtype="float32").block_shape
    (224, 224, 3)
    """

    shape: tuple[int, ...] | None = None
    dtype: str = "uint8"
    size: tuple[int, int] | None = None
    channels: int = 0

    if TYPE_CHECKING:
        # Arguments may be more than what they are kept as.
        def __init__(
            self, shape: Shape | None = None, dtype: Any = "uint8", size: Shape | None = None, channels: int = 0
        ) -> None: ...

    def __post_init__(self) -> None:
        dtype = numpy_dtype(self.dtype, "ImageFeature").name
        if dtype not in _IMAGE_DTYPES:
            raise SchemaError(f"ImageFeature takes dtype {', '.join(_IMAGE_DTYPES)}; got {self.dtype!r}")
        if self.channels not in (0, 1, 3, 4):
            raise SchemaError(f"ImageFeature takes channels 0 (those of the file), 1, 3 or 4; got {self.channels!r}")
        size = None if self.size is None else checked_shape(self.size, "ImageFeature")
        shape = (-1, -1, -1) if self.shape is None else checked_shape(self.shape, "ImageFeature", open_sizes=4)
        if len(shape) not in (3, 4) or (len(shape) == 4 and shape[0] != -1):
            raise SchemaError(
                f"ImageFeature takes shape (height, width, channels), or (-1, height, width, channels) for any number "
                f"of images in a record; got {shape}"
            )
        if size is not None and (len(size) != 2 or 0 in size):
            raise SchemaError(f"ImageFeature takes size (height, width), both positive; got {size}")
        *many, height, width, bands = shape
        wanted = (*(size or (height, width)), self.channels or bands)
        known = ((height, wanted[0]), (width, wanted[1]), (bands, wanted[2]))
        if any(given not in (-1, meant) for given, meant in known):
            raise SchemaError(
                f"ImageFeature: shape {shape} contradicts size={size} and channels={self.channels}, which are its own"
            )
        if many and -1 in wanted:
            raise SchemaError(f"ImageFeature: images that share a row have one shape, which is known; got {shape}")
        shape = (*many, *wanted)
        open_shape = None if shape == (-1, -1, -1) else shape
        self._set(shape=open_shape, dtype=dtype, size=size, channels=int(self.channels))

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of a decoded image."""
        return np.dtype(self.dtype)

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of one image, where it is known."""
        return () if self.own_shapes else (self.shape or ())[-3:]

    @property
    def ragged_rank(self) -> int:
        """1 where a record holds any number of images."""
        return int(self.shape is not None and len(self.shape) == 4)

    @property
    def own_shapes(self) -> int:
        """3 where images differ in size, else 0."""
        return 3 if self.shape is None or -1 in self.shape[-3:] else 0


@dataclass(frozen=True, slots=True, repr=False)
class TextFeature(Encoded):
    """One UTF-8 string per record, decoded to NumPy's `StringDType`.

    Bytes that are no UTF-8 are an error that names the record.

    Parameters
    ----------
    default_value : str, optional
        What a record has that lacks the feature, or whose list is empty or unset.

    Examples
    --------
    >>> TextFeature()
    TextFeature()
    """

    default_value: str | None = field(default=None)

    def __post_init__(self) -> None:
        default = self.default_value.decode() if isinstance(self.default_value, bytes) else self.default_value
        if default is not None and not isinstance(default, str):
            raise SchemaError(f"TextFeature: the default value {default!r} is no text")
        self._set(default_value=default)

    @property
    def dtype(self) -> str:
        """The kind of value in the file: bytes."""
        return "bytes"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record's values: a scalar."""
        return ()

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of a decoded array: `numpy.dtypes.StringDType`."""
        return np.dtypes.StringDType()

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return ()
