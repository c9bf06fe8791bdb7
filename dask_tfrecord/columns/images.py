"""From the bytes of an encoded image to an array, as `tf.io.decode_image` gives it.

JPEG, PNG, GIF, BMP and WebP are told apart by their first bytes, as in TensorFlow. The pixels are scaled, or resized,
straight into the slot that the caller has for them. Orientation that EXIF data asks for is left alone, as TensorFlow
leaves it. Pillow decodes; it comes with the extra ``dask-tfrecord[image]``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dask_tfrecord.columns.image_codecs import open_bmp, open_gif, open_jpeg, open_webp
from dask_tfrecord.columns.pillow import ImageError, Picture, Pixels, require_pillow
from dask_tfrecord.columns.png import open_png

__all__ = [
    "IMAGE_CHANNELS",
    "IMAGE_DTYPES",
    "ImageError",
    "decode_image",
    "image_shape",
    "require_pillow",
    "scale_pixels",
]

IMAGE_CHANNELS = (0, 1, 3, 4)
IMAGE_DTYPES = tuple(map(np.dtype, ("uint8", "uint16", "float16", "float32", "float64")))

_FORMATS: tuple[tuple[bytes, Callable[[bytes, int], Picture]], ...] = (
    (b"\xff\xd8\xff", open_jpeg),
    (b"\x89PNG\r\n\x1a\n", open_png),
    (b"GIF8", open_gif),
    (b"BM", open_bmp),
)
# Output rows that are resized at a time, so that what lies between stays in the cache.
_ROWS = 32
_JPEG_XL = (b"\xff\x0a", b"\x00\x00\x00\x0cJXL \r\n\x87\n")


def decode_image(
    data: bytes | memoryview,
    *,
    channels: int = 0,
    dtype: DTypeLike = np.uint8,
    size: tuple[int, int] | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Decode one image.

    Parameters
    ----------
    data : bytes or memoryview
        A JPEG, PNG, GIF, BMP or WebP file. Of an animation the first frame is the image.
    channels : int
        0 for those of the file, or 1, 3, 4. What TensorFlow does not convert raises: a JPEG has 1 or 3 channels, a
        GIF 3, a BMP 3 or 4 (or its own 1), a WebP its own; a PNG gives each.
    dtype : dtype
        uint8: of a PNG of 16 bits the high byte. uint16: the 16 bits of a PNG; one of 8 bits is scaled by 257, other
        formats by 256, as `tf.io.decode_image` does. float16, float32, float64: the values of the file divided by
        the largest of their depth, as `tf.image.convert_image_dtype` does.
    size : tuple of int, optional
        Height and width to resize to, as ``tf.image.resize(method="bilinear", antialias=False)`` does, in float32
        after the conversion to `dtype`. Integers are rounded to the nearest, halves to even.
    out : ndarray, shape (height, width, channels), optional
        Where the pixels go, of `dtype`; any strides. Its shape is compared before pixels are decoded.

    Returns
    -------
    ndarray, shape (height, width, channels)
        `out`, or a new array.

    Raises
    ------
    ImageError
        No image, a damaged one, or one of another shape than `out`; its text ends "feature 'image' holds …".
    ImportError
        Pillow is not installed.
    ValueError
        `channels`, `dtype`, `size` or the dtype of `out` that cannot be.

    Notes
    -----
    Follows TensorFlow's kernels ``DecodeImage`` and ``ResizeBilinear``; JPEG by libjpeg's accurate DCT, whose
    versions differ by a level or two.

    Examples
    --------
    >>> import struct
    >>> from dask_tfrecord.columns.images import decode_image
    >>> header = struct.pack("<2sIHHI IiiHHIIiiII", b"BM", 62, 0, 0, 54, 40, 2, 1, 1, 24, 0, 8, 0, 0, 0, 0)
    >>> decode_image(header + bytes([3, 2, 1, 6, 5, 4, 0, 0])).tolist()
    [[[1, 2, 3], [4, 5, 6]]]
    """
    kind = np.dtype(dtype)
    if kind not in IMAGE_DTYPES:
        raise ValueError(f"an image is decoded as {', '.join(map(str, IMAGE_DTYPES))}, not {kind}")
    picture = _open(data, channels, size)
    shape = (*(size or (picture.height, picture.width)), picture.channels)
    if out is None:
        out = np.empty(shape, kind)
    elif out.dtype != kind:
        raise ValueError(f"an array of {out.dtype} cannot take an image of {kind}")
    elif out.shape != shape:
        raise ImageError(f"a {picture.format} image of shape {shape} where {out.shape} is promised")
    pixels = picture.decode(kind != np.uint8)
    if size is None or size == (picture.height, picture.width):
        scale_pixels(pixels, picture.step, out)
    else:
        _resize(pixels, picture.step, out)
    return out


