"""zstd: frames of Zstandard, by the standard library from Python 3.14 on, else by backports.zstd.

https://www.rfc-editor.org/rfc/rfc8878
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from dask_tfrecord.errors import explain_missing
from dask_tfrecord.shards.shard_compression import ShardCompression

_MAGIC = b"\x28\xb5\x2f\xfd"
# Blocks of equal bytes take 4 bytes for 128 KiB.
_MAX_RATIO = 10_000


def _zstd() -> ModuleType:
    """Import the module."""
    with explain_missing("shards compressed by zstd need", "backports.zstd", "zstd"):
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    module: ModuleType = zstd
    return module


class _Decompressor:
    """Decompressor of one frame, whose window takes at most 128 MiB."""

    def __init__(self) -> None:
        zstd = _zstd()
        self._error = zstd.ZstdError
        self._decompressor: Any = zstd.ZstdDecompressor()

    @property
    def eof(self) -> bool:
        """True after the end of the frame."""
        return bool(self._decompressor.eof)

    @property
    def needs_input(self) -> bool:
        """False if more bytes can be returned without further input."""
        return bool(self._decompressor.needs_input)

    @property
    def unused_data(self) -> bytes:
        """Input after the end of the frame."""
        return bytes(self._decompressor.unused_data)

    def decompress(self, data: bytes | memoryview, max_length: int = -1, /) -> bytes:
        """Return up to `max_length` decompressed bytes; raise ValueError for damaged data."""
        try:
            return bytes(self._decompressor.decompress(data, max_length))
        except self._error as error:
            raise ValueError(str(error)) from error


def _compressor() -> Any:
    zstd = _zstd()
    return zstd.ZstdCompressor(options={zstd.CompressionParameter.checksum_flag: 1})


ZSTD = ShardCompression("zstd", lambda head: head.startswith(_MAGIC), _Decompressor, _compressor, max_ratio=_MAX_RATIO)
