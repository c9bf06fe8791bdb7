"""Data sets on stores: requests and bytes of reading, with and without failures; and Google Cloud Storage."""

import asyncio
import pickle
import random
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import numpy as np
import pytest
from numpy.typing import NDArray
from oracle import write_oracle
from support import servers
from support.object_stores import Store, make_store, open_obstore
from support.pages import blocks
from support.programs import run_python
from support.store_round_trip import assert_same_array
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.blocks import to_array
from dask_tfrecord.errors import ShardChangedError, ShardNotFoundError, StorageError, StoreInUseError, TFRecordError
from dask_tfrecord.settings import read_nbytes, replaced_limits

pytestmark = pytest.mark.integration
RECORDS = 3_000
RANGE = read_nbytes("storage.range-size")


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Shard of about 18 MB: slightly more than two ranges."""
    path = tmp_path_factory.mktemp("remote") / "x"
    write_oracle(path, (example(label=[row], image=[random.Random(row).randbytes(6_000)]) for row in range(RECORDS)))
    return path.read_bytes()


@pytest.fixture(params=["s3", "obstore", "http"])
def store(request: pytest.FixtureRequest, shard: bytes) -> Iterator[Store]:
    """Store that holds the shard."""
    with ExitStack() as stack, dask.config.set(scheduler="threads", num_workers=2):
        store = make_store(request.param, request, stack)
        store.put("x", shard)
        yield store


def open_dataset(store: Store, name: str = "x", **options: object) -> dtf.Dataset:
    """Open a data set with known features, so that opening only counts records."""
    features = {"label": dtf.FixedLenFeature((), "int64")}
    return dtf.read_tfrecord(f"{store.url}/{name}", features, storage_options=store.options, **options)  # type: ignore[arg-type]


OBSTORE_PROGRAM = """
import sys
import fsspec, pytest
from obstore.fsspec import register
from obstore.store import S3Store
import dask_tfrecord as dtf
from dask_tfrecord.blocks import to_array
from dask_tfrecord.errors import ShardChangedError, ShardNotFoundError

register("s3")
secret = "s3cret-of-the-key"
config = {"access_key_id": "a", "secret_access_key": secret, "endpoint": sys.argv[1], "region": "us-east-1"}
store = S3Store("obstore", config=config, client_options={"allow_http": True})
options = {"config": store.config, "client_options": store.client_options}
for url in ("s3://obstore/a/0.tfrecord", "s3://obstore/a", "s3://obstore/a/*.tfrecord"):
    ds = dtf.read_tfrecord(url, storage_options=options)
    assert ds["label"].compute().tolist() == [0, 1, 2] and secret not in repr(ds) + str(ds.keys())
    assert all(secret not in str(key) for key in ds.__dask_graph__())
with pytest.raises(ShardNotFoundError, match="there are '0.tfrecord'") as missing:
    dtf.read_tfrecord("s3://obstore/a/9.tfrecord", storage_options=options)
fs = fsspec.filesystem("s3", **options)
data = fs.cat_file("obstore/a/0.tfrecord")
fs.pipe_file("obstore/a/0.tfrecord", data[::-1])
with pytest.raises(ShardChangedError) as changed:
    ds["label"].compute()
assert not any(secret in str(error.value) for error in (missing, changed))
"""


def test_a_registered_obstore_reads_shards(moto: int, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    s3fs = pytest.importorskip("s3fs")
    write_oracle(tmp_path / "x", (example(label=[row]) for row in range(3)))
    address = f"http://127.0.0.1:{moto}"
    direct = s3fs.S3FileSystem(key="a", secret="b", endpoint_url=address)
    direct.mkdir("obstore")
    direct.pipe_file("obstore/a/0.tfrecord", (tmp_path / "x").read_bytes())
    # The registration is for the whole process.
    run_python("-c", OBSTORE_PROGRAM, address)


KINDS = ["MemoryStore", "LocalStore", "S3Store"]
SECRET = "s3cret-of-the-key"


def store_object(kind: str, request: pytest.FixtureRequest, **options: Any) -> Any:
    """Return a store of obstore without objects."""
    stores = pytest.importorskip("obstore.store")
    if kind == "MemoryStore":
        return stores.MemoryStore()
    if kind == "LocalStore":
        folder = request.getfixturevalue("tmp_path")
        return stores.LocalStore(folder / "a%20 b", mkdir=True, automatic_cleanup=True)
    _, address, log = request.getfixturevalue("bucket")
    log.fault = lambda number: None
    return open_obstore(address, SECRET, prefix=request.node.name, **options)


NAMES = "a/b-{shard:05d}-of-{shards:05d}.tfrecord"


def write_columns(options: dict[str, Any], columns: dict[str, Any], name: str = NAMES, **more: Any) -> None:
    """Write two shards."""
    shards = {"features": COLUMN_FEATURES, "records_per_shard": ROWS // 2, "storage_options": options}
    dtf.to_tfrecord(columns, name, **shards, **more)


@pytest.fixture
def store_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Storage options with a store object that has two shards, which the library wrote."""
    options = {"store": store_object(request.param, request)}
    write_columns(options, COLUMNS, index=True)
    return options


