"""How many steps the longest record has: what `FixedLenSequenceFeature` columns are padded to, found by one pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import dask
import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.arrays.plan import Collection, borders_by_bytes
from dask_tfrecord.columns.decode import Run, decode_pieces
from dask_tfrecord.columns.recipes import StepParser
from dask_tfrecord.features import FixedLenSequenceFeature
from dask_tfrecord.schema import Schema

__all__ = ["open_lengths", "with_lengths"]

# Stored bytes that a task goes through, and that it decodes at once.
_TASK_NBYTES = 64 << 20
_PIECE_NBYTES = 4 << 20


def open_lengths(schema: Schema) -> dict[str, FixedLenSequenceFeature]:
    """Find the features of which nobody has said how long they are."""
    return {
        name: feature
        for name, feature in schema.items()
        if isinstance(feature, FixedLenSequenceFeature) and feature.length is None
    }


def with_lengths(collection: Collection, schema: Schema, check_crc: bool) -> Schema:
    """Read the features whose lengths are open, in parallel on the active scheduler, and give them lengths.

    Parameters
    ----------
    collection : Collection
        The records; they are counted.
    schema : Schema
        What they hold.
    check_crc : bool
        Check the CRCs of what is read.

    Returns
    -------
    Schema
        The same where nothing is open.
    """
    wanted = open_lengths(schema)
    if not wanted:
        return schema
    stored = np.maximum(collection.nbytes / np.maximum(collection.counts, 1), 1.0)
    borders = borders_by_bytes(collection, stored, _TASK_NBYTES, coalesce=True)
    job = _Job(collection, StepParser(schema, tuple(wanted)), max(1, int(_PIECE_NBYTES / stored.max())), check_crc)
    node = dask.delayed(job, traverse=False)
    longest = dask.delayed(_longest, pure=False)
    found: Sequence[Mapping[str, int]] = dask.compute(
        *(longest(node, start, stop) for start, stop in pairwise(borders.tolist()))
    )
    lengths = {name: max(part[name] for part in found) for name in wanted}
    return schema.replaced(
        {**schema, **{name: replace(feature, length=lengths[name]) for name, feature in wanted.items()}}
    )


@dataclass(frozen=True, slots=True)
class _Job:
    """What all tasks share.

    Attributes
    ----------
    collection : Collection
        The records.
    parser : StepParser
        Counts their steps.
    rows : int
        Records that are read at once.
    check_crc : bool
        Check the CRCs of what is read.
    """

    collection: Collection
    parser: StepParser
    rows: int
    check_crc: bool


def _longest(job: _Job, start: int, stop: int) -> dict[str, int]:
    """Find the steps of the longest record among some rows, which are decoded a few at once."""
    names = job.parser.names
    longest = dict.fromkeys(names, 0)
    pieces: Iterator[tuple[Iterable[Run], int, dict[str, NDArray[Any]]]] = (
        (job.collection.runs(first, min(first + job.rows, stop)), min(job.rows, stop - first), {})
        for first in range(start, stop, job.rows)
    )
    for blocks in decode_pieces(pieces, job.parser, names, check_crc=job.check_crc):
        for name, block in blocks.items():
            longest[name] = max(longest[name], int(np.asarray(block).max(initial=0)))
    return longest
