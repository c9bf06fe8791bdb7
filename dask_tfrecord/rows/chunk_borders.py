"""Rows of the chunks of a data set: by their number, by shards, or by bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, starmap
from numbers import Integral

import dask
import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.blocks import splits_of, union
from dask_tfrecord.records.index import ByteSplit
from dask_tfrecord.rows.collection import Collection, RowNumbers
from dask_tfrecord.settings import check_unit, limits, parse_size
from dask_tfrecord.shards.shard import Shard, Shards

# With more chunks, schedulers need more time for tasks than workers for data.
MOST_CHUNKS = 20_000
# Shards of one task: small files share a task.
_TASK_SHARDS = 64
# Default of dask's size of a chunk: each thread of a worker holds several chunks, so ours are smaller.
_DASK_CHUNK_NBYTES = 128 << 20


def chunk_size() -> float:
    """Return the decoded bytes that a chunk should have, unless dask's size of a chunk was changed to others."""
    size = parse_size(dask.config.get("array.chunk-size", "")) or _DASK_CHUNK_NBYTES
    return limits().input_chunk_nbytes if size == _DASK_CHUNK_NBYTES else size


def checked_chunks(chunks: object, *, counted: bool) -> str | int | float:
    """Check the argument `chunks`: a number of rows, bytes as a float, "auto" or "shard"."""
    valid = f"chunks must be 'auto', 'shard', a number of rows or a size such as '64 MiB'; got {chunks!r}"
    if isinstance(chunks, bool) or not isinstance(chunks, str | Integral):
        raise ValueError(valid)
    if chunks in ("auto", "shard"):
        return str(chunks)
    if not isinstance(chunks, str):
        if not counted:
            raise ValueError(f"chunks={chunks!r} needs counted records; with counts=None chunks are cut by bytes")
        if chunks < 1:
            raise ValueError(
                f"a chunk must have one row or more; got chunks={chunks}: write chunks='auto', or 'shard' for one "
                "chunk per shard"
            )
        return int(chunks)
    check_unit("chunks", chunks)
    nbytes = parse_size(chunks)
    if nbytes is None:
        raise ValueError(valid)
    if nbytes < 1:
        raise ValueError(f"a chunk must have one byte or more; got chunks={chunks!r}")
    return nbytes


def choose_borders(
    collection: Collection, nrows: int, chunks: str | int | float, row_nbytes: Callable[[], NDArray[np.float64]]
) -> NDArray[np.int64]:
    """Choose the borders of chunks: by rows, by shards, or by the decoded bytes that a row takes in each shard."""
    if isinstance(chunks, int):
        return borders_by_rows(nrows, chunks)
    if chunks == "shard":
        return distinct(collection.starts)
    if isinstance(chunks, float):
        return borders_by_bytes(collection, row_nbytes(), chunks, coalesce=True)
    return at_entries(collection, borders_by_bytes(collection, row_nbytes(), chunk_size(), coalesce=False))


@dataclass(frozen=True, slots=True, eq=False)
class ByteChunks:
    """Chunks of shards whose records are not counted, as ranges of bytes."""

    shards: Shards
    borders: NDArray[np.int64]  # first byte of each chunk, and the number of bytes, in the concatenation of all shards

    @classmethod
    def by_size(
        cls, shards: Shards, ratio: float, size: float, unsplittable: NDArray[np.bool_], *, coalesce: bool
    ) -> ByteChunks:
        """Plan chunks of a size as `borders_by_bytes` does, for a ratio of decoded to stored bytes.

        Shards that are `unsplittable` can only be read from their start.
        """
        each = np.full(len(shards), ratio)
        each[unsplittable] = np.minimum(each[unsplittable], 0.999 * size / np.maximum(shards.sizes[unsplittable], 1))
        collection = Collection.from_counts(shards, shards.sizes.tolist())
        return cls(shards, borders_by_bytes(collection, each, size, coalesce=coalesce))

    @classmethod
    def by_shard(cls, shards: Shards) -> ByteChunks:
        """Plan one chunk per shard that is not empty."""
        return cls(shards, distinct(splits_of(shards.sizes)))

    def byte_ranges(self, chunk: int) -> Iterator[tuple[Shard, ByteSplit | None]]:
        """Yield the shards of a chunk, each with its range of bytes, or None for the whole shard."""
        starts = splits_of(self.shards.sizes)
        start, stop = self.borders[chunk : chunk + 2].tolist()
        shard = int(np.searchsorted(starts, start, side="right")) - 1
        while start < stop:
            first, end = starts[shard : shard + 2].tolist()
            past = min(stop, end)
            if first < start or past < end:
                later = self.borders[(self.borders > past) & (self.borders < end)].tolist()
                later += [end] if past < end else []
                # Only uncompressed shards are split.
                plain = replace(self.shards[shard], compression=None)
                yield plain, ByteSplit(start - first, past - first, tuple(byte - first for byte in later))
            elif first < end:
                yield self.shards[shard], None
            start, shard = past, shard + 1


