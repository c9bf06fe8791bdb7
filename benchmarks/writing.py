"""Compare writing Examples with TensorFlow: the same arrays, one core each, in alternation.

TensorFlow's writer is the loop of its tutorials: a `tf.train.Example` for each row, serialized and passed to
`tf.io.TFRecordWriter`. This library writes the same NumPy arrays with `to_tfrecord`, on one thread, to one shard; and
also reads the rows from shards and writes them again. Both compute both CRCs. Seconds are CPU time, user plus system,
which does not depend on the disk or on other processes.

    python benchmarks/writing.py DATA [NAME …] --tensorflow TENSORFLOW_PYTHON

DATA is a directory that `make_data.py` wrote. Times are medians; the ratio is of records per second.
"""

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = ("tabular", "vectors", "tokens", "images_raw")
HEADER = "data        writer                       records     records/s     MB/s    ratio"


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


def theirs(arrays: Path, target: Path, count: int) -> dict[str, Any]:
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


def ours(columns: dict[str, Any], target: Path, count: int) -> dict[str, Any]:
    """Write with `to_tfrecord` from arrays in memory."""
    import dask

    import dask_tfrecord as dtf

    with dask.config.set(scheduler="synchronous"):
        seconds, nbytes = passes(lambda: dtf.to_tfrecord(columns, target), target, count)
    return {"records": len(next(iter(columns.values()))), "seconds": seconds, "nbytes": nbytes}


def again(data: Path, name: str, target: Path, rows: int, count: int) -> dict[str, Any]:
    """Read shards and write their rows, decoded and encoded."""
    import dask

    import dask_tfrecord as dtf

    dataset = dtf.read_tfrecord(data / f"{name}-*.tfrecord").rows[:rows]
    with dask.config.set(scheduler="synchronous"):
        seconds, nbytes = passes(lambda: dataset.to_tfrecord(target), target, count)
    return {"records": dataset.nrows, "seconds": seconds, "nbytes": nbytes}


def compare(name: str, arguments: argparse.Namespace, folder: Path) -> dict[str, dict[str, Any]]:
    """Measure all writers on one data set."""
    arrays, target = folder / "arrays.pickle", folder / "written.tfrecord"
    columns = columns_of(arguments.data, name, arguments.records)
    few = {column: array[: arguments.their_records] for column, array in columns.items()}
    arrays.write_bytes(pickle.dumps(few))
    passes_ = str(arguments.passes)
    command = [arguments.tensorflow, __file__, str(arrays), "--theirs", str(target), "--passes", passes_]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return {
        "tensorflow": json.loads(done.stdout.splitlines()[-1]),
        "dask_tfrecord": ours(columns, target, arguments.passes),
        "dask_tfrecord from shards": again(arguments.data, name, target, arguments.records, arguments.passes),
    }


def main() -> None:
    """Run the benchmarks of the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="directory that make_data.py wrote to")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
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
        print(json.dumps(theirs(arguments.data, arguments.theirs, arguments.passes)))
        return
    if not arguments.tensorflow:
        sys.exit("--tensorflow PYTHON is required")
    print(HEADER)
    for name in arguments.names or NAMES:
        with tempfile.TemporaryDirectory(dir=arguments.target) as folder:
            results = compare(name, arguments, Path(folder))
        rates = {writer: result["records"] / result["seconds"] for writer, result in results.items()}
        for writer, result in results.items():
            speed = result["nbytes"] / result["seconds"] / 1e6
            times = f"{rates[writer] / rates['tensorflow']:>9.1f}" if writer != "tensorflow" else ""
            print(
                f"{name:12}{writer:26}{result['records']:>10,}{rates[writer]:>14,.0f}{speed:>9,.0f}{times}", flush=True
            )


if __name__ == "__main__":
    main()
