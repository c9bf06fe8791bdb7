"""Arrow record batches of a Dataset, and Awkward Arrays: equal to NumPy, without copies, decoded ahead."""

from __future__ import annotations

import gc
import importlib
import json
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.any_columns import any_features, dataset_of, every_column, rows_like
from support.arrow_rows import check_chunks, check_table
from support.damage import flip
from support.golden import shard, spec
from support.waiting import wait_until

import dask_tfrecord as dtf
from dask_tfrecord.blocks import BytesBlock, RaggedBlock
from dask_tfrecord.columns.conversions import feature_of
from dask_tfrecord.errors import CorruptRecordError, FeatureError, SchemaError

X = {"x": dtf.FixedLenFeature((), "int64")}


@pytest.mark.parametrize(
    "read",
    [
        lambda ds: pa.Table.from_batches(ds.to_arrow_batches(), ds.to_arrow_batches().schema),
        lambda ds: pa.RecordBatchReader.from_stream(ds).read_all(),
        lambda ds: pa.table(ds.to_arrow_batches(tensors=False)),
        lambda ds: pa.table(ds.persist(scheduler="sync")),
    ],
    ids=["batches", "reader", "lists", "held"],
)
def test_every_reader_has_the_arrays(read: Callable[[dtf.Dataset], pa.Table]) -> None:
    ds = every_column()
    check_table(read(ds), ds.compute())
    assert [batch.num_rows for batch in ds.to_arrow_batches()] == [4, 5]
    assert ds.to_arrow_batches(tensors=False).schema.field("padded").type == pa.list_(pa.list_(pa.uint8(), 2), 3)
    empty = every_column((0,))
    check_table(read(empty), empty.compute())


@given(st.data())
def test_any_columns_equal_numpy(data: st.DataObject) -> None:
    features = data.draw(st.dictionaries(st.sampled_from("abc"), any_features(), min_size=1, max_size=3))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    blocks = {name: rows_like(feature, 6, rng) for name, feature in features.items()}
    ds = dataset_of(blocks, features, data.draw(st.sampled_from([(6,), (2, 4), (0, 6)])))
    with dask.config.set(scheduler="sync"):
        arrays, table = ds.compute(), pa.table(ds)
        table.validate(full=True)
        check_table(table, arrays)
        if find_spec("awkward"):
            check_chunks(ds, arrays)


def test_values_and_offsets_are_not_copied() -> None:
    numbers, dense = np.arange(12, dtype=np.float32), np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    splits, outer = np.array([0, 5, 5, 9, 12]), np.array([0, 1, 3, 3, 4])
    data, ends = np.frombuffer(b"abcdef", np.uint8), np.array([0, 1, 1, 4, 6])
    half = np.arange(8, dtype=np.float16).reshape(4, 2)
    made: dict[str, tuple[Any, list[Any]]] = {
        "ragged": (RaggedBlock(numbers, splits), [splits, numbers]),
        "nested": (RaggedBlock(RaggedBlock(numbers, splits), outer), [outer, splits, numbers]),
        "bytes": (BytesBlock(data, ends, (4,)), [ends, data]),
        "tensor": (dense, [dense]),
        "vector": (half, [half]),
    }
    features = {name: feature_of(block, "block") for name, (block, _) in made.items()}
    rows = dtf.Dataset.from_arrays({"row": np.arange(4)})
    ds = rows.map_blocks(lambda given: {name: block for name, (block, _) in made.items()}, features)
    with dask.config.set(scheduler="sync"):
        (batch,) = ds.to_arrow_batches()
    for name, (_, arrays) in made.items():
        wanted = [array.ctypes.data for array in arrays]
        assert [buffer.address for buffer in batch[name].buffers() if buffer is not None] == wanted
        if find_spec("awkward"):
            (chunk,) = ds[[name]].to_awkward()
            buffers = importlib.import_module("awkward").to_buffers(chunk[name])[2]
            assert {array.ctypes.data for array in buffers.values()} == {*wanted}
    assert batch.schema.field("tensor").type == pa.fixed_shape_tensor(pa.uint8(), (2, 3))
    assert batch.schema.field("vector").type == pa.list_(pa.float16(), 2)
    assert (batch["tensor"].to_numpy_ndarray() == dense).all()


