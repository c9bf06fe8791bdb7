"""Writing of TFDS metadata: `features.json`, `dataset_info.json` and label files of a split.

`tensorflow_datasets.builder_from_directory` opens a directory with these files and reads its records by them.
`tfds` reads the same `features.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dask_tfrecord.errors import Location, SchemaError
from dask_tfrecord.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    ImageFeature,
    RaggedFeature,
    RawFeature,
    RowLengths,
    TextFeature,
    VarLenFeature,
)
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.remote import join, read_text, url_to_fs
from dask_tfrecord.storage.streams import write_file

_INFO, _FEATURES = "dataset_info.json", "features.json"
_PACKAGE = "tensorflow_datasets.core.features."
_CLASSES = {
    "featuresDict": "features_dict.FeaturesDict",
    "tensor": "tensor_feature.Tensor",
    "classLabel": "class_label_feature.ClassLabel",
    "image": "image_feature.Image",
    "text": "text_feature.Text",
    "sequence": "sequence_feature.Sequence",
}
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_SYNTAX = {"name": r"[a-zA-Z_]\w*", "version": r"\d+\.\d+\.\d+", "split": r"[a-zA-Z_]\w*"}
_DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class TFDSNames:
    """Name of a TFDS data set, its version, and one of its splits.

    Attributes
    ----------
    name : str
        Name of the data set.
    version : str
        Version of three numbers, for example "1.0.0".
    split : str
        Name of the split.
    """

    name: str
    version: str
    split: str

    @classmethod
    def from_mapping(cls, given: Any) -> TFDSNames:
        """Read the argument `tfds` of a user.

        Raises
        ------
        ValueError
            If it is not a mapping of name, version and split to names that TFDS accepts.
        """
        valid = "tfds is a mapping such as {'name': 'flowers', 'version': '1.0.0', 'split': 'train'}"
        if not isinstance(given, Mapping) or set(given) != set(_SYNTAX):
            raise ValueError(f"{valid}; got {given!r}")
        for key, syntax in _SYNTAX.items():
            if not isinstance(given[key], str) or not re.fullmatch(syntax, given[key]):
                raise ValueError(f"{valid}; {given[key]!r} is not a valid {key}")
        return cls(**given)

    @property
    def template(self) -> str:
        """Template of the shard names for `to_tfrecord`."""
        return f"{self.name}-{self.split}.tfrecord-{{shard:05d}}-of-{{shards:05d}}"


def tfds_groups(schema: Schema) -> dict[str, tuple[str, ...]]:
    """Return the groups that TFDS has a class for: a sequence of dictionaries.

    Names of its features begin with the name of the group, each of them lists its items, and no feature has the name of
    the group.
    """
    return {
        group: names
        for group, names in schema.groups.items()
        if group not in schema
        and all(name.startswith(f"{group}/") and _item_entry(name, schema, "png") is not None for name in names)
    }


def features_text(schema: Schema, formats: Mapping[str, str]) -> str:
    """Return the text of a `features.json`.

    Names are divided at "/" into nested dictionaries, and groups are sequences of dictionaries, as TFDS nests them.

    Parameters
    ----------
    schema : Schema
        Schema of the records; its groups are those of `tfds_groups`.
    formats : mapping of str to str
        Encoding format of each image feature.

    Raises
    ------
    SchemaError
        If a feature can't be read by a TFDS class.
    """
    return json.dumps(_features_entry(schema, formats), indent=4, sort_keys=True)


def label_files(schema: Schema) -> dict[str, str]:
    """Return the text of each label file by its name."""
    texts = {}
    for name, stem in _label_stems(_features_entry(schema, {}), "", ""):
        texts[f"{stem}.labels.txt"] = "".join(f"{label}\n" for label in schema.classes[name])
    return texts


def info_text(names: TFDSNames, before: str | None, counts: Sequence[int], nbytes: int) -> str:
    """Return the text of a `dataset_info.json`.

    Parameters
    ----------
    names : TFDSNames
        Names of the data set and the written split.
    before : str or None
        Existing text; its other splits are kept.
    counts : sequence of int
        Number of records of each shard.
    nbytes : int
        Total size of the shards in bytes.

    Raises
    ------
    SchemaError
        If the existing text is invalid or describes another data set or version.
    """
    info: dict[str, Any] = {"name": names.name, "version": names.version, "fileFormat": "tfrecord", "splits": []}
    if before is not None:
        try:
            info = json.loads(before)
            existing = info["name"], info["version"], info.get("fileFormat") or "tfrecord"
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise SchemaError(f"dataset_info.json can't be read: {error!r}") from error
        if existing != (names.name, names.version, "tfrecord"):
            raise SchemaError(
                f"the directory holds {existing[0]} {existing[1]} ({existing[2]}); write {names.name} {names.version} "
                f"to another"
            )
    split = {
        "name": names.split,
        "filepathTemplate": _TEMPLATE,
        "shardLengths": [str(count) for count in counts],
        "numBytes": str(nbytes),
    }
    info["splits"] = [other for other in info.get("splits", ()) if other.get("name") != names.split] + [split]
    return json.dumps(info, indent=2, sort_keys=True)


def _entry(kind: str, content: Mapping[str, Any], cls: str | None = None) -> dict[str, Any]:
    return {"pythonClassName": _PACKAGE + (cls or _CLASSES[kind]), kind: content}


def _shape(sizes: Sequence[int]) -> dict[str, Any]:
    return {"dimensions": [str(size) for size in sizes]} if sizes else {}


def _tensor(dtype: str, sizes: Sequence[int], encoding: str = "none") -> dict[str, Any] | None:
    if dtype not in (*_DTYPES, *_FLOATS, "bytes"):
        return None
    named = "string" if dtype == "bytes" else dtype
    return _entry("tensor", {"dtype": named, "encoding": encoding, "shape": _shape(sizes)})


def _features_entry(schema: Schema, formats: Mapping[str, str]) -> dict[str, Any]:
    """Return the entry of all features."""
    if schema.message != "Example":
        raise SchemaError(f"TFDS reads Examples only, and these records are {schema.message}s")
    entries: dict[str, Any] = {}
    for group, names in schema.groups.items():
        items = {name[len(group) + 1 :]: _item_entry(name, schema, formats.get(name, "png")) for name in names}
        entries[group] = _sequence(_nested(items))
    for name, feature in schema.items():
        if schema.group_of(name) is None:
            entries[name] = _feature(name, feature, schema.classes.get(name), formats.get(name, "png"))
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
    return _entry("featuresDict", {"features": children})


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


def _sequence(entry: dict[str, Any] | None, length: int = -1) -> dict[str, Any] | None:
    return entry and _entry("sequence", {"feature": entry, "length": str(length)})


def _values(dtype: str, sizes: Sequence[int], labels: Sequence[str] | None) -> dict[str, Any] | None:
    """Return the entry of listed values: class labels, or a tensor."""
    if not labels or dtype != "int64" or len(sizes) > 1:
        return _tensor(dtype, sizes)
    label = _entry("classLabel", {"numClasses": str(len(labels))})
    return _sequence(label, sizes[0]) if sizes else label


def _item_entry(name: str, schema: Schema, format: str) -> dict[str, Any] | None:
    """Return the entry of one item of a ragged feature, or None if TFDS lacks a class for it."""
    feature, labels = schema[name], schema.classes.get(name)
    match feature:
        case VarLenFeature() if feature.ragged_rank == 1:
            return _values(feature.dtype, feature.shape[1:], labels)
        case RawFeature() | TextFeature() if feature.count is not None:
            return _feature(name, replace(feature, count=None), labels, format)
        case ImageFeature() | RaggedFeature():
            entry = _feature(name, feature, labels, format)
            item: dict[str, Any] | None = entry and entry["sequence"]["feature"]
            return item
    return None


def _feature(name: str, feature: Feature, labels: Sequence[str] | None, format: str) -> dict[str, Any] | None:
    """Return the entry of a feature in `features.json`, or None if TFDS can't read the feature."""
    match feature:
        case FixedLenFeature():
            return _values(feature.dtype, feature.shape, labels)
        case VarLenFeature() if feature.ragged_rank == 1:
            return _values(feature.dtype, feature.shape, labels)
        case FixedLenSequenceFeature():
            return _tensor(feature.dtype, (-1, *feature.shape))
        case RawFeature() | TextFeature() if feature.count is not None:
            return _sequence(_feature(name, replace(feature, count=None), labels, format), feature.count)
        case RawFeature() if feature.stored_dtype.isnative and feature.compression_type in (None, "ZLIB"):
            encoding = "bytes" if feature.compression_type is None else "zlib"
            return _tensor(feature.stored_dtype.name, feature.shape, encoding)
        case TextFeature():
            return _entry("text", {})
        case ImageFeature():
            return _image(feature, labels, format)
        case RaggedFeature():
            return _ragged(name, feature, labels)
    return None


