"""`Dataset.to_xarray`, and the assembly of variables and labels that the engine shares with it."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import dask.array as da
import numpy as np
import xarray

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.metadata.labels import Labels
from dask_tfrecord.stores.inputs import labels_of
from dask_tfrecord.stores.xarray.boxed import boxed_column
from dask_tfrecord.stores.xarray.flat import flat_columns, flat_variables
from dask_tfrecord.stores.xarray.variables import ROWS, VariableSpec, variable_name, variable_specs

__all__ = ["assembled", "to_xarray"]


def to_xarray(
    dataset: Dataset,
    coords: Sequence[str],
    dimension_names: Mapping[str, Sequence[str]] | None,
    together: bool,
    ragged: str,
) -> xarray.Dataset:
    """Return the columns as variables; `Dataset.to_xarray` documents the arguments."""
    if ragged not in ("objects", "flat"):
        raise ValueError(f"ragged is 'objects' or 'flat'; got {ragged!r}")
    labels = labels_of(dataset)
    flat = [name for name in flat_columns(dataset) if name not in coords] if ragged == "flat" else []
    axes = {name: each for name, each in (dimension_names or {}).items() if name not in flat}
    specs = variable_specs(dataset.schema, dataset.nrows, coords, axes, labels)
    specs = {name: spec for name, spec in specs.items() if spec.column not in flat}
    names = tuple(spec.column for spec in specs.values())
    arrays = dict(zip(names, dataset[names], strict=True)) if together else {}
    variables = {
        name: xarray.Variable(spec.dims, _array(dataset, spec, arrays.get(spec.column)), dict(spec.attributes))
        for name, spec in specs.items()
    }
    if flat:
        rows = next((spec.dims[0] for spec in specs.values()), ROWS if labels is None else labels.rows)
        given = {name: each for name, each in (dimension_names or {}).items() if name in flat}
        variables |= flat_variables(dataset[flat], rows, given or None, labels)
    found = assembled(variables, specs, labels)
    # Assigning the coordinates creates the index of each that has the name of its dimension.
    return found.assign_coords(found.coords.variables)


def _array(dataset: Dataset, spec: VariableSpec, array: da.Array | None) -> da.Array:
    """Return the array of a variable: decoded on its own, if it is not given."""
    if dataset.schema[spec.column].block_dtype == spec.dtype and spec.dtype.kind in "OT":
        return boxed_column(dataset, spec.column, array)
    array = dataset[spec.column] if array is None else array
    if array.dtype == spec.dtype:
        return array
    cast: da.Array = array.astype(spec.dtype)
    return boxed_column(dataset, spec.column, cast) if spec.dtype == np.dtype(object) else cast


def assembled(
    variables: Mapping[str, xarray.Variable],
    specs: Mapping[str, VariableSpec],
    labels: Labels | None,
    dropped: Container[str] = (),
) -> xarray.Dataset:
    """Return a Dataset of variables, without indexes.

    Parameters
    ----------
    variables : mapping of str to xarray.Variable
        Variables of columns.
    specs : mapping of str to VariableSpec
        Their descriptions.
    labels : Labels, optional
        Labels of the shards: coordinates without rows, and attributes.
    dropped : container of str
        Coordinates without rows that are left out.
    """
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
