"""Requests and time of `to_zarr` on an object store, beside `da.to_zarr`, xarray, and obstore for the same bytes.

The store keeps objects in the memory of a process of its own, answers each request after 30 ms, as a data centre does,
and counts requests by kind. (The S3 of moto took most of the time itself.) Each row of the table writes the same rows,
on a number of threads.

    python benchmarks/object_store.py --threads 2,8,32

needs s3fs, obstore and xarray.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import json
import multiprocessing
import re
import socket
import time
import urllib.request
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

KEYS = {"key": "a", "secret": "b"}
BUCKET = "bench"
_HEAD = re.compile(rb"^([A-Z]+) ([^ ]+) HTTP/1\.1\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def kind_of(method: str, path: str) -> str:
    """Return the name of a request in the table."""
    if method == "GET" and ("list-type" in path or "prefix=" in path):
        return "LIST"
    return "DELETE" if method == "DELETE" or "?delete" in path or "&delete" in path else method


def _found(status: str, body: bytes = b"", **headers: object) -> tuple[str, bytes, dict[str, object]]:
    return status, body, headers


class _Objects:
    """As much of S3 as the clients of the table use: objects in memory, conditions of a put, ranges and listings."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}

    def answer(self, method: str, url: str, head: bytes, body: bytes) -> tuple[str, bytes, dict[str, object]]:
        """Return status, content and headers of the answer to a request."""
        path, _, query = url.partition("?")
        name, options = unquote(path).removeprefix(f"/{BUCKET}").lstrip("/"), dict(parse_qsl(query, True))
        data = self.stored.get(name)
        if method == "POST":
            keys = re.findall(rb"<Key>.*?</Key>", body)
            for key in keys:
                self.stored.pop(html.unescape(key[5:-6].decode()), None)
            deleted = b"".join(b"<Deleted>" + key + b"</Deleted>" for key in keys)
            return _found("200 OK", b"<DeleteResult>" + deleted + b"</DeleteResult>")
        if method == "PUT" and name:
            if data is not None and b"\r\nif-none-match:" in head.lower():
                return _found("412 Precondition Failed", b"<Error><Code>PreconditionFailed</Code></Error>")
            self.stored[name] = body
            return _found("200 OK", ETag=_etag(body))
        if method == "DELETE":
            self.stored.pop(name, None)
            return _found("204 No Content")
        if not name:
            return _found("200 OK", self._listing(options.get("prefix", ""), options.get("delimiter", "")))
        if data is None:
            return _found("404 Not Found", b"<Error><Code>NoSuchKey</Code></Error>")
        headers = {"ETag": _etag(data), "Last-Modified": _WRITTEN}
        if wanted := re.search(rb"\r\nrange: *bytes=(\d+)-(\d+)", head, re.IGNORECASE):
            begin, end = int(wanted[1]), min(int(wanted[2]), len(data) - 1)
            headers["Content-Range"] = f"bytes {begin}-{end}/{len(data)}"
            return _found("206 Partial Content", data[begin : end + 1], **headers)
        return _found("200 OK", data, **headers)

    def _listing(self, prefix: str, delimiter: str) -> bytes:
        below, folders = [], set()
        for name in sorted(each for each in self.stored if each.startswith(prefix)):
            folder, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if found:
                folders.add(prefix + folder + delimiter)
                continue
            data = self.stored[name]
            below.append(
                f"<Contents><Key>{html.escape(name)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                f"<ETag>{html.escape(_etag(data))}</ETag><Size>{len(data)}</Size></Contents>"
            )
        common = (f"<CommonPrefixes><Prefix>{html.escape(each)}</Prefix></CommonPrefixes>" for each in sorted(folders))
        content = "".join([*below, *common])
        count = len(below) + len(folders)
        return (
            f"<ListBucketResult><Name>{BUCKET}</Name><Prefix>{html.escape(prefix)}</Prefix><KeyCount>{count}</KeyCount>"
            f"<MaxKeys>1000000</MaxKeys><IsTruncated>false</IsTruncated>{content}</ListBucketResult>"
        ).encode()


