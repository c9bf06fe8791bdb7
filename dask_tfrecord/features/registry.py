"""The feature classes by name: their JSON, and features of `tf.io`."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

from dask_tfrecord.features.base import Feature, of_this_library
from dask_tfrecord.features.image import ImageFeature
from dask_tfrecord.features.listed import FixedLenFeature, FixedLenSequenceFeature, Listed, VarLenFeature
from dask_tfrecord.features.partitions import PARTITIONS, Partition, partition_arguments
from dask_tfrecord.features.proto import ProtoFeature
from dask_tfrecord.features.ragged import RaggedFeature
from dask_tfrecord.features.raw import RawFeature
from dask_tfrecord.features.sparse import SparseFeature
from dask_tfrecord.features.tensor import TensorFeature
from dask_tfrecord.features.text import TextFeature
from dask_tfrecord.message_types import MessageType

FEATURES: dict[str, type[Feature]] = {
    cls.__name__: cls
    for cls in (
        *(FixedLenFeature, FixedLenSequenceFeature, ImageFeature, ProtoFeature, RaggedFeature, RawFeature),
        *(SparseFeature, TensorFeature, TextFeature, VarLenFeature),
    )
}


def from_tensorflow(feature: Any, owner: str) -> Feature:
    """Convert a feature of `tf.io`; return a feature of this library unchanged."""
    classes = {name: cls for name, cls in FEATURES.items() if issubclass(cls, Listed)}
    expected = "a feature of this library or of tf.io, for example FixedLenFeature((), 'int64')"
    made: Feature = of_this_library(feature, Feature, classes, owner, expected)
    return made


def json_of_feature(feature: Feature) -> dict[str, Any]:
    """Return the class and the arguments of a feature as JSON values."""
    return {"class": type(feature).__name__, **to_json(feature.arguments())}


def feature_of_json(entry: dict[str, Any]) -> Feature:
    """Construct a feature from the values of `json_of_feature`; the entry is changed."""
    cls = _stored_class(FEATURES, entry.pop("class"))
    made: Feature = cls(**{name: from_json(value) for name, value in entry.items()})
    return made


def _stored_class(classes: Mapping[str, Any], name: Any) -> Any:
    if not isinstance(name, str) or name not in classes:
        raise ValueError(f"there is no class {name!r} among {', '.join(classes)}")
    return classes[name]


def to_json(value: Any) -> Any:
    """Convert arguments of features to JSON values; bytes, NaN, infinities, partitions and features become objects."""
    if isinstance(value, dict):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, Partition):
        return {"partition": type(value).__name__, **partition_arguments(value)}
    if isinstance(value, Feature):
        return json_of_feature(value)
    if isinstance(value, MessageType):
        return {"message_type": value.name, "descriptors": to_json(value.descriptors)}
    return value


def from_json(value: Any) -> Any:
    """Convert JSON values of `to_json` back to arguments."""
    if isinstance(value, list):
        return tuple(from_json(item) for item in value)
    if not isinstance(value, dict):
        return value
    if "base64" in value:
        return base64.b64decode(value["base64"])
    if "float" in value:
        return float(value["float"])
    if "class" in value:
        return feature_of_json(dict(value))
    if "message_type" in value:
        return MessageType(value["message_type"], from_json(value["descriptors"]))
    partition = _stored_class(PARTITIONS, value["partition"])
    return partition(**{name: item for name, item in value.items() if name != "partition"})
