"""Verification of all records of shards on the active scheduler, and repaired copies of damaged shards."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from dask_tfrecord.arrays.collection import Collection
from dask_tfrecord.arrays.counting import compute_with_progress, group_by_size
from dask_tfrecord.arrays.sources import (
    Source,
)
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.records.damage import DamageReport, ShardReport, check_shard, count_lost_records, repair_shard
from dask_tfrecord.records.index import SUFFIX
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.listing import Sidecar, find_shards, find_sidecars
from dask_tfrecord.storage.shard import Shards, normalize_compression

# Records and shards from which features are inferred.
_SAMPLE = 256
_SHARDS = 8


def verify(
    urlpath: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    compression: str | None = "infer",
    storage_options: Mapping[str, Any] | None = None,
) -> DamageReport:
    """Check all records of a collection: both CRCs, and every byte between records.

    Shards are read completely, in parallel on the active scheduler, with constant memory. A truncated header at the end
    of a file is reported as damage; TensorFlow drops it silently.

    Parameters
    ----------
    urlpath : str, os.PathLike or list of these
        Path, fsspec URL, glob, directory, or template (``name@8``, ``name-?????-of-00008``).
    compression : {"infer", None, "gzip", "zlib"}
        ``"infer"`` detects compression by the first bytes, not by the file name.
    storage_options : mapping, optional
        Options of the fsspec file system.

    Returns
    -------
    DamageReport
        Intact records and lost ranges of bytes of each file, with the reason. The number of lost records is known if
        their headers are intact or an index exists (`build_index`). Damage does not raise.

    Raises
    ------
    ShardNotFoundError
        If no shard is found.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> dtf.verify("train-*.tfrecord")
    2 files, 20 records, no damage
    """
    shards = find_shards(urlpath, compression=compression, storage_options=storage_options)
    return DamageReport(tuple(check_shards(shards)))


@dataclass(frozen=True, slots=True, eq=False)
class IntactRecords:
    """Intact records of shards.

    Attributes
    ----------
    collection : Collection
        Collection of the intact records.
    reports : tuple of ShardReport
        Report on each shard.
    """

    collection: Collection
    reports: tuple[ShardReport, ...]

    @classmethod
    def from_shards(cls, shards: Shards) -> IntactRecords:
        """Check all records of shards."""
        reports = tuple(check_shards(shards))
        shards = shards.resolved([report.compression for report in reports], [False] * len(shards))
        return cls(Collection.from_reports(shards, reports), reports)

    def infer(self) -> Schema:
        """Infer features from the first intact records of some shards."""
        collection = self.collection
        shards = np.flatnonzero(collection.counts)
        chosen = shards[np.unique(np.linspace(0, max(len(shards) - 1, 0), _SHARDS).round().astype(int))[: len(shards)]]
        share = -(-_SAMPLE // max(len(chosen), 1))
        firsts = collection.starts[chosen]
        lasts = np.minimum(firsts + share, collection.starts[chosen + 1])
        spans = zip(firsts.tolist(), lasts.tolist(), strict=True)
        # Imported here: inference loads protobuf.
        from dask_tfrecord.inspection.inference import infer_runs

        return infer_runs(
            chain.from_iterable(collection.runs(start, stop) for start, stop in spans), self.collection.shards
        )


def check_shards(shards: Shards) -> list[ShardReport]:
    """Check all records of listed shards; see `verify`."""
    found = find_sidecars(shards, SUFFIX)
    calls = [partial(_check, shards[part], found[part]) for part in group_by_size(shards.sizes.tolist())]
    return list(chain.from_iterable(compute_with_progress(calls, "Checking records")))


def _check(shards: Shards, sidecars: Sequence[Sidecar | None]) -> list[ShardReport]:
    reports = []
    for shard, sidecar in zip(shards, sidecars, strict=True):
        report = check_shard(shard)
        if report.lost and sidecar is not None:
            report = count_lost_records(report, sidecar)
        reports.append(report)
    return reports


def verify_rows(source: Source | None) -> DamageReport:
    """Check all records of the current files of a source."""
    shards = None if source is None else source.shards
    if shards is None:
        raise ValueError("these rows are not read from TFRecord files: dask_tfrecord.verify takes paths")
    return DamageReport(tuple(check_shards(shards)))


def repair(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    compression: str | None = "same",
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
) -> ShardReport:
    """Copy the intact records of a damaged file to a new file.

    Records are copied byte for byte. The new file replaces an older one atomically. ``TARGET.damage.json`` next to it
    reports the damage.

    Parameters
    ----------
    source : str or os.PathLike
        Damaged file, which is not modified.
    target : str or os.PathLike
        New file; its directory must exist.
    compression : {"same", None, "gzip", "zlib"}
        Compression of the new file; ``"same"`` keeps that of the damaged file.
    storage_options, target_options : mapping, optional
        Options of the fsspec file systems of the two files.

    Returns
    -------
    ShardReport
        Report on the damaged file.

    Raises
    ------
    ShardNotFoundError
        If the file is not found.
    TFRecordError
        If `source` names several files or is the same file as `target`.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> report = dtf.repair("train-00000-of-00002.tfrecord", "repaired.tfrecord")
    >>> report.records, report.lost
    (10, ())
    """
    compression = normalize_compression(compression, "same")
    shards = find_shards(source, storage_options=storage_options)
    if len(shards) > 1:
        raise TFRecordError(f"repair takes one file; {os.fspath(source)} names {len(shards):,}")
    (report,) = check_shards(shards)
    repair_shard(shards[0], report, target, compression=compression, storage_options=target_options)
    return report
