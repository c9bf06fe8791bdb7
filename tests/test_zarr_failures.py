"""Failing conversions to Zarr: no store seems complete after a failure, and no other file is removed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import zarr
import zarr.storage
from support.waiting import PATIENCE, in_background

import dask_tfrecord as dtf
from dask_tfrecord.errors import CorruptRecordError, IncompleteStoreError, SchemaError

ROWS = 40


def damage(shards: Path) -> None:
    """Flip a bit in the last record of the last shard, as a disk does without an error."""
    path = shards / "part-3.tfrecord"
    data, known = bytearray(path.read_bytes()), path.stat()
    data[-10] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ----------------------------------------------------------------------------------------------- what is there already


def test_an_existing_group_is_refused_before_a_row_is_read(ds: dtf.Dataset, store: Path, shards: Path) -> None:
    ds.to_zarr(store)
    before = tree(store)
    ds.rows[:3].to_zarr(store.with_name("three"), mode="w")
    damage(shards)
    with pytest.raises(FileExistsError, match=r"store\.zarr exists: mode='w' replaces it"):
        ds.to_zarr(store)
    for compressors in ("no codec", 5, {"label": {"name": "zstdd"}}):
        with pytest.raises(ValueError, match=r"zarr cannot create array 'label' of .* with compressors="):
            ds[["label"]].to_zarr(store, mode="w", compressors=compressors)
    assert tree(store) == before
    dtf.from_zarr(store.with_name("three")).to_zarr(store, mode="w")
    assert dtf.from_zarr(store).nrows == 3


@pytest.mark.parametrize("mode", ["w", "w-"])
def test_paths_that_are_not_groups_are_refused(ds: dtf.Dataset, shards: Path, store: Path, mode: Any) -> None:
    zarr.create_array(store, data=np.full(3, 5))
    before = tree(shards.parent)
    for path in (shards, shards / "part-0.tfrecord", store):
        with pytest.raises(FileExistsError, match="exists and is not a Zarr group: pass another path"):
            ds.to_zarr(path, mode=mode)
    (store / "zarr.json").write_text('{"zarr_format": 3, "node_type')
    with pytest.raises(FileExistsError, match="is not a Zarr group"):
        ds.to_zarr(store, mode=mode)
    (store / "zarr.json").write_bytes(before["store.zarr/zarr.json"])
    with pytest.raises((NotADirectoryError, FileExistsError), match="part-0"):
        ds.to_zarr(shards / "part-0.tfrecord" / "store.zarr", mode=mode)
    assert tree(shards.parent) == before


def test_groups_with_other_files_are_refused(ds: dtf.Dataset, shards: Path) -> None:
    ds.to_zarr(shards, component="converted")  # which makes a group of the directory
    with pytest.raises(
        FileExistsError, match=r"'part-\d.tfrecord', which does not belong to a Zarr group and would be deleted"
    ):
        ds.to_zarr(shards, mode="w")
    assert len(list(shards.glob("*.tfrecord"))) == 4
    ds.rows[:2].to_zarr(shards, component="converted", mode="w")
    assert dtf.from_zarr(shards, component="converted").nrows == 2


@pytest.mark.parametrize("component", [None, "train"])
def test_a_store_is_not_replaced_by_what_is_read_from_it(ds: dtf.Dataset, store: Path, component: str | None) -> None:
    store.mkdir()  # an empty directory is accepted
    ds.to_zarr(store, component=component)
    before = tree(store)
    back = dtf.from_zarr(store, component=component)
    store.with_name("link").symlink_to(store)
    for dataset in (back, back.rows[:3], back.map_blocks(dict), back.assign(x=np.arange(ROWS))):
        for path in (store, store.with_name("link"), store / ".." / store.name):
            with pytest.raises(ValueError, match=r"cannot replace .*: the rows are read from it"):
                dataset.to_zarr(path, mode="w")
    assert tree(store) == before


def test_a_store_in_memory_is_replaced_completely(ds: dtf.Dataset) -> None:
    memory = zarr.storage.MemoryStore()
    zarr.open_group(memory, path="a").create_array("other", shape=3, dtype="i4")
    with pytest.raises(FileExistsError, match="exists: mode='w' replaces it"):
        ds.to_zarr(memory, component="a")
    ds.to_zarr(memory, component="a", mode="w")
    assert "other" not in zarr.open_group(memory, mode="r", path="a")


# ------------------------------------------------------------------------------------------------------------- delayed


def test_a_delayed_store_is_incomplete_until_it_is_computed(ds: dtf.Dataset, store: Path, shards: Path) -> None:
    written, failing = ds.to_zarr(store, compute=False), ds.to_zarr(store.with_name("f.zarr"), compute=False)
    for path in (store, store.with_name("f.zarr")):
        with pytest.raises(IncompleteStoreError, match="never finished"):
            dtf.from_zarr(path)
    assert written is not None and written.compute() is None
    assert dtf.from_zarr(store).nrows == ROWS
    written.compute()
    assert dtf.from_zarr(store)["label"].sum().compute() == sum(range(ROWS))
    damage(shards)
    with pytest.raises(CorruptRecordError, match=r"part-3\.tfrecord"):
        failing.compute()  # type: ignore[union-attr]
    with pytest.raises(IncompleteStoreError, match="never finished"):
        dtf.from_zarr(store.with_name("f.zarr"))


def test_a_delayed_store_does_not_write_into_another(ds: dtf.Dataset, store: Path) -> None:
    written = ds.to_zarr(store, chunks=7, compute=False)
    ds.rows[:20].to_zarr(store, chunks=3, mode="w")
    before = tree(store)
    with pytest.raises(IncompleteStoreError, match="another conversion has replaced this group"):
        written.compute()  # type: ignore[union-attr]
    assert tree(store) == before


# ----------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("scheduler", ["sync", "threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_damaged_record_leaves_no_store_behind(ds: dtf.Dataset, store: Path, shards: Path, scheduler: str) -> None:
    damage(shards)
    with dask.config.set(scheduler=scheduler, num_workers=2):
        for columns in (["label"], ["tokens", "label"]):  # found when it is written, found when it is counted
            with pytest.raises(CorruptRecordError, match=r"part-3\.tfrecord: record 9"):
                ds[columns].to_zarr(store, chunks=3)
            assert not store.exists()
    assert {path.name for path in shards.parent.iterdir()} == {"shards"}


@pytest.mark.parametrize("template", [None, {"label": dtf.FixedLenFeature((), "int64")}])
def test_a_function_that_raises_leaves_no_store_behind(ds: dtf.Dataset, store: Path, template: Any) -> None:
    def fail_late(blocks: dict[str, Any]) -> dict[str, Any]:
        if (blocks["label"] == ROWS - 1).any():
            raise RuntimeError("row 39 is no good")
        return blocks

    mapped = ds.map_blocks(fail_late, template)
    for written in (mapped, mapped[["label"]]):
        with pytest.raises(RuntimeError, match="row 39 is no good"):
            written.to_zarr(store, chunks=3)
        assert not store.exists()


def test_a_function_with_varying_results_is_reported(ds: dtf.Dataset, store: Path) -> None:
    calls = iter(range(100))

    def moody(blocks: dict[str, Any]) -> dict[str, Any]:
        rows = len(blocks["label"])
        more = next(calls)
        return {"x": dtf.RaggedBlock(np.zeros(rows * more, "i8"), more * np.arange(rows + 1))}

    with pytest.raises(SchemaError, match="'x' differs from the earlier count"):
        ds.map_blocks(moody, {"x": dtf.VarLenFeature("int64")}).to_zarr(store, chunks=50)
    assert not store.exists()


def test_only_new_directories_are_removed(ds: dtf.Dataset, tmp_path: Path, shards: Path) -> None:
    ds.to_zarr(tmp_path / "old" / "store.zarr", component="train")
    before = tree(tmp_path)
    damage(shards)
    for path, component in (
        ("new/folder/store.zarr", "a/b"),
        ("new/store.zarr", None),
        ("old/store.zarr", "val/a"),
        # An absolute component stays within the store.
        ("new/store.zarr", str(tmp_path / "old")),
    ):
        with pytest.raises(CorruptRecordError):
            ds[["label"]].to_zarr(tmp_path / path, component=component)
    assert {path.name for path in tmp_path.iterdir()} == {"shards", "old"}
    assert {name for name, data in tree(tmp_path).items() if before[name] != data} == {"shards/part-3.tfrecord"}
    with pytest.raises(CorruptRecordError):
        ds[["label"]].to_zarr(tmp_path / "old" / "store.zarr", component="train", mode="w")
    assert [*tree(tmp_path / "old")] == ["store.zarr/zarr.json"]


@pytest.mark.parametrize("make", [zarr.storage.MemoryStore, lambda: "memory://failing/failing.zarr"])
def test_a_store_that_cannot_be_removed_stays_marked_incomplete(
    ds: dtf.Dataset, shards: Path, make: Callable[[], Any]
) -> None:
    memory = make()
    damage(shards)
    with pytest.raises(CorruptRecordError):
        ds[["label"]].to_zarr(memory, chunks=3)
    with pytest.raises((IncompleteStoreError, FileNotFoundError)):
        dtf.from_zarr(memory)
    ds.rows[:30].to_zarr(memory, mode="w")
    assert dtf.from_zarr(memory).nrows == 30


@pytest.mark.slow
def test_memory_that_other_processes_do_not_share(ds: dtf.Dataset) -> None:
    memory = zarr.storage.MemoryStore()
    with (
        dask.config.set(scheduler="processes", num_workers=2),
        pytest.raises(IncompleteStoreError, match="the store is in the memory of this one: pass a path or a URL"),
    ):
        ds.to_zarr(memory)
    with pytest.raises(IncompleteStoreError):
        dtf.from_zarr(memory)


# --------------------------------------------------------------------------------------------------- late writers


class SlowDisk:
    """Disk on which chunks take long: each one ends some time after the event that a test waits for."""

    def __init__(self) -> None:
        self.writing, self.happened = threading.Event(), threading.Event()
        self.left = 0

    def write(self) -> None:
        self.writing.set()
        self.happened.wait(PATIENCE)
        time.sleep(0.1)


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    from zarr.storage import _local

    put, disk = _local._put, SlowDisk()

    def slow(path: Path, value: Any, exclusive: bool = False) -> int:
        if path.name == "zarr.json":
            return put(path, value, exclusive)
        disk.left += 1
        try:
            disk.write()
            return put(path, value, exclusive)
        finally:
            disk.left -= 1

    monkeypatch.setattr(_local, "_put", slow)
    return disk


def test_a_failure_waits_for_threads_that_write(ds: dtf.Dataset, store: Path, slow_disk: SlowDisk) -> None:
    # The block that fails may be the last one, so the others are not held.
    slow_disk.happened.set()

    def fail(blocks: dict[str, Any]) -> dict[str, Any]:
        if blocks["label"][0] == 0:
            assert slow_disk.writing.wait(PATIENCE)
            raise RuntimeError("while another one writes")
        return blocks

    with dask.config.set(scheduler="threads", num_workers=3), pytest.raises(RuntimeError, match="while another"):
        ds[["label"]].map_blocks(fail, {"label": ds.schema["label"]}).to_zarr(store, chunks=10)
    assert not slow_disk.left and not store.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="one thread can't be sent a signal there")
@pytest.mark.parametrize("name", [pytest.param("sync", marks=pytest.mark.slow), "threads"])
def test_an_interrupted_conversion_can_be_resumed(ds: dtf.Dataset, store: Path, slow_disk: SlowDisk, name: str) -> None:
    def interrupt() -> None:
        assert slow_disk.writing.wait(PATIENCE)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        slow_disk.happened.set()

    config = dask.config.set(scheduler=name, num_workers=2)
    with in_background(interrupt), config, pytest.raises(KeyboardInterrupt) as caught:
        ds[["label", "tokens"]].to_zarr(store, chunks=10)
    assert caught.value.__notes__ == ["written units are kept: the same call with resume=True continues it"]
    assert not slow_disk.left
    with pytest.raises(IncompleteStoreError, match="resume=True"):
        dtf.from_zarr(store)
    ds[["label", "tokens"]].to_zarr(store, chunks=10, resume=True)
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))


# ------------------------------------------------------------------------------------------------------ full disks

NOISE = np.random.default_rng(0).integers(0, 256, (4000, 1000), "u1")
LIMITED = """
import sys, resource, signal
import numpy as np
import dask_tfrecord as dtf
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    dtf.to_zarr({"x": np.random.default_rng(0).random(400_000)}, sys.argv[1], chunks=100_000)
except OSError as error:
    print(error, end="")
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk, and not everywhere")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "chunks"), [("sync", 3999), ("threads", 100), pytest.param("processes", 1000, marks=pytest.mark.slow)]
)
def test_a_disk_that_fills_up(small_disk: Path, name: str, chunks: int) -> None:
    store = small_disk / "store.zarr"
    with (
        dask.config.set(scheduler=name, num_workers=2),
        pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as caught,
    ):
        dtf.to_zarr({"noise": NOISE}, store, chunks=chunks)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(store))
    assert not list(small_disk.iterdir())


@pytest.mark.integration
@pytest.mark.slow
def test_a_file_that_gets_too_large(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    command = [sys.executable, "-W", "error", "-c", LIMITED, str(tmp_path / "store.zarr")]
    # Started where the package is: elsewhere it might take the sources, which have no extension.
    done = subprocess.run(command, cwd=Path(dtf.__file__).parents[1], capture_output=True, text=True)
    assert done.stdout == f"[Errno {errno.EFBIG}] {os.strerror(errno.EFBIG)}: '{tmp_path}/store.zarr'", done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.integration
def test_a_full_disk_before_the_group_exists(small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "ballast").write_bytes(bytes(2 << 20))
    with pytest.raises(OSError, match="No space left"):
        dtf.to_zarr({"x": np.arange(3)}, small_disk / "store.zarr")
    with pytest.raises(FileNotFoundError):
        dtf.from_zarr(small_disk / "store.zarr")
