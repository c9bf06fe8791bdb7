"""From RLDS episodes to a Zarr store with a row per step.

    python examples/rlds_to_zarr.py [DIRECTORY]

Writes episodes as TensorFlow Datasets does, explodes their steps, and writes the steps and the end of each episode to
a Zarr store. Images need Pillow, the `image` extra.
"""

import sys
from pathlib import Path

import numpy as np
import zarr

import dask_tfrecord as dtf

STEPS = {
    "steps/image": dtf.ImageFeature((-1, 16, 16, 3)),
    "steps/state": dtf.VarLenFeature("float32", shape=(-1, 7)),
    "steps/action": dtf.VarLenFeature("float32", shape=(-1, 2)),
}


def write(directory: Path, episodes: int) -> None:
    """Write episodes of 3 to 6 steps as the data set `robot`."""
    rng = np.random.default_rng(7)
    lengths = rng.integers(3, 7, episodes)
    arrays = {
        "steps/image": [rng.integers(0, 256, (length, 16, 16, 3), np.uint8) for length in lengths],
        "steps/state": [rng.random((length, 7), np.float32) for length in lengths],
        "steps/action": [rng.random((length, 2), np.float32) for length in lengths],
        "episode_id": np.arange(episodes),
    }
    described = {"name": "robot", "version": "1.0.0", "split": "train"}
    dtf.to_tfrecord(arrays, directory / "robot" / "1.0.0", features=STEPS, tfds=described, mode="w")


def main(directory: Path, episodes: int = 40) -> zarr.Group:
    """Write episodes, and convert them."""
    write(directory, episodes)
    recorded = dtf.read_tfrecord(directory / "robot" / "1.0.0", split="train")
    steps = recorded.explode("steps", repeat=["episode_id"])
    store = directory / "replay.zarr"
    steps.to_zarr(store, component="data", mode="w")
    # `explode` has counted the steps, so this reads no file.
    ends = np.flatnonzero(np.diff(steps["record"].compute(), append=-1)) + 1
    zarr.open_group(store, path="meta", mode="w").create_array("episode_ends", data=ends)

    group = zarr.open_group(store, mode="r")
    print(f"{episodes} episodes, {ends[-1]} steps in {store}")
    return group


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "rlds"))
