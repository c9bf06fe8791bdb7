"""Stored bytes of one file: streams for reading, and sinks that publish a new file when it is complete.

Local files are read with system calls, remote files in large ranges with read-ahead. Files are not mapped into memory:
truncating a mapped file kills the process, while a read returns fewer bytes.
"""

from __future__ import annotations

# Exit functions are called in reverse order of registration. This import registers the one that waits for threads, so
# that `_at_exit` below is called before it.
import concurrent.futures.thread  # noqa: F401
import contextlib
import errno
import io
import os
import re
import stat
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from fsspec.implementations.local import LocalFileSystem

from dask_tfrecord.errors import Location, StorageError, TFRecordError, redact_url, without_credentials
from dask_tfrecord.storage.remote import RangeFetcher, changed_error, not_found_error, open_ranges, url_to_fs
from dask_tfrecord.storage.shard import Shard, has_changed, is_local

# Bytes of the first remote range while the length of the read is unknown.
_FIRST_RANGE = 256 << 10

_WRITE_BUFFER = 1 << 20

# Name of a temporary file: that of the file, 32 digits, and ".tmp". The first digits are those of the run.
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")
_RUN_DIGITS = 24

# Returns whether a complete temporary file replaces the target.
ShouldPublish = Callable[[Path], bool]


# An interpreter waits for its threads before it exits, and some threads read for minutes. When Ctrl-C ends the program,
# by an uncaught KeyboardInterrupt or as a command that is about to exit, reading threads raise KeyboardInterrupt. When
# the program catches the exception, as notebooks do, they continue.
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


class ByteStream(Protocol):
    """Decompressed bytes of one shard, read forward.

    Attributes
    ----------
    compression : str or None
        Detected compression of the file.
    position : int
        Offset of the next byte in the decompressed stream.
    """

    compression: str | None
    position: int

    def readinto(self, buffer: memoryview) -> int:
        """Read up to ``len(buffer)`` bytes; return their number, which is 0 only at the end."""

    def seek(self, offset: int) -> int:
        """Skip to `offset`, or to the end of a shorter stream; return the new position."""

    def expect(self, stop: int) -> None:
        """Announce the offset where reading will probably stop, which limits the remote ranges."""

    def close(self) -> None:
        """Close the file."""

    def __enter__(self) -> Self:
        """Return the stream; the with-block closes it."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the stream."""


class ByteSink(Protocol):
    """Bytes of a new file, which appears under its name when it is complete."""

    @property
    def checksum(self) -> int:
        """Return the CRC-32C of the stored bytes so far."""

    def write(self, data: bytes | bytearray | memoryview) -> object:
        """Append `data`."""

    def close(self) -> None:
        """Publish the file."""

    def discard(self) -> None:
        """Remove the unfinished file."""


class _StreamReader(Protocol):
    def readinto(self, buffer: memoryview, /) -> int | None: ...

    def seek(self, offset: int, /) -> object: ...

    def expect(self, stop: int) -> None: ...

    def close(self) -> None: ...


class StoredStream:
    """Stored bytes of a file.

    Reading raises ShardChangedError if the file has changed since it was listed.
    """

    compression: str | None = None

    def __init__(self, shard: Shard, source: _StreamReader) -> None:
        self.shard = shard
        self.position = 0
        self._source = source
        self._started = interrupt_count()

    def readinto(self, buffer: memoryview) -> int:
        """Read up to ``len(buffer)`` bytes with one call; return their number, which is 0 only at the end."""
        left = self.shard.size - self.position
        if left <= 0 or not buffer:
            return 0
        check_interrupt(self._started)
        try:
            count = self._source.readinto(buffer if len(buffer) <= left else buffer[:left])
        except OSError as error:
            if not isinstance(error, TFRecordError) and error.filename is None and error.errno is not None:
                # The error of a read does not contain the file name.
                raise OSError(error.errno, error.strerror, redact_url(self.shard.path)) from error
            raise
        if not count:
            raise changed_error(self.shard, self.position)
        self.position += count
        return count

    def seek(self, offset: int) -> int:
        """Skip to `offset`, or to the end of a shorter file; return the new position."""
        offset = min(offset, self.shard.size)
        if offset != self.position:
            self._source.seek(offset)
            self.position = offset
        return offset

    def expect(self, stop: int) -> None:
        """Announce the offset where reading will probably stop."""
        self._source.expect(stop)

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
        self._source.close()

    def __enter__(self) -> Self:
        """Return the stream; the with-block closes it."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the file."""
        self.close()


class _LocalFile(io.FileIO):
    """Unbuffered file: each read is one system call into the caller's buffer, without the GIL."""

    def expect(self, stop: int) -> None:
        """Do nothing: the kernel reads ahead."""


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


def open_stored(shard: Shard) -> StoredStream:
    """Open a file for reading its stored bytes.

    Raises
    ------
    ShardNotFoundError
        If the file was removed since it was listed.
    ShardChangedError
        If the file is known to have changed since it was listed, before a byte is read.
    """
    try:
        if is_local(shard.path):
            return _open_local(shard)
        return StoredStream(shard, RangeReader(open_ranges(shard), shard.size))
    except FileNotFoundError as error:
        raise not_found_error(shard) from error


