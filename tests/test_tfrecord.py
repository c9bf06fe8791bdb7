"""`to_tfrecord` and `copy_tfrecord`: round trips, names of shards, publication, metadata and commands."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import fsspec
import numpy as np
import pytest
import zarr
from distributed import Client
from oracle import read_oracle, read_payloads, write_oracle
from support import parsing_cases
from support.bits import bits
from support.parsing_compare import feature, parse_with_tensorflow
from support.waiting import wait_until

import dask_tfrecord as dtf
from dask_tfrecord.columns.blocks import splits_of
from dask_tfrecord.errors import FeatureError, SchemaError, TFRecordError, UnknownFeatureError
from dask_tfrecord.messages import Example, SequenceExample
from dask_tfrecord.schema import Schema
from dask_tfrecord.settings import Limits

MANY = "{shard:05d}-of-{shards:05d}.tfrecord"


def objects(rows: list[Any]) -> Any:
    """Return an object array of rows."""
    array = np.empty(len(rows), object)
    array[:] = rows
    return array


def plain(rows: int = 10) -> dict[str, Any]:
    """Return arrays of the dtypes that an Example lists."""
    return {
        "label": np.arange(rows),
        "score": np.linspace(0, 1, 2 * rows, dtype=np.float32).reshape(rows, 2),
        "text": np.array([f"é{row}" for row in range(rows)], np.dtypes.StringDType()),
        "data": objects([bytes([row, 0]) for row in range(rows)]),
        "tokens": objects([np.arange(row % 4) for row in range(rows)]),
    }


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def payloads(folder: Path) -> list[bytes]:
    """Return the payloads of all shards of a folder, in order."""
    return [payload for name in everything(folder) for payload in read_payloads(folder / name)]


def ints(path: Path, name: str = "label") -> list[int]:
    return [message.features.feature[name].int64_list.value[0] for message in read_oracle(path)]


# -- round trips


def test_columns_of_every_backing(tmp_path: Path) -> None:
    """Columns that are read, persisted, assigned, mapped or selected."""
    dtf.to_tfrecord(plain(), tmp_path / "plain")
    ds = dtf.read_tfrecord(tmp_path / "plain", {"label": dtf.FixedLenFeature((), "int32"), "text": dtf.TextFeature()})
    ds.persist().to_tfrecord(tmp_path / "held")
    ds.assign(more=np.arange(10)).to_tfrecord(tmp_path / "more")
    ds.map_blocks(lambda blocks: {"half": (blocks["label"] / 2).astype("f4")}).to_tfrecord(tmp_path / "mapped")
    ds[["text"]].rows[::-1].to_tfrecord(tmp_path / "text")
    assert ints(tmp_path / "held") == ints(tmp_path / "more", "more") == list(range(10))
    halves = [message.features.feature["half"].float_list.value[0] for message in read_oracle(tmp_path / "mapped")]
    assert halves == [row / 2 for row in range(10)]
    texts = [dict(message.features.feature) for message in read_oracle(tmp_path / "text")]
    assert [list(text) for text in texts] == [["text"]] * 10
    assert texts[0]["text"].bytes_list.value[0] == "é9".encode()


def test_rows_filled_in_for_damaged_records_are_written_as_they_were_read(tmp_path: Path) -> None:
    dtf.to_tfrecord({"label": np.arange(5)}, tmp_path / "good")
    data = bytearray((tmp_path / "good").read_bytes())
    data[len(data) // 5 * 2 + 14] ^= 1
    (tmp_path / "bad").write_bytes(data)
    ds = dtf.read_tfrecord(tmp_path / "bad", {"label": dtf.FixedLenFeature((), "int8", -1)}, errors="fill")
    ds.to_tfrecord(tmp_path / "filled")
    assert ints(tmp_path / "filled") == [0, 1, -1, 3, 4]


def test_sequence_examples_and_their_lengths(tmp_path: Path) -> None:
    steps = {"tokens": dtf.FixedLenSequenceFeature((), "int64"), "words": dtf.VarLenFeature("bytes")}
    arrays = {
        "id": np.arange(3),
        "tokens": np.arange(12).reshape(3, 4),
        "tokens.lengths": np.array([4, 0, 2], np.int32),
        "words": objects([objects([objects([b"a", b""])]), objects([]), objects([objects([]), objects([b"b"])])]),
    }
    dtf.to_tfrecord(arrays, tmp_path / "seq", sequence_features=steps)
    found = [SequenceExample.FromString(payload) for payload in read_payloads(tmp_path / "seq")]
    lists = [record.feature_lists.feature_list for record in found]
    assert [record.context.feature["id"].int64_list.value[0] for record in found] == [0, 1, 2]
    tokens = [[list(step.int64_list.value) for step in of["tokens"].feature] for of in lists]
    assert tokens == [[[0], [1], [2], [3]], [], [[8], [9]]]
    assert [[list(step.bytes_list.value) for step in of["words"].feature] for of in lists] == [
        [[b"a", b""]],
        [],
        [[], [b"b"]],
    ]
    ds = dtf.read_tfrecord(tmp_path / "seq", {"id": dtf.FixedLenFeature((), "int64")}, sequence_features=steps)
    ds.to_tfrecord(tmp_path / "again")
    assert read_payloads(tmp_path / "again") == read_payloads(tmp_path / "seq")


def test_feature_lists_stay_sequence_examples_after_map_blocks(tmp_path: Path) -> None:
    context = {"id": dtf.FixedLenFeature((), "int64")}
    steps = {"tokens": dtf.VarLenFeature("int64"), "pairs": dtf.FixedLenSequenceFeature((2,), "float32")}
    arrays = {
        "id": np.arange(3),
        "tokens": [[[1], [2, 3]], [], [[4]]],
        "pairs": np.arange(12, dtype=np.float32).reshape(3, 2, 2),
        "pairs.lengths": np.array([2, 0, 1]),
    }
    dtf.to_tfrecord(arrays, tmp_path / "seq", features=context, sequence_features=steps)
    ds = dtf.read_tfrecord(tmp_path / "seq", context, sequence_features=steps)
    ds.map_blocks(lambda blocks: {**blocks, "id": blocks["id"] * 1}).to_tfrecord(tmp_path / "same")
    assert read_payloads(tmp_path / "same") == read_payloads(tmp_path / "seq")
    ds.map_blocks(lambda blocks: {"tokens": blocks["tokens"], "more": -blocks["id"]}).to_tfrecord(tmp_path / "other")
    wanted = [SequenceExample.FromString(payload) for payload in read_payloads(tmp_path / "seq")]
    for row, record in enumerate(wanted):
        del record.feature_lists.feature_list["pairs"], record.context.feature["id"]
        record.context.feature["more"].int64_list.value.append(-row)
    assert [SequenceExample.FromString(payload) for payload in read_payloads(tmp_path / "other")] == wanted


@pytest.mark.parametrize("as_dask", [False, True])
def test_padded_bytes_and_their_lengths(as_dask: bool, tmp_path: Path) -> None:
    words = np.array([[b"a", b""], [b"", b""], [b"c", b""]], object)
    pairs = words.repeat(2).reshape(3, 2, 2)
    lengths = np.array([2, 0, 1])
    arrays = {"words": words, "words.lengths": lengths, "pairs": pairs, "pairs.lengths": lengths}
    if as_dask:
        arrays = {name: da.from_array(array, chunks=2) for name, array in arrays.items()}
    words_of, pairs_of = (dtf.FixedLenSequenceFeature(shape, "bytes", True) for shape in ((), (2,)))
    dtf.to_tfrecord(arrays, tmp_path / "steps", sequence_features={"words": words_of, "pairs": pairs_of})
    lists = [SequenceExample.FromString(one).feature_lists.feature_list for one in read_payloads(tmp_path / "steps")]
    steps = {name: [[list(of.bytes_list.value) for of in one[name].feature] for one in lists] for name in lists[0]}
    assert steps == {"words": [[[b"a"], [b""]], [], [[b"c"]]], "pairs": [[[b"a"] * 2, [b""] * 2], [], [[b"c"] * 2]]}
    dtf.to_tfrecord(arrays, tmp_path / "lists", features={"words": words_of, "pairs": pairs_of})
    found = [record.features.feature for record in read_oracle(tmp_path / "lists")]
    assert [list(one["words"].bytes_list.value) for one in found] == [[b"a", b""], [], [b"c"]]
    assert [list(one["pairs"].bytes_list.value) for one in found] == [[b"a", b"a", b"", b""], [], [b"c", b"c"]]


# -- arrays of all kinds


def test_arrays_of_all_kinds(tmp_path: Path) -> None:
    rows = 7
    stored = zarr.create_array(tmp_path / "a.zarr", shape=(rows, 2), chunks=(3, 2), dtype="i2")
    stored[:] = np.arange(14).reshape(rows, 2)
    lengths = np.arange(rows)
    arrays = {
        "dask": da.arange(rows, chunks=3, dtype="f4"),
        "zarr": stored,
        "list": [[row, row] for row in range(rows)],
        "bytes": [b"\0" * row for row in range(rows)],
        "rows": [list(range(row)) for row in range(rows)],
        "flat": dtf.RaggedBlock(np.arange(21, dtype=np.int64), splits_of(lengths)),
        "text": np.array([str(row) for row in range(rows)]),
        "flag": np.arange(rows) % 2 == 0,
        "half": np.arange(rows, dtype=np.float16),
    }
    dtf.to_tfrecord(arrays, tmp_path / MANY)
    assert [len(read_payloads(tmp_path / f"0000{n}-of-00003.tfrecord")) for n in range(3)] == [3, 3, 1]
    found = dtf.read_tfrecord(tmp_path / "*.tfrecord").compute()
    assert found["dask"].tolist() == list(range(rows))
    assert (found["zarr"] == stored[:]).all()
    assert found["list"].tolist() == arrays["list"]
    assert found["bytes"].tolist() == arrays["bytes"]
    assert [row.tolist() for row in found["rows"]] == arrays["rows"]
    assert [len(row) for row in found["flat"]] == lengths.tolist()
    assert np.concatenate(found["flat"]).tolist() == list(range(21))
    assert found["text"].tolist() == [b"%d" % row for row in range(rows)]
    assert found["flag"].tolist() == [1, 0, 1, 0, 1, 0, 1]
    assert found["half"].tolist() == list(range(rows))


def test_an_xarray_dataset(tmp_path: Path) -> None:
    xr: Any = pytest.importorskip("xarray")
    data = xr.Dataset({"x": (("record", "axis"), np.arange(6).reshape(3, 2)), "y": ("record", np.ones(3, np.float32))})
    dtf.to_tfrecord(data, tmp_path / "eager")
    dtf.to_tfrecord(data.chunk(record=2), tmp_path / MANY)
    assert [len(read_payloads(tmp_path / f"0000{n}-of-00002.tfrecord")) for n in range(2)] == [2, 1]
    data.to_zarr(tmp_path / "x.zarr", zarr_format=3, consolidated=False)
    dtf.to_tfrecord(xr.open_zarr(tmp_path / "x.zarr", chunks=None, consolidated=False), tmp_path / "lazy")
    assert read_oracle(tmp_path / "lazy") == read_oracle(tmp_path / "eager")
    with pytest.raises(SchemaError, match="first dimension, which differs between variables"):
        dtf.to_tfrecord(data.assign(z=("axis", [1, 2])), tmp_path / "no")


@pytest.mark.parametrize(
    ("arrays", "features", "said"),
    [
        ({"x": np.zeros(2)}, None, "FixedLenFeature.*to round it, or .*RawFeature"),
        ({"x": np.zeros(2, complex)}, None, "an Example cannot list"),
        ({"x": objects([np.zeros(2), np.zeros(1)])}, None, "of float64"),
        ({"x": objects([np.zeros((2, 1)), np.zeros((1, 2))])}, None, "float64"),
        ({"x": objects([np.zeros((2, 1), "i4"), np.zeros((1, 2), "i4")])}, None, "has rows of different shapes"),
        ({"x": objects([1, "a"])}, None, "of no one feature"),
        ({"x": da.from_array(objects([b"a"]), chunks=1)}, None, "may be anything"),
        ({"x": np.array([b"a"])}, None, "drops trailing zero bytes"),
        ({"x": np.zeros(2, "i4"), "y": np.zeros(3, "i4")}, None, "as many rows"),
        ({"x": np.array(3)}, None, "as many rows|axis of rows"),
        ({}, None, "one or more arrays"),
        ([1], None, "mapping of names to arrays"),
        ({"x": 7}, None, "expected an array"),
        ({"x": np.zeros(2, "i4")}, {"y": dtf.FixedLenFeature((), "int64")}, "no column for"),
        ({"x": np.zeros(2, "i4")}, {"x": dtf.TextFeature()}, "which TextFeature"),
        ({"x": np.zeros(2, "i4")}, 7, "mapping of names to features"),
    ],
)
def test_arrays_without_a_feature_are_refused(arrays: Any, features: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=said):
        dtf.to_tfrecord(arrays, tmp_path / "x", features=features)
    assert everything(tmp_path) == []


def test_features_specify_how_arrays_are_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "double": rng.normal(size=(4, 3)),
        "tensor": rng.normal(size=(4, 3)),
        "rounded": rng.normal(size=4),
        "image": rng.integers(0, 256, (4, 6, 5, 3), np.uint8),
        "photo": rng.integers(0, 256, (4, 16, 16, 3), np.uint8),
        "other": np.arange(4, dtype=np.uint8),
    }
    features = {
        "double": dtf.RawFeature((3,), ">f8"),
        "tensor": dtf.TensorFeature((None,), "float64"),
        "rounded": dtf.FixedLenFeature((), "float32"),
        "image": dtf.ImageFeature(),
        "photo": dtf.ImageFeature((16, 16, 3)),
    }
    dtf.to_tfrecord(arrays, tmp_path / "x", features=features, encoding={"photo": {"format": "jpeg", "quality": 90}})
    found = dtf.read_tfrecord(tmp_path / "x", {**features, "other": dtf.FixedLenFeature((), "uint8")}).compute()
    assert (found["double"] == arrays["double"]).all()
    assert (np.stack(found["tensor"]) == arrays["tensor"]).all()
    assert (found["rounded"] == arrays["rounded"].astype(np.float32)).all()
    assert (np.stack(found["image"]) == arrays["image"]).all()
    assert (found["other"] == arrays["other"]).all()
    photo = read_oracle(tmp_path / "x")[0].features.feature["photo"].bytes_list.value[0]
    assert photo.startswith(b"\xff\xd8\xff")


# -- shards


@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
def test_shards_of_irregular_sizes(scheduler: str, tmp_path: Path) -> None:
    rng = random.Random(1)
    sizes = (900, 0, 1000, 1, 937, 0, 0, 1)
    label = da.from_array(np.arange(sum(sizes)), chunks=(sizes,))
    tokens = objects([np.arange(rng.randrange(30)) for _ in range(sum(sizes))])
    arrays = {"label": label, "tokens": tokens}
    with dask.config.set(scheduler=scheduler):
        dtf.to_tfrecord(arrays, f"{tmp_path}/chunks/{MANY}")
        dtf.to_tfrecord(arrays, f"{tmp_path}/rows/{MANY}", records_per_shard=701)
        dtf.to_tfrecord(arrays, f"{tmp_path}/one/all.tfrecord")
    counts = [len(read_payloads(tmp_path / "chunks" / name)) for name in everything(tmp_path / "chunks")]
    # No shard is written for an empty chunk.
    assert counts == [900, 1000, 1, 937, 1]
    counts = [len(read_payloads(tmp_path / "rows" / name)) for name in everything(tmp_path / "rows")]
    assert counts == [701, 701, 701, 701, 35]
    assert payloads(tmp_path / "chunks") == payloads(tmp_path / "rows") == payloads(tmp_path / "one")
    found = [Example.FromString(payload).features.feature for payload in payloads(tmp_path / "one")]
    assert [list(one["label"].int64_list.value) for one in found] == [[row] for row in range(sum(sizes))]
    assert [list(one["tokens"].int64_list.value) for one in found] == [row.tolist() for row in tokens]


@pytest.mark.parametrize("records", [None, 3])
def test_no_rows_are_one_empty_shard(records: int | None, tmp_path: Path) -> None:
    dtf.to_tfrecord({"x": np.zeros(0, np.int64)}, tmp_path / MANY, records_per_shard=records)
    assert everything(tmp_path) == ["00000-of-00001.tfrecord"]
    assert payloads(tmp_path) == []


def test_many_small_chunks_share_a_shard(tmp_path: Path, set_limits: Callable[..., Limits]) -> None:
    set_limits(max_chunk_shards=4, shard_nbytes=80)
    sizes = (3, 3, 3, 3, 40, 3)
    dtf.to_tfrecord({"x": da.arange(sum(sizes), chunks=(sizes,))}, tmp_path / MANY)
    counts = [len(read_payloads(tmp_path / name)) for name in everything(tmp_path)]
    assert counts == [9, 3, 40, 3]


def test_large_rows_are_read_few_at_once(tmp_path: Path) -> None:
    seen: list[int] = []

    def watch(blocks: dict[str, Any]) -> dict[str, Any]:
        seen.append(len(blocks["row"]))
        return {"big": np.zeros((len(blocks["row"]), 1 << 18), np.float32)}

    template = {"big": dtf.FixedLenFeature((1 << 18,), "float32")}
    dtf.to_tfrecord({"row": np.arange(20)}, tmp_path / "rows")
    dtf.read_tfrecord(tmp_path / "rows").map_blocks(watch, template).to_tfrecord(tmp_path / "x")
    assert max(seen) <= 2
    assert sum(seen) == len(read_payloads(tmp_path / "x")) == 20


def test_a_directory_gets_default_names(tmp_path: Path) -> None:
    dtf.to_tfrecord(plain(), f"{tmp_path}/new/deep/", records_per_shard=6)
    dtf.to_tfrecord(plain(), tmp_path)
    assert everything(tmp_path) == [
        "data-00000-of-00001.tfrecord",
        "new/deep/data-00000-of-00002.tfrecord",
        "new/deep/data-00001-of-00002.tfrecord",
    ]
    braces = tmp_path / "{odd}"
    braces.mkdir()
    dtf.to_tfrecord(plain(), braces)
    assert (braces / "data-00000-of-00001.tfrecord").exists()


INVALID = [
    "{shards}",
    "{part}",
    "{shard",
    "{}",
    "{0}",
    "{shard.real}",
    "{shard[0]}",
    "{shard:{shard[0]}}",
    "{shard:q}",
    "",
]


@pytest.mark.parametrize("name", INVALID)
def test_invalid_templates_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"template|empty string"):
        dtf.to_tfrecord(plain(), f"{tmp_path}/{name}" if name else "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "a"}, "mode is"),
        ({"compression": "snappy"}, "compression is"),
        ({"compression": "zlib", "index": True}, "write gzip"),
        ({"records_per_shard": 0}, "records_per_shard is"),
        ({"records_per_shard": True}, "records_per_shard is"),
        ({"records_per_shard": 3}, "give a template"),
        ({"tfds": {"name": "x"}}, "tfds is a mapping"),
        ({"tfds": {"name": "x", "version": "1", "split": "train"}}, "'1' is not a valid version"),
        ({"encoding": {"label": "png"}}, "encoding of 'label': only an ImageFeature has an encoding"),
    ],
)
def test_invalid_arguments_are_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        dtf.to_tfrecord(plain(), tmp_path / "x", **options)
    assert everything(tmp_path) == []


def test_uncounted_rows_are_refused(tmp_path: Path) -> None:
    dtf.to_tfrecord(plain(), tmp_path / "x")
    with pytest.raises(ValueError, match="counted"):
        dtf.read_tfrecord(tmp_path / "x", counts=None).to_tfrecord(tmp_path / "y")


# -- existing files


def test_existing_shards_are_refused_before_any_write(tmp_path: Path) -> None:
    dtf.to_tfrecord(plain(), tmp_path / MANY, records_per_shard=4)
    before = {name: (tmp_path / name).read_bytes() for name in everything(tmp_path)}
    (tmp_path / "00001-of-00003.tfrecord").unlink()
    del before["00001-of-00003.tfrecord"]
    with pytest.raises(FileExistsError, match=r"00000-of-00003.tfrecord \(and 1 more\) exists already"):
        dtf.to_tfrecord({"x": np.zeros(10, "i4")}, tmp_path / MANY, records_per_shard=4)
    for mode in ("w-", "w"):
        with pytest.raises(FileExistsError, match="another number of shards"):
            dtf.to_tfrecord({"x": np.zeros(10, "i4")}, tmp_path / MANY, records_per_shard=2, mode=mode)
    assert {name: (tmp_path / name).read_bytes() for name in everything(tmp_path)} == before


def test_shards_are_replaced_together_with_their_sidecars(tmp_path: Path) -> None:
    dtf.to_tfrecord(plain(), tmp_path / MANY, records_per_shard=4, index=True)
    assert len(everything(tmp_path)) == 6
    dtf.to_tfrecord({"label": -np.arange(10)}, tmp_path / MANY, records_per_shard=4, mode="w")
    assert everything(tmp_path) == [f"0000{n}-of-00003.tfrecord" for n in range(3)]
    assert ints(tmp_path / "00001-of-00003.tfrecord") == [-4, -5, -6, -7]


def test_shards_that_are_read_are_not_replaced(tmp_path: Path) -> None:
    dtf.to_tfrecord(plain(), tmp_path / "x")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    for name in ("x", "link"):
        with pytest.raises(ValueError, match="can't be replaced by what is read from it"):
            dtf.read_tfrecord(tmp_path / "x").to_tfrecord(tmp_path / name, mode="w")
        with pytest.raises(ValueError, match="can't be replaced by what is read from it"):
            dtf.copy_tfrecord(tmp_path / "x", tmp_path / name, mode="w")
    assert len(read_payloads(tmp_path / "x")) == 10


def test_a_directory_is_not_filled_up_with_more_of_the_same(tmp_path: Path) -> None:
    dtf.to_tfrecord({"x": np.arange(4)}, tmp_path / "set" / "some.tfrecord")
    for target in (f"{tmp_path}/set/", tmp_path / "set"):
        for write in (dtf.read_tfrecord(tmp_path / "set").to_tfrecord, partial(dtf.copy_tfrecord, tmp_path / "set")):
            with pytest.raises(ValueError, match="would hold every record twice"):
                write(target)
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["some.tfrecord"]
    dtf.copy_tfrecord(tmp_path / "set", f"{tmp_path}/other/")
    dtf.copy_tfrecord(tmp_path / "set", tmp_path / "set" / "more.tfrecord")


def test_access_points_are_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "indexed_gzip", None)
    with pytest.raises(dtf.TFRecordError, match=r"dask-tfrecord\[gzip-index\]"):
        dtf.to_tfrecord({"x": np.arange(4)}, tmp_path / "some.tfrecord", compression="gzip", index=True)
    assert not list(tmp_path.iterdir())


def hide_modules(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let imports of a package fail, as if it were not installed."""
    for module in [name, *(module for module in sys.modules if module.startswith(f"{name}."))]:
        monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.parametrize("protocol", ["s3", "simplecache::s3", "filecache::s3"])
