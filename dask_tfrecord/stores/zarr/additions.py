"""A new group, or rows or columns that are added to one: check them against what is there, and lay them out."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dask_tfrecord.errors import Location, SchemaError, ShardChangedError, Spelled, UnsupportedFormatError, plural
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.identity import file_key
from dask_tfrecord.options import ZarrWriteOptions
from dask_tfrecord.rows.sources import shards_origin
from dask_tfrecord.shards.shard import Shards
from dask_tfrecord.stores.units import BorderCounts, RowTasks, flat_levels
from dask_tfrecord.stores.zarr.array_names import array_name, splits_name
from dask_tfrecord.stores.zarr.chunk_grid import RowGrid, rows_of_a_read, unit_rows
from dask_tfrecord.stores.zarr.codec import ImageCodec
from dask_tfrecord.stores.zarr.compat import metadata_document
from dask_tfrecord.stores.zarr.fingerprint import canonical_source, digest, schema_differences
from dask_tfrecord.stores.zarr.layout import (
    Conversion,
    ConversionRequest,
    ZarrLayout,
    arrays_without_rows,
    check_axis_lengths,
    group_attributes,
    zarr_layout,
)
from dask_tfrecord.stores.zarr.publication import APPENDS, LAST, Kind, Publication, appended_node, last_run
from dask_tfrecord.stores.zarr.read import ZarrSource, open_source
from dask_tfrecord.stores.zarr.store import FORMAT_VERSION, TargetGroup


@dataclass(frozen=True, slots=True)
class NewGroup:
    """A group of its own."""

    request: ConversionRequest
    # The options of the call, if it was to add to a group that did not exist.
    added: Kind | None = None

    kind: Kind = "group"

    def checked(self, target: TargetGroup) -> tuple[ConversionRequest, ZarrLayout | None]:
        """Return the request, and no layout: the group is planned from its rows."""
        return self.request, None

    def publication(
        self, target: TargetGroup, planned: Conversion, identity: str, unanswered: Collection[str]
    ) -> Publication:
        """Return what readers find when the group is published."""
        request = planned.request
        own = {
            "format_version": FORMAT_VERSION,
            **group_attributes(request, planned.layout, identity),
            "complete": True,
            "written": True,
        }
        if self.added is not None:
            own[LAST] = last_run(identity, fingerprint_of(self), {}, ())
        return Publication(
            identity,
            self.kind,
            request.fingerprint.to_attributes(),
            own,
            arrays={
                **{name: metadata_document(each) for name, each in planned.metadata.items()},
                **{name: document for name, (document, _) in request.attributes.constant_arrays.items()},
            },
            others=request.attributes.of_group(request.schema),
        )


@dataclass(frozen=True, slots=True)
class AddedRows:
    """Rows that are appended to the columns of a group."""

    request: ConversionRequest

    kind: Kind = "rows"

    @classmethod
    def from_arguments(
        cls, target: TargetGroup, arrays: Mapping[str, Any], append_dim: str, options: ZarrWriteOptions
    ) -> AddedRows:
        """Check the arguments before any row is read.

        The group determines options of the layout; another value raises a ValueError.
        """
        if options["mode"] == "w":
            raise ValueError("mode='w' replaces the group, and append_dim= adds rows to it: pass only one of them")
        stored = target.stored_attributes().get("options", {})
        own = options.copy()
        own["encoded_images"] = bool(stored.get("encoded_images"))
        request = ConversionRequest.from_arguments(arrays, own, encoded=stored.get("encoded_images"))
        given = request.fingerprint.options
        check_append_dim(append_dim, stored, " of the store", ": write append_dim={!r}")
        check_append_dim(append_dim, given, " of the given rows")
        for name in _LAYOUT:
            value = given.get(name)
            if value not in (None, "auto", True) and value != stored.get(name):
                raise ValueError(
                    f"{name} was {stored.get(name)!r} when the store was written, and now is {value!r}: appended rows "
                    "must have the layout of the store"
                )
        return cls(request)

    def checked(self, target: TargetGroup) -> tuple[ConversionRequest, ZarrLayout | None]:
        """Return the request with the schema of the group, and its arrays with the appended rows.

        Raises SchemaError with both sides if columns differ.
        """
        source, group = _opened(target), target.open("r")
        _check_labels(target, group, self.request)
        stored, given = (json.loads(schema.to_json()) for schema in (source.schema, self.request.schema))
        if "groups" not in given:
            # These columns have equal numbers of items in the stored rows; the appended rows are checked.
            given |= {key: stored[key] for key in ("groups", "inner_groups") if key in stored}
        differences = list(schema_differences(stored, given))
        if differences:
            raise SchemaError(
                f"cannot append rows with other columns. From the store to these rows: {'; '.join(differences)}. Open "
                f"the rows with the features of the store, or convert them with map_blocks",
                target.location,
            )
        return replace(self.request, schema=source.schema), self._layout(target, source, group)

    def _layout(self, target: TargetGroup, source: ZarrSource, group: zarr.Group) -> ZarrLayout:
        """Lay out the arrays of the group with the appended rows, in its chunks and shards."""
        schema, rows, before = source.schema, self.request.rows, len(source.rows)
        items = _items(target, group, schema, before)
        known = arrays_without_rows(schema)
        stored: dict[str, Any] = {spec.name: group[spec.name] for spec in known}
        strides = {spec.name: spec.unit for spec in known if spec.by_rows}
        units = {name: (stored[name].shards or stored[name].chunks)[0] // stride for name, stride in strides.items()}
        row_tasks = RowTasks(rows, uuid.uuid4().hex, schema)
        grid = RowGrid(source.unit_rows, source.unit_rows, rows_of_a_read(row_tasks.row_sizes()))
        own = {name: unit_rows(grid, rows) for name, rows in units.items()}
        counts = row_tasks.count_borders(sorted({grid.unit, *own.values()}), grid.most, before).after(items)
        layout = zarr_layout(schema, before + (rows.nrows or 0), grid, counts)
        arrays = tuple(
            replace(
                spec,
                chunk=stored[spec.name].chunks[0],
                unit=(stored[spec.name].shards or stored[spec.name].chunks)[0],
                dimensions=tuple(stored[spec.name].metadata.dimension_names),
                rows=own.get(spec.name, 0),
                encoded=isinstance(stored[spec.name].serializer, ImageCodec),
            )
            for spec in layout.arrays
        )
        return replace(layout, arrays=arrays, first_row=before)

    def publication(
        self, target: TargetGroup, planned: Conversion, identity: str, unanswered: Collection[str]
    ) -> Publication:
        """Return what changes when the rows are published."""
        stored, layout = target.read_attributes(), planned.layout
        arrays = target.stored_arrays(each.name for each in layout.arrays)
        lengths = {each.name: (arrays[each.name].shape[0], each.shape[0], each.unit) for each in layout.arrays}
        now = self.request.fingerprint.to_attributes()
        attributes = {
            "records": layout.nrows,
            "rows": digest([stored.get("rows", ""), now["rows"]]),
            LAST: last_run(identity, fingerprint_of(self), stored, unanswered),
        }
        files = {}
        if "files" in now["source"]:
            # A list of all files would make each append longer than the one before.
            attributes[APPENDS] = number = stored.get(APPENDS, 0) + 1
            facts = {key: now["source"][key] for key in ("files", "sizes", "versions")}
            files = {str(number): {"first_record": layout.first_row, **facts}}
        return Publication(identity, self.kind, now, attributes, lengths, files=files)


@dataclass(frozen=True, slots=True)
class AddedColumns:
    """Columns that are added to the rows of a group."""

    request: ConversionRequest

    kind: Kind = "columns"

    @classmethod
    def from_arguments(cls, target: TargetGroup, arrays: Mapping[str, Any], options: ZarrWriteOptions) -> AddedColumns:
        """Check the arguments before any row is read."""
        stored = target.stored_attributes().get("options", {})
        own = options.copy()
        own["consolidated"] = bool(stored.get("consolidated", True))
        request = ConversionRequest.from_arguments(arrays, own)
        rows = stored.get("rows_name", "record")
        if request.names.rows != rows:
            raise ValueError(
                f"the dimension of the rows of the store is {rows!r}, and that of the given columns is "
                f"{request.names.rows!r}: rename it"
            )
        return cls(request)

    def checked(self, target: TargetGroup) -> tuple[ConversionRequest, ZarrLayout | None]:
        """Return the request with the grid of the group: new arrays are planned like those of a new group.

        Raises SchemaError if columns exist or rows differ.
        """
        source, request = _opened(target), self.request
        _check_labels(target, target.open("r"), request)
        both = [name for name in request.schema if name in source.schema]
        if both:
            raise SchemaError(
                f"the store has a column {both[0]!r} already, and adding columns never replaces one, because readers "
                "could find a mixture of both. "
                + Spelled(
                    "append_dim='record' adds rows, and mode='w' replaces the store",
                    "--append adds rows, and --overwrite replaces the store",
                ),
                target.location,
            )
        if request.rows.nrows != len(source.rows):
            raise SchemaError(
                f"the store has {plural(len(source.rows), 'row')}, and the given columns have "
                f"{request.rows.nrows or 0:,}: all columns of a store must have the same rows; append_dim= adds rows",
                target.location,
            )
        # A store whose unit is longer than its rows was begun to grow.
        grows = request.rows.nrows < source.unit_rows
        chunks = replace(request.chunks, unit_of_group=source.unit_rows, grows=grows)
        return replace(request, chunks=chunks), None

    def publication(
        self, target: TargetGroup, planned: Conversion, identity: str, unanswered: Collection[str]
    ) -> Publication:
        """Return what changes when the columns are published."""
        group = target.open("r")
        stored, request = target.own_attributes(group), planned.request
        schema = _joined_schema(stored["schema"], json.loads(request.schema.to_json()), target)
        _check_names(target, group, schema, planned.layout)
        now, options = self.request.fingerprint.to_attributes(), dict(stored.get("options", {}))
        for name in ("fill_values", "dimension_names"):
            if now["options"].get(name):
                options[name] = {**(options.get(name) or {}), **now["options"][name]}
        if request.encoded_images:
            options["encoded_images"] = [*(options.get("encoded_images") or ()), *request.encoded_images]
        source = dict(stored.get("source", {}))
        if "schema" in source and "schema" in now["source"]:
            # Rows that are appended later are read with all features.
            source["schema"] = _both(source["schema"], now["source"]["schema"])
        attributes = {
            "schema": json.loads(schema.to_json()),
            "source": source,
            "options": options,
            LAST: last_run(identity, fingerprint_of(self), stored, unanswered),
        }
        user = request.attributes.of_group(request.schema)
        coordinates = " ".join(filter(None, (group.attrs.get("coordinates"), user.get("coordinates"))))  # type: ignore[arg-type]
        arrays = {name: metadata_document(each) for name, each in planned.metadata.items()}
        others = {**user, **({"coordinates": coordinates} if coordinates else {})}
        return Publication(identity, self.kind, now, attributes, {}, arrays=arrays, others=others)


def _check_labels(target: TargetGroup, group: zarr.Group, request: ConversionRequest) -> None:
    """Refuse a coordinate without rows, or a unit, that differs from the group's."""
    labels = request.attributes
    for name, (_, values) in labels.constants.items():
        found: Any = group.get(array_name(name))
        stored = np.zeros(0) if found is None else np.asarray(found[...])
        if stored.shape != values.shape or not np.array_equal(stored, values, equal_nan=values.dtype.kind in "fc"):
            raise SchemaError(
                f"coordinate {name!r} {'is not in the store' if found is None else 'has other values in the store'}, "
                f"where all rows share it: ds.drop_vars({name!r}) leaves it out",
                target.location,
            )
    for name, attributes in labels.arrays.items():
        found = group.get(array_name(name))
        units = None if found is None else found.attrs.get("units")
        if units is not None and attributes.get("units", units) != units:
            raise SchemaError(
                f"{name!r} is in {units!r} in the store, and in {attributes['units']!r} in the given rows: convert it",
                target.location,
            )


