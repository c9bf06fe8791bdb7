"""Counting the records of shards, on whatever scheduler is active: from sidecars where they fit, else by their headers.

Also where sidecars are made. What takes longer than two seconds shows its progress on a terminal, and says how the
next time takes none.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import dask
import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.arrays.progress import PATIENCE, Bar, followed, is_seen, tell
from dask_tfrecord.records.framing import Window
from dask_tfrecord.records.index import Marks, ShardIndex
from dask_tfrecord.records.sidecar import SUFFIX, Counted, Written, index_shard, write_sidecars
from dask_tfrecord.records.splits import Split, even_splits, join_marks, mark_split
from dask_tfrecord.storage.access import SUFFIX as ACCESS_SUFFIX
from dask_tfrecord.storage.files import Shard, Shards, find_shards
from dask_tfrecord.storage.sidecars import Sidecar, find_sidecars

__all__ = ["build_index", "closed_shards", "compute_jobs", "index_shards", "mark_shards", "task_parts"]

# One task takes shards until they are this large together: small files are not worth a task each.
_TASK_NBYTES = 64 << 20
_TASK_SHARDS = 64
# Bytes that tell the compression of a shard.
_LOOK = 512

_log = logging.getLogger(__name__)


def build_index(
    urlpath: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    compression: str | None = "infer",
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[str, ...]:
    """Write the index of each shard beside it, so that opening need not read the shards.

    ``FILE.idx`` has a line for each record, the byte of its header and the length of the whole record: the format of
    DALI's and of vahidk's ``tfrecord2idx``, whose readers take it. For a gzip shard the bytes are those of the
    inflated stream, and ``FILE.gzidx``, in the format of indexed_gzip, holds places where inflating can begin. Shards
    are read in parallel, on the active scheduler.

    Parameters
    ----------
    urlpath : str, os.PathLike or list of these
        A path, fsspec URL, glob, directory, or template (``name@8``, ``name-?????-of-00008``).
    compression : {"infer", None, "gzip", "zlib"}
        ``"infer"`` looks at the bytes, never at the name.
    storage_options : mapping, optional
        What fsspec takes beside a URL.

    Returns
    -------
    tuple of str
        The files written, in the order of the shards. Each appeared whole, in the place of an older one.

    Raises
    ------
    ShardNotFoundError
        If nothing is there.
    CorruptRecordError
        If a shard is damaged; it gets no index.
    TFRecordError
        If a shard is gzip and indexed_gzip is not installed (``pip install "dask-tfrecord[gzip-index]"``), if it is
        zlib, which can't be entered but at its beginning, or if it is on a web server.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> [path.rpartition("/")[2] for path in dtf.build_index("train-*.tfrecord")]
    ['train-00000-of-00002.tfrecord.idx', 'train-00001-of-00002.tfrecord.idx']
    """
    shards = find_shards(urlpath, compression=compression, storage_options=storage_options)
    jobs = [partial(_write, shards[part]) for part in task_parts(shards.sizes.tolist())]
    written: Iterator[Written] = chain.from_iterable(compute_jobs(jobs, "Indexing"))
    return tuple(path for each in written for path in each.paths)


def index_shards(shards: Shards, *, sidecars: bool, check_crc: bool = True) -> tuple[Shards, list[ShardIndex]]:
    """Find where the records of shards are.

    Parameters
    ----------
    shards : Shards
        What is to be counted.
    sidecars : bool
        Whether ``FILE.idx`` is believed where it fits.
    check_crc : bool, default True
        Whether the CRC of every length that is looked at has to hold.

    Returns
    -------
    shards : Shards
        The same, with what was found of their compression.
    indexes : list of ShardIndex
        One for each.

    Raises
    ------
    CorruptRecordError
        If a header does not hold, or a shard is cut off.
    """
    access = [found is not None for found in find_sidecars(shards, ACCESS_SUFFIX)]
    shards = replace(shards, access=tuple(access))
    found = find_sidecars(shards, SUFFIX) if sidecars else [None] * len(shards)
    costs = [size if side is None else side.file.size for size, side in zip(shards.sizes.tolist(), found, strict=True)]
    groups = list(task_parts(costs))
    splits = _splits(shards, [side is None for side in found])
    jobs: list[partial[Any]] = []
    for group in groups:
        if group.start in splits:
            jobs += [partial(_mark, shards[group.start], split, check_crc) for split in splits[group.start]]
        else:
            jobs.append(partial(_count, shards[group], found[group], check_crc))
    began = time.monotonic()
    results = iter(compute_jobs(jobs, "Counting records"))
    counted: list[Counted] = []
    for group in groups:
        parts = splits.get(group.start)
        if parts is None:
            counted += next(results)
        else:
            marks = [next(results) for _ in parts]
            counted.append(Counted(join_marks(_plain(shards[group.start]), parts, marks, check_crc=check_crc), None))
    if found.count(None) and time.monotonic() - began > PATIENCE:
        _hint("`dask-tfrecord index`, or dask_tfrecord.build_index, makes opening these shards instant the next time")
    _warn([each.stale for each in counted if each.stale is not None])
    indexes = [each.index for each in counted]
    return shards.looked_at([index.compression for index in indexes], [index.access for index in indexes]), indexes


def mark_shards(shards: Shards, counts: Sequence[int], *, check_crc: bool = True) -> tuple[Shards, list[ShardIndex]]:
    """Find where records of shards are whose counts are known: as far as sidecars tell, and no shard is scanned for it.

    Parameters
    ----------
    shards : Shards
        What is to be read.
    counts : sequence of int
        Records of each, so far as no sidecar says otherwise.
    check_crc : bool, default True
        As `index_shards` takes it.

    Returns
    -------
    shards, indexes
        As of `index_shards`; of a shard without a sidecar nothing but its beginning is known.
    """
    beside = find_sidecars(shards, SUFFIX)
    found = [(place, side) for place, side in enumerate(beside) if side is not None]
    start = np.zeros(1, np.int64)
    known = zip(counts, shards.sizes.tolist(), strict=True)
    indexes = [ShardIndex(count, start, start, size, None) for count, size in known]
    if not found:
        return shards, indexes
    shards = replace(shards, access=tuple(side is not None for side in find_sidecars(shards, ACCESS_SUFFIX)))
    jobs = []
    for group in task_parts([side.file.size for _, side in found]):
        places, sides = zip(*found[group], strict=True)
        jobs.append(partial(_count, [shards[place] for place in places], sides, check_crc))
    counted: list[Counted] = list(chain.from_iterable(compute_jobs(jobs, "Reading indexes")))
    _warn([each.stale for each in counted if each.stale is not None])
    kinds = [shards.compression] * len(shards)
    for (place, _), each in zip(found, counted, strict=True):
        indexes[place], kinds[place] = each.index, each.index.compression
    return shards.looked_at(kinds, [index.access for index in indexes]), indexes


def closed_shards(shards: Shards, nbytes: float) -> NDArray[np.bool_]:
    """Find the shards larger than `nbytes` that are compressed: they can be entered at their beginnings alone."""
    closed = np.zeros(len(shards), bool)
    places = np.flatnonzero(shards.sizes > nbytes)
    if places.size and shards.compression == "infer":
        jobs = [partial(_is_compressed, shards[place]) for place in places.tolist()]
        closed[places] = compute_jobs(jobs, "Looking at shards")
    elif shards.compression is not None:
        closed[places] = True
    return closed


def _is_compressed(shard: Shard) -> bool:
    with Window(shard, block_size=_LOOK, stop=_LOOK) as window:
        return window.compression is not None


def _splits(shards: Shards, wanted: Sequence[bool]) -> dict[int, list[Split]]:
    """Cut the wanted shards that are worth several tasks and can be entered anywhere."""
    places = np.flatnonzero((shards.sizes > 2 * _TASK_NBYTES) & wanted)
    if not places.size:
        return {}
    closed = closed_shards(shards, 2 * _TASK_NBYTES)
    return {place: even_splits(int(shards.sizes[place]), _TASK_NBYTES) for place in places[~closed[places]].tolist()}


def _plain(shard: Shard) -> Shard:
    return replace(shard, compression=None)


def _mark(shard: Shard, split: Split, check_crc: bool) -> Marks | None:
    return mark_split(_plain(shard), split, check_crc=check_crc)


def _count(shards: Sequence[Shard], sidecars: Sequence[Sidecar | None], check_crc: bool) -> list[Counted]:
    pairs = zip(shards, sidecars, strict=True)
    return [index_shard(shard, sidecar, check_crc=check_crc) for shard, sidecar in pairs]


def _write(shards: Shards) -> list[Written]:
    return [write_sidecars(shard) for shard in shards]


def _warn(stale: Sequence[str]) -> None:
    if stale:
        more = f" ({len(stale) - 1} more like it)" if stale[1:] else ""
        warnings.warn(
            f"{stale[0]}{more}. The records were counted anew; `dask-tfrecord index` makes a new index",
            stacklevel=5,
        )


def task_parts(costs: Sequence[int]) -> Iterator[slice]:
    """Cut shards into groups that are worth a task."""
    start, nbytes = 0, 0
    for place, cost in enumerate(costs):
        if place > start and (nbytes + cost > _TASK_NBYTES or place - start >= _TASK_SHARDS):
            yield slice(start, place)
            start, nbytes = place, 0
        nbytes += cost
    yield slice(start, len(costs))


def compute_jobs(jobs: Sequence[partial[Any]], what: str) -> Sequence[Any]:
    """Call functions on the active scheduler, and show how far it is."""
    name = f"tfrecord-{what.lower().replace(' ', '-')}-{uuid.uuid4().hex}"
    # As a partial, arguments are not searched for dask objects.
    steps = [dask.delayed(partial(_told, job), pure=False, traverse=False) for job in jobs]
    tasks = [step(dask_key_name=(name, number)) for number, step in enumerate(steps)]
    with Bar(what, len(tasks)) as bar, followed(name, lambda *_: bar.advance()):
        results: Sequence[Any] = dask.compute(*tasks)
    return results


def _told(job: partial[Any]) -> Any:
    result = job()
    tell()
    return result


def _hint(text: str) -> None:
    _log.info("%s", text)
    if is_seen():
        sys.stderr.write(f"{text}\n")
