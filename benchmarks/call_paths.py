"""Count the modules of the library that one operation enters, and the moves between them.

python benchmarks/call_paths.py

Operations run on small shards with the synchronous scheduler, so that every task runs in this thread. A module counts
once it has a frame on the stack; a move is a call or a return that crosses from one module of the library to another.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import dask
import numpy as np

import dask_tfrecord as dtf

PACKAGE = str(Path(dtf.__file__).parent)


def count(operation: Callable[[], Any]) -> tuple[int, int]:
    """Run an operation; return the number of modules that it enters and of moves between them."""
    seen: set[str] = set()
    moves, last = 0, ""

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal moves, last
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGE):
            seen.add(name)
            moves += bool(last) and name != last
            last = name

    sys.setprofile(profile)
    try:
        operation()
    finally:
        sys.setprofile(None)
    return len(seen), moves


def main() -> None:
    """Print a row for each operation."""
    with tempfile.TemporaryDirectory() as folder, dask.config.set(scheduler="sync"):
        rows = {"label": np.arange(20), "tokens": [np.arange(n) for n in range(20)]}
        dtf.to_tfrecord(rows, f"{folder}/in/train-{{shard:05d}}-of-{{shards:05d}}.tfrecord", records_per_shard=10)
        features = {"label": dtf.FixedLenFeature((), "int64"), "tokens": dtf.VarLenFeature("int64")}
        ds = dtf.read_tfrecord(f"{folder}/in", features)
        operations: dict[str, Callable[[], Any]] = {
            "open": lambda: dtf.read_tfrecord(f"{folder}/in", features),
            "compute": lambda: dask.compute(*ds["label", "tokens"]),
            "to_zarr": lambda: ds.to_zarr(f"{folder}/out.zarr"),
            "to_tfrecord": lambda: ds.to_tfrecord(f"{folder}/out/"),
        }
        print(f"{'operation':12} {'modules':>8} {'moves':>8}")
        for name, operation in operations.items():
            modules, moves = count(operation)
            print(f"{name:12} {modules:8,} {moves:8,}")


if __name__ == "__main__":
    main()
