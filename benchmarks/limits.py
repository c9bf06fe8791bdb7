"""Measure the limits of the machine for decoding, and the part of this library's time that each of them explains.

    python benchmarks/limits.py DATA [NAME …] [--rounds 3]

Each round measures the limits and then `dask_pipelines.py DATA NAME` in processes, all in processor time of one thread,
so that both see the same machine. The limits are

- copy: bytes per second from the page cache to a block of 1 MiB that is reused;
- crc: bytes per second of CRC32C over that block;
- output: bytes per second from that block to memory that exceeds the caches and is reused;
- fresh: the same to memory that the process did not have before, page faults included;
- faults: the page faults of fresh memory alone, with one write per page;
- varints: integers per second of this library's decoder on long lists, without the copy.

A pass has to copy and to check every byte, to decode every integer, and to write every value of the result to memory:
reused memory if blocks are dropped (`touch`), fresh memory if they are gathered. The sum of these four times is what a
pass would take if nothing else had to be done. "Binding" is the largest of them.
"""

import argparse
import json
import mmap
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crc32c
import dask
import numpy as np
from compare import GATHERED, HERE, NAMES, files_of, run
from dask_pipelines import FEATURES, SEQUENCE_FEATURES, touch

import dask_tfrecord as dtf

MIB = 2**20
FILE_NBYTES = 64 * MIB
LISTS, LIST_SIZE = 200, 50_000
LIMITS = ("copy", "crc", "output", "fresh", "faults", "varints")
TASKS = {"touch": "output", "gather": "fresh"}


