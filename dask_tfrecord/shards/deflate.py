"""gzip and zlib: members of deflate data, inflated by isal where it is installed.

gzip: https://www.rfc-editor.org/rfc/rfc1952. zlib: https://www.rfc-editor.org/rfc/rfc1950.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any

from dask_tfrecord.shards.shard_compression import ShardCompression

# Libraries that inflate, the fastest first. They differ in the damage that they find: where one value is inflated at
# once, zlib decides on what isal refuses.
INFLATERS: tuple[ModuleType, ...] = (zlib,)
with suppress(ImportError):
    from isal import isal_zlib

    INFLATERS = (isal_zlib, zlib)

GZIP_MAGIC = b"\x1f\x8b"
# Parameter `wbits` of zlib that selects the format.
_WBITS, _RAW_BITS = {"gzip": 31, "zlib": 15}, -15

# CRC and size at the end of a gzip member.
TRAILER = 8


class Inflater:
    """Decompress one member, or raw deflate data after a window's bytes."""

    def __init__(self, wbits: int, window: bytes = b"") -> None:
        self._inflater: Any = INFLATERS[0].decompressobj(wbits=wbits, **({"zdict": window} if window else {}))
        self._tail = b""

    @classmethod
    def within_member(cls, window: bytes) -> Inflater:
        """Return an inflater of raw data, which reads neither header nor trailer of the member."""
        return cls(_RAW_BITS, window)

    @property
    def eof(self) -> bool:
        """True after the end of the member."""
        return bool(self._inflater.eof)

    @property
    def needs_input(self) -> bool:
        """False if input is left."""
        return not self._tail

    @property
    def unused_data(self) -> bytes:
        """Input after the end of the member."""
        return bytes(self._inflater.unused_data)

    def decompress(self, data: bytes | memoryview, max_length: int = -1, /) -> bytes:
        """Inflate up to `max_length` bytes; raise ValueError for damaged data."""
        try:
            inflated: bytes = self._inflater.decompress(self._tail or data, max(0, max_length))
        except (zlib.error, INFLATERS[0].error) as error:
            raise ValueError(str(error)) from error
        self._tail = self._inflater.unconsumed_tail
        return inflated


def inflated_value(value: memoryview, compression: str, most: int) -> tuple[bytes, bool]:
    """Return at most `most` bytes of a compressed value, all for 0, and whether they are all of intact data."""
    for library in INFLATERS:
        inflate = library.decompressobj(_WBITS[compression.lower()])
        try:
            inflated: bytes = inflate.decompress(value, most)
        except library.error:
            continue
        if inflate.eof and not inflate.unused_data:
            return inflated, True
        if 0 < most <= len(inflated):
            return inflated, False
    return b"", False


def _is_zlib(head: bytes) -> bool:
    """Return whether the zlib header is valid and the data inflates; a damaged length may equal a header."""
    if len(head) < 2 or head[0] & 0x8F != 0x08 or head[1] & 0x20 or int.from_bytes(head[:2], "big") % 31:
        return False
    try:
        zlib.decompressobj().decompress(head)
    except zlib.error:
        return False
    return True


GZIP = ShardCompression(
    "gzip",
    lambda head: head.startswith(GZIP_MAGIC),
    partial(Inflater, _WBITS["gzip"]),
    partial(zlib.compressobj, wbits=_WBITS["gzip"]),
    has_access_points=True,
)
ZLIB = ShardCompression(
    "zlib", _is_zlib, partial(Inflater, _WBITS["zlib"]), partial(zlib.compressobj, wbits=_WBITS["zlib"]), joins=False
)
