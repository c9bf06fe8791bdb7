"""The payloads of runs of records, as they are, each with its place.

What is no column goes this way: inference, and bags of whatever a function makes of a payload.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing

from dask_tfrecord.columns.decode import Run
from dask_tfrecord.errors import CorruptRecordError, Place
from dask_tfrecord.records.framing import iterate
from dask_tfrecord.storage.shards import Shard

__all__ = ["payloads", "whole"]


def whole(shard: Shard) -> Run:
    """All records of a shard, however many there are."""
    return Run(shard, first=0, count=None, mark=0, offset=0, past=shard.size, last=True)


def payloads(runs: Iterable[Run], *, check_crc: bool = True) -> Generator[tuple[Place, bytes], None, None]:
    """Iterate over the records of runs; one payload is in memory at a time.

    Parameters
    ----------
    runs : iterable of Run
        What to read, one after the other.
    check_crc : bool, default True
        Whether both CRCs of every record have to hold.

    Yields
    ------
    place : Place
        Where the record is.
    payload : bytes
        What it holds.

    Raises
    ------
    CorruptRecordError
        If a record is damaged, or a shard holds fewer or more records than were counted.
    """
    for run in runs:
        past = None if run.count is None else run.first + run.count
        number = run.mark
        # Whoever looks at a whole shard may look no further than at its first records.
        stop = None if run.count is None else run.past
        stream = iterate(run.shard, check_crc=check_crc, record=run.mark, offset=run.offset, stop=stop)
        with closing(stream) as records:
            # What lies behind the run is another's to judge; at the end of a shard nothing may lie.
            while number != past or run.last:
                found = next(records, None)
                if found is None:
                    break
                if number == past:
                    raise _changed("more bytes follow", run.shard, number)
                if number >= run.first:
                    yield Place(run.shard.path, number, found[0]), found[1]
                number += 1
        if past is not None and number < past:
            raise _changed(f"{past - number} more were expected", run.shard, number)


def _changed(what: str, shard: Shard, record: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"{what} after {record} records: the file has changed since it was counted; open the collection again",
        Place(shard.path, record),
    )
