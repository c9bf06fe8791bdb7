"""From chunks to NumPy arrays: all rows, decoded straight into the results or gathered from a cluster, or a few."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.arrays.graph import Chunk
from dask_tfrecord.arrays.plan import row_numbers
from dask_tfrecord.arrays.source import Source
from dask_tfrecord.columns.blocks import Block, concatenate, rows_of, to_array, zero_rows
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema import Schema

__all__ = ["compute_in_place", "count_rows", "first_rows", "gather"]

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
        stored, order = _in_stored_order(source)
        filler = _Filler(stored, stored.refine(borders, _PIECE_NBYTES), own, order)
        name = f"tfrecord-compute-{uuid.uuid4().hex}"
        tasks.append(da.from_array(filler, chunks=1, name=name, asarray=False, lock=False, meta=np.empty(0, object)))
    if assigned:
        targets = [results[name] for name in assigned]
        tasks.append(da.store(list(assigned.values()), targets, lock=False, compute=False))
    dask.compute(*tasks, **options)
    return results


def _in_stored_order(source: Source) -> tuple[Source, NDArray[np.int64] | None]:
    """Give rows as they follow each other where they are stored, so that what lies there is read once.

    Returns
    -------
    Source
        The same rows.
    ndarray of int64 or None
        Which of the rows each of them is; None if it is the same one.
    """
    rows = source.rows
    if rows is None or (rows.step > 0 if isinstance(rows, range) else (np.diff(rows) >= 0).all()):
        return source, None
    order = np.argsort(row_numbers(rows), kind="stable")
    return source.select(order), order


class _Filler:
    """One element per piece: reading it decodes the piece into its place in the results."""

    ndim = 1
    dtype = np.dtype(object)

    def __init__(
        self,
        source: Source,
        borders: NDArray[np.int64],
        results: dict[str, NDArray[Any]],
        order: NDArray[np.int64] | None,
    ) -> None:
        self.source, self.borders, self.results, self.order = source, borders, results, order
        self.shape = (len(borders) - 1,)

    def __getitem__(self, key: Any) -> NDArray[np.object_]:
        pieces: slice = key[0] if isinstance(key, tuple) else key
        numbers = range(self.shape[0])[pieces]
        for piece in numbers:
            start, stop = int(self.borders[piece]), int(self.borders[piece + 1])
            place = slice(start, stop) if self.order is None else self.order[start:stop]
            dense = {}
            if self.order is None:
                dense = {name: array[place] for name, array in self.results.items() if array.dtype.kind in "biufc"}
            blocks = self.source.read(tuple(self.results), slice(start, stop), dense)
            for name, block in blocks.items():
                if name not in dense:
                    _put(self.results[name], place, to_array(block))
        return np.empty(len(numbers), np.object_)


def _put(result: NDArray[Any], place: slice | NDArray[np.int64], rows: NDArray[Any]) -> None:
    """Put rows into their places."""
    if result.dtype.kind == "T" and isinstance(place, np.ndarray):
        # NumPy 2.0 loses long strings that are assigned by an index.
        for at, row in zip(place.tolist(), rows, strict=True):
            result[at] = row
    else:
        result[place] = rows


def gather(
    results: Sequence[Any], names: Sequence[str], schema: Schema, finalizers: Mapping[str, tuple[Any, Any]]
) -> dict[str, NDArray[Any]]:
    """Chunks of blocks, and results of assigned arrays, as one array per column."""
    # A worker may hold these very chunks for others, so they are read and never changed.
    chunks: list[dict[str, Block]] = [chunk.blocks for chunk in results[0]]
    rest = dict(zip(finalizers, results[1:], strict=True))
    columns = {}
    for name in names:
        if name in rest:
            finalize, extra = finalizers[name]
            columns[name] = finalize(rest[name], *extra)
        else:
            columns[name] = to_array(concatenate([zero_rows(schema[name]), *(chunk[name] for chunk in chunks)]))
    rows = {name: len(column) for name, column in columns.items()}
    if len(set(rows.values())) > 1:
        # Only known now where rows were not counted.
        raise SchemaError(f"all columns have as many rows; got {rows}")
    return columns


def first_rows(chunks: da.Array, schema: Schema, rows: int) -> dict[str, NDArray[Any]]:
    """Rows from the beginning of chunks of unknown sizes, one chunk after the other until there are enough."""
    parts: dict[str, list[Block]] = {name: [zero_rows(feature)] for name, feature in schema.items()}
    for number in range(chunks.numblocks[0] if schema else 0):
        if rows <= 0:
            break
        chunk: Chunk = chunks[number : number + 1].compute()
        for name, block in chunk.blocks.items():
            parts[name].append(rows_of(block, 0, min(rows, len(block))))
        rows -= len(block)
    return {name: to_array(concatenate(blocks)) for name, blocks in parts.items()}


def count_rows(chunks: da.Array) -> int:
    """Count the rows of chunks of unknown sizes.

    Raises
    ------
    ValueError
        If the chunks have no column.
    """
    counts = da.map_blocks(_chunk_rows, chunks, dtype=np.int64, meta=np.empty(0, np.int64))
    return int(counts.sum().compute())


def _chunk_rows(chunk: Chunk) -> NDArray[np.int64]:
    for block in chunk.blocks.values():
        return np.array([len(block)], np.int64)
    raise ValueError("rows without a column can't be counted; open with counts='auto'")