def test_a_missing_file_system_names_the_extra_for_chained_urls_too(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtf.to_tfrecord(plain(), tmp_path / "x")
    hide_modules(monkeypatch, "s3fs")
    for name in ("s3", "s3a"):
        # Other tests may have imported it.
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, name, raising=False)
    url = f"{protocol}://bucket/new.tfrecord"
    writers = (
        lambda: dtf.to_tfrecord(plain(), url),
        lambda: dtf.copy_tfrecord(tmp_path / "x", url),
        lambda: dtf.RecordWriter(url),
    )
    for write in writers:
        with pytest.raises(ImportError, match=r'needs s3fs.*pip install "dask-tfrecord\[s3\]"'):
            write()


def test_a_missing_pillow_is_reported_when_the_images_are_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dask_tfrecord.images.codecs import require_pillow

    hide_modules(monkeypatch, "PIL")
    require_pillow.cache_clear()
    arrays = {"image": np.zeros((2, 4, 4, 3), np.uint8), "deep": np.zeros((2, 4, 4, 3), np.uint16)}
    features = {"image": dtf.ImageFeature((4, 4, 3)), "deep": dtf.ImageFeature((4, 4, 3), "uint16")}
    for compute in (True, False):
        with pytest.raises(ImportError, match=r"feature 'image' is ImageFeature.*needs Pillow: pip .*\[image\]"):
            dtf.to_tfrecord(arrays, tmp_path / "x", features=features, compute=compute)
        with pytest.raises(ImportError, match=r"feature 'deep' is ImageFeature.*needs Pillow"):
            deep = {"deep": arrays["deep"]}, tmp_path / "x", {"deep": features["deep"]}
            dtf.to_tfrecord(deep[0], deep[1], features=deep[2], encoding="webp", compute=compute)
    assert everything(tmp_path) == []
    # The library writes PNG of 16 bits per channel itself.
    dtf.to_tfrecord({"deep": arrays["deep"]}, tmp_path / "x", features={"deep": features["deep"]})
    require_pillow.cache_clear()


