"""Stored bytes of one file, in and out: local files by system calls, everything else by large ranges, read ahead.

No file is mapped: a mapped file that somebody truncates kills the process, a read of it returns less. Imports errors,
interrupt, remote and shards only.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import tempfile
import uuid
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import fsspec
from fsspec.implementations.local import LocalFileSystem

from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.storage.interrupt import check_interrupt, interrupts
from dask_tfrecord.storage.remote import Fetch, changed, gone, open_ranges
from dask_tfrecord.storage.shards import Shard, has_changed, is_local

__all__ = ["RANGE", "ByteSink", "ByteStream", "StoredStream", "open_sink", "open_stored"]

# Bytes of a remote range, and of one that may be all that is looked at.
RANGE = 8 << 20
_FIRST_RANGE = 256 << 10

_WRITE_BUFFER = 1 << 20


class ByteStream(Protocol):
    """Bytes of one shard, read forward.

    Attributes
    ----------
    compression : str or None
        How the file is compressed, as found.
    position : int
        Offset of the next byte in the decompressed stream.
    """

    compression: str | None
    position: int

    def readinto(self, buffer: memoryview) -> int:
        """Read into `buffer` what one step brings; 0 only at the end."""

    def seek(self, offset: int) -> int:
        """Go forward to `offset`, or to the end of the stream if that comes before; return the new position."""

    def expect(self, stop: int) -> None:
        """Know that reading will go on to `stop`, and probably no further: ranges are cut to fit."""

    def close(self) -> None:
        """Give back what is open."""

    def __enter__(self) -> Self:
        """Close the stream at the end of the with-block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the stream."""


class ByteSink(Protocol):
    """Where the bytes of a new file go; nobody sees the file before it is whole."""

    def write(self, data: bytes | bytearray | memoryview) -> object:
        """Append `data`."""

    def close(self) -> None:
        """Publish the file."""

    def discard(self) -> None:
        """Leave nothing of it."""


class _Source(Protocol):
    def readinto(self, buffer: memoryview, /) -> int | None: ...

    def seek(self, offset: int, /) -> object: ...

    def expect(self, stop: int) -> None: ...

    def close(self) -> None: ...


class StoredStream:
    """A file as it is stored.

    A file that is not the one of the listing any more is an error: nothing that was planned for it holds.
    """

    compression: str | None = None

    def __init__(self, shard: Shard, source: _Source) -> None:
        self.shard = shard
        self.position = 0
        self._source = source
        self._begun = interrupts()

    def readinto(self, buffer: memoryview) -> int:
        """Read up to ``len(buffer)`` bytes by one call; 0 only at the end."""
        left = self.shard.size - self.position
        if left <= 0 or not buffer:
            return 0
        check_interrupt(self._begun)
        try:
            count = self._source.readinto(buffer if len(buffer) <= left else buffer[:left])
        except OSError as error:
            if not isinstance(error, TFRecordError) and error.filename is None and error.errno is not None:
                # A read knows no name: say which file the disk or the network gave up on.
                raise OSError(error.errno, error.strerror, self.shard.path) from error
            raise
        if not count:
            raise changed(self.shard, self.position)
        self.position += count
        return count

    def seek(self, offset: int) -> int:
        """Go forward to `offset`, or to the end of the file if that comes before."""
        offset = min(offset, self.shard.size)
        if offset != self.position:
            self._source.seek(offset)
            self.position = offset
        return offset

    def expect(self, stop: int) -> None:
        """Know that reading will go on to `stop`, and probably no further."""
        self._source.expect(stop)

    def peek(self, count: int) -> bytes:
        """Look at the first bytes, and stay before them."""
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
        """Close the file at the end of the with-block."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the file."""
        self.close()


class _LocalFile(io.FileIO):
    """Unbuffered: reads go from the kernel to the caller's buffer, by one call each, without the GIL."""

    def expect(self, stop: int) -> None:
        """Do nothing: the kernel reads ahead by itself."""


class _Ahead(NamedTuple):
    """A range that is being fetched while another one is used."""

    start: int
    stop: int
    data: Future[bytes]


