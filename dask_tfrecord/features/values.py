"""What feature classes have in common: how blocks of them look, and how their arguments are checked."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import SchemaError

__all__ = [
    "Feature",
    "Shape",
    "checked_default",
    "checked_dtype",
    "checked_key",
    "checked_parsed_dtype",
    "checked_shape",
    "default_array",
    "numpy_dtype",
    "stored_kind",
]

# The three lists a Feature message can hold, under the names that tf.io, NumPy and Python users have for them.
_KINDS = {"float": "float32", "string": "bytes", "object": "bytes", "bytes": "bytes"}
_NAN = math.nan

# What a shape may be given as; None is an open size.
Shape = int | Sequence[int | None]


class Feature(ABC):
    """Base of the feature classes.

    A feature says two things: what is read from a record, and how a block of rows looks. A block is dense (an array of
    ``(n, *item_shape)``), or ragged (`ragged_rank` levels of rows, values of shape `item_shape` within), or its rows
    are arrays that each have a shape of their own.
    """

    __slots__ = ()
    dtype: Any
    shape: Any

    @property
    @abstractmethod
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of the values of a block: object for bytes."""

    @property
    @abstractmethod
    def item_shape(self) -> tuple[int, ...]:
        """Sizes that are the same in all rows: those of a row, or of the values of a ragged one."""

    @property
    def ragged_rank(self) -> int:
        """Levels of rows of differing length."""
        return 0

    @property
    def own_shapes(self) -> int:
        """Number of axes of rows that each have a shape of their own, else 0."""
        return 0

    @property
    def block_dtype(self) -> np.dtype[Any]:
        """The dtype of a column: object where rows are bytes or arrays."""
        return np.dtype(object) if self.ragged_rank or self.own_shapes else self.item_dtype

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Shape of one record in a column; an array of its own is one object."""
        return () if self.ragged_rank or self.own_shapes else self.item_shape

    @property
    def is_dense(self) -> bool:
        """Whether blocks are arrays of numbers."""
        return self.block_dtype.kind in "biufc"

    @property
    def is_bytes(self) -> bool:
        """Whether the values of a block are bytes."""
        return self.item_dtype == np.dtype(object)

    def _set(self, **values: Any) -> None:
        """Keep arguments as they were checked; only constructors do, everything else finds the feature frozen."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def arguments(self) -> dict[str, Any]:
        """Give what makes the feature again, less what is as by default."""
        given = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value != field.default:
                given[field.name] = value
        return given

    def __reduce__(self) -> Any:
        # Through the constructor: it knows one NaN, which is equal to itself.
        return _made, (type(self), self.arguments())

    def __repr__(self) -> str:
        required = [field.name for field in fields(self) if field.default is MISSING]  # type: ignore[arg-type]
        given = self.arguments().items()
        return f"{type(self).__name__}({', '.join(repr(v) if n in required else f'{n}={v!r}' for n, v in given)})"


def _made(cls: type[Feature], arguments: dict[str, Any]) -> Feature:
    return cls(**arguments)


def checked_key(key: Any, owner: str) -> str:
    """Check the name of a key of a record."""
    if not isinstance(key, str):
        raise SchemaError(f"{owner}: a key is a string; got {key!r}")
    return key


def numpy_dtype(dtype: Any, owner: str) -> np.dtype[Any]:
    """Find the NumPy dtype of a name, a NumPy type or a TensorFlow dtype."""
    if dtype is None:  # which NumPy takes for float64
        raise SchemaError(f"{owner} needs a dtype; got None")
    # TensorFlow's dtypes know the NumPy type they stand for.
    dtype = getattr(dtype, "as_numpy_dtype", dtype)
    if isinstance(dtype, str) and dtype == "bfloat16":
        return _bfloat16(owner)
    try:
        known: np.dtype[Any] = np.dtype(dtype)
        return known
    except TypeError:
        raise SchemaError(f"{owner}: {dtype!r} is no NumPy dtype") from None


def _bfloat16(owner: str) -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError:
        raise SchemaError(
            f"{owner}: NumPy has bfloat16 through ml_dtypes alone: pip install 'dask-tfrecord[bfloat16]'"
        ) from None
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def checked_dtype(dtype: Any, owner: str) -> str:
    """Check the dtype of arrays that are stored as bytes: one spelling for each, which carries the byte order."""
    found = numpy_dtype(dtype, owner)
    if (found.kind not in "biufc" and found.name != "bfloat16") or found.hasobject:
        raise SchemaError(f"{owner} takes a numeric or bool dtype; got {found}")
    # longdouble is another format on each kind of machine.
    if found.itemsize > 8 * (1 + (found.kind == "c")):
        raise SchemaError(f"{owner}: no file holds {found}, which differs from machine to machine")
    return found.name if found.isnative else found.str


