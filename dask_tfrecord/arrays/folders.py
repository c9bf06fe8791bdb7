"""What a path names: shards as they are, or a split of a TFDS data set, whose metadata know counts and features."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.arrays.plan import Collection
from dask_tfrecord.columns.tfds import Selection, TFDSFolder, find_tfds
from dask_tfrecord.errors import Place, SchemaError, ShardNotFoundError
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.beside import is_directory
from dask_tfrecord.storage.files import Shards, find_shards, is_local

__all__ = ["Found", "find_collection"]


@dataclass(frozen=True, slots=True)
class Found:
    """The shards of a collection, and what lies beside them.

    Attributes
    ----------
    shards : Shards
        What is read.
    folder : TFDSFolder or None
        The TFDS data set that they are of.
    selection : Selection or None
        Its split, of which `shards` are the files.
    """

    shards: Shards
    folder: TFDSFolder | None = None
    selection: Selection | None = None

    def schema(self) -> Schema | None:
        """Read what the metadata say of the features; None if nothing does."""
        return None if self.folder is None else self.folder.schema()

    def counts(self, counts: str | Sequence[int] | None) -> str | Sequence[int] | None:
        """For "auto" the counts of the metadata, where they know them; else what was asked for."""
        if isinstance(counts, str) and counts == "auto" and self.selection is not None:
            return counts if self.selection.counts is None else self.selection.counts
        return counts

    @property
    def rows(self) -> slice | NDArray[np.int64] | None:
        """The rows of the shards that belong to the split; None for all."""
        return None if self.selection is None else self.selection.rows

    def check(self, collection: Collection) -> None:
        """Check that a split is cut from shards of as many records as its metadata say.

        Raises
        ------
        SchemaError
            If a shard has another number; whole splits are read as they are.
        """
        if self.selection is None or self.selection.spans is None:
            return
        for file, told, found in zip(self.shards.paths, self.selection.counts or (), collection.counts, strict=True):
            if told != found:
                raise SchemaError(
                    f"holds {found} records, and the metadata say {told}, by which the split is cut: read the whole "
                    f"split and take ds.rows[...]",
                    Place(file),
                )


def find_collection(
    urlpath: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    split: str | None,
    *,
    compression: str | None,
    storage_options: Mapping[str, Any] | None,
) -> Found:
    """Find the shards that a path names, by the metadata of TFDS if it is a directory that has them.

    Raises
    ------
    ShardNotFoundError
        If nothing is there.
    SchemaError
        If there is no such split, or several of which none is named.
    """
    if not isinstance(urlpath, str | os.PathLike):
        if split is not None:
            raise SchemaError(f"split={split!r} is of the directory of a TFDS data set; got a list of paths")
        return Found(find_shards(urlpath, compression=compression, storage_options=storage_options))
    if split is None:
        shards, folder = _without_split(urlpath, compression, storage_options)
        if shards is not None and folder is None:
            return Found(shards)
    else:
        folder = find_tfds(urlpath, storage_options)
    if folder is None:
        raise ShardNotFoundError(
            f"split={split!r} is of a TFDS data set: expected its directory, with a dataset_info.json in it or in the "
            f"only version within",
            Place(str(urlpath)),
        )
    selection = folder.select(split)
    if not selection.files:
        raise SchemaError("the split has no shards", Place(folder.directory))
    shards = find_shards(selection.files, compression=compression, storage_options=storage_options)
    return Found(shards, folder, selection)


def _without_split(
    urlpath: str | os.PathLike[str], compression: str | None, storage_options: Mapping[str, Any] | None
) -> tuple[Shards | None, TFDSFolder | None]:
    """Find what is there by the name alone: shards, or else a TFDS data set."""
    try:
        shards = find_shards(urlpath, compression=compression, storage_options=storage_options)
    except ShardNotFoundError:
        # Versions are directories in a directory, which holds no shards itself.
        folder = find_tfds(urlpath, storage_options) if is_directory(urlpath, storage_options) else None
        if folder is None:
            raise
        return None, folder
    if _is_directory(urlpath, shards, storage_options):
        return shards, find_tfds(urlpath, storage_options)
    return shards, None


def _is_directory(urlpath: str | os.PathLike[str], shards: Shards, storage_options: Mapping[str, Any] | None) -> bool:
    """Whether shards are what was found in a directory; a store need not be asked."""
    if is_local(shards.paths[0]):
        return is_directory(urlpath, storage_options)
    return shards.paths[0].startswith(f"{os.fspath(urlpath).rstrip('/')}/")
