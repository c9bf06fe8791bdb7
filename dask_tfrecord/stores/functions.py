"""Names for what functions do, which stay when a notebook is started again, and change when the function does.

dask names a function that can be imported by where it is found, whatever it does now, and one that is written in a
notebook by its bytes, which tell the cell and the process too. Here a function is its instructions, and the values that
it finds beside its arguments.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from dask.base import tokenize

__all__ = ["function_name"]


def function_name(function: Callable[..., Any]) -> str:
    """Name a function by what it does: its code, defaults, closure and globals, and functions of its module likewise.

    What is found in other modules is known by its name alone.
    """
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    said = repr(list(_parts(function, getattr(inner, "__module__", None), set())))
    return hashlib.sha256(said.encode()).hexdigest()


def _parts(value: Any, module: str | None, seen: set[int]) -> Iterator[Any]:
    """Take a value apart; what is met again is not looked at again."""
    if isinstance(value, FunctionType):
        if id(value) in seen or (seen and value.__module__ != module):
            yield value.__module__, value.__qualname__
            return
        seen.add(id(value))
        yield from _code(value.__code__)
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        used = [value.__globals__[name] for name in sorted(_names(value.__code__)) if name in value.__globals__]
        values = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *cells, *used]
    elif isinstance(value, functools.partial):
        values = [value.func, *value.args, *value.keywords, *value.keywords.values()]
    elif isinstance(value, MethodType):
        values = [value.__func__, value.__self__]
    elif _is_callable_object(value):
        values = [type(value), *(item for pair in sorted(vars(value).items()) for item in pair)]
        if id(value) not in seen:
            seen.add(id(value))
            values.append(inspect.getattr_static(type(value), "__call__"))
    else:
        values = []
        named = isinstance(value, ModuleType | type)
        yield (
            (getattr(value, "__module__", ""), getattr(value, "__qualname__", value.__name__))
            if named
            else tokenize(value)
        )
    for each in values:
        yield from _parts(each, module, seen)


def _is_callable_object(value: Any) -> bool:
    """Whether its class has a ``__call__`` written in Python, and has not said how it is named."""
    call = inspect.getattr_static(type(value), "__call__", None)
    return isinstance(call, FunctionType) and hasattr(value, "__dict__") and not hasattr(value, "__dask_tokenize__")


def _code(code: CodeType) -> Iterator[Any]:
    """Find what code does: instructions, names and constants, but not where it stands in a file."""
    yield code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield sorted(map(repr, constant)) if isinstance(constant, frozenset) else repr(constant)


def _names(code: CodeType) -> set[str]:
    """Find the names that code looks up, and what is defined in it does."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names}.union(*map(_names, inner))
