"""Array sizes in keys: one int64 in a key for each open size, or all of an array's sizes in one key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord._native import ValueLayout
from dask_tfrecord.blocks import ArraysBlock, RaggedBlock, RowError, first_true
from dask_tfrecord.errors import SchemaError, plural
from dask_tfrecord.features.base import checked_key
from dask_tfrecord.features.keyed_values import KeyedValues
from dask_tfrecord.features.keys import KeyOutput, KeySpec


def sizes_and_keys(shape: Any, size_keys: Sequence[str], owner: str) -> tuple[Any, tuple[str, ...]]:
    """Return a shape with -1 where keys were named, and these keys."""
    keys = (size_keys,) if isinstance(size_keys, str) else tuple(size_keys)
    if isinstance(shape, tuple | list) and (named := tuple(size for size in shape if isinstance(size, str))):
        if keys:
            raise SchemaError(f"{owner}: names in the shape are the size_keys; got {shape} and {keys}")
        if {None, -1} & {*shape}:
            raise SchemaError(f"{owner}: expected a key for each open size of {shape}")
        keys, shape = named, [-1 if isinstance(size, str) else size for size in shape]
    for key in keys:
        checked_key(key, f"{owner}: size_keys")
    return shape, keys


def check_size_keys(keys: tuple[str, ...], shape: tuple[int, ...], owner: str) -> None:
    """Check that there is a key for each open size, or one for all sizes."""
    if len(keys) not in (1, shape.count(-1)) or -1 not in shape:
        raise SchemaError(
            f"{owner}: expected a key for each open size of {shape}, or one key that lists all sizes; got {keys}"
        )


def _lists_sizes(feature: Any) -> bool:
    listed: bool = len(feature.size_keys) < feature.shape.count(-1)
    return listed


def size_specs(feature: Any) -> tuple[KeySpec, ...]:
    """Return the specs of the keys of sizes."""
    count = len(feature.shape) if _lists_sizes(feature) else 1
    return tuple(KeySpec(key, "int64", ValueLayout.FIXED, count) for key in dict.fromkeys(feature.size_keys))


def shapes_of_keys(
    feature: Any, keys: Sequence[KeyOutput], sizes: NDArray[np.int64], itemsize: int, noun: str
) -> NDArray[np.int64]:
    """Return the shape of each array; refuse those that do not hold as many bytes or values, `noun`, as there are."""
    known = np.array(feature.shape, np.int64)
    if _lists_sizes(feature):
        shapes = keys[0].flat(np.dtype(np.int64)).reshape(-1, len(known))
    else:
        shapes = np.tile(known, (len(sizes), 1))
        found = dict(zip(dict.fromkeys(feature.size_keys), keys, strict=True))
        for axis, key in zip(np.flatnonzero(known == -1).tolist(), feature.size_keys, strict=True):
            shapes[:, axis] = found[key].flat(np.dtype(np.int64))
    # Products beyond 2**53 are rounded, and differ from the size of any value.
    needed = shapes.astype(np.float64).prod(axis=1) * itemsize
    if (row := first_true(_size_misfit(shapes, known) | (needed != sizes))) is not None:
        shape, names = tuple(shapes[row].tolist()), ", ".join(dict.fromkeys(feature.size_keys))
        expected = f", which takes {feature.shape}" if needed[row] == sizes[row] else ""
        raise RowError(
            row, f"holds {plural(sizes[row], noun)} where {names} make an array {shape} of {feature.dtype}{expected}"
        )
    made: NDArray[np.int64] = shapes
    return made


def _size_misfit(shapes: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.bool_]:
    bad: NDArray[np.bool_] = ((shapes < 0) | ((known != -1) & (shapes != known))).any(axis=1)
    return bad


def keyed_sizes(feature: Any, block: RaggedBlock | ArraysBlock) -> list[KeyedValues]:
    """Return what the size keys hold for arrays."""
    known = np.array(feature.shape, np.int64)
    if isinstance(block, ArraysBlock):
        shapes = block.shapes
    else:
        shapes = np.tile(known, (len(block), 1))
        shapes[:, 0] = np.diff(block.row_splits)
    if (row := first_true(_size_misfit(shapes, known))) is not None:
        raise RowError(row, f"holds an array of shape {tuple(shapes[row].tolist())}; {feature} takes {feature.shape}")
    if _lists_sizes(feature):
        return [KeyedValues(feature.size_keys[0], np.ascontiguousarray(shapes).ravel(), count=len(known))]
    made: dict[str, NDArray[np.int64]] = {}
    for key, sizes in zip(feature.size_keys, shapes[:, known == -1].T, strict=True):
        if (row := first_true(made.setdefault(key, sizes) != sizes)) is not None:
            raise RowError(row, f"holds an array with sizes {made[key][row]} and {sizes[row]}, both those of {key!r}")
    return [KeyedValues(key, np.ascontiguousarray(sizes)) for key, sizes in made.items()]
