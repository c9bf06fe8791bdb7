"""Shards in a public bucket as an Icechunk repository: nothing is copied, xarray reads them, and the set grows.

    python examples/virtual_bucket.py

Starts an S3 server on this machine (moto), whose bucket is read without credentials, as public ones are. Needs the
extras s3, xarray and icechunk of this package, and moto with its server. With shards in a bucket of yours, `main` is
all there is to it: leave out `endpoint`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import fsspec
import icechunk
import numpy as np
import xarray
from moto.server import ThreadedMotoServer

import dask_tfrecord as dtf

FEATURES: dict[str, Any] = {
    "image": dtf.RawFeature((8, 8, 3), "uint8"),
    "label": dtf.FixedLenFeature((), "int64"),
    "caption": dtf.TextFeature(),
}
ROWS = 50


def put_shard(number: int, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Write a shard of rows, put it to the bucket, and return the rows."""
    rng = np.random.default_rng(number)
    columns = {
        "image": rng.integers(0, 256, (ROWS, 8, 8, 3), np.uint8),
        "label": np.arange(ROWS) + number * ROWS,
        "caption": [f"picture {row} of shard {number}" for row in range(ROWS)],
    }
    path = folder / f"train-{number}.tfrecord"
    dtf.to_tfrecord(columns, path, features=FEATURES)
    fsspec.filesystem("s3", **options).pipe_file(f"pictures/{path.name}", path.read_bytes())
    return columns


def create_repository(folder: Path, location: str, endpoint: str) -> Any:
    """Create a repository that may read the shards of a location without credentials."""
    config = icechunk.RepositoryConfig.default()
    shards = icechunk.s3_store(region="us-east-1", endpoint_url=endpoint, allow_http=True, force_path_style=True)
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(location, shards))
    allowed = icechunk.containers_credentials({location: icechunk.s3_anonymous_credentials()})
    storage = icechunk.local_filesystem_storage(str(folder / "repository"))
    return icechunk.Repository.create(storage, config, authorize_virtual_chunk_access=allowed)


def main(endpoint: str, folder: Path) -> None:
    """Refer to two shards, add a third, and compare what xarray reads with the rows that were written."""
    public = {"anon": True, "endpoint_url": endpoint}
    writer = {"key": "a", "secret": "b", "endpoint_url": endpoint}
    fsspec.filesystem("s3", **writer).mkdir("pictures", acl="public-read")
    rows = [put_shard(number, folder, writer) for number in range(2)]

    virtual = dtf.virtual_zarr("s3://pictures/train-*", FEATURES, rows_per_chunk=25, storage_options=public)
    repository = create_repository(folder, virtual.locations[0], endpoint)
    first = virtual.to_icechunk(repository.writable_session("main"))

    rows.append(put_shard(2, folder, writer))
    more = dtf.virtual_zarr("s3://pictures/train-2*", FEATURES, rows_per_chunk=25, storage_options=public)
    more.to_icechunk(repository.writable_session("main"), append_dim="record")

    store = repository.readonly_session("main").store
    with xarray.open_zarr(store, consolidated=False) as dataset:
        for name in FEATURES:
            assert np.array_equal(dataset[name].values, np.concatenate([part[name] for part in rows])), name
        means = dataset["image"].mean(["image.dim_1", "image.dim_2", "record"]).values
    before = dtf.from_zarr(repository.readonly_session(snapshot_id=first).store)
    stored = sum(path.stat().st_size for path in (folder / "repository").rglob("*") if path.is_file())
    print(f"read {len(rows) * ROWS} rows, {before.nrows} in the first snapshot; mean of channels {means.round(1)}")
    print(f"the repository takes {stored:,} bytes, the images {sum(part['image'].nbytes for part in rows):,}")


if __name__ == "__main__":
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            main(f"http://{host}:{port}", Path(scratch))
    finally:
        server.stop()
