"""Parser of TFRecord shards for VirtualiZarr."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features import Feature
from dask_tfrecord.shards.shard import is_local
from dask_tfrecord.stores.virtual.references import VirtualArray, is_regular, virtual_zarr
from dask_tfrecord.stores.zarr.codec import group_metadata


class TFRecordParser:
    """Parse TFRecord shards for `virtualizarr.open_virtual_dataset`.

    Needs VirtualiZarr: ``pip install 'dask-tfrecord[virtualizarr]'``. All chunks of an array must have the same length
    there.

    Parameters
    ----------
    features, sequence_features, columns, rows_per_chunk, storage_options
        As in `virtual_zarr`; by default, features are inferred. Records are scanned through fsspec, with
        `storage_options`; values are read through the stores in VirtualiZarr's registry.
    """

    def __init__(
        self,
        features: Mapping[str, Feature] | str | os.PathLike[str] | None = None,
        *,
        sequence_features: Mapping[str, Feature] | None = None,
        columns: Sequence[str] | None = None,
        rows_per_chunk: int | str = "16 MiB",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.features, self.sequence_features, self.columns = features, sequence_features, columns
        self.rows_per_chunk, self.storage_options = rows_per_chunk, storage_options

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
            SchemaError also if rows differ in length, or chunks do.
        """
        from virtualizarr.manifests import ManifestGroup, ManifestStore

        virtual = virtual_zarr(
            url,
            self.features,
            sequence_features=self.sequence_features,
            columns=self.columns,
            rows_per_chunk=self.rows_per_chunk,
            storage_options=self.storage_options,
        )
        odd = next((path for path in virtual.files if set(path) & set("?#")), None)
        if odd is not None:
            raise ValueError(f"{odd}: VirtualiZarr reads ? and # in a file name as parts of a URL; rename the file")
        unequal = sorted({array.spec.feature for array in virtual.arrays if not is_regular(array.edges)})
        refused = sorted({*unequal, *(array.spec.feature for array in virtual.stored.values())})
        if refused:
            raise SchemaError(
                f"arrays of VirtualiZarr have chunks of one length and no stored values, which "
                f"{', '.join(map(repr, refused))} need: virtual_zarr(…).to_icechunk writes them"
            )
        # VirtualiZarr identifies files by URLs, without escapes.
        files = [f"file://{path}" if is_local(path) else path for path in virtual.files]
        group = group_metadata(virtual.objects(consolidated=False))
        arrays = {array.name: _manifest_array(array, files, group[array.name]) for array in virtual.arrays}
        return ManifestStore(ManifestGroup(arrays=arrays, attributes=dict(virtual.attributes)), registry=registry)


def _manifest_array(array: VirtualArray, files: Sequence[str], metadata: Any) -> Any:
    """Make an array of VirtualiZarr whose chunks are ranges of the shards."""
    from virtualizarr.manifests import ChunkManifest, ManifestArray

    paths: Any = np.array([files[number] for number in array.files.tolist()], np.dtypes.StringDType())
    manifest = ChunkManifest.from_arrays(
        paths=paths.reshape(array.grid),
        offsets=array.offsets.astype(np.uint64).reshape(array.grid),
        lengths=array.nbytes.astype(np.uint64).reshape(array.grid),
        validate_paths=False,
    )
    return ManifestArray(metadata=metadata, chunkmanifest=manifest)
