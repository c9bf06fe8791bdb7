"""Failing conversions to Zarr: no store seems complete, no other file is removed, and `resume` completes what began."""

from __future__ import annotations

import errno
import json
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
import oracle
import pytest
import zarr
import zarr.storage
from support.disk_writes import put_each
from support.few import mostly_slow
from support.numbered_shards import example
from support.store_round_trip import files_in, files_of
from support.tasks import tasks_of
from support.waiting import PATIENCE, in_background

import dask_tfrecord as dtf
from dask_tfrecord.errors import CorruptRecordError, IncompleteStoreError, ResumeError, SchemaError, ShardChangedError
from dask_tfrecord.shards.objects import DirectoryObjects

ROWS = 120
LABEL = {"label": dtf.FixedLenFeature((), "int64")}


def damage(shards: Path) -> None:
    """Flip a bit in the last record of the last shard, as a disk does without an error."""
    path = shards / "part-3.tfrecord"
    data, known = bytearray(path.read_bytes()), path.stat()
    data[-10] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))


# ----------------------------------------------------------------------------------------------- what is there already


def test_an_existing_group_is_refused_before_a_row_is_read(ds: dtf.Dataset, store: Path, shards: Path) -> None:
    ds.to_zarr(store)
    before = files_in(store)
    ds.rows[:3].to_zarr(store.with_name("three"), mode="w")
    with pytest.raises(ValueError, match="rows must be counted before they are written"):
        dtf.read_tfrecord(shards, counts=None).to_zarr(store, mode="w")
    damage(shards)
    with pytest.raises(FileExistsError, match=r"store\.zarr exists: mode='w' replaces it"):
        ds.to_zarr(store)
    for compressors in ("no codec", 5, {"label": {"name": "zstdd"}}):
        with pytest.raises(ValueError, match=r"compressors must be 'auto'|zarr cannot create array 'label' of"):
            ds[["label"]].to_zarr(store, mode="w", compressors=compressors)
    assert files_in(store) == before
    dtf.from_zarr(store.with_name("three")).to_zarr(store, mode="w")
    assert dtf.from_zarr(store).nrows == 3


@pytest.mark.filterwarnings("ignore:to_zarr does not write .tfrecord files")
@pytest.mark.parametrize("mode", ["w", "w-"])
def test_paths_that_are_not_groups_are_refused(ds: dtf.Dataset, shards: Path, store: Path, mode: Any) -> None:
    zarr.create_array(store, data=np.full(3, 5))
    before = files_in(shards.parent)
    for path in (shards, shards / "part-0.tfrecord", store):
        with pytest.raises(FileExistsError, match="exists and is not a Zarr group: write to another path"):
            ds.to_zarr(path, mode=mode)
    (store / "zarr.json").write_text('{"zarr_format": 3, "node_type')
    with pytest.raises(FileExistsError, match="is not a Zarr group"):
        ds.to_zarr(store, mode=mode)
    (store / "zarr.json").write_bytes(before["store.zarr/zarr.json"])
    with pytest.raises((NotADirectoryError, FileExistsError), match="part-0"):
        ds.to_zarr(shards / "part-0.tfrecord" / "store.zarr", mode=mode)
    assert files_in(shards.parent) == before


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
    before = files_in(store)
    back = dtf.from_zarr(store, component=component)
    store.with_name("link").symlink_to(store)
    for dataset in (back, back.rows[:3], back.map_blocks(dict), back.assign(x=np.arange(ROWS))):
        for path in (store, store.with_name("link"), store / ".." / store.name):
            with pytest.raises(ValueError, match=r"cannot replace .*: the rows are read from it"):
                dataset.to_zarr(path, mode="w")
    assert files_in(store) == before


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


# ----------------------------------------------------------------------------------------------------------- failures


def fail_late(blocks: dict[str, Any]) -> dict[str, Any]:
    if (blocks["label"] == ROWS - 1).any():
        raise RuntimeError("the last row is no good")
    return blocks


