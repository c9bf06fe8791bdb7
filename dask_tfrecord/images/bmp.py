"""BMP: its header, and pixels as `tf.io.decode_image` returns them.

The header is defined in https://learn.microsoft.com/en-us/windows/win32/gdi/bitmap-header-types
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.images.pillow import EncodedImage, ImageError, check_channels, check_pixel_count

__all__ = ["BMPHeader", "open_bmp", "read_bmp_header"]

# Compression: none, or masks that select the bits of each colour.
_PLAIN, _BIT_FIELDS = 0, (3, 6)
_USUAL_MASKS = struct.pack("<3I", 0xFF0000, 0xFF00, 0xFF)
_HEADER_SIZES = (40, 52, 56, 108, 124)


@dataclass(frozen=True, slots=True)
class BMPHeader:
    """Header of a BMP.

    Attributes
    ----------
    start : int
        Offset of the pixels.
    size : int
        Bytes of the header, without the 14 of the file header.
    width, height : int
        In pixels; a negative height means that the first row is the top one.
    planes : int
        1 in every valid file.
    bits : int
        Bits per pixel.
    compression : int
        0 if the pixels are stored as they are.
    """

    start: int
    size: int
    width: int
    height: int
    planes: int
    bits: int
    compression: int

    @property
    def is_known(self) -> bool:
        """The header has a size that a version of the format defines, and one plane: text may begin with "BM"."""
        return self.size in _HEADER_SIZES and self.planes == 1


def read_bmp_header(data: bytes) -> BMPHeader:
    """Read the header, unchecked.

    Raises
    ------
    ImageError
        The data end within it.
    """
    if len(data) < 54:
        raise ImageError("a truncated BMP image")
    return BMPHeader(*struct.unpack_from("<3i i HH I", data, 10))


def open_bmp(data: bytes, channels: int) -> EncodedImage:
    """Check a BMP of 8, 24 or 32 bits per pixel and prepare its decoding.

    As in TensorFlow, pixels of 8 bits are returned as stored and the palette is ignored. The file must end with the
    last pixel, to the byte.

    Raises
    ------
    ImageError
        The depth, compression, order of colours or file size is not supported, or one channel is requested.
    """
    header = read_bmp_header(data)
    check_channels("BMP", channels, (3, 4))
    bits, width, height = header.bits, header.width, abs(header.height)
    if header.size < 40:
        raise ImageError(f"a BMP image with a header of {header.size} bytes; only 40 or more can be decoded")
    if bits not in (8, 24, 32):
        raise ImageError(f"a BMP image of {bits} bits per pixel; only 8, 24 or 32 can be decoded")
    has_fields = header.compression in _BIT_FIELDS and bits == 32
    if not (header.compression == _PLAIN or (has_fields and data[54:66] == _USUAL_MASKS)):
        raise ImageError(f"a BMP image of compression {header.compression}; only uncompressed BGR can be decoded")
    check_pixel_count("BMP", height, width)
    stride = (width * bits // 8 + 3) // 4 * 4
    expected = header.start + stride * height
    if header.start < 0 or len(data) != expected:
        raise ImageError(f"a BMP image of {len(data)} bytes; its header announces {expected}")
    stored = np.frombuffer(data, np.uint8, offset=header.start).reshape(height, stride)[:, : width * bits // 8]
    pixels = stored.reshape(height, width, bits // 8)[:: 1 if header.height < 0 else -1]
    found = channels or bits // 8
    return EncodedImage("BMP", height, width, found, partial(_decode, pixels, found))


def _decode(stored: NDArray[np.uint8], channels: int, wide: bool) -> NDArray[np.uint8]:
    # BGR to RGB; a single channel is kept or repeated.
    order = {1: [0] * min(channels, 3), 3: [2, 1, 0], 4: [2, 1, 0, 3]}[stored.shape[2]][:channels]
    pixels = stored[..., order]
    if len(order) == channels:
        return pixels
    return np.concatenate([pixels, np.full((*pixels.shape[:2], 1), 255, np.uint8)], axis=2)
