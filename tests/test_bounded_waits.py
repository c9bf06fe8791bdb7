"""Servers that reset connections or never answer: reading retries, and ends within its time limit."""

from __future__ import annotations

import logging
import pickle
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import dask
import numpy as np
import pytest
from oracle import write_oracle
from support import servers
from support.object_stores import Store, make_store
from support.waiting import PATIENCE
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.errors import ShardNotFoundError, StorageError
from dask_tfrecord.settings import replaced_limits

ROWS = 50
ATTEMPTS = 8
SETTING = "tfrecord.storage.timeout"
FEATURES = {"label": dtf.FixedLenFeature((), "int64")}


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("bounded") / "x"

    write_oracle(path, (example(label=[record]) for record in range(ROWS)))
    return path.read_bytes()


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """Shorten the waits between attempts."""
    with replaced_limits(first_retry_wait=0.001), dask.config.set(scheduler="sync"):
        yield


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
    with servers.running(servers.FileServer, files={"x": shard}, etags={"x": "1"}) as (address, _):
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
        np.testing.assert_array_equal(ds["label"], np.arange(ROWS))


@pytest.mark.parametrize("pattern", ["x", "x*", "x@2", ""])
def test_a_server_that_resets_every_connection_is_a_storage_error(web: int, pattern: str) -> None:
    with Gate(web, resets=10**6) as gate:
        with pytest.raises(StorageError, match=rf"in {ATTEMPTS} attempts .*{SETTING}"):
            dtf.read_tfrecord(f"{gate.url}/{pattern}", FEATURES)
        # Each lookup is a HEAD and a GET request, and aiohttp reconnects once for each.
        assert gate.connections <= 4 * ATTEMPTS


def test_a_file_that_is_missing_is_reported_at_once(web: int) -> None:
    with Gate(web) as gate, pytest.raises(ShardNotFoundError):
        dtf.read_tfrecord(f"{gate.url}/y", FEATURES)


def test_resets_while_metadata_is_read_are_retried(shard: bytes) -> None:
    schema = dtf.Schema(FEATURES).to_json().encode()
    with (
        servers.running(servers.FileServer, files={"x": shard, "schema.json": schema}, etags={}) as (address, _),
        Gate(int(address.rpartition(":")[2]), resets=2) as gate,
    ):
        assert dict(dtf.Schema.read(f"{gate.url}/schema.json")) == FEATURES


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
        np.testing.assert_array_equal(ds["label"], np.arange(ROWS))


@pytest.fixture(params=["s3", "http"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with ExitStack() as stack:
        yield make_store(request.param, request, stack)


@pytest.mark.integration
@pytest.mark.parametrize("fault", ["drop", 503])
def test_one_range_takes_as_many_requests_as_attempts(store: Store, shard: bytes, fault: str | int) -> None:
    """Retries of the client do not multiply the requests."""
    store.put("x", shard)
    options = {name: value for name, value in store.options.items() if name != "config_kwargs"}
    ds = dtf.read_tfrecord(f"{store.url}/x", FEATURES, storage_options=options)
    store.log.clear()
    store.log.fault = lambda number: fault
    with pytest.raises(StorageError, match=rf"in {ATTEMPTS} attempts"):
        ds["label"].compute()
    assert len(store.log.gets) == ATTEMPTS


# ------------------------------------------------------------------------------------------------------------ silence


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
    retries = [record for record in caplog.records if record.name == "dask_tfrecord.storage.remote"]
    assert retries
    assert "attempt 1 to" in retries[0].getMessage()


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
            ds["label"].compute()


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
