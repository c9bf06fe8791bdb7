"""`read_tfrecord`: shards as a `Dataset`."""

from dask_tfrecord.dataset.dataset import returns_dataset
from dask_tfrecord.rows.read import read_rows

read_tfrecord = returns_dataset("read_tfrecord", __name__, read_rows)