Addition = NewGroup | AddedRows | AddedColumns


def check_append_dim(append_dim: str, options: Mapping[str, Any], owner: str = "", advice: str = "") -> None:
    """Raise ValueError unless the rows that these options describe have the dimension `append_dim`."""
    rows = options.get("rows_name", "record")
    if rows != append_dim:
        found = f"the dimension of the rows{owner} is {rows!r}"
        raise ValueError(f"append_dim={append_dim!r}: {found}{advice.format(rows)}")


def fingerprint_of(addition: Addition) -> str:
    """Return a digest of what is added, its rows and their functions: the same call finds that it is added already.

    Options are those of the group, or refused.
    """
    kind, fingerprint = addition.kind, addition.request.fingerprint
    if isinstance(addition, NewGroup) and addition.added is not None:
        kind = addition.added
    # The same columns may be rows, or columns.
    return digest(
        [
            kind,
            canonical_source(fingerprint.source),
            fingerprint.records,
            fingerprint.rows,
            fingerprint.functions,
            dict(fingerprint.classes),
        ]
    )


def published_lengths(target: TargetGroup) -> dict[str, int]:
    """Return the length of each array that readers find, by the attributes of the group; none without a group.

    The metadata of an array may have the length of a run that was killed while it published.
    """
    attributes = target.stored_attributes()
    if not attributes.get("complete"):
        return {}
    schema, rows = Schema.from_json(json.dumps(attributes["schema"])), int(attributes["records"])
    counts = BorderCounts.concatenate(schema, [])
    items = _items(target, target.open("r"), schema, rows)
    for feature, numbers in items.items():
        counts.items[feature][-1, : len(numbers)] = numbers
    return {spec.name: spec.shape[0] for spec in zarr_layout(schema, rows, RowGrid(1, 1, 1), counts).arrays}


