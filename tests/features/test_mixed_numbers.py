"""Numbers that some records store as integers and others as floats, and empty lists of another kind."""

from __future__ import annotations

import json
import pickle
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from oracle.messages import BytesList, Example, Feature, FloatList, Int64List
from support.few import mostly_slow
from support.wire import example, sequence_example

import dask_tfrecord as dtf
from dask_tfrecord.errors import FeatureError, SchemaError

NUMBER = dtf.FixedLenFeature((), "float64", mixed=True)
EMPTY = Feature(bytes_list=BytesList())


def is_exact(number: int, bits: int) -> bool:
    """Return whether a binary float with this number of significant bits can equal an integer."""
    size = abs(number)
    return size == 0 or size >> max(size.bit_length() - bits, 0) << max(size.bit_length() - bits, 0) == size


def drawn(rng: random.Random, bits: int) -> int | float:
    """Return a float that float32 represents, or an integer near the limit of a float with this number of bits."""
    if rng.random() < 0.5:
        return float(np.float32(rng.choice([rng.random(), 0.0, -0.0, 3.0, 1e30, float("inf")])))
    size = rng.choice([rng.getrandbits(8), rng.getrandbits(62), 1 << rng.randrange(62), (1 << bits) + rng.randrange(3)])
    return rng.choice([1, -1]) * size


@pytest.mark.parametrize(
    ("dtype", "bits", "compression"), mostly_slow([("float64", 53, None), ("float32", 24, "gzip")], 2)
)
def test_integers_and_floats_are_read_as_floats(tmp_path: Path, dtype: str, bits: int, compression: str | None) -> None:
    rng = random.Random(bits)
    records: list[dict[str, Any]] = []
    for _ in range(200):
        one, some = drawn(rng, bits), [drawn(rng, bits) for _ in range(rng.randrange(4))]
        # A list has one kind.
        same = [value for value in some if type(value) is type(some[0])]
        records.append(
            {"one": [one], "some": same if same else rng.choice([EMPTY, [], Feature(int64_list=Int64List())])}
        )
    fits = [
        record
        for record in records
        if all(
            isinstance(value, float) or is_exact(value, bits) for value in (*record["one"], *(_values(record["some"])))
        )
    ]
    assert 20 < len(fits) < 200
    features = {
        "one": dtf.FixedLenFeature((), dtype, mixed=True),
        "some": dtf.VarLenFeature(dtype, mixed=True),
    }
    oracle.write_oracle(tmp_path / "fits", [example(**record) for record in fits], compression)
    found = dtf.read_tfrecord(tmp_path / "fits", features, chunks=30).compute()
    assert found["one"].dtype == dtype
    assert list(map(Fraction, _finite(found["one"].tolist()))) == list(
        map(Fraction, _finite([record["one"][0] for record in fits]))
    )
    for row, record in zip(found["some"], fits, strict=True):
        assert row.dtype == dtype
        assert row.tolist() == _values(record["some"])
    for record in records:
        if record in fits:
            continue
        oracle.write_oracle(tmp_path / "misfit", [example(**fits[0]), example(**record)], compression)
        with pytest.raises(FeatureError, match=rf"holds -?\d+, which {dtype} can't hold exactly") as caught:
            dtf.read_tfrecord(tmp_path / "misfit", features).compute()
        assert caught.value.place.record == 1
        assert caught.value.place.feature in features
        bad = next(value for value in record[caught.value.place.feature] if not is_exact(value, bits))
        assert f"holds {bad}," in str(caught.value)


def _values(given: Any) -> list[Any]:
    return [] if isinstance(given, Feature) else given


def _finite(values: Any) -> list[Any]:
    return [value if np.isfinite(value) else 0.5 for value in values]


def test_steps_items_and_partitions_may_be_mixed(tmp_path: Path) -> None:
    walk = tmp_path / "walk"
    oracle.write_oracle(walk, [sequence_example(s=[[1], [0.5]]), sequence_example(s=[[2]], t=[[3, 4], [], [2.5]])])
    lists = {
        "s": dtf.FixedLenSequenceFeature((), "float64", mixed=True),
        "t": dtf.VarLenFeature("float32", mixed=True),
    }
    found = dtf.read_tfrecord(walk, {}, sequence_features=lists).compute()
    assert found["s"].tolist() == [[1, 0.5], [2, 0]]
    assert [[step.tolist() for step in row] for row in found["t"]] == [[], [[3, 4], [], [2.5]]]
    cut = tmp_path / "cut"
    oracle.write_oracle(cut, [example(v=[1, 2, 3], p=[2, 1]), example(v=[0.5], p=[1])])
    ragged = dtf.RaggedFeature("float32", value_key="v", partitions=[dtf.RaggedFeature.RowLengths("p")], mixed=True)
    rows = dtf.read_tfrecord(cut, {"a": ragged})["a"].compute()
    assert [[inner.tolist() for inner in row] for row in rows] == [[[1, 2], [3]], [[0.5]]]


