"""Labels of xarray Datasets: dimensions, coordinates, dtypes and attributes next to the shards of `to_tfrecord`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dask_tfrecord as dtf
from dask_tfrecord.errors import SchemaError

xr = pytest.importorskip("xarray")
ROWS = 7


def weather() -> Any:
    """Return a Dataset with every dtype and kind of coordinate that is kept."""
    days = np.datetime64("2020-01-01", "us") + np.arange(ROWS) * np.timedelta64(1, "D")
    broken = days.astype("M8[s]")
    broken[3] = np.datetime64("NaT", "s")
    return xr.Dataset(
        {
            "t": (("time", "lat", "lon"), np.arange(ROWS * 6.0).reshape(ROWS, 2, 3) / 7, {"units": "K"}),
            "half": ("time", np.arange(ROWS, dtype="f2"), {"valid": np.array([0.0, np.nan]), "scale": np.float32(0.1)}),
            "small": (("time", "lat"), np.arange(ROWS * 2, dtype="i1").reshape(ROWS, 2)),
            "flag": ("time", np.arange(ROWS) % 2 == 0),
            "wave": ("time", np.arange(ROWS) * 1j),
            "when": ("time", broken),
            "lasts": ("time", np.arange(ROWS).astype("m8[ms]")),
            "station": ("time", np.array(["a", "", "é", "long", "e", "f", "g"])),
        },
        coords={
            "time": ("time", days, {"axis": "T"}),
            "lat": ("lat", [1.5, np.nan], {"units": "degrees"}),
            "lon": ["x", "yy", "z"],
            "season": ("time", np.array([*"abcdefg"], object)),
            "run": 3,
            "start": np.datetime64("2020-01-01", "s"),
            "height": (("lat", "lon"), np.ones((2, 3), "f4")),
            "who": ("lat", np.array(["p", "q"], object)),
        },
        attrs={"title": "x", "n": np.int64(3), "of": [1, "a", 2.5], "pair": (1, None), "nan": float("nan"), "b": b"\0"},
    )


def assert_identical(found: Any, expected: Any) -> None:
    """Compare values, dimensions, coordinates, attributes, and dtypes of values and of attributes."""
    xr.testing.assert_identical(found.compute(), expected)
    for name, variable in expected.variables.items():
        assert found[name].dtype == variable.dtype, name
        for key, value in variable.attrs.items():
            assert type(found[name].attrs[key]) is type(value)
    assert {name: type(value) for name, value in found.attrs.items()} == {
        name: type(value) for name, value in expected.attrs.items()
    }
    assert set(found.xindexes) == set(expected.xindexes)


def test_an_xarray_dataset_is_opened_as_it_was_written(tmp_path: Path, xarray_engine: str) -> None:
    dtf.to_tfrecord(weather(), tmp_path / "w-{shard:05d}-of-{shards:05d}.tfrecord", records_per_shard=3)
    for chunks in (None, {}):
        opened = xr.open_dataset(tmp_path / "w-*.tfrecord", engine=xarray_engine, chunks=chunks)
        assert_identical(opened, weather())
    assert opened.chunks["time"] == (3, 3, 1)
    assert opened.sel(time="2020-01-03")["station"].values == "é"
    assert_identical(xr.open_mfdataset(sorted(tmp_path.glob("w-*.tfrecord")), data_vars="minimal"), weather())
    read = dtf.read_tfrecord(tmp_path)
    assert_identical(read.to_xarray(), weather())
    assert_identical(read.to_xarray(together=True), weather())
    assert read.schema["small"] == dtf.FixedLenFeature((2,), "int8")
    assert_identical(read.rows[2:4].to_xarray(), weather().isel(time=slice(2, 4)))
    assert read.map_blocks(dict).to_xarray()["t"].dims == ("record", "t.dim_1", "t.dim_2")


def test_arrays_in_chunks_and_opened_datasets_are_written(tmp_path: Path, xarray_engine: str) -> None:
    given = weather().drop_vars("season")
    dtf.to_tfrecord(given.chunk(time=2), tmp_path / "first/", compute=False).compute()
    again = xr.open_dataset(tmp_path / "first", engine=xarray_engine, chunks={})
    dtf.to_tfrecord(again, tmp_path / "second/")
    assert_identical(xr.open_dataset(tmp_path / "second", engine=xarray_engine), given)


def test_arguments_take_precedence(tmp_path: Path, xarray_engine: str) -> None:
    dtf.to_tfrecord(weather(), tmp_path / "w.tfrecord")
    path = tmp_path / "w.tfrecord"
    features = {"small": dtf.FixedLenFeature((2,), "int64"), "when": dtf.FixedLenFeature((1,), "int64")}
    opened = xr.open_dataset(path, engine=xarray_engine, features=features, drop_variables=["height", "who"])
    assert opened["small"].dtype == np.int64 and opened["small"].dims == ("time", "lat")
    assert opened["when"].dims == ("time", "when.dim_1") and opened["when"].dtype == np.int64
    assert set(opened.coords) == {"lat", "lon", "run", "start"}
    axes = {"t": ("y", "x")}
    assert xr.open_dataset(path, dimension_names=axes, coords=["half"])["t"].dims == ("time", "y", "x")
    tree = xr.open_datatree(path)
    assert_identical(tree.to_dataset(), weather())
    assert dtf.read_tfrecord(path, columns=["t"]).to_xarray()["t"].attrs == {"units": "K"}


def test_nested_variables_are_written_and_opened_as_groups(tmp_path: Path, xarray_engine: str) -> None:
    given = xr.Dataset({"a": ("row", [1, 2]), "steps/b": ("row", [3, 4], {"units": "m"})}, {"k": 1}, {"title": "x"})
    dtf.to_tfrecord(given, tmp_path / "x.tfrecord")
    tree = xr.open_datatree(tmp_path / "x.tfrecord", engine=xarray_engine)
    assert tree.attrs == {"title": "x"} and tree["steps"].attrs == {}
    assert tree["steps/b"].attrs == {"units": "m"} and tree["steps/b"].dims == ("row",)
    assert tree["k"].item() == 1


def test_the_file_belongs_to_its_shard(tmp_path: Path) -> None:
    path, labels = tmp_path / "w.tfrecord", tmp_path / "w.tfrecord.xarray.json"
    dtf.to_tfrecord(weather(), path, index=True)
    assert json.loads(labels.read_text("utf-8"))["version"] == 1
    assert dtf.read_tfrecord([str(path), str(labels), f"{path}.idx"]).nrows == ROWS
    with pytest.raises(FileExistsError):
        dtf.to_tfrecord(weather(), path)
    assert labels.exists()
    dtf.to_tfrecord({"x": [1, 2]}, path, mode="w")
    assert not labels.exists() and dtf.read_tfrecord(path).schema == {"x": dtf.FixedLenFeature((), "int64")}
    broken = xr.Dataset({"a": ("row", np.array([1, 300]))})
    with pytest.raises(dtf.FeatureError):
        dtf.to_tfrecord(broken, tmp_path / "new" / "w.tfrecord", features={"a": dtf.FixedLenFeature((), "uint8")})
    assert not (tmp_path / "new").exists()


def test_copies_and_selections_keep_their_labels(tmp_path: Path, xarray_engine: str) -> None:
    dtf.to_tfrecord(weather(), tmp_path / "w-{shard}.tfrecord", records_per_shard=4)
    read = dtf.read_tfrecord(tmp_path / "w-*.tfrecord")
    read.to_tfrecord(tmp_path / "again.tfrecord.gz", compression="gzip")
    dtf.copy_tfrecord(tmp_path / "w-*.tfrecord", tmp_path / "copy-{shard}.tfrecord", records_per_shard=3)
    for name in ("again.tfrecord.gz", "copy-*.tfrecord"):
        assert_identical(xr.open_dataset(tmp_path / name, engine=xarray_engine), weather())
    dtf.copy_tfrecord(tmp_path / "w-*.tfrecord", tmp_path / "few.tfrecord", columns=["wave", "time"])
    few = xr.open_dataset(tmp_path / "few.tfrecord", engine=xarray_engine)
    assert_identical(few, weather().drop_vars([*set(weather().data_vars) - {"wave"}, "season"]))
    given = {"when": dtf.FixedLenFeature((), "int64", 0), "lasts": dtf.FixedLenFeature((), "int32")}
    read[["when", "lasts"]].rows[:3].to_tfrecord(tmp_path / "rows.tfrecord", features=given)
    rows = xr.open_dataset(tmp_path / "rows.tfrecord").load()
    xr.testing.assert_identical(rows["when"].variable, weather()["when"].variable[:3])
    assert rows["lasts"].dtype == np.int32 and rows.attrs["title"] == "x"
    # A new shard has the labels of the shard that it is copied from.
    dtf.to_tfrecord({"x": [1, 2]}, tmp_path / "a-plain.tfrecord")
    dtf.copy_tfrecord(
        [tmp_path / "a-plain.tfrecord", tmp_path / "again.tfrecord.gz"], tmp_path / "mixed-{shard}.tfrecord"
    )
    assert xr.open_dataset(tmp_path / "mixed-0.tfrecord").sizes == {"record": 2}
    assert_identical(xr.open_dataset(tmp_path / "mixed-1.tfrecord"), weather())


def test_what_no_file_stores_is_announced_or_refused(tmp_path: Path) -> None:
    given = xr.Dataset({"a": ("row", [1, 2], {"ok": 1, "set": {1}})}, attrs={"call": print, "dtype": np.dtype("i4")})
    with pytest.warns(UserWarning, match="attributes are not written: call, dtype, a.set"):
        dtf.to_tfrecord(given, tmp_path / "x.tfrecord")
    assert dtf.read_tfrecord(tmp_path / "x.tfrecord").to_xarray()["a"].attrs == {"ok": 1}
    plain = given.drop_attrs()
    tfds = {"name": "a", "version": "1.0.0", "split": "train"}
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (plain.assign_coords(grid=("x", np.zeros(1 << 18))), {}, r"\('grid'\) are [0-9,]+ bytes.*drop_vars"),
        (plain.assign_coords(odd=("x", np.array([1, None], object))), {}, "'odd' has values that no file stores"),
        (plain.assign(z=("x", [1, 2])), {}, "first dimension, which differs between variables"),
        (xr.Dataset({"a": ("row", [0.5])}), {"tfds": tfds}, "float64"),
    ]
    for wrong, options, said in refused:
        with pytest.raises(SchemaError, match=said):
            dtf.to_tfrecord(wrong, tmp_path / "y.tfrecord", **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.tfrecord", "x.tfrecord.xarray.json"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace('"version": 1', '"version": 2'), "version 2, expected 1: a newer release"),
        (lambda text: text[:-1], "expected labels of xarray .JSONDecodeError"),
        (lambda text: "[]", "expected labels of xarray .TypeError"),
        (lambda text: text.replace("<f8", "|O8"), "expected labels of xarray .ValueError"),
        (lambda text: text.replace('"shape": [2]', '"shape": [99]'), "expected labels of xarray .ValueError"),
        (lambda text: text.replace('["lat", "lon"], "values"', '["lat", "lat"], "values"'), "expected labels .*2 axes"),
        (lambda text: text + " " * (1 << 21), "at most 2,097,152 bytes, found"),
        (lambda text: "\xff", "expected labels of xarray .JSONDecodeError"),
        (lambda text: text.replace("RawFeature", "Window"), "not the JSON of a Schema"),
    ],
)
def test_damaged_labels_are_a_warning_with_their_file(tmp_path: Path, change: Any, said: str) -> None:
    path = tmp_path / "w.tfrecord"
    dtf.to_tfrecord(weather(), path)
    labels = tmp_path / "w.tfrecord.xarray.json"
    changed = change(labels.read_text("utf-8"))
    assert changed != labels.read_text("utf-8")
    labels.write_text(changed, "utf-8")
    with pytest.warns(UserWarning, match=said) as warned:
        assert dtf.read_tfrecord(path).nrows == weather().sizes["time"]
    assert all(str(warning.message).startswith(f"{labels}: ") for warning in warned)
