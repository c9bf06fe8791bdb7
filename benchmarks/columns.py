"""Measure the time that each column of a conversion to Zarr takes, among few columns and among many.

    python benchmarks/columns.py [--columns 100 1000 10000] [--rows 50]

Each measurement has its own process. CPU seconds are the sum over all threads. The time per column must not grow with
the number of columns.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def measure(columns: int, rows: int) -> None:
    """Write and open a group of columns in this process, and print a line of the table."""
    import numpy as np

    import dask_tfrecord as dtf

    with tempfile.TemporaryDirectory() as directory:
        names = [f"column_{number:05}" for number in range(columns)]
        path, store = Path(directory, "columns.tfrecord"), Path(directory, "columns.zarr")
        dtf.to_tfrecord(dict.fromkeys(names, np.arange(rows)), path)
        dataset = dtf.read_tfrecord(path, dict.fromkeys(names, dtf.FixedLenFeature((), "int64")))
        began = time.process_time()
        dataset.to_zarr(store)
        written = time.process_time()
        dtf.from_zarr(store)
        opened = time.process_time()
    each = [1000 * seconds / columns for seconds in (written - began, opened - written)]
    print(f"{columns:>7,}  {written - began:9.2f}  {each[0]:13.2f}  {each[1]:14.2f}", flush=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--alone", action="store_true", help="measure in this process, without a header")
    arguments = parser.parse_args()
    if arguments.alone:
        measure(arguments.columns[0], arguments.rows)
        return
    print("columns  CPU seconds  to_zarr ms/col.  from_zarr ms/col.", flush=True)
    for columns in arguments.columns:
        command = [sys.executable, __file__, "--alone", "--columns", str(columns), "--rows", str(arguments.rows)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
