"""`copy_tfrecord`: copy records to shards of other sizes, compression or features, without decoding values."""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
from dask.delayed import Delayed

from dask_tfrecord.arrays.partitions import RecordPartition, inspect_shards, record_partitions
from dask_tfrecord.errors import Location, SchemaError, UnknownFeatureError, near_misses, plural, redact_url
from dask_tfrecord.inspection.payload_type import parse_record, payload_error
from dask_tfrecord.metadata.labels import SUFFIX, read_labels
from dask_tfrecord.records.framing import write_record
from dask_tfrecord.records.splits import full_run, iterate_payloads
from dask_tfrecord.runtime.cancellation import add_path_to_errors
from dask_tfrecord.storage.listing import find_shards, find_sidecars
from dask_tfrecord.storage.objects import directory_of
from dask_tfrecord.storage.shard import Shards
from dask_tfrecord.storage.streams import ByteSink
from dask_tfrecord.stores.files.publish import Files, FilesOutput, ShardNames, finish_files
from dask_tfrecord.stores.files.tfrecord import check_options, refuse_sources
from dask_tfrecord.stores.output import collect, run_write
from dask_tfrecord.stores.write_progress import ReadVolume, ShardWriteReport, WriteWork

# Records that are inspected for names of features.
_SAMPLE = 256
# Records between two checks for cancellation.
_CHECK_INTERVAL = 256


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
    """Copy records to other shards: resharded, recompressed, or with fewer features.

    Records of any payload type are copied byte for byte. With `columns` they must be Examples or SequenceExamples; the
    values of the remaining features are not decoded. Labels of xarray next to a shard are copied, too. One task per
    new shard, which holds one record at a time.

    Parameters
    ----------
    urlpath : str, os.PathLike or list of these
        Shards to read, as in `read_tfrecord`.
    target : str or os.PathLike
        Shards to write, as in `to_tfrecord`: a template with ``{shard}``, a name for one shard, or a directory.
    columns : sequence of str, optional
        Features and feature lists to keep.
    records_per_shard : int, optional
        Records of a new shard. By default each shard becomes one new shard.
    compression : {None, "gzip", "zlib"}
        Compression of the new shards. The compression of the shards that are read is found from their bytes.
    index : bool, default False
        Write ``FILE.idx`` next to each shard.
    mode : {"w-", "w"}
        ``"w-"`` raises if one of the new shards exists, ``"w"`` replaces existing shards.
    check_crc : bool, default True
        Check both CRCs of every record that is read.
    compute : bool, default True
        Write now. Otherwise return a `Delayed` that writes when it is computed.
    storage_options, target_options : mapping, optional
        Options of fsspec for the URLs of the shards to read and to write.

    Returns
    -------
    None or dask.delayed.Delayed

    Raises
    ------
    ShardNotFoundError
        If no shard is found.
    FileExistsError
        If a shard exists under ``mode="w-"``, or if shards of the same template and another number of shards exist.
    CorruptRecordError
        If a record is damaged.
    UnknownFeatureError
        If the first records of some shards do not have a feature of `columns`.
    FeatureError
        If `columns` is given and a record is neither an Example nor a SequenceExample.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> dtf.copy_tfrecord("train-*.tfrecord", "labels.tfrecord", columns=["label"], compression="gzip", mode="w")
    >>> dtf.read_tfrecord("labels.tfrecord")
    <dask_tfrecord.Dataset: 20 rows in 1 chunk of 20, from ...labels.tfrecord>
      column  dtype  shape  read as
      label   int64  (20,)  FixedLenFeature((), 'int64')
    """
    compression = check_options(compression, index, mode, records_per_shard)
    shards = find_shards(urlpath, storage_options=storage_options)
    kept = None if columns is None else _checked_columns(columns, shards)
    names = ShardNames.from_urlpath(target, target_options)
    partitions = _partitions(shards, names, records_per_shard, check_crc)
    paths = tuple(names.paths(len(partitions)))
    files = Files(uuid.uuid4().hex, directory_of(paths[0]), names, mode, compute, compression, index)
    output = FilesOutput(files, paths)
    output.check_free()
    refuse_sources(names, paths, shards.paths)
    labelled = any(find_sidecars(list(shards), SUFFIX))
    step = partial(_copy, columns=kept, check_crc=check_crc, labelled=labelled)
    # A plain graph: thousands of `Delayed` objects would take minutes to build.
    name, shared, end = (f"tfrecord-{word}-{files.token}" for word in ("copy", "shared", "copied"))
    tasks: dict[Any, Any] = {
        (name, number): (step, shared, path, partition)
        for number, (path, partition) in enumerate(zip(paths, partitions, strict=True))
    }
    last = (collect,) if compute else (finish_files, output)
    written = Delayed(end, {shared: files, **tasks, end: (*last, list(tasks))})
    if not compute:
        return written
    sizes = [sum(run.stop_offset - run.offset for run in partition.runs) for partition in partitions]
    reading = ReadVolume(np.array(sizes, np.float64), 0.0, int(shards.sizes.sum()))
    work = WriteWork(names.display(paths), name, None, None, reading, len(partitions))
    return run_write(output, lambda: (written, work))


