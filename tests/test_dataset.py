"""`Dataset`: a mapping of columns, a dask collection, and errors for invalid arguments."""

from __future__ import annotations

import copy
import os
import pickle
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.base import tokenize
from dask.sizeof import sizeof
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from oracle import expected_columns, read_payloads, write_oracle
from support.waiting import PATIENCE

import dask_tfrecord as dtf
from dask_tfrecord.errors import (
    CorruptRecordError,
    FeatureError,
    SchemaError,
    ShardNotFoundError,
    TFRecordError,
    UnknownFeatureError,
)
from dask_tfrecord.messages import BytesList, Example, Feature, Features, FloatList, Int64List

FEATURES: dict[str, Any] = {
    "label": dtf.FixedLenFeature((), "int64"),
    "image": dtf.FixedLenFeature((2, 3), "float32"),
    "id": dtf.FixedLenFeature((), "bytes"),
    "text": dtf.TextFeature(),
    "tokens": dtf.VarLenFeature("int64"),
    "boxes": dtf.VarLenFeature("float32", shape=(-1, 2)),
    "tags": dtf.VarLenFeature("bytes"),
    "raw": dtf.RawFeature((3,), ">i2"),
}
COUNTS = [10, 0, 7, 13]
ROWS = sum(COUNTS)

# Directory of the installed package: a process that starts there does not import the sources.
PACKAGES = Path(dtf.__file__).parents[1]

Columns = Mapping[str, NDArray[Any]]


