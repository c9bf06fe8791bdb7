"""Rows of records as lazy dask arrays: sources, chunks, graph, and how they are opened and computed."""

from dask_tfrecord.settings import register_defaults

# Users of dask see the settings as soon as a module of this package is imported.
register_defaults()
