"""xarray Datasets of a data set: names, dimensions, dtypes and attributes of variables, and their arrays."""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.base import normalize_token, tokenize
from numpy.typing import NDArray

from dask_tfrecord.blocks import flatten_block
from dask_tfrecord.errors import SchemaError, UnknownFeatureError, explain_missing, near_misses
from dask_tfrecord.features import Feature
from dask_tfrecord.features.metadata.labels import Labels
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.rows.engine import da
from dask_tfrecord.rows.graph import Chunk, LazyColumn, block_array
from dask_tfrecord.rows.object_array import ObjectArray
from dask_tfrecord.rows.rows import Rows
from dask_tfrecord.rows.sources import CountedRows
from dask_tfrecord.rows.task_names import column_key
from dask_tfrecord.stores.units import Levels, RowTasks, is_flat, shapes_of
from dask_tfrecord.stores.zarr.chunk_grid import RowGrid
from dask_tfrecord.stores.zarr.layout import (
    ArraySpec,
    Dimensions,
    array_attributes,
    check_axis_lengths,
    check_axis_names,
    column_attributes,
    zarr_layout,
)

with explain_missing("xarray Datasets need", "xarray", "xarray"):
    import xarray

ROWS = "record"


@dataclass(frozen=True, slots=True, eq=False)
class VariableSpec:
    """Variable of one column."""

    column: str
    dims: tuple[str, ...]  # the first is along the rows
    shape: tuple[int, ...]
    dtype: np.dtype[Any]  # object for bytes and for rows that differ in length or shape
    attributes: Mapping[str, Any]
    is_coord: bool


def variable_name(column: str) -> str:
    """Return the name of the variable of a column: ``/`` becomes ``.``, because it separates groups in a file."""
    return column.replace("/", ".")


def variable_specs(
    schema: Schema,
    nrows: int | None,
    coords: Sequence[str] = (),
    dimension_names: Mapping[str, Sequence[str]] | None = None,
    labels: Labels | None = None,
) -> dict[str, VariableSpec]:
    """Describe the variables of the columns of a schema, by their names.

    An xarray Dataset that was written has labels: `dimension_names` overrides theirs, and `coords` adds to them.
    """
    if nrows is None:
        raise ValueError(
            "xarray must know the number of rows, and these rows are not counted: open with counts='auto', not "
            "counts=None"
        )
    given = dimension_names or {}
    _check_columns(schema, coords, given)
    names = {column: variable_name(column) for column in schema}
    _check_distinct(names)
    # xarray makes an index of a variable with the name of its dimension, and reads all of it.
    taken = set(names.values())
    rows = ROWS if labels is None or labels.rows is None else labels.rows
    coords = [*coords, *(labels.coords if labels is not None else ())]
    rows += "%" if rows in taken - set(coords) else ""
    specs = {}
    for column, name in names.items():
        feature = schema[column]
        axes = given[column] if column in given else _axis_names(column, feature, taken, labels)
        dims = (rows, *_checked_axes(column, axes, feature, rows))
        shape, attributes = (nrows, *feature.block_shape), column_attributes(column, schema)
        if labels is not None:
            attributes = dict(labels.attributes.get(column, {}))
        dtype = _variable_dtype(column, feature, labels)
        specs[name] = VariableSpec(column, dims, shape, dtype, attributes, column in coords)
    check_axis_lengths((spec.column, spec.dims, spec.shape) for spec in specs.values())
    return specs


def _check_columns(schema: Schema, coords: Sequence[str], given: Mapping[str, Sequence[str]]) -> None:
    if isinstance(coords, str):
        raise ValueError(f"coords must be a list of columns; got the string {coords!r}: write coords=[{coords!r}]")
    if not isinstance(given, Mapping):
        raise ValueError(f"dimension_names must map columns to names of axes; got {given!r:.100}")
    for option, wanted in (("coords", coords), ("dimension_names", given)):
        for column in wanted:
            if column not in schema:
                raise UnknownFeatureError(f"{option}: no column {column!r}{near_misses(column, tuple(schema))}")


