"""`Dataset`: a mapping of columns, a dask collection, and errors for invalid arguments.

`test_dataset_states` tests combinations of operations, `test_rows` which rows are read, `test_graph` what is decoded.
"""

from __future__ import annotations

import copy
import os
import pickle
import re
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import numpy as np
import pytest
from dask.base import tokenize
from dask.diagnostics import ProgressBar
from dask.sizeof import sizeof
from numpy.typing import NDArray
from oracle import expected_columns, read_payloads, write_oracle
from support.engine import PLANNED, da
from support.few import mostly_slow
from support.programs import run_program
from support.store_round_trip import assert_same, assert_same_array
from support.waiting import PATIENCE
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.errors import CorruptRecordError, SchemaError, ShardNotFoundError, UnknownFeatureError

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
LABEL, ID, TEXT, TOKENS, TAGS = (FEATURES[name] for name in ("label", "id", "text", "tokens", "tags"))
COUNTS = [10, 0, 7, 13]
ROWS = sum(COUNTS)
# Directory of the installed package: a process that starts there does not import the sources.
PACKAGES = Path(dtf.__file__).parents[1]
Columns = Mapping[str, NDArray[Any]]
Function = Callable[[dict[str, Any]], Any]


def payload(number: int) -> bytes:
    """Return one record; each feature identifies its number."""
    ragged = number % 4
    return example(
        label=[number],
        image=[number + column / 8 for column in range(6)],
        id=[b"%d\0" % number],
        text=[f"Nº {number}".encode()],
        tokens=list(range(number, number + ragged)),
        boxes=[float(number)] * 2 * ragged,
        tags=[b"t%d" % number] * ragged,
        raw=[np.arange(number, number + 3, dtype=">i2").tobytes()],
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shards, one of them empty."""
    path = tmp_path_factory.mktemp("shards")
    for number, (start, stop) in enumerate(pairwise(np.cumsum([0, *COUNTS]).tolist())):
        write_oracle(path / f"part-{number}.tfrecord", map(payload, range(start, stop)))
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
    assert_same(found, {name: array[key] for name, array in wanted.items()})


# -- a mapping ---------------------------------------------------------------------------------------------------------


def test_it_is_a_mapping_of_dask_arrays(ds: dtf.Dataset, uncounted: dtf.Dataset, wanted: Columns, folder: Path) -> None:
    assert isinstance(ds, Mapping)
    assert list(ds) == list(FEATURES) and len(ds) == 8
    assert "label" in ds and "lable" not in ds and 3 not in ds
    assert ds.get("lable") is None
    for name, array in ds.items():
        assert isinstance(array, da.Array)
        assert (array.shape, array.dtype) == (wanted[name].shape, wanted[name].dtype)
        assert array.chunks[0] == ds.chunks == (8, 8, 8, 6)
    check(dask.compute(dict(ds))[0], wanted)
    [label] = ds[("label",)]
    assert label.name == ds["label"].name
    assert (ds[()], ds[[]].nrows, ds[[]].compute()) == ((), ROWS, {})
    assert ds == ds and ds != dict(ds)
    with pytest.raises(TypeError, match="unhashable"):
        hash(ds)
    assert (ds.nrows, ds.npartitions, ds.schema) == (ROWS, 4, FEATURES)
    assert ds.origin["files"] == [str(folder / f"part-{number}.tfrecord") for number in range(4)]
    # An empty shard does not become a chunk.
    assert (uncounted.nrows, uncounted.npartitions) == (None, 3)
    assert all(np.isnan(uncounted.chunks))


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ("lable", UnknownFeatureError, "no column 'lable'; did you mean 'label'?"),
        (["label", "imag"], UnknownFeatureError, "no column 'imag'; did you mean 'image'"),
        ("", UnknownFeatureError, "no column ''; there are 'label', 'image', "),
        (["label", "label"], SchemaError, "picked only once"),
        (("label", "label"), SchemaError, "picked only once"),
        *(
            (key, TypeError, "a name, a tuple or a list of names; got")
            for key in ([3], 3, None, {"label"}, slice(3), (0, 1), np.ones(10, bool))
        ),
    ],
)
def test_columns_that_are_not_there(ds: dtf.Dataset, key: Any, error: type[Exception], message: str) -> None:
    for way in (ds, ds.persist()):
        with pytest.raises(error, match=re.escape(message)) as caught:
            way[key]
        assert error is not TypeError or "ds.rows[" in str(caught.value)


def test_an_attribute_with_the_name_of_a_column_hints_at_it(ds: dtf.Dataset) -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'label'; write ds\['label'\]"):
        ds.label  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'lable'; did you mean 'label'"):
        ds.lable  # noqa: B018


# -- values ------------------------------------------------------------------------------------------------------------


def test_schedulers_and_options_of_dask(ds: dtf.Dataset, wanted: Columns, capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(2) as pool:
        for options in (
            {"scheduler": "sync"},
            {"scheduler": "threads", "num_workers": 1},
            {"optimize_graph": False},
            {"pool": pool},
            {"scheduler": pool},
            {"traverse": False},
        ):
            check(ds.compute(**options), wanted)
            with dask.config.set(scheduler=options.get("scheduler")):
                check(dask.compute(ds)[0], wanted)
    with pytest.raises(ValueError, match="single-threaded"):
        ds.compute(scheduler="nonesuch")
    with ProgressBar():
        ds.compute()
    assert "100% Completed" in capsys.readouterr().out


@pytest.mark.parametrize("make", ["ds", "uncounted", "persisted", "mapped", "assigned", "where", "few"])
def test_delayed_chunks_have_all_columns(ds: dtf.Dataset, uncounted: dtf.Dataset, make: str) -> None:
    rows = {
        "ds": lambda: ds,
        "uncounted": lambda: uncounted,
        "persisted": ds.persist,
        "mapped": lambda: ds.map_blocks(dict),
        "assigned": lambda: ds.assign(twice=ds["label"] * 2),
        "where": lambda: ds.where([("label", ">=", 0)]),
        "few": lambda: ds[["label"]].rows[:0],
    }[make]()
    chunks = rows.to_delayed()
    assert len(chunks) == rows.npartitions
    found = dask.compute(*chunks)
    assert {tuple(columns) for columns in found} == {tuple(rows)}
    whole = rows.compute()
    for name, column in whole.items():
        assert_same_array(np.concatenate([columns[name] for columns in found]), column)
    # A function of a user may change what it gets. dask warns of arrays of dask_array next to delayed objects.
    if not PLANNED:
        first, kept = dask.compute(chunks[0], rows["label"])
        first["label"] += 1
        assert_same_array(kept, whole["label"])
    # A chunk is decoded by one task.
    tasks = [key for key in rows.to_delayed()[0].__dask_graph__() if str(key).startswith("('tfrecord-decode")]
    assert len(tasks) <= len(chunks)


def test_results_belong_to_the_caller(ds: dtf.Dataset, wanted: Columns) -> None:
    for way in (ds, ds.persist()):
        first = way.compute()
        for name in ("label", "image", "raw"):
            first[name][:] = 99
        first["tokens"][3][:] = 99
        check(way.compute(), wanted)


@pytest.mark.parametrize("chunks", [0, -1, True, None, 1.5, "x", "", "MiB", "0 B", "-5 MiB", [3, 4], "5 rows", b"auto"])
def test_invalid_chunks(tmp_path: Path, chunks: Any) -> None:
    """Arguments are checked before files, which do not exist here."""
    with pytest.raises(ValueError, match=r"chunks must be 'auto'|a chunk must have one"):
        dtf.read_tfrecord(tmp_path / "none", FEATURES, chunks=chunks)
    with pytest.raises(ValueError, match="chunks"):
        dtf.read_tfrecord(tmp_path / "none", FEATURES, chunks=chunks, counts=None)


# -- rows --------------------------------------------------------------------------------------------------------------


def test_samples(ds: dtf.Dataset, uncounted: dtf.Dataset, wanted: Columns) -> None:
    places = {row: place for place, row in enumerate(wanted["id"].tolist())}
    drawn = []
    for n, seed in [(0, 0), (1, 1), (17, 2), (17, 3), (ROWS, 4), (np.int64(17), np.random.default_rng(5))]:
        found = ds.sample(n, seed).compute()
        rows = [places[row] for row in found["id"].tolist()]
        assert len(rows) == n and all(first < second for first, second in pairwise(rows))
        check(found, wanted, np.array(rows, int))
        drawn.append(tuple(rows))
    assert len(set(drawn)) == len(drawn)
    assert set().union(*drawn[2:4]) - set(range(17)), "any row may be drawn"
    assert tokenize(ds.sample(5, 1)) == tokenize(ds.sample(5, 1)) != tokenize(ds.sample(5))
    for n in (-1, ROWS + 1):
        with pytest.raises(ValueError, match=f"the number of rows n must be 0 to {ROWS}; got {n}"):
            ds.sample(n)
    with pytest.raises(ValueError, match="only counted rows can be sampled"):
        uncounted.sample(1)
    for wrong in ("3", None, 2.5, True):
        for call in (ds.sample, ds.head, uncounted.head):
            with pytest.raises(TypeError, match="the number of rows n must be an int; got "):
                call(wrong)


def test_rows_by_a_dask_mask(ds: dtf.Dataset, wanted: Columns) -> None:
    found = ds.assign(twice=ds["label"] * 2).rows[ds["label"] % 7 == 3]
    check(found.compute(), {**wanted, "twice": wanted["label"] * 2}, wanted["label"] % 7 == 3)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        *((key, "out of bounds for 30 rows") for key in (30, -31, [0, 30])),
        *((key, "a mask for 30 rows") for key in (True, [True, False])),
        *((key, "rows are picked by ints, slices") for key in ("label", None, ..., [1.5], [[1, 2]], {})),
        *((key, r"one int, slice, list or mask; got .*; ds\.rows\[\[1, 2\]\]") for key in ((1, 2), (slice(2), "x"))),
        *((key, "the bounds of a slice of rows must be ints") for key in (slice("a", "b"), slice(None, 2.5))),
    ],
    ids=repr,
)
def test_rows_that_are_not_there(ds: dtf.Dataset, key: Any, message: str) -> None:
    for way in (ds, ds.persist(), ds.assign(x=ds["label"])):
        with pytest.raises(IndexError, match=message):
            way.rows[key]


def test_many_picks_of_persisted_rows_make_few_tasks(ds: dtf.Dataset, wanted: Columns) -> None:
    rows = np.random.default_rng(1).permutation(ROWS)
    check(ds.persist().rows[rows].compute(), wanted, rows)
    check(ds.persist().rows[[29, 0, 0, 8, -7, 8]].compute(), wanted, [29, 0, 0, 8, -7, 8])
    shuffled = ds.persist().rows[np.tile(rows, 100)]
    # One task per pair of source and target chunk, not per row.
    assert shuffled.npartitions < 500
    assert len(dict(shuffled.__dask_graph__())) < 6 * shuffled.npartitions
    assert shuffled.nrows == 100 * ROWS


def test_shuffled_rows_are_those_of_the_first_epoch(ds: dtf.Dataset, wanted: Columns) -> None:
    order = [row for batch in ds.batches(7, shuffle="full", seed=5) for row in batch["label"].tolist()]
    rows = [wanted["label"].tolist().index(label) for label in order]
    assert sorted(rows) == list(range(ROWS)) != rows
    for way in (ds, ds.persist(), ds.assign(x=ds["label"])[list(wanted)], ds.rows[::-1].rows[::-1]):
        check(way.shuffle(seed=5).compute(), wanted, rows)
        check(way.shuffle(seed=5).rows[3:9].compute(), wanted, rows[3:9])
        check(way.shuffle(seed=5).rows[[4, -1, 4]].compute(), wanted, [rows[4], rows[-1], rows[4]])
    kept = np.flatnonzero(wanted["label"] % 2 == 0)
    again = ds.rows[kept].shuffle(seed=1)["label"].compute()
    assert sorted(again.tolist()) == sorted(wanted["label"][kept].tolist())
    assert ds.shuffle()["label"].name != ds.shuffle()["label"].name
    with pytest.raises(ValueError, match="seed must be at least 0; got -1"):
        ds.shuffle(seed=-1)


def test_the_order_of_shuffled_rows_is_sent_as_a_seed(tmp_path: Path) -> None:
    numbers = np.arange(100_000)
    dtf.to_tfrecord({"x": numbers}, tmp_path / "a.tfrecord")
    ds = dtf.read_tfrecord(tmp_path / "a.tfrecord")
    sent = cloudpickle.dumps(ds.shuffle(seed=3))
    assert len(sent) < len(pickle.dumps(ds)) + 1_000
    # Nothing holds the order of the pickled data set any more: it is computed again.
    found, wanted = pickle.loads(sent)["x"].compute(), ds.shuffle(seed=3)["x"].compute()
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.sort(found), numbers)
    # A part of the order lacks a seed, and is sent as row numbers.
    sent = pickle.dumps(ds.shuffle(seed=3).rows[10:20])
    np.testing.assert_array_equal(pickle.loads(sent)["x"].compute(), wanted[10:20])


# -- assign and map_blocks ---------------------------------------------------------------------------------------------


def test_assigned_columns(ds: dtf.Dataset, wanted: Columns) -> None:
    """`test_dataset_states` assigns to data sets of any origin."""
    label, labels = ds["label"], wanted["label"]
    added: dict[str, tuple[Any, Any, Any]] = {
        "label": (label + 1, labels + 1, LABEL),
        "text": (ds["text"][::-1], wanted["text"][::-1], TEXT),
        "grid": (da.zeros((ROWS, 3, 2), chunks=(7, 2, 1), dtype="u2"), np.zeros((ROWS, 3, 2), "u2"), None),
        "array": (np.arange(ROWS, dtype=">i4"), np.arange(ROWS, dtype="i4"), dtf.RawFeature((), "int32")),
        "numbers": (list(range(ROWS)), np.arange(ROWS), LABEL),
    }
    more = ds[["label", "text"]].assign(**{name: given for name, (given, _, _) in added.items()})
    expected = {name: array for name, (_, array, _) in added.items()}
    assert more.schema == {name: feature or dtf.RawFeature((3, 2), "uint16") for name, (_, _, feature) in added.items()}
    for way in (more, more.persist().map_blocks(dict).persist()):
        check(way.compute(), expected)
    assert more["numbers"] is more["numbers", "label"][0]
    # One array under two names.
    first, second = (ds[["label"]].assign(**{name: label + 1}).map_blocks(dict) for name in "xy")
    for found, name in zip(dask.compute(first, second), "xy", strict=True):
        check(found, {"label": labels, name: labels + 1})


def test_arrays_that_are_no_columns(ds: dtf.Dataset, uncounted: dtf.Dataset) -> None:
    cases: list[tuple[dtf.Dataset, Any, str]] = [
        (ds, np.zeros(29), r"'x' has shape \(29,\), but the data set has 30 rows"),
        (ds, ds["label"][ds["label"] > 3], "but the data set has 30 rows"),
        (ds, 3, "an array with an axis of rows"),
        (ds, ds["tokens"], "contains objects, which may be anything.*or compute the array first"),
        (ds, np.array([b"a"] * ROWS), "drops trailing zero bytes"),
        (ds, np.zeros(ROWS, "M8[s]"), "dtype datetime64"),
        (uncounted, np.zeros(ROWS), "where rows are not counted"),
        (uncounted, ds["label"], "where rows are not counted"),
    ]
    for dataset, array, message in cases:
        with pytest.raises(SchemaError, match=message):
            dataset.assign(x=array)


def test_fewer_rows_in_the_same_number_of_chunks(uncounted: dtf.Dataset) -> None:
    fewer = uncounted[["label"]].assign(some=uncounted["label"][uncounted["label"] > 3])
    for way in (fewer, fewer.map_blocks(dict)):
        with pytest.raises(SchemaError, match="columns must have the same number of rows"):
            way.compute()


def splits(values: Any, ends: Any) -> dict[str, Any]:
    return {"x": dtf.RaggedBlock(values, ends)}


TEMPLATES: dict[str, tuple[Function, Any, Callable[[int], Any]]] = {
    "list of ints": (lambda b: {"x": b["label"].tolist()}, LABEL, int),
    "array": (lambda b: {"x": b["label"] + 0}, np.empty(0, np.int64), int),
    "other byte order": (lambda b: {"x": b["label"].astype(">f8")}, np.empty(0), float),
    "text": (lambda b: {"x": [f"é{n}" for n in b["label"]]}, TEXT, lambda n: f"é{n}"),
    "unicode": (lambda b: {"x": b["label"].astype(str)}, TEXT, str),
    "bytes": (lambda b: {"x": [b"%d\0" % n for n in b["label"]]}, ID, lambda n: b"%d\0" % n),
    "rows": (lambda b: {"x": [[n] * (n % 3) for n in b["label"]]}, TOKENS, lambda n: [n] * (n % 3)),
    "rows of floats": (
        lambda b: {"x": [[n / 2] * 2 for n in b["label"]]},
        dtf.VarLenFeature("float32"),
        lambda n: [n / 2] * 2,
    ),
    "rows of bytes": (lambda b: {"x": [[b"%d\0" % n] * 2 for n in b["label"]]}, TAGS, lambda n: [b"%d\0" % n] * 2),
    "int32 splits": (lambda b: splits(b["label"], np.arange(len(b["label"]) + 1, dtype="i4")), TOKENS, lambda n: [n]),
    "flat bytes": (lambda b: splits(b["id"], np.arange(len(b["label"]) + 1)), TAGS, lambda n: [b"%d\0" % n]),
    "more than promised": (lambda b: {"x": b["label"], "y": 3}, LABEL, int),
}


@pytest.mark.parametrize("case", TEMPLATES)
def test_map_blocks_with_a_template(ds: dtf.Dataset, case: str) -> None:
    function, template, row = TEMPLATES[case]
    for way in (ds, ds.persist()):
        found = way.map_blocks(function, template={"x": template}).compute()
        assert list(found) == ["x"]
        rows = [item.tolist() if isinstance(item, np.ndarray) else item for item in found["x"]]
        assert rows == [row(number) for number in range(ROWS)]


WRONG: dict[str, tuple[Function, Any, str]] = {
    "fewer rows": (lambda b: {"x": b["label"][1:]}, LABEL, r"got \d rows and returned \d of 'x'"),
    "another dtype": (lambda b: {"x": b["label"].astype("f4")}, LABEL, "expected .*; got FixedLenFeature"),
    "another shape": (lambda b: {"x": b["image"]}, dtf.FixedLenFeature((3, 2), "float32"), "expected .*; got "),
    "no such column": (lambda b: {"y": b["label"]}, LABEL, "returned no 'x', which is in its template"),
    "no dict": (lambda b: b["label"], LABEL, "must return a dict of blocks; got ndarray"),
    "nothing": (lambda b: None, LABEL, "must return a dict of blocks; got NoneType"),
    "a number": (lambda b: {"x": b["label"].sum()}, LABEL, "an array with an axis of rows"),
    "numbers for bytes": (lambda b: {"x": list(b["label"])}, ID, r"expected bytes objects; got (np.int64\(\d+\)|\d+)"),
    "text for bytes": (lambda b: {"x": ["a"] * len(b["label"])}, ID, "expected bytes objects; got 'a'"),
    "NumPy's S": (lambda b: {"x": b["id"].astype("S")}, ID, "drops trailing zero bytes"),
    "bytes for text": (lambda b: {"x": b["id"]}, TEXT, "expected str objects; got b'"),
    "numbers for text": (lambda b: {"x": b["label"]}, TEXT, "expected text; got dtype int64"),
    "floats for ints": (lambda b: {"x": [[0.5]] * len(b["label"])}, TOKENS, "row 0 has dtype float64"),
    "other ints": (lambda b: {"x": [np.ones(1, "i4")] * len(b["label"])}, TOKENS, "dtype int32"),
    "scalars for rows": (lambda b: {"x": b["label"]}, TOKENS, r"row 0 has dtype int64 and shape \(\)"),
    "rows of another shape": (lambda b: {"x": [[1.0]] * len(b["label"])}, FEATURES["boxes"], "expected VarLenFeature"),
    "splits that do not begin": (lambda b: splits(b["label"], np.arange(len(b["label"]) + 1) + 1), TOKENS, "from 0"),
    "splits that do not end": (lambda b: splits(b["label"], np.arange(len(b["label"]))), TOKENS, "that ascend"),
    "splits that fall": (lambda b: splits(b["label"], np.r_[0, 5, 2, len(b["label"])]), TOKENS, "that ascend"),
    "splits of floats": (lambda b: splits(b["label"], np.arange(len(b["label"]) + 1.0)), TOKENS, "an array of ints"),
    "ragged of another kind": (lambda b: {"x": b["boxes"]}, TOKENS, "expected VarLenFeature.*; got "),
}


@pytest.mark.parametrize("case", WRONG)
def test_map_blocks_that_returns_something_else(ds: dtf.Dataset, case: str) -> None:
    function, feature, message = WRONG[case]
    for way in (ds, ds.persist()):
        with pytest.raises(SchemaError, match=message):
            way.map_blocks(function, template={"x": feature}).compute()


def test_map_blocks_without_inferable_results(ds: dtf.Dataset) -> None:
    with pytest.raises(ValueError, match=r"failed when it was called with 0 rows .*; give template=") as caught:
        ds.map_blocks(lambda blocks: {"x": blocks["label"].max(keepdims=True)})
    assert "zero-size" in str(caught.value.__cause__)
    functions: list[tuple[Function, str]] = [
        (lambda b: {"x": [str(number) for number in b["label"]]}, r"of rows; got \[\]; an empty list has no type"),
        (lambda b: {"x": b["label"].astype(object)}, "specify the type of the objects"),
        (lambda b: {3: b["label"]}, "expected a string as feature name; got 3"),
        (lambda b: [b["label"]], "got list"),
    ]
    for function, message in functions:
        with pytest.raises(SchemaError, match=message):
            ds.map_blocks(function)
    templates: list[tuple[Any, str]] = [({"x": "int64"}, "axis of rows"), (["x"], "got list"), ({"x": 1}, "axis of")]
    for template, message in templates:
        with pytest.raises(SchemaError, match=message):
            ds.map_blocks(dict, template=template)


def test_a_function_cannot_change_persisted_chunks(ds: dtf.Dataset, wanted: Columns) -> None:
    def spoil(blocks: dict[str, Any]) -> dict[str, Any]:
        blocks["label"] += 1
        return blocks

    kept = ds.persist()
    with pytest.raises(ValueError, match="read-only"):
        kept.map_blocks(spoil, template=FEATURES).compute()
    check(kept.compute(), wanted)


# -- head, count, persist ----------------------------------------------------------------------------------------------


def test_heads_and_counts(ds: dtf.Dataset, uncounted: dtf.Dataset, wanted: Columns) -> None:
    for way in (ds, uncounted, uncounted.persist()):
        check(way.head(), wanted, slice(5))
        assert way.count() == ROWS
        with pytest.raises(ValueError, match="at least 0; got -1"):
            way.head(-1)
    assert ds[[]].count() == ROWS
    with pytest.raises(ValueError, match="rows without a column cannot be counted"):
        uncounted[[]].count()


def test_persisted_rows_are_flat_and_outlive_their_files(tmp_path: Path, folder: Path, wanted: Columns) -> None:
    copied = tmp_path / "one.tfrecord"
    copied.write_bytes((folder / "part-3.tfrecord").read_bytes())
    kept = dtf.read_tfrecord(copied, FEATURES, chunks=5).persist()
    copied.unlink()
    check(kept.compute(), wanted, slice(17, 30))
    check(kept.rows[::-2].compute(), wanted, slice(29, 16, -2))
    (block, *_) = [
        chunk[0]["tags"] for chunk in dask.threaded.get(dict(kept.__dask_graph__()), kept.__dask_keys__()[0])
    ]
    assert isinstance(block, dtf.RaggedBlock) and sizeof(block) > block.nbytes > 8 * 5


# -- names, copies, text -----------------------------------------------------------------------------------------------


def test_same_inputs_have_same_names(folder: Path, ds: dtf.Dataset) -> None:
    again = dtf.read_tfrecord(folder, FEATURES, chunks=8)
    assert {name: array.name for name, array in ds.items()} == {name: array.name for name, array in again.items()}
    # The order of columns does not change the decodes.
    assert {array.name for array in ds["label", "image"]} == {array.name for array in again["image", "label"]}
    for derive in (lambda d: d, lambda d: d.rows[3:9], lambda d: d.map_blocks(dict), lambda d: d.persist().rows[2:5]):
        assert tokenize(derive(ds)) == tokenize(derive(again))


def test_other_inputs_have_other_names(folder: Path, ds: dtf.Dataset) -> None:
    others = [
        ds,
        dtf.read_tfrecord(folder, FEATURES, chunks=9),
        dtf.read_tfrecord(folder / "part-0.tfrecord", FEATURES, chunks=8),
        dtf.read_tfrecord(folder, FEATURES, chunks=8, check_crc=False),
        dtf.read_tfrecord(folder, FEATURES, counts=None),
        dtf.read_tfrecord(folder, {**FEATURES, "label": dtf.VarLenFeature("int64")}, chunks=8),
        ds.rows[::2],
        ds.rows[1::2],
        ds.map_blocks(lambda blocks: {"label": blocks["label"] + 1}),
        ds.map_blocks(lambda blocks: {"label": blocks["label"] + 2}),
        ds.persist().rows[::2],
    ]
    names = [dataset["label"].name for dataset in others]
    assert len(set(names)) == len({tokenize(dataset) for dataset in others}) == len(others)
    assert all(name.startswith(("tfrecord:read:label-", "tfrecord:take:label-")) for name in names)
    assert ds["label"].name != ds["label", "image"][0].name != ds["label", "id"][0].name


def test_copies(ds: dtf.Dataset, uncounted: dtf.Dataset, wanted: Columns) -> None:
    for way in (ds, uncounted, ds.persist(), ds.assign(label=ds["label"] + 0), ds.map_blocks(dict), ds.rows[:]):
        for made in (pickle.loads(pickle.dumps(way)), copy.deepcopy(way)):
            assert tokenize(made) == tokenize(way)
            check(made.compute(), wanted)


def test_large_plans_travel_small(ds: dtf.Dataset) -> None:
    many = dtf.read_tfrecord([path for path in ds.origin["files"] * 200], FEATURES, chunks="shard")
    assert many.npartitions == 600
    # A few buffers and the paths, without an object per record or chunk.
    paths = sum(map(len, many.origin["files"]))
    for sent in (many, many["label"].dask):
        assert len(pickle.dumps(sent)) < 2 * paths + 50 * 800


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
    long = dtf.FixedLenFeature((99,), "float32", default_value=(0.5,) * 99)
    schema = dtf.Schema({"label": LABEL, "floats": long}, classes={"label": ["cat", "dog"]})
    label, floats = repr(dtf.read_tfrecord(folder, schema)).splitlines()[2:]
    assert label.endswith("FixedLenFeature((), 'int64'), 2 classes")
    assert floats.endswith(f"FixedLenFeature((99,), 'float32', default_value=({'0.5, ' * 10}…")


# -- arguments of read_tfrecord ----------------------------------------------------------------------------------------


def test_inferred_and_given_features(folder: Path, wanted: Columns) -> None:
    inferred = dtf.read_tfrecord(folder)
    assert inferred.schema.sampling is not None
    assert set(inferred) == set(FEATURES)
    assert_same_array(inferred["label"].compute(), wanted["label"])
    assert list(dtf.read_tfrecord(folder, columns=["text", "label"])) == ["text", "label"]
    some = dtf.read_tfrecord(folder, dtf.Schema(FEATURES), columns=["tokens", "id"])
    check(some.compute(), {name: wanted[name] for name in ("tokens", "id")})
    assert dtf.read_tfrecord(folder, FEATURES, columns=[]).compute() == {}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"columns": ["lable"]}, UnknownFeatureError, "no feature 'lable'; did you mean 'label'?"),
        ({"columns": "label"}, SchemaError, "columns must be a list of names; got the string 'label'"),
        ({"columns": ["label", "label"]}, SchemaError, "picked only once"),
        ({"features": ["label"]}, SchemaError, "features must be a mapping of names to features"),
        ({"features": {"label": "int64"}}, SchemaError, "feature 'label': expected a feature of this library or of tf"),
        ({"features": {3: LABEL}}, SchemaError, "expected a string as feature name; got 3"),
        ({"compression": "gzip"}, CorruptRecordError, "does not begin like gzip data"),
        ({"compression": "zlib"}, CorruptRecordError, "does not begin like zlib data"),
        ({"compression": "zstd"}, CorruptRecordError, "does not begin like zstd data"),
        ({"urlpath": "nothing"}, ShardNotFoundError, "nothing"),
        ({"urlpath": "nothing-*"}, ShardNotFoundError, "nothing"),
        ({"urlpath": "nothing@3"}, ShardNotFoundError, "nothing"),
        ({"urlpath": "nothing-?????-of-00002"}, FileNotFoundError, "nothing"),
        ({"urlpath": []}, ShardNotFoundError, "an empty list of paths"),
        ({"urlpath": 3}, TypeError, "a path or a list of paths; got int"),
        ({"chunks": 4, "counts": None}, ValueError, "needs counted records"),
        ({"chunks": np.int64(3), "counts": None}, ValueError, "needs counted records"),
    ],
)
@pytest.mark.parametrize("counts", ["auto", None])
def test_wrong_arguments(
    folder: Path, arguments: dict[str, Any], error: type[Exception], message: str, counts: Any
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        dtf.read_tfrecord(**{"urlpath": folder, "features": FEATURES, "counts": counts} | arguments).compute()


# -- at the same time, and other processes -----------------------------------------------------------------------------


def test_many_threads_at_once(ds: dtf.Dataset, wanted: Columns) -> None:
    kept = ds.persist()
    jobs: list[Callable[[], Any]] = [
        lambda: check(ds.compute(scheduler="threads", num_workers=2), wanted),
        lambda: check(kept.compute(), wanted),
        lambda: check(ds.rows[::-3].compute(), wanted, slice(None, None, -3)),
        lambda: assert_same_array(ds["image", "label"][0].compute(), wanted["image"]),
        lambda: check(ds.map_blocks(dict).compute(scheduler="sync"), wanted),
        lambda: check(ds.persist().compute(), wanted),
    ]
    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(job) for job in jobs * 3]:
            future.result(timeout=PATIENCE)


@pytest.mark.integration
def test_query_planning_needs_its_package(folder: Path) -> None:
    code = f"import sys, dask_tfrecord as dtf; sys.modules['dask_array'] = None; dtf.read_tfrecord({str(folder)!r})"
    planned = {**os.environ, "DASK_ARRAY__QUERY_PLANNING": "True"}
    done = run_program(sys.executable, "-c", code, cwd=PACKAGES, env=planned)
    assert done.returncode == 1
    assert re.match(r"ImportError: .* pip install 'dask-tfrecord\[planning\]'", done.stderr.splitlines()[-1])
    # Setting it later changes nothing.
    with dask.config.set({"array.query-planning": True}):
        assert dtf.read_tfrecord(folder, FEATURES).nrows == ROWS


def write_renamed(folder: Path) -> Path:
    """Write shards of records; record 17 holds a value that can't be parsed as a tensor."""
    arrays = {
        "label": np.arange(20) % 5,
        "word": [f"w{number % 3}".encode() for number in range(20)],
        "tokens": [list(range(number % 4)) for number in range(20)],
        "pair": np.arange(40, dtype=np.float32).reshape(20, 2),
    }
    dtf.to_tfrecord(arrays, folder / "s-{shard:05d}-of-{shards:05d}.tfrecord", records_per_shard=7)
    return folder


WAYS: dict[str, Callable[[Path], dtf.Dataset]] = {
    "counted": lambda folder: dtf.read_tfrecord(folder, chunks=3),
    "uncounted": lambda folder: dtf.read_tfrecord(folder, counts=None),
    "filled": lambda folder: dtf.read_tfrecord(folder, errors="skip"),
    "selected": lambda folder: dtf.read_tfrecord(folder).rows[::-1].rows[::-1],
    "kept": lambda folder: dtf.read_tfrecord(folder).where("label >= 0"),
    "mapped": lambda folder: dtf.read_tfrecord(folder).map_blocks(lambda blocks: blocks),
    "persisted": lambda folder: dtf.read_tfrecord(folder).persist(),
    "assigned": lambda folder: dtf.read_tfrecord(folder).drop("label").assign(label=np.arange(20) % 5),
}


@pytest.mark.parametrize("way", mostly_slow(WAYS, 3))
def test_renamed_columns_have_the_values_of_the_others(tmp_path: Path, way: str) -> None:
    ds = WAYS[way](write_renamed(tmp_path))
    new = {"label": "class", "tokens": "ids", "pair": "label"}
    renamed = ds.rename(new)
    assert list(renamed) == [new.get(name, name) for name in ds]
    assert {name: renamed.schema[new.get(name, name)] for name in ds} == dict(ds.schema)
    wanted = {new.get(name, name): column for name, column in ds.compute().items()}
    assert_same(renamed.compute(), wanted)
    assert_same({"ids": renamed["ids"].compute()}, {"ids": wanted["ids"]})
    kept = renamed.where("class == 3 and len(ids) > 1")
    assert kept["word"].compute().tolist() == ds.where("label == 3 and len(tokens) > 1")["word"].compute().tolist()
    batch = next(iter(renamed[["class", "label"]].batches(4)))
    assert (batch["class"].tolist(), batch["label"].shape) == ([0, 1, 2, 3], (4, 2))
    assert_same(renamed.rename({"class": "label", "label": "pair", "ids": "tokens"}).compute(), ds.compute())
    if ds.nrows is not None:
        renamed.to_tfrecord(tmp_path / "out" / "a.tfrecord")
        assert_same(dtf.read_tfrecord(tmp_path / "out" / "a.tfrecord", renamed.schema).compute(), wanted)
        assert_same(renamed.rows[[4, 2]].compute(), {name: column[[4, 2]] for name, column in wanted.items()})
        renamed.to_zarr(tmp_path / "a.zarr")
        assert_same(dtf.from_zarr(tmp_path / "a.zarr").compute(), wanted)


def test_renamed_columns_are_read_alone(tmp_path: Path) -> None:
    label = dtf.read_tfrecord(write_renamed(tmp_path))["label"].compute()
    features = {"label": dtf.FixedLenFeature((), "int64"), "word": dtf.TensorFeature((), "int64")}
    wrong = dtf.read_tfrecord(tmp_path, features).rename(label="class", word="text")
    assert_same_array(wrong["class"].compute(), label)
    with pytest.raises(dtf.FeatureError, match=r"s-0000.-of-00003.tfrecord: record 0 \(byte 0\): feature 'word'"):
        wrong["text"].compute()


def test_names_that_rename_and_drop_refuse(tmp_path: Path) -> None:
    ds = dtf.Dataset.from_arrays({"label": np.arange(3), "x": np.arange(3), "t": [[1], [], [2]]})
    assert list(ds.drop("x", "t")) == list(ds.drop(["x", "t"])) == ["label"]
    with pytest.raises(SchemaError, match="two columns would have the name 'x'"):
        ds.rename(label="x")
    for call in (lambda: ds.rename(lable="y"), lambda: ds.drop("lable"), lambda: ds.where("lable == 3")):
        with pytest.raises(UnknownFeatureError, match="did you mean 'label'"):
            call()
    for mask in (np.array([True, False, True]), ds["label"] == 1, [True, False, False]):
        with pytest.raises(TypeError, match=r"write ds\.rows\[mask\] to pick"):
            ds.where(mask)
    with pytest.raises(ValueError, match="is not a condition"):
        ds.where("label")
    assert ds.where("label == 2 or len(t) == 0")["x"].compute().tolist() == [1, 2]


def test_first_rows_are_a_table_in_notebooks() -> None:
    arrays = {
        "photo": np.array([b"\xff\xd8\xff\x00", b"cat"], object),
        "score": [np.float32([0.1, 2.5]), np.arange(9, dtype="float32")],
        "a_name_that_is_long/and_nested": np.array([3, 4]),
    }
    html = dtf.Dataset.from_arrays(arrays).head()._repr_html_()
    cells = re.findall("<td[^>]*>(.*?)</td>", html)
    assert cells == ["4 bytes", "[0.1, 2.5]", "3", "cat", "float32 of shape (9,)", "4"]
    assert "a_name_that_is_long/and_nested</th>" in html


def test_names_of_columns_are_plain_text() -> None:
    """Serializers refuse subclasses of str, and a pickle would need this library."""
    names = list(dtf.Dataset.from_arrays({"a": np.arange(2), "b": np.arange(2)}))
    assert names == ["a", "b"] and {type(name) for name in names} == {str}
