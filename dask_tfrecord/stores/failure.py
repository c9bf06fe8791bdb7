"""What becomes of a conversion that fails: nobody writes any more, nothing is left, and the error says where.

Writes under way are counted by conversion, because a computation that fails does not wait for its tasks.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from dask.base import get_scheduler

__all__ = ["call_off", "called_off_on_failure", "named", "remove_directory", "under_way", "uninterrupted"]

Result = TypeVar("Result")


class _UnderWay:
    """How many writes of each conversion are under way in this process, and which conversions were called off."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.writes: Counter[str] = Counter()
        self.off: set[str] = set()


_WRITES = _UnderWay()


@contextmanager
def under_way(identity: str) -> Iterator[bool]:
    """Count as a write of a conversion; false if that was called off."""
    with _WRITES.changed:
        on = identity not in _WRITES.off
        _WRITES.writes[identity] += on
    try:
        yield on
    finally:
        with _WRITES.changed:
            _WRITES.writes[identity] -= on
            if not _WRITES.writes[identity]:
                del _WRITES.writes[identity]
            _WRITES.changed.notify_all()


def call_off(identity: str) -> None:
    """Let no more writes of a conversion begin in this process, and wait for those under way."""
    with _WRITES.changed:
        _WRITES.off.add(identity)
        _WRITES.changed.wait_for(lambda: identity not in _WRITES.writes)


def uninterrupted(step: Callable[[], Result]) -> Result:
    """Do something whole, although Ctrl-C may be pressed, and where no event loop runs that could not run another."""
    if threading.current_thread() is not threading.main_thread() and not _in_event_loop():
        return step()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(step).result()


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def named(place: str) -> Iterator[None]:
    """Let errors of the system say where: a full disk has no name of its own."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = place
        raise


@contextmanager
def called_off_on_failure(identity: str, clear: Callable[[], None]) -> Iterator[None]:
    """Call a conversion off that fails within this, and clear up what it leaves."""
    try:
        yield
    except BaseException:
        call_off(identity)
        client: Any = getattr(get_scheduler(), "__self__", None)
        # The first error is what counts: the cluster, or the store, may be what has failed.
        with suppress(Exception):
            if hasattr(client, "run"):
                client.run(call_off, identity)
        with suppress(Exception):
            clear()
        raise


def remove_directory(directory: Path, metadata: str, made: Sequence[Path]) -> None:
    """Remove a group's directory, its metadata last, and the directories that were made to hold it."""
    for path in sorted(directory.iterdir(), key=lambda path: path.name == metadata):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    directory.rmdir()
    for parent in made:
        # Groups have metadata of their own.
        if {path.name for path in parent.iterdir()} <= {metadata}:
            shutil.rmtree(parent)
