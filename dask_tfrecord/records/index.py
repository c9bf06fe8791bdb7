"""Sparse index of a shard: how many records it has, and where some begin.

Index entries are at least one MiB apart, so the index of a billion records takes megabytes. A record between two
entries is found by walking headers from the entry before it. A large shard without an index is divided into
byte splits; each task searches the first record of its split.
"""

from __future__ import annotations

import functools
import logging
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.errors import (
    CorruptRecordError,
    Location,
    ShardChangedError,
    TFRecordError,
    plural,
    redact,
    redact_url,
)
from dask_tfrecord.records.framing import framing_error, iterate_records
from dask_tfrecord.records.window import FOOTER, HEADER, Window
from dask_tfrecord.settings import limits
from dask_tfrecord.shards.checksums import masked_crc32c
from dask_tfrecord.shards.compressions import DETECTION_NBYTES, has_access_points, useless_index
from dask_tfrecord.shards.listing import Sidecar, sidecar_path
from dask_tfrecord.shards.shard import Shard, is_local
from dask_tfrecord.shards.streams import (
    ACCESS_SUFFIX,
    access_points,
    open_sink,
    open_stored,
    write_access_points,
    written_or_discarded,
)

# From this mean record size on, reading single headers and skipping payloads is faster than reading everything.
_LARGE_RECORD = 256 << 10
_HEADER_BLOCK = 4 << 10


# Lengths of ragged columns by name, at each level: of rows, of their items, and so on.
Lengths = Mapping[str, tuple[NDArray[np.int64], ...]]


@dataclass(frozen=True, slots=True, eq=False)
class ShardIndex:
    """Index of a shard."""

    count: int
    # Record numbers of the entries, ascending; the first is record 0, also of an empty shard.
    records: NDArray[np.int64]
    offsets: NDArray[
        np.int64
    ]  # of the header of each entry in the decompressed stream; at least `entry_nbytes` apart, of remote shards less
    nbytes: int  # bytes of the decompressed stream
    compression: str | None  # detected
    access: bool = False  # whether a compressed shard has access points
    stale: str | None = None  # reason why an existing index file was not used
    # Lengths of the rows of ragged columns at each level, if they were measured in the same pass.
    lengths: Lengths | None = None

    @property
    def reachable(self) -> bool:
        """True if an entry can be read without reading everything before it."""
        return self.compression is None or self.access


def index_entries(
    window: Window, *, first: int = 0, stop: int | None = None, check_crc: bool = True, apart: int | None = None
) -> ShardIndex:
    """Walk headers from the position of a window as `walk` does, and collect the index entries before `stop`."""
    for entries in grow_entries(window, first=first, stop=stop, check_crc=check_crc, apart=apart):
        last = entries
    return last.index(window.compression)


def scan_shard(
    shard: Shard, *, check_crc: bool = True, apart: int | None = None, walker: Callable[..., ShardIndex] = index_entries
) -> ShardIndex:
    """Walk the headers of a shard from end to end, and check the CRC of every length; payloads are never checked.

    A `walker` takes the place of `index_entries`.
    """
    with Window(shard, block_size=limits().index_window_nbytes, stop=shard.size) as window:
        return walker(window, check_crc=check_crc, apart=apart)


@functools.lru_cache(maxsize=4096)
def _scanned_count(shard: Shard, check_crc: bool) -> int:
    return scan_shard(shard, check_crc=check_crc).count


def check_count(shard: Shard, count: int, *, check_crc: bool = True) -> None:
    """Raise CorruptRecordError unless a shard has that number of headers; each process walks them once."""
    found = _scanned_count(shard, check_crc)
    if found != count:
        raise CorruptRecordError(
            f"{plural(count, 'record')} expected, {found:,} found: the counts that were given are wrong, and so are "
            "the numbers of rows; counts='scan' counts the records",
            Location(shard.path),
        )


