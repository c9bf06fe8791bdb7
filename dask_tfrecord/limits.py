"""Limits of the work of one task: sizes, counts and times that settings do not change.

The values were measured with the benchmarks. They change neither rows nor files, except the sizes of chunks and write
units of a Zarr store. Modules read `limits()` when they need a value, so `replaced_limits` makes small data take the
paths of large data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["Limits", "limits", "replaced_limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one process.

    Attributes
    ----------
    first_retry_wait : float
        Seconds before the first retry of a request; each further wait doubles.
    access_point_nbytes : int
        Decompressed bytes between two access points of a gzip file. A point takes 32 KiB, 0.4 % of the data; reaching
        an offset takes about 10 ms.
    entry_nbytes : int
        Bytes between two entries of an index.
    index_window_nbytes : int
        Bytes that are read at once to walk headers: less than `entry_nbytes`, so that entries are at most slightly
        further apart.
    verified_nbytes : int
        Bytes over which headers follow each other to confirm a byte split.
    search_decoding_nbytes, search_counting_nbytes : int
        Bytes that are searched for the first record of a byte split, by a task that decodes or counts: a file of
        another format is not read completely before its error. Larger records are found by walking headers: from the
        end of the split before when counting, which is fast, and from the beginning of the shard when decoding.
    window_nbytes : int
        Bytes that are decoded at once: the window stays in the cache of the processor.
    first_window_nbytes : int
        Bytes of the first window of a read, and of a window that skips records.
    count_task_nbytes : int
        Bytes of shards that one task counts.
    scan_task_nbytes : int
        Bytes of shards in which one task locates values for virtual references.
    display_delay : float
        Seconds after which a progress bar appears.
    probe_rows : int
        Rows that are read first, to learn the sizes of rows.
    read_nbytes : int
        Decoded bytes of rows that a writer reads at once.
    granule_nbytes : int
        Decoded bytes of rows between two counts of their items.
    write_unit_nbytes : int
        Decoded bytes of a write unit, and of a chunk without shards.
    chunk_nbytes : int
        Decoded bytes of a chunk within a Zarr shard.
    flat_chunk_nbytes : int
        Least bytes of a chunk of flat values.
    min_write_tasks : int
        Least number of write tasks, if there are as many units of rows.
    max_chunk_shards : int
        Number of dask chunks up to which each becomes a TFRecord shard.
    shard_nbytes : int
        Decoded bytes of a TFRecord shard that several chunks share.
    heartbeat : float
        Seconds between two heartbeats of the claim on a Zarr group.
    """

    first_retry_wait: float = 0.1
    access_point_nbytes: int = 8 << 20
    entry_nbytes: int = 1 << 20
    index_window_nbytes: int = 512 << 10
    verified_nbytes: int = 4 << 20
    search_decoding_nbytes: int = 64 << 20
    search_counting_nbytes: int = 16 << 20
    window_nbytes: int = 1 << 20
    first_window_nbytes: int = 16 << 10
    count_task_nbytes: int = 64 << 20
    scan_task_nbytes: int = 64 << 20
    display_delay: float = 2.0
    probe_rows: int = 64
    read_nbytes: int = 8 << 20
    granule_nbytes: int = 512 << 10
    write_unit_nbytes: int = 8 << 20
    chunk_nbytes: int = 1 << 20
    flat_chunk_nbytes: int = 128 << 10
    min_write_tasks: int = 256
    max_chunk_shards: int = 1_000
    shard_nbytes: int = 64 << 20
    heartbeat: float = 20.0


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
