"""Conversions on the processes of a real cluster, which are killed, or lose their disk or their files, midway."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zarr
from distributed import Client, KilledWorker, LocalCluster
from support.killing import MARKS, meanwhile, running, two_workers
from support.numbered_shards import write_shards
from support.waiting import PATIENCE, wait_until

import dask_tfrecord as dtf
from dask_tfrecord.errors import IncompleteStoreError

pytestmark = MARKS
SHARDS, ROWS = 8, 250
GRIDS: list[dict[str, Any]] = [{"chunks": 10}, {"chunks": 4, "shards": 16}]

# As a user writes it; blocks that take a while are killed midway.
PROGRAM = """
import sys, time
import dask_tfrecord as dtf
from distributed import Client

LOG = sys.argv[4]

def slowly(blocks):
    time.sleep(0.02)
    with open(LOG, "a") as log:
        log.write(f"{len(blocks['label'])}\\n")
    return blocks

if __name__ == "__main__":
    ds = dtf.read_tfrecord(sys.argv[1])
    with Client(sys.argv[3]):
        ds.map_blocks(slowly, dict(ds.schema)).to_zarr(sys.argv[2], resume=True, **eval(sys.argv[5]))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    write_shards(folder, SHARDS, ROWS, most_tokens=117)
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with two_workers() as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)
        yield client


def marks(store: Path) -> int:
    try:
        return sum(1 for _ in store.glob(".dask_tfrecord/*/units/*.json"))
    except FileNotFoundError:  # all is written, and the folder is being removed
        return 0


def wait_for(number: int, store: Path, alive: Callable[[], bool]) -> bool:
    """Wait until that many records of units are written; return False if the writer ends before."""
    return wait_until(lambda: marks(store) >= number, alive)


def equal(store: Path, reference: Path) -> None:
    """Compare the files of stores except for the identities of conversions, and the arrays that zarr reads."""

    def data(folder: Path) -> dict[str, bytes]:
        found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        del found["zarr.json"]
        return found

    assert data(store) == data(reference)
    read, wanted = zarr.open_group(store, mode="r"), zarr.open_group(reference, mode="r")
    assert sorted(read.array_keys()) == sorted(wanted.array_keys())
    assert all((read[name][:] == wanted[name][:]).all() for name in wanted.array_keys())  # type: ignore[union-attr,index]
    assert dtf.from_zarr(store).nrows == SHARDS * ROWS


def slow(ds: dtf.Dataset, seconds: float = 0.02) -> dtf.Dataset:
    def slowly(blocks: dict[str, Any]) -> dict[str, Any]:
        time.sleep(seconds)
        return blocks

    return ds.map_blocks(slowly, dict(ds.schema))


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_workers_are_killed(source: Path, store: Path, tmp_path: Path, grid: dict[str, Any]) -> None:
    ds, rng, killed = dtf.read_tfrecord(source), random.Random(str(grid)), 0
    deadline = time.monotonic() + 2 * PATIENCE
    ds.to_zarr(tmp_path / "reference.zarr", **grid)

    def convert(cluster: LocalCluster) -> None:
        def kill(alive: Callable[[], bool]) -> None:
            nonlocal killed
            while alive() and wait_for(marks(store) + rng.randrange(5, 40), store, alive):
                # A worker that is killed while it starts is not restarted.
                if wait_until(lambda: len(running(cluster)) == 2, alive) and len(pids := running(cluster)) == 2:
                    os.kill(rng.choice(pids), signal.SIGKILL)
                    killed += 1

        finished = False
        while not finished:
            assert time.monotonic() < deadline, f"workers were killed for {2 * PATIENCE} s"
            with meanwhile(kill):
                try:
                    slow(ds, 0.1).to_zarr(store, resume=True, **grid)
                    finished = True
                except KilledWorker:
                    # The conversion may have finished between two kills; it is resumed in any case.
                    with pytest.raises(IncompleteStoreError):
                        dtf.from_zarr(store)

    # A worker that starts for long, or is never started again, may find that the other one has written all.
    while killed < 2:
        assert time.monotonic() < deadline, f"workers were not started again within {2 * PATIENCE} s"
        shutil.rmtree(store, ignore_errors=True)
        with two_workers() as cluster, Client(cluster) as client:
            client.wait_for_workers(2, timeout=60)
            convert(cluster)
        equal(store, tmp_path / "reference.zarr")


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_the_client_is_killed_five_times(
    cluster: LocalCluster, source: Path, store: Path, tmp_path: Path, grid: dict[str, Any]
) -> None:
    dtf.read_tfrecord(source).to_zarr(tmp_path / "reference.zarr", **grid)
    program, log, rng = tmp_path / "program.py", tmp_path / "log", random.Random(str(grid))
    program.write_text(PROGRAM)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    arguments = [str(source), str(store), cluster.scheduler_address, str(log), repr(grid)]

    def convert() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(program), *arguments], cwd=tmp_path, env=environment)

    for _ in range(5):
        before = marks(store)
        with convert() as running:
            assert wait_for(before + rng.randrange(3, 12), store, lambda: running.poll() is None)
            running.kill()
        with pytest.raises(IncompleteStoreError, match="never finished"):
            dtf.from_zarr(store)
    with convert() as running:
        assert running.wait(300) == 0
    equal(store, tmp_path / "reference.zarr")
    # Rows are read to count, and for themselves, and for two arrays of values; six times of all that would be 24.
    rows = sum(map(int, log.read_text().split()))
    assert rows < 9 * SHARDS * ROWS


