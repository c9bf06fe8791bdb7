"""Schemas and features as Python code, to paste into programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_tfrecord.features import Feature, Partition
from dask_tfrecord.features.schema import Schema

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
    arguments = [_dict_code(schema.context_features)]
    if schema.sequence_features is not None:
        arguments.append(f"sequence_features={_dict_code(schema.sequence_features)}")
    if schema.example_features is not None:
        arguments.append(f"example_features={_dict_code(schema.example_features)}")
    for option, names in (("classes", schema.classes), ("groups", schema.groups)):
        if names:
            arguments.append(f"{option}={_dict_code({name: list(each) for name, each in names.items()})}")
    lines = [f"{_INDENT}{argument},".replace("\n", f"\n{_INDENT}") for argument in arguments]
    # A Schema orders context features before features of steps; columns keep the order of this schema.
    order = [*schema.context_features, *filter(schema.has_steps, schema)]
    selected = [] if order == list(schema) else [f"schema = schema.select({python_code(list(schema))})"]
    return "\n".join(["import dask_tfrecord as dtf", "", "schema = dtf.Schema(", *lines, ")", *selected])


def _dict_code(values: Mapping[str, Any]) -> str:
    lines = [f"{_INDENT}{python_code(name)}: {python_code(value)}," for name, value in values.items()]
    return "\n".join(["{", *lines, "}"]) if lines else "{}"


def feature_code(feature: Feature) -> str:
    """Return Python code of a feature, with a prefix for the classes of this library."""
    prefix = "dtf." if type(feature).__module__.startswith("dask_tfrecord.") else ""
    return prefix + feature.call(python_code)


def python_code(value: Any) -> str:
    """Write a value as an expression: strings in double quotes, floats without a literal, partitions, features."""
    if isinstance(value, str):
        quoted = repr(value)
        return f'"{quoted[1:-1]}"' if quoted.startswith("'") and '"' not in quoted else quoted
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f'float("{value}")'
    if isinstance(value, list):
        return f"[{', '.join(map(python_code, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(python_code, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, Feature):
        return feature_code(value)
    if isinstance(value, Partition):
        return f"dtf.RaggedFeature.{value!r}"
    return repr(value)
