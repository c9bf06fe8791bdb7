"""Conversion to Zarr, from a plan to a complete group, or to one commit of an Icechunk session.

`to_zarr` collects inputs and options. `convert` claims the group, plans the conversion or resumes an interrupted one,
builds a task for each group of write units and computes them. Tasks record completed units in the checkpoint of
`dask_tfrecord.stores.zarr.store`. A task fills the entries of its units from the rows that it reads, and writes each
unit once. The last task marks the group complete.

In a session of Icechunk, the client creates group and arrays and forks it. Each task writes to a copy of the fork and
returns it. The client merges the copies that dask delivers, verifies the number of chunks, and commits. A task that
runs twice writes to two copies, and one of them is merged. A commit is atomic, so the group needs neither claims nor
checkpoints: https://icechunk.io/en/stable/parallel/
"""

from __future__ import annotations

import logging
import operator
import pickle
import sys
import time
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import groupby
from typing import Any, Literal, Unpack

import dask
import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from dask_tfrecord.blocks import Block, block_nbytes, concatenate, flatten_block, zero_rows
from dask_tfrecord.errors import (
    OVERWRITE,
    RESUME,
    IncompleteStoreError,
    Location,
    ResumeError,
    SchemaError,
    Spelled,
    StorageError,
    add_path_to_errors,
    plural,
    warn_caller,
)
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.options import ZarrOptions, ZarrTargetOptions, ZarrWriteOptions, complete, with_options
from dask_tfrecord.rows.engine import da
from dask_tfrecord.rows.memory import release_freed
from dask_tfrecord.rows.progress import (
    remove_empty_directories,
    report_part,
    report_progress,
    run_uninterrupted,
    write_uninterrupted,
)
from dask_tfrecord.rows.rows import HasRows
from dask_tfrecord.rows.sources import CountedRows
from dask_tfrecord.rows.task_names import task_name
from dask_tfrecord.settings import limits
from dask_tfrecord.shards.activities import activity
from dask_tfrecord.shards.objects import DirectoryObjects
from dask_tfrecord.shards.remote import call_once
from dask_tfrecord.stores.journal import OwnerCheck
from dask_tfrecord.stores.output import WriteReport, WriteWork, check_mode, collect, peak_memory
from dask_tfrecord.stores.output_names import check_not_numbered, warn_of_suffix
from dask_tfrecord.stores.run import Run
from dask_tfrecord.stores.units import Levels, RowTasks, check_group_lengths, is_flat, shapes_of
from dask_tfrecord.stores.zarr.additions import (
    AddedColumns,
    AddedRows,
    Addition,
    NewGroup,
    check_append_dim,
    fingerprint_of,
    published_lengths,
)
from dask_tfrecord.stores.zarr.chunk_encoding import chunk_encoder
from dask_tfrecord.stores.zarr.codec import check_images
from dask_tfrecord.stores.zarr.compat import chunk_key, encode_chunk, run_sync
from dask_tfrecord.stores.zarr.fingerprint import Fingerprint
from dask_tfrecord.stores.zarr.free import check_free
from dask_tfrecord.stores.zarr.layout import (
    ArraySpec,
    Conversion,
    ConversionRequest,
    WriteTask,
    WriteUnit,
    ZarrLayout,
    features_by_rows,
    fits,
    plan_conversion,
    plan_tasks,
    plan_units,
)
from dask_tfrecord.stores.zarr.publication import Kind, Publication, identities
from dask_tfrecord.stores.zarr.run_folder import EARLIER_ADDITION, RunFolder, UnitsReport, find_run
from dask_tfrecord.stores.zarr.store import (
    CHECKPOINT_FOLDER,
    CLAIM,
    GROUP_METADATA,
    GroupObjects,
    StoreObjects,
    TargetGroup,
)

_log = logging.getLogger(__name__)

_AGAIN = Spelled("the same call with resume=True", "--resume")
_KEPT = "written units are kept: " + _AGAIN + " continues it"
_PLANNED = "no unit is complete yet, and the plan is kept: " + _AGAIN + " begins with it"
_OTHER_PROCESSES = (
    "tasks ran in other processes, and the store is in the memory of this one: pass a path or a URL that all processes "
    "can reach, or compute on threads"
)


