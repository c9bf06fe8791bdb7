"""Chunks of objects and text report their memory to dask, so that workers spill them."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from dask.sizeof import sizeof
from support.any_columns import FEATURES, every_column, listed
from support.engine import da
from support.few import mostly_slow
from support.programs import run_python

import dask_tfrecord as dtf
from dask_tfrecord.blocks import RaggedBlock


def contents(value: Any) -> Iterator[int]:
    """Yield the sizes of all values of nested arrays, in bytes."""
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OT":
        yield value.nbytes
    elif isinstance(value, np.ndarray | list):
        for item in value:
            yield from contents(item)
    else:
        yield len(value)


@pytest.mark.parametrize(
    "name", mostly_slow((name for name, each in FEATURES.items() if each.block_dtype.kind in "OT"), 3)
)
def test_chunks_report_what_they_keep_in_memory(name: str) -> None:
    ds = every_column((4, 0, 5))
    for array in (ds[name], ds[name, "row" if "row" in ds else "dense"][0], ds.persist()[name]):
        for block in array.to_delayed().ravel():
            chunk = block.compute(scheduler="sync")
            values = list(contents(chunk))
            # A header for the chunk, and at most as much for each array within it.
            assert sum(values) + chunk.nbytes <= sizeof(chunk) + 16 * len(values)
            again = pickle.loads(pickle.dumps(chunk))
            assert repr(listed(again)) == repr(listed(chunk))
            assert sizeof(again) == sizeof(chunk)
            assert sizeof(chunk[:2]) <= sizeof(chunk)


@pytest.mark.parametrize("feature", [dtf.TextFeature(), dtf.FixedLenFeature((), "bytes"), dtf.VarLenFeature("bytes")])
def test_one_chunk_and_several_compute_to_the_same_class(feature: dtf.Feature, tmp_path: Path) -> None:
    values = [[b"ab"]] * 6 if isinstance(feature, dtf.VarLenFeature) else ["ab"] * 6
    dtf.to_tfrecord({"x": values}, tmp_path / "x.tfrecord", features={"x": feature})
    one, several = (
        dtf.read_tfrecord(tmp_path / "x.tfrecord", {"x": feature}, chunks=rows)["x"].compute() for rows in (6, 4)
    )
    assert [*map(np.ndarray.tolist, map(np.asarray, one))] == [*map(np.ndarray.tolist, map(np.asarray, several))]
    assert type(one) is type(several)


def test_sizes_of_large_values() -> None:
    rng = np.random.default_rng(0)
    rows = {
        "bytes": [rng.bytes(10_000) for _ in range(20)],
        "text": ["x" * 10_000] * 20,
        "ragged": [np.arange(1_250)] * 20,
        "words": [[rng.bytes(5_000)] * 2] * 20,
        "phrases": [["x" * 5_000] * 2] * 20,
    }
    ds = dtf.Dataset.from_arrays(rows)
    for name in rows:
        chunk = ds[name].compute()
        assert 200_000 <= sizeof(chunk) < 210_000
        assert 100_000 <= sizeof(chunk[::2]) < 105_000
        assert 200_000 <= sizeof(ds[[name]].persist()[name].blocks[0].compute()) < 210_000
    # Ragged rows of text in a block, as `ds.persist()` holds them.
    assert sizeof(RaggedBlock(ds["text"].compute(), np.array([0, 20]))) >= 200_000


@pytest.mark.integration
@pytest.mark.parametrize("together", [True, False])
def test_workers_spill_persisted_columns_of_bytes(together: bool) -> None:
    distributed = pytest.importorskip("distributed")
    rows = dtf.Dataset.from_arrays({"row": da.arange(48, chunks=4)})
    ds = rows.map_blocks(
        lambda blocks: {"x": np.array([bytes((1 << 20) + row) for row in blocks["row"]], object)},
        {"x": dtf.FixedLenFeature((), "bytes")},
    )
    # The process of the tests is larger than the limit of its worker: only what the worker must hold counts.
    memory = {"target": 0.5, "spill": False, "pause": False, "terminate": False}
    with (
        dask.config.set({f"distributed.worker.memory.{name}": value for name, value in memory.items()}),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, memory_limit="32 MiB", dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster),
    ):
        held: Any = ds.persist() if together else ds["x"].persist()
        distributed.wait(held, timeout=120)
        (worker,) = cluster.workers.values()
        until = time.monotonic() + 120
        while worker.data.fast.total_weight > 20 << 20 and time.monotonic() < until:
            time.sleep(0.05)
        assert worker.data.fast.total_weight <= 20 << 20
        assert worker.data.spilled_total.memory > 20 << 20
        array = held["x"] if together else held
        assert array.map_blocks(lambda rows: np.array([len(rows[1])]), dtype=np.int64).compute()[1] == (1 << 20) + 5


# Prints the page faults of a pass that makes and drops objects.
PASSES = """
import resource, sys
import dask_tfrecord as dtf

if __name__ == "__main__":
    array = dtf.read_tfrecord(sys.argv[1], {"id": dtf.FixedLenFeature((), "bytes")})["id"]
    faults = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        array.compute(scheduler="sync")
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    print(sorted(faults)[2])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults as Linux does")
@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="this allocator keeps its memory")
def test_objects_of_dropped_blocks_leave_their_memory_to_the_next_ones(tmp_path: Path) -> None:
    (tmp_path / "passes.py").write_text(PASSES)
    rows = np.array([b"%015d" % row for row in range(200_000)], object)
    dtf.Dataset.from_arrays({"id": rows}).to_tfrecord(tmp_path / "a.tfrecord")
    done = run_python(tmp_path / "passes.py", tmp_path / "a.tfrecord")
    assert done.returncode == 0, done.stderr
    # Objects of 48 bytes are 2,300 pages.
    assert int(done.stdout) < 1000