# -- publication


@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
def test_a_failure_leaves_nothing(scheduler: str, tmp_path: Path) -> None:
    def late(block: Any) -> Any:
        if 17 in block:
            raise RuntimeError("no seventeen")
        return block

    label = da.arange(30, chunks=5).map_blocks(late, dtype=np.int64, meta=np.zeros(0, np.int64))
    with dask.config.set(scheduler=scheduler), pytest.raises(RuntimeError, match="seventeen"):
        dtf.to_tfrecord({"label": label}, f"{tmp_path}/a/b/{MANY}", index=True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "keep").write_text("mine")
    with dask.config.set(scheduler=scheduler), pytest.raises(FeatureError) as caught:
        dtf.to_tfrecord(
            {"label": np.array([1, 2, 300])}, tmp_path / "x", features={"label": dtf.FixedLenFeature((), "int8")}
        )
    location = caught.value.place
    assert location is not None
    assert (location.file, location.record, location.feature) == (str(tmp_path / "x"), 2, "label")
    assert everything(tmp_path) == ["keep"]


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_failure_removes_the_sidecars_of_the_shards_that_it_removes(compression: str | None, tmp_path: Path) -> None:
    seen: list[Path] = []

    def late(block: Any) -> Any:
        if 25 in block:
            wait_until(lambda: any(tmp_path.glob("*.idx")))
            seen.extend(tmp_path.glob("*.idx"))
            raise RuntimeError("the last chunk fails")
        return block

    if compression == "gzip":
        pytest.importorskip("indexed_gzip")
    label = da.arange(30, chunks=5).map_blocks(late, dtype=np.int64, meta=np.zeros(0, np.int64))
    with dask.config.set(scheduler="threads", num_workers=4), pytest.raises(RuntimeError, match="last chunk"):
        dtf.to_tfrecord({"label": label}, tmp_path / MANY, index=True, compression=compression)
    assert seen
    assert everything(tmp_path) == []


