"""`Shard`, a file with its size and version when it was listed, and `Shards`, the files of a collection as columns.

`has_changed` compares a shard with the current properties of its file. This module opens no files.
"""

from __future__ import annotations

import datetime
import errno
import functools
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import fsspec
import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import plural, printable, redact, redact_url, repr_without_credentials
from dask_tfrecord.identity import url_key

# Properties of a file that change with its content, the most reliable first.
_VERSION_KEYS = (
    *("ETag", "etag", "e_tag", "generation", "sha", "md5", "CRC", "mtime"),
    *("LastModified", "last_modified", "Last-Modified", "updated", "created"),
)
# Properties that hold the modification time.
TIME_KEYS = ("mtime", "LastModified", "last_modified", "updated", "created")

# Prefix of a file's version where all of these properties are missing.
_DIGEST = "properties-"
# Prefix of the version of a local file, which includes the inode.
_LOCAL = "mtime="

_MOUNTS = Path("/proc/self/mountinfo")

# Message of errors about other kinds of files.
NOT_REGULAR = (
    "expected a regular file; this is a pipe, socket or device: save its bytes to a file, because records are read at "
    "their offsets"
)


@dataclass(frozen=True, slots=True)
class Shard:
    """File of a collection, with its properties when it was listed."""

    path: str  # absolute local path, or URL
    size: int  # stored bytes
    version: str  # changes with the content: an ETag, a modification time or a digest of the properties of the file
    compression: str | None  # name of a compression, None, or "infer" to detect it when the file is opened
    storage_options: Mapping[str, Any] = field(default_factory=dict, hash=False, compare=False)
    # True if a sidecar holds access points into the gzip data.
    access: bool = field(default=False, hash=False, compare=False)
    # Stored bytes that are in memory: `path` is then their name in errors, and no file is opened.
    data: Any = field(default=None, hash=False, compare=False, repr=False)

    __repr__ = repr_without_credentials


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Shards(Sequence[Shard]):
    """Files of a collection as columns, which serialize to a few buffers even for 100,000 files; see `Shard`."""

    paths: tuple[str, ...]
    sizes: NDArray[np.int64]
    versions: tuple[str, ...]
    compression: str | None  # requested, of all files
    storage_options: Mapping[str, Any]
    compressions: tuple[str | None, ...] = ()  # detected, of each file; empty if not detected yet
    access: tuple[bool, ...] = ()  # empty if not searched yet

    def __len__(self) -> int:
        """Count the files."""
        return len(self.paths)

    @overload
    def __getitem__(self, index: int) -> Shard: ...
    @overload
    def __getitem__(self, index: slice) -> Shards: ...
    def __getitem__(self, index: int | slice) -> Shard | Shards:
        """Return one file, or a slice of the collection."""
        if isinstance(index, slice):
            columns = (self.paths[index], self.sizes[index], self.versions[index])
            detected = (self.compressions[index], self.access[index])
            return Shards(*columns, self.compression, self.storage_options, *detected)
        return Shard(
            self.paths[index],
            int(self.sizes[index]),
            self.versions[index],
            self.compressions[index] if self.compressions else self.compression,
            self.storage_options,
            self.access[index] if self.access else False,
        )

    def __iter__(self) -> Iterator[Shard]:
        """Iterate over the files."""
        for index in range(len(self)):
            yield self[index]

    def __repr__(self) -> str:
        """Summarize the collection without listing its paths."""
        return f"<Shards: {plural(len(self), 'file')}, {plural(int(self.sizes.sum()), 'byte')}>"

    @property
    def summary(self) -> str:
        """First path and the number of the others, for logs, without credentials."""
        others = f" and {plural(len(self) - 1, 'other')}" if len(self) > 1 else ""
        return f"{printable(redact_url(self.paths[0]))}{others}" if self.paths else "no shards"

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """Return names, sizes and versions; detected properties depend on the content only."""
        options = dict(self.storage_options)
        if "store" in options:
            options["store"] = _store_token(options["store"])
        # Signatures and passwords in URLs do not belong to a file's identity.
        keys = zip(self.paths, map(url_key, self.paths), strict=True)
        paths = tuple(path if key[0] == "file" else key for path, key in keys)
        return ("dask_tfrecord.Shards", paths, self.sizes.tolist(), self.versions, self.compression, options)

    def without_paths(self) -> Shards:
        """Return the collection for a token that does not depend on the paths."""
        return replace(self, paths=("",) * len(self))

    def resolved(self, compressions: Sequence[str | None], access: Sequence[bool]) -> Shards:
        """Return the collection with detected properties, which tasks then do not detect again."""
        return replace(self, compressions=tuple(compressions), access=tuple(access))


