"""`from_zarr`: a Zarr group as a `Dataset`. Apart from `read_tfrecord`, which does not need zarr."""

from dask_tfrecord.dataset.dataset import returns_dataset
from dask_tfrecord.stores.zarr.read import rows_from_zarr

from_zarr = returns_dataset("from_zarr", __name__, rows_from_zarr)
