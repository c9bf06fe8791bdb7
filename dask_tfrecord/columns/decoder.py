"""Decoder: the keys that each column of a schema needs, and how their outputs become blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from dask_tfrecord.columns import assemble, encoded_values
from dask_tfrecord.columns.assemble import (
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
from dask_tfrecord.columns.ragged_partitions import partitioned
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
class ColumnPlan:
    """Plan of one column.

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
        whole = self.assembler in (assemble.ragged, assemble.items, assemble.fixed_bytes) and self.prepare is None
        return whole and not any(spec.counted for spec in self.specs)


class SchemaPlan:
    """Plans of the columns of a schema. Most features make one column, sparse ones three, feature lists two.

    Columns of the features of items are one group.

    Parameters
    ----------
    schema : Schema
        Schema of the records.

    Attributes
    ----------
    plans : dict of str to ColumnPlan
        Plan of each column.
    columns : Schema
        Features of the columns.

    Raises
    ------
    SchemaError
        If a feature class is not supported for records, feature lists or items, two columns have the same name, or two
        features read one key in different ways.
    """

    __slots__ = ("columns", "plans", "schema")

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.plans = _plans(schema)
        features = {name: plan.feature for name, plan in self.plans.items()}
        sampling = schema.sampling if features.keys() == schema.keys() else None
        classes = {name: names for name, names in schema.classes.items() if name in features}
        groups = schema.groups_of(features)
        if schema.example_features:
            groups[ITEMS] = tuple(name for name, plan in self.plans.items() if plan.unit == "item")
        self.columns = Schema(features, sampling, classes=classes, groups=groups, report=schema.report)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.schema,)

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return type(self).__name__, self.schema.__dask_tokenize__()


