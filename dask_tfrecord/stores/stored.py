"""What a group is made of where it lies in a store: objects, many of which are asked for at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import zarr.abc.store
import zarr.buffer

# zarr has no public way to call a store, whose methods belong to the event loop of its own.
from zarr.core.sync import sync

__all__ = ["Stored"]

# Requests to a store at once.
_REQUESTS = 64

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Stored:
    """Objects of a store.

    Attributes
    ----------
    store : zarr.abc.store.Store
        The store.
    path : str
        The group's path in it.
    """

    store: zarr.abc.store.Store
    path: str

    def put(self, name: str, value: bytes) -> None:
        """Write an object, whole or not at all."""
        sync(self.store.set(self._key(name), zarr.buffer.cpu.Buffer.from_bytes(value)))

    def get(self, names: Iterable[str]) -> dict[str, bytes | None]:
        """Read objects; None where there is none."""
        prototype = zarr.buffer.default_buffer_prototype()
        found = self._each(names, lambda key: self.store.get(key, prototype))
        return {name: None if value is None else value.to_bytes() for name, value in found.items()}

    def sizes(self, names: Iterable[str]) -> dict[str, int | None]:
        """Bytes of each object; None where there is none."""

        async def size(key: str) -> int | None:
            try:
                return await self.store.getsize(key)
            except FileNotFoundError:
                return None

        return self._each(names, size)

    def names(self, below: str) -> list[str]:
        """Names of all objects below a path."""

        async def found() -> list[str]:
            # The keys come relative to the root of the store.
            return [key async for key in self.store.list_prefix(self._key(below) + "/")]

        try:
            return [key[len(self._key("")) :] for key in sync(found())]
        except FileNotFoundError:
            return []

    def drop(self, names: Iterable[str]) -> None:
        """Remove objects, those that are there."""
        # Stores take no offence at what is not there.
        self._each(names, self.store.delete)

    def remove(self, below: str) -> None:
        """Remove all that lies below a path."""
        self.drop(self.names(below))
        sync(self.store.delete_dir(self._key(below)))

    def _key(self, name: str) -> str:
        return f"{self.path}/{name}" if self.path else name

    def _each(self, names: Iterable[str], ask: Callable[[str], Coroutine[Any, Any, Answer]]) -> dict[str, Answer]:
        """Ask the store for each name, many at once."""
        names = list(names)

        async def answers() -> list[Answer]:
            gate = asyncio.Semaphore(_REQUESTS)

            async def answer(name: str) -> Answer:
                async with gate:
                    return await ask(self._key(name))

            return await asyncio.gather(*map(answer, names))

        return dict(zip(names, sync(answers()), strict=True))
