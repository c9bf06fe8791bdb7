"""Fill values: what readers take for chunks that are not there. Pure values.

All chunks are written, so a fill value is never read from a store that is whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_tfrecord.schema import Schema
from dask_tfrecord.stores.grid import check_names
from dask_tfrecord.stores.layout import ArraySpec

__all__ = ["FillValues", "json_value"]

# Kinds of numbers that one of another kind may be given as.
_FROM = {"b": "b", "i": "iuf", "u": "iuf", "f": "iuf", "c": "iufc"}


@dataclass(frozen=True, slots=True, eq=False)
class FillValues:
    """Fill values by feature or flat array.

    Attributes
    ----------
    given : mapping of str to scalar, or None
        Those that are no defaults.
    """

    given: Mapping[str, Any] | None = None

    def values(self) -> dict[str, Any]:
        """Write them as JSON values, by which a conversion is known."""
        return {"fill_values": {name: json_value(value) for name, value in self.given.items()} if self.given else None}

    def check(self, schema: Schema) -> None:
        """Refuse names that are neither of a feature nor of a flat array.

        Raises
        ------
        UnknownFeatureError
            If one is.
        """
        if self.given is not None and not isinstance(self.given, Mapping):
            raise ValueError(f"fill_values is a mapping from feature or flat array to a value; got {self.given!r}")
        check_names("fill_values", self.given or {}, schema)

    def of(self, spec: ArraySpec, schema: Schema) -> Any:
        """Find the fill value of an array: the one given, else the scalar default of its feature, else zero.

        Raises
        ------
        ValueError
            If it is no value of the array's dtype.
        """
        given = self.given or {}
        if spec.name in given and spec.name not in schema:
            return _checked(given[spec.name], spec.dtype, spec.name)
        if spec.feature in given and spec.part in ("dense", "values"):
            return _checked(given[spec.feature], spec.dtype, spec.feature)
        default = getattr(schema[spec.feature], "default_value", None)
        if spec.part == "dense" and default is not None and not isinstance(default, tuple):
            return _checked(default, spec.dtype, spec.feature)
        return "" if spec.dtype == "string" else np.dtype(spec.dtype).type(0)


def json_value(value: Any) -> Any:
    """Spell a scalar as the metadata of Zarr does."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, complex):
        return [json_value(plain.real), json_value(plain.imag)]
    if isinstance(plain, float) and not math.isfinite(plain):
        return "NaN" if plain != plain else "Infinity" if plain > 0 else "-Infinity"
    return plain if plain is None or isinstance(plain, bool | int | float | str) else repr(plain)


def _checked(value: Any, dtype: str, name: str) -> Any:
    """Make a value one of a dtype: floats are rounded, and nothing else changes."""
    if dtype == "string":
        if isinstance(value, str):
            return str(value)
    elif isinstance(value, bool | int | float | complex | np.generic):
        wanted, given = np.dtype(dtype), np.asarray(value)
        if given.dtype.kind in _FROM[wanted.kind]:
            with np.errstate(all="ignore"):
                cast = given.astype(wanted)
            rounded = wanted.kind in "fc" and bool(np.isfinite(cast)) == bool(np.isfinite(given))
            if rounded or cast.item() == given.item():
                return cast[()]
    raise ValueError(f"fill_values[{name!r}]: {value!r:.100} is no value of dtype {dtype}")
