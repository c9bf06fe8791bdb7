"""Cells of a preview: values of rows as text, numbers to draw, or pictures, independent of the output format."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import plural, printable
from dask_tfrecord.features import Feature, ImageFeature
from dask_tfrecord.images.decode_image import ImageError, decode_image
from dask_tfrecord.inspection.content_detection import detect_image, is_probably_text

__all__ = ["Cell", "Picture", "PreviewColumn", "PreviewContent", "Spark", "averaged", "preview_column"]

# Pixels of the longer side of a picture, letters of a text, values of a list, pictures of a row, points of a line.
_SIDE = 256
_LETTERS = 200
_LISTED = 4
_PICTURES = 4
_POINTS = 64
# Arrays of one channel with shorter sides are matrices rather than pictures.
_SHORTEST = 8
_MOST_OBLONG = 8
_BYTES = 6


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """Image as it is displayed.

    Attributes
    ----------
    pixels : ndarray of uint8, shape (height, width, 1, 3 or 4)
        Pixels, reduced so that the longer side has at most 256.
    text : str
        Size of the whole image.
    reduced : bool
        The image has more pixels.
    """

    pixels: NDArray[np.uint8]
    text: str
    reduced: bool


@dataclass(frozen=True, slots=True)
class Spark:
    """Numbers of a vector to draw as a line.

    Attributes
    ----------
    values : tuple of float
        At most 64 numbers; of a longer vector, means of consecutive values.
    text : str
        Number of values and their range.
    """

    values: tuple[float, ...]
    text: str


Cell = str | Spark | tuple[Picture, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PreviewColumn:
    """Cells of one column.

    Attributes
    ----------
    name : str
        Name of the column, printable.
    about : str
        Dtype, shape and displayed range of pixels.
    cells : tuple of str, Spark or tuple of Picture
        One cell per row; all text is printable.
    role : {"picture", "class", "integer", "text", "other"}
        Content that captions of pictures are chosen by.
    right : bool
        Cells are numbers, aligned to the right.
    """

    name: str
    about: str
    cells: tuple[Cell, ...]
    role: str
    right: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class PreviewContent:
    """Content that every output format displays.

    Attributes
    ----------
    nrows : int
        Number of rows.
    title : str
        Number of rows, and the origin.
    columns : tuple of PreviewColumn
        Cells of each column.
    """

    nrows: int
    title: str
    columns: tuple[PreviewColumn, ...]


def preview_column(name: str, feature: Feature, rows: NDArray[Any], classes: Sequence[str]) -> PreviewColumn:
    """Convert the rows of a column to cells.

    Parameters
    ----------
    name : str
        Name of the column.
    feature : Feature
        Feature of the column.
    rows : ndarray of shape (n, ...)
        Values as `Dataset.compute` returns them.
    classes : sequence of str
        Class names of an integer column.
    """
    title, about = printable(name), _about(feature)
    values = list(rows)
    images, described = _images(feature, values)
    if images is not None:
        scaled, note = _scaled(images)
        cells: list[Cell] = []
        for row, text in zip(scaled, described, strict=True):
            cells.append(tuple(row) if row or not text else text)
        return PreviewColumn(title, f"{about}{note}", tuple(cells), "picture")
    if feature.block_shape == () and not feature.ragged_rank and not feature.own_shapes:
        texts = tuple(_scalar(value, classes) for value in values)
        kind = feature.item_dtype.kind
        whole = kind in "iu"
        words = kind in "OT" and all(isinstance(value, str) or is_probably_text(value) for value in values)
        role = "class" if classes and whole else "integer" if whole else "text" if words else "other"
        return PreviewColumn(title, about, texts, role, right=feature.is_dense and role != "class")
    spread = max((np.size(value) for value in values), default=0) > _LISTED
    return PreviewColumn(title, about, tuple(_array(value, classes, spread) for value in values), "other")


def _about(feature: Feature) -> str:
    dtype = "text" if feature.item_dtype.kind == "T" else "bytes" if feature.is_bytes else str(feature.item_dtype)
    sizes = [*["?"] * (feature.own_shapes or feature.ragged_rank), *map(str, feature.item_shape)]
    return f"{dtype} ({', '.join(sizes)})" if sizes else dtype


# ------------------------------------------------------------------------------------------------------------ pictures


def _images(feature: Feature, values: Sequence[Any]) -> tuple[list[list[NDArray[Any]]] | None, list[str]]:
    """Return the images of each row, and a text for each row without one; None if the column holds no images."""
    if isinstance(feature, ImageFeature):
        images = [list(islice(_flat_images(value), _PICTURES)) for value in values]
        return images, ["" if row else "no image" for row in images]
    if feature.is_bytes and not feature.own_shapes:
        listed = [[value] if isinstance(value, bytes) else list(np.ravel(value)) for value in values]
        if not all(isinstance(item, bytes) for row in listed for item in row):
            return None, []
        decoded = [[image for item in row[:_PICTURES] if (image := _decoded(item)) is not None] for row in listed]
        texts = [", ".join(map(_bytes, row[:_LISTED])) or "no values" for row in listed]
        return (decoded if any(decoded) else None), texts
    if values and all(_is_picture(value) for value in values):
        return [[value if value.ndim == 3 else value[..., None]] for value in values], [""] * len(values)
    return None, []


def _flat_images(value: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the images of a row that holds one, several, or lists of them."""
    if value.dtype != object and value.ndim == 3:
        yield value
    else:
        for item in value:
            yield from _flat_images(item)


