"""Reading by this library: passes for `read.py`, limits of the machine, scattered rows, items of ragged rows.

python benchmarks/pipelines.py {passes,limits,rows,items} --help
"""

from __future__ import annotations

import json
import mmap
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import crc32c
import dask
import numpy as np
from harness import GATHERED, HERE, LABELLED, NAMES, dispatch, files_of, label_of, parser_of, resident, run
from numpy.typing import NDArray
from peers import FILTER, totals

import dask_tfrecord as dtf
from dask_tfrecord.features import Feature
from dask_tfrecord.messages import Example

SCALARS = {"int": "int64", "float": "float32"}

TABULAR: dict[str, Feature] = {
    **{f"{kind}_{k}": dtf.FixedLenFeature((), dtype) for kind, dtype in SCALARS.items() for k in range(8)},
    **{f"str_{k}": dtf.FixedLenFeature((), "bytes") for k in range(2)},
}

LABEL = dtf.FixedLenFeature((), "int64")

FEATURES: dict[str, dict[str, Feature]] = {
    "tabular": TABULAR,
    "tabular_gz": TABULAR,
    "vectors": {
        "embedding": dtf.FixedLenFeature((256,), "float32"),
        "label": LABEL,
        "id": dtf.FixedLenFeature((), "bytes"),
    },
    "images_raw": {"image": dtf.RawFeature((64, 64, 3), "float32"), "label": LABEL},
    "tokens": {"tokens": dtf.VarLenFeature("int64"), "label": LABEL},
    "sequences": {"label": LABEL},
    "mixed": {
        "label": dtf.FixedLenFeature((), "uint8"),
        "score": dtf.FixedLenFeature((), "float32", -1.0),
        "boxes": dtf.FixedLenSequenceFeature((4,), "float32", allow_missing=True),
        "sparse": dtf.SparseFeature("index", "value", "float32", 10_000),
    },
    "tensors": {"tensor": dtf.TensorFeature((32, 32, 4), "float32"), "label": LABEL},
    "jpeg": {"image": dtf.ImageFeature((256, 256, 3)), "label": LABEL},
    "jpeg.fast": {"image": dtf.ImageFeature((256, 256, 3), fast=True), "label": LABEL},
    "jpeg.resized": {"image": dtf.ImageFeature((224, 224, 3), "float32", size=(224, 224)), "label": LABEL},
    "png": {"image": dtf.ImageFeature((256, 256, 3)), "label": LABEL},
}

# One integer of each record.
FEATURES |= {f"{name}.label": {label_of(name): LABEL} for name in LABELLED}

SEQUENCE_FEATURES: dict[str, dict[str, Feature]] = {
    "sequences": {
        "frames": dtf.FixedLenSequenceFeature((16,), "float32"),
        "words": dtf.RaggedFeature("int64"),
    },
    "sequences.label": {},
}


def look(blocks: dict[str, Any]) -> dict[str, Any]:
    """Count the rows of a chunk of blocks: bytes as objects, tokens as values and splits."""
    (rows,) = {len(block) for block in blocks.values()}
    return {"rows": np.ones(rows, np.uint8)}


def touch(ds: dtf.Dataset) -> int:
    """Decode every block, drop it, and count the rows."""
    return int(ds.map_blocks(look)["rows"].sum().compute())


def gather(ds: dtf.Dataset) -> int:
    """Decode all rows into one array per feature."""
    arrays = ds.compute()
    return len(next(iter(arrays.values())))


def ragged(ds: dtf.Dataset) -> int:
    """Decode all rows as `gather` does, but tokens into one array of values and one of splits."""
    values, row_splits = ds.ragged("tokens")
    _, _, labels = dask.compute(values, row_splits, ds["label"])
    return len(labels)


def filtered(ds: dtf.Dataset) -> int:
    """Decode the rows that a filter keeps into one array per feature."""
    return len(next(iter(ds.where(FILTER).compute().values())))


def masked_rows(ds: dtf.Dataset) -> int:
    """Decode all rows into one array per feature, and take those of a mask."""
    arrays = ds.compute()
    ((name, _, most),) = FILTER
    mask = arrays[name] < most
    return len({name: array[mask] for name, array in arrays.items()}[name])


def described(ds: dtf.Dataset) -> int:
    """Compute the statistics of all columns."""
    return ds.describe().nrows


WORK: dict[str, Callable[[dtf.Dataset], int]] = {
    "touch": touch,
    "gather": gather,
    "ragged": ragged,
    "filter": filtered,
    "filter-uncounted": filtered,
    "mask": masked_rows,
    "describe": described,
}


