"""Times of stores: of an append as the store grows, and of the sum of labels next to images.

    python benchmarks/append.py [appends [images]]

appends small shards one by one, prints the median CPU and wall time of an append within each tenth of the appends, and
compares the result with one conversion of all shards. Then it sums labels that it has written next to images.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import zarr

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


def sum_labels(rows: int) -> None:
    """Write labels next to images, and print how long their sum takes."""
    store = Path(tempfile.mkdtemp()) / "images.zarr"
    dtf.to_zarr({"image": da.zeros((rows, 150 << 10), dtype="u1", chunks=(50, -1)), "label": np.arange(rows)}, store)
    dtf.from_zarr(store)["label"].sum().compute()
    began = time.process_time(), time.perf_counter()
    assert dtf.from_zarr(store)["label"].sum().compute() == rows * (rows - 1) // 2
    cpu, wall = time.process_time() - began[0], time.perf_counter() - began[1]
    images, labels = (zarr.open_array(store, path=name, mode="r").nchunks for name in ("image", "label"))
    print(
        f"sum of {rows:,} labels: {1000 * cpu:.1f} ms CPU, {1000 * wall:.1f} ms; {labels:,} chunks, images {images:,}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
    sum_labels(int(sys.argv[2]) if len(sys.argv) > 2 else 66_000)
