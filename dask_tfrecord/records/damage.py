"""Damage: which records of a shard hold, which bytes are lost, and where the next record begins after them.

A record holds if both of its CRCs do. After damage the next one is found by its header; `dask_tfrecord._native.Resync`
finds all stretches of records that follow each other, and here is judged which of them are records of the shard. A
payload may hold whole records itself, and those of a lost record look like any others. So a stretch counts if

- headers lead on from it to the end of the shard, past damaged payloads and past headers that a whole payload proves;
- or nothing shows that it lies in a lost record. It does where the CRC of the whole stretch follows it, where it ends
  four bytes before the next one (a lost footer, nothing else is as short), and where the header before it holds and
  promises all of its bytes.

What can't be known: a record that is damaged in its header and in its payload both, and holds records amid other bytes,
gives these away as records of the shard. And where a shard ends within a record whose header holds, all that follows
the header is lost, also if records follow that were appended later.

Imports errors, storage and framing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.errors import CorruptRecordError, ShardChangedError
from dask_tfrecord.records.framing import FOOTER, HEADER, Window
from dask_tfrecord.storage.shards import Shard

__all__ = ["Lost", "ShardReport", "check_shard", "next_record"]

_BLOCK = 1 << 20
# Records larger than this are not brought into view: their CRCs are taken as they pass.
_LARGE = 64 << 20

# How far records have to follow each other before they are believed.
_ENOUGH = 64 << 20

# Bytes that were inserted into a record push what lies in it by so much past the end that its header says. What goes
# on further, by the record's own length and this, is none of its payload.
_SHIFT = 64


@dataclass(frozen=True, slots=True)
class Lost:
    """A range of bytes that no record was found in.

    Attributes
    ----------
    start, stop : int
        Its bytes, in the decompressed stream; `stop` is None where the stream can't be inflated any further.
    reason : str
        What is wrong at its beginning.
    records : int or None
        How many records it held, None where nothing tells.
    """

    start: int
    stop: int | None
    reason: str
    records: int | None


@dataclass(frozen=True, slots=True, eq=False)
class ShardReport:
    """What is left of a shard.

    Attributes
    ----------
    path : str
        The file.
    size : int
        Stored bytes.
    compression : str or None
        As found.
    nbytes : int
        Bytes of the decompressed stream, as far as it goes. `starts` to `stops` and `lost` add up to them.
    starts, stops : int64 array
        Stretches of records that hold, by their bytes.
    counts : int64 array
        Records of each stretch.
    lost : tuple of Lost
        All other bytes.
    """

    path: str
    size: int
    compression: str | None
    nbytes: int
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    counts: NDArray[np.int64]
    lost: tuple[Lost, ...]

    @property
    def records(self) -> int:
        """Records that hold."""
        return int(self.counts.sum())


class _Stretch(NamedTuple):
    """As `_native.Resync` has it.

    `root` is the end of the stretch before, where headers or the CRC of a payload lead from there to here, past `lost`
    records; `sealed`, where it is one record whose payload is whole; `promised` is
    the end of the next record if its header holds, `reach` that of the last one whose header does; `payload` says that
    the stretch is all of a payload.
    """

    start: int
    end: int
    records: int
    root: int
    lost: int
    sealed: bool
    promised: int
    reach: int
    payload: bool


def check_shard(shard: Shard) -> ShardReport:
    """Check every record of a shard.

    Memory is that of a few blocks, whatever the records, and time grows with the bytes alone.

    Parameters
    ----------
    shard : Shard
        It is read from end to end, and once more from the first damage on.

    Returns
    -------
    ShardReport
        Damage raises nothing.
    """
    with Window(shard, block_size=_BLOCK, stop=shard.size) as window:
        records, broken = _walk(window)
        size = shard.size if window.compression is None else -1
        resync = _native.Resync(window.offset, size, True)
        broken = broken or _feed(window, resync)
        stretches = [_Stretch(*stretch) for stretch in resync.stretches()]
        stretches[0] = stretches[0]._replace(start=0, records=stretches[0].records + records)
        end = resync.position
        found = _judged(stretches, resync.tail()[0], end)
        lost = _lost(found, resync.tail(), end, broken)
        held = [stretch for stretch in found if stretch.records]
        starts, stops, counts = (np.array([stretch[field] for stretch in held], np.int64) for field in range(3))
        return ShardReport(shard.path, shard.size, window.compression, end, starts, stops, counts, tuple(lost))


def next_record(shard: Shard, offset: int, *, enough: int = _ENOUGH) -> int | None:
    """Find the first record that begins at a byte or after it.

    The answer depends on the shard and `offset` alone: two who ask for the same offset get the same record.

    Parameters
    ----------
    shard : Shard
        What to look into.
    offset : int
        A byte of the decompressed stream. What lies before it is not looked at, so damage there does no harm.
    enough : int, default 64 MiB
        Records have to follow each other for so many bytes, or headers have to lead to the end of the shard. It has
        to exceed the largest record that holds records itself.

    Returns
    -------
    int or None
        The byte of the record's header; None if there is none up to the end of the shard.
    """
    if shard.compression is None and offset >= shard.size:
        return None
    with Window(shard, offset, block_size=_BLOCK, stop=min(shard.size, offset + enough)) as window:
        resync = _native.Resync(offset, shard.size if window.compression is None else -1, False)
        while True:
            more = window.fill(window.end - window.begin + 1)
            window.advance(resync.feed(window.buffer, window.begin, window.end, not more))
            first = resync.first_of(enough)
            if first >= 0:
                return first
            if not more:
                break
        stretches = [_Stretch(*stretch) for stretch in resync.stretches()]
        leads = _leading(stretches, resync.tail()[0], resync.position)
        return next((stretch.start for stretch, leading in zip(stretches, leads, strict=True) if leading), None)


def _walk(window: Window) -> tuple[int, str | None]:
    """Count records that hold, up to the first that does not, and say why the stream ends if it is broken."""
    records = 0
    need = HEADER
    try:
        while need <= _LARGE and window.fill(need):
            walked, nbytes, reason, need = _native.check_records(window.buffer, window.begin, window.end)
            window.advance(nbytes)
            records += walked
            if reason == _native.FRAMING:
                break
    except ShardChangedError:
        raise
    except CorruptRecordError as error:
        return records, error.message
    return records, None


def _feed(window: Window, resync: _native.Resync) -> str | None:
    """Look at all that is left, and say why the stream ends if it is broken."""
    broken = None
    more = True
    while more:
        try:
            more = window.fill(window.end - window.begin + 1)
        except ShardChangedError:
            raise
        except CorruptRecordError as error:
            more, broken = False, error.message
        window.advance(resync.feed(window.buffer, window.begin, window.end, not more))
    return broken


def _leading(stretches: Sequence[_Stretch], tail: int, end: int) -> list[bool]:
    """Whether headers lead from each stretch to the end of the shard."""
    leads = []
    anchors = {end, tail}
    for stretch in reversed(stretches):
        leads.append(stretch.end in anchors)
        if leads[-1]:
            anchors = {stretch.root}
    return leads[::-1]


def _judged(stretches: Sequence[_Stretch], tail: int, end: int) -> list[_Stretch]:
    """Choose the stretches that are records of the shard; the first one is."""
    first, *others = stretches
    plausible: list[tuple[_Stretch, bool]] = []
    following = end
    for stretch, leads in zip(reversed(others), reversed(_leading(others, tail, end)), strict=True):
        if leads or not (stretch.payload or stretch.end + FOOTER == following):
            plausible.append((stretch, leads))
            following = stretch.start
    found = [first]
    for stretch, leads in reversed(plausible):
        before = found[-1]
        if not (stretch.sealed and stretch.root == before.end) and stretch.start < before.reach + _SHIFT:
            past = 2 * before.reach - before.end + _SHIFT
            if before.reach > end or not (leads or stretch.end > past):
                continue
        found.append(stretch)
    return found


def _lost(found: Sequence[_Stretch], tail: tuple[int, int], end: int, broken: str | None) -> list[Lost]:
    """Tell what lies between stretches and behind the last."""
    lost = []
    behind = _Stretch(end, end, 0, *tail, False, 0, 0, False)
    for before, after in zip(found, [*found[1:], behind], strict=True):
        if before.end == after.start:
            continue
        records = after.lost if after.root == before.end else None
        lost.append(Lost(before.end, after.start, _reason(before, end), records))
    if broken is not None:
        start = lost.pop().start if lost and lost[-1].stop == end else end
        lost.append(Lost(start, None, broken, None))
    return lost


def _reason(before: _Stretch, end: int) -> str:
    """Say what is wrong behind a stretch."""
    left = end - before.end
    if left < HEADER:
        return f"{left} bytes at the end, where a header takes {HEADER}"
    if not before.promised:
        return "the CRC of the length does not hold"
    if before.promised > end:
        return f"the record takes {before.promised - before.end} bytes, and {left} are left: the file was cut"
    return "the CRC of the payload does not hold"
