"""Conversion to a Zarr group within an Icechunk session: one commit, or none.

The client forks the session and creates group and arrays in the fork. Each task writes to a copy of the fork and
returns it. The client merges the copies that dask delivers, verifies the number of chunks, and commits. A task that
runs twice writes to two copies, and one of them is merged. A commit is atomic, so the group needs neither claims nor
checkpoints: https://icechunk.io/en/stable/parallel/
"""

from __future__ import annotations

import pickle
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import dask
import dask.array as da

from dask_tfrecord.arrays.sources import Source
from dask_tfrecord.errors import IncompleteStoreError
from dask_tfrecord.runtime.cancellation import cancel_on_failure, run_uninterrupted
from dask_tfrecord.schema import Schema
from dask_tfrecord.stores.rows import RowTasks
from dask_tfrecord.stores.write_progress import ReadVolume, WriteReport, WriteWork, show_progress
from dask_tfrecord.stores.zarr.checkpoint import Checkpoint, CompletedUnit
from dask_tfrecord.stores.zarr.compat import run_sync, write_sequentially
from dask_tfrecord.stores.zarr.execute import ConversionRequest, group_attributes, plan_conversion
from dask_tfrecord.stores.zarr.group import TargetGroup
from dask_tfrecord.stores.zarr.layout import ZarrLayout
from dask_tfrecord.stores.zarr.write_task import WriteContext, write_units
from dask_tfrecord.stores.zarr.write_units import WriteTask, plan_single_tasks, plan_tasks, plan_units

__all__ = ["check_session", "convert_in_session", "session_of"]


def session_of(store: Any) -> Any:
    """Return a session of Icechunk, or the session of its store; None for others. Icechunk is not imported for it."""
    if type(store).__module__.partition(".")[0] != "icechunk":
        return None
    session = getattr(store, "session", store)
    return session if hasattr(session, "fork") and hasattr(session, "commit") else None


def check_session(session: Any, *, resume: bool, compute: bool, storage_options: Mapping[str, Any] | None) -> None:
    """Refuse options that a session does not have, and a session that cannot be written.

    Raises
    ------
    ValueError
        If there is one.
    """
    if resume:
        raise ValueError("resume=True continues a group with a checkpoint; an Icechunk session commits all or nothing")
    if not compute:
        raise ValueError("compute=False returns tasks; the client merges and commits an Icechunk session: compute now")
    if storage_options:
        raise ValueError("storage_options are for URLs; pass the options of storage to the Icechunk repository")
    if session.read_only:
        raise ValueError("the Icechunk session is read-only: pass repository.writable_session(branch)")
    if session.has_uncommitted_changes:
        raise ValueError("the Icechunk session has uncommitted changes, and cannot be forked: commit them before")


def convert_in_session(
    session: Any, component: str | None, request: ConversionRequest, *, mode: Literal["w", "w-"]
) -> None:
    """Write a group within a session, and commit it.

    Parameters
    ----------
    session : icechunk.Session
        Writable session, checked by `check_session`.
    component : str or None
        Path of the group within the store.
    request : ConversionRequest
        Inputs and options.
    mode : {"w", "w-"}
        As in `to_zarr`.

    Raises
    ------
    IncompleteStoreError
        If a chunk is missing after the merge; nothing is committed.
    """
    if mode not in ("w", "w-"):
        raise ValueError(f"mode must be 'w-' (fail if the group exists) or 'w' (replace it); got {mode!r}")
    fork = session.fork()
    target = TargetGroup.from_arguments(fork.store, component, None)
    component = target.component
    mode = target.check_free(mode, request.dataset.origin)
    conversion = plan_conversion(request)
    for rechunk in conversion.rechunks:
        warnings.warn(str(rechunk), da.PerformanceWarning, stacklevel=3)
    conversion.check_memory()
    layout, row_tasks = conversion.layout, RowTasks(request.dataset, uuid.uuid4().hex, request.schema)

    def create() -> None:
        attributes = {"id": row_tasks.token, "complete": True, "written": True}
        group = target.create(mode, attributes, request.options.attributes.of_group(request.schema))
        target.create_arrays(group, request.options.create_arguments(layout, request.schema))
        target.update_attributes(row_tasks.token, **group_attributes(request, layout, row_tasks.token))

    with write_sequentially():
        run_uninterrupted(create)
    fork_data, token, place = pickle.dumps(fork), row_tasks.token, f"Icechunk, branch {session.branch}"
    origin = _ForkOrigin(fork_data, component, token, row_tasks.schema, layout, place)

    def merge() -> None:
        session.merge(*forks)
        try:
            _check_chunks(session, component, layout)
        except BaseException:
            session.discard_changes()
            raise
        session.commit(f"Write {layout.nrows:,} records of {len(request.schema)} features with dask_tfrecord")

    with cancel_on_failure(token, lambda: None):
        forks = [fork, *_write(row_tasks, origin)]
        run_uninterrupted(merge)


