"""Mistakes of newcomers: each error names the call to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import dask_tfrecord as dtf
from dask_tfrecord.cli.main import tfrecord
from dask_tfrecord.errors import ShardNotFoundError

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mistakes")
    columns = {"label": np.arange(6), "text": [b"one", b"two"] * 3, "tokens": [[1], [2, 3], [], [4], [5, 6, 7], []]}
    dtf.to_tfrecord(columns, path / "train-{shard:05d}-of-{shards:05d}.tfrecord", records_per_shard=3)
    (path / "picture.png").write_bytes(PNG)
    (path / "notes.txt").write_text("label int64")
    dtf.to_zarr({"label": np.arange(6)}, path / "stored.zarr")
    return path


@pytest.fixture
def ds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dtf.Dataset]:
    monkeypatch.chdir(folder)
    yield dtf.read_tfrecord("train-*.tfrecord")


Mistake = Callable[[dtf.Dataset], Any]
MISTAKES: list[tuple[Mistake, str]] = [
    (lambda ds: dtf.FixedLenFeature("int64"), "the shape comes before the dtype, as in FixedLenFeature((), 'int64')"),  # type: ignore[call-arg,arg-type]
    (lambda ds: dtf.FixedLenFeature(()), "needs a dtype, as in FixedLenFeature((), 'int64')"),  # type: ignore[call-arg]
    (lambda ds: dtf.RawFeature("uint8", (8, 8, 3)), "as in RawFeature((8, 8, 3), 'uint8')"),  # type: ignore[arg-type]
    (lambda ds: dtf.VarLenFeature(()), "expected a dtype such as 'int64'"),
    (lambda ds: dtf.read_tfrecord("train-*", "label"), "columns=[…] picks features by name"),
    (lambda ds: ds["tokens"].sum().compute(), "ds.ragged(name) are all values in one array"),
    (lambda ds: ds["tokens"].mean().compute(), "ds.padded(name, length) is a dense array"),
    (lambda ds: ds["tokens"].max().compute(), "rows that differ in length or shape"),
    (lambda ds: (ds["text"] == "one").compute(), "compare with b'one'"),
    (lambda ds: ds[0], "ds.rows[0] picks a row"),
    (lambda ds: ds[2:4], "ds.rows[2:4] picks rows"),
    (lambda ds: ds[:4:2], "ds.rows[:4:2] picks rows"),
    (lambda ds: ds[ds["label"] == 3], "ds.rows[…] picks rows by ints, a slice or a mask"),
    (lambda ds: np.asarray(ds), "ds.compute() is a dict of arrays"),
    (lambda ds: ds.where("label = 3"), 'Equality is written with two signs: "label == 3"'),
    (lambda ds: ds.where("label == 3 & label < 5"), "Words join conditions"),
    (lambda ds: ds.where("(label == 3)"), "Parentheses are not read"),
    (lambda ds: ds.where("text == one"), "Text stands in quotes: 'one'"),
    (lambda ds: ds.where(("label", "==", 3)), "in a list, [('label', '==', 3)]"),
    (lambda ds: ds.where("lable == 3"), "did you mean 'label'?"),
    (lambda ds: ds.where(ds["label"] == 3), "ds.rows[mask] keeps the rows of a mask"),  # type: ignore[arg-type]
    (lambda ds: ds.batches(2, shuffle=100), 'shuffle="window", window=100 mixes'),  # type: ignore[arg-type]
    (lambda ds: ds.batches(2, pad={"token": None}), "did you mean 'tokens'?"),
    (lambda ds: dtf.from_zarr("train-*.tfrecord"), "read_tfrecord opens TFRecord shards"),
    (lambda ds: dtf.read_tfrecord("abfs://bucket/train.tfrecord"), "pip install adlfs"),
    (lambda ds: dtf.read_tfrecord("picture.png"), "begins with a PNG image"),
    (lambda ds: dtf.TFRecordDataset("train-*"), "dtf.read_tfrecord('train-*.tfrecord', features) opens shards"),
    (lambda ds: dtf.io.FixedLenFeature([], "int64"), "the features are here, without io"),
    (
        lambda ds: dtf.TFRecordWriter("out.tfrecord"),
        "dtf.to_tfrecord({'label': array}, path) writes arrays",
    ),
    (lambda ds: dtf.parse_single_example(b"", {}), "dtf.read_records(path) iterates over their bytes"),
    (lambda ds: dtf.from_arrays({"x": [1]}), "dtf.Dataset.from_arrays({'label': array}) is a data set"),
    (lambda ds: dtf.read_tfrecord("train-*", compression_type="GZIP"), "compression='gzip', which is also found"),  # type: ignore[call-arg]
    (lambda ds: dtf.read_tfrecord("train-*", column=["label"]), "read_tfrecord() got an unexpected keyword argument"),  # type: ignore[call-arg]
    (lambda ds: ds.batches(2).prefetch(2), "ds.batches(32, shuffle='window', seed=0, epochs=2, prefetch=4)"),  # type: ignore[attr-defined]
    (lambda ds: ds.batches(2).map(len), "ds.map_blocks(function).batches(32)"),  # type: ignore[attr-defined]
    (lambda ds: ds.batches(2).take(1), "itertools.islice(ds.batches(32), 3)"),  # type: ignore[attr-defined]
    (lambda ds: ds.chunk(5), "chunks=1000) opens chunks of 1000 rows"),  # type: ignore[attr-defined]
    (lambda ds: ds.__setitem__("x", 1), "ds = ds.assign({'x': array})"),
    (lambda ds: ds.__delitem__("text"), "ds = ds.drop('text')"),
    (lambda ds: ds.assign(np.arange(6)), "columns are assigned by name"),  # type: ignore[arg-type]
    (lambda ds: ds.to_zarr("z.zarr", overwrite=True), "mode='w' replaces what exists"),  # type: ignore[call-arg]
    (lambda ds: ds.to_zarr("z.zarr", zarr_format=2), "stores have format 3 of Zarr"),  # type: ignore[call-arg]
    (lambda ds: ds.to_zarr("z.zarr", encoding={}), "to_zarr has compressors=, filters="),  # type: ignore[call-arg]
    (lambda ds: ds.to_zarr("z.zarr", mode="r+"), "append_dim='record' of to_zarr adds rows to a store"),  # type: ignore[arg-type]
    (lambda ds: dtf.to_tfrecord("out.tfrecord", {"x": [1]}), "the arrays come before the path"),  # type: ignore[arg-type]
    (lambda ds: dtf.to_tfrecord(np.arange(3), "out.tfrecord"), "as in {'x': array}"),
    (lambda ds: dtf.Schema.read(Path("notes.txt")), "other files of features are the JSON of Schema.to_json"),
]

# Arguments of the command line, and a part of its error.
COMMANDS = [
    ("train-00000-of-00002.tfrecord", "A command comes before the files: dask-tfrecord info train-00000-of-00002"),
    ("show train-*", "'head', 'view' do that"),
    ("convert train-* out.zarr", "'to-zarr', 'to-parquet', 'to-lerobot' do that"),
    ("nonsense", "There are copy, describe"),
    ("to_zarr train-* out.zarr", "No such command 'to_zarr'."),
    ("head -5 train-00000-of-00002.tfrecord", "-n 5 is the number of records"),
    ("head 5 train-00000-of-00002.tfrecord", "-n 5 is the number of records"),
    ("head train-00000-of-00002.tfrecord --frobnicate", "There are -n, --json, --split"),
    ("repair a.tfrecord b.tfrecord out.tfrecord", "repair takes SOURCE TARGET; a shell makes several"),
    ("to-zarr train-00000-of-00002.tfrecord train-00001-of-00002.tfrecord", "the last argument is the STORE to write"),
    ("copy train-00000-of-00002.tfrecord train-00001-of-00002.tfrecord picture.png", "the last argument is TARGET"),
    ("head train-00000-of-00002.tfrecord --where label==3|or|label==1", "Several --where all hold"),
    ("help", "'--help' does that"),
    ("describe stored.zarr", "view shows it, and to-tfrecord writes its rows to shards"),
    ("view picture.png --no-browser", "the file is a PNG image, without records to show"),
]


@pytest.mark.parametrize(("mistake", "advice"), MISTAKES, ids=[advice for _, advice in MISTAKES])
def test_a_mistake_says_what_to_write(ds: dtf.Dataset, mistake: Mistake, advice: str) -> None:
    with pytest.raises(Exception, match=re.escape(advice)):
        mistake(ds)


@pytest.mark.parametrize(("arguments", "advice"), COMMANDS, ids=[advice for _, advice in COMMANDS])
def test_a_mistake_in_the_shell_says_what_to_write(ds: dtf.Dataset, arguments: str, advice: str) -> None:
    done = CliRunner().invoke(
        tfrecord, [each.replace("|", " ") for each in arguments.split()], prog_name="dask-tfrecord"
    )
    assert done.exit_code in (1, 2)
    assert advice in done.stderr


def test_columns_are_assigned_by_names_that_are_no_keywords(ds: dtf.Dataset) -> None:
    more = ds.assign({"steps/number": np.arange(6)}, half=np.arange(6) / 2)
    assert more["steps/number"].compute().tolist() == list(range(6)) and more["half"].dtype == np.float64


def test_a_file_that_is_no_shard_is_named_in_reports_of_damage(folder: Path) -> None:
    (lost,) = dtf.verify(folder / "picture.png").files[0].lost
    assert lost.reason.startswith("the file is not a TFRecord file") and "begins with a PNG image" in lost.reason


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