@pytest.mark.parametrize("scheduler", ["sync", "threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_failure_leaves_no_store_behind(ds: dtf.Dataset, store: Path, shards: Path, scheduler: str) -> None:
    mapped = [ds.map_blocks(fail_late), ds.map_blocks(fail_late)[["label"]], ds[["label"]].map_blocks(fail_late, LABEL)]
    with dask.config.set(scheduler=scheduler, num_workers=2):
        for dataset in mapped:
            with pytest.raises(RuntimeError, match="the last row is no good"):
                dataset.to_zarr(store, chunks=50)
            assert not store.exists()
        damage(shards)
        for columns in (["label"], ["tokens", "label"]):  # found when it is written, found when it is counted
            with pytest.raises(CorruptRecordError, match=r"part-3\.tfrecord: record 29"):
                ds[columns].to_zarr(store, chunks=50)
            assert not store.exists()
    assert {path.name for path in shards.parent.iterdir()} == {"shards"}


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
    before = files_in(tmp_path)
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
    assert {name for name, data in files_in(tmp_path).items() if before[name] != data} == {"shards/part-3.tfrecord"}
    with pytest.raises(CorruptRecordError):
        ds[["label"]].to_zarr(tmp_path / "old" / "store.zarr", component="train", mode="w")
    # The old group is whole.
    assert {f"old/{name}": data for name, data in files_in(tmp_path / "old").items()} == {
        name: data for name, data in before.items() if name.startswith("old/")
    }


@pytest.mark.slow
def test_memory_that_other_processes_do_not_share(ds: dtf.Dataset) -> None:
    memory = zarr.storage.MemoryStore()
    with (
        dask.config.set(scheduler="processes", num_workers=2),
        pytest.raises(IncompleteStoreError, match="the store is in the memory of this one: pass a path or a URL"),
    ):
        ds.to_zarr(memory)
    # Metadata come last.
    with pytest.raises(FileNotFoundError):
        dtf.from_zarr(memory)


# --------------------------------------------------------------------------------------------------- late writers


class Disk:
    """Disk of a test: chunks end some time after an event, or do not fit after some number of them."""

    def __init__(self, put: Callable[..., None]) -> None:
        self._put = put
        self.is_slow, self.left, self.under_way = False, 10**9, 0
        self.writing, self.happened = threading.Event(), threading.Event()

    def put(self, objects: DirectoryObjects, name: str, value: Any) -> None:
        if "/c/" not in name:
            self._put(objects, name, value)
            return
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.under_way += 1
        try:
            self.writing.set()
            if self.is_slow:
                self.happened.wait(PATIENCE)
                time.sleep(0.1)
            self._put(objects, name, value)
        finally:
            self.under_way -= 1


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    # A disk that is slow or full for some files only, which the system offers to root alone.
    disk = Disk(DirectoryObjects.put)
    monkeypatch.setattr(DirectoryObjects, "put", lambda *arguments: disk.put(*arguments))
    monkeypatch.setattr(DirectoryObjects, "put_all", put_each)
    return disk


def test_a_failure_waits_for_threads_that_write(ds: dtf.Dataset, store: Path, disk: Disk) -> None:
    disk.is_slow = True
    # The block that fails may be the last one, so the others are not held.
    disk.happened.set()

    def fail(blocks: dict[str, Any]) -> dict[str, Any]:
        if blocks["label"][0] == 0:
            assert disk.writing.wait(PATIENCE)
            raise RuntimeError("while another one writes")
        return blocks

    with dask.config.set(scheduler="threads", num_workers=3), pytest.raises(RuntimeError, match="while another"):
        ds[["label"]].map_blocks(fail, LABEL).to_zarr(store, chunks=30)
    assert not disk.under_way and not store.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="one thread can't be sent a signal there")
def test_an_interrupted_conversion_can_be_resumed(ds: dtf.Dataset, store: Path, disk: Disk) -> None:
    disk.is_slow = True

    def interrupt() -> None:
        assert disk.writing.wait(PATIENCE)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        disk.happened.set()

    config = dask.config.set(scheduler="threads", num_workers=2)
    with in_background(interrupt), config, pytest.raises(KeyboardInterrupt) as caught:
        ds[["label", "tokens"]].to_zarr(store, chunks=30)
    # The first unit was being written; the other task may have completed one meanwhile.
    check_note(caught.value, store)
    assert not disk.under_way
    with pytest.raises(IncompleteStoreError, match="resume=True"):
        dtf.from_zarr(store)
    ds[["label", "tokens"]].to_zarr(store, chunks=30, resume=True)
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))


# ------------------------------------------------------------------------------------------------------ full disks

