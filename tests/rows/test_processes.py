"""Forked workers, spawned workers and threads at once, and Ctrl-C: real processes that get real signals."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from oracle import write_oracle
from support.programs import run_program
from support.waiting import PATIENCE, wait_until
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.errors import IncompleteStoreError
from dask_tfrecord.shards import streams

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to another process")
PACKAGES = Path(dtf.__file__).parents[1]
FEATURES = "{'label': dtf.FixedLenFeature((), 'int64'), 'x': dtf.FixedLenFeature((500,), 'float32')}"
# Far more than any machine of this size does in the meantime.
MEMBERS = 2_000
# Limit of the processor time that a process takes after Ctrl-C: several times what it needs, less than a job takes.
SECONDS_TO_STOP = 2.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gzip file of thousands of members, some gigabytes inflated, and as many names of a small shard."""
    folder = tmp_path_factory.mktemp("processes")
    write_oracle(folder / "one", [example(label=[number], x=500 * [number / 4]) for number in range(500)])
    (folder / "large.gz").write_bytes(gzip.compress((folder / "one").read_bytes(), 6) * MEMBERS)
    (folder / "many").mkdir()
    for number in range(MEMBERS):
        os.link(folder / "one", folder / "many" / f"part-{number}")
    return folder


LARGE, MANY = "dtf.read_tfrecord('large.gz', FEATURES", "dtf.read_tfrecord('many', FEATURES, counts=[500] * 2000"
JOBS = {
    "reading all": f"{MANY}).compute()",
    "to_zarr": f"{MANY}).to_zarr('out.zarr')",
    "counting": f"{LARGE})",
    "reading the middle": f"{LARGE}, counts=[1_000_000]).rows[990_000:].compute()",
    "to_tfrecord": f"{MANY}).to_tfrecord('out')",
}


def processor_seconds(usage: Any) -> float:
    return float(usage.ru_utime + usage.ru_stime)


