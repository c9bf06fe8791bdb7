"""A training loop: shuffled batches of NumPy arrays, and a checkpoint that resumes within an epoch.

    python examples/training_loop.py [DIRECTORY]

Writes points of three classes, and trains a softmax regression on them with NumPy. Frameworks take the same batches.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dask_tfrecord as dtf

CLASSES = 3


def write(directory: Path, records: int) -> None:
    """Write two shards of points around the centre of their class."""
    rng = np.random.default_rng(8)
    labels = rng.integers(0, CLASSES, records)
    centres = np.array([(0, 2), (2, -1), (-2, -1)], np.float32)
    points = centres[labels] + rng.normal(0, 0.7, (records, 2)).astype("float32")
    name = directory / "points-{shard}-of-{shards}.tfrecord"
    dtf.to_tfrecord({"point": points, "label": labels}, name, records_per_shard=-(-records // 2), mode="w")


def train(batches: Any, weights: NDArray[np.float64], steps: int | None = None) -> list[float]:
    """Descend along the gradient of each batch, in place; return the losses."""
    losses: list[float] = []
    for batch in batches:
        points = np.column_stack([batch["point"], np.ones(len(batch["point"]))])
        logits = points @ weights
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        rows = np.arange(len(points))
        losses.append(float(-np.log(shares[rows, batch["label"]]).mean()))
        shares[rows, batch["label"]] -= 1
        weights -= 0.3 * points.T @ shares / len(points)
        if len(losses) == steps:
            break
    return losses


def main(directory: Path, records: int = 3000) -> list[float]:
    """Write points, train, stop after a few steps, and resume."""
    write(directory, records)
    ds = dtf.read_tfrecord(directory / "points-*.tfrecord")
    weights = np.zeros((3, CLASSES))
    with ds.batches(32, shuffle="full", seed=9, epochs=3) as batches:
        losses = train(batches, weights, steps=5)
        state = json.dumps(batches.state_dict())

    with ds.batches(32, shuffle="full", seed=9, epochs=3) as batches:
        batches.load_state_dict(json.loads(state))
        losses += train(batches, weights)
    print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} after {len(losses)} steps")
    return losses


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "training-loop"))
