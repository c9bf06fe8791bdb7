"""The index of a shard: how many records, and where some of them begin.

It is sparse, one mark per MiB or more: a billion records stay in megabytes, and a record between two marks is reached
by walking headers from the one before it. Imports errors and storage, and scans by `dask_tfrecord._native`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.errors import CorruptRecordError, ShardChangedError
from dask_tfrecord.records.framing import FOOTER, HEADER, Window, framing_error, iterate
from dask_tfrecord.storage.shards import Shard, is_local
from dask_tfrecord.storage.streams import RANGE

__all__ = ["BETWEEN_MARKS", "Marks", "ShardIndex", "Step", "cut_error", "mark", "scan_shard", "walk"]

BETWEEN_MARKS = 1 << 20

# Blocks end within marks' distance, so that marks lie little further apart than they have to.
_BLOCK = 512 << 10
# From this mean size on, reading a header and seeking to the next beats reading all that lies between.
_LARGE_RECORD = 256 << 10
_HEADER_BLOCK = 4 << 10


@dataclass(frozen=True, slots=True, eq=False)
class ShardIndex:
    """Where the records of a shard are.

    Attributes
    ----------
    count : int
        Records in the shard.
    records : int64 array
        Numbers of the marked records, ascending; the first mark is record 0, also where there is none.
    offsets : int64 array
        Byte of each marked record's header, in the decompressed stream; marks are at least one MiB apart.
    nbytes : int
        Length of the decompressed stream.
    compression : str or None
        As found: None, ``"gzip"`` or ``"zlib"``.
    access : bool
        Whether access points lead to the marks of compressed data.
    """

    count: int
    records: NDArray[np.int64]
    offsets: NDArray[np.int64]
    nbytes: int
    compression: str | None
    access: bool = False

    @property
    def reachable(self) -> bool:
        """Whether a mark is reached without reading all that lies before it."""
        return self.compression is None or self.access


def scan_shard(shard: Shard, *, check_crc: bool = True) -> ShardIndex:
    """Walk the headers of a shard from end to end.

    Parameters
    ----------
    shard : Shard
        What to scan. Large records are skipped unread, as far as nothing is compressed.
    check_crc : bool, default True
        Whether the CRC of every length has to hold. Payloads are not looked at.

    Returns
    -------
    ShardIndex
        Counts and marks.

    Raises
    ------
    CorruptRecordError
        If a header does not hold, or the shard ends within a record.
    """
    with Window(shard, block_size=_BLOCK, stop=shard.size) as window:
        marks = mark(window, check_crc=check_crc)
        return ShardIndex(marks.count, marks.records, marks.offsets, marks.end, window.compression)


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """Consecutive records, and where some of them are.

    Attributes
    ----------
    count : int
        How many.
    records : int64 array
        Numbers of the marked ones in the shard, the first of all included.
    offsets : int64 array
        Byte of each marked record's header.
    end : int
        The byte where the last one ends.
    """

    count: int
    records: NDArray[np.int64]
    offsets: NDArray[np.int64]
    end: int


def mark(window: Window, *, first: int = 0, stop: int | None = None, check_crc: bool = True) -> Marks:
    """Walk the headers as `walk` does, and mark records on the way.

    Parameters
    ----------
    window, first, stop, check_crc
        As `walk` takes them.
    """
    records, offsets, count = [first], [window.offset], 0
    for step in walk(window, first=first, stop=stop, check_crc=check_crc):
        if step.offset - offsets[-1] >= BETWEEN_MARKS:
            records.append(step.first)
            offsets.append(step.offset)
        count = step.first + step.count - first
    return Marks(count, np.array(records, np.int64), np.array(offsets, np.int64), window.offset)


@dataclass(frozen=True, slots=True)
class Step:
    """Records whose headers are in view together.

    Attributes
    ----------
    first : int
        Number of the first one in the shard.
    count : int
        How many.
    offset : int
        Byte of the first one's header in the decompressed stream.
    """

    first: int
    count: int
    offset: int


def walk(window: Window, *, first: int = 0, stop: int | None = None, check_crc: bool = True) -> Iterator[Step]:
    """Walk the headers from where a window stands, a block at a time.

    Parameters
    ----------
    window : Window
        Stands at a record. It stays at the records of a step until the next one is asked for, and in the end behind
        the last one.
    first : int, default 0
        Number of that record.
    stop : int, optional
        No record is of interest that begins at this byte or behind it; by default the walk goes to the shard's end.
    check_crc : bool, default True
        Whether the CRC of every length has to hold.

    Yields
    ------
    Step
        Records that are whole, but for the last one, which may reach beyond what is in view.

    Raises
    ------
    CorruptRecordError
        If a header does not hold, or the shard ends within a record.
    """
    shard, count = window.shard, first
    last: Step | None = None
    local = is_local(shard.path)
    large = _LARGE_RECORD if local else RANGE
    while (stop is None or window.offset < stop) and window.fill(HEADER):
        border, end = window.offset, window.end
        if stop is not None:
            # Headers that begin before, the last of them whole.
            end = min(end, window.begin + max(stop - border, HEADER))
        walked, nbytes, reason, _ = _native.scan(window.buffer, window.begin, end, -1, check_crc)
        if walked:
            last = Step(count, walked, border)
            yield last
        if not window.advance(nbytes):
            raise cut_error(shard, border, count, walked)
        count += walked
        if reason == _native.FRAMING or walked == 0:
            raise _no_header(window, count, last)
        if window.compression is None:
            # Not to be read for their headers: large records, and remote ones that take longer than a request.
            skips = nbytes >= walked * large
            window.block_size = _HEADER_BLOCK if skips else _BLOCK
            window.expect(
                window.offset + _HEADER_BLOCK if skips and not local else shard.size if stop is None else stop
            )
    if (stop is None or window.offset < stop) and not window.exhausted:
        raise _no_header(window, count, last)


def _no_header(window: Window, count: int, last: Step | None) -> CorruptRecordError:
    """Say what is wrong where no header holds: it may be that the record before is longer or shorter than it says."""
    if last is not None:
        try:
            with Window(window.shard, last.offset) as again:
                offset = _last_of(again, last.count)
            with closing(iterate(window.shard, record=count - 1, offset=offset)) as records:
                next(records)
        except ShardChangedError:
            raise
        except CorruptRecordError as error:
            return error
    return framing_error(window, count)


def cut_error(shard: Shard, border: int, first: int, walked: int) -> CorruptRecordError:
    """Say how the last of `walked` records is cut: the scan is past its header."""
    with Window(shard, border) as window:
        _last_of(window, walked)
        return framing_error(window, first + walked - 1)


def _last_of(window: Window, count: int) -> int:
    """Go to the last of some records whose headers hold; its byte."""
    for _ in range(count - 1):
        window.fill(HEADER)
        length = int.from_bytes(window.view(0, 8), "little")
        window.advance(HEADER + length + FOOTER)
    return window.offset
