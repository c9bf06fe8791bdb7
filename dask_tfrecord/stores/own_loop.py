"""Coroutines that are run in the thread that waits for them, with all that they would hand to other threads.

zarr runs its own in one thread for the whole process and encodes and writes in others. Where tasks keep all cores busy
each of these hand-overs waits for a core: what takes 0.3 ms takes 3.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import TypeVar, TypeVarTuple

__all__ = ["own_loop"]

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class _Selector(selectors.DefaultSelector):
    """Asks the system only where there is nothing else to do: who asks gives the interpreter's lock away."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Find what is ready, if nothing else is."""
        return [] if timeout == 0 else super().select(timeout)


class _OwnLoop(asyncio.SelectorEventLoop):
    """Does what it is to hand to another thread at once."""

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Arguments], Result], *args: *Arguments
    ) -> asyncio.Future[Result]:
        """Do it."""
        future: asyncio.Future[Result] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # who waits for it gets it
            future.set_exception(error)
        return future


@contextmanager
def own_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Give an event loop whose ``run_until_complete`` keeps to the thread that calls it."""
    loop = _OwnLoop(_Selector())
    loop.set_debug(False)  # which would warn of all that takes a while
    try:
        yield loop
    finally:
        loop.close()
