"""Byte splits of uncompressed shards, and runs of records: what a task reads.

Tasks find the first record of a split without reading the bytes before it.

A record belongs to the split that contains the start of its header. The first record is found by searching for a
header, since the length has a CRC of its own. A payload may contain records too. A header is therefore accepted only if
headers follow each other from it: here for at least 4 MiB, and to the end of the split when it is read. Otherwise the
headers of the shard are walked from the beginning, which is slow but certain.

One case is left: a payload that contains records throughout a whole split. The split where that payload begins knows
its length and raises an error. Adjacent splits thus either meet exactly, or one of them raises.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.errors import CorruptRecordError, Location, ShardChangedError, TFRecordError, plural
from dask_tfrecord.records.framing import HEADER, Window, framing_error, iterate_records
from dask_tfrecord.records.index import IndexEntries, ShardIndex, index_entries, walk
from dask_tfrecord.settings import limits
from dask_tfrecord.storage.shard import Shard

# Bytes of a window.
_BLOCK = 256 << 10


@dataclass(frozen=True, slots=True)
class ByteSplit:
    """Byte range of an uncompressed shard.

    Attributes
    ----------
    start, stop : int
        Byte range. The last split ends with the shard.
    later_stops : tuple of int
        Ends of the following splits of the shard.
    """

    start: int
    stop: int
    later_stops: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SplitEntry:
    """First record of a split.

    Attributes
    ----------
    offset : int
        Offset of its header. If no record begins in the split, the end of the record that covers the split.
    record : int or None
        Number of the record in the shard; None if the records before it were not counted.
    """

    offset: int
    record: int | None


def begins_with_header(shard: Shard) -> bool:
    """Return whether the CRC of the first length of an uncompressed shard matches."""
    with Window(shard, block_size=HEADER, stop=HEADER) as window:
        return window.fill(HEADER) and _native.find_header(window.buffer, window.begin, window.end, shard.size) == 0


def even_splits(size: int, nbytes: int) -> list[ByteSplit]:
    """Return the splits of a shard of `size` bytes: `nbytes` each, and the rest."""
    stops = [*range(nbytes, size, nbytes), size]
    return [
        ByteSplit(start, stop, tuple(stops[number + 1 :]))
        for number, (start, stop) in enumerate(zip([0, *stops], stops, strict=False))
    ]


def find_entry(shard: Shard, split: ByteSplit, *, check_crc: bool = True) -> SplitEntry | None:
    """Find the first record of a split.

    Parameters
    ----------
    shard : Shard
        Uncompressed shard.
    split : ByteSplit
        Split of the shard.
    check_crc : bool, default True
        True if the caller checks the CRCs of all records. A wrong first header is then detected by the caller, and
        headers are not followed here to the end of the split. CRCs of lengths are always checked here.

    Returns
    -------
    SplitEntry or None
        None if no record begins in the split. An entry without a record number is likely, but not certain.

    Raises
    ------
    CorruptRecordError
        If the shard is damaged before the split, as far as it was read.
    """
    if split.start == 0:
        return SplitEntry(0, 0)
    with Window(shard, split.start, block_size=_BLOCK, stop=min(split.start + _BLOCK, shard.size)) as window:
        end = min(split.stop, split.start + limits().search_decoding_nbytes)
        found = _search_header(window, end)
        if not found and end == split.stop:
            return None
        offset = window.offset
        is_long = check_crc and split.stop - offset >= limits().verified_nbytes
        if found and (is_long or _headers_follow(window, split.stop)):
            return SplitEntry(offset, None)
    return find_entry_by_walk(shard, split)


def find_entry_by_walk(shard: Shard, split: ByteSplit) -> SplitEntry:
    """Find the first record of a split by walking headers from the beginning of the shard.

    Parameters
    ----------
    shard, split
        See `find_entry`.

    Returns
    -------
    SplitEntry
        Entry with its record number.

    Raises
    ------
    CorruptRecordError
        If the shard is damaged before the split.
    """
    with Window(shard, stop=split.start) as window:
        count = index_entries(window, stop=split.start).count
        return SplitEntry(window.offset, count)


def check_following_splits(shard: Shard, split: ByteSplit, end: int, record: int) -> None:
    """Check that the following splits begin where this one ends.

    Parameters
    ----------
    shard, split
        See `find_entry`.
    end : int
        Offset of the end of the last record of the split.
    record : int
        Number of the record after it.

    Raises
    ------
    CorruptRecordError
        If the header at `end` is damaged, so that the next split would begin after the damage.
    TFRecordError
        If the last record contains records throughout the next split, which would read them as records of the shard.
    """
    start = split.stop
    for stop in split.later_stops:
        if start > end:
            return
        with Window(shard, start, block_size=_BLOCK, stop=min(end + HEADER, shard.size)) as window:
            misled = _search_header(window, min(stop, end))
            if misled and _headers_follow(window, stop):
                raise TFRecordError(
                    f"the payload contains records throughout bytes {start} to {stop}, where they cannot be "
                    f"distinguished from records of the shard. Use larger chunks, or counts='auto'",
                    Location(shard.path, None, window.offset),
                )
            if not misled and end < stop:
                _check_header(window, record)
        if misled and end < stop:
            with Window(shard, end, block_size=HEADER, stop=end + HEADER) as window:
                _check_header(window, record)
        start = stop


def split_entries(shard: Shard, split: ByteSplit, *, check_crc: bool = True) -> IndexEntries | None:
    """Walk the headers of a split, from the first intact header within 16 MiB.

    Parameters
    ----------
    shard, split
        See `find_entry`.
    check_crc : bool, default True
        Check the CRC of every length.

    Returns
    -------
    IndexEntries or None
        Entries, numbered from 0. None if headers do not follow each other, or no header was found.
    """
    with Window(shard, split.start, stop=split.stop) as window:
        if split.start and not _search_header(window, min(split.stop, split.start + limits().search_counting_nbytes)):
            return None
        try:
            return index_entries(window, stop=split.stop, check_crc=check_crc)
        except ShardChangedError:
            raise
        except CorruptRecordError:
            return None


def join_entries(
    shard: Shard, splits: Sequence[ByteSplit], split_indexes: Sequence[IndexEntries | None], *, check_crc: bool = True
) -> ShardIndex:
    """Join the index entries of all splits of a shard.

    Entries that do not begin at the end of the split before belong to records within a payload. That split is walked
    again from there.

    Parameters
    ----------
    shard : Shard
        Uncompressed shard.
    splits : sequence of ByteSplit
        All splits of the shard.
    split_indexes : sequence of (IndexEntries or None)
        Result of `split_entries` for each split.
    check_crc : bool, default True
        Check the CRC of every length that is read again.

    Returns
    -------
    ShardIndex
        Index of the shard.

    Raises
    ------
    CorruptRecordError
        If the shard is damaged.
    """
    count = end = 0
    records, offsets = [], []
    for split, entries in zip(splits, split_indexes, strict=True):
        if end >= split.stop > 0:
            continue
        if entries is None or entries.offsets[0] != end:
            with Window(shard, end, stop=split.stop) as window:
                entries = index_entries(window, first=count, stop=split.stop, check_crc=check_crc)
                records.append(entries.records)
        else:
            records.append(entries.records + count)
        offsets.append(entries.offsets)
        count, end = count + entries.count, entries.end
    return ShardIndex(count, np.concatenate(records), np.concatenate(offsets), end, None)


def _search_header(window: Window, stop: int) -> bool:
    """Move the window to the first intact header that begins before `stop`, or to `stop`; return whether one exists."""
    size = window.shard.size
    while window.offset < stop and window.fill(HEADER):
        # Headers that begin before `stop` and are completely in view.
        end = min(window.end, window.begin + stop - window.offset + HEADER - 1)
        found = _native.find_header(window.buffer, window.begin, end, size - window.offset)
        window.advance(found if found >= 0 else end - window.begin - HEADER + 1)
        if found >= 0:
            return True
    return False


def _check_header(window: Window, record: int) -> None:
    """Raise CorruptRecordError if the header at the window is damaged."""
    available = window.shard.size - window.offset
    intact = window.fill(HEADER) and (
        _native.find_header(window.buffer, window.begin, window.begin + HEADER, available) == 0
    )
    if not intact:
        raise framing_error(window, record)


def _headers_follow(window: Window, stop: int) -> bool:
    """Return whether headers follow each other from the window, to `stop` and for at least 4 MiB."""
    try:
        for _ in walk(window, stop=max(stop, window.offset + limits().verified_nbytes)):
            pass
    except ShardChangedError:
        raise
    except CorruptRecordError:
        return False
    return True


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Records of one shard that one task reads: consecutive records, or selected records close to each other.

    Attributes
    ----------
    shard : Shard
        Shard of the records.
    first : int
        Number of the first record in the shard.
    count : int or None
        Number of records; None for all records from the first one to the end of the shard.
    entry_record : int
        Record number of an index entry at or before the first record.
    offset : int
        Offset of the entry's header in the decompressed stream.
    stop_offset : int
        Offset at or after the end of the run, as far as it is known; it limits remote ranges.
    ends_shard : bool
        True if the run ends where the shard ends: bytes that follow are an error.
    split : ByteSplit or None
        If set, the run consists of all records that begin in this split, from the entry on.
    selected : int64 array of shape (count,), or None
        Ascending numbers of the records in the shard; None if they are consecutive.
    total : int or None
        Number of records of the shard as given by the caller; None if they were counted or the run reaches the end.
    """

    shard: Shard
    first: int
    count: int | None
    entry_record: int
    offset: int
    stop_offset: int
    ends_shard: bool
    split: ByteSplit | None = None
    selected: NDArray[np.int64] | None = None
    total: int | None = None

    def record_number(self, index: int) -> int:
        """Return the number in the shard of a record of the run."""
        return self.first + index if self.selected is None else int(self.selected[index])


