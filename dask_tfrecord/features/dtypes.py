"""Checks for dtypes, shapes and default values that users pass, and their names in NumPy and TensorFlow."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import SchemaError

# Other names, in tf.io, NumPy and Python, of the kinds that a Feature message stores.
_KIND_NAMES = {"float": "float32", "string": "bytes", "object": "bytes", "bytes": "bytes"}

_NAN = math.nan

# NumPy supports 64 axes; the first one counts records.
_MAX_AXES = 63

# More than any memory; products of sizes stay below 2**63.
_MAX_VALUES = 1 << 48

# Dtypes of moments and durations: int64 numbers of a unit that all outputs have.
TIMES = tuple(f"{kind}[{unit}]" for kind in ("datetime64", "timedelta64") for unit in ("D", "s", "ms", "us", "ns"))

# A shape as users may specify it; None is an open size.
Shape = int | Sequence[int | None]


def numpy_dtype(dtype: Any, owner: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a name, a NumPy type or a TensorFlow dtype."""
    if dtype is None:  # NumPy would return float64
        raise SchemaError(f"{owner} needs a dtype; got None")
    # An attribute of TensorFlow's dtypes.
    dtype = getattr(dtype, "as_numpy_dtype", dtype)
    if isinstance(dtype, str) and dtype == "bfloat16":
        return _bfloat16(owner)
    try:
        known: np.dtype[Any] = np.dtype(dtype)
        return known
    except TypeError:
        is_shape = isinstance(dtype, tuple | list) and owner == "VarLenFeature"
        advice = ": it takes no shape, because rows differ in length: write VarLenFeature('int64')" if is_shape else ""
        raise SchemaError(
            f"{owner}: expected a dtype such as 'int64', 'float32' or 'uint8'; got {dtype!r}{advice}"
        ) from None


def _bfloat16(owner: str) -> np.dtype[Any]:
    """Return the dtype of ml_dtypes; an error names the extra if it is not installed."""
    try:
        import ml_dtypes
    except ImportError:
        raise SchemaError(f"{owner}: bfloat16 needs ml_dtypes: pip install 'dask-tfrecord[bfloat16]'") from None
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def checked_dtype(dtype: Any, owner: str) -> str:
    """Check the dtype of arrays stored as bytes, and return its name, with the byte order if it is not native."""
    parsed = numpy_dtype(dtype, owner)
    if (parsed.kind not in "biufc" and parsed.name != "bfloat16") or parsed.hasobject:
        raise SchemaError(f"{owner}: expected a numeric or bool dtype; got {parsed}")
    # The format of longdouble depends on the platform.
    if parsed.itemsize > 8 * (1 + (parsed.kind == "c")):
        raise SchemaError(f"{owner}: {parsed} is not portable; use float64 or complex128")
    return parsed.name if parsed.isnative else parsed.str


def checked_decoded_dtype(dtype: Any, owner: str) -> str:
    """Check the dtype that a function returns: one for arrays in bytes, ``"text"``, or one in `TIMES`."""
    if dtype in (str, "str", "string", "text") or isinstance(dtype, np.dtypes.StringDType):
        return "text"
    parsed = numpy_dtype(dtype, owner)
    if parsed.kind in "mM":
        return _checked_times(parsed, owner)
    if parsed.kind not in "biufcV":
        raise SchemaError(
            f"{owner}: expected a numeric or bool dtype, text (str) or times such as 'datetime64[s]'; got {parsed}"
        )
    return checked_dtype(dtype, owner)


def _checked_times(dtype: np.dtype[Any], owner: str) -> str:
    if dtype.name not in TIMES:
        raise SchemaError(f"{owner}: times must have the unit D, s, ms, us or ns, as in 'datetime64[s]'; got {dtype}")
    return dtype.name


def checked_parsed_dtype(dtype: Any, owner: str) -> str:
    """Check the dtype of values that an Example lists: int64, float32, bytes, or a dtype that they are cast to.

    Returns
    -------
    str
        ``"bytes"``, an integer, ``"bool"``, a float, or one of `TIMES`, which int64 values are views of.
    """
    if dtype in (bytes, object):
        return "bytes"
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    if name in _KIND_NAMES:
        return _KIND_NAMES[name]
    found = numpy_dtype(dtype, owner)
    if found.kind in "mM":
        return _checked_times(found, owner)
    if found.kind in "biu" or found.name in ("float16", "float32", "float64", "bfloat16"):
        return found.name
    raise SchemaError(
        f"{owner}: expected dtype int64, float32 or bytes, the kinds that an Example stores, or an integer, bool or "
        f"float dtype to cast them to; got {dtype!r}. Use RawFeature(shape, dtype) for arrays stored as bytes, "
        f"TextFeature() for text"
    )


def checked_mixed(mixed: Any, dtype: str, owner: str) -> bool:
    """Check that a dtype holds the floats and integers of a feature whose records differ in their kind."""
    if mixed and dtype not in ("float32", "float64"):
        raise SchemaError(f"{owner}: mixed=True reads integers and floats as float64 or float32; got dtype {dtype!r}")
    return bool(mixed)


