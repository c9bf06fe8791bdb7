"""Records that are decoded for each request, on threads and on two worker processes.

No result depends on how often a record is decoded, or together with which columns, and a function of the user sees its
own column only. The debug log for users has a line for each decode, which these tests read.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
from dask.base import tokenize
from dask.callbacks import Callback
from dask.graph_manipulation import clone
from dask.utils import key_split
from distributed import Client, LocalCluster, futures_of, wait
from numpy.typing import NDArray
from oracle import write_oracle
from support.few import mostly_slow
from support.store_round_trip import assert_same
from support.waiting import wait_until
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.blocks import Block
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.rows.rows import Rows
from dask_tfrecord.settings import replaced_limits

# Workers cannot import this module: its functions are pickled by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

FEATURES: dict[str, Any] = {
    "label": dtf.FixedLenFeature((), "int64"),
    "image": dtf.FixedLenFeature((2, 3), "float32"),
    "id": dtf.FixedLenFeature((), "int64"),
    "text": dtf.TextFeature(),
    "tokens": dtf.VarLenFeature("int64"),
}
SHARDS, RECORDS = 4, 50
ROWS = SHARDS * RECORDS

# Decoded features, number of the shard, first decoded record, and number of records.
Decode = tuple[tuple[str, ...], int, int, int]


def payload(row: int) -> bytes:
    return example(
        label=[row],
        image=[row + column / 8 for column in range(6)],
        id=[-row],
        text=[f"Nº {row}".encode()],
        tokens=list(range(row % 4)),
    )


IMAGES = (np.arange(ROWS)[:, None] + np.arange(6) / 8).astype("f4").reshape(ROWS, 2, 3)
LABELS = np.arange(ROWS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shards")
    for number in range(SHARDS):
        write_oracle(path / f"part-{number}", map(payload, range(number * RECORDS, (number + 1) * RECORDS)))
    return path


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Cluster of two processes that is not the default scheduler."""
    with (
        LocalCluster(n_workers=2, processes=True, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


class Record(logging.Handler):
    """Handler that collects the records of a logger."""

    def __init__(self, logger: str, level: int) -> None:
        super().__init__(level)
        self.found: list[logging.LogRecord] = []
        logging.getLogger(logger).addHandler(self)
        logging.getLogger(logger).setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record)


def listen(dask_worker: Any) -> None:
    dask_worker.decodes = Record("dask_tfrecord.columns.decoder", logging.DEBUG)


def told(dask_worker: Any) -> list[tuple[Any, ...]]:
    """Return the decodes of this worker since the last call."""
    arguments = [record.args for record in dask_worker.decodes.found]
    dask_worker.decodes.found.clear()
    return arguments


def forget(dask_worker: Any) -> None:
    logging.getLogger("dask_tfrecord.columns.decoder").removeHandler(dask_worker.decodes)


Decodes = Callable[[], list[Decode]]


@pytest.fixture(params=["threads", pytest.param("cluster", marks=pytest.mark.integration)])
def decodes(request: pytest.FixtureRequest) -> Iterator[Decodes]:
    """Return the decodes since the last call; the test computes on the scheduler of the parameter."""
    here = SimpleNamespace()
    client: Client | None = request.getfixturevalue("client") if request.param == "cluster" else None

    def take() -> list[Decode]:
        found = told(here) if client is None else chain.from_iterable(client.run(told).values())
        return sorted((tuple(sorted(names)), int(path.rpartition("-")[2]), *rows) for names, *rows, path in found)

    if client is None:
        listen(here)
        with dask.config.set(scheduler="threads"):
            yield take
        forget(here)
        logging.getLogger("dask_tfrecord.columns.decoder").setLevel(logging.NOTSET)
    else:
        client.run(listen)
        with client.as_current():
            yield take
        client.run(forget)


def by_shard(*names: str) -> list[Decode]:
    """All features, with one chunk per shard."""
    return [(names, number, 0, RECORDS) for number in range(SHARDS)]


@pytest.fixture
def ds(folder: Path) -> dtf.Dataset:
    return dtf.read_tfrecord(folder, FEATURES, chunks="shard")


# -- what is decoded ---------------------------------------------------------------------------------------------------


def test_columns_requested_together_are_decoded_together(ds: dtf.Dataset, decodes: Decodes) -> None:
    ds["label"].mean().compute()
    assert decodes() == by_shard("label")
    image, label = ds["image", "label"]
    dask.compute(image, label)
    assert decodes() == by_shard("image", "label")
    # Independent of their use and of the order of the request.
    image, label = ds["label", "image"][::-1]
    total, most, both = dask.compute(image.sum(), label.max(), (image * label[:, None, None]).sum())
    assert (total, most, both) == (IMAGES.sum(), ROWS - 1, (IMAGES * LABELS[:, None, None]).sum())
    assert decodes() == by_shard("image", "label")
    # Two uses of a column are one decode.
    label = ds["label"]
    dask.compute(label.sum(), label.max(), (label + 1)[::2], ds["label"])
    assert decodes() == by_shard("label")
    # So is a whole data set.
    ds.compute()
    assert decodes() == by_shard(*sorted(FEATURES))
    dask.compute(ds, ds.assign(more=ds["label"] * 2)[["more"]])
    assert decodes() == sorted([*by_shard(*sorted(FEATURES)), *by_shard("label")])
    # Shared inputs are cloned, too.
    np.testing.assert_array_equal(clone(image).compute(), IMAGES)
    assert decodes() == by_shard("image", "label")


def test_slices_decode_just_their_records(ds: dtf.Dataset, decodes: Decodes) -> None:
    image = ds["image"]
    cases: list[tuple[Any, list[tuple[int, int, int]]]] = [
        (np.s_[95:105], [(1, 45, 5), (2, 0, 5)]),
        (np.s_[-1], [(3, 49, 1)]),
        (np.s_[60, 1], [(1, 10, 1)]),
        (np.s_[-3:, 0, 1], [(3, 47, 3)]),
        (np.s_[:0], []),
        # For a run with other records in between, the log lists the selected ones.
        (np.s_[10:40:15], [(0, 10, 2)]),
    ]
    for key, records in cases:
        np.testing.assert_array_equal(image[key].compute(), IMAGES[key])
        assert decodes() == [(("image",), *record) for record in records], key
    np.testing.assert_array_equal((image[95:105] * 2).sum(axis=(1, 2)).compute(), (IMAGES[95:105] * 2).sum((1, 2)))
    assert decodes() == [(("image",), 1, 45, 5), (("image",), 2, 0, 5)]


def test_rows_decode_just_their_records(ds: dtf.Dataset, decodes: Decodes) -> None:
    names = tuple(sorted(FEATURES))
    cases: list[tuple[Any, list[tuple[int, int, int]]]] = [
        (slice(95, 105), [(1, 45, 5), (2, 0, 5)]),
        (-1, [(3, 49, 1)]),
        ([199, 3, 3, 4, 120], [(0, 3, 2), (2, 20, 1), (3, 49, 1)]),
        (np.isin(LABELS, [7, 60]), [(0, 7, 1), (1, 10, 1)]),
        (slice(5, 5), []),
    ]
    for key, records in cases:
        rows = ds.rows[key]
        np.testing.assert_array_equal(rows["label"].compute(), np.atleast_1d(LABELS[key]))
        assert decodes() == [(("label",), *record) for record in records], key
        dask.compute(*rows["image", "label"])
        assert decodes() == [(("image", "label"), *record) for record in records], key
        rows.compute()
        assert decodes() == [(names, *record) for record in records], key
    assert ds.head(3)["label"].tolist() == [0, 1, 2]
    assert decodes() == [(names, 0, 0, 3)]
    assert ds[["id"]].head(52)["id"].tolist() == (-LABELS[:52]).tolist()
    assert decodes() == [(("id",), 0, 0, 50), (("id",), 1, 0, 2)]


def test_map_blocks_decodes_its_inputs_once(ds: dtf.Dataset, decodes: Decodes) -> None:
    mapped = ds[["image", "id"]].map_blocks(lambda blocks: {"a": blocks["image"] * 2, "b": blocks["id"]})
    decodes()
    dask.compute(*mapped["a", "b"])
    assert decodes() == by_shard("id", "image")
    np.testing.assert_array_equal(mapped["a"][95:105].compute(), IMAGES[95:105] * 2)
    assert decodes() == [(("id", "image"), 1, 45, 5), (("id", "image"), 2, 0, 5)]
    np.testing.assert_array_equal(mapped.rows[[0, 199]].compute()["b"], [0, -199])
    assert decodes() == [(("id", "image"), 0, 0, 1), (("id", "image"), 3, 49, 1)]


def test_ragged_parts_share_a_decode(ds: dtf.Dataset, decodes: Decodes) -> None:
    values, splits = dask.compute(*ds.ragged("tokens"))
    assert (len(values), splits[-1]) == (300, 300)
    assert decodes() == by_shard("tokens")
    ds.padded("tokens", 3)[:50].compute()
    assert decodes() == [(("tokens",), 0, 0, 50)]


def test_persisted_chunks_are_not_decoded_again(ds: dtf.Dataset, decodes: Decodes) -> None:
    kept = ds.persist()
    wait_for(kept)
    assert decodes() == by_shard(*sorted(FEATURES))
    kept.compute()
    np.testing.assert_array_equal(kept["image"][95:105].compute(), IMAGES[95:105])
    dask.compute(*kept["text", "tokens"], *kept.ragged("tokens"), kept.padded("tokens", 5))
    kept.rows[::-7].compute()
    kept.map_blocks(lambda blocks: {"x": blocks["label"] * 2}).persist().compute()
    kept.head()
    assert decodes() == []


def wait_for(dataset: dtf.Dataset) -> None:
    if futures := futures_of(dataset):
        wait(futures, timeout=300)


def test_nothing_is_decoded_while_graphs_are_built(folder: Path, decodes: Decodes) -> None:
    dense = {name: FEATURES[name] for name in ("label", "image", "id")}
    for ds in (
        dtf.read_tfrecord(folder, dense),
        dtf.read_tfrecord(folder, FEATURES, chunks=30),
        dtf.read_tfrecord(folder, FEATURES, counts=None),
        dtf.read_tfrecord(folder, chunks="shard"),
    ):
        made: list[Any] = [*ds.values(), *ds["label", "image"], ds[["id", "label"]]]
        made += [ds.map_blocks(lambda blocks: {"x": blocks["label"] + 1})["x"], ds.assign(more=ds["label"] + 1)]
        made += [ds["image"].mean(axis=0), ds["label"] > 3]
        if ds.nrows is not None:
            made += [(ds["label"] * 2)[3:], ds.rows[3:9], ds.rows[[1, 5]]["image"], ds["image"][::3, 0]]
        if "tokens" in ds and "VarLen" in str(ds.schema["tokens"]):
            made += [*ds.ragged("tokens"), ds.padded("tokens", 3)]
        for one in made:
            tokenize(one)
            repr(one)
            one.__dask_graph__()
        da.Array.__dask_optimize__(made[0].dask, made[0].__dask_keys__())
    assert decodes() == []


def test_uncounted_shards_are_decoded_by_chunk(folder: Path, decodes: Decodes) -> None:
    counted = dtf.read_tfrecord(folder, FEATURES, chunks=70)
    dask.compute(*counted["image", "text"])
    parts = [(0, 0, 50), (1, 0, 20), (1, 20, 30), (2, 0, 40), (2, 40, 10), (3, 0, 50)]
    assert decodes() == [(("image", "text"), *part) for part in parts]
    ds = dtf.read_tfrecord(folder, FEATURES, counts=None)
    assert ds["label"].sum().compute() == LABELS.sum()
    assert decodes() == [(("label",), number, 0, None) for number in range(SHARDS)]
    dask.compute(*ds["image", "text"])
    assert decodes() == [(("image", "text"), number, 0, None) for number in range(SHARDS)]
    assert ds.head(60)["label"].tolist() == LABELS[:60].tolist()
    # A task decodes the first rows, no more than are needed.
    assert decodes() == [(tuple(sorted(FEATURES)), 0, 0, 50), (tuple(sorted(FEATURES)), 1, 0, 10)]


# -- one definition of every key ---------------------------------------------------------------------------------------


def definitions(*arrays: Any) -> dict[Any, frozenset[Any]]:
    """Return the dependencies of each task of this library, in the optimised graph of some arrays."""
    graphs = dask.highlevelgraph.HighLevelGraph.merge(*(array.__dask_graph__() for array in arrays))
    tasks = da.Array.__dask_optimize__(graphs, [array.__dask_keys__() for array in arrays])
    return {key: task.dependencies for key, task in dict(tasks).items() if "tfrecord" in str(key)}


@pytest.mark.parametrize("chunks", [30, 1000])
def test_a_key_has_one_definition_in_every_graph(folder: Path, chunks: int) -> None:
    ds = dtf.read_tfrecord(folder, FEATURES, chunks=chunks)
    image, label = ds["image", "label"]
    # dask visits each node for every array.
    assert len({key for array in (image, label) for key in array.dask if "option" in str(key)}) == 1
    alone = ds["label"]
    values, splits = ds.ragged("tokens")
    padded = ds.padded("tokens", 4)
    joined = ds.assign(more=alone + 1)
    mapped = joined.map_blocks(lambda blocks: {"x": blocks["label"], "y": blocks["more"]})
    x, y = mapped["x", "y"]
    picked = mapped.rows[::-1]
    graphs: list[Any] = [
        *([image], [label], [image, label], [label.sum()], [label.sum(), label.max(), image]),
        *([label[:5], label[2:9], image[:5]], [label[:5]], [ds], [ds, image], [alone], [alone.sum(), alone.max()]),
        *([alone, label], [values], [values, splits], [splits[:3], padded], [padded.sum()], [joined], [mapped]),
        *([x], [x, y], [x.sum(), mapped], [picked], [picked["x"]], [picked["x"], mapped], [picked["x"][:3].sum()]),
        [mapped.assign(z=y + 1).map_blocks(dict), mapped],
    ]
    seen: dict[Any, frozenset[Any]] = {}
    for graph in graphs:
        for key, dependencies in definitions(*graph).items():
            # Tasks with other names belong to operations of the user, which dask may fuse.
            name = key[0] if isinstance(key, tuple) else key
            if name.startswith("tfrecord") and seen.setdefault(key, dependencies) != dependencies:
                fused = any("tfrecord" in str(one) and str(name) in str(one) for one in dependencies)
                raise AssertionError(f"{key}: {set(seen[key])} and {set(dependencies)} {fused}")
    names = {key_split(key) for key in seen}
    made = {"decode", "collect", "read-and-join", "join", "apply", "rows"}
    columns = {"read:label", "take:label", "take:image"}
    assert {f"tfrecord-{step}" for step in made} | {f"tfrecord:{column}" for column in columns} <= names
    assert any(name.startswith("tfrecord:values:") for name in names) and "tfrecord" not in names


@pytest.mark.parametrize(
    "name", mostly_slow(["steps/observation/image_0", "float_0", "x1", "a.b", "a-1", "0", "é 3"], 3)
)
def test_the_dashboard_groups_tasks_by_step_and_column(tmp_path: Path, name: str) -> None:
    dtf.to_tfrecord({name: [[1], [2, 3]], "other": np.arange(2)}, tmp_path / "a.tfrecord")
    groups: set[str] = set()
    with Callback(pretask=lambda key, *_: groups.add(key_split(key))), dask.config.set(scheduler="sync"):
        ds = dtf.read_tfrecord(tmp_path / "a.tfrecord")
        assert "tfrecord:counting-records" in groups
        dtf.verify(tmp_path / "a.tfrecord")
        dask.compute(ds[name], *ds[name, "other"], *ds.ragged(name), ds.padded(name, 2))
        ds.describe()
        ds.explode([name]).where([(name, ">", 1)]).compute()
        ds.persist().map_blocks(dict).where([("other", "==", 1)]).to_zarr(tmp_path / "a.zarr")
    shown = name.replace("-", "\u2010")
    steps = {f"tfrecord:{step}:{shown}" for step in ("read", "take", "values", "padded")}
    assert steps | {"tfrecord:checking-records", "tfrecord:counting-items", "tfrecord:describe"} <= groups
    assert "tfrecord" not in groups


def wait_for_no_tasks(client: Client) -> None:
    """Wait until messages have arrived and the scheduler has dropped all tasks."""

    def left() -> dict[str, str]:
        states: dict[str, str] = client.run_on_scheduler(
            lambda dask_scheduler: {str(key): task.state for key, task in dask_scheduler.tasks.items()}
        )
        return states

    wait_until(lambda: not left(), state=left)


@pytest.fixture
def run_specs() -> Iterator[Callable[[], list[str]]]:
    """Warnings of the scheduler, which runs in this process, about keys with a second definition."""
    logger = logging.getLogger("distributed.scheduler")
    level = logger.level
    handler = Record(logger.name, logging.WARNING)
    yield lambda: [record.getMessage() for record in handler.found if "run_spec" in record.getMessage()]
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("rounds", "chunks"),
    [(1, 1000), pytest.param(5, 1000, marks=pytest.mark.slow), pytest.param(20, 80, marks=pytest.mark.nightly)],
)
def test_rounds_of_the_same_arrays(
    client: Client, folder: Path, rounds: int, chunks: int, run_specs: Callable[[], list[str]]
) -> None:
    wait_for_no_tasks(client)
    with client.as_current():
        for _ in range(rounds):
            ds = dtf.read_tfrecord(folder, FEATURES, chunks=chunks)
            overlapping_round(client, ds)
            del ds
    assert run_specs() == []
    wait_for_no_tasks(client)


