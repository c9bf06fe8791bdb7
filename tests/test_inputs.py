"""Inputs of writers: every array-like is written whole, or refused with its name, its row and what to do."""

from __future__ import annotations

import array
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag as bag
import numpy as np
import pytest
import zarr
from dask.base import DaskMethodsMixin
from numpy.typing import NDArray
from oracle import read_oracle

import dask_tfrecord as dtf
from dask_tfrecord import messages
from dask_tfrecord.columns.blocks import RaggedBlock
from dask_tfrecord.errors import FeatureError, SchemaError, UnknownFeatureError

xr: Any = pytest.importorskip("xarray")
pd: Any = pytest.importorskip("pandas")

LISTS = ("bytes_list", "float_list", "int64_list")


def written(arrays: Any, path: Path, **options: Any) -> list[dict[str, list[Any]]]:
    """Write one shard, and read its records with the oracle."""
    dtf.to_tfrecord(arrays, path / "x.tfrecord", mode="w", **options)
    return [
        {key: list(getattr(value, value.WhichOneof("kind")).value) for key, value in example.features.feature.items()}
        for example in read_oracle(path / "x.tfrecord")
    ]


def stored(arrays: Any, path: Path, **options: Any) -> dict[str, list[Any]]:
    """Write a Zarr store, and read it back as lists."""
    dtf.to_zarr(arrays, path / "x.zarr", mode="w", **options)
    found = dtf.from_zarr(path / "x.zarr").compute()
    return {name: [_plain(row) for row in rows] for name, rows in found.items()}


def _plain(row: Any) -> Any:
    if isinstance(row, np.ndarray):
        return [_plain(item) for item in row]
    return row.item() if isinstance(row, np.generic) else row


def objects(rows: list[Any]) -> NDArray[Any]:
    array = np.empty(len(rows), object)
    array[:] = rows
    return array


def refused(arrays: Any, path: Path, said: str, kind: type[Exception] = SchemaError) -> None:
    """Check that both writers refuse a collection and leave nothing."""
    for write in (
        lambda: dtf.to_tfrecord(arrays, path / "no.tfrecord"),
        lambda: dtf.to_zarr(arrays, path / "no.zarr"),
    ):
        with pytest.raises(kind, match=said):
            write()
    assert not [*path.glob("*no.*")]


def numbers() -> dtf.Dataset:
    return dtf.Dataset.from_arrays({"x": da.arange(6, chunks=2)})


# -- masks -------------------------------------------------------------------------------------------------------------


def test_masked_values_are_refused_with_their_rows(tmp_path: Path) -> None:
    eager = np.ma.masked_array(np.arange(6), mask=[0, 1, 0, 0, 0, 1])
    lazy = da.from_array(eager, chunks=2)
    unknown = da.from_array(np.arange(6), chunks=2).map_blocks(
        np.ma.masked_equal, 5, dtype="i8", meta=np.empty(0, "i8")
    )
    ragged = dtf.RaggedBlock(eager, np.array([0, 3, 6]))
    for arrays, said in (
        ({"x": eager}, r"'x' is masked in rows 1, 5, .*filled.*FixedLenFeature with a default"),
        ({"x": lazy}, r"'x' is masked in row (1|5),"),
        ({"x": unknown}, r"'x' is masked in row"),
        ({"x": [eager[:2], eager[2:4]]}, r"'x': row 0 is masked"),
        ({"x": objects([eager[:1], eager[2:4], eager[:2]])}, r"'x': row 2 is masked"),
        ({"x": [1, np.ma.masked]}, r"'x': row 1 is masked"),
        ({"x": ragged}, r"'x': values is masked in rows 1, 5"),
    ):
        refused(arrays, tmp_path, said)


def test_masks_of_assigned_columns_are_refused() -> None:
    eager = np.ma.masked_array(np.arange(6), mask=[0, 0, 0, 1, 0, 0])
    with pytest.raises(SchemaError, match="column 'y' is masked in row 3,"):
        numbers().assign(y=eager)
    lazy = numbers().assign(y=da.from_array(eager, chunks=2))
    unknown = numbers().assign(
        y=da.from_array(np.arange(6), chunks=2).map_blocks(np.ma.masked_equal, 3, dtype="i8", meta=np.empty(0, "i8"))
    )
    for ds in (lazy, unknown):
        for scheduler in ("sync", "threads"):
            with pytest.raises(SchemaError, match="'y' is masked in row"):
                ds.compute(scheduler=scheduler)
        with pytest.raises(SchemaError, match="'y' is masked in row"):
            ds.map_blocks(dict).compute()


def test_masks_that_map_blocks_returns_are_refused() -> None:
    ds = numbers().map_blocks(lambda blocks: {"x": np.ma.masked_equal(blocks["x"], 3)})
    with pytest.raises(SchemaError, match="map_blocks returned 'x' is masked in row 1"):
        ds.compute()


