"""Measure time and memory for a hundred thousand shards until the first is read, and until the first task is done.

    python benchmarks/planning.py [--shards 100000] [--features 10] [--directory DIR] [--json FILE]

First part: plan, build and tokenize a collection whose shards are listed and counted, with "auto" chunks and with one
chunk per shard. Second part: create as many files of ten records, hard links to one file, and measure the time of `sum`
of a feature on two threads until the first task is done; with given counts, so that no shard is scanned. Each
measurement has its own process. Memory is resident memory above that of the imports and the input lists.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask
import numpy as np
from dask.base import tokenize
from dask.callbacks import Callback

import dask_tfrecord as dtf
from dask_tfrecord.arrays.collection import Collection, borders_by_bytes, borders_by_shard
from dask_tfrecord.arrays.rows import Rows
from dask_tfrecord.arrays.sources import RecordSource
from dask_tfrecord.columns.column_plan import SchemaPlan
from dask_tfrecord.messages import Example
from dask_tfrecord.records.index import ShardIndex
from dask_tfrecord.storage.shard import Shards

RECORDS = 10
CHUNK_NBYTES = 128 << 20


def peak() -> int:
    """Return the peak resident memory in bytes, and reset it."""
    status = Path("/proc/self/status").read_text()
    [found] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    Path("/proc/self/clear_refs").write_text("5")
    return int(found.split()[1]) * 1024


def plan(shards: int, features: int, chunks: str) -> dict[str, Any]:
    """Measure planning, building and tokenizing.

    Parameters
    ----------
    shards, features : int
        Number of each.
    chunks : str
        As in `read_tfrecord`: "auto" or "shard".
    """
    paths = tuple(f"/data/train/part-{number:06d}.tfrecord" for number in range(shards))
    versions = tuple(f"{1_700_000_000 + number}.25" for number in range(shards))
    files = Shards(paths, np.full(shards, 1000), versions, "infer", {})
    mark = np.zeros(1, np.int64)
    indexes = [ShardIndex(RECORDS, mark.copy(), mark.copy(), 1000, None) for _ in range(shards)]
    schema = dtf.Schema({f"feature{number}": dtf.FixedLenFeature((), "float32") for number in range(features)})
    peak()
    before = peak()
    began = time.perf_counter()
    collection = Collection.from_indexes(files.resolved([None] * shards, [False] * shards), indexes)
    source = RecordSource.from_collection(collection, SchemaPlan(schema), range(collection.nrows), True)
    if chunks == "shard":
        borders = borders_by_shard(collection)
    else:
        borders = borders_by_bytes(collection, np.full(shards, 4.0 * features), CHUNK_NBYTES, coalesce=False)
    planned = time.perf_counter()
    dataset = dtf.Dataset(Rows.of_source(source, borders), list(schema))
    arrays = [*dataset.values(), *dataset[tuple(schema)]]
    built = time.perf_counter()
    tokenize(dataset, arrays)
    done = time.perf_counter()
    return {
        "chunks": dataset.npartitions,
        "plan": planned - began,
        "build": built - planned,
        "tokenise": done - built,
        "all": done - began,
        "MiB": (peak() - before) / 2**20,
    }


class First(Callback):
    """Record the time at which the first reading task is done."""

    def __init__(self) -> None:
        self.seconds: float | None = None

    def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker: Any) -> None:
        if self.seconds is None and isinstance(result, np.ndarray | np.generic):
            self.seconds = time.perf_counter()


def first_task(shards: int, features: int, chunks: str, folder: Path) -> dict[str, Any]:
    """Measure opening, and the time to the first task.

    Parameters
    ----------
    shards, features, chunks
        As in `plan`.
    folder : Path
        Directory of the files.
    """
    schema = {f"feature{number}": dtf.FixedLenFeature((), "float32") for number in range(features)}
    began = time.perf_counter()
    dataset = dtf.read_tfrecord(folder, schema, chunks=chunks, counts=[RECORDS] * shards)
    opened = time.perf_counter()
    note = First()
    with note, dask.config.set(scheduler="threads", num_workers=2):
        total = dataset["feature0"].sum().compute()
    done = time.perf_counter()
    assert total == shards * sum(range(RECORDS))
    assert note.seconds is not None
    return {"open": opened - began, "first": note.seconds - opened, "sum": done - opened}


def make_files(shards: int, features: int, folder: Path) -> None:
    """Create files of the same ten records, as links to one file.

    Parameters
    ----------
    shards, features : int
        Number of each.
    folder : Path
        Existing empty directory.
    """
    one = folder / "part-000000.tfrecord"
    with dtf.RecordWriter(one) as writer:
        for record in range(RECORDS):
            example = Example()
            for number in range(features):
                example.features.feature[f"feature{number}"].float_list.value.append(record + number)
            writer.write(example.SerializeToString())
    for number in range(1, shards):
        # Some file systems limit a file to 65,000 links.
        if number % 50_000 == 0:
            one = folder / f"part-{number:06d}.tfrecord"
            one.write_bytes((folder / "part-000000.tfrecord").read_bytes())
        else:
            os.link(one, folder / f"part-{number:06d}.tfrecord")


def in_process(what: str, shards: int, features: int, chunks: str, folder: Path) -> dict[str, Any]:
    """Measure in a new process.

    Parameters
    ----------
    what : str
        "plan" or "first".
    shards, features, chunks, folder
        As above.
    """
    arguments = ["--worker", what, chunks, "--shards", str(shards), "--features", str(features)]
    done = subprocess.run(
        [sys.executable, __file__, *arguments, "--directory", str(folder)], check=True, stdout=subprocess.PIPE
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table.

    Parameters
    ----------
    arguments : sequence of str, optional
        Arguments; by default those of the command line.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=10)
    parser.add_argument("--directory", type=Path, help="directory of the files; by default a temporary one")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        what, chunks = options.worker
        given = (options.shards, options.features, chunks)
        print(json.dumps(plan(*given) if what == "plan" else first_task(*given, options.directory)))
        return
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        make_files(options.shards, options.features, Path(folder))
        for chunks in ("auto", "shard"):
            figures[chunks] = {
                **in_process("plan", options.shards, options.features, chunks, Path(folder)),
                **in_process("first", options.shards, options.features, chunks, Path(folder)),
            }
    names = list(figures["auto"])
    print(f"{options.shards:,} shards of {options.features} features; seconds, and MiB")
    print("  ".join(f"{name:>8}" for name in ["", *names]))
    for chunks, row in figures.items():
        cells = [f"{row[name]:,}" if name == "chunks" else f"{row[name]:.2f}" for name in names]
        print("  ".join(f"{cell:>8}" for cell in [chunks, *cells]))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
