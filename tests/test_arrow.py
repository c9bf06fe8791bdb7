"""Arrow record batches of a Dataset: equal to NumPy, without copies, decoded ahead, and read by other libraries."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.any_columns import FEATURES, any_features, dataset_of, rows_like
from support.arrow_rows import check_table, same_lists
from support.corpus import BASKERVILLE
from support.golden import CASES, shard, spec
from support.waiting import wait_until

import dask_tfrecord as dtf
from dask_tfrecord.columns.blocks import BytesBlock, RaggedBlock
from dask_tfrecord.errors import CorruptRecordError, SchemaError

READERS: dict[str, Callable[[Any], pa.Table]] = {
    "table": pa.table,
    "batches": lambda ds: pa.Table.from_batches(ds.to_arrow_batches(), ds.to_arrow_batches().schema),
    "reader": lambda ds: pa.RecordBatchReader.from_stream(ds).read_all(),
    "lists": lambda ds: pa.table(ds.to_arrow_batches(tensors=False)),
}


def every_column(rows: int = 9, sizes: tuple[int, ...] = (4, 0, 5)) -> dtf.Dataset:
    rng = np.random.default_rng(1)
    return dataset_of({name: rows_like(each, rows, rng) for name, each in FEATURES.items()}, FEATURES, sizes)


def test_every_layout_equals_numpy() -> None:
    ds = every_column()
    for read in READERS.values():
        check_table(read(ds), ds.compute())
    assert [batch.num_rows for batch in ds.to_arrow_batches()] == [4, 5]
    lists = ds.to_arrow_batches(tensors=False).schema
    assert lists.field("padded").type == pa.list_(pa.list_(pa.uint8(), 2), 3)
    empty = every_column(0, (0,))
    check_table(pa.table(empty), empty.compute())


@given(st.data())
def test_any_columns_equal_numpy(data: st.DataObject) -> None:
    features = data.draw(st.dictionaries(st.sampled_from("abc"), any_features(), min_size=1, max_size=3))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    blocks = {name: rows_like(feature, 6, rng) for name, feature in features.items()}
    ds = dataset_of(blocks, features, data.draw(st.sampled_from([(6,), (2, 4), (0, 6)])))
    table = pa.table(ds)
    table.validate(full=True)
    check_table(table, ds.compute())


def test_polars_and_duckdb_read_what_numpy_has(golden: Path, corpus: Path) -> None:
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    files = [dtf.read_tfrecord(corpus / f"{BASKERVILLE}/train-0.tfr").rows[:3]]
    files += [dtf.read_tfrecord(shard(golden, case), **spec(golden, case), chunks=13) for case in CASES]
    for ds in files:
        table, computed = pa.table(ds), ds.compute()
        frame = polars.DataFrame(ds.to_arrow_batches())
        assert polars.from_arrow(ds).struct.unnest().equals(frame, null_equal=True)
        # Types that DuckDB does not read from Arrow.
        half = [name for name, array in computed.items() if array.dtype == np.float16]
        rest = ds[[name for name in ds if name not in half]]
        relation = duckdb.sql("from rest").fetchall() if len(rest) else []
        for name in ds:
            assert same_lists(frame[name].to_list(), table[name].to_pylist()), name
        for number, name in enumerate(rest):
            assert same_lists([row[number] for row in relation], table[name].to_pylist()), name
        assert frame.height == ds.nrows


def test_values_and_offsets_are_not_copied() -> None:
    numbers, dense = np.arange(12, dtype=np.float32), np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    splits, outer = np.array([0, 5, 5, 9, 12]), np.array([0, 1, 3, 3, 4])
    data, ends = np.frombuffer(b"abcdef", np.uint8), np.array([0, 1, 1, 4, 6])
    half = np.arange(8, dtype=np.float16).reshape(4, 2)
    made = {
        "ragged": RaggedBlock(numbers, splits),
        "nested": RaggedBlock(RaggedBlock(numbers, splits), outer),
        "bytes": BytesBlock(data, ends, (4,)),
        "tensor": dense,
        "vector": half,
    }
    rows = dtf.Dataset.from_arrays({"row": np.arange(4)})
    with dask.config.set(scheduler="sync"):
        (batch,) = rows.map_blocks(
            lambda given: made, {name: feature(block) for name, block in made.items()}
        ).to_arrow_batches()

    def addresses(name: str) -> list[int]:
        return [buffer.address for buffer in batch[name].buffers() if buffer is not None]

    def of(*arrays: Any) -> list[int]:
        return [array.ctypes.data for array in arrays]

    assert addresses("ragged") == of(splits, numbers)
    assert addresses("nested") == of(outer, splits, numbers)
    assert addresses("bytes") == of(ends, data)
    assert addresses("tensor") == of(dense)
    assert addresses("vector") == of(half)
    assert batch.schema.field("tensor").type == pa.fixed_shape_tensor(pa.uint8(), (2, 3))
    assert batch.schema.field("vector").type == pa.list_(pa.float16(), 2)
    assert (batch["tensor"].to_numpy_ndarray() == dense).all()


def feature(block: Any) -> Any:
    from dask_tfrecord.columns.user_blocks import feature_of

    return feature_of(block, "block")


def test_fields_have_the_feature_and_its_class_names(golden: Path) -> None:
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
    stored = dtf.Schema.from_json(found.metadata[b"dask_tfrecord.schema"].decode())
    assert stored == ds.schema
    tfds = dtf.read_tfrecord(golden.parent / "tfds" / "every" / "1.0.0", split="train")
    names = tfds.schema.classes["label"]
    label = tfds.to_arrow_batches().schema.field("label")
    assert json.loads(label.metadata[b"class_names"]) == list(names)


def test_rows_that_are_not_counted(golden: Path) -> None:
    arguments = spec(golden, "varlen")
    ds = dtf.read_tfrecord(shard(golden, "varlen"), **arguments, counts=None)
    assert ds.nrows is None
    check_table(pa.table(ds), ds.compute())


def test_a_name_that_arrow_would_cut_is_refused(tmp_path: Path) -> None:
    ds = dtf.Dataset.from_arrays({"a\0b": [1], "a": [2]})
    for export in (ds.to_arrow_batches, ds.to_dataframe, lambda: ds.to_parquet(tmp_path / "a")):
        with pytest.raises(SchemaError, match=r"column 'a\\x00b': Arrow ends names at a zero byte"):
            export()


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_backings_in_chunks(scheduler: str) -> None:
    ds = every_column().persist(scheduler="sync")
    both = ds.assign(big=np.arange(9).astype(">i4"), fill=da.arange(9, chunks=3) > 4)
    with dask.config.set(scheduler=scheduler):
        table = pa.table(both)
    check_table(table, both.compute())
    assert table.schema.field("big").type == pa.int32()


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


def test_rows_without_a_column_are_refused() -> None:
    with pytest.raises(SchemaError, match="rows without a column cannot be record batches"):
        every_column()[[]].to_arrow_batches()


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Shard whose record 812 is damaged."""
    path = tmp_path / "damaged.tfrecord"
    dtf.to_tfrecord({"x": np.arange(1000)}, path)
    offsets = [offset for offset, _ in _frames(path)]
    content = bytearray(path.read_bytes())
    content[offsets[812] + 14] ^= 1
    path.write_bytes(content)
    return path


