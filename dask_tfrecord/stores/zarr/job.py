"""Convert to Zarr in parts that independent programs write: `ZarrJob`.

`ZarrJob.begin` creates the group as `to_zarr` does, and adds to its checkpoint what a program needs to write a part:
the source of the rows, and the plan in slices, each with the counts of its rows alone. A program that writes a part
reads its slices, builds the tasks of some hundred units at a time, and computes them on its own threads. The tasks are
those of `to_zarr`: they skip units that are recorded, and several programs that write one unit write the same bytes.
`ZarrJob.finish` is the last task of `to_zarr`.

No run owns the group between these steps. Each program that writes a part records itself next to the plan, with a
heartbeat. A run that would replace the group does so too, and is refused as long as one of these programs lives.
Each side records itself before it searches for the other, so at least one of them finds the other.
"""

from __future__ import annotations

import io
import json
import logging
import pickle
import platform
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from itertools import pairwise
from typing import Any, Literal, Unpack

import cloudpickle
import dask
import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.arrays.rows import HasRows
from dask_tfrecord.arrays.sources import CountedRows
from dask_tfrecord.errors import (
    RESUME,
    IncompleteStoreError,
    ResumeError,
    Spelled,
    add_path_to_errors,
    plural,
    redact_url,
)
from dask_tfrecord.options import ZarrOptions, ZarrTargetOptions, ZarrWriteOptions, complete, with_options
from dask_tfrecord.runtime.progress import cancel_on_failure, run_uninterrupted
from dask_tfrecord.runtime.workers import Workers
from dask_tfrecord.schema import Schema, align_columns
from dask_tfrecord.storage.objects import DirectoryObjects
from dask_tfrecord.storage.shard import Shards, is_local
from dask_tfrecord.stores.journal import Journal, Owner
from dask_tfrecord.stores.output import WriteWork, check_mode, collect, show_progress
from dask_tfrecord.stores.units import build_tasks, task_name
from dask_tfrecord.stores.zarr.fingerprint import Fingerprint
from dask_tfrecord.stores.zarr.plan import (
    ConversionRequest,
    WriteTask,
    ZarrLayout,
    counts_of_units,
    divide_units,
    plan_tasks,
    plan_units,
    row_tasks_of,
    unit_kinds,
)
from dask_tfrecord.stores.zarr.store import PARTS, Checkpoint, GroupObjects, TargetGroup
from dask_tfrecord.stores.zarr.write import (
    GroupOutput,
    WriteContext,
    complete_group,
    open_target,
    session_of,
    write_units,
)

