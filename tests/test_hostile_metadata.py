"""Metadata with paths outside the data set or impossible sizes raise a `SchemaError` that names the field."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dask_tfrecord as dtf
from dask_tfrecord.errors import SchemaError

ENTRY = {"name": "x", "class": "FixedLenFeature", "shape": [], "dtype": "int64"}


def folder(directory: Path, **split: Any) -> Path:
    data = directory / "data"
    data.mkdir()
    dtf.to_tfrecord({"x": np.arange(4)}, data / "d-train.tfrecord-00000-of-00001")
    (directory / "secret").mkdir()
    (directory / "secret" / "d").write_text("not to be listed")
    info = {"name": "d", "splits": [{"name": "train", "shardLengths": ["4"], **split}]}
    (data / "dataset_info.json").write_text(json.dumps(info), "utf-8")
    features = {"pythonClassName": "FeaturesDict", "featuresDict": {"features": {}}}
    (data / "features.json").write_text(json.dumps(features), "utf-8")
    return data


@pytest.mark.parametrize(
    "template",
    [
        *("../secret/{DATASET}", "a/../../secret/d", "/etc/passwd", "..", "..\\secret\\d", "C:\\d"),
        *("file:///etc/passwd", "simplecache::d", "{SPLIT}/../../secret/d", 5, ["a"]),
    ],
)
def test_files_outside_the_data_set_are_refused_and_not_listed(tmp_path: Path, template: Any) -> None:
    with pytest.raises(
        SchemaError, match=r"dataset_info\.json: can't be read: (the metadata name|a filepathT)"
    ) as caught:
        dtf.read_tfrecord(folder(tmp_path, filepathTemplate=template), {"x": dtf.FixedLenFeature((), "int64")})
    assert "not to be listed" not in str(caught.value)


def test_names_of_splits_do_not_lead_outside(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="not within the directory of the data set"):
        dtf.read_tfrecord(folder(tmp_path, name="../../secret/d", filepathTemplate="{SPLIT}"))


def test_files_in_directories_of_the_data_set_and_links_are_read(tmp_path: Path) -> None:
    data = folder(tmp_path, filepathTemplate="shards/{SHARD_X_OF_Y}")
    (data / "shards").mkdir()
    (data / "shards" / "00000-of-00001").symlink_to(data / "d-train.tfrecord-00000-of-00001")
    assert dtf.read_tfrecord(data, {"x": dtf.FixedLenFeature((), "int64")}, split="train").nrows == 4


@pytest.mark.parametrize("lengths", [[2**70], [-5], ["-5"], [3.5], [True], [None], ["4"] * 3 + [str(2**63 - 1)], [[1]]])
def test_impossible_counts_are_refused(tmp_path: Path, lengths: Any) -> None:
    with pytest.raises(SchemaError, match="shardLengths"):
        dtf.read_tfrecord(folder(tmp_path, shardLengths=lengths), {"x": dtf.FixedLenFeature((), "int64")})


@pytest.mark.parametrize("number", [-1, 2**70, 1.5, [2]])
def test_numbers_of_shards_are_checked(tmp_path: Path, number: Any) -> None:
    with pytest.raises(SchemaError, match=r"numShards|a split has up to"):
        dtf.read_tfrecord(folder(tmp_path, shardLengths=[], numShards=number))


@pytest.mark.parametrize("shape", ["[" * 900 + "]" * 900, "[" * 100_000 + "]" * 100_000])
def test_json_that_is_nested_too_deeply_is_refused(shape: str) -> None:
    text = json.dumps({"features": [ENTRY]}).replace("[]", shape)
    with pytest.raises(SchemaError, match="not the JSON of a Schema"):
        dtf.Schema.from_json(text)
    with pytest.raises(SchemaError, match="not the JSON of a Schema"):
        dtf.Schema.from_json(shape)


@pytest.mark.parametrize("sizes", [(2**32, 2**32), (2**70,), (2**63,), (2**50,), (0, 2**62), (1,) * 64])
def test_impossible_shapes_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(SchemaError, match=r"at most 2\*\*48 values per record|at most 63 axes"):
        dtf.FixedLenFeature(sizes, "int64")
    with pytest.raises(SchemaError, match=r"at most 2\*\*48 values per record|at most 63 axes"):
        dtf.RawFeature(sizes, "uint8")
    with pytest.raises(SchemaError, match=r"not the JSON of a Schema: FixedLenFeature: "):
        dtf.Schema.from_json(json.dumps({"features": [{**ENTRY, "shape": sizes}]}))
