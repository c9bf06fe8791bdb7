"""Compare two versions of this library on the same files in one run: speed, CPU time and peak memory.

The versions alternate, each run in its own process with two threads. The table shows the ratio of the medians,
new to old: a value below 1 means that the new version is faster or smaller. "Least" is the ratio of the least CPU
times, which the kernel and other processes disturb least. The time of a run includes opening; an untimed run of both
versions comes first, so that the files are in the page cache.

    python benchmarks/revisions.py OLD/bin/python NEW/bin/python DATA [NAME …]
    [--tasks touch gather to_zarr to_tfrecord batches] [--turns 5]

OLD and NEW are the Python programs of two environments, each with one version installed. DATA is a directory that
`make_data.py` wrote. Linux only.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
from harness import resident
from pipelines import FEATURES, SEQUENCE_FEATURES, gather, touch

import dask_tfrecord as dtf

REVISION_TASKS = ("touch", "gather", "to_zarr", "to_tfrecord", "batches")


def run_task(task: str, data: str, name: str, out: Path) -> dict[str, float]:
    """Perform a task in this process; return its seconds, CPU seconds, and peak memory above the imports."""
    works: dict[str, Callable[[Any, Path], object]] = {
        "touch": lambda ds, _: touch(ds),
        "gather": lambda ds, _: gather(ds),
        "to_zarr": lambda ds, path: ds.to_zarr(path),
        "to_tfrecord": lambda ds, path: ds.to_tfrecord(path),
        "batches": lambda ds, _: read_batches(ds),
    }
    dask.config.set(scheduler="threads", num_workers=2)
    features, sequence_features = FEATURES[name], SEQUENCE_FEATURES.get(name)

    # The versions import their packages at different times: import all of them before the clock starts.
    shards = sorted(Path(data).glob(f"{name}-*.tfrecord*"))
    few = dtf.read_tfrecord(shards[0], features, sequence_features=sequence_features).rows[:2]
    works[task](few, out / "few")

    before, start, processor = resident("VmRSS"), time.perf_counter(), time.process_time()
    ds = dtf.read_tfrecord(shards, features, sequence_features=sequence_features)
    works[task](ds, out / "all")
    seconds, cpu = time.perf_counter() - start, time.process_time() - processor
    return {"seconds": seconds, "cpu": cpu, "memory": resident("VmHWM") - before}


def read_batches(ds: dtf.Dataset) -> None:
    """Read one epoch of batches of 128 rows, shuffled in full."""
    for _ in ds.batches(128, shuffle="full", seed=0):
        pass


def run_task_apart(version: Path, task: str, data: Path, name: str) -> dict[str, float]:
    """Perform a task with one version in a new process."""
    with tempfile.TemporaryDirectory(dir=data) as scratch:
        out = Path(scratch, "out")
        command = [str(version), __file__, "--run", task, str(data), name, str(out)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        shutil.rmtree(out, ignore_errors=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Print the ratios of each set and task."""
    if sys.argv[1:2] == ["--run"]:
        _, _, task, path, name, out = sys.argv
        print(json.dumps(run_task(task, path, name, Path(out))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all sets in DATA")
    parser.add_argument("--tasks", nargs="+", choices=REVISION_TASKS, default=REVISION_TASKS)
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    names = arguments.names or sorted({path.name.split("-")[0] for path in arguments.data.glob("*-of-*")})
    print("data         task          old s   new s   time    CPU  least   old MiB  new MiB  memory")
    for name in names:
        for task in arguments.tasks:
            runs: dict[Path, list[dict[str, float]]] = {arguments.old: [], arguments.new: []}
            for version in runs:
                run_task_apart(version, task, arguments.data, name)
            for _ in range(arguments.turns):
                for version, figures in runs.items():
                    figures.append(run_task_apart(version, task, arguments.data, name))
            old, new = (
                {key: statistics.median(figures[key] for figures in of) for key in of[0]} for of in runs.values()
            )
            least = {version: min(figures["cpu"] for figures in of) for version, of in runs.items()}
            print(
                f"{name:13}{task:12}{old['seconds']:>7.2f}{new['seconds']:>8.2f}{new['seconds'] / old['seconds']:>7.2f}"
                f"{new['cpu'] / old['cpu']:>7.2f}{least[arguments.new] / least[arguments.old]:>7.2f}"
                f"{old['memory'] / 2**20:>10,.0f}{new['memory'] / 2**20:>9,.0f}{new['memory'] / old['memory']:>8.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
