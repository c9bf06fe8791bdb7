"""A damaged shard without its damage: the records that hold, copied byte for byte, and a report beside them.

Imports errors, storage, framing and damage.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dask_tfrecord.errors import CorruptRecordError, Place, TFRecordError
from dask_tfrecord.records.damage import ShardReport
from dask_tfrecord.records.framing import Window
from dask_tfrecord.storage.compression import create_stream
from dask_tfrecord.storage.shards import Shard, is_local
from dask_tfrecord.storage.streams import open_sink

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
    """Write what holds of a shard to a new file, and what was lost beside it.

    Parameters
    ----------
    shard : Shard
        The damaged file.
    report : ShardReport
        What was found in it.
    target : str or os.PathLike
        The new file.
    compression : {"same", None, "gzip", "zlib"}
        Of the new file.
    storage_options : mapping, optional
        What fsspec takes beside the URL of the new file.

    Raises
    ------
    CorruptRecordError
        If the shard ends earlier than the report says; nothing is written then.
    TFRecordError
        If the target is the shard itself.
    """
    path = os.fspath(target)
    if path == shard.path or (is_local(path) and is_local(shard.path) and Path(path).resolve() == Path(shard.path)):
        raise TFRecordError("the new file would take the place of the damaged one: name another", Place(path))
    sink = create_stream(path, report.compression if compression == "same" else compression, storage_options)
    try:
        for part in _held(shard, report):
            sink.write(part)
        sink.close()
    except BaseException:
        sink.discard()
        raise
    beside = open_sink(path + REPORT_SUFFIX, storage_options)
    try:
        beside.write((json.dumps(report.to_dict(), indent=1) + "\n").encode())
        beside.close()
    except BaseException:
        beside.discard()
        raise


def _held(shard: Shard, report: ShardReport) -> Iterator[memoryview]:
    """Bytes of the records that hold; each part is good until the next one is asked for."""
    with Window(shard, stop=shard.size) as window:
        for start, stop in zip(report.starts.tolist(), report.stops.tolist(), strict=True):
            window.advance(start - window.offset)
            while window.offset < stop:
                if not window.fill():
                    raise CorruptRecordError(
                        "the file ends before the records that were found in it: it is being changed",
                        Place(shard.path, None, window.offset),
                    )
                part = window.view(0, stop - window.offset)
                yield part
                window.advance(len(part))