def test_masked_arrays_without_a_masked_value_are_written(tmp_path: Path) -> None:
    eager = np.ma.masked_array(np.arange(4), mask=[0, 0, 0, 0])
    arrays = {"x": eager, "y": da.from_array(eager, chunks=2), "z": np.ma.masked_array(np.arange(4))}
    assert written(arrays, tmp_path) == [{name: [row] for name in "xyz"} for row in range(4)]
    assert stored(arrays, tmp_path) == {name: [0, 1, 2, 3] for name in "xyz"}
    assert numbers().rows[:4].assign(y=eager).compute()["y"].tolist() == [0, 1, 2, 3]


# -- xarray ------------------------------------------------------------------------------------------------------------


def labelled() -> Any:
    return xr.Dataset(
        {"a": ("record", [1, 2], {"units": "m", "range": np.array([0, 9])})},
        coords={"record": [7, 8], "aux": ("record", [5, 6], {"long_name": "other"})},
        attrs={"title": "hi", "version": np.int64(3)},
    )


@pytest.mark.parametrize("chunks", [None, 1])
def test_coordinates_and_attributes_of_xarray_are_in_the_store(chunks: int | None, tmp_path: Path) -> None:
    given = labelled() if chunks is None else labelled().chunk(record=chunks)
    dtf.to_zarr(given, tmp_path / "x.zarr")
    with xr.open_zarr(tmp_path / "x.zarr") as opened:
        assert set(opened.coords) == {"record", "aux"}
        assert opened.indexes["record"].tolist() == [7, 8]
        assert opened["a"].attrs["units"] == "m" and opened["a"].attrs["range"] == [0, 9]
        assert opened["aux"].attrs["long_name"] == "other"
        assert opened.attrs["title"] == "hi" and opened.attrs["version"] == 3
        assert opened.sel(record=8)["a"].to_numpy() == 2
        xr.testing.assert_equal(opened.compute(), labelled())
    found = dtf.from_zarr(tmp_path / "x.zarr").compute()
    assert {name: array.tolist() for name, array in found.items()} == {"a": [1, 2], "record": [7, 8], "aux": [5, 6]}


def test_the_dimension_of_rows_keeps_its_name(tmp_path: Path) -> None:
    given = xr.Dataset(
        {"t": (("time", "lat"), np.arange(6.0).reshape(3, 2))},
        coords={"station": ("time", np.array(["a", "b", "c"])), "time": [10, 20, 30]},
    )
    dtf.to_zarr(given, tmp_path / "x.zarr")
    with xr.open_zarr(tmp_path / "x.zarr") as opened:
        assert opened["t"].dims == ("time", "lat")
        assert set(opened.coords) == {"time", "station"}
        assert opened["station"].to_numpy().tolist() == ["a", "b", "c"]
        assert (opened["t"].to_numpy() == given["t"].to_numpy()).all()


def test_coordinates_of_xarray_are_in_the_records(tmp_path: Path) -> None:
    found = written(labelled(), tmp_path)
    assert found == [{"a": [1], "record": [7], "aux": [5]}, {"a": [2], "record": [8], "aux": [6]}]
    assert written(labelled().drop_attrs(), tmp_path) == found


def test_coordinates_that_would_be_lost_are_refused(tmp_path: Path) -> None:
    plain = labelled().drop_attrs()
    with pytest.raises(SchemaError, match=r"coordinates run do not have 'record'.*drop_vars\(\['run'\]\)"):
        dtf.to_zarr(plain.assign_coords(run=3), tmp_path / "no.zarr")
    wide = xr.Dataset({"a": (("record", "x"), np.zeros((2, 2), "f4"))}, coords={"x": [1, 2], "run": 1})
    with pytest.raises(SchemaError, match="coordinates x, run do not have 'record'"):
        dtf.to_zarr(wide, tmp_path / "no.zarr")
    crossed = wide.assign_coords(both=(("x", "record"), np.zeros((2, 2))))
    refused(crossed.drop_vars(["x", "run"]), tmp_path, "coordinates both do not have 'record'.*transpose")
    refused(plain.stack(both=["record"]).transpose("both"), tmp_path, "MultiIndex.*reset_index")
    refused(plain["a"], tmp_path, r"got xarray.*DataArray: array.to_dataset")
    assert written(wide.drop_vars(["x", "run"]), tmp_path) == [{"a": [0, 0]}] * 2


