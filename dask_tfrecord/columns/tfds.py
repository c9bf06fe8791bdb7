"""Data sets as TFDS leaves them in a directory: which files hold a split, how many records each has, and the features.

`dataset_info.json` names splits, shards and counts; `features.json` is the business of `tfds_features`, the syntax of
splits that of `tfds_splits`. Nothing is read here but these texts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fsspec.utils import stringify_path
from numpy.typing import NDArray

from dask_tfrecord.columns.tfds_features import schema_of_features
from dask_tfrecord.columns.tfds_splits import split_parts
from dask_tfrecord.errors import Place, SchemaError
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.beside import join, list_directories, read_text

__all__ = ["Selection", "Split", "TFDSFolder", "find_tfds"]

_INFO, _FEATURES = "dataset_info.json", "features.json"
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_MOST_SHARDS = 1_000_000
_VERSION = re.compile(r"\d+\.\d+\.\d+")


@dataclass(frozen=True, slots=True)
class Split:
    """What is known of one split.

    Attributes
    ----------
    name : str
        As the data set calls it.
    files : tuple of str
        Its shards, in order: paths or URLs.
    counts : tuple of int or None
        Records of each; None where the metadata, an old one, does not tell.
    """

    name: str
    files: tuple[str, ...]
    counts: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Selection:
    """The files of a split, and which of their records belong to it.

    Attributes
    ----------
    files : tuple of str
        Shards in the order in which they are read.
    counts : tuple of int or None
        Records of each; None where nobody knows.
    spans : tuple of (int, int) or None
        Rows of these files that belong to the split, counted through all of them; None for all rows.
    """

    files: tuple[str, ...]
    counts: tuple[int, ...] | None
    spans: tuple[tuple[int, int], ...] | None

    @property
    def rows(self) -> slice | NDArray[np.int64] | None:
        """The rows of `spans`, as a key to the rows of all files; None for all of them."""
        if self.spans is None or len(self.spans) == 1:
            return None if self.spans is None else slice(*self.spans[0])
        return np.concatenate([np.arange(start, stop) for start, stop in self.spans])


@dataclass(frozen=True, slots=True)
class TFDSFolder:
    """A directory with a version of a data set.

    Attributes
    ----------
    directory : str
        Path or URL.
    splits : tuple of Split
        All there are.
    storage_options : mapping
        What fsspec takes beside a URL.
    """

    directory: str
    splits: tuple[Split, ...]
    storage_options: Mapping[str, Any]

    def select(self, split: str | None = None) -> Selection:
        """Find the files and rows of a split, by default of the only one.

        Raises
        ------
        SchemaError
            If there is no such split; the error lists those there are.
        """
        lengths = {each.name: each.counts for each in self.splits}
        if split is None:
            if len(self.splits) != 1:
                names = ", ".join(repr(each.name) for each in self.splits) or "none"
                raise SchemaError(
                    f"a TFDS data set with {len(self.splits)} splits: give split=, one of {names}",
                    Place(self.directory),
                )
            split = self.splits[0].name
        if not isinstance(split, str):
            raise SchemaError(f"split is a string such as 'train' or 'train[:10%]'; got {split!r:.100}")
        try:
            parts = split_parts(split, lengths)
        except SchemaError as error:
            raise SchemaError(error.message, Place(self.directory)) from None
        known = {each.name: each for each in self.splits}
        return _joined([_part(known[part.name], part.start, part.stop) for part in parts])

    def schema(self) -> Schema | None:
        """Read the features; None where the data set, an old one, has no `features.json`.

        Raises
        ------
        SchemaError
            If a feature is of a class that is stored in a way unknown here.
        """
        text = read_text(join(self.directory, _FEATURES), self.storage_options)
        if text is None:
            return None
        try:
            return schema_of_features(text, self._labels)
        except SchemaError as error:
            raise SchemaError(error.message, Place(self.directory)) from error

    def _labels(self, stem: str) -> Sequence[str] | None:
        text = read_text(join(self.directory, f"{stem}.labels.txt"), self.storage_options)
        return None if text is None else [line.strip() for line in text.split("\n") if line.strip()]


def find_tfds(urlpath: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> TFDSFolder | None:
    """Look for a TFDS data set: in the directory itself, or in the only version within.

    Parameters
    ----------
    urlpath : str or os.PathLike
        Directory, or its URL on any file system of fsspec.
    storage_options : mapping, optional
        What fsspec takes beside a URL.

    Returns
    -------
    TFDSFolder or None
        None if there is no `dataset_info.json`, or it is one of Hugging Face.

    Raises
    ------
    SchemaError
        If there are several versions, the file can't be read, or the records are in another format than TFRecord.
    """
    directory = str(stringify_path(urlpath))
    text = read_text(join(directory, _INFO), storage_options)
    if text is None:
        versions = [name for name in list_directories(directory, storage_options) if _VERSION.fullmatch(name)]
        found = [(name, read_text(join(join(directory, name), _INFO), storage_options)) for name in versions]
        found = [(name, text) for name, text in found if text is not None]
        if len(found) > 1:
            names = ", ".join(name for name, _ in found)
            raise SchemaError(f"several versions of a TFDS data set: name one of {names}", Place(directory))
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
        raise SchemaError(f"can't be read: {reason}", Place(join(directory, _INFO))) from error
    return TFDSFolder(directory, splits, {} if storage_options is None else storage_options)


def _splits(info: Mapping[str, Any], directory: str) -> tuple[Split, ...]:
    formats = [info.get("fileFormat") or "tfrecord", *info.get("alternativeFileFormats", ())]
    if "tfrecord" not in formats:
        raise SchemaError(f"the records are in the format {formats[0]!r}, not in TFRecord files")
    made = []
    for split in info.get("splits", ()):
        counts = tuple(int(count) for count in split.get("shardLengths", ())) or None
        shards = len(counts) if counts else int(split.get("numShards", 0))
        words = {"DATASET": info["name"], "SPLIT": split["name"], "FILEFORMAT": "tfrecord"}
        template = split.get("filepathTemplate") or _TEMPLATE
        files = _files(join(directory, "\0").partition("\0"), template, words, shards)
        made.append(Split(split["name"], files, counts if counts or shards else ()))
    return tuple(made)


def _files(around: tuple[str, str, str], template: str, words: Mapping[str, str], shards: int) -> tuple[str, ...]:
    """Names of the shards, as `tensorflow_datasets.core.naming` makes them; `around` them stands the directory."""
    if shards > _MOST_SHARDS:
        raise SchemaError(f"a split has up to {_MOST_SHARDS:,} shards; this says {shards:,}")
    width = max(5, len(str(shards)))
    total = f"{shards:0{width}}"
    pieces = re.split(r"\{(\w+)\}", template)
    named = pieces[1::2]
    files = []
    for shard in range(shards):
        index = f"{shard:0{width}}"
        known = {**words, "SHARD_INDEX": index, "NUM_SHARDS": total, "SHARD_X_OF_Y": f"{index}-of-{total}"}
        unknown = [word for word in named if word not in known]
        if unknown:
            raise SchemaError(f"the template {template!r} names {unknown[0]!r}, which is none of {', '.join(known)}")
        pieces[1::2] = [known[word] for word in named]
        files.append(around[0] + "".join(pieces) + around[2])
    return tuple(files)


def _part(split: Split, start: int | None, stop: int | None) -> Selection:
    """Files of a part of a split, without those that hold none of its records."""
    if start is None or stop is None or split.counts is None:
        return Selection(split.files, split.counts, None)
    files, counts, begin, skipped = [], [], 0, 0
    for file, count in zip(split.files, split.counts, strict=True):
        if begin + count <= start:
            skipped += count
        elif begin < stop:
            files.append(file)
            counts.append(count)
        begin += count
    whole = start == skipped and stop - skipped == sum(counts)
    return Selection(tuple(files), tuple(counts), None if whole else ((start - skipped, stop - skipped),))


def _joined(parts: Sequence[Selection]) -> Selection:
    """One selection after the other."""
    files = tuple(file for part in parts for file in part.files)
    known = [part.counts for part in parts if part.counts is not None]
    if len(known) < len(parts):
        if any(part.spans for part in parts):
            raise SchemaError("the metadata does not tell the records of all these splits: take slices one by one")
        return Selection(files, None, None)
    counts = tuple(count for part in known for count in part)
    if not any(part.spans for part in parts):
        return Selection(files, counts, None)
    spans, begin = [], 0
    for part, own in zip(parts, known, strict=True):
        spans += [(begin + start, begin + stop) for start, stop in part.spans or ((0, sum(own)),)]
        begin += sum(own)
    return Selection(files, counts, tuple(spans))
