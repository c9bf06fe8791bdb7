"""Parquet files of a Dataset: equal to its arrays, whole and verified; other tests repeat and fault the writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.any_columns import FEATURES, dataset_of, rows_like
from support.arrow_rows import check_table, same_lists
from support.commands import run, shown
from support.golden import shard, spec
from support.numbered_shards import damage
from support.paths import DATA

import dask_tfrecord as dtf
from dask_tfrecord.errors import CorruptRecordError, IncompleteStoreError, SchemaError

GOLDEN = ("scalars", "varlen", "fixed_shapes", "ragged_partitions")


def table(folder: Path) -> Any:
    return pq.read_table(sorted(folder.glob("*.parquet")))


def numbers(count: int = 100) -> dtf.Dataset:
    return dtf.Dataset.from_arrays({"x": np.arange(count), "y": np.arange(count) / 2})


@pytest.fixture
def records(tmp_path: Path) -> dtf.Dataset:
    dtf.to_tfrecord({"x": np.arange(100), "word": [b"a" * (row % 7) for row in range(100)]}, tmp_path / "x.tfrecord")
    features = {"x": dtf.FixedLenFeature((), "int64"), "word": dtf.FixedLenFeature((), "bytes")}
    return dtf.read_tfrecord(tmp_path / "x.tfrecord", features, chunks=30)


def test_a_file_is_a_chunk(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    blocks = {name: rows_like(each, 9, rng) for name, each in FEATURES.items()}
    ds = dataset_of(blocks, FEATURES, (4, 0, 5))
    ds.to_parquet(tmp_path / "out", tensors=False)
    found = sorted(tmp_path.glob("out/*"))
    assert [(path.name, pq.read_metadata(path).num_rows) for path in found] == [
        ("part.00000.parquet", 4),
        ("part.00001.parquet", 5),
    ]
    # Parquet lacks seconds and stores them as milliseconds.
    own, stored = ds.to_arrow_batches(tensors=False).schema, table(tmp_path / "out").schema
    seconds = [name for name in own.names if "timestamp[s]" in str(own.field(name).type)]
    assert [name for name in own.names if own.field(name) != stored.field(name)] == seconds
    assert stored.metadata == own.metadata
    check_table(table(tmp_path / "out"), ds.compute())
    empty = ds.rows[:0]
    empty.to_parquet(f"{tmp_path}/empty/")
    check_table(table(tmp_path / "empty"), empty.compute())
    dtf.to_parquet({"x": np.arange(3), "v": [[1], [], [2, 3]]}, tmp_path / "arrays")
    assert table(tmp_path / "arrays").to_pydict() == {"x": [0, 1, 2], "v": [[1], [], [2, 3]]}


def test_polars_and_duckdb_read_batches_and_files(golden: Path, tmp_path: Path) -> None:
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    for case in GOLDEN[::2]:
        ds = dtf.read_tfrecord(shard(golden, case), **spec(golden, case), chunks=13)
        ds.to_parquet(tmp_path / case, compression="zstd")
        rows = [tuple(row.values()) for row in table(tmp_path / case).to_pylist()]
        frame = polars.DataFrame(ds.to_arrow_batches())
        assert same_lists(frame.rows(), rows)
        assert polars.from_arrow(ds).struct.unnest().equals(frame, null_equal=True)
        files = sorted((tmp_path / case).glob("*.parquet"))
        assert polars.read_parquet(files, glob=False).equals(frame, null_equal=True)
        assert same_lists(duckdb.read_parquet([str(file) for file in files]).fetchall(), rows)
        # DuckDB does not read float16 from Arrow.
        rest = ds[[name for name, array in ds.items() if array.dtype != np.float16]]
        assert same_lists(duckdb.sql("from rest").fetchall(), list(map(tuple, frame[list(rest)].rows())))


def test_existing_files(tmp_path: Path) -> None:
    numbers().to_parquet(tmp_path / "out")
    before = (tmp_path / "out/part.00000.parquet").read_bytes()
    with pytest.raises(FileExistsError, match=r"part\.00000\.parquet exists already: mode='w'"):
        numbers(50).to_parquet(tmp_path / "out")
    assert (tmp_path / "out/part.00000.parquet").read_bytes() == before
    numbers(50).to_parquet(tmp_path / "out", mode="w", compression=None)
    assert table(tmp_path / "out")["x"].to_pylist() == list(range(50))
    assert pq.read_metadata(tmp_path / "out/part.00000.parquet").row_group(0).column(0).compression == "UNCOMPRESSED"
    (tmp_path / "out/part.00007.parquet").touch()
    with pytest.raises(FileExistsError, match=r"part\.00007\.parquet exists"):
        numbers().to_parquet(tmp_path / "out", mode="w")


def test_arguments_are_checked_before_anything_is_written(golden: Path, tmp_path: Path) -> None:
    uncounted = dtf.read_tfrecord(shard(golden, "varlen"), **spec(golden, "varlen"), counts=None)
    wrong: list[tuple[dtf.Dataset, dict[str, Any], type[Exception], str]] = [
        (numbers(), {"mode": "x"}, ValueError, "mode must be 'w-'"),
        (numbers(), {"compression": "zip"}, ValueError, "compression 'zip'; did you mean 'gzip'?"),
        (numbers()[[]], {}, SchemaError, "rows without columns"),
        (uncounted, {}, ValueError, "rows must be counted before"),
    ]
    for ds, options, error, said in wrong:
        with pytest.raises(error, match=said):
            ds.to_parquet(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_failed_write_leaves_nothing(records: dtf.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = pq.ParquetWriter.write_batch
    with monkeypatch.context() as patched:
        patched.setattr(pq.ParquetWriter, "write_batch", lambda self, batch: write(self, batch[1:]))
        with pytest.raises(IncompleteStoreError, match=r"part\.00000\.parquet: the file has 29 rows; expected 30"):
            records.to_parquet(tmp_path / "out")
    path = tmp_path / "x.tfrecord"
    damage(path, -1)
    with pytest.raises(CorruptRecordError, match="record 99"):
        dtf.read_tfrecord(path, records.schema, chunks=30).to_parquet(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command(records: dtf.Dataset, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["to-parquet", tmp_path / "x.tfrecord", out, "--columns", "x", "--chunks", 40, "--compression", "zstd"]
    text = shown(*command)
    assert "3 files" in text and "100 rows of 1 feature" in text
    assert table(out).to_pydict() == {"x": list(range(100))}
    assert pq.read_metadata(out / "part.00002.parquet").row_group(0).column(0).compression == "ZSTD"
    refused = run(*command)
    assert refused.exit_code == 1 and "exists already: --overwrite" in refused.stderr
    shown(*command, "--overwrite")
    tfds = DATA / "tfds" / "every" / "1.0.0"
    shown("to-parquet", tfds, tmp_path / "tfds", "--split", "train[:5]", "--columns", "label")
    assert table(tmp_path / "tfds").num_rows == 5


@pytest.mark.slow
@pytest.mark.integration
def test_two_processes_write_the_arrays(client: Any, golden: Path, tmp_path: Path) -> None:
    for case in GOLDEN[1:3]:
        ds = dtf.read_tfrecord(shard(golden, case), **spec(golden, case), chunks=5)
        ds.to_parquet(tmp_path / case)
        check_table(table(tmp_path / case), ds.compute())
        ds.persist().to_parquet(tmp_path / "held" / case)
        assert table(tmp_path / "held" / case).equals(table(tmp_path / case))