def seconds_of(work: Callable[[], Any]) -> float:
    """Return the processor time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def read_reused(path: Path, block: bytearray) -> None:
    """Read a file into a block again and again."""
    with path.open("rb", buffering=0) as file:
        while file.readinto(block):
            pass


def copy_to(memory: Any, block: bytearray) -> None:
    """Copy a block into memory again and again, until the memory is full."""
    view = np.frombuffer(memory, np.uint8)
    source = np.frombuffer(block, np.uint8)
    for start in range(0, FILE_NBYTES, len(block)):
        view[start : start + len(block)] = source


def copy_fresh(block: bytearray) -> None:
    """Copy a block into memory that is new to the process, which NumPy requests in huge pages."""
    copy_to(np.empty(FILE_NBYTES, np.uint8), block)


def touch_fresh() -> None:
    """Write a byte to each page of fresh memory."""
    with mmap.mmap(-1, FILE_NBYTES) as fresh:
        view = np.frombuffer(fresh, np.uint8)
        view[:: mmap.PAGESIZE] = 1
        del view


def measure_limits(folder: Path) -> dict[str, float]:
    """Measure each limit once: bytes per second, or integers per second; the files are made in an empty directory."""
    plain, lists = folder / "plain", folder / "lists.tfrecord"
    rng = np.random.default_rng(0)
    if not plain.exists():
        plain.write_bytes(rng.bytes(FILE_NBYTES))
        rows = rng.integers(50_000, size=(LISTS, LIST_SIZE))
        dtf.to_tfrecord({"label": rows}, lists)
    block, memory = bytearray(MIB), bytearray(FILE_NBYTES)
    read_reused(plain, block)
    copy_to(memory, block)
    found = {
        "copy": FILE_NBYTES / seconds_of(lambda: read_reused(plain, block)),
        "crc": FILE_NBYTES / seconds_of(lambda: [crc32c.crc32c(block) for _ in range(FILE_NBYTES // MIB)]),
        "output": FILE_NBYTES / seconds_of(lambda: copy_to(memory, block)),
        "fresh": FILE_NBYTES / seconds_of(lambda: copy_fresh(block)),
        "faults": FILE_NBYTES / seconds_of(touch_fresh),
    }
    features = {"label": dtf.FixedLenFeature((LIST_SIZE,), "int64")}
    ds = dtf.read_tfrecord(lists, features, check_crc=False, chunks="16 MiB")
    with dask.config.set(scheduler="sync"):
        # The first pass gets fresh memory, and later passes the same again.
        decoding = min(seconds_of(lambda: touch(ds)) for _ in range(4))
    return found | {"varints": LISTS * LIST_SIZE / (decoding - lists.stat().st_size / found["copy"])}


def work_of(files: list[Path], name: str) -> dict[str, float]:
    """Return the bytes and integers that a pass over a set moves, projected from its first shard."""
    ds = dtf.read_tfrecord(files[0], FEATURES[name], sequence_features=SEQUENCE_FEATURES.get(name))
    output = integers = 0
    for column in ds.compute().values():
        for array in column if column.dtype == object else [column]:
            if isinstance(array, np.ndarray):
                output += array.nbytes
                integers += array.size * (array.dtype.kind in "iu")
            else:
                output += len(array)
    stored = sum(path.stat().st_size for path in files)
    scale = stored / files[0].stat().st_size
    return {"copy": stored, "crc": stored, "output": output * scale, "varints": integers * scale}


def measure_ours(data: Path, name: str, task: str) -> float:
    """Return the median processor time of a pass in one thread."""
    command = [sys.executable, str(HERE / "dask_pipelines.py"), str(data), name, task, "--workers", "1"]
    found, _ = run([*command, "--clock", "cpu", "--passes", "3"])
    return float(statistics.median(found["seconds"]))


def shares(data: Path, names: list[str], rounds: int = 3) -> list[dict[str, Any]]:
    """Print and return the limits, and their shares in the time of each set."""
    # Images and compressed shards are bound by their codecs; other features of a set move the same bytes.
    names = [name for name in names if "." not in name and name not in ("jpeg", "png")]
    files = {name: files_of(data, name) for name in names}
    files = {name: found for name, found in files.items() if not name.endswith("_gz")}
    limits: list[dict[str, float]] = []
    ours: dict[tuple[str, str], list[float]] = {
        (task, name): [] for task in TASKS for name in files if task == "touch" or name in GATHERED
    }
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            limits.append(measure_limits(Path(folder)))
            for (task, name), seconds in ours.items():
                seconds.append(measure_ours(data, name, task))
    medians = {limit: statistics.median(each[limit] for each in limits) for limit in LIMITS}
    spreads = {limit: [extreme(each[limit] for each in limits) for extreme in (min, max)] for limit in LIMITS}
    print("\nLimits of one core, processor time")
    for limit, rate in medians.items():
        unit = "M/s" if limit == "varints" else "MB/s"
        low, high = spreads[limit]
        print(f"{limit:10}{rate / 1e6:>10,.0f} {unit:5}{low / 1e6:>10,.0f} to {high / 1e6:,.0f}")
    print(f"\n{'data':12}{'task':8}{'MB/s':>8}{'copy':>8}{'crc':>8}{'memory':>8}{'varints':>8}{'sum':>8}  binding")
    report: list[dict[str, Any]] = [
        {"task": "limits", "data": "", "clock": "cpu", "rates": medians, "spreads": spreads}
    ]
    for (task, name), measured in ours.items():
        work, time_of_pass = work_of(files[name], name), statistics.median(measured)
        rates = medians | {"output": medians[TASKS[task]]}
        parts = {limit: work[limit] / rates[limit] / time_of_pass for limit in work}
        binding = max(parts, key=lambda limit: parts[limit])
        print(
            f"{name:12}{task:8}{work['copy'] / time_of_pass / 1e6:>8,.0f}"
            + "".join(f"{share:>8.0%}" for share in [*parts.values(), sum(parts.values())])
            + f"  {binding}",
            flush=True,
        )
        report.append(
            {"task": f"limits of {task}", "data": name, "clock": "cpu", "seconds": measured, "nbytes": work["copy"]}
            | {"shares": parts, "binding": binding}
        )
    return report


def main() -> None:
    """Measure the sets of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="directory that make_data.py wrote to")
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all in DATA")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    names = arguments.names or [name for name in NAMES if files_of(arguments.data, name)]
    report = shares(arguments.data, names, arguments.rounds)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
