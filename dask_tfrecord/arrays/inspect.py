"""`infer_schema` and `inspect_records`: contents of a collection, from a sample or from all records on all workers."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from os import PathLike
from typing import Any

import dask

from dask_tfrecord.arrays.counting import Attempts, Failure, raise_first
from dask_tfrecord.arrays.record_partitions import RecordPartition, record_partitions
from dask_tfrecord.inspection.inference import checked_sample, survey_sample
from dask_tfrecord.inspection.report import Report
from dask_tfrecord.inspection.survey import Survey, survey
from dask_tfrecord.records.splits import iterate_payloads
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.listing import find_shards
from dask_tfrecord.storage.shard import Shards

__all__ = ["infer_schema", "inspect_records", "inspect_shards"]

# Surveys that one task merges.
_MERGED = 16


def infer_schema(
    urlpath: str | PathLike[str] | Iterable[str | PathLike[str]],
    *,
    sample: int | None = 256,
    compression: str | None = "infer",
    storage_options: Mapping[str, Any] | None = None,
) -> Schema:
    """Infer the features of Examples, SequenceExamples or ExampleListWithContexts from a sample of the records.

    A feature with the same number of values, at least one, in every sampled record becomes a `FixedLenFeature`. A
    feature that is missing in a record, or has different numbers of values, becomes a `VarLenFeature`. A feature list
    whose steps all have the same number of values becomes a `FixedLenSequenceFeature`, others a `VarLenFeature`. Bytes
    stay bytes: text, images and arrays are not decoded. Defaults are not inferred. A later record that does not match
    the schema raises an error.

    Parameters
    ----------
    urlpath : path, URL, glob, directory, template, or a list of these
        Shards, as for `read_tfrecord`.
    sample : int or None, default 256
        Number of records to read, from the beginnings of up to eight shards that are evenly spread over the
        collection. None reads all records; see `inspect_records`.
    compression : {"infer", None, "gzip", "zlib"}
        Compression of the shards; ``"infer"`` detects it by the first bytes.
    storage_options : mapping, optional
        Options of the fsspec file system.

    Returns
    -------
    Schema
        Features sorted by name. The repr lists in how many records each feature was set; `Schema.sampling` has these
        numbers, and keys that no record set. `Schema.report` has all findings, with suggestions for bytes:
        ``print(schema.report)``.

    Raises
    ------
    FeatureError
        If a record is not an Example, a SequenceExample or an ExampleListWithContext. The error names the detected
        type and a reader for it.
    SchemaError
        If a feature holds values of two kinds, or there are no records. `inspect_records` reports these cases.
    CorruptRecordError
        If a sampled record is damaged; CRCs are always checked.
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
    return inspect_records(urlpath, sample=sample, compression=compression, storage_options=storage_options).schema


def inspect_records(
    urlpath: str | PathLike[str] | Iterable[str | PathLike[str]],
    *,
    sample: int | None = 256,
    compression: str | None = "infer",
    storage_options: Mapping[str, Any] | None = None,
) -> Report:
    """Report the contents of Examples, SequenceExamples or ExampleListWithContexts, including conflicts.

    The report lists for each feature in how many records it is set, the numbers of its values, its kinds with their
    shards, and the detected content of bytes: images, tensors, text, arrays of one size. Content is suggested if all
    values agree, and never assumed.

    With ``sample=None`` shards are read in parallel on the active scheduler, with constant memory. protobuf parses
    records under the GIL, so use ``dask.config.set(scheduler="processes")`` or a cluster instead of threads.

    Parameters
    ----------
    urlpath, sample, compression, storage_options
        As in `infer_schema`.

    Returns
    -------
    Report
        Prints as a table with a spec to paste into code; `to_json` is for programs, and `schema` is the result of
        `infer_schema`.

    Raises
    ------
    FeatureError
        If a record is not an Example, a SequenceExample or an ExampleListWithContext.
    CorruptRecordError
        If a sampled record is damaged.
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
    checked_sample(sample)
    return inspect_shards(find_shards(urlpath, compression=compression, storage_options=storage_options), sample)


def inspect_shards(shards: Shards, sample: int | None) -> Report:
    """Report on listed shards; see `inspect_records`."""
    if sample is not None:
        return Report.from_survey(survey_sample(shards, sample), shards.paths)
    attempts = Attempts()
    found: Sequence[Any] = [
        dask.delayed(attempts.call, pure=False, traverse=False)(number, partial(_survey, part))
        for number, part in enumerate(record_partitions(shards, "auto", True))
    ]
    while len(found) > 1:
        groups = (found[start : start + _MERGED] for start in range(0, len(found), _MERGED))
        found = [dask.delayed(_merged, pure=False)(group) for group in groups]
    (whole,) = dask.compute(*found) if found else (Survey(),)
    raise_first([whole])
    return Report.from_survey(whole, shards.paths)


def _survey(part: RecordPartition) -> Survey:
    with closing(iterate_payloads(part.runs)) as records:
        return survey(records)


def _merged(surveys: Sequence[Survey | Failure | None]) -> Survey | Failure:
    """Merge surveys of consecutive partitions, unless one failed; those after a failure are None."""
    whole = Survey()
    for part in surveys:
        if part is None:
            continue
        if isinstance(part, Failure):
            return part
        # Merging modifies both surveys, and the task may run again with the same objects.
        whole.merge(copy.deepcopy(part))
    return whole
