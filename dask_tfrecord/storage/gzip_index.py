"""Access points into gzip data, stored in `FILE.gzidx` next to the shard.

An access point is an offset where inflating can start. The file has the format of indexed_gzip, which writes it:
https://github.com/pauldmccarthy/indexed_gzip/blob/main/indexed_gzip/zran.c (`zran_export_index`).

Reading needs only zlib. The table of points is small and is read once per process. The 32 KiB of data before a point
are read only to start there. A chunk in the middle of a large shard thus costs three ranges, and as much memory as one
at the beginning.
"""

from __future__ import annotations

import functools
import io
import os
import stat
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import CorruptRecordError, Location, TFRecordError
from dask_tfrecord.settings import limits
from dask_tfrecord.storage.shard import Shard, is_local
from dask_tfrecord.storage.sidecar_files import find_sidecars, sidecar_path
from dask_tfrecord.storage.streams import StoredStream, open_stored, write_file

__all__ = [
    "SUFFIX",
    "AccessPoint",
    "AccessPoints",
    "access_points",
    "align_bits",
    "indexing_library",
    "read_access_points",
    "write_access_points",
]

SUFFIX = ".gzidx"

_HEAD = struct.Struct("<5sBBQQIII")
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
    """Return an empty block of an odd number of bits, with dynamic codes, and its number of bits."""
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
    """Point of a gzip file where inflating can start.

    Attributes
    ----------
    stored : int
        Stored offset of the first complete byte of the deflate data.
    inflated : int
        Offset in the inflated stream.
    bits : int
        Number of high bits in the preceding byte that belong to the deflate data.
    window : bytes
        Last inflated bytes before the point; empty at the beginning of a member.
    """

    stored: int
    inflated: int
    bits: int
    window: bytes


@dataclass(frozen=True, slots=True, eq=False)
class AccessPoints:
    """Table of a `FILE.gzidx`.

    Attributes
    ----------
    file : Shard
        The sidecar file.
    size : int
        Stored bytes of the gzip file.
    nbytes : int
        Inflated bytes of the gzip file.
    table : structured array, shape (npoints,)
        Fields `stored`, `inflated` and `bits` of each `AccessPoint`, ascending; `window` is 1 if the sidecar contains
        the window of the point.
    window_size : int
        Bytes of a window.
    """

    file: Shard
    size: int
    nbytes: int
    table: NDArray[np.void]
    window_size: int

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
        begin = _HEAD.size + self.table.nbytes
        begin += int(np.count_nonzero(self.table["window"][:number])) * self.window_size
        return AccessPoint(stored, inflated, bits, _read(self.file, begin, begin + self.window_size))


def access_points(shard: Shard) -> AccessPoints | None:
    """Return the access points of a file; they are cached by process until the sidecar changes.

    Returns
    -------
    AccessPoints or None
        None if the sidecar does not exist or does not fit; the file is then inflated from its beginning.
    """
    path = sidecar_path(shard.path, SUFFIX)
    if path is None:
        return None
    if not is_local(path):
        return _remote_points(shard)
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    file = Shard(path, status.st_size, str(status.st_mtime), None)
    return _cached_local_points(file, shard.size, (status.st_mtime_ns, status.st_ino, status.st_ctime_ns))


@functools.lru_cache(maxsize=256)
def _cached_local_points(file: Shard, size: int, _identity: tuple[int, ...]) -> AccessPoints | None:
    """Read the access points of a file of `size` bytes; the identity is only a part of the cache key."""
    return _read_if_valid(file, size)


def _remote_points(shard: Shard) -> AccessPoints | None:
    """Return the access points of a remote file. Each call looks up the sidecar, which is read once."""
    [found] = find_sidecars([shard], SUFFIX)
    return None if found is None else _cached_remote_points(found.file, shard.size)


@functools.lru_cache(maxsize=256)
def _cached_remote_points(file: Shard, size: int) -> AccessPoints | None:
    return _read_if_valid(file, size)


def _read_if_valid(file: Shard, size: int) -> AccessPoints | None:
    try:
        points = read_access_points(file)
    except CorruptRecordError:
        return None
    return points if points.size == size else None


