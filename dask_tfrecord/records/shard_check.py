"""Damage of shards: which records are intact, which bytes are lost, and how a shard is repaired.

A record is intact if both of its CRCs match. After damage, the next record is found by its header.
`dask_tfrecord._native.Resync` finds all stretches of contiguous records; this module decides which of them are records
of the shard. A payload may contain complete records itself, and in a lost record they are indistinguishable. A stretch
is accepted if one of these conditions is met:

- Headers lead from the stretch to the end of the shard, past damaged payloads, and past damaged headers whose payload
  is proved intact by its CRC.
- No evidence places the stretch in a lost record. Records around the damage that contain records are evidence. So is a
  CRC of the whole stretch after it; an end four bytes before the next stretch, which is a lost footer because anything
  else is longer; and an intact header before it, if bytes inserted after that header explain the positions.

Two cases cannot be detected. A record is damaged in its header and in its payload, and contains records between other
bytes, while the records around it do not: its inner records are accepted if more damage follows. And if a shard ends
within a record whose header is intact, all bytes after that header are lost, even if records were appended.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.errors import (
    CorruptRecordError,
    Location,
    ShardChangedError,
    TFRecordError,
    plural,
    printable,
    redact_url,
)
from dask_tfrecord.identity import file_key
from dask_tfrecord.records.index import ShardIndex, UnusableIndexError, read_index_lines
from dask_tfrecord.records.window import FOOTER, HEADER, Window, describe_head
from dask_tfrecord.settings import limits
from dask_tfrecord.shards.checksums import masked_crc32c
from dask_tfrecord.shards.listing import Sidecar
from dask_tfrecord.shards.objects import directory_of, remove_abandoned
from dask_tfrecord.shards.remote import store_url
from dask_tfrecord.shards.shard import Shard, check_encodable, is_local
from dask_tfrecord.shards.streams import open_sink, write_file, written_or_discarded

_BLOCK = 1 << 20
# Larger records are not loaded as a whole; their CRCs are computed from one block after another.
_LARGE = 64 << 20
# The payloads of larger records are not checked for a map.
_CHECKED = 8 << 20
# Files in the HTML of a report.
_DISPLAYED = 100

# Largest number of inserted bytes that is considered. They move the end of a record past the one in its header.
_MAX_SHIFT = 64


# Reasons of damage: of a header, and of a file without an intact record.
_LENGTH_DAMAGED = "the CRC of the length does not match"
_NO_SHARD = "the file is not a TFRecord file, or its start is damaged"


def _lost_text(records: int | None) -> str:
    return ("unknown number of records" if records is None else plural(records, "record")) + " lost"


def _sum_of_known(counts: Sequence[int | None]) -> int | None:
    return None if None in counts else sum(counts)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Lost:
    """Byte range without intact records.

    Attributes
    ----------
    start, stop : int
        Bytes in the decompressed stream; `stop` is None if the stream cannot be inflated further.
    reason : str
        Description of the damage at its beginning.
    records : int or None
        Number of lost records; None if it is unknown.
    """

    start: int
    stop: int | None
    reason: str
    records: int | None

    def __str__(self) -> str:
        span = f"bytes {self.start} to {'the end' if self.stop is None else self.stop}"
        return f"{span}: {_lost_text(self.records)}: {self.reason}"


@dataclass(frozen=True, slots=True, eq=False)
class ShardReport:
    """Intact records and lost bytes of a shard.

    Attributes
    ----------
    path : str
        Path or URL of the shard, without credentials.
    size : int
        Stored bytes.
    compression : str or None
        Detected compression.
    nbytes : int
        Bytes of the decompressed stream, as far as it can be inflated: the sum of all stretches and of `lost`.
    starts, stops : int64 array
        Byte range of each stretch of intact records.
    counts : int64 array
        Number of records of each stretch.
    lost : tuple of Lost
        All other bytes.
    entry_records : int64 array
        Record numbers of index entries, counted among the intact records: the first one of each stretch, and more.
    entry_offsets : int64 array
        Offset of each entry's header.
    """

    path: str
    size: int
    compression: str | None
    nbytes: int
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    counts: NDArray[np.int64]
    lost: tuple[Lost, ...]
    entry_records: NDArray[np.int64]
    entry_offsets: NDArray[np.int64]

    @classmethod
    def from_index(cls, shard: Shard, index: ShardIndex, lost: tuple[Lost, ...] = ()) -> ShardReport:
        """Return the index of records that are intact up to the end of the index as a report."""
        return cls(
            shard.path,
            shard.size,
            index.compression,
            index.nbytes,
            np.zeros(1, np.int64),
            np.array([index.nbytes]),
            np.array([index.count]),
            lost,
            index.records,
            index.offsets,
        )

    @property
    def records(self) -> int:
        """Number of intact records."""
        return int(self.counts.sum())

    @property
    def lost_records(self) -> int | None:
        """Number of lost records; None if it is unknown."""
        return _sum_of_known([lost.records for lost in self.lost])

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
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
        """Return a line for each range of lost bytes."""
        return [printable(f"{self.path}: {lost}") for lost in self.lost]


@dataclass(frozen=True, slots=True, eq=False)
class DamageReport:
    """Intact records and lost bytes of a collection.

    Attributes
    ----------
    files : tuple of ShardReport
        Report of each shard, in order.
    """

    files: tuple[ShardReport, ...]

    @property
    def ok(self) -> bool:
        """True if no bytes are lost."""
        return not any(report.lost for report in self.files)

    @property
    def records(self) -> int:
        """Number of intact records."""
        return sum(report.records for report in self.files)

    @property
    def lost_records(self) -> int | None:
        """Number of lost records; None if it is unknown."""
        return _sum_of_known([report.lost_records for report in self.files])

    def to_json(self, **kwargs: Any) -> str:
        """Return the report as JSON text; `kwargs` are passed to `json.dumps`."""
        totals = {"ok": self.ok, "records": self.records, "lost_records": self.lost_records}
        return json.dumps(totals | {"files": [report.to_dict() for report in self.files]}, **kwargs)

    @property
    def total(self) -> str:
        """Numbers of files, intact records and damaged files, as text."""
        damaged = sum(bool(report.lost) for report in self.files)
        damage = f"damage in {damaged:,}: {_lost_text(self.lost_records)}" if damaged else "no damage"
        records = plural(self.records, "record") if self.records else "no records"
        return f"{plural(len(self.files), 'file')}, {records}, {damage}"

    def __repr__(self) -> str:
        return "\n".join([self.total, *(line for report in self.files for line in report.lines())])

    def _repr_html_(self) -> str:
        """Show the damaged files, or all files if none is damaged."""
        from dask_tfrecord.markup import html_table

        listed = [report for report in self.files if report.lost] or list(self.files)
        rows = [(file.path, f"{file.records:,}", "; ".join(map(str, file.lost))) for file in listed[:_DISPLAYED]]
        more = [plural(len(listed) - len(rows), "more file")] if len(listed) > len(rows) else []
        return html_table(self.total, ("file", "records", "lost"), rows, more, right=(1,))


class _Stretch(NamedTuple):
    """Stretch of contiguous records, as `_native.Resync` reports it."""

    start: int
    end: int
    records: int
    root: int  # end of the stretch before, if headers or the CRC of a payload lead from there to this one
    lost: int  # records between `root` and `start`
    sealed: bool  # one record lies between `root` and `start`, and its payload is intact
    header_end: int  # end of the next record according to its header; 0 if that header is damaged
    reach: int  # end of the last record whose header is intact
    payload: bool  # the stretch is a complete payload: the CRC of its bytes follows it

    @classmethod
    def from_native(cls, stretch: _native.Stretch) -> _Stretch:
        return cls(*(getattr(stretch, name) for name in cls._fields))


def check_shard(shard: Shard) -> ShardReport:
    """Check every record of a shard, with a few blocks in memory; damage is reported, and does not raise an error."""
    with Window(shard, block_size=_BLOCK, stop=shard.size) as window:
        scan = _Scan()
        stream_error = scan.count_intact(window)
        resync = _native.Resync(window.offset, shard.size if window.compression is None else None)
        stream_error = scan.resync(window, resync) or stream_error
        stretches = [_Stretch.from_native(stretch) for stretch in resync.stretches()]
        stretches[0] = stretches[0]._replace(start=0, records=stretches[0].records + scan.records)
        end, tail = resync.position, (resync.tail().root, resync.tail().lost)
        found = _accept_stretches(stretches, tail[0], end, nested=resync.nested > 0)
        intact = [stretch for stretch in found if stretch.records]
        starts, stops, counts = (np.array([stretch[field] for stretch in intact], np.int64) for field in range(3))
        lost = _lost_ranges(found, tail, end, stream_error)
        if lost and not intact and lost[0].stop == end and (lost[0].reason == _LENGTH_DAMAGED or end < HEADER):
            with Window(shard, stop=shard.size) as beginning:
                lost[0] = replace(lost[0], reason=f"{_NO_SHARD}, and begins with {describe_head(beginning)}")
        return ShardReport(
            redact_url(shard.path),
            shard.size,
            window.compression,
            end,
            starts,
            stops,
            counts,
            tuple(lost),
            *scan.entries(intact),
        )


class RecordState(IntEnum):
    """Damage of a record."""

    INTACT = 0
    LENGTH = 1
    PAYLOAD = 2
    TRUNCATED = 3


class StoredRecord(NamedTuple):
    """Place of a record in the decompressed stream, and its damage."""

    offset: int
    nbytes: int  # with framing; 0 if it is unknown
    state: RecordState


def walk_states(shard: Shard, offset: int, skipped: int, check: Callable[[], ShardReport]) -> Iterator[StoredRecord]:
    """Yield each record from `offset` on, damaged ones included.

    The payloads of the first `skipped` records are not checked. `check` returns the report of `check_shard`, which
    finds the next record after a damaged length.
    """
    while True:
        with Window(shard, offset, stop=shard.size) as window:
            while (record := record_at(window, is_skipped=skipped > 0)) is not None:
                if record.state in (RecordState.LENGTH, RecordState.TRUNCATED):
                    break
                skipped -= 1
                yield record
        if record is None:
            return
        report = check()
        following = report.starts[report.starts > record.offset]
        if record.state == RecordState.TRUNCATED or not following.size:
            yield record._replace(nbytes=max(record.nbytes, report.nbytes - record.offset))
            return
        offset = int(following[0])
        yield record._replace(nbytes=offset - record.offset)


def record_at(window: Window, *, is_skipped: bool = False) -> StoredRecord | None:
    """Check the record at a window, and move the window past it.

    A damaged length is 0; the length of a truncated record is the number of bytes that are left.
    Payloads of more than 8 MiB are not checked, and none if it `is_skipped`. At the end, return None.
    """
    begin = window.offset
    try:
        if not window.ensure(1):
            return None
        if not window.ensure(HEADER):
            return StoredRecord(begin, window.end - window.begin, RecordState.TRUNCATED)
        length = int.from_bytes(window.view(0, 8), "little")
        if not crc_holds(window, 0, 8):
            return StoredRecord(begin, 0, RecordState.LENGTH)
        size = HEADER + length + FOOTER
        if window.compression is None and begin + size > window.shard.size:
            return StoredRecord(begin, window.shard.size - begin, RecordState.TRUNCATED)
        state = RecordState.INTACT
        if length <= _CHECKED and not is_skipped:
            if not window.ensure(size):
                return StoredRecord(begin, window.end - window.begin, RecordState.TRUNCATED)
            if not crc_holds(window, HEADER, HEADER + length):
                state = RecordState.PAYLOAD
        if not window.advance(size):
            return StoredRecord(begin, window.offset - begin, RecordState.TRUNCATED)
        return StoredRecord(begin, size, state)
    except CorruptRecordError:
        # A compressed stream that ends early.
        return StoredRecord(begin, 0, RecordState.TRUNCATED)


def crc_holds(window: Window, begin: int, end: int) -> bool:
    """Return whether the CRC behind some bytes of a window matches them."""
    return int.from_bytes(window.view(end, end + FOOTER), "little") == masked_crc32c(window.view(begin, end))


def count_lost_records(report: ShardReport, sidecar: Sidecar) -> ShardReport:
    """Add the number of lost records of each range, by an index file that was written before the damage.

    The report is returned unchanged if the index file cannot be read, belongs to another file, or does not determine
    the numbers: several ranges were lost and the records between them have moved.
    """
    borders = np.concatenate([report.starts, report.stops, [lost.start for lost in report.lost]]).astype(np.int64)
    before = np.zeros(len(borders), np.int64)
    is_header = np.zeros(len(borders), bool)
    total = 0
    try:
        for block in read_index_lines(sidecar.file):
            offsets = block[:, 0]
            positions = np.searchsorted(offsets, borders)
            before += positions
            inside = positions < len(offsets)
            is_header[inside] |= offsets[positions[inside]] == borders[inside]
            total += len(offsets)
    except (UnusableIndexError, TFRecordError, OSError):
        return report
    number = len(report.starts)
    unmoved = is_header[:number] & (before[number : 2 * number] - before[:number] == report.counts)
    firsts = before[2 * number :]
    # A range of lost bytes ends at the next stretch of intact records, or at the end of the shard.
    nexts = np.append(before[:number], total)[np.searchsorted(report.starts, borders[2 * number :])]
    if unmoved.all() and (nexts >= firsts).all():
        counts = (nexts - firsts).tolist()
    elif len(report.lost) == 1 and total >= report.records:
        counts = [total - report.records]
    else:
        return report
    lost = tuple(replace(each, records=count) for each, count in zip(report.lost, counts, strict=True))
    return replace(report, lost=lost)


class _Scan:
    """Number of records before the first damage, and index entries: stretch, offset, and record number within it."""

    def __init__(self) -> None:
        self.records = 0  # of the first stretch, before the damage
        self._entries: list[tuple[int, int, int]] = []

    def count_intact(self, window: Window) -> str | None:
        """Count intact records up to the first damaged one; return the error of a stream that ends early."""
        need = HEADER
        try:
            while need <= _LARGE and window.ensure(need):
                walk = _native.check_records(window.buffer, window.begin, window.end)
                if walk.stop is _native.Stop.FRAMING:
                    # `resync` reads the records of this block again: it has to know whether they contain records.
                    break
                window.advance(walk.consumed)
                self.records += walk.records
                need = walk.need
                self._add_entry(0, window.offset, self.records)
        except ShardChangedError:
            raise
        except CorruptRecordError as error:
            return error.message
        return None

    def resync(self, window: Window, search: _native.Resync) -> str | None:
        """Search the rest of the shard for records; return the error of a stream that ends early."""
        stream_error, first = None, window.offset
        more = True
        while more:
            try:
                more = window.ensure(window.end - window.begin + 1)
            except ShardChangedError:
                raise
            except CorruptRecordError as error:
                more, stream_error = False, error.message
            window.advance(search.feed(window.buffer, window.begin, window.end, not more))
            last = search.last_stretch()
            if last.start == first:
                # It goes on where the first stretch, which begins the shard, has ended.
                self._add_entry(0, last.end, last.records + self.records)
            else:
                self._add_entry(last.start, last.end, last.records)
        return stream_error

    def _add_entry(self, start: int, offset: int, records: int) -> None:
        if not self._entries or offset - self._entries[-1][1] >= limits().entry_nbytes:
            self._entries.append((start, offset, records))

    def entries(self, intact: Sequence[_Stretch]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return each accepted entry's number and offset, and where each stretch begins."""
        numbers = accumulate((each.records for each in intact), initial=0)
        firsts = dict(zip((each.start for each in intact), numbers, strict=False))
        ends = {each.start: each.end for each in intact}
        found = {(first, start) for start, first in firsts.items()}
        found |= {
            (firsts[start] + records, offset) for start, offset, records in self._entries if offset < ends.get(start, 0)
        }
        table = np.array(sorted(found), np.int64).reshape(-1, 2)
        return table[:, 0], table[:, 1]