@pytest.mark.parametrize("store_options", KINDS, indirect=True)
def test_obstore_objects_hold_shards(store_options: dict[str, Any], tmp_path: Path) -> None:
    store, names = store_options["store"], [f"a/b-0000{shard}-of-00002.tfrecord" for shard in range(2)]
    found = {info["path"]: info["size"] for page in store.list() for info in page}
    assert found.keys() == {*names, *(f"{name}.idx" for name in names)}
    for given in ("/a/", "a/b@2.tfrecord", "**/b*", "obstore://a", names):
        check_columns(dtf.read_tfrecord(given, COLUMN_FEATURES, storage_options=store_options))
    with pytest.raises(FileExistsError, match="obstore://a/b-00000"):
        write_columns(store_options, COLUMNS)
    # At the top of the store, and to another file system.
    both = {"storage_options": store_options, "target_options": store_options}
    dtf.copy_tfrecord(names, "{shard}.tfrecord", **both)
    dtf.copy_tfrecord("0.tfrecord", tmp_path / "x", storage_options=store_options)
    for given, options in (("/", store_options), (["0.tfrecord", "1.tfrecord"], store_options)):
        check_columns(dtf.read_tfrecord(given, COLUMN_FEATURES, storage_options=options))
    assert dtf.read_tfrecord(tmp_path / "x").nrows == ROWS // 2
    assert dtf.verify("/", storage_options=store_options).ok
    with pytest.raises(TFRecordError, match="would replace the damaged shard"):
        dtf.repair("0.tfrecord", "0.tfrecord", **both)
    xarray = pytest.importorskip("xarray")
    with xarray.open_dataset("obstore://a", engine="tfrecord", storage_options=store_options) as dataset:
        assert dataset["x"].values.tolist() == COLUMNS["x"].tolist()


@pytest.mark.parametrize("store_options", KINDS, indirect=True)
def test_obstore_objects_in_graphs_and_processes(store_options: dict[str, Any], request: pytest.FixtureRequest) -> None:
    ds = dtf.read_tfrecord("a", COLUMN_FEATURES, storage_options=store_options)
    again = dtf.read_tfrecord("a", COLUMN_FEATURES, storage_options=store_options)
    assert ds["x"].name == again["x"].name
    if isinstance(store_options["store"], pytest.importorskip("obstore.store").MemoryStore):
        with pytest.raises(TypeError, match="cannot pickle 'MemoryStore' object"):
            pickle.dumps(ds)
        other = {"store": store_object("MemoryStore", request)}
        write_columns(other, {**COLUMNS, "x": COLUMNS["x"][::-1]}, index=True)
        # Versions of objects in memory are numbers that both stores have.
        assert dtf.read_tfrecord("a", COLUMN_FEATURES, storage_options=other)["x"].name != ds["x"].name
        return
    sent = pickle.loads(pickle.dumps(ds))
    check_columns(sent)
    options = pickle.loads(pickle.dumps(store_options))
    assert dtf.read_tfrecord("a", COLUMN_FEATURES, storage_options=options)["x"].name == ds["x"].name
    distributed = pytest.importorskip("distributed")
    with distributed.Client(n_workers=1, threads_per_worker=2, dashboard_address=":0") as client:
        check_columns(ds)
        report = dtf.check_workers(client, ["a/b@2.tfrecord", "a/nothing"], store_options)
    [found, missing] = report.workers[0].paths
    assert found.found is not None and found.found.startswith("2 files of ")
    assert missing.error is not None and SECRET not in repr(report)


