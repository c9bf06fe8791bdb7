"""Runs that write the same group or files at the same time: one finishes, the others are refused.

In `test_exploration`, two runs take turns at every step.
"""

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
from support.few import mostly_slow
from support.programs import environment
from support.waiting import PATIENCE, in_background, wait_until

import dask_tfrecord as dtf
from dask_tfrecord.errors import IncompleteStoreError, Location, StoreInUseError
from dask_tfrecord.settings import Limits, limits
from dask_tfrecord.shards import process
from dask_tfrecord.shards.objects import objects_in
from dask_tfrecord.stores import journal

ROWS = 60
CLAIM = ".dask_tfrecord.claim"
TEMPLATE = "x-{shard}.tfrecord"
MODES: list[dict[str, Any]] = [{"mode": "w"}, {"mode": "w-"}, {"resume": True}]


def check_rows(target: Path | str, **options: Any) -> None:
    """Check that a store or the files of a folder hold all rows, and that no other file is left."""
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


@pytest.mark.parametrize("kind", mostly_slow(STORES, 3))
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


def test_a_run_without_its_claim_reports_that_it_was_replaced(
    ds: dtf.Dataset, store: Path, set_limits: Callable[..., Limits]
) -> None:
    """A user may remove the claim; a delayed conversion lacks one."""
    # On a slow machine, a task would ask before it writes, and say that its plan is gone.
    set_limits(owner_check=1e6)

    def replace() -> None:
        (store / CLAIM).unlink()
        ds.to_zarr(store, mode="w", chunks=9)

    later = ds.to_zarr(store, compute=False)
    assert not (store / CLAIM).exists()
    shutil.rmtree(store)
    with pytest.raises(StoreInUseError, match="another run has taken over"):
        while_written(ds, replace, dtf.to_zarr, store, chunks=7, when=lambda: any(store.rglob("plan.json")))
    assert dtf.from_zarr(store).chunks[0] == 9
    with pytest.raises(IncompleteStoreError, match="another conversion has replaced this group"):
        later.compute(scheduler="sync")
    check_rows(store)


# -- files


def while_files_are_written(ds: dtf.Dataset, target: object, act: Callable[[], object], **options: Any) -> None:
    while_written(ds, act, dtf.to_tfrecord, target, records_per_shard=11, **options)


def finished(folder: Path) -> Path:
    """Return the shard that is finished while the second one is written, in the folder of the run."""
    (path,) = folder.glob(".dask-tfrecord-*/new/*.tfrecord")
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


def test_tasks_publish_nothing_while_a_failed_run_removes_its_files(
    tmp_path: Path, set_limits: Callable[..., Limits]
) -> None:
    set_limits(heartbeat=0.01)
    place = journal.Journal(objects_in(str(tmp_path)), "x.claim", "these files", Location("x"))
    with pytest.raises(IncompleteStoreError, match="has ended"):
        place.check_writing("1")
    with place.owned("1", lambda: None):
        place.check_writing("1")
        with pytest.raises(StoreInUseError, match="has taken over"):
            place.check_writing("2")
        place.end_writing("2")
        place.check_writing("1")
        place.end_writing("1")
        owner = place.owner()
        # Heartbeats keep what the client recorded, and the output is not free yet.
        assert owner is not None and wait_until(lambda: place.owner() != owner)
        with pytest.raises(IncompleteStoreError, match="has ended"):
            place.check_writing("1")
        with pytest.raises(StoreInUseError):
            place.check_free()
    place.check_free()


