"""Convert to Zarr in parts that independent programs write: `ZarrJob`.

`ZarrJob.begin` creates the group as `to_zarr` does, and adds to its checkpoint what a program needs to write a part:
the source of the rows, and the plan in slices, each with the counts of its rows alone. A program that writes a part
reads its slices, builds the tasks of some hundred units at a time, and computes them on its own threads. The tasks are
as in `to_zarr`: they skip units that are recorded, and several programs that write one unit write the same bytes.
`ZarrJob.finish` is the last task of `to_zarr`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import Any, Unpack

import dask
import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import IncompleteStoreError, ResumeError, redact_url
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.options import ZarrOptions, ZarrTargetOptions, ZarrWriteOptions, complete, with_options
from dask_tfrecord.rows.sources import CountedRows
from dask_tfrecord.rows.task_names import task_name
from dask_tfrecord.shards.shard import Shards, is_local
from dask_tfrecord.stores.job import (
    PLAN,
    SHARED,
    Job,
    JobPlan,
    batches,
    check_begin,
    compute_batches,
    pickled,
)
from dask_tfrecord.stores.journal import Journal
from dask_tfrecord.stores.output import WriteWork
from dask_tfrecord.stores.run import Run
from dask_tfrecord.stores.zarr.fingerprint import Fingerprint
from dask_tfrecord.stores.zarr.layout import (
    WriteTask,
    ZarrLayout,
    border_counts_for,
    divide_units,
    plan_tasks,
    plan_units,
    row_tasks_of,
    unit_ranges,
)
from dask_tfrecord.stores.zarr.publication import Publication, identities, run_ids
from dask_tfrecord.stores.zarr.run_folder import PARTS, RunFolder, find_run
from dask_tfrecord.stores.zarr.store import GroupObjects, TargetGroup
from dask_tfrecord.stores.zarr.write import (
    Finish,
    WriteContext,
    arrays_to_write,
    group_output,
    session_of,
    write_units,
)


class ZarrJob(Job):
    """Let several programs convert to Zarr in parts, without a scheduler: a Slurm job array, or processes.

    `begin` plans the conversion and creates the group. `write` writes a part, in any process on any machine that can
    reach the shards and the store, and `finish` verifies all parts and completes the group. You can write parts in any
    order, and a part again if its program died; if two programs write the same part at once, both write the same bytes.
    The result is the same as that of one `to_zarr`, byte for byte.

    The plan contains pickled rows and the functions of `map_blocks`, so open only jobs that you trust.

    Attributes
    ----------
    parts : int or None
        Number of parts; None until the first part is written.

    See Also
    --------
    to_zarr : Convert on a dask scheduler. With ``resume=True``, this also continues a job.

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
        super().__init__(str(target), identity, source_options)
        self._target = target
        self._found: tuple[RunFolder, Publication] | None = None

    @classmethod
    @with_options("dtf.ZarrJob.begin(ds, 'train.zarr', parts=4)", ZarrOptions, ZarrTargetOptions, ZarrWriteOptions)
    def begin(
        cls, arrays: Mapping[str, Any], store: Any, *, parts: int | None = None, **options: Unpack[ZarrWriteOptions]
    ) -> ZarrJob:
        """Plan a conversion, create its group, and store the plan in it.

        Parameters
        ----------
        arrays : Dataset
            Rows to write, which must be read from files.
        store : str, Path or zarr store
            As for `to_zarr`; every program that writes a part must be able to open it.
        parts : int, optional
            Number of parts. By default, the first call of `write` chooses it.
        resume : bool, default False
            Continue an interrupted conversion, or divide an earlier job again; what is written is kept.
        compute : bool, default True
            Must be True, because `write` writes the rows.
        append_dim : str, optional
            Name of the row dimension of a group that exists: append the rows to it.

        Returns
        -------
        ZarrJob

        Raises
        ------
        ValueError
            If rows are in memory or in an unnamed store, where other programs can't read them; if their URLs contain
            credentials, which a plan must not store; or if `parts` is not a positive number.
        FileExistsError, StoreInUseError, SchemaError
            As for `to_zarr`. A group is in use while any part of it is being written.

        Examples
        --------
        >>> import dask_tfrecord as dtf
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> dtf.ZarrJob.begin(ds, "begun.zarr", parts=4, chunks=5).status().missing
        (0, 1, 2, 3)
        """
        if session_of(store) is not None:
            raise ValueError("several programs write parts, but an Icechunk session belongs to one: use to_zarr")
        options = complete(ZarrWriteOptions, options)
        check_begin(parts, options)
        output = group_output(arrays, store, options)
        source, target = output.request.rows.counted_source, output.target
        if source is None:
            raise ValueError("other programs can't read rows in memory: write them with to_zarr, or to shards first")
        options_of_source = source_options(source)
        # A run may remove the group that it replaces, so refuse unpicklable rows before it begins.
        pickled(source, {"options": options_of_source})
        with Run(output).begun():
            begun = output.unwritten()
            if begun is not None:
                folder, publication, layout = begun
                # Rows that are appended have the schema of the group now.
                schema = output.request.schema
                rows = pickled((source, schema), {"options": options_of_source})
                _write_plan(folder, layout, schema, parts, rows)
                return cls(target, publication.identity, options_of_source)
        return cls(target, str(target.read_attributes()["id"]), options_of_source)

    @classmethod
    def open(
        cls,
        store: Any,
        *,
        component: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        source_options: Mapping[str, Any] | None = None,
    ) -> ZarrJob:
        """Open a job that `begin` planned, in any process.

        Parameters
        ----------
        store : str, Path or zarr store
            The store of the job.
        component : str, optional
            Path of the group within the store.
        storage_options : mapping, optional
            fsspec options for the URL of the store.
        source_options : mapping, optional
            fsspec options for the URLs of the rows. The plan does not store them, because they may contain credentials.

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
        found = find_run(target)
        if found is not None:
            return cls(target, found[1].identity, source_options)
        identity = target.read_attributes().get("id")
        if not isinstance(identity, str) or not identity.isalnum():
            raise ResumeError("the group holds no conversion of dask_tfrecord", target.location)
        return cls(target, identity, source_options)

    @property
    def _journal(self) -> Journal:
        return self._target.journal()

    def _run(self) -> tuple[RunFolder, Publication] | None:
        """Find the run of the job, which `finish` and a resumed conversion rename; None if it is published.

        Raises IncompleteStoreError if another conversion has replaced it.
        """
        if self._found is not None and self._found[0].has_plan():
            return self._found
        self._found = find_run(self._target, self._identity)
        if self._found is None and self._identity not in run_ids(self._target.stored_attributes()):
            raise IncompleteStoreError(
                "another conversion has replaced this group: call to_zarr again", self._target.location
            )
        return self._found

    @property
    def _folder(self) -> RunFolder:
        if self._found is None and self._run() is None:
            raise FileNotFoundError(f"the job of {self._target} is finished")
        assert self._found is not None
        return self._found[0]

    @property
    def _objects(self) -> GroupObjects:
        return self._folder.objects

    def _path(self, name: str) -> str:
        return self._folder.path(f"{PARTS}/{name}")

    def _writers(self) -> list[Journal]:
        return self._folder.writers()

    def _is_written(self) -> bool:
        return self._run() is None

    def _is_complete(self) -> bool:
        return bool(self._target.stored_attributes().get("complete"))

    def _written_units(self, within: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
        return self._folder.numbers(within)

    def _complete(self, plan: JobPlan | None) -> None:
        owner = self._journal.owner()
        if owner is None:
            raise FileNotFoundError(f"{self._target} is gone")
        folder = RunFolder.make(self._target, owner.token[-32:], owner.token)
        left = folder.take_over()
        if left is None or plan is None:
            folder.close()
            return
        self._found = left
        finish = Finish(*left, plan.nunits)
        finish.verify()
        finish.publish()

    @property
    def _added(self) -> str | None:
        # Of the run that `_plan` has found.
        return None if self._found is None else next(reversed(identities(self._found[1].attributes)), None)

    def _changes_of_files(self, shards: Shards) -> list[str]:
        found = self._run()
        fingerprint = self._target.read_attributes() if found is None else found[1].fingerprint
        return Fingerprint.from_attributes(fingerprint).changes_of_files(shards)

    def _compute(self, plan: JobPlan, part: int, parts: int, token: str) -> None:
        found = self._run()
        if found is None:
            return
        (folder, publication), target = found, self._target
        first, past = plan.of_part(part, parts)
        has_tasks = plan.tasks[first] < plan.tasks[past]
        layout = folder.layout(_counts_name(plan, first)) if has_tasks else None
        shared = self._load(f"{SHARED}-{plan.token}")
        if layout is None or shared is None:
            # The part is empty, or other programs have written all of it.
            return
        source, schema = shared
        arrays = arrays_to_write(target, publication)
        name, place = task_name(write_units, token), f"{target}, part {part + 1} of {parts}"
        common = target, folder, publication, schema, layout.nrows, layout.arrays, arrays, place, name
        context = dask.delayed(WriteContext(token, *common), name=f"tfrecord-writer-{token}", traverse=False)
        spans = list(pairwise(row_tasks_of(layout)[plan.tasks[first] : plan.tasks[past] + 1].tolist()))
        nunits, nrows = plan.count_written(part, parts, np.zeros(0, np.int64))[0], spans[-1][1] - spans[0][0]
        work = replace(WriteWork.of_rows(place, name, source, nrows, len(schema), spans), units=nunits)
        if work.nbytes is not None:
            work = replace(work, nbytes=round(float(work.reading.sum())))
        numbers = count()

        def numbered() -> Iterator[list[tuple[WriteTask]]]:
            for number in range(first, past):
                layout = folder.layout(_counts_name(plan, number))
                for tasks in _batches(plan, number, layout, schema) if layout is not None else ():
                    yield [(replace(task, number=next(numbers)),) for task in tasks]

        # Each task records its units.
        for _ in compute_batches(write_units, numbered(), [context], source, work, token):
            pass


def _batches(plan: JobPlan, number: int, layout: ZarrLayout, schema: Schema) -> Iterator[list[WriteTask]]:
    """Yield the tasks of a slice, some at a time; `layout` has the counts of this slice."""
    ranges, (first, past) = plan.ranges(number, number + 1), plan.tasks[number : number + 2]
    for cut in pairwise(divide_units(layout, schema, batches(first, past), ranges).T.tolist()):
        units = list(plan_units(layout, schema, list(zip(*cut, strict=True))))
        yield list(plan_tasks(layout, units, shares_reads=True))


def _write_plan(folder: RunFolder, layout: ZarrLayout, schema: Schema, parts: int | None, rows: bytes) -> None:
    """Divide a layout, and store what parts read; the object of the plan comes last."""
    ranges = unit_ranges(layout, schema)
    plan = JobPlan.divide(
        len(row_tasks_of(layout)) - 1, parts, lambda tasks: divide_units(layout, schema, tasks, ranges)
    )
    for number in range(plan.slices):
        counts = border_counts_for(layout, schema, plan.ranges(number, number + 1))
        folder.write_counts(_counts_name(plan, number), counts)
    folder.objects.put(folder.path(f"{PARTS}/{SHARED}-{plan.token}"), rows)
    folder.objects.put(folder.path(f"{PARTS}/{PLAN}"), plan.to_json())


def _counts_name(plan: JobPlan, number: int) -> str:
    return f"{PARTS}/counts-{plan.token}-{number}.npz"


def source_options(source: CountedRows) -> Mapping[str, Any]:
    """Return the options of fsspec with which rows are read, which may hold credentials; refuse others with them."""
    while source.inner is not None:
        source = source.inner
    if source.shards is not None:
        return shard_options(source.shards)
    target = getattr(source, "target", None)
    if (
        not isinstance(target, TargetGroup)
        or not isinstance(target.store, str)
        or redact_url(target.store) != target.store
    ):
        raise ValueError("other programs cannot open the store of the rows by its name: pass a path or a URL")
    return target.storage_options or {}


def shard_options(shards: Shards) -> Mapping[str, Any]:
    """Return the options of fsspec with which shards are read; refuse URLs with credentials."""
    if any(not is_local(path) and redact_url(path) != path for path in shards.paths):
        raise ValueError(
            "the URLs of the shards hold credentials, which the plan of a job would store: pass them in "
            "storage_options, or by the environment"
        )
    return shards.storage_options
