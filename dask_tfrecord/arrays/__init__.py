"""Blocks as lazy dask arrays: planning, graph, `Dataset`."""

from dask_tfrecord.settings import register_defaults

# Users of dask see the settings as soon as a module of this package is imported.
register_defaults()
