"""Partitions of records for bags, surveys and copies; records are counted only if necessary.

Sizes are stored bytes, because the size of decoded payloads is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise

import dask
import numpy as np
from dask.base import tokenize
from dask.utils import parse_bytes

from dask_tfrecord.arrays.collection import MOST_CHUNKS, Collection, borders_by_bytes, borders_by_rows
from dask_tfrecord.arrays.read import checked_chunks, count_records
from dask_tfrecord.records.framing import Window
from dask_tfrecord.records.index import ShardIndex, scan_shard
from dask_tfrecord.records.splits import Run, full_run
from dask_tfrecord.storage.shard import Shard, Shards

__all__ = ["RecordPartition", "record_partitions"]

Runs = tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class RecordPartition:
    """Records that one task reads.

    Attributes
    ----------
    runs : tuple of Run
        Runs of records, in order.
    token : str
        Identity of the records, derived from all shards: dask would need long to tokenise every run.
    """

    runs: Runs
    token: str

    def __dask_tokenize__(self) -> str:
        return self.token


def record_partitions(shards: Shards, chunks: str | int, check_crc: bool) -> list[RecordPartition]:
    """Split shards into partitions, in order.

    Parameters
    ----------
    shards : Shards
        The files.
    chunks : "auto", "shard", int or str
        As in `read_tfrecord`, with sizes in stored bytes. An int or a size counts the records of all shards;
        ``"auto"`` counts those of large uncompressed shards, which it splits.
    check_crc : bool
        Check the CRC of every length that is read for counting.

    Returns
    -------
    list of RecordPartition
    """
    wanted = checked_chunks(chunks, True)
    size = float(parse_bytes(dask.config.get("array.chunk-size", "128 MiB")))
    partitions = _runs(shards, wanted, size, check_crc)
    token = tokenize(shards, wanted, size, len(partitions))
    return [RecordPartition(runs, f"{token}-{number}") for number, runs in enumerate(partitions)]


def _runs(shards: Shards, wanted: str | int | float, size: float, check_crc: bool) -> list[Runs]:
    if wanted == "shard":
        return [(full_run(shard),) for shard in shards]
    if wanted == "auto":
        return _joined(list(_split_large(shards, size, check_crc)))
    collection = count_records(shards, "auto", check_crc)
    if isinstance(wanted, int):
        borders = borders_by_rows(collection.nrows, wanted)
    else:
        borders = _borders(collection, float(wanted), coalesce=True)
    return [tuple(collection.runs(start, stop)) for start, stop in pairwise(borders.tolist())]


def _split_large(shards: Shards, size: float, check_crc: bool) -> Iterator[Runs]:
    """Yield partitions of shards; split uncompressed shards larger than `size`."""
    large = np.flatnonzero(shards.sizes > size).tolist()
    tasks = [dask.delayed(_index, pure=False)(shards[number], check_crc) for number in large]
    indexes = dict(zip(large, dask.compute(*tasks), strict=True))
    for number, shard in enumerate(shards):
        index = indexes.get(number)
        if index is None:
            yield (full_run(shard),)
            continue
        collection = Collection.from_indexes(shards[number : number + 1], [index])
        for start, stop in pairwise(_borders(collection, size, coalesce=False).tolist()):
            yield tuple(collection.runs(start, stop))


def _index(shard: Shard, check_crc: bool) -> ShardIndex | None:
    """Scan a shard; return None if it is compressed, because it can only be read from its start."""
    with Window(shard, block_size=1 << 12) as window:
        if window.compression is not None:
            return None
    return scan_shard(shard, check_crc=check_crc)


def _borders(collection: Collection, size: float, *, coalesce: bool) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    stored = collection.nbytes.astype(np.float64)
    # Each part of a shard without access points would decompress the shard from its start.
    closed = (collection.nbytes != collection.shards.sizes) & (np.diff(collection.entry_splits) == 1)
    stored[closed] = np.minimum(stored, size)[closed]
    return borders_by_bytes(collection, stored / np.maximum(collection.counts, 1), size, coalesce=coalesce)


def _joined(partitions: list[Runs]) -> list[Runs]:
    """Join neighbouring partitions if there are more than `MOST_CHUNKS`."""
    step = math.ceil(len(partitions) / MOST_CHUNKS)
    if step <= 1:
        return partitions
    return [tuple(chain.from_iterable(partitions[start : start + step])) for start in range(0, len(partitions), step)]
