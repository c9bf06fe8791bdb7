"""Workers that run tasks: their threads, and the memory that they keep."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import dask
from dask.base import get_scheduler
from dask.system import CPU_COUNT

from dask_tfrecord.blocks import release_memory
from dask_tfrecord.rows.dask_private import active_client, pool_threads
from dask_tfrecord.settings import parse_size


@dataclass(frozen=True, slots=True)
class Workers:
    """Resources of the workers."""

    threads: int  # concurrent tasks of one process; the maximum over all workers
    memory_limit: int | None  # bytes; the minimum over all workers
    schedules: bool = True  # the process of the worker also holds all tasks, as the threaded scheduler does

    @classmethod
    def active(cls) -> Workers:
        """Inspect the active scheduler."""
        client = active_client()
        if client is not None:
            workers = client.scheduler_info(n_workers=-1)["workers"].values()
            limits = [int(worker["memory_limit"]) for worker in workers if worker.get("memory_limit")]
            threads = max((int(worker["nthreads"]) for worker in workers), default=1)
            return cls(threads, min(limits, default=None), schedules=False)
        if getattr(get_scheduler(), "__module__", "").endswith("multiprocessing"):
            return cls(1, None, schedules=False)
        return cls.of_this_process()

    @classmethod
    def of_this_process(cls) -> Workers:
        """Inspect the local threads of dask; one with the synchronous scheduler."""
        if getattr(get_scheduler(), "__name__", "") == "get_sync":
            return cls(1, None)
        threads = pool_threads() or dask.config.get("num_workers", None) or CPU_COUNT
        return cls(int(threads), None)

    def with_memory_limit(self, memory_limit: int | str | None) -> Workers:
        """Replace the memory limit by the user's; ``"auto"`` keeps the limit of the workers."""
        if memory_limit == "auto":
            return self
        nbytes = None if memory_limit is None else int(parse_size(memory_limit) or 0)
        if nbytes is not None and nbytes < 1:
            raise ValueError(f"memory_limit is a number of bytes, such as '2 GiB'; got {memory_limit!r}")
        return replace(self, memory_limit=nbytes)


# Freed bytes that a process may keep: part of the overhead above. Then those since memory was last returned.
KEPT_NBYTES = 128 << 20
_freed_nbytes = 0
_freed_lock = threading.Lock()


def release_freed(nbytes: int) -> None:
    """Count bytes that a task freed; return memory to the system once they reach `KEPT_NBYTES`."""
    global _freed_nbytes
    with _freed_lock:
        _freed_nbytes += nbytes
        due = _freed_nbytes >= KEPT_NBYTES
        if due:
            _freed_nbytes = 0
    if due:
        release_memory()
