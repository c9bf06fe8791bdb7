"""DataFrames: partitions with known divisions, Arrow types both ways, missing values refused."""

from __future__ import annotations

from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from support.any_columns import every_column, listed
from support.arrow_rows import rows_of, same
from support.golden import expected, shard, spec

import dask_tfrecord as dtf
from dask_tfrecord.errors import SchemaError


def check_equal(one: dtf.Dataset, other: dtf.Dataset) -> None:
    """Compare the columns of two data sets, dtypes included."""
    assert list(one) == list(other)
    wanted, found = other.compute(), one.compute()
    for name in other:
        assert same(listed(rows_of(found[name])), listed(rows_of(wanted[name]))), name
        assert found[name].dtype == wanted[name].dtype, name
        assert found[name].shape == wanted[name].shape, name


def test_rows_come_back_from_a_dataframe() -> None:
    ds = every_column()
    # Arrow lacks complex numbers, and users state how times are listed.
    times = [name for name, feature in ds.schema.items() if feature.item_dtype.kind in "mM"]
    plain = ds[[name for name in ds if name not in ("samples", "none", *times)]]
    frame = plain.to_dataframe()
    assert frame.divisions == (0, 4, 8)
    assert all(isinstance(dtype, pd.ArrowDtype) for dtype in frame.dtypes)
    back = dtf.Dataset.from_arrays(frame)
    assert back.chunks == (4, 5)
    check_equal(back, plain)
    check_equal(dtf.Dataset.from_arrays(frame.compute()), plain)
    assert frame.compute().index.tolist() == list(range(9))
    assert frame.loc[3:5].compute()["text"].tolist() == list(plain["text"].compute()[3:6])
    empty = every_column((0,))[["dense", "ragged"]]
    assert len(empty.to_dataframe().compute()) == 0
    check_equal(dtf.Dataset.from_arrays(empty.to_dataframe()), empty)


def test_uncounted_rows_have_no_divisions(golden: Path) -> None:
    frame = dtf.read_tfrecord(shard(golden, "varlen"), **spec(golden, "varlen"), counts=None).to_dataframe()
    assert not frame.known_divisions
    assert len(frame) == len(next(iter(expected(golden, "varlen").values())))


def test_dtypes_are_kept() -> None:
    frame = pd.DataFrame(
        {
            "int8": np.array([1, -2, 3], np.int8),
            "half": np.array([0.5, np.nan, 2], np.float16),
            "text": ["a", "ä", ""],
            "flag": [True, False, True],
            "kind": pd.Categorical(["x", "y", "x"]),
            "arrow": pd.arrays.ArrowExtensionArray(pa.array([1.5, float("nan"), 2])),
            "bytes": pd.array([b"a", b"\0", b""], pd.ArrowDtype(pa.binary())),
            "lists": pd.array([[1], [], [2, 3]], pd.ArrowDtype(pa.list_(pa.uint16()))),
        }
    )
    for given in (frame, dd.from_pandas(frame, npartitions=2)):
        ds = dtf.Dataset.from_arrays(given)
        columns = ds.compute()
        kinds = {name: columns[name].dtype.name for name in ("int8", "half", "flag", "arrow")}
        assert kinds == {"int8": "int8", "half": "float16", "flag": "bool", "arrow": "float64"}
        assert columns["text"].tolist() == ["a", "ä", ""]
        assert columns["kind"].tolist() == ["x", "y", "x"]
        assert columns["bytes"].tolist() == [b"a", b"\0", b""]
        assert [row.tolist() for row in columns["lists"]] == [[1], [], [2, 3]]
        assert columns["lists"][0].dtype == np.uint16
        assert np.isnan(columns["arrow"][1])


def test_missing_values_are_refused_with_column_and_row() -> None:
    lists = pd.array([[1], [2], [3, None], [4]], pd.ArrowDtype(pa.list_(pa.int64())))
    for values, row in [
        (pd.array([1, 2, None, 4], "Int64"), 2),
        (pd.array([1, 2, 3, None], pd.ArrowDtype(pa.int64())), 3),
        (pd.array([b"a", None, b"", b""], pd.ArrowDtype(pa.binary())), 1),
        (lists, 2),
        (pd.array(["a", "b", "c", None], "string"), 3),
    ]:
        frame = pd.DataFrame({"good": np.arange(4), "bad": values})
        wanted = rf"'bad' has missing values in row {row}, which records do not have: fill"
        with pytest.raises(SchemaError, match=wanted):
            dtf.Dataset.from_arrays(frame)
        with pytest.raises(SchemaError, match=wanted):
            dtf.Dataset.from_arrays(dd.from_pandas(frame, npartitions=2)).compute(scheduler="threads")


