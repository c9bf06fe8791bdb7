"""JPEG: the frame header, and pixels as `tf.io.decode_image` returns them.

Markers are defined in ITU-T T.81, annex B: https://www.w3.org/Graphics/JPEG/itu-t81.pdf
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from types import ModuleType
from typing import cast

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.images.pillow import (
    EncodedImage,
    ImageError,
    check_channels,
    check_pixel_count,
    decode_with_pillow,
)

__all__ = ["JPEGHeader", "open_jpeg", "read_jpeg_header", "simplejpeg_or_none"]

# Markers without a segment (TEM, RST, SOI) and those of a frame (SOF).
_BARE = {0x01, *range(0xD0, 0xD9)}
_FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_END_OF_IMAGE, _SCAN, _ADOBE = 0xD9, 0xDA, 0xEE


@dataclass(frozen=True, slots=True)
class JPEGHeader:
    """Frame header of a JPEG.

    Attributes
    ----------
    precision : int
        Bits per sample.
    height, width : int
        In pixels.
    components : int
        1 gray, 3 colours, 4 CMYK or YCCK.
    has_adobe_marker : bool
        An Adobe marker precedes the first scan: CMYK values are inverted.
    scan : int
        Offset of the first scan.
    """

    precision: int
    height: int
    width: int
    components: int
    has_adobe_marker: bool
    scan: int


def read_jpeg_header(data: bytes) -> JPEGHeader:
    """Read the segments before the first scan.

    Markers are searched as libjpeg does. Otherwise the decoder could find another size than the one allocated.

    Raises
    ------
    ImageError
        The file contains no frame or two, or ends before the first scan.
    """
    frame, adobe, at = b"", False, 2
    while True:
        at = data.find(b"\xff", at)
        while 0 <= at < len(data) and data[at] == 0xFF:
            at += 1
        if at < 0 or at + 3 > len(data):
            raise ImageError("a truncated JPEG image")
        marker = data[at]
        at += 1
        if marker == _END_OF_IMAGE or (marker == _SCAN and not frame):
            raise ImageError("a JPEG image without a frame")
        if marker == _SCAN:
            break
        if marker == 0 or marker in _BARE:
            continue
        length = int.from_bytes(data[at : at + 2], "big")
        segment = data[at + 2 : at + length]
        if marker in _FRAMES:
            if frame:
                raise ImageError("a JPEG image with two frames")
            frame = segment
        adobe |= marker == _ADOBE and length >= 14 and segment.startswith(b"Adobe")
        at += max(length, 2)
    if len(frame) < 6:
        raise ImageError("a truncated JPEG image")
    precision, height, width, components = struct.unpack_from(">BHHB", frame)
    return JPEGHeader(precision, height, width, components, has_adobe_marker=adobe, scan=at)


def open_jpeg(data: bytes, channels: int, fast: bool) -> EncodedImage:
    """Check a JPEG and prepare its decoding.

    Gray is the luma plane, as libjpeg returns it. Four components (CMYK, YCCK) become RGB by TensorFlow's formula,
    which treats the values as inverted if the file has an Adobe marker.

    Parameters
    ----------
    data : bytes
        The file.
    channels : int
        1 or 3, or 0 for those of the file.
    fast : bool
        Use the fast DCT. Needs simplejpeg. Without it, simplejpeg decodes where it is installed, otherwise Pillow:
        both return the same pixels.

    Raises
    ------
    ImageError
        The file lacks a frame or an end marker, its precision is not 8 bits, or TensorFlow refuses `channels`.
    ImportError
        simplejpeg is not installed, and `fast` needs it.
    """
    header = read_jpeg_header(data)
    if header.precision != 8:
        raise ImageError(f"a JPEG image of {header.precision} bits per channel; only 8 bits can be decoded")
    if header.components not in (1, 3, 4):
        raise ImageError(f"a JPEG image of {header.components} components; only 1, 3 or 4 can be decoded")
    inks = header.components == 4
    check_channels("CMYK JPEG" if inks else "JPEG", channels, (3,) if inks else (1, 3))
    check_pixel_count("JPEG", header.height, header.width)
    if data.rfind(b"\xff\xd9", header.scan) < 0:
        raise ImageError("a truncated JPEG image")
    if fast and simplejpeg_or_none() is None:
        raise ImportError("fast=True needs simplejpeg: pip install 'dask-tfrecord[image]'")
    found = channels or min(header.components, 3)
    shape = (header.height, header.width, found)
    if inks:
        return EncodedImage("JPEG", *shape, partial(_decode_inks, data, header))
    decode_into = partial(_decode_into, data, fast)
    return EncodedImage("JPEG", *shape, partial(_decode, decode_into, shape), decode_into=decode_into)


@cache
def simplejpeg_or_none() -> ModuleType | None:
    """Import and return simplejpeg, or None where it is not installed."""
    try:
        import simplejpeg
    except ImportError:
        return None
    return cast(ModuleType, simplejpeg)


def _decode_into(data: bytes, fast: bool, out: NDArray[np.uint8]) -> None:
    """Decode gray or RGB to `out`."""
    height, width, channels = out.shape
    library = simplejpeg_or_none()
    if library is not None:
        decode = partial(library.decode_jpeg, data, {1: "GRAY", 3: "RGB"}[channels], fastdct=fast, buffer=out)
        try:
            if decode(strict=True).shape == out.shape:
                return
        except ValueError:
            # A warning, which TensorFlow ignores, or an error. Pillow distinguishes them.
            pass
    mode = {1: "L", 3: "RGB"}[channels]
    pixels = decode_with_pillow("JPEG", mode, (width, height), data, "jpeg", mode, "")
    if library is None or not fast:
        np.copyto(out, pixels)
        return
    try:
        decode(strict=False)
    except ValueError as error:
        raise ImageError(f"a JPEG image that simplejpeg cannot decode: {error}") from error


def _decode(decode_into: Callable[[NDArray[np.uint8]], None], shape: tuple[int, ...], wide: bool) -> NDArray[np.uint8]:
    out = np.empty(shape, np.uint8)
    decode_into(out)
    return out


def _decode_inks(data: bytes, header: JPEGHeader, wide: bool) -> NDArray[np.uint8]:
    pixels = decode_with_pillow("JPEG", "CMYK", (header.width, header.height), data, "jpeg", "CMYK", "")
    inks = pixels.astype(np.uint16)
    if not header.has_adobe_marker:
        inks = 255 - inks
    return (inks[..., :3] * inks[..., 3:] // 255).astype(np.uint8)