def _decoded(value: bytes) -> NDArray[Any] | None:
    """Decode bytes that are an image; None for other bytes, damaged images, and without Pillow."""
    found = detect_image(value)
    if found is None:
        return None
    try:
        return decode_image(value, dtype=found.dtype)
    except (ImageError, ImportError):
        return None


def _is_picture(value: Any) -> bool:
    if not isinstance(value, np.ndarray) or value.ndim not in (2, 3) or not value.size:
        return False
    if value.dtype.kind not in "biuf" and value.dtype.name != "bfloat16":
        return False
    shorter, longer = sorted(value.shape[:2])
    if longer > _MOST_OBLONG * shorter:
        return False
    return shorter >= _SHORTEST if value.ndim == 2 else value.shape[2] in (1, 3, 4) and shorter >= _LISTED


def _scaled(rows: list[list[NDArray[Any]]]) -> tuple[list[list[Picture]], str]:
    """Scale images of one column to 8 bits by one range; return a note on the range, unless it is a usual one."""
    converted = [[image if image.dtype.kind in "biu" else _doubles(image) for image in row] for row in rows]
    # Detected images of one column may have 8 and 16 bits.
    of_dtype: dict[Any, list[NDArray[Any]]] = {}
    for row in converted:
        for image in row:
            of_dtype.setdefault(image.dtype, []).append(image)
    ranges = {dtype: _range(images) for dtype, images in of_dtype.items()}
    unusual = [f"{low:.4g} to {high:.4g}" for low, high in ranges.values() if (low, high) not in ((0, 255), (0, 1))]
    note = f", black to white: {'; '.join(unusual)}" if unusual else ""
    return [[_picture(image, *ranges[image.dtype]) for image in row] for row in converted], note


def _range(images: Sequence[NDArray[Any]]) -> tuple[float, float]:
    """Return the values that are displayed as black and white."""
    if not images or images[0].dtype == np.uint8:
        return 0, 255
    if images[0].dtype == bool:
        return 0, 1
    extents = [(float(part.min()), float(part.max())) for image in images if (part := image[np.isfinite(image)]).size]
    low, high = min((low for low, _ in extents), default=0), max((high for _, high in extents), default=1)
    if images[0].dtype.kind in "iu":
        # 8 bits in a wider type; 16 bits of a camera rarely use the whole range.
        return (0, 255) if low >= 0 and high <= 255 else (min(low, 0), high)
    return (0, 1) if low >= 0 and high <= 1 else (low, high)


