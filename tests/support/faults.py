"""Faults of the file system: a call that fails, or the end of the process, as far as other processes see it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from fsspec.implementations.memory import MemoryFileSystem

# Audit events of calls that read or change files of a directory, whichever function is called.
EVENTS = {"open", "os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}
REMOTE = ("_open", "rm_file", "cat_file", "cp_file", "pipe_file", "put_file")


class FaultError(OSError):
    """Fault of the file system."""


class Killed(BaseException):
    """End of the process."""


class Faults:
    """Counter of the calls of the file system; call number `at` fails, or it and all after it."""

    def __init__(self, at: int, kind: type[BaseException], counts: Callable[[Any], bool]) -> None:
        self.at, self.kind, self.counts = at, kind, counts
        self.calls, self._lock = 0, threading.Lock()

    def call(self, path: Any) -> None:
        if not self.counts(path):
            return
        with self._lock:
            self.calls += 1
            fails = self.calls == self.at or (self.calls > self.at and self.kind is Killed)
        if fails:
            # Not transient, so that it is not tried again.
            raise FaultError(28, "no space", str(path)) if self.kind is FaultError else Killed

    @contextmanager
    def injected(self) -> Iterator[Faults]:
        _injected.append(self)
        try:
            with ExitStack() as stack:
                for name in REMOTE:
                    stack.enter_context(mock.patch.object(MemoryFileSystem, name, self._failing(name)))
                yield self
        finally:
            _injected.remove(self)

    def _failing(self, name: str) -> Callable[..., Any]:
        real = getattr(MemoryFileSystem, name)

        def call(fs: Any, *args: Any, **options: Any) -> Any:
            self.call(args[0])
            return real(fs, *args, **options)

        return call


_injected: list[Faults] = []


def _fail(event: str, arguments: tuple[Any, ...]) -> None:
    if _injected and event in EVENTS and isinstance(arguments[0], str | Path):
        _injected[-1].call(arguments[0])


# A hook can't be removed.
sys.addaudithook(_fail)
