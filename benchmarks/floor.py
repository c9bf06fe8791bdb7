"""Compare the processor time of one thread with a C++ program that only reads, checks CRCs and copies.

    python benchmarks/floor.py DATA [NAME …] [--turns 7]

The program, floor.cpp, is compiled here with the CRC of the package. Both read the same files in turn, from the page
cache; the ratio of the shortest times holds on any machine. The program does not parse messages, so that it is a bound
for one large value in a record, and more than that for small values. "in cache" is the time in which the decoder alone
checks and parses as many bytes, from the same MiB and to the same memory each time.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

import dask
import numpy as np
from harness import files_of
from pipelines import FEATURES

import dask_tfrecord as dtf
from dask_tfrecord import _native

HERE = Path(__file__).parent
NAMES = ("images_raw", "vectors", "tokens", "tabular")
WINDOW = 1 << 20


def compiled(folder: Path) -> Path:
    """Compile the program, and return its path."""
    program, native = folder / "floor", HERE.parent / "dask_tfrecord" / "native"
    command = ["g++", "-std=c++17", "-O3", "-DNDEBUG", f"-I{native}", str(HERE / "floor.cpp"), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def columns(name: str) -> list[_native.ColumnSpec]:
    """Return the columns of a set, as the native decoder takes them."""
    kind, layout = _native.Kind, _native.ValueLayout
    one = {"int": kind.INT64, "float": kind.FLOATS, "str": kind.BYTES, "label": kind.INT64, "id": kind.BYTES}
    larger = {
        "image": _native.ColumnSpec(b"image", kind.BYTES, layout.RAW, count=4 * 64 * 64 * 3),
        "embedding": _native.ColumnSpec(b"embedding", kind.FLOATS, layout.FIXED, count=256),
        "tokens": _native.ColumnSpec(b"tokens", kind.INT64, layout.RAGGED),
    }
    return [
        larger.get(key) or _native.ColumnSpec(key.encode(), one[key.split("_")[0]], layout.FIXED)
        for key in FEATURES[name]
    ]


def in_cache(name: str, file: Path) -> float:
    """Return the shortest time in seconds a byte of decoding the first MiB of a file."""
    with file.open("rb") as stream:
        window = np.frombuffer(stream.read(WINDOW), np.uint8)
    shortest = float("inf")
    for _ in range(300):
        decoder = _native.Decoder(columns(name), check_crc=True, closed=False)
        start = time.process_time()
        walk = decoder.feed(window, 0, len(window), -1)
        shortest = min(shortest, (time.process_time() - start) / walk.consumed)
    return shortest


def main() -> None:
    """Print a line for each set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()
    print(f"{'data':12}{'MB':>8}{'ours s':>10}{'floor s':>10}{'ours ÷ floor':>15}{'in cache s':>12}")
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
            nbytes = sum(file.stat().st_size for file in files)
            print(
                f"{name:12}{nbytes / 1e6:8.0f}{min(ours):10.3f}{min(floor):10.3f}{min(ours) / min(floor):15.2f}"
                f"{nbytes * in_cache(name, files[0]):12.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
