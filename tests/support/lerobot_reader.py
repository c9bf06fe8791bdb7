"""Program of an environment with lerobot: read a data set with it, and compute its statistics again.

    python lerobot_reader.py ROOT RESULT

Writes all frames, tasks and statistics to the file RESULT of NumPy. The other tests do not import this module.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.datasets import lerobot_dataset
from lerobot.datasets.compute_stats import aggregate_stats, compute_episode_stats
from PIL import Image


def decode(path: Path, timestamps: list[float], tolerance: float, backend: str | None = None, **_: Any) -> torch.Tensor:
    """Decode the frames at these times by FFmpeg: lerobot's decoders need packages that are not everywhere."""
    import av

    with av.open(str(path)) as container:
        frames = {frame.time: frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)}
    times = np.array(list(frames))
    nearest = [int(np.abs(times - each).argmin()) for each in timestamps]
    assert all(abs(times[at] - each) < tolerance for at, each in zip(nearest, timestamps, strict=True))
    pixels = np.stack([list(frames.values())[at] for at in nearest])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255


def statistics_again(dataset: Any, rows: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    """Compute the statistics of all episodes by lerobot."""
    found = []
    features = {key: each for key, each in dataset.meta.features.items() if each["dtype"] != "string"}
    with tempfile.TemporaryDirectory() as folder:
        for episode in range(dataset.meta.total_episodes):
            of = rows["episode_index"] == episode
            data: dict[str, Any] = {}
            for key, feature in features.items():
                if feature["dtype"] not in ("image", "video"):
                    data[key] = rows[key][of]
                    continue
                data[key] = []
                for number, picture in enumerate(rows[key][of]):
                    path = Path(folder) / f"{key}-{episode}-{number}.png"
                    Image.fromarray((picture.transpose(1, 2, 0) * 255).round().astype(np.uint8)).save(path)
                    data[key].append(str(path))
            found.append(compute_episode_stats(data, features))
    return aggregate_stats(found)


def main(root: str, result: str) -> None:
    """Read the data set at `root`."""
    lerobot_dataset.decode_video_frames = decode
    dataset = lerobot_dataset.LeRobotDataset("local/robot", root=root)
    items = [dataset[number] for number in range(len(dataset))]
    rows = {key: np.stack([np.asarray(item[key]) for item in items]) for key in items[0]}
    found = {f"rows {key}": value for key, value in rows.items()}
    for title, statistics in (("stored", dataset.meta.stats), ("again", statistics_again(dataset, rows))):
        for key, values in statistics.items():
            found |= {f"{title} {key} {name}": value for name, value in values.items()}
    episodes = dataset.meta.episodes
    found["episodes"] = np.array([episodes["length"], episodes["dataset_from_index"], episodes["dataset_to_index"]])
    found["about"] = np.array([str(dataset.fps), dataset.meta.robot_type or "", *dataset.meta.tasks.index])
    np.savez(result, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
