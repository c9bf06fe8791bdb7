"""Decompressed bytes of a shard, whatever its name says: compression is found from the bytes.

gzip (several members in a row too) and zlib are inflated in bounded memory, by isal where it is installed. Imports
errors, access, shards and streams only.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Self

import crc32c

from dask_tfrecord.errors import CorruptRecordError, Place
from dask_tfrecord.storage.access import AccessPoint, access_points, prime
from dask_tfrecord.storage.shards import Shard
from dask_tfrecord.storage.streams import ByteSink, ByteStream, StoredStream, open_sink, open_stored

try:
    from isal import isal_zlib
except ImportError:
    _inflate: ModuleType = zlib
else:
    _inflate = isal_zlib

__all__ = [
    "MOST_INFLATED",
    "ByteSink",
    "ByteStream",
    "create_stream",
    "mask_crc32c",
    "masked_crc32c",
    "open_stream",
    "sniff",
]

# Bytes looked at: a TFRecord header takes 12, an inflater shows within some hundred what is no zlib stream.
_HEAD = 512

# What inflate takes to read one format and no other.
_WINDOW_BITS = {"gzip": 31, "zlib": 15}

_TRUNCATED = "the {} data ends before its last block: the file is truncated"

# A gzip member ends with a CRC and its size.
_TRAILER = 8

# Deflate gains no more than 1032 times, and nothing that anybody would read comes near it for long.
MOST_INFLATED = 1000
_MODEST = 64 << 20

_READ = 256 << 10
# An inflater copies what it did not use of its input: small pieces keep that cheap where members are tiny.
_FEED = 16 << 10
_DROP = 256 << 10


def mask_crc32c(crc: int) -> int:
    """Rotate and shift a CRC-32C, as TFRecord stores it: a CRC of bytes that hold CRCs would be of little use."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def masked_crc32c(data: bytes | memoryview) -> int:
    """CRC-32C of `data` as TFRecord stores it."""
    return mask_crc32c(crc32c.crc32c(data))


def sniff(head: bytes) -> str | None:
    """Find the compression of a file from its first bytes.

    A length CRC that holds means none, even where the length looks like gzip's magic.

    Parameters
    ----------
    head : bytes
        The first bytes of the file; 512 are enough.

    Returns
    -------
    str or None
        ``"gzip"``, ``"zlib"`` or None.
    """
    if len(head) >= 12 and masked_crc32c(head[:8]) == int.from_bytes(head[8:12], "little"):
        return None
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    return "zlib" if _is_zlib(head) else None


def _is_zlib(head: bytes) -> bool:
    """Whether the two bytes of a zlib header hold, and what follows inflates: a damaged length may look like one."""
    if len(head) < 2 or head[0] & 0x8F != 0x08 or head[1] & 0x20 or int.from_bytes(head[:2], "big") % 31:
        return False
    try:
        zlib.decompressobj().decompress(head)
    except zlib.error:
        return False
    return True


def open_stream(shard: Shard, start: int = 0, stop: int | None = None) -> ByteStream:
    """Open the decompressed bytes of a shard.

    Parameters
    ----------
    shard : Shard
        Its `compression` says how to read it; ``"infer"`` looks at the bytes.
    start : int, default 0
        Where in the decompressed stream to begin.
    stop : int, optional
        How far reading will go, as far as is known: remote ranges are cut to fit.

    Returns
    -------
    ByteStream
        A context manager; `compression` is what was found. It stands at `start`, or at its end if that comes before.
    """
    stored = open_stored(shard)
    try:
        if start == 0 and stop is not None:
            # The look at the head is the beginning of it.
            stored.expect(stop)
        compression = sniff(stored.peek(_HEAD)) if shard.compression == "infer" else shard.compression
        stream: ByteStream = stored if compression is None else InflatedStream(stored, compression)
        if stop is not None:
            stream.expect(stop)
        stream.seek(start)
        return stream
    except BaseException:
        stored.close()
        raise


