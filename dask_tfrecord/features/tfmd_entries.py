"""Entries of a `Schema` of TensorFlow Metadata: columns, and the tensor representations that combine them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_tfrecord.errors import SchemaError

# Name of the struct that holds the feature lists of a SequenceExample.
SEQUENCE = "##SEQUENCE##"
# Feature types in the order of their numbers, and the field of a default value for each kind.
TYPES = ("TYPE_UNKNOWN", "BYTES", "INT", "FLOAT", "STRUCT")
DEFAULTS = {"float32": "float_value", "int64": "int_value", "bytes": "bytes_value"}
_NUMBERS = {"bytes": TYPES.index("BYTES"), "int64": TYPES.index("INT"), "float32": TYPES.index("FLOAT")}


def add_column(message: Any, key: str, kind: str) -> Any:
    """Add a column to a schema, or to the struct of feature lists, and return it."""
    return message.feature.add(name=key, type=_NUMBERS[kind])


def add_shape(message: Any, sizes: Sequence[int]) -> None:
    """Add the shape of the values of a record to a column or a dense tensor."""
    message.shape.SetInParent()
    for size in sizes:
        message.shape.dim.add(size=size)


def add_domain(column: Any, kind: str, dtype: np.dtype[Any], labels: Sequence[str] | None) -> None:
    """Add a column's domain: class labels, bool, or a small integer's range."""
    if labels and kind == "int64":
        column.int_domain.min, column.int_domain.max, column.int_domain.is_categorical = 0, len(labels) - 1, True
    elif dtype.kind == "b" and kind != "bytes":
        column.bool_domain.SetInParent()
    elif kind != "bytes" and dtype.kind in "iu" and dtype.itemsize < 8:
        limits = np.iinfo(dtype)
        column.int_domain.min, column.int_domain.max = int(limits.min), int(limits.max)


def tensor_of(schema: Any, name: str) -> Any:
    """Return the tensor representation of a name."""
    return schema.tensor_representation_group[""].tensor_representation[name]


def add_dense(schema: Any, column: str, kind: str, sizes: Sequence[int], default: Any) -> None:
    """Represent a column as a dense tensor, with its default value if it has one."""
    dense = tensor_of(schema, column).dense_tensor
    dense.column_name = column
    add_shape(dense, sizes)
    if default is not None:
        values = set(np.ravel(np.array(default, object)).tolist())
        if len(values) > 1:
            raise SchemaError(f"TensorFlow Metadata has one default value for all values; got {default}")
        value = values.pop()
        setattr(dense.default_value, DEFAULTS[kind], value.encode() if isinstance(value, str) else value)


def add_ragged(schema: Any, name: str, path: Sequence[str], sizes: Sequence[int] = ()) -> Any:
    """Represent the values at a path as a ragged tensor of uniform inner rows, and return it."""
    tensor = tensor_of(schema, name).ragged_tensor
    tensor.feature_path.step.extend(path)
    for size in sizes:
        tensor.partition.add(uniform_row_length=size)
    return tensor
