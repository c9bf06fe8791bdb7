"""Methods of `Dataset` that pass its rows to a store or to another library.

`arrays/` precedes `stores/`: each method imports its writer when it is called.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import dask.array as da

__all__ = ["DatasetWriters"]


class DatasetWriters(Mapping[str, da.Array]):
    """Writing methods of `Dataset`."""

    __slots__ = ()

    def plan_zarr(self, **options: Any) -> Any:
        """Plan the store that `to_zarr` would write; `dask_tfrecord.plan_zarr` documents the options."""
        from dask_tfrecord.stores.zarr.plan import plan_zarr

        return plan_zarr(self, **options)

    def to_zarr(self, store: Any, **options: Any) -> Any:
        """Write all columns to a Zarr group; `dask_tfrecord.to_zarr` documents `store` and the options."""
        from dask_tfrecord.stores.zarr.api import to_zarr

        return to_zarr(self, store, **options)

    def to_tfrecord(self, urlpath: str | os.PathLike[str], **options: Any) -> Any:
        """Write all columns to TFRecord shards; `dask_tfrecord.to_tfrecord` documents `urlpath` and the options."""
        from dask_tfrecord.stores.tfrecord.write import to_tfrecord

        return to_tfrecord(self, urlpath, **options)

    def to_arrow_batches(self) -> Any:
        """Read the rows as Arrow record batches, one per chunk.

        Chunks are decoded ahead, one for each thread and one more: on the cluster of an active client, else in threads
        of this process. The extra ``arrow`` is needed.

        Returns
        -------
        iterator of pyarrow.RecordBatch
            It has the attribute `schema`, is an Arrow stream itself, and `close` stops its tasks early. Bytes are
            large_binary, text is large_string, ragged rows are large_list, fixed shapes are fixed_size_list (one axis)
            or arrow.fixed_shape_tensor; values and offsets are not copied. The metadata of a field has the feature,
            its class, dtype, shape and class names.

        Raises
        ------
        SchemaError
            If the data set has rows and no columns.
        TFRecordError
            While iterating, as `compute` raises it.

        Examples
        --------
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> [batch.num_rows for batch in ds[["label"]].to_arrow_batches()]
        [10, 10]
        """
        from dask_tfrecord.stores.arrow.stream import ArrowBatches

        dataset: Any = self
        return ArrowBatches(dataset)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Export the rows by Arrow's PyCapsule protocol, which pyarrow, polars, DuckDB and others read.

        Parameters
        ----------
        requested_schema : PyCapsule, optional
            Types that the consumer prefers; columns are cast to them, or an error of pyarrow is raised.
        """
        return self.to_arrow_batches().__arrow_c_stream__(requested_schema)

    def to_dataframe(self) -> Any:
        """Return a dask DataFrame of the rows, one partition per chunk.

        Nothing is read until it is computed. A partition decodes all columns: select those that are needed first, as in
        ``ds[["label"]].to_dataframe()``. The extra ``arrow`` is needed.

        Returns
        -------
        dask.dataframe.DataFrame
            Columns have `pandas.ArrowDtype`, with the types of `to_arrow_batches`, except that shapes of several axes
            are nested lists. The index is the row number, and divisions are known if rows are counted. If not, each
            partition numbers its rows from 0. Empty chunks are omitted.

        Raises
        ------
        ImportError
            If pyarrow or pandas is not installed.
        SchemaError
            If the data set has rows and no columns.

        Examples
        --------
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> frame = ds[["label"]].to_dataframe()
        >>> frame.divisions
        (0, 10, 19)
        >>> frame.dtypes["label"]
        int64[pyarrow]
        """
        from dask_tfrecord.stores.arrow.dataframe import to_dataframe

        dataset: Any = self
        return to_dataframe(dataset)

    def to_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str | None = "snappy",
        mode: Literal["w-", "w"] = "w-",
        compute: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Write all columns to Parquet files, one per chunk.

        Parameters
        ----------
        path : str or os.PathLike
            Directory or URL. The files are ``part.00000.parquet``, ``part.00001.parquet`` and so on, in the order of
            the rows.
        compression : {"snappy", "zstd", "gzip", "brotli", "lz4", None}
            Compression of the pages.
        mode : {"w-", "w"}
            ``"w-"`` raises if one of the files exists, ``"w"`` replaces existing files.
        compute : bool, default True
            Write now. Otherwise return a `Delayed` that writes when it is computed.
        storage_options : mapping, optional
            Options of fsspec for the URL.

        Returns
        -------
        None or dask.delayed.Delayed

        Raises
        ------
        FileExistsError
            If a file exists under ``mode="w-"``, or if the directory has more files of these names.
        IncompleteStoreError
            If the size or the row count of a written file is wrong.
        ImportError
            If pyarrow is not installed.
        SchemaError, ValueError
            If rows are not counted or have no columns, or an argument has an invalid value.

        Notes
        -----
        Columns have the types of `to_arrow_batches`. A file appears whole; after a failure, the published files of this
        write are removed. A task holds one chunk and its file.

        Examples
        --------
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> ds.to_parquet("train.parquet", mode="w")
        >>> import pyarrow.parquet
        >>> pyarrow.parquet.read_table("train.parquet").num_rows
        20
        """
        from dask_tfrecord.stores.arrow.parquet import to_parquet

        dataset: Any = self
        return to_parquet(
            dataset, path, compression=compression, mode=mode, compute=compute, storage_options=storage_options
        )