def test_fields_have_the_feature_and_its_class_names() -> None:
    schema = dtf.Schema(
        {"label": dtf.FixedLenFeature((), "int64"), "image": dtf.ImageFeature((2, 3, 1))},
        classes={"label": ["Katze", "猫"]},
    )
    blocks = {"label": np.arange(2), "image": np.zeros((2, 2, 3, 1), np.uint8)}
    ds = dtf.Dataset.from_arrays({"row": np.arange(2)}).map_blocks(lambda given: blocks, schema)
    found = ds.to_arrow_batches().schema
    metadata = {field.name: {k.decode(): v.decode() for k, v in field.metadata.items()} for field in found}
    assert metadata["image"] == {
        "feature": "ImageFeature(shape=(2, 3, 1))",
        "feature_class": "ImageFeature",
        "dtype": "uint8",
        "shape": "[2, 3, 1]",
    }
    assert metadata["label"]["feature_class"] == "FixedLenFeature"
    assert json.loads(metadata["label"]["class_names"]) == ["Katze", "猫"]
    assert dtf.Schema.from_json(found.metadata[b"dask_tfrecord.schema"].decode()) == ds.schema


def test_rows_that_are_not_counted(golden: Path) -> None:
    ds = dtf.read_tfrecord(shard(golden, "varlen"), **spec(golden, "varlen"), counts=None)
    assert ds.nrows is None
    check_table(pa.table(ds), ds.compute())


def test_columns_that_no_batch_has_are_refused(tmp_path: Path) -> None:
    exports: list[Callable[[dtf.Dataset], object]] = [
        dtf.Dataset.to_arrow_batches,
        dtf.Dataset.to_dataframe,
        lambda ds: ds.to_parquet(tmp_path / "a"),
    ]
    for export in exports:
        with pytest.raises(SchemaError, match=r"column 'a\\x00b': Arrow ends names at a zero byte"):
            export(dtf.Dataset.from_arrays({"a\0b": [1], "a": [2]}))
    for export in (*exports, *([dtf.Dataset.to_awkward] if find_spec("awkward") else [])):
        with pytest.raises(SchemaError, match=r"rows without columns can't become record (batches|arrays)"):
            export(dtf.Dataset.from_arrays({"row": np.arange(3)})[[]])


