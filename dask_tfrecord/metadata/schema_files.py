"""Schemas as text: files (JSON of `Schema`, `schema.pbtxt`, `features.json` of TFDS) and Python code."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from dask_tfrecord.errors import Location, SchemaError, ShardNotFoundError
from dask_tfrecord.features import Feature
from dask_tfrecord.features.partitions import Partition
from dask_tfrecord.metadata.tfds import schema_from_features
from dask_tfrecord.metadata.tfmd import from_tfmd, pbtxt
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.remote import read_text
from dask_tfrecord.storage.streams import write_file

_INDENT = "    "


def schema_code(schema: Schema) -> str:
    """Format a schema as Python code.

    Parameters
    ----------
    schema : Schema
        Features, with class names and groups. The sample that they were inferred from is omitted.

    Returns
    -------
    str
        Statements that import the package and assign an equal schema to ``schema``. Strings are escaped, so that the
        names of a file never become code.

    Examples
    --------
    >>> print(schema_code(dtf.Schema({"label": dtf.FixedLenFeature((), "int64")})))
    import dask_tfrecord as dtf
    <BLANKLINE>
    schema = dtf.Schema(
        {
            "label": dtf.FixedLenFeature((), "int64"),
        },
    )
    """
    arguments = [_features(schema.context_features)]
    if schema.sequence_features is not None:
        arguments.append(f"sequence_features={_features(schema.sequence_features)}")
    if schema.example_features is not None:
        arguments.append(f"example_features={_features(schema.example_features)}")
    for option, names in (("classes", schema.classes), ("groups", schema.groups)):
        if names:
            arguments.append(f"{option}={_names(names)}")
    lines = [f"{_INDENT}{argument},".replace("\n", f"\n{_INDENT}") for argument in arguments]
    # A Schema orders context features before those of steps; columns keep that of this schema.
    order = [*schema.context_features, *filter(schema.has_steps, schema)]
    selected = [] if order == list(schema) else [f"schema = schema.select({_code(list(schema))})"]
    return "\n".join(["import dask_tfrecord as dtf", "", "schema = dtf.Schema(", *lines, ")", *selected])


def _features(features: Mapping[str, Feature]) -> str:
    lines = [f"{_INDENT}{_code(name)}: {_call(feature)}," for name, feature in features.items()]
    return "\n".join(["{", *lines, "}"]) if lines else "{}"


def _names(names: Mapping[str, Sequence[str]]) -> str:
    return "\n".join(["{", *(f"{_INDENT}{_code(name)}: {_code(list(each))}," for name, each in names.items()), "}"])


def _call(feature: Feature) -> str:
    """Return the call that constructs a feature; arguments without a default are positional."""
    required = {field.name for field in fields(feature) if field.default is MISSING}  # type: ignore[arg-type]
    given = feature.arguments().items()
    parts = [_code(value) if name in required else f"{name}={_code(value)}" for name, value in given]
    return f"dtf.{type(feature).__name__}({', '.join(parts)})"


def _code(value: Any) -> str:
    """Return an expression of a value: strings in double quotes, floats that have no literal, partitions, features."""
    if isinstance(value, str):
        quoted = repr(value)
        return f'"{quoted[1:-1]}"' if quoted.startswith("'") and '"' not in quoted else quoted
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f'float("{value}")'
    if isinstance(value, list):
        return f"[{', '.join(map(_code, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_code, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, Feature):
        return _call(value)
    if isinstance(value, Partition):
        return f"dtf.RaggedFeature.{value!r}"
    return repr(value)


def read_schema(urlpath: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> Schema:
    """Read a schema from a file: see `Schema.read`."""
    location = Location(str(urlpath))
    text = read_text(urlpath, storage_options)
    if text is None:
        raise ShardNotFoundError("features names a schema file that does not exist", location)
    try:
        return _parse_schema(text)
    except SchemaError as error:
        raise SchemaError(error.message, location) from error


def write_pbtxt(schema: Schema, urlpath: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> None:
    """Write a schema as a `schema.pbtxt`: see `Schema.to_pbtxt`."""
    write_file(urlpath, pbtxt(schema).encode(), storage_options)


def _parse_schema(text: str) -> Schema:
    # JSON of a schema begins with a brace; protobuf text never does.
    if not text.lstrip().startswith("{"):
        return from_tfmd(text)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"expected the JSON of a schema: {error}") from error
    return Schema.from_json(text) if "features" in document else schema_from_features(text)