def payload(number: int) -> bytes:
    """Return one record; each feature identifies its number."""
    ragged = number % 4
    return Example(
        features=Features(
            feature={
                "label": Feature(int64_list=Int64List(value=[number])),
                "image": Feature(float_list=FloatList(value=[number + column / 8 for column in range(6)])),
                "id": Feature(bytes_list=BytesList(value=[b"%d\0" % number])),
                "text": Feature(bytes_list=BytesList(value=[f"Nº {number}".encode()])),
                "tokens": Feature(int64_list=Int64List(value=range(number, number + ragged))),
                "boxes": Feature(float_list=FloatList(value=[float(number)] * 2 * ragged)),
                "tags": Feature(bytes_list=BytesList(value=[b"t%d" % number] * ragged)),
                "raw": Feature(bytes_list=BytesList(value=[np.arange(number, number + 3, dtype=">i2").tobytes()])),
            }
        )
    ).SerializeToString()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shards, one of them empty."""
    path = tmp_path_factory.mktemp("shards")
    start = 0
    for number, count in enumerate(COUNTS):
        write_oracle(path / f"part-{number}.tfrecord", map(payload, range(start, start + count)))
        start += count
    return path


@pytest.fixture(scope="module")
def wanted(folder: Path) -> Columns:
    payloads = [payload for path in sorted(folder.glob("part-*")) for payload in read_payloads(path)]
    return expected_columns(payloads, FEATURES)


@pytest.fixture
def ds(folder: Path) -> dtf.Dataset:
    return dtf.read_tfrecord(folder, FEATURES, chunks=8)


@pytest.fixture
def uncounted(folder: Path) -> dtf.Dataset:
    return dtf.read_tfrecord(folder, FEATURES, counts=None)


def check(found: Columns, wanted: Columns, key: Any = slice(None)) -> None:
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        same(found[name], array[key])


def same(found: NDArray[Any], array: NDArray[Any]) -> None:
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    if array.dtype != object:
        assert (found == array).all()
    else:
        for one, other in zip(found.ravel(), array.ravel(), strict=True):
            if isinstance(other, np.ndarray):
                same(one, other)
            else:
                assert one == other


# -- a mapping ---------------------------------------------------------------------------------------------------------


def test_it_is_a_mapping_of_dask_arrays(ds: dtf.Dataset, wanted: Columns) -> None:
    assert isinstance(ds, Mapping)
    assert list(ds) == list(FEATURES)
    assert len(ds) == 8
    assert "label" in ds
    assert "lable" not in ds
    assert 3 not in ds
    assert ds.get("lable") is None
    for name, array in ds.items():
        assert isinstance(array, da.Array)
        assert (array.shape, array.dtype) == (wanted[name].shape, wanted[name].dtype)
        assert array.chunks[0] == ds.chunks == (8, 8, 8, 6)
    check(dask.compute(dict(ds))[0], wanted)
    assert ds == ds
    assert ds != dict(ds)
    with pytest.raises(TypeError, match="unhashable"):
        hash(ds)


def test_properties_known_without_reading(ds: dtf.Dataset, uncounted: dtf.Dataset, folder: Path) -> None:
    assert (ds.nrows, ds.npartitions, ds.chunks) == (ROWS, 4, (8, 8, 8, 6))
    assert ds.schema == FEATURES
    assert ds.origin["files"] == [str(folder / f"part-{number}.tfrecord") for number in range(4)]
    # An empty shard has no chunk.
    assert (uncounted.nrows, uncounted.npartitions) == (None, 3)
    assert all(np.isnan(uncounted.chunks))
    assert ds[["text", "id"]].schema == {name: FEATURES[name] for name in ("text", "id")}


def test_columns_are_picked(ds: dtf.Dataset, wanted: Columns) -> None:
    some = ds[["tokens", "label"]]
    assert isinstance(some, dtf.Dataset)
    check(some.compute(), {name: wanted[name] for name in ("tokens", "label")})
    tags, image = ds["tags", "image"]
    same(tags.compute(), wanted["tags"])
    same(image.compute(), wanted["image"])
    [label] = ds[("label",)]
    assert label.name == ds["label"].name
    assert ds[()] == ()
    none = ds[[]]
    assert (len(none), none.nrows, none.compute()) == (0, ROWS, {})


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ("lable", UnknownFeatureError, "no column 'lable'; did you mean 'label'?"),
        (["label", "imag"], UnknownFeatureError, "no column 'imag'; did you mean 'image'"),
        (("label", "tog"), UnknownFeatureError, "no column 'tog'; did you mean 'tags'"),
        ("", UnknownFeatureError, "no column ''; there are 'label', 'image', "),
        ([3], TypeError, "a name, a tuple or a list of names; got [3]; ds.rows picks rows"),
        (["label", "label"], SchemaError, "picked once each"),
        (("label", "label"), SchemaError, "picked once each"),
        (3, TypeError, "a name, a tuple or a list of names; got 3"),
        (None, TypeError, "a name, a tuple or a list of names; got None"),
        ({"label"}, TypeError, "a name, a tuple or a list of names; got"),
        (slice(3), TypeError, "a name, a tuple or a list of names; got"),
    ],
)
def test_columns_that_are_not_there(ds: dtf.Dataset, key: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        ds[key]
    with pytest.raises((KeyError, SchemaError, TypeError)):
        ds.persist()[key]


def test_strange_names_are_names(tmp_path: Path) -> None:
    names = ["", "/", "a/b", "a b", "größe", "tfrecord-x", "('a', 0)", "_0", "__name__", "\0", "original-"]
    example = Example()
    for number, name in enumerate(names):
        example.features.feature[name].int64_list.value.append(number)
    write_oracle(tmp_path / "x", [example.SerializeToString()] * 5)
    ds = dtf.read_tfrecord(tmp_path / "x", chunks=2)
    assert set(ds) == set(names)
    for ways in (ds, ds.persist(), ds.map_blocks(dict)):
        assert {name: array.compute().tolist() for name, array in ways.items()} == {
            name: [number] * 5 for number, name in enumerate(names)
        }
        together = dask.compute(*ways[tuple(names)], scheduler="threads")
        assert [array.tolist() for array in together] == [[number] * 5 for number in range(len(names))]
    assert len({array.name for array in ds.values()}) == len(names)
    for name in names:
        written = repr(name)[1:-1]
        assert written in repr(ds.schema)
        assert written in repr(ds)


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_schedulers(ds: dtf.Dataset, wanted: Columns, scheduler: str) -> None:
    check(ds.compute(scheduler=scheduler), wanted)
    check(dask.compute(ds, scheduler=scheduler)[0], wanted)
    with dask.config.set(scheduler=scheduler):
        check(ds.compute(), wanted)


@pytest.mark.slow
def test_processes(ds: dtf.Dataset, wanted: Columns) -> None:
    mapped = ds.map_blocks(lambda blocks: {"twice": blocks["label"] * 2})
    with dask.config.set(scheduler="processes", num_workers=2):
        check(ds.compute(), wanted)
        both = dask.compute(mapped, ds.persist().rows[::-1][["tags"]])
    check(both[0], {"twice": wanted["label"] * 2})
    check(both[1], {"tags": wanted["tags"]}, slice(None, None, -1))


def test_compute_takes_what_dask_takes(ds: dtf.Dataset, wanted: Columns) -> None:
    with ThreadPoolExecutor(2) as pool:
        for options in [
            {"num_workers": 1},
            {"optimize_graph": False},
            {"pool": pool},
            {"scheduler": pool},
            {"traverse": False},
        ]:
            check(ds.compute(**options), wanted)
    with pytest.raises(ValueError, match="single-threaded"):
        ds.compute(scheduler="nonesuch")


def test_results_belong_to_the_caller(ds: dtf.Dataset, wanted: Columns) -> None:
    kept = ds.persist()
    for way in (ds, kept):
        first = way.compute()
        for name in ("label", "image", "raw"):
            first[name][:] = 99
        first["tokens"][3][:] = 99
        check(way.compute(), wanted)


def test_progress_is_shown(ds: dtf.Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    from dask.diagnostics import ProgressBar

    with ProgressBar():
        ds.compute()
    assert "100% Completed" in capsys.readouterr().out


def test_several_collections_at_once(ds: dtf.Dataset, folder: Path, wanted: Columns) -> None:
    other = dtf.read_tfrecord(folder, FEATURES, chunks="shard")
    first, total, second = dask.compute(ds, ds["label"].sum(), other[["label"]])
    check(first, wanted)
    assert total == wanted["label"].sum()
    same(second["label"], wanted["label"])
    kept, array = dask.persist(ds, other["image"])
    check(kept.compute(), wanted)
    same(array.compute(), wanted["image"])
    assert dask.is_dask_collection(ds)
    check(dask.optimize(ds)[0].compute(), wanted)
    assert dask.delayed(sorted)(ds).compute() == sorted(FEATURES)


def test_arrays_behave_as_arrays(ds: dtf.Dataset, wanted: Columns) -> None:
    assert ds["label"].mean().compute() == wanted["label"].mean()
    image, label = ds["image", "label"]
    found = dask.compute(image.mean(axis=(1, 2)), (image * label[:, None, None])[::5], da.stack([label, label]).T)
    same(found[0], wanted["image"].mean(axis=(1, 2)))
    same(found[1], (wanted["image"] * wanted["label"][:, None, None])[::5])
    same(found[2], np.stack([wanted["label"], wanted["label"]]).T)
    same(image.rechunk((7, 1, 2)).compute(), wanted["image"])
    same(ds["text"][2:20:3].compute(), wanted["text"][2:20:3])
    same(da.concatenate([ds["text"], ds["text"][:3]]).compute(), np.concatenate([wanted["text"], wanted["text"][:3]]))
    same(ds["text"].persist().compute(), wanted["text"])
    same(ds["tokens"][[25, 3]].compute(), wanted["tokens"][[25, 3]])
    lengths = ds["id"].map_blocks(lambda block: np.array([len(one) for one in block]), dtype=np.int64)
    assert lengths.sum().compute() == sum(map(len, wanted["id"]))


index = st.integers(-ROWS, ROWS - 1)
slices = st.builds(slice, *[st.none() | st.integers(-40, 40)] * 2, st.none() | st.integers(-5, 5).filter(bool)).filter(
    # Where it goes backwards dask takes a start before the first row for the last: da.arange(3)[-4::-1] is all of it.
    lambda rows: rows.start is None or rows.start >= -ROWS or (rows.step or 1) > 0
)


@given(
    first=slices | index | st.lists(index, min_size=1, max_size=6),
    second=st.just(slice(None)) | st.integers(-2, 1) | st.builds(slice, st.integers(-3, 3), st.integers(-3, 3)),
)
def test_slices_of_one_column_are_numpys(ds: dtf.Dataset, wanted: Columns, first: Any, second: Any) -> None:
    same(np.asarray(ds["image"][first].compute()), np.asarray(wanted["image"][first]))
    same(np.asarray(ds["image"][first, second].compute()), np.asarray(wanted["image"][first, second]))
    if isinstance(first, slice):
        tokens = ds["tokens"][first].compute()
        same(tokens, wanted["tokens"][first])
    [image] = ds[("image",)]
    together = ds["image", "label"][0]
    assert together.name != image.name
    same(np.asarray(together[first].compute()), np.asarray(wanted["image"][first]))


def test_chunks_do_not_change_values(folder: Path, wanted: Columns) -> None:
    for chunks in [1, 3, 29, 30, 31, np.int64(7), "auto", "shard", "1 B", "300 B", "1 GiB"]:
        found = dtf.read_tfrecord(folder, FEATURES, chunks=chunks)
        assert sum(found.chunks) == ROWS
        check(found.compute(), wanted)
        check(dask.compute(found)[0], wanted)
    with dask.config.set({"array.chunk-size": "200 B"}):
        assert dtf.read_tfrecord(folder, FEATURES).npartitions > 10


@pytest.mark.parametrize("chunks", [0, -1, True, None, 1.5, "x", "", "MiB", "0 B", "-5 MiB", [3, 4], "5 rows", b"auto"])
def test_invalid_chunks(folder: Path, chunks: Any) -> None:
    with pytest.raises(ValueError, match=r"chunks is 'auto'|a chunk has one"):
        dtf.read_tfrecord(folder, FEATURES, chunks=chunks)
    if chunks not in (None, True, 1.5):
        with pytest.raises(ValueError, match=r"chunks"):
            dtf.read_tfrecord(folder, FEATURES, chunks=chunks, counts=None)


@pytest.mark.parametrize("chunks", [4, np.int64(3)])
def test_chunks_that_need_counts(folder: Path, chunks: Any) -> None:
    with pytest.raises(ValueError, match="needs counted records"):
        dtf.read_tfrecord(folder, FEATURES, chunks=chunks, counts=None)


# -- rows --------------------------------------------------------------------------------------------------------------

KEYS: list[Any] = [
    slice(9, 11),
    slice(None, None, -1),
    slice(25, None, 3),
    slice(3, 3),
    slice(100, 200),
    -1,
    np.int32(17),
    [29, 0, 0, 8, 7, 8],
    [-1, -30],
    [],
    np.arange(ROWS) % 3 == 1,
    np.zeros(ROWS, bool),
    np.random.default_rng(0).permutation(ROWS),
    range(5, 25, 7),
]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: repr(key)[:25])
def test_rows_are_numpys(ds: dtf.Dataset, wanted: Columns, key: Any) -> None:
    picked = [int(key)] if isinstance(key, int | np.integer) else key
    picked = np.asarray(picked, int) if isinstance(picked, list | range) else picked
    mapped = ds.map_blocks(lambda blocks: blocks)
    for way in (ds, mapped, ds.persist(), ds.persist().map_blocks(lambda blocks: blocks), mapped.persist()):
        rows = way.rows[key]
        assert rows.nrows == len(wanted["label"][picked])
        check(rows.compute(), wanted, picked)
        check(dask.compute(rows)[0], wanted, picked)
        same(rows["tags"].compute(), wanted["tags"][picked])
        same(rows["image", "id"][1].compute(), wanted["id"][picked])
        check(rows.rows[:2].rows[::-1].compute(), {name: array[picked][:2][::-1] for name, array in wanted.items()})
        check(rows.persist().compute(), wanted, picked)


@settings(max_examples=20)
@given(n=st.integers(0, ROWS), seed=st.integers(0, 5))
def test_a_sample_is_distinct_rows_in_order(ds: dtf.Dataset, wanted: Columns, n: int, seed: int) -> None:
    found = ds.sample(n, seed)
    rows = found["id"].compute().tolist()
    places = [wanted["id"].tolist().index(row) for row in rows]
    assert len(rows) == n
    assert all(first < second for first, second in pairwise(places))
    check(found.compute(), wanted, np.array(places, int))
    assert tokenize(ds.sample(n, seed)) == tokenize(found)


def test_every_row_is_as_likely_in_a_sample(ds: dtf.Dataset, wanted: Columns) -> None:
    rng = np.random.default_rng(7)
    places = {row: place for place, row in enumerate(wanted["id"].tolist())}
    drawn = np.zeros(ROWS)
    for _ in range(60):
        drawn[[places[row] for row in ds[["id"]].sample(ROWS // 2, rng)["id"].compute().tolist()]] += 1
    # Each is drawn 30 times; five standard deviations are 19.
    assert drawn.sum() == 60 * (ROWS // 2)
    assert abs(drawn - 30).max() < 20
    assert len(set(drawn.tolist())) > 3


def test_samples_that_can_not_be_drawn(ds: dtf.Dataset, uncounted: dtf.Dataset) -> None:
    for n in (-1, ROWS + 1):
        with pytest.raises(ValueError, match=f"n is a number of rows, 0 to {ROWS}, the rows there are; got {n}"):
            ds.sample(n)
    with pytest.raises(ValueError, match="a sample is drawn from rows that are counted"):
        uncounted.sample(1)


def test_rows_by_a_dask_mask(ds: dtf.Dataset, wanted: Columns) -> None:
    mask = wanted["label"] % 7 == 3
    found = ds.assign(twice=ds["label"] * 2).rows[ds["label"] % 7 == 3]
    check(found.compute(), {**wanted, "twice": wanted["label"] * 2}, mask)


def test_rows_carry_assigned_columns(ds: dtf.Dataset, wanted: Columns) -> None:
    more = ds.assign(twice=ds["label"] * 2, third=np.arange(ROWS) / 3)
    all_wanted = {**wanted, "twice": wanted["label"] * 2, "third": np.arange(ROWS) / 3}
    for key in KEYS:
        picked = [int(key)] if isinstance(key, int | np.integer) else key
        picked = np.asarray(picked, int) if isinstance(picked, list | range) else picked
        check(more.rows[key].compute(), all_wanted, picked)
        check(more.persist().rows[key].compute(), all_wanted, picked)


@pytest.mark.parametrize(
    "key", [30, -31, [0, 30], [True, False], "label", None, ..., (1, 2), True, [1.5], [[1, 2]], {}]
)
def test_rows_that_are_not_there(ds: dtf.Dataset, key: Any) -> None:
    for way in (ds, ds.persist(), ds.assign(x=ds["label"])):
        with pytest.raises(IndexError, match=r"out of bounds for 30 rows|a mask for 30 rows|rows are picked by"):
            way.rows[key]


def test_rows_that_nobody_counted(uncounted: dtf.Dataset) -> None:
    for way in (uncounted, uncounted.persist(), uncounted.map_blocks(dict), uncounted.assign(x=uncounted["label"])):
        for key in (slice(3), 0, [1, 2]):
            with pytest.raises(ValueError, match="counts=None left them uncounted"):
                way.rows[key]


def test_many_picks_of_persisted_rows_make_few_tasks(ds: dtf.Dataset) -> None:
    kept = ds.persist()
    shuffled = kept.rows[np.tile(np.random.default_rng(1).permutation(ROWS), 100)]
    tasks = len(dict(shuffled.__dask_graph__()))
    # One task per pair of source and target chunk, not per row.
    assert shuffled.npartitions < 500
    assert tasks < 6 * shuffled.npartitions
    assert shuffled.nrows == 100 * ROWS


# -- assign and map_blocks ---------------------------------------------------------------------------------------------


def test_assigned_columns(ds: dtf.Dataset, wanted: Columns) -> None:
    label = ds["label"]
    more = ds[["label", "text"]].assign(
        twice=label * 2,
        grid=da.zeros((ROWS, 3, 2), chunks=(7, 2, 1), dtype="u2"),
        array=np.arange(ROWS, dtype=">i4"),
        again=ds["text"],
        text=ds["text"][::-1],
        numbers=list(range(ROWS)),
    )
    assert list(more) == ["label", "text", "twice", "grid", "array", "again", "numbers"]
    assert more.schema == {
        "label": FEATURES["label"],
        "text": dtf.TextFeature(),
        "twice": dtf.FixedLenFeature((), "int64"),
        "grid": dtf.RawFeature((3, 2), "uint16"),
        "array": dtf.RawFeature((), "int32"),
        "again": dtf.TextFeature(),
        "numbers": dtf.FixedLenFeature((), "int64"),
    }
    all_wanted = {
        "label": wanted["label"],
        "text": wanted["text"][::-1],
        "twice": wanted["label"] * 2,
        "grid": np.zeros((ROWS, 3, 2), "u2"),
        "array": np.arange(ROWS, dtype="i4"),
        "again": wanted["text"],
        "numbers": np.arange(ROWS),
    }
    for scheduler in ("sync", "threads"):
        check(more.compute(scheduler=scheduler), all_wanted)
    check(more.map_blocks(dict).compute(), all_wanted)
    check(more.persist().map_blocks(dict).persist().compute(), all_wanted)
    check(more[["twice", "label"]].compute(), {name: all_wanted[name] for name in ("twice", "label")})
    same(dask.compute(*more["again", "label"])[0], wanted["text"])
    assert more["twice"] is more["twice", "label"][0]
    assert list(ds) == list(FEATURES), "assign changes nothing in place"


def test_the_same_array_under_two_names(ds: dtf.Dataset, wanted: Columns) -> None:
    array = ds["label"] + 1
    first = ds[["label"]].assign(x=array).map_blocks(dict)
    second = ds[["label"]].assign(y=array).map_blocks(dict)
    found = dask.compute(first, second)
    check(found[0], {"label": wanted["label"], "x": wanted["label"] + 1})
    check(found[1], {"label": wanted["label"], "y": wanted["label"] + 1})


def test_arrays_that_are_no_columns(ds: dtf.Dataset, uncounted: dtf.Dataset) -> None:
    cases: list[tuple[dtf.Dataset, Any, str]] = [
        (ds, np.zeros(29), r"'x' has shape \(29,\) where 30 rows are needed"),
        (ds, ds["label"][ds["label"] > 3], "where 30 rows are needed"),
        (ds, 3, "an array with an axis of rows"),
        (ds, ds["tokens"], "is of objects, which may be anything.*or compute the array first"),
        (ds, np.array([b"a"] * ROWS), "drops trailing zero bytes"),
        (ds, np.zeros(ROWS, "M8[s]"), "dtype datetime64"),
        (uncounted, np.zeros(ROWS), "where rows are not counted"),
        (uncounted, ds["label"], "where rows are not counted"),
    ]
    for dataset, array, message in cases:
        with pytest.raises(SchemaError, match=message):
            dataset.assign(x=array)


def test_assigned_beside_uncounted_rows(uncounted: dtf.Dataset, wanted: Columns) -> None:
    more = uncounted[["label"]].assign(twice=uncounted["label"] * 2)
    all_wanted = {"label": wanted["label"], "twice": wanted["label"] * 2}
    check(more.compute(), all_wanted)
    check(more.map_blocks(dict).compute(), all_wanted)
    check(more.head(12), all_wanted, slice(12))
    # The same number of chunks with fewer rows, which is only known once computed.
    fewer = uncounted[["label"]].assign(some=uncounted["label"][uncounted["label"] > 3])
    for way in (fewer, fewer.map_blocks(dict)):
        with pytest.raises(SchemaError, match=r"columns must have the same number of rows"):
            way.compute()


def test_map_blocks_from_rows_to_rows(ds: dtf.Dataset, wanted: Columns) -> None:
    def brighten(blocks: dict[str, Any]) -> dict[str, Any]:
        tokens = blocks["tokens"]
        assert isinstance(tokens, dtf.RaggedBlock)
        return {
            "bright": blocks["image"] * 2,
            "id": blocks["id"],
            "text": blocks["text"],
            "more": dtf.RaggedBlock(tokens.values * 10, tokens.row_splits),
            "boxes": blocks["boxes"],
            "small": blocks["label"].astype("u1"),
        }

    mapped = ds.map_blocks(brighten)
    assert mapped.schema == {
        "bright": FEATURES["image"],
        "id": FEATURES["id"],
        "text": FEATURES["text"],
        "more": dtf.VarLenFeature("int64"),
        "boxes": FEATURES["boxes"],
        "small": dtf.RawFeature((), "uint8"),
    }
    tens = np.empty(ROWS, object)
    tens[:] = [row * 10 for row in wanted["tokens"]]
    all_wanted = {
        "bright": wanted["image"] * 2,
        "id": wanted["id"],
        "text": wanted["text"],
        "more": tens,
        "boxes": wanted["boxes"],
        "small": wanted["label"].astype("u1"),
    }
    for scheduler in ("sync", "threads"):
        check(mapped.compute(scheduler=scheduler), all_wanted)
    check(mapped.persist().compute(), all_wanted)
    check(ds.persist().map_blocks(brighten).compute(), all_wanted)
    same(mapped["bright"][11:13].compute(), all_wanted["bright"][11:13])
    again = mapped.map_blocks(lambda blocks: {"sum": blocks["bright"].sum((1, 2), dtype="f8")})
    same(again.compute()["sum"], (wanted["image"] * 2).sum((1, 2), dtype="f8"))
    assert ds.map_blocks(lambda blocks: {}).compute() == {}


TEMPLATES: list[tuple[str, Callable[[dict[str, Any]], Any], dict[str, Any], Callable[[int], Any]]] = [
    ("list of ints", lambda b: {"x": b["label"].tolist()}, {"x": FEATURES["label"]}, int),
    ("array", lambda b: {"x": b["label"] + 0}, {"x": np.empty(0, np.int64)}, int),
    ("other byte order", lambda b: {"x": b["label"].astype(">f8")}, {"x": np.empty(0)}, float),
    ("text", lambda b: {"x": [f"é{n}" for n in b["label"]]}, {"x": dtf.TextFeature()}, lambda n: f"é{n}"),
    ("unicode", lambda b: {"x": b["label"].astype(str)}, {"x": dtf.TextFeature()}, str),
    ("bytes", lambda b: {"x": [b"%d\0" % n for n in b["label"]]}, {"x": FEATURES["id"]}, lambda n: b"%d\0" % n),
    ("rows", lambda b: {"x": [[n] * (n % 3) for n in b["label"]]}, {"x": FEATURES["tokens"]}, lambda n: [n] * (n % 3)),
    (
        "rows of floats",
        lambda b: {"x": [[n / 2] * 2 for n in b["label"]]},
        {"x": dtf.VarLenFeature("float32")},
        lambda n: [n / 2] * 2,
    ),
    (
        "rows of bytes",
        lambda b: {"x": [[b"%d\0" % n] * (n % 3) for n in b["label"]]},
        {"x": FEATURES["tags"]},
        lambda n: [b"%d\0" % n] * (n % 3),
    ),
    (
        "int32 splits",
        lambda b: {"x": dtf.RaggedBlock(b["label"], np.arange(len(b["label"]) + 1, dtype="i4"))},
        {"x": FEATURES["tokens"]},
        lambda n: [n],
    ),
    (
        "flat bytes",
        lambda b: {
            "x": dtf.RaggedBlock(
                np.array([b"%d" % n for n in b["label"]] + [None], object)[:-1], np.arange(len(b["label"]) + 1)
            )
        },
        {"x": FEATURES["tags"]},
        lambda n: [b"%d" % n],
    ),
    ("more than promised", lambda b: {"x": b["label"], "y": 3}, {"x": FEATURES["label"]}, int),
]


@pytest.mark.parametrize(
    ("function", "template", "row"), [case[1:] for case in TEMPLATES], ids=[case[0] for case in TEMPLATES]
)
def test_map_blocks_with_a_template(
    ds: dtf.Dataset, function: Any, template: Mapping[str, Any], row: Callable[[int], Any]
) -> None:
    for way in (ds, ds.persist()):
        found = way.map_blocks(function, template=template).compute()
        assert list(found) == ["x"]
        assert [item.tolist() if isinstance(item, np.ndarray) else item for item in found["x"]] == [
            row(number) for number in range(ROWS)
        ]


WRONG: list[tuple[str, Callable[[dict[str, Any]], Any], Any, str]] = [
    ("fewer rows", lambda b: {"x": b["label"][1:]}, FEATURES["label"], r"got \d rows and returned \d of 'x'"),
    (
        "another dtype",
        lambda b: {"x": b["label"].astype("f4")},
        FEATURES["label"],
        "expected .*; got FixedLenFeature",
    ),
    ("another shape", lambda b: {"x": b["image"]}, dtf.FixedLenFeature((3, 2), "float32"), "expected .*; got "),
    ("no such column", lambda b: {"y": b["label"]}, FEATURES["label"], "returned no 'x', which its template has"),
    ("no dict", lambda b: b["label"], FEATURES["label"], "returns a dict of blocks; got ndarray"),
    ("nothing", lambda b: None, FEATURES["label"], "returns a dict of blocks; got NoneType"),
    ("a number", lambda b: {"x": b["label"].sum()}, FEATURES["label"], "an array with an axis of rows"),
    (
        "numbers for bytes",
        lambda b: {"x": list(b["label"])},
        FEATURES["id"],
        "expected bytes objects; got (np.int64\\(\\d+\\)|\\d+)",
    ),
    ("text for bytes", lambda b: {"x": ["a"] * len(b["label"])}, FEATURES["id"], "expected bytes objects; got 'a'"),
    ("NumPy's S", lambda b: {"x": b["id"].astype("S")}, FEATURES["id"], "drops trailing zero bytes"),
    ("bytes for text", lambda b: {"x": b["id"]}, FEATURES["text"], "expected str objects; got b'"),
    ("numbers for text", lambda b: {"x": b["label"]}, FEATURES["text"], "expected text; got dtype int64"),
    ("floats for ints", lambda b: {"x": [[0.5]] * len(b["label"])}, FEATURES["tokens"], "row 0 has dtype float64"),
    ("arrays of other ints", lambda b: {"x": [np.ones(1, "i4")] * len(b["label"])}, FEATURES["tokens"], "dtype int32"),
    ("scalars for rows", lambda b: {"x": b["label"]}, FEATURES["tokens"], r"row 0 has dtype int64 and shape \(\)"),
    ("rows of another shape", lambda b: {"x": [[1.0]] * len(b["label"])}, FEATURES["boxes"], "expected VarLenFeature"),
    (
        "splits that do not begin",
        lambda b: {"x": dtf.RaggedBlock(b["label"], np.arange(len(b["label"]) + 1) + 1)},
        FEATURES["tokens"],
        "row_splits that ascend from 0",
    ),
    (
        "splits that do not end",
        lambda b: {"x": dtf.RaggedBlock(b["label"], np.arange(len(b["label"])))},
        FEATURES["tokens"],
        "row_splits that ascend",
    ),
    (
        "splits that fall",
        lambda b: {"x": dtf.RaggedBlock(b["label"], np.r_[0, 5, 2, len(b["label"])])},
        FEATURES["tokens"],
        "row_splits that ascend",
    ),
    (
        "splits of floats",
        lambda b: {"x": dtf.RaggedBlock(b["label"], np.arange(len(b["label"]) + 1.0))},
        FEATURES["tokens"],
        "row_splits as an array of ints",
    ),
    ("ragged of another kind", lambda b: {"x": b["boxes"]}, FEATURES["tokens"], "expected VarLenFeature.*; got "),
]


@pytest.mark.parametrize(
    ("function", "feature", "message"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG]
)
def test_map_blocks_that_returns_something_else(ds: dtf.Dataset, function: Any, feature: Any, message: str) -> None:
    for way in (ds, ds.persist()):
        with pytest.raises(SchemaError, match=message):
            way.map_blocks(function, template={"x": feature}).compute()


def test_map_blocks_without_inferable_results(ds: dtf.Dataset) -> None:
    with pytest.raises(ValueError, match=r"failed on blocks of no rows .*; give template=") as caught:
        ds.map_blocks(lambda blocks: {"x": blocks["label"].max(keepdims=True)})
    assert "zero-size" in str(caught.value.__cause__)
    for function, message in [
        (
            lambda blocks: {"x": [str(number) for number in blocks["label"]]},
            r"of rows; got \[\]; specify the type of a list",
        ),
        (lambda blocks: {"x": blocks["label"].astype(object)}, "specify the type of the objects"),
        (lambda blocks: {3: blocks["label"]}, "expected a string as feature name; got 3"),
        (lambda blocks: [blocks["label"]], "got list"),
    ]:
        with pytest.raises(SchemaError, match=message):
            ds.map_blocks(function)
    for template, message in [({"x": "int64"}, "axis of rows"), (["x"], "got list"), ({"x": np.int64(1)}, "axis of")]:
        with pytest.raises(SchemaError, match=message):
            ds.map_blocks(dict, template=template)  # type: ignore[arg-type]


def test_errors_of_a_function_are_its_own(ds: dtf.Dataset) -> None:
    def fail(blocks: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("mine")

    for way in (ds, ds.persist()):
        with pytest.raises(KeyError, match="mine"):
            way.map_blocks(fail, template={"x": FEATURES["label"]}).compute()


def test_a_function_cannot_change_persisted_chunks(ds: dtf.Dataset, wanted: Columns) -> None:
    def spoil(blocks: dict[str, Any]) -> dict[str, Any]:
        blocks["label"] += 1
        return blocks

    kept = ds.persist()
    with pytest.raises(ValueError, match="read-only"):
        kept.map_blocks(spoil, template=FEATURES).compute()
    check(kept.compute(), wanted)


# -- rows of differing length ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tokens", "boxes", "tags"])
def test_ragged_and_padded(ds: dtf.Dataset, uncounted: dtf.Dataset, wanted: Columns, name: str) -> None:
    rows = wanted[name]
    inner = rows[0].shape[1:]
    fill = {"tokens": -1, "boxes": 0.1, "tags": b"?"}[name]
    padded = np.full((ROWS, 5, *inner), fill, rows[0].dtype)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    for way in (ds, uncounted, ds.persist(), uncounted.persist(), ds.map_blocks(dict)):
        values, splits = way.ragged(name)
        assert (values.ndim, values.dtype, splits.dtype) == (1 + len(inner), rows[0].dtype, np.int64)
        found, ends = dask.compute(values, splits)
        same(found, np.concatenate(rows))
        same(ends, np.cumsum([0, *map(len, rows)]))
        same(way.padded(name, 5, fill).compute(), padded)
        assert (
            way.padded(name, 3).compute()[1].tolist()
            == np.concatenate(
                [rows[1], np.zeros((2, *inner), rows[1].dtype) if name != "tags" else np.array([b""] * 2, object)]
            ).tolist()
        )
        with pytest.raises(FeatureError, match=f"'{name}' holds 3 values.* where padded\\(length=2\\)"):
            way.padded(name, 2).compute()
    assert ds.ragged(name)[1].shape == (ROWS + 1,)
    assert ds.padded(name, 5)[7:19].compute().shape == (12, 5, *inner)
    with pytest.raises(FeatureError, match="in row 3 where"):
        ds.padded(name, 2)[:8].compute()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens", 0.5),
        ("tokens", 2**63),
        ("tokens", "x"),
        ("tokens", b""),
        ("tokens", [1]),
        ("tokens", np.nan),
        ("boxes", 1e300),
        ("boxes", "x"),
        ("boxes", 1j),
        ("tags", 0),
        ("tags", "x"),
    ],
)
def test_padding_that_does_not_fit(ds: dtf.Dataset, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"'{name}'"):
        ds.padded(name, 4, value)


def test_padding_that_fits(ds: dtf.Dataset) -> None:
    for value in (-(2**63), 2**63 - 1, 1.0, np.int8(3), True, np.float32(2)):
        assert ds.padded("tokens", 4, value).compute()[0, 0] == value
    for value in (np.nan, np.inf, -0.0, 7, 1 / 3):
        found = ds.padded("boxes", 4, value).compute()[0, 0, 0]
        assert found.tobytes() == np.float32(value).tobytes()


def test_ragged_refuses_dense_columns(ds: dtf.Dataset) -> None:
    for call in (lambda: ds.ragged("label"), lambda: ds.padded("label", 3), lambda: ds.persist().ragged("text")):
        with pytest.raises(SchemaError, match="of one shape in all rows"):
            call()
    with pytest.raises(UnknownFeatureError, match="did you mean 'tokens'"):
        ds.ragged("token")
    with pytest.raises(ValueError, match="got length=-1"):
        ds.padded("tokens", -1)
    with pytest.raises(TypeError):
        ds.padded("tokens", 2.5)  # type: ignore[arg-type]


# -- head, count, persist ----------------------------------------------------------------------------------------------


def test_head_and_count(ds: dtf.Dataset, uncounted: dtf.Dataset, wanted: Columns) -> None:
    for way in (ds, uncounted, ds.persist(), uncounted.persist(), uncounted.map_blocks(dict)):
        check(way.head(), wanted, slice(5))
        for rows in (0, 1, 11, ROWS, 1000):
            check(way.head(rows), wanted, slice(rows))
        assert way.count() == ROWS
        with pytest.raises(ValueError, match="0 or more; got -1"):
            way.head(-1)
    assert ds[[]].count() == ROWS
    with pytest.raises(ValueError, match="rows without a column cannot be counted"):
        uncounted[[]].count()


def test_persisted_chunks_are_flat_and_report_their_size(ds: dtf.Dataset, wanted: Columns) -> None:
    kept = ds.persist()
    assert (kept.nrows, kept.chunks, list(kept), kept.schema) == (ROWS, ds.chunks, list(ds), FEATURES)
    check(kept.compute(), wanted)
    check({name: array.compute() for name, array in kept.items()}, wanted)
    some = ds[["tags", "label"]].persist()
    check(some.compute(), {name: wanted[name] for name in ("tags", "label")})
    graph = dict(some.__dask_graph__())
    blocks = [found[0] for found in dask.threaded.get(graph, some.__dask_keys__()[0])]
    assert all(isinstance(block["tags"], dtf.RaggedBlock) for block in blocks)
    rows = sizeof(blocks[0]["tags"])
    assert rows > blocks[0]["tags"].nbytes > 8 * 8


def test_persisted_rows_outlive_their_files(tmp_path: Path, folder: Path, wanted: Columns) -> None:
    copied = tmp_path / "one.tfrecord"
    copied.write_bytes((folder / "part-3.tfrecord").read_bytes())
    kept = dtf.read_tfrecord(copied, FEATURES, chunks=5).persist()
    copied.unlink()
    check(kept.compute(), wanted, slice(17, 30))
    check(kept.rows[::-2].compute(), wanted, slice(29, 16, -2))
    check(kept.map_blocks(dict).compute(), wanted, slice(17, 30))
    with pytest.raises(UnknownFeatureError):
        kept["lable"]


# -- names, copies, text -----------------------------------------------------------------------------------------------


def test_same_inputs_have_same_names(folder: Path, ds: dtf.Dataset) -> None:
    again = dtf.read_tfrecord(folder, FEATURES, chunks=8)
    assert tokenize(ds) == tokenize(again)
    assert {name: array.name for name, array in ds.items()} == {name: array.name for name, array in again.items()}
    assert [array.name for array in ds["label", "image"]] == [array.name for array in again["label", "image"]]
    # The order of columns does not change the decodes.
    assert {array.name for array in ds["label", "image"]} == {array.name for array in ds["image", "label"]}
    assert tokenize(ds.rows[3:9]) == tokenize(again.rows[3:9])
    assert tokenize(ds.map_blocks(dict)) == tokenize(again.map_blocks(dict))
    assert ds.persist().rows[2:5]["label"].name == again.persist().rows[2:5]["label"].name


def test_other_inputs_have_other_names(folder: Path, tmp_path: Path, ds: dtf.Dataset) -> None:
    others = {
        "this": ds,
        "chunks": dtf.read_tfrecord(folder, FEATURES, chunks=9),
        "files": dtf.read_tfrecord(folder / "part-0.tfrecord", FEATURES, chunks=8),
        "crc": dtf.read_tfrecord(folder, FEATURES, chunks=8, check_crc=False),
        "counts": dtf.read_tfrecord(folder, FEATURES, counts=None),
        "feature": dtf.read_tfrecord(folder, {**FEATURES, "label": dtf.VarLenFeature("int64")}, chunks=8),
        "rows": ds.rows[::2],
        "other rows": ds.rows[1::2],
        "mapped": ds.map_blocks(lambda blocks: {"label": blocks["label"] + 1}),
        "mapped otherwise": ds.map_blocks(lambda blocks: {"label": blocks["label"] + 2}),
        "persisted rows": ds.persist().rows[::2],
    }
    names = {way: dataset["label"].name for way, dataset in others.items()}
    assert len(set(names.values())) == len(names), names
    assert len({tokenize(dataset) for dataset in others.values()}) == len(others)
    assert all(name.startswith("tfrecord-label-") for name in names.values())
    assert ds["label"].name != ds["label", "image"][0].name != ds["label", "id"][0].name


def test_a_changed_file_has_other_names(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    write_oracle(path, map(payload, range(12, 17)))
    first = dtf.read_tfrecord(path, FEATURES)
    write_oracle(path, map(payload, range(16, 21)))
    os.utime(path, ns=(0, 10**15))
    second = dtf.read_tfrecord(path, FEATURES)
    assert (path.stat().st_size, first.nrows) == (first.origin["sizes"][0], second.nrows)
    assert first["label"].name != second["label"].name
    assert tokenize(first) != tokenize(second)
    assert dask.compute(second["label"])[0].tolist() == [16, 17, 18, 19, 20]


def test_copies(ds: dtf.Dataset, uncounted: dtf.Dataset, wanted: Columns) -> None:
    for way in (
        ds,
        uncounted,
        ds.persist(),
        ds.assign(label=ds["label"] + 0),
        ds.map_blocks(dict),
        ds.rows[::-1].rows[::-1],
    ):
        for made in (pickle.loads(pickle.dumps(way)), copy.copy(way), copy.deepcopy(way)):
            assert tokenize(made) == tokenize(way)
            check(made.compute(), wanted)


def test_large_plans_travel_small(ds: dtf.Dataset) -> None:
    many = dtf.read_tfrecord([path for path in ds.origin["files"] * 200], FEATURES, chunks="shard")
    assert many.npartitions == 600
    # A few buffers and the paths, without an object per record or chunk.
    paths = sum(map(len, many.origin["files"]))
    assert len(pickle.dumps(many)) < 2 * paths + 50 * 800
    assert len(pickle.dumps(many["label"].dask)) < 2 * paths + 50 * 800


def test_repr(ds: dtf.Dataset, uncounted: dtf.Dataset, folder: Path) -> None:
    assert repr(ds[["label", "image", "text", "tokens"]]).splitlines() == [
        "<dask_tfrecord.Dataset: 30 rows in 4 chunks of 6 to 8, from 4 files>",
        "  column  dtype    shape       read as",
        "  label   int64    (30,)       FixedLenFeature((), 'int64')",
        "  image   float32  (30, 2, 3)  FixedLenFeature((2, 3), 'float32')",
        "  text    text     (30,)       TextFeature()",
        "  tokens  object   (30,)       VarLenFeature('int64')",
    ]
    assert repr(uncounted[["image"]]).splitlines()[0::2] == [
        "<dask_tfrecord.Dataset: unknown number of rows in 3 chunks, from 4 files>",
        "  image   float32  (n, 2, 3)  FixedLenFeature((2, 3), 'float32')",
    ]
    one = dtf.read_tfrecord(folder / "part-0.tfrecord", FEATURES).rows[0]
    assert repr(one).startswith(f"<dask_tfrecord.Dataset: 1 row in 1 chunk of 1, from {folder}/part-0.tfrecord>\n")


def test_repr_of_every_kind_of_column(folder: Path) -> None:
    schema = dtf.Schema(
        {
            "label": dtf.FixedLenFeature((), "uint8"),
            "floats": dtf.FixedLenFeature((99,), "float32", default_value=(0.5,) * 99),
            "sparse": dtf.SparseFeature("tokens", "tokens", "int64", 99),
            "nested": dtf.RaggedFeature("int64", "tokens", [dtf.RaggedFeature.ValueRowIds("tokens")]),
        },
        classes={"label": ["cat", "dog"]},
    )
    assert repr(dtf.read_tfrecord(folder, schema.select(["label", "floats"]))).splitlines()[2:] == [
        "  label   uint8    (30,)     FixedLenFeature((), 'uint8'), 2 classes",
        f"  floats  float32  (30, 99)  FixedLenFeature((99,), 'float32', default_value=({'0.5, ' * 10}…",
    ]
    assert repr(dtf.read_tfrecord(folder, schema.select(["sparse"]))).splitlines()[2:] == [
        "  sparse.indices  object  (30,)    VarLenFeature('int64', shape=(-1, 1))",
        "  sparse.values   object  (30,)    VarLenFeature('int64')",
        "  sparse.shape    int64   (30, 1)  FixedLenFeature((1,), 'int64')",
    ]
    assert repr(dtf.read_tfrecord(folder, schema.select(["nested"]))).splitlines()[2] == (
        "  nested  object  (30,)  RaggedFeature('int64', value_key='tokens', partitions=(ValueRowIds('tokens'),))"
    )


def test_html(ds: dtf.Dataset, tmp_path: Path) -> None:
    example = Example()
    example.features.feature["<b>&"].int64_list.value.append(1)
    write_oracle(tmp_path / "a&b", [example.SerializeToString()])

    class Cells(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.tags: list[str] = []
            self.open: list[str] = []
            self.texts: list[str] = []

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.tags.append(tag)
            self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

        def handle_data(self, data: str) -> None:
            self.texts.append(data)

    for dataset in (ds, ds[[]], dtf.read_tfrecord(tmp_path / "a&b")):
        cells = Cells()
        cells.feed(dataset._repr_html_())
        assert not cells.open
        assert cells.tags.count("tr") == 1 + len(dataset)
        pictures = {"details", "summary", "figure", "figcaption", "svg", "text", "line", "polygon"}
        assert set(cells.tags) - pictures == {"div", "p", "style", "table", "thead", "tbody", "tr", "th", "td"} - (
            {"td"} if not len(dataset) else set()
        )
        assert cells.tags.count("svg") == len(dataset)
        assert cells.texts[0] == repr(dataset).splitlines()[0]
        assert set(dataset) <= set(cells.texts)


# -- arguments ---------------------------------------------------------------------------------------------------------


def test_inferred_and_given_features(folder: Path, wanted: Columns) -> None:
    inferred = dtf.read_tfrecord(folder)
    assert inferred.schema.sampling is not None
    assert set(inferred) == set(FEATURES)
    same(inferred["label"].compute(), wanted["label"])
    some = dtf.read_tfrecord(folder, columns=["text", "label"])
    assert list(some) == ["text", "label"]
    check(
        dtf.read_tfrecord(folder, FEATURES, columns=["tokens", "id"]).compute(),
        {name: wanted[name] for name in ("tokens", "id")},
    )
    check(dtf.read_tfrecord(folder, dtf.Schema(FEATURES)).compute(), wanted)
    assert dtf.read_tfrecord(folder, FEATURES, columns=[]).compute() == {}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"columns": ["lable"]}, UnknownFeatureError, "no feature 'lable'; did you mean 'label'?"),
        ({"columns": "label"}, SchemaError, "columns is a list of names; got the string 'label'"),
        ({"columns": ["label", "label"]}, SchemaError, "picked once each"),
        ({"features": ["label"]}, SchemaError, "features is a mapping of names to features"),
        (
            {"features": {"label": "int64"}},
            SchemaError,
            "feature 'label': expected a feature of this library or of tf.io, for example FixedLenFeature",
        ),
        ({"features": {3: FEATURES["label"]}}, SchemaError, "expected a string as feature name; got 3"),
        ({"compression": "lz4"}, ValueError, "compression is one of"),
        ({"compression": "gzip"}, CorruptRecordError, "gzip data is damaged"),
        ({"counts": [10, 0, 7]}, ValueError, "one number of records per shard, 4 of them; got 3"),
    ],
)
@pytest.mark.parametrize("counts", ["auto", None])
def test_wrong_arguments(
    folder: Path, arguments: dict[str, Any], error: type[Exception], message: str, counts: Any
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        dtf.read_tfrecord(folder, **{"features": FEATURES, "counts": counts} | arguments).compute()


def test_paths_that_name_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in ("nothing", "nothing-*", "empty", "nothing@3", "nothing-?????-of-00002"):
        with pytest.raises(ShardNotFoundError) as caught:
            dtf.read_tfrecord(tmp_path / path)
        assert isinstance(caught.value, FileNotFoundError | TFRecordError)
    with pytest.raises(ShardNotFoundError, match="an empty list of paths"):
        dtf.read_tfrecord([])
    with pytest.raises(TypeError, match="a path or a list of paths; got int"):
        dtf.read_tfrecord(3)  # type: ignore[arg-type]


def test_arguments_are_looked_at_before_files(tmp_path: Path) -> None:
    for arguments in ({"chunks": 0}, {"columns": "label"}):
        with pytest.raises(ValueError, match=r"one row or more|list of names"):
            dtf.read_tfrecord(tmp_path / "nothing", FEATURES, **arguments)  # type: ignore[arg-type]


def test_errors_survive_workers(folder: Path) -> None:
    wrong = dtf.read_tfrecord(folder, {"label": dtf.FixedLenFeature((2,), "int64")}, chunks="shard")
    for scheduler in ("sync", "threads", "processes"):
        with pytest.raises(FeatureError, match="holds 1 value where") as caught:
            wrong["label"].compute(scheduler=scheduler, num_workers=1)
        assert caught.value.place is not None
        assert (caught.value.place.record, caught.value.place.offset, caught.value.place.feature) == (0, 0, "label")


# -- at the same time --------------------------------------------------------------------------------------------------


def test_many_threads_at_once(ds: dtf.Dataset, wanted: Columns) -> None:
    kept = ds.persist()
    jobs: list[Callable[[], Any]] = [
        lambda: check(ds.compute(), wanted),
        lambda: check(ds.compute(scheduler="threads", num_workers=2), wanted),
        lambda: check(kept.compute(), wanted),
        lambda: check(ds.rows[::-3].compute(), wanted, slice(None, None, -3)),
        lambda: same(ds["image", "label"][0].compute(), wanted["image"]),
        lambda: check(ds.map_blocks(dict).compute(scheduler="sync"), wanted),
        lambda: check(ds.persist().compute(), wanted),
    ]
    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(job) for job in jobs * 6]:
            future.result(timeout=PATIENCE)


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to another process")
def test_control_c_stops_a_computation(folder: Path, tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    code = f"""
import pathlib, time, dask, numpy as np, dask_tfrecord as dtf
dask.config.set(num_workers=2)
def slow(blocks):
    print("running", flush=True)
    while not pathlib.Path({str(sent)!r}).exists():
        time.sleep(0.01)
    time.sleep(0.2)
    return blocks
