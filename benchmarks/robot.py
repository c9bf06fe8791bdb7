"""Compare batches of DROID-like episodes with those of openpi's loader: values, speed, and memory over a long run.

    python benchmarks/robot.py write DATA [--episodes 2000]
    python benchmarks/robot.py compare DATA --peer PEER_PYTHON --openpi REPOSITORY --dlimp REPOSITORY
    python benchmarks/robot.py speed DATA --peer PEER_PYTHON --openpi REPOSITORY --dlimp REPOSITORY
    python benchmarks/robot.py memory DATA [--batches 20000] [--chart memory.svg]

`PEER_PYTHON` is the interpreter of an environment with `tensorflow-cpu`, `tensorflow-datasets`, `fsspec`, `filelock`
and `tqdm-loggable`. The repositories are git clones of Physical-Intelligence/openpi and kvablack/dlimp, with or without
a work tree. `peers.py droid` runs the loader of their newest commit without a change.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from harness import HERE, dispatch, parser_of, resident, run, spread
from numpy.typing import NDArray

import dask_tfrecord as dtf

OBSERVATION, ACTIONS = "steps/observation", "steps/action_dict"
CAMERAS = [f"{OBSERVATION}/{name}_left" for name in ("exterior_image_1", "exterior_image_2", "wrist_image")]
INSTRUCTIONS = ["steps/language_instruction", "steps/language_instruction_2", "steps/language_instruction_3"]
KEY = ["episode_metadata/recording_folderpath", "episode_metadata/file_path"]
NUMBERS = {
    **{f"{OBSERVATION}/{name}": size for name, size in {"joint_position": 7, "gripper_position": 1}.items()},
    f"{OBSERVATION}/cartesian_position": 6,
    **{f"{ACTIONS}/{name}_position": size for name, size in {"joint": 7, "gripper": 1, "cartesian": 6}.items()},
    **{f"{ACTIONS}/{name}_velocity": size for name, size in {"joint": 7, "gripper": 1, "cartesian": 6}.items()},
    "steps/action": 7,
}
STATE = [f"{OBSERVATION}/joint_position", f"{OBSERVATION}/gripper_position"]
CHUNKS = [f"{ACTIONS}/joint_position", f"{ACTIONS}/gripper_position"]
STEPS: dict[str, Any] = {
    **{name: dtf.ImageFeature((-1, 180, 320, 3)) for name in CAMERAS},
    **{name: dtf.VarLenFeature("float64", shape=(-1, size)) for name, size in NUMBERS.items()},
    **dict.fromkeys(INSTRUCTIONS, dtf.TextFeature(count=-1)),
    **{f"steps/{name}": dtf.VarLenFeature("bool") for name in ("is_first", "is_last", "is_terminal")},
}
FEATURES: dict[str, Any] = {**STEPS, **dict.fromkeys(KEY, dtf.TextFeature())}
# Data sets, their shares of the episodes, and their weights.
SETS = {"droid": (0.75, 0.7), "kitchen": (0.25, 0.3)}
VERSION, AHEAD = "1.0.1", 16
# Ways of resizing. Only the whole of 180 by 320 pixels covers 224 by 224.
WAYS: dict[str, dict[str, Any]] = {
    "stored": {},
    "bilinear": {"size": (224, 224)},
    "lanczos": {"size": (224, 224), "method": "lanczos3", "antialias": True},
    "small": {"size": (84, 84)},
    "reduced": {"size": (84, 84), "reduced": True},
}


def schema_of(features: dict[str, Any]) -> dtf.Schema:
    """Return the schema of episodes."""
    return dtf.Schema(features, groups={"steps": [name for name in features if name.startswith("steps/")]})


def pictures(number: int) -> list[bytes]:
    """Return JPEG files with the sizes of those of DROID: sums of noise at several scales."""
    from PIL import Image

    rng, files = np.random.default_rng(0), []
    for _ in range(number):
        pixels = np.full((180, 320, 3), 120.0)
        for scale in (60, 20, 6, 2, 1):
            coarse = Image.fromarray(rng.integers(0, 256, (180 // scale + 1, 320 // scale + 1, 3), np.uint8))
            pixels += (np.asarray(coarse.resize((320, 180), Image.Resampling.BICUBIC), float) - 128) * (scale**0.5 / 6)
        file = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
        files.append(file.getvalue())
    return files


def lengths_of(numbers: NDArray[np.int64]) -> list[int]:
    """Return the number of steps of each episode: 40 to 160."""
    return [40 + number * 7919 % 121 for number in numbers.tolist()]


def file_of(number: int) -> str:
    """Return the name of the file that an episode was made from; every fifth one is a failure."""
    return f"/raw/{'failure' if number % 5 == 4 else 'success'}/{number}"


def episodes_of(blocks: dict[str, Any], files: list[bytes]) -> dict[str, Any]:
    """Return the features of episodes, which pause for four of twenty steps."""
    numbers = blocks["number"].tolist()
    lengths = lengths_of(blocks["number"])
    splits = np.append(0, np.cumsum(lengths))
    steps = np.concatenate([np.arange(length) for length in lengths] or [np.zeros(0, int)])
    episode = np.repeat(np.array(numbers, int), lengths)
    moved = np.concatenate([(np.arange(length) % 20 < 16).cumsum() / 50 for length in lengths] or [np.zeros(0)])
    pool = np.array(files, object)
    columns: dict[str, Any] = {}
    for place, name in enumerate(CAMERAS):
        columns[name] = pool[(episode * 31 + place * 97 + steps) % len(files)]
    for place, (name, size) in enumerate(NUMBERS.items()):
        values = moved[:, None] + np.sin(episode[:, None] + place + np.arange(size))
        # The floats of an Example are float32.
        columns[name] = values.astype(np.float32).astype(np.float64)
    for place, name in enumerate(INSTRUCTIONS):
        columns[name] = np.array([f"task {number % 50} in words {place}" for number in episode.tolist()], "T")
    last = steps == np.repeat(np.array(lengths, int), lengths) - 1
    columns |= {"steps/is_first": steps == 0, "steps/is_last": last, "steps/is_terminal": last}
    rows: dict[str, Any] = {name: dtf.RaggedBlock(values, splits) for name, values in columns.items()}
    rows[KEY[0]] = np.array([f"/recordings/{number}" for number in numbers], "T")
    rows[KEY[1]] = np.array([file_of(number) for number in numbers], "T")
    return rows


def write() -> None:
    """Write the data sets in the form of RLDS, with the features and image sizes of DROID, and the ranges of motion."""
    parser = parser_of(write)
    parser.add_argument("data", type=Path)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--pictures", type=int, default=1024, help="distinct images")
    arguments = parser.parse_args()
    files, first = pictures(arguments.pictures), 0
    for name, (share, _) in SETS.items():
        numbers = np.arange(first, first + round(arguments.episodes * share))
        first += len(numbers)
        write_set(arguments.data, name, numbers, files)


def write_set(data: Path, name: str, numbers: NDArray[np.int64], files: list[bytes]) -> None:
    """Write one data set, without encoding its images again: they are written as bytes, and described as images."""
    stored = {**FEATURES, **dict.fromkeys(CAMERAS, dtf.VarLenFeature("bytes"))}
    chunks = dtf.Dataset.from_arrays({"number": da.from_array(numbers, chunks=10)})
    episodes = chunks.map_blocks(partial(episodes_of, files=files), schema_of(stored))
    described = {"name": name, "version": VERSION, "split": "train"}
    folder = data / name / VERSION
    episodes.to_tfrecord(folder, records_per_shard=20, tfds=described, mode="w")
    with tempfile.TemporaryDirectory() as other:
        rows = episodes_of({"number": numbers[:1]}, files)
        pixels = np.zeros((len(rows[CAMERAS[0]].values), 180, 320, 3), np.uint8)
        rows |= {camera: [pixels] for camera in CAMERAS}
        encoding = dict.fromkeys(CAMERAS, "jpeg")
        dtf.to_tfrecord(rows, Path(other, "one"), features=schema_of(FEATURES), encoding=encoding, tfds=described)
        text = Path(other, "one", "features.json").read_text()
    # Steps of RLDS are a data set within a record, which TFDS stores as it does a sequence.
    (folder / "features.json").write_text(text.replace("sequence_feature.Sequence", "dataset_feature.Dataset"))
    ranges = {
        f"/recordings/{number}--{file_of(number)}": [[start, min(start + 16, length)] for start in range(0, length, 20)]
        for number, length in zip(numbers.tolist(), lengths_of(numbers), strict=True)
    }
    (data / f"{name}.json").write_text(json.dumps(ranges))


def succeeded(blocks: dict[str, Any]) -> NDArray[np.bool_]:
    """Keep the episodes whose file is that of a success."""
    return np.array(["success" in path for path in blocks[KEY[1]]], bool)


def within(ranges: Mapping[str, Any]) -> Callable[[dict[str, Any]], NDArray[np.bool_]]:
    """Return a function that keeps the steps in the ranges of their episode, as openpi does."""
    kept = {key: [range(*pair) for pair in pairs] for key, pairs in ranges.items()}

    def mask(blocks: dict[str, Any]) -> NDArray[np.bool_]:
        items = zip(*(blocks[name].tolist() for name in (*KEY, "step")), strict=True)
        return np.array([any(n in each for each in kept.get(f"{a}--{b}", ())) for a, b, n in items], bool)

    return mask


def open_mixture(data: Path, way: str, cameras: list[str]) -> tuple[list[dtf.Dataset], Any]:
    """Open the frames that openpi trains on: of both data sets, and their mixture."""
    # TensorFlow decodes by the fast DCT.
    image = dtf.ImageFeature((-1, *WAYS[way].get("size", (180, 320)), 3), fast=True, **WAYS[way])
    parts = []
    for name in SETS:
        features = {**dtf.Schema.read(data / name / VERSION / "features.json"), **dict.fromkeys(cameras, image)}
        episodes = dtf.read_tfrecord(data / name / VERSION, features, split="train").where(succeeded, columns=KEY[1:])
        around = [*cameras, *STATE, *INSTRUCTIONS]
        windows = episodes.windows(CHUNKS, future=AHEAD - 1, items=around, repeat=KEY, number="step")
        ranges = json.loads((data / f"{name}.json").read_text())
        parts.append(windows.where(within(ranges), columns=[*KEY, "step"]))
    weights = [weight for _, weight in SETS.values()]
    return parts, dtf.sample_from_datasets(parts, weights, seed=0, stop_on_empty_dataset=True)


def arguments_of_peer(parser: argparse.ArgumentParser) -> None:
    """Add the options of the environment of openpi."""
    parser.add_argument("data", type=Path)
    parser.add_argument("--peer", required=True, help="python of an environment with tensorflow-cpu")
    parser.add_argument("--openpi", required=True, help="git repository of openpi")
    parser.add_argument("--dlimp", required=True, help="git repository of dlimp")


def run_peer(arguments: argparse.Namespace, mode: str, *options: str) -> tuple[dict[str, Any], int]:
    """Run the loader of openpi; return its report and its peak resident memory."""
    weights = json.dumps({name: weight for name, (_, weight) in SETS.items()})
    command = [arguments.peer, str(HERE / "peers.py"), "droid", str(arguments.data), mode, "--version", VERSION]
    repositories = ["--openpi", arguments.openpi, "--dlimp", arguments.dlimp]
    return run([*command, "--weights", weights, *repositories, *options])


def compare() -> None:
    """Compare the frames of openpi with the same frames of this library.

    Keys, actions, state and instructions have to be equal, and no frame may be missing on either side: `--batches` has
    to be enough for all frames. Images are compared by level: as they are stored, resized by TensorFlow's default, and
    by the function of dlimp (Lanczos, antialiased).
    """
    parser = parser_of(compare)
    arguments_of_peer(parser)
    parser.add_argument("--batches", type=int, default=400)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_peer(arguments, "frames", "--out", folder, "--batches", str(arguments.batches), "--buffer", "1")
        theirs = {path.stem: np.load(path, allow_pickle=False) for path in Path(folder).glob("*.npy")}
    for way, suffix in {"stored": "", "bilinear": ".bilinear", "lanczos": ".lanczos"}.items():
        print(compared(theirs, frames_of(arguments.data, way), suffix))


def frames_of(data: Path, way: str) -> dict[str, NDArray[Any]]:
    """Read the frames of both data sets, with the keys of openpi."""
    parts = [part.compute() for part in open_mixture(data, way, CAMERAS)[0]]
    frames = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    keys = zip(frames[KEY[0]], frames[KEY[1]], frames["step"], strict=True)
    return {**frames, "step_id": np.array([f"{folder}--{file}--{step}".encode() for folder, file, step in keys])}


def compared(theirs: dict[str, NDArray[Any]], ours: dict[str, NDArray[Any]], suffix: str) -> str:
    """Compare all columns, and return what was found."""
    order = [np.argsort(frames["step_id"]) for frames in (theirs, ours)]
    theirs, ours = ({n: c[by] for n, c in each.items()} for each, by in zip((theirs, ours), order, strict=True))
    state = {name: ours[f"{OBSERVATION}/{name}"] for name in ("joint_position", "gripper_position")}
    actions = np.concatenate([ours[name] for name in CHUNKS], axis=-1)
    for name, column in {"step_id": ours["step_id"], "actions": actions, **state}.items():
        if not np.array_equal(theirs[name], column):
            raise SystemExit(f"{name} differs")
    prompts = theirs["prompt"].astype(str).astype("T")
    if not np.any([prompts == ours[name] for name in INSTRUCTIONS], axis=0).all():
        raise SystemExit("prompt differs")
    # openpi takes one of both exterior cameras at random.
    exterior = [differences(ours[name], theirs[f"image{suffix}"]) for name in CAMERAS[:2]]
    found = np.concatenate([np.minimum(*exterior), differences(ours[CAMERAS[2]], theirs[f"wrist_image{suffix}"])])
    worst, mean = found.max(axis=0)[1], found.mean(axis=0)[0]
    return f"{len(actions):,} frames; images{suffix}: {mean:.4f} levels apart in the mean, {worst:g} at most"


def differences(ours: NDArray[np.uint8], theirs: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the mean and the largest difference of each image."""
    apart = np.abs(ours.astype(np.int16) - theirs).reshape(len(ours), -1)
    return np.stack([apart.mean(axis=1), apart.max(axis=1)], axis=1)