def overlapping_round(client: Client, ds: dtf.Dataset) -> None:
    """Compute and persist the same arrays, alone and together, while others are running or persisted."""
    image, label = ds["image", "label"]
    alone = ds["label"]
    futures = [client.compute(label), client.compute([image, label]), client.compute(ds), client.compute(alone)]
    kept = ds.persist()
    arrays = dask.persist(image, label)
    futures += [client.compute(image), client.compute([alone, label]), client.compute(kept["image"])]
    once_more = client.persist([ds, alone, image])
    values, splits = ds.ragged("tokens")
    futures += [client.compute([values, splits]), client.compute(splits), client.compute(ds.rows[95:105])]
    futures += [client.compute(label[95:105]), client.compute(kept.rows[::-1]), client.compute(kept["label", "text"])]
    reduced = dask.compute(image.sum(), alone.max(), kept["id", "label"][0].min())
    assert reduced == (IMAGES.sum(), ROWS - 1, 1 - ROWS)
    np.testing.assert_array_equal(ds.compute()["label"], LABELS)
    np.testing.assert_array_equal(kept.compute()["image"], IMAGES)
    np.testing.assert_array_equal(arrays[0].compute(), IMAGES)
    np.testing.assert_array_equal(once_more[0]["label"].compute(), LABELS)
    found = client.gather(futures)
    np.testing.assert_array_equal(found[0], LABELS)
    np.testing.assert_array_equal(found[1][0], IMAGES)
    np.testing.assert_array_equal(found[9]["label"], LABELS[95:105])
    np.testing.assert_array_equal(found[11]["label"], LABELS[::-1])