@dataclass(slots=True)
class Entries:
    """Index entries of the records that were walked so far: `count` records up to byte `end`."""

    records: list[int]
    offsets: list[int]
    count: int
    end: int

    def index(self, compression: str | None, lengths: Lengths | None = None) -> ShardIndex:
        """Return the entries as an index."""
        entries = np.array(self.records, np.int64), np.array(self.offsets, np.int64)
        return ShardIndex(self.count, *entries, self.end, compression, lengths=lengths)


def grow_entries(
    window: Window, *, first: int = 0, stop: int | None = None, check_crc: bool = True, apart: int | None = None
) -> Iterator[Entries]:
    """Walk headers as `index_entries`, and yield the same object at each new entry and at the end.

    Entries are at least `apart` bytes apart, by default a MiB; and as far as the bytes in view.
    """
    entries = Entries([first], [window.offset], 0, window.offset)
    count, apart = 0, limits().entry_nbytes if apart is None else apart
    for step in walk(window, first=first, stop=stop, check_crc=check_crc):
        if step.offset - entries.offsets[-1] >= apart:
            entries.records.append(step.first)
            entries.offsets.append(step.offset)
            # The last record of a step may extend past the bytes in view: it is counted with the next step.
            entries.count, entries.end = step.first - first, step.offset
            yield entries
        count = step.first + step.count - first
    entries.count, entries.end = count, window.offset
    yield entries


@dataclass(frozen=True, slots=True)
class RecordsInView:
    """Consecutive records whose headers are in view of a window at the same time."""

    first: int  # number of the first record in the shard
    count: int
    offset: int  # of the first header in the decompressed stream


def walk(window: Window, *, first: int = 0, stop: int | None = None, check_crc: bool = True) -> Iterator[RecordsInView]:
    """Walk headers from the position of a window, one block at a time, up to the record that begins at `stop` or later.

    The window stays at the records of a step until the next step is requested, and ends after the last record. The last
    record of a step may extend past the bytes in view. Raises CorruptRecordError at a damaged header, and if the shard
    ends within a record.
    """
    shard, count = window.shard, first
    last: RecordsInView | None = None
    large = _skipped_nbytes(shard)
    while (stop is None or window.offset < stop) and window.ensure(HEADER):
        border, end = window.offset, window.end
        if stop is not None:
            # Headers that begin before `stop`, including all bytes of the last one.
            end = min(end, window.begin + max(stop - border, HEADER))
        scanned = _native.scan(window.buffer, window.begin, end, -1, check_crc)
        walked, nbytes = scanned.records, scanned.consumed
        if walked:
            last = RecordsInView(count, walked, border)
            yield last
        if not window.advance(nbytes):
            raise truncation_error(shard, border, count, walked)
        count += walked
        if scanned.stop is _native.Stop.FRAMING or walked == 0:
            raise _header_error(window, count, last)
        _expect_headers(window, shard.size if stop is None else stop, skips=nbytes >= walked * large)
    if (stop is None or window.offset < stop) and not window.exhausted:
        raise _header_error(window, count, last)