@with_options("dtf.to_zarr(ds, 'train.zarr')", ZarrOptions, ZarrTargetOptions, ZarrWriteOptions)
def to_zarr(arrays: Mapping[str, Any], store: Any, **options: Unpack[ZarrWriteOptions]) -> Delayed | None:
    """Write columns to a Zarr group, in one task per chunk or shard, without rechunking.

    Each dense or text column becomes one array. Columns of bytes and ragged columns become ``NAME.values`` and
    ``NAME.row_splits``; nested rows add ``NAME.row_splits_1`` and so on, and rows of bytes add ``NAME.byte_splits``.
    Columns of a group have the same row lengths, and share one ``GROUP.row_splits`` and one dimension ``GROUP``. If the
    shapes of rows differ, they are stored in ``NAME.shapes``, and those of lists of arrays in ``NAME.item_shapes``.
    ``/`` in a name becomes ``.``. The attributes of the group keep the true names, the schema with its class names, the
    sources and the version of this library. Each array has the attributes ``feature``, ``feature_class`` and
    ``class_names``.

    Parameters
    ----------
    arrays : Dataset or mapping of str to array-like
        Rows to write; `to_tfrecord` lists the types. An xarray Dataset keeps its dimension names, coordinates and
        attributes. Its dates are stored as integers, with the attributes of the CF conventions.
    store : str, Path, zarr store or icechunk.Session
        A path, a URL or a store. You can also pass a writable Icechunk session without uncommitted changes, or its
        ``session.store``: it is committed once, at the end, and can't be combined with `resume`, ``compute=False`` or
        `storage_options`.

    Returns
    -------
    None or dask.delayed.Delayed

    Raises
    ------
    FileExistsError
        If the group exists and `mode` is ``"w-"``, or if the path contains anything but a Zarr group: only arrays and
        groups are ever replaced.
    UnsupportedFormatError
        If `resume` is True and a newer version of this library wrote the group.
    StoreInUseError
        If another run is writing the group. This is also a `FileExistsError`.
    SchemaError
        If the rows to append do not have the group's columns, units, or coordinates without rows; if arrays differ in
        their number of rows, contain masked or missing values, or have a dtype that no feature or no Zarr data type
        describes (bfloat16); if an xarray Dataset has coordinates whose first axis is not the rows; or if a name is too
        long for a file.
    UnknownFeatureError
        If an option names something that is neither a feature nor a flat array.
    FeatureError
        If the columns of a group differ in their number of items in a record, or if a record contradicts its features.
    ValueError
        If rows are not counted, if `chunks` and `shards` do not fit each other, if names of axes do not fit the arrays,
        if a fill value does not fit its dtype, if workers have too little memory, or if the group would replace the
        source of the data set.
    IncompleteStoreError
        If tasks ran in other processes and the store is in the memory of this process.

    Warns
    -----
    UserWarning
        If an attribute is not a JSON value, or if this library or xarray uses its name.
    dask.array.PerformanceWarning
        If more than 1 MiB of an array is rechunked at once, because its chunks do not match the chunks of rows; a plan
        reports every rechunk.

    See Also
    --------
    from_zarr : Open the group. plan_zarr : Plan the same conversion without writing anything.

    Notes
    -----
    Columns of bytes and ragged columns are read once more, to count their sizes; for images that differ in size, only
    the headers are read. The group is marked as incomplete until everything is written. A conversion that fails removes
    what it wrote. Each task reads its rows in blocks, and keeps what it writes and one block in memory. Flat values are
    written by the task that reads most of their rows.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> dtf.read_tfrecord("train-*.tfrecord").to_zarr("train.zarr", mode="w")
    >>> dtf.from_zarr("train.zarr").nrows > 0
    True
    """
    options = complete(ZarrWriteOptions, options)
    output, compute = group_output(arrays, store, options), options["compute"]
    return Run(output).write(partial(output.build, compute=compute), compute=compute)


def group_output(arrays: Mapping[str, Any], store: Any, options: ZarrWriteOptions) -> GroupOutput:
    """Check the arguments of `to_zarr` before any row is read: a new group, or an addition to one that exists."""
    origin = arrays.as_rows().origin if isinstance(arrays, HasRows) else {}
    session, append_dim, component = session_of(store), options["append_dim"], options["component"]
    new = options.copy()
    new["mode"] = mode = "w-" if options["mode"] == "a" else options["mode"]
    if session is not None:
        check_session(session, new)
    if append_dim is not None or options["mode"] == "a":
        target = TargetGroup.from_arguments(
            store if session is None else session.store, component, options["storage_options"]
        )
        addition = _addition_to(target, arrays, session, options)
        if addition is not None:
            return _output(target, addition, session, mode="w-", resume=options["resume"])
    target = open_target(store, origin, new) if session is None else TargetGroup(session.store, component, None)
    request = ConversionRequest.from_arguments(arrays, new, grows=append_dim is not None)
    if append_dim is not None:
        check_append_dim(append_dim, request.fingerprint.options)
    how: Kind | None = "rows" if append_dim is not None else "columns" if options["mode"] == "a" else None
    return _output(target, NewGroup(request, how), session, mode=mode, resume=options["resume"])


def _addition_to(
    target: TargetGroup, arrays: Mapping[str, Any], session: Any, options: ZarrWriteOptions
) -> Addition | None:
    """Check the rows or columns to add to a group; return None if no complete group exists yet."""
    target.check_rewritable()
    target.check_format()
    if not target.stored_attributes().get("complete"):
        return None
    if session is None:
        target.journal().check_free()
    if options["append_dim"] is not None:
        return AddedRows.from_arguments(target, arrays, options["append_dim"], options)
    return AddedColumns.from_arguments(target, arrays, options)


def open_target(store: Any, origin: Mapping[str, Any], options: ZarrTargetOptions) -> TargetGroup:
    """Locate the group by arguments of `to_zarr`, and refuse one that cannot be written, before any row is read.

    The origin of the rows must not be replaced.
    """
    target = TargetGroup.from_arguments(store, options["component"], options["storage_options"])
    if isinstance(target.store, str):
        check_not_numbered(target.store)
    target.check_rewritable()
    mode = check_mode(options["mode"], "the group", resume=options["resume"])
    if options["resume"]:
        target.check_format()
    elif target.directory is not None or call_once(
        lambda: target.objects().children(""), str(target), "list what is there"
    ):
        # An empty place in a store has neither a group nor a claim: one request, and zarr would send several.
        target.journal().check_free(lambda: check_free(target, mode, origin))
    if isinstance(target.store, str):
        warn_of_suffix(target.store, "to_zarr", ".zarr")
    return target


def _output(
    target: TargetGroup, addition: Addition, session: Any, *, mode: Literal["w", "w-"], resume: bool
) -> GroupOutput:
    if session is None:
        return GroupOutput(target, addition, mode=mode, resume=resume)
    return _SessionOutput(session, target.component, addition, mode)


