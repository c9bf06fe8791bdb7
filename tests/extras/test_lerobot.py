"""LeRobot data sets: equal to the frames that were written, complete or resumable, and as lerobot itself reads them."""

from __future__ import annotations

import io
import json
import os
import re
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
from dask_tfrecord.errors import (
    CorruptRecordError,
    IncompleteStoreError,
    SchemaError,
    StoreInUseError,
    UnknownFeatureError,
    UnsupportedFormatError,
)

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
    "no speed": ({"x": RECORD}, {"fps": 0}, ValueError, "fps must be a number, 1 or more; got 0"),
    "half an episode": ({"x": RECORD}, {"episodes_per_file": 0.5}, ValueError, "episodes_per_file must be a number"),
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
    with pytest.raises(FileExistsError, match="belongs to another data set or conversion"):
        steps.to_lerobot("memory://robot-store/out", fps=FPS, episodes_per_file=1, resume=True)
    # Data sets of earlier formats list their tasks in another file.
    fs.rm("/robot-store/out/meta/tasks.parquet")
    with pytest.raises(FileExistsError, match="belongs to another data set or conversion"):
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
    assert not (out / "meta/stats.json").exists()
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
    # The finished files wait in the folder of the run.
    [folder] = (tmp_path / "out/meta").glob(".dask-tfrecord-*/new")
    kept = {tmp_path / "out" / path.relative_to(folder): path.stat().st_mtime_ns for path in folder.rglob("file-*")}
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


# -- episodes that are added


def episodes_of(folder: Path, *numbers: int) -> dtf.Dataset:
    ends = np.cumsum([0, *LENGTHS])
    return steps_of(folder).rows[[row for each in numbers for row in range(ends[each], ends[each + 1])]]


def assert_same_data_set(found: Path, wanted: Path) -> None:
    """Compare everything except the borders of files, and the last digits of statistics."""
    assert read_json(found / "meta/info.json") == read_json(wanted / "meta/info.json")
    assert table(found, "data") == table(wanted, "data")
    tasks = [pq.read_table(folder / "meta/tasks.parquet").to_pandas() for folder in (found, wanted)]
    assert tasks[0].equals(tasks[1])
    places = re.compile(r".*_index|.*_timestamp")
    episodes = [table(folder, "meta/episodes") for folder in (found, wanted)]
    assert [*episodes[0]] == [*episodes[1]]
    for name in episodes[0]:
        assert episodes[0][name] == episodes[1][name] or (places.fullmatch(name) and "/" in name), name
    for key in read_json(wanted / "meta/info.json")["features"]:
        if key.startswith("observation.images."):
            assert np.array_equal(pictures(found, key), pictures(wanted, key))
    statistics = [read_json(folder / "meta/stats.json") for folder in (found, wanted)]
    assert [*statistics[0]] == [*statistics[1]]
    for key, wanted_values in statistics[1].items():
        assert [*statistics[0][key]] == [*wanted_values]
        for name, values in wanted_values.items():
            assert np.allclose(statistics[0][key][name], values, rtol=1e-12, atol=1e-12), (key, name)


@pytest.mark.parametrize("video", [LOSSLESS, None])
def test_added_episodes_are_those_of_one_conversion(robot: Path, tmp_path: Path, video: Any) -> None:
    options: dict[str, Any] = {"fps": FPS, "video": video, "robot_type": "arm"}
    out, parts = tmp_path / "out", [(0, 2), (1, 4), (3,)]
    for number, part in enumerate(parts):
        before = files_in(out) if out.exists() else {}
        # The encoder and the type of the robot stay.
        given = {**options, "robot_type": "arm" if number != 1 else None}
        episodes_of(robot, *part).to_lerobot(out, episodes_per_file=number or None, mode="a", **given)
        after = files_in(out)
        changed = {name for name, data in before.items() if after.get(name) != data}
        assert changed == ({"meta/info.json", "meta/stats.json", "meta/tasks.parquet"} if number else set())
        assert not [name for name in after if "/." in name]
    episodes_of(robot, *(number for part in parts for number in part)).to_lerobot(tmp_path / "one", **options)
    assert_same_data_set(out, tmp_path / "one")
    assert table(out, "meta/episodes")["data/file_index"] == [0, 0, 1, 2, 3]


