"""Measure the CPU time of imports and of `--help`, relative to `import dask.array`.

    python benchmarks/startup.py [ROUNDS]

Each command runs in its own process. The bytecode of all modules, also of those of dask, is in a directory of its own
that the first round fills. Rounds alternate between the commands, because the speed of a machine drifts. The
table shows the median of user plus system time, and its ratio to that of `import dask.array`.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile

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


def main(rounds: int) -> None:
    """Measure all commands alternately, and print the table."""
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


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
