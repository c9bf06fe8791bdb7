"""`infer_schema` and `inspect_records`: what a collection holds, from a sample or from every record on all workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from os import PathLike
from typing import Any

import dask

from dask_tfrecord.arrays.partitions import Partition, partitions
from dask_tfrecord.columns.infer import checked_sample, survey_sample
from dask_tfrecord.columns.payloads import payloads
from dask_tfrecord.columns.report import Report
from dask_tfrecord.columns.survey import Survey, survey
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.files import find_shards
from dask_tfrecord.storage.shards import Shards

__all__ = ["infer_schema", "inspect_records", "inspect_shards"]

# Surveys of parts that one task merges.
_MERGED = 16


def infer_schema(
    urlpath: str | PathLike[str] | Iterable[str | PathLike[str]],
    *,
    sample: int | None = 256,
    compression: str | None = "infer",
    storage_options: Mapping[str, Any] | None = None,
) -> Schema:
    """Infer the features of a collection of Examples or SequenceExamples from a sample of its records.

    A feature that has the same number of values, at least one, in every record looked at becomes a
    `FixedLenFeature`; one that is missing somewhere, or has different numbers of values, a `VarLenFeature`. A feature
    list whose steps all have the same number of values becomes a `FixedLenSequenceFeature`, another one a
    `VarLenFeature`. Bytes stay bytes: nothing is taken for text, an image or an array. No default is invented. A record
    that breaks the schema later is an error that says so.

    Parameters
    ----------
    urlpath : path, URL, glob, directory, template, or a list of these
        Names the shards, as `read_tfrecord` takes it.
    sample : int or None, default 256
        Number of records to look at, from the beginnings of up to eight shards that are evenly spread over the
        collection; None looks at every record of every shard, see `inspect_records`.
    compression : {"infer", None, "gzip", "zlib"}
        Compression of the shards; "infer" looks at their bytes.
    storage_options : mapping, optional
        Passed on to the file system.

    Returns
    -------
    Schema
        The features by name, in the order of the names. Its repr says in how many of the records each was set;
        `Schema.sampling` has that too, and the keys that no record set to anything. `Schema.report` has all that was
        found, with suggestions of what bytes may stand for: ``print(schema.report)``.

    Raises
    ------
    FeatureError
        If a record is neither an Example nor a SequenceExample; the error says what it looks like, and what reads it.
    SchemaError
        If a feature holds values of two kinds, or there is nothing to infer from. `inspect_records` reports all the
        same.
    CorruptRecordError
        If a record that is looked at is damaged; CRCs are always checked.
    ShardNotFoundError
        If `urlpath` names no shard.

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
    return inspect_records(urlpath, sample=sample, compression=compression, storage_options=storage_options).schema


def inspect_records(
    urlpath: str | PathLike[str] | Iterable[str | PathLike[str]],
    *,
    sample: int | None = 256,
    compression: str | None = "infer",
    storage_options: Mapping[str, Any] | None = None,
) -> Report:
    """Report what a collection of Examples or SequenceExamples holds, conflicts included.

    In how many records every feature is set, how many values it has how often, of which kinds they are and in which
    shards, and what bytes look like: an image, a tensor, text, arrays of one size. What something looks like is
    suggested where all values agree, and never assumed.

    With ``sample=None`` shards are read in parallel on the active scheduler, in memory that does not grow with them.
    Records are parsed by protobuf under Python's lock, so threads hardly help:
    ``dask.config.set(scheduler="processes")`` or a cluster does.

    Parameters
    ----------
    urlpath, sample, compression, storage_options
        As `infer_schema` takes them.

    Returns
    -------
    Report
        It prints as a table and a spec that pastes into code; `to_json` is for programs, and `schema` is what
        `infer_schema` returns.

    Raises
    ------
    FeatureError
        If a record is neither an Example nor a SequenceExample.
    CorruptRecordError
        If a record that is looked at is damaged.
    ShardNotFoundError
        If `urlpath` names no shard.

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
    checked_sample(sample)
    return inspect_shards(find_shards(urlpath, compression=compression, storage_options=storage_options), sample)


def inspect_shards(shards: Shards, sample: int | None) -> Report:
    """Report on shards that are already listed; see `inspect_records`."""
    if sample is not None:
        return Report.of(survey_sample(shards, sample))
    found: Sequence[Any] = [dask.delayed(_survey, pure=False)(part) for part in partitions(shards, "auto", True)]
    while len(found) > 1:
        groups = (found[start : start + _MERGED] for start in range(0, len(found), _MERGED))
        found = [dask.delayed(_merged, pure=False)(group) for group in groups]
    (whole,) = dask.compute(*found) if found else (Survey(),)
    return Report.of(whole)


def _survey(part: Partition) -> Survey:
    with closing(payloads(part.runs)) as records:
        return survey(records)


def _merged(surveys: Sequence[Survey]) -> Survey:
    """Merge surveys of parts that follow each other."""
    whole = Survey()
    for part in surveys:
        whole.merge(part)
    return whole
