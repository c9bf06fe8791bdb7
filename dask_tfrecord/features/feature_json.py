"""Features as JSON values."""

from __future__ import annotations

import base64
import math
from typing import Any

from dask_tfrecord import features as feature_classes
from dask_tfrecord.features.base import Feature


def json_of_feature(feature: Feature) -> dict[str, Any]:
    """Return the class and the arguments of a feature as JSON values."""
    return {"class": type(feature).__name__, **_to_json(feature.arguments())}


def feature_of_json(entry: dict[str, Any]) -> Feature:
    """Construct a feature from the values of `json_of_feature`; the entry is changed."""
    cls = getattr(feature_classes, entry.pop("class"))
    if not issubclass(cls, Feature):
        raise ValueError(f"{cls.__name__} is not a feature class")
    made: Feature = cls(**{name: _from_json(value) for name, value in entry.items()})
    return made


def _to_json(value: Any) -> Any:
    """Convert arguments of features to JSON values; bytes, NaN, infinities, partitions and features become objects."""
    if isinstance(value, dict):
        return {name: _to_json(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, feature_classes.UniformRowLength):
        return {"partition": "UniformRowLength", "length": value.length}
    if isinstance(value, feature_classes.KeyedPartition):
        return {"partition": type(value).__name__, "key": value.key}
    if isinstance(value, Feature):
        return json_of_feature(value)
    return value


def _from_json(value: Any) -> Any:
    """Convert JSON values of `_to_json` back to arguments."""
    if isinstance(value, list):
        return tuple(_from_json(item) for item in value)
    if not isinstance(value, dict):
        return value
    if "base64" in value:
        return base64.b64decode(value["base64"])
    if "float" in value:
        return float(value["float"])
    if "class" in value:
        return feature_of_json(dict(value))
    return getattr(feature_classes, value["partition"])(value["key"] if "key" in value else value["length"])
