"""Pillow's decoders, and what every image format says of itself before its pixels are decoded.

The headers are read by this library, so that TensorFlow's rules hold and a shape is known before memory is taken.
Pillow only turns compressed data into pixels, by `PIL.Image.frombytes`: its global settings (`LOAD_TRUNCATED_IMAGES`,
the loading strategy of GIFs) have no say. Pillow is imported when the first image needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["ImageError", "Picture", "Pixels", "decode_with_pillow", "refuse_bomb", "require_pillow"]

Pixels: TypeAlias = "NDArray[np.uint8 | np.uint16]"


class ImageError(ValueError):
    """Bytes that are no image, a damaged one, or another one than asked for.

    The text ends a sentence that the caller begins: "feature 'image' holds …".
    """


@dataclass(frozen=True, slots=True)
class Picture:
    """An image whose header was read, and whose pixels were not yet.

    Attributes
    ----------
    format : str
        "JPEG", "PNG", "GIF", "BMP" or "WebP".
    height, width : int
        In pixels.
    channels : int
        Of the array to come: those asked for, or those of the file.
    decode : callable
        ``decode(wide)`` gives the pixels, shape ``(height, width, channels)``, of uint8; of uint16 if `wide` and the
        file has 16 bits per channel. Raises `ImageError`.
    step : int
        How many levels of 16 bits TensorFlow makes of one level of 8 bits: 257 in a PNG, else 256.
    """

    format: str
    height: int
    width: int
    channels: int
    decode: Callable[[bool], Pixels]
    step: int = 256


@cache
def require_pillow() -> ModuleType:
    """`PIL.Image`, imported when it is first needed.

    Raises
    ------
    ImportError
        Pillow is not installed; the text says which extra brings it.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("decoding images needs Pillow: pip install 'dask-tfrecord[image]'") from error
    return Image


def refuse_bomb(format: str, height: int, width: int) -> None:
    """Refuse an image without pixels, or with so many that Pillow would refuse it.

    Pillow warns past `PIL.Image.MAX_IMAGE_PIXELS` and raises past twice that number. A warning from a worker is read
    by nobody, and large scenes are legitimate, so only the second limit is kept. None turns it off, as in Pillow.

    Raises
    ------
    ImageError
        Before any memory is taken for the pixels.
    """
    if height <= 0 or width <= 0:
        raise ImageError(f"a {format} image of {width} x {height} pixels")
    most = require_pillow().MAX_IMAGE_PIXELS
    if most is not None and height * width > 2 * most:
        raise ImageError(
            f"a {format} image of {width} x {height} pixels where {2 * most} are the most, twice what "
            "PIL.Image.MAX_IMAGE_PIXELS says; raise that number if the image can be trusted"
        )


def decode_with_pillow(
    format: str, mode: str, size: tuple[int, int], data: bytes, codec: str, *args: object
) -> NDArray[np.uint8]:
    """Pixels of compressed data, by one of Pillow's decoders. The interpreter lock is free while it works.

    Parameters
    ----------
    format : str
        For the text of errors.
    mode : str
        Pillow's mode of the pixels: a letter per channel.
    size : tuple of int
        Width and height.
    data : bytes
        What the decoder takes.
    codec : str
        Pillow's name of the decoder.
    *args : object
        The decoder's own arguments.

    Returns
    -------
    ndarray of uint8, shape (height, width, channels)
        Read-only.

    Raises
    ------
    ImageError
        The data ends early, or is damaged in a way that the decoder sees.
    """
    width, height = size
    try:
        image = require_pillow().frombytes(mode, size, data, codec, *args)
    except ValueError as error:
        # Pillow has two sentences: data that ran out, and data that makes no sense.
        cut = "not enough" in str(error)
        raise ImageError(f"a {format} image that " + ("is cut short" if cut else "is damaged")) from error
    except OSError as error:
        raise ImageError(f"a {format} image that Pillow cannot decode: {error}") from error
    return np.frombuffer(image.tobytes(), np.uint8).reshape(height, width, -1)
