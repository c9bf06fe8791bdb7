"""A worker whose memory holds half of the data: chunks report their size, so that the rest is spilled to disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster, Worker, wait
from oracle import write_oracle

import dask_tfrecord as dtf
from dask_tfrecord.messages import Example, TensorProto

MIB = 1 << 20
RECORDS, SHARDS, LIMIT = 25, 26, 640 * MIB
FEATURES = {
    "points": dtf.RawFeature((-1, 4), "float32"),
    "tensor": dtf.TensorFeature((-1, 256), "float64"),
    "names": dtf.VarLenFeature("bytes"),
}


def example(rng: np.random.Generator) -> Example:
    """About 2 MiB in rows of differing length."""
    points = rng.random((int(rng.integers(60_000, 70_000)), 4), np.float32)
    tensor = rng.random((int(rng.integers(400, 500)), 256))
    proto = TensorProto(dtype=2, tensor_content=tensor.tobytes())
    for size in tensor.shape:
        proto.tensor_shape.dim.add(size=size)
    message = Example()
    message.features.feature["points"].bytes_list.value.append(points.tobytes())
    message.features.feature["tensor"].bytes_list.value.append(proto.SerializeToString())
    message.features.feature["names"].bytes_list.value.extend([rng.bytes(1000)] * int(rng.integers(0, 400)))
    return message


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of two kinds in turn, of 1.3 GiB when they are decoded."""
    folder, rng = tmp_path_factory.mktemp("shards"), np.random.default_rng(9)
    for number in range(SHARDS):
        path = folder / f"part-{number:02d}"
        if number < 2:
            write_oracle(path, [example(rng).SerializeToString() for _ in range(RECORDS)])
        else:
            os.link(folder / f"part-{number % 2:02d}", path)
    return folder


@pytest.fixture
def client() -> Iterator[Client]:
    worker = {"n_workers": 1, "threads_per_worker": 1, "memory_limit": LIMIT}
    with LocalCluster(processes=True, dashboard_address=":0", **worker) as cluster, Client(cluster) as client:
        yield client


def held(dask_worker: Worker) -> tuple[int, int, int]:
    """Return the bytes of the chunks of a worker in memory and on disk, and of its process."""
    data: Any = dask_worker.data
    return data.fast.total_weight, data.spilled_total.memory, os.getpid()


def sums(blocks: dict[str, Any]) -> dict[str, Any]:
    """Numbers of each row that follow from all of its values."""
    return {
        "points": np.array([row.sum(dtype="f8") for row in np.asarray(blocks["points"])]),
        "tensor": np.array([row.sum() for row in blocks["tensor"]]),
        "names": np.array([sum(map(len, row)) for row in np.asarray(blocks["names"])], "i8"),
    }


@pytest.mark.integration
@pytest.mark.slow
def test_half_of_the_data_fits_and_the_rest_is_spilled(shards: Path, client: Client) -> None:
    ds = dtf.read_tfrecord(shards, FEATURES, chunks="16 MiB")
    with dask.config.set(scheduler="sync"):
        one = dtf.read_tfrecord([shards / "part-00", shards / "part-01"], FEATURES).compute()
    decoded = (
        SHARDS
        // 2
        * sum(row.nbytes if row.dtype != object else sum(map(len, row)) for column in one.values() for row in column)
    )
    assert 2 * LIMIT < decoded < 2.2 * LIMIT
    ((_, _, process),) = client.run(held).values()
    kept = ds.persist()
    wait(kept, timeout=300)
    ((in_memory, on_disk, _),) = client.run(held).values()
    assert decoded <= in_memory + on_disk < 1.01 * decoded
    assert in_memory < LIMIT
    assert on_disk > decoded / 4
    template = {name: dtf.RawFeature((), "int64" if name == "names" else "float64") for name in FEATURES}
    found = kept.map_blocks(sums, template).compute()
    wanted = sums(one)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], np.tile(array, SHARDS // 2))
    assert [process] == [where for _, _, where in client.run(held).values()], "the worker was started again"
