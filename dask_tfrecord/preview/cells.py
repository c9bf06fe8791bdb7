"""First rows of a data set as cells, independent of the display: text, numbers to draw, and pictures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any, Literal

import dask
import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.arrays.sources import Source, memory_limit
from dask_tfrecord.columns.blocks import to_array
from dask_tfrecord.errors import MemoryLimitError, plural, printable
from dask_tfrecord.features import Feature, ImageFeature
from dask_tfrecord.images.codecs import ImageError, simplejpeg_or_none
from dask_tfrecord.images.pixels import decode_image
from dask_tfrecord.inspection.content_detection import BytesContent, detect_image, is_probably_text

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
# Decoded bytes of a column whose rows are read together, and values of an image that are converted at once.
_READ_NBYTES = 64 << 20
_BAND_VALUES = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """Image as it is displayed, with at most `_SIDE` pixels a side."""

    pixels: NDArray[np.uint8]  # (height, width, 1, 3 or 4)
    text: str  # size of the whole image


@dataclass(frozen=True, slots=True)
class Spark:
    """Numbers of a vector to draw as a line: at most `_POINTS`, means of a longer vector."""

    values: tuple[float, ...]
    text: str  # number of values, and their range


Cell = str | Spark | tuple[Picture, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PreviewColumn:
    """Cells of one column; all text is printable."""

    name: str
    about: str  # dtype, shape and displayed range of pixels
    cells: tuple[Cell, ...]
    role: Literal["picture", "class", "integer", "text", "other"]  # captions of pictures are chosen by it
    right: bool = False  # numbers, aligned to the right


def preview_columns(dataset: Dataset, n: int) -> tuple[int, tuple[PreviewColumn, ...]]:
    """Read the first rows of a data set; return their number and their columns."""
    schema = dataset.schema
    if dataset.nrows is None:
        first = dataset.head(n)
        rows: Mapping[str, Iterable[Any]] = first
        nrows = len(next(iter(first.values()))) if first else 0
    else:
        nrows = min(n, dataset.nrows)
        rows = _first_rows(dataset, nrows)
    return nrows, tuple(
        _preview_column(name, feature, rows[name], schema.classes.get(name, ())) for name, feature in schema.items()
    )


def _first_rows(dataset: Dataset, nrows: int) -> Mapping[str, Iterable[Any]]:
    """Return the first rows of each column; rows that take much memory together are read one by one."""
    source = dataset._source
    if source is None or not len(dataset):
        return dataset.head(nrows)
    limited = source.with_memory_limit(_READ_NBYTES)
    try:
        return _read(limited, tuple(dataset), 0, nrows)
    except MemoryLimitError:
        return {name: _single_rows(source, limited, name, nrows) for name in dataset}


def _single_rows(source: Source, limited: Source, name: str, nrows: int) -> Iterator[Any]:
    """Yield the rows of a column, and the error of a row above the memory limit in its place."""
    try:
        yield from _read(limited, (name,), 0, nrows)[name]
    except MemoryLimitError:
        for row in range(nrows):
            try:
                yield from _read(source, (name,), row, row + 1)[name]
            except MemoryLimitError as error:
                yield error


def _read(source: Source, names: tuple[str, ...], start: int, stop: int) -> dict[str, NDArray[Any]]:
    # On the cluster of an active client, which may be the only one that reaches the files.
    return dask.delayed(_rows, pure=False)(source, names, start, stop).compute()  # type: ignore[no-any-return]


def _rows(source: Source, names: tuple[str, ...], start: int, stop: int) -> dict[str, NDArray[Any]]:
    return {name: to_array(block) for name, block in source.read(names, slice(start, stop)).items()}


# --------------------------------------------------------------------------------------------------------------- cells


def _preview_column(name: str, feature: Feature, rows: Iterable[Any], classes: Sequence[str]) -> PreviewColumn:
    """Convert the rows of a column to cells.

    A row is a value as `Dataset.compute` returns it, or the `MemoryLimitError` of a row that was not read. Images are
    reduced one by one, while the rows are iterated.
    """
    title, about = printable(name), _about(feature)
    images, values = _images(feature, rows)
    if images is not None:
        scaled, note = _scaled([row if isinstance(row, list) else [] for row in images])
        cells: list[Cell] = []
        for row, pictures in zip(images, scaled, strict=True):
            cells.append(row if isinstance(row, str) else tuple(pictures))
        return PreviewColumn(title, f"{about}{note}", tuple(cells), "picture")
    if feature.block_shape == () and not feature.ragged_rank and not feature.own_shapes:
        texts = tuple(_scalar(value, classes) for value in values)
        kind = feature.item_dtype.kind
        whole = kind in "iu"
        words = kind in "OT" and all(isinstance(value, str) or _is_text(value) for value in values)
        role: Literal["class", "integer", "text", "other"]
        role = "class" if classes and whole else "integer" if whole else "text" if words else "other"
        return PreviewColumn(title, about, texts, role, right=feature.is_dense and role != "class")
    spread = max((np.size(value) for value in values), default=0) > _LISTED
    return PreviewColumn(title, about, tuple(_array(value, classes, spread) for value in values), "other")


def _is_text(value: Any) -> bool:
    return isinstance(value, bytes) and is_probably_text(value)


def _above_limit(error: MemoryLimitError) -> str:
    feature = "" if error.place is None else f"feature {error.place.feature!r} "
    return _clipped(printable(error.message.removeprefix(feature)))


def _about(feature: Feature) -> str:
    dtype = "text" if feature.item_dtype.kind == "T" else "bytes" if feature.is_bytes else str(feature.item_dtype)
    sizes = [*["?"] * (feature.own_shapes or feature.ragged_rank), *map(str, feature.item_shape)]
    return f"{dtype} ({', '.join(sizes)})" if sizes else dtype


# ------------------------------------------------------------------------------------------------------------ pictures


@dataclass(frozen=True, slots=True, eq=False)
class _Reduced:
    """Image with at most `_SIDE` pixels a side: uint8, or means of other values as float64."""

    pixels: NDArray[np.uint8] | NDArray[np.float64]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    # Least and greatest finite value of the whole image; None without one, and of uint8.
    extent: tuple[float, float] | None


def _images(feature: Feature, rows: Iterable[Any]) -> tuple[list[list[_Reduced] | str] | None, list[Any]]:
    """Return the images of each row, or a text for a row without one; None, and the values, if there are no images."""
    if isinstance(feature, ImageFeature):
        return [_row_images(value) for value in rows], []
    if feature.is_dense and _is_picture(feature.block_shape, feature.item_dtype):
        return [_row_images(value) for value in rows] or None, []
    values = list(rows)
    read = [value for value in values if not isinstance(value, MemoryLimitError)]
    if feature.is_bytes and not feature.own_shapes:
        listed = [[value] if isinstance(value, bytes) else list(np.ravel(value)) for value in read]
        if not all(isinstance(item, bytes) for row in listed for item in row):
            return None, values
        decoded = iter([[image for item in row[:_PICTURES] if (image := _decoded(item))] for row in listed])
        texts = iter([", ".join(map(_bytes, row[:_LISTED])) or "no values" for row in listed])
        found = [
            _above_limit(value) if isinstance(value, MemoryLimitError) else (next(decoded), next(texts))
            for value in values
        ]
        images = [row if isinstance(row, str) else row[0] or row[1] for row in found]
        return (images if any(isinstance(row, list) for row in images) else None), values
    if read and all(isinstance(value, np.ndarray) and _is_picture(value.shape, value.dtype) for value in read):
        return [_row_images(value) for value in values], []
    return None, values


def _row_images(value: Any) -> list[_Reduced] | str:
    if isinstance(value, MemoryLimitError):
        return _above_limit(value)
    return [_reduced(image) for image in islice(_flat_images(value), _PICTURES)] or "no image"


def _flat_images(value: NDArray[Any]) -> Iterator[NDArray[Any]]:
    if value.dtype != object and value.ndim == 2:
        yield value[..., None]
    elif value.dtype != object and value.ndim == 3:
        yield value
    else:
        for item in value:
            yield from _flat_images(item)


def _decoded(value: bytes) -> _Reduced | None:
    """Decode bytes that are an image; None for other bytes, damaged or too large images, and without Pillow."""
    found = detect_image(value)
    if found is None or _is_above_limit(found):
        return None
    height, width, channels = found.shape
    try:
        library = simplejpeg_or_none()
        if found.format == "JPEG" and height and width and channels and library and max(height, width) > 2 * _SIDE:
            longer = max(height, width)
            # The decoder halves the sides while it decodes.
            least = {"min_height": height * _SIDE // longer, "min_width": width * _SIDE // longer}
            with suppress(ValueError):
                scaled = library.decode_jpeg(value, {1: "GRAY", 3: "RGB"}[channels], **least)
                return replace(_reduced(scaled), shape=(height, width, channels))
        return _reduced(decode_image(value, dtype=found.dtype))
    except (ImageError, ImportError):
        return None


def _is_above_limit(found: BytesContent) -> bool:
    limit, (height, width, channels) = memory_limit(), found.shape
    nbytes = (height or 0) * (width or 0) * (channels or 4) * np.dtype(found.dtype).itemsize
    return limit is not None and nbytes > limit.nbytes


def _is_picture(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    if len(shape) not in (2, 3) or 0 in shape:
        return False
    if dtype.kind not in "biuf" and dtype.name != "bfloat16":
        return False
    shorter, longer = sorted(shape[:2])
    if longer > _MOST_OBLONG * shorter:
        return False
    return shorter >= _SHORTEST if len(shape) == 2 else shape[2] in (1, 3, 4) and shorter >= _LISTED


def _scaled(rows: list[list[_Reduced]]) -> tuple[list[list[Picture]], str]:
    """Scale images of one column to 8 bits by one range; return a note on the range, unless it is a usual one."""
    # Detected images of one column may have 8 and 16 bits.
    of_dtype: dict[Any, list[_Reduced]] = {}
    for row in rows:
        for image in row:
            of_dtype.setdefault(image.dtype, []).append(image)
    ranges = {dtype: _range(dtype, images) for dtype, images in of_dtype.items()}
    unusual = [f"{low:.4g} to {high:.4g}" for low, high in ranges.values() if (low, high) not in ((0, 255), (0, 1))]
    note = f", black to white: {'; '.join(unusual)}" if unusual else ""
    return [[_picture(image, *ranges[image.dtype]) for image in row] for row in rows], note


def _range(dtype: np.dtype[Any], images: Sequence[_Reduced]) -> tuple[float, float]:
    """Return the values that are displayed as black and white."""
    if dtype == np.uint8:
        return 0, 255
    if dtype.kind == "b":
        return 0, 1
    extents = [image.extent for image in images if image.extent is not None]
    low, high = min((low for low, _ in extents), default=0), max((high for _, high in extents), default=1)
    if dtype.kind in "iu":
        # 8 bits in a wider type; 16 bits of a camera rarely use the whole range.
        return (0, 255) if low >= 0 and high <= 255 else (min(low, 0), high)
    return (0, 1) if low >= 0 and high <= 1 else (low, high)


def _reduced(image: NDArray[Any]) -> _Reduced:
    """Reduce an image, without a copy of all its pixels."""
    height, width, _ = image.shape
    longer = max(height, width)
    extents = []
    if image.dtype != np.uint8:
        step = max(1, _BAND_VALUES // max(1, image[:1].size))
        for top in range(0, height, step):
            band = _doubles(image[top : top + step])
            if (finite := band[np.isfinite(band)]).size:
                extents.append((float(finite.min()), float(finite.max())))
    extent = (min(low for low, _ in extents), max(high for _, high in extents)) if extents else None
    if longer > _SIDE and image.size:
        pixels = averaged(image, max(1, height * _SIDE // longer), max(1, width * _SIDE // longer))
    else:
        # A copy, because the image may be a view of a larger block.
        pixels = image.copy() if image.dtype == np.uint8 else _doubles(image)
    return _Reduced(pixels, image.shape, image.dtype, extent)


def _picture(image: _Reduced, low: float, high: float) -> Picture:
    if not image.pixels.size:
        return Picture(np.zeros((1, 1, 1), np.uint8), _size(image.shape))
    levels = image.pixels
    if levels.dtype != np.uint8:
        with np.errstate(all="ignore"):
            unit = np.nan_to_num((levels - low) / ((high - low) or 1), nan=0, posinf=1, neginf=0)
        levels = np.rint(np.clip(unit, 0, 1) * 255).astype(np.uint8)
    if levels.shape[2] == 2:  # gray and alpha
        levels = levels[..., [0, 0, 0, 1]]
    return Picture(np.ascontiguousarray(levels), _size(image.shape))


def _size(shape: Sequence[int | None]) -> str:
    height, width, channels = shape
    return f"{height:,} x {width:,}" + (f" x {channels}" if channels not in (1, None) else "")


def averaged(pixels: NDArray[Any], height: int, width: int) -> Any:
    """Average blocks of pixels to fewer ones: uint8 of uint8, else float64; values that are not finite are left out."""
    rows, columns = (
        np.arange(target + 1) * size // target for size, target in zip(pixels.shape, (height, width), strict=False)
    )
    means = np.empty((height, width, pixels.shape[2]))
    for number, (top, bottom) in enumerate(pairwise(rows.tolist())):
        if pixels.dtype == np.uint8:
            sums = pixels[top:bottom].sum(axis=0, dtype=np.uint32)
            counts: Any = (np.diff(columns) * (bottom - top))[:, None]
        else:
            band = _doubles(pixels[top:bottom])
            finite = np.isfinite(band)
            counts = np.add.reduceat(finite.sum(axis=0), columns[:-1], axis=0)
            # Without a finite value the first one is displayed.
            sums = np.where(finite, band, 0).sum(axis=0)
        totals = np.add.reduceat(sums, columns[:-1], axis=0, dtype=np.float64)
        if pixels.dtype == np.uint8:
            means[number] = totals / counts
        else:
            means[number] = np.where(counts > 0, totals / np.maximum(counts, 1), band[0, columns[:-1]])
    return np.rint(means).astype(np.uint8) if pixels.dtype == np.uint8 else means


# ---------------------------------------------------------------------------------------------------- text and numbers


def _scalar(value: Any, classes: Sequence[str] = ()) -> str:
    if isinstance(value, MemoryLimitError):
        return _above_limit(value)
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
        size = "" if None in content.shape[:2] else f" of {_size(content.shape)}"
        above = ", above the memory limit" if _is_above_limit(content) else ""
        return f"{content.format} image{size}{above}, {plural(len(value), 'byte')}"
    more = " …" if len(value) > _BYTES else ""
    return f"{plural(len(value), 'byte')}: {value[:_BYTES].hex(' ')}{more}"


def _clipped(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"


def _array(value: Any, classes: Sequence[str], spread: bool) -> Cell:
    """Return the cell of an array: a list of few values, a line of many, a summary of several axes."""
    if isinstance(value, MemoryLimitError):
        return _above_limit(value)
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
