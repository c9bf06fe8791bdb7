"""How a data set is written: `to_zarr`, `to_tfrecord`, by stores that come after arrays on the way of the data.

They are not imported here: they hang themselves on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["Writable", "register_store"]

# What writes a data set, by kind of store.
_STORES: dict[str, Callable[..., Any]] = {}


def register_store(kind: str, write: Callable[..., Any]) -> None:
    """Let ``Dataset.to_<kind>`` call `write`."""
    _STORES[kind] = write


class Writable:
    """What a data set can become."""

    __slots__ = ()

    def plan_zarr(
        self,
        *,
        chunks: int | Mapping[str, int] | None = None,
        shards: int | Mapping[str, int] | None = None,
        target_chunk_bytes: int | str | None = None,
        target_shard_bytes: int | str | None = None,
        compressors: Any = "auto",
        filters: Any = "auto",
        dimension_names: Mapping[str, Sequence[str]] | None = None,
        fill_values: Mapping[str, Any] | None = None,
        consolidated: bool = True,
        memory_limit: int | str | None = "auto",
    ) -> Any:
        """Show what `to_zarr` will write, before it does; see `dask_tfrecord.plan_zarr` for the arguments."""
        return _STORES["zarr plan"](
            self,
            chunks=chunks,
            shards=shards,
            target_chunk_bytes=target_chunk_bytes,
            target_shard_bytes=target_shard_bytes,
            compressors=compressors,
            filters=filters,
            dimension_names=dimension_names,
            fill_values=fill_values,
            consolidated=consolidated,
            memory_limit=memory_limit,
        )

    def to_zarr(
        self,
        store: Any,
        *,
        component: str | None = None,
        mode: str = "w-",
        resume: bool = False,
        chunks: int | Mapping[str, int] | None = None,
        shards: int | Mapping[str, int] | None = None,
        target_chunk_bytes: int | str | None = None,
        target_shard_bytes: int | str | None = None,
        compressors: Any = "auto",
        filters: Any = "auto",
        dimension_names: Mapping[str, Sequence[str]] | None = None,
        fill_values: Mapping[str, Any] | None = None,
        consolidated: bool = True,
        memory_limit: int | str | None = "auto",
        compute: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Write all columns to a Zarr group; see `dask_tfrecord.to_zarr` for the arguments."""
        return _STORES["zarr"](
            self,
            store,
            component=component,
            mode=mode,
            resume=resume,
            chunks=chunks,
            shards=shards,
            target_chunk_bytes=target_chunk_bytes,
            target_shard_bytes=target_shard_bytes,
            compressors=compressors,
            filters=filters,
            dimension_names=dimension_names,
            fill_values=fill_values,
            consolidated=consolidated,
            memory_limit=memory_limit,
            compute=compute,
            storage_options=storage_options,
        )

    def to_tfrecord(
        self,
        urlpath: str | os.PathLike[str],
        *,
        features: Mapping[str, Any] | None = None,
        sequence_features: Mapping[str, Any] | None = None,
        encoding: str | Mapping[str, Any] | None = None,
        compression: str | None = None,
        records_per_shard: int | None = None,
        index: bool = False,
        mode: str = "w-",
        tfds: Mapping[str, Any] | None = None,
        compute: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Write all columns to TFRecord shards; see `dask_tfrecord.to_tfrecord` for the arguments."""
        return _STORES["tfrecord"](
            self,
            urlpath,
            features=features,
            sequence_features=sequence_features,
            encoding=encoding,
            compression=compression,
            records_per_shard=records_per_shard,
            index=index,
            mode=mode,
            tfds=tfds,
            compute=compute,
            storage_options=storage_options,
        )
