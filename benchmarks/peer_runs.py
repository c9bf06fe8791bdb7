"""Comparison of this library with the readers in `peers.py`, for `compare.py --peers`.

Each peer has its own virtual environment, which is made on first use. Each round runs the peer, then this library, in
processes of their own. Both read the same files, and their sums of every feature have to be equal. A library that reads
a megabyte per second gets the first megabytes of a set.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare import HERE, OURS, files_of, run
from peers import KINDS, PEERS

HEADER = f"{'data':12}{'reader':26}{'records':>10}{'records/s':>12}{'spread':>24}{'ours, times':>13}{'spread':>18}"


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


def environment(directory: Path, name: str, packages: tuple[str, ...]) -> str:
    """Return the Python of the environment DIRECTORY/NAME, which is made with the packages if it is missing."""
    python = directory / name / "bin" / "python"
    if not python.exists():
        print(f"installing {' '.join(packages)} in {directory / name}", file=sys.stderr, flush=True)
        venv.create(directory / name, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True, timeout=3600)
    return str(python)


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
    ours = [sys.executable, str(HERE / "dask_pipelines.py")]
    expected, _ = run([*ours, str(data), name, "sums"], options.timeout)
    our_rates: list[float] = []
    records, release = 0, ""
    for mode in PEERS[peer].modes:
        theirs = [python, str(HERE / "peers.py"), str(data), name, peer, "--mode", mode, *common]
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


def spread(values: Collection[float], form: str) -> str:
    """Return the smallest and the largest value."""
    return f"{min(values):{form}} to {max(values):{form}}"


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
    """Compare with the peers on the command line of `compare.py`, in its environments or temporary ones."""
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
    print(HEADER)
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
