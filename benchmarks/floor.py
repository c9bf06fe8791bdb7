"""Compare the processor time of one thread with a C++ program that only reads, checks CRCs and copies.

    python benchmarks/floor.py DATA [NAME …] [--turns 7]

The program, floor.cpp, is compiled here with the CRC of the package. Both read the same files in turn, from the page
cache; the ratio of the shortest times holds on any machine. The program does not parse messages, so that it is a bound
for one large value in a record, and more than that for small values.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

import dask
from harness import files_of
from pipelines import FEATURES

import dask_tfrecord as dtf

HERE = Path(__file__).parent
NAMES = ("images_raw", "vectors", "tokens", "tabular")


def compiled(folder: Path) -> Path:
    """Compile the program, and return its path."""
    program, native = folder / "floor", HERE.parent / "dask_tfrecord" / "native"
    command = ["g++", "-std=c++17", "-O3", "-DNDEBUG", f"-I{native}", str(HERE / "floor.cpp"), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def main() -> None:
    """Print a line for each set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()
    print(f"{'data':12}{'MB':>8}{'ours s':>10}{'floor s':>10}{'ours ÷ floor':>15}")
    with tempfile.TemporaryDirectory() as folder, dask.config.set(scheduler="synchronous"):
        program = compiled(Path(folder))
        for name in arguments.names or NAMES:
            files = files_of(arguments.data, name)
            ds = dtf.read_tfrecord(files, FEATURES[name])
            ours, floor = list[float](), list[float]()
            for _ in range(arguments.turns):
                start = time.process_time()
                ds.compute()
                ours.append(time.process_time() - start)
                done = subprocess.run([program, *files], check=True, capture_output=True, text=True)
                floor.append(float(done.stdout.split()[0]))
            nbytes = sum(file.stat().st_size for file in files) / 1e6
            print(f"{name:12}{nbytes:8.0f}{min(ours):10.3f}{min(floor):10.3f}{min(ours) / min(floor):15.2f}")


if __name__ == "__main__":
    main()
