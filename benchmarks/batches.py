"""Compare shuffled, padded batches of this library with pipelines of TensorFlow: speed and peak memory.

    python benchmarks/batches.py DATA [vectors tokens jpeg] --tensorflow TENSORFLOW_PYTHON [--epochs 20]

DATA is a directory that `make_data.py` wrote. Both sides read the same files on the same cores, deliver NumPy arrays,
and pad `tokens` to the longest row of each batch. The mixing window has as many rows as TensorFlow's shuffle buffer.
Each run is a process of its own: TensorFlow's two pipelines (`peers.py batches`) and this library alternate. A
time is the median of all epochs after an untimed first one; the ratios, of time and of processor time, are to the
better pipeline of TensorFlow. Images of `jpeg` are decoded at half their size and resized to 112 by 112 pixels.

`--run gather` prints the processor time of gathering the rows of a batch, in the thread that does so for all batches.

`--epochs` is the number of epochs of a last run of this library, whose table shows the resident memory after each
quarter of them.

    python benchmarks/batches.py DATA --windows 1000000 [--batches 20000]

writes episodes with this number of steps to DATA. It shows the resident memory after each quarter of the batches:
windows of one data set, then of a mixture of two.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from harness import HERE, resident, run

# Shuffling of this library, by the name of the pipeline.
OURS = {"window": "window", "full": "full", "in order": False}
HEADER = "data        pipeline                   records     records/s   peak RSS MB   CPU us   ratio   of CPU"


def measure(arguments: argparse.Namespace) -> None:
    """Time epochs of this library, and print a line of JSON."""
    from pipelines import FEATURES

    import dask_tfrecord as dtf

    features = dict(FEATURES[arguments.name])
    if arguments.name == "jpeg":
        features["image"] = dtf.ImageFeature((112, 112, 3), size=(112, 112), fast=True, reduced=True)
    ds = dtf.read_tfrecord(str(arguments.data / f"{arguments.name}-*.tfrecord"), features)
    shuffle: Any = OURS[arguments.run]
    options: dict[str, Any] = {"pad": {"tokens": None} if arguments.name == "tokens" else None, "seed": 0}
    if shuffle == "window":
        options["window"] = arguments.buffer
    seconds, used, memory, count = [], [], [], 0
    with ds.batches(arguments.batch, shuffle=shuffle, epochs=arguments.epochs, **options) as batches:
        start, before, epoch = time.perf_counter(), time.process_time(), 0
        for batch in batches:
            count += len(batch["label"])
            if batches.epoch > epoch:
                epoch = batches.epoch
                seconds.append(time.perf_counter() - start)
                used.append(time.process_time() - before)
                memory.append(resident("VmRSS"))
                start, before = time.perf_counter(), time.process_time()
    report = {"records": count // epoch, "seconds": seconds[1:], "processor": used[1:], "memory": memory}
    print(json.dumps(report))


def gathering(arguments: argparse.Namespace) -> None:
    """Print the processor time of gathering the rows of a batch, which one thread does for all batches."""
    from pipelines import FEATURES

    import dask_tfrecord as dtf
    from dask_tfrecord.extras.batches.mixing import BatchMixer

    gather, times = BatchMixer._gather, list[float]()

    def timed(*given: Any) -> Any:
        found = []
        for _ in range(8):
            start = time.thread_time()
            made = gather(*given)
            found.append(time.thread_time() - start)
        times.append(min(found))
        return made

    BatchMixer._gather = timed  # type: ignore[assignment, method-assign]
    for name in arguments.names:
        ds = dtf.read_tfrecord(str(arguments.data / f"{name}-*.tfrecord"), FEATURES[name])
        pad = {"tokens": None} if name == "tokens" else None
        for pipeline, shuffle in OURS.items():
            times.clear()
            window = arguments.buffer if shuffle == "window" else None
            for _ in ds.batches(arguments.batch, shuffle=shuffle, seed=0, pad=pad, window=window):  # type: ignore[arg-type]
                pass
            print(f"{name:12}{pipeline:24}{statistics.median(times) * 1e6:>8.0f} us a batch", flush=True)


def compare(name: str, arguments: argparse.Namespace) -> None:
    """Alternate between both libraries on one data set, and print its lines."""
    common = ["--batch", str(arguments.batch), "--buffer", str(arguments.buffer)]
    ours = [sys.executable, __file__, str(arguments.data), name, *common, "--epochs", "4", "--run"]
    theirs = [arguments.tensorflow, str(HERE / "peers.py"), "batches", str(arguments.data), name]
    results: dict[str, tuple[dict[str, Any], int]] = {}
    for mode in ("parse-batch", "parse-each"):
        results[f"tensorflow {mode}"] = run([*theirs, mode, *common])
        for pipeline in OURS:
            report, peak = run([*ours, pipeline])
            known = results.setdefault(pipeline, (report, peak))
            if known[0] is not report:
                known[0]["seconds"] += report["seconds"]
                known[0]["processor"] += report["processor"]
    if len({report["records"] for report, _ in results.values()}) > 1:
        raise SystemExit(f"{name}: the pipelines disagree on the records: {results}")
    rates = {key: report["records"] / statistics.median(report["seconds"]) for key, (report, _) in results.items()}
    cost = {key: statistics.median(report["processor"]) / report["records"] for key, (report, _) in results.items()}
    best = max(rate for key, rate in rates.items() if key.startswith("tensorflow"))
    least = min(used for key, used in cost.items() if key.startswith("tensorflow"))
    for key, (report, peak) in results.items():
        line = (
            f"{name:12}{key:24}{report['records']:>10,}{rates[key]:>14,.0f}{peak / 1e6:>14,.0f}{cost[key] * 1e6:>9.2f}"
        )
        ratios = f"{rates[key] / best:>8.2f}{least / cost[key]:>9.2f}"
        print(line if key.startswith("tensorflow") else f"{line}{ratios}", flush=True)


def flat(name: str, arguments: argparse.Namespace) -> None:
    """Print the resident memory after each quarter of many epochs."""
    command = [sys.executable, __file__, str(arguments.data), name, "--batch", str(arguments.batch)]
    for pipeline in OURS:
        report, peak = run([*command, "--epochs", str(arguments.epochs), "--run", pipeline])
        memory = report["memory"]
        quarters = [memory[max(len(memory) * part // 4 - 1, 0)] / 1e6 for part in range(1, 5)]
        shown = "".join(f"{each:>8,.0f}" for each in quarters)
        print(f"{name:12}{pipeline:24}{shown}   peak {peak / 1e6:,.0f} MB", flush=True)


# Features of generated episodes, and steps of the longest one.
STEPS = {"steps/state": 8, "steps/action": 7, "steps/embedding": 32}
MOST_STEPS = 400


def write_episodes(arguments: argparse.Namespace) -> None:
    """Write episodes of different lengths with `arguments.windows` steps in all."""
    import numpy as np

    import dask_tfrecord as dtf

    rng = np.random.default_rng(0)
    lengths = rng.integers(MOST_STEPS // 4, MOST_STEPS, 4 * arguments.windows // MOST_STEPS)
    ends = np.cumsum(lengths)
    ends = np.append(ends[ends < arguments.windows], arguments.windows)
    arrays = {
        name: np.split(rng.random((arguments.windows, size), np.float32), ends[:-1]) for name, size in STEPS.items()
    }
    features = {name: dtf.VarLenFeature("float32", shape=(-1, size)) for name, size in STEPS.items()}
    files = arguments.data / "episodes-{shard}.tfrecord"
    dtf.to_tfrecord(arrays, files, features=features, records_per_shard=256, mode="w")


def measure_windows(arguments: argparse.Namespace) -> None:
    """Make batches of windows, and print the resident memory after each quarter."""
    import dask_tfrecord as dtf

    features = {name: dtf.VarLenFeature("float32", shape=(-1, size)) for name, size in STEPS.items()}
    episodes = dtf.read_tfrecord(str(arguments.data / "episodes-*.tfrecord"), features)
    data: Any = episodes.windows("steps", past=1, future=7)
    if arguments.run == "mixture":
        halves = [episodes.rows[half::2].windows("steps", past=1, future=7) for half in (0, 1)]
        data = dtf.sample_from_datasets(halves, [0.3, 0.7], seed=0, stop_on_empty_dataset=True)
    memory, start = [], time.perf_counter()
    with data.batches(arguments.batch, shuffle="window", seed=0, epochs=None) as batches:
        for made, _ in enumerate(batches, 1):
            if made % (arguments.batches // 4) == 0:
                memory.append(resident("VmRSS"))
            if made == arguments.batches:
                break
    print(json.dumps({"memory": memory, "seconds": time.perf_counter() - start}))


def windows(arguments: argparse.Namespace) -> None:
    """Print the resident memory after each quarter of many batches of windows."""
    command = [sys.executable, __file__, str(arguments.data), "--batch", str(arguments.batch)]
    common = ["--windows", str(arguments.windows), "--batches", str(arguments.batches)]
    run([*command, *common, "--run", "write"])
    for kind in ("windows", "mixture"):
        report, peak = run([*command, *common, "--run", kind])
        shown = "".join(f"{each / 1e6:>8,.0f}" for each in report["memory"])
        rate = arguments.batches / report["seconds"]
        print(f"{kind:36}{shown}   peak {peak / 1e6:,.0f} MB, {rate:,.0f} batches/s", flush=True)


def main() -> None:
    """Run the benchmarks of the command line and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="directory that make_data.py wrote to")
    parser.add_argument(
        "names", nargs="*", default=["vectors", "tokens"], help="of vectors, tokens, jpeg; default: the first two"
    )
    parser.add_argument("--tensorflow", help="python of an environment with tensorflow-cpu")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--buffer", type=int, default=16_384, help="rows of the window and of TensorFlow's buffer")
    parser.add_argument("--cores", type=int, default=2, help="cores that each side may use")
    parser.add_argument("--epochs", type=int, default=20, help="epochs of the table of memory; 0 for none")
    parser.add_argument("--windows", type=int, default=0, help="steps of generated episodes; 0 for the other tables")
    parser.add_argument("--batches", type=int, default=20_000, help="batches of windows")
    parser.add_argument("--run", choices=[*OURS, "gather", "write", "windows", "mixture"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run == "write":
        write_episodes(arguments)
        print("{}")
        return
    if arguments.run == "gather":
        gathering(arguments)
        return
    if arguments.run in ("windows", "mixture"):
        measure_windows(arguments)
        return
    if arguments.run:
        (arguments.name,) = arguments.names
        measure(arguments)
        return
    if hasattr(os, "sched_setaffinity"):
        # Children inherit it, and TensorFlow sizes its thread pools by it.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    if arguments.windows:
        total = f"{arguments.batches:,} batches of {arguments.batch} windows of {arguments.windows:,} steps"
        print(f"\nResident memory in MB after each quarter of {total}")
        windows(arguments)
        return
    if arguments.tensorflow:
        print(f"\nShuffled, padded batches of {arguments.batch}, {arguments.cores} cores\n{HEADER}")
        for name in arguments.names:
            compare(name, arguments)
    if arguments.epochs:
        print(f"\nResident memory in MB after each quarter of {arguments.epochs} epochs")
        for name in arguments.names:
            flat(name, arguments)


if __name__ == "__main__":
    main()
