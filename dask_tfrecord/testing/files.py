"""TFRecord files read and written in plain Python: `struct` for the framing, the `crc32c` package for the CRCs."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path

import crc32c

from dask_tfrecord import messages
from dask_tfrecord.errors import CorruptRecordError, Place

__all__ = ["masked_crc", "read_oracle", "read_payloads", "write_oracle"]


def masked_crc(data: bytes) -> int:
    """CRC32C of some bytes, turned and shifted as the framing has it."""
    crc: int = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _inflated(stored: bytes) -> bytes:
    """Inflate a shard's bytes if they are compressed: they say so themselves, not the name."""
    if len(stored) >= 12 and masked_crc(stored[:8]) == struct.unpack_from("<I", stored, 8)[0]:
        return stored
    if stored[:2] == b"\x1f\x8b":
        return gzip.decompress(stored)
    if len(stored) >= 2 and stored[0] & 0x0F == 8 and int.from_bytes(stored[:2], "big") % 31 == 0:
        return zlib.decompress(stored)
    return stored


def read_payloads(path: str | PathLike[str]) -> list[bytes]:
    """Every record's payload of one local file, both CRCs checked.

    Parameters
    ----------
    path : path
        A TFRecord file, plain or compressed by gzip or zlib.

    Returns
    -------
    list of bytes

    Raises
    ------
    CorruptRecordError
        If a record is cut or a CRC does not hold.
    """
    stream, offset = _inflated(Path(path).read_bytes()), 0
    payloads: list[bytes] = []
    while offset < len(stream):
        place = Place(str(path), len(payloads), offset)
        header, end = stream[offset : offset + 12], 0
        if len(header) == 12 and masked_crc(header[:8]) == int.from_bytes(header[8:], "little"):
            end = offset + 12 + int.from_bytes(header[:8], "little") + 4
        if not 0 < end <= len(stream):
            raise CorruptRecordError("the header is cut, does not hold, or asks for more than there is", place)
        payload = stream[offset + 12 : end - 4]
        if masked_crc(payload) != int.from_bytes(stream[end - 4 : end], "little"):
            raise CorruptRecordError("the payload's CRC does not hold", place)
        payloads.append(payload)
        offset = end
    return payloads


def read_oracle(path: str | PathLike[str]) -> list[messages.Example]:
    """Every record of one local file as protobuf parses it; `read_payloads` and then ``Example.FromString``."""
    return [messages.Example.FromString(payload) for payload in read_payloads(path)]


def write_oracle(path: str | PathLike[str], payloads: Iterable[bytes], compression: str | None = None) -> None:
    """Write payloads as one TFRecord file.

    Parameters
    ----------
    path : path
        A local file; it is replaced.
    payloads : iterable of bytes
        One per record.
    compression : {None, "gzip", "zlib"}
        Of the whole file.
    """
    records = []
    for payload in payloads:
        length = struct.pack("<Q", len(payload))
        records += [length, struct.pack("<I", masked_crc(length)), payload, struct.pack("<I", masked_crc(payload))]
    compress: dict[str | None, Callable[[bytes], bytes]] = {None: bytes, "gzip": gzip.compress, "zlib": zlib.compress}
    Path(path).write_bytes(compress[compression](b"".join(records)))