def run_passes() -> None:
    """Pipelines of this library for `read.py`: read the files into NumPy arrays through dask.

    `touch` decodes and drops every block and returns a number per block. `gather` calls `Dataset.compute`, for one
    array per feature. `ragged` decodes tokens to flat values and row splits. `filter` calls `where` and `compute` for
    1 % of the rows, `filter-uncounted` the same with ``counts=None``, and `mask` takes these rows from the arrays of
    `compute`. `describe` computes the statistics of all columns. `sums` prints the sum of every feature for `read.py
    --peers`, without times. Both CRCs of every record are checked.

        python benchmarks/pipelines.py passes DATA NAME [TASK] [--passes 3] [--workers 2]

    Prints one line of JSON: the records of a pass, the seconds of opening (a scan of the headers for the record
    count), and the seconds of each pass after an untimed first pass.
    """
    parser = parser_of(run_passes)
    parser.add_argument("data", type=Path)
    parser.add_argument("name", choices=FEATURES)
    parser.add_argument("task", nargs="?", choices=[*WORK, "sums"], default="touch")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--workers", type=int, default=2, help="threads of dask's scheduler")
    parser.add_argument("--chunks", default="auto", help="as in read_tfrecord: auto, shard, or a size like '16 MiB'")
    arguments = parser.parse_args()
    dask.config.set(scheduler="threads", num_workers=arguments.workers)

    start = time.perf_counter()
    pattern = str(arguments.data / f"{arguments.name.split('.')[0]}-*.tfrecord*")
    ds = dtf.read_tfrecord(
        pattern,
        FEATURES[arguments.name],
        sequence_features=SEQUENCE_FEATURES.get(arguments.name),
        chunks=arguments.chunks,
        counts=None if arguments.task == "filter-uncounted" else "auto",
    )
    opening = time.perf_counter() - start

    if arguments.task == "sums":
        arrays = ds.compute()
        print(json.dumps({"records": len(arrays[label_of(arguments.name)]), "sums": totals([arrays])}))
        return
    work = WORK[arguments.task]
    clock = {"wall": time.perf_counter, "cpu": time.process_time}[arguments.clock]
    count, seconds = work(ds), []
    for _ in range(arguments.passes):
        start = clock()
        work(ds)
        seconds.append(clock() - start)
    print(json.dumps({"records": count, "seconds": seconds, "open_seconds": opening}))


MIB = 2**20

FILE_NBYTES = 64 * MIB

LISTS, LIST_SIZE = 200, 50_000

LIMITS = ("copy", "crc", "output", "fresh", "faults", "varints")

BOUND_TASKS = {"touch": "output", "gather": "fresh"}


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
    command = [sys.executable, str(HERE / "pipelines.py"), "passes", str(data), name, task, "--workers", "1"]
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
        (task, name): [] for task in BOUND_TASKS for name in files if task == "touch" or name in GATHERED
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
        rates = medians | {"output": medians[BOUND_TASKS[task]]}
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


def run_limits() -> None:
    """Measure the limits of the machine for decoding, and how much of this library's time each explains.

        python benchmarks/pipelines.py limits DATA [NAME …] [--rounds 3]

    Each round measures the limits and then `pipelines.py passes DATA NAME` in processes, all in processor time of
    one thread, so that both see the same machine. The limits are

    - copy: bytes per second from the page cache to a block of 1 MiB that is reused;
    - crc: bytes per second of CRC32C over that block;
    - output: bytes per second from that block to memory that exceeds the caches and is reused;
    - fresh: the same to memory that the process did not have before, page faults included;
    - faults: the page faults of fresh memory alone, with one write per page;
    - varints: integers per second of this library's decoder on long lists, without the copy.

    A pass has to copy and to check every byte, to decode every integer, and to write every value of the result to
    memory: reused memory if blocks are dropped (`touch`), fresh memory if they are gathered. The sum of these four
    times is what a pass would take if nothing else had to be done. "Binding" is the largest of them.
    """
    parser = parser_of(run_limits)
    parser.add_argument("data", type=Path, help="directory that make_data.py wrote to")
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all in DATA")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    names = arguments.names or [name for name in NAMES if files_of(arguments.data, name)]
    report = shares(arguments.data, names, arguments.rounds)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


ROWS_NAMES = ("tabular", "vectors", "images_raw")

ROWS_HEADER = "data        rows                  of them   picked rows/s   us a row   all, then pick   seek and parse"

Columns = dict[str, NDArray[Any]]


