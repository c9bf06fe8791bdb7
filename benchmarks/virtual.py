"""Time and memory of reading shards through Zarr: planning, whole columns, rows here and there, sizes of references.

    python benchmarks/virtual.py [MEGABYTES] [FOLDER]

Compares xarray and zarr on references of `virtual_zarr` with `read_tfrecord` and with a store of `to_zarr`, column by
column. Each time is the least of seven, in seconds of processor time of all threads, which other programs disturb less.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xarray
import zarr

import dask_tfrecord as dtf

FEATURES: dict[str, Any] = {
    "label": dtf.FixedLenFeature((), "int64"),
    "name": dtf.FixedLenFeature((), "bytes"),
    "text": dtf.TextFeature(),
    "embedding": dtf.FixedLenFeature((192,), "float32"),
    "values": dtf.FixedLenFeature((16,), "int64"),
}
SHARDS = 4
RECORD_NBYTES = 1000


def seconds(call: Callable[[], Any]) -> float:
    """Return the least processor time of seven calls."""
    best = float("inf")
    for _ in range(7):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def write(folder: Path, megabytes: int) -> str:
    """Write shards of records of about one kB; return their glob."""
    rng, count = np.random.default_rng(0), megabytes * 1_000_000 // RECORD_NBYTES // SHARDS
    for shard in range(SHARDS):
        columns = {
            "label": rng.integers(0, 1000, count),
            "name": [b"n%06d" % row for row in range(count)],
            "text": [f"row {row} of shard {shard}" for row in range(count)],
            "embedding": rng.standard_normal((count, 192), np.float32),
            "values": rng.integers(0, 1 << 20, (count, 16)),
        }
        dtf.to_tfrecord(columns, folder / f"x-{shard}.tfrecord", features=FEATURES)
    return f"{folder}/x-*.tfrecord"


def main(megabytes: int = 475, folder: str | None = None) -> None:
    """Print one line for each measurement."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        url = write(Path(name), megabytes)
        counted = seconds(lambda: dtf.read_tfrecord(url, FEATURES))
        planned = seconds(lambda: dtf.virtual_zarr(url, FEATURES))
        print(f"planning: {planned:.2f} s, {planned / counted:.2f} of counting ({counted:.2f} s)")
        virtual, ds = dtf.virtual_zarr(url, FEATURES), dtf.read_tfrecord(url, FEATURES)
        refs = virtual.references()
        print(f"references: {len(json.dumps(refs)):,} bytes for {virtual.nrecords:,} records, {virtual.nchunks} chunks")
        opened = xarray.open_dataset("reference://", engine="zarr", chunks={}, storage_options={"fo": refs})
        group: Any = zarr.open_group("reference://", mode="r", storage_options={"fo": refs})
        ds.to_zarr(f"{name}/own.zarr")
        own: Any = zarr.open_group(f"{name}/own.zarr", mode="r")
        print("column, read_tfrecord, xarray on references, ratio of speeds, zarr, zarr of an own store (seconds)")
        for column in FEATURES:
            direct = seconds(lambda column=column: ds[[column]].compute())  # type: ignore[misc]
            through = seconds(lambda column=column: opened[column].compute())  # type: ignore[misc]
            plain = seconds(lambda column=column: group[column][:])  # type: ignore[misc]
            stored = column if column in own else f"{column}.values"
            copy = seconds(lambda stored=stored: own[stored][:])  # type: ignore[misc]
            print(f"{column:10} {direct:7.3f} {through:7.3f} {direct / through:6.2f} {plain:7.3f} {copy:7.3f}")
        rows = np.random.default_rng(1).choice(virtual.nrecords, 1000, replace=False)
        for label, call in {
            "at once": lambda of: of["embedding"].oindex[np.sort(rows)],
            "one by one": lambda of: [of["embedding"][int(row)] for row in rows[:100]],
        }.items():
            times = [seconds(lambda of=of, call=call: call(of)) for of in (group, own)]  # type: ignore[misc]
            print(
                f"rows here and there, {label}: {times[0]:.2f} s, own store {times[1]:.2f} s: {times[0] / times[1]:.1f}"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 475, *sys.argv[2:3])
