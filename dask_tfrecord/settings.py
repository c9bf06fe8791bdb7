"""Settings in dask's configuration, and limits for the work in one task.

Settings stand below the prefix ``tfrecord`` in `dask.config`. Their defaults are in ``tfrecord.yaml`` next to this
module, and ``tfrecord-schema.yaml`` describes them. `register_defaults` adds them to `dask.config`, with a lower
priority than files, environment variables and `dask.config.set`.

Limits are sizes, counts and times that settings do not change. The values were measured with the benchmarks. They
change neither rows nor files, except the sizes of chunks and write units of a Zarr store. Modules read `limits()` when
they need a value, so `replaced_limits` makes small data take the paths of large data.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, reduce
from pathlib import Path
from typing import Any, TypeVar

PREFIX = "tfrecord"
DEFAULTS_FILE = Path(__file__).with_name("tfrecord.yaml")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one process."""

    # Seconds before the first retry of a request; each further wait doubles.
    first_retry_wait: float = 0.1
    # Most bytes of a text file: a schema, metadata of a data set, a sidecar.
    text_nbytes: int = 64 << 20
    # Decompressed bytes between two access points of a gzip file. A point takes 32 KiB, 0.4 % of the data; reaching an
    # offset takes about 10 ms.
    access_point_nbytes: int = 8 << 20
    # Bytes between two entries of an index.
    entry_nbytes: int = 1 << 20
    # Bytes of record offsets that a process keeps to read scattered rows, 8 for each record.
    offsets_nbytes: int = 64 << 20
    # Bytes between two records above which they are read on their own, in local files.
    gap_nbytes: int = 4 << 10
    # Bytes of a row that is not copied, and stored bytes of rows that are read in any order.
    large_row_nbytes: int = 64 << 10
    # Bytes that are read at once to walk headers: less than `entry_nbytes`, so that entries are at most slightly
    # further apart.
    index_window_nbytes: int = 512 << 10
    # Bytes over which headers follow each other to confirm a byte split.
    verified_nbytes: int = 4 << 20
    # Bytes that are searched for the first record of a byte split, by a task that decodes or counts: a file of another
    # format is not read completely before its error. Larger records are found by walking headers: from the end of the
    # split before when counting, which is fast, and from the beginning of the shard when decoding.
    search_decoding_nbytes: int = 64 << 20
    search_counting_nbytes: int = 16 << 20
    # Bytes that are decoded at once: the window stays in the cache of the processor.
    window_nbytes: int = 1 << 20
    # Bytes of the first window of a read, and of a window that skips records.
    first_window_nbytes: int = 16 << 10
    # Bytes of shards that one task counts, and in which one task locates values for virtual references.
    count_task_nbytes: int = 64 << 20
    scan_task_nbytes: int = 64 << 20
    # Seconds after which a progress bar appears.
    display_delay: float = 2.0
    # Rows that are read first, to learn the sizes of rows.
    probe_rows: int = 64
    # Stored bytes of one read of `compute` on threads: more of large data, which take fewer tasks then.
    compute_read_nbytes: int = 8 << 20
    most_compute_read_nbytes: int = 32 << 20
    # Reads of `compute` that each thread gets at least, if they are larger.
    reads_of_a_thread: int = 16
    # Decoded bytes of rows that a writer reads at once.
    read_nbytes: int = 8 << 20
    # Decoded bytes of rows between two counts of their items.
    item_count_interval_nbytes: int = 512 << 10
    # Decoded bytes of a write unit, and of a chunk without shards.
    write_unit_nbytes: int = 8 << 20
    # Write units of a small conversion, if each gets at least these bytes.
    wanted_units: int = 64
    least_unit_nbytes: int = 2 << 20
    # Decoded bytes of a chunk within a Zarr shard.
    chunk_nbytes: int = 1 << 20
    # Least bytes of a chunk of flat values.
    flat_chunk_nbytes: int = 128 << 10
    # Most bytes in a chunk of small rows that spans several units.
    small_rows_nbytes: int = 256 << 10
    # Most bytes of an array that a thread holds for a rechunk without a warning.
    small_rechunk_nbytes: int = 1 << 20
    # Least number of write tasks, if there are as many units of rows.
    min_write_tasks: int = 128
    # Up to this number, each dask chunk becomes a TFRecord shard.
    max_chunk_shards: int = 1_000
    # Decoded bytes of a TFRecord shard that several chunks share.
    shard_nbytes: int = 64 << 20
    # Seconds between two heartbeats of a claim, and after which the owner is dead for other machines.
    heartbeat: float = 20.0
    stale_owner: float = 120.0
    # Seconds after which a task asks again whether its run owns the output; runs that stop for minutes lose it.
    owner_check: float = 1.0
    # Tasks of a thread that a part of a job plans at once.
    tasks_per_thread: int = 32
    # Decoded bytes of a chunk of arrays without chunks, and of shards by default.
    input_chunk_nbytes: int = 64 << 20
    # Seconds between two checks: of a page for files that changed, and of tasks for a group that was replaced.
    look_again: float = 5.0
    # Seconds in which the scheduler of a cluster has to answer a command.
    scheduler_answer: float = 10.0


