"""Damage: which records of a shard hold, and which bytes are lost.

A record holds if both of its CRCs do. After damage the next one is found by its header; `dask_tfrecord._native.Resync`
finds all stretches of records that follow each other, and here is judged which of them are records of the shard. A
payload may hold whole records itself, and those of a lost record look like any others. So a stretch counts if

- headers lead on from it to the end of the shard, past damaged payloads and past headers that a whole payload proves;
- or nothing shows that it lies in a lost record. It may where the records around the damage hold records. It does where
  the CRC of the whole stretch follows it, where it ends four bytes before the next one (a lost footer: nothing else is
  as short), and where the header before it holds and bytes inserted behind that would explain all.

What can't be known: a record that is damaged in its header and in its payload both, and holds records amid other bytes
as no record around it does, gives these away as records of the shard, if more damage follows. And where a shard ends
within a record whose header holds, all that follows the header is lost, also if records follow that were appended.

Imports errors, storage, framing and index.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.errors import CorruptRecordError, ShardChangedError
from dask_tfrecord.records.framing import FOOTER, HEADER, Window
from dask_tfrecord.records.index import BETWEEN_MARKS
from dask_tfrecord.storage.shards import Shard

__all__ = ["DamageReport", "Lost", "ShardReport", "check_shard", "with_index"]

_BLOCK = 1 << 20
# Records larger than this are not brought into view: their CRCs are taken as they pass.
_LARGE = 64 << 20

# Bytes that were inserted into a record push its end, and what lies in it, by so much past what its header says.
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

    def __str__(self) -> str:
        where = f"bytes {self.start} to {'the end' if self.stop is None else self.stop}"
        number = "unknown number of records" if self.records is None else _many(self.records, "record")
        return f"{where}: {number} lost: {self.reason}"


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
    mark_records : int64 array
        Numbers, among those that hold, of records whose places are known: the first of each stretch, and some more.
    mark_offsets : int64 array
        Byte of each of their headers.
    """

    path: str
    size: int
    compression: str | None
    nbytes: int
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    counts: NDArray[np.int64]
    lost: tuple[Lost, ...]
    mark_records: NDArray[np.int64]
    mark_offsets: NDArray[np.int64]

    @property
    def records(self) -> int:
        """Records that hold."""
        return int(self.counts.sum())

    @property
    def lost_records(self) -> int | None:
        """Records that are lost, None where that is not known."""
        counts = [lost.records for lost in self.lost]
        return None if None in counts else sum(counts)  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """Put it into JSON values."""
        return {
            "path": self.path,
            "size": self.size,
            "compression": self.compression,
            "bytes": self.nbytes,
            "records": self.records,
            "lost_records": self.lost_records,
            "lost": [asdict(lost) for lost in self.lost],
        }

    def lines(self) -> list[str]:
        """Say what is lost, a line for each range of bytes."""
        return [f"{self.path}: {lost}" for lost in self.lost]


@dataclass(frozen=True, slots=True, eq=False)
class DamageReport:
    """What is left of a collection.

    Attributes
    ----------
    files : tuple of ShardReport
        In the order of the shards.
    """

    files: tuple[ShardReport, ...]

    @property
    def ok(self) -> bool:
        """Whether every byte of every file is a record that holds."""
        return not any(report.lost for report in self.files)

    @property
    def records(self) -> int:
        """Records that hold."""
        return sum(report.records for report in self.files)

    @property
    def lost_records(self) -> int | None:
        """Records that are lost, None where that is not known."""
        counts = [report.lost_records for report in self.files]
        return None if None in counts else sum(counts)  # type: ignore[arg-type]

    def to_json(self, **kwargs: Any) -> str:
        """Write it for programs; `kwargs` go to `json.dumps`."""
        totals = {"ok": self.ok, "records": self.records, "lost_records": self.lost_records}
        return json.dumps(totals | {"files": [report.to_dict() for report in self.files]}, **kwargs)

    def __repr__(self) -> str:
        damaged = sum(bool(report.lost) for report in self.files)
        lost = self.lost_records
        what = f"damage in {damaged}: {'an unknown number of' if lost is None else lost} records lost"
        total = f"{_many(len(self.files), 'file')}, {_many(self.records, 'record')}, {what if damaged else 'no damage'}"
        return "\n".join([total, *(line for report in self.files for line in report.lines())])


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


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
        walked = _Walked()
        broken = walked.walk(window)
        resync = _native.Resync(window.offset, shard.size if window.compression is None else -1, True)
        broken = walked.feed(window, resync) or broken
        stretches = [_Stretch(*stretch) for stretch in resync.stretches()]
        stretches[0] = stretches[0]._replace(start=0, records=stretches[0].records + walked.records)
        end, tail = resync.position, resync.tail()
        found = _judged(stretches, tail[0], end, nested=resync.holding > 0)
        held = [stretch for stretch in found if stretch.records]
        starts, stops, counts = (np.array([stretch[field] for stretch in held], np.int64) for field in range(3))
        return ShardReport(
            shard.path,
            shard.size,
            window.compression,
            end,
            starts,
            stops,
            counts,
            tuple(_lost(found, tail, end, broken)),
            *walked.marks(held),
        )


