"""PNG: chunks, header and pixels as `tf.io.decode_image` returns them.

This module reads the chunks, inflates the rows with isal if it is installed, otherwise with zlib, and converts the
pixels; the native core undoes the filters. The conversions and their arithmetic are those that TensorFlow requests
from libpng. The format is defined in https://www.w3.org/TR/png-3/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.features.images.codecs import EncodedImage, ImageError, ImageFormat, Pixels, Sizes, check_pixel_count
from dask_tfrecord.shards.deflate import INFLATERS

_crc32 = INFLATERS[0].crc32
_GRAY, _RGB, _PALETTE, _GRAY_ALPHA, _RGBA = 0, 2, 3, 4, 6
# Samples per pixel, and the depths that the format allows, by colour type.
_SAMPLES = {_GRAY: 1, _RGB: 3, _PALETTE: 1, _GRAY_ALPHA: 2, _RGBA: 4}
_DEPTHS = {_GRAY: (1, 2, 4, 8, 16), _RGB: (8, 16), _PALETTE: (1, 2, 4, 8), _GRAY_ALPHA: (8, 16), _RGBA: (8, 16)}
# Adam7: first column and row of each pass, and the steps between columns and rows.
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
# TensorFlow's weights of red and green, 0.299 and 0.587, in libpng's units of 1/32768; blue has the rest.
_RED, _GREEN, _BLUE = 9797, 19234, 3737
_SRGB_GAMMA = 45455


@dataclass(frozen=True, slots=True)
class PNGHeader:
    """Content of the chunk IHDR."""

    height: int
    width: int
    depth: int
    colour: int
    interlaced: bool

    @property
    def bits(self) -> int:
        """Bits per pixel."""
        return self.depth * _SAMPLES[self.colour]

    @property
    def opaque(self) -> int:
        """Alpha that TensorFlow adds: the largest sample, even of fewer than 8 bits, which libpng does not scale."""
        return (1 << self.depth) - 1

    @property
    def channels(self) -> int | None:
        """Channels of the decoded array; None for a palette, which may have alpha."""
        return None if self.colour == _PALETTE else _SAMPLES[self.colour]


@dataclass(frozen=True, slots=True)
class _Colours:
    """Content of the chunks that change colours."""

    palette: NDArray[np.uint8]  # of shape (256, 4); black past the last colour of the file
    key: tuple[int, ...] | None  # the transparent colour; empty if the palette has alpha, None without transparency
    gamma: int  # exponent of the samples times 100,000; 0 if unknown


def read_png_header(data: bytes) -> PNGHeader:
    """Read the header of a PNG without checking its CRC."""
    return _parse_header(data[12:16], data[16:29])


class PNG(ImageFormat):
    """PNG."""

    name = "PNG"
    media_type = "image/png"

    def is_start(self, data: bytes) -> bool:
        """Return whether the bytes begin with the signature."""
        return data.startswith(b"\x89PNG\r\n\x1a\n")

    def read_shape(self, data: bytes) -> Sizes:
        """Return the shape; `ImageFeature` cannot request the channels of gray with alpha."""
        header = read_png_header(data)
        return header.height, header.width, None if header.channels == 2 else header.channels

    def read_header(self, data: bytes) -> tuple[int, Sizes] | None:
        """Return bits per channel and shape."""
        bits, shape = ImageFormat.read_header(self, data) or (8, (None, None, None))
        return (16 if shape[0] is not None and read_png_header(data).depth == 16 else bits), shape

    def open(self, data: bytes, channels: int, fast: bool, least: tuple[int, int] | None) -> EncodedImage:
        """Check all chunks of a PNG and prepare its decoding.

        Without `channels`, the file decides: 3 of a palette, or 4 with transparency. Gray is repeated for RGB. RGB is
        weighted for gray as libpng does, in linear light if the file has a gamma. Bytes after the last chunk are
        ignored.
        """
        chunks = list(_png_chunks(data))
        header = _parse_header(*chunks[0])
        colours = _parse_colours(header, chunks)
        check_pixel_count(self.name, header.height, header.width)
        stream = b"".join(body for kind, body in chunks if kind == b"IDAT")
        if not stream:
            raise ImageError("a PNG image without pixels")
        decoded_channels = channels or header.channels or (3 if colours.key is None else 4)
        is_stored = decoded_channels == header.channels and header.depth >= 8 and not header.interlaced
        return EncodedImage(
            self.name,
            header.height,
            header.width,
            decoded_channels,
            partial(_decode_pixels, header, colours, stream, decoded_channels),
            factor_to_uint16=257,
            decode_into=partial(_fill_pixels, header, stream) if is_stored else None,
            depth=16 if header.depth == 16 else 8,
        )


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield kind and content of each chunk. As in libpng, an ancillary chunk whose CRC does not match is skipped."""
    at = 8
    while True:
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        end = at + 8 + length
        if end + 4 > len(data):
            raise ImageError("a truncated PNG image")
        is_ancillary = kind[0] & 0x20
        if _crc32(memoryview(data)[at + 4 : end]) == int.from_bytes(data[end : end + 4], "big"):
            if not is_ancillary and kind not in (b"IHDR", b"PLTE", b"IDAT", b"IEND"):
                raise ImageError(f"a PNG image with the unknown critical chunk {kind!r}")
            yield kind, data[at + 8 : end]
        elif not is_ancillary:
            raise ImageError(f"a PNG image with a damaged chunk {kind!r} at byte {at}: its CRC does not match")
        if kind == b"IEND":
            return
        at = end + 4


