"""Directories of TFDS data sets, read and written: the files of each split, their record counts, and the features.

Splits, shards and counts stand in `dataset_info.json`, features in `features.json`. No shard is opened here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from fsspec.utils import stringify_path
from numpy.typing import NDArray

from dask_tfrecord.errors import FEATURES, SPLIT, Location, SchemaError, plural
from dask_tfrecord.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    ImageFeature,
    RaggedFeature,
    RawFeature,
    RowLengths,
    TextFeature,
    UniformRowLength,
    VarLenFeature,
)
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.remote import join, list_directories, read_text, url_to_fs
from dask_tfrecord.storage.streams import write_file

_INFO, _FEATURES = "dataset_info.json", "features.json"
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_MAX_SHARDS = 1_000_000
_MAX_RECORDS = 1 << 48
_VERSION = re.compile(r"\d+\.\d+\.\d+")


@dataclass(frozen=True, slots=True)
class TFDSSplit:
    """Files of one split.

    Attributes
    ----------
    name : str
        Name of the split in the data set.
    files : tuple of str
        Paths or URLs of the shards, in order.
    counts : tuple of int or None
        Number of records of each shard; None if old metadata lacks them.
    """

    name: str
    files: tuple[str, ...]
    counts: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class TFDSSelection:
    """Files and rows that a split specification selects.

    Attributes
    ----------
    files : tuple of str
        Shards in reading order.
    counts : tuple of int or None
        Number of records of each shard; None if unknown.
    spans : tuple of (int, int) or None
        Selected ranges of rows, numbered across all files; None for all rows.
    """

    files: tuple[str, ...]
    counts: tuple[int, ...] | None
    spans: tuple[tuple[int, int], ...] | None

    @property
    def rows(self) -> slice | NDArray[np.int64] | None:
        """Index of the selected rows into the rows of all files; None for all rows."""
        if self.spans is None or len(self.spans) == 1:
            return None if self.spans is None else slice(*self.spans[0])
        return np.concatenate([np.arange(start, stop) for start, stop in self.spans])


@dataclass(frozen=True, slots=True)
class TFDSFolder:
    """Directory of one version of a TFDS data set.

    Attributes
    ----------
    directory : str
        Path or URL.
    splits : tuple of TFDSSplit
        All splits of the data set.
    storage_options : mapping
        Options of the fsspec file system.
    """

    directory: str
    splits: tuple[TFDSSplit, ...]
    storage_options: Mapping[str, Any]

    @property
    def split_names(self) -> str:
        """Names of the splits, for messages."""
        return ", ".join(repr(each.name) for each in self.splits)

    def select(self, split: str | None = None) -> TFDSSelection:
        """Find the files and rows of a split. Without an argument, the data set must have exactly one split.

        Raises
        ------
        SchemaError
            If the split does not exist; the error lists the existing splits.
        """
        counts = {each.name: each.counts for each in self.splits}
        if split is None:
            if len(self.splits) != 1:
                raise SchemaError(
                    f"a TFDS data set with {len(self.splits)} splits: give "
                    + SPLIT
                    + f", one of {self.split_names or 'none'}",
                    Location(self.directory),
                )
            split = self.splits[0].name
        if not isinstance(split, str):
            raise SchemaError(f"split is a string such as 'train' or 'train[:10%]'; got {split!r:.100}")
        try:
            slices = _parse_split(split, counts)
        except SchemaError as error:
            raise SchemaError(error.message, Location(self.directory)) from None
        return _selection({each.name: each for each in self.splits}, slices)

    def schema(self) -> Schema | None:
        """Read the features; return None if the data set is an old one without `features.json`.

        Raises
        ------
        SchemaError
            If the storage format of a feature class is unknown.
        """
        text = read_text(join(self.directory, _FEATURES), self.storage_options)
        if text is None:
            return None
        try:
            return schema_from_features(text, self._labels)
        except SchemaError as error:
            raise SchemaError(error.message, Location(self.directory)) from error

    def _labels(self, stem: str) -> Sequence[str] | None:
        text = read_text(join(self.directory, _checked_name(f"{stem}.labels.txt")), self.storage_options)
        return None if text is None else [line.strip() for line in text.split("\n") if line.strip()]


def find_tfds(urlpath: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> TFDSFolder | None:
    """Find a TFDS data set in a directory or in its only version subdirectory.

    Parameters
    ----------
    urlpath : str or os.PathLike
        Path or fsspec URL of the directory.
    storage_options : mapping, optional
        Options of the fsspec file system.

    Returns
    -------
    TFDSFolder or None
        None if `dataset_info.json` does not exist or is in the format of Hugging Face.

    Raises
    ------
    SchemaError
        If the directory holds several versions, the file can't be read, or the records are not in TFRecord files.
    """
    directory = str(stringify_path(urlpath))
    text = read_text(join(directory, _INFO), storage_options)
    if text is None:
        versions = [name for name in list_directories(directory, storage_options) if _VERSION.fullmatch(name)]
        found = [(name, read_text(join(join(directory, name), _INFO), storage_options)) for name in versions]
        found = [(name, text) for name, text in found if text is not None]
        if len(found) > 1:
            names = ", ".join(name for name, _ in found)
            raise SchemaError(f"several versions of a TFDS data set: open one of {names}", Location(directory))
        if not found:
            return None
        directory, text = join(directory, found[0][0]), found[0][1]
    try:
        info = json.loads(text or "")
        if isinstance(info, dict) and isinstance(info.get("splits"), dict):
            return None
        splits = _splits(info, directory)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = error.message if isinstance(error, SchemaError) else repr(error)
        raise SchemaError(f"can't be read: {reason}", Location(join(directory, _INFO))) from error
    return TFDSFolder(directory, splits, {} if storage_options is None else storage_options)


def _splits(info: Mapping[str, Any], directory: str) -> tuple[TFDSSplit, ...]:
    formats = [info.get("fileFormat") or "tfrecord", *info.get("alternativeFileFormats", ())]
    if "tfrecord" not in formats:
        raise SchemaError(f"the records are in the format {formats[0]!r}, not in TFRecord files")
    splits = []
    for split in info.get("splits", ()):
        counts = tuple(_count(count, "shardLengths") for count in split.get("shardLengths", ())) or None
        if counts and sum(counts) > _MAX_RECORDS:
            raise SchemaError(f"the shardLengths of split {split['name']!r} add up to {sum(counts):,} records")
        shards = len(counts) if counts else _count(split.get("numShards", 0), "numShards")
        fields = {"DATASET": info["name"], "SPLIT": split["name"], "FILEFORMAT": "tfrecord"}
        template = split.get("filepathTemplate") or _TEMPLATE
        prefix, _, suffix = join(directory, "\0").partition("\0")
        files = tuple(prefix + name + suffix for name in _shard_names(template, fields, shards))
        splits.append(TFDSSplit(split["name"], files, counts if counts or shards else ()))
    return tuple(splits)


def _shard_names(template: str, fields: Mapping[str, str], shards: int) -> Iterator[str]:
    """Yield the names of the shards within the directory, by the rules of `tensorflow_datasets.core.naming`."""
    if shards > _MAX_SHARDS:
        raise SchemaError(f"a split has up to {_MAX_SHARDS:,} shards; the metadata lists {shards:,}")
    if not isinstance(template, str):
        raise SchemaError(f"a filepathTemplate is a string; got {template!r:.100}")
    width = max(5, len(str(shards)))
    total = f"{shards:0{width}}"
    # Literal text at even positions, field names at odd ones.
    segments = re.split(r"\{(\w+)\}", template)
    used = segments[1::2]
    for shard in range(shards):
        index = f"{shard:0{width}}"
        known = {**fields, "SHARD_INDEX": index, "NUM_SHARDS": total, "SHARD_X_OF_Y": f"{index}-of-{total}"}
        if unknown := [field for field in used if field not in known]:
            raise SchemaError(f"the template {template!r} has field {unknown[0]!r}; known are {', '.join(known)}")
        segments[1::2] = [known[field] for field in used]
        name = "".join(segments)
        # Names differ in digits.
        yield name if shard else _checked_name(name)


def _checked_name(name: str) -> str:
    """Return a file name from the metadata, or raise SchemaError if it leads out of the directory of the data set."""
    parts = re.split(r"[/\\]", name)
    if ".." in parts or parts[0] == "" or ":" in name or "\0" in name:
        raise SchemaError(
            f"the metadata name the file {name!r}, which is not within the directory of the data set: a name is a "
            f"relative path without '..' and ':'"
        )
    return name


def _count(value: Any, field: str) -> int:
    """Read a count, which protobuf writes to JSON as a string."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise SchemaError(f"{field} holds counts; got {value!r:.100}")
    count = int(value)
    if not 0 <= count <= _MAX_RECORDS:
        raise SchemaError(f"{field} holds counts from 0 to 2**48; got {value!r:.100}")
    return count


