"""Partitions with records of any type, for bags and surveys.

Sizes are stored bytes, because the size of decoded payloads is unknown. Records are counted only if necessary.
"""

from __future__ import annotations

import copy
import math
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any

import dask
import dask.local
import numpy as np
from dask.base import tokenize

from dask_tfrecord.advice import explain_arguments
from dask_tfrecord.errors import FeatureError, SchemaError, TFRecordError, plural
from dask_tfrecord.features.inference.payload_type import detect_payload_type
from dask_tfrecord.features.inference.report import Records, Report, RunsOf, survey_sample
from dask_tfrecord.features.inference.survey import survey
from dask_tfrecord.features.message_types import MessageType
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.options import SAMPLE
from dask_tfrecord.records.index import RecordRange, ShardIndex, full_run, iterate_payloads, scan_shard
from dask_tfrecord.records.window import detected_compression
from dask_tfrecord.rows.calls import Attempts, compute_with_progress, raise_first
from dask_tfrecord.rows.chunk_borders import MOST_CHUNKS, borders_by_bytes, borders_by_rows, checked_chunks, chunk_size
from dask_tfrecord.rows.collection import Collection
from dask_tfrecord.rows.damaged_records import checked_errors, runs_left
from dask_tfrecord.shards.listing import find_shards
from dask_tfrecord.shards.shard import Shard, Shards

if TYPE_CHECKING:
    import dask.bag


Runs = tuple[RecordRange, ...]


@dataclass(frozen=True, slots=True)
class RecordPartition:
    """Records that one task reads."""

    runs: Runs
    token: str  # derived from all shards: dask would need long to tokenise every run

    def __dask_tokenize__(self) -> str:
        return self.token


def record_partitions(shards: Shards, chunks: str | int, check_crc: bool) -> list[RecordPartition]:
    """Split shards into partitions, in order, by `chunks` of `read_tfrecord`, with sizes in stored bytes.

    An int or a size counts the records of all shards; ``"auto"`` counts only large uncompressed shards, which it
    splits.
    """
    wanted = checked_chunks(chunks, counted=True)
    size = chunk_size()
    partitions = _divide_shards(shards, wanted, size, check_crc)
    token = tokenize(shards, wanted, size, len(partitions))
    return [RecordPartition(runs, f"{token}-{number}") for number, runs in enumerate(partitions)]


def _divide_shards(shards: Shards, wanted: str | int | float, size: float, check_crc: bool) -> list[Runs]:
    """Divide shards into partitions: one per shard, or by rows, or by stored bytes."""
    if wanted == "shard":
        return [(full_run(shard),) for shard in shards]
    if wanted == "auto":
        parts = list(_split_large(shards, size, check_crc))
        # Neighbours are joined if there are more than `MOST_CHUNKS`.
        step = max(1, math.ceil(len(parts) / MOST_CHUNKS))
        return [tuple(chain.from_iterable(parts[start : start + step])) for start in range(0, len(parts), step)]
    from dask_tfrecord.rows.read import count_records

    collection = count_records(shards, "auto", check_crc)
    if isinstance(wanted, int):
        borders = borders_by_rows(collection.nrows, wanted)
    else:
        borders = _even_borders(collection, float(wanted), coalesce=True)
    return [tuple(collection.runs(start, stop)) for start, stop in pairwise(borders.tolist())]


def _split_large(shards: Shards, size: float, check_crc: bool) -> Iterator[Runs]:
    """Yield partitions of shards; split uncompressed shards larger than `size`."""
    large = np.flatnonzero(shards.sizes > size).tolist()
    calls = [partial(_scan_if_plain, shards[number], check_crc) for number in large]
    indexes = dict(zip(large, compute_with_progress(calls, "Scanning shards"), strict=True))
    for number, shard in enumerate(shards):
        index = indexes.get(number)
        if index is None:
            yield (full_run(shard),)
            continue
        collection = Collection.from_indexes(shards[number : number + 1], [index])
        for start, stop in pairwise(_even_borders(collection, size, coalesce=False).tolist()):
            yield tuple(collection.runs(start, stop))


