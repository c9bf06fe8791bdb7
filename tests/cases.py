"""One table of columns and one of outputs: `test_cases.py` sends each of the first through each of the second."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy as np
import pytest
from numpy.typing import NDArray
from oracle import framed
from support import golden
from support.any_columns import FEATURES, dataset_of, fitting_rows, rows_like, written_as
from support.arrow_rows import check_chunks, check_table
from support.store_round_trip import assert_identity, assert_same
from support.virtual_groups import assert_group, one_chunk_or, unequal_chunks
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.blocks import RaggedBlock, splits_of
from dask_tfrecord.features import Encoded

Columns = Mapping[str, NDArray[Any]]
CHUNK = 7
ROWS = (4, 5, 2)


# --------------------------------------------------------------------------------------------------------- columns


def of_tensorflow(folder: Path, case: str) -> dtf.Dataset:
    """Open a file that TensorFlow wrote."""
    return dtf.read_tfrecord(golden.shard(folder, case), **golden.spec(folder, case), chunks=CHUNK)


def of_layouts(folder: Path, name: str) -> dtf.Dataset:
    """Generate rows of every kind of column, side by side."""
    rng = np.random.default_rng(0)
    blocks = {name: fitting_rows(feature, sum(ROWS), rng) for name, feature in FEATURES.items()}
    return dataset_of(blocks, FEATURES, ROWS)


def of_items(folder: Path, name: str) -> dtf.Dataset:
    """Divide lists of records, many of them empty, into rows; other columns are repeated."""
    rng = np.random.default_rng(0)
    splits = splits_of(rng.choice([0, 0, 1, 5], sum(ROWS)))
    count = int(splits[-1])
    items = {
        "number": RaggedBlock(np.arange(count), splits),
        "pair": RaggedBlock(rng.random((count, 2), np.float32), splits),
        "inner": RaggedBlock(rows_like(FEATURES["ragged"], count, rng), splits),
    }
    features = {
        "number": dtf.VarLenFeature("int64"),
        "pair": dtf.VarLenFeature("float32", shape=(-1, 2)),
        "inner": dtf.VarLenFeature("int64", shape=(-1, -1)),
        "text": FEATURES["text"],
        "words": FEATURES["words"],
    }
    repeated = {name: rows_like(features[name], sum(ROWS), rng) for name in ("text", "words")}
    return dataset_of({**items, **repeated}, features, ROWS).explode([*items], repeat=[*repeated])


def of_mixed(folder: Path, name: str) -> dtf.Dataset:
    """Read numbers that some records list as integers, and others as floats."""
    payloads = [
        example(
            one=[number] if number % 2 else [number / 4], some=[number / 2] * (number % 4) if number % 3 else [number]
        )
        for number in range(sum(ROWS))
    ]
    fsspec.filesystem("memory").pipe_file("/cases/mixed.tfrecord", framed(payloads))
    features = {
        "one": dtf.FixedLenFeature((), "float64", mixed=True),
        "some": dtf.VarLenFeature("float32", mixed=True),
    }
    return dtf.read_tfrecord("memory://cases/mixed.tfrecord", features, chunks=CHUNK)


# A new kind of column is a line in `FEATURES`. These files have the columns of others, stored in another way.
ALIKE = ("scalars_gzip", "scalars_zlib", "wire_encodings", "empty_records")
COLUMNS: dict[str, tuple[Callable[[Path, str], dtf.Dataset], str]] = {
    **{case: (of_tensorflow, case) for case in golden.CASES if case not in ALIKE},
    "every layout": (of_layouts, ""),
    "items": (of_items, ""),
    "mixed numbers": (of_mixed, ""),
}


# --------------------------------------------------------------------------------------------------------- outputs


def compute(ds: dtf.Dataset, wanted: Columns, folder: Path) -> None:
    """Compute the data set, its columns together, and each column alone."""
    assert_same(dask.compute(ds)[0], wanted)
    assert_same(dict(zip(ds, dask.compute(*ds[tuple(ds)]), strict=True)), wanted)
    assert_same({name: array.compute() for name, array in ds.items()}, wanted)


def persist(ds: dtf.Dataset, wanted: Columns, folder: Path) -> None:
    """Persist, pick rows backwards, map blocks."""
    kept = ds.persist()
    assert_same(kept.compute(), wanted)
    backwards = {name: array[::-1] for name, array in wanted.items()}
    assert_same(ds.rows[::-1].compute(), backwards)
    assert_same(kept.rows[::-1].compute(), backwards)
    assert_same(kept.map_blocks(lambda blocks: blocks).compute(), wanted)


def zarr(ds: dtf.Dataset, wanted: Columns, folder: Path) -> None:
    """Write a Zarr store, read it whole, pick rows, and write those to another store."""
    rows = (ds.nrows or 0) // 4 + 1
    back = assert_identity(ds, folder / "a.zarr", chunks=rows, shards=2 * rows)
    back.rows[::-2].to_zarr(folder / "b.zarr")
    assert_same(dtf.from_zarr(folder / "b.zarr").compute(), {name: array[::-2] for name, array in wanted.items()})


def tfrecord(ds: dtf.Dataset, wanted: Columns, folder: Path) -> None:
    """Write shards, compressed and not, of lists and of steps, and read them with the features of their records."""
    rows = (ds.nrows or 0) // 3 + 1
    for number, compression in enumerate((None, "gzip")):
        # Steps have lengths of their own.
        columns = {name: each for name, each in ds.schema.items() if not (number and name.endswith(".lengths"))}
        schema = written_as(columns, steps=number == 1)
        shards = f"{folder}/{number}-{{shard}}.tfrecord"
        dtf.to_tfrecord(ds, shards, features=schema, records_per_shard=rows, compression=compression)
        again = dtf.read_tfrecord(f"{folder}/{number}-*", schema)[list(wanted)]
        assert_same(again.compute(), wanted)
        arrays = [name for name in ds if isinstance(ds.schema[name], Encoded)]
        assert again.schema.select(arrays) == ds.schema.select(arrays)


def arrow(ds: dtf.Dataset, wanted: Columns, folder: Path) -> None:
    """Hand out Arrow batches."""
    pa = pytest.importorskip("pyarrow")
    table = pa.table(ds)
    table.validate(full=True)
    check_table(table, dict(wanted))


def parquet(ds: dtf.Dataset, wanted: Columns, folder: Path) -> None:
    """Write Parquet files, and read them with pyarrow."""
    pq = pytest.importorskip("pyarrow.parquet")
    ds.to_parquet(folder / "out")
    check_table(pq.read_table(sorted((folder / "out").glob("*.parquet"))), dict(wanted))


def xarray(ds: dtf.Dataset, wanted: Columns, folder: Path) -> None:
    """Convert to xarray, whose variables have the arrays."""
    pytest.importorskip("xarray")
    converted = ds.to_xarray()
    # Names do not contain a slash there.
    assert_same({name: converted[name.replace("/", ".")].to_numpy() for name in wanted}, wanted)


def awkward(ds: dtf.Dataset, wanted: Columns, folder: Path) -> None:
    """Convert to Awkward Arrays, one per chunk."""
    pytest.importorskip("awkward")
    check_chunks(ds, wanted)


def batches(ds: dtf.Dataset, wanted: Columns, folder: Path) -> None:
    """Concatenate batches in order."""
    found = list(ds.batches(4)) if ds else []
    assert len(found) == -(-(ds.nrows or 0) // 4)
    if found:
        assert_same({name: np.concatenate([batch[name] for batch in found]) for name in wanted}, wanted)


def virtual(ds: dtf.Dataset, wanted: Columns, folder: Path) -> None:
    """Write one shard, and read it through references, with arrays of zarr and xarray."""
    schema = written_as(dict(ds.schema), steps=False)
    dtf.to_tfrecord(ds, folder / "x.tfrecord", features=schema)
    with unequal_chunks():
        found = dtf.virtual_zarr(folder / "x.tfrecord", schema, columns=list(wanted), rows_per_chunk=one_chunk_or(3))
        assert_group("reference://", wanted, options={"fo": found.references()})


# A new output is a line.
OUTPUTS: dict[str, Callable[[dtf.Dataset, Columns, Path], None]] = {
    "compute": compute,
    "persist": persist,
    "Zarr": zarr,
    "TFRecord": tfrecord,
    "Arrow": arrow,
    "Parquet": parquet,
    "xarray": xarray,
    "Awkward": awkward,
    "batches": batches,
    "virtual Zarr": virtual,
}
