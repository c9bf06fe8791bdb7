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
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy as np
import pytest
import zarr
import zarr.storage
from fsspec.implementations.local import LocalFileSystem
from support.waiting import PATIENCE, in_background, wait_until

import dask_tfrecord as dtf
from dask_tfrecord.errors import IncompleteStoreError, StoreInUseError
from dask_tfrecord.settings import Limits
from dask_tfrecord.stores import output

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

for number, (method, url, options, arguments) in enumerate(json.loads(sys.argv[5])):
    def slowly(blocks):
        wait_for(folder / f"{number}.{other}.result", 120)
        return blocks

    ds = dtf.read_tfrecord(shards)
    ds = ds.map_blocks(slowly, dict(ds.schema))
    (folder / f"{number}.{me}.ready").touch()
    wait_for(folder / f"{number}.{other}.ready", 120)
    try:
        with dask.config.set(scheduler="sync"):
            getattr(ds, method)(url, storage_options=options, **arguments)
        result = "written"
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    (folder / f"{number}.{me}.part").write_text(result)
    (folder / f"{number}.{me}.part").rename(folder / f"{number}.{me}.result")
    wait_for(folder / f"{number}.{other}.result", 120)
"""
MODES: list[dict[str, Any]] = [{"mode": "w"}, {"mode": "w-"}, {"resume": True}]
Round = tuple[str, str, dict[str, Any] | None, dict[str, Any]]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def race(shards: Path, folder: Path, rounds: list[Round]) -> list[list[str]]:
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


def check_race(results: list[list[str]], what: str = "this group") -> None:
    for refused, written in results:
        assert written == "written", results
        assert refused.startswith("StoreInUseError: "), results
        assert f"another run is writing {what}: process" in refused


# ---------------------------------------------------------------------------------------------------- two processes


def zarr_round(store: Path | str, options: dict[str, Any] | None, arguments: dict[str, Any]) -> Round:
    return "to_zarr", str(store), options, {"chunks": 7, **arguments}


@pytest.mark.integration
def test_one_of_two_processes_that_start_a_store_is_refused(shards: Path, tmp_path: Path) -> None:
    rounds = [zarr_round(tmp_path / f"{number}.zarr", None, MODES[number % 3]) for number in range(9)]
    check_race(race(shards, tmp_path / "race", rounds))
    for _, store, _, _ in rounds:
        np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))
        assert not list(Path(store).glob(".*"))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("method", "name"),
    [("to_tfrecord", "x-{shard}-of-{shards}.tfrecord"), ("to_parquet", "")],
    ids=["tfrecord", "parquet"],
)
def test_one_of_two_processes_that_write_files_is_refused(method: str, name: str, shards: Path, tmp_path: Path) -> None:
    """Twice ten rounds: the files do not exist, or are replaced."""
    target = tmp_path / "out"
    size = {"records_per_shard": 11} if method == "to_tfrecord" else {}
    rounds: list[Round] = [(method, f"{target}/{name}", None, {"mode": "w", **size}) for _ in range(10)]
    rounds += [(method, f"{target}-{number}/{name}", None, {"mode": "w-", **size}) for number in range(10)]
    check_race(race(shards, tmp_path / "race", rounds), "these files")
    for folder in [target, *(tmp_path / f"out-{number}" for number in range(10))]:
        assert len(list(folder.iterdir())) == {"to_tfrecord": 6, "to_parquet": 4}[method]
        check_rows(folder)


def check_rows(folder: Path) -> None:
    """Check that files hold all rows, and nothing lies beside them."""
    assert not list(folder.glob(".*"))
    if list(folder.glob("*.parquet")):
        labels = pytest.importorskip("pyarrow.parquet").read_table(folder)["label"].to_pylist()
    else:
        labels = dtf.read_tfrecord(f"{folder}/*.tfrecord")["label"].compute().tolist()
    assert labels == list(range(ROWS))


@pytest.mark.slow
def test_one_of_two_processes_that_replace_or_resume_a_store_is_refused(
    ds: dtf.Dataset, shards: Path, tmp_path: Path
) -> None:
    rounds: list[Round] = []
    for number in range(4):
        path = tmp_path / f"{number}.zarr"
        if number % 2:
            # A process that is killed while it begins leaves this.
            write_claim(path, machine="other", beat=0)
            rounds.append(zarr_round(path, None, {"resume": True}))
            continue
        ds.to_zarr(path, chunks=11)
        rounds.append(zarr_round(path, None, {"mode": "w"}))
    check_race(race(shards, tmp_path / "race", rounds))
    for _, store, _, _ in rounds:
        assert dtf.from_zarr(store).chunks[0] == 7
        np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))


@pytest.mark.integration
@pytest.mark.slow
def test_one_of_two_processes_that_start_a_store_on_s3_is_refused(
    s3: dict[str, Any], shards: Path, tmp_path: Path
) -> None:
    fsspec.filesystem("s3", **s3).mkdir("claims")
    rounds = [zarr_round(f"s3://claims/race/{number}.zarr", s3, MODES[number]) for number in range(3)]
    check_race(race(shards, tmp_path / "race", rounds))
    for _, url, options, _ in rounds:
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


# -------------------------------------------------------------------------------------------------------------- files


def while_files_are_written(ds: dtf.Dataset, target: str, act: Callable[[], None], **options: Any) -> None:
    """Write shards of 11 rows, and call a function while the second one is written."""
    begun, called = set[int](), []

    def call(blocks: dict[str, Any]) -> dict[str, Any]:
        begun.add(int(blocks["label"][0]) // 11)
        if len(begun) == 2 and not called:
            called.append(True)
            act()
        return blocks

    with dask.config.set(scheduler="sync"):
        ds.map_blocks(call, dict(ds.schema)).to_tfrecord(target, records_per_shard=11, **options)
    assert called


def published(folder: Path) -> Path:
    """Return the shard that is published while the second one is written."""
    (path,) = folder.glob("*.tfrecord")
    return path


TEMPLATE = "x-{shard}.tfrecord"


@pytest.mark.parametrize("mode", ["w", "w-"])
@pytest.mark.parametrize("place", ["directory", "memory"])
def test_files_are_refused_while_they_are_written(
    ds: dtf.Dataset, shards: Path, tmp_path: Path, mode: str, place: str
) -> None:
    folder = str(tmp_path / "out") if place == "directory" else f"memory://claims/{tmp_path.name}-{mode}"
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
    ds.to_tfrecord(f"{folder}/{TEMPLATE}", records_per_shard=11, mode="w")
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
        while_files_are_written(ds, str(target), replace, mode="w")
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

    while_files_are_written(ds, str(folder / TEMPLATE), wait_a_day)
    for path in [folder / "other.tfrecord", *folder.glob("*.idx")]:
        path.unlink()
    check_rows(folder)


@pytest.mark.parametrize("fault", ["a directory", "a rename"])
@pytest.mark.parametrize("index", [False, True])
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

    with pytest.raises(
        IncompleteStoreError, match=r"1 of 6 files .*x-[0-9].tfrecord \(expected checksum [0-9a-f]{8}, found"
    ):
        while_files_are_written(ds, str(tmp_path / TEMPLATE), change)
    # The file of another program is kept.
    assert published(tmp_path).stat().st_mtime == 0
    assert not list(tmp_path.glob(".*"))


def test_a_copy_of_a_shard_with_another_time_is_accepted(ds: dtf.Dataset, tmp_path: Path) -> None:
    def touch() -> None:
        os.utime(published(tmp_path / "out"), (0, 0))

    while_files_are_written(ds, str(tmp_path / "out" / TEMPLATE), touch)
    check_rows(tmp_path / "out")


def test_temporary_files_of_killed_workers_are_removed(ds: dtf.Dataset, tmp_path: Path) -> None:
    def kill() -> None:
        (temporary,) = folder.glob(".*.tmp")
        # Another worker began the same task.
        (folder / f"{temporary.name[:-5]}{'01'[temporary.name[-5] == '0']}.tmp").write_bytes(b"begun")
        (folder / f".x-0.tfrecord.{'0' * 32}.tmp").write_bytes(b"of another run")

    folder = tmp_path / "out"
    while_files_are_written(ds, str(folder / TEMPLATE), kill)
    (folder / f".x-0.tfrecord.{'0' * 32}.tmp").unlink()
    check_rows(folder)


KILLED_FILES = """
import os, signal, sys
import dask, dask_tfrecord as dtf

