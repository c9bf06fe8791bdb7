"""Index files: the offsets of all records of a shard in `FILE.idx`, written once and verified when the shard is opened.

The format is that of `tfrecord2idx` of DALI and of vahidk/tfrecord: one line per record, with the offset of its header
and the length of the whole record, both in the decompressed stream.

The format stores neither size nor time of the shard, so an index file is compared with the shard itself. Its records
have to be contiguous and end with the shard. Headers have to be where it places them: the first and the last one if the
index file is newer than the shard. If it is older, like copies by many tools, the headers of all index entries are
compared, or a few of a remote shard. A shard rewritten with records of the same lengths has the same index.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import CorruptRecordError, Location, ShardChangedError, TFRecordError, redact, redact_url
from dask_tfrecord.records.framing import FOOTER, HEADER, Window
from dask_tfrecord.records.index import ShardIndex, Step, scan_shard, walk
from dask_tfrecord.settings import limits
from dask_tfrecord.storage.compression import masked_crc32c
from dask_tfrecord.storage.gzip_index import SUFFIX as ACCESS_SUFFIX
from dask_tfrecord.storage.gzip_index import access_points, write_access_points
from dask_tfrecord.storage.shard import Shard, is_local
from dask_tfrecord.storage.sidecar_files import Sidecar, sidecar_path
from dask_tfrecord.storage.streams import open_sink, open_stored

__all__ = [
    "SUFFIX",
    "CountedShard",
    "UnusableIndexError",
    "WrittenIndex",
    "index_shard",
    "read_index_lines",
    "write_sidecars",
]

_log = logging.getLogger(__name__)

SUFFIX = ".idx"

_LENGTH = struct.Struct("<Q")

_NOT_TWO_NUMBERS = "it is not a text with two numbers in each line"

_BLOCK = 1 << 20
# Bytes that are read to detect the compression of a shard.
_HEAD = 512
# Two 64-bit numbers make a shorter line.
_MAX_LINE = 64
# Headers of a remote shard that are compared if the index file may be older.
_REMOTE_PROBES = 8


@dataclass(frozen=True, slots=True)
class CountedShard:
    """Index of a shard, and the reason if its index file was not used.

    Attributes
    ----------
    index : ShardIndex
        Index of the shard.
    stale : str or None
        Reason why an existing index file is unusable.
    """

    index: ShardIndex
    stale: str | None


@dataclass(frozen=True, slots=True)
class WrittenIndex:
    """Index files that were written for a shard.

    Attributes
    ----------
    paths : tuple of str
        Paths or URLs of the files.
    count : int
        Number of records of the shard.
    sizes : tuple of int
        Bytes of each file.
    """

    paths: tuple[str, ...]
    count: int
    sizes: tuple[int, ...]


def index_shard(shard: Shard, sidecar: Sidecar | None, *, check_crc: bool = True) -> CountedShard:
    """Read the index of a shard from its index file, or walk its headers if the file does not exist or does not fit.

    Parameters
    ----------
    shard : Shard
        Shard to index. Its `access` is True if `FILE.gzidx` exists.
    sidecar : Sidecar or None
        `FILE.idx` of the shard; None if it does not exist.
    check_crc : bool, default True
        Check the CRC of every length when headers are walked.

    Returns
    -------
    CountedShard
        Index of the shard.

    Raises
    ------
    CorruptRecordError
        If the headers are walked and the shard is damaged.
    """
    stale = None
    if sidecar is not None:
        try:
            return CountedShard(_read(shard, sidecar), None)
        except UnusableIndexError as error:
            stale = f"{redact_url(sidecar.file.path)}: {redact(error)}"
    index = scan_shard(shard, check_crc=check_crc)
    _log.debug("%s: counted %d records by their headers", Location(shard.path), index.count)
    if index.compression == "gzip" and shard.access:
        points = access_points(shard)
        index = replace(index, access=points is not None and points.nbytes == index.nbytes)
    return CountedShard(index, stale)


class UnusableIndexError(Exception):
    """An index file is malformed or does not describe its shard; the message names the reason."""


def _read(shard: Shard, sidecar: Sidecar) -> ShardIndex:
    """Read an index file and compare it with the shard."""
    lines = _IndexLines()
    try:
        for numbers in read_index_lines(sidecar.file):
            lines.add(numbers)
    except (TFRecordError, OSError) as error:
        raise UnusableIndexError(f"it cannot be read: {error}") from error
    local = is_local(shard.path)
    try:
        with Window(shard, block_size=HEADER, stop=_HEAD) as window:
            nbytes = _stream_size(shard, window.compression)
            if lines.end != nbytes:
                raise UnusableIndexError(f"its records end at byte {lines.end}, those of the shard at byte {nbytes}")
            probes = 0 if sidecar.newer else len(lines.records) if local else _REMOTE_PROBES
            for record, offset, length in lines.probes(probes):
                _check_header(window, record, offset, length)
            compression = window.compression
    except ShardChangedError:
        raise
    except CorruptRecordError as error:
        raise UnusableIndexError(str(error)) from error
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
    if not window.advance(offset - window.offset) or not window.fill(HEADER):
        raise UnusableIndexError(f"the shard ends before record {record}")
    found = int.from_bytes(window.view(0, 8), "little")
    crc = int.from_bytes(window.view(8, HEADER), "little")
    if found + HEADER + FOOTER != length or crc != masked_crc32c(window.view(0, 8)):
        raise UnusableIndexError(f"record {record} should begin at byte {offset} with {length} bytes, but does not")


class _IndexLines:
    """Lines of an index file, reduced to index entries."""

    def __init__(self) -> None:
        self.count = self.end = 0
        self.records, self.offsets = [0], [0]
        self._lengths = [0]
        self._last = (0, 0, 0)

    def add(self, numbers: NDArray[np.int64]) -> None:
        """Add lines.

        Parameters
        ----------
        numbers : int64 array, shape (n, 2)
            Offset and length of each record.

        Raises
        ------
        UnusableIndexError
            If a record does not begin at the end of the record before it.
        """
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
        index = int(np.searchsorted(offsets, self.offsets[-1] + limits().entry_nbytes))
        while index < len(offsets):
            self.records.append(self.count + index)
            self.offsets.append(int(offsets[index]))
            self._lengths.append(int(lengths[index]))
            index = int(np.searchsorted(offsets, self.offsets[-1] + limits().entry_nbytes))
        self.count += len(numbers)
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
    """Read an index file in blocks of lines.

    Parameters
    ----------
    file : Shard
        The index file.

    Yields
    ------
    int64 array, shape (n, 2)
        Offset and length of each record.

    Raises
    ------
    UnusableIndexError
        If a line does not consist of two numbers.
    """
    with open_stored(file) as stored:
        stored.expect(file.size)
        buffer = memoryview(bytearray(_BLOCK))
        rest = b""
        while count := stored.readinto(buffer):
            head, newline, rest = (rest + bytes(buffer[:count])).rpartition(b"\n")
            if len(rest) > _MAX_LINE:
                raise UnusableIndexError(_NOT_TWO_NUMBERS)
            if newline:
                yield from _parse(head)
        yield from _parse(rest)


def _parse(text: bytes) -> Iterator[NDArray[np.int64]]:
    if text.translate(None, b"0123456789 \t\r\n"):
        raise UnusableIndexError(_NOT_TWO_NUMBERS)
    numbers = np.fromstring(text.decode(), np.int64, sep=" ")
    if len(numbers) % 2:
        raise UnusableIndexError(_NOT_TWO_NUMBERS)
    if len(numbers):
        yield numbers.reshape(-1, 2)


def write_sidecars(shard: Shard) -> WrittenIndex:
    """Write the index file of a shard next to it, and its access points if it is gzip.

    Parameters
    ----------
    shard : Shard
        Shard to index. It is read completely, and the CRC of every length is checked.

    Returns
    -------
    WrittenIndex
        Written files. Each file appears when it is complete, and replaces an older one.

    Raises
    ------
    CorruptRecordError
        If the shard is damaged; nothing is written then.
    TFRecordError
        If the shard is zlib, or on a web server.
    """
    path, access = sidecar_path(shard.path, SUFFIX), sidecar_path(shard.path, ACCESS_SUFFIX)
    if path is None or access is None or shard.path.startswith(("http://", "https://")):
        raise TFRecordError(
            "cannot write an index file next to this URL; copy the shard to a directory or an object store",
            Location(shard.path),
        )
    with Window(shard, block_size=_BLOCK, stop=shard.size) as window:
        if window.compression == "zlib":
            message = "an index of zlib data is useless, because inflating starts at the beginning; write gzip instead"
            raise TFRecordError(message, Location(shard.path))
        sink = open_sink(path, shard.storage_options)
        try:
            count = nbytes = 0
            for step in walk(window):
                text = _text(window, step)
                sink.write(text)
                nbytes += len(text)
                count = step.first + step.count
            sizes: tuple[int, ...] = (nbytes,)
            if window.compression == "gzip":
                sizes += (write_access_points(shard, access),)
            sink.close()
        except BaseException:
            sink.discard()
            raise
    return WrittenIndex((path, access)[: len(sizes)], count, sizes)


def _text(window: Window, step: Step) -> bytes:
    """Format the lines for the records of a step, whose headers are in view."""
    position, shift = window.begin, step.offset - window.begin
    lines = []
    for _ in range(step.count):
        length = _LENGTH.unpack_from(window.buffer.data, position)[0] + HEADER + FOOTER
        lines.append(f"{position + shift} {length}\n")
        position += length
    return "".join(lines).encode()
