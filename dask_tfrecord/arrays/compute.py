"""From chunks to whole NumPy arrays: decoded straight into the results, or gathered from a cluster."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.arrays.source import Source
from dask_tfrecord.columns.blocks import Block, concatenate, to_array, zero_rows
from dask_tfrecord.schema import Schema

__all__ = ["compute_in_place", "gather"]

# Stored bytes of a piece: rows of bytes and ragged features are objects of the result and flat buffers at once for
# no longer than a piece takes.
_PIECE_NBYTES = 8 << 20


def compute_in_place(
    source: Source,
    borders: NDArray[np.int64],
    schema: Schema,
    assigned: Mapping[str, da.Array],
    options: Mapping[str, Any],
) -> dict[str, NDArray[Any]]:
    """All columns, decoded by the threads of this process straight into their results.

    Parameters
    ----------
    source : Source
        Where rows come from.
    borders : ndarray of int64
        First row of each chunk and the number of rows.
    schema : Schema
        The columns wanted.
    assigned : mapping of str to dask array
        Those that do not come from the source.
    options : mapping
        What `dask.compute` takes.
    """
    rows = int(borders[-1])
    results = {name: np.empty((rows, *feature.block_shape), feature.block_dtype) for name, feature in schema.items()}
    own = {name: array for name, array in results.items() if name not in assigned}
    tasks = []
    if own:
        filler = _Filler(source, source.refine(borders, _PIECE_NBYTES), own)
        name = f"tfrecord-compute-{uuid.uuid4().hex}"
        tasks.append(da.from_array(filler, chunks=1, name=name, asarray=False, lock=False, meta=np.empty(0, object)))
    if assigned:
        targets = [results[name] for name in assigned]
        tasks.append(da.store(list(assigned.values()), targets, lock=False, compute=False))
    dask.compute(*tasks, **options)
    return results


class _Filler:
    """One element per piece: reading it decodes the piece into its place in the results."""

    ndim = 1
    dtype = np.dtype(object)

    def __init__(self, source: Source, borders: NDArray[np.int64], results: dict[str, NDArray[Any]]) -> None:
        self.source, self.borders, self.results = source, borders, results
        self.shape = (len(borders) - 1,)

    def __getitem__(self, key: Any) -> NDArray[np.object_]:
        (pieces,) = key if isinstance(key, tuple) else (key,)
        numbers = range(self.shape[0])[pieces]
        for piece in numbers:
            start, stop = int(self.borders[piece]), int(self.borders[piece + 1])
            dense = {name: array[start:stop] for name, array in self.results.items() if array.dtype.kind in "biufc"}
            blocks = self.source.read(tuple(self.results), slice(start, stop), dense)
            for name, block in blocks.items():
                if name not in dense:
                    self.results[name][start:stop] = to_array(block)
        return np.empty(len(numbers), object)


def gather(
    results: Sequence[Any], names: Sequence[str], schema: Schema, finalizers: Mapping[str, tuple[Any, Any]]
) -> dict[str, NDArray[Any]]:
    """Chunks of blocks, and results of assigned arrays, as one array per column."""
    # A worker may hold these very chunks for others, so they are read and never changed.
    chunks: list[dict[str, Block]] = [chunk[0] for chunk in results[0]]
    rest = dict(zip(finalizers, results[1:], strict=True))
    columns = {}
    for name in names:
        if name in rest:
            finalize, extra = finalizers[name]
            columns[name] = finalize(rest[name], *extra)
        else:
            columns[name] = to_array(concatenate([zero_rows(schema[name]), *(chunk[name] for chunk in chunks)]))
    return columns
