"""Compare this library with TensorFlow on the same files: speed and peak memory.

Two tables. In the first, each block is decoded, read and dropped: batches of TensorFlow, blocks of this library through
dask. In the second, all rows are gathered into one NumPy array per feature. Both libraries check both CRCs of every
record and use the same cores. They alternate, each run in its own process: TensorFlow's first pipeline, this library,
TensorFlow's second pipeline, this library again. The ratio is to the faster pipeline of TensorFlow.

    python benchmarks/compare.py DATA [NAME …] --tensorflow TENSORFLOW_PYTHON
    python benchmarks/compare.py DATA [NAME …] --peers tensorflow,tfx-bsl,dali,tfrecord,ray

The second form compares with other readers as well (`peers.py`), each in an environment that it makes. `--limits` adds
the limits of the machine (`limits.py`).

DATA is a directory that `make_data.py` wrote. Times are medians of all passes after an untimed first pass. Opening
scans the headers for the number of records; its time is a separate column.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass, field
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
TASKS = {
    "touch": "Each block decoded, read and dropped",
    "gather": "Everything gathered into NumPy arrays",
}
OURS = "dask_tfrecord"
HEADER = "data             pipeline                   records     records/s     MB/s   peak RSS MB   ratio   open s"
# Kilobytes on Linux, bytes on macOS.
RSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(slots=True)
class Result:
    """Results of all runs of one pipeline on one data set."""

    task: str
    data: str
    pipeline: str
    nbytes: int
    records: int = 0
    seconds: list[float] = field(default_factory=list)
    open_seconds: list[float] = field(default_factory=list)
    peak_rss: int = 0

    @property
    def records_per_second(self) -> float:
        """Records of a pass divided by its median time."""
        return self.records / statistics.median(self.seconds)

    @property
    def bytes_per_second(self) -> float:
        """Stored bytes of a pass divided by its median time."""
        return self.nbytes / statistics.median(self.seconds)

    def add(self, report: dict[str, Any], peak_rss: int) -> None:
        """Add the report of one process."""
        if self.records not in (0, report["records"]):
            raise SystemExit(f"{self.pipeline} on {self.data}: {self.records} records, then {report['records']}")
        self.records = report["records"]
        self.seconds += report["seconds"]
        self.open_seconds += [report["open_seconds"]] if "open_seconds" in report else []
        self.peak_rss = max(self.peak_rss, peak_rss)


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


def compare(task: str, name: str, arguments: argparse.Namespace) -> list[Result]:
    """Alternate between TensorFlow's pipelines and this library on one data set."""
    files = files_of(arguments.data, name)
    if not files:
        raise SystemExit(f"no files of {name} in {arguments.data}: write it with make_data.py")
    nbytes = sum(path.stat().st_size for path in files)
    where = [str(arguments.data), name]
    passes = ["--passes", str(arguments.passes), "--clock", arguments.clock]
    work = {OURS: task}
    if (task, name) == ("gather", "tokens"):
        # TensorFlow's batches hold flat values and splits; compute() makes an array of every record.
        work[f"{OURS} ragged()"] = "ragged"
    results = {pipeline: Result(task, name, pipeline, nbytes) for pipeline in work}
    for mode in ("sequential", "interleave"):
        pipeline = f"tensorflow {mode}"
        results[pipeline] = Result(task, name, pipeline, nbytes)
        if arguments.peer is not None and task == "touch":
            theirs = [arguments.tensorflow, str(arguments.peer), *where, mode]
        else:
            theirs = [arguments.tensorflow, str(HERE / "tensorflow_pipelines.py"), *where, mode, task, *passes]
        results[pipeline].add(*run(theirs))
        for ours, what in work.items():
            command = [sys.executable, str(HERE / "dask_pipelines.py"), *where, what, *passes]
            results[ours].add(*run([*command, "--workers", str(arguments.cores)]))
    if len({result.records for result in results.values()}) > 1:
        raise SystemExit(f"{name}: the pipelines disagree on the records: {results}")
    return list(results.values())


