"""Show readers the result of a run when all of its units are written: a group, more rows, or more columns.

A run writes chunks first. Until it publishes, readers find the group as it was, or none: arrays without metadata are
not arrays, and chunks behind the end of an array are not read. A chunk that holds rows of the group already is written
again, with these rows first. Then come the metadata of the arrays, and last the group's: one object with the
number of rows and the consolidated metadata, which give zarr and xarray all lengths at once. So a run that ends early
has changed nothing that they read. Without consolidated metadata, zarr sees one array after another grow between the
last two steps; all of their rows are written by then.

For example, five rows in chunks of four, and two more: the second chunk is written with rows 4 to 6, `x/zarr.json` gets
the length 7, and `zarr.json` the length 7 and 7 rows.

In a directory, a group that replaces another one is written below the folder of the run. To publish it, the metadata of
the old group go first, so that it can't be opened while its arrays are moved away and the new ones into place. The
metadata of the new group come last. A run that ends between these steps is continued, or taken back: the old group is
whole again. Elsewhere the old group is removed before the first chunk is written, its metadata first.

A group for each append, `APPENDS/NUMBER`, has its shards as attributes. A list of all of them in the
attributes of the group would be written again by each append, and make it longer than the one before.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

from dask_tfrecord.stores.documents import Count, Number, ObjectName, Positive, Token, matches
from dask_tfrecord.stores.zarr.store import (
    APPENDS_FOLDER,
    GROUP_METADATA,
    GroupObjects,
    group_document,
    stored_attribute,
    values_of_attribute,
)

# Attribute of a group: the last run that added to it, or that created it to be added to.
LAST = "appended"
# Key of `LAST`: digests of what earlier runs added, and died or failed before their callers were told; the newest ones.
UNANSWERED, _MOST_UNANSWERED = "unanswered", 100
# Attribute of a group: the number of appends that recorded their shards.
APPENDS = "appends"

Kind = Literal["group", "rows", "columns"]
# Name of an array: one folder of the group, and not one of runs.
ArrayName = Annotated[ObjectName, matches(r"(?!\.dask_tfrecord)(?!\.{0,2}$)[^/\\\x00]+", "the name of an array")]


def identities(attributes: Mapping[str, Any]) -> list[str]:
    """Return digests of what runs added to a group: the unanswered additions, oldest first, then the last run's."""
    last = attributes.get(LAST)
    if not isinstance(last, Mapping):
        return []
    before = last.get(UNANSWERED)
    return [*(before if isinstance(before, list) else ()), str(last.get("fingerprint"))]


def run_ids(attributes: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the identities of the run that created a group, and of the last one that added to it, or None."""
    last = attributes.get(LAST)
    return attributes.get("id"), last.get("id") if isinstance(last, Mapping) else None


def last_run(identity: str, fingerprint: str, stored: Mapping[str, Any], unanswered: Collection[str]) -> dict[str, Any]:
    """Return the value of `LAST` for a run; `unanswered` is what earlier runs added without telling their callers."""
    found = {"id": identity, "fingerprint": fingerprint}
    *before, last = identities(stored) or [""]
    before += [last] if last in unanswered else []
    return found | ({UNANSWERED: before[-_MOST_UNANSWERED:]} if before else {})


def appended_node(number: int) -> str:
    """Return the name of the metadata whose attributes are the shards of an append; the first one has number 1."""
    return f"{APPENDS_FOLDER}/{number}/{GROUP_METADATA}"


@dataclass(frozen=True, slots=True)
class Publication:
    """The state that readers find once a run is published, recorded with its plan."""

    identity: Token
    kind: Kind
    # Inputs and options of the run, as attributes of a group.
    fingerprint: Mapping[str, Any]
    # Attributes of this library that change with it.
    attributes: Mapping[str, Any]
    # Length of each array before and after it, and the length of a write unit.
    lengths: Mapping[ArrayName, tuple[Count, Count, Positive]] = field(default_factory=dict)
    # Metadata of new arrays, by name.
    arrays: Mapping[ArrayName, Mapping[str, Any]] = field(default_factory=dict)
    # Shards of the appended rows, by the number of the append.
    files: Mapping[Number, Mapping[str, Any]] = field(default_factory=dict)
    # Attributes of the user that change with it.
    others: Mapping[str, Any] = field(default_factory=dict)
    # Folder of the run with the chunks of a group that will replace another one; empty if chunks are written in place.
    staging: str = ""
    # True for a group that replaces another one.
    replaces: bool = False

    def is_published(self, attributes: Mapping[str, Any]) -> bool:
        """Return True if readers find it, by the attributes of the group."""
        own, last = run_ids(attributes)
        return bool(self.identity == (own if self.kind == "group" else last))

    def write(self, objects: GroupObjects) -> None:
        """Write the metadata, the group's last: in place, or to the folder of a group that is not in place yet."""
        for number, files in self.files.items():
            objects.put(f"{APPENDS_FOLDER}/{GROUP_METADATA}", group_document({}))
            objects.put(appended_node(int(number)), group_document(files))
        objects.put_all({f"{self.staging}{name}/{GROUP_METADATA}": _as_json(own) for name, own in self.arrays.items()})
        for name, (_, after, _) in self.lengths.items():
            objects.change(f"{name}/{GROUP_METADATA}", partial(_with_length, after))
        if self.kind == "group":
            objects.put_all({f"{self.staging}{GROUP_METADATA}": self._new_group()})
        else:
            objects.change(GROUP_METADATA, self._group)

    def _new_group(self) -> bytes:
        """Return the metadata of a new group."""
        attributes = {**self.others, **stored_attribute(self.attributes)}
        document: dict[str, Any] = {"attributes": attributes, "zarr_format": 3}
        if self.attributes["options"].get("consolidated", True):
            arrays = {name: self.arrays[name] for name in sorted(self.arrays)}
            document["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": arrays}
        return _as_json({**document, "node_type": "group"})

    def _group(self, found: bytes | None) -> bytes:
        """Return the metadata of the group with the additions."""
        document = json.loads(found or b"")
        attributes = document["attributes"]
        attributes |= {**self.others, **stored_attribute({**values_of_attribute(attributes), **self.attributes})}
        consolidated = (document.get("consolidated_metadata") or {}).get("metadata")
        if consolidated is not None:
            consolidated |= self.arrays
        for name, (_, after, _) in self.lengths.items():
            if consolidated is not None and name in consolidated:
                consolidated[name]["shape"][0] = after
        return _as_json(document)

    def discard(self, objects: GroupObjects, published: Mapping[str, int]) -> None:
        """Remove what an unpublished run has written; `published` has the length of each array that readers find."""
        new = [name for name in self.arrays if name not in published and not self.staging]
        objects.drop(f"{name}/{GROUP_METADATA}" for name in new)
        for name in new:
            objects.remove(name)
        for name, (_, _, unit) in self.lengths.items():
            if name not in published:
                continue
            length = published[name]
            objects.change(f"{name}/{GROUP_METADATA}", partial(_with_length, length))
            past = -(-length // unit)
            for index in objects.children(f"{name}/c"):
                if index.isdecimal() and int(index) >= past:
                    objects.remove(f"{name}/c/{index}")


def _with_length(length: int, found: bytes | None) -> bytes:
    """Return the metadata of an array with another length."""
    document = json.loads(found or b"")
    if document["shape"][0] == length:
        return found or b""
    document["shape"][0] = length
    return _as_json(document)


def _as_json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=2).encode()
