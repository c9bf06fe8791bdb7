"""Image files decoded as `tf.io.decode_image` does, their headers, and arrays encoded as image files.

The first bytes determine the format, as in TensorFlow. Pixels are scaled, or resized, directly into the slot of the
caller. The orientation in EXIF data is ignored, as in TensorFlow. Pillow and simplejpeg decode; both come with the
extra ``dask-tfrecord[image]``. `read_header` works without them. PNG is written without loss, here if it has 16 bits
per channel, which Pillow supports in gray alone; JPEG, WebP and PNG with the options of Pillow.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.errors import SchemaError, printable
from dask_tfrecord.features.images.codecs import SHOWN_PIXELS, EncodedImage, ImageError, Pixels, Sizes, require_pillow
from dask_tfrecord.features.images.registry import detect_format, format_names

# Pixels of a side that the native core filters: its weights grow with the longer side.
LONGEST_SIDE = 1 << 20
_JPEG_XL = (b"\xff\x0a", b"\x00\x00\x00\x0cJXL \r\n\x87\n")


def read_header(data: bytes) -> tuple[str, int, Sizes] | None:
    """Return format, bits per channel and shape of an image, without Pillow; None for other bytes.

    The shape is (height, width, channels), with None for what the header does not determine.
    """
    found = detect_format(data)
    header = None if found is None else found.read_header(data)
    return None if found is None or header is None else (found.name, *header)


class Decoding(Protocol):
    """The arguments of an `ImageFeature`, which determine how an image is decoded."""

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width to resize to."""

    @property
    def channels(self) -> int:
        """Number of channels to convert to; 0 keeps the file's."""

    @property
    def method(self) -> str:
        """Filter of `size`."""

    @property
    def antialias(self) -> bool:
        """Average the pixels that a smaller image would leave out."""

    @property
    def fast(self) -> bool:
        """Decode JPEG with the fast DCT."""

    @property
    def reduced(self) -> bool:
        """Decode JPEG at a scale near `size`."""

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of pixels."""


def resize_advice(shape: Sequence[int]) -> str:
    """Say how to read images of several sizes as arrays of one shape."""
    height, width, channels = shape
    if -1 in (height, width):
        return ""
    return f": write ImageFeature(size=({height}, {width}), channels={channels}), which resizes images"


def decode_image(data: bytes | memoryview, feature: Decoding, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Decode the first frame of an image, as its feature describes, to a new array or to `out`, of any strides.

    The shape of `out` is compared before pixels are decoded. Follows TensorFlow's kernels ``DecodeImage``,
    ``ResizeBilinear`` and ``ScaleAndTranslate``. JPEG is decoded by libjpeg's accurate DCT, whose versions differ by a
    level or two.

    Examples
    --------
    >>> import struct
    >>> from dask_tfrecord.features.images.pixels import decode_image
    >>> header = struct.pack("<2sIHHI IiiHHIIiiII", b"BM", 62, 0, 0, 54, 40, 2, 1, 1, 24, 0, 8, 0, 0, 0, 0)
    >>> decode_image(header + bytes([3, 2, 1, 6, 5, 4, 0, 0]), dtf.ImageFeature()).tolist()
    [[[1, 2, 3], [4, 5, 6]]]
    """
    size, lanczos, antialias = feature.size, feature.method == "lanczos3", feature.antialias
    image = _open_image(data, feature.channels, feature.fast, size if feature.reduced else None)
    shape = (*(size or (image.height, image.width)), image.channels)
    if out is None:
        out = np.empty(shape, feature.item_dtype)
    elif out.shape != shape:
        raise ImageError(f"a {image.format} image of shape {shape}; expected {out.shape}{resize_advice(out.shape)}")
    is_resized = size is not None and size != (image.height, image.width)
    if is_resized and (lanczos or antialias) and max(image.height, image.width) > LONGEST_SIDE:
        raise ImageError(
            f"a {image.format} image of {image.width} x {image.height} pixels; method='lanczos3' and antialias=True "
            f"resize at most {LONGEST_SIDE} pixels a side"
        )
    is_stored = out.dtype == (np.uint16 if image.depth == 16 else np.uint8) and not is_resized
    if image.decode_into is not None and is_stored and out.flags.c_contiguous:
        image.decode_into(out)
        return out
    pixels = image.pixels(wide=out.dtype != np.uint8)
    if is_resized:
        # With half-pixel centres. Integers keep their levels.
        resize = partial(_native.resize_pixels, lanczos=lanczos, antialias=antialias)
        _convert(resize, pixels, image.factor_to_uint16, out)
    else:
        scale_pixels(pixels, image.factor_to_uint16, out)
    return out


