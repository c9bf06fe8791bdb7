"""Runs that write the same Zarr group at the same time: one finishes, the others are refused."""

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
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy as np
import pytest
import zarr
import zarr.storage
from support.waiting import PATIENCE, in_background, wait_until

import dask_tfrecord as dtf
from dask_tfrecord.errors import IncompleteStoreError, StoreInUseError
from dask_tfrecord.settings import Limits
from dask_tfrecord.stores.zarr import claim

ROWS = 60
CLAIM = ".dask_tfrecord.claim"

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

for number, (url, options, arguments) in enumerate(json.loads(sys.argv[5])):
    def slowly(blocks):
        wait_for(folder / f"{number}.{other}.result", 120)
        return blocks

    ds = dtf.read_tfrecord(shards)
    ds = ds.map_blocks(slowly, dict(ds.schema))
    (folder / f"{number}.{me}.ready").touch()
    wait_for(folder / f"{number}.{other}.ready", 120)
    try:
        with dask.config.set(scheduler="sync"):
            ds.to_zarr(url, chunks=7, storage_options=options, **arguments)
        result = "written"
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    (folder / f"{number}.{me}.part").write_text(result)
    (folder / f"{number}.{me}.part").rename(folder / f"{number}.{me}.result")
    wait_for(folder / f"{number}.{other}.result", 120)
