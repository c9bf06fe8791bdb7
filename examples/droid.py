"""Training input from DROID-like episodes: windows of actions with camera images, without idle frames, from a mixture.

    python examples/droid.py [DIRECTORY [torch | jax]]

Writes two data sets in the form of DROID, as TensorFlow Datasets does, and the ranges of their frames in motion. Then
two processes of a training share shuffled batches, and resume in the middle of an epoch. This needs the extra `image`,
and PyTorch or JAX for batches of their tensors.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dask_tfrecord as dtf

STEPS, HEIGHT, WIDTH = "steps/observation", 180, 320
CAMERAS = [f"{STEPS}/exterior_image_1_left", f"{STEPS}/wrist_image_left"]
STATE = [f"{STEPS}/joint_position", f"{STEPS}/gripper_position"]
ACTION = ["steps/action_dict/joint_position", "steps/action_dict/gripper_position"]
INSTRUCTION = "steps/language_instruction"
KEY = ["episode_metadata/recording_folderpath", "episode_metadata/file_path"]
FEATURES: dict[str, Any] = {
    **{name: dtf.ImageFeature((-1, HEIGHT, WIDTH, 3)) for name in CAMERAS},
    **{name: dtf.VarLenFeature("float32", shape=(-1, 7 if "joint" in name else 1)) for name in [*STATE, *ACTION]},
    INSTRUCTION: dtf.TextFeature(count=-1),
    **dict.fromkeys(KEY, dtf.TextFeature()),
}


def episode_rows(episodes: int, seed: int) -> dict[str, Any]:
    """Return episodes with pauses; every fifth one is a failure."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(24, 60, episodes)
    rows: dict[str, Any] = {}
    base = rng.integers(0, 256, (HEIGHT // 20, WIDTH // 20, 3), np.uint8).repeat(20, 0).repeat(20, 1)
    for name in CAMERAS:
        rows[name] = [np.stack([np.roll(base, step, 1) for step in range(length)]) for length in lengths]
    moves = [(np.arange(length) % 20 < 16).cumsum()[:, None] / 50 for length in lengths]
    for name in [*STATE, *ACTION]:
        size = 7 if "joint" in name else 1
        rows[name] = [(move + rng.random(size)).astype("float32") for move in moves]
    rows[INSTRUCTION] = [[f"task {number % 3}"] * length for number, length in enumerate(lengths)]
    rows[KEY[0]] = [f"/recordings/{seed}/{number}" for number in range(episodes)]
    rows[KEY[1]] = [f"/raw/{'failure' if number % 5 == 4 else 'success'}/{number}" for number in range(episodes)]
    return rows


def moving_ranges(rows: Mapping[str, Any]) -> dict[str, list[list[int]]]:
    """Return the ranges of frames in which the joints move, by the key of the episode, as openpi does."""
    ranges = {}
    for folder, file, joints in zip(rows[KEY[0]], rows[KEY[1]], rows[ACTION[0]], strict=True):
        moves = np.abs(np.diff(joints, axis=0, prepend=joints[:1] - 1)).max(axis=1) > 1e-3
        borders = np.flatnonzero(np.diff(np.concatenate([[0], moves, [0]])))
        ranges[f"{folder}--{file}"] = borders.reshape(-1, 2).tolist()
    return ranges


def write(directory: Path, name: str, episodes: int, seed: int) -> None:
    """Write a data set, and the ranges of its frames in motion."""
    rows = episode_rows(episodes, seed)
    described = {"name": name, "version": "1.0.0", "split": "train"}
    features = dtf.Schema(FEATURES, groups={"steps": [each for each in FEATURES if each.startswith("steps/")]})
    target = directory / name / "1.0.0"
    jpeg = dict.fromkeys(CAMERAS, "jpeg")
    dtf.to_tfrecord(rows, target, features=features, encoding=jpeg, records_per_shard=4, tfds=described, mode="w")
    (directory / f"{name}.json").write_text(json.dumps(moving_ranges(rows)))


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


def open_windows(directory: Path, name: str) -> dtf.Dataset:
    """Open the frames in motion of a data set: each with the 16 actions from its own on."""
    small = dict.fromkeys(CAMERAS, dtf.ImageFeature((-1, 224, 224, 3), size=(224, 224)))
    source = directory / name / "1.0.0"
    features = {**dtf.Schema.read(source / "features.json"), **small}
    episodes = dtf.read_tfrecord(source, features, split="train").where(succeeded, columns=[KEY[1]])
    around = [*CAMERAS, *STATE, INSTRUCTION]
    windows = episodes.windows(ACTION, future=15, items=around, repeat=KEY, number="step")
    ranges = json.loads((directory / f"{name}.json").read_text())
    return windows.where(within(ranges), columns=[*KEY, "step"])


def tensors(batch: Mapping[str, Any], library: str) -> dict[str, Any]:
    """Return the numbers of a batch as tensors: of PyTorch in the same memory, or of JAX on its device."""
    numbers = {name: array for name, array in batch.items() if array.dtype.kind in "biuf"}
    if library == "torch":
        import torch

        return {name: torch.from_numpy(array) for name, array in numbers.items()}
    import jax

    on_device: dict[str, Any] = jax.device_put(numbers)
    return on_device


def main(directory: Path, episodes: int = 12, library: str = "") -> list[dict[str, Any]]:
    """Write two data sets, and return the batches of an epoch of one of two processes."""
    names = ["droid", "kitchen"]
    for seed, name in enumerate(names):
        write(directory, name, episodes, seed)
    parts = [open_windows(directory, name) for name in names]
    mixture = dtf.sample_from_datasets(parts, [0.7, 0.3], seed=0, stop_on_empty_dataset=True)
    numbers = parts[0][[STATE[0]]].describe()[STATE[0]].numbers
    assert numbers is not None

    def batches() -> Any:
        return mixture.batches(8, shuffle="window", seed=1, shard=(0, 2), drop_remainder=True)

    found = []
    with batches() as first:
        for _ in range(3):
            found.append(next(first))
        state = json.dumps(first.state_dict())
    with batches() as rest:
        rest.load_state_dict(json.loads(state))
        found += rest
        expected = rest.batches_per_epoch
    assert len(found) == expected
    normalised = (found[0][STATE[0]] - numbers.means) / numbers.stds
    print(f"{mixture.nrows} windows of {[part.nrows for part in parts]}; {expected} batches for each of 2 processes")
    if library:
        step = tensors(found[0], library)
        assert all(np.array_equal(np.asarray(tensor), found[0][name]) for name, tensor in step.items())
        print(f"{library}: {type(step[CAMERAS[0]]).__name__} of {tuple(step[CAMERAS[0]].shape)}")
    print(f"actions {found[0][ACTION[0]].shape}, images {found[0][CAMERAS[0]].shape}, state {normalised.shape}")
    return found


if __name__ == "__main__":
    given = [*sys.argv[1:], "", ""]
    main(Path(given[0] or "droid"), library=given[1])
