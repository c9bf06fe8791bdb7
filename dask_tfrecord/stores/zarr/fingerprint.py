"""Fingerprint of a conversion: identity of its inputs, functions and options. Pure values.

It is stored in the attributes of the group. A resumed conversion compares it with its own, and reports what changed.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from dask.base import tokenize

from dask_tfrecord.arrays.rows import Rows
from dask_tfrecord.arrays.sources import MappedChunks, MappedSource, Source
from dask_tfrecord.errors import plural, redact_url
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.shard import Shards

# Differences of a kind that are listed.
_LISTED = 3


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identity of a conversion, as JSON values."""

    source: Mapping[str, Any] = field(default_factory=dict)
    schema: Mapping[str, Any] = field(default_factory=dict)
    records: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    rows: str = ""
    functions: Sequence[Mapping[str, str]] = ()

    @classmethod
    def from_rows(cls, given: Rows, schema: Schema, options: Mapping[str, Any]) -> Fingerprint:
        """Compute the fingerprint of a data set whose rows are counted, with the groups of `schema`."""
        rows, functions = _rows(given)
        return cls(dict(given.origin), json.loads(schema.to_json()), given.nrows or 0, dict(options), rows, functions)

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> Fingerprint:
        """Read a fingerprint from attributes; an older version wrote fewer of them."""
        return cls(**{name: attributes[name] for name in Fingerprint.__slots__ if name in attributes})

    def to_attributes(self) -> dict[str, Any]:
        """Return the attributes of the group."""
        return {name: getattr(self, name) for name in Fingerprint.__slots__}

    @property
    def token(self) -> str:
        """The fingerprint as 32 hexadecimal digits."""
        # dask 2025.1 gives the same nested mappings other tokens in another process.
        return digest(self.to_attributes())[:32]

    def changes_of_files(self, shards: Shards) -> list[str]:
        """Describe how files have changed since; files that are not among these are ignored."""
        if "files" not in self.source:
            return []
        planned = set(self.source["files"])
        listed = zip(map(redact_url, shards.paths), shards.sizes.tolist(), shards.versions, strict=True)
        found = [each for each in listed if each[0] in planned]
        files, sizes, versions = map(list, zip(*found, strict=True)) if found else ([], [], [])
        source = {**self.source, "files": files, "sizes": sizes, "versions": versions}
        return self.differences(replace(self, source=source))

    def differences(self, now: Fingerprint) -> list[str]:
        """Describe how the inputs and options of another fingerprint differ from these."""
        found = [*_files(self.source, now.source), *schema_differences(self.schema, now.schema)]
        if not found and self.records != now.records:
            found.append(f"the number of records was {self.records:,} and now is {now.records:,}")
        found += [
            f"{name} was {json.dumps(self.options.get(name))} and now is {json.dumps(now.options.get(name))}"
            for name in sorted({*self.options, *now.options})
            if self.options.get(name) != now.options.get(name)
        ]
        found += _functions(self.functions, now.functions)
        if not found and self.rows != now.rows:
            found.append(
                "other rows are read, or in another way: rows[…], errors=, check_crc=, or assigned or kept arrays"
            )
        return found


def digest(value: Any) -> str:
    """Return a digest of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _files(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Describe how files differ; of other sources, only that they differ."""
    if "files" not in then or "files" not in now:
        if _origin(then) != _origin(now):
            yield f"rows came from {_origin(then)} and now come from {_origin(now)}"
        return
    before, after = _by_file(then), _by_file(now)
    removed = [file for file in before if file not in after]
    new = [file for file in after if file not in before]
    sizes = {file: (before[file][0], after[file][0]) for file in before if file in after}
    changed = [
        f"{file} had {plural(old, 'byte')} and now has {size:,}" for file, (old, size) in sizes.items() if old != size
    ]
    rewritten = [file for file, (old, size) in sizes.items() if old == size and before[file] != after[file]]
    yield from _listed(changed, "files changed")
    again = [f"{file} was written again or replaced since" for file in rewritten]
    yield from _listed(again, "files were written again or replaced")
    yield from _listed([f"{file} is missing from the files" for file in removed], "files are missing")
    yield from _listed([f"{file} was added" for file in new], "files are new")
    if before == after and list(then["files"]) != list(now["files"]):
        yield "the files come in another order"


