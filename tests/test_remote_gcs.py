"""Google Cloud Storage by gcsfs and an emulator: shards are read and written, stores too, and faults are retried."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace

import dask
import numpy as np
import pytest
from support.object_stores import Store, make_store

import dask_tfrecord as dtf
from dask_tfrecord.errors import ShardChangedError, ShardNotFoundError, StorageError, StoreInUseError
from dask_tfrecord.settings import replaced_limits

pytestmark = pytest.mark.integration

ROWS = 40
COLUMNS = {"x": np.arange(ROWS), "text": [f"row {row}" * (row % 3) for row in range(ROWS)]}
FEATURES = {"x": dtf.FixedLenFeature((), "int64"), "text": dtf.TextFeature()}


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Store with two shards that the library wrote."""
    with ExitStack() as stack, replaced_limits(first_retry_wait=0.001), dask.config.set(scheduler="sync"):
        store = make_store("gcs", request, stack)
        path = f"{store.url}/a-{{shard:05d}}-of-{{shards:05d}}.tfrecord"
        dtf.to_tfrecord(COLUMNS, path, features=FEATURES, records_per_shard=ROWS // 2, storage_options=store.options)
        store.log.clear()
        yield store
        store.log.fault = lambda number: None


def opened(store: Store, name: str = "a@2.tfrecord") -> dtf.Dataset:
    return dtf.read_tfrecord(f"{store.url}/{name}", FEATURES, storage_options=store.options)


def check(ds: dtf.Dataset) -> None:
    assert ds["x"].compute().tolist() == COLUMNS["x"].tolist()
    assert ds["text"].compute().tolist() == COLUMNS["text"]


@pytest.mark.parametrize("name", ["a@2.tfrecord", "a-*.tfrecord", ""])
def test_shards_are_written_and_read(store: Store, name: str) -> None:
    check(opened(store, name))


def test_rows_are_read_as_ranges(store: Store) -> None:
    ds = opened(store)
    store.log.clear()
    assert ds["x"][-1].compute() == ROWS - 1
    assert any(asked.range for asked in store.log.gets)


def test_index_files_are_written_and_used(store: Store) -> None:
    dtf.build_index(f"{store.url}/a@2.tfrecord", storage_options=store.options)
    check(opened(store))


def test_zarr_stores_are_written_and_read(store: Store) -> None:
    target = f"{store.url}/a.zarr"
    opened(store).to_zarr(target, storage_options=store.options)
    check(dtf.from_zarr(target, storage_options=store.options))
    with pytest.raises((FileExistsError, StoreInUseError)):
        opened(store).to_zarr(target, storage_options=store.options)
    opened(store).to_zarr(target, storage_options=store.options, mode="w")
    check(dtf.from_zarr(target, storage_options=store.options))


def test_an_interrupted_conversion_is_resumed(store: Store) -> None:
    target, ds = f"{store.url}/b.zarr", opened(store)
    store.log.fault = lambda number: 403 if "a-00001" in store.log.asked[-1].path else None
    with pytest.raises(Exception, match="a-00001-of-00002"):
        ds.to_zarr(target, storage_options=store.options, chunks=10, resume=True)
    store.log.fault = lambda number: None
    ds.to_zarr(target, storage_options=store.options, chunks=10, resume=True)
    check(dtf.from_zarr(target, storage_options=store.options))


@pytest.mark.parametrize("fault", [503, 429, "drop"])
def test_faults_of_requests_are_retried(store: Store, fault: int | str) -> None:
    store.log.fault = lambda number: fault if number in (0, 4) else None
    check(opened(store))


def test_a_store_that_always_fails_is_a_storage_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = opened(store)
    store.log.fault = lambda number: "drop"
    # gcsfs waits half a minute between its own attempts.
    retry = pytest.importorskip("gcsfs.retry")
    monkeypatch.setattr(retry, "asyncio", SimpleNamespace(sleep=lambda seconds: asyncio.sleep(0)))
    with dask.config.set({"tfrecord.storage.attempts": 1}), pytest.raises(StorageError, match="in 1 attempt"):
        ds["x"].compute()


def test_files_that_are_missing_or_changed_are_named(store: Store) -> None:
    with pytest.raises(ShardNotFoundError, match="missing"):
        opened(store, "missing.tfrecord")
    ds = opened(store)
    store.put("a-00001-of-00002.tfrecord", b"other content")
    with pytest.raises(ShardChangedError, match="a-00001-of-00002"):
        ds["x"].compute()
