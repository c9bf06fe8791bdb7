"""Values of arguments that TensorFlow and other functions of this library accept, and errors that name the argument."""

from __future__ import annotations

import gzip
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import zarr
from support.commands import run

import dask_tfrecord as dtf
from dask_tfrecord.errors import SchemaError, ShardNotFoundError


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("arguments") / "ten.tfrecord"
    dtf.to_tfrecord({"x": np.arange(10), "y": np.zeros((10, 8), np.int64)}, path)
    return path


@pytest.mark.parametrize("compression", ["GZIP", "gzip", "Gzip", "ZLIB", ""])
def test_compression_is_accepted_as_tensorflow_spells_it(shard: Path, tmp_path: Path, compression: str) -> None:
    ds = dtf.read_tfrecord(shard, compression="")
    ds.to_tfrecord(tmp_path / "new.tfrecord", compression=compression)
    dtf.copy_tfrecord(shard, tmp_path / "copy.tfrecord", compression=compression)
    dtf.repair(shard, tmp_path / "repaired.tfrecord", compression=compression)
    with dtf.RecordWriter(tmp_path / "written.tfrecord", compression) as writer:
        for payload in dtf.read_records(shard):
            writer.write(payload)
    oracle.write_oracle(tmp_path / "oracle.tfrecord", dtf.read_records(shard), compression)
    paths = sorted(tmp_path.glob("*.tfrecord"))
    assert len(paths) == 5
    magic = {"gzip": b"\x1f\x8b", "zlib": b"\x78\x9c", "": b""}[compression.lower()]
    for path in paths:
        assert path.read_bytes().startswith(magic)
        assert dtf.read_tfrecord(path, compression=compression)["x"].compute().tolist() == list(range(10))
        assert len(list(dtf.read_records(path, compression=compression))) == 10
        assert dtf.verify(path, compression=compression).ok
    assert dtf.infer_schema(paths, compression=compression).keys() == {"x", "y"}
    if compression.lower() != "zlib":
        dtf.build_index(paths, compression=compression)


def test_compression_is_accepted_in_any_case_by_commands(shard: Path, tmp_path: Path) -> None:
    copied = run("copy", shard, tmp_path / "copy.tfrecord", "--compression", "GZIP")
    assert copied.exit_code == 0, copied.stderr
    assert gzip.decompress((tmp_path / "copy.tfrecord").read_bytes()) == shard.read_bytes()
    assert run("info", tmp_path / "copy.tfrecord", "--compression", "GZIP").exit_code == 0
    assert run("repair", shard, tmp_path / "repaired.tfrecord", "--compression", "Zlib").exit_code == 0


def test_an_unknown_compression_is_refused(shard: Path, tmp_path: Path) -> None:
    for compression in ("zip", "snappy", 3):
        with pytest.raises(
            ValueError, match=r"compression must be one of 'infer', None, 'gzip', 'zlib', 'zstd'.*; got"
        ):
            dtf.read_tfrecord(shard, compression=compression)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"compression must be one of None, 'gzip', 'zlib', 'zstd'.*; got 'infer'"):
        dtf.copy_tfrecord(shard, tmp_path / "copy.tfrecord", compression="infer")


def test_chunks_and_shards_of_a_store_accept_sizes(shard: Path, tmp_path: Path) -> None:
    ds = dtf.read_tfrecord(shard)
    ds.to_zarr(tmp_path / "store.zarr", chunks="128 B", shards="256 B")
    array = zarr.open_group(tmp_path / "store.zarr", mode="r")["y"]
    assert isinstance(array, zarr.Array)
    assert (array.chunks, array.shards) == ((2, 8), (4, 8))
    assert dtf.from_zarr(tmp_path / "store.zarr")["x"].compute().tolist() == list(range(10))
    converted = run("to-zarr", shard, tmp_path / "command.zarr", "--chunks", "128B")
    assert converted.exit_code == 0, converted.stderr
    array = zarr.open_group(tmp_path / "command.zarr", mode="r")["y"]
    assert isinstance(array, zarr.Array)
    assert array.chunks == (2, 8)


NO_NUMBER = "a number of rows, 1 or more, or a size such as '8 MiB'"
NO_SIZE = "a number of rows or a size such as '4 MiB'"


@pytest.mark.parametrize("option", ["chunks", "shards"])
@pytest.mark.parametrize(
    ("expected", "value"),
    [*((NO_NUMBER, value) for value in ((2, 2), True, 0)), *((NO_SIZE, value) for value in ("MiB", "a few", "0 B"))],
)
def test_chunks_of_a_store_that_are_no_number_and_no_size(shard: Path, option: str, expected: str, value: Any) -> None:
    ds = dtf.read_tfrecord(shard)
    with pytest.raises(ValueError) as caught:
        ds.plan_zarr(**{option: value})
    assert str(caught.value) == f"{option} must be {expected}; got {value!r}"
    with pytest.raises(ValueError, match=rf"{option}\['x'\] must be a number of rows, 1 or more; got \(2, 2\)"):
        ds.plan_zarr(**{option: {"x": (2, 2)}})


@pytest.mark.parametrize("value", ["0B", "MiB", "-3", "3 apples"])
def test_the_command_refuses_chunks_as_wrong_usage(shard: Path, tmp_path: Path, value: str) -> None:
    result = run("to-zarr", shard, tmp_path / "store.zarr", "--chunks", value)
    assert result.exit_code == 2
    assert "neither a number of records, 1 or more, nor a size such as 8MiB" in " ".join(result.stderr.split())
    assert not (tmp_path / "store.zarr").exists()