def interrupted(code: str, folder: Path, *arguments: str) -> tuple[subprocess.Popen[str], str, str]:
    """Start a program that prints "begun", send Ctrl-C once it reads; return it and what it printed then."""
    import resource

    environment = {**os.environ, "PYTHONPATH": str(PACKAGES)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, cwd=folder, env=environment, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        ended = processor_seconds(resource.getrusage(resource.RUSAGE_CHILDREN))
        job = psutil.Process(process.pid)
        # Importing is over. Then it reads for a while.
        begun = sum(job.cpu_times()[:2])
        wait_until(lambda: sum(job.cpu_times()[:2]) > begun + 0.3, lambda: process.poll() is None)
        assert process.poll() is None
        before = sum(job.cpu_times()[:2])
        process.send_signal(signal.SIGINT)
        try:
            out, errors = process.communicate(timeout=PATIENCE)
        finally:
            # Leaving the context waits without a limit.
            process.kill()
    # Processor time, because other programs slow down this one.
    taken = processor_seconds(resource.getrusage(resource.RUSAGE_CHILDREN)) - ended - before
    assert taken < SECONDS_TO_STOP
    return process, out, errors


@pytest.mark.integration
@POSIX
@pytest.mark.parametrize("job", [*JOBS][:2] + [pytest.param(job, marks=pytest.mark.slow) for job in [*JOBS][2:]])
def test_control_c_stops_at_once_and_leaves_nothing_unmarked(folder: Path, job: str) -> None:
    before = set(folder.rglob("*"))
    code = f"""
# An interrupt within an import may become another error.
import threading
import dask, distributed, zarr, dask_tfrecord as dtf
import dask_tfrecord.rows.read, dask_tfrecord.stores.files.tfrecord, dask_tfrecord.stores.zarr.write
FEATURES = {FEATURES}
dask.config.set(scheduler="threads", num_workers=2)
# ThreadPoolExecutor forgets a thread whose start is interrupted, and the interpreter waits for that thread at exit.
# Two tasks that wait for each other start both threads of dask's pool.
both = threading.Barrier(2)
dask.compute(dask.delayed(both.wait)(60), dask.delayed(both.wait)(60))
print("begun", flush=True)
{JOBS[job]}
print("done", flush=True)
"""
    _, out, errors = interrupted(code, folder)
    assert out == ""
    said = ["KeyboardInterrupt"]
    if job == "to_zarr" and (folder / "out.zarr").exists():
        # It had begun to write.
        is_kept = any((folder / "out.zarr").rglob("units/*"))
        kept, verb = (
            ("written units are kept", "continues")
            if is_kept
            else ("no unit is complete yet, and the plan is kept", "begins with")
        )
        said.append(f"{kept}: the same call with resume=True {verb} it")
        with pytest.raises(IncompleteStoreError, match="resume=True"):
            dtf.from_zarr(folder / "out.zarr")
        shutil.rmtree(folder / "out.zarr")
    assert errors.splitlines()[-len(said) :] == said
    assert set(folder.rglob("*")) == before


@pytest.mark.integration
@POSIX
def test_control_c_stops_a_command(folder: Path) -> None:
    code = """
# An interrupt within an import may become another error.
import dask.array, distributed
import dask_tfrecord.rows.counting, dask_tfrecord.rows.read, dask_tfrecord.cli.info_table
from dask_tfrecord.cli.main import main
print("begun", flush=True)
main()
"""
    process, _, errors = interrupted(code, folder, "info", "large.gz")
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "Interrupted"


def test_only_what_is_being_read_is_interrupted(folder: Path) -> None:
    features = {"label": dtf.FixedLenFeature((), "int64")}
    ds = dtf.read_tfrecord(folder / "one", features)
    streams.interrupt_reading()
    # Reads that begin later succeed, and so do reads of the main thread.
    assert ds["label"].sum().compute(scheduler="threads") == sum(range(500))
    begun = streams.interrupt_count()
    streams.interrupt_reading()
    streams.check_interrupt(begun)


# -- forked, spawned, and threads --------------------------------------------------------------------------------------

AT_ONCE = """
import multiprocessing, sys, threading
import dask, numpy as np
import dask_tfrecord as dtf

FEATURES = {"label": dtf.FixedLenFeature((), "int64"), "x": dtf.FixedLenFeature((500,), "float32")}

# The threads that dask keeps are not there in a forked process, so workers read by themselves.
def total(ds):
    columns = ds.compute(scheduler="sync")
    with dask.config.set(scheduler="sync"):
        lone = int(ds.head(78)["label"][77])
    return int(columns["label"].sum()), float(columns["x"].sum()), lone

def work(ds, queue):
    queue.put(total(ds))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    paths = [f"many/part-{number}" for number in range(8)]
    # Threads have read before.
    counted = dtf.read_tfrecord(paths, FEATURES)
    sets = [counted, dtf.read_tfrecord(paths, FEATURES, counts=None, chunks="100 kB"), counted.rows[:]]
    sets[0].compute(scheduler="threads", num_workers=2)
    results, queue = [], context.Queue()
    threads = [threading.Thread(target=lambda ds=ds: results.append(total(ds))) for ds in sets]
    workers = [context.Process(target=work, args=(ds, queue)) for ds in sets]
    # Workers first: a lock that another thread holds is never free again in a forked process.
    for one in [*workers, *threads]:
        one.start()
    results += [queue.get(timeout=100) for _ in workers]
    for one in [*threads, *workers]:
        one.join(timeout=100)
    assert all(worker.exitcode == 0 for worker in workers)
    print(len(results), len(set(results)), *results[0])
"""


@pytest.mark.integration
@POSIX
# A new interpreter starts slowly.
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_processes_and_threads_read_at_once(folder: Path, method: str, tmp_path: Path) -> None:
    script = tmp_path / "at_once.py"
    script.write_text(AT_ONCE)
    # Newer versions of Python warn where a process with threads is forked.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", script, method]
    done = run_program(*command, cwd=folder, env={**os.environ, "PYTHONPATH": str(PACKAGES)})
    assert done.returncode == 0, done.stderr
    number, distinct, labels, values, lone = done.stdout.split()
    assert number == "6"
    assert distinct == "1"
    assert int(labels) == 8 * sum(range(500))
    assert float(values) == pytest.approx(8 * 500 * sum(range(500)) / 4)
    assert lone == "77"
