"""Objects below one directory or URL (claims, checkpoints, files of a Zarr group), and files that tasks publish.

Published files have an identity and a checksum. What killed writers leave is removed here.
"""

from __future__ import annotations

import datetime
import errno
import json
import os
import re
import shutil
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fsspec import AbstractFileSystem
from fsspec.asyn import get_loop, sync
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from dask_tfrecord import _native
from dask_tfrecord.errors import (
    IncompleteStoreError,
    Location,
    StoreInUseError,
    add_path_to_errors,
    redact_url,
    repr_without_credentials,
)
from dask_tfrecord.shards import process
from dask_tfrecord.shards.object_store import StoreFileSystem
from dask_tfrecord.shards.remote import (
    MIN_LOOKUPS_TO_LIST,
    class_names,
    file_info,
    file_system,
    files_below,
    join,
    list_directory,
    read_object,
    with_retries,
)
from dask_tfrecord.shards.shard import TIME_KEYS, is_local, split_name, version_of
from dask_tfrecord.shards.streams import TEMPORARY

# Another process may remove parent directories while they are created.
_TRIES = 10
# File systems of fsspec with a conditional put.
_CONDITIONAL = {"S3FileSystem", "GCSFileSystem", "AzureBlobFileSystem"}
# s3fs sends objects up to this size by one request.
_ONE_PUT_NBYTES = 100 << 20
# Seconds after which concurrent writers see each other's objects.
SETTLE_SECONDS = 1.0
# Characters of a name in an error.
_SHOWN = 60


class NotAFileError(OSError):
    """A name that should be a file is a directory, a pipe, a device or a link without a target."""


# Names that leave the root: parents, absolute ones, other URLs, and on Windows drives and its own separator.
_OUTSIDE = re.compile(r"^$|^/|(?:^|/)\.{1,2}(?:/|$)|\x00|://" + (r"|\\|^[A-Za-z]:" if os.name == "nt" else ""))


def is_inside(name: str) -> bool:
    """Return whether the name of an object stays below the root of its store."""
    return _OUTSIDE.search(name) is None


def check_inside(name: str, root: str) -> str:
    """Return the name of an object; raise IncompleteStoreError if it leaves the root of its store."""
    if is_inside(name):
        return name
    raise IncompleteStoreError(
        f"{name[:_SHOWN]!r} is not a name within the store: the document that holds it was damaged, or made to change "
        f"other files",
        Location(root),
    )


class Objects(Protocol):
    """Objects by names with slashes, all of them below a root; a name that leaves it raises IncompleteStoreError."""

    def put(self, name: str, value: bytes) -> None:
        """Write an object atomically."""

    def create(self, name: str, value: bytes) -> bool:
        """Write an object unless it exists; return True if it was written."""

    def get(self, names: Iterable[str]) -> dict[str, bytes | None]:
        """Read objects; None for a missing one."""

    def drop(self, names: Iterable[str]) -> None:
        """Delete objects; a missing one is ignored."""


class FileObjects(Objects, Protocol):
    """Objects that have other names later."""

    def rename(self, name: str, to: str) -> None:
        """Rename an object, which replaces another one; raise FileNotFoundError if it does not exist."""

    def names(self, below: str) -> list[str]:
        """List the names of all objects below a path."""

    def remove(self, below: str) -> None:
        """Delete everything below a path."""


def objects_in(
    directory: str, storage_options: Mapping[str, Any] | None = None, *, makes_directory: bool = True
) -> FileObjects:
    """Return the objects of a directory or URL, which may not exist.

    Without `makes_directory`, `put` raises FileNotFoundError if a local directory does not exist.
    """
    fs, inside = file_system(directory, storage_options)
    if isinstance(fs, LocalFileSystem):
        return DirectoryObjects(inside, makes_directory)
    return UrlObjects(directory, storage_options or {})


