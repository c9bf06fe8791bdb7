"""Convert TensorFlow's feature objects by their fields, without importing TensorFlow."""

from __future__ import annotations

from typing import Any

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.base import Feature
from dask_tfrecord.features.parsed import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)

# Fields of the classes of `tf.io`, which are named tuples.
_FIELDS: dict[str, tuple[type[Feature], tuple[str, ...]]] = {
    "FixedLenFeature": (FixedLenFeature, ("shape", "dtype", "default_value")),
    "VarLenFeature": (VarLenFeature, ("dtype",)),
    "FixedLenSequenceFeature": (FixedLenSequenceFeature, ("shape", "dtype", "allow_missing", "default_value")),
    "SparseFeature": (SparseFeature, ("index_key", "value_key", "dtype", "size", "already_sorted")),
    "RaggedFeature": (RaggedFeature, ("dtype", "value_key", "partitions", "row_splits_dtype", "validate")),
}


def from_tensorflow(feature: Any, owner: str) -> Feature:
    """Convert a feature of `tf.io`; return a feature of this library unchanged.

    Raises
    ------
    SchemaError
        If it is neither.
    """
    if isinstance(feature, Feature):
        return feature
    name = type(feature).__name__
    if name not in _FIELDS or not all(hasattr(feature, field) for field in _FIELDS[name][1]):
        raise SchemaError(
            f"{owner}: expected a feature of this library or of tf.io, for example FixedLenFeature((), 'int64'); got "
            f"{feature!r:.100}"
        )
    cls, fields = _FIELDS[name]
    arguments = {field: getattr(feature, field) for field in fields}
    return cls(**arguments)
