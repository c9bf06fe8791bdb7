"""What all writers share: the loop of a write, and claims, so that one run at a time writes an output.

A claim is an object at the output: in a Zarr group, or beside TFRecord and Parquet files. It holds the token of the run
and the process, and is written again every `Limits.heartbeat` seconds. A claim is dead when its process on this machine
has ended, or when it was not written again for `STALE` seconds. The next run takes a dead claim over. Only the client
holds a claim.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import dask
from dask.delayed import Delayed

from dask_tfrecord.errors import Location, StoreInUseError
from dask_tfrecord.runtime.cancellation import cancel_on_failure, run_uninterrupted
from dask_tfrecord.settings import limits
from dask_tfrecord.storage.objects import Objects
from dask_tfrecord.stores.write_progress import WriteWork, show_progress


class Output(Protocol):
    """What a writer publishes."""

    @property
    def token(self) -> str:
        """Name of the run, also in the keys of its tasks."""

    def claimed(self) -> AbstractContextManager[None]:
        """Hold the claim on the output while the context is open."""

    def begin(self) -> None:
        """Refuse what is in use, and prepare the output for the tasks."""

    def finish(self, reports: Any) -> None:
        """Verify what the tasks wrote, and complete the output."""

    def abort(self) -> None:
        """Remove what this run wrote, and nothing else; or keep what can be resumed."""


def run_write(
    output: Output, build: Callable[[], tuple[Delayed, WriteWork | None]], *, compute: bool = True
) -> Delayed | None:
    """Write an output: claim it, compute the tasks that `build` returns, and finish; after a failure, abort.

    With ``compute=False``, return the tasks when the output has begun.
    """
    with output.claimed(), cancel_on_failure(output.token, output.abort):
        output.begin()
        tasks, work = build()
        if not compute:
            return tasks
        with nullcontext() if work is None else show_progress(work):
            (reports,) = dask.compute(tasks)
            output.finish(reports)
    return None


def collect(reports: Sequence[Any]) -> list[Any]:
    """Return the reports of all tasks: the last task of a graph that a client waits for."""
    return list(reports)


def check_mode(mode: str, what: str) -> None:
    """Refuse any mode but the two of all writers."""
    if mode not in ("w", "w-"):
        raise ValueError(f"mode is 'w-' (fail if {what} exists) or 'w' (replace what exists); got {mode!r}")


# Age in seconds of a claim whose process counts as dead.
STALE = 120.0
# Other runs may release or take over a claim meanwhile.
_TRIES = 20

_log = logging.getLogger(__name__)

# Tokens of the claims that this process holds.
_held: set[str] = set()


@dataclass(frozen=True, slots=True)
class Claim:
    """Content of a claim object."""

    token: str
    # Machine and process namespace: process numbers mean nothing elsewhere.
    machine: str
    # Name of the machine, for errors.
    host: str
    pid: int
    # Start time of the process where the system reports it: process numbers are reused.
    started: str
    # Seconds of the epoch.
    since: float
    beat: float

    @classmethod
    def of_this_process(cls, token: str) -> Claim:
        """Make the claim of a run of this process."""
        now, pid = time.time(), os.getpid()
        return cls(token, _machine(), platform.node(), pid, _process(pid) or "", now, now)

    @classmethod
    def from_json(cls, data: bytes) -> Claim | None:
        """Read a claim; None if `data` holds something else."""
        try:
            document = json.loads(data)
            token, machine, host, started = (str(document[name]) for name in ("token", "machine", "host", "started"))
            claim = cls(token, machine, host, int(document["pid"]), started, *_times(document))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        # The token becomes part of a name.
        return claim if claim.token.isalnum() else None

    def to_json(self) -> bytes:
        """Return the content of the claim object."""
        return json.dumps(asdict(self)).encode()

    def is_dead(self) -> bool:
        """Return True if its run has ended without releasing it."""
        if time.time() - self.beat > STALE:
            return True
        if self.machine != _machine():
            return False
        if self.pid == os.getpid():
            return self.token not in _held
        return _process(self.pid) != self.started


@dataclass(frozen=True, slots=True)
class Claimable:
    """Place of a claim."""

    objects: Objects
    name: str
    # What a run writes, for errors: "this group".
    what: str
    location: Location

    def check_unclaimed(self, check: Callable[[], object] = lambda: None) -> None:
        """Run a check of the output, unless another run is writing it.

        Raises
        ------
        StoreInUseError
            If another run holds the claim.
        """
        self._refuse_live()
        try:
            check()
        except Exception:
            # The check may have found files of a run that has just started.
            self._refuse_live()
            raise

    @contextmanager
    def held(self, token: str | None = None) -> Iterator[str | None]:
        """Hold the claim for a run; yield the token of the dead run that held it before.

        Raises
        ------
        StoreInUseError
            If another run holds it.
        """
        claim, ended = Claim.of_this_process(token or uuid.uuid4().hex), threading.Event()
        beats = threading.Thread(target=self._beat, args=(claim, ended), name="claim", daemon=True)

        def end() -> None:
            ended.set()
            if beats.ident is not None:
                beats.join()
            self._release(claim)

        _held.add(claim.token)
        try:
            before = self._take(claim)
            beats.start()
            yield before
        finally:
            # Ctrl-C ends the wait for `end`, not `end`. What it leaves is dead: this process does not hold it.
            try:
                run_uninterrupted(end)
            finally:
                ended.set()
                _held.discard(claim.token)

    def _refuse_live(self) -> None:
        found = self._read(self.name)
        if found is not None and not found.is_dead():
            raise self._in_use(found)

    def _take(self, claim: Claim) -> str | None:
        """Create the claim object, or take over that of a dead run; return the token of the dead run."""
        for _ in range(_TRIES):
            if self.objects.create(self.name, claim.to_json()):
                return None
            found = self._read(self.name)
            if found is None:
                continue
            if not found.is_dead():
                raise self._in_use(found)
            if self._take_over(claim, self.name, found):
                _log.info("%s: took over the claim of process %d on %s", self.location, found.pid, found.host)
                return found.token
        raise StoreInUseError(f"several runs claim {self.what} at once: try again when they have ended", self.location)

    def _take_over(self, claim: Claim, name: str, dead: Claim) -> bool:
        """Replace the claim of a dead run; return False if another run changed it first.

        Of several runs that find the same dead claim, the one that creates an object named after it may replace it.
        """
        turn = f"{self.name}.{dead.token}"
        if self.objects.create(turn, claim.to_json()):
            try:
                now = self._read(name)
                if now is None or now.token != dead.token:
                    return False
                self.objects.put(name, claim.to_json())
                return True
            finally:
                self.objects.drop([turn])
        other = self._read(turn)
        if other is not None and not other.is_dead():
            raise self._in_use(other)
        # A run that was killed during its turn left the object. It is removed by one run too: another one may have
        # created it again meanwhile.
        if other is not None and self._take_over(claim, turn, other):
            self.objects.drop([turn])
        return False

    def _read(self, name: str) -> Claim | None:
        """Read a claim object; None if it does not exist."""
        try:
            data = self.objects.get([name])[name]
        except NotADirectoryError:
            return None
        if data is None:
            return None
        claim = Claim.from_json(data)
        if claim is None:
            raise StoreInUseError(
                f"another run claims {self.what} by an object {name} that cannot be read: remove that object if no "
                f"other process writes there",
                self.location,
            )
        return claim

    def _in_use(self, claim: Claim) -> StoreInUseError:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(claim.since))
        return StoreInUseError(
            f"another run is writing {self.what}: process {claim.pid} on {claim.host}, since {since} UTC, seen "
            f"{max(time.time() - claim.beat, 0):.0f} s ago. Wait until it ends, or end it: the claim {self.name} of a "
            f"process that has ended is taken over at once on the same machine, and after {STALE:.0f} s elsewhere",
            self.location,
        )

    def _beat(self, claim: Claim, ended: threading.Event) -> None:
        """Write the claim again until the run has ended, or another run has taken over the claim."""
        while not ended.wait(limits().heartbeat):
            try:
                if not self._is_held_by(claim):
                    _log.warning("the claim %s of this run was removed or taken over by another run", self.name)
                    return
                self.objects.put(self.name, replace(claim, beat=time.time()).to_json())
            except Exception as error:
                # The store may answer again at the next heartbeat.
                _log.warning("could not renew the claim %s: %s", self.name, type(error).__name__)

    def _release(self, claim: Claim) -> None:
        """Remove the claim if it still belongs to this run."""
        try:
            if self._is_held_by(claim):
                self.objects.drop([self.name])
        except Exception as error:
            # The error of the run takes precedence, and the claim is dead after it.
            _log.warning("%s: could not remove the claim %s: %s", self.location, self.name, type(error).__name__)

    def _is_held_by(self, claim: Claim) -> bool:
        data = self.objects.get([self.name])[self.name]
        found = None if data is None else Claim.from_json(data)
        return found is not None and found.token == claim.token


def _times(document: dict[str, object]) -> tuple[float, float]:
    since, beat = document["since"], document["beat"]
    if not isinstance(since, int | float) or not isinstance(beat, int | float):
        raise TypeError("times are numbers")
    time.gmtime(since)
    return float(since), float(beat)


def _machine() -> str:
    """Name this machine, its boot, and the namespace of process numbers: containers may share a host name."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return "/".join(parts)


def _process(pid: int) -> str | None:
    """Identify a running process of this machine; None if it has ended."""
    if sys.platform == "win32":
        # On Windows `os.kill` ends the process, so claims expire only by age.
        return ""
    try:
        # The name of the program, in parentheses, may hold spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    except (OSError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return ""
