"""Search for the files of a collection: paths, URLs, globs, directories and shard templates become `Shards`.

Local and remote files are listed through fsspec, with one listing per directory. Their sidecars (`FILE.idx`,
`FILE.gzidx`) are found by one listing of a large directory too; for a few remote shards, each sidecar is requested.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from glob import escape
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import numpy as np
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import stringify_path

from dask_tfrecord.errors import (
    Location,
    SchemaError,
    ShardNotFoundError,
    Spelled,
    StorageError,
    TFRecordError,
    joined,
    near_misses,
    plural,
    printable,
    redact,
    redact_url,
)
from dask_tfrecord.shards.compressions import normalize_compression
from dask_tfrecord.shards.object_store import StoreFileSystem
from dask_tfrecord.shards.remote import (
    MIN_LOOKUPS_TO_LIST,
    class_names,
    file_info,
    file_system,
    is_denied,
    is_directory,
    list_directory,
    with_retries,
)
from dask_tfrecord.shards.shard import (
    NOT_REGULAR,
    TIME_KEYS,
    Shard,
    Shards,
    is_local,
    split_chain,
    split_name,
    version_of,
)

# Files next to shards that are not shards: hidden files, files of Spark and Hadoop (_SUCCESS, _temporary), indexes and
# metadata.
_SIDE_PREFIXES = (".", "_")
_SIDE_SUFFIXES = (".idx", ".gzidx", ".json", ".pbtxt")
# Files that this library writes for a shard; they are also removed from lists of paths.
_SIDECARS = (".idx", ".gzidx", ".damage.json", ".xarray.json")
# Folder in the root of a disk, where fsck puts what it finds.
_LOST = "lost+found"
# File systems that list all objects below a prefix at once.
_FLAT = {"S3FileSystem", "GCSFileSystem"}
# Folders that are searched for data sets of TFDS, and data sets that an error names.
_MOST_LISTED, _MOST_SETS = 100, 10
# Metadata files of Zarr groups and arrays.
_ZARR = {"zarr.json", ".zgroup", ".zarray"}

Found = TypeVar("Found")

_HIVE = ", or partitioning='hive' for columns of their names"
_BROKEN_LINK = "broken symbolic link; remove it or restore its target"

# train@8, train@8.gz; train-?????-of-00008, train-?????-of-00008.gz
_COUNTED = re.compile(r"(?P<stem>.+)@(?P<count>0*[1-9][0-9]{0,5})(?P<suffix>(\.[^/@]+)?)")
_MASKED = re.compile(r"(?P<stem>.+)-(?P<mask>\?+)-of-(?P<count>0*[1-9][0-9]{0,5})(?P<suffix>(\.[^/*?\[]+)?)")


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
        A path, fsspec URL, glob, directory or template (``name@8``, ``name-?????-of-00008``). An existing literal path
        takes precedence over template and glob, and so does an existing local directory in front of them. ``**``
        matches any number of directories, but no links to directories. Directories and globs exclude hidden files,
        ``_*``, ``.idx``, ``.gzidx``, ``.json`` and ``.pbtxt``, unless the glob contains the prefix or suffix. Lists
        exclude ``.idx``, ``.gzidx``, ``.damage.json`` and ``.xarray.json``.
    compression : {"infer", None, "gzip", "zlib", "zstd"}
        Compression of every shard; ``"infer"`` detects it when the shard is opened.
    storage_options : mapping, optional
        Options for the fsspec file system.

    Returns
    -------
    Shards
        Files in natural order (``part-2`` before ``part-10``), or in the order of the given list.

    Raises
    ------
    ShardNotFoundError
        If a path does not exist, a template has missing or unexpected shards, or a directory contains only other files.
    PermissionError or StorageError
        If a directory that may contain matches can't be listed.
    """
    compression = normalize_compression(compression, "infer")
    options = {} if storage_options is None else storage_options
    names = [urlpath] if isinstance(urlpath, str | os.PathLike) else _without_sidecars(list(_checked_paths(urlpath)))
    if not names:
        raise ShardNotFoundError("an empty list of paths was given; expected at least one file")
    searches = [_Search.from_name(name, options) for name in names]
    _list_together(searches)
    found = [pair for search in searches for pair in search.files()]
    paths, infos = zip(*found, strict=True)
    sizes = np.fromiter((info["size"] for info in infos), np.int64, len(infos))
    return Shards(paths, sizes, tuple(map(version_of, infos)), compression, options)


