"""Inputs of writers as `Rows`: mappings of array-likes, xarray Datasets and DataFrames.

`Inputs` finds the arrays, the names of dimensions, the coordinates and the attributes. Each array is converted once.
"""

from __future__ import annotations

import math
from array import array as PythonArray
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from dask.base import is_dask_collection
from numpy.typing import NDArray

from dask_tfrecord.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock, splits_of, to_array
from dask_tfrecord.columns.conversions import (
    as_bytes,
    as_text,
    cast_numbers,
    castable,
    conform,
    feature_of,
    host_array,
    may_miss_text,
    no_feature,
    objects,
    refuse_missing_rows,
    refuse_missing_values,
    refuse_sparse,
    same_form,
)
from dask_tfrecord.columns.encode import column_forms
from dask_tfrecord.errors import SchemaError, UnknownFeatureError, near_misses, plural, printable, warn_caller
from dask_tfrecord.features import Feature, FixedLenFeature, RawFeature, TensorFeature, TextFeature, VarLenFeature
from dask_tfrecord.features.metadata.labels import Labels, encodable
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.rows.chunk_borders import joined_parts
from dask_tfrecord.rows.dask_private import array_meta
from dask_tfrecord.rows.engine import da, from_graph
from dask_tfrecord.rows.graph import Chunk, shared
from dask_tfrecord.rows.rows import HasRows, Rows
from dask_tfrecord.rows.task_names import step_key
from dask_tfrecord.settings import limits

# Most names in a warning.
_LISTED = 10


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """Rows to write, with the names and attributes of their collection."""

    rows: Rows
    labels: Labels = field(default_factory=Labels)

    @classmethod
    def from_arrays(
        cls,
        arrays: Any,
        features: Mapping[str, Any] | None = None,
        *,
        keep_constants: bool = False,
        exact: bool = False,
    ) -> Inputs:
        """Convert the arguments of a writer.

        Parameters
        ----------
        arrays : Dataset, mapping of str to array-like, xarray Dataset or DataFrame of pandas or dask
            The rows.
        features : mapping of str to feature, optional
            Features of columns, or a schema with steps; rows of objects and of Python lists get their dtypes.
        keep_constants : bool, default False
            Accept coordinates of an xarray Dataset that do not have the dimension of rows.
        exact : bool, default False
            Give columns these features, as `columns_from_arrays` does.

        Raises
        ------
        SchemaError
            If `arrays` has another type, arrays differ in their number of rows, a dtype does not fit any feature, a
            value is masked or missing, or a part of the collection cannot be written.
        """
        if isinstance(arrays, HasRows):
            return cls(arrays.as_rows())
        forms = column_forms(features)
        if hasattr(arrays, "data_vars") and hasattr(arrays, "coords"):
            return _from_xarray(arrays, forms, keep_constants, exact)
        if is_frame(arrays):
            rows = rows_of_frame(arrays, forms, exact=exact)
            return cls(rows, Labels(collection_attributes=dict(getattr(arrays, "attrs", {}))))
        if not isinstance(arrays, Mapping):
            kind = f"{type(arrays).__module__}.{type(arrays).__name__}".removeprefix("builtins.")
            raise SchemaError(
                f"arrays must be a Dataset, a mapping of names to arrays, an xarray Dataset or a DataFrame; got "
                f"{kind}{_HINTS.get(type(arrays).__name__, '')}"
            )
        return _from_mapping(arrays, forms, exact)

    def written_labels(self, schema: Schema) -> Labels | None:
        """Return the labels of an xarray Dataset that is written with these features; None for other collections.

        Warn of attributes that are not part of them.
        """
        labels = self.labels
        if labels.rows is None:
            self.warn_of_attributes()
            return None
        kept = {name: encodable(each) for name, each in labels.attributes.items()}
        of_all = encodable(labels.collection_attributes)
        omitted = [name for name in labels.collection_attributes if name not in of_all]
        omitted += [
            f"{name}.{key}" for name, each in labels.attributes.items() for key in each if key not in kept[name]
        ]
        if omitted:
            self.warn_of_attributes(omitted)
        own = {
            name: {key: value for key, value in each.items() if key not in ("feature", "feature_class")}
            for name, each in kept.items()
        }
        return replace(labels, attributes=own, collection_attributes=of_all, schema=schema)

    def warn_of_attributes(self, names: Sequence[str] | None = None) -> None:
        """Warn of attributes that are not written; by default all."""
        if names is None:
            names = [
                *self.labels.collection_attributes,
                *(f"{name}.{key}" for name, each in self.labels.attributes.items() for key in each),
            ]
        if names:
            warn_caller(f"attributes are not written: {_list(names)}")


