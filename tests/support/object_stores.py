"""Object stores and HTTP servers on this machine that tests fill and read: S3 by moto, HTTP with and without ranges.

`conftest.py` imports the fixtures `moto`, `s3` and `bucket` for all test modules.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
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


@pytest.fixture(scope="module")
def gcs() -> Iterator[tuple[str, servers.Log]]:
    """Yield the address and the log of a proxy in front of an emulator with an empty bucket."""
    gcsfs = pytest.importorskip("gcsfs")
    emulator = pytest.importorskip("gcp_storage_emulator.server")
    handler = partial(emulator.RequestHandler, emulator.Storage(use_memory_fs=True))
    with servers.serving(handler) as port, servers.running(servers.Proxy, port=port) as (address, log):
        gcsfs.GCSFileSystem(token="anon", endpoint_url=address).mkdir("bucket")
        yield address, log


def open_obstore(address: str, secret: str, **options: Any) -> Any:
    """Return a store object of obstore for the bucket of an S3 server."""
    config = {"access_key_id": "a", "secret_access_key": secret, "endpoint": address, "region": "us-east-1"}
    stores = pytest.importorskip("obstore.store")
    return stores.S3Store("bucket", config=config, client_options={"allow_http": True}, **options)


def make_store(kind: str, request: pytest.FixtureRequest, stack: ExitStack) -> Store:
    """Return an empty directory: of S3, S3 by obstore, GCS, or HTTP with or without ranges ("rangeless")."""
    if kind in ("s3", "obstore", "gcs"):
        if kind == "gcs":
            address, log = request.getfixturevalue("gcs")
            options = {"token": "anon", "endpoint_url": address}
            direct = fsspec.filesystem("gs", **options)
        else:
            direct, address, log = request.getfixturevalue("bucket")
            # Retries of the client would hide the library's own.
            retries = {"config_kwargs": {"retries": {"max_attempts": 0}}}
            options = {"key": "a", "secret": "b", "endpoint_url": address, **retries}
        log.fault = lambda number: None
        direct.invalidate_cache()
        if direct.exists("bucket/d"):
            direct.rm("bucket/d", recursive=True)
        url = {"s3": "s3://bucket/d", "gcs": "gs://bucket/d", "obstore": "d"}[kind]
        if kind == "obstore":
            options = {"store": open_obstore(address, "b")}
        return Store(url, options, log, lambda name, data: direct.pipe_file(f"bucket/d/{name}", data))
    files: dict[str, bytes] = {}
    etags: dict[str, str] = {}
    handler: dict[str, Any] = {"files": files, "etags": etags, "ranges": kind == "http"}
    address, log = stack.enter_context(servers.running(servers.FileServer, **handler))

    def put(name: str, data: bytes) -> None:
        files[name], etags[name] = data, str(hash(data))

    return Store(address, {}, log, put)
