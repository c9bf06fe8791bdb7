"""Time of an append as the store grows: many appends of one small shard, against one conversion of all of them.

    python benchmarks/append.py [appends]

prints the median CPU and wall time of an append within each tenth of the appends, and compares the result.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import dask
import numpy as np

import dask_tfrecord as dtf

ROWS = 20


def main(appends: int) -> None:
    """Append shards one by one, and print how long each tenth of them took."""
    folder = Path(tempfile.mkdtemp())
    features = {"x": dtf.FixedLenFeature((), "int64"), "tokens": dtf.VarLenFeature("int64")}
    rng, seconds = np.random.default_rng(0), []
    paths = [folder / f"{number:05}.tfrecord" for number in range(appends)]
    for number, path in enumerate(paths):
        tokens = [rng.integers(1, 1000, size) for size in rng.integers(0, 8, ROWS)]
        dtf.to_tfrecord({"x": np.arange(ROWS) + ROWS * number + 1, "tokens": tokens}, path)
    with dask.config.set(scheduler="synchronous"):
        for path in paths:
            began = time.process_time(), time.perf_counter()
            ds = dtf.read_tfrecord(path, features)
            ds.to_zarr(folder / "grown.zarr", append_dim="record", chunks=1000)
            seconds.append((time.process_time() - began[0], time.perf_counter() - began[1]))
        dtf.read_tfrecord(f"{folder}/*.tfrecord", features).to_zarr(folder / "whole.zarr", chunks=1000)
    tenth = max(appends // 10, 1)
    for start in range(0, appends, tenth):
        cpu, wall = (statistics.median(each) * 1000 for each in zip(*seconds[start : start + tenth], strict=True))
        print(f"appends {start:5} to {start + tenth:5}: {cpu:6.1f} ms CPU, {wall:6.1f} ms")
    found, wanted = (dtf.from_zarr(folder / name).compute() for name in ("grown.zarr", "whole.zarr"))
    assert found["x"].tolist() == wanted["x"].tolist()
    assert all(np.array_equal(a, b) for a, b in zip(found["tokens"], wanted["tokens"], strict=True))
    print(f"{len(found['x']):,} rows are those of one conversion")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
