"""Inputs of writers: every array-like is written whole, or refused with its name, its row and what to do."""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.bag as bag
import numpy as np
import pytest
import zarr
from dask.base import DaskMethodsMixin
from oracle import read_oracle
from oracle.messages import Example
from oracle.partitions import objects
from support.any_columns import listed
from support.engine import PLANNED, da
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.blocks import RaggedBlock
from dask_tfrecord.errors import FeatureError, SchemaError, UnknownFeatureError
from dask_tfrecord.settings import Limits

xr: Any = pytest.importorskip("xarray")
pd: Any = pytest.importorskip("pandas")
pa: Any = pytest.importorskip("pyarrow")

NUMBER, BYTES = dtf.FixedLenFeature((), "int64"), dtf.FixedLenFeature((), "bytes")
FLOAT, FLOATS = dtf.FixedLenFeature((), "float32"), dtf.VarLenFeature("float32")
VALUES, MANY = dtf.VarLenFeature("int64"), dtf.VarLenFeature("bytes")


def written(arrays: Any, path: Path, **options: Any) -> list[dict[str, list[Any]]]:
    """Write one shard, and read its records with the oracle."""
    dtf.to_tfrecord(arrays, path / "x.tfrecord", mode="w", **options)
    return [
        {key: list(getattr(value, value.WhichOneof("kind")).value) for key, value in record.features.feature.items()}
        for record in read_oracle(path / "x.tfrecord")
    ]


def stored(arrays: Any, path: Path, **options: Any) -> dict[str, list[Any]]:
    """Write a Zarr store, and read it back as lists."""
    dtf.to_zarr(arrays, path / "x.zarr", mode="w", **options)
    return {name: listed(rows) for name, rows in dtf.from_zarr(path / "x.zarr").compute().items()}


def refused(arrays: Any, path: Path, said: str) -> None:
    """Check that both writers refuse a collection and leave nothing."""
    for write in (
        lambda: dtf.to_tfrecord(arrays, path / "no.tfrecord"),
        lambda: dtf.to_zarr(arrays, path / "no.zarr"),
    ):
        with pytest.raises(SchemaError, match=said):
            write()
    assert not [*path.glob("*no.*")]


def numbers() -> dtf.Dataset:
    return dtf.Dataset.from_arrays({"x": da.arange(6, chunks=2)})


def labelled() -> Any:
    return xr.Dataset(
        {"a": ("record", [1, 2], {"units": "m", "range": np.array([0, 9])})},
        coords={"record": [7, 8], "aux": ("record", [5, 6], {"long_name": "other"})},
        attrs={"title": "hi", "version": np.int64(3)},
    )


class Foreign(DaskMethodsMixin):
    """A lazy array of another library: a dask collection with chunks, and no `dask.array.Array`."""

    def __init__(self, array: da.Array) -> None:
        self.array, self.name, self.chunks = array, array.name, array.chunks
        self.shape, self.dtype, self._meta = array.shape, array.dtype, array._meta

    def __dask_graph__(self) -> Any:
        return dict(self.array.__dask_graph__())

    def __dask_keys__(self) -> Any:
        return self.array.__dask_keys__()


# -- what is refused ---------------------------------------------------------------------------------------------------

