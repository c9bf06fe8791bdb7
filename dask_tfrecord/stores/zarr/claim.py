"""Claim of a run on a Zarr group: one process at a time creates, resumes or replaces a group.

The claim is an object in the group. It holds the token of the run and the process, and is written again every
`Limits.heartbeat` seconds. A claim is dead when its process on this machine has ended, or when it was not written again
for `STALE` seconds. The next run takes a dead claim over. Only the client holds a claim; tasks do not read it.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dask_tfrecord.errors import StoreInUseError, redact
from dask_tfrecord.runtime.cancellation import remove_empty_directories
from dask_tfrecord.settings import limits
from dask_tfrecord.stores.zarr.group import TargetGroup
from dask_tfrecord.stores.zarr.objects import CLAIM, GroupObjects

__all__ = ["STALE", "check_unclaimed", "claimed"]

# Seconds between two heartbeats, and the age of a claim whose process counts as dead.
STALE = 120.0
# Other runs may release or take over a claim meanwhile.
_TRIES = 20

_log = logging.getLogger(__name__)

# Tokens of the claims that this process holds.
_held: set[str] = set()


@dataclass(frozen=True, slots=True)
class _Claim:
    """Content of the claim object.

    Attributes
    ----------
    token : str
        Name of the run.
    machine : str
        Machine and process namespace; process numbers mean nothing elsewhere.
    host : str
        Name of the machine, for errors.
    pid : int
        The process.
    started : str
        Start time of the process where the system reports it: process numbers are reused.
    since, beat : float
        Seconds of the epoch: when the claim was made, and its last heartbeat.
    """

    token: str
    machine: str
    host: str
    pid: int
    started: str
    since: float
    beat: float

    @classmethod
    def of_this_process(cls) -> _Claim:
        """Make a claim with a new token."""
        now, pid = time.time(), os.getpid()
        return cls(uuid.uuid4().hex, _machine(), platform.node(), pid, _process(pid) or "", now, now)

    @classmethod
    def from_json(cls, data: bytes) -> _Claim | None:
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
        """Write the claim."""
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

    def in_use(self, target: TargetGroup) -> StoreInUseError:
        """Make the error for another run."""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.since))
        return StoreInUseError(
            f"another run is writing this group: process {self.pid} on {self.host}, since {since} UTC, seen "
            f"{max(time.time() - self.beat, 0):.0f} s ago. Wait until it ends, or end it: the claim {CLAIM} of a "
            f"process that has ended is taken over at once on the same machine, and after {STALE:.0f} s elsewhere",
            target.location,
        )


def check_unclaimed(target: TargetGroup, check: Callable[[], object]) -> None:
    """Run a check of the group, unless another run is writing it.

    Raises
    ------
    StoreInUseError
        If another run holds the group.
    """
    objects = target.unopened_objects()
    _refuse_live(target, objects)
    try:
        check()
    except Exception:
        # The check may have found files of a run that has just started.
        _refuse_live(target, objects)
        raise


def _refuse_live(target: TargetGroup, objects: GroupObjects) -> None:
    found = _read_claim(target, objects, CLAIM)
    if found is not None and not found.is_dead():
        raise found.in_use(target)


@contextmanager
def claimed(target: TargetGroup, *, resume: bool) -> Iterator[None]:
    """Hold the claim on a group; a complete group that is resumed is not written to, and not claimed.

    Raises
    ------
    StoreInUseError
        If another run holds it.
    """
    if resume and target.stored_attributes().get("complete"):
        yield
        return
    objects, directory = target.unopened_objects(), target.directory
    made = [] if directory is None else [path for path in (directory, *directory.parents) if not path.exists()]
    claim, ended = _Claim.of_this_process(), threading.Event()
    beats = threading.Thread(target=_beat, args=(objects, claim, ended), name="zarr-claim", daemon=True)
    _held.add(claim.token)
    try:
        _take(target, objects, claim)
        beats.start()
        yield
    finally:
        ended.set()
        if beats.ident is not None:
            beats.join()
        _release(target, objects, claim)
        _held.discard(claim.token)
        remove_empty_directories(made)


def _take(target: TargetGroup, objects: GroupObjects, claim: _Claim) -> None:
    """Create the claim object, or take over that of a dead run."""
    for _ in range(_TRIES):
        if objects.create(CLAIM, claim.to_json()):
            return
        found = _read_claim(target, objects, CLAIM)
        if found is None:
            continue
        if not found.is_dead():
            raise found.in_use(target)
        if _take_over(target, objects, claim, CLAIM, found):
            _log.info("%s: took over the claim of process %d on %s", target, found.pid, found.host)
            return
    raise StoreInUseError("several runs claim this group at once: try again when they have ended", target.location)


def _take_over(target: TargetGroup, objects: GroupObjects, claim: _Claim, name: str, dead: _Claim) -> bool:
    """Replace the claim of a dead run; return False if another run changed it first.

    Of several runs that find the same dead claim, the one that creates an object named after it may replace it.
    """
    turn = f"{CLAIM}.{dead.token}"
    if objects.create(turn, claim.to_json()):
        try:
            now = _read_claim(target, objects, name)
            if now is None or now.token != dead.token:
                return False
            objects.put(name, claim.to_json())
            return True
        finally:
            objects.drop([turn])
    other = _read_claim(target, objects, turn)
    if other is not None and not other.is_dead():
        raise other.in_use(target)
    # A run that was killed during its turn left the object. It is removed by one run too: another one may have created
    # it again meanwhile.
    if other is not None and _take_over(target, objects, claim, turn, other):
        objects.drop([turn])
    return False


def _read_claim(target: TargetGroup, objects: GroupObjects, name: str) -> _Claim | None:
    """Read a claim object; None if it does not exist."""
    try:
        data = objects.get([name])[name]
    except NotADirectoryError:
        return None
    if data is None:
        return None
    claim = _Claim.from_json(data)
    if claim is None:
        raise StoreInUseError(
            f"another run claims this group by an object {name} that cannot be read: remove that object if no other "
            f"process is writing the group",
            target.location,
        )
    return claim


def _beat(objects: GroupObjects, claim: _Claim, ended: threading.Event) -> None:
    """Write the claim again until the run has ended, or another run has taken over the claim."""
    while not ended.wait(limits().heartbeat):
        try:
            data = objects.get([CLAIM])[CLAIM]
            found = None if data is None else _Claim.from_json(data)
            if found is None or found.token != claim.token:
                _log.warning("the claim %s of this run was removed or taken over by another run", CLAIM)
                return
            objects.put(CLAIM, replace(claim, beat=time.time()).to_json())
        except Exception as error:
            # The store may answer again at the next heartbeat.
            _log.warning("could not renew the claim %s: %s", CLAIM, redact(repr(error)))


def _release(target: TargetGroup, objects: GroupObjects, claim: _Claim) -> None:
    """Remove the claim if it still belongs to this run."""
    try:
        data = objects.get([CLAIM])[CLAIM]
        found = None if data is None else _Claim.from_json(data)
        if found is not None and found.token == claim.token:
            objects.drop([CLAIM])
    except Exception as error:
        # The error of the run takes precedence, and the claim is dead after it.
        _log.warning("%s: could not remove the claim %s: %s", target, CLAIM, redact(repr(error)))


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