class StepCountPlan(SchemaPlan):
    """Plans that count the steps of padded features: one column of integers per feature.

    Parameters
    ----------
    schema : Schema
        Schema of the records.
    names : sequence of str
        Features of class `FixedLenSequenceFeature`, of known or unknown length.
    """

    __slots__ = ("names",)

    def __init__(self, schema: Schema, names: Sequence[str]) -> None:
        # Without sampling: unknown keys are reported when whole records are read.
        super().__init__(schema.replaced(schema))
        self.names = tuple(names)
        self.plans = {name: _plan_counts(self.plans[name]) for name in self.names}
        self.columns = Schema({name: plan.feature for name, plan in self.plans.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        return StepCountPlan, (self.schema, self.names)

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return *super().__dask_tokenize__(), self.names


class SizePlan(SchemaPlan):
    """Plans of the same columns that only measure rows of variable size: splits and shapes are correct, values zero.

    These values are checked and counted, but not kept: zeros that share the memory of one replace them. Of images, only
    the headers are read.

    Parameters
    ----------
    schema : Schema
        Schema of the records.
    """

    __slots__ = ()

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema)
        # A key has one spec: its values are kept for all columns if one of them needs them.
        needed = {spec for plan in self.plans.values() for spec in _needed_specs(plan)}
        self.plans = {name: _plan_sizes(plan, needed) for name, plan in self.plans.items()}


def _needed_specs(plan: ColumnPlan) -> tuple[KeySpec, ...]:
    """Return the specs whose values are kept, or determine the sizes of rows."""
    column = plan.feature
    if plan.assembler is assemble.lengths:
        return ()
    if not (column.ragged_rank or column.own_shapes or column.is_bytes or isinstance(plan.parsed, SparseFeature)):
        return plan.specs
    match plan.parsed:
        case ImageFeature() | TextFeature():
            # The native decoder checks UTF-8 only in values that it keeps.
            return plan.specs
        case RawFeature() | TensorFeature() if plan.assembler in (
            encoded_values.inflated_values,
            encoded_values.tensor_values,
        ):
            return plan.specs
        case RawFeature() if plan.parsed.stored_dtype.kind == "b":
            return plan.specs
        case SparseFeature():
            return plan.specs[:-1]
        case RaggedFeature():
            return plan.specs[1:] if plan.parsed.values is None else plan.specs
    return ()


def _plan_sizes(plan: ColumnPlan, needed: Set[KeySpec]) -> ColumnPlan:
    specs = tuple(spec if spec in needed else replace(spec, counted=True) for spec in plan.specs)
    column = plan.feature
    zeros = isinstance(column, ImageFeature) and (column.own_shapes or column.ragged_rank)
    return replace(plan, specs=specs, assembler=encoded_values.image_sizes if zeros else plan.assembler)


def _plan_counts(plan: ColumnPlan) -> ColumnPlan:
    assembler = assemble.lengths if plan.specs[0].steps else assemble.value_steps
    specs = tuple(replace(spec, counted=True) for spec in plan.specs)
    return replace(plan, feature=FixedLenFeature((), "int64"), specs=specs, assembler=assembler)


def _plans(schema: Schema) -> dict[str, ColumnPlan]:
    plans: dict[str, ColumnPlan] = {}
    for name, feature in schema.items():
        if not schema.has_steps(name):
            found = _plan_feature(name, feature)
        elif schema.message == "SequenceExample":
            found = _plan_feature_list(name, feature)
        else:
            found = {name: _plan_item(name, schema.key_of(name), feature)}
        for column, plan in found.items():
            if column in plans:
                raise SchemaError(
                    f"the columns of features {plans[column].source!r} and {name!r} would both be {column!r}"
                )
            plans[column] = plan
    for plan in plans.values():
        _check_axes(plan)
    _check_keys(plans)
    return plans


def _check_axes(plan: ColumnPlan) -> None:
    """Refuse shapes with more axes than a NumPy array, the axis of rows included."""
    feature = plan.feature
    if isinstance(feature, FixedLenSequenceFeature):
        # `item_shape` raises until the length is counted.
        axes, rows = 1 + len(feature.shape), 1
    else:
        axes, rows = (feature.own_shapes, 0) if feature.own_shapes else (len(feature.item_shape), 1)
    if axes + rows > _MAX_AXES:
        raise SchemaError(
            f"feature {plan.source!r}: {type(plan.parsed).__name__} has a shape of {axes} dimensions; a NumPy "
            f"array has at most {_MAX_AXES}{', one of them for the rows' if rows else ''}. Use "
            f"FixedLenFeature((), 'bytes') for the bytes of a tensor, or a flat shape for the values of a list"
        )


def _check_keys(plans: Mapping[str, ColumnPlan]) -> None:
    expected: dict[tuple[str, bool], tuple[KeySpec, str]] = {}
    for plan in plans.values():
        for spec in plan.specs:
            other, source = expected.setdefault((spec.key, spec.steps), (spec, plan.source))
            if other != spec:
                raise SchemaError(
                    f"features {source!r} and {plan.source!r} read the key {spec.key!r} in different ways, but a "
                    f"key has one definition: {other.layout.name.lower()} {other.dtype} and {spec.layout.name.lower()} "
                    f"{spec.dtype}"
                )


def _plan_feature(name: str, feature: Feature) -> dict[str, ColumnPlan]:
    """Plan the columns of a feature of an Example, or of a context."""
    if isinstance(feature, SparseFeature):
        return _plan_sparse(name, feature)
    specs, assembler = _specs_of_feature(name, feature)
    return {name: ColumnPlan(feature, name, feature, specs, assembler)}


def _specs_of_feature(name: str, feature: Feature) -> tuple[tuple[KeySpec, ...], Assemble | None]:
    match feature:
        case FixedLenFeature():
            return (fixed_spec(name, feature),), assemble.fixed_bytes if feature.is_bytes else None
        case VarLenFeature() if feature.ragged_rank == 1:
            return (ragged_spec(name, feature.dtype, math.prod(feature.item_shape)),), assemble.ragged
        case FixedLenSequenceFeature() if feature.allow_missing:
            return (ragged_spec(name, feature.dtype, math.prod(feature.shape)),), assemble.padded_values
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
                encoded_values.arrays if feature.own_shapes else assemble.fixed_bytes if feature.is_bytes else None
            )
            return (tensor_spec(name, feature),), assembler
        case ImageFeature():
            return (bytes_spec(name),), encoded_values.image_values
        case TextFeature():
            return (bytes_spec(name, feature),), encoded_values.text
    hint = "allow_missing=True, as in TensorFlow" if isinstance(feature, FixedLenSequenceFeature) else "one open size"
    raise SchemaError(f"feature {name!r}: {feature} needs {hint}, because an Example lists values without steps")


