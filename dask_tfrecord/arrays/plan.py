"""Planning: which bytes of which shards make which rows. Pure functions over NumPy arrays, nothing is read here.

A `Collection` knows how many records each shard holds and where some of them begin. Chunks are borders between rows;
the rows of a chunk become `Run` values only in the task that reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.columns.decode import Run
from dask_tfrecord.records.damage import ShardReport
from dask_tfrecord.records.index import ShardIndex
from dask_tfrecord.records.splits import Split
from dask_tfrecord.storage.files import Shard, Shards

__all__ = [
    "ByteChunks",
    "Collection",
    "Rows",
    "borders_by_bytes",
    "borders_by_rows",
    "borders_by_shard",
    "finer_borders",
    "pick_rows",
    "row_numbers",
    "row_runs",
]

# Rows of a collection: consecutive or evenly spaced ones, or any.
Rows = range | NDArray[np.int64]

# Past this many chunks a scheduler is busier with tasks than workers with data.
MOST_CHUNKS = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class Collection:
    """Shards whose records are counted.

    Attributes
    ----------
    shards : Shards
        The files.
    starts : ndarray of int64, shape (nshards + 1,)
        Number of the first row of each shard; the last entry is the number of rows.
    nbytes : ndarray of int64, shape (nshards,)
        Bytes of each shard, decompressed where that is known.
    mark_splits : ndarray of int64, shape (nshards + 1,)
        The marks of shard ``i`` are entries ``mark_splits[i]`` to ``mark_splits[i + 1]``.
    mark_records : ndarray of int64
        Record number, within its shard, of each mark.
    mark_offsets : ndarray of int64
        The byte of that record's header in the decompressed stream.
    breaks : ndarray of bool or None
        Of each mark, whether the record before it, if there is one, does not end there: bytes between them are lost.
    tails : ndarray of bool, shape (nshards,), or None
        Whether bytes behind the last record of a shard are lost. Where both are None, none are.
    """

    shards: Shards
    starts: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    mark_splits: NDArray[np.int64]
    mark_records: NDArray[np.int64]
    mark_offsets: NDArray[np.int64]
    breaks: NDArray[np.bool_] | None = None
    tails: NDArray[np.bool_] | None = None

    @classmethod
    def counted(cls, shards: Shards, counts: Sequence[int]) -> Collection:
        """Make a collection of which nothing but the counts is known."""
        number = len(shards)
        return cls(
            shards,
            _starts(counts),
            shards.sizes,
            np.arange(number + 1),
            np.zeros(number, np.int64),
            np.zeros(number, np.int64),
        )

    @classmethod
    def indexed(cls, shards: Shards, indexes: Sequence[ShardIndex]) -> Collection:
        """Make a collection of shards that were scanned."""
        # Without access points, nothing but the beginning of a compressed shard is reached directly.
        marks = [len(index.records) if index.reachable else 1 for index in indexes]
        empty = np.zeros(0, np.int64)
        return cls(
            shards,
            _starts([index.count for index in indexes]),
            np.array([index.nbytes for index in indexes], np.int64),
            _starts(marks),
            np.concatenate([empty, *(index.records[:n] for index, n in zip(indexes, marks, strict=True))]),
            np.concatenate([empty, *(index.offsets[:n] for index, n in zip(indexes, marks, strict=True))]),
        )

    @classmethod
    def checked(cls, shards: Shards, reports: Sequence[ShardReport]) -> Collection:
        """Make a collection of the records that hold."""
        records, offsets, breaks = [], [], []
        tails = np.array([bool(report.lost) for report in reports])
        for shard, report in zip(shards, reports, strict=True):
            reached = np.isin(report.mark_offsets, report.starts)
            # Without access points, a compressed shard is entered at its beginning and behind damage.
            kept = reached | (report.compression is None or shard.access)
            none = [] if kept.any() else [0]
            records.append(np.append(report.mark_records[kept], none))
            offsets.append(np.append(report.mark_offsets[kept], none))
            breaks.append(np.append(reached[kept], none))
        return cls(
            shards,
            _starts([report.records for report in reports]),
            np.array([report.nbytes for report in reports], np.int64),
            _starts([len(marks) for marks in records]),
            np.concatenate(records).astype(np.int64),
            np.concatenate(offsets).astype(np.int64),
            *((np.concatenate(breaks).astype(bool), tails) if tails.any() else ()),
        )

    @property
    def counts(self) -> NDArray[np.int64]:
        """Records of each shard."""
        return np.diff(self.starts)

    @property
    def nrows(self) -> int:
        """Records of all shards."""
        return int(self.starts[-1])

    def runs(self, start: int, stop: int) -> Iterator[Run]:
        """Rows ``start`` to ``stop`` as stretches of shards, in order."""
        shard = int(np.searchsorted(self.starts, start, side="right")) - 1
        while start < stop:
            first = start - int(self.starts[shard])
            end = int(self.starts[shard + 1])
            past = min(stop, end, start + self._unbroken(shard, first))
            if past > start:
                marks = self.mark_records[self.mark_splits[shard] : self.mark_splits[shard + 1]]
                mark = int(np.searchsorted(marks, first, side="right")) - 1
                yield self._run(shard, mark, first, past - int(self.starts[shard]), None)
            start = past
            shard += past == end

    def picks(self, rows: NDArray[np.int64]) -> Iterator[Run]:
        """Ascending rows, each once, as runs: those of one shard are one as long as no mark is passed between two."""
        shards = np.searchsorted(self.starts, rows, side="right") - 1
        cuts = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(rows)]
        for begin, end in pairwise(cuts if len(rows) else []):
            shard = int(shards[begin])
            yield from self._shard_picks(shard, rows[begin:end] - self.starts[shard])

    def _shard_picks(self, shard: int, records: NDArray[np.int64]) -> Iterator[Run]:
        """Ascending records of a shard as runs."""
        marks = slice(self.mark_splits[shard], self.mark_splits[shard + 1])
        places = np.searchsorted(self.mark_records[marks], records, side="right") - 1
        # What lies between two marks is read as a whole, or not at all.
        apart = np.diff(places) > 1
        if self.breaks is not None:
            apart |= np.diff(np.cumsum(self.breaks[marks])[places]) > 0
        cuts = [0, *(np.flatnonzero(apart) + 1).tolist(), len(records)]
        for begin, end in pairwise(cuts):
            first, stop = int(records[begin]), int(records[end - 1]) + 1
            wanted = records[begin:end] if stop - first > end - begin else None
            yield self._run(shard, int(places[begin]), first, stop, wanted)

    def _run(self, shard: int, mark: int, first: int, stop: int, wanted: NDArray[np.int64] | None) -> Run:
        """Make a run of records of a shard that are reached from its mark number `mark`."""
        mark += int(self.mark_splits[shard])
        ends = stop == int(self.starts[shard + 1] - self.starts[shard])
        return Run(
            shard=self.shards[shard],
            first=first,
            count=stop - first if wanted is None else len(wanted),
            mark=int(self.mark_records[mark]),
            offset=int(self.mark_offsets[mark]),
            past=self._past(shard, stop),
            last=ends and not (self.tails is not None and self.tails[shard]),
            wanted=wanted,
        )

    def _unbroken(self, shard: int, record: int) -> int:
        """Count the records from one on that follow each other."""
        if self.breaks is None:
            return self.nrows
        marks = slice(self.mark_splits[shard], self.mark_splits[shard + 1])
        ends = self.mark_records[marks][self.breaks[marks]]
        place = int(np.searchsorted(ends, record, side="right"))
        return int(ends[place]) - record if place < len(ends) else self.nrows

    def _past(self, shard: int, record: int) -> int:
        """Find the byte of the first mark at or after a record, or the end of the shard."""
        first, end = int(self.mark_splits[shard]), int(self.mark_splits[shard + 1])
        mark = first + int(np.searchsorted(self.mark_records[first:end], record))
        return int(self.mark_offsets[mark] if mark < end else self.nbytes[shard])

    def mark_rows(self, nbytes: int) -> NDArray[np.int64]:
        """Rows that are reached directly and lie about `nbytes` apart."""
        shard = np.repeat(np.arange(len(self.shards)), np.diff(self.mark_splits))
        bucket = self.mark_offsets // nbytes
        fresh = np.ones(len(shard), bool)
        fresh[1:] = (shard[1:] != shard[:-1]) | (bucket[1:] != bucket[:-1])
        return self.starts[shard[fresh]] + self.mark_records[fresh]


@dataclass(frozen=True, slots=True, eq=False)
class ByteChunks:
    """Chunks of shards whose records are not counted, by bytes.

    Attributes
    ----------
    shards : Shards
        The files.
    borders : ndarray of int64, shape (nchunks + 1,)
        First byte of each chunk, and the number of bytes, in all shards as if they were one file.
    """

    shards: Shards
    borders: NDArray[np.int64]

    @classmethod
    def planned(
        cls, shards: Shards, ratio: float, size: float, closed: NDArray[np.bool_], *, coalesce: bool
    ) -> ByteChunks:
        """Cut shards as `borders_by_bytes` does.

        Parameters
        ----------
        shards : Shards
            What is to be cut.
        ratio : float
            Decoded bytes of a stored one.
        size, coalesce
            As `borders_by_bytes` takes them.
        closed : ndarray of bool, shape (nshards,)
            Shards that can't be entered but at their beginnings.
        """
        each = np.full(len(shards), ratio)
        each[closed] = np.minimum(each[closed], 0.999 * size / np.maximum(shards.sizes[closed], 1))
        collection = Collection.counted(shards, shards.sizes.tolist())
        return cls(shards, borders_by_bytes(collection, each, size, coalesce=coalesce))

    @classmethod
    def by_shard(cls, shards: Shards) -> ByteChunks:
        """One chunk per shard that holds anything."""
        return cls(shards, _distinct(_starts(shards.sizes.tolist())))

    def pieces(self, chunk: int) -> Iterator[tuple[Shard, Split | None]]:
        """Shards of a chunk, and which part of each; None for all of it."""
        starts = _starts(self.shards.sizes.tolist())
        start, stop = self.borders[chunk : chunk + 2].tolist()
        shard = int(np.searchsorted(starts, start, side="right")) - 1
        while start < stop:
            first, end = starts[shard : shard + 2].tolist()
            past = min(stop, end)
            if first < start or past < end:
                after = self.borders[(self.borders > past) & (self.borders < end)].tolist()
                after += [end] if past < end else []
                # Only what is not compressed was split.
                plain = replace(self.shards[shard], compression=None)
                yield plain, Split(start - first, past - first, tuple(byte - first for byte in after))
            elif first < end:
                yield self.shards[shard], None
            start, shard = past, shard + 1


def row_numbers(rows: Rows) -> NDArray[np.int64]:
    """Rows one by one; NumPy itself would make a Python int of each number of a range."""
    return np.arange(rows.start, rows.stop, rows.step, dtype=np.int64) if isinstance(rows, range) else rows


def row_runs(collection: Collection, rows: Rows) -> Iterator[Run]:
    """Ascending rows, each once, as runs."""
    if isinstance(rows, range) and rows.step == 1:
        return collection.runs(rows.start, rows.stop)
    return collection.picks(row_numbers(rows))


def pick_rows(rows: Rows, key: Any) -> Rows:
    """``rows[key]`` for a slice, an int, a list of ints or a mask.

    Raises
    ------
    IndexError
        If a number lies outside or a mask has another length, as NumPy does.
    """
    if isinstance(key, slice):
        picked = rows[key]
        return picked if isinstance(picked, range) or len(picked) != 1 else _consecutive(int(picked[0]), 1)
    index = np.asarray(key)
    if index.dtype == bool:
        if index.shape != (len(rows),):
            raise IndexError(f"a mask for {len(rows)} rows has shape ({len(rows)},); got {index.shape}")
        index = np.flatnonzero(index)
    if index.size == 0:
        return range(0)
    if index.ndim > 1 or index.dtype.kind not in "iu":
        raise IndexError(f"rows are picked by ints, slices, lists of ints or masks; got {key!r}")
    index = np.atleast_1d(index.astype(np.int64))
    outside = index[(index < -len(rows)) | (index >= len(rows))]
    if outside.size:
        raise IndexError(f"row {int(outside[0])} is out of bounds for {len(rows)} rows")
    index = np.where(index < 0, index + len(rows), index)
    index = rows.start + index * rows.step if isinstance(rows, range) else rows[index]
    if (np.diff(index) == 1).all():
        return _consecutive(int(index[0]), len(index))
    return index


def borders_by_shard(collection: Collection) -> NDArray[np.int64]:
    """One chunk per shard that holds records."""
    return _distinct(collection.starts)


def borders_by_rows(nrows: int, rows: int) -> NDArray[np.int64]:
    """Chunks of `rows` rows each, the last one what is left."""
    return _distinct(np.append(np.arange(0, nrows, rows), nrows))


def borders_by_bytes(
    collection: Collection, row_nbytes: NDArray[np.float64], size: float, *, coalesce: bool
) -> NDArray[np.int64]:
    """Chunks of about `size` decoded bytes.

    Parameters
    ----------
    collection : Collection
        What is to be cut.
    row_nbytes : ndarray of float, shape (nshards,)
        Decoded bytes of a row of each shard.
    size : float
        Bytes of a chunk: larger shards are split evenly.
    coalesce : bool
        Join neighbouring shards as long as they stay below `size`; otherwise only as far as `MOST_CHUNKS` asks, and
        never past `size`: many chunks are slow, large ones may not fit into memory.
    """
    counts = collection.counts
    decoded = counts * row_nbytes
    pieces = np.maximum(np.ceil(decoded / size), 1).astype(np.int64)
    pieces = np.minimum(pieces, np.maximum(counts, 1))
    first = np.repeat(np.cumsum(pieces) - pieces, pieces)
    piece = np.arange(len(first)) - first
    borders = np.repeat(collection.starts[:-1], pieces) + piece * np.repeat(counts, pieces) // np.repeat(pieces, pieces)
    cut = _distinct(np.append(borders, collection.nrows))
    most = size if coalesce else min(size, decoded.sum() / MOST_CHUNKS * 2)
    if not coalesce and len(cut) - 1 <= MOST_CHUNKS:
        return cut
    # Bytes up to each border; a border stays where the next piece would not fit into what is open.
    cumulative = np.interp(cut, collection.starts, np.concatenate([[0.0], np.cumsum(decoded)]))
    past = cumulative.tolist()
    kept, opened = [0], 0.0
    for index in range(1, len(cut) - 1):
        if past[index + 1] - opened > most:
            kept.append(index)
            opened = past[index]
    return cut[[*kept, len(cut) - 1]]


def finer_borders(collection: Collection, rows: Rows, borders: NDArray[np.int64], nbytes: int) -> NDArray[np.int64]:
    """Add borders between the given ones, about `nbytes` apart, where a shard can be entered."""
    if not (isinstance(rows, range) and rows.step == 1):
        return borders
    more = collection.mark_rows(nbytes) - rows.start
    return np.union1d(borders, more[(more > borders[0]) & (more < borders[-1])]) if len(rows) else borders


def _consecutive(start: int, count: int) -> range:
    return range(start, start + count)


def _starts(counts: Sequence[int]) -> NDArray[np.int64]:
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(np.asarray(counts, np.int64), out=starts[1:])
    return starts


def _distinct(borders: NDArray[np.int64]) -> NDArray[np.int64]:
    """Borders without empty chunks; a collection without rows keeps one."""
    distinct = np.unique(borders)
    return distinct if len(distinct) > 1 else np.array([0, 0])
