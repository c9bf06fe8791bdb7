"""From features to columns: which parts of a record each column is made of, and what puts its blocks together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from dask_tfrecord.columns import making
from dask_tfrecord.columns.making import Make, Prepare
from dask_tfrecord.columns.partitions import partitioned
from dask_tfrecord.columns.parts import Part, bytes_part, fixed_part, ragged_part, raw_part, steps_part, tensor_part
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    ImageFeature,
    KeyedPartition,
    RaggedFeature,
    RawFeature,
    SparseFeature,
    TensorFeature,
    TextFeature,
    VarLenFeature,
)
from dask_tfrecord.schema import Schema

__all__ = ["Parser", "Recipe", "SizeParser", "StepParser"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one column is made.

    Attributes
    ----------
    feature : Feature
        How its blocks look.
    source : str
        Name of the feature of the schema that it comes from.
    parsed : Feature
        That feature.
    parts : tuple of Part
        What is read for it.
    make : callable or None
        Puts a block together; None where the one part is decoded straight into an array.
    prepare : callable, optional
        Makes of the parts what `make` is given: once, where a feature has several columns.
    """

    feature: Feature
    source: str
    parsed: Feature
    parts: tuple[Part, ...]
    make: Make | None
    prepare: Prepare | None = None

    @property
    def keeps_values(self) -> bool:
        """Whether the flat values of its blocks are what the decoder hands out, as it is."""
        whole = self.make in (making.ragged, making.fixed_bytes) and self.prepare is None
        return whole and not any(part.counted for part in self.parts)


class Parser:
    """A schema, and the columns that it makes: most features are one, sparse ones three, feature lists two.

    Parameters
    ----------
    schema : Schema
        What records hold.

    Attributes
    ----------
    recipes : dict of str to Recipe
        How every column is made.
    columns : Schema
        What the columns are.

    Raises
    ------
    SchemaError
        If a feature does not go where it stands, two columns have one name, or two features want different things of
        one key.
    """

    __slots__ = ("columns", "recipes", "schema")

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.recipes = _recipes(schema)
        features = {name: recipe.feature for name, recipe in self.recipes.items()}
        sampling = schema.sampling if features.keys() == schema.keys() else None
        classes = {name: names for name, names in schema.classes.items() if name in features}
        self.columns = Schema(features, sampling, classes=classes)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.schema,)

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return type(self).__name__, self.schema.__dask_tokenize__()


