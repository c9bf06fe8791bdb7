"""Arrays as encoded images: PNG, without loss, or what Pillow is told to write.

PNG of 16 bits per channel is written here, because Pillow knows it in gray alone. Floats are levels of 8 or 16 bits
divided by the largest, as reading leaves them, or they are refused. Imports blocks, images, pillow and rows.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.columns.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock, splits_of
from dask_tfrecord.columns.images import require_pillow, scale_pixels
from dask_tfrecord.columns.rows import RowError
from dask_tfrecord.errors import SchemaError

__all__ = ["ImageEncoding", "images"]

_FORMATS = ("png", "jpeg", "webp")
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
# Channels that a format stores as they are.
_CHANNELS = {"png": (1, 2, 3, 4), "jpeg": (1, 3), "webp": (3, 4)}
# Colour types of PNG, by the number of channels.
_COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}
_UP = 2
_LEVEL = 6


@dataclass(frozen=True, slots=True)
class ImageEncoding:
    """How images are written.

    Attributes
    ----------
    format : {"png", "jpeg", "webp"}
        Of the files.
    options : mapping of str to object
        What Pillow's writer of that format takes, such as ``quality``.
    """

    format: str = "png"
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Any, name: str) -> ImageEncoding:
        """Read what a user says: a format, or a mapping of one and Pillow's options.

        Raises
        ------
        SchemaError
            If it is neither.
        """
        options = {"format": given} if isinstance(given, str) else given
        if not isinstance(options, Mapping) or not isinstance(options.get("format"), str):
            raise SchemaError(
                f"encoding of {name!r} is a format, or a mapping such as {{'format': 'jpeg', 'quality': 95}}; got "
                f"{given!r}"
            )
        format = {"jpg": "jpeg"}.get(options["format"].lower(), options["format"].lower())
        if format not in _FORMATS:
            raise SchemaError(f"encoding of {name!r}: images are written as {', '.join(_FORMATS)}; got {given!r}")
        return cls(format, {option: value for option, value in options.items() if option != "format"})


def images(encoding: ImageEncoding, block: Block) -> Block:
    """Encode the images of a block, one or any number in each row.

    Returns
    -------
    BytesBlock or RaggedBlock
        A file for each.

    Raises
    ------
    RowError
        If an image has no pixels, channels that the format has not, or values that no levels stand for.
    """
    if isinstance(block, RaggedBlock):
        try:
            files: Any = images(encoding, block.values)
        except RowError as error:
            row = int(np.searchsorted(block.row_splits, error.row, side="right")) - 1
            raise RowError(row, error.message) from None
        return RaggedBlock(files, block.row_splits)
    encoded = [_encoded(encoding, number, image) for number, image in enumerate(_each(block))]
    splits = splits_of(np.array([len(file) for file in encoded], np.int64))
    return BytesBlock(np.frombuffer(b"".join(encoded), np.uint8), splits, (len(encoded),))


def _each(block: Block) -> Iterator[NDArray[Any]]:
    if isinstance(block, ArraysBlock):
        values, ends = np.asarray(block.values), block.row_splits.tolist()
        for row, shape in enumerate(block.shapes.tolist()):
            yield values[ends[row] : ends[row + 1]].reshape(shape)
    else:
        yield from np.asarray(block)


def _encoded(encoding: ImageEncoding, row: int, image: NDArray[Any]) -> bytes:
    channels = image.shape[2]
    if not image.size:
        raise RowError(row, f"holds an image of shape {image.shape}, without pixels, which no file can hold")
    if channels not in _CHANNELS[encoding.format]:
        possible = " or ".join(map(str, _CHANNELS[encoding.format]))
        raise RowError(row, f"holds an image of {channels} channels where {encoding.format} takes {possible}")
    pixels = _levels(row, image)
    if pixels.dtype == np.uint16:
        if encoding.format != "png":
            raise RowError(row, f"holds an image of 16 bits per channel where {encoding.format} has 8: write png")
        return _png16(pixels, encoding.options.get("compress_level", _LEVEL))
    file = io.BytesIO()
    picture = require_pillow().frombytes(_MODES[channels], image.shape[1::-1], np.ascontiguousarray(pixels).tobytes())
    picture.save(file, encoding.format, **encoding.options)
    return file.getvalue()


def _levels(row: int, image: NDArray[Any]) -> NDArray[Any]:
    """Make whole levels of floats: those that give the same floats when they are read."""
    if image.dtype.kind == "u":
        return image
    for depth in (np.dtype(np.uint8), np.dtype(np.uint16)):
        most = np.iinfo(depth).max
        with np.errstate(invalid="ignore"):
            levels: NDArray[Any] = np.rint(np.clip(image.astype(np.float64), 0, 1) * most).astype(depth)
        again = np.empty_like(image)
        scale_pixels(levels, 1, again)
        if (again == image).all():
            return levels
    raise RowError(
        row,
        "holds an image of floats that are no levels of 8 or 16 bits, divided by the largest: it would be rounded. "
        "Round it to uint8 or uint16 first, or write it as RawFeature or TensorFeature",
    )


def _png16(pixels: NDArray[Any], level: int) -> bytes:
    """Write a PNG of 16 bits per channel; every row but the first as its difference to the one above."""
    height, width, channels = pixels.shape
    rows = pixels.astype(">u2").view(np.uint8).reshape(height, -1)
    filtered = np.empty((height, rows.shape[1] + 1), np.uint8)
    filtered[:, 0] = _UP
    filtered[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])
    header = struct.pack(">IIBBBBB", width, height, 16, _COLOURS[channels], 0, 0, 0)
    data = zlib.compress(filtered.data, level)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))
