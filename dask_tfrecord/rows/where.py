"""Filters: rows chosen by the values of some of their columns.

A filter names the columns it tests. Where it is the last step, `RecordSource.read_where` decodes these first, and the
others for the records that are kept.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from dask.base import normalize_token
from numpy.typing import NDArray

from dask_tfrecord.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock, splits_of, take_rows, to_array
from dask_tfrecord.columns.conversions import host_array
from dask_tfrecord.columns.decoder import Where
from dask_tfrecord.columns.items import row_lengths
from dask_tfrecord.errors import SchemaError, Spelled, UnknownFeatureError, near_misses
from dask_tfrecord.features import dtype_name
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.identity import function_parts
from dask_tfrecord.markup import parse_time
from dask_tfrecord.rows.functions import UserBlocks, note_rows_on_error, unknown_column
from dask_tfrecord.rows.rows import Rows
from dask_tfrecord.rows.steps import Place, Step

_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OPERATORS = (*_COMPARISONS, "in", "not in")
_REDUCTIONS = ("len", "any", "all")
# Function from a dict of blocks with n rows to a mask of n rows.
MaskFunction = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Condition:
    """Compare a column with a value: itself, its lengths, or any or all of its values.

    A comparison may begin with "not", which NaN makes differ from the opposite one.
    """

    column: str
    reduction: str | None
    comparison: str
    value: Any

    def mask(self, block: Block) -> NDArray[np.bool_]:
        """Return the rows for which the condition holds."""
        if self.reduction == "len":
            return self._compare(_value_counts(block))
        if self.reduction is None:
            return self._compare(to_array(block))
        values, row_splits = _all_values(block)
        held = np.diff(splits_of(self._compare(to_array(values)))[row_splits])
        return held > 0 if self.reduction == "any" else held == np.diff(row_splits)

    def _compare(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Compare values with the condition's; integers are compared exactly, floats in their dtype."""
        comparison = self.comparison.removeprefix("not ")
        if values.dtype.kind == "b":
            # NumPy compares bool as int64, which larger integers overflow, and other integers exactly.
            values = values.view(np.uint8)
        if comparison in _COMPARISONS:
            # NumPy would drop zero bytes at the end of bytes and text.
            value = np.array(self.value, values.dtype) if values.dtype.kind in "OT" else self.value
            if _exceeds(value, values.dtype):
                # Python compares floats with any integer; infinity is larger.
                values = values.astype(object)
            # A Python float takes the dtype of the values, like 0.1 of float32.
            with np.errstate(over="ignore"):
                holds = _COMPARISONS[comparison](values, value)
        elif values.dtype.kind in "OT":
            holds = np.fromiter((value in self.value for value in values.ravel()), bool, values.size)
        else:
            holds = _is_in(values, self.value)
        mask = np.asarray(holds, bool).reshape(values.shape)
        return ~mask if comparison != self.comparison else mask


