"""Hypothesis strategy of collections: a schema, and serialized records that match it."""

from __future__ import annotations

from hypothesis import strategies as st

import dask_tfrecord as dtf
from dask_tfrecord.testing import examples, sequence_examples


@st.composite
def collections(
    draw: st.DrawFn, schemas: st.SearchStrategy[dtf.Schema], min_size: int = 0
) -> tuple[dtf.Schema, list[bytes]]:
    """A schema, and at least `min_size` records that match it."""
    schema = draw(schemas)
    records = examples(schema) if schema.sequence_features is None else sequence_examples(schema)
    drawn = draw(st.lists(records, min_size=min_size, max_size=6))
    return schema, [record.SerializeToString() for record in drawn]
