"""Arrow columns and Awkward Arrays as the arrays that NumPy has for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from support.any_columns import listed


def check_table(table: pa.Table, arrays: dict[str, Any]) -> None:
    """Compare every column of a table with the array of a computed Dataset, value by value and NaN included."""
    assert table.column_names == list(arrays)
    for name, array in arrays.items():
        found = column_rows(table[name], table.schema.field(name))
        assert same(found, listed(rows_of(array))), name


def check_chunks(dataset: Any, arrays: Mapping[str, Any]) -> None:
    """Compare every column of Awkward Arrays, outside of groups, with the array of a computed Dataset."""
    import awkward as ak

    ds = dataset[[name for name in dataset if dataset.schema.group_of(name) is None]]
    chunks = list(ds.to_awkward()) if len(ds) else []
    assert tuple(map(len, chunks)) == (ds.chunks if len(ds) else ())
    assert all(ak.is_valid(chunk) for chunk in chunks)
    for name in ds:
        rows = [row for chunk in chunks for row in chunk[name].to_list()]
        if chunks and ak.fields(chunks[0][name]) == ["data", "shape"]:
            lists = rows if ds.schema[name].ragged_rank else [rows]
            lists = [[shaped(item["data"], item["shape"]) for item in items] for items in lists]
            rows = lists if ds.schema[name].ragged_rank else lists[0]
        assert same(rows, listed(arrays[name])), name


def rows_of(array: Any) -> Any:
    """Return an array of the dtypes that Arrow has: complex numbers as pairs, bfloat16 as float32."""
    if array.dtype.kind == "O":
        out = np.empty(array.shape, object)
        for index in np.ndindex(array.shape):
            item = array[index]
            out[index] = rows_of(item) if isinstance(item, np.ndarray) else item
        return out
    if array.dtype.name == "bfloat16":
        return array.astype(np.float32)
    if array.dtype.kind in "mM":
        # NaT becomes None.
        return array.astype(f"{array.dtype.kind}8[us]").astype(object)
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], axis=-1)
    return array


def column_rows(column: pa.ChunkedArray, field: pa.Field) -> list[Any]:
    """Return the rows of a column as nested lists."""
    metadata = {key.decode(): value.decode() for key, value in field.metadata.items()}
    shape = json.loads(metadata["shape"])
    pair = [2] if metadata["dtype"].startswith("complex") else []
    if isinstance(field.type, pa.FixedShapeTensorType):
        assert list(field.type.shape) == [*shape, *pair]
        return [shaped(row, [*shape, *pair]) for row in column.to_pylist()]
    rows = column.to_pylist()
    if pa.types.is_struct(field.type):
        return [shaped(row["data"], [*row["shape"], *pair]) for row in rows]
    if pa.types.is_large_list(field.type) and pa.types.is_struct(field.type.value_type):
        return [[shaped(item["data"], [*item["shape"], *pair]) for item in row] for row in rows]
    if pa.types.is_fixed_size_list(field.type):
        # Nested lists have the shape of a row.
        assert not rows or list(np.asarray(rows[0], object).shape) == [*shape, *pair]
    if 0 in shape and -1 not in shape:
        assert not any(rows)
        return [np.empty(shape).tolist() for _ in rows]
    if 0 in shape[1:]:
        assert not any(item for row in rows for item in row)
        return [np.empty([len(row), *shape[1:]]).tolist() for row in rows]
    return rows


def shaped(items: list[Any], shape: list[int]) -> list[Any]:
    """Nest flat items by a shape."""
    array = np.empty(int(np.prod(shape)), object)
    flat = [part for item in items for part in item] if items and isinstance(items[0], list) else items
    array[:] = flat
    return array.reshape(shape).tolist()


def same(one: Any, other: Any) -> bool:
    """Compare nested lists; NaN equals NaN."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.generic):
        one = one.item()
    if isinstance(other, np.generic):
        other = other.item()
    return bool(one == other or (one != one and other != other)) and type(one) is type(other)


def same_lists(one: Any, other: Any) -> bool:
    """Compare values of two libraries: lists and tuples, NaN, and dicts by key."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_lists(one[key], other[key]) for key in one)
    if hasattr(one, "to_list"):
        one = one.to_list()
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same_lists, one, other))
    return bool(one == other or (one != one and other != other))
