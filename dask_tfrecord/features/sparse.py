"""Sparse values, whose indices are in keys of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.blocks import Block, MemoryLimit, RaggedBlock, RowError, first_true, row_of_value, splits_of
from dask_tfrecord.errors import SchemaError, plural
from dask_tfrecord.features.base import ColumnDecoder, Feature, checked_key
from dask_tfrecord.features.dtypes import Shape, checked_parsed_dtype, checked_shape
from dask_tfrecord.features.images.pixels import ImageEncoding
from dask_tfrecord.features.keyed_values import KeyedValues, in_rows
from dask_tfrecord.features.keys import Assemble, Decoded, KeyOutput, KeySpec, Scope, ragged_key
from dask_tfrecord.features.listed import FixedLenFeature, Listed, VarLenFeature


@dataclass(frozen=True, slots=True, repr=False)
class SparseFeature(Listed):
    """Read a sparse array from several keys with values and indices, like `tf.io.SparseFeature`.

    A feature ``s`` becomes three columns: ``s.indices`` with int64 rows of shape ``(values, axes)`` in ascending order,
    ``s.values``, and ``s.shape``, which is `size` in every row.

    Parameters
    ----------
    index_key : str or sequence of str
        Key of the indices along each axis, int64 values.
    value_key : str
        Key of the values.
    dtype : str or dtype
        The dtype of the values, as for `FixedLenFeature`.
    size : int or sequence of int
        Length of each axis; an index that is out of range is an error.
    already_sorted : bool, default False
        Don't sort, because the indices in every record already ascend.

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
            self, index_key: str | Sequence[str], value_key: str, dtype: Any, size: Shape, already_sorted: bool = False
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
    def refuses_values(self) -> bool:
        """Values of several keys may contradict each other."""
        return True

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self.size

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Raise: the feature makes three columns, see `columns`."""
        raise SchemaError(f"{self} makes three columns, which have shapes of their own")

    def features(self, name: str) -> dict[str, Feature]:
        """Return the features of the three columns that a feature called `name` makes."""
        return {
            f"{name}.indices": VarLenFeature("int64", shape=(-1, len(self.size))),
            f"{name}.values": VarLenFeature(self.dtype),
            f"{name}.shape": FixedLenFeature((len(self.size),), "int64"),
        }

    def keys(self, key: str, scope: Scope) -> tuple[KeySpec, ...] | None:
        """Return the specs of the indices along each axis, then the spec of the values."""
        if scope != "value":
            return None
        return (*(ragged_key(each, "int64") for each in self.index_key), ragged_key(self.value_key, self.dtype))

    def keys_for_sizes(self, keys: tuple[KeySpec, ...]) -> tuple[KeySpec, ...]:
        """Return the keys of the indices, which are checked."""
        return keys[:-1]

    def unsupported(self, scope: Scope) -> str:
        """End an error with the feature to use instead."""
        hint = "; VarLenFeature reads indices and values" if scope == "item" else ""
        return Feature.unsupported(self, scope) + hint

    def sources(self, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the columns of indices, values and the shape, which may be missing."""
        return (f"{name}.indices", f"{name}.values"), (f"{name}.shape",)

    def encode_columns(
        self, name: str, key: str, scope: Scope, blocks: Mapping[str, Any], encoding: ImageEncoding
    ) -> list[KeyedValues]:
        """Return the values, and their indices along each axis."""
        indices, values = blocks[f"{name}.indices"], blocks[f"{name}.values"]
        assert isinstance(indices, RaggedBlock) and isinstance(values, RaggedBlock)
        found, expected = np.diff(indices.row_splits), np.diff(values.row_splits)
        if (row := first_true(found != expected)) is not None:
            raise RowError(row, f"holds {found[row]} indices for {expected[row]} values")
        coordinates: Any = np.asarray(indices.values)
        _check_indices(self, coordinates, indices.row_splits)
        shape = blocks.get(f"{name}.shape")
        if shape is not None and (row := first_true((np.asarray(shape) != self.size).any(axis=1))) is not None:
            given = tuple(np.asarray(shape)[row].tolist())
            raise RowError(row, f"has shape {given}; expected {self.size}, the size of the feature")
        axes = [
            in_rows(key, RaggedBlock(np.ascontiguousarray(coordinates[:, axis]), indices.row_splits))
            for axis, key in enumerate(self.index_key)
        ]
        return [*axes, in_rows(self.value_key, values)]

    def columns(self, name: str, key: str, scope: Scope) -> dict[str, ColumnDecoder]:
        """Return the three columns, whose keys are decoded and sorted once."""
        keys = self.keys(key, scope)
        if keys is None:
            return Feature.columns(self, name, key, scope)
        assemblers: tuple[Assemble, ...] = (_indices, _sorted_values, _repeated_shape)
        return {
            column: ColumnDecoder(of, name, self, keys, assembler, _sorted_indices)
            for (column, of), assembler in zip(self.features(name).items(), assemblers, strict=True)
        }


