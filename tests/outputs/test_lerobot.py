"""LeRobot data sets: equal to the frames that were written, complete or resumable, and as lerobot itself reads them."""

from __future__ import annotations

import io
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy as np
import pytest
from numpy.typing import NDArray
from support.commands import run, shown
from support.paths import TESTS
from support.programs import run_program
from support.robot import LENGTHS, ROWS, steps_of
from support.store_round_trip import files_in

import dask_tfrecord as dtf
from dask_tfrecord.errors import CorruptRecordError, SchemaError, UnknownFeatureError

av, pq, image = (pytest.importorskip(name) for name in ("av", "pyarrow.parquet", "PIL.Image"))

FPS = 15
LOSSLESS = {"codec": "libx264rgb", "pix_fmt": "rgb24", "crf": 0}
CAMERAS = {"observation.images.wrist": "steps/observation/wrist", "observation.images.top": "steps/observation/top"}
VALUES = {
    "observation.state": "steps/observation/state",
    "action": "steps/action",
    "pose": "steps/pose",
    "is_last": "steps/is_last",
    "reward": "steps/reward",
}
TASKS = [f"task {number % 2}" for number in range(len(LENGTHS)) for _ in range(LENGTHS[number])]


def frames(name: str) -> NDArray[Any]:
    return np.concatenate(ROWS[name])


def few_steps_of(folder: Path) -> dtf.Dataset:
    """Return the frames of the short episodes."""
    return steps_of(folder).rows[[*range(14), 134, 135]]


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def table(folder: Path, part: str) -> Any:
    return pq.read_table([*sorted(folder.glob(f"{part}/*/*.parquet"))]).to_pydict()


def pictures(folder: Path, key: str) -> NDArray[np.uint8]:
    """Decode all frames of a camera."""
    files = sorted(folder.glob(f"videos/{key}/*/*.mp4"))
    found = []
    for file in files:
        with av.open(str(file)) as container:
            found += [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    if not files:
        found = [np.array(image.open(io.BytesIO(each["bytes"]))) for each in table(folder, "data")[key]]
    return np.stack(found)


@pytest.mark.parametrize("video", [LOSSLESS, None])
def test_frames_episodes_and_tasks_are_those_of_the_records(robot: Path, tmp_path: Path, video: Any) -> None:
    steps_of(robot).to_lerobot(tmp_path / "out", fps=FPS, video=video, episodes_per_file=2, robot_type="arm")
    data, episodes = table(tmp_path / "out", "data"), table(tmp_path / "out", "meta/episodes")
    for key, name in VALUES.items():
        assert np.array_equal(np.array(data[key]), frames(name)), key
    for key, name in CAMERAS.items():
        assert np.array_equal(pictures(tmp_path / "out", key), frames(name)), key
    numbers = np.concatenate([np.arange(length) for length in LENGTHS])
    assert data["index"] == list(range(sum(LENGTHS)))
    assert data["frame_index"] == numbers.tolist()
    assert data["episode_index"] == np.repeat(np.arange(len(LENGTHS)), LENGTHS).tolist()
    assert np.array_equal(data["timestamp"], (numbers / FPS).astype(np.float32))
    tasks = pq.read_table(tmp_path / "out/meta/tasks.parquet").to_pandas()
    assert [tasks.index[number] for number in data["task_index"]] == TASKS and tasks.index.name == "task"
    assert episodes["length"] == list(LENGTHS)
    assert episodes["tasks"] == [[f"task {number % 2}"] for number in range(len(LENGTHS))]
    assert episodes["dataset_to_index"] == np.cumsum(LENGTHS).tolist()
    assert episodes["data/file_index"] == [0, 0, 1, 1, 2]
    assert pq.read_metadata(tmp_path / "out/data/chunk-000/file-001.parquet").num_row_groups == 2
    if video is not None:
        begins = episodes["videos/observation.images.top/from_timestamp"]
        assert begins == [0, 4 / FPS, 0, 3 / FPS, 0]
    info = read_json(tmp_path / "out/meta/info.json")
    assert (info["total_frames"], info["total_episodes"], info["total_tasks"]) == (sum(LENGTHS), len(LENGTHS), 2)
    assert {*info["features"]} - {*data} == ({*CAMERAS} if video else set())
    assert info["robot_type"] == "arm" and info["features"]["pose"]["shape"] == [2, 3]


def test_statistics_are_those_of_numpy(robot: Path, tmp_path: Path) -> None:
    steps_of(robot).to_lerobot(tmp_path / "out", fps=FPS, episodes_per_file=2)
    found = read_json(tmp_path / "out/meta/stats.json")
    episodes = table(tmp_path / "out", "meta/episodes")
    taken = np.round(np.linspace(0, 119, 100)).astype(int) + 14
    chosen = np.concatenate([np.arange(14), taken, [134, 135]])
    for key, name in {**VALUES, **CAMERAS}.items():
        # LeRobot takes 100 images of an episode of 120 frames.
        values = frames(name)[chosen] / 255 if key in CAMERAS else frames(name).astype(np.float64)
        flat = values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1)
        shape = (3, 1, 1) if key in CAMERAS else (-1,)
        for statistic, wanted in (("min", flat.min(0)), ("max", flat.max(0)), ("mean", flat.mean(0))):
            assert np.allclose(found[key][statistic], wanted.reshape(shape), rtol=1e-9), (key, statistic)
        assert np.allclose(found[key]["std"], flat.std(0).reshape(shape), rtol=1e-9)
        assert found[key]["count"] == [len(values)]
        each = np.split(frames(name), np.cumsum(LENGTHS)[:-1])[1].astype(np.float64) / (255 if key in CAMERAS else 1)
        median = np.quantile(each.reshape(-1, flat.shape[-1]), 0.5, axis=0, method="inverted_cdf").reshape(shape)
        assert np.array_equal(np.array(episodes[f"stats/{key}/q50"][1]), median), key


