"""Data sets for the tests and screenshots of the page: pictures with boxes and masks, episodes, hostile values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import dask_tfrecord as dtf

SHAPES = ["circle", "square", "triangle", "ring"]
# Names of features and values that a page must show as text: markup, quotes, control and bidirectional characters.
HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>'",
    "nul\x00 and \x1b[31mescape",
    "right\u202eto left\u2066",
    "{{7*7}} ${7*7} javascript:alert(1)",
    "",
    "\u05e9\u05dc\u05d5\u05dd 日本語 \U0001f600",
    "</textarea></style><style>*{display:none}</style>",
]


def _drawn(
    rng: np.random.Generator, size: int, count: int
) -> tuple[NDArray[np.uint8], list[list[float]], list[int], NDArray[np.uint8]]:
    """Return a picture of shapes, their boxes (ymin, xmin, ymax, xmax; 0 to 1), their classes, and a mask."""
    y, x = np.mgrid[:size, :size]
    slope = rng.random((2, 3))
    picture = 60 + 90 * (slope[0] * x[..., None] + slope[1] * y[..., None]) / size + rng.normal(0, 4, (size, size, 3))
    mask = np.zeros((size, size, 1), np.uint8)
    boxes, labels = [], []
    for _ in range(count):
        label = int(rng.integers(len(SHAPES)))
        radius = rng.uniform(0.09, 0.2) * size
        cy, cx = rng.uniform(radius, size - radius, 2)
        away = np.hypot(y - cy, x - cx)
        inside = [
            away < radius,
            np.maximum(abs(y - cy), abs(x - cx)) < radius,
            (y - cy < radius) & (2 * abs(x - cx) < y - cy + radius),
            abs(away - 0.75 * radius) < 0.25 * radius,
        ][label]
        picture[inside] = np.array([[230, 90, 70], [70, 170, 120], [80, 120, 220], [240, 190, 60]])[label] + rng.normal(
            0, 6, 3
        )
        mask[inside] = label + 1
        boxes.append([(cy - radius) / size, (cx - radius) / size, (cy + radius) / size, (cx + radius) / size])
        labels.append(label)
    return np.clip(picture, 0, 255).astype(np.uint8), boxes, labels, mask


def write_gallery(folder: Path, nrows: int = 60, size: int = 160) -> Path:
    """Write pictures with boxes, masks and class names, vectors, sequences, text, bytes and tensors as TFDS."""
    rng = np.random.default_rng(7)
    drawn = [_drawn(rng, size, int(rng.integers(1, 5))) for _ in range(nrows)]
    features = {
        "image": dtf.ImageFeature((-1, size, size, 3)[1:]),
        "mask": dtf.ImageFeature((size, size, 1)),
        "objects/bbox": dtf.VarLenFeature("float32", shape=(-1, 4)),
        "objects/label": dtf.VarLenFeature("int64"),
        "label": dtf.FixedLenFeature((), "int64"),
        "score": dtf.FixedLenFeature((), "float32"),
        "caption": dtf.TextFeature(),
        "embedding": dtf.FixedLenFeature((64,), "float32"),
        "heights": dtf.VarLenFeature("float32"),
        "attention": dtf.FixedLenFeature((12, 16), "float32"),
        "checksum": dtf.FixedLenFeature((), "bytes"),
    }
    walks = [np.cumsum(rng.normal(0, 1, int(rng.integers(5, 90)))).astype(np.float32) for _ in range(nrows)]
    bump = np.exp(-((np.arange(16) - 8) ** 2) / 18)
    arrays = {
        "image": [one[0] for one in drawn],
        "mask": [one[3] for one in drawn],
        "objects/bbox": [np.array(one[1], np.float32) for one in drawn],
        "objects/label": [np.array(one[2]) for one in drawn],
        "label": np.array([one[2][0] for one in drawn]),
        "score": rng.beta(5, 2, nrows).astype(np.float32),
        "caption": [f"{len(one[2])} shapes, first a {SHAPES[one[2][0]]}" for one in drawn],
        "embedding": np.cumsum(rng.normal(0, 1, (nrows, 64)), axis=1).astype(np.float32),
        "heights": walks,
        "attention": (rng.random((nrows, 12, 1)) * bump + 0.1 * rng.random((nrows, 12, 16))).astype(np.float32),
        "checksum": np.array([rng.bytes(20) for _ in range(nrows)], object),
    }
    classes = {"label": SHAPES, "objects/label": SHAPES}
    schema = dtf.Schema(features, groups={"objects": ["objects/bbox", "objects/label"]}, classes=classes)
    target = folder / "shapes" / "1.0.0"
    dtf.to_tfrecord(
        arrays,
        target,
        features=schema,
        records_per_shard=20,
        tfds={"name": "shapes", "version": "1.0.0", "split": "train"},
    )
    return target


def write_episodes(folder: Path, lengths: tuple[int, ...] = (48, 30, 61), size: int = 96) -> Path:
    """Write episodes of a simulated arm as RLDS: two cameras, state, action, reward and instruction of each step."""
    rng = np.random.default_rng(11)
    y, x = np.mgrid[:size, :size] / size

    def camera(state: NDArray[np.float32], side: bool) -> NDArray[np.uint8]:
        frame = np.full((size, size, 3), (196, 202, 206), np.float64) - 60 * y[..., None]
        px, py = 0.5 + 0.35 * state[0], 0.5 + 0.35 * state[1]
        for at, colour in [((0.72, 0.3), (220, 80, 60)), ((0.25, 0.7), (70, 120, 210))]:
            frame[np.hypot(x - at[0], y - at[1]) < 0.08] = colour
        arm = abs((x - 0.5) * (py - 1) - (y - 1) * (px - 0.5)) < 0.02
        frame[arm & (y > py) if not side else arm & (x < max(px, 0.5))] = (60, 64, 70)
        frame[np.hypot(x - px, y - py) < 0.05] = (30, 34, 40)
        return np.clip(frame + rng.normal(0, 3, frame.shape), 0, 255).astype(np.uint8)

    states = []
    for length in lengths:
        t = np.linspace(0, 1, length)[:, None]
        phases = rng.uniform(0, 6, 7)
        states.append((np.sin(2 * np.pi * t * rng.uniform(0.5, 1.2, 7) + phases) * 0.8).astype(np.float32))
    actions = [np.diff(state, axis=0, append=state[-1:]).astype(np.float32) * 10 for state in states]
    fields = {
        "steps/observation/image": dtf.ImageFeature((-1, size, size, 3)),
        "steps/observation/wrist_image": dtf.ImageFeature((-1, size, size, 3)),
        "steps/observation/state": dtf.VarLenFeature("float32", shape=(-1, 7)),
        "steps/action": dtf.VarLenFeature("float32", shape=(-1, 7)),
        "steps/reward": dtf.VarLenFeature("float32"),
        "steps/is_last": dtf.VarLenFeature("bool"),
        "steps/language_instruction": dtf.TextFeature(count=-1),
    }
    told = ["put the red cup on the blue plate", "close the drawer", "turn the knob to the left"]
    arrays = {
        "steps/observation/image": [np.stack([camera(state, False) for state in episode]) for episode in states],
        "steps/observation/wrist_image": [
            np.stack([camera(state[::-1], True) for state in episode]) for episode in states
        ],
        "steps/observation/state": states,
        "steps/action": actions,
        "steps/reward": [(np.arange(length) == length - 1).astype(np.float32) for length in lengths],
        "steps/is_last": [np.arange(length) == length - 1 for length in lengths],
        "steps/language_instruction": [[told[at % 3]] * length for at, length in enumerate(lengths)],
        "episode_metadata/episode_id": np.arange(len(lengths)),
    }
    target = folder / "robot" / "1.0.0"
    schema = dtf.Schema(fields, groups={"steps": list(fields)})
    tfds = {"name": "robot", "version": "1.0.0", "split": "train"}
    dtf.to_tfrecord(arrays, target, features=schema, records_per_shard=2, tfds=tfds)
    return target


def write_numbers(folder: Path, nrows: int, shards: int = 2) -> Path:
    """Write rows of small numbers."""
    rng = np.random.default_rng(3)
    arrays = {
        "index": np.arange(nrows),
        "label": rng.integers(0, 10, nrows),
        "age": np.clip(rng.gamma(8, 5, nrows), 0, 99).astype(np.int64),
        "income": rng.lognormal(10, 0.6, nrows).astype(np.float32),
    }
    folder.mkdir(parents=True, exist_ok=True)
    dtf.to_tfrecord(arrays, folder / "numbers-{shard}.tfrecord", records_per_shard=-(-nrows // shards))
    return folder


def write_hostile(folder: Path) -> Path:
    """Write records whose names and values are markup, controls and bytes that are not UTF-8."""
    folder.mkdir(parents=True, exist_ok=True)
    with dtf.RecordWriter(folder / "<b onclick=alert(1)>&'.tfrecord") as writer:
        for row, text in enumerate(HOSTILE):
            example = dtf.messages.Example()
            features = example.features.feature
            for name in HOSTILE:
                features[name or "empty"].bytes_list.value.append(text.encode())
            features["\u202ename"].int64_list.value.append(2**63 - 1 - row)
            features["long" * 400].int64_list.value.append(row)
            features["float"].float_list.value.append([float("nan"), float("inf"), -0.0, 1e-40][row % 4])
            features["bytes"].bytes_list.value.append(b"\xff\xfe\x00<b>\xed\xa0\x80")
            writer.write(example.SerializeToString(deterministic=True))
    return folder