def masked(data: bytes) -> int:
    """Return the masked CRC-32C of bytes, as TFRecord stores it."""
    crc = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def places_of(paths: Sequence[Path]) -> list[tuple[int, int]]:
    """Return the file and the byte offset of every record."""
    places = []
    for number, path in enumerate(paths):
        with path.open("rb") as file:
            offset = 0
            while head := file.read(8):
                places.append((number, offset))
                offset += 16 + int.from_bytes(head, "little")
                file.seek(offset)
    return places


def seek_and_parse(
    paths: Sequence[Path], places: Sequence[tuple[int, int]], rows: NDArray[np.int64], schema: Mapping[str, Feature]
) -> Columns:
    """Seek and read one record after the other, as a program with a full index does."""
    kinds = {
        name: {"bytes": "bytes_list", "int64": "int64_list"}.get(f.dtype, "float_list") for name, f in schema.items()
    }
    found: dict[str, list[Any]] = {name: [] for name in schema}
    files = [path.open("rb") for path in paths]
    for row in rows.tolist():
        number, offset = places[row]
        file = files[number]
        file.seek(offset)
        head = file.read(12)
        payload = file.read(int.from_bytes(head[:8], "little"))
        length_crc, (payload_crc,) = int.from_bytes(head[8:], "little"), struct.unpack("<I", file.read(4))
        if masked(head[:8]) != length_crc or masked(payload) != payload_crc:
            raise ValueError(f"record {row} is damaged")
        features = Example.FromString(payload).features.feature
        for name, kind in kinds.items():
            found[name].append(getattr(features[name], kind).value)
    for file in files:
        file.close()
    return {name: column_of(schema[name], values) for name, values in found.items()}


def read_all(ds: dtf.Dataset, rows: NDArray[np.int64]) -> Columns:
    """Decode all rows, and select some with NumPy."""
    return {name: column[rows] for name, column in ds.compute().items()}


def column_of(feature: Feature, values: Sequence[Any]) -> NDArray[Any]:
    """Join the values of many records to an array."""
    if feature.dtype == "bytes":
        column = np.empty(len(values), object)
        column[:] = [value[0] for value in values]
        return column
    return np.array(values, feature.block_dtype).reshape(len(values), *feature.block_shape)


def best(repeats: int, work: Callable[[], Columns]) -> tuple[float, Columns]:
    """Return the CPU seconds of a call, and its result."""
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        made = work()
        taken.append(time.process_time() - start)
    return min(taken), made


def selections(nrows: int, rows: int) -> dict[str, NDArray[np.int64]]:
    """Return the selections; `rows` limits the random permutation and every second row."""
    rng = np.random.default_rng(0)
    return {
        "permuted": rng.permutation(nrows)[:rows],
        "every 2nd": np.arange(0, min(nrows, 2 * rows), 2),
        "every 100th": np.arange(0, nrows, 100),
        "mask of a tenth": np.flatnonzero(rng.random(nrows) < 0.1),
    }


def compare_rows(folder: Path, name: str, rows: int, repeats: int) -> list[dict[str, Any]]:
    """Measure all selections of a data set."""
    paths = sorted(folder.glob(f"{name}-*"))
    ds = dtf.read_tfrecord(paths)
    places = places_of(paths)
    figures = []
    for label, picked in selections(ds.nrows or 0, rows).items():
        ours, found = best(repeats, ds.rows[picked].compute)
        everything, expected = best(repeats, partial(read_all, ds, picked))
        loop, parsed = best(repeats, partial(seek_and_parse, paths, places, picked, ds.schema))
        for column in expected:
            np.testing.assert_array_equal(found[column], expected[column])
            np.testing.assert_array_equal(parsed[column], expected[column])
        figures.append(
            {"data": name, "selection": label, "rows": len(picked), "picked": ours, "all": everything, "loop": loop}
        )
    return figures


def run_rows() -> None:
    """Compare three ways to read scattered rows: `ds.rows[…]`, reading all rows, and seeking each record.

        python benchmarks/pipelines.py rows DATA [NAME …] [--rows 20000] [--repeats 3] [--json FILE]

    DATA is a directory that `make_data.py` wrote. Selections: the first rows of a random permutation, every second
    and every hundredth row, and a random mask of a tenth of the rows. The seeking loop knows the byte offset of
    every record, which the sparse index of this library does not store. It seeks the record, checks both CRCs,
    parses it with protobuf, and converts the values to NumPy arrays. All three return the same arrays. One thread,
    files in the page cache; the figure is the minimum CPU time of the repeats.
    """
    parser = parser_of(run_rows)
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = []
    print(ROWS_HEADER)
    with dask.config.set(scheduler="sync"):
        for name in options.names or ROWS_NAMES:
            for row in compare_rows(options.data, name, options.rows, options.repeats):
                figures.append(row)
                rate, ratios = row["rows"] / row["picked"], (row["all"] / row["picked"], row["loop"] / row["picked"])
                print(
                    f"{row['data']:<12}{row['selection']:<18}{row['rows']:>11,}{rate:>16,.0f}{1e6 / rate:>11.1f}"
                    + "".join(f"{ratio:>15.1f} x" for ratio in ratios)
                )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


