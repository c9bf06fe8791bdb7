"""Conversions whose tasks run in a shuffled order and write at random speed, and a log of their reads and writes.

A `RecordingStore` notes every chunk that is written or read, and `recorded` adds the task to each entry. The
record is of files, one for each process, so that it is the same on threads and on a cluster.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dask._task_spec import Task
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from zarr.abc.store import Store
from zarr.storage import LocalStore, WrapperStore

# The task of this context; zarr's own threads inherit the context of their caller.
_TASK: ContextVar[str] = ContextVar("task", default="")
_CHUNK = re.compile(r".*/c(/\d+)+")
_TOKEN = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the log."""

    moment: int  # nanoseconds of the clock of the machine, which all processes share
    process: str
    what: str  # "begin" of a task; "write" or "read" of a chunk that exists
    task: str  # empty outside of tasks
    key: str


def _note(log: Path, what: str, task: str, key: str = "") -> None:
    line = "\t".join([str(time.monotonic_ns()), what, task, key]) + "\n"
    file = os.open(log / str(os.getpid()), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def events(log: Path) -> list[Event]:
    """Everything that was recorded, in order."""
    found = []
    for path in log.iterdir():
        for line in path.read_text("utf-8").splitlines():
            moment, what, task, key = line.split("\t")
            found.append(Event(int(moment), path.name, what, task, key))
    return sorted(found, key=lambda event: event.moment)


class RecordingStore(WrapperStore[Store]):
    """A store that logs reads and writes of chunks, and delays some writes."""

    # The fused codec pipeline of zarr calls the synchronous methods of the wrapped store otherwise.
    _supports_sync_io = False

    def __init__(self, store: Store, log: Path, seed: int) -> None:
        super().__init__(store)
        self.log, self.seed = log, seed

    @classmethod
    def at(cls, path: Path, log: Path, seed: int) -> RecordingStore:
        """Make one in a directory."""
        log.mkdir()
        return cls(LocalStore(path), log, seed)

    def _with_store(self, store: Store) -> RecordingStore:
        return type(self)(store, self.log, self.seed)

    def with_read_only(self, read_only: bool = False) -> RecordingStore:
        return self._with_store(self._store.with_read_only(read_only))

    async def get(self, key: str, *args: Any, **options: Any) -> Any:
        found = await self._store.get(key, *args, **options)
        # zarr requests a shard before it writes it; only an existing one counts.
        if found is not None and _CHUNK.fullmatch(key):
            _note(self.log, "read", _TASK.get(), key)
        return found

    async def getsize(self, key: str) -> int:
        return await self._store.getsize(key)

    async def set(self, key: str, value: Any, *args: Any) -> None:
        if _CHUNK.fullmatch(key):
            # The delay lies between read and write, so that another writer of the chunk can intervene.
            await asyncio.sleep(random.Random(f"{self.seed} {key}").choice([0, 0, 0, 0.001, 0.005]))
            _note(self.log, "write", _TASK.get(), key)
        await self._store.set(key, value, *args)

    async def set_if_not_exists(self, key: str, value: Any) -> None:
        if _CHUNK.fullmatch(key):
            _note(self.log, "write", _TASK.get(), key)
        await self._store.set_if_not_exists(key, value)

    async def delete(self, key: str) -> None:
        # The library deletes an existing shard before it writes it again.
        if _CHUNK.fullmatch(key) and await self._store.exists(key):
            _note(self.log, "write", _TASK.get(), key)
        await self._store.delete(key)


def _run(log: Path, task: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Run a task under its name."""
    _note(log, "begin", task)
    token = _TASK.set(task)
    try:
        return function(*args, **options)
    finally:
        _TASK.reset(token)


@dataclass(frozen=True, slots=True)
class Shuffled:
    """Priorities in any order, for dask's annotation `priority`: a cluster runs the tasks of higher ones first."""

    seed: int

    def __call__(self, key: Any) -> float:
        """Give a task's priority."""
        return random.Random(f"{self.seed} {_name(key)}").random()


def recorded(written: Delayed, log: Path, seed: int) -> Delayed:
    """Log the tasks of a graph, and give them random priorities."""
    graph = {key: _recorded(log, key, task) for key, task in dict(written.dask).items()}
    layer = MaterializedLayer(graph, annotations={"priority": Shuffled(seed)})
    return Delayed(written.key, HighLevelGraph({"recorded": layer}, {"recorded": set()}), layer="recorded")


def _recorded(log: Path, key: Any, task: Any) -> Any:
    run = partial(_run, log, _name(key))
    if isinstance(task, Task):
        return Task(key, partial(run, task.func), *task.args, **task.kwargs)
    if isinstance(task, tuple) and callable(task[0]):
        return (partial(run, task[0]), *task[1:])
    return task


def _name(key: Any) -> str:
    """Name a task alike in each conversion; its key is not."""
    return _TOKEN.sub("", str(key))


class ShuffledPool(Executor):
    """Threads that run waiting tasks in random order, for dask's option `pool`."""

    # Reported to dask as the number of threads, so that dask submits every ready task.
    _max_workers = 1 << 20

    def __init__(self, threads: int, seed: int) -> None:
        self._waiting: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]] = []
        self._changed, self._random, self._over = threading.Condition(), random.Random(seed), False
        self._threads = [threading.Thread(target=self._work) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        """Let a task wait for its turn."""
        future: Future[Any] = Future()
        with self._changed:
            self._waiting.append((future, function, args, options))
            self._changed.notify()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Finish the waiting tasks, and stop."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._over)
                if not self._waiting:
                    return
                turn = self._random.randrange(len(self._waiting))
                future, function, args, options = self._waiting.pop(turn)
            try:
                future.set_result(function(*args, **options))
            except BaseException as error:
                future.set_exception(error)