class InflatedStream:
    """What a gzip or zlib file holds, inflated as it is asked for.

    A file that ends early, breaks off, goes on with something else or inflates to more than `MOST_INFLATED` times its
    size raises `CorruptRecordError`, behind all that can be inflated. Where access points lie beside the file, `seek`
    inflates from the last one before.
    """

    def __init__(self, stored: StoredStream, compression: str) -> None:
        self.compression: str | None = compression
        self.position = 0
        self._stored = stored
        self._bits = _WINDOW_BITS[compression]
        self._inflater: Any = None  # None between two members
        self._members = 0
        self._read_buffer = memoryview(bytearray(_READ))
        self._input = self._read_buffer[:0]  # read, and not yet fed
        self._rest: Any = b""  # fed, and not yet used
        self._trailer = 0  # stored bytes between the deflate data and the next member
        self._member: tuple[int, int] | None = None  # where the member begins: stored, inflated
        self._failure: CorruptRecordError | None = None
        self._rescued = b""  # to be read before the failure is raised
        self._began = (0, 0)  # where inflating began: stored, inflated
        self._points = access_points(stored.shard) if compression == "gzip" and stored.shard.access else None

    def readinto(self, buffer: memoryview) -> int:
        """Fill `buffer` as far as the stream goes; 0 only at the end."""
        filled = 0
        while filled < len(buffer) and self._failure is None:
            try:
                if self._inflater is None and not self._next_member():
                    return filled
                filled += self._inflate_into(buffer[filled:])
            except CorruptRecordError as error:
                self._failure = error
        if self._failure is not None:
            part = self._rescued[: len(buffer) - filled]
            buffer[filled : filled + len(part)] = part
            self._rescued = self._rescued[len(part) :]
            self.position += len(part)
            filled += len(part)
            if not filled and buffer:
                raise self._failure
        return filled

    def seek(self, offset: int) -> int:
        """Inflate and drop up to `offset`, or to the end of the stream if that comes before."""
        if self._points is not None:
            number = self._points.before(offset)
            if number >= 0 and self._points.inflated(number) > self.position:
                self._enter(self._points.load(number))
        scratch = memoryview(bytearray(min(_DROP, max(0, offset - self.position))))
        while self.position < offset and self.readinto(scratch[: offset - self.position]):
            pass
        return self.position

    def expect(self, stop: int) -> None:
        """Know that reading will go on to `stop`, and probably no further."""
        if self._points is not None:
            self._stored.expect(self._points.stored_past(stop))
        elif stop >= self._stored.shard.size:
            # Of data that shrink by compression, this much is most of it.
            self._stored.expect(self._stored.shard.size)

    def close(self) -> None:
        """Close the file."""
        self._stored.close()

    def __enter__(self) -> Self:
        """Close the file at the end of the with-block."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the file."""
        self.close()

    def _inflate_into(self, buffer: memoryview) -> int:
        """Give the inflater one piece of input; bytes that came of it."""
        piece = self._rest or self._take()
        try:
            data = self._inflater.decompress(piece, len(buffer))
        except (zlib.error, _inflate.error) as error:
            self._rescued = self._rescue()
            raise self._broken(f"the {self.compression} data is damaged ({error})") from error
        buffer[: len(data)] = data
        self.position += len(data)
        if self.position - self._began[1] > _MODEST:
            self._check_ratio()
        if self._inflater.eof:
            self._rest = self._inflater.unused_data
            self._inflater = None
        else:
            self._rest = self._inflater.unconsumed_tail
            if not piece and not data:
                raise self._broken(_TRUNCATED.format(self.compression))
        return len(data)

    def _rescue(self) -> bytes:
        """Inflate again up to the very damage: what the inflater had made of its last piece is gone with its error."""
        if self._member is None:
            return b""
        end = self._stored.position - len(self._input)
        inflater = zlib.decompressobj(wbits=self._bits)
        start, inflated = self._member
        rescued = bytearray()
        with open_stored(self._stored.shard) as stored:
            stored.seek(start)
            while stored.position < end:
                piece = memoryview(bytearray(min(_FEED, end - stored.position)))
                piece = piece[: stored.readinto(piece)]
                # Near the damage byte by byte: each gives all that it can.
                step = len(piece) if stored.position + 2 * _FEED < end else 1
                for place in range(0, len(piece), step):
                    try:
                        data = inflater.decompress(piece[place : place + step])
                    except zlib.error:
                        return bytes(rescued)
                    rescued += data[max(0, self.position - inflated) :]
                    inflated += len(data)
        return bytes(rescued)

    def _take(self) -> memoryview:
        """Take the next piece of stored bytes; empty at the end of the file."""
        if not self._input:
            self._input = self._read_buffer[: self._stored.readinto(self._read_buffer)]
        piece, self._input = self._input[:_FEED], self._input[_FEED:]
        return piece

    def _enter(self, point: AccessPoint) -> None:
        """Go on from an access point."""
        self._stored.seek(point.stored - (1 if point.bits else 0))
        self._input = self._read_buffer[:0]
        self._rest = b""
        if point.bits:
            piece = bytes(self._take())
            self._rest = prime(piece[0], point.bits) + piece[1:]
        # Raw deflate data: the header of the member lies before, the trailer is no business of theirs.
        self._inflater = _inflate.decompressobj(wbits=-15, zdict=point.window)
        self._trailer = _TRAILER
        self._members += 1
        self._member = None
        self.position = point.inflated
        self._began = (point.stored, point.inflated)

    def _check_ratio(self) -> None:
        """Refuse what inflates to a thousand times its size and does not end."""
        used = self._stored.position - len(self._input) - len(self._rest)
        stored, inflated = used - self._began[0], self.position - self._began[1]
        if inflated > MOST_INFLATED * stored:
            raise self._broken(
                f"the {self.compression} data inflate to more than {MOST_INFLATED} times their size, as decompression "
                f"bombs do"
            )

    def _next_member(self) -> bool:
        """Begin the next member, if there is one; zeros after the last are padding, as gzip(1) has it."""
        if self._members:
            self._skip_trailer()
            rest = bytes(self._rest).lstrip(b"\0")
            while len(rest) < 2 and (piece := self._take()):
                rest = (rest + piece).lstrip(b"\0")
            if not rest:
                return False
            if self.compression != "gzip" or not rest.startswith(b"\x1f\x8b"):
                raise self._broken(f"something else follows the end of the {self.compression} data")
            self._rest = rest
        self._inflater = _inflate.decompressobj(wbits=self._bits)
        self._member = (self._stored.position - len(self._input) - len(self._rest), self.position)
        self._members += 1
        return True

    def _skip_trailer(self) -> None:
        """Leave out what an inflater of raw data does not take for its own."""
        while self._trailer:
            piece = self._rest or self._take()
            if not piece:
                raise self._broken(_TRUNCATED.format(self.compression))
            self._rest, self._trailer = piece[self._trailer :], max(0, self._trailer - len(piece))

    def _broken(self, what: str) -> CorruptRecordError:
        size = self._stored.shard.size
        return CorruptRecordError(
            f"{what}; {self.position + len(self._rescued)} bytes could be inflated, from the first "
            f"{self._stored.position} of {size} stored bytes. Fetch or write the file again",
            Place(self._stored.shard.path),
        )


