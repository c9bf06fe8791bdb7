"""Feature classes: the values to read from a record, and dtype and shape of their column."""

from __future__ import annotations

import base64
import functools
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.message_types import MessageType

# Other names, in tf.io, NumPy and Python, of the kinds that a Feature message stores.
_KIND_NAMES = {"float": "float32", "string": "bytes", "object": "bytes", "bytes": "bytes"}
_NAN = math.nan
# NumPy supports 64 axes; the first one counts records.
_MAX_AXES = 63
# More than any memory; products of sizes stay below 2**63.
_MAX_VALUES = 1 << 48

# Dtypes of moments and durations: int64 nanoseconds.
TIMES = ("datetime64[ns]", "timedelta64[ns]")

# A shape as users may specify it; None is an open size.
Shape = int | Sequence[int | None]


class TensorDType(NamedTuple):
    """Representation of a dtype in a serialized TensorProto."""

    number: int  # value of the enum DataType
    itemsize: int  # bytes per value in `tensor_content`; 0 for strings, which are not stored there
    values_field: int  # number of the field that lists values one by one


# https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/framework/types.proto and tensor.proto.
TENSOR_DTYPES = {
    "float32": TensorDType(1, 4, 5),
    "float64": TensorDType(2, 8, 6),
    "int32": TensorDType(3, 4, 7),
    "uint8": TensorDType(4, 1, 7),
    "int16": TensorDType(5, 2, 7),
    "int8": TensorDType(6, 1, 7),
    "bytes": TensorDType(7, 0, 8),
    "complex64": TensorDType(8, 8, 9),
    "int64": TensorDType(9, 8, 10),
    "bool": TensorDType(10, 1, 11),
    "bfloat16": TensorDType(14, 2, 13),
    "uint16": TensorDType(17, 2, 7),
    "complex128": TensorDType(18, 16, 12),
    "float16": TensorDType(19, 2, 13),
    "uint32": TensorDType(22, 4, 16),
    "uint64": TensorDType(23, 8, 17),
}


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
        raise SchemaError(f"{owner}: {dtype!r} is not a NumPy dtype") from None


def _bfloat16(owner: str) -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError:
        raise SchemaError(f"{owner}: bfloat16 needs ml_dtypes: pip install 'dask-tfrecord[bfloat16]'") from None
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def checked_dtype(dtype: Any, owner: str) -> str:
    """Check the dtype of arrays stored as bytes, and return its name, with the byte order if it is not native."""
    found = numpy_dtype(dtype, owner)
    if (found.kind not in "biufc" and found.name != "bfloat16") or found.hasobject:
        raise SchemaError(f"{owner}: expected a numeric or bool dtype; got {found}")
    # The format of longdouble depends on the platform.
    if found.itemsize > 8 * (1 + (found.kind == "c")):
        raise SchemaError(f"{owner}: {found} is not portable; use float64 or complex128")
    return found.name if found.isnative else found.str


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
    if found.kind in "biu" or found.name in ("float16", "float32", "float64", "bfloat16", *TIMES):
        return found.name
    raise SchemaError(
        f"{owner}: expected dtype int64, float32 or bytes, the kinds that an Example stores, or an integer, bool or "
        f"float dtype to cast them to; got {dtype!r}. Use RawFeature(shape, dtype) for arrays stored as bytes, "
        f"TextFeature() for text"
    )


@functools.cache
def values_dtype(dtype: str) -> np.dtype[Any]:
    """Return the NumPy dtype of values of a checked dtype of `checked_parsed_dtype`: object for bytes."""
    return np.dtype(object) if dtype == "bytes" else numpy_dtype(dtype, "")


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of the dtype of values, for display: "bytes" of objects, "text" of strings."""
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
        raise SchemaError(f"{owner}: expected a sequence of ints as shape; got {shape!r}") from None
    known = [size for axis, size in enumerate(sizes) if size != -1 or axis >= open_sizes]
    if any(size < 0 for size in known):
        raise SchemaError(f"{owner}: expected known, non-negative sizes in the shape; got {sizes}")
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
    if array.size not in (1, math.prod(shape)):
        raise SchemaError(
            f"{owner}: default_value has {array.size} values; expected one, or {math.prod(shape)} for shape {shape}"
        )
    items = [_default_item(item, dtype, owner) for item in array.ravel().tolist()]
    if array.ndim == 0 or not shape:
        return items[0]
    return _nested(items, shape if len(items) == math.prod(shape) else (1,) * len(shape))


def _nested(items: list[Any], shape: tuple[int, ...]) -> Any:
    if not shape:
        return items[0]
    each = math.prod(shape[1:])
    return tuple(_nested(items[row * each : (row + 1) * each], shape[1:]) for row in range(shape[0]))


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
    raise SchemaError(f"{owner}: default value {item!r} cannot be stored as {dtype}")


def default_array(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Broadcast a checked default value to a shape."""
    array = np.empty(np.shape(value), object)
    array[...] = value
    return np.broadcast_to(array.astype(dtype), shape)


