"""`check_workers`: software, native core, packages, paths and clocks of a cluster; and `show_versions`."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dask.utils import format_bytes, parse_timedelta

from dask_tfrecord.advice import explain_arguments
from dask_tfrecord.errors import ClusterError, describe_error, plural, printable, redact, redact_url
from dask_tfrecord.features.schema import align_columns
from dask_tfrecord.markup import html_table

# Versions that have to be equal, because tasks and results are pickled between the processes.
_EXACT = ("dask-tfrecord", "dask", "distributed", "numpy", "zarr", "fsspec")
_NEEDED = ("click", "crc32c", "protobuf", "rich")
# Packages of extras: missing on a worker is a problem if the client has them.
_OPTIONAL = {
    "s3fs": "s3",
    "gcsfs": "gcs",
    "pillow": "image",
    "simplejpeg": "image",
    "ml_dtypes": "bfloat16",
    "isal": "fast",
    "zarrs": "fast",
    "indexed-gzip": "gzip-index",
    "pyarrow": "arrow",
    "pandas": "arrow",
    "xarray": "xarray",
}
_PACKAGES = (*_EXACT, *_NEEDED, *_OPTIONAL)
# Difference of clocks, beyond the time of the check. Object stores refuse requests with a wrong time.
_CLOCK_SECONDS = 60.0
# Time for the connections to the workers, beyond the time of their checks.
_MARGIN_SECONDS = 5.0
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class PathCheck:
    """A path as one worker sees it.

    Attributes
    ----------
    path : str
        Path or URL, without credentials.
    found : str or None
        Kind and size of the content; None after an error.
    error : str or None
        Error of opening or listing the path, without credentials.
    """

    path: str
    found: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class WorkerCheck:
    """Software and resources of one worker.

    Attributes
    ----------
    address, name, host : str
        Address and name in the cluster; name of the machine, or an empty text if the worker did not answer.
    threads : int
        Threads that run tasks.
    memory_limit : int or None
        Bytes that the worker may use; None without a limit.
    python : str
        Version of Python.
    versions : mapping of str to str or None
        Versions of packages; None for a missing one.
    clock_difference : float
        Seconds that the worker's clock is ahead of the client's, including the time of the check.
    paths : tuple of PathCheck
        Result for each path.
    problems : tuple of str
        Descriptions of problems.
    """

    address: str
    name: str
    host: str
    threads: int
    memory_limit: int | None
    python: str
    versions: Mapping[str, str | None]
    clock_difference: float
    paths: tuple[PathCheck, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, repr=False)
class WorkersReport:
    """Report of `check_workers`.

    Attributes
    ----------
    workers : tuple of WorkerCheck
        The workers.
    versions : mapping of str to str or None
        Versions of packages in the client.
    seconds : float
        Duration of the check.
    """

    workers: tuple[WorkerCheck, ...]
    versions: Mapping[str, str | None]
    seconds: float

    @property
    def problems(self) -> tuple[str, ...]:
        """Problems, each with its workers."""
        if not self.workers:
            return ("the cluster has no workers",)
        workers_of: dict[str, list[str]] = {}
        for worker in self.workers:
            for problem in worker.problems:
                workers_of.setdefault(problem, []).append(worker.address)
        for path, sights in self._workers_by_content().items():
            if len(sights) > 1:
                text = "; ".join(f"{sight} on {_some_workers(workers)}" for sight, workers in sights.items())
                workers_of[f"workers find different content at {path}: {text}; tasks need a path that all share"] = []
        lines = []
        for problem, workers in workers_of.items():
            which = "all workers" if len(workers) == len(self.workers) else _some_workers(workers)
            lines.append(f"{problem} ({which})" if workers else problem)
        return tuple(lines)

    @property
    def ok(self) -> bool:
        """True if no problem was found."""
        return not self.problems

    def raise_for_problems(self) -> None:
        """Raise an error with all problems.

        Raises
        ------
        errors.ClusterError
            If a problem was found.
        """
        if self.problems:
            raise ClusterError(f"{plural(len(self.problems), 'problem')} of the workers: {'. '.join(self.problems)}")

    def _workers_by_content(self) -> dict[str, dict[str, list[str]]]:
        """Return the workers by path and by what they found there."""
        sights: dict[str, dict[str, list[str]]] = {}
        for worker in self.workers:
            for path in worker.paths:
                if path.found is not None:
                    sights.setdefault(path.path, {}).setdefault(path.found, []).append(worker.address)
        return sights

    def _rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the header and a row per worker, as texts."""
        yield ("worker", "host", "threads", "memory", "Python", "dask-tfrecord", "paths", "problems")
        for worker in self.workers:
            memory = "no limit" if worker.memory_limit is None else format_bytes(worker.memory_limit)
            readable = sum(path.error is None for path in worker.paths)
            paths = f"{readable} of {len(worker.paths)}" if worker.paths else "-"
            version = worker.versions.get("dask-tfrecord") or "-"
            yield (
                *(worker.address, worker.host or "-", str(worker.threads), memory, worker.python or "-", version),
                *(paths, str(len(worker.problems) or "none")),
            )

    def _summary(self) -> str:
        verdict = plural(len(self.problems), "problem") if self.problems else "no problems"
        return f"{plural(len(self.workers), 'worker')}, {verdict}, checked in {self.seconds:.1f} s"

    def __repr__(self) -> str:
        lines = align_columns(list(self._rows())) if self.workers else ()
        return "\n".join([self._summary(), *lines, *(f"- {printable(problem)}" for problem in self.problems)])

    def _repr_html_(self) -> str:
        header, *rows = self._rows()
        return html_table(self._summary(), header, rows, self.problems)


