"""What errors advise: the names and arguments of tf.data, pandas, xarray, PyTorch and NumPy, and what to write here.

In texts about a data set, ``COLUMN`` is replaced by its first column, ``NUMBER`` by its first column of one number per
row, ``RAGGED`` for its first ragged one, and ``CONDITION`` for one on the number; ``SIZE`` for the rows of a batch,
``VALUE`` for what was given, and ``NAME`` for the argument that it was given as.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

from dask_tfrecord.errors import clipped, near_misses, warn_caller

_Function = TypeVar("_Function", bound=Callable[..., Any])

_ONE = "write ds[NUMBER].{name}().compute() for one column, or ds.describe() for statistics of all columns"
_OF_ALL_COLUMNS = (
    *("compute", "persist", "describe", "head", "preview"),
    *("to_awkward", "to_dataframe", "to_polars", "to_xarray"),
)
_ARRAYS = "write ds.compute() for a dict of NumPy arrays, or ds[COLUMN].compute() for one array"
_BOTH = (
    "write dtf.read_tfrecord([path, other]) to read several sets of shards as one, or "
    "dtf.sample_from_datasets([ds, ds]) to mix the rows of data sets"
)

_OPEN = "write dtf.read_tfrecord('train-*.tfrecord') to open shards"


# Texts by the names of attributes (of data sets, the package, schemas, batches), and by the names of arguments, alone
# or after the name of their function. Spaces divide the names that share a text.
_TEXTS: Mapping[str, Mapping[str, str]] = {
    "ds": {
        "map apply transform": "write ds.map_blocks(function): the function receives a dict of arrays, with several "
        "rows each, and returns such a dict",
        "take limit": "write ds.rows[:3] for the first 3 rows",
        "skip": "write ds.rows[3:] to leave out the first 3 rows",
        "tail": "write ds.rows[-3:] for the last 3 rows",
        "iloc isel first get_single_element": "write ds.rows[0] for the first row, or ds.rows[:3] for the first 3",
        "loc sel": "write ds.where([(NUMBER, '==', 3)]) for the rows with a value, or ds.rows[0] for the first row",
        "filter query": "write ds.where(CONDITION) for the rows that meet a condition",
        "batch iter_batches to_iterable_dataset": "write ds.batches(2) to iterate over batches of 2 rows",
        "padded_batch ragged_batch bucket_by_sequence_length": "write ds.batches(2, pad={RAGGED: None}) to pad rows",
        "interleave": "leave it out: shards are read in parallel, and ds.batches(2, shuffle='window') mixes their rows",
        "repeat": "write ds.batches(2, epochs=3) to iterate over the rows 3 times, or epochs=None for no end",
        "prefetch": "leave it out: ds.batches(2) decodes batches of 2 rows ahead",
        "shard": "write ds.batches(2, shard=(0, 4)) for the first of 4 parts of the rows",
        "iter_rows iterrows itertuples as_numpy_iterator to_list unbatch": "write ds.as_sequence() for a dict per "
        "row, or ds.batches(2) for batches of 2 rows",
        "cache": "write ds.persist() to keep the rows in memory, or ds.to_zarr(path) to store them decoded",
        "enumerate": "write ds.assign(number=numpy.arange(ds.nrows)) to add the numbers of rows",
        "cardinality num_rows num_examples": "write ds.nrows for the number of rows",
        "columns column_names data_vars": "write list(ds.schema) for the names of the columns",
        "select select_columns": "write ds[[COLUMN]] for a data set of this column alone",
        "dtypes dtype element_spec features info": "write print(ds) to see dtypes and shapes, or ds.schema for the "
        "features",
        "show display plot hist": "write ds.preview() for pictures, text and numbers of the first rows, or ds.view() "
        "for a page in the browser",
        "dropna isna isnull notna": "write ds.where(lambda blocks: ~numpy.isnan(blocks[NUMBER])) for the rows without "
        "NaN",
        "rename_column rename_columns rename_vars": "write ds.rename({COLUMN: 'name'}) to rename a column",
        "class_names classes int2str": "write ds.schema.classes for the names of classes, by column",
        "copy": "leave it out: a data set never changes, and its methods return a new one",
        "coords": "write ds.to_xarray(coords=[COLUMN]) for coordinates",
        "set_format": "leave it out: ds.compute() and ds.batches(2) return NumPy arrays",
        "shape": "write ds.nrows for the number of rows, and ds[COLUMN].shape for the shape of a column",
        "size": "write ds.nrows for the number of rows, and len(ds.schema) for the number of columns",
        "sizes": "write ds.nrows for the number of rows, or ds.chunks for the rows of each chunk",
        "dims": "write ds.nrows for the number of rows, or ds.to_xarray() for named dimensions",
        "fillna replace": "write ds.assign({NUMBER: numpy.where(numpy.isnan(ds[NUMBER]), 0, ds[NUMBER])}) to replace "
        "NaN by 0",
        "isin": "write ds.where([(NUMBER, 'in', [1, 2])]) for the rows with one of these values",
        "set_index reset_index sort_index reindex divisions": "leave it out: rows have no index but their number; "
        "keep the values of an index in a column",
        "index": "rows have no index but their number: write ds.rows[[3, 1]] for rows 3 and 1",
        "to_numpy numpy as_numpy": _ARRAYS,
        "agg aggregate corr drop_duplicates melt nlargest nsmallest pivot_table": "write ds.to_dataframe() for a "
        "dask DataFrame, which has this method",
        "__mul__": "write ds.assign({NUMBER: ds[NUMBER] * 2}) to compute with a column",
        "zip": "write ds.assign(name=array) to add the columns of another data set",
        "reduce": "write ds[NUMBER].sum().compute(), or another dask reduction",
        "flat_map": "write ds.explode(RAGGED) for one row per item",
        "map_partitions get_partition blocks": "write ds.map_blocks(function) for all chunks, or "
        "ds.to_delayed()[0].compute() for the rows of the first one",
        "memory_usage nbytes": "write ds.plan_zarr() for the bytes of each column",
        "to_string": "write print(ds.preview(10)) for the first rows",
        "to_dict collect": "write ds.compute() for a dict of NumPy arrays",
        "__array__": f"{_ARRAYS}, or ds.to_dataframe().compute() for a DataFrame",
        "load": "write ds.compute() for a dict of NumPy arrays, or ds.persist() to keep the rows in memory",
        "to_pandas to_dask_dataframe to_df": "write ds.to_dataframe().compute() for a pandas DataFrame, or "
        "ds.to_dataframe() for a dask DataFrame",
        "to_csv": "write ds[[NUMBER]].to_polars().sink_csv(path), with the names of number and text columns, or "
        "ds.to_parquet(path), which also stores vectors and bytes",
        "to_hdf to_hdf5 save write save_to_disk": "write ds.to_zarr(path), or ds.to_parquet(path)",
        "to_json": "write ds.as_sequence() for a dict per row, or `dask-tfrecord head --json` in a shell",
        "to_tf_dataset to_tensorflow": "write `for batch in ds.batches(2)`: tf.convert_to_tensor takes its arrays",
        "to_torch": "write torch.utils.data.DataLoader(ds.batches(2), batch_size=None) for batches of 2 rows",
        "to_tf": "write tf.data.Dataset.from_generator(lambda: ds.batches(2), output_signature=signature)",
        "to_netcdf": "write ds.to_xarray(ragged='flat').to_netcdf(path)",
        "to_arrow": "write pyarrow.Table.from_batches(ds.to_arrow_batches())",
        "groupby": "write ds.to_dataframe().groupby(NUMBER)",
        "group_by": "write ds.to_polars().group_by(NUMBER)",
        "sort_values sort sortby": "write ds.rows[numpy.argsort(ds[NUMBER].compute())] to sort the rows",
        "merge join": "write ds.to_dataframe() or ds.to_polars() and join the frames",
        "with_columns with_column add_column": "write ds.assign(name=array) to add a column, or "
        "ds.map_blocks(function) to compute one from others",
        "concat concatenate __add__ append": _BOTH,
        "train_test_split random_split split": "write mixed = ds.shuffle(seed=0), and mixed.rows[3:] and "
        "mixed.rows[:3] for two parts",
        "rechunk repartition chunk": "write dtf.read_tfrecord(path, chunks=5) for chunks of 5 rows",
        "partitions": "write ds.npartitions for the number of chunks, or ds.chunks for the rows of each",
        "drop_vars remove_columns pop": "write ds.drop(COLUMN) to leave a column out",
        "astype cast cast_column": "write ds.assign({NUMBER: ds[NUMBER].astype('int32')}) to cast a column",
        "median quantile nunique": "write ds.describe() for counts, quantiles and distinct values of all columns",
        "value_counts": "write numpy.unique(ds[NUMBER].compute(), return_counts=True) for values and how often each "
        "occurs, or ds.describe() for statistics of all columns",
        "unique": "write dask.array.unique(ds[NUMBER]).compute() for the values of a column",
        **{
            name: _ONE.format(name=name) for name in ("mean", "sum", "min", "max", "std", "var", "argmax", "any", "all")
        },
    },
    "dtf": {
        "TFRecordDataset load_dataset load data": _OPEN,
        "open_tfrecord open_dataset open read read_tfrecords from_tfrecord": _OPEN,
        "TFRecordWriter write_tfrecord write save": "write dtf.to_tfrecord({'label': array}, path) to write arrays or "
        "rows, or dtf.RecordWriter(path) to write bytes",
        "parse_example parse_single_example": "write dask_tfrecord.messages.Example.FromString(data) to parse one "
        "record in memory, or dtf.read_tfrecord(path, features) to parse the records of shards",
        "train Example Features": "write dask_tfrecord.messages.Example() for a record, or "
        "dtf.to_tfrecord({'label': array}, path)",
        "decode_raw": "write features={'image': dtf.RawFeature((28, 28), 'uint8')}, with your name, shape and dtype",
        "decode_jpeg decode_png decode_image": "write features={'image': dtf.ImageFeature()}, with the name of your "
        "feature",
        "tf_record_iterator": "write dtf.read_records(path) to iterate over the bytes of records",
        "io": "leave out io: write dtf.FixedLenFeature((), 'int64')",
        "from_arrays from_dict from_tensor_slices from_generator": "write dtf.Dataset.from_arrays({'label': array}) "
        "to make a data set from arrays, or from a DataFrame",
        **{
            f"{name} {name.replace('read', 'from')}": f"write dtf.Dataset.from_arrays(pandas.{name}(path)) to make a "
            "data set from the file"
            for name in ("read_parquet", "read_csv")
        },
        "from_pandas from_dataframe from_polars from_arrow": "write dtf.Dataset.from_arrays(frame) to make a data "
        "set from a pandas or dask DataFrame, and frame.to_pandas() for a polars DataFrame or an Arrow table",
        "read_zarr open_zarr": "write dtf.from_zarr('train.zarr') to open a store that to_zarr has written",
        "concat concatenate choose_from_datasets zip": _BOTH,
        "Feature IntFeature Int64Feature FloatFeature Int64List FloatList ScalarFeature": "write "
        "dtf.FixedLenFeature((), 'int64') for one value per record, or dtf.VarLenFeature('float32') for any number of "
        "values",
        "StringFeature BytesFeature BytesList": "write dtf.TextFeature() for text, or dtf.FixedLenFeature((), "
        "'bytes') for bytes",
        "int64 float32 string bytes int32 uint8 float64": "write the dtype as text: dtf.FixedLenFeature((), 'int64')",
        "parse_tensor": "write features={'x': dtf.TensorFeature((28, 28), 'uint8')}, with your name, shape and dtype",
        "version": "write dtf.__version__",
        "convert": "write dtf.to_zarr(dtf.read_tfrecord(path), 'out.zarr') to convert shards",
    },
    "schema": {
        "to_dict features": "write dict(ds.schema) for a dict of features, or ds.schema.to_json() for JSON text",
        "columns names column_names": "write list(ds.schema) for the names of the columns",
        "dtypes types": "write {name: of.dtype for name, of in ds.schema.items()}",
        "save write to_file": "write pathlib.Path('schema.json').write_text(ds.schema.to_json())",
    },
    "batches": {
        "next": "write next(ds.batches(SIZE)) for the first batch, or iterate with `for`",
        "prefetch": "leave it out: ds.batches(SIZE) decodes batches ahead, or write ds.batches(SIZE, prefetch=2) to "
        "prepare 2 of them",
        "shuffle": "write ds.batches(SIZE, shuffle='full')",
        "repeat": "write ds.batches(SIZE, epochs=3) for 3 epochs, or epochs=None for no end",
        "batch": "leave it out: ds.batches(SIZE) has SIZE rows in each batch",
        "unbatch": "write ds.as_sequence() for a dict per row",
        "numpy as_numpy_iterator": "leave it out: batches are dicts of NumPy arrays",
        "shard": "write ds.batches(SIZE, shard=(0, 4)) for the first of 4 parts of the rows",
        "padded_batch": "write ds.batches(SIZE, pad={'tokens': None}), with the name of your column, to pad rows",
        "map": "write ds.map_blocks(function).batches(SIZE): the function receives a dict of arrays, with several "
        "rows each, and returns such a dict",
        "filter": 'write ds.where("label > 2").batches(SIZE), with the name of your column',
        "cache": "write ds.persist().batches(SIZE) to keep the rows in memory",
        "take": "write itertools.islice(ds.batches(SIZE), 3) for the first 3 batches",
        "skip": "write itertools.islice(ds.batches(SIZE), 3, None) to leave out the first 3 batches",
    },
    "statistics": {
        "to_frame to_pandas to_df to_csv loc iloc T": "write ds.describe().to_dataframe() for a DataFrame, with "
        "a row per column",
        "mean std min max median": "write ds.describe()[NUMBER].numbers for the statistics of a column",
        "save plot show hist": "write ds.describe().to_html('statistics.html') for a page with histograms",
    },
    "column": {
        "mean min minimum max maximum std": "write ds.describe()[COLUMN].numbers.mean, for a column of numbers",
    },
    "ragged": {
        "to_tensor to_numpy numpy": "write ds.batches(2, pad={'tokens': None}), with the name of your column, to "
        "pad rows to the same length",
        "to_list tolist": "write [row.tolist() for row in block]",
    },
    "preview": {
        "save savefig to_image to_file to_jpg to_jpeg to_pdf": "write ds.preview().to_png('rows.png') for a picture, "
        "or ds.preview().to_html('rows.html') for a page",
        "show plot display": "write print(ds.preview())",
        "to_dataframe to_pandas to_dict": "write ds.head(5) for the first rows as arrays",
    },
    "argument": {
        "overwrite": "write mode='w' to replace what exists",
        "append": "write append_dim='record' to add rows to a Zarr store, and mode='a' to add columns to it, or files "
        "of another format",
        "encoding": "leave it out, and pass its contents to to_zarr directly, as compressors=, filters=, chunks= and "
        "fill_values=. The encoding of text belongs to the feature that reads it, TextFeature(encoding='latin-1')",
        "zarr_format zarr_version": "leave it out: to_zarr always writes format 3 of Zarr",
        "compressor": "write compressors=zarr.codecs.ZstdCodec(level=3)",
        "region": "write append_dim='record' to add rows, or use dask_tfrecord.ZarrJob to write a store in parts",
        "column usecols": "write columns=VALUE",
        "batches.columns": "write ds[VALUE].batches(2)",
        "batches.buffer_size": "write shuffle='window', window=VALUE to mix rows within windows",
        "dims": "write dimension_names={'image': ('y', 'x', 'channel')} for the axes of a column; rows have the "
        "dimension 'record', which ds.to_xarray().rename(record='row') renames",
        "to_tfrecord.compression_type RecordWriter.compression_type": "write compression='gzip' for gzip",
        "compression_type": "write compression='gzip', or leave it out: reading detects the compression",
        "options": "write compression='gzip' to compress shards",
        "num_parallel_reads num_parallel_calls buffer_size deterministic": "leave it out: chunks are read in parallel "
        "by dask, in the order of the records",
        "batch_size": "leave it out, and write ds.batches(2) to iterate over batches of the data set",
        "engine": "leave it out",
        "blocksize": "write chunks=VALUE",
        "feature_description feature_spec spec schema parse_fn context_features": "write features=VALUE",
        "read_tfrecord.dtype read_tfrecord.dtypes": "write features={'label': dtf.FixedLenFeature((), 'int64')}, with "
        "your names, shapes and dtypes",
        "verify verify_checksum check_integrity": "write check_crc=VALUE",
        "on_bad_lines ignore_errors": "write errors='skip' to leave out damaged records",
        "n_workers": "leave it out: the threads of dask read, or the workers of a dask.distributed.Client",
        "filenames filename file_pattern paths path": "write urlpath=VALUE, or only the value",
        "to_zarr.path to_zarr.urlpath to_zarr.filename": "write store=VALUE, or only the value",
        "device=gpu": "write device='cuda' for a GPU",
        "view.host": "leave it out: only this machine can open the page, and other machines through `ssh -L "
        "8000:localhost:8000`",
        "to_zarr.group from_zarr.group": "write component=VALUE for a group of this name in the store",
        "where.*": "write ds.where([(NAME, '==', VALUE)])",
        "nrows n_rows limit take": "leave it out, and write ds.rows[:VALUE] for the first rows",
        "skiprows skip": "leave it out, and write ds.rows[VALUE:] to skip the first rows",
        "num_workers": "leave it out: the threads of this process decode batches ahead",
        "drop_last": "write drop_remainder=VALUE",
        "read_tfrecord.shuffle shuffle_files": "leave it out, and write ds.batches(2, shuffle='full')",
        "read_tfrecord.repeat read_tfrecord.num_epochs": "leave it out, and write ds.batches(2, epochs=3) for 3 epochs",
        "read_tfrecord.sample": "write features=dtf.infer_schema(path, sample=VALUE)",
        "read_tfrecord.seed": "leave it out, and write ds.batches(2, shuffle='full', seed=VALUE)",
        "padded.truncate": "write ds.batches(2, pad={'tokens': dtf.Pad(4, truncate=True)}), with the "
        "name of your column",
        "padded.padding_value padded.fill_value padded.default_value": "write value=VALUE",
        "map_blocks.*": "the function gets only a dict of arrays: bind NAME to it by functools.partial",
        "as_supervised": "leave it out: each batch is a dict, and batch['image'] is one of its arrays",
        "with_info": "leave it out: ds.schema has the features, and ds.schema.classes the names of classes",
        "batches.repeat batches.num_epochs": "write epochs=VALUE",
        "batches.reshuffle_each_iteration": "leave it out: shuffle='full' gives each epoch a different order",
        "RaggedFeature.ragged_rank": "leave it out: partitions= has a partition for each level of rows",
        "where.other where.drop": "leave it out: where() always drops the rows that do not meet the condition",
        "to_parquet.partition_on to_parquet.partition_cols": "leave it out: each chunk of rows becomes a file. For a "
        "data set per value, write ds.where([('label', '==', 3)]).to_parquet(path)",
        "num_shards n_shards to_tfrecord.shards": "write records_per_shard=math.ceil(ds.nrows / VALUE) for VALUE "
        "shards",
        "to_zarr.compression": "write compressors=zarr.codecs.GzipCodec(), or another codec of zarr",
        "from_zarr.columns": "leave it out, and write ds[VALUE] for these columns",
        "from_zarr.chunks": "leave it out: chunks are those of the store",
        "inplace": "leave it out: methods return a new data set, and never change this one",
        "axis": "leave it out: names refer to columns",
        "index": "leave it out: rows have no index but their number",
        "frac": "write ds.sample(int(VALUE * ds.nrows)) for a share of the rows",
        "random_state": "write seed=VALUE",
        "drop.columns": "write ds.drop(VALUE)",
        "rename.columns": "write ds.rename(VALUE)",
        "shuffle.buffer_size": "write ds.shuffle(seed=0) to mix all rows, or ds.batches(2, shuffle='window', "
        "window=VALUE) to mix rows within windows",
        "shuffle.reshuffle_each_iteration": "write ds.batches(2, shuffle='full', epochs=3) for a different order in "
        "each epoch",
        # The first argument, without its name.
        "shuffle.seed=": "VALUE is the seed, and all rows are mixed: write ds.shuffle(seed=VALUE), or ds.batches(2, "
        "shuffle='window', window=VALUE) to mix rows within windows",
        **{f"{name}.columns": f"write ds[VALUE].{name}()" for name in _OF_ALL_COLUMNS},
        **{f"{name}.columns": f"write ds[VALUE].{name}(path)" for name in ("to_zarr", "to_parquet")},
    },
}
# By a part of the error of a function that `map_blocks` calls.
_FAILURES = {
    "positional argument": "it is called with one argument, a dict of arrays",
    "RaggedBlock": "rows that differ in length are a RaggedBlock: write dtf.RaggedBlock(blocks[RAGGED].values * 2, "
    "blocks[RAGGED].row_splits) to change its values, or numpy.array([row.sum() for row in blocks[RAGGED]], "
    "'float64') for one number per row",
    "is out of bounds for array of dimension": "text, bytes and rows that differ in shape are objects along one "
    "axis: leave out axis=",
    "truth value of an": "a block has several rows: write & for `and`, | for `or` and ~ for `not`, as in "
    "(blocks[NUMBER] > 2) & (blocks[NUMBER] < 5), and numpy.where(blocks[NUMBER] > 2, 1, 0) for `if`",
    "'numpy.ndarray' object has no attribute": "a block is a NumPy array of all its rows: write numpy.sqrt("
    "blocks[NUMBER]), or another NumPy function, and numpy.strings for text",
    "'dict' object has no attribute": "write blocks[NAME] for a column",
    "can be converted to Python scalars": "a block has several rows, not one: write blocks[NUMBER].astype('int64') "
    "for int, and NumPy functions instead of functions of one number",
    "string operation on non-string": "the rows are bytes: read the column with TextFeature() to get text",
}
ADVICE: Mapping[str, Mapping[str, str]] = {
    **{of: {name: text for names, text in texts.items() for name in names.split()} for of, texts in _TEXTS.items()},
    "function": _FAILURES,
}
_WORD = re.compile(r"\b(?:COLUMN|NUMBER|RAGGED|CONDITION|SIZE|VALUE|NAME)\b")


def advice(of: str, name: str, words: Mapping[str, object] | None = None) -> str:
    """Say what to write for a name of other libraries, as the end of an error; no text for unknown names."""
    text = ADVICE[of].get(name)
    # Names of columns may be any text, so that they are inserted at once, and none of them is searched.
    return "" if text is None else "; " + _WORD.sub(lambda word: clipped(repr((words or {})[word[0]]), 100), text)


def no_attribute(of: str, given: object, name: str, words: Mapping[str, object] | None = None) -> AttributeError:
    """Return the error about an attribute that a mapping or another object lacks, with what to write."""
    hint = ""
    if not name.startswith("_"):
        is_column = isinstance(given, Mapping) and name in given
        mapping = "ds.schema" if of == "schema" else "ds.describe()"
        hint = f"; write {mapping}[{name!r}] for this column" if is_column else advice(of, name, words)
    return AttributeError(f"{type(given).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=given)


def words_of(schema: Mapping[str, Any]) -> dict[str, str]:
    """Return the words of texts about a data set with these features."""
    first = next(iter(schema), "label")
    numbers = (each for each, of in schema.items() if of.block_dtype.kind in "iuf" and not of.block_shape)
    ragged = next((each for each, of in schema.items() if of.ragged_rank), "tokens")
    return {"COLUMN": first, "NUMBER": next(numbers, first), "RAGGED": ragged}


def failed_function(error: Exception, schema: Mapping[str, Any]) -> str:
    """Say how to change a function that failed on blocks of these features; no text for unknown reasons."""
    part = next((part for part in ADVICE["function"] if part in str(error)), "")
    return advice("function", part, {**words_of(schema), "NAME": getattr(error, "name", None)})


def unknown_option(function: str, name: str, known: Iterable[str], value: object) -> TypeError:
    """Return the error about an argument that a function does not have: the equivalent, similar names, or all names."""
    known = tuple(known)
    near = near_misses(name, known) if known else "; it takes none"
    if name in ("column", "usecols", "columns") and isinstance(value, str):
        value = [value]
    text = advice("argument", f"{function}.{name}", {"VALUE": value})
    # The advice does not apply to a function without columns.
    if not text and (name not in ("column", "usecols") or "columns" in known):
        text = advice("argument", name, {"VALUE": value})
    if not text and not near.startswith("; did you mean"):
        text = advice("argument", f"{function}.*", {"NAME": name, "VALUE": value})
    return TypeError(f"{function}() got an unexpected keyword argument {name!r}{text or near}")


def explain_arguments(call: str) -> Callable[[_Function], _Function]:
    """Let errors about arguments that a function lacks or does not know name what to write: `call` is an example."""

    def explained(method: _Function) -> _Function:
        parameters = inspect.signature(method).parameters.values()
        kinds = {each.kind for each in parameters}
        named = [each for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
        names = [each.name for each in named]
        # Place of the first argument that a caller gives.
        first = 1 if names[:1] in (["self"], ["cls"]) else 0
        others = names[first:]
        name = call.partition("(")[0] if method.__name__ == "__init__" else method.__name__
        by_place = [each.name for each in named if each.kind is not each.KEYWORD_ONLY]
        needed = [each.name for each in named if each.default is each.empty]
        # A value that another library takes in this place means something else there.
        unnamed = f"{name}.{others[0]}=" if others else ""

        @wraps(method)
        def checked(*args: Any, **options: Any) -> Any:
            for option in options:
                # dask ignores unknown options; functions that pass options on to it refuse the options of the table.
                passed_on = inspect.Parameter.VAR_KEYWORD in kinds and f"{name}.{option}" not in ADVICE["argument"]
                if option not in names and not passed_on:
                    raise unknown_option(name, option, others, options[option])
            missing = [each for each in needed if each not in options and each not in by_place[: len(args)]]
            if missing:
                raise TypeError(f"{name}() needs {missing[0]!r}: write {call}")
            if twice := next((each for each in by_place[: len(args)] if each in options), ""):
                raise TypeError(f"{name}() got {twice!r} twice: leave out {twice}=")
            if len(args) > len(by_place) and inspect.Parameter.VAR_POSITIONAL not in kinds:
                raise TypeError(f"{name}() got one argument too many, {args[len(by_place)]!r:.100}: write {call}")
            if unnamed in ADVICE["argument"] and len(args) > first:
                given = args[first]
                warn_caller(f"{name}(): {advice('argument', unnamed, {'VALUE': given})[2:]}")
            return method(*args, **options)

        return cast(_Function, checked)

    return explained
