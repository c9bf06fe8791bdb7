"""Blocks that come from users, checked: what somebody returns or assigns has to be what was promised.

Imports blocks and features; nothing is cast in silence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.columns.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock, splits_of
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features import Feature, FixedLenFeature, RawFeature, TensorFeature, TextFeature, VarLenFeature

__all__ = ["conform", "feature_of"]


def feature_of(array: Any, owner: str) -> Feature:
    """Describe blocks like `array` by a feature.

    Raises
    ------
    SchemaError
        If it is no array of rows, of a dtype that no feature has, or of objects, which may be anything.
    """
    if isinstance(array, RaggedBlock):
        values = array.flat_values
        inner = values.shape[1:]
        if isinstance(values, BytesBlock) or values.dtype.kind in "biuf" or values.dtype.name == "bfloat16":
            dtype = "bytes" if isinstance(values, BytesBlock) else values.dtype.name
            return VarLenFeature(dtype, shape=(*(-1,) * array.ragged_rank, *inner))
        array = array.values
        if isinstance(array, np.ndarray) and array.dtype.kind == "c":
            return RawFeature((-1, *inner), array.dtype.name)
    if isinstance(array, ArraysBlock):
        items = array.values
        return TensorFeature(
            (-1,) * array.shapes.shape[1], "bytes" if isinstance(items, BytesBlock) else items.dtype.name
        )
    if isinstance(array, BytesBlock):
        return FixedLenFeature(array.shape[1:], "bytes")
    if not hasattr(array, "dtype") or len(getattr(array, "shape", ())) == 0:
        raise SchemaError(f"{owner}: expected an array with an axis of rows; got {array!r:.100}")
    dtype, shape = array.dtype, tuple(array.shape[1:])
    if isinstance(dtype, np.dtypes.StringDType) and not shape:
        return TextFeature()
    if dtype.name in ("int64", "float32"):
        return FixedLenFeature(shape, dtype.name)
    if dtype.kind in "biufc" or dtype.name == "bfloat16":
        return RawFeature(shape, dtype.newbyteorder("="))
    raise SchemaError(
        f"{owner}: an array of dtype {dtype} and shape {shape} per row is no feature{_HINTS.get(dtype.kind, '')}"
    )


_HINTS = {
    "O": "; say what the objects are: map_blocks(func, template={name: FixedLenFeature((), 'bytes'), …})",
    "S": "; NumPy's S drops zero bytes at the end: make it an object array of bytes",
    "U": "; text is of dtype numpy.dtypes.StringDType()",
}


def conform(feature: Feature, array: Any, owner: str) -> Block:
    """Make `array` a block of `feature`.

    Raises
    ------
    SchemaError
        If it is of another shape or dtype. Nothing is cast but the numbers of Python lists.
    """
    if feature.ragged_rank:
        array = _checked(array, owner) if isinstance(array, RaggedBlock) else _ragged(feature, array, owner)
    elif feature.own_shapes:
        array = array if isinstance(array, ArraysBlock) else _arrays(feature, array, owner)
    elif isinstance(feature, TextFeature):
        array = _text(array, owner)
    elif feature.block_dtype == np.dtype(object) and not isinstance(array, BytesBlock):
        # Lists of bytes would become NumPy's S, which drops zero bytes.
        array = _bytes(array if isinstance(array, np.ndarray) else np.asarray(array, object), owner)
    elif not isinstance(array, RaggedBlock | BytesBlock | ArraysBlock):
        array = np.asarray(array)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
    found = feature_of(array, owner)
    if _form(found) != _form(feature):
        raise SchemaError(f"{owner} as {found} where {feature} was promised")
    block: Block = array
    return block


def _form(feature: Feature) -> tuple[object, ...]:
    """Name what blocks of a feature have in common."""
    return feature.item_dtype, feature.item_shape, feature.ragged_rank, feature.own_shapes


def _checked(block: RaggedBlock, owner: str) -> RaggedBlock:
    """Look over a block that somebody else made: its splits have to fit its values."""
    values, splits = block.values, np.asarray(block.row_splits)
    if isinstance(values, RaggedBlock):
        values = _checked(values, owner)
    elif not isinstance(values, BytesBlock):
        values = np.asarray(values)
        values = _bytes(values, owner) if values.dtype.kind == "O" else values
    if splits.ndim != 1 or splits.dtype.kind not in "iu" or not len(splits):
        raise SchemaError(f"{owner}: row_splits is an array of ints, one more than rows; got {splits!r:.100}")
    if splits[0] != 0 or splits[-1] != len(values) or (np.diff(splits.astype(np.int64)) < 0).any():
        raise SchemaError(
            f"{owner}: row_splits ascend from 0 to the number of values, {len(values)}; got {splits!r:.100}"
        )
    return RaggedBlock(values, splits.astype(np.int64, copy=False))


def _ragged(feature: Feature, rows: Any, owner: str) -> RaggedBlock:
    """Rows of arrays, as an object array or a list, in flat buffers."""
    levels, parts = [], list(rows)
    for _ in range(feature.ragged_rank - 1):
        levels.append(np.array([len(part) for part in parts], np.int64))
        parts = [row for part in parts for row in part]
    items = [_item(feature, number, part, (-1, *feature.item_shape), owner) for number, part in enumerate(parts)]
    values = np.concatenate([np.empty((0, *feature.item_shape), feature.item_dtype), *items])
    block: Any = _bytes(values, owner) if feature.is_bytes else values
    for lengths in [*levels, np.array([len(item) for item in items], np.int64)][::-1]:
        block = RaggedBlock(block, splits_of(lengths))
    made: RaggedBlock = block
    return made


def _arrays(feature: Feature, rows: Any, owner: str) -> ArraysBlock:
    """Rows of arrays of any shape, as an object array or a list, in flat buffers."""
    axes = feature.own_shapes
    items = [_item(feature, number, row, feature.shape or (-1,) * axes, owner) for number, row in enumerate(rows)]
    values = np.concatenate([np.empty(0, feature.item_dtype), *(item.ravel() for item in items)])
    shapes = np.array([item.shape for item in items], np.int64).reshape(len(items), axes)
    flat = _bytes(values, owner) if feature.is_bytes else values
    return ArraysBlock(flat, splits_of(shapes.prod(axis=1)), shapes)


def _item(feature: Feature, number: int, row: Any, shape: tuple[int, ...], owner: str) -> NDArray[Any]:
    """One row as an array of the feature's dtype, of that shape where its sizes are known."""
    dtype = feature.item_dtype
    item = np.asarray(row, object if feature.is_bytes else None)
    if not item.size and item.ndim != len(shape):
        item = item.reshape([0, *shape[1:]] if -1 not in shape[1:] else [0] * len(shape))
    fits = not item.size or item.dtype == dtype
    fits = fits or (isinstance(row, list | tuple) and np.can_cast(item.dtype, dtype, "same_kind"))
    sizes = len(item.shape) == len(shape) and all(
        size in (-1, is_) for size, is_ in zip(shape, item.shape, strict=True)
    )
    if not (fits and sizes):
        raise SchemaError(
            f"{owner}: row {number} is of dtype {item.dtype} and shape {item.shape} where {feature} was promised"
        )
    return item.astype(dtype, copy=False)


