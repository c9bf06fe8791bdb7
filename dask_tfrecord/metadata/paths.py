"""Shards of a path, with the metadata of TFDS if its directory has any."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import SPLIT, Location, SchemaError, ShardNotFoundError
from dask_tfrecord.metadata.tfds import TFDSFolder, TFDSSelection, find_tfds
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.listing import find_shards
from dask_tfrecord.storage.remote import is_directory
from dask_tfrecord.storage.shard import Shards, is_local


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """Shards of a collection and their TFDS metadata.

    Attributes
    ----------
    shards : Shards
        Shards to read.
    folder : TFDSFolder or None
        TFDS data set of the shards.
    selection : TFDSSelection or None
        Selected split, whose files are `shards`.
    """

    shards: Shards
    folder: TFDSFolder | None = None
    selection: TFDSSelection | None = None

    def schema(self) -> Schema | None:
        """Return the schema of the metadata; None without metadata."""
        return None if self.folder is None else self.folder.schema()

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
        """Check the counted records of shards that a split takes a part of.

        Raises
        ------
        SchemaError
            If a count differs from the metadata. Whole splits are not checked.
        """
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
) -> ResolvedPath:
    """Find the shards of a path; a directory of TFDS is read by its metadata.

    Raises
    ------
    ShardNotFoundError
        If no shard is found.
    SchemaError
        If the split does not exist, or there are several and `split` is None.
    """
    if not isinstance(urlpath, str | os.PathLike):
        if split is not None:
            raise SchemaError(f"split={split!r} requires the directory of a TFDS data set; got a list of paths")
        return ResolvedPath(find_shards(urlpath, compression=compression, storage_options=storage_options))
    if split is None:
        shards, folder = _without_split(urlpath, compression, storage_options)
        if shards is not None and folder is None:
            return ResolvedPath(shards)
    else:
        folder = find_tfds(urlpath, storage_options)
    if folder is None:
        raise ShardNotFoundError(
            f"split={split!r} requires a TFDS data set: expected a directory with a dataset_info.json in it or in its "
            f"only version",
            Location(str(urlpath)),
        )
    selection = folder.select(split)
    if not selection.files:
        raise SchemaError("the split has no shards", Location(folder.directory))
    shards = find_shards(selection.files, compression=compression, storage_options=storage_options)
    return ResolvedPath(shards, folder, selection)


def resolve_splits(
    urlpath: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, compression: str | None
) -> ResolvedPath:
    """Find the shards of a path, those of all splits in a directory of TFDS.

    Raises
    ------
    ShardNotFoundError
        If no shard is found.
    SchemaError
        If the metadata of TFDS can't be read.
    """
    if not isinstance(urlpath, str | os.PathLike):
        return ResolvedPath(find_shards(urlpath, compression=compression))
    shards, folder = _without_split(urlpath, compression, None)
    if shards is not None and folder is None:
        return ResolvedPath(shards)
    # The directory also holds the label files of its features.
    files = () if folder is None else folder.select("all").files
    if folder is None or not files:
        raise SchemaError("no split has shards", Location(str(urlpath)))
    try:
        return ResolvedPath(find_shards(files, compression=compression), folder)
    except ShardNotFoundError as error:
        raise ShardNotFoundError(
            f"a file of the splits {folder.split_names} is missing; give "
            + SPLIT
            + f" to read one of them: {error.message}",
            error.place,
        ) from None


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
    if _is_directory(urlpath, shards, storage_options):
        return shards, find_tfds(urlpath, storage_options)
    return shards, None


def _is_directory(urlpath: str | os.PathLike[str], shards: Shards, storage_options: Mapping[str, Any] | None) -> bool:
    """Return whether the shards were found in a directory, without a request to an object store."""
    if is_local(shards.paths[0]):
        return is_directory(urlpath, storage_options)
    return shards.paths[0].startswith(f"{os.fspath(urlpath).rstrip('/')}/")