NOISE = np.random.default_rng(0).integers(0, 256, (4000, 1000), "u1")


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
@pytest.mark.parametrize(("name", "chunks"), [("sync", 3999), ("threads", 100)])
def test_a_disk_that_fills_up(small_disk: Path, name: str, chunks: int) -> None:
    store = small_disk / "store.zarr"
    with (
        dask.config.set(scheduler=name, num_workers=2),
        pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as caught,
    ):
        dtf.to_zarr({"noise": NOISE}, store, chunks=chunks)
    assert caught.value.errno == errno.ENOSPC
    # The store, or the file in it that was being written.
    assert Path(caught.value.filename).is_relative_to(store)
    assert not list(small_disk.iterdir())
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "ballast").write_bytes(bytes(2 << 20))
    with pytest.raises(OSError, match="No space left"):
        dtf.to_zarr({"x": np.arange(3)}, store)
    with pytest.raises(FileNotFoundError):
        dtf.from_zarr(store)


# ------------------------------------------------------------------------------------------------------- going on

GRIDS: list[dict[str, Any]] = [
    {"chunks": 7},
    {"chunks": 4, "shards": 16},
    {"chunks": {"tokens.values": 50, "label": 30}},
]


def arrays(store: Any, **where: Any) -> dict[str, Any]:
    """Read what zarr itself finds."""
    return {name: array[:] for name, array in zarr.open_group(store, mode="r", **where).arrays()}


def marked_by(mark: Path) -> list[str]:
    return [name for unit in json.loads(mark.read_text()).values() for name in unit["objects"]]


def times(store: Path) -> dict[str, int]:
    files = (path for path in store.rglob("*") if path.is_file() and "c" in path.relative_to(store).parts)
    return {str(path.relative_to(store)): path.stat().st_mtime_ns for path in files}


def check_note(error: BaseException, store: Path) -> None:
    """Check that an error states whether units are kept."""
    none = "no unit is complete yet, and the plan is kept: the same call with resume=True begins with it"
    some = "written units are kept: the same call with resume=True continues it"
    assert error.__notes__ == [some if any(store.rglob("units/*")) else none]


def cut_short(ds: dtf.Dataset, store: Path, disk: Disk, after: int, **options: Any) -> None:
    """Convert until the disk is full, then free space."""
    disk.left = after
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as caught:
        ds.to_zarr(store, resume=True, **options)
    check_note(caught.value, store)
    disk.left = 10**9
    with pytest.raises(IncompleteStoreError, match="never finished"):
        dtf.from_zarr(store)


@pytest.mark.parametrize("resume", mostly_slow(["to_zarr", "plan", "delayed"], 3))
def test_only_what_is_missing_is_written_and_nothing_is_counted_again(
    ds: dtf.Dataset, store: Path, disk: Disk, resume: str
) -> None:
    with dask.config.set(scheduler="sync"):
        cut_short(ds, store, disk, 20, chunks=7)
        before, plan = times(store), ds.plan_zarr(chunks=7)
        assert len(before) == 20
        marked = {name for path in store.rglob("units/*.json") for name in marked_by(path)}
        # So a process that is killed leaves a file that it was writing.
        torn = store / "label" / "c" / f"3.{'0' * 32}.partial"
        torn.write_bytes(b"half")
        with tasks_of("tfrecord-count-items") as counted:
            if resume == "delayed":
                written = ds.to_zarr(store, resume=True, chunks=7, compute=False)
                with pytest.raises(IncompleteStoreError, match="never finished"):
                    dtf.from_zarr(store)
                written.compute()
            elif resume == "plan":
                plan.to_zarr(store, resume=True)
            else:
                ds.to_zarr(store, resume=True, chunks=7)
    assert not counted
    after = times(store)
    assert {name for name, written in before.items() if after[name] == written} == marked
    assert 0 < len(marked) < len(after)
    assert not torn.exists()
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))


@pytest.mark.parametrize(
    ("harm", "grid"),
    [
        ("cut", GRIDS[0]),
        ("mark gone", GRIDS[0]),
        *(pytest.param(harm, GRIDS[0], marks=pytest.mark.slow) for harm in ("gone", "empty", "mark cut")),
        ("cut", GRIDS[1]),
        ("none", GRIDS[2]),
    ],
)
def test_a_full_disk_and_damaged_units(
    ds: dtf.Dataset, store: Path, tmp_path: Path, disk: Disk, harm: str, grid: dict[str, Any]
) -> None:
    ds.to_zarr(tmp_path / "whole.zarr", **grid)
    with dask.config.set(scheduler="threads", num_workers=3):
        # Threads may be in the middle of all tasks that have begun: none has recorded its units then.
        for after in (0, 20) if harm == "none" else (0, *range(20, 60, 5)):
            cut_short(ds, store, disk, after, **grid)
            assert (store / ".dask_tfrecord").is_dir()
            if marks := [*store.rglob("units/*.json")]:
                break
        if harm != "none":
            mark = min(marks)
            torn = mark if "mark" in harm else store / marked_by(mark)[0]
            if harm.endswith("cut"):
                torn.write_bytes(torn.read_bytes()[:-3])
            elif harm == "empty":
                torn.write_bytes(b"")
            else:
                torn.unlink()
        # zarr reads the last object of an array, which is not full, before it writes it.
        last = max((tmp_path / "whole.zarr" / "label" / "c").iterdir(), key=lambda path: int(path.name))
        last = store / "label" / "c" / last.name
        last.parent.mkdir(parents=True, exist_ok=True)
        last.write_bytes(b"torn")
        ds.to_zarr(store, resume=True, **grid)
    assert files_of(store) == files_of(tmp_path / "whole.zarr")
    assert sorted(path.name for path in store.iterdir()) == sorted(["zarr.json", *arrays(store)])


