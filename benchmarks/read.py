"""Compare this library with TensorFlow on the same files: speed and peak memory.

Three tables. In the first, each block is decoded, read and dropped: batches of TensorFlow, blocks of this library
through dask. In the second, all rows are gathered into one NumPy array per feature. In the third, 1 % of the rows of
`tabular` are, chosen by a filter, and by a mask of all rows. Both libraries check both CRCs of every
record and use the same cores. They alternate, each run in its own process: TensorFlow's first pipeline, this library,
TensorFlow's second pipeline, this library again. The ratio is to the faster pipeline of TensorFlow.

    python benchmarks/read.py DATA [NAME …] --tensorflow TENSORFLOW_PYTHON
    python benchmarks/read.py DATA [NAME …] --peers tensorflow,tfx-bsl,dali,tfrecord,rustfrecord,ray

The second form compares with other readers as well (`peers.py`), each in an environment that it makes. `--limits` adds
the limits of the machine (`pipelines.py limits`).

DATA is a directory that `make_data.py` wrote. Times are medians of all passes after an untimed first pass. Opening
scans the headers for the number of records; its time is a separate column.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness import GATHERED, HERE, NAMES, OURS, environment, files_of, run, spread
from peers import KINDS, PEERS

TASKS = {
    "touch": "Each block decoded, read and dropped",
    "gather": "Everything gathered into NumPy arrays",
    "filter": "1 % of the rows, chosen by a filter",
}
# Sets with the column of the filter.
FILTERED = ("tabular", "tabular_gz")

HEADER = "data             pipeline                   records     records/s     MB/s   peak RSS MB   ratio   open s"


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
    if task == "filter":
        work |= {f"{OURS} uncounted": "filter-uncounted", f"{OURS} mask": "mask"}
    results = {pipeline: Result(task, name, pipeline, nbytes) for pipeline in work}
    for mode in ("sequential", "interleave"):
        pipeline = f"tensorflow {mode}"
        results[pipeline] = Result(task, name, pipeline, nbytes)
        if arguments.peer is not None and task == "touch":
            theirs = [arguments.tensorflow, str(arguments.peer), *where, mode]
        else:
            theirs = [arguments.tensorflow, str(HERE / "peers.py"), "tensorflow", *where, mode, task, *passes]
        results[pipeline].add(*run(theirs))
        for ours, what in work.items():
            command = [sys.executable, str(HERE / "pipelines.py"), "passes", *where, what, *passes]
            results[ours].add(*run([*command, "--workers", str(arguments.cores)]))
    if task == "filter":
        print_masked(results)
    if len({result.records for result in results.values()}) > 1:
        raise SystemExit(f"{name}: the pipelines disagree on the records: {results}")
    return list(results.values())


def print_masked(results: dict[str, Result]) -> None:
    """Print the speed of filters relative to a mask of all rows, by the medians of the processes of a round."""
    mask = statistics.median(results[f"{OURS} mask"].seconds)
    for pipeline in (OURS, f"{OURS} uncounted"):
        print(f"{pipeline}: {mask / statistics.median(results[pipeline].seconds):.2f} times the speed of a mask")


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
        of_task = {"gather": GATHERED, "filter": FILTERED}.get(task, names)
        chosen = [name for name in names if name in of_task]
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


PEERS_HEADER = (
    f"{'data':12}{'reader':26}{'records':>10}{'records/s':>12}{'spread':>24}{'ours, times':>13}{'spread':>18}"
)


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """Options of the command line."""

    data: Path
    environments: Path
    rounds: int
    passes: int
    clock: str
    cores: int
    timeout: float


@dataclass(frozen=True, slots=True)
class PeerResult:
    """A reader on one set: records per second of each pass, and in each round the ratio of this library to it."""

    data: str
    reader: str
    records: int
    rates: list[float]
    ratios: list[float]
    clock: str
    # Name of the error that ended the reader; empty if it returned rates.
    error: str = ""


def first_megabytes(data: Path, name: str, megabytes: float, out: Path) -> Path:
    """Return a directory with the first megabytes of a set in two shards; `data` itself if the set is small."""
    from dask_tfrecord import RecordWriter, read_records

    files = files_of(data, name)
    if sum(path.stat().st_size for path in files) <= megabytes * 1e6:
        return data
    out.mkdir(exist_ok=True)
    compression, suffix = ("gzip", ".gz") if name.endswith("_gz") else ("", "")
    for number, path in enumerate(files[:2]):
        size = 0
        with RecordWriter(out / f"{name}-{number:05d}-of-00002.tfrecord{suffix}", compression or None) as writer:
            for payload in read_records(path):
                writer.write(payload)
                size += len(payload) + 16
                if size > megabytes * 1e6 / 2:
                    break
    return out


def compare_peer(name: str, peer: str, options: PeerOptions, small: Path) -> Iterator[PeerResult]:
    """Alternate between the pipelines of one peer and this library on one set; yield the peer's results, then ours."""
    python = environment(options.environments, peer, PEERS[peer].packages)
    limit = PEERS[peer].tabular_megabytes if name.startswith("tabular") else PEERS[peer].megabytes
    data = first_megabytes(options.data, name, limit, small)
    common = ["--clock", options.clock]
    ours = [sys.executable, str(HERE / "pipelines.py"), "passes"]
    expected, _ = run([*ours, str(data), name, "sums"], options.timeout)
    our_rates: list[float] = []
    records, release = 0, ""
    for mode in PEERS[peer].modes:
        theirs = [python, str(HERE / "peers.py"), "read", str(data), name, peer, "--mode", mode, *common]
        rates: list[float] = []
        ratios: list[float] = []
        reader = f"{peer} {mode}".strip()
        try:
            for _ in range(options.rounds):
                # One pass of a slow peer in each process.
                passes = options.passes if data == options.data else 1
                found, _ = run([*theirs, "--passes", str(passes)], options.timeout)
                if found["sums"] != expected["sums"]:
                    raise SystemExit(f"{reader} on {name}: other sums: {found['sums']} and {expected['sums']}")
                release = f"{found['peer']} {mode}".strip()
                of_round = [found["records"] / seconds for seconds in found["seconds"]]
                touch = [*ours, str(options.data), name, "touch", *common, "--workers", str(options.cores)]
                again, _ = run([*touch, "--passes", str(options.passes)], options.timeout)
                mine = [again["records"] / seconds for seconds in again["seconds"]]
                records = again["records"]
                rates += of_round
                our_rates += mine
                ratios.append(statistics.median(mine) / statistics.median(of_round))
            yield PeerResult(name, release, expected["records"], rates, ratios, options.clock)
        except (TimeoutError, ChildProcessError) as error:
            print(error, file=sys.stderr, flush=True)
            yield PeerResult(name, reader, expected["records"], [], [], options.clock, type(error).__name__)
    if our_rates:
        yield PeerResult(name, OURS, records, our_rates, [], options.clock)


