"""Variables of an xarray Dataset: names, dimensions, dtypes and attributes of the columns of a schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_tfrecord.errors import SchemaError, UnknownFeatureError
from dask_tfrecord.features import Feature
from dask_tfrecord.metadata.labels import Labels
from dask_tfrecord.schema import Schema, near_misses

__all__ = ["ROWS", "VariableSpec", "in_groups", "variable_name", "variable_specs"]

ROWS = "record"


@dataclass(frozen=True, slots=True, eq=False)
class VariableSpec:
    """Variable of one column.

    Attributes
    ----------
    column : str
        Name of the column.
    dims : tuple of str
        Names of the axes; the first is that of rows.
    shape : tuple of int
        Shape.
    dtype : dtype
        Object for columns of bytes and for rows that differ in length or shape.
    attributes : mapping of str to JSON values
        Attributes.
    is_coord : bool
        True for a coordinate.
    """

    column: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
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
    """Describe the variables of the columns of a schema, by the names of the variables.

    Parameters
    ----------
    schema : Schema
        Columns.
    nrows : int or None
        Number of rows; None if they are not counted.
    coords : sequence of str
        Columns that are coordinates.
    dimension_names : mapping of str to sequence of str, optional
        Names of the axes of a row, by column.
    labels : Labels, optional
        Labels of the shards, which the arguments override.

    Raises
    ------
    UnknownFeatureError
        If `coords` or `dimension_names` has another column.
    ValueError
        If rows are not counted, or names do not fit the axes.
    SchemaError
        If two columns have one name as variables.
    """
    if nrows is None:
        raise ValueError(
            "dimensions of xarray have known sizes, and rows are not counted: open with counts='auto', not counts=None"
        )
    if isinstance(coords, str):
        raise ValueError(f"coords is a list of columns; got the string {coords!r}")
    given = dimension_names or {}
    if not isinstance(given, Mapping):
        raise ValueError(f"dimension_names must map columns to names of axes; got {dimension_names!r:.100}")
    for option, wanted in (("coords", coords), ("dimension_names", given)):
        for column in wanted:
            if column not in schema:
                raise UnknownFeatureError(f"{option}: no column {column!r}{near_misses(column, tuple(schema))}")
    names = {column: variable_name(column) for column in schema}
    _check_distinct(names)
    # xarray makes an index of a variable with the name of its dimension, and reads all of it.
    taken = set(names.values())
    rows = ROWS if labels is None else labels.rows
    coords = [*coords, *(labels.coords if labels is not None else ())]
    rows += "%" if rows in taken - set(coords) else ""
    specs = {}
    for column, name in names.items():
        feature = schema[column]
        axes = given[column] if column in given else _axes(column, feature, taken, labels)
        dims = (rows, *_checked_axes(column, axes, feature, rows))
        shape, attributes = (nrows, *feature.block_shape), _attributes(column, schema, labels)
        dtype = _dtype(column, feature, labels)
        specs[name] = VariableSpec(column, dims, shape, dtype, attributes, column in coords)
    _check_lengths(specs.values())
    return specs


def in_groups(specs: Mapping[str, VariableSpec]) -> dict[str, dict[str, VariableSpec]]:
    """Divide variables among the groups that the names of their columns describe, by the paths of the groups.

    Raises
    ------
    SchemaError
        If a column has the name of a group.
    """
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
    for name, number in Counter(names.values()).items():
        if number > 1:
            columns = [column for column in names if names[column] == name]
            raise SchemaError(
                f"columns {columns} would all be the variable {name!r}: select one of them, as by columns= or "
                f"ds[[{columns[0]!r}]]"
            )


def _attributes(column: str, schema: Schema, labels: Labels | None) -> Mapping[str, Any]:
    """Return the attributes of an xarray Dataset that was written, else those of the feature."""
    if labels is not None:
        return labels.attributes.get(column, {})
    attributes: dict[str, Any] = {"feature": column, "feature_class": type(schema[column]).__name__}
    if column in schema.classes:
        attributes["class_names"] = list(schema.classes[column])
    return attributes


def _dtype(column: str, feature: Feature, labels: Labels | None) -> np.dtype[Any]:
    """Return the dtype of a variable: that of the labels for text, bytes and dates."""
    own = feature.block_dtype
    if labels is None or column not in labels.dtypes or feature.ragged_rank or feature.own_shapes:
        return own
    dtype = np.dtype(labels.dtypes[column])
    fits = {"T": "UO", "O": "S"}.get(own.kind, "mM" if own == np.int64 else "")
    return dtype if dtype.kind in fits and labels.schema.get(column) == feature else own


def _axes(column: str, feature: Feature, taken: Iterable[str], labels: Labels | None) -> Sequence[str]:
    """Return names for the axes of a row; made names differ from those of all variables."""
    if labels is not None and len(labels.dims.get(column, ())) == len(feature.block_shape):
        return labels.dims.get(column, ())
    name = variable_name(column)
    axes = [f"{name}.dim_{axis}" for axis in range(1, len(feature.block_shape) + 1)]
    return [f"{axis}%" if axis in taken else axis for axis in axes]


def _checked_axes(column: str, axes: Any, feature: Feature, rows: str) -> tuple[str, ...]:
    option = f"dimension_names[{column!r}]"
    if isinstance(axes, str) or not all(isinstance(axis, str) and axis for axis in axes):
        raise ValueError(f"{option} must be a tuple of names, one for each axis; got {axes!r}")
    if len(axes) != len(feature.block_shape):
        raise ValueError(
            f"{option} has {len(axes)} names, {tuple(axes)}, where a row has the shape {feature.block_shape}"
        )
    if len({rows, *axes}) <= len(axes):
        raise ValueError(f"{option}: {(rows, *axes)} gives two axes of one variable the same name")
    return tuple(axes)


def _check_lengths(specs: Iterable[VariableSpec]) -> None:
    """Refuse one name for axes of two lengths."""
    found: dict[str, tuple[int, str]] = {}
    for spec in specs:
        for axis, length in zip(spec.dims, spec.shape, strict=True):
            other, owner = found.setdefault(axis, (length, spec.column))
            if other != length:
                raise ValueError(
                    f"dimension_names: {axis!r} has length {other} in {owner!r} and length {length} in "
                    f"{spec.column!r}: axes of one name must have one length"
                )
