"""JPEG, GIF, BMP and WebP: headers, and pixels as `tf.io.decode_image` returns them.

Headers are read by this library: TensorFlow's rules apply, and a shape is known before memory is allocated. Pillow
only decodes compressed data, through `PIL.Image.frombytes`, which ignores its global settings
(`LOAD_TRUNCATED_IMAGES`, the loading strategy of GIFs). Pillow is imported when the first image needs it.

JPEG: https://www.w3.org/Graphics/JPEG/itu-t81.pdf, annex B. GIF: https://www.w3.org/Graphics/GIF/spec-gif89a.txt.
BMP: https://learn.microsoft.com/en-us/windows/win32/gdi/bitmap-header-types.
WebP: https://developers.google.com/speed/webp/docs/riff_container.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from types import ModuleType
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import describe_error, explain_missing

Pixels: TypeAlias = "NDArray[np.uint8 | np.uint16]"


class ImageError(ValueError):
    """The bytes are not an image, a damaged one, or one of another shape than requested.

    The text continues a sentence of the caller: "feature 'image' holds …".
    """


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """Image whose header was read, and whose pixels are still encoded."""

    format: str
    height: int
    width: int
    channels: int
    # `decode(wide)` returns pixels of uint8, or of uint16 if `wide` and the file has 16 bits per channel; None if
    # `decode_into` is the only way.
    decode: Callable[[bool], Pixels] | None
    factor_to_uint16: int = 256  # TensorFlow's factor from 8-bit levels: 257 in a PNG
    # Writes the pixels to a contiguous array of their shape and `depth`; None if the decoder allocates its own.
    decode_into: Callable[[NDArray[Any]], None] | None = None
    depth: int = 8  # bits per channel of the file: fewer than 8 count as 8

    def pixels(self, wide: bool) -> Pixels:
        """Decode to a new array, of uint16 if `wide` and the file has 16 bits per channel."""
        if self.decode is not None:
            return self.decode(wide)
        assert self.decode_into is not None
        out = np.empty((self.height, self.width, self.channels), np.uint8)
        self.decode_into(out)
        return out


Sizes: TypeAlias = tuple[int | None, int | None, int | None]


class ImageFormat:
    """Teach `ImageFeature` a format of encoded images: subclass this, and call `register_image_format`.

    Attributes
    ----------
    name : str
        Name in reports and errors.
    media_type : str or None
        Media type, if browsers can display the format; otherwise images are converted for display.

    See Also
    --------
    register_image_format : Make an image format known, with an example.
    """

    name: str
    media_type: str | None = None

    def is_start(self, data: bytes) -> bool:
        """Return whether the bytes are the start of an image in this format."""
        raise NotImplementedError

    def read_shape(self, data: bytes) -> Sizes:
        """Read height, width and channels from the header; None if it does not determine one of them.

        Every exception becomes an error that names the record.
        """
        raise NotImplementedError

    def decode(self, data: bytes) -> NDArray[np.uint8]:
        """Return the pixels, shaped as the header states. Every exception becomes an error that names the record."""
        raise NotImplementedError

    def read_header(self, data: bytes) -> tuple[int, Sizes] | None:
        """Read bits per channel and shape, with None for what is unknown; return None for other bytes."""
        try:
            return 8, self.read_shape(data)
        except Exception:
            return 8, (None, None, None)

    def open(self, data: bytes, channels: int, fast: bool, least: tuple[int, int] | None) -> EncodedImage:
        """Check an image and prepare to decode it; `fast` and `least` are for JPEG."""
        with self._naming_format():
            shape = self.read_shape(data)
        height, width, found = (size or 0 for size in shape)
        check_channels(self.name, channels, (found,))
        check_pixel_count(self.name, height, width)
        return EncodedImage(self.name, height, width, found, lambda wide: self._pixels(data, (height, width, found)))

    def _pixels(self, data: bytes, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
        """Decode all pixels, and compare them with the shape that the header states."""
        with self._naming_format():
            pixels = np.asarray(self.decode(data))
        if pixels.dtype != np.uint8 or pixels.shape != shape:
            raise ImageError(
                f"a {self.name} image that is decoded to {pixels.dtype} of shape {pixels.shape}; its header states "
                f"uint8 and {shape}"
            )
        return pixels

    @contextmanager
    def _naming_format(self) -> Iterator[None]:
        """Turn any error of a decoder into an ImageError that names the format."""
        try:
            yield
        except (ImageError, MemoryError, RecursionError):
            raise
        except Exception as error:
            raise ImageError(f"a {self.name} image that can't be decoded: {describe_error(error)}") from error

    def shown_pixels(self, data: bytes, pixels: int) -> tuple[int, int]:
        """Return how many `pixels` of an image are decoded for display, and how many may be."""
        return pixels, SHOWN_PIXELS


# Pixels of an image that displays decode, which takes at most 0.6 GB and a second. A sequential JPEG is decoded at a
# fraction of its size, which takes a small part of that.
SHOWN_PIXELS, _SHOWN_JPEG_PIXELS = 1 << 25, 1 << 27
# Scans of a progressive JPEG; encoders write about ten. Each takes the time of all pixels, and a few bytes.
_SHOWN_SCANS = 100


@cache
def require_pillow() -> ModuleType:
    """Import and return `PIL.Image`."""
    with explain_missing("decoding images needs", "Pillow", "image"):
        from PIL import Image
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
    """Decode compressed data with one of Pillow's decoders, which release the GIL."""
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