@pytest.mark.parametrize("store_options", KINDS, indirect=True)
def test_errors_of_obstore_objects(store_options: dict[str, Any]) -> None:
    with pytest.raises(ShardNotFoundError, match="did you mean 'b-0000"):
        dtf.read_tfrecord("a/b-00002-of-00002.tfrecord", storage_options=store_options)
    with pytest.raises(ShardNotFoundError, match="no file matches the pattern 'c/\\*'"):
        dtf.read_tfrecord("c/*", storage_options=store_options)
    for url in ("s3://bucket/a", "simplecache::a"):
        with pytest.raises(ValueError, match=f"expected a path in storage_options..store.., .*; got '{url}'"):
            dtf.read_tfrecord(url, storage_options=store_options)
    with pytest.raises(ValueError, match="readers of references take URLs"):
        vector = {"vector": np.ones((3, 2), np.float32)}
        dtf.to_tfrecord(vector, "v.tfrecord", storage_options=store_options)
        dtf.virtual_zarr("v.tfrecord", storage_options=store_options)
    ds = dtf.read_tfrecord("a", COLUMN_FEATURES, storage_options=store_options)
    store, name = store_options["store"], "a/b-00001-of-00002.tfrecord"
    data = bytes(store.get(name).bytes())
    for other in (data[::-1], data + data, b"short"):
        store.put(name, other)
        with pytest.raises(ShardChangedError, match=f"obstore://{name}"):
            ds["x"].compute()
    store.delete(name)
    with pytest.raises(ShardNotFoundError, match="the file is gone"):
        ds["x"].compute()


@pytest.mark.parametrize("value", ["s3://bucket", None, object()])
def test_other_objects_than_obstore_are_refused(value: object) -> None:
    for call in (dtf.read_tfrecord, dtf.infer_schema, dtf.build_index, dtf.Schema.read):
        with pytest.raises(TypeError, match=f"must be a store of obstore, .*; got builtins.{type(value).__name__}"):
            call("a", storage_options={"store": value})


@pytest.mark.parametrize(("fault", "message"), [(503, "503"), (403, "403|permission"), ("drop", "HTTP error")])
@pytest.mark.parametrize("given", ["a", "*.tfrecord"])
def test_failing_servers_behind_obstore_show_no_keys(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture, fault: int | str, message: str, given: str
) -> None:
    options = {"store": store_object("S3Store", request, retry_config={"max_retries": 0})}
    request.getfixturevalue("bucket")[2].fault = lambda number: fault
    with caplog.at_level("DEBUG"), pytest.raises(OSError, match=message) as failed:
        dtf.read_tfrecord(given, storage_options=options)
    shown = caplog.text + "".join(traceback.format_exception(failed.value))
    assert SECRET not in shown and "Debug source" not in shown


def test_obstore_reads_no_more_than_it_needs(request: pytest.FixtureRequest) -> None:
    with ExitStack() as stack:
        store = make_store("obstore", request, stack)
        dtf.to_tfrecord(COLUMNS, "d/x", features=COLUMN_FEATURES, storage_options=store.options)
        ds = dtf.read_tfrecord("d/x", COLUMN_FEATURES, storage_options=store.options)
        ds.schema.to_pbtxt("d/schema.pbtxt", storage_options=store.options)
        stack.callback(setattr, store.log, "alter", store.log.alter)
        store.log.clear()
        store.log.alter = lambda status, headers, content: (status, headers, content + bytes(100 << 20))
        check_columns(ds)
        with pytest.raises(TFRecordError, match="expected a text file of at most"):
            dtf.Schema.read("d/schema.pbtxt", storage_options=store.options)
        assert store.log.sent < 100 << 20


@pytest.mark.parametrize("times", [1, 3])
def test_obstore_repeats_requests(request: pytest.FixtureRequest, times: int) -> None:
    with ExitStack() as stack:
        store = make_store("obstore", request, stack)
        dtf.to_tfrecord(COLUMNS, "d/x", features=COLUMN_FEATURES, storage_options=store.options)
        ds = dtf.read_tfrecord("d/x", COLUMN_FEATURES, storage_options=store.options)
        for fault in (503, "drop"):
            store.log.clear()
            store.log.fault = lambda number, fault=fault: fault if number < times else None  # type: ignore[misc]
            assert ds["x"].compute().tolist() == COLUMNS["x"].tolist()
            assert len(store.log.asked) == times + 1


