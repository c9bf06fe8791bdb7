"""Columns and cells of a page as JSON values, bounded in size, and images at the size that is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import and_, eq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.columns.blocks import ArraysBlock, Block, RaggedBlock, to_array
from dask_tfrecord.features import Feature
from dask_tfrecord.images.pixels import encode_png, shrink_image
from dask_tfrecord.inspection.payload_type import detect_image, is_probably_text
from dask_tfrecord.preview.preview import averaged, is_picture, json_rows, json_value, picture
from dask_tfrecord.schema import Schema, prefix_groups

# Letters, bytes and numbers of a cell of the grid, and of the cell of one record.
_LETTERS = {False: 2_000, True: 65_536}
_HEX = {False: 64, True: 4_096}
_NUMBERS = {False: 512, True: 16_384}
# Sides of a tensor that is drawn, images whose sizes are listed, values of the JSON of a record.
_DRAWN = 64
_IMAGES = 256
_JSON_VALUES = 100_000
# Integers that JavaScript represents.
_SAFE = 1 << 53
# Pixels that are decoded for a page.
_MOST_PIXELS = 1 << 27
_BOXES = re.compile(r"b(ounding_?)?box(es)?\b|bndbox", re.IGNORECASE)
_SIDES = ("ymin", "xmin", "ymax", "xmax")
_SIDE = re.compile(rf"(.*?)({'|'.join(_SIDES)})")
_MASK = re.compile(r"mask|segmentation", re.IGNORECASE)
_TYPES = {"JPEG": "image/jpeg", "PNG": "image/png", "GIF": "image/gif", "WebP": "image/webp", "BMP": "image/bmp"}
# Encoded images up to this size are sent as they are, if they are not larger than they are shown.
_AS_STORED = 256 << 10


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a page; `kind` names the form of its cells."""

    name: str
    feature: Feature
    kind: str
    group: str | None
    classes: tuple[str, ...]
    draws_on: str | None = None
    # Columns of the sides ymin, xmin, ymax and xmax, if these boxes are not a feature of their own.
    sides: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """Features to read for the cells."""
        return self.sides or (self.name,)

    def to_dict(self) -> dict[str, Any]:
        """Return the column as JSON values."""
        feature = self.feature
        sizes = [None] * (feature.own_shapes or feature.ragged_rank)
        dtype = "text" if feature.item_dtype.kind == "T" else "bytes" if feature.is_bytes else str(feature.item_dtype)
        return {
            "name": self.name,
            "feature": str(feature),
            "dtype": dtype,
            "shape": [*sizes, *feature.item_shape, *([4] if self.sides else [])],
            "ragged_rank": feature.ragged_rank,
            "group": self.group,
            "kind": self.kind,
            "classes": list(self.classes) or None,
            "draws_on": self.draws_on,
        }


def groups_of(schema: Schema) -> dict[str, tuple[str, ...]]:
    """Return the groups of the metadata, else the ragged columns under one prefix."""
    return {name: tuple(names) for name, names in schema.groups.items()} or prefix_groups(schema)


def columns_of(schema: Schema, first: Sequence[Mapping[str, Block | str]]) -> tuple[Column, ...]:
    """Return the columns of a schema, whose kinds follow from features and from the first rows."""
    groups = groups_of(schema)
    kinds = {
        name: _kind(name, feature, [row[name] for row in first if not isinstance(row[name], str)])
        for name, feature in schema.items()
    }
    masks = {name for name, kind in kinds.items() if kind == "image" and _MASK.search(name)}
    images = [name for name, kind in kinds.items() if kind == "image" and name not in masks]
    columns = []
    for name, feature in schema.items():
        group = next((group for group, names in groups.items() if name in names), None)
        over = _nearest(name, images) if kinds[name] == "boxes" or name in masks else None
        columns.append(Column(name, feature, kinds[name], group, tuple(schema.classes.get(name, ())), over))
    return (*columns, *_combined(columns, images))


def _combined(columns: Sequence[Column], images: Sequence[str]) -> Iterator[Column]:
    """Combine columns of sides to boxes: image/object/bbox/xmin, ymin, xmax and ymax."""
    found: dict[str, dict[str, Column]] = {}
    for column in columns:
        match = _SIDE.fullmatch(column.name)
        if match and column.kind in ("sequence", "vector") and column.feature.item_dtype.kind in "iuf":
            found.setdefault(match[1], {})[match[2]] = column
    names = {column.name for column in columns}
    for prefix, sides in found.items():
        if len(sides) < len(_SIDES) or not images:
            continue
        name = prefix.rstrip("/_.-") or "boxes"
        while name in names:
            name += " boxes"
        first = sides["xmin"]
        parts = tuple(sides[side].name for side in _SIDES)
        yield Column(name, first.feature, "boxes", first.group, (), _nearest(name, images), parts)


