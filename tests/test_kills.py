"""Shards and stores that are written, checked, repaired or indexed on a cluster while its processes are killed."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dask
import oracle
import psutil
import pytest
from distributed import Client, KilledWorker
from support.killing import MARKS, Call, Cluster, Log, Progress, Published, Run, meanwhile, restless_cluster
from support.numbered_shards import write_shards
from support.waiting import wait_until

import dask_tfrecord as dtf
from dask_tfrecord.errors import IncompleteStoreError

pytestmark = MARKS
# Workers are killed in five ways, one in each round. Other rounds repeat them at other steps.
WAYS = [*range(5), *(pytest.param(number, marks=pytest.mark.nightly) for number in range(5, 10))]
ROUNDS = [0, *(pytest.param(number, marks=pytest.mark.nightly) for number in range(1, 10))]
# Shards to write, and shards to check: enough for three tasks.
FEW, ROWS = 10, 12
SHARDS, SHARD_ROWS = 130, 2
NAMES = "part-{shard}.tfrecord"
LAST, DAMAGED = NAMES.format(shard=FEW - 1), "part-damaged.tfrecord"
TENSOR = f"{Path(__file__).parent / 'data' / 'protos' / 'event.desc'}:tensorflow.TensorProto"
# Records without payload, so that writing the index of their shard takes long.
MANY, RECORDS = "part-many.tfrecord", 300_000


def slow(log: Path, straggler: str, seconds: tuple[float, float]) -> dict[str, Any]:
    """Return options of a file system on which one file takes long to open, and each other file some time."""
    return {"log": str(log), "straggler": straggler, "seconds": seconds}


def slowly(blocks: dict[str, Any], log: Path) -> dict[str, Any]:
    shard = blocks["label"][0] // ROWS
    if blocks["label"][0] % ROWS == 0:
        last = bool(shard == FEW - 1)
        Log(log).take(NAMES.format(shard=shard), 0.4 if last else 0.03, last)
    return blocks


def to_tfrecord(source: Path, target: Path, mode: Any, log: Path) -> None:
    ds = dtf.read_tfrecord(source / "few")
    ds.map_blocks(partial(slowly, log=log), dict(ds.schema)).to_tfrecord(target / NAMES, mode=mode, index=True)


def to_messages(source: Path, target: Path, mode: Any, log: Path) -> None:
    fields = {"label": dtf.ProtoFeature("version_number"), "tokens": dtf.ProtoFeature("int64_val")}
    ds = dtf.read_tfrecord(source / "few")[["label", "tokens"]]
    ds = ds.map_blocks(partial(slowly, log=log), dict(ds.schema))
    ds.to_tfrecord(target / NAMES, mode=mode, index=True, features=fields, message=TENSOR)


def copy(source: Path, target: Path, mode: Any, log: Path) -> None:
    options = slow(log, LAST, (0.4, 0.03))
    dtf.copy_tfrecord(f"slow://{source}/few", target / NAMES, mode=mode, index=True, storage_options=options)


def to_zarr(source: Path, target: Path, mode: str, log: Path) -> None:
    # Columns of one size are not counted, so that each block is read once.
    ds = dtf.read_tfrecord(source / "few")[["label"]]
    ds.map_blocks(partial(slowly, log=log), dict(ds.schema)).to_zarr(target / "x.zarr", resume=True, chunks=ROWS)


def verify(source: Path, target: Path, mode: str, log: Path) -> str:
    names = [f"slow://{source}/many/part-*.tfrecord", f"slow://{source}/{DAMAGED}"]
    return dtf.verify(names, storage_options=slow(log, DAMAGED, (0.4, 0.002))).to_json()


def repair(source: Path, target: Path, mode: str, log: Path) -> str:
    options = slow(log, DAMAGED, (0.4, 0.002))
    report = dtf.repair(f"slow://{source}/{DAMAGED}", target / "repaired.tfrecord", storage_options=options)
    return str(report.to_dict())


def build_index(source: Path, target: Path, mode: str, log: Path) -> str:
    return str([Path(path).name for path in dtf.build_index(target)])


WRITES = (to_tfrecord, to_messages, copy, to_zarr)


class Indexing:
    """Progress of `build_index`: its files, and the workers that have a shard open."""

    def __init__(self, folder: Path, workers: Callable[[], list[int]]) -> None:
        self.folder, self.workers = folder, workers

    def steps(self) -> int:
        return len(list(self.folder.glob("*.idx")))

    def held(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def processes(self, name: str) -> set[int]:
        return {worker for worker in self.workers() if self._reads(worker, name)}

    def _reads(self, worker: int, name: str) -> bool:
        try:
            return str(self.folder / name) in {file.path for file in psutil.Process(worker).open_files()}
        except psutil.Error:
            return False


def equal(store: Path, reference: Path) -> None:
    """Compare the files of stores except for the identities of conversions."""

    def data(folder: Path) -> dict[str, bytes]:
        found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        del found["zarr.json"]
        return found

    assert data(store) == data(reference)
    assert dtf.from_zarr(store).nrows == dtf.from_zarr(reference).nrows


class Group(Published):
    """Zarr group, which is visible when it is complete."""

    def __init__(self, store: Path, reference: Path) -> None:
        self.store, self.reference = store, reference

    def contents(self) -> dict[str, bool]:
        return {}

    def check_complete(self) -> None:
        equal(self.store, self.reference)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("indexed_gzip")
    folder = tmp_path_factory.mktemp("source")
    for name, shards, rows in (("few", FEW, ROWS), ("before", FEW, ROWS // 2), ("many", SHARDS, SHARD_ROWS)):
        (folder / name).mkdir()
        write_shards(folder / name, shards, rows)
    # Older shards of the same names.
    dtf.build_index(folder / "before")
    payloads = oracle.read_payloads(folder / "many" / "part-0.tfrecord")
    oracle.write_oracle(folder / "many" / "part-1.tfrecord", payloads, "gzip")
    oracle.write_oracle(folder / "many" / MANY, [b""])
    (folder / "many" / MANY).write_bytes((folder / "many" / MANY).read_bytes() * RECORDS)
    oracle.write_oracle(folder / DAMAGED, payloads * 50)
    data = bytearray((folder / DAMAGED).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / DAMAGED).write_bytes(data)
    return folder


def fill(call: Callable[..., Any], mode: str, source: Path, target: Path) -> None:
    """Fill the output folder of a call: `build_index` writes beside its shards, and others may replace shards."""
    target.mkdir()
    if call is build_index:
        for path in (source / "many").iterdir():
            os.link(path, target / path.name)
    if call in WRITES and call is not to_zarr and mode == "w":
        shutil.copytree(source / "before", target, dirs_exist_ok=True)


@dataclass(frozen=True)
class Reference:
    """Call that nothing disturbs."""

    call: Callable[[Path, Path, str, Path], Any]
    source: Path
    target: Path
    result: Any
    steps: int


@pytest.fixture(scope="module", params=[*WRITES, verify, repair, build_index], ids=lambda call: call.__name__)
def reference(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    call, folder = request.param, tmp_path_factory.mktemp("reference")
    target, log = folder / "target", Log(folder / "log")
    fill(call, "w-", source, target)
    with dask.config.set(scheduler="threads"):
        result = call(source, target, "w-", log.path)
    if call in (to_tfrecord, copy):
        for path in (source / "few").iterdir():
            assert oracle.read_oracle(target / path.name) == oracle.read_oracle(path)
    if call is to_messages:
        ds = dtf.read_tfrecord(target, message=TENSOR)
        assert ds["version_number"].compute().tolist() == [*range(FEW * ROWS)]
    if call is repair:
        payloads = 50 * oracle.read_payloads(source / "many" / "part-0.tfrecord")
        assert oracle.read_payloads(target / "repaired.tfrecord") == payloads[:50] + payloads[51:]
    return Reference(call, source, target, result, log.steps() or SHARDS)


class Round:
    """Call with its own output folder, which contains older shards if the mode replaces them."""

    def __init__(self, reference: Reference, mode: str, folder: Path) -> None:
        self.reference, self.mode = reference, mode
        self.source, self.target, self.log = reference.source, folder / "target", Log(folder / "log")
        self.writes = reference.call in WRITES
        fill(reference.call, mode, self.source, self.target)
        if reference.call is to_zarr:
            self.published: Published = Group(self.target / "x.zarr", reference.target / "x.zarr")
        else:
            self.published = Published(self.target, reference.target, self.source / "before")
        self.damaged = (self.source / DAMAGED).read_bytes()

    def start(self, cluster: Cluster, mode: str | None = None) -> Run:
        given = self.source, self.target, mode or self.mode, self.log.path
        call = Call(cluster.address, self.reference.call, *given)
        progress: Progress = self.log
        straggler, alone = DAMAGED, self._only_the_damaged_remains
        if self.writes:
            straggler, alone = LAST, None if self.reference.call is to_zarr else self._only_the_last_remains
        elif self.reference.call is build_index:
            progress, straggler, alone = Indexing(self.target, cluster.workers), MANY, None
        return Run(call, progress, self.reference.steps, straggler, self.published.contents, alone)

    def _only_the_last_remains(self) -> bool:
        names = {NAMES.format(shard=shard) for shard in range(FEW - 1)}
        published = {name for name, new in self.published.contents().items() if new}
        return names | {f"{name}.idx" for name in names} <= published

    def _only_the_damaged_remains(self) -> bool:
        return self.log.steps() >= min(self.reference.steps - 1, SHARDS)

    def again(self, mode: str) -> None:
        """Repeat the call without a cluster."""
        with dask.config.set(scheduler="threads"):
            self.check(self.reference.call(self.source, self.target, mode, self.log.path))

    def check(self, result: Any) -> None:
        assert result == self.reference.result
        self.published.check_complete()
        self.check_files()

    def check_files(self) -> None:
        """Check that all visible files are complete, and that readers find them and nothing else."""
        contents = self.published.contents()
        assert (self.source / DAMAGED).read_bytes() == self.damaged
        names = {name for name in contents if name.endswith(".tfrecord")}
        if self.writes and names:
            report = dtf.verify(self.target)
            # Tasks of a killed client may publish more shards meanwhile.
            assert names <= {Path(shard.path).name for shard in report.files} <= set(self.published.wanted)
            assert report.ok
            assert dtf.read_tfrecord(self.target, {}).nrows >= report.records
        if self.reference.call is to_zarr:
            with contextlib.suppress(IncompleteStoreError, FileNotFoundError):
                assert dtf.from_zarr(self.target / "x.zarr").nrows == FEW * ROWS
        if self.reference.call is build_index:
            # A warning is an error: no index is stale.
            assert dtf.read_tfrecord(self.target / "part-?.tfrecord", {}).nrows == 10 * SHARD_ROWS
            assert dtf.verify(self.target).records == SHARDS * SHARD_ROWS + RECORDS


@pytest.fixture
def round_(reference: Reference, number: int, tmp_path: Path) -> Round:
    return Round(reference, "w" if number // 2 % 2 else "w-", tmp_path)


@pytest.mark.parametrize("number", WAYS)
def test_killed_workers_change_no_result(round_: Round, number: int) -> None:
    with restless_cluster(restarts=number % 2 == 0) as cluster:
        run = round_.start(cluster)
        run.kill_workers(cluster, number)
        result, error = run.call.outcome()
    if error is None:
        round_.check(result)
        return
    assert isinstance(error, KilledWorker)
    assert not (round_.writes and any(round_.published.contents().values()))
    round_.check_files()
    round_.again(round_.mode)


@pytest.mark.parametrize("number", ROUNDS)
def test_a_killed_client_leaves_whole_files(round_: Round, number: int) -> None:
    with restless_cluster() as cluster:
        round_.start(cluster).kill_client(number)
        round_.check_files()
        if round_.writes:
            # Tasks of the killed client may still be running.
            assert round_.start(cluster, "w").call.outcome() == (None, None)
            round_.published.check_complete()
        else:
            round_.again("w")
    round_.check_files()


@pytest.mark.parametrize("number", ROUNDS)
def test_a_killed_scheduler_is_reported(round_: Round, number: int) -> None:
    with restless_cluster(restarts=False) as cluster:
        run = round_.start(cluster)
        run.kill_scheduler(cluster, number)
        result, error = run.call.outcome()
    if error is None:
        # The client had received all results before the scheduler was killed.
        assert round_.reference.call is repair
        round_.check(result)
        return
    assert "lost the connection to the scheduler" in str(error)
    round_.check_files()
    round_.again("w")


# -- stores whose workers, disk or files are lost; what was written is kept


def when_written(number: int, store: Path, act: Callable[[], object]) -> contextlib.AbstractContextManager[None]:
    """Act in another thread when that many units are recorded."""

    def watch(alive: Callable[[], bool]) -> None:
        if wait_until(lambda: len(list(store.glob(".dask_tfrecord/*/units/*.json"))) >= number, alive):
            act()

    return meanwhile(watch)


def slow_and_logged(ds: dtf.Dataset, log: Path) -> dtf.Dataset:
    def read(blocks: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.02)
        with log.open("a") as file:
            file.write(f"{blocks['label'][0]}\n")
        return blocks

    return ds.map_blocks(read, dict(ds.schema))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    (tmp_path / "shards").mkdir()
    write_shards(tmp_path / "shards", 8, 250, most_tokens=117)
    return tmp_path / "shards"


def test_a_disk_that_fills_up(client: Client, shards: Path, tmp_path: Path) -> None:
    ds, disk = dtf.read_tfrecord(shards), tmp_path / "disk"
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


def test_a_file_that_vanishes_and_comes_back(client: Client, shards: Path, store: Path, tmp_path: Path) -> None:
    last, elsewhere = shards / "part-7.tfrecord", tmp_path / "elsewhere"
    ds = slow_and_logged(dtf.read_tfrecord(shards), tmp_path / "log")
    ds.to_zarr(tmp_path / "reference.zarr", chunks=30)
    with when_written(5, store, lambda: last.rename(elsewhere)), pytest.raises(FileNotFoundError, match=last.name):
        ds.to_zarr(store, chunks=30, resume=True)
    with pytest.raises(IncompleteStoreError):
        dtf.from_zarr(store)
    elsewhere.rename(last)
    slow_and_logged(dtf.read_tfrecord(shards), tmp_path / "log").to_zarr(store, chunks=30, resume=True)
    equal(store, tmp_path / "reference.zarr")


# The last test: it kills a worker of the client of the module.
def test_units_of_a_lost_worker_are_not_written_again(
    client: Client, shards: Path, store: Path, tmp_path: Path
) -> None:
    """Reports of units lie on the worker that wrote them; when it goes, its units need not be written again."""
    processes = client.run(os.getpid)
    ds = slow_and_logged(dtf.read_tfrecord(shards)[["label"]], tmp_path / "log")
    with when_written(60, store, lambda: os.kill(next(iter(processes.values())), signal.SIGKILL)):
        ds.to_zarr(store, chunks=20)
    assert dtf.from_zarr(store).nrows == 2000
    # The thread of the worker was at a unit.
    assert len((tmp_path / "log").read_text().split()) <= 2000 // 20 + 2
