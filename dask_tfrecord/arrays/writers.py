"""Methods of `Dataset` that pass its rows to a store or to another library.

`arrays/` precedes `stores/`: each method imports its writer when it is called.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import dask.array as da

__all__ = ["DatasetWriters"]


class DatasetWriters(Mapping[str, da.Array]):
    """Writing methods of `Dataset`."""

    __slots__ = ()

    def plan_zarr(self, **options: Any) -> Any:
        """Plan the store that `to_zarr` would write; `dask_tfrecord.plan_zarr` documents the options."""
        from dask_tfrecord.stores.zarr.plan import plan_zarr

        return plan_zarr(self, **options)

    def to_zarr(self, store: Any, **options: Any) -> Any:
        """Write all columns to a Zarr group; `dask_tfrecord.to_zarr` documents `store` and the options."""
        from dask_tfrecord.stores.zarr.api import to_zarr

        return to_zarr(self, store, **options)

    def to_tfrecord(self, urlpath: str | os.PathLike[str], **options: Any) -> Any:
        """Write all columns to TFRecord shards; `dask_tfrecord.to_tfrecord` documents `urlpath` and the options."""
        from dask_tfrecord.stores.tfrecord.write import to_tfrecord

        return to_tfrecord(self, urlpath, **options)
