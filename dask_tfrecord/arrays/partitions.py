"""Shards cut into runs of records that are worth a task each, counted only where they have to be.

For what is no column: bags, and surveys of whole collections. Sizes are stored bytes, for nobody knows what becomes of
a payload.
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

from dask_tfrecord.arrays.plan import MOST_CHUNKS, Collection, borders_by_bytes, borders_by_rows
from dask_tfrecord.arrays.read import checked_chunks, count_records
from dask_tfrecord.columns.decode import Run
from dask_tfrecord.columns.payloads import whole
from dask_tfrecord.records.framing import Window
from dask_tfrecord.records.index import ShardIndex, scan_shard
from dask_tfrecord.storage.shards import Shard, Shards

__all__ = ["Partition", "partitions"]

Runs = tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """What one task reads.

    Attributes
    ----------
    runs : tuple of Run
        Records, in order.
    token : str
        Names them, made of the shards as a whole: dask would take long to look into every run.
    """

    runs: Runs
    token: str

    def __dask_tokenize__(self) -> str:
        return self.token


def partitions(shards: Shards, chunks: str | int, check_crc: bool) -> list[Partition]:
    """Cut shards into runs of records, in order.

    Parameters
    ----------
    shards : Shards
        The files.
    chunks : "auto", "shard", int or str
        As `read_tfrecord` takes it, with sizes in stored bytes. Only an int or a size counts the records of all
        shards; ``"auto"`` counts those of large uncompressed ones, which it splits.
    check_crc : bool
        Check the CRC of every length that is counted by.

    Returns
    -------
    list of Partition
    """
    wanted = checked_chunks(chunks, True)
    size = float(parse_bytes(dask.config.get("array.chunk-size", "128 MiB")))
    parts = _runs(shards, wanted, size, check_crc)
    token = tokenize(shards, wanted, size, len(parts))
    return [Partition(runs, f"{token}-{place}") for place, runs in enumerate(parts)]


def _runs(shards: Shards, wanted: str | int | float, size: float, check_crc: bool) -> list[Runs]:
    if wanted == "shard":
        return [(whole(shard),) for shard in shards]
    if wanted == "auto":
        return _joined(list(_split_large(shards, size, check_crc)))
    collection = count_records(shards, "auto", check_crc)
    if isinstance(wanted, int):
        borders = borders_by_rows(collection.nrows, wanted)
    else:
        borders = _borders(collection, float(wanted), coalesce=True)
    return [tuple(collection.runs(start, stop)) for start, stop in pairwise(borders.tolist())]


def _split_large(shards: Shards, size: float, check_crc: bool) -> Iterator[Runs]:
    """Split shards that are larger than dask likes chunks, where a place within can be reached."""
    large = np.flatnonzero(shards.sizes > size).tolist()
    tasks = [dask.delayed(_index, pure=False)(shards[place], check_crc) for place in large]
    indexes = dict(zip(large, dask.compute(*tasks), strict=True))
    for place, shard in enumerate(shards):
        index = indexes.get(place)
        if index is None:
            yield (whole(shard),)
            continue
        collection = Collection.indexed(shards[place : place + 1], [index])
        for start, stop in pairwise(_borders(collection, size, coalesce=False).tolist()):
            yield tuple(collection.runs(start, stop))


def _index(shard: Shard, check_crc: bool) -> ShardIndex | None:
    """Find the records of a shard, unless that is compressed: then there is one way through it."""
    with Window(shard, block_size=1 << 12) as window:
        if window.compression is not None:
            return None
    return scan_shard(shard, check_crc=check_crc)


def _borders(collection: Collection, size: float, *, coalesce: bool) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    stored = collection.nbytes.astype(np.float64)
    # To split what can only be entered at its beginning is to inflate it again for each part.
    closed = (collection.nbytes != collection.shards.sizes) & (np.diff(collection.mark_splits) == 1)
    stored[closed] = np.minimum(stored, size)[closed]
    return borders_by_bytes(collection, stored / np.maximum(collection.counts, 1), size, coalesce=coalesce)


def _joined(parts: list[Runs]) -> list[Runs]:
    """Join neighbours where there are more than a scheduler is good with."""
    step = math.ceil(len(parts) / MOST_CHUNKS)
    if step <= 1:
        return parts
    return [tuple(chain.from_iterable(parts[start : start + step])) for start in range(0, len(parts), step)]
