"""Sparse index of a shard: its number of records, and the offsets of some of them.

Index entries are at least one MiB apart, so the index of a billion records takes megabytes. A record between two
entries is found by walking headers from the entry before it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.errors import CorruptRecordError, Location, ShardChangedError, plural
from dask_tfrecord.records.framing import FOOTER, HEADER, Window, framing_error, iterate_records
from dask_tfrecord.settings import limits
from dask_tfrecord.storage.shard import Shard, is_local

__all__ = [
    "IndexEntries",
    "ShardIndex",
    "Step",
    "check_count",
    "index_entries",
    "scan_shard",
    "truncation_error",
    "walk",
]

# From this mean record size on, reading single headers and skipping payloads is faster than reading everything.
_LARGE_RECORD = 256 << 10
_HEADER_BLOCK = 4 << 10


@dataclass(frozen=True, slots=True, eq=False)
class ShardIndex:
    """Index of a shard.

    Attributes
    ----------
    count : int
        Number of records in the shard.
    records : int64 array
        Record numbers of the entries, ascending. The first entry is record 0, also if the shard is empty.
    offsets : int64 array
        Offset of each entry's header in the decompressed stream; entries are at least one MiB apart.
    nbytes : int
        Bytes of the decompressed stream.
    compression : str or None
        Detected compression: None, ``"gzip"`` or ``"zlib"``.
    access : bool
        True if a compressed shard has access points.
    """

    count: int
    records: NDArray[np.int64]
    offsets: NDArray[np.int64]
    nbytes: int
    compression: str | None
    access: bool = False

    @property
    def reachable(self) -> bool:
        """True if an entry can be read without reading everything before it."""
        return self.compression is None or self.access


def scan_shard(shard: Shard, *, check_crc: bool = True) -> ShardIndex:
    """Walk the headers of a shard from end to end.

    Parameters
    ----------
    shard : Shard
        Shard to scan. In an uncompressed shard, large payloads are skipped.
    check_crc : bool, default True
        Check the CRC of every length. Payloads are never checked.

    Returns
    -------
    ShardIndex
        Index of the shard.

    Raises
    ------
    CorruptRecordError
        If a header is damaged, or the shard ends within a record.
    """
    with Window(shard, block_size=limits().index_window_nbytes, stop=shard.size) as window:
        entries = index_entries(window, check_crc=check_crc)
        return ShardIndex(entries.count, entries.records, entries.offsets, entries.end, window.compression)


@functools.lru_cache(maxsize=4096)
def _scanned_count(shard: Shard, check_crc: bool) -> int:
    return scan_shard(shard, check_crc=check_crc).count


def check_count(shard: Shard, count: int, *, check_crc: bool = True) -> None:
    """Compare a number of records with the headers of the shard; each process walks them once.

    Raises
    ------
    CorruptRecordError
        If the shard has another number of records, or is damaged.
    """
    found = _scanned_count(shard, check_crc)
    if found != count:
        raise CorruptRecordError(
            f"{plural(count, 'record')} expected, {found:,} found: the counts given are wrong, and so are the numbers "
            f"of rows; counts='scan' counts the records",
            Location(shard.path),
        )


@dataclass(frozen=True, slots=True, eq=False)
class IndexEntries:
    """Index entries of consecutive records.

    Attributes
    ----------
    count : int
        Number of records.
    records : int64 array
        Numbers of the entries in the shard, beginning with the first record.
    offsets : int64 array
        Offset of each entry's header.
    end : int
        Offset of the end of the last record.
    """

    count: int
    records: NDArray[np.int64]
    offsets: NDArray[np.int64]
    end: int


def index_entries(window: Window, *, first: int = 0, stop: int | None = None, check_crc: bool = True) -> IndexEntries:
    """Walk headers from the position of a window, and collect index entries.

    Parameters
    ----------
    window, first, stop, check_crc
        See `walk`.

    Returns
    -------
    IndexEntries
        Entries of the records before `stop`.

    Raises
    ------
    CorruptRecordError
        If a header is damaged, or the shard ends within a record.
    """
    records, offsets, count = [first], [window.offset], 0
    for step in walk(window, first=first, stop=stop, check_crc=check_crc):
        if step.offset - offsets[-1] >= limits().entry_nbytes:
            records.append(step.first)
            offsets.append(step.offset)
        count = step.first + step.count - first
    return IndexEntries(count, np.array(records, np.int64), np.array(offsets, np.int64), window.offset)


@dataclass(frozen=True, slots=True)
class Step:
    """Consecutive records whose headers are in view of a window at the same time.

    Attributes
    ----------
    first : int
        Number of the first record in the shard.
    count : int
        Number of records.
    offset : int
        Offset of the first record's header in the decompressed stream.
    """

    first: int
    count: int
    offset: int


def walk(window: Window, *, first: int = 0, stop: int | None = None, check_crc: bool = True) -> Iterator[Step]:
    """Walk headers from the position of a window, one block at a time.

    Parameters
    ----------
    window : Window
        Window at a record. It stays at the records of a step until the next step is requested, and ends after the last
        record.
    first : int, default 0
        Number of the record at the window.
    stop : int, optional
        Offset that ends the walk: records that begin there or later are not visited. By default the walk ends with the
        shard.
    check_crc : bool, default True
        Check the CRC of every length.

    Yields
    ------
    Step
        Consecutive records. The last one may extend past the bytes in view, the others are completely in view.

    Raises
    ------
    CorruptRecordError
        If a header is damaged, or the shard ends within a record.
    """
    shard, count = window.shard, first
    last: Step | None = None
    local = is_local(shard.path)
    large = _LARGE_RECORD
    if not local:
        # Imported here because reading local files does not need dask.
        from dask_tfrecord.settings import read_nbytes

        large = read_nbytes("storage.range-size")
    while (stop is None or window.offset < stop) and window.fill(HEADER):
        border, end = window.offset, window.end
        if stop is not None:
            # Headers that begin before `stop`, including all bytes of the last one.
            end = min(end, window.begin + max(stop - border, HEADER))
        scanned = _native.scan(window.buffer, window.begin, end, -1, check_crc)
        walked, nbytes = scanned.records, scanned.consumed
        if walked:
            last = Step(count, walked, border)
            yield last
        if not window.advance(nbytes):
            raise truncation_error(shard, border, count, walked)
        count += walked
        if scanned.stop is _native.Stop.FRAMING or walked == 0:
            raise _header_error(window, count, last)
        if window.compression is None:
            # Payloads are skipped if they are large, or if reading them takes longer than another remote request.
            skips = nbytes >= walked * large
            window.block_size = _HEADER_BLOCK if skips else limits().index_window_nbytes
            window.expect(
                window.offset + _HEADER_BLOCK if skips and not local else shard.size if stop is None else stop
            )
    if (stop is None or window.offset < stop) and not window.exhausted:
        raise _header_error(window, count, last)


def _header_error(window: Window, count: int, last: Step | None) -> CorruptRecordError:
    """Return the error at a damaged header; the cause may be a wrong length in the record before it."""
    if last is not None:
        try:
            with Window(window.shard, last.offset) as again:
                offset = _advance_to_last(again, last.count)
            with closing(iterate_records(window.shard, record=count - 1, offset=offset)) as records:
                next(records)
        except ShardChangedError:
            raise
        except CorruptRecordError as error:
            return error
    return framing_error(window, count)


def truncation_error(shard: Shard, border: int, first: int, walked: int) -> CorruptRecordError:
    """Return the error for the last of `walked` records, which the end of the shard truncates."""
    with Window(shard, border) as window:
        _advance_to_last(window, walked)
        return framing_error(window, first + walked - 1)


def _advance_to_last(window: Window, count: int) -> int:
    """Move a window to the last of `count` records with intact headers; return its offset."""
    for _ in range(count - 1):
        window.fill(HEADER)
        length = int.from_bytes(window.view(0, 8), "little")
        window.advance(HEADER + length + FOOTER)
    return window.offset
