"""Decompressed bytes of a shard, whatever its name says: compression is found from the bytes.

gzip (several members in a row too) and zlib are inflated in bounded memory, by isal where it is installed. Imports
errors, files and streams only.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Self

import crc32c

from dask_tfrecord.errors import CorruptRecordError, Place
from dask_tfrecord.storage.files import Shard
from dask_tfrecord.storage.streams import ByteSink, ByteStream, StoredStream, open_sink, open_stored

try:
    from isal import isal_zlib
except ImportError:
    _inflate: ModuleType = zlib
else:
    _inflate = isal_zlib

__all__ = ["ByteSink", "ByteStream", "create_stream", "mask_crc32c", "masked_crc32c", "open_stream", "sniff"]

# Bytes looked at: a TFRecord header takes 12, an inflater shows within some hundred what is no zlib stream.
_HEAD = 512

# What inflate takes to read one format and no other.
_WINDOW_BITS = {"gzip": 31, "zlib": 15}

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


def open_stream(shard: Shard) -> ByteStream:
    """Open the decompressed bytes of a shard.

    Parameters
    ----------
    shard : Shard
        Its `compression` says how to read it; ``"infer"`` looks at the bytes.

    Returns
    -------
    ByteStream
        A context manager; `compression` is what was found.
    """
    stored = open_stored(shard)
    try:
        compression = sniff(stored.peek(_HEAD)) if shard.compression == "infer" else shard.compression
    except BaseException:
        stored.close()
        raise
    return stored if compression is None else InflatedStream(stored, compression)


class InflatedStream:
    """What a gzip or zlib file holds, inflated as it is asked for.

    A file that ends early, breaks off or goes on with something else raises `CorruptRecordError`.
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

    def readinto(self, buffer: memoryview) -> int:
        """Fill `buffer` as far as the stream goes; 0 only at the end."""
        filled = 0
        while filled < len(buffer) and (self._inflater is not None or self._next_member()):
            filled += self._inflate_into(buffer[filled:])
        return filled

    def seek(self, offset: int) -> int:
        """Inflate and drop up to `offset`, or to the end of the stream if that comes before."""
        scratch = memoryview(bytearray(min(_DROP, max(0, offset - self.position))))
        while self.position < offset and self.readinto(scratch[: offset - self.position]):
            pass
        return self.position

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
            raise self._broken(f"the {self.compression} data is damaged ({error})") from error
        buffer[: len(data)] = data
        self.position += len(data)
        if self._inflater.eof:
            self._rest = self._inflater.unused_data
            self._inflater = None
        else:
            self._rest = self._inflater.unconsumed_tail
            if not piece and not data:
                raise self._broken(f"the {self.compression} data ends before its last block: the file is truncated")
        return len(data)

    def _take(self) -> memoryview:
        """Take the next piece of stored bytes; empty at the end of the file."""
        if not self._input:
            self._input = self._read_buffer[: self._stored.readinto(self._read_buffer)]
        piece, self._input = self._input[:_FEED], self._input[_FEED:]
        return piece

    def _next_member(self) -> bool:
        """Begin the next member, if there is one; zeros after the last are padding, as gzip(1) has it."""
        if self._members:
            rest = bytes(self._rest).lstrip(b"\0")
            while len(rest) < 2 and (piece := self._take()):
                rest = (rest + piece).lstrip(b"\0")
            if not rest:
                return False
            if self.compression != "gzip" or not rest.startswith(b"\x1f\x8b"):
                raise self._broken(f"something else follows the end of the {self.compression} data")
            self._rest = rest
        self._inflater = _inflate.decompressobj(wbits=self._bits)
        self._members += 1
        return True

    def _broken(self, what: str) -> CorruptRecordError:
        size = self._stored.shard.size
        return CorruptRecordError(
            f"{what}; {self.position} bytes could be inflated, from the first "
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
