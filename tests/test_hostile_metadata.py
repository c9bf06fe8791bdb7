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


TEMPLATES = [
    *("../secret/{DATASET}", "a/../../secret/d", "/etc/passwd", "..", "..\\secret\\d", "C:\\d"),
    *("file:///etc/passwd", "simplecache::d", "{SPLIT}/../../secret/d", 5, ["a"]),
]
LENGTHS = [[2**70], [-5], ["-5"], [3.5], [True], [None], ["4"] * 3 + [str(2**63 - 1)], [[1]]]


@pytest.mark.parametrize(
    ("split", "said"),
    [
        *(({"filepathTemplate": each}, "(the metadata name|a filepathT)") for each in TEMPLATES),
        ({"name": "../../secret/d", "filepathTemplate": "{SPLIT}"}, "not within the directory of the data set"),
        *(({"shardLengths": each}, "shardLengths") for each in LENGTHS),
        *(({"shardLengths": [], "numShards": each}, "numShards|a split has up to") for each in (-1, 2**70, 1.5, [2])),
    ],
    ids=str,
)
def test_paths_outside_the_data_set_and_impossible_numbers(tmp_path: Path, split: dict[str, Any], said: str) -> None:
    with pytest.raises(SchemaError, match=said) as caught:
        dtf.read_tfrecord(folder(tmp_path, **split), {"x": dtf.FixedLenFeature((), "int64")})
    assert "dataset_info.json" in str(caught.value)
    assert "not to be listed" not in str(caught.value)


def test_files_in_directories_of_the_data_set_and_links_are_read(tmp_path: Path) -> None:
    data = folder(tmp_path, filepathTemplate="shards/{SHARD_X_OF_Y}")
    (data / "shards").mkdir()
    (data / "shards" / "00000-of-00001").symlink_to(data / "d-train.tfrecord-00000-of-00001")
    assert dtf.read_tfrecord(data, {"x": dtf.FixedLenFeature((), "int64")}, split="train").nrows == 4


@pytest.mark.parametrize("shape", ["[" * 900 + "]" * 900, "[" * 100_000 + "]" * 100_000])
def test_json_that_is_nested_too_deeply_is_refused(shape: str) -> None:
    text = json.dumps({"features": [ENTRY]}).replace("[]", shape)
    for nested in (text, shape):
        with pytest.raises(SchemaError, match="not the JSON of a Schema"):
            dtf.Schema.from_json(nested)


@pytest.mark.parametrize("sizes", [(2**32, 2**32), (2**70,), (2**63,), (2**50,), (0, 2**62), (1,) * 64])
def test_impossible_shapes_are_refused(sizes: tuple[int, ...]) -> None:
    for feature in (dtf.FixedLenFeature, dtf.RawFeature):
        with pytest.raises(SchemaError, match=r"at most 2\*\*48 values per record|at most 63 axes"):
            feature(sizes, "uint8")
    with pytest.raises(SchemaError, match=r"not the JSON of a Schema: FixedLenFeature: "):
        dtf.Schema.from_json(json.dumps({"features": [{**ENTRY, "shape": sizes}]}))
