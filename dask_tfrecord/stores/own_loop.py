"""Coroutines that are run in the thread that waits for them, with all that they would hand to other threads.

zarr runs its own in one thread for the whole process and encodes and writes in others. Where tasks keep all cores busy
each of these hand-overs waits for a core: what takes 0.3 ms takes 3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

__all__ = ["own_loop"]


class _AtOnce(ThreadPoolExecutor):
    """Does what it is given at once, in the thread that gives it. Event loops take nothing but thread pools."""

    def submit(self, step: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do it."""
        future: Future[Any] = Future()
        try:
            future.set_result(step(*args, **kwargs))
        except BaseException as error:  # who waits for it gets it
            future.set_exception(error)
        return future


@contextmanager
def own_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Give an event loop whose ``run_until_complete`` keeps to the thread that calls it."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(_AtOnce(1))
    loop.set_debug(False)  # which would warn of all that takes a while
    try:
        yield loop
    finally:
        loop.close()
