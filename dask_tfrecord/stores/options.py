"""All that a user asks for of a Zarr store, and what follows from it for each array. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dask_tfrecord.schema import Schema
from dask_tfrecord.stores.axis_names import AxisNames
from dask_tfrecord.stores.codecs import Codecs
from dask_tfrecord.stores.fill_values import FillValues
from dask_tfrecord.stores.grid import Wishes
from dask_tfrecord.stores.layout import ArraySpec, Layout, RowGrid, Tally, zarr_layout

__all__ = ["ZarrOptions"]


@dataclass(frozen=True, slots=True, eq=False)
class ZarrOptions:
    """What a user asks for.

    Attributes
    ----------
    wishes : Wishes
        Where arrays are cut.
    codecs : Codecs
        Compressors and filters.
    names : AxisNames
        Names of the axes behind rows.
    fills : FillValues
        What readers take for chunks that are not there.
    consolidated : bool
        Gather the metadata of all arrays in that of the group.
    """

    wishes: Wishes = field(default_factory=Wishes)
    codecs: Codecs = field(default_factory=Codecs)
    names: AxisNames = field(default_factory=AxisNames)
    fills: FillValues = field(default_factory=FillValues)
    consolidated: bool = True

    def values(self) -> dict[str, Any]:
        """Write them as JSON values, by which a conversion is known."""
        parts = (self.wishes, self.codecs, self.names, self.fills)
        return {name: value for part in parts for name, value in part.values().items()} | {
            "consolidated": bool(self.consolidated)
        }

    def check(self, schema: Schema) -> None:
        """Refuse what does not go with these features, before anything is read; how rows are cut depends on their size.

        Raises
        ------
        UnknownFeatureError
            If a name is neither of a feature nor of a flat array.
        ValueError
            If the names of axes do not fit the arrays, or a fill value not its dtype.
        """
        self.codecs.check(schema)
        self.fills.check(schema)
        # Laid out without rows: what there is along them does not matter here.
        arrays = zarr_layout(schema, 0, RowGrid(1, 1, 1), Tally.joined(schema, [])).arrays
        self.names.check(schema, arrays)
        for spec in arrays:
            self.fills.of(spec, schema)

    def forms(self, layout: Layout, schema: Schema) -> dict[str, dict[str, Any]]:
        """Say how all arrays are made, by their names."""
        return {spec.name: self.form(spec, schema) for spec in layout.arrays}

    def form(self, spec: ArraySpec, schema: Schema) -> dict[str, Any]:
        """Say how an array is made, in the words of `zarr.create_array`."""
        inner = tuple(max(1, size) for size in spec.shape[1:])
        compressors, filters = self.codecs.of(spec)
        return {
            "shape": spec.shape,
            "dtype": spec.dtype,
            "chunks": (spec.chunk, *inner),
            "shards": (spec.unit, *inner) if spec.unit != spec.chunk else None,
            "compressors": compressors,
            "filters": filters,
            "fill_value": self.fills.of(spec, schema),
            "dimension_names": spec.dimensions,
            "attributes": _attributes(spec, schema),
        }


def _attributes(spec: ArraySpec, schema: Schema) -> dict[str, Any]:
    """Tell readers of the array by itself what it is: plain values, which xarray shows and netCDF takes."""
    said: Mapping[str, Any] = {"feature": spec.feature, "feature_class": type(schema[spec.feature]).__name__}
    classes = schema.classes.get(spec.feature) if spec.part in ("dense", "values") else None
    return {**said, "class_names": list(classes)} if classes else dict(said)
