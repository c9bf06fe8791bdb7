"""Check rows that are appended against the columns and options of their group, and lay them out."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from dask_tfrecord.arrays.sources import shards_origin
from dask_tfrecord.errors import Location, SchemaError, ShardChangedError, UnsupportedFormatError, plural
from dask_tfrecord.options import ZarrWriteOptions
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.shard import Shards
from dask_tfrecord.stores.units import BorderCounts, RowTasks, flat_levels
from dask_tfrecord.stores.zarr.codec import ImageCodec
from dask_tfrecord.stores.zarr.fingerprint import digest, schema_differences
from dask_tfrecord.stores.zarr.growing import LAST
from dask_tfrecord.stores.zarr.plan import (
    ConversionRequest,
    RowGrid,
    ZarrLayout,
    array_name,
    rows_of_a_read,
    splits_name,
    zarr_layout,
)
from dask_tfrecord.stores.zarr.read import ZarrSource
from dask_tfrecord.stores.zarr.store import TargetGroup


def append_request(
    target: TargetGroup, arrays: Mapping[str, Any], append_dim: str, options: ZarrWriteOptions
) -> ConversionRequest:
    """Check the arguments of an append to a complete group, before any row is read.

    Options of the layout are those of the group; another value of one raises a ValueError.
    """
    if options["mode"] == "w":
        raise ValueError("mode='w' replaces the group, and append_dim= adds rows to it: pass only one of them")
    target.check_rewritable()
    target.check_format()
    target.journal().check_free()
    stored = target.stored_attributes().get("options", {})
    own = options.copy()
    own["encoded_images"] = bool(stored.get("encoded_images"))
    request = ConversionRequest.from_arguments(arrays, own)
    given = request.fingerprint.options
    for name, found in (("the store", stored), ("the given rows", given)):
        rows = found.get("rows_name", "record")
        if rows != append_dim:
            raise ValueError(f"append_dim={append_dim!r}: the dimension of the rows of {name} is {rows!r}")
    for name in _LAYOUT:
        value = given.get(name)
        if value not in (None, "auto", True) and value != stored.get(name):
            raise ValueError(
                f"{name} was {stored.get(name)!r} when the store was written, and now is {value!r}: appended rows have "
                f"the layout of the store"
            )
    return request


def shards_to_append(target: TargetGroup, shards: Shards) -> list[str]:
    """Return the paths of the shards that a group does not hold; raise ShardChangedError for one that has changed."""
    source = target.stored_attributes().get("source", {})
    facts = zip(source.get("sizes", ()), source.get("versions", ()), strict=True)
    held = dict(zip(source.get("files", ()), facts, strict=True))
    now, found = shards_origin(shards), []
    for path, file, size, version in zip(shards.paths, now["files"], now["sizes"], now["versions"], strict=True):
        if file not in held:
            found.append(path)
        elif held[file] != (size, version):
            raise ShardChangedError(
                f"the store {target} holds this shard with {plural(held[file][0], 'byte')} of another time, and now it "
                f"has {plural(size, 'byte')}: convert all shards again, or give the new ones only",
                Location(file),
            )
    return found


# Options in the fingerprint that an append may give again.
_LAYOUT = (
    *("chunks", "shards", "compressors", "filters", "dimension_names", "fill_values", "consolidated"),
    "encoded_images",
)


def check_appendable(target: TargetGroup, source: ZarrSource, request: ConversionRequest) -> None:
    """Raise SchemaError with both sides if rows have other columns than the group."""
    if source.is_virtual:
        raise UnsupportedFormatError(
            "the group has references to records: append to it by virtual_zarr(…).to_icechunk(…, append_dim='record')",
            target.location,
        )
    stored, given = (json.loads(schema.to_json()) for schema in (source.schema, request.schema))
    if "groups" not in given:
        # These columns have equal numbers of items in the stored rows; the appended rows are checked.
        given |= {key: stored[key] for key in ("groups", "inner_groups") if key in stored}
    differences = list(schema_differences(stored, given))
    if differences:
        raise SchemaError(
            f"cannot append rows of other columns: {'; '.join(differences)}. The first of each two is the column of "
            f"the store; open the rows with its features, or convert them with map_blocks",
            target.location,
        )


def appended_layout(target: TargetGroup, source: ZarrSource, request: ConversionRequest) -> ZarrLayout:
    """Lay out the arrays of a group with the appended rows, in the chunks and shards of the group."""
    schema, rows, before = source.schema, request.rows, len(source.rows)
    group = target.open("r")
    items = _items(target, group, schema, before)
    # A layout without rows gives the names and parts of the arrays of the group.
    bare = zarr_layout(schema, 0, RowGrid(1, 1, 1), BorderCounts.concatenate(schema, []))
    stored: dict[str, Any] = {spec.name: group[spec.name] for spec in bare.arrays}
    strides = {spec.name: spec.unit for spec in bare.arrays if spec.by_rows}
    unit = math.lcm(*((stored[name].shards or stored[name].chunks)[0] // stride for name, stride in strides.items()))
    row_tasks = RowTasks(rows, uuid.uuid4().hex, schema)
    grid = RowGrid(unit, unit, rows_of_a_read(row_tasks.row_sizes()))
    counts = row_tasks.count_borders(unit, grid.most, before % unit).after(items)
    layout = zarr_layout(schema, before + (rows.nrows or 0), grid, counts)
    arrays = tuple(
        replace(
            spec,
            chunk=stored[spec.name].chunks[0],
            unit=(stored[spec.name].shards or stored[spec.name].chunks)[0],
            dimensions=tuple(stored[spec.name].metadata.dimension_names),
            encoded=isinstance(stored[spec.name].serializer, ImageCodec),
        )
        for spec in layout.arrays
    )
    return replace(layout, arrays=arrays, first_row=before)


def _items(target: TargetGroup, group: Any, schema: Schema, rows: int) -> dict[str, list[int]]:
    """Return the items of each level of the flat features of a group, by its last splits."""
    found: dict[str, list[int]] = {}
    for feature, levels in flat_levels(schema).items():
        items = found[feature] = [rows]
        for part, stride in zip(levels.splits, levels.strides, strict=True):
            name = splits_name(feature, schema) if len(items) == 1 else f"{array_name(feature)}.{part}"
            at = items[-1] * stride
            last: NDArray[Any] = target.read_entries(group[name], Location(f"{target}/{name}"), at, at + 1)
            items.append(int(last[0]))
    return found


def changed_attributes(
    stored: Mapping[str, Any], request: ConversionRequest, records: int, identity: str
) -> dict[str, Any]:
    """Return the attributes of a group that change with appended rows."""
    now = request.fingerprint.to_attributes()
    then, source = stored.get("source", {}), dict(stored.get("source", {}))
    if "files" in then or "files" in now["source"]:
        for key in ("files", "sizes", "versions"):
            source[key] = [*then.get(key, ()), *now["source"].get(key, ())]
    last = {"id": identity, "fingerprint": digest(now)}
    rows = digest([stored.get("rows", ""), now["rows"]])
    return {"records": records, "source": source, "rows": rows, LAST: last}