_HINTS = {
    "DataArray": ": array.to_dataset(name='x') converts it to a Dataset",
    "str": ": write the arrays before the path, and dtf.read_tfrecord(path) for the arrays of shards",
    "PosixPath": ": write the arrays before the path, and dtf.read_tfrecord(path) for the arrays of shards",
    **dict.fromkeys(("ndarray", "Series", "Array", "list"), ": give the array a name, and write {'x': array}"),
    **dict.fromkeys(("Table", "DataFrame"), ": frame.to_pandas() converts it"),
    "LazyFrame": ": frame.collect().to_pandas() converts it",
}


def _list(names: Sequence[Any]) -> str:
    return printable(", ".join(map(str, names[:_LISTED]))) + (f", … ({len(names):,})" if len(names) > _LISTED else "")


def _from_mapping(arrays: Mapping[str, Any], forms: Mapping[str, Feature], exact: bool) -> Inputs:
    """Convert arrays by name; DataArrays must share their first dimension."""
    labelled = {name: array for name, array in arrays.items() if _is_labelled(array)}
    _dimension_of_rows(labelled)
    dropped = [f"{name}.{coord}" for name, array in labelled.items() for coord in array.coords]
    rows = columns_from_arrays(arrays, forms, exact=exact)
    if dropped:
        warn_caller(
            f"coordinates of single arrays are not written: {_list(dropped)}; coordinates of an xarray Dataset are"
        )
    attributes = {name: dict(array.attrs) for name, array in labelled.items() if array.attrs}
    return Inputs(rows, Labels(attributes=attributes))


def _is_labelled(array: Any) -> bool:
    # HDF5 arrays also have `dims`, of another type.
    return isinstance(getattr(array, "dims", None), tuple) and hasattr(array, "coords")


def _dimension_of_rows(arrays: Mapping[str, Any]) -> str | None:
    """Return the first dimension, which all DataArrays must share."""
    first = {name: array.dims[:1] for name, array in arrays.items()}
    if len(set(first.values())) > 1:
        raise SchemaError(
            f"rows are along the first dimension, which differs between variables: {first}; transpose them, or select "
            f"the variables to write"
        )
    dims = next(iter(first.values()), ())
    return str(dims[0]) if dims else None


def _from_xarray(arrays: Any, forms: Mapping[str, Feature], keep_constants: bool, exact: bool) -> Inputs:
    """Convert the variables of an xarray Dataset, and its coordinates."""
    variables = dict(arrays.data_vars)
    rows = _dimension_of_rows(variables)
    coords = {name: array for name, array in arrays.coords.items() if array.dims[:1] == (rows,)}
    constants = {name: array for name, array in arrays.coords.items() if rows not in array.dims and keep_constants}
    others = [name for name in arrays.coords if name not in coords and name not in constants]
    if variables and others:
        raise SchemaError(
            f"coordinates {_list(others)} do not have {rows!r}, the dimension of rows, first, and would be lost: "
            f"write it by ds.to_zarr of xarray, or drop them by ds.drop_vars({others!r}). If they belong to rows, "
            f"ds.transpose({rows!r}, ...) moves {rows!r} to the front"
        )
    for name in coords:
        if type(arrays.indexes.get(name)).__name__ == "MultiIndex":
            raise SchemaError(
                f"coordinate {name!r} is a MultiIndex, and a column holds one level: ds.reset_index({name!r}) converts "
                f"its levels to coordinates"
            )
    given = {**variables, **coords}
    # The dtype of dates and durations is a label. NaT is an integer, too.
    dates = {name for name, array in given.items() if array.dtype.kind in "mM" and keep_constants}
    columns = {name: array.astype(np.int64) if name in dates else array for name, array in given.items()}
    made = columns_from_arrays(columns, forms, exact=exact)
    axes = {name: tuple(map(str, array.dims[1:])) for name, array in columns.items() if len(array.dims) > 1}
    attributes = {name: dict(array.attrs) for name, array in {**given, **constants}.items() if array.attrs}
    dtypes = {name: array.dtype.str for name, array in given.items() if array.dtype.kind in "SUmM"}
    dtypes |= {name: "object" for name, array in columns.items() if array.dtype.kind == "O"}
    values = {name: (tuple(map(str, array.dims)), np.asarray(array.values)) for name, array in constants.items()}
    return Inputs(made, Labels(rows, axes, tuple(coords), dtypes, attributes, dict(arrays.attrs), values))


# Bytes assumed for a Python object.
_OBJECT_NBYTES = 1 << 10
# Integers up to this size are float64 without rounding.
_EXACT = 1 << 53
_SPECIFY = (
    "specify features={name: FixedLenFeature((), 'bytes')} for one bytes value per row, or VarLenFeature(dtype) for "
    "rows of differing length, in to_tfrecord or Dataset.from_arrays; or compute the array first"
)


