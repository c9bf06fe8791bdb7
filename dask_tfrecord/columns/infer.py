"""Which features a collection has, found by looking at some of its records.

Inference goes through protobuf's own parser: it looks at few records, and a judgement that a whole read stands on
should not share the columns' decoder.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from dask_tfrecord.columns.recognise import describe_payload, parse_example
from dask_tfrecord.errors import FeatureError, Place, SchemaError
from dask_tfrecord.features import Feature, FixedLenFeature, VarLenFeature
from dask_tfrecord.messages import Example
from dask_tfrecord.records.framing import iterate
from dask_tfrecord.schema import Sampling, Schema
from dask_tfrecord.storage.files import Shard, find_shards

__all__ = ["infer", "infer_schema", "infer_shards"]

_KINDS = {"bytes_list": "bytes", "float_list": "float32", "int64_list": "int64"}
_Records = Generator[tuple[Place, bytes], None, None]
# Shards that a sample is spread over.
_SHARDS = 8


def infer_schema(
    urlpath: str | PathLike[str] | Iterable[str | PathLike[str]],
    *,
    sample: int | None = 256,
    compression: str | None = "infer",
    storage_options: Mapping[str, Any] | None = None,
) -> Schema:
    """Infer the features of a collection of Examples from a sample of its records.

    A feature that has the same number of values, at least one, in every record looked at becomes a
    `FixedLenFeature`; one that is missing somewhere, or has different numbers of values, a `VarLenFeature`. Bytes stay
    bytes: nothing is taken for text, an image or an array. No default is invented. A record that breaks the schema
    later is an error that says so.

    Parameters
    ----------
    urlpath : path, URL, glob, directory, template, or a list of these
        Names the shards, as `read_tfrecord` takes it.
    sample : int or None, default 256
        Number of records to look at, from the beginnings of up to eight shards that are evenly spread over the
        collection; None looks at every record of every shard.
    compression : {"infer", None, "gzip", "zlib"}
        Compression of the shards; "infer" looks at their bytes.
    storage_options : mapping, optional
        Passed on to the file system.

    Returns
    -------
    Schema
        The features by name, in the order of the names. Its repr says in how many of the records each was set;
        `Schema.sampling` has that too, and the keys that no record set to anything.

    Raises
    ------
    FeatureError
        If a record is no Example; the error says what it looks like.
    SchemaError
        If a feature holds values of two kinds, or there is nothing to infer from.
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
    return infer_shards(find_shards(urlpath, compression=compression, storage_options=storage_options), sample)


def infer_shards(shards: Sequence[Shard], sample: int | None = 256) -> Schema:
    """Infer the features of shards that are already listed; see `infer_schema`."""
    if sample is not None and (isinstance(sample, bool) or not isinstance(sample, int) or sample < 1):
        raise SchemaError(f"sample is a number of records, at least 1, or None to look at all of them; got {sample!r}")
    with closing(_payloads(shards) if sample is None else _sample(shards, sample)) as payloads:
        return infer(payloads)


def infer(payloads: Iterable[tuple[Place, bytes]]) -> Schema:
    """Infer features from records.

    Parameters
    ----------
    payloads : iterable of (Place, bytes)
        Where each record is, and what it holds.

    Returns
    -------
    Schema
        With its `Sampling`.

    Raises
    ------
    FeatureError
        If a record is no Example.
    SchemaError
        If a feature holds values of two kinds, or no record sets any.
    """
    seen: dict[str, _Seen] = {}
    unset: set[str] = set()
    files: set[str] = set()
    records = 0
    for place, payload in payloads:
        records += 1
        files.add(place.file)
        for name, feature in _example(place, payload).features.feature.items():
            field = feature.WhichOneof("kind")
            if field is None:
                unset.add(name)
                continue
            count = len(getattr(feature, field).value)
            known = seen.get(name)
            if known is None:
                known = seen[name] = _Seen(_KINDS[field], count, place)
            known.add(name, _KINDS[field], count, place)
    _refuse_nothing(records, seen)
    present = tuple((name, seen[name].present) for name in sorted(seen))
    sampling = Sampling(records, len(files), present, tuple(sorted(unset - seen.keys())))
    return Schema({name: seen[name].feature(records) for name in sorted(seen)}, sampling)


@dataclass(slots=True)
class _Seen:
    """What was seen of one feature."""

    kind: str
    count: int  # values of every record so far, -1 where they differ
    first: Place
    present: int = 0

    def add(self, name: str, kind: str, count: int, place: Place) -> None:
        """Take note of one more record that sets the feature."""
        if kind != self.kind:
            raise SchemaError(
                f"feature {name!r} holds {kind} values here and {self.kind} values in {self.first}, and a column has "
                f"one kind: give features= without it, or with the kind that the records to read have",
                replace(place, feature=name),
            )
        self.present += 1
        if count != self.count:
            self.count = -1

    def feature(self, records: int) -> Feature:
        """Say what it is, given that so many records were looked at."""
        if self.present < records or self.count < 1:
            return VarLenFeature(self.kind)
        return FixedLenFeature(() if self.count == 1 else (self.count,), self.kind)


def _example(place: Place, payload: bytes) -> Example:
    """Parse one record, if it is an Example."""
    example = parse_example(payload)
    if example is not None:
        return example
    raise FeatureError(
        f"expected an Example, found {describe_payload(payload)} of {len(payload)} bytes; read_records(urlpath) yields "
        f"the payloads as they are",
        place,
    )


def _refuse_nothing(records: int, seen: Mapping[str, _Seen]) -> None:
    if not records:
        raise SchemaError("there is no record to infer features from: give features=")
    if not seen:
        raise SchemaError(f"none of the {records} records looked at sets a feature: give features=")


def _sample(shards: Sequence[Shard], sample: int) -> _Records:
    """Yield the first records of some shards, first and last included; of the others only if those are empty."""
    spread = min(len(shards), _SHARDS)
    chosen = [round(turn * (len(shards) - 1) / max(spread - 1, 1)) for turn in range(spread)]
    left = sample
    for turn, index in enumerate(chosen):
        # What a short shard does not have, the next ones give.
        share = math.ceil(left / (spread - turn))
        for payload in itertools.islice(_payloads([shards[index]]), share):
            left -= 1
            yield payload
    if left == sample:
        others = (shards[index] for index in range(len(shards)) if index not in set(chosen))
        yield from itertools.islice(_payloads(others), sample)


def _payloads(shards: Iterable[Shard]) -> _Records:
    """Yield every record and where it is."""
    for shard in shards:
        with closing(iterate(shard)) as records:
            for number, (offset, payload) in enumerate(records):
                yield Place(shard.path, number, offset), payload