def test_columns_are_named_and_left_out(tmp_path: Path) -> None:
    rows = {"record": [5, 5, 9], "a/b": np.arange(3.0), "say": ["x", "y", "x"], "steps/z": np.arange(3)}
    made = dtf.Dataset.from_arrays(rows)
    made.to_lerobot(tmp_path / "out", fps=2, names={"steps/z": None, "a/b": "action"}, task="say")
    data = table(tmp_path / "out", "data")
    assert {*data} == {"action", "timestamp", "frame_index", "episode_index", "index", "task_index"}
    assert data["task_index"] == [0, 1, 0] and data["episode_index"] == [0, 0, 1]
    assert table(tmp_path / "out", "meta/episodes")["tasks"] == [["x", "y"], ["x"]]
    dtf.to_lerobot(made[["record", "a/b"]], tmp_path / "without", fps=2)
    assert {*table(tmp_path / "without", "data")} == {*data, "a.b"} - {"action"}
    assert table(tmp_path / "without", "meta/episodes")["tasks"] == [[""], [""]]


def test_videos_are_lossy_by_default_and_similar(tmp_path: Path) -> None:
    waves = np.sin(np.arange(64) / 9)[:, None] + np.cos(np.arange(48) / 7) + np.arange(20)[:, None, None] / 10
    smooth = np.repeat((waves[..., None] * 50 + 80).clip(0, 255).astype(np.uint8), 3, axis=3)
    ds = dtf.Dataset.from_arrays({"record": np.arange(20) // 10, "camera": smooth})
    ds.to_lerobot(tmp_path / "out", fps=10)
    found = pictures(tmp_path / "out", "observation.images.camera").astype(int)
    assert found.shape == smooth.shape and 0 < np.abs(found - smooth).mean() < 3
    assert read_json(tmp_path / "out/meta/info.json")["features"]["observation.images.camera"]["info"] == {
        "video.height": 64,
        "video.width": 48,
        "video.codec": "h264",
        "video.pix_fmt": "yuv420p",
        "video.is_depth_map": False,
        "video.fps": 10,
        "video.channels": 3,
        "has_audio": False,
    }


RECORD = np.arange(2)
WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = {
    "no episodes": ({"x": RECORD}, {}, UnknownFeatureError, "no column 'record'.*; explode the steps"),
    "no such column": ({"x": RECORD}, {"names": {"y": "z"}}, UnknownFeatureError, "no column 'y'"),
    "no such task": ({"x": RECORD}, {"task": "y"}, UnknownFeatureError, "no column 'y'"),
    "a task of numbers": ({"x": RECORD}, {"task": "x"}, SchemaError, "expected one text per frame"),
    "a reserved name": ({"index": RECORD}, {}, ValueError, "'index', which is empty, reserved"),
    "two of a name": ({"a/b": RECORD, "a.b": RECORD}, {}, ValueError, "the name of another column"),
    "ragged": ({"x": [[1], [1, 2]]}, {}, SchemaError, r"rows that differ in size.*names={'x': None}"),
    "bytes": ({"x": [b"a", b"b"]}, {}, SchemaError, "LeRobot cannot store"),
    "two texts": ({"x": np.array([["a", "b"], ["c", "d"]])}, {}, SchemaError, "LeRobot cannot store"),
    "an odd size": ({"x": np.zeros((2, 3, 4, 3), np.uint8)}, {}, SchemaError, "even height and width: give video=None"),
    "gray": ({"x": np.zeros((2, 4, 4, 1), np.uint8)}, {}, SchemaError, "three channels"),
    "no encoder": ({"x": RECORD}, {"video": "h999"}, ValueError, "'h999' is missing from FFmpeg"),
    "no speed": ({"x": RECORD}, {"fps": 0}, ValueError, "fps is a whole number, 1 or more; got 0"),
    "half an episode": ({"x": RECORD}, {"episodes_per_file": 0.5}, ValueError, "episodes_per_file is a whole number"),
    "no frames": ({"x": RECORD[:0]}, {}, ValueError, "there are no frames"),
    "both": ({"x": RECORD}, {"mode": "w", "resume": True}, ValueError, "pass only one of them"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_stored_is_refused_before_anything_is_written(tmp_path: Path, case: str) -> None:
    rows, options, error, said = WRONG[case]
    if case != "no episodes":
        rows = {**rows, "record": np.arange(len(rows[next(iter(rows))]))}
    with pytest.raises(error, match=said):
        dtf.Dataset.from_arrays(rows).to_lerobot(tmp_path / "out", **{"fps": 5, **options})
    assert not (tmp_path / "out").exists()


def test_an_existing_data_set_is_kept_or_replaced_as_a_whole(robot: Path, tmp_path: Path) -> None:
    steps, out = few_steps_of(robot), tmp_path / "out"
    steps.to_lerobot(out, fps=FPS, episodes_per_file=1)
    before = files_in(out)
    for options in ({}, {"resume": True}):
        with pytest.raises(FileExistsError, match=r"mode='w' replaces it, and resume=True continues"):
            steps.to_lerobot(out, fps=FPS, **options)
    assert files_in(out) == before
    steps[["steps/action", "record"]].to_lerobot(out, fps=FPS, mode="w")
    steps[["steps/action", "record"]].to_lerobot(tmp_path / "again", fps=FPS)
    assert files_in(out) == files_in(tmp_path / "again")


def test_a_store_has_the_files_of_a_directory(robot: Path, tmp_path: Path) -> None:
    steps = few_steps_of(robot)
    steps.to_lerobot(tmp_path / "out", fps=FPS, episodes_per_file=2)
    for _ in range(2):
        steps.to_lerobot("memory://robot-store/out", fps=FPS, episodes_per_file=2, mode="w")
    fs = fsspec.filesystem("memory")
    files = {name.removeprefix("/robot-store/out/"): fs.cat_file(name) for name in fs.find("/robot-store/out")}
    assert files == files_in(tmp_path / "out")
    steps.to_lerobot("memory://robot-store/out", fps=FPS, episodes_per_file=2, resume=True)
    with pytest.raises(FileExistsError, match="of another data set or conversion"):
        steps.to_lerobot("memory://robot-store/out", fps=FPS, episodes_per_file=1, resume=True)
    # Data sets of earlier formats list their tasks in another file.
    fs.rm("/robot-store/out/meta/tasks.parquet")
    with pytest.raises(FileExistsError, match="of another data set or conversion"):
        steps.to_lerobot("memory://robot-store/out", fps=FPS, episodes_per_file=2, resume=True)


def test_a_directory_in_place_of_the_description_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out/meta/info.json").mkdir(parents=True)
    with pytest.raises(IsADirectoryError, match=r"info\.json"):
        dtf.Dataset.from_arrays({"x": np.arange(3), "record": np.zeros(3, int)}).to_lerobot(tmp_path / "out", fps=5)
    assert files_in(tmp_path) == {}


def test_a_conversion_that_failed_at_its_description_is_resumed(robot: Path, tmp_path: Path) -> None:
    steps, out = few_steps_of(robot)[["steps/action", "record"]], tmp_path / "out"
    steps.to_lerobot(tmp_path / "reference", fps=FPS)
    (out / "meta/tasks.parquet").mkdir(parents=True)
    with pytest.raises(OSError, match=r"tasks\.parquet"):
        steps.to_lerobot(out, fps=FPS, resume=True)
    assert (out / "meta/stats.json").exists()
    (out / "meta/tasks.parquet").rmdir()
    steps.to_lerobot(out, fps=FPS, resume=True)
    assert files_in(out) == files_in(tmp_path / "reference")
    (tmp_path / "again/meta/tasks.parquet").mkdir(parents=True)
    with pytest.raises(OSError, match=r"tasks\.parquet"):
        steps.to_lerobot(tmp_path / "again", fps=FPS)
    assert files_in(tmp_path / "again") == {}


def test_a_failed_conversion_leaves_nothing_or_is_resumed(robot: Path, tmp_path: Path) -> None:
    copied = tmp_path / "robot" / "1.0.0"
    copied.mkdir(parents=True)
    for path in robot.iterdir():
        (copied / path.name).write_bytes(path.read_bytes())
    last = sorted(copied.glob("*tfrecord*"))[-1]
    whole, status = last.read_bytes(), last.stat()
    options: dict[str, Any] = {"fps": FPS, "episodes_per_file": 1}
    # Without a task, frames are read once.
    steps = few_steps_of(copied)[["steps/observation/wrist", *VALUES.values(), "record"]]
    steps.to_lerobot(tmp_path / "reference", **options)

    def damage(data: bytes) -> None:
        last.write_bytes(data)
        os.utime(last, ns=(status.st_atime_ns, status.st_mtime_ns))

    damage(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CorruptRecordError):
        steps.to_lerobot(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
    damage(whole)

    class Stop(Exception):
        pass

    def stop(blocks: dict[str, Any], until: Path) -> dict[str, Any]:
        """Fail in the second task."""
        if not until.exists() and [*until.with_name("out").rglob("*.mp4")]:
            raise Stop
        return blocks

    mapped = steps.map_blocks(partial(stop, until=tmp_path / "until"), dict(steps.schema))
    (tmp_path / "until").touch()
    mapped.to_lerobot(tmp_path / "mapped", **options)
    (tmp_path / "until").unlink()
    with dask.config.set(scheduler="synchronous"):
        with pytest.raises(Stop):
            mapped.to_lerobot(tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()
        with pytest.raises(Stop):
            mapped.to_lerobot(tmp_path / "out", resume=True, **options)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("file-*")}
    assert kept and not (tmp_path / "out/meta/info.json").exists()
    (tmp_path / "until").touch()
    mapped.to_lerobot(tmp_path / "out", resume=True, **options)
    assert files_in(tmp_path / "out") == files_in(tmp_path / "mapped")
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    complete = (tmp_path / "out/meta/info.json").stat().st_mtime_ns
    mapped.to_lerobot(tmp_path / "out", resume=True, **options)
    assert (tmp_path / "out/meta/info.json").stat().st_mtime_ns == complete
    same = {name: data for name, data in files_in(tmp_path / "out").items() if name != "meta/tasks.parquet"}
    assert same.items() <= files_in(tmp_path / "reference").items()


def test_the_command(robot: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["to-lerobot", robot, out, "--fps", FPS]
    renamed = ["--rename", "steps/pose=", "--rename", "steps/reward=r"]
    assert f"{sum(LENGTHS)} rows" in shown(*command, "--robot-type", "arm", *renamed)
    info = read_json(out / "meta/info.json")
    assert info["robot_type"] == "arm" and info["fps"] == FPS and "r" in info["features"]
    assert "pose" not in info["features"] and "reward" not in info["features"]
    refused = run(*command)
    assert refused.exit_code == 1 and "exists, of another data set" in refused.output
    shown(*command, "--images", "--overwrite", "--columns", "steps/observation/top,steps/action")
    assert read_json(out / "meta/info.json")["features"]["observation.images.top"]["dtype"] == "image"
    wrong = run(*command, "--overwrite", "--resume")
    assert wrong.exit_code == 2 and "resume" in wrong.output


@pytest.mark.lerobot
@pytest.mark.parametrize("video", [LOSSLESS, None])
def test_lerobot_reads_every_frame_task_and_statistic(robot: Path, tmp_path: Path, lerobot: str, video: Any) -> None:
    steps_of(robot).to_lerobot(tmp_path / "out", fps=FPS, video=video, episodes_per_file=2, robot_type="arm")
    program = TESTS / "support" / "lerobot_reader.py"
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache"), "PYTHONPATH": ""}
    done = run_program(lerobot, program, tmp_path / "out", tmp_path / "found.npz", env=offline)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "found.npz") as loaded:
        found = {name: loaded[name] for name in loaded.files}
    for key, name in VALUES.items():
        assert np.array_equal(found[f"rows {key}"], frames(name)), key
    for key, name in CAMERAS.items():
        shown = (found[f"rows {key}"] * 255).round().astype(np.uint8).transpose(0, 2, 3, 1)
        assert np.array_equal(shown, frames(name)), key
    assert found["rows task"].tolist() == TASKS
    assert found["about"].tolist() == [str(FPS), "arm", "task 0", "task 1"]
    ends = np.cumsum(LENGTHS)
    assert found["episodes"].tolist() == [list(LENGTHS), (ends - LENGTHS).tolist(), ends.tolist()]
    again = {name for name in found if name.startswith("again ")}
    assert len(again) == 10 * len({*VALUES, *CAMERAS, "timestamp", "index"} | {"f", "e", "t"})
    for name in again:
        _, key, statistic = name.split()
        if key in CAMERAS and statistic == "std":
            # lerobot 0.4.4 squares levels as uint8, which overflows; `test_statistics_are_those_of_numpy` has them.
            continue
        stored = found[name.replace("again", "stored")]
        # lerobot estimates quantiles from 5,000 bins.
        extent = float((found[f"stored {key} max"] - found[f"stored {key} min"]).max())
        tolerance = extent / 4000 if statistic.startswith("q") else 1e-6 * extent + 1e-9
        assert np.allclose(stored, found[name], rtol=1e-6, atol=tolerance), name