def _selection(splits: Mapping[str, TFDSSplit], slices: Sequence[_Slice]) -> TFDSSelection:
    """Return the shards that hold at least one record of the slices; rows are numbered across all of them."""
    files: list[str] = []
    counts: list[int] = []
    spans: list[tuple[int, int]] = []
    for name, start, stop in slices:
        split = splits[name]
        borders = [0, *accumulate(split.counts or ())]
        numbers = list(range(len(split.files)))
        if stop is not None:
            numbers = [shard for shard in numbers if borders[shard + 1] > start and borders[shard] < stop]
        files += [split.files[shard] for shard in numbers]
        if split.counts is not None:
            # From numbers of records in the split to those of rows.
            shift = sum(counts) - (borders[numbers[0]] if numbers else 0)
            spans.append((start + shift, (borders[-1] if stop is None else stop) + shift))
            counts += [split.counts[shard] for shard in numbers]
    is_whole = sum(stop - start for start, stop in spans) == sum(counts)
    if len(spans) == len(slices):
        return TFDSSelection(tuple(files), tuple(counts), None if is_whole else tuple(spans))
    if not is_whole:
        raise SchemaError("the metadata lacks the record counts of some of these splits: read slices one by one")
    return TFDSSelection(tuple(files), None, None)


_PLUS = re.compile(r"\s*\+\s*")
_TERM = re.compile(r"(?P<name>[\w-]+)(\[(?P<slice>[\w%:.-]+)\])?")
_BOUND = re.compile(r"((?P<value>-?[\d_.]+)(?P<unit>%|shard)?)?")
_SYNTAX = "a split is a name, NAME[from:to] in records, percent (10%) or shards (2shard), or several joined by +"


