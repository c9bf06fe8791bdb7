"""Comparison of columns bit by bit, the round trip of a data set through a Zarr store, and a count of its reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray
from zarr.storage import WrapperStore

import dask_tfrecord as dtf
from support.bits import bits


def assert_same(found: Mapping[str, NDArray[Any]], wanted: Mapping[str, NDArray[Any]]) -> None:
    """Assert equal names, shapes, dtypes and bits of columns."""
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert bits(found[name]) == bits(array), name


def assert_same_array(found: NDArray[Any], wanted: NDArray[Any]) -> None:
    """Assert equal shape, dtype and bits of two arrays, nested arrays included."""
    assert bits(found) == bits(wanted)


def assert_identity(dataset: dtf.Dataset, store: Any, **options: Any) -> dtf.Dataset:
    """Write a data set to Zarr, read it back and compare; return the data set of the store."""
    dataset.to_zarr(store, **options)
    back = dtf.from_zarr(store, component=options.get("component"))
    assert back.schema == dataset.schema
    assert back.schema.sampling == dataset.schema.sampling
    assert (back.nrows, list(back)) == (dataset.nrows, list(dataset))
    assert_same(back.compute(), dataset.compute())
    return back


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the contents of every file below a folder, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def files_of(store: Path) -> dict[str, bytes]:
    """Return every file of a store but the metadata of its group, which hold the identity of the conversion."""
    return {name: data for name, data in files_in(store).items() if name != "zarr.json"}


class CountingStore(WrapperStore[Any]):
    """Store that counts how often each key is read."""

    # The fused codec pipeline of zarr calls the synchronous methods of the wrapped store otherwise.
    _supports_sync_io = False
    # Of all copies: zarr opens a store read-only as another object.
    reads: ClassVar[Counter[str]] = Counter()

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        self.reads[key] += 1
        return await self._store.get(key, prototype, byte_range)

    def with_read_only(self, read_only: bool = False) -> CountingStore:
        # The base class of zarr 3.1.4 lacks this method.
        return CountingStore(self._store.with_read_only(read_only))
