"""TensorFlow's own feature objects, read by their fields: TensorFlow is never imported."""

from __future__ import annotations

from typing import Any

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.parsed import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)
from dask_tfrecord.features.values import Feature

__all__ = ["from_tensorflow"]

# The fields of each class of `tf.io`, all of them named tuples.
_FIELDS: dict[str, tuple[type[Feature], tuple[str, ...]]] = {
    "FixedLenFeature": (FixedLenFeature, ("shape", "dtype", "default_value")),
    "VarLenFeature": (VarLenFeature, ("dtype",)),
    "FixedLenSequenceFeature": (FixedLenSequenceFeature, ("shape", "dtype", "allow_missing", "default_value")),
    "SparseFeature": (SparseFeature, ("index_key", "value_key", "dtype", "size", "already_sorted")),
    "RaggedFeature": (RaggedFeature, ("dtype", "value_key", "partitions", "row_splits_dtype", "validate")),
}


def from_tensorflow(feature: Any, owner: str) -> Feature:
    """Make a feature of ours of one of `tf.io`'s, or hand on one that is ours already.

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
            f"{owner}: expected a feature such as FixedLenFeature((), 'int64'), of this library or of tf.io; got "
            f"{feature!r:.100}"
        )
    cls, fields = _FIELDS[name]
    arguments = {field: getattr(feature, field) for field in fields}
    return cls(**arguments)
