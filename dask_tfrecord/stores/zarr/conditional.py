"""Objects of zarr stores that another run may write at the same time: put only if absent, or only if unchanged.

zarr has `Store.set_if_not_exists`, which does not return whether it wrote; `FsspecStore` tests, and then writes. It has
no function that replaces an object on a condition. So the clients below the stores are called: obstore, and the file
systems of S3, Google and Azure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zarr.abc.store
import zarr.buffer
import zarr.storage

from dask_tfrecord.shards.objects import put_if_absent, put_if_unchanged
from dask_tfrecord.shards.remote import class_names, read_s3
from dask_tfrecord.stores.zarr.compat import s3_children


async def create(store: zarr.abc.store.Store, key: str, value: bytes | memoryview) -> bool | None:
    """Put an object unless it exists; return None if the store cannot."""
    if isinstance(store, zarr.storage.FsspecStore):
        return await put_if_absent(store.fs, path_in(store, key), value)
    if isinstance(store, zarr.storage.ObjectStore):
        return await _put_in_obstore(store.store, key, value, "create")
    if isinstance(store, zarr.storage.MemoryStore):
        # Nothing runs between the two steps.
        if await store.exists(key):
            return False
        await store.set(key, zarr.buffer.cpu.Buffer.from_bytes(bytes(value)))
        return True
    return None


async def read(store: zarr.abc.store.Store, key: str) -> bytes | None:
    """Read an object in one request; return None if it does not exist."""
    if isinstance(store, zarr.storage.FsspecStore) and "S3FileSystem" in class_names(store.fs):
        try:
            return await read_s3(store.fs, path_in(store, key))
        except FileNotFoundError:
            return None
    found = await store.get(key, zarr.buffer.default_buffer_prototype())
    return None if found is None else found.to_bytes()


async def version(store: zarr.abc.store.Store, key: str) -> Any:
    """Return what changes with an object; None if it does not exist, or the store does not say."""
    try:
        if isinstance(store, zarr.storage.FsspecStore):
            return (await store.fs._info(path_in(store, key), refresh=True)).get("ETag")
        if isinstance(store, zarr.storage.ObjectStore):
            import obstore

            found = await obstore.head_async(store.store, key)
            return {name: found[name] for name in ("e_tag", "version") if found.get(name)}
    except FileNotFoundError:
        return None
    return None


async def replace(store: zarr.abc.store.Store, key: str, value: bytes | memoryview, version: Any) -> bool | None:
    """Put an object unless its version has changed; return None if the store cannot."""
    if version is None:
        return None
    if isinstance(store, zarr.storage.FsspecStore):
        return await put_if_unchanged(store.fs, path_in(store, key), value, version)
    if isinstance(store, zarr.storage.ObjectStore):
        return await _put_in_obstore(store.store, key, value, version)
    return None


async def children(store: zarr.abc.store.Store, folder: str) -> list[str]:
    """List a folder; empty if it does not exist."""
    if isinstance(store, zarr.storage.FsspecStore) and "S3FileSystem" in class_names(store.fs):
        return await s3_children(store.fs, path_in(store, folder))
    return [key async for key in store.list_dir(folder)]


def lists_sizes(store: zarr.abc.store.Store) -> bool:
    """Return True for stores that `listed_sizes` can list."""
    return isinstance(store, zarr.storage.FsspecStore | zarr.storage.ObjectStore)


async def listed_sizes(store: zarr.abc.store.Store, folder: str) -> dict[str, int]:
    """Return the size of each object below a folder by its key."""
    if isinstance(store, zarr.storage.ObjectStore):
        pages = store.store.list(prefix=f"{folder}/")
        return {each["path"]: each["size"] async for page in pages for each in page}
    assert isinstance(store, zarr.storage.FsspecStore)
    root = path_in(store, "")
    try:
        found = await store.fs._find(path_in(store, folder), detail=True)
    except FileNotFoundError:
        return {}
    return {name.strip("/")[len(root) :].lstrip("/"): info["size"] for name, info in found.items()}


async def delete(store: zarr.abc.store.Store, keys: Sequence[str]) -> bool:
    """Delete objects by few requests; return False if the store lacks one for it. A missing object is ignored."""
    if isinstance(store, zarr.storage.FsspecStore) and "S3FileSystem" in class_names(store.fs):
        await store.fs._rm([path_in(store, key) for key in keys])
        return True
    if isinstance(store, zarr.storage.ObjectStore):
        import obstore

        await obstore.delete_async(store.store, list(keys))
        return True
    return False


async def _put_in_obstore(store: Any, key: str, value: bytes | memoryview, mode: Any) -> bool | None:
    import obstore
    from obstore import exceptions

    refused = (exceptions.AlreadyExistsError, exceptions.PreconditionError, FileNotFoundError)
    try:
        await obstore.put_async(store, key, value, mode=mode)
    except refused:
        return False
    except (exceptions.NotSupportedError, NotImplementedError):
        return None
    return True


def path_in(store: zarr.storage.FsspecStore, key: str) -> str:
    """Return the path of an object in the file system of its store."""
    return f"{store.path}/{key}".strip("/")
