"""Find shards at a path, and TFDS splits with their files and record counts.

`dataset_info.json` lists splits, shards and counts. This module opens no shard.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from fsspec.utils import stringify_path
from numpy.typing import NDArray

from dask_tfrecord.errors import SPLIT, Location, SchemaError, ShardNotFoundError, plural, repr_without_credentials
from dask_tfrecord.features.metadata.tfds_features import read_features_json
from dask_tfrecord.features.metadata.tfds_writer import FEATURES_FILE, INFO, TEMPLATE, shard_name
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.identity import file_key, is_within
from dask_tfrecord.shards.listing import find_shards
from dask_tfrecord.shards.remote import is_directory, join, list_directories, read_text
from dask_tfrecord.shards.shard import Shards, is_local

_MAX_SHARDS = 1_000_000
_MAX_RECORDS = 1 << 48
_VERSION = re.compile(r"\d+\.\d+\.\d+")


@dataclass(frozen=True, slots=True)
class TFDSSplit:
    """Files of one split."""

    name: str
    files: tuple[str, ...]  # paths or URLs of the shards, in order
    counts: tuple[int, ...] | None  # records of each shard; None if old metadata lacks them


@dataclass(frozen=True, slots=True)
class TFDSSelection:
    """Files and rows that a split specification selects."""

    files: tuple[str, ...]  # shards in reading order
    counts: tuple[int, ...] | None  # records of each shard; None if unknown
    spans: tuple[tuple[int, int], ...] | None  # ranges of rows, numbered across all files; None for all rows

    @property
    def rows(self) -> slice | NDArray[np.int64] | None:
        """Index of the selected rows into the rows of all files; None for all rows."""
        if self.spans is None or len(self.spans) == 1:
            return None if self.spans is None else slice(*self.spans[0])
        return np.concatenate([np.arange(start, stop) for start, stop in self.spans])


@dataclass(frozen=True, slots=True)
class TFDSFolder:
    """Directory with one version of a TFDS data set and all its splits."""

    directory: str
    splits: tuple[TFDSSplit, ...]
    storage_options: Mapping[str, Any]

    __repr__ = repr_without_credentials

    @property
    def split_names(self) -> str:
        """Names of the splits, for messages."""
        return ", ".join(repr(each.name) for each in self.splits)

    def select(self, split: str | None = None) -> TFDSSelection:
        """Find the files and rows of a split. Without an argument, the data set must have exactly one split."""
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
            raise SchemaError(f"split must be a string such as 'train' or 'train[:10%]'; got {split!r:.100}")
        try:
            slices = _parse_split(split, counts)
        except SchemaError as error:
            raise SchemaError(error.message, Location(self.directory)) from None
        return _selection({each.name: each for each in self.splits}, slices)

    def schema(self) -> Schema | None:
        """Read the features; return None if the data set is an old one without `features.json`."""
        text = read_text(join(self.directory, FEATURES_FILE), self.storage_options)
        if text is None:
            return None
        try:
            return Schema(**read_features_json(text, self._labels))
        except SchemaError as error:
            raise SchemaError(error.message, Location(self.directory)) from error

    def with_classes(self, schema: Schema) -> Schema:
        """Return inferred features with the names of classes in ``NAME.labels.txt``, for data sets before 2020."""
        numbers = [name for name, feature in schema.items() if feature.dtype == "int64"]
        found = {name: self._labels(name.replace("/", "-")) for name in numbers}
        classes = {name: names for name, names in found.items() if names}
        return schema.with_classes(classes) if classes else schema

    def _labels(self, stem: str) -> Sequence[str] | None:
        text = read_text(join(self.directory, _checked_name(f"{stem}.labels.txt")), self.storage_options)
        return None if text is None else [line.strip() for line in text.split("\n") if line.strip()]


def find_tfds(urlpath: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> TFDSFolder | None:
    """Find a TFDS data set in a directory or in its only version subdirectory.

    None if `dataset_info.json` does not exist or is in the format of Hugging Face. Raises SchemaError if the directory
    holds several versions, the file can't be read, or the records are not in TFRecord files.
    """
    directory = str(stringify_path(urlpath))
    text = read_text(join(directory, INFO), storage_options)
    if text is None:
        versions = [name for name in list_directories(directory, storage_options) if _VERSION.fullmatch(name)]
        described = [(name, read_text(join(join(directory, name), INFO), storage_options)) for name in versions]
        described = [(name, text) for name, text in described if text is not None]
        if len(described) > 1:
            names = ", ".join(name for name, _ in described)
            raise SchemaError(f"several versions of a TFDS data set: open one of {names}", Location(directory))
        if not described:
            return None
        directory, text = join(directory, described[0][0]), described[0][1]
    try:
        info = json.loads(text or "")
        if isinstance(info, dict) and isinstance(info.get("splits"), dict):
            return None
        splits = _known_splits(info, directory)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = error.message if isinstance(error, SchemaError) else repr(error)
        raise SchemaError(f"can't be read: {reason}", Location(join(directory, INFO))) from error
    return TFDSFolder(directory, splits, {} if storage_options is None else storage_options)


def _known_splits(info: Mapping[str, Any], directory: str) -> tuple[TFDSSplit, ...]:
    """List the splits of a `dataset_info.json`, with the paths and counts of their shards."""
    formats = [info.get("fileFormat") or "tfrecord", *info.get("alternativeFileFormats", ())]
    if "tfrecord" not in formats:
        raise SchemaError(f"the records are in the format {formats[0]!r}, not in TFRecord files")
    splits = []
    for split in info.get("splits", ()):
        counts = tuple(_json_count(count, "shardLengths") for count in split.get("shardLengths", ())) or None
        if counts and sum(counts) > _MAX_RECORDS:
            raise SchemaError(f"the shardLengths of split {split['name']!r} add up to {sum(counts):,} records")
        shards = len(counts) if counts else _json_count(split.get("numShards", 0), "numShards")
        template = split.get("filepathTemplate") or TEMPLATE
        prefix, _, suffix = join(directory, "\0").partition("\0")
        files = tuple(prefix + name + suffix for name in _shard_names(template, info["name"], split["name"], shards))
        splits.append(TFDSSplit(split["name"], files, counts if counts or shards else ()))
    return tuple(splits)


def _shard_names(template: str, data_set: str, split: str, shards: int) -> Iterator[str]:
    """Yield the names of the shards of a split within the directory."""
    if shards > _MAX_SHARDS:
        raise SchemaError(f"a split has up to {_MAX_SHARDS:,} shards; the metadata lists {shards:,}")
    if not isinstance(template, str):
        raise SchemaError(f"a filepathTemplate must be a string; got {template!r:.100}")
    width = max(5, len(str(shards)))
    for shard in range(shards):
        name = shard_name(template, data_set, split, f"{shard:0{width}}", f"{shards:0{width}}")
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


def _json_count(value: Any, field: str) -> int:
    """Read a count, which protobuf writes to JSON as a string."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise SchemaError(f"{field} must hold counts; got {value!r:.100}")
    count = int(value)
    if not 0 <= count <= _MAX_RECORDS:
        raise SchemaError(f"{field} must hold counts from 0 to 2**48; got {value!r:.100}")
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
            # From numbers of records in the split to numbers of rows.
            shift = sum(counts) - (borders[numbers[0]] if numbers else 0)
            spans.append((start + shift, (borders[-1] if stop is None else stop) + shift))
            counts += [split.counts[shard] for shard in numbers]
    is_whole = sum(stop - start for start, stop in spans) == sum(counts)
    if len(spans) == len(slices):
        return TFDSSelection(tuple(files), tuple(counts), None if is_whole else tuple(spans))
    if not is_whole:
        raise SchemaError("the metadata lacks the record counts of some of these splits: read slices one by one")
    return TFDSSelection(tuple(files), None, None)