# Replaced as a whole: a thread reads all limits of one moment.
_limits = Limits()


def limits() -> Limits:
    """Return the limits of this process."""
    return _limits


@contextmanager
def replaced_limits(**values: Any) -> Iterator[Limits]:
    """Replace some limits of this process while the context is open, in all threads."""
    global _limits
    before = _limits
    _limits = replace(before, **values)
    try:
        yield _limits
    finally:
        _limits = before


@cache
def register_defaults() -> dict[str, Any]:
    """Add the defaults to `dask.config`, and return them."""
    # Limits are read where dask is not needed.
    import dask.config

    defaults: dict[str, Any] = next(iter(dask.config.collect_yaml([str(DEFAULTS_FILE)])))
    dask.config.update_defaults(defaults)
    return defaults


def full_name(name: str) -> str:
    """Return the name of a setting in `dask.config`: ``tfrecord.storage.timeout`` for ``storage.timeout``."""
    return f"{PREFIX}.{name}"


@cache
def default(name: str) -> Any:
    """Return the default of a setting."""
    return reduce(lambda section, key: section[key], full_name(name).split("."), register_defaults())


def read_setting(name: str) -> Any:
    """Return the value of a setting, for example ``"storage.timeout"``.

    `dask.config.set` removes the whole prefix when it ends, if it began before the defaults were registered. The
    defaults are therefore used here too.
    """
    import dask.config

    return dask.config.get(full_name(name), default(name))


def read_seconds(name: str) -> float:
    """Return a time in seconds."""
    from dask.utils import parse_timedelta

    return _read_positive(
        name, lambda value: float(parse_timedelta(value, default="s")), f"a time like {default(name)!r}"
    )


def read_nbytes(name: str, otherwise: str = "") -> int:
    """Return a number of bytes; `otherwise` names further values that the caller accepts, for the error."""
    from dask.utils import parse_bytes

    return _read_positive(name, lambda value: int(parse_bytes(value)), f"a number of bytes such as '8 MiB'{otherwise}")


def check_unit(option: str, size: str) -> None:
    """Refuse text that is a number without a unit, where numbers are rows."""
    if size.strip().isdecimal():
        rows = size.strip()
        raise ValueError(f"{option}={size!r} has no unit: write {option}={rows} for rows, or '{rows} MiB' for a size")


def parse_size(size: str | int) -> float | None:
    """Parse a size like "64 MiB" to bytes; return None if that fails."""
    from dask.utils import parse_bytes

    try:
        # dask parses "MiB" as 1 MiB.
        return float(parse_bytes(size)) if any(map(str.isdigit, str(size))) else None
    except ValueError:
        return None


def read_count(name: str) -> int:
    """Return a positive integer."""
    return _read_positive(name, operator.index, "a number, 1 or more")


_Number = TypeVar("_Number", int, float)


def _read_positive(name: str, parse: Callable[[Any], _Number], expected: str) -> _Number:
    """Read a setting that is a positive number; an error names the expected values."""
    value = read_setting(name)
    try:
        number = parse(value)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        number = 0
    if isinstance(value, bool) or not 0 < number < math.inf:
        raise ValueError(f"dask.config {full_name(name)!r} must be {expected}; got {value!r}")
    return number


if "dask.config" in sys.modules:
    register_defaults()


def this_worker() -> Any:
    """Return the distributed worker that runs this thread; None elsewhere, without an import of distributed."""
    distributed: Any = sys.modules.get("distributed.worker")
    try:
        return None if distributed is None else distributed.get_worker()
    except ValueError:
        return None
