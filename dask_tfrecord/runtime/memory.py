"""Memory of workers: its limit, the estimated peak of a conversion, and release of freed memory."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import dask
from dask.base import get_scheduler
from dask.system import CPU_COUNT
from dask.utils import format_bytes, parse_bytes

from dask_tfrecord.columns.blocks import release_memory
from dask_tfrecord.errors import plural
from dask_tfrecord.runtime.dask_private import active_client, pool_threads

# Measured: memory of reading, codecs and allocators, which does not depend on unit sizes; memory after the imports.
_OVERHEAD_NBYTES = 100 << 20
_IMPORTS_NBYTES = 200 << 20
# Measured: memory of a task in dask. The overhead above covers about 5,000 tasks.
_TASK_NBYTES = 8 << 10
_FEW_TASKS_NBYTES = 40 << 20
# Copies of a unit in memory while it is written: decoded, encoded, in transfer; a Zarr shard is assembled as well.
_COPIES, _SHARDED_COPIES = 3, 4


@dataclass(frozen=True, slots=True)
class Workers:
    """Resources of the workers.

    Attributes
    ----------
    threads : int
        Concurrent tasks of one process; the maximum over all workers.
    memory_limit : int or None
        Bytes that a worker may use; the minimum over all workers. None without a limit.
    schedules : bool
        Whether the process of the worker also holds all tasks of a computation, as the threaded scheduler does.
    """

    threads: int
    memory_limit: int | None
    schedules: bool = True

    @classmethod
    def active(cls) -> Workers:
        """Inspect the active scheduler."""
        scheduler: Any = get_scheduler()
        client = active_client()
        if client is not None:
            return cls._from_cluster(client.scheduler_info(n_workers=-1)["workers"].values())
        if getattr(scheduler, "__module__", "").endswith("multiprocessing"):
            return cls(1, None, schedules=False)
        return cls.of_this_process()

    @classmethod
    def of_this_process(cls) -> Workers:
        """Inspect the local threads of dask; one with the synchronous scheduler."""
        if getattr(get_scheduler(), "__name__", "") == "get_sync":
            return cls(1, None)
        threads = pool_threads() or dask.config.get("num_workers", None) or CPU_COUNT
        return cls(int(threads), None)

    @classmethod
    def _from_cluster(cls, workers: Iterable[Mapping[str, Any]]) -> Workers:
        found = [(int(worker["nthreads"]), int(worker.get("memory_limit") or 0)) for worker in workers]
        limits = [limit for _, limit in found if limit]
        return cls(max((threads for threads, _ in found), default=1), min(limits, default=None), schedules=False)

    def with_memory_limit(self, memory_limit: int | str | None) -> Workers:
        """Replace the memory limit by that of the user; ``"auto"`` keeps the limit of the workers."""
        if memory_limit == "auto":
            return self
        nbytes = None if memory_limit is None else int(parse_bytes(memory_limit))
        if nbytes is not None and nbytes < 1:
            raise ValueError(f"memory_limit is a number of bytes, such as '2 GiB'; got {memory_limit!r}")
        return replace(self, memory_limit=nbytes)


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Estimated peak memory of a worker, term by term.

    Attributes
    ----------
    threads : int
        Concurrent tasks.
    copies : int
        Copies of a write unit in memory while it is written: 3, or 4 for units of Zarr shards.
    unit : str
        Kind of the largest unit: ``"rows"`` or the name of a flat array.
    unit_nbytes : int
        Decoded bytes of that unit.
    other_units_nbytes : int
        Decoded bytes of the units of other arrays that the same task fills at the same time.
    read_nbytes : int
        Decoded bytes of the rows that a task has read and not yet written.
    overhead_nbytes : int
        Memory of reading, codecs and the allocator; plus that of many tasks where the process holds them.
    imports_nbytes : int
        Memory of a worker before the conversion begins.
    """

    threads: int
    copies: int
    unit: str
    unit_nbytes: int
    other_units_nbytes: int
    read_nbytes: int
    overhead_nbytes: int = _OVERHEAD_NBYTES
    imports_nbytes: int = _IMPORTS_NBYTES

    @property
    def added_nbytes(self) -> int:
        """Bytes that the conversion adds to the memory of a worker."""
        task = self.copies * self.unit_nbytes + self.other_units_nbytes + self.read_nbytes
        return self.overhead_nbytes + self.threads * task

    @property
    def peak_nbytes(self) -> int:
        """Peak memory of a worker in bytes."""
        return self.imports_nbytes + self.added_nbytes

    @classmethod
    def from_units(
        cls, workers: Workers, tasks: int, units: Mapping[str, tuple[int, bool]], read_nbytes: int, *, together: bool
    ) -> MemoryBudget:
        """Estimate the memory from the sizes of the write units.

        Parameters
        ----------
        workers : Workers
            Resources of the workers.
        tasks : int
            Number of tasks.
        units : mapping of str to (int, bool)
            Decoded bytes of each kind of unit, and whether it is a Zarr shard.
        read_nbytes : int
            Decoded bytes of the rows that a task has read and not yet written.
        together : bool
            Whether a task fills a unit of each kind at the same time, or a single unit.
        """
        costs = {name: nbytes * (_SHARDED_COPIES if sharded else _COPIES) for name, (nbytes, sharded) in units.items()}
        unit = max(costs, key=costs.__getitem__)
        nbytes, sharded = units[unit]
        task_nbytes = max(0, tasks * _TASK_NBYTES - _FEW_TASKS_NBYTES) if workers.schedules else 0
        copies = _SHARDED_COPIES if sharded else _COPIES
        others = sum(size for size, _ in units.values()) - nbytes if together else 0
        return cls(workers.threads, copies, unit, nbytes, others, read_nbytes, _OVERHEAD_NBYTES + task_nbytes)

    def arithmetic(self) -> str:
        """Return the estimate as a sum with all terms."""
        threads = plural(self.threads, "thread")
        others = f"{format_bytes(self.other_units_nbytes)} other units + " if self.other_units_nbytes else ""
        return (
            f"{format_bytes(self.imports_nbytes)} imports + {format_bytes(self.overhead_nbytes)} reading and codecs + "
            f"{threads} * ({self.copies} * {format_bytes(self.unit_nbytes)} unit of {self.unit} + {others}"
            f"{format_bytes(self.read_nbytes)} rows in hand) = {format_bytes(self.peak_nbytes)}"
        )

    def terms(self) -> list[tuple[str, int, int]]:
        """Return the terms of the estimate: what each is, how many times it is counted, and its bytes."""
        terms = [
            ("imports", 1, self.imports_nbytes),
            ("reading and codecs", 1, self.overhead_nbytes),
            (f"unit of {self.unit}", self.threads * self.copies, self.unit_nbytes),
            ("other units", self.threads, self.other_units_nbytes),
            ("rows in hand", self.threads, self.read_nbytes),
        ]
        return [term for term in terms if term[2]]

    def excess(self, memory_limit: int | None) -> str | None:
        """Return an error message that states what to change; None if the estimate is within the limit."""
        if memory_limit is None or self.peak_nbytes <= memory_limit:
            return None
        task = self.other_units_nbytes + self.read_nbytes
        available = memory_limit - self.imports_nbytes - self.overhead_nbytes - self.threads * task
        fits = available // (self.threads * self.copies)
        message = f"a worker would take {format_bytes(self.peak_nbytes)} of its {format_bytes(memory_limit)}: "
        message += f"{self.arithmetic()}. "
        if fits < 1:
            return message + "No unit is small enough: give workers more memory or fewer threads"
        return message + (
            f"Units of {self.unit} may take {format_bytes(fits)}: make chunks or shards smaller by "
            f"{self.unit_nbytes / fits:.1f} times (chunks=, shards=), "
            f"or give workers more memory or fewer threads"
        )


# Freed bytes that a process may keep: part of the overhead above.
KEPT_NBYTES = 128 << 20


class _FreedBytes:
    """Bytes that tasks of this process freed since memory was last returned to the system."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.nbytes = 0

    def add(self, nbytes: int) -> bool:
        """Count freed bytes; return whether it is time to release memory."""
        with self.lock:
            self.nbytes += nbytes
            due = self.nbytes >= KEPT_NBYTES
            self.nbytes *= not due
        return due


_KEPT = _FreedBytes()


def release_freed(nbytes: int) -> None:
    """Count bytes that a task freed; return memory to the system once they reach `KEPT_NBYTES`."""
    if _KEPT.add(nbytes):
        release_memory()
