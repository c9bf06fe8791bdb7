"""Schemas and records of every feature class, in every part of a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from dask_tfrecord import testing
from dask_tfrecord.features import VarLenFeature
from dask_tfrecord.schema import Schema
from dask_tfrecord.testing.strategies import CLASSES, STEPS

EXAMPLES = {f"Example, {cls.__name__}": (cls, None) for cls in CLASSES}


CONTEXTS = {f"context, {cls.__name__}": (cls, ()) for cls in CLASSES}


LISTS = {f"feature list, {cls.__name__}": (VarLenFeature, (cls,)) for cls in STEPS}


PARTS: dict[str, tuple[type[Any], Sequence[type[Any]] | None]] = {**EXAMPLES, **CONTEXTS, **LISTS}


RECORDS = 10  # Per hypothesis example.


@st.composite
def collections(draw: st.DrawFn, of: type[Any], steps: Sequence[type[Any]] | None) -> tuple[Schema, list[bytes]]:
    """Draw a schema of one or two features of a class, and records in any encoding that mostly fit it."""
    schema = draw(testing.schemas(min_size=1, max_size=1 if steps else 2, of=[of], steps=steps or None))
    if steps == ():
        schema = Schema(schema, sequence_features={})
    records = testing.examples if steps is None else testing.sequence_examples
    misfits = draw(st.integers(0, 3)) > 0
    some = [draw(records(schema, others=True, misfits=misfits)) for _ in range(RECORDS)]
    return schema, [draw(testing.wire_encodings(one))[1] for one in some]
