"""Measure how reading scales: with threads and processes, with the number of records, and with chunks and columns.

    python benchmarks/scaling.py [--records 100 1000 …] [--chunks 10 100 …] [--copies 8] [--directory DIR]

First table: all blocks of small records are decoded and dropped by one and two threads, one and two processes of a
cluster on this machine, and two processes of two threads. Second: opening and summing 100 to a million records
(`--records … 10_000_000` for more). Third: a dataset of 10 to 10,000 chunks and of 1 and 10 columns: the time until it
is planned and built, until the first block, the processor time of each task, and the memory of the client. "Own" is the
part of a task that this library takes: reading one chunk of ten records without dask.

Each measurement has its own process, which first reads a shard. Files are links to a few small files. Linux only.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
from compare import resident, run
from dask_pipelines import look, touch

import dask_tfrecord as dtf

RECORDS_PER_CHUNK = 10
COLUMNS = 10
FEATURES = {f"feature{number}": dtf.FixedLenFeature((), "float32") for number in range(COLUMNS)}
SETUPS = {
    "1 thread": (0, 1),
    "2 threads": (0, 2),
    "1 process": (1, 1),
    "2 processes": (2, 1),
    "2 processes of 2 threads": (2, 2),
}


def write_shard(path: Path, records: int) -> None:
    """Write records of ten floats; the first is the number of the record."""
    numbers = np.arange(records, dtype=np.float32)
    dtf.to_tfrecord({name: numbers + shift for shift, name in enumerate(FEATURES)}, path)


def link(path: Path, copies: int) -> None:
    """Link a file as `copies` shards in its directory; some file systems allow 65,000 links to a file."""
    data = path.read_bytes()
    for number in range(1, copies):
        other = path.with_name(f"part-{number:06d}.tfrecord")
        if number % 50_000 == 0:
            other.write_bytes(data)
            path = other
        else:
            os.link(path, other)


def warm_up(folder: str) -> None:
    """Read a shard, so that imports and first calls are not measured."""
    ds = dtf.read_tfrecord(f"{folder}/part-000000.tfrecord", FEATURES)
    with dask.config.set(scheduler="threads", num_workers=1):
        touch(ds)


def measure_workers(folder: str, processes: int, threads: int) -> dict[str, float]:
    """Read all blocks with these workers; return the records per second of the median pass."""
    ds = dtf.read_tfrecord(folder, FEATURES, chunks="shard")
    seconds, rows = [], 0

    def passes() -> None:
        nonlocal rows
        for _ in range(4):
            start = time.perf_counter()
            rows = touch(ds)
            seconds.append(time.perf_counter() - start)

    if processes:
        from distributed import Client, LocalCluster

        with (
            LocalCluster(
                n_workers=processes, threads_per_worker=threads, dashboard_address=None, host="127.0.0.1"
            ) as cluster,
            Client(cluster),
        ):
            passes()
    else:
        with dask.config.set(scheduler="threads", num_workers=threads):
            passes()
    return {"records/s": rows / statistics.median(seconds[1:]), "records": rows}


def measure_growth(folder: str) -> dict[str, float]:
    """Open a directory and sum a feature; return the processor time of both, and the added memory in MiB."""
    warm_up(folder)
    before = resident("VmRSS")
    start = time.process_time()
    ds = dtf.read_tfrecord(folder, FEATURES)
    opened = time.process_time()
    with dask.config.set(scheduler="threads", num_workers=1):
        ds["feature0"].sum().compute()
    done = time.process_time()
    return {"open s": opened - start, "sum s": done - opened, "MiB": (resident("VmHWM") - before) / 2**20}


def measure_chunks(folder: str, chunks: int, columns: int) -> dict[str, float]:
    """Read chunks of ten records; return times in seconds, the times of a task in milliseconds, and memory in MiB."""
    features = dict(list(FEATURES.items())[:columns])
    warm_up(folder)
    before = resident("VmRSS")
    start = time.process_time()
    ds = dtf.read_tfrecord(folder, features, chunks="shard", counts=[RECORDS_PER_CHUNK] * chunks)
    counted = ds.map_blocks(look)["rows"]
    built = time.process_time()
    assert ds.npartitions == chunks
    with dask.config.set(scheduler="sync"):
        ds["feature0"].blocks[0].compute()
        first = time.process_time()
        counted.sum().compute()
    done = time.process_time()
    memory = (resident("VmHWM") - before) / 2**20
    # The same chunks without dask.
    own: list[float] = []
    source = ds._rows.source
    assert source is not None
    for chunk in np.linspace(0, chunks - 1, 200).astype(int):
        begin = time.process_time()
        source.read(list(features), slice(chunk * RECORDS_PER_CHUNK, (chunk + 1) * RECORDS_PER_CHUNK))
        own.append(time.process_time() - begin)
    return {
        "build s": built - start,
        "first s": first - built,
        "task ms": (done - first) / chunks * 1000,
        "own ms": statistics.median(own) * 1000,
        "MiB": memory,
    }


def apart(what: str, *arguments: Any, rounds: int = 3) -> dict[str, float]:
    """Measure in new processes; return the median of each figure."""
    found = []
    for _ in range(rounds):
        command = [sys.executable, __file__, "--measure", what, *map(str, arguments)]
        found.append(run(command)[0])
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print rows as a table."""
    print("  ".join(f"{name:>12}" for name in rows[0]))
    for row in rows:
        cells = [f"{value:,.3f}" if isinstance(value, float) and value < 100 else value for value in row.values()]
        print("  ".join(f"{cell:>12,.0f}" if isinstance(cell, int | float) else f"{cell:>12}" for cell in cells))


