"""Rows by number: of any data set as blocks, in the calling thread, and `Dataset.as_sequence` for map-style loaders."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex

import dask
import dask.local
import dask.threaded
import numpy as np
from dask.base import get_scheduler
from numpy.typing import NDArray

from dask_tfrecord.blocks import Arrays, Block, block_nbytes, take_rows, to_array
from dask_tfrecord.errors import SchemaError, plural, printable
from dask_tfrecord.rows.rows import Rows
from dask_tfrecord.rows.sources import GrowingSpans, RecordSource, UncountedChunks, join_into
from dask_tfrecord.settings import limits


class RowReader:
    """Reader of rows of a data set.

    A lazy source reads rows without dask. Existing chunks are computed, one dask graph for each read.
    """

    reads_records = False  # in any order, to memory that nothing else holds

    def __init__(self, rows: Rows) -> None:
        self.backing = rows.merged()
        self.names = rows.names
        self.schema = rows.schema
        self.reads_records = isinstance(self.backing.source, RecordSource)

    def read(
        self, key: int | slice | NDArray[np.int64], scheduler: Any = None, out: Arrays | None = None
    ) -> dict[str, Block]:
        """Read rows, which may share memory with chunks that are kept.

        The key is the number of a chunk whose rows are not counted; else rows, as a slice or as ascending numbers.
        Arrays of `out` are filled and returned for dense columns.
        """
        if isinstance(key, np.ndarray) and len(key) == 1:
            # A slice is found faster.
            key = slice(int(key[0]), int(key[0]) + 1)
        if self.backing.source is not None:
            source = self.backing.source
            if isinstance(source, UncountedChunks):
                assert isinstance(key, int)
                blocks = source.read_chunk(self.names, key)
            else:
                blocks = source.read(self.names, key, out)
            return {name: blocks[name] for name in self.names}
        if isinstance(key, int):
            chunks = self.backing.chunks(self.names)[key : key + 1]
        else:
            chunks = self.backing.select(key).chunks(self.names)
        parts = [part.blocks for part in dask.compute(*chunks.to_delayed(), scheduler=scheduler or chunk_scheduler())]
        filled = join_into(parts, out)
        return {name: filled[name] for name in self.names}

    def read_scattered(self, rows: NDArray[np.int64], scheduler: Any = None) -> dict[str, Block]:
        """Read rows in any order; a row that occurs twice is read once."""
        if len(rows) == 1 or self.reads_records:
            return self.read(rows, scheduler)
        distinct, order = np.unique(rows, return_inverse=True)
        blocks = self.read(distinct, scheduler)
        if len(distinct) == len(rows) and (np.diff(order) > 0).all():
            return blocks
        return {name: take_rows(block, order) for name, block in blocks.items()}

    def describe(self, number: int) -> str:
        """Return the file and the record of a row, or the chunk of this number, as text for errors."""
        source = self.backing.source
        if isinstance(source, UncountedChunks):
            return source.describe_chunk(number)
        if source is not None:
            return source.describe([number])
        return f"chunk {number}" if np.isnan(self.backing.sizes).any() else f"row {number}"


def images_of(mixed: Sequence[Rows]) -> dict[str, Any]:
    """Return the columns of images, one per row, that all data sets can read as bytes and decode alike."""
    found = [{} if rows.source is None else rows.source.images for rows in mixed]
    return {
        name: image
        for name, image in found[0].items()
        if name in mixed[0].names and image.count is None and all(each.get(name) == image for each in found)
    }


def chunk_scheduler() -> Any:
    """Return the scheduler for existing chunks: the caller's, or the calling thread instead of local threads."""
    scheduler = get_scheduler()
    return "synchronous" if scheduler in (None, dask.threaded.get, dask.local.get_sync) else scheduler


class RowSequence:
    """Rows of a data set or mixture by number; each access reads those rows alone, without a cache and without threads.

    Parameters
    ----------
    reader : RowReader
        Reader of the rows.
    nrows : int or None
        Number of rows.
    """

    def __init__(self, reader: RowReader, nrows: int | None) -> None:
        if nrows is None:
            raise ValueError("a sequence needs the number of rows: open with counts='auto', not counts=None")
        if not reader.names:
            raise SchemaError("rows need at least one column; the data set has none")
        self._length, self._reader = nrows, reader
        # Rows of the first block of those that are read together.
        self._first_rows = 32

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        """Return a row as a dict: arrays, NumPy scalars, and `bytes` and `str` values."""
        if isinstance(index, str):
            raise TypeError(f"a sequence takes row numbers: write rows[0][{index!r:.100}]")
        number = self._row_number(index)
        return next(self._rows_as_dicts(self._reader.read_scattered(np.array([number], np.int64)), 1))

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[dict[str, Any]]:
        """Return rows in the order of their numbers, which are read in one pass."""
        numbers = np.array([self._row_number(index) for index in indices], np.int64)
        order = np.argsort(numbers, kind="stable")
        rows: list[dict[str, Any]] = [{} for _ in numbers]
        # A row is copied out of a block, or keeps it in memory, so blocks are small.
        spans = GrowingSpans(0, len(numbers), self._first_rows, limits().read_nbytes)
        for start, stop in spans:
            places = order[start:stop]
            blocks = self._reader.read_scattered(numbers[places])
            spans.adapt(sum(map(block_nbytes, blocks.values())))
            for place, row in zip(places.tolist(), self._rows_as_dicts(blocks, len(places)), strict=True):
                rows[place] = row
        self._first_rows = min(spans.rows, 1024)
        return rows

    def _rows_as_dicts(self, blocks: dict[str, Block], number: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of some blocks as dicts."""
        columns = {name: to_array(block) for name, block in blocks.items()}
        # Of records, large rows and one row are views; others are copied.
        most = math.inf
        if self._reader.reads_records:
            most = limits().large_row_nbytes if number > 1 else 0
        return ({name: _row_value(column, row, most) for name, column in columns.items()} for row in range(number))

    def _row_number(self, index: Any) -> int:
        """Return a row number that is not negative."""
        if isinstance(index, slice):
            raise TypeError("a sequence takes one row number; ds.rows[start:stop] selects several")
        number = operator.index(index)
        if not -self._length <= number < self._length:
            raise IndexError(f"row {number} is out of bounds for {plural(self._length, 'row')}")
        return number + self._length if number < 0 else number

    def __repr__(self) -> str:
        return f"<RowSequence of {plural(self._length, 'row')}: {printable(', '.join(self._reader.names))}>"


def _row_value(column: NDArray[Any], row: int, most: float) -> Any:
    """Return one row of a column; a copy below `most` bytes, so that it does not keep the other rows in memory."""
    value = column[row]
    return value.copy() if isinstance(value, np.ndarray) and column.dtype.kind != "O" and value.nbytes < most else value
