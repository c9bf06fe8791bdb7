"""Documents that stores hold: parsed once, into frozen dataclasses, with limits.

Whoever made a store or a directory may have written them, so nothing that they say is believed before it is checked:
their size, the depth of lists and mappings, the range of each number, and the names that become names of files. The
fields of a dataclass say what is allowed, by their types, and by the limits in `Annotated`. A document that differs
raises an `IncompleteStoreError` with the name of the document and of the field.

For example, ``parse(Plan, b'{"parts": 0}', "job.json")`` says ``job.json: parts is 0, expected a number from 1 to
1,000,000`` where ``Plan`` has a field ``parts: Annotated[int, within(1, 10**6)]``.
"""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from dask_tfrecord.errors import IncompleteStoreError, Location, printable
from dask_tfrecord.shards.objects import is_inside

# Bytes of a document, unless the caller knows better. A plan of a million units has 30 MiB.
MAX_NBYTES = 64 << 20
# Lists and mappings within each other.
_MAX_DEPTH = 64
# Characters of a value or a name in an error.
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Limit:
    """Condition of a value that already has the type of its field, and its text in errors."""

    expected: str
    allows: Callable[[Any], bool]


def within(least: int, most: int) -> Limit:
    """Allow numbers between two, both included."""
    return Limit(f"a number from {least:,} to {most:,}", lambda value: least <= value <= most)


def matches(pattern: str, expected: str) -> Limit:
    """Allow texts that a pattern matches as a whole."""
    return Limit(expected, lambda value: re.fullmatch(pattern, value) is not None)


ASCENDING = Limit(
    "ascending numbers",
    lambda value: bool(value) and all(before <= after for before, after in pairwise(value)),
)


# Values of fields that several documents have.
Count = Annotated[int, within(0, 2**53)]
Positive = Annotated[int, within(1, 2**53)]
ObjectName = Annotated[str, Limit("a name within the store", is_inside)]
Token = Annotated[str, matches("[0-9a-zA-Z]{1,64}", "a token of letters and digits")]
Number = Annotated[str, matches("[0-9]{1,16}", "a number")]
HexToken = Annotated[str, matches("[0-9a-f]{32}", "a token of 32 hexadecimal digits")]

Parsed = TypeVar("Parsed")


def parse(
    kind: type[Parsed], data: bytes, name: str, place: Location | None = None, *, max_nbytes: int = MAX_NBYTES
) -> Parsed:
    """Return a document as an instance of a dataclass; ignore fields that the class does not have.

    Fields with a default may be missing. Raises IncompleteStoreError for any other document.
    """
    return checked(kind, load(data, name, place, max_nbytes=max_nbytes), name, place)


def checked(kind: type[Parsed], value: Any, name: str, place: Location | None = None) -> Parsed:
    """Make a dataclass from a JSON value within a document, as `parse` does."""
    found: Parsed = _as_kind(kind, value, _DocumentReader(name, place), "")
    return found


def load(data: bytes, name: str, place: Location | None = None, *, max_nbytes: int = MAX_NBYTES) -> Any:
    """Return the value of JSON text within the limits; raise IncompleteStoreError for anything else."""
    if len(data) > max_nbytes:
        raise IncompleteStoreError(f"{name} has {len(data):,} bytes, expected at most {max_nbytes:,}", place)
    try:
        document = json.loads(data, parse_constant=_refuse_constant)
        # Not all versions of Python limit the parser's recursion by the number of frames.
        _check_depth(document)
    except RecursionError:
        raise IncompleteStoreError(f"{name} has more than {_MAX_DEPTH} levels", place) from None
    except ValueError as error:
        raise IncompleteStoreError(f"{name} is not JSON ({error})", place) from None
    return document


def load_mapping(data: bytes, name: str, place: Location | None = None) -> dict[str, Any]:
    """Return the value of JSON text as by `load`; raise IncompleteStoreError unless it is a mapping."""
    found: dict[str, Any] = _as_kind(dict[str, Any], load(data, name, place), _DocumentReader(name, place), "")
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


