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
from dask_tfrecord.storage.listing import find_shards
from dask_tfrecord.storage.remote import is_transient, with_retries
from dask_tfrecord.storage.streams import open_stream

ATTEMPTS = 8
# An eighth of the real size, so that three ranges are created quickly.
RANGE = 1 << 20
DATA = random.Random(0).randbytes(3 * RANGE + 100_000)


@pytest.fixture(autouse=True)
def shorter() -> Iterator[None]:
    with dask.config.set({"tfrecord.storage.range-size": RANGE}):
        yield


@pytest.fixture(params=[pytest.param("s3", marks=pytest.mark.integration), "http", "rangeless"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with ExitStack() as stack:
        yield make_store(request.param, request, stack)


@pytest.fixture(params=[pytest.param("s3", marks=pytest.mark.integration), "http"])
def ranged(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Store with support of ranges."""
    with ExitStack() as stack:
        yield make_store(request.param, request, stack)


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
    def test_whole(self, ranged: Store) -> None:
        ranged.put("x", DATA)
        [shard] = find_shards(f"{ranged.url}/x", storage_options=ranged.options)
        ranged.log.clear()
        assert read(shard, stop=len(DATA)) == DATA
        assert len(ranged.log.asked) <= 1 + len(DATA) / RANGE
        assert ranged.log.sent <= 1.02 * len(DATA)

    def test_of_unknown_length(self, store: Store) -> None:
        store.put("x", DATA)
        [shard] = find_shards(f"{store.url}/x", storage_options=store.options)
        store.log.clear()
        assert read(shard) == DATA
        # Ranges double up to the maximum size.
        assert len(store.log.asked) <= 1 + 5 + len(DATA) / RANGE
        assert store.log.sent <= 1.02 * len(DATA)

    @pytest.mark.parametrize("start", [0, 1, 5 * RANGE // 2])
    @pytest.mark.parametrize("length", [1, 1000, 300_000])
    def test_a_part_is_one_range(self, ranged: Store, start: int, length: int) -> None:
        ranged.put("x", DATA)
        [shard] = find_shards(f"{ranged.url}/x", compression=None, storage_options=ranged.options)
        ranged.log.clear()
        assert read(shard, start, start + length) == DATA[start : start + length]
        [asked] = ranged.log.asked
        assert asked.range == f"bytes={start}-{start + length - 1}"
        assert asked.sent == length

    def test_several_ranges_end_where_reading_will_end(self, ranged: Store) -> None:
        ranged.put("x", DATA)
        [shard] = find_shards(f"{ranged.url}/x", storage_options=ranged.options)
        ranged.log.clear()
        stop = 2 * RANGE + 1000
        assert read(shard, 0, stop) == DATA[:stop]
        assert [asked.range for asked in ranged.log.asked] == [
            f"bytes={start}-{min(start + RANGE, stop) - 1}" for start in range(0, stop, RANGE)
        ]

    def test_reading_the_head_takes_one_small_range(self, ranged: Store) -> None:
        ranged.put("x", DATA)
        [shard] = find_shards(f"{ranged.url}/x", storage_options=ranged.options)
        ranged.log.clear()
        with open_stream(shard) as stream:
            stream.readinto(memoryview(bytearray(1000)))
        assert ranged.log.sent <= 256 << 10

    def test_gzip(self, store: Store) -> None:
        data = random.Random(0).randbytes(100) * 500_000
        packed = gzip.compress(data, 1)
        store.put("x", packed)
        [shard] = find_shards(f"{store.url}/x", storage_options=store.options)
        store.log.clear()
        with open_stream(shard, 0, len(data)) as stream:
            buffer = memoryview(bytearray(len(data)))
            done = 0
            while count := stream.readinto(buffer[done:]):
                done += count
            assert bytes(buffer[:done]) == data
        assert len(store.log.asked) <= 1 + len(packed) / RANGE
        assert store.log.sent <= 1.02 * len(packed)

    def test_the_next_range_comes_while_one_is_used(self, ranged: Store) -> None:
        ranged.put("x", DATA)
        [shard] = find_shards(f"{ranged.url}/x", storage_options=ranged.options)
        ranged.log.clear()
        with open_stream(shard, 0, len(DATA)) as stream:
            stream.readinto(memoryview(bytearray(10)))
            wait_until(lambda: len(ranged.log.asked) > 1)
            # The third range is not requested while the first one is read.
            time.sleep(0.1)
            assert len(ranged.log.asked) == 2

    def test_no_thread_is_left(self, store: Store) -> None:
        store.put("x", DATA)
        [shard] = find_shards(f"{store.url}/x", storage_options=store.options)
        with open_stream(shard, 0, len(DATA)) as stream:
            stream.readinto(memoryview(bytearray(10)))
        wait_until(
            lambda: not any("read-ahead" in thread.name for thread in threading.enumerate()), state=threading.enumerate
        )


@pytest.mark.usefixtures("quick")
class TestFailures:
    @pytest.mark.parametrize("fault", ["drop", 503, 500, 429])
    def test_every_fifth_request(self, store: Store, fault: str | int) -> None:
        """Bytes are neither lost nor duplicated."""
        data = DATA
        store.put("x", data)
        [shard] = find_shards(f"{store.url}/x", storage_options=store.options)
        store.log.clear()
        # A server without ranges receives few requests.
        store.log.fault = lambda number: fault if number % 5 == (0 if len(store.log.gets) < 2 else 4) else None
        with dask.config.set({"tfrecord.storage.range-size": "256 KiB"}):
            assert read(shard) == data
            assert read(shard, stop=len(data)) == data

    @pytest.mark.parametrize("burst", [1, 3, ATTEMPTS - 1])
    def test_bursts(self, store: Store, burst: int) -> None:
        store.put("x", DATA[:100_000])
        [shard] = find_shards(f"{store.url}/x", storage_options=store.options)
        store.log.clear()
        store.log.fault = lambda number: 503 if number < burst else None
        assert read(shard) == DATA[:100_000]
        assert len(store.log.gets) == burst + 1

    def test_listing_bears_bursts(self, store: Store) -> None:
        store.put("x1", b"one")
        store.put("x2", b"two")
        store.log.clear()
        store.log.fault = lambda number: 503 if number < 2 else None
        assert len(find_shards(f"{store.url}/x*", storage_options=store.options)) == 2

    def test_in_the_end_it_is_an_error(self, store: Store) -> None:
        store.put("x", DATA[:1000])
        [shard] = find_shards(f"{store.url}/x", storage_options=store.options)
        store.log.clear()
        store.log.fault = lambda number: 503
        with pytest.raises(StorageError, match=r"x: could not read bytes 0 to 1000 in 8 attempts .*again") as caught:
            read(shard)
        assert isinstance(caught.value, OSError)
        assert len(store.log.gets) == ATTEMPTS

    def test_the_setting_limits_the_attempts(self, store: Store) -> None:
        store.put("x", DATA[:1000])
        [shard] = find_shards(f"{store.url}/x", storage_options=store.options)
        store.log.clear()
        store.log.fault = lambda number: 503
        with dask.config.set({"tfrecord.storage.attempts": 1}), pytest.raises(StorageError, match="in 1 attempt over"):
            read(shard)
        assert len(store.log.gets) == 1

    def test_permanent_errors_are_not_retried(self, store: Store) -> None:
        store.put("x", DATA[:1000])
        [shard] = find_shards(f"{store.url}/x", storage_options=store.options)
        store.log.clear()
        store.log.fault = lambda number: 403
        with pytest.raises(Exception, match=r"(?i)403|forbidden"):
            read(shard)
        assert len(store.log.gets) == 1

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
        store.put("x", b"a" * 1000)
        [shard] = find_shards(f"{store.url}/x", storage_options=store.options)
        for data in (b"b" * 1000, b"b" * 2000, b"b" * 10):
            store.put("x", data)
            with pytest.raises(ShardChangedError, match="read the collection again"):
                read(shard)

    def test_replaced_while_it_is_read(self, ranged: Store) -> None:
        ranged.put("x", DATA)
        [shard] = find_shards(f"{ranged.url}/x", storage_options=ranged.options)
        with pytest.raises(ShardChangedError), open_stream(shard) as stream:
            buffer = memoryview(bytearray(1 << 20))
            stream.readinto(buffer)
            ranged.put("x", bytes(len(DATA)))
            while stream.readinto(buffer):
                pass

    def test_gone(self, ranged: Store) -> None:
        ranged.put("x", b"a")
        [shard] = find_shards(f"{ranged.url}/x", storage_options=ranged.options)
        gone = type(shard)(f"{ranged.url}/y", shard.size, shard.version, None, shard.storage_options)
        with pytest.raises(ShardNotFoundError, match="gone since it was listed"):
            read(gone)

    def test_local(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(b"12345")
        [shard] = find_shards(tmp_path / "x")
        os.utime(tmp_path / "x", ns=(1, 10**18))
        with pytest.raises(ShardChangedError, match="was written to or replaced"):
            read(shard)

    def test_memory(self) -> None:
        fs = fsspec.filesystem("memory")
        fs.pipe_file("/changes/x", b"12345")
        [shard] = find_shards("memory://changes/x")
        time.sleep(0.001)
        fs.pipe_file("/changes/x", b"54321")
        try:
            with pytest.raises(ShardChangedError):
                read(shard)
        finally:
            fs.rm("/changes", recursive=True)


class TestListing:
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
                # A page of a listing has 1000 names; two requests look up the literal path first.
                assert len(log.asked) <= 6

    def test_a_bucket_that_does_not_exist(self, s3: dict[str, Any]) -> None:
        for urlpath in ("s3://no-bucket/x-*", "s3://no-bucket/x@2", "s3://no-bucket/x"):
            with pytest.raises(ShardNotFoundError, match=r"no-bucket.*'no-bucket' is empty or not a directory"):
                find_shards(urlpath, storage_options=s3)

    def test_ten_thousand_files_of_a_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fs = fsspec.filesystem("memory")
        asked: list[str] = []
        for name in ("info", "ls"):
            monkeypatch.setattr(fs, name, self.counted(name, getattr(fs, name), asked))
        names = [f"x-{number:05}-of-10000" for number in range(10_000)]
        try:
            for name in names:
                fs.pipe_file(f"/many/{name}", b"")
            for urlpath in (
                "memory://many",
                "memory://many/*",
                "memory://many/x@10000",
                [f"memory://many/{name}" for name in names],
            ):
                asked.clear()
                assert len(find_shards(urlpath)) == 10_000
                assert len(asked) <= 3, urlpath
        finally:
            for name in names:
                fs.store.pop(f"/many/{name}", None)

    @staticmethod
    def counted(name: str, call: Callable[..., Any], asked: list[str]) -> Callable[..., Any]:
        def counting(*arguments: Any, **options: Any) -> Any:
            asked.append(name)
            return call(*arguments, **options)

        return counting