def _unequal_rows(rows: Mapping[str, float]) -> str:
    """Return the error about arrays of different numbers of rows."""
    if not rows:
        return "records need at least one array: write {name: array}"
    if unknown := [name for name, number in rows.items() if math.isnan(number)]:
        return f"array {unknown[0]!r} has an unknown number of rows: call its compute_chunk_sizes() first"
    given = ", ".join(f"{name!r} has {number:,}" for name, number in rows.items())
    return f"all arrays must have the same number of rows, but they differ: {given}"


def columns_from_arrays(given: Mapping[str, Any], forms: Mapping[str, Feature], *, exact: bool = False) -> Rows:
    """Convert array-likes with equally many rows to columns, in chunks within the first dask array's.

    If `exact`, columns have the features `forms`. Otherwise a dense array may stay dense, and a writer applies its
    features.
    """
    columns = {name: column_from_array(array, f"array {name!r}", forms.get(name)) for name, array in given.items()}
    if exact:
        columns |= _conform_exactly(forms, columns)
    rows = {name: array.shape[0] for name, (_, array) in columns.items()}
    if len(set(rows.values())) != 1 or np.isnan(list(rows.values())).any():
        raise SchemaError(_unequal_rows(rows))
    sizes = _choose_sizes([array for _, array in columns.values()])
    schema = Schema({name: feature for name, (feature, _) in columns.items()})
    arrays = {name: array for name, (_, array) in columns.items()}
    if all(isinstance(array, np.ndarray) for array in arrays.values()):
        return Rows.in_memory(arrays, schema, sizes)
    return Rows.of_arrays({name: _in_chunks(array, sizes) for name, array in arrays.items()}, schema, sizes, {})


def _conform_exactly(
    forms: Mapping[str, Feature], found: Mapping[str, tuple[Feature, Any]]
) -> dict[str, tuple[Feature, Any]]:
    """Give columns the features that the user specified, or refuse them."""
    made: dict[str, tuple[Feature, Any]] = {}
    for name, form in forms.items():
        if name not in found:
            raise UnknownFeatureError(f"features: no array {name!r}{near_misses(name, tuple(found))}")
        (feature, array), owner = found[name], f"array {name!r}"
        if isinstance(array, np.ndarray) and not same_form(form, feature):
            array = to_array(conform(form, array, owner, lossless=True))
        elif not same_form(form, feature):
            # A row of zeros shows whether rows can be converted, which tasks do.
            conform(form, np.zeros((1, *array.shape[1:]), feature.block_dtype), owner, lossless=True)
        made[name] = form, array
    return made


def aligned_column(given: Any, sizes: Sequence[float], owner: str) -> tuple[Feature, da.Array]:
    """Convert an array-like to a column that joins chunks of `sizes` rows."""
    feature, array = column_from_array(given, owner)
    rows = float(np.sum(sizes))
    if np.isnan(rows):
        chunks = array.chunks[0] if isinstance(array, da.Array) else array.shape[:1]
        if len(chunks) != len(sizes) or not np.isnan(chunks).all():
            raise SchemaError(
                f"{owner} has chunks of {chunks[:5]} rows where rows are not counted: only arrays that are computed "
                "from the columns, chunk by chunk, are known to have as many; open with counts='auto'"
            )
    elif array.shape[0] != rows:
        raise SchemaError(f"{owner} has shape {array.shape}, but the data set has {int(rows):,} rows")
    return feature, _in_chunks(array, tuple(int(size) for size in sizes) if not np.isnan(rows) else ())


def column_from_array(given: Any, owner: str, form: Feature | None = None) -> tuple[Feature, Any]:
    """Find the feature of an array-like, and its rows as a dask, NumPy or on-demand array, one entry per row.

    `form` is the feature that the user specified, as a column has it. Only with it does an Example list times.
    """
    feature, array = _column_from_array(given, owner, form)
    if form is None and feature.item_dtype.kind in "mM":
        raise no_feature(feature.item_dtype, feature.item_shape, owner)
    return feature, array


def _column_from_array(given: Any, owner: str, form: Feature | None) -> tuple[Feature, Any]:
    """Find the feature and the rows of a column that is given in any form."""
    if isinstance(given, Mapping):
        raise SchemaError(
            f"{owner}: expected an array, got {type(given).__name__}, which has columns of its own: give each of them "
            f"a name, as in {{'a/x': values}}, or as assign(**ds)"
        )
    if isinstance(given, RaggedBlock | BytesBlock | ArraysBlock):
        feature = feature_of(given, owner)
        return feature, to_array(conform(feature, given, owner))
    if isinstance(given, list | tuple | range):
        return _column_of_list(as_bytes(list(given)), owner, form)
    array = _as_array(given, owner)
    if isinstance(array, da.Array):
        return _column_of_dask(array, owner, form)
    if isinstance(array, np.ndarray):
        return _column_of_numpy(host_array(array, owner), owner, form)
    if array.dtype.kind == "O":
        return _feature_of_objects(array, owner, form), array
    return feature_of(array, owner), array