def _by_file(source: Mapping[str, Any]) -> dict[str, tuple[int, Any]]:
    files = zip(source["files"], source["sizes"], source["versions"], strict=True)
    return {file: (size, version) for file, size, version in files}


def _origin(source: Mapping[str, Any]) -> str:
    if "files" in source:
        return plural(len(source["files"]), "file")
    return str(source.get("store", "arrays"))


def schema_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Describe how features differ."""
    before, after = ({each["name"]: each for each in schema.get("features", ())} for schema in (then, now))
    changes = [f"feature {name!r} was removed" for name in before if name not in after]
    changes += [f"feature {name!r} was added" for name in after if name not in before]
    changes += [
        f"feature {name!r} was {_arguments(before[name])} and now is {_arguments(after[name])}"
        for name in before
        if name in after and before[name] != after[name]
    ]
    yield from _listed(changes, "features")
    # The sampled records of schema inference, and the features of the records, do not affect what is written.
    for key in sorted({*then, *now} - {"features", "sampling", "records"}):
        if then.get(key) != now.get(key):
            yield f"the {key} of the schema was {json.dumps(then.get(key))} and now is {json.dumps(now.get(key))}"


def _arguments(feature: Mapping[str, Any]) -> str:
    arguments = [f"{name}={value}" for name, value in feature.items() if name not in ("name", "class")]
    return f"{feature['class']}({', '.join(arguments)})"


def _listed(changes: list[str], subject: str) -> Iterator[str]:
    yield from changes[:_LISTED]
    if len(changes) > _LISTED:
        yield f"… {len(changes):,} {subject} in all"


def _functions(then: Sequence[Mapping[str, str]], now: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Describe how functions passed to `map_blocks` differ."""
    if len(then) != len(now):
        yield f"{len(then)} functions were passed to map_blocks and now are {len(now)}"
        return
    for number, (before, after) in enumerate(zip(then, now, strict=True)):
        which = (
            "a function passed to map_blocks" if len(now) == 1 else f"function {len(now) - number} passed to map_blocks"
        )
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        yield from _listed([f"{name} of {which} has changed" for name in changed], "parts of functions have changed")


def _rows(given: Rows) -> tuple[str, list[dict[str, str]]]:
    """Return a token of the rows of a data set, and digests of their functions, equal in every process."""
    source: Source | None = given.source
    functions: list[dict[str, str]] = []
    columns: list[object] = []
    if source is None:
        return tokenize(given), []
    while source.inner is not None:
        columns.append(source.derivation)
        if isinstance(source, MappedSource | MappedChunks):
            functions.append(function_parts(source.function))
        source = source.inner
    return tokenize(source, columns), functions


_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), slice, range)
# Attributes that Python adds to classes; some differ between processes.
_OF_PYTHON = {"__doc__", "__module__", "__firstlineno__", "__static_attributes__", "_abc_impl"}
_OF_DATACLASSES = "__dataclass_"


def function_parts(function: Callable[..., Any]) -> dict[str, str]:
    """Return digests of the parts of a function: its code, defaults, closure, and the globals that it refers to.

    Arguments of a `functools.partial` and attributes of a callable object are parts too. Groups store the names of
    parts: do not change them.
    """
    inner, parts = function, dict[str, Any]()
    while not isinstance(inner, FunctionType):
        if isinstance(inner, functools.partial):
            parts["arguments of partial"] = (parts.get("arguments of partial"), inner.args, inner.keywords)
            inner = inner.func
        elif isinstance(inner, MethodType):
            parts["its object"] = inner.__self__
            inner = inner.__func__
        elif hasattr(inner, "__wrapped__"):
            inner = inner.__wrapped__
        elif isinstance(call := inspect.getattr_static(type(inner), "__call__", None), FunctionType):
            parts["its object"] = inner
            inner = call
        else:
            parts["the function"] = inner
            break
    digests = _Digests(getattr(inner, "__module__", None))
    if isinstance(inner, FunctionType):
        parts |= _parts_of(inner)
    return {name: digests.digest(value) for name, value in parts.items()}


