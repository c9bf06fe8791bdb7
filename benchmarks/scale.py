"""Measure how time and memory grow: records and chunks, planning, storage, memory and start-up.

python benchmarks/scale.py {records,planning,cluster,storage,memory,startup} --help
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import math
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import dask
import dask.array as da
import dask.threaded
import numpy as np
import zarr
from dask._task_spec import DataNode, GraphNode, Task, TaskRef, convert_legacy_graph
from dask.base import tokenize
from dask.callbacks import Callback
from harness import SHARDED, dispatch, parser_of, resident, run
from numpy.typing import NDArray
from pipelines import FEATURES, look, touch

import dask_tfrecord as dtf
from dask_tfrecord import RecordWriter, build_index
from dask_tfrecord.columns.decoder import Decoder
from dask_tfrecord.messages import Example
from dask_tfrecord.records.index import ShardIndex, index_shard, scan_shard
from dask_tfrecord.records.window import Window
from dask_tfrecord.rows.chunk_borders import borders_by_bytes, borders_by_rows, distinct
from dask_tfrecord.rows.collection import Collection
from dask_tfrecord.rows.counting import index_shards
from dask_tfrecord.rows.rows import Rows
from dask_tfrecord.rows.sources import RecordSource
from dask_tfrecord.shards import deflate
from dask_tfrecord.shards.listing import find_shards, find_sidecars
from dask_tfrecord.shards.shard import Shard, Shards
from dask_tfrecord.shards.streams import open_stream

RECORDS_PER_CHUNK = 10

COLUMNS = 10

FLOATS = {f"feature{number}": dtf.FixedLenFeature((), "float32") for number in range(COLUMNS)}

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
    dtf.to_tfrecord({name: numbers + shift for shift, name in enumerate(FLOATS)}, path)


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
    ds = dtf.read_tfrecord(f"{folder}/part-000000.tfrecord", FLOATS)
    with dask.config.set(scheduler="threads", num_workers=1):
        touch(ds)


def measure_workers(folder: str, processes: int, threads: int) -> dict[str, float]:
    """Read all blocks with these workers; return the records per second of the median pass."""
    ds = dtf.read_tfrecord(folder, FLOATS, chunks="shard")
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
                n_workers=processes, threads_per_worker=threads, dashboard_address=":0", host="127.0.0.1"
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
    ds = dtf.read_tfrecord(folder, FLOATS)
    opened = time.process_time()
    with dask.config.set(scheduler="threads", num_workers=1):
        ds["feature0"].sum().compute()
    done = time.process_time()
    return {"open s": opened - start, "sum s": done - opened, "MiB": (resident("VmHWM") - before) / 2**20}


def measure_chunks(folder: str, chunks: int, columns: int) -> dict[str, float]:
    """Read chunks of ten records; return times in seconds, the times of a task in milliseconds, and memory in MiB."""
    features = dict(list(FLOATS.items())[:columns])
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
    source = ds.as_rows().counted_source
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


def measured_apart(what: str, *arguments: Any, rounds: int = 3) -> dict[str, float]:
    """Measure in new processes; return the median of each figure."""
    found = []
    for _ in range(rounds):
        command = [sys.executable, __file__, "records", "--measure", what, *map(str, arguments)]
        found.append(run(command)[0])
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print rows as a table."""
    print("  ".join(f"{name:>12}" for name in rows[0]))
    for row in rows:
        cells = [f"{value:,.3f}" if isinstance(value, float) and value < 100 else value for value in row.values()]
        print("  ".join(f"{cell:>12,.0f}" if isinstance(cell, int | float) else f"{cell:>12}" for cell in cells))


def make_shards(folder: Path, shards: int, records: int) -> str:
    """Write a directory of equal shards."""
    folder.mkdir()
    write_shard(folder / "part-000000.tfrecord", records)
    link(folder / "part-000000.tfrecord", shards)
    return str(folder)


