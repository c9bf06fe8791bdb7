"""Which features a collection has, found by looking at some of its records, or at all.

`survey.py` counts what records hold, `report.py` says what that makes of them; here is which records are looked at.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing

from dask_tfrecord.columns.decode import Run
from dask_tfrecord.columns.payloads import payloads, whole
from dask_tfrecord.columns.recognise import parse_record, refusal
from dask_tfrecord.columns.report import Report
from dask_tfrecord.columns.survey import Survey, survey
from dask_tfrecord.errors import Place, SchemaError
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.shards import Shard

__all__ = ["checked_sample", "infer", "infer_examples", "infer_runs", "survey_sample"]

_Records = Generator[tuple[Place, bytes], None, None]
# Shards that a sample is spread over.
_SHARDS = 8


def infer(records: Iterable[tuple[Place, bytes]]) -> Schema:
    """Infer features from records.

    Parameters
    ----------
    records : iterable of (Place, bytes)
        Where each record is, and what it holds.

    Returns
    -------
    Schema
        With its `Sampling` and report.

    Raises
    ------
    FeatureError
        If a record is neither an Example nor a SequenceExample.
    SchemaError
        If a feature holds values of two kinds, or no record sets any.
    """
    return Report.of(survey(records)).schema


def infer_examples(shards: Sequence[Shard], sample: int = 256) -> Schema:
    """Infer the features of shards of Examples, which is what shards hold if nothing else is said.

    Raises
    ------
    FeatureError
        If a record is something else, a SequenceExample included.
    """
    with closing(_sample(shards, sample)) as records:
        return infer(_examples(records))


def infer_runs(runs: Iterable[Run]) -> Schema:
    """Infer the features of records that are Examples, as `infer_examples` does: all those of the runs."""
    with closing(payloads(runs)) as records:
        return infer(_examples(records))


def _examples(records: Iterable[tuple[Place, bytes]]) -> Iterator[tuple[Place, bytes]]:
    """Hand on records, and refuse one that has feature lists."""
    for place, payload in records:
        record = parse_record(payload)
        if record is not None and record.HasField("feature_lists"):
            raise refusal(payload, place)
        yield place, payload


def checked_sample(sample: int | None) -> int | None:
    """Check the argument `sample`."""
    if sample is not None and (isinstance(sample, bool) or not isinstance(sample, int) or sample < 1):
        raise SchemaError(f"sample is a number of records, at least 1, or None to look at all of them; got {sample!r}")
    return sample


def survey_sample(shards: Sequence[Shard], sample: int) -> Survey:
    """Survey the first records of some shards."""
    with closing(_sample(shards, sample)) as records:
        return survey(records)


def _sample(shards: Sequence[Shard], sample: int) -> _Records:
    """Yield the first records of some shards, first and last included; of the others only if those are empty."""
    spread = min(len(shards), _SHARDS)
    chosen = [round(turn * (len(shards) - 1) / max(spread - 1, 1)) for turn in range(spread)]
    left = sample
    for turn, index in enumerate(chosen):
        # What a short shard does not have, the next ones give.
        share = math.ceil(left / (spread - turn))
        for record in itertools.islice(payloads([whole(shards[index])]), share):
            left -= 1
            yield record
    if left == sample:
        others = (whole(shards[index]) for index in range(len(shards)) if index not in set(chosen))
        yield from itertools.islice(payloads(others), sample)
