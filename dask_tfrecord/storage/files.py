"""Which files a collection is made of: paths, URLs, globs, directories and shard templates become `Shards`.

Everything is looked up through fsspec, local files too, with one listing per directory. What is opened, and how, is
the business of `dask_tfrecord.storage.streams`. Imports errors, schema, retry and shards only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import stringify_path

from dask_tfrecord.errors import Place, ShardNotFoundError, TFRecordError
from dask_tfrecord.schema import near_misses
from dask_tfrecord.storage.retry import list_directory, persist
from dask_tfrecord.storage.shards import Shard, Shards, is_local, version_of

__all__ = ["COMPRESSIONS", "Shard", "Shards", "find_shards", "is_local"]

COMPRESSIONS = ("infer", None, "gzip", "zlib")

# Files that lie beside shards and are none: hidden ones, what Spark and Hadoop leave (_SUCCESS, _temporary), indexes
# and metadata.
_SIDE_PREFIXES = (".", "_")
_SIDE_SUFFIXES = (".idx", ".gzidx", ".json", ".pbtxt")
# Files that a Zarr group or array of any format has.
_ZARR = {"zarr.json", ".zgroup", ".zarray"}

# train@8, train@8.gz; train-?????-of-00008, train-?????-of-00008.gz
_COUNTED = re.compile(r"(?P<stem>.+)@(?P<count>0*[1-9][0-9]{0,5})(?P<suffix>(\.[^/@]+)?)")
_MASKED = re.compile(r"(?P<stem>.+)-(?P<mask>\?+)-of-(?P<count>0*[1-9][0-9]{0,5})(?P<suffix>(\.[^/*?\[]+)?)")

# So many literal paths in one remote directory are cheaper to look up by one listing than one by one.
_WORTH_LISTING = 8


def find_shards(
    urlpath: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    compression: str | None = "infer",
    storage_options: Mapping[str, Any] | None = None,
) -> Shards:
    """Find the files that `urlpath` names.

    Parameters
    ----------
    urlpath : str, os.PathLike or list of these
        A path, fsspec URL, glob, directory, or template (``name@8``, ``name-?????-of-00008``). A literal path that
        exists wins over template and glob. Of a directory, and of what a glob matches, hidden files, ``_*``, ``.idx``,
        ``.gzidx``, ``.json`` and ``.pbtxt`` are left out (a glob that spells them out gets them).
    compression : {"infer", None, "gzip", "zlib"}
        Goes to every shard.
    storage_options : mapping, optional
        What fsspec takes beside the URL.

    Returns
    -------
    Shards
        In natural order (``part-2`` before ``part-10``); a list keeps its own order.

    Raises
    ------
    ShardNotFoundError
        If nothing is there, shards of a template are missing or too many, or a directory holds no record files.
    """
    if compression not in COMPRESSIONS:
        raise ValueError(f"compression is one of 'infer', None, 'gzip', 'zlib'; got {compression!r}")
    options = {} if storage_options is None else storage_options
    names = [urlpath] if isinstance(urlpath, str | os.PathLike) else list(_each(urlpath))
    if not names:
        raise ShardNotFoundError("an empty list of paths was given; expected at least one file")
    searches = [_Search.of(name, options) for name in names]
    _list_together(searches)
    found = [pair for search in searches for pair in search.files()]
    paths, infos = zip(*found, strict=True)
    sizes = np.fromiter((info["size"] for info in infos), np.int64, len(infos))
    return Shards(paths, sizes, tuple(map(version_of, infos)), compression, options)


def _each(urlpath: Iterable[str | os.PathLike[str]]) -> Iterator[str | os.PathLike[str]]:
    if isinstance(urlpath, bytes | bytearray | set | frozenset | Mapping) or not isinstance(urlpath, Iterable):
        raise TypeError(f"urlpath is a path, or a list of paths; got {type(urlpath).__name__}")
    for name in urlpath:
        if not isinstance(name, str | os.PathLike):
            raise TypeError(f"urlpath holds paths; got {type(name).__name__}: {name!r}")
        yield name


@dataclass(slots=True)
class _Search:
    """One name that the user gave, and where its file system has it."""

    given: str
    fs: Any
    path: str  # as the file system spells it
    head: str  # of a URL: what stands before the file system's path ...
    tail: str  # ... and after it (a chained URL)
    known: dict[str, dict[str, Any]]  # what listings brought, shared by the searches of one directory

    @classmethod
    def of(cls, name: str | os.PathLike[str], options: Mapping[str, Any]) -> _Search:
        given = str(stringify_path(name))
        if not given:
            raise ShardNotFoundError("the path is an empty string; expected a file, directory, glob or URL")
        if "\0" in given:
            raise ShardNotFoundError(f"{given!r}: no path holds a NUL character")
        if ("::" in given or "://" in given) and Path(given).exists():
            # A file of this machine whose name reads like a URL.
            fs, path = LocalFileSystem(), Path(given).absolute().as_posix()
        else:
            fs, path = fsspec.core.url_to_fs(given, **options)
        head, tail = ("", "") if isinstance(fs, LocalFileSystem) else _around(given, path, fs)
        # A listing that was kept from before would show files as they were then.
        fs.invalidate_cache()
        return cls(given, fs, path.rstrip("/") or path, head, tail, {})

    def url(self, path: str) -> str:
        """`path` as a `Shard` names it."""
        if isinstance(self.fs, LocalFileSystem):
            return path
        return self.head + (path.lstrip("/") if self.head else str(self.fs.unstrip_protocol(path))) + self.tail

    def files(self) -> list[tuple[str, dict[str, Any]]]:
        """Name and properties of each file, in natural order."""
        info = self.info(self.path)
        if info is not None:
            infos = self._directory() if info["type"] == "directory" else [self._regular(info)]
        else:
            infos = self._template() or self._glob()
        if not infos:
            raise self.nothing()
        infos.sort(key=lambda info: _natural(info["name"]))
        return [(self.url(info["name"]), info) for info in infos]

    def info(self, path: str) -> dict[str, Any] | None:
        """Properties of one literal path; None if there is no such thing."""
        info = self.known.get(path)
        if info is not None and info["size"] is not None and not info.get("islink"):
            return info
        try:
            return dict(persist(lambda: self.fs.info(path), path, "look for it"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            # A pattern may be more than a file system bears as a name; a plain path that fails has a reason.
            if _is_glob(path):
                return None
            raise

    def _regular(self, info: dict[str, Any]) -> dict[str, Any]:
        """`info`, of a file that has a size and can be sought in."""
        url = self.url(info["name"])
        if info.get("islink") or info["size"] is None:
            # Listings describe the link itself, or leave the size out.
            seen = self.info(info["name"])
            if seen is None:
                raise ShardNotFoundError("a link that leads nowhere; remove it or restore its target", Place(url))
            info = seen
        if info["type"] not in ("file", "directory"):
            raise ShardNotFoundError("expected a regular file; this is a pipe, socket or device", Place(url))
        if info["size"] is None:
            raise TFRecordError(
                "the server does not tell the size of this file; read it through 'simplecache::' + URL", Place(url)
            )
        return info

    def _files_of(self, infos: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those of a listing that are files; pipes and sockets that lie around are not asked for."""
        files = [
            self._regular(info) if info.get("islink") or (info["size"] is None and info["type"] == "file") else info
            for info in infos
        ]
        return [info for info in files if info["type"] == "file"]

    def _directory(self) -> list[dict[str, Any]]:
        listed = persist(lambda: self.fs.ls(self.path, detail=True), self.path, "list it")
        inside = [info for info in listed if _base(info["name"]) != ""]
        files = self._files_of(info for info in inside if not _is_side_file([_base(info["name"])], []))
        if not files and _ZARR & {_base(info["name"]) for info in inside}:
            raise ShardNotFoundError(
                "the directory is a Zarr store and holds no records: from_zarr opens what to_zarr wrote",
                Place(self.url(self.path)),
            )
        if not files:
            directories = sum(info["type"] == "directory" for info in inside)
            raise ShardNotFoundError(
                f"the directory holds no record files: {len(inside) - directories} files, all hidden or metadata, and "
                f"{directories} directories; to look inside those, write {self.given.rstrip('/')}/**/*",
                Place(self.url(self.path)),
            )
        return files

    def _glob(self) -> list[dict[str, Any]]:
        if not _is_glob(self.path):
            return []
        matched = persist(lambda: self.fs.glob(self.path, detail=True), self.path, "list its directory")
        pattern = self.path.split("/")
        fixed = next(index for index, part in enumerate(pattern) if _is_glob(part))
        wild = pattern[fixed:]
        files = self._files_of(
            info
            for path, info in matched.items()
            if info["type"] != "directory" and not _is_side_file(path.split("/")[fixed:], wild)
        )
        if matched and not files:
            shown = ", ".join(sorted(map(_base, matched))[:5])
            raise ShardNotFoundError(
                f"no record file matches {self.given!r}, only directories, hidden files or metadata: {shown}; "
                f"to look inside directories, add /*"
            )
        return files

    def _template(self) -> list[dict[str, Any]]:
        """Files of ``name@8`` or ``name-?????-of-00008``; none if the name is no template, or nothing is there."""
        template = _template(self.path)
        if template is None:
            return []
        expected, shape = template
        listed = self.listing(expected[0].rpartition("/")[0] or self.fs.root_marker)
        if listed:
            there = {path: info for path, info in listed.items() if shape.fullmatch(path)}
        else:
            # A server that does not list, or a directory that is not there.
            there = {path: info for path in expected if (info := self.info(path)) is not None}
        if there and there.keys() != set(expected):
            missing = sorted(set(expected) - there.keys(), key=_natural)
            surplus = sorted(there.keys() - set(expected), key=_natural)
            raise ShardNotFoundError(
                f"{self.given!r} stands for {_span(expected)}; missing: {_some(missing)}; too many: {_some(surplus)}. "
                f"Complete the set, or name the files that are to be read"
            )
        return [self._regular(info) for info in there.values()]

    def listing(self, directory: str) -> dict[str, dict[str, Any]]:
        """List a directory, by path; nothing if it can't be listed."""
        return {info["name"]: info for info in list_directory(self.fs, directory) or ()}

    def nothing(self) -> ShardNotFoundError:
        """Say what was looked for, and what is there instead."""
        parts = self.path.split("/")
        fixed = next((index for index, part in enumerate(parts) if _is_glob(part)), len(parts) - 1)
        directory, wanted = "/".join(parts[:fixed]) or self.fs.root_marker, parts[fixed]
        looked = "no file matches the pattern" if _is_glob(self.path) else "no file or directory"
        if (template := _template(self.path)) is not None:
            looked, wanted = f"none of {_span(template[0])} is there for", _base(template[0][0])
        url = self.url(self.path)
        looked += f" {self.given!r}" + ("" if url == self.given else f" (that is {url})")
        try:
            names = {_base(path): path for path in sorted(self.listing(directory), key=_natural)}
        except PermissionError:
            return ShardNotFoundError(f"{looked}; {directory!r} may not be listed by this user")
        if not names or directory in names.values():
            return ShardNotFoundError(f"{looked}; {directory!r} is no directory, or an empty one")
        if wanted in names:
            return ShardNotFoundError("a link that leads nowhere; remove it or restore its target", Place(url))
        shown = [name for name in names if not _is_side_file([name], [])]
        return ShardNotFoundError(f"{looked} in {directory!r}{near_misses(wanted, shown)}")