def checked_parsed_dtype(dtype: Any, owner: str) -> str:
    """Check the dtype of values that an Example lists: what it stores, or what that can be cast to.

    Returns
    -------
    str
        ``"bytes"``, an integer, ``"bool"`` or a float.
    """
    if dtype in (bytes, object):
        return "bytes"
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    if name in _KINDS:
        return _KINDS[name]
    found = numpy_dtype(dtype, owner)
    if found.kind in "biu" or found.name in ("float16", "float32", "float64", "bfloat16"):
        return found.name
    raise SchemaError(
        f"{owner} takes dtype int64, float32 or bytes, the kinds an Example stores, or an integer, bool or float that "
        f"they are cast to; got {dtype!r}. Arrays stored as bytes are RawFeature(shape, dtype), text is TextFeature()"
    )


def stored_kind(dtype: str) -> str:
    """Which of the three lists of an Example values of this dtype come from."""
    if dtype == "bytes":
        return dtype
    return "int64" if numpy_dtype(dtype, "").kind in "biu" else "float32"


def checked_shape(shape: Any, owner: str, *, open_sizes: int = 0) -> tuple[int, ...]:
    """Check a shape; up to `open_sizes` leading sizes may be unknown, which is -1.

    Returns
    -------
    tuple of int
    """
    as_list = getattr(shape, "as_list", None)  # of a TensorShape
    if as_list is not None:
        shape = as_list()
    if isinstance(shape, int | np.integer):
        shape = (shape,)
    try:
        sizes = tuple(-1 if size is None else operator.index(size) for size in shape)
    except TypeError:
        raise SchemaError(f"{owner}: the shape {shape!r} is no sequence of ints") from None
    known = [size for place, size in enumerate(sizes) if size != -1 or place >= open_sizes]
    if any(size < 0 for size in known):
        raise SchemaError(f"{owner}: every size of the shape is known and not negative; got {sizes}")
    return sizes


def checked_default(value: Any, dtype: str, shape: tuple[int, ...], owner: str) -> Any:
    """Check a default value.

    Returns
    -------
    scalar or nested tuples
        Of the shape, or one scalar for all of it; None if there is none.
    """
    if value is None:
        return None
    if hasattr(value, "numpy"):  # of a tensor
        value = value.numpy()
    array = np.asarray(value, object if dtype == "bytes" else None)
    if array.size not in (1, math.prod(shape)):
        raise SchemaError(
            f"{owner}: default_value holds {array.size} values where the shape {shape} takes {math.prod(shape)}, "
            f"or one for all"
        )
    items = [_default_item(item, dtype, owner) for item in array.ravel().tolist()]
    if array.ndim == 0 or not shape:
        return items[0]
    return _nested(items, shape if len(items) == math.prod(shape) else (1,) * len(shape))


def _nested(items: list[Any], shape: tuple[int, ...]) -> Any:
    if not shape:
        return items[0]
    each = math.prod(shape[1:])
    return tuple(_nested(items[place * each : (place + 1) * each], shape[1:]) for place in range(shape[0]))


def _default_item(item: Any, dtype: str, owner: str) -> Any:
    if dtype == "bytes":
        if isinstance(item, str):
            item = item.encode()
        if isinstance(item, bytes):
            return item
    elif isinstance(item, int | float):
        known = numpy_dtype(dtype, owner)
        with np.errstate(all="ignore"):
            cast = np.asarray(item).astype(known)
        if stored_kind(dtype) == "float32" and not (np.isinf(float(cast)) and math.isfinite(item)):
            return _NAN if item != item else float(item)
        if stored_kind(dtype) == "int64" and item == item and int(cast) == item:
            return bool(item) if known.kind == "b" else int(item)
    raise SchemaError(f"{owner}: the default value {item!r} is no {dtype}")


def default_array(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Spread a checked default value over a shape."""
    array = np.empty(np.shape(value), object)
    array[...] = value
    return np.broadcast_to(array.astype(dtype), shape)