def _parts_of(function: FunctionType) -> dict[str, Any]:
    """Return the code of a function, and the values that it uses besides its arguments."""
    code = function.__code__
    parts: dict[str, Any] = {"its code": list(_code(code))}
    if function.__defaults__ or function.__kwdefaults__:
        parts["its defaults"] = (function.__defaults__, function.__kwdefaults__)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        parts[f"its variable {name!r}"] = cell.cell_contents
    for name in sorted(_names(code)):
        if name in function.__globals__:
            parts[f"the global {name!r}"] = function.__globals__[name]
    return parts


class _Digests:
    """Digests of values; functions and classes of other modules than `module` are identified by their names."""

    def __init__(self, module: str | None) -> None:
        self._module = module
        # Visited values by id, numbered in order.
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []

    def digest(self, value: Any) -> str:
        """Return the digest of a value; one that cannot be inspected gets another digest each time."""
        try:
            return hashlib.sha256(repr(list(self._parts(value))).encode()).hexdigest()
        except Exception:
            # A function that cannot be inspected must not stop the conversion.
            return uuid.uuid4().hex

    def _parts(self, value: Any) -> Iterator[Any]:
        if isinstance(value, enum.Enum):
            yield type(value).__qualname__, value.name, repr(value.value)
        elif isinstance(value, _PLAIN):
            yield type(value).__name__, repr(value)
        elif isinstance(value, ModuleType):
            yield "module", value.__name__
        elif type(value) is tuple:
            # Compilers may share equal tuples, so their identity is ignored.
            yield from self._each(value)
        elif type(value) in (set, frozenset):
            yield type(value).__name__, sorted(_Digests(self._module).digest(each) for each in value)
        elif id(value) in self._seen:
            yield "seen", self._seen[id(value)]
        else:
            self._seen[id(value)] = len(self._seen)
            # Keep the value, so that no other value gets its id.
            self._kept.append(value)
            yield from self._inside(value)

    def _inside(self, value: Any) -> Iterator[Any]:
        kind = type(value)
        yield kind.__qualname__
        if kind is list:
            yield from self._each(value)
        elif kind is dict:
            yield from self._each(item for pair in value.items() for item in pair)
        elif isinstance(value, FunctionType):
            yield value.__module__, value.__qualname__
            if value.__module__ == self._module:
                yield from self._each(_parts_of(value).values())
        elif isinstance(value, type):
            yield value.__module__, value.__qualname__
            if value.__module__ == self._module:
                yield from self._each(_members(value))
        elif (wrapped := _wrapped(value)) is not None:
            yield from self._each(wrapped)
        elif kind.__module__ == self._module and not hasattr(value, "__dask_tokenize__"):
            yield from self._each([kind, *_state(value)])
        else:
            yield tokenize(value)

    def _each(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            yield list(self._parts(value))


def _members(kind: type) -> Iterator[Any]:
    """Yield the bases of a class, its attributes and methods by name, and the functions of properties."""
    yield from kind.__bases__
    for name, member in sorted(vars(kind).items()):
        if isinstance(member, property):
            yield from (name, member.fget)
        elif not (name in _OF_PYTHON or name.startswith(_OF_DATACLASSES) or inspect.isdatadescriptor(member)):
            yield from (name, member)


def _wrapped(value: Any) -> tuple[Any, ...] | None:
    """Return the contents of a wrapper; None for other values."""
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    return (value.__wrapped__,) if hasattr(value, "__wrapped__") else None


def _state(value: Any) -> Iterator[Any]:
    """Yield the attributes of an object with their names."""
    slots = (name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()))
    state = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})
    for name in sorted(state):
        yield name
        yield state[name]


def _code(code: CodeType) -> Iterator[Any]:
    """Yield the instructions, names and constants of code, without its position in a file."""
    yield code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield constant


def _names(code: CodeType) -> set[str]:
    """Return the names that code and the functions within it refer to."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names}.union(*map(_names, inner))
