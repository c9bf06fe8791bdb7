"""The features that arrays of a user are written as if no others are given."""

from __future__ import annotations

from dataclasses import replace

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.base import Feature
from dask_tfrecord.features.listed import FixedLenFeature, VarLenFeature
from dask_tfrecord.features.raw import RawFeature
from dask_tfrecord.features.tensor import TensorFeature


def listed_feature(name: str, feature: Feature) -> Feature:
    """Choose the feature that lists the values of array `name`; its column is `feature`.

    Integers and bool are listed as int64, float16 and bfloat16 as float32.
    """
    dtype, shape = feature.item_dtype, feature.row_shape
    if dtype.name == "float64":
        rounded, kept = f"FixedLenFeature({shape}, 'float32')", f"RawFeature({shape}, 'float64')"
        if feature.ragged_rank > 1:
            rounded, kept = "RaggedFeature('float32', partitions=…)", "a sequence feature VarLenFeature('float64')"
        elif isinstance(feature, TensorFeature):
            rounded, kept = repr(replace(feature, dtype="float32")), repr(feature)
        elif feature.ragged_rank:
            rounded = repr(VarLenFeature("float32", shape=shape))
        raise SchemaError(
            f"array {name!r} has dtype float64, but an Example stores float32: specify features={{{name!r}: "
            f"{rounded}}} to round it, or {{{name!r}: {kept}}} to keep it"
        )
    if dtype.kind == "c":
        raise SchemaError(
            f"array {name!r} is of {dtype}, which an Example can't store: specify RawFeature(shape, {dtype.name!r}) or "
            f"TensorFeature(shape, {dtype.name!r}) in features="
        )
    if feature.own_shapes or isinstance(feature, TensorFeature):
        raise SchemaError(
            f"array {name!r} has rows of different shapes, which an Example can't store: specify TensorFeature or "
            "ImageFeature in features="
        )
    if isinstance(feature, VarLenFeature) and feature.ragged_rank > 1:
        raise SchemaError(
            f"array {name!r} has nested rows, which an Example can't store: specify RaggedFeature with partitions in "
            "features=, or VarLenFeature in sequence_features="
        )
    if not isinstance(feature, RawFeature):
        return feature
    return VarLenFeature(dtype, shape=shape) if feature.ragged_rank else FixedLenFeature(shape, dtype)