def print_peer(result: PeerResult) -> None:
    """Print one line."""
    line = f"{result.data:12}{result.reader:26}{result.records:>10,}"
    if result.error:
        line += f"  {result.error}"
    else:
        line += f"{statistics.median(result.rates):>12,.0f}{spread(result.rates, ',.0f'):>24}"
    if result.ratios:
        line += f"{statistics.median(result.ratios):>13,.1f}{spread(result.ratios, ',.1f'):>18}"
    print(line, flush=True)


def compare_named(arguments: Any, names: list[str]) -> list[dict[str, Any]]:
    """Compare with the peers of the command line, in its environments or temporary ones."""
    peers = arguments.peers.split(",")
    unknown = [peer for peer in peers if peer not in PEERS]
    if unknown:
        raise SystemExit(f"unknown peers {unknown}; choose from {', '.join(PEERS)}")
    with tempfile.TemporaryDirectory() as temporary:
        options = PeerOptions(
            arguments.data,
            arguments.environments or Path(temporary),
            arguments.rounds,
            arguments.passes,
            arguments.clock,
            arguments.cores,
            arguments.timeout,
        )
        return compare_peers([name for name in names if name in KINDS], peers, options)


def compare_peers(names: list[str], peers: list[str], options: PeerOptions) -> list[dict[str, Any]]:
    """Compare with each peer on each set that it reads; print and return the results."""
    print(f"\nEach block decoded, read and dropped, {options.cores} cores, {options.clock} time, {os.uname().machine}")
    print(PEERS_HEADER)
    results: list[PeerResult] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            own: list[float] = []
            for peer in peers:
                if name not in PEERS[peer].names:
                    continue
                for result in compare_peer(name, peer, options, Path(scratch, peer)):
                    if result.reader == OURS:
                        own += result.rates
                        records = result.records
                    else:
                        print_peer(result)
                        results.append(result)
            if own:
                results.append(PeerResult(name, OURS, records, own, [], options.clock))
                print_peer(results[-1])
    return [{field: getattr(result, field) for field in result.__slots__} | {"task": "peers"} for result in results]


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
    parser.add_argument("--peers", help=f"compare with these readers instead: {','.join(PEERS)}")
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
        report += compare_named(arguments, names)
    if arguments.tensorflow is not None:
        report += tables(arguments, names)
    if arguments.limits:
        from pipelines import shares

        report += shares(arguments.data, names, arguments.rounds)
    if arguments.json is not None:
        merge(arguments.json, report)


if __name__ == "__main__":
    main()
