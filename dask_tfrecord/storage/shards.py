"""What a collection is made of: `Shard`, one file as it was listed, and `Shards`, many of them as columns.

A file is known by its path, size and version; whether it has changed since is judged here. Nothing is opened. Imports
nothing of the package.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

__all__ = ["Shard", "Shards", "has_changed", "is_local", "version_of"]

# What says that the content changed, the strictest first.
_VERSION_KEYS = (
    *("ETag", "etag", "generation", "sha", "md5", "CRC", "mtime"),
    *("LastModified", "last_modified", "Last-Modified", "updated", "created"),
)

# Begins the version of a file of which nothing of the above is known.
_DIGEST = "properties-"


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a collection.

    Attributes
    ----------
    path : str
        Absolute local path, or URL.
    size : int
        Stored bytes, as of the listing.
    version : str
        Changes when the content does: an etag, a time of modification or such.
    compression : str or None
        None, ``"gzip"``, ``"zlib"``, or ``"infer"``: looked at when opened.
    storage_options : mapping
        What fsspec takes beside the URL.
    access : bool
        Whether access points into its gzip data lie beside it.
    """

    path: str
    size: int
    version: str
    compression: str | None
    storage_options: Mapping[str, Any] = field(default_factory=dict, hash=False, compare=False)
    access: bool = field(default=False, hash=False, compare=False)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Shards(Sequence[Shard]):
    """The files of a collection, as columns: a hundred thousand of them travel as a few buffers.

    Attributes
    ----------
    paths : tuple of str
        Absolute local paths, or URLs.
    sizes : int64 array
        Stored bytes of each.
    versions : tuple of str
        What changes with the content of each.
    compression : str or None
        What was asked for, the same for all: None, ``"gzip"``, ``"zlib"`` or ``"infer"``.
    storage_options : mapping
        The same for all.
    found : tuple of (str or None)
        The compression of each, where they were looked at; else empty.
    access : tuple of bool
        Whether access points lie beside each, where that was looked at; else empty.
    """

    paths: tuple[str, ...]
    sizes: NDArray[np.int64]
    versions: tuple[str, ...]
    compression: str | None
    storage_options: Mapping[str, Any]
    found: tuple[str | None, ...] = ()
    access: tuple[bool, ...] = ()

    def __len__(self) -> int:
        """Count the files."""
        return len(self.paths)

    @overload
    def __getitem__(self, index: int) -> Shard: ...
    @overload
    def __getitem__(self, index: slice) -> Shards: ...
    def __getitem__(self, index: int | slice) -> Shard | Shards:
        """Get one file, or a part of the collection."""
        if isinstance(index, slice):
            columns = (self.paths[index], self.sizes[index], self.versions[index])
            seen = (self.found[index], self.access[index])
            return Shards(*columns, self.compression, self.storage_options, *seen)
        return Shard(
            self.paths[index],
            int(self.sizes[index]),
            self.versions[index],
            self.found[index] if self.found else self.compression,
            self.storage_options,
            self.access[index] if self.access else False,
        )

    def __iter__(self) -> Iterator[Shard]:
        """Iterate over the files."""
        for index in range(len(self)):
            yield self[index]

    def __repr__(self) -> str:
        """Sum up: the paths would fill pages."""
        return f"<Shards: {len(self)} files, {int(self.sizes.sum())} bytes>"

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """Identify the content: names, sizes and versions. What was found follows from them."""
        options = dict(self.storage_options)
        return ("dask_tfrecord.Shards", self.paths, self.sizes.tolist(), self.versions, self.compression, options)

    def looked_at(self, found: Sequence[str | None], access: Sequence[bool]) -> Shards:
        """Note what was found, so that nobody has to look again.

        Parameters
        ----------
        found : sequence of (str or None)
            The compression of each.
        access : sequence of bool
            Whether access points lie beside each.
        """
        return replace(self, found=tuple(found), access=tuple(access))


def is_local(path: str) -> bool:
    """Whether a `Shard.path` is a path of this machine rather than a URL."""
    return ("://" not in path and "::" not in path) or Path(path).is_absolute()


def version_of(info: Mapping[str, Any]) -> str:
    """Find what changes with the content of a file.

    Parameters
    ----------
    info : mapping
        What a file system says of it.
    """
    known = _versions(info)
    if known:
        return known[0]
    properties = sorted((str(key), str(value)) for key, value in info.items())
    return _DIGEST + hashlib.sha256(repr(properties).encode()).hexdigest()


def has_changed(shard: Shard, info: Mapping[str, Any]) -> bool:
    """Whether a file is not what it was when it was listed.

    Parameters
    ----------
    shard : Shard
        As it was listed.
    info : mapping
        What is said of it now; of two ways to ask for it one may tell less.
    """
    size = info.get("size")
    if size is not None and size != shard.size:
        return True
    known = _versions(info)
    return bool(known) and not shard.version.startswith(_DIGEST) and shard.version not in known


def _versions(info: Mapping[str, Any]) -> list[str]:
    return [_text(info[key]) for key in _VERSION_KEYS if info.get(key) not in (None, "")]


def _text(value: object) -> str:
    if isinstance(value, datetime.datetime):
        # The same file shows its time as a datetime in one call and as seconds in another.
        value = value.timestamp()
    return str(value).strip('"')
