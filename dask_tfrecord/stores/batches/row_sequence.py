"""`Dataset.as_sequence`: rows by number, for map-style loaders."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.columns.blocks import to_array
from dask_tfrecord.errors import SchemaError, plural
from dask_tfrecord.stores.batches.row_reader import RowReader

__all__ = ["RowSequence"]


class RowSequence:
    """Rows of a data set by number; each access reads those rows alone, without a cache and without threads.

    Parameters
    ----------
    dataset : Dataset
        Rows and columns.
    """

    def __init__(self, dataset: Dataset) -> None:
        if dataset.nrows is None:
            raise ValueError("a sequence needs the number of rows: open with counts='auto', not counts=None")
        if not len(dataset):
            raise SchemaError("rows have at least one column; the data set has none")
        self._length = dataset.nrows
        self._reader = RowReader(dataset)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        """Return a row as a dict: arrays, NumPy scalars, and `bytes` and `str` values."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[dict[str, Any]]:
        """Return rows in the order of their numbers, which are read in one pass."""
        numbers = [self._number(index) for index in indices]
        if not numbers:
            return []
        columns = {name: to_array(block) for name, block in self._read(np.array(numbers, np.int64)).items()}
        return [{name: _value(column, row) for name, column in columns.items()} for row in range(len(numbers))]

    def _read(self, rows: NDArray[np.int64]) -> dict[str, Any]:
        return self._reader.read_scattered(rows)

    def _number(self, index: Any) -> int:
        """Return a row number that is not negative."""
        if isinstance(index, slice):
            raise TypeError("a sequence takes one row number; ds.rows[start:stop] selects several")
        number = operator.index(index)
        if not -self._length <= number < self._length:
            raise IndexError(f"row {number} is out of bounds for {plural(self._length, 'row')}")
        return number + self._length if number < 0 else number

    def __repr__(self) -> str:
        return f"<RowSequence of {plural(self._length, 'row')}: {', '.join(self._reader.names)}>"


def _value(column: NDArray[Any], row: int) -> Any:
    """Return one row of a column; a copy, so that it does not keep the other rows in memory."""
    value = column[row]
    return value.copy() if isinstance(value, np.ndarray) and column.dtype.kind != "O" else value
