"""Measure the milliseconds that each column takes to open, read and write, among few columns and among many.

    python benchmarks/columns.py [--columns 10 100 1000 10000] [--rows 50]

Each measurement has its own process. CPU time is the sum over all threads. The time per column must not grow with
the number of columns. "da.zeros" computes as many arrays of dask alone. All values are compared.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = ("open", "compute", "dask arrays", "da.zeros", "to_zarr", "from_zarr", "to_tfrecord")


def measure(columns: int, rows: int) -> None:
    """Open, read and write columns in this process, and print a line of the table."""
    import dask
    import dask.array as da
    import numpy as np

    import dask_tfrecord as dtf

    features = {f"column_{number:05}": dtf.FixedLenFeature((), "int64") for number in range(columns)}
    with tempfile.TemporaryDirectory() as directory:
        path, store = Path(directory, "columns.tfrecord"), Path(directory, "columns.zarr")
        dtf.to_tfrecord(dict.fromkeys(features, np.arange(rows)), path)
        # Imports of zarr and of what it needs are not measured.
        dtf.read_tfrecord(path, dict([*features.items()][:1])).to_zarr(Path(directory, "first.zarr"))
        times = [time.process_time()]
        dataset = dtf.read_tfrecord(path, features)
        times.append(time.process_time())
        results = [dataset.compute()]
        times.append(time.process_time())
        results.append(dict(zip(features, dask.compute(*dataset[tuple(features)]), strict=True)))
        times.append(time.process_time())
        dask.compute(*(da.zeros(rows, chunks=rows, name=f"zeros-{name}") for name in features))
        times.append(time.process_time())
        dataset.to_zarr(store)
        times.append(time.process_time())
        stored = dtf.from_zarr(store)
        times.append(time.process_time())
        dataset.to_tfrecord(Path(directory, "copy.tfrecord"))
        times.append(time.process_time())
        results += [stored.compute(), dtf.read_tfrecord(Path(directory, "copy.tfrecord"), features).compute()]
    assert all(np.array_equal(found[name], np.arange(rows)) for found in results for name in features)
    each = (1000 * seconds / columns for seconds in np.diff(times))
    print(f"{columns:>7,}" + "".join(f"  {milliseconds:>11.3f}" for milliseconds in each), flush=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--alone", action="store_true", help="measure in this process, without a header")
    arguments = parser.parse_args()
    if arguments.alone:
        measure(arguments.columns[0], arguments.rows)
        return
    print("columns" + "".join(f"  {step:>11}" for step in STEPS), flush=True)
    for columns in arguments.columns:
        command = [sys.executable, __file__, "--alone", "--columns", str(columns), "--rows", str(arguments.rows)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
