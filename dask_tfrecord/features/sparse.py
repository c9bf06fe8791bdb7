"""Sparse values, whose indices are in keys of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.base import Feature, checked_key
from dask_tfrecord.features.dtypes import Shape, checked_parsed_dtype, checked_shape
from dask_tfrecord.features.listed import FixedLenFeature, Listed, VarLenFeature


@dataclass(frozen=True, slots=True, repr=False)
class SparseFeature(Listed):
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
