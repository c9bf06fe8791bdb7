"""`Dataset.to_xarray`: columns as the variables of an xarray Dataset, backed by dask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.stores.xarray.boxed import boxed_column
from dask_tfrecord.stores.xarray.variables import variable_specs

__all__ = ["to_xarray"]


def to_xarray(
    dataset: Dataset, coords: Sequence[str], dimension_names: Mapping[str, Sequence[str]] | None, together: bool
) -> xarray.Dataset:
    """Return the columns as variables; `Dataset.to_xarray` documents the arguments."""
    specs = variable_specs(dataset.schema, dataset.nrecords, coords, dimension_names)
    names = tuple(dataset)
    arrays = dict(zip(names, dataset[names], strict=True)) if together else {}
    variables = {}
    for name, spec in specs.items():
        array = arrays.get(spec.column)
        if spec.dtype == np.dtype(object):
            array = boxed_column(dataset, spec.column, array)
        elif array is None:
            array = dataset[spec.column]
        variables[name] = xarray.Variable(spec.dims, array, dict(spec.attributes))
    return xarray.Dataset(variables).set_coords([name for name, spec in specs.items() if spec.is_coord])
