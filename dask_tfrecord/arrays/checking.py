"""Checking every record of shards, on whatever scheduler is active: what holds, what is lost, and repaired copies."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Protocol

import numpy as np

from dask_tfrecord.arrays.counting import compute_jobs, task_parts
from dask_tfrecord.arrays.filled import FilledSource
from dask_tfrecord.arrays.plan import Collection
from dask_tfrecord.arrays.source import MappedSource, RecordSource, Source
from dask_tfrecord.arrays.uncounted import UncountedSource
from dask_tfrecord.columns.infer import infer_runs
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.records.damage import DamageReport, ShardReport, check_shard, with_index
from dask_tfrecord.records.repair import repair_shard
from dask_tfrecord.records.sidecar import SUFFIX, index_numbers
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.files import Shards, find_shards
from dask_tfrecord.storage.sidecars import Sidecar, find_sidecars

__all__ = ["HeldRecords", "check_shards", "repair", "verify", "verify_rows"]

# What features are inferred from: so many records, of so many shards.
_SAMPLE = 256
_SHARDS = 8


def verify(
    urlpath: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    compression: str | None = "infer",
    storage_options: Mapping[str, Any] | None = None,
) -> DamageReport:
    """Check every record of a collection: both CRCs, and every byte between records.

    Shards are read from end to end, in parallel on the active scheduler, in memory that does not grow with them.
    TensorFlow drops half a header at the end of a file, and whatever else is too short for one, in silence; here that
    is damage as well.

    Parameters
    ----------
    urlpath : str, os.PathLike or list of these
        A path, fsspec URL, glob, directory, or template (``name@8``, ``name-?????-of-00008``).
    compression : {"infer", None, "gzip", "zlib"}
        ``"infer"`` looks at the bytes, never at the name.
    storage_options : mapping, optional
        What fsspec takes beside a URL.

    Returns
    -------
    DamageReport
        For each file the records that hold, and the ranges of bytes that are lost, with the reason. How many records
        those held is known where their headers hold, or an index tells (`build_index`). Damage raises nothing.

    Raises
    ------
    ShardNotFoundError
        If nothing is there.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> dtf.verify("train-*.tfrecord")
    2 files, 20 records, no damage
    """
    shards = find_shards(urlpath, compression=compression, storage_options=storage_options)
    return DamageReport(tuple(check_shards(shards)))


@dataclass(frozen=True, slots=True, eq=False)
class HeldRecords:
    """The records of shards that hold.

    Attributes
    ----------
    collection : Collection
        Where they are.
    reports : tuple of ShardReport
        What was found in each shard.
    """

    collection: Collection
    reports: tuple[ShardReport, ...]

    @classmethod
    def find(cls, shards: Shards) -> HeldRecords:
        """Check every record of shards."""
        reports = tuple(check_shards(shards))
        shards = shards.looked_at([report.compression for report in reports], [False] * len(shards))
        return cls(Collection.checked(shards, reports), reports)

    def infer(self) -> Schema:
        """Infer features from the first records of some shards."""
        collection = self.collection
        shards = np.flatnonzero(collection.counts)
        chosen = shards[np.unique(np.linspace(0, max(len(shards) - 1, 0), _SHARDS).round().astype(int))[: len(shards)]]
        share = -(-_SAMPLE // max(len(chosen), 1))
        firsts = collection.starts[chosen]
        lasts = np.minimum(firsts + share, collection.starts[chosen + 1])
        spans = zip(firsts.tolist(), lasts.tolist(), strict=True)
        return infer_runs(chain.from_iterable(collection.runs(start, stop) for start, stop in spans))


def check_shards(shards: Shards) -> list[ShardReport]:
    """Check every record of shards that are already listed; see `verify`."""
    found = find_sidecars(shards, SUFFIX)
    jobs = [partial(_check, shards[part], found[part]) for part in task_parts(shards.sizes.tolist())]
    return list(chain.from_iterable(compute_jobs(jobs, "Checking records")))


def _check(shards: Shards, sidecars: Sequence[Sidecar | None]) -> list[ShardReport]:
    reports = []
    for shard, sidecar in zip(shards, sidecars, strict=True):
        report = check_shard(shard)
        if report.lost and sidecar is not None:
            report = with_index(report, index_numbers(sidecar.file))
        reports.append(report)
    return reports


class _Rows(Protocol):
    """A `Dataset`, as far as it matters here."""

    @property
    def source(self) -> Source | None: ...


def verify_rows(dataset: _Rows) -> DamageReport:
    """Check every record of the files that the rows are read from, as they are now; see `dask_tfrecord.verify`."""
    return DamageReport(tuple(check_shards(_shards_of(dataset.source))))


def _shards_of(source: Source | None) -> Shards:
    if isinstance(source, MappedSource | FilledSource):
        return _shards_of(source.source)
    if isinstance(source, RecordSource):
        return source.collection.shards
    if isinstance(source, UncountedSource):
        return source.chunks.shards
    raise ValueError("these rows are not read from TFRecord files: dask_tfrecord.verify takes paths")


def repair(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    compression: str | None = "same",
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
) -> ShardReport:
    """Write the records of a damaged file that hold to a new one.

    They are copied byte for byte. The new file appears whole, in the place of an older one, and beside it
    ``TARGET.damage.json``, which says what was lost.

    Parameters
    ----------
    source : str or os.PathLike
        The damaged file, which stays as it is.
    target : str or os.PathLike
        The new file; its directory must exist.
    compression : {"same", None, "gzip", "zlib"}
        Of the new file; ``"same"`` is that of the old one.
    storage_options, target_options : mapping, optional
        What fsspec takes beside the two URLs.

    Returns
    -------
    ShardReport
        What was found in the old file.

    Raises
    ------
    ShardNotFoundError
        If there is no such file.
    TFRecordError
        If `source` names several files, or is the file that would be written.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> report = dtf.repair("train-00000-of-00002.tfrecord", "repaired.tfrecord")
    >>> report.records, report.lost
    (10, ())
    """
    if compression not in ("same", None, "gzip", "zlib"):
        raise ValueError(f"compression is one of 'same', None, 'gzip', 'zlib'; got {compression!r}")
    shards = find_shards(source, storage_options=storage_options)
    if len(shards) > 1:
        raise TFRecordError(f"repair takes one file and writes one; {os.fspath(source)} names {len(shards)}")
    (report,) = check_shards(shards)
    repair_shard(shards[0], report, target, compression=compression, storage_options=target_options)
    return report