@dataclass(frozen=True, slots=True)
class DirectoryObjects:
    """Files of a directory.

    The directory may be a link, but nothing below it is written or removed through one: what a link points to belongs
    to somebody else.
    """

    root: str
    # False: `put` raises FileNotFoundError if the directory does not exist.
    makes_directory: bool = True
    # Path of the folder of a run, which a run that takes over removes first. What the run writes is renamed from
    # this folder, and what it removes is renamed into it: without the folder it changes nothing.
    own: str | None = None

    def put(self, name: str, value: bytes | memoryview) -> None:
        """Write a file atomically."""
        self._publish(name, value, os.replace)

    def put_all(self, values: Mapping[str, bytes | memoryview]) -> None:
        """Write files atomically, one after the other: the GIL is released once."""
        names = list(values)
        for folder in self._check(names) if self.makes_directory else ():
            # A file in its place is an error of the first name that needs it.
            with suppress(OSError):
                self._make_directory(Path(folder))
        while names:
            paths = [f"{self.root}/{name}" for name in names]
            temporaries = [os.fsencode(self._temporary(path)) for path in paths]
            done = _native.publish_files(temporaries, [*map(os.fsencode, paths)], [values[name] for name in names])
            # Another process removed the directory, or the file cannot be written, and this raises the error.
            for name in names[done : done + 1]:
                self.put(name, values[name])
            names = names[done + 1 :]

    def _check(self, names: Iterable[str]) -> list[str]:
        """Return the directories of names; raise an error for a name outside of the root, or behind a link."""
        folders: dict[str, None] = {}
        for name in names:
            folders[check_inside(name, self.root).rpartition("/")[0]] = None
        checked: set[str] = set()
        for folder in folders:
            inner = self.root
            for part in folder.split("/") if folder else ():
                inner = f"{inner}/{part}"
                if inner not in checked and os.path.islink(inner):  # noqa: PTH114
                    raise NotAFileError(errno.ELOOP, "expected a directory, this is a link to another one", inner)
                checked.add(inner)
        return [f"{self.root}/{folder}" for folder in folders]

    def create(self, name: str, value: bytes) -> bool:
        """Write a file unless it exists; return True if it was written."""
        try:
            self._publish(name, value, _rename_if_absent)
        except FileExistsError:
            if not Path(self.root, name).parent.is_dir():
                raise
            return False
        return True

    def _publish(self, name: str, value: bytes | memoryview, rename: Callable[[str, str], object]) -> None:
        """Write a temporary file in the directory of the target, and rename it."""
        self._check([name])
        path = f"{self.root}/{name}"
        temporary = self._temporary(path)
        for _ in range(_TRIES):
            try:
                _write_file(temporary, value, path)
                rename(temporary, path)
            except BaseException as error:
                with suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(temporary)  # noqa: PTH108
                if not self.makes_directory or not isinstance(error, FileNotFoundError | NotADirectoryError):
                    raise
                self._refuse_lost_folder()
                with suppress(FileNotFoundError):
                    self._make_directory(Path(path).parent)
            else:
                return
        # The file system refuses the directory, or another process keeps removing it.
        raise FileNotFoundError(errno.ENOENT, "cannot make a directory to write to", str(Path(path).parent))

    def get(self, names: Iterable[str]) -> dict[str, bytes | None]:
        """Read files; None for a missing one."""
        values: dict[str, bytes | None] = {}
        for name in names:
            try:
                values[name] = _read_file(f"{self.root}/{check_inside(name, self.root)}")
            except FileNotFoundError:
                values[name] = None
        return values

    def sizes(self, names: Iterable[str]) -> dict[str, int | None]:
        """Return the size of each file in bytes; None for a missing one."""
        names = [check_inside(name, self.root) for name in names]
        sizes = _native.file_sizes([os.fsencode(f"{self.root}/{name}") for name in names])
        nbytes: dict[str, int | None] = dict(zip(names, sizes, strict=True))
        for name in (name for name, size in zip(names, sizes, strict=True) if size < 0):
            try:
                nbytes[name] = os.stat(f"{self.root}/{name}").st_size  # noqa: PTH116
            except FileNotFoundError:
                nbytes[name] = None
        return nbytes

    def names(self, below: str) -> list[str]:
        """List the names of all files below a path, or of the directory if it is empty; none behind a link."""
        names: list[str] = []
        if below and os.path.islink(f"{self.root}/{check_inside(below, self.root)}"):  # noqa: PTH114
            return names
        for folder, _, files in os.walk(Path(self.root, below), onerror=_raise_unless_missing):
            # A checkpoint has thousands of files: no `Path` for each.
            inside = Path(folder).relative_to(self.root).as_posix()
            names += files if inside == "." else [f"{inside}/{name}" for name in files]
        return names

    def drop(self, names: Iterable[str]) -> None:
        """Delete files; a missing one is ignored."""
        names = list(names)
        self._check(names)
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(self._path_to_remove(name))  # noqa: PTH108

    def move(self, name: str, to: str) -> None:
        """Rename a file or folder, unless the name is missing; links are not followed."""
        self._check([name, to])
        try:
            Path(self.root, name).rename(Path(self.root, to))
        except FileNotFoundError:
            self._refuse_lost_folder()

    def children(self, below: str) -> list[str]:
        """List the names in a folder; none behind a link."""
        self._check([f"{below}/x" if below else "x"])
        with suppress(FileNotFoundError, NotADirectoryError):
            return sorted(os.listdir(f"{self.root}/{below}"))  # noqa: PTH208
        return []

    def change(self, name: str, changed: Callable[[bytes | None], bytes | memoryview]) -> None:
        """Replace a file, or create it, by a function of what it is now."""
        found = self.get([name])[name]
        value = changed(found)
        if value != found:
            self.put(name, value)

    def _path_to_remove(self, name: str) -> str:
        """Return the path of what will be removed: in the own folder, if there is one."""
        path = f"{self.root}/{name}"
        if self.own is None or f"{path}/".startswith(f"{self.own}/"):
            return path
        away = self._temporary(path)
        try:
            os.rename(path, away)  # noqa: PTH104
        except FileNotFoundError:
            self._refuse_lost_folder()
        return away

    def _temporary(self, path: str) -> str:
        """Return a unique name to write a file under: next to the file, or in the own folder."""
        if self.own is None:
            return _temporary(path)
        return f"{self.own}/{process.process_digits()}{os.urandom(4).hex()}.partial"

    def _make_directory(self, path: Path) -> None:
        """Make a directory, but never the own folder: it may have been removed meanwhile."""
        own = None if self.own is None else Path(self.own)
        if own is None or own not in (path, *path.parents):
            make_directory(path)
            return
        for inner in reversed([path, *path.parents][: len(path.parts) - len(own.parts)]):
            inner.mkdir(exist_ok=True)

    def _refuse_lost_folder(self) -> None:
        """Raise StoreInUseError if another run has removed the own folder."""
        if self.own is not None and not Path(self.own).is_dir():
            raise StoreInUseError(
                "another run has taken over while this one did not respond. This one writes nothing more",
                Location(self.root),
            )

    def rename(self, name: str, to: str) -> None:
        """Rename a file, a link or a directory, or raise FileNotFoundError; directories are never made."""
        self._check([name, to])
        Path(self.root, name).replace(Path(self.root, to))

    def remove(self, below: str) -> None:
        """Delete a file, or everything below a path: links themselves, and not what they point to."""
        self._check([below])
        path = Path(self._path_to_remove(below))
        for folder, folders, files in os.walk(
            path if not path.is_symlink() else "", topdown=False, onerror=_raise_unless_missing
        ):
            for name in files:
                with suppress(FileNotFoundError):
                    os.unlink(f"{folder}/{name}")  # noqa: PTH108
            # Another copy of the same task may delete the folder first.
            for name in folders:
                _remove_entry(Path(folder, name))
        _remove_entry(path)

    def clear(self, keeps: Callable[[str], bool], first: Set[str]) -> None:
        """Delete everything except names for which `keeps` returns True.

        Files that have one of the names `first`, in any folder, go before all others.
        """
        if not Path(self.root).is_dir():
            return
        inside = [path for path in Path(self.root).iterdir() if not keeps(path.name)]
        # The target of a link may belong to other programs.
        folders = [path for path in inside if path.is_dir() and not path.is_symlink()]
        files = [path for path in inside if path not in folders]
        for path in files:
            if path.name in first:
                path.unlink(missing_ok=True)
        for path in folders:
            for folder, _, names in os.walk(path):
                for name in first & {*names}:
                    Path(folder, name).unlink(missing_ok=True)
        for path in folders:
            shutil.rmtree(path)
        for path in files:
            path.unlink(missing_ok=True)


