"""`Dataset.windows` against the chunks of actions and observations that training code of robots makes in TensorFlow.

The semantics follow `chunk_act_obs` of octo-models/octo: windows of past observations that repeat the first one,
and of future actions that repeat the last one. DASK_TFRECORD_OCTO, if set, is the path of its `traj_transforms.py`,
whose function is then called instead of the expression below.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import dask_tfrecord as dtf

PROGRAM = """
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np, tensorflow as tf

def chunked(state, action, past, horizon):
    steps = tf.range(tf.shape(action)[0])[:, None]
    seen, planned = steps + tf.range(1 - past, 1), steps + tf.range(horizon)
    actions = tf.gather(action, tf.minimum(planned, len(action) - 1))
    before = tf.maximum(seen, 0)
    return tf.gather(state, before), tf.gather(actions, before), seen >= 0

def by_octo(state, action, past, horizon):
    from traj_transforms import chunk_act_obs
    trajectory = {"observation": {"state": state}, "action": action, "task": {}}
    made = chunk_act_obs({**trajectory, "action_pad_mask": tf.ones_like(action, tf.bool)}, past, horizon)
    return made["observation"]["state"], made["action"], made["observation"]["timestep_pad_mask"]

if len(sys.argv) > 3:
    sys.path.insert(0, os.path.dirname(sys.argv[3]))
    chunked = by_octo
made = {}
with np.load(sys.argv[1]) as given:
    for past, horizon in given["windows"].tolist():
        parts = []
        for start, stop in zip(given["ends"].tolist(), given["ends"][1:].tolist()):
            parts.append(chunked(given["state"][start:stop], given["action"][start:stop], past, horizon))
        for name, arrays in zip(("state", "action", "mask"), zip(*parts)):
            made[f"{past}-{horizon}-{name}"] = np.concatenate(arrays)
np.savez(sys.argv[2], **made)
"""
WINDOWS = [(1, 1), (2, 4), (5, 1), (1, 16), (3, 3)]
LENGTHS = [4, 1, 12, 2, 7, 1, 30]
FEATURES = {
    "steps/state": dtf.VarLenFeature("float32", shape=(-1, 3)),
    "steps/action": dtf.VarLenFeature("float32", shape=(-1, 2)),
}


@pytest.mark.tensorflow
def test_windows_are_the_chunks_of_training_code(tensorflow: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ends = np.append(0, np.cumsum(LENGTHS))
    state, action = rng.random((ends[-1], 3), np.float32), rng.random((ends[-1], 2), np.float32)
    np.savez(tmp_path / "given.npz", windows=WINDOWS, ends=ends, state=state, action=action)
    command = [tensorflow, "-c", PROGRAM, str(tmp_path / "given.npz"), str(tmp_path / "made.npz")]
    octo = os.environ.get("DASK_TFRECORD_OCTO")
    subprocess.run([*command, *([octo] if octo else [])], check=True, timeout=500)
    steps = {"steps/state": np.split(state, ends[1:-1]), "steps/action": np.split(action, ends[1:-1])}
    dtf.to_tfrecord(steps, tmp_path / "episodes-{shard}.tfrecord", features=FEATURES, records_per_shard=3)
    episodes = dtf.read_tfrecord(tmp_path / "episodes-*.tfrecord", FEATURES, chunks=2)
    with np.load(tmp_path / "made.npz") as made:
        for past, horizon in WINDOWS:
            seen = episodes.windows(["steps/state"], past=past - 1).compute()
            planned = episodes.windows(["steps/action"], future=horizon - 1).compute()
            assert np.array_equal(seen["steps/state"], made[f"{past}-{horizon}-state"])
            assert np.array_equal(seen["mask"], made[f"{past}-{horizon}-mask"])
            # Octo pairs each past observation with the actions planned from it; the last one belongs to the step.
            actions = made[f"{past}-{horizon}-action"]
            assert actions.shape == (ends[-1], past, horizon, 2)
            assert np.array_equal(planned["steps/action"], actions[:, -1])
            rows = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
            before = np.arange(ends[-1])[:, None] + np.arange(1 - past, 1)
            paired = planned["steps/action"][np.maximum(before, ends[rows][:, None])]
            assert np.array_equal(paired, actions)