def _frames(path: Path) -> list[tuple[int, int]]:
    found, offset, content = [], 0, path.read_bytes()
    while offset < len(content):
        length = int.from_bytes(content[offset : offset + 8], "little")
        found.append((offset, length))
        offset += 16 + length
    return found


def test_an_error_is_that_of_the_library(damaged: Path) -> None:
    ds = dtf.read_tfrecord(damaged, {"x": dtf.FixedLenFeature((), "int64")}, chunks=100)
    batches = ds.to_arrow_batches()
    assert [next(batches).num_rows for _ in range(8)] == [100] * 8
    with pytest.raises(CorruptRecordError, match=r"damaged.tfrecord: record 812.*CRC") as failed:
        next(batches)
    assert failed.value.place is not None
    with pytest.raises(StopIteration):
        next(batches)
    with pytest.raises(pa.ArrowException, match=r"damaged.tfrecord: record 812.*CRC"):
        pa.table(ds)


class Counted:
    """Function of `map_blocks` that counts its calls."""

    def __init__(self) -> None:
        self.calls, self.lock = 0, threading.Lock()

    def __call__(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        with self.lock:
            self.calls += len(given["x"])
        return given

    def __dask_tokenize__(self) -> object:
        return id(self)


def test_few_chunks_are_decoded_ahead_and_none_after_the_end(tmp_path: Path) -> None:
    dtf.to_tfrecord({"x": np.arange(100)}, tmp_path / "x.tfrecord")
    counted = Counted()
    read = dtf.read_tfrecord(tmp_path / "x.tfrecord", {"x": dtf.FixedLenFeature((), "int64")}, chunks=1)
    ds = read.map_blocks(counted, {"x": dtf.FixedLenFeature((), "int64")})
    with dask.config.set(scheduler="threads", num_workers=3):
        with ds.to_arrow_batches() as batches:
            assert counted.calls == 0
            assert next(batches)["x"].to_pylist() == [0]
            time.sleep(0.05)
            assert 1 <= counted.calls <= 5
            assert next(batches)["x"].to_pylist() == [1]
        assert counted.calls <= 6
        seen = counted.calls
        time.sleep(0.05)
        assert counted.calls == seen
        with pytest.raises(StopIteration):
            next(batches)
        # A consumer of the stream that stops early releases it.
        counted.calls = 0
        reader = pa.RecordBatchReader.from_stream(ds)
        assert reader.read_next_batch().num_rows == 1
        del reader
        gc.collect()
        assert counted.calls <= 5
    counted.calls = 0
    with dask.config.set(scheduler="sync"):
        batches = ds.to_arrow_batches()
        next(batches)
        assert counted.calls == 1
        del batches
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("dask-tfrecord")]


@pytest.mark.slow
@pytest.mark.integration
def test_a_cluster_decodes_and_reports_errors(client: Any, damaged: Path) -> None:
    ds = dtf.read_tfrecord(damaged, {"x": dtf.FixedLenFeature((), "int64")}, chunks=100)
    good = ds.rows[:800]
    assert pa.table(good)["x"].to_pylist() == list(range(800))
    held = good.persist()
    assert pa.table(held.assign(y=held["x"] + 1))["y"].to_pylist() == list(range(1, 801))
    with pytest.raises(CorruptRecordError, match="record 812"):
        list(ds.to_arrow_batches())
    batches = ds.to_arrow_batches()
    next(batches)
    batches.close()
    del held
    wait_until(lambda: not client.run_on_scheduler(task_names), state=lambda: client.run_on_scheduler(task_names))


def task_names(dask_scheduler: Any) -> list[str]:
    return [str(key) for key in dask_scheduler.tasks]