def _leads_to_end(stretches: Sequence[_Stretch], tail: int, end: int) -> list[bool]:
    """Return for each stretch whether headers lead from it to the end of the shard."""
    leads = []
    anchors = {end, tail}
    for stretch in reversed(stretches):
        leads.append(stretch.end in anchors)
        if leads[-1]:
            anchors = {stretch.root}
    return leads[::-1]


def _accept_stretches(stretches: Sequence[_Stretch], tail: int, end: int, *, nested: bool) -> list[_Stretch]:
    """Return the stretches that are records of the shard, beginning with the first one."""
    first, *others = stretches
    plausible: list[tuple[_Stretch, bool, int]] = []
    following = sure = end
    for stretch, leads in zip(reversed(others), reversed(_leads_to_end(others, tail, end)), strict=True):
        if leads or not (stretch.payload or stretch.end + FOOTER == following):
            plausible.append((stretch, leads, sure))
            following = stretch.start
            sure = following if leads else sure
    accepted = [first]
    for stretch, leads, sure in reversed(plausible):
        before = accepted[-1]
        linked = stretch.root == before.end
        if not (linked and stretch.sealed):
            if stretch.start < before.reach + _MAX_SHIFT and before.reach > end:
                continue
            inserted = stretch.start < before.reach + _MAX_SHIFT and 0 < sure - before.reach <= _MAX_SHIFT
            if not leads and (inserted or (nested and not linked)):
                continue
        accepted.append(stretch)
    return accepted


