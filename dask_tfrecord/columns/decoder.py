"""Decoder: the keys that each column of a schema needs, and how their outputs become blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from dask_tfrecord.columns import blocks, encoded_values
from dask_tfrecord.columns.blocks import (
    Assemble,
    KeySpec,
    Prepare,
    bytes_spec,
    fixed_spec,
    located_spec,
    ragged_spec,
    raw_spec,
    steps_spec,
    tensor_spec,
    values_spec,
)
from dask_tfrecord.columns.items import partitioned
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features import (
    Encoded,
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
from dask_tfrecord.schema import ITEMS, Schema

# Limit of NumPy.
_MAX_AXES = 64


@dataclass(frozen=True, slots=True)
class ColumnDecoder:
    """Keys of one column, and the assembly of its blocks.

    Attributes
    ----------
    feature : Feature
        Feature of the column: dtype and shape of its blocks.
    source : str
        Name of the schema's feature that the column belongs to.
    parsed : Feature
        The schema's feature.
    specs : tuple of KeySpec
        Keys to extract.
    assembler : callable or None
        Function that assembles a block; None if the decoder writes the only key directly into an array.
    prepare : callable, optional
        Function that processes the outputs before `assembler`, once for all columns of a feature.
    unit : str, default "value"
        Name of what a row consists of, for errors: "value", "step" or "item".
    """

    feature: Feature
    source: str
    parsed: Feature
    specs: tuple[KeySpec, ...]
    assembler: Assemble | None
    prepare: Prepare | None = None
    unit: str = "value"

    @property
    def keeps_values(self) -> bool:
        """The flat values of its blocks are the unchanged output of the decoder."""
        whole = self.assembler in (blocks.ragged, blocks.items, blocks.fixed_bytes) and self.prepare is None
        return whole and not any(spec.counted for spec in self.specs)


class Decoder:
    """Decoder of the records of a schema: the columns, their keys, and what is read of them.

    Most features make one column, sparse ones three, feature lists two. Columns of the features of items are one group.

    Parameters
    ----------
    schema : Schema
        Schema of the records.
    measure : {"sizes", "steps", "offsets"}, optional
        "sizes": the same columns, for their sizes. Values of rows of variable size are checked and counted, but not
        kept: zeros that share the memory of one replace them. Of images, only the headers are read.
        "steps": the number of steps of each padded feature, of known or unknown length.
        "offsets": the byte offset of each value in the stream of its shard.

    Raises
    ------
    SchemaError
        If a feature class is not supported for records, feature lists or items, two columns have the same name, two
        features read one key in different ways, or, for offsets, values are not contiguous; see `why_not_located`.
    """

    __slots__ = ("columns", "decoders", "measure", "schema")

    def __init__(self, schema: Schema, measure: str | None = None) -> None:
        self.measure = measure
        if measure in ("steps", "offsets"):
            # Without sampling: unknown keys are reported when whole records are read.
            self.schema = schema.replaced(schema)
            self.decoders = _located(schema) if measure == "offsets" else _step_counts(_decoders(schema))
            self.columns = Schema({name: column.feature for name, column in self.decoders.items()})
            return
        self.schema = schema
        self.decoders = _decoders(schema)
        features = {name: column.feature for name, column in self.decoders.items()}
        sampling = schema.sampling if features.keys() == schema.keys() else None
        classes = {name: names for name, names in schema.classes.items() if name in features}
        groups = schema.groups_of(features)
        if schema.example_features:
            groups[ITEMS] = tuple(name for name, column in self.decoders.items() if column.unit == "item")
        self.columns = Schema(features, sampling, classes=classes, groups=groups, report=schema.report)
        if measure == "sizes":
            # A key has one spec: its values are kept for all columns if one of them needs them.
            needed = {spec for column in self.decoders.values() for spec in _needed_specs(column)}
            self.decoders = {name: _sized(column, needed) for name, column in self.decoders.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return Decoder, (self.schema, self.measure)

    def __dask_tokenize__(self) -> tuple[object, ...]:
        # Stores hold tokens: the name is that of their format.
        return "SchemaPlan", self.schema.__dask_tokenize__(), *([self.measure] if self.measure else [])


def _needed_specs(column: ColumnDecoder) -> tuple[KeySpec, ...]:
    """Return the specs whose values are kept, or determine the sizes of rows."""
    made = column.feature
    if column.assembler is blocks.lengths:
        return ()
    if not (made.ragged_rank or made.own_shapes or made.is_bytes or isinstance(column.parsed, SparseFeature)):
        return column.specs
    match column.parsed:
        case ImageFeature() | TextFeature():
            # The native decoder checks UTF-8 only in values that it keeps.
            return column.specs
        case RawFeature() | TensorFeature() if column.assembler in (
            encoded_values.inflated_values,
            encoded_values.tensor_values,
        ):
            return column.specs
        case RawFeature() if column.parsed.stored_dtype.kind == "b":
            return column.specs
        case SparseFeature():
            return column.specs[:-1]
        case RaggedFeature():
            return column.specs[1:] if column.parsed.values is None else column.specs
    return ()


def _sized(column: ColumnDecoder, needed: Set[KeySpec]) -> ColumnDecoder:
    specs = tuple(spec if spec in needed else replace(spec, counted=True) for spec in column.specs)
    zeros = isinstance(column.feature, ImageFeature) and (column.feature.own_shapes or column.feature.ragged_rank)
    return replace(column, specs=specs, assembler=encoded_values.image_sizes if zeros else column.assembler)


def _step_counts(columns: Mapping[str, ColumnDecoder]) -> dict[str, ColumnDecoder]:
    """Return the columns that count the steps of padded features."""
    counted = {}
    for name, column in columns.items():
        if name == column.source and isinstance(column.parsed, FixedLenSequenceFeature):
            assembler = blocks.lengths if column.specs[0].steps else blocks.value_steps
            specs = tuple(replace(spec, counted=True) for spec in column.specs)
            counted[name] = replace(column, feature=FixedLenFeature((), "int64"), specs=specs, assembler=assembler)
    return counted


def _decoders(schema: Schema) -> dict[str, ColumnDecoder]:
    columns: dict[str, ColumnDecoder] = {}
    for name, feature in schema.items():
        if not schema.has_steps(name):
            found = _feature_columns(name, feature)
        elif schema.message == "SequenceExample":
            found = _feature_list_columns(name, feature)
        else:
            found = {name: _item_column(name, schema.key_of(name), feature)}
        for label, column in found.items():
            if label in columns:
                raise SchemaError(
                    f"the columns of features {columns[label].source!r} and {name!r} would both be {label!r}"
                )
            columns[label] = column
    for column in columns.values():
        _check_axes(column)
    _check_keys(columns)
    return columns


def _check_axes(column: ColumnDecoder) -> None:
    """Refuse shapes with more axes than a NumPy array, the axis of rows included."""
    feature = column.feature
    if isinstance(feature, FixedLenSequenceFeature):
        # `item_shape` raises until the length is counted.
        axes, rows = 1 + len(feature.shape), 1
    else:
        axes, rows = (feature.own_shapes, 0) if feature.own_shapes else (len(feature.item_shape), 1)
    if axes + rows > _MAX_AXES:
        raise SchemaError(
            f"feature {column.source!r}: {type(column.parsed).__name__} has a shape of {axes} dimensions; a NumPy "
            f"array has at most {_MAX_AXES}{', one of them for the rows' if rows else ''}. Use "
            f"FixedLenFeature((), 'bytes') for the bytes of a tensor, or a flat shape for the values of a list"
        )


def _check_keys(columns: Mapping[str, ColumnDecoder]) -> None:
    expected: dict[tuple[str, bool], tuple[KeySpec, str]] = {}
    for column in columns.values():
        for spec in column.specs:
            other, source = expected.setdefault((spec.key, spec.steps), (spec, column.source))
            if other != spec:
                raise SchemaError(
                    f"features {source!r} and {column.source!r} read the key {spec.key!r} in different ways, but a "
                    f"key has one definition: {other.layout.name.lower()} {other.dtype} and {spec.layout.name.lower()} "
                    f"{spec.dtype}"
                )


def _feature_columns(name: str, feature: Feature) -> dict[str, ColumnDecoder]:
    """Return the columns of a feature of an Example, or of a context."""
    if isinstance(feature, SparseFeature):
        return _sparse_columns(name, feature)
    specs, assembler = _specs_of_feature(name, feature)
    return {name: ColumnDecoder(feature, name, feature, specs, assembler)}


def _specs_of_feature(name: str, feature: Feature) -> tuple[tuple[KeySpec, ...], Assemble | None]:
    match feature:
        case FixedLenFeature():
            return (fixed_spec(name, feature),), blocks.fixed_bytes if feature.is_bytes else None
        case VarLenFeature() if feature.ragged_rank == 1:
            return (ragged_spec(name, feature.dtype, math.prod(feature.item_shape)),), blocks.ragged
        case FixedLenSequenceFeature() if feature.allow_missing:
            return (ragged_spec(name, feature.dtype, math.prod(feature.shape)),), blocks.padded_values
        case RaggedFeature():
            return _ragged_specs(name, feature, steps=False), partitioned
        case Encoded() if feature.count is not None:
            spec = values_spec(name, feature.count, text=isinstance(feature, TextFeature))
            return (spec,), encoded_values.values_assembler(feature)
        case RawFeature() if feature.compression_type is not None:
            return (bytes_spec(name),), encoded_values.inflated_values
        case RawFeature() if feature.own_shapes:
            return (bytes_spec(name),), encoded_values.raw_arrays
        case RawFeature() if feature.ragged_rank:
            return (bytes_spec(name),), encoded_values.raw_rows
        case RawFeature():
            return (raw_spec(name, feature),), None
        case TensorFeature():
            assembler = (
                encoded_values.arrays if feature.own_shapes else blocks.fixed_bytes if feature.is_bytes else None
            )
            return (tensor_spec(name, feature),), assembler
        case ImageFeature():
            return (bytes_spec(name),), encoded_values.image_values
        case TextFeature():
            return (bytes_spec(name, feature),), encoded_values.text
    hint = "allow_missing=True, as in TensorFlow" if isinstance(feature, FixedLenSequenceFeature) else "one open size"
    raise SchemaError(f"feature {name!r}: {feature} needs {hint}, because an Example lists values without steps")


def _feature_list_columns(name: str, feature: Feature) -> dict[str, ColumnDecoder]:
    """Return the columns of a feature list: its steps, and their number."""
    if isinstance(feature, FixedLenSequenceFeature):
        spec = steps_spec(name, feature.dtype, math.prod(feature.shape), optional=feature.allow_missing)
        column = ColumnDecoder(feature, name, feature, (spec,), blocks.padded_steps, unit="step")
    else:
        steps = None if getattr(feature, "default_value", None) is not None else _steps_of_feature(name, feature)
        if steps is None:
            raise SchemaError(
                f"feature {name!r}: {feature} is not supported in sequence_features, which accept "
                f"FixedLenSequenceFeature, VarLenFeature, RaggedFeature, and one RawFeature, TensorFeature, "
                f"ImageFeature or TextFeature per step, without count and default_value"
            )
        column = ColumnDecoder(steps[0], name, feature, *steps[1:], unit="step")
    lengths = ColumnDecoder(FixedLenFeature((), "int64"), name, feature, column.specs[:1], blocks.lengths, unit="step")
    return {name: column, f"{name}.lengths": lengths}


def _item_column(name: str, key: str, feature: Feature) -> ColumnDecoder:
    """Return the column of a feature of items: a row of items for each record."""
    if isinstance(feature, FixedLenFeature) and 0 not in feature.shape:
        column = VarLenFeature(feature.dtype, shape=(-1, *feature.shape))
        spec = replace(fixed_spec(key, feature), steps=True)
        return ColumnDecoder(column, name, feature, (spec,), blocks.items, unit="item")
    steps = _steps_of_feature(key, feature)
    if steps is None:
        raise SchemaError(
            f"feature {name!r}: {feature} is not supported in example_features, which accept FixedLenFeature of at "
            f"least one value, VarLenFeature, RaggedFeature, and one RawFeature, TensorFeature, ImageFeature or "
            f"TextFeature per item, without count{_ITEM_HINTS.get(type(feature), '')}"
        )
    return ColumnDecoder(steps[0], name, feature, *steps[1:], unit="item")


def _steps_of_feature(key: str, feature: Feature) -> tuple[Feature, tuple[KeySpec, ...], Assemble] | None:
    """Return column, key specs and assembler of steps or items of one feature; None if it is not supported."""
    match feature:
        case VarLenFeature() if feature.ragged_rank == 1:
            spec = ragged_spec(key, feature.dtype, math.prod(feature.item_shape), steps=True)
            return VarLenFeature(feature.dtype, shape=(-1, *feature.shape)), (spec,), blocks.ragged
        case RaggedFeature() if feature.values is None:
            column = VarLenFeature(feature.dtype, shape=(-1, *feature.shape))
            return column, _ragged_specs(key, feature, steps=True), partitioned
        case ImageFeature() if feature.count in (None, -1):
            column_of_images = replace(feature, shape=(-1, *feature.value_shape))
            return column_of_images, (bytes_spec(key, steps=True),), encoded_values.image_values
        case TextFeature() if feature.count is None:
            return TextFeature(count=-1), (bytes_spec(key, feature, steps=True),), encoded_values.text_values
        case RawFeature() | TensorFeature() if feature.count is None:
            return replace(feature, count=-1), (bytes_spec(key, steps=True),), encoded_values.values_assembler(feature)
    return None


_ITEM_HINTS = {
    FixedLenSequenceFeature: "; VarLenFeature(dtype, shape=(-1, …)) reads lists of any length",
    SparseFeature: "; VarLenFeature reads indices and values",
}


def _ragged_specs(name: str, feature: RaggedFeature, *, steps: bool) -> tuple[KeySpec, ...]:
    """Return the spec of the values, then those of the keyed partitions."""
    keys = [partition.key for partition in feature.partitions if isinstance(partition, KeyedPartition)]
    values = ragged_spec(name if feature.value_key is None else feature.value_key, feature.dtype, steps=steps)
    return (
        replace(values, text=isinstance(feature.values, TextFeature)),
        *(ragged_spec(key, "int64", steps=steps) for key in keys),
    )


def _sparse_columns(name: str, feature: SparseFeature) -> dict[str, ColumnDecoder]:
    keys = [(key, "int64") for key in feature.index_key] + [(feature.value_key, feature.dtype)]
    specs = tuple(ragged_spec(key, dtype) for key, dtype in keys)
    assemblers: tuple[Assemble, ...] = (blocks.sparse_indices, blocks.sparse_values, blocks.sparse_shape)
    columns = feature.columns(name).items()
    return {
        column: ColumnDecoder(of, name, feature, specs, assembler, blocks.sorted_indices)
        for (column, of), assembler in zip(columns, assemblers, strict=True)
    }


def _located(schema: Schema) -> dict[str, ColumnDecoder]:
    offset = FixedLenFeature((), "int64")
    located = {}
    for name, feature in schema.items():
        if not isinstance(feature, FixedLenFeature | RawFeature) or why_not_located(name, schema) is not None:
            raise SchemaError(f"feature {name!r}: {why_not_located(name, schema)}")
        located[name] = ColumnDecoder(offset, name, feature, (located_spec(name, feature),), None)
    return located


def location_nbytes(feature: Feature) -> int:
    """Return the bytes of a record's values, for a feature whose values are contiguous."""
    stored = feature.stored_dtype if isinstance(feature, RawFeature) else feature.item_dtype
    return math.prod(feature.item_shape) * stored.itemsize