def run_records() -> None:
    """Measure how reading scales: with threads, processes, records, chunks and columns.

        python benchmarks/scale.py records [--records 100 1000 …] [--chunks 10 100 …] [--copies 8] [--directory DIR]

    First table: all blocks of small records are decoded and dropped by one and two threads, one and two processes
    of a cluster on this machine, and two processes of two threads. Second: opening and summing 100 to a million
    records (`--records … 10_000_000` for more). Third: a dataset of 10 to 10,000 chunks and of 1 and 10 columns:
    the time until it is planned and built, until the first block, the processor time of each task, and the memory
    of the client. "Own" is the part of a task that this library takes: reading one chunk of ten records without
    dask.

    Each measurement has its own process, which first reads a shard. Files are links to a few small files. Linux
    only.
    """
    if sys.argv[1:2] == ["--measure"]:
        what, path, *numbers = sys.argv[2:]
        print(json.dumps(MEASUREMENTS[what](path, *map(int, numbers))))
        return
    parser = parser_of(run_records)
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
        folder = make_shards(Path(scratch, "workers"), arguments.copies, 100_000)
        for name in arguments.workers:
            setup = SETUPS[name]
            report["workers"].append(
                {"workers": name} | measured_apart("workers", folder, *setup, rounds=arguments.rounds)
            )
        print_table(report["workers"])
        print()
        for records in arguments.records:
            shards = max(1, records // 100_000)
            folder = make_shards(Path(scratch, f"growth{records}"), shards, records // shards)
            found = measured_apart("growth", folder, rounds=arguments.rounds)
            report["growth"].append(
                {"records": records, **found, "us a record": (found["open s"] + found["sum s"]) / records * 1e6}
            )
        print_table(report["growth"])
        print()
        for chunks in arguments.chunks:
            folder = make_shards(Path(scratch, f"chunks{chunks}"), chunks, RECORDS_PER_CHUNK)
            for columns in (1, COLUMNS):
                found = measured_apart("chunks", folder, chunks, columns, rounds=arguments.rounds)
                report["chunks"].append({"chunks": chunks, "columns": columns, **found})
        print_table(report["chunks"])
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


MEASUREMENTS: dict[str, Callable[..., dict[str, float]]] = {
    "workers": measure_workers,
    "growth": measure_growth,
    "chunks": measure_chunks,
}

RECORDS = 10

CHUNK_NBYTES = 128 << 20

CLUSTER_TASKS = 20_000


def reset_peak() -> int:
    """Return the peak resident memory in bytes, and reset it."""
    status = Path("/proc/self/status").read_text()
    [found] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    Path("/proc/self/clear_refs").write_text("5")
    return int(found.split()[1]) * 1024


def plan_shards(shards: int, features: int, chunks: str) -> dict[str, Any]:
    """Measure planning, building and tokenizing.

    Parameters
    ----------
    shards, features : int
        Number of each.
    chunks : str
        "auto", "shard", or "record" for one chunk of each record.
    """
    paths = tuple(f"/data/train/part-{number:06d}.tfrecord" for number in range(shards))
    versions = tuple(f"{1_700_000_000 + number}.25" for number in range(shards))
    files = Shards(paths, np.full(shards, 1000), versions, "infer", {})
    mark = np.zeros(1, np.int64)
    indexes = [ShardIndex(RECORDS, mark.copy(), mark.copy(), 1000, None) for _ in range(shards)]
    schema = dtf.Schema({f"feature{number}": dtf.FixedLenFeature((), "float32") for number in range(features)})
    reset_peak()
    before = reset_peak()
    began = time.process_time()
    collection = Collection.from_indexes(files.resolved([None] * shards, [False] * shards), indexes)
    source = RecordSource.from_collection(collection, Decoder(schema), range(collection.nrows), check_crc=True)
    if chunks == "shard":
        borders = distinct(collection.starts)
    elif chunks == "record":
        borders = borders_by_rows(collection.nrows, 1)
    else:
        borders = borders_by_bytes(collection, np.full(shards, 4.0 * features), CHUNK_NBYTES, coalesce=False)
    planned = time.process_time()
    dataset = dtf.Dataset(Rows.of_source(source, borders))
    arrays = [*dataset.values(), *dataset[tuple(schema)]]
    built = time.process_time()
    tokenize(dataset, arrays)
    done = time.process_time()
    return {
        "chunks": dataset.npartitions,
        "plan": planned - began,
        "build": built - planned,
        "tokenise": done - built,
        "all": done - began,
        "MiB": (reset_peak() - before) / 2**20,
    }


def graph_of_chunks(chunks: int, columns: int, folder: Path) -> dict[str, float]:
    """Measure the graph of some columns, and of as many `dask.array.zeros`, in microseconds of a chunk of a column.

    Times are processor times of making and optimising the graph, and of running it on one thread and on a cluster,
    with other tasks of the same keys and dependencies, which do nothing. The scheduler of the cluster and its worker
    have processes of their own, whose times count. "alike" are arrays of dask alone with as many tasks and
    dependencies: `from_array` for one column; for several, `map_blocks` of two arguments and of its result. The
    cluster runs up to 20,000 tasks, and more than 2,000 once. The shortest times of four turns count: other processes
    only add to them.
    """
    from distributed import Client, SubprocessCluster

    schema = {f"feature{number}": dtf.FixedLenFeature((), "float32") for number in range(columns)}
    dataset = dtf.read_tfrecord(folder, schema, chunks="shard", counts=[RECORDS] * chunks)

    def make(name: str) -> list[da.Array]:
        if name == "zeros":
            return [da.zeros(RECORDS * chunks, chunks=RECORDS, name=f"zeros-{column}") for column in range(columns)]
        if name == "ours":
            return [dataset["feature0"]] if columns == 1 else list(dataset[tuple(schema)])
        if columns == 1:
            lazy = zarr.zeros((RECORDS * chunks,), chunks=(RECORDS,))
            return [da.from_array(lazy, chunks=RECORDS, name="alike", asarray=False, lock=False)]
        inputs = [dask.delayed(name, name=f"alike-{name}") for name in ("source", "plan", "option")]
        kind: dict[str, Any] = {"dtype": object, "meta": np.empty(0, object)}
        with dask.annotate(alike=True):
            read = da.map_blocks(nothing, *inputs[:2], name="alike", chunks=((1,) * chunks,), **kind)
        return [da.map_blocks(nothing, read, inputs[2], name=f"alike-{name}", **kind) for name in schema]

    def blank(key: Any, task: GraphNode) -> GraphNode:
        return task if isinstance(task, DataNode) else Task(key, nothing, *map(TaskRef, task.dependencies))

    def optimised_arrays(name: str) -> tuple[Any, ...]:
        optimised: tuple[Any, ...] = dask.optimize(*make(name))
        return optimised

    def seconds(client: Client) -> float:
        others = client.run(time.process_time).values()
        return float(sum(others) + client.run_on_scheduler(time.process_time) + time.process_time())

    def measured(call: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> tuple[float, Any]:
        # Earlier garbage is not collected while this runs.
        gc.collect()
        begin = clock()
        result = call()
        return (clock() - begin) / chunks / columns * 1e6, result

    found: dict[str, list[float]] = {}
    with (
        SubprocessCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(1)
        for turn in range(4):
            for name in ("zeros", "alike", "ours"):
                planned, optimised = measured(partial(optimised_arrays, name))
                graph = convert_legacy_graph({key: task for array in optimised for key, task in array.dask.items()})
                graph = {key: blank(key, task) for key, task in graph.items()}
                keys = [array.__dask_keys__() for array in optimised]
                run, _ = measured(partial(dask.threaded.get, graph, keys, num_workers=1))
                steps = {"graph": planned, "run": run, "graph and run": planned + run}
                # A task takes milliseconds on a cluster.
                if chunks * columns <= (2_000 if turn < 3 else CLUSTER_TASKS):
                    there, _ = measured(partial(client.get, graph, keys), partial(seconds, client))
                    steps["graph and cluster"] = planned + there
                for step, microseconds in steps.items():
                    found.setdefault(f"{step} {name}", []).append(microseconds)
    return {name: min(each) for name, each in found.items()}


# It takes any arguments, and workers import it.
nothing = "".format


class First(Callback):
    """Record the processor time at which the first reading task is done."""

    def __init__(self) -> None:
        self.seconds: float | None = None

    def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker: Any) -> None:
        if self.seconds is None and isinstance(result, np.ndarray | np.generic):
            self.seconds = time.process_time()


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
    began = time.process_time()
    dataset = dtf.read_tfrecord(folder, schema, chunks=chunks, counts=[RECORDS] * shards)
    opened = time.process_time()
    note = First()
    with note, dask.config.set(scheduler="threads", num_workers=2):
        total = dataset["feature0"].sum().compute()
    done = time.process_time()
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
        "plan", "first" or "graph".
    shards, features, chunks, folder
        As above.
    """
    arguments = ["--worker", what, chunks, "--shards", str(shards), "--features", str(features)]
    done = subprocess.run(
        [sys.executable, __file__, "planning", *arguments, "--directory", str(folder)],
        check=True,
        stdout=subprocess.PIPE,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def run_planning() -> None:
    """Measure time and memory until the first task is done, and the graph of each chunk, compared with dask's.

        python benchmarks/scale.py planning [--shards 1 1000 100000] [--features 10] [--directory DIR] [--json FILE]

    First part: plan, build and tokenize a collection whose shards are listed and counted, with "auto" chunks, with
    one chunk per shard, and with one per record. Second part, except for one chunk per record: create as many files
    of ten records, hard links to one file, and measure the time of `sum` of a feature on two threads until the first
    task is done; with given counts, so that no shard is scanned. Seconds are processor time. Memory is resident memory
    above that of the imports and the input lists.

    A second table has the microseconds of processor time that a chunk of a column takes, for one column and for all,
    and the ratios to as many `dask.array.zeros`, and to arrays of dask with as many tasks and dependencies: its graph,
    its optimisation, and running tasks that do nothing on one thread and on a cluster (`--chunks`). Each measurement
    has its own process.
    """
    parser = parser_of(run_planning)
    parser.add_argument("--shards", nargs="*", type=int, default=[1, 1_000, 100_000])
    parser.add_argument("--chunks", nargs="*", type=int, default=[1_000, 10_000])
    parser.add_argument("--features", type=int, default=10)
    parser.add_argument("--directory", type=Path, help="directory of the files; by default a temporary one")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        what, chunks = options.worker
        [shards], features, folder = options.shards, options.features, options.directory
        if what == "plan":
            print(json.dumps(plan_shards(shards, features, chunks)))
        elif what == "first":
            print(json.dumps(first_task(shards, features, chunks, folder)))
        else:
            print(json.dumps(graph_of_chunks(shards, features, folder)))
        return
    planned, graphs = [], []
    for shards in options.shards:
        with tempfile.TemporaryDirectory(dir=options.directory) as folder:
            make_files(shards, options.features, Path(folder))
            for chunks in ("auto", "shard", "record"):
                given = (shards, options.features, chunks, Path(folder))
                first = {} if chunks == "record" else in_process("first", *given)
                planned.append({"shards": shards, "by": chunks, **in_process("plan", *given), **first})
    if planned:
        print_table(planned)
        print()
    for chunks in options.chunks:
        with tempfile.TemporaryDirectory(dir=options.directory) as folder:
            make_files(chunks, options.features, Path(folder))
            for columns in sorted({1, options.features}):
                found = in_process("graph", chunks, columns, "shard", Path(folder))
                for step in (name.removesuffix(" zeros") for name in found if name.endswith("zeros")):
                    each = {name: found[f"{step} {name}"] for name in ("ours", "alike", "zeros")}
                    ratios = {f"to {name}": each["ours"] / each[name] for name in ("alike", "zeros")}
                    graphs.append({"chunks": chunks, "columns": columns, **each, **ratios, "step": f" {step}"})
    if graphs:
        print_table(graphs)
    if options.json:
        options.json.write_text(json.dumps({"planning": planned, "graphs": graphs}, indent=1))


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


def make_shard(path: Path, size: int, count: int, kind: str | None = None) -> Shard:
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
        shard = make_shard(folder / f"records-{size}.tfrecord", size, count)
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
    shard = make_shard(folder / "records.tfrecord.gz", 4096, count, "gzip")
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
        deflate.INFLATERS = (library,)
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
            window.ensure(1 << 20)

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


def run_storage() -> None:
    """Measure storage and framing: counting, indexes, gzip, reading inside a gzip shard, many small shards.

        python benchmarks/scale.py storage /tmp/benchmark-storage [--megabytes 512] [--cores 1] [--json FILE]

    writes its own data to that directory, with the same bytes in every run, and prints a table. Files are in the
    page cache. Each figure is the median of three runs after a warm-up run. Scans are compared with plain
    sequential reading: `readinto` of one reused buffer of 1 MiB.
    """
    parser = parser_of(run_storage)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=int, default=512, help="size of each shard")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
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


MIB = 2**20

MEMORY_NAMES = ("images_raw", "vectors", "tokens", "tabular")

# A result may be three times as large as its files.
MOST_OF_MEMORY = 1 / 3

MEMORY_TASKS = ("compute", "to_zarr", "to_zarr sharded")


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


def measure_memory(task: str, pattern: str, name: str, workers: int, store: Path) -> dict[str, int]:
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
    return {"peak": peak, "limit": limit, "plan": plan.memory.peak_nbytes - plan.memory.imports_nbytes}


def measure_memory_apart(task: str, pattern: str, name: str, workers: int, store: Path) -> dict[str, int]:
    """Perform the task in a new process."""
    command = [sys.executable, __file__, "memory", "--measure", task, pattern, name, str(workers), str(store)]
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


def run_memory() -> int:
    """Measure the peak memory of `Dataset.compute` and `Dataset.to_zarr`, at three sizes of data.

    Each measurement has its own process. The figure is the peak resident memory (VmHWM) minus the resident memory
    after the imports. The limits: for `compute` the result plus 64 MiB per thread; for `to_zarr` 100 MiB plus three
    write units per thread, four for a sharded store, independent of the size of the data. A write unit is a chunk
    or shard of all dense features together, or of the values of one ragged feature. The memory that the plan of the
    conversion states for a worker is a limit as well: column "plan".

        python benchmarks/scale.py memory DATA [NAME …] [--sizes 0.5 5 20] [--tasks compute "to_zarr"] [--workers 2]

    DATA is a directory that `make_data.py` wrote; larger sets repeat its shards as hard links. Stores are written
    next to them and removed, one at a time. Results larger than the memory of the machine are not computed. Linux
    only. The exit status is 1 if a limit is exceeded.
    """
    if sys.argv[1:2] == ["--measure"]:
        task, pattern, name, workers, path = sys.argv[2:]
        print(json.dumps(measure_memory(task, pattern, name, int(workers), Path(path))))
        return 0
    parser = parser_of(run_memory)
    parser.add_argument("data", type=Path)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(SHARDED)}; default: {', '.join(MEMORY_NAMES)}"
    )
    parser.add_argument("--sizes", nargs="+", type=float, default=[0.5, 5, 20], help="GB of stored data")
    parser.add_argument("--tasks", nargs="+", choices=MEMORY_TASKS, default=MEMORY_TASKS)
    parser.add_argument("--workers", type=int, default=2, help="threads of dask's scheduler")
    arguments = parser.parse_args()
    passed = False
    print("data        task               GB   peak MiB   limit MiB    plan MiB")
    for name in arguments.names or MEMORY_NAMES:
        for size in arguments.sizes:
            # Next to the data, because hard links don't cross file systems.
            with tempfile.TemporaryDirectory(dir=arguments.data) as scratch:
                total = repeat(arguments.data, name, size * 1e9, Path(scratch))
                for task in arguments.tasks:
                    if task == "compute" and total > MOST_OF_MEMORY * available():
                        print(f"{name:12}{task:16}{total / 1e9:>5.1f}  exceeds the memory of this machine")
                        continue
                    store = Path(scratch, "store.zarr")
                    figures = measure_memory_apart(task, f"{scratch}/{name}-*.tfrecord", name, arguments.workers, store)
                    shutil.rmtree(store, ignore_errors=True)
                    over = figures["peak"] > min(figures["limit"], figures["plan"])
                    passed |= over
                    print(
                        f"{name:12}{task:16}{total / 1e9:>5.1f}{figures['peak'] / MIB:>11,.0f}"
                        f"{figures['limit'] / MIB:>12,.0f}{figures['plan'] / MIB:>12,.0f}{'  OVER' if over else ''}",
                        flush=True,
                    )
    return int(passed)


_HELP = "import sys; sys.argv[1:] = {arguments}; from dask_tfrecord.cli.main import main; main()"

COMMANDS = {
    "pass": "pass",
    "import dask.array": "import dask.array",
    "import dask_tfrecord": "import dask_tfrecord",
    "from dask_tfrecord import read_tfrecord": "from dask_tfrecord import read_tfrecord",
    "from dask_tfrecord import *": "from dask_tfrecord import *",
    "dask-tfrecord --help": _HELP.format(arguments=["--help"]),
    "dask-tfrecord to-zarr --help": _HELP.format(arguments=["to-zarr", "--help"]),
    "completion of `dask-tfrecord to`": _HELP.format(arguments=[]),
}

_COMPLETION = {"_DASK_TFRECORD_COMPLETE": "bash_complete", "COMP_WORDS": "dask-tfrecord to", "COMP_CWORD": "1"}


def processor_seconds(name: str, bytecode: str) -> float:
    """Run a command once with bytecode in that directory, and return the user and system time of its process."""
    environment = {**os.environ, **(_COMPLETION if name.startswith("completion") else {})}
    environment |= {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", COMMANDS[name]]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run_startup() -> None:
    """Measure the CPU time of imports and of `--help`, relative to `import dask.array`.

        python benchmarks/scale.py startup [ROUNDS]

    Each command runs in its own process. The bytecode of all modules, also of those of dask, is in a directory of
    its own that the first round fills. Rounds alternate between the commands, because the speed of a machine
    drifts. The table shows the median of user plus system time, and its ratio to that of `import dask.array`.
    """
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as bytecode:
        for name in COMMANDS:  # compiles
            processor_seconds(name, bytecode)
        for _ in range(rounds):
            for name, measured in seconds.items():
                measured.append(processor_seconds(name, bytecode))
    medians = {name: statistics.median(measured) for name, measured in seconds.items()}
    print("| command | CPU | spread | of `import dask.array` |\n| --- | --- | --- | --- |")
    for name, median in medians.items():
        low, high = min(seconds[name]), max(seconds[name])
        print(f"| {name} | {median:.2f} s | {low:.2f} to {high:.2f} | {median / medians['import dask.array']:.2f} |")


def measure_on_cluster(folder: str, shards: int, arrays: str) -> dict[str, float]:
    """Sum a column on a cluster of two workers of one thread, each in a process, with a scheduler in another.

    Parameters
    ----------
    folder : str
        Directory of shards of `RECORDS` records.
    shards : int
        Their number.
    arrays : str
        "shard" or "auto", the chunks of a data set of these shards; or the number of chunks of ``dask.array.zeros``.
    """
    from distributed import Client, SubprocessCluster

    def seconds(client: Client) -> float:
        others = client.run(time.process_time).values()
        return float(sum(others) + client.run_on_scheduler(time.process_time) + time.process_time())

    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # the scheduler imports `resident`
    with SubprocessCluster(n_workers=2, threads_per_worker=1) as cluster, Client(cluster) as client:
        client.wait_for_workers(2)
        client.run(import_library)
        client.get_task_stream()  # installs the plugin that records when tasks ran
        memory = client.run_on_scheduler(resident, "VmRSS")
        began, used = time.time(), seconds(client)
        if arrays in ("shard", "auto"):
            column = dtf.read_tfrecord(folder, FIRST, chunks=arrays)["feature0"]
            assert column.shape == (RECORDS * shards,)
        else:
            column = da.zeros(RECORDS * shards, chunks=-(-RECORDS * shards // int(arrays)))
        opened, used_to_open = time.time(), seconds(client)
        total = column.sum().compute()
        done, used_in_all = time.time(), seconds(client)
        assert total == (sum(range(RECORDS)) * shards if arrays in ("shard", "auto") else 0)
        ran = [
            begin
            for task in client.get_task_stream(start=opened)
            for each in task["startstops"]
            if (begin := each["start"]) >= opened
        ]
        peak = client.run_on_scheduler(resident, "VmHWM")
    return {
        "chunks": column.npartitions,
        "open s": opened - began,
        "open CPU s": used_to_open - used,
        "first task s": min(ran) - opened,
        "sum s": done - opened,
        "CPU ms a chunk": 1000 * (used_in_all - used_to_open) / column.npartitions,
        "scheduler MiB": (peak - memory) / 2**20,
    }


FIRST = {"feature0": dtf.FixedLenFeature((), "float32")}


def import_library() -> None:
    """Import what a worker imports for its first task."""
    importlib.import_module("dask_tfrecord.rows.read")


def run_cluster() -> None:
    """Sum a column of many shards on a cluster of two workers, and one of as many chunks of `dask.array.zeros`.

        python benchmarks/scale.py cluster [--shards 1000 20000 100000] [--directory DIRECTORY]

    Each measurement has its own process and cluster. Opening includes counting the records of all shards in tasks.
    "first task" is the time from `compute` to the start of the first task. CPU is the processor time of client,
    scheduler and workers. "scheduler" is the growth of its resident memory, at most.
    """
    parser = parser_of(run_cluster)
    parser.add_argument("--shards", type=int, nargs="+", default=[1000, 20_000, 100_000])
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure_on_cluster(str(options.directory), options.shards[0], options.worker)))
        return
    for shards in options.shards:
        with tempfile.TemporaryDirectory(dir=options.directory) as folder:
            make_files(shards, 1, Path(folder))
            for kind in ("shard", "auto"):
                chunks = 0
                for name, arrays in (("ours", kind), ("zeros", "")):
                    given = ["--shards", str(shards), "--directory", folder, "--worker", arrays or str(chunks)]
                    found, _ = run([sys.executable, __file__, "cluster", *given])
                    chunks = found["chunks"]
                    figures = "  ".join(f"{each}: {value:,.2f}" for each, value in found.items())
                    print(f"{shards:,} shards, chunks={kind}, {name}:  {figures}", flush=True)


if __name__ == "__main__":
    commands = {"records": run_records, "planning": run_planning, "storage": run_storage}
    dispatch({**commands, "cluster": run_cluster, "memory": run_memory, "startup": run_startup}, __doc__)
