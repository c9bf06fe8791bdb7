"""Threads behind an iterator of batches: one makes batches, the others read units for it."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue

from dask_tfrecord.stores.batches.mixing import Batch, BatchMixer, Position
from dask_tfrecord.stores.batches.row_reader import chunk_scheduler

__all__ = ["BatchPipeline"]

# Pipelines whose threads may run. A thread keeps its pipeline alive.
_RUNNING: weakref.WeakSet[BatchPipeline] = weakref.WeakSet()


class BatchPipeline:
    """Batches after a position, made ahead in threads of this process after `start`.

    The threads hold no reference to the iterator, so that its collection can stop them.

    Parameters
    ----------
    mixer : BatchMixer
        Source of the batches.
    position : Position
        Position of the first batch.
    threads : int
        Threads that read units.
    prefetch : int
        Batches that are made ahead.
    """

    def __init__(self, mixer: BatchMixer, position: Position, threads: int, prefetch: int) -> None:
        self._mixer = replace(mixer, scheduler=chunk_scheduler())
        self._process = os.getpid()
        self._results: SimpleQueue[tuple[Batch, Position] | BaseException | None] = SimpleQueue()
        # A token for each batch that may be made; False ends the thread. A garbage collection may run `stop` in any
        # thread, also within a lock: `SimpleQueue.put` is reentrant, unlike semaphores and executors.
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        for _ in range(prefetch):
            self._tokens.put(True)
        self._stopped = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tfrecord-batches-read")
        # A daemon, because the interpreter waits for other threads before it calls `_end_threads`.
        self._thread = threading.Thread(target=self._run, args=(position,), name="tfrecord-batches", daemon=True)
        self._running = threading.Event()

    def start(self) -> None:
        """Start the threads."""
        _RUNNING.add(self)
        self._thread.start()

    @property
    def is_usable(self) -> bool:
        """Return whether the threads exist: a forked process has none of them."""
        return self._process == os.getpid()

    def next(self) -> tuple[Batch, Position] | None:
        """Return the next batch and the position after it; None after the last one.

        Raises
        ------
        Exception
            The error of a record of the batch.
        """
        result = self._results.get()
        self._tokens.put(True)
        if isinstance(result, BaseException):
            raise result
        return result

    def stop(self) -> None:
        """Stop the threads after their current reads, without waiting."""
        if self.is_usable:
            self._stopped = True
            self._tokens.put(False)

    def close(self) -> None:
        """Stop the threads, and wait for their current reads."""
        if self.is_usable:
            self.stop()
            self._pool.shutdown(wait=False, cancel_futures=True)
            # An interrupted `start` may leave a thread that does not run yet: it will read nothing.
            if self._running.is_set():
                self._thread.join()
            self._pool.shutdown(wait=True)

    def _run(self, position: Position) -> None:
        """Make batches until the pipeline is stopped."""
        self._running.set()
        batches = self._mixer.batches(position, self._pool)
        try:
            while self._tokens.get() and not self._stopped:
                result = next(batches, None)
                if result is None:
                    break
                self._results.put(result)
                # The thread must not keep the batch while it waits.
                del result
        except BaseException as error:
            # Also an error of the executor, if the interpreter exits. `close` cancels reads.
            if not self._stopped:
                self._results.put(error)
        finally:
            with suppress(RuntimeError):
                batches.close()
            self._pool.shutdown(wait=False, cancel_futures=True)
            # Also after `close` in another thread, while a caller waits for a batch.
            self._results.put(None)


@atexit.register
def _end_threads() -> None:
    """End all threads before the interpreter does.

    A daemon thread that returns from native code while the interpreter is finalized aborts the process.
    """
    for pipeline in list(_RUNNING):
        pipeline.close()
