"""Writing compared with other writers: conversions to Zarr, and shards of TFRecord.

python benchmarks/write.py {zarr,tfrecord} --help
"""

import argparse
import gc
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# No heavy imports here: TensorFlow's environment lacks dask_tfrecord, and memory is measured from the imports on.
from harness import SHARDED, dispatch, parser_of, resident, run

ZARR_NAMES = ("images_raw", "vectors", "tokens", "tabular")

OURS, THEIRS, MEMORY, ALONE = "dask_tfrecord", "tensorflow", "in memory", "zarr alone"

PLAN, WRITING, FUSED = "our plan", "our writing", "fused"

ZARR_HEADER = "data        writer            records/s     MB/s   seconds   CPU s   peak MiB   ours is faster by"

# Seconds for which ext4 does not reuse the blocks of removed files.
_RECENTLY = 6

# Ragged columns: values and row splits.
FLAT = ("tokens", "id", "str_0", "str_1")


def create(like: Path, store: Path) -> Any:
    """Create a group with the same arrays as another one, without data."""
    import zarr

    group = zarr.open_group(store, mode="w", zarr_format=3)
    for name, array in zarr.open_group(like, mode="r").arrays():
        group.create_array(
            name,
            shape=array.shape,
            dtype=array.dtype,
            chunks=array.chunks,
            shards=array.shards,
            compressors=array.compressors,
            filters=array.filters,
            config={"write_empty_chunks": True},
        )
    return group


def opening(data: Path, name: str) -> Callable[[], Any]:
    """Return a function that opens a data set as a user does; its imports are done already."""
    from pipelines import FEATURES

    import dask_tfrecord as dtf

    # The package imports its modules when they are used first.
    dtf.read_tfrecord(min(data.glob(f"{name}-*.tfrecord")), FEATURES[name]).rows[:2].plan_zarr()
    return lambda: dtf.read_tfrecord(data / f"{name}-*.tfrecord", FEATURES[name])


def grid_of(name: str, sharded: bool) -> dict[str, Any]:
    """Return chunk and shard sizes where the writer does not choose them."""
    return dict(zip(("chunks", "shards"), SHARDED[name], strict=True)) if sharded else {}


def ours(data: Path, name: str, store: Path, grid: Mapping[str, Any]) -> Callable[[], int]:
    """Convert as a user does."""
    opened = opening(data, name)

    def convert() -> int:
        dataset = opened()
        dataset.to_zarr(store, **grid)
        return int(dataset.nrows)

    return convert


def with_fused_codecs(convert: Callable[[], int]) -> Callable[[], int]:
    """Select the fused codec pipeline for the tasks of a conversion."""
    from dask_tfrecord.stores.zarr import compat

    path = "zarr.core.codec_pipeline.FusedCodecPipeline"
    # Tasks that run at once must not share zarr's pool of threads for encoding.
    compat._SEQUENTIAL |= {"codec_pipeline.path": path, "codec_pipeline.max_workers": 1}
    return convert


def our_plan(data: Path, name: str, grid: Mapping[str, Any]) -> Callable[[], int]:
    """Open and plan without writing."""
    opened = opening(data, name)
    return lambda: int(opened().plan_zarr(**grid).nrows)


def our_writing(data: Path, name: str, store: Path, grid: Mapping[str, Any]) -> Callable[[], int]:
    """Write the planned store from rows in memory."""
    plan = opening(data, name)().persist().plan_zarr(**grid)

    def convert() -> int:
        plan.to_zarr(store)
        return int(plan.nrows)

    return convert


def flatten(column: Any) -> dict[str, Any]:
    """Convert an object array of byte strings or arrays to flat values and row splits."""
    import numpy as np

    splits = np.zeros(len(column) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, column), np.int64, len(column)), out=splits[1:])
    if isinstance(column[0], bytes):
        return {"values": np.frombuffer(b"".join(column), np.uint8), "row_splits": splits}
    return {"values": np.concatenate(column), "row_splits": splits}


def in_memory(data: Path, name: str, store: Path, like: Path) -> Callable[[], int]:
    """Decode all rows into NumPy arrays, then write the arrays."""
    import numpy as np

    opened = opening(data, name)

    def convert() -> int:
        columns = opened().compute()
        group = create(like, store)
        for column, values in columns.items():
            if column in FLAT:
                for part, flat in flatten(values).items():
                    group[f"{column}.{part}"][:] = flat
            else:
                group[column][:] = np.asarray(values)
        return len(values)

    return convert


