"""Arrays, text and images of which a record, a feature list or a partition holds any number."""

from __future__ import annotations

import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import numpy as np
import oracle
import pytest
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord import messages
from dask_tfrecord.columns.decoder import Decoder
from dask_tfrecord.errors import FeatureError, Location, SchemaError
from dask_tfrecord.schema import Schema

CONTEXT = {"words": dtf.TextFeature(count=-1), "states": dtf.RawFeature((2, 3), ">i2", count=-1)}
LISTS = {"said": dtf.TextFeature(), "flags": dtf.RawFeature((2,), "bool")}
SCHEMA = Schema(CONTEXT, sequence_features=LISTS)


def record(words: list[bytes], states: list[bytes], said: list[bytes], flags: list[bytes]) -> messages.SequenceExample:
    made = messages.SequenceExample()
    for name, values in (("words", words), ("states", states)):
        made.context.feature[name].bytes_list.value.extend(values)
    for name, values in (("said", said), ("flags", flags)):
        for value in values:
            made.feature_lists.feature_list[name].feature.add().bytes_list.value.append(value)
    return made


def write(path: Path, records: list[messages.SequenceExample]) -> list[bytes]:
    payloads = [one.SerializeToString() for one in records]
    oracle.write_oracle(path, payloads)
    return payloads


def same(found: Any, wanted: Any) -> None:
    """Compare rows that are arrays of arrays."""
    assert found.dtype == wanted.dtype
    for row, other in zip(found, wanted, strict=True):
        assert np.shape(row) == np.shape(other) and np.array_equal(row, other)
        assert not isinstance(row, np.ndarray) or row.dtype == other.dtype


def objects(rows: Any) -> Any:
    """Return rows in an array of objects."""
    out = np.empty(len(rows), object)
    out[:] = list(rows) or None
    return out


def cut(values: Any, splits: list[int]) -> Any:
    return objects([values[start:stop] for start, stop in pairwise(splits)])


def test_absent_empty_and_filled_values_survive_every_store(tmp_path: Path) -> None:
    payloads = write(
        tmp_path / "x",
        [
            record(["ä".encode(), b"", b"long " * 20], [bytes(range(12))], [b"a", b"b"], [b"\0\1"]),
            messages.SequenceExample(),
            record([], [bytes(12), bytes(range(12, 24))], [], [b"\1\1"] * 3),
            record([b"one"], [], [b"\xc3\xa4"], []),
        ],
    )
    expected = oracle.expected_columns(payloads, SCHEMA)
    ds = dtf.read_tfrecord(tmp_path / "x", CONTEXT, sequence_features=LISTS, chunks=3)
    assert {name: ds.schema[name] for name in ("said", "flags")} == {
        "said": dtf.TextFeature(count=-1),
        "flags": dtf.RawFeature((2,), "bool", count=-1),
    }
    ds.to_zarr(tmp_path / "x.zarr", chunks=2)
    stored = dtf.from_zarr(tmp_path / "x.zarr")
    for number, columns in enumerate((ds, stored)):
        columns.to_tfrecord(tmp_path / f"y{number}")
        again = dtf.read_tfrecord(tmp_path / f"y{number}", CONTEXT, sequence_features=LISTS)
        for made in (columns, again):
            for name, array in made.compute().items():
                same(array, expected[name])
    for name in expected:
        same(ds[name][[3, 0]].compute(), expected[name][[3, 0]])


