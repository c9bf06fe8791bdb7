"""Runs of one process that take turns: a schedule decides which run takes each step on files, and which step fails.

A step is an operation on a file below one directory: to open it, to make, rename, link or remove a name. Python
announces each of them before it happens (audit events), in any library, so that no effect of a run escapes. Each run
is a thread with a machine of its own, and only one of them moves; nothing sleeps, and the clock belongs to the
simulation. A schedule determines what happens at the steps that it names:

- ``kill``: the run does not take this step, nor any later one, not even to clean up
- ``full``: from here on, this run can't make or write a file
- ``error``: this step fails, and the next ones work
- ``stop``: the run is stopped for longer than `Limits.stale_owner`; the others go on, and it wakes after them
- ``pause``: the same, for no time at all

`explore` executes every schedule with a bounded number of these, the shortest first.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask
import fsspec.asyn
import pytest
import zarr.core.sync

from dask_tfrecord.settings import replaced_limits
from dask_tfrecord.shards import objects, process
from dask_tfrecord.stores.zarr import store
from support.waiting import PATIENCE

# Seconds of a stop: longer than `Limits.stale_owner`.
STOP = 1000.0
ACTIONS = ("kill", "full", "error", "stop", "pause")
# Operations that only read: opening a file, and requests.
_READS = {"read", "get", "head", "list"}
# Operations that change files, by the names of their audit events; the others are opening for reading.
_CHANGES = {"os.rename", "os.link", "os.symlink", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
_GROWS = {"os.mkdir", "os.link", "write"}


class Killed(BaseException):
    """The run of this thread was killed."""


@dataclass(frozen=True)
class Step:
    """An operation of a run on a file."""

    actor: str
    what: str  # name of the audit event, or "write" and "read" for files that are opened
    path: str

    @property
    def changes(self) -> bool:
        """True if the operation changes what is stored."""
        return self.what not in _READS

    def __str__(self) -> str:
        return f"{self.actor}: {self.what.removeprefix('os.')} {self.path}"


Schedule = tuple[tuple[int, str], ...]


@dataclass
class Actor:
    """One run."""

    name: str
    call: Callable[[], object]
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    started: bool = False
    ended: bool = False
    killed: bool = False
    full: bool = False
    outcome: object = None  # what the call returned, or raised


_current: ContextVar[tuple[Simulation, Actor] | None] = ContextVar("actor", default=None)


class Simulation:
    """Runs that take turns below a directory."""

    def __init__(
        self,
        base: Path,
        calls: Mapping[str, Callable[[], object]],
        schedule: Schedule,
        clock: float | None = None,
        announces: Sequence[tuple[type, str]] = (),
    ) -> None:
        self.base, self.root = f"{base}/", f"{base}/out"
        self.actors = [Actor(name, call) for name, call in calls.items()]
        self.schedule, self.announces = dict(schedule), announces
        self.steps: list[Step] = []
        self.escapes: list[Step] = []  # changes outside of the output
        self.clock = time.time() if clock is None else clock
        self._over = threading.Event()

    def run(self) -> dict[str, object]:
        """Run all actors by the schedule; return what each of them returned or raised."""
        with _patched(self):
            threads = [threading.Thread(target=self._act, args=(actor,), daemon=True) for actor in self.actors]
            for thread in threads:
                thread.start()
            self.actors[0].turn.release()
            assert self._over.wait(PATIENCE), f"runs wait for each other after {self.steps[-3:]}"
            for thread in threads:
                thread.join(PATIENCE)
        return {actor.name: actor.outcome for actor in self.actors}

    def call_of(self, name: str) -> Callable[[], object]:
        """Return the call of a run."""
        return next(actor.call for actor in self.actors if actor.name == name)

    def _act(self, actor: Actor) -> None:
        _current.set((self, actor))
        actor.turn.acquire()
        try:
            actor.outcome = actor.call()
        except BaseException as error:
            actor.outcome = error
        actor.ended = True
        self._pass_on(actor)

    def _pass_on(self, actor: Actor) -> None:
        """Give the turn to the next run that has not ended."""
        at = self.actors.index(actor)
        others = [each for each in (*self.actors[at + 1 :], *self.actors[:at]) if not each.ended]
        if others:
            others[0].turn.release()
        elif actor.ended:
            self._over.set()
        else:
            actor.turn.release()

    def step(self, actor: Actor, what: str, path: str) -> None:
        """Take a step, unless the schedule has another event for it."""
        if actor.killed:
            raise Killed
        step = Step(actor.name, what, path.removeprefix(self.base))
        number = len(self.steps)
        self.steps.append(step)
        if step.changes and not f"{path}/".startswith(f"{self.root}/"):
            self.escapes.append(step)
        action = self.schedule.get(number)
        if action == "kill":
            actor.killed = True
            raise Killed
        if action in ("stop", "pause"):
            self.clock += STOP if action == "stop" else 0.0
            self._pass_on(actor)
            actor.turn.acquire()
        if action == "full":
            actor.full = True
        if action == "error":
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if actor.full and what in _GROWS:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    """Make an audit event a step of the run whose thread it is."""
    if event not in _CHANGES and event != "open":
        return
    found = _current.get()
    if found is None:
        return
    simulation, actor = found
    path = arguments[1] if event in ("os.rename", "os.link", "os.symlink") else arguments[0]
    if not isinstance(path, str | bytes | os.PathLike):
        return
    path = os.fsdecode(path)
    if not path.startswith("/"):
        # Relative to a directory that is open.
        place = {"os.remove": 1, "os.rmdir": 1, "os.mkdir": 2, "os.rename": 3, "os.link": 3}.get(event, 0)
        folder = arguments[place] if place and len(arguments) > place else -1
        if not isinstance(folder, int) or folder < 0:
            return
        path = f"{Path(f'/proc/self/fd/{folder}').readlink()}/{path}"
    if not path.startswith(simulation.base):
        return
    if event == "open":
        event = "write" if arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else "read"
    elif event == "os.mkdir" and os.path.isdir(path):  # noqa: PTH112
        return
    if event != "read":
        folder, _, name = path.rpartition("/")
        path = f"{os.path.realpath(folder)}/{name}"
    simulation.step(actor, event, path)


def take_step(what: str, path: str) -> None:
    """Make an operation of software that announces none a step of the run that calls, if one does."""
    found = _current.get()
    if found is not None:
        found[0].step(found[1], what, path)


def _announced(method: Callable[..., Any], what: str) -> Callable[..., Any]:
    """Return a method whose calls are steps, of software that announces no operation on files."""

    def call(*arguments: Any, **options: Any) -> Any:
        found = _current.get()
        if found is not None:
            take_step(what, f"{found[0].root}/{what}")
        return method(*arguments, **options)

    return call


_hooked = False


def _hook() -> None:
    """Listen to audit events from now on: a hook can't be removed."""
    global _hooked
    if not _hooked:
        sys.addaudithook(_on_event)
        _hooked = True


