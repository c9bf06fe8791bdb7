"""Filters: rows chosen by the values of some of their columns."""

from __future__ import annotations

import ast
import itertools
import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from dask.base import normalize_token, tokenize
from fsspec.utils import stringify_path
from numpy.typing import NDArray

from dask_tfrecord.blocks import (
    ArraysBlock,
    Block,
    BytesBlock,
    RaggedBlock,
    frozen,
    splits_of,
    take_rows,
    texts,
    to_array,
)
from dask_tfrecord.columns.conversions import host_array
from dask_tfrecord.columns.items import row_lengths
from dask_tfrecord.errors import SchemaError, Spelled, UnknownFeatureError, near_misses, redact_url
from dask_tfrecord.features import Feature, dtype_name
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.markup import parse_time
from dask_tfrecord.rows.engine import da
from dask_tfrecord.rows.rows import Chunk, Rows, block_array, describe_chunk, each_chunk, files_of
from dask_tfrecord.rows.sources import DerivedChunks, UncountedChunks, UserBlocks, note_rows_on_error, unknown_column
from dask_tfrecord.shards.remote import read_text

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
# Function from a dict of blocks of n rows to a mask of n rows.
MaskFunction = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Condition:
    """Comparison of a column with a value, or of the lengths, any or all of its values.

    A comparison may begin with "not", which NaN makes differ from the opposite one.
    """

    column: str
    reduction: str | None
    comparison: str
    value: Any

    def mask(self, block: Block) -> NDArray[np.bool_]:
        """Return the rows for which the condition holds."""
        if self.reduction == "len":
            return self._compare(_lengths(block))
        if self.reduction is None:
            return self._compare(to_array(block))
        values, row_splits = _flat(block)
        held = np.diff(splits_of(self._compare(to_array(values)))[row_splits])
        return held > 0 if self.reduction == "any" else held == np.diff(row_splits)

    def _compare(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        comparison = self.comparison.removeprefix("not ")
        if comparison in _COMPARISONS:
            # NumPy would drop zero bytes at the end of bytes and text.
            value = np.array(self.value, values.dtype) if values.dtype.kind in "OT" else self.value
            # A Python float takes the dtype of the values, like 0.1 of float32.
            with np.errstate(over="ignore"):
                found = _COMPARISONS[comparison](values, value)
        elif values.dtype.kind in "OT":
            found = np.fromiter((value in self.value for value in values.ravel()), bool, values.size)
        else:
            found = _is_in(values, self.value)
        mask = np.asarray(found, bool).reshape(values.shape)
        return ~mask if comparison != self.comparison else mask


def _is_in(values: NDArray[Any], listed: Sequence[Any]) -> NDArray[np.bool_]:
    """Return which numbers or times equal one of a list, with integers compared as integers.

    NumPy would convert a list of integers with a fraction, or with one beyond int64, to float64, where 2**53 + 1 is
    2**53.
    """
    if values.dtype.kind not in "iu":
        return np.isin(values, np.asarray(listed, values.dtype if values.dtype.kind == "f" else None))
    whole = [int(value) for value in listed if isinstance(value, int | np.integer | np.bool_)]
    others = [value for value in listed if not isinstance(value, int | np.integer | np.bool_)]
    limits = np.iinfo(values.dtype)
    whole = [value for value in whole if limits.min <= value <= limits.max]
    return np.isin(values, np.array(whole, values.dtype)) | np.isin(values, np.array(others))


def _lengths(block: Block) -> NDArray[np.int64]:
    is_ragged = isinstance(block, RaggedBlock | ArraysBlock)
    return row_lengths(block) if is_ragged else np.full(len(block), block.shape[1], np.int64)


def _flat(block: Block) -> tuple[NDArray[Any] | BytesBlock, NDArray[np.int64]]:
    """Return all values of all rows, along one axis, and the offsets between rows."""
    if isinstance(block, RaggedBlock):
        values, inner = _flat(block.values)
        return values, inner[block.row_splits]
    if isinstance(block, ArraysBlock):
        return block.values, block.row_splits
    width = math.prod(block.shape[1:])
    return block.reshape((len(block) * width,)), np.arange(len(block) + 1) * width


@dataclass(frozen=True, slots=True)
class Filters:
    """Alternatives, each of which is a list of conditions that all hold."""

    alternatives: tuple[tuple[Condition, ...], ...]

    @classmethod
    def parse(cls, filters: Any) -> Filters:
        """Check filters in the notation of pyarrow."""
        given = list(filters) if isinstance(filters, Sequence) and not isinstance(filters, str) else []
        if isinstance(filters, tuple) and len(given) == 3 and given[1] in _OPERATORS:
            raise ValueError(f"filters are a list of tuples: write [{filters!r:.100}]")
        if given and all(isinstance(each, list) for each in given):
            return cls(tuple(tuple(map(_condition, each)) for each in given))
        if not given:
            text = f": text is a condition of ds.where({filters!r:.100})" if isinstance(filters, str) else ""
            raise ValueError(
                f"filters are a list of triples like [('label', '==', 3)], all of which hold, or a list of such lists, "
                f"one of which holds; got {filters!r:.100}{text}"
            )
        return cls((tuple(map(_condition, given)),))

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns with conditions, as they are written: ``len(tokens)`` may be a name or a reduction."""
        return tuple(dict.fromkeys(each.column for conditions in self.alternatives for each in conditions))

    def resolve(self, schema: Schema) -> Filters:
        """Return filters of columns of a schema."""
        joined = sum(map(len, self.alternatives)) > 1
        return Filters(tuple(tuple(_resolved(each, schema, joined) for each in every) for every in self.alternatives))

    def __call__(self, blocks: Mapping[str, Block]) -> NDArray[np.bool_]:
        """Return the rows that are kept."""
        kept = [
            np.logical_and.reduce([each.mask(blocks[each.column]) for each in every]) for every in self.alternatives
        ]
        mask: NDArray[np.bool_] = np.logical_or.reduce(kept)
        return mask


def _condition(given: Any) -> Condition:
    if not isinstance(given, tuple) or len(given) != 3 or not isinstance(given[0], str):
        raise ValueError(
            f"a filter is a tuple of column, operator and value, in a list: write [('label', '==', 3)]; got "
            f"{given!r:.100}"
        )
    name, comparison, value = given
    if comparison not in _OPERATORS:
        raise ValueError(f"filter of {name!r}: the operator is one of {', '.join(_OPERATORS)}; got {comparison!r:.50}")
    if comparison in ("in", "not in"):
        if not isinstance(value, Iterable) or isinstance(value, str | bytes):
            raise ValueError(f"filter of {name!r}: {comparison!r} takes a list of values; got {value!r:.100}")
        value = tuple(value)
    return Condition(name, None, comparison, value)


def _resolved(condition: Condition, schema: Schema, joined: bool) -> Condition:
    name, reduction = condition.column, None
    if name not in schema:
        for each in _REDUCTIONS:
            if name.startswith(f"{each}(") and name.endswith(")"):
                name, reduction = name[len(each) + 1 : -1], each
    if name not in schema:
        raise _unknown(condition, schema, joined)
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
        _check_type(name, feature, reduction, value)
    return Condition(name, reduction, condition.comparison, condition.value)


def _unknown(condition: Condition, schema: Schema, joined: bool) -> UnknownFeatureError:
    """Return the error of an unknown column, with what to write for an expression, or with names that are like it.

    The condition is one of several if `joined` is True.
    """
    name, comparison = condition.column, condition.comparison
    message = f"filters: no column {name!r}"
    words = re.findall(r"\w[\w/]*", name)
    if words[:1] == ["not"] and words[1:2] and words[1] in schema and comparison in _NEGATED:
        rest = name.removeprefix("not").strip()
        written = _quoted(condition_text(rest, _NEGATED[comparison], condition.value))
        return UnknownFeatureError(f"{message}; write {written}")
    column = next((word for word in words if word in schema), None)
    if column is None or name == column or not re.search(r"[^\w/]", name):
        return UnknownFeatureError(f"{message}{near_misses(name, schema)}")
    python = re.sub(rf"(?<![\w/]){re.escape(column)}(?![\w/])", f"blocks[{column!r}]", name)
    function = f"ds.where(lambda blocks: {python} {comparison} {condition.value!r})"
    text = "; a condition compares a column, and a function computes from columns: "
    error = UnknownFeatureError(message + Spelled(f"{text}write {function}", f"{text}write {function} in Python"))
    if joined:
        error.add_note("The function replaces the whole condition: join its parts by & and |, in parentheses.")
    return error


_NEGATED = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">", "in": "not in", "not in": "in"}


def _check_type(name: str, feature: Feature, reduction: str | None, value: Any) -> None:
    dtype = feature.item_dtype
    kind = "i" if reduction == "len" else dtype.kind
    types = {"O": bytes, "T": str, "M": np.datetime64, "m": np.timedelta64}
    expected: Any = types.get(kind, (bool, int, float, complex, np.number, np.bool_))
    if not isinstance(value, expected):
        column = "the number of its values" if reduction == "len" else dtype_name(dtype)
        hint = f"; give {value.encode()!r}" if isinstance(value, str) and kind == "O" else ""
        raise SchemaError(f"filters: column {name!r} is compared as {column}; got {value!r:.100}{hint}")


@dataclass(frozen=True, slots=True)
class UserMask:
    """Function of a user that chooses rows."""

    function: MaskFunction

    def __call__(self, blocks: Mapping[str, Block]) -> NDArray[np.bool_]:
        """Call the function, and check its result."""
        rows = len(next(iter(blocks.values())))
        try:
            found = self.function(UserBlocks(blocks))
        except KeyError as error:
            if unknown := unknown_column(error, tuple(blocks)):
                error.add_note(f"where: {unknown}")
            raise
        except ValueError as error:
            if "truth value of an array" in str(error):
                error.add_note(
                    "where: the function gets arrays of several rows: write & for `and`, | for `or` and ~ for `not`: "
                    "(blocks['label'] > 2) & (blocks['label'] < 5)"
                )
            raise
        mask = np.asarray(host_array(found, "where: the mask"))
        if mask.dtype != bool or mask.shape != (rows,):
            raise SchemaError(
                f"where: expected a mask of the rows, which is a bool array of shape ({rows},); the function returned "
                f"{mask.dtype} of shape {mask.shape}"
            )
        return mask


# Numbers of items lie below this.
_MOST_ITEMS = 1 << 31


@dataclass(frozen=True, slots=True, eq=False)
class KeptRanges:
    """Ranges of the numbers of items, by the key of their record.

    A place is the number of the key times `_MOST_ITEMS`, and the number of the item.
    """

    keys: tuple[str, ...]
    number: str
    separator: str
    # Number of each key.
    known: Mapping[str, int]
    # Places of the beginnings and ends of all ranges, each in ascending order.
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    @classmethod
    def parse(
        cls,
        schema: Schema,
        keys: tuple[str, ...],
        number: str,
        separator: str,
        given: Any,
        storage_options: Mapping[str, Any] | None,
    ) -> KeptRanges:
        """Check the columns, and read the ranges; `Dataset.where_ranges` documents the errors."""
        for name, kinds in (*((name, "OT") for name in keys), (number, "iu")):
            if name not in schema:
                hint = f"; explode(…, number={number!r}) adds it" if name == number else ""
                raise UnknownFeatureError(f"where_ranges: no column {name!r}{near_misses(name, schema)}{hint}")
            feature = schema[name]
            if feature.item_dtype.kind not in kinds or feature.block_shape or feature.ragged_rank:
                what = "an int" if name == number else "text or bytes"
                raise SchemaError(f"where_ranges: column {name!r} is {feature}; expected {what} per row")
        if not keys:
            raise ValueError("where_ranges: the key needs at least one column")
        where = ""
        if not isinstance(given, Mapping):
            where = f" of {redact_url(str(stringify_path(given)))}"
            text = read_text(given, storage_options)
            if text is None:
                raise FileNotFoundError(f"where_ranges: the file{where} does not exist")
            given = json.loads(text)
        pairs = []
        try:
            for key, ranges in given.items():
                array = np.array(ranges or np.zeros((0, 2)), np.float64)
                if array.ndim != 2 or array.shape[1] != 2 or not (array == np.floor(array)).all():
                    raise ValueError(f"key {key!r} has {ranges!r:.100}")
                pairs.append(array.clip(0, _MOST_ITEMS - 1).astype(np.int64))
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"where_ranges: expected pairs of a first item and an end for each key{where}, like "
                f"{{'key': [[0, 100]]}}: {error}"
            ) from error
        ranges = np.concatenate([np.zeros((0, 2), np.int64), *pairs])
        places = ranges + np.repeat(np.arange(len(pairs)), [len(each) for each in pairs])[:, None] * _MOST_ITEMS
        starts, stops = places[ranges[:, 0] < ranges[:, 1]].T
        known = {key: place for place, key in enumerate(given)}
        return cls(keys, number, separator, known, np.sort(starts), np.sort(stops))

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the mask is computed from."""
        return *self.keys, self.number

    def __call__(self, blocks: Mapping[str, Block]) -> NDArray[np.bool_]:
        """Return the items that are kept."""
        parts = (texts(blocks[name]) for name in self.keys)
        keys = map(self.separator.join, zip(*parts, strict=True))
        numbers = to_array(blocks[self.number]).astype(np.int64)
        place = np.fromiter((self.known.get(key, -1) for key in keys), np.int64, len(numbers))
        at = place * _MOST_ITEMS + numbers
        # Ranges of the keys before have begun and ended.
        begun, ended = (np.searchsorted(borders, at, side="right") for borders in (self.starts, self.stops))
        kept: NDArray[np.bool_] = (begun > ended) & (place >= 0)
        return kept


Mask = Filters | UserMask | KeptRanges


@dataclass(frozen=True, slots=True, eq=False)
class FilteredSource(DerivedChunks):
    """Rows of the chunks of a source for which a mask is true."""

    source: UncountedChunks
    mask: Mask
    tested: tuple[str, ...]

    def __dask_tokenize__(self) -> object:
        return normalize_token(("dask_tfrecord.FilteredSource", self.source, self.mask, self.tested))

    @property
    def schema(self) -> Schema:
        """Schema of the source."""
        return self.source.schema

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the source."""
        return tuple(self.source.schema)

    @property
    def derivation(self) -> object:
        """Columns that the mask is computed from, and filters."""
        return self.tested, None if isinstance(self.mask, UserMask) else self.mask

    def read_chunk(self, names: Sequence[str], number: int) -> dict[str, Block]:
        """Read a chunk, and keep the rows for which the mask is true."""

        def mask(blocks: Mapping[str, Block]) -> NDArray[np.bool_]:
            with note_rows_on_error(partial(self.describe_chunk, number), "where"):
                return self.mask(blocks)

        return self.source.read_chunk_where(names, number, (self.tested, mask))


def where(rows: Rows, filters: Sequence[Any], *, count: bool = True) -> Rows:
    """Keep the rows that meet filters, as `Dataset.where` documents them."""
    mask = Filters.parse(filters).resolve(rows.schema)
    return filter_rows(rows, mask, mask.columns, count=count)


def filter_rows(rows: Rows, mask: Mask, tested: tuple[str, ...], *, count: bool = True) -> Rows:
    """Choose the rows of a mask; counted rows are tested now, in a task for each chunk, unless `count` is False."""
    rows = rows.merged()
    count = count and rows.borders is not None
    chunked = rows.chunked_source
    if not count and chunked is not None:
        found = Rows.of_source(FilteredSource(chunked, mask, tested), None, rows.nchunks)
        return replace(found, selected=rows.selected, backend=rows.backend)
    option = mask, tested, rows.sizes, files_of(rows.origin)
    if not count:
        stored = rows.stored_schema
        chunks = each_chunk(_kept, option, rows.chunks(tuple(stored)))
        uncounted = Rows.of_chunks(chunks, stored, (np.nan,) * rows.nchunks, rows.origin, rows.rechunked)
        return replace(uncounted, selected=rows.selected, backend=rows.backend)
    chunks = rows.chunks(tested)
    name = f"tfrecord-mask-{tokenize(chunks.name, option)}"
    numbers = da.arange(rows.nchunks, chunks=1)
    kept = block_array(_mask, chunks, option, name, (rows.sizes,), np.dtype(bool), numbers)
    return rows.select(kept.compute())


_Option = tuple[Mask, tuple[str, ...], tuple[float, ...], str]


def _mask(chunk: Chunk, option: _Option, number: NDArray[np.int64]) -> NDArray[np.bool_]:
    mask, tested, sizes, files = option
    with note_rows_on_error(lambda: describe_chunk(sizes, files, int(number[0])), "where"):
        return mask({name: frozen(chunk.blocks[name]) for name in tested})


def _kept(chunk: Chunk, option: _Option, block_id: tuple[int] = (0,)) -> Chunk:
    kept = np.flatnonzero(_mask(chunk, option, np.array(block_id)))
    return Chunk({name: take_rows(block, kept) for name, block in chunk.blocks.items()})


# A token of a condition: white space, a word, text in quotes that are closed, or one other character. Each expression
# matches at one place and goes back nowhere, so the time is proportional to the length of the text.
_SPACE, _WORD = re.compile(r"\s+"), re.compile(r"\w+")
_QUOTED = {quote: re.compile(rf"{quote}(?:[^{quote}\\]|\\.)*+{quote}", re.DOTALL) for quote in "'\""}
# Names that need no quotes, unless they are a word of the syntax.
_PLAIN = re.compile(r"(?!(?:in|not|and|or)\Z)[^\W\d][\w/]*")


def _tokens(text: str, unclosed: str = "") -> list[str]:
    """Divide a text into tokens, which joined are the text; quotes in `unclosed` are characters like others."""
    found: list[str] = []
    at = 0
    while at < len(text):
        quote = text[at]
        match = _SPACE.match(text, at) or _WORD.match(text, at)
        if quote in _QUOTED and quote not in unclosed:
            match = _QUOTED[quote].match(text, at)
            # All later quotes of this kind are escaped from here on, so none of them is closed.
            unclosed += "" if match else quote
        found.append(match[0] if match else quote)
        at += len(found[-1])
    return found


def _after_space(tokens: Sequence[str], at: int) -> int:
    return at + 1 if at < len(tokens) and tokens[at].isspace() else at


def _operator(tokens: Sequence[str], at: int) -> tuple[str, int]:
    """Return the operator at a place, and the place after it; no text if there is none."""
    first, second, third = (*tokens[at : at + 3], "", "", "")[:3]
    if first + second in _COMPARISONS and second:
        return first + second, at + 2
    if first in ("<", ">"):
        return first, at + 1
    if first == "not" and second.isspace() and third == "in":
        return "not in", at + 3
    return ("in", at + 1) if first == "in" else ("", at)


def _quoted_column(tokens: Sequence[str]) -> tuple[str, int] | None:
    """Return a name in quotes, or the reduction of one, and the place after it; None if there is none."""
    reduction, at = "", 0
    if len(tokens) > 1 and tokens[0] in _REDUCTIONS and tokens[1] == "(":
        reduction, at = tokens[0], _after_space(tokens, 2)
    if at == len(tokens) or tokens[at][0] not in _QUOTED or len(tokens[at]) < 2:
        return None
    quoted, at = tokens[at], _after_space(tokens, at + 1)
    is_closed = at < len(tokens) and tokens[at] == ")"
    after = _after_space(tokens, at + 1) if is_closed else at
    if not _operator(tokens, after)[0]:
        return None
    if bool(reduction) != is_closed:
        raise ValueError("a parenthesis is missing")
    name = ast.literal_eval(quoted)
    return f"{reduction}({name})" if reduction else name, after


def _parse(tokens: Sequence[str], whole: Sequence[str]) -> tuple[str, str, Any]:
    text = "".join(tokens)
    try:
        tokens = tokens[_after_space(tokens, 0) :]
        found = _quoted_column(tokens)
        if found is None:
            # The name ends at the first operator after its first token, and quotes in it are a part of it.
            tokens = _tokens("".join(tokens), unclosed="'\"")
            at = next(place for place in range(1, len(tokens)) if _operator(tokens, place)[0])
            found = "".join(tokens[:at]).rstrip(), at
        column, at = found
        comparison, at = _operator(tokens, at)
        return column, comparison, ast.literal_eval("".join(tokens[at:]).strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError, StopIteration):
        # Parentheses and operators may join several conditions.
        is_joined = "".join(whole).strip().startswith("(") or set(_JOINING) & set(tokens)
        advice = _advice(whole if is_joined else tokens)
        raise ValueError(f"{text!r} is not a condition. {advice} Conditions look like {_LIKE}.") from None


# Conditions that show the forms.
_LIKE = '"label == 3", "name == \'cat\'", "len(tokens) > 5" or "label in [1, 2]"'
_JOINING = {"&": "and", "|": "or"}


def _advice(tokens: Sequence[str]) -> str:
    """Suggest how to correct a text that does not parse as a condition."""
    text = "".join(tokens).strip()
    if any(token in _JOINING for token in tokens):
        joined = "".join(_JOINING.get(token, token) for token in tokens).strip()
        used = " and ".join(f"{_JOINING[token]!r} instead of {token!r}" for token in _JOINING if token in tokens)
        return f"Write {used}: {_quoted(_without_parentheses(joined) or joined)}."
    if text.startswith("("):
        plain = _without_parentheses(text)
        return (
            f"Leave out the parentheses: {_quoted(plain)}." if plain else f"Conditions have no parentheses: {_ORDER}."
        )
    left, found, right = text.partition("=")
    if found and not right.startswith("=") and left[-1:] not in tuple("=!<>"):
        return f"Write two signs for equality: {_quoted(f'{left.strip()} == {right.strip()}')}."
    if "===" in text:
        return f"Write two signs for equality: {_quoted(text.replace('===', '=='))}."
    if match := _BETWEEN.fullmatch(text):
        low, first, name, second, high = match.groups()
        return f"Write two comparisons: {_quoted(f'{name} {_MIRRORED[first]} {low} and {name} {second} {high}')}."
    if match := _WITHOUT_VALUE.fullmatch(text):
        return f"Write a value after it: {_quoted(match[1] + (match[2] or ' == ').rstrip() + ' 3')}."
    value = next((text.partition(f" {each} ")[2].strip() for each in ("==", "!=") if f" {each} " in text), "")
    if value.isidentifier():
        return f"Write text in quotes: {_quoted(text.removesuffix(value) + repr(value))}."
    return "Write a name with operators, quotes or spaces in quotes: \"'log-in' == 3\"."


_BETWEEN = re.compile(r"([-+.\w]+)\s*(<=?|>=?)\s*([^\W\d][\w/]*)\s*(<=?|>=?)\s*([-+.\w]+)")
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
# A name, or with an operator.
_WITHOUT_VALUE = re.compile(r"((?!(?:in|not|and|or)\Z)[^\W\d][\w/]*(?:\([^()]*\))?)(\s*(?:==|!=|<=?|>=?)\s*)?")
_ORDER = 'for "(a or b) and c" write "a and c or b and c"'


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


# Lists of conditions: those of one list hold together, and of the lists at least one.
Alternatives = list[list[tuple[str, str, Any]]]


def parse_expression(text: str) -> Alternatives:
    """Parse conditions that ``and`` and ``or`` join, without parentheses, to alternatives of conditions.

    A condition is ``COLUMN OP VALUE``, with a VALUE in the syntax of Python. COLUMN is a name, or ``len``, ``any`` or
    ``all`` of a name. A name with an operator, a quote, " and " or " or ", or with spaces at its ends, is written like
    text of Python: ``'log-in' == 3``, ``len("a > b") > 0``.
    """
    alternatives: Alternatives = [[]]
    tokens = _tokens(text)
    start = 0
    for at in range(1, len(tokens) - 1):
        before, word, after = tokens[at - 1 : at + 2]
        # The space after one word does not stand before the next one as well.
        if word in ("and", "or") and at > start and before.isspace() and after.isspace():
            alternatives[-1].append(_parse(tokens[start : at - 1], tokens))
            start = at + 2
            if word == "or":
                alternatives.append([])
    alternatives[-1].append(_parse(tokens[start:], tokens))
    return alternatives


def parse_expressions(texts: Iterable[str]) -> Alternatives:
    """Parse texts that all hold. Without a text the result is empty."""
    parsed = list(map(parse_expression, texts))
    return [[*itertools.chain(*chosen)] for chosen in itertools.product(*parsed)] if parsed else []


def as_stored(schema: Schema, alternatives: Alternatives) -> Alternatives:
    """Return conditions with text as bytes where the column has bytes, and as times where it has times."""

    def stored(name: str, comparison: str, value: Any) -> tuple[str, str, Any]:
        feature = schema.get(name) or schema.get(name.partition("(")[2].removesuffix(")"))
        return name, comparison, value if feature is None else _stored(feature.item_dtype, value)

    return [[stored(*each) for each in every] for every in alternatives]


def _stored(dtype: np.dtype[Any], value: Any) -> Any:
    if isinstance(value, list | tuple | set):
        return [_stored(dtype, each) for each in value]
    if isinstance(value, str) and dtype.kind in "Mm":
        return parse_time(value, is_duration=dtype.kind == "m")
    return value.encode() if isinstance(value, str) and dtype.kind == "O" else value