_TERM = re.compile(r"(?P<name>[\w-]+)(\[(?P<slice>[\w%:.-]+)\])?")
_BOUND = re.compile(r"((?P<value>-?[\d_.]+)(?P<unit>%|shard)?)?")
_SYNTAX = "a split is a name, NAME[from:to] in records, percent (10%) or shards (2shard), or several joined by +"


# Name of a split, its first record, and the one after the last; None for the end of a whole split.
_Slice = tuple[str, int, int | None]


def _parse_split(spec: str, lengths: Mapping[str, Sequence[int] | None]) -> list[_Slice]:
    """Parse a split as in `tensorflow_datasets.load` into slices in reading order, without empty ones.

    `lengths` holds the records of each shard, by split. Raises SchemaError if a split does not exist, a slice is
    invalid or out of range, or the selection is empty.
    """
    if spec in lengths:
        return [(spec, 0, None)]
    # White space belongs around "+" only, as for TFDS: " train" is an unknown split.
    first, *others = spec.split("+")
    terms = [first, *(term.lstrip() for term in others)]
    terms[:-1] = [term.rstrip() for term in terms[:-1]]
    parts = [part for term in terms for part in _term(term, spec, lengths)]
    kept = [(name, start, stop) for name, start, stop in parts if stop is None or start < stop]
    if not kept:
        raise SchemaError(f"split {spec!r} holds no records; {_split_sizes(lengths)}")
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
        raise SchemaError(f"split {name!r} does not exist; {_split_sizes(lengths)}")
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
    parsed = [bound for bound in bounds if bound is not None]
    if len(parsed) != len(bounds) or not any(bound[0] for bound in parsed) or len(parsed) > 2:
        raise wrong
    unit = next((bound["unit"] for bound in parsed if bound["unit"]), "")
    total = sum(counts)
    number = float if unit == "%" else int
    try:
        values = [None if bound["value"] is None else number(bound["value"]) for bound in parsed]
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
            raise SchemaError(f"split {spec!r}: percentages must be from -100 to 100; got [{text}]")
        start, stop = (None if bound is None else round(bound * total / 100.0) for bound in (start, stop))
    first, end = int(start or 0), total if stop is None else int(stop)
    if abs(first) > total or abs(end) > total:
        raise SchemaError(f"split {spec!r} reaches past the end: there are {plural(total, 'record')}")
    return first + total if first < 0 else first, end + total if end < 0 else end


