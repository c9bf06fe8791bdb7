"""Statistics equal what pandas and NumPy compute from all values, for any column in any chunks."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import golden as cases
from support.any_columns import any_features, dataset_of, fitting_rows
from support.commands import run, shown
from support.numbered_shards import damage
from support.programs import run_python

import dask_tfrecord as dtf
from dask_tfrecord.extras.statistics.statistics import Statistics

pd = pytest.importorskip("pandas")
READ_BY_TENSORFLOW = """
import json, sys
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import statistics_pb2
text = open(sys.argv[1], encoding="utf-8").read()
message = text_format.Parse(text, statistics_pb2.DatasetFeatureStatisticsList())
(dataset,) = message.datasets
found = {}
for feature in dataset.features:
    kind = feature.WhichOneof("stats")
    stats = getattr(feature, kind)
    fields = {field.name: value for field, value in stats.ListFields() if isinstance(value, (int, float))}
    common = {field.name: value for field, value in stats.common_stats.ListFields() if isinstance(value, (int, float))}
    top = [[each.value, each.frequency] for each in stats.top_values] if kind == "string_stats" else []
    sums = [sum(b.sample_count for b in each.buckets) for each in stats.histograms] if kind == "num_stats" else []
    found[feature.path.step[0]] = [feature.Type.Name(feature.type), kind, fields, common, top, sums]
