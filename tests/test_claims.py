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
import traceback
from collections.abc import Callable
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
from support.waiting import PATIENCE, wait_until

import dask_tfrecord as dtf
from dask_tfrecord.errors import IncompleteStoreError, StoreInUseError
from dask_tfrecord.settings import Limits
from dask_tfrecord.stores import output

ROWS = 60
CLAIM = ".dask_tfrecord.claim"
TEMPLATE = "x-{shard}.tfrecord"
MODES: list[dict[str, Any]] = [{"mode": "w"}, {"mode": "w-"}, {"resume": True}]
Round = tuple[str, str, dict[str, Any]]

# Two of these start each round together. The run that writes waits until the other one has been refused.
PROGRAM = """
import json, sys, time
from pathlib import Path
import dask
import fsspec
import dask_tfrecord as dtf

shards, folder, me, other = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]

def wait_for(path, seconds):
    deadline = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.0005)

for number, (method, url, arguments) in enumerate(json.loads(sys.argv[5])):
    def slowly(blocks):
        wait_for(folder / f"{number}.{other}.result", 120)
        return blocks

    ds = dtf.read_tfrecord(shards)
    ds = ds.map_blocks(slowly, dict(ds.schema))
    (folder / f"{number}.{me}.ready").touch()
    wait_for(folder / f"{number}.{other}.ready", 120)
    try:
        with dask.config.set(scheduler="sync"):
            getattr(ds, method)(url, **arguments)
        result = "written"
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    (folder / f"{number}.{me}.part").write_text(result)
    (folder / f"{number}.{me}.part").rename(folder / f"{number}.{me}.result")
    wait_for(folder / f"{number}.{other}.result", 120)
"""


def start(program: str, *arguments: object) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], env=environment)


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


# -- two processes


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["zarr", "s3", "tfrecord", "parquet"])
def test_one_of_two_processes_is_refused(
    ds: dtf.Dataset, kind: str, shards: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rounds: list[Round] = []
    options: dict[str, Any] = {}
    if kind in ("zarr", "s3"):
        root = str(tmp_path)
        if kind == "s3":
            options = {"storage_options": request.getfixturevalue("s3")}
            fsspec.filesystem("s3", **options["storage_options"]).mkdir("claims")
            root = "s3://claims"
        else:
            ds.to_zarr(tmp_path / "0.zarr", chunks=11)
            # A process that is killed while it begins leaves this.
            write_claim(tmp_path / "2.zarr", machine="other", beat=0)
        for number in range(3 if kind == "s3" else 6):
            rounds.append(("to_zarr", f"{root}/{number}.zarr", {"chunks": 7, **MODES[number % 3], **options}))
    else:
        size, name = ({"records_per_shard": 11}, TEMPLATE) if kind == "tfrecord" else ({}, "")
        for number in range(6):
            # Half of the files do not exist, and half are replaced.
            folder, mode = (f"out-{number}", "w-") if number % 2 else ("out", "w")
            rounds.append((f"to_{kind}", f"{tmp_path}/{folder}/{name}", {"mode": mode, **size}))
    (tmp_path / "race").mkdir()
    sent = json.dumps(rounds)
    programs = [start(PROGRAM, shards, tmp_path / "race", me, other, sent) for me, other in ("ab", "ba")]
    try:
        assert [program.wait(300) for program in programs] == [0, 0]
    finally:
        for program in programs:
            program.kill()
            program.wait()
    what = "this group" if kind in ("zarr", "s3") else "these files"
    for number, (_, target, _) in enumerate(rounds):
        refused, written = sorted((tmp_path / "race" / f"{number}.{me}.result").read_text() for me in "ab")
        assert written == "written"
        assert refused.startswith(f"StoreInUseError: {refused[17:].partition(': ')[0]}: another run is writing {what}")
        check_rows(target.removesuffix(TEMPLATE), **options)
        if kind == "zarr":
            assert dtf.from_zarr(target).chunks[0] == 7


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
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
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
    live = json.loads(output.Claim.of_this_process("0" * 32).to_json())
    (store / CLAIM).write_text(json.dumps(live | changes))


@pytest.mark.skipif(sys.platform == "win32", reason="claims die by age alone there")
@pytest.mark.parametrize("options", MODES, ids=str)
def test_a_dead_claim_is_taken_over(ds: dtf.Dataset, store: Path, options: dict[str, Any]) -> None:
    ended = start("")
    assert ended.wait(60) == 0
    for changes in (
        {"pid": ended.pid},
        {"pid": os.getppid(), "started": "another process of that number"},
        {"machine": "other", "host": "other", "beat": time.time() - output.STALE - 1},
    ):
        write_claim(store, **changes)
        for name in (CLAIM, "zarr", "zarr.json"):
            # A run may be killed while it writes its claim, or the metadata of the group.
            (store / f"{name}.{'0' * 32}.partial").write_text("{")
        ds.to_zarr(store, **options)
        check_rows(store)
        assert not list(store.rglob("*.partial"))
        shutil.rmtree(store)


@pytest.mark.parametrize("text", ["", "null", "[1]", '{"token": "../../x"}', '{"token": "a", "beat": 1e400}', None])
def test_an_unreadable_claim_and_one_of_another_machine_are_reported(
    ds: dtf.Dataset, store: Path, text: str | None
) -> None:
    said = r"process 1 on other.*after 120 s elsewhere"
    write_claim(store, machine="other", host="other", pid=1)
    if text is not None:
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
    runs, barrier, refused = 8, threading.Barrier(8), threading.Semaphore(0)
    results: list[str] = []

    def wait(blocks: dict[str, Any]) -> dict[str, Any]:
        if "waited" not in results:
            for _ in range(runs - 1):
                assert refused.acquire(timeout=PATIENCE)
            results.append("waited")
        return blocks

    waiting = ds.map_blocks(wait, dict(ds.schema))

    def run() -> None:
        barrier.wait(PATIENCE)
        try:
            waiting.to_zarr(store, chunks=7, mode="w")
            results.append("written")
        except StoreInUseError:
            results.append("refused")
        except BaseException:
            results.append(traceback.format_exc())
        refused.release()

    with dask.config.set(scheduler="sync"):
        threads = [threading.Thread(target=run) for _ in range(runs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert sorted(results) == ["refused"] * (runs - 1) + ["waited", "written"]
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
