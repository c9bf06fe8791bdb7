"""JPEG, GIF, BMP and WebP as `tf.io.decode_image` reads them, each from its header to its pixels.

Every ``open_…`` function takes the bytes of one file and the channels asked for (0: those of the file), says what is
wrong with either, and decodes nothing yet. The rules are those of TensorFlow's kernel `DecodeImage`; where it reads
past its memory or says nothing of damage, this library raises or gives the image that is there.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.columns.pillow import ImageError, Picture, decode_with_pillow, refuse_bomb, require_pillow

__all__ = ["open_bmp", "open_gif", "open_jpeg", "open_webp"]


def _refuse_channels(format: str, channels: int, possible: tuple[int, ...]) -> None:
    """Refuse channels that TensorFlow does not make of this image."""
    if channels and channels not in possible:
        given = " or ".join(map(str, possible))
        raise ImageError(f"a {format} image, which gives {given} channels, where {channels} are asked for")


# JPEG: markers without a segment behind them; those of a frame; those that end the headers.
_BARE = {0x01, *range(0xD0, 0xD9)}
_FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_END_OF_IMAGE, _SCAN, _ADOBE = 0xD9, 0xDA, 0xEE


def open_jpeg(data: bytes, channels: int) -> Picture:
    """Read the header of a JPEG.

    Gray is the luma plane, as libjpeg gives it. Four components (CMYK, YCCK) become RGB by TensorFlow's formula, which
    takes the values for inverted where an Adobe marker says who wrote them. A file without its end marker is cut short.

    Raises
    ------
    ImageError
        No frame, a precision other than 8 bits, channels that TensorFlow refuses, or no end marker.
    """
    frame, adobe, scan = _jpeg_frame(data)
    if len(frame) < 6:
        raise ImageError("a JPEG image that is cut short")
    precision, height, width, components = struct.unpack_from(">BHHB", frame)
    if precision != 8:
        raise ImageError(f"a JPEG image of {precision} bits per channel where 8 can be read")
    if components not in (1, 3, 4):
        raise ImageError(f"a JPEG image of {components} components where 1, 3 or 4 can be read")
    _refuse_channels("CMYK JPEG" if components == 4 else "JPEG", channels, (3,) if components == 4 else (1, 3))
    refuse_bomb("JPEG", height, width)
    if data.rfind(b"\xff\xd9", scan) < 0:
        raise ImageError("a JPEG image that is cut short")
    found = channels or min(components, 3)
    mode = "CMYK" if components == 4 else {1: "L", 3: "RGB"}[found]
    decode = partial(_decode_jpeg, data, mode, (width, height), adobe)
    return Picture("JPEG", height, width, found, decode)


def _jpeg_frame(data: bytes) -> tuple[bytes, bool, int]:
    """Find the frame header, whether an Adobe marker stands before the first scan, and where that scan begins.

    Markers are found as libjpeg finds them, or it would see another size than the one memory was taken for.
    """
    frame, adobe, at = b"", False, 2
    while True:
        at = data.find(b"\xff", at)
        while 0 <= at < len(data) and data[at] == 0xFF:
            at += 1
        if at < 0 or at + 3 > len(data):
            raise ImageError("a JPEG image that is cut short")
        marker = data[at]
        at += 1
        if marker == _END_OF_IMAGE or (marker == _SCAN and not frame):
            raise ImageError("a JPEG image without a frame")
        if marker == _SCAN:
            return frame, adobe, at
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


def _decode_jpeg(data: bytes, mode: str, size: tuple[int, int], adobe: bool, wide: bool) -> NDArray[np.uint8]:
    pixels = decode_with_pillow("JPEG", mode, size, data, "jpeg", mode, "")
    if mode != "CMYK":
        return pixels
    inks = pixels.astype(np.uint16)
    if not adobe:
        inks = 255 - inks
    return (inks[..., :3] * inks[..., 3:] // 255).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class _Frame:
    """One frame of a GIF.

    Attributes
    ----------
    left, top, width, height : int
        Where it lies on the canvas, in pixels.
    interlaced : bool
        Rows are stored in four passes.
    palette : bytes
        Three bytes per colour; empty if the file has none for it.
    transparent : int or None
        The colour that leaves the canvas as it is; -1 or None if there is none.
    start : int
        Where its data begins: the byte that says how wide the codes are.
    """

    left: int
    top: int
    width: int
    height: int
    interlaced: bool
    palette: bytes
    transparent: int | None
    start: int


def open_gif(data: bytes, channels: int) -> Picture:
    """Read the frames of a GIF, of which the first is the image.

    As in TensorFlow the canvas is as large as the largest frame, whatever the screen descriptor says; what the first
    frame leaves free, or what is transparent there, is black.

    Raises
    ------
    ImageError
        No frame, no palette, a file cut within a frame, or channels other than 3.
    """
    _refuse_channels("GIF", channels, (3,))
    frames = _gif_frames(data)
    if not frames:
        raise ImageError("a GIF image without a frame")
    if not frames[0].palette:
        raise ImageError("a GIF image without a palette")
    height, width = max(frame.height for frame in frames), max(frame.width for frame in frames)
    refuse_bomb("GIF", frames[0].height, frames[0].width)
    refuse_bomb("GIF", height, width)
    return Picture("GIF", height, width, 3, partial(_decode_gif, data, frames[0], (height, width)))


def _gif_frames(data: bytes) -> list[_Frame]:
    frames: list[_Frame] = []
    transparent: int | None = None
    try:
        shared, at = _gif_palette(data, 13, data[10])
        # A file that ends after a whole frame has all its pixels, though not its trailer.
        while at < len(data) or not frames:
            kind = data[at]
            if kind == 0x3B:
                break
            if kind == 0x2C:
                left, top, width, height, flags = struct.unpack_from("<4HB", data, at + 1)
                own, at = _gif_palette(data, at + 10, flags)
                frames.append(_Frame(left, top, width, height, bool(flags & 0x40), own or shared, transparent, at))
                transparent, at = None, at + 1
            elif kind == 0x21:
                # Of the graphic controls before a frame the first counts, even one without transparency.
                if transparent is None and data[at + 1 : at + 3] == b"\xf9\x04":
                    transparent = data[at + 6] if data[at + 3] & 1 else -1
                at += 2
            else:
                raise ImageError(f"a GIF image with a block of the unknown kind {kind:#04x} at byte {at}")
            while data[at]:
                at += 1 + data[at]
            at += 1
    except (IndexError, struct.error) as error:
        raise ImageError("a GIF image that is cut short") from error
    return frames


def _gif_palette(data: bytes, at: int, flags: int) -> tuple[bytes, int]:
    """Take the palette that `flags` announce at `at`, and say where it ends."""
    end = at + (3 * (2 << (flags & 7)) if flags & 0x80 else 0)
    if end > len(data):
        raise ImageError("a GIF image that is cut short")
    return data[at:end], end


def _decode_gif(data: bytes, frame: _Frame, shape: tuple[int, int], wide: bool) -> NDArray[np.uint8]:
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
        raise ImageError(f"a GIF image with colour {indices.max()} of a palette of {count}")
    pixels = colours.take(indices, axis=0)
    if pixels.shape[:2] == shape and not (frame.left or frame.top):
        return pixels
    canvas = np.zeros((*shape, 3), np.uint8)
    place = canvas[frame.top : frame.top + frame.height, frame.left : frame.left + frame.width]
    place[:] = pixels[: place.shape[0], : place.shape[1]]
    return canvas


# BMP: uncompressed, and the two ways to say in which bits each colour lies.
_PLAIN, _BIT_FIELDS = 0, (3, 6)
_USUAL_MASKS = struct.pack("<3I", 0xFF0000, 0xFF00, 0xFF)


def open_bmp(data: bytes, channels: int) -> Picture:
    """Read the header of a BMP of 8, 24 or 32 bits per pixel, stored from the bottom or from the top.

    As in TensorFlow the pixels of 8 bits are given as they stand: the palette is not looked at. The size of the file
    has to be that of header and pixels, to the byte.

    Raises
    ------
    ImageError
        Another depth, compression, another order of colours, another size of the file, or one channel asked for.
    """
    if len(data) < 54:
        raise ImageError("a BMP image that is cut short")
    _refuse_channels("BMP", channels, (3, 4))
    start, header, width, height, _, bits, compression = struct.unpack_from("<3i i HH I", data, 10)
    if header < 40:
        raise ImageError(f"a BMP image with a header of {header} bytes where 40 or more can be read")
    if bits not in (8, 24, 32):
        raise ImageError(f"a BMP image of {bits} bits per pixel where 8, 24 or 32 can be read")
    fields = compression in _BIT_FIELDS and bits == 32
    if not (compression == _PLAIN or (fields and data[54:66] == _USUAL_MASKS)):
        raise ImageError(f"a BMP image of compression {compression} where uncompressed BGR can be read")
    refuse_bomb("BMP", abs(height), width)
    stride = (width * bits // 8 + 3) // 4 * 4
    expected = start + stride * abs(height)
    if start < 0 or len(data) != expected:
        raise ImageError(f"a BMP image of {len(data)} bytes where its header says {expected}")
    stored = np.frombuffer(data, np.uint8, offset=start).reshape(abs(height), stride)[:, : width * bits // 8]
    pixels = stored.reshape(abs(height), width, bits // 8)[:: 1 if height < 0 else -1]
    found = channels or bits // 8
    return Picture("BMP", abs(height), width, found, partial(_decode_bmp, pixels, found))


def _decode_bmp(stored: NDArray[np.uint8], channels: int, wide: bool) -> NDArray[np.uint8]:
    # BGR to RGB; a lone channel stays or is repeated.
    order = {1: [0] * min(channels, 3), 3: [2, 1, 0], 4: [2, 1, 0, 3]}[stored.shape[2]][:channels]
    pixels = stored[..., order]
    if len(order) == channels:
        return pixels
    return np.concatenate([pixels, np.full((*pixels.shape[:2], 1), 255, np.uint8)], axis=2)


# WebP: flags of the extended header.
_ALPHA, _ANIMATED = 0x10, 0x02


def open_webp(data: bytes, channels: int) -> Picture:
    """Read the header of a WebP, still or animated; of an animation the first frame is the image.

    Four channels if the file says that it has alpha, else three; as in TensorFlow neither is made from the other.
    TensorFlow writes an animation without alpha past the end of its tensor; here it has three channels.

    Raises
    ------
    ImageError
        A file shorter than its header says, no image in it, or channels other than those of the file.
    """
    end = 8 + int.from_bytes(data[4:8], "little")
    if len(data) < max(end, 30):
        raise ImageError("a WebP image that is cut short")
    height, width, alpha = _webp_header(data)
    found = 4 if alpha else 3
    _refuse_channels("WebP", channels, (found,))
    refuse_bomb("WebP", height, width)
    return Picture("WebP", height, width, found, partial(_decode_webp, data[:end], (height, width, found)))


def _webp_header(data: bytes) -> tuple[int, int, bool]:
    """Height, width, and whether the file has alpha, as `WebPGetFeatures` says."""
    at, canvas, alpha = 12, None, False
    while at + 18 <= len(data):
        kind, length, body = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little"), at + 8
        if kind == b"VP8X":
            alpha = bool(data[body] & _ALPHA)
            width, height = (1 + int.from_bytes(data[body + i : body + i + 3], "little") for i in (4, 7))
            canvas = height, width
            if data[body] & _ANIMATED:
                return height, width, alpha
        elif kind == b"ALPH":
            alpha = True
        elif kind == b"VP8L":
            bits = int.from_bytes(data[body + 1 : body + 5], "little")
            size = (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
            return *(canvas or size), bool(bits >> 28 & 1)
        elif kind == b"VP8 ":
            width, height = (int.from_bytes(data[body + i : body + i + 2], "little") & 0x3FFF for i in (6, 8))
            return *(canvas or (height, width)), alpha
        at = body + length + length % 2
    raise ImageError("a WebP image without a frame")


def _decode_webp(data: bytes, shape: tuple[int, int, int], wide: bool) -> NDArray[np.uint8]:
    require_pillow()
    from PIL import WebPImagePlugin, features

    if not features.check("webp"):
        raise ImageError("a WebP image, which the installed Pillow cannot decode")
    try:
        # Not `Image.open`, which warns of large images.
        image = WebPImagePlugin.WebPImageFile(io.BytesIO(data)).convert("RGBA" if shape[2] == 4 else "RGB")
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise ImageError("a WebP image that is damaged") from error
    if (image.height, image.width) != shape[:2]:
        raise ImageError(f"a WebP image of {image.width} x {image.height} pixels where its header says {shape[1::-1]}")
    return np.frombuffer(image.tobytes(), np.uint8).reshape(shape)
