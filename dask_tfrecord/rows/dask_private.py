"""Private attributes of dask, distributed and the standard library: the only place that reads them.

Each function states why no public API does the same and links to the definition upstream.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import dask
from dask.base import get_scheduler

from dask_tfrecord.settings import this_worker


def active_client() -> Any:
    """Return the distributed client of the active scheduler; None on local schedulers.

    The active scheduler of a cluster is the bound method `Client.get`. dask returns the method, and
    `distributed.get_client` ignores the setting ``scheduler=``:
    https://github.com/dask/dask/blob/main/dask/base.py (`get_scheduler`).
    """
    refused = RuntimeError(
        "this call waits for tasks of an asynchronous client, and would block the event loop that runs it: "
        "await asyncio.to_thread(function, ...) runs it in a thread, with the same client"
    )
    try:
        client = getattr(get_scheduler(), "__self__", None)
    except RuntimeError as error:
        # dask raises it in the event loop of an asynchronous client.
        if "asynchronous" not in str(error):
            raise
        raise refused from error
    # In the oldest dask that is supported, its method returns a coroutine there.
    if getattr(client, "asynchronous", False):
        raise refused
    return client if hasattr(client, "scheduler_info") else None


def pool_threads() -> int | None:
    """Return how many threads dask's configured pool has; None without a pool.

    `concurrent.futures` lacks a public attribute for it, and dask reads the same one:
    https://github.com/dask/dask/blob/main/dask/threaded.py (`get`).
    """
    return getattr(dask.config.get("pool", None), "_max_workers", None)


def worker_memory() -> int | None:
    """Return the memory limit of the distributed worker that runs this task; None outside of workers and without limit.

    `distributed.get_worker` is public, the limit of a worker is not:
    https://github.com/dask/distributed/blob/main/distributed/worker_memory.py (`WorkerMemoryManager`).
    """
    worker = this_worker()
    limit = None if worker is None else worker.memory_manager.memory_limit
    return None if limit is None else int(limit)


def to_backend(backend: str) -> Callable[[Any], Any]:
    """Return dask's function for moving an array to a backend (such as "cupy").

    dask documents `dask.array.Array.to_backend` and the registration of backends, without a function for one array:
    https://github.com/dask/dask/blob/main/dask/array/backends.py (`ArrayBackendEntrypoint`).
    """
    from dask.array.backends import array_creation_dispatch

    move: Callable[[Any], Any] = array_creation_dispatch.dispatch(backend).to_backend_dispatch()
    return move


def array_meta(array: Any) -> Any:
    """Return the empty array that has the type of the chunks of a dask array.

    dask documents ``meta=`` as a parameter of constructors, without a public attribute:
    https://github.com/dask/dask/blob/main/dask/array/core.py (`Array._meta`).
    """
    return array._meta


# Functions of dask that a mean and a variance call for each chunk, and the methods of arrays that build them.
_CHUNK_FUNCTIONS = {"mean_chunk": "mean", "moment_chunk": "std"}


def reduction_name() -> str | None:
    """Return the name of the reduction that dask computes in this thread, for example "mean"; None if it is unknown.

    A mean calls `numpy.add.reduce` as a sum does, and tasks do not know the method that a user called:
    https://github.com/dask/dask/blob/main/dask/array/reductions.py (`mean_chunk`, `moment_chunk`).
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("dask.array"):
            return _CHUNK_FUNCTIONS.get(frame.f_code.co_name)
        frame = frame.f_back
    return None
