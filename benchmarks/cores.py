"""Measure what threads of one process reach: the GIL, tasks, system calls, and speed beside as many processes.

    python benchmarks/cores.py DATA [NAME …] [--tasks blocks decode compute to_zarr to_tfrecord batches filter rows]
    [--parts gil counted tasks calls speed remote] [--versions old=DIRECTORY new] [--threads 1 2 4] [--turns 3]
    [--seconds 2] [--json FILE]
    python benchmarks/cores.py --draw RESULTS.json CHART.svg

DATA is a directory that `make_data.py` wrote; `--make SCALE` writes the sets there first, with a process per set. The
parts, each for one set and one task:

gil
    Share of the processor time of a pass for which its thread holds the GIL: 1 / share bounds what threads can reach. A
    timer of processor time asks 1,000 times a second whether it is held (`gil`); this needs a C compiler. On a quiet
    machine, a thread that counts in pure Python confirms it (`counted`): it counts in turns beside a thread of its
    process that makes passes, and beside a process that makes the same passes, which costs what shared hardware costs.
tasks
    Tasks of dask in one pass that take longer than 1 ms, with all threads.
calls
    Calls of futex, and those that change the mappings of memory, in one pass with 2 and with 8 threads (`strace`).
speed
    Passes of one process with 1, 2, … all threads, and of as many processes with one thread, each with a part of the
    shards: seconds, and times the speed of one thread.
remote
    Passes over the same shards on servers of this machine: an S3 service (`moto`), and a web server that waits for
    20 ms before each answer. Share of the processor time for which the GIL is held with one thread, seconds with 1 and
    with 16 threads, and how many times as fast 16 are. Servers share the processors with the passes, and moto is slow.

The task blocks passes all blocks to a function, in which rows of bytes are objects. In the task decode, a function gets
the same blocks and asks for one of integers. A set NAME.numbers has the columns of numbers alone. The tasks filter and
rows read 1 % of the records, by a condition and by their numbers.

A version is a name, or a name and the directory of another installation (``pip install --target DIRECTORY``). Versions
and turns alternate, and results are medians. Outputs are written to /dev/shm, if it
has room. Linux only. `--draw` draws speeds of a file that `--json` wrote, with matplotlib.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.abc
import importlib.machinery
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

TASKS = ("blocks", "decode", "compute", "to_zarr", "to_tfrecord", "batches", "filter", "rows")
SETS = ("tabular", "tabular.numbers", "vectors", "vectors.numbers", "images_raw", "tokens", "tabular_gz")
PARTS = ("gil", "counted", "tasks", "calls", "speed", "remote")
MAPPING_CALLS = ("mmap", "munmap", "mremap", "mprotect", "madvise", "brk")
# Seconds of a task of dask that counts.
_LONG = 1e-3
_PATIENCE = 600
# Free bytes of /dev/shm for outputs.
_LEAST = 16 << 30
# Seconds before an answer of the web server, and threads that read from a server.
_LATENCY = 0.02
_READERS = 16


class Version(importlib.abc.MetaPathFinder):
    """Finder of the library in a directory, ahead of an editable installation."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """Return the spec of a module of the library."""
        if name.partition(".")[0] != "dask_tfrecord":
            return None
        return importlib.machinery.PathFinder.find_spec(name, path or [self.directory])


class Passes:
    """Passes of a task over some shards of a set, in this process."""

    def __init__(self, data: str, name: str, task: str, part: tuple[int, int] = (0, 1)) -> None:
        import dask
        import numpy as np
        from pipelines import FEATURES, SEQUENCE_FEATURES, touch

        import dask_tfrecord as dtf

        number, parts = part
        data, _, server = data.partition(" ")
        base, _, columns = name.partition(".")
        features = FEATURES[base]
        if columns == "numbers":
            features = {key: feature for key, feature in features.items() if feature.block_dtype.kind != "O"}
        shards: list[Any] = shards_of(Path(data), base)[number::parts]
        options = {}
        if server:
            # A server, and the options of its file system.
            address, _, given = server.partition(" ")
            shards, options = [f"{address}/{path.name}" for path in shards], json.loads(given)
        self._set = dask.config.set
        self._out = Path(
            tempfile.mkdtemp(prefix="cores-", dir="/dev/shm" if shutil.disk_usage("/dev/shm").free > _LEAST else None)
        )
        ds = dtf.read_tfrecord(
            shards, features, sequence_features=SEQUENCE_FEATURES.get(base), storage_options=options or None
        )

        label = next(key for key, feature in features.items() if feature.block_dtype.kind == "i")
        nrows = ds.nrows or 0
        few = np.sort(np.random.default_rng(0).choice(nrows, max(1, nrows // 100), replace=False))
        least = 10 if base.startswith("tabular") else 1

        def batches() -> None:
            for _ in ds.batches(1024, shuffle="full", seed=0):
                pass

        def decode() -> None:
            counted = {"rows": np.empty(0, np.int64)}
            ds.map_blocks(lambda blocks: {"rows": blocks[label].astype(np.int64)}, counted)["rows"].sum().compute()

        works: dict[str, Callable[[], object]] = {
            "blocks": lambda: touch(ds),
            "decode": decode,
            "compute": ds.compute,
            "to_zarr": lambda: ds.to_zarr(self._out / "zarr", mode="w"),
            "to_tfrecord": lambda: ds.to_tfrecord(self._out / "tfrecord", mode="w"),
            "batches": batches,
            "filter": lambda: ds.where([(label, "<", least)]).compute(),
            "rows": lambda: ds.rows[few].compute(),
        }
        self._work = works[task]

    def make(self, threads: int) -> float:
        """Make one pass; return its seconds."""
        with self._set(scheduler="threads", num_workers=threads):
            start = time.perf_counter()
            self._work()
            return time.perf_counter() - start

    def close(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self._out, ignore_errors=True)


def shards_of(data: Path, name: str) -> list[Path]:
    """Return the shards of a set."""
    return sorted(data.glob(f"{name.partition('.')[0]}-*.tfrecord*"))


def count_for(seconds: float) -> float:
    """Count in pure Python; return the counts of a second."""
    number, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(100):
            number += 1
    return number / seconds


# The interpreter has a current thread state exactly while a thread holds the GIL.
_SAMPLER = """
#include <signal.h>
#include <sys/time.h>
extern void *_PyThreadState_UncheckedGet(void);
static volatile long counts[2];
static void sample(int number) { (void)number; ++counts[_PyThreadState_UncheckedGet() != 0]; }
void start(void) {
    struct sigaction action = {0};
    action.sa_handler = sample;
    action.sa_flags = SA_RESTART;
    sigaction(SIGPROF, &action, 0);
    struct itimerval every = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_PROF, &every, 0);
}
void stop(void) { struct itimerval never = {{0, 0}, {0, 0}}; setitimer(ITIMER_PROF, &never, 0); }
long count(int held) { return counts[held]; }
"""


def sampled_share(passes: Passes, seconds: float) -> tuple[float | None, float]:
    """Return the share of samples of processor time in which the GIL is held, and the processor time of a pass."""
    made, processor = 0, time.process_time()
    compiler = shutil.which("cc")
    passes.make(1)
    with tempfile.TemporaryDirectory() as directory:
        sampler: Any = None
        if compiler is not None:
            source, library = Path(directory, "sampler.c"), Path(directory, "sampler.so")
            source.write_text(_SAMPLER)
            subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
            sampler = ctypes.CDLL(str(library))
            sampler.start()
        processor = time.process_time()
        while not made or time.process_time() - processor < seconds:
            passes.make(1)
            made += 1
        cost = (time.process_time() - processor) / made
        if sampler is None:
            return None, cost
        sampler.stop()
        free, held = sampler.count(0), sampler.count(1)
        # A signal that is pending may arrive later: its function stays in memory with this process.
        return held / max(1, held + free), cost


def serve(directory: str, arguments: list[str]) -> None:
    """Answer requests of the parent, one JSON value a line."""
    if directory:
        sys.meta_path.insert(0, Version(directory))
    data, name, task, number, parts = arguments
    passes = Passes(data, name, task, (int(number), int(parts)))
    try:
        for line in sys.stdin:
            request = json.loads(line)
            answers: dict[str, Callable[..., object]] = {
                "pass": lambda threads: passes.make(threads),
                "passes_for": lambda seconds: passes_for(passes, seconds),
                "sampled": lambda seconds: sampled_share(passes, seconds),
                "gil": lambda seconds: count_beside(passes, seconds),
                "count": lambda seconds: count_for(seconds),
                "tasks": lambda threads: long_tasks(passes, threads),
            }
            print(json.dumps(answers[request[0]](*request[1:])), flush=True)
    finally:
        passes.close()


def passes_for(passes: Passes, seconds: float) -> int:
    """Make passes on one thread for some seconds; return their number."""
    number, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        passes.make(1)
        number += 1
    return number


def count_beside(passes: Passes, seconds: float) -> tuple[float, float]:
    """Count beside a thread that makes passes: counts of a second, passes of a second."""
    stop, times = threading.Event(), [0.0]

    def read() -> None:
        while not stop.is_set():
            passes.make(1)
            times.append(time.perf_counter())

    sys.setswitchinterval(1e-4)
    reader = threading.Thread(target=read)
    times[0] = time.perf_counter()
    reader.start()
    rate = count_for(seconds)
    end = time.perf_counter()
    stop.set()
    reader.join(_PATIENCE)
    sys.setswitchinterval(5e-3)
    # The last pass is counted by the share of it that was made while the other thread counted.
    last = (end - times[-2]) / (times[-1] - times[-2])
    return rate, (len(times) - 2 + min(1.0, last)) / (end - times[0])


def long_tasks(passes: Passes, threads: int) -> int:
    """Count the tasks of a pass that are not over at once."""
    from dask.callbacks import Callback

    starts: dict[object, float] = {}
    long: list[object] = []

    def after(key: Any, *_: object) -> None:
        if time.perf_counter() - starts[key] > _LONG:
            long.append(key)

    passes.make(threads)
    with Callback(pretask=lambda key, *_: starts.__setitem__(key, time.perf_counter()), posttask=after):
        passes.make(threads)
    return len(long)


class Child:
    """A process that makes passes with one version."""

    def __init__(self, directory: str, prefix: Sequence[str], *arguments: object) -> None:
        command = [*prefix, sys.executable, __file__, "--serve", directory, *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *request: object) -> None:
        """Send a request."""
        pipe: IO[str] = self._process.stdin  # type: ignore[assignment]
        pipe.write(json.dumps(request) + "\n")
        pipe.flush()

    def answer(self) -> Any:
        """Return the answer to the last request."""
        pipe: IO[str] = self._process.stdout  # type: ignore[assignment]
        line = pipe.readline()
        if not line:
            raise ChildProcessError(f"a process of the meter ended with status {self._process.wait(_PATIENCE)}")
        return json.loads(line)

    def call(self, *request: object) -> Any:
        """Send a request and return its answer."""
        self.ask(*request)
        return self.answer()

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait(_PATIENCE)


@contextlib.contextmanager
def children(
    directory: str, arguments: Sequence[object], number: int = 1, prefix: Sequence[str] = ()
) -> Iterator[list[Child]]:
    """Start processes, each with its part of the shards."""
    started = [Child(directory, prefix, *arguments, part, number) for part in range(number)]
    try:
        yield started
    finally:
        for child in started:
            child.close()


def measure_gil(directory: str, arguments: Sequence[object], seconds: float, turns: int) -> dict[str, Any]:
    """Measure the share of the processor time of one thread for which it holds the GIL."""
    with children(directory, arguments) as [child]:
        samples = [child.call("sampled", seconds) for _ in range(turns)]
    shares, costs = zip(*samples, strict=True)
    found = {"cpu": statistics.median(costs)}
    return found if None in shares else {"gil": statistics.median(shares)} | found


def measure_counted(directory: str, arguments: Sequence[object], seconds: float, turns: int) -> dict[str, Any]:
    """Measure the same by a counting thread."""
    shares = []
    with children(directory, arguments) as [counting], children(directory, arguments) as [other]:
        _, cost = counting.call("sampled", 0)
        other.call("pass", 1)
        for _ in range(turns):
            other.ask("passes_for", seconds + 0.5)
            time.sleep(0.2)
            beside = counting.call("count", seconds)
            other.answer()
            rate, passes = counting.call("gil", seconds)
            shares.append((1 - rate / beside) / passes / cost)
    return {"counted": statistics.median(shares)}


def measure_tasks(directory: str, arguments: Sequence[object], threads: int) -> dict[str, Any]:
    """Count the tasks of a pass."""
    with children(directory, arguments) as [child]:
        tasks = child.call("tasks", threads)
    return {"tasks": tasks, "tasks_of_a_thread": tasks / threads}


def measure_calls(directory: str, arguments: Sequence[object], threads: Sequence[int]) -> dict[str, Any]:
    """Count system calls of one pass, as the difference of runs with five passes and with one."""
    if shutil.which("strace") is None:
        return {}
    found: dict[str, Any] = {}
    for number in threads:
        counts: list[dict[str, int]] = []
        for passes in (1, 5):
            with tempfile.NamedTemporaryFile("r", prefix="cores-", suffix=".strace") as summary:
                prefix = ["strace", "-f", "-c", "-o", summary.name, "-e", f"trace=futex,{','.join(MAPPING_CALLS)}"]
                with children(directory, arguments, prefix=prefix) as [child]:
                    for _ in range(passes):
                        child.call("pass", number)
                counts.append(calls_of(summary.read()))
        first, second = ({"futex": calls.pop("futex", 0), "mappings": sum(calls.values())} for calls in counts)
        found |= {f"{call}_{number}": max(0, second[call] - first[call]) // 4 for call in first}
    return found


def calls_of(summary: str) -> dict[str, int]:
    """Return the number of each system call in a summary of strace."""
    calls = {}
    for line in summary.splitlines():
        fields = line.split()
        if fields and fields[-1] in ("futex", *MAPPING_CALLS):
            calls[fields[-1]] = int(fields[3])
    return calls


def serve_files(directory: str) -> None:
    """Serve files of a directory with ranges, each answer after some time; print the address."""
    import http.server

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            if not self._path().is_file():
                self.send_error(404)
                return
            self._answer(b"", self._path().stat().st_size)

        def do_GET(self) -> None:
            if not self._path().is_file():
                self.send_error(404)
                return
            with self._path().open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
                start, stop = int(first), min(int(last or size - 1) + 1, size)
                file.seek(start)
                self._answer(file.read(stop - start), size, f"bytes {start}-{stop - 1}/{size}")

        def _path(self) -> Path:
            return Path(directory, self.path.removeprefix("/shards/"))

        def _answer(self, body: bytes, size: int, found: str = "") -> None:
            time.sleep(_LATENCY)
            self.send_response(206 if found else 200)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(len(body) if found else size))
            self.send_header("ETag", '"unchanged"')
            if found:
                self.send_header("Content-Range", found)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}/shards", "{}", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


def serve_s3(directory: str) -> None:
    """Serve files of a directory as objects of an S3 service; print the address, and the options of s3fs."""
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {"endpoint_url": f"http://{host}:{port}", "key": "none", "secret": "none"}
    fs = s3fs.S3FileSystem(**options)
    fs.mkdir("cores")
    for path in Path(directory).iterdir():
        fs.put_file(str(path), f"cores/{path.name}")
    print("s3://cores", json.dumps(options), flush=True)
    sys.stdin.read()
    server.stop()


SERVERS: dict[str, Callable[[str], None]] = {"http": serve_files, "s3": serve_s3}


@contextlib.contextmanager
def serving(kind: str, paths: Sequence[Path]) -> Iterator[str]:
    """Start a server of files in a process; return its address and options."""
    with tempfile.TemporaryDirectory(prefix="cores-") as directory:
        for path in paths:
            Path(directory, path.name).symlink_to(path.absolute())
        command = [sys.executable, __file__, "--serve-files", kind, directory]
        # moto prints each request.
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=quiet, text=True)
        try:
            address = process.stdout.readline().strip()  # type: ignore[union-attr]
            if not address:
                raise ChildProcessError(f"the server {kind} did not start")
            yield address
        finally:
            process.stdin.close()  # type: ignore[union-attr]
            process.wait(_PATIENCE)


def measure_remote(directory: str, arguments: Sequence[Any], seconds: float, turns: int) -> dict[str, Any]:
    """Measure passes over shards on servers, with one thread and with many."""
    data, name, task = arguments
    found: dict[str, Any] = {}
    for kind in SERVERS:
        with (
            serving(kind, shards_of(data, name)) as address,
            children(directory, (f"{data} {address}", name, task)) as [child],
        ):
            share, _ = child.call("sampled", seconds)
            times = {
                threads: statistics.median([child.call("pass", threads) for _ in range(turns)])
                for threads in (1, _READERS)
            }
        found |= {} if share is None else {f"gil_{kind}": share}
        found |= {f"seconds_{kind}_{threads}": value for threads, value in times.items()}
        found[f"speed_{kind}_{_READERS}"] = times[1] / times[_READERS]
    return found


def measure_speed(
    versions: dict[str, str], arguments: Sequence[object], threads: Sequence[int], turns: int
) -> dict[str, dict[str, Any]]:
    """Measure seconds of a pass by threads of one process, and by processes of one thread; versions alternate."""
    found: dict[str, dict[str, list[float]]] = {version: {} for version in versions}
    for number in threads:
        for processes in sorted({1, number}):
            with contextlib.ExitStack() as stack:
                started = {
                    version: stack.enter_context(children(directory, arguments, processes))
                    for version, directory in versions.items()
                }
                for turn in range(1 + turns):
                    for version, group in started.items():
                        start = time.perf_counter()
                        for child in group:
                            child.ask("pass", number if processes == 1 else 1)
                        for child in group:
                            child.answer()
                        if turn:  # the first pass imports, allocates and fills the page cache
                            key = f"threads_{number}" if processes == 1 else f"processes_{number}"
                            found[version].setdefault(key, []).append(time.perf_counter() - start)
    medians = {version: {key: statistics.median(values) for key, values in of.items()} for version, of in found.items()}
    return {
        version: {f"seconds_{key}": value for key, value in of.items()}
        | {f"speed_{key}": of["threads_1"] / value for key, value in of.items() if "threads_1" in of}
        for version, of in medians.items()
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    """Format results: a row for each set, task and version."""
    columns = list(dict.fromkeys(key for result in results for key in result))
    rows = [columns, *([_cell(result.get(column)) for column in columns] for result in results)]
    widths = [max(len(row[number]) for row in rows) for number in range(len(columns))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return "-" if value is None else str(value)


# Text, which is as far from white as from black, and colours that are legible on both.
_GRAY = "#777777"
_COLORS = {"tabular": "#c2702f", "vectors": "#2f8f5b", "images_raw": "#4a7fc1", "tokens": "#a85fb0"}
_CURRENT = "now"


def speeds_of(result: dict[str, Any], kind: str) -> list[tuple[int, float]]:
    """Return numbers of threads or processes, and how many times as fast they are as one thread."""
    prefix = f"speed_{kind}_"
    return sorted((int(key.removeprefix(prefix)), value) for key, value in result.items() if key.startswith(prefix))


def draw(results: Path, chart: Path) -> None:
    """Draw how many times as fast as one thread others are: a panel for each number of cores and task."""
    import matplotlib as mpl

    mpl.use("agg")
    # Text stays text, which makes the file small.
    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "cores", "font.size": 9}
    style |= dict.fromkeys(("text.color", "xtick.color", "ytick.color"), _GRAY)
    mpl.rcParams.update(style | dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "axes.titlecolor"), _GRAY))
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    figures = json.loads(results.read_text())["results"]
    shares = [figure for figure in figures if "gil" in figure]
    figures = [figure for figure in figures if figure not in shares]
    panels = list(dict.fromkeys((figure["cores"], figure["task"]) for figure in figures))
    width = len(panels) + 1
    drawn, axes = pyplot.subplots(1, width, figsize=(2.4 * width, 2.7), layout="constrained", squeeze=False)
    for panel, (cores, task) in zip(axes[0][:-1], panels, strict=True):
        for figure in (each for each in figures if (each["cores"], each["task"]) == (cores, task)):
            color, now = _COLORS[figure["set"]], figure["version"] == _CURRENT
            threads, processes = speeds_of(figure, "threads"), speeds_of(figure, "processes")
            # A single number of threads is a dot: nothing was measured between it and one thread.
            several = threads if len(threads) > 2 or cores == 2 else threads[1:]
            panel.plot(*zip(*several, strict=True), "o-" if now else ".--", color=color, markersize=5 if now else 4)
            if processes:
                panel.plot(*zip(*processes, strict=True), "_", color=color, markersize=14, markeredgewidth=2)
        panel.plot([1, cores], [1, cores], ":", color=_GRAY, linewidth=0.8)
        ticks = [1 << k for k in range(cores.bit_length())]
        panel.set_xscale("log", base=2)
        panel.set_xticks(ticks, map(str, ticks))
        panel.set_ylim(0, cores if cores < 16 else 13)
        panel.set_title(f"{task}, {cores} cores", fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
    draw_shares(axes[0][-1], shares)
    axes[0][0].set_ylabel("times one thread")
    lines = [Line2D([], [], color=color, label=name) for name, color in _COLORS.items()]
    lines += [
        Line2D([], [], color=_GRAY, linestyle="-", marker="o", label="threads"),
        Line2D([], [], color=_GRAY, linestyle="--", marker=".", label="threads, before"),
        Line2D([], [], color=_GRAY, linestyle="", marker="_", label="processes of one thread"),
    ]
    drawn.legend(handles=lines, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    drawn.savefig(chart, transparent=True, metadata={"Date": None})


def draw_shares(panel: Any, figures: Sequence[dict[str, Any]]) -> None:
    """Draw the share of the time for which one thread holds the GIL, of each set and task; outlines are from before."""
    places = dict.fromkeys((figure["task"], figure["set"]) for figure in figures)
    for place, number in zip(places, range(len(places), 0, -1), strict=True):
        for figure in (each for each in figures if (each["task"], each["set"]) == place):
            color, share = _COLORS[figure["set"]], 100 * figure["gil"]
            if figure["version"] == _CURRENT:
                panel.barh(number, share, color=color, height=0.6)
            else:
                panel.barh(number, share, facecolor="none", edgecolor=color, height=0.6, linestyle="--")
    panel.set_yticks([])
    panel.set_xlabel("%")
    panel.set_title(f"GIL held by one thread, {' and '.join(dict.fromkeys(task for task, _ in places))}", fontsize=9)
    panel.spines[["top", "right"]].set_visible(False)


def make(data: Path, names: Sequence[str], scale: float) -> None:
    """Write the sets that are missing."""
    sets = dict.fromkeys(name.partition(".")[0] for name in names)
    missing = [name for name in sets if not shards_of(data, name)]
    script = str(Path(__file__).with_name("make_data.py"))
    started = [
        subprocess.Popen([sys.executable, script, str(data), name, "--scale", str(scale)], stdout=subprocess.DEVNULL)
        for name in missing
    ]
    for process in started:
        if process.wait(3600):
            raise ChildProcessError("make_data.py failed")


def main() -> None:
    """Measure what the command line names, and print a table."""
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], sys.argv[3:])
        return
    if sys.argv[1:2] == ["--serve-files"]:
        SERVERS[sys.argv[2]](sys.argv[3])
        return
    if sys.argv[1:2] == ["--draw"]:
        draw(Path(sys.argv[2]), Path(sys.argv[3]))
        return
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="*", default=list(SETS), metavar="NAME")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--versions", nargs="+", default=["installed"], metavar="NAME[=DIRECTORY]")
    parser.add_argument("--threads", nargs="+", type=int, help="default: 1, 2, 4, … all cores")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one turn of the part gil")
    parser.add_argument("--make", type=float, metavar="SCALE", help="write missing sets, of this fraction of 475 MB")
    parser.add_argument("--json", type=Path, help="file for the results")
    arguments = parser.parse_args()
    if arguments.make is not None:
        make(arguments.data, arguments.names, arguments.make)
    threads = arguments.threads or sorted({cores, *(1 << k for k in range(cores.bit_length()) if 1 << k < cores)})
    versions = {name: directory for name, _, directory in (each.partition("=") for each in arguments.versions)}
    results: list[dict[str, Any]] = []
    for name in arguments.names:
        for task in arguments.tasks:
            work = (arguments.data, name, task)
            speed = measure_speed(versions, work, threads, arguments.turns) if "speed" in arguments.parts else {}
            for version, directory in versions.items():
                result = {"set": name, "task": task, "version": version, "cores": cores}
                if "gil" in arguments.parts:
                    result |= measure_gil(directory, work, arguments.seconds, arguments.turns)
                if "counted" in arguments.parts:
                    result |= measure_counted(directory, work, arguments.seconds, arguments.turns)
                if "tasks" in arguments.parts and task != "batches":
                    result |= measure_tasks(directory, work, max(threads))
                if "calls" in arguments.parts:
                    result |= measure_calls(directory, work, (2, 8))
                if "remote" in arguments.parts:
                    result |= measure_remote(directory, work, arguments.seconds, arguments.turns)
                results.append(result | speed.get(version, {}))
                print(table(results[-1:]), flush=True)
            if arguments.json is not None:
                arguments.json.write_text(json.dumps({"cores": cores, "results": results}, indent=1))
    print(table(results))


if __name__ == "__main__":
    main()
