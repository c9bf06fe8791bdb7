"""Parquet files of a Dataset: equal to its arrays, whole, verified, and written by tasks that may run twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support.any_columns import FEATURES, dataset_of, rows_like
from support.arrow_rows import check_table, same_lists
from support.golden import shard, spec
from support.repeating import Repeating

import dask_tfrecord as dtf
from dask_tfrecord.cli.main import tfrecord
from dask_tfrecord.errors import CorruptRecordError, IncompleteStoreError, SchemaError


def every_column() -> dtf.Dataset:
    rng = np.random.default_rng(1)
    return dataset_of({name: rows_like(each, 9, rng) for name, each in FEATURES.items()}, FEATURES, (4, 0, 5))


def table(folder: Path) -> Any:
    return pq.read_table(sorted(folder.glob("*.parquet")))


def numbers(count: int = 100) -> dtf.Dataset:
    return dtf.Dataset.from_arrays({"x": np.arange(count), "y": np.arange(count) / 2})


@pytest.fixture
def records(tmp_path: Path) -> dtf.Dataset:
    dtf.to_tfrecord({"x": np.arange(100), "word": [b"a" * (row % 7) for row in range(100)]}, tmp_path / "x.tfrecord")
    features = {"x": dtf.FixedLenFeature((), "int64"), "word": dtf.FixedLenFeature((), "bytes")}
    return dtf.read_tfrecord(tmp_path / "x.tfrecord", features, chunks=30)


def test_files_equal_the_arrays(tmp_path: Path) -> None:
    ds = every_column()
    ds.to_parquet(tmp_path / "out")
    assert [path.name for path in sorted(tmp_path.glob("out/*"))] == [f"part.{n:05d}.parquet" for n in range(2)]
    assert [pq.read_metadata(path).num_rows for path in sorted(tmp_path.glob("out/*"))] == [4, 5]
    check_table(table(tmp_path / "out"), ds.compute())
    assert table(tmp_path / "out").schema == ds.to_arrow_batches().schema
    ds.to_parquet(tmp_path / "lists", tensors=False)
    check_table(table(tmp_path / "lists"), ds.compute())
    empty = ds.rows[:0]
    empty.to_parquet(f"{tmp_path}/empty/")
    check_table(table(tmp_path / "empty"), empty.compute())


def test_arrays_are_written_by_the_function(tmp_path: Path) -> None:
    dtf.to_parquet({"x": np.arange(3), "v": [[1], [], [2, 3]]}, tmp_path / "out")
    assert table(tmp_path / "out").to_pydict() == {"x": [0, 1, 2], "v": [[1], [], [2, 3]]}


def test_polars_and_duckdb_read_the_files(golden: Path, tmp_path: Path) -> None:
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    for case in ("scalars", "varlen", "fixed_shapes", "ragged_partitions"):
        ds = dtf.read_tfrecord(shard(golden, case), **spec(golden, case), chunks=13)
        ds.to_parquet(tmp_path / case, compression="zstd")
        check_table(table(tmp_path / case), ds.compute())
        frame = polars.read_parquet(tmp_path / case / "*.parquet")
        assert frame.equals(polars.DataFrame(ds.to_arrow_batches()), null_equal=True)
        rows = duckdb.sql(f"from '{tmp_path / case}/*.parquet'").fetchall()
        assert same_lists(rows, [tuple(row.values()) for row in table(tmp_path / case).to_pylist()])


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
    with pytest.raises(ValueError, match="mode is 'w-'"):
        numbers().to_parquet(tmp_path / "out", mode="a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="compression is None or one of snappy"):
        numbers().to_parquet(tmp_path / "out", compression="zip")
    with pytest.raises(SchemaError, match="rows without a column"):
        numbers()[[]].to_parquet(tmp_path / "out")
    uncounted = dtf.read_tfrecord(shard(golden, "varlen"), **spec(golden, "varlen"), counts=None)
    with pytest.raises(ValueError, match="rows must be counted before"):
        uncounted.to_parquet(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("compute", [True, False])
@pytest.mark.parametrize("mode", ["w-", "w"])
def test_files_of_repeated_tasks(records: dtf.Dataset, mode: Any, compute: bool, tmp_path: Path) -> None:
    for seed in range(3):
        folder = tmp_path / f"{mode}{seed}"
        repeating = Repeating(seed, after_last=compute)
        with dask.config.set(scheduler=repeating.get()):
            written = records.to_parquet(folder, mode=mode, compute=compute)
            if not compute:
                assert not folder.exists()
                written.compute()
        repeating.run_late()
        assert [path.name for path in sorted(folder.iterdir())] == [f"part.{n:05d}.parquet" for n in range(4)]
        check_table(table(folder), records.compute())


def test_a_failed_write_leaves_nothing(records: dtf.Dataset, tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    ds = dtf.read_tfrecord(path, records.schema, chunks=30)
    with pytest.raises(CorruptRecordError, match="record 99"):
        ds.to_parquet(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_row_counts_are_verified(records: dtf.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = pq.ParquetWriter.write_batch
    monkeypatch.setattr(pq.ParquetWriter, "write_batch", lambda self, batch: write(self, batch[1:]))
    with pytest.raises(IncompleteStoreError, match=r"part\.00000\.parquet: the file has 29 rows; expected 30"):
        records.to_parquet(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command(records: dtf.Dataset, tmp_path: Path) -> None:
    def run(*arguments: object) -> Any:
        return CliRunner().invoke(tfrecord, ["to-parquet", *map(str, arguments)], prog_name="dask-tfrecord")

    source, out = tmp_path / "x.tfrecord", tmp_path / "out"
    options = ("--columns", "x", "--chunks", 40, "--compression", "zstd")
    done = run(source, out, *options)
    assert done.exit_code == 0, done.output
    assert "3 files" in done.stdout
    assert "100 rows of 1 feature" in done.stdout
    assert table(out).column_names == ["x"]
    assert table(out)["x"].to_pylist() == list(range(100))
    assert pq.read_metadata(out / "part.00002.parquet").row_group(0).column(0).compression == "ZSTD"
    failed = run(source, out, *options)
    assert failed.exit_code == 1
    assert "exists already: --overwrite" in failed.stderr
    assert run(source, out, *options, "--overwrite").exit_code == 0
    tfds = Path(__file__).parent / "data" / "tfds" / "every" / "1.0.0"
    done = run(tfds, tmp_path / "tfds", "--split", "train[:5]", "--columns", "label")
    assert done.exit_code == 0, done.output
    assert table(tmp_path / "tfds").num_rows == 5


@pytest.mark.slow
@pytest.mark.integration
def test_two_processes_write_the_arrays(client: Any, golden: Path, tmp_path: Path) -> None:
    assert len(client.nthreads()) == 2
    for case in ("varlen", "fixed_shapes"):
        ds = dtf.read_tfrecord(shard(golden, case), **spec(golden, case), chunks=5)
        ds.to_parquet(tmp_path / case)
        check_table(table(tmp_path / case), ds.compute())
        ds.persist().to_parquet(tmp_path / "held" / case)
        assert table(tmp_path / "held" / case).equals(table(tmp_path / case))
