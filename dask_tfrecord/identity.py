"""Answer "is this the same?" for files, functions and classes: by what they are, not by how they are written."""

from __future__ import annotations

import copyreg
import enum
import functools
import hashlib
import inspect
import os
import re
import sys
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import (
    BuiltinMethodType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np
from dask.base import normalize_token, tokenize

from dask_tfrecord.errors import redact_url

# -- files

# Other names of a protocol.
_PROTOCOLS = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "local": "file", "abfss": "abfs", "az": "abfs"}
# Links of a chain that keep a copy of what the next link reads.
_CACHES = {"simplecache", "filecache", "blockcache", "cached"}
_PORTS = {"http": ":80", "https": ":443"}
# Protocols whose servers take `..` in a path for the folder above; keys of object stores are literal.
_WITH_FOLDERS = {"http", "https", "sftp", "ssh", "ftp", "smb", "hdfs", "webhdfs", "webdav"}
# Query parameters that sign or authorize a request, as named by S3, Google, Azure, Alibaba, CloudFront and others. They
# are not part of a file's identity, because signatures are renewed.
_GRANTS = re.compile(
    r"x-(amz|goog|oss|ms|cos)-.*|(google|aws)?access(key)?id|expires|policy|key-pair-id|hmac|"
    r"s[a-z]|spr|sig|srt|ses|sdd|scid|sip|sk[a-z]{1,3}|saoid|suoid|"
    r".*(sign|token|secret|passw|credential|auth|api[_-]?key).*|key|pwd|user|username",
    re.IGNORECASE,
)


def file_key(path: str) -> tuple[Any, ...]:
    """Return what two paths or URLs of one file have in common now: device and inode, or scheme, bucket and key.

    A path that does not exist yet has the key of its directory, and its name. Hard links have one key.
    """
    url = url_key(path)
    if url[0] != "file":
        return url
    try:
        status = os.stat(url[1])  # noqa: PTH116 - of each of 100,000 shards
        if status.st_ino:
            return "inode", status.st_dev, status.st_ino
    except (OSError, ValueError):
        pass
    folder, name = os.path.split(canonical_path(path))
    return (*file_key(folder), name) if name else ("file", folder)


def canonical_path(path: str) -> str:
    """Return the spelling of a path or URL that does not depend on links and `..`: the same after a restart."""
    url = url_key(path)
    return os.path.realpath(url[1]) if url[0] == "file" else path


def is_within(path: str, directory: str) -> bool:
    """Return whether a file or directory is another one, or below it."""
    outer, url = file_key(directory), url_key(path)
    if url[0] != "file":
        return f"{'/'.join(map(str, url))}/".startswith(f"{'/'.join(map(str, outer))}/")
    real = Path(canonical_path(path))
    return any(file_key(str(each)) == outer for each in (real, *real.parents))


def url_key(path: str) -> tuple[Any, ...]:
    """Return the protocol of a URL, and its path, without credentials and signatures; of a local path, "file" and it.

    Nothing is looked up, so that the same text has the same key in every process.
    """
    if "://" not in path or path.startswith("/"):
        return "file", os.path.expanduser(path) if path.startswith("~") else path  # noqa: PTH111
    found = [_link_key(link) for link in path.split("::") if link not in _CACHES]
    return found[0] if len(found) == 1 else ("chain", *found)


def _link_key(link: str) -> tuple[Any, ...]:
    """Normalize one link of a chained URL: protocol, host, port, path, and the query without signatures."""
    given, separator, rest = redact_url(link).partition("://")
    if not separator:
        return "part", given
    protocol = _PROTOCOLS.get(given.lower(), given.lower())
    if protocol == "memory":
        rest = rest.strip("/")
    query: list[tuple[str, str]] = []
    if protocol in _PORTS:
        host, slash, inside = rest.partition("/")
        rest = f"{host.lower().removesuffix(_PORTS[protocol])}/{unquote(inside) if slash else ''}"
        query = parse_qsl(urlsplit(link).query, keep_blank_values=True)
    if protocol in _WITH_FOLDERS:
        rest = _without_dots(rest)
    return protocol, rest.rstrip("/") or rest, *sorted(pair for pair in query if not _GRANTS.fullmatch(pair[0]))