# Name of a split, its first record, and the one after the last; None for the end of a whole split.
_Slice = tuple[str, int, int | None]


def _parse_split(spec: str, lengths: Mapping[str, Sequence[int] | None]) -> list[_Slice]:
    """Parse a split as in `tensorflow_datasets.load`.

    Parameters
    ----------
    spec : str
        Names and slices of splits.
    lengths : mapping of str to sequence of int or None
        Number of records in each shard, by split; None if unknown.

    Returns
    -------
    list of (str, int, int or None)
        Slices in reading order, without empty ones.

    Raises
    ------
    SchemaError
        If a split does not exist, a slice is invalid or out of range, or the selection is empty.
    """
    if spec in lengths:
        return [(spec, 0, None)]
    parts = [part for term in _PLUS.split(spec) for part in _term(term, spec, lengths)]
    kept = [(name, start, stop) for name, start, stop in parts if stop is None or start < stop]
    if not kept:
        raise SchemaError(f"split {spec!r} holds no records; {_sizes(lengths)}")
    return kept


def _term(term: str, spec: str, lengths: Mapping[str, Sequence[int] | None]) -> list[_Slice]:
    """Parse one term between plus signs."""
    match = _TERM.fullmatch(term)
    if match is None:
        raise SchemaError(f"split {spec!r}: {term!r} is not a split: {_SYNTAX}")
    name, sliced = match["name"], match["slice"]
    if name == "all" and name not in lengths:
        if sliced is not None:
            raise SchemaError(f"split {spec!r}: 'all' can't be sliced; slice each split")
        return [(each, 0, None) for each in lengths]
    if name not in lengths:
        raise SchemaError(f"split {name!r} does not exist; {_sizes(lengths)}")
    if sliced is None:
        return [(name, 0, None)]
    counts = lengths[name]
    if counts is None:
        raise SchemaError(
            f"split {spec!r}: the metadata lacks the record counts of {name!r}; read all of it and take ds.rows[...]"
        )
    return [(name, *_range(sliced, spec, counts))]


