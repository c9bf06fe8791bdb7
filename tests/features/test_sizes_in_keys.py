"""Raw arrays whose sizes are in other keys of the record; `test_cases.py` sends them through every output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.wire import example, sequence_example

import dask_tfrecord as dtf
from dask_tfrecord.errors import SchemaError

PICTURE = dtf.RawFeature(("image/height", "image/width", 3), "uint8")


def write(folder: Path, *records: dict[str, list[Any]]) -> str:
    with dtf.RecordWriter(folder / "in.tfrecord") as writer:
        for record in records:
            writer.write(example(**record))
    return str(folder / "in.tfrecord")


def picture(height: int, width: int) -> dict[str, list[Any]]:
    pixels = np.arange(height * width * 3, dtype=np.uint8).tobytes()
    return {"image": [pixels], "image/height": [height], "image/width": [width]}


def test_sizes_come_from_keys_that_may_be_columns_too(tmp_path: Path) -> None:
    path = write(tmp_path, picture(2, 3), picture(3, 2), picture(0, 7))
    height = dtf.FixedLenFeature((), "int64")
    ds = dtf.read_tfrecord(path, {"image": PICTURE, "image/height": height}, chunks=2)
    found = ds.compute()
    assert [image.shape for image in found["image"]] == [(2, 3, 3), (3, 2, 3), (0, 7, 3)]
    assert found["image"][1].ravel().tolist() == list(range(18))
    assert found["image/height"].tolist() == ds["image/height"].compute().tolist() == [2, 3, 0]
    assert [image.shape for image in ds["image"].compute()] == [(2, 3, 3), (3, 2, 3), (0, 7, 3)]
    ds.to_zarr(tmp_path / "out.zarr")
    assert dtf.from_zarr(tmp_path / "out.zarr")["image"].compute()[1].shape == (3, 2, 3)


def test_writing_adds_the_keys(tmp_path: Path) -> None:
    ds = dtf.read_tfrecord(write(tmp_path, picture(2, 3), picture(1, 1)), {"image": PICTURE})
    ds.to_tfrecord(tmp_path / "out")
    names = ("image/height", "image/width")
    sizes = dtf.read_tfrecord(tmp_path / "out", dict.fromkeys(names, dtf.FixedLenFeature((), "int64"))).compute()
    assert [sizes[name].tolist() for name in names] == [[2, 1], [3, 1]]
    images = np.empty(2, object)
    images[:] = [np.zeros((2, 1, 3), np.uint8), np.zeros((2, 2, 3), np.uint8)]
    columns = {"image": images, "image/height": np.array([2, 3])}
    features = {"image": PICTURE, "image/height": dtf.FixedLenFeature((), "int64")}
    with pytest.raises(SchemaError, match="share the key 'image/height', and their columns hold different values"):
        dtf.to_tfrecord(columns, tmp_path / "b.tfrecord", features=features)


def test_one_size_makes_ragged_rows_and_one_key_may_be_two_sizes(tmp_path: Path) -> None:
    values = np.arange(4.0).tobytes()
    path = write(tmp_path, {"x": [values], "n": [2]})
    ragged, square = dtf.RawFeature(("n", 2), "float64"), dtf.RawFeature(("n", "n"), "float64")
    ds = dtf.read_tfrecord(path, {"x": ragged})
    assert ds.explode("x")["x"].compute().tolist() == [[0, 1], [2, 3]]
    assert dtf.read_tfrecord(path, {"x": square})["x"].compute()[0].tolist() == [[0, 1], [2, 3]]
    with pytest.raises(dtf.FeatureError, match="holds an array with sizes 1 and 2, both those of 'n'"):
        rows = np.empty(1, object)
        rows[0] = np.zeros((1, 2))
        dtf.to_tfrecord({"x": rows}, tmp_path / "out.tfrecord", features={"x": square})


@pytest.mark.parametrize(
    ("height", "message"),
    [
        (3, r"holds 18 bytes where image/height, image/width make an array \(3, 3, 3\) of uint8"),
        (-2, r"make an array \(-2, 3, 3\)"),
        (1 << 62, "holds 18 bytes where"),
        (None, "key 'image/height', is missing, and RawFeature"),
    ],
)
def test_sizes_that_do_not_fit_are_errors_of_the_record(height: int | None, message: str, tmp_path: Path) -> None:
    broken = picture(2, 3) | {"image/height": [] if height is None else [height]}
    with pytest.raises(dtf.FeatureError, match=rf"record 1 .*{message}"):
        dtf.read_tfrecord(write(tmp_path, picture(2, 3), broken), {"image": PICTURE}).compute()


def test_features_are_equal_and_read_from_json() -> None:
    same = dtf.RawFeature((-1, -1, 3), "uint8", size_keys=("image/height", "image/width"))
    assert same == PICTURE
    schema = dtf.Schema({"image": PICTURE})
    assert dtf.Schema.from_json(schema.to_json()) == schema
    for shape, options in [
        (("h", -1), {}),
        (("h",), {"size_keys": ("h",)}),
        ((-1, -1), {}),
        (("h",), {"count": -1}),
        ((2,), {"size_keys": ("h",)}),
    ]:
        with pytest.raises(SchemaError, match="RawFeature"):
            dtf.RawFeature(shape, "uint8", **options)
    with pytest.raises(SchemaError, match="have no keys for sizes"):
        dtf.ProtoFeature("a", values=PICTURE)


def test_steps_have_no_keys_for_sizes(tmp_path: Path) -> None:
    path = tmp_path / "steps.tfrecord"
    with dtf.RecordWriter(path) as writer:
        writer.write(sequence_example(image=[[b"abc"]]))
    with pytest.raises(SchemaError, match="is not supported in sequence_features"):
        dtf.read_tfrecord(path, sequence_features={"image": PICTURE})
