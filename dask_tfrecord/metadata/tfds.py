"""Directories of TFDS data sets: the files of each split, their record counts, and the features.

Splits, shards and counts stand in `dataset_info.json`, features in `features.json`. No shard is opened here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fsspec.utils import stringify_path
from numpy.typing import NDArray

from dask_tfrecord.errors import Location, SchemaError, plural
from dask_tfrecord.features import (
    Feature,
    FixedLenFeature,
    ImageFeature,
    RaggedFeature,
    RawFeature,
    RowLengths,
    TextFeature,
    UniformRowLength,
    VarLenFeature,
)
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.remote import join, list_directories, read_text

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
                    f"a TFDS data set with {len(self.splits)} splits: give split=, one of {self.split_names or 'none'}",
                    Location(self.directory),
                )
            split = self.splits[0].name
        if not isinstance(split, str):
            raise SchemaError(f"split is a string such as 'train' or 'train[:10%]'; got {split!r:.100}")
        try:
            slices = split_slices(split, counts)
        except SchemaError as error:
            raise SchemaError(error.message, Location(self.directory)) from None
        splits = {each.name: each for each in self.splits}
        return _concatenate([_select_range(splits[each.name], each.start, each.stop) for each in slices])

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
        unknown = [field for field in used if field not in known]
        if unknown:
            raise SchemaError(f"the template {template!r} has field {unknown[0]!r}; known are {', '.join(known)}")
        segments[1::2] = [known[field] for field in used]
        yield _checked_name("".join(segments))


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


def _select_range(split: TFDSSplit, start: int | None, stop: int | None) -> TFDSSelection:
    """Select records `start` to `stop` of a split, and the shards that hold at least one of them."""
    if start is None or stop is None or split.counts is None:
        return TFDSSelection(split.files, split.counts, None)
    files, counts, begin, skipped = [], [], 0, 0
    for file, count in zip(split.files, split.counts, strict=True):
        if begin + count <= start:
            skipped += count
        elif begin < stop:
            files.append(file)
            counts.append(count)
        begin += count
    whole = start == skipped and stop - skipped == sum(counts)
    return TFDSSelection(tuple(files), tuple(counts), None if whole else ((start - skipped, stop - skipped),))


def _concatenate(selections: Sequence[TFDSSelection]) -> TFDSSelection:
    """Concatenate selections; the rows of each are numbered after those of the one before."""
    files = tuple(file for selection in selections for file in selection.files)
    known = [selection.counts for selection in selections if selection.counts is not None]
    if len(known) < len(selections):
        if any(selection.spans for selection in selections):
            raise SchemaError("the metadata lacks the record counts of some of these splits: read slices one by one")
        return TFDSSelection(files, None, None)
    counts = tuple(count for shards in known for count in shards)
    if not any(selection.spans for selection in selections):
        return TFDSSelection(files, counts, None)
    spans, begin = [], 0
    for selection, shards in zip(selections, known, strict=True):
        spans += [(begin + start, begin + stop) for start, stop in selection.spans or ((0, sum(shards)),)]
        begin += sum(shards)
    return TFDSSelection(files, counts, tuple(spans))


_PLUS = re.compile(r"\s*\+\s*")
_TERM = re.compile(r"(?P<name>[\w-]+)(\[(?P<slice>[\w%:.-]+)\])?")
_BOUND = re.compile(r"((?P<value>-?[\d_.]+)(?P<unit>%|shard)?)?")
_SYNTAX = "a split is a name, NAME[from:to] in records, percent (10%) or shards (2shard), or several joined by +"


@dataclass(frozen=True, slots=True)
class SplitSlice:
    """Consecutive records of one split.

    Attributes
    ----------
    name : str
        Name of the split.
    start, stop : int or None
        First record and the one after the last, from 0; both None for the whole split.
    """

    name: str
    start: int | None = None
    stop: int | None = None


def split_slices(spec: str, lengths: Mapping[str, Sequence[int] | None]) -> tuple[SplitSlice, ...]:
    """Parse a split specification.

    Parameters
    ----------
    spec : str
        Split as in `tensorflow_datasets.load`.
    lengths : mapping of str to sequence of int or None
        Number of records in each shard, by split; None if unknown.

    Returns
    -------
    tuple of SplitSlice
        Slices in reading order, without empty ones.

    Raises
    ------
    SchemaError
        If a split does not exist, a slice is invalid or out of range, or the selection is empty.
    """
    if spec in lengths:
        return (SplitSlice(spec),)
    parts = [part for term in _PLUS.split(spec) for part in _term(term, spec, lengths)]
    kept = tuple(part for part in parts if part.start is None or part.stop is None or part.start < part.stop)
    if not kept:
        raise SchemaError(f"split {spec!r} holds no records; {_sizes(lengths)}")
    return kept


def _term(term: str, spec: str, lengths: Mapping[str, Sequence[int] | None]) -> list[SplitSlice]:
    """Parse one term between plus signs."""
    match = _TERM.fullmatch(term)
    if match is None:
        raise SchemaError(f"split {spec!r}: {term!r} is not a split: {_SYNTAX}")
    name, sliced = match["name"], match["slice"]
    if name == "all" and name not in lengths:
        if sliced is not None:
            raise SchemaError(f"split {spec!r}: 'all' can't be sliced; slice each split")
        return [SplitSlice(each) for each in lengths]
    if name not in lengths:
        raise SchemaError(f"split {name!r} does not exist; {_sizes(lengths)}")
    if sliced is None:
        return [SplitSlice(name)]
    counts = lengths[name]
    if counts is None:
        raise SchemaError(
            f"split {spec!r}: the metadata lacks the record counts of {name!r}; read all of it and take ds.rows[...]"
        )
    return [SplitSlice(name, *_slice(sliced, spec, counts))]


def _slice(text: str, spec: str, counts: Sequence[int]) -> tuple[int, int]:
    """Parse the text in brackets into the range of records from ``start`` to ``stop``."""
    wrong = SchemaError(f"split {spec!r}: [{text}] is not a slice: {_SYNTAX}")
    bounds = [_BOUND.fullmatch(bound) for bound in text.split(":")]
    found = [bound for bound in bounds if bound is not None]
    if len(found) != len(bounds) or not any(bound[0] for bound in found) or len(found) > 2:
        raise wrong
    unit = next((bound["unit"] for bound in found if bound["unit"]), "")
    try:
        start, *rest = (_number(bound["value"], unit) for bound in found)
    except ValueError:
        raise wrong from None
    if not rest:
        # Only a shard can be selected by a single number.
        if unit != "shard" or start is None:
            raise wrong
        return _within(*_shards(int(start), int(start) + 1, counts), spec, sum(counts))
    if unit == "shard":
        return _within(*_shards(start, rest[0], counts), spec, sum(counts))
    if unit == "%":
        if any(abs(bound or 0) > 100 for bound in (start, rest[0])):
            raise SchemaError(f"split {spec!r}: percent are from -100 to 100; got [{text}]")
        start, stop = (None if bound is None else round(bound * sum(counts) / 100.0) for bound in (start, rest[0]))
        return _within(start, stop, spec, sum(counts))
    return _within(start, rest[0], spec, sum(counts))


def _number(value: str | None, unit: str) -> float | int | None:
    if value is None:
        return None
    return float(value) if unit == "%" else int(value)


def _shards(start: float | int | None, stop: float | int | None, counts: Sequence[int]) -> tuple[int, int]:
    """Return the range of records of shards ``start`` to ``stop``; negative numbers count from the end."""
    first = 0 if start is None else sum(counts[: int(start)])
    if stop is None:
        return first, sum(counts)
    last = int(stop)
    return first, sum(counts[: last + len(counts) if last <= 0 else last])


def _within(start: float | int | None, stop: float | int | None, spec: str, total: int) -> tuple[int, int]:
    """Return both bounds as record numbers from 0; negative bounds count from the end."""
    first, last = (int(start or 0), total if stop is None else int(stop))
    if abs(first) > total or abs(last) > total:
        raise SchemaError(f"split {spec!r} reaches past the end: there are {plural(total, 'record')}")
    return first + total if first < 0 else first, last + total if last < 0 else last


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
            f"features.json can't be read: {reason}; give features=, for example those of infer_schema(urlpath)"
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
