"""Results of a function for each chunk of rows, made ahead by threads or a cluster."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self, TypeVar

import dask
import dask.local
import dask.threaded
import numpy as np
from dask.base import get_scheduler
from numpy.typing import NDArray

from dask_tfrecord.rows.dask_private import active_client
from dask_tfrecord.rows.graph import Chunk, read_chunk
from dask_tfrecord.rows.memory import Workers
from dask_tfrecord.rows.rows import Rows
from dask_tfrecord.rows.sources import AnySource
from dask_tfrecord.rows.task_names import step_key

Result = TypeVar("Result")


class ChunkIterator(Iterator[Result]):
    """Results of a function for each chunk of columns, made ahead; nothing without columns."""

    def __init__(self, rows: Rows, names: Sequence[str], step: Callable[[Chunk, int], Result]) -> None:
        self._results = _iterate_chunks(rows, tuple(sorted(names)), step)

    def __next__(self) -> Result:
        return next(self._results)

    def close(self) -> None:
        """Stop the tasks."""
        self._results.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _iterate_chunks(
    rows: Rows, names: tuple[str, ...], step: Callable[[Chunk, int], Result]
) -> Generator[Result, None, None]:
    """Yield the result of a function for each chunk, called in the thread or the worker that read it.

    Chunks that are begun and not yielded are at most one more than there are threads. An error of a chunk is raised in
    its turn. Closing the generator cancels chunks that are not started, and waits for those that are.
    """
    number, client = rows.nchunks if names else 0, active_client()
    if client is not None:
        yield from _from_cluster(client, rows, names, step, number)
        return
    source = rows.source
    chunks = [] if rows.source is not None else rows.chunks(names).to_delayed().ravel()

    def read(number: int) -> Result:
        if source is not None:
            return _read_step(source, (names, rows.borders), step, number)
        return step(chunks[number].compute(scheduler="sync"), number)

    if get_scheduler() is dask.local.get_sync:
        yield from map(read, range(number))
        return
    threads = Workers.active().threads
    with ThreadPoolExecutor(threads, "dask-tfrecord") as pool:
        futures: deque[Any] = deque()
        try:
            yield from _read_ahead(number, 1 + threads, lambda chunk: pool.submit(read, chunk), futures)
        finally:
            for future in futures:
                future.cancel()


def _from_cluster(
    client: Any, rows: Rows, names: tuple[str, ...], step: Callable[[Chunk, int], Result], number: int
) -> Iterator[Result]:
    """Compute chunks on a cluster, a few ahead of the caller, and yield them in order."""
    name = step_key("read-ahead")
    futures = deque[Any]()
    reader = []
    if rows.source is not None:
        # A task of its own, so that the source is sent once.
        read = partial(_read_step, rows.source, (names, rows.borders), step)
        reader.append(client.submit(partial, read, key=f"{name}-source"))

        def start(chunk: int) -> Any:
            return client.submit(operator.call, *reader, chunk, key=(name, chunk))

    else:
        call = dask.delayed(step, name=f"{name}-step", traverse=False)
        chunks = rows.chunks(names).to_delayed().ravel()

        def start(chunk: int) -> Any:
            return client.compute(call(chunks[chunk], chunk))

    try:
        yield from _read_ahead(number, 1 + sum(client.nthreads().values()), start, futures)
    finally:
        # The connection may be closed.
        if futures and client.status == "running":
            client.cancel(list(futures))
        for future in (*futures, *reader):
            future.release()


def _read_ahead(number: int, most: int, start: Callable[[int], Any], futures: deque[Any]) -> Iterator[Any]:
    """Yield results in order, with at most `most` futures begun and not yielded."""
    started = 0
    for _ in range(number):
        while started < number and len(futures) < max(1, most):
            futures.append(start(started))
            started += 1
        yield _result(futures.popleft())


def _result(future: Any) -> Any:
    """Return the result of a future, without a reference to it that would keep the chunk in memory."""
    try:
        return future.result()
    finally:
        # The traceback of an error refers to the future of a cluster.
        if hasattr(future, "release"):
            future.release()


def _read_step(
    source: AnySource,
    plan: tuple[tuple[str, ...], NDArray[np.int64] | None],
    step: Callable[[Chunk, int], Result],
    number: int,
) -> Result:
    """Read a chunk in a task, and apply a step to it."""
    return step(read_chunk(source, plan, (number,)), number)
