"""Conversion of a `Dataset` to a Zarr group, and the way back."""