def _plan_feature_list(name: str, feature: Feature) -> dict[str, ColumnPlan]:
    """Plan the columns of a feature list: its steps, and their number."""
    if isinstance(feature, FixedLenSequenceFeature):
        spec = steps_spec(name, feature.dtype, math.prod(feature.shape), optional=feature.allow_missing)
        plan = ColumnPlan(feature, name, feature, (spec,), assemble.padded_steps, unit="step")
    else:
        steps = None if getattr(feature, "default_value", None) is not None else _steps_of_feature(name, feature)
        if steps is None:
            raise SchemaError(
                f"feature {name!r}: {feature} is not supported in sequence_features, which accept "
                f"FixedLenSequenceFeature, VarLenFeature, RaggedFeature, and one RawFeature, TensorFeature, "
                f"ImageFeature or TextFeature per step, without count and default_value"
            )
        plan = ColumnPlan(steps[0], name, feature, *steps[1:], unit="step")
    lengths = ColumnPlan(FixedLenFeature((), "int64"), name, feature, plan.specs[:1], assemble.lengths, unit="step")
    return {name: plan, f"{name}.lengths": lengths}


def _plan_item(name: str, key: str, feature: Feature) -> ColumnPlan:
    """Plan the column of a feature of items: a row of items for each record."""
    if isinstance(feature, FixedLenFeature) and 0 not in feature.shape:
        column = VarLenFeature(feature.dtype, shape=(-1, *feature.shape))
        spec = replace(fixed_spec(key, feature), steps=True)
        return ColumnPlan(column, name, feature, (spec,), assemble.items, unit="item")
    steps = _steps_of_feature(key, feature)
    if steps is None:
        raise SchemaError(
            f"feature {name!r}: {feature} is not supported in example_features, which accept FixedLenFeature of at "
            f"least one value, VarLenFeature, RaggedFeature, and one RawFeature, TensorFeature, ImageFeature or "
            f"TextFeature per item, without count{_ITEM_HINTS.get(type(feature), '')}"
        )
    return ColumnPlan(steps[0], name, feature, *steps[1:], unit="item")


def _steps_of_feature(key: str, feature: Feature) -> tuple[Feature, tuple[KeySpec, ...], Assemble] | None:
    """Return column, key specs and assembler of steps or items of one feature; None if it is not supported."""
    match feature:
        case VarLenFeature() if feature.ragged_rank == 1:
            spec = ragged_spec(key, feature.dtype, math.prod(feature.item_shape), steps=True)
            return VarLenFeature(feature.dtype, shape=(-1, *feature.shape)), (spec,), assemble.ragged
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


def _plan_sparse(name: str, feature: SparseFeature) -> dict[str, ColumnPlan]:
    keys = [(key, "int64") for key in feature.index_key] + [(feature.value_key, feature.dtype)]
    specs = tuple(ragged_spec(key, dtype) for key, dtype in keys)
    assemblers: tuple[Assemble, ...] = (assemble.sparse_indices, assemble.sparse_values, assemble.sparse_shape)
    columns = feature.columns(name).items()
    return {
        column: ColumnPlan(of, name, feature, specs, assembler, assemble.sorted_indices)
        for (column, of), assembler in zip(columns, assemblers, strict=True)
    }


class LocationPlan(SchemaPlan):
    """Plan of columns that hold the byte offset of each value in the stream of a shard.

    Parameters
    ----------
    schema : Schema
        Schema of the records.

    Raises
    ------
    SchemaError
        If the values of a feature are not contiguous in a record, see `why_not_located`.
    """

    __slots__ = ()

    def __init__(self, schema: Schema) -> None:
        # Without sampling: unknown keys are reported when whole records are read.
        super().__init__(schema.replaced(schema))
        offset = FixedLenFeature((), "int64")
        for name, feature in schema.items():
            if not isinstance(feature, FixedLenFeature | RawFeature) or why_not_located(name, schema) is not None:
                raise SchemaError(f"feature {name!r}: {why_not_located(name, schema)}")
            self.plans[name] = ColumnPlan(offset, name, feature, (located_spec(name, feature),), None)
        self.columns = Schema(dict.fromkeys(schema, offset))


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
