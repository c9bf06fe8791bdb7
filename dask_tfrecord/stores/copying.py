"""Shards copied record by record, into shards of other sizes, compression or features; values are never decoded."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import dask
import numpy as np
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from dask_tfrecord.arrays.inspect import inspect_shards
from dask_tfrecord.arrays.partitions import Partition, partitions
from dask_tfrecord.arrays.progress import tell
from dask_tfrecord.columns.payloads import payloads, whole
from dask_tfrecord.columns.selecting import selected
from dask_tfrecord.errors import SchemaError, UnknownFeatureError
from dask_tfrecord.records.writer import RecordWriter
from dask_tfrecord.schema import near_misses
from dask_tfrecord.storage.files import Shards, find_shards
from dask_tfrecord.stores.failure import called_off_on_failure, named
from dask_tfrecord.stores.progress import Reading, Work, shown
from dask_tfrecord.stores.publishing import CalledOff, Publisher
from dask_tfrecord.stores.shard_names import ShardNames
from dask_tfrecord.stores.tfrecord import begin, check_options, refuse_sources
from dask_tfrecord.stores.write_report import WriteReport, peak_memory

__all__ = ["copy_tfrecord"]

# Records that are looked at for the names of features.
_SAMPLE = 256
# Records after which a task looks whether it is still wanted.
_BETWEEN_LOOKS = 256


@dataclass(frozen=True, slots=True)
class _Plan:
    """What all tasks share.

    Attributes
    ----------
    columns : frozenset of str or None
        Features to keep; None for records as they are.
    check_crc : bool
        Whether the CRCs of what is read have to hold.
    publisher : Publisher
        Lets the new shards appear.
    """

    columns: frozenset[str] | None
    check_crc: bool
    publisher: Publisher


def copy_tfrecord(
    urlpath: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    records_per_shard: int | None = None,
    compression: str | None = None,
    index: bool = False,
    mode: Literal["w", "w-"] = "w-",
    check_crc: bool = True,
    compute: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
) -> Delayed | None:
    """Copy records to other shards: resharded, compressed anew, or with fewer features.

    Records of any kind are copied as they are, byte for byte. With `columns` they have to be Examples or
    SequenceExamples, and what stays of them is not decoded. One task per new shard, which holds one record at a time.

    Parameters
    ----------
    urlpath : str, os.PathLike or list of these
        As `read_tfrecord` takes it.
    target : str or os.PathLike
        As `to_tfrecord` takes it: a template with ``{shard}``, a name, which is one shard, or a directory.
    columns : sequence of str, optional
        Features, and feature lists, to keep.
    records_per_shard : int, optional
        By default a new shard for each old one.
    compression : {None, "gzip", "zlib"}
        Of the new shards; that of the old ones is found from their bytes.
    index : bool, default False
        Write ``FILE.idx`` beside each shard.
    mode : {"w-", "w"}
        ``"w-"`` fails if one of the new shards exists, ``"w"`` replaces them.
    check_crc : bool, default True
        Check both CRCs of every record that is read.
    compute : bool, default True
        Write now; otherwise a `Delayed` that does is returned.
    storage_options, target_options : mapping, optional
        What fsspec takes beside the URLs of the old and of the new shards.

    Returns
    -------
    None or dask.delayed.Delayed

    Raises
    ------
    ShardNotFoundError
        If nothing is there to be copied.
    FileExistsError
        If a shard exists under ``mode="w-"``, or there are shards of the same template and another number of shards.
    CorruptRecordError
        If a record is damaged.
    UnknownFeatureError
        If none of the first records of some shards has a feature that is to be kept.
    FeatureError
        If features are to be picked of a record that is no Example.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> dtf.copy_tfrecord("train-*.tfrecord", "labels.tfrecord", columns=["label"], compression="gzip", mode="w")
    >>> dtf.read_tfrecord("labels.tfrecord")
    <dask_tfrecord.Dataset: 20 records in 1 chunk of 20, from ...labels.tfrecord>
      column  dtype  shape  read as
      label   int64  (20,)  FixedLenFeature((), 'int64')
    """
    check_options(compression, index, mode, records_per_shard)
    shards = find_shards(urlpath, storage_options=storage_options)
    kept = None if columns is None else _kept(columns, shards)
    names = ShardNames.of(target, target_options)
    parts = _parts(shards, names, records_per_shard, check_crc)
    paths = names.paths(len(parts))
    names.check_free(paths, mode)
    refuse_sources(names, paths, shards.paths)
    plan = _Plan(kept, check_crc, Publisher(uuid.uuid4().hex, compression, index, names.storage_options))
    written = _tasks(plan, names, paths, parts, mode)
    if not compute:
        return written
    missing = [path for path in names.directories(paths) if not path.exists()]
    reading = Reading(np.array([_nbytes(part) for part in parts], np.float64), 0.0, int(shards.sizes.sum()))
    work = Work(os.fspath(target), _task_name(plan), None, None, reading, len(parts))
    with called_off_on_failure(plan.publisher.identity, lambda: names.remove(paths, missing)), shown(work):
        dask.compute(written)
    return None


def _kept(columns: Sequence[str], shards: Shards) -> frozenset[str]:
    """Check names of features against those that some records have."""
    if isinstance(columns, str) or not columns:
        raise SchemaError(f"columns is a list of one name or more; got {columns!r}")
    report = inspect_shards(shards, _SAMPLE)
    known = [feature.name for feature in report.features]
    for name in columns:
        if name not in known:
            raise UnknownFeatureError(
                f"no feature {name!r} in the {report.records} records looked at{near_misses(name, known)}"
            )
    return frozenset(columns)


def _parts(shards: Shards, names: ShardNames, records: int | None, check_crc: bool) -> list[Partition]:
    """Find the records of each new shard."""
    if records is None and not names.many:
        return [Partition(tuple(whole(shard) for shard in shards), "")]
    parts = partitions(shards, "shard" if records is None else int(records), check_crc) or [Partition((), "")]
    if len(parts) > 1 and not names.many:
        raise ValueError(
            f"{len(parts):,} shards are several files: give a template with {{shard:05d}} in place of "
            f"{names.template!r}"
        )
    return parts


def _nbytes(part: Partition) -> int:
    """Find how many bytes of shards are read for a new one."""
    return sum(run.past - run.offset for run in part.runs)


def _task_name(plan: _Plan) -> str:
    return f"tfrecord-copy-{plan.publisher.identity}"


def _tasks(plan: _Plan, names: ShardNames, paths: Sequence[str], parts: Sequence[Partition], mode: str) -> Delayed:
    # One layer, made by hand: a `Delayed` for each of many thousand tasks would take minutes.
    token = plan.publisher.identity
    shared = dask.delayed(plan, name=f"tfrecord-plan-{token}", traverse=False)
    begun = dask.delayed(begin, pure=False)(names, paths, mode, shared, dask_key_name=f"tfrecord-begin-{token}")
    name, end = _task_name(plan), f"tfrecord-copied-{token}"
    tasks: dict[Any, Any] = {
        (name, number): (_copy, begun.key, path, part)
        for number, (path, part) in enumerate(zip(paths, parts, strict=True))
    }
    graph = HighLevelGraph.from_collections(end, tasks | {end: (_done, list(tasks))}, [begun])
    return Delayed(end, graph)


def _copy(plan: _Plan, path: str, part: Partition) -> WriteReport:
    """Write one shard."""
    count = nbytes = 0
    try:
        with (
            plan.publisher.shard(path, RecordWriter) as writer,
            closing(payloads(part.runs, check_crc=plan.check_crc)) as records,
        ):
            for place, payload in records:
                kept = payload if plan.columns is None else selected(payload, plan.columns, place)
                with named(path):
                    writer.write(kept)
                count += 1
                nbytes += len(kept)
                if count % _BETWEEN_LOOKS == 0:
                    plan.publisher.go_on()
    except CalledOff:
        return WriteReport(0, 0)
    report = WriteReport(count, nbytes, plan.publisher.stored(path), peak_memory())
    tell(report)
    return report


def _done(results: Sequence[WriteReport]) -> None:
    """Depend on all shards."""