def image_shape(data: bytes | memoryview, feature: Decoding) -> tuple[int, int, int]:
    """Return the shape of the array that `decode_image` returns, without decoding pixels."""
    image = _open_image(data, feature.channels)
    height, width = feature.size or (image.height, image.width)
    return height, width, image.channels


def _open_image(
    data: bytes | memoryview, channels: int, fast: bool = False, least: tuple[int, int] | None = None
) -> EncodedImage:
    """Open an encoded image of any known format; an error names the format that the bytes seem to have."""
    require_pillow()
    # Encoded images are small, and the codecs need `find` and slices of bytes.
    file = bytes(data)
    found = detect_format(file)
    if found is not None:
        return found.open(file, channels, fast, least)
    if file.startswith(_JPEG_XL):
        raise ImageError("a JPEG XL image, which Pillow cannot decode")
    if not file:
        raise ImageError("no bytes; expected an encoded image")
    *names, last = format_names()
    raise ImageError(
        f"bytes that begin with {file[:8]!r}, which are not a {', '.join(names)} or {last} image: read raw pixels with "
        "RawFeature((28, 28, 3), 'uint8'), and other bytes with FixedLenFeature((), 'bytes')"
    )


def check_shown(data: bytes, height: int, width: int) -> int:
    """Return the pixels to decode for a display; raise ImageError if that takes much more memory than the file."""
    pixels, found = height * width, detect_format(data)
    shown, most = (pixels, SHOWN_PIXELS) if found is None else found.shown_pixels(data, pixels)
    if shown > most:
        name = "" if found is None else f"{found.name} "
        raise ImageError(f"a {name}image of {width:,} x {height:,} pixels, more than displays decode")
    return shown