def _opened(target: TargetGroup) -> ZarrSource:
    """Open the group; refuse one that nothing can be added to."""
    source = open_source(target)
    if source.is_virtual:
        raise UnsupportedFormatError(
            "the group has references to records: append to it by virtual_zarr(…).to_icechunk(…, append_dim='record')",
            target.location,
        )
    return source


def _both(stored: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Join two schemas' features as JSON, the first one's first."""
    names = {each["name"] for each in stored["features"]}
    new = [each for each in given["features"] if each["name"] not in names]
    joined = {**stored, "features": [*stored["features"], *new]}
    for key in ("message", "sequence_features", "example_features", "classes", "groups", "inner_groups"):
        if key not in given:
            continue
        if key not in stored or key == "message":
            joined.setdefault(key, given[key])
        elif isinstance(stored[key], list):
            joined[key] = [*stored[key], *(name for name in given[key] if name not in names)]
        else:
            joined[key] = {**given[key], **stored[key]}
    if "records" in given:
        joined["records"] = _both(stored["records"], given["records"]) if "records" in stored else given["records"]
    return joined


def _joined_schema(stored: Mapping[str, Any], given: Mapping[str, Any], target: TargetGroup) -> Schema:
    """Return the schema of a group with new columns."""
    both = sorted({*stored.get("groups", ())} & {*given.get("groups", ())})
    if both:
        raise SchemaError(
            f"the store has a group of columns {both[0]!r} already, whose columns share its row_splits: give the new "
            f"group another name with groups=",
            target.location,
        )
    return Schema.from_json(json.dumps(_both(stored, given)))


def _check_names(target: TargetGroup, group: zarr.Group, schema: Schema, layout: ZarrLayout) -> None:
    """Refuse arrays whose names, or dimensions, the group has for something else."""
    new = {spec.name for spec in layout.arrays}
    own = {each for spec in layout.arrays for each in spec.dimensions}
    stored: dict[str, Any] = {
        each.name: group[each.name] for each in arrays_without_rows(schema) if each.name not in new
    }
    dimensions = {name: tuple(array.metadata.dimension_names) for name, array in stored.items()}
    of_group = {each for names in dimensions.values() for each in names}
    # Consolidated metadata lack arrays of other programs.
    stored_metadata = target.objects().sizes(f"{name}/zarr.json" for name in sorted(new))
    for path, size in stored_metadata.items():
        if size is not None:
            name = path.removesuffix("/zarr.json")
            raise SchemaError(
                f"the store has an array {name!r} that does not belong to its columns: write the column under another "
                f"name",
                target.location,
            )
    clash = next(iter(sorted(new & of_group | {*stored} & (own - of_group))), None)
    if clash is not None:
        raise SchemaError(
            f"{clash!r} would be the name of an array and of a dimension of the store, which xarray reads as its "
            f"coordinate: write the column under another name",
            target.location,
        )
    check_axis_lengths(
        [
            *((name, dimensions[name], array.shape) for name, array in stored.items()),
            *((spec.name, spec.dimensions, spec.shape) for spec in layout.arrays),
        ]
    )


# Options in the fingerprint that an append may give again.
_LAYOUT = (
    *("chunks", "shards", "compressors", "filters", "dimension_names", "fill_values", "consolidated"),
    "encoded_images",
)


def files_of_group(target: TargetGroup) -> Iterator[tuple[str, tuple[int, Any]]]:
    """Yield size and version of each shard that a group was converted from, by name, the first ones first."""
    attributes = target.stored_attributes()
    nodes = [appended_node(number) for number in range(1, attributes.get(APPENDS, 0) + 1)]
    found = target.objects().get(nodes) if nodes else {}
    appended = (json.loads(found[node] or b"{}").get("attributes", {}) for node in nodes)
    for source in (attributes.get("source", {}), *appended):
        facts = zip(source.get("sizes", ()), source.get("versions", ()), strict=True)
        yield from zip(source.get("files", ()), facts, strict=True)


def shards_to_append(target: TargetGroup, shards: Shards) -> list[str]:
    """Return the paths of the shards that a group does not hold; raise ShardChangedError for one that has changed."""
    held = {file_key(file): facts for file, facts in files_of_group(target)}
    now, paths = shards_origin(shards), dict[tuple[Any, ...], str]()
    for path, file, size, version in zip(shards.paths, now["files"], now["sizes"], now["versions"], strict=True):
        key = file_key(file)
        if key not in held:
            paths.setdefault(key, path)
        elif held[key] != (size, version):
            raise ShardChangedError(
                f"the store {target} holds this shard with {plural(held[key][0], 'byte')} as it was before, and now it "
                f"has {plural(size, 'byte')}: convert all shards again, or give only the new ones",
                Location(file),
            )
    return list(paths.values())


def _items(target: TargetGroup, group: Any, schema: Schema, rows: int) -> dict[str, list[int]]:
    """Count a group's items at each level, by its last splits."""
    counts: dict[str, list[int]] = {}
    for feature, levels in flat_levels(schema).items():
        items = counts[feature] = [rows]
        for part, stride in zip(levels.splits, levels.strides, strict=True):
            name = splits_name(feature, schema) if len(items) == 1 else f"{array_name(feature)}.{part}"
            at = items[-1] * stride
            last: NDArray[Any] = target.read_entries(group[name], Location(f"{target}/{name}"), at, at + 1)
            items.append(int(last[0]))
    return counts
