"""Schema inference: select records of a collection, survey them, and return the schema of the report.

`survey.py` counts the contents of records; `report.py` derives the schema from the counts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing

from dask_tfrecord.errors import Location, SchemaError
from dask_tfrecord.inspection.payload_type import parse_record, payload_error
from dask_tfrecord.inspection.report import Report
from dask_tfrecord.inspection.survey import Survey, survey
from dask_tfrecord.records.splits import Run, full_run, iterate_payloads
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.shard import Shard, Shards

_Records = Generator[tuple[Location, bytes], None, None]
# Number of shards that a sample is spread over.
_SAMPLED_SHARDS = 8


def infer(records: Iterable[tuple[Location, bytes]], searched: Sequence[str] = ()) -> Schema:
    """Infer features from records.

    Parameters
    ----------
    records : iterable of (Location, bytes)
        Location and payload of each record.
    searched : sequence of str
        Paths of the shards, for the error that is raised if all of them are empty.

    Returns
    -------
    Schema
        Inferred schema, with its `Sampling` and report.

    Raises
    ------
    FeatureError
        If a record is not an Example, a SequenceExample or an ExampleListWithContext.
    SchemaError
        If a feature holds values of several kinds, or no record sets a feature.
    """
    return Report.from_survey(survey(records), searched).schema


def infer_examples(shards: Sequence[Shard], sample: int = 256) -> Schema:
    """Infer the features of shards of Examples from a sample of their records.

    Raises
    ------
    FeatureError
        If a record is not an Example. SequenceExamples are read with `infer_schema` instead.
    """
    with closing(_sample(shards, sample)) as records:
        return infer(_examples(records), _paths(shards))


def infer_runs(runs: Iterable[Run], shards: Sequence[Shard]) -> Schema:
    """Infer the features of Examples from all records of the runs."""
    with closing(iterate_payloads(runs)) as records:
        return infer(_examples(records), _paths(shards))


def _paths(shards: Sequence[Shard]) -> Sequence[str]:
    return shards.paths if isinstance(shards, Shards) else [shard.path for shard in shards]


def _examples(records: Iterable[tuple[Location, bytes]]) -> Iterator[tuple[Location, bytes]]:
    """Yield the records; raise FeatureError for one that has feature lists, or is another message."""
    for location, payload in records:
        record = parse_record(payload)
        if record is None or record.HasField("feature_lists"):
            raise payload_error(payload, location)
        yield location, payload


def checked_sample(sample: int | None) -> int | None:
    """Return the argument `sample` if it is valid, or raise SchemaError."""
    if sample is not None and (isinstance(sample, bool) or not isinstance(sample, int) or sample < 1):
        raise SchemaError(f"sample is a number of records, at least 1, or None to read all of them; got {sample!r}")
    return sample


def survey_sample(shards: Sequence[Shard], sample: int) -> Survey:
    """Survey the first records of up to eight shards."""
    with closing(_sample(shards, sample)) as records:
        return survey(records)


def _sample(shards: Sequence[Shard], sample: int) -> _Records:
    """Yield the first records of evenly spaced shards, the first and the last included.

    Records of the other shards are read only if the selected shards are empty.
    """
    spread = min(len(shards), _SAMPLED_SHARDS)
    chosen = [round(turn * (len(shards) - 1) / max(spread - 1, 1)) for turn in range(spread)]
    left = sample
    for turn, index in enumerate(chosen):
        # Later shards make up for a shard with fewer records than its share.
        share = math.ceil(left / (spread - turn))
        for record in itertools.islice(iterate_payloads([full_run(shards[index])]), share):
            left -= 1
            yield record
    if left == sample:
        others = (full_run(shards[index]) for index in range(len(shards)) if index not in set(chosen))
        yield from itertools.islice(iterate_payloads(others), sample)