STEP_SHARDS = 8

MOST_STEPS = 40

STEP_FEATURES = {
    "steps/state": dtf.VarLenFeature("float32", shape=(-1, 4)),
    "steps/reward": dtf.VarLenFeature("float32"),
    "steps/action": dtf.VarLenFeature("int64"),
}


def write_shards(folder: Path, records: int) -> list[Path]:
    """Write the shards, or return those that exist."""
    paths = [folder / f"explode-{records}-{number:05d}-of-{STEP_SHARDS:05d}.tfrecord" for number in range(STEP_SHARDS)]
    for number, path in enumerate(paths):
        if path.exists():
            continue
        rng, count = (
            np.random.default_rng(number),
            (number + 1) * records // STEP_SHARDS - number * records // STEP_SHARDS,
        )
        lengths = rng.integers(0, MOST_STEPS + 1, count)
        splits, steps = np.append(0, np.cumsum(lengths)), int(lengths.sum())
        columns = {
            "steps/state": dtf.RaggedBlock(rng.standard_normal((steps, 4), np.float32), splits),
            "steps/reward": dtf.RaggedBlock(rng.standard_normal(steps, np.float32), splits),
            "steps/action": dtf.RaggedBlock(rng.integers(0, 1 << 14, steps), splits),
        }
        dtf.to_tfrecord(columns, path)
    return paths


def least_seconds(repeats: int, work: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


def read_chunks(ds: dtf.Dataset, names: Sequence[str]) -> None:
    """Decode all chunks, one after the other."""
    rows = ds.as_rows()
    source, borders = rows.counted_source, rows.borders
    assert source is not None and borders is not None
    for start, stop in pairwise(borders.tolist()):
        source.read(names, slice(start, stop))


def measure_items(folder: Path, records: int, repeats: int) -> dict[str, float]:
    """Return all figures."""
    ds = dtf.read_tfrecord(write_shards(folder, records), STEP_FEATURES, chunks=max(1, records // 64))
    names = list(STEP_FEATURES)
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
        "count": least_seconds(repeats, lambda: ds.explode("steps")),
        "ragged": least_seconds(repeats, lambda: read_chunks(ds, names)),
        "items read": least_seconds(repeats, lambda: read_chunks(steps, names)),
        "with record": least_seconds(repeats, lambda: read_chunks(steps, [*names, "record"])),
        "one item": least_seconds(repeats, lambda: [steps.rows[number].compute() for number in numbers]) / len(numbers),
        "memory of counting": counted - before,
        "memory of reading": peak - counted,
    }


def run_items() -> None:
    """Measure `Dataset.explode`: opening, reading the items, one item, and memory, compared with ragged columns.

        python benchmarks/pipelines.py items FOLDER [--records 1000000] [--repeats 3] [--json FILE]

    FOLDER receives 8 shards of records with 0 to 40 steps each: four floats, a float and an integer per step.
    Existing shards of that many records are used again; figures of memory are those of a process that wrote none.
    One thread, files in the page cache. The figures are CPU seconds, the minimum of the repeats: the pass that
    counts items, the reading of all chunks as ragged columns and as items, and the reading of one item. Memory is
    the growth of the peak resident memory during the pass that counts, and then during the reading of all items
    chunk by chunk.
    """
    parser = parser_of(run_items)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with dask.config.set(scheduler="sync"):
        found = measure_items(options.folder, options.records, options.repeats)
    print(f"{found['records']:,} records, {found['items']:,} items")
    for name in ("count", "ragged", "items read", "with record"):
        print(f"{name:<20}{found[name]:>8.2f} s{found[name] / found['ragged']:>8.2f} x ragged")
    print(f"{'one item':<20}{found['one item'] * 1e3:>8.2f} ms")
    for name in ("memory of counting", "memory of reading"):
        print(f"{name:<20}{found[name] / 2**20:>8.0f} MiB")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    dispatch({"passes": run_passes, "limits": run_limits, "rows": run_rows, "items": run_items}, __doc__)
