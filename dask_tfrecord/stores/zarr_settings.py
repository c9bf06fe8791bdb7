"""How tasks let zarr write: frugally, by settings of zarr's own that last as long as somebody writes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import zarr

__all__ = ["frugal"]


class _Frugal:
    """How many tasks of this process want zarr to be frugal, and what its settings were before the first of them."""

    SETTINGS: ClassVar[dict[str, Any]] = {
        "async.concurrency": 1,
        "codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    }

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.tasks = 0
        self.before: dict[str, Any] = {}

    def enter(self) -> None:
        with self.lock:
            if not self.tasks:
                self.before = {name: zarr.config.get(name) for name in self.SETTINGS}
                zarr.config.set(self.SETTINGS)
            self.tasks += 1

    def leave(self) -> None:
        with self.lock:
            self.tasks -= 1
            if not self.tasks:
                # Who has set one in the meantime wants it so.
                ours = (name for name, value in self.SETTINGS.items() if zarr.config.get(name) == value)
                zarr.config.set({name: self.before[name] for name in ours})


_FRUGAL = _Frugal()


@contextmanager
def frugal() -> Iterator[None]:
    """Let zarr encode and write one chunk after the other in each task, by itself, while this lasts.

    Of ten at once, which it takes otherwise, as many encoded chunks are in memory beside each other. Another pipeline
    of codecs may leave chunks of the fill value out, whatever it is told, and negative zeros with them. The settings
    are those of the process: the first task to enter changes them, the last one to leave puts them back.
    """
    _FRUGAL.enter()
    try:
        yield
    finally:
        _FRUGAL.leave()