def _as_array(given: Any, owner: str) -> Any:
    """Return a dask, NumPy or on-demand array of the same rows."""
    if _is_labelled(given):
        given = _of_xarray(given)
    if isinstance(given, np.ndarray | da.Array):
        return given
    refuse_sparse(given, owner)
    # First: a Delayed has every attribute.
    if is_dask_collection(given):
        return _of_dask(given, owner)
    if hasattr(given, "isna") and hasattr(given, "to_numpy") and hasattr(given, "dtype"):
        return _of_pandas(given, owner)
    if isinstance(getattr(given, "dtype", None), np.dtype) and hasattr(given, "__getitem__"):
        return given
    if isinstance(given, PythonArray) or (hasattr(given, "__array__") and not hasattr(given, "columns")):
        return np.asarray(host_array(given, owner))
    remedy = ""
    if callable(given):
        remedy = ": write an expression of columns, such as ds['label'] * 2, or ds.map_blocks(function) for all columns"
    elif isinstance(given, bool | int | float | str | bytes | np.generic):
        remedy = f": write numpy.full(ds.nrows, {given!r:.50}) for one value in all rows"
    raise SchemaError(f"{owner}: expected an array with an axis of rows; got {given!r:.100}{remedy}")


def _of_xarray(array: Any) -> Any:
    """Return the data of a DataArray; data that are read on demand stay so."""
    # xarray lacks a public attribute for this, and `data` loads an array on disk.
    in_memory = getattr(array.variable, "_in_memory", False)
    if array.chunks is None and array.dims and not in_memory:
        rows, *others = array.dims
        array = array.chunk({rows: -1 if array.dtype.kind == "O" else "auto"} | dict.fromkeys(others, -1))
    return array.data


def _of_pandas(series: Any, owner: str) -> NDArray[Any]:
    """Return the values of a Series, Index or extension array: categories are decoded."""
    dtype = series.dtype
    refuse_missing_values(series, owner)
    kind = getattr(getattr(dtype, "categories", None), "dtype", dtype)
    plain = kind if isinstance(kind, np.dtype) else getattr(kind, "numpy_dtype", np.dtype(object))
    if plain.kind == "O" or isinstance(plain, np.dtypes.StringDType):
        return np.asarray(series.to_numpy(dtype=object))
    return np.asarray(series.to_numpy(dtype=plain))


def _of_dask(array: Any, owner: str) -> da.Array:
    """Return the array of another library's dask collection."""
    try:
        graph = array.__dask_graph__()
        name = array.name
        chunks = array.chunks
        meta = array_meta(array)
        known = (name, *(0 for _ in chunks)) in set(graph)
    except (AttributeError, TypeError):
        known = False
    if not known:
        kind = f"{type(array).__module__}.{type(array).__name__}"
        raise SchemaError(
            f"{owner}: expected a dask.array.Array, got {kind}: convert it to one, as frame['x'].to_dask_array("
            f"lengths=True) does"
        )
    return from_graph(dict(graph), name, chunks, meta)


def _column_of_dask(array: da.Array, owner: str, form: Feature | None) -> tuple[Feature, da.Array]:
    """Find the feature of a dask array; masks and strings are checked in its tasks."""
    if not array.ndim:
        raise SchemaError(f"{owner}: expected an array with an axis of rows; got {array!r:.100}")
    dtype: Any = array.dtype
    refuse_sparse(array_meta(array), owner)
    masked = isinstance(array_meta(array), np.ma.MaskedArray)
    if masked or dtype.kind == "U" or may_miss_text(dtype):
        text = np.dtypes.StringDType() if dtype.kind in "UT" else dtype
        starts = np.concatenate([[0.0], np.cumsum(array.chunks[0])])
        meta = np.empty((0,) * array.ndim, text)
        array = da.map_blocks(_checked_rows, array, owner=owner, starts=starts, dtype=text, meta=meta)
    return _feature_of_objects(array, owner, form) if dtype.kind == "O" else feature_of(array, owner), array


def _checked_rows(block: Any, owner: str, starts: NDArray[Any], block_id: tuple[int, ...] = (0,)) -> Any:
    """Return a block without its mask, and strings as text."""
    start = starts[block_id[0]]
    data = host_array(block, owner, 0 if np.isnan(start) else int(start))
    return as_text(data, owner) if data.dtype.kind == "U" else data


def _feature_of_objects(array: Any, owner: str, form: Feature | None) -> Feature:
    """Return the feature of an array of objects, which are not known before they are read."""
    if form is None or not (form.block_dtype.kind == "O" or form.item_dtype.kind == "T"):
        given = "" if form is None else f", and {form} is of none"
        raise SchemaError(f"{owner} contains objects, which may be anything{given}: {_SPECIFY}")
    if form.is_bytes and array.ndim == 1 + len(form.shape) > 1:
        # Bytes with an axis for every size of a row are as many in each of them, padding included.
        return FixedLenFeature(tuple(map(int, array.shape[1:])), "bytes")
    return form


