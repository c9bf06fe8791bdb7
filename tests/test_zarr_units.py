"""Write units of Zarr: whatever shards and chunks are, whoever writes, in whatever order, each chunk is written once.

Shards of some 200 rows, of one and of none; chunks and shards that divide neither those nor each other. What is
written is compared with what protobuf reads from the same files, laid out by NumPy.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import numpy as np
import oracle
import pytest
import zarr
from dask.delayed import Delayed
from numpy.typing import NDArray
from support.images import png
from support.raced_writes import Event, RecordingStore, Shuffled, ShuffledPool, events, recorded
from support.store_round_trip import assert_same

import dask_tfrecord as dtf
from dask_tfrecord import messages
from dask_tfrecord.features import RowLengths

# Of each of the two workers.
THREADS = 4
SIZES = (237, 1, 0, 231, 0, 203, 1)
FEW = (6, 1, 0, 7)
SCHEMA = dtf.Schema(
    {
        "label": dtf.FixedLenFeature((), "int64"),
        "vector": dtf.FixedLenFeature((3,), "float32"),
        "array": dtf.RawFeature((2, 2), ">i2"),
        "title": dtf.TextFeature(),
        "image/encoded": dtf.FixedLenFeature((), "bytes"),
        "pair": dtf.FixedLenFeature((2,), "bytes"),
        "tokens": dtf.VarLenFeature("int64"),
        "boxes": dtf.VarLenFeature("float32", shape=(-1, 4)),
        "words": dtf.VarLenFeature("bytes"),
        "nested": dtf.RaggedFeature("float32", partitions=(RowLengths("nested/rows"),)),
        "deep": dtf.RaggedFeature("bytes", partitions=(RowLengths("deep/outer"), RowLengths("deep/inner"))),
        "picture": dtf.ImageFeature(),
        "tensor": dtf.TensorFeature((-1, 3), "float64"),
        "strings": dtf.TensorFeature((-1, -1), "bytes"),
    }
)

# Entries of flat arrays at odd sizes, which rows know nothing of.
ENTRIES = {"tokens.values": 2201, "words.values": 701, "words.byte_splits": 103, "deep.row_splits_1": 101}
GRIDS: dict[str, dict[str, Any]] = {
    "chunks": {"chunks": dict.fromkeys(SCHEMA, 97) | ENTRIES},
    "shards": {"chunks": 17, "shards": "7001 B"},
    "one chunk": {"chunks": 100_000},
    "one shard": {"chunks": 83, "shards": 83 * 20},
    "by name": {
        "chunks": dict.fromkeys(SCHEMA, 105) | {"label": 21, "vector": 7, "tokens": 35, "picture": 35} | ENTRIES,
        "shards": {"vector": 21, "picture": 105, "tokens.values": 4402, "words.byte_splits": 309},
    },
    "two tasks": {"chunks": 500},
    "rows": {"chunks": "64 B"},
    "row shards": {"chunks": "16 B", "shards": "80 B"},
}


def example(rng: random.Random, picture: NDArray[Any]) -> bytes:
    """A record that fits `SCHEMA`: many of its rows are empty, some long."""

    def size(most: int) -> int:
        return rng.choice([0, 1, 2, rng.randrange(most)])

    def strings(count: int) -> list[bytes]:
        return [rng.randbytes(size(9)) for _ in range(count)]

    message = messages.Example()
    held = message.features.feature
    held["label"].int64_list.value.append(rng.randrange(-(2**63), 2**63))
    held["vector"].float_list.value.extend(rng.choice([0.0, -0.0, math.nan, rng.random()]) for _ in range(3))
    held["array"].bytes_list.value.append(rng.randbytes(8))
    held["title"].bytes_list.value.append(rng.choice(["", "größe", "a\0", "long " * 9]).encode())
    held["image/encoded"].bytes_list.value.append(rng.randbytes(size(600)))
    held["pair"].bytes_list.value.extend([rng.randbytes(size(3)), b"\0"])
    held["tokens"].int64_list.value.extend(rng.randrange(1 << 40) for _ in range(size(90)))
    held["boxes"].float_list.value.extend(rng.random() for _ in range(4 * size(4)))
    held["words"].bytes_list.value.extend(strings(size(8)))
    rows = [size(5) for _ in range(size(5))]
    held["nested/rows"].int64_list.value.extend(rows)
    held["nested"].float_list.value.extend(rng.random() for _ in range(sum(rows)))
    inner = [size(3) for _ in range(size(7))]
    cut = rng.randint(0, len(inner))
    held["deep/outer"].int64_list.value.extend([cut, len(inner) - cut])
    held["deep/inner"].int64_list.value.extend(inner)
    held["deep"].bytes_list.value.extend(strings(sum(inner)))
    held["picture"].bytes_list.value.append(png(picture))
    tensor = messages.TensorProto(dtype=2, tensor_content=rng.randbytes(24 * (height := size(5))))
    tensor.tensor_shape.dim.add(size=height)
    tensor.tensor_shape.dim.add(size=3)
    held["tensor"].bytes_list.value.append(tensor.SerializeToString())
    height, width = size(3), rng.randrange(1, 4)
    tensor = messages.TensorProto(dtype=7, string_val=strings(height * width))
    tensor.tensor_shape.dim.add(size=height)
    tensor.tensor_shape.dim.add(size=width)
    held["strings"].bytes_list.value.append(tensor.SerializeToString())
    return message.SerializeToString()


@dataclass(frozen=True, slots=True)
class Shards:
    """Files, the columns that the library reads from a store of them, and by column the arrays that zarr reads."""

    pattern: str
    columns: dict[str, NDArray[Any]]
    arrays: dict[str, dict[str, NDArray[Any]]]

    @classmethod
    def written(cls, folder: Path, sizes: tuple[int, ...]) -> Shards:
        rng = random.Random(11)
        samples = np.random.default_rng(11)
        pictures = np.empty(sum(sizes), object)
        for row in range(len(pictures)):
            shape = (rng.randrange(1, 8), rng.randrange(1, 8), rng.choice([1, 3]))
            pictures[row] = samples.integers(0, 256, shape, np.uint8)
        payloads: list[bytes] = []
        for number, (start, stop) in enumerate(itertools.pairwise([0, *itertools.accumulate(sizes)])):
            path = folder / f"part-{number:05d}.tfrecord"
            oracle.write_oracle(path, [example(rng, picture) for picture in pictures[start:stop]])
            payloads += oracle.read_payloads(path)
        others = {name: feature for name, feature in SCHEMA.items() if name != "picture"}
        read = oracle.expected_columns(payloads, others) | {"picture": pictures}
        columns = {name: read[name] for name in SCHEMA}
        arrays = {
            name: {name.replace("/", ".") + part: array for part, array in parts_of(name, column)}
            for name, column in columns.items()
        }
        return cls(str(folder / "part-*.tfrecord"), columns, arrays)

    def holds(self, names: list[str]) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """Expected columns and arrays of a store."""
        parts = (self.arrays[name].items() for name in names)
        return {name: self.columns[name] for name in names}, dict(itertools.chain(*parts))


# How often rows are cut into rows before there are values; and which of the values are bytes.
DEPTHS = {"tokens": 1, "boxes": 1, "words": 1, "nested": 2, "deep": 3, "picture": 1, "tensor": 1, "strings": 1}
BYTES = {"image/encoded", "pair", "words", "deep", "strings"}


def parts_of(name: str, column: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Lay a column out as flat arrays; each comes with what is behind the column's name."""
    if column.dtype != object:
        yield "", column
        return
    rows = list(column.ravel())
    if name in ("picture", "tensor", "strings"):
        yield ".shapes", np.array([row.shape for row in rows], np.int64)
        rows = [row.ravel() for row in rows]
    depth = DEPTHS.get(name, 0)
    for level in range(depth):
        yield ".row_splits" + (f"_{level}" if level else ""), splits_of(rows)
        numbers = level + 1 == depth and name not in BYTES
        rows = [np.concatenate(rows)] if numbers else [item for row in rows for item in row]
    if name in BYTES:
        yield ".byte_splits" if depth else ".row_splits", splits_of(rows)
        rows = [np.frombuffer(b"".join(rows), np.uint8)]
    yield ".values", rows[0]


