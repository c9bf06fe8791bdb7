"""Tasks that need rows: each is given them by a source in the task itself, or from chunks that exist already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dask
import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.columns.blocks import Block, BytesBlock, RaggedBlock, concatenate, rows_of, zero_rows
from dask_tfrecord.schema import Schema
from dask_tfrecord.stores.layout import GranuleCounts

__all__ = ["Feed", "Fetch", "count_granules"]

Fetch = Callable[..., dict[str, Block]]


def _from_source(source: Any, names: Sequence[str], start: int, stop: int) -> dict[str, Block]:
    blocks: dict[str, Block] = source.read(names, slice(start, stop))
    return blocks


def _from_chunks(
    chunks: Sequence[NDArray[np.object_]], first_row: int, schema: Schema, names: Sequence[str], start: int, stop: int
) -> dict[str, Block]:
    """Rows of neighbouring chunks, the first of which begins at `first_row`."""
    blocks = {}
    for name in names:
        parts = [zero_rows(schema[name]), *(chunk[0][name] for chunk in chunks)]
        blocks[name] = rows_of(concatenate(parts), start - first_row, stop - first_row)
    return blocks


def count_granules(granule: int, fetch: Fetch, *arguments: Any) -> dict[str, GranuleCounts]:
    """Values and bytes of the flat features in each granule of some rows."""
    counted = {}
    for name, block in fetch(*arguments).items():
        borders = np.append(np.arange(0, len(block), granule), len(block))
        row_splits = block.row_splits if isinstance(block, RaggedBlock) else None
        flat = block.values if isinstance(block, RaggedBlock) else block
        values = borders if row_splits is None else row_splits[borders]
        nbytes = values * 0
        if isinstance(flat, BytesBlock):
            nbytes = flat.splits[values * int(np.prod(flat.shape[1:]))]
        counted[name] = GranuleCounts(np.diff(values), np.diff(nbytes))
    return counted


class Feed:
    """Makes tasks over the rows of a data set.

    Parameters
    ----------
    dataset : Dataset
        Whose rows; they are counted.
    token : str
        Names the tasks.
    """

    def __init__(self, dataset: Dataset, token: str) -> None:
        self.schema, self.token = dataset.schema, token
        self.source = dataset.source
        if self.source is not None:
            self.shared = dask.delayed(self.source, name=f"tfrecord-source-{token}", traverse=False)
            return
        backing = dataset.merged()
        self.borders = np.asarray(dataset.borders)
        self.chunks = backing.chunks(tuple(dataset)).to_delayed().ravel().tolist()

    def task(
        self, step: Callable[..., Any], first: tuple[Any, ...], names: Sequence[str], rows: tuple[int, int], key: str
    ) -> Delayed:
        """``step(*first, fetch, *arguments)`` as a task, where ``fetch(*arguments)`` is the dict of blocks."""
        start, stop = rows
        if self.source is not None:
            arguments: tuple[Any, ...] = (_from_source, self.shared, tuple(names), start, stop)
        else:
            low = min(int(np.searchsorted(self.borders, start, side="right")) - 1, len(self.chunks) - 1)
            high = int(np.searchsorted(self.borders, stop, side="left"))
            arguments = (_from_chunks, self.chunks[low:high], int(self.borders[low]), self.schema, names, start, stop)
        return dask.delayed(step, pure=False)(*first, *arguments, dask_key_name=f"tfrecord-{key}")