def _nearest(name: str, images: Sequence[str]) -> str | None:
    """Return the image whose name has the longest common prefix."""
    return max(images, key=lambda each: sum(accumulate(map(eq, each, name), and_)), default=None)


def _kind(name: str, feature: Feature, rows: Sequence[Any]) -> str:
    dtype, shape = feature.item_dtype, feature.item_shape
    several = feature.ragged_rank or feature.own_shapes or shape
    if dtype.kind == "T":
        return "sequence" if several else "text"
    if feature.is_bytes:
        values = [value for row in rows for value in _values(row) if value]
        if values and all(detect_image(value) for value in values):
            return "image"
        if several:
            return "sequence"
        return "text" if values and all(map(is_probably_text, values)) else "bytes"
    if not several:
        return "bool" if dtype.kind == "b" else "number"
    if shape[-1:] == (4,) and len(shape) + feature.ragged_rank <= 2 and _BOXES.search(name):
        return "boxes"
    arrays = [to_array(row)[0] for row in rows[:1]] if feature.own_shapes or not feature.ragged_rank else []
    if any(
        isinstance(array, np.ndarray) and array.dtype == np.uint8 and is_picture(array.shape, array.dtype)
        for array in arrays
    ):
        return "image"
    if feature.own_shapes or len(shape) > 1:
        return "tensor"
    return "sequence" if feature.ragged_rank else "vector"


def _values(row: Block) -> list[bytes]:
    value = to_array(row)[0]
    return [value] if isinstance(value, bytes) else [each for each in np.ravel(value) if isinstance(each, bytes)]


def number(value: Any) -> Any:
    """Return a number, or JSON values with numbers, as JavaScript represents them; large integers are text."""
    if isinstance(value, dict):
        return {name: number(each) for name, each in value.items()}
    if isinstance(value, list):
        return [number(each) for each in value]
    if isinstance(value, complex | np.complexfloating):
        return str(value)
    found = value if isinstance(value, str | None) else json_value(value)
    return str(found) if isinstance(found, int) and abs(found) > _SAFE else found


def numbers(array: NDArray[Any]) -> list[Any]:
    """Return numbers as JSON values; float32 with its own digits."""
    return list(map(number, array.ravel()))


def cell(column: Column, blocks: Mapping[str, Block | str], *, whole: bool = False) -> Any:
    """Return the cell of a row, whose blocks have one row each, as JSON values; None for a row without values."""
    rows: list[Block] = []
    for name in column.reads:
        found = blocks[name]
        if isinstance(found, str):
            return {"error": found}
        rows.append(found)
    row = rows[0]
    if all(isinstance(each, RaggedBlock | ArraysBlock) and each.row_splits[-1] == each.row_splits[0] for each in rows):
        return None
    if column.sides:
        sides = [np.ravel(to_array(each)[0]) for each in rows]
        if len({len(side) for side in sides}) > 1:
            return {"error": f"the sides of the boxes have {', '.join(str(len(side)) for side in sides)} values"}
        return {"boxes": [numbers(box) for box in np.stack(sides, axis=1)[: _NUMBERS[whole]]]}
    value = to_array(row)[0]
    if column.kind in ("number", "bool"):
        return {"value": number(value)}
    if column.kind in ("text", "bytes"):
        return _text(value, whole) if column.kind == "text" else _bytes(value, whole)
    if column.kind == "image":
        return _images(column, row)
    array = np.asarray(value)
    if array.dtype.kind in "OT":
        return _objects(array, whole)
    if column.kind == "boxes":
        return {"boxes": [numbers(box) for box in array.reshape(-1, 4)[: _NUMBERS[whole]]]}
    if array.ndim > 1:
        return _tensor(array)
    return {"values": numbers(array[: _NUMBERS[whole]]), "length": len(array), **_extent(array)}


def _text(value: Any, whole: bool) -> dict[str, Any]:
    if isinstance(value, bytes):
        if not is_probably_text(value) and value:
            return _bytes(value, whole)
        value = value.decode()
    most = _LETTERS[whole]
    return {"value": str(value[:most]), **({"length": len(value)} if len(value) > most else {})}


def _bytes(value: bytes, whole: bool) -> dict[str, Any]:
    found = detect_image(value)
    content = None if found is None else f"{found.format} {found.shape[1]} x {found.shape[0]}"
    return {"hex": value[: _HEX[whole]].hex(" "), "length": len(value), "content": content}