# An event loop for each run, where zarr has one for the process.
_loops: dict[int, asyncio.AbstractEventLoop] = {}


def _loop_of_actor(number: int) -> asyncio.AbstractEventLoop:
    if number not in _loops:
        _loops[number] = asyncio.new_event_loop()
        threading.Thread(target=_loops[number].run_forever, daemon=True).start()
    return _loops[number]


def loop_of_run() -> asyncio.AbstractEventLoop | None:
    """Return the event loop of the run that calls, if one does."""
    found = _current.get()
    return None if found is None else _loop_of_actor(found[0].actors.index(found[1]))


def _publish_files(temporaries: Sequence[bytes], paths: Sequence[bytes], values: Sequence[Any]) -> int:
    """Do what `_native.publish_files` does, which the interpreter does not see."""
    for number, (temporary, path, value) in enumerate(zip(temporaries, paths, values, strict=True)):
        try:
            with open(temporary, "wb") as file:  # noqa: PTH123
                file.write(value)
            os.replace(temporary, path)  # noqa: PTH105
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108
            return number
    return len(paths)


async def _send(event: threading.Event, request: Any, result: list[Any], timeout: float | None = None) -> None:
    """Do what `_runner` of fsspec does, which loses the error of a run that was killed."""
    try:
        result[0] = await request
    except BaseException as error:
        result[0] = error
    finally:
        event.set()