def _parse_header(kind: bytes, body: bytes) -> PNGHeader:
    """Read the header, which has to be the first chunk."""
    if kind != b"IHDR" or len(body) != 13:
        raise ImageError("a PNG image without a header")
    width, height, depth, colour, compression, filters, interlace = struct.unpack(">IIBBBBB", body)
    if depth not in _DEPTHS.get(colour, ()) or compression or filters or interlace > 1:
        raise ImageError(f"a PNG image with an invalid header: depth {depth}, colour type {colour}")
    return PNGHeader(height, width, depth, colour, bool(interlace))


def _parse_colours(header: PNGHeader, chunks: list[tuple[bytes, bytes]]) -> _Colours:
    """Read the palette and what is transparent, from the chunks before the pixels."""
    # The first chunk of each kind counts, and only before the pixels.
    bodies: dict[bytes, bytes] = {}
    for kind, body in chunks:
        if kind == b"IDAT":
            break
        bodies.setdefault(kind, body)
    palette = np.zeros((256, 4), np.uint8)
    palette[:, 3] = 255
    transparency = bodies.get(b"tRNS", b"")
    key: tuple[int, ...] | None = None
    samples = _SAMPLES[header.colour]
    if header.colour == _PALETTE:
        colours = bodies.get(b"PLTE", b"")
        count = len(colours) // 3
        if not 0 < count <= 256 or len(colours) % 3:
            raise ImageError(f"a PNG image with a palette of {len(colours)} bytes")
        palette[:count, :3] = np.frombuffer(colours, np.uint8).reshape(count, 3)
        if 0 < len(transparency) <= count:
            palette[: len(transparency), 3] = np.frombuffer(transparency, np.uint8)
            key = ()
        else:
            palette[:, 3] = header.opaque
    elif header.colour in (_GRAY, _RGB) and len(transparency) == 2 * samples:
        mask = (1 << header.depth) - 1
        key = tuple(value & mask for value in struct.unpack(f">{samples}H", transparency))
    gamma = int.from_bytes(bodies.get(b"gAMA", b""), "big") if len(bodies.get(b"gAMA", b"")) == 4 else 0
    return _Colours(palette, key, _SRGB_GAMMA if b"sRGB" in bodies else gamma)


