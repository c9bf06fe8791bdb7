"""Measure storage and framing: counting, indexes, gzip, reading inside a gzip shard, many small shards.

    python benchmarks/storage.py /tmp/benchmark-storage [--megabytes 512] [--cores 1] [--json FILE]

writes its own data to that directory, with the same bytes in every run, and prints a table. Files are in the page
cache. Each figure is the median of three runs after a warm-up run. Scans are compared with plain sequential reading:
`readinto` of one reused buffer of 1 MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from dask_tfrecord import RecordWriter, build_index
from dask_tfrecord.arrays.counting import index_shards
from dask_tfrecord.records.framing import Window
from dask_tfrecord.records.index import index_shard, scan_shard
from dask_tfrecord.storage import compression
from dask_tfrecord.storage.compression import open_stream
from dask_tfrecord.storage.listing import Shard, find_shards
from dask_tfrecord.storage.sidecar_files import find_sidecars

# Bytes of a payload: a scan reads small records, and skips large ones.
SIZES = {"200 B": 200, "4 KiB": 4 << 10, "256 KiB": 256 << 10, "1 MiB": 1 << 20}
MANY = 10_000


@dataclass(frozen=True, slots=True)
class Figure:
    """Line of the table.

    Attributes
    ----------
    what : str
        Operation.
    seconds : float
        Median time.
    note : str
        Rate or ratio that follows from the time.
    """

    what: str
    seconds: float
    note: str


def timed(call: Callable[[], Any], runs: int = 3) -> float:
    """Measure a call.

    Parameters
    ----------
    call : callable
        Function without arguments.
    runs : int
        Number of timed runs, after a warm-up run.

    Returns
    -------
    float
        Median in seconds.
    """
    call()
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def payload(size: int, number: int) -> bytes:
    """Return bytes that gzip compresses to half their size."""
    return random.Random(number).randbytes(size // 2).hex().encode()[:size]


def make(path: Path, size: int, count: int, kind: str | None = None) -> Shard:
    """Write a shard unless it exists, and list it."""
    if not path.exists():
        # A hundred payloads in rotation, so that the time is that of the writer, not of the generator.
        payloads = [payload(size, number) for number in range(min(count, 100))]
        with RecordWriter(path, kind) as writer:
            for number in range(count):
                writer.write(payloads[number % len(payloads)])
    return find_shards(path)[0]


def read_plain(shard: Shard) -> None:
    """Read a file with one buffer."""
    buffer = bytearray(1 << 20)
    with Path(shard.path).open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def drain(shard: Shard) -> None:
    """Read and decompress a shard with one buffer."""
    buffer = memoryview(bytearray(1 << 20))
    with open_stream(shard, 0, 1 << 62) as stream:
        while stream.readinto(buffer):
            pass


def scanning(folder: Path, nbytes: int) -> list[Figure]:
    """Count records from their headers, and from a sidecar."""
    figures = []
    for name, size in SIZES.items():
        count = nbytes // (size + 16)
        shard = make(folder / f"records-{size}.tfrecord", size, count)
        plain = timed(partial(read_plain, shard))
        scan = timed(partial(scan_shard, shard))
        ratio = f"{count / scan / 1e6:.2f} M records/s, {plain / scan:.2f} times the speed of plain reading"
        figures.append(Figure(f"scan {count:,} records of {name}", scan, ratio))
        build_index(shard.path)
        [sidecar] = find_sidecars([shard], ".idx")
        read = timed(partial(index_shard, shard, sidecar))
        figures.append(
            Figure(f"read the sidecar of the same {count:,}", read, f"{scan / read:.2f} times the speed of a scan")
        )
    return figures


def inflating(folder: Path, nbytes: int) -> list[Figure]:
    """Decompress a shard with each library, and read inside it with and without access points."""
    count = nbytes // 4112
    shard = make(folder / "records.tfrecord.gz", 4096, count, "gzip")
    inflated = count * 4112
    figures = []
    libraries: dict[str, ModuleType] = {"zlib": zlib}
    try:
        from isal import isal_zlib
    except ImportError:
        print("isal is not installed: measuring gzip only without it")
    else:
        libraries["isal"] = isal_zlib
    for name, library in libraries.items():
        compression._inflate = library
        seconds = timed(lambda: drain(shard))
        figures.append(
            Figure(f"inflate {inflated >> 20} MiB by {name}", seconds, f"{inflated / seconds / 1e6:.0f} MB/s")
        )
    build = time.perf_counter()
    build_index(shard.path)
    figures.append(Figure("index that gzip shard", time.perf_counter() - build, "with indexed_gzip, once"))
    middle = count // 2 * 4112

    def enter(shard: Shard) -> None:
        with Window(shard, middle, stop=middle + (1 << 20)) as window:
            window.fill(1 << 20)

    without = timed(lambda: enter(shard))
    with_points = timed(lambda: enter(replace(shard, access=True)))
    figures.append(Figure("read 1 MiB in the middle, from the beginning", without, ""))
    figures.append(
        Figure("read 1 MiB in the middle, with access points", with_points, f"{without / with_points:.0f} times faster")
    )
    return figures


def opening(folder: Path) -> list[Figure]:
    """List and count ten thousand small shards."""
    many = folder / "many"
    many.mkdir(exist_ok=True)
    for number in range(MANY):
        make_small(many / f"x-{number:05}-of-{MANY:05}")
    found = timed(lambda: find_shards(many))
    shards = find_shards(many)
    counted = timed(lambda: index_shards(shards, sidecars=True))
    return [
        Figure(f"list {MANY:,} shards", found, f"{1e6 * found / MANY:.0f} µs a shard"),
        Figure(f"count {MANY:,} shards of ten records", counted, f"{1e6 * counted / MANY:.0f} µs a shard"),
    ]


def make_small(path: Path) -> None:
    """Write a shard of ten records unless it exists."""
    if not path.exists():
        with RecordWriter(path) as writer:
            for number in range(10):
                writer.write(payload(200, number))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all measurements and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=int, default=512, help="size of each shard")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args(arguments)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    folder: Path = options.folder / str(options.megabytes)
    folder.mkdir(parents=True, exist_ok=True)
    nbytes = options.megabytes << 20
    figures = [*scanning(folder, nbytes), *inflating(folder, nbytes), *opening(folder)]
    print("| what | seconds | |\n| --- | --- | --- |")
    for figure in figures:
        print(f"| {figure.what} | {figure.seconds:.4f} | {figure.note} |")
    if options.json:
        rows = [{"what": figure.what, "seconds": figure.seconds, "said": figure.note} for figure in figures]
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
