"""Directories of TFDS data sets: the files of each split, their record counts, and the features.

This module reads splits, shards and counts from `dataset_info.json`. `tfds_features` reads `features.json`, and
`tfds_splits` the syntax of splits. No shard is opened here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fsspec.utils import stringify_path
from numpy.typing import NDArray

from dask_tfrecord.errors import Location, SchemaError
from dask_tfrecord.metadata.tfds_features import schema_from_features
from dask_tfrecord.metadata.tfds_splits import split_slices
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
