"""What bytes look like that a feature holds: an encoded image, a serialized tensor, text.

These are guesses for reports, from the first bytes and the wire format; nothing is decoded, and no reading rests on
them. Imports nothing but `recognise`.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

from dask_tfrecord.columns.recognise import NoMessageError, message_fields, varint

__all__ = ["Looks", "image_looks", "looks_like_text", "tensor_looks"]

Sizes = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Looks:
    """What a value looks like.

    Attributes
    ----------
    what : str
        "JPEG", "PNG", "BMP", "GIF", "WebP" or "tensor".
    dtype : str
        Of the array that it would decode to.
    shape : tuple of int or None
        Of that array, None where it is not known or not the same for all.
    """

    what: str
    dtype: str
    shape: Sizes

    def common(self, other: Looks) -> Looks | None:
        """Give what is true of both, or None if that is too little for one feature to read them."""
        what = self.what if self.what == other.what else "image"
        if (self.what == "tensor") != (other.what == "tensor") or len(self.shape) != len(other.shape):
            return None
        if self.dtype != other.dtype:
            return None
        shape = (size if size == also else None for size, also in zip(self.shape, other.shape, strict=True))
        return Looks(what, self.dtype, tuple(shape))


# ---------------------------------------------------------------------------------------------------------------- text

# What no text holds: control characters, less tab, line feed, form feed and carriage return.
_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f\x7f]")


def looks_like_text(value: bytes) -> bool:
    """Whether a value is UTF-8 without control characters; an empty one is."""
    if _CONTROLS.search(value):
        return False
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


# -------------------------------------------------------------------------------------------------------------- images


def image_looks(value: bytes) -> Looks | None:
    """Look at the header of an image; None if it is none.

    The shape is (height, width, channels), as far as the header tells them in few steps.
    """
    for signature, what, look in _IMAGES:
        if value.startswith(signature):
            try:
                return look(value) or Looks(what, "uint8", (None, None, None))
            except _NotThisError:
                return None
            except (IndexError, struct.error):  # a header that is cut
                return Looks(what, "uint8", (None, None, None))
    return None


def _jpeg(value: bytes) -> Looks | None:
    at = 2
    while value[at] == 0xFF:
        marker = value[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        # Start of frame, of any coding; C4, C8 and CC are other segments.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width, bands = struct.unpack_from(">HHB", value, at + 5)
            return Looks("JPEG", "uint8", (height or None, width, bands if bands in (1, 3) else None))
        at += 2 + int.from_bytes(value[at + 2 : at + 4], "big")
    return None


def _png(value: bytes) -> Looks:
    width, height, depth, colour = struct.unpack_from(">IIBB", value, 16)
    # Gray, RGB, RGBA; what a palette or gray with alpha becomes, the reader decides.
    bands = {0: 1, 2: 3, 6: 4}.get(colour)
    return Looks("PNG", "uint16" if depth == 16 else "uint8", (height, width, bands))


def _gif(value: bytes) -> Looks:
    width, height = struct.unpack_from("<HH", value, 6)
    return Looks("GIF", "uint8", (height, width, 3))


def _bmp(value: bytes) -> Looks | None:
    # "BM" begins many a text: the header has to have a size that is known, and one plane.
    if len(value) < 54:
        raise _NotThisError
    header, width, height, planes, depth = struct.unpack_from("<IiiHH", value, 14)
    if header not in (40, 52, 56, 108, 124) or planes != 1:
        raise _NotThisError
    return Looks("BMP", "uint8", (abs(height), width, {24: 3, 32: 4}.get(depth)))


def _webp(value: bytes) -> Looks | None:
    if value[8:12] != b"WEBP":
        raise _NotThisError
    chunk = value[12:16]
    if chunk == b"VP8 ":
        width, height = struct.unpack_from("<HH", value, 26)
        return Looks("WebP", "uint8", (height & 0x3FFF, width & 0x3FFF, 3))
    if chunk == b"VP8L":
        packed = int.from_bytes(value[21:25], "little")
        return Looks(
            "WebP", "uint8", ((packed >> 14 & 0x3FFF) + 1, (packed & 0x3FFF) + 1, 4 if packed >> 28 & 1 else 3)
        )
    if chunk == b"VP8X":
        width, height = (int.from_bytes(value[at : at + 3], "little") + 1 for at in (24, 27))
        return Looks("WebP", "uint8", (height, width, 4 if value[20] & 0x10 else 3))
    return None


class _NotThisError(Exception):
    """The signature is there by chance."""


_IMAGES: tuple[tuple[bytes, str, Callable[[bytes], Looks | None]], ...] = (
    (b"\xff\xd8\xff", "JPEG", _jpeg),
    (b"\x89PNG\r\n\x1a\n", "PNG", _png),
    (b"GIF8", "GIF", _gif),
    (b"RIFF", "WebP", _webp),
    (b"BM", "BMP", _bmp),
)

# ------------------------------------------------------------------------------------------------------------- tensors

# Numbers of tensorflow.DataType: the dtype, its bytes, and the field of TensorProto that lists its values one by one.
_DTYPES = {
    1: ("float32", 4, 5),
    2: ("float64", 8, 6),
    3: ("int32", 4, 7),
    4: ("uint8", 1, 7),
    5: ("int16", 2, 7),
    6: ("int8", 1, 7),
    7: ("bytes", 0, 8),
    8: ("complex64", 8, 9),
    9: ("int64", 8, 10),
    10: ("bool", 1, 11),
    14: ("bfloat16", 2, 13),
    17: ("uint16", 2, 7),
    18: ("complex128", 16, 12),
    19: ("float16", 2, 13),
    22: ("uint32", 4, 16),
    23: ("uint64", 8, 17),
}
_VARINT, _DELIMITED = 0, 2
_WIDTHS = {5: 4, 6: 8, 9: 8, 12: 16}


def tensor_looks(value: bytes) -> Looks | None:
    """Look at a serialized TensorProto; None if it is none.

    Judged strictly, for any bytes may be a message of some kind: the dtype is a known one, the shape is complete, no
    other field is there, and there are as many values as the shape asks for.
    """
    try:
        return _tensor(value)
    except NoMessageError:
        return None


def _tensor(value: bytes) -> Looks | None:
    number = content = None
    shape: Sizes = ()
    listed: list[tuple[int, int, memoryview]] = []
    for field, wire_type, data in message_fields(memoryview(value)):
        if (field, wire_type) == (1, _VARINT):
            number, _ = varint(data, 0)
        elif (field, wire_type) == (2, _DELIMITED):
            shape = _tensor_shape(data)
        elif (field, wire_type) == (4, _DELIMITED):
            content = data
        elif 5 <= field <= 17:
            listed.append((field, wire_type, data))
        elif (field, wire_type) != (3, _VARINT):
            return None
    if number not in _DTYPES:
        return None
    dtype, itemsize, values_field = _DTYPES[number]
    size = math.prod(length or 0 for length in shape)
    if any(field != values_field for field, _, _ in listed):
        return None
    if content is not None and not listed:
        fits = len(content) == size * itemsize and bool(itemsize)
    else:
        count = sum(_listed(*entry) for entry in listed)
        # Fewer values than the shape takes stand for more of the last one, but strings are all there.
        fits = content is None and (count == size or (0 < count < size and dtype != "bytes"))
    return Looks("tensor", dtype, shape) if fits else None


def _tensor_shape(data: memoryview) -> Sizes:
    """Sizes of a TensorShapeProto, all of them known."""
    sizes = []
    for field, wire_type, dimension in message_fields(data):
        if (field, wire_type) != (2, _DELIMITED):
            raise NoMessageError
        known = [
            varint(content, 0)[0]
            for number, wire, content in message_fields(dimension)
            if (number, wire) == (1, _VARINT)
        ]
        size = known[-1] if known else 0
        if size >= 1 << 62:
            raise NoMessageError
        sizes.append(size)
    return tuple(sizes)


def _listed(field: int, wire_type: int, data: memoryview) -> int:
    """Values that one field of a TensorProto lists."""
    if wire_type != _DELIMITED or field == 8:
        return 1
    width = _WIDTHS.get(field)
    return len(data) // width if width else sum(byte < 0x80 for byte in data)
