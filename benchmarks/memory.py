"""Measure the peak memory of `Dataset.compute` and `Dataset.to_zarr`, at three sizes of data.

Each measurement has its own process. The figure is the peak resident memory (VmHWM) minus the resident memory after the
imports. The limits: for `compute` the result plus 64 MiB per thread; for `to_zarr` 100 MiB plus three write units per
thread, four for a sharded store, independent of the size of the data. A write unit is a chunk or shard of all dense
features together, or of the values of one ragged feature. The memory that the plan of the conversion states for a
worker is a limit as well: column "plan".

    python benchmarks/memory.py DATA [NAME …] [--sizes 0.5 5 20] [--tasks compute "to_zarr"] [--workers 2]

DATA is a directory that `make_data.py` wrote; larger sets repeat its shards as hard links. Stores are written next to
them and removed, one at a time. Results larger than the memory of the machine are not computed. Linux only. The exit
status is 1 if a limit is exceeded.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import dask
import zarr
from compare import resident
from dask_pipelines import FEATURES
from numpy.typing import NDArray

import dask_tfrecord as dtf

MIB = 2**20
# Records per chunk and per shard of the sharded store: about 50 MiB per shard.
SHARDED = {
    "tabular": (50_000, 400_000),
    "vectors": (4_000, 48_000),
    "images_raw": (64, 1_024),
    "tokens": (2_000, 24_000),
    "jpeg": (16, 256),
}
NAMES = ("images_raw", "vectors", "tokens", "tabular")
# A result may be three times as large as its files.
MOST_OF_MEMORY = 1 / 3
TASKS = ("compute", "to_zarr", "to_zarr sharded")


def available() -> int:
    """Return the available memory in bytes."""
    found = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(found["MemAvailable"].split()[0]) * 1024


def footprint(array: NDArray[Any]) -> int:
    """Return the bytes of a result: its buffer and its objects, each rounded up as the allocator does."""
    if array.dtype != object:
        return array.nbytes
    return array.nbytes + sum((sys.getsizeof(value) + 31) // 16 * 16 for value in array.flat)


def write_unit(store: Path) -> int:
    """Return the bytes of the largest write unit of a store."""
    together, alone = 0, [0]
    for name, array in zarr.open_group(store, mode="r").arrays():
        unit = math.prod(array.shards or array.chunks) * array.dtype.itemsize
        if name.endswith(".values"):
            alone.append(unit)
        else:
            together += unit
    return max(together, *alone)


def measure(task: str, pattern: str, name: str, workers: int, store: Path) -> dict[str, int]:
    """Perform the task in this process; return the peak above the imports, and the terms of the limit."""
    dask.config.set(scheduler="threads", num_workers=workers)
    before = resident("VmRSS")
    ds = dtf.read_tfrecord(pattern, features=FEATURES[name])
    if task == "compute":
        arrays = ds.compute()
        peak = resident("VmHWM") - before
        limit = sum(map(footprint, arrays.values())) + 64 * MIB * workers
        return {"peak": peak, "limit": limit, "plan": limit}
    sharded = task == "to_zarr sharded"
    chunks, shards = SHARDED[name] if sharded else (None, None)
    plan = ds.plan_zarr(chunks=chunks, shards=shards)
    plan.to_zarr(store)
    peak = resident("VmHWM") - before
    limit = 100 * MIB + (4 if sharded else 3) * write_unit(store) * workers
    return {"peak": peak, "limit": limit, "plan": plan.memory.added_nbytes}


def measure_apart(task: str, pattern: str, name: str, workers: int, store: Path) -> dict[str, int]:
    """Perform the task in a new process."""
    command = [sys.executable, __file__, "--measure", task, pattern, name, str(workers), str(store)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return figures


def repeat(data: Path, name: str, nbytes: float, out: Path) -> int:
    """Link the shards of a data set into `out` repeatedly, up to a number of bytes; return their total size."""
    shards = sorted(data.glob(f"{name}-*.tfrecord"))
    if not shards:
        raise SystemExit(f"no {name}-*.tfrecord in {data}: write it with make_data.py")
    total = number = 0
    while total < nbytes:
        shard = shards[number % len(shards)]
        os.link(shard, out / f"{name}-{number:05d}.tfrecord")
        total += shard.stat().st_size
        number += 1
    return total


def main() -> int:
    """Run the measurements of the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(SHARDED)}; default: {', '.join(NAMES)}"
    )
    parser.add_argument("--sizes", nargs="+", type=float, default=[0.5, 5, 20], help="GB of stored data")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--workers", type=int, default=2, help="threads of dask's scheduler")
    arguments = parser.parse_args()
    passed = False
    print("data        task               GB   peak MiB   limit MiB    plan MiB")
    for name in arguments.names or NAMES:
        for size in arguments.sizes:
            # Next to the data, because hard links don't cross file systems.
            with tempfile.TemporaryDirectory(dir=arguments.data) as scratch:
                total = repeat(arguments.data, name, size * 1e9, Path(scratch))
                for task in arguments.tasks:
                    if task == "compute" and total > MOST_OF_MEMORY * available():
                        print(f"{name:12}{task:16}{total / 1e9:>5.1f}  exceeds the memory of this machine")
                        continue
                    store = Path(scratch, "store.zarr")
                    figures = measure_apart(task, f"{scratch}/{name}-*.tfrecord", name, arguments.workers, store)
                    shutil.rmtree(store, ignore_errors=True)
                    over = figures["peak"] > min(figures["limit"], figures["plan"])
                    passed |= over
                    print(
                        f"{name:12}{task:16}{total / 1e9:>5.1f}{figures['peak'] / MIB:>11,.0f}"
                        f"{figures['limit'] / MIB:>12,.0f}{figures['plan'] / MIB:>12,.0f}{'  OVER' if over else ''}",
                        flush=True,
                    )
    return int(passed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        task, pattern, name, workers, store = sys.argv[2:]
        print(json.dumps(measure(task, pattern, name, int(workers), Path(store))))
    else:
        sys.exit(main())