def _decode_pixels(header: PNGHeader, extra: _Colours, stream: bytes, channels: int, wide: bool) -> Pixels:
    """Return pixels of `channels` channels; of 16 bits if `wide` and the file has them."""
    is_keyed = channels == 4 and bool(extra.key)
    samples = _decode_samples(header, stream)
    if header.colour == _PALETTE:
        indices = samples[..., 0]
        if channels == 1:
            return _to_gray(extra.palette[:, :3], extra.gamma, wide).take(indices, axis=0)
        return extra.palette[:, :channels].take(indices, axis=0)
    alpha = samples[..., -1:] if header.colour in (_GRAY_ALPHA, _RGBA) else None
    if is_keyed:
        opaque = np.iinfo(samples.dtype).max
        alpha = np.where((samples == extra.key).all(axis=2, keepdims=True), 0, opaque).astype(samples.dtype)
    colours = samples[..., : 1 if header.colour in (_GRAY, _GRAY_ALPHA) else 3]
    if header.depth < 8:
        colours = colours * np.uint8(255 // ((1 << header.depth) - 1))
    if channels < 3 and colours.shape[2] == 3:
        colours = _to_gray(colours, extra.gamma, wide)
    elif channels > 2 and colours.shape[2] == 1:
        colours = np.repeat(colours, 3, axis=2)
    if channels in (2, 4):
        if alpha is None:
            alpha = np.full((*colours.shape[:2], 1), header.opaque, samples.dtype)
        colours = np.concatenate([colours, alpha], axis=2)
    return colours if wide or colours.dtype == np.uint8 else (colours >> 8).astype(np.uint8)


def _decode_samples(header: PNGHeader, stream: bytes) -> Pixels:
    """Decode the file's samples, one channel each, as uint16 for 16 bits, otherwise uint8."""
    inflated, offset = _inflate(header, stream), 0
    if not header.interlaced:
        return _unfilter(header, inflated, (header.height, header.width), 0)
    shape = (header.height, header.width, _SAMPLES[header.colour])
    samples: Pixels = np.empty(shape, np.uint16 if header.depth == 16 else np.uint8)
    for left, top, across, down in _PASSES:
        target = samples[top::down, left::across]
        if target.size:
            target[...] = _unfilter(header, inflated, target.shape[:2], offset)
            offset += _filtered_nbytes(header, *target.shape[:2])
    return samples


def _fill_pixels(header: PNGHeader, stream: bytes, out: Pixels) -> None:
    """Decode samples of 8 or 16 bits, not interlaced, to a contiguous array of their shape and depth."""
    _unfilter_bytes(header, _inflate(header, stream), out.view(np.uint8).reshape(header.height, -1))


def _unfilter(header: PNGHeader, inflated: NDArray[np.uint8], size: tuple[int, int], offset: int) -> Pixels:
    """Return the samples of the image or pass of `size`, height and width, whose filtered rows begin at `offset`."""
    (height, width), nbytes = size, _filtered_nbytes(header, *size)
    stored = np.empty((height, nbytes // height - 1), np.uint8)
    _unfilter_bytes(header, inflated[offset : offset + nbytes], stored)
    if header.depth < 8:
        shifts = np.array(range(8 - header.depth, -1, -header.depth), np.uint8)
        stored = (stored[..., None] >> shifts & np.uint8((1 << header.depth) - 1)).reshape(height, -1)[:, :width]
    samples: Pixels = stored.view(np.uint16) if header.depth == 16 else stored
    return samples.reshape(height, width, -1)


def _unfilter_bytes(header: PNGHeader, filtered: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Undo the row filters; 16-bit samples become little-endian, as the native core expects."""
    rows = _native.unfilter_png(filtered, max(header.bits // 8, 1), header.depth == 16, out)
    if rows < len(out):
        raise ImageError(f"a damaged PNG image: unknown filter {filtered[rows * (1 + out.shape[1])]} of a row")


def _filtered_nbytes(header: PNGHeader, height: int, width: int) -> int:
    return height * (1 + (width * header.bits + 7) // 8) if width else 0


def _inflate(header: PNGHeader, stream: bytes) -> NDArray[np.uint8]:
    """Inflate the filtered rows. As in libpng, data past the last row are not inflated.

    The libraries differ in the damage that they find, above all past the last row: zlib, which libpng uses, decides on
    a stream that is not of the expected size, or whose checksum does not match.
    """
    passes = _PASSES if header.interlaced else ((0, 0, 1, 1),)
    expected = sum(
        _filtered_nbytes(header, len(range(top, header.height, down)), len(range(left, header.width, across)))
        for left, top, across, down in passes
    )
    for library in INFLATERS:
        inflater = library.decompressobj()
        try:
            inflated: bytes = inflater.decompress(stream, expected)
        except library.error as error:
            if library is INFLATERS[-1]:
                raise ImageError("a damaged PNG image") from error
        else:
            if inflater.eof and len(inflated) == expected:
                break
    if len(inflated) < expected:
        raise ImageError(f"a truncated PNG image: expected {expected} bytes of pixels, found {len(inflated)}")
    return np.frombuffer(inflated, np.uint8)


def _to_gray(colours: Pixels, gamma: int, wide: bool) -> Pixels:
    """Convert RGB to gray by libpng's ``rgb_to_gray``: weighted as stored, or in linear light if `gamma` is known."""
    bits = 8 * colours.dtype.itemsize
    # Before 16 bits become 8, the tables of libpng have 11 bits.
    shift = 5 if bits == 16 and not wide else 0
    values = colours
    # libpng ignores a gamma within five percent of 1.
    curved = gamma > 0 and not 95_000 <= gamma <= 105_000
    if curved:
        inverse = int(1e10 / gamma + 0.5)
        values = _tabulate_gamma(bits, inverse, shift)[colours >> shift]
    red, green, blue = (values[..., i : i + 1].astype(np.uint32) for i in range(3))
    # libpng truncates stored values of 8 bits, and rounds otherwise.
    half = 0 if bits == 8 and not curved else 1 << 14
    gray = ((_RED * red + _GREEN * green + _BLUE * blue + half) >> 15).astype(colours.dtype)
    if curved:
        same = (colours == colours[..., :1]).all(axis=-1, keepdims=True)
        alike = colours[..., :1] if not shift else _high_bytes(shift)[colours[..., :1] >> shift]
        gray = np.where(same, alike, _tabulate_gamma(bits, int(1e10 / inverse + 0.5), shift)[gray >> shift])
    return gray


def _tabulate_gamma(bits: int, gamma: int, shift: int) -> Pixels:
    """Tabulate values raised to ``gamma / 100000``, or their bits from `shift` on."""
    top, last = (1 << bits) - 1, (1 << (bits - shift)) - 1
    kind = np.uint8 if bits == 8 else np.uint16
    return np.floor(top * np.power(np.arange(last + 1) / last, gamma * 1e-5) + 0.5).astype(kind)


def _high_bytes(shift: int) -> Pixels:
    """Table of values whose high bytes libpng rounds to, by their bits from `shift` on."""
    last = (1 << (16 - shift)) - 1
    borders = ((np.arange(255) * 257 + 128) * last + 32768) // 65535 + 1
    return (np.searchsorted(borders, np.arange(last + 1), side="right") * 257).astype(np.uint16)
