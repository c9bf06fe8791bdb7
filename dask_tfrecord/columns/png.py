"""PNG as `tf.io.decode_image` reads it: chunks and transformations are done here, inflating and unfiltering by Pillow.

Pillow itself gives 8 bits of the 16 that a colour may have, and checks neither the CRC of the pixels nor their number.
The conversions are those that TensorFlow asks of libpng, with libpng's arithmetic.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.columns.pillow import ImageError, Picture, Pixels, decode_with_pillow, refuse_bomb

__all__ = ["open_png"]

_GRAY, _RGB, _PALETTE, _GRAY_ALPHA, _RGBA = 0, 2, 3, 4, 6
# Samples per pixel and the depths that the format allows, by the colour type.
_SAMPLES = {_GRAY: 1, _RGB: 3, _PALETTE: 1, _GRAY_ALPHA: 2, _RGBA: 4}
_DEPTHS = {_GRAY: (1, 2, 4, 8, 16), _RGB: (8, 16), _PALETTE: (1, 2, 4, 8), _GRAY_ALPHA: (8, 16), _RGBA: (8, 16)}
# How Pillow is told to read a pixel, by its bits: its mode and raw mode, with channels of 8 bits each. A pixel of 16
# bits is read as two bytes, one of 32 as four; of 48 and 64 it takes the first or the second byte of each sample.
_READ = {
    1: ("P", "P;1"),
    2: ("P", "P;2"),
    4: ("P", "P;4"),
    8: ("L", "L"),
    16: ("LA", "LA"),
    24: ("RGB", "RGB"),
    32: ("RGBA", "RGBA"),
}
_READ_HALF = {48: "RGB;16", 64: "RGBA;16"}
# Adam7: first column and row of each pass, and the steps.
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
# TensorFlow's weights of red and green, 0.299 and 0.587, as libpng keeps them; blue takes what is left of 32768.
_RED, _GREEN, _BLUE = 9797, 19234, 3737
_SRGB_GAMMA = 45455


@dataclass(frozen=True, slots=True)
class _Header:
    """What a PNG says before its pixels.

    Attributes
    ----------
    height, width : int
        In pixels.
    depth : int
        Bits per sample.
    colour : int
        Colour type.
    interlaced : bool
        Rows come in the seven passes of Adam7.
    palette : ndarray of uint8, shape (256, 4)
        Red, green, blue, alpha; black and opaque past the file's last colour.
    key : tuple of int or None
        The sample values of the one transparent colour; empty if the palette has alpha, None without transparency.
    gamma : int
        Exponent of the samples times 100,000; 0 if the file says none.
    """

    height: int
    width: int
    depth: int
    colour: int
    interlaced: bool
    palette: NDArray[np.uint8]
    key: tuple[int, ...] | None
    gamma: int

    @property
    def bits(self) -> int:
        """Bits per pixel."""
        return self.depth * _SAMPLES[self.colour]

    @property
    def channels(self) -> int:
        """Channels that TensorFlow gives when none are asked for."""
        if self.colour == _PALETTE:
            return 3 if self.key is None else 4
        return _SAMPLES[self.colour]


def open_png(data: bytes, channels: int) -> Picture:
    """Read all chunks of a PNG and check them.

    Parameters
    ----------
    data : bytes
        The file; what follows its last chunk is not looked at.
    channels : int
        0 for those of the file (1 gray, 2 gray and alpha, 3 RGB, 4 RGBA; a palette gives 3, or 4 with transparency),
        else 1, 3 or 4. Every image gives each: gray is repeated, RGB weighed as libpng does (in linear light where
        the file says its gamma), alpha dropped, taken from the transparent colour, or opaque.

    Raises
    ------
    ImageError
        A file cut short, a CRC that does not hold, a header that contradicts itself, an unknown critical chunk.
    """
    chunks = list(_chunks(data))
    header = _header(chunks)
    refuse_bomb("PNG", header.height, header.width)
    stream = b"".join(body for kind, body in chunks if kind == b"IDAT")
    if not stream:
        raise ImageError("a PNG image without pixels")
    found = channels or header.channels
    return Picture("PNG", header.height, header.width, found, partial(_decode, header, stream, found), step=257)


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and content of each chunk. As in libpng, one that can be missed is missed where its CRC does not hold."""
    at = 8
    while True:
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        end = at + 8 + length
        if end + 4 > len(data):
            raise ImageError("a PNG image that is cut short")
        optional = kind[0] & 0x20
        if zlib.crc32(memoryview(data)[at + 4 : end]) == int.from_bytes(data[end : end + 4], "big"):
            if not optional and kind not in (b"IHDR", b"PLTE", b"IDAT", b"IEND"):
                raise ImageError(f"a PNG image with the unknown critical chunk {kind!r}")
            yield kind, data[at + 8 : end]
        elif not optional:
            raise ImageError(f"a PNG image with a damaged chunk {kind!r} at byte {at}: its CRC does not hold")
        if kind == b"IEND":
            return
        at = end + 4


