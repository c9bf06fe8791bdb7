"""Schemas and records of every feature class, in every part of a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from dask_tfrecord import testing
from dask_tfrecord.features import VarLenFeature
from dask_tfrecord.schema import Schema
from dask_tfrecord.testing import strategies
from dask_tfrecord.testing.strategies import CLASSES, STEPS

EXAMPLES = {f"Example, {cls.__name__}": (cls, None) for cls in CLASSES}


CONTEXTS = {f"context, {cls.__name__}": (cls, ()) for cls in CLASSES}


LISTS = {f"feature list, {cls.__name__}": (VarLenFeature, (cls,)) for cls in STEPS}


ITEMS = {f"item, {cls.__name__}": (VarLenFeature, None, (cls,)) for cls in strategies.ITEMS}


PARTS: dict[str, tuple[Any, ...]] = {**EXAMPLES, **CONTEXTS, **LISTS, **ITEMS}


RECORDS = 10  # Per hypothesis example.


@st.composite
def collections(
    draw: st.DrawFn, of: type[Any], steps: Sequence[type[Any]] | None, items: Sequence[type[Any]] | None = None
) -> tuple[Schema, list[bytes]]:
    """Draw a schema of one or two features of a class, and records in any encoding that mostly fit it."""
    most = 1 if steps or items else 2
    schema = draw(testing.schemas(min_size=1, max_size=most, of=[of], steps=steps or None, items=items))
    if steps == ():
        schema = Schema(schema, sequence_features={})
    records = {"SequenceExample": testing.sequence_examples, "ExampleListWithContext": testing.example_lists}.get(
        schema.message, testing.examples
    )
    misfits = draw(st.integers(0, 3)) > 0
    some = [draw(records(schema, others=True, misfits=misfits)) for _ in range(RECORDS)]
    return schema, [draw(testing.wire_encodings(one))[1] for one in some]