def measure() -> None:
    """Time batches of this library, and print a line of JSON."""
    parser = parser_of(measure)
    parser.add_argument("data", type=Path)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--buffer", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=100)
    arguments = parser.parse_args()
    mixture = open_mixture(arguments.data, arguments.way, [CAMERAS[0], CAMERAS[2]])[1]
    options: Any = {"shuffle": "window", "window": arguments.buffer, "seed": 0, "epochs": None}
    with mixture.batches(arguments.batch, **options) as batches:
        for _ in range(5):
            next(batches)
        start, used = time.perf_counter(), time.process_time()
        for _ in range(arguments.batches):
            next(batches)
        print(json.dumps({"seconds": time.perf_counter() - start, "processor": time.process_time() - used}))


def speed() -> None:
    """Compare batches per second on `--cores` cores: with images as they are stored, and resized in several `WAYS`.

    Both sides shuffle in a buffer of `--buffer` frames and run alternately, each time in a process of its own.
    """
    parser = parser_of(speed)
    arguments_of_peer(parser)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--buffer", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        # Children inherit it, and TensorFlow sizes its thread pools by it.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    options = [f"--{name}={getattr(arguments, name)}" for name in ("batch", "buffer", "batches")]
    runs: dict[str, list[tuple[dict[str, float], int]]] = {}
    for _ in range(arguments.rounds):
        for way in WAYS:
            ours = [sys.executable, __file__, "measure", str(arguments.data), way, *options]
            runs.setdefault(f"ours {way}", []).append(run(ours))
            if way not in ("small", "reduced"):
                runs.setdefault(f"openpi {way}", []).append(run_peer(arguments, way, *options))
    print(
        f"batches of {arguments.batch}  batches/s            CPU ms/frame   peak MB   time ratio            CPU ratio"
    )
    for name, found in runs.items():
        rates = [arguments.batches / report["seconds"] for report, _ in found]
        frames = arguments.batches * arguments.batch
        used = [report["processor"] * 1000 / frames for report, _ in found]
        line = f"{name:16}{statistics.median(rates):8.1f} ({spread(rates, '.1f'):>12}) {statistics.median(used):10.2f}"
        line += f"{max(peak for _, peak in found) / 1e6:12,.0f}"
        if name.startswith("openpi"):
            same = runs[name.replace("openpi", "ours")]
            for key in ("seconds", "processor"):
                ratios = [one[key] / other[key] for (one, _), (other, _) in zip(found, same, strict=True)]
                line += f"{statistics.median(ratios):8.2f} ({spread(ratios, '.2f'):>12})"
        print(line, flush=True)