# Slices of a plan without a number of parts; a part consists of several.
_SLICES = 256
# Tasks that a program plans at once, for each of its threads.
_TASKS_PER_THREAD = 32
# Parts that a table or an error lists.
_LISTED = 20
# Objects of a plan: its division, and the rows to read.
_PLAN, _ROWS = "job.json", "rows"

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
        Its write units, and those of them that are written.
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
    """Progress of a `ZarrJob`, displayed as a table of the parts that are not done.

    Attributes
    ----------
    location : str
        The group.
    complete : bool
        True once `ZarrJob.finish` has completed the group.
    parts : tuple of PartStatus
        The parts; empty if the group is complete, or if neither the plan nor a first part fixes their number.
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
class _JobPlan:
    """Division of a layout into slices: content of an object of the checkpoint."""

    # Part of the names of its objects.
    token: str
    # Versions of the program that wrote it; others may read rows differently, or fail to.
    version: str
    # Number of parts; None if the first part that is written fixes it.
    parts: int | None
    # Borders of the slices: tasks, and units of each kind.
    tasks: list[int]
    units: list[list[int]]

    @classmethod
    def of_layout(cls, layout: ZarrLayout, schema: Schema, parts: int | None) -> _JobPlan:
        """Divide the tasks of a layout evenly."""
        ntasks = len(row_tasks_of(layout)) - 1
        slices = parts or min(ntasks, _SLICES)
        tasks = np.arange(slices + 1) * ntasks // slices
        units = divide_units(layout, schema, tasks, [(0, count) for _, count in unit_kinds(layout)])
        return cls(uuid.uuid4().hex, _versions(), parts, tasks.tolist(), units.tolist())

    @property
    def slices(self) -> int:
        """Number of slices."""
        return len(self.tasks) - 1

    @property
    def nunits(self) -> int:
        """Number of all units."""
        return sum(borders[-1] for borders in self.units)

    def ranges(self, first: int, past: int) -> list[tuple[int, int]]:
        """Return the units of some slices: a range of each kind."""
        return [(borders[first], borders[past]) for borders in self.units]

    def of_part(self, part: int, parts: int) -> tuple[int, int]:
        """Return the range of the slices of a part."""
        return part * self.slices // parts, (part + 1) * self.slices // parts

    def count_written(self, part: int, parts: int, numbers: NDArray[np.int64]) -> tuple[int, int]:
        """Return the number of units of a part, and how many of them are among ascending numbers of units."""
        units, written, before = 0, 0, 0
        for (first, past), borders in zip(self.ranges(*self.of_part(part, parts)), self.units, strict=True):
            low, high = np.searchsorted(numbers, [before + first, before + past]).tolist()
            units, written, before = units + past - first, written + high - low, before + borders[-1]
        return units, written


class ZarrJob:
    """A conversion to Zarr that programs write in parts, without a scheduler: a job array of Slurm, or processes.

    `begin` plans it and creates the group, `write` writes a part in any process of any machine that reaches the shards
    and the store, and `finish` verifies all parts and completes the group. Write parts in any order. Write a part again
    if its program died; if it runs twice at once, both write the same bytes. The result is the same as that of one
    `to_zarr`, byte for byte.

    The plan contains pickled rows, and functions of `map_blocks`: open only jobs that you trust.

    Attributes
    ----------
    parts : int or None
        Number of parts; None until the first part fixes it.

    See Also
    --------
    to_zarr : The same conversion, on a dask scheduler. With ``resume=True`` it continues a job.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> job = dtf.ZarrJob.begin(dtf.read_tfrecord("train-*.tfrecord"), "parts.zarr", parts=2, chunks=5)
    >>> for part in range(2):  # each in a program of its own
    ...     dtf.ZarrJob.open("parts.zarr").write(part, 2)
    >>> job.finish()
    >>> dtf.from_zarr("parts.zarr").nrows
    20
    """

    def __init__(self, target: TargetGroup, identity: str, source_options: Mapping[str, Any] | None = None) -> None:
        self._target, self._identity, self._source_options = target, identity, source_options

    def __repr__(self) -> str:
        return f"<dask_tfrecord.ZarrJob: {self._target}>"

    @classmethod
    @with_options(ZarrOptions, ZarrTargetOptions, ZarrWriteOptions)
    def begin(
        cls, arrays: Mapping[str, Any], store: Any, *, parts: int | None = None, **options: Unpack[ZarrWriteOptions]
    ) -> ZarrJob:
        """Plan a conversion, create its group, and store the plan in it.

        Parameters
        ----------
        arrays : Dataset
            Rows that are read from files.
        store : str, Path or zarr store
            As for `to_zarr`; each program that writes a part opens it.
        parts : int, optional
            Number of parts. By default the first part that is written fixes it.
        resume : bool, default False
            Continue an interrupted conversion, or divide a job again: what is written is kept.
        compute : bool, default True
            Must be True: `write` writes the rows.
        append_dim : str, optional
            Must be None: `to_zarr` appends.

        Returns
        -------
        ZarrJob

        Raises
        ------
        ValueError
            If rows are in memory or in an unnamed store, which other programs cannot read; if their URLs hold
            credentials, which a plan must not store; or `parts` is not a positive number.
        FileExistsError, StoreInUseError, SchemaError
            As for `to_zarr`. A group is in use as long as a part of it is written.

        Examples
        --------
        >>> import dask_tfrecord as dtf
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> dtf.ZarrJob.begin(ds, "begun.zarr", parts=4, chunks=5).status().missing
        (0, 1, 2, 3)
        """
        if parts is not None:
            _check_number("parts", parts, 1)
        if session_of(store) is not None:
            raise ValueError("parts are written by several programs, and an Icechunk session belongs to one: to_zarr")
        options = complete(ZarrWriteOptions, options, "begin")
        if not options["compute"]:
            raise ValueError("begin writes no row, write does: leave compute out")
        if options["append_dim"] is not None:
            raise ValueError("a job writes a group of its own: to_zarr(…, append_dim=…) appends to one")
        origin = arrays.as_rows().origin if isinstance(arrays, HasRows) else {}
        target = open_target(store, origin, options)
        request = ConversionRequest.from_arguments(arrays, options)
        source = request.rows.counted_source
        if source is None:
            raise ValueError(
                "other programs cannot read rows that are in memory: write them by to_zarr, or to shards before"
            )
        pickled = _pickle((source, request.schema), _options_of(source))
        output = GroupOutput(target, request, mode=check_mode(options["mode"], "the group"), resume=options["resume"])
        with output.owned(), cancel_on_failure(output.token, output.abort):
            output.begin()
            checkpoint, layout = output.unwritten()
            if layout is not None:
                _write_plan(checkpoint, layout, request.schema, parts, pickled)
        return cls(target, checkpoint.identity, _options_of(source))

    @classmethod
    def open(
        cls,
        store: Any,
        *,
        component: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        source_options: Mapping[str, Any] | None = None,
    ) -> ZarrJob:
        """Open a job that `begin` began, in any process.

        Parameters
        ----------
        store : str, Path or zarr store
            The store of the job.
        component : str, optional
            Path of the group within the store.
        storage_options : mapping, optional
            Options of fsspec for the URL of the store.
        source_options : mapping, optional
            Options of fsspec for the URLs of the rows; a plan does not store them, because they may hold credentials.

        Returns
        -------
        ZarrJob

        Raises
        ------
        FileNotFoundError
            If the group does not exist.
        ResumeError
            If the group was not written by this library.
        """
        target = TargetGroup.from_arguments(store, component, storage_options)
        attributes = target.own_attributes(target.open("r"))
        identity = str(attributes.get("id"))
        if "id" not in attributes or not identity.isalnum():
            raise ResumeError("the group holds no conversion of dask_tfrecord", target.location)
        return cls(target, identity, source_options)

    @property
    def parts(self) -> int | None:
        """Number of parts; None until it is fixed, and of a complete group."""
        plan = self._plan()
        return None if plan is None else plan.parts or self._fixed_parts(plan)

    def write(self, part: int, parts: int | None = None) -> None:
        """Write a part with the threads of this process; return at once if it is done.

        Parameters
        ----------
        part : int
            Number of the part, from 0.
        parts : int, optional
            Number of parts; by default that of the plan.

        Raises
        ------
        ValueError
            If `part` is outside the range of parts.
        ResumeError
            If `parts` differs from the number of the plan, or of another part; or another version of this library or
            of Python made the plan.
        ShardChangedError
            If a file has changed since the plan was made.
        IncompleteStoreError
            If another conversion has replaced the group.
        StoreInUseError
            If another run is writing the group.

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
            _log.info("%s: is written", self._target)
            return
        self._check_version(plan)
        parts = self._fix_parts(plan, _check_number("part", part, 0), parts)
        objects, done = self._objects, self._path(f"done-{plan.token}-{part}")
        if objects.get([done])[done] is not None:
            _log.info("%s: part %d of %d is done", self._target, part, parts)
            return
        token = uuid.uuid4().hex
        name = self._path(f"writer-{part}-{parts}-{token}")
        writer = Journal(objects, name, "this part", self._target.location)
        try:
            with writer.owned(token, lambda: None), cancel_on_failure(token, lambda: None), _in_this_process():
                self._refuse_other_run()
                self._write(plan, part, parts, token)
                # Without a directory, the group is complete already.
                owner = writer.owner()
                objects.put(done, b"" if owner is None else replace(owner, beat=time.time()).to_json())
        except FileNotFoundError:
            # Another program that wrote the same part may have been followed by `finish`.
            if self._plan() is not None:
                raise

    def status(self) -> JobStatus:
        """Return the parts that are written, their writers and start times, and the missing parts.

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
            complete = bool(self._target.stored_attributes().get("complete"))
            return JobStatus(str(self._target), complete, ())
        parts = plan.parts or self._fixed_parts(plan) or 0
        done = self._objects.get([self._path(f"done-{plan.token}-{part}") for part in range(parts)])
        writers: dict[int, list[Owner]] = {}
        for journal in self._target.part_writers(self._identity):
            number, of = journal.name.rpartition("/")[2].split("-")[1:3]
            if int(of) == parts and (owner := journal.owner()) is not None:
                writers.setdefault(int(number), []).append(owner)
        numbers = self._checkpoint.numbers() if None in done.values() else np.zeros(0, np.int64)
        found = []
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
            found.append(PartStatus(part, state, units, written, place, since))
        return JobStatus(str(self._target), False, tuple(found))

    def finish(self) -> None:
        """Verify all parts, and complete the group; do nothing if it is complete.

        Raises
        ------
        IncompleteStoreError
            If parts are missing, or differ from what was written; the message lists them.
        StoreInUseError
            If another run is writing the group, or finishing it.
        ResumeError
            If another version of this library or of Python made the plan.
        """
        plan, target = self._plan(), self._target
        if plan is not None:
            self._check_version(plan)
            self._refuse_missing()
        elif target.update_attributes(self._identity)["complete"]:
            return
        # Parts refuse to write during other runs of the group; the identity in the token exempts this one.
        with target.journal().owned(f"{self._identity}{uuid.uuid4().hex}", lambda: None):
            try:
                with add_path_to_errors(str(target)):
                    run_uninterrupted(lambda: complete_group(target, self._checkpoint, plan.nunits if plan else 0))
            except IncompleteStoreError:
                if plan is None:
                    raise
                # The verification removed the records of units that differ.
                self._objects.drop(self._path(f"done-{plan.token}-{part}") for part in range(self.parts or 0))
                self._refuse_missing()
                raise

    def check_shards(self, shards: Shards) -> None:
        """Refuse files that have changed since they were planned; ignore files that are not in the plan."""
        attributes = self._target.update_attributes(self._identity)
        then = Fingerprint.from_attributes(attributes)
        if "files" not in then.source:
            return
        planned = set(then.source["files"])
        listed = zip(map(redact_url, shards.paths), shards.sizes.tolist(), shards.versions, strict=True)
        found = [each for each in listed if each[0] in planned]
        files, sizes, versions = map(list, zip(*found, strict=True)) if found else ([], [], [])
        now = replace(then, source={**then.source, "files": files, "sizes": sizes, "versions": versions})
        differences = then.differences(now)
        if differences:
            raise ResumeError(
                f"the files differ from those of the plan: {'; '.join(differences)}. Begin the job again",
                self._target.location,
            )

    @property
    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(self._target.unopened_objects(), self._identity)

    @property
    def _objects(self) -> GroupObjects:
        """Objects of the group. Once the checkpoint is removed, no object can be created in its place."""
        objects = self._target.unopened_objects()
        return replace(objects, makes_directory=False) if isinstance(objects, DirectoryObjects) else objects

    def _path(self, name: str) -> str:
        return self._checkpoint.path(f"{PARTS}/{name}")

    def _plan(self) -> _JobPlan | None:
        """Read the plan; None if all units are written, and verified."""
        if self._target.update_attributes(self._identity)["written"]:
            return None
        path = self._path(_PLAN)
        found = self._objects.get([path])[path]
        if found is None:
            raise ResumeError(
                "the conversion of this group is not divided into parts: "
                + Spelled("ZarrJob.begin(…, resume=True)", "--begin --resume")
                + " with the same rows and options divides it, and keeps what is written",
                self._target.location,
            )
        return _JobPlan(**json.loads(found))

    def _check_version(self, plan: _JobPlan) -> None:
        if plan.version != _versions():
            raise ResumeError(
                f"the plan was made by {plan.version}, and this is {_versions()}: write all parts with one version, or "
                f"begin again with " + RESUME + ", which keeps what is written",
                self._target.location,
            )

    def _fixed_parts(self, plan: _JobPlan) -> int | None:
        """Return the number of parts that the first part has fixed."""
        path = self._path(f"number-{plan.token}")
        found = self._objects.get([path])[path]
        return None if found is None else int(found)

    def _fix_parts(self, plan: _JobPlan, part: int, parts: int | None) -> int:
        """Return the number of parts; fix it if this part is the first one that is written."""
        if parts is not None:
            _check_number("parts", parts, 1)
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
                self._target.location,
            )
        if part >= fixed:
            raise ValueError(
                f"the job has {plural(fixed, 'part')}: "
                + Spelled(f"0 to {fixed - 1}; got {part}", f"1/{fixed} to {fixed}/{fixed}; got {part + 1}/{fixed}")
            )
        return fixed

    def _refuse_other_run(self) -> None:
        """Raise StoreInUseError if another run than `finish` of this job owns the group."""
        journal = self._target.journal()
        owner = journal.owner()
        if owner is not None and not owner.token.startswith(self._identity):
            journal.check_free()

    def _refuse_missing(self) -> None:
        """Raise IncompleteStoreError if a part is not done."""
        status = self.status()
        missing, number = status.missing, len(status.parts)
        if not number:
            raise IncompleteStoreError("no part of the job is written", self._target.location)
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
                self._target.location,
            )

    def _write(self, plan: _JobPlan, part: int, parts: int, token: str) -> None:
        """Compute the tasks of a part, some hundred at a time."""
        target, checkpoint, rows_path = self._target, self._checkpoint, self._path(f"{_ROWS}-{plan.token}")
        first, past = plan.of_part(part, parts)
        has_tasks = plan.tasks[first] < plan.tasks[past]
        layout = checkpoint.layout(_counts_name(plan, first)) if has_tasks else None
        pickled = self._objects.get([rows_path])[rows_path]
        if layout is None or pickled is None:
            # The part is empty, or other programs have written all of it.
            return
        source, schema = _unpickle(pickled, self._source_options)
        arrays = target.open_for_writing(target.open("r+"), layout.arrays)
        name, place = task_name(write_units, token), f"{target}, part {part + 1} of {parts}"
        shared = target, checkpoint, None, schema, layout.nrows, layout.arrays, arrays, place, name
        context = dask.delayed(WriteContext(token, *shared), name=f"tfrecord-writer-{token}", traverse=False)
        rows = dask.delayed(source, name=f"tfrecord-source-{token}", traverse=False)
        spans = list(pairwise(row_tasks_of(layout)[plan.tasks[first] : plan.tasks[past] + 1].tolist()))
        nunits, nrows = plan.count_written(part, parts, np.zeros(0, np.int64))[0], spans[-1][1] - spans[0][0]
        work = replace(WriteWork.of_rows(place, name, source, nrows, len(schema), spans), units=nunits)
        if work.nbytes is not None:
            work = replace(work, nbytes=round(float(work.reading.sum())))
        done = 0
        with show_progress(work):
            for number in range(first, past):
                layout = checkpoint.layout(_counts_name(plan, number))
                for tasks in _batches(plan, number, layout, schema) if layout is not None else ():
                    arguments = ((replace(task, number=done + each), rows.key) for each, task in enumerate(tasks))
                    graph = dict(rows.__dask_graph__())
                    dask.compute(
                        build_tasks(write_units, arguments, collect, (), context, token=token, graph=graph, start=done)
                    )
                    done += len(tasks)


def _batches(plan: _JobPlan, number: int, layout: ZarrLayout, schema: Schema) -> Iterator[list[WriteTask]]:
    """Yield the tasks of a slice, some at a time; `layout` has the counts of this slice."""
    ranges, (first, past) = plan.ranges(number, number + 1), plan.tasks[number : number + 2]
    borders = np.append(np.arange(first, past, _TASKS_PER_THREAD * Workers.of_this_process().threads), past)
    for cut in pairwise(divide_units(layout, schema, borders, ranges).T.tolist()):
        units = list(plan_units(layout, schema, list(zip(*cut, strict=True))))
        yield list(plan_tasks(layout, units, shares_reads=True))


def _write_plan(checkpoint: Checkpoint, layout: ZarrLayout, schema: Schema, parts: int | None, rows: bytes) -> None:
    """Divide a layout, and store what parts read; the object of the plan comes last."""
    plan = _JobPlan.of_layout(layout, schema, parts)
    for number in range(plan.slices):
        counts = counts_of_units(layout, schema, plan.ranges(number, number + 1))
        checkpoint.write_counts(_counts_name(plan, number), counts)
    checkpoint.objects.put(checkpoint.path(f"{PARTS}/{_ROWS}-{plan.token}"), rows)
    checkpoint.objects.put(checkpoint.path(f"{PARTS}/{_PLAN}"), json.dumps(asdict(plan)).encode())


def _counts_name(plan: _JobPlan, number: int) -> str:
    return f"{PARTS}/counts-{plan.token}-{number}.npz"


def _in_this_process() -> AbstractContextManager[object]:
    """Compute on the local scheduler that is configured, or on threads, even if a client is active."""
    chosen = dask.config.get("scheduler", None)
    is_local = isinstance(chosen, str) and "distributed" not in chosen
    return nullcontext() if is_local else dask.config.set(scheduler="threads")


def _versions() -> str:
    """Return what has to be the same in all parts."""
    try:
        version = metadata.version("dask-tfrecord")
    except metadata.PackageNotFoundError:
        version = "from a source folder"
    return f"dask_tfrecord {version} on Python {'.'.join(platform.python_version_tuple()[:2])}"


def _options_of(source: CountedRows) -> Mapping[str, Any]:
    """Return the options of fsspec with which rows are read, which may hold credentials; refuse others with them."""
    while source.inner is not None:
        source = source.inner
    if source.shards is not None:
        if any(not is_local(path) and redact_url(path) != path for path in source.shards.paths):
            raise ValueError(
                "the URLs of the shards hold credentials, which the plan of a job would store: pass them in "
                "storage_options, or by the environment"
            )
        return source.shards.storage_options
    target = getattr(source, "target", None)
    if (
        not isinstance(target, TargetGroup)
        or not isinstance(target.store, str)
        or redact_url(target.store) != target.store
    ):
        raise ValueError("other programs cannot open the store of the rows by its name: pass a path or a URL")
    return target.storage_options or {}


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickle objects without the options with which files are opened."""

    def __init__(self, file: io.BytesIO, options: Mapping[str, Any]) -> None:
        super().__init__(file)
        self._options = options

    def persistent_id(self, value: Any) -> str | None:
        """Replace the options by a name."""
        return "options" if value is self._options and value else None


class _Unpickler(pickle.Unpickler):
    """Counterpart of `_Pickler`."""

    def __init__(self, data: bytes, options: Mapping[str, Any] | None) -> None:
        super().__init__(io.BytesIO(data))
        self._options = options

    def persistent_load(self, _: str) -> Mapping[str, Any]:
        """Return the options."""
        if self._options is None:
            raise ValueError(
                "the rows are read with storage_options, which the plan does not store: pass them to "
                "ZarrJob.open(…, source_options=…)"
            )
        return self._options


def _pickle(rows: tuple[CountedRows, Schema], options: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    _Pickler(file, options).dump(rows)
    return file.getvalue()


def _unpickle(data: bytes, options: Mapping[str, Any] | None) -> tuple[CountedRows, Schema]:
    rows: tuple[CountedRows, Schema] = _Unpickler(data, options).load()
    return rows


def _check_number(name: str, value: Any, least: int) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is a number, {least} or more; got {value!r:.100}")
    return int(value)
