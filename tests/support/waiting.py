"""Waits of tests, all with the same limit, and threads whose errors fail the test."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

# Seconds after which a wait of a test fails: many times what it takes on a machine that runs other work too.
PATIENCE = 300


def wait_until(
    condition: Callable[[], Any], alive: Callable[[], bool] = lambda: True, state: Callable[[], object] = str
) -> bool:
    """Wait until a condition holds, or return False once `alive` does; `state` describes what the error found."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if not alive():
            return False
        assert time.monotonic() < deadline, f"the condition did not hold within {PATIENCE} s. {state()}"
        time.sleep(0.005)
    return True


@contextlib.contextmanager
def in_background(function: Callable[..., object], *args: Any) -> Iterator[None]:
    """Call a function in a thread during the context, wait for it at the end, and raise its error."""
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(function, *args)
        try:
            yield
        except BaseException as error:
            failed = call.exception(PATIENCE)
            if failed is not None:
                error.add_note(f"the thread in the background failed with {failed!r}")
            raise
    call.result()
