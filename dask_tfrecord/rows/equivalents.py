"""What to write for names that tf.data, pandas, xarray, PyTorch and NumPy use.

Errors of the package, of `Dataset` and of its batches end with these texts. In those of a data set, ``COLUMN`` stands
for its first column, ``NUMBER`` for its first column of one number per row, and ``CONDITION`` for one on that column;
in those of batches, ``SIZE`` stands for the rows of a batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dask_tfrecord.errors import near_misses
from dask_tfrecord.features.base import Feature
from dask_tfrecord.rows.filters import condition_text

_FIRST = "write ds.rows[:3] for the first 3 rows"
_ONE_ROW = "write ds.rows[0] for the first row, or ds.rows[:3] for the first 3"
_WHERE = "write ds.where(CONDITION) to keep the rows that meet a condition"
_COLUMNS = "write list(ds.schema) for the names of the columns"
_SOME_COLUMNS = "write ds[[COLUMN]] for a data set of this column alone"
_TYPES = "write print(ds) to see dtypes and shapes, or ds.schema for the features"
_BATCHES = "write ds.batches(2) to iterate over batches of 2 rows"
_ONE = "write ds[NUMBER].{name}().compute() for one column, or ds.describe() for statistics of all columns"
_FRAME = "write ds.to_dataframe().compute() for a DataFrame of pandas, or ds.to_dataframe() for one of dask"
_ALL_STATISTICS = "write ds.describe() for counts, quantiles and distinct values of all columns"
_ADD = "write ds.assign(name=array) to add a column"
_SORT = "write ds.rows[numpy.argsort(ds[NUMBER].compute())] to sort the rows"
_JOIN = "write ds.to_dataframe() or ds.to_polars() and join the frames"
_CHUNKS = "write dtf.read_tfrecord(path, chunks=5) for chunks of 5 rows"
_ARRAYS = "write ds.compute() for a dict of NumPy arrays, or ds[COLUMN].compute() for one array"
_BOTH = "write dtf.read_tfrecord([path, other]) to read several sets of shards as one"

# Texts by the name of an attribute of a data set.
EQUIVALENTS = {
    **dict.fromkeys(
        ("map", "apply", "transform"),
        "write ds.map_blocks(function): the function receives a dict of arrays, with several rows each, and returns "
        "such a dict",
    ),
    **dict.fromkeys(("take", "limit"), _FIRST),
    "skip": "write ds.rows[3:] to leave out the first 3 rows",
    "tail": "write ds.rows[-3:] for the last 3 rows",
    **dict.fromkeys(("iloc", "loc", "isel", "sel"), _ONE_ROW),
    **dict.fromkeys(("filter", "query"), _WHERE),
    **dict.fromkeys(("batch", "padded_batch", "interleave"), _BATCHES),
    "repeat": "write ds.batches(2, epochs=3) to iterate over the rows 3 times, or epochs=None for ever",
    "prefetch": "leave it out: ds.batches(2) decodes batches of 2 rows ahead",
    "shard": "write ds.batches(2, shard=(0, 4)) for the first of 4 parts of the rows",
    "iter_rows": "write ds.as_sequence() for a dict per row, or ds.batches(2) for batches of 2 rows",
    "as_numpy_iterator": "write ds.as_sequence() for a dict per row, or ds.batches(2) for batches of 2 rows",
    "cache": "write ds.persist() to keep the rows in memory, or ds.to_zarr(path) to store them decoded",
    "enumerate": "write ds.assign(number=numpy.arange(ds.nrows)) to add the numbers of rows",
    "element_spec": _TYPES,
    "cardinality": "write ds.nrows for the number of rows",
    "columns": _COLUMNS,
    "column_names": _COLUMNS,
    "data_vars": _COLUMNS,
    "select": _SOME_COLUMNS,
    "dtypes": _TYPES,
    "features": _TYPES,
    "info": _TYPES,
    "shape": "write ds.nrows for the number of rows, and ds[COLUMN].shape for the shape of a column",
    "size": "write ds.nrows for the number of rows, and len(ds.schema) for the number of columns",
    "sizes": "write ds.nrows for the number of rows, or ds.chunks for the rows of each chunk",
    "dims": "write ds.nrows for the number of rows, or ds.to_xarray() for named dimensions",
    "index": "rows have no index but their number: write ds.rows[[3, 1]] for rows 3 and 1",
    "to_numpy": _ARRAYS,
    "numpy": _ARRAYS,
    "to_dict": "write ds.compute() for a dict of NumPy arrays",
    "load": "write ds.compute() for a dict of NumPy arrays, or ds.persist() to keep the rows in memory",
    **dict.fromkeys(("to_pandas", "to_dask_dataframe", "to_df"), _FRAME),
    "to_csv": "write ds.to_dataframe().to_csv(path)",
    "to_json": "write ds.as_sequence() for a dict per row, or `dask-tfrecord head --json` in a shell",
    "to_torch": "write torch.from_numpy(batch[NUMBER]) for each batch of ds.batches(2)",
    "to_tf": "write tf.data.Dataset.from_generator(lambda: ds.batches(2), output_signature=signature)",
    "to_netcdf": "write ds.to_xarray().to_netcdf(path)",
    "to_arrow": "write pyarrow.Table.from_batches(ds.to_arrow_batches())",
    "groupby": "write ds.to_dataframe().groupby(NUMBER)",
    "group_by": "write ds.to_polars().group_by(NUMBER)",
    "sort_values": _SORT,
    "sort": _SORT,
    "merge": _JOIN,
    "join": _JOIN,
    "with_columns": f"{_ADD}, or ds.map_blocks(function) to compute one from others",
    "with_column": f"{_ADD}, or ds.map_blocks(function) to compute one from others",
    "concat": f"{_BOTH}, or dtf.sample_from_datasets to mix data sets",
    "concatenate": _BOTH,
    "train_test_split": "write mixed = ds.shuffle(seed=0), and mixed.rows[3:] and mixed.rows[:3] for two parts",
    "rechunk": _CHUNKS,
    "repartition": _CHUNKS,
    "chunk": _CHUNKS,
    "partitions": "write ds.npartitions for the number of chunks, or ds.chunks for the rows of each",
    "drop_vars": "write ds.drop(COLUMN) to leave a column out",
    "astype": "write ds.assign({NUMBER: ds[NUMBER].astype('int32')}) to cast a column",
    **{name: _ONE.format(name=name) for name in ("mean", "sum", "min", "max", "std", "var", "argmax", "any", "all")},
    **dict.fromkeys(("median", "quantile", "nunique", "value_counts"), _ALL_STATISTICS),
    "unique": "write dask.array.unique(ds[NUMBER]).compute() for the values of a column",
}

_WORD = re.compile(r"\b(?:COLUMN|NUMBER|CONDITION)\b")


def of_dataset(name: str, columns: Mapping[str, Feature]) -> str:
    """Return what to write for an attribute that a data set of these columns lacks; empty for unknown names."""
    if name in columns:
        return f"; write ds[{name!r}] for this column"
    text = EQUIVALENTS.get(name)
    if text is None:
        near = near_misses(name, columns)
        return f"{near} Columns are written in brackets: ds[NAME]" if near.startswith("; did you mean") else ""
    column = next(iter(columns), "label")
    number = next((each for each, feature in columns.items() if _is_number(feature)), column)
    # Names of columns may be any text, so that they are inserted at once, and none of them is searched.
    words = {"COLUMN": repr(column), "NUMBER": repr(number), "CONDITION": repr(condition_text(number, ">", 2))}
    return "; " + _WORD.sub(lambda word: words[word[0]], text)


def _is_number(feature: Feature) -> bool:
    return feature.block_dtype.kind in "iuf" and not feature.block_shape


_OPEN = "write dtf.read_tfrecord('train-*.tfrecord') to open shards"
_WRITE = (
    "write dtf.to_tfrecord({'label': array}, path) to write arrays or rows, or dtf.RecordWriter(path) to write bytes"
)
_PARSE = (
    "write dask_tfrecord.messages.Example.FromString(data) to parse one record in memory, or "
    "dtf.read_tfrecord(path, features) to parse those of shards"
)

# Texts by the name of an attribute of the package.
FUNCTIONS = {
    **dict.fromkeys(("TFRecordDataset", "load_dataset", "load", "data"), _OPEN),
    **dict.fromkeys(("open_tfrecord", "open_dataset", "open", "read", "read_tfrecords", "from_tfrecord"), _OPEN),
    **dict.fromkeys(("TFRecordWriter", "write_tfrecord", "write", "save"), _WRITE),
    **dict.fromkeys(("parse_example", "parse_single_example"), _PARSE),
    "train": "write dask_tfrecord.messages.Example() for a record, or dtf.to_tfrecord({'label': array}, path)",
    "decode_raw": "write features={'image': dtf.RawFeature((28, 28), 'uint8')}, with your name, shape and dtype",
    "decode_jpeg": "write features={'image': dtf.ImageFeature()}, with the name of your feature",
    "tf_record_iterator": "write dtf.read_records(path) to iterate over the bytes of records",
    "io": "leave out io: write dtf.FixedLenFeature((), 'int64')",
    **dict.fromkeys(
        ("from_arrays", "from_dict"), "write dtf.Dataset.from_arrays({'label': array}) to make a data set of arrays"
    ),
    **dict.fromkeys(
        ("read_zarr", "open_zarr"), "write dtf.from_zarr('train.zarr') to open a store that to_zarr has written"
    ),
    "convert": "write dtf.to_zarr(dtf.read_tfrecord(path), 'train.zarr') to convert shards",
}

_BEFORE = (
    "write ds.map_blocks(function).batches(SIZE): the function receives a dict of arrays, with several rows each, and "
    "returns such a dict"
)
_AHEAD = "leave it out: ds.batches(SIZE) decodes batches ahead, or write ds.batches(SIZE, prefetch=2) for 2 of them"
# Texts by the name of an attribute of an iterator of batches.
OF_BATCHES = {
    "prefetch": _AHEAD,
    "shuffle": "write ds.batches(SIZE, shuffle='full')",
    "repeat": "write ds.batches(SIZE, epochs=3) for 3 epochs, or epochs=None for ever",
    "batch": "leave it out: ds.batches(SIZE) has SIZE rows in each batch",
    "unbatch": "write ds.as_sequence() for a dict per row",
    "shard": "write ds.batches(SIZE, shard=(0, 4)) for the first of 4 parts of the rows",
    "padded_batch": "write ds.batches(SIZE, pad={'tokens': None}), with the name of your column, to pad rows",
    "map": _BEFORE,
    "filter": 'write ds.where("label > 2").batches(SIZE), with the name of your column',
    "cache": "write ds.persist().batches(SIZE) to keep the rows in memory",
    "take": "write itertools.islice(ds.batches(SIZE), 3) for the first 3 batches",
    "skip": "write itertools.islice(ds.batches(SIZE), 3, None) to leave out the first 3 batches",
}
