"""Values that replace lost records, and values that can't be decoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dask_tfrecord.blocks import Block
from dask_tfrecord.columns.conversions import conform
from dask_tfrecord.columns.decoder import Decoder, rows_of_no_fields
from dask_tfrecord.errors import SchemaError, UnknownFeatureError, near_misses
from dask_tfrecord.features import Feature
from dask_tfrecord.features.base import ColumnDecoder
from dask_tfrecord.features.dtypes import default_array


def fillers(
    decoder: Decoder,
    fill_values: Mapping[str, Any] | None,
    names: Iterable[str] | None = None,
    option: str = "errors='fill'",
) -> dict[str, Block]:
    """Return a block of one row per column: its fill value, else the default value of its feature, or no items.

    Parameters
    ----------
    decoder : Decoder
        Decoder of the columns.
    fill_values : mapping of str to value or None
        Values that the user gives, by column.
    names : iterable of str, optional
        Columns that are filled in records whose other columns are read; by default, whole records are filled.
    option : str
        Argument that needs the values, for errors.

    Raises
    ------
    SchemaError
        If the value of a column is missing, or does not fit it.
    """
    given = fill_values or {}
    for name in given:
        if name not in decoder.decoders:
            raise UnknownFeatureError(f"fill_values: no column {name!r}{near_misses(name, tuple(decoder.decoders))}")
    rows = {}
    for name in decoder.decoders if names is None else names:
        column = decoder.decoders[name]
        if name in given:
            rows[name] = _row(name, column.feature, given[name])
        elif names is not None and (column.scope != "value" or decoder.columns.group_of(name) is not None):
            # A row without items: the fields of a group keep one number of items in every record.
            rows[name] = _row(name, column.feature, [] if column.feature.ragged_rank else 0)
        elif decoder.schema.message_type is not None:
            try:
                rows[name] = rows_of_no_fields(decoder, name)
            except SchemaError as error:
                raise SchemaError(_no_value(name, option, str(error))) from error
        else:
            rows[name] = _row(name, column.feature, _default(name, column, option))
    return rows


def _no_value(name: str, option: str, reason: str) -> str:
    what = "lost records" if option.startswith("errors") else "what can't be decoded"
    return (
        f"column {name!r}: {option} needs a value for {what}, and {reason}; give fill_values={{{name!r}: ...}}, or "
        f"{option.partition('=')[0]}='skip'"
    )


def _default(name: str, column: ColumnDecoder, option: str) -> Any:
    if column.scope == "item":
        return []  # defaults belong to items, which a lost record lacks
    value = getattr(column.parsed, "default_value", None)
    if value is None or name != column.source:
        raise SchemaError(_no_value(name, option, f"{column.parsed} has no default_value"))
    return value


def _row(name: str, feature: Feature, value: Any) -> Block:
    owner = f"fill_values: column {name!r}"
    if feature.ragged_rank or feature.own_shapes:
        return conform(feature, [value], owner)
    shape = (1, *feature.block_shape)
    try:
        if feature.block_dtype.kind in "OT":
            row = np.broadcast_to(np.asarray(value, object), shape)
        else:
            row = default_array(value, feature.block_dtype, shape)
            exact = np.asarray(value)
            if feature.block_dtype.kind in "iub" and (row != exact).any():
                raise SchemaError(f"{owner}: {value!r:.100} does not fit into {feature.block_dtype}")
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(f"{owner}: {value!r:.100} is not a value of {feature} ({error})") from error
    return conform(feature, row, owner)