def _exceeds(value: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether an integer is larger than all numbers of a dtype of floats."""
    return dtype.kind in "fc" and isinstance(value, int) and abs(value) > int(np.finfo(dtype).max)


def _is_in(values: NDArray[Any], listed: Sequence[Any]) -> NDArray[np.bool_]:
    """Return which numbers or times equal one of a list, with integers compared as integers.

    NumPy would convert a list of integers with a fraction, or with one beyond int64, to float64, where 2**53 + 1 is
    2**53.
    """
    if values.dtype.kind not in "iu":
        listed = [value for value in listed if not _exceeds(value, values.dtype)]
        return np.isin(values, np.asarray(listed, values.dtype if values.dtype.kind == "f" else None))
    whole = [int(value) for value in listed if isinstance(value, int | np.integer | np.bool_)]
    others = [value for value in listed if not isinstance(value, int | np.integer | np.bool_)]
    limits = np.iinfo(values.dtype)
    whole = [value for value in whole if limits.min <= value <= limits.max]
    return np.isin(values, np.array(whole, values.dtype)) | np.isin(values, np.array(others))


def _value_counts(block: Block) -> NDArray[np.int64]:
    is_ragged = isinstance(block, RaggedBlock | ArraysBlock)
    return row_lengths(block) if is_ragged else np.full(len(block), block.shape[1], np.int64)


def _all_values(block: Block) -> tuple[NDArray[Any] | BytesBlock, NDArray[np.int64]]:
    """Return all values of all rows, along one axis, and the offsets between rows."""
    if isinstance(block, RaggedBlock):
        values, inner = _all_values(block.values)
        return values, inner[block.row_splits]
    if isinstance(block, ArraysBlock):
        return block.values, block.row_splits
    width = math.prod(block.shape[1:])
    return block.reshape((len(block) * width,)), np.arange(len(block) + 1) * width


@dataclass(frozen=True, slots=True)
class Filters:
    """Alternatives: lists of conditions; all conditions of one list have to hold."""

    alternatives: tuple[tuple[Condition, ...], ...]

    @classmethod
    def parse(cls, filters: Any) -> Filters:
        """Check filters in the notation of pyarrow."""
        given = list(filters) if isinstance(filters, Sequence) and not isinstance(filters, str) else []
        if isinstance(filters, tuple) and len(given) == 3 and given[1] in _OPERATORS:
            raise ValueError(f"filters must be a list of tuples: write [{filters!r:.100}]")
        if given and all(isinstance(each, list) for each in given):
            return cls(tuple(tuple(map(_checked_condition, each)) for each in given))
        if not given:
            text = f": text is a condition of ds.where({filters!r:.100})" if isinstance(filters, str) else ""
            raise ValueError(
                "filters must be a list of tuples like [('label', '==', 3)], which must all hold, or a list of such "
                f"lists, one of which must hold; got {filters!r:.100}{text}"
            )
        return cls((tuple(map(_checked_condition, given)),))

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns with conditions, as they are written: ``len(tokens)`` may be a name or a reduction."""
        return tuple(dict.fromkeys(each.column for conditions in self.alternatives for each in conditions))

    def resolve(self, schema: Schema) -> Filters:
        """Return filters of columns of a schema."""
        resolved = partial(_resolve_condition, schema=schema, joined=sum(map(len, self.alternatives)) > 1)
        return Filters(tuple(tuple(map(resolved, every)) for every in self.alternatives))

    def __call__(self, blocks: Mapping[str, Block]) -> NDArray[np.bool_]:
        """Return the rows that are kept."""
        kept = [
            np.logical_and.reduce([each.mask(blocks[each.column]) for each in every]) for every in self.alternatives
        ]
        mask: NDArray[np.bool_] = np.logical_or.reduce(kept)
        return mask


def _checked_condition(given: Any) -> Condition:
    """Check one triple of a user."""
    if not isinstance(given, tuple) or len(given) != 3 or not isinstance(given[0], str):
        raise ValueError(
            f"a filter must be a tuple of column, operator and value, in a list: write [('label', '==', 3)]; got "
            f"{given!r:.100}"
        )
    name, comparison, value = given
    if comparison not in _OPERATORS:
        raise ValueError(
            f"filter of {name!r}: the operator must be one of {', '.join(_OPERATORS)}; got {comparison!r:.50}"
        )
    if comparison in ("in", "not in"):
        if not isinstance(value, Iterable) or isinstance(value, str | bytes):
            raise ValueError(f"filter of {name!r}: {comparison!r} takes a list of values: write [{value!r:.100}]")
        value = tuple(value)
    return Condition(name, None, comparison, value)


def _resolve_condition(condition: Condition, schema: Schema, *, joined: bool) -> Condition:
    """Divide an operand into a reduction and a column, and check that they fit each other."""
    name, reduction = condition.column, None
    if name not in schema:
        for each in _REDUCTIONS:
            if name.startswith(f"{each}(") and name.endswith(")"):
                name, reduction = name[len(each) + 1 : -1], each
    if name not in schema:
        raise _unknown_column_error(condition, schema, joined=joined)
    feature = schema[name]
    scalar = feature.block_shape == () and not feature.ragged_rank and not feature.own_shapes
    if scalar and reduction is not None:
        raise SchemaError(
            f"filters: column {name!r} is {feature}, with one value per row: compare it without {reduction}"
        )
    if not scalar and reduction is None:
        raise SchemaError(
            f"filters: column {name!r} is {feature}, with several values per row: compare len({name}), any({name}) or "
            f"all({name})"
        )
    values = condition.value if condition.comparison in ("in", "not in") else (condition.value,)
    for value in values:
        _check_type(name, schema, reduction, value)
    return Condition(name, reduction, condition.comparison, condition.value)


def _unknown_column_error(condition: Condition, schema: Schema, *, joined: bool) -> UnknownFeatureError:
    """Return the error of an unknown column, with what to write for an expression, or with names that are like it.

    The condition is one of several if `joined` is True.
    """
    name, comparison = condition.column, condition.comparison
    message = f"filters: no column {name!r}"
    if advice := _advice(f"{name} {comparison} {condition.value!r}", schema):
        return UnknownFeatureError(message + ". " + advice)
    words = re.findall(r"\w[\w/]*", name)
    if words[:1] == ["not"] and words[1:2] and words[1] in schema and comparison in _NEGATED:
        rest = name.removeprefix("not").strip()
        written = _quoted(condition_text(rest, _NEGATED[comparison], condition.value))
        return UnknownFeatureError(f"{message}; write {written}")
    # Of an array with several axes, a method would reduce all rows to one number.
    method = re.fullmatch(r"(.+)\.(mean|sum|max|min|std)(?:\(\))?", name)
    if method is not None and method[1] in schema:
        computed = f"numpy.array([row.{method[2]}() for row in blocks[{method[1]!r}]])"
    else:
        computed = _as_numpy(name, schema)
    if name in words or not computed:
        return UnknownFeatureError(f"{message}{near_misses(name, schema)}")
    what = "; a condition can only compare columns, and a function can compute with them"
    error = UnknownFeatureError(message + _advise_where(what, f"{computed} {comparison} {condition.value!r}"))
    if joined:
        error.add_note("The function replaces the whole condition: join its parts by & and |, in parentheses.")
    return error


def _as_numpy(expression: str, schema: Schema) -> str:
    """Rewrite an expression of columns for blocks; an empty text if it can't be."""
    known = {"numpy", "np", "abs"}

    def block(match: re.Match[str]) -> str:
        word = match[0]
        if word in schema:
            return f"blocks[{word!r}]"
        is_function = isinstance(getattr(np, word, None), np.ufunc) and word not in known
        return f"numpy.{word}" if is_function else word

    python = re.sub(r"(?<![\w/.])[^\W\d][\w/]*", block, expression)
    try:
        names = {each.id for each in ast.walk(ast.parse(python, mode="eval")) if isinstance(each, ast.Name)}
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return ""
    return python if "blocks" in names and names <= {*known, "blocks"} else ""


_NEGATED = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">", "in": "not in", "not in": "in"}