def test_dates_are_refused_with_the_way_out(tmp_path: Path) -> None:
    days = np.array(["2020-01-01", "2020-01-02"], "M8[ns]")
    given = xr.Dataset({"a": ("time", [1, 2])}, coords={"time": days})
    with pytest.raises(SchemaError, match=r"'time': no feature stores an array of dtype datetime64.*astype\('int64'\)"):
        dtf.to_zarr(given, tmp_path / "no.zarr")
    refused({"time": days}, tmp_path, r"'time': no feature stores an array of dtype datetime64")
    assert [row["time"] for row in written(given.assign_coords(time=days.astype("i8")), tmp_path)] == [
        [number] for number in days.astype("i8").tolist()
    ]


def test_coordinates_and_attributes_of_single_arrays_are_announced(tmp_path: Path) -> None:
    arrays = {"a": labelled()["a"]}
    with pytest.warns(UserWarning) as caught:
        dtf.to_tfrecord(arrays, tmp_path / "x.tfrecord")
    said = " ".join(str(warning.message) for warning in caught)
    assert "coordinates of single arrays are not written: a.record, a.aux" in said
    assert "attributes are not written: a.units" in said
    with pytest.warns(UserWarning, match="coordinates of single arrays"):
        dtf.to_zarr(arrays, tmp_path / "x.zarr")
    with xr.open_zarr(tmp_path / "x.zarr") as opened:
        assert opened["a"].attrs["units"] == "m"


def test_attributes_that_no_store_holds_are_announced(tmp_path: Path) -> None:
    given = xr.Dataset({"a": ("record", [1, 2], {"feature": "mine", "raw": b"\0", "ok": 1})}, attrs={"when": {1, 2}})
    with pytest.warns(UserWarning, match="attributes are not written: a.feature, a.raw, when"):
        dtf.to_zarr(given, tmp_path / "x.zarr")
    with xr.open_zarr(tmp_path / "x.zarr") as opened:
        assert opened["a"].attrs == {"ok": 1, "feature": "a", "feature_class": "FixedLenFeature"}


def test_a_conversion_resumes_with_the_same_attributes_only(tmp_path: Path) -> None:
    dtf.to_zarr(labelled(), tmp_path / "x.zarr", resume=True)
    dtf.to_zarr(labelled(), tmp_path / "x.zarr", resume=True)
    with pytest.raises(ValueError, match="attributes was"):
        dtf.to_zarr(labelled().assign_attrs(title="other"), tmp_path / "x.zarr", resume=True)


# -- bytes -------------------------------------------------------------------------------------------------------------


def test_bytearrays_and_memoryviews_are_bytes(tmp_path: Path) -> None:
    rows = [bytearray(b"ab"), memoryview(b"c\0"), b"ef"]
    for given in (rows, objects(rows)):
        assert [row["x"] for row in written({"x": given}, tmp_path)] == [[b"ab"], [b"c\0"], [b"ef"]]
        assert stored({"x": given}, tmp_path) == {"x": [b"ab", b"c\0", b"ef"]}
        ds = dtf.Dataset.from_arrays({"n": np.arange(3)}).assign(x=given)
        assert ds.compute()["x"].tolist() == [b"ab", b"c\0", b"ef"]
    several = [[bytearray(b"ab"), bytearray(b"cd")], [], [memoryview(b"ef")]]
    for given in (several, objects(several)):
        assert [row["x"] for row in written({"x": given}, tmp_path)] == [[b"ab", b"cd"], [], [b"ef"]]
        assert stored({"x": given}, tmp_path) == {"x": [[b"ab", b"cd"], [], [b"ef"]]}


def test_map_blocks_may_return_bytearrays() -> None:
    ds = dtf.Dataset.from_arrays({"n": np.arange(3)})
    template = {"one": dtf.FixedLenFeature((), "bytes"), "many": dtf.VarLenFeature("bytes")}

    def function(blocks: dict[str, Any]) -> dict[str, Any]:
        return {
            "one": [bytearray(b"%d" % n) for n in blocks["n"]],
            "many": [[bytearray(b"ab"), memoryview(b"cd")][: n % 3] for n in blocks["n"]],
        }

    found = ds.map_blocks(function, template).compute()
    assert found["one"].tolist() == [b"0", b"1", b"2"]
    assert [row.tolist() for row in found["many"]] == [[], [b"ab"], [b"ab", b"cd"]]


# -- feature classes ---------------------------------------------------------------------------------------------------

CLASSES: dict[str, tuple[Any, Any]] = {
    "raw": (dtf.RawFeature((2,), ">f4"), np.arange(8, dtype="f4").reshape(4, 2)),
    "tensor": (dtf.TensorFeature((2,), "int64"), np.arange(8).reshape(4, 2)),
    "image": (dtf.ImageFeature((3, 2, 1)), np.arange(24, dtype="u1").reshape(4, 3, 2, 1)),
    "text": (dtf.TextFeature(), np.array(["a", "b", "é", ""])),
    "byte": (dtf.FixedLenFeature((), "uint8"), np.arange(4, dtype="u1")),
    "ragged": (dtf.VarLenFeature("int64"), [[1], [], [2, 3], [4]]),
    "id": (dtf.FixedLenFeature((), "bytes"), [b"a", b"", b"\0", b"d"]),
}


