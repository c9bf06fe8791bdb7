"""Write the files that describe a TFDS data set.

`features.json` holds the features. `features/metadata/splits.py` finds the directory, its splits and shards. These
files are published after the shards, and taken back if a write fails, as all files of a run: `stores/files/stage.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dask_tfrecord.errors import Location, SchemaError
from dask_tfrecord.features import VarLenFeature
from dask_tfrecord.features.metadata.tfds_features import RAGGED_VALUES
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.features.tfds_entries import Entry, class_entry, sequence_entry, values_entry
from dask_tfrecord.shards.remote import join, read_text

INFO, FEATURES_FILE = "dataset_info.json", "features.json"
# Names of all files that describe a data set.
METADATA = re.compile(r"dataset_info\.json|features\.json|[^/\\]+\.labels\.txt")
TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
# Of a split that grows: another number of shards does not change the names of those that exist.
_GROWING_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}"

_NAME_SYNTAX = {"name": r"[a-zA-Z_]\w*", "version": r"\d+\.\d+\.\d+", "split": r"[a-zA-Z_]\w*"}


@dataclass(frozen=True, slots=True)
class TFDSNames:
    """Name of a TFDS data set, its version (three numbers), and one split."""

    name: str
    version: str
    split: str

    @classmethod
    def from_mapping(cls, given: Any) -> TFDSNames:
        """Read the argument `tfds` of a user; raise ValueError for names that TFDS does not accept."""
        valid = "tfds is a mapping such as {'name': 'flowers', 'version': '1.0.0', 'split': 'train'}"
        if not isinstance(given, Mapping) or set(given) != set(_NAME_SYNTAX):
            raise ValueError(f"{valid}; got {given!r}")
        for key, syntax in _NAME_SYNTAX.items():
            if not isinstance(given[key], str) or not re.fullmatch(syntax, given[key]):
                raise ValueError(f"{valid}; {given[key]!r} is not a valid {key}")
        return cls(**given)

    def template(self, of_tfds: str = TEMPLATE) -> str:
        """Return the template of the shard names for `to_tfrecord`; raise SchemaError for unknown fields."""
        return shard_name(of_tfds, self.name, self.split, "{shard:05d}", "{shards:05d}")


def shard_name(template: str, name: str, split: str, index: str, total: str) -> str:
    """Fill in a template of shard names, as `tensorflow_datasets.core.naming` does; refuse unknown fields."""
    known = {"DATASET": name, "SPLIT": split, "FILEFORMAT": "tfrecord", "SHARD_INDEX": index}
    known |= {"NUM_SHARDS": total, "SHARD_X_OF_Y": f"{index}-of-{total}"}
    try:
        return re.sub(r"\{(\w+)\}", lambda field: known[field[1]], template)
    except KeyError as error:
        raise SchemaError(f"the template {template!r} has field {error}; known are {', '.join(known)}") from None


def tfds_groups(schema: Schema) -> dict[str, tuple[str, ...]]:
    """Return the groups that TFDS has a class for: a sequence of dictionaries.

    Names of its features begin with the name of the group, each of them lists its items, and no feature has the name of
    the group.
    """
    return {
        group: names
        for group, names in schema.groups.items()
        if group not in schema
        and all(name.startswith(f"{group}/") and _item_of(name, schema, "png") is not None for name in names)
    }


def _features_entry(schema: Schema, formats: Mapping[str, str]) -> dict[str, Any]:
    """Return the entry of all features; names are divided at "/", and groups are sequences of dictionaries."""
    if schema.message != "Example":
        raise SchemaError(f"TFDS reads Examples only, and these records are {schema.message}s")
    entries: dict[str, Any] = {}
    for group, names in schema.groups.items():
        items = {name[len(group) + 1 :]: _item_of(name, schema, formats.get(name, "png")) for name in names}
        entries[group] = sequence_entry(_nested(items))
    for name, feature in schema.items():
        if feature.stored_key not in (None, name, f"{name}/{RAGGED_VALUES}"):
            raise SchemaError(f"feature {name!r}: TFDS reads the key of that name; got {feature}")
        if schema.group_of(name) is None:
            entries[name] = feature.tfds_entry(name, schema.classes.get(name), formats.get(name, "png"))
            if entries[name] is None:
                raise SchemaError(f"feature {name!r}: TFDS has no class that reads {feature}")
    return _nested(entries)


def _nested(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dictionary of entries, with dictionaries for the names that have a "/"."""
    children: dict[str, Any] = {}
    below: dict[str, dict[str, Any]] = {}
    for name, entry in entries.items():
        first, _, rest = name.partition("/")
        if first and rest and first not in entries:
            below.setdefault(first, {})[rest] = entry
        else:
            # The first part is another feature. TFDS reads the key of a name with "/" too.
            children[name] = entry
    children |= {first: _nested(inner) for first, inner in below.items()}
    return class_entry("featuresDict", {"features": children})