MASKED = np.ma.masked_array(np.arange(6), mask=[0, 1, 0, 0, 0, 1])
# The mask of these chunks is known when they are computed.
LATER = da.from_array(np.arange(6), chunks=2).map_blocks(np.ma.masked_equal, 5, dtype="i8", meta=np.empty(0, "i8"))
DAYS = np.array(["2020-01-01", "2020-01-02"], "M8[ns]")
SURROGATE = r"'x': row 1 holds '\\ud800': a lone surrogate is not valid UTF-8"
ROUNDED = "'x' mixes {} with floats or negative integers, and float64 rounds it"
MISSING_TEXT = np.array(["a", None], np.dtypes.StringDType(na_object=None))
COLUMNS: list[tuple[Any, str]] = [
    (MASKED, r"'x' is masked in rows 1, 5, .*filled.*FixedLenFeature and a default"),
    (da.from_array(MASKED, chunks=2), r"'x' is masked in row (1|5),"),
    (LATER, "'x' is masked in row"),
    ([MASKED[:2], MASKED[2:4]], "'x': row 0 is masked"),
    (objects([MASKED[:1], MASKED[2:4], MASKED[:2]]), "'x': row 2 is masked"),
    ([1, np.ma.masked], "'x': row 1 is masked"),
    (dtf.RaggedBlock(MASKED, np.array([0, 3, 6])), "'x': values is masked in rows 1, 5"),
    (DAYS, r"'x': no feature stores an array of dtype datetime64.*astype\('int64'\)"),
    ([(1 << 53) + 1, 0.5], ROUNDED.format("9007199254740993")),
    ([-1, 1 << 63], ROUNDED.format("9223372036854775808")),
    ([[1], [-1, 1 << 63]], ROUNDED.format("9223372036854775808")),
    (
        da.from_array(objects([b"a"]), chunks=1),
        r"'x' contains objects.*features=\{name: FixedLenFeature\(\(\), 'bytes'",
    ),
    ([[1, [2]], [3]], "'x': row 0 mixes values and lists"),
    ([[1], 2], "'x' mixes int and list: give it values of one type"),
    ([1, None], "'x' has missing values in row 1, .*fillna"),
    ([b"a", None], "'x' has missing values in row 1"),
    (MISSING_TEXT, "'x' has missing values in row 1"),
    (np.array(["a", np.nan], np.dtypes.StringDType(na_object=np.nan)), "'x' has missing values in row 1"),
    (da.from_array(MISSING_TEXT, chunks=1), "'x' has missing values in row 1"),
    ([MISSING_TEXT, MISSING_TEXT[:1]], "'x': row 0 has missing values in row 1"),
    (dtf.RaggedBlock(MISSING_TEXT, np.array([0, 2])), "'x': values has missing values in row 1"),
    (pa.array([1 << 60, None]), "'x' has missing values in row 1"),
    (pa.chunked_array([pa.array(["a", None]).dictionary_encode()]), "'x' has missing values in row 1"),
    (pa.array([[(1 << 60) + 1, None], [1]]), "'x' has missing values in its lists"),
    (pa.chunked_array([[[1.5]], [[None]]]), "'x' has missing values in its lists"),
    (pa.array([[[1], [2, None]]]), "'x' has missing values in its lists"),
    (pa.array([[1, None]], pa.list_(pa.int64(), 2)), "'x' has missing values in its lists"),
    (["a", 1], "'x' mixes int and str"),
    (np.zeros(2, np.longdouble), r"'x': (float128|longdouble).*astype\('float64'\)"),
    ({1: 2}, "'x': expected an array, got dict"),
    (numbers(), r"'x': expected an array, got Dataset.*give each of them a name, as in"),
    (3, "'x': expected an array with an axis of rows; got 3"),
    (["a", "\ud800"], SURROGATE),
    (np.array(["a", "\ud800"]), SURROGATE),
    (objects(["a", "\ud800"]), SURROGATE),
    (dask.delayed(np.arange)(3), r"'x': expected a dask.array.Array, got dask.*Delayed"),
    (bag.from_sequence([1, 2]), r"'x': expected a dask.array.Array, got dask.*Bag"),
]
FRAME = pd.DataFrame({"a": [1, 2]})
PLAIN = labelled().drop_attrs()
WIDE = xr.Dataset({"a": (("record", "x"), np.zeros((2, 2), "f4"))}, coords={"x": [1, 2], "run": 1})
COLLECTIONS: list[tuple[Any, str]] = [
    ([1], "mapping of names to arrays, an xarray Dataset or a DataFrame; got list"),
    ({"\ud800": [1]}, r"'\\ud800'.*not valid UTF-8"),
    (FRAME.set_index(pd.Index([5, 6], name="id")), r"the index of .*reset_index\(\)"),
    (FRAME[FRAME["a"] > 1], r"reset_index\(drop=True\)"),
    (pd.DataFrame({0: [1]}), "named by strings; got 0"),
    (pd.concat([FRAME, FRAME], axis=1), "several columns 'a'"),
    (PLAIN["a"], "got xarray.*DataArray: array.to_dataset"),
    (PLAIN.stack(both=["record"]).transpose("both"), "MultiIndex.*reset_index"),
    (
        WIDE.assign_coords(both=(("x", "record"), np.zeros((2, 2)))).drop_vars(["x", "run"]),
        "coordinates both do not have 'record'.*transpose",
    ),
]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [*(({"x": given}, said) for given, said in COLUMNS), *COLLECTIONS],
    ids=lambda of: of[:30] if isinstance(of, str) else type(of).__name__,
)
def test_both_writers_refuse_and_leave_nothing(tmp_path: Path, arrays: Any, said: str) -> None:
    refused(arrays, tmp_path, said)