def _without_dots(path: str) -> str:
    """Return a path of a URL without the parts `.` and `..`."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and len(parts) > 1:
            parts.pop()
        elif part not in (".", ".."):
            parts.append(part)
    return "/".join(parts)


# -- functions and classes

# Types whose values are written whole by `repr`.
_PLAIN = {type(None), bool, int, float, complex, str, bytes, bytearray, type(...), type(NotImplemented), range}
# Attributes that Python adds to classes; some differ between processes, or come with the first pickle.
_OF_PYTHON = {
    *("__doc__", "__module__", "__qualname__", "__firstlineno__", "__static_attributes__", "__slotnames__"),
    *("_abc_impl", "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__weakref__"),
}
# Offsets within the memory of objects.
_OF_C = {"__vectorcalloffset__", "__weaklistoffset__", "__dictoffset__"}
_OF_DATACLASSES = "__dataclass_"
# Attributes of enumerations that follow from the members; the members are identified themselves.
_OF_ENUMS = re.compile("_(member_names|member_map|value2member_map|hashable_values|unhashable_values(_map)?|inverted)_")
_CACHED = type(functools.lru_cache(len))
# Packages whose objects compute what the function in `__wrapped__` does, on other arrays or faster.
_COMPILERS = {"numba", "jaxlib", __name__.partition(".")[0]}
# Notebooks define functions and classes here, again and again.
_EDITED = {"__main__", "__mp_main__"}
# Nothing is read from these when a class is identified.
_LIBRARIES = {"builtins", "abc", __name__.partition(".")[0]}


def function_parts(function: Callable[..., Any]) -> dict[str, str]:
    """Return digests of the parts of a function: its code, defaults, closure, and the globals that it refers to.

    Arguments of a `functools.partial` and attributes of a callable object are parts too. What can't be identified by
    its content has a digest of its own, which no other object and no other process shares. Groups store the names of
    parts: do not change them.
    """
    inner, parts = function, dict[str, Any]()
    while not isinstance(inner, FunctionType):
        if type(inner) is functools.partial:
            parts["arguments of partial"] = (parts.get("arguments of partial"), inner.args, inner.keywords)
            inner = inner.func
        elif isinstance(inner, MethodType):
            parts["its object"] = inner.__self__
            inner = inner.__func__
        elif (wrapped := _compiled(inner)) is not None:
            inner = wrapped
        elif isinstance(call := inspect.getattr_static(type(inner), "__call__", None), FunctionType):
            parts["its object"] = inner
            inner = call
        else:
            parts["the function"] = inner
            break
    # Content that C defines is only known by name and state.
    digests = _Digests(inner.__module__ if isinstance(inner, FunctionType) else None, function)
    if isinstance(inner, FunctionType):
        parts |= _parts_of(inner)
    return {name: digests.digest(value) for name, value in parts.items()}


def class_digest(cls: type) -> str:
    """Return a digest of the code in a class, its bases, and what they refer to outside this library."""
    kinds = [kind for kind in cls.__mro__ if kind.__module__.partition(".")[0] not in _LIBRARIES]
    return hashlib.sha256(repr([_Digests(kind.__module__, kind).digest(kind) for kind in kinds]).encode()).hexdigest()


def _parts_of(function: FunctionType) -> dict[str, Any]:
    """Return the code of a function, and the values that it uses besides its arguments."""
    code = function.__code__
    parts: dict[str, Any] = {"its code": list(_code(code))}
    if function.__defaults__ or function.__kwdefaults__:
        parts["its defaults"] = (function.__defaults__, function.__kwdefaults__)
    if function.__dict__:
        parts["its attributes"] = function.__dict__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        # A variable without a value lacks contents.
        with suppress(ValueError):
            parts[f"its variable {name!r}"] = cell.cell_contents
    for name in sorted(_names(code)):
        if name in function.__globals__:
            parts[f"the global {name!r}"] = function.__globals__[name]
    return parts


class _Digests:
    """Digests of values; importable functions and classes of other modules than `module` are identified by name."""

    def __init__(self, module: str | None, owner: Any) -> None:
        self._module, self._owner = module, owner
        # Visited values by id, numbered in order.
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []

    def digest(self, value: Any) -> str:
        """Return the digest of a value, or if it can't be inspected, the token of its owner."""
        try:
            return hashlib.sha256(repr(list(self._parts(value))).encode()).hexdigest()
        except Exception:
            # A function that cannot be inspected must not stop the conversion.
            return own_token(self._owner)

    def _parts(self, value: Any) -> Iterator[Any]:
        """Yield what identifies a value; a value that was met before is identified by its number."""
        kind = type(value)
        if kind in _PLAIN:
            yield kind.__name__, repr(value)
        elif isinstance(value, ModuleType):
            yield "module", value.__name__
        elif kind is tuple:
            # Compilers may share equal tuples, so their identity is ignored.
            yield "tuple"
            yield from self._each(value)
        elif kind in (set, frozenset):
            yield kind.__name__, sorted(_Digests(self._module, self._owner).digest(each) for each in value)
        elif id(value) in self._seen:
            yield "seen", self._seen[id(value)]
        else:
            self._seen[id(value)] = len(self._seen)
            # Keep the value, so that no other value gets its id.
            self._kept.append(value)
            yield kind.__module__, kind.__qualname__
            yield from self._inside(value)

    def _inside(self, value: Any) -> Iterator[Any]:
        """Yield the parts of a container, function, class or other object that is met for the first time."""
        kind = type(value)
        if kind is list:
            yield from self._each(value)
        elif kind is dict:
            yield from self._each(item for pair in value.items() for item in pair)
        elif isinstance(value, FunctionType):
            yield from self._named(value, lambda: _parts_of(value).items())
        elif isinstance(value, type):
            yield from self._named(value, lambda: _members(value))
        elif isinstance(value, enum.Enum):
            yield from self._each([kind, value.name, value._value_, *_state(value)])
        elif (inside := _contents(value)) is not None:
            yield from self._each(inside)
        elif kind is np.ndarray and value.dtype.hasobject:
            # dask joins texts, so that ["a-b", "c"] and ["a", "b-c"] have one token.
            yield from self._each([value.shape, str(value.dtype), value.ravel().tolist()])
        else:
            try:
                described = self._described(value)
            except Exception:
                described = ["own", own_token(value)]
            yield from self._each(described)

    def _described(self, value: Any) -> list[Any]:
        """Return what an object consists of; raise if that is hidden."""
        kind = type(value)
        if hasattr(value, "__dask_tokenize__"):
            return [tokenize(value)]
        if self._is_by_content(kind):
            made = _reduced(value)
            # The state of pickle may leave attributes out.
            return [kind, *_state(value), *_described_attributes(value), *made[:2], *map(_pickled_items, made[3:])]
        if kind is not np.ufunc and normalize_token.dispatch(kind) is not normalize_token.dispatch(object):
            return [tokenize(value)]
        return [*_described_attributes(value), *map(_pickled_items, _reduced(value))]

    def _named(self, value: Any, contents: Callable[[], Iterable[Any]]) -> Iterator[Any]:
        yield value.__module__, value.__qualname__
        if self._is_by_content(value):
            yield from self._each(contents())

    def _is_by_content(self, value: Any) -> bool:
        """Return whether a function or class may differ from others of its name."""
        module = value.__module__
        return module == self._module or module in _EDITED or _global(module, value.__qualname__) is not value

    def _each(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            yield list(self._parts(value))


def _global(module: str | None, name: str) -> Any:
    """Return the object of an imported module under a name; None without one."""
    found: Any = sys.modules.get(module or "")
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _members(kind: type) -> Iterator[Any]:
    """Yield the bases of a class, and its attributes, methods and descriptors by name."""
    yield type(kind)
    yield from kind.__bases__
    is_enum = issubclass(kind, enum.Enum)
    for name, member in sorted(vars(kind).items()):
        # Descriptors of slots, `__dict__` and `__weakref__` lack content.
        if isinstance(member, GetSetDescriptorType | MemberDescriptorType):
            yield name
        elif not (name in _OF_PYTHON or name.startswith(_OF_DATACLASSES) or (is_enum and _OF_ENUMS.fullmatch(name))):
            yield from (name, member)
    if is_enum:
        yield from (dict(vars(kind)["_member_map_"]) if "_member_map_" in vars(kind) else {}).items()


def _described_attributes(value: Any) -> Iterator[Any]:
    """Yield the attributes that descriptors of Python may hold in place of the object, with their names."""
    for kind in type(value).__mro__:
        for name, member in sorted(vars(kind).items()):
            if isinstance(inspect.getattr_static(type(member), "__set__", None), FunctionType):
                yield from (name, getattr(value, name, None))


def _contents(value: Any) -> tuple[Any, ...] | None:
    """Return the contents of a wrapper or of a bound method; None for other values."""
    if type(value) is functools.partial:
        return value.func, value.args, value.keywords, value.__dict__
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    if isinstance(value, property):
        return value.fget, value.fset, value.fdel
    if isinstance(value, functools.cached_property):
        return (value.func,)
    if isinstance(value, slice):
        return value.start, value.stop, value.step
    if isinstance(value, BuiltinMethodType | MethodWrapperType) and not isinstance(value.__self__, ModuleType | None):
        return value.__self__, value.__name__
    compiled = _compiled(value)
    return None if compiled is None else (compiled,)


def _compiled(value: Any) -> Any:
    """Return the function that an object keeps the results of, or compiles; None for other objects."""
    is_known = isinstance(value, _CACHED) or type(value).__module__.partition(".")[0] in _COMPILERS
    return getattr(value, "__wrapped__", None) if is_known else None


def _state(value: Any) -> Iterator[Any]:
    """Yield the attributes that an object holds itself, with their names."""
    for kind in type(value).__mro__:
        for name, member in sorted(vars(kind).items()):
            if isinstance(member, MemberDescriptorType) and member.__objclass__ is kind and name not in _OF_C:
                with suppress(AttributeError):
                    yield from (name, member.__get__(value))
    attributes = getattr(value, "__dict__", {})
    for name in sorted(attributes):
        yield from (name, attributes[name])


def _reduced(value: Any) -> tuple[Any, ...]:
    """Return the parts that pickle makes an object of; raise if it has hidden state, or is a global of no module."""
    reduce = copyreg.dispatch_table.get(type(value))
    with warnings.catch_warnings():
        # Iterators of itertools can't be pickled in later versions of Python.
        warnings.simplefilter("ignore", DeprecationWarning)
        reduced: Any = value.__reduce_ex__(4) if reduce is None else reduce(value)
    if not isinstance(reduced, str):
        return tuple(reduced)
    module = getattr(value, "__module__", None) or type(value).__module__
    if _global(module, reduced) is not value:
        raise TypeError(f"{module}.{reduced} is another object")
    return module, reduced


def _pickled_items(value: Any) -> Any:
    """Return the items that pickle adds to a list or a mapping as a list."""
    return list(value) if isinstance(value, Iterator) else value


# Tokens of objects that can't be identified by their content, by id, with what keeps the id from being used again.
_own_tokens: dict[int, tuple[Any, str]] = {}


def own_token(value: Any) -> str:
    """Return the token of an object that no other object and no other process shares."""
    key = id(value)
    if key not in _own_tokens:
        try:
            kept: Any = weakref.ref(value, lambda _: _own_tokens.pop(key, None))
        except TypeError:
            # It lives as long as the process: it is small, because objects with content are identified by it.
            kept = value
        _own_tokens[key] = kept, uuid.uuid4().hex
    return _own_tokens[key][1]


def _code(code: CodeType) -> Iterator[Any]:
    """Yield the instructions, names and constants of code, without its position in a file."""
    yield code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    yield code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_exceptiontable
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield constant


def _names(code: CodeType) -> set[str]:
    """Return the names that code and the functions within it refer to."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names}.union(*map(_names, inner))
