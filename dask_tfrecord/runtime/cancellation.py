"""Cancellation of failed writes: no task keeps writing, no file is left behind, and the error names the path.

A failed dask computation does not wait for its running tasks. Each process therefore counts its running writes per
conversion.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from dask_tfrecord.errors import redact_url
from dask_tfrecord.runtime.dask_private import active_client

Result = TypeVar("Result")

# Cancelled conversions that a process remembers: a bound, so that a long-lived process does not collect them.
_MOST_CANCELLED = 1024


class _RunningWrites:
    """Running writes of each conversion in this process, and the conversions that were cancelled last."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.count: Counter[str] = Counter()
        self.cancelled: dict[str, None] = {}


_WRITES = _RunningWrites()


@contextmanager
def while_running(identity: str) -> Iterator[bool]:
    """Count a write of a conversion while the context is open; yield False if the conversion was cancelled."""
    with _WRITES.changed:
        allowed = identity not in _WRITES.cancelled
        _WRITES.count[identity] += allowed
    try:
        yield allowed
    finally:
        with _WRITES.changed:
            _WRITES.count[identity] -= allowed
            if not _WRITES.count[identity]:
                del _WRITES.count[identity]
            _WRITES.changed.notify_all()


def is_cancelled(identity: str) -> bool:
    """Return True if a conversion was cancelled in this process."""
    with _WRITES.changed:
        return identity in _WRITES.cancelled


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
    with _WRITES.changed:
        _WRITES.cancelled[identity] = None
        if len(_WRITES.cancelled) > _MOST_CANCELLED:
            del _WRITES.cancelled[next(iter(_WRITES.cancelled))]
        _WRITES.changed.wait_for(lambda: identity not in _WRITES.count)


def run_uninterrupted(step: Callable[[], Result]) -> Result:
    """Call a function that Ctrl-C cannot interrupt, in a thread without a running event loop."""
    # Python delivers KeyboardInterrupt to the main thread only.
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
def add_path_to_errors(path: str) -> Iterator[None]:
    """Add a path to an `OSError` that has none, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = redact_url(path)
        raise


@contextmanager
def cancel_on_failure(identity: str, clear: Callable[[], None]) -> Iterator[None]:
    """Cancel a conversion in all processes if the context fails, then call `clear` to remove what it wrote."""
    try:
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

    The first directory is that of the group. Its parents may hold a ``zarr.json``, which is removed with them.
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
