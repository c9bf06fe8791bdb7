"""Reading from object stores: number and size of requests, failures, and changed files."""

import errno
import gzip
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dask
import fsspec
import pytest
from support import servers
from support.object_stores import Store, make_store
from support.waiting import wait_until

from dask_tfrecord.errors import ShardChangedError, ShardNotFoundError, StorageError
from dask_tfrecord.settings import Limits
from dask_tfrecord.shards.listing import find_shards
from dask_tfrecord.shards.remote import is_transient, with_retries
from dask_tfrecord.shards.shard import Shard
from dask_tfrecord.shards.streams import open_stream

ATTEMPTS = 8
# An eighth of the real size, so that three ranges are created quickly.
RANGE = 1 << 20
DATA = random.Random(0).randbytes(3 * RANGE + 100_000)


@pytest.fixture(autouse=True)
def shorter() -> Iterator[None]:
    with dask.config.set({"tfrecord.storage.range-size": RANGE}):
        yield


S3 = pytest.param("s3", marks=pytest.mark.integration)


@pytest.fixture(params=[S3, "http", "rangeless"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with ExitStack() as stack:
        yield make_store(request.param, request, stack)


# Stores with support of ranges.
ranged = pytest.mark.parametrize("store", [S3, "http"], indirect=True)


def stored(store: Store, data: bytes, **options: Any) -> Shard:
    """Store a shard and find it; its requests are not in the log."""
    store.put("x", data)
    [shard] = find_shards(f"{store.url}/x", storage_options=store.options, **options)
    store.log.clear()
    return shard


@pytest.fixture
def quick(set_limits: Callable[..., Limits]) -> None:
    """Shorten the waits between attempts."""
    set_limits(first_retry_wait=0.001)


def read(shard: Any, start: int = 0, stop: int | None = None, size: int = 1 << 20) -> bytes:
    buffer = memoryview(bytearray(size))
    parts = []
    end = shard.size if stop is None else stop
    with open_stream(shard, start, stop) as stream:
        while (left := end - stream.position) and (count := stream.readinto(buffer[:left])):
            parts.append(bytes(buffer[:count]))
    return b"".join(parts)


class TestRanges:
    def test_of_unknown_length(self, store: Store) -> None:
        shard = stored(store, DATA)
        assert read(shard) == DATA
        # Ranges double up to the maximum size.
        assert len(store.log.asked) <= 1 + 5 + len(DATA) / RANGE
        assert store.log.sent <= 1.02 * len(DATA)

    @ranged
    @pytest.mark.parametrize("start", [0, 1, RANGE // 2])
    @pytest.mark.parametrize("length", [1, 1000, 300_000, 2 * RANGE + 1000])
    def test_the_last_range_ends_where_reading_ends(self, store: Store, start: int, length: int) -> None:
        shard, stop = stored(store, DATA, compression=None), start + length
        assert read(shard, start, stop) == DATA[start:stop]
        assert store.log.sent == length
        assert [asked.range for asked in store.log.asked] == [
            f"bytes={at}-{min(at + RANGE, stop) - 1}" for at in range(start, stop, RANGE)
        ]

    @ranged
    def test_reading_the_head_takes_one_small_range(self, store: Store) -> None:
        shard = stored(store, DATA)
        with open_stream(shard) as stream:
            stream.readinto(memoryview(bytearray(1000)))
        assert store.log.sent <= 256 << 10

    def test_gzip(self, store: Store) -> None:
        data, part = random.Random(0).randbytes(100) * 500_000, memoryview(bytearray(1 << 20))
        packed = gzip.compress(data, 1)
        shard = stored(store, packed)
        with open_stream(shard, 0, len(data)) as stream:
            assert b"".join(iter(lambda: bytes(part[: stream.readinto(part)]), b"")) == data
        assert len(store.log.asked) <= 1 + len(packed) / RANGE
        assert store.log.sent <= 1.02 * len(packed)

    @ranged
    def test_the_next_range_comes_while_one_is_used(self, store: Store) -> None:
        shard = stored(store, DATA)
        with open_stream(shard, 0, len(DATA)) as stream:
            stream.readinto(memoryview(bytearray(10)))
            wait_until(lambda: len(store.log.asked) > 1)
            # The third range is not requested while the first one is read.
            time.sleep(0.1)
            assert len(store.log.asked) == 2

    def test_no_thread_is_left(self, store: Store) -> None:
        shard = stored(store, DATA)
        read(shard, 0, 10)  # starts threads of clients, which stay
        before = {*threading.enumerate()}
        with open_stream(shard, 0, len(DATA)) as stream:
            stream.readinto(memoryview(bytearray(10)))
        wait_until(lambda: before.issuperset(threading.enumerate()), state=threading.enumerate)


@pytest.mark.usefixtures("quick")
class TestFailures:
    @pytest.mark.parametrize("fault", ["drop", 503, 500, 429])
    def test_every_fifth_request(self, store: Store, fault: str | int) -> None:
        """Bytes are neither lost nor duplicated."""
        shard = stored(store, DATA)
        # A server without ranges receives few requests.
        store.log.fault = lambda number: fault if number % 5 == (0 if len(store.log.gets) < 2 else 4) else None
        with dask.config.set({"tfrecord.storage.range-size": "256 KiB"}):
            assert read(shard) == read(shard, stop=len(DATA)) == DATA

    @pytest.mark.parametrize("burst", [1, 3, ATTEMPTS - 1])
    def test_bursts(self, store: Store, burst: int) -> None:
        shard = stored(store, DATA[:100_000])
        store.log.fault = lambda number: 503 if number < burst else None
        assert read(shard) == DATA[:100_000]
        assert len(store.log.gets) == burst + 1

    def test_listing_bears_bursts(self, store: Store) -> None:
        store.put("x1", b"one")
        store.put("x2", b"two")
        store.log.clear()
        store.log.fault = lambda number: 503 if number < 2 else None
        assert len(find_shards(f"{store.url}/x*", storage_options=store.options)) == 2

    @pytest.mark.parametrize(
        ("status", "attempts", "said"),
        [
            (503, ATTEMPTS, r"x: could not read bytes 0 to 1000 in 8 attempts .*again"),
            (503, 1, "in 1 attempt over"),
            # Permanent errors are not retried.
            (403, None, r"(?i)403|forbidden"),
        ],
    )
    def test_in_the_end_it_is_an_error(self, store: Store, status: int, attempts: int | None, said: str) -> None:
        shard = stored(store, DATA[:1000])
        store.log.fault = lambda number: status
        with (
            dask.config.set({"tfrecord.storage.attempts": attempts or ATTEMPTS}),
            pytest.raises(OSError if attempts is None else StorageError, match=said),
        ):
            read(shard)
        assert len(store.log.gets) == (attempts or 1)

    def test_retries_end_when_the_result_is_not_needed(self) -> None:
        """A closed stream stops its retries."""
        stopped = threading.Event()
        calls = []

        def fail() -> None:
            calls.append(1)
            stopped.set()
            raise ConnectionResetError

        with pytest.raises(ConnectionResetError):
            with_retries(fail, "x", "try", stopped)
        assert len(calls) == 1

    @pytest.mark.parametrize(
        ("error", "passing"),
        [
            (ConnectionResetError(errno.ECONNRESET, "reset"), True),
            (TimeoutError(), True),
            (OSError(errno.EIO, "disk"), True),
            (OSError(errno.EBUSY, "slow down"), True),
            (FileNotFoundError(errno.ENOENT, "gone"), False),
            (PermissionError(errno.EACCES, "no"), False),
            (OSError(errno.EINVAL, "wrong"), False),
            (ValueError("a bug"), False),
            (KeyboardInterrupt(), False),
            (ShardChangedError("changed"), False),
        ],
    )
    def test_kinds(self, error: BaseException, passing: bool) -> None:
        assert is_transient(error) == passing

    def test_waits_grow_and_are_spread(self, set_limits: Callable[..., Limits]) -> None:
        waits = []

        class Watch(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                waits.append(timeout)
                return False

        set_limits(first_retry_wait=0.1)

        def fail() -> None:
            raise TimeoutError

        for _ in range(2):
            with pytest.raises(StorageError):
                with_retries(fail, "x", "try", Watch())
        first, second = waits[: ATTEMPTS - 1], waits[ATTEMPTS - 1 :]
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            assert 0.05 * 2**number <= one <= 0.1 * 2**number
            assert one != other


class TestChanges:
    def test_replaced_since_it_was_listed(self, store: Store) -> None:
        shard = stored(store, b"a" * 1000)
        for data in (b"b" * 1000, b"b" * 2000, b"b" * 10):
            store.put("x", data)
            with pytest.raises(ShardChangedError, match="call read_tfrecord again"):
                read(shard)

    @ranged
    def test_replaced_while_it_is_read(self, store: Store) -> None:
        shard = stored(store, DATA)
        with pytest.raises(ShardChangedError), open_stream(shard) as stream:
            buffer = memoryview(bytearray(1 << 20))
            stream.readinto(buffer)
            store.put("x", bytes(len(DATA)))
            while stream.readinto(buffer):
                pass

    @ranged
    def test_gone(self, store: Store) -> None:
        shard = stored(store, b"a")
        gone = type(shard)(f"{store.url}/y", shard.size, shard.version, None, shard.storage_options)
        with pytest.raises(ShardNotFoundError, match="gone since it was listed"):
            read(gone)

    def test_written_with_the_same_size(self, tmp_path: Path) -> None:
        for path in (str(tmp_path / "x"), "memory://changes/x"):
            fs, inside = fsspec.url_to_fs(path)
            fs.pipe_file(inside, b"12345")
            [shard] = find_shards(path)
            time.sleep(0.001)
            fs.pipe_file(inside, b"54321")
            os.utime(inside, ns=(1, 10**18)) if path.startswith("/") else None
            with pytest.raises(ShardChangedError, match="was written to or replaced"):
                read(shard)
            fs.rm(inside)


class TestListing:
    @pytest.mark.integration
    def test_a_bucket_is_listed_once(self, moto: int) -> None:
        s3fs = pytest.importorskip("s3fs")
        direct = s3fs.S3FileSystem(key="a", secret="b", endpoint_url=f"http://127.0.0.1:{moto}")
        direct.mkdir("many")
        # Adding the objects to the server in this process is faster than 1100 requests.
        backend = pytest.importorskip("moto.s3.models").s3_backends["123456789012"]["aws"]
        for number in range(1100):
            backend.put_object("many", f"d/x-{number:05}-of-01100", b"")
        with servers.running(servers.Proxy, port=moto) as (address, log):
            options = {"key": "a", "secret": "b", "endpoint_url": address}
            for urlpath in ("s3://many/d/x-*", "s3://many/d/x@1100", "s3://many/d"):
                log.clear()
                assert len(find_shards(urlpath, storage_options=options)) == 1100
                # A page of a listing has 1000 names; two requests try the literal path first.
                assert len(log.asked) <= 6

    @pytest.mark.integration
    def test_a_bucket_that_does_not_exist(self, s3: dict[str, Any]) -> None:
        for urlpath in ("s3://no-bucket/x-*", "s3://no-bucket/x@2", "s3://no-bucket/x"):
            with pytest.raises(ShardNotFoundError, match=r"no-bucket.*'no-bucket' is empty or not a directory"):
                find_shards(urlpath, storage_options=s3)

    def test_many_files_are_listed_at_once(self, memory: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
        names = [f"x-{number:05}-of-02000" for number in range(2000)]
        url, fs = memory(**dict.fromkeys(names, b"")), fsspec.filesystem("memory")
        asked: list[str] = []
        for name in ("info", "ls"):
            call = getattr(fs, name)
            monkeypatch.setattr(fs, name, lambda *a, call=call, **o: asked.append("") or call(*a, **o))
        for urlpath in (url, f"{url}/*", f"{url}/x@2000", [f"{url}/{name}" for name in names]):
            asked.clear()
            assert len(find_shards(urlpath)) == 2000
            assert len(asked) <= 3, urlpath
