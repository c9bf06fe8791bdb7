"""Names of the benchmark data, processes of their own for each measurement, and subcommands.

No heavy imports here: the peak memory of a child process starts at the memory of its parent.
"""

import argparse
import contextlib
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import venv
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

# No heavy imports here: the peak memory of a child process starts at the memory of its parent.
HERE = Path(__file__).parent

# SET.label: one integer of each record.
LABELLED = ("tabular", "vectors", "images_raw", "tokens", "sequences", "mixed", "tabular_gz")

# SET.FEATURES: other features of the files of a set.
NAMES = (
    *("tabular", "vectors", "images_raw", "tokens", "tabular_gz"),
    *("sequences", "mixed", "tensors", "jpeg", "jpeg.fast", "jpeg.resized", "png"),
    *(f"{name}.label" for name in LABELLED),
)

# For the other data sets, TensorFlow's batches differ in padding or shape and can't be joined as they are.
GATHERED = NAMES[:5]

OURS = "dask_tfrecord"

# Kilobytes on Linux, bytes on macOS.
RSS_UNIT = 1 if sys.platform == "darwin" else 1024

# Records per chunk and per shard of the sharded store: about 50 MiB per shard.
SHARDED = {
    "tabular": (50_000, 400_000),
    "vectors": (4_000, 48_000),
    "images_raw": (64, 1_024),
    "tokens": (2_000, 24_000),
    "jpeg": (16, 256),
}


def resident(field: str) -> int:
    """Read a field of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise LookupError(field)


def processes_below(process: int) -> list[int]:
    """Return the processes that a process started, and those that they started (Linux)."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended
            parents.setdefault(int(entry.read_text().rpartition(")")[2].split()[1]), []).append(int(entry.parent.name))
    below = list(parents.get(process, ()))
    for child in below:
        below += parents.get(child, ())
    return below


def stop(process: int) -> None:
    """Kill a process and all processes below it."""
    for each in [*processes_below(process), process]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def run(command: list[str], timeout: float = 3600) -> tuple[Any, int]:
    """Run one benchmark process; return its report and its peak resident memory in bytes."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert process.stdout is not None
        timer = threading.Timer(timeout, stop, [process.pid])
        timer.start()
        with process.stdout as stdout:
            output = stdout.read()
        # wait4 returns the resources that this child used.
        _, status, usage = os.wait4(process.pid, 0)
        late = timer.finished.is_set()
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        if late:
            raise TimeoutError(f"{' '.join(command)}\ndid not finish in {timeout:g} s")
        if process.returncode != 0:
            errors.seek(0)
            raise ChildProcessError(
                f"{' '.join(command)}\nfailed with status {process.returncode}:\n{errors.read()[-4000:]}"
            )
    return json.loads(output.splitlines()[-1]), usage.ru_maxrss * RSS_UNIT


def files_of(data: Path, name: str) -> list[Path]:
    """Return the shards that the features `name` are read from."""
    return sorted(data.glob(f"{name.split('.')[0]}-*.tfrecord*"))


def label_of(name: str) -> str:
    """Return a feature with one integer in each record."""
    return "int_0" if name.startswith("tabular") else "label"


def environment(directory: Path, name: str, packages: tuple[str, ...]) -> str:
    """Return the Python of the environment DIRECTORY/NAME, which is made with the packages if it is missing."""
    python = directory / name / "bin" / "python"
    if not python.exists():
        print(f"installing {' '.join(packages)} in {directory / name}", file=sys.stderr, flush=True)
        venv.create(directory / name, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True, timeout=3600)
    return str(python)


def spread(values: Collection[float], form: str) -> str:
    """Return the smallest and the largest value."""
    return f"{min(values):{form}} to {max(values):{form}}"


def parser_of(main: Callable[..., object]) -> argparse.ArgumentParser:
    """Return a parser with the documentation of a subcommand."""
    return argparse.ArgumentParser(
        description=inspect.getdoc(main), formatter_class=argparse.RawDescriptionHelpFormatter
    )


def dispatch(commands: Mapping[str, Callable[[], object]], doc: str | None) -> None:
    """Run the subcommand that the first argument names, or print what there is."""
    if sys.argv[1:2] and sys.argv[1] in commands:
        name = sys.argv.pop(1)
        sys.argv[0] = f"{Path(sys.argv[0]).name} {name}"
        sys.exit(commands[name]())  # type: ignore[arg-type]
    sys.exit(doc)