@pytest.mark.parametrize("way", ["read", "persisted", "template"])
def test_columns_that_pass_through_map_blocks_are_written_as_they_were_read(way: str, tmp_path: Path) -> None:
    features = {name: feature for name, (feature, _) in CLASSES.items()}
    dtf.to_tfrecord({name: array for name, (_, array) in CLASSES.items()}, tmp_path / "x.tfrecord", features=features)
    ds = dtf.read_tfrecord(tmp_path / "x.tfrecord", features)

    def copied(blocks: dict[str, Any]) -> dict[str, Any]:
        return {name: block.copy() if isinstance(block, np.ndarray) else block for name, block in blocks.items()}

    dense = [name for name in features if name not in ("ragged", "id")]
    source = ds.persist() if way == "persisted" else ds
    template = {name: ds[name][:0].compute() for name in dense} if way == "template" else None
    mapped = source[dense].map_blocks(copied, template)
    assert mapped.schema == {name: features[name] for name in dense}
    mapped.to_tfrecord(tmp_path / "y.tfrecord")
    ds[dense].to_tfrecord(tmp_path / "z.tfrecord")
    assert read_oracle(tmp_path / "y.tfrecord") == read_oracle(tmp_path / "z.tfrecord")
    ds.map_blocks(dict).to_tfrecord(tmp_path / "again.tfrecord")
    assert read_oracle(tmp_path / "again.tfrecord") == read_oracle(tmp_path / "x.tfrecord")


def test_sparse_and_padded_features_pass_through_map_blocks(tmp_path: Path) -> None:
    features = {
        "sparse": dtf.SparseFeature("at", "is", "float32", 5),
        "n": dtf.FixedLenFeature((), "int64"),
    }
    arrays = {
        "sparse.indices": [[[0], [4]], [[1]]],
        "sparse.values": [[1.0, 2.0], [3.0]],
        "n": [1, 2],
    }
    dtf.to_tfrecord(arrays, tmp_path / "x.tfrecord", features=features)
    ds = dtf.read_tfrecord(tmp_path / "x.tfrecord", features)
    ds.map_blocks(lambda blocks: {**blocks, "n": blocks["n"] + 1}).to_tfrecord(tmp_path / "y.tfrecord")
    found = dtf.read_tfrecord(tmp_path / "y.tfrecord", features).compute()
    assert found["n"].tolist() == [2, 3]
    assert [row.tolist() for row in found["sparse.values"]] == [[1, 2], [3]]
    assert set(read_oracle(tmp_path / "y.tfrecord")[0].features.feature) == {"at", "is", "n"}


def test_columns_of_another_dtype_or_shape_have_their_own_feature(tmp_path: Path) -> None:
    ds = dtf.Dataset.from_arrays({"x": np.zeros((2, 3), "u1")})
    mapped = ds.map_blocks(lambda blocks: {"x": blocks["x"].astype("f4")})
    assert mapped.schema == {"x": dtf.FixedLenFeature((3,), "float32")}


# -- numbers of lists --------------------------------------------------------------------------------------------------


def test_python_floats_take_the_dtype_of_their_feature(tmp_path: Path) -> None:
    cases: list[tuple[Any, Any, list[list[Any]]]] = [
        ([0.5, 0.1], dtf.FixedLenFeature((), "float32"), [[0.5], [np.float32(0.1)]]),
        ([[0.5, 1], [2, 3]], dtf.FixedLenFeature((2,), "float32"), [[0.5, 1], [2, 3]]),
        ([[0.5], [], [1, 2.5]], dtf.VarLenFeature("float32"), [[0.5], [], [1, 2.5]]),
        ([[0.5, 1], [2, 3]], dtf.VarLenFeature("float32"), [[0.5, 1], [2, 3]]),
        (objects([[0.5], [1.5, 2]]), dtf.VarLenFeature("float32"), [[0.5], [1.5, 2]]),
        (objects([np.array([0.5]), np.array([1.5, 2])]), dtf.VarLenFeature("float32"), [[0.5], [1.5, 2]]),
        ([[1], [2, 3]], dtf.VarLenFeature("uint8"), [[1], [2, 3]]),
        ([[1], [2, 3]], dtf.VarLenFeature("float32"), [[1], [2, 3]]),
        ([[], []], dtf.VarLenFeature("int64"), [[], []]),
        ([[], []], dtf.VarLenFeature("bytes"), [[], []]),
        ([[], [1]], dtf.VarLenFeature("float32"), [[], [1]]),
        ([], dtf.FixedLenFeature((2,), "float32"), []),
        ([], dtf.VarLenFeature("bytes"), []),
    ]
    for rows, feature, wanted in cases:
        assert [row["x"] for row in written({"x": rows}, tmp_path, features={"x": feature})] == wanted


