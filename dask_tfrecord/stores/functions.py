"""Names for what functions do, which stay when a notebook is started again, and change when the function does.

dask names a function that can be imported by where it is found, whatever it does now, and one that is written in a
notebook by its bytes, which tell the cell and the process too. Here a function is its instructions, and the values that
it finds beside its arguments; functions and classes of its own module are looked into likewise.
"""

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

__all__ = ["function_parts"]

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), slice, range)
# What Python keeps in classes for itself; much of it differs from process to process.
_OF_PYTHON = {"__doc__", "__module__", "__firstlineno__", "__static_attributes__", "_abc_impl"}
_OF_DATACLASSES = "__dataclass_"


def function_parts(function: Callable[..., Any]) -> dict[str, str]:
    """Name what a function does, part by part: its code, defaults, closure, and the globals that it looks up.

    Parameters
    ----------
    function : callable
        Any; arguments of a `functools.partial` and attributes of a callable object are parts too.

    Returns
    -------
    dict of str to str
        A digest for each part, by words that people know it by.
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
    look = _Look(getattr(inner, "__module__", None))
    if isinstance(inner, FunctionType):
        parts |= _beside(inner)
    return {name: look.name(value) for name, value in parts.items()}


def _beside(function: FunctionType) -> dict[str, Any]:
    """Find what a function is made of, and finds beside its arguments."""
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


class _Look:
    """Looks into values, as far as they belong to a module.

    Parameters
    ----------
    module : str or None
        Functions and classes of other modules are known by their names alone.
    """

    def __init__(self, module: str | None) -> None:
        self._module = module
        # What is being looked into, or was, and its number.
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []

    def name(self, value: Any) -> str:
        """Name a value; what can't be looked into has another name each time."""
        try:
            return hashlib.sha256(repr(list(self._parts(value))).encode()).hexdigest()
        except Exception:
            # To name a function is no reason for a conversion to fail.
            return uuid.uuid4().hex

    def _parts(self, value: Any) -> Iterator[Any]:
        if isinstance(value, enum.Enum):
            yield type(value).__qualname__, value.name, repr(value.value)
        elif isinstance(value, _PLAIN):
            yield type(value).__name__, repr(value)
        elif isinstance(value, ModuleType):
            yield "module", value.__name__
        elif type(value) is tuple:
            # One or two of the same: that is up to whoever compiles.
            yield from self._each(value)
        elif type(value) in (set, frozenset):
            yield type(value).__name__, sorted(_Look(self._module).name(each) for each in value)
        elif id(value) in self._seen:
            yield "seen", self._seen[id(value)]
        else:
            self._seen[id(value)] = len(self._seen)
            # No other value may have the same id in the meantime.
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
                yield from self._each(_beside(value).values())
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
    """Find what a class has: its bases, attributes and methods by name, and what properties do."""
    yield from kind.__bases__
    for name, member in sorted(vars(kind).items()):
        if isinstance(member, property):
            yield from (name, member.fget)
        elif not (name in _OF_PYTHON or name.startswith(_OF_DATACLASSES) or inspect.isdatadescriptor(member)):
            yield from (name, member)


def _wrapped(value: Any) -> tuple[Any, ...] | None:
    """Find what stands within something that calls it."""
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    return (value.__wrapped__,) if hasattr(value, "__wrapped__") else None


def _state(value: Any) -> Iterator[Any]:
    """Find the attributes of an object, by name."""
    slots = (name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()))
    state = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})
    for name in sorted(state):
        yield name
        yield state[name]


def _code(code: CodeType) -> Iterator[Any]:
    """Find what code does: instructions, names and constants, but not where it stands in a file."""
    yield code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield constant


def _names(code: CodeType) -> set[str]:
    """Find the names that code looks up, and what is defined in it does."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names}.union(*map(_names, inner))
