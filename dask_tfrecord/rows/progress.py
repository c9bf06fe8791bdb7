"""Progress and cancellation of tasks on the active scheduler. A bar in terminals and notebooks displays progress.

Local schedulers call a callback after each task. On a cluster, tasks log events that the scheduler forwards.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar, copy_context
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from dask.callbacks import Callback

from dask_tfrecord.errors import add_path_to_errors, explain_refused_memory
from dask_tfrecord.rows.dask_private import active_client
from dask_tfrecord.settings import limits, read_setting, this_worker

if TYPE_CHECKING:
    from dask_tfrecord.rows.progress_display import TerminalDisplay

# Seconds between two updates of a bar.
_UPDATE_INTERVAL = 0.1
# Topic of the events of all tasks on a cluster: one, because a scheduler never forgets a topic.
TOPIC = "dask-tfrecord"

_display_delay: ContextVar[float | None] = ContextVar("display_delay", default=None)


def is_displayed() -> bool:
    """Return whether this process shows progress: in a terminal or notebook, if the setting ``progress`` is on."""
    # Workers inherit the terminal of the process that started them.
    if multiprocessing.parent_process() is not None or not read_setting("progress"):
        return False
    return _in_notebook() or (sys.stderr is not None and sys.stderr.isatty())


def _in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, by the rule of `rich.console.Console.is_jupyter`."""
    # Not imported: IPython is loaded in every process that it runs in.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else type(ipython.get_ipython())
    if shell is None or shell is type(None):
        return False
    hosted = "google.colab" in str(shell) or bool(os.getenv("DATABRICKS_RUNTIME_VERSION"))
    return hosted or shell.__name__ == "ZMQInteractiveShell"


@contextmanager
def show_immediately() -> Iterator[None]:
    """Show bars without delay, for commands whose user waits for the result."""
    token = _display_delay.set(0.0)
    try:
        yield
    finally:
        _display_delay.reset(token)


class ProgressBar:
    """A progress bar that appears after `Limits.display_delay` and disappears at the end; none unless `is_displayed`.

    The amount `before` was done earlier, and does not count for the remaining time. `line` returns the text below the
    bar.
    """

    def __init__(self, label: str, total: float, *, before: float = 0.0, line: Callable[[], str] | None = None) -> None:
        self.shown = False
        self._label, self._total, self._before, self._line = label, total, before, line
        delay = _display_delay.get()
        self._delay = limits().display_delay if delay is None else delay
        self._final_text = ""
        self._over = threading.Event()
        self._display: TerminalDisplay | None = None
        self._thread: threading.Thread | None = None

    def advance(self, step: float = 1.0) -> None:
        """Add an amount of finished work."""
        if self._display is not None:
            self._display.move(step)

    def end_with(self, text: str) -> None:
        """Leave a line of text in place of the bar, also where the work ended before the bar was shown."""
        self._final_text = text

    def _draw(self, display: TerminalDisplay) -> None:
        """Draw in a thread until the tasks are over, after a delay."""
        delay = self._delay
        # The terminal may close while the tasks continue.
        with suppress(OSError):
            while not self._over.wait(delay):
                self.shown = True
                display.draw()
                delay = _UPDATE_INTERVAL

    def __enter__(self) -> Self:
        if is_displayed():
            # rich takes a tenth of the time of `import dask_tfrecord.rows.read`, and few processes draw.
            from dask_tfrecord.rows.progress_display import NotebookDisplay, TerminalDisplay

            display = NotebookDisplay if _in_notebook() else TerminalDisplay
            self._display = display(self._label, self._total, self._before, self._line)
            # Notebooks find the cell of a thread by its context.
            run = copy_context().run
            self._thread = threading.Thread(target=run, args=(self._draw, self._display), daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        text = "" if error else self._final_text
        if self._display is not None and (self.shown or text):
            with suppress(OSError):
                self._display.end(text)


TaskDone = Callable[[int, Any], None]
TaskPart = Callable[[int, float], object]

# Callbacks of each task name that is followed, and the number of names per client. Both change under the lock; tasks
# iterate over callbacks without it.
_followers: dict[str, tuple[TaskDone, TaskPart]] = {}
_listening: Counter[str] = Counter()
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):
    # A forked worker does not draw a bar, and has locks that the display may have held.
    os.register_at_fork(after_in_child=_followers.clear)


@contextmanager
def follow_tasks(name: str, done: TaskDone, part: TaskPart = lambda number, gain: None) -> Iterator[None]:
    """Call functions when a task ``(name, number)`` ends, once per task, and while it runs, on the active scheduler.

    `done` takes the number of a task and its result, on a cluster the argument of `report_progress`; it may be called
    from another thread. `part` takes the share of a task that was done since the last call, by `report_part` and at the
    end.
    """
    # Done of each task, which runs again if its worker is lost.
    shares: dict[int, float] = {}

    def advance(number: int, share: float) -> bool:
        with _lock:
            gain = share - shares.get(number, 0.0)
            shares[number] = max(share, shares.get(number, 0.0))
        if gain > 0:
            part(number, gain)
        return gain > 0

    def once(number: int, report: Any) -> None:
        if advance(number, 1.0):
            done(number, report)

    client = active_client()

    def ended(key: Any, result: Any, dsk: Any, state: Any, worker: Any) -> None:
        if isinstance(key, tuple) and key[0] == name:
            once(key[1], result)

    # Local schedulers use the callback.
    followed: AbstractContextManager[Any] = Callback(posttask=ended) if client is None else _cluster_events(client)
    with _lock:
        _followers[name] = once, advance
    try:
        with followed:
            yield
    finally:
        with _lock:
            del _followers[name]