def _remove_entry(path: Path) -> None:
    """Remove an empty directory, a link, a file or a device; a missing one is ignored."""
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(path.lstat().st_mode):
            path.rmdir()
        else:
            path.unlink()


def _temporary(path: str) -> str:
    """Return a unique name to write a file under.

    It ends like zarr's, so that leftovers of both are recognized, and keeps the whole name, so that the
    temporary file of a claim counts as a claim.
    """
    return f"{path}.{process.process_digits()}{os.urandom(4).hex()}.partial"


def _raise_unless_missing(error: OSError) -> None:
    """Raise the error of a folder that can't be listed, which `os.walk` would leave out; not if it is gone."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def make_directory(path: Path) -> None:
    """Make a directory with its parents, unless it exists; raise NotADirectoryError for a file."""
    if path.is_dir():
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(
            errno.ENOTDIR, "expected a directory to write to, this is a file", error.filename
        ) from None


def _read_file(path: str) -> bytes:
    """Read a file; raise FileNotFoundError if it is missing, and NotAFileError for other things than files."""
    try:
        # Opening a pipe without a writer would wait.
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        if not os.path.islink(path):  # noqa: PTH114
            raise
        raise NotAFileError(errno.EINVAL, "expected a file, this is a link without a target", path) from None
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EISDIR, errno.ENXIO, errno.ELOOP) and not Path(path).is_file():
            raise NotAFileError(errno.EINVAL, "expected a file", path) from None
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise NotAFileError(errno.EINVAL, "expected a file", path)
    with add_path_to_errors(path), open(file, "rb") as opened:  # noqa: PTH123
        return opened.read()


def _write_file(file: str, value: bytes | memoryview, path: str) -> None:
    """Write a file that will have another path, which errors have."""
    with add_path_to_errors(path):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o666)
        try:
            rest = memoryview(value)
            while rest:
                rest = rest[os.write(opened, rest) :]
        finally:
            os.close(opened)


def _rename_if_absent(source: str, path: str) -> None:
    """Rename a file unless the new name exists: atomically where the file system has hard links."""
    try:
        os.link(source, path)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOENT):
            raise
        with open(path, "xb") as file:  # noqa: PTH123
            file.write(Path(source).read_bytes())
    os.unlink(source)  # noqa: PTH108


# The memory of one process needs no service to be exclusive.
_memory = threading.Lock()


@dataclass(frozen=True, slots=True)
class UrlObjects:
    """Objects below a URL."""

    url: str
    storage_options: Mapping[str, Any]

    __repr__ = repr_without_credentials

    def put(self, name: str, value: bytes) -> None:
        """Write an object atomically."""
        url, fs, path = self._locate(name)
        with_retries(lambda: fs.pipe_file(path, value), url, "write the object")

    def create(self, name: str, value: bytes) -> bool:
        """Write an object unless it exists; return True if it was written.

        Exclusive in memory, through obstore, and by the clients of S3, Google and Azure. Elsewhere the object is read
        back after `SETTLE_SECONDS`, and the last of several concurrent writers wins.
        """
        url, fs, path = self._locate(name)
        if isinstance(fs, MemoryFileSystem):
            with _memory:
                if fs.exists(path):
                    return False
                fs.pipe_file(path, value)
                return True
        created = with_retries(lambda: _put_if_absent(fs, path, value), url, "create the object")
        if created:
            return True
        if created is None:
            if self.get([name])[name] is not None:
                return False
            self.put(name, value)
            time.sleep(SETTLE_SECONDS)
        # A request that was sent again may have found its own object.
        return self.get([name])[name] == value

    def get(self, names: Iterable[str]) -> dict[str, bytes | None]:
        """Read objects; None for a missing one."""
        values: dict[str, bytes | None] = {}
        for name in names:
            url, fs, path = self._locate(name)
            try:
                values[name] = with_retries(partial(read_object, fs, path), url, "read the object")
            except (FileNotFoundError, NotADirectoryError):
                values[name] = None
        return values

    def drop(self, names: Iterable[str]) -> None:
        """Delete objects; a missing one is ignored."""
        for name in names:
            url, fs, path = self._locate(name)
            with suppress(FileNotFoundError):
                with_retries(partial(fs.rm_file, path), url, "delete the object")

    def empty(self, name: str, check: Callable[[], object]) -> None:
        """Leave an object without content, unless another run writes it after `check` has returned.

        Clients of S3, and obstore, have a condition for it. Raises StoreInUseError if it does not hold.
        """
        url, fs, path = self._locate(name)
        info = file_info(fs, path, url)
        check()
        if info is None:
            return
        done = with_retries(lambda: _put_if_unchanged(fs, path, b"", info), url, "replace the object")
        if done is None:
            self.put(name, b"")
        # A request that was sent again finds its own object.
        elif not done and self.get([name])[name]:
            raise StoreInUseError(
                f"another run has written {name} meanwhile. This one writes nothing more", Location(redact_url(url))
            )

    def copy(self, name: str, to: str) -> None:
        """Copy an object within the store; or rename it where the store can do no other."""
        url, fs, path = self._locate(name)
        target = self._locate(to)[2]

        def copy() -> None:
            try:
                fs.cp_file(path, target)
            except NotImplementedError:
                fs.mv(path, target)

        with_retries(copy, url, "copy the object")

    def rename(self, name: str, to: str) -> None:
        """Copy an object within the store, and delete it."""
        self.copy(name, to)
        self.drop([name])

    def names(self, below: str) -> list[str]:
        """List the names of all objects below a path."""
        _, fs, path = self._locate(below) if below else (self.url, *file_system(self.url, self.storage_options))
        start = len(path) - len(below)
        return [name[start:].lstrip("/") for name in files_below(fs, path)]

    def remove(self, below: str) -> None:
        """Delete everything below a path."""
        _, fs, path = self._locate(below)
        with suppress(FileNotFoundError):
            if fs.exists(path):
                fs.rm(path, recursive=True)

    def _locate(self, name: str) -> tuple[str, Any, str]:
        """Return the URL of an object, its file system, and its path there."""
        # fsspec takes `::` for a chain of URLs; in a directory it is a name. The replacement is refused as a URL.
        url = join(self.url, check_inside(name.replace("::", "://"), self.url))
        fs, path = file_system(url, self.storage_options)
        fs.invalidate_cache()
        return url, fs, path


def _put_if_absent(fs: AbstractFileSystem, path: str, value: bytes) -> bool | None:
    """Put an object unless it exists; None if the client lacks it."""
    if not isinstance(fs, StoreFileSystem):
        return sync(get_loop(), put_if_absent, fs, path, value)  # type: ignore[no-any-return]
    return _put_in_store(fs, path, value, "create")


def _put_if_unchanged(fs: AbstractFileSystem, path: str, value: bytes, info: Mapping[str, Any]) -> bool | None:
    """Put an object unless it has another version than these properties; None if the client lacks it."""
    if not isinstance(fs, StoreFileSystem):
        return sync(get_loop(), put_if_unchanged, fs, path, value, info.get("ETag"))  # type: ignore[no-any-return]
    return _put_in_store(fs, path, value, {name: info[name] for name in ("e_tag", "version") if info.get(name)})


def _put_in_store(fs: StoreFileSystem, path: str, value: bytes, mode: str | Mapping[str, str]) -> bool | None:
    try:
        fs.pipe_file(path, value, mode=mode)
    except FileExistsError:
        return False
    except NotImplementedError:
        return None
    return True


async def put_if_absent(fs: AbstractFileSystem, path: str, value: bytes | memoryview) -> bool | None:
    """Put an object unless it exists; None if the client or the server lacks a conditional put.

    The public `pipe_file` of fsspec blocks the event loop: https://github.com/fsspec/filesystem_spec/issues/1693
    """
    if not class_names(fs) & _CONDITIONAL:
        return None
    try:
        return await _put_under_condition(fs, path, value, FileExistsError, mode="create")
    except (NotImplementedError, TypeError):
        return None


async def put_if_unchanged(fs: AbstractFileSystem, path: str, value: bytes | memoryview, version: str) -> bool | None:
    """Put an object unless its version has changed; None if the client lacks it: only S3's has it."""
    if "S3FileSystem" not in class_names(fs) or len(value) >= _ONE_PUT_NBYTES:
        return None
    return await _put_under_condition(fs, path, value, FileNotFoundError, IfMatch=version)


