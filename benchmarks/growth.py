"""Measure what each shard, column, chunk and append costs among few of them and among many.

    python benchmarks/growth.py [shards columns chunks appends] [--sizes 10 100 1000 10000]

Prints the milliseconds of processor time per element, of all threads, and the ratio of the last two: a step that takes
more per element among many is not linear. Each measurement has its own process, and its values are compared.
10,000 appends take ten minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from harness import run

import dask_tfrecord as dtf

ROWS = 10
# Times of the steps of one measurement, in seconds, by name.
Times = dict[str, float]


class Clock:
    """Processor time of steps."""

    def __init__(self) -> None:
        self.times: Times = {}

    def __call__(self, step: str, call: Callable[[], Any]) -> Any:
        """Call a function, and add its time to that of the step."""
        began = time.process_time()
        result = call()
        self.times[step] = self.times.get(step, 0.0) + time.process_time() - began
        return result


def shards(count: int) -> Times:
    """Measure shards of ten records."""
    clock, values = Clock(), np.arange(count * ROWS)
    clock("to_tfrecord", lambda: dtf.to_tfrecord({"x": values}, "s-{shard:05d}.tfrecord", records_per_shard=ROWS))
    found = clock("read_tfrecord", lambda: dtf.read_tfrecord("s-*.tfrecord"))
    assert np.array_equal(clock("compute", lambda: found["x"].compute()), values)
    clock("to_zarr", lambda: found.to_zarr("s.zarr"))
    assert np.array_equal(dtf.from_zarr("s.zarr")["x"].compute(), values)
    clock("copy_tfrecord", lambda: dtf.copy_tfrecord("s-*.tfrecord", "c/", records_per_shard=ROWS))
    clock("verify", lambda: dtf.verify("s-*.tfrecord"))
    clock("build_index", lambda: dtf.build_index("s-*.tfrecord"))
    return clock.times


def columns(count: int) -> Times:
    """Measure columns of integers."""
    features = {f"column_{number:05}": dtf.FixedLenFeature((), "int64") for number in range(count)}
    clock, values = Clock(), np.arange(ROWS)
    clock("to_tfrecord", lambda: dtf.to_tfrecord(dict.fromkeys(features, values), "c.tfrecord"))
    found = clock("read_tfrecord", lambda: dtf.read_tfrecord("c.tfrecord", features))
    results = [clock("ds.compute", found.compute)]
    arrays = clock("dask.compute", lambda: dask.compute(*found[tuple(features)]))
    results.append(dict(zip(features, arrays, strict=True)))
    # dask visits the keys of all arrays for each.
    clock("of da.zeros", lambda: dask.compute(*(da.zeros(ROWS, name=f"zeros-{name}") for name in features)))
    clock("to_zarr", lambda: found.to_zarr("c.zarr"))
    results.append(clock("from_zarr", lambda: dtf.from_zarr("c.zarr")).compute())
    clock("to_delayed", found.to_delayed)
    assert all(np.array_equal(each[name], values) for each in results for name in features)
    return clock.times


def chunks(count: int) -> Times:
    """Measure chunks of ten rows."""
    clock, values = Clock(), np.arange(count * ROWS)
    dtf.to_tfrecord({"x": values}, "one.tfrecord")
    found = dtf.read_tfrecord("one.tfrecord", chunks=ROWS)
    assert np.array_equal(clock("compute", lambda: found["x"].compute()), values)
    clock("map_blocks", lambda: found.map_blocks(lambda blocks: {"y": blocks["x"]})["y"].compute())
    clock("to_zarr", lambda: found.to_zarr("o.zarr", chunks=ROWS))
    stored = clock("from_zarr", lambda: dtf.from_zarr("o.zarr"))
    assert np.array_equal(clock("stored", lambda: stored["x"].compute()), values)
    clock("to_zarr again", lambda: found.to_zarr("o.zarr", chunks=ROWS, mode="w"))
    return clock.times


def appends(count: int) -> Times:
    """Measure appends of ten rows, the last tenth of them apart."""
    clock, last = Clock(), max(count // 10, 1)
    with dask.config.set(scheduler="synchronous"):
        for number in range(count):
            rows = dtf.Dataset.from_arrays({"x": np.arange(ROWS) + ROWS * number})
            step = "append" if number < count - last else "last tenth"
            clock(step, partial(rows.to_zarr, "a.zarr", append_dim="record", chunks=1000))
        clock("from_zarr", lambda: dtf.from_zarr("a.zarr"))
    assert np.array_equal(dtf.from_zarr("a.zarr")["x"].compute(), np.arange(count * ROWS))
    clock.times["append"] = clock.times.get("append", 0.0) * count / max(count - last, 1)
    clock.times["last tenth"] *= count / last
    return clock.times


KINDS: dict[str, Callable[[int], Times]] = {each.__name__: each for each in (shards, columns, chunks, appends)}


def main() -> None:
    """Print a table for each kind of element, or measure one in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=[*KINDS], metavar="kind", help=", ".join(KINDS))
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            # The imports of a conversion are not measured.
            dtf.Dataset.from_arrays({"x": np.arange(2)}).to_zarr("first.zarr")
            print(json.dumps(KINDS[options.kinds[0]](options.sizes[0])))
        return
    for kind in options.kinds:
        found: list[Times] = []
        for size in options.sizes:
            found.append(run([sys.executable, str(Path(__file__)), kind, "--sizes", str(size), "--worker"])[0])
        print(f"\nms per element of {kind}" + "".join(f"{size:>10,}" for size in options.sizes) + "     ratio")
        for step in found[0]:
            each = [1000 * times[step] / size for times, size in zip(found, options.sizes, strict=True)]
            ratio = each[-1] / each[-2] if len(each) > 1 and each[-2] else 1.0
            print(f"{step:>{len(kind) + 18}}" + "".join(f"{ms:>10.3f}" for ms in each) + f"{ratio:>10.2f}", flush=True)


if __name__ == "__main__":
    main()
