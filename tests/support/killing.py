"""Killable processes of a cluster, and calls of a client in a separate process.

All processes are forked from one that has imported the libraries, so that a new worker or client costs little.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import dask
import pytest
from distributed import Client, LocalCluster, Scheduler, Worker
from distributed.core import Status

from support.waiting import PATIENCE, wait_until

# Marks of test modules that kill processes.
MARKS = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there"),
    # Killed workers leave open sockets, which their nannies report.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
# Processes in which replicas are dropped and tasks stolen as often as possible, and a task is lost with the second
# worker that runs it.
RESTLESS = {
    "distributed.scheduler.active-memory-manager.start": True,
    "distributed.scheduler.active-memory-manager.interval": "20ms",
    "distributed.scheduler.work-stealing": True,
    "distributed.scheduler.work-stealing-interval": "20ms",
    "distributed.scheduler.allowed-failures": 1,
    "distributed.worker.multiprocessing-method": "forkserver",
    "distributed.comm.timeouts.connect": "20s",
}
_FORKS = multiprocessing.get_context("forkserver")
_LIBRARIES = {"dask", "dask_tfrecord", "distributed", "fsspec", "google", "numpy", "pytest", "rich", "zarr"}


@contextlib.contextmanager
def two_workers(threads: int = 2) -> Iterator[LocalCluster]:
    """Start a cluster of two worker processes with nannies, which restart them."""
    with LocalCluster(n_workers=2, threads_per_worker=threads, processes=True, dashboard_address=":0") as cluster:
        yield cluster


def running(cluster: LocalCluster) -> list[int]:
    """Return the process ids of the running workers."""
    processes = [nanny.process for nanny in cluster.workers.values()]
    found = [process.pid for process in processes if process is not None and process.status == Status.running]
    # A process that ends between the two questions lacks an id.
    return [process for process in found if process is not None]


def _prepare() -> None:
    """Start the fork server, which imports the modules that this process has imported."""
    _FORKS.set_forkserver_preload([name for name in sys.modules if name.partition(".")[0] in _LIBRARIES])
    forkserver.ensure_running()


def _start(function: Callable[..., None], *args: Any, **options: Any) -> Any:
    _prepare()
    process = _FORKS.Process(target=function, args=args, kwargs=options, daemon=True)
    process.start()
    return process


@dataclass(frozen=True)
class Cluster:
    """Processes that a test may kill."""

    address: str
    workers: Callable[[], list[int]]
    restarts: bool
    scheduler: int  # process id, of this process where nannies are


@contextlib.contextmanager
def restless_cluster(restarts: bool = True) -> Iterator[Cluster]:
    """Start a scheduler and two workers of one thread, with the settings of `RESTLESS`."""
    _prepare()
    if not restarts:
        with _without_nannies() as cluster:
            yield cluster
        return
    with dask.config.set(RESTLESS), two_workers(threads=1) as cluster:
        yield Cluster(cluster.scheduler_address, lambda: running(cluster), True, os.getpid())


@contextlib.contextmanager
def _without_nannies() -> Iterator[Cluster]:
    here, there = _FORKS.Pipe()
    scheduler, workers = _start(_serve, there, Scheduler, host="127.0.0.1", port=0), []
    try:
        assert here.poll(PATIENCE), "the scheduler does not start"
        address = here.recv()
        workers = [_start(_serve, there, Worker, address, nthreads=1) for _ in range(2)]
        for _ in workers:
            assert here.poll(PATIENCE), "a worker does not start"
            here.recv()
        yield Cluster(address, lambda: [worker.pid for worker in workers if worker.is_alive()], False, scheduler.pid)
    finally:
        scheduler.kill()
        for process in (scheduler, *workers):
            # A worker without a scheduler exits after its task.
            process.join(30)
            process.kill()
            process.join(PATIENCE)


def _serve(pipe: Connection, kind: type[Any], *args: Any, **options: Any) -> None:
    async def run() -> None:
        async with kind(*args, dashboard=False, **options) as server:
            pipe.send(server.address)
            await server.finished()

    with dask.config.set(RESTLESS):
        asyncio.run(run())


class Call:
    """A call of a function by a client of a cluster, in a process of its own."""

    def __init__(self, address: str, function: Callable[..., Any], *args: Any) -> None:
        self._pipe, there = _FORKS.Pipe()
        self._process = _start(_call, there, address, function, args)
        there.close()

    def alive(self) -> bool:
        """Return whether the call is still running."""
        return self._process.is_alive() and not self._pipe.poll()

    def kill(self) -> None:
        """Kill the client."""
        self._process.kill()
        self._process.join(PATIENCE)
        self._pipe.close()

    def outcome(self) -> tuple[Any, Exception | None]:
        """Wait until the client ends; return the result and the error of the call."""
        try:
            assert self._pipe.poll(PATIENCE), f"the call neither returns nor fails within {PATIENCE} s"
            found: tuple[Any, Exception | None] = self._pipe.recv()
            self._process.join(PATIENCE)
            assert self._process.exitcode == 0, f"the client ends with {self._process.exitcode} after its call"
            return found
        finally:
            self.kill()


def _call(pipe: Connection, address: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    with dask.config.set(RESTLESS):
        _connect(address)
        try:
            pipe.send((function(*args), None))
        except Exception as error:
            pipe.send((None, error))


def _connect(address: str) -> None:
    """Create a client without closing it: closing waits for the connection timeout if the scheduler was killed."""
    for _ in range(PATIENCE):
        # The same timeout limits the wait for a lost scheduler.
        with contextlib.suppress(OSError):
            Client(address, timeout=1)
            return
    raise TimeoutError("no scheduler")


class Log:
    """File with a line for each step that a process starts: the name of the step and the process id."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, name: str) -> None:
        """Record that this process starts a step."""
        with self.path.open("a") as file:
            file.write(f"{name} {os.getpid()}\n")

    def take(self, name: str, seconds: float, last: bool) -> None:
        """Start a step that takes some seconds; the last one takes as long as `held` lasts."""
        self.add(name)
        time.sleep(seconds)
        deadline = time.monotonic() + PATIENCE
        while last and self._hold.exists() and time.monotonic() < deadline:
            time.sleep(0.005)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep the straggler from ending."""
        self._hold.touch()
        try:
            yield
        finally:
            self._hold.unlink()

    @property
    def _hold(self) -> Path:
        return self.path.with_name(f"{self.path.name}-hold")

    def steps(self) -> int:
        """Count the steps so far."""
        return len(self._lines())

    def processes(self, name: str) -> set[int]:
        """Return the processes that started a step."""
        return {int(process) for step, process in self._lines() if step == name}

    def _lines(self) -> list[list[str]]:
        return [line.split() for line in self.path.read_text().splitlines()] if self.path.exists() else []


class Published:
    """Published files of a folder; each one has to be complete whenever the test reads it."""

    def __init__(self, folder: Path, *references: Path) -> None:
        self.folder = folder
        self.wanted, *self._before = [
            {path.name: path.read_bytes() for path in reference.iterdir()} for reference in references
        ]
        self._seen: dict[tuple[str, int, int, int], bool] = {}

    def contents(self) -> dict[str, bool]:
        """Return the names of the existing files, with True for those that the call wrote."""
        found = {}
        for path in self.folder.glob("[!.]*"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                known = (path.name, status.st_ino, status.st_mtime_ns, status.st_size)
                if known not in self._seen:
                    data = path.read_bytes()
                    new = data == self.wanted.get(path.name)
                    assert new or any(data == before.get(path.name) for before in self._before), (
                        f"{path.name} of {len(data)} bytes is torn, or should not be there"
                    )
                    self._seen[known] = new
                found[path.name] = self._seen[known]
        return found

    def check_complete(self) -> None:
        """Check that all files exist."""
        assert self.contents() == dict.fromkeys(self.wanted, True)


class Progress(Protocol):
    """Progress of a call: a `Log`, or the published files."""

    def steps(self) -> int:
        """Count the steps so far."""

    def processes(self, name: str) -> set[int]:
        """Return the processes that execute a step."""

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Keep the straggler from ending, if possible."""