def test_columns_that_are_added_are_refused_too() -> None:
    for given, said in [(MASKED, "column 'y' is masked in rows 1, 5,"), (numbers(), "column 'y': .* got Dataset")]:
        with pytest.raises(SchemaError, match=said):
            numbers().assign(y=given)
    with pytest.raises(SchemaError, match="column 'y' has missing values in row 1"):
        numbers().rows[:2].assign(y=pd.Series([1, None], dtype="Int64"))
    for lazy in (da.from_array(MASKED, chunks=2), LATER):
        ds = numbers().assign(y=lazy)
        for way, scheduler in ((ds, "sync"), (ds, "threads"), (ds.map_blocks(dict), "threads")):
            with pytest.raises(SchemaError, match="'y' is masked in row"):
                way.compute(scheduler=scheduler)
    ds = numbers().map_blocks(lambda blocks: {"x": np.ma.masked_equal(blocks["x"], 3)})
    with pytest.raises(SchemaError, match="map_blocks returned 'x' is masked in row 1"):
        ds.compute()
    ds = numbers().map_blocks(lambda blocks: {"x": ["\ud800"] * len(blocks["x"])}, {"x": dtf.TextFeature()})
    with pytest.raises(SchemaError, match="map_blocks returned 'x': row 0 holds"):
        ds.compute()


@pytest.mark.parametrize(
    ("given", "feature", "said"),
    [
        ([0.5, 1e300], FLOAT, r"'x'.* row 1 holds 1e\+300.*does not fit float32"),
        ([[0.5], [1, 1e300]], FLOATS, r"'x'.* row 1 holds 1e\+300.*does not fit float32"),
        ([[1], [2, 300]], dtf.VarLenFeature("uint8"), r"'x'.* row 1 holds 300.*does not fit uint8"),
        ([1, 300], dtf.FixedLenFeature((), "uint8"), r"'x'.* row 1 holds 300"),
        # Of lists of arrays, the row counts, and not the array.
        (
            [[np.zeros((1, 3), "i2"), np.zeros((2, 3), "i2")], [np.zeros((1, 4), "i2")]],
            dtf.RawFeature((-1, 3), "int16", count=-1),
            r"'x': row 1 has dtype int16 and shape \(1, 4\)",
        ),
        ([[1], [2, 1 << 25 | 1]], FLOATS, "row 1 holds 33554433"),
        ([0.5], NUMBER, r"float64, which FixedLenFeature.*int64.* can't store"),
        ([[[1, 2], [3]], [], [[4]]], None, r"'x' has nested rows, which an Example can't store.*sequence_features="),
        (da.from_array(np.array(["a", "\ud800"]), chunks=1), None, r"'x': row 0 holds '\\ud800'"),
        ([1], ["x"], r"features must be a mapping.*got \['x'\]; columns= picks"),
    ],
)
def test_records_refuse(tmp_path: Path, given: Any, feature: Any, said: str) -> None:
    with pytest.raises((FeatureError, SchemaError), match=said):
        written({"x": given}, tmp_path, features=feature if isinstance(feature, list) else feature and {"x": feature})


