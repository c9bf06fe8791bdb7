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
from dask_tfrecord.errors import CorruptRecordError, IncompleteStoreError

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
def test_s3(shards: Path, tmp_path: Path, conversions: str, s3: dict[str, Any]) -> None:
    ds, where = dtf.read_tfrecord(shards), {"component": "train/first", "storage_options": s3}
    store = f"{conversions}/all.zarr"
    ds.to_zarr(store, **where, chunks=50, shards=200)
    assert_same(dtf.from_zarr(store, **where).compute(), ds.compute())
    with pytest.raises(FileExistsError, match="mode='w' replaces it"):
        ds.to_zarr(store, **where)
    # A conversion that fails is removed, or continued.
    damaged = shutil.copytree(shards, tmp_path / "damaged")
    path = damaged / "part-2.tfrecord"
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    ds = dtf.read_tfrecord(damaged)[["label"]]
    path.rename(tmp_path / "whole")
    path.write_bytes(data)
    fs = fsspec.filesystem("s3", **s3, skip_instance_cache=True)
    failed = f"{conversions}/folder/failed.zarr"
    with pytest.raises(CorruptRecordError):
        ds.to_zarr(failed, storage_options=s3, chunks=50)
    assert fs.find("conversions/folder") == []
    assert fs.exists("conversions")
    with pytest.raises(FileNotFoundError):
        dtf.from_zarr(failed, storage_options=s3)
    with pytest.raises(CorruptRecordError):
        ds.to_zarr(failed, storage_options=s3, chunks=50, resume=True)
    with pytest.raises(IncompleteStoreError, match="resume=True"):
        dtf.from_zarr(failed, storage_options=s3)
    (tmp_path / "whole").replace(path)
    ds.to_zarr(failed, storage_options=s3, chunks=50, resume=True)
    assert_same(dtf.from_zarr(failed, storage_options=s3).compute(), ds.compute())
    assert not [name for name in fs.find("conversions/folder") if ".dask_tfrecord" in name]
