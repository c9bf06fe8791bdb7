"""Methods of `Dataset` that pass its rows to a store or to another library.

`arrays/` precedes `stores/`: each method imports its writer when it is called.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import dask.array as da

if TYPE_CHECKING:
    import xarray

    from dask_tfrecord.preview.preview import Preview
    from dask_tfrecord.stores.batches.batch_iterator import BatchIterator
    from dask_tfrecord.stores.batches.row_sequence import RowSequence

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
        from dask_tfrecord.stores.files.tfrecord import to_tfrecord

        return to_tfrecord(self, urlpath, **options)

    def to_arrow_batches(self, *, tensors: bool = True) -> Any:
        """Read the rows as Arrow record batches, one per chunk.

        Chunks are decoded ahead, one for each thread and one more: on the cluster of an active client, else in threads
        of this process. The extra ``arrow`` is needed.

        Parameters
        ----------
        tensors : bool, default True
            Shapes of several axes have the type arrow.fixed_shape_tensor. If False, they are nested lists of fixed
            sizes, for libraries that refuse the type, such as datasets.

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
        return ArrowBatches(dataset, tensors)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Export the rows by Arrow's PyCapsule protocol, which pyarrow, polars, DuckDB and others read.

        Parameters
        ----------
        requested_schema : PyCapsule, optional
            Types that the consumer prefers; columns are cast to them, or an error of pyarrow is raised.
        """
        return self.to_arrow_batches().__arrow_c_stream__(requested_schema)

    def to_awkward(self) -> Any:
        """Read the rows as Awkward Arrays, one record array per chunk.

        Chunks are decoded ahead, as by `to_arrow_batches`. The extra ``awkward`` is needed.

        Returns
        -------
        iterator of awkward.Array
            Each has a field per column. Shapes are lists of fixed sizes, ragged rows are lists, text is strings and
            bytes are bytestrings; values and offsets are not copied. The columns of a group of the schema are one field
            of lists of records. Rows with shapes of their own are records of `data`, a list, and `shape`. `close`
            stops the tasks early.

        Raises
        ------
        ImportError
            If awkward is not installed.
        SchemaError
            If the data set has rows and no columns, or a group has the name of a column outside of it.
        FeatureError
            While iterating, if columns of a group differ in their number of items.
        TFRecordError
            While iterating, as `compute` raises it.

        Examples
        --------
        >>> import awkward as ak  # doctest: +SKIP
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> [ak.num(chunk["tokens"], axis=1).to_list()[:4] for chunk in ds.to_awkward()]  # doctest: +SKIP
        [[0, 1, 2, 3], [0, 1, 2, 3]]
        """
        from dask_tfrecord.stores.awkward_arrays import AwkwardChunks

        dataset: Any = self
        return AwkwardChunks(dataset)

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

    def to_xarray(
        self,
        coords: Sequence[str] = (),
        *,
        dimension_names: Mapping[str, Sequence[str]] | None = None,
        together: bool = False,
        ragged: Literal["objects", "flat"] = "objects",
    ) -> xarray.Dataset:
        """Return the columns as an xarray Dataset, backed by dask.

        Nothing is read until it is computed. The extra ``xarray`` is needed.

        Parameters
        ----------
        coords : sequence of str, optional
            Columns that are coordinates.
        dimension_names : mapping of str to sequence of str, optional
            Names of the axes of a row, by column: ``{"image": ("height", "width", "channel")}``. Axes of one name have
            one length. By default ``NAME.dim_1`` and so on, as in the stores of `to_zarr`.
        together : bool, default False
            False: each variable decodes its own column, and of a selection the selected records only. True: one task
            per chunk decodes all columns, for computations of all of them.
        ragged : {"objects", "flat"}, default "objects"
            Columns of bytes, and of rows that differ in length or shape. ``"objects"``: one object per record.
            ``"flat"``: the arrays of `to_zarr`, ``NAME.values`` and ``NAME.row_splits``, with dimensions of their own
            that a selection of records does not change. Their values are counted now, in tasks. Coordinates stay
            objects.

        Returns
        -------
        xarray.Dataset
            Rows have the dimension ``record``. The variable of column ``a/b`` is named ``a.b``. A variable has the
            attributes ``feature``, ``feature_class`` and, if they are known, ``class_names``.

        Raises
        ------
        ImportError
            If xarray is not installed.
        UnknownFeatureError
            If an argument names a column that does not exist.
        ValueError
            If rows are not counted (``counts=None``), or an argument has an invalid value.
        SchemaError
            If two columns would be variables of one name.

        Examples
        --------
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> labelled = ds.to_xarray(coords=["label"])
        >>> labelled["tokens"].dims
        ('record',)
        >>> labelled.isel(record=[3])["label"].shape
        (1,)
        """
        from dask_tfrecord.stores.xarray.to_xarray import to_xarray

        dataset: Any = self
        return to_xarray(dataset, coords, dimension_names, together, ragged)

    def to_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str | None = "snappy",
        tensors: bool = True,
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
        tensors : bool, default True
            As for `to_arrow_batches`.
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
        from dask_tfrecord.stores.files.parquet import to_parquet

        dataset: Any = self
        return to_parquet(
            dataset,
            path,
            compression=compression,
            tensors=tensors,
            mode=mode,
            compute=compute,
            storage_options=storage_options,
        )

    def preview(self, n: int = 16) -> Preview:
        """Read the first rows, and display them as pictures, numbers, text and spark-lines.

        Columns of images, and arrays of the shape of an image, are a contact sheet with labels and class names. Bytes
        that are encoded images are decoded. Other columns are a table. Images of 8 bits are displayed unchanged; others
        are scaled to the values of the displayed rows, and the column states them.

        Parameters
        ----------
        n : int, default 16
            Number of rows; all if there are fewer. Only these are decoded if rows are counted.

        Returns
        -------
        Preview
            Notebooks display it as HTML, `print` as text for the width of the terminal. `to_html` and `to_png` write
            files; a PNG needs the extra ``image``.

        Raises
        ------
        TFRecordError
            As `compute` raises it.

        Examples
        --------
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> print(ds[["label", "tokens"]].preview(3))
        First 3 of 20 records of 2 files
            label   tokens
            int64   int64 (?)
        ─────────────────────
        0       0   no values
        1       1   48
        2       2   440, 474
        """
        from dask_tfrecord.preview.preview import preview_dataset

        dataset: Any = self
        return preview_dataset(dataset, n)

    def batches(
        self,
        batch_size: int,
        *,
        shuffle: Literal[False, "window", "full"] = False,
        seed: int | None = None,
        epochs: int | None = 1,
        drop_remainder: bool = False,
        pad: Mapping[str, Any] | None = None,
        window: int | None = None,
        prefetch: int = 4,
        shard: tuple[int, int] = (0, 1),
    ) -> BatchIterator:
        """Iterate over batches of rows, decoded ahead in threads.

        The order of the rows depends on the data, the chunks of the data set, the options and the seed alone: not on
        the scheduler, the number of threads, or the release of NumPy.

        Parameters
        ----------
        batch_size : int
            Rows of a batch. A batch never has rows of two epochs.
        shuffle : {False, "window", "full"}, default False
            ``False`` keeps the order of the rows. ``"window"`` reads ranges of about 8 MiB of decoded rows in random
            order, and mixes the rows within a window. ``"full"`` is a uniformly random permutation of all rows. Each
            epoch has another order.
        seed : int, optional
            Seed of the order. By default a random one, which `state_dict` stores.
        epochs : int or None, default 1
            Number of epochs; None for any number.
        drop_remainder : bool, default False
            Leave out the last batch of an epoch if it is smaller. All shards then have the same number of batches,
            ``nrows // n // batch_size``.
        pad : mapping of str to int, None or Pad, optional
            Padded ragged columns: a length, None for the longest row of each batch, or `Pad` with a padding value. Rows
            that are longer raise `FeatureError`, unless `Pad` cuts them. Other ragged columns are `RaggedBlock`.
        window : int, optional
            With ``shuffle="window"``, rows of the mixing window: a row moves by less. With ``shuffle="full"``, rows
            that are read together, without influence on the order. The default is as many as 64 MiB of decoded rows
            contain; 1,024 if rows are not counted.
        prefetch : int, default 4
            Batches that are ready ahead.
        shard : tuple of int, default (0, 1)
            Index ``i`` and number ``n`` of the iterators that share each epoch. Each gets a contiguous part of the
            order, and their sizes differ by at most one row. They need the same seed.

        Returns
        -------
        BatchIterator
            Iterator of dicts with an array of shape ``(batch_size, *shape)`` per column, with the dtypes of `compute`.
            The arrays belong to the caller. `state_dict` and `load_state_dict` save and restore its position.

        Raises
        ------
        ValueError, TypeError
            If an option is invalid, or needs counted rows that ``counts=None`` left uncounted.
        SchemaError
            If a padded column is not ragged, or there are no columns.
        TFRecordError
            When a batch is requested that has a damaged record, or a record that contradicts the schema.

        Examples
        --------
        >>> ds = dtf.read_tfrecord("train-*.tfrecord", columns=["label", "tokens"])
        >>> for batch in ds.batches(8, shuffle="window", seed=1, pad={"tokens": None}):
        ...     print(batch["label"].shape, batch["tokens"].shape[0])
        (8,) 8
        (8,) 8
        (4,) 4
        """
        from dask_tfrecord.stores.batches.batch_iterator import BatchIterator

        dataset: Any = self
        return BatchIterator(
            dataset,
            batch_size,
            shuffle=shuffle,
            seed=seed,
            epochs=epochs,
            drop_remainder=drop_remainder,
            pad=pad,
            window=window,
            prefetch=prefetch,
            shard=shard,
        )

    def as_sequence(self) -> RowSequence:
        """Return the rows as a sequence, for map-style loaders such as those of PyTorch and Grain.

        Returns
        -------
        RowSequence
            ``len(rows)``; ``rows[i]``, a dict of the values of a row; ``rows.__getitems__(list)``, a list of rows that
            are read together. It can be pickled.

        Raises
        ------
        ValueError
            If rows are not counted (``counts=None``).

        Examples
        --------
        >>> rows = dtf.read_tfrecord("train-*.tfrecord", columns=["label", "tokens"]).as_sequence()
        >>> len(rows), rows[-1]["tokens"].shape
        (20, (9,))
        """
        from dask_tfrecord.stores.batches.row_sequence import RowSequence

        dataset: Any = self
        return RowSequence(dataset)