def test_units_of_a_lost_worker_are_not_written_again(
    client: Client, source: Path, store: Path, tmp_path: Path
) -> None:
    """Reports of units lie on the worker that wrote them; when it goes, its units need not be written again."""
    ds, log = dtf.read_tfrecord(source)[["label"]], tmp_path / "log"

    def logged(blocks: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.05)
        with log.open("a") as file:
            file.write(f"{blocks['label'][0]}\n")
        return blocks

    def kill(alive: Callable[[], bool]) -> None:
        if wait_for(60, store, alive):
            os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)

    with meanwhile(kill):
        ds.map_blocks(logged, dict(ds.schema)).to_zarr(store, chunks=20)
    assert dtf.from_zarr(store).nrows == SHARDS * ROWS
    # Two threads of the worker were at a unit each.
    assert len(log.read_text().split()) <= SHARDS * ROWS // 20 + 2


def test_a_disk_that_fills_up(client: Client, source: Path, tmp_path: Path) -> None:
    ds, disk = dtf.read_tfrecord(source), tmp_path / "disk"
    ds.to_zarr(tmp_path / "reference.zarr", chunks=30)
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("only root may mount a small disk, and not everywhere")
    try:
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            ds.to_zarr(disk / "store.zarr", chunks=30, resume=True)
        with pytest.raises(IncompleteStoreError):
            dtf.from_zarr(disk / "store.zarr")
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        ds.to_zarr(disk / "store.zarr", chunks=30, resume=True)
        equal(disk / "store.zarr", tmp_path / "reference.zarr")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_file_that_vanishes_and_comes_back(client: Client, source: Path, store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    for path in source.iterdir():
        os.link(path, folder / path.name)
    ds = dtf.read_tfrecord(folder)
    ds.to_zarr(tmp_path / "reference.zarr", chunks=30)
    last = folder / f"part-{SHARDS - 1}.tfrecord"

    def vanish(alive: Callable[[], bool]) -> None:
        if wait_for(5, store, alive):
            last.rename(tmp_path / "elsewhere")

    with meanwhile(vanish), pytest.raises(FileNotFoundError, match=last.name):
        slow(ds).to_zarr(store, chunks=30, resume=True)
    with pytest.raises(IncompleteStoreError):
        dtf.from_zarr(store)
    (tmp_path / "elsewhere").rename(last)
    slow(dtf.read_tfrecord(folder)).to_zarr(store, chunks=30, resume=True)
    equal(store, tmp_path / "reference.zarr")