class GroupOutput:
    """A new group, or rows or columns that are added to one: an `Output` that can be resumed."""

    def __init__(
        self,
        target: TargetGroup,
        addition: Addition,
        planned: Conversion | None = None,
        *,
        mode: Literal["w", "w-"],
        resume: bool = False,
    ) -> None:
        self.token = uuid.uuid4().hex
        self.target, self._addition, self._planned, self._mode, self._resume = target, addition, planned, mode, resume
        self.request = addition.request
        self._folder: RunFolder | None = None
        self._publication: Publication | None = None
        self._arrays: Mapping[str, Any] = {}
        self._nunits, self._written = 0, tuple[UnitsReport, ...]()
        # True if this run has made its plan.
        self._is_new = False
        # True for a group that is complete, which needs no owner.
        self._is_complete = False
        # What runs have added before this one, and died or failed before their callers were told.
        self._unanswered = dict[str, int]()

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Own the group; a complete group that is resumed is not written to, and needs no owner."""
        target, journal = self.target, self.target.journal()
        complete = self._resume and target.stored_attributes().get("complete") and self._is_published()
        if complete and not {CHECKPOINT_FOLDER, CLAIM} & {*target.objects().children("")}:
            self._is_complete = True
            yield
            return
        directory = target.directory
        made = [] if directory is None else [path for path in (directory, *directory.parents) if not path.exists()]
        added = fingerprint_of(self._addition)
        with journal.owned(self.token, partial(remove_empty_directories, made), adds=added) as dead:
            if dead is None:
                yield
                return
            known = identities(target.stored_attributes())
            self._unanswered = {each: 0 for each in journal.unanswered(self.token) if each in known}
            yield
            journal.record_published(self.token, {added: 0}, self._unanswered)

    def _is_published(self) -> bool:
        """Return True if an earlier call with the same rows and options is published."""
        attributes = self.target.stored_attributes()
        if self._addition.kind != "group":
            return fingerprint_of(self._addition) in identities(attributes)
        return bool(attributes.get("complete")) and not self._differences(attributes)

    def _differences(self, attributes: Mapping[str, Any]) -> list[str]:
        return Fingerprint.from_attributes(attributes).differences(self.request.fingerprint)

    def begin(self) -> bool:
        """Undo what a dead run left, or find the units that it has written; plan, and record the plan."""
        target, is_group = self.target, self._addition.kind == "group"
        if self._is_complete:
            _log.info("%s: all is written already", target)
            return False
        # A new place in a store needs no check: each is a request.
        is_new_place = is_group and not {*target.objects().children("")} - {CLAIM}
        if not is_new_place:
            self._check_found()
        self._folder = folder = RunFolder.make(target, self.token, self.token)
        if not is_new_place and self._mode == "w":
            folder.objects.drop([EARLIER_ADDITION])
        left = None if is_new_place else folder.take_over()
        for writer in () if left is None else left[0].writers():
            writer.check_free()
        if left is None and self._resume and not is_new_place and self._is_published():
            _log.info("%s: all is written already", target)
            folder.close()
            return False
        if left is not None and self._resume:
            _log.info("%s: resuming the interrupted run", target)
            self._open(*left)
            return True
        if left is not None:
            left[0].discard(left[1], published_lengths(target))
            if left[0] is folder:
                self._folder = folder = RunFolder.make(target, self.token, self.token)
        self._begin_new(folder, has_group=not is_new_place and target.has_group())
        return True

    def _check_found(self) -> None:
        """Raise unless this run may continue, replace, or add to what is there; nothing is changed yet."""
        target, is_group = self.target, self._addition.kind == "group"
        self._check_earlier()
        left = find_run(target) if self._resume else None
        if left is not None and not left[1].is_published(target.stored_attributes()):
            self._refuse_other(left[1].fingerprint, left[1].kind)
        elif is_group and not (self._resume and self._is_published()):
            if self._resume:
                self._refuse_other(target.stored_attributes(), "group")
            check_free(target, self._mode, self.request.rows.origin)

    def _begin_new(self, folder: RunFolder, *, has_group: bool) -> None:
        """Plan, and record the plan."""
        target, addition = self.target, self._addition
        self.request, layout = addition.checked(target)
        planned = self._plan(layout)
        # Planning may read all rows, and take long.
        if folder.is_in_directory or addition.kind != "group":
            folder.check_owned()
        target.check_names(spec.name for spec in planned.layout.arrays)
        planned.check_memory()
        with add_path_to_errors(str(target)):
            run_uninterrupted(lambda: self._record(folder, planned, has_group))

    def _check_earlier(self) -> None:
        """Refuse to continue what an earlier version of this library began."""
        if self._mode == "w":
            return
        attributes, began = self.target.stored_attributes(), ""
        if attributes and not attributes.get("complete"):
            began = "write"
        elif self.target.objects().get([EARLIER_ADDITION])[EARLIER_ADDITION] is not None:
            began = f"add ({EARLIER_ADDITION}) to"
        if began:
            raise ResumeError(
                f"an earlier version of dask_tfrecord began to {began} this group, and did not end: continue with that "
                f"version, or write the group again with " + OVERWRITE,
                self.target.location,
            )

    def _refuse_other(self, fingerprint: Mapping[str, Any], kind: Kind) -> None:
        """Raise ResumeError if an interrupted or complete run had other rows or options."""
        if not fingerprint:
            return
        differences, now = self._differences(fingerprint), self._addition.kind
        if kind != now:
            before = "a group was written" if kind == "group" else f"{kind} were added"
            differences = [f"{before}, and now {now}"]
        if not differences:
            return
        advice = "Pass " + OVERWRITE + " to start over"
        if kind != "group":
            advice = "Without " + RESUME + f", what it wrote is removed, and the {now} of this call are added"
        raise ResumeError(
            f"cannot resume: inputs or options changed: {'; '.join(differences)}. " + advice, self.target.location
        )

    def _record(self, folder: RunFolder, planned: Conversion, has_group: bool) -> None:
        """Record the plan; then remove the group that is replaced, where it cannot be moved away at the end."""
        target = self.target
        publication = self._addition.publication(target, planned, self.token, self._unanswered)
        if publication.kind == "group" and has_group:
            staging = folder.staging if folder.is_in_directory else ""
            publication = replace(publication, staging=staging, replaces=True)
        self._folder, self._is_new = folder, True
        folder.begin(planned.layout, publication)
        self._open(folder, publication)

    def _open(self, folder: RunFolder, publication: Publication) -> None:
        """Open what a recorded run writes to."""
        layout = folder.layout() if self._planned is None or not self._planned.metadata else self._planned.layout
        if layout is None:
            raise IncompleteStoreError("the plan of the run is not whole", self.target.location)
        # A plan that this run has just made needs no second layout of all columns.
        if not self._is_new and not fits(layout, self.request.schema, publication.lengths):
            raise IncompleteStoreError(
                "the plan of the interrupted run does not fit its columns: it was damaged. "
                + OVERWRITE
                + " starts over",
                self.target.location,
            )
        planned = self._plan(layout)
        planned.check_memory()
        self._folder, self._publication = folder, publication
        if publication.replaces:
            folder.remove_old_group()
        if publication.kind == "group":
            self._write_constants(folder.objects, publication.staging)
        self._arrays = arrays_to_write(self.target, publication)

    def _write_constants(self, objects: GroupObjects, staging: str = "") -> None:
        """Write the chunks of coordinates without rows, which belong to no unit."""
        for _, chunks in self.request.attributes.constant_arrays.values():
            for key, value in chunks.items():
                objects.put(f"{staging}{key}", value)

    def _plan(self, layout: ZarrLayout | None) -> Conversion:
        """Return the plan, made unless it is given, and announce rechunks; `layout` comes from an interrupted run."""
        if self._planned is None:
            self._planned = plan_conversion(self.request, layout)
            for rechunk in self._planned.rechunks:
                if rechunk.held_nbytes > limits().small_rechunk_nbytes:
                    warn_caller(str(rechunk), da.PerformanceWarning)
        elif layout is not None and layout.arrays != self._planned.layout.arrays:
            raise ResumeError(
                "cannot resume: the interrupted conversion has another plan; to_zarr(…, resume=True) uses that plan",
                self.target.location,
            )
        return self._planned

    def _context(self, step: Callable[..., Any], place: str) -> WriteContext:
        layout, publication = self._layout, self._publication
        assert publication is not None
        return WriteContext(
            self.token,
            self.target,
            self._folder,
            publication,
            self.request.schema,
            layout.nrows,
            layout.arrays,
            self._arrays,
            place,
            task_name(step, self.token),
        )

    @property
    def _layout(self) -> ZarrLayout:
        assert self._planned is not None
        return self._planned.layout

    def build(self, *, compute: bool = True) -> tuple[Delayed, WriteWork | None]:
        """Build tasks for the units that are not written, and describe their work."""
        folder, publication = self._folder, self._publication
        assert folder is not None and publication is not None
        context = self._context(write_units, str(self.target))
        shared = dask.delayed(context, name=f"tfrecord-writer-{self.token}", traverse=False)
        units = list(plan_units(self._layout, self.request.schema))
        completed = {} if self._is_new else folder.verified(publication.staging)
        self._nunits = len(units)
        self._written = tuple(completed.values())
        last: tuple[Any, ...] = (collect,)
        if not compute:
            last = (_finish, self._finished())
        return self._tasks(write_units, context, shared, units, completed, last)

    def _tasks(
        self,
        step: Callable[..., Any],
        context: WriteContext,
        shared: Delayed,
        units: Sequence[WriteUnit],
        completed: Mapping[int, WriteReport],
        last: tuple[Any, ...],
    ) -> tuple[Delayed, WriteWork]:
        """Build tasks for the units that are not completed, and describe their work."""
        layout, schema = self._layout, self.request.schema
        row_tasks = RowTasks(self.request.rows, self.token, schema)

        def numbered(units: Sequence[WriteUnit]) -> list[WriteTask]:
            """Divide units into tasks with the numbers of their keys; rows in memory are read by one task per unit."""
            tasks = plan_tasks(layout, units, shares_reads=row_tasks.source is not None)
            return [replace(task, number=number) for number, task in enumerate(tasks)]

        tasks = numbered([unit for unit in units if unit.number not in completed])
        by_rows = features_by_rows(layout.arrays, schema)
        arguments = ((task.rows, task.features(schema, by_rows), (task,)) for task in tasks)
        work = WriteWork.of_rows(
            context.place,
            context.tasks,
            row_tasks.source,
            layout.nrows - layout.first_row,
            len(schema),
            [task.rows for task in tasks],
        )
        every = [task.rows for task in numbered(units)] if completed else []
        work = work.resumed(row_tasks.source, every, len(units), list(completed.values()))
        return row_tasks.build(step, arguments, last, shared), work

    def unwritten(self) -> tuple[RunFolder, Publication, ZarrLayout] | None:
        """Return folder, publication and layout of the run that has begun; None if all is written."""
        if self._folder is None or self._publication is None:
            return None
        return self._folder, self._publication, self._layout

    def verify(self, reports: Any) -> None:
        """Raise IncompleteStoreError unless all units are as their tasks wrote them."""
        self._finished().verify(reports)

    def publish(self, reports: Any) -> None:
        """Show the run to readers."""
        with add_path_to_errors(str(self.target)):
            self._finished().publish()
        # It has recorded them, or replaced what they added.
        self._unanswered = {}

    def _finished(self) -> Finish:
        assert self._folder is not None and self._publication is not None
        return Finish(self._folder, self._publication, self._nunits, self._written)

    def discard(self) -> None:
        """Remove what a failed run wrote; keep what can be resumed, is published, or belongs to another run."""
        error, target, folder, publication = sys.exception(), self.target, self._folder, self._publication
        if folder is None or target.journal().other_owner(self.token):
            return
        if publication is None:
            # Leftovers of another run are kept, and so is a plan of this one that is being recorded.
            if not folder.has_plan():
                folder.close()
        elif publication.is_published(target.stored_attributes()):
            target.journal().record_published(self.token, {fingerprint_of(self._addition): 0}, self._unanswered)
            folder.close()
        elif folder.has_plan() and (self._resume or not isinstance(error, Exception)):
            if error is not None:
                error.add_note(_KEPT if folder.has_units() else _PLANNED)
        elif folder.has_plan():
            folder.discard(publication, published_lengths(target))


@dataclass(frozen=True, slots=True)
class Finish:
    """The last step of a run, in any process."""

    folder: RunFolder
    publication: Publication
    units: int
    # Units that an earlier run has written.
    written: tuple[UnitsReport, ...] = ()

    def verify(self, reports: Sequence[UnitsReport] = ()) -> None:
        """Raise IncompleteStoreError unless all units are as their tasks wrote them, or the run is published.

        Without the reports of all units, their records are read.
        """
        target, known = self.folder.target, [*self.written, *reports]
        staging, is_known = self.publication.staging, sum(each.units for each in known) == self.units
        expected = {staging + name: size for each in known for name, size in each.objects.items() if is_known}
        has_plan, found = self.folder.plan_and_sizes(expected)
        if not has_plan:
            if self.publication.is_published(target.stored_attributes()):
                return
            raise self.folder.lost()
        missing = sum(found[name] != size for name, size in expected.items()) if is_known else self.units
        if missing:
            missing = self.units - len(self.folder.verified(self.publication.staging))
        if missing and target.is_in_memory:
            raise IncompleteStoreError(_OTHER_PROCESSES, target.location)
        if missing:
            raise IncompleteStoreError(
                f"{missing:,} of {self.units:,} write units differ from what was written: another program changed the "
                f"store. Pass " + RESUME + " to write them again",
                target.location,
            )

    def publish(self) -> None:
        """Show the run to readers, and remove what killed processes left."""
        target = self.folder.target
        self.folder.publish(self.publication)
        folders = ["", *self.publication.arrays, *(f"{name}/c" for name in self.publication.arrays)]
        target.objects().drop(target.torn(folders))


def arrays_to_write(target: TargetGroup, publication: Publication) -> Mapping[str, Any]:
    """Open the arrays that a run writes to: the group's that grow, or new ones."""
    return target.stored_arrays(publication.lengths) if publication.lengths else target.new_arrays(publication.arrays)