def alone(store: Path, like: Path, records: int) -> Callable[[], int]:
    """Write arrays that are in memory already."""
    import zarr

    arrays = {array: values[:] for array, values in zarr.open_group(like, mode="r").arrays()}

    def convert() -> int:
        group = create(like, store)
        for array, values in arrays.items():
            group[array][:] = values
        return records

    return convert


def theirs(data: Path, name: str, store: Path, like: Path, counts: list[int]) -> Callable[[], int]:
    """Parse shards with TensorFlow in dask tasks."""
    import dask
    import dask.array as da
    import numpy as np
    from peers import join, pipeline

    files = sorted(map(str, data.glob(f"{name}-*.tfrecord")))
    # TensorFlow is imported, and its kernels are loaded, before the clock starts.
    next(pipeline(files[:1], name, "sequential").as_numpy_iterator())

    def parse(path: str) -> dict[str, Any]:
        columns = join(pipeline([path], name, "sequential").as_numpy_iterator())
        for column in [column for column in columns if columns[column].dtype == object]:
            columns |= {f"{column}.{part}": values for part, values in flatten(columns.pop(column)).items()}
        return columns

    def count(path: str, arrays: list[str]) -> list[int]:
        features = {array.removesuffix(".values") for array in arrays}
        totals = dict.fromkeys(arrays, 0)
        for batch in pipeline([path], name, "sequential", features).as_numpy_iterator():
            for array in arrays:
                flat = batch.get(array)
                totals[array] += sum(map(len, batch[array.removesuffix(".values")])) if flat is None else len(flat)
        return list(totals.values())

    def convert() -> int:
        group = create(like, store)
        flat = [array for array in group if array.endswith(".values")]
        lengths = dask.compute([dask.delayed(count)(path, flat) for path in files])[0] if flat else []
        sizes = {array: [length[number] for length in lengths] for number, array in enumerate(flat)}
        shards = [dask.delayed(parse)(path) for path in files]
        written = []
        for array, target in group.arrays():
            values = array.removesuffix(".row_splits") + ".values"
            parts = []
            first = 0
            for number, shard in enumerate(shards):
                rows = sizes[array][number] if array in sizes else counts[number]
                part = shard[array]
                if values in sizes and array != values:
                    # Splits of a shard start at 0; in the joined array they continue from the previous shard.
                    part = dask.delayed(lambda ends, first, skip: ends[skip:] + first)(part, first, int(number > 0))
                    first += sizes[values][number]
                    rows += number == 0
                shape = (rows, *target.shape[1:])
                parts.append(da.from_delayed(part, shape, target.dtype, meta=np.empty(0, target.dtype)))
            unit = (target.shards or target.chunks)[0]
            joined = da.concatenate(parts).rechunk({0: unit})
            written.append(da.to_zarr(joined, target, compute=False))
        dask.compute(written)
        return sum(counts)

    return convert


def do(arguments: argparse.Namespace) -> None:
    """Convert in this process, and report."""
    data, (name,), store, like = arguments.data, arguments.names, arguments.store, arguments.like
    import dask
    import zarr
    from dask.base import get_scheduler

    dask.config.set(scheduler="threads", num_workers=arguments.cores)
    get_scheduler()  # imports distributed where it is installed, before the clock starts
    works = {
        OURS: lambda: ours(data, name, store, grid_of(name, arguments.sharded)),
        FUSED: lambda: with_fused_codecs(ours(data, name, store, grid_of(name, arguments.sharded))),
        PLAN: lambda: our_plan(data, name, grid_of(name, arguments.sharded)),
        WRITING: lambda: our_writing(data, name, store, grid_of(name, arguments.sharded)),
        THEIRS: lambda: theirs(data, name, store, like, arguments.counts),
        MEMORY: lambda: in_memory(data, name, store, like),
        ALONE: lambda: alone(store, like, sum(arguments.counts)),
    }
    convert = works[arguments.do]()
    gc.collect()  # garbage of the imports, which would otherwise be collected during the run
    # The arrays in memory do not count as memory of `zarr alone`.
    before, cpu, start = resident("VmRSS"), time.process_time(), time.perf_counter()
    records = convert()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    report = {"records": records, "seconds": seconds, "cpu": cpu, "peak": resident("VmHWM") - before}
    if arguments.compare:
        report["same"] = arguments.do in (OURS, PLAN) or same(zarr.open_group(like), zarr.open_group(store))
    print(json.dumps(report))