def test_numbers_of_lists_that_do_not_fit_are_named(tmp_path: Path) -> None:
    cases: list[tuple[Any, Any, str]] = [
        ([0.5, 1e300], dtf.FixedLenFeature((), "float32"), r"'x'.* row 1 holds 1e\+300.*does not fit float32"),
        ([[0.5], [1, 1e300]], dtf.VarLenFeature("float32"), r"'x'.* row 1 holds 1e\+300.*does not fit float32"),
        ([[1], [2, 300]], dtf.VarLenFeature("uint8"), r"'x'.* row 1 holds 300.*does not fit uint8"),
        ([1, 300], dtf.FixedLenFeature((), "uint8"), r"'x'.* row 1 holds 300"),
        ([[1], [2, 1 << 25 | 1]], dtf.VarLenFeature("float32"), r"row 1 holds 33554433"),
    ]
    for rows, feature, said in cases:
        with pytest.raises(FeatureError, match=said):
            written({"x": rows}, tmp_path, features={"x": feature})
    with pytest.raises(SchemaError, match=r"float64, which FixedLenFeature.*int64.* does not hold"):
        written({"x": [0.5]}, tmp_path, features={"x": dtf.FixedLenFeature((), "int64")})


def test_the_advice_for_floats_works_as_it_is_given(tmp_path: Path) -> None:
    for rows in ([0.5, 1.5], [[0.5, 1], [2, 3]], [[0.5], [1.5, 2]], [[[0.5, 1]], [[1, 2], [3, 4]]]):
        with pytest.raises(SchemaError, match="float64, and an Example lists float32") as caught:
            dtf.to_tfrecord({"x": rows}, tmp_path / "x")
        for advice in str(caught.value).split("{'x': ")[1:]:
            feature = eval(advice.split("}")[0], vars(dtf))
            assert written({"x": rows}, tmp_path, features={"x": feature})


def test_integers_that_numpy_rounds_are_refused(tmp_path: Path) -> None:
    refused(
        {"x": [(1 << 53) + 1, 0.5]},
        tmp_path,
        "'x' mixes 9007199254740993 with floats or negative integers, and float64 rounds it",
    )
    refused(
        {"x": [-1, 1 << 63]},
        tmp_path,
        "'x' mixes 9223372036854775808 with floats or negative integers, and float64 rounds it",
    )
    refused({"x": [[1], [-1, 1 << 63]]}, tmp_path, "'x' mixes 9223372036854775808")


def test_objects_of_dask_arrays_are_specified(tmp_path: Path) -> None:
    array = da.from_array(objects([b"a", b"", b"\0"]), chunks=2)
    refused({"x": array}, tmp_path, r"'x' is of objects.*features=\{name: FixedLenFeature\(\(\), 'bytes'\)\}")
    features = {"x": dtf.FixedLenFeature((), "bytes")}
    assert [row["x"] for row in written({"x": array}, tmp_path, features=features)] == [[b"a"], [b""], [b"\0"]]
    assert stored(dtf.Dataset.from_arrays({"x": array}, features), tmp_path) == {"x": [b"a", b"", b"\0"]}


# -- every kind, every writer ------------------------------------------------------------------------------------------


def test_both_writers_and_assign_take_the_same(tmp_path: Path) -> None:
    nested = [[[1, 2], [3]], [], [[4]]]
    arrays: dict[str, tuple[Any, list[Any]]] = {
        "list": ([1, 2, 3], [1, 2, 3]),
        "range": (range(3), [0, 1, 2]),
        "buffer": (array.array("q", [4, 5, 6]), [4, 5, 6]),
        "rows": ([[1], [], [2, 3]], [[1], [], [2, 3]]),
        "text": (["a", "é", ""], ["a", "é", ""]),
        "bytes": ([b"a", b"\0", b""], [b"a", b"\0", b""]),
        "many": ([[b"a"], [], [b"\0", b""]], [[b"a"], [], [b"\0", b""]]),
        "objects": (objects([np.array([1]), np.array([2, 3]), np.array([], "i8")]), [[1], [2, 3], []]),
        "flat": (dtf.RaggedBlock(np.arange(3), np.array([0, 1, 1, 3])), [[0], [], [1, 2]]),
        "series": (pd.Series([1, 2, 3], dtype="Int64"), [1, 2, 3]),
        "unicode": (da.from_array(np.array(["a", "b", "cc"]), chunks=2), ["a", "b", "cc"]),
        "lazy": (xr.DataArray(np.arange(3.0), dims="record").chunk(record=2), [0, 1, 2]),
    }
    given = {name: array for name, (array, _) in arrays.items()}
    wanted = {name: rows for name, (_, rows) in arrays.items()}
    assert stored(given | {"nested": nested}, tmp_path) == wanted | {"nested": nested}
    features = {"lazy": dtf.FixedLenFeature((), "float32")}
    coded = [{name: _listed(rows[row]) for name, rows in wanted.items()} for row in range(3)]
    assert written(given, tmp_path, features=features) == coded
    ds = dtf.Dataset.from_arrays({"n": da.arange(3, chunks=2)}).assign(**given, nested=nested)
    assert stored(ds, tmp_path) == {"n": [0, 1, 2]} | wanted | {"nested": nested}
    found = ds.compute()
    assert {name: [_plain(row) for row in found[name]] for name in wanted} == wanted
    assert ds.rows[1:].persist()[["rows", "text"]].compute()["text"].tolist() == ["é", ""]
    assert ds.rows[[2, 0]].compute()["bytes"].tolist() == [b"", b"a"]


