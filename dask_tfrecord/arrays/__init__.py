"""Blocks as lazy dask arrays: planning, graph, `Dataset`."""
