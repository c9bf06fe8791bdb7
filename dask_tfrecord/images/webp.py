"""WebP: its header, and the pixels of its first frame as `tf.io.decode_image` returns them.

The chunks are defined in https://developers.google.com/speed/webp/docs/riff_container
"""

from __future__ import annotations

import io
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.images.pillow import (
    EncodedImage,
    ImageError,
    check_channels,
    check_pixel_count,
    require_pillow,
)

__all__ = ["open_webp", "read_webp_shape"]

# Flags of the extended header.
_ALPHA, _ANIMATED = 0x10, 0x02


def read_webp_shape(data: bytes) -> tuple[int, int, int]:
    """Return height, width and channels (4 with alpha, otherwise 3), by the rules of `WebPGetFeatures`.

    Raises
    ------
    ImageError
        The file lacks a frame.
    """
    at, canvas, channels = 12, None, 3
    while at + 18 <= len(data):
        kind, length, body = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little"), at + 8
        if kind == b"VP8X":
            channels = 4 if data[body] & _ALPHA else 3
            width, height = (1 + int.from_bytes(data[body + i : body + i + 3], "little") for i in (4, 7))
            canvas = height, width
            if data[body] & _ANIMATED:
                return height, width, channels
        elif kind == b"ALPH":
            channels = 4
        elif kind == b"VP8L":
            bits = int.from_bytes(data[body + 1 : body + 5], "little")
            size = (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
            return *(canvas or size), 4 if bits >> 28 & 1 else 3
        elif kind == b"VP8 ":
            width, height = (int.from_bytes(data[body + i : body + i + 2], "little") & 0x3FFF for i in (6, 8))
            return *(canvas or (height, width)), channels
        at = body + length + length % 2
    raise ImageError("a WebP image without a frame")


def open_webp(data: bytes, channels: int) -> EncodedImage:
    """Check a WebP, still or animated, and prepare the decoding of its first frame.

    As in TensorFlow, alpha is neither added nor dropped. TensorFlow writes past the end of its tensor for an
    animation without alpha; here it has three channels.

    Raises
    ------
    ImageError
        The file is shorter than its header announces, lacks a frame, or has another number of channels.
    """
    end = 8 + int.from_bytes(data[4:8], "little")
    if len(data) < max(end, 30):
        raise ImageError("a truncated WebP image")
    shape = read_webp_shape(data)
    check_channels("WebP", channels, shape[2:])
    check_pixel_count("WebP", shape[0], shape[1])
    return EncodedImage("WebP", *shape, partial(_decode, data[:end], shape))


def _decode(data: bytes, shape: tuple[int, int, int], wide: bool) -> NDArray[np.uint8]:
    require_pillow()
    from PIL import WebPImagePlugin, features

    if not features.check("webp"):
        raise ImageError("a WebP image, which the installed Pillow cannot decode")
    try:
        # `Image.open` would warn of large images.
        image = WebPImagePlugin.WebPImageFile(io.BytesIO(data)).convert("RGBA" if shape[2] == 4 else "RGB")
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise ImageError("a damaged WebP image") from error
    if (image.height, image.width) != shape[:2]:
        raise ImageError(f"a WebP image of {image.width} x {image.height} pixels; its header has {shape[1::-1]}")
    return np.frombuffer(image.tobytes(), np.uint8).reshape(shape)
