"""Conversion to Zarr, from a validated request to a complete group.

`convert` claims the group, plans the conversion or resumes an interrupted one, builds a task for each group of write
units and computes them. Tasks run `dask_tfrecord.stores.zarr.write_task` and record completed units in
`dask_tfrecord.stores.zarr.checkpoint`. The last task marks the group complete.
"""

from __future__ import annotations

import sys
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

import dask
import dask.array as da
import numpy as np
from dask.delayed import Delayed

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.arrays.rows import Rechunked
from dask_tfrecord.errors import IncompleteStoreError, ResumeError
from dask_tfrecord.runtime.cancellation import (
    add_path_to_errors,
    cancel_on_failure,
    remove_empty_directories,
    run_uninterrupted,
)
from dask_tfrecord.runtime.memory import MemoryBudget, Workers
from dask_tfrecord.schema import Schema
from dask_tfrecord.settings import limits
from dask_tfrecord.stores.rows import RowSizes, RowTasks
from dask_tfrecord.stores.write_progress import ReadVolume, WriteReport, WriteWork, show_progress
from dask_tfrecord.stores.zarr.checkpoint import Checkpoint, find_resumable
from dask_tfrecord.stores.zarr.compat import array_metadata, write_sequentially
from dask_tfrecord.stores.zarr.fingerprint import Fingerprint
from dask_tfrecord.stores.zarr.group import TargetGroup
from dask_tfrecord.stores.zarr.layout import ZarrLayout, zarr_layout
from dask_tfrecord.stores.zarr.options import ZarrOptions
from dask_tfrecord.stores.zarr.write_task import WriteContext, write_units
from dask_tfrecord.stores.zarr.write_units import count_tasks, plan_single_tasks, plan_tasks, plan_units

__all__ = ["Conversion", "ConversionRequest", "convert", "group_attributes", "open_target", "plan_conversion"]

_OTHER_PROCESSES = (
    "tasks ran in other processes, and the store is in the memory of this one: pass a path or a URL that all processes "
    "reach, or compute on threads"
)
# Bytes of a Python string besides its characters; Zarr's codec of strings takes Python strings.
_STRING_NBYTES = 64


@dataclass(frozen=True, slots=True, eq=False)
class ConversionRequest:
    """Validated inputs and options of a conversion.

    Attributes
    ----------
    dataset : Dataset
        The rows, counted.
    schema : Schema
        Features of the rows, with the groups of the user.
    options : ZarrOptions
        Options of the user.
    fingerprint : Fingerprint
        Identity of inputs and options.
    memory_limit : int, str or None
        Argument of `to_zarr`.
    """

    dataset: Dataset
    schema: Schema
    options: ZarrOptions
    fingerprint: Fingerprint
    memory_limit: int | str | None


@dataclass(frozen=True, slots=True, eq=False)
class Conversion:
    """A planned conversion.

    Attributes
    ----------
    request : ConversionRequest
        Inputs and options.
    layout : ZarrLayout
        Arrays and write units.
    sizes : RowSizes
        Decoded bytes of rows.
    ntasks : int
        Number of tasks that write.
    memory : MemoryBudget
        Peak memory of a worker.
    memory_limit : int or None
        Memory of a worker in bytes; None without a limit.
    rechunks : tuple of Rechunked
        Arrays that are rechunked.
    """

    request: ConversionRequest
    layout: ZarrLayout
    sizes: RowSizes
    ntasks: int
    memory: MemoryBudget
    memory_limit: int | None
    rechunks: tuple[Rechunked, ...]

    def check_memory(self) -> None:
        """Raise `ValueError` if the conversion exceeds the memory of a worker."""
        excess = self.memory.excess(self.memory_limit)
        if excess is not None:
            raise ValueError(excess)


@dataclass(frozen=True, slots=True, eq=False)
class _ConversionRun:
    """One run of a conversion.

    Attributes
    ----------
    target : TargetGroup
        The group.
    conversion : Conversion
        The plan.
    row_tasks : RowTasks
        Builder of the tasks; its token names the run.
    keep : bool
        Keep what is written if the run fails.
    """

    target: TargetGroup
    conversion: Conversion
    row_tasks: RowTasks
    keep: bool