def borders_by_rows(nrows: int, rows: int) -> NDArray[np.int64]:
    """Return borders of chunks of `rows` rows; the last chunk may have fewer."""
    return distinct(np.append(np.arange(0, nrows, rows), nrows))


def borders_by_bytes(
    collection: Collection, row_nbytes: NDArray[np.float64], size: float, *, coalesce: bool
) -> NDArray[np.int64]:
    """Cut chunks of about `size` bytes; `row_nbytes` has each shard's decoded bytes per row.

    Larger shards are split evenly. Neighbouring shards are joined up to `size` if `coalesce`, otherwise only to stay
    below `MOST_CHUNKS`, and never beyond `size`: many chunks are slow, but large chunks may exceed the memory.
    """
    counts = collection.counts
    decoded = counts * row_nbytes
    splits = np.maximum(np.ceil(decoded / size), 1).astype(np.int64)
    splits = np.minimum(splits, np.maximum(counts, 1))
    cut = distinct(divided(collection.starts, splits))
    most = size if coalesce else min(size, decoded.sum() / MOST_CHUNKS * 2)
    if not coalesce and len(cut) - 1 <= MOST_CHUNKS:
        return cut
    # Bytes before each border.
    cumulative = np.interp(cut, collection.starts, np.concatenate([[0.0], np.cumsum(decoded)]))
    return cut[joined_parts((cumulative.tolist(), most))]


def at_entries(collection: Collection, borders: NDArray[np.int64]) -> NDArray[np.int64]:
    """Move borders within shards to index entries that are near: no bytes are read on both sides of them."""
    entries = np.append(collection.entry_rows(1), borders[-1])
    after = np.minimum(np.searchsorted(entries, borders), len(entries) - 1)
    before = np.maximum(after - 1, 0)
    nearest = entries[np.where(borders - entries[before] < entries[after] - borders, before, after)]
    lengths = np.diff(borders)
    # Chunks differ by at most a quarter.
    near = np.abs(nearest - borders) * 8 <= np.minimum(np.append(lengths, 0), np.append(0, lengths))
    return np.where(near, nearest, borders)


def divided(borders: NDArray[np.int64], parts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Divide the rows between borders evenly, each range into a number of parts."""
    counts = np.diff(borders)
    part = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    starts = np.repeat(borders[:-1], parts) + part * np.repeat(counts, parts) // np.repeat(parts, parts)
    return np.append(starts, borders[-1])


def joined_parts(*limits: tuple[Sequence[float], float]) -> list[int]:
    """Return the borders of consecutive parts, each as long as all limits allow, and of one item at least.

    A limit has the sums before each item and after the last one, and how much a part may add to them.
    """
    borders, last = [0], len(limits[0][0]) - 1
    while (first := borders[-1]) < last:
        stops = (bisect_right(sums, sums[first] + most, first + 1) - 1 for sums, most in limits)
        borders.append(max(min(stops), first + 1))
    return borders


def group_by_size(costs: Sequence[int]) -> Iterator[slice]:
    """Return slices of shards that share a task."""
    before = [0, *accumulate(costs)]
    limit = before, limits().count_task_nbytes
    return starmap(slice, pairwise(joined_parts(limit, (range(len(before)), _TASK_SHARDS))))


def finer_borders(
    collection: Collection, rows: RowNumbers, borders: NDArray[np.int64], nbytes: int
) -> NDArray[np.int64]:
    """Add borders about `nbytes` apart, at index entries."""
    if not (isinstance(rows, range) and rows.step == 1):
        return borders
    more = collection.entry_rows(nbytes) - rows.start
    return union(borders, more[(more > borders[0]) & (more < borders[-1])]) if len(rows) else borders


def distinct(borders: NDArray[np.int64]) -> NDArray[np.int64]:
    """Remove borders of empty chunks from ascending borders; a collection without rows keeps one chunk."""
    found = borders[np.diff(borders, prepend=-1) > 0]
    return found if len(found) > 1 else np.array([0, 0])
