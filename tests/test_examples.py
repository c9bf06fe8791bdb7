"""The scripts of examples/: each runs on data that it makes, and scripts of tf.data return TensorFlow's arrays."""

from __future__ import annotations

import importlib.util
import inspect
import json
import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import fsspec
import numpy as np
import oracle
import pytest
from support.paths import REPOSITORY
from support.programs import run_program, run_python

import dask_tfrecord as dtf

EXAMPLES = REPOSITORY / "examples"
PAGE = EXAMPLES.parent / "docs" / "how-to" / "from-tf-data.md"
MIGRATIONS = sorted(path.stem for path in (EXAMPLES / "from_tf_data").glob("*.py"))
RECORDS = 30

# Runs a function of an example in an interpreter that has TensorFlow and lacks this library.
RUN = """
import os, pickle, sys
os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3")
from pathlib import Path
from typing import Any
exec(sys.stdin.read())
columns = with_tf_data(Path(sys.argv[1]))
Path(sys.argv[2]).write_bytes(pickle.dumps({name: column.tolist() for name, column in columns.items()}))
"""


@pytest.mark.integration
def test_a_cluster_converts_shards() -> None:
    printed = run_python(EXAMPLES / "cluster.py").stdout
    assert "200 rows in 2 chunks" in printed and "label: mean 4.500" in printed and "score: mean 0.500" in printed