def _label_stems(entry: Mapping[str, Any], name: str, stem: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each feature with classes, and the stem of its label file."""
    if "sequence" in entry:
        yield from _label_stems(entry["sequence"]["feature"], name, stem)
    elif "featuresDict" in entry:
        for child, inner in entry["featuresDict"]["features"].items():
            below = child.replace("/", ".")
            yield from _label_stems(inner, f"{name}/{child}" if name else child, f"{stem}-{below}" if stem else below)
    elif "classLabel" in entry or "label" in entry.get("image", {}):
        yield name, stem


def _item_of(name: str, schema: Schema, format: str) -> Entry | None:
    """Return the entry of one item of a ragged feature; None if TFDS lacks a class for it."""
    feature, labels = schema[name], schema.classes.get(name)
    entry = feature.tfds_entry(name, labels, format)
    if entry is not None and isinstance(feature, VarLenFeature):
        # A tensor of any number of values, whose items lack an entry.
        return values_entry(feature.dtype, feature.item_shape, labels)
    item: Entry | None = (entry or {}).get("sequence", {}).get("feature")
    return item


@dataclass(frozen=True, slots=True)
class TFDSMetadata:
    """Metadata files of a directory with the shards of a split."""

    directory: str
    names: TFDSNames
    texts: Mapping[str, str]  # of `features.json` and of the label files, by file name
    template: str = TEMPLATE  # of the names of the shards, in the form of TFDS
    listed: int | None = None  # shards of the split before others are added; None to replace the split

    @classmethod
    def from_schema(cls, directory: str, names: TFDSNames, schema: Schema, formats: Mapping[str, str]) -> TFDSMetadata:
        """Return the metadata for records of a schema; raise SchemaError if no TFDS class reads a feature."""
        entry = _features_entry(schema, formats)
        texts = {FEATURES_FILE: json.dumps(entry, indent=4, sort_keys=True)}
        for name, stem in _label_stems(entry, "", ""):
            texts[f"{stem}.labels.txt"] = "".join(f"{label}\n" for label in schema.classes[name])
        return cls(directory, names, texts)

    def appending(self, storage_options: Mapping[str, Any]) -> TFDSMetadata:
        """Return the metadata that add shards to the split, or begin one that can grow.

        Raises SchemaError if the names of its shards have their total: all of them would have to change.
        """
        before, place = self._read(INFO, storage_options), Location(join(self.directory, INFO))
        self._info(before, (), 0)
        found = [] if before is None else json.loads(before).get("splits", ())
        split = next((each for each in found if each.get("name") == self.names.split), None)
        if split is None:
            return replace(self, template=_GROWING_TEMPLATE, listed=0)
        template, lengths = split.get("filepathTemplate") or TEMPLATE, split.get("shardLengths", ())
        if "{NUM_SHARDS}" in template or "{SHARD_X_OF_Y}" in template:
            raise SchemaError(
                f"mode='a': the shards of split {self.names.split!r} have their total number in their names "
                f"({template}), which readers derive from the metadata: write another split, or write this one to "
                f"another directory with mode='a', whose shards are numbered without a total",
                place,
            )
        if not lengths:
            raise SchemaError(f"mode='a': split {self.names.split!r} does not list the lengths of its shards", place)
        return replace(self, template=template, listed=len(lengths))

    def check(self, storage_options: Mapping[str, Any]) -> None:
        """Check that the directory is empty or holds the same data set with the same features."""
        before = self._read(INFO, storage_options)
        self._info(before, (), 0)
        for name, text in self.texts.items():
            existing = self._read(name, storage_options)
            others = before is not None and any(
                split.get("name") != self.names.split or self.listed is not None
                for split in json.loads(before).get("splits", ())
            )
            if others and existing is not None and _json_value(existing) != _json_value(text):
                which = "shards of this split" if self.listed else "other splits"
                raise SchemaError(
                    f"the {which} hold other features: expected {text:.300}", Location(join(self.directory, name))
                )

    def documents(self, counts: Sequence[int], nbytes: int, storage_options: Mapping[str, Any]) -> dict[str, bytes]:
        """Return all files by path, `dataset_info.json` last, for added shards of some numbers of records and bytes.

        Files that describe earlier shards are left out.
        """
        info = self._info(self._read(INFO, storage_options), counts, nbytes)
        kept = {
            name for name in self.texts if self.listed is not None and self._read(name, storage_options) is not None
        }
        texts = {name: text for name, text in self.texts.items() if name not in kept} | {INFO: info}
        return {join(self.directory, name): text.encode() for name, text in texts.items()}

    def _read(self, name: str, storage_options: Mapping[str, Any]) -> str | None:
        return read_text(join(self.directory, name), storage_options)

    def _info(self, before: str | None, counts: Sequence[int], nbytes: int) -> str:
        """Add this split to the text of a `dataset_info.json`."""
        names = self.names
        info: dict[str, Any] = {"name": names.name, "version": names.version, "fileFormat": "tfrecord", "splits": []}
        if before is not None:
            try:
                info = json.loads(before)
                existing = info["name"], info["version"], info.get("fileFormat") or "tfrecord"
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise SchemaError(f"dataset_info.json can't be read: {error!r}", Location(self.directory)) from error
            if existing != (names.name, names.version, "tfrecord"):
                raise SchemaError(
                    f"the directory holds {existing[0]} {existing[1]} ({existing[2]}); write {names.name} "
                    f"{names.version} to another",
                    Location(self.directory),
                )
        splits = [each for each in info.get("splits", ()) if each.get("name") != names.split]
        split: dict[str, Any] = {
            "name": names.split,
            "filepathTemplate": self.template,
            "shardLengths": [],
            "numBytes": "0",
        }
        if self.listed:
            # The shards that are listed keep their place.
            split |= next((each for each in info.get("splits", ()) if each not in splits), {})
        if self.listed not in (None, len(split["shardLengths"])):
            raise SchemaError(
                f"split {names.split!r} had {self.listed:,} shards when this write began, and now lists "
                f"{len(split['shardLengths']):,}: another program changed it",
                Location(join(self.directory, INFO)),
            )
        split["shardLengths"] = [*split["shardLengths"], *map(str, counts)]
        split["numBytes"] = str(int(split["numBytes"]) + nbytes)
        info["splits"] = [*splits, split]
        return json.dumps(info, indent=2, sort_keys=True)


def _json_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