GRID = xr.Dataset(
    {"rain": (("time", "lat", "lon"), np.arange(24, dtype="f4").reshape(4, 2, 3), {"units": "mm"})},
    coords={
        "time": np.datetime64("2020-01-01", "ns") + np.arange(4) * np.timedelta64(1, "D"),
        "lat": ("lat", [1.5, np.nan], {"units": "degrees_north"}),
        "lon": [0, 1, 2],
        "area": (("lat", "lon"), np.ones((2, 3))),
        "season": "winter",
    },
    attrs={"title": "rain"},
)


@pytest.mark.parametrize("way", ["new", "resumed", "replaced", "session"])
def test_a_store_keeps_coordinates_without_rows_and_dates(tmp_path: Path, way: str) -> None:
    store: Any = tmp_path / "grid.zarr"
    if way == "session":
        icechunk = pytest.importorskip("icechunk")
        repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repository")))
        dtf.to_zarr(GRID, repository.writable_session("main"))
        store = repository.readonly_session("main").store
    else:
        if way == "replaced":
            dtf.to_zarr(GRID.isel(lat=[0]), store)
        dtf.to_zarr(GRID, store, mode="w" if way == "replaced" else "w-", resume=way == "resumed")
    found = xr.open_zarr(store, consolidated=False)
    xr.testing.assert_equal(found.load(), GRID)
    assert found["lat"].attrs["units"] == "degrees_north"


def test_appended_rows_have_the_coordinates_and_units_of_the_store(tmp_path: Path) -> None:
    later = GRID.assign_coords(time=GRID["time"] + np.timedelta64(4, "D"))
    for each in (GRID, later):
        dtf.to_zarr(each, tmp_path / "grid.zarr", append_dim="time")
    joined = xr.concat([GRID, later], "time", data_vars="minimal", coords="minimal", compat="override")
    xr.testing.assert_equal(xr.open_zarr(tmp_path / "grid.zarr").load(), joined)
    for given, said in [
        (later.assign_coords(lat=[1.5, 2.5]), r"'lat' has other values in the store.*drop_vars\('lat'\)"),
        (later.assign_coords(height=2), "'height' is not in the store"),
        (later.assign_coords(time=later["time"].astype("M8[s]")), "'time' is in 'nanoseconds since.*'seconds since"),
        (later.assign(rain=later["rain"].assign_attrs(units="inch")), "'rain' is in 'mm' in the store.*'inch'"),
    ]:
        with pytest.raises(SchemaError, match=said):
            dtf.to_zarr(given, tmp_path / "grid.zarr", append_dim="time")
    xr.testing.assert_equal(xr.open_zarr(tmp_path / "grid.zarr").load(), joined)


# -- what is written ---------------------------------------------------------------------------------------------------