def test_nothing_is_touched_before_a_delayed_is_computed(tmp_path: Path) -> None:
    later = dtf.to_tfrecord(plain(), f"{tmp_path}/new/{MANY}", records_per_shard=4, compute=False)
    assert list(tmp_path.iterdir()) == []
    later.compute()
    assert len(payloads(tmp_path)) == 10


def test_an_index_is_that_of_build_index(tmp_path: Path) -> None:
    dtf.to_tfrecord(plain(), tmp_path / MANY, records_per_shard=4, index=True)
    written = {path.name: path.read_bytes() for path in tmp_path.glob("*.idx")}
    assert len(written) == 3
    for path in tmp_path.glob("*.idx"):
        path.unlink()
    dtf.build_index(tmp_path / "*.tfrecord")
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.idx")} == written


def test_object_stores() -> None:
    url = f"memory://tfrecord-tests/{MANY}"
    fs = fsspec.filesystem("memory")
    try:
        dtf.to_tfrecord(plain(), url, records_per_shard=4, index=True)
        assert dtf.read_tfrecord("memory://tfrecord-tests/*.tfrecord")["label"].sum().compute() == 45
        assert len(fs.ls("/tfrecord-tests")) == 6
        with pytest.raises(FileExistsError):
            dtf.to_tfrecord(plain(), url, records_per_shard=4)
        dtf.to_tfrecord({"label": np.arange(3)}, "memory://tfrecord-tests/one", mode="w")
        dtf.copy_tfrecord("memory://tfrecord-tests/*.tfrecord", "memory://tfrecord-tests/copy", compression="gzip")
        assert dtf.read_tfrecord("memory://tfrecord-tests/copy").nrows == 10
        with pytest.raises(FeatureError):
            dtf.to_tfrecord(
                {"x": np.array([300])},
                "memory://tfrecord-tests/bad",
                features={"x": dtf.FixedLenFeature((), "int8")},
            )
        assert not fs.exists("/tfrecord-tests/bad")
    finally:
        fs.rm("/tfrecord-tests", recursive=True)