_WRITTEN = "Thu, 01 Jan 2026 00:00:00 GMT"


def _etag(data: bytes) -> str:
    return f'"{zlib.crc32(data):032x}"'


async def _serve(port: int, delay: float) -> None:
    """Answer requests after a delay; ``GET /-/counts`` returns the counts, and begins again."""
    counts: Counter[str] = Counter()
    objects = _Objects()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, path = (found.decode() for found in _HEAD.match(head).groups())  # type: ignore[union-attr]
                length = _LENGTH.search(head)
                nbytes = int(length[1]) if length else 0
                if path == "/-/counts":
                    status, body, headers = _found("200 OK", json.dumps(counts).encode(), Connection="close")
                    counts.clear()
                else:
                    counts[kind_of(method, path)] += 1
                    counts["bytes"] += nbytes
                    await asyncio.sleep(delay)
                    if b"100-continue" in head.lower():
                        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    status, body, headers = objects.answer(method, path, head, await reader.readexactly(nbytes))
                    counts["sent"] += len(body) if method == "GET" else 0
                headers = {"Content-Length": len(body), "Content-Type": "application/xml", **headers}
                lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
                writer.write(f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + (b"" if method == "HEAD" else body))
                await writer.drain()
                if path == "/-/counts":
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", port, limit=4 << 20)
    await server.serve_forever()


