"""Measure conversions in parts: throughput per core against one process, and the start of a part of a large plan.

    python benchmarks/parts.py throughput 'DATA/tabular-*.tfrecord' [--processes 2] [--rounds 3]
    python benchmarks/parts.py killed 'DATA/tabular-*.tfrecord' [--processes 8] [--kills 3]
    python benchmarks/parts.py start [--units 1000000]

Throughput is decoded rows per second of processor time after the imports: one `to_zarr` on as many threads as there are
processes, and `ZarrJob.write` of as many parts on one thread each, alternately. With ``killed``, some of the processes
are killed after a part of their time and repeated, and the bytes of the store are compared with those of one `to_zarr`.
What the kills lost is the processor time of the killed and repeated programs, less that of as many whole parts.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import dask
import numpy as np
import zarr.storage
from harness import dispatch, parser_of, resident, spread

import dask_tfrecord as dtf

MILLION = 1_000_000
# What a program of its own does.
STEPS = ("one", "begin", "part", "finish")


def _run(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _reports(*processes: subprocess.Popen[str]) -> list[dict[str, Any]]:
    outputs = [process.communicate(timeout=3600)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise ChildProcessError(f"a process failed with status {[process.returncode for process in processes]}")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def throughput() -> None:
    """Compare the processor time of parts with that of one process."""
    parser = parser_of(throughput)
    parser.add_argument("pattern")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            store = Path(folder, str(number))
            [one] = _reports(_run("one", args.pattern, store / "one", "--threads", args.processes))
            [begun] = _reports(_run("begin", args.pattern, store / "job", "--parts", args.processes))
            parts = _reports(*(_run("part", store / "job", "--part", part) for part in range(args.processes)))
            dtf.ZarrJob.open(store / "job").finish()
            spent = begun["cpu"] + sum(part["cpu"] for part in parts)
            ratios.append(one["cpu"] / spent)
            seconds = begun["seconds"] + max(part["seconds"] for part in parts)
            print(
                f"one process {one['cpu']:.2f} s of processor time, {one['seconds']:.2f} s; {args.processes} parts "
                f"with their plan {spent:.2f} s, {seconds:.2f} s: {ratios[-1]:.2f} per core",
                flush=True,
            )
    print(f"throughput per core of parts: {statistics.median(ratios):.2f} ({spread(ratios, '.2f')}) of one process")


def _files(store: Path) -> dict[str, str]:
    """Return digests of all files of a store, without the identity of its conversion."""
    found = {path.relative_to(store).as_posix(): path.read_bytes() for path in store.rglob("*") if path.is_file()}
    group = json.loads(found["zarr.json"])
    own = json.loads(group["attributes"].pop("dask_tfrecord"))
    del own["id"]
    found["zarr.json"] = json.dumps([group, own]).encode()
    return {name: hashlib.sha256(data).hexdigest() for name, data in found.items()}


def killed() -> None:
    """Compare parts, some of which are killed and repeated, with one process: bytes and processor time."""
    parser = parser_of(killed)
    parser.add_argument("pattern")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--kills", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        ones = _reports(_run("one", args.pattern, store / "one"))
        [begun] = _reports(_run("begin", args.pattern, store / "job", "--parts", args.processes))
        running = [_run("part", store / "job", "--part", part) for part in range(args.processes)]
        job = dtf.ZarrJob.open(store / "job")
        doomed = running[: args.kills]
        while any(each.poll() is None for each in doomed) and not all(
            part.written for part in job.status().parts[: args.kills]
        ):
            time.sleep(0.1)
        for process in doomed:
            process.kill()
        # A program that ended before is not counted: its part is written.
        ended = [os.wait4(process.pid, 0)[1:] for process in doomed if process.returncode is None]
        whole = _reports(*(process for process in running if process not in doomed))
        states = [part.state for part in job.status().parts]
        repeated = _reports(*(_run("part", store / "job", "--part", part) for part in range(args.kills)))
        [finished] = _reports(_run("finish", store / "job"))
        equal = _files(store / "job") == _files(store / "one")
        # The machine may have become slower or faster meanwhile.
        ones += _reports(_run("one", args.pattern, store / "again"))
    number = [status for status, _ in ended].count(signal.SIGKILL)
    print(f"{number} of {args.processes} programs killed, parts were {', '.join(states)}; bytes")
    print("equal" if equal else "DIFFER", end="; seconds of processor time after the imports:\n")
    imports = statistics.median(report["imports"] for report in whole + repeated)
    steps = {
        "begin": [begun["cpu"]],
        f"{len(whole)} parts": [report["cpu"] for report in whole],
        "killed": [usage.ru_utime + usage.ru_stime - imports for _, usage in ended],
        "repeated": [report["cpu"] for report in repeated],
        "finish": [finished["cpu"]],
    }
    alone, spent = [report["cpu"] for report in ones], sum(map(sum, steps.values()))
    one = statistics.mean(alone)
    print(f"  one process {alone[0]:.2f} before and {alone[1]:.2f} after")
    print(f"  all programs {spent:.2f}: {', '.join(f'{name} {sum(each):.2f}' for name, each in steps.items())}")
    # What a killed program and its repetition took more than one program takes for a part.
    lost = sum(steps["killed"] + steps["repeated"]) - args.kills * statistics.median(steps[f"{len(whole)} parts"])
    print(f"  lost by kills {lost:.2f}; imports of a part {imports:.2f}, of one process {ones[0]['imports']:.2f}")
    print(f"per core {one / spent:.2f} of one process, {one / (spent - lost):.2f} without what the kills lost")


def _measured() -> None:
    """Do one step in this process, and print its time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--parts", type=int)
    parser.add_argument("--part", type=int)
    args = parser.parse_args()
    # Imports are those of any program that does this step.
    importlib.import_module("dask_tfrecord.stores.zarr.job")
    if args.step in ("one", "begin"):
        dtf.to_zarr({"x": np.zeros(1)}, zarr.storage.MemoryStore())
    else:
        # zarr imports codecs for the first array.
        zarr.create_array(zarr.storage.MemoryStore(), shape=(1,), dtype="i1")
    cpu, began = time.process_time(), time.perf_counter()
    with dask.config.set(scheduler="threads", num_workers=args.threads):
        if args.step == "part":
            dtf.ZarrJob.open(args.paths[-1]).write(args.part)
        elif args.step == "finish":
            dtf.ZarrJob.open(args.paths[-1]).finish()
        elif args.step == "begin":
            dtf.ZarrJob.begin(dtf.read_tfrecord(args.paths[0]), args.paths[-1], parts=args.parts)
        else:
            dtf.read_tfrecord(args.paths[0]).to_zarr(args.paths[-1])
    print(json.dumps({"imports": cpu, "cpu": time.process_time() - cpu, "seconds": time.perf_counter() - began}))


