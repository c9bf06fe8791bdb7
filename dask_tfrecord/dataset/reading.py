"""`read_tfrecord`: shards as a `Dataset`."""

from dask_tfrecord.arrays.read import read_rows
from dask_tfrecord.dataset.dataset import returns_dataset

read_tfrecord = returns_dataset("read_tfrecord", __name__, read_rows)
