"""Columns and cells of a page as JSON values, bounded in size, and images at the size that is shown."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate
from operator import and_, eq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.blocks import ArraysBlock, Block, RaggedBlock, to_array
from dask_tfrecord.extras.preview import (
    averaged,
    extent_text,
    flat_images,
    flat_items,
    is_picture,
    picture,
    type_text,
    value_as_json,
)
from dask_tfrecord.features import Feature
from dask_tfrecord.features.code import feature_code
from dask_tfrecord.features.images.pixels import check_shown, encode_png, shrink_image
from dask_tfrecord.features.images.registry import media_type
from dask_tfrecord.features.inference.payload_type import detect_image, is_probably_text
from dask_tfrecord.features.schema import Schema, prefix_groups

# Letters, bytes and numbers of a cell of the grid, and of the cell of one record.
_LETTERS = {False: 2_000, True: 65_536}
_HEX = {False: 64, True: 4_096}
_NUMBERS = {False: 512, True: 16_384}
# Steps of an episode, and components that are drawn as curves; more are a heat map.
_STEPS = 5_000
MOST_CURVES = 16
# Sides of a tensor that is drawn, images whose sizes are listed, values of the JSON of a record.
_DRAWN = 64
_IMAGES = 256
_JSON_VALUES = 100_000
# Integers that JavaScript represents.
_SAFE = 1 << 53
# Images of more pixels are decoded one at a time: a page requests many at once.
_MANY_PIXELS = 1 << 22
_one_large = threading.Lock()
_BOXES = re.compile(r"b(ounding_?)?box(es)?\b|bndbox", re.IGNORECASE)
_SIDES = ("ymin", "xmin", "ymax", "xmax")
_SIDE = re.compile(rf"(.*?)({'|'.join(_SIDES)})")
_MASK = re.compile(r"mask|segmentation", re.IGNORECASE)
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
        names = ("name", "kind", "group", "classes", "draws_on")
        features = {each: self.feature for each in self.reads}
        return {name: getattr(self, name) for name in names} | {
            "code": "\n".join(f"{json.dumps(each)}: {feature_code(feature)}," for each, feature in features.items()),
            "type": type_text(self.feature) if not self.sides else f"{self.feature.item_dtype} (?, 4)",
            "shape": [*[None] * (self.feature.own_shapes or self.feature.ragged_rank), *self.feature.item_shape],
        }


def groups_of(schema: Schema) -> Mapping[str, Sequence[str]]:
    """Return the groups of the metadata, else the ragged columns under one prefix."""
    return dict(schema.groups) or prefix_groups(schema)


def columns_of(schema: Schema, first: Sequence[Mapping[str, Block | str]]) -> tuple[Column, ...]:
    """Return the columns of a schema, whose kinds follow from features and from the first rows."""
    groups = groups_of(schema)
    kinds = {
        name: _column_kind(name, feature, [row[name] for row in first if not isinstance(row[name], str)])
        for name, feature in schema.items()
    }
    masks = {name for name, kind in kinds.items() if kind == "image" and _MASK.search(name)}
    images = [name for name, kind in kinds.items() if kind == "image" and name not in masks]
    columns = []
    for name, feature in schema.items():
        group = next((group for group, names in groups.items() if name in names), None)
        over = _nearest_image(name, images) if kinds[name] == "boxes" or name in masks else None
        columns.append(Column(name, feature, kinds[name], group, tuple(schema.classes.get(name, ())), over))
    return (*columns, *_combine_boxes(columns, images))


def _combine_boxes(columns: Sequence[Column], images: Sequence[str]) -> Iterator[Column]:
    """Combine columns of sides to boxes: image/object/bbox/xmin, ymin, xmax and ymax."""
    by_prefix: dict[str, dict[str, Column]] = {}
    for column in columns:
        match = _SIDE.fullmatch(column.name)
        if match and column.kind in ("sequence", "vector") and column.feature.item_dtype.kind in "iuf":
            by_prefix.setdefault(match[1], {})[match[2]] = column
    names = {column.name for column in columns}
    for prefix, sides in by_prefix.items():
        if len(sides) < len(_SIDES) or not images:
            continue
        name = prefix.rstrip("/_.-") or "boxes"
        while name in names:
            name += " boxes"
        first = sides["xmin"]
        parts = tuple(sides[side].name for side in _SIDES)
        yield Column(name, first.feature, "boxes", first.group, (), _nearest_image(name, images), parts)


def _nearest_image(name: str, images: Sequence[str]) -> str | None:
    """Return the image whose name has the longest common prefix."""
    return max(images, key=lambda each: sum(accumulate(map(eq, each, name), and_)), default=None)


def _column_kind(name: str, feature: Feature, rows: Sequence[Any]) -> str:
    """Choose how a column is shown, by its feature and its first values."""
    dtype, shape = feature.item_dtype, feature.item_shape
    several = feature.ragged_rank or feature.own_shapes or shape
    if dtype.kind == "T":
        return "sequence" if several else "text"
    if feature.is_bytes:
        items = [item for row in rows for item in flat_items(to_array(row)[0])]
        values = [item for item in items if isinstance(item, bytes) and item]
        if values and all(map(detect_image, values)):
            return "image"
        if several:
            return "sequence"
        return "text" if values and all(map(is_probably_text, values)) else "bytes"
    if not several:
        return {"b": "bool", "M": "time", "m": "time"}.get(dtype.kind, "number")
    if shape[-1:] == (4,) and len(shape) + feature.ragged_rank <= 2 and _BOXES.search(name):
        return "boxes"
    arrays = [np.asarray(to_array(row)[0]) for row in rows[:1] if feature.own_shapes or not feature.ragged_rank]
    if any(array.dtype == np.uint8 and is_picture(array.shape, array.dtype) for array in arrays):
        return "image"
    if feature.own_shapes or len(shape) > 1:
        return "tensor"
    return "sequence" if feature.ragged_rank else "vector"


def as_json(value: Any) -> Any:
    """Return any value as JSON values that JavaScript represents: large integers are text, like complex numbers."""
    if isinstance(value, dict):
        return {name: as_json(each) for name, each in value.items()}
    if isinstance(value, list | np.ndarray):
        return [as_json(each) for each in value]
    if isinstance(value, str | None):
        return value
    found = str(value) if isinstance(value, complex | np.complexfloating) else value_as_json(value)
    return str(found) if isinstance(found, int) and abs(found) > _SAFE else found


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
        return {"boxes": as_json(np.stack(sides, axis=1)[: _NUMBERS[whole]])}
    value = to_array(row)[0]
    if column.kind in ("number", "bool", "time"):
        return {"value": as_json(value)}
    if column.kind in ("text", "bytes"):
        is_text = column.kind == "text" and (isinstance(value, str) or is_probably_text(value) or not value)
        return _shown_text(value, whole) if is_text else _bytes(value, whole)
    if column.kind == "image":
        return _shown_images(row)
    array = np.asarray(value)
    if array.dtype.kind in "OT":
        return _object_cells(array, whole)
    if column.kind == "boxes":
        return {"boxes": as_json(array.reshape(-1, 4)[: _NUMBERS[whole]])}
    if array.ndim > 1:
        return _shown_steps(array, whole) if column.kind == "sequence" else _shown_tensor(array)
    return {"values": as_json(array[: _NUMBERS[whole]]), "length": len(array), "range": extent_text(array)}


def _shown_text(value: bytes | str, whole: bool) -> dict[str, Any]:
    text = value.decode() if isinstance(value, bytes) else value
    return {"value": str(text[: _LETTERS[whole]]), "length": len(text)}


def _bytes(value: bytes, whole: bool) -> dict[str, Any]:
    found = detect_image(value)
    content = None if found is None else f"{found.format} {found.shape[1]} x {found.shape[0]}"
    return {"hex": value[: _HEX[whole]].hex(" "), "length": len(value), "content": content}


def _object_cells(array: NDArray[Any], whole: bool) -> dict[str, Any]:
    """Return texts, bytes, or rows of rows."""
    flat = array.ravel()[: _NUMBERS[whole]].tolist()
    if flat and isinstance(flat[0], np.ndarray):
        rows = [np.asarray(each).ravel()[: _LETTERS[False] if whole else _DRAWN] for each in flat[:_DRAWN]]
        return {"rows": [[_json_of_object(each, whole) for each in row] for row in rows], "length": len(array)}
    return {"values": [_json_of_object(each, whole) for each in flat], "length": int(array.size)}


def _json_of_object(value: Any, whole: bool) -> Any:
    """Describe a value of an array of objects in a few letters."""
    if isinstance(value, np.ndarray):
        return f"array of shape {value.shape}"
    if isinstance(value, bytes) and not is_probably_text(value):
        return f"0x{value[:16].hex()}{'…' if len(value) > 16 else ''}"
    return _shown_text(value, whole)["value"] if isinstance(value, bytes | str) else as_json(value)


def _shown_steps(array: NDArray[Any], whole: bool) -> dict[str, Any]:
    """Return all steps if there are few, else means of neighbours."""
    if array.shape[1:] and array[0].size <= MOST_CURVES and array.dtype.kind != "c":
        flat = array.reshape(len(array), -1)
        if not whole and len(flat):
            flat = averaged(flat[..., None].astype(np.float64), min(_DRAWN, len(flat)), flat.shape[1])[..., 0]
        rows = flat[: _NUMBERS[True]]
        return {"rows": as_json(rows), "shape": list(array.shape), "length": len(array), "range": extent_text(array)}
    return _shown_tensor(array) | {"length": len(array)}


def _shown_tensor(array: NDArray[Any]) -> dict[str, Any]:
    """Reduce an array to a matrix that is drawn: means of neighbours along the first axis and the others."""
    flat = array.reshape(len(array), -1) if array.size else np.zeros((0, 0))
    flat = np.abs(flat) if flat.dtype.kind == "c" else flat
    high, wide = min(_DRAWN, flat.shape[0]), min(_DRAWN, flat.shape[1])
    drawn = averaged(flat[..., None].astype(np.float64), high, wide)[..., 0] if flat.size else flat
    return {"rows": as_json(drawn), "shape": list(array.shape), "range": extent_text(array)}


def _shown_images(row: Block) -> dict[str, Any]:
    """Count a row's images, and list their sizes as far as they are shown."""
    images = _image_values(row)
    sizes: list[Any] = []
    for value in images[:_IMAGES]:
        content = detect_image(value) if isinstance(value, bytes) else value
        sizes.append([None, None] if content is None else content.shape[:2])
    return {"count": len(images), "sizes": sizes}