class Partition:
    """Base of the partitions, which have one argument each."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, partition_arguments(self).values()))})"


def partition_arguments(partition: Partition) -> dict[str, Any]:
    """Return the argument that constructs an equal partition, by its name."""
    return {field.name: getattr(partition, field.name) for field in fields(partition)}  # type: ignore[arg-type]


def _from_tensorflow(given: Any, base: type, classes: Mapping[str, Any], owner: str, expected: str) -> Any:
    """Return an object of a class of this library, converted from one of `tf.io` that has its positional arguments."""
    if isinstance(given, base):
        return given
    cls = classes.get(type(given).__name__)
    names = [] if cls is None else [each.name for each in fields(cls) if not each.kw_only]
    if cls is None or not all(hasattr(given, name) for name in names):
        raise SchemaError(f"{owner}: expected {expected}; got {given!r:.100}")
    return cls(*(getattr(given, name) for name in names))


@dataclass(frozen=True, slots=True, repr=False)
class KeyedPartition(Partition):
    """A partition stored under a key of the record, as int64 values."""

    key: str

    def __post_init__(self) -> None:
        checked_key(self.key, type(self).__name__)


@dataclass(frozen=True, slots=True, repr=False)
class UniformRowLength(Partition):
    """Rows of one length, as `tf.io.RaggedFeature.UniformRowLength`.

    Parameters
    ----------
    length : int
        Values per row, one or more.

    Examples
    --------
    >>> UniformRowLength(2)
    UniformRowLength(2)
    """

    length: int

    def __post_init__(self) -> None:
        if isinstance(self.length, bool) or int(self.length) != self.length or self.length < 1:
            raise SchemaError(f"UniformRowLength: expected one or more values per row; got {self.length!r}")
        object.__setattr__(self, "length", int(self.length))


@dataclass(frozen=True, slots=True, repr=False)
class RowLengths(KeyedPartition):
    """The number of values of each row, as `tf.io.RaggedFeature.RowLengths`.

    Parameters
    ----------
    key : str
        Key in the record.

    Examples
    --------
    >>> RowLengths("lengths")
    RowLengths('lengths')
    """


@dataclass(frozen=True, slots=True, repr=False)
class RowSplits(KeyedPartition):
    """Offsets between rows, from 0 to the number of values, as `tf.io.RaggedFeature.RowSplits`.

    Parameters
    ----------
    key : str
        Key in the record.

    Examples
    --------
    >>> RowSplits("splits")
    RowSplits('splits')
    """


@dataclass(frozen=True, slots=True, repr=False)
class ValueRowIds(KeyedPartition):
    """The row number of each value, ascending, as `tf.io.RaggedFeature.ValueRowIds`.

    Parameters
    ----------
    key : str
        Key in the record.

    Examples
    --------
    >>> ValueRowIds("rows")
    ValueRowIds('rows')
    """


@dataclass(frozen=True, slots=True, repr=False)
class RowLimits(KeyedPartition):
    """The end of each row, as `tf.io.RaggedFeature.RowLimits`.

    Parameters
    ----------
    key : str
        Key in the record.

    Examples
    --------
    >>> RowLimits("ends")
    RowLimits('ends')
    """


@dataclass(frozen=True, slots=True, repr=False)
class RowStarts(KeyedPartition):
    """The start of each row, beginning with 0, as `tf.io.RaggedFeature.RowStarts`.

    Parameters
    ----------
    key : str
        Key in the record.

    Examples
    --------
    >>> RowStarts("starts")
    RowStarts('starts')
    """


_PARTITIONS: dict[str, Any] = {
    cls.__name__: cls for cls in (RowLengths, RowLimits, RowSplits, RowStarts, UniformRowLength, ValueRowIds)
}


class _Parsed(Feature):
    """Feature whose values an Example lists."""

    __slots__ = ()

    @property
    def stored(self) -> str:
        """Kind of the stored list: "int64", "float32" or "bytes"."""
        return stored_kind(self.dtype)

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of the values of a block: object for bytes."""
        return values_dtype(self.dtype)


@dataclass(frozen=True, slots=True, repr=False)
class FixedLenFeature(_Parsed):
    """A feature with the same number of values in every record, as `tf.io.FixedLenFeature`.

    A record with another number of values is an error. A record without values is an error unless there is a default.

    Parameters
    ----------
    shape : tuple of int
        Shape of one record's values; ``()`` for a scalar.
    dtype : str or dtype
        ``"int64"``, ``"float32"`` or ``"bytes"`` (``"string"``, `bytes` and `object` mean the same). To another
        integer dtype, ``"bool"`` or a float dtype, values are cast: an integer that does not fit, or a float that
        overflows, is an error that names the record; floats are rounded.
    default_value : scalar or array-like, optional
        Values of a record that lacks the feature, or whose list is empty or unset: one value, or one per
        element of the shape.

    Examples
    --------
    >>> FixedLenFeature((), "int64", default_value=-1)
    FixedLenFeature((), 'int64', default_value=-1)
    """

    shape: tuple[int, ...]
    dtype: str
    default_value: Any = None

    if TYPE_CHECKING:
        # Arguments accept more types than the fields store.
        def __init__(self, shape: Shape, dtype: Any, default_value: Any = None) -> None: ...

    __eq__ = _Parsed._is_equal

    def __post_init__(self) -> None:
        shape = checked_shape(self.shape, "FixedLenFeature")
        dtype = checked_parsed_dtype(self.dtype, "FixedLenFeature")
        default = checked_default(self.default_value, dtype, shape, "FixedLenFeature")
        self._set(shape=shape, dtype=dtype, default_value=default)

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return self.shape


