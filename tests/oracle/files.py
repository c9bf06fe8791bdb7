"""Reader and writer of TFRecord files in plain Python, with `struct` and the `crc32c` package.

The framing is specified at https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from os import PathLike
from pathlib import Path

import crc32c

from oracle import messages


def masked_crc(data: bytes) -> int:
    """Return the masked CRC32C of the bytes: rotated right by 15 bits, plus a constant."""
    crc: int = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _inflated(stored: bytes) -> bytes:
    """Inflate the bytes of a shard if they are compressed, which is detected from the bytes and not from the name."""
    if len(stored) >= 12 and masked_crc(stored[:8]) == struct.unpack_from("<I", stored, 8)[0]:
        return stored
    if stored[:2] == b"\x1f\x8b":
        return gzip.decompress(stored)
    if len(stored) >= 2 and stored[0] & 0x0F == 8 and int.from_bytes(stored[:2], "big") % 31 == 0:
        return zlib.decompress(stored)
    return stored


def read_payloads(path: str | PathLike[str]) -> list[bytes]:
    """Read the payloads of a local file, and check both CRCs of each record."""
    stream, offset = _inflated(Path(path).read_bytes()), 0
    payloads: list[bytes] = []
    while offset < len(stream):
        place = f"{path}: record {len(payloads)} at byte {offset}"
        header, end = stream[offset : offset + 12], 0
        if len(header) == 12 and masked_crc(header[:8]) == int.from_bytes(header[8:], "little"):
            end = offset + 12 + int.from_bytes(header[:8], "little") + 4
        if not 0 < end <= len(stream):
            raise ValueError(f"{place}: the header is truncated or damaged, or exceeds the end of the file")
        payload = stream[offset + 12 : end - 4]
        if masked_crc(payload) != int.from_bytes(stream[end - 4 : end], "little"):
            raise ValueError(f"{place}: the CRC of the payload does not match")
        payloads.append(payload)
        offset = end
    return payloads


def read_oracle(path: str | PathLike[str]) -> list[messages.Example]:
    """Read the Examples of a local file: `read_payloads` followed by ``Example.FromString``."""
    return [messages.Example.FromString(payload) for payload in read_payloads(path)]


def framed(payloads: Iterable[bytes]) -> bytes:
    """Frame payloads as the format specifies."""
    records = []
    for payload in payloads:
        length = struct.pack("<Q", len(payload))
        records += [length, struct.pack("<I", masked_crc(length)), payload, struct.pack("<I", masked_crc(payload))]
    return b"".join(records)


def borders(payloads: Sequence[bytes]) -> list[int]:
    """Return the offset of each record, and of the end."""
    return list(accumulate((len(payload) + 16 for payload in payloads), initial=0))


def write_oracle(path: str | PathLike[str], payloads: Iterable[bytes], compression: str | None = None) -> None:
    """Write payloads as one TFRecord file."""
    compress: dict[str | None, Callable[[bytes], bytes]] = {None: bytes, "gzip": gzip.compress, "zlib": zlib.compress}
    Path(path).write_bytes(compress[compression.lower() if compression else None](framed(payloads)))
