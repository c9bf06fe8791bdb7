"""Hypothesis strategy of collections: a schema, and serialized records that match it."""

from __future__ import annotations

from hypothesis import strategies as st
from oracle import example_lists, examples, sequence_examples

import dask_tfrecord as dtf


@st.composite
def collections(
    draw: st.DrawFn, schemas: st.SearchStrategy[dtf.Schema], min_size: int = 0
) -> tuple[dtf.Schema, list[bytes]]:
    """A schema, and at least `min_size` records that match it."""
    schema = draw(schemas)
    strategies = {"SequenceExample": sequence_examples, "ExampleListWithContext": example_lists}
    records = strategies.get(schema.message, examples)(schema)
    drawn = draw(st.lists(records, min_size=min_size, max_size=6))
    return schema, [record.SerializeToString() for record in drawn]
