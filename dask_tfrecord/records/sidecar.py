"""Sidecars: the index of a shard in `FILE.idx`, written for the next time it is opened, and judged when it is found.

The format is that of DALI's and vahidk's `tfrecord2idx`: a line for each record, the byte of its header and the length
of the whole record, both of the decompressed stream. It has no room for the size or time of the shard, so a sidecar is
judged by the shard itself. Its records have to follow each other without a gap from the first byte to the last, and
headers of the shard have to be where it says: the first and the last if the sidecar is the newer file; if it is older,
as the copies of many tools are, all those that would be entered later (a few of a remote shard). A shard that was
written anew with the very same lengths has the very same index, so nothing more needs to hold.

Imports errors, storage, framing and index.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import CorruptRecordError, Place, ShardChangedError, TFRecordError
from dask_tfrecord.records.framing import FOOTER, HEADER, Window
from dask_tfrecord.records.index import BETWEEN_MARKS, ShardIndex, Step, scan_shard, walk
from dask_tfrecord.storage.access import SUFFIX as ACCESS_SUFFIX
from dask_tfrecord.storage.access import access_points, write_access_points
from dask_tfrecord.storage.compression import masked_crc32c
from dask_tfrecord.storage.shards import Shard, is_local
from dask_tfrecord.storage.sidecars import Sidecar, sidecar_path
from dask_tfrecord.storage.streams import open_sink, open_stored

__all__ = ["SUFFIX", "Counted", "Written", "index_numbers", "index_shard", "write_sidecars"]

SUFFIX = ".idx"

_LENGTH = struct.Struct("<Q")

_BLOCK = 1 << 20
# What is looked at to find the compression of a shard.
_HEAD = 512
# A line of two numbers of 64 bits is shorter.
_LONGEST_LINE = 64
# Headers of a remote shard that are looked at if its sidecar may be older.
_REMOTE_PROBES = 8


@dataclass(frozen=True, slots=True)
class Counted:
    """What is known of a shard.

    Attributes
    ----------
    index : ShardIndex
        Its records.
    stale : str or None
        What is wrong with the sidecar, where there is one that could not be used.
    """

    index: ShardIndex
    stale: str | None


@dataclass(frozen=True, slots=True)
class Written:
    """Sidecars of a shard.

    Attributes
    ----------
    paths : tuple of str
        The files.
    count : int
        Records of the shard.
    """

    paths: tuple[str, ...]
    count: int


def index_shard(shard: Shard, sidecar: Sidecar | None, *, check_crc: bool = True) -> Counted:
    """Take the index of a shard from its sidecar, or walk its headers if there is none that fits.

    Parameters
    ----------
    shard : Shard
        What is to be indexed; its `access` says whether there is a `FILE.gzidx`.
    sidecar : Sidecar or None
        Its `FILE.idx`, if there is one.
    check_crc : bool, default True
        Whether the CRC of every length that is looked at has to hold.

    Raises
    ------
    CorruptRecordError
        If the shard had to be scanned, and is damaged.
    """
    stale = None
    if sidecar is not None:
        try:
            return Counted(_read(shard, sidecar), None)
        except _StaleError as error:
            stale = f"{sidecar.file.path}: {error}"
    index = scan_shard(shard, check_crc=check_crc)
    if index.compression == "gzip" and shard.access:
        points = access_points(shard)
        index = replace(index, access=points is not None and points.nbytes == index.nbytes)
    return Counted(index, stale)


class _StaleError(Exception):
    """A sidecar that does not fit its shard; says why."""


def _read(shard: Shard, sidecar: Sidecar) -> ShardIndex:
    """Read a sidecar and hold it against the shard."""
    lines = _Lines()
    try:
        for numbers in index_numbers(sidecar.file):
            lines.add(numbers)
    except (TFRecordError, OSError) as error:
        raise _StaleError(f"it can't be read: {error}") from error
    local = is_local(shard.path)
    try:
        with Window(shard, block_size=HEADER, stop=_HEAD) as window:
            nbytes = _nbytes(shard, window.compression)
            if lines.end != nbytes:
                raise _StaleError(f"its records end at byte {lines.end}, those of the shard at {nbytes}")
            many = 0 if sidecar.newer else len(lines.records) if local else _REMOTE_PROBES
            for record, offset, length in lines.probes(many):
                _probe(window, record, offset, length)
            compression = window.compression
    except ShardChangedError:
        raise
    except CorruptRecordError as error:
        raise _StaleError(str(error)) from error
    return ShardIndex(
        lines.count,
        np.array(lines.records, np.int64),
        np.array(lines.offsets, np.int64),
        lines.end,
        compression,
        access=compression is not None,
    )


def _nbytes(shard: Shard, compression: str | None) -> int:
    """Find where the records of a shard end in the decompressed stream."""
    if compression is None:
        return shard.size
    points = access_points(shard) if shard.access else None
    if points is None:
        raise _StaleError(f"the shard is {compression}, and no {ACCESS_SUFFIX} file beside it tells where its data end")
    return points.nbytes


def _probe(window: Window, record: int, offset: int, length: int) -> None:
    """See that a header is where it should be, and says what it should."""
    window.expect(offset + HEADER)
    if not window.advance(offset - window.offset) or not window.fill(HEADER):
        raise _StaleError(f"the shard ends before record {record}")
    said = int.from_bytes(window.view(0, 8), "little")
    crc = int.from_bytes(window.view(8, HEADER), "little")
    if said + HEADER + FOOTER != length or crc != masked_crc32c(window.view(0, 8)):
        raise _StaleError(f"record {record} should begin at byte {offset} with {length} bytes, and does not")


class _Lines:
    """What the lines of a sidecar say, kept as marks."""

    def __init__(self) -> None:
        self.count = self.end = 0
        self.records, self.offsets = [0], [0]
        self._lengths = [0]
        self._last = (0, 0, 0)

    def add(self, numbers: NDArray[np.int64]) -> None:
        """Take more lines.

        Parameters
        ----------
        numbers : int64 array, shape (n, 2)
            Offset and length of each record.
        """
        offsets, lengths = numbers[:, 0], numbers[:, 1]
        ends = offsets + lengths
        fits = lengths >= HEADER + FOOTER
        fits[0] &= offsets[0] == self.end
        fits[1:] &= offsets[1:] == ends[:-1]
        if not fits.all():
            record = self.count + int(np.argmin(fits))
            raise _StaleError(f"record {record} does not begin where the one before ends")
        if self.count == 0:
            self._lengths[0] = int(lengths[0])
        place = int(np.searchsorted(offsets, self.offsets[-1] + BETWEEN_MARKS))
        while place < len(offsets):
            self.records.append(self.count + place)
            self.offsets.append(int(offsets[place]))
            self._lengths.append(int(lengths[place]))
            place = int(np.searchsorted(offsets, self.offsets[-1] + BETWEEN_MARKS))
        self.count += len(numbers)
        self.end = int(ends[-1])
        self._last = (self.count - 1, int(offsets[-1]), int(lengths[-1]))

    def probes(self, many: int) -> list[tuple[int, int, int]]:
        """Choose the first and the last record and up to `many` marks: their numbers, offsets and lengths."""
        if not self.count:
            return []
        places = {0, *np.linspace(0, len(self.records) - 1, many).astype(int).tolist()}
        chosen = {(self.records[place], self.offsets[place], self._lengths[place]) for place in places}
        return sorted({*chosen, self._last})


def index_numbers(file: Shard) -> Iterator[NDArray[np.int64]]:
    """Read the numbers of a sidecar, a block of lines at a time."""
    with open_stored(file) as stored:
        stored.expect(file.size)
        buffer = memoryview(bytearray(_BLOCK))
        rest = b""
        while count := stored.readinto(buffer):
            head, newline, rest = (rest + bytes(buffer[:count])).rpartition(b"\n")
            if len(rest) > _LONGEST_LINE:
                raise _StaleError("it is no text of two numbers in a line")
            if newline:
                yield from _parse(head)
        yield from _parse(rest)


def _parse(text: bytes) -> Iterator[NDArray[np.int64]]:
    if text.translate(None, b"0123456789 \t\r\n"):
        raise _StaleError("it is no text of two numbers in a line")
    numbers = np.fromstring(text.decode(), np.int64, sep=" ")
    if len(numbers) % 2:
        raise _StaleError("it is no text of two numbers in a line")
    if len(numbers):
        yield numbers.reshape(-1, 2)


def write_sidecars(shard: Shard) -> Written:
    """Write the index of a shard beside it, and access points if it is gzip.

    Parameters
    ----------
    shard : Shard
        It is read from end to end; the CRC of every length has to hold.

    Returns
    -------
    Written
        What was written; each file appears whole, in the place of an older one.

    Raises
    ------
    CorruptRecordError
        If the shard is damaged; nothing is written then.
    TFRecordError
        If there can be no sidecar: of zlib data, or where files can't be written to.
    """
    path, access = sidecar_path(shard.path, SUFFIX), sidecar_path(shard.path, ACCESS_SUFFIX)
    if path is None or access is None or shard.path.startswith(("http://", "https://")):
        raise TFRecordError("no file can be written beside this URL; copy the shard to where it can", Place(shard.path))
    with Window(shard, block_size=_BLOCK, stop=shard.size) as window:
        if window.compression == "zlib":
            message = "zlib data can't be entered but at the beginning, so an index is of no use; write gzip instead"
            raise TFRecordError(message, Place(shard.path))
        sink = open_sink(path, shard.storage_options)
        try:
            count = 0
            for step in walk(window):
                sink.write(_text(window, step))
                count = step.first + step.count
            if window.compression == "gzip":
                write_access_points(shard, access)
            sink.close()
        except BaseException:
            sink.discard()
            raise
    return Written((path, access) if window.compression == "gzip" else (path,), count)


def _text(window: Window, step: Step) -> bytes:
    """Lines for the records of a step, whose headers are in view."""
    at, shift = window.begin, step.offset - window.begin
    lines = []
    for _ in range(step.count):
        length = _LENGTH.unpack_from(window.buffer.data, at)[0] + HEADER + FOOTER
        lines.append(f"{at + shift} {length}\n")
        at += length
    return "".join(lines).encode()
