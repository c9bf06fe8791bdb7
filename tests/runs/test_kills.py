"""Shards and stores that are written or indexed on a cluster while its processes are killed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dask
import oracle
import psutil
import pytest
from distributed import KilledWorker
from support.killing import MARKS, Call, Cluster, Log, Progress, Published, Run, restless_cluster
from support.numbered_shards import write_shards
from support.store_round_trip import files_of

import dask_tfrecord as dtf
from dask_tfrecord.errors import IncompleteStoreError

pytestmark = MARKS
# Workers are killed in five ways, one in each round: two at random, the one that runs the last task, each one that
# begins it, and at night the others. Other rounds repeat them at other steps.
WAYS = [0, 3, 4, *(pytest.param(number, marks=pytest.mark.nightly) for number in (1, 2, *range(5, 10)))]
ROUNDS = [0, *(pytest.param(number, marks=pytest.mark.nightly) for number in range(1, 10))]
# Shards to write, and shards to index: enough for three tasks.
FEW, ROWS = 10, 12
SHARDS, SHARD_ROWS = 130, 2
NAMES = "part-{shard}.tfrecord"
LAST = NAMES.format(shard=FEW - 1)
# Records without payload, so that writing the index of their shard takes long.
MANY, RECORDS = "part-many.tfrecord", 300_000


def slowly(blocks: dict[str, Any], log: Path) -> dict[str, Any]:
    shard = blocks["label"][0] // ROWS
    if blocks["label"][0] % ROWS == 0:
        last = bool(shard == FEW - 1)
        Log(log).take(NAMES.format(shard=shard), 0.4 if last else 0.03, last)
    return blocks


def to_tfrecord(source: Path, target: Path, mode: Any, log: Path) -> None:
    ds = dtf.read_tfrecord(source / "few")
    ds.map_blocks(partial(slowly, log=log), dict(ds.schema)).to_tfrecord(target / NAMES, mode=mode, index=True)


def to_zarr(source: Path, target: Path, mode: str, log: Path) -> None:
    # Columns of one size are not counted, so that each block is read once.
    ds = dtf.read_tfrecord(source / "few")[["label"]]
    ds.map_blocks(partial(slowly, log=log), dict(ds.schema)).to_zarr(target / "x.zarr", resume=True, chunks=ROWS)


def build_index(source: Path, target: Path, mode: str, log: Path) -> str:
    return str([Path(path).name for path in dtf.build_index(target)])


WRITES = (to_tfrecord, to_zarr)


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


class Group(Published):
    """Zarr group, which is visible when it is complete."""

    def __init__(self, store: Path, reference: Path) -> None:
        self.store, self.reference = store, reference

    def contents(self) -> dict[str, bool]:
        return {}

    def check_complete(self) -> None:
        assert files_of(self.store) == files_of(self.reference)
        assert dtf.from_zarr(self.store).nrows == FEW * ROWS


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
    return folder


def fill(call: Callable[..., Any], mode: str, source: Path, target: Path) -> None:
    """Fill the output folder of a call: `build_index` writes next to its shards, and others may replace shards."""
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


@pytest.fixture(scope="module", params=[*WRITES, build_index], ids=lambda call: call.__name__)
def reference(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    call, folder = request.param, tmp_path_factory.mktemp("reference")
    target, log = folder / "target", Log(folder / "log")
    fill(call, "w-", source, target)
    with dask.config.set(scheduler="threads"):
        result = call(source, target, "w-", log.path)
    if call is to_tfrecord:
        for path in (source / "few").iterdir():
            assert oracle.read_oracle(target / path.name) == oracle.read_oracle(path)
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

    def start(self, cluster: Cluster, mode: str | None = None) -> Run:
        given = self.source, self.target, mode or self.mode, self.log.path
        call = Call(cluster.address, self.reference.call, *given)
        progress: Progress = self.log if self.writes else Indexing(self.target, cluster.workers)
        straggler = LAST if self.writes else MANY
        alone = self._only_the_last_remains if self.reference.call is to_tfrecord else None
        return Run(call, progress, self.reference.steps, straggler, self.published.contents, alone)

    def _only_the_last_remains(self) -> bool:
        names = {NAMES.format(shard=shard) for shard in range(FEW - 1)}
        # New files wait in the folder of the run, and their sidecars, too.
        finished = {path.name for path in self.target.glob(".dask-tfrecord-*/new/*")}
        return names | {f"{name}.idx" for name in names} <= finished

    def again(self, mode: str) -> None:
        """Repeat the call without a cluster."""
        with dask.config.set(scheduler="threads"):
            self.check(self.reference.call(self.source, self.target, mode, self.log.path))

    def check(self, result: Any) -> None:
        assert result == self.reference.result
        self.published.check_complete()
        self.check_files()

    def check_files(self) -> None:
        """Check that all visible files are complete, and that readers find exactly these."""
        contents = self.published.contents()
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
        _, error = run.call.outcome()
    # distributed states no reason for tasks that are submitted while the client tries to connect again.
    assert re.search("lost the connection to the scheduler|cancelled for reason: unknown", str(error))
    round_.check_files()
    round_.again("w")
