"""Published files: their identity, a check of their sizes, and removal of temporary files of killed writers."""

from __future__ import annotations

import datetime
import os
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from dask_tfrecord.errors import IncompleteStoreError
from dask_tfrecord.storage.clients import file_system, join
from dask_tfrecord.storage.retry import list_directory, with_retries
from dask_tfrecord.storage.shard import TIME_KEYS, is_local, split_chain, version_of

__all__ = [
    "ABANDONED_AFTER",
    "RUN_PREFIX",
    "FileIdentity",
    "check_sizes",
    "directory_of",
    "file_identity",
    "list_files",
    "remove_abandoned",
]

# Seconds after which an unchanged temporary file is attributed to a dead writer. A live writer modifies its file with
# every MiB, so one day covers a worker that is suspended overnight.
ABANDONED_AFTER = 24 * 60 * 60
# Name of a run folder: this prefix and the token of the run.
RUN_PREFIX = ".dask-tfrecord-"

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")
_RUN = re.compile(re.escape(RUN_PREFIX) + "[0-9a-f]{32}")
_MAX_NAMES = 5


class FileIdentity(NamedTuple):
    """Identity of a file.

    Attributes
    ----------
    size : int
        Stored bytes.
    version : str
        Changes with the content; see `version_of`.
    """

    size: int
    version: str


def directory_of(path: str) -> str:
    """Return the directory of a path or URL, in the same spelling."""
    links, index = split_chain(path)
    head, slash, _ = links[index].rpartition("/")
    links[index] = head if head and not head.endswith("/") else head + slash
    return "::".join(links)


def file_identity(path: str, storage_options: Mapping[str, Any]) -> FileIdentity | None:
    """Return the identity of a file; None if the file does not exist."""
    # A symbolic link has the identity of its target, until a sink replaces the link.
    fs, inside = file_system(os.path.realpath(path) if is_local(path) else path, storage_options)
    fs.invalidate_cache()
    try:
        info = with_retries(lambda: fs.info(inside), path, "look up the file")
    except (FileNotFoundError, NotADirectoryError):
        return None
    return FileIdentity(int(info["size"] or 0), version_of(info))


def list_files(directory: str, storage_options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """List a directory by name; empty if it does not exist."""
    fs, inside = file_system(directory, storage_options)
    fs.invalidate_cache()
    return {_name(info): info for info in list_directory(fs, inside) or ()}


def check_sizes(expected: Mapping[str, int], storage_options: Mapping[str, Any]) -> None:
    """Check that every file exists with the size that its task reported.

    Parameters
    ----------
    expected : mapping of str to int
        Stored bytes, by path or URL.
    storage_options : mapping
        Options of fsspec.

    Raises
    ------
    IncompleteStoreError
        If a file is missing or has another size; the error names the files.
    """
    listed = {
        directory: list_files(directory, storage_options) for directory in dict.fromkeys(map(directory_of, expected))
    }
    wrong = []
    for path, size in expected.items():
        info = listed[directory_of(path)].get(path.rpartition("/")[2])
        found = None if info is None else info.get("size")
        if found != size or (info is not None and info.get("islink")):
            # Some file systems cannot list, and listings may describe a link instead of its target.
            identity = file_identity(path, storage_options)
            found = None if identity is None else identity.size
        if found != size:
            wrong.append(f"{path} (expected {size:,} bytes, found {'no file' if found is None else f'{found:,}'})")
    if wrong:
        more = f", and {len(wrong) - _MAX_NAMES:,} more" if wrong[_MAX_NAMES:] else ""
        raise IncompleteStoreError(
            f"{len(wrong):,} of {len(expected):,} files differ from what their tasks wrote: "
            f"{', '.join(wrong[:_MAX_NAMES])}{more}. Another program changed them, or the workers write to a file "
            f"system that this process does not share; write to a path that all of them reach"
        )


def remove_abandoned(directories: Iterable[str], storage_options: Mapping[str, Any]) -> None:
    """Remove temporary files and run folders that did not change for `ABANDONED_AFTER` seconds.

    Parameters
    ----------
    directories : iterable of str
        Paths or URLs; those that do not exist are skipped.
    storage_options : mapping
        Options of fsspec.
    """
    latest = time.time() - ABANDONED_AFTER
    for directory in dict.fromkeys(directories):
        for name, info in list_files(directory, storage_options).items():
            # Another run may remove the same file, or permission may be missing.
            with suppress(OSError):
                if info["type"] != "directory" and _TEMPORARY.fullmatch(name) and _modified(info) < latest:
                    fs, inside = file_system(join(directory, name), storage_options)
                    fs.rm_file(inside)
                elif info["type"] == "directory" and _RUN.fullmatch(name):
                    _remove_run(join(directory, name), latest, storage_options)


def _remove_run(folder: str, latest: float, storage_options: Mapping[str, Any]) -> None:
    fs, inside = file_system(folder, storage_options)
    infos = [*list_files(folder, storage_options).values()]
    with suppress(OSError):
        infos.append(fs.info(inside))
    # Object stores report no time for directories.
    times = [seconds for seconds in map(_modified, infos) if seconds < float("inf")]
    if times and max(times) < latest:
        fs.rm(inside, recursive=True)


def _name(info: Mapping[str, Any]) -> str:
    return str(info["name"]).rstrip("/").rpartition("/")[2]


def _modified(info: Mapping[str, Any]) -> float:
    """Return the modification time of a file in seconds; infinity if it is unknown."""
    value = next((info[key] for key in TIME_KEYS if info.get(key) is not None), None)
    if isinstance(value, str):
        with suppress(ValueError):
            value = datetime.datetime.fromisoformat(value)
    if isinstance(value, datetime.datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
        return aware.timestamp()
    return float(value) if isinstance(value, int | float) else float("inf")