print(json.dumps([dataset.name, dataset.num_examples, found]))
"""


def leaves(value: Any) -> list[Any]:
    """List the single values of a row, at any depth."""
    if isinstance(value, np.ndarray):
        return [leaf for item in value for leaf in leaves(item)] if value.dtype == object else list(value.ravel())
    return [value]


def flat(column: Any) -> list[Any]:
    return [leaf for row in column for leaf in leaves(row)]


def close(found: Any, expected: Any, scale: float) -> bool:
    """Return True if two numbers agree to 1e-12 of the largest value, or are the same infinity or NaN."""
    if math.isfinite(expected) and math.isfinite(found):
        return abs(found - expected) <= 1e-12 * max(scale, 1e-300)
    return not math.isfinite(found) or scale > 1e150


def assert_numbers(found: Any, values: list[Any]) -> None:
    """Compare statistics of numbers with pandas."""
    array = np.array(values)
    with np.errstate(all="ignore"):
        known = array[~np.isnan(array)] if array.dtype.kind == "f" else array
        exact = pd.Series(known.astype(np.float64))
        assert (found.count, found.nan) == (len(known), len(array) - len(known))
        assert found.zeros == int((known == 0).sum())
        if not len(known):
            assert found.minimum is None and found.maximum is None
            assert math.isnan(found.mean) and math.isnan(found.std)
            return
        assert (found.minimum, found.maximum) == (known.min().item(), known.max().item())
        scale = float(np.abs(exact).max())
        assert close(found.mean, exact.mean(), scale) and close(found.std, exact.std(ddof=0), scale)
        if len(known) <= 1024:
            expected = np.quantile(np.asarray(exact), [0, 0.25, 0.5, 1])
            np.testing.assert_array_equal(found.quantile([0, 0.25, 0.5, 1]), expected)


def assert_column(found: Any, feature: Any, column: Any) -> None:
    values = flat(column)
    assert (found.rows, found.values) == (len(column), len(values))
    if feature.ragged_rank:
        counts = [len(row) for row in column]
        assert found.missing == counts.count(0)
        assert_numbers(found.lengths, [count for count in counts if count])
        assert_numbers(found.row_values, [len(flat([row])) for row in column if len(row)])
    if found.numbers is not None:
        assert_numbers(found.numbers, values)
        if found.distinct is not None:
            assert found.distinct == len({value for value in values if value == value})
    elif found.sizes is not None:
        assert_numbers(found.sizes, [len(value) for value in values])
        whole = Counter(value.encode() if isinstance(value, str) else value for value in values)
        assert found.distinct == len(whole)
        times = {value[:256]: count for value, count in whole.items()}
        assert dict(found.frequencies.top(len(times))) == times
        assert found.frequencies.error == 0


@given(st.data())
def test_any_column_in_any_chunks(data: st.DataObject) -> None:
    feature = data.draw(any_features())
    sizes = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=12))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    ds = dataset_of({"x": fitting_rows(feature, sum(sizes), rng)}, {"x": feature}, sizes)
    with dask.config.set(scheduler="sync"):
        found = ds.describe()
        assert_column(found["x"], feature, ds.compute()["x"])
    assert found.nrows == sum(sizes)
    json.loads(found.to_json())
    assert repr(found).count("\n") == 2 and "distribution" in found._repr_html_()


@given(st.data())
def test_each_dimension_equals_numpy(data: st.DataObject) -> None:
    rows, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 5))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    values = rng.standard_normal((rows, width)) * 10.0 ** rng.integers(-8, 9, width) + rng.integers(-5, 6, width)
    values[rng.random(values.shape) < data.draw(st.sampled_from([0, 0.3]))] = np.nan
    chunks = data.draw(st.integers(1, rows))
    found = dtf.Dataset.from_arrays({"x": dask.array.from_array(values, chunks=(chunks, width))}).describe()["x"]
    assert found.numbers is not None
    with np.errstate(all="ignore"):
        frame = pd.DataFrame(values)
        np.testing.assert_array_equal(found.numbers.minima, frame.min())
        np.testing.assert_array_equal(found.numbers.maxima, frame.max())
        largest = np.abs(frame).max().to_numpy()
        for array, expected in ((found.numbers.means, frame.mean()), (found.numbers.stds, frame.std(ddof=0))):
            np.testing.assert_array_equal(np.isnan(array), np.isnan(expected))
            assert (np.nan_to_num(np.abs(array - expected)) <= np.nan_to_num(1e-12 * largest)).all()


def test_estimates_are_within_their_error() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.lognormal(size=100_000)
    words = np.array([f"w{number}" for number in rng.zipf(1.3, len(numbers)).clip(0, 10**9)])
    columns = {"x": numbers, "id": rng.permutation(len(numbers)), "word": words.astype(np.dtypes.StringDType())}
    chunked = {name: dask.array.from_array(array, chunks=7001) for name, array in columns.items()}
    found = dtf.Dataset.from_arrays(chunked).describe()
    ranks = np.linspace(0, 1, 101)
    measured = np.searchsorted(np.sort(numbers), found["x"].numbers.quantile(ranks), side="right") / len(numbers)
    assert np.abs(measured - ranks).max() < 0.01
    for name, array in columns.items():
        distinct = len(set(array.tolist()))
        assert not found[name].is_exact and abs((found[name].distinct or 0) / distinct - 1) < 5 * 0.016
    times = Counter(words.tolist())
    frequencies = found["word"].frequencies
    assert frequencies is not None and 0 < frequencies.error <= len(words) / 1024
    for value, count in frequencies.top(100):
        assert times[value.decode()] - frequencies.error <= count <= times[value.decode()]
    listed = {value.decode() for value, _ in frequencies.top(1024)}
    assert all(word in listed for word, count in times.items() if count > frequencies.error)
    # Estimates of distinct values do not depend on the chunks.
    again = dtf.Dataset.from_arrays(columns).describe()
    assert [again[name].distinct for name in columns] == [found[name].distinct for name in columns]


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int8", "float64"])
@pytest.mark.parametrize("most", [2, 40, 400])
def test_quantiles_of_rows_that_differ_in_shape_are_within_their_error(dtype: str, most: int) -> None:
    rng = np.random.default_rng(1)
    values = [(rng.standard_normal((size, 3)) * 20).astype(dtype) for size in rng.integers(0, most, 3000 // most + 9)]
    ds = dtf.Dataset.from_arrays({"x": values}, {"x": dtf.TensorFeature((-1, 3), dtype)})
    held, ranks = np.sort(np.concatenate([row.ravel() for row in values])), np.linspace(0.05, 0.95, 19)
    found = ds.describe()["x"].numbers.quantile(ranks)
    low, high = (np.searchsorted(held, found, side) / len(held) for side in ("left", "right"))
    assert (low < ranks + 0.01).all() and (high > ranks - 0.01).all()


def test_special_values() -> None:
    values = {
        "big": np.array([2**63 - 1, -(2**63), 2**53 + 1]),
        "unsigned": np.array([2**64 - 1, 0, 1], np.uint64),
        "infinite": np.array([np.inf, 1.0, np.nan]),
        "opposite": np.array([np.inf, -np.inf, 0.0]),
        "nothing": np.full(3, np.nan, np.float32),
        "zero": np.array([0.0, -0.0, np.nan], np.float16),
        "huge": np.array([1e308, -1e308, 1e308]),
        "flag": np.array([True, False, True]),
    }
    found = dtf.Dataset.from_arrays({name: dask.array.from_array(array, chunks=1) for name, array in values.items()})
    numbers = {name: column.numbers for name, column in found.describe().items()}
    assert (numbers["big"].minimum, numbers["big"].maximum) == (-(2**63), 2**63 - 1)
    assert (numbers["unsigned"].minimum, numbers["unsigned"].maximum) == (0, 2**64 - 1)
    assert (numbers["infinite"].mean, numbers["infinite"].infinite, numbers["infinite"].nan) == (math.inf, 1, 1)
    assert math.isnan(numbers["infinite"].std) and math.isnan(numbers["opposite"].mean)
    assert (numbers["opposite"].minimum, numbers["opposite"].maximum) == (-math.inf, math.inf)
    assert (numbers["nothing"].count, numbers["nothing"].nan, numbers["nothing"].minimum) == (0, 3, None)
    assert (found.describe()["zero"].distinct, numbers["zero"].zeros) == (1, 2)
    assert numbers["huge"].mean == pytest.approx(1e308 / 3) and len(numbers["huge"].histogram()) == 10
    assert (numbers["flag"].mean, numbers["flag"].maximum) == (pytest.approx(2 / 3), 1)
    document = json.loads(found.describe().to_json())
    assert document["columns"]["infinite"]["numbers"]["maximum"] == "Infinity"
    assert found.describe()._repr_html_().count("<svg") == 7


def test_text_that_ends_with_zeros() -> None:
    found = dtf.Dataset.from_arrays({"t": ["a\0", "\0", "abc"]}, {"t": dtf.TextFeature()}).describe()["t"]
    assert (found.sizes.minimum, found.sizes.maximum, found.sizes.mean, found.distinct) == (1, 3, 2, 3)


def test_metadata_counts_values_of_all_inner_rows(tmp_path: Path) -> None:
    nested = dtf.RaggedFeature(
        "int64", value_key="v", partitions=[dtf.RaggedFeature.RowLengths("l")], row_splits_dtype="int64"
    )
    rows = [[[1, 2, 3], [4]], [[5]], []]
    dtf.Dataset.from_arrays({"n": rows}, {"n": nested}).describe().to_pbtxt(tmp_path / "stats.pbtxt")
    text = (tmp_path / "stats.pbtxt").read_text()
    lines = dict(line.split(": ") for line in text.split("\n") if "num_values" in line)
    assert {name.strip(): float(value) for name, value in lines.items()} == {
        "min_num_values": 1,
        "max_num_values": 4,
        "avg_num_values": 2.5,
        "tot_num_values": 5,
    }


def test_data_sets_without_rows_or_columns(golden: Path) -> None:
    empty = dtf.Dataset.from_arrays({"x": np.empty(0), "tokens": np.empty((0, 3), np.int64), "b": np.empty(0, "T")})
    found = empty.describe()
    assert (found.nrows, found["x"].values, found["tokens"].distinct, found["b"].distinct) == (0, 0, 0, 0)
    assert "Statistics of 0 rows, 3 columns" in repr(found) and found._repr_html_()
    nothing = dtf.read_tfrecord(cases.shard(golden, "scalars"))[[]].describe()
    assert len(nothing) == 0 and nothing.nrows > 0 and nothing._repr_html_()
    with pytest.raises(dtf.errors.UnknownFeatureError, match=r"no column 'tokns'.*'tokens'"):
        found["tokns"]


def test_long_values_are_told_apart() -> None:
    values = [b"a" * 300 + bytes([number]) for number in range(5)] * 2 + [b"a" * 64, b"a" * 65, b"", b"\0", b"\0\0"]
    column = dtf.Dataset.from_arrays({"x": np.array(values, object)}, {"x": dtf.FixedLenFeature((), "bytes")})
    found = column.describe()["x"]
    assert found.distinct == 10 and found.frequencies is not None
    assert [count for _, count in found.frequencies.top(10)] == [2] * 5 + [1] * 5
    assert max(len(value) for value, _ in found.frequencies.top(10)) == 256


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "rows.tfrecord"
    columns = {
        "x": np.arange(40, dtype=np.float32),
        "tokens": [np.arange(number % 4) for number in range(40)],
        "word": [f"<b>{number % 3}" for number in range(40)],
        "raw": [bytes([255, number % 2]) for number in range(40)],
        "pose": np.arange(80.0, dtype=np.float32).reshape(40, 2),
        "<script>": np.arange(40) % 2,
    }
    dtf.to_tfrecord(columns, path, features={"tokens": dtf.VarLenFeature("int64")})
    return path


@pytest.mark.parametrize("scheduler", ["threads", "sync", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.parametrize("counts", ["auto", None])
def test_schedulers_and_uncounted_rows_agree(shard: Path, scheduler: str, counts: str | None) -> None:
    ds = dtf.read_tfrecord(shard, dtf.infer_schema(shard), counts=counts)
    with dask.config.set(scheduler=scheduler):
        found = ds.describe()
    assert found.nrows == 40
    assert found.to_dict() == dtf.read_tfrecord(shard, chunks=40).describe().to_dict()


def test_damaged_records_are_left_out(shard: Path) -> None:
    damage(shard, -6)
    with pytest.raises(dtf.CorruptRecordError):
        dtf.read_tfrecord(shard).describe()
    assert dtf.read_tfrecord(shard, errors="skip").describe().nrows == 39


def test_items_assigned_columns_and_selections(shard: Path) -> None:
    ds = dtf.read_tfrecord(shard)
    steps = ds.explode(["tokens"]).describe()["tokens"]
    assert steps.numbers is not None and steps.lengths is None
    assert (steps.rows, steps.numbers.maximum) == (60, 2)
    assigned = ds[["x"]].assign(y=ds["x"] * 2).rows[::2].describe()
    assert assigned["y"].numbers is not None and assigned["y"].numbers.maximum == 76


def test_displays_escape_names(shard: Path) -> None:
    found = dtf.read_tfrecord(shard).describe()
    html = found._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html and "<b>" not in html
    assert html.count("<svg") == 7
    frame = found.to_dataframe()
    assert list(frame.index) == list(found)
    assert frame.loc["x", ["mean", "q0.5", "distinct"]].tolist() == [19.5, 19.5, 40]


def test_commands(shard: Path, tmp_path: Path) -> None:
    html, text = tmp_path / "page.html", tmp_path / "stats.pbtxt"
    printed = shown("describe", shard, "--columns", "x,tokens", "--html", html, "--tfmd", text)
    assert printed == f"{dtf.read_tfrecord(shard)[['x', 'tokens']].describe()!r}\n"
    assert html.read_text("utf-8").startswith("<!doctype html>") and "num_examples: 40" in text.read_text("utf-8")
    again = run("describe", shard, "--html", html)
    assert again.exit_code == 2 and "give --overwrite" in again.stderr
    assert json.loads(shown("describe", shard, "--json"))["columns"]["x"]["numbers"]["mean"] == 19.5


def describe(**columns: Any) -> Statistics:
    return dtf.Dataset.from_arrays(columns).describe()


def test_drift_lists_what_exceeds_its_threshold() -> None:
    rng = np.random.default_rng(0)
    same, word = rng.standard_normal(5000), np.array(["a", "b"] * 2500, "T")
    old = describe(same=same, shifted=same, nan=same, gone=same, kind=same, word=word, list=[[1], [1, 1]] * 2500)
    new = describe(
        same=rng.standard_normal(5000),
        shifted=same + 3,
        nan=np.where(np.arange(5000) < 500, np.nan, same),
        kind=np.arange(5000),
        word=np.array(["a"] * 4500 + ["c"] * 500, "T"),
        list=[[]] * 1000 + [[1, 1, 1]] * 4000,
        added=same,
    )
    found = {(each.column, each.what): each.distance for each in old.compare(new).differences}
    assert found.keys() == {
        ("gone", "missing column"),
        ("added", "new column"),
        ("kind", "dtype"),
        ("nan", "NaN"),
        ("shifted", "mean"),
        ("shifted", "extent"),
        ("shifted", "distribution"),
        ("word", "distribution"),
        ("list", "missing"),
        ("list", "mean length"),
    }
    assert found["shifted", "mean"] == pytest.approx(3, rel=0.05)
    # Two normal distributions at a distance of 3 differ most in the middle: erf(3 / 2 / sqrt(2)).
    assert found["shifted", "distribution"] == pytest.approx(math.erf(1.5 / math.sqrt(2)), abs=0.03)
    assert found["word", "distribution"] == pytest.approx(0.5) and found["nan", "NaN"] == pytest.approx(0.1)
    assert not old.compare(old) and repr(old.compare(old)) == "no differences"
    everything = old.compare(new, missing=2, mean=1e9, extent=1e9, distribution=2)
    assert {each.what for each in everything.differences} == {"missing column", "new column", "dtype"}
    assert repr(everything).splitlines()[0].split() == ["column", "difference", "before", "after", "distance"]
    assert "3 differences" in everything._repr_html_()


@pytest.mark.tensorflow
def test_tensorflow_metadata_reads_equal_numbers(tensorflow: str, shard: Path, tmp_path: Path) -> None:
    ds = dtf.read_tfrecord(shard)
    ds.describe().to_pbtxt(tmp_path / "stats.pbtxt", "rows")
    done = run_python("-c", READ_BY_TENSORFLOW, tmp_path / "stats.pbtxt", python=tensorflow, PYTHONPATH="")
    name, number, found = json.loads(done.stdout)
    assert (name, number, found.keys()) == ("rows", 40, set(ds))
    columns = ds.compute()
    for column, kind in (("x", "FLOAT"), ("pose", "FLOAT"), ("<script>", "INT"), ("tokens", "INT")):
        values, stats = np.array(flat(columns[column]), np.float64), found[column]
        assert stats[:2] == [kind, "num_stats"]
        expected = {"mean": values.mean(), "std_dev": values.std(), "max": values.max(), "median": np.median(values)}
        assert {name: stats[2][name] for name in expected} == pytest.approx(expected, rel=1e-12)
        assert stats[2].get("min", 0) == values.min() and stats[2].get("num_zeros", 0) == (values == 0).sum()
        assert stats[5] == pytest.approx([len(values)] * 2)
    assert found["tokens"][3] == pytest.approx(
        {"num_non_missing": 30, "num_missing": 10, "min_num_values": 1, "max_num_values": 3, "avg_num_values": 2}
        | {"tot_num_values": 60}
    )
    assert found["pose"][3]["avg_num_values"] == found["pose"][3]["max_num_values"] == 2
    assert found["word"][:2] == ["STRING", "string_stats"] and found["word"][2]["unique"] == 3
    assert found["word"][4] == [["<b>0", 14], ["<b>1", 13], ["<b>2", 13]]
    assert found["raw"][:2] == ["BYTES", "bytes_stats"] and found["raw"][2]["max_num_bytes_int"] == 2


@pytest.mark.parametrize("value", [0.1, -1e17 / 3, 7, 2**53 + 1, 1e-300])
def test_constant_columns_do_not_differ(value: float) -> None:
    described = []
    for rows in (1, 999, 70_001):
        constant = np.full((rows, 3), value) + np.arange(3) * value
        described.append(dtf.Dataset.from_arrays({"one": constant[:, 0], "each": constant}).describe())
    for old in described:
        for new in described:
            assert not old.compare(new)
        numbers = old["one"].numbers
        assert numbers is not None and numbers.mean == float(value) and numbers.std == 0


@pytest.mark.parametrize("make", [int, float, str])
def test_a_value_that_is_repeated_is_counted_once(make: Any) -> None:
    # Four in ten of these have a hash below the bound of the smallest ones.
    for value in range(10):
        column = np.full(40_000, make(value), "T" if make is str else None)
        column[:7] = [make(100 + row) for row in range(7)]
        assert describe(x=column)["x"].distinct == 8


def test_class_names_are_counted_in_text_and_in_notebooks() -> None:
    ds = dtf.Dataset.from_arrays({"label": [0, 1, 2, 1, 1], "x": [0, 1, 2, 1, 1]})
    named = ds.map_blocks(dict, dtf.Schema(dict(ds.schema), classes={"label": ["cat", "dog", "<fox>"]})).describe()
    assert "dog (3), cat (1), <fox> (1)" in repr(named)
    assert repr(named).count("dog") == 1 and "dog" not in repr(ds.describe())
    assert "<title>dog (1): 3</title>" in named._repr_html_() and "&lt;fox&gt; (2): 1" in named._repr_html_()
    # Jupyter would make charts as narrow as their column, and draw them over the next one.
    assert "max-width: none" in named._repr_html_().partition(".dtf svg {")[2].partition("}")[0]