def memory() -> None:
    """Sample the resident memory of a training that reads batches and rests `--rest` seconds after each.

    The chart shows all samples; the last line has the peak, and the means of the second and the last quarter.
    """
    parser = parser_of(memory)
    parser.add_argument("data", type=Path)
    parser.add_argument("--batches", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rest", type=float, default=0.05)
    parser.add_argument("--every", type=float, default=4, help="seconds between samples")
    parser.add_argument("--chart", type=Path)
    arguments = parser.parse_args()
    mixture = open_mixture(arguments.data, "bilinear", [CAMERAS[0], CAMERAS[2]])[1]
    samples: list[tuple[int, float]] = []
    with mixture.batches(arguments.batch, shuffle="window", seed=0, epochs=None) as batches:
        following = start = time.perf_counter()
        for made in range(1, arguments.batches + 1):
            next(batches)
            time.sleep(arguments.rest)
            if time.perf_counter() >= following or made == arguments.batches:
                samples.append((made, resident("VmRSS") / 2**20))
                following = time.perf_counter() + arguments.every
            if made % 1000 == 0:
                print(f"{made} batches, {time.perf_counter() - start:.0f} s, {samples[-1][1]:.0f} MiB", flush=True)
    values = np.array([value for _, value in samples])
    quarter = len(values) // 4
    second, last = values[quarter : 2 * quarter].mean(), values[-quarter:].mean()
    print(f"peak {resident('VmHWM') / 2**20:.0f} MiB; mean of the second quarter {second:.0f}, of the last {last:.0f}")
    if arguments.chart:
        draw(samples, arguments.chart)


def draw(samples: list[tuple[int, float]], chart: Path) -> None:
    """Draw the resident memory against the batches."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 2.4), layout="constrained")
    axes.plot(*zip(*samples, strict=True), linewidth=0.8)
    axes.axhline(1024, color="gray", linestyle="dashed", linewidth=0.8)
    axes.set(ylim=(0, 1100), xlim=(0, samples[-1][0]), xlabel="batches", ylabel="resident memory, MiB")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(chart, metadata={"Date": None})


if __name__ == "__main__":
    dispatch({"write": write, "compare": compare, "speed": speed, "measure": measure, "memory": memory}, __doc__)
