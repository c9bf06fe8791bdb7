"""Conversions in parts that independent programs write: what the jobs of all outputs share.

A job has a folder of objects next to what it writes: the plan, which divides the tasks into slices, what each slice
needs, which program writes which part, and which parts are done. No run owns the output between the steps. Each
program that writes a part records itself in the folder, with a heartbeat. A run that would replace the output owns it,
and is refused as long as one of these programs lives. Each side records itself before it searches for the other, so at
least one of them finds the other.

`Job` has the steps. An output inherits from it, and adds the place of these objects, the units to write, the
computation of the tasks of a part, and its completion.
"""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import pickle
import platform
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import cloudpickle
import dask
import dask.threaded
import numpy as np
from dask.base import named_schedulers
from dask.delayed import Delayed
from numpy.typing import NDArray

import dask_tfrecord
from dask_tfrecord.errors import (
    RESUME,
    IncompleteStoreError,
    ResumeError,
    Spelled,
    add_path_to_errors,
    plural,
)
from dask_tfrecord.features.schema import align_columns
from dask_tfrecord.rows.memory import Workers
from dask_tfrecord.rows.progress import cancel_on_failure, run_uninterrupted
from dask_tfrecord.rows.sources import CountedRows
from dask_tfrecord.settings import limits
from dask_tfrecord.shards.objects import DirectoryObjects, Objects
from dask_tfrecord.shards.shard import Shards
from dask_tfrecord.stores.documents import ASCENDING, Count, Positive, Token, parse
from dask_tfrecord.stores.journal import Journal, Owner
from dask_tfrecord.stores.output import WriteWork, check_number, collect, show_progress
from dask_tfrecord.stores.units import build_tasks