@explain_arguments("dtf.check_workers(client, 'train-*.tfrecord')")
def check_workers(
    client: Any,
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    storage_options: Mapping[str, Any] | None = None,
    *,
    timeout: float | str = "10s",
) -> WorkersReport:
    """Check that the workers of a cluster can do the work before you send it.

    Each worker reports the versions of its packages, loads the native core, and opens the paths. The check also works
    on workers that lack this library. It takes at most `timeout` plus five seconds.

    Parameters
    ----------
    client : distributed.Client
        Client of the cluster.
    paths : str, os.PathLike or list of these, optional
        Paths, fsspec URLs, globs, templates or directories that every worker must be able to read. For output, the
        directory or bucket, which must exist.
    storage_options : mapping, optional
        Options for the fsspec file systems.
    timeout : float or str, default "10s"
        Time after which a worker or a path counts as failed.

    Returns
    -------
    WorkersReport
        The reports of the workers, and the `problems`: missing packages, versions that differ from the client's, paths
        that can't be read or whose content differs between workers, and clocks that differ by a minute. It prints as a
        table; `raise_for_problems` raises an error if there is a problem.

    Raises
    ------
    ValueError
        If the client is asynchronous.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> from distributed import Client, LocalCluster
    >>> with LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster, Client(cluster) as client:
    ...     report = dtf.check_workers(client, "train-*.tfrecord")
    >>> report.ok, report.workers[0].paths[0].found
    (True, '2 files of 5,857 bytes')
    """
    if isinstance(client, str | os.PathLike | list | tuple):
        raise TypeError(f"the client comes first: write dtf.check_workers(client, {client!r:.100})")
    if client.asynchronous:
        raise ValueError("check_workers takes a synchronous client: call it in a separate thread")
    began = time.monotonic()
    seconds = float(parse_timedelta(timeout, default="s"))
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    # Local paths are relative to the directory of the client, as in tasks.
    names = [os.fspath(path) for path in given]
    options = dict(storage_options or {})
    urls = [name if "://" in name or "store" in options else str(Path(name).absolute()) for name in names]
    workers = client.scheduler_info(n_workers=-1)["workers"]
    # In a partial, because workers log the arguments of functions that fail.
    call = partial(probe, _PACKAGES, urls, options, seconds)
    answers = client.sync(_ask, client, call, list(workers), seconds + _MARGIN_SECONDS)
    own = describe_software(_PACKAGES)
    elapsed = time.monotonic() - began
    secrets = tuple(_secret_texts(options))
    checks = [
        _check_worker(address, info, answers[address], own, _clean_paths(answers[address], urls, secrets), elapsed)
        for address, info in workers.items()
    ]
    return WorkersReport(tuple(checks), own["versions"], elapsed)


async def _ask(client: Any, call: Any, addresses: Sequence[str], seconds: float) -> dict[str, Any]:
    """Run a function on each worker; an exception takes the place of an answer."""
    calls = {
        address: asyncio.ensure_future(client.run(call, workers=[address], on_error="return")) for address in addresses
    }
    if calls:
        _, late = await asyncio.wait(calls.values(), timeout=seconds)
        for each in late:
            each.cancel()

    def answer(address: str, done: asyncio.Future[Any]) -> Any:
        if not done.done():
            return TimeoutError(f"no answer within {seconds:g} s")
        return done.exception() or done.result().get(address, ConnectionError("the worker has left the cluster"))

    return {address: answer(address, done) for address, done in calls.items()}


def _check_worker(
    address: str,
    info: Mapping[str, Any],
    answer: Any,
    own: Mapping[str, Any],
    paths: tuple[PathCheck, ...],
    elapsed: float,
) -> WorkerCheck:
    """Compare what a worker answered with this process; an answer may be the error that it failed with."""
    known = address, str(info.get("name", "")), int(info["nthreads"]), int(info.get("memory_limit") or 0) or None
    software, error = (None, describe_error(answer)) if isinstance(answer, Exception) else answer["software"]
    if software is None:
        problem = (f"the worker could not be checked: {redact(error)}",)
        return WorkerCheck(*known[:2], "", *known[2:], "", {}, 0.0, paths, problem)
    ahead = software["clock"] - own["clock"]
    problems = [*_software_problems(software, own)]
    if abs(ahead) > _CLOCK_SECONDS + elapsed:
        problems.append(f"its clock differs from that of the client by {abs(ahead):,.0f} s")
    problems += [f"{path.path} cannot be read: {path.error}" for path in paths if path.error is not None]
    return WorkerCheck(
        *(*known[:2], software["host"], *known[2:], software["python"], software["versions"], ahead, paths),
        tuple(problems),
    )