def image_shape(
    data: bytes | memoryview, *, channels: int = 0, size: tuple[int, int] | None = None
) -> tuple[int, int, int]:
    """Shape of the array that `decode_image` gives, without decoding pixels.

    Parameters
    ----------
    data : bytes or memoryview
        The image file.
    channels : int
        As for `decode_image`.
    size : tuple of int, optional
        As for `decode_image`.

    Returns
    -------
    tuple of int
        ``(height, width, channels)``.

    Raises
    ------
    ImageError
        No image, or a header that is damaged or cannot be read.
    ImportError
        Pillow is not installed.
    ValueError
        `channels` or `size` that cannot be.
    """
    picture = _open(data, channels, size)
    height, width = size or (picture.height, picture.width)
    return height, width, picture.channels


def _open(data: bytes | memoryview, channels: int, size: tuple[int, int] | None) -> Picture:
    """Have the header read by whoever knows the format."""
    if channels not in IMAGE_CHANNELS:
        raise ValueError(f"channels is 0, 1, 3 or 4, not {channels!r}")
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise ValueError(f"size is a height and a width of at least 1, not {size!r}")
    require_pillow()
    # Compressed bytes are few, and every reader below wants `find` and slices that are bytes.
    file = bytes(data)
    for signature, opener in _FORMATS:
        if file.startswith(signature):
            return opener(file, channels)
    if file.startswith(b"RIFF") and file[8:12] == b"WEBP":
        return open_webp(file, channels)
    if file.startswith(_JPEG_XL):
        raise ImageError("a JPEG XL image, which Pillow cannot decode")
    if not file:
        raise ImageError("no bytes where an encoded image is expected")
    raise ImageError(f"bytes that begin with {file[:8]!r} where a JPEG, PNG, GIF, BMP or WebP image is expected")


def scale_pixels(pixels: NDArray[Any], step: int, out: NDArray[Any]) -> None:
    """Write `pixels` to `out`, from the range of their dtype to that of `out`."""
    if out.dtype == pixels.dtype:
        np.copyto(out, pixels)
    elif out.dtype == np.uint16:
        np.multiply(pixels, step, out=out, dtype=np.uint16)
    else:
        # Half precision cannot hold 65535: the product is made in single precision and rounded once.
        inner = np.float64 if out.dtype == np.float64 else np.float32
        np.multiply(pixels, inner(1 / np.iinfo(pixels.dtype).max), out=out, dtype=inner, casting="same_kind")


def _resize(pixels: Pixels, step: int, out: NDArray[Any]) -> None:
    """Scale and resize `pixels` into `out`, as the kernel ``ResizeBilinear`` with half-pixel centres does."""
    height, width, channels = out.shape
    top, bottom, down = _neighbours(pixels.shape[0], height)
    left, right, across = _neighbours(pixels.shape[1], width)
    # Rows that no output row looks at are neither scaled nor interpolated.
    used, place = np.unique(np.stack([top, bottom]), return_inverse=True)
    first, second = place.reshape(2, -1)
    across = np.repeat(across, channels).reshape(width, channels)
    # Integers keep their levels; floats interpolate between 0 and 1.
    levels = np.dtype(np.float32) if out.dtype.kind == "f" else out.dtype
    for start in range(0, height, _ROWS):
        above, below = first[start : start + _ROWS], second[start : start + _ROWS]
        part = pixels.take(used[above[0] : below[-1] + 1], axis=0)
        scaled = np.empty(part.shape, levels)
        scale_pixels(part, step, scaled)
        image = scaled.astype(np.float32, copy=False)
        wide = _between(image.take(left, axis=1), image.take(right, axis=1), across)
        weights = down[start : start + _ROWS, None, None]
        rows = _between(wide.take(above - above[0], axis=0), wide.take(below - above[0], axis=0), weights)
        np.copyto(out[start : start + _ROWS], rows if out.dtype.kind == "f" else np.rint(rows), casting="unsafe")


def _between(
    first: NDArray[np.float32], second: NDArray[np.float32], weight: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Interpolate in place: `first` becomes the result."""
    second -= first
    second *= weight
    first += second
    return first


def _neighbours(source: int, target: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
    """For each of `target` places the two of `source` that it lies between, and how far it is from the first."""
    scale = np.float32(source) / np.float32(target)
    place = (np.arange(target, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
    floor = np.floor(place)
    second = np.minimum(np.ceil(place).astype(np.intp), source - 1)
    first = np.minimum(np.maximum(floor.astype(np.intp), 0), second)
    return first, second, place - floor