def same(one: Any, other: Any) -> bool:
    """Return whether two groups hold the same arrays."""
    import numpy as np

    names = set(one.array_keys())
    return names == set(other.array_keys()) and all(
        np.array_equal(one[name][start : start + 2**20 // step], other[name][start : start + 2**20 // step])
        for name in names
        for step in [max(1, int(np.prod(one[name].shape[1:])))]
        for start in range(0, one[name].shape[0], 2**20 // step)
    )


@dataclass(slots=True)
class Result:
    """Results of all runs of one writer on one data set."""

    data: str
    writer: str
    nbytes: int
    records: int = 0
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak: int = 0

    def add(self, report: Mapping[str, Any]) -> None:
        """Add the report of one process."""
        if not report.get("same", True):
            raise SystemExit(f"{self.writer} on {self.data} wrote other values than {OURS}")
        self.records = report["records"]
        self.seconds.append(report["seconds"])
        self.cpu.append(report["cpu"])
        self.peak = max(self.peak, report["peak"])

    def line(self, ours: "Result") -> str:
        """Return the line of the table."""
        seconds, cpu = statistics.median(self.seconds), statistics.median(self.cpu)
        text = (
            f"{self.data:12}{self.writer:15}{self.records / seconds:>12,.0f}{self.nbytes / seconds / 1e6:>9,.0f}"
            f"{seconds:>10.2f}{cpu:>8.2f}{self.peak / 2**20:>11,.0f}"
        )
        if self is ours:
            return text
        times, of_cpu = seconds / statistics.median(ours.seconds), cpu / statistics.median(ours.cpu)
        return text + f"{times:>10.2f}  (CPU {of_cpu:.2f})"


def turns(name: str, counts: list[int], arguments: argparse.Namespace, folder: Path) -> Iterator[Result]:
    """Alternate between all writers on one data set."""
    nbytes = sum(path.stat().st_size for path in arguments.data.glob(f"{name}-*.tfrecord"))
    like = folder / "like.zarr"
    pythons = dict.fromkeys((OURS, THEIRS, MEMORY, ALONE, PLAN, WRITING, FUSED), sys.executable) | {
        THEIRS: arguments.tensorflow
    }
    writers = {writer: python for writer, python in pythons.items() if python and writer in arguments.writers}
    results = {writer: Result(name, writer, nbytes) for writer in writers}

    def write(writer: str, to: Path, *more: str) -> dict[str, Any]:
        command = [
            writers.get(writer, sys.executable),
            __file__,
            "zarr",
            str(arguments.data),
            name,
            "--do",
            writer,
            *more,
        ]
        command += ["--store", str(to), "--like", str(like), "--counts", *map(str, counts)]
        command += ["--cores", str(arguments.cores), *(["--sharded"] if arguments.sharded else [])]
        os.sync()  # a writer does not wait until the data of the previous one is on disk
        report: dict[str, Any] = run(command)[0]
        return report

    # The first run loads the files into the page cache and writes the reference store.
    write(OURS, like)
    for turn in range(arguments.turns):
        for writer in writers:
            # Stores stay until all are written: ext4 creates files slowly after a removal.
            store = folder / f"{writer} {turn}.zarr"
            results[writer].add(write(writer, store, *([] if turn else ["--compare"])))
    yield from results.values()


def counted(data: Path, name: str) -> list[int]:
    """Count the records of each shard in a separate process."""
    code = (
        "import json, sys, dask_tfrecord as dtf; from pathlib import Path; "
        "paths = sorted(Path(sys.argv[1]).glob(sys.argv[2])); "
        "print(json.dumps([dtf.read_tfrecord(path).nrows for path in paths]))"
    )
    counts: Any = run([sys.executable, "-c", code, str(data), f"{name}-*.tfrecord"])[0]
    return list(counts)


def run_zarr() -> None:
    """Compare conversions to Zarr: this library, dask with TensorFlow, a decode into memory, and zarr alone.

    All writers write the same arrays with the same chunks, shards and codecs from the same files:

    - `dask_tfrecord`: `read_tfrecord(…).to_zarr(…)`, opening and counting included;
    - `tensorflow`: a `dask.delayed` of TensorFlow's fastest parse for each shard, `da.from_delayed`, and
      `da.to_zarr` of all arrays at once, rechunked to write units. It gets the record counts of the shards, which
      is enough for dense arrays. For ragged arrays it first parses these columns alone to count their values, as
      this library does;
    - `in memory`: `Dataset.compute()`, every array by `np.asarray`, then zarr;
    - `zarr alone`: the arrays are in memory before the clock starts, and zarr writes them: ``array[:] = values``;
    - `our plan`, `our writing`: two steps of this library, selected by `--writers`: opening and planning, which
      read and count; and writing rows that are in memory before the clock starts, without reading or decoding;
    - `fused`: as `dask_tfrecord`, with `FusedCodecPipeline` of zarr 3.3 or later, selected by `--writers`.

    Each run has its own process, the writers alternate, and the table shows medians. The first store of each writer
    is compared with the store of this library, value by value.

        python benchmarks/write.py zarr DATA [NAME …] --tensorflow TENSORFLOW_PYTHON [--sharded] [--turns 3]

    DATA is a directory that `make_data.py` wrote. TensorFlow's environment also needs dask and zarr. Stores are
    written next to the data and removed; the files are in the page cache. CPU seconds are the sum over all threads;
    they depend less on the load of the machine.
    """
    parser = parser_of(run_zarr)
    parser.add_argument("data", type=Path, help="directory that make_data.py wrote to")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ZARR_NAMES)}; default: all")
    parser.add_argument("--tensorflow", help="python of an environment with tensorflow-cpu, dask[array] and zarr")
    parser.add_argument("--writers", nargs="+", default=[OURS, THEIRS, MEMORY, ALONE], help="only these")
    parser.add_argument("--sharded", action="store_true", help="write Zarr shards as `scale.py memory` does")
    parser.add_argument("--turns", type=int, default=3, help="runs of each")
    parser.add_argument("--cores", type=int, default=2, help="cores, and threads of dask's scheduler")
    parser.add_argument("--target", type=Path, help="directory of the stores; default: next to the data")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--do", help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--like", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--counts", type=int, nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--compare", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.do:
        do(arguments)
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    report: list[Result] = []
    print(ZARR_HEADER)
    for name in arguments.names or ZARR_NAMES:
        with tempfile.TemporaryDirectory(dir=arguments.target or arguments.data) as folder:
            counts = counted(arguments.data, name)
            results = list(turns(name, counts, arguments, Path(folder)))
        os.sync()
        time.sleep(_RECENTLY)
        for result in results:
            print(result.line(results[0]), flush=True)
        report += results
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(result) for result in report], indent=2) + "\n")


