"""Stored bytes of one file, in and out: local files by system calls, everything else by ranges of fsspec.

No file is mapped: a mapped file that somebody truncates kills the process, a read of it returns less. Imports errors
and files only.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self

import fsspec
from fsspec.implementations.local import LocalFileSystem

from dask_tfrecord.errors import CorruptRecordError, Place, ShardNotFoundError
from dask_tfrecord.storage.files import Shard, is_local

__all__ = ["ByteSink", "ByteStream", "StoredStream", "open_sink", "open_stored"]

# Remote ranges start small, for a look at the head or a few records, and double while reading goes on in one piece.
_FIRST_RANGE = 256 << 10
_LARGEST_RANGE = 8 << 20

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

    def close(self) -> None: ...


class StoredStream:
    """A file as it is stored.

    Its size is the one of the listing: what is appended later is not part of the plan, and a file that became shorter
    is an error, not an end.
    """

    compression: str | None = None

    def __init__(self, shard: Shard, source: _Source) -> None:
        self.shard = shard
        self.position = 0
        self._source = source

    def readinto(self, buffer: memoryview) -> int:
        """Read up to ``len(buffer)`` bytes by one call; 0 only at the end."""
        left = self.shard.size - self.position
        if left <= 0 or not buffer:
            return 0
        try:
            count = self._source.readinto(buffer if len(buffer) <= left else buffer[:left])
        except OSError as error:
            if error.filename is None and error.errno is not None:
                # A read knows no name: say which file the disk or the network gave up on.
                raise OSError(error.errno, error.strerror, self.shard.path) from error
            raise
        if not count:
            raise _shrunk(self.shard, self.position)
        self.position += count
        return count

    def seek(self, offset: int) -> int:
        """Go forward to `offset`, or to the end of the file if that comes before."""
        offset = min(offset, self.shard.size)
        if offset != self.position:
            self._source.seek(offset)
            self.position = offset
        return offset

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


class _Ranges:
    """Large ranges of a file that fsspec opened, held once."""

    def __init__(self, file: BinaryIO, fs: object) -> None:
        self._file = file
        # An archive is closed with the file system that looks into it.
        self._fs = fs
        self._file_at = 0
        self._offset = 0
        self._held = memoryview(b"")
        self._held_at = 0
        self._range = _FIRST_RANGE

    def readinto(self, buffer: memoryview, /) -> int:
        within = self._offset - self._held_at
        if not 0 <= within < len(self._held):
            self._fetch(len(buffer))
            within = 0
        part = self._held[within : within + len(buffer)]
        buffer[: len(part)] = part
        self._offset += len(part)
        return len(part)

    def seek(self, offset: int, /) -> None:
        self._offset = offset

    def close(self) -> None:
        self._file.close()

    def _fetch(self, wanted: int) -> None:
        """Hold the range that begins at the offset."""
        goes_on = self._offset == self._file_at
        self._range = min(2 * self._range, _LARGEST_RANGE) if goes_on and self._file_at else _FIRST_RANGE
        if not goes_on:
            self._go_to(self._offset)
        self._held = memoryview(b"")  # one range at a time in memory
        self._held = memoryview(self._file.read(max(wanted, self._range)))
        self._held_at = self._offset
        self._file_at = self._offset + len(self._held)

    def _go_to(self, offset: int) -> None:
        try:
            self._file.seek(offset)
        except ValueError:
            # A server without ranges gives a stream that can only be read on; UnsupportedOperation is a ValueError.
            gap = offset - self._file_at
            while gap > 0 and (dropped := len(self._file.read(min(gap, _LARGEST_RANGE)))):
                gap -= dropped


def open_stored(shard: Shard) -> StoredStream:
    """Open a file for reading what is stored in it.

    Raises
    ------
    ShardNotFoundError
        If the file is gone since it was listed.
    CorruptRecordError
        If it is shorter than it was.
    """
    try:
        return _open_local(shard) if is_local(shard.path) else StoredStream(shard, _open_remote(shard))
    except FileNotFoundError as error:
        message = "the file is gone since it was listed; read the collection again"
        raise ShardNotFoundError(message, Place(shard.path)) from error


def _open_local(shard: Shard) -> StoredStream:
    # Unbuffered: reads go from the kernel to the caller's buffer, by one call each, without the GIL.
    file = io.FileIO(shard.path)
    size = os.fstat(file.fileno()).st_size
    if size < shard.size:
        file.close()
        raise _shrunk(shard, size)
    return StoredStream(shard, file)


def _open_remote(shard: Shard) -> _Ranges:
    fs, path = fsspec.core.url_to_fs(shard.path, **shard.storage_options)
    file: BinaryIO = fs.open(path, "rb", block_size=_LARGEST_RANGE, cache_type="none")
    if isinstance(file, io.BytesIO):
        # A memory file is one object for all who opened it: its position would be theirs too. This shares the bytes.
        file = io.BytesIO(file.getvalue())
    return _Ranges(file, fs)


def _shrunk(shard: Shard, size: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"the file had {shard.size} bytes when it was listed and ends after {size} now: it was truncated or replaced; "
        f"read the collection again",
        Place(shard.path),
    )


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
