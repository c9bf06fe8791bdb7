"""Rows for other libraries: Arrow, DataFrames, xarray, Awkward Arrays."""
