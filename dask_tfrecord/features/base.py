"""The base of the feature classes."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from dask_tfrecord.errors import SchemaError


class Feature(ABC):
    """Base of the feature classes.

    A feature specifies the values to read from a record, and the layout of a block of rows. A block is dense: an array
    of shape ``(n, *item_shape)``; or ragged: `ragged_rank` levels of rows of values of shape `item_shape`; or each of
    its rows is an array of its own shape.

    Attributes
    ----------
    block_dtype : dtype
        The dtype of a column: object if rows are bytes or arrays.
    is_bytes : bool
        Values of a block are bytes.
    is_dense : bool
        Blocks are arrays of numbers.
    """

    __slots__ = ("block_dtype", "is_bytes", "is_dense")
    dtype: Any
    shape: Any
    block_dtype: np.dtype[Any]
    is_bytes: bool
    is_dense: bool

    @property
    @abstractmethod
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of the values of a block: object for bytes."""

    @property
    @abstractmethod
    def item_shape(self) -> tuple[int, ...]:
        """Shape of a row, or of the values of a ragged row; the same in all rows."""

    @property
    def ragged_rank(self) -> int:
        """Levels of rows of variable length."""
        return 0

    @property
    def own_shapes(self) -> int:
        """Number of axes if each row has its own shape, otherwise 0."""
        return 0

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Shape of one record in a column; ``()`` if a row is an array, which is one object."""
        return () if self.ragged_rank or self.own_shapes else self.item_shape

    def _set(self, **values: Any) -> None:
        """Set checked arguments of the frozen dataclass, and what follows from them; for constructors only."""
        for name, value in values.items():
            object.__setattr__(self, name, value)
        item_dtype = self.item_dtype
        block_dtype = np.dtype(object) if self.ragged_rank or self.own_shapes else item_dtype
        object.__setattr__(self, "block_dtype", block_dtype)
        object.__setattr__(self, "is_bytes", item_dtype == np.dtype(object))
        object.__setattr__(self, "is_dense", block_dtype.kind in "biufcmM")

    def _is_equal(self, other: object) -> Any:
        """Compare the fields as tuples, in which NaN, a single object here, equals itself.

        Since Python 3.13 dataclasses compare field by field, and NaN differs from itself.
        """
        if type(other) is not type(self):
            return NotImplemented
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        return tuple(getattr(self, name) for name in names) == tuple(getattr(other, name) for name in names)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that construct an equal feature, without defaults."""
        given = {}
        for argument in fields(self):  # type: ignore[arg-type]
            value = getattr(self, argument.name)
            if value != argument.default:
                given[argument.name] = value
        return given

    def __reduce__(self) -> Any:
        # The constructor replaces NaN by a single object, which compares equal to itself.
        return functools.partial(type(self), **self.arguments()), ()

    def call(self, code: Callable[[Any], str]) -> str:
        """Return the call that constructs the feature, with code of each value; required arguments are positional."""
        required = [field.name for field in fields(self) if field.default is MISSING]  # type: ignore[arg-type]
        parts = [code(v) if n in required else f"{n}={code(v)}" for n, v in self.arguments().items()]
        return f"{type(self).__name__}({', '.join(parts)})"

    def __repr__(self) -> str:
        return self.call(repr)


def checked_key(key: Any, owner: str) -> str:
    """Check the name of a key of a record."""
    if not isinstance(key, str):
        raise SchemaError(f"{owner}: expected a string as key; got {key!r}")
    return key


def of_this_library(given: Any, base: type, classes: Mapping[str, Any], owner: str, expected: str) -> Any:
    """Return an object of a class of this library, converted from one of `tf.io` that has its positional arguments."""
    if isinstance(given, base):
        return given
    cls = classes.get(type(given).__name__)
    names = [] if cls is None else [each.name for each in fields(cls) if not each.kw_only]
    if cls is None or not all(hasattr(given, name) for name in names):
        raise SchemaError(f"{owner}: expected {expected}; got {given!r:.100}")
    return cls(*(getattr(given, name) for name in names))
