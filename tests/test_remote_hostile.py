"""Servers that break HTTP or attack the reader: their responses are bounded, and headers stay with their host."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from support import servers
from support.object_stores import Store, make_store

import dask_tfrecord as dtf
from dask_tfrecord.errors import StorageError, TFRecordError
from dask_tfrecord.settings import replaced_limits

ROWS = 50
FEATURES = {"x": dtf.FixedLenFeature((), "int64")}
# Bytes that a hostile server adds to a response.
SURPLUS = 16 << 20
SECRETS = {"Authorization": "Bearer s3cret-token", "X-Api-Key": "s3cret-key", "Cookie": "session=s3cret-session"}

SCHEMA = dtf.Schema(FEATURES).to_json().encode()
Response = tuple[int, dict[str, str], bytes]


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """Shorten the waits between attempts."""
    with replaced_limits(first_retry_wait=0.001), dask.config.set(scheduler="sync"):
        yield


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("hostile") / "x"
    dtf.to_tfrecord({"x": np.arange(ROWS)}, path)
    return path.read_bytes()


@pytest.fixture(params=["http", "rangeless", pytest.param("s3", marks=pytest.mark.integration)])
def store(request: pytest.FixtureRequest, shard: bytes) -> Iterator[Store]:
    """Store with one shard; it answers as HTTP demands while the shard is opened."""
    with ExitStack() as stack:
        store = make_store(request.param, request, stack)
        store.put("x", shard)
        yield store
        store.log.alter = lambda *response: response


def serving(
    files: dict[str, bytes], handler: type[servers.FileServer] = servers.FileServer, **attributes: Any
) -> AbstractContextManager[tuple[str, servers.Log]]:
    return servers.running(handler, files=files, etags={}, **attributes)


def longer_range(status: int, headers: dict[str, str], content: bytes) -> Response:
    first, _, total = headers.get("Content-Range", "bytes 0-/1").partition("-")
    return (
        status,
        {**headers, "Content-Range": f"{first}-{SURPLUS}/{total.rpartition('/')[2]}"},
        content + b"A" * SURPLUS,
    )


def longer_body(status: int, headers: dict[str, str], content: bytes) -> Response:
    return status, headers, content + b"A" * SURPLUS


def encoded(status: int, headers: dict[str, str], content: bytes) -> Response:
    return status, {**headers, "Content-Encoding": "gzip"}, gzip.compress(content + b"A" * SURPLUS, 1)


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (longer_range, "the server answered a request of bytes"),
        (longer_body, None),
        (encoded, "Content-Encoding 'gzip'"),
    ],
)
def test_no_more_is_read_than_the_range(
    store: Store, alter: Callable[..., Response], message: str | None, request: pytest.FixtureRequest
) -> None:
    kind = request.node.callspec.params["store"]
    if (kind == "rangeless" and alter is longer_range) or (kind == "s3" and alter is encoded):
        pytest.skip("the response of this server has no such header")
    ds = dtf.read_tfrecord(f"{store.url}/x", FEATURES, storage_options=store.options)
    store.log.clear()
    store.log.alter = alter
    if message is not None or kind == "rangeless":
        # The size of a whole file differs from the one that was listed.
        with pytest.raises(TFRecordError, match=message or "the file had"):
            ds["x"].compute()
        assert len(store.log.gets) == 1
    else:
        np.testing.assert_array_equal(ds["x"], np.arange(ROWS))
    assert store.log.sent < SURPLUS // 2


def test_text_files_are_read_up_to_a_bound(store: Store) -> None:
    store.put("schema.json", SCHEMA)
    read = lambda: dtf.Schema.read(f"{store.url}/schema.json", storage_options=store.options)  # noqa: E731
    assert dict(read()) == FEATURES
    store.log.alter = longer_body
    with replaced_limits(text_nbytes=1 << 20), pytest.raises(TFRecordError, match="a text file of at most 1,048,576"):
        read()
    assert store.log.sent < SURPLUS // 2


def test_encoded_text_is_refused() -> None:
    with serving({"schema.json": SCHEMA}) as (address, log):
        log.alter = encoded
        with pytest.raises(StorageError, match="Content-Encoding 'gzip'"):
            dtf.Schema.read(f"{address}/schema.json")


class Redirects(servers.FileServer):
    """Redirect every request to another address."""

    target: str

    def answer(self, body: bytes) -> tuple[int, dict[str, str], bytes, int | None]:
        return 302, {"Location": self.target + self.path}, b"", None


@pytest.mark.parametrize("where", ["headers", "client"])
@pytest.mark.parametrize("name", ["x", "x*", "schema.json"])
def test_headers_of_the_caller_do_not_follow_redirects_to_other_hosts(shard: bytes, where: str, name: str) -> None:
    options: dict[str, Any] = {"headers": SECRETS} if where == "headers" else {"client_kwargs": {"headers": SECRETS}}
    files = {"x": shard, "schema.json": SCHEMA}
    with (
        serving(files) as (other, log),
        serving({}, Redirects, target=other) as (address, first),
    ):
        if name == "schema.json":
            assert dict(dtf.Schema.read(f"{address}/{name}", storage_options=options)) == FEATURES
        else:
            ds = dtf.read_tfrecord(f"{address}/{name}", FEATURES, storage_options=options)
            np.testing.assert_array_equal(ds["x"], np.arange(ROWS))
            assert any(asked.range for asked in log.asked)
        assert log.asked
        assert not [asked for asked in log.asked if "s3cret" in str(asked.headers)]
        assert all(SECRETS.items() <= asked.headers.items() for asked in first.asked)


def test_headers_of_the_caller_follow_redirects_within_a_host(shard: bytes) -> None:
    class Moved(servers.FileServer):
        def answer(self, body: bytes) -> tuple[int, dict[str, str], bytes, int | None]:
            if self.path == "/moved":
                return 302, {"Location": "/x"}, b"", None
            return super().answer(body)

    with serving({"x": shard}, Moved) as (address, log):
        ds = dtf.read_tfrecord(f"{address}/moved", FEATURES, storage_options={"headers": SECRETS})
        np.testing.assert_array_equal(ds["x"], np.arange(ROWS))
        assert all(SECRETS.items() <= asked.headers.items() for asked in log.asked)


@pytest.mark.parametrize("target", ["file:///etc", "ftp://host", "http://[broken"])
def test_redirects_to_other_protocols_are_refused(shard: bytes, target: str) -> None:
    with serving({"x": shard}) as (address, log):
        ds = dtf.read_tfrecord(f"{address}/x", FEATURES)
        log.alter = lambda *response: (302, {"Location": target}, b"")
        with pytest.raises(StorageError, match="only http:// and https:// are followed"):
            ds["x"].compute()
    with (
        serving({}, Redirects, target=target) as (address, log),
        pytest.raises(StorageError, match="only http:// and https:// are followed"),
    ):
        dtf.read_tfrecord(f"{address}/x", FEATURES)


def test_retries_log_no_credentials(shard: bytes, caplog: pytest.LogCaptureFixture) -> None:
    options = {"headers": SECRETS}
    with (
        serving({"x": shard, "schema.json": SCHEMA}) as (address, log),
        caplog.at_level(logging.DEBUG, "dask_tfrecord"),
    ):
        ds = dtf.read_tfrecord(f"{address}/x", FEATURES, storage_options=options)
        schema = f"{address}/schema.json"
        for name, use in {
            "x": ds.compute,
            "schema.json": lambda: dtf.Schema.read(schema, storage_options=options),
        }.items():
            log.clear()
            caplog.clear()
            log.fault = lambda number: 503 if number < 2 else None
            use()
            retried = [each.getMessage() for each in caplog.records if each.name == "dask_tfrecord.storage.remote"]
            assert retried
            assert all("503" in text and f"{address}/{name}" in text for text in retried)
            assert "s3cret" not in caplog.text


def test_a_range_of_one_byte_at_a_time_ends_at_the_time_limit(shard: bytes) -> None:
    with serving({"x": shard}) as (address, log):
        ds = dtf.read_tfrecord(f"{address}/x", FEATURES)
        log.piece, log.pause = 1, 0.2
        with dask.config.set({"tfrecord.storage.timeout": "1s"}):
            with pytest.raises(StorageError, match=r"could not read bytes .* limits the time, now to 1 s"):
                ds["x"].compute()
            with pytest.raises(StorageError, match="limits the time, now to 1 s"):
                dtf.Schema.read(f"{address}/x")


class AnswersAll(servers.FileServer):
    """Answer every unknown name with a page."""

    def answer(self, body: bytes) -> tuple[int, dict[str, str], bytes, int | None]:
        if self.path.strip("/") not in self.files:
            page = b"<html>Page not found</html>"
            return 200, {"Content-Type": "text/html"}, b"" if self.command == "HEAD" else page, len(page)
        return super().answer(body)


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("counts", ["auto", "scan"])
def test_pages_in_place_of_sidecars_are_warnings(shard: bytes, compress: Callable[[bytes], bytes], counts: str) -> None:
    with serving({"x": compress(shard)}, AnswersAll) as (address, _):
        with pytest.warns(UserWarning) as warned:
            ds = dtf.read_tfrecord(f"{address}/x", counts=counts)
        np.testing.assert_array_equal(ds["x"], np.arange(ROWS))
    texts = " ".join(str(warning.message) for warning in warned)
    assert f"{address}/x.xarray.json: expected labels of xarray" in texts
    assert f"{address}/x.idx" in texts or counts == "scan"


@pytest.mark.parametrize("text", [b"<html>", b"", b"\xff\xfe", b"\x00" * 100, b"GZIDX" + b"\xff" * 60])
@pytest.mark.parametrize("suffix", [".idx", ".gzidx", ".xarray.json"])
def test_bad_sidecars_of_every_kind_are_warnings(shard: bytes, tmp_path: Path, suffix: str, text: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(shard))
    Path(f"{path}{suffix}").write_bytes(text)
    with pytest.warns(UserWarning, match=f"x{suffix}"):
        ds = dtf.read_tfrecord(path)
    np.testing.assert_array_equal(ds["x"], np.arange(ROWS))