def _listed(row: Any) -> list[Any]:
    items = row if isinstance(row, list) else [row]
    return [item.encode() if isinstance(item, str) else item for item in items]


def test_rows_of_rows_are_written_as_feature_lists(tmp_path: Path) -> None:
    rows = [[[1, 2], [3]], [], [[4]]]
    with pytest.raises(SchemaError, match=r"'x' has nested rows, which an Example cannot list.*sequence_features="):
        written({"x": rows}, tmp_path)
    features = {"x": dtf.VarLenFeature("int64")}
    dtf.to_tfrecord({"x": rows}, tmp_path / "x.tfrecord", sequence_features=features)
    found = dtf.read_tfrecord(tmp_path / "x.tfrecord", {}, sequence_features=features).compute()["x"]
    assert [[inner.tolist() for inner in row] for row in found] == rows


def test_lists_that_are_no_rows_are_refused_by_name(tmp_path: Path) -> None:
    refused({"x": [[1, [2]], [3]]}, tmp_path, "'x': row 0 mixes values and lists")
    refused({"x": [[1], 2]}, tmp_path, "'x' is of objects that are of no one feature; found int, list; accepted are")
    refused({"x": [1, None]}, tmp_path, "'x' has missing values in row 1, .*fillna")
    refused({"x": [b"a", None]}, tmp_path, "'x' has missing values in row 1")
    refused({"x": ["a", 1]}, tmp_path, "'x' is of objects .*; found int, str")
    refused({"x": np.zeros(2, np.longdouble)}, tmp_path, r"'x': (float128|longdouble).*astype\('float64'\)")
    refused({"x": {1: 2}}, tmp_path, "'x': expected an array, got dict")
    refused({"x": numbers()}, tmp_path, "'x': expected an array, got Dataset")
    refused({"x": 3}, tmp_path, "'x': expected an array with an axis of rows; got 3")
    refused([1], tmp_path, "mapping of names to arrays, an xarray Dataset or a DataFrame; got list")


def test_a_data_set_is_no_column() -> None:
    ds = numbers()
    with pytest.raises(SchemaError, match=r"column 'y': .* got Dataset.*ds\['x'\], or each under its name"):
        ds.assign(y=ds)


def test_text_without_utf8_is_refused_by_name(tmp_path: Path) -> None:
    for rows in (["a", "\ud800"], np.array(["a", "\ud800"]), objects(["a", "\ud800"])):
        refused({"x": rows}, tmp_path, r"'x': row 1 holds '\\ud800': a lone surrogate is not valid UTF-8")
    with pytest.raises(SchemaError, match=r"'x': row 0 holds '\\ud800'"):
        written({"x": da.from_array(np.array(["a", "\ud800"]), chunks=1)}, tmp_path)
    ds = numbers().map_blocks(lambda blocks: {"x": ["\ud800"] * len(blocks["x"])}, {"x": dtf.TextFeature()})
    with pytest.raises(SchemaError, match="map_blocks returned 'x': row 0 holds"):
        ds.compute()


def test_names_without_utf8_are_refused(tmp_path: Path) -> None:
    refused({"\ud800": [1]}, tmp_path, r"'\\ud800'.*not valid UTF-8")
    with pytest.raises(SchemaError, match=r"'\\ud800'.*not valid UTF-8"):
        dtf.Schema({"\ud800": dtf.FixedLenFeature((), "int64")})


# -- pandas ------------------------------------------------------------------------------------------------------------