@pytest.mark.integration
def test_s3(tmp_path: Path, s3: dict[str, Any]) -> None:
    fsspec.filesystem("s3", **s3).mkdir("shards")
    url = f"s3://shards/deep/{MANY}"
    dtf.to_tfrecord(plain(), url, records_per_shard=4, index=True, storage_options=s3)
    found = dtf.read_tfrecord("s3://shards/deep/*.tfrecord", storage_options=s3)
    assert found["label"].compute().tolist() == list(range(10))
    dtf.to_tfrecord(plain(8), url, records_per_shard=3, mode="w", storage_options=s3)
    assert dtf.read_tfrecord("s3://shards/deep/", storage_options=s3).nrows == 8
    dtf.copy_tfrecord("s3://shards/deep/", tmp_path / "here", storage_options=s3)
    assert ints(tmp_path / "here") == list(range(8))


@pytest.mark.integration
def test_processes_of_a_cluster_write_the_same(client: Client, tmp_path: Path) -> None:
    arrays = plain(200)
    with dask.config.set(scheduler="synchronous"):
        dtf.to_tfrecord(arrays, f"{tmp_path}/here/{MANY}", records_per_shard=17)
    dtf.to_tfrecord(arrays, f"{tmp_path}/there/{MANY}", records_per_shard=17)
    ds = dtf.read_tfrecord(tmp_path / "there", chunks=23)
    ds.to_tfrecord(f"{tmp_path}/again/{MANY}", records_per_shard=17)
    ds.persist().to_tfrecord(f"{tmp_path}/held/{MANY}", records_per_shard=17)
    dtf.copy_tfrecord(tmp_path / "there", f"{tmp_path}/copy/", records_per_shard=50)
    here = {name: (tmp_path / "here" / name).read_bytes() for name in everything(tmp_path / "here")}
    assert len(here) == 12
    assert {name: (tmp_path / "there" / name).read_bytes() for name in here} == here
    alike = [[dict(Example.FromString(one).features.feature) for one in payloads(tmp_path / name)] for name in FOLDERS]
    assert all(found == alike[0] for found in alike[1:])
    with pytest.raises(FeatureError, match="which does not fit int8"):
        dtf.to_tfrecord(
            arrays,
            f"{tmp_path}/bad/{MANY}",
            features={"label": dtf.FixedLenFeature((), "int8")},
            records_per_shard=40,
        )
    assert not (tmp_path / "bad").exists()


