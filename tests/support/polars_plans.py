"""Random queries of polars as text that can be pasted, and of DuckDB on their results.

A plan is an expression of ``rows``, a LazyFrame. Its steps keep a defined order of rows, so that later steps can take
the first ones, and results of two engines can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

# Kinds of the columns of `rows`: "int", "float", "text", "bytes", "bool", "list" or "array". KEY has distinct values.
Kinds = Mapping[str, str]
KEY = "small"
_VALUES = {
    "int": ["-1", "0", "1", "2", "3", "4", "7", "20", "45"],
    "float": ["0.1", "0.5", "2.5", "float('nan')", "1e300", "3.0"],
    "text": ["'x'", "'y'", "'zz'", "''"],
    "bytes": ["b''", "b'a'", "b'ab'", "b'c'"],
}
_HASHABLE = ("int", "text", "bytes", "bool")


def _of_kind(columns: Kinds, *kinds: str) -> list[str]:
    return [name for name, kind in columns.items() if kind in kinds]


def _comparison(rng: Random, columns: Kinds) -> str:
    """Draw a condition on one column, or on two."""
    name = rng.choice(sorted(columns))
    column, kind = f"pl.col({name!r})", columns[name]
    form = rng.choice(["compare", "compare", "compare", "swapped", "in", "null", "not_null", "sums", "cumulative"])
    ints = [f"pl.col({each!r}).cast(pl.Int64)" for each in _of_kind(columns, "int")]
    if form == "cumulative" and ints:
        return f"(({rng.choice(ints)} >= 0).cum_sum() > {rng.randrange(30)})"
    if form == "sums" and ints:
        return f"({rng.choice(ints)} + {rng.choice(ints)} > {rng.randrange(30)})"
    if form in ("null", "not_null"):
        return f"{column}.is_{form}()"
    if kind == "bool":
        return column
    if kind in ("list", "array"):
        column, kind = f"{column}.{'list' if kind == 'list' else 'arr'}.len()", "int"
    if form == "in":
        return f"{column}.is_in([{', '.join(rng.sample(_VALUES[kind], rng.randint(1, 3)))}])"
    compared, value = rng.choice(["==", "!=", "<", "<=", ">", ">="]), f"pl.lit({rng.choice(_VALUES[kind])})"
    return f"({value} {compared} {column})" if form == "swapped" else f"({column} {compared} {value})"


def predicate(rng: Random, columns: Kinds, depth: int = 2) -> str:
    """Draw a predicate: conditions joined by and, or, xor, not, and when-then-otherwise."""
    form = rng.choice(["leaf", "and", "or", "xor", "not", "when", "when_only", "literal"]) if depth else "leaf"
    if form == "literal":
        return f"pl.lit({rng.choice([True, False])})"
    if form == "leaf" or rng.random() < 0.3:
        return _comparison(rng, columns)
    first, second, third = (predicate(rng, columns, depth - 1) for _ in range(3))
    if form == "when" and rng.random() < 0.5:
        # Columns never hold null, so one side of these is always false; DuckDB writes its comparisons like this.
        null = f"pl.col({rng.choice(sorted(columns))!r}).is_null()"
        first, second = rng.choice([(null, second), (first, null)])
    if form == "not":
        return f"~{first}"
    if form.startswith("when"):
        return f"pl.when({first}).then({second})" + (f".otherwise({third})" if form == "when" else "")
    return f"({first} {dict([('and', '&'), ('or', '|'), ('xor', '^')])[form]} {second})"


def _part(rng: Random, columns: Kinds) -> str:
    """Draw a step that keeps some of the rows."""
    kind = rng.choice(["filter", "filter", "filter", "head", "head", "tail", "slice"])
    if kind == "filter":
        return f".filter({predicate(rng, columns)})"
    number = rng.randrange(40)
    return f".slice({rng.randint(-50, 50)}, {number})" if kind == "slice" else f".{kind}({number})"


def _computed(rng: Random, columns: Kinds) -> tuple[str, str]:
    """Draw the expression of a new column, and its kind."""
    ints = _of_kind(columns, "int")
    made = [("pl.lit(1)", "int"), ("pl.len()", "int"), (predicate(rng, columns), "bool")]
    if ints:
        made.append((f"pl.col({rng.choice(ints)!r}).cast(pl.Int64).cum_sum()", "int"))
    return rng.choice(made)


def plan(rng: Random, kinds: Kinds, most: int = 5) -> tuple[str, Kinds]:
    """Draw a plan of 1 to `most` steps; return it, and the kinds of its columns."""
    text, columns = "rows", dict(kinds)
    for number in range(rng.randint(1, most)):
        new = f"new{number}"
        hashable, ints = _of_kind(columns, *_HASHABLE), _of_kind(columns, "int")
        steps = ["part"] * 8 + ["select", "newest", "newest", "count", "index", "index", "with", "concat"]
        steps += ["unique", "group", "sort"] * bool(hashable) + ["join", "match"] * (KEY in columns)
        step = rng.choice(steps)
        if step == "part":
            text += _part(rng, columns)
        elif step in ("select", "newest"):
            names = [*columns][:1] if step == "newest" else rng.sample(sorted(columns), rng.randint(1, len(columns)))
            text += f".select({', '.join(map(repr, names))})"
            columns = {name: columns[name] for name in names}
        elif step == "count":
            text, columns = f"{text}.select(pl.len().alias({new!r}))", {new: "int"}
        elif step == "index":
            text += f".with_row_index({new!r}, {rng.randrange(3)})"
            columns = {new: "int", **columns}
        elif step == "with":
            made, kind = _computed(rng, columns)
            text, columns = f"{text}.select(({made}).alias({new!r}), pl.all())", {new: kind, **columns}
            text = text if rng.random() < 0.5 else f"{text}.with_columns(pl.lit(0).alias('zero'))"
            columns |= {"zero": "int"} if text.endswith("'zero'))") else {}
        elif step == "concat":
            text = f"pl.concat([{text}, {text}{_part(rng, columns)}])"
        elif step == "join":
            other = rng.choice(sorted(set(kinds) - {KEY}))
            right = f"rows{_part(rng, kinds)}.select({KEY!r}, pl.col({other!r}).alias({new!r}))"
            text += f".join({right}, on={KEY!r}, how={rng.choice(['inner', 'left'])!r}, maintain_order='left_right')"
            columns[new] = kinds[other]
        elif step == "match":
            # The order of these is not defined.
            text += f".join(rows{_part(rng, kinds)}, on={KEY!r}, how={rng.choice(['semi', 'anti'])!r}).sort({KEY!r})"
            columns = dict(columns)
        elif step == "group":
            name = rng.choice(hashable)
            made = [f"pl.len().alias({new!r})"]
            made += [f"pl.col({rng.choice(ints)!r}).cast(pl.Int64).sum().alias('sum{number}')"] if ints else []
            text += f".group_by({name!r}, maintain_order=True).agg({', '.join(made)})"
            columns = {name: columns[name], new: "int", **({f"sum{number}": "int"} if ints else {})}
        else:
            more = f"keep={rng.choice(['first', 'last'])!r}" if step == "unique" else f"descending={rng.random() < 0.5}"
            text += f".{step}({rng.choice(hashable)!r}, {more}, maintain_order=True)"
    return text, columns


def sql(rng: Random, columns: Kinds) -> str:
    """Draw a query of the table ``shown``, with a condition and as little as one constant of each row."""
    ints, floats = _of_kind(columns, "int"), _of_kind(columns, "float")
    conditions = ["true", *(f'"{name}" {op} {rng.randrange(8)}' for name in ints for op in ("=", "<", ">=", "<>"))]
    conditions += [f'"{name}" > 0.5 AND "{name}" < 4' for name in floats]
    conditions += [f'"{name}" IN (1, 2, 30)' for name in ints]
    chosen = rng.sample(conditions, min(2, len(conditions)))
    condition = rng.choice([chosen[0], f"{chosen[0]} {rng.choice(['AND', 'OR', 'AND NOT'])} ({chosen[-1]})"])
    wanted = rng.choice(["count(*)", "1", *(f'"{name}"' for name in columns), *(f'sum("{name}")' for name in ints)])
    return f"SELECT {wanted} FROM shown WHERE {condition}"