def _objects(array: NDArray[Any], whole: bool) -> dict[str, Any]:
    """Return texts, bytes, or rows of rows."""
    flat = array.ravel()[: _NUMBERS[whole]].tolist()
    if flat and isinstance(flat[0], np.ndarray):
        rows = [_inner(np.asarray(each), whole) for each in flat[:_DRAWN]]
        return {"rows": rows, "shape": [len(array), None], "length": len(array)}
    return {"values": [_short(each, whole) for each in flat], "length": int(array.size)}


def _inner(array: NDArray[Any], whole: bool) -> list[Any]:
    part = array.ravel()[: _DRAWN if not whole else _LETTERS[False]]
    return [_short(each, whole) for each in part.tolist()] if part.dtype.kind in "OT" else numbers(part)


def _short(value: Any, whole: bool) -> Any:
    if isinstance(value, np.ndarray):
        return f"array of shape {value.shape}"
    if isinstance(value, bytes):
        return (
            value[: _LETTERS[False]].decode("utf-8", "backslashreplace")
            if is_probably_text(value)
            else (f"0x{value[:16].hex()}{'…' if len(value) > 16 else ''}")
        )
    return str(value)[: _LETTERS[whole] if whole else _LETTERS[False]]


def _extent(array: NDArray[Any]) -> dict[str, Any]:
    if not array.size or array.dtype.kind == "c":
        return {"min": None, "max": None}
    wide = array if array.dtype.kind in "biu" else array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    return {"min": number(finite.min()), "max": number(finite.max())} if finite.size else {"min": None, "max": None}


def _tensor(array: NDArray[Any]) -> dict[str, Any]:
    """Reduce an array to a matrix that is drawn: means of neighbours along the first axis and the others."""
    flat = array.reshape(len(array), -1) if array.size else np.zeros((0, 0))
    if flat.dtype.kind == "c":
        flat = np.abs(flat)
    high, wide = min(_DRAWN, flat.shape[0]), min(_DRAWN, flat.shape[1])
    drawn = averaged(flat[..., None].astype(np.float64), high, wide)[..., 0] if flat.size else flat
    return {"values": numbers(drawn), "shape": list(array.shape), "drawn": list(drawn.shape), **_extent(array)}


def _images(column: Column, row: Block) -> dict[str, Any]:
    found = _image_values(row)
    sizes: list[Any] = []
    for value in found[:_IMAGES]:
        if isinstance(value, bytes):
            content = detect_image(value)
            sizes.append([None, None, None] if content is None else list(content.shape))
        else:
            sizes.append([*value.shape, 1][:3])
    return {"count": len(found), "sizes": sizes}


def _image_values(row: Block) -> Sequence[Any]:
    """Return the images of a row: encoded, or arrays of pixels."""
    value = to_array(row)[0]
    if isinstance(value, bytes):
        return [value] if value else []
    array = np.asarray(value)
    if array.dtype == object:
        return list(array.ravel())
    return list(array) if array.ndim == 4 else [array]


def image(row: Block, index: int, width: int) -> tuple[bytes, str]:
    """Return an image of a row at most `width` pixels wide, and its media type.

    Raises
    ------
    IndexError
        If the index exceeds the images of the row.
    ValueError
        If the image cannot be decoded.
    """
    value = _image_values(row)[index]
    if not isinstance(value, bytes):
        array = value if value.ndim == 3 else value[..., None]
        if array.dtype == np.uint8 and array.shape[1] > width:
            array = averaged(array, max(1, array.shape[0] * width // array.shape[1]), width)
        pixels = array if array.dtype == np.uint8 and array.shape[2] in (1, 3, 4) else picture(array).pixels
        return encode_png(np.ascontiguousarray(pixels)), "image/png"
    found = detect_image(value)
    if found is None:
        raise ValueError("the bytes are no image")
    height, wide = found.shape[0] or 0, found.shape[1] or 0
    if height * wide > _MOST_PIXELS:
        raise ValueError(f"the image has {wide:,} x {height:,} pixels, more than a page shows")
    if wide <= width and len(value) <= _AS_STORED and found.format in _TYPES:
        return value, _TYPES[found.format]
    return shrink_image(value, width), "image/jpeg" if found.format == "JPEG" else "image/png"


def record_json(blocks: Mapping[str, Block | str]) -> Any:
    """Return the values of a record as JSON values; long columns are left out."""
    arrays = {
        name: to_array(block)
        for name, block in blocks.items()
        if not isinstance(block, str) and block.nbytes <= _JSON_VALUES
    }
    return number(json.loads(next(json_rows(arrays)))) if arrays else {}
