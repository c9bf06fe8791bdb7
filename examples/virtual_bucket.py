"""Read shards in a public bucket through xarray: an Icechunk repository refers to them, and nothing is copied.

    python examples/virtual_bucket.py "s3://bucket/train-0*" pictures [--more "s3://bucket/train-1*"] [--endpoint URL]

Creates the repository `pictures` in this folder, and adds the shards of `--more` as later rows. Needs the extras s3,
xarray and icechunk.
"""

from __future__ import annotations

import argparse
from typing import Any

import icechunk
import xarray

import dask_tfrecord as dtf


def create_repository(path: str, location: str, endpoint: str | None) -> Any:
    """Create a repository that may read the shards of a location without credentials."""
    config = icechunk.RepositoryConfig.default()
    options: dict[str, Any] = (
        {"endpoint_url": endpoint, "allow_http": True, "force_path_style": True} if endpoint else {}
    )
    shards = icechunk.s3_store(region="us-east-1", anonymous=True, **options)
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(location, shards))
    # Whoever opens the repository allows the locations that its chunks are read from.
    allowed = icechunk.containers_credentials({location: icechunk.s3_anonymous_credentials()})
    storage = icechunk.local_filesystem_storage(path)
    return icechunk.Repository.create(storage, config, authorize_virtual_chunk_access=allowed)


def main(shards: str, path: str, more: str | None = None, endpoint: str | None = None) -> None:
    """Refer to shards, add others as later rows, and read all of them."""
    public = {"anon": True} | ({"endpoint_url": endpoint} if endpoint else {})
    virtual = dtf.virtual_zarr(shards, storage_options=public)
    repository = create_repository(path, virtual.locations[0], endpoint)
    snapshot = virtual.to_icechunk(repository.writable_session("main"))
    print(snapshot, virtual)
    if more is not None:
        added = dtf.virtual_zarr(more, storage_options=public)
        snapshot = added.to_icechunk(repository.writable_session("main"), append_dim="record")
        print(snapshot, added)
    with xarray.open_zarr(repository.readonly_session("main").store, consolidated=False) as dataset:
        print(dataset)
        for name, column in dataset.items():
            if column.dtype.kind in "iuf":
                print(f"{name}: mean {float(column.mean()):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", help="pattern of the shards")
    parser.add_argument("repository", help="folder of the new repository")
    parser.add_argument("--more", help="pattern of shards to add")
    parser.add_argument("--endpoint", help="URL of another server than Amazon's")
    given = parser.parse_args()
    main(given.shards, given.repository, given.more, given.endpoint)
