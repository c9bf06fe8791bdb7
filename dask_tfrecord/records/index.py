"""The index of a shard: how many records, and where some of them begin.

It is sparse, one mark per MiB or more: a billion records stay in megabytes, and a record between two marks is reached
by walking headers from the one before it. Imports errors and storage, and scans by `dask_tfrecord._native`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.errors import CorruptRecordError
from dask_tfrecord.records.framing import FOOTER, HEADER, Window, framing_error
from dask_tfrecord.storage.files import Shard, is_local

__all__ = ["ShardIndex", "cut_error", "scan_shard"]

_BETWEEN_MARKS = 1 << 20

# Blocks end within marks' distance, so that marks lie little further apart than they have to.
_BLOCK = 512 << 10
# From this mean size on, reading a header and seeking to the next beats reading all that lies between.
_LARGE_RECORD = 256 << 10
_HEADER_BLOCK = 4 << 10


@dataclass(frozen=True, slots=True, eq=False)
class ShardIndex:
    """Where the records of a shard are.

    Attributes
    ----------
    count : int
        Records in the shard.
    records : int64 array
        Numbers of the marked records, ascending; the first mark is record 0, also where there is none.
    offsets : int64 array
        Byte of each marked record's header, in the decompressed stream; marks are at least one MiB apart.
    nbytes : int
        Length of the decompressed stream.
    compression : str or None
        As found: None, ``"gzip"`` or ``"zlib"``.
    """

    count: int
    records: NDArray[np.int64]
    offsets: NDArray[np.int64]
    nbytes: int
    compression: str | None


def scan_shard(shard: Shard, *, check_crc: bool = True) -> ShardIndex:
    """Walk the headers of a shard from end to end.

    Parameters
    ----------
    shard : Shard
        What to scan. Large records of a plain local file are skipped unread.
    check_crc : bool, default True
        Whether the CRC of every length has to hold. Payloads are not looked at.

    Returns
    -------
    ShardIndex
        Counts and marks.

    Raises
    ------
    CorruptRecordError
        If a header does not hold, or the shard ends within a record.
    """
    count = 0
    records, offsets = [0], [0]
    with Window(shard, block_size=_BLOCK) as window:
        can_skip = window.compression is None and is_local(shard.path)
        while window.fill(HEADER):
            if window.offset - offsets[-1] >= _BETWEEN_MARKS:
                records.append(count)
                offsets.append(window.offset)
            border = window.offset
            walked, nbytes, reason, _ = _native.scan(window.buffer, window.begin, window.end, -1, check_crc)
            whole = window.advance(nbytes)
            if not whole:
                raise cut_error(shard, border, count, walked)
            count += walked
            if reason == _native.FRAMING or walked == 0:
                raise framing_error(window, count)
            if can_skip:
                window.block_size = _HEADER_BLOCK if nbytes >= walked * _LARGE_RECORD else _BLOCK
        if not window.exhausted:
            raise framing_error(window, count)
        return ShardIndex(
            count, np.array(records, np.int64), np.array(offsets, np.int64), window.offset, window.compression
        )


def cut_error(shard: Shard, border: int, first: int, walked: int) -> CorruptRecordError:
    """Say how the last of `walked` records is cut: the scan is past its header."""
    with Window(shard, border) as window:
        for _ in range(walked - 1):
            window.fill(HEADER)
            length = int.from_bytes(window.view(0, 8), "little")
            window.advance(HEADER + length + FOOTER)
        return framing_error(window, first + walked - 1)
