"""Conversions to Zarr, run: begun or gone on with, in tasks that write some units each, and finished.

What a store looks like is decided in `dask_tfrecord.stores.layout` and shown by `dask_tfrecord.stores.planning`; what
tasks do is in `dask_tfrecord.stores.writer`, what is kept to go on with in `dask_tfrecord.stores.journal`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import dask
from dask.delayed import Delayed

from dask_tfrecord.errors import IncompleteStoreError, ResumeError
from dask_tfrecord.stores.failure import called_off_on_failure, named, uninterrupted
from dask_tfrecord.stores.feed import Feed
from dask_tfrecord.stores.fingerprint import Fingerprint
from dask_tfrecord.stores.journal import Journal
from dask_tfrecord.stores.layout import Layout
from dask_tfrecord.stores.options import ZarrOptions
from dask_tfrecord.stores.progress import Reading, Work, shown
from dask_tfrecord.stores.units import jobs_of, single_jobs, units_of
from dask_tfrecord.stores.write_report import WriteReport
from dask_tfrecord.stores.writer import Writer, write_units
from dask_tfrecord.stores.zarr import Target
from dask_tfrecord.stores.zarr_settings import frugal

__all__ = ["Begun", "Order", "checked", "convert", "find_begun", "finish"]

_ELSEWHERE = (
    "tasks ran in other processes, and the store lies in the memory of this one: give a path or a URL that all "
    "processes reach, or compute on threads"
)


def checked(mode: Literal["w", "w-"]) -> Literal["w", "w-"]:
    """Refuse modes that there are not."""
    if mode not in ("w", "w-"):
        raise ValueError(f"mode is 'w-' (fail if the group exists) or 'w' (replace it); got {mode!r}")
    return mode


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """A conversion that is there already, of the same inputs.

    Attributes
    ----------
    identity : str
        What it calls itself.
    layout : Layout or None
        What it writes; None where all of it is written.
    """

    identity: str
    layout: Layout | None


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """What is to be written, and where.

    Attributes
    ----------
    target : Target
        The group.
    feed : Feed
        The rows.
    layout : Layout
        The arrays.
    options : ZarrOptions
        What the user asked for.
    fingerprint : Fingerprint
        What the conversion is known by.
    keep : bool
        Leave what is written where the conversion fails.
    """

    target: Target
    feed: Feed
    layout: Layout
    options: ZarrOptions
    fingerprint: Fingerprint
    keep: bool


def find_begun(target: Target, fingerprint: Fingerprint, mode: Literal["w", "w-"], resume: bool) -> Begun | None:
    """Find what to go on with, if that is asked for; None if no unit of it is written.

    Raises
    ------
    ResumeError
        If it was begun with other inputs or options; what differs is said.
    ValueError
        If it is to be replaced as well.
    """
    if not resume:
        return None
    if checked(mode) == "w":
        raise ValueError("mode='w' replaces what is there, and resume=True goes on with it: give one of them")
    noted = target.noted()
    identity = str(noted.get("id"))
    # It becomes the name of a folder.
    if "id" not in noted or not identity.isalnum():
        return None
    layout = Journal(target.objects(target.open("r")), identity).layout()
    written = bool(noted.get("written") or noted.get("complete"))
    if not written and layout is None:
        return None
    differences = Fingerprint.noted(noted).differences(fingerprint)
    if differences:
        raise ResumeError(
            f"what was begun there is not what is asked for now: {'; '.join(differences)}. mode='w' writes it anew",
            target.place,
        )
    return Begun(identity, None if written else layout)


def convert(order: Order, begun: Begun | None, opening: Literal["w", "w-"], *, compute: bool) -> Delayed | None:
    """Make the group that a layout says, or take the one that was begun, and its tasks; run them, or hand them back."""
    target, directory = order.target, order.target.directory
    made = [path for path in directory.parents if not path.exists()] if directory is not None else []
    with called_off_on_failure(order.feed.token, lambda: _leave(order, made)):
        # Arrays keep the pipeline of codecs that is set when they are opened.
        with named(str(target)), frugal():
            writer = uninterrupted(lambda: _create(order, opening) if begun is None else _take_up(order, begun))
        written, work = _tasks(order, writer)
        if not compute:
            return written
        with shown(work):
            dask.compute(written)
            if not target.noted().get("complete"):
                raise IncompleteStoreError(_ELSEWHERE, target.place)
    return None


def finish(target: Target, begun: Begun, *, compute: bool) -> Delayed | None:
    """Finish a conversion of which all is written, if it is not finished."""
    journal = Journal(target.objects(target.open("r+")), begun.identity)
    finished: Delayed = dask.delayed(_finish, pure=False)(target, journal, 0, [])
    if compute:
        finished.compute(scheduler="sync")
        return None
    return finished


def _create(order: Order, opening: Literal["w", "w-"]) -> Writer:
    """Make the group, with a note on what it will be, and its arrays; keep the plan."""
    layout, identity = order.layout, order.feed.token
    group = order.target.create(
        opening,
        {
            "complete": False,
            "written": False,
            "id": identity,
            "version": _version(),
            "unit_rows": layout.grid.unit,
            **order.fingerprint.notes(),
        },
    )
    arrays = order.target.create_arrays(group, order.options.forms(layout, order.feed.schema))
    journal = Journal(order.target.objects(group), identity)
    journal.begin(layout)
    return Writer(identity, order.target, journal, order.feed.schema, layout.nrows, layout.arrays, arrays)


def _version() -> str | None:
    """Tell which release writes; None where the package is imported and not installed."""
    try:
        return metadata.version("dask-tfrecord")
    except metadata.PackageNotFoundError:
        return None


def _take_up(order: Order, begun: Begun) -> Writer:
    """Open the group that was begun, and its arrays."""
    group, layout = order.target.open("r+"), order.layout
    arrays = {spec.name: order.target.writable(group, spec.name) for spec in layout.arrays}
    journal = Journal(order.target.objects(group), begun.identity)
    return Writer(order.feed.token, order.target, journal, order.feed.schema, layout.nrows, layout.arrays, arrays)


def _tasks(order: Order, writer: Writer) -> tuple[Delayed, Work]:
    """Make a task of each unit that is not written; say what all of them do."""
    token, journal, feed = order.feed.token, writer.journal, order.feed
    plan = dask.delayed(writer, name=f"tfrecord-writer-{token}", traverse=False)
    begin = dask.delayed(_begin, pure=False)(plan, dask_key_name=f"tfrecord-begin-{token}")
    there = journal.verified()
    units = list(units_of(order.layout, feed.schema))
    made = jobs_of if feed.source is not None else single_jobs
    jobs = list(made(order.layout, [unit for unit in units if unit.number not in there]))
    written = feed.run(
        write_units,
        ((job.rows, job.features(feed.schema), (job,)) for job in jobs),
        _finish,
        (order.target, journal, len(units)),
        begin,
    )
    whole = [job.rows for job in made(order.layout, units)] if there else ()
    reading = Reading.of(feed.source, order.layout.nrows, [job.rows for job in jobs], whole)
    return written, Work(
        str(order.target),
        feed.tasks(write_units),
        order.layout.nrows,
        len(feed.schema),
        reading,
        len(units),
        list(there.values()),
    )


def _begin(writer: Writer) -> Writer:
    """Let tasks write: the group is still the one that was made for them."""
    writer.target.note(writer.journal.identity)
    return writer


def _finish(target: Target, journal: Journal, units: int, reports: Sequence[WriteReport]) -> None:
    """Make the group whole, by the last thing that is written to it."""
    with named(str(target)):
        uninterrupted(lambda: _complete(target, journal, units))


def _complete(target: Target, journal: Journal, units: int) -> None:
    noted = target.note(journal.identity)
    if not noted["written"]:
        _check_written(target, journal, units)
    # Should this be cut short, another one can go on from each of these steps.
    noted = target.note(journal.identity, written=True)
    if noted["complete"]:
        return
    journal.close()
    target.remove_torn()
    if noted["options"]["consolidated"]:
        target.consolidate()
    target.note(journal.identity, complete=True)


def _check_written(target: Target, journal: Journal, units: int) -> None:
    """Look at all that is written: tasks of a run that was killed may have been at it for longer than it.

    Raises
    ------
    IncompleteStoreError
        If a unit lacks, or does not lie there as it was written.
    """
    missing = units - len(journal.verified())
    if missing and target.is_of_one_process:
        raise IncompleteStoreError(_ELSEWHERE, target.place)
    if missing:
        raise IncompleteStoreError(
            f"{missing:,} of {units:,} write units do not lie there as they were written: something else has changed "
            f"the store. resume=True writes them again",
            target.place,
        )


def _leave(order: Order, made: Sequence[Path]) -> None:
    """Remove what a conversion that fails has written; keep it where one may want to go on with it."""
    error, target = sys.exception(), order.target
    # Who stops a conversion has not said that it is of no use.
    keep = order.keep or not isinstance(error, Exception)
    noted = target.noted() if keep else {}
    if noted.get("written") or ("id" in noted and Journal(target.objects(target.open("r")), noted["id"]).is_kept()):
        if error is not None:
            error.add_note("what is written is kept: the same call with resume=True goes on with it")
        return
    target.remove(made)