def _check_type(name: str, schema: Schema, reduction: str | None, value: Any) -> None:
    """Refuse a value of another type than the column's."""
    dtype = schema[name].item_dtype
    kind = "i" if reduction == "len" else dtype.kind
    types = {"O": bytes, "T": str, "M": np.datetime64, "m": np.timedelta64}
    expected: Any = types.get(kind, (bool, int, float, complex, np.number, np.bool_))
    if not isinstance(value, expected):
        held = f"the length of {name!r} is a number" if reduction == "len" else f"{name!r} holds {dtype_name(dtype)}"
        message = f"filters: {held}; got {value!r:.100}"
        raise SchemaError(message + _value_advice(name, schema, kind, value))


def _value_advice(name: str, schema: Schema, kind: str, value: Any) -> str:
    """Say what to write for a value of another type."""
    if value is None:
        return ". " + _advise_function(f"{chr(_STAND_IN)} == null", lambda _: repr(name), schema)
    if isinstance(value, bytes) and kind == "T":
        return f"; compare it with {value.decode(errors='replace')!r}"
    if kind in "OT":
        return f"; compare it with {str(value).encode() if kind == 'O' else str(value)!r}"
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    if not isinstance(text, str):
        return ""
    names = schema.classes.get(name, ())
    if text in names:
        number = names.index(text)
        return f"; {text!r} is class {number}: write {condition_text(name, '==', number)}"
    if names:
        return near_misses(text, names)
    try:
        return f"; compare it with {ast.literal_eval(text.title() if text.lower() in ('true', 'false') else text)!r}"
    except (ValueError, SyntaxError):
        return "; compare it with a number"