class _Started(Exception):
    """The first tasks of a part are built."""


def start() -> None:
    """Measure how long a part of a large plan takes until its first task, and the memory that it takes."""
    parser = parser_of(start)
    parser.add_argument("--units", type=int, default=MILLION)
    args = parser.parse_args()
    rows = args.units // 2
    with tempfile.TemporaryDirectory() as folder:
        tokens = dtf.RaggedBlock(np.arange(2 * rows), 2 * np.arange(rows + 1))
        dtf.to_tfrecord({"x": np.arange(rows), "tokens": tokens}, Path(folder, "shard.tfrecord"))
        features = {"x": dtf.FixedLenFeature((), "int64"), "tokens": dtf.VarLenFeature("int64")}
        ds, began = dtf.read_tfrecord(Path(folder, "shard.tfrecord"), features), time.process_time()
        chunks = {"x": 1, "tokens": 1, "tokens.values": 2}
        job = dtf.ZarrJob.begin(ds, Path(folder, "store"), parts=8, chunks=chunks)
        units = sum(part.units for part in job.status().parts)
        print(f"begin: {units:,} write units in {time.process_time() - began:.2f} s of processor time")
        before, began, wall = resident("VmRSS"), time.process_time(), time.perf_counter()
        with mock.patch("dask_tfrecord.stores.zarr.job.dask.compute", side_effect=_Started):
            try:
                dtf.ZarrJob.open(Path(folder, "store")).write(5)
            except _Started:
                cpu, seconds = time.process_time() - began, time.perf_counter() - wall
        memory = (resident("VmRSS") - before) / 2**20
        print(f"part: first task after {cpu:.2f} s of processor time, {seconds:.2f} s, {memory:.0f} MiB more")


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in STEPS:
        _measured()
    else:
        dispatch({"throughput": throughput, "killed": killed, "start": start}, __doc__)
