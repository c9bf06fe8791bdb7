"""Features of the records that columns are read from and written to, as far as a data set knows them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from dask_tfrecord.columns.decoder import Decoder
from dask_tfrecord.columns.encode import record_schema
from dask_tfrecord.columns.message_encode import message_schema
from dask_tfrecord.columns.message_fields import leaf_paths
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.listed import lengths
from dask_tfrecord.features.message_types import MessageType
from dask_tfrecord.features.schema import ITEMS, Schema, schema_from_arguments


def wanted_schema(
    features: Mapping[str, Any] | str | os.PathLike[str] | None,
    sequence_features: Mapping[str, Any] | None = None,
    example_features: Mapping[str, Any] | None = None,
    message: Any = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Schema | None:
    """Return the schema that the arguments of a reader describe, all fields of a message by default; None without any.

    `features` may be the path of a schema file.
    """
    if isinstance(features, str | os.PathLike):
        features = Schema.read(features, storage_options=storage_options)
    if message is not None and features is None:
        message = MessageType.of(message)
        features = leaf_paths(message)
    if features is None and sequence_features is None and example_features is None:
        return None
    if isinstance(features, Schema) and sequence_features is None and example_features is None:
        features = _features_of_records(features)
    return schema_from_arguments(features, sequence_features, example_features, message)


def _features_of_records(columns: Schema) -> Schema:
    """Return the features of the records that columns of a data set are written to; others are features already."""
    read = columns.records
    if read is None:
        return columns
    made = written_schema(columns, Schema({}))
    held = Decoder(made).columns
    if lost := [name for name in columns if name not in held]:
        raise SchemaError(
            f"column {lost[0]!r} is not in the records that this data set writes: leave it out, as in ds[[…]].schema, "
            f"or specify the features of the records"
        )
    # The sample of an inferred schema shows which keys were never set.
    return read.with_classes({**read.classes, **made.classes}).with_groups(made.groups) if made == read else made


def written_schema(columns: Schema, given: Schema) -> Schema:
    """Return the features that columns are written as: given ones, those that they were read by, or their own."""
    read = columns.records
    if read is not None and read.message_type is not None and not given and given.message == "Example":
        # Messages are written as what they were read from.
        given = Schema({}, message=read.message_type)
    find = record_schema if given.message_type is None else message_schema
    return find(columns, read, given)


def renamed_records(columns: Schema, names: Mapping[str, str]) -> Schema | None:
    """Return the features that columns under new names are read by; `names` are the present ones by the new ones.

    A feature gets the name that its columns have together. One whose columns are renamed apart is left out, as is an
    item that is not named as one: these columns are features of their own.
    """
    read = columns.records
    if read is None:
        return None
    new = {old: renamed for renamed, old in names.items()}
    decoders = Decoder(read).decoders
    sources: dict[str, str] = {}
    for name in read:
        made = [column for column, of in decoders.items() if of.source == name and of.assembler is not lengths]
        common = {new[column].removesuffix(column[len(name) :]) for column in made if column in new}
        apart = [column for column in made if column in new and new[column] != min(common) + column[len(name) :]]
        is_item = read.scope_of(name) == "item"
        if len(common) == 1 and not apart and (not is_item or min(common).startswith(f"{ITEMS}/")):
            sources.setdefault(common.pop(), name)
    steps = [renamed for renamed, name in sources.items() if read.has_steps(name)]
    renamed = read.replaced({renamed: read[name] for renamed, name in sources.items()}, steps=steps)
    try:
        Decoder(renamed)
    except SchemaError:
        # A new name is the key of another feature: all columns are features of their own.
        return read.select([])
    return renamed


def named_columns(schema: Schema, names: Sequence[str]) -> tuple[str, ...]:
    """Replace names of features by their columns; other names stay."""
    decoders = Decoder(schema).decoders
    found: dict[str, None] = {}
    for name in names:
        found |= dict.fromkeys([column for column, of in decoders.items() if of.source == name] or [name])
    return tuple(found)


def features_of_columns(schema: Schema, names: Sequence[str]) -> Schema:
    """Replace names by the features with this name, or with a column of this name."""
    if all(name in schema for name in names):
        return schema.select(names)
    decoders = Decoder(schema).decoders
    return schema.select(dict.fromkeys(decoders[name].source if name in decoders else name for name in names))