def _column_of_numpy(array: NDArray[Any], owner: str, form: Feature | None) -> tuple[Feature, NDArray[Any]]:
    """Find the feature of a NumPy array."""
    if array.dtype.kind == "U":
        array = as_text(array, owner)
    if array.dtype.kind != "O" or not array.ndim:
        return feature_of(array, owner), array
    if array.ndim > 1:
        items = objects(array.ravel().tolist())
        _refuse_missing(items.tolist(), owner)
        if not all(isinstance(item, bytes) for item in items):
            raise SchemaError(f"{owner} is of objects in {array.ndim} axes, which are bytes only; {_list_kinds(items)}")
        return FixedLenFeature(array.shape[1:], "bytes"), items.reshape(array.shape)
    rows = as_bytes(array.tolist())
    scalars = not any(isinstance(row, list | np.ndarray | bytes) for row in rows)
    return _column_of_list(rows, owner, form) if scalars else _ragged_feature(rows, owner, form)


def _column_of_list(rows: list[Any], owner: str, form: Feature | None) -> tuple[Feature, NDArray[Any]]:
    """Find the feature of a list: a dense array where all rows have one shape."""
    _refuse_missing(rows, owner)
    for number, row in enumerate(rows):
        if isinstance(row, np.ma.MaskedArray) or (hasattr(row, "shape") and not isinstance(row, np.ndarray)):
            rows[number] = host_array(row, f"{owner}: row {number}")
    if not rows and form is not None:
        return form, np.empty((0, *form.block_shape), form.block_dtype)
    try:
        array = np.asarray(rows)
    except ValueError:  # rows that differ in length
        return _ragged_feature(rows, owner, form)
    except OverflowError as error:
        raise SchemaError(f"{owner}: {error}") from None
    if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
        return _ragged_feature(rows, owner, form)
    if not array.size and form is not None and form.block_dtype.kind == "O":
        return _ragged_feature(rows, owner, form)
    if array.dtype.kind == "f":
        _refuse_rounded(rows, owner)
    # NumPy chooses these dtypes for numbers of Python.
    listed = array.dtype.name in ("float64", "int64")
    wanted = None if form is None or form.item_dtype.kind in "OT" else form
    if wanted is not None and (not array.size or (listed and castable(array.dtype, wanted.item_dtype))):
        array = cast_numbers(array, wanted, owner)
    return feature_of(array, owner), array


def _refuse_rounded(rows: Any, owner: str) -> None:
    """Refuse integers that NumPy rounded: mixed with floats, or past 64 bits."""
    items = np.asarray(rows, object)
    large = [item for item in items.ravel().tolist() if isinstance(item, int) and abs(item) > _EXACT]
    if large:
        raise SchemaError(
            f"{owner} mixes {large[0]} with floats or negative integers, and float64 rounds it: give a NumPy array of "
            f"one dtype"
        )


def _refuse_missing(rows: Sequence[Any], owner: str) -> None:
    """Refuse None and the missing values of pandas, and NaN in rows that are not numbers."""
    if set(map(type, rows)) <= {bytes, str, int, list}:
        return
    numbers = all(row is None or isinstance(row, int | float | np.number) for row in rows)
    missing = [
        number
        for number, row in enumerate(rows)
        if row is None
        or type(row).__name__ in ("NAType", "NaTType")
        or (isinstance(row, float) and math.isnan(row) and not numbers)
    ]
    refuse_missing_rows(missing, owner)


def _ragged_feature(rows: list[Any], owner: str, form: Feature | None) -> tuple[Feature, NDArray[Any]]:
    """Find the feature of rows that are objects: bytes, text, or lists and arrays that may differ in length."""
    _refuse_missing(rows, owner)
    kinds = set(map(type, rows))
    array = np.empty(len(rows), object)
    if all(issubclass(kind, bytes) for kind in kinds):
        array[:] = rows
        return FixedLenFeature((), "bytes"), array
    if all(issubclass(kind, str) for kind in kinds):
        return TextFeature(), as_text(rows, owner)
    if not all(issubclass(kind, list | tuple | np.ndarray) for kind in kinds):
        if all(isinstance(row, Mapping) and row for row in rows):
            names = ", ".join(f"{key!r}: values" for key in rows[0])
            raise SchemaError(f"{owner} has dicts as rows: make each key a column, and write {{{names:.200}}}")
        raise SchemaError(f"{owner} {'mixes' if len(kinds) > 1 else 'has rows of type'} {_list_kinds(rows)}")
    feature = form if form is not None and form.block_dtype.kind == "O" else _rows_feature(rows, owner)
    if feature.ragged_rank or feature.own_shapes:
        array[:] = list(to_array(conform(feature, rows, owner, lossless=True)))
        return feature, array
    dense = objects(rows)
    if dense.shape[1:] != feature.item_shape:
        raise SchemaError(f"{owner} has rows that are not all of shape {feature.item_shape}, as {feature} has them")
    return FixedLenFeature(dense.shape[1:], "bytes"), dense