@dataclass(frozen=True, slots=True)
class UserMask:
    """Function of a user that chooses rows."""

    function: MaskFunction

    def __dask_tokenize__(self) -> object:
        return "dask_tfrecord.UserMask", function_parts(self.function)

    def __call__(self, blocks: Mapping[str, Block]) -> NDArray[np.bool_]:
        """Call the function, and check its result."""
        rows = len(next(iter(blocks.values())))
        try:
            returned = self.function(UserBlocks(blocks))
        except KeyError as error:
            if unknown := unknown_column(error, tuple(blocks)):
                error.add_note(f"where: {unknown}")
            raise
        mask = np.asarray(host_array(returned, "where: the mask"))
        if mask.dtype != bool or mask.shape != (rows,):
            raise SchemaError(
                f"where: expected a mask of the rows, which is a bool array of shape ({rows},); the function returned "
                f"{mask.dtype} of shape {mask.shape}: compare each row, as in blocks['label'] > 2"
            )
        return mask


Mask = Filters | UserMask


@dataclass(frozen=True, slots=True, eq=False)
class Filtered(Step):
    """Rows for which a mask is true."""

    mask: Mask
    tested: tuple[str, ...]
    schema: Schema

    keeps_rows = False

    def __dask_tokenize__(self) -> object:
        return normalize_token(("dask_tfrecord.Filtered", self.mask, self.tested))

    @property
    def derivation(self) -> object:
        """Columns that the mask is computed from, and filters."""
        return self.tested, None if isinstance(self.mask, UserMask) else self.mask

    def needs(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the columns, and those that are tested."""
        return tuple(dict.fromkeys([*self.tested, *names]))

    def where(self, place: Place) -> Where:
        """Return the tested columns and the mask."""
        return Where(self.tested, partial(self.test, place=place))

    def test(self, blocks: Mapping[str, Block], place: Place) -> NDArray[np.bool_]:
        """Return the mask of the rows of a place."""
        with note_rows_on_error(place.describe, "where"):
            return self.mask(blocks)

    def apply(self, blocks: Mapping[str, Block], names: Sequence[str], place: Place) -> dict[str, Block]:
        """Keep the rows for which the mask is true."""
        kept = np.flatnonzero(self.test({name: blocks[name] for name in self.tested}, place))
        return {name: take_rows(blocks[name], kept) for name in names}


def where(rows: Rows, filters: Sequence[Any], *, count: bool = True) -> Rows:
    """Keep the rows that meet filters, as `Dataset.where` documents them."""
    mask = Filters.parse(filters).resolve(rows.schema)
    return filter_rows(rows, mask, mask.columns, count=count)


def filter_rows(rows: Rows, mask: Mask, tested: tuple[str, ...], *, count: bool = True) -> Rows:
    """Choose the rows of a mask; counted rows are tested now, in a task for each chunk, unless `count` is False."""
    rows = rows.merged()
    step = Filtered(mask, tested, rows.stored_schema)
    if not count or rows.borders is None:
        return replace(rows.apply(step), selected=rows.selected)
    return rows.select(rows.compute_by_chunk(step.test, "mask", tested, rows.sizes, bool))


# A token of a condition: white space, a word, text in quotes that are closed, or one other character. Each expression
# matches at one place and goes back nowhere, so the time is proportional to the length of the text.
_SPACE, _WORD = re.compile(r"\s+"), re.compile(r"\w+")
_QUOTED = {quote: re.compile(rf"{quote}(?:[^{quote}\\]|\\.)*+{quote}", re.DOTALL) for quote in "'\""}
# Names that need no quotes, unless they are a word of the syntax.
_PLAIN = re.compile(r"(?!(?:in|not|and|or)\Z)[^\W\d][\w/]*")


def _tokens(text: str, unclosed: str = "") -> list[str]:
    """Divide a text into tokens, which joined are the text; quotes in `unclosed` are characters like others."""
    tokens: list[str] = []
    at = 0
    while at < len(text):
        quote = text[at]
        match = _SPACE.match(text, at) or _WORD.match(text, at)
        if quote in _QUOTED and quote not in unclosed:
            match = _QUOTED[quote].match(text, at)
            # All later quotes of this kind are escaped from here on, so none of them is closed.
            unclosed += "" if match else quote
        tokens.append(match[0] if match else quote)
        at += len(tokens[-1])
    return tokens


def _after_space(tokens: Sequence[str], at: int) -> int:
    return at + 1 if at < len(tokens) and tokens[at].isspace() else at


def _operator_at(tokens: Sequence[str], at: int) -> tuple[str, int]:
    """Return the operator at a place, and the place after it; an empty text without one."""
    first, second, third = (*tokens[at : at + 3], "", "", "")[:3]
    if first + second in _COMPARISONS and second:
        return first + second, at + 2
    if first in ("<", ">"):
        return first, at + 1
    if first == "not" and second.isspace() and third == "in":
        return "not in", at + 3
    return ("in", at + 1) if first == "in" else ("", at)


def _quoted_column(tokens: Sequence[str]) -> tuple[str, int] | None:
    """Return a name in quotes, or its reduction, and the place after it; None for other texts."""
    reduction, at = "", 0
    if len(tokens) > 1 and tokens[0] in _REDUCTIONS and tokens[1] == "(":
        reduction, at = tokens[0], _after_space(tokens, 2)
    if at == len(tokens) or tokens[at][0] not in _QUOTED or len(tokens[at]) < 2:
        return None
    quoted, at = tokens[at], _after_space(tokens, at + 1)
    is_closed = at < len(tokens) and tokens[at] == ")"
    after = _after_space(tokens, at + 1) if is_closed else at
    if not _operator_at(tokens, after)[0]:
        return None
    if bool(reduction) != is_closed:
        raise ValueError("a parenthesis is missing")
    name = ast.literal_eval(quoted)
    return f"{reduction}({name})" if reduction else name, after


def _parse_text(tokens: Sequence[str]) -> tuple[str, str, Any]:
    """Parse the tokens of one condition into column, operator and value."""
    tokens = tokens[_after_space(tokens, 0) :]
    parsed = _quoted_column(tokens)
    if parsed is None:
        # The name ends at the first operator after its first token, and quotes in it are a part of it.
        tokens = _tokens("".join(tokens), unclosed="'\"")
        at = next(place for place in range(1, len(tokens)) if _operator_at(tokens, place)[0])
        parsed = "".join(tokens[:at]).rstrip(), at
    column, at = parsed
    comparison, at = _operator_at(tokens, at)
    return column, comparison, ast.literal_eval("".join(tokens[at:]).strip())


# Conditions that show the forms.
_LIKE = '"label == 3", "name == \'cat\'", "len(tokens) > 5" or "label in [1, 2]"'
# Letters that replace texts in quotes while a text is rewritten.
_STAND_INS, _STAND_IN = re.compile("[\ue000-\uf8ff]"), 0xE000
_NAME = r"[^\W\d][\w/]*(?:\([^()\s]*\))?|[\ue000-\uf8ff]"
_OPERAND = r"[-+.\w\ue000-\uf8ff]+"
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
# Notation of SQL, pandas and C: its pattern, the notation of conditions, and the advice.
_REWRITTEN: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), written, advice)
    for pattern, written, advice in (
        (r"\s*(&&?)\s*", " and ", "'and' instead of {!r}"),
        (r"\s*(\|\|?)\s*", " or ", "'or' instead of {!r}"),
        (r"\b(AND|OR|NOT|IN)\b", lambda match: match[0].lower(), ""),
        (r"<>", "!=", "'!=' instead of '<>'"),
        (r"=\s*([<>])", r"\1=", "'{}='"),
        (r"\s*(?:===|(?<![=!<>~])=(?![=~]))\s*", " == ", "two equals signs"),
        (r"\s*;\s*$", "", ""),
        (r"\b(?:size|count|length|cardinality)\(", "len(", "'len'"),
        (rf"({_NAME})\.(?:len\(\)|length|size|shape\[0\])", r"len(\1)", "'len'"),
        (rf"({_NAME})\s+between\s+({_OPERAND})\s+and\s+({_OPERAND})", r"\1 >= \2 and \1 <= \3", "two comparisons"),
        (rf"({_NAME})\.between\(\s*({_OPERAND})\s*,\s*({_OPERAND})\s*\)", r"\1 >= \2 and \1 <= \3", "two comparisons"),
        (rf"({_NAME})\.isin\((.*)\)", r"\1 in \2", "'in' and a list"),
        (rf"({_NAME})\s+(?:is|eq|equals)\s+(?={_OPERAND}$)", r"\1 == ", "two equals signs"),
        (
            rf"(?<![\w.])({_OPERAND})\s*(<=?|>=?)\s*({_NAME})\s*(<=?|>=?)\s*({_OPERAND})",
            lambda match: f"{match[3]} {_MIRRORED[match[2]]} {match[1]} and {match[3]} {match[4]} {match[5]}",
            "two comparisons",
        ),
        (
            rf"(?<![\w.])([-+]?\d[\w.]*)\s*(<=?|>=?|==|!=)\s*({_NAME})(?!\w)",
            lambda match: f"{match[3]} {_MIRRORED[match[2]]} {match[1]}",
            "the column first",
        ),
        (rf"(^|\s(?:and|or)\s+)(?:not\s+|!|~)\s*({_NAME})(?=\s+(?:and|or)\s|$)", r"\1\2 == False", "a comparison"),
        (r"(==|!=)\s*(true|false)\b", lambda match: f"{match[1]} {match[2].title()}", "True or False"),
        (
            r"(==|!=)\s*(?!(?:True|False|None)\b)([^\W\d]\w*(?:\s+(?!(?:and|or)\s)\w+)*)(?=\s+(?:and|or)\s|\s*$)",
            lambda match: f"{match[1]} {match[2]!r}",
            "text in quotes",
        ),
    )
)
# Only a function can test these: NaN, parts of a text, and two columns.
_MISSING = re.compile(
    rf"({_NAME})(?:\s*==\s*(?:(?:np|numpy)\.)?(?:null|nan|none)|\s+is\s+(?:null|nan|none)|\.is(?:na|null|nan)\(\))|"
    rf"is_?(?:na|null|nan)\(({_NAME})\)",
    re.IGNORECASE,
)
_PRESENT = re.compile(
    rf"({_NAME})(?:\s*!=\s*(?:(?:np|numpy)\.)?(?:null|nan|none)|\s+is\s+not\s+(?:null|nan|none)|\.not(?:na|null)\(\))",
    re.IGNORECASE,
)
_PART = re.compile(
    rf"({_NAME})(?:\.str)?[.\s]\s*(like|ilike|contains|startswith|starts_with|endswith|ends_with|match|matches|regexp?|rlike)"
    rf"\b[\s(]*([\ue000-\uf8ff]|\w+)\)?",
    re.IGNORECASE,
)
_COLUMNS = re.compile(rf"({_NAME})\s*(==|!=|<=?|>=?)\s*({_NAME})")
# A name, or with an operator.
_WITHOUT_VALUE = re.compile(r"((?!(?:in|not|and|or)\Z)[^\W\d][\w/]*(?:\([^()]*\))?)(\s*(?:==|!=|<=?|>=?)\s*)?")
_ORDER = 'for "(a or b) and c" write "a and c or b and c"'
# Longer texts are not rewritten, because patterns take a time that grows faster than the text.
_MOST_REWRITTEN = 400


def _advice(text: str, schema: Schema | None) -> str:
    """Say what to write for a text that does not parse as conditions: conditions that do, or a function."""
    if not text:
        return f"It is empty: conditions look like {_LIKE}"
    if len(text) > _MOST_REWRITTEN or _STAND_INS.search(text):
        return ""
    quoted: list[str] = []

    def stand_in(token: str) -> str:
        quoted.append(token)
        return chr(_STAND_IN + len(quoted) - 1)

    def back(plain: str) -> str:
        return _STAND_INS.sub(lambda match: quoted[ord(match[0]) - _STAND_IN], plain)

    plain = "".join(stand_in(each) if each[0] in _QUOTED and len(each) > 1 else each for each in _tokens(text))
    plain = re.sub("`([^`]+)`", lambda match: stand_in(repr(match[1])), plain)
    if function := _advise_function(plain, back, schema):
        return function
    if match := _WITHOUT_VALUE.fullmatch(text):
        return f"Write a value after it: {_quoted(match[1] + (match[2] or ' == ').rstrip() + ' 3')}"
    advised: list[str] = []
    for pattern, replacement, advice in _REWRITTEN:
        if found := pattern.search(plain):
            plain = pattern.sub(replacement, plain)
            advised.append(advice.format(found[1] if found.lastindex else ""))
    bare = _without_parentheses(plain.strip())
    if not bare and _parse_alternatives(back(plain)) is None:
        return f"Conditions have no parentheses: {_ORDER}"
    written = back(bare or plain.strip())
    if written == text or _parse_alternatives(written) is None:
        return ""
    said = " and ".join(each for each in dict.fromkeys(advised) if each)
    if not said and text.startswith("("):
        return f"Leave out the parentheses: {_quoted(written)}"
    return f"{'Write' if not said else f'Write {said}'}: {_quoted(written)}"


def _advise_function(plain: str, back: Callable[[str], str], schema: Schema | None) -> str:
    """Return the advice to write a function for what conditions can't test; empty for other texts."""
    for pattern, sign in ((_PRESENT, "~"), (_MISSING, "")):
        if match := pattern.search(plain):
            name = _unquoted(back(match[1] or match[2]))
            if schema is not None and name in schema and schema[name].item_dtype.kind not in "fcMm":
                return f"Column {name!r} is {dtype_name(schema[name].item_dtype)}, which is never NaN or missing"
            return _advise_where("Conditions do not find NaN", f"{sign}numpy.isnan(blocks[{name!r}])")
    if match := _PART.search(plain):
        name, part = _unquoted(back(match[1])), _unquoted(back(match[3])).strip("%*.^$")
        is_text = schema is not None and name in schema and schema[name].item_dtype.kind == "T"
        value: Any = part if is_text else part.encode()
        test = f"{value!r} in each"
        if match[2].lower().startswith(("start", "end")):
            test = f"each.{match[2].lower().replace('_', '')}({value!r})"
        return _advise_where("Conditions compare the whole text", f"[{test} for each in blocks[{name!r}]]")
    if (match := _COLUMNS.fullmatch(plain)) and schema is not None:
        first, second = _unquoted(back(match[1])), _unquoted(back(match[3]))
        if first in schema and second in schema:
            return _advise_where(
                "A condition compares a column with a value", f"blocks[{first!r}] {match[2]} blocks[{second!r}]"
            )
    return ""


def _unquoted(text: str) -> str:
    return str(ast.literal_eval(text)) if text[0] in _QUOTED else text


def _advise_where(what: str, expression: str) -> str:
    function = f"{what}: write ds.where(lambda blocks: {expression})"
    return Spelled(function, f"{function} in Python")


def _without_parentheses(text: str) -> str:
    """Remove parentheses around conditions; return no text if that would change the meaning."""
    if "(" not in text:
        return text
    parts = re.split(r"(\s+(?:and|or)\s+)", text)
    if len({part.strip() for part in parts[1::2]}) > 1:
        return ""
    for at in range(0, len(parts), 2):
        part = parts[at].strip().lstrip("(")
        while part.endswith(")") and part.count(")") > part.count("("):
            part = part[:-1].rstrip()
        parts[at] = part
    return "".join(parts)


def _quoted(text: str) -> str:
    return f'"{text}"'


def condition_text(name: str, comparison: str, value: Any) -> str:
    """Write a condition that `parse_expression` reads, whatever the name is."""
    return f"{name if _PLAIN.fullmatch(name) else repr(name)} {comparison} {value!r}"


# Lists of conditions: a row is kept if all conditions of at least one list hold.
Alternatives = list[list[tuple[str, str, Any]]]


def parse_expression(text: str, schema: Schema | None = None) -> Alternatives:
    """Parse conditions that ``and`` and ``or`` join, without parentheses, to alternatives of conditions.

    A condition is ``COLUMN OP VALUE``, with a VALUE in the syntax of Python. COLUMN is a name, or ``len``, ``any`` or
    ``all`` of a name. A name with an operator, a quote, " and " or " or ", or with spaces at its ends, is written like
    text of Python: ``'log-in' == 3``, ``len("a > b") > 0``. Errors know the columns of a schema.
    """
    alternatives = _parse_alternatives(text)
    if alternatives is None:
        quotes = "Write a name with operators, quotes or spaces in quotes: \"'log-in' == 3\""
        advice = _advice(text.strip(), schema) or f"Conditions look like {_LIKE}. {quotes}"
        raise ValueError(f"{text!r:.200} is not a condition. " + advice)
    return alternatives


def _parse_alternatives(text: str) -> Alternatives | None:
    """Return the conditions of a text; None if it has others."""
    alternatives: Alternatives = [[]]
    tokens = _tokens(text)
    start = 0
    try:
        for at in range(1, len(tokens) - 1):
            before, word, after = tokens[at - 1 : at + 2]
            # The space after one word does not stand before the next one as well.
            if word in ("and", "or") and at > start and before.isspace() and after.isspace():
                alternatives[-1].append(_parse_text(tokens[start : at - 1]))
                start = at + 2
                if word == "or":
                    alternatives.append([])
        alternatives[-1].append(_parse_text(tokens[start:]))
    except (ValueError, SyntaxError, MemoryError, RecursionError, StopIteration):
        return None
    return alternatives


def parse_expressions(texts: Iterable[str]) -> Alternatives:
    """Parse conditions that must all hold. Without a text the result is empty."""
    parsed = list(map(parse_expression, texts))
    return [[*itertools.chain(*chosen)] for chosen in itertools.product(*parsed)] if parsed else []


def as_stored(schema: Schema, alternatives: Alternatives) -> Alternatives:
    """Return conditions with text as bytes where the column has bytes, and as times where it has times."""

    def stored(name: str, comparison: str, value: Any) -> tuple[str, str, Any]:
        feature = schema.get(name) or schema.get(name.partition("(")[2].removesuffix(")"))
        return name, comparison, value if feature is None else _as_stored_value(feature.item_dtype, value)

    return [[stored(*each) for each in every] for every in alternatives]


def _as_stored_value(dtype: np.dtype[Any], value: Any) -> Any:
    """Convert a text, or the texts of a list, to the type that a column holds."""
    if isinstance(value, list | tuple | set):
        return [_as_stored_value(dtype, each) for each in value]
    if isinstance(value, str) and dtype.kind in "Mm":
        return parse_time(value, is_duration=dtype.kind == "m")
    return value.encode() if isinstance(value, str) and dtype.kind == "O" else value
