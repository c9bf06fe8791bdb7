"""What a split of TFDS means: ``"train"``, ``"train+test"``, ``"train[:10%]"``, ``"test[2shard]"``, ``"all"``.

Pure functions over the numbers of records; the rules, their rounding included, are those of
`tensorflow_datasets.core.splits`, whose default is to round to the closest record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dask_tfrecord.errors import SchemaError

__all__ = ["Part", "split_parts"]

_PLUS = re.compile(r"\s*\+\s*")
_PART = re.compile(r"(?P<name>[\w-]+)(\[(?P<slice>[\w%:.-]+)\])?")
_BOUND = re.compile(r"((?P<value>-?[\d_.]+)(?P<unit>%|shard)?)?")
_SYNTAX = "a split is a name, NAME[from:to] in records, percent (10%) or shards (2shard), or several joined by +"


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive records of one split.

    Attributes
    ----------
    name : str
        The split.
    start, stop : int or None
        Its records, from 0; both None where the whole split is meant.
    """

    name: str
    start: int | None = None
    stop: int | None = None


def split_parts(spec: str, lengths: Mapping[str, Sequence[int] | None]) -> tuple[Part, ...]:
    """Find the records that a split means.

    Parameters
    ----------
    spec : str
        As `tensorflow_datasets.load` takes it.
    lengths : mapping of str to sequence of int or None
        Records in each shard of each split; None where nobody knows.

    Returns
    -------
    tuple of Part
        In the order in which they are read; one without records is left out.

    Raises
    ------
    SchemaError
        If there is no such split, the slice is none, it lies outside, or no record is left.
    """
    if spec in lengths:
        return (Part(spec),)
    parts = [part for term in _PLUS.split(spec) for part in _term(term, spec, lengths)]
    kept = tuple(part for part in parts if part.start is None or part.stop is None or part.start < part.stop)
    if not kept:
        raise SchemaError(f"split {spec!r} holds no records; {_sizes(lengths)}")
    return kept


def _term(term: str, spec: str, lengths: Mapping[str, Sequence[int] | None]) -> list[Part]:
    """Parts of what stands between two pluses."""
    match = _PART.fullmatch(term)
    if match is None:
        raise SchemaError(f"split {spec!r}: {term!r} is none: {_SYNTAX}")
    name, sliced = match["name"], match["slice"]
    if name == "all" and name not in lengths:
        if sliced is not None:
            raise SchemaError(f"split {spec!r}: 'all' takes no slice; slice each split")
        return [Part(each) for each in lengths]
    if name not in lengths:
        raise SchemaError(f"there is no split {name!r}; {_sizes(lengths)}")
    if sliced is None:
        return [Part(name)]
    counts = lengths[name]
    if counts is None:
        raise SchemaError(
            f"split {spec!r}: the metadata does not tell the records of {name!r}; read all of it and take ds.rows[...]"
        )
    return [Part(name, *_slice(sliced, spec, counts))]


def _slice(text: str, spec: str, counts: Sequence[int]) -> tuple[int, int]:
    """Find the records, from ``start`` to ``stop``, that the text in brackets means."""
    wrong = SchemaError(f"split {spec!r}: [{text}] is no slice: {_SYNTAX}")
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
        # One number alone is a shard.
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
    """Find the records of shards ``start`` to ``stop``; negative numbers count from the end."""
    first = 0 if start is None else sum(counts[: int(start)])
    if stop is None:
        return first, sum(counts)
    last = int(stop)
    return first, sum(counts[: last + len(counts) if last <= 0 else last])


def _within(start: float | int | None, stop: float | int | None, spec: str, total: int) -> tuple[int, int]:
    """Make both ends numbers from 0; negative ones count from the end."""
    first, last = (int(start or 0), total if stop is None else int(stop))
    if abs(first) > total or abs(last) > total:
        raise SchemaError(f"split {spec!r} reaches past the {total} records there are")
    return first + total if first < 0 else first, last + total if last < 0 else last


def _sizes(lengths: Mapping[str, Sequence[int] | None]) -> str:
    """End a sentence with the splits there are."""
    sizes = (f"{name!r} (" + ("? records" if n is None else f"{sum(n):,} records") + ")" for name, n in lengths.items())
    return f"there are {', '.join(sizes)}" if lengths else "there are none"