# -- on the cluster ----------------------------------------------------------------------------------------------------


class Counted:
    """A source that logs the process in which it is unpickled."""

    schema = Schema({"a": dtf.FixedLenFeature((), "int64"), "b": dtf.FixedLenFeature((), "int64")})
    origin: Mapping[str, Any] = {}

    def __init__(self, rows: int, log: str) -> None:
        self.nrows, self.log = rows, log

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with Path(self.log).open("a") as file:
            file.write(f"{os.getpid()}\n")

    def __dask_tokenize__(self) -> object:
        return "Counted", self.nrows, self.log

    def read(self, names: Sequence[str], key: Any, out: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Block]:
        time.sleep(0.002)
        return {name: np.arange(self.nrows)[key] for name in names}


@pytest.mark.integration
def test_the_plan_travels_once_per_worker(client: Client, tmp_path: Path) -> None:
    borders = np.arange(0, 1001, 10)
    log = tmp_path / "log"

    workers = set(client.run(os.getpid).values())

    def rows() -> Rows:
        return Rows.of_source(Counted(1000, str(log)), borders)  # type: ignore[arg-type]

    def travelled_once() -> bool:
        pids = log.read_text().split()
        log.unlink()
        return all(pids.count(str(worker)) == 1 for worker in workers)

    arrays = rows().arrays(["a", "b"])
    with client.as_current():
        assert dask.compute(arrays["a"].sum(), arrays["b"].max()) == (499500, 999)
        assert travelled_once()
        assert rows().array("a").sum().compute() == 499500
        assert travelled_once()
        assert dtf.Dataset(rows()).compute()["b"].tolist() == list(range(1000))
        assert travelled_once()


