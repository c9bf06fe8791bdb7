"""How many steps the longest record has: what `FixedLenSequenceFeature` columns are padded to, found by one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import dask
import numpy as np

from dask_tfrecord.arrays.graph import shared
from dask_tfrecord.arrays.plan import Collection, borders_by_bytes
from dask_tfrecord.arrays.source import RecordSource
from dask_tfrecord.columns.blocks import RaggedBlock
from dask_tfrecord.features import Feature, FixedLenSequenceFeature, VarLenFeature
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
    as_rows: dict[str, Feature] = {
        name: VarLenFeature(feature.dtype, shape=(-1, *feature.shape)) for name, feature in wanted.items()
    }
    source = RecordSource.make(collection, schema.replaced(as_rows), range(collection.nrows), check_crc)
    stored = np.maximum(collection.nbytes / np.maximum(collection.counts, 1), 1.0)
    borders = borders_by_bytes(collection, stored, _TASK_NBYTES, coalesce=True)
    node, names = shared(source, "source"), tuple(as_rows)
    rows = max(1, int(_PIECE_NBYTES / stored.max(initial=1.0)))
    longest = dask.delayed(_longest, pure=False)
    found: Sequence[Mapping[str, int]] = dask.compute(
        *(longest(node, names, start, stop, rows) for start, stop in pairwise(borders.tolist()))
    )
    lengths = {name: max(part[name] for part in found) for name in names}
    return schema.replaced(
        {**schema, **{name: replace(feature, length=lengths[name]) for name, feature in wanted.items()}}
    )


def _longest(source: RecordSource, names: tuple[str, ...], start: int, stop: int, rows: int) -> dict[str, int]:
    """Find the steps of the longest record among some rows, which are decoded a few at once."""
    longest = dict.fromkeys(names, 0)
    spans = ((first, min(first + rows, stop)) for first in range(start, stop, rows))
    for blocks in source.pieces(names, spans):
        for name, block in blocks.items():
            assert isinstance(block, RaggedBlock)
            longest[name] = max(longest[name], int(np.diff(block.row_splits).max(initial=0)))
    return longest