class StepParser(Parser):
    """Counts the steps of padded features: a column of integers for each, and nothing else.

    Parameters
    ----------
    schema : Schema
        What records hold.
    names : sequence of str
        Features of it that are `FixedLenSequenceFeature`, of any length.
    """

    __slots__ = ("names",)

    def __init__(self, schema: Schema, names: Sequence[str]) -> None:
        # What is sampled is judged when all of a record is read.
        super().__init__(schema.replaced(schema))
        self.names = tuple(names)
        self.recipes = {name: _counting(self.recipes[name]) for name in self.names}
        self.columns = Schema({name: recipe.feature for name, recipe in self.recipes.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        return StepParser, (self.schema, self.names)

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return *super().__dask_tokenize__(), self.names


class SizeParser(Parser):
    """Makes the same columns, but where rows differ in size, only their sizes are true: splits and shapes.

    Such values are judged as ever and counted, and not kept; of images the headers are read and no pixel is decoded. In
    their place are zeros that take no memory.

    Parameters
    ----------
    schema : Schema
        What records hold.
    """

    __slots__ = ()

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema)
        # A key is read in one way: for all columns with its values, if one of them needs these.
        needed = {part for recipe in self.recipes.values() for part in _looked_at(recipe)}
        self.recipes = {name: _sizing(recipe, needed) for name, recipe in self.recipes.items()}


def _looked_at(recipe: Recipe) -> tuple[Part, ...]:
    """Find the parts of whose values the sizes of rows are made, or that are kept."""
    column = recipe.feature
    if recipe.make is making.lengths:
        return ()
    if not (column.ragged_rank or column.own_shapes or column.is_bytes or isinstance(recipe.parsed, SparseFeature)):
        return recipe.parts
    match recipe.parsed:
        case ImageFeature():
            return recipe.parts
        case RawFeature() if recipe.parsed.stored_dtype.kind == "b":
            return recipe.parts
        case SparseFeature():
            return recipe.parts[:-1]
        case RaggedFeature():
            return recipe.parts[1:]
    return ()


def _sizing(recipe: Recipe, needed: Set[Part]) -> Recipe:
    parts = tuple(part if part in needed else replace(part, counted=True) for part in recipe.parts)
    column = recipe.feature
    zeros = isinstance(column, ImageFeature) and (column.own_shapes or column.ragged_rank)
    return replace(recipe, parts=parts, make=making.image_sizes if zeros else recipe.make)


def _counting(recipe: Recipe) -> Recipe:
    make = making.lengths if recipe.parts[0].steps else making.value_steps
    parts = tuple(replace(part, counted=True) for part in recipe.parts)
    return replace(recipe, feature=FixedLenFeature((), "int64"), parts=parts, make=make)


def _recipes(schema: Schema) -> dict[str, Recipe]:
    made: dict[str, Recipe] = {}
    sequences = schema.sequence_features or {}
    for name, feature in schema.items():
        found = _of_list(name, feature) if name in sequences else _of_record(name, feature)
        for column, recipe in found.items():
            if column in made:
                raise SchemaError(
                    f"the columns of features {made[column].source!r} and {name!r} would both be {column!r}"
                )
            made[column] = recipe
    _check_keys(made)
    return made


def _check_keys(made: Mapping[str, Recipe]) -> None:
    wanted: dict[tuple[str, bool], tuple[Part, str]] = {}
    for recipe in made.values():
        for part in recipe.parts:
            other, source = wanted.setdefault((part.key, part.steps), (part, recipe.source))
            if other != part:
                raise SchemaError(
                    f"features {source!r} and {recipe.source!r} want different things of the key {part.key!r}, which "
                    f"is read in one way: {other.layout.name.lower()} {other.dtype} and {part.layout.name.lower()} "
                    f"{part.dtype}"
                )


def _of_record(name: str, feature: Feature) -> dict[str, Recipe]:
    """Columns of a feature of an Example, or of a context."""
    if isinstance(feature, SparseFeature):
        return _sparse(name, feature)
    parts, make = _parts_of_record(name, feature)
    return {name: Recipe(feature, name, feature, parts, make)}


def _parts_of_record(name: str, feature: Feature) -> tuple[tuple[Part, ...], Make | None]:
    match feature:
        case FixedLenFeature():
            return (fixed_part(name, feature),), making.fixed_bytes if feature.is_bytes else None
        case VarLenFeature() if feature.ragged_rank == 1:
            return (ragged_part(name, feature.dtype, math.prod(feature.item_shape)),), making.ragged
        case FixedLenSequenceFeature() if feature.allow_missing:
            return (ragged_part(name, feature.dtype, math.prod(feature.shape)),), making.padded_values
        case RaggedFeature():
            return _ragged_parts(name, feature, steps=False), partitioned
        case RawFeature() if feature.ragged_rank:
            return (bytes_part(name),), making.raw_rows
        case RawFeature():
            return (raw_part(name, feature),), None
        case TensorFeature():
            make = making.arrays if feature.own_shapes else making.fixed_bytes if feature.is_bytes else None
            return (tensor_part(name, feature),), make
        case ImageFeature() if feature.ragged_rank:
            return (ragged_part(name, "bytes"),), making.images
        case ImageFeature():
            return (bytes_part(name),), making.images
        case TextFeature():
            return (bytes_part(name, feature),), making.text
    hint = "allow_missing=True, as in TensorFlow" if isinstance(feature, FixedLenSequenceFeature) else "one open size"
    raise SchemaError(f"feature {name!r}: {feature} needs {hint}, where records list their values without steps")


def _of_list(name: str, feature: Feature) -> dict[str, Recipe]:
    """Columns of a feature list: its steps, and how many there are."""
    parts: tuple[Part, ...]
    make: Make
    column = feature
    match feature:
        case FixedLenSequenceFeature():
            each = math.prod(feature.shape)
            parts = (steps_part(name, feature.dtype, each, optional=feature.allow_missing),)
            make = making.padded_steps
        case VarLenFeature() if feature.ragged_rank == 1:
            parts = (ragged_part(name, feature.dtype, math.prod(feature.item_shape), steps=True),)
            column, make = VarLenFeature(feature.dtype, shape=(-1, *feature.shape)), making.ragged
        case RaggedFeature():
            parts = _ragged_parts(name, feature, steps=True)
            column, make = VarLenFeature(feature.dtype, shape=(-1, *feature.shape)), partitioned
        case ImageFeature() if feature.ragged_rank:
            parts, make = (bytes_part(name, steps=True),), making.images
        case _:
            raise SchemaError(
                f"feature {name!r}: {feature} does not go among the sequence_features, which take "
                f"FixedLenSequenceFeature, VarLenFeature, RaggedFeature and images of one shape"
            )
    lengths = Recipe(FixedLenFeature((), "int64"), name, feature, parts[:1], making.lengths)
    return {name: Recipe(column, name, feature, parts, make), f"{name}.lengths": lengths}


def _ragged_parts(name: str, feature: RaggedFeature, *, steps: bool) -> tuple[Part, ...]:
    """Read the values, and then the partitions that keys hold."""
    keys = [partition.key for partition in feature.partitions if isinstance(partition, KeyedPartition)]
    return (
        ragged_part(name if feature.value_key is None else feature.value_key, feature.dtype, steps=steps),
        *(ragged_part(key, "int64", steps=steps) for key in keys),
    )


def _sparse(name: str, feature: SparseFeature) -> dict[str, Recipe]:
    keys = [(key, "int64") for key in feature.index_key] + [(feature.value_key, feature.dtype)]
    parts = tuple(ragged_part(key, dtype) for key, dtype in keys)
    makes: tuple[Make, ...] = (making.sparse_indices, making.sparse_values, making.sparse_shape)
    columns = feature.columns(name).items()
    return {
        column: Recipe(of, name, feature, parts, make, making.sorted_places)
        for (column, of), make in zip(columns, makes, strict=True)
    }