begun = set()

def die(blocks):
    begun.add(blocks["label"][0] // 11)
    if len(begun) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return blocks

ds = dtf.read_tfrecord(sys.argv[1])
with dask.config.set(scheduler="sync"):
    ds.map_blocks(die, dict(ds.schema)).to_tfrecord(sys.argv[2], records_per_shard=11)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_the_next_run_replaces_what_a_killed_one_left(ds: dtf.Dataset, shards: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED_FILES, str(shards), str(tmp_path / "out" / TEMPLATE)]
    assert subprocess.run(command, env=environment(), timeout=120).returncode == -signal.SIGKILL
    assert len(list((tmp_path / "out").glob(".*"))) == 3  # claim, run folder, temporary file
    with pytest.raises(FileExistsError, match="exists already"):
        ds.to_tfrecord(tmp_path / "out" / TEMPLATE, records_per_shard=11)
    ds.to_tfrecord(tmp_path / "out" / TEMPLATE, records_per_shard=11, mode="w")
    check_rows(tmp_path / "out")


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

    def write() -> None:
        if kind == "zarr":
            ds.to_zarr(tmp_path / "out", mode="w")
        else:
            ds.to_tfrecord(tmp_path / "out" / TEMPLATE, mode="w", records_per_shard=11)

    monkeypatch.setattr(Path, "unlink", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write()
    assert signals
    assert not signals[0].exists()
    write()


# -------------------------------------------------------------------------------------------------------- dead claims


def write_claim(store: Path, **changes: Any) -> None:
    store.mkdir(exist_ok=True)
    live = json.loads(output.Claim.of_this_process("0" * 32).to_json())
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
    write_claim(store, machine="other", host="other", beat=time.time() - output.STALE - 1)
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