@contextlib.contextmanager
def _patched(simulation: Simulation) -> Iterator[None]:
    """Give each run its machine, its event loop and the clock of the simulation."""
    _hook()
    now, get_loop, machine, to_thread = time.time, zarr.core.sync._get_loop, process.machine, asyncio.to_thread

    def of_actor(otherwise: Callable[[], Any], own: Callable[[Actor], Any]) -> Callable[[], Any]:
        def call() -> Any:
            found = _current.get()
            return otherwise() if found is None else own(found[1])

        return call

    async def inline(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if _current.get() is None:
            return await to_thread(function, *arguments, **options)
        return function(*arguments, **options)

    numbers = {actor.name: number for number, actor in enumerate(simulation.actors)}
    with (
        pytest.MonkeyPatch.context() as patch,
        replaced_limits(heartbeat=1e6),
        dask.config.set(scheduler="synchronous"),
    ):
        patch.setattr(time, "time", of_actor(now, lambda actor: simulation.clock))
        patch.setattr(process, "machine", of_actor(machine, lambda actor: f"machine of {actor.name}"))
        for module, name, loop in ((zarr.core.sync, "_get_loop", get_loop), (objects, "get_loop", objects.get_loop)):
            patch.setattr(module, name, of_actor(loop, lambda actor: _loop_of_actor(numbers[actor.name])))
        patch.setattr(asyncio, "to_thread", inline)
        patch.setattr(fsspec.asyn, "_runner", _send)
        patch.setattr(objects._native, "publish_files", _publish_files)
        for module in (objects, store):
            patch.setattr(module, "SETTLE_SECONDS", 0.0)
        for kind, name in simulation.announces:
            patch.setattr(kind, name, _announced(getattr(kind, name), f"{kind.__name__}.{name}"))
        yield


@dataclass(frozen=True)
class Scenario:
    """Calls to explore, and the check of what they leave.

    `begin` makes the output that exists before. `check` returns what is wrong, or None.
    """

    name: str
    calls: Mapping[str, Callable[[str], object]]
    begin: Callable[[str], object]
    check: Callable[[str, Simulation, Mapping[str, object]], str | None]
    # Methods that are steps too.
    announces: Callable[[], Sequence[tuple[type, str]]] = tuple
    # Makes what exists before outside of the directory, before each schedule.
    restore: Callable[[str], object] = lambda out: None


@dataclass(frozen=True)
class Violation:
    """A schedule that breaks a rule."""

    scenario: str
    schedule: Schedule
    steps: Sequence[Step]
    what: str

    def __str__(self) -> str:
        shown = dict(self.schedule)
        lines = [f"{self.scenario}: {self.what}", f"schedule {self.schedule!r}:"]
        lines += [f"  {number:4} {step}  {shown.get(number, '')}" for number, step in enumerate(self.steps)]
        return "\n".join(lines)


@dataclass
class Exploration:
    """What an exploration has found."""

    schedules: int = 0
    violations: list[Violation] = field(default_factory=list)


class Explorer:
    """Executes a scenario by schedules."""

    def __init__(self, scenario: Scenario) -> None:
        memory = Path("/dev/shm")
        self.scenario = scenario
        self.folder = Path(tempfile.mkdtemp(prefix="runs-", dir=memory if memory.is_dir() else None)).resolve()
        before = self.folder / "before" / "out"
        before.mkdir(parents=True)
        (before.parent / "victim").mkdir()
        (before.parent / "victim" / "thesis.txt").write_text("x")
        scenario.begin(str(before))

    def __enter__(self) -> Explorer:
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def execute(self, schedule: Schedule) -> tuple[Simulation, str | None]:
        """Execute a schedule; return the simulation and what is wrong."""
        base = self.folder / "now"
        shutil.rmtree(base, ignore_errors=True)
        shutil.copytree(self.folder / "before", base, symlinks=True)
        out = str(base / "out")
        self.scenario.restore(out)
        calls = {name: (lambda call=call: call(out)) for name, call in self.scenario.calls.items()}
        simulation = Simulation(base, calls, schedule, announces=self.scenario.announces())
        outcomes = simulation.run()
        if simulation.escapes:
            return simulation, f"rule 3: changed {simulation.escapes[0].path}, outside of the output"
        return simulation, self.scenario.check(out, simulation, outcomes)

    def choices(self, steps: Sequence[Step], first: int, actions: Sequence[str]) -> Iterator[tuple[int, str]]:
        """Yield what a schedule may add after a number of steps."""
        for number, step in enumerate(steps):
            if number < first:
                continue
            for action in actions:
                if action in ("stop", "pause") and len(self.scenario.calls) == 1:
                    continue
                if step.changes or action in ("stop", "pause"):
                    yield number, action

    def explore(
        self,
        bound: int,
        actions: Sequence[str] = ACTIONS,
        *,
        most: int = sys.maxsize,
        seed: int | None = None,
        stops_at: int = 1,
    ) -> Exploration:
        """Execute every schedule of up to `bound` actions, the shorter ones first; or `most` of them at random."""
        found, level = Exploration(), [()]  # type: ignore[var-annotated]
        rng = random.Random(seed)
        for length in range(bound + 1):
            following: list[Schedule] = []
            for schedule in level:
                simulation, wrong = self.execute(schedule)
                found.schedules += 1
                if wrong is not None:
                    found.violations.append(Violation(self.scenario.name, schedule, simulation.steps, wrong))
                    if len(found.violations) >= stops_at:
                        return found
                if length < bound:
                    first = schedule[-1][0] + 1 if schedule else 0
                    following += [(*schedule, choice) for choice in self.choices(simulation.steps, first, actions)]
            if seed is not None and len(following) > most:
                following = sorted(rng.sample(following, most))
            level = following
        return found
