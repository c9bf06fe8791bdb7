"""Chunks of a unit in a store: they are written at once, and an error waits for those that are under way."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.abc.store import Store
from zarr.storage import WrapperStore

import dask_tfrecord as dtf

ROWS, NAMES = 12, [f"x{number}" for number in range(9)]


class BusyStore(WrapperStore[Store]):
    """A store in memory that takes its time, and counts the chunks that are written at once."""

    def __init__(self, store: Store, fails: str = "") -> None:
        super().__init__(store)
        self.fails, self.under_way, self.most, self.written = fails, 0, 0, list[str]()

    def with_read_only(self, read_only: bool = False) -> BusyStore:
        # The base class of zarr 3.1.4 lacks this method.
        return BusyStore(self._store.with_read_only(read_only), self.fails)

    async def set(self, key: str, value: Any) -> None:
        if "/c/" not in key:
            await super().set(key, value)
            return
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            if key == self.fails:
                raise OSError(28, "no space left", key)
            for _ in range(5):
                await asyncio.sleep(0.001)
            await super().set(key, value)
            self.written.append(key)
        finally:
            self.under_way -= 1


def dataset() -> dtf.Dataset:
    return dtf.Dataset.from_arrays({name: np.arange(ROWS) + number for number, name in enumerate(NAMES)})


def test_chunks_of_a_unit_are_written_at_once() -> None:
    store = BusyStore(zarr.storage.MemoryStore())
    dataset().to_zarr(store, chunks=6)
    assert store.most >= len(NAMES)
    assert sorted(store.written) == sorted(f"{name}/c/{chunk}" for name in NAMES for chunk in range(2))
    found = dtf.from_zarr(store)
    for number, name in enumerate(NAMES):
        np.testing.assert_array_equal(found[name], np.arange(ROWS) + number)


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, len(NAMES) - 1])
def test_an_error_waits_for_the_other_chunks(at: int) -> None:
    store = BusyStore(zarr.storage.MemoryStore(), f"{NAMES[at]}/c/0")
    with pytest.raises(OSError, match="no space left"):
        dataset().to_zarr(store, chunks=6)
    assert not store.under_way
    with pytest.raises(FileNotFoundError):
        dtf.from_zarr(store)
