"""Names that a user gives to the axes behind rows, checked against all that a group holds. Pure values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask_tfrecord.errors import UnknownFeatureError
from dask_tfrecord.schema import Schema, near_misses
from dask_tfrecord.stores.layout import ArraySpec

__all__ = ["AxisNames"]


@dataclass(frozen=True, slots=True, eq=False)
class AxisNames:
    """Names of axes by feature; those of the others are made of the array's name.

    Attributes
    ----------
    given : mapping of str to sequence of str, or None
        The axes of a row where a feature is dense, those of an item where its rows differ in length.
    """

    given: Mapping[str, Sequence[str]] | None = None

    @classmethod
    def of(cls, arrays: Mapping[str, Any], given: Mapping[str, Sequence[str]] | None) -> AxisNames:
        """Take those that are given, and of an xarray Dataset those that it has besides."""
        if not hasattr(arrays, "dims") or not (given is None or isinstance(given, Mapping)):
            return cls(given)
        found = {name: tuple(map(str, array.dims[1:])) for name, array in arrays.items() if len(array.dims) > 1}
        return cls(found | dict(given or {}))

    def values(self) -> dict[str, Any]:
        """Write them as JSON values, by which a conversion is known."""
        return {"dimension_names": {name: list(axes) for name, axes in self.given.items()} if self.given else None}

    def check(self, schema: Schema, arrays: Sequence[ArraySpec]) -> None:
        """Refuse names that do not fit the arrays of a group, whose axes have their generated names.

        Raises
        ------
        UnknownFeatureError
            If they are given to what is no feature.
        ValueError
            If they are not one string for each axis, name two axes of one array or an array of the group, or are those
            of axes that are longer or shorter.
        """
        if self.given is None:
            return
        if not isinstance(self.given, Mapping):
            raise ValueError(f"dimension_names is a mapping from feature to names of axes; got {self.given!r}")
        for name, axes in self.given.items():
            if name not in schema:
                raise UnknownFeatureError(f"dimension_names: no feature {name!r}{near_misses(name, tuple(schema))}")
            if isinstance(axes, str) or not all(isinstance(axis, str) and axis for axis in axes):
                raise ValueError(f"dimension_names[{name!r}] is a tuple of names, one for each axis; got {axes!r}")
        inner = {array.feature: array for array in arrays if array.part in ("dense", "values")}
        for name, axes in self.given.items():
            _check_axes(name, axes, inner[name], arrays)
        self._check_lengths(arrays)

    def _check_lengths(self, arrays: Sequence[ArraySpec]) -> None:
        """Refuse one name for axes of two lengths, which no data set of xarray's has."""
        found: dict[str, tuple[int, str]] = {}
        for array in arrays:
            axes = array.dimensions[1:]
            if array.part in ("dense", "values"):
                axes = tuple((self.given or {}).get(array.feature, axes))
            for axis, length in zip(axes, array.shape[1:], strict=True):
                other, owner = found.setdefault(axis, (length, array.feature))
                if other != length:
                    raise ValueError(
                        f"dimension_names: {axis!r} is an axis of {other} of {owner!r}, and of {length} of "
                        f"{array.feature!r}: axes of one name are of one length"
                    )


def _check_axes(name: str, axes: Sequence[str], array: ArraySpec, arrays: Sequence[ArraySpec]) -> None:
    """Check the names of the axes of one array."""
    option, number = f"dimension_names[{name!r}]", len(array.shape) - 1
    if len(axes) != number:
        what = "a row" if array.part == "dense" else "an item"
        raise ValueError(
            f"{option} has {len(axes)} names, {tuple(axes)}, where {what} has "
            f"{number} {'axis' if number == 1 else 'axes'}, of shape {array.shape[1:]}"
        )
    if len(set(axes)) < len(axes):
        raise ValueError(f"{option}: {tuple(axes)} names two axes of one array alike")
    names = {each.name for each in arrays}
    along = {each.dimensions[0]: each for each in reversed(arrays)}
    for axis in axes:
        if axis in names:
            raise ValueError(
                f"{option}: {axis!r} is an array of the group, which xarray would take for the coordinate of that axis"
            )
        if axis in along:
            raise ValueError(f"{option}: {axis!r} is what {along[axis].name!r} is laid out along")