def test_both_writers_and_assign_take_the_same(tmp_path: Path) -> None:
    nested = [[[1, 2], [3]], [], [[4]]]
    unmasked = np.ma.masked_array(np.arange(3), mask=[0, 0, 0])
    arrays: dict[str, tuple[Any, list[Any]]] = {
        "list": ([1, 2, 3], [1, 2, 3]),
        "range": (range(3), [0, 1, 2]),
        "buffer": (array.array("q", [4, 5, 6]), [4, 5, 6]),
        "rows": ([[1], [], [2, 3]], [[1], [], [2, 3]]),
        "text": (["a", "é", ""], ["a", "é", ""]),
        "bytes": ([b"a", b"\0", b""], [b"a", b"\0", b""]),
        "many": ([[b"a"], [], [b"\0", b""]], [[b"a"], [], [b"\0", b""]]),
        "buffers": (objects([bytearray(b"ab"), memoryview(b"c\0"), b"ef"]), [b"ab", b"c\0", b"ef"]),
        "lists of buffers": ([[bytearray(b"a"), memoryview(b"b")], [], [b""]], [[b"a", b"b"], [], [b""]]),
        "objects": (objects([np.array([1]), np.array([2, 3]), np.array([], "i8")]), [[1], [2, 3], []]),
        "flat": (dtf.RaggedBlock(np.arange(3), np.array([0, 1, 1, 3])), [[0], [], [1, 2]]),
        "series": (pd.Series([1, 2, 3], dtype="Int64"), [1, 2, 3]),
        "unicode": (da.from_array(np.array(["a", "b", "cc"]), chunks=2), ["a", "b", "cc"]),
        "lazy": (xr.DataArray(np.arange(3.0), dims="record").chunk(record=2), [0, 1, 2]),
        "foreign": (Foreign(da.arange(3, chunks=2) + 1), [1, 2, 3]),
        "unmasked": (unmasked, [0, 1, 2]),
        "unmasked later": (da.from_array(unmasked, chunks=2), [0, 1, 2]),
    }
    with contextlib.suppress(ImportError):
        other = importlib.import_module("dask.array" if PLANNED else "dask_array")
        arrays["other engine"] = other.arange(3, chunks=2), [0, 1, 2]
    given = {name: made for name, (made, _) in arrays.items()}
    wanted = {name: rows for name, (_, rows) in arrays.items()}
    assert stored(given | {"nested": nested}, tmp_path) == wanted | {"nested": nested}
    coded = [{name: _coded(rows[row]) for name, rows in wanted.items()} for row in range(3)]
    assert written(given, tmp_path, features={"lazy": FLOAT}) == coded
    ds = dtf.Dataset.from_arrays({"n": da.arange(3, chunks=2)}).assign(**given, nested=nested)
    assert stored(ds, tmp_path) == {"n": [0, 1, 2]} | wanted | {"nested": nested}
    found = ds.compute()
    assert {name: listed(found[name]) for name in wanted} == wanted
    assert ds.rows[1:].persist()[["rows", "text"]].compute()["text"].tolist() == ["é", ""]
    assert ds.rows[[2, 0]].compute()["bytes"].tolist() == [b"", b"a"]


def _coded(row: Any) -> list[Any]:
    items = row if isinstance(row, list) else [row]
    return [item.encode() if isinstance(item, str) else item for item in items]


@pytest.mark.parametrize(
    ("rows", "feature", "wanted"),
    [
        ([0.5, 0.1], FLOAT, [[0.5], [np.float32(0.1)]]),
        ([[0.5, 1], [2, 3]], dtf.FixedLenFeature((2,), "float32"), [[0.5, 1], [2, 3]]),
        ([[0.5], [], [1, 2.5]], FLOATS, [[0.5], [], [1, 2.5]]),
        ([[0.5, 1], [2, 3]], FLOATS, [[0.5, 1], [2, 3]]),
        (objects([[0.5], [1.5, 2]]), FLOATS, [[0.5], [1.5, 2]]),
        (objects([np.array([0.5]), np.array([1.5, 2])]), FLOATS, [[0.5], [1.5, 2]]),
        ([[1], [2, 3]], dtf.VarLenFeature("uint8"), [[1], [2, 3]]),
        ([[1], [2, 3]], FLOATS, [[1], [2, 3]]),
        ([[], []], VALUES, [[], []]),
        ([[], []], MANY, [[], []]),
        ([[], [1]], FLOATS, [[], [1]]),
        ([], dtf.FixedLenFeature((2,), "float32"), []),
        ([], MANY, []),
        (da.from_array(objects([b"a", b"", b"\0"]), chunks=2), BYTES, [[b"a"], [b""], [b"\0"]]),
    ],
)
def test_lists_and_objects_take_the_dtype_of_their_feature(
    tmp_path: Path, rows: Any, feature: Any, wanted: list[list[Any]]
) -> None:
    assert [row["x"] for row in written({"x": rows}, tmp_path, features={"x": feature})] == wanted


def test_the_advice_for_floats_works_as_it_is_given(tmp_path: Path) -> None:
    for rows in ([0.5, 1.5], [[0.5, 1], [2, 3]], [[0.5], [1.5, 2]], [[[0.5, 1]], [[1, 2], [3, 4]]]):
        with pytest.raises(SchemaError, match="float64, but an Example stores float32") as caught:
            dtf.to_tfrecord({"x": rows}, tmp_path / "x")
        for advice in str(caught.value).split("{'x': ")[1:]:
            feature = eval(advice.split("}")[0], vars(dtf))
            assert written({"x": rows}, tmp_path, features={"x": feature})