def open_target(
    store: Any,
    component: str | None,
    storage_options: Mapping[str, Any] | None,
    origin: Mapping[str, Any],
    *,
    mode: Literal["w", "w-"],
    resume: bool,
) -> TargetGroup:
    """Locate the group and refuse one that cannot be written, before any row is read.

    Parameters
    ----------
    store, component, storage_options
        Arguments of `to_zarr`.
    origin : mapping
        Origin of the rows, which must not be replaced.
    mode, resume
        Arguments of `to_zarr`.
    """
    target = TargetGroup.from_arguments(store, component, storage_options)
    target.check_rewritable()
    if mode not in ("w", "w-"):
        raise ValueError(f"mode must be 'w-' (fail if the group exists) or 'w' (replace it); got {mode!r}")
    if resume and mode == "w":
        raise ValueError("mode='w' replaces the group, and resume=True continues it: pass only one of them")
    if resume:
        target.check_format()
    else:
        target.claimable().check_unclaimed(lambda: target.check_free(mode, origin))
    return target


def plan_conversion(request: ConversionRequest, layout: ZarrLayout | None = None) -> Conversion:
    """Plan a conversion: count variable-length columns, choose the chunk grid, estimate the memory.

    Parameters
    ----------
    request : ConversionRequest
        Inputs and options.
    layout : ZarrLayout, optional
        Layout of an interrupted conversion; computed if it is not given.
    """
    dataset, options, schema = request.dataset, request.options, request.schema
    workers = Workers.active().with_memory_limit(request.memory_limit)
    row_tasks = RowTasks(dataset, uuid.uuid4().hex, schema)
    sizes = row_tasks.row_sizes()
    if layout is None:
        nrows = dataset.nrows or 0
        grid, overrides = options.chunks.resolve(schema, nrows, sizes)
        border_counts = row_tasks.count_borders(grid.unit, grid.most)
        layout = zarr_layout(schema, nrows, grid, border_counts, overrides, options.names)
        arguments = options.create_arguments(layout, schema)
        run_uninterrupted(lambda: array_metadata(arguments))
    rechunks = dataset.merged().rechunked
    read_nbytes = _read_nbytes(layout, row_tasks, sizes, workers.threads) + sum(each.held_nbytes for each in rechunks)
    shares_reads = row_tasks.source is not None
    ntasks = count_tasks(layout) if shares_reads else layout.nunits
    memory = MemoryBudget.from_units(workers, ntasks, _unit_nbytes(layout, sizes), read_nbytes, together=shares_reads)
    return Conversion(request, layout, sizes, ntasks, memory, workers.memory_limit, rechunks)


def _unit_nbytes(layout: ZarrLayout, sizes: RowSizes) -> dict[str, tuple[int, bool]]:
    """Return the decoded bytes of each kind of unit, and whether it is a shard."""
    row_nbytes, sharded, units = 0.0, False, {}
    for spec in layout.arrays:
        entry = spec.entry_nbytes(sizes.columns) + (_STRING_NBYTES if spec.dtype == "string" else 0)
        if spec.by_rows:
            stride = spec.unit // layout.grid.unit if spec.part == "row_splits" else 1
            row_nbytes += min(layout.grid.unit * max(stride, 1), spec.shape[0]) * entry
            sharded |= spec.unit != spec.chunk
        else:
            units[spec.name] = int(min(spec.unit, spec.shape[0]) * entry), spec.unit != spec.chunk
    return {"rows": (int(row_nbytes), sharded), **units}


def _read_nbytes(layout: ZarrLayout, row_tasks: RowTasks, sizes: RowSizes, threads: int) -> int:
    """Return the decoded bytes of rows that a task holds: the block that it reads, and a copy of it."""
    block = min(layout.grid.most, layout.nrows) * sizes.read
    counts = layout.border_counts
    if counts.items:
        # A row is never split, so the rows between two borders may exceed the size of a block.
        block = max(block, min(limits().read_nbytes, int(counts.sizes[-1])), int(np.diff(counts.sizes).max(initial=0)))
    return int(2 * block + row_tasks.held_rows(layout.grid.unit, threads) * sizes.read)


