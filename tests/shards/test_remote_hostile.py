"""Servers that break HTTP, attack the reader, reset connections or never answer.

Responses are bounded, headers stay with their host, and reading retries and ends within its time limit.
"""

from __future__ import annotations

import gzip
import logging
import pickle
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from support import servers
from support.object_stores import Store, make_store
from support.waiting import PATIENCE

import dask_tfrecord as dtf
from dask_tfrecord.errors import ShardNotFoundError, StorageError, TFRecordError
from dask_tfrecord.settings import replaced_limits

ROWS = 50
ATTEMPTS = 8
SETTING = "tfrecord.storage.timeout"
FEATURES = {"x": dtf.FixedLenFeature((), "int64")}
# Bytes that a hostile server adds to a response: more than the buffers of two sockets, which a server fills before it
# learns that the client has gone.
SURPLUS = 64 << 20
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
    assert store.log.sent < SURPLUS


@pytest.mark.slow
def test_text_files_are_read_up_to_a_bound(store: Store, request: pytest.FixtureRequest) -> None:
    store.put("schema.json", SCHEMA)
    read = lambda: dtf.Schema.read(f"{store.url}/schema.json", storage_options=store.options)  # noqa: E731
    assert dict(read()) == FEATURES
    store.log.alter = longer_body
    with replaced_limits(text_nbytes=1 << 20), pytest.raises(TFRecordError, match="a text file of at most 1,048,576"):
        read()
    assert store.log.sent < SURPLUS
    if request.node.callspec.params["store"] != "s3":
        store.log.alter = encoded
        with pytest.raises(StorageError, match="Content-Encoding 'gzip'"):
            read()


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
            retried = [each.getMessage() for each in caplog.records if each.name == "dask_tfrecord.shards.remote"]
            assert retried
            assert all("503" in text and f"{address}/{name}" in text for text in retried)
            assert "s3cret" not in caplog.text


@pytest.mark.slow
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


# -- resets and silence


class Gate:
    """Server in front of another one: it resets the first connections, or accepts all and never answers."""

    def __init__(self, port: int, resets: int = 0, silent: bool = False) -> None:
        self.port, self.resets, self.silent = port, resets, silent
        self.connections = 0
        self._open: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Gate:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for each in self._open:
            each.close()
        self._thread.join(PATIENCE)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.getsockname()[1]}"

    def _serve(self) -> None:
        while True:
            try:
                taken, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            if self.silent:
                self._open.append(taken)
            elif self.connections <= self.resets:
                # SO_LINGER of 0 seconds closes with a reset.
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                taken.close()
            else:
                there = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
                self._open += [taken, there]
                for one, other in ((taken, there), (there, taken)):
                    threading.Thread(target=_copy, args=(one, other), daemon=True).start()


def _copy(one: socket.socket, other: socket.socket) -> None:
    try:
        while data := one.recv(1 << 16):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        return


@pytest.fixture
def web(shard: bytes) -> Iterator[int]:
    """Port of a web server with one shard."""
    with serving({"x": shard, "schema.json": SCHEMA}) as (address, _):
        yield int(address.rpartition(":")[2])


@pytest.fixture
def aiohttp_client(web: int) -> None:
    """Import the client of HTTP by a first request."""
    assert dtf.read_tfrecord(f"http://127.0.0.1:{web}/x", FEATURES).nrows == ROWS


# ------------------------------------------------------------------------------------------------------------- resets


@pytest.mark.parametrize("resets", [1, pytest.param(5, marks=pytest.mark.slow), ATTEMPTS - 1])
def test_resets_while_opening_are_retried(web: int, resets: int) -> None:
    with Gate(web, resets) as gate:
        ds = dtf.read_tfrecord(f"{gate.url}/x", FEATURES)
        np.testing.assert_array_equal(ds["x"], np.arange(ROWS))
    with Gate(web, resets) as gate:
        assert dict(dtf.Schema.read(f"{gate.url}/schema.json")) == FEATURES
    with Gate(web, resets) as gate, pytest.raises(ShardNotFoundError):
        dtf.read_tfrecord(f"{gate.url}/y", FEATURES)


@pytest.mark.parametrize("pattern", ["x", "x*", "x@2", ""])
def test_a_server_that_resets_every_connection_is_a_storage_error(web: int, pattern: str) -> None:
    with Gate(web, resets=10**6) as gate:
        with pytest.raises(StorageError, match=rf"in {ATTEMPTS} attempts .*{SETTING}"):
            dtf.read_tfrecord(f"{gate.url}/{pattern}", FEATURES)
        # Each lookup is a HEAD and a GET request, and aiohttp reconnects once for each.
        assert gate.connections <= 4 * ATTEMPTS