def find_changes(shards: Shards) -> dict[str, str]:
    """Return "grew", "changed" or "missing" for each path whose file now differs from the listed shard.

    A remote directory with several of them is listed once.
    """
    searches = [_Search.from_name(path, shards.storage_options) for path in shards.paths]
    _list_together(searches)
    changes = {}
    for search, shard in zip(searches, shards, strict=True):
        info = search.info(search.path)
        if info is None:
            changes[shard.path] = "missing"
        elif version_of(info) != shard.version or info["size"] != shard.size:
            changes[shard.path] = "grew" if info["size"] > shard.size else "changed"
    return changes


def find_partitions(shards: Shards) -> dict[str, tuple[str, ...]]:
    """Return the values of the directories ``KEY=VALUE`` above each shard, by key, as Hive and Spark name them.

    Raises SchemaError if a shard lacks them, has other keys than the first one, or a key twice.
    """
    pairs = [_partition_values(path) for path in shards.paths]
    for path, parts in zip(shards.paths, pairs, strict=True):
        if not parts or list(parts) != list(pairs[0]):
            wanted = ", ".join(f"{key}=…" for key in pairs[0]) or "KEY=VALUE, such as date=2024-01-31"
            raise SchemaError(
                f"expected directories {wanted} in the path, found {', '.join(f'{key}=…' for key in parts) or 'none'}; "
                f"leave out partitioning='hive', or choose the shards that have them",
                Location(path),
            )
    return {key: tuple(parts[key] for parts in pairs) for key in pairs[0]}


def _partition_values(path: str) -> dict[str, str]:
    """Return the keys and values of the directories of a path, without the escapes that Spark writes."""
    partition: dict[str, str] = {}
    # User info and signatures of URLs also contain "=".
    for part in redact_url(path).split("/")[:-1]:
        escaped_key, is_pair, escaped = part.partition("=")
        if not is_pair or not escaped_key:
            continue
        try:
            key, value = (unquote(text, errors="strict") for text in (escaped_key, escaped))
            (key + value).encode()
        except UnicodeError:
            raise SchemaError(
                f"the directory {printable(part)} is not UTF-8 text without its escapes; leave out "
                f"partitioning='hive', or rename it",
                Location(path),
            ) from None
        if key in partition:
            raise SchemaError(
                f"the path has two directories {key}=…, which are one column; leave out partitioning='hive', or "
                f"rename one of them",
                Location(path),
            )
        partition[key] = value
    return partition


def within_folders(
    urlpath: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], storage_options: Mapping[str, Any] | None
) -> str | os.PathLike[str] | Sequence[str | os.PathLike[str]]:
    """Return a pattern of all files below a directory; other paths as they are."""
    if isinstance(urlpath, str | os.PathLike) and is_directory(urlpath, storage_options):
        return f"{os.fspath(urlpath).rstrip('/')}/**/*"
    return urlpath


