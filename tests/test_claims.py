"""Runs that write the same group or files at the same time: one finishes, the others are refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy as np
import pytest
import zarr
import zarr.storage
from fsspec.implementations.local import LocalFileSystem
from support.damage import flip
from support.waiting import PATIENCE, wait_until

import dask_tfrecord as dtf
from dask_tfrecord.errors import IncompleteStoreError, StoreInUseError
from dask_tfrecord.settings import Limits
from dask_tfrecord.storage import process
from dask_tfrecord.stores import journal

ROWS = 60
CLAIM = ".dask_tfrecord.claim"
TEMPLATE = "x-{shard}.tfrecord"
MODES: list[dict[str, Any]] = [{"mode": "w"}, {"mode": "w-"}, {"resume": True}]


def check_rows(target: Path | str, **options: Any) -> None:
    """Check that a store or the files of a folder hold all rows, and that nothing lies beside them."""
    path = Path(target)
    if list(path.glob("*.parquet")):
        labels = pytest.importorskip("pyarrow.parquet").read_table(path)["label"].to_pylist()
    elif list(path.glob("*.tfrecord")):
        labels = dtf.read_tfrecord(f"{path}/*.tfrecord")["label"].compute().tolist()
    else:
        labels = dtf.from_zarr(target, **options)["label"].compute().tolist()
    assert labels == list(range(ROWS))
    assert not list(path.glob(".*"))


# -- runs that begin at once


def race(ds: dtf.Dataset, write: Callable[[dtf.Dataset], object], runs: int = 2) -> list[str]:
    """Begin runs at once: one writes when the others have been refused. Return the errors of the others."""
    barrier, refused, waited = threading.Barrier(runs), threading.Semaphore(0), list[bool]()

    def wait(blocks: dict[str, Any]) -> dict[str, Any]:
        for _ in range(0 if waited else runs - 1):
            assert refused.acquire(timeout=PATIENCE)
        waited.append(True)
        return blocks

    waiting = ds.map_blocks(wait, dict(ds.schema))

    def run(_: int) -> str:
        barrier.wait(PATIENCE)
        try:
            write(waiting)
        except StoreInUseError as error:
            return str(error)
        finally:
            refused.release()
        return ""

    with dask.config.set(scheduler="sync"), ThreadPoolExecutor(runs) as threads:
        written, *errors = sorted(threads.map(run, range(runs)))
    assert waited and not written and all(errors)
    return errors


@pytest.mark.parametrize("options", MODES, ids=str)
@pytest.mark.parametrize("place", ["directory", pytest.param("s3", marks=pytest.mark.integration)])
def test_one_of_two_runs_writes_a_group(
    ds: dtf.Dataset, store: Path, place: str, options: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    target, storage = str(store), dict[str, Any]()
    if place == "s3":
        target, storage = f"s3://claims/{store.parent.name}", {"storage_options": request.getfixturevalue("s3")}
        fsspec.filesystem("s3", **storage["storage_options"]).mkdirs("claims", exist_ok=True)
    elif options == {"mode": "w"}:
        ds.to_zarr(target, chunks=11)
    [error] = race(ds, lambda waiting: waiting.to_zarr(target, chunks=7, **storage, **options))
    assert "another run is writing this group" in error
    check_rows(target, **storage)
    assert dtf.from_zarr(target, **storage).chunks[0] == 7


@pytest.mark.parametrize("mode", ["w", "w-"])
@pytest.mark.parametrize(("write", "name"), [(dtf.Dataset.to_tfrecord, TEMPLATE), (dtf.Dataset.to_parquet, "")])
def test_one_of_two_runs_writes_files(
    ds: dtf.Dataset, tmp_path: Path, write: Callable[..., object], name: str, mode: str
) -> None:
    target = tmp_path / "out" / name
    if mode == "w":
        write(ds.rows[::-1], target)
    [error] = race(ds, lambda waiting: write(waiting, target, mode=mode))
    assert "another run is writing these files" in error
    check_rows(tmp_path / "out")


# -- one process


def while_written(
    ds: dtf.Dataset,
    act: Callable[[], object],
    write: Callable[..., object],
    *args: Any,
    when: Callable[[], bool] = lambda: True,
    **options: Any,
) -> None:
    """Write rows, and call a function when the rows of the second shard of 11 rows, or any of a store, are read."""
    begun, called = set[int](), []

    def call(blocks: dict[str, Any]) -> dict[str, Any]:
        begun.add(int(blocks["label"][0]) // 11)
        if (len(begun) == 2 or write is dtf.to_zarr) and not called and when():
            called.append(True)
            act()
        return blocks

    with dask.config.set(scheduler="sync"):
        write(ds.map_blocks(call, dict(ds.schema)), *args, **options)
    assert called


# `test_outputs` races writers of directories, and of a file system in memory.
STORES: dict[str, Callable[[Path], Any]] = {
    "memory": lambda path: zarr.storage.MemoryStore(),
    "obstore": lambda path: zarr.storage.ObjectStore(pytest.importorskip("obstore").store.MemoryStore()),
    "component": lambda path: path,
}


@pytest.mark.parametrize("kind", STORES)
def test_a_store_is_refused_while_it_is_written(ds: dtf.Dataset, store: Path, kind: str) -> None:
    target = STORES[kind](store)
    where = {"component": "a/b"} if kind == "component" else {}
    plan = ds.plan_zarr(chunks=7)

    def refuse() -> None:
        for options in MODES:
            with pytest.raises(StoreInUseError, match=CLAIM):
                ds.to_zarr(target, **where, **options)
            with pytest.raises(FileExistsError, match=f"process {os.getpid()} on "):
                plan.to_zarr(target, **where, **options)
        if where:
            # Another group of the store is free.
            ds.to_zarr(target, component="a/other")

    while_written(ds, refuse, dtf.to_zarr, target, chunks=7, **where)
    for group in (where, {"component": "a/other"} if where else {}):
        np.testing.assert_array_equal(dtf.from_zarr(target, **group)["label"], np.arange(ROWS))
    ds.to_zarr(target, mode="w", chunks=9, **where)
    assert dtf.from_zarr(target, **where).chunks[0] == 9
    ds.to_zarr(target, resume=True, chunks=9, **where)


def test_a_run_without_its_claim_reports_that_it_was_replaced(ds: dtf.Dataset, store: Path) -> None:
    """A user may remove the claim; a delayed conversion has none."""

    def replace() -> None:
        (store / CLAIM).unlink()
        ds.to_zarr(store, mode="w", chunks=9)

    later = ds.to_zarr(store, compute=False)
    assert not (store / CLAIM).exists()
    shutil.rmtree(store)
    with pytest.raises(IncompleteStoreError, match="another conversion has replaced this group"):
        while_written(ds, replace, dtf.to_zarr, store, chunks=7, when=(store / "zarr.json").exists)
    assert dtf.from_zarr(store).chunks[0] == 9
    with pytest.raises(IncompleteStoreError, match="another conversion has replaced this group"):
        later.compute(scheduler="sync")
    check_rows(store)


# -- files


def while_files_are_written(ds: dtf.Dataset, target: object, act: Callable[[], object], **options: Any) -> None:
    while_written(ds, act, dtf.to_tfrecord, target, records_per_shard=11, **options)


def published(folder: Path) -> Path:
    """Return the shard that is published while the second one is written."""
    (path,) = folder.glob("*.tfrecord")
    return path


@pytest.mark.parametrize(("place", "mode"), [("directory", "w"), ("directory", "w-"), ("memory", "w-")])
def test_files_are_refused_while_they_are_written(
    ds: dtf.Dataset, shards: Path, tmp_path: Path, mode: Any, place: str
) -> None:
    folder = str(tmp_path / "out") if place == "directory" else f"memory://claims/{tmp_path.name}"
    # The fields of a template may be written in another way.
    other = f"{folder}/x-{{shard:01d}}.tfrecord"
    later = ds.to_tfrecord(other, mode="w", compute=False)

    def refuse() -> None:
        for again in ("w", "w-"):
            with pytest.raises(StoreInUseError, match=rf"these files: process {os.getpid()} on .*\.claim"):
                ds.to_tfrecord(other, mode=again)
            with pytest.raises(StoreInUseError, match="another run is writing these files"):
                dtf.copy_tfrecord(shards, other, mode=again)
        with pytest.raises(StoreInUseError, match="another run is writing these files"):
            later.compute(scheduler="sync")
        ds.to_tfrecord(f"{folder}/y-{{shard}}.tfrecord", mode=mode)

    while_files_are_written(ds, f"{folder}/{TEMPLATE}", refuse, mode=mode)
    for pattern in ("x", "y"):
        assert dtf.read_tfrecord(f"{folder}/{pattern}-*")["label"].compute().tolist() == list(range(ROWS))
    dtf.copy_tfrecord(shards, other, mode="w", records_per_shard=11)
    fs, path = fsspec.url_to_fs(folder)
    assert not [name for name in fs.ls(path, detail=False) if name.rpartition("/")[2].startswith(".")]


def test_a_withdrawal_keeps_what_another_run_published(ds: dtf.Dataset, tmp_path: Path) -> None:
    """A run that lost its claim, as one that is suspended for minutes does, removes its own shards only."""
    target = tmp_path / "out" / TEMPLATE

    def replace() -> None:
        (claim,) = target.parent.glob(".*.claim")
        claim.unlink()
        dtf.to_tfrecord({"label": -np.arange(ROWS)}, target, mode="w", records_per_shard=11)

    with pytest.raises(FileExistsError, match=r"x-[0-9].tfrecord appeared since this write began"):
        while_files_are_written(ds, target, replace, mode="w")
    assert (dtf.read_tfrecord(f"{target.parent}/*")["label"].compute() == -np.arange(ROWS)).all()


def test_a_run_that_publishes_nothing_for_a_day_is_alive(
    ds: dtf.Dataset, shards: Path, tmp_path: Path, set_limits: Callable[..., Limits]
) -> None:
    set_limits(heartbeat=0.01)
    folder = tmp_path / "out"

    def wait_a_day() -> None:
        (claim,) = folder.glob(".*.claim")
        then = time.time() - 2 * 24 * 60 * 60
        for path in [*folder.rglob("*"), folder]:
            if path.name.endswith(("running", ".json", ".tmp")) or path.is_dir():
                os.utime(path, (then, then))
        wait_until(lambda: claim.stat().st_mtime > then)
        dtf.build_index(published(folder))
        dtf.copy_tfrecord(shards, folder / "other.tfrecord")

    while_files_are_written(ds, folder / TEMPLATE, wait_a_day)
    for path in [folder / "other.tfrecord", *folder.glob("*.idx")]:
        path.unlink()
    check_rows(folder)


@pytest.mark.parametrize(("fault", "index"), [("a directory", True), ("a rename", True), ("a rename", False)])
def test_no_shard_is_removed_if_one_of_them_cannot_be(
    ds: dtf.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, index: bool
) -> None:
    ds.to_tfrecord(tmp_path / TEMPLATE, records_per_shard=11, index=index)
    third = tmp_path / "x-3.tfrecord"
    if fault == "a directory":
        third.unlink()
        (third / "inner").mkdir(parents=True)
    else:
        rename, remove = Path.rename, LocalFileSystem.rm_file

        def refuse(path: Path | str) -> None:
            if str(path) == str(third):
                raise PermissionError(1, "not permitted", str(path))

        monkeypatch.setattr(Path, "rename", lambda path, to: refuse(path) or rename(path, to))
        monkeypatch.setattr(LocalFileSystem, "rm_file", lambda fs, path: refuse(path) or remove(fs, path))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    with pytest.raises(OSError, match=r"x-3\.tfrecord"):
        ds.to_tfrecord(tmp_path / TEMPLATE, records_per_shard=11, mode="w")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_a_change_of_the_same_size_is_found(ds: dtf.Dataset, tmp_path: Path) -> None:
    def change() -> None:
        path = published(tmp_path)
        flip(path, path.stat().st_size // 2)
        os.utime(path, (0, 0))

    expected = r"1 of 6 files .*x-[0-9].tfrecord \(expected checksum [0-9a-f]{8}, found"
    with pytest.raises(IncompleteStoreError, match=expected):
        while_files_are_written(ds, tmp_path / TEMPLATE, change)
    # The file of another program is kept.
    assert published(tmp_path).stat().st_mtime == 0
    assert not list(tmp_path.glob(".*"))


def test_other_times_and_temporary_files_of_killed_workers_are_accepted(ds: dtf.Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    foreign = folder / f".x-0.tfrecord.{'0' * 32}.tmp"

    def act() -> None:
        os.utime(published(folder), (0, 0))
        (temporary,) = folder.glob(".*.tmp")
        # Another worker began the same task.
        (folder / f"{temporary.name[:-5]}{'01'[temporary.name[-5] == '0']}.tmp").write_bytes(b"begun")
        foreign.write_bytes(b"of another run")

    while_files_are_written(ds, folder / TEMPLATE, act)
    foreign.unlink()
    check_rows(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ there")
@pytest.mark.parametrize("kind", ["zarr", "tfrecord"])
def test_ctrl_c_while_a_claim_is_released(
    ds: dtf.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    unlink, signals = Path.unlink, []

    def interrupt(path: Path, *args: Any, **options: Any) -> None:
        if path.name.endswith("claim") and not signals:
            signals.append(path)
            signal.raise_signal(signal.SIGINT)
        unlink(path, *args, **options)

    writes = {"zarr": partial(ds.to_zarr, tmp_path / "out"), "tfrecord": partial(ds.to_tfrecord, tmp_path / TEMPLATE)}
    write = partial(writes[kind], mode="w")
    monkeypatch.setattr(Path, "unlink", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write()
    assert signals
    assert not signals[0].exists()
    write()


# -- dead claims


def write_claim(store: Path, **changes: Any) -> None:
    store.mkdir(exist_ok=True)
    live = json.loads(journal.Owner.of_this_process("0" * 32).to_json())
    (store / CLAIM).write_text(json.dumps(live | changes))


@pytest.mark.skipif(sys.platform == "win32", reason="claims die by age alone there")
@pytest.mark.parametrize("options", MODES, ids=str)
def test_a_dead_claim_is_taken_over(ds: dtf.Dataset, store: Path, options: dict[str, Any]) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(PATIENCE)
    for changes in (
        {"pid": ended.pid},
        {"pid": os.getppid(), "started": "another process of that number"},
        {"machine": "other", "host": "other", "beat": time.time() - journal.STALE - 1},
    ):
        write_claim(store, **changes)
        for name in (CLAIM, "zarr", "zarr.json"):
            # A run may be killed while it writes its claim, or the metadata of the group.
            (store / f"{name}.{'0' * 32}.partial").write_text("{")
        ds.to_zarr(store, **options)
        check_rows(store)
        assert not list(store.rglob("*.partial"))
        shutil.rmtree(store)


@pytest.mark.parametrize(
    "text", ["", "null", "[1]", '{"token": "../../x"}', '{"token": "a", "beat": 1e400}', None, "another process"]
)
def test_an_unreadable_claim_and_one_of_another_process_are_reported(
    ds: dtf.Dataset, store: Path, text: str | None
) -> None:
    said = r"process 1 on other.*after 120 s elsewhere"
    write_claim(store, machine="other", host="other", pid=1)
    if text == "another process":
        said = rf"process {os.getppid()} on "
        write_claim(store, pid=os.getppid(), started=process.process_start(os.getppid()))
    elif text is not None:
        (store / CLAIM).write_text(text)
        said = rf"{CLAIM} that cannot be read: remove that object"
    for options in MODES:
        with pytest.raises(StoreInUseError, match=said):
            ds.to_zarr(store, **options)
    (store / CLAIM).unlink()
    ds.to_zarr(store)


@pytest.mark.parametrize("left", ["claim", "claim and takeover"])
def test_one_of_many_runs_takes_over_a_dead_claim(ds: dtf.Dataset, store: Path, left: str) -> None:
    write_claim(store, machine="other", beat=0)
    if left == "claim and takeover":
        # A process that was killed while it took over the claim left this.
        dead = json.loads((store / CLAIM).read_text())
        (store / f"{CLAIM}.{dead['token']}").write_text(json.dumps(dead | {"token": "killed"}))
    assert len(race(ds, lambda waiting: waiting.to_zarr(store, chunks=7, mode="w"), runs=8)) == 7
    check_rows(store)


def test_a_run_is_refused_while_another_one_writes_its_claim(
    ds: dtf.Dataset, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that is refused finds the files of the other one, and a claim that is not replaced yet."""
    write_claim(store, machine="other", beat=0)
    replace, results = Path.replace, []

    def pause(source: Path, to: Path) -> Path:
        if to == store / CLAIM and not results:
            results.append(None)
            with pytest.raises(StoreInUseError):
                ds.to_zarr(store, mode="w")
        return replace(source, to)

    monkeypatch.setattr(Path, "replace", pause)
    ds.to_zarr(store, mode="w")
    assert results
    check_rows(store)