def _check_depth(value: Any) -> None:
    """Raise RecursionError for a value with too many levels, without recursion."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                inner.extend(each.values())
            elif isinstance(each, list):
                inner.extend(each)
        level = [each for each in inner if isinstance(each, dict | list)]
        if not level:
            return
    raise RecursionError


@dataclass(frozen=True, slots=True)
class _DocumentReader:
    """The document that is read, for errors."""

    name: str
    place: Location | None

    def refuse(self, field: str, value: Any, expected: str) -> NoReturn:
        """Raise the error for the value of a field."""
        text = repr(value)
        text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        where = f"{printable(field)} is " if field else "this is "
        raise IncompleteStoreError(f"{self.name}: {where}{text}, expected {expected}", self.place)


@cache
def _fields(kind: Any) -> list[tuple[str, Any, bool]]:
    """Return the name of each field that a document has, its type, and whether it may be missing."""
    hints = get_type_hints(kind, include_extras=True)
    return [
        (each.name, hints[each.name], each.default is not MISSING or each.default_factory is not MISSING)
        for each in fields(kind)
        if each.init
    ]


@cache
def _parts(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(kind), get_args(kind)


def _as_kind(kind: Any, value: Any, reader: _DocumentReader, field: str) -> Any:
    """Return a value of a document as a type has it; `field` is its name, for errors."""
    if kind is Any:
        return value
    if kind in _NAMES:
        return _check_scalar(kind, value, reader, field)
    origin, arguments = _parts(kind)
    if origin is Annotated:
        found = _as_kind(arguments[0], value, reader, field)
        for limit in arguments[1:]:
            if found is not None and not limit.allows(found):
                reader.refuse(field, value, limit.expected)
        return found
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (inner,) = (each for each in arguments if each is not type(None))
        return _as_kind(inner, value, reader, field)
    if origin is Literal:
        if value not in arguments or isinstance(value, list | dict):
            reader.refuse(field, value, " or ".join(map(repr, arguments)))
        return value
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            reader.refuse(field, value, "a mapping")
        return {
            _as_kind(arguments[0], key, reader, f"a name in {field}"): _as_kind(
                arguments[1], each, reader, f"{field}[{key[:_SHOWN]!r}]"
            )
            for key, each in value.items()
        }
    if origin is tuple and arguments[-1] is not Ellipsis:
        if not isinstance(value, list) or len(value) != len(arguments):
            reader.refuse(field, value, f"a list of {len(arguments)}")
        return tuple(
            _as_kind(each, own, reader, f"{field}[{number}]")
            for number, (each, own) in enumerate(zip(arguments, value, strict=True))
        )
    if origin is not None and issubclass(origin, Sequence):
        if not isinstance(value, list):
            reader.refuse(field, value, "a list")
        made: Callable[[Any], Any] = tuple if origin is tuple else list
        return made(_as_kind(arguments[0], each, reader, f"{field}[{number}]") for number, each in enumerate(value))
    return _read_instance(kind, value, reader, field)


def _read_instance(kind: Any, value: Any, reader: _DocumentReader, field: str) -> Any:
    """Read a dataclass from a mapping of its fields."""
    if not isinstance(value, dict):
        reader.refuse(field, value, "a mapping")
    before = f"{field}." if field else ""
    fields = {}
    for name, own, may_be_missing in _fields(kind):
        if name in value:
            fields[name] = _as_kind(own, value[name], reader, f"{before}{name}")
        elif not may_be_missing:
            raise IncompleteStoreError(f"{reader.name} has no {before}{name}", reader.place)
    return kind(**fields)


# Names of the types of JSON, for errors.
_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "null"}


def _check_scalar(kind: Any, value: Any, reader: _DocumentReader, field: str) -> Any:
    """Check a number, a bool or a text; an integer counts as a float."""
    if kind is float and type(value) is int and abs(value) <= 2**1023:
        value = float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        reader.refuse(field, value, _NAMES[kind])
    return value