def _checked_columns(columns: Sequence[str], shards: Shards) -> frozenset[str]:
    """Check that some records have each of the named features."""
    if isinstance(columns, str) or not columns:
        raise SchemaError(f"columns is a list of one name or more; got {columns!r}")
    report = inspect_shards(shards, _SAMPLE)
    known = [feature.name for feature in report.features]
    for name in columns:
        if name not in known:
            raise UnknownFeatureError(
                f"feature {name!r} was not found in {plural(report.records, 'record')}{near_misses(name, known)}"
            )
    return frozenset(columns)


def _partitions(shards: Shards, names: ShardNames, records: int | None, check_crc: bool) -> list[RecordPartition]:
    """Return the records of each new shard; at least one shard."""
    if records is None and not names.allows_many:
        return [RecordPartition(tuple(full_run(shard) for shard in shards), "")]
    partitions = record_partitions(shards, "shard" if records is None else int(records), check_crc)
    if len(partitions) > 1 and not names.allows_many:
        raise ValueError(
            f"{len(partitions):,} shards are several files: give a template with {{shard:05d}} in place of "
            f"{redact_url(names.template)!r}"
        )
    return partitions or [RecordPartition((), "")]


def _copy(
    files: Files,
    path: str,
    partition: RecordPartition,
    columns: frozenset[str] | None,
    check_crc: bool,
    labelled: bool,
) -> ShardWriteReport:
    """Write one shard."""

    def fill(sink: ByteSink) -> tuple[int, int]:
        count = nbytes = 0
        with closing(iterate_payloads(partition.runs, check_crc=check_crc)) as records:
            for location, payload in records:
                kept = payload if columns is None else select_features(payload, columns, location)
                with add_path_to_errors(path):
                    write_record(sink, kept)
                count += 1
                nbytes += len(kept)
                if count % _CHECK_INTERVAL == 0:
                    files.check_running()
        return count, nbytes

    labels = _labels(partition, columns) if labelled else None
    return replace(files, labels=labels).write(path, fill)


def _labels(partition: RecordPartition, columns: frozenset[str] | None) -> str | None:
    """Return the text of the labels of a new shard: those next to the shard of its first record."""
    labels = read_labels(partition.runs[0].shard) if partition.runs else None
    if labels is None:
        return None
    names = [name for name in labels.schema if columns is None or labels.schema.key_of(name) in columns]
    return labels.of_records(labels.schema.select(names)).to_json() if names else None


def select_features(payload: bytes, keys: Collection[str], location: Location) -> bytes:
    """Keep some features and feature lists of a record.

    Parameters
    ----------
    payload : bytes
        An Example or a SequenceExample.
    keys : collection of str
        Names to keep; a record may lack any of them.
    location : Location
        Location of the record, for errors.

    Returns
    -------
    bytes
        The serialized record, its keys sorted.

    Raises
    ------
    FeatureError
        If the record is neither an Example nor a SequenceExample.
    """
    record = parse_record(payload)
    if record is None:
        raise payload_error(payload, location, "Example")
    # The features of an Example and the context of a SequenceExample are the same field of the message.
    for found in (record.context.feature, record.feature_lists.feature_list):
        for key in [key for key in found if key not in keys]:
            del found[key]
    kept: bytes = record.SerializeToString(deterministic=True)
    return kept