def splits_of(rows: list[Any]) -> NDArray[np.int64]:
    """Return the start of each row and the end of the last one."""
    return np.cumsum([0, *map(len, rows)], dtype=np.int64)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return Shards.written(tmp_path_factory.mktemp("shards"), SIZES)


@pytest.fixture(scope="module")
def few_rows(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return Shards.written(tmp_path_factory.mktemp("few"), FEW)


# Columns of some shards, and the chunks and shards to convert them to.
Case = tuple[Shards, list[str], dict[str, Any]]


@pytest.fixture
def case(request: pytest.FixtureRequest, shards: Shards, few_rows: Shards) -> Case:
    name: str = request.param
    names = ["label", "vector", "tokens"] if name == "two tasks" else list(SCHEMA)
    return few_rows if name in ("rows", "row shards") else shards, names, GRIDS[name]


# ----------------------------------------------------------------------------------------------------- what is checked


def assert_written(
    store: Path, columns: Mapping[str, NDArray[Any]], arrays: Mapping[str, NDArray[Any]], happened: list[Event]
) -> None:
    """Bits are those of the reference, and every chunk was written once, by one task, which read none."""
    group = zarr.open_group(store, mode="r")
    assert_same({name: np.asarray(array[...]) for name, array in sorted(group.arrays())}, dict(sorted(arrays.items())))
    with dask.config.set(scheduler="threads"):
        assert_same(dtf.from_zarr(store).compute(), columns)
    writes = [event for event in happened if event.what == "write"]
    assert Counter(event.key for event in writes) == Counter(chunk_keys(group))
    assert all(event.task for event in writes)
    assert not [event for event in happened if event.what == "read"]


def chunk_keys(group: zarr.Group) -> Iterator[str]:
    """What has to be there: a key for each chunk, or for each shard."""
    for name, array in group.arrays():
        sizes = zip(array.shape, array.shards or array.chunks, strict=True)
        for place in itertools.product(*(range(math.ceil(size / unit)) for size, unit in sizes)):
            yield "/".join([name, "c", *map(str, place)])


def converted(case: Case, folder: Path, seed: int) -> set[str]:
    """Convert on the active scheduler, check everything, and return the processes of tasks that wrote something."""
    shards, names, grid = case
    folder.mkdir()
    dataset = dtf.read_tfrecord(shards.pattern, SCHEMA)[names]
    with dask.annotate(priority=Shuffled(seed)):
        plan = dataset.plan_zarr(**grid)
    written = plan.to_zarr(RecordingStore.at(folder / "store.zarr", folder / "log", seed), compute=False)
    assert isinstance(written, Delayed)
    recorded(written, folder / "log", seed).compute()
    happened = events(folder / "log")
    assert_written(folder / "store.zarr", *shards.holds(names), happened)
    writes = [event for event in happened if event.what == "write"]
    # Each task has something to write.
    assert len({event.task for event in writes}) == plan.tasks
    return {event.process for event in writes}


# ---------------------------------------------------------------------------------------------------------- schedulers


QUICK = ("two tasks",)
CASES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in GRIDS]