@functools.cache
def values_dtype(dtype: str) -> np.dtype[Any]:
    """Return the NumPy dtype of values of a checked dtype: object for bytes, `StringDType` for text."""
    if dtype == "text":
        return np.dtypes.StringDType()
    return np.dtype(object) if dtype == "bytes" else numpy_dtype(dtype, "")


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Name a dtype for display: "bytes" for objects, "text" for strings."""
    return {"O": "bytes", "T": "text"}.get(dtype.kind, dtype.name)


@functools.cache
def stored_kind(dtype: str) -> str:
    """Return the kind that an Example stores for values of this dtype: "bytes", "int64" or "float32"."""
    if dtype == "bytes":
        return dtype
    return "int64" if numpy_dtype(dtype, "").kind in "biumM" else "float32"


def checked_shape(shape: Any, owner: str, *, open_sizes: int = 0, filled: bool = True) -> tuple[int, ...]:
    """Check a shape and return it as a tuple of int.

    Parameters
    ----------
    shape : int, sequence of int or None, or TensorShape
        Sizes; None or -1 is an open size.
    owner : str
        Feature class to name in errors.
    open_sizes : int
        Number of leading sizes that may be open.
    filled : bool
        Each element is stored: check that a record could fit into memory.
    """
    as_list = getattr(shape, "as_list", None)  # of a TensorShape
    if as_list is not None:
        shape = as_list()
    if isinstance(shape, int | np.integer):
        shape = (shape,)
    try:
        sizes = tuple(-1 if size is None else operator.index(size) for size in shape)
    except TypeError:
        is_dtype = isinstance(shape, str | type | np.dtype)
        given = shape if isinstance(shape, str) else getattr(shape, "__name__", "int64")
        given = given or "int64"
        advice = f": the shape comes before the dtype: write {owner}((8, 8, 3), {given!r})" if is_dtype else ""
        if owner == "ImageFeature" and is_dtype and not hasattr(np, given):
            advice = ": the format of files is detected: write ImageFeature()"
        if is_dtype and owner == "FixedLenFeature":
            advice = (
                f": the shape comes before the dtype: write FixedLenFeature((), {given!r}) for one value per record"
            )
        raise SchemaError(f"{owner}: expected a sequence of ints as shape; got {shape!r}{advice}") from None
    known = [size for axis, size in enumerate(sizes) if size != -1 or axis >= open_sizes]
    if any(size < 0 for size in known):
        advice = ": VarLenFeature(dtype) reads any number of values" if owner == "FixedLenFeature" else ""
        raise SchemaError(f"{owner}: expected known, non-negative sizes in the shape; got {sizes}{advice}")
    if len(sizes) > _MAX_AXES:
        raise SchemaError(f"{owner}: expected at most {_MAX_AXES} axes, without that of records; got {len(sizes)}")
    if filled and math.prod(max(size, 1) for size in sizes) > _MAX_VALUES:
        raise SchemaError(f"{owner}: expected at most 2**48 values per record; the shape {sizes} has more")
    return sizes


def checked_default(value: Any, dtype: str, shape: tuple[int, ...], owner: str) -> Any:
    """Check a default value.

    Returns
    -------
    scalar or nested tuples
        One value, or values in the given shape; None without a default.
    """
    if value is None:
        return None
    if hasattr(value, "numpy"):  # of a tensor
        value = value.numpy()
    array = np.asarray(value, object if dtype == "bytes" else None)
    if dtype in TIMES and array.dtype.kind == values_dtype(dtype).kind:
        # As a number of units, which JSON has.
        array = array.astype(dtype).astype(np.int64)
    if array.size not in (1, math.prod(shape)):
        raise SchemaError(
            f"{owner}: default_value has {array.size} values; expected one, or {math.prod(shape)} for shape {shape}"
        )
    items = [_default_item(item, dtype, owner) for item in array.ravel().tolist()]
    if array.ndim == 0 or not shape:
        return items[0]
    return _nested_tuples(items, shape if len(items) == math.prod(shape) else (1,) * len(shape))


def _nested_tuples(items: list[Any], shape: tuple[int, ...]) -> Any:
    """Arrange items as tuples in tuples, as deep as a shape."""
    if not shape:
        return items[0]
    each = math.prod(shape[1:])
    return tuple(_nested_tuples(items[row * each : (row + 1) * each], shape[1:]) for row in range(shape[0]))


def _default_item(item: Any, dtype: str, owner: str) -> Any:
    """Convert one default value to what is stored; refuse a value that the dtype does not hold."""
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
        cast = cast.astype(np.int64) if known.kind in "mM" else cast
        if stored_kind(dtype) == "int64" and item == item and int(cast) == item:
            return bool(item) if known.kind == "b" else int(item)
    example = "b''" if dtype == "bytes" else "0"
    raise SchemaError(
        f"{owner}: the default value {item!r} cannot be stored as {dtype}: write one that can, such as "
        f"default_value={example}"
    )


def default_array(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Broadcast a checked default value to a shape."""
    array = np.empty(np.shape(value), object)
    array[...] = value
    return np.broadcast_to(array.astype(dtype), shape)