def test_data_frames(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "int": pd.Series([1, 2], dtype="Int64"),
            "flag": pd.Series([True, False], dtype="boolean"),
            "half": np.array([0.5, np.nan], "f4"),
            "text": ["a", "é"],
            "kind": pd.Categorical(["x", "y"]),
            "level": pd.Categorical([30, 10]),
            "bytes": pd.Series([b"a", b"\0"], dtype=object),
        }
    )
    first, second = written(frame, tmp_path)
    assert first == {
        "int": [1], "flag": [1], "half": [0.5], "text": [b"a"], "kind": [b"x"], "level": [30], "bytes": [b"a"]
    }  # fmt: skip
    assert np.isnan(second["half"][0]) and second["text"] == ["é".encode()]
    found = stored(frame.drop(columns="half"), tmp_path)
    assert found == {
        "int": [1, 2], "flag": [True, False], "text": ["a", "é"], "kind": ["x", "y"], "level": [30, 10],
        "bytes": [b"a", b"\0"],
    }  # fmt: skip
    frame.attrs["title"] = "hi"
    with pytest.warns(UserWarning, match="attributes are not written: title"):
        written(frame, tmp_path)


def test_missing_values_of_pandas_are_refused_by_name(tmp_path: Path) -> None:
    for series in (
        pd.Series([1, None], dtype="Int64"),
        pd.Series(["a", None], dtype="str"),
        pd.Series(["a", None], dtype="string"),
        pd.Series([b"a", None], dtype=object),
        pd.Series(pd.Categorical(["a", None])),
        pd.Series([True, None], dtype="boolean"),
    ):
        refused({"x": series}, tmp_path, r"'x' has missing values in row 1, which records do not have.*fillna")
        with pytest.raises(SchemaError, match="column 'x' has missing values in row 1"):
            dtf.Dataset.from_arrays({"n": np.arange(2)}).assign(x=series)


def test_frames_that_would_lose_something_are_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1, 2]})
    refused(frame.set_index(pd.Index([5, 6], name="id")), tmp_path, r"the index of .*reset_index\(\)")
    refused(frame[frame["a"] > 1], tmp_path, r"reset_index\(drop=True\)")
    refused(pd.DataFrame({0: [1]}), tmp_path, "named by strings; got 0")
    refused(pd.concat([frame, frame], axis=1), tmp_path, "several columns 'a'")


# -- other libraries ---------------------------------------------------------------------------------------------------


def test_features_by_name_alone_name_the_argument_for_it(tmp_path: Path) -> None:
    dtf.to_tfrecord({"x": [1]}, tmp_path / "x.tfrecord")
    for call in (
        lambda: dtf.read_tfrecord(tmp_path / "x.tfrecord", ["x"]),  # type: ignore[arg-type]
        lambda: dtf.to_tfrecord({"x": [1]}, tmp_path / "y", features=["x"]),  # type: ignore[arg-type]
    ):
        with pytest.raises(SchemaError, match=r"features(: expected| is) a mapping.*got \['x'\]; columns= picks"):
            call()


REFUSED_RECORDS = [
    (lambda: example_of(1), r"got a message Example: write\(message.SerializeToString\(\)\)"),
    (lambda: {"x": 1}, "got a dict: to_tfrecord.*SerializeToString"),
    (lambda: "text", r"got str: write\(text.encode\(\)\)"),
    (lambda: None, "got NoneType"),
]


def example_of(value: int) -> messages.Example:
    message = messages.Example()
    message.features.feature["x"].int64_list.value.append(value)
    return message


