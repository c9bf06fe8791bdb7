"""Pillow's decoders, and checks that all image formats share.

Headers are read by this library: TensorFlow's rules apply, and a shape is known before memory is allocated. Pillow
only decodes compressed data, through `PIL.Image.frombytes`, which ignores its global settings
(`LOAD_TRUNCATED_IMAGES`, the loading strategy of GIFs). Pillow is imported when the first image needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "EncodedImage",
    "ImageError",
    "Pixels",
    "check_channels",
    "check_pixel_count",
    "decode_with_pillow",
    "require_pillow",
]

Pixels: TypeAlias = "NDArray[np.uint8 | np.uint16]"


class ImageError(ValueError):
    """The bytes are not an image, a damaged one, or one of another shape than requested.

    The text continues a sentence of the caller: "feature 'image' holds …".
    """


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """Image whose header was read, and whose pixels are still encoded.

    Attributes
    ----------
    format : str
        "JPEG", "PNG", "GIF", "BMP" or "WebP".
    height, width : int
        In pixels.
    channels : int
        Channels of the decoded array: those requested, or those of the file.
    decode : callable
        ``decode(wide)`` returns the pixels, shape ``(height, width, channels)``, of uint8; of uint16 if `wide` and
        the file has 16 bits per channel. Raises `ImageError`.
    factor_to_uint16 : int
        TensorFlow's factor from 8-bit levels to uint16: 257 in a PNG, otherwise 256.
    decode_into : callable, optional
        ``decode_into(out)`` writes the pixels to a contiguous array of their shape and `depth`. None if the decoder
        allocates its own.
    depth : int
        Bits per channel of the file, 8 or 16: fewer count as 8.
    """

    format: str
    height: int
    width: int
    channels: int
    decode: Callable[[bool], Pixels]
    factor_to_uint16: int = 256
    decode_into: Callable[[NDArray[Any]], None] | None = None
    depth: int = 8


@cache
def require_pillow() -> ModuleType:
    """Import and return `PIL.Image`.

    Raises
    ------
    ImportError
        Pillow is not installed; the text names the extra to install.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("decoding images needs Pillow: pip install 'dask-tfrecord[image]'") from error
    return Image


def check_channels(format: str, channels: int, possible: tuple[int, ...]) -> None:
    """Refuse a number of channels that TensorFlow does not decode this format to."""
    if channels and channels not in possible:
        choices = " or ".join(map(str, possible))
        raise ImageError(f"a {format} image, which decodes to {choices} channels; channels={channels} was requested")


def check_pixel_count(format: str, height: int, width: int) -> None:
    """Refuse an image without pixels, or with more than Pillow would decode, before memory is allocated.

    Pillow warns past `PIL.Image.MAX_IMAGE_PIXELS` and raises past twice that number. Only the second limit applies
    here: large scenes are legitimate, and a warning on a worker does not reach the user. As in Pillow, None disables
    the limit.

    Raises
    ------
    ImageError
        The image has too few or too many pixels.
    """
    if height <= 0 or width <= 0:
        raise ImageError(f"a {format} image of {width} x {height} pixels")
    limit = require_pillow().MAX_IMAGE_PIXELS
    if limit is not None and height * width > 2 * limit:
        raise ImageError(
            f"a {format} image of {width} x {height} pixels, more than {2 * limit} (twice "
            "PIL.Image.MAX_IMAGE_PIXELS); raise that limit if you trust the image"
        )


def decode_with_pillow(
    format: str, mode: str, size: tuple[int, int], data: bytes, codec: str, *args: object
) -> NDArray[np.uint8]:
    """Decode compressed data with one of Pillow's decoders, which release the GIL.

    Parameters
    ----------
    format : str
        Format to name in errors.
    mode : str
        Pillow's mode of the pixels: a letter per channel.
    size : tuple of int
        Width and height.
    data : bytes
        Input of the decoder.
    codec : str
        Pillow's name of the decoder.
    *args : object
        Further arguments of the decoder.

    Returns
    -------
    ndarray of uint8, shape (height, width, channels)
        Read-only.

    Raises
    ------
    ImageError
        The data end early, or the decoder finds them damaged.
    """
    width, height = size
    try:
        image = require_pillow().frombytes(mode, size, data, codec, *args)
    except ValueError as error:
        # Pillow distinguishes missing data from invalid data by the text alone.
        kind = "truncated" if "not enough" in str(error) else "damaged"
        raise ImageError(f"a {kind} {format} image") from error
    except OSError as error:
        raise ImageError(f"a {format} image that Pillow cannot decode: {error}") from error
    return np.frombuffer(image.tobytes(), np.uint8).reshape(height, width, -1)