def _header(chunks: list[tuple[bytes, bytes]]) -> _Header:
    if chunks[0][0] != b"IHDR" or len(chunks[0][1]) != 13:
        raise ImageError("a PNG image without a header")
    width, height, depth, colour, compression, filters, interlace = struct.unpack(">IIBBBBB", chunks[0][1])
    if depth not in _DEPTHS.get(colour, ()) or compression or filters or interlace > 1:
        raise ImageError(f"a PNG image with a header that no PNG may have: depth {depth}, colour type {colour}")
    # Of each the first counts, and only before the pixels.
    said: dict[bytes, bytes] = {}
    for kind, body in chunks:
        if kind == b"IDAT":
            break
        said.setdefault(kind, body)
    palette = np.zeros((256, 4), np.uint8)
    palette[:, 3] = 255
    transparency = said.get(b"tRNS", b"")
    key: tuple[int, ...] | None = None
    if colour == _PALETTE:
        colours = said.get(b"PLTE", b"")
        count = len(colours) // 3
        if not 0 < count <= 256 or len(colours) % 3:
            raise ImageError(f"a PNG image with a palette of {len(colours)} bytes")
        palette[:count, :3] = np.frombuffer(colours, np.uint8).reshape(count, 3)
        if 0 < len(transparency) <= count:
            palette[: len(transparency), 3] = np.frombuffer(transparency, np.uint8)
            key = ()
    elif colour in (_GRAY, _RGB) and len(transparency) == 2 * _SAMPLES[colour]:
        mask = (1 << depth) - 1
        key = tuple(value & mask for value in struct.unpack(f">{_SAMPLES[colour]}H", transparency))
    gamma = int.from_bytes(said.get(b"gAMA", b""), "big") if len(said.get(b"gAMA", b"")) == 4 else 0
    return _Header(
        height, width, depth, colour, bool(interlace), palette, key, _SRGB_GAMMA if b"sRGB" in said else gamma
    )