def in_groups(specs: Mapping[str, VariableSpec]) -> dict[str, dict[str, VariableSpec]]:
    """Divide variables among the groups that the names of their columns describe, by the paths of the groups."""
    groups: dict[str, dict[str, VariableSpec]] = {"/": {}}
    for name, spec in specs.items():
        *parents, leaf = [part for part in spec.column.split("/") if part] or [name]
        groups.setdefault("/" + "/".join(parents), {})[leaf] = spec
    for path in groups:
        parts = path.strip("/").split("/")
        for depth, part in enumerate(parts):
            parent = groups.get("/" + "/".join(parts[:depth]), {})
            if part in parent:
                raise SchemaError(
                    f"column {parent[part].column!r} has the name of a group of columns, {path!r}, and a tree has one "
                    f"node of a name: open it without one of them (drop_variables=), or with xarray.open_dataset"
                )
    return groups


def _check_distinct(names: Mapping[str, str]) -> None:
    """Refuse two columns that would be one variable."""
    for name, number in Counter(names.values()).items():
        if number > 1:
            columns = [column for column in names if names[column] == name]
            raise SchemaError(
                f"columns {columns} would all be the variable {name!r}: select one of them, as by columns= or "
                f"ds[[{columns[0]!r}]]"
            )


def _variable_dtype(column: str, feature: Feature, labels: Labels | None) -> np.dtype[Any]:
    """Return the dtype of a variable: from the labels for text, bytes and dates."""
    own = feature.block_dtype
    if labels is None or column not in labels.dtypes or feature.ragged_rank or feature.own_shapes:
        return own
    dtype = np.dtype(labels.dtypes[column])
    fits = {"T": "UO", "O": "S"}.get(own.kind, "mM" if own == np.int64 else "")
    return dtype if dtype.kind in fits and labels.schema.get(column) == feature else own


def _axis_names(column: str, feature: Feature, taken: Iterable[str], labels: Labels | None) -> Sequence[str]:
    """Return names for the axes of a row; made names differ from the names of all variables."""
    if labels is not None and len(labels.dims.get(column, ())) == len(feature.block_shape):
        return labels.dims.get(column, ())
    name = variable_name(column)
    axes = [f"{name}.dim_{axis}" for axis in range(1, len(feature.block_shape) + 1)]
    return [f"{axis}%" if axis in taken else axis for axis in axes]


def _checked_axes(column: str, axes: Any, feature: Feature, rows: str) -> tuple[str, ...]:
    """Check the names of the axes of a column's rows."""
    option = f"dimension_names[{column!r}]"
    check_axis_names(option, axes, feature.block_shape, "a row")
    if rows in axes:
        raise ValueError(f"{option}: {(rows, *axes)} gives two axes of one variable the same name")
    return tuple(axes)


class BoxedArray(ObjectArray):
    """Array of objects or text whose single elements are arrays without axes; rows that differ are not numbers."""

    # Concatenations with other arrays keep the class.
    __array_priority__ = 1.0

    def refusal(self, ufunc: np.ufunc, method: str) -> str:
        """Return the error about any function of rows that differ in length or shape."""
        return (
            f"{ufunc.__name__} got a column whose rows differ in length or shape: write ds.to_xarray(ragged='flat') "
            "for their values and row splits, or ds.padded(name, length) for a dense array"
        )

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if isinstance(found, BoxedArray):
            return found
        box = np.empty((), self.dtype)
        box[()] = found
        return box.view(BoxedArray)


class _BoxedColumn(LazyColumn):
    """Column whose selected rows are `BoxedArray`."""

    def __init__(self, source: CountedRows, name: str) -> None:
        super().__init__(source, name)
        self.dtype = boxed_dtype(source.schema[name], self.dtype)

    def __dask_tokenize__(self) -> object:
        return normalize_token(("dask_tfrecord.BoxedColumn", self.source, self.name))

    def __getitem__(self, key: Any) -> Any:
        rows, *rest = key if isinstance(key, tuple) else (key,)
        if isinstance(rows, int | np.integer):
            return _boxed(super().__getitem__(([int(rows)], *rest)), self.dtype)[0]
        return _boxed(super().__getitem__(key), self.dtype)


class Unwritten:
    """Type of objects that xarray does not write: rows that differ in length, and bytes.

    xarray makes arrays of one length of bytes, and cuts zeros at the end of their values. It infers nothing from
    objects of a dtype that names their type, and converts only `bytes` and `str`:
    https://github.com/pydata/xarray/blob/main/xarray/coding/strings.py
    An encoding names the dtype to write, and NumPy shows what it can't interpret as a dtype.
    """

    def __init__(self, what: str) -> None:
        self.what = what

    def __repr__(self) -> str:
        return self.what