def is_zarr_group(path: str, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Return whether a path is a Zarr group or array; False if it cannot be looked up."""
    try:
        fs, inside = file_system(path, storage_options)
        return any(bool(fs.exists(f"{inside.rstrip('/')}/{name}")) for name in sorted(_ZARR))
    except (OSError, ValueError, ImportError, TFRecordError):
        return False


def _checked_paths(urlpath: Iterable[str | os.PathLike[str]]) -> Iterator[str | os.PathLike[str]]:
    """Yield the paths of a list; refuse other values."""
    if isinstance(urlpath, bytes | bytearray | set | frozenset | Mapping) or not isinstance(urlpath, Iterable):
        raise TypeError(
            f"urlpath must be a path or a list of paths; got {type(urlpath).__name__}: write 'train-*.tfrecord'"
        )
    if hasattr(urlpath, "read"):
        raise TypeError("urlpath must be a path or a list of paths; got an open file: pass its name")
    for name in urlpath:
        if not isinstance(name, str | os.PathLike):
            raise TypeError(f"urlpath must contain paths; got {type(name).__name__}: {name!r}")
        yield name


def _without_sidecars(names: list[str | os.PathLike[str]]) -> list[str | os.PathLike[str]]:
    """Remove sidecars, which globs of shells and of Python match together with the shards."""
    shards = [name for name in names if _is_glob(Path(name).name) or not os.fspath(name).endswith(_SIDECARS)]
    if names and not shards:
        raise ShardNotFoundError(
            f"the list contains only sidecars of shards: {_some([os.fspath(name) for name in names])}; expected at "
            f"least one shard"
        )
    return shards


@dataclass(slots=True)
class _Search:
    """Search for the files of one given path, URL, glob or template."""

    given: str  # name that the caller gave
    fs: AbstractFileSystem
    path: str  # in the file system
    head: str  # part of a URL before the path of the file system
    tail: str  # part of a chained URL after it
    known: dict[str, dict[str, Any]]  # properties by path from listings, shared by the searches of one directory

    @classmethod
    def from_name(cls, name: str | os.PathLike[str], options: Mapping[str, Any]) -> _Search:
        """Find the file system of a path or URL; a local file may have the name of a URL."""
        given = str(stringify_path(name))
        if not given:
            raise ShardNotFoundError("the path is an empty string; expected a file, directory, glob or URL")
        if "\0" in given:
            raise ShardNotFoundError(f"{given!r}: a path cannot contain a NUL character")
        if ("::" in given or "://" in given) and Path(given).exists():
            # A local file whose name has the form of a URL.
            fs, path = LocalFileSystem(), Path(given).absolute().as_posix()
        else:
            fs, path = file_system(given, options)
        plain = isinstance(fs, LocalFileSystem | StoreFileSystem)
        head, tail = ("", "") if plain else _url_around(given, path, fs)
        # Cached listings describe the files at an earlier time.
        fs.invalidate_cache()
        return cls(given, fs, path.rstrip("/") or path, head, tail, {})

    def parts(self) -> tuple[list[str], list[str]]:
        """Split the path before its first pattern, or before its name; brackets of existing directories are literal."""
        parts = self.path.split("/")
        is_local = isinstance(self.fs, LocalFileSystem)
        for place, part in enumerate(parts[:-1]):
            if _is_glob(part) and not (is_local and Path("/".join(parts[: place + 1])).is_dir()):
                return parts[:place], parts[place:]
        return parts[:-1], parts[-1:]

    def url(self, path: str) -> str:
        """Return the URL of a path of the file system, or the path itself if it is local."""
        if isinstance(self.fs, LocalFileSystem):
            return path
        return self.head + (path.lstrip("/") if self.head else str(self.fs.unstrip_protocol(path))) + self.tail

    def files(self) -> list[tuple[str, dict[str, Any]]]:
        """Return path or URL and properties of each file, in natural order."""
        info = self.info(self.path)
        if info is not None:
            infos = self._list_directory() if info["type"] == "directory" else [self._resolve_link(info)]
        else:
            infos = self._template() or self._list_matches()
        if not infos:
            raise self.not_found()
        infos.sort(key=lambda info: natural_order(info["name"]))
        return [(self.url(info["name"]), info) for info in infos]

    def info(self, path: str) -> dict[str, Any] | None:
        """Return the properties of one literal path; None if it does not exist."""
        info = self.known.get(path)
        if info is not None and info["size"] is not None and not info.get("islink"):
            return info
        try:
            info = file_info(self.fs, path, self.url(path))
        except StorageError:
            raise
        except OSError:
            # Some file systems reject patterns as file names; for other paths the error is relevant.
            if _is_glob(path):
                return None
            raise
        # obstore names a file without its bucket here, but not in listings.
        return info and ({**info, "name": path} if path.endswith(f"/{info['name']}") else info)

    def _resolve_link(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return the properties of a regular file or directory; links are resolved."""
        url = self.url(info["name"])
        if info.get("islink") or info["size"] is None:
            # Listings describe the link instead of its target, or omit the size.
            target = self.info(info["name"])
            if target is None:
                raise ShardNotFoundError(_BROKEN_LINK, Location(url))
            info = target
        if info["type"] not in ("file", "directory"):
            raise ShardNotFoundError(NOT_REGULAR, Location(url))
        if info["size"] is None:
            raise TFRecordError(
                "the server does not report the size of this file; read it through 'simplecache::' + URL", Location(url)
            )
        return info

    def _files_of(self, infos: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the regular files of a listing; pipes and sockets are ignored."""
        files = [
            self._resolve_link(info)
            if info.get("islink") or (info["size"] is None and info["type"] == "file")
            else info
            for info in infos
        ]
        return [info for info in files if info["type"] == "file"]

    def _list_directory(self) -> list[dict[str, Any]]:
        """List the shards of a directory; refuse a Zarr store, and a folder of TFDS data sets."""
        listed = with_retries(lambda: self.fs.ls(self.path, detail=True), self.url(self.path), "list the directory")
        inside = [info for info in listed if _base(info["name"]) != ""]
        files = self._files_of(info for info in inside if not _is_side_file([_base(info["name"])], []))
        if not files and _ZARR & {_base(info["name"]) for info in inside}:
            raise ShardNotFoundError(
                "the directory is a Zarr store, not a directory of shards; "
                + Spelled(
                    f"write dtf.from_zarr({redact_url(self.given)!r})",
                    f"write `dask-tfrecord view {redact_url(self.given)}` to look at it, `dask-tfrecord to-tfrecord "
                    f"{redact_url(self.given)} TARGET` to write shards, or in Python ds = dtf.from_zarr("
                    f"{redact_url(self.given)!r}) and then print(ds), ds.head(), ds.describe() or ds.to_parquet('out')",
                ),
                Location(self.url(self.path)),
            )
        if not files:
            folders = [info["name"] for info in inside if info["type"] == "directory"]
            if known := self._data_sets(sorted(folders, key=natural_order)):
                shown = joined([f"{self.given.rstrip('/')}/{name}" for name in known], _MOST_SETS)
                raise ShardNotFoundError(
                    f"the directory holds {plural(len(known), 'data set')} of TFDS: open one of {shown}",
                    Location(self.url(self.path)),
                )
            others, names = len(inside) - len(folders), sorted(_base(info["name"]) for info in inside)
            found = f"only {joined(names, _MOST_SETS)}" if inside else "it is empty"
            below = f"; to search its subfolders, write {self.given.rstrip('/')}/**/*" if folders else ""
            raise ShardNotFoundError(
                f"the directory has no shards: {found}"
                + (" (hidden files and metadata are no shards)" if others else "")
                + below
                + (Spelled(_HIVE, "") if any("=" in _base(name) for name in folders) else ""),
                Location(self.url(self.path)),
            )
        return files

    def _data_sets(self, folders: Sequence[str]) -> list[str]:
        """Name the folders, one level deep, that have TFDS metadata."""
        found = []
        for folder in folders[:_MOST_LISTED]:
            for depth in ("", "*/"):
                for path in sorted(self.fs.glob(f"{escape(folder)}/{depth}dataset_info.json"), key=natural_order):
                    found.append(path[len(self.path.rstrip("/")) + 1 :].rpartition("/")[0])
        return found

    def _list_matches(self) -> list[dict[str, Any]]:
        """List the shards that match a pattern; an error shows what matches if no shard does."""
        fixed, variable = self.parts()
        if not self._is_glob("/".join(variable)):
            return []
        if fixed[-1:] == [".."] and isinstance(self.fs, LocalFileSystem):
            fixed = Path("/".join(fixed)).resolve().as_posix().split("/")
        matched = self._match_parts("/".join(fixed) or self.fs.root_marker, variable)
        files = self._files_of(
            info
            for path, info in matched.items()
            if info["type"] != "directory" and not _is_side_file(path.split("/")[len(fixed) :], variable)
        )
        if matched and not files:
            shown = ", ".join(sorted(map(_base, matched))[:5])
            raise ShardNotFoundError(
                f"no record file matches {self.given!r}, only directories, hidden files or metadata: {shown}; "
                f"to search the directories, add /*"
            )
        return files

    def _is_glob(self, part: str) -> bool:
        # In URLs of the web, `?` begins a query.
        return any(character in part for character in ("*[" if self._is_web() else "*?["))

    def _is_web(self) -> bool:
        return "HTTPFileSystem" in class_names(self.fs)

    def _match_parts(self, root: str, pattern: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the files and folders below a folder that match the parts of a pattern, by path.

        Each folder that may hold some is listed, or an error is raised; `glob` and `walk` of fsspec leave out what
        cannot be listed. ``**`` does not follow links to folders, which may form cycles.
        """
        matched: dict[str, dict[str, Any]] = {}
        listed: dict[str, dict[str, dict[str, Any]]] = {}
        skipped = _side_prefixes(pattern)
        parts = [part for part, following in pairwise([*pattern, ""]) if (part, following) != ("**", "**")]
        # Folders with the parts to match in them, and whether a listing names the folder.
        pending = [(root, parts, False)]
        while pending:
            folder, (part, *rest), is_named = pending.pop()
            if part != "**" and not self._is_glob(part) and folder not in listed:
                path = f"{folder.rstrip('/')}/{part}" if folder else part
                if rest:
                    pending.append((path, rest, False))
                elif (info := self.info(path)) is not None:
                    matched[path] = info
                continue
            if folder not in listed:
                listed |= self._list_folder(folder, is_named, deep=part == "**")
            if part == "**":
                pending.append((folder, rest or ["*"], is_named))
            for name, info in listed[folder].items():
                path = info["name"].rstrip("/")
                if part != "**" and not (fnmatchcase(name, part) if self._is_glob(part) else name == part):
                    continue
                if part != "**" and not rest:
                    matched[path] = info
                elif name.startswith(skipped) or (name == _LOST and part != _LOST):
                    continue
                elif part == "**":
                    if info["type"] == "directory":
                        pending.append((path, [part, *rest], True))
                elif self._is_folder(path, info):
                    pending.append((path, rest, True))
        return matched

    def _is_folder(self, path: str, info: Mapping[str, Any]) -> bool:
        """Return whether an entry of a listing is a folder or a link to one."""
        target = (self.info(path) or info) if info.get("islink") else info
        return bool(target["type"] == "directory")

    def _list_folder(self, folder: str, is_named: bool, *, deep: bool) -> dict[str, dict[str, dict[str, Any]]]:
        """List a folder by name.

        With `deep`, the folders below it are listed too if one request lists them all. `is_named` is True if a
        listing names the folder.
        """
        url = self.url(folder)
        try:
            if deep and folder and class_names(self.fs) & _FLAT:
                return _contents_by_folder(
                    folder, with_retries(lambda: self.fs.find(folder, detail=True), url, "list the objects")
                )
            path = f"{folder.rstrip('/')}/" if self._is_web() else folder
            infos = with_retries(lambda: self.fs.ls(path, detail=True), url, "list the folder")
        except (FileNotFoundError, NotADirectoryError):
            if is_named and self._is_web():
                raise StorageError(
                    f"the server names this folder but does not list it (status 404), and {self.given!r} may match "
                    f"files in it; pass a list of the files",
                    Location(url),
                ) from None
            # Removed since it was named, or a bucket without objects of this prefix.
            return {folder: {}}
        except Exception as error:
            if not is_denied(error):
                raise
        else:
            named = ((_base(info["name"].rstrip("/")), info) for info in infos)
            return {folder: {name: info for name, info in named if info["name"].strip("/") != folder.strip("/")}}
        raise PermissionError(
            errno.EACCES,
            f"permission to list this folder is denied, and {redact(self.given)!r} may match files in it; grant it, or "
            f"pass a narrower pattern or a list of files",
            redact_url(url),
        )

    def _template(self) -> list[dict[str, Any]]:
        """Return the files of ``name@8`` or ``name-?????-of-00008``; empty if none exists or it is not a template."""
        template = _template(*self.parts())
        if template is None:
            return []
        expected, shape = template
        listed = self.listing(expected[0].rpartition("/")[0] or self.fs.root_marker)
        if listed:
            existing = {path: info for path, info in listed.items() if shape.fullmatch(path)}
        else:
            # The server cannot list, or the directory does not exist.
            existing = {path: info for path in expected if (info := self.info(path)) is not None}
        if existing and existing.keys() != set(expected):
            missing = sorted(set(expected) - existing.keys(), key=natural_order)
            surplus = sorted(existing.keys() - set(expected), key=natural_order)
            raise ShardNotFoundError(
                f"{self.given!r} names {_format_range(expected)}; missing: {_some(missing)}; "
                f"unexpected: {_some(surplus)}. Complete the set, or pass a list of the files to read"
            )
        return [self._resolve_link(info) for info in existing.values()]

    def listing(self, directory: str) -> dict[str, dict[str, Any]]:
        """List a directory by path; empty if it cannot be listed."""
        return {info["name"]: info for info in (list_directory(self.fs, directory) or {}).values()}

    def not_found(self) -> ShardNotFoundError:
        """Return an error that describes the search and the existing files."""
        fixed, variable = self.parts()
        directory, wanted = "/".join(fixed) or self.fs.root_marker, variable[0]
        message = "no file matches the pattern" if _is_glob("/".join(variable)) else "no file or directory"
        if (template := _template(fixed, variable)) is not None:
            message, wanted = f"none of {_format_range(template[0])} exists for", _base(template[0][0])
        url = self.url(self.path)
        if self.given == "-":
            return ShardNotFoundError(
                "records are read at their offsets, so standard input must be saved to a file first"
            )
        if match := re.match(r"([a-z][a-z0-9+.-]+):/(?!/)", self.given):
            # A drive of Windows is one letter.
            return ShardNotFoundError(
                f"{message} {self.given!r}; did you mean {match[1] + '://' + self.given[match.end() :]!r}?"
            )
        message += f" {self.given!r}" + ("" if url == self.given else f" (that is {url})")
        try:
            names = {_base(path): path for path in sorted(self.listing(directory), key=natural_order)}
        except PermissionError:
            return ShardNotFoundError(f"{message}; permission to list {directory!r} is denied")
        if not names or directory in names.values():
            return ShardNotFoundError(f"{message}; {directory!r} is empty or not a directory")
        if wanted in names:
            return ShardNotFoundError(_BROKEN_LINK, Location(url))
        shown = [name for name in names if not _is_side_file([name], [])]
        if not shown:
            return ShardNotFoundError(f"{message}; {directory!r} has no shards: pass the path of files that exist")
        stem, dot, suffix = wanted.rpartition(".") if "." in wanted else (wanted, "", "")
        if parts := [name for name in shown if re.fullmatch(rf"{re.escape(stem)}-\d+-of-\d+.*", name)]:
            pattern = f"{stem}-*{dot}{suffix}" if all(name.endswith(dot + suffix) for name in parts) else f"{stem}-*"
            return ShardNotFoundError(
                f"{message} in {directory!r}; {pattern!r} opens the shards {parts[0]!r} to {parts[-1]!r}"
            )
        if template is not None:
            start, end = re.split(r"-\d+-of-\d+", wanted, maxsplit=1)
            counts = {re.fullmatch(rf"{re.escape(start)}-\d+-of-(\d+){re.escape(end)}", name) for name in shown}
            if sets := sorted({int(count[1]) for count in counts if count}):
                return ShardNotFoundError(f"{message}; did you mean {f'{start}@{sets[0]}{end}'!r}?")
        paths = re.split(r",\s*", self.given)
        if len(paths) > 1:
            listed = Spelled(f"a list of paths: {paths}", "spaces between the paths, without commas")
            return ShardNotFoundError(f"{message}; write " + listed)
        # Numbers of printf and fields of templates, which name new files.
        pattern = re.sub(r"%(?:0\d+)?d|\{[^{}]*\}", "*", self.given)
        if pattern != self.given and any(fnmatchcase(name, _base(pattern)) for name in shown):
            return ShardNotFoundError(f"{message}; write {pattern!r}")
        # Shards come before other files: a long list is cut.
        shown.sort(key=lambda name: "tfrecord" not in name and re.search(r"-of-\d", name) is None)
        return ShardNotFoundError(f"{message}{near_misses(wanted, shown)}")


def _list_together(searches: Sequence[_Search]) -> None:
    """List remote directories that contain many of the paths, instead of looking up each path."""
    remote = [search for search in searches if not isinstance(search.fs, LocalFileSystem) and "/" in search.path]

    def directory(search: _Search) -> tuple[str, ...]:
        return search.head, search.tail, search.path.rpartition("/")[0]

    for _, group in groupby(sorted(remote, key=directory), directory):
        together = list(group)
        if len(together) >= MIN_LOOKUPS_TO_LIST:
            # Files may be readable where the permission to list them is missing: they are looked up one by one.
            with suppress(PermissionError):
                known = together[0].listing(together[0].path.rpartition("/")[0])
                for search in together:
                    search.known = known


def _url_around(given: str, path: str, fs: AbstractFileSystem) -> tuple[str, str]:
    """Return the parts of a URL before and after the path in its file system.

    They are added to the names of a listing, because file systems remove hosts and user info from names.
    """
    links, index = split_chain(given)
    link, bare = links[index].rstrip("/"), path.strip("/")
    before = "".join(part + "::" for part in links[:index])
    after = "".join("::" + part for part in links[index + 1 :])
    if link.endswith(bare):
        return before + link[: len(link) - len(bare)], after
    own = str(fs.unstrip_protocol(path)).rstrip("/")
    return before + own[: len(own) - len(bare)], after


def _template(fixed: list[str], variable: list[str]) -> tuple[list[str], re.Pattern[str]] | None:
    """Return the shards that a template names, and the pattern of shards of that set; None if it is not a template."""
    match = _COUNTED.fullmatch(variable[0]) or _MASKED.fullmatch(variable[0])
    if match is None or len(variable) > 1 or _is_glob(match["stem"]):
        return None
    count = int(match["count"])
    mask = match.groupdict().get("mask")
    width = len(mask) if mask else max(5, len(str(count)))
    total = match["count"] if mask else f"{count:0{width}}"
    stem, suffix = "/".join([*fixed, match["stem"]]), match["suffix"]
    expected = [f"{stem}-{index:0{width}}-of-{total}{suffix}" for index in range(count)]
    return expected, re.compile(rf"{re.escape(stem)}-[0-9]{{{width}}}-of-{total}{re.escape(suffix)}")


def _contents_by_folder(root: str, objects: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the contents of a folder and of all folders below it, by the objects in them."""
    folders: dict[str, dict[str, dict[str, Any]]] = {root: {}}
    for path, info in objects.items():
        *parts, name = path.removeprefix(root).strip("/").split("/")
        folder = root
        for part in parts:
            inside = f"{folder.rstrip('/')}/{part}"
            folders[folder].setdefault(part, {"name": inside, "size": 0, "type": "directory"})
            folders.setdefault(inside, {})
            folder = inside
        if name and (info["type"] != "directory" or name not in folders[folder]):
            folders[folder][name] = info
    return folders


def _side_prefixes(pattern: Sequence[str]) -> tuple[str, ...]:
    """Return the prefixes of names of files and folders that are not shards, except those in the pattern."""
    return tuple(prefix for prefix in _SIDE_PREFIXES if not any(part.startswith(prefix) for part in pattern))


def _is_side_file(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether a file is not a shard by its name, unless the pattern contains the prefix or suffix."""
    prefixes = _side_prefixes(pattern)
    suffixes = tuple(suffix for suffix in _SIDE_SUFFIXES if not (pattern and pattern[-1].endswith(suffix)))
    return any(part.startswith(prefixes) for part in parts) or parts[-1].endswith(suffixes)


def _is_glob(path: str) -> bool:
    return any(character in path for character in "*?[")


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _some(paths: Sequence[str]) -> str:
    names = [_base(path) for path in paths] or ["none"]
    return ", ".join(names[:20]) + (f", … ({len(names) - 20:,} more)" if len(names) > 20 else "")


def _format_range(expected: Sequence[str]) -> str:
    """Format the shards of a template as a range."""
    return f"the {plural(len(expected), 'shard')} {_base(expected[0])} … {_base(expected[-1])}"


def natural_order(path: str) -> tuple[list[str | int], str]:
    """Return a sort key that orders digits by value. Text and numbers alternate, so that keys are comparable."""
    parts: list[str | int] = [*re.split(r"([0-9]+)", path)]
    parts[1::2] = [int(digits) for digits in parts[1::2]]
    return parts, path


@dataclass(frozen=True, slots=True)
class Sidecar:
    """Sidecar file of a shard."""

    file: Shard
    newer: bool  # known to be modified after the shard


def sidecar_path(path: str, suffix: str) -> str | None:
    """Return the path or URL of a sidecar; None if the URL has a query or fragment."""
    if is_local(path):
        return path + suffix
    links, index = split_chain(path)
    if "?" in links[index] or "#" in links[index]:
        return None
    links[index] += suffix
    return "::".join(links)


def find_sidecars(shards: Sequence[Shard], suffix: str) -> list[Sidecar | None]:
    """Find the sidecars of shards of one collection; None for one that does not exist or cannot be accessed."""
    paths = [sidecar_path(shard.path, suffix) for shard in shards]
    numbers = [number for number, path in enumerate(paths) if path is not None]
    numbers.sort(key=lambda number: split_name(str(paths[number]))[0])
    sidecars: list[Sidecar | None] = [None] * len(shards)
    for _, group in groupby(numbers, lambda number: split_name(str(paths[number]))[0]):
        together = list(group)
        find = _find_local if is_local(str(paths[together[0]])) else _find_remote
        files = find([shards[number] for number in together], [str(paths[number]) for number in together])
        for number, sidecar in zip(together, files, strict=False):
            sidecars[number] = sidecar
    return sidecars


def _find_local(shards: Sequence[Shard], paths: Sequence[str]) -> Iterator[Sidecar | None]:
    """Find the sidecars in one local directory."""
    try:
        with os.scandir(split_name(paths[0])[0]) as entries:
            names = {entry.name for entry in entries}
    except OSError:
        return
    for shard, path in zip(shards, paths, strict=True):
        if split_name(path)[1] not in names:
            yield None
            continue
        try:
            status, other = Path(path).stat(), Path(shard.path).stat()
        except OSError:
            yield None
            continue
        file = Shard(path, status.st_size, str(status.st_mtime), None)
        yield Sidecar(file, status.st_mtime_ns >= other.st_mtime_ns)


def _find_remote(shards: Sequence[Shard], paths: Sequence[str]) -> Iterator[Sidecar | None]:
    """Find the sidecars in one remote directory.

    If it cannot be listed and the first sidecars do not exist, the others are not looked up.
    """
    fs, inside = file_system(paths[0], shards[0].storage_options)
    folder = inside.rpartition("/")[0]
    fs.invalidate_cache()
    listed = _if_allowed(lambda: list_directory(fs, folder)) if len(paths) >= MIN_LOOKUPS_TO_LIST else None
    exists = False
    for number, (shard, path) in enumerate(zip(shards, paths, strict=True)):
        name = split_name(path)[1]
        if listed is None:
            if number >= MIN_LOOKUPS_TO_LIST and not exists:
                return
            inside = f"{folder}/{name}" if folder else name
            info, other = _if_allowed(partial(file_info, fs, inside, path)), None
        else:
            info, other = listed.get(name), listed.get(split_name(shard.path)[1])
            if info is not None and info.get("size") is None:
                # Listings of web servers contain names only.
                info = _if_allowed(partial(file_info, fs, info["name"], path))
        if info is None or info.get("size") is None or info.get("type") == "directory":
            yield None
            continue
        exists = True
        file = Shard(path, int(info["size"]), version_of(info), None, shard.storage_options)
        yield Sidecar(file, _is_newer(info, other))


def _if_allowed(look: Callable[[], Found]) -> Found | None:
    """Return what is found; None if permission is missing: other files may still be readable."""
    try:
        return look()
    except StorageError:
        raise
    except OSError:
        return None


def _is_newer(info: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    """Return whether one file is known to be modified after another."""
    for key in TIME_KEYS:
        if other is not None and info.get(key) is not None and other.get(key) is not None:
            return bool(info[key] >= other[key])
    return False