@dataclass(frozen=True, slots=True, repr=False)
class VarLenFeature(_Parsed):
    """A feature with any number of values per record, including zero, as `tf.io.VarLenFeature`.

    Parameters
    ----------
    dtype : str or dtype
        As for `FixedLenFeature`.
    shape : tuple of int, default (-1,)
        Shape of one record's array: ``(-1, 4)`` makes rows of four values each (boxes). A number of values that is not
        a multiple is an error. In the schema of a data set, several leading -1 are nested levels of rows.

    Examples
    --------
    >>> VarLenFeature("float32", shape=(-1, 4))
    VarLenFeature('float32', shape=(-1, 4))
    """

    dtype: str
    shape: tuple[int, ...] = field(default=(-1,), kw_only=True)

    if TYPE_CHECKING:
        # Arguments accept more types than the fields store.
        def __init__(self, dtype: Any, *, shape: Shape = (-1,)) -> None: ...

    def __post_init__(self) -> None:
        dtype = checked_parsed_dtype(self.dtype, "VarLenFeature")
        shape = checked_shape(self.shape, "VarLenFeature", open_sizes=100)
        if shape[:1] != (-1,):
            raise SchemaError(f"VarLenFeature: expected a shape that starts with -1, as in (-1, 4); got {shape}")
        self._set(dtype=dtype, shape=shape)
        if -1 in self.item_shape or 0 in self.item_shape:
            raise SchemaError(f"VarLenFeature: expected known, positive sizes after the leading -1; got {shape}")

    @property
    def ragged_rank(self) -> int:
        """Levels of rows: the number of leading -1 in the shape."""
        return next((axis for axis, size in enumerate(self.shape) if size != -1), len(self.shape))

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of one value."""
        return self.shape[self.ragged_rank :]


@dataclass(frozen=True, slots=True, repr=False)
class FixedLenSequenceFeature(_Parsed):
    """Steps of values, padded to the longest record, as `tf.io.FixedLenSequenceFeature`.

    In an Example, the values of a record are split into steps. In the feature lists of a SequenceExample, each step is
    a Feature.

    Parameters
    ----------
    shape : tuple of int
        Shape of one step.
    dtype : str or dtype
        As for `FixedLenFeature`.
    allow_missing : bool, default False
        Accept a record without the feature, as one of zero steps. Must be True for features of an Example.
    default_value : scalar, optional
        Value to pad shorter records with; 0 or ``b""`` by default.
    length : int, optional
        Number of steps to pad to; by default that of the longest record, which is counted when the data set is opened.
        A record with more steps is an error.

    Examples
    --------
    >>> FixedLenSequenceFeature((4,), "float32", allow_missing=True, length=10).block_shape
    (10, 4)
    """

    shape: tuple[int, ...]
    dtype: str
    allow_missing: bool = False
    default_value: Any = None
    length: int | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:
        # Arguments accept more types than the fields store.
        def __init__(
            self,
            shape: Shape,
            dtype: Any,
            allow_missing: bool = False,
            default_value: Any = None,
            *,
            length: int | None = None,
        ) -> None: ...

    __eq__ = _Parsed._is_equal

    def __post_init__(self) -> None:
        shape = checked_shape(self.shape, "FixedLenSequenceFeature")
        dtype = checked_parsed_dtype(self.dtype, "FixedLenSequenceFeature")
        default = checked_default(self.default_value, dtype, (), "FixedLenSequenceFeature")
        if 0 in shape:
            raise SchemaError(f"FixedLenSequenceFeature: steps of no values cannot be counted; got shape {shape}")
        if self.length is not None and (isinstance(self.length, bool) or self.length < 0):
            raise SchemaError(
                f"FixedLenSequenceFeature: expected a non-negative number of steps as length; got {self.length!r}"
            )
        length = None if self.length is None else int(self.length)
        allow_missing = bool(self.allow_missing)
        self._set(shape=shape, dtype=dtype, default_value=default, length=length, allow_missing=allow_missing)

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of one record: the number of steps, then the shape of a step."""
        if self.length is None:
            raise SchemaError(f"the length of {self} is unknown until a data set is opened; set length=")
        return (self.length, *self.shape)


