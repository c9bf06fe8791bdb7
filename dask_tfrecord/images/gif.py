"""GIF: its frames, and the pixels of the first one as `tf.io.decode_image` returns them.

The blocks are defined in https://www.w3.org/Graphics/GIF/spec-gif89a.txt
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.images.pillow import (
    EncodedImage,
    ImageError,
    check_channels,
    check_pixel_count,
    decode_with_pillow,
)

__all__ = ["GIFFrame", "canvas_shape", "open_gif", "read_gif_frames"]

_TRAILER, _IMAGE, _EXTENSION = 0x3B, 0x2C, 0x21


@dataclass(frozen=True, slots=True)
class GIFFrame:
    """One frame of a GIF.

    Attributes
    ----------
    left, top, width, height : int
        Position and size on the canvas, in pixels.
    interlaced : bool
        Rows are stored in four passes.
    palette : bytes
        Three bytes per colour; empty without a palette.
    transparent : int or None
        Index of the transparent colour; -1 or None without one.
    start : int
        Offset of the image data, which begin with the width of the codes.
    """

    left: int
    top: int
    width: int
    height: int
    interlaced: bool
    palette: bytes
    transparent: int | None
    start: int


def read_gif_frames(data: bytes) -> list[GIFFrame]:
    """Read the descriptors of all frames.

    A file that ends after a complete frame is accepted: all its pixels are present, only the trailer is missing.

    Raises
    ------
    ImageError
        The file ends within a frame, holds a block of unknown kind, or contains no frame.
    """
    frames: list[GIFFrame] = []
    transparent: int | None = None
    try:
        shared, at = _palette(data, 13, data[10])
        while at < len(data) or not frames:
            kind = data[at]
            if kind == _TRAILER:
                break
            if kind == _IMAGE:
                left, top, width, height, flags = struct.unpack_from("<4HB", data, at + 1)
                own, at = _palette(data, at + 10, flags)
                frames.append(GIFFrame(left, top, width, height, bool(flags & 0x40), own or shared, transparent, at))
                transparent, at = None, at + 1
            elif kind == _EXTENSION:
                # TensorFlow uses the first graphic control before a frame, even one without transparency.
                if transparent is None and data[at + 1 : at + 3] == b"\xf9\x04":
                    transparent = data[at + 6] if data[at + 3] & 1 else -1
                at += 2
            else:
                raise ImageError(f"a GIF image with a block of the unknown kind {kind:#04x} at byte {at}")
            while data[at]:
                at += 1 + data[at]
            at += 1
    except (IndexError, struct.error) as error:
        raise ImageError("a truncated GIF image") from error
    if not frames:
        raise ImageError("a GIF image without a frame")
    return frames


def _palette(data: bytes, at: int, flags: int) -> tuple[bytes, int]:
    """Return the palette that `flags` announce at offset `at`, and its end."""
    end = at + (3 * (2 << (flags & 7)) if flags & 0x80 else 0)
    if end > len(data):
        raise ImageError("a truncated GIF image")
    return data[at:end], end


def canvas_shape(frames: list[GIFFrame]) -> tuple[int, int]:
    """Height and width of the largest frame: TensorFlow ignores the screen descriptor."""
    return max(frame.height for frame in frames), max(frame.width for frame in frames)


def open_gif(data: bytes, channels: int) -> EncodedImage:
    """Check a GIF and prepare the decoding of its first frame.

    As in TensorFlow, the canvas has the size of the largest frame. Pixels that the first frame does not cover, or
    where it is transparent, are black.

    Raises
    ------
    ImageError
        The file lacks a frame or a palette, ends within a frame, or `channels` is not 3.
    """
    check_channels("GIF", channels, (3,))
    frames = read_gif_frames(data)
    if not frames[0].palette:
        raise ImageError("a GIF image without a palette")
    height, width = canvas_shape(frames)
    check_pixel_count("GIF", frames[0].height, frames[0].width)
    check_pixel_count("GIF", height, width)
    return EncodedImage("GIF", height, width, 3, partial(_decode, data, frames[0], (height, width)))


def _decode(data: bytes, frame: GIFFrame, shape: tuple[int, int], wide: bool) -> NDArray[np.uint8]:
    size = frame.width, frame.height
    count = len(frame.palette) // 3
    colours, known = np.zeros((256, 3), np.uint8), np.zeros(256, np.bool_)
    colours[:count], known[:count] = np.frombuffer(frame.palette, np.uint8).reshape(-1, 3), True
    if frame.transparent is not None and frame.transparent >= 0:
        colours[frame.transparent], known[frame.transparent] = 0, True
    indices = decode_with_pillow(
        "GIF", "P", size, data[frame.start + 1 :], "gif", data[frame.start], int(frame.interlaced)
    )[..., 0]
    if not known.take(indices).all():
        raise ImageError(f"a GIF image with colour {indices.max()}, past its palette of {count}")
    pixels = colours.take(indices, axis=0)
    if pixels.shape[:2] == shape and not (frame.left or frame.top):
        return pixels
    canvas = np.zeros((*shape, 3), np.uint8)
    area = canvas[frame.top : frame.top + frame.height, frame.left : frame.left + frame.width]
    area[:] = pixels[: area.shape[0], : area.shape[1]]
    return canvas
