"""Lengths of `FixedLenSequenceFeature` columns without one: the steps of the longest record, counted in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import dask
import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.arrays.collection import Collection, borders_by_bytes
from dask_tfrecord.columns.column_plan import StepCountPlan
from dask_tfrecord.columns.decode import decode_blocks
from dask_tfrecord.features import FixedLenSequenceFeature
from dask_tfrecord.records.splits import Run
from dask_tfrecord.schema import Schema
from dask_tfrecord.settings import limits

__all__ = ["count_lengths"]

# Stored bytes that a task reads, and that it decodes at once.
_BLOCK_NBYTES = 4 << 20


def count_lengths(
    collection: Collection, schema: Schema, wanted: Mapping[str, FixedLenSequenceFeature], check_crc: bool
) -> Schema:
    """Count the steps of features in parallel on the active scheduler.

    Parameters
    ----------
    collection : Collection
        Shards with counted records.
    schema : Schema
        Features of the records.
    wanted : mapping of str to FixedLenSequenceFeature
        Features of the schema without a length.
    check_crc : bool
        Check the CRCs of records that are read.

    Returns
    -------
    Schema
        Schema in which these features have the length of the longest record.
    """
    stored = np.maximum(collection.nbytes / np.maximum(collection.counts, 1), 1.0)
    borders = borders_by_bytes(collection, stored, limits().count_task_nbytes, coalesce=True)
    rows = max(1, int(_BLOCK_NBYTES / stored.max()))
    task = dask.delayed(_LengthTask(collection, StepCountPlan(schema, tuple(wanted)), rows, check_crc), traverse=False)
    longest = dask.delayed(_longest, pure=False)
    found: Sequence[Mapping[str, int]] = dask.compute(
        *(longest(task, start, stop) for start, stop in pairwise(borders.tolist()))
    )
    lengths = {name: max(block[name] for block in found) for name in wanted}
    return schema.replaced(
        {**schema, **{name: replace(feature, length=lengths[name]) for name, feature in wanted.items()}}
    )


@dataclass(frozen=True, slots=True)
class _LengthTask:
    """Argument that all tasks share.

    Attributes
    ----------
    collection : Collection
        Shards with counted records.
    plan : StepCountPlan
        Plan that counts their steps.
    rows : int
        Records that are decoded at once.
    check_crc : bool
        Check the CRCs of records that are read.
    """

    collection: Collection
    plan: StepCountPlan
    rows: int
    check_crc: bool


def _longest(task: _LengthTask, start: int, stop: int) -> dict[str, int]:
    """Return the steps of the longest record of some rows."""
    names = task.plan.names
    longest = dict.fromkeys(names, 0)
    blocks_of_runs: Iterator[tuple[Iterable[Run], int, dict[str, NDArray[Any]]]] = (
        (task.collection.runs(first, min(first + task.rows, stop)), min(task.rows, stop - first), {})
        for first in range(start, stop, task.rows)
    )
    for blocks in decode_blocks(blocks_of_runs, task.plan, names, check_crc=task.check_crc):
        for name, block in blocks.items():
            longest[name] = max(longest[name], int(np.asarray(block).max(initial=0)))
    return longest