def test_a_component_that_is_no_string_is_refused(shard: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="component must be the path of a group within the store, a string; got 3"):
        dtf.read_tfrecord(shard).to_zarr(tmp_path / "store.zarr", component=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="component must be the path of a group within the store, a string; got 3"):
        dtf.from_zarr(tmp_path / "store.zarr", component=3)  # type: ignore[arg-type]


def test_a_missing_store_is_reported_with_suggestions(
    shard: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtf.to_zarr({"x": np.arange(3)}, tmp_path / "train.zarr", component="a/b")
    monkeypatch.chdir(tmp_path)
    for store, said in {
        "trian.zarr": ": the path does not exist; did you mean 'train.zarr'?",
        shard: f", but a file. If these are TFRecord files, not a Zarr store, write dtf.read_tfrecord({str(shard)!r})",
        tmp_path: ", but a directory without one; component= names a group within a store",
    }.items():
        with pytest.raises(FileNotFoundError) as caught:
            dtf.from_zarr(store)
        assert str(caught.value) == f"no Zarr group of format 3 at {Path(store).absolute()}{said}"
    with pytest.raises(
        FileNotFoundError, match=r"train\.zarr/a/c: the store exists, but does not have a group at 'a/c'"
    ):
        dtf.from_zarr("train.zarr", component="a/c")


def test_empty_shards_are_named(tmp_path: Path) -> None:
    for name in ("a.tfrecord", "b.tfrecord"):
        (tmp_path / name).touch()
    first, said = tmp_path / "a.tfrecord", "found no record to infer features from: give features="
    for read in (dtf.read_tfrecord, dtf.infer_schema):
        with pytest.raises(SchemaError) as caught:
            read(first)
        assert str(caught.value) == f"{first}: {said}"
        with pytest.raises(SchemaError) as caught:
            read(tmp_path)
        assert str(caught.value) == f"{first}: {said} (all 2 shards are empty)"
    for sample in (5, None):
        with pytest.raises(SchemaError) as caught:
            _ = dtf.inspect_records(first, sample=sample).schema
        assert str(caught.value) == f"{first}: {said}"
    with pytest.raises(SchemaError, match=r"a\.tfrecord: found no record to infer features from"):
        dtf.read_tfrecord(first, errors="skip")
    result = run("to-zarr", first, tmp_path / "store.zarr")
    assert result.exit_code == 1
    assert result.stderr == f"Error: {first}: found no record to infer features from: give --features\n"


def test_mistakes_say_what_to_write(tmp_path: Path) -> None:
    """Messages for names, compressions and shards that newcomers confuse."""
    dtf.to_tfrecord(
        {"label": np.arange(6)}, tmp_path / "train-{shard:05d}-of-{shards:05d}.tfrecord", records_per_shard=3
    )
    (tmp_path / "empty.tfrecord").touch()
    for name, pattern in (("train", "'train-*' opens"), ("train.tfrecord", "'train-*.tfrecord' opens")):
        with pytest.raises(ShardNotFoundError, match=re.escape(pattern) + " the shards 'train-00000-of-00002"):
            dtf.read_tfrecord(tmp_path / name)
    assert dtf.read_tfrecord(tmp_path / "train-*.tfrecord").nrows == 6
    with pytest.raises(ShardNotFoundError, match=r"there are 'empty\.tfrecord'"):
        dtf.read_tfrecord(tmp_path / "missing.tfrecord")
    with pytest.raises(ShardNotFoundError, match=r"did you mean 'empty.tfrecord'\?"):
        dtf.read_tfrecord(tmp_path / "emty.tfrecord")
    with pytest.raises(
        dtf.CorruptRecordError, match=r"00000-of-00002.tfrecord: the file does not begin like gzip data"
    ):
        dtf.read_tfrecord(tmp_path / "train-*.tfrecord", compression="gzip")
    done = run("info", tmp_path / "train-*.tfrecord", "--compression", "gzip")
    assert "leave out --compression, because reading detects" in done.stderr
    ds = dtf.read_tfrecord(tmp_path / "train-*.tfrecord")
    with pytest.raises(ValueError, match=r"the blocks have no column 'lable'; did you mean 'label'\?$"):
        ds.map_blocks(lambda blocks: {"x": blocks["lable"]})
    with pytest.raises(KeyError) as raised:
        ds.where(lambda blocks: blocks["lable"] > 2)
    assert "where: the blocks have no column 'lable'; did you mean 'label'?" in raised.value.__notes__


def test_displays_of_batches_and_of_first_rows(tmp_path: Path) -> None:
    columns = {"label": np.arange(6), "image": np.zeros((6, 4, 4), np.uint8), "word": ["<b>"] * 6, "t": [[1, 2]] * 6}
    ds = dtf.Dataset.from_arrays(columns)
    assert (
        repr(ds.batches(4))
        == "<BatchIterator: batches of 4 rows, 2 in an epoch, 1 epoch, columns label, image, word, t>"
    )
    repeated = repr(ds.batches(1, shuffle="full", epochs=None))
    assert repeated.startswith("<BatchIterator: batches of 1 row, 6 in an epoch, any number of epochs")
    rows = ds.head(2)
    assert isinstance(rows, dict) and list(rows) == list(ds)
    shown = rows._repr_html_()  # type: ignore[attr-defined]
    assert (
        all(part in shown for part in ("2 rows", "uint8 of shape (4, 4)", "&lt;b&gt;", "[1, 2]")) and "<b>" not in shown
    )
    assert "0 rows" in ds.head(0)._repr_html_()  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(rows)).keys() == rows.keys()
