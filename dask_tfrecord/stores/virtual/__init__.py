"""Zarr references to values within uncompressed shards."""
