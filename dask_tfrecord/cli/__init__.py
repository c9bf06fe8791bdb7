"""Command line interface: `dask-tfrecord` and `dask tfrecord`."""

from dask_tfrecord.cli.main import main, tfrecord

__all__ = ["main", "tfrecord"]