def _image_values(row: Block) -> Sequence[Any]:
    """Return a row's images: encoded, or pixels as (height, width, channels)."""
    value = to_array(row)[0]
    if isinstance(value, bytes):
        return [value] if value else []
    is_encoded = value.dtype == object and value.size and isinstance(value.flat[0], bytes)
    return flat_items(value) if is_encoded else list(flat_images(value))


def image(row: Block, index: int, width: int) -> tuple[bytes, str]:
    """Return an image of a row at most `width` pixels wide, and its media type."""
    value = _image_values(row)[index]
    if not isinstance(value, bytes):
        if value.dtype == np.uint8 and value.shape[1] > width:
            value = averaged(value, max(1, value.shape[0] * width // value.shape[1]), width)
        pixels = value if value.dtype == np.uint8 and value.shape[2] in (1, 3, 4) else picture(value).pixels
        return encode_png(np.ascontiguousarray(pixels)), "image/png"
    content = detect_image(value)
    if content is None:
        raise ValueError("the bytes are no image")
    height, wide = content.shape[0] or 0, content.shape[1] or 0
    is_large = check_shown(value, height, wide) > _MANY_PIXELS
    displayed = media_type(content.format)
    if wide <= width and not is_large and len(value) <= _AS_STORED and displayed is not None:
        return value, displayed
    with _one_large if is_large else nullcontext():
        return shrink_image(value, width), "image/jpeg" if content.format == "JPEG" else "image/png"


def record_json(blocks: Mapping[str, Block | str]) -> Any:
    """Return the values of a record as JSON values; long columns are left out."""
    return {
        name: as_json(value_as_json(to_array(block)[0]))
        for name, block in blocks.items()
        if not isinstance(block, str) and block.nbytes <= _JSON_VALUES
    }


def curves_of(
    columns: Sequence[Column], blocks: Mapping[str, Block | str]
) -> tuple[int, dict[str, list[list[Any]]], dict[str, dict[str, Any]]]:
    """Count a row's steps, and return each component's numbers in a group, and heat maps.

    A column of many components is a heat map of means: a row per component, and a column per step.
    """
    rows = {each.name: blocks[each.name] for each in columns}
    values = {name: np.atleast_1d(to_array(row)[0]) for name, row in rows.items() if not isinstance(row, str)}
    steps = min([len(array) for array in values.values() if len(array)], default=0)
    drawn = {each.name for each in columns if each.kind != "image"}
    shown = {
        name: array.reshape(steps, -1)[:_STEPS].T
        for name, array in values.items()
        if steps and name in drawn and array.dtype.kind in "biuf" and not array.size % steps
    }
    curves = {name: as_json(array) for name, array in shown.items() if len(array) <= MOST_CURVES}
    maps = {name: _shown_tensor(array) for name, array in shown.items() if name not in curves}
    return min(steps, _STEPS), curves, maps