def test_a_requested_schema_casts_columns() -> None:
    ds = every_column()[["ragged", "bytes", "text", "dense"]]
    wanted = pa.schema(
        {"ragged": pa.list_(pa.int64()), "bytes": pa.binary(), "text": pa.string(), "dense": pa.list_(pa.float64(), 2)}
    )
    table = pa.RecordBatchReader.from_stream(ds, schema=wanted).read_all()
    assert table.schema == wanted
    assert table.to_pylist() == pa.table(ds).cast(wanted).to_pylist()
    with pytest.raises(ValueError, match="names are not matching"):
        pa.RecordBatchReader.from_stream(ds, schema=pa.schema({"other": pa.int64()}))
    swapped = ds.assign(big=np.arange(9).astype(">i4"), more=da.arange(9, chunks=3) > 4)
    check_table(pa.table(swapped), swapped.compute())


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Shard whose record 812 is damaged; all records have one size."""
    path = tmp_path / "damaged.tfrecord"
    dtf.to_tfrecord({"x": np.arange(1000, 2000)}, path)
    flip(path, path.stat().st_size // 1000 * 812 + 14)
    return path


def test_an_error_is_that_of_the_library(damaged: Path) -> None:
    ds = dtf.read_tfrecord(damaged, X, chunks=100)
    batches = ds.to_arrow_batches()
    assert [next(batches).num_rows for _ in range(8)] == [100] * 8
    with pytest.raises(CorruptRecordError, match=r"damaged.tfrecord: record 812.*CRC") as failed:
        next(batches)
    assert failed.value.place is not None
    with pytest.raises(StopIteration):
        next(batches)
    with pytest.raises(pa.ArrowException, match=r"damaged.tfrecord: record 812.*CRC"):
        pa.table(ds)


def test_few_chunks_are_decoded_ahead_and_none_after_the_end(tmp_path: Path) -> None:
    dtf.to_tfrecord({"x": np.arange(100)}, tmp_path / "x.tfrecord")
    calls: list[int] = []

    def counted(given: Mapping[str, Any]) -> Mapping[str, Any]:
        calls.append(len(given["x"]))
        return given

    ds = dtf.read_tfrecord(tmp_path / "x.tfrecord", X, chunks=1).map_blocks(counted, X)
    with dask.config.set(scheduler="threads", num_workers=3):
        with ds.to_arrow_batches() as batches:
            assert not calls
            assert next(batches)["x"].to_pylist() == [0]
            time.sleep(0.05)
            assert 1 <= len(calls) <= 5
            assert next(batches)["x"].to_pylist() == [1]
        assert len(calls) <= 6
        seen = len(calls)
        time.sleep(0.05)
        assert len(calls) == seen
        with pytest.raises(StopIteration):
            next(batches)
        # A consumer of the stream that stops early releases it.
        calls.clear()
        reader = pa.RecordBatchReader.from_stream(ds)
        assert reader.read_next_batch().num_rows == 1
        del reader
        gc.collect()
        assert len(calls) <= 5
    calls.clear()
    with dask.config.set(scheduler="sync"):
        batches = ds.to_arrow_batches()
        next(batches)
        assert len(calls) == 1
        del batches
        gc.collect()
    time.sleep(0.05)
    assert len(calls) == 1


@pytest.mark.slow
@pytest.mark.integration
def test_a_cluster_decodes_and_reports_errors(client: Any, damaged: Path) -> None:
    ds = dtf.read_tfrecord(damaged, X, chunks=100)
    good = ds.rows[:800]
    assert pa.table(good)["x"].to_pylist() == list(range(1000, 1800))
    held = good.persist()
    assert pa.table(held.assign(y=held["x"] + 1))["y"].to_pylist() == list(range(1001, 1801))
    with pytest.raises(CorruptRecordError, match="record 812"):
        list(ds.to_arrow_batches())
    batches = ds.to_arrow_batches()
    next(batches)
    batches.close()
    del held
    wait_until(lambda: not client.run_on_scheduler(task_names), state=lambda: client.run_on_scheduler(task_names))


def task_names(dask_scheduler: Any) -> list[str]:
    return [str(key) for key in dask_scheduler.tasks]


# -- Awkward Arrays


def test_types_of_awkward_columns() -> None:
    pytest.importorskip("awkward")
    wanted = {
        "dense": "2 * float32",
        "text": "string",
        "bytes": "bytes",
        "ragged": "var * int64",
        "boxes": "var * 4 * float32",
        "words": "var * bytes",
        "nested": "var * var * 2 * int8",
        "image": "{data: var * uint8, shape: 3 * int64}",
    }
    chunk = next(every_column()[list(wanted)].to_awkward())
    assert {name: str(chunk[name].type).removeprefix("4 * ") for name in wanted} == wanted


def test_columns_of_a_group_are_lists_of_records(tmp_path: Path) -> None:
    ak = pytest.importorskip("awkward")
    path = tmp_path / "steps.tfrecord"
    features = {
        "steps/a": dtf.VarLenFeature("int64"),
        "id": dtf.FixedLenFeature((), "int64"),
        "steps/b": dtf.VarLenFeature("float32", shape=(-1, 2)),
        "name": dtf.FixedLenFeature((), "int64", default_value=0),
    }
    schema = dtf.Schema(features, groups={"steps": ["steps/a", "steps/b"]})
    b = np.arange(6, dtype=np.float32).reshape(3, 2)
    columns = {"steps/a": [[0], [], [1, 2]], "id": np.arange(3), "steps/b": [b[:1], b[:0], b[1:]]}
    dtf.to_tfrecord(columns, path)
    (chunk,) = dtf.read_tfrecord(path, schema).to_awkward()
    assert ak.fields(chunk) == ["steps", "id", "name"]
    assert chunk["steps"].to_list()[2] == [{"a": 1, "b": [2.0, 3.0]}, {"a": 2, "b": [4.0, 5.0]}]
    with pytest.raises(SchemaError, match="group 'name' and a column have the same name"):
        dtf.read_tfrecord(path, dtf.Schema(features, groups={"name": ["steps/a", "steps/b"]})).to_awkward()
    dtf.to_tfrecord({**columns, "steps/a": [[0], [1], [2]]}, path, mode="w")
    ds = dtf.read_tfrecord(path, schema, chunks=1)
    unequal = "feature 'steps/b' has 0 items, expected 1 as in 'steps/a'"
    for rows, where in (
        (ds, rf"{path}: record 1 \(byte 74\): {unequal}"),
        (ds.rows[[0, 2, 1]], rf"{path}: record 2 .*: feature 'steps/b' has"),
        (dtf.read_tfrecord(path, schema, counts=None), f"{path}: row 1 of chunk 0: {unequal}"),
        (ds.persist(), "rows in memory: record 1: feature"),
    ):
        with pytest.raises(FeatureError, match=where):
            list(rows.to_awkward())