@contextmanager
def _cluster_events(client: Any) -> Iterator[None]:
    """Subscribe to the events of a cluster."""
    with _lock:
        _listening[client.id] += 1
        if _listening[client.id] == 1:
            client.subscribe_topic(TOPIC, _on_event)
    try:
        yield
    finally:
        with _lock:
            _listening[client.id] -= 1
            if not _listening[client.id]:
                del _listening[client.id]
                # The cluster may have failed.
                with suppress(Exception):
                    client.unsubscribe_topic(TOPIC)


def _on_event(event: tuple[float, dict[str, Any]]) -> None:
    """Pass on the reports of tasks on a cluster to the caller."""
    report = event[1]
    followers = _followers.get(report["task"])
    if followers is None:
        return
    done, part = followers
    if "share" in report:
        part(report["number"], report["share"])
    else:
        done(report["number"], pickle.loads(report["report"]))


def report_progress(report: object = None) -> None:
    """Report the end of the running task to `follow_tasks`; no-op outside of a distributed worker."""
    worker = this_worker()
    try:
        key = None if worker is None else worker.get_current_task()
    except KeyError:  # not in a task
        return
    if isinstance(key, tuple) and len(key) == 2:
        worker.log_event(TOPIC, {"task": key[0], "number": key[1], "report": pickle.dumps(report)})


def report_part(name: str, number: int, share: float) -> None:
    """Report the share of a running task that is done, below 1, to `follow_tasks`; no-op without a follower."""
    worker = this_worker()
    if worker is not None:
        worker.log_event(TOPIC, {"task": name, "number": number, "share": share})
    elif (followers := _followers.get(name)) is not None:
        followers[1](number, share)


Result = TypeVar("Result")

# Cancelled conversions that a process remembers: a bound, so that a long-lived process does not collect them.
_MOST_CANCELLED = 1024


# Running writes of each conversion in this process, and the conversions that were cancelled last.
_writes_changed = threading.Condition()
_running: Counter[str] = Counter()
_cancelled: dict[str, None] = {}


@contextmanager
def while_running(identity: str) -> Iterator[bool]:
    """Count a write of a conversion while the context is open; yield False if the conversion was cancelled."""
    with _writes_changed:
        allowed = identity not in _cancelled
        _running[identity] += allowed
    try:
        yield allowed
    finally:
        with _writes_changed:
            _running[identity] -= allowed
            if not _running[identity]:
                del _running[identity]
            _writes_changed.notify_all()


def is_cancelled(identity: str) -> bool:
    """Return True if a conversion was cancelled in this process."""
    with _writes_changed:
        return identity in _cancelled


def write_uninterrupted(identity: str, path: str, write: Callable[[], object]) -> None:
    """Call a function that writes for a conversion, uninterrupted, unless the conversion was cancelled.

    An `OSError` without a path gets `path`.
    """
    with while_running(identity) as allowed:
        if allowed:
            with add_path_to_errors(path):
                run_uninterrupted(write)


def cancel(identity: str) -> None:
    """Refuse new writes of a conversion in this process and wait for the running ones."""
    with _writes_changed:
        _cancelled[identity] = None
        if len(_cancelled) > _MOST_CANCELLED:
            del _cancelled[next(iter(_cancelled))]
        _writes_changed.wait_for(lambda: identity not in _running)


def run_uninterrupted(step: Callable[[], Result]) -> Result:
    """Call a function that Ctrl-C cannot interrupt, in a thread without a running event loop."""
    # Python delivers KeyboardInterrupt to the main thread only.
    if threading.current_thread() is not threading.main_thread() and not _in_event_loop():
        return step()
    future: Future[Result] = Future()

    def run() -> None:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(step())
            except BaseException as error:
                future.set_exception(error)

    try:
        try:
            threading.Thread(target=run, name="dask_tfrecord-uninterrupted").start()
        except RuntimeError:
            # The system refuses another thread: the step is needed, interrupted or not.
            return step()
        return future.result()
    finally:
        # Ctrl-C may arrive while the thread starts: then the step does not begin, or has begun and is waited for.
        if not future.cancel():
            wait([future])


def _in_event_loop() -> bool:
    """Return whether this thread runs an event loop, which must not be blocked."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def cancel_on_failure(identity: str, clear: Callable[[], None]) -> Iterator[None]:
    """Cancel a conversion in all processes if the context fails, then call `clear` to remove what it wrote."""
    try:
        with explain_refused_memory():
            yield
    except BaseException:
        cancel(identity)
        client = active_client()
        # The first error is raised: the cluster or the store may be what failed.
        with suppress(Exception):
            if client is not None:
                client.run(cancel, identity)
        with suppress(Exception):
            clear()
        raise


def remove_empty_directories(made: Sequence[Path]) -> None:
    """Remove directories that were made for a group, innermost first, as long as they are empty.

    The first directory holds the group. Its parents may hold a ``zarr.json``, which is removed with them.
    """
    with suppress(OSError):
        for directory in made:
            names = {path.name for path in directory.iterdir()}
            if names and (directory == made[0] or names != {"zarr.json"}):
                return
            for name in names:
                (directory / name).unlink()
            # Fails if another process wrote to the directory meanwhile.
            directory.rmdir()