def record_ends(window: Window) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint8]]]:
    """Walk all records from the position of a window, as `walk`; yield where some end, and the CRCs of their payloads.

    The offsets are those in the decompressed stream, the CRCs the four stored bytes of each record, of shape (n, 4).
    Payloads are not checked. Raises CorruptRecordError at a damaged header, and if the shard ends within a record.
    """
    shard, count, last = window.shard, 0, None
    large = _skipped_nbytes(shard)
    ends = np.empty(0, np.int64)
    while window.ensure(HEADER):
        border, inside = window.offset, window.end - window.begin
        if len(ends) <= inside // HEADER:
            ends = np.empty(inside // HEADER + 1, np.int64)
        walked = _native.find_ends(window.buffer, window.begin, window.end, True, ends)
        passed = ends[: walked.records].copy()
        if walked.records:
            last = RecordsInView(count, walked.records, border)
            # The last record may extend past the bytes in view.
            whole = passed if passed[-1] <= inside else passed[:-1]
            crcs = _record_crcs(window.buffer, window.begin + whole)
            if not window.advance(int(passed[-1]) - (0 if whole is passed else FOOTER)):
                raise truncation_error(shard, border, count, walked.records)
            if whole is not passed:
                if not window.ensure(FOOTER):
                    raise truncation_error(shard, border, count, walked.records)
                crcs = np.append(crcs, np.frombuffer(window.view(0, FOOTER), np.uint8)[None], axis=0)
                window.advance(FOOTER)
            yield passed + border, crcs
        count += walked.records
        if walked.stop is _native.Stop.FRAMING or not walked.records:
            raise _header_error(window, count, last)
        _expect_headers(window, shard.size, skips=passed[-1] >= walked.records * large)
    if not window.exhausted:
        raise _header_error(window, count, last)


def whole_records(window: Window, stop: int | None, check_crc: bool) -> NDArray[np.int64]:
    """Return where the records in view end that begin before `stop`, at least one, from the position of a window."""
    most = limits().window_nbytes
    have = window.fill(most if stop is None else min(most, max(stop - window.offset, HEADER)))
    ends = np.empty(have // (HEADER + FOOTER) + 1, np.int64)
    ends = ends[: _native.find_ends(window.buffer, window.begin, window.begin + have, check_crc, ends).records]
    if len(ends) and ends[0] > have and window.ensure(int(ends[0])):
        have = int(ends[0])
    ends = ends[: np.searchsorted(ends, have, "right")]
    if stop is not None:
        ends = ends[: 1 + np.searchsorted(ends, stop - window.offset)]
    if not len(ends):
        raise CorruptRecordError("a record is damaged", Location(window.shard.path, None, window.offset))
    return ends


def records_in_memory(shard: Shard) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return where the records of a shard in memory end, and the CRCs of their payloads, as `record_ends`."""
    ends = np.empty(shard.size // (HEADER + FOOTER) + 1, np.int64)
    walked = _native.find_ends(shard.data, 0, shard.size, True, ends)
    found = ends[: walked.records].copy()
    if (found[-1] if len(found) else 0) == shard.size:
        return found, _record_crcs(shard.data, found)
    # A record is damaged or cut: this walk raises the error with its number and byte.
    with Window(shard) as window:
        for _ in record_ends(window):
            pass
    raise CorruptRecordError("the chunk ends within a record: the shard was truncated", Location(shard.path))


def _record_crcs(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the stored payload CRCs of records that end at these bytes, as (n, 4) bytes."""
    crcs = np.empty((len(ends), FOOTER), np.uint8)
    _native.record_crcs(data, ends, crcs.reshape(-1))
    return crcs


def _skipped_nbytes(shard: Shard) -> int:
    """Return the mean size above which payloads are skipped instead of read."""
    if is_local(shard.path):
        return _LARGE_RECORD
    # Imported here because reading local files does not need dask.
    from dask_tfrecord.settings import read_nbytes

    return read_nbytes("storage.range-size")


def _expect_headers(window: Window, stop: int, *, skips: bool) -> None:
    """Prepare a window to walk headers up to `stop`; with `skips`, payloads are skipped, and not read.

    They are skipped if they are large, or if reading them takes longer than another remote request.
    """
    if window.compression is None:
        window.block_size = _HEADER_BLOCK if skips else limits().index_window_nbytes
        window.expect(window.offset + _HEADER_BLOCK if skips and not is_local(window.shard.path) else stop)


def _header_error(window: Window, count: int, last: RecordsInView | None) -> CorruptRecordError:
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
        window.ensure(HEADER)
        length = int.from_bytes(window.view(0, 8), "little")
        window.advance(HEADER + length + FOOTER)
    return window.offset


_log = logging.getLogger(__name__)

SUFFIX = ".idx"

_LENGTH = struct.Struct("<Q")

_NOT_TWO_NUMBERS = "it is not a text with two numbers in each line"

_BLOCK = 1 << 20
# Two 64-bit numbers make a shorter line.
_MAX_LINE = 64
# Headers of a remote shard that are compared if the index file may be older.
_REMOTE_PROBES = 8


def index_shard(
    shard: Shard,
    sidecar: Sidecar | None,
    *,
    check_crc: bool = True,
    apart: int | None = None,
    walker: Callable[..., ShardIndex] = index_entries,
) -> ShardIndex:
    """Read the index of a shard from its index file, or walk its headers if the file does not exist or does not fit.

    Entries are at least `apart` bytes apart, by default a MiB. `access` of the shard states whether
    `FILE.gzidx` exists. Raises CorruptRecordError if headers are walked and damaged.
    """
    stale = None
    if sidecar is not None:
        try:
            return _read_index(shard, sidecar, limits().entry_nbytes if apart is None else apart)
        except UnusableIndexError as error:
            stale = f"{redact_url(sidecar.file.path)}: {redact(error)}"
    index = scan_shard(shard, check_crc=check_crc, apart=apart, walker=walker)
    _log.debug("%s: counted %d records by their headers", Location(shard.path), index.count)
    if index.compression is not None and has_access_points(index.compression) and shard.access:
        points = access_points(shard)
        index = replace(index, access=points is not None and points.nbytes == index.nbytes)
        if not index.access and stale is None:
            stale = f"{redact_url(shard.path)}{ACCESS_SUFFIX}: its access points are not those of the shard"
    return replace(index, stale=stale)


class UnusableIndexError(Exception):
    """An index file is malformed or does not describe its shard; the message names the reason."""


def _read_index(shard: Shard, sidecar: Sidecar, apart: int) -> ShardIndex:
    """Read an index file and compare it with the shard."""
    lines = _IndexLines(apart)
    try:
        for numbers in read_index_lines(sidecar.file):
            lines.add(numbers)
    except (TFRecordError, OSError) as error:
        raise UnusableIndexError(f"it cannot be read: {error}") from error
    local = is_local(shard.path)
    try:
        with Window(shard, block_size=HEADER, stop=DETECTION_NBYTES) as window:
            nbytes = _stream_size(shard, window.compression)
            if lines.end != nbytes:
                raise UnusableIndexError(f"its records end at byte {lines.end}, those of the shard at byte {nbytes}")
            probes = len(lines.records) if local else _REMOTE_PROBES
            for record, offset, length in lines.probes(0 if sidecar.newer else probes):
                _check_header(window, record, offset, length)
            compression = window.compression
    except ShardChangedError:
        raise
    except CorruptRecordError as error:
        raise UnusableIndexError(str(error)) from error
    if not local and compression is None and lines.count:
        # Requests to find a record take long.
        kept = kept_offsets.of(replace(shard, compression=None), lines.count)
        if kept is not None and lines.dense is not None:
            kept[:] = np.concatenate([*lines.dense, [lines.end]])
    return ShardIndex(
        lines.count,
        np.array(lines.records, np.int64),
        np.array(lines.offsets, np.int64),
        lines.end,
        compression,
        access=compression is not None,
    )


def _stream_size(shard: Shard, compression: str | None) -> int:
    """Return the bytes of the decompressed stream of a shard."""
    if compression is None:
        return shard.size
    points = access_points(shard) if shard.access else None
    if points is None:
        raise UnusableIndexError(
            f"the shard is {compression}, and no {ACCESS_SUFFIX} file next to it gives the size of its data"
        )
    return points.nbytes


def _check_header(window: Window, record: int, offset: int, length: int) -> None:
    """Compare the header at an offset with the index file."""
    window.expect(offset + HEADER)
    if not window.advance(offset - window.offset) or not window.ensure(HEADER):
        raise UnusableIndexError(f"the shard ends before record {record}")
    found = int.from_bytes(window.view(0, 8), "little")
    crc = int.from_bytes(window.view(8, HEADER), "little")
    if found + HEADER + FOOTER != length or crc != masked_crc32c(window.view(0, 8)):
        raise UnusableIndexError(f"record {record} should begin at byte {offset} with {length} bytes, but does not")


class _IndexLines:
    """Lines of an index file, reduced to index entries."""

    def __init__(self, apart: int) -> None:
        self.apart = apart
        self.count = self.end = 0
        self.records, self.offsets = [0], [0]
        # Offsets of all records; None if they take too much memory.
        self.dense: list[NDArray[np.int64]] | None = []
        self._lengths = [0]
        self._last = (0, 0, 0)

    def add(self, numbers: NDArray[np.int64]) -> None:
        """Add offsets and lengths of records; raise UnusableIndexError if they leave a gap or overlap."""
        offsets, lengths = numbers[:, 0], numbers[:, 1]
        ends = offsets + lengths
        contiguous = lengths >= HEADER + FOOTER
        contiguous[0] &= offsets[0] == self.end
        contiguous[1:] &= offsets[1:] == ends[:-1]
        if not contiguous.all():
            record = self.count + int(np.argmin(contiguous))
            raise UnusableIndexError(f"record {record} does not begin where the one before ends")
        if self.count == 0:
            self._lengths[0] = int(lengths[0])
        index = int(np.searchsorted(offsets, self.offsets[-1] + self.apart))
        while index < len(offsets):
            self.records.append(self.count + index)
            self.offsets.append(int(offsets[index]))
            self._lengths.append(int(lengths[index]))
            index = int(np.searchsorted(offsets, self.offsets[-1] + self.apart))
        self.count += len(numbers)
        if self.dense is not None:
            self.dense.append(offsets.copy())
            if 8 * self.count > limits().offsets_nbytes:
                self.dense = None
        self.end = int(ends[-1])
        self._last = (self.count - 1, int(offsets[-1]), int(lengths[-1]))

    def probes(self, count: int) -> list[tuple[int, int, int]]:
        """Return number, offset and length of the first and the last record, and of up to `count` index entries."""
        if not self.count:
            return []
        chosen = {0, *np.linspace(0, len(self.records) - 1, count).astype(int).tolist()}
        probes = {(self.records[index], self.offsets[index], self._lengths[index]) for index in chosen}
        return sorted({*probes, self._last})


def read_index_lines(file: Shard) -> Iterator[NDArray[np.int64]]:
    """Yield the offsets and lengths in an index file, of shape (n, 2); raise UnusableIndexError at other text."""
    with open_stored(file) as stored:
        stored.expect(file.size)
        buffer = memoryview(bytearray(_BLOCK))
        rest = b""
        while count := stored.readinto(buffer):
            head, newline, rest = (rest + bytes(buffer[:count])).rpartition(b"\n")
            if len(rest) > _MAX_LINE:
                raise UnusableIndexError(_NOT_TWO_NUMBERS)
            if newline:
                yield from _parse_lines(head)
        yield from _parse_lines(rest)


def _parse_lines(text: bytes) -> Iterator[NDArray[np.int64]]:
    """Yield the two numbers of each line, if there are lines."""
    if text.translate(None, b"0123456789 \t\r\n"):
        raise UnusableIndexError(_NOT_TWO_NUMBERS)
    numbers = np.fromstring(text.decode(), np.int64, sep=" ")
    if len(numbers) % 2:
        raise UnusableIndexError(_NOT_TWO_NUMBERS)
    if len(numbers):
        yield numbers.reshape(-1, 2)


class WrittenIndex(NamedTuple):
    """Sidecars that were written for a shard."""

    files: dict[str, int]  # bytes of each file, by its path
    records: int  # of the shard


def write_sidecars(shard: Shard) -> WrittenIndex:
    """Write the index file of a shard next to it, and its access points if it is gzip.

    The shard is read completely, and the CRC of every length is checked. Each file appears when it is complete. Raises
    CorruptRecordError if the shard is damaged, and TFRecordError if it is zlib or on a web server.
    """
    path, access = sidecar_path(shard.path, SUFFIX), sidecar_path(shard.path, ACCESS_SUFFIX)
    if path is None or access is None or shard.path.startswith(("http://", "https://")):
        raise TFRecordError(
            "cannot write an index file next to this URL; copy the shard to a directory or an object store",
            Location(shard.path),
        )
    with Window(shard, block_size=_BLOCK, stop=shard.size) as window:
        if window.compression is not None and not has_access_points(window.compression):
            raise TFRecordError(useless_index(window.compression), Location(shard.path))
        with written_or_discarded(open_sink(path, storage_options=shard.storage_options)) as sink:
            count = nbytes = 0
            for step in walk(window):
                text = _index_lines(window, step)
                sink.write(text)
                nbytes += len(text)
                count = step.first + step.count
            files = {path: nbytes}
            if window.compression is not None:
                files[access] = write_access_points(shard, access)
    return WrittenIndex(files, count)


def _index_lines(window: Window, step: RecordsInView) -> bytes:
    """Format the lines for the records of a step, whose headers are in view."""
    position, shift = window.begin, step.offset - window.begin
    lines = []
    for _ in range(step.count):
        length = _LENGTH.unpack_from(window.buffer.data, position)[0] + HEADER + FOOTER
        lines.append(f"{position + shift} {length}\n")
        position += length
    return "".join(lines).encode()


# Bytes of a window.
_SPLIT_BLOCK = 256 << 10


@dataclass(frozen=True, slots=True)
class ByteSplit:
    """Byte range of an uncompressed shard; the last one ends with the shard."""

    start: int
    stop: int
    later_stops: tuple[int, ...] = ()  # ends of the following splits


@dataclass(frozen=True, slots=True)
class SplitEntry:
    """First record of a split."""

    offset: int  # of its header; if no record begins in the split, the end of the record that covers the split
    record: int | None  # number in the shard; None if the records before it were not counted


def begins_with_header(shard: Shard) -> bool:
    """Return whether the CRC of the first length of an uncompressed shard matches."""
    with Window(shard, block_size=HEADER, stop=HEADER) as window:
        return _has_header(window)


def _has_header(window: Window) -> bool:
    """Return whether the CRC of the length at the window matches."""
    available = window.shard.size - window.offset
    return (
        window.ensure(HEADER)
        and _native.find_header(window.buffer, window.begin, window.begin + HEADER, available) == 0
    )


def even_splits(size: int, nbytes: int) -> list[ByteSplit]:
    """Return the splits of a shard of `size` bytes: `nbytes` each, and the rest."""
    stops = [*range(nbytes, size, nbytes), size]
    return [
        ByteSplit(start, stop, tuple(stops[number + 1 :]))
        for number, (start, stop) in enumerate(zip([0, *stops], stops, strict=False))
    ]


def find_entry(shard: Shard, split: ByteSplit, *, check_crc: bool = True) -> SplitEntry | None:
    """Find the first record of a split of an uncompressed shard; None if no record begins in it.

    An entry without a record number is likely, but not certain. With `check_crc` the caller checks all CRCs and detects
    a wrong first header, so headers are not followed here to the end of the split. Raises CorruptRecordError if it
    reads damage before the split.
    """
    if split.start == 0:
        return SplitEntry(0, 0)
    stop = min(split.start + _SPLIT_BLOCK, shard.size)
    with Window(shard, split.start, block_size=_SPLIT_BLOCK, stop=stop) as window:
        end = min(split.stop, split.start + limits().search_decoding_nbytes)
        is_found = _search_header(window, end)
        if not is_found and end == split.stop:
            return None
        offset = window.offset
        is_long = check_crc and split.stop - offset >= limits().verified_nbytes
        if is_found and (is_long or _headers_follow(window, split.stop)):
            return SplitEntry(offset, None)
    return find_entry_by_walk(shard, split)


def find_entry_by_walk(shard: Shard, split: ByteSplit) -> SplitEntry:
    """Find the first record of a split, with its number, by walking headers from the beginning of the shard."""
    with Window(shard, stop=split.start) as window:
        count = index_entries(window, stop=split.start).count
        return SplitEntry(window.offset, count)


def check_following_splits(shard: Shard, split: ByteSplit, end: int, record: int) -> None:
    """Check that the following splits begin at `end`, where record `record` begins after the last record of this split.

    Raises CorruptRecordError if the header there is damaged, so that the next split would begin after the damage; and
    TFRecordError if the last record contains records throughout the next split, which would read them as records of the
    shard.
    """
    start = split.stop
    for stop in split.later_stops:
        if start > end:
            return
        with Window(shard, start, block_size=_SPLIT_BLOCK, stop=min(end + HEADER, shard.size)) as window:
            # The search may find bytes of the payload that look like a header.
            misled = _search_header(window, min(stop, end))
            if misled and _headers_follow(window, stop):
                raise TFRecordError(
                    f"the payload contains records throughout bytes {start} to {stop}, where they cannot be "
                    f"distinguished from records of the shard. Use larger chunks, or counts='auto'",
                    Location(shard.path, None, window.offset),
                )
            if not misled and end < stop and not _has_header(window):
                raise framing_error(window, record)
        if misled and end < stop:
            # The search has moved the window: look at `end` again.
            with Window(shard, end, block_size=HEADER, stop=end + HEADER) as window:
                if not _has_header(window):
                    raise framing_error(window, record)
        start = stop


def split_entries(
    shard: Shard,
    split: ByteSplit,
    *,
    check_crc: bool = True,
    apart: int | None = None,
    walker: Callable[..., ShardIndex] = index_entries,
) -> ShardIndex | None:
    """Walk the headers of a split, from the first intact header within 16 MiB; entries are numbered from 0.

    None if headers do not follow each other, or no header was found.
    """
    with Window(shard, split.start, stop=split.stop) as window:
        if split.start and not _search_header(window, min(split.stop, split.start + limits().search_counting_nbytes)):
            return None
        try:
            return walker(window, stop=split.stop, check_crc=check_crc, apart=apart)
        except ShardChangedError:
            raise
        except CorruptRecordError:
            return None


def join_entries(
    shard: Shard, splits: Sequence[ByteSplit], split_indexes: Sequence[ShardIndex | None], *, check_crc: bool = True
) -> ShardIndex:
    """Join the index entries of all splits of an uncompressed shard.

    Entries that do not begin at the end of the split before belong to records within a payload. That split is walked
    again from there. Raises CorruptRecordError if the shard is damaged.
    """
    count = end = 0
    records, offsets, lengths = [], [], []
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
        if entries.count:
            lengths.append(entries.lengths)
        count, end = count + entries.count, entries.nbytes
    return ShardIndex(count, np.concatenate(records), np.concatenate(offsets), end, None, lengths=join_lengths(lengths))


def join_lengths(parts: Sequence[Lengths | None]) -> Lengths | None:
    """Join the lengths of consecutive records; None if a part has unknown lengths."""
    known = [each for each in parts if each is not None]
    if not known or len(known) < len(parts):
        return None
    return {name: tuple(map(np.concatenate, zip(*(each[name] for each in known), strict=True))) for name in known[0]}


def _search_header(window: Window, stop: int) -> bool:
    """Move the window to the first intact header that begins before `stop`, or to `stop`; return whether one exists."""
    size = window.shard.size
    while window.offset < stop and window.ensure(HEADER):
        # Headers that begin before `stop` and are completely in view.
        end = min(window.end, window.begin + stop - window.offset + HEADER - 1)
        found = _native.find_header(window.buffer, window.begin, end, size - window.offset)
        window.advance(found if found >= 0 else end - window.begin - HEADER + 1)
        if found >= 0:
            return True
    return False


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
class RecordRange:
    """Records of one shard that one task reads: consecutive records, or selected records close to each other."""

    shard: Shard
    first: int  # number of the first record in the shard
    count: int | None  # None for all records from the first one to the end of the shard
    entry_record: int  # number of an index entry at or before the first record
    offset: int  # of the header of that entry, in the decompressed stream
    stop_offset: int  # at or after the known end of the run; limits remote ranges
    ends_shard: bool  # bytes that follow the run are an error
    split: ByteSplit | None = None  # if set, the run is all records that begin in this split
    # Ascending numbers of the records in the shard; None if they are consecutive.
    selected: NDArray[np.int64] | None = None
    # Records of the shard as given by the caller; None if they were counted or the run reaches the end.
    total: int | None = None
    kept: NDArray[np.int64] | None = None  # offsets of the records of the shard, to be filled; see `kept_offsets`
    # Offsets at which the selected records begin and end, if known: only these bytes are read.
    spans: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def record_number(self, index: int) -> int:
        """Return the number in the shard of a record of the run."""
        return self.first + index if self.selected is None else int(self.selected[index])


def full_run(shard: Shard) -> RecordRange:
    """Return the run of all records of a shard, whose number may be unknown."""
    return RecordRange(shard, first=0, count=None, entry_record=0, offset=0, stop_offset=shard.size, ends_shard=True)


def iterate_payloads(
    runs: Iterable[RecordRange], *, check_crc: bool = True
) -> Generator[tuple[Location, bytes], None, None]:
    """Iterate over the locations and payloads of runs; one payload is in memory at a time.

    Raises CorruptRecordError if a record is damaged, or a shard has fewer or more records than were counted.
    """
    for run in runs:
        end = None if run.count is None else run.first + run.count
        if run.selected is not None:
            end = int(run.selected[-1]) + 1
        number = run.entry_record
        picked = None if run.selected is None else set(run.selected.tolist())
        # The caller may stop after the first records of a complete shard.
        stop = None if run.count is None else run.stop_offset
        stream = iterate_records(run.shard, check_crc=check_crc, record=run.entry_record, offset=run.offset, stop=stop)
        with closing(stream) as records:
            # Records after the run are read by other tasks, but a shard must end with its last record.
            while number != end or run.ends_shard:
                following = next(records, None)
                if following is None:
                    break
                if number == end:
                    raise _count_error("more bytes follow", run.shard, number)
                if number >= run.first and (picked is None or number in picked):
                    yield Location(run.shard.path, number, following[0]), following[1]
                number += 1
        if end is not None and number < end:
            raise _count_error(f"{plural(end - number, 'more record')} should follow", run.shard, number)


def _count_error(problem: str, shard: Shard, record: int) -> CorruptRecordError:
    """Make the error for a shard whose records are not those that were counted."""
    return CorruptRecordError(
        f"{problem} after {plural(record, 'record')}: the file has changed since it was counted; open the "
        f"collection again",
        Location(shard.path, record),
    )


class _KeptOffsets:
    """Record offsets in the uncompressed shards used last: item ``n`` is where record ``n`` begins.

    Reads of scattered rows fill them, and use those that are known. 0 is an unknown offset, except of record 0.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shards: OrderedDict[Shard, NDArray[np.int64]] = OrderedDict()
        self._nbytes = 0

    def of(self, shard: Shard, count: int) -> NDArray[np.int64] | None:
        """Return the offsets of `count` records and their end; None if they take too much memory."""
        if shard.compression is not None or 8 * (count + 1) > limits().offsets_nbytes:
            return None
        with self._lock:
            before = self._shards.get(shard)
            if before is not None and len(before) == count + 1:
                self._shards.move_to_end(shard)
                return before
            self._shards.pop(shard, None)
            # Pages without known offsets do not take memory.
            self._shards[shard] = made = np.zeros(count + 1, np.int64)
            self._nbytes += made.nbytes - (0 if before is None else before.nbytes)
            while self._nbytes > limits().offsets_nbytes:
                self._nbytes -= self._shards.popitem(last=False)[1].nbytes
        return made


kept_offsets = _KeptOffsets()