def _software_problems(software: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    """Yield differences between a worker's software and the client's."""
    for name, error in software["failed"].items():
        yield f"{name} cannot be imported: {redact(error)}"
    found, expected = (each["python"].rpartition(".")[0] for each in (software, own))
    if found != expected:
        yield f"Python {found} instead of {expected}"
    versions: Mapping[str, str | None] = software["versions"]
    for name, version in versions.items():
        wanted = own["versions"][name]
        # A source tree lacks a version, and the import above has found its modules.
        if name == "dask-tfrecord" and (version is None or wanted is None):
            continue
        if version is None and wanted is not None:
            extra = f": pip install 'dask-tfrecord[{_OPTIONAL[name]}]'" if name in _OPTIONAL else ""
            yield f"{name} is missing, but the client has it{extra}"
        elif name in _EXACT and version != wanted:
            yield f"{name} {version} instead of {wanted}"


def _clean_paths(answer: Any, urls: Sequence[str], secrets: Sequence[str]) -> tuple[PathCheck, ...]:
    """Return the checks of paths without credentials."""
    if isinstance(answer, Exception):
        return ()

    def clean(text: str | None) -> str | None:
        if text is None:
            return None
        for secret in secrets:
            text = text.replace(secret, "***")
        return redact(text)

    return tuple(PathCheck(redact_url(url), found, clean(error)) for url, (found, error) in answer["paths"].items())


def _secret_texts(options: object) -> Iterator[str]:
    """Yield texts of storage options that errors may quote; addresses of servers are not among them."""
    if isinstance(options, Mapping):
        for value in options.values():
            yield from _secret_texts(value)
    elif isinstance(options, list | tuple):
        for value in options:
            yield from _secret_texts(value)
    elif isinstance(options, str) and len(options) >= 6 and "://" not in options:
        yield options


def _some_workers(addresses: Sequence[str]) -> str:
    more = f" and {len(addresses) - _SHOWN:,} more" if len(addresses) > _SHOWN else ""
    return ", ".join(addresses[:_SHOWN]) + more


async def probe(packages: Sequence[str], paths: Sequence[str], options: Mapping[str, Any], seconds: float) -> Any:
    """Describe the software of this process and the paths that it reaches: pairs of a value and an error or None.

    Every check has a daemon thread of its own: a file system that never answers neither blocks the worker nor keeps its
    process alive. A check has failed after some seconds.
    """

    def start(function: Callable[..., Any], *arguments: Any) -> asyncio.Future[tuple[Any, str | None]]:
        done: Future[tuple[Any, str | None]] = Future()
        done.set_running_or_notify_cancel()

        def run() -> None:
            try:
                done.set_result((function(*arguments), None))
            except Exception as error:
                done.set_result((None, f"{type(error).__name__}: {error}"))

        threading.Thread(target=run, daemon=True, name="dask_tfrecord-check").start()
        return asyncio.wrap_future(done)

    software = start(describe_software, packages)
    opened = {path: start(describe_path, path, options) for path in paths}
    _, late = await asyncio.wait([software, *opened.values()], timeout=seconds)
    for each in late:
        # The loop may be closed when it is done.
        each.cancel()

    def outcome(result: asyncio.Future[tuple[Any, str | None]]) -> tuple[Any, str | None]:
        return (None, f"no answer within {seconds:g} s") if result.cancelled() else result.result()

    return {"software": outcome(software), "paths": {path: outcome(result) for path, result in opened.items()}}


def show_versions() -> None:
    """Print what a bug report needs: the system, Python, and the versions of packages.

    Examples
    --------
    >>> dtf.show_versions()
    system          ...
    python          ...
    dask-tfrecord   ...
    """
    found = describe_software(_PACKAGES)
    lines = {"system": platform.platform(), "python": found["python"], **found["versions"]}
    for name, version in (lines | found["failed"]).items():
        print(f"{name:<15} {version or 'not installed'}")


def describe_software(packages: Sequence[str]) -> dict[str, Any]:
    """Return versions, import errors of the library and its native core, and this process's clock."""
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
        "versions": versions,
        "failed": failed,
        "clock": time.time(),
    }


def describe_path(path: str, options: Mapping[str, Any]) -> str:
    """Open a file, list a directory, or find the files of a glob or template; describe what was found."""
    import fsspec

    stores = importlib.import_module("dask_tfrecord.shards.remote") if "store" in options else fsspec.core
    fs, inside = stores.url_to_fs(path, **options)
    fs.invalidate_cache()
    try:
        info = fs.info(inside)
    except FileNotFoundError:
        if not set("*?[@") & set(inside):
            raise
        try:
            # Templates like `train@8` have meaning for the library alone.
            listing = importlib.import_module("dask_tfrecord.shards.listing")
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


# Workers may lack this library: pickle and cloudpickle send functions of `__main__` by value.
for _function in (probe, describe_software, describe_path):
    _function.__module__ = "__main__"
