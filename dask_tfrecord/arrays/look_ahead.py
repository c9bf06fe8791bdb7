"""Chunks of a data set one after the other, decoded ahead in bounded number.

On a cluster the chunks are computed there. Otherwise threads of this process read them, as many as dask would use; the
synchronous scheduler reads in the calling thread. A chunk is its own computation: what several chunks need, such as
the chunk of an array with larger chunks, is computed for each of them.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import dask
import dask.local
import numpy as np
from dask.base import get_scheduler
from numpy.typing import NDArray

from dask_tfrecord.arrays.graph import Chunk, read_chunk
from dask_tfrecord.arrays.rows import Rows
from dask_tfrecord.arrays.sources import Source
from dask_tfrecord.runtime.dask_private import active_client
from dask_tfrecord.runtime.memory import Workers

__all__ = ["iterate_chunks"]

Result = TypeVar("Result")


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