def test_a_complete_group_is_not_changed(ds: dtf.Dataset, store: Path) -> None:
    ds.to_zarr(store, resume=True)
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    ds.to_zarr(store, resume=True)
    ds.plan_zarr().to_zarr(store, resume=True)
    delayed = ds.to_zarr(store, resume=True, compute=False)
    assert delayed.compute() is None
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before


def test_units_lost_during_the_conversion_are_reported(ds: dtf.Dataset, store: Path) -> None:
    def spoil(blocks: dict[str, Any]) -> dict[str, Any]:
        written = sorted(store.glob("label/c/*"))
        if written and not (store.parent / "spoiled").exists():
            (store.parent / "spoiled").touch()
            written[0].unlink()
        return blocks

    spoiled = ds[["label"]].map_blocks(spoil, LABEL)
    with dask.config.set(scheduler="sync"):
        with pytest.raises(IncompleteStoreError, match=r"\d of 18 write units differ from what was written"):
            spoiled.to_zarr(store, chunks=7, resume=True)
        spoiled.to_zarr(store, chunks=7, resume=True)
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))


def test_a_store_that_loses_units_is_reported(ds: dtf.Dataset, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = DirectoryObjects.put

    def lose(self: DirectoryObjects, name: str, value: Any) -> None:
        if "/c/" not in name:
            write(self, name, value)

    # Disks don't lose files without an error, so the test has to.
    monkeypatch.setattr(DirectoryObjects, "put", lose)
    monkeypatch.setattr(DirectoryObjects, "put_all", put_each)
    with (
        dask.config.set(scheduler="sync"),
        pytest.raises(IncompleteStoreError, match="18 of 18 write units differ from what was written"),
    ):
        ds[["label"]].to_zarr(store, chunks=7)
    assert not store.exists()


# ------------------------------------------------------------------------------------------------------- refusals


def test_an_interrupted_conversion_is_not_overwritten_by_default(ds: dtf.Dataset, store: Path, disk: Disk) -> None:
    cut_short(ds, store, disk, 5, chunks=7)
    with pytest.raises(FileExistsError, match="resume=True continues it, mode='w' replaces it"):
        ds.to_zarr(store, chunks=7)
    ds.to_zarr(store, chunks=9, mode="w")
    assert dtf.from_zarr(store).chunks[0] == 9
    zarr.open_group(store, mode="w").create_array("x", shape=(3,), dtype="i4")
    with pytest.raises(FileExistsError, match="exists"):
        ds.to_zarr(store, resume=True)


OTHERS: dict[str, tuple[Callable[[dtf.Dataset], dtf.Dataset], str]] = {
    "columns": (lambda ds: ds[["label", "name"]], "feature 'tokens' was removed"),
    "dtype": (
        lambda ds: dtf.read_tfrecord(ds.origin["files"], {**ds.schema, "label": dtf.FixedLenFeature((), "int32")}),
        r"feature 'label' was FixedLenFeature\(.*int64\) and now is .*int32\)",
    ),
    "rows": (lambda ds: ds.rows[:-1], "the number of records was 120 and now is 119"),
    "order": (lambda ds: ds.rows[::-1], r"different rows are read, or in a different way: rows\[…\]"),
    "function": (lambda ds: ds.map_blocks(dict), "0 functions were passed to map_blocks and now are 1"),
    "kept": (lambda ds: ds.persist(), "different rows"),
}
OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"chunks": 8}, "chunks was 7 and now is 8"),
    ({"chunks": None}, "chunks was 7 and now is null"),
    ({"chunks": "1 MiB"}, 'chunks was 7 and now is "1048576 B"'),
    ({"compressors": None}, 'compressors was "auto" and now is null'),
    ({"dimension_names": {"tokens": ()}}, "dimension_names was null"),
    ({"fill_values": {"label": 5}}, "fill_values was null"),
    ({"consolidated": False}, "consolidated was true"),
]


