"""Syntax of TFDS splits: ``"train"``, ``"train+test"``, ``"train[:10%]"``, ``"test[2shard]"``, ``"all"``.

The functions are pure and compute with numbers of records only. They follow `tensorflow_datasets.core.splits`, which
rounds percentages to the closest record by default. See https://www.tensorflow.org/datasets/splits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dask_tfrecord.errors import SchemaError, plural

_PLUS = re.compile(r"\s*\+\s*")
_TERM = re.compile(r"(?P<name>[\w-]+)(\[(?P<slice>[\w%:.-]+)\])?")
_BOUND = re.compile(r"((?P<value>-?[\d_.]+)(?P<unit>%|shard)?)?")
_SYNTAX = "a split is a name, NAME[from:to] in records, percent (10%) or shards (2shard), or several joined by +"


@dataclass(frozen=True, slots=True)
class SplitSlice:
    """Consecutive records of one split.

    Attributes
    ----------
    name : str
        Name of the split.
    start, stop : int or None
        First record and the one after the last, from 0; both None for the whole split.
    """

    name: str
    start: int | None = None
    stop: int | None = None


def split_slices(spec: str, lengths: Mapping[str, Sequence[int] | None]) -> tuple[SplitSlice, ...]:
    """Parse a split specification.

    Parameters
    ----------
    spec : str
        Split as in `tensorflow_datasets.load`.
    lengths : mapping of str to sequence of int or None
        Number of records in each shard, by split; None if unknown.

    Returns
    -------
    tuple of SplitSlice
        Slices in reading order, without empty ones.

    Raises
    ------
    SchemaError
        If a split does not exist, a slice is invalid or out of range, or the selection is empty.
    """
    if spec in lengths:
        return (SplitSlice(spec),)
    parts = [part for term in _PLUS.split(spec) for part in _term(term, spec, lengths)]
    kept = tuple(part for part in parts if part.start is None or part.stop is None or part.start < part.stop)
    if not kept:
        raise SchemaError(f"split {spec!r} holds no records; {_sizes(lengths)}")
    return kept


def _term(term: str, spec: str, lengths: Mapping[str, Sequence[int] | None]) -> list[SplitSlice]:
    """Parse one term between plus signs."""
    match = _TERM.fullmatch(term)
    if match is None:
        raise SchemaError(f"split {spec!r}: {term!r} is not a split: {_SYNTAX}")
    name, sliced = match["name"], match["slice"]
    if name == "all" and name not in lengths:
        if sliced is not None:
            raise SchemaError(f"split {spec!r}: 'all' can't be sliced; slice each split")
        return [SplitSlice(each) for each in lengths]
    if name not in lengths:
        raise SchemaError(f"split {name!r} does not exist; {_sizes(lengths)}")
    if sliced is None:
        return [SplitSlice(name)]
    counts = lengths[name]
    if counts is None:
        raise SchemaError(
            f"split {spec!r}: the metadata lacks the record counts of {name!r}; read all of it and take ds.rows[...]"
        )
    return [SplitSlice(name, *_slice(sliced, spec, counts))]


def _slice(text: str, spec: str, counts: Sequence[int]) -> tuple[int, int]:
    """Parse the text in brackets into the range of records from ``start`` to ``stop``."""
    wrong = SchemaError(f"split {spec!r}: [{text}] is not a slice: {_SYNTAX}")
    bounds = [_BOUND.fullmatch(bound) for bound in text.split(":")]
    found = [bound for bound in bounds if bound is not None]
    if len(found) != len(bounds) or not any(bound[0] for bound in found) or len(found) > 2:
        raise wrong
    unit = next((bound["unit"] for bound in found if bound["unit"]), "")
    try:
        start, *rest = (_number(bound["value"], unit) for bound in found)
    except ValueError:
        raise wrong from None
    if not rest:
        # Only a shard can be selected by a single number.
        if unit != "shard" or start is None:
            raise wrong
        return _within(*_shards(int(start), int(start) + 1, counts), spec, sum(counts))
    if unit == "shard":
        return _within(*_shards(start, rest[0], counts), spec, sum(counts))
    if unit == "%":
        if any(abs(bound or 0) > 100 for bound in (start, rest[0])):
            raise SchemaError(f"split {spec!r}: percent are from -100 to 100; got [{text}]")
        start, stop = (None if bound is None else round(bound * sum(counts) / 100.0) for bound in (start, rest[0]))
        return _within(start, stop, spec, sum(counts))
    return _within(start, rest[0], spec, sum(counts))


def _number(value: str | None, unit: str) -> float | int | None:
    if value is None:
        return None
    return float(value) if unit == "%" else int(value)


def _shards(start: float | int | None, stop: float | int | None, counts: Sequence[int]) -> tuple[int, int]:
    """Return the range of records of shards ``start`` to ``stop``; negative numbers count from the end."""
    first = 0 if start is None else sum(counts[: int(start)])
    if stop is None:
        return first, sum(counts)
    last = int(stop)
    return first, sum(counts[: last + len(counts) if last <= 0 else last])


def _within(start: float | int | None, stop: float | int | None, spec: str, total: int) -> tuple[int, int]:
    """Return both bounds as record numbers from 0; negative bounds count from the end."""
    first, last = (int(start or 0), total if stop is None else int(stop))
    if abs(first) > total or abs(last) > total:
        raise SchemaError(f"split {spec!r} reaches past the end: there are {plural(total, 'record')}")
    return first + total if first < 0 else first, last + total if last < 0 else last


def _sizes(lengths: Mapping[str, Sequence[int] | None]) -> str:
    """Return the end of an error message, which lists the existing splits."""
    sizes = (
        f"{name!r} (" + ("? records" if n is None else plural(sum(n), "record")) + ")" for name, n in lengths.items()
    )
    return f"the splits are {', '.join(sizes)}" if lengths else "the data set has no splits"
