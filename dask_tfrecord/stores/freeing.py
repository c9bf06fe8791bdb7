"""When freed memory is given back to the system: after so many bytes, by all tasks of a process together.

Allocators keep what threads have freed, each thread its own. To give it back after every write unit costs a quarter of
a conversion's time, for the next unit has the same pages to ask for.
"""

from __future__ import annotations

import threading

from dask_tfrecord.columns.blocks import release_memory

__all__ = ["freed"]

# What may be kept: a part of what a conversion takes whatever the size of units is.
KEPT_NBYTES = 128 << 20


class _Kept:
    """How many bytes tasks of this process have been done with since freed memory was given back."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.nbytes = 0

    def add(self, nbytes: int) -> bool:
        """Count bytes; whether it is time."""
        with self.lock:
            self.nbytes += nbytes
            due = self.nbytes >= KEPT_NBYTES
            self.nbytes *= not due
        return due


_KEPT = _Kept()


def freed(nbytes: int) -> None:
    """Take note that a task is done with so many bytes; give freed memory back if they have become many."""
    if _KEPT.add(nbytes):
        release_memory()
