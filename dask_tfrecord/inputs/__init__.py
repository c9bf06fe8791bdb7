"""Arrays, lists, DataFrames and xarray Datasets as the rows of a `Dataset`."""
