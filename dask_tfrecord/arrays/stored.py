"""How many stored bytes rows take. Pure functions over NumPy arrays, nothing is read here.

Places of records are known every MiB or so, and at the ends of shards; between two of them records are taken to be as
long as each other. All rows of a shard together are its size, to the byte. Those of a compressed shard are their part
of the inflated bytes, times its size.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.arrays.filled import FilledSource
from dask_tfrecord.arrays.plan import Collection, row_numbers
from dask_tfrecord.arrays.source import MappedSource, RecordSource, Source

__all__ = ["stored_nbytes"]


def stored_nbytes(source: Source | None, spans: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """Find the stored bytes of rows.

    Parameters
    ----------
    source : Source or None
        Whose rows.
    spans : ndarray of int64, shape (n, 2)
        First row, and the one past the last.

    Returns
    -------
    ndarray of float64, shape (n,), or None
        The bytes; None if the rows do not come from TFRecord shards.
    """
    while isinstance(source, MappedSource):
        source = source.source
    if not isinstance(source, RecordSource | FilledSource):
        return None
    rows, (known, places) = source.rows, _known_places(source.collection)

    def nbytes(first: NDArray[np.int64], past: NDArray[np.int64]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.interp(past, known, places) - np.interp(first, known, places)
        return found

    if isinstance(rows, range) and rows.step == 1:
        return nbytes(spans[:, 0] + rows.start, spans[:, 1] + rows.start)
    picked = (row_numbers(rows[start:stop]) for start, stop in spans.tolist())
    return np.array([nbytes(numbers, numbers + 1).sum() for numbers in picked], np.float64)


def _known_places(collection: Collection) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Find rows, ascending, and where they begin, as if all shards were one file."""
    sizes = collection.shards.sizes
    shard = np.repeat(np.arange(len(sizes)), np.diff(collection.mark_splits))
    before = np.cumsum(sizes) - sizes
    scale = sizes / np.maximum(collection.nbytes, 1)
    rows = np.append(collection.starts[shard] + collection.mark_records, collection.nrows)
    places = np.append(before[shard] + collection.mark_offsets * scale[shard], sizes.sum())
    # Of places of one row the first counts at the very beginning, the last elsewhere: no byte lies between rows.
    kept = np.append(rows[1:] != rows[:-1], True) & (rows > 0)
    return np.append(0, rows[kept]), np.append(0.0, places[kept])
