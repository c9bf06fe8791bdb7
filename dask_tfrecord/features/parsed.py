"""The feature classes of `tf.io`, under TensorFlow's names and parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features import partitions
from dask_tfrecord.features.base import (
    Feature,
    Shape,
    checked_default,
    checked_key,
    checked_parsed_dtype,
    checked_shape,
    numpy_dtype,
    stored_kind,
    values_dtype,
)
from dask_tfrecord.features.encoded import Encoded
from dask_tfrecord.features.partitions import Partition, UniformRowLength, checked_partition


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
    RowLengths: ClassVar = partitions.RowLengths
    RowLimits: ClassVar = partitions.RowLimits
    RowSplits: ClassVar = partitions.RowSplits
    RowStarts: ClassVar = partitions.RowStarts
    UniformRowLength: ClassVar = partitions.UniformRowLength
    ValueRowIds: ClassVar = partitions.ValueRowIds
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
        partitions = tuple(checked_partition(partition, "RaggedFeature") for partition in self.partitions)
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