def test_an_obstore_of_http_reads_named_files(shard: bytes) -> None:
    stores = pytest.importorskip("obstore.store")
    with servers.running(servers.FileServer, files={"a/x": shard}, etags={"a/x": "1"}, ranges=True) as (address, log):
        url = address.replace("://", f"://user:{SECRET}@")
        options = {"store": stores.HTTPStore(url, client_options={"allow_http": True})}
        ds = dtf.read_tfrecord("a/x", storage_options=options)
        assert ds["label"][:2].compute().tolist() == [0, 1]
        for given, kind in (("a/y", ShardNotFoundError), ("a/*", NotImplementedError), ("a", ShardNotFoundError)):
            with pytest.raises(kind) as failed:
                dtf.read_tfrecord(given, storage_options=options)
            assert SECRET not in "".join(traceback.format_exception(failed.value))
        assert SECRET not in repr(ds) + str(list(ds.__dask_graph__()))
        assert {asked.method for asked in log.asked} <= {"GET", "HEAD"}


def test_the_page_about_obstore_runs() -> None:
    pytest.importorskip("obstore")
    [text] = [block.text for block in blocks("docs/how-to/bucket.md", "py") if "MemoryStore()" in block.text]
    exec(text, {})


@pytest.mark.parametrize("counts", ["scan", None])
def test_counting_and_reading_take_a_shard_once_each(store: Store, shard: bytes, counts: str | None) -> None:
    store.log.clear()
    ds = open_dataset(store, counts=counts, chunks="shard")
    # In addition to the listing: lookups of the path and of sidecars.
    ranges = [asked for asked in store.log.asked if asked.range]
    assert len(ranges) <= 1 + len(shard) / RANGE
    assert sum(asked.sent for asked in ranges) <= 1.02 * len(shard)
    store.log.clear()
    assert ds["label"].compute().tolist() == list(range(RECORDS))
    assert len(store.log.asked) <= 1 + len(shard) / RANGE
    assert store.log.sent <= 1.02 * len(shard)


@pytest.mark.parametrize("chunks", ["256 KiB", "1 MiB", None])
@pytest.mark.parametrize("index", [True, False])
def test_a_conversion_reads_a_shard_about_once(
    store: Store, shard: bytes, tmp_path: Path, chunks: str | None, index: bool
) -> None:
    features: dict[str, Any] = {"label": dtf.FixedLenFeature((), "int64"), "image": dtf.RawFeature((6_000,), "uint8")}
    if index:
        (tmp_path / "x").write_bytes(shard)
        dtf.build_index(tmp_path / "x")
        store.put("x.idx", (tmp_path / "x.idx").read_bytes())
    ds = dtf.read_tfrecord(f"{store.url}/x", features, storage_options=store.options)
    # Without an index, a task begins up to half a MiB before its rows.
    with replaced_limits(min_write_tasks=8 if index else 2):
        store.log.clear()
        ds.to_zarr(tmp_path / "x.zarr", chunks=chunks)
    assert store.log.sent <= (1.05 if index else 1.15) * len(shard)


RAGGED: dict[str, Any] = {"tokens": dtf.VarLenFeature("int64"), "words": dtf.VarLenFeature("bytes")}


@pytest.mark.parametrize("limits", [{}, {"count_task_nbytes": 1 << 20}, {"offsets_nbytes": 1 << 14}])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_ragged_columns_are_measured_while_records_are_counted(
    store: Store, tmp_path: Path, limits: dict[str, int], compression: str | None
) -> None:
    """Lengths that would take too much memory are measured by a pass of their own."""
    rng = np.random.default_rng(0)
    columns = {
        "tokens": [rng.integers(0, 1 << 40, size) for size in rng.integers(0, 900, 2_000)],
        "words": [[rng.bytes(row % 7)] * (row % 3) for row in range(2_000)],
    }
    options: dict[str, Any] = {"compression": compression}
    dtf.to_tfrecord(columns, tmp_path / "x", features=dtf.Schema(RAGGED), **options)
    dtf.read_tfrecord(tmp_path / "x", RAGGED).to_zarr(tmp_path / "local.zarr", chunks=100)
    stored = (tmp_path / "x").read_bytes()
    name = f"ragged-{compression}-{sum(limits.values())}"
    store.put(name, stored)
    with replaced_limits(**limits):
        ds = dtf.read_tfrecord(f"{store.url}/{name}", RAGGED, storage_options=store.options)
        store.log.clear()
        plan = ds.plan_zarr(chunks=100)
    is_measured = "offsets_nbytes" not in limits
    if compression is None:
        # A plan reads the first rows.
        assert (store.log.sent < 0.5 * len(stored)) is is_measured
    plan.to_zarr(tmp_path / "remote.zarr")
    local, remote = dtf.from_zarr(tmp_path / "local.zarr").compute(), dtf.from_zarr(tmp_path / "remote.zarr").compute()
    for column in RAGGED:
        assert_same_array(to_array(remote[column]), to_array(local[column]))