def read_access_points(file: Shard) -> AccessPoints:
    """Read the table of a sidecar.

    Raises
    ------
    CorruptRecordError
        If the file has another format or is truncated.
    """
    head = _read(file, 0, min(file.size, _FIRST_READ))
    if len(head) < _HEAD.size:
        raise _unusable(file, f"it has {file.size} bytes")
    magic, version, _, size, nbytes, _, window_size, count = _HEAD.unpack_from(head)
    if magic != _MAGIC or version != _VERSION or count > _MAX_POINTS:
        raise _unusable(file, f"it begins with {head[:7].hex(' ')} and declares {count} points")
    end = _HEAD.size + count * _POINT.itemsize
    if end > file.size:
        raise _unusable(file, f"it has {file.size} bytes where its {count} points need {end}")
    rest = _read(file, len(head), end) if end > len(head) else b""
    table = np.frombuffer((head + rest)[_HEAD.size : end], _POINT)
    windows = int(np.count_nonzero(table["window"]))
    if file.size != end + windows * window_size:
        raise _unusable(file, f"it has {file.size} bytes where {end + windows * window_size} are needed")
    ordered = (np.diff(table["inflated"].astype(np.int64)) >= 0).all() and (table["bits"] < 8).all()
    if not ordered or (table["stored"] > size).any() or (table["inflated"] > nbytes).any():
        raise _unusable(file, "its points are out of order")
    return AccessPoints(file, size, nbytes, table, window_size)


def indexing_library() -> Any:
    """Import indexed_gzip, which writes access points.

    Raises
    ------
    TFRecordError
        If it is not installed.
    """
    try:
        import indexed_gzip
    except ImportError as error:
        raise TFRecordError(
            "access points into gzip need indexed_gzip: pip install 'dask-tfrecord[gzip-index]'"
        ) from error
    return indexed_gzip


def write_access_points(shard: Shard, path: str) -> int:
    """Inflate a gzip file once, and write its access points.

    Parameters
    ----------
    shard : Shard
        The gzip file.
    path : str
        Path or URL of the sidecar, which appears when it is complete. The storage options are those of the shard.

    Returns
    -------
    int
        Bytes written.

    Raises
    ------
    TFRecordError
        If indexed_gzip is not installed.
    CorruptRecordError
        If the gzip data is damaged.
    """
    indexed_gzip = indexing_library()
    exported = io.BytesIO()
    with open_stored(shard) as stored:
        stored.expect(shard.size)
        try:
            with indexed_gzip.IndexedGzipFile(fileobj=_Seekable(stored), spacing=limits().access_point_nbytes) as file:
                file.build_full_index()
                file.export_index(fileobj=exported)
        except (indexed_gzip.ZranError, indexed_gzip.CrcError) as error:
            raise CorruptRecordError(f"the gzip data is damaged ({error})", Location(shard.path)) from error
    data = exported.getvalue()
    write_file(path, data, shard.storage_options)
    return len(data)


def align_bits(byte: int, bits: int) -> bytes:
    """Prepend empty deflate blocks to the high bits of a byte, so that the bits end at a byte border.

    Inflaters start at complete bytes, but deflate data at an access point may start within a byte.

    Parameters
    ----------
    byte : int
        Byte whose high bits belong to the deflate data.
    bits : int
        Number of these bits, 1 to 7.

    Returns
    -------
    bytes
        Deflate data that the inflater reads before the bytes that follow `byte` in the file.
    """
    value, length = (_ODD_BLOCK, _ODD_LENGTH) if bits % 2 else (0, 0)
    while (length + bits) % 8:
        value |= _EVEN_BLOCK << length
        length += _EVEN_LENGTH
    value |= (byte >> (8 - bits)) << length
    return value.to_bytes((length + bits) // 8, "little")


class _Seekable(io.RawIOBase):
    """Seekable file object of a stored stream, for indexed_gzip."""

    def __init__(self, stored: StoredStream) -> None:
        self._stored = stored

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._stored.readinto(memoryview(buffer).cast("B"))

    def seek(self, offset: int, whence: int = 0) -> int:
        start = {0: 0, 1: self._stored.position, 2: self._stored.shard.size}[whence]
        return self._stored.seek(start + offset)

    def tell(self) -> int:
        return self._stored.position


def _read(file: Shard, start: int, stop: int) -> bytes:
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
