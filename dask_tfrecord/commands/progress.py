"""Progress bars of the commands, on stderr."""

from __future__ import annotations

import time
from typing import Any

from dask.callbacks import Callback
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from dask_tfrecord.stores.write_report import WriteReport

__all__ = ["Bar", "progress_bar"]


class Bar(Callback):
    """Moves a progress bar as dask finishes the tasks of a conversion.

    Parameters
    ----------
    total : int
        Records that will be written; 0 where nobody knows.
    """

    def __init__(self, total: int) -> None:
        self.records = self.nbytes = 0
        self._total, self._began = total, 0.0
        self._progress = progress_bar(transient=False)
        self._task = self._progress.add_task("Measuring", done="")

    def stop(self) -> None:
        """Leave the bar as it stands, if it was ever shown."""
        if self._progress.live.is_started:
            self._progress.stop()

    def _start_state(self, dsk: Any, state: Any) -> None:
        # Shown from the first task on. What differs in size from record to record is measured by a graph of its own.
        self._progress.start()
        self._began = time.perf_counter()
        self._progress.reset(self._task, total=len(state["waiting"]) + len(state["ready"]))

    def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker: Any) -> None:
        self._progress.advance(self._task)
        if isinstance(result, WriteReport):
            self.records += result.records
            self.nbytes += result.nbytes
            rate = decimal(int(self.nbytes / (time.perf_counter() - self._began)))
            done = f"{self.records:,}/{self._total:,}" if self._total else f"{self.records:,}"
            self._progress.update(self._task, description="Writing", done=f"{done} records {rate}/s")


def progress_bar(*, transient: bool) -> Progress:
    """Make a bar; a transient one shows on terminals alone, and goes when it is done."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TextColumn("{task.fields[done]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=transient,
        disable=transient and not console.is_terminal,
        expand=True,
    )
