"""Bytes of one file: streams for reading, decompression, and sinks that publish a new file when it is complete.

Local files are read with system calls, remote files in large ranges with read-ahead. Files are not mapped into memory:
truncating a mapped file kills the process, while a read returns fewer bytes.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401
import contextlib
import errno
import functools
import io
import os
import re
import stat
import struct
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np
from fsspec.implementations.local import LocalFileSystem
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.errors import (
    CorruptRecordError,
    Location,
    ShardChangedError,
    ShardNotFoundError,
    Spelled,
    StorageError,
    TFRecordError,
    add_path,
    add_path_to_errors,
    plural,
    redact_url,
)
from dask_tfrecord.settings import limits
from dask_tfrecord.shards import process
from dask_tfrecord.shards.activities import activity
from dask_tfrecord.shards.compressions import (
    DETECTION_NBYTES,
    detect_compression,
    find_compression,
    normalize_compression,
)
from dask_tfrecord.shards.deflate import TRAILER, Inflater
from dask_tfrecord.shards.listing import find_sidecars, sidecar_path
from dask_tfrecord.shards.remote import RangeFetcher, call_once, changed_error, not_found_error, open_ranges, url_to_fs
from dask_tfrecord.shards.shard import NOT_REGULAR, Shard, has_changed, is_local
from dask_tfrecord.shards.shard_compression import Decompressor

# Exit functions are called in reverse order of registration. This import registers the one that waits for threads, so
# that `_at_exit` below is called before it.


# Bytes of the first remote range while the length of the read is unknown.
_FIRST_RANGE = 256 << 10

# Bytes between two remote ranges that are fetched with them, and requests for ranges at a time.
_COALESCED_GAP = 512 << 10
_CONCURRENT_REQUESTS = 16

_WRITE_BUFFER = 1 << 20

# Name of a temporary file: the file's name, 32 digits, and ".tmp". The first digits belong to the process.
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")

# Returns whether a complete temporary file replaces the target.
ShouldPublish = Callable[[Path], bool]


# An interpreter waits for its threads before it exits, and some threads read for minutes. When Ctrl-C ends the program,
# by an uncaught KeyboardInterrupt or as a command that is about to exit, reading threads raise KeyboardInterrupt. When
# the program catches the exception, as notebooks do, they continue.
# Only a change counts, so that two threads that interrupt at once may count as one.
_interrupts = 0


def interrupt_count() -> int:
    """Return the number of interruptions so far; a reader stores it when it starts."""
    return _interrupts


def interrupt_reading() -> None:
    """Interrupt all current reads of this process, except in the main thread."""
    global _interrupts
    _interrupts += 1


def check_interrupt(started: int) -> None:
    """Raise KeyboardInterrupt in other threads than the main thread if `interrupt_count` is not `started` any more."""
    if _interrupts != started and threading.current_thread() is not threading.main_thread():
        raise KeyboardInterrupt("the program was interrupted")


def _at_exit() -> None:
    # The interpreter sets `last_value` when it prints the traceback of an uncaught exception, which happens first.
    if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
        interrupt_reading()


# Private API of threading: functions of `atexit` are called only after all threads have ended, which is what Ctrl-C
# would wait for. concurrent.futures uses the same hook: https://github.com/python/cpython/issues/83993
_register = getattr(threading, "_register_atexit", None)
if _register is not None:
    _register(_at_exit)


class StoredStream(io.RawIOBase):
    """Stored bytes of a file, read forward; `position` is the offset of the next byte.

    Reading raises ShardChangedError if the file has changed since it was listed.
    """

    compression: str | None = None

    def __init__(self, shard: Shard, source: RangeReader | _LocalFile | _BytesInMemory) -> None:
        self.shard = shard
        self.position = 0
        self._source = source
        self._started = interrupt_count()

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the offset of the next byte."""
        return self.position

    def readinto(self, buffer: Any, /) -> int:
        """Read up to ``len(buffer)`` bytes with one call; return their number, which is 0 only at the end."""
        buffer = memoryview(buffer)
        left = self.shard.size - self.position
        if left <= 0 or not buffer:
            return 0
        check_interrupt(self._started)
        try:
            count = self._source.readinto(buffer if len(buffer) <= left else buffer[:left])
        except OSError as error:
            self._raise_named(error)
        if not count:
            raise changed_error(self.shard, self.position)
        self.position += count
        return count

    def read_ranges(self, begins: NDArray[np.int64], ends: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Read ranges of bytes, one after the other, to an array of their size."""
        check_interrupt(self._started)
        try:
            end = self._source.read_ranges(begins, ends, out)
        except OSError as error:
            self._raise_named(error)
        if end >= 0:
            raise changed_error(self.shard, end)

    def _raise_named(self, error: OSError) -> NoReturn:
        """Raise the error of a read with the file name, which it does not contain."""
        if isinstance(error, TFRecordError) or error.filename is not None or error.errno is None:
            raise error
        raise OSError(error.errno, error.strerror, redact_url(self.shard.path)) from error

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Skip to `offset`, or to the end of a shorter file; return the new position."""
        offset = min((0, self.position, self.shard.size)[whence] + offset, self.shard.size)
        if offset != self.position:
            self._source.seek(offset)
            self.position = offset
        return offset

    def expect(self, stop: int) -> None:
        """Announce the offset where reading will probably stop."""
        self._source.expect(stop)

    def arrived(self) -> Arrived | None:
        """Return what can be read from `position` on without this object, which `seek` then follows, or None."""
        check_interrupt(self._started)
        return self._source.arrived(self.shard.size)

    def peek(self, count: int) -> bytes:
        """Return the first bytes without advancing."""
        head = memoryview(bytearray(min(count, self.shard.size)))
        while self.position < len(head):
            self.readinto(head[self.position :])
        self._source.seek(0)
        self.position = 0
        return bytes(head)

    def close(self) -> None:
        """Close the file."""
        super().close()
        self._source.close()


class Arrived(NamedTuple):
    """Bytes that the native core reads itself: of a file, or in memory."""

    file: int | None  # descriptor
    memory: NDArray[np.uint8] | None
    start: int  # offset in the stream of the first byte
    stop: int  # offset in the stream behind the last byte


class _LocalFile(io.FileIO):
    """Unbuffered file: each read is one system call into the caller's buffer, without the GIL."""

    def expect(self, stop: int) -> None:
        """Do nothing: the kernel reads ahead."""

    def arrived(self, size: int) -> Arrived:
        """Return the file."""
        return Arrived(self.fileno(), None, 0, size)

    def read_ranges(self, begins: NDArray[np.int64], ends: NDArray[np.int64], out: NDArray[np.uint8]) -> int:
        """Read ranges one after the other; return the size of a file that ends before, or -1."""
        return _native.read_ranges(self.fileno(), begins, ends, out)

    def __del__(self) -> None:
        # An iterator that is given up in the middle may be collected after the file that it would close.
        super().close()


class _KeptFile(_LocalFile):
    """File that stays open until its last reference is gone."""

    def close(self) -> None:
        """Do nothing: other streams read the file."""


class _BytesInMemory:
    """Bytes in memory, with the methods of an open file."""

    def __init__(self, data: Any) -> None:
        self._data = np.frombuffer(data, np.uint8)
        self._offset = 0

    def readinto(self, buffer: memoryview, /) -> int:
        """Copy the next bytes."""
        part = self._data[self._offset : self._offset + len(buffer)]
        np.frombuffer(buffer, np.uint8)[: len(part)] = part
        self._offset += len(part)
        return len(part)

    def read_ranges(self, begins: NDArray[np.int64], ends: NDArray[np.int64], out: NDArray[np.uint8]) -> int:
        """Copy ranges one after the other; return -1."""
        done = 0
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            out[done : done + end - begin] = self._data[begin:end]
            done += end - begin
        return -1

    def arrived(self, size: int) -> Arrived:
        """Return the bytes."""
        return Arrived(None, self._data, 0, size)

    def seek(self, offset: int, /) -> None:
        """Set the offset of the next read."""
        self._offset = offset

    def expect(self, stop: int) -> None:
        """Do nothing: all bytes are here."""

    def close(self) -> None:
        """Do nothing."""


class _Ahead(NamedTuple):
    """Range that is fetched while the one before is read."""

    start: int
    stop: int
    data: Future[bytes]


class RangeReader:
    """Remote file in large ranges: one range is in memory while the next one is fetched.

    While the end of the read is unknown, ranges start small, because only the head or a few records may be needed, and
    double with sequential reading, up to the setting ``storage.range-size``; then the next range is fetched ahead.
    After `expect`, ranges are that large from the start, and the last one ends at the expected offset.
    """

    def __init__(self, fetch: RangeFetcher, size: int) -> None:
        # Imported here because opening local files does not need dask.
        from dask_tfrecord.settings import read_nbytes

        self._fetch = fetch
        self._size = size
        self._most_nbytes = read_nbytes("storage.range-size")
        self._offset = 0
        self._range = memoryview(b"")
        self._range_start = 0
        self._stop = 0
        self._length = _FIRST_RANGE
        self._ahead: _Ahead | None = None
        self._pool: ThreadPoolExecutor | None = None

    def readinto(self, buffer: memoryview, /) -> int:
        """Read from the current range; fetch the next range if the offset is outside it."""
        if not self._range_start <= self._offset < self._range_start + len(self._range):
            self._load_range()
        within = self._offset - self._range_start
        part = self._range[within : within + len(buffer)]
        buffer[: len(part)] = part
        self._offset += len(part)
        return len(part)

    def read_ranges(self, begins: NDArray[np.int64], ends: NDArray[np.int64], out: NDArray[np.uint8]) -> int:
        """Fetch ranges, those close to each other in one request, and several at a time; return -1."""
        order = np.argsort(begins, kind="stable")
        starts, stops = begins[order], np.maximum.accumulate(ends[order])
        apart = (starts[1:] - stops[:-1] > _COALESCED_GAP) | (np.diff(starts // self._most_nbytes) > 0)
        cuts = [0, *(np.flatnonzero(apart) + 1).tolist(), len(starts)]
        pieces = np.cumsum(ends - begins) - (ends - begins)

        def fetch(first: int, past: int) -> None:
            start = int(starts[first])
            data = np.frombuffer(self._fetch(start, int(stops[past - 1])), np.uint8)
            for index in order[first:past].tolist():
                begin = int(begins[index]) - start
                end = int(ends[index]) - start
                piece = int(pieces[index])
                out[piece : piece + end - begin] = data[begin:end]

        requests = list(pairwise(cuts))
        with activity("read"):
            if not self._fetch.concurrent():
                # A first answer shows whether a web server sends ranges.
                fetch(*requests.pop(0))
            if len(requests) > 1 and self._fetch.concurrent():
                with ThreadPoolExecutor(min(len(requests), _CONCURRENT_REQUESTS), "dask_tfrecord-ranges") as pool:
                    list(pool.map(fetch, *zip(*requests, strict=True)))
            else:
                for request in requests:
                    fetch(*request)
        return -1

    def arrived(self, size: int) -> Arrived | None:
        """Return the current range, if the offset is in it."""
        stop = self._range_start + len(self._range)
        if not self._range_start <= self._offset < stop:
            return None
        return Arrived(None, np.frombuffer(self._range, np.uint8), self._range_start, stop)

    def seek(self, offset: int, /) -> None:
        """Set the offset of the next read, without fetching."""
        self._offset = offset

    def expect(self, stop: int) -> None:
        """Announce the offset where reading will probably stop."""
        self._stop = min(stop, self._size)

    def close(self) -> None:
        """Close without waiting; a range that is being fetched is closed when it arrives."""
        self._range = memoryview(b"")
        self._fetch.stop()
        if self._pool is not None:
            self._pool.submit(self._fetch.close)
            self._pool.shutdown(wait=False)
        else:
            self._fetch.close()

    def _load_range(self) -> None:
        """Make the range that contains the offset the current one."""
        start = self._offset
        known = start < self._stop
        if known:
            self._length = self._most_nbytes
        elif start > 0 and start == self._range_start + len(self._range):
            self._length = min(2 * self._length, self._most_nbytes)
        else:
            self._length = _FIRST_RANGE
        self._range = memoryview(b"")  # at most two ranges in memory
        ahead, self._ahead = self._ahead, None
        with activity("read"):
            if ahead is not None and ahead.start <= start < ahead.stop:
                data, self._range_start = ahead.data.result(), ahead.start
            else:
                stop = self._range_end(start)
                # One request at a time: a range that is not needed any more may still be on its way.
                data = self._pool.submit(self._fetch, start, stop).result() if self._pool else self._fetch(start, stop)
                self._range_start = start
        self._range = memoryview(data)
        self._fetch_ahead(self._range_start + len(data), self._stop if known else self._size)

    def _fetch_ahead(self, start: int, stop: int) -> None:
        """Start to fetch the next range, if reading is sequential and the end is not reached."""
        if start < stop and self._length == self._most_nbytes:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, "dask_tfrecord-read-ahead")
            end = self._range_end(start)
            self._ahead = _Ahead(start, end, self._pool.submit(self._fetch, start, end))

    def _range_end(self, start: int) -> int:
        """Return the end of a range that begins at `start`."""
        return min(start + self._length, self._stop if start < self._stop else self._size)


def open_stored(shard: Shard, *, keep: bool = False) -> StoredStream:
    """Open a file for reading its stored bytes.

    With `keep`, a local file stays open for further calls, for `StoredStream.read_ranges` alone; its name is looked up
    again. Raises ShardNotFoundError or ShardChangedError if the file was removed, or is known to have changed, since it
    was listed.
    """
    if shard.data is not None:
        return StoredStream(shard, _BytesInMemory(shard.data))
    try:
        if is_local(shard.path):
            if not keep:
                return StoredStream(shard, _open_local(shard, _LocalFile))
            now = os.stat(shard.path)  # noqa: PTH116
            return StoredStream(shard, _kept_file(shard, (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns)))
        return StoredStream(shard, RangeReader(open_ranges(shard), shard.size))
    except FileNotFoundError as error:
        raise not_found_error(shard) from error


@functools.lru_cache(maxsize=64)
def _kept_file(shard: Shard, _identity: tuple[int, ...]) -> _LocalFile:
    """Return an open file; a file that replaces it has another identity."""
    return _open_local(shard, _KeptFile)


def _open_local(shard: Shard, kind: type[_LocalFile]) -> _LocalFile:
    """Open a local file; refuse pipes, files that have changed, and those with a wrong size."""
    # Without O_NONBLOCK, opening a pipe waits for a writer.
    file = kind(shard.path, opener=lambda path, flags: os.open(path, flags | getattr(os, "O_NONBLOCK", 0)))
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise StorageError(NOT_REGULAR, Location(shard.path))
    if has_changed(shard, {"size": status.st_size, "mtime": status.st_mtime}):
        file.close()
        raise changed_error(shard, status.st_size)
    if not status.st_size and file.read(1):
        # Reading would end after the reported bytes: without a record, and without an error.
        file.close()
        raise StorageError(
            "the file has content, and the file system reports 0 bytes, as for files of /proc; copy it to a disk, and "
            "read the copy",
            Location(shard.path),
        )
    return file


def open_sink(
    path: str | os.PathLike[str],
    compression: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    should_publish: ShouldPublish | None = None,
) -> ByteSink:
    """Create a file that appears at `path` when it is closed, and then replaces an older file.

    The directory exists. The compression does not depend on the name. `close` calls `should_publish` with the path of
    the complete temporary file, and discards the file if it returns False.
    """
    compression = normalize_compression(compression)
    fs, inside = url_to_fs(path, **(storage_options or {}))
    if not isinstance(fs, LocalFileSystem):
        # Stores may display unfinished uploads: a complete local file is uploaded.
        file: Any = tempfile.NamedTemporaryFile(prefix="dask_tfrecord-", buffering=_WRITE_BUFFER, delete=False)  # noqa: SIM115

        def upload(complete: Path) -> None:
            call_once(lambda: fs.put_file(str(complete), inside), str(path), "upload the file")

        return ByteSink(file, compression, str(path), upload, should_publish)
    # A symbolic link at the target is replaced, not followed: its target may belong to another user.
    target = Path(inside).absolute()
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "expected a file name to write to, this is a directory", inside)
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such directory to write to", str(target.parent))
    file = target.with_name(temporary_name(target.name)).open("xb", buffering=_WRITE_BUFFER)
    return ByteSink(file, compression, inside, lambda complete: complete.replace(target), should_publish, durable=True)


def write_file(
    path: str | os.PathLike[str], data: bytes | bytearray | memoryview, storage_options: Mapping[str, Any] | None = None
) -> None:
    """Write a whole file, which replaces an older one, in an existing directory."""
    with written_or_discarded(open_sink(path, storage_options=storage_options)) as sink:
        sink.write(data)


@contextlib.contextmanager
def written_or_discarded(sink: ByteSink) -> Iterator[ByteSink]:
    """Close a sink at the end of the context, or discard it after an error."""
    try:
        yield sink
        sink.close()
    except BaseException:
        sink.discard()
        raise


def temporary_name(name: str) -> str:
    """Return a name for a temporary file next to the file `name`: 128 bits, of this process, and random ones."""
    prefix = process.process_digits()
    return f".{name[:200]}.{prefix}{uuid.uuid4().hex[len(prefix) :]}.tmp"


class ByteSink:
    """Bytes of a new file: a temporary file, which `close` publishes.

    Attributes
    ----------
    checksum : int
        CRC-32C of the stored bytes so far.
    """

    def __init__(
        self,
        file: Any,
        compression: str | None,
        place: str,
        publish: Callable[[Path], object],
        should_publish: ShouldPublish | None,
        *,
        durable: bool = False,
    ) -> None:
        # Imported here because reading needs it for damaged records only.
        import crc32c

        self._file, self._path, self._publish, self._durable = file, Path(file.name), publish, durable
        self._should_publish, self._place = should_publish, place
        self._crc32c, self.checksum = crc32c.crc32c, 0
        self._compressor = None if compression is None else find_compression(compression).compressor()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append `data`."""
        self._write_bytes(data if self._compressor is None else self._compressor.compress(data))

    def _write_bytes(self, data: bytes | bytearray | memoryview) -> None:
        """Write bytes, and add them to the checksum; errors name the file."""
        self.checksum = self._crc32c(data, self.checksum)
        try:
            self._file.write(data)
        except OSError as error:
            add_path(error, self._place)
            raise

    def close(self) -> None:
        """Publish the file."""
        if self._compressor is not None:
            self._write_bytes(self._compressor.flush())
        with add_path_to_errors(self._place):
            if self._durable:
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file.close()
        if self._should_publish is None or self._should_publish(self._path):
            self._publish(self._path)
        self._path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove the unfinished file."""
        with contextlib.suppress(OSError):
            # Closing writes the buffered bytes, which fails again on a full disk.
            self._file.close()
        self._path.unlink(missing_ok=True)


# Bytes that mark the start of a member.
_MAGIC_SIZE = 16

_TRUNCATED = "the {} data ends before its last block: the file is truncated"

# Inflated bytes before the ratio is checked.
_UNCHECKED_NBYTES = 64 << 20

_READ_SIZE = 256 << 10
# Stored bytes of the first input of a member; each further one is twice as large, up to `_READ_SIZE`. An inflater
# copies the part of its input that it does not use, so tiny members need small inputs. Large ones save calls, each of
# which takes the GIL several times. After one that inflates to more than `_USUAL_RATIO` times its size, as those of a
# decompression bomb do, they are small again: the ratio is checked between inputs.
_INPUT_SIZE = 16 << 10
_USUAL_RATIO = 16
# Bytes that decide on a compression: of a damaged file, more may not inflate.
_MAGIC_NBYTES = 4
_DISCARD_SIZE = 256 << 10
# Attempts to load an access point while its sidecar is being replaced; afterwards the current position is used.
_LOAD_ATTEMPTS = 3


def open_stream(shard: Shard, start: int = 0, stop: int | None = None) -> StoredStream | InflatedStream:
    """Open the decompressed bytes of a shard at offset `start`, or at their end if there are fewer.

    Reading will probably stop at the offset `stop`, which limits remote ranges.
    """
    stored = open_stored(shard)
    try:
        if start == 0 and stop is not None:
            # Detection reads the beginning of the expected bytes.
            stored.expect(stop)
        compression = shard.compression
        if compression == "infer":
            compression = detect_compression(stored.peek(DETECTION_NBYTES))
        stream = stored if compression is None else InflatedStream(stored, compression)
        if stop is not None:
            stream.expect(stop)
        stream.seek(start)
        return stream
    except BaseException:
        stored.close()
        raise


class _Origin(NamedTuple):
    """Start of an inflater: of a member, or an access point within one."""

    inflater: Callable[[], Decompressor]
    stored: int
    inflated: int
    head: bytes = b""  # input before the byte at `stored`


class _Rescued:
    """Decompressor that returns what can be inflated before damage, and then raises the error."""

    eof = False
    needs_input = False
    unused_data = b""

    def __init__(self, pieces: Iterator[bytes], error: ValueError) -> None:
        self._pieces, self._error = pieces, error
        self._left = memoryview(b"")

    def decompress(self, _data: bytes | memoryview, max_length: int = -1, /) -> bytes:
        """Return up to `max_length` bytes."""
        if not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                raise self._error
            self._left = memoryview(piece)
        stop = len(self._left) if max_length < 0 else max_length
        part, self._left = self._left[:stop], self._left[stop:]
        return bytes(part)


class InflatedStream:
    """Decompressed bytes of a compressed file, read forward; `position` is the offset of the next byte.

    If the file is truncated or damaged, is followed by other data, or inflates to more than `max_ratio` times its size,
    reading raises `CorruptRecordError` after all bytes that can be inflated. `seek` starts at the closest access point
    before the offset, if the file has access points.
    """

    def __init__(self, stored: StoredStream, compression: str) -> None:
        self.compression: str | None = compression
        self.position = 0
        self._stored = stored
        self._codec = find_compression(compression)
        self._inflater: Decompressor | None = None  # None between two members
        self._member_count = 0
        self._read_buffer = memoryview(bytearray(_READ_SIZE))
        self._input = self._read_buffer[:0]  # read from the file, not passed to the inflater
        self._input_size = 0  # of the last input
        self._fed_position = 0  # before the last input
        self._rest: Any = b""  # passed to the inflater, but unused by it
        self._trailer = 0  # stored bytes to skip before the next member, after an access point
        self._origin = _Origin(self._codec.decompressor, 0, 0)
        self._failure: CorruptRecordError | None = None
        self._start = (0, 0)  # stored and inflated offset where inflating started
        self._points = access_points(stored.shard) if self._codec.has_access_points and stored.shard.access else None

    def readinto(self, buffer: memoryview) -> int:
        """Fill `buffer`, or read to the end of the stream; return the number of bytes."""
        filled = 0
        while filled < len(buffer) and self._failure is None:
            try:
                inflater = self._inflater or self._next_member()
                if inflater is None:
                    return filled
                filled += self._inflate_into(inflater, buffer[filled:])
            except CorruptRecordError as error:
                self._failure = error
        if self._failure is not None and not filled and buffer:
            raise self._failure
        return filled

    def seek(self, offset: int) -> int:
        """Skip to `offset`, or to the end of a shorter stream; return the new position."""
        self._enter_before(offset)
        scratch = memoryview(bytearray(min(_DISCARD_SIZE, max(0, offset - self.position))))
        while self.position < offset and self.readinto(scratch[: offset - self.position]):
            pass
        return self.position

    def expect(self, stop: int) -> None:
        """Announce the offset where reading will probably stop."""
        if self._points is not None:
            self._stored.expect(self._points.stored_past(stop))
        elif stop >= self._stored.shard.size:
            # Inflated data is usually larger than stored data, so this read covers most of the file.
            self._stored.expect(self._stored.shard.size)

    def arrived(self) -> Arrived | None:
        """Return None: bytes are inflated by `readinto`."""
        return None

    def close(self) -> None:
        """Close the file."""
        self._inflater = None  # closes the file that it may have opened
        self._stored.close()

    def __enter__(self) -> Self:
        """Return the stream; the with-block closes the file."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the file."""
        self.close()

    def _inflate_into(self, inflater: Decompressor, buffer: memoryview) -> int:
        """Inflate one input into `buffer`; return the number of bytes."""
        is_fed = inflater.needs_input
        piece = (self._rest or self._next_input()) if is_fed else b""
        try:
            data = inflater.decompress(piece, len(buffer))
        except ValueError as error:
            if isinstance(inflater, _Rescued):
                raise self._error(f"the {self.compression} data is damaged ({error})") from error
            if not self.position and not self._codec.is_start(bytes(piece[:_MAGIC_NBYTES])):
                raise CorruptRecordError(
                    f"the file does not begin like {self.compression} data: leave out "
                    + Spelled("compression=", "--compression")
                    + ", because reading detects the compression",
                    Location(self._stored.shard.path),
                ) from error
            end = self._stored.position - len(self._input)
            self._inflater = _Rescued(self._rescue(self._origin, self.position, end), error)
            return 0
        # NumPy copies without the GIL.
        np.frombuffer(buffer, np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
        self.position += len(data)
        if is_fed:
            self._rest = b""
        if self.position - self._start[1] > _UNCHECKED_NBYTES:
            self._check_ratio()
        if inflater.eof:
            self._rest = inflater.unused_data or b""
            self._inflater = None
        elif is_fed and not piece and not data:
            raise self._error(_TRUNCATED.format(self.compression))
        return len(data)

    def _rescue(self, origin: _Origin, position: int, end: int) -> Iterator[bytes]:
        """Inflate from `origin` again up to damage before the stored byte `end`; yield what follows `position`.

        An inflater loses the output of an input with damage, and output that it kept from earlier ones. So the first
        pass finds this input, and the second one passes it byte by byte.
        """
        begin = origin.stored
        for at, _ in self._inflate_again(origin, end, end):
            begin = at
        before = position - origin.inflated
        for _, data in self._inflate_again(origin, begin, end):
            if len(data) > before:
                yield data[before:]
            before = max(0, before - len(data))

    def _inflate_again(self, origin: _Origin, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Inflate from `origin` to damage or `end`, byte by byte from `begin` on; yield offsets and output."""
        inflater = origin.inflater()
        with open_stored(self._stored.shard) as stored:
            stored.seek(origin.stored)
            piece: bytes | memoryview = origin.head
            while (piece or stored.position < end) and not inflater.eof:
                if not piece:
                    size = min(_INPUT_SIZE, begin - stored.position) if stored.position < begin else 1
                    memory = memoryview(bytearray(size))
                    piece = memory[: stored.readinto(memory)]
                try:
                    data = inflater.decompress(piece)
                except ValueError:
                    return
                yield stored.position, data
                piece = b""

    def _next_input(self) -> memoryview:
        """Return the next stored bytes for the inflater; empty at the end of the file."""
        if not self._input:
            self._input = self._read_buffer[: self._stored.readinto(self._read_buffer)]
        # See `_INPUT_SIZE`: inputs grow, unless the last one inflated to very much.
        grows = self.position - self._fed_position <= _USUAL_RATIO * self._input_size
        self._input_size = min(max(2 * self._input_size, _INPUT_SIZE), _READ_SIZE) if grows else _INPUT_SIZE
        self._fed_position = self.position
        piece, self._input = self._input[: self._input_size], self._input[self._input_size :]
        return piece

    def _enter_before(self, offset: int) -> None:
        """Continue at the last access point before an offset, if that is ahead of the current position."""
        for _ in range(_LOAD_ATTEMPTS):
            if self._points is None:
                return
            number = self._points.before(offset)
            if number < 0 or self._points.inflated(number) <= self.position:
                return
            try:
                point = self._points.load(number)
            except (ShardChangedError, ShardNotFoundError):
                # The sidecar was replaced after its table was read.
                self._points = access_points(self._stored.shard)
                continue
            self._enter_at_point(point)
            return

    def _enter_at_point(self, point: AccessPoint) -> None:
        """Continue inflating at an access point."""
        self._stored.seek(point.stored - (1 if point.bits else 0))
        self._input, self._input_size = self._read_buffer[:0], 0
        self._rest = head = b""
        if point.bits:
            piece = bytes(self._next_input())
            head = align_bits(piece[0], point.bits)
            self._rest = head + piece[1:]
        # Raw deflate data without the header of the member. The inflater does not read the trailer.
        self._origin = _Origin(
            functools.partial(Inflater.within_member, point.window), point.stored, point.inflated, head
        )
        self._inflater = self._origin.inflater()
        self._trailer = TRAILER
        self._member_count += 1
        self.position = point.inflated
        self._start = (point.stored, point.inflated)

    def _check_ratio(self) -> None:
        """Raise CorruptRecordError if the data inflates to more than `max_ratio` times its size."""
        used = self._stored.position - len(self._input) - len(self._rest)
        stored, inflated = used - self._start[0], self.position - self._start[1]
        if inflated > self._codec.max_ratio * stored:
            raise self._error(
                f"the {self.compression} data inflates to more than {self._codec.max_ratio} times its size, like a "
                f"decompression bomb"
            )

    def _next_member(self) -> Decompressor | None:
        """Start the next member; return None at the end. Zeros after the last member are padding, as for gzip(1)."""
        if self._member_count:
            self._skip_trailer()
            rest = bytes(self._rest).lstrip(b"\0")
            while len(rest) < _MAGIC_SIZE and (piece := self._next_input()):
                rest = (rest + piece).lstrip(b"\0")
            if not rest:
                return None
            if not (self._codec.joins and self._codec.is_start(rest)):
                raise self._error(f"other data follows the end of the {self.compression} data")
            # Many tiny members may be in a large input: each gets a part of the rest, not all of it.
            self._rest = rest[:_INPUT_SIZE]
            if len(rest) > _INPUT_SIZE:
                self._input = memoryview(rest[_INPUT_SIZE:] + bytes(self._input))
        self._input_size = 0
        start = self._stored.position - len(self._input) - len(self._rest)
        self._origin = _Origin(self._codec.decompressor, start, self.position)
        self._inflater = self._origin.inflater()
        self._member_count += 1
        return self._inflater

    def _skip_trailer(self) -> None:
        """Skip the trailer of a member, which an inflater of raw deflate data does not read."""
        while self._trailer:
            piece = self._rest or self._next_input()
            if not piece:
                raise self._error(_TRUNCATED.format(self.compression))
            self._rest, self._trailer = piece[self._trailer :], max(0, self._trailer - len(piece))

    def _error(self, problem: str) -> CorruptRecordError:
        """Make the error of damaged data: how much could be inflated, and of how many stored bytes."""
        size = self._stored.shard.size
        return CorruptRecordError(
            f"{problem}; {plural(self.position, 'byte')} could be inflated from the first "
            f"{self._stored.position:,} of {plural(size, 'stored byte')}. Fetch or write the file again",
            Location(self._stored.shard.path),
        )


ACCESS_SUFFIX = ".gzidx"

_TABLE_HEAD = struct.Struct("<5sBBQQIII")
_POINT = np.dtype([("stored", "<u8"), ("inflated", "<u8"), ("bits", "u1"), ("window", "u1")])
_MAGIC = b"GZIDX"
_VERSION = 1
# Bytes of the first read, which contain head and table for some gigabytes of gzip data.
_FIRST_READ = 64 << 10
_MAX_POINTS = 1 << 24

# Empty deflate blocks (RFC 1951, section 3.2), lowest bit first. This one has fixed codes, BTYPE=1: BFINAL=0, end of
# block.
_EVEN_BLOCK, _EVEN_LENGTH = 0b0000000_01_0, 10


def _odd_block() -> tuple[int, int]:
    """Make an empty block with dynamic codes and an odd number of bits, and count these."""
    # Lengths of the codes for code lengths, in the order of deflate, up to that for 1; 18 is a run of zeros.
    order = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1)
    lengths = {18: 1, 1: 2, 0: 3, 16: 3}
    fields = [(0, 1), (2, 2), (0, 5), (0, 5), (len(order) - 4, 4), *((lengths.get(code, 0), 3) for code in order)]
    # Codes, lowest bit first: 18 is 0, 1 is 10, 0 is 110. They define one literal code, end of block, of one bit.
    fields += [(0b0, 1), (138 - 11, 7), (0b0, 1), (118 - 11, 7), (0b01, 2), (0b011, 3)]
    fields += [(0b0, 1)]  # end of block
    value = length = 0
    for field, bits in fields:
        value |= field << length
        length += bits
    return value, length


_ODD_BLOCK, _ODD_LENGTH = _odd_block()


@dataclass(frozen=True, slots=True)
class AccessPoint:
    """Point of a gzip file where inflating can start."""

    stored: int  # stored offset of the first complete byte of the deflate data
    inflated: int  # offset in the inflated stream
    bits: int  # high bits of the preceding byte that belong to the deflate data
    window: bytes  # last inflated bytes before the point; empty at the beginning of a member


@dataclass(frozen=True, slots=True, eq=False)
class AccessPoints:
    """Table of a `FILE.gzidx`."""

    file: Shard  # the sidecar
    size: int  # stored bytes of the gzip file
    nbytes: int  # inflated bytes of the gzip file
    # Fields `stored`, `inflated`, `bits`; `window` is 1 if the sidecar has the window of the point.
    table: NDArray[np.void]
    window_size: int  # bytes of a window

    def before(self, offset: int) -> int:
        """Return the number of the last point at or before an inflated offset; -1 before the first point.

        A point at the end of the data is never returned.
        """
        return int(np.searchsorted(self.table["inflated"], min(offset, self.nbytes - 1), side="right")) - 1

    def inflated(self, number: int) -> int:
        """Return the inflated offset of a point."""
        return int(self.table["inflated"][number])

    def stored_past(self, offset: int) -> int:
        """Return a stored offset that includes all bytes needed to inflate up to `offset`."""
        number = int(np.searchsorted(self.table["inflated"], offset))
        return int(self.table["stored"][number]) if number < len(self.table) else self.size

    def load(self, number: int) -> AccessPoint:
        """Read a point with its window."""
        stored, inflated, bits, has_window = self.table[number].item()
        if not has_window:
            return AccessPoint(stored, inflated, bits, b"")
        begin = _TABLE_HEAD.size + self.table.nbytes
        begin += int(np.count_nonzero(self.table["window"][:number])) * self.window_size
        return AccessPoint(stored, inflated, bits, read_bytes(self.file, begin, begin + self.window_size))


def access_points(shard: Shard) -> AccessPoints | None:
    """Return the access points of a file, cached by process until the sidecar changes.

    None if the sidecar does not exist or does not fit: the file is then inflated from its beginning.
    """
    path = sidecar_path(shard.path, ACCESS_SUFFIX)
    if path is None:
        return None
    if not is_local(path):
        [found] = find_sidecars([shard], ACCESS_SUFFIX)
        return None if found is None else _cached_points(found.file, shard.size)
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    file = Shard(path, status.st_size, str(status.st_mtime), None)
    return _cached_points(file, shard.size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)


@functools.lru_cache(maxsize=512)
def _cached_points(file: Shard, size: int, *_identity: int) -> AccessPoints | None:
    """Read the access points for a file with `size` bytes; the identity only keys the cache."""
    try:
        points = read_access_points(file)
    except CorruptRecordError:
        return None
    return points if points.size == size else None


def read_access_points(file: Shard) -> AccessPoints:
    """Read the table of a sidecar; raise CorruptRecordError if it has another format or is truncated."""
    head = read_bytes(file, 0, min(file.size, _FIRST_READ))
    if len(head) < _TABLE_HEAD.size:
        raise _unusable(file, f"it has {file.size} bytes")
    magic, version, _, size, nbytes, _, window_size, count = _TABLE_HEAD.unpack_from(head)
    if magic != _MAGIC or version != _VERSION or count > _MAX_POINTS:
        raise _unusable(file, f"it begins with {head[:7].hex(' ')} and declares {count} points")
    end = _TABLE_HEAD.size + count * _POINT.itemsize
    if end > file.size:
        raise _unusable(file, f"it has {file.size} bytes where its {count} points need {end}")
    rest = read_bytes(file, len(head), end) if end > len(head) else b""
    table = np.frombuffer((head + rest)[_TABLE_HEAD.size : end], _POINT)
    windows = int(np.count_nonzero(table["window"]))
    if file.size != end + windows * window_size:
        raise _unusable(file, f"it has {file.size} bytes where {end + windows * window_size} are needed")
    ordered = (np.diff(table["inflated"].astype(np.int64)) >= 0).all() and (table["bits"] < 8).all()
    if not ordered or (table["stored"] > size).any() or (table["inflated"] > nbytes).any():
        raise _unusable(file, "its points are out of order")
    return AccessPoints(file, size, nbytes, table, window_size)


def indexing_library() -> Any:
    """Import indexed_gzip, which writes access points; raise TFRecordError if it is not installed."""
    try:
        import indexed_gzip
    except ImportError as error:
        raise TFRecordError(
            "access points into gzip need indexed_gzip: pip install 'dask-tfrecord[gzip-index]'"
        ) from error
    return indexed_gzip


def write_access_points(shard: Shard, path: str) -> int:
    """Inflate a gzip file once, write its access points to `path`, and return the number of bytes written.

    Raises TFRecordError if indexed_gzip is not installed, and CorruptRecordError if the gzip data is damaged.
    """
    indexed_gzip = indexing_library()
    exported = io.BytesIO()
    with open_stored(shard) as stored:
        stored.expect(shard.size)
        try:
            with indexed_gzip.IndexedGzipFile(fileobj=stored, spacing=limits().access_point_nbytes) as file:
                file.build_full_index()
                file.export_index(fileobj=exported)
        except (indexed_gzip.ZranError, indexed_gzip.CrcError) as error:
            raise CorruptRecordError(f"the gzip data is damaged ({error})", Location(shard.path)) from error
    data = exported.getvalue()
    write_file(path, data, shard.storage_options)
    return len(data)


def align_bits(byte: int, bits: int) -> bytes:
    """Prepend empty deflate blocks to the 1 to 7 high bits of a byte, so that the bits end at a byte border.

    Inflaters start at complete bytes, but deflate data at an access point may start within a byte.
    """
    value, length = (_ODD_BLOCK, _ODD_LENGTH) if bits % 2 else (0, 0)
    while (length + bits) % 8:
        value |= _EVEN_BLOCK << length
        length += _EVEN_LENGTH
    value |= (byte >> (8 - bits)) << length
    return value.to_bytes((length + bits) // 8, "little")


def read_bytes(file: Shard, start: int, stop: int) -> bytes:
    """Read a range of a file."""
    with open_stored(file) as stored:
        stored.seek(start)
        stored.expect(stop)
        data = memoryview(bytearray(max(stop - start, 0)))
        done = 0
        while done < len(data) and (count := stored.readinto(data[done:])):
            done += count
        return bytes(data[:done])


def _unusable(file: Shard, problem: str) -> CorruptRecordError:
    return CorruptRecordError(f"unusable access points: {problem}. Build the index again", Location(file.path))