def _text(array: Any, owner: str) -> NDArray[Any]:
    """Strings as `StringDType`, which would make strings of anything."""
    given = array if isinstance(getattr(array, "dtype", None), np.dtype) else np.asarray(array, object)
    if given.dtype.kind == "O":
        _refuse_others(given, str, owner)
    elif given.dtype.kind not in "TU":
        raise SchemaError(f"{owner} as {given.dtype} where text was promised")
    return np.asarray(given, dtype=np.dtypes.StringDType())


def _bytes(array: NDArray[Any], owner: str) -> BytesBlock:
    """Put an array of `bytes` objects into flat buffers."""
    if array.dtype.kind != "O":
        raise SchemaError(f"{owner} as {array.dtype} where bytes were promised{_HINTS['S']}")
    _refuse_others(array, bytes, owner)
    items = array.ravel().tolist()
    splits = splits_of(np.fromiter(map(len, items), np.int64, len(items)))
    return BytesBlock(np.frombuffer(b"".join(items), np.uint8), splits, array.shape)


def _refuse_others(array: NDArray[np.object_], kind: type, owner: str) -> None:
    items = array.ravel().tolist()
    # Mostly there are no others, and looking at each item would take longer than all the rest.
    if set(map(type, items)) <= {kind}:
        return
    other = next((item for item in items if not isinstance(item, kind)), None)
    if other is not None:
        raise SchemaError(f"{owner} with {other!r:.100} in it, where {kind.__name__} objects were promised")