def _rows_feature(rows: list[Any], owner: str) -> Feature:
    """Find the feature for rows that are lists and arrays; nested rows where lengths differ within one."""
    levels = 1
    while any(_is_uneven(row) for row in rows):
        for number, row in enumerate(rows):
            if not all(isinstance(inner, list | tuple | np.ndarray) for inner in row):
                raise SchemaError(
                    f"{owner}: {'row' if levels == 1 else 'an inner row'} {number} mixes values and lists: {row!r:.100}"
                )
        rows = [inner for row in rows for inner in row]
        levels += 1
    arrays = [_row_array(row) for row in rows]
    for row, made in zip(rows, arrays, strict=True):
        if made.dtype.kind == "f" and isinstance(row, list | tuple):
            _refuse_rounded(row, owner)
    some = [array for array in arrays if array.size]
    dtypes = {array.dtype for array in some}
    inner = {array.shape[1:] for array in some}
    if dtypes == {np.dtype("int64"), np.dtype("float64")} and not any(isinstance(row, np.ndarray) for row in rows):
        dtypes = {np.dtype("float64")}
    if len(dtypes) == 1 and len({array.ndim for array in some}) == 1 and some[0].ndim:
        (dtype,) = dtypes
        shape = (*(-1,) * levels, *some[0].shape[1:])
        if len(inner) == 1 and (dtype.kind in "biuf" or dtype.name == "bfloat16"):
            return VarLenFeature(dtype, shape=shape)
        if len(inner) == 1 and all(isinstance(item, bytes) for array in some for item in array.ravel()):
            return VarLenFeature("bytes", shape=shape)
        if dtype.kind == "T" and levels == 1 and some[0].ndim == 1:
            return TextFeature(count=-1)
        if len(inner) == 1 and dtype.kind == "c" and levels == 1:
            return RawFeature(shape, dtype)
        if levels <= 2 and (dtype.kind in "biufc" or dtype.name == "bfloat16"):
            return TensorFeature((-1,) * some[0].ndim, dtype, count=None if levels == 1 else -1)
    if not some:
        raise SchemaError(f"{owner} has empty rows only: {_SPECIFY.split('; or')[0]}")
    raise SchemaError(f"{owner} mixes rows of {_list_kinds([a.dtype.name for a in some], str)}")


def _is_uneven(row: Any) -> bool:
    """Return whether a list holds lists that differ in length."""
    if isinstance(row, np.ndarray) and row.dtype.kind != "O":
        return False
    try:
        return np.asarray(row).dtype.kind == "O" and any(isinstance(inner, list | tuple | np.ndarray) for inner in row)
    except ValueError:
        return True


def _row_array(row: Any) -> NDArray[Any]:
    """Return a row as an array; bytes are objects."""
    made = np.asarray(row)
    if made.dtype.kind == "U" or (made.dtype.kind == "O" and made.size and set(map(type, made.flat)) == {str}):
        return made.astype(np.dtypes.StringDType())
    return objects(row) if made.dtype.kind == "S" and isinstance(row, list | tuple) else made


def _list_kinds(items: Any, kind: Any = None) -> str:
    """List the kinds of some objects, and what is accepted."""
    names = sorted({item if kind is str else type(item).__name__ for item in items})[:5]
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return f"{listed}: give it values of one type: numbers, bytes, str, or lists or arrays of these"


def _in_chunks(array: Any, sizes: tuple[int, ...]) -> da.Array:
    """Return a dask array; arrays without chunks get chunks of `sizes` rows."""
    if isinstance(array, da.Array):
        return array
    chunks = (sizes, *(-1,) * (len(array.shape) - 1))
    # A random name of arrays on disk: the content may change, and a name by content would read all of it.
    name = None if isinstance(array, np.ndarray) else step_key("array")
    if _rectilinear_rows(array):
        array = _RectilinearArray(array, tuple(array.shape), array.dtype, len(array.shape))
    made: da.Array = da.from_array(array, chunks=chunks, name=name)
    return made


def _rectilinear_rows(array: Any) -> tuple[int, ...]:
    """Return the rows in each chunk of a Zarr array with a rectilinear grid; empty for others."""
    try:
        getattr(array, "chunks", None)
    except NotImplementedError:
        return tuple(map(int, array.read_chunk_sizes[0]))
    return ()


@dataclass(frozen=True, slots=True, eq=False)
class _RectilinearArray:
    """Array of Zarr with a rectilinear grid; dask asks others for `chunks`, which it does not have."""

    array: Any
    shape: tuple[int, ...]
    dtype: Any
    ndim: int

    def __getitem__(self, key: Any) -> Any:
        return self.array[key]


