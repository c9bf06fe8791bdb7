"""Requests and time of `to_zarr` on an object store, beside `da.to_zarr`, xarray, and obstore for the same bytes.

The store is the S3 of moto in a process of its own. A proxy in another one adds 30 ms to each request, as a data centre
does, and counts requests by kind. Each row of the table writes the same rows, on a number of threads.

    python benchmarks/object_store.py --threads 2,8,32

needs ``moto[server]``, s3fs, obstore and xarray.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import re
import socket
import time
import urllib.request
import warnings
from collections import Counter
from collections.abc import Callable

KEYS = {"key": "a", "secret": "b"}
BUCKET = "bench"
_HEAD = re.compile(rb"^([A-Z]+) ([^ ]+) HTTP/1\.1\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def kind_of(method: str, path: str) -> str:
    """Return the name of a request in the table."""
    if method == "GET" and ("list-type" in path or "prefix=" in path):
        return "LIST"
    return "DELETE" if method == "DELETE" or "?delete" in path or "&delete" in path else method


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


async def _serve(port: int, upstream: int, delay: float) -> None:
    """Pass requests on after a delay; ``GET /-/counts`` returns the counts, and begins again."""
    counts: Counter[str] = Counter()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", upstream)
        answers = asyncio.ensure_future(_relay(up_reader, writer))
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, path = (found.decode() for found in _HEAD.match(head).groups())  # type: ignore[union-attr]
                if path == "/-/counts":
                    body = json.dumps(counts).encode()
                    counts.clear()
                    writer.write(
                        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body
                    )
                    await writer.drain()
                    break
                length = _LENGTH.search(head)
                left = int(length[1]) if length else 0
                counts[kind_of(method, path)] += 1
                counts["bytes"] += left
                await asyncio.sleep(delay)
                # The server would wait for the permission that clients wait for, too.
                if b"100-continue" in head.lower():
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    head = re.sub(rb"\r\nexpect:[^\r]*", b"", head, flags=re.IGNORECASE)
                up_writer.write(head)
                while left:
                    data = await reader.read(min(left, 1 << 16))
                    left -= len(data)
                    up_writer.write(data)
                    await up_writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            answers.cancel()
            up_writer.close()
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", port)
    await server.serve_forever()


def _proxy(port: int, upstream: int, delay: float) -> None:
    asyncio.run(_serve(port, upstream, delay))


def _server(port: int) -> None:
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    while True:
        time.sleep(3600)


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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", default="2,8,32")
    parser.add_argument("--chunks", type=int, default=40)
    parser.add_argument("--delay", type=float, default=0.03, help="seconds that the proxy adds to each request")
    given = parser.parse_args()
    upstream, port = _free_port(), _free_port()
    spawn = multiprocessing.get_context("spawn")
    servers = [
        spawn.Process(target=_server, args=(upstream,), daemon=True),
        spawn.Process(target=_proxy, args=(port, upstream, given.delay), daemon=True),
    ]
    for server in servers:
        server.start()
    try:
        measure(given, port)
    finally:
        for server in servers:
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