def _server(port: int, delay: float) -> None:
    asyncio.run(_serve(port, delay))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def counts(port: int) -> Counter[str]:
    """Return the requests since the last call."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/counts") as answer:
        return Counter(json.load(answer))


def ways(endpoint: str, chunks: int) -> dict[str, Callable[[str], object]]:
    """Return functions that write the same rows below a name."""
    import dask.array as da
    import numpy as np
    import obstore
    import xarray
    import zarr.storage
    from obstore.store import S3Store

    import dask_tfrecord as dtf

    rows = np.random.default_rng(0).integers(0, 256, (96 * chunks, 64, 64, 3), np.uint8)
    array = da.from_array(rows, chunks=(96, 64, 64, 3))
    ds, options = dtf.Dataset.from_arrays({"image": array}), {**KEYS, "endpoint_url": endpoint}
    store = S3Store(
        BUCKET,
        endpoint=endpoint,
        access_key_id="a",
        secret_access_key="b",
        region="us-east-1",
        client_options={"allow_http": True},
    )
    payload = bytes(96 * 64 * 64 * 3)

    def bound(name: str) -> None:
        put = da.map_blocks(
            lambda block, block_info=None: (
                obstore.put(store, f"{name}/{block_info[0]['chunk-location'][0]}", payload),
                block[:1, 0, 0, 0],
            )[1],
            array,
            drop_axis=(1, 2, 3),
            dtype="u1",
            chunks=(1,),
            meta=np.zeros(0, "u1"),
        )
        put.compute()

    return {
        "obstore.put": bound,
        "da.to_zarr": lambda name: array.to_zarr(f"s3://{BUCKET}/{name}/image", storage_options=options),
        "xarray": lambda name: xarray.Dataset({"image": (("record", "y", "x", "c"), array)}).to_zarr(
            f"s3://{BUCKET}/{name}", zarr_format=3, storage_options=options
        ),
        "to_zarr, s3fs": lambda name: ds.to_zarr(
            f"s3://{BUCKET}/{name}", chunks={"image": 96}, storage_options=options
        ),
        "to_zarr, obstore": lambda name: ds.to_zarr(
            zarr.storage.ObjectStore(
                S3Store(
                    BUCKET,
                    prefix=name,
                    endpoint=endpoint,
                    access_key_id="a",
                    secret_access_key="b",
                    region="us-east-1",
                    client_options={"allow_http": True},
                )
            ),
            chunks={"image": 96},
        ),
    }


def amplification(port: int) -> None:
    """Print how many times the bytes of shards opening, planning and `to_zarr` read, without an index and with it."""
    import tempfile

    import numpy as np
    from obstore.store import S3Store

    import dask_tfrecord as dtf

    rng = np.random.default_rng(0)
    kinds: dict[str, tuple[Any, Any]] = {
        "vectors": (dtf.FixedLenFeature((256,), "float32"), rng.normal(size=(50_000, 256)).astype("f4")),
        "tokens": (
            dtf.VarLenFeature("int64"),
            [rng.integers(0, 30_000, each) for each in rng.integers(0, 1000, 40_000)],
        ),
    }
    secrets: Any = {"access_key_id": "a", "secret_access_key": "b", "client_options": {"allow_http": True}}
    store = S3Store(BUCKET, endpoint=f"http://127.0.0.1:{port}", region="us-east-1", **secrets)
    print(f"{'':18}{'open':>8}{'plan':>8}{'to_zarr':>8}")
    for kind, (feature, values) in kinds.items():
        with tempfile.TemporaryDirectory() as folder:
            dtf.to_tfrecord({"x": values}, f"{folder}/x-{{shard}}", features={"x": feature}, records_per_shard=12_500)
            dtf.build_index(f"{folder}/x-?")
            files = sorted(Path(folder).iterdir())
            stored = sum(file.stat().st_size for file in files if file.suffix != ".idx")
            for suffix in ("", ".idx"):
                for file in files:
                    if file.suffix == suffix:
                        store.put(f"{kind}{suffix}/{file.name}", file.read_bytes(), use_multipart=False)
                        if suffix:
                            data = file.with_suffix("").read_bytes()
                            store.put(f"{kind}{suffix}/{file.stem}", data, use_multipart=False)
                line = ""
                counts(port)
                ds = dtf.read_tfrecord(f"{kind}{suffix}/x-?", {"x": feature}, storage_options={"store": store})
                for step in (lambda: None, ds.plan_zarr, partial(ds.to_zarr, f"{folder}/x{suffix}.zarr")):
                    step()
                    line += f"{counts(port)['sent'] / stored:>8.2f}"
                print(f"{kind + ', indexed' * bool(suffix):18}{line}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", default="2,8,32")
    parser.add_argument("--chunks", type=int, default=40)
    parser.add_argument("--delay", type=float, default=0.03, help="seconds until a request is answered")
    given = parser.parse_args()
    port = _free_port()
    server = multiprocessing.get_context("spawn").Process(target=_server, args=(port, given.delay), daemon=True)
    server.start()
    try:
        measure(given, port)
        amplification(port)
    finally:
        server.kill()


def measure(given: argparse.Namespace, port: int) -> None:
    """Write by each way, and print its requests and its time."""
    import dask
    import s3fs

    warnings.simplefilter("ignore")
    endpoint = f"http://127.0.0.1:{port}"
    for _ in range(100):
        try:
            s3fs.S3FileSystem(**KEYS, endpoint_url=endpoint).mkdir(BUCKET)
            break
        except Exception:
            time.sleep(0.2)
    print(f"{'':18}{'threads':>8}{'s':>7}" + "".join(f"{name:>8}" for name in (*KINDS, "MB")))
    every = ways(endpoint, given.chunks)
    for threads in map(int, given.threads.split(",")):
        for way, write in every.items():
            with dask.config.set(scheduler="threads", num_workers=threads):
                times = []
                for turn in range(3):
                    counts(port)
                    began = time.perf_counter()
                    write(f"{threads}-{re.sub('[^a-z]', '', way)}-{turn}")
                    times.append(time.perf_counter() - began)
                    found = counts(port)
            line = "".join(f"{found[name]:>8}" for name in KINDS)
            print(f"{way:18}{threads:>8}{min(times):>7.2f}{line}{found['bytes'] / 1e6:>8.1f}", flush=True)


KINDS = ("PUT", "GET", "HEAD", "LIST", "DELETE", "POST")

if __name__ == "__main__":
    main()
