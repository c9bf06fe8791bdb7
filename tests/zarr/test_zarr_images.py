"""`to_zarr(…, encoded_images=True)`: images keep their bytes in the store, and are read as TensorFlow's pixels."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from oracle import write_oracle
from support import golden as tensorflow
from support.bits import bits
from support.commands import run
from support.few import mostly_slow
from support.store_round_trip import assert_same
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.errors import FeatureError

Image = pytest.importorskip("PIL.Image")
ROWS, SHAPE = 23, (6, 8, 3)
FEATURES: dict[str, Any] = {"image": dtf.ImageFeature(SHAPE), "label": dtf.FixedLenFeature((), "int64")}


def encoded(pixels: Any, kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture
def files() -> list[bytes]:
    rng = np.random.default_rng(0)
    return [encoded(rng.integers(0, 256, SHAPE, np.uint8), "JPEG" if row % 2 else "PNG") for row in range(ROWS)]


@pytest.fixture
def ds(tmp_path: Path, files: list[bytes]) -> dtf.Dataset:
    write_oracle(tmp_path / "x", [example(image=[file], label=[row]) for row, file in enumerate(files)])
    return dtf.read_tfrecord(tmp_path / "x", FEATURES, chunks=9)


@pytest.mark.parametrize(
    "grid", mostly_slow([{}, {"chunks": 1}, {"chunks": 5}, {"chunks": 5, "shards": 10}, {"shards": "2 kB"}], 3)
)
def test_images_are_equal_and_keep_their_bytes(
    tmp_path: Path, ds: dtf.Dataset, files: list[bytes], grid: dict[str, Any]
) -> None:
    wanted = ds.compute()
    ds.to_zarr(tmp_path / "store", encoded_images=True, **grid)
    assert_same(dtf.from_zarr(tmp_path / "store").compute(), wanted)
    assert_same(dtf.from_zarr(tmp_path / "store").rows[[20, 3, 3]].compute(), ds.rows[[20, 3, 3]].compute())
    array: Any = zarr.open_group(tmp_path / "store", mode="r")["image"]
    assert array.chunks == (1, *SHAPE) and bits(array[4:12]) == bits(wanted["image"][4:12])
    xarray = pytest.importorskip("xarray")
    assert bits(xarray.open_zarr(tmp_path / "store")["image"].values) == bits(wanted["image"])
    stored = b"".join(path.read_bytes() for path in (tmp_path / "store" / "image" / "c").rglob("*") if path.is_file())
    assert all(file in stored for file in files)
    assert len(stored) <= sum(map(len, files)) + 16 * (ROWS + 20) + 4 * ROWS
    with pytest.raises(NotImplementedError, match="encoded_images=True"):
        zarr.open_group(tmp_path / "store", mode="r+")["image"][:] = 1  # type: ignore[index]


def test_answers_of_tensorflow(golden: Path, tmp_path: Path) -> None:
    path, spec = tensorflow.shard(golden, "images"), tensorflow.spec(golden, "images")
    dtf.read_tfrecord(path, **spec).to_zarr(tmp_path / "store", encoded_images=True)
    found, answers = dtf.from_zarr(tmp_path / "store").compute(), tensorflow.expected(golden, "images")
    assert {name: bits(found[name]) for name in answers} == {name: bits(each) for name, each in answers.items()}


def test_options_of_decoding_are_kept(tmp_path: Path, ds: dtf.Dataset) -> None:
    features = {"image": dtf.ImageFeature(size=(3, 4), channels=1, dtype="float32")}
    small = dtf.read_tfrecord(tmp_path / "x", features)
    small.to_zarr(tmp_path / "store", encoded_images=True)
    assert_same(dtf.from_zarr(tmp_path / "store").compute(), small.compute())


def test_other_columns_and_rows(tmp_path: Path, ds: dtf.Dataset) -> None:
    picked = ds.rows[::3][["image"]]
    picked.to_zarr(tmp_path / "store", encoded_images=True)
    assert_same(dtf.from_zarr(tmp_path / "store").compute(), picked.compute())


def test_an_interrupted_conversion_continues(tmp_path: Path, ds: dtf.Dataset) -> None:
    ds.to_zarr(tmp_path / "store", encoded_images=True, chunks=5, compute=False)
    ds.to_zarr(tmp_path / "store", encoded_images=True, chunks=5, resume=True)
    assert_same(dtf.from_zarr(tmp_path / "store").compute(), ds.compute())


def test_images_that_do_not_fit_are_named(tmp_path: Path, files: list[bytes]) -> None:
    for number, bad in enumerate((encoded(np.zeros((2, 2, 3), np.uint8), "PNG"), b"no image")):
        write_oracle(tmp_path / f"{number}", [example(image=[file]) for file in (files[0], files[1], bad)])
        ds = dtf.read_tfrecord(tmp_path / f"{number}", {"image": FEATURES["image"]})
        with pytest.raises(FeatureError, match=r"row 2 of feature 'image' holds"):
            ds.to_zarr(tmp_path / "store", encoded_images=True)
        assert not (tmp_path / "store").exists()


def test_a_damaged_image_raises(tmp_path: Path, ds: dtf.Dataset, files: list[bytes]) -> None:
    ds.to_zarr(tmp_path / "store", encoded_images=True, chunks=1)
    path = tmp_path / "store" / "image" / "c" / "1" / "0" / "0" / "0"
    path.write_bytes(files[1][:200])
    with pytest.raises(FeatureError, match="a chunk holds"):
        dtf.from_zarr(tmp_path / "store").compute()


def test_without_images_of_one_size(tmp_path: Path, ds: dtf.Dataset) -> None:
    for rows in (ds[["label"]], dtf.read_tfrecord(tmp_path / "x", {"image": dtf.ImageFeature()})):
        with pytest.raises(ValueError, match="encoded_images=True keeps the bytes of images"):
            rows.to_zarr(tmp_path / "store", encoded_images=True)
    with pytest.raises(ValueError, match="encoded_images=True keeps the bytes of images"):
        dtf.to_zarr({"x": np.arange(3)}, tmp_path / "store", encoded_images=True)


def test_the_command(tmp_path: Path, ds: dtf.Dataset, files: list[bytes]) -> None:
    (tmp_path / "schema.json").write_text(dtf.Schema(FEATURES).to_json(), "utf-8")
    store = tmp_path / "store"
    result = run("to-zarr", tmp_path / "x", store, "--features", tmp_path / "schema.json", "--encoded-images")
    assert result.exit_code == 0, result.stderr
    assert_same(dtf.from_zarr(store).compute(), ds.compute())
    stored = b"".join(path.read_bytes() for path in (store / "image" / "c").rglob("*") if path.is_file())
    assert all(file in stored for file in files)