WRONG = {
    "raw value of another size": ("flags", b"\0", r"in step 17 holds 1 byte; .* needs 2"),
    "byte that is no bool": ("flags", b"\0\7", r"in step 17 holds a byte 7; .* accepts 0 and 1"),
    "step that is not UTF-8": ("said", b"\xff", "in step 17 is not valid UTF-8"),
    "raw value in a list": ("states", b"abc", r"in value 17 holds 3 bytes; .* needs 12"),
    "text in a list": ("words", b"a\xff", "in value 17 is not valid UTF-8"),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_name_the_step(tmp_path: Path, case: str) -> None:
    name, value, says = WRONG[case]
    good = {"words": [b"a"] * 20, "states": [bytes(12)] * 20, "said": [b"x"] * 20, "flags": [b"\0\1"] * 20}
    bad = {**good, name: [*good[name][:17], value, *good[name][18:]]}
    payloads = write(tmp_path / "x", [record(**good)] * 5 + [record(**bad), record(**good)])
    ds = dtf.read_tfrecord(tmp_path / "x", CONTEXT, sequence_features=LISTS, chunks=4)
    with pytest.raises(FeatureError, match=f"feature '{name}' {says}") as caught:
        ds[name].compute()
    offset = sum(len(payload) + 16 for payload in payloads[:5])
    assert caught.value.place == Location(str(tmp_path / "x"), 5, offset, name)


ZEROS = zlib.compress(bytes(32))
DEFLATED = dtf.RawFeature((4,), "float64", count=-1, compression_type="ZLIB")
# Of the values of one record, the last is wrong.
DAMAGED: list[tuple[Any, list[bytes], dict[str, list[int]], str]] = [
    (DEFLATED, [ZEROS, ZEROS, zlib.compress(bytes(31))], {}, "in value 2 holds 31 bytes; .* needs 32"),
    (DEFLATED, [ZEROS, ZEROS, zlib.compress(bytes(33))], {}, "in value 2 holds more than 32 bytes"),
    *(
        (DEFLATED, [ZEROS, ZEROS, value], {}, "in value 2 holds damaged ZLIB data")
        for value in (ZEROS[:-1], ZEROS + b"x", b"", bytes(32))
    ),
    (
        dtf.RaggedFeature("bytes", partitions=[dtf.RaggedFeature.RowLengths("n")], values=dtf.RawFeature((2,), "int8")),
        [b"ab", b"cd", b"e"],
        {"n": [1, 2]},
        "in value 2 holds 1 byte; .* needs 2",
    ),
    (dtf.RawFeature((3, -1, 3), "<f4"), [bytes(48)], {}, "holds 48 bytes; .* needs a multiple of 36"),
]


@pytest.mark.parametrize(("feature", "values", "others", "says"), DAMAGED)
def test_damaged_values_are_named(
    tmp_path: Path, feature: Any, values: list[bytes], others: dict[str, list[int]], says: str
) -> None:
    oracle.write_oracle(tmp_path / "x", [example(x=values, **others)])
    with pytest.raises(FeatureError, match=f"record 0 .*feature 'x' {says}"):
        dtf.read_tfrecord(tmp_path / "x", {"x": feature}, counts=[1]).compute()


STEP_ERRORS = [
    (dtf.TensorFeature((3,), "int16"), "a tensor of dtype uint16"),
    (dtf.TensorFeature((2,), "uint16"), r"shape \(3,\)"),
    (dtf.RawFeature((3,), "uint16"), "bytes; .* needs 6"),
    (dtf.ImageFeature((4, 6, 3)), r"a PNG image of shape \(4, 5, 3\)"),
]


@pytest.mark.parametrize(("feature", "says"), STEP_ERRORS, ids=str)
def test_wrong_arrays_name_the_step(tmp_path: Path, feature: Any, says: str) -> None:
    given: tuple[Any, Any] = (dtf.TensorFeature((3,), "uint16"), np.zeros((19, 3), np.uint16))
    if isinstance(feature, dtf.ImageFeature):
        given = dtf.ImageFeature((4, 5, 3)), np.zeros((2, 4, 5, 3), np.uint8)
    dtf.to_tfrecord({"x": [given[1]]}, tmp_path / "x", sequence_features={"x": given[0]})
    with pytest.raises(FeatureError, match=f"feature 'x' in step 0 holds .*{says}"):
        dtf.read_tfrecord(tmp_path / "x", sequence_features={"x": feature}).compute()


# A record of each position has the same values in each column.
POSITIONS = {
    "raw": (dtf.RawFeature((2, 3), ">i2"), lambda n: np.arange(n * 6, dtype=np.int16).reshape(n, 2, 3)),
    "zlib": (
        dtf.RawFeature((4,), "float64", compression_type="ZLIB"),
        lambda n: np.linspace(0, 1, n * 4).reshape(n, 4),
    ),
    "tensor": (dtf.TensorFeature((3,), "uint16"), lambda n: np.arange(n * 3, dtype=np.uint16).reshape(n, 3)),
    "strings": (
        dtf.TensorFeature((2,), "bytes"),
        lambda n: np.array([[b"a" * row, b"\0"] for row in range(n)], object).reshape(n, 2),
    ),
    "text": (dtf.TextFeature(), lambda n: np.array([f"ä{row}" for row in range(n)], np.dtypes.StringDType())),
    "image": (dtf.ImageFeature((2, 5, 3)), lambda n: (np.arange(n * 30) % 251).astype("u1").reshape(n, 2, 5, 3)),
}


def several(feature: Any, count: int) -> Any:
    """Return the feature of records with `count` arrays."""
    if isinstance(feature, dtf.ImageFeature):
        return replace(feature, shape=(count, *feature.value_shape))
    return replace(feature, count=count)


@pytest.mark.parametrize("name", POSITIONS)
def test_a_fixed_number_of_arrays_is_dense(tmp_path: Path, name: str) -> None:
    feature, values = POSITIONS[name]
    array = values(60).reshape(20, 3, *feature.value_shape)
    dtf.to_tfrecord({"x": array}, tmp_path / "x", features={"x": several(feature, 3)})
    ds = dtf.read_tfrecord(tmp_path / "x", {"x": several(feature, 3)}, chunks=7)
    assert ds["x"].shape == (20, 3, *feature.value_shape)
    assert ds["x"].dtype == feature.item_dtype
    assert np.array_equal(ds["x"].compute(), array)
    assert np.array_equal(ds["x"][[11, 2]].compute(), array[[11, 2]])
    for count in (2, 4):
        with pytest.raises(FeatureError, match=f"record 0 .*feature 'x' holds 3 values where .* takes {count}"):
            dtf.read_tfrecord(tmp_path / "x", {"x": several(feature, count)}).compute()


@pytest.mark.parametrize("name", POSITIONS)
def test_any_number_of_arrays_is_ragged(tmp_path: Path, name: str) -> None:
    feature, values = POSITIONS[name]
    splits = [0, 4, 4, 5, 17, 30]
    flat = values(30)
    rows = cut(flat, splits)
    dtf.to_tfrecord({"x": rows}, tmp_path / "list", features={"x": several(feature, -1)})
    dtf.to_tfrecord({"x": rows}, tmp_path / "steps", sequence_features={"x": feature})
    for ds in (
        dtf.read_tfrecord(tmp_path / "list", {"x": several(feature, -1)}, chunks=2),
        dtf.read_tfrecord(tmp_path / "steps", sequence_features={"x": feature}, chunks=2),
    ):
        assert ds.schema["x"] == several(feature, -1)
        same(ds["x"].compute(), rows)
        items = ds.explode("x")
        assert items.schema["x"] == feature
        assert np.array_equal(items["x"].compute(), flat)
        assert np.array_equal(items.rows[3:9]["x"].compute(), flat[3:9])
        assert items["record"].compute().tolist() == np.repeat(np.arange(5), np.diff(splits)).tolist()
    assert ds["x.lengths"].compute().tolist() == np.diff(splits).tolist()


# Arrays of several sizes, as the items of lists and as steps.
SIZES = {
    "image": (dtf.ImageFeature(), lambda n: np.full((n + 1, 2, 3), n, np.uint8)),
    "tensor": (dtf.TensorFeature((-1, 2), "float64"), lambda n: np.full((n, 2), n / 3)),
    "strings": (dtf.TensorFeature((-1,), "bytes"), lambda n: np.array([b"\0" * n] * n, object)),
    "raw": (dtf.RawFeature((-1, 2), "<i4"), lambda n: np.full((n, 2), n, np.int32)),
    "zlib": (dtf.RawFeature((2, -1), "<i4", compression_type="ZLIB"), lambda n: np.full((2, n), n, np.int32)),
}


@pytest.mark.parametrize("name", SIZES)
def test_arrays_of_any_size_in_lists_and_steps(tmp_path: Path, name: str) -> None:
    feature, array = SIZES[name]
    rows = objects([objects([array(size) for size in sizes]) for sizes in ([2, 0, 3], [], [1], [4, 4], [0, 0, 5])])
    listed = several(feature, -1)
    dtf.to_tfrecord({"x": rows}, tmp_path / "list", features={"x": listed})
    dtf.to_tfrecord({"x": rows}, tmp_path / "steps", sequence_features={"x": feature})
    for ds in (
        dtf.read_tfrecord(tmp_path / "list", {"x": listed}, chunks=2),
        dtf.read_tfrecord(tmp_path / "steps", sequence_features={"x": feature}, chunks=2)[["x"]],
    ):
        assert ds.schema["x"] == listed
        ds.to_zarr(tmp_path / "x.zarr", chunks=2, mode="w", groups={"g": ["x"]})
        stored = dtf.from_zarr(tmp_path / "x.zarr")
        assert stored.schema.groups == {"g": ("x",)}
        for columns in (ds, stored, ds.persist(), dtf.Dataset.from_arrays(ds.to_dataframe())):
            for arrays, expected in zip(columns["x"].compute(), rows, strict=True):
                same(arrays, expected)
        assert [len(row) for row in stored["x"][[4, 1]].compute()] == [3, 0]
        values, splits, arrays, shapes = dask.compute(*ds.ragged("x"))
        assert splits.tolist() == [0, 3, 3, 4, 6, 9]
        assert len(shapes) == len(arrays) - 1 == 9
        assert arrays[-1] == len(values) == shapes.prod(axis=1).sum()
        with pytest.raises(SchemaError, match="of arrays: only rows of differing length are padded"):
            ds.padded("x", 3)
        items = ds.explode("x")
        items.to_zarr(tmp_path / "items.zarr", mode="w")
        for exploded in (items, dtf.from_zarr(tmp_path / "items.zarr")):
            assert exploded.schema["x"] == feature
            same(exploded["x"].compute(), np.concatenate(list(rows)))


@pytest.mark.parametrize("name", POSITIONS)
def test_partitions_group_decoded_values(tmp_path: Path, name: str) -> None:
    feature, values = POSITIONS[name]
    flat, inner, outer = values(12), [0, 2, 2, 3, 8, 12], [0, 3, 3, 5]
    ragged = cut(flat, inner)
    rows = cut(ragged, outer)
    features = {"x": dtf.RaggedFeature("bytes", partitions=[dtf.RaggedFeature.RowLengths("lengths")], values=feature)}
    dtf.to_tfrecord({"x": rows}, tmp_path / "x", features=features)
    ds = dtf.read_tfrecord(tmp_path / "x", features, chunks=2)
    lists = dtf.read_tfrecord(tmp_path / "x", {"x": several(feature, -1), "lengths": dtf.VarLenFeature("int64")})
    assert [row.tolist() for row in lists["lengths"].compute()] == [[2, 0, 1], [], [5, 4]]
    assert np.array_equal(np.concatenate(list(lists["x"].compute())), flat)
    assert dtf.Schema.from_json(ds.schema.to_json()) == ds.schema
    for row, wanted in zip(ds["x"].compute(), rows, strict=True):
        same(row, wanted)
    items = ds.explode("x")
    same(items["x"].compute(), ragged)
    assert items["record"].compute().tolist() == [0, 0, 0, 2, 2]


def test_combinations_without_a_meaning_are_refused(tmp_path: Path) -> None:
    partitions = [dtf.RaggedFeature.RowLengths("lengths")]

    def grouped(values: Any, dtype: str = "bytes") -> dtf.RaggedFeature:
        return dtf.RaggedFeature(dtype, partitions=partitions, values=values)

    for make, says in [
        (lambda: grouped(dtf.FixedLenFeature((), "bytes")), "values is a RawFeature, TensorFeature"),
        (lambda: grouped(dtf.RawFeature((-1,), "int8")), "values have one known shape"),
        (lambda: grouped(dtf.TextFeature(count=2)), "values have one known shape"),
        (lambda: grouped(dtf.TextFeature("x")), "need no default_value"),
        (lambda: grouped(dtf.RawFeature((), "int8"), "int64"), "expected dtype 'bytes'"),
        (lambda: Decoder(Schema({}, sequence_features={"x": grouped(dtf.TextFeature())})), "not supported in sequence"),
        (lambda: dtf.TextFeature(count=0), "expected count=-1"),
        (lambda: dtf.TextFeature("x", count=-1), "default_value is for one string"),
        (lambda: dtf.TensorFeature((-1,), "int8", count=2), "needs a known shape"),
        (lambda: dtf.RawFeature((2,), "int8", compression_type="LZ4"), "'ZLIB', 'GZIP' or None"),
        (lambda: dtf.RawFeature((-1, 2), "int8", count=3), "needs a known shape"),
        (lambda: dtf.RawFeature((2,), "int8", count=True), "expected count=-1"),
    ]:
        with pytest.raises(SchemaError, match=says):
            make()


def test_one_size_of_raw_arrays_is_open_at_any_position(tmp_path: Path) -> None:
    rows = objects([np.arange(6 * n, dtype=np.float32).reshape(3, n, 2) for n in (2, 0, 5, 1)])
    features = {"x": dtf.RawFeature((3, -1, 2), "<f4")}
    dtf.to_tfrecord({"x": rows}, tmp_path / "x", features=features)
    same(dtf.read_tfrecord(tmp_path / "x", features, chunks=3)["x"].compute(), rows)


def test_items_of_lists_are_rows(tmp_path: Path) -> None:
    write(tmp_path / "x", [record([], [], [b"a", b"b"], [b"\0\1", b"\1\1"]), record([], [], [b"c"], [b"\0\0"])])
    items = dtf.read_tfrecord(tmp_path / "x", {}, sequence_features=LISTS).explode(["said", "flags"]).compute()
    assert items["said"].tolist() == ["a", "b", "c"]
    assert items["flags"].tolist() == [[False, True], [True, True], [False, False]]