FOLDERS = ("here", "there", "again", "held", "copy")


# -- TFDS


def test_tfds_metadata_hold_the_features_and_the_counts(tmp_path: Path) -> None:
    arrays = plain() | {"image": np.zeros((10, 4, 5, 3), np.uint8), "raw": np.arange(20.0).reshape(10, 2)}
    features = Schema(
        {"image": dtf.ImageFeature((4, 5, 3)), "raw": dtf.RawFeature((2,), "float64")},
        classes={"label": [f"class {n}" for n in range(10)]},
    )
    flowers = {"name": "flowers", "version": "1.0.0"}
    folder = tmp_path / "flowers" / "1.0.0"
    dtf.to_tfrecord(arrays, folder, features=features, records_per_shard=4, tfds=flowers | {"split": "train"})
    part = {name: array[:3] for name, array in arrays.items()}
    dtf.to_tfrecord(part, folder, features=features, tfds=flowers | {"split": "test"})
    ds = dtf.read_tfrecord(tmp_path / "flowers", split="train+test")
    assert ds.nrows == 13
    assert ds.schema.classes["label"][3] == "class 3"
    assert ds.schema["raw"] == dtf.RawFeature((2,), "float64")
    assert isinstance(ds.schema["text"], dtf.TextFeature)
    assert ds["raw"].compute()[:10].tolist() == arrays["raw"].tolist()
    with pytest.raises(SchemaError, match="hold other features"):
        dtf.to_tfrecord({"x": np.arange(3)}, folder, tfds=flowers | {"split": "more"})
    with pytest.raises(SchemaError, match=r"holds flowers 1\.0\.0"):
        dtf.to_tfrecord(part, folder, features=features, tfds={"name": "b", "version": "1.0.0", "split": "more"})
    with pytest.raises(SchemaError, match="no class that reads"):
        dtf.to_tfrecord(
            {"x": np.zeros((2, 2))},
            tmp_path / "b",
            features={"x": dtf.TensorFeature((2,), "float64")},
            tfds=flowers | {"split": "train"},
        )


def test_a_tfds_data_set_is_written_as_tfds_writes_it(tmp_path: Path) -> None:
    every = Path(__file__).parent / "data" / "tfds" / "every" / "1.0.0"
    ds = dtf.read_tfrecord(every, split="test")
    # Without features that only TFDS can decode, and without those that it leaves out.
    kept = [name for name in ds if "float" not in name or name.startswith("scalar/float32")]
    schema = ds.schema
    kept = [
        name
        for name in kept
        if isinstance(schema[name], dtf.FixedLenFeature | dtf.TextFeature | dtf.RaggedFeature | dtf.RawFeature)
    ]
    assert len(kept) > 20
    names = {"name": "every", "version": "1.0.0", "split": "test"}
    ds[kept].to_tfrecord(tmp_path / "every", tfds=names)
    again = dtf.read_tfrecord(tmp_path / "every", split="test")
    wanted, found = ds[kept].compute(), again.compute()
    for name in kept:
        assert bits(found[name]) == bits(wanted[name]), name


def test_groups_are_sequences_of_tfds(tmp_path: Path) -> None:
    every = Path(__file__).parent / "data" / "tfds" / "every" / "1.0.0"
    ds = dtf.read_tfrecord(every, split="train")
    ds.to_tfrecord(tmp_path / "every" / "1.0.0", tfds={"name": "every", "version": "1.0.0", "split": "train"})
    again = dtf.read_tfrecord(tmp_path / "every", split="train")
    assert len(ds.schema.groups) == 3
    assert again.schema.groups == {group: tuple(sorted(names)) for group, names in ds.schema.groups.items()}
    assert again.schema.classes == ds.schema.classes
    assert {name for name in ds if again.schema[name] != ds.schema[name]} == {n for n in ds if n.startswith("missing")}
    steps = [each.explode("steps")["steps/instruction"].compute().tolist() for each in (ds, again)]
    assert steps[0] == steps[1]
    for name, text in ((path.name, path.read_text()) for path in every.glob("*.labels.txt")):
        assert (tmp_path / "every" / "1.0.0" / name).read_text() == text


