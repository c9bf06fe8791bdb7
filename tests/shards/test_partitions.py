"""Columns of the names of directories: ``partitioning="hive"``."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import servers

import dask_tfrecord as dtf
from dask_tfrecord.errors import SchemaError

# Rows of each shard, by its path: of several depths of directories, without rows, and with the escapes of Spark.
SHARDS = {
    "date=2024-01-30/country=a%2Fb/part-0.tfrecord": [3, 1, 4],
    "date=2024-01-30/country=c d/part-0.tfrecord": [],
    "date=2024-01-30/country=c d/part-1.tfrecord": [1, 5],
    "date=2024-01-31/country=__HIVE_DEFAULT_PARTITION__/part-0.tfrecord": [9],
}
DATES = ["2024-01-30"] * 5 + ["2024-01-31"]
COUNTRIES = ["a/b"] * 3 + ["c d"] * 2 + ["__HIVE_DEFAULT_PARTITION__"]
CLICKS = [3, 1, 4, 1, 5, 9]
FEATURES = {"clicks": dtf.FixedLenFeature((), "int64"), "seen": dtf.VarLenFeature("int64")}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for name, clicks in SHARDS.items():
        path = tmp_path / "logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = {"clicks": np.array(clicks, np.int64), "seen": [list(range(click)) for click in clicks]}
        dtf.to_tfrecord(rows, path, features=FEATURES)
    (tmp_path / "logs" / "_SUCCESS").touch()
    return tmp_path / "logs"


def read(logs: Any, **options: Any) -> dtf.Dataset:
    return dtf.read_tfrecord(logs, FEATURES, partitioning="hive", **options)


def check(found: Mapping[str, Any], rows: Any = slice(None)) -> None:
    expected = {"clicks": CLICKS, "date": DATES, "country": COUNTRIES}
    assert {*found} >= {*expected}
    for name, values in expected.items():
        assert found[name].tolist() == np.array(values, object)[rows].tolist(), name


def test_directories_are_columns_of_text(logs: Path) -> None:
    ds = read(logs)
    assert list(ds) == ["clicks", "seen", "date", "country"]
    assert ds.schema["date"] == dtf.TextFeature()
    check(ds.compute())
    check(pickle.loads(pickle.dumps(ds)).compute())
    check({name: ds[name].compute() for name in ("clicks", "date", "country")})
    check(dict(zip(("date", "country", "clicks"), map(np.asarray, ds["date", "country", "clicks"]), strict=True)))
    check(ds.rows[[5, 0, 2]].compute(), [5, 0, 2])
    check(ds.rows[np.array(CLICKS) > 3].compute(), np.array(CLICKS) > 3)
    check(ds.head(4), slice(4))
    check(read(logs, chunks=4).compute())
    check(read(logs / "*" / "*" / "*.tfrecord").compute())
    check(read([logs / name for name in SHARDS]).compute())
    batches = list(read(logs).batches(4, pad={"seen": None}))
    check({name: np.concatenate([batch[name] for batch in batches]) for name in ("clicks", "date", "country")})


def test_columns_and_filters_name_directories(logs: Path) -> None:
    assert list(read(logs, columns=["date"])) == ["date"]
    assert read(logs, columns=["date"])["date"].compute().tolist() == DATES
    assert list(read(logs, columns=["clicks"])) == ["clicks"]
    ds = read(logs, filters=[("date", "==", "2024-01-30"), ("clicks", ">", 1)], columns=["country", "clicks"])
    assert ds["clicks"].compute().tolist() == [3, 4, 5]
    assert ds["country"].compute().tolist() == ["a/b", "a/b", "c d"]
    assert read(logs).where("country == 'c d'")["clicks"].compute().tolist() == [1, 5]


def test_a_filter_of_directories_reads_no_record(logs: Path) -> None:
    ds = read(logs)
    damaged = logs / "date=2024-01-30/country=c d/part-1.tfrecord"
    data = bytearray(damaged.read_bytes())
    data[14] ^= 1
    stat = damaged.stat()
    damaged.write_bytes(data)
    os.utime(damaged, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    kept = ds.where("date == '2024-01-31'")
    assert kept.nrows == 1
    assert kept["clicks"].compute().tolist() == [9]


def test_outputs_hold_the_columns(logs: Path, tmp_path: Path) -> None:
    ds = read(logs)
    ds.to_zarr(tmp_path / "logs.zarr", resume=True)
    ds.to_zarr(tmp_path / "logs.zarr", resume=True)
    stored = dtf.from_zarr(tmp_path / "logs.zarr")
    check(stored.compute())
    assert [row.tolist() for row in stored["seen"].compute()] == [list(range(click)) for click in CLICKS]
    ds.to_tfrecord(tmp_path / "flat.tfrecord")
    check(
        dtf.read_tfrecord(
            tmp_path / "flat.tfrecord", {**FEATURES, **dict.fromkeys(["date", "country"], dtf.TextFeature())}
        ).compute()
    )
    doubled = ds.map_blocks(lambda blocks: {**blocks, "clicks": blocks["clicks"] * 2})
    assert doubled["country"].compute().tolist() == COUNTRIES
    steps = ds.explode(["seen"], repeat=["date"])
    assert steps["date"].compute().tolist() == [
        date for date, click in zip(DATES, CLICKS, strict=True) for _ in range(click)
    ]


def test_lost_records_have_the_directory_of_their_shard(logs: Path) -> None:
    damaged = logs / "date=2024-01-30/country=c d/part-1.tfrecord"
    data = bytearray(damaged.read_bytes())
    data[14] ^= 1
    damaged.write_bytes(data)
    skipped = read(logs, errors="skip").compute()
    check(skipped, [0, 1, 2, 4, 5])
    filled = read(logs, errors="fill", fill_values={"clicks": -1, "seen": []}).compute()
    assert filled["clicks"].tolist() == [3, 1, 4, -1, 5, 9]
    assert filled["country"].tolist() == COUNTRIES


def test_what_cannot_be_read_so_is_an_error(logs: Path) -> None:
    with pytest.raises(ValueError, match="partitioning must be None or 'hive'"):
        dtf.read_tfrecord(logs, FEATURES, partitioning="spark")
    with pytest.raises(ValueError, match="counts=None"):
        read(logs, counts=None)
    with pytest.raises(ValueError, match="value_errors"):
        read(logs, value_errors="skip")
    with pytest.raises(SchemaError, match="expected directories date=…, country=… in the path, found date=…"):
        dtf.to_tfrecord({"clicks": [1]}, logs / "date=2024-02-01/part-0.tfrecord")
        read(logs)
    with pytest.raises(SchemaError, match="expected directories KEY=VALUE, such as date=2024-01-31"):
        dtf.to_tfrecord({"clicks": [1]}, logs.parent / "plain.tfrecord")
        read(logs.parent / "plain.tfrecord")
    with pytest.raises(SchemaError, match="two directories day=…, which are one column"):
        dtf.to_tfrecord({"clicks": [1]}, logs.parent / "twice/day=1/day=2/part.tfrecord")
        dtf.read_tfrecord(logs.parent / "twice", partitioning="hive")
    with pytest.raises(SchemaError, match="the directory day=%FF is not UTF-8 text without its escapes"):
        dtf.to_tfrecord({"clicks": [1]}, logs.parent / "bytes/day=%FF/part.tfrecord")
        dtf.read_tfrecord(logs.parent / "bytes", partitioning="hive")
    with pytest.raises(SchemaError, match="'clicks' is a feature of the records and the name of directories"):
        dtf.to_tfrecord({"clicks": [1]}, logs.parent / "clicks=1/part.tfrecord")
        dtf.read_tfrecord(logs.parent / "clicks=1", partitioning="hive")


def test_the_error_of_a_directory_of_directories_names_the_argument(logs: Path) -> None:
    with pytest.raises(dtf.TFRecordError, match=r"logs/\*\*/\*, or partitioning='hive' for columns of their names"):
        dtf.read_tfrecord(logs)


@pytest.mark.usefixtures("xarray_engine")
def test_xarray_opens_directories_as_variables(logs: Path) -> None:
    xarray = pytest.importorskip("xarray")
    options = {"engine": "tfrecord", "features": FEATURES, "partitioning": "hive"}
    opened = xarray.open_dataset(str(logs), **options)
    assert opened["date"].values.tolist() == DATES
    assert opened["country"].isel(record=[4, 0]).values.tolist() == [COUNTRIES[4], COUNTRIES[0]]
    labelled = xarray.open_dataset(str(logs), coords=["date"], chunks={}, **options)
    assert labelled["clicks"].compute().values.tolist() == CLICKS
    assert labelled["date"].values.tolist() == DATES


@pytest.mark.parametrize("shuffle", [False, "window", "full"])
def test_batches_of_pictures_keep_the_directory_of_their_record(shuffle: Any, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    features = {"image": dtf.ImageFeature((4, 4, 3)), "x": dtf.FixedLenFeature((), "int64")}
    pictures = np.random.default_rng(0).integers(0, 255, (12, 4, 4, 3), np.uint8)
    for day, start, stop in (("mon", 0, 5), ("tue", 5, 5), ("wed", 5, 12)):
        rows = {"image": pictures[start:stop], "x": np.arange(start, stop)}
        dtf.to_tfrecord(rows, tmp_path / f"day={day}/part.tfrecord", features=features)
    days = np.array(["mon"] * 5 + ["wed"] * 7, object)
    ds = dtf.read_tfrecord(tmp_path, features, partitioning="hive")
    seen = []
    for batch in ds.batches(4, shuffle=shuffle, seed=1):
        seen += batch["x"].tolist()
        assert batch["day"].tolist() == days[batch["x"]].tolist()
        assert np.array_equal(batch["image"], pictures[batch["x"]])
    assert sorted(seen) == list(range(12))


def test_jobs_and_queries_read_the_columns(logs: Path, tmp_path: Path) -> None:
    ds = read(logs)
    dtf.ZarrJob.begin(ds, tmp_path / "parts.zarr", parts=2, chunks=2)
    for part in range(2):
        dtf.ZarrJob.open(tmp_path / "parts.zarr").write(part, 2)
    dtf.ZarrJob.open(tmp_path / "parts.zarr").finish()
    check(dtf.from_zarr(tmp_path / "parts.zarr").compute())
    polars = pytest.importorskip("polars")
    kept = ds.to_polars().filter((polars.col("country") == "c d") & (polars.col("clicks") > 1)).collect()
    assert kept["clicks"].to_list() == [5] and kept["date"].to_list() == ["2024-01-30"]
    assert ds.to_polars().filter(polars.col("clicks") > 4).select("date").collect()["date"].to_list() == DATES[4:]


def test_user_info_and_signatures_of_urls_are_no_directories(tmp_path: Path) -> None:
    dtf.to_tfrecord({"clicks": [1, 2]}, tmp_path / "day=mon/part.tfrecord")
    files = {"day=mon/part.tfrecord": (tmp_path / "day=mon/part.tfrecord").read_bytes()}
    guards: Any = {"files": files, "etags": {}, "password": "pass=word", "signature": "a/b=c/d"}
    with servers.running(servers.GuardedFiles, **guards) as (address, _):
        url = address.replace("://", "://user:pass=word@") + "/day=mon/part.tfrecord?signature=a/b=c/d"
        ds = dtf.read_tfrecord(url, partitioning="hive")
        assert list(ds) == ["clicks", "day"]
        assert ds["day"].compute().tolist() == ["mon", "mon"]
