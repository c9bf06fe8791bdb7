"""Payloads of consecutive or selected records, each with its location.

Schema inference, bags and copies read payloads this way; columns are decoded by `dask_tfrecord.columns.decode`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import CorruptRecordError, Location, plural
from dask_tfrecord.records.byte_splits import ByteSplit
from dask_tfrecord.records.framing import iterate_records
from dask_tfrecord.storage.shard import Shard

__all__ = ["Run", "full_run", "iterate_payloads"]


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Records of one shard that one task reads: consecutive records, or selected records close to each other.

    Attributes
    ----------
    shard : Shard
        Shard of the records.
    first : int
        Number of the first record in the shard.
    count : int or None
        Number of records; None for all records from the first one to the end of the shard.
    entry_record : int
        Record number of an index entry at or before the first record.
    offset : int
        Offset of the entry's header in the decompressed stream.
    stop_offset : int
        Offset at or after the end of the run, as far as it is known; it limits remote ranges.
    ends_shard : bool
        True if the run ends where the shard ends: bytes that follow are an error.
    split : ByteSplit or None
        If set, the run consists of all records that begin in this split, from the entry on.
    selected : int64 array of shape (count,), or None
        Ascending numbers of the records in the shard; None if they are consecutive.
    total : int or None
        Number of records of the shard as given by the caller; None if they were counted or the run reaches the end.
    """

    shard: Shard
    first: int
    count: int | None
    entry_record: int
    offset: int
    stop_offset: int
    ends_shard: bool
    split: ByteSplit | None = None
    selected: NDArray[np.int64] | None = None
    total: int | None = None

    def record_number(self, index: int) -> int:
        """Return the number in the shard of a record of the run."""
        return self.first + index if self.selected is None else int(self.selected[index])


def full_run(shard: Shard) -> Run:
    """Return the run of all records of a shard, whose number may be unknown."""
    return Run(shard, first=0, count=None, entry_record=0, offset=0, stop_offset=shard.size, ends_shard=True)


def iterate_payloads(runs: Iterable[Run], *, check_crc: bool = True) -> Generator[tuple[Location, bytes], None, None]:
    """Iterate over the payloads of runs; one payload is in memory at a time.

    Parameters
    ----------
    runs : iterable of Run
        Runs to read, in order.
    check_crc : bool, default True
        Check both CRCs of every record.

    Yields
    ------
    location : Location
        Location of the record.
    payload : bytes
        Payload of the record.

    Raises
    ------
    CorruptRecordError
        If a record is damaged, or a shard has fewer or more records than were counted.
    """
    for run in runs:
        end = None if run.count is None else run.first + run.count
        number = run.entry_record
        # The caller may stop after the first records of a complete shard.
        stop = None if run.count is None else run.stop_offset
        stream = iterate_records(run.shard, check_crc=check_crc, record=run.entry_record, offset=run.offset, stop=stop)
        with closing(stream) as records:
            # Records after the run are read by other tasks, but a shard must end with its last record.
            while number != end or run.ends_shard:
                found = next(records, None)
                if found is None:
                    break
                if number == end:
                    raise _count_error("more bytes follow", run.shard, number)
                if number >= run.first:
                    yield Location(run.shard.path, number, found[0]), found[1]
                number += 1
        if end is not None and number < end:
            raise _count_error(f"{plural(end - number, 'more record')} should follow", run.shard, number)


def _count_error(problem: str, shard: Shard, record: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"{problem} after {plural(record, 'record')}: the file has changed since it was counted; open the "
        f"collection again",
        Location(shard.path, record),
    )