def full_run(shard: Shard) -> Run:
    """Return the run of all records of a shard, whose number may be unknown."""
    return Run(shard, first=0, count=None, entry_record=0, offset=0, stop_offset=shard.size, ends_shard=True)


def iterate_payloads(runs: Iterable[Run], *, check_crc: bool = True) -> Generator[tuple[Location, bytes], None, None]:
    """Iterate over the payloads of runs; one payload is in memory at a time.

    Parameters
    ----------
    runs : iterable of Run
        Runs to read, in order.
    check_crc : bool, default True
        Check both CRCs of every record.

    Yields
    ------
    location : Location
        Location of the record.
    payload : bytes
        Payload of the record.

    Raises
    ------
    CorruptRecordError
        If a record is damaged, or a shard has fewer or more records than were counted.
    """
    for run in runs:
        end = None if run.count is None else run.first + run.count
        number = run.entry_record
        # The caller may stop after the first records of a complete shard.
        stop = None if run.count is None else run.stop_offset
        stream = iterate_records(run.shard, check_crc=check_crc, record=run.entry_record, offset=run.offset, stop=stop)
        with closing(stream) as records:
            # Records after the run are read by other tasks, but a shard must end with its last record.
            while number != end or run.ends_shard:
                found = next(records, None)
                if found is None:
                    break
                if number == end:
                    raise _count_error("more bytes follow", run.shard, number)
                if number >= run.first:
                    yield Location(run.shard.path, number, found[0]), found[1]
                number += 1
        if end is not None and number < end:
            raise _count_error(f"{plural(end - number, 'more record')} should follow", run.shard, number)


def _count_error(problem: str, shard: Shard, record: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"{problem} after {plural(record, 'record')}: the file has changed since it was counted; open the "
        f"collection again",
        Location(shard.path, record),
    )