@pytest.mark.parametrize("finished", [False, True])
def test_changed_inputs_are_refused(ds: dtf.Dataset, shards: Path, store: Path, disk: Disk, finished: bool) -> None:
    cut_short(ds, store, disk, 20, chunks=7)
    if finished:
        ds.to_zarr(store, chunks=7, resume=True)
    before = files_of(store)

    def refused(dataset: dtf.Dataset, said: str, **options: Any) -> None:
        with pytest.raises(ResumeError, match=said) as caught:
            dataset.to_zarr(store, resume=True, **({"chunks": 7} | options))
        assert str(store) in str(caught.value) and "mode='w'" in str(caught.value)
        assert files_of(store) == before

    for options, said in OPTIONS:
        refused(ds, said, **options)
    for change, said in OTHERS.values():
        refused(change(ds), said)
    path, away = shards / "part-2.tfrecord", shards.parent / "away"
    known, whole = path.stat(), path.read_bytes()
    for number in range(10):
        oracle.write_oracle(shards / f"part-{number + 4}.tfrecord", [])
    refused(dtf.read_tfrecord(shards), r"part-4\.tfrecord was added.*… 10 files are new in all")
    for number in range(10):
        (shards / f"part-{number + 4}.tfrecord").unlink()
    path.rename(away)
    refused(dtf.read_tfrecord(shards), r"part-2\.tfrecord is missing from the files")
    oracle.write_oracle(path, map(example, range(31)))
    refused(dtf.read_tfrecord(shards), rf"part-2\.tfrecord had {len(whole):,} bytes and now has")
    path.write_bytes(whole)
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns + 1_000_000_000))
    refused(dtf.read_tfrecord(shards), r"part-2\.tfrecord was written again or replaced since")
    # The original file, not only a file of the same size and time.
    away.replace(path)
    dtf.read_tfrecord(shards).to_zarr(store, chunks=7, resume=True)
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))


def test_a_changed_function_is_refused(ds: dtf.Dataset, store: Path) -> None:
    def scaled(factor: int) -> Any:
        return lambda blocks: {"label": blocks["label"] * factor}

    for _ in range(2):
        ds.map_blocks(scaled(2)).to_zarr(store, resume=True)
    for function, said in (
        (scaled(3), "its variable 'factor' of a function passed to map_blocks has changed"),
        (lambda blocks: {"label": blocks["label"] * 2}, "its code of a function passed to map_blocks has changed"),
    ):
        with pytest.raises(ResumeError, match=said):
            ds.map_blocks(function).to_zarr(store, resume=True)


# ------------------------------------------------------------------------------------- sources that change midway


@pytest.mark.parametrize(
    "change",
    ["grows", "is written again", *(pytest.param(one, marks=pytest.mark.slow) for one in ("shrinks", "vanishes"))],
)
def test_a_source_that_changes_midway(shards: Path, store: Path, tmp_path: Path, change: str) -> None:
    ds = dtf.read_tfrecord(shards)
    ds.to_zarr(tmp_path / "whole.zarr", chunks=7)
    path, away = shards / "part-2.tfrecord", shards.parent / "away"
    os.link(path, away)
    whole, known = path.read_bytes(), path.stat()
    changed = {"grows": whole * 2, "shrinks": whole[:-100], "is written again": whole}

    def spoil(blocks: dict[str, Any]) -> dict[str, Any]:
        # Some units are written, and the shard that changes is not read yet.
        if [*store.glob("label/c/*")] and not (tmp_path / "spoiled").exists():
            (tmp_path / "spoiled").touch()
            path.unlink()
            if change != "vanishes":
                path.write_bytes(changed[change])
                os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns + 1_000_000_000))
        return blocks

    def convert() -> None:
        dtf.read_tfrecord(shards, ds.schema, counts=[30] * 4).map_blocks(spoil, dict(ds.schema)).to_zarr(
            store, chunks=7, resume=True
        )

    error = FileNotFoundError if change == "vanishes" else ShardChangedError
    with dask.config.set(scheduler="sync"), pytest.raises(error, match=r"part-2\.tfrecord"):
        convert()
    with pytest.raises(IncompleteStoreError):
        dtf.from_zarr(store)
    # Another file in its place would be another source.
    away.replace(path)
    convert()
    assert files_of(store) == files_of(tmp_path / "whole.zarr")
