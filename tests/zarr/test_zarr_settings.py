"""What a conversion changes of the process that it runs in: zarr's settings while it lasts, and freed memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zarr.storage
from support.any_columns import FEATURES, dataset_of, rows_like
from support.store_round_trip import assert_same, files_of
from support.waiting import PATIENCE

import dask_tfrecord as dtf
from dask_tfrecord.runtime import workers
from dask_tfrecord.stores.zarr.compat import write_sequentially


def concurrency() -> Any:
    return zarr.config.get("async.concurrency")


@pytest.fixture(autouse=True)
def users() -> Iterator[None]:
    """A setting that a user has made."""
    with zarr.config.set({"async.concurrency": 7}):
        yield


def watch(monkeypatch: pytest.MonkeyPatch, *, full: bool = False) -> set[int]:
    """Note the setting whenever a chunk is written to a store in memory, which may be full."""
    seen: set[int] = set()
    write = zarr.storage.MemoryStore.set

    async def watched(self: zarr.storage.MemoryStore, key: str, value: Any, *more: Any) -> None:
        if "/c/" in key:
            seen.add(concurrency())
            if full:
                raise OSError(28, "No space left on device")
        await write(self, key, value, *more)

    monkeypatch.setattr(zarr.storage.MemoryStore, "set", watched)
    return seen


@pytest.mark.parametrize("shards", [None, 40])
def test_one_chunk_of_a_unit_is_written_after_the_other(monkeypatch: pytest.MonkeyPatch, shards: int | None) -> None:
    x = np.arange(1000.0)
    with monkeypatch.context() as patch:
        seen, store = watch(patch), zarr.storage.MemoryStore()
        dtf.to_zarr({"x": x}, store, chunks=10, shards=shards)
        assert (seen, concurrency()) == ({1}, 7)
    np.testing.assert_array_equal(dtf.from_zarr(store)["x"].compute(), x)
    watch(monkeypatch, full=True)
    with pytest.raises(OSError, match="No space left"):
        dtf.to_zarr({"x": x}, zarr.storage.MemoryStore(), chunks=10, shards=shards)
    assert concurrency() == 7


def test_the_last_task_restores_settings() -> None:
    entered, first_may_leave, second_may_leave = (threading.Event() for _ in range(3))

    def task(entered: threading.Event, may_leave: threading.Event) -> None:
        with write_sequentially():
            entered.set()
            assert may_leave.wait(PATIENCE)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(task, entered, first_may_leave)
        assert entered.wait(PATIENCE)
        with write_sequentially():
            second = threads.submit(task, entered := threading.Event(), second_may_leave)
            assert entered.wait(PATIENCE)
        first_may_leave.set()
        first.result(PATIENCE)
        assert concurrency() == 1
        second_may_leave.set()
        second.result(PATIENCE)
    assert concurrency() == 7


def test_a_setting_changed_by_the_user_is_kept() -> None:
    with write_sequentially():
        zarr.config.set({"async.concurrency": 3})
    assert concurrency() == 3


def test_freed_memory_is_returned_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[None] = []
    monkeypatch.setattr(workers, "release_memory", lambda: times.append(None))
    monkeypatch.setattr(workers, "_freed_nbytes", 0)
    quarter, given_back = workers.KEPT_NBYTES // 4, []
    for quarters in (1, 1, 1, 1, 2, 1, 1, 5, 1):
        workers.release_freed(quarters * quarter)
        given_back.append(len(times))
    assert given_back == [0, 0, 0, 1, 1, 1, 2, 3, 3]


ZARRS = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}


@pytest.mark.parametrize("grid", [{}, {"chunks": 7}, {"chunks": 4, "shards": 12}], ids=str)
def test_a_users_zarrs_reads_the_same_and_leaves_no_zeros_out(tmp_path: Path, grid: dict[str, Any]) -> None:
    pytest.importorskip("zarrs")
    features = {name: FEATURES[name] for name in ("dense", "text", "bytes", "ragged")}
    blocks = {name: rows_like(feature, 20, np.random.default_rng(3)) for name, feature in features.items()}
    features["zeros"] = dtf.RawFeature((), "float64")
    dataset = dataset_of({**blocks, "zeros": np.full(20, -0.0)}, features, [20])
    dataset.to_zarr(tmp_path / "store.zarr", **grid)
    with zarr.config.set(ZARRS):
        found = dtf.from_zarr(tmp_path / "store.zarr").compute()
        dataset.to_zarr(tmp_path / "zarrs.zarr", **grid)
        assert zarr.config.get("codec_pipeline.path") == ZARRS["codec_pipeline.path"]
    assert_same(found, dataset.compute())
    assert_same(dtf.from_zarr(tmp_path / "zarrs.zarr").compute(), found)
    assert files_of(tmp_path / "zarrs.zarr").keys() == files_of(tmp_path / "store.zarr").keys()