def _finish(finish: Finish, reports: Sequence[UnitsReport]) -> None:
    """Finish a run: the last task of a delayed write."""
    with add_path_to_errors(str(finish.folder.target)):
        finish.verify(reports)
        run_uninterrupted(finish.publish)


_Span = tuple[int, int]

# Seconds between two reports of a running task.
_REPORT_SECONDS = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class WriteContext:
    """Values that all tasks of a conversion share; sent once to each worker."""

    run: str
    target: TargetGroup
    # None in a fork of a session: it is committed as a whole.
    folder: RunFolder | None
    publication: Publication
    schema: Schema
    nrows: int
    specs: tuple[ArraySpec, ...]
    arrays: Mapping[str, Any]
    place: str
    # Name in the keys of the tasks.
    tasks: str
    # Fork of a session with empty arrays, pickled, which each task copies.
    fork: bytes = b""

    @property
    def objects(self) -> GroupObjects:
        """Objects of the group, as far as the run may change them."""
        return self.target.objects() if self.folder is None else self.folder.objects


def write_units(context: WriteContext, task: WriteTask, source: CountedRows) -> UnitsReport:
    """Write the units of a task that are not recorded, from the rows of a source."""
    folder, units = context.folder, task.units
    completed: dict[int, UnitsReport] = {}
    if folder is not None and folder.is_in_directory:
        # The worker that wrote recorded units may be lost, and its reports with it. Elsewhere a check is a request, and
        # a chunk that exists is not put again.
        completed = folder.recorded(unit.number for unit in task.units)
        units = tuple(unit for unit in task.units if unit.number not in completed)
    objects = {name: size for report in completed.values() for name, size in report.objects.items()}
    reports: list[WriteReport] = [*completed.values()]
    if units and (folder is None or folder.may_write(context.publication)):
        writer = _TaskWriter(context)
        writers = [_UnitWriter(context, writer, unit) for unit in units]
        try:
            _write_spans(writers, task.spans, source, partial(report_part, context.tasks, task.number))
        except BaseException:
            # The units before the failure are whole. If recording them fails too, raise the first failure.
            with suppress(Exception):
                writer.end()
            raise
        writer.end()
        reports += [each.report for each in writers]
        objects |= {name: size for each in writers for name, size in each.objects.items()}
    _log.debug("%s: wrote %d of %d units of a task", context.place, len(units), len(task.units))
    total = WriteReport.sum(reports)
    report_progress(replace(total, peak=peak_memory()))
    return UnitsReport(total.records, total.nbytes, total.stored, peak_memory(), len(task.units), objects)


