"""Add rows or columns to a complete group: the run records them next to the checkpoint until readers see them.

Chunks come first. A chunk that already holds rows of the group is written again, with these rows first. Readers still
see the old rows, because the lengths of the arrays have not changed. Then come the metadata of the arrays, and last
those of the group: one object with the number of rows and the consolidated metadata, which give zarr and xarray all
lengths at once. So a run that ends early has changed nothing that they read. Without consolidated metadata, zarr sees
one array after another grow between the last two steps; all of their rows are written by then.

For example, five rows in chunks of four, and two more: the second chunk is written with rows 4 to 6, `x/zarr.json` gets
the length 7, and `zarr.json` the length 7 and 7 rows.

New columns are written in the same order. Their arrays have chunks without metadata until all are written, and no
reader finds an array without metadata.

The shards of each append are the attributes of a group of their own, `APPENDS/NUMBER`. A list of all of them in the
attributes of the group would be written again by each append, and make it longer than the one before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dask_tfrecord.errors import IncompleteStoreError
from dask_tfrecord.stores.documents import Count, Number, ObjectName, Positive, Token, parse
from dask_tfrecord.stores.zarr.checkpoint import Checkpoint
from dask_tfrecord.stores.zarr.store import (
    CHECKPOINT_FOLDER,
    GroupObjects,
    TargetGroup,
    group_document,
    stored_attribute,
    values_of_attribute,
)

_RECORD = f"{CHECKPOINT_FOLDER}/append.json"
_METADATA = "zarr.json"
# Attribute of a group: the last run that added to it.
LAST = "appended"
# Attribute of a group: the number of appends that recorded their shards. Folder of these records.
APPENDS = "appends"
_APPENDS_FOLDER = f"{CHECKPOINT_FOLDER}.appends"

_OTHER_RUN = "another run has added to this group, or has replaced it: call to_zarr again"


def appended_node(number: int) -> str:
    """Return the name of the metadata whose attributes are the shards of an append; the first one has number 1."""
    return f"{_APPENDS_FOLDER}/{number}/{_METADATA}"


@dataclass(frozen=True, slots=True)
class Growth:
    """Additions of a run to a group."""

    identity: Token
    # Identity of the last run that added to the group before it.
    previous: str | None
    # Inputs and options of the run, as attributes of a group.
    fingerprint: Mapping[str, Any]
    # Attributes of this library that change with it.
    attributes: Mapping[str, Any]
    # Length of each array before and after it, and the length of a write unit.
    lengths: Mapping[ObjectName, tuple[Count, Count, Positive]]
    # Metadata of new arrays, by name.
    arrays: Mapping[ObjectName, Mapping[str, Any]] = field(default_factory=dict)
    # Shards of the appended rows, by the number of the append.
    files: Mapping[Number, Mapping[str, Any]] = field(default_factory=dict)
    # Attributes of the user that change with it.
    others: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, objects: GroupObjects) -> Growth | None:
        """Return the additions of the run that appends, or ended before it was done; None without one."""
        found = objects.get([_RECORD])[_RECORD]
        growth = None if found is None else parse(cls, found, _RECORD)
        if growth is not None and not isinstance(growth.attributes.get(LAST), Mapping):
            raise IncompleteStoreError(f"{_RECORD} has no attributes.{LAST}")
        return growth

    def record(self, objects: GroupObjects) -> None:
        """Record the additions before the first chunk is written."""
        objects.put(_RECORD, json.dumps(asdict(self), ensure_ascii=False).encode())

    def publish(self, objects: GroupObjects) -> None:
        """Show the additions to readers.

        Raises IncompleteStoreError if another run has replaced this one: a copy of the last task may be late.
        """
        self.write(objects, lambda: self._check_current(objects))

    def write(self, objects: GroupObjects, check: Callable[[], object] = lambda: None) -> None:
        """Write the metadata of the group with the additions; `check` before each object.

        Objects are read before `check`, so that it finds each run that has changed them since.
        """
        for number, files in self.files.items():
            check()
            objects.put(f"{_APPENDS_FOLDER}/{_METADATA}", group_document({}))
            objects.put(appended_node(int(number)), group_document(files))
        for name, array in self.arrays.items():
            check()
            objects.put(f"{name}/{_METADATA}", json.dumps(array, indent=2).encode())
        lengths = {name: after for name, (_, after, _) in self.lengths.items()}
        self._set_lengths(objects, lengths, check)
        document = json.loads(objects.get([_METADATA])[_METADATA] or b"")
        attributes = document["attributes"]
        attributes |= {
            **self.others,
            **stored_attribute({**values_of_attribute(attributes), **self.attributes}),
        }
        consolidated = (document.get("consolidated_metadata") or {}).get("metadata")
        if consolidated is not None:
            consolidated |= self.arrays
        for name, (_, after, _) in self.lengths.items():
            if consolidated is not None and name in consolidated:
                consolidated[name]["shape"][0] = after
        check()
        objects.put(_METADATA, json.dumps(document, indent=2).encode())

    def _check_current(self, objects: GroupObjects) -> None:
        """Raise IncompleteStoreError if another run has added to the group, or begun to."""
        found = objects.get([_RECORD, _METADATA])
        attributes = json.loads(found[_METADATA] or b"")["attributes"]
        last = values_of_attribute(attributes).get(LAST, {}).get("id")
        recorded = json.loads(found[_RECORD] or b"{}").get("identity")
        if recorded != self.identity or last not in (self.previous, self.identity):
            raise IncompleteStoreError(_OTHER_RUN)

    def discard(self, objects: GroupObjects) -> None:
        """Remove the additions, unless they are published."""
        objects.drop(f"{name}/{_METADATA}" for name in self.arrays)
        for name in self.arrays:
            objects.remove(name)
        self._set_lengths(objects, {name: before for name, (before, _, _) in self.lengths.items()}, lambda: None)
        for name, (before, after, unit) in self.lengths.items():
            objects.drop(f"{name}/{key}" for key in _chunk_keys(objects, name, -(-before // unit), -(-after // unit)))
        objects.remove(CHECKPOINT_FOLDER)

    def _set_lengths(self, objects: GroupObjects, lengths: Mapping[str, int], check: Callable[[], object]) -> None:
        """Set the lengths of arrays in their own metadata; `check` before each change."""
        for name, found in objects.get(f"{name}/{_METADATA}" for name in lengths).items():
            document = json.loads(found or b"")
            length = lengths[name.removesuffix(f"/{_METADATA}")]
            if document["shape"][0] != length:
                document["shape"][0] = length
                check()
                objects.put(name, json.dumps(document, indent=2).encode())


def _chunk_keys(objects: GroupObjects, name: str, first: int, past: int) -> list[str]:
    """Return the keys of chunks of an array with the default encoding of keys, by their index along the first axis."""
    document = json.loads(objects.get([f"{name}/{_METADATA}"])[f"{name}/{_METADATA}"] or b"")
    inner = "/0" * (len(document["shape"]) - 1)
    return [f"c/{index}{inner}" for index in range(first, past)]


@dataclass(frozen=True, slots=True)
class GrowthCheckpoint(Checkpoint):
    """Completed units of a run that adds to a group."""

    def growth(self, target: TargetGroup) -> Growth | None:
        """Return the additions; None if they are published. Raise IncompleteStoreError if another run replaced them."""
        growth = Growth.read(self.objects)
        if growth is not None and growth.identity == self.identity:
            return growth
        if target.stored_attributes().get(LAST, {}).get("id") == self.identity:
            return None
        raise IncompleteStoreError(_OTHER_RUN, target.location)

    def is_written(self, target: TargetGroup) -> bool:
        """Return True if the run is published; raise IncompleteStoreError if another one has replaced it."""
        return self.growth(target) is None

    def close(self) -> None:
        """Delete the checkpoint, and the record of the additions unless it belongs to another run."""
        growth = Growth.read(self.objects)
        if growth is not None and growth.identity == self.identity:
            self.objects.drop([_RECORD])
        Checkpoint.close(self)
