"""xarray Datasets of a `Dataset`, and the backend of `xarray.open_dataset`."""

try:
    import xarray  # noqa: F401
except ImportError as error:
    raise ImportError(
        "xarray Datasets need xarray, which is not installed: pip install 'dask-tfrecord[xarray]'", name="xarray"
    ) from error