@pytest.mark.parametrize("way", ["read", "persisted", "template"])
def test_columns_that_pass_through_map_blocks_are_written_as_they_were_read(way: str, tmp_path: Path) -> None:
    classes: dict[str, tuple[Any, Any]] = {
        "raw": (dtf.RawFeature((2,), ">f4"), np.arange(8, dtype="f4").reshape(4, 2)),
        "tensor": (dtf.TensorFeature((2,), "int64"), np.arange(8).reshape(4, 2)),
        "image": (dtf.ImageFeature((3, 2, 1)), np.arange(24, dtype="u1").reshape(4, 3, 2, 1)),
        "text": (dtf.TextFeature(), np.array(["a", "b", "é", ""])),
        "byte": (dtf.FixedLenFeature((), "uint8"), np.arange(4, dtype="u1")),
        "ragged": (VALUES, [[1], [], [2, 3], [4]]),
        "id": (BYTES, [b"a", b"", b"\0", b"d"]),
    }
    features = {name: feature for name, (feature, _) in classes.items()}
    arrays = {name: rows for name, (_, rows) in classes.items()}
    features["sparse"] = dtf.SparseFeature("at", "is", "float32", 5)
    arrays |= {"sparse.indices": [[[0], [4]], [[1]], [], []], "sparse.values": [[1.0, 2.0], [3.0], [], []]}
    dtf.to_tfrecord(arrays, tmp_path / "x.tfrecord", features=features)
    ds = dtf.read_tfrecord(tmp_path / "x.tfrecord", features)

    def copied(blocks: dict[str, Any]) -> dict[str, Any]:
        return {name: block.copy() if isinstance(block, np.ndarray) else block for name, block in blocks.items()}

    dense = [name for name in features if name not in ("ragged", "id", "sparse")]
    source = ds.persist() if way == "persisted" else ds
    template = {name: ds[name][:0].compute() for name in dense} if way == "template" else None
    mapped = source[dense].map_blocks(copied, template)
    assert mapped.schema == {name: features[name] for name in dense}
    for dataset, name in ((mapped, "y"), (ds[dense], "z"), (ds.map_blocks(dict), "again")):
        dataset.to_tfrecord(tmp_path / f"{name}.tfrecord")
    assert read_oracle(tmp_path / "y.tfrecord") == read_oracle(tmp_path / "z.tfrecord")
    assert read_oracle(tmp_path / "again.tfrecord") == read_oracle(tmp_path / "x.tfrecord")


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
        (np.array([1.5]), NUMBER, None),
        (da.ones((2, 1), chunks=1), VALUES, None),
        (pd.Series([1, 2]), FLOAT, None),
        (["a"], BYTES, None),
        (np.zeros((2, 3), np.int64), dtf.FixedLenFeature((2,), "int64"), None),
    ],
    ids=str,
)
def test_an_explicit_feature_holds_or_is_refused(given: Any, feature: Any, found: Any) -> None:
    if found is None:
        with pytest.raises(SchemaError, match="array 'x'"):
            dtf.Dataset.from_arrays({"x": given}, {"x": feature})
        with pytest.raises(UnknownFeatureError, match=r"features: no array 'y'.*'x'"):
            dtf.Dataset.from_arrays({"x": given}, {"y": feature})
        return
    ds = dtf.Dataset.from_arrays({"x": given}, {"x": feature})
    assert ds.schema["x"] == feature
    assert [row.tolist() for row in ds["x"].compute()] == found