@pytest.mark.integration
def test_compute_and_persist_on_the_cluster(client: Client, folder: Path) -> None:
    here = dtf.read_tfrecord(folder, FEATURES, chunks=30).compute(scheduler="sync")
    with client.as_current():
        ds = dtf.read_tfrecord(folder, FEATURES, chunks=30)
        uncounted = dtf.read_tfrecord(folder, FEATURES, counts=None)
        for way in (ds, ds.persist(), uncounted, ds.rows[::-1].persist().rows[::-1]):
            assert_same(way.compute(), here)
        mapped = ds.map_blocks(lambda blocks: {**blocks, "label": blocks["label"] + 1})
        np.testing.assert_array_equal(mapped.persist().compute()["label"], LABELS + 1)
        assert uncounted.count() == ROWS
        for array in (ds["text"], ds["text"].persist()):
            assert (array[25:95:3].compute() == here["text"][25:95:3]).all()
            joined = da.concatenate([array[:3], array[-40:]]).compute()
            assert (joined == np.concatenate([here["text"][:3], here["text"][-40:]])).all()
            assert (array == "Nº 7").sum().compute() == 1


@pytest.mark.parametrize(
    ("nrows", "threads", "nbytes"), [(1_000, 1, 4 << 10), (8_000, 1, 16 << 10), (8_000, 4, 10 << 10)]
)
def test_reads_of_compute_are_larger_for_more_data(nrows: int, threads: int, nbytes: int, tmp_path: Path) -> None:
    rows, path = np.array([b"%050d" % row for row in range(nrows)], object), tmp_path / "a.tfrecord"
    dtf.Dataset.from_arrays({"id": rows}).to_tfrecord(path)
    total, reads = path.stat().st_size, list[object]()
    sizes = {"compute_read_nbytes": 4 << 10, "most_compute_read_nbytes": 16 << 10}
    with replaced_limits(entry_nbytes=1 << 10, index_window_nbytes=512, **sizes):
        ds = dtf.read_tfrecord(path, {"id": dtf.FixedLenFeature((), "bytes")})
        with Callback(pretask=lambda key, *_: reads.append(key)):
            assert ds.compute(scheduler="threads", num_workers=threads)["id"].tolist() == rows.tolist()
    assert total / nbytes / 1.5 < len(reads) < 1.5 * total / nbytes
