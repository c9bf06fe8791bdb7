"""Data sets on stores: requests and bytes of whole reads, of single rows and of opening, with and without failures."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import dask
import numpy as np
import pytest
from oracle import write_oracle
from support.object_stores import Store, make_store
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.settings import Limits, read_nbytes

pytestmark = pytest.mark.integration
RECORDS = 3_000
RANGE = read_nbytes("storage.range-size")


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Shard of about 18 MB: slightly more than two ranges."""
    path = tmp_path_factory.mktemp("remote") / "x"
    write_oracle(path, (example(label=[row], image=[random.Random(row).randbytes(6_000)]) for row in range(RECORDS)))
    return path.read_bytes()


@pytest.fixture(params=["s3", "http"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with ExitStack() as stack, dask.config.set(scheduler="threads", num_workers=2):
        yield make_store(request.param, request, stack)


def open_dataset(store: Store, name: str = "x", **options: object) -> dtf.Dataset:
    """Open a data set with known features, so that opening only counts records."""
    features = {"label": dtf.FixedLenFeature((), "int64")}
    return dtf.read_tfrecord(f"{store.url}/{name}", features, storage_options=store.options, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("counts", ["scan", None])
def test_a_whole_shard(store: Store, shard: bytes, counts: str | None) -> None:
    store.put("x", shard)
    ds = open_dataset(store, counts=counts, chunks="shard")
    store.log.clear()
    assert ds["label"].compute().tolist() == list(range(RECORDS))
    assert len(store.log.asked) <= 1 + len(shard) / RANGE
    assert store.log.sent <= 1.02 * len(shard)


def test_counting_reads_a_shard_once(store: Store, shard: bytes) -> None:
    store.put("x", shard)
    store.log.clear()
    assert open_dataset(store, counts="scan").nrows == RECORDS
    # In addition to the listing: lookups of the path and of sidecars.
    ranges = [asked for asked in store.log.asked if asked.range]
    assert len(ranges) <= 1 + len(shard) / RANGE
    assert sum(asked.sent for asked in ranges) <= 1.02 * len(shard)


def test_one_row_is_one_range(store: Store, shard: bytes) -> None:
    store.put("x", shard)
    ds = open_dataset(store)
    for row in (0, 5, RECORDS // 2, RECORDS - 1):
        for wanted in (ds["label"][row], ds.rows[row]["label"], ds.rows[[row]]["label"]):
            store.log.clear()
            assert np.asarray(wanted.compute()).ravel().tolist() == [row]
            assert len(store.log.asked) == 1
            assert store.log.sent <= 3 << 20


def test_adjacent_rows_are_read_in_large_ranges(store: Store, shard: bytes) -> None:
    store.put("x", shard)
    ds = open_dataset(store)
    rows = np.arange(RECORDS)
    for picked in (rows[::7], rows[::-50], np.random.default_rng(0).permutation(rows)[:1000]):
        store.log.clear()
        assert ds.rows[picked].compute()["label"].tolist() == picked.tolist()
        assert len(store.log.asked) <= 1 + len(shard) / RANGE
        assert store.log.sent <= 1.02 * len(shard)
    # One range for each distant row.
    store.log.clear()
    apart = [2_900, 10, 1_400]
    assert ds.rows[apart].compute()["label"].tolist() == apart
    assert len(store.log.asked) == 3
    assert store.log.sent <= 9 << 20


def test_chunks_read_their_own_bytes(store: Store, shard: bytes) -> None:
    store.put("x", shard)
    ds = open_dataset(store, chunks=RECORDS // 3)
    store.log.clear()
    assert ds["label"].compute().tolist() == list(range(RECORDS))
    # A chunk begins at the index entry before it and ends at the one after it, each within 1 to 2 MiB.
    assert len(store.log.asked) <= 3
    assert store.log.sent <= len(shard) + (6 << 20)


def test_splits_read_little_more_than_their_bytes(store: Store, shard: bytes) -> None:
    store.put("x", shard)
    ds = open_dataset(store, counts=None, chunks="6 MiB")
    assert ds.npartitions == 3
    store.log.clear()
    assert ds["label"].compute().tolist() == list(range(RECORDS))
    # Splits except the first search for their first header, in one range; all but the last check the next header.
    assert len(store.log.asked) <= 3 + 2 + 2
    assert store.log.sent <= len(shard) + 2 * (512 << 10)


@pytest.mark.parametrize("fault", ["drop", 503])
def test_failures_neither_lose_nor_duplicate_records(
    store: Store, shard: bytes, fault: str | int, set_limits: Callable[..., Limits]
) -> None:
    """Every fifth connection is closed midway, or three of twelve requests get an error of a busy server."""
    set_limits(first_retry_wait=0.001)
    for number in range(4):
        store.put(f"x{number}", shard)
    ds = open_dataset(store, "x*", chunks=400)
    store.log.clear()
    store.log.fault = lambda number: fault if (number % 5 == 4 if fault == "drop" else number % 12 < 3) else None
    labels = ds["label"].compute()
    assert labels.tolist() == 4 * list(range(RECORDS))


def test_sidecars_spare_the_shards(store: Store, shard: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(shard)
    [index] = dtf.build_index(tmp_path / "x")
    store.put("x", shard)
    store.put("x.idx", Path(index).read_bytes())
    store.log.clear()
    ds = open_dataset(store)
    assert ds.nrows == RECORDS
    assert store.log.sent < Path(index).stat().st_size + 20_000
    store.log.clear()
    assert ds["label"][7].compute() == 7
    assert len(store.log.asked) == 1


def test_an_index_is_written_next_to_objects(request: pytest.FixtureRequest, shard: bytes, tmp_path: Path) -> None:
    with ExitStack() as stack:
        store = make_store("s3", request, stack)
        store.put("x", shard)
        assert dtf.build_index(f"{store.url}/x", storage_options=store.options) == (f"{store.url}/x.idx",)
        (tmp_path / "x").write_bytes(shard)
        [local] = dtf.build_index(tmp_path / "x")
        store.log.clear()
        assert open_dataset(store).nrows == RECORDS
        import s3fs

        fs = s3fs.S3FileSystem(**store.options)
        assert fs.cat_file("bucket/d/x.idx") == Path(local).read_bytes()