# Markers without a segment (TEM, RST, SOI), and markers of a frame (SOF).
_BARE = {0x01, *range(0xD0, 0xD9)}
_FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEQUENTIAL = {0xC0, 0xC1}
_END_OF_IMAGE, _SCAN, _ADOBE = 0xD9, 0xDA, 0xEE


@dataclass(frozen=True, slots=True)
class JPEGHeader:
    """Frame header of a JPEG."""

    precision: int
    height: int
    width: int
    components: int
    has_adobe_marker: bool
    is_sequential: bool
    scan: int


def read_jpeg_header(data: bytes) -> JPEGHeader:
    """Read the segments before the first scan.

    Markers are searched as libjpeg does. Otherwise the decoder could find another size than the one allocated.
    """
    frame, adobe, sequential, at = b"", False, True, 2
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
            frame, sequential = segment, marker in _SEQUENTIAL
        adobe |= marker == _ADOBE and length >= 14 and segment.startswith(b"Adobe")
        at += max(length, 2)
    if len(frame) < 6:
        raise ImageError("a truncated JPEG image")
    precision, height, width, components = struct.unpack_from(">BHHB", frame)
    return JPEGHeader(precision, height, width, components, adobe, sequential, scan=at)


class JPEG(ImageFormat):
    """JPEG."""

    name = "JPEG"
    media_type = "image/jpeg"

    def is_start(self, data: bytes) -> bool:
        """Return whether the bytes begin with the start marker and another marker."""
        return data.startswith(b"\xff\xd8\xff")

    def read_shape(self, data: bytes) -> Sizes:
        """Return the shape; zero lines are unknown, as a marker after the first scan has the height."""
        header = read_jpeg_header(data)
        return header.height or None, header.width, header.components if header.components in (1, 3) else None

    def open(self, data: bytes, channels: int, fast: bool, least: tuple[int, int] | None) -> EncodedImage:
        """Check a JPEG and prepare its decoding: at the smallest scale that covers the size `least`, if that is given.

        Gray is the luma plane, as libjpeg returns it. Four components (CMYK, YCCK) become RGB by TensorFlow's formula,
        which treats the values as inverted if the file has an Adobe marker.
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
        if (fast or least) and simplejpeg_or_none() is None:
            option = "fast" if fast else "reduced"
            raise ImportError(f"{option}=True needs simplejpeg: pip install 'dask-tfrecord[image]'")
        decoded_channels = channels or min(header.components, 3)
        whole = (header.height, header.width)
        size = _reduced_size(whole, least) if least else whole
        if inks:
            return EncodedImage("JPEG", *size, decoded_channels, partial(_decode_inks, data, fast, header, size))
        return EncodedImage(
            "JPEG", *size, decoded_channels, None, decode_into=partial(_decode_jpeg_into, data, fast, whole)
        )

    def shown_pixels(self, data: bytes, pixels: int) -> tuple[int, int]:
        """Return the pixels of half of each side, if the decoder reduces the image; refuse very many scans."""
        header = read_jpeg_header(data)
        if header.is_sequential:
            # Of each side at most half is decoded.
            return pixels // 4, _SHOWN_JPEG_PIXELS // 4
        if (scans := data.count(b"\xff\xda", header.scan - 2)) > _SHOWN_SCANS:
            raise ImageError(f"a JPEG image of {scans:,} scans; displays decode at most {_SHOWN_SCANS}")
        return pixels, SHOWN_PIXELS


def _reduced_size(whole: tuple[int, int], least: tuple[int, int]) -> tuple[int, int]:
    """Choose libjpeg's smallest size (1/8, 1/4, 1/2 or whole) that covers `least`."""
    for ratio in (8, 4, 2):
        height, width = (-(-side // ratio) for side in whole)
        if height >= least[0] and width >= least[1]:
            return height, width
    return whole


@cache
def simplejpeg_or_none() -> ModuleType | None:
    """Import and return simplejpeg, or None where it is not installed."""
    try:
        import simplejpeg
    except ImportError:
        return None
    return cast(ModuleType, simplejpeg)


_MODES = {1: "L", 3: "RGB", 4: "CMYK"}


def _decode_jpeg_into(data: bytes, fast: bool, whole: tuple[int, int], out: NDArray[np.uint8]) -> None:
    """Decode gray, RGB or CMYK to `out`, at the scale of `out` to the size `whole` of the file."""
    *size, channels = out.shape
    is_reduced = tuple(size) != whole
    library = simplejpeg_or_none()
    if library is not None:
        least = dict(zip(("min_height", "min_width"), size, strict=True)) if is_reduced else {}
        space = {1: "GRAY", 3: "RGB", 4: "CMYK"}[channels]
        decode = partial(library.decode_jpeg, data, space, fastdct=fast, buffer=out, **least)
        try:
            if decode(strict=True).shape == out.shape:
                return
        except ValueError:
            # A warning, which TensorFlow ignores, or an error. Pillow distinguishes them.
            pass
    mode = _MODES[channels]
    pixels = decode_with_pillow("JPEG", mode, whole[::-1], data, "jpeg", mode, "")
    if library is None or not (fast or is_reduced):
        np.copyto(out, pixels)
        return
    try:
        decode(strict=False)
    except ValueError as error:
        raise ImageError(f"a JPEG image that simplejpeg cannot decode: {error}") from error


def _decode_inks(data: bytes, fast: bool, header: JPEGHeader, size: tuple[int, int], wide: bool) -> NDArray[np.uint8]:
    """Decode CMYK to RGB of this size."""
    pixels = np.empty((*size, 4), np.uint8)
    _decode_jpeg_into(data, fast, (header.height, header.width), pixels)
    inks = pixels.astype(np.uint16)
    if not header.has_adobe_marker:
        inks = 255 - inks
    return (inks[..., :3] * inks[..., 3:] // 255).astype(np.uint8)


_TRAILER, _IMAGE, _EXTENSION = 0x3B, 0x2C, 0x21


@dataclass(frozen=True, slots=True)
class GIFFrame:
    """One frame of a GIF."""

    left: int
    top: int
    width: int
    height: int
    interlaced: bool
    palette: bytes
    transparent: int | None  # index of the transparent colour; -1 or None without one
    start: int  # of the image data, which begin with the width of the codes


def read_gif_frames(data: bytes) -> list[GIFFrame]:
    """Read the descriptors of all frames.

    A file that ends after a complete frame is accepted: all its pixels are present, only the trailer is missing.
    """
    frames: list[GIFFrame] = []
    # Index of the transparent colour of the next frame; -1 if its graphic control has none, None without a control.
    transparent: int | None = None
    try:
        # The header and the screen descriptor take 13 bytes; byte 10 has the flags of the palette of all frames.
        shared, at = _gif_palette(data, 13, data[10])
        while at < len(data) or not frames:
            kind = data[at]
            if kind == _TRAILER:
                break
            if kind == _IMAGE:
                left, top, width, height, flags = struct.unpack_from("<4HB", data, at + 1)
                own, at = _gif_palette(data, at + 10, flags)
                is_interlaced = bool(flags & 0x40)
                frames.append(GIFFrame(left, top, width, height, is_interlaced, own or shared, transparent, at))
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


def _gif_palette(data: bytes, at: int, flags: int) -> tuple[bytes, int]:
    """Return the palette that `flags` announce at offset `at`, and its end."""
    end = at + (3 * (2 << (flags & 7)) if flags & 0x80 else 0)
    if end > len(data):
        raise ImageError("a truncated GIF image")
    return data[at:end], end


def canvas_shape(frames: list[GIFFrame]) -> tuple[int, int]:
    """Height and width of the largest frame: TensorFlow ignores the screen descriptor."""
    return max(frame.height for frame in frames), max(frame.width for frame in frames)


class GIF(ImageFormat):
    """GIF; only its first frame is decoded."""

    name = "GIF"
    media_type = "image/gif"

    def is_start(self, data: bytes) -> bool:
        """Return whether the bytes begin with the signature of both versions."""
        return data.startswith(b"GIF8")

    def read_shape(self, data: bytes) -> Sizes:
        """Return the shape of the canvas."""
        return *canvas_shape(read_gif_frames(data)), 3

    def open(self, data: bytes, channels: int, fast: bool, least: tuple[int, int] | None) -> EncodedImage:
        """Check a GIF and prepare the decoding of its first frame.

        As in TensorFlow, the canvas has the size of the largest frame. Pixels that the first frame does not cover, or
        where it is transparent, are black.
        """
        check_channels("GIF", channels, (3,))
        frames = read_gif_frames(data)
        if not frames[0].palette:
            raise ImageError("a GIF image without a palette")
        height, width = canvas_shape(frames)
        check_pixel_count("GIF", frames[0].height, frames[0].width)
        check_pixel_count("GIF", height, width)
        return EncodedImage("GIF", height, width, 3, partial(_decode_gif, data, frames[0], (height, width)))


def _decode_gif(data: bytes, frame: GIFFrame, shape: tuple[int, int], wide: bool) -> NDArray[np.uint8]:
    """Return the pixels of the first frame, black where it leaves the image uncovered; they never are `wide`."""
    size = frame.width, frame.height
    count = len(frame.palette) // 3
    colours, known = np.zeros((256, 3), np.uint8), np.zeros(256, np.bool_)
    colours[:count], known[:count] = np.frombuffer(frame.palette, np.uint8).reshape(-1, 3), True
    if frame.transparent is not None and frame.transparent >= 0:
        colours[frame.transparent], known[frame.transparent] = 0, True
    code_size, codes = data[frame.start], data[frame.start + 1 :]
    indices = decode_with_pillow("GIF", "P", size, codes, "gif", code_size, int(frame.interlaced))[..., 0]
    if not known.take(indices).all():
        raise ImageError(f"a GIF image with colour {indices.max()}, past its palette of {count}")
    pixels = colours.take(indices, axis=0)
    if pixels.shape[:2] == shape and not (frame.left or frame.top):
        return pixels
    canvas = np.zeros((*shape, 3), np.uint8)
    area = canvas[frame.top : frame.top + frame.height, frame.left : frame.left + frame.width]
    area[:] = pixels[: area.shape[0], : area.shape[1]]
    return canvas


# Compression: none, or masks that select the bits of each colour.
_PLAIN, _BIT_FIELDS = 0, (3, 6)
_USUAL_MASKS = struct.pack("<3I", 0xFF0000, 0xFF00, 0xFF)
_HEADER_SIZES = (40, 52, 56, 108, 124)


@dataclass(frozen=True, slots=True)
class BMPHeader:
    """Header of a BMP."""

    start: int  # offset of the pixels
    size: int  # of the header, without the 14 bytes of the file header
    width: int
    height: int  # negative if the first row is the top one
    planes: int
    bits: int  # per pixel
    compression: int

    @property
    def is_known(self) -> bool:
        """The header has a size that a version of the format defines, and one plane: text may begin with "BM"."""
        return self.size in _HEADER_SIZES and self.planes == 1


def read_bmp_header(data: bytes) -> BMPHeader:
    """Read the header, unchecked."""
    if len(data) < 54:
        raise ImageError("a truncated BMP image")
    return BMPHeader(*struct.unpack_from("<3i i HH I", data, 10))


class BMP(ImageFormat):
    """BMP."""

    name = "BMP"
    media_type = "image/bmp"

    def is_start(self, data: bytes) -> bool:
        """Return whether the bytes begin with "BM", as text may."""
        return data.startswith(b"BM")

    def read_shape(self, data: bytes) -> Sizes:
        """Return the shape, with unknown channels of a palette."""
        header = read_bmp_header(data)
        return abs(header.height), header.width, {24: 3, 32: 4}.get(header.bits)

    def read_header(self, data: bytes) -> tuple[int, Sizes] | None:
        """Return bits per channel and shape; None for text."""
        try:
            return (8, self.read_shape(data)) if read_bmp_header(data).is_known else None
        except ImageError:
            return None

    def open(self, data: bytes, channels: int, fast: bool, least: tuple[int, int] | None) -> EncodedImage:
        """Check a BMP of 8, 24 or 32 bits per pixel and prepare its decoding.

        As in TensorFlow, pixels of 8 bits are returned as stored and the palette is ignored. The file must end with the
        last pixel, to the byte.
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
        return EncodedImage("BMP", height, width, found, partial(_decode_bmp, pixels, found))


def _decode_bmp(stored: NDArray[np.uint8], channels: int, wide: bool) -> NDArray[np.uint8]:
    """Reorder the channels of pixels, and add an opaque one if it is missing."""
    # BGR to RGB; a single channel is kept or repeated.
    order = {1: [0] * min(channels, 3), 3: [2, 1, 0], 4: [2, 1, 0, 3]}[stored.shape[2]][:channels]
    pixels = stored[..., order]
    if len(order) == channels:
        return pixels
    return np.concatenate([pixels, np.full((*pixels.shape[:2], 1), 255, np.uint8)], axis=2)


# Flags of the extended header.
_ALPHA, _ANIMATED = 0x10, 0x02


def read_webp_shape(data: bytes) -> tuple[int, int, int]:
    """Return height, width and channels (4 with alpha, otherwise 3), by the rules of `WebPGetFeatures`."""
    at, canvas, channels = 12, None, 3
    while at + 18 <= len(data):
        kind = data[at : at + 4]
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        body = at + 8
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


class WebP(ImageFormat):
    """WebP; only its first frame is decoded."""

    name = "WebP"
    media_type = "image/webp"

    def is_start(self, data: bytes) -> bool:
        """Return whether the bytes begin a RIFF file of WebP."""
        return data.startswith(b"RIFF") and data[8:12] == b"WEBP"

    def read_shape(self, data: bytes) -> Sizes:
        """Return the shape."""
        return read_webp_shape(data)

    def open(self, data: bytes, channels: int, fast: bool, least: tuple[int, int] | None) -> EncodedImage:
        """Check a WebP, still or animated, and prepare the decoding of its first frame.

        As in TensorFlow, alpha is neither added nor dropped. TensorFlow writes past the end of its tensor for an
        animation without alpha; here it has three channels.
        """
        end = 8 + int.from_bytes(data[4:8], "little")
        if len(data) < max(end, 30):
            raise ImageError("a truncated WebP image")
        shape = read_webp_shape(data)
        check_channels("WebP", channels, shape[2:])
        check_pixel_count("WebP", shape[0], shape[1])
        return EncodedImage("WebP", *shape, partial(_decode_webp, data[:end], shape))


def _decode_webp(data: bytes, shape: tuple[int, int, int], wide: bool) -> NDArray[np.uint8]:
    """Decode by Pillow, and compare the size with the header."""
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
