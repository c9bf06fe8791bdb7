"""A feature class outside of the package works in every output, and in every step before it."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import dask
import numpy as np
import pytest
from cases import OUTPUTS
from support.any_columns import rows_like
from support.few import mostly_slow
from support.programs import run_python
from support.store_round_trip import assert_same

import dask_tfrecord as dtf
from extension.wav import WaveFeature

FEATURES = {"sound": WaveFeature(8_000), "takes": WaveFeature(count=-1), "label": dtf.FixedLenFeature((), "int64")}
ROWS = 11


@pytest.fixture
def rows() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    takes = dtf.RaggedBlock(rows_like(dtf.TensorFeature((-1,), "int16"), 20, rng), np.r_[np.arange(ROWS), 20])
    return {"sound": rows_like(dtf.VarLenFeature("int16"), ROWS, rng), "takes": takes, "label": np.arange(ROWS)}


@pytest.fixture
def ds(rows: dict[str, Any], tmp_path: Path) -> Iterator[dtf.Dataset]:
    dtf.to_tfrecord(rows, f"{tmp_path}/in/{{shard}}.tfrecord", features=FEATURES, records_per_shard=5)
    with dask.config.set(scheduler="sync"):
        yield dtf.read_tfrecord(tmp_path / "in", FEATURES, chunks=4)


@pytest.mark.parametrize("output", mostly_slow(OUTPUTS, 3))
def test_every_output_has_the_samples(ds: dtf.Dataset, rows: dict[str, Any], output: str, tmp_path: Path) -> None:
    wanted = {name: np.asarray(block) for name, block in rows.items()}
    OUTPUTS[output](ds, wanted, tmp_path)


def test_samples_explode_and_filter(ds: dtf.Dataset, rows: dict[str, Any]) -> None:
    samples = np.concatenate([*rows["sound"].views()])
    exploded, lengths = ds.explode("sound", repeat=["label"]), np.diff(rows["sound"].row_splits)
    assert_same(exploded[["sound", "label"]].compute(), {"sound": samples, "label": np.repeat(rows["label"], lengths)})
    assert_same(ds.explode("takes")[["takes"]].compute(), {"takes": np.asarray(rows["takes"].values)})
    kept = ds.where([("label", "in", [0, 2, 4, 6, 8, 10])])
    assert ds.where([("len(sound)", ">", 0)]).nrows == (np.diff(rows["sound"].row_splits) > 0).sum()
    assert_same(kept.compute(), {name: np.asarray(block)[::2] for name, block in rows.items()})


def test_displays_describe_samples(ds: dtf.Dataset, tmp_path: Path) -> None:
    assert "WaveFeature(rate=8000)" in repr(ds)
    assert "sound" in repr(ds.describe())
    assert "sound" in ds.preview(3)._repr_html_()
    with ds.view() as server, urlopen(f"{server.url}api/rows?stop=3") as answer:
        assert len(json.load(answer)["cells"]) == 3


def test_a_broken_file_is_an_error_of_its_record(tmp_path: Path) -> None:
    dtf.to_tfrecord({"sound": np.array([b"RIFF", b""], object)}, f"{tmp_path}/a.tfrecord", features={"sound": BYTES})
    with pytest.raises(
        dtf.FeatureError, match=r"record 0 .*'sound' can't be decoded by WaveFeature\(\): EOF"
    ) as caught:
        dtf.read_tfrecord(tmp_path / "a.tfrecord", {"sound": WaveFeature()}).compute()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


BYTES = dtf.FixedLenFeature((), "bytes")


def test_schemas_in_files_need_the_module_of_the_class(ds: dtf.Dataset) -> None:
    text = ds.schema.to_json()
    assert dtf.Schema.from_json(text) == ds.schema
    code = "import sys, dask_tfrecord as dtf; dtf.Schema.from_json(sys.argv[1])"
    with pytest.raises(Exception, match="import the module that registers it"):
        run_python("-c", code, text)
    assert json.loads(text)["features"][0] == {"name": "sound", "class": "WaveFeature", "rate": 8000}
    assert sys.modules["extension.wav"].WaveFeature is WaveFeature


def test_metadata_describe_the_files(rows: dict[str, Any], tmp_path: Path) -> None:
    features = {name: FEATURES[name] for name in ("sound", "label")}
    names = {"name": "sounds", "version": "1.0.0", "split": "train"}
    written = {name: rows[name] for name in features}
    dtf.to_tfrecord(written, f"{tmp_path}/sounds", features=features, tfds=names)
    (path,) = tmp_path.rglob("features.json")
    entry = json.loads(path.read_text())["featuresDict"]["features"]["sound"]
    assert entry["pythonClassName"] == "tensorflow_datasets.core.features.audio_feature.Audio"
    assert entry["audio"]["lazyDecode"] is True and entry["audio"]["sampleRate"] == "8000"
    # Readers of the metadata alone get the bytes of the files.
    ds = dtf.read_tfrecord(path.parent)
    assert [value[:4] for value in ds["sound"].compute()] == [b"RIFF"] * ROWS
    assert_same(dtf.read_tfrecord(path.parent, features)[["sound"]].compute(), {"sound": np.asarray(rows["sound"])})
    with pytest.raises(dtf.SchemaError, match="TFDS has no class that reads"):
        takes = {"takes": rows["takes"]}
        dtf.to_tfrecord(takes, f"{tmp_path}/takes", features={"takes": FEATURES["takes"]}, tfds=names)
    dtf.Schema(features).to_pbtxt(tmp_path / "schema.pbtxt")
    assert dtf.Schema.read(tmp_path / "schema.pbtxt")["sound"] == BYTES