@dataclass(frozen=True, slots=True, repr=False)
class SparseFeature(_Parsed):
    """Values and their indices, from several keys, as `tf.io.SparseFeature`.

    A feature ``s`` makes three columns: ``s.indices``, int64 rows of shape ``(values, axes)`` in ascending order;
    ``s.values``; and ``s.shape``, which is `size` in every row.

    Parameters
    ----------
    index_key : str or sequence of str
        Key of the indices along each axis, int64 values.
    value_key : str
        Key of the values.
    dtype : str or dtype
        Of the values, as for `FixedLenFeature`.
    size : int or sequence of int
        Length of each axis; an index out of range is an error.
    already_sorted : bool, default False
        The indices of every record ascend: skip sorting.

    Examples
    --------
    >>> SparseFeature("ix", "val", "float32", 100).size
    (100,)
    """

    index_key: tuple[str, ...]
    value_key: str
    dtype: str
    size: tuple[int, ...]
    already_sorted: bool = False

    if TYPE_CHECKING:
        # Arguments accept more types than the fields store.
        def __init__(
            self,
            index_key: str | Sequence[str],
            value_key: str,
            dtype: Any,
            size: Shape,
            already_sorted: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        given: Any = self.index_key
        keys = tuple(given) if isinstance(given, list | tuple) else (given,)
        size = checked_shape(self.size, "SparseFeature", filled=False)
        dtype = checked_parsed_dtype(self.dtype, "SparseFeature")
        if len(keys) != len(size) or not keys:
            raise SchemaError(f"SparseFeature: expected one size for each index key; got {size} for {keys}")
        for key in (*keys, self.value_key):
            checked_key(key, "SparseFeature")
        self._set(index_key=keys, dtype=dtype, size=size, already_sorted=bool(self.already_sorted))

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self.size

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Raise: the feature makes three columns, see `columns`."""
        raise SchemaError(f"{self} makes three columns, which have shapes of their own")

    def columns(self, name: str) -> dict[str, Feature]:
        """Return the three columns that a feature called `name` makes."""
        return {
            f"{name}.indices": VarLenFeature("int64", shape=(-1, len(self.size))),
            f"{name}.values": VarLenFeature(self.dtype),
            f"{name}.shape": FixedLenFeature((len(self.size),), "int64"),
        }


def _check_values(values: Any, dtype: str) -> None:
    """Check the feature of the values of a `RaggedFeature`."""
    if not isinstance(values, Encoded):
        raise SchemaError(
            f"RaggedFeature: values is a RawFeature, TensorFeature, ImageFeature or TextFeature; got {values!r}"
        )
    if dtype != "bytes":
        raise SchemaError(f"RaggedFeature: values are decoded from bytes: expected dtype 'bytes'; got {dtype!r}")
    if values.count is not None or -1 in values.value_shape or values.ragged_rank or values.own_shapes:
        raise SchemaError(f"RaggedFeature: values have one known shape; got {values!r}")
    if getattr(values, "default_value", None) is not None:
        raise SchemaError(f"RaggedFeature: rows may be empty, so values need no default_value; got {values!r}")


@dataclass(frozen=True, slots=True, repr=False)
class RaggedFeature(_Parsed):
    """Values in nested rows of variable length, as `tf.io.RaggedFeature`.

    Parameters
    ----------
    dtype : str or dtype
        As for `FixedLenFeature`.
    value_key : str, optional
        Key of the values, by default the name of the feature.
    partitions : sequence of partition, default ()
        Partitions of the values of a record into rows, the outermost first: `RowLengths`, `RowSplits`, `ValueRowIds`,
        `RowLimits`, `RowStarts` or `UniformRowLength`. A partition that does not match the values is an error.
    row_splits_dtype, validate
        Accepted for compatibility with TensorFlow, without effect: row splits are int64 and always checked.
    values : RawFeature, TensorFeature, ImageFeature or TextFeature, optional
        Feature of each bytes value, of a known shape: values are decoded to arrays or text. The dtype is then
        ``"bytes"``, and sequence features do not accept it.

    Examples
    --------
    >>> RaggedFeature("int64", value_key="vals", partitions=[RaggedFeature.RowLengths("lens")])
    RaggedFeature('int64', value_key='vals', partitions=(RowLengths('lens'),))
    >>> from dask_tfrecord import RawFeature
    >>> RaggedFeature("bytes", partitions=[RaggedFeature.RowLengths("lens")], values=RawFeature((3,), "float32")).shape
    (-1, -1, 3)
    """

    # Attributes as in `tf.io`, so that its feature specifications can be pasted.
    RowLengths: ClassVar = RowLengths
    RowLimits: ClassVar = RowLimits
    RowSplits: ClassVar = RowSplits
    RowStarts: ClassVar = RowStarts
    UniformRowLength: ClassVar = UniformRowLength
    ValueRowIds: ClassVar = ValueRowIds
    dtype: str
    value_key: str | None = None
    partitions: tuple[Partition, ...] = ()
    row_splits_dtype: str = field(default="int32", repr=False, compare=False)
    validate: bool = field(default=False, repr=False, compare=False)
    values: Encoded | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:
        # Arguments accept more types than the fields store.
        def __init__(
            self,
            dtype: Any,
            value_key: str | None = None,
            partitions: Sequence[Partition] = (),
            row_splits_dtype: Any = "int32",
            validate: bool = False,
            *,
            values: Encoded | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        dtype = checked_parsed_dtype(self.dtype, "RaggedFeature")
        expected = "a partition, for example RowLengths(key)"
        partitions = tuple(
            _from_tensorflow(each, Partition, _PARTITIONS, "RaggedFeature", expected) for each in self.partitions
        )
        if self.value_key is not None:
            checked_key(self.value_key, "RaggedFeature")
        splits = numpy_dtype(self.row_splits_dtype, "RaggedFeature: row_splits_dtype").name
        if splits not in ("int32", "int64"):
            raise SchemaError(f"RaggedFeature: expected row_splits_dtype int32 or int64; got {self.row_splits_dtype!r}")
        if self.values is not None:
            _check_values(self.values, dtype)
        self._set(dtype=dtype, partitions=partitions, row_splits_dtype=splits, validate=bool(self.validate))

    @property
    def shape(self) -> tuple[int, ...]:
        """-1 for each level of rows, then the sizes of the innermost uniform partitions."""
        inner = self.item_shape
        return (*(-1,) * self.ragged_rank, *inner)

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of the values of a block: that of decoded arrays, or object for bytes."""
        return values_dtype(self.dtype) if self.values is None else self.values.item_dtype

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Sizes of the innermost uniform partitions, then the shape of decoded arrays."""
        return (*self.uniform_sizes, *(() if self.values is None else self.values.value_shape))

    @property
    def uniform_sizes(self) -> tuple[int, ...]:
        """Sizes of the innermost uniform partitions."""
        sizes: list[int] = []
        for partition in reversed(self.partitions):
            if not isinstance(partition, UniformRowLength):
                break
            sizes.insert(0, partition.length)
        return tuple(sizes)

    @property
    def ragged_rank(self) -> int:
        """Levels of rows of variable length."""
        return 1 + len(self.partitions) - len(self.uniform_sizes)


# Window sizes of zlib, by the names of `tf.io.decode_compressed`.
COMPRESSION_WBITS = {"ZLIB": 15, "GZIP": 31}
IMAGE_DTYPES = ("uint8", "uint16", "float16", "float32", "float64")
# Filters of `tf.image.resize`.
IMAGE_METHODS = ("bilinear", "lanczos3")
# Channels that can be requested; 0 for those of the file.
IMAGE_CHANNELS = (0, 1, 3, 4)


class Encoded(Feature):
    """A feature whose stored values are bytes.

    Attributes
    ----------
    count : int or None
        Bytes values per record: None for one without an axis of its own, -1 for any number.
    """

    __slots__ = ()
    count: Any

    @property
    @abstractmethod
    def value_shape(self) -> tuple[int, ...]:
        """Shape of the array in one bytes value; -1 for an open size."""

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of a row, or of one array of a ragged row; ``()`` if arrays differ in shape."""
        if self.own_shapes:
            return ()
        several = self.count is not None and self.count >= 0
        return (self.count, *self.value_shape) if several else self.value_shape

    @property
    def ragged_rank(self) -> int:
        """1 if a record holds any number of arrays, otherwise 0."""
        return int(self.count == -1)


def _checked_count(count: Any, owner: str) -> int | None:
    """Check the number of values per record: None for one, -1 for any number."""
    if count is None:
        return None
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or (count < 1 and count != -1):
        raise SchemaError(
            f"{owner}: expected count=-1 for any number of values per record, a positive number, or None for one; "
            f"got {count!r}"
        )
    return int(count)


@dataclass(frozen=True, slots=True, repr=False)
class RawFeature(Encoded):
    """An array stored as the bytes of one value, as `tf.io.decode_raw` reads it.

    Parameters
    ----------
    shape : tuple of int
        Shape of one array; its bytes are in C order. One size may be -1: the number of bytes determines it. With a
        leading -1, rows are ragged; elsewhere, each row is an array of its own shape.
    dtype : str or dtype
        Any numeric or bool NumPy dtype, or ``"bfloat16"``, with the byte order of the file (``">i2"``). Decoded
        arrays have native byte order.
    count : int, optional
        Number of arrays per record, each in a bytes value of its own: rows have the shape ``(count, *shape)``. -1 for
        any number, zero included. By default a record holds one array of shape `shape`.
    compression_type : {"ZLIB", "GZIP"}, optional
        Compression of each bytes value, as `tf.io.decode_compressed` reads it.

    Examples
    --------
    >>> RawFeature((64, 64, 3), "float32").nbytes
    49152
    >>> RawFeature((64, 64, 3), "float32", count=2).block_shape
    (2, 64, 64, 3)
    """

    shape: tuple[int, ...]
    dtype: str
    count: int | None = field(default=None, kw_only=True)
    compression_type: str | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:
        # Arguments accept more types than the fields store.
        def __init__(
            self, shape: Shape, dtype: Any, *, count: int | None = None, compression_type: str | None = None
        ) -> None: ...

    def __post_init__(self) -> None:
        if self.compression_type not in (None, "", *COMPRESSION_WBITS):
            raise SchemaError(
                f"RawFeature: expected compression_type 'ZLIB', 'GZIP' or None; got {self.compression_type!r}"
            )
        shape = checked_shape(self.shape, "RawFeature", open_sizes=100)
        count = _checked_count(self.count, "RawFeature")
        dtype = checked_dtype(self.dtype, "RawFeature")
        if shape.count(-1) > 1:
            raise SchemaError(
                f"RawFeature: the number of bytes determines one open size; got shape {shape} with {shape.count(-1)}"
            )
        if -1 in shape and 0 in shape:
            raise SchemaError(f"RawFeature: rows of no bytes cannot be counted; got shape {shape}")
        if count not in (None, -1) and -1 in shape:
            raise SchemaError(f"RawFeature: a fixed number of arrays per record needs a known shape; got {shape}")
        self._set(shape=shape, dtype=dtype, count=count, compression_type=self.compression_type or None)

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The dtype in the file, byte order included."""
        return numpy_dtype(self.dtype, "RawFeature")

    @property
    def nbytes(self) -> int:
        """Bytes of one value; if a size is open, of 1 along that axis."""
        return math.prod(size for size in self.shape if size != -1) * self.stored_dtype.itemsize

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of a decoded array, in native byte order."""
        return self.stored_dtype.newbyteorder("=")

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Shape of one array, without the open length of ragged rows."""
        return self.shape[self._has_ragged_rows :]

    @property
    def _has_ragged_rows(self) -> bool:
        """Return whether a record holds one array of an open length."""
        return self.count is None and self.shape[:1] == (-1,)

    @property
    def ragged_rank(self) -> int:
        """1 if the length or the number of arrays is open, otherwise 0."""
        return int(self._has_ragged_rows or self.count == -1)

    @property
    def own_shapes(self) -> int:
        """Number of axes if arrays differ in another size than the length of ragged rows, otherwise 0."""
        return len(self.shape) if -1 in self.shape and not self._has_ragged_rows else 0


@dataclass(frozen=True, slots=True, repr=False)
class TensorFeature(Encoded):
    """A tensor stored as a serialized TensorProto, as `tf.io.parse_tensor` reads it.

    Parameters
    ----------
    shape : tuple of int or None
        Shape of one tensor. None or -1 accepts any size: each row is then an array of its own shape.
    dtype : str or dtype
        The tensor's dtype: numeric, bool, ``"bfloat16"``, or ``"bytes"`` for strings. Another dtype in a record is an
        error; values are not cast.
    count : int, optional
        Number of tensors per record, each in a bytes value of its own: rows have the shape ``(count, *shape)``. -1 for
        any number, zero included. By default a record holds one tensor.

    Examples
    --------
    >>> TensorFeature((None, 3), "float32").shape
    (-1, 3)
    >>> TensorFeature((4, 3), "float32", count=2).block_shape
    (2, 4, 3)
    """

    shape: tuple[int, ...]
    dtype: str
    count: int | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:
        # Arguments accept more types than the fields store.
        def __init__(self, shape: Shape, dtype: Any, *, count: int | None = None) -> None: ...

    def __post_init__(self) -> None:
        shape = checked_shape(self.shape, "TensorFeature", open_sizes=100)
        count = _checked_count(self.count, "TensorFeature")
        if count not in (None, -1) and -1 in shape:
            raise SchemaError(f"TensorFeature: a fixed number of tensors per record needs a known shape; got {shape}")
        dtype: Any = self.dtype
        name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
        if dtype in (bytes, object) or name in ("bytes", "string", "object"):
            dtype = "bytes"
        else:
            dtype = checked_dtype(dtype, "TensorFeature")
            if not numpy_dtype(dtype, "TensorFeature").isnative:
                raise SchemaError(f"TensorFeature: a TensorProto has one byte order, little-endian; got {dtype}")
        self._set(shape=shape, dtype=dtype, count=count)

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of a decoded array: object for strings."""
        return np.dtype(object) if self.dtype == "bytes" else numpy_dtype(self.dtype, "TensorFeature")

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Shape of one tensor."""
        return self.shape

    @property
    def own_shapes(self) -> int:
        """Number of axes if a size is open, otherwise 0."""
        return len(self.shape) if -1 in self.shape else 0


@dataclass(frozen=True, slots=True, repr=False)
class ImageFeature(Encoded):
    """An encoded image: JPEG, PNG, BMP, GIF (its first frame) or WebP, as `tf.io.decode_image` reads it.

    Needs Pillow: ``pip install 'dask-tfrecord[image]'``, which installs simplejpeg too, for speed. As in TensorFlow,
    the orientation in EXIF data is ignored.

    Parameters
    ----------
    shape : tuple of int or None, optional
        ``(height, width, channels)``. If all are known, blocks are dense and an image of another shape is an error. By
        default, or if one is None, each row is an array of its own shape. With shape ``(count, height, width,
        channels)``, a record holds `count` images; -1 for any number, whose sizes may be open, too.
    dtype : str or dtype, default "uint8"
        ``"uint8"``, ``"uint16"`` (16 bit PNG), or a float dtype, scaled to [0, 1] as by
        `tf.image.convert_image_dtype`.
    size : tuple of int, optional
        ``(height, width)`` to resize to, as by `tf.image.resize`. Integers are rounded to the nearest, and clipped to
        the range of `dtype`.
    channels : int, default 0
        0 for those of the file, or 1, 3 or 4 to convert to, as by `tf.io.decode_image`.
    fast : bool, default False
        Decode JPEG with libjpeg's fast DCT, TensorFlow's default. By default the accurate DCT is used, TensorFlow's
        ``dct_method="INTEGER_ACCURATE"``. The levels of both differ by a few, of noise at quality 100 by dozens; on
        most processors both are equally fast. True needs simplejpeg.
    reduced : bool, default False
        Decode JPEG at the smallest of libjpeg's scales 1/8, 1/4 and 1/2 whose result covers `size`, as by
        `tf.io.decode_jpeg` with ``ratio``, then resize. This is faster. It averages pixels that the bilinear filter
        would leave out, so values differ from those of the whole image. True needs `size` and simplejpeg.
    method : {"bilinear", "lanczos3"}, default "bilinear"
        Filter of `size`. ``"lanczos3"`` calls the sine of the C library: by another one than TensorFlow's, integers
        may differ by a level.
    antialias : bool, default False
        Average the pixels that a smaller image would leave out. `dlimp.transforms.resize_image` is
        ``method="lanczos3", antialias=True``.

    Examples
    --------
    >>> ImageFeature(size=(224, 224), channels=3, dtype="float32").block_shape
    (224, 224, 3)
    """

    shape: tuple[int, ...] | None = None
    dtype: str = "uint8"
    size: tuple[int, int] | None = None
    channels: int = 0
    fast: bool = False
    reduced: bool = False
    method: str = "bilinear"
    antialias: bool = False

    if TYPE_CHECKING:
        # Arguments accept more types than the fields store.
        def __init__(
            self,
            shape: Shape | None = None,
            dtype: Any = "uint8",
            size: Shape | None = None,
            channels: int = 0,
            fast: bool = False,
            reduced: bool = False,
            method: Literal["bilinear", "lanczos3"] = "bilinear",
            antialias: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        dtype = numpy_dtype(self.dtype, "ImageFeature").name
        if dtype not in IMAGE_DTYPES:
            raise SchemaError(f"ImageFeature: expected dtype {', '.join(IMAGE_DTYPES)}; got {self.dtype!r}")
        if self.channels not in IMAGE_CHANNELS:
            raise SchemaError(
                f"ImageFeature: expected channels 0 (those of the file), 1, 3 or 4; got {self.channels!r}"
            )
        size = None if self.size is None else checked_shape(self.size, "ImageFeature")
        shape = (-1, -1, -1) if self.shape is None else checked_shape(self.shape, "ImageFeature", open_sizes=4)
        if len(shape) not in (3, 4) or (len(shape) == 4 and shape[0] == 0):
            raise SchemaError(
                f"ImageFeature: expected shape (height, width, channels), or (count, height, width, channels) for "
                f"several images per record, -1 for any number; got {shape}"
            )
        if size is not None and (len(size) != 2 or 0 in size):
            raise SchemaError(f"ImageFeature: expected size (height, width), both positive; got {size}")
        if self.reduced and size is None:
            raise SchemaError("ImageFeature: reduced=True needs the size to which images are resized; pass size=")
        if self.method not in IMAGE_METHODS:
            raise SchemaError(f"ImageFeature: expected method {', '.join(IMAGE_METHODS)}; got {self.method!r:.100}")
        if size is None and (self.method, self.antialias) != ("bilinear", False):
            raise SchemaError("ImageFeature: method and antialias resize images; pass size=")
        *images, height, width, bands = shape
        decoded = (*(size or (height, width)), self.channels or bands)
        given = (height, width, bands)
        if any(one not in (-1, other) for one, other in zip(given, decoded, strict=True)):
            raise SchemaError(
                f"ImageFeature: shape {shape} contradicts size={size} and channels={self.channels}; omit it, or give "
                f"the shape of decoded images, {(*images, *decoded)}"
            )
        if images and images[0] > 0 and -1 in decoded:
            raise SchemaError(f"ImageFeature: a fixed number of images per record needs a known shape; got {shape}")
        shape = (*images, *decoded)
        open_shape = None if shape == (-1, -1, -1) else shape
        options = {name: bool(getattr(self, name)) for name in ("fast", "reduced", "antialias")}
        self._set(shape=open_shape, dtype=dtype, size=size, channels=int(self.channels), **options)

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of a decoded image."""
        return np.dtype(self.dtype)

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return (-1, -1, -1) if self.shape is None else self.shape[-3:]

    @property
    def count(self) -> int | None:
        """Images per record: the first of four sizes, or None for one."""
        return self.shape[0] if self.shape is not None and len(self.shape) == 4 else None

    @property
    def own_shapes(self) -> int:
        """3 if images differ in size, otherwise 0."""
        return 3 if self.shape is None or -1 in self.shape[-3:] else 0


@dataclass(frozen=True, slots=True, repr=False)
class TextFeature(Encoded):
    """UTF-8 strings, decoded to NumPy's `StringDType`.

    Invalid UTF-8 raises an error that names the record, and the step of a sequence feature.

    Parameters
    ----------
    default_value : str, optional
        Value of a record that lacks the feature, or whose list is empty or unset.
    count : int, optional
        Number of strings per record; -1 for any number, zero included. By default a record holds one, and rows are
        strings.

    Examples
    --------
    >>> TextFeature()
    TextFeature()
    """

    default_value: str | None = field(default=None)
    count: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        count = _checked_count(self.count, "TextFeature")
        default = self.default_value.decode() if isinstance(self.default_value, bytes) else self.default_value
        if default is not None and not isinstance(default, str):
            raise SchemaError(f"TextFeature: expected text as default value; got {default!r}")
        if default is not None and count is not None:
            raise SchemaError("TextFeature: default_value is for one string per record; remove it, or count")
        self._set(default_value=default, count=count)

    @property
    def dtype(self) -> str:
        """The kind of the stored value: bytes."""
        return "bytes"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record: a scalar, or a number of strings."""
        return () if self.count is None else (self.count,)

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of a decoded array: `numpy.dtypes.StringDType`."""
        return np.dtypes.StringDType()

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Shape of one string: a scalar."""
        return ()


def _check_message_values(values: Any) -> None:
    """Check the feature of the values of a `ProtoFeature`."""
    serialized = isinstance(values, FixedLenFeature) and values == FixedLenFeature((), "bytes")
    if not serialized and not isinstance(values, Encoded | ProtoFeature):
        raise SchemaError(
            f"ProtoFeature: values is a RawFeature, TensorFeature, ImageFeature, TextFeature or ProtoFeature, or "
            f"FixedLenFeature((), 'bytes') for bytes as they are stored; got {values!r}"
        )
    if isinstance(values, Encoded) and (values.count is not None or getattr(values, "default_value", None) is not None):
        raise SchemaError(f"ProtoFeature: values describe one value, without count and default_value; got {values!r}")
    if isinstance(values, ProtoFeature) and (values.message is None or values.key is not None):
        raise SchemaError(f"ProtoFeature: values need a message of their own and no key; got {values!r}")


@dataclass(frozen=True, slots=True, repr=False)
class ProtoFeature(Feature):
    """A field of a protobuf message, or all fields below it.

    ``read_tfrecord(…, message=M)`` reads records that are messages: a feature is then a path in ``M``. In `features`
    of Examples and SequenceExamples, the bytes of a key are messages of a type of their own.

    A scalar field makes one column. The path of a message makes a column of each field below it, which is named after
    the feature and the rest of the path, joined by dots. Fields of a repeated message have one row of items per
    record; each repeated field of the path adds a level of rows. A field that a message lacks has its default value.

    Parameters
    ----------
    message : message class, Descriptor or str, optional
        Type of the messages: a generated class, its descriptor, ``"file.desc:package.Message"`` or
        ``"file.proto:package.Message"``. Left out where ``read_tfrecord(…, message=M)`` states it: the only argument
        is then the path.
    path : str
        Names of fields joined by dots, ``"tracks.states.center_x"``; an extension is ``[package.name]``, an entry of a
        map has ``key`` and ``value``, and the name of a oneof is a column of the name of the field that is set. The
        empty path is the message itself.
    values : RawFeature, TensorFeature, ImageFeature, TextFeature or ProtoFeature, optional
        Feature of each bytes value. `TextFeature` also names the values of an enum. A `ProtoFeature` decodes messages
        in bytes, or those of its type in an ``Any``. ``FixedLenFeature((), "bytes")`` reads a message, or text, as the
        bytes that are stored.
    presence : bool, default False
        A column of whether the field is set instead of its values.
    depth : int, default 1
        Levels of recursion that make columns: messages within a message of their own type. Deeper ones are columns of
        bytes.
    key : str, optional
        Key of an Example that holds the messages, by default the name of the feature.

    Examples
    --------
    >>> ProtoFeature("tracks.states.center_x")
    ProtoFeature('tracks.states.center_x')
    >>> ProtoFeature("frames.jpeg", values=ImageFeature(channels=3)).path
    'frames.jpeg'
    """

    message: Any
    path: Any = None
    values: Any = field(default=None, kw_only=True)
    presence: bool = field(default=False, kw_only=True)
    depth: int = field(default=1, kw_only=True)
    key: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        message, path = self.message, self.path
        if path is None:
            message, path = (None, message) if isinstance(message, str) else (message, "")
        checked_key(path, "ProtoFeature")
        if message is not None:
            message = MessageType.of(message, "ProtoFeature: message")
        if self.values is not None:
            _check_message_values(self.values)
        if self.presence and self.values is not None:
            raise SchemaError("ProtoFeature: presence=True reads no values; remove values=")
        if isinstance(self.depth, bool) or not isinstance(self.depth, int) or self.depth < 0:
            raise SchemaError(f"ProtoFeature: depth is a number of levels from 0 on; got {self.depth!r}")
        if self.key is not None:
            checked_key(self.key, "ProtoFeature")
        self._set(message=message, path=path, presence=bool(self.presence))

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that construct an equal feature, without defaults."""
        given = Feature.arguments(self)
        if self.message is None:
            del given["path"]
            given["message"] = self.path
        return given

    @property
    def dtype(self) -> str:
        """The kind of the stored value: bytes."""
        return "bytes"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the stored value: a scalar."""
        return ()

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of the stored value; columns have dtypes of their own."""
        return np.dtype(object)

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of the stored value; columns have shapes of their own."""
        return ()


_FEATURES: dict[str, type[Feature]] = {
    cls.__name__: cls
    for cls in (
        *(FixedLenFeature, FixedLenSequenceFeature, ImageFeature, ProtoFeature, RaggedFeature, RawFeature),
        *(SparseFeature, TensorFeature, TextFeature, VarLenFeature),
    )
}


def from_tensorflow(feature: Any, owner: str) -> Feature:
    """Convert a feature of `tf.io`; return a feature of this library unchanged."""
    classes = {name: cls for name, cls in _FEATURES.items() if issubclass(cls, _Parsed)}
    expected = "a feature of this library or of tf.io, for example FixedLenFeature((), 'int64')"
    made: Feature = _from_tensorflow(feature, Feature, classes, owner, expected)
    return made


def json_of_feature(feature: Feature) -> dict[str, Any]:
    """Return the class and the arguments of a feature as JSON values."""
    return {"class": type(feature).__name__, **to_json(feature.arguments())}


def feature_of_json(entry: dict[str, Any]) -> Feature:
    """Construct a feature from the values of `json_of_feature`; the entry is changed."""
    cls = _stored_class(_FEATURES, entry.pop("class"))
    made: Feature = cls(**{name: from_json(value) for name, value in entry.items()})
    return made


def _stored_class(classes: Mapping[str, Any], name: Any) -> Any:
    if not isinstance(name, str) or name not in classes:
        raise ValueError(f"there is no class {name!r} among {', '.join(classes)}")
    return classes[name]


def to_json(value: Any) -> Any:
    """Convert arguments of features to JSON values; bytes, NaN, infinities, partitions and features become objects."""
    if isinstance(value, dict):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, Partition):
        return {"partition": type(value).__name__, **partition_arguments(value)}
    if isinstance(value, Feature):
        return json_of_feature(value)
    if isinstance(value, MessageType):
        return {"message_type": value.name, "descriptors": to_json(value.descriptors)}
    return value


def from_json(value: Any) -> Any:
    """Convert JSON values of `to_json` back to arguments."""
    if isinstance(value, list):
        return tuple(from_json(item) for item in value)
    if not isinstance(value, dict):
        return value
    if "base64" in value:
        return base64.b64decode(value["base64"])
    if "float" in value:
        return float(value["float"])
    if "class" in value:
        return feature_of_json(dict(value))
    if "message_type" in value:
        return MessageType(value["message_type"], from_json(value["descriptors"]))
    partition = _stored_class(_PARTITIONS, value["partition"])
    return partition(**{name: item for name, item in value.items() if name != "partition"})