def _choose_sizes(arrays: Sequence[Any]) -> tuple[int, ...]:
    """Choose the rows in each chunk: as in the first dask array, or one that divides it; else up to 64 MiB."""
    lazy = [tuple(array.chunks[0]) for array in arrays if isinstance(array, da.Array)]
    if lazy:
        # Small columns of a store may have longer chunks than its large ones.
        finest = lazy[0]
        for chunks in lazy[1:]:
            if len(chunks) > len(finest) and {*accumulate(finest)} < {*accumulate(chunks)}:
                finest = chunks
        return finest
    rows = int(arrays[0].shape[0])
    nbytes = sum(
        float(np.prod(array.shape[1:])) * (array.dtype.itemsize if array.dtype.kind != "O" else _OBJECT_NBYTES)
        for array in arrays
    )
    each = max(1, int(limits().input_chunk_nbytes / max(nbytes, 1.0)))
    # Zarr and HDF5 read whole chunks.
    unequal = max(map(_rectilinear_rows, arrays), key=lambda chunks: max(chunks, default=0))
    if unequal:
        # As many chunks as fit.
        borders = np.cumsum([0, *unequal])
        return tuple(np.diff(borders[joined_parts((borders.tolist(), each))]).tolist())
    steps = [int(np.max(array.chunks[0])) for array in arrays if getattr(array, "chunks", None)]
    if steps and each > max(steps):
        each -= each % max(steps)
    return tuple(min(each, rows - start) for start in range(0, rows, each)) or (0,)


def is_frame(value: Any) -> bool:
    """Return whether a value is a DataFrame of pandas or dask."""
    return all(hasattr(value, name) for name in ("iloc", "columns", "dtypes"))


