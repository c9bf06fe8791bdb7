"""Tasks that dask runs in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dask.callbacks import Callback


@contextmanager
def tasks_of(step: str) -> Iterator[list[Any]]:
    """Collect the keys of the tasks of a step, as dashboards name it, that run while the context is open."""
    found: list[Any] = []

    def note(key: Any, *_: Any) -> None:
        name = key[0] if isinstance(key, tuple) else key
        if isinstance(name, str) and name.startswith(step):
            found.append(key)

    with Callback(pretask=note):
        yield found