async def _put_under_condition(
    fs: AbstractFileSystem, path: str, value: bytes | memoryview, refusal: type[OSError], **condition: str
) -> bool:
    """Put an object; False if the server refuses the condition. Of some refusals, s3fs keeps the text alone."""
    try:
        await fs._pipe_file(path, value, **condition)
    except OSError as error:
        found = f"{error!r} {error.__cause__!r}"
        if isinstance(error, refusal) or "PreconditionFailed" in found or "ConditionalRequestConflict" in found:
            return False
        raise
    return True


# -- files that tasks publish

# Seconds after which an unchanged temporary file is attributed to a dead writer. A live writer modifies its file with
# every MiB, and a client renews its claim, so one day covers a machine that sleeps overnight.
ABANDONED_AFTER = 24 * 60 * 60
# Name of a run folder: this prefix and the token of the run.
RUN_PREFIX = ".dask-tfrecord-"
# Prefixes of the names of folders in it, with what a run publishes and what that replaces.
PUBLISHING = ("publish-", "taken-")

_RUN = re.compile(re.escape(RUN_PREFIX) + r"(?:[0-9a-f]{16}-)?[0-9a-f]{32}(?:\.gone)?")
_CLAIM = re.compile(re.escape(RUN_PREFIX) + r"[0-9a-f]{16}\.claim(\..*)?")
_JOB = re.compile(re.escape(RUN_PREFIX) + r"[0-9a-f]{16}\.job")
_TEMPORARY_DIGITS = re.compile(r".+\.([0-9a-f]{32})\.(?:tmp|partial)")
_MAX_NAMES = 5
_COMPARED_NBYTES = 1 << 20


