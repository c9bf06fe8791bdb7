"""Search for the sidecar files of shards: `FILE.idx` and `FILE.gzidx`.

Large directories are listed once; for a few remote shards, each sidecar is looked up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from dask_tfrecord.errors import StorageError
from dask_tfrecord.storage.remote import MIN_LOOKUPS_TO_LIST, file_system, list_directory, with_retries
from dask_tfrecord.storage.shard import TIME_KEYS, Shard, is_local, split_chain, version_of

__all__ = ["Sidecar", "find_sidecars", "sidecar_path"]


@dataclass(frozen=True, slots=True)
class Sidecar:
    """Sidecar file of a shard.

    Attributes
    ----------
    file : Shard
        The sidecar file.
    newer : bool
        True if the sidecar is known to be modified after the shard.
    """

    file: Shard
    newer: bool


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
    """Find the sidecars of shards.

    Parameters
    ----------
    shards : sequence of Shard
        Shards of one collection.
    suffix : str
        Suffix that is appended to the names of the shards.

    Returns
    -------
    list of (Sidecar or None)
        One entry per shard; None if the sidecar does not exist or cannot be accessed.
    """
    paths = [sidecar_path(shard.path, suffix) for shard in shards]
    numbers = [number for number, path in enumerate(paths) if path is not None]
    numbers.sort(key=lambda number: _split_name(str(paths[number]))[0])
    found: list[Sidecar | None] = [None] * len(shards)
    for _, group in groupby(numbers, lambda number: _split_name(str(paths[number]))[0]):
        together = list(group)
        find = _find_local if is_local(str(paths[together[0]])) else _find_remote
        files = find([shards[number] for number in together], [str(paths[number]) for number in together])
        for number, sidecar in zip(together, files, strict=False):
            found[number] = sidecar
    return found


def _find_local(shards: Sequence[Shard], paths: Sequence[str]) -> Iterator[Sidecar | None]:
    """Find the sidecars in one local directory."""
    try:
        with os.scandir(_split_name(paths[0])[0] or "/") as entries:
            names = {entry.name for entry in entries}
    except OSError:
        return
    for shard, path in zip(shards, paths, strict=True):
        if _split_name(path)[1] not in names:
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
    listed = _listing(fs, folder) if len(paths) >= MIN_LOOKUPS_TO_LIST else None
    exists = False
    for number, (shard, path) in enumerate(zip(shards, paths, strict=True)):
        name = _split_name(path)[1]
        if listed is None:
            if number >= MIN_LOOKUPS_TO_LIST and not exists:
                return
            info, other = _info(fs, f"{folder}/{name}" if folder else name, path), None
        else:
            info, other = listed.get(name), listed.get(_split_name(shard.path)[1])
            if info is not None and info.get("size") is None:
                # Listings of web servers contain names only.
                info = _info(fs, info["name"], path)
        if info is None or info.get("size") is None or info.get("type") == "directory":
            yield None
            continue
        exists = True
        file = Shard(path, int(info["size"]), version_of(info), None, shard.storage_options)
        yield Sidecar(file, _is_newer(info, other))


def _listing(fs: Any, folder: str) -> dict[str, dict[str, Any]] | None:
    """List a directory by name; None if it cannot be listed."""
    try:
        infos = list_directory(fs, folder)
    except StorageError:
        raise
    except OSError:
        # Files in it may still be readable.
        return None
    return None if infos is None else {info["name"].rpartition("/")[2]: info for info in infos}


def _info(fs: Any, inside: str, path: str) -> dict[str, Any] | None:
    try:
        return dict(with_retries(lambda: fs.info(inside), path, "look up the file"))
    except StorageError:
        raise
    except OSError:
        # The file does not exist, or permission is missing.
        return None


def _is_newer(info: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    """Return whether one file is known to be modified after another."""
    for key in TIME_KEYS:
        if other is not None and info.get(key) is not None and other.get(key) is not None:
            return bool(info[key] >= other[key])
    return False


def _split_name(path: str) -> tuple[str, str]:
    """Split a path or URL into its directory and its file name."""
    links, index = split_chain(path)
    links[index], _, name = links[index].rpartition("/")
    return "::".join(links), name