def _write(row_tasks: RowTasks, origin: _ForkOrigin) -> list[Any]:
    """Compute the tasks; return their sessions."""
    layout, schema = origin.layout, row_tasks.schema
    units = list(plan_units(layout, schema))
    tasks = list((plan_tasks if row_tasks.source is not None else plan_single_tasks)(layout, units))
    shared = dask.delayed(origin, name=f"tfrecord-writer-{row_tasks.token}", traverse=False)
    arguments = ((task.rows, task.features(schema), (task,)) for task in tasks)
    written = row_tasks.build(_write_in_fork, arguments, _sessions, (), shared)
    work = WriteWork(
        origin.place,
        row_tasks.task_name(_write_in_fork),
        layout.nrows,
        len(schema),
        ReadVolume.from_spans(row_tasks.source, layout.nrows, [task.rows for task in tasks], ()),
        len(units),
    )
    with show_progress(work):
        return [pickle.loads(data) for data in dask.compute(written)[0]]


@dataclass(frozen=True, slots=True, eq=False)
class _ForkOrigin:
    """Fork with empty arrays, which each task copies; sent once to each worker.

    Attributes
    ----------
    fork : bytes
        The fork, pickled: copies are separate, also in one process.
    component : str or None
        Path of the group.
    run : str
        Name of the run, for cancellation.
    schema : Schema
        Features.
    layout : ZarrLayout
        Arrays and write units.
    place : str
        Name of the store, for errors.
    """

    fork: bytes
    component: str | None
    run: str
    schema: Schema
    layout: ZarrLayout
    place: str


class _NoCheckpoint(Checkpoint):
    """Checkpoint of a task in a fork: nothing is recorded, because a commit is atomic."""

    __slots__ = ()

    def has_plan(self) -> bool:
        """Return True: the group is not complete before the commit."""
        return True

    def recorded(self, numbers: Iterable[int]) -> dict[int, WriteReport]:
        """Return no reports."""
        return {}

    def record(self, units: Mapping[int, CompletedUnit]) -> dict[int, WriteReport]:
        """Return the reports of the units."""
        return {number: unit.report for number, unit in units.items()}


def _write_in_fork(origin: _ForkOrigin, task: WriteTask, source: Callable[..., Source], *rest: Any) -> bytes:
    """Write the units of a task to a copy of the fork; return the copy, pickled."""
    fork = pickle.loads(origin.fork)
    target = TargetGroup(fork.store, origin.component, None)
    with write_sequentially():
        group = target.open("r+")
        arrays = {spec.name: target.open_for_writing(group, spec.name) for spec in origin.layout.arrays}
    checkpoint = _NoCheckpoint(target.objects(group), origin.run)
    names = origin.run, target, checkpoint, origin.schema
    write_units(
        WriteContext(*names, origin.layout.nrows, origin.layout.arrays, arrays, origin.place), task, source, *rest
    )
    return pickle.dumps(fork)


def _sessions(forks: Sequence[bytes]) -> list[bytes]:
    """Return the forks of all tasks: the last task of a conversion."""
    return list(forks)


def _check_chunks(session: Any, component: str | None, layout: ZarrLayout) -> None:
    """Compare the number of written chunks, or shards, of each array with the layout.

    Raises
    ------
    IncompleteStoreError
        If one is missing.
    """
    target = TargetGroup(session.store, component, None)
    group = target.open("r")
    for spec in layout.arrays:
        array: Any = group[spec.name]
        expected = -(-spec.shape[0] // spec.unit) if 0 not in spec.shape else 0
        found = run_sync(_count_chunks(session, f"/{array.path}"))
        if found != expected:
            raise IncompleteStoreError(
                f"{spec.name!r} has {found:,} of {expected:,} chunks after the merge: nothing is committed; call "
                f"to_zarr again",
                target.location,
            )


async def _count_chunks(session: Any, path: str) -> int:
    # An uncommitted chunk is listed twice.
    return len({tuple(index) async for index in session.chunk_coordinates(path)})