"""
MODES: list[dict[str, Any]] = [{"mode": "w"}, {"mode": "w-"}, {"resume": True}]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def race(
    shards: Path, folder: Path, rounds: list[tuple[str, dict[str, Any] | None, dict[str, Any]]]
) -> list[list[str]]:
    """Results of two processes in each round."""
    folder.mkdir()
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(shards), str(folder), me, other, json.dumps(rounds)],
            env=environment(),
            cwd=folder,
        )
        for me, other in ("ab", "ba")
    ]
    try:
        assert [program.wait(300) for program in programs] == [0, 0]
    finally:
        for program in programs:
            program.kill()
            program.wait()
    return [sorted((folder / f"{number}.{me}.result").read_text() for me in "ab") for number in range(len(rounds))]


def check_race(results: list[list[str]]) -> None:
    for refused, written in results:
        assert written == "written", results
        assert refused.startswith("StoreInUseError: "), results
        assert "another run is writing this group: process" in refused


# ---------------------------------------------------------------------------------------------------- two processes


@pytest.mark.integration
def test_one_of_two_processes_that_start_a_store_is_refused(shards: Path, tmp_path: Path) -> None:
    rounds = [(str(tmp_path / f"{number}.zarr"), None, MODES[number % 3]) for number in range(9)]
    check_race(race(shards, tmp_path / "race", rounds))
    for store, _, _ in rounds:
        np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))
        assert not list(Path(store).glob(".*"))


@pytest.mark.integration
@pytest.mark.slow
def test_one_of_two_processes_that_replace_or_resume_a_store_is_refused(
    ds: dtf.Dataset, shards: Path, tmp_path: Path
) -> None:
    rounds: list[tuple[str, dict[str, Any] | None, dict[str, Any]]] = []
    for number in range(4):
        path = tmp_path / f"{number}.zarr"
        if number % 2:
            # A process that is killed while it begins leaves this.
            write_claim(path, machine="other", beat=0)
            rounds.append((str(path), None, {"resume": True}))
            continue
        ds.to_zarr(path, chunks=11)
        rounds.append((str(path), None, {"mode": "w"}))
    check_race(race(shards, tmp_path / "race", rounds))
    for store, _, _ in rounds:
        assert dtf.from_zarr(store).chunks[0] == 7
        np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))


@pytest.mark.integration
@pytest.mark.slow
def test_one_of_two_processes_that_start_a_store_on_s3_is_refused(
    s3: dict[str, Any], shards: Path, tmp_path: Path
) -> None:
    fsspec.filesystem("s3", **s3).mkdir("claims")
    rounds = [(f"s3://claims/race/{number}.zarr", s3, MODES[number]) for number in range(3)]
    check_race(race(shards, tmp_path / "race", rounds))
    for url, options, _ in rounds:
        np.testing.assert_array_equal(dtf.from_zarr(url, storage_options=options)["label"], np.arange(ROWS))


# ------------------------------------------------------------------------------------------------------- one process


def while_written(
    ds: dtf.Dataset, act: Callable[[], None], store: Any, when: Callable[[], bool] = lambda: True, **options: Any
) -> None:
    """Write a store, and do something in another thread when its first rows are read, to be counted or written."""
    reading, done = threading.Event(), threading.Event()

    def wait(blocks: dict[str, Any]) -> dict[str, Any]:
        if not when():
            return blocks
        reading.set()
        assert done.wait(PATIENCE)
        return blocks

    def write() -> None:
        with dask.config.set(scheduler="sync"):
            ds.map_blocks(wait, dict(ds.schema)).to_zarr(store, chunks=7, **options)

    with in_background(write):
        try:
            assert reading.wait(PATIENCE)
            act()
        finally:
            done.set()


STORES: dict[str, Callable[[Path], Any]] = {
    "directory": lambda path: path,
    "memory": lambda path: zarr.storage.MemoryStore(),
    "obstore": lambda path: zarr.storage.ObjectStore(pytest.importorskip("obstore").store.MemoryStore()),
    "fsspec": lambda path: f"memory://claims/{path.parent.name}/x.zarr",
    "component": lambda path: path,
}


@pytest.mark.parametrize("kind", STORES)
def test_a_store_is_refused_while_it_is_written(ds: dtf.Dataset, store: Path, kind: str) -> None:
    target = STORES[kind](store)
    where = {"component": "a/b"} if kind == "component" else {}

    def refuse() -> None:
        for options in MODES:
            with pytest.raises(StoreInUseError, match=CLAIM):
                ds.to_zarr(target, **where, **options)
            with pytest.raises(FileExistsError, match=f"process {os.getpid()} on "):
                ds.plan_zarr(chunks=7).to_zarr(target, **where, **options)

    while_written(ds, refuse, target, **where)
    np.testing.assert_array_equal(dtf.from_zarr(target, **where)["label"], np.arange(ROWS))
    ds.to_zarr(target, mode="w", chunks=9, **where)
    assert dtf.from_zarr(target, **where).chunks[0] == 9
    ds.to_zarr(target, resume=True, chunks=9, **where)


def test_groups_of_one_store_are_written_at_the_same_time(ds: dtf.Dataset, store: Path) -> None:
    while_written(ds, lambda: ds.to_zarr(store, component="b") and None, store, component="a")
    for name in ("a", "b"):
        np.testing.assert_array_equal(dtf.from_zarr(store, component=name)["label"], np.arange(ROWS))


def test_a_refused_run_leaves_the_store_unchanged(ds: dtf.Dataset, store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    before = other.stat().st_mtime_ns
    for options in ({}, {"mode": "w"}):
        with pytest.raises(FileExistsError, match="is not a Zarr group"):
            ds.to_zarr(other, **options)
    assert other.stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="memory"):
        ds.to_zarr(store / "inner", memory_limit="1 kB")
    assert not store.exists()


def test_a_delayed_conversion_holds_no_claim(ds: dtf.Dataset, store: Path) -> None:
    later = ds.to_zarr(store, compute=False)
    assert not (store / CLAIM).exists()
    ds.to_zarr(store, mode="w", chunks=7)
    with pytest.raises(IncompleteStoreError, match="another conversion has replaced this group"):
        later.compute(scheduler="sync")


def test_a_run_without_its_claim_reports_that_it_was_replaced(ds: dtf.Dataset, store: Path) -> None:
    """So it is where a user removes the claim by hand."""

    def replace() -> None:
        (store / CLAIM).unlink()
        ds.to_zarr(store, mode="w", chunks=9)

    with pytest.raises(IncompleteStoreError, match="another conversion has replaced this group"):
        while_written(ds, replace, store, (store / "zarr.json").exists)
    assert dtf.from_zarr(store).chunks[0] == 9
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))


# -------------------------------------------------------------------------------------------------------- dead claims


def write_claim(store: Path, **changes: Any) -> None:
    store.mkdir(exist_ok=True)
    live = json.loads(claim._Claim.of_this_process().to_json())
    (store / CLAIM).write_text(json.dumps(live | changes))


def ended() -> int:
    """Number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    assert process.wait(60) == 0
    return process.pid