# Slices of a plan without a number of parts; a part consists of several.
_SLICES = 256
# Limits of the number of parts, which a stranger may have written.
_MOST_PARTS, _DIGITS = 10_000_000, 9
# Parts that a table or an error lists.
_LISTED = 20
# Objects of a job: its plan, and what all of its tasks share.
PLAN, SHARED = "job.json", "rows"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PartStatus:
    """One part of a job.

    Attributes
    ----------
    part : int
        Its number, from 0.
    state : {"done", "running", "interrupted", "missing"}
        ``"interrupted"`` if the program that wrote it has ended before all units were written.
    units, written : int
        The number of its write units, and of the written ones.
    writer : str
        Process and machine of the last program that wrote it; empty without one.
    since : float or None
        When that program began, in seconds of the epoch.
    """

    part: int
    state: Literal["done", "running", "interrupted", "missing"]
    units: int
    written: int
    writer: str = ""
    since: float | None = None


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Progress of a job, displayed as a table of the parts that are not done.

    Attributes
    ----------
    location : str
        The output.
    complete : bool
        True once `finish` has completed the output.
    parts : tuple of PartStatus
        The parts; empty if the output is complete, or if neither the plan nor a first part fixes their number.
    """

    location: str
    complete: bool
    parts: tuple[PartStatus, ...]

    @property
    def missing(self) -> tuple[int, ...]:
        """Parts that are not done."""
        return tuple(each.part for each in self.parts if each.state != "done")

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, first: int = 0) -> str:
        """Return the table as text; parts are numbered from `first`."""
        if self.complete:
            return f"{self.location} is complete"
        if not self.parts:
            return f"{self.location}: no part is written yet; the first one fixes the number of parts"
        states = [each.state for each in self.parts]
        found = (f"{states.count(state):,} {state}" for state in dict.fromkeys(states))
        lines = [f"{self.location}: {plural(len(states), 'part')}: {', '.join(found)}"]
        rows = [
            (
                f"{each.part + first}/{len(states)}",
                each.state,
                f"{each.written:,} of {each.units:,}",
                each.writer,
                "" if each.since is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(each.since)),
            )
            for each in self.parts
            if each.state != "done"
        ]
        if rows:
            lines += align_columns([("part", "state", "units", "written by", "since"), *rows[:_LISTED]])
        if len(rows) > _LISTED:
            lines.append(f"… {len(rows) - _LISTED:,} more")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The division of a job's tasks into slices, in its stored form."""

    # Part of the names of its objects.
    token: Token
    # Versions of the program that wrote it; others may read rows differently, or fail to.
    version: str
    # Number of parts; None if the first part that is written fixes it.
    parts: Positive | None
    # Borders of the slices: tasks, and units of each kind, which begin with the first one that is written.
    tasks: Annotated[list[Count], ASCENDING]
    units: list[Annotated[list[Count], ASCENDING]]

    @classmethod
    def divide(cls, ntasks: int, parts: int | None, units: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> JobPlan:
        """Divide tasks evenly; `units` gives each kind's unit borders at task borders."""
        slices = parts or max(1, min(ntasks, _SLICES))
        tasks = np.arange(slices + 1) * ntasks // slices
        return cls(uuid.uuid4().hex, _environment(), parts, tasks.tolist(), units(tasks).tolist())

    def to_json(self) -> bytes:
        """Return the content of the object."""
        return json.dumps(asdict(self)).encode()

    @property
    def slices(self) -> int:
        """Number of slices."""
        return len(self.tasks) - 1

    @property
    def nunits(self) -> int:
        """Number of all units that are written."""
        return sum(borders[-1] - borders[0] for borders in self.units)

    def ranges(self, first: int, past: int) -> list[tuple[int, int]]:
        """Return the units of some slices: a range of each kind."""
        return [(borders[first], borders[past]) for borders in self.units]

    def of_part(self, part: int, parts: int) -> tuple[int, int]:
        """Return the range of the slices of a part."""
        return part * self.slices // parts, (part + 1) * self.slices // parts

    def unit_ranges(self, part: int, parts: int) -> list[tuple[int, int]]:
        """Return which units a part writes, as one range for each kind."""
        before = np.cumsum([0, *(borders[-1] for borders in self.units)]).tolist()
        ranges = self.ranges(*self.of_part(part, parts))
        return [(start + first, start + past) for start, (first, past) in zip(before, ranges, strict=False)]

    def count_written(self, part: int, parts: int, numbers: NDArray[np.int64]) -> tuple[int, int]:
        """Count a part's units, and how many are among ascending unit numbers."""
        units = written = 0
        for first, past in self.unit_ranges(part, parts):
            low, high = np.searchsorted(numbers, [first, past]).tolist()
            units, written = units + past - first, written + high - low
        return units, written


class Job:
    """A conversion that programs write in parts: the steps after `begin`, which are those of all outputs.

    Attributes
    ----------
    parts : int or None
        Number of parts; None until the first part is written.
    """

    def __init__(self, place: str, identity: str, source_options: Mapping[str, Any] | None) -> None:
        # The output, for errors; the name of the conversion; and the options that a plan does not store.
        self._place, self._identity, self._source_options = place, identity, source_options

    def __repr__(self) -> str:
        return f"<dask_tfrecord.{type(self).__name__}: {self._place}>"

    # -- what an output provides

    @property
    def _journal(self) -> Journal:
        """Journal of the output."""
        raise NotImplementedError

    @property
    def _objects(self) -> Objects:
        """Objects of the job. Once their folder is removed, none can be created in its place."""
        raise NotImplementedError

    def _path(self, name: str) -> str:
        """Return the full name of an object of the job."""
        raise NotImplementedError

    def _writer_name(self, part: int, parts: int, token: str) -> str:
        """Return the name of the object of a program that writes a part."""
        return self._path(f"writer-{part}-{parts}-{token}")

    def _writers(self) -> list[Journal]:
        """Return a journal for each program that writes a part, or was killed meanwhile."""
        raise NotImplementedError

    def _is_written(self) -> bool:
        """Return True if all units are written and verified.

        Raises IncompleteStoreError if another conversion has replaced this one.
        """
        raise NotImplementedError

    def _is_complete(self) -> bool:
        """Return True if nothing is left to do after that."""
        raise NotImplementedError

    def _written_units(self, within: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
        """Return the numbers of the units that are recorded as written, ascending: those in some ranges, or more."""
        raise NotImplementedError

    def _compute(self, plan: JobPlan, part: int, parts: int, token: str) -> None:
        """Compute the tasks of a part, some hundred at a time."""
        raise NotImplementedError

    def _complete(self, plan: JobPlan | None) -> None:
        """Verify all units, if they were not before, and complete the output.

        Raises IncompleteStoreError if units differ from what was written; they count as missing then.
        """
        raise NotImplementedError

    @property
    def _added(self) -> str | None:
        """Identity of the addition that `finish` publishes: the same job, begun again, finds it."""
        return None

    def _changes_of_files(self, shards: Shards) -> list[str]:
        """Describe how files have changed since they were planned."""
        raise NotImplementedError

    # -- steps

    @property
    def parts(self) -> int | None:
        """Number of parts; None until the first part is written, and for a complete group."""
        plan = self._plan()
        return None if plan is None else plan.parts or self._fixed_parts(plan)

    def write(self, part: int, parts: int | None = None) -> None:
        """Write a part with the threads of this process, or return at once if it is done.

        Parameters
        ----------
        part : int
            Number of the part, from 0.
        parts : int, optional
            Number of parts; by default, as planned.

        Raises
        ------
        ValueError
            If `part` is outside the range of parts.
        ResumeError
            If `parts` differs from what is planned, or from what another part was given; or if a different version of
            this library or of Python made the plan.
        ShardChangedError
            If a file has changed since the plan was made.
        IncompleteStoreError
            If another conversion has replaced the output.
        StoreInUseError
            If another run is writing the output.

        Examples
        --------
        >>> import os
        >>> import dask_tfrecord as dtf
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> job = dtf.ZarrJob.begin(ds, "array.zarr", parts=2, chunks=5)
        >>> task = int(os.environ.get("SLURM_ARRAY_TASK_ID", "1"))
        >>> dtf.ZarrJob.open("array.zarr").write(task - 1)
        """
        plan = self._plan()
        if plan is None:
            _log.info("%s: is written", self._place)
            return
        self._check_version(plan)
        parts = self._fix_parts(plan, check_number("part", part, 0), parts)
        objects, done = self._objects, self._path(f"done-{plan.token}-{part}")
        if objects.get([done])[done] is not None:
            _log.info("%s: part %d of %d is done", self._place, part, parts)
            return
        token = uuid.uuid4().hex
        writer = Journal(objects, self._writer_name(part, parts, token), "this part", self._journal.location)
        try:
            with writer.owned(token, lambda: None), cancel_on_failure(token, lambda: None), _in_this_process():
                self._refuse_other_run()
                self._compute(plan, part, parts, token)
                # Without a directory, the output is complete already.
                owner = writer.owner()
                objects.put(done, b"" if owner is None else replace(owner, beat=time.time()).to_json())
        except (FileNotFoundError, IncompleteStoreError):
            # Another program that wrote the same part may have been followed by `finish`.
            if self._plan() is not None:
                raise

    def status(self) -> JobStatus:
        """List the parts that are written, with writer and start, and the parts that are missing.

        Returns
        -------
        JobStatus

        Examples
        --------
        >>> import dask_tfrecord as dtf
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> job = dtf.ZarrJob.begin(ds, "status.zarr", parts=2, chunks=5)
        >>> job.write(0)
        >>> [(each.part, each.state) for each in job.status().parts]
        [(0, 'done'), (1, 'missing')]
        """
        plan = self._plan()
        if plan is None:
            return JobStatus(self._place, self._is_complete(), ())
        parts = plan.parts or self._fixed_parts(plan) or 0
        done = self._objects.get([self._path(f"done-{plan.token}-{part}") for part in range(parts)])
        writers: dict[int, list[Owner]] = {}
        for journal in self._writers():
            number, of = journal.name.rpartition("/")[2].split("-")[1:3]
            if int(of) == parts and (owner := journal.owner()) is not None:
                writers.setdefault(int(number), []).append(owner)
        # Of parts that are done, no record is read.
        others = [part for part, record in enumerate(done.values()) if record is None]
        within = [each for part in others for each in plan.unit_ranges(part, parts)]
        numbers = self._written_units(within) if others else np.zeros(0, np.int64)
        statuses = []
        for part, record in enumerate(done.values()):
            units, written = plan.count_written(part, parts, numbers)
            owner = max(writers.get(part, ()), key=lambda each: (not each.is_dead(), each.since), default=None)
            state: Literal["done", "running", "interrupted", "missing"] = "interrupted" if written else "missing"
            if record is not None:
                state, written, owner = "done", units, Owner.from_json(record)
            elif written == units:
                # Of another division of the job, or verified by `finish`.
                state = "done"
            elif owner is not None:
                state = "interrupted" if owner.is_dead() else "running"
            place, since = ("", None) if owner is None else (owner.place, owner.since)
            statuses.append(PartStatus(part, state, units, written, place, since))
        return JobStatus(self._place, False, tuple(statuses))

    def finish(self) -> None:
        """Verify all parts and complete the output; do nothing if it is complete.

        Raises
        ------
        IncompleteStoreError
            If parts are missing, or are not as they were written; the message lists them.
        StoreInUseError
            If another run is writing or finishing the output.
        ResumeError
            If a different version of this library or of Python made the plan.
        """
        plan = self._plan()
        if plan is not None:
            self._check_version(plan)
            self._refuse_missing()
        elif self._is_complete():
            return
        # Parts refuse to write during other runs of the output; the identity in the token exempts this one.
        token, added = f"{self._identity}{uuid.uuid4().hex}", self._added
        with self._journal.owned(token, lambda: None, adds=added):
            try:
                with add_path_to_errors(self._place):
                    run_uninterrupted(lambda: self._complete(plan))
            except IncompleteStoreError:
                if plan is None:
                    raise
                # The verification removed the records of units that differ.
                self._objects.drop(self._path(f"done-{plan.token}-{part}") for part in range(self.parts or 0))
                self._refuse_missing()
                raise
            if added is not None:
                self._journal.record_published(token, {added: 0}, {})

    def check_shards(self, shards: Shards) -> None:
        """Raise an error if files have changed since they were planned; ignore files that are not in the plan."""
        differences = self._changes_of_files(shards)
        if differences:
            raise ResumeError(
                f"the files differ from those of the plan: {'; '.join(differences)}. Begin the job again",
                self._journal.location,
            )

    def _plan(self) -> JobPlan | None:
        """Read the plan; None if all units are written, and verified."""
        if self._is_written():
            return None
        path = self._path(PLAN)
        data = self._objects.get([path])[path]
        if data is None:
            raise ResumeError(
                "the conversion of this output is not divided into parts: "
                + Spelled(f"{type(self).__name__}.begin(…, resume=True)", "--begin --resume")
                + " with the same rows and options divides it, and keeps what is written",
                self._journal.location,
            )
        plan = parse(JobPlan, data, PLAN, self._journal.location)
        if len(plan.tasks) < 2 or any(len(borders) != len(plan.tasks) for borders in plan.units):
            raise IncompleteStoreError(f"{PLAN}: units has other lengths than tasks", self._journal.location)
        return plan

    def _load(self, name: str, left_out: Mapping[str, Any] | None = None) -> Any:
        """Load what `pickled` made, without the options and the objects of `left_out`; None if it is removed.

        Refuses what another user of this machine wrote: a pickle can run any code.
        """
        objects, path = self._objects, self._path(name)
        data = objects.get([path])[path]
        if data is None:
            return None
        if isinstance(objects, DirectoryObjects) and hasattr(os, "getuid"):
            file = Path(objects.root, path)
            try:
                owner = file.stat().st_uid
            except FileNotFoundError:
                return None
            if owner != os.getuid():
                raise PermissionError(
                    errno.EPERM,
                    "the plan of the job belongs to another user, and loading it would run their code",
                    str(file),
                )
        return _Unpickler(data, {"options": self._source_options, **(left_out or {})}).load()

    def _check_version(self, plan: JobPlan) -> None:
        """Refuse a part that another version would write."""
        if plan.version != _environment():
            raise ResumeError(
                f"the plan was made by {plan.version}, and this is {_environment()}: write all parts with one "
                f"version, or begin again with " + RESUME + ", which keeps what is written",
                self._journal.location,
            )

    def _fixed_parts(self, plan: JobPlan) -> int | None:
        """Return the number of parts, which the first part has fixed."""
        path = self._path(f"number-{plan.token}")
        data = self._objects.get([path])[path]
        if data is not None and not (data.isdigit() and 0 < int(data[:_DIGITS]) <= _MOST_PARTS):
            raise ResumeError(
                "the number of parts of the job is damaged. " + RESUME + " begins it again", self._journal.location
            )
        return None if data is None else int(data)

    def _fix_parts(self, plan: JobPlan, part: int, parts: int | None) -> int:
        """Return the number of parts; fix it if this part is the first one that is written."""
        if parts is not None:
            check_number("parts", parts, 1)
        fixed = plan.parts or self._fixed_parts(plan)
        if fixed is None:
            if parts is None:
                raise ValueError("the plan has no number of parts: pass parts to begin, or to write")
            self._objects.create(self._path(f"number-{plan.token}"), str(parts).encode())
            fixed = self._fixed_parts(plan) or parts
        if parts is not None and parts != fixed:
            raise ResumeError(
                f"this is a part of {parts:,}, and the job has {plural(fixed, 'part')}: "
                + Spelled("begin(…, resume=True, parts=…)", "--begin --resume --parts N")
                + " divides it again, and keeps what is written",
                self._journal.location,
            )
        if part >= fixed:
            raise ValueError(
                f"the job has {plural(fixed, 'part')}: "
                + Spelled(f"0 to {fixed - 1}; got {part}", f"1/{fixed} to {fixed}/{fixed}; got {part + 1}/{fixed}")
            )
        return fixed

    def _refuse_other_run(self) -> None:
        """Raise StoreInUseError if another run than `finish` of this job owns the output."""
        journal = self._journal
        owner = journal.owner()
        if owner is not None and not owner.token.startswith(self._identity):
            journal.check_free()

    def _refuse_missing(self) -> None:
        """Raise IncompleteStoreError if a part is not done."""
        status = self.status()
        missing, number = status.missing, len(status.parts)
        if not number:
            raise IncompleteStoreError("no part of the job is written", self._journal.location)
        if missing:
            first = [each for each in status.parts if each.state != "done"][:_LISTED]
            more = f", … {len(missing) - len(first):,} more" if len(missing) > len(first) else ""

            def described(start: int) -> str:
                return ", ".join(f"{each.part + start} ({each.state})" for each in first) + more

            raise IncompleteStoreError(
                f"{len(missing):,} of {plural(number, 'part')} {'is' if len(missing) == 1 else 'are'} not done: "
                + Spelled(
                    f"{described(0)}. write(part, {number}) writes each of them",
                    f"{described(1)}. --part I/{number} writes each of them",
                )
                + ", and then finish again",
                self._journal.location,
            )


def batches(first: int, past: int) -> NDArray[np.int64]:
    """Return the borders of the tasks that a program plans at once."""
    return np.append(np.arange(first, past, limits().tasks_per_thread * Workers.of_this_process().threads), past)


def compute_batches(
    step: Callable[..., Any],
    arguments: Iterable[Sequence[tuple[Any, ...]]],
    shared: Sequence[Delayed],
    source: CountedRows | None,
    work: WriteWork,
    token: str,
) -> Iterator[list[Any]]:
    """Compute tasks ``step(*shared, *arguments, source)``, a batch at a time; yield the reports of each batch."""
    rows = [] if source is None else [dask.delayed(source, name=f"tfrecord-source-{token}", traverse=False)]
    graph = {key: task for node in rows for key, task in node.__dask_graph__().items()}
    done = 0
    with show_progress(work):
        for batch in arguments:
            own = [(*each, *(node.key for node in rows)) for each in batch]
            tasks = build_tasks(step, own, (collect,), *shared, token=token, graph=graph, start=done)
            done += len(own)
            yield dask.compute(tasks)[0]


def _in_this_process() -> AbstractContextManager[object]:
    """Compute on the local scheduler that is configured, or on threads, even if a client is active."""
    chosen = dask.config.get("scheduler", None)
    local = named_schedulers.get(chosen.lower()) if isinstance(chosen, str) else None
    # The function, because dask imports distributed for a name, which takes as long as a small part.
    return dask.config.set(scheduler=local or dask.threaded.get)


def _environment() -> str:
    """Return the version and the Python that must be the same in all parts."""
    version = getattr(dask_tfrecord, "__version__", "from a source folder")
    return f"dask_tfrecord {version} on Python {'.'.join(platform.python_version_tuple()[:2])}"


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickle objects, and names in the place of values that are not stored."""

    def __init__(self, file: io.BytesIO, left_out: Mapping[str, Any]) -> None:
        super().__init__(file)
        self._names = {id(value): name for name, value in left_out.items() if value}

    def persistent_id(self, value: Any) -> str | None:
        """Return the name of a value that is left out."""
        return self._names.get(id(value))


class _Unpickler(pickle.Unpickler):
    """Counterpart of `_Pickler`."""

    def __init__(self, data: bytes, left_out: Mapping[str, Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._left_out = left_out

    def persistent_load(self, name: str) -> Any:
        """Return the value of a name."""
        if self._left_out.get(name) is None:
            raise ValueError(
                "the rows are read with storage_options, which the plan does not store: pass them to "
                "open(…, source_options=…)"
            )
        return self._left_out[name]


def pickled(value: Any, left_out: Mapping[str, Any]) -> bytes:
    """Pickle a value for other programs, without the objects of `left_out`: options may hold credentials."""
    file = io.BytesIO()
    _Pickler(file, left_out).dump(value)
    return file.getvalue()


def check_begin(parts: int | None, options: Mapping[str, Any]) -> None:
    """Check the arguments of `begin` that all outputs have, before any row is read."""
    if parts is not None:
        check_number("parts", parts, 1)
    if not options["compute"]:
        raise ValueError("begin writes no rows, because write does: leave out compute=")
