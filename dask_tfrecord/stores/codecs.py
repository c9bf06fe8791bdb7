"""Codecs of the arrays of a group: what a user gives for all, by feature or by array, and its words in a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dask_tfrecord.schema import Schema
from dask_tfrecord.stores.grid import check_names
from dask_tfrecord.stores.layout import ArraySpec, array_name
from dask_tfrecord.stores.levels import is_flat

__all__ = ["Codecs", "codec_names", "codec_values"]

# Fast enough not to be what a conversion waits for. The size of items is found by zarr.
_AUTO = ({"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle"}},)


@dataclass(frozen=True, slots=True, eq=False)
class Codecs:
    """Compressors and filters.

    Attributes
    ----------
    compressors, filters : object
        ``"auto"``, None, or what `zarr.create_array` takes; or a mapping of such by feature or flat array.
    """

    compressors: Any = "auto"
    filters: Any = "auto"

    def check(self, schema: Schema) -> None:
        """Refuse names that are neither of a feature nor of a flat array, that of row splits included.

        Raises
        ------
        UnknownFeatureError
            If one is.
        """
        for option, value in (("compressors", self.compressors), ("filters", self.filters)):
            if _is_by_name(value):
                splits = {f"{array_name(name)}.row_splits" for name in schema if is_flat(schema[name])}
                check_names(option, [name for name in value if name not in splits], schema)

    def values(self) -> dict[str, Any]:
        """Write them as JSON values, by which a conversion is known."""
        return {
            option: {name: _said(each) for name, each in value.items()} if _is_by_name(value) else _said(value)
            for option, value in (("compressors", self.compressors), ("filters", self.filters))
        }

    def of(self, spec: ArraySpec) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Compressors and filters of one array: filters of a feature are of its values, not of where rows end."""
        compressors = _pick(self.compressors, spec)
        of_values = spec.part in ("dense", "values") or (_is_by_name(self.filters) and spec.name in self.filters)
        filters = _pick(self.filters, spec) if of_values else ()
        if isinstance(filters, str) and filters == "auto":
            filters = ()
        return _several(_AUTO if isinstance(compressors, str) and compressors == "auto" else compressors), _several(
            filters
        )


def codec_values(codecs: tuple[Any, ...]) -> list[Any]:
    """Make JSON values of codecs."""
    return [_value(codec) for codec in codecs]


def codec_names(codecs: tuple[Any, ...]) -> str:
    """Write codecs as people say them: a name and what it was set to."""
    words = []
    for value in codec_values(codecs):
        settings = [f"{key}={setting}" for key, setting in (value.get("configuration") or {}).items()]
        words.append(str(value.get("name", "?")) + (f"({', '.join(settings)})" if settings else ""))
    return ", ".join(words) or "none"


def _said(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else codec_values(_several(value))


def _is_by_name(value: Any) -> bool:
    # A mapping may be a codec itself, which has a name; no codec is called "auto".
    if not isinstance(value, Mapping):
        return False
    name = value.get("name")
    return not isinstance(name, str) or name == "auto"


def _pick(value: Any, spec: ArraySpec) -> Any:
    if not _is_by_name(value):
        return value
    return value.get(spec.feature, "auto") if spec.name not in value or spec.part == "dense" else value[spec.name]


def _several(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _value(codec: Any) -> dict[str, Any]:
    if isinstance(codec, Mapping):
        return dict(codec)
    return dict(codec.to_dict()) if hasattr(codec, "to_dict") else {"name": type(codec).__name__}