TFRECORD_NAMES = ("tabular", "vectors", "tokens", "images_raw")

TFRECORD_HEADER = "data        writer                       records     records/s     MB/s    ratio"


def columns_of(data: Path, name: str, rows: int) -> dict[str, Any]:
    """Return the first rows of a data set as NumPy arrays."""
    import dask_tfrecord as dtf

    return dtf.read_tfrecord(data / f"{name}-*.tfrecord").rows[:rows].compute()


def passes(write: Callable[[], Any], target: Path, count: int) -> tuple[float, int]:
    """Write several times; return the median CPU seconds and the size of the file."""
    seconds = []
    for number in range(count + 1):
        target.unlink(missing_ok=True)
        start = time.process_time()
        write()
        # The first run is not timed.
        seconds += [time.process_time() - start] if number else []
    return statistics.median(seconds), target.stat().st_size


def write_theirs(arrays: Path, target: Path, count: int) -> dict[str, Any]:
    """Write with TensorFlow: one message per row."""
    os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3")
    import numpy as np
    import tensorflow as tf

    columns = pickle.loads(arrays.read_bytes())
    rows = len(next(iter(columns.values())))

    def features(column: Any) -> list[Any]:
        # Lists of Python numbers are the fastest input of protobuf.
        if isinstance(column[0], bytes):
            return [tf.train.Feature(bytes_list=tf.train.BytesList(value=[value])) for value in column]
        numbers = [value if isinstance(value, list) else [value] for value in column.tolist()]
        if column.dtype == object:
            numbers = [row.tolist() for row in column]
        if np.asarray(column[0]).dtype.kind == "f":
            return [tf.train.Feature(float_list=tf.train.FloatList(value=row)) for row in numbers]
        return [tf.train.Feature(int64_list=tf.train.Int64List(value=row)) for row in numbers]

    def write() -> None:
        made = {name: features(column) for name, column in columns.items()}
        with tf.io.TFRecordWriter(str(target)) as writer:
            for row in range(rows):
                feature = {name: column[row] for name, column in made.items()}
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())

    seconds, nbytes = passes(write, target, count)
    return {"records": rows, "seconds": seconds, "nbytes": nbytes}