def _lost_ranges(found: Sequence[_Stretch], tail: tuple[int, int], end: int, stream_error: str | None) -> list[Lost]:
    """Return the byte ranges between stretches and after the last one."""
    lost = []
    after_last = _Stretch(end, end, 0, *tail, False, 0, 0, False)
    for before, after in zip(found, [*found[1:], after_last], strict=True):
        if before.end == after.start:
            continue
        records = after.lost if after.root == before.end else None
        lost.append(Lost(before.end, after.start, _damage_reason(before, end), records))
    if stream_error is not None:
        start = lost.pop().start if lost and lost[-1].stop == end else end
        lost.append(Lost(start, None, stream_error, None))
    return lost


def _damage_reason(before: _Stretch, end: int) -> str:
    """Describe the damage after a stretch."""
    left = end - before.end
    if left < HEADER:
        return f"{left} bytes at the end, where a header takes {HEADER}"
    if not before.header_end:
        return _LENGTH_DAMAGED
    if before.header_end > end:
        return f"the record takes {before.header_end - before.end} bytes, and {left} are left: the file was cut"
    return "the CRC of the payload does not match"


REPORT_SUFFIX = ".damage.json"


def repair_shard(
    shard: Shard,
    report: ShardReport,
    target: str | os.PathLike[str],
    *,
    compression: str | None = "same",
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Copy the intact records of a shard to a new file, and write a report of the damage next to it.

    The compression ``"same"`` keeps the shard's. Raises CorruptRecordError if the shard is shorter than in the
    report, before anything is written, and TFRecordError if the target is the shard itself.
    """
    path = store_url(os.fspath(target), storage_options)
    if is_local(path):
        check_encodable(path)
    if file_key(path) == file_key(shard.path):
        raise TFRecordError("the new file would replace the damaged shard; pass another path", Location(path))
    remove_abandoned([directory_of(path)], storage_options or {})
    packing = report.compression if compression == "same" else compression
    with written_or_discarded(open_sink(path, packing, storage_options)) as sink:
        for block in _intact_bytes(shard, report):
            sink.write(block)
    write_file(path + REPORT_SUFFIX, (json.dumps(report.to_dict(), indent=1) + "\n").encode(), storage_options)


def _intact_bytes(shard: Shard, report: ShardReport) -> Iterator[memoryview]:
    """Yield the bytes of the intact records; each block is valid until the next one is requested."""
    with Window(shard, stop=shard.size) as window:
        for start, stop in zip(report.starts.tolist(), report.stops.tolist(), strict=True):
            window.advance(start - window.offset)
            while window.offset < stop:
                if not window.ensure():
                    raise CorruptRecordError(
                        "the file ends before records that were found in it; another program is changing it",
                        Location(shard.path, None, window.offset),
                    )
                block = window.view(0, stop - window.offset)
                yield block
                window.advance(len(block))
