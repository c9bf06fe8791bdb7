"""Count and index the records of shards, in tasks on the active scheduler."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.advice import explain_arguments
from dask_tfrecord.errors import TFRecordError, plural, redact_url, warn_caller
from dask_tfrecord.records.index import (
    SUFFIX,
    ByteSplit,
    ShardIndex,
    WrittenIndex,
    begins_with_header,
    even_splits,
    index_shard,
    join_entries,
    split_entries,
    write_sidecars,
)
from dask_tfrecord.records.window import detected_compression
from dask_tfrecord.rows.calls import compute_with_progress
from dask_tfrecord.rows.chunk_borders import group_by_size
from dask_tfrecord.rows.progress import is_displayed
from dask_tfrecord.settings import limits
from dask_tfrecord.shards.listing import Sidecar, find_shards, find_sidecars
from dask_tfrecord.shards.objects import StoredFile, check_files, directory_of, remove_abandoned
from dask_tfrecord.shards.shard import Shard, Shards, is_local
from dask_tfrecord.shards.streams import ACCESS_SUFFIX

if TYPE_CHECKING:
    from dask_tfrecord.features import Feature
    from dask_tfrecord.rows.lengths import Measuring

# Least bytes between index entries of remote shards, and most entries that are closer than others: 4 MiB of memory.
_LEAST_APART, _MOST_CLOSE = 64 << 10, 1 << 18

Walked = TypeVar("Walked", ShardIndex, ShardIndex | None)

_log = logging.getLogger(__name__)


@explain_arguments("dtf.build_index('train-*.tfrecord')")
def build_index(
    urlpath: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    features: Mapping[str, Feature] | str | os.PathLike[str] | None = None,
    *,
    compression: str | None = "infer",
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[str, ...]:
    """Write an index next to each shard, so that opening the shards does not scan them.

    ``FILE.idx`` has one line per record, with the offset of its header and the length of the whole record. This is the
    format of ``tfrecord2idx``, which the readers of DALI and vahidk accept. For a gzip shard, offsets refer to the
    decompressed stream, and ``FILE.gzidx``, in the format of indexed_gzip, lists points at which decompression can
    start. Shards are read in parallel on the active scheduler.

    Parameters
    ----------
    urlpath : str, os.PathLike or list of these
        A path, fsspec URL, glob, directory or template (``name@8``, ``name-?????-of-00008``).
    features : mapping of str to feature, Schema, str or os.PathLike, optional
        Features as for `read_tfrecord`, or the ``schema`` of a data set. If rows differ in length, their lengths are
        written to ``FILE.lengths.idx``, for which this call reads the shards twice. `to_zarr` with the same features
        then reads them once, not twice.
    compression : {"infer", None, "gzip", "zlib", "zstd"}
        ``"infer"`` detects the compression from the first bytes, not from the file name.
    storage_options : mapping, optional
        Options for the fsspec file system.

    Returns
    -------
    tuple of str
        Paths of the files that were written, in the order of the shards. Each file replaces an older one atomically.

    Raises
    ------
    ShardNotFoundError
        If no shard is found.
    CorruptRecordError
        If a shard is damaged; no index is written for it.
    IncompleteStoreError
        If a file that was written is missing afterwards, or has a different size.
    TFRecordError
        If a shard is gzip and indexed_gzip is not installed (``pip install "dask-tfrecord[gzip-index]"``), if a shard
        is zlib, which can only be read from its start, or if it is on a web server.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> [path.rpartition("/")[2] for path in dtf.build_index("train-*.tfrecord")]
    ['train-00000-of-00002.tfrecord.idx', 'train-00001-of-00002.tfrecord.idx']
    """
    shards = find_shards(urlpath, compression=compression, storage_options=storage_options)
    return tuple(redact_url(path) for written in write_indexes(shards, features) for path in written.files)


def write_indexes(
    shards: Shards, features: Mapping[str, Feature] | str | os.PathLike[str] | None = None
) -> list[WrittenIndex]:
    """Write the sidecars of listed shards as `write_sidecars` does; see `build_index`."""
    measuring = None
    if features is not None:
        # Imported here: an index without lengths decodes nothing.
        from dask_tfrecord.columns.records import wanted_schema
        from dask_tfrecord.rows.lengths import Measuring

        schema = wanted_schema(features, None, None, None, shards.storage_options)
        measuring = None if schema is None else Measuring.of_schema(schema)
    calls = [partial(_write_sidecars_of, shards[part]) for part in group_by_size(shards.sizes.tolist())]
    remove_abandoned(map(directory_of, shards.paths), shards.storage_options)
    written: list[WrittenIndex] = list(chain.from_iterable(compute_with_progress(calls, "Indexing", measuring)))
    sizes = {path: StoredFile(size) for each in written for path, size in each.files.items()}
    check_files(sizes, shards.storage_options)
    return written


def index_shards(
    shards: Shards, *, sidecars: bool, check_crc: bool = True, measuring: Measuring | None = None
) -> tuple[Shards, list[ShardIndex]]:
    """Count the records of shards and find index entries; return the shards with their detected compression, too.

    If no shard has an index, columns are measured in the same pass.
    """
    access = [index_files is not None for index_files in find_sidecars(shards, ACCESS_SUFFIX)]
    shards = replace(shards, access=tuple(access))
    index_files = find_sidecars(shards, SUFFIX) if sidecars else [None] * len(shards)
    costs = [
        size if side is None else side.file.size for size, side in zip(shards.sizes.tolist(), index_files, strict=True)
    ]
    groups = list(group_by_size(costs))
    splits = _split_large_shards(shards, [side is None for side in index_files])
    apart = _entries_apart(shards)
    if any(access) or index_files.count(None) < len(index_files):
        measuring = None
    calls: list[partial[Any]] = []
    for group in groups:
        if group.start in splits:
            one = _uncompressed(shards[group.start])
            calls += [partial(_count_split, one, split, check_crc, apart) for split in splits[group.start]]
        else:
            calls.append(partial(_count_one, shards[group], index_files[group], check_crc, apart))
    began = time.monotonic()
    results = iter(compute_with_progress(calls, "Counting records", measuring))
    indexes: list[ShardIndex] = []
    for group in groups:
        parts = splits.get(group.start)
        if parts is None:
            indexes += next(results)
        else:
            entries = [next(results) for _ in parts]
            indexes.append(join_entries(_uncompressed(shards[group.start]), parts, entries, check_crc=check_crc))
    if _log.isEnabledFor(logging.INFO):
        cached = len(index_files) - index_files.count(None) - sum(each.stale is not None for each in indexes)
        records = sum(each.count for each in indexes)
        seconds = time.monotonic() - began
        read = plural(records, "record"), plural(len(shards), "shard"), cached, plural(len(calls), "task"), seconds
        _log.info("%s: counted %s of %s, %d by their index, in %s and %.1f s", shards.summary, *read)
    if index_files.count(None) and time.monotonic() - began > limits().display_delay:
        hint = "to open these shards at once the next time, run `dask-tfrecord index` or dask_tfrecord.build_index"
        _log.info(hint)
        if is_displayed():
            sys.stderr.write(f"{hint}\n")
    _warn_of_stale(indexes)
    return shards.resolved([index.compression for index in indexes], [index.access for index in indexes]), indexes


def index_entries_of_shards(
    shards: Shards, counts: Sequence[int], *, check_crc: bool = True
) -> tuple[Shards, list[ShardIndex]]:
    """Find index entries of shards whose counts are known, as `index_shards`, from sidecars only.

    A sidecar takes precedence over the count. A shard without a sidecar has one index entry, its start.
    """
    sidecars = find_sidecars(shards, SUFFIX)
    numbered = [(number, side) for number, side in enumerate(sidecars) if side is not None]
    start = np.zeros(1, np.int64)
    known = zip(counts, shards.sizes.tolist(), strict=True)
    indexes = [ShardIndex(count, start, start, size, None) for count, size in known]
    if not numbered:
        return shards, indexes
    shards = replace(shards, access=tuple(side is not None for side in find_sidecars(shards, ACCESS_SUFFIX)))
    calls = []
    for group in group_by_size([side.file.size for _, side in numbered]):
        numbers, sides = zip(*numbered[group], strict=True)
        calls.append(
            partial(_count_one, [shards[number] for number in numbers], sides, check_crc, _entries_apart(shards))
        )
    counted: list[ShardIndex] = list(chain.from_iterable(compute_with_progress(calls, "Reading indexes")))
    _warn_of_stale(counted)
    kinds = [shards.compression] * len(shards)
    for (number, _), each in zip(numbered, counted, strict=True):
        indexes[number], kinds[number] = each, each.compression
    return shards.resolved(kinds, [index.access for index in indexes]), indexes


def find_unsplittable(shards: Shards, nbytes: float) -> NDArray[np.bool_]:
    """Find the compressed shards larger than `nbytes`, which can only be read from their start."""
    unsplittable = np.zeros(len(shards), bool)
    numbers = np.flatnonzero(shards.sizes > nbytes)
    if numbers.size and shards.compression == "infer":
        calls = [partial(detected_compression, shards[number]) for number in numbers.tolist()]
        unsplittable[numbers] = [each is not None for each in compute_with_progress(calls, "Inspecting shards")]
    elif shards.compression is not None:
        unsplittable[numbers] = True
    return unsplittable


def _split_large_shards(shards: Shards, wanted: Sequence[bool]) -> dict[int, list[ByteSplit]]:
    """Split the wanted shards that are large enough for several tasks and uncompressed."""
    numbers = np.flatnonzero((shards.sizes > 2 * limits().count_task_nbytes) & wanted)
    if not numbers.size:
        return {}
    unsplittable = find_unsplittable(shards, 2 * limits().count_task_nbytes)
    numbers = numbers[~unsplittable[numbers]]
    # A damaged first header is reported at once; the tasks of splits would search all bytes first.
    calls = [partial(begins_with_header, _uncompressed(shards[number])) for number in numbers.tolist()]
    held = np.array(compute_with_progress(calls, "Inspecting shards"), bool)
    return {
        number: even_splits(int(shards.sizes[number]), limits().count_task_nbytes) for number in numbers[held].tolist()
    }


def _uncompressed(shard: Shard) -> Shard:
    """Read the bytes of a shard as they are, where its compression was found to be none."""
    return replace(shard, compression=None)


def _count_one(
    shards: Sequence[Shard],
    sidecars: Sequence[Sidecar | None],
    check_crc: bool,
    apart: int,
    measuring: Measuring | None = None,
) -> list[ShardIndex]:
    pairs = zip(shards, sidecars, strict=True)
    index = partial(index_shard, check_crc=check_crc, apart=apart)
    return [_walked(partial(index, shard, sidecar), measuring) for shard, sidecar in pairs]


def _count_split(
    shard: Shard, split: ByteSplit, check_crc: bool, apart: int, measuring: Measuring | None
) -> ShardIndex | None:
    return _walked(partial(split_entries, shard, split, check_crc=check_crc, apart=apart), measuring)


def _walked(walk: Callable[..., Walked], measuring: Measuring | None) -> Walked:
    """Walk records and measure them; without measuring if a record is damaged or refused, for the error of counting."""
    if measuring is not None:
        with suppress(TFRecordError):
            found = walk(walker=measuring.index_entries)
            if found is not None:
                return found
    return walk()


def _entries_apart(shards: Shards) -> int:
    """Return the bytes between two index entries: what a task reads of remote shards for rows that it does not want."""
    if is_local(next(iter(shards.paths), "")):
        return limits().entry_nbytes
    return min(limits().entry_nbytes, max(_LEAST_APART, int(shards.sizes.sum()) // _MOST_CLOSE))


def _write_sidecars_of(shards: Shards, measuring: Measuring | None) -> list[WrittenIndex]:
    written = [write_sidecars(shard) for shard in shards]
    if measuring is not None:
        for shard, each in zip(shards, written, strict=True):
            each.files.update(measuring.write(shard))
    return written


def _warn_of_stale(indexes: Sequence[ShardIndex]) -> None:
    stale = [each.stale for each in indexes if each.stale is not None]
    if stale:
        more = f" ({len(stale) - 1:,} more like it)" if stale[1:] else ""
        warn_caller(f"{stale[0]}{more}. The records were counted again; `dask-tfrecord index` writes a new index")
