"""Arrays in bytes values, decoded and encoded by functions of the user."""

from __future__ import annotations

import functools
import hashlib
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from numpy.typing import NDArray

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.arrays import ArrayFeature
from dask_tfrecord.features.base import Feature
from dask_tfrecord.features.dtypes import Shape
from dask_tfrecord.identity import function_parts

# Functions that features of this process were given. JSON names functions, and never imports one: a store or the labels
# of shards may come from anywhere. Threads add functions and find them; equal ones have equal names.
_known: WeakValueDictionary[tuple[str, str], Any] = WeakValueDictionary()
# The names of these functions, by id.
_named_functions: dict[int, tuple[weakref.ref[Any], tuple[str, str]]] = {}


@dataclass(frozen=True, slots=True)
class NamedFunction:
    """A function that JSON names: callable if a feature in this process has it, else only a name."""

    name: str
    digest: str

    def __call__(self, value: Any) -> Any:
        """Raise: the function itself is not there."""
        raise SchemaError(
            f"function {self.name} is not known to this process, which read its name from a file: pass the feature, "
            f"features={{name: FunctionFeature({self.name.rpartition(':')[2]}, …)}}"
        )


def function_name(function: Any) -> tuple[str, str]:
    """Return the name of a function, and a digest of its code and variables: equal in every process.

    The digest is of the time when a feature was given the function: a cache that it fills does not change its name.
    """
    if isinstance(function, NamedFunction):
        return function.name, function.digest
    reference, name = _named_functions.get(id(function), (None, ("", "")))
    return name if reference is not None and reference() is function else _name_now(function)


def _name_now(function: Any) -> tuple[str, str]:
    """Return the name and digest of a function, and keep them."""
    named, key = _function_with_name(function), id(function)
    digest = hashlib.sha256(repr(function_parts(function)).encode())
    name = f"{named.__module__}:{named.__qualname__}", digest.hexdigest()[:16]
    # A callable of C may lack weak references.
    with suppress(TypeError):
        _named_functions[key] = weakref.ref(function, lambda _: _named_functions.pop(key, None)), name
        _known[name] = function
    return name


def _function_with_name(function: Any) -> Any:
    """Return the function that names it: a partial's function, or the class of a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if hasattr(function, "__qualname__") else type(function)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class FunctionFeature(ArrayFeature):
    """Read an array from bytes in any format, by calling your function.

    Parameters
    ----------
    decode : callable
        Function that takes the `bytes` of one value and returns an array of `dtype` and `shape`. If it raises an
        exception, this becomes a `FeatureError` that names file, record and feature. It is sent to workers like the
        functions of `map_blocks`.
    shape : tuple of int or None
        Shape of one array. None or -1 means a size that differs between values. If only the first size is open, rows
        are ragged; otherwise each row is an array with its own shape.
    dtype : str or dtype
        The dtype of the arrays: numeric, bool, text (`str`), or times like ``"datetime64[s]"``, in the unit D, s, ms,
        us or ns. With text, a row has one text or a list of texts. With text and times, only the first size may be
        open.
    encode : callable, optional
        Function that turns an array into `bytes`, which `to_tfrecord` needs.
    count : int, optional
        Number of arrays per record, each in a bytes value of its own; -1 for any number, including zero. By default a
        record has one.
    value_key : str, optional
        Key of the values in the record, by default the name of the feature. Several features may read the same key.

    Notes
    -----
    Two features are equal if their functions have the same name, code and variables, and use equal names of their
    module. A file that describes a schema (the attributes of a store, the labels of shards) contains only the names of
    the functions, and reading it imports nothing. Unless you give the feature again, the arrays of a store can still be
    read, but records can't.

    Examples
    --------
    >>> import io
    >>> def load(value):
    ...     return np.load(io.BytesIO(value))
    >>> FunctionFeature(load, (None, 3), "float32")
    FunctionFeature(load, (-1, 3), 'float32')
    """

    decode: Callable[[bytes], Any]
    shape: tuple[int, ...]
    dtype: str
    encode: Callable[[NDArray[Any]], bytes] | None = None
    count: int | None = field(default=None, kw_only=True)
    value_key: str | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:
        # Arguments accept more types than the fields store.
        def __init__(
            self,
            decode: Callable[[bytes], Any],
            shape: Shape,
            dtype: Any,
            encode: Callable[[NDArray[Any]], bytes] | None = None,
            *,
            count: int | None = None,
            value_key: str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        for function in filter(None, (self.decode, self.encode)):
            if not callable(function):
                raise SchemaError(f"FunctionFeature: expected a function; got {function!r:.100}")
            if not isinstance(function, NamedFunction):
                _name_now(function)
        ArrayFeature.__post_init__(self)

    def _identity(self) -> tuple[Any, ...]:
        arguments = self.arguments().items()
        return tuple((name, function_name(value) if callable(value) else value) for name, value in arguments)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FunctionFeature) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def call(self, code: Callable[[Any], str]) -> str:
        """Return the call that constructs the feature; functions have their names."""
        return Feature.call(self, lambda value: _short_name(value) if callable(value) else code(value))

    def decode_value(self, value: bytes) -> Any:
        """Call `decode`."""
        return self.decode(value)

    def encode_value(self, array: NDArray[Any]) -> bytes:
        """Call `encode`."""
        if self.encode is None:
            raise SchemaError("it has no function encode=")
        return self.encode(array)

    def reason_not_written(self) -> str | None:
        """Return why arrays can't be written without `encode`."""
        return "has no function encode= from an array to bytes" if self.encode is None else None


def _short_name(function: Any) -> str:
    name = function.name if isinstance(function, NamedFunction) else _function_with_name(function).__qualname__
    return str(name).rpartition(":")[2].rpartition(".")[2]


def json_of_function(function: Any) -> dict[str, Any]:
    """Return the name of a function as JSON values."""
    name, digest = function_name(function)
    return {"function": name, "digest": digest}


def function_of_json(value: Mapping[str, Any]) -> Any:
    """Return the function of this process that JSON names, or a `NamedFunction`."""
    name, digest = str(value["function"]), str(value["digest"])
    return _known.get((name, digest)) or NamedFunction(name, digest)