def is_local(path: str) -> bool:
    """Return whether a path is a local one and not a URL, or a chain of URLs.

    The name of a file may contain ``::``, which begins a chain only after a protocol, as in ``simplecache::``.
    """
    if Path(path).is_absolute():
        return True
    return "://" not in path and ("::" not in path or path.partition("::")[0] not in fsspec.available_protocols())


def check_encodable(path: str) -> str:
    """Return a local path; raise OSError with the path if the locale can't encode it."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        problem = f"file names are encoded in {error.encoding}, which lacks {error.object[error.start : error.end]!a}"
        remedy = "set LC_ALL=C.UTF-8 or PYTHONUTF8=1"
        raise OSError(errno.EILSEQ, f"{problem}: {remedy}", path) from None
    return path


def split_chain(path: str) -> tuple[list[str], int]:
    """Split a chained URL into its links; return them and the index of the link that holds the path."""
    links = [path] if is_local(path) else path.split("::")
    return links, next((index for index, link in enumerate(links) if "://" in link), 0)


def split_name(path: str) -> tuple[str, str]:
    """Split a path or URL into its directory, in the same spelling, and the name of the file."""
    links, index = split_chain(path)
    head, slash, name = links[index].rpartition("/")
    links[index] = head if head and not head.endswith("/") else head + slash
    return "::".join(links), name


def version_of(info: Mapping[str, Any]) -> str:
    """Return the version of a file, which changes with its content, by its properties in fsspec."""
    if info.get("ino") is not None and info.get("mtime") is not None:
        # The inode distinguishes a replacement of the same size and modification time. The change time is not used,
        # because permissions, links and renames change it.
        version = f"{_LOCAL}{_text(info['mtime'])}"
        return version + (f" inode={info['ino']}" if _keeps_inodes(os.path.dirname(info["name"])) else "")  # noqa: PTH120
    known = _versions(info)
    if known:
        return known[0]
    properties = sorted((str(key), redact(value)) for key, value in info.items())
    return _DIGEST + hashlib.sha256(repr(properties).encode()).hexdigest()


def has_changed(shard: Shard, info: Mapping[str, Any]) -> bool:
    """Return whether a file differs from the one that was listed, by its current properties, or some of them."""
    size = info.get("size")
    if size is not None and size != shard.size:
        return True
    known = _versions(info)
    if shard.version.startswith(_LOCAL):
        # The inode is not compared, because it may differ between the machines of a cluster.
        return bool(known) and shard.version.split(" ")[0].removeprefix(_LOCAL) not in known
    return bool(known) and not shard.version.startswith(_DIGEST) and shard.version not in known


def _versions(info: Mapping[str, Any]) -> list[str]:
    return [_text(info[key]) for key in _VERSION_KEYS if info.get(key) not in (None, "")]


def _store_token(store: Any) -> object:
    """Return the class and options of a store of obstore."""
    try:
        return _with_sorted_mappings(store.__reduce_ex__(4)[1])
    except TypeError:
        # MemoryStore: objects with the same name and ETag in another store differ.
        return id(store)


def _with_sorted_mappings(value: Any) -> Any:
    """Sort mappings in a value: equal stores may list them in any order."""
    if isinstance(value, Mapping):
        return sorted((key, _with_sorted_mappings(option)) for key, option in value.items())
    return [*map(_with_sorted_mappings, value)] if isinstance(value, tuple) else value


@functools.lru_cache(maxsize=1024)
def _keeps_inodes(directory: str) -> bool:
    """Return whether inodes of a directory are stable; FUSE may assign new ones in each mount."""
    try:
        device = os.stat(directory or ".").st_dev  # noqa: PTH116
        lines = _MOUNTS.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return True
    number = f"{os.major(device)}:{os.minor(device)}"
    kinds = [line.partition(" - ")[2].split(" ")[0] for line in lines if line.split(" ")[2:3] == [number]]
    return not any(kind.startswith("fuse") for kind in kinds)


def _text(value: object) -> str:
    if isinstance(value, datetime.datetime):
        # File systems report times as datetime in some calls and as seconds in others.
        value = value.timestamp()
    return str(value).strip('"')
