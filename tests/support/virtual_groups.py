"""Comparison of virtual Zarr groups, as zarr, xarray, dask and this library read them, with arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import dask
import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

import dask_tfrecord as dtf
from dask_tfrecord.stores.zarr.array_names import array_name
from support.bits import bits
from support.store_round_trip import assert_same

Columns = Mapping[str, NDArray[Any]]
# Chunks of an array may differ in length.
UNEQUAL = hasattr(zarr.Array, "read_chunk_sizes")


def unequal_chunks() -> Any:
    """Return a context in which chunks of an array may differ in length, if zarr is able to."""
    return zarr.config.set({"array.rectilinear_chunks": True} if UNEQUAL else {})


def one_chunk_or(rows: int) -> int:
    """Return a number of rows of a chunk, or more than there are where chunks of values can't differ in length."""
    return rows if UNEQUAL else 1 << 40


def assert_group(store: Any, wanted: Columns, *, options: Any = None, component: str | None = None) -> dtf.Dataset:
    """Compare all readers with computed columns, bit by bit."""
    with unequal_chunks():
        opened = dtf.from_zarr(store, component=component, storage_options=options)
        with dask.config.set(scheduler="sync"):
            assert_same(opened.compute(), wanted)
        group = zarr.open_group(store, mode="r", path=component, storage_options=options)
        expected = dict(arrays_of(opened.schema, wanted))
        assert set(group.array_keys()) == set(expected)
        read: dict[str, Any] = {name: group[name] for name in expected}
        for name, array in expected.items():
            assert bits(np.asarray(read[name][...])) == bits(array), name
            _assert_selections(read[name], array)
        xarray = pytest.importorskip("xarray")
        # Reading in chunks is reading by dask; sequences of bytes of any length have no encoding.
        for chunks in ({}, None):
            with xarray.open_dataset(
                store, engine="zarr", chunks=chunks, group=component, storage_options=options, mask_and_scale=False
            ) as dataset:
                for name, array in expected.items():
                    found = dataset[name].values
                    if group[name].attrs.get("_Encoding"):
                        found = np.array([text.encode() for text in found.ravel().tolist()] + [None], object)
                        found = found[:-1].reshape(array.shape)
                    assert bits(found) == bits(array), name
    return opened


def _assert_selections(read: Any, array: NDArray[Any]) -> None:
    """Read some rows in every way that zarr has."""
    length = len(array)
    if not length or not array.size:
        return
    assert bits(np.asarray(read[1::2])) == bits(array[1::2])
    assert bits(np.asarray(read[length // 3 : length // 2 + 1])) == bits(array[length // 3 : length // 2 + 1])
    rows = np.array([length - 1, 0, length // 2, 0])
    assert bits(np.asarray(read.oindex[np.unique(rows)])) == bits(array[np.unique(rows)])
    inner = tuple(np.zeros(len(rows), int) for _ in array.shape[1:])
    assert bits(np.asarray(read.vindex[(rows, *inner)])) == bits(array[(rows, *inner)])


def arrays_of(schema: dtf.Schema, columns: Columns) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays that a virtual group has for columns: an own description of its layout, except for names."""
    done = set()
    for column, rows in columns.items():
        feature, name = schema[column], array_name(column)
        group = next((group for group, names in schema.groups.items() if column in names), column)
        levels = []
        # Objects of rows, or of rows of rows; rows that are arrays of their own shapes come last.
        values: list[Any] = list(rows)
        for _ in range(feature.ragged_rank):
            levels.append([len(row) for row in values])
            values = [item for row in values for item in row]
        if feature.own_shapes:
            shapes = np.array([value.shape for value in values], np.int64).reshape(len(values), feature.own_shapes)
            yield f"{name}.{'item_shapes' if feature.ragged_rank else 'shapes'}", shapes
            levels.append([value.size for value in values])
            values = [item for value in values for item in value.reshape(-1)]
        if not levels:
            yield name, as_stored(rows)
            continue
        for level, lengths in enumerate(levels):
            path = f"{name}.row_splits_{level}" if level else f"{array_name(group)}.row_splits"
            if path not in done:
                done.add(path)
                yield path, np.append(0, np.cumsum(lengths)).astype(np.int64)
        flat = np.empty((len(values), *feature.item_shape), object if feature.is_bytes else feature.item_dtype)
        for number, value in enumerate(values):
            flat[number] = value
        yield f"{name}.values", as_stored(flat)


def as_stored(array: NDArray[Any]) -> NDArray[Any]:
    """Return text as bytes."""
    if array.dtype.kind != "T":
        return np.asarray(array)
    out = np.empty(array.size, object)
    out[:] = [text.encode() for text in array.ravel().tolist()]
    return out.reshape(array.shape)