class StoredFile(NamedTuple):
    """Identity of a file: its bytes, and what changes with them. A task also knows the checksum of what it wrote."""

    size: int
    # See `version_of`; None is not compared.
    version: str | None = None
    # CRC-32C of the stored bytes; None is not compared.
    checksum: int | None = None


def directory_of(path: str) -> str:
    """Return the directory of a path or URL, in the same spelling."""
    return split_name(path)[0]


def file_identity(path: str, storage_options: Mapping[str, Any]) -> StoredFile | None:
    """Return the identity of a file; None if the file does not exist."""
    # A symbolic link has the identity of its target, until a sink replaces the link.
    fs, inside = file_system(os.path.realpath(path) if is_local(path) else path, storage_options)
    fs.invalidate_cache()
    info = file_info(fs, inside, path)
    return None if info is None else StoredFile(int(info["size"] or 0), version_of(info))


def list_files(directory: str, storage_options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """List a directory by name; empty if it does not exist."""
    fs, inside = file_system(directory, storage_options)
    fs.invalidate_cache()
    return list_directory(fs, inside) or {}


def check_files(
    expected: Mapping[str, StoredFile],
    storage_options: Mapping[str, Any],
    owns: Callable[[str], bool] = lambda path: False,
    shown: Callable[[str], str] = redact_url,
) -> None:
    """Check that every file has the size, and the version or the checksum, that its task reported.

    If `owns` returns True for a file, another copy of its task published it. Raises IncompleteStoreError with the
    names of files that are missing or differ, as `shown` returns them.
    """
    listed = {
        directory: list_files(directory, storage_options)
        for directory, files in Counter(map(directory_of, expected)).items()
        if files >= MIN_LOOKUPS_TO_LIST
    }
    wrong = []
    for path, written in expected.items():
        info = listed.get(directory_of(path), {}).get(path.rpartition("/")[2])
        stored = None if info is None else StoredFile(int(info.get("size") or 0), version_of(info))
        if not _is_as_written(stored, written) or (info is not None and info.get("islink")):
            # Few files are not listed, some file systems cannot list, and listings may describe a link, not its target.
            stored = file_identity(path, storage_options)
        if _is_as_written(stored, written) or (stored is not None and owns(path)):
            continue
        if stored is None or stored.size != written.size:
            amount = "no file" if stored is None else f"{stored.size:,}"
            wrong.append(f"{shown(path)} (expected {written.size:,} bytes, found {amount})")
        elif (checksum := _checksum(path, storage_options)) != written.checksum:
            wrong.append(f"{shown(path)} (expected checksum {written.checksum:08x}, found {checksum:08x})")
    if wrong:
        more = f", and {len(wrong) - _MAX_NAMES:,} more" if wrong[_MAX_NAMES:] else ""
        raise IncompleteStoreError(
            f"{len(wrong):,} of {len(expected):,} files differ from what their tasks wrote: "
            f"{', '.join(wrong[:_MAX_NAMES])}{more}. Another program changed them, or the workers write to a file "
            f"system that this process does not share; write to a path that all of them can reach"
        )


def _is_as_written(found: StoredFile | None, written: StoredFile) -> bool:
    """Compare the size, and the version if the checksum is known; the checksum decides where the version differs."""
    return (
        found is not None
        and found.size == written.size
        and (written.checksum is None or found.version == written.version)
    )


def _checksum(path: str, storage_options: Mapping[str, Any]) -> int:
    """Read a file and return the CRC-32C of its stored bytes."""
    import crc32c

    fs, inside = file_system(path, storage_options)

    def read() -> int:
        checksum = 0
        with fs.open(inside, "rb") as file:
            while block := file.read(_COMPARED_NBYTES):
                checksum = crc32c.crc32c(block, checksum)
        return checksum

    return with_retries(read, path, "verify the file")


def remove_abandoned(
    directories: Iterable[str], storage_options: Mapping[str, Any], *, own: str = ""
) -> dict[str, dict[str, dict[str, Any]]]:
    """Remove temporary files, claims and run folders that did not change for `ABANDONED_AFTER` seconds.

    Files of a run with a claim stay: its client renews the claim. Files of an unfinished job and the folder `own`
    stay, too. Temporary files of a process of this machine that has ended go at once. Return what the directories held.
    """
    listed = {}
    latest = time.time() - ABANDONED_AFTER
    for directory in dict.fromkeys(directories):
        files = listed[directory] = list_files(directory, storage_options)
        claims = [name for name in files if _CLAIM.fullmatch(name)]
        old = [
            name
            for name, info in files.items()
            if _is_leftover(name, info) and (_modified_seconds(info) < latest or _is_of_ended_process(name))
        ]
        runs = [name for name, info in files.items() if info["type"] == "directory" and _RUN.fullmatch(name)]
        live: set[str] = set()
        if runs:
            young = [name for name in files if name not in old and (name in claims or _JOB.fullmatch(name))]
            live = {_token_of_claim(data) for data in objects_in(directory, storage_options).get(young).values()} - {""}
        for name in old:
            _remove_file(join(directory, name), storage_options)
        for name in runs:
            if name.rpartition("-")[2].removesuffix(".gone") not in live and join(directory, name) != own:
                with suppress(OSError):
                    _remove_run(join(directory, name), latest, storage_options)
    return listed


def _is_leftover(name: str, info: Mapping[str, Any]) -> bool:
    """Return whether a file is a claim or a temporary file of this library."""
    return info["type"] != "directory" and (_CLAIM.fullmatch(name) or TEMPORARY.fullmatch(name)) is not None


def _is_of_ended_process(name: str) -> bool:
    """Return whether a process of this machine that has ended named a temporary file, outside of a run."""
    found = _TEMPORARY_DIGITS.fullmatch(name)
    return found is not None and process.has_exited(found[1])


def _token_of_claim(claim: bytes | None) -> str:
    """Return the token of the run that holds a claim."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(claim or b"")["token"])
    return ""


def _remove_file(path: str, storage_options: Mapping[str, Any]) -> None:
    # Another run may remove the same file, or permission may be missing.
    with suppress(OSError):
        fs, inside = file_system(path, storage_options)
        fs.rm_file(inside)


def _remove_run(folder: str, latest: float, storage_options: Mapping[str, Any]) -> None:
    """Remove the folder of a dead run, unless it keeps files of readers or was changed lately."""
    fs, inside = file_system(folder, storage_options)
    held = list_files(folder, storage_options)
    if any(name.startswith(PUBLISHING) for name in held):
        # Files of readers that a dead run has taken away: the next run of these files brings them back.
        return
    infos = [*held.values()]
    with suppress(OSError):
        infos.append(fs.info(inside))
    # Object stores report no time for directories.
    times = [seconds for seconds in map(_modified_seconds, infos) if seconds < float("inf")]
    if times and max(times) < latest:
        fs.rm(inside, recursive=True)


def _modified_seconds(info: Mapping[str, Any]) -> float:
    """Return the modification time of a file in seconds; infinity if it is unknown."""
    value = next((info[key] for key in TIME_KEYS if info.get(key) is not None), None)
    if isinstance(value, str):
        with suppress(ValueError):
            value = datetime.datetime.fromisoformat(value)
    if isinstance(value, datetime.datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
        return aware.timestamp()
    return float(value) if isinstance(value, int | float) else float("inf")
