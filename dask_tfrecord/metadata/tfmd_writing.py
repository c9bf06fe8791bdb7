"""Writing of TensorFlow Metadata: a `Schema` as the text of a `schema.pbtxt`, which `tfmd` reads."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features import (
    Encoded,
    FixedLenSequenceFeature,
    ImageFeature,
    RaggedFeature,
    RowLengths,
    SparseFeature,
    TextFeature,
    UniformRowLength,
    VarLenFeature,
)
from dask_tfrecord.messages import MetadataSchema, metadata_text
from dask_tfrecord.metadata.tfmd import DEFAULTS, SEQUENCE, TYPES, feature_errors
from dask_tfrecord.schema import Schema

_NUMBERS = {"bytes": TYPES.index("BYTES"), "int64": TYPES.index("INT"), "float32": TYPES.index("FLOAT")}
_STRUCT = TYPES.index("STRUCT")


def pbtxt(schema: Schema) -> str:
    """Format a schema as the text of a `schema.pbtxt`: see `Schema.to_pbtxt`."""
    if schema.message == "ExampleListWithContext":
        raise SchemaError("TensorFlow Metadata describe Examples and SequenceExamples, not lists of Examples")
    return metadata_text(_TFMDWriter(schema).message)


class _TFMDWriter:
    """Conversion of one schema.

    Attributes
    ----------
    message : MetadataSchema
        Result of the conversion.
    """

    def __init__(self, schema: Schema) -> None:
        self.message: Any = MetadataSchema()
        self._schema = schema
        # Columns that only occur as parts of a sparse or ragged feature follow the features.
        parts: dict[str, str] = {}
        for name, feature in schema.context_features.items():
            with feature_errors(name):
                parts |= self._add(name, feature)
        for key in parts:
            if key not in schema.context_features:
                self.message.feature.add(name=key, type=_NUMBERS[parts[key]])
            elif not isinstance(schema[key], RaggedFeature | SparseFeature):
                # Without a representation of its own, a reader would treat this feature as a mere part.
                self._represent(key, schema[key])
        if schema.sequence_features is not None:
            struct = self.message.feature.add(name=SEQUENCE, type=_STRUCT).struct_domain
            for name, feature in schema.sequence_features.items():
                with feature_errors(name):
                    self._add_list(struct, name, feature)

    def _add(self, name: str, feature: Any) -> dict[str, str]:
        """Add a feature; return the keys of the columns that are its parts, with their kinds."""
        if isinstance(feature, SparseFeature):
            sparse = self.message.sparse_feature.add(name=name)
            for size, key in zip(feature.size, feature.index_key, strict=True):
                sparse.dense_shape.dim.add(size=size)
                sparse.index_feature.add(name=key)
            sparse.value_feature.name = feature.value_key
            if feature.already_sorted:
                sparse.is_sorted = True
            return {**dict.fromkeys(feature.index_key, "int64"), feature.value_key: feature.stored}
        if isinstance(feature, RaggedFeature):
            return self._add_ragged(name, feature)
        column = self.message.feature.add(name=name, type=_NUMBERS[_stored(feature)])
        self._domain(column, feature)
        if not _is_variable(feature):
            self._add_fixed(column, feature)
        elif _steps(feature):
            self._partition(name, name, _steps(feature))
        return {}

    def _add_fixed(self, column: Any, feature: Any) -> None:
        column.shape.SetInParent()
        for size in _listed_shape(feature):
            column.shape.dim.add(size=size)
        if getattr(feature, "default_value", None) is None:
            column.presence.min_fraction = 1
            column.presence.min_count = 1
        else:
            self._represent(column.name, feature)

    def _represent(self, name: str, feature: Any) -> None:
        """Add a tensor representation of a single column, with its default value."""
        if _is_variable(feature):
            if _steps(feature):
                self._partition(name, name, _steps(feature))
            else:
                self._tensor(name).varlen_sparse_tensor.column_name = name
            return
        dense = self._tensor(name).dense_tensor
        dense.column_name = name
        dense.shape.SetInParent()
        for size in _listed_shape(feature):
            dense.shape.dim.add(size=size)
        if feature.default_value is not None:
            kind = _stored(feature)
            values = set(np.ravel(np.array(feature.default_value, object)).tolist())
            if len(values) > 1:
                raise SchemaError(
                    f"TensorFlow Metadata has one default value for all values; got {feature.default_value}"
                )
            value = values.pop()
            setattr(dense.default_value, DEFAULTS[kind], value.encode() if isinstance(value, str) else value)

    def _add_ragged(self, name: str, feature: RaggedFeature) -> dict[str, str]:
        value = name if feature.value_key is None else feature.value_key
        keys = {}
        if value == name:
            self.message.feature.add(name=name, type=_NUMBERS[feature.stored])
        else:
            keys[value] = feature.stored
        tensor = self._partition(name, value, ())
        for each in feature.partitions:
            if isinstance(each, UniformRowLength):
                tensor.partition.add(uniform_row_length=each.length)
            elif isinstance(each, RowLengths):
                tensor.partition.add(row_length=each.key)
                keys[each.key] = "int64"
            else:
                raise SchemaError(f"TensorFlow Metadata can't express {each}, only row lengths")
        return keys

    def _partition(self, name: str, column: str, sizes: tuple[int, ...]) -> Any:
        tensor = self._tensor(name).ragged_tensor
        tensor.feature_path.step.append(column)
        for size in sizes:
            tensor.partition.add(uniform_row_length=size)
        return tensor

    def _tensor(self, name: str) -> Any:
        return self.message.tensor_representation_group[""].tensor_representation[name]

    def _domain(self, column: Any, feature: Any) -> None:
        names = self._schema.classes.get(column.name)
        if isinstance(feature, ImageFeature):
            column.image_domain.SetInParent()
        elif isinstance(feature, TextFeature):
            column.natural_language_domain.SetInParent()
        elif names and _stored(feature) == "int64":
            column.int_domain.min, column.int_domain.max, column.int_domain.is_categorical = 0, len(names) - 1, True
        elif feature.dtype == "bool":
            column.bool_domain.SetInParent()
        elif not isinstance(feature, Encoded) and np.dtype(feature.item_dtype).kind in "iu":
            limits = np.iinfo(feature.item_dtype)
            if limits.bits < 64:
                column.int_domain.min, column.int_domain.max = int(limits.min), int(limits.max)

    def _add_list(self, struct: Any, name: str, feature: Any) -> None:
        if not isinstance(feature, VarLenFeature | FixedLenSequenceFeature | RaggedFeature):
            raise SchemaError(f"TensorFlow Metadata can't express {feature} in feature lists")
        value = getattr(feature, "value_key", None)
        struct.feature.add(name=value or name, type=_NUMBERS[_stored(feature)])
        if isinstance(feature, RaggedFeature):
            if feature.partitions:
                raise SchemaError("TensorFlow Metadata can't express partitions of feature lists")
            tensor = self._partition(name, SEQUENCE, ())
            tensor.feature_path.step.append(value or name)


def _stored(feature: Any) -> str:
    return "bytes" if isinstance(feature, Encoded) else str(feature.stored)


def _listed_shape(feature: Any) -> tuple[int, ...]:
    """Return the shape of the values that a record lists: of the bytes values of encoded arrays."""
    if isinstance(feature, Encoded):
        return () if feature.count is None else (feature.count,)
    shape: tuple[int, ...] = feature.shape
    return shape


def _is_variable(feature: Any) -> bool:
    """Return whether the number of values varies between records."""
    if isinstance(feature, Encoded):
        return bool(feature.count == -1)
    return isinstance(feature, VarLenFeature | FixedLenSequenceFeature)


def _steps(feature: Any) -> tuple[int, ...]:
    """Return the shape of one step of a feature with a variable number of steps."""
    if isinstance(feature, FixedLenSequenceFeature):
        return feature.shape
    if isinstance(feature, Encoded):
        return ()
    if feature.ragged_rank > 1:
        raise SchemaError(f"TensorFlow Metadata can't express {feature}; a RaggedFeature names the keys of row lengths")
    shape: tuple[int, ...] = feature.item_shape
    return shape