# A chunk that waits to be encoded: its unit, the name of its object, its array, and its entries.
_Pending = tuple["_UnitWriter", str, Any, NDArray[Any]]


class _TaskWriter:
    """Writes the chunks of a task, and one record of its units."""

    def __init__(self, context: WriteContext) -> None:
        self._context, self.completed = context, list[_UnitWriter]()
        # Entries that wait to be encoded: small ones are written by one call, which Ctrl-C does not interrupt.
        self._pending, self._pending_nbytes = list[_Pending](), 0
        # The task has just asked.
        self._check, self._may_write = OwnerCheck(), True
        # Encoded chunks that wait to be put together, where each call takes long.
        self._waiting, self._waiting_nbytes = dict[str, bytes | memoryview](), 0

    def may_write(self) -> bool:
        """Return whether this run may write; an answer counts for a second."""
        folder = self._context.folder
        if folder is not None and self._check.is_due():
            self._may_write = folder.may_write(self._context.publication)
        return self._may_write

    def put(self, writer: _UnitWriter, name: str, array: Any, entries: NDArray[Any]) -> None:
        """Write the entries of a chunk now, or together with the next ones, at the latest at the end of the task."""
        self._pending.append((writer, name, array, entries))
        self._pending_nbytes += block_nbytes(entries)
        if self._pending_nbytes >= limits().write_unit_nbytes:
            write_uninterrupted(self._context.run, self._context.place, self._encode)

    def _encode(self) -> None:
        """Encode the entries that wait; write the chunks, or let them wait too where each call takes long."""
        pending, context = self._pending, self._context
        self._pending, self._pending_nbytes = [], 0
        if not pending or not self.may_write():
            return
        with activity("encode"):
            for writer, name, array, entries in pending:
                encode = chunk_encoder(array) or partial(encode_chunk, array)
                self._waiting[context.publication.staging + name] = chunk = encode(entries)
                writer.objects[name] = len(chunk)
                self._waiting_nbytes += len(chunk)
        if isinstance(context.objects, DirectoryObjects) or self._waiting_nbytes >= limits().write_unit_nbytes:
            self._put_waiting()

    def _put_waiting(self, record: Mapping[str, bytes] | None = None) -> None:
        """Put the chunks that wait, and a record of units with them."""
        values, self._waiting, self._waiting_nbytes = {**self._waiting, **(record or {})}, {}, 0
        if values and self.may_write():
            with activity("write"):
                self._context.objects.put_all(values)

    def end(self) -> None:
        """Write what waits, and the record of the completed units."""
        context, completed, folder = self._context, self.completed, self._context.folder

        def write() -> None:
            self._encode()
            units = {each.unit.number: (each.report, each.objects) for each in completed}
            record = folder.record_of(units) if units and folder is not None else {}
            if context.publication.lengths or isinstance(context.objects, DirectoryObjects):
                # The last chunk of an array exists already, and may have this size.
                self._put_waiting()
            # Otherwise a unit counts as written if all of its objects exist, so that they need not come first.
            self._put_waiting(record)

        write_uninterrupted(context.run, context.place, write)


