"""Journal of an output: which run owns it, and what its tasks have written.

The owner is an object at the output: in a Zarr group, or next to the files of TFRecord, Parquet and LeRobot. It holds
the token of the run and the process of its client, which writes it again every `Limits.heartbeat` seconds. A run is
dead when its process has ended, whatever the age of the object; on other machines, when the object was not written for
`Limits.stale_owner` seconds by the clock of this one. The next run takes over from a dead one.

A process that is stopped for longer on another machine loses its output. Its tasks ask the journal before they publish,
and its client before it removes anything. A client that waits for its tasks records there, too, when they may publish
nothing more: `Journal.end_writing`.

Units are recorded once they are written: the report of the task, and the identity of each object. A repeated task, and
a run that continues another one, find by them what need not be written again.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

from dask_tfrecord.errors import (
    IncompleteStoreError,
    Location,
    StoreInUseError,
    explain_refused_memory,
    printable,
)
from dask_tfrecord.rows.progress import run_uninterrupted
from dask_tfrecord.settings import limits
from dask_tfrecord.shards import process
from dask_tfrecord.shards.objects import NotAFileError, Objects, StoredFile
from dask_tfrecord.stores.documents import Count, Token, checked

# Other runs may release or take over an output meanwhile.
_TRIES = 20
# Name of the object of a program that writes a part of a job: the part, the number of parts, and a token.
_WRITER = re.compile(r"writer-\d+-\d+-\w+")
# Characters of a host name in errors.
_MAX_HOST = 100

_log = logging.getLogger(__name__)

# Runs of this process by token. The lock is for the object of the owner, which heartbeats write, and the client when it
# ends its tasks. Each entry belongs to one run, which adds it and removes it; others only read it.
_own: dict[str, threading.Lock] = {}


@dataclass(frozen=True, slots=True)
class Owner:
    """The run that writes an output: content of the object of the owner."""

    token: Token
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
    # The client waits for its tasks no more: they publish nothing.
    has_ended: bool = False
    # Identity of what this run is about to publish, if its output then shows whether it has.
    adds: Token | None = None
    # Identity of what this run has published, with the number of its first file.
    added: Mapping[Token, Count] = field(default_factory=dict)
    # The same of earlier runs that died or failed before their callers were told: a call that is repeated adds nothing.
    unanswered: Mapping[Token, Count] = field(default_factory=dict)

    @classmethod
    def of_this_process(cls, token: str, adds: str | None = None) -> Owner:
        """Describe a run of this process."""
        now = time.time()
        pid = os.getpid()
        started = process.process_start(os.getpid()) or ""
        return cls(token, process.machine(), platform.node(), pid, started, now, now, adds=adds)

    @classmethod
    @lru_cache(maxsize=16)
    def from_json(cls, data: bytes) -> Owner | None:
        """Read an owner; None if `data` holds something else. Each task reads the one that was read last."""
        try:
            # NaN and infinity are times of no clock.
            document = json.loads(data, parse_constant=lambda text: 0.0)
            # An earlier version recorded there what it had published, without the number of its first file.
            return None if document.get("published") else checked(cls, document, "a claim")
        except (ValueError, AttributeError, RecursionError, IncompleteStoreError):
            return None

    def to_json(self) -> bytes:
        """Return the content of the object."""
        return json.dumps(asdict(self)).encode()

    def is_dead(self) -> bool:
        """Return True if its run has ended without releasing the output."""
        if self.machine == process.machine():
            if self.pid == os.getpid():
                return self.token not in _own
            start = process.process_start(self.pid)
            if start is None or sys.platform != "win32":
                return start is None or (start != "" and start != self.started)
        # A beat in the future is one of a wrong clock, and NaN is one of none.
        return not abs(time.time() - self.beat) <= limits().stale_owner

    @property
    def place(self) -> str:
        """Process and machine of the run."""
        host = printable(self.host)
        return f"process {self.pid} on {host if len(host) <= _MAX_HOST else f'{host[:_MAX_HOST]}…'}"

    def __str__(self) -> str:
        """Describe the owner for errors."""
        try:
            since = f", since {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(self.since))} UTC"
            age = max(round(time.time() - self.beat), 0)
        except (ValueError, OverflowError, OSError):
            return self.place
        return f"{self.place}{since}, seen {age} s ago"


@dataclass(slots=True)
class OwnerCheck:
    """The answer of the journal, kept for `Limits.owner_check` seconds, because each question is a request."""

    # Time of the last question. This clock goes on while a machine sleeps.
    asked: float = field(default_factory=time.time)

    def is_due(self) -> bool:
        """Return whether it is time to ask again; True counts as asked."""
        now = time.time()
        if abs(now - self.asked) <= limits().owner_check:
            return False
        self.asked = now
        return True


@dataclass(frozen=True, slots=True)
class Journal:
    """Place where an output records its owner."""

    objects: Objects
    name: str
    # The output of a run, for errors: "this group".
    what: str
    location: Location

    def check_free(self, check: Callable[[], object] = lambda: None) -> None:
        """Run a check of the output; raise StoreInUseError if another run owns it."""
        self._refuse_live()
        try:
            check()
        except Exception:
            # The check may have found files of a run that has just started.
            self._refuse_live()
            raise

    @contextmanager
    def owned(self, token: str, cleanup: Callable[[], object], *, adds: str | None = None) -> Iterator[str | None]:
        """Own the output for a run, or raise StoreInUseError; yield the token of the dead run that owned it before.

        `adds` is the identity of what the run is about to publish. After a failure, what it has published stays
        recorded, and `cleanup` removes the directories that were made in vain, after the release. It is not called if
        another run owns the output, which needs them.
        """
        owner = Owner.of_this_process(token, adds)
        ended = threading.Event()
        rewriting = threading.Lock()
        failed = True
        beats = threading.Thread(target=self._beat, args=(owner, ended, rewriting), name="owner", daemon=True)

        def end() -> None:
            ended.set()
            if beats.ident is not None:
                beats.join()
            self._release(owner, has_failed=failed)

        _own[owner.token] = rewriting
        refused = False
        try:
            try:
                before = self._take(owner)
            except StoreInUseError:
                refused = True
                raise
            with explain_refused_memory():
                beats.start()
            yield before
            failed = False
        finally:
            # Ctrl-C ends the wait for `end`, not `end`. What it leaves is dead: this process does not own it.
            try:
                run_uninterrupted(end)
            finally:
                ended.set()
                _own.pop(owner.token, None)
                if failed and not refused:
                    cleanup()

    def owner(self) -> Owner | None:
        """Return the run that owns the output, or None."""
        return self._read(self.name)

    def is_left_by_dead_run(self) -> bool:
        """Return True if the run that owned the output has ended without releasing it."""
        with suppress(StoreInUseError):
            owner = self.owner()
            return owner is not None and owner.is_dead()
        return False

    def other_owner(self, token: str) -> Owner | None:
        """Return a run that has taken over from the run of a token."""
        found = self._read(self.name)
        return None if found is None or found.token == token or found.is_dead() else found

    def check_owner(self, token: str) -> None:
        """Raise StoreInUseError if another run has taken over from the run of a token."""
        other = self.other_owner(token)
        if other is not None:
            raise StoreInUseError(
                f"another run has taken over {self.what} while this one did not respond: {other}. This one writes "
                f"nothing more",
                self.location,
            )

    def check_writing(self, token: str) -> None:
        """Raise unless the run of a token owns the output and waits for its tasks."""
        owner = self._read(self.name)
        if owner is None or owner.token != token or owner.has_ended:
            self.check_owner(token)
            raise IncompleteStoreError(
                "the write that this task belongs to has ended, or this worker does not share the file system of the "
                "client; write to a path that all processes can reach",
                self.location,
            )

    def end_writing(self, token: str) -> None:
        """Let the tasks of a run publish nothing more; the run owns the output until it has removed what is left."""
        self._change(token, has_ended=True)

    def record_published(self, token: str, added: Mapping[str, int], unanswered: Mapping[str, int]) -> None:
        """Record what this run has published, and what is unanswered: published by runs that died before they returned.

        A call that is repeated finds its identity here, and writes nothing. It has its answer then: what this run has
        published is not unanswered, even if it was there before. A run that returns removes what it has published.
        """
        rest = {identity: first for identity, first in unanswered.items() if identity not in added}
        self._change(token, added=added, unanswered=rest)

    def unanswered(self, token: str) -> dict[str, int]:
        """Return what earlier runs have published without telling their callers."""
        owner = self._read(self.name)
        return dict(owner.unanswered) if owner is not None and owner.token == token else {}

    def _change(self, token: str, **changes: Any) -> None:
        """Change the object of the owner if it is the run of a token."""
        with _own.get(token, nullcontext()):
            owner = self._read(self.name)
            if owner is not None and owner.token == token:
                self.objects.put(self.name, replace(owner, **changes).to_json())

    def _refuse_live(self) -> None:
        found = self._read(self.name)
        if found is not None and not found.is_dead():
            raise self._in_use(found)

    def _take(self, owner: Owner) -> str | None:
        """Create the owner's object, or take over a dead run's; return the dead run's token."""
        for _ in range(_TRIES):
            if self.objects.create(self.name, owner.to_json()):
                return None
            before = self._read(self.name)
            if before is None:
                continue
            if not before.is_dead():
                raise self._in_use(before)
            if self._take_over(owner, self.name, before):
                _log.info("%s: took over from process %d on %s", self.location, before.pid, before.host)
                return before.token
        raise StoreInUseError(f"several runs claim {self.what} at once: try again when they have ended", self.location)

    def _take_over(self, owner: Owner, name: str, dead: Owner) -> bool:
        """Replace a dead owner; return False if another run changed it first.

        Of several runs that find the same dead owner, the one that creates an object named after it may replace it.
        """
        takeover_lock = f"{self.name}.{dead.token}"
        if self.objects.create(takeover_lock, owner.to_json()):
            try:
                now = self._read(name)
                if now is None or now.token != dead.token:
                    return False
                unanswered = {**now.unanswered, **now.added, **({} if now.adds is None else {now.adds: 0})}
                self.objects.put(name, replace(owner, unanswered=unanswered).to_json())
                return True
            finally:
                self.objects.drop([takeover_lock])
        other = self._read(takeover_lock)
        if other is not None and not other.is_dead():
            raise self._in_use(other)
        # A run that was killed while it held the lock left the object. It is removed by one run too: another one may
        # have created it again meanwhile.
        if other is not None and self._take_over(owner, takeover_lock, other):
            self.objects.drop([takeover_lock])
        return False

    def _read(self, name: str) -> Owner | None:
        """Read an owner; None if the object does not exist."""
        try:
            data = self.objects.get([name])[name]
        except NotADirectoryError:
            return None
        except NotAFileError:
            data = b""
        if data is None:
            return None
        owner = Owner.from_json(data)
        if owner is None:
            raise StoreInUseError(
                f"another run claims {self.what} by an object {name} that cannot be read: remove that object if no "
                f"other process writes there",
                self.location,
            )
        return owner

    def _in_use(self, owner: Owner) -> StoreInUseError:
        """Make the error about an output that another run owns."""
        return StoreInUseError(
            f"another run is writing {self.what}: {owner}. Wait until it ends, or end it: the claim {self.name} of a "
            f"process that has ended is taken over at once on the same machine, and after {limits().stale_owner:.0f} s "
            f"elsewhere",
            self.location,
        )

    def _beat(self, owner: Owner, ended: threading.Event, rewriting: threading.Lock) -> None:
        """Write the owner again until the run has ended, or another run has taken over."""
        while not ended.wait(limits().heartbeat):
            try:
                with rewriting:
                    found = self._own_record(owner)
                    if found is not None:
                        self.objects.put(self.name, replace(found, beat=time.time()).to_json())
                if found is None:
                    _log.warning("the claim %s of this run was removed or taken over by another run", self.name)
                    return
            except Exception as error:
                # The store may answer again at the next heartbeat.
                _log.warning("could not renew the claim %s: %s", self.name, type(error).__name__)

    def _release(self, owner: Owner, *, has_failed: bool) -> None:
        """Remove the owner if it is still this run; or leave a dead one that keeps what no caller was told."""
        try:
            record = self._own_record(owner)
            if record is not None and not has_failed:
                record = replace(record, added={})
            if record is not None and (record.added or record.unanswered):
                self.objects.put(self.name, replace(record, machine="", beat=0.0).to_json())
            elif record is not None:
                self.objects.drop([self.name])
        except NotADirectoryError:
            # There is a file where the output would be, and no claim.
            pass
        except Exception as error:
            # The error of the run takes precedence, and the run is dead after it.
            _log.warning("%s: could not remove the claim %s: %s", self.location, self.name, type(error).__name__)

    def _own_record(self, owner: Owner) -> Owner | None:
        """Read the object of this run; None if another run owns the output, or none."""
        data = self.objects.get([self.name])[self.name]
        found = None if data is None else Owner.from_json(data)
        return found if found is not None and found.token == owner.token else None


