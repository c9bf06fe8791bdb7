"""Reading of rows of any `Rows`, in the calling thread, as blocks."""

from __future__ import annotations

from typing import Any

import dask
import dask.local
import dask.threaded
import numpy as np
from dask.base import get_scheduler
from numpy.typing import NDArray

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.columns.blocks import Block, concatenate, take_rows

__all__ = ["RowReader"]


class RowReader:
    """Reader of rows of a data set.

    A lazy source reads rows without dask. Existing chunks are computed, one dask graph for each read.

    Parameters
    ----------
    dataset : Dataset
        Rows and columns to read.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.backing = dataset.merged()
        self.names = tuple(dataset)
        self.schema = dataset.schema
        self.is_lazy = self.backing.source is not None

    def read(self, key: int | slice | NDArray[np.int64], scheduler: Any = None) -> dict[str, Block]:
        """Read rows.

        Parameters
        ----------
        key : int, slice or ndarray of int64
            Number of a chunk whose rows are not counted; else rows, as a slice or as ascending numbers.
        scheduler : optional
            Scheduler that computes existing chunks; see `chunk_scheduler`.

        Returns
        -------
        dict of str to Block
            Blocks in the order of the columns. They may share memory with chunks that are kept.
        """
        if self.backing.source is not None:
            blocks = self.backing.source.read(self.names, key)
            return {name: blocks[name] for name in self.names}
        if isinstance(key, int):
            chunks = self.backing.chunks(self.names)[key : key + 1]
        else:
            chunks = self.backing.select(key).chunks(self.names)
        parts = [part.blocks for part in dask.compute(*chunks.to_delayed(), scheduler=scheduler or chunk_scheduler())]
        return {name: concatenate([part[name] for part in parts]) for name in self.names}

    def read_scattered(self, rows: NDArray[np.int64], scheduler: Any = None) -> dict[str, Block]:
        """Read rows in any order; a row that occurs twice is read once."""
        distinct, order = np.unique(rows, return_inverse=True)
        blocks = self.read(distinct, scheduler)
        if len(distinct) == len(rows) and (np.diff(order) > 0).all():
            return blocks
        return {name: take_rows(block, order) for name, block in blocks.items()}

    def describe(self, number: int) -> str:
        """Return the file and the record of a row, or the chunk of this number, as text for errors."""
        if self.backing.source is not None:
            source = self.backing.source
            return source.describe(number if source.nrows is None else [number])
        return f"chunk {number}" if np.isnan(self.backing.sizes).any() else f"row {number}"


def chunk_scheduler() -> Any:
    """Return the scheduler for existing chunks: that of the caller, or the calling thread instead of local threads."""
    scheduler = get_scheduler()
    return "synchronous" if scheduler in (None, dask.threaded.get, dask.local.get_sync) else scheduler