def small(first: int, past: int, **columns: Any) -> dtf.Dataset:
    """Return episodes of two frames."""
    rows = np.arange(2 * first, 2 * past)
    tasks = [f"task {row // 2 % 3}" for row in rows]
    return dtf.Dataset.from_arrays({"record": rows // 2, "x": rows * 1.0, "say": tasks, **columns})


@pytest.mark.parametrize("place", ["directory", "memory"])
def test_an_addition_is_repeated_as_the_caller_says(place: str, tmp_path: Path) -> None:
    out = f"{tmp_path}/out" if place == "directory" else f"memory://added-{tmp_path.name}/out"
    options: dict[str, Any] = {"fps": 2, "task": "say", "mode": "a"}
    fs, inside = fsspec.url_to_fs(out)

    def found() -> tuple[int, int, list[float]]:
        info = json.loads(fs.cat_file(f"{inside}/meta/info.json"))
        files = sorted(fs.glob(f"{inside}/data/*/*"))
        return (
            info["total_episodes"],
            info["total_tasks"],
            [x for f in files for x in pq.read_table(fs.open(f))["x"].to_pylist()],
        )

    for _ in range(2):
        small(0, 2).to_lerobot(out, resume=True, **options)
        assert found() == (2, 2, [0, 1, 2, 3])
    for _ in range(2):
        small(2, 4).to_lerobot(out, resume=True, **options)
        assert found() == (4, 3, [*range(8)])
    small(2, 4).to_lerobot(out, **options)
    assert found() == (6, 3, [*range(8), *range(4, 8)])
    # The data set is not the one that the first call wrote.
    with pytest.raises(FileExistsError, match="belongs to another data set or conversion"):
        small(0, 2).to_lerobot(out, **{**options, "mode": "w-", "resume": True})


DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "fps": ({}, {"fps": 3}, "fps is 2 in the data set, and 3 here"),
    "robot": ({}, {"robot_type": "hand"}, "robot_type is 'arm' in the data set, and 'hand' here"),
    "shape": (
        {"x": np.zeros((4, 2))},
        {},
        r"'x' is float64 of shape \(1,\) in the data set, and float64 of shape \(2,\)",
    ),
    "dtype": ({"x": np.zeros(4, np.float32)}, {}, "'x' is float64 .* in the data set, and float32 "),
    "more": ({"y": np.zeros(4)}, {}, "'y' is missing in the data set, and float64"),
    "less": ({}, {"names": {"x": None}}, "'x' is float64 .* in the data set, and missing here"),
    "encoder": ({}, {"video": LOSSLESS}, "h264, yuv420p in the data set, and .*rgb24 here"),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_episodes_that_differ_are_refused_with_both_sides(tmp_path: Path, case: str) -> None:
    columns, options, said = DIFFERENT[case]
    images = {"camera": np.zeros((4, 4, 4, 3), np.uint8)}
    given: dict[str, Any] = {"fps": 2, "task": "say", "robot_type": "arm"}
    small(0, 2, **images).to_lerobot(tmp_path / "out", **given)
    before = files_in(tmp_path / "out")
    with pytest.raises(SchemaError, match=rf"info\.json: cannot add episodes that differ: .*{said}"):
        small(2, 4, **{**images, **columns}).to_lerobot(tmp_path / "out", **{**given, **options}, mode="a")
    assert files_in(tmp_path / "out") == before


def test_data_sets_that_cannot_grow_are_refused(tmp_path: Path) -> None:
    info_file = tmp_path / "out/meta/info.json"
    small(0, 2).to_lerobot(tmp_path / "out", fps=2, task="say")
    info = read_json(info_file)
    for change, error, said in [
        (
            {"codebase_version": "v2.1"},
            UnsupportedFormatError,
            "has format v2.1, and episodes can only be added to format v3.0",
        ),
        ({"data_path": "x.parquet"}, UnsupportedFormatError, r"data_path is 'x\.parquet'; expected"),
        ({"total_episodes": 3}, IncompleteStoreError, "the last of 3 episodes with 4 frames"),
        ({"total_frames": 5}, IncompleteStoreError, "the last of 2 episodes with 5 frames"),
    ]:
        info_file.write_text(json.dumps({**info, **change}))
        before = files_in(tmp_path / "out")
        with pytest.raises(error, match=said):
            small(2, 4).to_lerobot(tmp_path / "out", fps=2, task="say", mode="a")
        assert files_in(tmp_path / "out") == before
    info_file.write_text("[")
    with pytest.raises(IncompleteStoreError, match=r"info\.json.*is not JSON"):
        small(2, 4).to_lerobot(tmp_path / "out", fps=2, task="say", mode="a")


def test_episodes_are_added_to_a_data_set_of_other_software(tmp_path: Path) -> None:
    """Columns in another order, other statistics and more columns of episodes, tasks without numbers from 0, a gap."""
    out = tmp_path / "out"
    small(0, 3).to_lerobot(out, fps=2, task="say")
    info = read_json(out / "meta/info.json")
    info["features"] = {key: info["features"][key] for key in reversed(info["features"])}
    info |= {"chunks_size": 2, "splits": {"train": "0:2", "test": "2:3"}, "robot_type": None}
    info["features"]["x"]["names"] = ["motor"]
    (out / "meta/info.json").write_text(json.dumps(info))
    statistics = read_json(out / "meta/stats.json")
    basic = {key: {name: value for name, value in each.items() if name[0] != "q"} for key, each in statistics.items()}
    (out / "meta/stats.json").write_text(json.dumps(basic))
    pandas = pytest.importorskip("pandas")
    tasks = pandas.DataFrame({"task_index": [4, 1, 2]}, index=["task 0", "task 1", "task 2"])
    tasks.to_parquet(out / "meta/tasks.parquet")
    [old] = (out / "meta/episodes").rglob("*.parquet")
    rows = pq.read_table(old)
    kept = [name for name in rows.column_names if "/q" not in name]
    rows = rows.select(kept).append_column("quality", [[1.0, 2.0, 3.0]])
    rows = rows.set_column(rows.column_names.index("data/file_index"), "data/file_index", [[1, 1, 1]])
    old.unlink()
    pq.write_table(rows, old)
    data = out / "data/chunk-000/file-000.parquet"
    moved = pq.read_table(data)
    at = moved.column_names.index("task_index")
    moved = moved.set_column(at, "task_index", [[4, 4, 1, 1, 2, 2]])
    pq.write_table(
        moved.select([key for key in info["features"] if key in moved.column_names]), data.with_name("file-001.parquet")
    )
    data.unlink()
    small(3, 5).to_lerobot(out, fps=2, task="say", mode="a", robot_type=None)
    small(5, 6, say=["new", "task 1"]).to_lerobot(out, fps=2, task="say", mode="a")
    assert sorted(path.relative_to(out).as_posix() for path in out.rglob("data/*/*")) == [
        "data/chunk-000/file-001.parquet",
        "data/chunk-001/file-000.parquet",
        "data/chunk-001/file-001.parquet",
    ]
    files = [pq.read_table(path) for path in sorted(out.rglob("data/*/*"))]
    assert {tuple(each.column_names) for each in files} == {tuple(info["features"])}
    rows = [row for each in files for row in each.to_pylist()]
    assert [row["x"] for row in rows] == [row["index"] for row in rows] == [*range(12)]
    assert [row["task_index"] for row in rows] == [4, 4, 1, 1, 2, 2, 4, 4, 1, 1, 5, 1]
    found = pq.read_table(out / "meta/tasks.parquet").to_pandas()
    assert found["task_index"].to_dict() == {"task 0": 4, "task 1": 1, "task 2": 2, "new": 5}
    schemas = [pq.read_schema(path) for path in sorted((out / "meta/episodes").rglob("*.parquet"))]
    assert all(schema.remove_metadata().equals(schemas[0].remove_metadata()) for schema in schemas)
    episodes = table(out, "meta/episodes")
    assert episodes["quality"] == [1.0, 2.0, 3.0, None, None, None]
    assert episodes["data/chunk_index"] == [0, 0, 0, 1, 1, 1] and episodes["data/file_index"] == [1, 1, 1, 0, 0, 1]
    assert episodes["dataset_from_index"] == [*range(0, 12, 2)]
    now = read_json(out / "meta/info.json")
    assert now["splits"] == {"train": "0:2", "test": "2:6"} and now["features"]["x"]["names"] == ["motor"]
    assert (now["total_episodes"], now["total_frames"], now["total_tasks"]) == (6, 12, 4)
    stats = read_json(out / "meta/stats.json")["x"]
    assert {*stats} == {"min", "max", "mean", "std", "count"}
    assert stats["count"] == [12] and np.isclose(stats["mean"], 5.5) and np.isclose(stats["std"], np.arange(12).std())


def test_one_addition_at_a_time_and_none_to_a_data_set_that_has_changed(robot: Path, tmp_path: Path) -> None:
    out, options = tmp_path / "out", {"fps": FPS, "mode": "a", "episodes_per_file": 1}
    episodes_of(robot, 0).to_lerobot(out, **options)
    info, seen = out / "meta/info.json", list[str]()
    steps = episodes_of(robot, 1, 2).drop("steps/language_instruction")

    def meanwhile(blocks: dict[str, Any], how: str) -> dict[str, Any]:
        if how not in seen and [*out.rglob(".*.claim")]:
            seen.append(how)
            if how == "another run":
                with pytest.raises(StoreInUseError):
                    small(0, 1).to_lerobot(out, fps=FPS, mode="w")
                with pytest.raises(StoreInUseError):
                    episodes_of(robot, 4).to_lerobot(out, **options)
            else:
                info.write_text(info.read_text().replace('"total_episodes": 1', '"total_episodes": 9'))
        return blocks

    before = files_in(out)
    with dask.config.set(scheduler="synchronous"):
        mapped = steps.map_blocks(partial(meanwhile, how="other software"), dict(steps.schema))
        with pytest.raises(IncompleteStoreError, match="had 1 episode when this run began, and now has 9"):
            mapped.to_lerobot(out, **options)
        info.write_bytes(before["meta/info.json"])
        mapped = steps.map_blocks(partial(meanwhile, how="another run"), dict(steps.schema))
        mapped.to_lerobot(out, **options)
    assert seen == ["other software", "another run"]
    assert read_json(info)["total_episodes"] == 3
    assert table(out, "data")["episode_index"] == [*[0] * LENGTHS[0], *[1] * LENGTHS[1], *[2] * LENGTHS[2]]


def test_the_command(robot: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["to-lerobot", robot, out, "--fps", FPS]
    renamed = ["--rename", "steps/pose=", "--rename", "steps/reward=r"]
    assert f"{sum(LENGTHS)} rows" in shown(*command, "--robot-type", "arm", *renamed)
    info = read_json(out / "meta/info.json")
    assert info["robot_type"] == "arm" and info["fps"] == FPS and "r" in info["features"]
    assert "pose" not in info["features"] and "reward" not in info["features"]
    refused = run(*command)
    assert refused.exit_code == 1 and "belongs to another data set" in refused.output
    shown(*command, "--images", "--overwrite", "--columns", "steps/observation/top,steps/action")
    assert read_json(out / "meta/info.json")["features"]["observation.images.top"]["dtype"] == "image"
    before = read_json(out / "meta/info.json")["total_episodes"]
    for option in ("--append", "--resume"):
        shown(*command, "--images", "--append", option, "--columns", "steps/observation/top,steps/action")
    assert read_json(out / "meta/info.json")["total_episodes"] == 2 * before
    refused = run(*command, "--append")
    assert refused.exit_code == 1 and "cannot add episodes that differ" in refused.stderr
    wrong = run(*command, "--overwrite", "--append")
    assert wrong.exit_code == 2 and "--append adds to it" in wrong.stderr
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
