"""Zarr stores written by the processes of a cluster, and stores that are not on this machine."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import dask
import fsspec
import pytest
from distributed import Client
from support.numbered_shards import write_shards
from support.store_round_trip import assert_same, files_of

import dask_tfrecord as dtf
from dask_tfrecord.errors import CorruptRecordError, IncompleteStoreError, ResumeError

# Of each of the two workers.
THREADS = 2
ROWS = 600


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    write_shards(folder, 3, ROWS // 3, most_tokens=200)
    return folder


@pytest.mark.integration
def test_a_cluster_writes_the_same_store(shards: Path, tmp_path: Path, client: Client) -> None:
    ds = dtf.read_tfrecord(shards)
    for number, dataset in enumerate((ds, ds.persist(), ds.assign(double=ds["label"] * 2))):
        with dask.config.set(scheduler="threads"):
            dataset.to_zarr(tmp_path / f"{number}-threads.zarr", chunks=70) if number != 1 else None
        dataset.to_zarr(tmp_path / f"{number}.zarr", chunks=70)
    assert files_of(tmp_path / "0.zarr") == files_of(tmp_path / "1.zarr") == files_of(tmp_path / "0-threads.zarr")
    assert files_of(tmp_path / "2.zarr") == files_of(tmp_path / "2-threads.zarr")
    back = dtf.from_zarr(tmp_path / "2.zarr")
    assert back["double"].sum().compute() == 2 * sum(range(ROWS))


def fails_late(blocks: dict[str, Any]) -> dict[str, Any]:
    if (blocks["label"] % 120 == 5).any():
        raise RuntimeError("this row is no good")
    return blocks


def slow_down(seconds: float) -> None:
    """Let chunks take a while to be written in this process."""
    from zarr.storage import _local

    put: Any = getattr(_local._put, "whole", _local._put)

    def slow(path: Path, value: Any, exclusive: bool = False) -> int:
        time.sleep(seconds)
        written: int = put(path, value, exclusive)
        return written

    slow.whole = put  # type: ignore[attr-defined]
    _local._put = slow


@pytest.mark.slow
@pytest.mark.integration
def test_a_cluster_that_fails_leaves_no_store_behind(shards: Path, tmp_path: Path, client: Client) -> None:
    ds = dtf.read_tfrecord(shards, {"label": dtf.FixedLenFeature((), "int64")})
    client.run(slow_down, 0.4)
    try:
        with pytest.raises(RuntimeError, match="this row is no good"):
            ds.map_blocks(fails_late, {"label": ds.schema["label"]}).to_zarr(tmp_path / "store.zarr", chunks=30)
        assert not list(tmp_path.iterdir())
        time.sleep(0.5)
        assert not list(tmp_path.iterdir())
    finally:
        client.run(slow_down, 0)


# ---------------------------------------------------------------------------------------------------------------- S3


@pytest.fixture(scope="module")
def conversions(s3: dict[str, Any]) -> str:
    """URL of a bucket."""
    fsspec.filesystem("s3", **s3).mkdir("conversions")
    return "s3://conversions"


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("component", [None, "train/first"])
def test_s3(shards: Path, tmp_path: Path, conversions: str, s3: dict[str, Any], component: str | None) -> None:
    ds, where = dtf.read_tfrecord(shards), {"component": component, "storage_options": s3}
    store = f"{conversions}/{component}.zarr"
    ds.to_zarr(store, **where, chunks=50, shards=200)
    assert_same(dtf.from_zarr(store, **where).compute(), ds.compute())
    with pytest.raises(FileExistsError, match="mode='w' replaces it"):
        ds.to_zarr(store, **where)
    # A conversion that fails is removed.
    damaged = shutil.copytree(shards, tmp_path / "damaged")
    data = bytearray((damaged / "part-2.tfrecord").read_bytes())
    data[-30] ^= 1
    ds = dtf.read_tfrecord(damaged)
    (damaged / "part-2.tfrecord").write_bytes(data)
    with pytest.raises(CorruptRecordError):
        ds[["label"]].to_zarr(f"{conversions}/folder/failed.zarr", storage_options=s3, chunks=50)
    fs = fsspec.filesystem("s3", **s3, skip_instance_cache=True)
    assert fs.find("conversions/folder") == []
    assert fs.exists("conversions")
    with pytest.raises(FileNotFoundError):
        dtf.from_zarr(f"{conversions}/folder/failed.zarr", storage_options=s3)


class Flaky:
    """A function that fails at its n-th call wherever that is, and is the same function before and after."""

    def __init__(self, folder: Path, calls: int) -> None:
        self.folder, self.calls = folder, calls

    def __dask_tokenize__(self) -> str:
        return "Flaky"

    def __call__(self, blocks: dict[str, Any]) -> dict[str, Any]:
        number = len(list(self.folder.iterdir()))
        (self.folder / f"{number}").touch()
        if number == self.calls:
            raise RuntimeError(f"call {number}")
        return blocks


@pytest.mark.integration
@pytest.mark.slow
def test_a_conversion_to_s3_is_resumed(shards: Path, tmp_path: Path, conversions: str, s3: dict[str, Any]) -> None:
    (tmp_path / "calls").mkdir()
    store, ds, grid = f"{conversions}/resumed.zarr", dtf.read_tfrecord(shards), {"chunks": 10, "shards": 40}
    ds.to_zarr(tmp_path / "reference.zarr", **grid)
    fs = fsspec.filesystem("s3", **s3, skip_instance_cache=True)

    def convert(calls: int) -> None:
        flaky = ds.map_blocks(Flaky(tmp_path / "calls", calls), dict(ds.schema))
        flaky.to_zarr(store, resume=True, storage_options=s3, **grid)

    def objects() -> dict[str, Any]:
        fs.invalidate_cache()
        found = fs.find(store.removeprefix("s3://"), detail=True)
        return {path: (each["size"], each["LastModified"]) for path, each in found.items() if "/c/" in path}

    with dask.config.set(scheduler="sync"):
        for calls in (20, 28):
            with pytest.raises(RuntimeError, match=f"call {calls}"):
                convert(calls)
            with pytest.raises(IncompleteStoreError, match="resume=True"):
                dtf.from_zarr(store, storage_options=s3)
        with pytest.raises(ResumeError, match="chunks was"):
            ds.to_zarr(store, resume=True, storage_options=s3, chunks=77)
        # One that is gone, one that is cut: as after a disk that lost what it had.
        written = sorted(objects())
        assert len(written) > 8
        fs.rm(written[0])
        fs.pipe(written[1], fs.cat(written[1])[:-1])
        convert(10**6)
        before = objects()
        convert(0)
    assert objects() == before
    assert not [path for path in fs.find(store.removeprefix("s3://")) if ".dask_tfrecord" in path]
    assert_same(
        dtf.from_zarr(store, storage_options=s3).compute(), dtf.from_zarr(tmp_path / "reference.zarr").compute()
    )
