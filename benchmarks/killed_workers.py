"""Conversions on a cluster, from one S3 server to another, while workers are killed and join.

    python benchmarks/killed_workers.py [--megabytes 10] [--plot throughput.png]

Starts two S3 servers (moto), `dask scheduler` and two `dask worker` programs of one thread and 2 GiB on this machine.
Writes shards to the first server, checks the workers, and converts the shards to a Zarr store and to other shards on
the second server. During each conversion one worker program is killed; the other one goes on, and a new one joins the
conversion to Zarr. The script converts the same shards with two threads of its own too, and copies the objects of the
first server without reading them, which is what the servers allow. It prints the wall time and the processor time of
each step, without that of the servers. After each conversion it compares all values, and removes the output, so that
the disk holds the data twice at most. Takes about a minute, and needs the packages s3fs and moto[s3], and matplotlib
for a plot.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import dask
import numpy as np
import psutil
import s3fs
from distributed import Client
from numpy.typing import NDArray

import dask_tfrecord as dtf

SHARDS = 16
SIZE = 64
# Seconds after which a program has failed.
PATIENCE = 120

FEATURES: dict[str, dtf.features.Feature] = {
    "image": dtf.RawFeature((SIZE, SIZE, 3), "uint8"),
    "label": dtf.FixedLenFeature((), "int64"),
}


def main() -> None:
    """Run all steps, and report each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=10, help="size of the images")
    parser.add_argument("--plot", type=Path, help="file of a plot of the throughput on the cluster")
    arguments = parser.parse_args()
    # A server reads a whole object for each request of a part, so shards and chunks stay small.
    shards = max(SHARDS, round(arguments.megabytes / 16))
    rows = round(arguments.megabytes * 1e6 / shards / SIZE**2 / 3)
    with ExitStack() as programs, tempfile.TemporaryDirectory() as logs:
        # Listing many chunks keeps the server from storing more.
        cluster = Programs(programs, Path(logs), interval=max(0.2, arguments.megabytes / 1e4))
        source, target = cluster.start_s3("shards"), cluster.start_s3("converted")
        with cluster.timed(f"wrote {shards} shards of {rows:,} records to the first S3 server"):
            write_shards(shards, rows, source)
        with cluster.timed("copied their bytes to the second server with two threads, unread"):
            copy_objects(source, target)

        pattern, store, single = "s3://shards/train-*.tfrecord", "s3://converted/train.zarr", "s3://converted/one.zarr"

        def convert(shards: str, store: str) -> None:
            ds = dtf.read_tfrecord(shards, FEATURES, storage_options=source)
            ds.to_zarr(store, storage_options=target, chunks=rows // 4)

        def compare(result: dtf.Dataset, directory: str) -> None:
            with cluster.timed(f"compared every value of {directory}"):
                for shard in range(shards):
                    images, labels = columns_of(shard, rows)
                    found = result.rows[shard * rows : (shard + 1) * rows].compute()
                    assert np.array_equal(found["image"], images)
                    assert np.array_equal(found["label"], labels)
            s3fs.S3FileSystem(**target).rm(directory, recursive=True)

        with cluster.timed("converted the first shard, which imports"):
            convert("s3://shards/train-00000.tfrecord", "s3://converted/first.zarr")
        with cluster.timed(f"converted all to {single} with two threads") as alone, dask.config.set(num_workers=2):
            convert(pattern, single)
        compare(dtf.from_zarr(single, storage_options=target), single)

        address = cluster.start_scheduler()
        for _ in range(2):
            cluster.start_worker(address)
        client = programs.enter_context(Client(address, timeout=PATIENCE))
        client.wait_for_workers(2, timeout=PATIENCE)
        with cluster.timed("checked the workers"):
            dtf.check_workers(client, "s3://shards/", source, timeout=PATIENCE).raise_for_problems()
            dtf.check_workers(client, "s3://converted/", target, timeout=PATIENCE).raise_for_problems()
        with cluster.timed("converted the first shard on the cluster"):
            convert("s3://shards/train-00000.tfrecord", "s3://converted/first-on-cluster.zarr")
        chunks = 4 * shards
        events = {chunks // 3: cluster.kill_worker, chunks * 2 // 3: lambda: cluster.start_worker(address)}
        with (
            cluster.timed(f"converted all to {store}; a worker was killed, and one joined") as together,
            cluster.watched(target, "train.zarr/image/c/", events) as stored,
        ):
            convert(pattern, store)
        print(
            f"throughput per second of processor time, beside one machine: {alone.processor / together.processor:.2f}"
        )
        if arguments.plot is not None:
            draw(stored, rows / 4 * SIZE**2 * 3 / 1e6, arguments.plot)
        compare(dtf.from_zarr(store, storage_options=target), store)

        client.wait_for_workers(2, timeout=PATIENCE)
        copies = "s3://converted/copies/train-{shard:05d}.tfrecord"
        with (
            cluster.timed(f"copied them to {copies}; a worker was killed"),
            cluster.watched(target, "copies", {3: cluster.kill_worker}),
        ):
            dtf.copy_tfrecord(
                pattern, copies, records_per_shard=rows // 2, storage_options=source, target_options=target
            )

        copied = dtf.read_tfrecord("s3://converted/copies/*.tfrecord", FEATURES, storage_options=target)
        compare(copied, "s3://converted/copies")
        print(f"the workers used up to {cluster.peak / 2**20:,.0f} MiB each")


@dataclass(slots=True)
class Spent:
    """Seconds that a step took: of the clock, and of the processors."""

    wall: float = 0.0
    processor: float = 0.0


@dataclass(slots=True)
class Stored:
    """Number of chunks over time, in seconds since the step began, and what happened."""

    times: list[float] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)


class Programs:
    """Programs on the loopback interface, which end with the script.

    Parameters
    ----------
    stack : ExitStack
        Ends the programs.
    logs : Path
        Directory of their output.
    interval : float
        Seconds between two counts of stored chunks.
    """

    def __init__(self, stack: ExitStack, logs: Path, interval: float) -> None:
        self._stack, self._logs, self._interval = stack, logs, interval
        self._workers: list[subprocess.Popen[bytes]] = []
        # The programs that convert; the processor time of those that were killed, less that of watching.
        self._counted: list[psutil.Process] = [psutil.Process()]
        self._elsewhere = 0.0
        self.peak = 0

    def start_s3(self, bucket: str) -> dict[str, Any]:
        """Start an S3 server with one bucket; return the options of its file system."""
        port = free_port()
        self._start(f"s3-{bucket}", "moto.server", "-H", "127.0.0.1", "-p", str(port))
        wait_for(lambda: is_open(port), "the S3 server")
        options = {"key": "example", "secret": "example-secret", "endpoint_url": f"http://127.0.0.1:{port}"}
        s3fs.S3FileSystem(**options).mkdir(bucket)
        return options

    def start_scheduler(self) -> str:
        """Start `dask scheduler`; return its address."""
        port = free_port()
        options = ["--host", "127.0.0.1", "--port", str(port), "--dashboard-address", "127.0.0.1:0"]
        self._start("scheduler", "dask", "scheduler", *options)
        wait_for(lambda: is_open(port), "the scheduler")
        return f"tcp://127.0.0.1:{port}"

    def start_worker(self, address: str) -> str:
        """Start `dask worker`. Without its nanny, a killed worker does not come back."""
        options = ["--nthreads", "1", "--memory-limit", "2 GiB", "--no-nanny", "--no-dashboard"]
        name = f"worker-{len(self._counted)}"
        self._workers.append(self._start(name, "dask", "worker", address, "--host", "127.0.0.1", *options))
        self._counted.append(psutil.Process(self._workers[-1].pid))
        return "a worker joins"

    def kill_worker(self) -> str:
        """Kill the oldest worker."""
        worker = self._workers.pop(0)
        [process] = [process for process in self._counted if process.pid == worker.pid]
        self._counted.remove(process)
        self._elsewhere += processor_seconds(process)
        worker.kill()
        return "a worker is killed"

    @contextmanager
    def timed(self, step: str) -> Iterator[Spent]:
        """Report a step, its duration, and the processor time of this script and the workers."""
        spent, began, used = Spent(), time.perf_counter(), self._processor_seconds()
        yield spent
        spent.wall, spent.processor = time.perf_counter() - began, self._processor_seconds() - used
        print(f"{step} ({spent.wall:.1f} s, of processors {spent.processor:.1f} s)", flush=True)

    def _processor_seconds(self) -> float:
        return self._elsewhere + sum(map(processor_seconds, self._counted))

    @contextmanager
    def watched(
        self, options: dict[str, Any], directory: str, events: dict[int, Callable[[], str]]
    ) -> Iterator[Stored]:
        """Count the entries of a directory of the second server; act at some numbers, which must be reached."""
        query = urlencode({"list-type": 2, "prefix": directory, "max-keys": 1_000_000})
        stored, over, began = Stored(), threading.Event(), time.perf_counter()
        waiting = sorted(events.items())

        def watch() -> None:
            while not over.wait(self._interval):
                try:
                    with urlopen(f"{options['endpoint_url']}/converted?{query}") as listed:
                        stored.chunks.append(listed.read().count(b"<Key>"))
                except HTTPError:
                    # The server fails to list a bucket that changes.
                    continue
                stored.times.append(time.perf_counter() - began)
                if waiting and stored.chunks[-1] >= waiting[0][0]:
                    _, act = waiting.pop(0)
                    stored.events.append((stored.times[-1], act()))
                for worker in self._workers:
                    self.peak = max(self.peak, psutil.Process(worker.pid).memory_info().rss)
            self._elsewhere -= time.thread_time()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield stored
        finally:
            over.set()
            thread.join()
        if waiting:
            raise RuntimeError(f"the work ended before {len(waiting)} workers were killed or joined")

    def _start(self, name: str, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self._logs / f"{name}.log").open("wb"))
        command = [sys.executable, "-m", module, *arguments]
        # The servers keep larger objects in temporary files.
        environment = {**os.environ, "MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": str(1 << 20)}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self._stack.callback(process.wait, PATIENCE)
        self._stack.callback(process.kill)
        return process


