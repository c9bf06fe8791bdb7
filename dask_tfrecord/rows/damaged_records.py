"""Damaged records: what `verify`, `repair` and `errors=` do about them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from dask_tfrecord.advice import explain_arguments
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.records.index import SUFFIX, RecordRange
from dask_tfrecord.records.shard_check import DamageReport, ShardReport, check_shard, count_lost_records, repair_shard
from dask_tfrecord.rows.calls import compute_with_progress
from dask_tfrecord.rows.chunk_borders import group_by_size
from dask_tfrecord.rows.collection import Collection
from dask_tfrecord.shards.compressions import normalize_compression
from dask_tfrecord.shards.listing import Sidecar, find_shards, find_sidecars
from dask_tfrecord.shards.shard import Shards

_log = logging.getLogger(__name__)


@explain_arguments("dtf.verify('train-*.tfrecord')")
def verify(
    urlpath: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    compression: str | None = "infer",
    storage_options: Mapping[str, Any] | None = None,
) -> DamageReport:
    """Check all records: both CRCs, and every byte between records.

    Shards are read completely, in parallel on the active scheduler, in constant memory. A truncated header at the end
    of a file is reported as damage; TensorFlow ignores it silently.

    Parameters
    ----------
    urlpath : str, os.PathLike or list of these
        A path, fsspec URL, glob, directory or template (``name@8``, ``name-?????-of-00008``).
    compression : {"infer", None, "gzip", "zlib", "zstd"}
        ``"infer"`` detects the compression from the first bytes, not from the file name.
    storage_options : mapping, optional
        Options for the fsspec file system.

    Returns
    -------
    DamageReport
        For each file, the number of intact records and the ranges of bytes that are lost, with the reason. The number
        of lost records is known if their headers are intact or an index exists (`build_index`). Damage does not raise
        an error.

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


def intact_records(shards: Shards) -> tuple[Collection, tuple[ShardReport, ...]]:
    """Check all records of shards; return the intact ones, and a report on each shard."""
    reports = tuple(check_shards(shards))
    shards = shards.resolved([report.compression for report in reports], [False] * len(shards))
    return Collection.from_reports(shards, reports), reports


def warn_of_damage(shards: Shards, reports: Sequence[ShardReport], errors: str) -> None:
    """Log what is lost, if anything is."""
    if any(report.lost for report in reports):
        total = DamageReport(tuple(reports)).total
        _log.warning("%s: %s; errors=%r reads the other records", shards.summary, total, errors)


def checked_errors(errors: Any, *ways: str) -> None:
    """Raise ValueError unless `errors=` is one of these ways to handle damaged records."""
    if errors not in ways:
        *others, last = map(repr, ways)
        raise ValueError(f"errors must be {', '.join(others)} or {last}; got {errors!r}")


def runs_left(shards: Shards, errors: str) -> Callable[[int], Iterator[RecordRange]] | None:
    """Return a function that checks a shard, and returns the runs of its intact records; None if errors are raised."""
    if errors == "raise":
        return None

    def runs_of(number: int) -> Iterator[RecordRange]:
        return runs_of_shard(intact_records(shards[number : number + 1])[0], 0)

    return runs_of


def runs_of_shard(collection: Collection, number: int) -> Iterator[RecordRange]:
    """Return the runs of the records of a shard."""
    return collection.runs(*collection.starts[number : number + 2].tolist())


def check_shards(shards: Shards) -> list[ShardReport]:
    """Check all records of listed shards; see `verify`."""
    found = find_sidecars(shards, SUFFIX)
    calls = [partial(_check_shard, shards[part], found[part]) for part in group_by_size(shards.sizes.tolist())]
    return list(chain.from_iterable(compute_with_progress(calls, "Checking records")))


def _check_shard(shards: Shards, sidecars: Sequence[Sidecar | None]) -> list[ShardReport]:
    """Check shards one by one; an index has the number of lost records."""
    reports = []
    for shard, sidecar in zip(shards, sidecars, strict=True):
        report = check_shard(shard)
        if report.lost and sidecar is not None:
            report = count_lost_records(report, sidecar)
        reports.append(report)
    return reports


@explain_arguments("dtf.repair('damaged.tfrecord', 'repaired.tfrecord')")
def repair(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    compression: str | None = "same",
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
) -> ShardReport:
    """Save the intact records of a damaged file to a new file.

    Records are copied byte for byte. The new file replaces an older one atomically. ``TARGET.damage.json``, next to it,
    reports what was lost.

    Parameters
    ----------
    source : str or os.PathLike
        The damaged file, which is not modified.
    target : str or os.PathLike
        The new file; its directory must exist.
    compression : {"same", None, "gzip", "zlib", "zstd"}
        Compression of the new file; ``"same"`` keeps the compression of the damaged file.
    storage_options, target_options : mapping, optional
        Options for the fsspec file systems of the two files.

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
