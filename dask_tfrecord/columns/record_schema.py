"""Choose the features that columns are written as: those of the user, those they were read by, or their own.

A column that no feature stores unchanged needs one from the user: values are never converted by a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_tfrecord.columns.column_plan import SchemaPlan
from dask_tfrecord.columns.encode import source_columns
from dask_tfrecord.errors import SchemaError, UnknownFeatureError
from dask_tfrecord.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RawFeature,
    TensorFeature,
    VarLenFeature,
)
from dask_tfrecord.schema import Schema, near_misses, split_item_name

__all__ = ["column_forms", "given_features", "listed_features", "picked", "record_schema"]


def record_schema(columns: Schema, read: Schema | None, given: Schema) -> Schema:
    """Return the features that columns are written as.

    Parameters
    ----------
    columns : Schema
        The columns. A column without another feature is written as its feature here.
    read : Schema or None
        Schema that the columns were read by. Its features apply if all of their columns are present and unchanged.
    given : Schema
        Features of the user, which take precedence.

    Returns
    -------
    Schema
        In the order of the columns, with the groups of the user's Schema, or else of the columns.

    Raises
    ------
    UnknownFeatureError
        If the columns of a feature of the user are missing.
    """
    message = given.message if given.message != "Example" or read is None else read.message
    own = {*given, *(read or {})}
    found: dict[str, tuple[Feature, bool]] = {}
    used: dict[str, str] = {}

    def names_of(name: str, feature: Feature, steps: bool) -> tuple[str, ...] | None:
        return source_columns(name, feature, columns, own, steps=steps and message == "SequenceExample")

    def take(name: str, feature: Feature, *, steps: bool) -> bool:
        names = names_of(name, feature, steps)
        if names is None or any(column in used for column in names):
            return False
        found[name] = (feature, steps)
        used.update(dict.fromkeys(names, name))
        return True

    for name, feature in given.items():
        if not take(name, feature, steps=given.has_steps(name)):
            raise UnknownFeatureError(f"feature {name!r}: no column for {feature}{near_misses(name, columns)}")
    if read is not None:
        read_columns = SchemaPlan(read).columns
        for name, feature in read.items():
            steps = read.has_steps(name)
            names = names_of(name, feature, steps) or ()
            kept = all(columns[column] == read_columns.get(column, columns[column]) for column in names)
            if kept and (not steps or read.message == message):
                take(name, feature, steps=steps)
    for name in columns:
        if name not in used:
            take(name, columns[name], steps=False)
    order = dict.fromkeys(used[column] for column in columns)
    of_records = {name: found[name][0] for name in order if not found[name][1]}
    of_steps = {split_item_name(name, message)[0]: found[name][0] for name in order if found[name][1]}
    classes = {**columns.classes, **given.classes}
    schema = Schema(
        of_records,
        sequence_features=of_steps if message == "SequenceExample" else None,
        example_features=of_steps if message == "ExampleListWithContext" else None,
        classes={name: names for name, names in classes.items() if name in found},
    )
    grouping = given if given.groups else columns
    items = [name for name in schema if message == "ExampleListWithContext" and schema.has_steps(name)]
    ragged = [name for name, feature in schema.items() if feature.ragged_rank and name not in items]
    return schema.with_groups(grouping.groups_of(ragged))


def given_features(
    features: Mapping[str, Any] | None,
    sequence_features: Mapping[str, Any] | None,
    example_features: Mapping[str, Any] | None = None,
) -> Schema:
    """Return the schema of the arguments of a user: that of Examples without `sequence_features` or `example_features`.

    Raises
    ------
    SchemaError
        If an argument is not a mapping, or both kinds of steps are given.
    """
    for argument, given in (
        ("features", features),
        ("sequence_features", sequence_features),
        ("example_features", example_features),
    ):
        if given is not None and not isinstance(given, Mapping):
            raise SchemaError(
                f"{argument} is a mapping of names to features, or a Schema; got {given!r:.100}{picked(given)}"
            )
    if isinstance(features, Schema):
        if sequence_features is None and example_features is None:
            return features
        features = features.select(features.context_features)
        classes, groups = features.classes, features.groups
    else:
        classes = groups = {}
    return Schema(
        features or {},
        sequence_features=sequence_features,
        example_features=example_features,
        classes=classes,
        groups=groups,
    )


def picked(given: Any) -> str:
    """Return the end of an error: a hint at `columns=` if `given` is a sequence of names."""
    names = isinstance(given, list | tuple | set | frozenset) and all(isinstance(name, str) for name in given)
    return "; columns= picks features by name when shards are read" if names else ""


def column_forms(features: Mapping[str, Any] | None) -> dict[str, Feature]:
    """Return the features of the columns from which records of these features are written."""
    schema = given_features(features, None)
    forms = dict(SchemaPlan(schema).columns)
    for name, feature in schema.items():
        if isinstance(feature, FixedLenSequenceFeature):
            # Object arrays hold rows without padding.
            forms[name] = VarLenFeature(feature.dtype, shape=(-1, *feature.shape))
    return forms


def listed_features(columns: Mapping[str, Feature]) -> dict[str, Feature]:
    """Return the default features that arrays are written as: kinds that an Example lists.

    Integers and bool are listed as int64, float16 and bfloat16 as float32.

    Raises
    ------
    SchemaError
        If an Example cannot list the values: float64, complex numbers, arrays of different shapes.
    """
    return {name: _listed(name, feature) for name, feature in columns.items()}


def _listed(name: str, feature: Feature) -> Feature:
    dtype = feature.item_dtype
    if dtype.name == "float64":
        sizes = tuple(feature.shape) if feature.shape else ()
        kept = f"RawFeature({sizes}, 'float64')"
        rounded = f"FixedLenFeature({sizes}, 'float32')"
        if isinstance(feature, TensorFeature):
            rounded, kept = f"TensorFeature({sizes}, 'float32')", f"TensorFeature({sizes}, 'float64')"
        elif feature.ragged_rank == 1:
            rounded = f"VarLenFeature('float32'{'' if len(sizes) == 1 else f', shape={sizes}'})"
        elif feature.ragged_rank:
            rounded, kept = "RaggedFeature('float32', partitions=…)", "a sequence feature VarLenFeature('float64')"
        raise SchemaError(
            f"array {name!r} is of float64, and an Example lists float32: specify features={{{name!r}: {rounded}}} to "
            f"round it, or {{{name!r}: {kept}}} to keep it"
        )
    if dtype.kind == "c":
        raise SchemaError(
            f"array {name!r} is of {dtype}, which an Example cannot list: specify RawFeature(shape, {dtype.name!r}) or "
            f"TensorFeature(shape, {dtype.name!r}) in features="
        )
    if isinstance(feature, TensorFeature) or feature.own_shapes:
        raise SchemaError(
            f"array {name!r} has rows of different shapes, which an Example cannot list: specify TensorFeature or "
            f"ImageFeature in features="
        )
    if isinstance(feature, RawFeature):
        if feature.ragged_rank:
            return VarLenFeature(dtype, shape=(-1, *feature.item_shape))
        return FixedLenFeature(feature.item_shape, dtype)
    if isinstance(feature, VarLenFeature) and feature.ragged_rank > 1:
        raise SchemaError(
            f"array {name!r} has nested rows, which an Example cannot list: specify RaggedFeature with partitions in "
            f"features=, or VarLenFeature in sequence_features="
        )
    return feature