# -- xarray and pandas -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [None, 1])
def test_coordinates_and_attributes_of_xarray_are_kept(chunks: int | None, tmp_path: Path) -> None:
    given = labelled() if chunks is None else labelled().chunk(record=chunks)
    for _ in range(2):
        dtf.to_zarr(given, tmp_path / "x.zarr", resume=True)
    with pytest.raises(ValueError, match="attributes was"):
        dtf.to_zarr(given.assign_attrs(title="other"), tmp_path / "x.zarr", resume=True)
    with xr.open_zarr(tmp_path / "x.zarr") as opened:
        assert set(opened.coords) == {"record", "aux"}
        assert opened["a"].attrs["units"] == "m" and opened["a"].attrs["range"] == [0, 9]
        assert opened["aux"].attrs["long_name"] == "other"
        assert opened.attrs["title"] == "hi" and opened.attrs["version"] == 3
        assert opened.sel(record=8)["a"].to_numpy() == 2
        xr.testing.assert_equal(opened.compute(), labelled())
    found = dtf.from_zarr(tmp_path / "x.zarr").compute()
    assert {name: column.tolist() for name, column in found.items()} == {"a": [1, 2], "record": [7, 8], "aux": [5, 6]}
    records = [{"a": [1], "record": [7], "aux": [5]}, {"a": [2], "record": [8], "aux": [6]}]
    assert written(given, tmp_path) == written(given.drop_attrs(), tmp_path) == records


def test_what_is_not_written_is_announced(tmp_path: Path) -> None:
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
    given = xr.Dataset({"a": ("record", [1, 2], {"feature": "mine", "raw": b"\0", "ok": 1})}, attrs={"when": {1, 2}})
    with pytest.warns(UserWarning, match="attributes are not written: a.feature, a.raw, when"):
        dtf.to_zarr(given, tmp_path / "y.zarr")
    with xr.open_zarr(tmp_path / "y.zarr") as opened:
        assert opened["a"].attrs == {"ok": 1, "feature": "a", "feature_class": "FixedLenFeature"}


def test_data_frames(tmp_path: Path) -> None:
    """`test_frames` tests the dtypes of columns."""
    frame = pd.DataFrame({"text": ["a", "é"], "half": np.array([0.5, 1.5], "f4"), "kind": pd.Categorical(["x", "y"])})
    assert stored(frame, tmp_path) == {"text": ["a", "é"], "half": [0.5, 1.5], "kind": ["x", "y"]}
    assert written(frame, tmp_path)[1] == {"text": ["é".encode()], "half": [1.5], "kind": [b"y"]}
    frame.attrs["title"] = "hi"
    with pytest.warns(UserWarning, match="attributes are not written: title") as warned:
        written(frame, tmp_path)
    assert [each.filename for each in warned] == [__file__]


# -- records and stores ------------------------------------------------------------------------------------------------


def test_records_that_are_not_payloads_are_refused_and_leave_no_file(tmp_path: Path) -> None:
    writer = dtf.RecordWriter(tmp_path / "x.tfrecord")
    writer.write(example(x=[1]))
    refused: list[tuple[Any, str]] = [
        (Example.FromString(example(x=[1])), r"got a message Example: write\(message.SerializeToString\(\)\)"),
        ({"x": 1}, "got a dict: to_tfrecord.*SerializeToString"),
        ("text", r"got str: write\(text.encode\(\)\)"),
        (None, "got NoneType"),
    ]
    for given, said in refused:
        with pytest.raises(TypeError, match=said):
            writer.write(given)
    # A collected writer removes its temporary file.
    del writer
    gc.collect()
    assert not [*tmp_path.iterdir()]


def test_names_that_no_file_has_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    for name, rows in (("k" * 300, [1]), ("k" * 250, [[1], [2, 3]]), ("é" * 130, [1])):
        with pytest.raises(SchemaError, match=r"feature '(k|é)+.*more than the 255 bytes of a file name.*rename"):
            dtf.to_zarr({name: rows}, tmp_path / "x.zarr")
        assert not [*tmp_path.iterdir()]
    for rows in ([1], [[1], [2, 3]]):
        assert stored({"k" * 200: rows}, tmp_path) == {"k" * 200: rows}
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


RECTILINEAR = "array.rectilinear_chunks"


