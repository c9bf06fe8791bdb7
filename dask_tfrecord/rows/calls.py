"""Calls of functions in tasks on the active scheduler, whose first error in order is raised."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import dask
from dask.delayed import Delayed

from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.rows.dask_private import active_client
from dask_tfrecord.rows.progress import ProgressBar, follow_tasks, report_progress
from dask_tfrecord.rows.task_names import label_key


def compute_with_progress(calls: Sequence[partial[Any]], label: str, *common: Any) -> list[Any]:
    """Call functions on the active scheduler and show progress; the first call in order determines the error.

    Each function gets the values `common` after its own arguments. They are sent once to each worker.
    """
    active_client()
    name = label_key(label)
    attempts, end = Attempts(), f"{name}-all"
    nodes = [dask.delayed(value, name=f"{name}-{number}", traverse=False) for number, value in enumerate(common)]
    keys = [node.key for node in nodes]
    # A plain graph: a `Delayed` for each of many thousand calls would take minutes.
    tasks: dict[Any, Any] = {
        (name, number): (_call_and_report, attempts, number, call, *keys) for number, call in enumerate(calls)
    }
    graph = {**tasks, end: (list, list(tasks))}
    for node in nodes:
        graph |= dict(node.__dask_graph__())
    with ProgressBar(label, len(tasks)) as bar, follow_tasks(name, lambda *_: bar.advance()):
        results: list[Any] = dask.compute(Delayed(end, graph))[0]
    raise_first(results)
    return results


def _call_and_report(attempts: Attempts, number: int, call: partial[Any], *common: Any) -> Any:
    result = attempts.call(number, partial(call, *common))
    report_progress()
    return result


class Attempts:
    """Calls in an order, whose first error in that order is raised, not the first that a thread meets.

    Threads share the object. Other processes have copies, so that later calls are not skipped there.
    """

    def __init__(self) -> None:
        self._failed: list[int] = []

    def call(self, number: int, function: Callable[[], Any]) -> Any:
        """Return the result, or the error of the call; skip calls after the failed ones."""
        if self._failed and number > min(self._failed):
            return None
        try:
            return function()
        except TFRecordError as error:
            self._failed.append(number)
            return error


def raise_first(results: Iterable[Any]) -> None:
    """Raise the first error among the results of `Attempts`."""
    for result in results:
        if isinstance(result, TFRecordError):
            raise result
