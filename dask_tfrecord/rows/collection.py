"""Find the bytes and shards of the rows of a chunk, in NumPy arrays, without reading.

A `Collection` has the record count of each shard and the offsets of some records. Chunks are borders between rows. Only
the task that reads a chunk converts its rows to `RecordRange` values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.blocks import splits_of, union
from dask_tfrecord.errors import plural
from dask_tfrecord.records.index import RecordRange, ShardIndex, kept_offsets
from dask_tfrecord.records.shard_check import ShardReport
from dask_tfrecord.rows.permutation import Permutation
from dask_tfrecord.settings import limits
from dask_tfrecord.shards.shard import Shard, Shards, is_local

# Row numbers of a collection: a range or any numbers.
RowNumbers = range | NDArray[np.int64]
# Rows that are picked by their place: a slice, a number, numbers, or a mask.
RowKey = slice | int | Sequence[int] | NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Collection:
    """Shards with counted records."""

    shards: Shards
    starts: NDArray[np.int64]  # number of the first row of each shard, and the number of rows
    nbytes: NDArray[np.int64]  # bytes of each shard, decompressed where that is known
    entry_splits: NDArray[np.int64]  # index entries `entry_splits[i]` to `entry_splits[i + 1]` belong to shard i
    entry_records: NDArray[np.int64]  # record number of each index entry, within its shard
    entry_offsets: NDArray[np.int64]  # offset of its header in the decompressed stream
    # True for each index entry before which bytes are lost, so that the previous record does not end there.
    breaks: NDArray[np.bool_] | None = None
    # True for each shard that lost bytes after its last record. Both are None while all shards are intact.
    tails: NDArray[np.bool_] | None = None
    counts_given: bool = False  # by the user, and not verified

    @classmethod
    def from_counts(cls, shards: Shards, counts: Sequence[int]) -> Collection:
        """Create a collection from record counts alone, without index entries."""
        number = len(shards)
        return cls(
            shards,
            splits_of(counts),
            shards.sizes,
            np.arange(number + 1),
            np.zeros(number, np.int64),
            np.zeros(number, np.int64),
            counts_given=True,
        )

    @classmethod
    def from_indexes(cls, shards: Shards, indexes: Sequence[ShardIndex]) -> Collection:
        """Create a collection from the indexes of shards."""
        # Without access points, a compressed shard can only be read from its start.
        entries = [len(index.records) if index.reachable else 1 for index in indexes]
        empty = np.zeros(0, np.int64)
        return cls(
            shards,
            splits_of([index.count for index in indexes]),
            np.array([index.nbytes for index in indexes], np.int64),
            splits_of(entries),
            np.concatenate([empty, *(index.records[:n] for index, n in zip(indexes, entries, strict=True))]),
            np.concatenate([empty, *(index.offsets[:n] for index, n in zip(indexes, entries, strict=True))]),
        )

    @classmethod
    def from_reports(cls, shards: Shards, reports: Sequence[ShardReport]) -> Collection:
        """Create a collection of the intact records of damaged shards."""
        records, offsets, breaks = [], [], []
        tails = np.array([bool(report.lost) for report in reports])
        for shard, report in zip(shards, reports, strict=True):
            reached = np.isin(report.entry_offsets, report.starts)
            # Without access points, a compressed shard is read from its start and from the end of each damaged range.
            kept = reached | (report.compression is None or shard.access)
            none = [] if kept.any() else [0]
            records.append(np.append(report.entry_records[kept], none))
            offsets.append(np.append(report.entry_offsets[kept], none))
            breaks.append(np.append(reached[kept], none))
        return cls(
            shards,
            splits_of([report.records for report in reports]),
            np.array([report.nbytes for report in reports], np.int64),
            splits_of([len(entries) for entries in records]),
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

    def runs(self, start: int, stop: int) -> Iterator[RecordRange]:
        """Yield the rows ``start`` to ``stop`` as runs of consecutive records of a shard."""
        shard = int(np.searchsorted(self.starts, start, side="right")) - 1
        while start < stop:
            first = start - int(self.starts[shard])
            end = int(self.starts[shard + 1])
            past = min(stop, end, start + self._records_before_loss(shard, first))
            if past > start:
                entries = self.entry_records[self.entry_splits[shard] : self.entry_splits[shard + 1]]
                entry = int(np.searchsorted(entries, first, side="right")) - 1
                yield self._run_from_entry(shard, entry, first, past - int(self.starts[shard]), None)
            start = past
            shard += past == end

    def picks(self, rows: NDArray[np.int64]) -> Iterator[RecordRange]:
        """Yield ascending, distinct rows as runs; a run of a shard continues while it skips no index entry."""
        shards = np.searchsorted(self.starts, rows, side="right") - 1
        cuts = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(rows)]
        for begin, end in pairwise(cuts if len(rows) else []):
            shard = int(shards[begin])
            yield from self._shard_picks(shard, rows[begin:end] - self.starts[shard])

    def _shard_picks(self, shard: int, records: NDArray[np.int64]) -> Iterator[RecordRange]:
        """Yield ascending records of a shard as runs."""
        entries = slice(self.entry_splits[shard], self.entry_splits[shard + 1])
        positions = np.searchsorted(self.entry_records[entries], records, side="right") - 1
        # Bytes between two index entries are read completely or not at all.
        apart = np.diff(positions) > 1
        if self.breaks is not None:
            apart |= np.diff(np.cumsum(self.breaks[entries])[positions]) > 0
        kept, known = self._kept(shard, self.shards[shard]), np.zeros(len(records), bool)
        if kept is not None:
            begins, ends, known = _bytes_of(kept, records)
            if known.any():
                # Ranges of both kinds would make more remote requests.
                known &= known.all() or is_local(self.shards.paths[shard])
                known &= _are_sparse(begins[known], ends[known])
                apart = (apart & ~known[1:]) | (known[1:] != known[:-1])
        cuts = [0, *(np.flatnonzero(apart) + 1).tolist(), len(records)]
        for begin, end in pairwise(cuts):
            first, stop = int(records[begin]), int(records[end - 1]) + 1
            if known[begin]:
                span = slice(begin, end)
                yield self._known_run(self.shards[shard], shard, records[span], begins[span], ends[span])
                continue
            wanted = records[begin:end] if kept is not None or stop - first > end - begin else None
            yield self._run_from_entry(shard, int(positions[begin]), first, stop, wanted, kept)

    def pick(self, row: int) -> RecordRange:
        """Return one row as a run."""
        number = int(self.starts.searchsorted(row, "right")) - 1
        record, shard = row - int(self.starts[number]), self.shards[number]
        records, kept = np.array([record]), self._kept(number, shard)
        # As `_bytes_of`, without arrays: loaders read row by row.
        if kept is not None and kept[record + 1] and (kept[record] or not record):
            return self._known_run(shard, number, records, kept[record : record + 1], kept[record + 1 : record + 2])
        return next(self._shard_picks(number, records))

    def unordered(self, rows: NDArray[np.int64]) -> Iterator[RecordRange] | None:
        """Return runs of rows in any order; None where another order is faster, or the bytes of a row are unknown."""
        numbers = self.starts.searchsorted(rows, "right") - 1
        records = rows - self.starts[numbers]
        begins, ends = np.empty_like(rows), np.empty_like(rows)
        for number in union(numbers).tolist():
            kept, here = self._kept(number, self.shards[number]), numbers == number
            if kept is None:
                return None
            begins[here], ends[here], known = _bytes_of(kept, records[here])
            if not known.all():
                return None
        if (ends - begins).mean() < limits().large_row_nbytes:
            return None
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(rows)]
        spans = [slice(*cut) for cut in pairwise(cuts)]
        return (
            self._known_run(self.shards[number], number, records[span], begins[span], ends[span])
            for span, number in zip(spans, numbers[cuts[:-1]].tolist(), strict=True)
        )

    def _known_run(
        self,
        shard: Shard,
        number: int,
        records: NDArray[np.int64],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
    ) -> RecordRange:
        """Return a run of records whose bytes are known."""
        first = int(records[0])
        begin = int(begins[0])
        end = int(ends[-1])
        spans = (begins, ends)
        total = int(self.starts[number + 1] - self.starts[number]) if self.counts_given else None
        return RecordRange(shard, first, len(records), first, begin, end, False, None, records, total, spans=spans)

    def _kept(self, number: int, shard: Shard) -> NDArray[np.int64] | None:
        """Return the known offsets of the records of a shard that lost no bytes."""
        if self.breaks is not None:
            return None
        return kept_offsets.of(shard, int(self.starts[number + 1] - self.starts[number]))

    def _run_from_entry(
        self,
        shard: int,
        entry: int,
        first: int,
        stop: int,
        wanted: NDArray[np.int64] | None,
        kept: NDArray[np.int64] | None = None,
    ) -> RecordRange:
        """Return a run of records that is read from an index entry of the shard."""
        entry += int(self.entry_splits[shard])
        total = int(self.starts[shard + 1] - self.starts[shard])
        ends = stop == total
        return RecordRange(
            shard=self.shards[shard],
            first=first,
            count=stop - first if wanted is None else len(wanted),
            entry_record=int(self.entry_records[entry]),
            offset=int(self.entry_offsets[entry]),
            stop_offset=self._entry_past(shard, stop),
            ends_shard=ends and not (self.tails is not None and self.tails[shard]),
            selected=wanted,
            total=total if self.counts_given and not ends else None,
            kept=kept,
        )

    def _records_before_loss(self, shard: int, record: int) -> int:
        """Count the records from one up to the next lost bytes."""
        if self.breaks is None:
            return self.nrows
        entries = slice(self.entry_splits[shard], self.entry_splits[shard + 1])
        ends = self.entry_records[entries][self.breaks[entries]]
        position = int(np.searchsorted(ends, record, side="right"))
        return int(ends[position]) - record if position < len(ends) else self.nrows

    def _entry_past(self, shard: int, record: int) -> int:
        """Return the offset of the first index entry at or after a record, or the end of the shard."""
        first, end = int(self.entry_splits[shard]), int(self.entry_splits[shard + 1])
        entry = first + int(np.searchsorted(self.entry_records[first:end], record))
        return int(self.entry_offsets[entry] if entry < end else self.nbytes[shard])

    def stored_nbytes(self, rows: RowNumbers, spans: NDArray[np.int64]) -> NDArray[np.float64]:
        """Estimate the stored bytes in (n, 2) row ranges, interpolated between index entries."""
        known, offsets = self._known_offsets()

        def nbytes(first: NDArray[np.int64], past: NDArray[np.int64]) -> NDArray[np.float64]:
            return np.asarray(np.interp(past, known, offsets) - np.interp(first, known, offsets))

        if isinstance(rows, range) and rows.step == 1:
            return nbytes(spans[:, 0] + rows.start, spans[:, 1] + rows.start)
        picked = (row_numbers(rows[start:stop]) for start, stop in spans.tolist())
        return np.array([nbytes(numbers, numbers + 1).sum() for numbers in picked], np.float64)

    def _known_offsets(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return indexed rows, ascending, and their offsets, as if all shards were one file."""
        sizes = self.shards.sizes
        shard = np.repeat(np.arange(len(sizes)), np.diff(self.entry_splits))
        before = np.cumsum(sizes) - sizes
        scale = sizes / np.maximum(self.nbytes, 1)
        rows = np.append(self.starts[shard] + self.entry_records, self.nrows)
        offsets = np.append(before[shard] + self.entry_offsets * scale[shard], sizes.sum())
        # A row may have several entries, at the ends of empty shards: keep the first for row 0, the last for others.
        kept = np.append(rows[1:] != rows[:-1], True) & (rows > 0)
        return np.append(0, rows[kept]), np.append(0.0, offsets[kept])

    def entry_rows(self, nbytes: int) -> NDArray[np.int64]:
        """Return rows with an index entry, about `nbytes` apart."""
        shard = np.repeat(np.arange(len(self.shards)), np.diff(self.entry_splits))
        bucket = self.entry_offsets // nbytes
        fresh = np.ones(len(shard), bool)
        fresh[1:] = (shard[1:] != shard[:-1]) | (bucket[1:] != bucket[:-1])
        return self.starts[shard[fresh]] + self.entry_records[fresh]