@pytest.mark.parametrize("change", [None, "features", "rows", "damaged", "cut", "gone"])
@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("store", ["s3", "obstore"], indirect=True)
def test_an_index_keeps_the_lengths_of_ragged_columns(
    store: Store, bucket: tuple[Any, str, servers.Log], tmp_path: Path, compression: str | None, change: str | None
) -> None:
    """A conversion reads the shards once; twice if the lengths belong to others, are damaged or gone."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 1 << 40, size) for size in rng.integers(0, 900, 2_000)]
    features = {**RAGGED, "threes": dtf.VarLenFeature("int64", shape=(-1, 3))}
    parts = {"a": slice(0, 1_500), "b": slice(1_500, 1_500), "c": slice(1_500, 2_000)}
    folder = f"lengths-{compression}-{change}"

    def put(tokens: list[NDArray[np.int64]]) -> int:
        nbytes = 0
        for name, part in parts.items():
            threes = [row[: len(row) // 3 * 3].reshape(-1, 3) for row in tokens[part]]
            words = [[rng.bytes(3)] * (row % 3) for row in range(len(threes))]
            columns = {"tokens": tokens[part], "words": words, "threes": threes}
            dtf.to_tfrecord(columns, tmp_path / name, features=features, compression=compression, mode="w")
            stored = (tmp_path / name).read_bytes()
            store.put(f"{folder}/{name}", stored)
            nbytes += len(stored)
        return nbytes

    nbytes = put(rows)
    urls = [f"{store.url}/{folder}/{name}" for name in parts]
    written = dtf.build_index(urls, dtf.Schema(features), storage_options=store.options)
    assert sum(path.endswith(".lengths.idx") for path in written) == len(parts)
    fs, sidecar = bucket[0], f"bucket/d/{folder}/a.lengths.idx"
    fs.invalidate_cache()
    lengths = bytearray(fs.cat_file(sidecar))
    match change:
        case "features":
            features["none"] = dtf.VarLenFeature("float32")
        case "rows":
            # As many records and bytes.
            put([*rows[1_499::-1], *rows[1_500:]])
            dtf.build_index(urls, storage_options=store.options)
        case "damaged":
            lengths[-8] ^= 1
            fs.pipe_file(sidecar, bytes(lengths))
        case "cut":
            fs.pipe_file(sidecar, bytes(lengths[:-1]))
        case "gone":
            fs.rm(sidecar)
    ds = dtf.read_tfrecord(urls, features, storage_options=store.options)
    store.log.clear()
    ds.to_zarr(tmp_path / "remote.zarr", chunks=500)
    if compression is None:
        assert (store.log.sent < 1.25 * nbytes) is (change is None)
    dtf.read_tfrecord([tmp_path / name for name in parts], features).to_zarr(tmp_path / "local.zarr", chunks=500)
    local, remote = dtf.from_zarr(tmp_path / "local.zarr").compute(), dtf.from_zarr(tmp_path / "remote.zarr").compute()
    for column in features:
        assert_same_array(to_array(remote[column]), to_array(local[column]))


@pytest.mark.parametrize("change", ["payload", "header", "feature"])
def test_a_record_that_cannot_be_measured_is_refused_as_without_measuring(
    store: Store, tmp_path: Path, change: str
) -> None:
    rows = [{"tokens": [*range(row)]} for row in range(50)]
    dtf.to_tfrecord({"tokens": [row["tokens"] for row in rows]}, tmp_path / "x", features={"tokens": RAGGED["tokens"]})
    stored = bytearray((tmp_path / "x").read_bytes())
    wanted = {"tokens": dtf.VarLenFeature("float32") if change == "feature" else RAGGED["tokens"]}
    if change != "feature":
        stored[-30 if change == "payload" else -len(stored) // 2] ^= 255
    store.put("refused", bytes(stored))
    (tmp_path / "x").write_bytes(stored)
    messages = []
    for path, options in ((f"{store.url}/refused", store.options), (str(tmp_path / "x"), {})):
        with pytest.raises(dtf.TFRecordError) as refused:
            dtf.read_tfrecord(path, wanted, storage_options=options).to_zarr(tmp_path / "refused.zarr")
        messages.append((type(refused.value), str(refused.value).partition(":")[2][-60:]))
    assert messages[0] == messages[1]


def test_batches_read_long_records_about_once(store: Store, tmp_path: Path) -> None:
    """A record decodes to many times the rows that a thread reads at once, and those rows need all of its bytes."""
    pytest.importorskip("PIL")
    frames = np.random.default_rng(0).integers(0, 256, (6, 40, 160, 160, 3), np.uint8)
    best = {"format": "jpeg", "quality": 98}
    stored = {"steps/image": dtf.ImageFeature((-1, 160, 160, 3))}
    dtf.to_tfrecord({"steps/image": list(frames)}, tmp_path / "x", features=stored, encoding={"steps/image": best})
    store.put("x", (tmp_path / "x").read_bytes())
    large = {"steps/image": dtf.ImageFeature((-1, 224, 224, 3), "float32", size=(224, 224))}
    ds = dtf.read_tfrecord(f"{store.url}/x", large, storage_options=store.options)
    batches = ds.explode("steps").batches(16, shuffle="window", window=32, seed=0)
    store.log.clear()
    with batches:
        assert sum(len(batch["record"]) for batch in batches) == 240
    assert store.log.sent <= 2.5 * (tmp_path / "x").stat().st_size


def test_one_row_is_one_range(store: Store) -> None:
    ds = open_dataset(store)
    for row in (0, 5, RECORDS // 2, RECORDS - 1):
        for wanted in (ds["label"][row], ds.rows[row]["label"], ds.rows[[row]]["label"]):
            store.log.clear()
            assert np.asarray(wanted.compute()).ravel().tolist() == [row]
            assert len(store.log.asked) == 1
            assert store.log.sent <= 3 << 20


def test_records_that_were_passed_are_read_alone_or_with_those_nearby(store: Store) -> None:
    rows = open_dataset(store).as_sequence()
    assert rows[RECORDS - 2]["label"] == RECORDS - 2
    store.log.clear()
    for row in (RECORDS - 2, RECORDS - 3, RECORDS - 20):
        assert rows[row]["label"] == row
    assert len(store.log.asked) == 3
    # A record has 6 kB; its entry of the index may be 1 MB before it.
    assert store.log.sent <= 3 * 7_000
    near, far = list(range(RECORDS - 100, RECORDS, 7)), [200, 5]
    for _ in range(2):
        store.log.clear()
        assert [row["label"] for row in rows.__getitems__([*near, *far])] == [*near, *far]
        assert len(store.log.asked) <= 3
    assert store.log.sent <= (100 + 2) * 7_000


def test_adjacent_rows_are_read_in_large_ranges(store: Store, shard: bytes) -> None:
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
    ds = open_dataset(store, chunks=RECORDS // 3)
    store.log.clear()
    assert ds["label"].compute().tolist() == list(range(RECORDS))
    # A chunk begins at the index entry before it and ends at the one after it, each within 1 to 2 MiB.
    assert len(store.log.asked) <= 3
    assert store.log.sent <= len(shard) + (6 << 20)


def test_splits_read_little_more_than_their_bytes(store: Store, shard: bytes) -> None:
    ds = open_dataset(store, counts=None, chunks="6 MiB")
    assert ds.npartitions == 3
    store.log.clear()
    assert ds["label"].compute().tolist() == list(range(RECORDS))
    # Splits except the first search for their first header, in one range; all but the last check the next header.
    assert len(store.log.asked) <= 3 + 2 + 2
    assert store.log.sent <= len(shard) + 2 * (512 << 10)


def test_sidecars_spare_the_shards(store: Store, shard: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(shard)
    [index] = dtf.build_index(tmp_path / "x")
    store.put("x.idx", Path(index).read_bytes())
    store.log.clear()
    ds = open_dataset(store)
    assert ds.nrows == RECORDS
    assert store.log.sent < Path(index).stat().st_size + 20_000
    store.log.clear()
    assert ds["label"][7].compute() == 7
    assert len(store.log.asked) == 1


# -- Google Cloud Storage by gcsfs and an emulator ---------------------------------------------------------------------

ROWS = 40
COLUMNS = {"x": np.arange(ROWS), "text": [f"row {row}" * (row % 3) for row in range(ROWS)]}
COLUMN_FEATURES = {"x": dtf.FixedLenFeature((), "int64"), "text": dtf.TextFeature()}


@pytest.fixture
def gcs_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Store with two shards that the library wrote."""
    with ExitStack() as stack, replaced_limits(first_retry_wait=0.001), dask.config.set(scheduler="sync"):
        store = make_store("gcs", request, stack)
        write_columns(store.options, COLUMNS, f"{store.url}/a-{{shard:05d}}-of-{{shards:05d}}.tfrecord")
        store.log.clear()
        yield store
        store.log.fault = lambda number: None


