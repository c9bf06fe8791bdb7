"""Repair of damaged shards: a copy of the intact records, and a report of the lost bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dask_tfrecord.errors import CorruptRecordError, Location, TFRecordError
from dask_tfrecord.records.damage import ShardReport
from dask_tfrecord.records.framing import Window
from dask_tfrecord.storage.compression import create_stream
from dask_tfrecord.storage.shard import Shard, is_local
from dask_tfrecord.storage.streams import write_file

__all__ = ["REPORT_SUFFIX", "repair_shard"]

REPORT_SUFFIX = ".damage.json"


def repair_shard(
    shard: Shard,
    report: ShardReport,
    target: str | os.PathLike[str],
    *,
    compression: str | None = "same",
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Copy the intact records of a shard to a new file, and write a report of the damage next to it.

    Parameters
    ----------
    shard : Shard
        Damaged shard.
    report : ShardReport
        Damage of the shard.
    target : str or os.PathLike
        Path or URL of the new file.
    compression : {"same", None, "gzip", "zlib"}
        Compression of the new file.
    storage_options : mapping, optional
        Options of the fsspec file system of the new file.

    Raises
    ------
    CorruptRecordError
        If the shard is shorter than in the report; nothing is written then.
    TFRecordError
        If the target is the shard itself.
    """
    path = os.fspath(target)
    if path == shard.path or (is_local(path) and is_local(shard.path) and Path(path).resolve() == Path(shard.path)):
        raise TFRecordError("the new file would replace the damaged shard; pass another path", Location(path))
    sink = create_stream(path, report.compression if compression == "same" else compression, storage_options)
    try:
        for block in _intact_bytes(shard, report):
            sink.write(block)
        sink.close()
    except BaseException:
        sink.discard()
        raise
    write_file(path + REPORT_SUFFIX, (json.dumps(report.to_dict(), indent=1) + "\n").encode(), storage_options)


def _intact_bytes(shard: Shard, report: ShardReport) -> Iterator[memoryview]:
    """Yield the bytes of the intact records; each block is valid until the next one is requested."""
    with Window(shard, stop=shard.size) as window:
        for start, stop in zip(report.starts.tolist(), report.stops.tolist(), strict=True):
            window.advance(start - window.offset)
            while window.offset < stop:
                if not window.fill():
                    raise CorruptRecordError(
                        "the file ends before records that were found in it; another program is changing it",
                        Location(shard.path, None, window.offset),
                    )
                block = window.view(0, stop - window.offset)
                yield block
                window.advance(len(block))
