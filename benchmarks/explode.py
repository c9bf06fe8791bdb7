"""Measure `Dataset.explode`: opening, reading the items, one item, and memory, compared with the ragged columns.

    python benchmarks/explode.py FOLDER [--records 1000000] [--repeats 3] [--json FILE]

FOLDER receives 8 shards of records with 0 to 40 steps each: four floats, a float and an integer per step. Existing
shards of that many records are used again; figures of memory are those of a process that wrote none. One thread, files
in the page cache. The figures are CPU seconds, the minimum of the repeats: the pass that counts items, the reading of
all chunks as ragged columns and as items, and the reading of one item. Memory is the growth of the peak resident memory
during the pass that counts, and then during the reading of all items chunk by chunk.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import dask
import numpy as np
from compare import resident

import dask_tfrecord as dtf

SHARDS = 8
MOST_STEPS = 40
FEATURES = {
    "steps/state": dtf.VarLenFeature("float32", shape=(-1, 4)),
    "steps/reward": dtf.VarLenFeature("float32"),
    "steps/action": dtf.VarLenFeature("int64"),
}


def write_shards(folder: Path, records: int) -> list[Path]:
    """Write the shards, or return those that exist."""
    paths = [folder / f"explode-{records}-{number:05d}-of-{SHARDS:05d}.tfrecord" for number in range(SHARDS)]
    for number, path in enumerate(paths):
        if path.exists():
            continue
        rng, count = np.random.default_rng(number), (number + 1) * records // SHARDS - number * records // SHARDS
        lengths = rng.integers(0, MOST_STEPS + 1, count)
        splits, steps = np.append(0, np.cumsum(lengths)), int(lengths.sum())
        columns = {
            "steps/state": dtf.RaggedBlock(rng.standard_normal((steps, 4), np.float32), splits),
            "steps/reward": dtf.RaggedBlock(rng.standard_normal(steps, np.float32), splits),
            "steps/action": dtf.RaggedBlock(rng.integers(0, 1 << 14, steps), splits),
        }
        dtf.to_tfrecord(columns, path)
    return paths


def best(repeats: int, work: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


def read_chunks(ds: dtf.Dataset, names: Sequence[str]) -> None:
    """Decode all chunks, one after the other."""
    source, borders = ds.source, ds.borders
    assert source is not None and borders is not None
    for start, stop in pairwise(borders.tolist()):
        source.read(names, slice(start, stop))


def measure(folder: Path, records: int, repeats: int) -> dict[str, float]:
    """Return all figures."""
    ds = dtf.read_tfrecord(write_shards(folder, records), FEATURES, chunks=max(1, records // 64))
    names = list(FEATURES)
    ds.rows[:100].explode("steps").compute()
    before = resident("VmHWM")
    steps = ds.explode("steps")
    counted = resident("VmHWM")
    read_chunks(steps, [*names, "record"])
    peak = resident("VmHWM")
    numbers = np.random.default_rng(1).integers(0, steps.nrows or 0, 100).tolist()
    return {
        "records": records,
        "items": steps.nrows or 0,
        "count": best(repeats, lambda: ds.explode("steps")),
        "ragged": best(repeats, lambda: read_chunks(ds, names)),
        "items read": best(repeats, lambda: read_chunks(steps, names)),
        "with record": best(repeats, lambda: read_chunks(steps, [*names, "record"])),
        "one item": best(repeats, lambda: [steps.rows[number].compute() for number in numbers]) / len(numbers),
        "memory of counting": counted - before,
        "memory of reading": peak - counted,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures.

    Parameters
    ----------
    arguments : sequence of str, optional
        Arguments; by default those of the command line.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with dask.config.set(scheduler="sync"):
        found = measure(options.folder, options.records, options.repeats)
    print(f"{found['records']:,} records, {found['items']:,} items")
    for name in ("count", "ragged", "items read", "with record"):
        print(f"{name:<20}{found[name]:>8.2f} s{found[name] / found['ragged']:>8.2f} x ragged")
    print(f"{'one item':<20}{found['one item'] * 1e3:>8.2f} ms")
    for name in ("memory of counting", "memory of reading"):
        print(f"{name:<20}{found[name] / 2**20:>8.0f} MiB")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
