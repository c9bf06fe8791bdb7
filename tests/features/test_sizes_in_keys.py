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


LISTED = {"size_keys": ["shape"]}
OPEN = (-1, -1, -1)


@pytest.mark.parametrize(
    "feature",
    [
        dtf.RawFeature(OPEN, "float32", **LISTED),
        dtf.RawFeature(("h", "w", 3), "float32"),
        dtf.VarLenFeature("float32", shape=OPEN, **LISTED),
        dtf.VarLenFeature("float32", shape=("h", "w", 3)),
        dtf.VarLenFeature("float32", shape=(-1, -1, 3), **LISTED),
    ],
    ids=repr,
)
def test_arrays_of_each_class_and_kind_of_key(feature: Any, tmp_path: Path) -> None:
    arrays = [np.arange(h * w * 3, dtype="float32").reshape(h, w, 3) for h, w in ((2, 1), (0, 4), (3, 2))]
    is_raw = isinstance(feature, dtf.RawFeature)

    def record(array: Any, shape: Any) -> dict[str, list[Any]]:
        values = [array.tobytes()] if is_raw else array.ravel().tolist()
        return {"x": values, "shape": [*shape], "h": [shape[0]], "w": [shape[1]]}

    path = write(tmp_path, *(record(array, array.shape) for array in arrays))
    ds = dtf.read_tfrecord(path, {"x": feature}, chunks=2)

    def check(found: Any) -> None:
        assert [each.tolist() for each in found] == [each.tolist() for each in arrays]
        assert [each.shape for each in found] == [each.shape for each in arrays]

    check(ds["x"].compute())
    check(dtf.read_tfrecord(path, {"x": feature}, counts=None)["x"].compute())
    ds.to_zarr(tmp_path / "a.zarr")
    check(dtf.from_zarr(tmp_path / "a.zarr")["x"].compute())
    ds.to_tfrecord(tmp_path / "again")
    check(dtf.read_tfrecord(tmp_path / "again", ds.schema)["x"].compute())
    assert dtf.Schema.from_json(ds.schema.to_json()) == ds.schema
    rows = [row for array in arrays for row in array]
    assert [each.tolist() for each in ds.explode("x")["x"].compute()] == [row.tolist() for row in rows]
    for shape in ((2, 2, 3), (-1, 2, 3), (1, 1, 6)):
        broken = write(tmp_path, record(arrays[0], shape))
        if shape == (1, 1, 6) and (feature.shape == OPEN or "h" in feature.size_keys):
            continue
        with pytest.raises(dtf.FeatureError, match=r"record 0 .*make an array \("):
            dtf.read_tfrecord(broken, {"x": feature}).compute()
    with pytest.raises((SchemaError, dtf.FeatureError)):
        dtf.to_tfrecord({"x": [np.zeros((1, 1, 2), "float32")]}, tmp_path / "b", features={"x": feature})
        dtf.to_tfrecord({"x": [np.zeros((1, 2), "float32")]}, tmp_path / "b", features={"x": feature}, mode="w")


def test_a_fixed_number_of_values_has_no_keys_for_sizes() -> None:
    with pytest.raises(SchemaError, match=r"write VarLenFeature\('float32', shape=\('h', 5\)\)"):
        dtf.FixedLenFeature(("h", 5), "float32")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="arrays of times may have only one open size"):
        dtf.VarLenFeature("datetime64[s]", shape=("h", "w"))


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
        ((-1, -1, -1), {"size_keys": ("h", "w")}),
    ]:
        with pytest.raises(SchemaError, match="RawFeature"):
            dtf.RawFeature(shape, "uint8", **options)
        if "count" not in options and shape != (-1, -1):
            with pytest.raises(SchemaError, match="VarLenFeature"):
                dtf.VarLenFeature("uint8", shape=shape, **options)
    with pytest.raises(SchemaError, match="have no keys for sizes"):
        dtf.ProtoFeature("a", values=PICTURE)


def test_steps_have_no_keys_for_sizes(tmp_path: Path) -> None:
    path = tmp_path / "steps.tfrecord"
    with dtf.RecordWriter(path) as writer:
        writer.write(sequence_example(image=[[b"abc"]]))
    with pytest.raises(SchemaError, match="is not supported in sequence_features"):
        dtf.read_tfrecord(path, sequence_features={"image": PICTURE})
