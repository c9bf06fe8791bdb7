"""Commands that have modules of their own, and what all commands share; `dask_tfrecord.cli` puts them together."""
