"""Encode arrays as image files: PNG without loss, or JPEG, WebP and PNG with the options of Pillow.

This module writes PNG of 16 bits per channel, which Pillow supports in gray alone. Floats must be levels of 8 or 16
bits divided by the largest, as decoding returns them; others are refused.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.images.decode_image import scale_pixels
from dask_tfrecord.images.pillow import ImageError, require_pillow

__all__ = ["ImageEncoding", "encode_image", "encode_png"]

_FORMATS = ("png", "jpeg", "webp")
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
# Channels that a format stores unchanged.
_CHANNELS = {"png": (1, 2, 3, 4), "jpeg": (1, 3), "webp": (3, 4)}
# Colour types of PNG, by the number of channels.
_COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}
_UP = 2
_LEVEL = 6


@dataclass(frozen=True, slots=True)
class ImageEncoding:
    """Format and options of images to write.

    Attributes
    ----------
    format : {"png", "jpeg", "webp"}
        Of the files.
    options : mapping of str to object
        Options of Pillow's writer of that format, for example ``quality``.
    """

    format: str = "png"
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_argument(cls, given: Any, name: str) -> ImageEncoding:
        """Read the user's argument: a format, or a mapping of a format and Pillow's options.

        Raises
        ------
        SchemaError
            If it is neither.
        """
        options = {"format": given} if isinstance(given, str) else given
        if not isinstance(options, Mapping) or not isinstance(options.get("format"), str):
            raise SchemaError(
                f"encoding of {name!r}: expected a format, or a mapping like {{'format': 'jpeg', 'quality': 95}}; "
                f"got {given!r}"
            )
        format = {"jpg": "jpeg"}.get(options["format"].lower(), options["format"].lower())
        if format not in _FORMATS:
            raise SchemaError(f"encoding of {name!r}: expected one of {', '.join(_FORMATS)}; got {given!r}")
        return cls(format, {option: value for option, value in options.items() if option != "format"})


def encode_image(encoding: ImageEncoding, image: NDArray[Any]) -> bytes:
    """Encode one image.

    Parameters
    ----------
    encoding : ImageEncoding
        Format and options.
    image : ndarray of uint8, uint16 or float, shape (height, width, channels)
        Floats are levels of 8 or 16 bits divided by the largest.

    Returns
    -------
    bytes
        The file.

    Raises
    ------
    ImageError
        The image is empty, or has a number of channels that the format cannot store, or floats that are not levels.
    """
    channels = image.shape[2]
    if not image.size:
        raise ImageError(f"an image of shape {image.shape}: a file cannot store an image without pixels")
    if channels not in _CHANNELS[encoding.format]:
        possible = " or ".join(map(str, _CHANNELS[encoding.format]))
        raise ImageError(f"an image of {channels} channels; {encoding.format} stores {possible}")
    pixels = _levels(image)
    if pixels.dtype == np.uint16:
        if encoding.format != "png":
            raise ImageError(f"an image of 16 bits per channel; {encoding.format} stores 8: write png")
        return encode_png(pixels, encoding.options.get("compress_level", _LEVEL))
    file = io.BytesIO()
    picture = require_pillow().frombytes(_MODES[channels], image.shape[1::-1], np.ascontiguousarray(pixels).tobytes())
    picture.save(file, encoding.format, **encoding.options)
    return file.getvalue()


def _levels(image: NDArray[Any]) -> NDArray[Any]:
    """Convert floats to integer levels that decode to the same floats."""
    if image.dtype.kind == "u":
        return image
    for depth in (np.dtype(np.uint8), np.dtype(np.uint16)):
        largest = np.iinfo(depth).max
        with np.errstate(invalid="ignore"):
            levels: NDArray[Any] = np.rint(np.clip(image.astype(np.float64), 0, 1) * largest).astype(depth)
        again = np.empty_like(image)
        scale_pixels(levels, 1, again)
        if (again == image).all():
            return levels
    raise ImageError(
        "an image of floats that are not levels of 8 or 16 bits divided by the largest: it would be rounded. "
        "Round it to uint8 or uint16 first, or write it as RawFeature or TensorFeature"
    )


def encode_png(pixels: NDArray[Any], level: int = _LEVEL) -> bytes:
    """Write a PNG without Pillow; each row but the first is stored as its difference to the row above.

    Parameters
    ----------
    pixels : ndarray of uint8 or uint16, shape (height, width, channels)
        Gray, gray and alpha, RGB or RGBA.
    level : int
        Level of compression, 0 to 9.
    """
    height, width, channels = pixels.shape
    rows = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder(">")).view(np.uint8).reshape(height, -1)
    filtered = np.empty((height, rows.shape[1] + 1), np.uint8)
    filtered[:, 0] = _UP
    filtered[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])
    depth = 8 * pixels.dtype.itemsize
    header = struct.pack(">IIBBBBB", width, height, depth, _COLOURS[channels], 0, 0, 0)
    data = zlib.compress(filtered.data, level)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))
