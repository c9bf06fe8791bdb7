"""Memory: what workers have, what a block may take, and what a conversion takes."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import dask
from dask.base import get_scheduler
from dask.system import CPU_COUNT
from dask.utils import format_bytes

from dask_tfrecord.blocks import MemoryLimit, release_memory
from dask_tfrecord.errors import plural
from dask_tfrecord.rows.dask_private import active_client, pool_threads, worker_memory
from dask_tfrecord.settings import full_name, parse_size, read_nbytes, read_setting

_SETTING = "decode.memory-limit"
# Share of a worker's memory that one column of a block may take.
_SHARE = 0.5
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
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
            raise ValueError(f"memory_limit must be a number of bytes, such as '2 GiB'; got {memory_limit!r}")
        return replace(self, memory_limit=nbytes)


def block_limit(most: int | None = None) -> MemoryLimit | None:
    """Return the bytes that a column of a block may take, at most those the caller allows; None without limit."""
    given = read_setting(_SETTING)
    if given == "auto":
        memory = worker_memory() or _machine_memory()
        nbytes = None if memory is None else int(memory * _SHARE)
    elif given is None:
        nbytes = None
    else:
        nbytes = read_nbytes(_SETTING, ", 'auto' or None")
    known = [each for each in (nbytes, most) if each is not None]
    return MemoryLimit(min(known), full_name(_SETTING)) if known else None


@cache
def _machine_memory() -> int | None:
    """Return the memory of the machine, or of its control group if lower."""
    sizes = []
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in _CGROUPS:
        try:
            text = Path(path).read_text("ascii").strip()
        except (OSError, ValueError):
            continue
        if text.isdecimal():
            sizes.append(int(text))
    return min(sizes, default=None)


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
        Memory of reading, codecs and the allocator, and of many tasks where the process holds them.
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
    def peak_nbytes(self) -> int:
        """Peak memory of a worker in bytes."""
        task = self.copies * self.unit_nbytes + self.other_units_nbytes + self.read_nbytes
        return self.imports_nbytes + self.overhead_nbytes + self.threads * task

    @classmethod
    def from_units(
        cls, workers: Workers, tasks: int, units: Mapping[str, tuple[int, bool]], read_nbytes: int, *, together: bool
    ) -> MemoryBudget:
        """Estimate how much memory some tasks take, from the sizes of write units.

        `units` holds the decoded bytes of each kind of unit, and whether it is a Zarr shard. A task has read rows of
        `read_nbytes` that are not yet written. It fills a unit of each kind `together`, or a single unit.
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
        message = f"a worker would need {format_bytes(self.peak_nbytes)}, and has {format_bytes(memory_limit)}. "
        fewer = ", or use fewer threads" if self.threads > 1 else ""
        more = f"Raise the memory limit to {-(-self.peak_nbytes >> 20)} MiB{fewer}"
        if fits < 1:
            return f"{message}Smaller chunks do not help. {more}"
        return message + (
            f"Units of {self.unit} may take {format_bytes(fits)}: make chunks or shards smaller by "
            f"{self.unit_nbytes / fits:.1f} times (chunks=, shards=). {more}"
        )


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