def ratio(result: Result, others: list[Result]) -> float | None:
    """Return the speed relative to the faster TensorFlow pipeline; None for TensorFlow."""
    if not result.pipeline.startswith(OURS):
        return None
    best = max(other.records_per_second for other in others if not other.pipeline.startswith(OURS))
    return result.records_per_second / best


def print_rows(results: list[Result]) -> None:
    """Print the lines of one data set."""
    for result in sorted(results, key=lambda result: result.pipeline.startswith(OURS)):
        times = ratio(result, results)
        line = (
            f"{result.data:17}{result.pipeline:24}{result.records:>10,}{result.records_per_second:>14,.0f}"
            f"{result.bytes_per_second / 1e6:>9,.0f}{result.peak_rss / 1e6:>14,.0f}"
        )
        if times is not None:
            line += f"{times:>8.2f}{statistics.median(result.open_seconds):>9.2f}"
        print(line, flush=True)


def tables(arguments: argparse.Namespace, names: list[str]) -> list[dict[str, Any]]:
    """Print the tables of both tasks; return the results."""
    report = []
    for task in arguments.tasks:
        chosen = names if task == "touch" else [name for name in names if name in GATHERED]
        if not chosen:
            continue
        print(f"\n{TASKS[task]}, {arguments.cores} cores, {arguments.clock} time")
        print(HEADER)
        for name in chosen:
            results = compare(task, name, arguments)
            print_rows(results)
            for result in results:
                report.append(
                    asdict(result)
                    | {
                        "records_per_second": result.records_per_second,
                        "bytes_per_second": result.bytes_per_second,
                        "ratio": ratio(result, results),
                        "clock": arguments.clock,
                    }
                )
    return report


def merge(path: Path, report: list[dict[str, Any]]) -> None:
    """Add results to a file; results of the same measurements, from an earlier run, are replaced."""

    def identity(result: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(result[key] for key in ("task", "data", "clock"))

    earlier = json.loads(path.read_text()) if path.exists() else []
    new = set(map(identity, report))
    kept = [result for result in earlier if identity(result) not in new]
    path.write_text(json.dumps(kept + report, indent=2) + "\n")


def main() -> None:
    """Run the benchmarks of the command line and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="directory that make_data.py wrote to")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all in DATA")
    parser.add_argument("--tensorflow", help="python of an environment with tensorflow-cpu, for the two tables")
    parser.add_argument("--peer", type=Path, help="another script with TensorFlow's pipelines for the first table")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--passes", type=int, default=3, help="timed passes of each process")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="time, or processor time")
    parser.add_argument("--cores", type=int, default=2, help="cores that each side may use")
    parser.add_argument("--peers", help="compare with these readers instead: tensorflow,tfx-bsl,dali,tfrecord,ray")
    parser.add_argument("--environments", type=Path, help="directory of the environments of the peers, kept")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each peer")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for a process of a peer")
    parser.add_argument("--limits", action="store_true", help="print the share of the machine's limits in each set")
    parser.add_argument("--json", type=Path, help="add the results to this file, for results.py")
    arguments = parser.parse_args()
    names = arguments.names or [name for name in NAMES if files_of(arguments.data, name)]
    if hasattr(os, "sched_setaffinity"):
        # Children inherit it, and TensorFlow sizes its thread pools by it.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    report: list[dict[str, Any]] = []
    if arguments.peers is not None:
        from peer_runs import compare_named

        report += compare_named(arguments, names)
    if arguments.tensorflow is not None:
        report += tables(arguments, names)
    if arguments.limits:
        from limits import shares

        report += shares(arguments.data, names, arguments.rounds)
    if arguments.json is not None:
        merge(arguments.json, report)


if __name__ == "__main__":
    main()
