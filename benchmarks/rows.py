"""Compare random rows with ArrayRecord and Lance in one run: microseconds a row, local and over HTTP.

usage: python benchmarks/rows.py FOLDER PEER_PYTHON [--rounds 5] [--rows 1000] [--clock cpu] [--latency 0.02]

FOLDER gets records of 64 B, 1 KB and 200 KB, once; PEER_PYTHON is an environment with array_record, pylance, protobuf
and numpy. Each peer reads 1,000 random records, parses them with protobuf, and makes NumPy arrays; so does
dask_tfrecord, at once (`__getitems__` of `as_sequence`), by `ds.rows[rows].compute()`, and one by one (`rows[i]`). The
rounds of all readers alternate. "cold" drops the files from the page cache before. Each reader must find the same sum
of labels. With --latency, rows are read one by one from an HTTP server that waits as many seconds before each answer.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

import dask_tfrecord as dtf
from dask_tfrecord import RecordWriter, messages

PEERS = Path(__file__).with_name("peers.py")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
# Number of records and features of each set.
SETS: dict[str, tuple[int, dict[str, dtf.Feature]]] = {
    "64 B": (400_000, {"label": dtf.FixedLenFeature((), "int64"), "name": dtf.FixedLenFeature((), "bytes")}),
    "1 KB": (200_000, {"label": dtf.FixedLenFeature((), "int64"), "x": dtf.FixedLenFeature((240,), "float32")}),
    "200 KB": (3_000, {"label": dtf.FixedLenFeature((), "int64"), "image": dtf.RawFeature((200_000,), "uint8")}),
}


def payload(name: str, row: int, rng: np.random.Generator) -> bytes:
    """Return a record of a set; its label is the number of the row."""
    message = messages.Example()
    feature = message.features.feature
    feature["label"].int64_list.value.append(row)
    if name == "64 B":
        feature["name"].bytes_list.value.append(b"row %08d" % row)
    elif name == "1 KB":
        feature["x"].float_list.value.extend(rng.standard_normal(240, np.float32).tolist())
    else:
        feature["image"].bytes_list.value.append(rng.bytes(200_000))
    return message.SerializeToString()


def write(folder: Path, name: str) -> Path:
    """Write a set in four shards, if it is missing."""
    path = folder / name.replace(" ", "")
    if not (path / "done").exists():
        path.mkdir(parents=True, exist_ok=True)
        rng, number = np.random.default_rng(0), SETS[name][0]
        for shard in range(4):
            with RecordWriter(path / f"part-{shard}.tfrecord") as writer:
                for row in range(shard * number // 4, (shard + 1) * number // 4):
                    writer.write(payload(name, row, rng))
        (path / "done").touch()
    return path


def drop_from_cache(path: Path) -> None:
    """Drop the pages of all files below a folder from memory."""
    for file in path.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


class Peer:
    """Process of another library, which reads the rows of each request."""

    def __init__(self, python: str, library: str, path: Path, clock: str) -> None:
        command = [python, str(PEERS), "rows", library, str(path), "--clock", clock]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version = self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def read(self, rows: list[int]) -> tuple[float, int]:
        """Return the seconds that the process takes for rows, and the sum of their labels."""
        assert self.process.stdin is not None
        print(json.dumps(rows), file=self.process.stdin, flush=True)
        seconds, total = self._answer()
        return seconds, total

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def timed(read: Callable[[list[int]], int], clock: str = "wall") -> Callable[[list[int]], tuple[float, int]]:
    """Return a function that measures another one."""
    now = CLOCKS[clock]

    def measure(rows: list[int]) -> tuple[float, int]:
        begun = now()
        total = read(rows)
        return now() - begun, total

    return measure


def readers(ds: dtf.Dataset) -> dict[str, Callable[[list[int]], int]]:
    """Return the ways to read rows of a data set, which return the sum of the labels."""
    sequence = ds.as_sequence()
    return {
        "at once": lambda rows: sum(int(row["label"]) for row in sequence.__getitems__(rows)),
        "rows[…].compute()": lambda rows: int(ds.rows[rows].compute()["label"].sum()),
        "one by one": lambda rows: sum(int(sequence[row]["label"]) for row in rows),
    }


def measure(path: Path, name: str, python: str, rounds: int, number: int, clock: str) -> None:
    """Print the microseconds a row of each reader."""
    ds = dtf.read_tfrecord(str(path / "*.tfrecord"), SETS[name][1])
    peers = {library: Peer(python, library, path, clock) for library in ("array_record", "lance")}
    ways = {way: timed(read, clock) for way, read in readers(ds).items()}
    ways |= {f"{library} {peer.version}": peer.read for library, peer in peers.items()}
    rng = random.Random(0)
    for cache in ("warm", "cold"):
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds + 1):
            rows = rng.choices(range(SETS[name][0]), k=number)
            for way, read in ways.items():
                if cache == "cold":
                    drop_from_cache(path)
                taken, total = read(rows)
                assert total == sum(rows), (way, total)
                seconds[way].append(taken)
        for way in ways:
            # The first round opens files.
            each = [1e6 * second / number for second in seconds[way][1:]]
            print(
                f"| {name} | {cache} | {way} | {statistics.median(each):.1f} | {min(each):.1f} to {max(each):.1f} |",
                flush=True,
            )
    for peer in peers.values():
        peer.close()


@contextmanager
def serving(path: Path, latency: float) -> Iterator[str]:
    """Serve the files of a folder, with ranges, a while after each request."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Print nothing."""

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            time.sleep(latency)
            file = path / self.path.strip("/")
            if not file.is_file():
                self.send_error(404)
                return
            size = file.stat().st_size
            bounds = self.headers.get("Range", f"bytes=0-{size - 1}").removeprefix("bytes=").split("-")
            start, stop = int(bounds[0]), min(int(bounds[1] or size - 1) + 1, size)
            with file.open("rb") as stored:
                stored.seek(start)
                content = stored.read(stop - start) if self.command == "GET" else b""
            self.send_response(206 if "Range" in self.headers else 200)
            if "Range" in self.headers:
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(stop - start))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def measure_remote(path: Path, name: str, latency: float, rows: int) -> None:
    """Print the milliseconds a row, from a server."""
    with serving(path, latency) as address:
        files = sorted(path.glob("*.tfrecord"))
        dtf.build_index(files)
        ds = dtf.read_tfrecord([f"{address}/{file.name}" for file in files], SETS[name][1])
        picked = random.Random(1).choices(range(SETS[name][0]), k=rows)
        for way, read in readers(ds).items():
            taken, total = timed(read)(picked)
            assert total == sum(picked)
            print(f"| {name} | {1000 * latency:.0f} ms | {way} | {1000 * taken / rows:.1f} |", flush=True)


def main() -> None:
    """Write the sets, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("peer_python")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--latency", type=float, default=0.0)
    given = parser.parse_args()
    print("| records | page cache | reader | median, µs a row | range |\n| --- | --- | --- | --- | --- |")
    for name in SETS:
        measure(write(given.folder, name), name, given.peer_python, given.rounds, given.rows, given.clock)
    if given.latency:
        print("\n| records | latency | reader | ms a row |\n| --- | --- | --- | --- |")
        for name in SETS:
            measure_remote(write(given.folder, name), name, given.latency, min(given.rows, 100))


if __name__ == "__main__":
    main()