@pytest.mark.skipif(not hasattr(zarr.Array, "read_chunk_sizes"), reason="zarr 3.2 introduced rectilinear grids")
def test_rectilinear_grids_of_zarr_are_read_in_whole_chunks(tmp_path: Path, set_limits: Callable[..., Limits]) -> None:
    values = np.arange(180, dtype="float32").reshape(60, 3)
    with zarr.config.set({RECTILINEAR: True}):
        group = zarr.open_group(tmp_path / "in.zarr", mode="w")
        stored = group.create_array(
            "x", shape=(60, 3), chunks=[[5, 25, 20, 10], [3]], dtype="float32", dimension_names=("record", "k")
        )
        stored[:] = values
        set_limits(input_chunk_nbytes=30 * 12)
        ds = dtf.Dataset.from_arrays({"x": stored})
        assert ds.chunks == (30, 30)
        two = zarr.create_array(tmp_path / "two.zarr", shape=(30, 3), chunks=[[5, 25], [3]], dtype="float32")
        two[:] = values[:30]
        np.testing.assert_array_equal(dtf.Dataset.from_arrays({"x": two})["x"].compute(), values[:30])
        np.testing.assert_array_equal(ds["x"].compute(), values)
        dtf.to_zarr({"x": stored}, tmp_path / "out.zarr")
        dtf.to_tfrecord({"x": stored}, tmp_path / "out.tfrecord")
        np.testing.assert_array_equal(dtf.from_zarr(tmp_path / "out.zarr")["x"].compute(), values)
        np.testing.assert_array_equal(dtf.read_tfrecord(tmp_path / "out.tfrecord")["x"].compute(), values)
        xarray = pytest.importorskip("xarray")
        with xarray.open_zarr(tmp_path / "in.zarr", consolidated=False, chunks=None) as opened:
            dtf.to_zarr(opened, tmp_path / "again.zarr")
        np.testing.assert_array_equal(dtf.from_zarr(tmp_path / "again.zarr")["x"].compute(), values)


@pytest.mark.parametrize("missing", [None, float("nan"), 1])
def test_functions_and_lazy_objects_invent_no_text_for_missing_values(missing: Any) -> None:
    ds, template = numbers().rows[:2], {"t": dtf.TextFeature()}
    for given in (objects(["a", missing]), ["a", missing]):
        with pytest.raises(SchemaError, match=r"map_blocks returned 't': expected str objects; got (None|nan|1)"):
            ds.map_blocks(lambda _, given=given: {"t": given}, template).compute(scheduler="sync")
    with pytest.raises(SchemaError, match=r"expected bytes objects; got (None|nan|1)"):
        values = objects([b"a", missing])
        ds.map_blocks(lambda _: {"t": values}, {"t": dtf.FixedLenFeature((), "bytes")}).compute(scheduler="sync")
    lazy = da.from_array(objects(["a", missing]), chunks=1)
    with pytest.raises(SchemaError, match=r"array 't': expected str objects; got (None|nan|1)"):
        dtf.Dataset.from_arrays({"t": lazy}, features=template).compute(scheduler="sync")


def test_text_with_an_object_for_missing_values_but_none_missing_is_text() -> None:
    text = np.array(["a", "é"], np.dtypes.StringDType(na_object=None))
    ds = dtf.Dataset.from_arrays({"t": text, "lazy": da.from_array(text, chunks=1)})
    found = ds.compute(scheduler="sync")
    assert {name: (str(array.dtype), array.tolist()) for name, array in found.items()} == dict.fromkeys(
        ("t", "lazy"), ("StringDType()", ["a", "é"])
    )


def test_nulls_in_blocks_of_functions_are_refused() -> None:
    ds, template = numbers().rows[:2], {"t": dtf.FixedLenFeature((), "float32")}
    for values in (pa.array([1.0, None], pa.float32()), pa.chunked_array([[1.0, None]], pa.float32())):
        with pytest.raises(SchemaError, match="map_blocks returned 't' has missing values in row 1"):
            ds.map_blocks(lambda _, values=values: {"t": values}, template).compute(scheduler="sync")
