"""polars LazyFrames of a data set, which read the columns and rows that a query needs.

polars passes the columns and the predicate of a query to the source. Comparisons of columns with literals, ``is_in``,
lengths of lists, and their combinations by and, or, not become `Filters`, so that other columns are decoded for the
kept records only. The source applies the whole predicate to the kept rows. Filters may therefore keep more rows than
the predicate, but never fewer. In polars NaN equals NaN and is larger than all other numbers: "not <=" means ">".

polars passes a number of rows together with a predicate only for ``head(n).filter(p)``: the first n rows come first. It
asks for no column where a query needs only the number of rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from dask_tfrecord.errors import TFRecordError, explain_missing
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.rows.rows import Rows
from dask_tfrecord.rows.where import Condition, Filters, filter_rows

# The extra of polars has pyarrow, too, whose error would name another extra.
with explain_missing("LazyFrames need", "polars", "polars"):
    import polars as pl
    from polars.io.plugins import register_io_source

from dask_tfrecord.extras.interop.arrow import ArrowBatches
from dask_tfrecord.rows.arrow import BatchMaker

Alternatives = tuple[tuple[Condition, ...], ...]

_COMPARISONS = {"Eq": "==", "NotEq": "!=", "Lt": "<", "LtEq": "<=", "Gt": "not <=", "GtEq": "not <"}
_MIRRORED = {"Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}
_OPPOSITE = {"==": "!=", "!=": "==", "in": "not in", "<": "not <", "<=": "not <=", "not <": "<", "not <=": "<="}
_MOST_ALTERNATIVES = 64


def to_polars(rows: Rows) -> pl.LazyFrame:
    """Return a LazyFrame; `Dataset.to_polars` documents it."""
    make = BatchMaker(rows.schema, tensors=False)
    make.check_columns(rows.nrows)
    schema = _polars_frame(make.arrow.empty_table()).schema
    return register_io_source(partial(_read_frames, rows), schema=schema, is_pure=True)


def _read_frames(
    rows: Rows, columns: list[str] | None, predicate: pl.Expr | None, most: int | None, batch_size: int | None
) -> Iterator[pl.DataFrame]:
    """Yield the frames of a query: the four arguments are those that polars passes to a source."""
    if most is not None and rows.nrows is not None:
        rows, most = rows.select(slice(most)), None
    if columns == [] and predicate is None and rows.nrows is not None:
        yield from _slices(pl.DataFrame(height=rows.nrows), batch_size)
        return
    names = list(rows.names) if columns is None else columns
    needed = list(dict.fromkeys([*names, *(predicate.meta.root_names() if predicate is not None else ())]))
    needed = needed or list(rows.names[:1])
    # Which rows of uncounted chunks are the first ones is not known before they are read.
    found = None if predicate is None or most is not None else _conditions(predicate, rows.schema)
    if found is not None:
        filters = Filters(found)
        rows = filter_rows(rows, filters, filters.columns, count=False)
    with closing(ArrowBatches(rows.select_columns(needed), tensors=False)) as batches:
        for batch in batches:
            frame = _polars_frame(batch)
            if most is not None:
                frame = frame.head(most)
                most -= len(frame)
            frame = frame if predicate is None else frame.filter(predicate)
            # A selection of no columns would lose the rows, and one by names would take some names for patterns.
            frame = frame[names] if names else pl.DataFrame(height=len(frame))
            yield from _slices(frame, batch_size)
            if most == 0:
                return


def _polars_frame(batch: Any) -> pl.DataFrame:
    """Return a record batch or a table of pyarrow as a DataFrame."""
    names = batch.column_names
    # polars would give a column without a name another one.
    frame = pl.from_arrow(batch.rename_columns([f"column {number}" for number in range(len(names))]), rechunk=False)
    assert isinstance(frame, pl.DataFrame)
    frame.columns = names
    return frame


def _slices(frame: pl.DataFrame, batch_size: int | None) -> Iterator[pl.DataFrame]:
    return frame.iter_slices(batch_size or max(len(frame), 1))


def _conditions(predicate: pl.Expr, schema: Schema) -> Alternatives | None:
    """Return conditions that all rows meet for which a predicate holds; None if all rows have to be read."""
    try:
        return _any_of(_expression_json(predicate), _literals(predicate), schema, negated=False)
    except (LookupError, TypeError, ValueError, RecursionError, pl.exceptions.PolarsError):
        # Another release of polars may write expressions in another way, and some are too deep for JSON.
        return None


def _expression_json(expression: pl.Expr) -> Any:
    """Return an expression as JSON values. Operands have names in it; their order in `meta.pop` depends on release."""
    return json.loads(expression.meta.serialize(format="json"))


def _literals(expression: pl.Expr) -> dict[str, pl.Expr]:
    """Return the literals of an expression by their trees as text; a float that polars reads from JSON is inexact."""
    literals, left = {}, [expression]
    while left:
        part = left.pop()
        if part.meta.is_literal():
            literals[json.dumps(_expression_json(part))] = part
        left += part.meta.pop()
    return literals


def _kind_and_body(tree: Any) -> tuple[str, Any]:
    """Return the kind of an expression, and what it consists of."""
    ((kind, body),) = tree.items() if isinstance(tree, dict) else ((str(tree), None),)
    return kind, body


def _called_function(tree: Any) -> tuple[str, Any]:
    """Return the namespace and the name of a function; the name may be a mapping from it to options."""
    kind, body = _kind_and_body(tree)
    return _kind_and_body(body["function"]) if kind == "Function" else ("", "")


def _any_of(tree: Any, literals: Mapping[str, pl.Expr], schema: Schema, *, negated: bool) -> Alternatives | None:
    """Convert a node of an expression to alternatives of conditions; None if conditions can't express it."""
    kind, body = _kind_and_body(tree)
    namespace, name = _called_function(tree)
    if kind == "Ternary":
        test = body["predicate"]
        if (
            _called_function(test) != ("Boolean", "IsNull")
            or _kind_and_body(test["Function"]["input"][0])[0] != "Column"
        ):
            return None
        # No column has null values.
        return _any_of(body["falsy"], literals, schema, negated=negated)
    if (namespace, name) == ("Boolean", "Not"):
        return _any_of(body["input"][0], literals, schema, negated=not negated)
    if namespace == "Boolean" and "IsIn" in name:
        column, listed = body["input"]
        return _translate_comparison(column, "in", literals.get(json.dumps(listed)), schema, negated=negated)
    if kind != "BinaryExpr":
        return None
    operator, sides = body["op"], (body["left"], body["right"])
    first, second = sides
    if operator in _COMPARISONS:
        if json.dumps(first) in literals:
            first, second, operator = second, first, _MIRRORED.get(operator, operator)
        return _translate_comparison(
            first, _COMPARISONS[operator], literals.get(json.dumps(second)), schema, negated=negated
        )
    if operator not in ("And", "Or", "LogicalAnd", "LogicalOr"):
        return None
    known = [found for side in sides if (found := _any_of(side, literals, schema, negated=negated)) is not None]
    if not known[1:]:
        return known[0] if known and operator.endswith("And") != negated else None
    if operator.endswith("And") != negated:
        made = tuple((*first, *second) for first, second in product(*known))
    else:
        made = (*known[0], *known[1])
    return made if len(made) <= _MOST_ALTERNATIVES else None


def _translate_comparison(
    tree: Any, comparison: str, literal: pl.Expr | None, schema: Schema, *, negated: bool
) -> Alternatives | None:
    """Translate a comparison with a literal: the column itself, or a list's length."""
    is_length = _called_function(tree) in (("ListExpr", "Length"), ("ArrayExpr", "Length"))
    kind, column = _kind_and_body(tree["Function"]["input"][0] if is_length else tree)
    if kind != "Column" or literal is None:
        return None
    name = f"len({column})" if is_length else column
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
    return found if _is_exact(found[0][0], listed, schema) else None


def _is_exact(condition: Condition, values: tuple[Any, ...], schema: Schema) -> bool:
    """Return whether the comparison casts no value to another one, and compares no NaN or infinity, null in JSON."""
    dtype = schema[condition.column].item_dtype
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        return False
    if condition.reduction is not None or dtype.kind in "OTbiu":
        return True
    return all(float(np.asarray(value).astype(dtype)) == value for value in values)