def _sorted_indices(
    feature: SparseFeature, outputs: Sequence[KeyOutput], limit: MemoryLimit | None
) -> Sequence[KeyOutput]:
    """Return two outputs of a sparse feature: its indices, checked and ascending, and its values."""
    *axes, values = outputs
    splits = values.record_splits
    for key, axis in zip(feature.index_key, axes, strict=True):
        found, expected = np.diff(axis.record_splits), np.diff(splits)
        if (row := first_true(found != expected)) is not None:
            raise RowError(
                row,
                f"holds {found[row]} indices in {key!r} for {plural(expected[row], 'value')} in {feature.value_key!r}",
            )
    columns = [axis.flat(np.dtype(np.int64)) for axis in axes]
    indices = np.stack(columns, axis=1) if len(columns) > 1 else columns[0][:, None]
    _check_indices(feature, indices, splits)
    if not feature.already_sorted:
        # The native function sorts the indices of each record, and writes to `out` what has moved with them: the
        # indices themselves, and values of one size. `order` has the old place of each value, for other values.
        flat, order = indices.reshape(-1), np.empty(len(indices), np.int64)
        arrays = [flat.view(np.uint8)]
        if values.values is not None and values.value_splits is None:
            arrays.append(values.values)
        out = [np.empty_like(array) for array in arrays]
        _native.sort_rows(flat, indices.shape[1], splits, order, arrays, out)
        values = values._replace(values=out[1]) if len(out) > 1 else _reordered(values, order)
        return axes[0]._replace(values=out[0]), values
    return axes[0]._replace(values=indices.reshape(-1).view(np.uint8)), values


def _check_indices(feature: SparseFeature, indices: NDArray[np.int64], row_splits: NDArray[np.int64]) -> None:
    """Refuse indices outside of the size of the feature."""
    outside = ((indices < 0) | (indices >= np.array(feature.size))).any(axis=1)
    if (number := first_true(outside)) is not None:
        index = tuple(indices[number].tolist())
        raise RowError(row_of_value(row_splits, number)[0], f"holds an index {index} outside of size {feature.size}")


def _reordered(output: KeyOutput, order: NDArray[np.int64]) -> KeyOutput:
    """Return the byte strings of an output, or what was counted of the values, in another order."""
    if output.values is None:
        ends = None if output.value_splits is None else splits_of(np.diff(output.value_splits)[order])
        return output._replace(value_splits=ends)
    strings = output.encoded().take(order)
    return output._replace(values=strings.values, value_splits=strings.splits)


def _indices(feature: SparseFeature, decoded: Decoded) -> Block:
    """Assemble the indices of sparse values, one row of axes per value."""
    indices, _ = decoded.keys
    return RaggedBlock(indices.flat(np.dtype(np.int64), (len(feature.shape),)), indices.record_splits)


def _sorted_values(feature: SparseFeature, decoded: Decoded) -> Block:
    """Assemble sparse values in the order of their indices."""
    _, values = decoded.keys
    return RaggedBlock(values.flat(feature.item_dtype), values.record_splits)


def _repeated_shape(feature: SparseFeature, decoded: Decoded) -> Block:
    """Repeat the lengths of the axes for every row."""
    return decoded.into(np.tile(np.array(feature.shape, np.int64), (decoded.rows, 1)))
