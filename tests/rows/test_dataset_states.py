"""Any sequence of operations on a `Dataset` gives the rows that lists of dicts give."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.any_columns import COMPARISONS, listed
from support.few import rising

import dask_tfrecord as dtf
from dask_tfrecord.blocks import RaggedBlock

FEATURES = {
    "id": dtf.FixedLenFeature((), "int64"),
    "pair": dtf.FixedLenFeature((2,), "float32"),
    "name": dtf.TextFeature(),
    "items": dtf.VarLenFeature("int64"),
    "points": dtf.VarLenFeature("float32", shape=(-1, 2)),
    "words": dtf.RaggedFeature("int64", "words", [dtf.RaggedFeature.RowLengths("word_lengths")]),
}
# Many records without items: dask's slices are wrong across several empty chunks, and rarely across one.
SOME = st.lists(st.sampled_from([2, 0, 0, 0, 1, 4]), min_size=4, max_size=9)
LENGTHS = st.one_of(SOME, SOME, SOME.map(sorted), st.sampled_from([[], [0], [0, 0, 0]]))
Record = dict[str, Any]


def record_of(number: int, length: int) -> Record:
    return {
        "id": number,
        "pair": [number, number / 2],
        "name": "ä" * (number % 3),
        "items": [10 * number + item for item in range(length)],
        "points": [[item, number] for item in range(length)],
        "words": [[number] * (item % 3) for item in range(length)],
    }


def keys(count: int) -> st.SearchStrategy[Any]:
    """Draw any key of `Dataset.rows`."""
    bounds = st.none() | st.integers(-count - 1, count + 1)
    steps = st.none() | st.sampled_from([-3, -2, -1, 1, 2, 3])
    kinds: list[st.SearchStrategy[Any]] = [
        st.builds(slice, bounds, bounds, steps),
        st.lists(st.booleans(), min_size=count, max_size=count).map(lambda mask: np.array(mask, bool)),
    ]
    if count:
        numbers = st.integers(-count, count - 1)
        kinds += [numbers, numbers.map(np.int32), st.lists(numbers, max_size=count + 3)]
        kinds.append(st.builds(range, st.integers(0, count), st.integers(0, count), st.integers(1, 3)))
    return st.one_of(kinds)


def double(blocks: dict[str, Any]) -> dict[str, Any]:
    """Double the column `id` of blocks of any columns."""
    return {**blocks, "id": blocks["id"] * 2} if "id" in blocks else blocks


def uneven_chunks(array: Any, sizes: list[int]) -> da.Array:
    """Return an array in chunks of some sizes, which may be 0, and a last one with the rest."""
    cuts = np.minimum(np.cumsum([0, *sizes]), len(array)).tolist()
    return da.from_array(array, chunks=((*np.diff(cuts).tolist(), len(array) - cuts[-1]),))


@st.composite
def conditions(draw: st.DrawFn, schema: dtf.Schema) -> tuple[tuple[str, str, Any], Callable[[Record], bool]]:
    """Draw a condition of a column of a schema, and what it means for one row."""
    name = draw(st.sampled_from(sorted(schema)))
    feature, comparison = schema[name], draw(st.sampled_from(sorted(COMPARISONS)))
    values: st.SearchStrategy[Any] = st.sampled_from(["", "ä", "ää"]) if name == "name" else st.integers(-1, 40)
    reduction = None
    if feature.ragged_rank > 1:
        reduction = "len"
    elif feature.ragged_rank or feature.block_shape:
        reduction = draw(st.sampled_from(["len", "any", "all"]))
    operand = draw(st.lists(values, max_size=3) if comparison in ("in", "not in") else values)
    holds = COMPARISONS[comparison]

    def meaning(row: Record) -> bool:
        if reduction is None:
            return holds(row[name], operand)
        if reduction == "len":
            return holds(len(row[name]), operand)
        flat = np.array(row[name]).reshape(-1).tolist()
        return (any if reduction == "any" else all)(holds(value, operand) for value in flat)

    return (name if reduction is None else f"{reduction}({name})", comparison, operand), meaning


class DatasetStates(RuleBasedStateMachine):
    """A data set, and the list of the rows that it must have."""

    folder: Path
    ds: dtf.Dataset
    rows: list[Record]

    @initialize(
        lengths=LENGTHS,
        chunks=st.sampled_from([2, 1, 1, 1, 3, 10]),
        source=st.sampled_from(["file", "memory", "counted later"]),
        then=st.sampled_from(["explode", "persist and explode", "nothing"]),
        repeat=st.lists(st.sampled_from(["id", "pair", "name"]), unique=True),
    )
    def open(self, lengths: list[int], chunks: int, source: str, then: str, repeat: list[str]) -> None:
        self.rows = [record_of(number, length) for number, length in enumerate(lengths)]
        self.open_rows(lengths, chunks, source)
        if then != "nothing":
            # Chunks of one record are often empty.
            self.ds = self.ds.persist() if then.startswith("persist") else self.ds
            self.divide(["items", "points", "words"], repeat)

    def open_rows(self, lengths: list[int], chunks: int, source: str) -> None:
        if source == "memory":
            columns = {name: [row[name] for row in self.rows] for name in FEATURES}
            forms = {**FEATURES, "words": dtf.RaggedFeature("int64", partitions=FEATURES["words"].partitions)}
            self.ds = dtf.Dataset.from_arrays(
                {**columns, "id": uneven_chunks(np.arange(len(lengths)), [chunks, 0, 0, chunks, 0])}, forms
            )
            return
        path = self.folder / f"{'-'.join(map(str, lengths))}.tfrecord"
        if not path.exists():
            columns = {name: [row[name] for row in self.rows] for name in FEATURES}
            dtf.to_tfrecord(columns, path, features=FEATURES)
        if source == "file":
            self.ds = dtf.read_tfrecord(path, FEATURES, chunks=chunks)
        else:
            self.ds = dtf.read_tfrecord(path, FEATURES, counts=None).persist()

    @property
    def names(self) -> list[str]:
        return list(self.ds)

    @property
    def counted(self) -> bool:
        return self.ds.nrows is not None

    @rule(data=st.data())
    def pick_rows(self, data: st.DataObject) -> None:
        if not self.counted:
            with pytest.raises(ValueError, match="counts='auto'"):
                self.ds.rows[::-1]
            return
        key = data.draw(keys(len(self.rows)), "key")
        numbers = np.arange(len(self.rows))[np.array(key, int) if isinstance(key, list | range) else key]
        self.ds = self.ds.rows[key]
        self.rows = [self.rows[number] for number in np.atleast_1d(numbers)]

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def pick_columns(self, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from(self.names), min_size=1, unique=True), "columns")
        self.ds = self.ds[names]
        self.rows = [{name: row[name] for name in names} for row in self.rows]

    @precondition(lambda self: self.names)
    @rule(data=st.data(), negated=st.booleans())
    def where(self, data: st.DataObject, negated: bool) -> None:
        pairs = st.lists(conditions(self.ds.schema), min_size=1, max_size=2)
        drawn = data.draw(st.lists(pairs, min_size=1, max_size=2), "alternatives")
        chosen = [any(all(meaning(row) for _, meaning in every) for every in drawn) for row in self.rows]
        with dask.config.set(scheduler="sync"):
            self.ds = self.ds.where([[condition for condition, _ in every] for every in drawn])
            self.rows = [row for row, kept in zip(self.rows, chosen, strict=True) if kept]
            if negated and "id" in self.ds:
                self.ds = self.ds.where(lambda blocks: blocks["id"] % 3 != 0, columns=["id"])
                self.rows = [row for row in self.rows if row["id"] % 3]

    @rule(data=st.data())
    def explode(self, data: st.DataObject) -> None:
        group = [name for name in ("items", "points", "words") if name in self.ds and self.ds.schema[name].ragged_rank]
        group = [name for name in group if all(len(row[name]) == len(row[group[0]]) for row in self.rows)]
        repeat = [name for name in self.names if name not in (*group, "record")]
        if not group:
            with pytest.raises((dtf.SchemaError, TypeError)):
                self.ds.explode(group)
            return
        chosen = data.draw(st.lists(st.sampled_from(group), min_size=1, unique=True), "group")
        repeat = data.draw(st.lists(st.sampled_from(repeat), unique=True), "repeat") if repeat else []
        self.divide(chosen, repeat)

    def divide(self, chosen: list[str], repeat: list[str]) -> None:
        self.ds = self.ds.explode(chosen, repeat=repeat)
        self.rows = [
            {name: row[name][item] for name in chosen}
            | {name: row[name] for name in repeat}
            | ({"record": number} if self.counted else {})
            for number, row in enumerate(self.rows)
            for item in range(len(row[chosen[0]]))
        ]

    @precondition(lambda self: self.counted)
    @rule(sizes=st.lists(st.sampled_from([0, 0, 1, 3]), max_size=5), number=st.integers(0, 2))
    def assign(self, sizes: list[int], number: int) -> None:
        values = np.arange(len(self.rows)) * 3 + number
        self.ds = self.ds.assign(**{f"new{number}": uneven_chunks(values, sizes)})
        self.rows = [{**row, f"new{number}": int(value)} for row, value in zip(self.rows, values, strict=True)]

    @precondition(lambda self: "id" in self.ds)
    @rule()
    def assign_of_a_column(self) -> None:
        self.ds = self.ds.assign(twice=self.ds["id"] * 2)
        self.rows = [{**row, "twice": 2 * row["id"]} for row in self.rows]

    @rule()
    def map_blocks(self) -> None:
        self.ds = self.ds.map_blocks(double)
        self.rows = [{**row, "id": 2 * row["id"]} if "id" in row else row for row in self.rows]

    @rule()
    def persist(self) -> None:
        self.ds = self.ds.persist()

    @precondition(lambda self: self.counted and self.names)
    @rule(chunks=st.integers(1, 5))
    def store(self, chunks: int) -> None:
        store = Path(tempfile.mkdtemp(dir=self.folder)) / "rows.zarr"
        self.ds.to_zarr(store, chunks=chunks)
        self.ds = dtf.from_zarr(store)

    @rule()
    def fail(self) -> None:
        with pytest.raises(dtf.TFRecordError, match="no column 'none'"):
            self.ds["none"]
        if not self.counted:
            return
        with pytest.raises(IndexError):
            self.ds.rows[[len(self.rows)]]
        with pytest.raises(dtf.SchemaError, match="but the data set has"):
            self.ds.assign(x=np.zeros(len(self.rows) + 1))

    @precondition(lambda self: self.counted and self.names)
    @rule(data=st.data())
    def slice_an_array(self, data: st.DataObject) -> None:
        name, key = data.draw(st.sampled_from(self.names), "column"), data.draw(keys(len(self.rows)), "key")
        chosen = key if isinstance(key, slice | np.ndarray) else np.atleast_1d(np.array(key, int))
        numbers = np.arange(len(self.rows))[chosen].tolist()
        found = self.ds[name][chosen].compute()
        assert listed(found) == [self.rows[number][name] for number in numbers]

    @precondition(lambda self: self.counted and self.names)
    @rule(data=st.data(), held=st.booleans())
    def reverse_assigned_columns(self, data: st.DataObject, held: bool) -> None:
        """Compute in place what dask slices, and what this package does."""
        name = data.draw(st.sampled_from(self.names), "column")
        ds = self.ds.persist() if held else self.ds
        if self.ds[name].dtype.kind in "if":
            found = ds.assign(reversed=ds[name] * 2).rows[::-1].compute()["reversed"]
            assert listed(found) == listed(2 * np.array([row[name] for row in self.rows[::-1]], ds[name].dtype))
        found = ds.assign(row=np.arange(len(self.rows))).rows[::-1].compute()["row"]
        assert found.tolist() == [*range(len(self.rows))][::-1]
        if find_spec("xarray"):
            variable = ds[[name]].to_xarray()[name]
            last_first = variable.isel({variable.dims[0]: slice(None, None, -1)}).values
            assert listed(last_first) == [row[name] for row in self.rows[::-1]]

    @rule(number=st.integers(0, 4))
    def head(self, number: int) -> None:
        self.check(self.ds.head(number), self.rows[:number])

    @precondition(lambda self: self.counted and self.rows and self.names)
    @rule(size=st.integers(1, 4))
    def batches(self, size: int) -> None:
        found = [
            {name: listed(block.views() if isinstance(block, RaggedBlock) else block) for name, block in batch.items()}
            for batch in self.ds.batches(size)
        ]
        for name in self.names:
            assert [value for batch in found for value in batch[name]] == [row[name] for row in self.rows]

    def check(self, columns: dict[str, Any], rows: list[Record]) -> None:
        assert {name: listed(column) for name, column in columns.items()} == {
            name: [row[name] for row in rows] for name in self.names
        }

    @invariant()
    def has_the_rows_of_the_list(self) -> None:
        arrays, slices, twice = dict(self.ds), [], [0, 0] if self.rows else []
        if self.counted:
            assert sum(self.ds.chunks) == self.ds.nrows == len(self.rows)
            # Slices of dask lose rows across empty chunks.
            assert all(self.ds.chunks) or self.ds.chunks == (0,)
            assert all(array.chunks[0] == (0,) or all(array.chunks[0]) for array in arrays.values())
            slices = [array[key] for array in [*arrays.values()][:1] for key in (slice(None, None, -1), twice)]
        with dask.config.set(scheduler="sync"):
            self.check(self.ds.compute(), self.rows)
            columns, found = dask.compute(arrays, slices)
        self.check(columns, self.rows)
        expected = (self.rows[::-1], [self.rows[number] for number in twice]) if slices else ()
        for column, rows in zip(found, expected, strict=True):
            assert listed(column) == [row[self.names[0]] for row in rows]


ITEMS = {"v": dtf.VarLenFeature("int64")}


def items_of(folder: Path, rows: list[list[int]]) -> dtf.Dataset:
    dtf.to_tfrecord({"v": rows}, folder / "items.tfrecord", features=ITEMS)
    return dtf.read_tfrecord(folder / "items.tfrecord", ITEMS, chunks=1)


def test_a_frame_with_empty_partitions_has_no_empty_chunk() -> None:
    pandas, frames = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    parts = [pandas.DataFrame({"v": rows}, dtype="int64") for rows in ([], [10, 11, 12], [], [13])]
    ds = dtf.Dataset.from_arrays(frames.from_delayed([dask.delayed(part) for part in parts], meta=parts[0]))
    assert ds.chunks == ds["v"].chunks[0] == (3, 1)
    assert ds["v"][::-1].compute().tolist() == [13, 12, 11, 10]


@pytest.mark.parametrize("blocks", [False, True])
def test_records_without_any_item_have_one_empty_chunk(tmp_path: Path, blocks: bool) -> None:
    ds = items_of(tmp_path, [[], [], []])
    items = (ds.persist() if blocks else ds).explode(["v"])
    items = items.assign(a=items["v"] * 2)
    assert items.chunks == (0,)
    assert items["v"][[]].compute().tolist() == items.rows[:].compute()["a"].tolist() == []
    assert list(items.batches(2)) == []
    assert len(items.as_sequence()) == 0
    assert items.map_blocks(double).compute()["a"].tolist() == []
    assert items.head()["v"].tolist() == []
    items.to_zarr(tmp_path / "items.zarr")
    assert dtf.from_zarr(tmp_path / "items.zarr").nrows == 0


@pytest.mark.parametrize("scheduler", ["threads", "sync"])
def test_rows_that_an_array_lacks_are_noticed(scheduler: str, tmp_path: Path) -> None:
    """An array may declare more rows than its chunks have: NumPy would repeat one row, or leave memory unwritten."""
    ds = items_of(tmp_path, [[10, 11, 12], [], [13]]).explode(["v"])
    short = da.map_blocks(lambda block: block[:1], ds["v"], dtype="int64")
    with dask.config.set(scheduler=scheduler), pytest.raises(dtf.SchemaError, match=r"shape|same number of rows"):
        ds.assign(a=short).compute()


# Columns of assigned arrays are divided anew where they are stored.
@pytest.mark.filterwarnings("ignore::dask.array.PerformanceWarning")
@pytest.mark.parametrize("examples", rising(6, 40, 1000))
def test_operations_give_the_rows_that_lists_give(tmp_path: Path, examples: int) -> None:
    class InFolder(DatasetStates):
        folder = tmp_path

    run: Callable[[], None] = InFolder.TestCase("runTest").runTest
    InFolder.TestCase.settings = settings(max_examples=examples, stateful_step_count=8, phases=[Phase.generate])
    run()
