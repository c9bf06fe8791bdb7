"""Conversions on a cluster, from one S3 server to another, while workers are killed.

    python examples/cluster.py

Starts two S3 servers (moto), `dask scheduler` and two `dask worker` programs on this machine. Writes shards to the
first server, checks the workers, and converts the shards to a Zarr store and to other shards on the second server.
During each conversion one worker program is killed; the other one completes the work. At the end all values are
compared. Takes about a minute, and needs the packages s3fs and moto[s3].
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import dask
import numpy as np
import s3fs
from distributed import Client
from numpy.typing import NDArray

import dask_tfrecord as dtf

SHARDS = 16
RECORDS_PER_SHARD = 100
SIZE = 32
# Seconds after which a step has failed.
PATIENCE = 120

FEATURES: dict[str, dtf.features.Feature] = {
    "image": dtf.RawFeature((SIZE, SIZE, 3), "uint8"),
    "label": dtf.FixedLenFeature((), "int64"),
}


def main() -> None:
    """Run all steps, and report each."""
    with ExitStack() as programs, tempfile.TemporaryDirectory() as logs:
        cluster = Programs(programs, Path(logs))
        source, target = cluster.start_s3("shards"), cluster.start_s3("converted")
        address = cluster.start_scheduler()
        cluster.start_worker(address)
        cluster.start_worker(address)
        client = programs.enter_context(Client(address, timeout=PATIENCE))
        client.wait_for_workers(2, timeout=PATIENCE)

        images = np.random.default_rng(0).integers(0, 256, (SHARDS * RECORDS_PER_SHARD, SIZE, SIZE, 3), np.uint8)
        with timed(f"wrote {len(images):,} records in {SHARDS} shards to the first S3 server"):
            write_shards(images, source)

        with timed("checked the workers"):
            dtf.check_workers(client, "s3://shards/", source).raise_for_problems()
            dtf.check_workers(client, "s3://converted/", target).raise_for_problems()

        shards, store = "s3://shards/train-*.tfrecord", "s3://converted/train.zarr"
        with (
            timed(f"converted them to {store}; a worker was killed"),
            cluster.kill_worker(target, "train.zarr/image/c/"),
        ):
            ds = dtf.read_tfrecord(shards, FEATURES, storage_options=source)
            ds.to_zarr(store, storage_options=target, chunks=25)

        cluster.start_worker(address)
        client.wait_for_workers(2, timeout=PATIENCE)
        copies = "s3://converted/copies/train-{shard:05d}.tfrecord"
        with timed(f"copied them to {copies}; a worker was killed"), cluster.kill_worker(target, "copies"):
            dtf.copy_tfrecord(shards, copies, records_per_shard=50, storage_options=source, target_options=target)

        with timed("compared every value"):
            converted = dtf.from_zarr(store, storage_options=target)
            copied = dtf.read_tfrecord("s3://converted/copies/*.tfrecord", FEATURES, storage_options=target)
            for result in (converted, copied):
                found = result.compute()
                assert np.array_equal(found["image"], images)
                assert np.array_equal(found["label"], np.arange(len(images)))


class Programs:
    """Programs on the loopback interface, which end with the script.

    Parameters
    ----------
    stack : ExitStack
        Ends the programs.
    logs : Path
        Directory of their output.
    """

    def __init__(self, stack: ExitStack, logs: Path) -> None:
        self._stack, self._logs = stack, logs
        self._workers: list[subprocess.Popen[bytes]] = []

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

    def start_worker(self, address: str) -> None:
        """Start `dask worker`. Without its nanny, a killed worker does not come back."""
        options = ["--nthreads", "1", "--memory-limit", "1 GiB", "--no-nanny", "--no-dashboard"]
        self._workers.append(
            self._start(f"worker-{len(self._workers)}", "dask", "worker", address, "--host", "127.0.0.1", *options)
        )

    @contextmanager
    def kill_worker(self, options: dict[str, Any], directory: str) -> Iterator[None]:
        """Kill a worker when a directory of the second server has three entries; fail if the work ends before."""
        worker, over, killed = self._workers.pop(), threading.Event(), threading.Event()
        fs = s3fs.S3FileSystem(**options, use_listings_cache=False)

        def watch() -> None:
            while not over.wait(0.05):
                with suppress(FileNotFoundError):
                    if len(fs.ls(f"converted/{directory}")) >= 3:
                        worker.kill()
                        killed.set()
                        return

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        if not killed.is_set():
            raise RuntimeError("the work ended before a worker was killed")

    def _start(self, name: str, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self._logs / f"{name}.log").open("wb"))
        command = [sys.executable, "-m", module, *arguments]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        self._stack.callback(process.wait, PATIENCE)
        self._stack.callback(process.kill)
        return process


def write_shards(images: NDArray[np.uint8], options: dict[str, Any]) -> None:
    """Write images and their numbers, from the memory of this process."""
    columns = {"image": np.array([image.tobytes() for image in images], object), "label": np.arange(len(images))}
    template = "s3://shards/train-{shard:05d}-of-{shards:05d}.tfrecord"
    with dask.config.set(scheduler="threads"):
        dtf.to_tfrecord(columns, template, storage_options=options, records_per_shard=RECORDS_PER_SHARD)


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


@contextmanager
def timed(step: str) -> Iterator[None]:
    """Report a step and its duration."""
    began = time.perf_counter()
    yield
    print(f"{step} ({time.perf_counter() - began:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