@pytest.mark.parametrize(("make", "said"), REFUSED_RECORDS)
def test_records_that_are_not_payloads_are_refused_and_leave_no_file(
    make: Callable[[], Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.tfrecord"
    good = [example_of(1).SerializeToString(), example_of(2).SerializeToString()]
    with pytest.raises(TypeError, match=said), dtf.RecordWriter(path) as writer:
        writer.write(good[0])
        writer.write(make())
    assert not [*tmp_path.iterdir()]
    with pytest.raises(ValueError, match="the writer is closed"):
        writer.write(b"more")

    # The writer stays usable: closing it publishes the records that it accepted.
    writer = dtf.RecordWriter(path)
    writer.write(good[0])
    with pytest.raises(TypeError, match=said):
        writer.write(make())
    writer.write(good[1])
    writer.close()
    assert list(dtf.read_records(path)) == good


def test_a_collected_writer_removes_its_temporary_file(tmp_path: Path) -> None:
    writer = dtf.RecordWriter(tmp_path / "x.tfrecord")
    writer.write(example_of(1).SerializeToString())
    with pytest.raises(TypeError, match="got NoneType"):
        writer.write(None)  # type: ignore[arg-type]
    assert [*tmp_path.iterdir()]
    del writer
    gc.collect()
    assert not [*tmp_path.iterdir()]


# -- stores ------------------------------------------------------------------------------------------------------------


def test_names_that_no_file_has_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    for name, rows in (("k" * 300, [1]), ("k" * 250, [[1], [2, 3]]), ("é" * 130, [1])):
        with pytest.raises(
            SchemaError, match=r"feature '(k|é)+.*bytes, more than the 255 bytes of a file name.*rename"
        ):
            dtf.to_zarr({name: rows}, tmp_path / "x.zarr")
        assert not [*tmp_path.iterdir()]
    assert stored({"k" * 200: [1]}, tmp_path) == {"k" * 200: [1]}
    assert stored({"k" * 200: [[1], [2, 3]]}, tmp_path) == {"k" * 200: [[1], [2, 3]]}
    memory = zarr.storage.MemoryStore()
    dtf.to_zarr({"k" * 300: [1]}, memory)
    assert dtf.from_zarr(memory).compute()["k" * 300].tolist() == [1]


def test_zip_files_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    store = zarr.storage.ZipStore(tmp_path / "x.zip", mode="w")
    for call in (
        lambda: dtf.to_zarr({"x": [1]}, store),
        lambda: dtf.to_zarr({"x": [1]}, store, resume=True),
        lambda: dtf.plan_zarr({"x": [1]}).to_zarr(store),
    ):
        with pytest.raises(TypeError, match=r"ZipStore.*write a directory.*zip"):
            call()


# -- collections of other libraries ------------------------------------------------------------------------------------


class Foreign(DaskMethodsMixin):
    """A lazy array of another library: a dask collection with chunks, and no `dask.array.Array`."""

    def __init__(self, array: da.Array) -> None:
        self.array = array
        self.name, self.chunks, self.shape, self.dtype, self._meta = (
            array.name, array.chunks, array.shape, array.dtype, array._meta
        )  # fmt: skip

    def __dask_graph__(self) -> Any:
        return dict(self.array.__dask_graph__())

    def __dask_keys__(self) -> Any:
        return self.array.__dask_keys__()


def test_lazy_arrays_of_other_libraries_are_written(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"x": Foreign(da.arange(5, chunks=2) + 1)}
    try:
        from dask_array import arange
    except ImportError:
        pass
    else:
        arrays["y"] = arange(5, chunks=2) + 1
    wanted = [1, 2, 3, 4, 5]
    assert written(arrays, tmp_path) == [{name: [row] for name in arrays} for row in wanted]
    assert stored(arrays, tmp_path) == dict.fromkeys(arrays, wanted)
    ds = dtf.Dataset.from_arrays({"n": np.arange(5)}).assign(**arrays)
    assert ds.compute()["x"].tolist() == wanted


def test_collections_that_are_no_arrays_are_refused_by_name(tmp_path: Path) -> None:
    refused({"x": dask.delayed(np.arange)(3)}, tmp_path, r"'x': expected a dask.array.Array, got dask.*Delayed")
    refused({"x": bag.from_sequence([1, 2])}, tmp_path, r"'x': expected a dask.array.Array, got dask.*Bag")


VALUES = dtf.VarLenFeature("int64")


@pytest.mark.parametrize(
    ("given", "feature", "found"),
    [
        ([[1], [2]], VALUES, [[1], [2]]),
        (np.array([[1], [2]]), VALUES, [[1], [2]]),
        (da.from_array(np.array([[1], [2]]), chunks=1), VALUES, [[1], [2]]),
        (xr.DataArray(np.array([[1], [2]])), VALUES, [[1], [2]]),
        (RaggedBlock(np.arange(2), np.arange(3)), VALUES, [[0], [1]]),
        ([[1.5, 2], [3, 4]], dtf.RawFeature((2,), "float32"), [[1.5, 2], [3, 4]]),
        (np.zeros((1, 1, 1, 3), np.uint8), dtf.ImageFeature(), [[[[0, 0, 0]]]]),
        ([1, 2], VALUES, None),
        (np.array([1.5]), dtf.FixedLenFeature((), "int64"), None),
        (da.ones((2, 1), chunks=1), VALUES, None),
        (pd.Series([1, 2]), dtf.FixedLenFeature((), "float32"), None),
        (["a"], dtf.FixedLenFeature((), "bytes"), None),
        (np.zeros((2, 3), np.int64), dtf.FixedLenFeature((2,), "int64"), None),
    ],
    ids=str,
)
def test_an_explicit_feature_holds_or_is_refused(given: Any, feature: Any, found: Any) -> None:
    if found is None:
        with pytest.raises(SchemaError, match="array 'x'"):
            dtf.Dataset.from_arrays({"x": given}, {"x": feature})
        return
    ds = dtf.Dataset.from_arrays({"x": given}, {"x": feature})
    assert ds.schema["x"] == feature
    assert [row.tolist() for row in ds["x"].compute()] == found


def test_a_feature_without_an_array_is_refused() -> None:
    with pytest.raises(UnknownFeatureError, match=r"features: no array 'lable'.*'label'"):
        dtf.Dataset.from_arrays({"label": [1]}, {"lable": dtf.FixedLenFeature((), "int64")})
