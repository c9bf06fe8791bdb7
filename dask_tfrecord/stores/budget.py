"""How much memory a conversion takes on each worker, and how much a worker has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import dask
from dask.base import get_scheduler
from dask.system import CPU_COUNT
from dask.utils import format_bytes, parse_bytes

__all__ = ["MemoryBudget", "Workers"]

# Measured: what reading, codecs and allocators take whatever the size of units is, and what is there after the imports.
_OVERHEAD_NBYTES = 100 << 20
_IMPORTS_NBYTES = 200 << 20
# Measured as well: what dask keeps of a task; some 5,000 tasks have room in what is taken anyhow.
_TASK_NBYTES = 8 << 10
_FEW_TASKS_NBYTES = 40 << 20
# How often a unit is in memory while it is written: decoded, encoded, and on its way; a shard is put together, too.
_COPIES, _SHARDED_COPIES = 3, 4


@dataclass(frozen=True, slots=True)
class Workers:
    """Who computes.

    Attributes
    ----------
    threads : int
        Tasks at once in one process: the most of all workers.
    memory_limit : int or None
        Bytes that a worker may take: the least of all workers. None where nobody limits it.
    schedules : bool
        Whether the worker's process holds all tasks of a computation, too: it does on threads.
    """

    threads: int
    memory_limit: int | None
    schedules: bool = True

    @classmethod
    def active(cls) -> Workers:
        """Ask the active scheduler."""
        scheduler: Any = get_scheduler()
        client: Any = getattr(scheduler, "__self__", None)
        if hasattr(client, "scheduler_info"):
            return cls._of_cluster(client.scheduler_info(n_workers=-1)["workers"].values())
        if getattr(scheduler, "__module__", "").endswith("multiprocessing"):
            return cls(1, None, schedules=False)
        if getattr(scheduler, "__name__", "") == "get_sync":
            return cls(1, None)
        pool = dask.config.get("pool", None)
        threads = getattr(pool, "_max_workers", None) or dask.config.get("num_workers", None) or CPU_COUNT
        return cls(int(threads), None)

    @classmethod
    def _of_cluster(cls, workers: Iterable[Mapping[str, Any]]) -> Workers:
        found = [(int(worker["nthreads"]), int(worker.get("memory_limit") or 0)) for worker in workers]
        limits = [limit for _, limit in found if limit]
        return cls(max((threads for threads, _ in found), default=1), min(limits, default=None), schedules=False)

    def limited(self, memory_limit: int | str | None) -> Workers:
        """Take the user's limit; ``"auto"`` is the workers' own."""
        if memory_limit == "auto":
            return self
        nbytes = None if memory_limit is None else int(parse_bytes(memory_limit))
        if nbytes is not None and nbytes < 1:
            raise ValueError(f"memory_limit is a number of bytes, such as '2 GiB'; got {memory_limit!r}")
        return replace(self, memory_limit=nbytes)


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Peak memory of a worker, and its arithmetic.

    Attributes
    ----------
    threads : int
        Tasks at once.
    copies : int
        How often a write unit is in memory while it is written: 3, or 4 where it is of shards.
    unit : str
        The unit that takes most: ``"rows"``, or the name of a flat array.
    unit_nbytes : int
        Its decoded bytes.
    beside_nbytes : int
        Decoded bytes of the units of other arrays that the same task has begun beside it.
    read_nbytes : int
        Decoded bytes of the rows that a task has in hand.
    overhead_nbytes : int
        What reading, codecs and the allocator take besides, whatever the size of units is; and tasks, where they are
        many and in the same process.
    imports_nbytes : int
        What a worker takes before the conversion begins.
    """

    threads: int
    copies: int
    unit: str
    unit_nbytes: int
    beside_nbytes: int
    read_nbytes: int
    overhead_nbytes: int = _OVERHEAD_NBYTES
    imports_nbytes: int = _IMPORTS_NBYTES

    @property
    def added_nbytes(self) -> int:
        """Bytes that the conversion adds to what a worker takes before it."""
        task = self.copies * self.unit_nbytes + self.beside_nbytes + self.read_nbytes
        return self.overhead_nbytes + self.threads * task

    @property
    def peak_nbytes(self) -> int:
        """Bytes that a worker takes at its peak."""
        return self.imports_nbytes + self.added_nbytes

    @classmethod
    def of(
        cls, workers: Workers, tasks: int, units: Mapping[str, tuple[int, bool]], read_nbytes: int, *, together: bool
    ) -> MemoryBudget:
        """Find the unit that takes most.

        Parameters
        ----------
        workers : Workers
            Who computes.
        tasks : int
            How many there are.
        units : mapping of str to (int, bool)
            Decoded bytes of each kind of unit, and whether it is of shards.
        read_nbytes : int
            Decoded bytes of the rows that a task has in hand.
        together : bool
            Whether a task has a unit of each kind begun at once, or one alone.
        """
        costs = {name: nbytes * (_SHARDED_COPIES if sharded else _COPIES) for name, (nbytes, sharded) in units.items()}
        unit = max(costs, key=costs.__getitem__)
        nbytes, sharded = units[unit]
        many = max(0, tasks * _TASK_NBYTES - _FEW_TASKS_NBYTES) if workers.schedules else 0
        copies = _SHARDED_COPIES if sharded else _COPIES
        beside = sum(of for of, _ in units.values()) - nbytes if together else 0
        return cls(workers.threads, copies, unit, nbytes, beside, read_nbytes, _OVERHEAD_NBYTES + many)

    def arithmetic(self) -> str:
        """Write the sum out."""
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        beside = f"{format_bytes(self.beside_nbytes)} other units + " if self.beside_nbytes else ""
        return (
            f"{format_bytes(self.imports_nbytes)} imports + {format_bytes(self.overhead_nbytes)} reading and codecs + "
            f"{threads} * ({self.copies} * {format_bytes(self.unit_nbytes)} unit of {self.unit} + {beside}"
            f"{format_bytes(self.read_nbytes)} rows in hand) = {format_bytes(self.peak_nbytes)}"
        )

    def excess(self, memory_limit: int | None) -> str | None:
        """Say what to change if a worker may not take that much; None if it may."""
        if memory_limit is None or self.peak_nbytes <= memory_limit:
            return None
        task = self.beside_nbytes + self.read_nbytes
        room = memory_limit - self.imports_nbytes - self.overhead_nbytes - self.threads * task
        fits = room // (self.threads * self.copies)
        said = f"a worker would take {format_bytes(self.peak_nbytes)} of its {format_bytes(memory_limit)}: "
        said += f"{self.arithmetic()}. "
        if fits < 1:
            return said + "No unit is small enough: give workers more memory or fewer threads"
        return said + (
            f"Units of {self.unit} may take {format_bytes(fits)}: make chunks or shards smaller by "
            f"{self.unit_nbytes / fits:.1f} times (chunks=, shards=, target_chunk_bytes=, target_shard_bytes=), "
            f"or give workers more memory or fewer threads"
        )