@pytest.mark.integration
def test_shards_of_a_bucket_are_a_repository(tmp_path: Path, s3: dict[str, Any]) -> None:
    for package in ("icechunk", "xarray"):
        pytest.importorskip(package)
    files = fsspec.filesystem("s3", **s3)
    files.mkdir("pictures", acl="public-read")
    for number in range(2):
        dtf.to_tfrecord({"label": np.arange(50) + 50 * number}, tmp_path / "train.tfrecord", mode="w")
        files.put(str(tmp_path / "train.tfrecord"), f"pictures/train-{number}.tfrecord")
    more = ["--more", "s3://pictures/train-1*", "--endpoint", s3["endpoint_url"]]
    printed = run_python(
        EXAMPLES / "virtual_bucket.py", "s3://pictures/train-0*", tmp_path / "repository", *more
    ).stdout
    assert printed.count("<VirtualZarr: 50 records of 1 file: label>") == 2
    assert "(record: 100)" in printed and "label: mean 49.500" in printed


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{Path(name).name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_lists(column: Any) -> Any:
    return [np.asarray(row).tolist() for row in column] if column.dtype == object else column.tolist()


def test_mixed_features(tmp_path: Path) -> None:
    columns = load("from_tf_data/mixed_features").main(tmp_path / "new", RECORDS)
    assert columns["id"].tolist() == list(range(RECORDS))
    assert columns["name"][7] == b"record 7" and columns["weight"].tolist() == [1.0] * RECORDS
    assert [len(row) for row in columns["tokens"]] == [record % 4 for record in range(RECORDS)]


def test_sequences_and_boxes(tmp_path: Path) -> None:
    batch = load("from_tf_data/sequences_and_boxes").main(tmp_path, RECORDS)
    assert batch["boxes"].shape == (RECORDS, 5, 4) == batch["frames"].shape
    assert (batch["boxes"][0, 0] > 0).all() and not batch["boxes"][0, 1:].any()
    assert batch["label"].shape == (RECORDS, 5)


def test_fields_as_bytes(tmp_path: Path) -> None:
    fields = load("from_tf_data/fields_as_bytes").main(tmp_path, RECORDS)
    assert fields["temperature"].shape == (RECORDS, 8, 12, 2) and 270 < fields["temperature"].mean() < 290
    assert set(np.unique(fields["mask"])) == {0, 1}


def test_image_classification(tmp_path: Path) -> None:
    columns = load("from_tf_data/image_classification").main(tmp_path, RECORDS)
    assert columns["image/encoded"].shape == (RECORDS, 16, 16, 3) and columns["image/encoded"].dtype == np.float32
    assert 0.4 < columns["image/encoded"].mean() < 0.6


def test_preprocessed_shards(tmp_path: Path) -> None:
    columns = load("from_tf_data/preprocessed_shards").main(tmp_path, RECORDS)
    raw = dtf.read_tfrecord(tmp_path / "raw-*.tfrecord")["values"].compute()
    assert np.array_equal(columns["values"], (raw - 5) / 2)
    counts = [len(oracle.read_payloads(path)) for path in sorted(tmp_path.glob("normal-*.tfrecord"))]
    assert counts == [15, 15]


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", MIGRATIONS)
def test_arrays_equal_those_of_tensorflow(name: str, tensorflow: str, tmp_path: Path) -> None:
    module, answer = load(f"from_tf_data/{name}"), tmp_path / "answer.pickle"
    data = tmp_path / "data"
    found = module.main(data, RECORDS)
    done = run_program(tensorflow, "-c", RUN, data, answer, input=inspect.getsource(module.with_tf_data))
    assert done.returncode == 0, done.stderr
    expected = pickle.loads(answer.read_bytes())
    # Frames have their number of steps too.
    assert expected.keys() == found.keys() - {"frames.lengths"}
    for column, values in expected.items():
        if column == "image/encoded":
            np.testing.assert_allclose(found[column], values, atol=1e-6)
        elif found[column].dtype == object:
            assert as_lists(found[column]) == [np.asarray(row).tolist() for row in values], column
        else:
            assert as_lists(found[column]) == values, column


@pytest.mark.parametrize("name", MIGRATIONS)
def test_the_page_shows_code_that_is_shorter(name: str) -> None:
    module, page = load(f"from_tf_data/{name}"), PAGE.read_text("utf-8")
    sources = [inspect.getsource(function) for function in (module.with_tf_data, module.with_dask_tfrecord)]
    for source in sources:
        assert source in page
    theirs, ours = (len([line for line in source.splitlines() if line.strip()]) for source in sources)
    assert ours < theirs


def test_earth_engine(tmp_path: Path) -> None:
    pytest.importorskip("xarray")
    example = load("earth_engine")
    ds = example.main(tmp_path, rows=4, columns=3)
    assert ds["B4"].dims == ("y", "x") and ds["B4"].shape == (48, 48) and ds["B4"].chunks == ((12,) * 4, (48,))
    assert ds["x"].to_numpy()[:2].tolist() == [399965.0, 399975.0]
    assert ds["y"].to_numpy()[:2].tolist() == [4600015.0, 4600005.0]
    assert ds["spatial_ref"].attrs["GeoTransform"] == "399960.0 10.0 0.0 4600020.0 0.0 -10.0"
    # A shard is lost.
    (tmp_path / "scene-00001.tfrecord.gz").unlink()
    with pytest.raises(ValueError, match="states 12 patches, 3 per row; the shards hold 6"):
        example.open_export(tmp_path, "scene-", ["B4"])


def test_rlds_to_zarr(tmp_path: Path) -> None:
    group = load("rlds_to_zarr").main(tmp_path, 5)
    ends = group["meta/episode_ends"][:]
    assert len(ends) == 5 and group["data"]["steps.image"].shape == (ends[-1], 16, 16, 3)
    assert np.diff(group["data"]["episode_id"][:]).nonzero()[0].tolist() == (ends[:-1] - 1).tolist()


def test_training_loop(tmp_path: Path) -> None:
    example = load("training_loop")
    losses = example.main(tmp_path, 600)
    assert losses[0] == pytest.approx(np.log(3)) and losses[-1] < 0.5
    # An interruption changes no batch.
    weights = np.zeros((3, 3))
    batches = dtf.read_tfrecord(tmp_path / "points-*.tfrecord").batches(32, shuffle="full", seed=9, epochs=3)
    assert example.train(batches, weights) == losses


def test_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    means = load("parquet_files").main(tmp_path, 200)
    assert means["label"].to_pylist() == [0, 1, 2, 3] and sum(means["score_count"].to_pylist()) == 200
    columns = dtf.read_tfrecord(tmp_path / "train-*.tfrecord")[["label", "score"]].compute()
    expected = [columns["score"][columns["label"] == label].mean(dtype=np.float64) for label in range(4)]
    np.testing.assert_allclose(means["score_mean"].to_pylist(), expected)


@pytest.mark.integration
def test_the_quickstart_prints_plain_lines_to_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    quickstart = load("quickstart")
    quickstart.RECORDS_PER_SHARD = 20
    quickstart.main(tmp_path)
    printed = capfd.readouterr().out
    assert "read the store back and compared every value" in printed
    assert all(line.isprintable() for line in printed.split("\n"))


def openpi_frames(rows: dict[str, Any], ranges: dict[str, Any]) -> list[tuple[int, int]]:
    """Return the episode and step of each frame that openpi trains on: of successes, and within a range."""
    keys = {f"{key}--{step}" for key, pairs in ranges.items() for pair in pairs for step in range(*pair)}
    folders, files = (rows[f"episode_metadata/{name}"] for name in ("recording_folderpath", "file_path"))
    return [
        (number, step)
        for number, actions in enumerate(rows["steps/action_dict/joint_position"])
        for step in range(len(actions))
        if "success" in files[number] and f"{folders[number]}--{files[number]}--{step}" in keys
    ]


@pytest.mark.slow
def test_droid_windows_are_those_of_openpi(tmp_path: Path) -> None:
    pytest.importorskip("simplejpeg")
    droid = load("droid")
    batches = droid.main(tmp_path, 6)
    assert {len(batch[droid.INSTRUCTION]) for batch in batches} == {8}
    action = droid.ACTION[0]
    for seed, name in enumerate(("droid", "kitchen")):
        rows = droid.episode_rows(6, seed)
        frames = openpi_frames(rows, json.loads((tmp_path / f"{name}.json").read_text()))
        assert 0 < len(frames) < 0.8 * sum(map(len, rows[action]))
        found = droid.open_windows(tmp_path, name).compute()
        assert [*zip(found["record"].tolist(), found["step"].tolist(), strict=True)] == [
            # Failures were left out, so later episodes have smaller numbers.
            (number - sum("failure" in file for file in rows[droid.KEY[1]][:number]), step)
            for number, step in frames
        ]
        for column in droid.ACTION:
            # The last action is repeated past the end of the episode.
            actions = rows[column]
            wanted = [actions[each][np.minimum(step + np.arange(16), len(actions[each]) - 1)] for each, step in frames]
            assert np.array_equal(found[column], np.stack(wanted))
        for column in (*droid.STATE, droid.INSTRUCTION):
            values = [np.asarray(each).tolist() for each in rows[column]]
            assert found[column].tolist() == [values[number][step] for number, step in frames]
        for column in droid.CAMERAS:
            stored = np.stack([rows[column][number][step] for number, step in frames[::9]])
            resized = dtf.resize_images(stored, (224, 224))
            # JPEG is lossy.
            assert found[column].shape[1:] == (224, 224, 3) and found[column].dtype == np.uint8
            assert np.abs(found[column][::9] - resized).mean() < 8


@pytest.mark.slow
def test_droid_resumes_within_an_epoch_and_ranks_share_it(tmp_path: Path) -> None:
    pytest.importorskip("simplejpeg")
    droid = load("droid")
    first = droid.main(tmp_path, 6)
    parts = [droid.open_windows(tmp_path, name)[[droid.KEY[0], "step"]] for name in ("droid", "kitchen")]
    mixture = dtf.sample_from_datasets(parts, [0.7, 0.3], seed=0, stop_on_empty_dataset=True)

    def rows(batches: Any) -> list[tuple[str, int]]:
        return [
            (str(key), int(step))
            for batch in batches
            for key, step in zip(batch[droid.KEY[0]], batch["step"], strict=True)
        ]

    ranks = [rows(mixture.batches(8, shuffle="window", seed=1, shard=(rank, 2))) for rank in range(2)]
    assert len({*ranks[0], *ranks[1]}) == mixture.nrows == sum(map(len, ranks))
    resumed = rows(first)
    assert len({*resumed}) == len(resumed) == len(first) * 8
