"""Runs: every write of an output has the same three steps, and dask is one way to compute the second one.

1. **begin**: own the output, undo what a dead run has published in part, plan, and make what no reader sees yet.
2. **write**: write units: on a scheduler, on threads, or in other programs; in any order, twice, or late.
3. **finish**: verify all units, publish them, and release the output.

A `Run` takes an `Output` through them. `to_tfrecord` and others do all three. ``compute=False`` returns tasks
that do the last two. A job begins in one program, writes its parts in others, and finishes in another one.

An output keeps five rules; a set of files (`dask_tfrecord.stores.files.publish`) is an example:

- *Readers find the old state or the new one.* Readers do not list what tasks write: it is in the folder
  of the run. `publish` shows it, the document that describes the output last. If it must replace what the old document
  describes, it takes the old document away first, so that readers get an error instead of a mixture.
- *A run that lost its output can't change it.* `publish` renames files of the folder of the run. The run that takes
  over renames this folder first, so that a late rename fails. The claim of the `Journal` decides only which run may
  try.
- *Nothing outside.* Names come from the arguments of the call, or from documents that are checked as a stranger's.
- *Again is harmless.* `publish` records what it moves before it moves anything. `begin` finds from this record whether
  a dead run published nothing, a part, which it moves back, or all. The claim keeps the identity of what a dead run
  published (`Owner.added`, `Owner.unanswered`), so that the same call adds nothing a second time.
- *A failure restores.* `discard` moves everything back to where readers found it before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import dask
from dask.delayed import Delayed

from dask_tfrecord.rows.progress import cancel_on_failure, run_uninterrupted
from dask_tfrecord.stores.output import WriteWork, show_progress


class Output(Protocol):
    """Output of a run: a set of files, a Zarr group, rows and columns that are added to one, a commit of Icechunk."""

    @property
    def token(self) -> str:
        """Name of the run, also in the keys of its tasks."""

    def owned(self) -> AbstractContextManager[object]:
        """Own the output while the context is open, or raise StoreInUseError."""

    def begin(self) -> bool:
        """Undo what dead runs have published in part, plan, and prepare; return False if nothing is left to do.

        Readers find the output unchanged. Raises FileExistsError for files that must not be replaced.
        """

    def verify(self, reports: Any) -> None:
        """Raise IncompleteStoreError unless all units are what the reports of their tasks say."""

    def publish(self, reports: Any) -> None:
        """Show the verified units to readers, unless an earlier call has; the description of the output comes last."""

    def discard(self) -> None:
        """Return to what readers found before, or keep units that can be resumed; do nothing once all is published."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A write of an output."""

    output: Output

    @contextmanager
    def begun(self) -> Iterator[bool]:
        """Own the output and begin; yield whether something is left to do. A failure cancels and discards."""
        with self.output.owned(), cancel_on_failure(self.output.token, self.output.discard):
            yield self.output.begin()

    def write(self, build: Callable[[], tuple[Delayed, WriteWork | None]], *, compute: bool = True) -> Delayed | None:
        """Begin, compute the tasks that `build` returns, and finish with their reports.

        With ``compute=False``, return the tasks when the run has begun.
        """
        with self.begun() as is_needed:
            if not is_needed:
                return None if compute else dask.delayed(None)
            tasks, work = build()
            if not compute:
                return tasks
            with nullcontext() if work is None else show_progress(work):
                (reports,) = dask.compute(tasks)
                self.finish(reports)
        return None

    def finish(self, reports: Any) -> None:
        """Verify all units by the reports of their tasks, and publish them; Ctrl-C does not interrupt the latter."""
        self.output.verify(reports)
        run_uninterrupted(lambda: self.output.publish(reports))
