"""Shards written on a cluster whose workers, client or scheduler are killed midway."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dask
import oracle
import pytest
from distributed import KilledWorker
from support.killing import MARKS, Call, Cluster, Log, Published, Run, restless_cluster
from support.numbered_shards import write_shards

import dask_tfrecord as dtf

pytestmark = MARKS
# Workers are killed in five ways, one in each round. Other rounds repeat them at other steps.
WAYS = [*range(5), *(pytest.param(number, marks=pytest.mark.nightly) for number in range(5, 10))]
ROUNDS = [0, *(pytest.param(number, marks=pytest.mark.nightly) for number in range(1, 10))]
SHARDS, ROWS = 10, 12
NAMES = "part-{shard}.tfrecord"
LAST = NAMES.format(shard=SHARDS - 1)
# Seconds to write the last shard, and each other shard.
SECONDS = (0.4, 0.03)


def slowly(blocks: dict[str, Any], log: Path) -> dict[str, Any]:
    shard = blocks["label"][0] // ROWS
    if blocks["label"][0] % ROWS == 0:
        last = shard == SHARDS - 1
        Log(log).take(NAMES.format(shard=shard), SECONDS[int(not last)], bool(last))
    return blocks


def encode(source: Path, target: Path, mode: Any, log: Path) -> None:
    ds = dtf.read_tfrecord(source)
    ds.map_blocks(partial(slowly, log=log), dict(ds.schema)).to_tfrecord(target / NAMES, mode=mode, index=True)


def copy(source: Path, target: Path, mode: Any, log: Path) -> None:
    slow = {"log": str(log), "straggler": LAST, "seconds": SECONDS}
    dtf.copy_tfrecord(f"slow://{source}", target / NAMES, mode=mode, index=True, storage_options=slow)


Write = Callable[[Path, Path, str, Path], None]
WRITES: dict[str, Write] = {"to_tfrecord": encode, "copy": copy}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    write_shards(folder, SHARDS, ROWS)
    return folder


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Older shards of the same names."""
    folder = tmp_path_factory.mktemp("before")
    write_shards(folder, SHARDS, ROWS // 2)
    dtf.build_index(folder)
    return folder


@pytest.fixture(scope="module", params=WRITES)
def write(request: pytest.FixtureRequest) -> Write:
    return WRITES[request.param]


@pytest.fixture(scope="module")
def reference(write: Write, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of an undisturbed call, verified with the oracle."""
    folder = tmp_path_factory.mktemp("reference")
    with dask.config.set(scheduler="threads"):
        write(source, folder, "w-", folder.parent / "log")
    for path in source.iterdir():
        assert oracle.read_oracle(folder / path.name) == oracle.read_oracle(path)
    return folder


@pytest.fixture(params=["w-", "w"])
def mode(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


class Round:
    """Call with its own output folder, which contains older shards if the mode replaces them."""

    def __init__(self, write: Write, mode: str, source: Path, before: Path, reference: Path, folder: Path) -> None:
        self.write, self.mode, self.source = write, mode, source
        self.target, self.log = folder / "target", Log(folder / "log")
        self.target.mkdir()
        if mode == "w":
            shutil.copytree(before, self.target, dirs_exist_ok=True)
        self.published = Published(self.target, reference, before)

    def start(self, cluster: Cluster, mode: str | None = None) -> Run:
        call = Call(cluster.address, self.write, self.source, self.target, mode or self.mode, self.log.path)
        return Run(call, self.log, SHARDS, LAST, self.published.contents, self.all_but_the_last)

    def all_but_the_last(self) -> bool:
        names = {NAMES.format(shard=shard) for shard in range(SHARDS - 1)}
        return names | {f"{name}.idx" for name in names} <= {
            name for name, new in self.published.contents().items() if new
        }

    def check_readers(self) -> None:
        """Check that readers find the published shards only."""
        names = {name for name in self.published.contents() if name.endswith(".tfrecord")}
        if names:
            report = dtf.verify(self.target)
            # Tasks of a killed client may publish more shards meanwhile.
            assert names <= {Path(shard.path).name for shard in report.files} <= set(self.published.wanted)
            assert report.ok
            assert dtf.read_tfrecord(self.target).nrows >= report.records

    def check_complete(self) -> None:
        self.published.check_complete()
        self.check_readers()


@pytest.fixture
def round_(write: Write, mode: str, source: Path, before: Path, reference: Path, tmp_path: Path) -> Round:
    return Round(write, mode, source, before, reference, tmp_path)


@pytest.mark.parametrize("number", WAYS)
def test_killed_workers_lose_no_shard(round_: Round, number: int) -> None:
    with restless_cluster(restarts=number % 2 == 0) as cluster:
        run = round_.start(cluster)
        run.kill_workers(cluster, number)
        _, error = run.call.outcome()
        if error is not None:
            assert isinstance(error, KilledWorker)
            assert not any(round_.published.contents().values())
            round_.check_readers()
            assert round_.start(cluster).call.outcome() == (None, None)
    round_.check_complete()


@pytest.mark.parametrize("number", ROUNDS)
def test_a_killed_client_leaves_whole_shards(round_: Round, number: int) -> None:
    with restless_cluster() as cluster:
        round_.start(cluster).kill_client(number)
        round_.check_readers()
        assert round_.start(cluster, "w").call.outcome() == (None, None)
        round_.check_complete()
    round_.check_complete()


@pytest.mark.parametrize("number", ROUNDS)
def test_a_killed_scheduler_is_reported(round_: Round, number: int) -> None:
    with restless_cluster(restarts=False) as cluster:
        run = round_.start(cluster)
        run.kill_scheduler(cluster, number)
        _, error = run.call.outcome()
        assert "lost the connection to the scheduler" in str(error)
    round_.check_readers()
    with dask.config.set(scheduler="threads"):
        round_.write(round_.source, round_.target, "w", round_.log.path)
    round_.check_complete()