def create_stream(
    path: str | os.PathLike[str], compression: str | None = None, storage_options: Mapping[str, Any] | None = None
) -> ByteSink:
    """Begin a new file that appears at `path` when it is closed.

    Parameters
    ----------
    path : str or os.PathLike
        Where; its directory must exist.
    compression : {None, "gzip", "zlib"}
        What the file is to be compressed with; the name says nothing about it.
    storage_options : mapping, optional
        What fsspec takes beside a URL.

    Returns
    -------
    ByteSink
        `write` appends, `close` publishes, `discard` leaves nothing.
    """
    if compression is not None and compression not in _WINDOW_BITS:
        raise ValueError(f"compression is one of None, 'gzip', 'zlib'; got {compression!r}")
    sink = open_sink(path, storage_options)
    return sink if compression is None else _DeflatedSink(sink, _WINDOW_BITS[compression])


class _DeflatedSink:
    """Compresses what goes to another sink."""

    def __init__(self, sink: ByteSink, bits: int) -> None:
        self._sink = sink
        self._deflater = zlib.compressobj(wbits=bits)
        self.discard: Callable[[], None] = sink.discard

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._sink.write(self._deflater.compress(data))

    def close(self) -> None:
        self._sink.write(self._deflater.flush())
        self._sink.close()
