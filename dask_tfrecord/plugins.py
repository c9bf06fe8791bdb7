"""Objects by name, of this library and of packages that add to them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Generic, Protocol, TypeVar


class Named(Protocol):
    """Object with a name."""

    @property
    def name(self) -> str:
        """Name that is unique among objects of its kind."""


Plugin = TypeVar("Plugin", bound=Named)


class Registry(Generic[Plugin]):
    """Objects of one kind; entry points of a group are searched only if no other object is the right one.

    Attributes
    ----------
    built_in, added : mapping of str to object
        Objects of this library, then objects registered in this process, then objects of entry points.
    """

    def __init__(self, group: str, *built_in: Plugin) -> None:
        self.group = group
        self.built_in = {each.name: each for each in built_in}
        self.added: dict[str, Plugin] = {}

    def __iter__(self) -> Iterator[Plugin]:
        yield from self.built_in.values()
        # Another thread may register one meanwhile.
        added = self.added.copy()
        yield from added.values()
        yield from (each for name, each in self._of_entry_points.items() if name not in added)

    @cached_property
    def _of_entry_points(self) -> Mapping[str, Plugin]:
        loaded: list[Plugin] = [point.load() for point in importlib.metadata.entry_points(group=self.group)]
        return {each.name: each for each in loaded}