def test_frames_that_are_refused() -> None:
    frame = pd.DataFrame({"x": [1, 2, 3, 4]})
    with pytest.raises(SchemaError, match="index of the DataFrame would be lost"):
        dtf.Dataset.from_arrays(dd.from_pandas(frame.set_index(pd.Index([1, 2, 3, 4], name="id")), npartitions=2))
    table = pytest.importorskip("pyarrow").table({"x": [1]})
    with pytest.raises(SchemaError, match=r"got pyarrow.lib.Table: frame.to_pandas\(\) converts it"):
        dtf.Dataset.from_arrays(table)
    assert dtf.Dataset.from_arrays(table.to_pandas())["x"].compute().tolist() == [1]
    with dask.config.set({"dataframe.convert-string": False}):
        objects = dd.from_pandas(pd.DataFrame({"x": [b"a", b"b"]}), npartitions=1)
        with pytest.raises(SchemaError, match="column 'x' contains objects"):
            dtf.Dataset.from_arrays(objects)
        ds = dtf.Dataset.from_arrays(objects, {"x": dtf.FixedLenFeature((), "bytes")})
    assert ds["x"].compute().tolist() == [b"a", b"b"]
    nested = pd.DataFrame(
        {"x": pd.array([[{"a": 1}], [{"a": 2}]], pd.ArrowDtype(pa.list_(pa.struct([("a", pa.int64())]))))}
    )
    with pytest.raises(SchemaError, match="array 'x'"):
        dtf.Dataset.from_arrays(nested)
    times = pd.DataFrame({"x": pd.to_datetime(["2024-01-01"])})
    with pytest.raises(SchemaError, match=r"astype\('int64'\) for microseconds"):
        dtf.Dataset.from_arrays(times)


def test_tensors_and_shapes_that_contradict_their_values_are_refused() -> None:
    tensors = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int32(), (2, 2)), pa.array([[1, 2, 3, 4], [1, None, 3, 4]], pa.list_(pa.int32(), 4))
    )
    kind = pa.struct([("data", pa.list_(pa.int64())), ("shape", pa.list_(pa.int64(), 2))])
    wrong = [([1, 2, 3, 4, 5], [2, 2]), ([1, 2], [-1, -2]), ([], [2**32, 2**32])]
    arrays = [pa.array([{"data": [1, 2], "shape": [2, 1]}, {"data": a, "shape": b}], kind) for a, b in wrong]
    for array, text in [
        (tensors, "missing values in row 1"),
        *((array, r"row 1: an array of shape") for array in arrays),
    ]:
        frame = pd.DataFrame({"x": pd.arrays.ArrowExtensionArray(array)})
        with pytest.raises(SchemaError, match=text):
            dtf.Dataset.from_arrays(frame)
        with pytest.raises(SchemaError, match=text):
            dtf.Dataset.from_arrays(dd.from_pandas(frame, npartitions=1)).compute()


def test_tensors_of_any_layout_and_bool_come_back() -> None:
    masks = np.random.default_rng(0).random((3, 2, 4)) < 0.5
    ds = dtf.Dataset.from_arrays({"mask": masks})
    table = pa.table(ds)
    assert np.array_equal(np.array(table["mask"].to_pylist()), masks)
    assert np.array_equal(dtf.Dataset.from_arrays(table.to_pandas(types_mapper=pd.ArrowDtype))["mask"].compute(), masks)
    stored = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    for permutation in (None, [1, 0]):
        kind = pa.fixed_shape_tensor(pa.int32(), (3, 4), permutation=permutation)
        array = pa.ExtensionArray.from_storage(kind, pa.array(stored.reshape(2, 12).tolist(), pa.list_(pa.int32(), 12)))
        for rows in (slice(None), slice(1, 2), slice(0, 0)):
            frame = pd.DataFrame({"x": pd.arrays.ArrowExtensionArray(array[rows])})
            expected = stored[rows] if permutation is None else stored[rows].transpose(0, 2, 1)
            assert np.array_equal(dtf.Dataset.from_arrays(frame)["x"].compute(), expected)