@pytest.mark.skipif(sys.platform == "win32", reason="claims die by age alone there")
@pytest.mark.parametrize("options", MODES, ids=str)
def test_the_claim_of_an_ended_process_is_taken_over_at_once(
    ds: dtf.Dataset, store: Path, options: dict[str, Any]
) -> None:
    for changes in ({"pid": ended()}, {"started": "another process of that number", "pid": os.getppid()}):
        write_claim(store, **changes)
        ds.to_zarr(store, **options)
        assert not list(store.glob(".*"))
        np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))
        shutil.rmtree(store)


@pytest.mark.parametrize("options", MODES, ids=str)
def test_the_claim_of_another_machine_is_taken_over_by_age(
    ds: dtf.Dataset, store: Path, options: dict[str, Any]
) -> None:
    write_claim(store, machine="other", host="other", pid=1)
    with pytest.raises(StoreInUseError, match=r"process 1 on other.*after 120 s elsewhere"):
        ds.to_zarr(store, **options)
    write_claim(store, machine="other", host="other", beat=time.time() - claim.STALE - 1)
    ds.to_zarr(store, **options)
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))


def test_a_long_run_renews_its_claim(ds: dtf.Dataset, store: Path, set_limits: Callable[..., Limits]) -> None:
    set_limits(heartbeat=0.01)

    def renewed() -> None:
        beat = json.loads((store / CLAIM).read_text())["beat"]
        wait_until(lambda: json.loads((store / CLAIM).read_text())["beat"] != beat)

    while_written(ds, renewed, store)


@pytest.mark.parametrize("text", ["", "null", "[1]", '{"token": "../../x"}', '{"token": "a", "beat": 1e400}'])
def test_unreadable_claim_is_reported(ds: dtf.Dataset, store: Path, text: str) -> None:
    store.mkdir()
    (store / CLAIM).write_text(text)
    for options in MODES:
        with pytest.raises(StoreInUseError, match=rf"{CLAIM} that cannot be read: remove that object"):
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
    unexpected = [result for result in results if result not in ("refused", "waited", "written")]
    assert not unexpected, "\n".join(unexpected)
    assert sorted(results) == ["refused"] * (runs - 1) + ["waited", "written"]
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))
    assert not list(store.glob(".*"))


@pytest.mark.parametrize("options", MODES, ids=str)
def test_temporary_files_of_a_killed_run_are_replaced(ds: dtf.Dataset, store: Path, options: dict[str, Any]) -> None:
    """A run may be killed while it writes its claim, or the metadata of the group."""
    write_claim(store, machine="other", beat=0)
    for name in (CLAIM, "zarr", "zarr.json"):
        (store / f"{name}.{'0' * 32}.partial").write_text("{")
    ds.to_zarr(store, **options)
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))
    assert not list(store.rglob("*.partial"))


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
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))


KILLED = """
import os, signal, sys
import dask, dask_tfrecord as dtf

def die(blocks):
    if blocks["label"][0] >= 28:
        os.kill(os.getpid(), signal.SIGKILL)
    return blocks

ds = dtf.read_tfrecord(sys.argv[1])
with dask.config.set(scheduler="sync"):
    ds[["label"]].map_blocks(die, {"label": ds.schema["label"]}).to_zarr(sys.argv[2], chunks=7)
"""


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_the_group_of_a_killed_run_is_replaced_at_once(ds: dtf.Dataset, shards: Path, store: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(shards), str(store)]
    assert subprocess.run(command, env=environment(), timeout=120).returncode == -signal.SIGKILL
    assert (store / CLAIM).exists()
    with pytest.raises(IncompleteStoreError, match="never finished"):
        dtf.from_zarr(store)
    with pytest.raises(FileExistsError, match="resume=True continues it"):
        ds.to_zarr(store)
    ds.to_zarr(store, mode="w")
    assert not list(store.glob(".*"))
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))
