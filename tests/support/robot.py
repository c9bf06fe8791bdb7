"""Four small episodes and a long one of a robot, as a data set of TensorFlow Datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import dask_tfrecord as dtf
from support.store_round_trip import files_in as contents

__all__ = ["LENGTHS", "ROWS", "contents", "steps_of", "write_robot"]

LENGTHS = (4, 7, 3, 120, 2)
STEPS = {
    "steps/observation/wrist": dtf.ImageFeature((-1, 16, 16, 3)),
    "steps/observation/top": dtf.ImageFeature((-1, 24, 32, 3)),
    "steps/observation/state": dtf.VarLenFeature("float32", shape=(-1, 7)),
    "steps/action": dtf.VarLenFeature("float32", shape=(-1, 2)),
    "steps/pose": dtf.VarLenFeature("float32", shape=(-1, 2, 3)),
    "steps/is_last": dtf.VarLenFeature("bool"),
    "steps/reward": dtf.VarLenFeature("float32"),
    "steps/language_instruction": dtf.TextFeature(count=-1),
}


def robot_rows() -> dict[str, Any]:
    """Return episodes in the form of RLDS: lists of arrays, one per episode."""
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"state": (7,), "action": (2,), "pose": (2, 3), "reward": ()}
    rows: dict[str, Any] = {
        "steps/observation/wrist": [rng.integers(0, 256, (length, 16, 16, 3), np.uint8) for length in LENGTHS],
        "steps/observation/top": [rng.integers(0, 99, (length, 24, 32, 3), np.uint8) for length in LENGTHS],
        "steps/is_last": [np.arange(length) == length - 1 for length in LENGTHS],
        "steps/language_instruction": [[f"task {number % 2}"] * length for number, length in enumerate(LENGTHS)],
    }
    for name in STEPS:
        if name not in rows:
            shape = shapes[name.rpartition("/")[2]]
            rows[name] = [rng.random((length, *shape), np.float32) for length in LENGTHS]
    return rows


ROWS = robot_rows()


def write_robot(folder: Path) -> Path:
    """Write the episodes, a shard each."""
    features = dtf.Schema(STEPS, groups={"steps": list(STEPS)})
    described = {"name": "robot", "version": "1.0.0", "split": "train"}
    dtf.to_tfrecord(ROWS, folder / "robot" / "1.0.0", features=features, records_per_shard=1, tfds=described)
    return folder / "robot" / "1.0.0"


def steps_of(folder: Path) -> dtf.Dataset:
    return dtf.read_tfrecord(folder, split="train").explode("steps")
