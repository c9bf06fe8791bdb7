"""Mistakes of newcomers: each error names the call to write instead."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from support.remedies import Namespace, calls, conditions, executed

import dask_tfrecord as dtf
from dask_tfrecord.cli.main import tfrecord
from dask_tfrecord.errors import ShardNotFoundError
from dask_tfrecord.features.images.pixels import encode_png

FIRST, SECOND = "train-00000-of-00002.tfrecord", "train-00001-of-00002.tfrecord"
PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mistakes")
    columns = {"label": np.arange(6), "text": [b"one", b"two"] * 3, "tokens": [[1], [2, 3], [], [4], [5, 6, 7], []]}
    dtf.to_tfrecord(columns, path / "train-{shard:05d}-of-{shards:05d}.tfrecord", records_per_shard=3)
    (path / "picture.png").write_bytes(PNG)
    (path / "notes.txt").write_text("label int64")
    dtf.to_tfrecord({"label": [1]}, path / "zipped.gz", compression="gzip")
    dtf.to_zarr({"label": np.arange(6)}, path / "stored.zarr")
    dtf.to_tfrecord({"label": np.arange(3)}, path / "many" / "x-{shard}.tfrecord", records_per_shard=1)
    dtf.to_parquet({"label": np.arange(3)}, path / "parquet")
    (path / "empty").mkdir()
    (path / "hidden").mkdir()
    (path / "hidden" / ".notes").touch()
    return path


@pytest.fixture
def ds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dtf.Dataset]:
    monkeypatch.chdir(folder)
    yield dtf.read_tfrecord("train-*.tfrecord")


Mistake = Callable[[dtf.Dataset], Any]
MISTAKES: list[tuple[Mistake, str]] = [
    (lambda ds: dtf.FixedLenFeature("int64"), "write FixedLenFeature((), 'int64') for one value"),  # type: ignore[call-arg,arg-type]
    (lambda ds: dtf.FixedLenFeature(()), "needs a dtype, as in FixedLenFeature((), 'int64')"),  # type: ignore[call-arg]
    (lambda ds: dtf.RawFeature("uint8", (8, 8, 3)), "write RawFeature((8, 8, 3), 'uint8')"),  # type: ignore[arg-type]
    (
        lambda ds: dtf.VarLenFeature(()),
        "because rows differ in length: write VarLenFeature('int64')",
    ),
    (lambda ds: dtf.read_tfrecord("train-*", "label"), "To read only the column 'label', write columns=['label']"),
    (lambda ds: ds["tokens"].sum().compute(), "values, *row_splits = ds.ragged('tokens'); values.sum().compute()"),
    (lambda ds: ds["tokens"].mean().compute(), "cannot compute the mean of rows that differ in length"),
    (lambda ds: ds["tokens"].max().compute(), "[row.max() if row.size else None for row in ds['tokens'].compute()]"),
    (lambda ds: ds["tokens"][1:].std().compute(), "cannot compute the std of rows that differ in length"),
    (lambda ds: (ds["text"] == "one").compute(), "write b'one' instead of 'one'"),
    (lambda ds: ds[0], "write ds.rows[0] to pick a row"),
    (lambda ds: ds[2:4], "write ds.rows[2:4] to pick rows"),
    (lambda ds: ds[:4:2], "write ds.rows[:4:2] to pick rows"),
    (lambda ds: ds[ds["label"] == 3], "write ds.rows[key] to pick rows by ints, a slice or a mask"),
    (lambda ds: np.asarray(ds), "or ds.to_dataframe().compute() for a DataFrame"),
    (lambda ds: ds.where("label = 3"), 'Write two equals signs: "label == 3"'),
    (lambda ds: ds.where("label == 3 & label < 5"), "Write 'and' instead of '&': \"label == 3 and label < 5\""),
    (lambda ds: ds.where("(label == 3) | (len(tokens) > 1)"), '"label == 3 or len(tokens) > 1"'),
    (lambda ds: ds.where("(label == 3)"), 'Leave out the parentheses: "label == 3"'),
    (lambda ds: ds.where("(label == 3 or label == 4) and label < 5"), 'write "a and c or b and c"'),
    (lambda ds: ds.where("text == one"), "Write text in quotes: \"text == 'one'\""),
    (lambda ds: ds.where(("label", "==", 3)), "filters must be a list of tuples: write [('label', '==', 3)]"),
    (lambda ds: ds.where("lable == 3"), "did you mean 'label'?"),
    (lambda ds: ds.where(ds["label"] == 3), "write ds.rows[mask] to pick rows by a mask"),  # type: ignore[arg-type]
    (lambda ds: ds.batches(2, shuffle=100), 'write shuffle="window", window=100'),  # type: ignore[arg-type]
    (lambda ds: ds.batches(2, pad={"token": None}), "did you mean 'tokens'?"),
    (lambda ds: ds.batches(0), "batch_size must be at least 1; got 0"),
    (lambda ds: ds.batches(), "batches() needs 'batch_size': write ds.batches(2)"),  # type: ignore[call-arg]
    (
        lambda ds: dtf.from_zarr("train-*.tfrecord"),
        "If these are TFRecord files, not a Zarr store, write dtf.read_tfrecord('train-*.tfrecord')",
    ),
    (
        lambda ds: dtf.from_zarr("train-00000-of-00002.tfrecord"),
        "but a file. If these are TFRecord files, not a Zarr store, write dtf.read_tfrecord('train-",
    ),
    (lambda ds: dtf.from_zarr("nothing.zarr"), "the path does not exist"),
    (lambda ds: dtf.read_tfrecord("abfs://bucket/train.tfrecord"), "pip install adlfs"),
    (
        lambda ds: dtf.read_tfrecord("picture.png"),
        "or its start is damaged: it begins with a PNG image",
    ),
    (lambda ds: dtf.read_tfrecord("notes.txt"), "it begins with the text 'label int64'. Pass only TFRecord files"),
    (lambda ds: dtf.read_tfrecord("nothing-*.tfrecord"), "there are 'train-00000-of-00002.tfrecord', 'train-00001-of"),
    (lambda ds: dtf.TFRecordDataset("train-*"), "write dtf.read_tfrecord('train-*.tfrecord') to open shards"),
    (lambda ds: dtf.io.FixedLenFeature([], "int64"), "leave out io: write dtf.FixedLenFeature((), 'int64')"),
    (lambda ds: dtf.TFRecordWriter("out.tfrecord"), "write dtf.to_tfrecord({'label': array}, path) to write arrays"),
    (lambda ds: dtf.parse_single_example(b"", {}), "write dask_tfrecord.messages.Example.FromString(data)"),
    (lambda ds: dtf.from_arrays({"x": [1]}), "write dtf.Dataset.from_arrays({'label': array})"),
    (lambda ds: dtf.read_tfrecord("train-*", compression_type="GZIP"), "write compression='gzip', or leave it out"),  # type: ignore[call-arg]
    (lambda ds: dtf.read_tfrecord("train-*", compression="GZIP"), "leave out compression="),
    (lambda ds: dtf.read_tfrecord("train-*", column=["label"]), "; write columns=['label']"),  # type: ignore[call-arg]
    (lambda ds: dtf.read_tfrecord("train-*", {"label": "int64"}), "for example FixedLenFeature((), 'int64')"),
    (lambda ds: compute(label=dtf.FixedLenFeature((), "float32")), "; write FixedLenFeature((), 'int64')"),
    (lambda ds: compute(text=dtf.VarLenFeature("int64")), "; write VarLenFeature('bytes')"),
    (
        lambda ds: compute(text=dtf.FixedLenSequenceFeature((2,), "int64", allow_missing=True)),
        "; write FixedLenSequenceFeature((2,), 'bytes', allow_missing=True)",
    ),
    (lambda ds: compute(tokens=dtf.FixedLenFeature((2,), "int64")), "VarLenFeature('int64') reads any number"),
    (
        lambda ds: compute(missing=dtf.FixedLenFeature((), "int64")),
        "have it, give it a default_value",
    ),
    (lambda ds: compute(text=dtf.ImageFeature()), "read raw pixels with RawFeature("),
    (lambda ds: ds.batches(2).prefetch(2), "leave it out: ds.batches(2) decodes batches ahead"),  # type: ignore[attr-defined]
    (lambda ds: ds.batches(2).map(len), "write ds.map_blocks(function).batches(2): the function receives a dict"),  # type: ignore[attr-defined]
    (lambda ds: ds.batches(2).take(1), "write itertools.islice(ds.batches(2), 3) for the first 3"),  # type: ignore[attr-defined]
    (lambda ds: ds.chunk(5), "write dtf.read_tfrecord(path, chunks=5) for chunks of 5 rows"),  # type: ignore[attr-defined]
    (lambda ds: ds.map(len), "write ds.map_blocks(function): the function receives a dict of arrays"),  # type: ignore[attr-defined]
    (lambda ds: ds.batch(2), "write ds.batches(2) to iterate over batches of 2 rows"),  # type: ignore[attr-defined]
    (lambda ds: ds.take(3), "write ds.rows[:3] for the first 3 rows"),  # type: ignore[attr-defined]
    (lambda ds: ds.filter(len), "write ds.where('label > 2')"),  # type: ignore[attr-defined]
    (lambda ds: ds.rename(label="log-in").filter(len), "write ds.where(\"'log-in' > 2\")"),  # type: ignore[attr-defined]
    (lambda ds: ds.groupby("label"), "write ds.to_dataframe().groupby('label')"),  # type: ignore[attr-defined]
    (lambda ds: ds.columns, "write list(ds.schema) for the names of the columns"),  # type: ignore[attr-defined]
    (lambda ds: ds.shape, "write ds.nrows for the number of rows"),  # type: ignore[attr-defined]
    (lambda ds: ds.label, "write ds['label'] for this column"),  # type: ignore[attr-defined]
    (lambda ds: ds.lable, "did you mean 'label'? Columns are written in brackets"),  # type: ignore[attr-defined]
    (lambda ds: ds.to_pandas(), "write ds.to_dataframe().compute() for a pandas DataFrame"),  # type: ignore[attr-defined]
    (lambda ds: ds[["text", "label"]].mean(), "write ds['label'].mean().compute() for one column"),  # type: ignore[attr-defined]
    (lambda ds: ds.isel(record=0), "write ds.rows[0] for the first row"),  # type: ignore[attr-defined]
    (lambda ds: ds.iloc[0], "write ds.rows[0] for the first row"),  # type: ignore[attr-defined]
    (lambda ds: ds["lable"], "no column 'lable'; did you mean 'label'?"),
    (lambda ds: ds["label", "lable"], "no column 'lable'; did you mean 'label'?"),
    (lambda ds: ds.rows[100], "row 100 is out of bounds for 6 rows"),
    (lambda ds: ds.compute("label"), "write ds['label'].compute()"),
    (lambda ds: ds.compute("label", "text"), "write ds[['label', 'text']].compute()"),
    (lambda ds: ds.__setitem__("x", 1), "write ds = ds.assign({'x': array})"),
    (lambda ds: ds.__delitem__("text"), "write ds = ds.drop('text')"),
    (lambda ds: ds.assign(np.arange(6)), "a column needs a name: write ds.assign(name=array)"),  # type: ignore[arg-type]
    (lambda ds: ds.to_xarray(dims="row"), "ds.to_xarray().rename(record='row') renames"),  # type: ignore[call-arg]
    (lambda ds: ds.to_zarr(), "to_zarr() needs 'store': write ds.to_zarr('train.zarr')"),  # type: ignore[call-arg]
    (lambda ds: ds.to_zarr("stored.zarr"), "exists: mode='w' replaces it"),
    (lambda ds: ds.to_zarr("z.zarr", overwrite=True), "write mode='w' to replace what exists"),  # type: ignore[call-arg]
    (lambda ds: ds.to_zarr("z.zarr", zarr_format=2), "leave it out: to_zarr always writes format 3"),  # type: ignore[call-arg]
    (lambda ds: dtf.to_zarr(ds), "to_zarr() needs 'store': write dtf.to_zarr(ds, 'train.zarr')"),  # type: ignore[call-arg]
    (
        lambda ds: ds.to_zarr("z.zarr", memory_limit="x"),
        "memory_limit must be a number of bytes, such as '2 GiB'; got 'x'",
    ),
    (
        lambda ds: ds.view(memory_limit="x"),
        "memory_limit of a view must be a number of bytes, '64 MiB' or more; got 'x'",
    ),
    (lambda ds: ds.to_zarr("z.zarr", compressors="gzip"), "write compressors=zarr.codecs.GzipCodec() for gzip"),
    (lambda ds: ds.to_zarr("z.zarr", filters={"label": ("delta",)}), "objects of zarr.codecs; got 'delta'"),
    (lambda ds: ds.to_zarr("z.zarr", encoding={}), "directly, as compressors=, filters=, chunks= and fill_values="),  # type: ignore[call-arg]
    (lambda ds: ds.to_zarr("z.zarr", mode="r+"), "write append_dim='record' to add rows to a store"),  # type: ignore[arg-type]
    (lambda ds: dtf.to_tfrecord("out.tfrecord", {"x": [1]}), "write the arrays before the path"),  # type: ignore[arg-type]
    (lambda ds: dtf.to_tfrecord(np.arange(3), "out.tfrecord"), "write {'x': array}"),
    (
        lambda ds: dtf.to_tfrecord({"a": [1, "x"]}, "o.tfrecord"),
        "array 'a' mixes int and str: give it values of",
    ),
    (
        lambda ds: dtf.to_tfrecord({"a": np.arange(3), "b": np.arange(4)}, "o.tfrecord"),
        "all arrays must have the same number of rows, but they differ: 'a' has 3, 'b' has 4",
    ),
    (lambda ds: dtf.to_tfrecord({}, "o.tfrecord"), "records need at least one array: write {name: array}"),
    (lambda ds: dtf.Schema.read(Path("notes.txt")), "it begins with 'label int64'. Pass a file that Schema.to_json"),
    (lambda ds: dtf.Schema.read("notes.json"), "no schema file 'notes.json' exists"),
    (lambda ds: ds.where("label === 3"), 'Write two equals signs: "label == 3"'),
    (lambda ds: ds.where("label"), 'Write a value after it: "label == 3"'),
    (lambda ds: ds.where("len(tokens) >"), 'Write a value after it: "len(tokens) > 3"'),
    (lambda ds: ds.where("1 < label <= 3"), 'Write two comparisons: "label > 1 and label <= 3"'),
    (lambda ds: ds.where("not label == 3"), 'write "label != 3"'),
    (lambda ds: ds.where("label % 2 == 0"), "write ds.where(lambda blocks: blocks['label'] % 2 == 0)"),
    (lambda ds: ds.where("label > 2 or label % 2 == 0"), "ds.where(lambda blocks: blocks['label'] % 2 == 0)"),
    (lambda ds: dtf.read_tfrecord("train-*", filters="label == 3"), "text is a condition of ds.where('label == 3')"),  # type: ignore[arg-type]
    (lambda ds: ds.rename("label", "class"), "write ds.rename({'label': 'class_id'})"),  # type: ignore[call-arg,arg-type]
    (lambda ds: ds.rename(columns={"label": "class"}), "write ds.rename({'label': 'class'})"),  # type: ignore[arg-type]
    (lambda ds: ds.drop(columns=["label"]), "write ds.drop(['label'])"),  # type: ignore[call-arg]
    (lambda ds: ds.drop("label", axis=1), "leave it out: names refer to columns"),  # type: ignore[call-arg]
    (lambda ds: ds.describe("label"), "write ds.describe(), or ds[['label']].describe() for some columns"),  # type: ignore[call-arg]
    (lambda ds: ds.explode(), "write ds.explode('tokens'), with the name of a ragged column"),  # type: ignore[call-arg]
    (lambda ds: ds.shuffle(buffer_size=9), "ds.batches(2, shuffle='window', window=9) to mix rows within windows"),  # type: ignore[call-arg]
    (lambda ds: ds.assign(x=3), "write numpy.full(ds.nrows, 3) for one value in all rows"),
    (lambda ds: ds.assign(x=len), "write an expression of columns, such as ds['label'] * 2"),
    (lambda ds: ds.map_blocks(lambda blocks: blocks["label"]), "return {'name': array}"),
    (lambda ds: ds.map_blocks(lambda blocks: {"x": blocks["label"].sum()}), "returned one value of 'x' for a block"),
    (lambda ds: ds.rows["label"], "write ds['label'] to pick columns"),
    (lambda ds: ds.rows[np.array("label") == 3], "write ds.rows[ds['label'] == 3]"),
    (lambda ds: ds.as_sequence()["label"], "write rows[0]['label']"),  # type: ignore[index]
    (lambda ds: ds.batches(2)[0], "write next(ds.batches(2)) for the first batch"),  # type: ignore[index]
    (lambda ds: len(ds.batches(2)), "write ds.batches(2).batches_per_epoch for the number"),  # type: ignore[arg-type]
    (lambda ds: ds.batches(2, shuffle=True), 'write shuffle="full"'),  # type: ignore[arg-type]
    (lambda ds: ds.batches(2, pad=True), "write pad={'tokens': None}"),  # type: ignore[arg-type]
    (lambda ds: ds.batches(2, num_workers=4), "leave it out: the threads of this process decode batches ahead"),  # type: ignore[call-arg]
    (lambda ds: ds.batches(2, drop_last=True), "write drop_remainder=True"),  # type: ignore[call-arg]
    (lambda ds: dtf.read_tfrecord("train-*", blocksize="64MB"), "write chunks='64MB'"),  # type: ignore[call-arg]
    (lambda ds: dtf.read_tfrecord("train-*", schema={}), "write features={}"),  # type: ignore[call-arg]
    (lambda ds: dtf.read_tfrecord("train-*", columns="label"), "write columns=['label']"),
    (lambda ds: dtf.read_tfrecord("train-*", split="train"), "leave out split=, and let the path name the files"),
    (lambda ds: dtf.read_tfrecord("ftp3://host/train.tfrecord"), "no file system is known for ftp3:// URLs; did you"),
    (lambda ds: dtf.read_tfrecord("s3:/bucket/x.tfrecord"), "did you mean 's3://bucket/x.tfrecord'?"),
    (lambda ds: dtf.read_tfrecord("-"), "standard input must be saved to a file first"),
    (lambda ds: dtf.read_tfrecord("/dev/null"), "save its bytes to a file, because records are read at their offsets"),
    (lambda ds: dtf.read_tfrecord("zipped.gz", compression="zlib"), "the file does not begin like zlib data: leave"),
    (lambda ds: dtf.read_tfrecord("zapped.tfrecord.gz"), "there are 'train-00000-of-00002.tfrecord'"),
    (lambda ds: dtf.Dataset("train-*.tfrecord"), "write dtf.read_tfrecord('train-*.tfrecord')"),  # type: ignore[arg-type]
    (lambda ds: dtf.Dataset({"x": 1}), "write dtf.Dataset.from_arrays({'label': array})"),  # type: ignore[arg-type]
    (lambda ds: dtf.Dataset.from_arrays([1, 2]), "give the array a name, and write {'x': array}"),
    (lambda ds: dtf.TensorFeature(()), "needs a dtype, as in TensorFeature((), 'float32')"),  # type: ignore[call-arg]
    (lambda ds: dtf.RawFeature((3,)), "needs a dtype, as in RawFeature((3,), 'uint8')"),  # type: ignore[call-arg]
    (lambda ds: dtf.FixedLenFeature([None], "int64"), "VarLenFeature(dtype) reads any number of values"),
    (lambda ds: ds.to_zarr("stored.zarr", append_dim="label"), "write append_dim='record'"),
    (lambda ds: dtf.read_tfrecord("train-*", [dtf.VarLenFeature("int64")]), "with the key of each feature"),  # type: ignore[arg-type]
    (lambda ds: ds.head(2)["lable"], "no column 'lable'; did you mean 'label'?"),
    (lambda ds: dtf.ImageFeature("jpeg"), "the format of files is detected: write ImageFeature()"),  # type: ignore[arg-type]
    (lambda ds: dtf.ImageFeature(resize=(8, 8)), "did you mean 'size'?"),  # type: ignore[call-arg]
    (lambda ds: ds.to_zarr(path="x"), "write store='x'"),  # type: ignore[call-arg]
    (lambda ds: dtf.read_tfrecord("train-*", verify=True), "write check_crc=True"),  # type: ignore[call-arg]
    (lambda ds: dtf.read_tfrecord("train-*", {}, features={}), "got 'features' twice: leave out features="),  # type: ignore[misc]
    (lambda ds: dtf.read_tfrecord("train-*", "features = {\n}"), "paste it, or write report.schema"),
    (lambda ds: ds.map_blocks(dict, template={"x": "int64"}), "template of map_blocks: 'x': expected an array"),
    (lambda ds: ds.to_zarr("new.zarr", append_dim="row"), "append_dim='row': the dimension of the rows is 'record'"),
    (lambda ds: ds.preview("3"), "write ds.preview(3)"),  # type: ignore[arg-type]
    (lambda ds: ds.where("label.mean > 3"), "numpy.array([row.mean() for row in blocks['label']]) > 3"),
    (lambda ds: ds.batches(2, epochs=-1), "write epochs=None for epochs without end"),
    (lambda ds: dtf.FixedLenFeature((), "int64", default=0), "did you mean 'default_value'?"),  # type: ignore[call-arg]
    (lambda ds: dtf.VarLenFeature("int64", (3,)), "write VarLenFeature('int64'), or VarLenFeature('int64', shape="),  # type: ignore[misc]
    (lambda ds: dtf.VarLenFeature(), "needs 'dtype': write VarLenFeature('int64')"),  # type: ignore[call-arg]
    (lambda ds: dtf.TextFeature("utf8"), "write TextFeature(), or TextFeature(encoding='latin-1')"),  # type: ignore[misc]
    (lambda ds: dtf.infer_schema("train-*", samples=3), "did you mean 'sample'?"),  # type: ignore[call-arg]
    (lambda ds: dtf.check_workers("train-*"), "the client comes first: write dtf.check_workers(client, 'train-*')"),
    (lambda ds: dtf.Schema(["label"]), "columns= picks features by name"),  # type: ignore[arg-type]
    (
        lambda ds: dtf.Schema(dict(ds.schema), classes={"lable": ["a"]}),
        "classes: no feature 'lable'; did you mean 'label'",
    ),
    (lambda ds: ds["tokens"].to_zarr("x.zarr"), "write ds[['tokens']].to_zarr(path)"),
    (lambda ds: ds.where(lambda blocks: blocks["label"] > 1, columns="label"), "write columns=['label']"),
    (
        lambda ds: ds.to_tfrecord("x-{shard}.tfrecord", mode="append"),
        "'w' (replace what exists) or 'a' (add to what exists)",
    ),  # type: ignore[arg-type]
    (lambda ds: ds.to_parquet("x", mode="append"), "or 'a' (add to what exists); got 'append'"),  # type: ignore[arg-type]
    (lambda ds: ds.padded("label", 3), "with the same shape in all rows: write ds['label']"),
    (lambda ds: ds.preview(columns=["label"]), "write ds[['label']].preview()"),  # type: ignore[call-arg]
    (lambda ds: ds.batches(2, buffer_size=9), "write shuffle='window', window=9"),  # type: ignore[call-arg]
    (lambda ds: ds + ds, "write dtf.read_tfrecord([path, other])"),  # type: ignore[operator]
    (lambda ds: ds.rename(text="text/word").text, "did you mean 'text/word'?"),  # type: ignore[attr-defined]
    (lambda ds: dtf.read_tfrecord("train-*", "image/class/label"), "write columns=['image/class/label']"),
    (lambda ds: ds.map_blocks(lambda one, two: one), "it is called with one argument, a dict of arrays"),  # type: ignore[arg-type,misc]
    (lambda ds: ds.map_blocks("label"), "map_blocks takes a function from a dict"),  # type: ignore[arg-type]
    (lambda ds: ds.map_blocks(lambda b: {"n": b["tokens"].mean(axis=1)}), "write dtf.RaggedBlock(blocks['tokens']."),
    (lambda ds: ds.map_blocks(lambda b: {"n": b["text"].sum(axis=1)}), "leave out axis="),
    (
        lambda ds: ds.map_blocks(lambda b: {"n": np.array([len(each) for each in b["tokens"]])}).compute(),
        "so give numpy.array dtype='int64', or map_blocks template={'n': FixedLenFeature((), 'int64')}",
    ),
    (lambda ds: compute(text=dtf.RawFeature((3, 2), "uint8")), "takes 6: give a shape of"),
    (lambda ds: pictures().map_blocks(lambda b: {"image": b["image"] / 255}), "ImageFeature(size=(224, 224)) resizes"),
    (lambda ds: pictures(shape=(4, 4, 3)).compute(), "write ImageFeature(size=(4, 4), channels=3), which resizes"),
    (
        lambda ds: pictures(dtf.RawFeature((4, 4, 3), "uint8")).compute(),
        "bytes; ImageFeature() reads JPEG, PNG",
    ),
    (lambda ds: dtf.read_tfrecord(), "read_tfrecord() needs 'urlpath': write dtf.read_tfrecord(path)"),  # type: ignore[call-arg]
    (lambda ds: dtf.read_tfrecord("train-*", check_crc="no"), "check_crc must be True or False; got 'no'"),  # type: ignore[arg-type]
    (lambda ds: dtf.read_tfrecord("train-*", storage_options="x"), "must be a dict of fsspec options"),  # type: ignore[arg-type]
    (lambda ds: dtf.to_zarr("a.zarr", ds), "the data set comes before the store"),  # type: ignore[arg-type]
    (lambda ds: ds.to_zarr(5), "store must be a path, a URL or a zarr store; got 5"),
    (lambda ds: ds.rename(label=3), "the new name of 'label' must be text; got 3"),  # type: ignore[arg-type]
    (lambda ds: ds.describe().compare(ds), "compare takes Statistics"),  # type: ignore[arg-type]
    (lambda ds: ds.persist("label"), "write ds.persist(), or ds[['label']].persist()"),  # type: ignore[call-arg]
    (lambda ds: ds.to_backend("gpu"), "dask has no backend 'gpu'"),
    (lambda ds: ds.padded("tokens", "a"), "length must be a number of values, or a tuple of them; got 'a'"),  # type: ignore[arg-type]
    (lambda ds: ds.view(port=99_999), "port must be a number from 0, for a free one, to 65,535; got 99999"),
    (lambda ds: dtf.sample_from_datasets(ds), "datasets must be a list of Dataset: write [ds, other]"),  # type: ignore[arg-type]
    (
        lambda ds: ds.shuffle(1000),
        "1000 is the seed, and all rows are mixed: write ds.shuffle(seed=1000), or ds.batches",
    ),
    (lambda ds: ds.batches(2, seed=3), 'a seed without shuffle has no effect: write shuffle="full", seed=3'),
    (lambda ds: ds.batches(2, device="gpu"), "no device has the name 'gpu'; write device='cuda'"),
    (lambda ds: ds.count("label"), "count() got one argument too many, 'label': write ds.count()"),  # type: ignore[call-arg]
    (lambda ds: ds.map_blocks(lambda b: {"n": b.label}), "write blocks['label'] for a column"),  # type: ignore[attr-defined]
    (
        lambda ds: ds.map_blocks(lambda b: {"n": b["text"].str.upper()}),
        "or another NumPy function, and numpy.strings",
    ),
    (lambda ds: ds.to_zarr("s3:/bucket/x.zarr"), "'s3:/bucket/x.zarr' is a local path; did you mean s3://…?"),
    (lambda ds: ds.to_tfrecord("gs:/bucket/x.tfrecord"), "did you mean gs://…?"),
    (lambda ds: ds.where(label=1), "write ds.where([('label', '==', 1)])"),  # type: ignore[call-arg]
    (lambda ds: ds.where(collumns=["label"]), "did you mean 'columns'?"),  # type: ignore[call-arg]
    (lambda ds: dtf.read_tfrecord(filenames="train-*"), "write urlpath='train-*', or only the value"),  # type: ignore[call-arg]
    (lambda ds: ds.to_tfrecord("copy-{i}.tfrecord"), "write 'copy-{shard:05d}.tfrecord'; got"),
    (lambda ds: ds.to_tfrecord("of-{shards}.tfrecord"), "({shards} needs {shard}, and there are no others)"),
    *(
        (
            lambda ds, made=made: ds.map_blocks(lambda b: {"n": made(b["tokens"])}),
            "write dtf.RaggedBlock(blocks['tokens'].",
        )  # type: ignore[misc]
        for made in (
            lambda t: t * 2,
            lambda t: t == 2,
            lambda t: 2 - t,
            lambda t: t[:, :3],
            lambda t: t.astype("float32"),
        )
    ),
    (lambda ds: ds.map_blocks(lambda b: {"n": np.char.upper(b["text"])}), "read the column with TextFeature()"),
    (
        lambda ds: ds.map_blocks(lambda b: {"n": [1] if b["label"] > 0 else [2]}),
        "numpy.where(blocks['label'] > 2, 1, 0) for `if`",
    ),
    (
        lambda ds: ds.map_blocks(lambda b: {"n": [each.upper() for each in b["text"]]}),
        "TextFeature(), …}) states it for text",
    ),
    (lambda ds: dtf.FixedLenFeature((), "int64", "a"), "such as default_value=0"),
    (lambda ds: dtf.Schema.read("new.json"), "write pathlib.Path('new.json').write_text(ds.schema.to_json())"),
    (lambda ds: schema_file('{"features": [{"name": "x", "class": "RowFeature"}]}'), "did you mean 'RawFeature'"),
    (
        lambda ds: schema_file('{"features": [{"name": "x", "class": "RawFeature", "shpae": []}]}'),
        "feature 'x': RawFeature() got an unexpected keyword argument 'shpae'; did you mean 'shape'?",
    ),
    (lambda ds: schema_file('{"label": "int64"}'), "nor the 'features' of a Schema"),
    (lambda ds: dtf.read_tfrecord(Path("empty")), "the directory has no shards: it is empty"),
    (lambda ds: ds["label" == 1], 'write ds.where("label == 3") to pick rows'),  # type: ignore[call-overload]
    (lambda ds: ds["label":"text"], "write ds[['label', 'text']], with all names, to pick columns"),  # type: ignore[misc]
    (lambda ds: ds["label", 0], "write ds['label'][0] for rows of a column"),  # type: ignore[call-overload]
    (lambda ds: ds[:3, "label"], "write ds['label'][:3] for rows of a column"),  # type: ignore[call-overload]
    (lambda ds: ds.assign("x", ds["label"]), "write ds.assign({'name': array})"),  # type: ignore[call-arg,arg-type]
    (lambda ds: ds.view(host="0.0.0.0"), "leave it out: only this machine can open the page"),  # type: ignore[call-arg]
    (lambda ds: ds.preview("x.png"), "write ds.preview().to_png('x.png')"),  # type: ignore[arg-type]
    (lambda ds: ds.to_zarr("g.zarr", group="train"), "write component='train' for a group of this name"),  # type: ignore[call-arg]
    (lambda ds: ds.to_zarr("g.zarr", chunks={"record": 4}), "write chunks=1000 for the rows of a chunk"),
    (lambda ds: ds.batches(2).next(), "write next(ds.batches(2)) for the first batch"),  # type: ignore[attr-defined]
    (lambda ds: dtf.Int64Feature(), "write dtf.FixedLenFeature((), 'int64') for one value per record"),
    (lambda ds: dtf.BytesFeature(), "write dtf.TextFeature() for text"),
    (lambda ds: ds.describe().compare(3), "compare takes Statistics: write other.describe(); got 3"),  # type: ignore[arg-type]
    (lambda ds: (text_column() == b"one").compute(), "the rows are text: write 'one' instead of b'one'"),
    (lambda ds: ds.compute(columns=["label"]), "; write ds[['label']].compute()"),
    (lambda ds: ds.persist(columns="label"), "; write ds[['label']].persist()"),
    (lambda ds: ds.to_dataframe(columns=["label"]), "; write ds[['label']].to_dataframe()"),
    (lambda ds: dtf.to_tfrecord(ds, "z", compression_type="GZIP"), "; write compression='gzip' for gzip"),  # type: ignore[call-arg]
    (lambda ds: dtf.to_tfrecord(ds, "z", shards=2), "; write records_per_shard=math.ceil(ds.nrows / 2)"),  # type: ignore[call-arg]
    (lambda ds: ds.to_parquet("z", compression="gzipp"), "compression 'gzipp'; did you mean 'gzip'?"),
    (lambda ds: ds.preview("label"), "write ds[['label']].preview()"),  # type: ignore[arg-type]
    (lambda ds: ds.preview(["label"]), "write ds[['label']].preview()"),  # type: ignore[arg-type]
    (lambda ds: ds.map_blocks(lambda b: {"n": int(b["label"])}), "write blocks['label'].astype('int64') for int"),
    (
        lambda ds: ds.where(lambda b: b.label == 3),
        "blocks are a dict, which has no attribute 'label': write blocks['la",
    ),  # type: ignore[attr-defined]
    (lambda ds: ds.where(lambda b: b["lable"] == 3).compute(), "lable"),
    (
        lambda ds: dtf.to_tfrecord({"x": [{"a": 1}]}, "z"),
        "dicts as rows: make each key a column, and write {'a': values}",
    ),
    (lambda ds: dtf.to_tfrecord({"x": [{1}]}, "z"), "array 'x' has rows of type set: give it values of one type"),
    (lambda ds: ds[["text"]].to_xarray().to_zarr("bytes.zarr"), "write ds.to_zarr(path), which keeps them"),
    (
        lambda ds: ds[["tokens"]].to_xarray().to_zarr("flat.zarr"),
        "write ds.to_zarr(path), or write what ds.to_xarray(ragged='flat') returns",
    ),
    (lambda ds: dtf.read_tfrecord(dict(ds.schema), "train-*"), "write dtf.read_tfrecord('train-*', features)"),  # type: ignore[arg-type]
    (lambda ds: dtf.to_zarr("a.zarr", ds), "write dtf.to_zarr(ds, 'train.zarr')"),  # type: ignore[arg-type]
    (lambda ds: dtf.read_tfrecord("train@3.tfrecord"), "did you mean 'train@2.tfrecord'?"),
    (lambda ds: dtf.read_tfrecord("hidden/x"), "hidden' has no shards: pass the path of files that exist"),
    (lambda ds: ds.sel(label=3), "write ds.where([('label', '==', 3)]) for the rows with a value"),  # type: ignore[attr-defined]
    (lambda ds: ds + 2, "write ds.assign({'label': ds['label'] * 2}) to compute with a column"),  # type: ignore[operator]
    (lambda ds: ds.schema.to_dict(), "write dict(ds.schema) for a dict of features"),  # type: ignore[attr-defined]
    (lambda ds: ds.batches(100, drop_remainder=True), "drop_remainder leaves no batch of 100 rows: there are 6 rows"),
    (lambda ds: 2 * ds, "write ds.assign({'label': ds['label'] * 2}) to compute with a column"),
    (lambda ds: ds.rows(3), "rows are picked by brackets: write ds.rows[3]"),
    (lambda ds: ds.where("text == 3"), "'text' holds bytes; got 3; compare it with b'3'"),
    (lambda ds: ds.where([("len(tokens)", "==", "a")]), "the length of 'tokens' is a number; got 'a'"),
    (lambda ds: ds.plan_zarr("z.zarr"), "write ds.plan_zarr(), which takes no path and writes nothing"),  # type: ignore[call-arg]
    (lambda ds: dtf.to_tfrecord({"x": np.array(["2020"], "M8[D]")}, "z"), ".astype('int64') for microseconds since"),
    (
        lambda ds: dtf.Schema(dict(ds.schema), classes={"label": {"square": 1, "circle": 0}}),  # type: ignore[dict-item]
        "a list of names, with name i for class i: write classes={'label': ['circle', 'square']}",
    ),
    (
        lambda ds: dtf.Schema(dict(ds.schema), classes={"label": {0: "circle", 1: "square"}}),  # type: ignore[dict-item]
        "write classes={'label': ['circle', 'square']}; got {0:",
    ),
    (lambda ds: dtf.Schema(dict(ds.schema), classes={"label": "cat"}), "write classes={'label': ['cat', 'dog']}"),
    (lambda ds: dtf.Schema(dict(ds.schema), classes=["cat"]), "classes must be names by feature"),  # type: ignore[arg-type]
    (lambda ds: ds.to_tfrecord("p-%05d.tfrecord"), "numbers the new files: write 'p-{shard:05d}.tfrecord'"),
    (lambda ds: ds.to_tfrecord("p-%d-of-%03d"), "write 'p-{shard:05d}-of-{shards:05d}'"),
    (lambda ds: dtf.copy_tfrecord("train-*", "p-*.tfrecord"), "write 'p-{shard:05d}.tfrecord'; got 'p-*.tfrecord'"),
    (lambda ds: ds.to_parquet("new/p-%05d.parquet"), "which numbers its files itself: write 'new/p.parquet'"),
    (lambda ds: ds.to_parquet("{shard:05d}.parquet"), "which numbers its files itself: write 'out.parquet'"),
    (lambda ds: ds.to_zarr("p-%d.zarr"), "/p.zarr'"),
    (lambda ds: ds.to_tfrecord("a-{shard}-of-{shards}.tfrecord", mode="a"), "/a-{shard}.tfrecord'; got"),
    (lambda ds: ds.preview().to_png("x.jpg"), "pictures are written as PNG: write to_png('x.png'); got 'x.jpg'"),
    (lambda ds: ds.preview().save("x.png"), "write ds.preview().to_png('rows.png') for a picture"),  # type: ignore[attr-defined]
    (lambda ds: ds.describe().label, "write ds.describe()['label'] for this column"),  # type: ignore[attr-defined]
    (lambda ds: ds.describe().to_frame(), "write ds.describe().to_dataframe() for a DataFrame"),  # type: ignore[attr-defined]
    (lambda ds: ds.describe()["label"].mean, "write ds.describe()['label'].numbers.mean"),  # type: ignore[attr-defined]
    (lambda ds: ds.schema.label, "write ds.schema['label'] for this column"),  # type: ignore[attr-defined]
    (lambda ds: dtf.read_parquet("x"), "write dtf.Dataset.from_arrays(pandas.read_parquet(path))"),
    (lambda ds: dtf.from_pandas, "write dtf.Dataset.from_arrays(frame)"),
    (lambda ds: dtf.to_tfrecord(polars_frame(), "z"), "DataFrame: frame.to_pandas() converts it"),
    (lambda ds: dtf.FixedLenFeature((), dtf.int64), "write the dtype as text: dtf.FixedLenFeature((), 'int64')"),
    (lambda ds: ds.ragged("label"), "with the same shape in all rows: write ds['label']"),
    (
        lambda ds: ds.map_blocks(lambda b: {"m": np.array([b["label"].sum()])}),
        "returned 1 row of 'm': it must return a value for each row, as blocks['label'] * 2 does",
    ),
    (lambda ds: dtf.ImageFeature((32, 32)), "To resize images, write ImageFeature(size=(32, 32))"),
    (lambda ds: ds.to_zarr("z.zarr", compression="gzip"), "write compressors=zarr.codecs.GzipCodec()"),  # type: ignore[call-arg]
    (lambda ds: ds[["label"]].to_zarr("stored.zarr", mode="a"), "append_dim='record' adds rows, and mode='w' replaces"),
    (lambda ds: ds.to_tfrecord("z", num_shards=4), "write records_per_shard=math.ceil(ds.nrows / 4) for 4 shards"),  # type: ignore[call-arg]
    (lambda ds: dtf.from_zarr("parquet"), "write dtf.Dataset.from_arrays(pandas.read_parquet('parquet'))"),
    (lambda ds: dtf.from_zarr("many"), "but a directory of shards: write dtf.read_tfrecord('many')"),
    (lambda ds: dtf.from_zarr("stored.zarr", group="a"), "write component='a' for a group of this name"),  # type: ignore[call-arg]
    (lambda ds: ds.batches(2, repeat=3), "write epochs=3"),  # type: ignore[call-arg]
    (lambda ds: next(ds.batches(2))["tokens"].to_tensor(), "write ds.batches(2, pad={'tokens': None})"),  # type: ignore[attr-defined]
    (
        lambda ds: ds.where("label == 1", other=0),
        "leave it out: where() always drops the rows that do not meet the condition",
    ),  # type: ignore[call-arg]
    (lambda ds: ds.where(lambda b: b["label"].mean() > 1), "compare each row, as in blocks['label']"),
    (lambda ds: setattr(ds, "label", 3), "write ds = ds.assign({'label': array})"),
    (lambda ds: dtf.Dataset.from_arrays(label=[1]), "there are 'arrays', 'features'"),  # type: ignore[call-arg]
    (lambda ds: ds.to_zarr("written.parquet"), "to_zarr does not write .parquet files: write ds.to_parquet("),
    (lambda ds: ds.to_tfrecord("x.csv"), "to_tfrecord does not write .csv files: write '"),
    (lambda ds: ds.to_parquet("x.zarr"), "to_parquet does not write .zarr files: write ds.to_zarr('x.zarr')"),
    (lambda ds: ds.to_tfrecord("x.gz"), "the new files are not compressed, although the name"),
    (lambda ds: dtf.copy_tfrecord("train-*", "x.zst"), "says so: write compression='zstd'"),
    (lambda ds: dtf.read_tfrecord("train-{shard:05d}-of-%05d.tfrecord"), "; write 'train-*-of-*.tfrecord'"),
    (
        lambda ds: dtf.read_tfrecord("train-*", chunks="5"),
        "chunks='5' has no unit: write chunks=5 for rows, or '5 MiB'",
    ),
    (lambda ds: ds.to_zarr("z.zarr", chunks="5"), "chunks='5' has no unit: write chunks=5 for rows"),
    (
        lambda ds: dtf.resize_images(ds["text"].compute(), (8, 8)),
        "read the column with ImageFeature(size=(8, 8)), which resizes",
    ),
    (lambda ds: dtf.ImageFeature(8), "write ImageFeature(size=(8, 8))"),  # type: ignore[arg-type]
    (
        lambda ds: dtf.read_tfrecord(FIRST, SECOND),
        f"is a shard, not a schema: to read several shards, write dtf.read_tfrecord([path, '{SECOND}'])",
    ),
    (lambda ds: dtf.read_tfrecord(f"{FIRST}, {SECOND}"), f"write a list of paths: ['{FIRST}', '{SECOND}']"),
    (lambda ds: dtf.read_tfrecord("train-*", sample=5), "write features=dtf.infer_schema(path, sample=5)"),  # type: ignore[call-arg]
    (lambda ds: ds.to_parquet("z", tensors="no"), "tensors must be True or False; got 'no'"),  # type: ignore[arg-type]
    (lambda ds: ds.to_parquet(ds), "the name of the new directory must be a path; got <dask_tfrecord.Dataset"),  # type: ignore[arg-type]
    (lambda ds: dtf.verify(ds), "a path or a list of paths; got Dataset: write 'train-*.tfrecord'"),  # type: ignore[arg-type]
]


def polars_frame() -> Any:
    return pytest.importorskip("polars").DataFrame({"a": [1, 2]})


def text_column() -> Any:
    return dtf.read_tfrecord("train-*.tfrecord", {"text": dtf.TextFeature()})["text"]


def schema_file(text: str) -> dtf.Schema:
    Path("schema.json").write_text(text)
    return dtf.Schema.read("schema.json")


def pictures(feature: Any = None, **arguments: Any) -> dtf.Dataset:
    """Return images of two sizes."""
    folder = Path(tempfile.mkdtemp())
    files = [encode_png(np.zeros((size, size, 3), np.uint8)) for size in (4, 5)]
    dtf.to_tfrecord({"image": files}, folder / "images.tfrecord")
    return dtf.read_tfrecord(folder / "images.tfrecord", {"image": feature or dtf.ImageFeature(**arguments)})


def compute(**features: Any) -> Any:
    return dtf.read_tfrecord("train-*.tfrecord", features).compute()


# Arguments of the command line, and a part of its error.
MANY = [f"many/x-{number}.tfrecord" for number in range(3)]
COMMANDS = [
    (FIRST, f"A command comes before the files. Write dask-tfrecord info {FIRST}"),
    ("show train-*", "Write dask-tfrecord head 'train-*', or dask-tfrecord view 'train-*'"),
    ("convert train-* out.zarr", "Write dask-tfrecord to-zarr 'train-*' out.zarr"),
    (
        "convert train-* out",
        "to-zarr 'train-*' out, or dask-tfrecord to-parquet 'train-*' out, or ",
    ),
    ("nonsense", "Write one of these: copy, describe"),
    ("to_zarr train-* out.zarr", "No such command 'to_zarr'."),
    (f"head -5 {FIRST}", f"Write dask-tfrecord head {FIRST} -n 5"),
    (f"head 5 {FIRST}", f"write dask-tfrecord head -n 5 {FIRST}"),
    (f"head {FIRST} --frobnicate", "Leave it out, or write one of the options of head: -n, --json, --split"),
    (
        "repair a.tfrecord b.tfrecord out.tfrecord",
        "The command repair takes one SOURCE and one TARGET. Write a command for each: "
        "dask-tfrecord repair a.tfrecord out-a.tfrecord, and dask-tfrecord repair b.tfrecord out-b.tfrecord",
    ),
    (f"to-zarr {FIRST} {SECOND}", f"Write dask-tfrecord to-zarr {FIRST} {SECOND} out.zarr"),
    (
        f"copy {FIRST} {SECOND} picture.png",
        f"picture.png exists. Write dask-tfrecord copy {FIRST} {SECOND} copied.tfrecord",
    ),
    (f"head {FIRST} --where (label==3)|or|label==1", 'Leave out the parentheses: "label==3 or label==1"'),
    ("help", "Write dask-tfrecord --help"),
    (
        "describe stored.zarr",
        "or in Python ds = dtf.from_zarr('stored.zarr') and then print(ds), ds.head(), ds.describe()",
    ),
    ("view picture.png --no-browser", "the file is a PNG image, not a TFRecord file"),
    (f"head {FIRST} label|>|2", "Write --where before each condition: --where 'label > 2'"),
    (f"head {FIRST} --where label|%|2|==|0", "write ds.where(lambda blocks: blocks['label'] % 2 == 0) in Python"),
    (
        f"repair {FIRST} {SECOND}",
        f"{SECOND} exists. Write a command for each: dask-tfrecord repair {FIRST} repaired-{FIRST}, and dask-tfrecord",
    ),
    (
        f"repair {FIRST}",
        f"The command repair takes SOURCE and TARGET. Write dask-tfrecord repair {FIRST} repaired.tfrecord",
    ),
    (
        "preview train-*",
        "The command preview takes PATTERN and TARGET. Write dask-tfrecord preview 'train-*' rows.png",
    ),
    ("to-zarr train-*", "takes PATTERN and STORE. Write dask-tfrecord to-zarr 'train-*' out.zarr"),
    (
        "to-lerobot train-* out --fps 10",
        "no group or column 'steps'; there are 'tokens'. LeRobot has a row per frame: name the features",
    ),
    ("to-zarr train-* x.parquet", "did you mean dask-tfrecord to-parquet 'train-*' x.parquet?"),
    ("to-zarr nothing.zarr --status", "Nothing is planned at nothing.zarr: give --begin first"),
    ("to-zarr nothing.zarr --part 1/2", "Nothing is planned at nothing.zarr: give --begin first"),
    ("to-parquet nothing --finish", "Nothing is planned at nothing: give --begin first"),
    ("to-zarr train-* x.zarr --part 3/2", "a job of 2 parts has 1/2 to 2/2; got 3/2"),
    ("to-tfrecord stored.zarr out.tfrecord --errors skip", "this is a Zarr store: leave the option out"),
    (
        "to-csv train-* out.csv",
        "dask-tfrecord head --json -n 1000 'train-*' > out.jsonl, or dask-tfrecord to-parquet 'train-*' out",
    ),
    (
        f"copy {FIRST} new.tfrecord --mode w",
        "No such option '--mode'. Write --overwrite: Replace the output if it exists.",
    ),
    (f"head {FIRST} --limit 3", "Write -n N: Number of records."),
    (f"head {FIRST} -n five", "'five' is not an integer. Write a number: -n 5"),
    (f"head {FIRST} 5", f"write dask-tfrecord head -n 5 {FIRST}"),
    (f"head {FIRST} --columns label text", "Join names with commas: --columns label,text"),
    ("to-zarr new.zarr train-*", "comes last. Write dask-tfrecord to-zarr 'train-*' new.zarr"),
    (f"to-zarr new.zarr {FIRST} {SECOND}", f"Write dask-tfrecord to-zarr {FIRST} {SECOND} new.zarr"),
    ("--threads 2 info", "No such option '--threads'. Write the options of a command after its name."),
    (f"info {FIRST} -o x.json", "The command prints: write > FILE at the end."),
    (f"copy {FIRST} --output x.tfrecord", "The new file or store is the last argument."),
    (f"split {FIRST} new/", f"Write dask-tfrecord copy --records-per-shard 1000 {FIRST} new/"),
    ("info", "The command info takes PATTERN. Write dask-tfrecord info 'train-*.tfrecord'"),
    ("to-zarr", "Write dask-tfrecord to-zarr 'train-*.tfrecord' out.zarr"),
    (f"to-zarr {FIRST} new.zarr --memory-limit 10", "Smaller chunks do not help. Raise the memory limit to"),
    (f"info {FIRST} --features x.json", "info does not have it, but these commands do: copy, describe, head"),
    ("view train-* --host 0.0.0.0", "Write --port PORT: Port of the page, which only this machine can open."),
    (f"to-zarr {FIRST} new.zarr --columns label text", "Join names with commas: --columns label,text"),
    ("convert", "Write dask-tfrecord to-zarr 'train-*.tfrecord' out.zarr, or"),
    ("show", "Write dask-tfrecord head 'train-*.tfrecord', or"),
    ("to-parquet stored.zarr", "ds.describe() or ds.to_parquet('out')"),
    ("head train-* --features new.json", "write dask-tfrecord schema PATTERN --format json > new.json to make one"),
    (f"head {' '.join(MANY)} 5", "write dask-tfrecord head -n 5 'many/x-*.tfrecord'"),
    (f"to-csv {' '.join(MANY)}", "Write dask-tfrecord head --json -n 1000 'many/x-*.tfrecord', or"),
    (f"to-zarr stored.zarr {' '.join(MANY)}", "Write dask-tfrecord to-zarr 'many/x-*.tfrecord' stored.zarr"),
    (f"to-parquet {' '.join(MANY)}", "Write dask-tfrecord to-parquet 'many/x-*.tfrecord' out"),
    (f"to-tfrecord {' '.join(MANY)} new.tfrecord", "For shards, write dask-tfrecord copy 'many/x-*.tfrecord' new"),
    (f"repair {' '.join(MANY)}", f"dask-tfrecord repair {MANY[0]} repaired-x-0.tfrecord, and"),
    (f"to-zarr {FIRST} x.csv", f"Write dask-tfrecord head --json -n 1000 {FIRST} > x.jsonl"),
    (f"describe {FIRST} --json out.json", "--json prints: write > out.json at the end."),
    (f"head {FIRST} --format json", "Write --json: Print one JSON object per record."),
    (f"copy {FIRST} new/a.tfrecord --records-per-shard 1", "new/a-{shard:05d}.tfrecord'"),
    (f"index {FIRST} --output there", "The command writes an index next to each shard."),
    (f"head {FIRST} --features {{}}", "write the JSON into a file, and pass its name"),
    ("help info", "Write dask-tfrecord info --help"),
    ("-V", "Write dask-tfrecord --version"),
    (
        f"repair {FIRST} {FIRST}",
        f"SOURCE and TARGET are the same file. Write dask-tfrecord repair {FIRST} repaired-{FIRST}",
    ),
    (f"head {FIRST} -n", "requires an argument. Write -n 5: Number of records."),
    (f"head {FIRST} --where", "Write --where CONDITION: Keep only records that meet this condition, such as"),
    (f"describe {FIRST} --html", "requires an argument. Write --html FILE: "),
    (f"head {FIRST} --where label == 3", "Write quotes around the condition: --where 'label == 3'"),
    (f"head {FIRST} --where label", 'Write a value after it: "label == 3"'),
    (
        f"to-zarr {FIRST} new.zarr --chunks 0",
        "chunks must be a number of rows, 1 or more, or a size such as '8 MiB'; got 0",
    ),
    (f"to-zarr {FIRST} new.zarr --text text", "edit the file, and give --features features.json"),
    ("-version", "No such option '-version'. Write dask-tfrecord --version"),
    ("-v", "Missing command. Write dask-tfrecord info 'train-*.tfrecord', or dask-tfrecord --help"),
    (f"head {FIRST} -json", "No such option '-json'. Write --json: Print one JSON object per record."),
    (f"--json info {FIRST}", "Write the options of a command after its name."),
    (f"info {FIRST} --version", "Write dask-tfrecord --version"),
    (f"INFO {FIRST}", f"Write dask-tfrecord info {FIRST}"),
    (f"head {FIRST} --where text|==|record|3", "Write text in quotes: \"text == 'record 3'\""),
    (f"head {FIRST} --where label = 3", "Write quotes around the condition: --where 'label == 3'"),
    (f"head {FIRST} --scheduler localhost", "Write --scheduler tcp://localhost:8786"),
    (f"head {FIRST} --scheduler sync", "Write --scheduler synchronous"),
    (f"head {FIRST} -n -1", "-1 is not in the range x>=0. Write -n 5"),
    (f"view {FIRST} --port abc", "'abc' is not an integer. Write a number: --port 8123"),
    (f"schema {FIRST} --json", "Write --format [table|json|tfmd|python]: "),
    (f"head {FIRST} --features notes.txt", "dask-tfrecord schema PATTERN --format json > features.json makes"),
    (f"preview {FIRST} x.jpg", "got x.jpg. Write x.png"),
    (f"to-parquet {FIRST} x.zarr", f"did you mean dask-tfrecord to-zarr {FIRST} x.zarr?"),
    (
        f"to-zarr {FIRST} x.h5",
        f"to-zarr does not write .h5 files: did you mean dask-tfrecord to-zarr {FIRST} out.zarr?",
    ),
    (f"repair {FIRST} {SECOND} fixed/", f"dask-tfrecord repair {FIRST} fixed/{FIRST}, and"),
    (f"copy {FIRST} p-%05d.tfrecord", "write 'p-{shard:05d}.tfrecord'"),
    (f"to-zarr {FIRST} stored.zarr --add-columns --columns label", "--append adds rows, and --overwrite replaces"),
    (f"to-lerobot {FIRST} out", "Missing option '--fps'. Write --fps 10: Frames per second"),
]


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        (["label==3 or label==1"], [1, 3]),
        (["label > 0 and label < 3"], [1, 2]),
        (["label > 3 or label == 0", "label < 5"], [0, 4]),
        (["text == 'one' or label == 1", "label < 3 or label == 4"], [0, 1, 2, 4]),
    ],
)
def test_conditions_of_a_shell_are_joined_by_words(ds: dtf.Dataset, given: list[str], labels: list[int]) -> None:
    options = [text for condition in given for text in ("--where", condition)]
    done = CliRunner().invoke(tfrecord, ["head", "train-*.tfrecord", "--json", "-n", "9", *options])
    assert [json.loads(line)["label"] for line in done.stdout.splitlines()] == labels, done.stderr


@pytest.mark.parametrize(("mistake", "advice"), MISTAKES, ids=[advice for _, advice in MISTAKES])
def test_a_mistake_says_what_to_write(
    ds: dtf.Dataset, folder: Path, tmp_path: Path, mistake: Mistake, advice: str
) -> None:
    with pytest.raises(Exception, match=re.escape(advice)) as raised:
        mistake(ds)
    # A reader types the remedy of the error.
    said = str(raised.value)
    if list(calls(said)) or list(conditions(said)):
        shutil.copytree(folder, tmp_path / "copy")
        of = getattr(raised.value, "obj", ds)
        executed(said, Namespace(tmp_path / "copy", of if isinstance(of, dtf.Dataset) else ds))


@pytest.mark.parametrize(("arguments", "advice"), COMMANDS, ids=[advice for _, advice in COMMANDS])
def test_a_mistake_in_the_shell_says_what_to_write(ds: dtf.Dataset, arguments: str, advice: str) -> None:
    done = CliRunner().invoke(
        tfrecord, [each.replace("|", " ") for each in arguments.split()], prog_name="dask-tfrecord"
    )
    assert done.exit_code in (1, 2)
    assert advice in done.stderr


def test_a_function_that_fails_in_a_task_has_advice_in_its_note(ds: dtf.Dataset) -> None:
    with pytest.raises(ValueError, match="truth value") as raised:
        ds.where(lambda blocks: blocks["label"] > 1 and blocks["label"] < 3)
    assert "write & for `and`, | for `or` and ~ for `not`" in raised.value.__notes__[-1]


def test_columns_are_assigned_by_names_that_are_no_keywords(ds: dtf.Dataset) -> None:
    more = ds.assign({"steps/number": np.arange(6)}, half=np.arange(6) / 2)
    assert more["steps/number"].compute().tolist() == list(range(6)) and more["half"].dtype == np.float64


def test_a_file_that_is_no_shard_is_named_in_reports_of_damage(folder: Path) -> None:
    (lost,) = dtf.verify(folder / "picture.png").files[0].lost
    assert lost.reason.startswith("the file is not a TFRecord file") and "begins with a PNG image" in lost.reason


def test_a_short_text_is_no_damaged_shard(folder: Path) -> None:
    (folder / "short.txt").write_text("hello\n")
    (lost,) = dtf.verify(folder / "short.txt").files[0].lost
    assert lost.reason.startswith("the file is not a TFRecord file") and "begins with the text 'hello" in lost.reason


def test_commands_say_what_is_easily_missed(ds: dtf.Dataset) -> None:
    for arguments, said in (
        (["describe", FIRST, "--html", "page.html", "--overwrite"], "Wrote page.html\n"),
        (["head", FIRST, "--where", "label == 99"], "No record meets the conditions of --where\n"),
        (["head", FIRST, "--where", "label == 99", "--json"], "No record meets the conditions of --where\n"),
    ):
        done = CliRunner().invoke(tfrecord, arguments)
        assert (done.exit_code, done.stderr) == (0, said)


def test_commands_of_dask_are_spelled_with_its_name(ds: dtf.Dataset) -> None:
    group = click.Group("dask", commands={"tfrecord": tfrecord})
    for arguments, written in ((["head", "-3", FIRST], f"head {FIRST} -n 3"), (["-version"], "--version")):
        done = CliRunner().invoke(group, ["tfrecord", *arguments])
        assert f"Write dask tfrecord {written}\n" in done.stderr


def test_a_warning_in_the_shell_is_one_line(ds: dtf.Dataset, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        done = CliRunner().invoke(tfrecord, ["copy", FIRST, str(tmp_path / "x.gz")])
    assert done.exit_code == 0 and re.fullmatch(
        r"Warning: the new files are not compressed, although the name '.*' says so: write --compression gzip\n",
        done.stderr,
    )


def test_shards_of_two_data_sets_are_named_with_their_keys(tmp_path: Path) -> None:
    dtf.to_tfrecord({"id": np.arange(5), "label": np.arange(5)}, tmp_path / "a.tfrecord")
    dtf.to_tfrecord({"id": np.arange(5), "box": np.zeros((5, 4), "f4")}, tmp_path / "b.tfrecord")
    shown = repr(dtf.read_tfrecord(tmp_path / "*.tfrecord"))
    assert "shards of different keys; open each kind on its own:" in shown
    assert f"only in {tmp_path}/a.tfrecord: 'label'" in shown and f"only in {tmp_path}/b.tfrecord: 'box'" in shown
    dtf.to_tfrecord({"id": np.arange(5)}, tmp_path / "b.tfrecord", mode="w")
    # Shards are not of different kinds because some records leave out a key.
    assert "different keys" not in repr(dtf.read_tfrecord(tmp_path / "*.tfrecord"))


def test_a_directory_above_data_sets_of_tfds_names_them(tmp_path: Path) -> None:
    for config in ("easy", "hard"):
        arrays, tfds = {"label": np.arange(3)}, {"name": "shapes", "version": "1.0.0", "split": "train"}
        dtf.to_tfrecord(arrays, tmp_path / "shapes" / config / "1.0.0", tfds=tfds)
    said = f"holds 2 data sets of TFDS: open one of {tmp_path}/shapes/easy/1.0.0, {tmp_path}/shapes/hard/1.0.0"
    for reading in ({}, {"split": "train"}):
        with pytest.raises(ShardNotFoundError, match=re.escape(said)):
            dtf.read_tfrecord(tmp_path / "shapes", **reading)
    assert dtf.read_tfrecord(tmp_path / "shapes" / "easy", split="train").nrows == 3
