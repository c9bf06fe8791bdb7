"""Splits of a shard, by bytes: their records are found without a look at what lies before them.

A record belongs to the split that its header begins in. The first one is found by its header, since the length there
has a CRC of its own. A payload may hold records too, so what was found is a record of the shard only if headers lead on
from it, for a while here and to the end of the split where it is read. Wherever they do not, the shard is walked from
its beginning: slow, and certain. What is left is a payload that holds records all through a split; the split that it
begins in knows how far it goes, and refuses it. So neighbours meet exactly, or one of them says that they do not.

Imports errors, storage, framing and index, and looks for headers by `dask_tfrecord._native`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dask_tfrecord import _native
from dask_tfrecord.errors import CorruptRecordError, Place, ShardChangedError, TFRecordError
from dask_tfrecord.records.framing import HEADER, Window, framing_error
from dask_tfrecord.records.index import Marks, ShardIndex, mark, walk
from dask_tfrecord.storage.shards import Shard

__all__ = ["Entry", "Split", "check_meeting", "even_splits", "find_entry", "join_marks", "mark_split", "sure_entry"]

# So far headers have to lead on, where the split itself ends before.
_ENOUGH = 4 << 20
_BLOCK = 256 << 10


@dataclass(frozen=True, slots=True)
class Split:
    """A range of bytes of an uncompressed shard.

    Attributes
    ----------
    start, stop : int
        Its bytes. The last split of a shard ends where that does.
    after : tuple of int
        Where the splits stop that follow in the shard.
    """

    start: int
    stop: int
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """The first record of a split.

    Attributes
    ----------
    offset : int
        The byte of its header; where no record begins in the split, the end of the one that covers it.
    record : int or None
        Its number in the shard; None where nobody has counted those before it.
    """

    offset: int
    record: int | None


def even_splits(size: int, nbytes: int) -> list[Split]:
    """Cut a shard of `size` bytes into splits of `nbytes` and what is left."""
    stops = [*range(nbytes, size, nbytes), size]
    return [
        Split(start, stop, tuple(stops[number + 1 :]))
        for number, (start, stop) in enumerate(zip([0, *stops], stops, strict=False))
    ]


def find_entry(shard: Shard, split: Split, *, check_crc: bool = True) -> Entry | None:
    """Find the first record of a split.

    Parameters
    ----------
    shard : Shard
        An uncompressed one.
    split : Split
        Which part of it.
    check_crc : bool, default True
        Whether the CRCs of all records are going to be checked: then headers that lead nowhere are noticed, and need
        not be followed here through a whole split. Those of the lengths looked at here have to hold in any case.

    Returns
    -------
    Entry or None
        None if no record begins in the split. An entry without a number is believed, and not certain.

    Raises
    ------
    CorruptRecordError
        If the shard is damaged before the split, so far as that had to be looked at.
    """
    if split.start == 0:
        return Entry(0, 0)
    with Window(shard, split.start, block_size=_BLOCK, stop=min(split.start + _BLOCK, shard.size)) as window:
        if not _find(window, split.stop):
            return None
        offset = window.offset
        if (check_crc and split.stop - offset >= _ENOUGH) or _leads(window, split.stop):
            return Entry(offset, None)
    return sure_entry(shard, split)


def sure_entry(shard: Shard, split: Split) -> Entry:
    """Find the first record of a split by a walk from the beginning of the shard.

    Parameters
    ----------
    shard, split
        As `find_entry` takes them.

    Returns
    -------
    Entry
        With its number.

    Raises
    ------
    CorruptRecordError
        If the shard is damaged before the split.
    """
    with Window(shard, stop=split.start) as window:
        count = mark(window, stop=split.start).count
        return Entry(window.offset, count)


def check_meeting(shard: Shard, split: Split, end: int, record: int) -> None:
    """Check that the splits which follow go on where this one ends.

    Parameters
    ----------
    shard, split
        As `find_entry` takes them.
    end : int
        The byte where the last record of the split ends.
    record : int
        The number of the record after it.

    Raises
    ------
    CorruptRecordError
        If there is no header that holds, so that the next split would begin behind the damage.
    TFRecordError
        If the last record holds records itself, and so many that the next split takes them for those of the shard.
    """
    start = split.stop
    for stop in split.after:
        if start > end:
            return
        with Window(shard, start, block_size=_BLOCK, stop=min(end + HEADER, shard.size)) as window:
            misled = _find(window, min(stop, end))
            if misled and _leads(window, stop):
                raise TFRecordError(
                    f"the record holds records itself, all through the bytes {start} to {stop}: whether they are those "
                    f"of the shard can't be told there. Take larger chunks, or counts='auto'",
                    Place(shard.path, None, window.offset),
                )
            if not misled and end < stop:
                _check_header(window, record)
        if misled and end < stop:
            with Window(shard, end, block_size=HEADER, stop=end + HEADER) as window:
                _check_header(window, record)
        start = stop


def mark_split(shard: Shard, split: Split, *, check_crc: bool = True) -> Marks | None:
    """Walk the headers of a split, from the first that holds.

    Parameters
    ----------
    shard, split
        As `find_entry` takes them.
    check_crc : bool, default True
        Whether the CRC of every length has to hold.

    Returns
    -------
    Marks or None
        Numbered from 0. None where headers lead nowhere, or there are none.
    """
    with Window(shard, split.start, stop=split.stop) as window:
        if split.start and not _find(window, split.stop):
            return None
        try:
            return mark(window, stop=split.stop, check_crc=check_crc)
        except ShardChangedError:
            raise
        except CorruptRecordError:
            return None


def join_marks(
    shard: Shard, splits: Sequence[Split], parts: Sequence[Marks | None], *, check_crc: bool = True
) -> ShardIndex:
    """Make an index of what was found in all splits of a shard.

    A part that does not begin where the one before ends was misled, and is walked again from there.

    Parameters
    ----------
    shard : Shard
        An uncompressed one.
    splits : sequence of Split
        All of it.
    parts : sequence of (Marks or None)
        What `mark_split` says of each.
    check_crc : bool, default True
        As above.

    Raises
    ------
    CorruptRecordError
        If the shard is damaged.
    """
    count = end = 0
    records, offsets = [], []
    for split, part in zip(splits, parts, strict=True):
        if end >= split.stop > 0:
            continue
        if part is None or part.offsets[0] != end:
            with Window(shard, end, stop=split.stop) as window:
                part = mark(window, first=count, stop=split.stop, check_crc=check_crc)
                records.append(part.records)
        else:
            records.append(part.records + count)
        offsets.append(part.offsets)
        count, end = count + part.count, part.end
    return ShardIndex(count, np.concatenate(records), np.concatenate(offsets), end, None)


def _find(window: Window, stop: int) -> bool:
    """Go to the first header that holds and begins before `stop`; if there is none, to `stop`."""
    size = window.shard.size
    while window.offset < stop and window.fill(HEADER):
        # Headers that begin before `stop`, and are in view.
        end = min(window.end, window.begin + stop - window.offset + HEADER - 1)
        found = _native.find_header(window.buffer, window.begin, end, size - window.offset)
        window.advance(found if found >= 0 else end - window.begin - HEADER + 1)
        if found >= 0:
            return True
    return False


def _check_header(window: Window, record: int) -> None:
    """See that a header holds where the window stands."""
    room = window.shard.size - window.offset
    if not window.fill(HEADER) or _native.find_header(window.buffer, window.begin, window.begin + HEADER, room) != 0:
        raise framing_error(window, record)


def _leads(window: Window, stop: int) -> bool:
    """Whether headers lead on from where the window stands: to the end of the split, and far enough."""
    try:
        for _ in walk(window, stop=max(stop, window.offset + _ENOUGH)):
            pass
    except ShardChangedError:
        raise
    except CorruptRecordError:
        return False
    return True