@contextmanager
def _claimed(target: TargetGroup, *, resume: bool) -> Iterator[None]:
    """Hold the claim on a group; a complete group that is resumed is not written to, and not claimed."""
    if resume and target.stored_attributes().get("complete"):
        yield
        return
    directory = target.directory
    made = [] if directory is None else [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        with target.claimable().held():
            yield
    finally:
        remove_empty_directories(made)


def convert(
    target: TargetGroup,
    request: ConversionRequest,
    planned: Conversion | None = None,
    *,
    mode: Literal["w", "w-"],
    resume: bool,
    compute: bool,
) -> Delayed | None:
    """Write a group, or resume an interrupted conversion.

    Parameters
    ----------
    target : TargetGroup
        The group, checked by `open_target`.
    request : ConversionRequest
        Inputs and options.
    planned : Conversion, optional
        Plan of the request; made if it is not given.
    mode, resume, compute
        Arguments of `to_zarr`.
    """
    with _claimed(target, resume=resume):
        resumable = find_resumable(target, request.fingerprint) if resume else None
        if resumable is not None and resumable.layout is None:
            return _complete_written(target, resumable.identity, compute=compute)
        layout = None if resumable is None else resumable.layout
        if planned is None:
            planned = plan_conversion(request, layout)
            for rechunk in planned.rechunks:
                warnings.warn(str(rechunk), da.PerformanceWarning, stacklevel=3)
        elif layout is not None and layout.arrays != planned.layout.arrays:
            raise ResumeError(
                "cannot resume: the interrupted conversion has another plan; to_zarr(…, resume=True) uses that plan",
                target.location,
            )
        target.check_names([spec.name for spec in planned.layout.arrays])
        if resumable is None:
            # An interrupted conversion without a checkpoint did not write a unit, and is replaced.
            replaceable = resume and target.is_incomplete()
            mode = target.check_free("w" if replaceable else mode, request.dataset.origin)
        planned.check_memory()

        run = _ConversionRun(target, planned, RowTasks(request.dataset, uuid.uuid4().hex, request.schema), resume)
        # A failing run removes the group only if it has one of these identities: another run may have replaced it.
        found = target.stored_attributes().get("id") if resumable is None else resumable.identity
        identities = {run.row_tasks.token, found}
        with cancel_on_failure(run.row_tasks.token, lambda: _clean_up(run, identities)):
            # Arrays keep the codec pipeline that is configured when they are opened.
            with add_path_to_errors(str(target)), write_sequentially():
                context = run_uninterrupted(
                    lambda: _create(run, mode) if resumable is None else _reopen(run, resumable.identity)
                )
            written, work = _build_tasks(run, context)
            if not compute:
                return written
            with show_progress(work):
                dask.compute(written)
                if not target.stored_attributes().get("complete"):
                    raise IncompleteStoreError(_OTHER_PROCESSES, target.location)
    return None


def _create(run: _ConversionRun, mode: Literal["w", "w-"]) -> WriteContext:
    """Create the group and its arrays, and write the plan to the checkpoint."""
    target, layout, identity = run.target, run.conversion.layout, run.row_tasks.token
    request, schema = run.conversion.request, run.row_tasks.schema
    attributes = {"id": identity, "complete": False, "written": False}
    group = target.create(mode, attributes, request.options.attributes.of_group(schema))
    arrays = target.create_arrays(group, request.options.create_arguments(layout, schema))
    # zarr parses the metadata of the group for each array that it creates: attributes of many columns come last.
    target.update_attributes(identity, **group_attributes(request, layout, identity))
    checkpoint = Checkpoint(target.objects(group), identity)
    checkpoint.begin(layout)
    return WriteContext(identity, target, checkpoint, schema, layout.nrows, layout.arrays, arrays, str(target))


def group_attributes(request: ConversionRequest, layout: ZarrLayout, identity: str) -> dict[str, Any]:
    """Return the attributes that this library writes to a group, besides those of its completion."""
    try:
        version = metadata.version("dask-tfrecord")
    except metadata.PackageNotFoundError:
        version = None  # the package is imported from a source folder
    return {
        "id": identity,
        "version": version,
        "unit_rows": layout.grid.unit,
        **request.fingerprint.to_attributes(),
    }


def _reopen(run: _ConversionRun, identity: str) -> WriteContext:
    """Open the group and the arrays of an interrupted conversion."""
    target, layout, row_tasks = run.target, run.conversion.layout, run.row_tasks
    group = target.open("r+")
    arrays = {spec.name: target.open_for_writing(group, spec.name) for spec in layout.arrays}
    checkpoint = Checkpoint(target.objects(group), identity)
    names = row_tasks.token, target, checkpoint, row_tasks.schema
    return WriteContext(*names, layout.nrows, layout.arrays, arrays, str(target))


def _build_tasks(run: _ConversionRun, context: WriteContext) -> tuple[Delayed, WriteWork]:
    """Build tasks for the units that are not written; return them with a description of their work."""
    row_tasks, layout, schema = run.row_tasks, run.conversion.layout, run.row_tasks.schema
    shared = dask.delayed(context, name=f"tfrecord-writer-{row_tasks.token}", traverse=False)
    first = dask.delayed(_check_group, pure=False)(shared, dask_key_name=f"tfrecord-begin-{row_tasks.token}")
    completed = context.checkpoint.verified()
    units = list(plan_units(layout, schema))
    make_tasks = plan_tasks if row_tasks.source is not None else plan_single_tasks
    tasks = list(make_tasks(layout, [unit for unit in units if unit.number not in completed]))
    written = row_tasks.build(
        write_units,
        ((task.rows, task.features(schema), (task,)) for task in tasks),
        _finish,
        (run.target, context.checkpoint, len(units)),
        first,
    )
    all_rows = [task.rows for task in make_tasks(layout, units)] if completed else ()
    return written, WriteWork(
        str(run.target),
        row_tasks.task_name(write_units),
        layout.nrows,
        len(schema),
        ReadVolume.from_spans(row_tasks.source, layout.nrows, [task.rows for task in tasks], all_rows),
        len(units),
        list(completed.values()),
    )


def _check_group(context: WriteContext) -> WriteContext:
    """Raise if the group was replaced since its tasks were built."""
    context.target.update_attributes(context.checkpoint.identity)
    return context


def _complete_written(target: TargetGroup, identity: str, *, compute: bool) -> Delayed | None:
    """Complete a group whose units are all written, if it is not complete."""
    checkpoint = Checkpoint(target.objects(target.open("r+")), identity)
    finished: Delayed = dask.delayed(_finish, pure=False)(target, checkpoint, 0, [])
    if compute:
        finished.compute(scheduler="sync")
        return None
    return finished


def _finish(target: TargetGroup, checkpoint: Checkpoint, units: int, reports: Sequence[WriteReport]) -> None:
    """Complete the group: the last task of a conversion."""
    with add_path_to_errors(str(target)):
        run_uninterrupted(lambda: _complete(target, checkpoint, units))


def _complete(target: TargetGroup, checkpoint: Checkpoint, units: int) -> None:
    """Verify all units, remove the checkpoint, and mark the group complete.

    A run that is interrupted between these steps is resumed after the last one that is recorded.
    """
    attributes = target.update_attributes(checkpoint.identity)
    if not attributes["written"]:
        # Tasks of a killed run may have written after their units were verified.
        missing = units - len(checkpoint.verified())
        if missing and target.is_in_memory:
            raise IncompleteStoreError(_OTHER_PROCESSES, target.location)
        if missing:
            raise IncompleteStoreError(
                f"{missing:,} of {units:,} write units differ from what was written: another program changed the "
                f"store. Pass resume=True to write them again",
                target.location,
            )
    attributes = target.update_attributes(checkpoint.identity, written=True)
    if attributes["complete"]:
        return
    checkpoint.close()
    target.remove_torn()
    if attributes["options"]["consolidated"]:
        target.consolidate()
    target.update_attributes(checkpoint.identity, complete=True)


def _clean_up(run: _ConversionRun, identities: set[str | None]) -> None:
    """Remove the group of a failed run; keep one that can be resumed, or belongs to another run."""
    error, target = sys.exception(), run.target
    attributes = target.stored_attributes()
    if attributes.get("id", run.row_tasks.token) not in identities:
        return
    # An interrupted run keeps what is written: the user may resume it.
    if run.keep or not isinstance(error, Exception):
        has_plan = "id" in attributes and Checkpoint(target.objects(target.open("r")), attributes["id"]).has_plan()
        if attributes.get("written") or has_plan:
            if error is not None:
                error.add_note("written units are kept: the same call with resume=True continues it")
            return
    target.remove()
