"""Arrow record batches, DataFrames and Parquet files of a `Dataset`."""

try:
    import pyarrow  # noqa: F401
except ImportError as error:
    raise ImportError(
        "Arrow, DataFrames and Parquet need pyarrow, which is not installed: pip install 'dask-tfrecord[arrow]'",
        name="pyarrow",
    ) from error
