"""Objects of a Zarr group: files of a directory, or keys of a store; checked reading of array entries."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import zarr.abc.store
import zarr.buffer
import zarr.storage
from numpy.typing import NDArray

from dask_tfrecord.errors import IncompleteStoreError, Location
from dask_tfrecord.storage.objects import SETTLE_SECONDS, Objects
from dask_tfrecord.stores.zarr.compat import chunk_key, create_if_absent, run_sync, store_and_path

# Name of the claim of a run on a group, and prefix of names that belong to claims.
CLAIM = ".dask_tfrecord.claim"


class GroupObjects(Objects, Protocol):
    """Objects below the path of a group."""

    def sizes(self, names: Iterable[str]) -> dict[str, int | None]:
        """Return the size of each object in bytes; None for a missing one."""

    def names(self, below: str) -> list[str]:
        """List the names of all objects below a path."""

    def remove(self, below: str) -> None:
        """Delete everything below a path."""

    def clear(self, kept: str, last: str) -> None:
        """Delete everything except names that begin with `kept`, the object `last` after all others."""


# Stores with an exclusive create.
_EXCLUSIVE = (zarr.storage.MemoryStore, zarr.storage.LocalStore, zarr.storage.ObjectStore)
# Concurrent requests to a store.
_REQUESTS = 64

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class StoreObjects:
    """Objects of a store.

    Attributes
    ----------
    store : zarr.abc.store.Store
        The store.
    path : str
        Path of the group in the store.
    """

    store: zarr.abc.store.Store
    path: str

    def put(self, name: str, value: bytes) -> None:
        """Write an object atomically."""
        run_sync(self.store.set(self._key(name), zarr.buffer.cpu.Buffer.from_bytes(value)))

    def create(self, name: str, value: bytes) -> bool:
        """Write an object unless it exists; return True if it was written.

        Exclusive in memory, on local disks, through obstore, and by the clients of S3, Google and Azure. With other
        stores the object is read back after `SETTLE_SECONDS` seconds, and the last of several concurrent writers wins.
        """
        run_sync(self._create(self._key(name), value))
        return self.get([name])[name] == value

    async def _create(self, key: str, value: bytes) -> None:
        if isinstance(self.store, _EXCLUSIVE) or not await create_if_absent(self.store, key, value):
            await self.store.set_if_not_exists(key, zarr.buffer.cpu.Buffer.from_bytes(value))
            if not isinstance(self.store, _EXCLUSIVE):
                await asyncio.sleep(SETTLE_SECONDS)

    def get(self, names: Iterable[str]) -> dict[str, bytes | None]:
        """Read objects; None for a missing one."""
        prototype = zarr.buffer.default_buffer_prototype()
        found = self._each(names, lambda key: self.store.get(key, prototype))
        return {name: None if value is None else value.to_bytes() for name, value in found.items()}

    def sizes(self, names: Iterable[str]) -> dict[str, int | None]:
        """Return the size of each object in bytes; None for a missing one."""

        async def size(key: str) -> int | None:
            try:
                return await self.store.getsize(key)
            except FileNotFoundError:
                return None

        return self._each(names, size)

    def names(self, below: str) -> list[str]:
        """List the names of all objects below a path."""

        async def found() -> list[str]:
            # `list_prefix` returns keys relative to the root of the store.
            return [key async for key in self.store.list_prefix(f"{self._key(below)}/".replace("//", "/").lstrip("/"))]

        try:
            return [key[len(self._key("")) :] for key in run_sync(found())]
        except FileNotFoundError:
            return []

    def drop(self, names: Iterable[str]) -> None:
        """Delete objects; a missing one is ignored."""
        # Deleting a missing key is a no-op.
        self._each(names, self.store.delete)

    def remove(self, below: str) -> None:
        """Delete everything below a path."""
        self.drop(self.names(below))
        run_sync(self.store.delete_dir(self._key(below)))

    def clear(self, kept: str, last: str) -> None:
        """Delete everything except names that begin with `kept`, the object `last` after all others."""
        # Cached listings of the client lack objects of other processes.
        invalidate = getattr(getattr(self.store, "fs", None), "invalidate_cache", None)
        if invalidate is not None:
            invalidate()

        async def inside() -> list[str]:
            return [key async for key in self.store.list_dir(self.path)]

        try:
            names = run_sync(inside())
        except FileNotFoundError:
            return
        for name in names:
            if name != last and not name.startswith(kept):
                run_sync(self.store.delete_dir(self._key(name)))
        # Objects outside of arrays remain.
        remaining = [name for name in self.names("") if not name.startswith(kept)]
        self.drop(name for name in remaining if name != last)
        self.drop([last])

    def _key(self, name: str) -> str:
        return f"{self.path}/{name}" if self.path else name

    def _each(self, names: Iterable[str], request: Callable[[str], Coroutine[Any, Any, Answer]]) -> dict[str, Answer]:
        """Send a request for each name, many concurrently."""
        names = list(names)

        async def answers() -> list[Answer]:
            gate = asyncio.Semaphore(_REQUESTS)

            async def answer(name: str) -> Answer:
                async with gate:
                    return await request(self._key(name))

            return await asyncio.gather(*map(answer, names))

        return dict(zip(names, run_sync(answers()), strict=True))


def objects_at(store: Any, component: str | None, storage_options: dict[str, Any] | None) -> StoreObjects:
    """Return the objects of a group that may not exist.

    Parameters
    ----------
    store : object
        Store, path or URL as for `zarr.open_group`.
    component : str or None
        Path of the group in the store.
    storage_options : dict or None
        Options for a URL.
    """
    return StoreObjects(*store_and_path(store, component or "", storage_options))


# Errors of codecs for damaged or truncated chunks.
_DAMAGED = (RuntimeError, ValueError, EOFError, zlib.error, gzip.BadGzipFile)
# Entries of a chunk that are compared with the fill value. If all of them equal it, the chunk may be missing, and its
# object is looked up.
_SAMPLED = 16


def read_entries(array: Any, objects: GroupObjects, location: Location, start: int, stop: int) -> NDArray[Any]:
    """Read entries of an array.

    Parameters
    ----------
    array : zarr.Array
        An array whose chunks, or shards, span all axes but the first.
    objects : GroupObjects
        Objects of its group.
    location : Location
        The array, for errors.
    start, stop : int
        First entry, and the end of the range.

    Raises
    ------
    IncompleteStoreError
        If a chunk is damaged or missing.
    """
    try:
        entries = np.asarray(array[start:stop])
    except _DAMAGED as error:
        raise IncompleteStoreError(
            f"cannot read entries {start:,} to {stop:,}: {type(error).__name__}: {error}. The chunk was changed after "
            f"it was written; to_zarr(…, mode='w') writes the group again",
            location,
        ) from error
    unit = (array.shards or array.chunks)[0]
    suspects: dict[str, range] = {}
    for number in range(start // unit, -(-(start + len(entries)) // unit)):
        rows = range(number * unit, min((number + 1) * unit, array.shape[0]))
        rows_read = entries[max(rows.start - start, 0) : rows.stop - start]
        if rows_read.size and _is_filled(rows_read[:: -(-len(rows_read) // _SAMPLED)], array.fill_value):
            suspects[f"{array.basename}/{chunk_key(array, number)}"] = rows
    sizes = objects.sizes(suspects) if suspects else {}
    missing = next((name for name, size in sizes.items() if size is None), None)
    if missing is not None:
        rows = suspects[missing]
        raise IncompleteStoreError(
            f"{missing} is missing: entries {rows.start:,} to {rows.stop:,}; zarr reads each of them as "
            f"{np.asarray(array.fill_value).item()!r}. to_zarr(…, mode='w') writes the group again",
            location,
        )
    return entries


def _is_filled(entries: NDArray[Any], value: Any) -> bool:
    wanted = np.broadcast_to(np.asarray(value, entries.dtype), entries.shape)
    # NumPy 2.5 warns of signaling NaNs, which data may hold.
    with np.errstate(invalid="ignore"):
        return np.array_equal(entries, wanted, equal_nan=entries.dtype.kind in "fc")
