"""What a conversion changes of the process that it runs in: zarr's settings while it lasts, and freed memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import zarr
import zarr.storage
from support.any_columns import FEATURES, dataset_of, rows_like
from support.few import mostly_slow
from support.store_round_trip import assert_same, files_of
from zarr.abc.codec import ArrayArrayCodec
from zarr.registry import register_codec

import dask_tfrecord as dtf
from dask_tfrecord.rows import memory


def concurrency() -> Any:
    return zarr.config.get("async.concurrency")


@pytest.fixture(autouse=True)
def users() -> Iterator[None]:
    """A setting that a user has made."""
    with zarr.config.set({"async.concurrency": 7}):
        yield


@dataclass(frozen=True)
class Watching(ArrayArrayCodec):
    """Filter that changes nothing, and notes the setting whenever a chunk is encoded."""

    seen: ClassVar[set[int]] = set()
    is_fixed_size = True

    def to_dict(self) -> dict[str, Any]:
        return {"name": "tests.watching", "configuration": {}}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Watching:
        return cls()

    def compute_encoded_size(self, input_byte_length: int, _chunk_spec: Any) -> int:
        return input_byte_length

    async def _encode_single(self, chunk_array: Any, chunk_spec: Any) -> Any:
        self.seen.add(concurrency())
        return chunk_array

    async def _decode_single(self, chunk_array: Any, chunk_spec: Any) -> Any:
        return chunk_array


register_codec("tests.watching", Watching)


@pytest.mark.parametrize("grid", mostly_slow([{}, {"chunks": 10}, {"chunks": 10, "shards": 40}], 3), ids=str)
def test_the_common_codecs_change_no_setting(grid: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"x": np.arange(1000.0), "text": np.array(["a", "é"] * 500, np.dtypes.StringDType())}
    changed: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(type(zarr.config), "set", lambda *values: changed.append(values))
        dtf.to_zarr(columns, store := zarr.storage.MemoryStore(), **grid)
    assert not changed
    assert_same(dtf.from_zarr(store).compute(), columns)


def test_chunks_of_a_shard_are_encoded_one_after_the_other() -> None:
    x = np.arange(1000.0)
    store = zarr.storage.MemoryStore()
    dtf.to_zarr({"x": x}, store, chunks=10, shards=40, filters=[Watching()])
    assert (Watching.seen, concurrency()) == ({1}, 7)
    np.testing.assert_array_equal(dtf.from_zarr(store)["x"].compute(), x)


def test_failed_writes_leave_the_settings_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    write = zarr.storage.MemoryStore.set

    async def full(self: zarr.storage.MemoryStore, key: str, *value: Any) -> None:
        if "/c/" in key:
            raise OSError(28, "No space left on device")
        await write(self, key, *value)

    monkeypatch.setattr(zarr.storage.MemoryStore, "set", full)
    with pytest.raises(OSError, match="No space left"):
        dtf.to_zarr({"x": np.arange(100.0)}, zarr.storage.MemoryStore(), chunks=10, shards=20, filters=[Watching()])
    assert concurrency() == 7


def test_freed_memory_is_returned_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    # The memory of the process depends on the allocator, so the calls are counted.
    times: list[None] = []
    monkeypatch.setattr(memory, "release_memory", lambda: times.append(None))
    monkeypatch.setattr(memory, "_freed_nbytes", 0)
    quarter, given_back = memory.KEPT_NBYTES // 4, []
    for quarters in (1, 1, 1, 1, 2, 1, 1, 5, 1):
        memory.release_freed(quarters * quarter)
        given_back.append(len(times))
    assert given_back == [0, 0, 0, 1, 1, 1, 2, 3, 3]


ZARRS = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}


@pytest.mark.parametrize("grid", mostly_slow([{}, {"chunks": 7}, {"chunks": 4, "shards": 12}], 3), ids=str)
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