def _image(feature: ImageFeature, labels: Sequence[str] | None, format: str) -> dict[str, Any] | None:
    sizes = (*feature.value_shape[:2], feature.value_shape[2] if feature.shape else feature.channels or -1)
    # TFDS stores float images in a format of its own, and requires the number of channels.
    if feature.dtype not in ("uint8", "uint16") or sizes[2] == -1 or format not in ("png", "jpeg"):
        return None
    content = {"shape": _shape(sizes), "dtype": feature.dtype, "encodingFormat": format}
    image = _entry("image", content)
    if labels:
        image = _entry("image", {**content, "label": {"numClasses": str(len(labels))}}, "labeled_image.LabeledImage")
    return image if feature.count is None else _sequence(image, feature.count)


def _ragged(name: str, feature: RaggedFeature, labels: Sequence[str] | None) -> dict[str, Any] | None:
    """Return nested sequences, or None if the keys are not those that TFDS uses."""
    levels = feature.ragged_rank - 1
    keys = [RowLengths(f"{name}/ragged_row_lengths_{level}") for level in range(levels)]
    if list(feature.partitions[:levels]) != keys or feature.value_key != f"{name}/ragged_flat_values" or not levels:
        return None
    entry = _values(feature.dtype, feature.item_shape, labels)
    for _ in range(levels + 1):
        entry = _sequence(entry)
    return entry


