"""Features as the oracle knows them: the JSON of a schema, with the arguments that a user wrote.

The oracle reads only this description of the library's classes, so it can't repeat a mistake in a property of a feature
class.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dask_tfrecord import Schema

# Classes whose values are decoded from bytes.
DECODED = ("RawFeature", "TextFeature", "TensorFeature")


@dataclass(frozen=True, slots=True)
class Partition:
    """Partition of a ragged feature: the name of its class, and the key of its list or its uniform length."""

    kind: str
    key: str = ""
    length: int = 0

    def __str__(self) -> str:
        return f"{self.kind}({self.key or self.length!r})"


@dataclass(frozen=True, slots=True)
class Feature:
    """Feature of a class, with the arguments that the class takes; the others have the values of this class."""

    kind: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    default_value: Any = None
    count: int | None = None
    allow_missing: bool = False
    length: int | None = None
    index_key: tuple[str, ...] = ()
    value_key: str | None = None
    size: tuple[int, ...] = ()
    already_sorted: bool = False
    partitions: tuple[Partition, ...] = ()
    values: Feature | None = None
    compression_type: str | None = None

    @property
    def is_decoded(self) -> bool:
        """True if values are decoded from bytes."""
        return self.kind in DECODED

    @property
    def is_open(self) -> bool:
        """True if rows may differ in shape."""
        return self.kind == "RaggedFeature" or -1 in self.shape


@dataclass(frozen=True, slots=True)
class Description:
    """Features of a record by name, and of its feature lists or items by key."""

    features: dict[str, Feature]
    lists: dict[str, Feature] = field(default_factory=dict)
    items: dict[str, Feature] = field(default_factory=dict)
    message: str = "Example"


def describe(schema: Mapping[str, Any]) -> Description:
    """Return the description of a schema, or of a mapping of features."""
    document = json.loads((schema if isinstance(schema, Schema) else Schema(schema)).to_json())
    features = {entry["name"]: _feature(entry) for entry in document["features"]}
    if "sequence_features" in document:
        lists = {name: features.pop(name) for name in document["sequence_features"]}
        return Description(features, lists=lists, message="SequenceExample")
    if "example_features" in document:
        items = {name.removeprefix("examples/"): features.pop(name) for name in document["example_features"]}
        return Description(features, items=items, message="ExampleListWithContext")
    return Description(features)


def _feature(entry: Mapping[str, Any]) -> Feature:
    arguments = {name: _value(value) for name, value in entry.items() if name not in ("name", "class")}
    if entry["class"] == "VarLenFeature":
        arguments.setdefault("shape", (-1,))
    return Feature(entry["class"], **arguments)


def _value(value: Any) -> Any:
    """Return the argument for a JSON value."""
    if isinstance(value, list):
        return tuple(map(_value, value))
    if not isinstance(value, dict):
        return value
    if "base64" in value:
        return base64.b64decode(value["base64"])
    if "float" in value:
        return float(value["float"])
    if "partition" in value:
        return Partition(value["partition"], value.get("key", ""), value.get("length", 0))
    return _feature(value)