def _list_together(searches: Sequence[_Search]) -> None:
    """List remote directories that hold many of the paths, instead of asking for each."""
    remote = [search for search in searches if not isinstance(search.fs, LocalFileSystem) and "/" in search.path]

    def directory(search: _Search) -> tuple[int, str]:
        return id(search.fs), search.path.rpartition("/")[0]

    for _, group in groupby(sorted(remote, key=directory), directory):
        together = list(group)
        if len(together) >= _WORTH_LISTING:
            known = together[0].listing(together[0].path.rpartition("/")[0])
            for search in together:
                search.known = known


def _around(given: str, path: str, fs: Any) -> tuple[str, str]:
    """Find what of a URL stands before and after the path that its file system takes.

    Names of a listing get it back: a file system drops hosts and users that only the URL holds.
    """
    links = given.split("::")
    index = next((index for index, link in enumerate(links) if "://" in link), 0)
    link, bare = links[index].rstrip("/"), path.strip("/")
    before = "".join(part + "::" for part in links[:index])
    after = "".join("::" + part for part in links[index + 1 :])
    if link.endswith(bare):
        return before + link[: len(link) - len(bare)], after
    own = str(fs.unstrip_protocol(path)).rstrip("/")
    return before + own[: len(own) - len(bare)], after


def _template(path: str) -> tuple[list[str], re.Pattern[str]] | None:
    """Every shard that a template stands for, and what shards of that set look like; None if it is no template."""
    parent, slash, base = path.rpartition("/")
    match = _COUNTED.fullmatch(base) or _MASKED.fullmatch(base)
    if match is None or _is_glob(parent) or _is_glob(match["stem"]):
        return None
    count = int(match["count"])
    mask = match.groupdict().get("mask")
    width = len(mask) if mask else max(5, len(str(count)))
    total = match["count"] if mask else f"{count:0{width}}"
    stem, suffix = f"{parent}{slash}{match['stem']}", match["suffix"]
    expected = [f"{stem}-{index:0{width}}-of-{total}{suffix}" for index in range(count)]
    return expected, re.compile(rf"{re.escape(stem)}-[0-9]{{{width}}}-of-{total}{re.escape(suffix)}")


def _is_side_file(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path lies beside the records; what the pattern spells out is wanted."""
    prefixes = tuple(mark for mark in _SIDE_PREFIXES if not any(part.startswith(mark) for part in pattern))
    suffixes = tuple(suffix for suffix in _SIDE_SUFFIXES if not (pattern and pattern[-1].endswith(suffix)))
    return any(part.startswith(prefixes) for part in parts) or parts[-1].endswith(suffixes)


def _is_glob(path: str) -> bool:
    return any(mark in path for mark in "*?[")


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _some(paths: Sequence[str]) -> str:
    names = [_base(path) for path in paths] or ["none"]
    return ", ".join(names[:20]) + (f", … ({len(names) - 20} more)" if len(names) > 20 else "")


def _span(expected: Sequence[str]) -> str:
    """Name the shards of a template."""
    return f"the {len(expected)} shards {_base(expected[0])} … {_base(expected[-1])}"


def _natural(path: str) -> tuple[list[str | int], str]:
    """Sort key: digits by their value; text and numbers alternate, so that keys compare."""
    parts: list[str | int] = [*re.split(r"([0-9]+)", path)]
    parts[1::2] = [int(digits) for digits in parts[1::2]]
    return parts, path