def _open_local(shard: Shard) -> StoredStream:
    # Without O_NONBLOCK, opening a pipe waits for a writer.
    file = _LocalFile(shard.path, opener=lambda path, flags: os.open(path, flags | getattr(os, "O_NONBLOCK", 0)))
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise StorageError("expected a regular file; this is a pipe, socket or device", Location(shard.path))
    if has_changed(shard, {"size": status.st_size, "mtime": status.st_mtime}):
        file.close()
        raise changed_error(shard, status.st_size)
    return StoredStream(shard, file)


def open_sink(
    path: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    should_publish: ShouldPublish | None = None,
) -> ByteSink:
    """Create a file that appears at `path` when it is closed, and then replaces an older file.

    Parameters
    ----------
    path : str or os.PathLike
        Path or URL of the new file, in an existing directory.
    storage_options : mapping, optional
        Options of the fsspec file system.
    should_publish : callable, optional
        `close` calls it with the path of the complete temporary file, and discards the file if it returns False.
    """
    fs, target = url_to_fs(path, **(storage_options or {}))
    if isinstance(fs, LocalFileSystem):
        return _LocalSink(Path(target), should_publish)
    return _RemoteSink(fs, target, should_publish)


def write_file(
    path: str | os.PathLike[str], data: bytes | bytearray | memoryview, storage_options: Mapping[str, Any] | None = None
) -> None:
    """Write a whole file, which replaces an older one.

    Parameters
    ----------
    path : str or os.PathLike
        Path or URL of the file.
    data : bytes-like
        Its content.
    storage_options : mapping, optional
        Options of the fsspec file system.

    Raises
    ------
    FileNotFoundError
        If the directory does not exist.
    """
    sink = open_sink(path, storage_options)
    try:
        sink.write(data)
        sink.close()
    except BaseException:
        sink.discard()
        raise


# Run whose files this thread writes.
_run: ContextVar[str] = ContextVar("run", default="")


@contextlib.contextmanager
def temporary_files_of(token: str) -> Iterator[None]:
    """Name temporary files after a run, so that `is_temporary_of` finds those that a killed process leaves."""
    before = _run.set(token)
    try:
        yield
    finally:
        _run.reset(before)


def temporary_name(name: str, token: str | None = None) -> str:
    """Return a name for a temporary file beside the file `name`."""
    # 128 bits: the first of the run, if there is one, and random ones.
    prefix = (_run.get() if token is None else token)[:_RUN_DIGITS]
    return f".{name[:200]}.{prefix}{uuid.uuid4().hex[len(prefix) :]}.tmp"


def is_temporary_of(name: str, token: str) -> bool:
    """Return whether a run named this temporary file."""
    return TEMPORARY.fullmatch(name) is not None and name[-36:].startswith(token[:_RUN_DIGITS])


class _ChecksumSink:
    """Temporary file, and the checksum of what is written to it."""

    def __init__(self, file: Any) -> None:
        # Imported here because reading needs it for damaged records only.
        import crc32c

        self._file, self._crc32c, self.checksum = file, crc32c.crc32c, 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        self.checksum = self._crc32c(data, self.checksum)
        written: int = self._file.write(data)
        return written


class _LocalSink(_ChecksumSink):
    """Hidden file in the directory of the target, renamed to the target by `close`."""

    def __init__(self, target: Path, should_publish: ShouldPublish | None) -> None:
        # A symbolic link at the target is replaced, not followed: its target may belong to another user.
        self._target = target.absolute()
        if self._target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "expected a file name to write to, this is a directory", str(target))
        if not self._target.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such directory to write to", str(self._target.parent))
        self._path = self._target.with_name(temporary_name(self._target.name))
        self._should_publish = should_publish
        super().__init__(self._path.open("xb", buffering=_WRITE_BUFFER))

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if self._should_publish is None or self._should_publish(self._path):
            self._path.replace(self._target)
        else:
            self._path.unlink()

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            # Closing writes the buffered bytes, which fails again on a full disk.
            self._file.close()
        self._path.unlink(missing_ok=True)


class _RemoteSink(_ChecksumSink):
    """Local temporary file that `close` uploads, because stores may display unfinished uploads."""

    def __init__(self, fs: Any, target: str, should_publish: ShouldPublish | None) -> None:
        self._fs = fs
        self._target = target
        self._should_publish = should_publish
        file = tempfile.NamedTemporaryFile(prefix="dask_tfrecord-", buffering=_WRITE_BUFFER, delete=False)  # noqa: SIM115
        super().__init__(file)

    def close(self) -> None:
        self._file.close()
        if self._should_publish is None or self._should_publish(Path(self._file.name)):
            self._put()
        Path(self._file.name).unlink()

    def _put(self) -> None:
        try:
            self._fs.put_file(self._file.name, self._target)
            return
        except Exception as error:
            failed = error
        raise without_credentials(failed)

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        Path(self._file.name).unlink(missing_ok=True)