def rows_of_frame(frame: Any, forms: Mapping[str, Feature], *, exact: bool) -> Rows:
    """Convert a DataFrame; `forms` and `exact` are as in `columns_from_arrays`."""
    names = list(frame.columns)
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise SchemaError(
            f"columns of a DataFrame must be named by strings; got {wrong[0]!r}: frame.rename(columns=str)"
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise SchemaError(f"the DataFrame has several columns {twice[0]!r}: names must be unique")
    if is_dask_collection(frame):
        return _from_dask(frame, names, forms, exact=exact)
    index = frame.index
    numbers = type(index).__name__ == "RangeIndex" and index.start == 0 and index.step == 1
    if len(frame) and (not numbers or any(name is not None for name in index.names)):
        raise SchemaError(_INDEX)
    columns = {name: _arrow_column(frame[name], f"array {name!r}", 0) for name in names}
    return columns_from_arrays(columns, forms, exact=exact)


_INDEX = (
    "the index of the DataFrame would be lost: frame.reset_index() converts it to a column, "
    "frame.reset_index(drop=True) drops it"
)


def _from_dask(frame: Any, names: Sequence[str], forms: Mapping[str, Feature], *, exact: bool) -> Rows:
    """Convert a dask DataFrame: a partition becomes a chunk."""
    if frame.index.name is not None or getattr(frame.index.dtype, "kind", "") not in "iu":
        # Each partition may number its rows from 0.
        raise SchemaError(_INDEX)
    if not names:
        raise SchemaError("records need one column or more; the DataFrame has none")
    features = {name: _feature_of_dtype(frame.dtypes[name], name, forms.get(name)) for name in names}
    if exact:
        # A row of zeros has the dtype and shape of the column.
        rows = {name: (of, np.zeros((1, *of.block_shape), of.block_dtype)) for name, of in features.items()}
        features |= {name: feature for name, (feature, _) in _conform_exactly(forms, rows).items()}
    schema = Schema(features)
    sizes = tuple(int(rows) for rows in frame.map_partitions(len).compute())
    # An optimised graph would not refer to the futures of persisted partitions.
    parts = frame.to_delayed(optimize_graph=False)
    graph: dict[Any, Any] = {}
    for part in {id(part.dask): part for part in parts}.values():
        graph |= dict(part.__dask_graph__())
    keys = [part.key for part in parts]
    node = shared(schema, "schema")
    name = step_key("partition", keys, schema, sizes)
    borders = splits_of(sizes).tolist()
    tasks: dict[Any, Any] = {
        (name, number): (_partition_chunk, key, node.key, *span)
        for number, (key, span) in enumerate(zip(keys, pairwise(borders), strict=True))
    }
    graph |= dict(node.__dask_graph__()) | tasks
    chunks = from_graph(graph, name, ((1,) * len(keys),), np.empty(0, object))
    return Rows.of_chunks(chunks, schema, sizes, {})


def _feature_of_dtype(dtype: Any, name: str, form: Feature | None) -> Feature:
    """Find the feature of a column of a dask DataFrame by its dtype."""
    import pandas

    owner = f"column {name!r}"
    if isinstance(dtype, pandas.CategoricalDtype) and dtype.categories is not None and len(dtype.categories):
        # Categories are decoded.
        return column_from_array(dtype.categories, owner, form)[0]
    if isinstance(dtype, pandas.StringDtype):
        return TextFeature()
    if dtype == np.dtype(object):
        if form is None:
            raise SchemaError(
                f"column {name!r} contains objects, which may be anything: specify features={{{name!r}: "
                f"FixedLenFeature((), 'bytes')}} for bytes, or VarLenFeature(dtype) for lists"
            )
        return form
    return column_from_array(_arrow_column(pandas.Series([], dtype=dtype), owner, 0), owner, form)[0]


def _partition_chunk(frame: Any, schema: Schema, start: int, stop: int) -> Chunk:
    """Convert a partition of rows `start` to `stop`."""
    if len(frame) != stop - start:
        raise SchemaError(
            f"a partition has {len(frame):,} rows; expected {stop - start:,}, its rows when the data set was made"
        )
    blocks: dict[str, Block] = {}
    for name, feature in schema.items():
        owner = f"column {name!r}"
        column = _arrow_column(frame[name], owner, start)
        if not isinstance(column, RaggedBlock | BytesBlock | ArraysBlock):
            column = column_from_array(column, owner, feature)[1]
        blocks[name] = conform(feature, column, owner, lossless=True)
    return Chunk(blocks)


def _arrow_column(series: Any, owner: str, first: int) -> Any:
    """Return a block for a column of an Arrow type, and other columns unchanged; `first` is the number of its row 0."""
    if getattr(series.dtype, "pyarrow_dtype", None) is None:
        refuse_missing_values(series, owner, first)
        return series
    import pyarrow as pa

    array = pa.array(series)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    block = _block_of_arrow(array, owner, lambda: np.arange(first, first + len(array)))
    return series if block is None else block


def _block_of_arrow(array: Any, owner: str, rows: Callable[[], NDArray[np.int64]]) -> Any:
    """Convert an Arrow array to a block, or None; `rows` returns the number of the row of each value."""
    import pyarrow as pa

    kind = array.type
    if array.null_count:
        refuse_missing_rows(np.unique(rows()[np.asarray(array.is_null())]), owner)
    if isinstance(kind, pa.FixedShapeTensorType):
        # `to_numpy_ndarray` reads a missing value within a tensor as a number, and refuses bool.
        tensors = _block_of_arrow(array.storage, owner, rows).reshape(len(array), *kind.shape)
        return tensors.transpose(0, *(1 + axis for axis in kind.permutation)) if kind.permutation else tensors
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return array.to_numpy(zero_copy_only=False)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.array(array.to_pylist(), np.dtypes.StringDType())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _block_of_bytes(array.cast(pa.large_binary()))
    if pa.types.is_fixed_size_list(kind):
        inner = _block_of_arrow(array.flatten(), owner, lambda: np.repeat(rows(), kind.list_size))
        fits = isinstance(inner, np.ndarray | BytesBlock)
        return inner.reshape((len(array), kind.list_size, *inner.shape[1:])) if fits else None
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets = np.asarray(array.offsets, np.int64)
        inner = array.values.slice(offsets[0], offsets[-1] - offsets[0])
        values = _block_of_arrow(inner, owner, lambda: np.repeat(rows(), np.diff(offsets)))
        fits = isinstance(values, np.ndarray | BytesBlock | ArraysBlock | RaggedBlock)
        return RaggedBlock(values, offsets - offsets[0]) if fits else None
    if pa.types.is_struct(kind) and [field.name for field in kind] == ["data", "shape"]:
        data, shapes = (_block_of_arrow(array.field(name), owner, rows) for name in ("data", "shape"))
        if isinstance(data, RaggedBlock) and isinstance(shapes, np.ndarray) and shapes.ndim == 2:
            shapes, sizes = shapes.astype(np.int64, copy=False), np.diff(data.row_splits)
            wrong = (shapes < 0).any(axis=1) | (shapes.prod(axis=1, dtype=np.float64) != sizes)
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                raise SchemaError(
                    f"{owner}, row {rows()[at]}: an array of shape {tuple(shapes[at].tolist())} has "
                    f"{plural(int(sizes[at]), 'value')}; expected the product of its sizes"
                )
            return ArraysBlock(data.flat_values, data.row_splits, shapes)
    return None


def _block_of_bytes(array: Any) -> BytesBlock:
    """Return the values of a large_binary array, sharing memory."""
    _, offsets, data = array.buffers()
    if not len(array):
        return BytesBlock(np.empty(0, np.uint8), np.zeros(1, np.int64), (0,))
    splits = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    values = np.frombuffer(data, np.uint8)[splits[0] : splits[-1]] if data is not None else np.empty(0, np.uint8)
    return BytesBlock(values, splits - splits[0], (len(array),))
