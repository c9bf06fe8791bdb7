"""TensorFlow Metadata: features from and to a `schema.pbtxt`, which TFX stores next to records.

For each feature, the file specifies its kind, its shape or number of values, and its presence. Tensor representations
specify the features that form a sparse or ragged tensor, and default values. Domains describe the meaning of values and
are ignored. The rules follow the parsing specs of TFX and the comments of `schema.proto`, see
https://github.com/tensorflow/metadata/blob/master/tensorflow_metadata/proto/v0/schema.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dask_tfrecord.errors import FEATURES, SchemaError, Spelled, near_misses
from dask_tfrecord.features import (
    Encoded,
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    RowLengths,
    SparseFeature,
    UniformRowLength,
    VarLenFeature,
)
from dask_tfrecord.features.listed import Listed
from dask_tfrecord.messages import MetadataSchema, ParseError, metadata_text, parse_metadata

# Name of the struct that holds the feature lists of a SequenceExample.
SEQUENCE = "##SEQUENCE##"
# Feature types in the order of their numbers, the kinds of lists, and the field of a default value for each kind.
TYPES = ("TYPE_UNKNOWN", "BYTES", "INT", "FLOAT", "STRUCT")
_KINDS = {"BYTES": "bytes", "INT": "int64", "FLOAT": "float32"}
DEFAULTS = {"float32": "float_value", "int64": "int_value", "bytes": "bytes_value"}
# Lifecycle stages in which records may lack a feature: PLANNED, ALPHA, DEPRECATED, DEBUG_ONLY, DISABLED.
_OPTIONAL_STAGES = (1, 2, 5, 6, 7)


def read_pbtxt(text: str) -> dict[str, Any]:
    """Read a `schema.pbtxt`.

    A feature that every record has (presence with `min_fraction` 1) is a `FixedLenFeature` if its shape or its number
    of values is fixed. Every other feature is a `VarLenFeature`. The struct ``##SEQUENCE##`` holds the feature lists of
    a SequenceExample. Sparse features and the tensor representations of the group ``""`` become a `SparseFeature`, a
    `RaggedFeature`, or a `FixedLenFeature` with a default value. Integers stay int64, floats float32 and strings bytes,
    regardless of their domain.

    Parameters
    ----------
    text : str
        A `tensorflow.metadata.v0.Schema` in protobuf text format. Fields that do not concern storage, and fields of
        newer releases, are ignored.

    Returns
    -------
    dict
        Arguments of `Schema`: features by name, and features of feature lists, None for Examples.

    Raises
    ------
    SchemaError
        If the text is invalid, or a feature has a type that can't be read as a column.

    Examples
    --------
    >>> text = 'feature { name: "x" type: INT presence { min_fraction: 1 } value_count { min: 2 max: 2 } }'
    >>> read_pbtxt(text)["features"]
    {'x': FixedLenFeature((2,), 'int64')}
    """
    message = None
    try:
        message = parse_metadata(text)
    except ParseError as error:
        raise SchemaError(_not_a_schema(text) + f" (as text of TensorFlow Metadata, line {error})") from error
    except RecursionError:
        # The SchemaError is raised below: with this error as its context it could not be pickled.
        pass
    if message is None:
        raise SchemaError(_not_a_schema(text) + " (as text of TensorFlow Metadata, it is nested too deeply)")
    return _TFMDReader(message).arguments()


def _not_a_schema(text: str) -> str:
    """Return the error about a text other than a schema, and what to write."""
    return f"this is not a schema file: it begins with {text[:40]!r}. Pass a file that " + Spelled(
        "Schema.to_json or Schema.to_pbtxt has written, or the features.json of a TFDS data set; or write the features "
        "in Python, as in features={'label': FixedLenFeature((), 'int64')}",
        "dask-tfrecord schema PATTERN --format json > features.json makes, or the features.json of a TFDS data set",
    )


class _TFMDReader:
    """Conversion of one message; `arguments` returns the result."""

    def __init__(self, message: Any) -> None:
        self._message = message
        # An empty struct is a SequenceExample without feature lists.
        self._structs = [feature for feature in message.feature if feature.name == SEQUENCE]
        self.context: dict[str, Feature] = {
            each.name: _feature(each) for each in message.feature if each.name != SEQUENCE
        }
        self.sequences: dict[str, Feature] = {
            each.name: VarLenFeature(_stored_type(each))
            for struct in self._structs
            for each in struct.struct_domain.feature
        }
        self._domains = {each.name: each.int_domain for each in message.feature if each.HasField("int_domain")}
        # Columns that are parts of a sparse or ragged tensor, and those that are also a feature of their own.
        self._merged: set[str] = set()
        self._kept: set[str] = set()

    def arguments(self) -> dict[str, Any]:
        """Apply tensor representations and sparse features, and return the arguments of `Schema`."""
        for struct in self._structs:
            if struct.struct_domain.sparse_feature:
                raise SchemaError("sparse features of feature lists can't be read: give sequence_features=")
        group = self._message.tensor_representation_group
        tensors = group[""].tensor_representation if "" in group else {}
        combined: dict[str, Feature] = {}
        for name in sorted(tensors):
            with feature_errors(name):
                combined |= self._tensor(name, tensors[name])
        for sparse in self._message.sparse_feature:
            if not _optional(sparse) and sparse.name not in combined:
                index = (each.name for each in sparse.index_feature)
                value = sparse.value_feature.name
                with feature_errors(sparse.name):
                    combined[sparse.name] = self._pick(index, value, sparse.dense_shape, sparse.is_sorted)
        merged = self._merged - self._kept
        context = {name: each for name, each in self.context.items() if name not in merged} | combined
        return {"features": context, "sequence_features": self.sequences if self._structs else None}

    def _tensor(self, name: str, tensor: Any) -> dict[str, Feature]:
        """Apply one tensor representation; return the feature that combines several columns, if it is one."""
        if tensor.HasField("dense_tensor"):
            dense = tensor.dense_tensor
            column, kind = dense.column_name, self._kind(dense.column_name)
            default = getattr(dense.default_value, DEFAULTS[kind]) if dense.HasField("default_value") else None
            self.context[column] = FixedLenFeature(_domain_sizes(dense.shape), kind, default)
            self._kept.add(column)
        elif tensor.HasField("varlen_sparse_tensor"):
            column = tensor.varlen_sparse_tensor.column_name
            self.context[column] = VarLenFeature(self._kind(column))
            self._kept.add(column)
        elif tensor.HasField("sparse_tensor"):
            sparse = tensor.sparse_tensor
            return {
                name: self._pick(
                    sparse.index_column_names, sparse.value_column_name, sparse.dense_shape, sparse.already_sorted
                )
            }
        elif tensor.HasField("ragged_tensor"):
            return self._ragged(name, tensor.ragged_tensor)
        else:
            raise SchemaError("the kind of its tensor representation is unknown")
        return {}

    def _ragged(self, name: str, tensor: Any) -> dict[str, Feature]:
        """Read a ragged tensor: its feature, or a list or shape where that is the same."""
        *struct, column = list(tensor.feature_path.step) or [""]
        if struct not in ([], [SEQUENCE]):
            raise SchemaError(f"the values at {'/'.join([*struct, column])} are in a struct, which records can't hold")
        partitions = tuple(
            UniformRowLength(each.uniform_row_length)
            if each.HasField("uniform_row_length")
            else RowLengths(each.row_length)
            for each in tensor.partition
        )
        keys = [each.key for each in partitions if isinstance(each, RowLengths)]
        columns = self.sequences if struct else self.context
        kind = self._kind(column, columns)
        if name == column and not keys:
            # Uniform rows are equivalent to a shape.
            sizes = tuple(each.length for each in partitions if isinstance(each, UniformRowLength))
            columns[name] = VarLenFeature(kind, shape=(-1, *sizes)) if sizes else RaggedFeature(kind)
            self._kept |= set() if struct else {name}
            return {}
        for key in keys:
            self._kind(key, columns)
        feature = RaggedFeature(kind, None if name == column else column, partitions)
        if not struct:
            self._merged |= {column, *keys} - {name}
            return {name: feature}
        for key in (column, *keys):
            self.sequences.pop(key, None)
        self.sequences[name] = feature
        return {}

    def _pick(self, index: Iterable[str], value: str, shape: Any, in_order: bool) -> Feature:
        """Make a SparseFeature of the keys with indices and the key with values."""
        keys = tuple(index)
        for key in keys:
            self._kind(key)
        sizes = tuple(dim.size for dim in shape.dim) or tuple(self._size(key) for key in keys)
        self._merged |= {*keys, value}
        return SparseFeature(keys, value, self._kind(value), sizes, in_order)

    def _size(self, key: str) -> int:
        """Return the length of an axis from the domain of its indices."""
        domain = self._domains.get(key)
        if domain is None or not domain.HasField("max") or domain.min != 0:
            raise SchemaError(f"the axis of {key!r} has an unknown length: set dense_shape or an int_domain")
        return int(domain.max) + 1

    def _kind(self, column: str, columns: Mapping[str, Any] | None = None) -> str:
        columns = self.context if columns is None else columns
        if column not in columns:
            raise SchemaError(f"feature {column!r} does not exist{near_misses(column, columns)}")
        return str(columns[column].dtype)


@contextmanager
def feature_errors(name: str) -> Iterator[None]:
    """Prefix errors with the name of a feature."""
    try:
        yield
    except SchemaError as error:
        raise SchemaError(f"feature {name!r}: {error.message}") from error


def _feature(message: Any) -> Feature:
    """Return the feature of one column."""
    kind, sizes = _stored_type(message), None
    count = message.value_count
    if message.HasField("shape") and all(dim.HasField("size") and dim.size >= 0 for dim in message.shape.dim):
        sizes = _domain_sizes(message.shape)
    elif not message.HasField("shape") and count.min == count.max > 0:
        sizes = () if count.min == 1 else (count.min,)
    if sizes is None or message.presence.min_fraction < 1 or _optional(message):
        return VarLenFeature(kind)
    return FixedLenFeature(sizes, kind)


def _stored_type(message: Any) -> str:
    """Return the stored type of a feature; refuse types that no column has."""
    name = TYPES[message.type]
    if name not in _KINDS:
        raise SchemaError(
            f"feature {message.name!r} has type {name}, which can't be read as a column: give "
            + FEATURES
            + " without it"
        )
    return _KINDS[name]


def _optional(message: Any) -> bool:
    return bool(message.deprecated) or message.lifecycle_stage in _OPTIONAL_STAGES


def _domain_sizes(shape: Any) -> tuple[int, ...]:
    return tuple(dim.size for dim in shape.dim)


def format_pbtxt(
    features: Mapping[str, Feature],
    sequence_features: Mapping[str, Feature] | None,
    classes: Mapping[str, Sequence[str]],
) -> str:
    """Format features, features of feature lists, and names of classes as the text of a `schema.pbtxt`."""
    message: Any = MetadataSchema()
    # Columns that only occur as parts of a sparse or ragged feature follow the features.
    parts: dict[str, str] = {}
    for name, feature in features.items():
        with feature_errors(name):
            parts |= _add_feature(message, name, feature, classes.get(name))
    for key in parts:
        if key in features and features[key].stored_key in (None, key):
            # Without a representation of its own, a reader would treat this feature as a mere part.
            _add_representation(message, key, features[key])
        elif not any(each.name == key for each in message.feature):
            _add_column(message, key, parts[key])
    if sequence_features is not None:
        struct = message.feature.add(name=SEQUENCE, type=TYPES.index("STRUCT")).struct_domain
        for name, feature in sequence_features.items():
            with feature_errors(name):
                _add_list(message, struct, name, feature)
    return metadata_text(message)


def _add_feature(schema: Any, name: str, feature: Feature, labels: Sequence[str] | None) -> dict[str, str]:
    """Add a feature of a record; return the kinds of the columns that are only its parts, by key."""
    kind = _kind_of(feature)
    key = name if feature.stored_key is None else feature.stored_key
    if isinstance(feature, SparseFeature):
        sparse = schema.sparse_feature.add(name=name, is_sorted=feature.already_sorted or None)
        for size, index in zip(feature.size, feature.index_key, strict=True):
            sparse.dense_shape.dim.add(size=size)
            sparse.index_feature.add(name=index)
        sparse.value_feature.name = feature.value_key
        return {**dict.fromkeys(feature.index_key, "int64"), feature.value_key: kind}
    if isinstance(feature, RaggedFeature):
        parts = {} if key == name else {key: kind}
        if key == name:
            _add_column(schema, name, kind)
        tensor = _add_ragged(schema, name, [key])
        for partition in feature.partitions:
            if isinstance(partition, UniformRowLength):
                tensor.partition.add(uniform_row_length=partition.length)
            elif isinstance(partition, RowLengths):
                tensor.partition.add(row_length=partition.key)
                parts[partition.key] = "int64"
            else:
                raise SchemaError(f"TensorFlow Metadata can't express {partition}, only row lengths")
        return parts
    if any(each.name == key for each in schema.feature):
        # Another feature reads the same values.
        return {}
    column, dtype = _add_column(schema, key, kind), feature.item_dtype
    if feature.tfmd_domain is not None:
        getattr(column, feature.tfmd_domain).SetInParent()
    elif labels and kind == "int64":
        column.int_domain.min, column.int_domain.max, column.int_domain.is_categorical = 0, len(labels) - 1, True
    elif dtype.kind == "b" and kind != "bytes":
        column.bool_domain.SetInParent()
    elif kind != "bytes" and dtype.kind in "iu" and dtype.itemsize < 8:
        limits = np.iinfo(dtype)
        column.int_domain.min, column.int_domain.max = int(limits.min), int(limits.max)
    sizes = _sizes_of(feature)
    if _lists_any_number(feature):
        if sizes:
            _add_representation(schema, key, feature)
    else:
        _add_shape(column, sizes)
        if getattr(feature, "default_value", None) is None:
            column.presence.min_fraction = column.presence.min_count = 1
        else:
            _add_representation(schema, key, feature)
    return dict.fromkeys(getattr(feature, "size_keys", ()), "int64")


def _add_list(schema: Any, struct: Any, name: str, feature: Feature) -> None:
    """Add a feature of feature lists to the struct that holds them."""
    if isinstance(feature, RaggedFeature):
        if feature.partitions:
            raise SchemaError("TensorFlow Metadata can't express partitions of feature lists")
        value = feature.value_key or name
        _add_column(struct, value, feature.stored)
        _add_ragged(schema, name, [SEQUENCE, value])
    elif isinstance(feature, VarLenFeature | FixedLenSequenceFeature):
        _add_column(struct, name, feature.stored)
    else:
        raise SchemaError(f"TensorFlow Metadata can't express {feature} in feature lists")


def _add_representation(schema: Any, name: str, feature: Feature) -> None:
    """Add a tensor representation of the column of a feature, unless the feature has one."""
    if isinstance(feature, RaggedFeature | SparseFeature):
        return
    sizes, default = _sizes_of(feature), getattr(feature, "default_value", None)
    if _lists_any_number(feature):
        if sizes:
            _add_ragged(schema, name, [name], sizes)
        else:
            _tensor_of(schema, name).varlen_sparse_tensor.column_name = name
        return
    dense = _tensor_of(schema, name).dense_tensor
    dense.column_name = name
    _add_shape(dense, sizes)
    if default is not None:
        values = set(np.ravel(np.array(default, object)).tolist())
        if len(values) > 1:
            raise SchemaError(f"TensorFlow Metadata has one default value for all values; got {default}")
        value = values.pop()
        field = DEFAULTS[_kind_of(feature)]
        setattr(dense.default_value, field, value.encode() if isinstance(value, str) else value)


def _kind_of(feature: Feature) -> str:
    """Return the kind of the stored list."""
    return feature.stored if isinstance(feature, Listed) else "bytes"


def _lists_any_number(feature: Feature) -> bool:
    """Return whether the number of stored values differs between records."""
    if isinstance(feature, Encoded):
        return bool(feature.count == -1)
    return isinstance(feature, VarLenFeature | FixedLenSequenceFeature)


def _sizes_of(feature: Feature) -> tuple[int, ...]:
    """Return the shape of a record's stored values, or of one step where their number varies."""
    if isinstance(feature, Encoded):
        return () if feature.count in (None, -1) else (feature.count,)
    if isinstance(feature, VarLenFeature):
        if feature.ragged_rank > 1:
            raise SchemaError(
                f"TensorFlow Metadata can't express {feature}; a RaggedFeature names the keys of row lengths"
            )
        return feature.item_shape
    shape: tuple[int, ...] = feature.shape
    return shape


def _add_column(message: Any, key: str, kind: str) -> Any:
    """Add a column to a schema, or to the struct of feature lists, and return it."""
    return message.feature.add(name=key, type=TYPES.index(next(name for name in _KINDS if _KINDS[name] == kind)))


def _add_shape(message: Any, sizes: Sequence[int]) -> None:
    """Add the shape of the values of a record to a column or a dense tensor."""
    message.shape.SetInParent()
    for size in sizes:
        message.shape.dim.add(size=size)


def _add_ragged(schema: Any, name: str, path: Sequence[str], sizes: Sequence[int] = ()) -> Any:
    """Represent the values at a path as a ragged tensor of uniform inner rows, and return it."""
    tensor = _tensor_of(schema, name).ragged_tensor
    tensor.feature_path.step.extend(path)
    for size in sizes:
        tensor.partition.add(uniform_row_length=size)
    return tensor


def _tensor_of(schema: Any, name: str) -> Any:
    """Return the tensor representation of a name."""
    return schema.tensor_representation_group[""].tensor_representation[name]