@pytest.mark.parametrize("seeds", [1, pytest.param(3, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("case", CASES, indirect=True)
def test_threads_write_each_chunk_once(case: Case, tmp_path: Path, seeds: int) -> None:
    for seed in range(seeds):
        threads = (24, 2, 8)[seed]
        with ShuffledPool(threads, seed) as pool, dask.config.set(scheduler="threads", pool=pool):
            converted(case, tmp_path / f"{seed}", seed)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("seeds", [1, pytest.param(3, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("case", "processes"), [("shards", 2), ("two tasks", 1)], indirect=["case"])
def test_a_cluster_writes_each_chunk_once(case: Case, processes: int, tmp_path: Path, seeds: int) -> None:
    for seed in range(seeds):
        assert len(converted(case, tmp_path / f"{seed}", seed)) >= processes


# -------------------------------------------------------------------------------------- what the record itself can see


@pytest.mark.parametrize("shared", [False, True])
def test_the_log_shows_writes_into_the_chunk_of_another_task(tmp_path: Path, shared: bool) -> None:
    store = RecordingStore.at(tmp_path / "store.zarr", tmp_path / "log", 0)
    array = zarr.create_array(store, name="x", shape=(20,), chunks=(10 if shared else 5,), dtype="i8")

    def write(start: int) -> None:
        array[start : start + 5] = np.arange(start, start + 5)

    written = dask.delayed(list)([dask.delayed(write, pure=False)(start) for start in range(0, 20, 5)])
    with ShuffledPool(3, 0) as pool, dask.config.set(scheduler="threads", pool=pool):
        recorded(written, tmp_path / "log", 0).compute()
    happened = events(tmp_path / "log")
    writers = Counter(event.key for event in happened if event.what == "write")
    assert set(writers.values()) == {2 if shared else 1}
    assert len({event.task for event in happened if event.what == "write"}) == 4
    assert np.array_equal(array[...], np.arange(20)) or shared