def make(folder: Path, shards: int, records: int) -> str:
    """Write a directory of equal shards."""
    folder.mkdir()
    write_shard(folder / "part-000000.tfrecord", records)
    link(folder / "part-000000.tfrecord", shards)
    return str(folder)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", nargs="+", type=int, default=[100, 1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--chunks", nargs="+", type=int, default=[10, 100, 1_000, 10_000])
    parser.add_argument("--workers", nargs="+", choices=SETUPS, default=list(SETUPS))
    parser.add_argument("--copies", type=int, default=8, help="shards of 100,000 records for the first table")
    parser.add_argument("--rounds", type=int, default=3, help="processes for each figure; the median counts")
    parser.add_argument("--directory", type=Path, help="directory of the files; by default a temporary one")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    report: dict[str, list[dict[str, Any]]] = {"workers": [], "growth": [], "chunks": []}
    with tempfile.TemporaryDirectory(dir=arguments.directory) as scratch:
        folder = make(Path(scratch, "workers"), arguments.copies, 100_000)
        for name in arguments.workers:
            setup = SETUPS[name]
            report["workers"].append({"workers": name} | apart("workers", folder, *setup, rounds=arguments.rounds))
        print_table(report["workers"])
        print()
        for records in arguments.records:
            shards = max(1, records // 100_000)
            folder = make(Path(scratch, f"growth{records}"), shards, records // shards)
            found = apart("growth", folder, rounds=arguments.rounds)
            report["growth"].append(
                {"records": records, **found, "us a record": (found["open s"] + found["sum s"]) / records * 1e6}
            )
        print_table(report["growth"])
        print()
        for chunks in arguments.chunks:
            folder = make(Path(scratch, f"chunks{chunks}"), chunks, RECORDS_PER_CHUNK)
            for columns in (1, COLUMNS):
                found = apart("chunks", folder, chunks, columns, rounds=arguments.rounds)
                report["chunks"].append({"chunks": chunks, "columns": columns, **found})
        print_table(report["chunks"])
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


MEASUREMENTS: dict[str, Callable[..., dict[str, float]]] = {
    "workers": measure_workers,
    "growth": measure_growth,
    "chunks": measure_chunks,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        what, folder, *numbers = sys.argv[2:]
        print(json.dumps(MEASUREMENTS[what](folder, *map(int, numbers))))
    else:
        main()
