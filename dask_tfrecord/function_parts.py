"""Identify a function by its code, and by the values and functions that it uses."""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import uuid
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from dask.base import tokenize

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), slice, range)
# Attributes that Python adds to classes; some differ between processes, or come with the first pickle.
_OF_PYTHON = {"__doc__", "__module__", "__firstlineno__", "__static_attributes__", "__slotnames__", "_abc_impl"}
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