def part_writers(objects: Objects, names: Iterable[str], what: str, location: Location) -> list[Journal]:
    """Return a journal for each program that writes a part of a job, or was killed meanwhile, by names of objects."""
    own = [name for name in names if _WRITER.fullmatch(name.rpartition("/")[2])]
    return [Journal(objects, name, what, location) for name in own]


@dataclass(frozen=True, slots=True)
class Unit:
    """Record of what a task has written."""

    # Fields of its report; none as long as the task has not ended.
    report: Mapping[str, Any]
    # Identity of each object, by name.
    objects: Mapping[str, StoredFile]


@dataclass(frozen=True, slots=True)
class Units:
    """Units that the tasks of a run have written: an object for those that one task wrote together."""

    objects: Objects
    # Prefix of the names of these objects.
    folder: str = ""

    def record(self, name: str, units: Mapping[str, Unit]) -> None:
        """Record units under a name."""
        for path, data in self.object_of(name, units).items():
            self.objects.put(path, data)

    def object_of(self, name: str, units: Mapping[str, Unit]) -> dict[str, bytes]:
        """Return the object that records units under a name, by its own name."""
        documents = {unit: {**each.report, "objects": dict(each.objects)} for unit, each in units.items()}
        return {self._path(name): json.dumps(documents, ensure_ascii=False).encode()}

    def read(self, names: Iterable[str]) -> dict[str, dict[str, Unit] | None]:
        """Read records by name: units by name, or None if the record is missing or truncated."""
        paths = {name: self._path(name) for name in names}
        found = self.objects.get(paths.values())
        return {name: _parse_unit(found[path]) for name, path in paths.items()}

    def drop(self, names: Iterable[str]) -> None:
        """Delete records."""
        self.objects.drop(map(self._path, names))

    def _path(self, name: str) -> str:
        return f"{self.folder}{name}.json"


def _parse_unit(record: bytes | None) -> dict[str, Unit] | None:
    try:
        return {name: _unit(**document) for name, document in json.loads(record or b"").items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _unit(objects: Mapping[str, Any], **report: Any) -> Unit:
    # The first versions recorded sizes.
    return Unit(report, {name: StoredFile(*([own] if type(own) is int else own)) for name, own in objects.items()})