@dataclass(frozen=True, slots=True)
class TFDSMetadata:
    """Metadata files of a directory with the shards of a split.

    Attributes
    ----------
    directory : str
        Path or URL.
    names : TFDSNames
        Names of the data set and the split.
    texts : mapping of str to str
        Texts of `features.json` and of the label files, by file name.
    """

    directory: str
    names: TFDSNames
    texts: Mapping[str, str]

    @classmethod
    def from_schema(cls, directory: str, names: TFDSNames, schema: Schema, formats: Mapping[str, str]) -> TFDSMetadata:
        """Return the metadata for records of a schema.

        Raises
        ------
        SchemaError
            If a feature can't be read by a TFDS class.
        """
        return cls(directory, names, {_FEATURES: features_text(schema, formats), **label_files(schema)})

    def check(self, storage_options: Mapping[str, Any]) -> None:
        """Check that the directory is empty or holds the same data set with the same features.

        Raises
        ------
        SchemaError
            If the directory holds another data set, version or other features.
        """
        before = self._read(_INFO, storage_options)
        self._info(before, (), 0)
        for name, text in self.texts.items():
            existing = self._read(name, storage_options)
            others = before is not None and any(
                split.get("name") != self.names.split for split in json.loads(before).get("splits", ())
            )
            if others and existing is not None and _value(existing) != _value(text):
                raise SchemaError(
                    f"the other splits hold other features: expected {text:.300}", Location(join(self.directory, name))
                )

    def write(self, paths: Sequence[str], counts: Sequence[int], storage_options: Mapping[str, Any]) -> None:
        """Write all files, `dataset_info.json` last: a reader finds the split once its other files are complete."""
        nbytes = 0
        for path in paths:
            fs, inside = url_to_fs(path, **storage_options)
            fs.invalidate_cache()
            nbytes += int(fs.size(inside))
        info = self._info(self._read(_INFO, storage_options), counts, nbytes)
        for name, text in {**self.texts, _INFO: info}.items():
            write_file(join(self.directory, name), text.encode(), storage_options)

    def _read(self, name: str, storage_options: Mapping[str, Any]) -> str | None:
        return read_text(join(self.directory, name), storage_options)

    def _info(self, before: str | None, counts: Sequence[int], nbytes: int) -> str:
        try:
            return info_text(self.names, before, counts, nbytes)
        except SchemaError as error:
            raise SchemaError(error.message, Location(self.directory)) from error


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