def _bytes_of(
    kept: NDArray[np.int64], records: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return where records begin and end by `kept_offsets`, and whether both are known."""
    begins, ends = kept[records], kept[records + 1]
    return begins, ends, (ends > 0) & ((begins > 0) | (records == 0))


def _are_sparse(begins: NDArray[np.int64], ends: NDArray[np.int64]) -> bool:
    """Return whether ascending ranges of bytes are so far apart that each is read on its own."""
    gaps = begins[1:] - ends[:-1]
    return bool(gaps.sum() >= limits().gap_nbytes * np.count_nonzero(gaps))


def row_numbers(rows: RowNumbers) -> NDArray[np.int64]:
    """Return row numbers as an array. `np.asarray` of a range would create a Python int per row."""
    return np.arange(rows.start, rows.stop, rows.step, dtype=np.int64) if isinstance(rows, range) else rows


def row_runs(collection: Collection, rows: RowNumbers) -> Iterator[RecordRange]:
    """Yield ascending, distinct rows as runs."""
    if isinstance(rows, range) and rows.step == 1:
        return collection.runs(rows.start, rows.stop)
    return collection.picks(row_numbers(rows))


def pick_rows(rows: RowNumbers, key: RowKey) -> RowNumbers:
    """``rows[key]`` for a slice, an int, a list of ints or a mask."""
    if isinstance(key, slice):
        if not all(isinstance(bound, int | np.integer | None) for bound in (key.start, key.stop, key.step)):
            raise IndexError(f"the bounds of a slice of rows must be ints; got {key!r:.100}")
        picked = rows[key]
        return picked if isinstance(picked, range) or len(picked) != 1 else range(int(picked[0]), int(picked[0]) + 1)
    if isinstance(key, Permutation) and isinstance(rows, range) and rows == range(len(key)) and key.seed is not None:
        return key
    index = np.asarray(key)
    if index.dtype == bool:
        if index.shape != (len(rows),):
            advice = "" if index.shape else ": write ds.rows[ds['label'] == 3], with the name of your column"
            raise IndexError(
                f"a mask for {plural(len(rows), 'row')} must have shape ({len(rows)},); got {index.shape}{advice}"
            )
        index = np.flatnonzero(index)
    if index.size == 0:
        return range(0)
    if index.ndim > 1 or index.dtype.kind not in "iu":
        given = index.tolist()
        advice = f": write ds[{given!r:.100}] to pick columns" if index.dtype.kind == "U" else ""
        raise IndexError(f"rows are picked by ints, slices, lists of ints or masks; got {given!r:.100}{advice}")
    index = np.atleast_1d(index.astype(np.int64))
    outside = index[(index < -len(rows)) | (index >= len(rows))]
    if outside.size:
        raise IndexError(f"row {int(outside[0])} is out of bounds for {plural(len(rows), 'row')}")
    index = np.where(index < 0, index + len(rows), index)
    index = rows.start + index * rows.step if isinstance(rows, range) else rows[index]
    if (np.diff(index) == 1).all():
        return range(int(index[0]), int(index[0]) + len(index))
    return index
