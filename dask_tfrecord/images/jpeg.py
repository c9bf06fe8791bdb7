"""JPEG: the frame header, and pixels as `tf.io.decode_image` returns them.

Markers are defined in ITU-T T.81, annex B: https://www.w3.org/Graphics/JPEG/itu-t81.pdf
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

__all__ = ["JPEGHeader", "open_jpeg", "read_jpeg_header"]

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


def open_jpeg(data: bytes, channels: int) -> EncodedImage:
    """Check a JPEG and prepare its decoding.

    Gray is the luma plane, as libjpeg returns it. Four components (CMYK, YCCK) become RGB by TensorFlow's formula,
    which treats the values as inverted if the file has an Adobe marker.

    Raises
    ------
    ImageError
        The file lacks a frame or an end marker, its precision is not 8 bits, or TensorFlow refuses `channels`.
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
    found = channels or min(header.components, 3)
    return EncodedImage("JPEG", header.height, header.width, found, partial(_decode, data, header, found))


def _decode(data: bytes, header: JPEGHeader, channels: int, wide: bool) -> NDArray[np.uint8]:
    mode = "CMYK" if header.components == 4 else {1: "L", 3: "RGB"}[channels]
    pixels = decode_with_pillow("JPEG", mode, (header.width, header.height), data, "jpeg", mode, "")
    if mode != "CMYK":
        return pixels
    inks = pixels.astype(np.uint16)
    if not header.has_adobe_marker:
        inks = 255 - inks
    return (inks[..., :3] * inks[..., 3:] // 255).astype(np.uint8)
