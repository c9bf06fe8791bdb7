"""Access points into gzip data: places where inflating can begin, kept in `FILE.gzidx` beside the file.

The file is indexed_gzip's own format, and indexed_gzip writes it. Reading it takes nothing but zlib: the table of
points is small and read once for a process, the 32 KiB of data before a point only where inflating begins there. So a
chunk in the middle of a large shard costs three ranges and no more memory than one at its beginning. Imports errors,
shards, sidecars and streams only.
"""

from __future__ import annotations

import functools
import io
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import CorruptRecordError, Place, TFRecordError
from dask_tfrecord.storage.shards import Shard
from dask_tfrecord.storage.sidecars import find_sidecars
from dask_tfrecord.storage.streams import StoredStream, open_sink, open_stored

__all__ = [
    "SUFFIX",
    "AccessPoint",
    "AccessPoints",
    "access_points",
    "indexing_library",
    "prime",
    "read_access_points",
    "write_access_points",
]

SUFFIX = ".gzidx"

# Inflated bytes between two points, of which each takes 32 KiB: 0.4 %, and some 10 ms to inflate on average.
_SPACING = 8 << 20

_HEAD = struct.Struct("<5sBBQQIII")
_POINT = np.dtype([("stored", "<u8"), ("inflated", "<u8"), ("bits", "u1"), ("window", "u1")])
_MAGIC = b"GZIDX"
_VERSION = 1
# Head and table of some gigabytes of gzip data come with the first look.
_LOOK = 64 << 10
_MOST_POINTS = 1 << 24

# Deflate blocks without data, as bits from the lowest on. One with fixed codes: not the last, kind 1, end of block.
_EVEN_BLOCK, _EVEN_LENGTH = 0b0000000_01_0, 10


def _odd_block() -> tuple[int, int]:
    """Make an empty block of an odd number of bits: one that brings codes of its own."""
    # The lengths of the codes for code lengths, in deflate's order, up to that for 1; 18 is a run of zeros.
    order = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1)
    lengths = {18: 1, 1: 2, 0: 3, 16: 3}
    fields = [(0, 1), (2, 2), (0, 5), (0, 5), (len(order) - 4, 4), *((lengths.get(code, 0), 3) for code in order)]
    # Codes, lowest bit first: 18 is 0, 1 is 10, 0 is 110. No literal, end of block of one bit, no distance.
    fields += [(0b0, 1), (138 - 11, 7), (0b0, 1), (118 - 11, 7), (0b01, 2), (0b011, 3)]
    fields += [(0b0, 1)]  # the end of the block
    value = length = 0
    for field, bits in fields:
        value |= field << length
        length += bits
    return value, length


_ODD_BLOCK, _ODD_LENGTH = _odd_block()


@dataclass(frozen=True, slots=True)
class AccessPoint:
    """A place in a file where inflating can begin.

    Attributes
    ----------
    stored : int
        The first whole byte of the deflate data that follow.
    inflated : int
        Where in the inflated stream that is.
    bits : int
        So many high bits of the byte before belong to it.
    window : bytes
        What was inflated last before the point; empty at the beginning of a member.
    """

    stored: int
    inflated: int
    bits: int
    window: bytes


@dataclass(frozen=True, slots=True, eq=False)
class AccessPoints:
    """The table of a `FILE.gzidx`.

    Attributes
    ----------
    file : Shard
        The sidecar.
    size : int
        Stored bytes of the gzip file it was made for.
    nbytes : int
        Bytes of that file, inflated.
    table : structured array, shape (npoints,)
        `stored`, `inflated` and `bits` as of an `AccessPoint`, ascending; `window`, whether data was kept for it.
    window_size : int
        Bytes of that data.
    """

    file: Shard
    size: int
    nbytes: int
    table: NDArray[np.void]
    window_size: int

    def before(self, offset: int) -> int:
        """Find the last point at or before an inflated offset, -1 if there is none.

        One at the very end of the data leads nowhere.
        """
        return int(np.searchsorted(self.table["inflated"], min(offset, self.nbytes - 1), side="right")) - 1

    def inflated(self, number: int) -> int:
        """Where in the inflated stream a point is."""
        return int(self.table["inflated"][number])

    def stored_past(self, offset: int) -> int:
        """Find a stored byte at or after all that is needed to inflate up to `offset`."""
        number = int(np.searchsorted(self.table["inflated"], offset))
        return int(self.table["stored"][number]) if number < len(self.table) else self.size

    def load(self, number: int) -> AccessPoint:
        """Read what inflating from a point takes."""
        stored, inflated, bits, has_window = self.table[number].item()
        if not has_window:
            return AccessPoint(stored, inflated, bits, b"")
        begin = _HEAD.size + self.table.nbytes
        begin += int(np.count_nonzero(self.table["window"][:number])) * self.window_size
        return AccessPoint(stored, inflated, bits, _read(self.file, begin, begin + self.window_size))


