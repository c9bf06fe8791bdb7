"""What to write for names that tf.data, pandas, xarray, PyTorch and NumPy use.

Errors of the package, of `Dataset` and of its batches end with these texts.
"""

from __future__ import annotations

_ROWS = "ds.rows[:n] and ds.rows[n:] select rows"
_WHERE = "ds.where([('label', '==', 3)]) or ds.where(\"label == 3\") keeps rows, and ds.where(function) those of a mask"
_COLUMNS = "list(ds) lists the names of columns, and ds[['label', 'image']] selects some"
_TYPES = "print(ds) shows dtypes and shapes, and ds.schema has the features"
_BATCHES = "ds.batches(32, shuffle='window', epochs=2, prefetch=4) iterates over batches"
_ONE = "it is a method of a column: ds['label'].{name}().compute(); ds.describe() has the statistics of all columns"
_FRAME = "ds.to_dataframe() is a dask DataFrame, and ds.to_dataframe().compute() one of pandas"
_XARRAY = "ds.to_xarray() is an xarray Dataset"

# Texts by the name of an attribute of a data set.
EQUIVALENTS = {
    **dict.fromkeys(("map", "apply", "transform"), "ds.map_blocks(function) passes blocks of rows through a function"),
    **dict.fromkeys(("take", "skip", "limit", "tail", "iloc", "loc", "isel", "sel"), _ROWS),
    **dict.fromkeys(("filter", "query"), _WHERE),
    **dict.fromkeys(("repeat", "prefetch", "batch", "padded_batch", "shard", "interleave"), _BATCHES),
    "iter_rows": "ds.as_sequence() has a dict per row, and ds.batches(32) iterates over batches",
    "as_numpy_iterator": "ds.batches(32) iterates over dicts of NumPy arrays, and ds.as_sequence() has a dict per row",
    "cache": "ds.persist() keeps the rows in memory, and ds.to_zarr(path) stores them decoded",
    "enumerate": "ds.assign(number=numpy.arange(ds.nrows)) adds the numbers of rows",
    "element_spec": _TYPES,
    "cardinality": "ds.nrows is the number of rows",
    "columns": _COLUMNS,
    "column_names": _COLUMNS,
    "data_vars": _COLUMNS,
    "select": _COLUMNS,
    "dtypes": _TYPES,
    "features": _TYPES,
    "info": _TYPES,
    "shape": "ds.nrows is the number of rows and len(ds) that of columns; ds['image'].shape is that of a column",
    "size": "ds.nrows is the number of rows and len(ds) that of columns",
    "sizes": "ds.nrows is the number of rows, and ds.chunks are the rows of each chunk",
    "dims": "ds.nrows is the number of rows; ds.to_xarray() has named dimensions",
    "index": "rows have no index but their number: ds.rows[[3, 1]]",
    "to_numpy": "ds.compute() is a dict of NumPy arrays, and ds['label'].compute() one array",
    "numpy": "ds.compute() is a dict of NumPy arrays, and ds['label'].compute() one array",
    "to_dict": "ds.compute() is a dict of NumPy arrays",
    "load": "ds.compute() is a dict of NumPy arrays, and ds.persist() keeps the rows in memory",
    **dict.fromkeys(("to_pandas", "to_dask_dataframe", "to_df"), _FRAME),
    "to_csv": f"{_FRAME}, which writes CSV",
    "to_json": "ds.as_sequence() has a dict per row; `dask-tfrecord head --json` prints rows",
    "to_torch": "torch.from_numpy(batch['label']) for each batch of ds.batches(32)",
    "to_tf": "tf.data.Dataset.from_generator(lambda: ds.batches(32), …) takes batches",
    "to_netcdf": f"{_XARRAY}, which writes NetCDF",
    "to_arrow": "ds.to_arrow_batches() are record batches: pyarrow.Table.from_batches(ds.to_arrow_batches())",
    "groupby": f"{_FRAME}; {_XARRAY}: both have groupby, as has ds.to_polars()",
    "group_by": "ds.to_polars() is a LazyFrame of polars, which has group_by",
    "sort_values": "ds.rows[numpy.argsort(ds['label'].compute())] orders rows",
    "sort": "ds.rows[numpy.argsort(ds['label'].compute())] orders rows",
    "merge": "ds.to_polars() and ds.to_dataframe() join rows; ds.assign(name=array) adds a column",
    "join": "ds.to_polars() and ds.to_dataframe() join rows; ds.assign(name=array) adds a column",
    "with_columns": "ds.assign(name=array) adds a column, and ds.map_blocks(function) one that depends on others",
    "with_column": "ds.assign(name=array) adds a column, and ds.map_blocks(function) one that depends on others",
    "concat": "dtf.read_tfrecord([path, other]) reads shards as one set, and dtf.sample_from_datasets mixes data sets",
    "concatenate": "dtf.read_tfrecord([path, other]) reads several sets of shards as one",
    "train_test_split": "ds.rows[:n] and ds.rows[n:] are parts, and of ds.shuffle(seed=0) to mix the rows",
    "rechunk": "dtf.read_tfrecord(path, features, chunks='64 MiB') opens other chunks, and ds.batches(n) reads batches",
    "repartition": "dtf.read_tfrecord(path, features, chunks='64 MiB') opens other chunks",
    "partitions": "ds.npartitions is the number of chunks, and ds.chunks are their rows; ds.rows[:n] selects rows",
    "chunk": "dtf.read_tfrecord(path, features, chunks=1000) opens chunks of 1000 rows, and 'auto' chooses them",
    "drop_vars": "ds.drop('image') leaves columns out",
    "astype": "ds.assign(label=ds['label'].astype('int32')) casts a column, and features= when it is read",
    **{name: _ONE.format(name=name) for name in ("mean", "sum", "min", "max", "std", "var", "argmax", "any", "all")},
    **dict.fromkeys(
        ("median", "quantile", "nunique", "value_counts"),
        "ds.describe() has counts, quantiles and distinct values of all columns",
    ),
    "unique": "dask.array.unique(ds['label']).compute() are the values of a column",
}