def columns_of(shard: int, rows: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the images and labels of a shard."""
    images = np.random.default_rng(shard).integers(0, 256, (rows, SIZE, SIZE, 3), np.uint8)
    return images, np.arange(shard * rows, (shard + 1) * rows)


def write_shards(shards: int, rows: int, options: dict[str, Any]) -> None:
    """Write the shards one by one."""
    for shard in range(shards):
        images, labels = columns_of(shard, rows)
        columns = {"image": np.array([image.tobytes() for image in images], object), "label": labels}
        path = f"s3://shards/train-{shard:05d}.tfrecord"
        with dask.config.set(scheduler="threads"):
            dtf.to_tfrecord(columns, path, storage_options=options)


def copy_objects(source: dict[str, Any], target: dict[str, Any]) -> None:
    """Copy the objects of the first server, and remove the copies."""
    first, second = s3fs.S3FileSystem(**source), s3fs.S3FileSystem(**target)
    with ThreadPoolExecutor(2) as pool:
        list(
            pool.map(
                lambda path: second.pipe(f"converted/bytes/{Path(path).name}", first.cat(path)), first.ls("shards")
            )
        )
    second.rm("converted/bytes", recursive=True)


def draw(stored: Stored, megabytes: float, out: Path) -> None:
    """Plot the throughput of chunks of some megabytes, and the events."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    times = np.linspace(0, stored.times[-1], 41)
    rates = np.diff(np.interp(times, stored.times, stored.chunks)) / np.diff(times) * megabytes
    figure, axes = pyplot.subplots(figsize=(7.2, 3))
    axes.stairs(rates, times, color="#2f8f5b", fill=True)
    for side, (moment, event) in zip(("right", "left"), stored.events, strict=True):
        axes.axvline(moment, color="#777777", linestyle="--")
        axes.text(moment, rates.max() * 1.05, f" {event} ", color="#777777", fontsize=9, ha=side)
    axes.set_xlabel("seconds", color="#777777")
    axes.set_ylabel("MB/s", color="#777777")
    axes.tick_params(colors="#777777")
    axes.set_ylim(0, rates.max() * 1.15)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(out, dpi=160, bbox_inches="tight", transparent=True)


def processor_seconds(process: psutil.Process) -> float:
    """Return the processor time of a process."""
    times = process.cpu_times()
    return float(times.user + times.system)


def free_port() -> int:
    """Return a port that no program uses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def is_open(port: int) -> bool:
    """Return whether a program accepts connections at a port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not start within {PATIENCE} s")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