def write_ours(columns: dict[str, Any], target: Path, count: int) -> dict[str, Any]:
    """Write with `to_tfrecord` from arrays in memory."""
    import dask

    import dask_tfrecord as dtf

    with dask.config.set(scheduler="synchronous"):
        seconds, nbytes = passes(lambda: dtf.to_tfrecord(columns, target), target, count)
    return {"records": len(next(iter(columns.values()))), "seconds": seconds, "nbytes": nbytes}


def write_again(data: Path, name: str, target: Path, rows: int, count: int) -> dict[str, Any]:
    """Read shards and write their rows, decoded and encoded."""
    import dask

    import dask_tfrecord as dtf

    dataset = dtf.read_tfrecord(data / f"{name}-*.tfrecord").rows[:rows]
    with dask.config.set(scheduler="synchronous"):
        seconds, nbytes = passes(lambda: dataset.to_tfrecord(target), target, count)
    return {"records": dataset.nrows, "seconds": seconds, "nbytes": nbytes}


def compare_writers(name: str, arguments: argparse.Namespace, folder: Path) -> dict[str, dict[str, Any]]:
    """Measure all writers on one data set."""
    arrays, target = folder / "arrays.pickle", folder / "written.tfrecord"
    columns = columns_of(arguments.data, name, arguments.records)
    few = {column: array[: arguments.their_records] for column, array in columns.items()}
    arrays.write_bytes(pickle.dumps(few))
    passes_ = str(arguments.passes)
    command = [arguments.tensorflow, __file__, "tfrecord", str(arrays), "--theirs", str(target), "--passes", passes_]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return {
        "tensorflow": json.loads(done.stdout.splitlines()[-1]),
        "dask_tfrecord": write_ours(columns, target, arguments.passes),
        "dask_tfrecord from shards": write_again(arguments.data, name, target, arguments.records, arguments.passes),
    }


def run_tfrecord() -> None:
    """Compare writing Examples with TensorFlow: the same arrays, one core each, in alternation.

    TensorFlow's writer is the loop of its tutorials: a `tf.train.Example` for each row, serialized and passed to
    `tf.io.TFRecordWriter`. This library writes the same NumPy arrays with `to_tfrecord`, on one thread, to one
    shard; and also reads the rows from shards and writes them again. Both compute both CRCs. Seconds are CPU time,
    user plus system, which does not depend on the disk or on other processes.

        python benchmarks/write.py tfrecord DATA [NAME …] --tensorflow TENSORFLOW_PYTHON

    DATA is a directory that `make_data.py` wrote. Times are medians; the ratio is of records per second.
    """
    parser = parser_of(run_tfrecord)
    parser.add_argument("data", type=Path, help="directory that make_data.py wrote to")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TFRECORD_NAMES)}; default: all")
    parser.add_argument("--tensorflow", help="python of an environment with tensorflow-cpu")
    parser.add_argument("--records", type=int, default=100_000, help="records that this library writes")
    parser.add_argument("--their-records", type=int, default=5_000, help="records that TensorFlow writes")
    parser.add_argument("--passes", type=int, default=3, help="timed passes")
    parser.add_argument("--target", type=Path, help="directory of the written files")
    parser.add_argument("--theirs", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    if arguments.theirs is not None:
        print(json.dumps(write_theirs(arguments.data, arguments.theirs, arguments.passes)))
        return
    if not arguments.tensorflow:
        sys.exit("--tensorflow PYTHON is required")
    print(TFRECORD_HEADER)
    for name in arguments.names or TFRECORD_NAMES:
        with tempfile.TemporaryDirectory(dir=arguments.target) as folder:
            results = compare_writers(name, arguments, Path(folder))
        rates = {writer: result["records"] / result["seconds"] for writer, result in results.items()}
        for writer, result in results.items():
            speed = result["nbytes"] / result["seconds"] / 1e6
            times = f"{rates[writer] / rates['tensorflow']:>9.1f}" if writer != "tensorflow" else ""
            print(
                f"{name:12}{writer:26}{result['records']:>10,}{rates[writer]:>14,.0f}{speed:>9,.0f}{times}", flush=True
            )


if __name__ == "__main__":
    dispatch({"zarr": run_zarr, "tfrecord": run_tfrecord}, __doc__)