def test_groups_of_arrays_are_written_and_verified(tmp_path: Path) -> None:
    tfds = {"name": "robot", "version": "1.0.0", "split": "train"}
    columns = {"steps/a/x": [[1, 2], [], [3]], "steps/y": [["a", "b"], [], ["c"]], "note": [[1], [], []]}
    features = {
        "steps/a/x": dtf.VarLenFeature("int64"),
        "steps/y": dtf.TextFeature(count=-1),
        "note": dtf.VarLenFeature("int64"),
    }
    groups, classes = {"steps": ["steps/a/x", "steps/y"]}, {"steps/a/x": ["p", "q", "r", "s"]}
    schema = dtf.Schema(features, groups=groups, classes=classes)
    dtf.to_tfrecord(columns, tmp_path / "robot", features=schema, tfds=tfds)
    found = dtf.read_tfrecord(tmp_path / "robot", split="train")
    assert found.schema.groups == schema.groups
    assert found.schema.classes == schema.classes
    assert found.explode("steps").compute()["steps/y"].tolist() == ["a", "b", "c"]
    # Rows of an array have one length.
    dense = {"s/a": np.arange(6).reshape(3, 2), "s/b": [[1, 2], [3, 4], [5, 6]]}
    pairs = {name: dtf.VarLenFeature("int64") for name in dense}
    dtf.to_tfrecord(dense, tmp_path / "dense", features=dtf.Schema(pairs, groups={"s": list(pairs)}), tfds=tfds)
    for wrong, number in (([["a", "b"], ["c"], []], 1), ([["a"], [], []], 0)):
        with pytest.raises(FeatureError, match=rf"record {number}: feature 'steps/y' has 1 item, expected") as caught:
            dtf.to_tfrecord(columns | {"steps/y": wrong}, tmp_path / "wrong", features=schema, tfds=tfds)
        assert caught.value.place is not None
        assert (caught.value.place.record, caught.value.place.feature) == (number, "steps/y")
        assert not (tmp_path / "wrong").exists()
        # Records without metadata may differ.
        dtf.to_tfrecord(columns | {"steps/y": wrong}, tmp_path / f"{number}.tfrecord", features=schema)
    # TFDS lacks a class for groups with other names, or with the name of a column.
    with pytest.warns(UserWarning, match="group 'all' is not written: .* begin with 'all/'"):
        dtf.to_tfrecord(
            columns,
            tmp_path / "all",
            features=schema.with_groups({"all": ["steps/a/x", "note"]}),
            tfds=tfds,
        )
    assert dtf.read_tfrecord(tmp_path / "all", split="train").schema.groups == {}
    with pytest.warns(UserWarning, match="group 'steps' is not written"):
        dtf.to_tfrecord(columns | {"steps": [1, 2, 3]}, tmp_path / "name", features=schema, tfds=tfds)
    assert set(dtf.read_tfrecord(tmp_path / "name", split="train")) == {*columns, "steps"}


# -- copies


def test_records_are_copied_byte_for_byte(tmp_path: Path) -> None:
    rng = random.Random(2)
    records = [rng.randbytes(rng.randrange(50)) for _ in range(100)]
    for number in range(3):
        compression = ("gzip", None, "zlib")[number]
        write_oracle(
            tmp_path / f"part-{number}", records[number * 30 : (number + 1) * 30 + 10 * (number == 2)], compression
        )
    pattern = tmp_path / "part-*"
    dtf.copy_tfrecord(pattern, f"{tmp_path}/same/{MANY}")
    dtf.copy_tfrecord(pattern, f"{tmp_path}/less/{MANY}", records_per_shard=45, compression="gzip")
    dtf.copy_tfrecord(pattern, tmp_path / "one" / "all", index=True)
    assert [len(read_payloads(tmp_path / "same" / name)) for name in everything(tmp_path / "same")] == [30, 30, 40]
    assert [len(read_payloads(tmp_path / "less" / name)) for name in everything(tmp_path / "less")] == [45, 45, 10]
    assert payloads(tmp_path / "same") == payloads(tmp_path / "less") == records
    assert read_payloads(tmp_path / "one" / "all") == records
    assert everything(tmp_path / "one") == ["all", "all.idx"]


@pytest.mark.parametrize("compression", ["GZIP", "gzip", "Gzip", "ZLIB", ""])
def test_compression_is_accepted_in_any_case(compression: str, tmp_path: Path) -> None:
    dtf.to_tfrecord(plain(), tmp_path / "written", compression=compression)
    dtf.copy_tfrecord(tmp_path / "written", tmp_path / "copied", compression=compression)
    wanted = {"gzip": b"\x1f\x8b", "zlib": b"\x78"}.get(compression.lower(), b"")
    for name in ("written", "copied"):
        assert (tmp_path / name).read_bytes().startswith(wanted)
        assert dtf.read_tfrecord(tmp_path / name)["label"].compute().tolist() == list(range(10))


def test_copies_with_fewer_features(tmp_path: Path) -> None:
    dtf.to_tfrecord(plain(), tmp_path / "x")
    dtf.copy_tfrecord(tmp_path / "x", tmp_path / "y", columns=["tokens", "label"])
    wanted = [Example.FromString(payload) for payload in read_payloads(tmp_path / "x")]
    for message in wanted:
        for name in ("score", "text", "data"):
            del message.features.feature[name]
    assert [Example.FromString(payload) for payload in read_payloads(tmp_path / "y")] == wanted
    with pytest.raises(UnknownFeatureError, match="did you mean 'label'"):
        dtf.copy_tfrecord(tmp_path / "x", tmp_path / "z", columns=["lable"])
    with pytest.raises(SchemaError, match="list of one name"):
        dtf.copy_tfrecord(tmp_path / "x", tmp_path / "z", columns="label")
    write_oracle(tmp_path / "mixed", [*read_payloads(tmp_path / "x"), b"no message"])
    with pytest.raises(FeatureError, match="record 10"):
        dtf.copy_tfrecord(tmp_path / "mixed", tmp_path / "z", columns=["label"])
    assert everything(tmp_path) == ["mixed", "x", "y"]