def test_a_run_that_publishes_nothing_for_a_day_is_alive(
    ds: dtf.Dataset, shards: Path, tmp_path: Path, set_limits: Callable[..., Limits]
) -> None:
    set_limits(heartbeat=0.01)
    folder = tmp_path / "out"

    def wait_a_day() -> None:
        (claim,) = folder.glob(".*.claim")
        then = time.time() - 2 * 24 * 60 * 60
        for path in [*folder.rglob("*"), folder]:
            if path.name.endswith((".json", ".tmp")) or path.is_dir():
                os.utime(path, (then, then))
        wait_until(lambda: claim.stat().st_mtime > then)
        dtf.copy_tfrecord(shards, folder / "other.tfrecord")
        dtf.build_index(folder / "other.tfrecord")

    while_files_are_written(ds, folder / TEMPLATE, wait_a_day)
    for name in ("other.tfrecord", "other.tfrecord.idx"):
        (folder / name).unlink()
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
        rename, remove = Path.replace, LocalFileSystem.rm_file

        def refuse(path: Path | str) -> None:
            if str(path) == str(third):
                raise PermissionError(1, "not permitted", str(path))

        monkeypatch.setattr(Path, "replace", lambda path, to: refuse(path) or rename(path, to))
        monkeypatch.setattr(LocalFileSystem, "rm_file", lambda fs, path: refuse(path) or remove(fs, path))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    with pytest.raises(OSError, match=r"x-3\.tfrecord"):
        ds.to_tfrecord(tmp_path / TEMPLATE, records_per_shard=11, mode="w")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_a_change_of_the_same_size_is_found(ds: dtf.Dataset, tmp_path: Path) -> None:
    def change() -> None:
        path = finished(tmp_path)
        flip(path, path.stat().st_size // 2)
        os.utime(path, (0, 0))

    expected = r"1 of 6 files .*x-[0-9].tfrecord \(expected checksum [0-9a-f]{8}, found"
    with pytest.raises(IncompleteStoreError, match=expected):
        while_files_are_written(ds, tmp_path / TEMPLATE, change)
    assert not list(tmp_path.glob("*.tfrecord")) and not list(tmp_path.glob(".*"))


def test_other_times_and_temporary_files_of_killed_workers_are_accepted(ds: dtf.Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    foreign = folder / f".x-0.tfrecord.{'0' * 32}.tmp"

    def act() -> None:
        os.utime(finished(folder), (0, 0))
        (temporary,) = folder.glob(".dask-tfrecord-*/new/.*.tmp")
        # Another worker began the same task.
        (temporary.parent / f"{temporary.name[:-5]}{'01'[temporary.name[-5] == '0']}.tmp").write_bytes(b"begun")
        foreign.write_bytes(b"of another run")

    while_files_are_written(ds, folder / TEMPLATE, act)
    foreign.unlink()
    check_rows(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ there")
@pytest.mark.parametrize("kind", ["zarr", "tfrecord"])
def test_ctrl_c_while_a_claim_is_released(
    ds: dtf.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    unlink, signals = os.unlink, []

    def interrupt(path: str | Path, *args: Any, **options: Any) -> None:
        if Path(path).name.endswith("claim") and not signals:
            signals.append(Path(path))
            signal.raise_signal(signal.SIGINT)
        unlink(path, *args, **options)

    writes = {"zarr": partial(ds.to_zarr, tmp_path / "out"), "tfrecord": partial(ds.to_tfrecord, tmp_path / TEMPLATE)}
    write = partial(writes[kind], mode="w")
    monkeypatch.setattr(os, "unlink", interrupt)
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
@pytest.mark.parametrize("options", mostly_slow(MODES, 3), ids=str)
def test_a_dead_claim_is_taken_over(ds: dtf.Dataset, store: Path, options: dict[str, Any]) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(PATIENCE)
    for changes in (
        {"pid": ended.pid},
        {"pid": os.getppid(), "started": "another process of that number"},
        {"machine": "other", "host": "other", "beat": time.time() - limits().stale_owner - 1},
        # Clocks of other machines may be ahead.
        *({"machine": "other", "beat": beat} for beat in (time.time() + 86400, float("inf"), float("nan"))),
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


@pytest.mark.skipif(sys.platform == "win32", reason="claims die by age alone there")
@pytest.mark.parametrize("changes", [{"beat": 0}, {"beat": float("nan")}, {"since": 1e17}, {"host": "x" * 1_000_000}])
def test_the_claim_of_a_live_process_does_not_age(ds: dtf.Dataset, store: Path, changes: dict[str, Any]) -> None:
    """It may be stopped, or its machine may sleep."""
    write_claim(store, pid=os.getppid(), started=process.process_start(os.getppid()), **changes)
    for options in MODES:
        with pytest.raises(StoreInUseError, match=rf"process {os.getppid()} on ") as caught:
            ds.to_zarr(store, **options)
        assert len(str(caught.value)) < 1000


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pipes of that kind")
@pytest.mark.parametrize("kind", ["token", "pipe", "directory", "link"])
def test_a_claim_that_is_none(ds: dtf.Dataset, store: Path, kind: str) -> None:
    claim = store / CLAIM
    write_claim(store, machine="other", beat=0, token="a" * 300)
    if kind != "token":
        claim.unlink()
    if kind == "pipe":
        os.mkfifo(claim)
    elif kind == "directory":
        claim.mkdir()
    elif kind == "link":
        claim.symlink_to("nowhere")
    for options in MODES:
        with pytest.raises(StoreInUseError, match=rf"{CLAIM} that cannot be read: remove that object"):
            ds.to_zarr(store, **options)


WRITERS: dict[str, Callable[..., object]] = {
    "zarr": lambda ds, folder, **options: ds.to_zarr(folder, chunks=11, **options),
    "tfrecord": lambda ds, folder, **options: ds.to_tfrecord(folder / TEMPLATE, records_per_shard=11, **options),
    "parquet": lambda ds, folder, **options: ds.to_parquet(folder, **options),
    "lerobot": lambda ds, folder, **options: ds.to_lerobot(
        folder, fps=1, episode="label", episodes_per_file=11, video=None, names={"label": None}, **options
    ),
}


def needs(kind: str) -> None:
    for package in {"parquet": ("pyarrow",), "lerobot": ("pyarrow", "av")}.get(kind, ()):
        pytest.importorskip(package)


def of_episodes(ds: dtf.Dataset) -> dtf.Dataset:
    return ds[["label"]].assign(x=ds["label"])


def contents(folder: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not name.endswith(".tmp")}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_refused_run_keeps_the_directories_of_the_other(
    ds: dtf.Dataset, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(kind)
    folder, listed, refused, began = tmp_path / "out", *(threading.Event() for _ in range(3))
    first, take = list[int](), journal.Journal._take

    def take_in_turn(self: journal.Journal, owner: journal.Owner) -> str | None:
        # The second run has listed the directories that do not exist.
        if threading.get_ident() not in first:
            listed.set()
            assert began.wait(PATIENCE)
        return take(self, owner)

    def wait(blocks: dict[str, Any]) -> dict[str, Any]:
        if folder.exists():
            began.set()
            assert refused.wait(PATIENCE)
        return blocks

    rows = of_episodes(ds)
    waiting = rows.map_blocks(wait, dict(rows.schema))

    def refuse() -> None:
        with pytest.raises(StoreInUseError):
            WRITERS[kind](rows, folder)
        refused.set()

    # Both runs call the system between the two steps.
    monkeypatch.setattr(journal.Journal, "_take", take_in_turn)
    with dask.config.set(scheduler="sync"), in_background(refuse):
        first.append(threading.get_ident())
        assert listed.wait(PATIENCE)
        WRITERS[kind](waiting, folder)
    assert folder.exists() and not list(folder.rglob(".*"))


PROGRAM = """
import pathlib, sys, time
import dask, dask_tfrecord as dtf
from test_claims import WRITERS, of_episodes
kind, shards, folder, flag = sys.argv[1], *map(pathlib.Path, sys.argv[2:])

def wait(blocks):
    if len(blocks["label"]) and blocks["label"][0] >= 30 and folder.exists():
        flag.touch()
        for _ in range(6000):
            if flag.with_suffix(".go").exists():
                break
            time.sleep(0.01)
    return blocks

rows = of_episodes(dtf.read_tfrecord(shards))
with dask.config.set(scheduler="sync"):
    WRITERS[kind](rows.map_blocks(wait, dict(rows.schema)), folder, mode="w")
"""


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGSTOP there")
@pytest.mark.parametrize("kind", WRITERS)
def test_a_stopped_process_keeps_its_output(
    ds: dtf.Dataset, shards: Path, tmp_path: Path, kind: str, set_limits: Callable[..., Limits]
) -> None:
    needs(kind)
    set_limits(stale_owner=0.0)
    folder, flag, rows = tmp_path / "out", tmp_path / "flag", of_episodes(ds)
    WRITERS[kind](rows, tmp_path / "whole")
    command = [sys.executable, "-c", PROGRAM, kind, shards, folder, flag]
    stopped = subprocess.Popen(list(map(str, command)), env=environment())
    try:
        wait_until(flag.exists)
        stopped.send_signal(signal.SIGSTOP)
        for _ in range(2):
            with pytest.raises(StoreInUseError, match=f"process {stopped.pid} on"):
                WRITERS[kind](rows.rows[::-1], folder, mode="w")
            time.sleep(0.1)
        flag.with_suffix(".go").touch()
        stopped.send_signal(signal.SIGCONT)
        assert stopped.wait(PATIENCE) == 0
    finally:
        stopped.kill()
        stopped.wait(PATIENCE)
    assert {name for name in contents(folder)} == {name for name in contents(tmp_path / "whole")}
    WRITERS[kind](rows.rows[::-1], folder, mode="w")


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
    replace, results = os.replace, []

    def pause(source: str, to: str) -> None:
        if Path(to) == store / CLAIM and not results:
            results.append(None)
            with pytest.raises(StoreInUseError):
                ds.to_zarr(store, mode="w")
        replace(source, to)

    monkeypatch.setattr(os, "replace", pause)
    ds.to_zarr(store, mode="w")
    assert results
    check_rows(store)
