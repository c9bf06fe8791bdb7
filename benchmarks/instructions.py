"""Count the instructions of the native kernels under callgrind, and compare them with the committed counts.

    python benchmarks/instructions.py PROGRAM [--write]

PROGRAM is `native_kernels`, built with `cmake -DDASK_TFRECORD_COUNT=ON`. Each kernel runs in its own process; only the
work is counted, not the preparation of its input. The exit status is 1 if a count rose by more than 5 %. Counts depend
on the compiler, the C library and the CRC that the processor supports: with others than in `instructions.json`, or
without valgrind, the command prints one line and succeeds. `--write` replaces the committed counts.
"""

import argparse
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

COUNTS = Path(__file__).with_suffix(".json")
MOST = 1.05
VALGRIND = ["valgrind", "--tool=callgrind", "--toggle-collect=counted", "--callgrind-out-file=/dev/null"]


def count(program: Path, kernel: str) -> int:
    """Return the instructions of one kernel."""
    done = subprocess.run([*VALGRIND, str(program), kernel], capture_output=True, text=True, timeout=300)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or found is None or int(found[1]) == 0:
        raise SystemExit(f"{kernel} failed with status {done.returncode}:\n{done.stderr}")
    return int(found[1])


def main() -> None:
    """Count, compare and print one line per kernel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, help="the built native_kernels")
    parser.add_argument("--write", action="store_true", help="replace the committed counts")
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("skipped: valgrind is not installed")
        return
    # Under valgrind, which presents a processor of its own.
    listed = subprocess.run(
        ["valgrind", "--tool=none", "-q", str(arguments.program)], capture_output=True, text=True, check=True
    )
    platform, *kernels = listed.stdout.splitlines()
    committed: dict[str, Any] = {"platform": platform, "instructions": {}}
    if COUNTS.exists():
        committed = json.loads(COUNTS.read_text())
    if not arguments.write and committed["platform"] != platform:
        print(f"skipped: the counts are for {committed['platform']}, not for {platform}")
        return
    before = committed["instructions"]
    counts, risen = {}, []
    print(f"{platform}\n{'kernel':20}{'committed':>14}{'counted':>14}{'ratio':>8}")
    for kernel in kernels:
        counts[kernel] = count(arguments.program, kernel)
        ratio = counts[kernel] / before[kernel] if kernel in before else float("nan")
        print(f"{kernel:20}{before.get(kernel, 0):>14,}{counts[kernel]:>14,}{ratio:>8.3f}", flush=True)
        if ratio > MOST:
            risen.append(kernel)
    if arguments.write:
        COUNTS.write_text(json.dumps({"platform": platform, "instructions": counts}, indent=2) + "\n")
        return
    if before.keys() != counts.keys():
        raise SystemExit(f"{COUNTS.name} lists other kernels: {sorted(before.keys() ^ counts.keys())}; use --write")
    if risen:
        raise SystemExit(f"more than 5 % above the committed counts: {', '.join(risen)}; correct it or use --write")


if __name__ == "__main__":
    main()