@pytest.mark.integration
def test_resets_of_s3_are_retried_as_often_as_they_are_counted(
    bucket: tuple[Any, str, servers.Log], moto: int, shard: bytes
) -> None:
    direct, _, _ = bucket
    direct.pipe_file("bucket/resets/x", shard)
    with Gate(moto, resets=10**6) as gate:
        options = {"key": "a", "secret": "b", "endpoint_url": gate.url}
        with pytest.raises(StorageError, match=rf"in {ATTEMPTS} attempts .*{SETTING}"):
            dtf.read_tfrecord("s3://bucket/resets/x", FEATURES, storage_options=options)
        assert gate.connections <= 2 * ATTEMPTS
    with Gate(moto, resets=ATTEMPTS - 1) as gate:
        options = {"key": "a", "secret": "b", "endpoint_url": gate.url}
        ds = dtf.read_tfrecord("s3://bucket/resets/x", FEATURES, storage_options=options)
        np.testing.assert_array_equal(ds["x"], np.arange(ROWS))


@pytest.mark.parametrize("fault", ["drop", 503])
def test_one_range_takes_as_many_requests_as_attempts(store: Store, fault: str | int) -> None:
    """Retries of the client do not multiply the requests."""
    options = {name: value for name, value in store.options.items() if name != "config_kwargs"}
    ds = dtf.read_tfrecord(f"{store.url}/x", FEATURES, storage_options=options)
    store.log.clear()
    store.log.fault = lambda number: fault
    with pytest.raises(StorageError, match=rf"in {ATTEMPTS} attempts"):
        ds["x"].compute()
    assert len(store.log.gets) == ATTEMPTS


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["http", pytest.param("s3", marks=pytest.mark.slow)])
def test_a_server_that_never_answers_ends_at_the_time_limit(
    kind: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    # The clients are imported before the time is measured.
    request.getfixturevalue("bucket" if kind == "s3" else "aiohttp_client")
    with Gate(0, silent=True) as gate, dask.config.set({SETTING: "3s"}), caplog.at_level(logging.INFO):
        options = {"key": "a", "secret": "b", "endpoint_url": gate.url} if kind == "s3" else {}
        url = "s3://bucket/x" if kind == "s3" else f"{gate.url}/x"
        errors: list[BaseException] = []

        def read() -> None:
            try:
                dtf.read_tfrecord(url, FEATURES, storage_options=options)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert 1 <= gate.connections <= 3 * ATTEMPTS
    [error] = errors
    assert isinstance(error, StorageError)
    assert f"{SETTING!r} limits the time, now to 3 s" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    retries = [record for record in caplog.records if record.name == "dask_tfrecord.shards.remote"]
    # On a loaded machine, the first attempt of s3fs may take all of the time.
    assert retries or kind == "s3"
    [attempts] = re.findall(r"in (\d+) attempt", str(error))
    assert len(retries) == int(attempts) - 1
    assert all(f"attempt {number} to" in record.getMessage() for number, record in enumerate(retries, 1))


@pytest.mark.slow
@pytest.mark.usefixtures("aiohttp_client")
def test_a_server_that_falls_silent_while_a_shard_is_read(web: int) -> None:
    with Gate(web) as gate, dask.config.set({SETTING: "3s"}):
        ds = dtf.read_tfrecord(f"{gate.url}/x", FEATURES)
        gate.silent = True
        # Open connections would still answer.
        for each in gate._open:
            each.close()
        with pytest.raises(StorageError, match=rf"x: could not read bytes .*{SETTING}"):
            ds["x"].compute()


@pytest.mark.slow
def test_timeouts_of_the_caller_take_precedence(web: int) -> None:
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=0.2)
    with Gate(web, silent=True) as gate:
        for options in ({"timeout": timeout}, {"client_kwargs": {"timeout": timeout}}):
            with pytest.raises(StorageError, match=rf"in {ATTEMPTS} attempts"):
                dtf.read_tfrecord(f"{gate.url}/x", FEATURES, storage_options=options)


@pytest.mark.parametrize("value", ["soon", -1, 0, None, float("inf")])
def test_a_limit_that_is_no_time_is_refused(web: int, value: Any) -> None:
    with Gate(web) as gate, dask.config.set({SETTING: value}), pytest.raises(ValueError, match=SETTING):
        dtf.read_tfrecord(f"{gate.url}/x", FEATURES)
