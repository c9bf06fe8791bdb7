"""Features of TFDS data sets, read and written.

`features.json` holds the features. `features/metadata/splits.py` finds the directory, its splits and shards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dask_tfrecord.errors import FEATURES, Location, SchemaError
from dask_tfrecord.features import (
    Encoded,
    Feature,
    FixedLenFeature,
    FloatImageFeature,
    ImageFeature,
    RaggedFeature,
    RawFeature,
    RowLengths,
    TextFeature,
    UniformRowLength,
    VarLenFeature,
)
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.features.tfds_entries import Entry, class_entry, sequence_entry
from dask_tfrecord.shards.remote import join, read_text

INFO, FEATURES_FILE = "dataset_info.json", "features.json"
# Names of all files that describe a data set.
METADATA = re.compile(r"dataset_info\.json|features\.json|[^/\\]+\.labels\.txt")
TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
# Of a split that grows: another number of shards does not change the names of those that exist.
_GROWING_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}"


# Returns the class names in a label file, given the stem of its name, or None if the file does not exist.
Labels = Callable[[str], Sequence[str] | None]

# Field of the current format that holds a feature, by class name.
_KINDS = {
    "FeaturesDict": "featuresDict",
    "Tensor": "tensor",
    "Scalar": "tensor",
    "ClassLabel": "classLabel",
    "Image": "image",
    "LabeledImage": "image",
    "Video": "video",
    "Audio": "audio",
    "BBoxFeature": "boundingBox",
    "Text": "text",
    "Translation": "translation",
    "TranslationVariableLanguages": "translation",
    "Sequence": "sequence",
    "Dataset": "sequence",
}
_STRINGS = ("string", "str", "bytes", "object")
_RAGGED_VALUES, _ROW_LENGTHS = "ragged_flat_values", "ragged_row_lengths_"


def schema_from_features(text: str, labels: Labels = lambda stem: None) -> Schema:
    """Return the schema of a `features.json`.

    Parameters
    ----------
    text : str
        Text of the `features.json`.
    labels : callable, optional
        Returns the class names of a feature, given the stem of their file (``objects-label`` for
        ``objects-label.labels.txt``), or None.

    Returns
    -------
    Schema
        Features by their keys in the records, with the class names. Fields of a sequence are a group if its items are
        dictionaries: the steps of an episode.

    Raises
    ------
    SchemaError
        If the text is not a `features.json`, or a feature class is unknown or its storage format can't be read.

    Examples
    --------
    >>> schema_from_features('{"pythonClassName": "Translation", "translation": {"languages": ["de", "en"]}}')
    Schema of 2 features
    feature  class        dtype  shape
    de       TextFeature  bytes  ()
    en       TextFeature  bytes  ()
    """
    try:
        kind, content = _kind(json.loads(text))
        if kind not in ("featuresDict", "translation"):
            raise SchemaError(f"the outermost feature of a data set is a FeaturesDict; got {kind}")
        collector = _FeatureCollector(labels)
        collector.visit(kind, content, "", "", ())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = error if isinstance(error, SchemaError) else repr(error)
        raise SchemaError(
            f"features.json can't be read: {reason}; give " + FEATURES + ", for example those of infer_schema(urlpath)"
        ) from error
    return Schema(collector.features, classes=collector.classes, groups=collector.groups)


def _kind(feature: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the kind of a feature and its description, with the field names of the current format."""
    if "type" not in feature:
        cls = str(feature.get("pythonClassName", "")).rpartition(".")[2]
        kind = next((kind for kind in _KINDS.values() if kind in feature), None)
        if kind is not None:
            return kind, {**feature[kind], "class": cls}
        content = json.loads(feature["jsonFeature"]["json"]) if "jsonFeature" in feature else {}
    else:
        cls = str(feature["type"]).rpartition(".")[2]
        content = feature["content"]
        content = json.loads(content) if isinstance(content, str) else content
    if cls not in _KINDS:
        raise SchemaError(f"the storage format of class {cls!r} is unknown")
    if cls == "FeaturesDict" and "proto_cls" not in feature:
        return "featuresDict", {"features": content}
    # The older format has names in snake case: encoding_format for encodingFormat.
    named = {_camel(key): value for key, value in (content or {}).items()}
    return _KINDS[cls], {**named, "class": cls}


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(part.title() for part in rest)


