"""polars LazyFrames of a data set, which read the columns and rows that a query needs.

polars passes the columns and the predicate of a query to the source. Comparisons of columns with literals, ``is_in``,
lengths of lists, and their combinations by and, or, not become `Filters`, so that other columns are decoded for the
kept records only. polars then applies the whole predicate to the kept rows. Filters may therefore keep more rows than
the predicate, but never fewer. In polars NaN equals NaN and is larger than all other numbers: "not <=" stands for ">".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.arrays.filters import Condition, Filters, filter_rows
from dask_tfrecord.errors import TFRecordError, explain_missing
from dask_tfrecord.interop.arrow import ArrowBatches, BatchMaker
from dask_tfrecord.schema import Schema

with explain_missing("LazyFrames need", "polars", "polars"):
    import polars as pl
    from polars.io.plugins import register_io_source

Alternatives = tuple[tuple[Condition, ...], ...]

_COMPARISONS = {"Eq": "==", "NotEq": "!=", "Lt": "<", "LtEq": "<=", "Gt": "not <=", "GtEq": "not <"}
_MIRRORED = {"Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}
_OPPOSITE = {"==": "!=", "!=": "==", "in": "not in", "<": "not <", "<=": "not <=", "not <": "<", "not <=": "<="}
_MOST_ALTERNATIVES = 64


def to_polars(dataset: Dataset) -> pl.LazyFrame:
    """Return a LazyFrame; `Dataset.to_polars` documents it."""
    make = BatchMaker(dataset.schema, tensors=False)
    make.check_columns(dataset.nrows)
    frame = pl.from_arrow(make.arrow.empty_table())
    assert isinstance(frame, pl.DataFrame)
    return register_io_source(partial(_read, dataset), schema=frame.schema, is_pure=True)


def _read(
    dataset: Dataset, columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, batch_size: int | None
) -> Iterator[pl.DataFrame]:
    """Yield the frames of a query: the four arguments are those that polars passes to a source."""
    names = list(dataset) if columns is None else columns
    needed = list(dict.fromkeys([*names, *(predicate.meta.root_names() if predicate is not None else ())]))
    # Filters keep all rows for which the predicate holds.
    found = None if predicate is None else _alternatives(predicate, dataset.schema, negated=False)
    if found is not None and len(found) <= _MOST_ALTERNATIVES:
        filters = Filters(found)
        dataset = Dataset(filter_rows(dataset._merged(), filters, filters.columns, count=False), tuple(dataset))
    elif predicate is None and rows is not None and dataset.nrows is not None:
        dataset = dataset.rows[:rows]
    with closing(ArrowBatches(dataset[needed or list(dataset)[:1]], tensors=False)) as batches:
        for batch in batches:
            frame = pl.from_arrow(batch, rechunk=False)
            assert isinstance(frame, pl.DataFrame)
            frame = (frame if predicate is None else frame.filter(predicate)).select(names)
            if rows is not None:
                frame = frame.head(rows)
                rows -= len(frame)
            yield from frame.iter_slices(batch_size or max(len(frame), 1))
            if rows == 0:
                return


def _alternatives(expression: pl.Expr, schema: Schema, *, negated: bool) -> Alternatives | None:
    """Return conditions that all rows meet for which an expression holds; None if all rows have to be read."""
    kind, body = _node(expression)
    parts = expression.meta.pop()[::-1]
    if kind == "Ternary" and _node(parts[0])[1] == {"Boolean": "IsNull"}:
        # No column has null values.
        return _alternatives(parts[2], schema, negated=negated)
    if kind == "Function" and body == {"Boolean": "Not"}:
        return _alternatives(parts[0], schema, negated=not negated)
    if kind == "Function" and "IsIn" in str(body):
        return _condition(parts[0], "in", parts[1], schema, negated=negated)
    if kind != "BinaryExpr":
        return None
    if body in _COMPARISONS:
        if parts[0].meta.is_literal():
            parts, body = parts[::-1], _MIRRORED.get(body, body)
        return _condition(parts[0], _COMPARISONS[body], parts[1], schema, negated=negated)
    if body not in ("And", "Or", "LogicalAnd", "LogicalOr"):
        return None
    sides = [_alternatives(part, schema, negated=negated) for part in parts]
    known = [side for side in sides if side is not None]
    if body.endswith("And") != negated:
        return tuple((*first, *second) for first, second in product(*known)) if known[1:] else next(iter(known), None)
    return (*known[0], *known[1]) if known[1:] else None


def _node(expression: pl.Expr) -> tuple[str, Any]:
    """Return the kind of an expression, and its operator or function."""
    found = json.loads(expression.meta.serialize(format="json"))
    if not isinstance(found, dict):
        return str(found), None
    ((kind, body),) = found.items()
    held = {"BinaryExpr": "op", "Function": "function"}.get(kind)
    return kind, None if held is None else body[held]


def _condition(
    column: pl.Expr, comparison: str, literal: pl.Expr, schema: Schema, *, negated: bool
) -> Alternatives | None:
    """Return a comparison of a column, or of the length of a list, with a literal."""
    name = next(iter(column.meta.root_names()), "")
    if _node(column)[1] in ({"ListExpr": "Length"}, {"ArrayExpr": "Length"}):
        name = f"len({name})"
    elif not column.meta.is_column():
        return None
    if not literal.meta.is_literal():
        return None
    values = pl.select(literal).to_series()
    values = values.explode() if isinstance(values.dtype, pl.List) else values
    listed = tuple(values.to_list())
    if negated:
        comparison = _OPPOSITE[comparison]
    condition = Condition(name, None, comparison, listed if comparison.endswith("in") else listed[0])
    try:
        found = Filters(((condition,),)).resolve(schema).alternatives
    except TFRecordError:
        return None
    return found if _exact(found[0][0], listed, schema) else None


def _exact(condition: Condition, values: tuple[Any, ...], schema: Schema) -> bool:
    """Return whether the comparison casts no value to another one, and compares no NaN."""
    dtype = schema[condition.column].item_dtype
    if condition.reduction is not None or dtype.kind in "OTbiu":
        return True
    return all(float(np.asarray(value).astype(dtype)) == value for value in values)