@dataclass(frozen=True)
class Run:
    """A call that a test disturbs."""

    call: Call
    progress: Progress
    total: int  # steps of a call that nothing disturbs
    straggler: str
    check: Callable[[], Any]
    # True when all steps except the straggler are done; None if the straggler does not wait for them.
    alone: Callable[[], bool] | None

    def wait(self, rng: random.Random, begun: int = 0) -> bool:
        """Wait for a random number of steps after the first `begun`; return False if the call ends before."""
        steps = begun + rng.randrange(1, max(self.total // 2, 2))
        return self.wait_until(lambda: self.progress.steps() >= steps)

    def wait_until(self, condition: Callable[[], Any]) -> bool:
        """Wait until a condition holds; return False if the call ends before."""

        def met() -> bool:
            self.check()
            return bool(condition())

        return wait_until(met, self.call.alive)

    def kill_workers(self, cluster: Cluster, number: int) -> None:
        """Kill workers, in one of five ways.

        Two workers at random (one where nannies start no other), the worker that runs the straggler while the others
        are idle, or each worker that begins the straggler.
        """
        rng, killed, straggling = random.Random(number), set[int](), set[int]()

        def living() -> list[int]:
            # A nanny lists the worker that was killed until it notices its end.
            return [process for process in cluster.workers() if process not in killed]

        def found() -> bool:
            straggling.clear()
            straggling.update(self.progress.processes(self.straggler).intersection(living()))
            return bool(straggling)

        def kill(process: int) -> None:
            os.kill(process, signal.SIGKILL)
            killed.add(process)

        if number % 5 < 2:
            # Nannies do not restart a worker that is killed during its start.
            both_run = partial(self.wait_until, lambda: len(living()) == 2)
            with self.progress.held():
                if self.wait(rng) and both_run():
                    kill(rng.choice(living()))
            if cluster.restarts and self.wait(rng, self.progress.steps()) and both_run():
                kill(rng.choice(living()))
        elif number % 5 < 4 or not cluster.restarts:
            with self.progress.held():
                if self.wait_until(found) and (self.alone is None or self.wait_until(self.alone)):
                    # Wait until the memory manager has left the inputs of the straggler on its worker only.
                    time.sleep(0.2 if self.alone is not None else 0.0)
                    kill(min(straggling))
        else:
            while self.wait_until(found):
                kill(min(straggling))
        assert killed, f"the call ended too early: {self.call.outcome()}"

    def kill_client(self, number: int) -> None:
        """Kill the client after some steps."""
        with self._after_some_steps(number):
            self.call.kill()

    def kill_scheduler(self, cluster: Cluster, number: int) -> None:
        """Kill the scheduler after some steps."""
        with self._after_some_steps(number):
            os.kill(cluster.scheduler, signal.SIGKILL)

    @contextlib.contextmanager
    def _after_some_steps(self, number: int) -> Iterator[None]:
        with self.progress.held():
            assert self.wait(random.Random(number)), f"the call ended too early: {self.call.outcome()}"
            yield
