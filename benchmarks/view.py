"""Measure `dask-tfrecord view`: seconds to the first rows, seconds of a jump to any row, and memory of the process.

usage: python benchmarks/view.py PATTERN [JUMPS]
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any


def get(address: str) -> Any:
    """Return the answer to a request."""
    with urllib.request.urlopen(address, timeout=600) as answer:
        return json.load(answer)


def main(pattern: str, jumps: int = 200) -> None:
    """Start the command, and print the measurements."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "dask_tfrecord", "view", pattern, "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip() + "api/"
            while not get(f"{address}rows?stop=50")["rows"]:
                time.sleep(0.01)
            print(f"first rows after {time.perf_counter() - began:.2f} s")
            while not (overview := get(f"{address}overview"))["counted"]:
                time.sleep(0.1)
            rows = overview["nrows"]
            print(f"{rows:,} rows counted after {time.perf_counter() - began:.2f} s")
            chosen, seconds = random.Random(0), []
            for _ in range(jumps):
                start = chosen.randrange(rows)
                before = time.perf_counter()
                get(f"{address}rows?start={start}&stop={start + 50}")
                seconds.append(time.perf_counter() - before)
            status = Path(f"/proc/{process.pid}/status").read_text("ascii")
            peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
            print(f"jump: median {statistics.median(seconds) * 1e3:.0f} ms, worst {max(seconds) * 1e3:.0f} ms")
            print(f"peak memory {int(peak) / 1024:,.0f} MiB")
        finally:
            process.terminate()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]))
