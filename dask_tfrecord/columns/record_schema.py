"""What records are to hold, from what is said of the columns: features given, those they were read by, or their own.

Pure values. Nothing is guessed: a column that no feature stores as it is has to be given one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_tfrecord.columns.encode import columns_of
from dask_tfrecord.columns.recipes import Parser
from dask_tfrecord.errors import SchemaError, UnknownFeatureError
from dask_tfrecord.features import Feature, FixedLenFeature, RawFeature, TensorFeature, VarLenFeature
from dask_tfrecord.schema import Schema, near_misses

__all__ = ["given_features", "listed_features", "record_schema"]


def record_schema(
    columns: Schema,
    read: Schema | None = None,
    features: Mapping[str, Any] | None = None,
    sequence_features: Mapping[str, Any] | None = None,
) -> Schema:
    """Find the features that columns are written as.

    Parameters
    ----------
    columns : Schema
        The columns. What nothing else is said of is written as the feature that it is here.
    read : Schema, optional
        What the columns were read by: its features count where all of their columns are there and what they were.
    features, sequence_features : mapping of str to feature, optional
        What the user says; it counts most.

    Returns
    -------
    Schema
        In the order of the columns.

    Raises
    ------
    UnknownFeatureError
        If the columns of a feature that was given are not there.
    """
    context, lists = given_features(features, sequence_features)
    is_sequence = lists is not None or (read is not None and read.message == "SequenceExample")
    own = {*context, *(lists or {}), *(read or {})}
    found: dict[str, tuple[Feature, bool]] = {}
    used: dict[str, str] = {}

    def take(name: str, feature: Feature, *, steps: bool) -> bool:
        names = columns_of(name, feature, columns, own, steps=steps)
        if names is None or any(column in used for column in names):
            return False
        found[name] = (feature, steps)
        used.update(dict.fromkeys(names, name))
        return True

    for steps, named in ((False, context), (True, lists or {})):
        for name, feature in Schema(named).items():
            if not take(name, feature, steps=steps):
                raise UnknownFeatureError(
                    f"feature {name!r}: there is no column for {feature}{near_misses(name, columns)}"
                )
    if read is not None:
        promised = Parser(read).columns
        for name, feature in read.items():
            steps = name in (read.sequence_features or {})
            names = columns_of(name, feature, columns, own, steps=steps) or ()
            if all(columns[column] == promised.get(column, columns[column]) for column in names):
                take(name, feature, steps=steps)
    for name in columns:
        if name not in used:
            take(name, columns[name], steps=False)
    order = dict.fromkeys(used[column] for column in columns)
    of_records = {name: found[name][0] for name in order if not found[name][1]}
    of_lists = {name: found[name][0] for name in order if found[name][1]}
    classes = {**columns.classes, **(features.classes if isinstance(features, Schema) else {})}
    known = {name: names for name, names in classes.items() if name in found}
    return Schema(of_records, sequence_features=of_lists if is_sequence else None, classes=known)


def given_features(
    features: Mapping[str, Any] | None, sequence_features: Mapping[str, Any] | None
) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Take apart what a user says: features of an Example or of a context, and feature lists where there may be any.

    Raises
    ------
    SchemaError
        If one is no mapping.
    """
    for argument, given in (("features", features), ("sequence_features", sequence_features)):
        if given is not None and not isinstance(given, Mapping):
            raise SchemaError(f"{argument} is a mapping of names to features, or a Schema; got {given!r:.100}")
    if isinstance(features, Schema):
        if sequence_features is None:
            sequence_features = features.sequence_features
        features = features.context_features
    return features or {}, sequence_features


def listed_features(columns: Mapping[str, Feature]) -> dict[str, Feature]:
    """Find the features that arrays are written as if nothing is said of them: what an Example lists.

    Integers and bool are listed as int64, float16 and bfloat16 as float32.

    Raises
    ------
    SchemaError
        If an Example can't list the values as they are: float64, complex numbers, arrays of any shape.
    """
    return {name: _listed(name, feature) for name, feature in columns.items()}


def _listed(name: str, feature: Feature) -> Feature:
    dtype = feature.item_dtype
    if dtype.name == "float64":
        raise SchemaError(
            f"array {name!r} is of float64, and an Example lists float32: say so in features=, as "
            f"FixedLenFeature(shape, 'float32') to round it, or RawFeature(shape, 'float64') to keep it"
        )
    if dtype.kind == "c":
        raise SchemaError(
            f"array {name!r} is of {dtype}, which no Example lists: give it as RawFeature(shape, {dtype.name!r}) or "
            f"TensorFeature(shape, {dtype.name!r}) in features="
        )
    if isinstance(feature, TensorFeature):
        raise SchemaError(
            f"array {name!r} has rows of any shape, which no Example lists: give it as TensorFeature or ImageFeature "
            f"in features="
        )
    if isinstance(feature, RawFeature):
        return FixedLenFeature(feature.shape, dtype)
    if isinstance(feature, VarLenFeature) and feature.ragged_rank > 1:
        raise SchemaError(
            f"array {name!r} has rows of rows, which no Example lists: give it as RaggedFeature with partitions in "
            f"features=, or as VarLenFeature in sequence_features="
        )
    return feature