@pytest.fixture
def ds(tmp_path: Path) -> dtf.Dataset:
    """Open records of mixed kinds."""
    payloads = [example(x=[3], y=[1, 2]), example(x=[0.5], y=[]), example(y=[2.5]), example(x=[-7], y=[4, 5, 6])]
    oracle.write_oracle(tmp_path / "x.tfrecord", payloads)
    features = {
        "x": dtf.FixedLenFeature((), "float64", default_value=9, mixed=True),
        "y": dtf.VarLenFeature("float64", mixed=True),
    }
    return dtf.read_tfrecord(tmp_path / "x.tfrecord", features, chunks=2)


def test_schema_and_displays_keep_it(ds: dtf.Dataset) -> None:
    schema = ds.schema
    assert dtf.Schema.from_json(schema.to_json()) == schema
    assert json.loads(schema.to_json())["features"][1]["mixed"] is True
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert repr(schema["x"]) == "FixedLenFeature((), 'float64', default_value=9.0, mixed=True)"
    assert schema["x"] != dtf.FixedLenFeature((), "float64", default_value=9)


def test_filters_explode_and_statistics(ds: dtf.Dataset) -> None:
    assert ds.where([("x", ">", 2)])["x"].compute().tolist() == [3, 9]
    items = ds.explode("y", repeat=["x"]).compute()
    assert items["y"].tolist() == [1, 2, 2.5, 4, 5, 6]
    assert items["x"].tolist() == [3, 3, 9, -7, -7, -7]
    numbers = ds.describe()["x"].numbers
    assert (numbers.minimum, numbers.maximum) == (-7, 9)


def test_outputs_hold_floats(ds: dtf.Dataset, tmp_path: Path) -> None:
    ds.to_zarr(tmp_path / "x.zarr")
    assert dtf.from_zarr(tmp_path / "x.zarr")["x"].compute().tolist() == [3, 0.5, 9, -7]
    ds.to_tfrecord(tmp_path / "again.tfrecord")
    written = [Example.FromString(each).features.feature for each in oracle.read_payloads(tmp_path / "again.tfrecord")]
    assert [each["x"].float_list.value for each in written] == [[3], [0.5], [9], [-7]]
    assert [each["y"].float_list.value for each in written] == [[1, 2], [], [2.5], [4, 5, 6]]
    again = dtf.read_tfrecord(tmp_path / "again.tfrecord", ds.schema).compute()
    assert [row.tolist() for row in again["y"]] == [[1, 2], [], [2.5], [4, 5, 6]]


def test_integers_beyond_float32_are_not_written_rounded(tmp_path: Path) -> None:
    oracle.write_oracle(tmp_path / "x", [example(x=[1]), example(x=[2**24 + 1])])
    ds = dtf.read_tfrecord(tmp_path / "x", {"x": NUMBER})
    with pytest.raises(FeatureError, match="16777217"):
        ds.to_tfrecord(tmp_path / "y")


@pytest.mark.parametrize("dtype", ["int64", "bytes", "float16", "bool"])
def test_other_dtypes_are_refused(dtype: str) -> None:
    with pytest.raises(SchemaError, match="mixed=True reads integers and floats as float64 or float32"):
        dtf.VarLenFeature(dtype, mixed=True)


@pytest.mark.parametrize("shape", [(), (2,)])
def test_a_report_suggests_it(tmp_path: Path, shape: tuple[int, ...]) -> None:
    count = shape[0] if shape else 1
    path = tmp_path / "x"
    oracle.write_oracle(path, [example(x=[1] * count, y=[1]), example(x=[0.5] * count, y=[1.5, 2])])
    report = dtf.inspect_records(path)
    code = f'dtf.FixedLenFeature({shape}, "float64", mixed=True)'
    assert f"or {code}: integers and floats, all 2 records" in report.spec()
    with pytest.raises(SchemaError) as caught:
        dtf.infer_schema(path)
    assert f"{code} reads integers and floats; or give features= without it" in str(caught.value)
    names = {feature.name: feature.suggestions[0].feature for feature in report.features}
    features = {name: eval(text or "", {"dtf": dtf}) for name, text in names.items()}
    found = dtf.read_tfrecord(path, features).compute()
    assert found["x"].ravel().tolist() == [1] * count + [0.5] * count
    assert [row.tolist() for row in found["y"]] == [[1], [1.5, 2]]


def test_empty_lists_of_another_kind_are_no_conflict(tmp_path: Path) -> None:
    empty = Feature(float_list=FloatList())
    oracle.write_oracle(
        tmp_path / "x", [example(x=[1, 2], y=empty), example(x=empty, y=EMPTY), example(x=[3], y=EMPTY)]
    )
    schema = dtf.infer_schema(tmp_path / "x")
    assert dict(schema) == {"x": dtf.VarLenFeature("int64"), "y": dtf.VarLenFeature("bytes")}
    found = dtf.read_tfrecord(tmp_path / "x").compute()
    assert [row.tolist() for row in found["x"]] == [[1, 2], [], [3]]