_CUT = Unwritten(
    "bytes, of which xarray would cut zeros at the end: write ds.to_zarr(path), which keeps them, or read numbers with "
    "RawFeature and text with TextFeature first"
)
_DIFFERENT = Unwritten(
    "rows that differ in length or shape: write ds.to_zarr(path), or write what ds.to_xarray(ragged='flat') "
    "returns, with their values in one array"
)
_OBJECTS: np.dtype[Any] = np.dtype(object, metadata={"element_type": Unwritten})


def boxed_dtype(feature: Feature, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a variable; for objects, one that makes xarray's writers refuse them."""
    return _OBJECTS if written_as(feature, dtype) else dtype


def written_as(feature: Feature, dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the encoding of a variable, which refuses to write objects other than text."""
    if dtype.kind == "O" and (feature.ragged_rank or feature.own_shapes):
        return {"dtype": _DIFFERENT}
    return {"dtype": _CUT} if dtype.kind == "O" and feature.item_dtype.kind == "O" else {}


def _boxed(array: NDArray[Any], dtype: np.dtype[Any]) -> BoxedArray:
    return (array.view(dtype) if dtype.metadata else array).view(BoxedArray)


def boxed_column(given: Rows, name: str, array: da.Array | None = None) -> da.Array:
    """Return a column as a dask array of `BoxedArray`; `array` is given if it is decoded together with others."""
    if array is None and given.counted_source is not None:
        return _BoxedColumn(given.counted_source, name).in_chunks(given.sizes)
    own = given.array(name) if array is None else array
    dtype = boxed_dtype(given.schema[name], own.dtype)
    mapped: da.Array = da.map_blocks(_boxed, own, dtype, dtype=dtype, meta=np.empty((0,) * own.ndim, dtype))
    return mapped


def flat_variables(
    given: Rows, rows: str, dimension_names: Mapping[str, Sequence[str]] | None, labels: Labels | None
) -> dict[str, xarray.Variable]:
    """Count the values of columns, and return their flat arrays with the names and dimensions of `to_zarr`."""
    schema, borders = given.schema, np.asarray(given.borders)
    nrows = int(borders[-1])
    most = max(1, int(np.diff(borders).max(initial=1)))
    counts = RowTasks(given, uuid.uuid4().hex).count_borders([max(1, nrows)], most)
    grid = RowGrid(max(1, nrows), max(1, nrows), most)
    layout = zarr_layout(schema, nrows, grid, counts, names=Dimensions(dimension_names, rows))
    # Counts of a chunk end with its last row.
    at = np.searchsorted(counts.rows, borders)
    items = {name: counts.items[name][at] for name in schema}
    user = {} if labels is None else labels.attributes
    splits = layout.splits_attributes(schema)
    variables = {}
    for spec in layout.arrays:
        attributes = array_attributes(spec, schema, user) | splits.get(spec.name, {})
        array = _flat_array(given, spec, items[spec.feature])
        variables[spec.name] = xarray.Variable(spec.dimensions, array, attributes)
    return variables


def _flat_array(given: Rows, spec: ArraySpec, items: NDArray[np.int64]) -> da.Array:
    """Return a flat array; those that are not along the rows have as many chunks as the data set, of equal sizes.

    `items` are counted at each level before each chunk, and after the last one.
    """
    levels = Levels.from_feature(given.schema[spec.feature])
    level, stride = levels.level_and_stride(spec.part)
    sizes = np.diff(items[:, level]) * stride
    starts = np.zeros(len(items) - 1, np.int64)
    if spec.part in levels.splits:
        starts = items[:-1, level + 1]
        sizes[0] += 1
    dtype = np.dtypes.StringDType() if spec.dtype == "string" else np.dtype(spec.dtype)
    chunks = given.chunks([spec.feature])
    number = levels.splits.index(spec.part) if spec.part in levels.splits else None
    option = (spec.feature, spec.part, number)
    name = column_key(spec.part, spec.feature, tokenize(chunks.name, option, starts))
    first = np.arange(len(starts)) == 0
    array = block_array(
        _chunk_part,
        chunks,
        option,
        name,
        (tuple(sizes.tolist()), *spec.shape[1:]),
        dtype,
        da.from_array(starts, chunks=1),
        da.from_array(first, chunks=1),
    )
    if spec.part == "shapes" or not array.shape[0]:
        # Shapes are along the rows, in the chunks of all variables.
        return array
    # xarray writes equal chunks only.
    equal: da.Array = array.rechunk({0: math.ceil(array.shape[0] / len(starts))})
    return equal


def _chunk_part(
    chunk: Chunk,
    option: tuple[str, str, int | None],
    start: NDArray[np.int64],
    first: NDArray[np.bool_],
) -> NDArray[Any]:
    """Return an array of a chunk; splits begin where the previous chunk ends, and with 0 in the first chunk."""
    name, part, number = option
    block: Any = chunk.blocks[name]
    if part in ("shapes", "item_shapes"):
        return shapes_of(block)
    splits, values = flatten_block(block)
    if number is None:
        return values
    moved: NDArray[Any] = splits[number] + start[0]
    return moved if first[0] else moved[1:]


def to_xarray(
    given: Rows,
    coords: Sequence[str],
    dimension_names: Mapping[str, Sequence[str]] | None,
    together: bool,
    ragged: str,
) -> xarray.Dataset:
    """Return the columns as variables; `Dataset.to_xarray` documents the arguments."""
    if ragged not in ("objects", "flat"):
        raise ValueError(f"ragged must be 'objects' or 'flat'; got {ragged!r}")
    labels = given.labels()
    kept = {*given.names} if ragged == "objects" else {*coords}
    # As in a store.
    flat = [name for name, feature in given.schema.items() if is_flat(feature) and name not in kept]
    axes = {name: each for name, each in (dimension_names or {}).items() if name not in flat}
    specs = variable_specs(given.schema, given.nrows, coords, axes, labels)
    specs = {name: spec for name, spec in specs.items() if spec.column not in flat}
    names = tuple(spec.column for spec in specs.values())
    arrays = given.arrays(names) if together else {}
    variables = {
        name: xarray.Variable(
            spec.dims,
            _variable_array(given, spec, arrays.get(spec.column)),
            dict(spec.attributes),
            written_as(given.schema[spec.column], spec.dtype),
        )
        for name, spec in specs.items()
    }
    if flat:
        named = ROWS if labels is None or labels.rows is None else labels.rows
        rows = next((spec.dims[0] for spec in specs.values()), named)
        flat_axes = {name: each for name, each in (dimension_names or {}).items() if name in flat}
        variables |= flat_variables(given.select_columns(flat), rows, flat_axes or None, labels)
    found = assembled(variables, specs, labels)
    # Assigning the coordinates creates the index of each that has the name of its dimension.
    return found.assign_coords(found.coords.variables)


def _variable_array(given: Rows, spec: VariableSpec, array: da.Array | None) -> da.Array:
    """Return the array of a variable: decoded on its own, if it is not given.

    Rows of objects and text are boxed: xarray indexes them as one object each, however long they are.
    """
    if given.schema[spec.column].block_dtype == spec.dtype and spec.dtype.kind in "OT":
        return boxed_column(given, spec.column, array)
    array = given.array(spec.column) if array is None else array
    if array.dtype == spec.dtype:
        return array
    cast: da.Array = array.astype(spec.dtype)
    return boxed_column(given, spec.column, cast) if spec.dtype == np.dtype(object) else cast


def assembled(
    variables: Mapping[str, xarray.Variable],
    specs: Mapping[str, VariableSpec],
    labels: Labels | None,
    dropped: Container[str] = (),
) -> xarray.Dataset:
    """Return a Dataset of variables, without indexes."""
    coords = {name for name, spec in specs.items() if spec.is_coord}
    found = dict(variables)
    if labels is not None:
        for own, (dims, values) in labels.constants.items():
            name = variable_name(own)
            if name not in found and own not in dropped and name not in dropped:
                found[name] = xarray.Variable(dims, values, dict(labels.attributes.get(own, {})))
                coords.add(name)
    data = {name: variable for name, variable in found.items() if name not in coords}
    indexed = xarray.Coordinates({name: found[name] for name in found if name in coords}, indexes={})
    return xarray.Dataset(data, coords=indexed, attrs=None if labels is None else labels.collection_attributes)