def _tfds_shape(value: Any, otherwise: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Read a shape in either format; -1 stands in for an unknown size."""
    if value is None:
        return otherwise
    sizes = value.get("dimensions", ()) if isinstance(value, Mapping) else value
    return tuple(-1 if size is None else int(size) for size in sizes)


def _dtype(value: Any) -> str:
    return "bytes" if value in _STRINGS else str(value)


class _FeatureCollector:
    """Visitor that collects the features of a tree of TFDS features, their class names, and their groups.

    A group holds the fields of a sequence of variable length whose items are dictionaries.
    """

    def __init__(self, labels: Labels) -> None:
        self.features: dict[str, Feature] = {}
        self.classes: dict[str, Sequence[str]] = {}
        self.groups: dict[str, list[str]] = {}
        self._labels = labels
        # The outermost sequence around the visited feature.
        self._group: str | None = None

    def visit(self, kind: str, content: dict[str, Any], name: str, stem: str, lengths: tuple[int, ...]) -> None:
        """Add a feature of a kind and all features nested in it.

        `name` is its key in the records, `stem` that of the name of its label file. `lengths` are those of the
        sequences around it, the outermost first; -1 if one varies.
        """
        if kind == "featuresDict":
            for child, feature in content.get("features", {}).items():
                # TFDS replaces "/" in the name of a label file by "." and joins levels by "-".
                below = child.replace("/", ".")
                below = "-".join([*stem.split("/"), below]) if stem else below
                self.visit(*_kind(feature), f"{name}/{child}" if name else child, below, lengths)
        elif kind == "sequence":
            length = content.get("length", 0)
            size = -1 if length is None else int(length)
            inner, described = _kind(content["feature"])
            if not lengths and name:
                self._group = name if size == -1 and inner == "featuresDict" else None
            self.visit(inner, described, name, stem, (*lengths, size))
            if not lengths:
                self._group = None
        elif kind == "translation":
            self._translation(content, name, lengths)
        else:
            try:
                self._leaf(kind, content, name, lengths)
                self._add_classes(kind, content, name, stem)
            except SchemaError as error:
                raise SchemaError(f"feature {name!r}: {error}") from None

    def _translation(self, content: dict[str, Any], name: str, lengths: tuple[int, ...]) -> None:
        various = content["class"] == "TranslationVariableLanguages" or content.get("variableLanguagesPerExample")
        keys = ("language", "translation") if various else content["languages"]
        for key in keys:
            self._text({}, f"{name}/{key}" if name else key, (*lengths, -1) if various else lengths)

    def _leaf(self, kind: str, content: dict[str, Any], name: str, lengths: tuple[int, ...]) -> None:
        if kind == "classLabel":
            self._values(name, "int64", (), lengths)
        elif kind == "boundingBox":
            self._values(name, "float32", (4,), lengths)
        elif kind == "text":
            self._text(content, name, lengths)
        elif kind == "image":
            self._image(content, name, _tfds_shape(content.get("shape"), (-1, -1, 3)), lengths)
        elif kind == "video":
            frames, *frame = _tfds_shape(content.get("shape")) or (-1, -1, -1, 3)
            self._image(content, name, tuple(frame), (*lengths, frames))
        elif kind == "audio" and content.get("lazyDecode"):
            # The encoded audio file: FLAC, MP3 or another format.
            self._values(name, "bytes", (), lengths)
        else:
            shape = _tfds_shape(content.get("shape"), (-1,) if kind == "audio" else ())
            self._tensor(content, name, shape, lengths)

    def _text(self, content: dict[str, Any], name: str, lengths: tuple[int, ...]) -> None:
        if content.get("useEncoder"):
            self._values(name, "int64", (-1,), lengths)
        elif len(lengths) == 1 and lengths[0]:
            self._add(name, TextFeature(count=lengths[0]))
        elif lengths:
            self._values(name, "bytes", (), lengths)
        else:
            self._add(name, TextFeature(default_value="" if content.get("optional") else None))

    def _image(self, content: dict[str, Any], name: str, shape: tuple[int, ...], lengths: tuple[int, ...]) -> None:
        dtype = str(content.get("dtype") or "uint8")
        if len(shape) != 3:
            raise SchemaError(f"an image has a shape (height, width, channels); got {shape}")
        channels = shape[2] if shape[2] in (1, 3, 4) else 0
        is_float = dtype == "float32"
        image = FloatImageFeature(shape) if is_float else ImageFeature(shape, dtype, channels=channels)
        if not lengths:
            self._add(name, image)
        elif lengths == (-1,) or (len(lengths) == 1 and lengths[0] and -1 not in shape):
            self._add(name, image.with_count(lengths[0]))
        elif len(lengths) > 1 and -1 not in shape:
            self._ragged(name, "bytes", (), len(lengths), image)
        else:
            self._values(name, "bytes", (), lengths)

    def _tensor(self, content: dict[str, Any], name: str, shape: tuple[int, ...], lengths: tuple[int, ...]) -> None:
        dtype = _dtype(content.get("dtype", "int64"))
        encoding = str(content.get("encoding") or "none").lower()
        if shape.count(-1) > 1:
            # Records store the shape if more than one size is unknown.
            self._values(f"{name}/shape", "int32", (len(shape),), lengths)
            name = f"{name}/value"
        if encoding == "none":
            self._values(name, dtype, shape, lengths, _tfds_default(dtype) if content.get("optional") else None)
        elif dtype == "bytes" or len(lengths) > 1 or 0 in lengths or (lengths not in ((), (-1,)) and -1 in shape):
            self._values(name, "bytes", (), lengths)
        else:
            self._add(
                name,
                RawFeature(
                    shape if shape.count(-1) <= 1 else (-1,),
                    np.dtype(dtype).newbyteorder("<").str,
                    count=lengths[0] if lengths else None,
                    compression_type="ZLIB" if encoding == "zlib" else None,
                ),
            )

    def _values(
        self, name: str, dtype: str, shape: tuple[int, ...], lengths: tuple[int, ...], default: Any = None
    ) -> None:
        """Add a feature of listed values, with the shape that the array had before TFDS flattened it."""
        sizes = (*lengths, *shape)
        if len(lengths) > 1:
            self._ragged(name, dtype, shape, len(lengths))
        elif -1 not in sizes:
            self._add(name, FixedLenFeature(sizes, dtype, default))
        elif sizes[0] == -1 and -1 not in sizes[1:]:
            self._add(name, VarLenFeature(dtype, shape=sizes))
        else:
            # The number of values does not determine the sizes, so rows of this column are not those of a sequence.
            self._add(name, VarLenFeature(dtype), is_flat=True)

    def _ragged(self, name: str, dtype: str, shape: tuple[int, ...], rank: int, values: Encoded | None = None) -> None:
        lengths = (RowLengths(f"{name}/{_ROW_LENGTHS}{level}") for level in range(rank - 1))
        uniform = (UniformRowLength(size) for size in shape)
        self._add(name, RaggedFeature(dtype, f"{name}/{_RAGGED_VALUES}", (*lengths, *uniform), values=values))

    def _add(self, name: str, feature: Feature, *, is_flat: bool = False) -> None:
        if name in self.features:
            raise SchemaError("two features have this name")
        self.features[name] = feature
        if self._group is not None and feature.ragged_rank and not is_flat:
            self.groups.setdefault(self._group, []).append(name)

    def _add_classes(self, kind: str, content: dict[str, Any], name: str, stem: str) -> None:
        """Add the class names of a feature, if it has any."""
        if kind == "classLabel" or content.get("class") == "LabeledImage" or "label" in content:
            names = content.get("names") or content.get("labels") or self._labels(stem)
            if names and not isinstance(names, int):
                self.classes[name] = tuple(names)


def _tfds_default(dtype: str) -> Any:
    """Return the value TFDS reads for a missing optional tensor: the minimum of the dtype, b"" or False."""
    if dtype == "bytes":
        return b""
    found = np.dtype(dtype)
    if found.kind == "b":
        return False
    return int(np.iinfo(found).min) if found.kind in "iu" else float(np.finfo(found).min)


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
        if feature.stored_key not in (None, name, f"{name}/{_RAGGED_VALUES}"):
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
    return schema[name].tfds_item(name, schema.classes.get(name), format)


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
        """Return the text of a `dataset_info.json` with this split and those of the text before."""
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
