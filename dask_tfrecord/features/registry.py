"""The feature classes by name: their JSON, and features of `tf.io`."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import Any, TypeVar

from dask_tfrecord.advice import explain_arguments
from dask_tfrecord.errors import SchemaError, near_misses
from dask_tfrecord.features.base import Feature, of_this_library
from dask_tfrecord.features.float_image import FloatImageFeature
from dask_tfrecord.features.functions import FunctionFeature, function_of_json, json_of_function
from dask_tfrecord.features.image import ImageFeature
from dask_tfrecord.features.listed import FixedLenFeature, FixedLenSequenceFeature, Listed, VarLenFeature
from dask_tfrecord.features.message_types import MessageType
from dask_tfrecord.features.proto import ProtoFeature
from dask_tfrecord.features.ragged import RaggedFeature
from dask_tfrecord.features.raw import RawFeature
from dask_tfrecord.features.row_partitions import PARTITIONS, Partition, partition_arguments
from dask_tfrecord.features.sparse import SparseFeature
from dask_tfrecord.features.tensor import TensorFeature
from dask_tfrecord.features.text import TextFeature
from dask_tfrecord.identity import class_digest

FEATURES: dict[str, type[Feature]] = {
    cls.__name__: cls
    for cls in (
        *(FixedLenFeature, FixedLenSequenceFeature, FloatImageFeature, FunctionFeature, ImageFeature, ProtoFeature),
        *(RaggedFeature, RawFeature, SparseFeature, TensorFeature, TextFeature, VarLenFeature),
    )
}
_OWN = FEATURES.copy()
# The signature of each, for errors about its arguments.
_CALLS = (
    *("FixedLenFeature((), 'int64')", "FixedLenSequenceFeature((), 'int64')", "ImageFeature()"),
    *("TextFeature(), or TextFeature(encoding='latin-1')",),
    *("VarLenFeature('int64'), or VarLenFeature('int64', shape=(-1, 3)) for rows of 3 values",),
    *("RawFeature((8, 8, 3), 'uint8')", "TensorFeature((3,), 'float32')", "FunctionFeature(function, (), 'int64')"),
    *("SparseFeature('indices', 'values', 'float32', 100)", "RaggedFeature('int64')", "ProtoFeature(message)"),
)
for call in _CALLS:
    cls = FEATURES[call.partition("(")[0]]
    setattr(cls, "__init__", explain_arguments(call)(cls.__init__))  # noqa: B010 - mypy refuses the assignment
Registered = TypeVar("Registered", bound=type[Feature])


def register_feature(cls: Registered) -> Registered:
    """Make a feature class known, so that schemas in files can name it; usable as a decorator.

    Import the module of the class before you read such a file. Workers import it with the first feature that they
    receive.

    Parameters
    ----------
    cls : type
        A frozen dataclass and subclass of `Feature`, for example of `dask_tfrecord.features.ArrayFeature`. All
        arguments must be None, bool, numbers, text, bytes, tuples or features, so that JSON can store them.

    Returns
    -------
    type
        The class, unchanged.

    Raises
    ------
    SchemaError
        If it is not such a class, or another class has its name.

    Examples
    --------
    >>> import io
    >>> from dataclasses import dataclass
    >>> from dask_tfrecord.features import ArrayFeature
    >>> @dtf.register_feature
    ... @dataclass(frozen=True, repr=False)
    ... class NpyFeature(ArrayFeature):
    ...     shape: tuple[int, ...]
    ...     dtype: str
    ...     count: int | None = None
    ...
    ...     def decode_value(self, value):
    ...         return np.load(io.BytesIO(value))
    >>> NpyFeature((-1, 3), "float32").ragged_rank
    1
    """
    given: Any = cls
    is_feature = isinstance(given, type) and issubclass(given, Feature) and is_dataclass(given)
    if not is_feature:
        raise SchemaError(f"register_feature: expected a dataclass that is a Feature; got {cls!r:.100}")
    other = FEATURES.get(cls.__name__, cls)
    if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        raise SchemaError(f"register_feature: {other.__module__}.{other.__qualname__} has the name of {cls!r}")
    FEATURES[cls.__name__] = cls
    return cls


def from_tensorflow(feature: Any, owner: str) -> Feature:
    """Convert a feature of `tf.io`; return a feature of this library unchanged."""
    # Another thread may register one meanwhile.
    classes = {name: cls for name, cls in FEATURES.copy().items() if issubclass(cls, Listed)}
    expected = "a feature of this library or of tf.io, for example FixedLenFeature((), 'int64')"
    if isinstance(feature, type) and feature.__name__ in FEATURES:
        raise SchemaError(f"{owner}: expected {expected}; got the class {feature.__name__}: call it with its arguments")
    made: Feature = of_this_library(feature, Feature, classes, owner, expected)
    return made


def json_of_feature(feature: Feature) -> dict[str, Any]:
    """Return the class and the arguments of a feature as JSON values."""
    name = type(feature).__name__
    if FEATURES.get(name) is not type(feature):
        raise SchemaError(
            f"feature class {name} is not registered: dask_tfrecord.register_feature({name}) makes it known"
        )
    return {"class": name, **to_json(feature.arguments())}


def class_digests(features: Iterable[Feature]) -> dict[str, str]:
    """Return digests of code by class name, for feature classes from elsewhere.

    Schemas in files name the classes alone, which may be registered again with other code.
    """
    digests, pending = dict[str, str](), list[Any](features)
    while pending:
        value = pending.pop()
        if isinstance(value, tuple):
            pending += value
        elif isinstance(value, Feature) and _OWN.get(name := type(value).__name__) is not type(value):
            pending += value.arguments().values()
            if name not in digests:
                digests[name] = class_digest(type(value))
    return dict(sorted(digests.items()))


def feature_of_json(entry: dict[str, Any]) -> Feature:
    """Construct a feature from the values of `json_of_feature`; the entry is changed."""
    name = entry.pop("class")
    if name not in FEATURES:
        near = near_misses(name, FEATURES)
        near = near if near.startswith("; did you mean") else ""
        raise SchemaError(f"there is no feature class {name!r}: import the module that registers it{near}")
    return FEATURES[name](**{name: from_json(value) for name, value in entry.items()})


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
    if callable(value):
        return json_of_function(value)
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
    if "function" in value:
        return function_of_json(value)
    if "message_type" in value:
        return MessageType(value["message_type"], from_json(value["descriptors"]))
    return PARTITIONS[value["partition"]](**{name: item for name, item in value.items() if name != "partition"})