class _UnitWriter:
    """Writer of the entries of one unit."""

    def __init__(self, context: WriteContext, task: _TaskWriter, unit: WriteUnit) -> None:
        self.context, self.unit = context, unit
        # Size of each object that is written.
        self.objects = dict[str, int]()
        self._task, self._nbytes = task, 0

    def put(self, spec: ArraySpec, start: int, stop: int, entries: NDArray[Any]) -> None:
        """Write an array's entries, together with small ones of the unit's other arrays."""
        self._nbytes += block_nbytes(entries)
        if not entries.size:
            # Zarr writes no object for an empty range.
            return
        array = self.context.arrays[spec.name]
        before = start % spec.unit
        if before:
            # The chunk has entries of the group, which an append writes again before its own.
            start -= before
            location = Location(f"{self.context.place}/{spec.name}")
            kept = self.context.target.read_entries(array, location, start, start + before, encoded=spec.encoded)
            entries = np.concatenate([kept.astype(entries.dtype, copy=False), entries])
        for unit in range(start // spec.unit, -(-stop // spec.unit)):
            part = entries[unit * spec.unit - start : (unit + 1) * spec.unit - start]
            self._task.put(self, f"{spec.name}/{chunk_key(array, unit)}", array, part)

    @property
    def report(self) -> WriteReport:
        """Report of the unit, once it is written."""
        return WriteReport(self.unit.records, self._nbytes, sum(self.objects.values()))

    def close(self) -> None:
        """Pass the unit to the record of the task."""
        self._task.completed.append(self)
        release_freed(self._nbytes)


def _write_spans(
    writers: Sequence[_UnitWriter], spans: Sequence[_Span], source: CountedRows, report: Callable[[float], None]
) -> None:
    """Read the rows of units, each span once, and write each unit after its last rows.

    A unit of flat values may begin and end within a span: it takes its own entries of the blocks.
    """
    context = writers[0].context
    schema = context.schema
    total, done, due = sum(stop - start for start, stop in spans), 0, 0.0
    starts, ends = [start for start, _ in spans], [stop for _, stop in spans]
    # The receivers of each span; a span is never partly inside a unit of rows.
    receivers: dict[_Span, list[_RowEntries | _FlatEntries]] = {span: [] for span in spans}
    flat, rows = list[_FlatEntries](), list[_RowEntries]()
    for writer in writers:
        unit = writer.unit
        own = spans[bisect_right(ends, unit.first) : bisect_left(starts, unit.past)] if unit.first < unit.past else ()
        entries: _RowEntries | _FlatEntries
        if unit.array is None:
            rows.append(entries := _RowEntries(writer, len(own)))
        else:
            flat.append(entries := _FlatEntries(writer, unit.array))
        for span in own:
            receivers[span].append(entries)
    by_rows, names_of = features_by_rows(context.specs, schema), dict[frozenset[str], tuple[str, ...]]()

    def features_and_sizes(span: _Span) -> tuple[tuple[str, ...], bool]:
        """Return the features to read for a span, and whether the sizes of their values suffice."""
        units = [each for each in receivers[span] if isinstance(each, _RowEntries)]
        values = frozenset(each.spec.feature for each in receivers[span] if isinstance(each, _FlatEntries))
        features = values.union(*(by_rows.get(each.writer.unit.rows, ()) for each in units))
        if features not in names_of:
            names_of[features] = tuple(name for name in schema if name in features)
        names = names_of[features]
        # Splits need only the sizes of values, and images that are kept are values of bytes.
        encoded = any(each.has_encoded for each in units)
        return names, not values and any(is_flat(schema[name]) for name in names) and not encoded

    # Units that follow each other are read at once, so that no byte of a shard is read for two of them.
    for (names, sizes), run in groupby(spans, features_and_sizes):
        read = list(run) if names else []
        reader = source.measure() if sizes else source
        into = {name: partial(_output_buffer, receivers, name) for name in names}
        for span, blocks in zip(read, reader.read_spans(names, read, into), strict=True):
            check_group_lengths(schema.groups, blocks, partial(source.locate, start=span[0]))
            for receiver in receivers[span]:
                receiver.add(blocks, span)
                if receiver.writer.unit.past <= span[1]:
                    receiver.close()
            done += span[1] - span[0]
            if done < total and time.monotonic() >= due:
                report(done / total)
                due = time.monotonic() + _REPORT_SECONDS
    without_rows: list[_RowEntries | _FlatEntries] = [*rows, *flat]
    for receiver in without_rows:
        if receiver.writer.unit.first == receiver.writer.unit.past:
            receiver.close()


def _output_buffer(
    receivers: Mapping[_Span, Sequence[_RowEntries | _FlatEntries]], name: str, span: _Span
) -> NDArray[Any] | None:
    """Return memory for the next rows of a feature, or for their values, in the unit that they continue."""
    buffers = (each.output_buffer(name, span) for each in receivers[span])
    return next((buffer for buffer in buffers if buffer is not None), None)


class _RowEntries:
    """Entries of arrays along rows with units of one length: dense rows, splits and shapes."""

    def __init__(self, writer: _UnitWriter, nspans: int) -> None:
        self.writer, self._nspans = writer, nspans
        specs = [spec for spec in writer.context.specs if spec.by_rows and spec.rows == writer.unit.rows]
        self.has_encoded = any(spec.encoded for spec in specs)
        self._dense = [spec for spec in specs if spec.part == "dense"]
        self._splits = [_FlatEntries(writer, spec) for spec in specs if spec.part != "dense"]
        self._blocks: dict[str, list[Block]] = {spec.feature: [] for spec in self._dense}
        self._arrays: dict[str, NDArray[Any]] | None = None

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Output arrays of dense features that are read in several spans."""
        if self._arrays is None:
            schema, unit = self.writer.context.schema, self.writer.unit
            encoded = {spec.feature for spec in self._dense if spec.encoded}
            several = [
                name for name in self._blocks if self._nspans > 1 and schema[name].is_dense and name not in encoded
            ]
            self._arrays = {
                name: np.empty((unit.stop - unit.start, *schema[name].block_shape), schema[name].block_dtype)
                for name in several
            }
        return self._arrays

    def output_buffer(self, name: str, span: _Span) -> NDArray[Any] | None:
        """Return the part of an output array for a span of the unit."""
        before, array = self.writer.unit.first, self.arrays.get(name)
        return None if array is None else array[span[0] - before : span[1] - before]

    def add(self, blocks: Mapping[str, Block], span: _Span) -> None:
        """Add the next rows, a span of the unit."""
        # Rows of `arrays` were decoded into them.
        for name, found in self._blocks.items():
            if name not in self.arrays:
                found.append(blocks[name])
        for entries in self._splits:
            entries.add(blocks, span)

    def close(self) -> None:
        """Write the remaining entries and complete the unit."""
        for entries in self._splits:
            entries.end()
        unit, arrays = self.writer.unit, self.arrays
        for spec in self._dense:
            parts = self._blocks.pop(spec.feature) or [zero_rows(self.writer.context.schema[spec.feature])]
            rows = arrays[spec.feature] if spec.feature in arrays else concatenate(parts)
            if spec.encoded and unit.start < unit.stop:
                check_images(spec.feature, self.writer.context.schema[spec.feature], rows, unit.first)
            self.writer.put(spec, unit.start, unit.stop, np.asarray(rows))
        self._arrays = {}
        self.writer.close()


class _FlatEntries:
    """Entries of a flat array: filled from consecutive blocks, and written when complete."""

    def __init__(self, writer: _UnitWriter, spec: ArraySpec) -> None:
        self.writer, self.spec = writer, spec
        context, unit = writer.context, writer.unit
        self._levels = Levels.from_feature(context.schema[spec.feature])
        self._level, self._stride = self._levels.level_and_stride(spec.part)
        self._start, self._stop = unit.start, unit.stop
        if unit.array is None:
            # The last unit also writes the final split.
            end = 1 if spec.part in self._levels.splits and unit.stop == context.nrows else 0
            self._start, self._stop = unit.start * self._stride, unit.stop * self._stride + end
        # Items before the next rows of the unit.
        self._items = unit.before[spec.feature]
        self._buffer: NDArray[Any] | None = None

    def add(self, blocks: Mapping[str, Block], span: _Span) -> None:
        """Add the entries of the next rows; the span may begin before the unit, and end after it."""
        block, unit = blocks[self.spec.feature], self.writer.unit
        splits, values = flatten_block(block)
        first, past = max(unit.first - span[0], 0), min(unit.past - span[0], len(block))
        before = self._items
        if first:
            before = tuple(map(operator.sub, before, self._levels.items_at(splits, first)))
        entries: NDArray[Any] = values
        more = 0
        if self.spec.part == self._levels.shapes:
            entries = shapes_of(block)
        elif self.spec.part in self._levels.splits:
            entries, more = splits[self._level][:-1], before[self._level + 1]
        at = before[self._level] * self._stride
        low, high = max(at, self._start), min(at + len(entries), self._stop)
        if low < high:
            self._fill(low, entries[low - at : high - at], more)
        self._items = tuple(map(operator.add, before, self._levels.items_at(splits, past)))

    def output_buffer(self, name: str, span: _Span) -> NDArray[Any] | None:
        """Return memory for the values of a span of the unit, if they begin in it."""
        if name != self.spec.feature:
            return None
        unit, at = self.writer.unit, self._items[self._level] * self._stride
        if not self.spec.is_large or not unit.first <= span[0] < span[1] <= unit.past:
            return None
        return self._memory()[at - self._start :] if self._start <= at < self._stop else None

    def end(self) -> None:
        """Write the final split; raise SchemaError if the number of entries differs from the count."""
        name, spec = self.spec.feature, self.spec
        if self._items != self.writer.unit.after[name]:
            raise SchemaError(
                f"the number of values of feature {name!r} differs from the earlier count: a file has changed, or "
                f"a function passed to map_blocks returns another result when it is called again"
            )
        if spec.part in self._levels.splits and self._start < self._stop == spec.shape[0]:
            self._fill(self._stop - 1, np.array([self._items[self._level + 1]]))

    def close(self) -> None:
        """Write the remaining entries and complete the unit."""
        self.end()
        self.writer.close()

    def _memory(self) -> NDArray[Any]:
        """Return memory for the entries, and for those that follow in the last row of the unit."""
        if self._buffer is None:
            length, dtype = self._stop - self._start, self.spec.memory_dtype
            follow = self.writer.unit.after[self.spec.feature][self._level] * self._stride - self._stop
            # Values of a long row belong to several units: they are decoded elsewhere.
            length += follow if self.spec.is_large and 0 < follow <= length else 0
            self._buffer = np.empty((length, *self.spec.shape[1:]), dtype)
        return self._buffer

    def _fill(self, start: int, entries: NDArray[Any], more: int = 0) -> None:
        """Add entries, each increased by `more`."""
        past = start + len(entries)
        whole = start == self._start and past == self._stop
        if whole and self._buffer is None and not more and entries.dtype == self.spec.memory_dtype:
            self.writer.put(self.spec, start, past, entries)
            return
        memory = self._memory()
        into = memory[start - self._start : past - self._start]
        if more:
            np.add(entries, more, out=into)
        elif entries.base is not memory:
            # Otherwise the decoder has written the entries into this buffer.
            into[:] = entries
        if past == self._stop:
            self._buffer = None
            self.writer.put(self.spec, self._start, self._stop, memory[: self._stop - self._start])


def session_of(store: Any) -> Any:
    """Return a session of Icechunk, or the session of its store; None for others. Icechunk is not imported for it."""
    if type(store).__module__.partition(".")[0] != "icechunk":
        return None
    session = getattr(store, "session", store)
    return session if hasattr(session, "fork") and hasattr(session, "commit") else None


def check_session(session: Any, options: ZarrTargetOptions) -> None:
    """Refuse options that a session does not have, and a session that cannot be written, by a ValueError."""
    if options["resume"]:
        raise ValueError("resume=True continues a group with a checkpoint; an Icechunk session commits all or nothing")
    if not options["compute"]:
        raise ValueError("compute=False returns tasks; the client merges and commits an Icechunk session: compute now")
    if options["storage_options"]:
        raise ValueError("storage_options are for URLs; pass the options of storage to the Icechunk repository")
    if session.read_only:
        raise ValueError("the Icechunk session is read-only: pass repository.writable_session(branch)")
    if session.has_uncommitted_changes:
        raise ValueError("the Icechunk session has uncommitted changes, which failures discard: commit them before")
    check_mode(options["mode"], "the group")


class _SessionOutput(GroupOutput):
    """A group, or rows or columns of one, in a session: an `Output` of one commit."""

    def __init__(self, session: Any, component: str | None, addition: Addition, mode: Literal["w", "w-"]) -> None:
        self._session = session
        # Icechunk 1 forks no session with changes, and Icechunk 2 merges no two forks that delete an array.
        self._first = session if int(version("icechunk").partition(".")[0]) > 1 else session.fork()
        self._merged, self._reports = False, list[bytes]()
        super().__init__(TargetGroup.from_arguments(self._first.store, component, None), addition, mode=mode)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Record no owner: the session belongs to this run."""
        yield

    def begin(self) -> bool:
        """Write the metadata of what the commit will show."""
        target, addition = self.target, self._addition
        mode = check_free(target, self._mode, self.request.rows.origin) if addition.kind == "group" else None
        self.request, layout = addition.checked(target)
        planned = self._plan(layout)
        planned.check_memory()

        def write() -> None:
            objects = target.objects()
            self._publication = addition.publication(target, planned, self.token, ())
            if mode == "w":
                assert isinstance(objects, StoreObjects)
                objects.clear(lambda name: False, {GROUP_METADATA})
            elif mode is not None:
                target.create_parents()
            self._publication.write(objects)
            if mode is not None:
                self._write_constants(objects)

        with icechunk_errors(target):
            run_uninterrupted(write)
        return True

    def build(self, *, compute: bool = True) -> tuple[Delayed, WriteWork]:
        """Build the tasks, and describe their work."""
        context = replace(
            self._context(_write_in_fork, f"Icechunk, branch {self._session.branch}"),
            target=replace(self.target, store=None),
            fork=pickle.dumps(self._first.fork() if self._first is self._session else self._first),
        )
        shared = dask.delayed(context, name=f"tfrecord-writer-{self.token}", traverse=False)
        units = list(plan_units(self._layout, self.request.schema))
        return self._tasks(_write_in_fork, context, shared, units, {}, (collect,))

    def verify(self, reports: Sequence[bytes]) -> None:
        """Merge the forks of the tasks, and verify the number of chunks."""
        session = self._session

        def merge() -> None:
            if self._first is not session:
                session.merge(self._first)
            session.merge(*map(pickle.loads, reports))
            _check_chunks(session, self.target.component, self._layout)

        with icechunk_errors(self.target):
            run_uninterrupted(merge)

    def publish(self, reports: Any) -> None:
        """Commit."""
        self._merged = True
        layout, features = self._layout, plural(len(self.request.schema), "feature")
        what = {
            "group": f"Write {layout.nrows:,} records of {len(self.request.schema)} features",
            "rows": f"Append {layout.nrows - layout.first_row:,} records of {features}",
            "columns": f"Add {features} of {layout.nrows:,} records",
        }
        with icechunk_errors(self.target):
            self._session.commit(f"{what[self._addition.kind]} with dask_tfrecord")

    def discard(self) -> None:
        """Restore the session, unless another commit came first: it can be rebased."""
        if not self._merged:
            self._session.discard_changes()


@contextmanager
def icechunk_errors(target: TargetGroup) -> Iterator[None]:
    """Raise Icechunk's panic, or its error about a full disk, as StorageError with one sentence."""
    try:
        yield
    except BaseException as error:
        is_panic, text = type(error).__name__ in ("PanicException", "RustPanic"), str(error)
        if not is_panic and not (type(error).__name__ == "IcechunkError" and "No space left" in text):
            raise
        raise StorageError(
            f"Icechunk could not write ({text.strip().partition(chr(10))[0]:.200}), and nothing is committed. Most "
            f"often the disk is full: free space, and call to_zarr again with a new session",
            target.location,
        ) from None


def _write_in_fork(context: WriteContext, task: WriteTask, source: CountedRows) -> bytes:
    """Write the units of a task to a copy of the fork; return the copy, pickled."""
    fork = pickle.loads(context.fork)
    target = replace(context.target, store=fork.store)
    with icechunk_errors(target):
        arrays = target.stored_arrays(each.name for each in context.specs)
        write_units(replace(context, target=target, arrays=arrays), task, source)
        return pickle.dumps(fork)


def _check_chunks(session: Any, component: str | None, layout: ZarrLayout) -> None:
    """Raise IncompleteStoreError unless each array has as many chunks, or shards, as in the layout."""
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