def _picture(image: NDArray[Any], low: float, high: float) -> Picture:
    height, width, channels = image.shape
    text = f"{height:,} x {width:,}" + (f" x {channels}" if channels != 1 else "")
    if not image.size:
        return Picture(np.zeros((1, 1, 1), np.uint8), text, False)
    reduced = max(height, width) > _SIDE
    levels = image
    if image.dtype != np.uint8:
        with np.errstate(all="ignore"):
            unit = np.nan_to_num((image.astype(np.float64) - low) / ((high - low) or 1), nan=0, posinf=1, neginf=0)
        levels = np.rint(np.clip(unit, 0, 1) * 255).astype(np.uint8)
    if reduced:
        longer = max(height, width)
        levels = averaged(levels, max(1, height * _SIDE // longer), max(1, width * _SIDE // longer))
    if channels == 2:  # gray and alpha
        levels = levels[..., [0, 0, 0, 1]]
    return Picture(np.ascontiguousarray(levels), text, reduced)


def averaged(pixels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Average blocks of pixels to fewer ones."""
    sums = pixels.astype(np.float64)
    for axis, target in enumerate((height, width)):
        size = pixels.shape[axis]
        edges = np.arange(target) * size // target
        counts = np.diff(np.append(edges, size))
        sums = np.add.reduceat(sums, edges, axis=axis) / counts.reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
    return np.rint(sums).astype(np.uint8)


# ---------------------------------------------------------------------------------------------------- text and numbers


def _scalar(value: Any, classes: Sequence[str] = ()) -> str:
    if isinstance(value, bytes):
        return _bytes(value)
    if isinstance(value, str):
        return _clipped(printable(value))
    number = value.item() if isinstance(value, np.generic) and value.dtype.kind != "V" else value
    if isinstance(number, bool | int):
        known = classes and not isinstance(number, bool) and 0 <= number < len(classes)
        return f"{number} {printable(classes[number])}" if known else str(number)
    if isinstance(number, complex):
        return f"{number:.4g}"
    return f"{float(number):.4g}"


def _bytes(value: bytes) -> str:
    """Return UTF-8 as text; of other bytes, the number and the first ones in hexadecimal."""
    if is_probably_text(value):
        return _clipped(printable(value.decode()))
    content = detect_image(value)
    if content is not None:
        return f"{content.format} image, {plural(len(value), 'byte')}"
    more = " …" if len(value) > _BYTES else ""
    return f"{plural(len(value), 'byte')}: {value[:_BYTES].hex(' ')}{more}"


def _clipped(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"


def _array(value: Any, classes: Sequence[str], spread: bool) -> Cell:
    """Return the cell of an array: a list of few values, a line of many, a summary of several axes."""
    array = np.asarray(value)
    if array.dtype.kind in "OT":
        return _objects(array)
    if array.ndim != 1:
        shape = f"({', '.join(map(str, array.shape))})"
        extent = _extent(array)
        return f"{shape}: {extent}" if extent else shape
    if not array.size:
        return "no values"
    if classes or not spread or array.dtype.kind == "c":
        more = ", …" if array.size > _LISTED else ""
        return ", ".join(_scalar(each, classes) for each in array[:_LISTED]) + more
    return Spark(_points(array), f"{array.size:,}: {_extent(array)}")


def _objects(array: NDArray[Any]) -> str:
    """Describe bytes, strings, or rows of rows."""
    flat = array.ravel()
    if flat.size and not isinstance(flat[0], bytes | str):
        inner = [np.asarray(row) for row in flat]
        sizes = [len(row) for row in inner]
        few = f"{min(sizes):,}" if min(sizes) == max(sizes) else f"{min(sizes):,} to {max(sizes):,}"
        return f"{plural(len(flat), 'row')} of {few}"
    if not flat.size:
        return "no values"
    shape = f"({', '.join(map(str, array.shape))}): " if array.ndim > 1 else ""
    more = ", …" if flat.size > _LISTED else ""
    listed = ", ".join(_quoted(each) for each in flat[:_LISTED])
    return _clipped(f"{shape}{listed}{more}")


def _quoted(value: bytes | str) -> str:
    text = _scalar(value)
    return f"“{text}”" if isinstance(value, str) or is_probably_text(value) else text


def _doubles(array: NDArray[Any]) -> NDArray[np.float64]:
    # NumPy warns of signalling NaN, which any bytes may contain.
    with np.errstate(invalid="ignore"):
        return array.astype(np.float64)


def _extent(array: NDArray[Any]) -> str:
    """Return the range of the finite values, and the number of others."""
    if array.dtype.kind == "c" or not array.size:
        return ""
    numbers = array if array.dtype.kind in "biu" else _doubles(array)
    finite = numbers[np.isfinite(numbers)]
    others = array.size - finite.size
    if not finite.size:
        return "no finite value"
    low, high = _scalar(finite.min()), _scalar(finite.max())
    extent = low if low == high else f"{low} to {high}"
    return f"{extent}, {others:,} not finite" if others else extent


def _points(array: NDArray[Any]) -> tuple[float, ...]:
    """Return at most `_POINTS` numbers: means of consecutive values, NaN where one of them is not finite."""
    numbers = _doubles(array)
    numbers[~np.isfinite(numbers)] = math.nan
    if len(numbers) > _POINTS:
        edges = np.arange(_POINTS) * len(numbers) // _POINTS
        # Halve the values first: a sum of large ones could overflow.
        counts = np.diff(np.append(edges, len(numbers)))
        numbers = np.add.reduceat(numbers / np.repeat(counts, counts), edges)
    return tuple(numbers.tolist())