def test_copies_of_sequence_examples_keep_their_lists(tmp_path: Path) -> None:
    record = SequenceExample()
    for name in ("a", "b"):
        record.context.feature[f"c{name}"].int64_list.value.append(1)
        record.feature_lists.feature_list[f"l{name}"].feature.add().int64_list.value.append(2)
    write_oracle(tmp_path / "x", [record.SerializeToString()])
    dtf.copy_tfrecord(tmp_path / "x", tmp_path / "y", columns=["ca", "lb"])
    (found,) = [SequenceExample.FromString(payload) for payload in read_payloads(tmp_path / "y")]
    assert list(found.context.feature) == ["ca"]
    assert list(found.feature_lists.feature_list) == ["lb"]


# -- commands


def test_commands(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from dask_tfrecord.cli.main import tfrecord

    def run(*arguments: object) -> Any:
        return CliRunner().invoke(tfrecord, [str(argument) for argument in arguments])

    dtf.to_tfrecord(plain(), tmp_path / MANY, records_per_shard=4)
    dtf.read_tfrecord(tmp_path).to_zarr(tmp_path / "x.zarr")
    done = run("to-tfrecord", tmp_path / "x.zarr", tmp_path / "y", "--columns", "label,data", "--threads", 1)
    assert done.exit_code == 0, done.output
    assert f"Wrote {tmp_path}/y: 10 rows of 2 features in " in done.stdout
    assert ints(tmp_path / "y") == list(range(10))
    assert sorted(read_oracle(tmp_path / "y")[0].features.feature) == ["data", "label"]
    again = run("to-tfrecord", tmp_path / "x.zarr", tmp_path / "y")
    assert again.exit_code == 1
    assert "--overwrite replaces" in again.stderr
    assert run("to-tfrecord", tmp_path / "x.zarr", tmp_path / "y", "--overwrite", "--index").exit_code == 0
    assert (tmp_path / "y.idx").exists()
    target = f"{tmp_path}/copy/{MANY}"
    done = run("copy", tmp_path / "*.tfrecord", target, "--records-per-shard", 6, "--compression", "gzip")
    assert done.exit_code == 0, done.output
    assert "10 records" in done.stdout
    assert [len(read_payloads(tmp_path / "copy" / name)) for name in everything(tmp_path / "copy")] == [6, 4]
    shards = sorted(tmp_path.glob("*-of-*.tfrecord"))
    assert run("copy", *shards, tmp_path / "few", "--columns", "label").exit_code == 0
    assert [list(message.features.feature) for message in read_oracle(tmp_path / "few")] == [["label"]] * 10
    assert run("copy", *shards, tmp_path / "few", "--columns", "labels", "--overwrite").exit_code == 1


# -- TensorFlow


@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", ["Example", "SequenceExample"])
def test_tensorflow_reads_written_shards(tensorflow: str, kind: str, tmp_path: Path) -> None:
    """TensorFlow parses records equally before and after this library reads and writes them, for random specs."""
    cases = parsing_cases.cases(7, 400, kind)
    again = []
    for number, case in enumerate(cases):
        old, new = tmp_path / f"{number}.old", tmp_path / f"{number}.new"
        write_oracle(old, case.payloads)
        features = {name: feature(said) for name, said in (case.context or {}).items()}
        lists = None if case.sequences is None else {name: feature(said) for name, said in case.sequences.items()}
        try:
            dtf.read_tfrecord(old, features, sequence_features=lists).to_tfrecord(new)
            again.append((case, read_payloads(new)))
        except TFRecordError:
            # Unreadable records can't be written; row ids leave out empty rows at the end.
            continue
    assert len(again) > len(cases) // 2
    asked = [(case.kind, case.context, case.sequences, found) for case, was in again for found in (case.payloads, was)]
    answers = parse_with_tensorflow(tensorflow, asked, alone=False)
    compared = 0
    for before, after in zip(answers[::2], answers[1::2], strict=True):
        # TensorFlow refuses some records that this library reads, but none that it writes.
        assert after[0] == "read", after[1]
        if before[0] == "read":
            assert same_answer(before[1]) == same_answer(after[1])
            compared += 1
    assert compared > len(again) // 2


def same_answer(columns: dict[str, Any]) -> Any:
    """Return columns as comparable values, in which NaN equals itself."""
    return sorted((name, repr(column)) for name, column in columns.items())


@pytest.mark.tensorflow
def test_tensorflow_reads_arrays(tensorflow: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    arrays = {
        "whole": rng.integers(-(2**63), 2**63 - 1, (50, 3)),
        "small": rng.integers(0, 256, 50).astype(np.uint8),
        "real": rng.normal(size=(50, 2, 2)).astype(np.float32),
        "raw": rng.normal(size=(50, 4)),
        "tensor": rng.normal(size=(50, 2, 3)),
    }
    features = {"raw": dtf.RawFeature((4,), "<f8"), "tensor": dtf.TensorFeature((2, 3), "float64")}
    dtf.to_tfrecord(arrays, tmp_path / "x", features=features)
    spec: dict[str, Any] = {
        "whole": ("FixedLenFeature", {"shape": (3,), "dtype": "int64"}),
        "small": ("FixedLenFeature", {"shape": (), "dtype": "int64"}),
        "real": ("FixedLenFeature", {"shape": (2, 2), "dtype": "float32"}),
        "raw": ("RawFeature", {"shape": (4,), "dtype": "<f8"}),
        "tensor": ("TensorFeature", {"shape": (2, 3), "dtype": "float64"}),
    }
    [(verdict, columns)] = parse_with_tensorflow(
        tensorflow, [("Example", spec, None, read_payloads(tmp_path / "x"))], alone=False
    )
    assert verdict == "read", columns
    for name, array in arrays.items():
        dtype, shape, data = columns[name]
        assert np.array_equal(np.frombuffer(data, dtype).reshape(shape), array), name