def _range(text: str, spec: str, counts: Sequence[int]) -> tuple[int, int]:
    """Parse the text in brackets into a range of records; negative bounds count from the end."""
    wrong = SchemaError(f"split {spec!r}: [{text}] is not a slice: {_SYNTAX}")
    bounds = [_BOUND.fullmatch(bound) for bound in text.split(":")]
    found = [bound for bound in bounds if bound is not None]
    if len(found) != len(bounds) or not any(bound[0] for bound in found) or len(found) > 2:
        raise wrong
    unit, total = next((bound["unit"] for bound in found if bound["unit"]), ""), sum(counts)
    number = float if unit == "%" else int
    try:
        values = [None if bound["value"] is None else number(bound["value"]) for bound in found]
    except ValueError:
        raise wrong from None
    start, stop = values[0], values[-1]
    if len(values) == 1:
        # Only a shard can be selected by a single number.
        if unit != "shard" or start is None:
            raise wrong
        stop = start + 1
    if unit == "shard":
        start = None if start is None else sum(counts[: int(start)])
        last = len(counts) if stop is None else int(stop)
        stop = sum(counts[: last + len(counts) if last <= 0 else last])
    elif unit == "%":
        if any(abs(bound or 0) > 100 for bound in (start, stop)):
            raise SchemaError(f"split {spec!r}: percent are from -100 to 100; got [{text}]")
        start, stop = (None if bound is None else round(bound * total / 100.0) for bound in (start, stop))
    first, end = int(start or 0), total if stop is None else int(stop)
    if abs(first) > total or abs(end) > total:
        raise SchemaError(f"split {spec!r} reaches past the end: there are {plural(total, 'record')}")
    return first + total if first < 0 else first, end + total if end < 0 else end


def _sizes(lengths: Mapping[str, Sequence[int] | None]) -> str:
    """Return the end of an error message, which lists the existing splits."""
    sizes = (
        f"{name!r} (" + ("? records" if n is None else plural(sum(n), "record")) + ")" for name, n in lengths.items()
    )
    return f"the splits are {', '.join(sizes)}" if lengths else "the data set has no splits"


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


