"""Shards checked, repaired and indexed on a cluster whose workers, client or scheduler are killed midway."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import dask
import oracle
import psutil
import pytest
from distributed import KilledWorker
from support.killing import MARKS, Call, Cluster, Log, Progress, Published, Run, restless_cluster
from support.numbered_shards import write_shards

import dask_tfrecord as dtf

pytestmark = MARKS
# Workers are killed in five ways, one in each round. Other rounds repeat them at other steps.
WAYS = [*range(5), *(pytest.param(number, marks=pytest.mark.nightly) for number in range(5, 10))]
ROUNDS = [0, *(pytest.param(number, marks=pytest.mark.nightly) for number in range(1, 10))]
# Enough for three tasks.
SHARDS, ROWS = 130, 2
# Records without payload, so that writing the index of their shard takes long.
MANY, RECORDS = "part-many.tfrecord", 300_000
DAMAGED = "part-damaged.tfrecord"
# Seconds to open the damaged shard, and each other shard.
SECONDS = (0.4, 0.002)


def slow(log: Path) -> dict[str, object]:
    return {"log": str(log), "straggler": DAMAGED, "seconds": SECONDS}


def verify(source: Path, target: Path, log: Path) -> str:
    names = [f"slow://{source}/part-*.tfrecord", f"slow://{source}/damaged/{DAMAGED}"]
    return dtf.verify(names, storage_options=slow(log)).to_json()


def repair(source: Path, target: Path, log: Path) -> str:
    report = dtf.repair(f"slow://{source}/damaged/{DAMAGED}", target / "repaired.tfrecord", storage_options=slow(log))
    return str(report.to_dict())


def build_index(source: Path, target: Path, log: Path) -> str:
    return str([Path(path).name for path in dtf.build_index(target)])


Check = Callable[[Path, Path, Path], str]
CHECKS: dict[str, Check] = {"verify": verify, "repair": repair, "build_index": build_index}


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


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("indexed_gzip")
    folder = tmp_path_factory.mktemp("source")
    write_shards(folder, SHARDS, ROWS)
    payloads = oracle.read_payloads(folder / "part-0.tfrecord")
    oracle.write_oracle(folder / "part-1.tfrecord", payloads, "gzip")
    oracle.write_oracle(folder / MANY, [b""])
    (folder / MANY).write_bytes((folder / MANY).read_bytes() * RECORDS)
    (folder / "damaged").mkdir()
    oracle.write_oracle(folder / "damaged" / DAMAGED, payloads * 50)
    data = bytearray((folder / "damaged" / DAMAGED).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "damaged" / DAMAGED).write_bytes(data)
    return folder


def fill(name: str, source: Path, target: Path) -> None:
    """Fill the output folder of a call."""
    target.mkdir()
    for path in source.glob("part-*") if name == "build_index" else ():
        os.link(path, target / path.name)


@dataclass(frozen=True)
class Reference:
    """Result of an undisturbed call.

    Attributes
    ----------
    name : str
        Name of the function.
    source : Path
        Folder of shards.
    target : Path
        Folder of the files that the call writes.
    result : str
        Return value of the call.
    steps : int
        Steps in its log.
    """

    name: str
    source: Path
    target: Path
    result: str
    steps: int


@pytest.fixture(scope="module", params=CHECKS)
def reference(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    name, folder = request.param, tmp_path_factory.mktemp("reference")
    target, log = folder / "target", Log(folder / "log")
    fill(name, source, target)
    with dask.config.set(scheduler="threads"):
        result = CHECKS[name](source, target, log.path)
    if name == "repair":
        payloads = 50 * oracle.read_payloads(source / "part-0.tfrecord")
        assert oracle.read_payloads(target / "repaired.tfrecord") == payloads[:50] + payloads[51:]
    return Reference(name, source, target, result, log.steps() or SHARDS)


class Round:
    """Call with its own output folder."""

    def __init__(self, reference: Reference, folder: Path) -> None:
        self.reference, self.target, self.log = reference, folder / "target", Log(folder / "log")
        fill(reference.name, reference.source, self.target)
        self.published = Published(self.target, reference.target)
        self.before = (reference.source / "damaged" / DAMAGED).read_bytes()

    def start(self, cluster: Cluster) -> Run:
        check = CHECKS[self.reference.name]
        call = Call(cluster.address, check, self.reference.source, self.target, self.log.path)
        if check is build_index:
            progress: Progress = Indexing(self.target, cluster.workers)
            return Run(call, progress, self.reference.steps, MANY, self.published.contents, None)
        others = min(self.reference.steps - 1, SHARDS)
        return Run(
            call, self.log, self.reference.steps, DAMAGED, self.published.contents, lambda: self.log.steps() >= others
        )

    def again(self) -> None:
        """Repeat the call without a cluster."""
        with dask.config.set(scheduler="threads"):
            self.check(CHECKS[self.reference.name](self.reference.source, self.target, self.log.path))

    def check(self, result: str) -> None:
        assert result == self.reference.result
        self.published.check_complete()
        self.check_files()

    def check_files(self) -> None:
        """Check that all files are complete, and that temporary files are not read."""
        self.published.contents()
        assert (self.reference.source / "damaged" / DAMAGED).read_bytes() == self.before
        if self.reference.name == "build_index":
            # A warning is an error: no index is stale.
            assert dtf.read_tfrecord(self.target / "part-?.tfrecord", {}).nrows == 10 * ROWS
            assert dtf.verify(self.target).records == SHARDS * ROWS + RECORDS


@pytest.fixture
def round_(reference: Reference, tmp_path: Path) -> Round:
    return Round(reference, tmp_path)


@pytest.mark.parametrize("number", WAYS)
def test_killed_workers_change_no_result(round_: Round, number: int) -> None:
    with restless_cluster(restarts=number % 2 == 0) as cluster:
        run = round_.start(cluster)
        run.kill_workers(cluster, number)
        result, error = run.call.outcome()
    if error is None:
        round_.check(result)
    else:
        assert isinstance(error, KilledWorker)
        round_.check_files()
        round_.again()


@pytest.mark.parametrize("number", ROUNDS)
def test_a_killed_client_leaves_whole_files(round_: Round, number: int) -> None:
    with restless_cluster() as cluster:
        round_.start(cluster).kill_client(number)
        round_.check_files()
        round_.again()
    round_.check_files()


@pytest.mark.parametrize("number", ROUNDS)
def test_a_killed_scheduler_is_reported(round_: Round, number: int) -> None:
    with restless_cluster(restarts=False) as cluster:
        run = round_.start(cluster)
        run.kill_scheduler(cluster, number)
        result, error = run.call.outcome()
    if error is None:
        # The client had received all results before the scheduler was killed.
        assert round_.reference.name == "repair"
        round_.check(result)
    else:
        assert "lost the connection to the scheduler" in str(error)
        round_.check_files()
        round_.again()