def why_not_located(name: str, schema: Schema) -> str | None:
    """Return the reason why the values of a feature are not a fixed number of contiguous bytes in every record.

    Parameters
    ----------
    name : str
        Name of the feature.
    schema : Schema
        Schema of the feature.

    Returns
    -------
    str or None
        None if they are, as far as the schema determines it: floats may be packed or not, record by record.
    """
    feature = schema[name]
    if schema.has_steps(name):
        values = "steps of a feature list" if schema.message == "SequenceExample" else "items of a list of Examples"
        return f"the {values} are not contiguous"
    reason = _why(feature)
    if reason is None and location_nbytes(feature) == 0:
        return "its values take no bytes"
    return reason


def _why(feature: Feature) -> str | None:
    match feature:
        case FixedLenFeature() if feature.is_bytes:
            return "its bytes may have any length: use RawFeature(shape, dtype) if they are an array"
        case FixedLenFeature() if feature.item_dtype.kind in "biu":
            return "integers are stored as varints, of one to ten bytes each"
        case FixedLenFeature():
            stored = feature.dtype == "float32"
            return None if stored else f"the file stores float32, which is cast to {feature.dtype}: use 'float32'"
        case RawFeature() if feature.compression_type is not None:
            return "its values are compressed"
        case RawFeature() if feature.count is not None:
            return "its arrays are in several places"
        case RawFeature() if -1 not in feature.shape:
            return None
        case TensorFeature():
            return "a serialized tensor has several encodings of its values"
        case ImageFeature():
            return "images are encoded"
        case TextFeature():
            return "text varies in length"
    return "its rows vary in length"
