"""Features of values that an Example lists: a fixed number of them, any number, or steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.base import Feature
from dask_tfrecord.features.dtypes import (
    Shape,
    checked_default,
    checked_parsed_dtype,
    checked_shape,
    stored_kind,
    values_dtype,
)


class Listed(Feature):
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
class FixedLenFeature(Listed):
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

    __eq__ = Listed._is_equal

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
class VarLenFeature(Listed):
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
class FixedLenSequenceFeature(Listed):
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

    __eq__ = Listed._is_equal

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