def _decode(header: _Header, stream: bytes, channels: int, wide: bool) -> Pixels:
    """Pixels of `channels` channels; of 16 bits if `wide` and the file has them."""
    colour_key = channels == 4 and bool(header.key)
    # The low bytes of 16 bits matter where they are asked for, compared or weighed.
    samples = _samples(header, stream, both=wide or colour_key or channels == 1)
    if header.colour == _PALETTE:
        indices = samples[..., 0]
        if channels == 1:
            return _gray(header.palette[:, :3], header.gamma).take(indices, axis=0)
        return header.palette[:, :channels].take(indices, axis=0)
    opaque = np.iinfo(samples.dtype).max
    alpha = samples[..., -1:] if header.colour in (_GRAY_ALPHA, _RGBA) else None
    if colour_key:
        alpha = np.where((samples == header.key).all(axis=2, keepdims=True), 0, opaque).astype(samples.dtype)
    colours = samples[..., : 1 if header.colour in (_GRAY, _GRAY_ALPHA) else 3]
    if header.depth < 8:
        colours = colours * np.uint8(255 // ((1 << header.depth) - 1))
    if channels < 3 and colours.shape[2] == 3:
        colours = _gray(colours, header.gamma)
    elif channels > 2 and colours.shape[2] == 1:
        colours = np.repeat(colours, 3, axis=2)
    if channels in (2, 4):
        if alpha is None:
            alpha = np.full((*colours.shape[:2], 1), opaque, samples.dtype)
        colours = np.concatenate([colours, alpha], axis=2)
    return colours if wide or colours.dtype == np.uint8 else (colours >> 8).astype(np.uint8)


def _samples(header: _Header, stream: bytes, *, both: bool) -> Pixels:
    """Decode the file's own samples, one channel each: of 16 bits if it has them and `both` bytes count."""
    size, adam7 = (header.width, header.height), int(header.interlaced)
    if header.bits in _READ:
        mode, raw = _READ[header.bits]
        stored: NDArray[Any] = decode_with_pillow("PNG", mode, size, stream, "zip", raw, adam7)
        _refuse_missing_rows(header, stream, stored)
        return stored if header.depth < 16 else stored.view(">u2").astype(np.uint16)
    raw = _READ_HALF[header.bits]
    mode = raw.partition(";")[0]
    high = decode_with_pillow("PNG", mode, size, stream, "zip", raw + "B", adam7)
    _refuse_missing_rows(header, stream, high)
    if not both:
        return high
    low = decode_with_pillow("PNG", mode, size, stream, "zip", raw + "L", adam7)
    return (high.astype(np.uint16) << np.uint16(8)) | low


def _refuse_missing_rows(header: _Header, stream: bytes, stored: NDArray[np.uint8]) -> None:
    """Pillow takes a stream that ends between two rows for a whole one and leaves the rest zero."""
    if stored[-1].any() and not header.interlaced:
        return
    if header.interlaced:
        sizes = [
            (len(range(left, header.width, across)), len(range(top, header.height, down)))
            for left, top, across, down in _PASSES
        ]
    else:
        sizes = [(header.width, header.height)]
    expected = sum(rows * (1 + (columns * header.bits + 7) // 8) for columns, rows in sizes if columns)
    inflate = zlib.decompressobj()
    found, rest = 0, stream
    while rest and not inflate.eof and found < expected:
        found += len(inflate.decompress(rest, 1 << 20))
        rest = inflate.unconsumed_tail
    if found < expected:
        raise ImageError(f"a PNG image that is cut short: {found} bytes of pixels where {expected} belong")


def _gray(colours: Pixels, gamma: int) -> Pixels:
    """One channel of three, by libpng's ``rgb_to_gray``: weighed as stored, or in linear light if `gamma` is known."""
    bits = 8 * colours.dtype.itemsize
    values = colours
    # libpng calls a gamma within five percent of 1 none.
    curved = gamma > 0 and not 95_000 <= gamma <= 105_000
    if curved:
        inverse = int(1e10 / gamma + 0.5)
        values = _curve(bits, inverse)[colours]
    red, green, blue = (values[..., i : i + 1].astype(np.uint32) for i in range(3))
    # Of 8 bits as they stand libpng cuts the fraction off; else it rounds.
    half = 0 if bits == 8 and not curved else 1 << 14
    gray = ((_RED * red + _GREEN * green + _BLUE * blue + half) >> 15).astype(colours.dtype)
    if curved:
        same = (colours == colours[..., :1]).all(axis=-1, keepdims=True)
        gray = np.where(same, colours[..., :1], _curve(bits, int(1e10 / inverse + 0.5))[gray])
    return gray


def _curve(bits: int, gamma: int) -> Pixels:
    """Every value of `bits` bits raised to ``gamma / 100000``."""
    top = (1 << bits) - 1
    kind = np.uint8 if bits == 8 else np.uint16
    return np.floor(top * np.power(np.arange(top + 1) / top, gamma * 1e-5) + 0.5).astype(kind)
