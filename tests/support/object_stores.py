"""Object stores and HTTP servers on this machine that tests fill and read: S3 by moto, HTTP with and without ranges.

`conftest.py` imports the fixtures `moto`, `s3` and `bucket` for all test modules.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import ThreadingHTTPServer
from typing import Any

import fsspec
import pytest

from support import servers

# gcsfs reads it when it is imported. Otherwise it asks a second service by gRPC, which no emulator has.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")


class Store:
    """Remote directory: its URL, storage options and request log, and a function that stores a file by name."""

    def __init__(self, url: str, options: dict[str, Any], log: servers.Log, put: Callable[[str, bytes], None]) -> None:
        self.url, self.options, self.log, self.put = url, options, log, put


@pytest.fixture(scope="session")
def moto() -> Iterator[int]:
    """Port of an S3 server."""
    server_module = pytest.importorskip("moto.server")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()


@pytest.fixture(scope="session")
def s3(moto: int) -> dict[str, Any]:
    """Storage options of the S3 server. Each test module creates a bucket of its own."""
    pytest.importorskip("s3fs")
    return {"key": "a", "secret": "s3cret-of-the-key", "endpoint_url": f"http://127.0.0.1:{moto}"}


@pytest.fixture(scope="module")
def bucket(moto: int) -> Iterator[tuple[Any, str, servers.Log]]:
    """File system that reaches the S3 server directly; address and log of a proxy in front of the server."""
    s3fs = pytest.importorskip("s3fs")
    direct = s3fs.S3FileSystem(key="a", secret="b", endpoint_url=f"http://127.0.0.1:{moto}")
    if not direct.exists("bucket"):
        # All servers of a process have the same buckets.
        direct.mkdir("bucket")
    with servers.running(servers.Proxy, port=moto) as (address, log):
        yield direct, address, log


@contextmanager
def gcs_server() -> Iterator[int]:
    """Run an emulator of Google Cloud Storage in a thread, and yield its port."""
    emulator = pytest.importorskip("gcp_storage_emulator.server")
    storage = emulator.Storage(use_memory_fs=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(emulator.RequestHandler, storage))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def gcs() -> Iterator[tuple[str, servers.Log]]:
    """Yield the address and the log of a proxy in front of an emulator with an empty bucket."""
    gcsfs = pytest.importorskip("gcsfs")
    with gcs_server() as port, servers.running(servers.Proxy, port=port) as (address, log):
        gcsfs.GCSFileSystem(token="anon", endpoint_url=address).mkdir("bucket")
        yield address, log


def open_obstore(address: str, secret: str, **options: Any) -> Any:
    """Return a store object of obstore for the bucket of an S3 server."""
    config = {"access_key_id": "a", "secret_access_key": secret, "endpoint": address, "region": "us-east-1"}
    stores = pytest.importorskip("obstore.store")
    return stores.S3Store("bucket", config=config, client_options={"allow_http": True}, **options)


def make_store(kind: str, request: pytest.FixtureRequest, stack: ExitStack) -> Store:
    """Return an empty directory of a store.

    Parameters
    ----------
    kind : {"s3", "obstore", "gcs", "http", "rangeless"}
        S3 by s3fs or by a store object of obstore, Google Cloud Storage, or HTTP with or without support of ranges.
    request : pytest.FixtureRequest
        Request of the fixture that calls this function.
    stack : ExitStack
        Stops the HTTP server.
    """
    if kind in ("s3", "obstore"):
        direct, address, log = request.getfixturevalue("bucket")
        log.fault = lambda number: None
        direct.invalidate_cache()
        if direct.exists("bucket/d"):
            direct.rm("bucket/d", recursive=True)
        if kind == "obstore":
            return Store(
                "d",
                {"store": open_obstore(address, "b")},
                log,
                lambda name, data: direct.pipe_file(f"bucket/d/{name}", data),
            )
        options = {
            **{"key": "a", "secret": "b", "endpoint_url": address},
            # Retries of the client would hide those of the library.
            "config_kwargs": {"retries": {"max_attempts": 0}},
        }
        return Store("s3://bucket/d", options, log, lambda name, data: direct.pipe_file(f"bucket/d/{name}", data))
    if kind == "gcs":
        address, log = request.getfixturevalue("gcs")
        log.fault = lambda number: None
        options = {"token": "anon", "endpoint_url": address}
        direct = fsspec.filesystem("gs", **options)
        direct.invalidate_cache()
        if direct.exists("bucket/d"):
            direct.rm("bucket/d", recursive=True)
        return Store("gs://bucket/d", options, log, lambda name, data: direct.pipe_file(f"bucket/d/{name}", data))
    files: dict[str, bytes] = {}
    etags: dict[str, str] = {}
    handler: dict[str, Any] = {"files": files, "etags": etags, "ranges": kind == "http"}
    address, log = stack.enter_context(servers.running(servers.FileServer, **handler))

    def put(name: str, data: bytes) -> None:
        files[name], etags[name] = data, str(hash(data))

    return Store(address, {}, log, put)
