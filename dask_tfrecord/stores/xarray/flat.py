"""Columns of rows that differ in size as the flat arrays of a Zarr store: values, row splits and shapes."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import dask.array as da
import numpy as np
import xarray
from dask.base import tokenize
from numpy.typing import NDArray

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.arrays.rows import Chunk, block_array
from dask_tfrecord.metadata.labels import Labels
from dask_tfrecord.stores.flat_arrays import Levels, flatten_block, is_flat, shapes_of
from dask_tfrecord.stores.rows import RowTasks
from dask_tfrecord.stores.zarr.layout import ArraySpec, Dimensions, RowGrid, zarr_layout

__all__ = ["flat_columns", "flat_variables"]


def flat_columns(dataset: Dataset) -> list[str]:
    """Return the columns that a store has as flat arrays."""
    return [name for name, feature in dataset.schema.items() if is_flat(feature)]


def flat_variables(
    dataset: Dataset, rows: str, dimension_names: Mapping[str, Sequence[str]] | None, labels: Labels | None
) -> dict[str, xarray.Variable]:
    """Count the values of columns, and return their flat arrays with the names and dimensions of `to_zarr`.

    Parameters
    ----------
    dataset : Dataset
        Columns of `flat_columns`.
    rows : str
        Name of the dimension of rows.
    dimension_names : mapping of str to sequence of str, optional
        Names of the axes of an item, by column.
    labels : Labels, optional
        Attributes of columns.

    Raises
    ------
    FeatureError
        If columns of a group differ in their numbers of items.
    """
    schema, borders = dataset.schema, np.asarray(dataset.borders)
    nrows = int(borders[-1])
    most = max(1, int(np.diff(borders).max(initial=1)))
    counts = RowTasks(dataset, uuid.uuid4().hex).count_borders(max(1, nrows), most)
    grid = RowGrid(max(1, nrows), max(1, nrows), most)
    layout = zarr_layout(schema, nrows, grid, counts, names=Dimensions(dimension_names, rows))
    # Counts of a chunk end with its last row.
    at = np.searchsorted(counts.rows, borders)
    items = {name: counts.items[name][at] for name in schema}
    attributes = layout.splits_attributes(schema)
    variables = {}
    for spec in layout.arrays:
        own: dict[str, Any] = dict(attributes.get(spec.name, {}))
        if spec.group is None:
            own = {"feature": spec.feature, "feature_class": type(schema[spec.feature]).__name__} | own
        if spec.part == "values" and labels is not None:
            own = {**labels.attributes.get(spec.feature, {}), **own}
        if spec.part == "values" and spec.feature in schema.classes:
            own["class_names"] = list(schema.classes[spec.feature])
        variables[spec.name] = xarray.Variable(spec.dimensions, _array(dataset, spec, items[spec.feature]), own)
    return variables


def _array(dataset: Dataset, spec: ArraySpec, items: NDArray[np.int64]) -> da.Array:
    """Return a flat array; those that are not along the rows have as many chunks as the data set, of equal sizes.

    `items` are those of each level before each chunk, and after the last one.
    """
    levels = Levels.from_feature(dataset.schema[spec.feature])
    level, stride = levels.level_and_stride(spec.part)
    sizes = np.diff(items[:, level]) * stride
    starts = np.zeros(len(items) - 1, np.int64)
    if spec.part in levels.splits:
        starts = items[:-1, level + 1]
        sizes[0] += 1
    dtype = np.dtypes.StringDType() if spec.dtype == "string" else np.dtype(spec.dtype)
    chunks = dataset.merged().chunks([spec.feature])
    number = levels.splits.index(spec.part) if spec.part in levels.splits else None
    option = (spec.feature, spec.part, number)
    name = f"tfrecord-{spec.part.replace('_', '-')}-{tokenize(chunks.name, option, starts)}"
    first = np.arange(len(starts)) == 0
    array = block_array(
        _part,
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


def _part(
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
