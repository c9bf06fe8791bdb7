"""Encoded images."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.blocks import (
    ArraysBlock,
    Block,
    BytesBlock,
    RaggedBlock,
    RowError,
    as_row_error,
    broadcast_zeros,
    splits_of,
)
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.dtypes import Shape, checked_shape, numpy_dtype
from dask_tfrecord.features.encoded import Encoded, iter_arrays, iter_values
from dask_tfrecord.features.images.codecs import ImageError
from dask_tfrecord.features.images.pixels import ImageEncoding, decode_image, encode_image, image_shape, resize_advice
from dask_tfrecord.features.keyed_values import KeyedValues, fixed
from dask_tfrecord.features.keys import Decoded, KeySpec, Scope
from dask_tfrecord.features.tfds_entries import Entry, class_entry, sequence_entry, shape_entry

IMAGE_DTYPES = ("uint8", "uint16", "float16", "float32", "float64")

# Filters of `tf.image.resize`.
IMAGE_METHODS = ("bilinear", "lanczos3")

# Channels that can be requested; 0 keeps the file's.
IMAGE_CHANNELS = (0, 1, 3, 4)


@dataclass(frozen=True, slots=True, repr=False)
class ImageFeature(Encoded):
    """Decode images: JPEG, PNG, BMP, GIF (the first frame) or WebP, like `tf.io.decode_image`.

    Needs Pillow: ``pip install 'dask-tfrecord[image]'``, which also installs simplejpeg, for speed. As in TensorFlow,
    the orientation in EXIF data is ignored.

    Parameters
    ----------
    shape : tuple of int or None, optional
        ``(height, width, channels)``. If all are known, blocks are dense, and an image of a different shape is an
        error. By default, or if one is None, each row is an array with its own shape. With shape
        ``(count, height, width, channels)``, a record has `count` images; -1 means any number. Their sizes may be open,
        too.
    dtype : str or dtype, default "uint8"
        ``"uint8"``, ``"uint16"`` (16 bit PNG), or a float dtype, scaled to [0, 1] as by
        `tf.image.convert_image_dtype`.
    size : tuple of int, optional
        ``(height, width)`` to resize to, like `tf.image.resize`. Integers are rounded to the nearest, and clipped to
        the range of `dtype`.
    channels : int, default 0
        0 keeps the channels of the file; 1, 3 or 4 convert, as in `tf.io.decode_image`.
    fast : bool, default False
        Decode JPEG with libjpeg's fast DCT, which is TensorFlow's default. By default the accurate DCT is used, which
        is TensorFlow's ``dct_method="INTEGER_ACCURATE"``. Their results differ by a few levels, or by dozens for noise
        at quality 100; on most processors both are equally fast. True needs simplejpeg.
    reduced : bool, default False
        Decode JPEG at the smallest of libjpeg's scales 1/8, 1/4 and 1/2 that still covers `size`, like
        `tf.io.decode_jpeg` with ``ratio``, then resize. This is faster, but values differ from those of the whole
        image, resized, because pixels are averaged that the bilinear filter would leave out. True needs `size` and
        simplejpeg.
    method : {"bilinear", "lanczos3"}, default "bilinear"
        Filter for resizing. ``"lanczos3"`` calls the sine of the C library; if TensorFlow was built with a different C
        library, integers may differ by a level.
    antialias : bool, default False
        Average the pixels that a smaller image would otherwise leave out. `dlimp.transforms.resize_image` is
        ``method="lanczos3", antialias=True``.
    value_key : str, optional
        Key of the values in the record, by default the name of the feature. Several features may read the same key.

    Examples
    --------
    >>> ImageFeature(size=(224, 224), channels=3, dtype="float32").block_shape
    (224, 224, 3)
    """

    is_image = True
    tfmd_domain = "image_domain"
    shape: tuple[int, ...] | None = None
    dtype: str = "uint8"
    size: tuple[int, int] | None = None
    channels: int = 0
    fast: bool = False
    reduced: bool = False
    method: str = "bilinear"
    antialias: bool = False
    value_key: str | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:
        # Arguments accept more types than the fields store.
        def __init__(
            self,
            shape: Shape | None = None,
            dtype: Any = "uint8",
            size: Shape | None = None,
            channels: int = 0,
            fast: bool = False,
            reduced: bool = False,
            method: Literal["bilinear", "lanczos3"] = "bilinear",
            antialias: bool = False,
            *,
            value_key: str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        """Check the arguments, and complete the shape by what is known of decoded images."""
        dtype = numpy_dtype(self.dtype, "ImageFeature").name
        if dtype not in IMAGE_DTYPES:
            raise SchemaError(f"ImageFeature: expected dtype {', '.join(IMAGE_DTYPES)}; got {self.dtype!r}")
        if self.channels not in IMAGE_CHANNELS:
            raise SchemaError(
                f"ImageFeature: expected channels 0 (those of the file), 1, 3 or 4; got {self.channels!r}"
            )
        size = self._checked_size()
        shape = self._decoded_shape(size)
        options = {name: bool(getattr(self, name)) for name in ("fast", "reduced", "antialias")}
        self._set(
            shape=None if shape == (-1, -1, -1) else shape,
            dtype=dtype,
            size=size,
            channels=int(self.channels),
            **options,
        )

    def _decoded_shape(self, size: tuple[int, ...] | None) -> tuple[int, ...]:
        """Return the shape of the images of a record, -1 for what is open; refuse one that contradicts the size."""
        shape = (-1, -1, -1) if self.shape is None else checked_shape(self.shape, "ImageFeature", open_sizes=4)
        if len(shape) not in (3, 4) or (len(shape) == 4 and shape[0] == 0):
            sides = (*shape, *shape)[:2] if len(shape) < 3 else shape[-3:-1]
            resize = f". To resize images, write ImageFeature(size={sides})" if min(sides, default=0) > 0 else ""
            raise SchemaError(
                f"ImageFeature: expected shape (height, width, channels), or (count, height, width, channels) for "
                f"several images per record, -1 for any number; got {shape}{resize}"
            )
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
        return (*images, *decoded)

    def _checked_size(self) -> tuple[int, ...] | None:
        """Return the size that images are resized to, if any; refuse options of resizing without it."""
        size = None if self.size is None else checked_shape(self.size, "ImageFeature")
        if size is not None and (len(size) != 2 or 0 in size):
            advice = f": write size=({size[0]}, {size[0]})" if len(size) == 1 and size[0] else ""
            raise SchemaError(f"ImageFeature: expected size (height, width), both positive; got {self.size}{advice}")
        if self.reduced and size is None:
            raise SchemaError("ImageFeature: reduced=True needs the size to which images are resized; pass size=")
        if self.method not in IMAGE_METHODS:
            raise SchemaError(f"ImageFeature: expected method {', '.join(IMAGE_METHODS)}; got {self.method!r:.100}")
        if size is None and (self.method, self.antialias) != ("bilinear", False):
            raise SchemaError("ImageFeature: method and antialias resize images; pass size=")
        return size

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

    def with_count(self, count: int | None) -> ImageFeature:
        """Return the feature for a different number of images per record: None for one, -1 for any number."""
        return replace(self, shape=self.value_shape if count is None else (count, *self.value_shape))

    def keys(self, key: str, scope: Scope) -> tuple[KeySpec, ...] | None:
        """Return the spec of encoded images."""
        # One image in each step is what any number in a record becomes.
        one = self.with_count(None) if scope != "value" and self.count == -1 else self
        return Encoded.keys(one, key, scope)

    def suggestion(self, count: int) -> str:
        """Suggest what reads a different number of images."""
        return "; ImageFeature with a shape that begins with -1 reads any number of them"

    def assemble(self, decoded: Decoded) -> Block:
        """Decode images: one per row, or several.

        Of images of any shape, all headers are read first, to allocate once.
        """
        files, ends, limit = decoded.keys[0].encoded(), decoded.splits_of_files, decoded.limit
        if not decoded.values and (self.own_shapes or decoded.keys[0].row_splits is not None):
            return decoded.in_rows(self, self._without_pixels(files, decoded))
        if self.own_shapes:
            shapes = self._image_shapes(files, decoded)
            splits = splits_of(shapes.prod(axis=1))
            if limit is not None:
                limit.check_ends(splits[ends[1:]], self.item_dtype.itemsize)
            block: Any = ArraysBlock(np.empty(int(splits[-1]), self.item_dtype), splits, shapes)
        else:
            shape = (len(files), *self.value_shape)
            if limit is not None and decoded.out is None:
                limit.check_ends(ends[1:], math.prod(self.value_shape) * self.item_dtype.itemsize)
            block = np.empty(shape, self.item_dtype) if decoded.out is None else decoded.out.reshape(shape)
        for number, (file, slot) in enumerate(zip(iter_values(files), iter_arrays(block), strict=True)):
            with _naming_row(self, decoded, number):
                decode_image(file, self, slot)
        return decoded.in_rows(self, block)

    def _without_pixels(self, files: BytesBlock, decoded: Decoded) -> Block:
        """Return images of the correct sizes whose pixels are zero, without allocating them."""
        if not self.own_shapes:
            return broadcast_zeros(self.item_dtype, (len(files), *self.value_shape))
        shapes = self._image_shapes(files, decoded)
        splits = splits_of(shapes.prod(axis=1))
        return ArraysBlock(broadcast_zeros(self.item_dtype, int(splits[-1])), splits, shapes)

    def _image_shapes(self, files: BytesBlock, decoded: Decoded) -> NDArray[np.int64]:
        """Read the shape of each decoded image, and compare it with the shape of the feature."""
        shapes = np.empty((len(files), 3), np.int64)
        expected = np.array(self.value_shape)
        for number, file in enumerate(iter_values(files)):
            with _naming_row(self, decoded, number):
                shapes[number] = image_shape(file, self)
                if ((expected != -1) & (expected != shapes[number])).any():
                    raise ImageError(
                        f"an image of shape {tuple(shapes[number].tolist())}; expected {self.value_shape}"
                        + resize_advice(self.value_shape)
                    )
        return shapes

    def tfds_entry(self, name: str, labels: Sequence[str] | None, format: str) -> Entry | None:
        """Describe images with a known number of channels, one or several a record.

        TFDS stores float images in a format of its own.
        """
        sizes = (*self.value_shape[:2], self.value_shape[2] if self.shape else self.channels or -1)
        if self.dtype not in ("uint8", "uint16") or sizes[2] == -1 or format not in ("png", "jpeg"):
            return None
        content = {"shape": shape_entry(sizes), "dtype": self.dtype, "encodingFormat": format}
        image = class_entry("image", content)
        if labels:
            labelled = {**content, "label": {"numClasses": str(len(labels))}}
            image = class_entry("image", labelled, "labeled_image.LabeledImage")
        return image if self.count is None else sequence_entry(image, self.count)

    def encode_block(self, key: str, block: Any, encoding: ImageEncoding) -> list[KeyedValues]:
        """Return the images as files."""
        return [fixed(key, _encode_images(encoding, block))]


@contextmanager
def _naming_row(feature: ImageFeature, decoded: Decoded, number: int) -> Iterator[None]:
    """Raise an `ImageError` of image `number` as an error of its row."""
    try:
        yield
    except ImageError as error:
        raise decoded.error(feature, number, f"holds {error}") from None


def _encode_images(encoding: ImageEncoding, block: Block) -> Block:
    """Encode the images of a block, one or any number per row."""
    if isinstance(block, RaggedBlock):
        with as_row_error(block.row_splits, item=True):
            files: Any = _encode_images(encoding, block.values)
        return RaggedBlock(files, block.row_splits)
    encoded = []
    for row, image in enumerate(iter_arrays(block)):
        try:
            encoded.append(encode_image(encoding, image))
        except ImageError as error:
            raise RowError(row, f"holds {error}") from None
    return BytesBlock.of(encoded)
