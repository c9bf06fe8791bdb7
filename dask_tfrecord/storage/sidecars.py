"""Finding the files that lie beside shards and index them: `FILE.idx`, `FILE.gzidx`.

They are looked for by one listing per directory, or one by one where there are few. Imports retry and shards only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import fsspec

from dask_tfrecord.storage.retry import list_directory, persist
from dask_tfrecord.storage.shards import Shard, is_local, version_of

__all__ = ["Sidecar", "find_sidecars", "sidecar_path"]

# So many in one remote directory are cheaper to look up by one listing than one by one.
_WORTH_LISTING = 8

_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A file beside a shard.

    Attributes
    ----------
    file : Shard
        Itself.
    newer : bool
        It was written after the shard, as far as is known.
    """

    file: Shard
    newer: bool


def sidecar_path(path: str, suffix: str) -> str | None:
    """Name the file beside a shard; None where a URL can't be extended."""
    if is_local(path):
        return path + suffix
    links = path.split("::")
    place = next((index for index, link in enumerate(links) if "://" in link), 0)
    if "?" in links[place] or "#" in links[place]:
        return None
    links[place] += suffix
    return "::".join(links)


def find_sidecars(shards: Sequence[Shard], suffix: str) -> list[Sidecar | None]:
    """Find the files beside shards.

    Parameters
    ----------
    shards : sequence of Shard
        All of one collection.
    suffix : str
        What stands after the names of the shards.

    Returns
    -------
    list of (Sidecar or None)
        One for each shard; None where there is none, or it can't be seen.
    """
    paths = [sidecar_path(shard.path, suffix) for shard in shards]
    numbers = [number for number, path in enumerate(paths) if path is not None]
    numbers.sort(key=lambda number: _cut(str(paths[number]))[0])
    found: list[Sidecar | None] = [None] * len(shards)
    for _, group in groupby(numbers, lambda number: _cut(str(paths[number]))[0]):
        together = list(group)
        find = _find_local if is_local(str(paths[together[0]])) else _find_remote
        files = find([shards[number] for number in together], [str(paths[number]) for number in together])
        for number, sidecar in zip(together, files, strict=False):
            found[number] = sidecar
    return found


def _find_local(shards: Sequence[Shard], paths: Sequence[str]) -> Iterator[Sidecar | None]:
    """Find those of one directory of this machine."""
    try:
        with os.scandir(_cut(paths[0])[0] or "/") as entries:
            names = {entry.name for entry in entries}
    except OSError:
        return
    for shard, path in zip(shards, paths, strict=True):
        if _cut(path)[1] not in names:
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
    """Find those of one remote directory; where it can't be listed, the first few speak for all."""
    fs, inside = fsspec.core.url_to_fs(paths[0], **shards[0].storage_options)
    folder = inside.rpartition("/")[0]
    fs.invalidate_cache()
    listed = _listing(fs, folder) if len(paths) >= _WORTH_LISTING else None
    seen = False
    for number, (shard, path) in enumerate(zip(shards, paths, strict=True)):
        name = _cut(path)[1]
        if listed is None:
            if number >= _WORTH_LISTING and not seen:
                return
            info, other = _info(fs, f"{folder}/{name}" if folder else name, path), None
        else:
            info, other = listed.get(name), listed.get(_cut(shard.path)[1])
            if info is not None and info.get("size") is None:
                # A page of a web server names files, and tells nothing of them.
                info = _info(fs, info["name"], path)
        if info is None or info.get("size") is None or info.get("type") == "directory":
            yield None
            continue
        seen = True
        file = Shard(path, int(info["size"]), version_of(info), None, shard.storage_options)
        yield Sidecar(file, _is_newer(info, other))


def _listing(fs: Any, folder: str) -> dict[str, dict[str, Any]] | None:
    """List what a directory holds, by name."""
    try:
        infos = list_directory(fs, folder)
    except OSError:
        # What can't be listed may still be read.
        return None
    return None if infos is None else {info["name"].rpartition("/")[2]: info for info in infos}


def _info(fs: Any, inside: str, path: str) -> dict[str, Any] | None:
    try:
        return dict(persist(lambda: fs.info(inside), path, "look for it"))
    except OSError:
        # It is not there, or nobody may know.
        return None


def _is_newer(info: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    """Whether one file was written after another, as far as is known."""
    for key in _TIMES:
        if other is not None and info.get(key) is not None and other.get(key) is not None:
            return bool(info[key] >= other[key])
    return False


def _cut(path: str) -> tuple[str, str]:
    """Cut a path into its directory, as it stands in a URL, and the name of the file in it."""
    links = [path] if is_local(path) else path.split("::")
    place = next((index for index, link in enumerate(links) if "://" in link), 0)
    links[place], _, name = links[place].rpartition("/")
    return "::".join(links), name
