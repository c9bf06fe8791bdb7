"""Code that `check_workers` sends to workers, which may lack this library: the standard library, and fsspec for paths.

The functions are pickled by value, with the globals that they use.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import os
import platform
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["probe"]


async def probe(packages: Sequence[str], paths: Sequence[str], options: Mapping[str, Any], seconds: float) -> Any:
    """Describe the software of this process and the paths that it reaches.

    Every check has a daemon thread of its own: a file system that never answers neither blocks the worker nor keeps its
    process alive.

    Parameters
    ----------
    packages : sequence of str
        Names of distributions whose versions are looked up.
    paths : sequence of str
        Paths and URLs to open.
    options : mapping
        Options of the file systems.
    seconds : float
        Time after which a check has failed.

    Returns
    -------
    dict
        Results of `describe_software` and, by path, of `open_path`: pairs of a value and an error or None.
    """
    loop = asyncio.get_running_loop()

    def start(function: Callable[..., Any], *arguments: Any) -> asyncio.Future[tuple[Any, str | None]]:
        result = loop.create_future()

        def finish(value: tuple[Any, str | None]) -> None:
            # The wait below has ended if the check is late.
            if not result.done():
                result.set_result(value)

        def run() -> None:
            try:
                value: tuple[Any, str | None] = (function(*arguments), None)
            except Exception as error:
                value = (None, f"{type(error).__name__}: {error}")
            if not loop.is_closed():
                loop.call_soon_threadsafe(finish, value)

        threading.Thread(target=run, daemon=True, name="dask_tfrecord-check").start()
        return result

    software = start(describe_software, packages)
    opened = {path: start(open_path, path, options) for path in paths}
    await asyncio.wait([software, *opened.values()], timeout=seconds)

    def outcome(result: asyncio.Future[tuple[Any, str | None]]) -> tuple[Any, str | None]:
        return result.result() if result.done() else (None, f"no answer within {seconds:g} s")

    return {"software": outcome(software), "paths": {path: outcome(result) for path, result in opened.items()}}


def describe_software(packages: Sequence[str]) -> dict[str, Any]:
    """Return versions, the import errors of the library and of its native core, and the clock of this process."""
    versions: dict[str, str | None] = {}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    failed: dict[str, str] = {}
    for name in ("dask_tfrecord", "dask_tfrecord._native"):
        try:
            importlib.import_module(name)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
            break
    return {
        "python": platform.python_version(),
        "host": platform.node(),
        "pid": os.getpid(),
        "versions": versions,
        "failed": failed,
        "clock": time.time(),
    }


def open_path(path: str, options: Mapping[str, Any]) -> str:
    """Open a file, list a directory, or find the files of a glob or template; describe what was found."""
    import fsspec

    fs, inside = fsspec.core.url_to_fs(path, **options)
    fs.invalidate_cache()
    try:
        info = fs.info(inside)
    except FileNotFoundError:
        if not set("*?[@") & set(inside):
            raise
        try:
            # Templates like `train@8` have meaning for the library alone.
            listing = importlib.import_module("dask_tfrecord.storage.listing")
        except ImportError:
            files = fs.glob(inside)
            nbytes = sum(fs.info(name)["size"] for name in files)
        else:
            shards = listing.find_shards(path, storage_options=options)
            files = [fs._strip_protocol(shard.path) for shard in shards]
            nbytes = int(shards.sizes.sum())
        if not files:
            raise
        with fs.open(files[0], "rb") as file:
            file.read(1)
        return f"{len(files):,} files of {nbytes:,} bytes"
    if info["type"] == "directory":
        return f"directory of {len(fs.ls(inside, detail=False)):,} entries"
    with fs.open(inside, "rb") as file:
        file.read(1)
    return f"file of {info['size']:,} bytes"


# pickle and cloudpickle send functions of `__main__` by value.
for _function in (probe, describe_software, open_path):
    _function.__module__ = "__main__"
