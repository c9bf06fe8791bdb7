"""Computation of NumPy arrays: all rows, the first rows, or chunks one after the other, decoded ahead."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Self, TypeVar

import dask
import dask.array as da
import dask.local
import numpy as np
from dask.base import get_scheduler
from numpy.typing import NDArray

from dask_tfrecord.arrays.collection import row_numbers
from dask_tfrecord.arrays.counting import Attempts, raise_first
from dask_tfrecord.arrays.rows import Chunk, Rows, read_chunk
from dask_tfrecord.arrays.sources import RecordSource, Source
from dask_tfrecord.columns.blocks import Block, RaggedBlock, allocating, concatenate, rows_of, to_array, zero_rows
from dask_tfrecord.columns.user_blocks import unmasked
from dask_tfrecord.errors import SchemaError, plural
from dask_tfrecord.runtime.dask_private import active_client
from dask_tfrecord.runtime.memory import Workers
from dask_tfrecord.schema import Schema

# Stored bytes of one read: bytes and ragged rows exist twice, as flat buffers and as objects, for one read only.
_READ_NBYTES = 8 << 20


def compute_in_place(
    source: Source,
    borders: NDArray[np.int64],
    schema: Schema,
    assigned: Mapping[str, da.Array],
    options: Mapping[str, Any],
) -> dict[str, NDArray[Any]]:
    """Compute all columns with threads of this process, which decode directly into the results.

    Parameters
    ----------
    source : Source
        Source of the rows.
    borders : ndarray of int64
        First row of each chunk and the number of rows.
    schema : Schema
        Columns to compute.
    assigned : mapping of str to dask array
        Columns that do not come from the source.
    options : mapping
        Keyword arguments of `dask.compute`.
    """
    rows = int(borders[-1])
    results: dict[str, NDArray[Any]] = {}
    for name, feature in schema.items():
        with allocating(name, feature):
            results[name] = np.empty((rows, *feature.block_shape), feature.block_dtype)
    own = {name: array for name, array in results.items() if name not in assigned}
    tasks = []
    written: dict[str, list[int]] = {name: [] for name in schema}
    if own:
        stored, order = _in_stored_order(source)
        filler = _InOrder(_Filler(stored, stored.refine(borders, _READ_NBYTES), own, order, written))
        name = f"tfrecord-compute-{uuid.uuid4().hex}"
        tasks.append(da.from_array(filler, chunks=1, name=name, asarray=False, lock=False, meta=np.empty(0, object)))
    if assigned:
        targets: list[Any] = [_Unmasked(name, results[name], written[name]) for name in assigned]
        tasks.append(da.store(list(assigned.values()), targets, lock=False, compute=False))
    done = dask.compute(*tasks, **options)
    if own:
        raise_first(done[0])
    for name, counts in written.items():
        # Memory that was not written holds anything.
        if sum(counts) != rows:
            raise SchemaError(f"column {name!r}: expected {plural(rows, 'row')}, found {sum(counts):,} in its chunks")
    return results


def _in_stored_order(source: Source) -> tuple[Source, NDArray[np.int64] | None]:
    """Return a source with the rows in stored order, so that each range of bytes is read once.

    Returns
    -------
    Source
        Source of the same rows.
    ndarray of int64 or None
        Original position of each row; None if the order is unchanged.
    """
    rows = source.rows
    if rows is None or (rows.step > 0 if isinstance(rows, range) else (np.diff(rows) >= 0).all()):
        return source, None
    order = np.argsort(row_numbers(rows), kind="stable")
    return source.select(order), order


class _Unmasked:
    """Result of an assigned array that refuses masked blocks, and blocks of other shapes, which NumPy would accept."""

    def __init__(self, name: str, result: NDArray[Any], written: list[int]) -> None:
        self.name, self.result, self.written = name, result, written

    def __setitem__(self, key: Any, block: Any) -> None:
        start, target = key[0].start or 0, self.result[key]
        block = unmasked(block, f"column {self.name!r}", start)
        if np.shape(block) != target.shape:
            raise SchemaError(
                f"column {self.name!r}: the chunk of row {start} has shape {np.shape(block)}; expected {target.shape}, "
                f"as its array declares"
            )
        self.result[key] = block
        if all((part.start or 0) == 0 for part in key[1:]):
            self.written.append(len(target))


class _Filler:
    """Array-like with one element per read; indexing decodes the rows into the results."""

    ndim = 1
    dtype = np.dtype(object)

    def __init__(
        self,
        source: Source,
        borders: NDArray[np.int64],
        results: dict[str, NDArray[Any]],
        order: NDArray[np.int64] | None,
        written: dict[str, list[int]],
    ) -> None:
        self.source, self.borders, self.results, self.order = source, borders, results, order
        self.written = written
        self.shape = (len(borders) - 1,)

    def __getitem__(self, key: Any) -> NDArray[np.object_]:
        reads: slice = key[0] if isinstance(key, tuple) else key
        numbers = range(self.shape[0])[reads]
        for number in numbers:
            start, stop = int(self.borders[number]), int(self.borders[number + 1])
            target = slice(start, stop) if self.order is None else self.order[start:stop]
            dense = {}
            if self.order is None:
                dense = {name: array[target] for name, array in self.results.items() if array.dtype.kind in "biufc"}
            blocks = self.source.read(tuple(self.results), slice(start, stop), dense)
            for name, block in blocks.items():
                self.written[name].append(len(block))
                if name not in dense:
                    # Only decoded values belong to these rows alone: functions and chunks may return parts of others.
                    if isinstance(block, RaggedBlock) and isinstance(self.source, RecordSource):
                        _copy_rows(self.results[name], target, block.views())
                    else:
                        _copy_rows(self.results[name], target, to_array(block))
        return np.empty(len(numbers), np.object_)


class _InOrder:
    """Array-like of a filler whose errors are elements, so that the first in the order of the rows is raised."""

    ndim = 1
    dtype = np.dtype(object)

    def __init__(self, filler: _Filler) -> None:
        self.filler, self.attempts, self.shape = filler, Attempts(), filler.shape

    def __getitem__(self, key: Any) -> NDArray[np.object_]:
        reads: slice = key[0] if isinstance(key, tuple) else key
        done = np.empty(self.shape[0], np.object_)[reads]
        done[:] = self.attempts.call(reads.start or 0, partial(self.filler.__getitem__, reads))
        return done


def _copy_rows(result: NDArray[Any], target: slice | NDArray[np.int64], rows: NDArray[Any]) -> None:
    """Copy rows to the result."""
    if result.dtype.kind == "T" and isinstance(target, np.ndarray):
        # NumPy 2.0 loses long strings that are assigned by an index.
        for index, row in zip(target.tolist(), rows, strict=True):
            result[index] = row
    else:
        result[target] = rows


def gather(
    results: Sequence[Any], names: Sequence[str], schema: Schema, finalizers: Mapping[str, tuple[Any, Any]]
) -> dict[str, NDArray[Any]]:
    """Concatenate chunks of blocks, and results of assigned arrays, to one array per column."""
    # A worker may hold the same chunk objects for other tasks: they must not be modified.
    chunks: list[dict[str, Block]] = [chunk.blocks for chunk in results[0]]
    rest = dict(zip(finalizers, results[1:], strict=True))
    columns = {}
    for name in names:
        if name in rest:
            finalize, extra = finalizers[name]
            columns[name] = unmasked(finalize(rest[name], *extra), f"column {name!r}")
        else:
            columns[name] = to_array(concatenate([zero_rows(schema[name]), *(chunk[name] for chunk in chunks)]))
    rows = {name: len(column) for name, column in columns.items()}
    if len(set(rows.values())) > 1:
        # If rows are not counted, a mismatch is only known now.
        raise SchemaError(f"columns must have the same number of rows; got {rows}")
    return columns


def first_rows(chunks: da.Array, schema: Schema, rows: int) -> dict[str, NDArray[Any]]:
    """Return the first rows of chunks of unknown sizes; chunks are computed one by one until there are enough rows."""
    blocks_of: dict[str, list[Block]] = {name: [zero_rows(feature)] for name, feature in schema.items()}
    for number in range(chunks.numblocks[0] if schema else 0):
        if rows <= 0:
            break
        chunk: Chunk = chunks[number : number + 1].compute()
        for name, block in chunk.blocks.items():
            blocks_of[name].append(rows_of(block, 0, min(rows, len(block))))
        rows -= len(block)
    return {name: to_array(concatenate(blocks)) for name, blocks in blocks_of.items()}


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
    raise ValueError("rows without a column cannot be counted; open with counts='auto'")


Result = TypeVar("Result")


class ChunkIterator(Iterator[Result]):
    """Results of a function for each chunk of columns, made ahead; nothing without columns."""

    def __init__(self, rows: Rows, names: Sequence[str], step: Callable[[Chunk, int], Result]) -> None:
        self._results = iterate_chunks(rows, names, step) if names else iter(())

    def __next__(self) -> Result:
        return next(self._results)

    def close(self) -> None:
        """Stop the tasks."""
        if hasattr(self._results, "close"):
            self._results.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def iterate_chunks(rows: Rows, names: Sequence[str], step: Callable[[Chunk, int], Result]) -> Iterator[Result]:
    """Yield the result of a function for each chunk, in order.

    Parameters
    ----------
    rows : Rows
        The rows.
    names : sequence of str
        Columns to read.
    step : callable
        Called with each chunk and its number, in the thread or the worker that read it.

    Yields
    ------
    Result
        Chunks that are begun and not yielded are at most one more than there are threads.

    Notes
    -----
    An error of a chunk is raised in its turn. Closing the iterator cancels chunks that are not started, and waits for
    those that are.
    """
    number, client = rows.nchunks, active_client()
    if client is not None:
        yield from _ahead(number, 1 + sum(client.nthreads().values()), _ClusterChunks(client, rows, names, step))
    elif get_scheduler() is dask.local.get_sync:
        read = _chunk_reader(rows, names, step)
        yield from map(read, range(number))
    else:
        threads = Workers.active().threads
        with ThreadPoolExecutor(threads, "dask-tfrecord") as pool:
            yield from _ahead(number, 1 + threads, _ThreadChunks(pool, _chunk_reader(rows, names, step)))


def _ahead(number: int, most: int, chunks: _ThreadChunks | _ClusterChunks) -> Iterator[Any]:
    """Yield results in order, with at most `most` chunks begun and not yielded."""
    futures: deque[Any] = deque()
    started = 0
    try:
        for _ in range(number):
            while started < number and len(futures) < max(1, most):
                futures.append(chunks.start(started))
                started += 1
            # A future that stays referenced would keep its chunk in memory.
            yield chunks.finish(futures.popleft())
    finally:
        chunks.stop(futures)


@dataclass(frozen=True, slots=True)
class _LazyReader(Generic[Result]):
    """Reader of the chunks of a source."""

    source: Source
    plan: tuple[tuple[str, ...], NDArray[np.int64] | None]
    step: Callable[[Chunk, int], Result]

    def __call__(self, number: int) -> Result:
        return self.step(read_chunk(self.source, self.plan, (number,)), number)


def _chunk_reader(rows: Rows, names: Sequence[str], step: Callable[[Chunk, int], Result]) -> Callable[[int], Result]:
    """Return a function that computes a chunk in the calling thread."""
    if rows.source is not None:
        return _LazyReader(rows.source, (tuple(sorted(names)), rows.borders), step)
    chunks = rows.chunks(names).to_delayed().ravel()

    def compute(number: int) -> Result:
        return step(chunks[number].compute(scheduler="sync"), number)

    return compute


class _ThreadChunks:
    """Chunks that a pool of threads reads."""

    def __init__(self, pool: ThreadPoolExecutor, read: Callable[[int], Any]) -> None:
        self._pool, self._read = pool, read

    def start(self, number: int) -> Any:
        return self._pool.submit(self._read, number)

    def finish(self, future: Any) -> Any:
        return future.result()

    def stop(self, futures: deque[Any]) -> None:
        for future in futures:
            future.cancel()


class _ClusterChunks:
    """Chunks that a cluster computes."""

    def __init__(self, client: Any, rows: Rows, names: Sequence[str], step: Callable[[Chunk, int], Any]) -> None:
        self._client, self._name = client, f"tfrecord-read-ahead-{uuid.uuid4().hex}"
        self._reader: Any = None
        if rows.source is not None:
            # A task of its own, so that the source is sent once.
            reader = _LazyReader(rows.source, (tuple(sorted(names)), rows.borders), step)
            self._reader = client.submit(_identity, reader, key=f"{self._name}-source")
        else:
            apply = dask.delayed(step, name=f"{self._name}-step", traverse=False)
            self._chunks = [
                apply(chunk, number) for number, chunk in enumerate(rows.chunks(names).to_delayed().ravel())
            ]

    def start(self, number: int) -> Any:
        if self._reader is not None:
            return self._client.submit(_call, self._reader, number, key=(self._name, number))
        return self._client.compute(self._chunks[number])

    def finish(self, future: Any) -> Any:
        try:
            return future.result()
        finally:
            # The traceback of an error refers to the future.
            future.release()

    def stop(self, futures: deque[Any]) -> None:
        # The connection may be closed.
        if futures and self._client.status == "running":
            self._client.cancel(list(futures))
        for future in (*futures, *([] if self._reader is None else [self._reader])):
            future.release()


def _identity(value: Any) -> Any:
    return value


def _call(read: Callable[[int], Any], number: int) -> Any:
    return read(number)