ds = dtf.read_tfrecord({str(folder)!r}, columns=["label"], chunks=1)
ds = ds.map_blocks(slow, template={{"label": np.empty(0, np.int64)}})
try:
    ds.compute()
except KeyboardInterrupt:
    print("stopped", flush=True)
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=PACKAGES, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        # Two threads may print at once.
        assert process.stdout.readline().startswith("running")
        process.send_signal(signal.SIGINT)
        sent.touch()
        out, _ = process.communicate(timeout=PATIENCE)
        assert "stopped" in out
        # 30 blocks would have been slowed down otherwise.
        assert out.count("running") < 20


@pytest.mark.integration
def test_dasks_query_planning_is_refused(folder: Path) -> None:
    code = f"import dask_tfrecord as dtf; dtf.read_tfrecord({str(folder)!r})"
    environment = {**os.environ, "DASK_ARRAY__QUERY_PLANNING": "True"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=PACKAGES, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    # The first versions with this configuration fail to import dask.array.
    if "dask_expr" not in done.stderr:
        assert re.match(r"RuntimeError: .* array.query-planning unset", done.stderr.splitlines()[-1])
    # Setting it after the import of dask.array has no effect.
    with dask.config.set({"array.query-planning": True}):
        assert dtf.read_tfrecord(folder, FEATURES).nrows == ROWS


def test_an_attribute_with_the_name_of_a_column_hints_at_it() -> None:
    ds = dtf.Dataset.from_arrays({"label": [1]})
    with pytest.raises(AttributeError, match=r"no attribute 'label'; its column is ds\['label'\]"):
        ds.label  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'lable'$"):
        ds.lable  # noqa: B018