def opened(gcs_store: Store, name: str = "a@2.tfrecord") -> dtf.Dataset:
    return dtf.read_tfrecord(f"{gcs_store.url}/{name}", COLUMN_FEATURES, storage_options=gcs_store.options)


def check_columns(ds: dtf.Dataset) -> None:
    assert ds["x"].compute().tolist() == COLUMNS["x"].tolist()
    assert ds["text"].compute().tolist() == COLUMNS["text"]


@pytest.mark.parametrize("name", ["a@2.tfrecord", "a-*.tfrecord", ""])
def test_shards_are_written_indexed_and_read(gcs_store: Store, name: str) -> None:
    dtf.build_index(f"{gcs_store.url}/a@2.tfrecord", storage_options=gcs_store.options)
    ds = opened(gcs_store, name)
    check_columns(ds)
    gcs_store.log.clear()
    assert ds["x"][-1].compute() == ROWS - 1
    assert any(asked.range for asked in gcs_store.log.gets)


def test_zarr_stores_are_written_resumed_and_replaced(gcs_store: Store) -> None:
    target, ds = f"{gcs_store.url}/a.zarr", opened(gcs_store)
    options: dict[str, Any] = {"storage_options": gcs_store.options, "chunks": 10}
    gcs_store.log.fault = lambda number: 403 if "a-00001" in gcs_store.log.asked[-1].path else None
    with pytest.raises(Exception, match="a-00001-of-00002"):
        ds.to_zarr(target, **options, resume=True)
    gcs_store.log.fault = lambda number: None
    ds.to_zarr(target, **options, resume=True)
    check_columns(dtf.from_zarr(target, storage_options=gcs_store.options))
    with pytest.raises((FileExistsError, StoreInUseError)):
        ds.to_zarr(target, **options)
    ds.to_zarr(target, **options, mode="w")
    check_columns(dtf.from_zarr(target, storage_options=gcs_store.options))


@pytest.mark.parametrize("fault", [503, 429, "drop"])
def test_faults_of_requests_are_retried(gcs_store: Store, fault: int | str) -> None:
    gcs_store.log.fault = lambda number: fault if number in (0, 4) else None
    check_columns(opened(gcs_store))


def test_a_store_that_always_fails_is_a_storage_error(gcs_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = opened(gcs_store)
    gcs_store.log.fault = lambda number: "drop"
    # gcsfs waits half a minute between its own attempts.
    retry = pytest.importorskip("gcsfs.retry")
    monkeypatch.setattr(retry, "asyncio", SimpleNamespace(sleep=lambda seconds: asyncio.sleep(0)))
    with dask.config.set({"tfrecord.storage.attempts": 1}), pytest.raises(StorageError, match="in 1 attempt"):
        ds["x"].compute()


def test_files_that_are_missing_or_changed_are_named(gcs_store: Store) -> None:
    with pytest.raises(ShardNotFoundError, match="missing"):
        opened(gcs_store, "missing.tfrecord")
    ds = opened(gcs_store)
    gcs_store.put("a-00001-of-00002.tfrecord", b"other content")
    with pytest.raises(ShardChangedError, match="a-00001-of-00002"):
        ds["x"].compute()
