"""Write units of Zarr: for any shards and chunks, schedulers and orders, each chunk is written once.

Shards of some 200 rows, of one and of none; chunks and shards that divide neither those nor each other.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from dask.delayed import Delayed
from distributed import Client
from support.any_columns import FEATURES, fitting_rows, written_as
from support.disk_writes import put_each
from support.raced_writes import RecordingStore, Shuffled, ShuffledPool, events, recorded
from support.store_round_trip import assert_same

import dask_tfrecord as dtf
from dask_tfrecord.shards.objects import DirectoryObjects

# Of each of the two workers.
THREADS = 4
SIZES = (237, 1, 0, 231, 0, 203, 1)
FEW = (6, 1, 0, 7)
NAMES = ("dense", "raw", "text", "bytes", "pair", "ragged", "boxes", "words", "nested", "deep", "image", "tensor")
KINDS = {name: FEATURES[name] for name in (*NAMES, "strings")}
SCHEMA = written_as(KINDS, steps=False)
# Entries of flat arrays at odd sizes, which rows know nothing of.
ENTRIES = {"ragged.values": 2201, "words.values": 701, "words.byte_splits": 103, "deep.row_splits_1": 101}
GRIDS: dict[str, dict[str, Any]] = {
    "chunks": {"chunks": dict.fromkeys(SCHEMA, 97) | ENTRIES},
    "shards": {"chunks": 17, "shards": "7001 B"},
    "one chunk": {"chunks": 100_000},
    "one shard": {"chunks": 83, "shards": 83 * 20},
    "by name": {
        "chunks": dict.fromkeys(SCHEMA, 105) | {"raw": 21, "dense": 7, "ragged": 35, "image": 35} | ENTRIES,
        "shards": {"dense": 21, "image": 105, "ragged.values": 4402, "words.byte_splits": 309},
    },
    "two tasks": {"chunks": 500},
    "rows": {"chunks": "64 B"},
    "row shards": {"chunks": "16 B", "shards": "80 B"},
    "small rows": {},
    "small rows in shards": {"shards": "4000 B"},
    "a long chunk": {"chunks": {"raw": 400}},
}
# There are many units, and arrays of small rows span several of them.
LIMITS = {"min_write_tasks": 4, "write_unit_nbytes": 3000, "least_unit_nbytes": 1000, "small_rows_nbytes": 500}


def write_every_kind(folder: Path, sizes: Sequence[int]) -> str:
    """Write rows of every layout to shards of some sizes, and return their pattern."""
    rng = np.random.default_rng(11)
    for number, size in enumerate(sizes):
        columns = {name: fitting_rows(feature, size, rng) for name, feature in KINDS.items()}
        dtf.to_tfrecord(columns, folder / f"part-{number:05d}.tfrecord", features=SCHEMA)
    return f"{folder}/part-*.tfrecord"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_every_kind(tmp_path_factory.mktemp("many"), SIZES)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_every_kind(tmp_path_factory.mktemp("few"), FEW)


@pytest.fixture
def case(request: pytest.FixtureRequest, set_limits: Any) -> tuple[dtf.Dataset, dict[str, Any]]:
    """Columns of some shards, and the chunks and shards to convert them to."""
    name: str = request.param
    if name.startswith(("small rows", "a long")):
        set_limits(**LIMITS)
    shards = request.getfixturevalue("few" if name in ("rows", "row shards") else "many")
    ds = dtf.read_tfrecord(shards, SCHEMA)
    return ds[["raw", "dense", "ragged"]] if name == "two tasks" else ds, GRIDS[name]


def chunk_keys(group: zarr.Group) -> Iterator[str]:
    """What has to be there: a key for each chunk, or for each shard."""
    for name, array in group.arrays():
        sizes = zip(array.shape, array.shards or array.chunks, strict=True)
        for place in itertools.product(*(range(math.ceil(size / unit)) for size, unit in sizes)):
            yield "/".join([name, "c", *map(str, place)])


def converted(case: tuple[dtf.Dataset, dict[str, Any]], folder: Path, seed: int) -> set[str]:
    """Convert on the active scheduler, check everything, and return the processes of tasks that wrote something."""
    dataset, grid = case
    folder.mkdir()
    with dask.annotate(priority=Shuffled(seed)):
        plan = dataset.plan_zarr(**grid)
    written = plan.to_zarr(RecordingStore.at(folder / "store.zarr", folder / "log", seed), compute=False)
    assert isinstance(written, Delayed)
    recorded(written, folder / "log", seed).compute()
    happened = events(folder / "log")
    with dask.config.set(scheduler="threads"):
        assert_same(dtf.from_zarr(folder / "store.zarr").compute(), dataset.compute())
    # Every chunk was written once, by one task, which read none; each task has something to write.
    writes = [event for event in happened if event.what == "write"]
    assert Counter(event.key for event in writes) == Counter(chunk_keys(zarr.open_group(folder / "store.zarr")))
    assert not [event for event in happened if event.what == "read"]
    tasks = {event.task for event in writes}
    assert "" not in tasks and len(tasks) == plan.tasks
    return {event.process for event in writes}


QUICK = ("two tasks",)
CASES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in GRIDS]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, pytest.param(3, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("case", CASES, indirect=True)
def test_threads_write_each_chunk_once(case: Any, tmp_path: Path, seeds: int) -> None:
    for seed in range(seeds):
        threads = (24, 2, 8)[seed]
        with ShuffledPool(threads, seed) as pool, dask.config.set(scheduler="threads", pool=pool):
            converted(case, tmp_path / f"{seed}", seed)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("seeds", [1, pytest.param(3, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("case", "processes"), [("shards", 2), ("two tasks", 1)], indirect=["case"])
def test_a_cluster_writes_each_chunk_once(case: Any, processes: int, tmp_path: Path, seeds: int) -> None:
    for seed in range(seeds):
        assert len(converted(case, tmp_path / f"{seed}", seed)) >= processes


def fails_late(blocks: dict[str, Any]) -> dict[str, Any]:
    if (blocks["label"] % 120 == 5).any():
        raise RuntimeError("this row is no good")
    return blocks


def slow_down(seconds: float) -> None:
    """Let chunks take a while to be written in this process."""
    put: Any = getattr(DirectoryObjects.put, "whole", DirectoryObjects.put)

    def slow(self: DirectoryObjects, name: str, value: Any) -> None:
        time.sleep(seconds)
        put(self, name, value)

    slow.whole = put  # type: ignore[attr-defined]
    DirectoryObjects.put, DirectoryObjects.put_all = slow, put_each  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.integration
def test_a_cluster_that_fails_leaves_no_store_behind(tmp_path: Path, client: Client) -> None:
    ds = dtf.Dataset.from_arrays({"label": da.arange(600, chunks=200)})
    client.run(slow_down, 0.4)
    try:
        with pytest.raises(RuntimeError, match="this row is no good"):
            ds.map_blocks(fails_late).to_zarr(tmp_path / "store.zarr", chunks=30)
        assert not list(tmp_path.iterdir())
        time.sleep(0.5)
        assert not list(tmp_path.iterdir())
    finally:
        client.run(slow_down, 0)
