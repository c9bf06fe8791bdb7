"""Schemas and records of every feature class, in every part of a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import oracle
from hypothesis import strategies as st
from oracle import strategies
from oracle.strategies import CLASSES, STEPS

from dask_tfrecord.features import VarLenFeature
from dask_tfrecord.schema import Schema

EXAMPLES = {f"Example, {cls.__name__}": (cls, None) for cls in CLASSES}


CONTEXTS = {f"context, {cls.__name__}": (cls, ()) for cls in CLASSES}


LISTS = {f"feature list, {cls.__name__}": (VarLenFeature, (cls,)) for cls in STEPS}


ITEMS = {f"item, {cls.__name__}": (VarLenFeature, None, (cls,)) for cls in strategies.ITEMS}


PARTS: dict[str, tuple[Any, ...]] = {**EXAMPLES, **CONTEXTS, **LISTS, **ITEMS}


RECORDS = 5  # Per hypothesis example.


@st.composite
def collections(
    draw: st.DrawFn, of: type[Any], steps: Sequence[type[Any]] | None, items: Sequence[type[Any]] | None = None
) -> tuple[Schema, list[bytes]]:
    """Draw a schema of one or two features of a class, and records in any encoding that mostly fit it."""
    most = 1 if steps or items else 2
    schema = draw(oracle.schemas(min_size=1, max_size=most, of=[of], steps=steps or None, items=items))
    if steps == ():
        schema = Schema(schema, sequence_features={})
    records = {"SequenceExample": oracle.sequence_examples, "ExampleListWithContext": oracle.example_lists}.get(
        schema.message, oracle.examples
    )
    misfits = draw(st.integers(0, 3)) > 0
    some = [draw(records(schema, others=True, misfits=misfits)) for _ in range(RECORDS)]
    return schema, [draw(oracle.wire_encodings(one))[1] for one in some]