def with_index(report: ShardReport, records: Iterable[NDArray[np.int64]]) -> ShardReport:
    """Take from an index how many records were lost.

    Parameters
    ----------
    report : ShardReport
        What is left of a shard.
    records : iterable of int64 array, shape (n, 2)
        Offset and length of each record that the shard once had, in blocks.

    Returns
    -------
    ShardReport
        The same if the index does not tell: it is of another file, or several ranges were lost and the records between
        them are not where they were.
    """
    borders = np.concatenate([report.starts, report.stops, [lost.start for lost in report.lost]]).astype(np.int64)
    before = np.zeros(len(borders), np.int64)
    begins = np.zeros(len(borders), bool)
    total = 0
    for block in records:
        offsets = block[:, 0]
        place = np.searchsorted(offsets, borders)
        before += place
        inside = place < len(offsets)
        begins[inside] |= offsets[place[inside]] == borders[inside]
        total += len(offsets)
    number = len(report.starts)
    stays = begins[:number] & (before[number : 2 * number] - before[:number] == report.counts)
    firsts = before[2 * number :]
    # Behind each range comes a stretch, or the end.
    nexts = np.append(before[:number], total)[np.searchsorted(report.starts, borders[2 * number :])]
    if stays.all() and (nexts >= firsts).all():
        counts = (nexts - firsts).tolist()
    elif len(report.lost) == 1 and total >= report.records:
        counts = [total - report.records]
    else:
        return report
    lost = tuple(replace(each, records=count) for each, count in zip(report.lost, counts, strict=True))
    return replace(report, lost=lost)


class _Walked:
    """Records that were found on the way, and marks of them: each by its stretch and its number there."""

    def __init__(self) -> None:
        self.records = 0  # of the first stretch, before damage was met
        self._marks: list[tuple[int, int, int]] = []

    def walk(self, window: Window) -> str | None:
        """Count records that hold, up to the first that does not; say why the stream ends if it is broken."""
        need = HEADER
        try:
            while need <= _LARGE and window.fill(need):
                walked, nbytes, reason, need = _native.check_records(window.buffer, window.begin, window.end)
                if reason == _native.FRAMING:
                    # The records before the damage are gone through again: whether they hold records tells something.
                    break
                window.advance(nbytes)
                self.records += walked
                self._mark(0, window.offset, self.records)
        except ShardChangedError:
            raise
        except CorruptRecordError as error:
            return error.message
        return None

    def feed(self, window: Window, resync: _native.Resync) -> str | None:
        """Look at all that is left; say why the stream ends if it is broken."""
        broken, first = None, window.offset
        more = True
        while more:
            try:
                more = window.fill(window.end - window.begin + 1)
            except ShardChangedError:
                raise
            except CorruptRecordError as error:
                more, broken = False, error.message
            window.advance(resync.feed(window.buffer, window.begin, window.end, not more))
            start, end, records = resync.last()
            self._mark(*((0, end, records + self.records) if start == first else (start, end, records)))
        return broken

    def _mark(self, start: int, offset: int, records: int) -> None:
        if not self._marks or offset - self._marks[-1][1] >= BETWEEN_MARKS:
            self._marks.append((start, offset, records))

    def marks(self, held: Sequence[_Stretch]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Choose the marks in stretches that count, number them anew, and add the beginnings of those."""
        numbers = accumulate((each.records for each in held), initial=0)
        firsts = dict(zip((each.start for each in held), numbers, strict=False))
        ends = {each.start: each.end for each in held}
        marks = {(first, start) for start, first in firsts.items()}
        marks |= {
            (firsts[start] + records, offset) for start, offset, records in self._marks if offset < ends.get(start, 0)
        }
        places = np.array(sorted(marks), np.int64).reshape(-1, 2)
        return places[:, 0], places[:, 1]


def _leading(stretches: Sequence[_Stretch], tail: int, end: int) -> list[bool]:
    """Whether headers lead from each stretch to the end of the shard."""
    leads = []
    anchors = {end, tail}
    for stretch in reversed(stretches):
        leads.append(stretch.end in anchors)
        if leads[-1]:
            anchors = {stretch.root}
    return leads[::-1]


def _judged(stretches: Sequence[_Stretch], tail: int, end: int, *, nested: bool) -> list[_Stretch]:
    """Choose the stretches that are records of the shard; the first one is."""
    first, *others = stretches
    plausible: list[tuple[_Stretch, bool, int]] = []
    following = sure = end
    for stretch, leads in zip(reversed(others), reversed(_leading(others, tail, end)), strict=True):
        if leads or not (stretch.payload or stretch.end + FOOTER == following):
            plausible.append((stretch, leads, sure))
            following = stretch.start
            sure = following if leads else sure
    found = [first]
    for stretch, leads, sure in reversed(plausible):
        before = found[-1]
        linked = stretch.root == before.end
        if not (linked and stretch.sealed):
            if stretch.start < before.reach + _SHIFT and before.reach > end:
                continue
            inserted = stretch.start < before.reach + _SHIFT and 0 < sure - before.reach <= _SHIFT
            if not leads and (inserted or (nested and not linked)):
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