def shrink_image(data: bytes, width: int) -> bytes:
    """Encode an image again, at most `width` pixels wide: JPEG stays JPEG, and other formats become PNG.

    JPEG is decoded at a fraction of its size.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with _open_to_draw(data) as opened:
            format = opened.format
            # Pillow draws the whole screen of a GIF, whose frames may be small.
            check_shown(data, opened.height, opened.width)
            if format == "JPEG":
                opened.draft(None, (width, max(1, opened.height * width // max(1, opened.width))))
            drawn: Any = opened if opened.mode in ("L", "RGB", "RGBA") else opened.convert("RGB")
            drawn.thumbnail((width, 1 << 16))
            out = io.BytesIO()
            if format == "JPEG":
                drawn.save(out, "JPEG", quality=85)
            else:
                drawn.save(out, "PNG", compress_level=1)
            return out.getvalue()
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ImageError(f"the image cannot be decoded: {printable(str(error))[:200]}") from error


def _open_to_draw(data: bytes) -> Any:
    """Open an image with Pillow, or by its format where Pillow does not know it."""
    from PIL import Image

    found = detect_format(data)
    if found is None or found.media_type is not None:
        return Image.open(io.BytesIO(data))
    image = found.open(data, 0, False, None)
    check_shown(data, image.height, image.width)
    pixels = image.pixels(wide=False)
    return Image.fromarray(pixels[..., 0] if image.channels == 1 else pixels)


def scale_pixels(pixels: NDArray[Any], factor_to_uint16: int, out: NDArray[Any]) -> None:
    """Write `pixels` to `out`, scaled from the range of their dtype to the range of `out`."""
    if out.dtype == pixels.dtype:
        np.copyto(out, pixels)
    else:
        _convert(_native.scale_pixels, pixels, factor_to_uint16, out)


def _convert(function: Callable[..., None], pixels: Pixels, factor_to_uint16: int, out: NDArray[Any]) -> None:
    """Call a native function that scales `pixels` to the range of `out` and writes them to contiguous memory."""
    # Half precision cannot represent 65535: multiply in single precision and round once.
    dtype = np.dtype(np.float32) if out.dtype == np.float16 else out.dtype
    target = out if out.dtype == dtype and out.flags.c_contiguous else np.empty(out.shape, dtype)
    levels = 1 if dtype == pixels.dtype else factor_to_uint16
    factor = 1 / np.iinfo(pixels.dtype).max if dtype.kind == "f" else levels
    function(np.ascontiguousarray(pixels), factor, target)
    if target is not out:
        np.copyto(out, target, casting="same_kind")


_FORMATS = ("png", "jpeg", "webp")
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
# Channels that a format stores unchanged.
_CHANNELS = {"png": (1, 2, 3, 4), "jpeg": (1, 3), "webp": (3, 4)}
# Colour types of PNG, by the number of channels.
_COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}
_UP = 2
_LEVEL = 6


@dataclass(frozen=True, slots=True)
class ImageEncoding:
    """Format and options of images to write."""

    format: str = "png"  # png, jpeg or webp
    options: Mapping[str, Any] = field(default_factory=dict)  # of Pillow's writer of that format, for example `quality`

    @classmethod
    def from_argument(cls, given: Any, name: str) -> ImageEncoding:
        """Read the user's argument: a format, or a mapping of a format and Pillow's options."""
        options = {"format": given} if isinstance(given, str) else given
        if not isinstance(options, Mapping) or not isinstance(options.get("format"), str):
            raise SchemaError(
                f"encoding of {name!r}: expected a format, or a mapping like {{'format': 'jpeg', 'quality': 95}}; "
                f"got {given!r}"
            )
        format = {"jpg": "jpeg"}.get(options["format"].lower(), options["format"].lower())
        if format not in _FORMATS:
            raise SchemaError(f"encoding of {name!r}: expected one of {', '.join(_FORMATS)}; got {given!r}")
        return cls(format, {option: value for option, value in options.items() if option != "format"})


def encode_image(encoding: ImageEncoding, image: NDArray[Any]) -> bytes:
    """Encode one image of shape (height, width, channels); floats are levels of 8 or 16 bits divided by the largest."""
    channels = image.shape[2]
    if not image.size:
        raise ImageError(f"an image of shape {image.shape}: a file cannot store an image without pixels")
    if channels not in _CHANNELS[encoding.format]:
        possible = " or ".join(map(str, _CHANNELS[encoding.format]))
        raise ImageError(f"an image of {channels} channels; {encoding.format} stores {possible}")
    pixels = _to_levels(image)
    if pixels.dtype == np.uint16:
        if encoding.format != "png":
            raise ImageError(f"an image of 16 bits per channel; {encoding.format} stores 8: write png")
        return encode_png(pixels, encoding.options.get("compress_level", _LEVEL))
    file = io.BytesIO()
    picture = require_pillow().frombytes(_MODES[channels], image.shape[1::-1], np.ascontiguousarray(pixels).tobytes())
    picture.save(file, encoding.format, **encoding.options)
    return file.getvalue()


def _to_levels(image: NDArray[Any]) -> NDArray[Any]:
    """Convert floats to integer levels that decode to the same floats."""
    if image.dtype.kind == "u":
        return image
    for depth in (np.dtype(np.uint8), np.dtype(np.uint16)):
        largest = np.iinfo(depth).max
        with np.errstate(invalid="ignore"):
            levels: NDArray[Any] = np.rint(np.clip(image.astype(np.float64), 0, 1) * largest).astype(depth)
        again = np.empty_like(image)
        scale_pixels(levels, 1, again)
        if (again == image).all():
            return levels
    raise ImageError(
        "an image of floats that are not levels of 8 or 16 bits divided by the largest: it would be rounded. "
        "Round it to uint8 or uint16 first, or write it as RawFeature or TensorFeature"
    )


def encode_png(pixels: NDArray[Any], level: int = _LEVEL) -> bytes:
    """Write a PNG of pixels of 8 or 16 bits without Pillow; a row is stored as its difference to the row above."""
    height, width, channels = pixels.shape
    rows = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder(">")).view(np.uint8).reshape(height, -1)
    filtered = np.empty((height, rows.shape[1] + 1), np.uint8)
    filtered[:, 0] = _UP
    filtered[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])
    depth = 8 * pixels.dtype.itemsize
    header = struct.pack(">IIBBBBB", width, height, depth, _COLOURS[channels], 0, 0, 0)
    data = zlib.compress(filtered.data, level)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))
