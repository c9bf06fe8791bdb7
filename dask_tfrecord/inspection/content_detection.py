"""Content detection: guess from its first bytes and wire format whether a value is an image, a tensor or text.

The guesses appear in reports only. Values are never decoded here, and no reader depends on the result.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from dask_tfrecord.features.base import TENSOR_DTYPES
from dask_tfrecord.images.pixels import read_header
from dask_tfrecord.inspection.payload_type import NoMessageError, message_fields, varint

Sizes = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class BytesContent:
    """Detected format of one or several bytes values, and the array that they decode to.

    Attributes
    ----------
    format : str
        "JPEG", "PNG", "BMP", "GIF", "WebP" or "tensor"; "image" for images of several formats.
    dtype : str
        Dtype of the decoded array.
    shape : tuple of int or None
        Shape of the decoded array; None for a size that is unknown or differs between values.
    """

    format: str
    dtype: str
    shape: Sizes

    def common(self, other: BytesContent) -> BytesContent | None:
        """Return the content that both share, or None if one feature can't read both."""
        format = self.format if self.format == other.format else "image"
        if (self.format == "tensor") != (other.format == "tensor") or len(self.shape) != len(other.shape):
            return None
        if self.dtype != other.dtype:
            return None
        shape = (size if size == also else None for size, also in zip(self.shape, other.shape, strict=True))
        return BytesContent(format, self.dtype, tuple(shape))


# ---------------------------------------------------------------------------------------------------------------- text

# Control characters other than tab, line feed, form feed and carriage return.
_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f\x7f]")


def is_probably_text(value: bytes) -> bool:
    """Return whether a value is UTF-8 without control characters; True for an empty value."""
    if _CONTROLS.search(value):
        return False
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


# -------------------------------------------------------------------------------------------------------------- images


def detect_image(value: bytes) -> BytesContent | None:
    """Return format, dtype and shape of an encoded image, or None if the value is not one.

    The shape is (height, width, channels), with None where the header does not specify a size.
    """
    header = read_header(value)
    if header is None:
        return None
    dtype = "uint16" if header.depth == 16 else "uint8"
    return BytesContent(header.format, dtype, (header.height, header.width, header.channels))


# ------------------------------------------------------------------------------------------------------------- tensors

# dtypes by their number in the enum tensorflow.DataType.
_NAMES = {dtype.number: name for name, dtype in TENSOR_DTYPES.items()}
_VARINT, _DELIMITED = 0, 2
_WIDTHS = {5: 4, 6: 8, 9: 8, 12: 16}


def detect_tensor(value: bytes) -> BytesContent | None:
    """Detect a serialized TensorProto; return None for other bytes.

    The check is strict because many byte strings parse as some protobuf message: the dtype must be known, the shape
    complete, no other field may be set, and the number of values must fit the shape.
    """
    try:
        return _tensor(value)
    except NoMessageError:
        return None


def _tensor(value: bytes) -> BytesContent | None:
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
    if number not in _NAMES:
        return None
    dtype = _NAMES[number]
    _, itemsize, values_field = TENSOR_DTYPES[dtype]
    size = math.prod(length or 0 for length in shape)
    if any(field != values_field for field, _, _ in listed):
        return None
    if content is not None and not listed:
        fits = len(content) == size * itemsize and bool(itemsize)
    else:
        count = sum(_listed(*entry) for entry in listed)
        # The last listed number is repeated to fill the shape; strings are never repeated.
        fits = content is None and (count == size or (0 < count < size and dtype != "bytes"))
    return BytesContent("tensor", dtype, shape) if fits else None


def _tensor_shape(data: memoryview) -> Sizes:
    """Return the sizes of a TensorShapeProto; raise NoMessageError if one is unknown."""
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
    """Return the number of values that one field of a TensorProto lists."""
    if wire_type != _DELIMITED or field == 8:
        return 1
    width = _WIDTHS.get(field)
    return len(data) // width if width else sum(byte < 0x80 for byte in data)