def _split_sizes(lengths: Mapping[str, Sequence[int] | None]) -> str:
    """Return the end of an error message, which lists the existing splits."""
    sizes = (
        f"{name!r} (" + ("? records" if n is None else plural(sum(n), "record")) + ")" for name, n in lengths.items()
    )
    return f"the splits are {', '.join(sizes)}" if lengths else "the data set has no splits"


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """Shards of a collection and their TFDS metadata."""

    shards: Shards
    folder: TFDSFolder | None = None
    selection: TFDSSelection | None = None  # selected split, whose files are `shards`

    def schema(self) -> Schema | None:
        """Return the schema of the metadata; None without metadata."""
        return None if self.folder is None else self.folder.schema()

    def with_classes(self, schema: Schema) -> Schema:
        """Return inferred features with the names of classes that the directory holds."""
        return schema if self.folder is None else self.folder.with_classes(schema)

    def counts(self, counts: str | Sequence[int] | None) -> str | Sequence[int] | None:
        """Return the counts of the metadata for "auto", if they have any; else the argument."""
        if isinstance(counts, str) and counts == "auto" and self.selection is not None:
            return counts if self.selection.counts is None else self.selection.counts
        return counts

    @property
    def rows(self) -> slice | NDArray[np.int64] | None:
        """Rows of the shards that belong to the split; None for all."""
        return None if self.selection is None else self.selection.rows

    def check(self, found: NDArray[np.int64]) -> None:
        """Check the counted records of shards that a split takes a part of; whole splits are not checked."""
        if self.selection is None or self.selection.spans is None:
            return
        for file, expected, records in zip(self.shards.paths, self.selection.counts or (), found, strict=True):
            if expected != records:
                raise SchemaError(
                    f"expected {expected:,} records by the metadata, found {records:,}; the split is defined by these "
                    f"counts: read the whole split and take ds.rows[...]",
                    Location(file),
                )


def resolve_collection(
    urlpath: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    split: str | None,
    *,
    compression: str | None,
    storage_options: Mapping[str, Any] | None,
    default: str | None = None,
) -> ResolvedPath:
    """Find the shards of a path; a directory of TFDS is read by its metadata, and `default` is its split without one.

    Raises ShardNotFoundError if no shard is found, and SchemaError if the split does not exist, or there are several
    and neither `split` nor `default`.
    """
    if not isinstance(urlpath, str | os.PathLike):
        if split is not None:
            raise SchemaError(
                f"split={split!r} requires the directory of a TFDS data set; got a list of paths: leave it out"
            )
        return ResolvedPath(find_shards(urlpath, compression=compression, storage_options=storage_options))
    if split is None:
        shards, folder = _without_split(urlpath, compression, storage_options)
        if shards is not None and folder is None:
            return ResolvedPath(shards)
    else:
        folder = find_tfds(urlpath, storage_options)
    if folder is None:
        problem = ""
        if is_directory(urlpath, storage_options):
            try:
                find_shards(urlpath, compression=compression, storage_options=storage_options)
            except ShardNotFoundError as error:
                problem = f"; {error.message}"
        raise ShardNotFoundError(
            f"split={split!r} requires a TFDS data set: expected a directory with a dataset_info.json in it or in its "
            f"only version{problem}. Without one, leave out "
            + SPLIT
            + ", and let the path name the files of the split",
            Location(str(urlpath)),
        )
    selection = folder.select(split or default)
    if not selection.files:
        raise SchemaError("the split has no shards", Location(folder.directory))
    try:
        shards = find_shards(selection.files, compression=compression, storage_options=storage_options)
    except ShardNotFoundError as error:
        if split is not None or default is None:
            raise
        raise ShardNotFoundError(
            f"a file of the splits {folder.split_names} is missing; give "
            + SPLIT
            + f" to read one of them: {error.message}",
            error.place,
        ) from None
    return ResolvedPath(shards, folder, selection)


def _without_split(
    urlpath: str | os.PathLike[str], compression: str | None, storage_options: Mapping[str, Any] | None
) -> tuple[Shards | None, TFDSFolder | None]:
    """Find shards, or else a TFDS data set."""
    try:
        shards = find_shards(urlpath, compression=compression, storage_options=storage_options)
    except ShardNotFoundError:
        # The directory of a data set holds directories of versions and no shards.
        folder = find_tfds(urlpath, storage_options) if is_directory(urlpath, storage_options) else None
        if folder is None:
            raise
        return None, folder
    first, directory = shards.paths[0], os.fspath(urlpath)
    if is_local(first):
        in_directory = is_directory(urlpath, storage_options)
    else:
        # Without a request to an object store.
        in_directory = is_within(first, directory) and file_key(first) != file_key(directory)
    return shards, find_tfds(urlpath, storage_options) if in_directory else None
