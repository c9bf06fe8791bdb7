"""A function of `map_blocks` that acts in this process also where a job has pickled it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_acts: list[Callable[[], object]] = []


def called_back(blocks: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the blocks, after the act of `calling` if there is one."""
    # Pickled by the name of this module, the function finds the list of the process that reads it.
    for act in _acts:
        act()
    return blocks


@contextmanager
def calling(act: Callable[[], object]) -> Iterator[None]:
    """Call a function whenever `called_back` is called, until the context ends."""
    _acts.append(act)
    try:
        yield
    finally:
        _acts.remove(act)