@functools.lru_cache(maxsize=256)
def access_points(shard: Shard) -> AccessPoints | None:
    """Find the access points of a file, once for a process.

    Returns
    -------
    AccessPoints or None
        None if there are none that fit: the file is then inflated from its beginning.
    """
    [found] = find_sidecars([shard], SUFFIX)
    if found is None:
        return None
    try:
        points = read_access_points(found.file)
    except CorruptRecordError:
        return None
    return points if points.size == shard.size else None


def read_access_points(file: Shard) -> AccessPoints:
    """Read the table of a sidecar.

    Raises
    ------
    CorruptRecordError
        If it is no such file, or was cut off.
    """
    look = _read(file, 0, min(file.size, _LOOK))
    if len(look) < _HEAD.size:
        raise _broken(file, f"it has {file.size} bytes")
    magic, version, _, size, nbytes, _, window_size, count = _HEAD.unpack_from(look)
    if magic != _MAGIC or version != _VERSION or count > _MOST_POINTS:
        raise _broken(file, f"it begins with {look[:7].hex(' ')}, and names {count} points")
    end = _HEAD.size + count * _POINT.itemsize
    if end > file.size:
        raise _broken(file, f"it has {file.size} bytes, and its {count} points need {end}")
    rest = _read(file, len(look), end) if end > len(look) else b""
    table = np.frombuffer((look + rest)[_HEAD.size : end], _POINT)
    kept = int(np.count_nonzero(table["window"]))
    if file.size != end + kept * window_size:
        raise _broken(file, f"it has {file.size} bytes where {end + kept * window_size} are needed")
    sound = (np.diff(table["inflated"].astype(np.int64)) >= 0).all() and (table["bits"] < 8).all()
    if not sound or (table["stored"] > size).any() or (table["inflated"] > nbytes).any():
        raise _broken(file, "its points are out of order")
    return AccessPoints(file, size, nbytes, table, window_size)


def indexing_library() -> Any:
    """Import what makes access points into gzip.

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
    """Inflate a gzip file once, and write access points into it.

    Parameters
    ----------
    shard : Shard
        The gzip file.
    path : str
        Where the sidecar goes, with the options of the shard; it appears whole.

    Returns
    -------
    int
        Points written.

    Raises
    ------
    TFRecordError
        If indexed_gzip is not installed.
    CorruptRecordError
        If the gzip data are damaged.
    """
    indexed_gzip = indexing_library()
    made = io.BytesIO()
    with open_stored(shard) as stored:
        stored.expect(shard.size)
        try:
            with indexed_gzip.IndexedGzipFile(fileobj=_Seekable(stored), spacing=_SPACING) as file:
                file.build_full_index()
                file.export_index(fileobj=made)
        except (indexed_gzip.ZranError, indexed_gzip.CrcError) as error:
            raise CorruptRecordError(f"the gzip data are damaged ({error})", Place(shard.path)) from error
    data = made.getvalue()
    sink = open_sink(path, shard.storage_options)
    try:
        sink.write(data)
        sink.close()
    except BaseException:
        sink.discard()
        raise
    # What was found before, or not found, is out of date.
    access_points.cache_clear()
    return int(_HEAD.unpack_from(data)[-1])


def prime(byte: int, bits: int) -> bytes:
    """Make deflate data of part of a byte: blocks that hold nothing, so long that the part ends with a byte.

    Parameters
    ----------
    byte : int
        Its high bits are data.
    bits : int
        How many of them, 1 to 7.

    Returns
    -------
    bytes
        What an inflater takes for the same data; what follows the byte in the file follows here.
    """
    value, length = (_ODD_BLOCK, _ODD_LENGTH) if bits % 2 else (0, 0)
    while (length + bits) % 8:
        value |= _EVEN_BLOCK << length
        length += _EVEN_LENGTH
    value |= (byte >> (8 - bits)) << length
    return value.to_bytes((length + bits) // 8, "little")


class _Seekable(io.RawIOBase):
    """A stored stream as the file that indexed_gzip takes."""

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


def _broken(file: Shard, what: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"these are no access points that can be used: {what}. Build them again", Place(file.path)
    )