_OPEN = "dtf.read_tfrecord('train-*.tfrecord', features) opens shards"
_WRITE = "dtf.to_tfrecord({'label': array}, path) writes arrays or rows, and dtf.RecordWriter(path) bytes"
_PARSE = "dtf.read_tfrecord(path, features) parses records, and dtf.read_records(path) iterates over their bytes"

# Texts by the name of an attribute of the package.
FUNCTIONS = {
    **dict.fromkeys(("TFRecordDataset", "load_dataset", "load", "data"), _OPEN),
    **dict.fromkeys(("open_tfrecord", "open_dataset", "open", "read", "read_tfrecords", "from_tfrecord"), _OPEN),
    **dict.fromkeys(("TFRecordWriter", "write_tfrecord", "write", "save"), _WRITE),
    **dict.fromkeys(("parse_example", "parse_single_example", "decode_raw", "decode_jpeg", "train"), _PARSE),
    "tf_record_iterator": "dtf.read_records(path) iterates over the bytes of records",
    "io": "the features are here, without io: dtf.FixedLenFeature((), 'int64')",
    "from_arrays": "dtf.Dataset.from_arrays({'label': array}) is a data set",
    "from_dict": "dtf.Dataset.from_arrays({'label': array}) is a data set",
    "read_zarr": "dtf.from_zarr('train.zarr') opens a store that to_zarr wrote",
    "open_zarr": "dtf.from_zarr('train.zarr') opens a store that to_zarr wrote",
    "convert": "dtf.to_zarr(dtf.read_tfrecord(path), 'train.zarr') converts shards",
}

_ARGUMENT = "it is an argument: ds.batches(32, shuffle='window', seed=0, epochs=2, prefetch=4)"
_BEFORE = "change the rows before: ds.map_blocks(function).batches(32)"
# Texts by the name of an attribute of an iterator of batches.
OF_BATCHES = {
    **dict.fromkeys(("prefetch", "shuffle", "repeat", "batch", "shard", "padded_batch"), _ARGUMENT),
    **dict.fromkeys(("map", "filter", "cache", "unbatch"), _BEFORE),
    "take": "itertools.islice(ds.batches(32), 3) are the first three",
    "skip": "itertools.islice(ds.batches(32), 3, None) leaves out the first three",
}