def _scan_if_plain(shard: Shard, check_crc: bool) -> ShardIndex | None:
    """Scan a shard; return None if it is compressed, because it can only be read from its start."""
    return None if detected_compression(shard) is not None else scan_shard(shard, check_crc=check_crc)


def _even_borders(collection: Collection, size: float, *, coalesce: bool) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Choose borders between rows that divide the stored bytes evenly."""
    stored = collection.nbytes.astype(np.float64)
    # Each part of a shard without access points would decompress the shard from its start.
    unsplittable = (collection.nbytes != collection.shards.sizes) & (np.diff(collection.entry_splits) == 1)
    stored[unsplittable] = np.minimum(stored, size)[unsplittable]
    return borders_by_bytes(collection, stored / np.maximum(collection.counts, 1), size, coalesce=coalesce)


@explain_arguments("dtf.read_bag('train-*.tfrecord')")
def read_bag(
    urlpath: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    decode: Callable[[bytes], Any] | None = None,
    *,
    chunks: str | int = "auto",
    compression: str | None = "infer",
    check_crc: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> dask.bag.Bag:
    """Open records with any payload as a dask bag.

    Use it for payloads other than Examples: JSON, protobuf messages, tf.Events or any bytes. For arrays,
    `read_tfrecord` is faster.

    Parameters
    ----------
    urlpath : str, os.PathLike or list of these
        Shards, as for `read_tfrecord`.
    decode : callable, optional
        Function that takes a payload (`bytes`) and returns a value, called on the workers. By default, the payload is
        the value. Values are pickled between processes; messages from `dask_tfrecord.messages` can be pickled, but
        messages of classes that are created at run time elsewhere can't.
    chunks : "auto", "shard", int or str, default "auto"
        Records per partition. ``"auto"`` makes one partition per shard, but splits uncompressed shards larger than 64
        MiB (or dask's ``array.chunk-size``, if you changed it), and joins neighbours past 20,000 partitions.
        ``"shard"`` makes exactly one partition per shard. An int is the number of records, across shards. A size such
        as ``"64 MiB"`` splits and joins shards to that many stored bytes, but never splits compressed shards. With an
        int or a size, all records are counted.
    compression : {"infer", None, "gzip", "zlib", "zstd"}
        ``"infer"`` detects the compression from the first bytes, not from the file name.
    check_crc : bool, default True
        Check both CRCs of every record that is read.
    storage_options : mapping, optional
        Options for the fsspec file system.

    Returns
    -------
    dask.bag.Bag
        Values in the order of the records. A partition is read record by record, so reductions and filters keep one
        payload in memory at a time.

    Raises
    ------
    ShardNotFoundError
        If no shard is found. This is also a `FileNotFoundError`.
    CorruptRecordError
        If a record is damaged: when it is read, or now if records must be counted.
    FeatureError
        While computing, if `decode` fails. The error names the record; its cause is the exception that `decode` raised,
        except between processes.
    ValueError
        If an argument has an invalid value.

    Examples
    --------
    >>> bag = dtf.read_bag("train-*.tfrecord", decode=len)
    >>> bag.npartitions
    2
    >>> bag.take(3)
    (266, 269, 272)
    """
    # `inspect_records` needs no bags.
    from dask.bag import from_sequence

    if decode is not None and not callable(decode):
        raise ValueError(f"decode must be a function of a payload, or None; got {decode!r:.100}")
    shards = find_shards(urlpath, compression=compression, storage_options=storage_options)
    parts = record_partitions(shards, chunks, check_crc)
    # dask materialises the values of a partition only when they leave a task.
    bag = from_sequence(parts, partition_size=1)
    values: dask.bag.Bag = bag.map(_read_payloads, decode=decode, check_crc=check_crc).flatten()
    return values


def _read_payloads(part: RecordPartition, decode: Callable[[bytes], Any] | None, check_crc: bool) -> Iterator[Any]:
    """Yield the values of a partition."""
    with closing(iterate_payloads(part.runs, check_crc=check_crc)) as records:
        for location, payload in records:
            if decode is None:
                yield payload
                continue
            try:
                value = decode(payload)
            except Exception as error:
                # The cause is lost between processes, so the message includes its text.
                name = getattr(decode, "__qualname__", None) or repr(decode)
                raise FeatureError(
                    f"decode ({name}) raised {error!r:.300} on a payload of {plural(len(payload), 'byte')}, which "
                    f"looks like {detect_payload_type(payload)}",
                    location,
                ) from error
            yield value


# Surveys that one task merges.
_MERGED = 16


@explain_arguments("dtf.infer_schema('train-*.tfrecord')")
def infer_schema(
    urlpath: str | PathLike[str] | Iterable[str | PathLike[str]],
    *,
    sample: int | None = SAMPLE,
    compression: str | None = "infer",
    errors: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> Schema:
    """Infer the features of Examples, SequenceExamples or ExampleListWithContexts from a sample of the records.

    A feature that has the same number of values, at least one, in every sampled record becomes a `FixedLenFeature`. A
    feature that is missing in some record, or has different numbers of values, becomes a `VarLenFeature`. A feature
    list whose steps all have the same number of values becomes a `FixedLenSequenceFeature`, otherwise a
    `VarLenFeature`. Bytes stay bytes: text, images and arrays are not decoded. Default values are not inferred. If a
    record that was not sampled does not match the schema, reading it raises an error.

    Parameters
    ----------
    urlpath : path, URL, glob, directory, template, or a list of these
        Shards, as for `read_tfrecord`.
    sample : int or None, default 256
        Number of records to read, from the start of up to eight shards that are spread evenly over the collection. None
        reads all records; see `inspect_records`.
    compression : {"infer", None, "gzip", "zlib", "zstd"}
        ``"infer"`` detects the compression from the first bytes, not from the file name.
    errors : {"raise", "skip"}
        ``"raise"`` stops with an error at a damaged record. ``"skip"`` leaves damaged records out, and checks all
        records of the shards that are read.
    storage_options : mapping, optional
        Options for the fsspec file system.

    Returns
    -------
    Schema
        Features, sorted by name. The repr lists how many records have each feature; `Schema.sampling` has these
        numbers, and the keys that no record set. For all findings, with suggestions for bytes, use
        ``print(schema.report)``.

    Raises
    ------
    FeatureError
        If a record is not an Example, a SequenceExample or an ExampleListWithContext. The error names what it seems to
        be, and how to read it.
    SchemaError
        If a feature has values of two kinds, or the shards are empty. `inspect_records` reports such cases instead.
    CorruptRecordError
        If a sampled record is damaged, and ``errors="raise"``; CRCs are always checked.
    ShardNotFoundError
        If no shard is found.

    Examples
    --------
    >>> dtf.infer_schema("train-*.tfrecord")
    Schema of 4 features, inferred from 20 records of 2 shards
    feature  class            dtype  shape  present
    image    FixedLenFeature  bytes  ()     20 of 20
    label    FixedLenFeature  int64  ()     20 of 20
    text     FixedLenFeature  bytes  ()     20 of 20
    tokens   VarLenFeature    int64  (-1,)  20 of 20
    """
    return inspect_records(
        urlpath, sample=sample, compression=compression, errors=errors, storage_options=storage_options
    ).schema


@explain_arguments("dtf.inspect_records('train-*.tfrecord')")
def inspect_records(
    urlpath: str | PathLike[str] | Iterable[str | PathLike[str]],
    *,
    sample: int | None = SAMPLE,
    message: Any = None,
    compression: str | None = "infer",
    errors: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> Report:
    """Report what Examples, SequenceExamples or ExampleListWithContexts contain, including conflicts.

    For other protobuf messages, the report lists the fields of the type `message`: the dtype of each column, how many
    records set the field, and how many values it has per record. It counts unknown fields, and records that can't be
    read as this message. Without `message`, it lists field numbers and the types that fit.

    For Examples, the report lists how many records set each feature, how many values it has per record, which kinds of
    values it has and in which shards, and what bytes seem to contain: images, tensors, text, arrays with one size.
    Contents are suggested only if all values agree, and never assumed.

    With ``sample=None``, shards are read in parallel on the active scheduler, in constant memory. protobuf holds the
    GIL while it parses, so use ``dask.config.set(scheduler="processes")`` or a cluster instead of threads.

    Parameters
    ----------
    urlpath, sample, compression, errors, storage_options
        As in `infer_schema`.
    message : message class, Descriptor or str, optional
        Type of the records, as for `read_tfrecord`, if they are protobuf messages other than Examples.

    Returns
    -------
    Report
        It prints as a table, with code to paste; `to_json` is for programs, and `schema` is what `infer_schema`
        returns.

    Raises
    ------
    FeatureError
        If a record is not a protobuf message, or records have several message types. With `message`, the report lists
        these errors instead.
    SchemaError
        If the message type can't be found.
    CorruptRecordError
        If a sampled record is damaged, and ``errors="raise"``.
    ShardNotFoundError
        If no shard is found.

    Examples
    --------
    >>> dtf.inspect_records("train-*.tfrecord", sample=None)
    Report on 20 Examples of 2 shards
    feature  kind   present   values  looks like
    image    bytes  20 of 20  1       192 bytes each
    label    int64  20 of 20  1
    text     bytes  20 of 20  1       text
    tokens   int64  20 of 20  0 to 9
    """
    if sample is not None and (isinstance(sample, bool) or not isinstance(sample, int) or sample < 1):
        raise SchemaError(f"sample must be a number of records, at least 1, or None to read all; got {sample!r}")
    checked_errors(errors, "raise", "skip")
    found = None if message is None else MessageType.of(message)
    shards = find_shards(urlpath, compression=compression, storage_options=storage_options)
    return inspect_shards(shards, sample, found, runs_left(shards, errors))


def inspect_shards(
    shards: Shards, sample: int | None, message: MessageType | None = None, runs_of: RunsOf | None = None
) -> Report:
    """Report on listed shards, or on the runs of each of them; see `inspect_records`."""
    if message is None:
        return Report.from_survey(_survey_shards(shards, sample, survey, runs_of), shards.paths)
    from dask_tfrecord.columns.message_survey import MessageSurvey, survey_messages

    take = partial(survey_messages, message=message)
    return MessageSurvey.report(_survey_shards(shards, sample, take, runs_of), shards.paths)


def _survey_shards(shards: Shards, sample: int | None, take: Callable[[Records], Any], runs_of: RunsOf | None) -> Any:
    """Take a survey of the first records of some shards, or of all records in parallel, merged in groups."""
    if sample is not None:
        return survey_sample(shards, sample, take, runs_of)
    if runs_of is None:
        partitions = record_partitions(shards, "auto", check_crc=True)
    else:
        token = uuid.uuid4().hex
        partitions = [RecordPartition(tuple(runs_of(number)), f"{token}-{number}") for number in range(len(shards))]
    attempts = Attempts()
    surveys: Sequence[Any] = [
        dask.delayed(attempts.call, pure=False, traverse=False)(number, partial(_survey, part, take))
        for number, part in enumerate(partitions)
    ]
    while len(surveys) > 1:
        groups = (surveys[start : start + _MERGED] for start in range(0, len(surveys), _MERGED))
        surveys = [dask.delayed(_merged_surveys, pure=False)(group) for group in groups]
    (whole,) = dask.compute(*surveys) if surveys else (take([]),)
    raise_first([whole])
    return whole


def _survey(part: RecordPartition, take: Callable[[Records], Any]) -> Any:
    with closing(iterate_payloads(part.runs)) as records:
        return take(records)


def _merged_surveys(surveys: Sequence[Any]) -> Any:
    """Merge surveys of consecutive partitions, or return the first error, which None may follow."""
    whole = None
    for part in surveys:
        if part is None:
            continue
        if isinstance(part, TFRecordError):
            return part
        # Merging modifies both surveys, and the task may run again with the same objects.
        copied = copy.deepcopy(part)
        if whole is None:
            whole = copied
        else:
            whole.merge(copied)
    return whole
