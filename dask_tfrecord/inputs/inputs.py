"""Inputs of writers as a `Dataset`: mappings of array-likes, xarray Datasets and DataFrames.

`dask_tfrecord.inputs.array_likes` converts each array, and `dask_tfrecord.inputs.frames` DataFrames. This module finds
the arrays, the names of dimensions, the coordinates and the attributes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.columns.encode import column_forms
from dask_tfrecord.errors import SchemaError, printable
from dask_tfrecord.features import Feature
from dask_tfrecord.inputs.array_likes import columns_from_arrays
from dask_tfrecord.inputs.frames import is_frame, rows_of_frame
from dask_tfrecord.metadata.labels import Labels, encodable, read_labels
from dask_tfrecord.schema import Schema

# Most names in a warning.
_LISTED = 10


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """Rows to write, with the names and attributes of their collection.

    Attributes
    ----------
    dataset : Dataset
        The rows.
    rows : str or None
        Name of the dimension of rows; None if the collection does not name it.
    axes : mapping of str to tuple of str
        Names of the other dimensions, by column.
    coords : tuple of str
        Columns that are coordinates.
    attributes : mapping of str to mapping
        Attributes by column.
    collection_attributes : mapping
        Attributes of the collection.
    constants : mapping of str to (tuple of str, ndarray)
        Dimensions and values of coordinates without rows.
    dtypes : mapping of str to str
        Dtypes of text, bytes and dates, by column.
    """

    dataset: Dataset
    rows: str | None = None
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    coords: tuple[str, ...] = ()
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    collection_attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, tuple[tuple[str, ...], NDArray[Any]]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)

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
        if isinstance(arrays, Dataset):
            return cls(arrays)
        forms = column_forms(features)
        if hasattr(arrays, "data_vars") and hasattr(arrays, "coords"):
            return _from_xarray(arrays, forms, keep_constants, exact)
        if is_frame(arrays):
            dataset = Dataset(rows_of_frame(arrays, forms, exact=exact))
            return cls(dataset, collection_attributes=dict(getattr(arrays, "attrs", {})))
        if not isinstance(arrays, Mapping):
            kind = f"{type(arrays).__module__}.{type(arrays).__name__}".removeprefix("builtins.")
            raise SchemaError(
                f"arrays must be a Dataset, a mapping of names to arrays, an xarray Dataset or a DataFrame; got "
                f"{kind}{_HINTS.get(type(arrays).__name__, '')}"
            )
        return _from_mapping(arrays, forms, exact)

    def labels(self, schema: Schema) -> Labels | None:
        """Return the labels of an xarray Dataset that is written with these features; None for other collections.

        Warns
        -----
        UserWarning
            If attributes are not part of them.
        """
        if self.rows is None:
            self.warn_of_attributes()
            return None
        kept = {name: encodable(each) for name, each in self.attributes.items()}
        of_all = encodable(self.collection_attributes)
        omitted = [name for name in self.collection_attributes if name not in of_all]
        omitted += [f"{name}.{key}" for name, each in self.attributes.items() for key in each if key not in kept[name]]
        if omitted:
            self.warn_of_attributes(omitted)
        own = {
            name: {key: value for key, value in each.items() if key not in ("feature", "feature_class")}
            for name, each in kept.items()
        }
        return Labels(self.rows, self.axes, self.coords, self.dtypes, own, of_all, self.constants, schema)

    def warn_of_attributes(self, names: Sequence[str] | None = None) -> None:
        """Warn of attributes that are not written.

        Parameters
        ----------
        names : sequence of str, optional
            Attributes that are not written; by default all.

        Warns
        -----
        UserWarning
            If there are any.
        """
        if names is None:
            names = [
                *self.collection_attributes,
                *(f"{name}.{key}" for name, each in self.attributes.items() for key in each),
            ]
        if names:
            warnings.warn(f"attributes are not written: {_list(names)}", UserWarning, stacklevel=4)


def labels_of(dataset: Dataset) -> Labels | None:
    """Return the labels next to the first shard of records that are read unchanged."""
    source = dataset._source
    if source is None or source.inner is not None or source.nrows is None or not source.shards:
        return None
    return read_labels(source.shards[0])


_HINTS = {
    "DataArray": ": array.to_dataset(name='x') converts it to a Dataset",
    "Table": ": its method to_pandas converts it",
}


def _list(names: Sequence[Any]) -> str:
    return printable(", ".join(map(str, names[:_LISTED]))) + (f", … ({len(names):,})" if len(names) > _LISTED else "")


def _from_mapping(arrays: Mapping[str, Any], forms: Mapping[str, Feature], exact: bool) -> Inputs:
    """Convert arrays by name; DataArrays must share their first dimension."""
    labelled = {name: array for name, array in arrays.items() if _is_labelled(array)}
    _dimension_of_rows(labelled)
    dropped = [f"{name}.{coord}" for name, array in labelled.items() for coord in array.coords]
    dataset = Dataset(columns_from_arrays(arrays, forms, exact=exact))
    if dropped:
        warnings.warn(
            f"coordinates of single arrays are not written: {_list(dropped)}; coordinates of an xarray Dataset are",
            UserWarning,
            stacklevel=4,
        )
    attributes = {name: dict(array.attrs) for name, array in labelled.items() if array.attrs}
    return Inputs(dataset, attributes=attributes)


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
            f"ds.drop_vars({others!r}) drops them, ds.transpose({rows!r}, ...) moves {rows!r} to the front"
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
    dataset = Dataset(columns_from_arrays(columns, forms, exact=exact))
    axes = {name: tuple(map(str, array.dims[1:])) for name, array in columns.items() if len(array.dims) > 1}
    attributes = {name: dict(array.attrs) for name, array in {**given, **constants}.items() if array.attrs}
    dtypes = {name: array.dtype.str for name, array in given.items() if array.dtype.kind in "SUmM"}
    dtypes |= {name: "object" for name, array in columns.items() if array.dtype.kind == "O"}
    values = {name: (tuple(map(str, array.dims)), np.asarray(array.values)) for name, array in constants.items()}
    return Inputs(dataset, rows, axes, tuple(coords), attributes, dict(arrays.attrs), values, dtypes)