def _shape(value: Any, otherwise: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Read a shape in either format; -1 stands in for an unknown size."""
    if value is None:
        return otherwise
    sizes = value.get("dimensions", ()) if isinstance(value, Mapping) else value
    return tuple(-1 if size is None else int(size) for size in sizes)


def _dtype(value: Any) -> str:
    return "bytes" if value in _STRINGS else str(value)


class _FeatureCollector:
    """Visitor that collects the features of a tree of TFDS features.

    Attributes
    ----------
    features : dict of str to Feature
        Features by their keys in the records.
    classes : dict of str to sequence of str
        Class names by feature.
    groups : dict of str to list of str
        Fields of each sequence of variable length whose items are dictionaries, by the name of the sequence.
    """

    def __init__(self, labels: Labels) -> None:
        self.features: dict[str, Feature] = {}
        self.classes: dict[str, Sequence[str]] = {}
        self.groups: dict[str, list[str]] = {}
        self._labels = labels
        # The outermost sequence around the visited feature.
        self._group: str | None = None

    def visit(self, kind: str, content: dict[str, Any], name: str, stem: str, lengths: tuple[int, ...]) -> None:
        """Add a feature and all features nested in it.

        Parameters
        ----------
        kind : str
            Field of the current format.
        content : dict
            Description of the feature.
        name : str
            Key of the feature in the records.
        stem : str
            Stem of the name of its label file.
        lengths : tuple of int
            Length of each sequence around the feature, the outermost first; -1 if it varies.
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
            self._image(content, name, _shape(content.get("shape"), (-1, -1, 3)), lengths)
        elif kind == "video":
            frames, *frame = _shape(content.get("shape")) or (-1, -1, -1, 3)
            self._image(content, name, tuple(frame), (*lengths, frames))
        elif kind == "audio" and content.get("lazyDecode"):
            # The encoded audio file: FLAC, MP3 or another format.
            self._values(name, "bytes", (), lengths)
        else:
            shape = _shape(content.get("shape"), (-1,) if kind == "audio" else ())
            self._tensor(content, name, shape, lengths)

    def _text(self, content: dict[str, Any], name: str, lengths: tuple[int, ...]) -> None:
        if content.get("useEncoder"):
            self._values(name, "int64", (-1,), lengths)
        elif len(lengths) == 1 and lengths[0]:
            self._add(name, TextFeature(count=lengths[0]))
        elif lengths:
            self._values(name, "bytes", (), lengths)
        else:
            self._add(name, TextFeature("" if content.get("optional") else None))

    def _image(self, content: dict[str, Any], name: str, shape: tuple[int, ...], lengths: tuple[int, ...]) -> None:
        dtype = str(content.get("dtype") or "uint8")
        if len(shape) != 3:
            raise SchemaError(f"an image has a shape (height, width, channels); got {shape}")
        if dtype == "float32":
            # TFDS stores one float per pixel, its four bytes as four channels.
            shape, dtype = (*shape[:2], 4), "uint8"
        channels = shape[2] if shape[2] in (1, 3, 4) else 0
        if not lengths:
            self._add(name, ImageFeature(shape, dtype, channels=channels))
        elif lengths == (-1,) or (len(lengths) == 1 and lengths[0] and -1 not in shape):
            self._add(name, ImageFeature((*lengths, *shape), dtype, channels=channels))
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
            self._values(name, dtype, shape, lengths, _default(dtype) if content.get("optional") else None)
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

    def _ragged(self, name: str, dtype: str, shape: tuple[int, ...], rank: int) -> None:
        lengths = (RowLengths(f"{name}/{_ROW_LENGTHS}{level}") for level in range(rank - 1))
        uniform = (UniformRowLength(size) for size in shape)
        self._add(name, RaggedFeature(dtype, f"{name}/{_RAGGED_VALUES}", (*lengths, *uniform)))

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


def _default(dtype: str) -> Any:
    """Return the value TFDS reads for a missing optional tensor: the minimum of the dtype, b"" or False."""
    if dtype == "bytes":
        return b""
    found = np.dtype(dtype)
    if found.kind == "b":
        return False
    return int(np.iinfo(found).min) if found.kind in "iu" else float(np.finfo(found).min)


_PACKAGE = "tensorflow_datasets.core.features."
_CLASSES = {
    "featuresDict": "features_dict.FeaturesDict",
    "tensor": "tensor_feature.Tensor",
    "classLabel": "class_label_feature.ClassLabel",
    "image": "image_feature.Image",
    "text": "text_feature.Text",
    "sequence": "sequence_feature.Sequence",
}
_NAME_SYNTAX = {"name": r"[a-zA-Z_]\w*", "version": r"\d+\.\d+\.\d+", "split": r"[a-zA-Z_]\w*"}
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
        if not isinstance(given, Mapping) or set(given) != set(_NAME_SYNTAX):
            raise ValueError(f"{valid}; got {given!r}")
        for key, syntax in _NAME_SYNTAX.items():
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


def _entry(kind: str, content: Mapping[str, Any], cls: str | None = None) -> dict[str, Any]:
    return {"pythonClassName": _PACKAGE + (cls or _CLASSES[kind]), kind: content}


def _shape_json(sizes: Sequence[int]) -> dict[str, Any]:
    return {"dimensions": [str(size) for size in sizes]} if sizes else {}


def _tensor(dtype: str, sizes: Sequence[int], encoding: str = "none") -> dict[str, Any] | None:
    if dtype not in (*_DTYPES, *_FLOATS, "bytes"):
        return None
    named = "string" if dtype == "bytes" else dtype
    return _entry("tensor", {"dtype": named, "encoding": encoding, "shape": _shape_json(sizes)})


def _features_entry(schema: Schema, formats: Mapping[str, str]) -> dict[str, Any]:
    """Return the entry of all features; names are divided at "/", and groups are sequences of dictionaries."""
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
    if isinstance(feature, VarLenFeature):
        return _values(feature.dtype, feature.shape[1:], labels) if feature.ragged_rank == 1 else None
    entry = _feature(name, feature, labels, format) or {}
    item: dict[str, Any] | None = entry.get("sequence", {}).get("feature")
    return item


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
    content = {"shape": _shape_json(sizes), "dtype": feature.dtype, "encodingFormat": format}
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
        entry = _features_entry(schema, formats)
        texts = {_FEATURES: json.dumps(entry, indent=4, sort_keys=True)}
        for name, stem in _label_stems(entry, "", ""):
            texts[f"{stem}.labels.txt"] = "".join(f"{label}\n" for label in schema.classes[name])
        return cls(directory, names, texts)

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
        split = {
            "name": names.split,
            "filepathTemplate": _TEMPLATE,
            "shardLengths": [str(count) for count in counts],
            "numBytes": str(nbytes),
        }
        info["splits"] = [other for other in info.get("splits", ()) if other.get("name") != names.split] + [split]
        return json.dumps(info, indent=2, sort_keys=True)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
