"""`TFRecordParser`: a parser for VirtualiZarr, which converts the arrays of `virtual_zarr` to its manifests.

VirtualiZarr, and zarr with it, is imported when the parser is called.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.features import Feature
from dask_tfrecord.storage.shard import is_local
from dask_tfrecord.stores.virtual.references import VirtualArray
from dask_tfrecord.stores.virtual.scan import virtual_zarr

__all__ = ["TFRecordParser"]


class TFRecordParser:
    """Parser of TFRecord shards for `virtualizarr.open_virtual_dataset`.

    Needs VirtualiZarr: ``pip install 'dask-tfrecord[virtualizarr]'``.

    Parameters
    ----------
    features, columns, storage_options
        As in `virtual_zarr`; by default features are inferred. Records are scanned through fsspec, with
        `storage_options`. Values are read through the stores of VirtualiZarr's registry.
    """

    def __init__(
        self,
        features: Mapping[str, Feature] | str | os.PathLike[str] | None = None,
        *,
        columns: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.features, self.columns, self.storage_options = features, columns, storage_options

    def __call__(self, url: str, registry: Any) -> Any:
        """Scan the records of shards and return references to their values.

        Parameters
        ----------
        url : str
            A path, URL, glob, directory or template of shards.
        registry : obspec_utils.registry.ObjectStoreRegistry
            Object stores of the shards.

        Returns
        -------
        virtualizarr.manifests.ManifestStore

        Raises
        ------
        SchemaError, FeatureError, CorruptRecordError, ValueError
            As in `virtual_zarr`. ValueError also if a file name has a ``?`` or ``#``, which VirtualiZarr does not find.
        """
        from virtualizarr.manifests import ManifestGroup, ManifestStore

        virtual = virtual_zarr(url, self.features, columns=self.columns, storage_options=self.storage_options)
        odd = next((path for path in virtual.files if set(path) & set("?#")), None)
        if odd is not None:
            raise ValueError(f"{odd}: VirtualiZarr reads ? and # in a file name as parts of a URL; rename the file")
        # VirtualiZarr identifies files by URLs, without escapes.
        files = [f"file://{path}" if is_local(path) else path for path in virtual.files]
        paths = np.array(files, np.dtypes.StringDType())[virtual.file_numbers]
        arrays = {array.name: _manifest_array(array, paths) for array in virtual.arrays}
        return ManifestStore(ManifestGroup(arrays=arrays, attributes=dict(virtual.attributes)), registry=registry)


def _manifest_array(array: VirtualArray, paths: NDArray[Any]) -> Any:
    from virtualizarr.manifests import ChunkManifest, ManifestArray
    from virtualizarr.manifests.utils import create_v3_array_metadata

    # One chunk per record; the chunk spans all other axes.
    grid = (array.shape[0], *(1 for _ in array.shape[1:]))
    metadata = create_v3_array_metadata(
        shape=array.shape,
        data_type=np.dtype(array.dtype),
        chunk_shape=(1, *array.shape[1:]),
        dimension_names=array.dimensions,
    )
    manifest = ChunkManifest.from_arrays(
        paths=paths.reshape(grid),
        offsets=array.offsets.astype(np.uint64).reshape(grid),
        lengths=np.full(grid, array.nbytes, np.uint64),
        validate_paths=False,
    )
    return ManifestArray(metadata=metadata, chunkmanifest=manifest)
