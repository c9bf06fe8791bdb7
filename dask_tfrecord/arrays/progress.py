"""How far tasks are: told by whatever scheduler runs them, and shown as a bar to who looks at a terminal or a notebook.

Local schedulers call back. On a cluster the tasks tell it themselves, by events that its scheduler hands on.
"""

from __future__ import annotations

import importlib
import io
import multiprocessing
import pickle
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from types import TracebackType
from typing import Any, Self

import dask
from dask.base import get_scheduler
from dask.callbacks import Callback
from rich.console import Console, ConsoleRenderable, RichCast
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

__all__ = ["PATIENCE", "TOPIC", "Bar", "at_once", "followed", "is_seen", "tell"]

# Seconds after which somebody may wonder.
PATIENCE = 2.0
# Seconds between two pictures.
_EVERY = 0.1
# Of the events of all that is followed on a cluster: a scheduler never forgets a topic.
TOPIC = "dask-tfrecord"
_NOTEBOOK_WIDTH = 100

_patience: ContextVar[float] = ContextVar("patience", default=PATIENCE)


def is_seen() -> bool:
    """Whether somebody looks at this process, and ``dask-tfrecord.progress`` is not off."""
    # Workers inherit the terminal of who started them.
    if multiprocessing.parent_process() is not None or not dask.config.get("dask-tfrecord.progress", True):
        return False
    return _in_notebook() or (sys.stderr is not None and sys.stderr.isatty())


def _in_notebook() -> bool:
    return Console(stderr=True).is_jupyter


@contextmanager
def at_once() -> Iterator[None]:
    """Let bars show from the beginning: who gave a command waits for nothing else."""
    token = _patience.set(0.0)
    try:
        yield
    finally:
        _patience.reset(token)


class Bar:
    """A bar that comes after `PATIENCE`, and goes at the end; whoever does not look gets none.

    Parameters
    ----------
    what : str
        What is done.
    total : float
        Where it ends.
    before : float, default 0
        How far it was when it began, which says nothing about how fast it is.
    line : callable, optional
        Tells what is to be said below the bar.
    """

    def __init__(self, what: str, total: float, *, before: float = 0.0, line: Callable[[], str] | None = None) -> None:
        self.shown = False
        self._progress = _Lines(line)
        self._task = self._progress.add_task(Text(what).markup, total=max(total, 1e-9), completed=int(before))
        self._patience, self._last = _patience.get(), ""
        self._over = threading.Event()
        self._screen: _Terminal | _Notebook = _Notebook(self._progress) if _in_notebook() else _Terminal(self._progress)
        # Notebooks know by its context to which cell a thread belongs.
        self._thread = threading.Thread(target=copy_context().run, args=(self._draw,), daemon=True)

    def advance(self, step: float = 1.0) -> None:
        """Go on by so much."""
        self._progress.advance(self._task, step)

    def end_with(self, text: str) -> None:
        """Leave a line where the bar was, if it was seen."""
        self._last = text

    def _draw(self) -> None:
        wait = self._patience
        # A terminal may go while the work goes on.
        with suppress(OSError):
            while not self._over.wait(wait):
                self.shown = True
                self._screen.draw()
                wait = _EVERY

    def __enter__(self) -> Self:
        if is_seen():
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self.shown:
            with suppress(OSError):
                self._screen.end("" if error else self._last)


class _Lines(Progress):
    """The bar, and a line below it."""

    def __init__(self, line: Callable[[], str] | None) -> None:
        self._line = line
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
            # What is printed to a file stays there.
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
            expand=True,
        )

    def get_renderables(self) -> Iterable[ConsoleRenderable | RichCast | str]:
        """Give both."""
        yield from super().get_renderables()
        if self._line is not None:
            yield Text(self._line(), overflow="ellipsis", no_wrap=True)


class _Terminal:
    """Shows a bar on stderr."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def draw(self) -> None:
        """Show it as it is now."""
        self._progress.start()
        self._progress.refresh()

    def end(self, text: str) -> None:
        """Take it away."""
        self._progress.stop()
        if text:
            self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


class _Notebook:
    """Shows a bar below a cell: rich itself would need ipywidgets."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._handle: Any = None

    def draw(self) -> None:
        """Show it as it is now."""
        self._show(self._progress.get_renderable())

    def end(self, text: str) -> None:
        """Take it away."""
        self._show(Text(text))

    def _show(self, what: Any) -> None:
        console = Console(
            file=io.StringIO(), record=True, width=_NOTEBOOK_WIDTH, force_terminal=True, force_jupyter=False
        )
        console.print(what, soft_wrap=isinstance(what, Text))
        data = {
            "text/plain": console.export_text(clear=False).rstrip(),
            "text/html": console.export_html(inline_styles=True, code_format='<pre style="margin:0">{code}</pre>'),
        }
        if self._handle is None:
            self._handle = importlib.import_module("IPython.display").display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


Done = Callable[[int, Any], None]

# Who follows which tasks, and for how many each client listens.
_followers: dict[str, Done] = {}
_listening: Counter[str] = Counter()
_changing = threading.Lock()


@contextmanager
def followed(name: str, done: Done) -> Iterator[None]:
    """Be told as the tasks of a name end, each once, on whatever scheduler is active.

    Parameters
    ----------
    name : str
        Keys of the tasks are ``(name, 0)``, ``(name, 1)`` and so on.
    done : callable
        Called with the number of a task, and what it returned or, on a cluster, what it gave to `tell`. It may be
        called in another thread.
    """
    seen: set[int] = set()

    def once(number: int, said: Any) -> None:
        # A worker may be lost with what it had done.
        if number not in seen:
            seen.add(number)
            done(number, said)

    client: Any = getattr(get_scheduler(), "__self__", None)
    with _heard(client, name, once) if hasattr(client, "subscribe_topic") else _Ended(name, once):
        yield


class _Ended(Callback):
    """Hears from local schedulers."""

    def __init__(self, name: str, done: Done) -> None:
        self._name, self._done = name, done

    def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker: Any) -> None:
        if isinstance(key, tuple) and key[0] == self._name:
            self._done(key[1], result)


@contextmanager
def _heard(client: Any, name: str, done: Done) -> Iterator[None]:
    """Hear from the scheduler of a cluster."""
    with _changing:
        _followers[name] = done
        _listening[client.id] += 1
        if _listening[client.id] == 1:
            client.subscribe_topic(TOPIC, _hear)
    try:
        yield
    finally:
        with _changing:
            del _followers[name]
            _listening[client.id] -= 1
            if not _listening[client.id]:
                del _listening[client.id]
                # The cluster may be what has failed.
                with suppress(Exception):
                    client.unsubscribe_topic(TOPIC)


def _hear(event: tuple[float, dict[str, Any]]) -> None:
    said = event[1]
    done = _followers.get(said["task"])
    if done is not None:
        done(said["number"], pickle.loads(said["said"]))


def tell(said: object = None) -> None:
    """Tell who follows this task that it has done its work, where that is on a worker of a cluster."""
    distributed: Any = sys.modules.get("distributed")
    if distributed is None:
        return
    try:
        worker = distributed.get_worker()
        key = worker.get_current_task()
    except (ValueError, KeyError):  # this is no worker, or none of its tasks
        return
    if isinstance(key, tuple) and len(key) == 2:
        worker.log_event(TOPIC, {"task": key[0], "number": key[1], "said": pickle.dumps(said)})
