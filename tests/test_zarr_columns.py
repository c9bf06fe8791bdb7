"""Zarr stores of columns of every kind: bytes of any shape, rows of rows, arrays that each have their own shape."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
import zarr.storage
from hypothesis import given
from hypothesis import strategies as st
from oracle import write_oracle
from support.any_columns import FEATURES, any_features, dataset_of, rows_like
from support.store_round_trip import assert_identity, assert_same, assert_same_array

import dask_tfrecord as dtf
from dask_tfrecord.columns.blocks import zero_rows
from dask_tfrecord.errors import ResumeError, SchemaError
from dask_tfrecord.features import Feature
from dask_tfrecord.messages import SequenceExample
from dask_tfrecord.settings import replaced_limits

# Features beyond lists of values, written by TensorFlow and read without a spec.
GOLDEN = [
    "defaults",
    "fixed_len_sequence",
    "sparse_feature",
    "ragged_partitions",
    "sequence_example",
    "sequence_ragged_gzip",
    "serialized_tensors",
    "images",
]
SIZES = (7, 0, 1, 13, 4)


@pytest.fixture(scope="module")
def every() -> dtf.Dataset:
    """Every kind of column, in chunks of differing sizes."""
    rng = np.random.default_rng(5)
    blocks = {name: rows_like(feature, sum(SIZES), rng) for name, feature in FEATURES.items()}
    return dataset_of(blocks, FEATURES, SIZES)


# ------------------------------------------------------------------------------------------------- the same again


@st.composite
def grids(draw: st.DrawFn) -> dict[str, int]:
    chunk = draw(st.integers(1, 9))
    return draw(st.sampled_from([{}, {"chunks": chunk}, {"chunks": chunk, "shards": 2 * chunk}, {"shards": chunk}]))


@pytest.mark.slow
@given(
    st.lists(any_features(), min_size=1, max_size=4),
    st.lists(st.sampled_from([0, 1, 2, 5, 11]), min_size=1, max_size=4),
    grids(),
    st.sampled_from([64, 500, 1 << 20]),
    st.integers(0, 1 << 30),
)
def test_any_columns(features: list[Feature], sizes: list[int], grid: dict[str, int], nbytes: int, seed: int) -> None:
    named = {f"column/{number}": feature for number, feature in enumerate(features)}
    rng = np.random.default_rng(seed)
    dataset = dataset_of({name: rows_like(of, sum(sizes), rng) for name, of in named.items()}, named, sizes)
    small = {"chunk_nbytes": nbytes // 4, "read_nbytes": nbytes, "granule_nbytes": nbytes // 2}
    with replaced_limits(write_unit_nbytes=nbytes, **small), dask.config.set(scheduler="sync"):
        back = assert_identity(dataset, {}, **grid)
        # Rows that are read from a store in spans, and a selection of them, are written again.
        assert_identity(back.rows[1:], {}, chunks=3)
        picked = rng.permutation(sum(sizes))
        assert_same(back.rows[picked].compute(), dataset.rows[picked].compute())


@pytest.mark.parametrize(
    "grid",
    [
        {"chunks": 4},
        pytest.param({"chunks": 3, "shards": 9}, marks=pytest.mark.slow),
        pytest.param({}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_every_kind_side_by_side(every: dtf.Dataset, tmp_path: Path, grid: dict[str, int]) -> None:
    back = assert_identity(every, tmp_path / "store.zarr", **grid)
    assert {name: array.dtype for name, array in back.items()} == {name: array.dtype for name, array in every.items()}
    whole = every.compute()
    for name in FEATURES:
        assert_same_array(back[name][3:9].compute(), whole[name][3:9])


def test_kept_chunks_and_no_rows(every: dtf.Dataset, tmp_path: Path) -> None:
    assert_identity(every.persist(), tmp_path / "kept.zarr", chunks=9)
    assert_identity(every.rows[:0], tmp_path / "none.zarr")


def test_steps_and_class_names_come_back(tmp_path: Path) -> None:
    message = SequenceExample()
    message.context.feature["label"].int64_list.value.append(1)
    for step in range(3):
        message.feature_lists.feature_list["tokens"].feature.add().int64_list.value.extend(range(step))
        message.feature_lists.feature_list["points"].feature.add().float_list.value.extend([step, 0.5])
    write_oracle(
        tmp_path / "shard", [message.SerializeToString(), SequenceExample(context=message.context).SerializeToString()]
    )
    schema = dtf.Schema(
        {"label": dtf.FixedLenFeature((), "uint8")},
        sequence_features={
            "tokens": dtf.VarLenFeature("int64"),
            "points": dtf.FixedLenSequenceFeature((2,), "float32", allow_missing=True),
        },
        classes={"label": ["cat", "dog"], "tokens": ["the", "a"]},
    )
    dataset = dtf.read_tfrecord(tmp_path / "shard", schema)
    back = assert_identity(dataset, tmp_path / "store.zarr", chunks=1)
    assert back.schema.classes == dataset.schema.classes == {"label": ("cat", "dog"), "tokens": ("the", "a")}
    assert back.schema["tokens"] == dtf.VarLenFeature("int64", shape=(-1, -1))
    assert back["points.lengths"].compute().tolist() == [3, 0]
    noted: Any = zarr.open_group(tmp_path / "store.zarr", mode="r").attrs["dask_tfrecord"]
    assert dtf.Schema.from_json(json.dumps(noted["schema"])).classes == back.schema.classes
    assert back[["tokens"]].schema.classes == {"tokens": ("the", "a")}
    assert back.assign(label=np.zeros(2)).schema.classes == {"tokens": ("the", "a")}


# ------------------------------------------------------------------------------------------------ what others read


def test_names_of_levels(every: dtf.Dataset, tmp_path: Path) -> None:
    every.to_zarr(tmp_path / "store.zarr", chunks=6)
    group = zarr.open_group(tmp_path / "store.zarr", mode="r")
    parts: dict[str, list[str]] = {}
    for array in group.array_keys():
        name, _, part = array.partition(".")
        parts.setdefault(name, []).append(part)
    one, ragged, own = [""], ["row_splits", "values"], ["row_splits", "shapes", "values"]
    assert {name: sorted(found) for name, found in parts.items()} == {
        **dict.fromkeys(("dense", "raw", "text", "padded", "views", "pairs", "captions"), one),
        **dict.fromkeys(("bytes", "pair", "none", "steps", "names", "labels"), ragged),
        **dict.fromkeys(("ragged", "boxes", "frames", "samples", "states", "phrases", "grids"), ragged),
        "words": ["byte_splits", *ragged],
        "grid": ["byte_splits", *ragged],
        **dict.fromkeys(("image", "tensor", "columns"), own),
        **{key: ["item_shapes", "row_splits", "row_splits_1", "values"] for key in ("crops", "blocks", "tables")},
        "lines": ["byte_splits", "item_shapes", "row_splits", "row_splits_1", "values"],
        "nested": ["row_splits", "row_splits_1", "values"],
        "poses": ["row_splits", "row_splits_1", "values"],
        "notes": ["row_splits", "row_splits_1", "row_splits_2", "values"],
        "deep": ["byte_splits", "row_splits", "row_splits_1", "row_splits_2", "values"],
        "strings": ["byte_splits", *own],
    }
    whole = every.compute()
    read = {name: np.asarray(array[:]) for name, array in group.arrays()}
    for row, (start, stop) in enumerate(pairwise(read["nested.row_splits"])):
        inner = pairwise(read["nested.row_splits_1"][start : stop + 1])
        found = [read["nested.values"][first:past].tolist() for first, past in inner]
        assert found == [values.tolist() for values in whole["nested"][row]]
    for row, (start, stop) in enumerate(pairwise(read["tensor.row_splits"])):
        assert read["tensor.values"][start:stop].tobytes() == whole["tensor"][row].tobytes()
        assert tuple(read["tensor.shapes"][row]) == whole["tensor"][row].shape
    data, ends = read["strings.values"].tobytes(), read["strings.byte_splits"]
    strings = [data[start:stop] for start, stop in pairwise(ends)]
    for row, (start, stop) in enumerate(pairwise(read["strings.row_splits"])):
        assert strings[start:stop] == whole["strings"][row].ravel().tolist()


def test_xarray_opens_every_kind(every: dtf.Dataset, tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    every.to_zarr(tmp_path / "store.zarr", chunks=6)
    with xr.open_zarr(tmp_path / "store.zarr") as opened:
        assert not opened.coords
        assert opened.sizes["record"] == sum(SIZES)
        assert opened["padded"].dims == ("record", "padded.dim_1", "padded.dim_2")
        assert opened["nested.row_splits_1"].dims == ("nested.row_split_1",)
        assert opened["nested.values"].dims == ("nested.value", "nested.dim_1")
        assert opened["image.shapes"].dims == ("record", "image.axis")
        assert opened["image.shapes"].chunksizes["record"] == (6, 6, 6, 6, 1)
        assert opened["strings.byte_splits"].dims == ("strings.byte_split",)
        shapes = [image.shape for image in every["image"].compute()]
        assert list(map(tuple, opened["image.shapes"].to_numpy().tolist())) == shapes


# ------------------------------------------------------------------------------------------------ what Zarr lacks


@pytest.mark.parametrize(
    "feature",
    [dtf.RawFeature((2,), "bfloat16"), dtf.RawFeature((-1,), "bfloat16"), dtf.TensorFeature((-1,), "bfloat16")],
    ids=str,
)
def test_bfloat16_is_refused_before_anything_is_read(feature: Feature, tmp_path: Path) -> None:
    pytest.importorskip("ml_dtypes")
    dataset = dtf.Dataset.from_arrays({"row": np.arange(3)}).map_blocks(_never, {"x": feature})
    with pytest.raises(SchemaError, match="cannot write column 'x': Zarr has no name for dtype bfloat16"):
        dataset.to_zarr(tmp_path / "store.zarr")
    assert not list(tmp_path.iterdir())


def _never(blocks: dict[str, Any]) -> dict[str, Any]:
    raise AssertionError("nothing is read")


def test_bfloat16_as_float32(tmp_path: Path) -> None:
    ml_dtypes: Any = pytest.importorskip("ml_dtypes")
    values = np.arange(6, dtype=ml_dtypes.bfloat16)
    blocks = {"x": values.reshape(3, 2), "y": dtf.RaggedBlock(values, np.array([0, 0, 5, 6]))}
    features = {"x": dtf.RawFeature((2,), "bfloat16"), "y": dtf.VarLenFeature("bfloat16")}
    dataset = dataset_of(blocks, features, (2, 1))
    with pytest.raises(SchemaError, match=r"convert it to float32 with map_blocks and blocks\['x'\]"):
        dataset.to_zarr(tmp_path / "store.zarr")
    back = assert_identity(dataset.map_blocks(as_float32), tmp_path / "store.zarr", chunks=2)
    assert back["x"].compute().tolist() == [[0, 1], [2, 3], [4, 5]]
    assert [row.tolist() for row in back["y"].compute()] == [[], [0, 1, 2, 3, 4], [5]]


def as_float32(blocks: dict[str, Any]) -> dict[str, Any]:
    """Conversion that the error recommends."""
    return {
        "x": blocks["x"].astype("float32"),
        "y": dtf.RaggedBlock(blocks["y"].values.astype("float32"), blocks["y"].row_splits),
    }


def test_blocks_without_rows_can_be_stored(tmp_path: Path) -> None:
    blocks = {name: zero_rows(feature) for name, feature in FEATURES.items()}
    assert_identity(dataset_of(blocks, FEATURES, (0,)), zarr.storage.MemoryStore())


# ------------------------------------------------------------------------------------------------ arrays of others


def test_arrays_of_zarr_are_read_as_they_are_written(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "from.zarr", mode="w")
    image = group.create_array("image", shape=(90, 4, 3), chunks=(20, 2, 3), dtype="float32")
    text = group.create_array("text", shape=(90,), chunks=(30,), dtype="string")
    rows = {"image": image, "text": text, "number": np.arange(90)}
    dataset = dtf.Dataset.from_arrays(rows).assign(again=text)
    image[:] = np.arange(1080).reshape(90, 4, 3)  # were they read already, these would be zeros
    text[:] = np.array([f"row {row}" for row in range(90)], np.dtypes.StringDType())
    dataset.to_zarr(tmp_path / "to.zarr", chunks=7)
    back = dtf.from_zarr(tmp_path / "to.zarr")
    for name, array in (rows | {"again": text}).items():
        assert_same_array(back[name].compute(), np.asarray(array[:]))
    dtf.to_zarr(rows, tmp_path / "begun.zarr", resume=True)
    with pytest.raises(ResumeError):  # they may have changed
        dtf.to_zarr(rows, tmp_path / "begun.zarr", resume=True)


def test_arrays_of_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    rows = {"number": np.arange(100), "vector": np.arange(300, dtype="f4").reshape(100, 3)}
    with h5py.File(tmp_path / "some.h5", "w") as file:
        file["vector"] = rows["vector"]
        file.create_dataset("number", data=rows["number"], chunks=(32,), compression="gzip")
        dtf.to_zarr(file, tmp_path / "store.zarr", chunks=7)
        dtf.to_tfrecord(file, tmp_path / "some.tfrecord")
    for back in (dtf.from_zarr(tmp_path / "store.zarr"), dtf.read_tfrecord(tmp_path / "some.tfrecord")):
        assert_same(back.compute(), rows)


def test_strings_of_a_fixed_width_are_text(tmp_path: Path) -> None:
    given = np.array(["ä", "", "b\0c", "long"] * 5)
    arrays = {"numpy": given, "dask": da.from_array(given, chunks=6)}
    dtf.to_zarr(arrays, tmp_path / "store.zarr")
    dtf.to_tfrecord(arrays, tmp_path / "some.tfrecord")
    features = {name: dtf.TextFeature() for name in arrays}
    for back in (dtf.from_zarr(tmp_path / "store.zarr"), dtf.read_tfrecord(tmp_path / "some.tfrecord", features)):
        for name in arrays:
            assert back[name].compute().tolist() == given.tolist()


class _ReadingStore(zarr.storage.WrapperStore[Any]):
    """Store that sums the bytes that are read."""

    # Of all copies: zarr opens a store read-only as another object.
    nbytes: ClassVar[int] = 0

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        found = await self._store.get(key, prototype, byte_range)
        type(self).nbytes += 0 if found is None else len(found)
        return found

    def with_read_only(self, read_only: bool = False) -> _ReadingStore:
        return _ReadingStore(self._store.with_read_only(read_only))


def test_each_column_costs_as_much_among_many() -> None:
    """The metadata of the group grow with the columns, and are not read for each of them."""
    read = {}
    for columns in (40, 320):
        store, before = _ReadingStore(zarr.storage.MemoryStore()), _ReadingStore.nbytes
        dtf.to_zarr({f"column {number}": np.arange(3) for number in range(columns)}, store)
        read[columns] = (_ReadingStore.nbytes - before) / columns
    assert 0 < read[320] < 1.5 * read[40]


def test_a_name_without_a_feature_is_compared_with_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> str:
        raise AssertionError("compares names although there is no error")

    features = {f"g/{number}": dtf.VarLenFeature("int64") for number in range(3)}
    ds = dtf.Dataset.from_arrays({name: [[1, 2], [3]] for name in features}, features)
    monkeypatch.setattr("dask_tfrecord.schema.near_misses", fail)
    store = zarr.storage.MemoryStore()
    ds.to_zarr(store, groups={"g": list(features)}, fill_values=dict.fromkeys(features, 1))
    assert dtf.from_zarr(store).schema.groups == {"g": tuple(features)}