class RangeReader:
    """A remote file in large ranges: one is held, the next one comes in meanwhile.

    As long as nobody says how far reading will go, ranges start small, for a look at the head or a few records, and
    double as it goes on; from `RANGE` bytes on, the next one is fetched ahead. Where the end is known, they are as long
    from the first one on, and end exactly there.
    """

    def __init__(self, fetch: Fetch, size: int) -> None:
        self._fetch = fetch
        self._size = size
        self._offset = 0
        self._held = memoryview(b"")
        self._held_at = 0
        self._stop = 0
        self._length = _FIRST_RANGE
        self._ahead: _Ahead | None = None
        self._pool: ThreadPoolExecutor | None = None

    def readinto(self, buffer: memoryview, /) -> int:
        """Read what is held of the bytes asked for; fetch some if nothing is."""
        if not self._held_at <= self._offset < self._held_at + len(self._held):
            self._turn()
        within = self._offset - self._held_at
        part = self._held[within : within + len(buffer)]
        buffer[: len(part)] = part
        self._offset += len(part)
        return len(part)

    def seek(self, offset: int, /) -> None:
        """Go anywhere; nothing is fetched yet."""
        self._offset = offset

    def expect(self, stop: int) -> None:
        """Know that reading will go on to `stop`, and probably no further."""
        self._stop = min(stop, self._size)

    def close(self) -> None:
        """Wait for nothing: what is still being fetched is closed when it has come."""
        self._held = memoryview(b"")
        self._fetch.stop()
        if self._pool is not None:
            self._pool.submit(self._fetch.close)
            self._pool.shutdown(wait=False)
        else:
            self._fetch.close()

    def _turn(self) -> None:
        """Hold a range that the offset is in."""
        start = self._offset
        known = start < self._stop
        if known:
            self._length = RANGE
        elif start > 0 and start == self._held_at + len(self._held):
            self._length = min(2 * self._length, RANGE)
        else:
            self._length = _FIRST_RANGE
        self._held = memoryview(b"")  # no third range in memory
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.start <= start < ahead.stop:
            data, self._held_at = ahead.data.result(), ahead.start
        else:
            stop = self._end(start)
            # One range at a time: there may be one on its way that nobody wants any more.
            data = self._pool.submit(self._fetch, start, stop).result() if self._pool else self._fetch(start, stop)
            self._held_at = start
        self._held = memoryview(data)
        self._read_on(self._held_at + len(data), self._stop if known else self._size)

    def _read_on(self, start: int, stop: int) -> None:
        """Fetch what comes next, if it will be wanted."""
        if start < stop and self._length == RANGE:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, "dask_tfrecord-read-ahead")
            end = self._end(start)
            self._ahead = _Ahead(start, end, self._pool.submit(self._fetch, start, end))

    def _end(self, start: int) -> int:
        """Choose where a range ends that begins at `start`."""
        return min(start + self._length, self._stop if start < self._stop else self._size)


def open_stored(shard: Shard) -> StoredStream:
    """Open a file for reading what is stored in it.

    Raises
    ------
    ShardNotFoundError
        If the file is gone since it was listed.
    ShardChangedError
        If it is not what it was, where that is known before a byte is read.
    """
    try:
        if is_local(shard.path):
            return _open_local(shard)
        return StoredStream(shard, RangeReader(open_ranges(shard), shard.size))
    except FileNotFoundError as error:
        raise gone(shard) from error


def _open_local(shard: Shard) -> StoredStream:
    file = _LocalFile(shard.path)
    status = os.fstat(file.fileno())
    if has_changed(shard, {"size": status.st_size, "mtime": status.st_mtime}):
        file.close()
        raise changed(shard, status.st_size)
    return StoredStream(shard, file)


def open_sink(path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> ByteSink:
    """Begin a new file that appears at `path` when it is closed, whole, in the place of an older one.

    Parameters
    ----------
    path : str or os.PathLike
        Where; its directory must exist.
    storage_options : mapping, optional
        What fsspec takes beside a URL.
    """
    fs, target = fsspec.core.url_to_fs(path, **(storage_options or {}))
    if isinstance(fs, LocalFileSystem):
        return _LocalSink(Path(target))
    return _RemoteSink(fs, target)


class _LocalSink:
    """A hidden file beside the target that takes its name at the end."""

    def __init__(self, target: Path) -> None:
        # Written through a link, as open() would.
        self._target = target.resolve()
        if self._target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "expected a file name to write to, this is a directory", str(target))
        if not self._target.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such directory to write to", str(self._target.parent))
        self._path = self._target.with_name(f".{self._target.name[:200]}.{uuid.uuid4().hex}.tmp")
        self._file = self._path.open("xb", buffering=_WRITE_BUFFER)
        self.write = self._file.write

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._path.replace(self._target)

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            # Closing writes what is buffered, which fails again on a full disk.
            self._file.close()
        self._path.unlink(missing_ok=True)


class _RemoteSink:
    """A local temporary file, uploaded at the end: what a store shows of an unfinished upload is its own affair."""

    def __init__(self, fs: Any, target: str) -> None:
        self._fs = fs
        self._target = target
        self._file = tempfile.NamedTemporaryFile(prefix="dask_tfrecord-", buffering=_WRITE_BUFFER, delete=False)  # noqa: SIM115
        self.write = self._file.write

    def close(self) -> None:
        self._file.close()
        self._fs.put_file(self._file.name, self._target)
        Path(self._file.name).unlink()

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        Path(self._file.name).unlink(missing_ok=True)
