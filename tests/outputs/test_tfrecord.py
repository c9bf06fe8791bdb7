"""`to_tfrecord` and `copy_tfrecord`: what records hold, names of shards, publication, metadata of TFDS, commands."""

from __future__ import annotations

import json
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
from distributed import Client
from fsspec.implementations.memory import MemoryFileSystem
from oracle import read_oracle, read_payloads, write_oracle
from oracle.messages import Example, SequenceExample
from oracle.partitions import objects
from support.bits import bits
from support.commands import run, shown
from support.paths import DATA
from support.waiting import wait_until
from support.wire import sequence_example

import dask_tfrecord as dtf
from dask_tfrecord.errors import FeatureError, SchemaError, UnknownFeatureError
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.settings import Limits

MANY = "{shard:05d}-of-{shards:05d}.tfrecord"
EVERY = DATA / "tfds" / "every" / "1.0.0"


def plain(rows: int = 10) -> dict[str, Any]:
    """Return arrays of the dtypes that an Example lists."""
    return {
        "label": np.arange(rows),
        "score": np.linspace(0, 1, 2 * rows, dtype=np.float32).reshape(rows, 2),
        "text": np.array([f"é{row}" for row in range(rows)], np.dtypes.StringDType()),
        "data": objects([bytes([row, 0]) for row in range(rows)]),
        "tokens": objects([np.arange(row % 4) for row in range(rows)]),
    }


def failing(at: int, before: Callable[[], object] = lambda: None) -> da.Array:
    """Make thirty numbers in six chunks; one chunk can't be computed."""

    def late(block: Any) -> Any:
        if at in block:
            before()
            raise RuntimeError(f"no {at}")
        return block

    return da.arange(30, chunks=5).map_blocks(late, dtype=np.int64, meta=np.zeros(0, np.int64))


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def counts(folder: Path) -> list[int]:
    """Count the records in each shard of a folder."""
    return [len(read_payloads(folder / name)) for name in everything(folder)]


def payloads(folder: Path) -> list[bytes]:
    """Return the payloads of all shards of a folder, in order."""
    return [payload for name in everything(folder) for payload in read_payloads(folder / name)]


def ints(path: Path, name: str = "label") -> list[int]:
    return [message.features.feature[name].int64_list.value[0] for message in read_oracle(path)]


def sequences(path: Path) -> list[SequenceExample]:
    return [SequenceExample.FromString(payload) for payload in read_payloads(path)]


# -- records


def test_rows_filled_in_for_damaged_records_are_written_as_they_were_read(tmp_path: Path) -> None:
    dtf.to_tfrecord({"label": np.arange(5)}, tmp_path / "good")
    data = bytearray((tmp_path / "good").read_bytes())
    data[len(data) // 5 * 2 + 14] ^= 1
    (tmp_path / "bad").write_bytes(data)
    ds = dtf.read_tfrecord(tmp_path / "bad", {"label": dtf.FixedLenFeature((), "int8", -1)}, errors="fill")
    ds.to_tfrecord(tmp_path / "filled")
    assert ints(tmp_path / "filled") == [0, 1, -1, 3, 4]


@pytest.mark.parametrize("as_dask", [False, True])
def test_padded_rows_and_their_lengths(as_dask: bool, tmp_path: Path) -> None:
    words = np.array([[b"a", b""], [b"", b""], [b"c", b""]], object)
    arrays = {"words": words, "pairs": words.repeat(2).reshape(3, 2, 2), "tokens": np.arange(6).reshape(3, 2)}
    arrays |= {f"{name}.lengths": np.array([2, 0, 1]) for name in arrays}
    if as_dask:
        arrays = {name: da.from_array(array, chunks=2) for name, array in arrays.items()}
    padded = {
        "words": dtf.FixedLenSequenceFeature((), "bytes", True),
        "pairs": dtf.FixedLenSequenceFeature((2,), "bytes", True),
        "tokens": dtf.FixedLenSequenceFeature((), "int64", True),
    }
    wanted = {
        "words": [[[b"a"], [b""]], [], [[b"c"]]],
        "pairs": [[[b"a"] * 2, [b""] * 2], [], [[b"c"] * 2]],
        "tokens": [[[0], [1]], [], [[4]]],
    }
    dtf.to_tfrecord(arrays, tmp_path / "steps", sequence_features=padded)
    steps = [sequence_example(**{name: rows[row] for name, rows in wanted.items()}) for row in range(3)]
    assert sequences(tmp_path / "steps") == [SequenceExample.FromString(payload) for payload in steps]
    dtf.to_tfrecord(arrays, tmp_path / "lists", features=padded)
    kinds = {"words": "bytes_list", "pairs": "bytes_list", "tokens": "int64_list"}
    for row, record in enumerate(read_oracle(tmp_path / "lists")):
        for name, kind in kinds.items():
            values = [value for step in wanted[name][row] for value in step]
            assert list(getattr(record.features.feature[name], kind).value) == values


@pytest.mark.parametrize(
    ("arrays", "features", "said"),
    [
        ({"x": np.zeros(2)}, None, "FixedLenFeature.*to round it, or .*RawFeature"),
        ({"x": np.zeros(2, complex)}, None, "an Example can't store"),
        ({"x": objects([np.zeros(2), np.zeros(1)])}, None, "dtype float64"),
        ({"x": objects([np.zeros((2, 1)), np.zeros((1, 2))])}, None, "float64"),
        ({"x": objects([np.zeros((2, 1), "i4"), np.zeros((1, 2), "i4")])}, None, "has rows of different shapes"),
        ({"x": np.array([b"a"])}, None, "drops trailing zero bytes"),
        ({"x": np.zeros(2, "i4"), "y": np.zeros(3, "i4")}, None, "all arrays must have the same number of rows"),
        ({"x": np.array(3)}, None, "number of rows|axis of rows"),
        ({}, None, "at least one array"),
        ({"x": np.zeros(2, "i4")}, {"y": dtf.FixedLenFeature((), "int64")}, "no column for"),
        ({"x": np.zeros(2, "i4")}, {"x": dtf.TextFeature()}, "which TextFeature"),
    ],
)
def test_arrays_without_a_feature_are_refused(arrays: Any, features: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=said):
        dtf.to_tfrecord(arrays, tmp_path / "x", features=features)
    assert everything(tmp_path) == []


# -- shards


@pytest.mark.parametrize(
    ("sizes", "options", "limits", "wanted"),
    [
        # No shard is written for an empty chunk.
        ((90, 0, 100, 1, 93, 0, 0, 1), {}, {}, [90, 100, 1, 93, 1]),
        ((90, 0, 100, 1, 93, 0, 0, 1), {"records_per_shard": 70}, {}, [70, 70, 70, 70, 5]),
        ((0,), {}, {}, [0]),
        ((0,), {"records_per_shard": 3}, {}, [0]),
        ((3, 3, 3, 3, 40, 3), {}, {"max_chunk_shards": 4, "shard_nbytes": 80}, [9, 3, 40, 3]),
    ],
)
def test_rows_are_divided_among_shards(
    sizes: Any, options: Any, limits: Any, wanted: list[int], tmp_path: Path, set_limits: Callable[..., Limits]
) -> None:
    set_limits(**limits)
    dtf.to_tfrecord({"label": da.arange(sum(sizes), chunks=(sizes,))}, tmp_path / MANY, **options)
    assert counts(tmp_path) == wanted
    found = [row for name in everything(tmp_path) for row in ints(tmp_path / name)]
    assert found == list(range(sum(sizes)))


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
    (tmp_path / "{odd}").mkdir()
    dtf.to_tfrecord(plain(), f"{tmp_path}/new/deep/", records_per_shard=6)
    for folder in (tmp_path, tmp_path / "{odd}"):
        dtf.to_tfrecord(plain(), folder)
    names = [f"data-0000{number}-of-0000{of}.tfrecord" for number, of in ((0, 1), (0, 2), (1, 2))]
    assert everything(tmp_path) == [names[0], f"new/deep/{names[1]}", f"new/deep/{names[2]}", f"{{odd}}/{names[0]}"]


INVALID = ["{shards}", "{part}", "{shard", "{}", "{0}", "{shard.real}", "{shard[0]}", "{shard:{shard[0]}}", "{shard:q}"]


@pytest.mark.parametrize("name", [*INVALID, ""])
def test_invalid_templates_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"template|empty string"):
        dtf.to_tfrecord(plain(), f"{tmp_path}/{name}" if name else "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "x"}, "mode must be"),
        ({"compression": "snappy"}, "compression must be"),
        ({"compression": "zlib", "index": True}, "write gzip"),
        ({"records_per_shard": 0}, "records_per_shard must be"),
        ({"records_per_shard": True}, "records_per_shard must be"),
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
    dtf.to_tfrecord(plain(), tmp_path / "x")
    with pytest.raises(ValueError, match="counted"):
        dtf.read_tfrecord(tmp_path / "x", counts=None).to_tfrecord(tmp_path / "y")


# -- existing files


def test_existing_shards_are_refused_or_replaced_together(tmp_path: Path) -> None:
    write = partial(dtf.to_tfrecord, {"label": -np.arange(10)}, tmp_path / MANY)
    dtf.to_tfrecord(plain(), tmp_path / MANY, records_per_shard=4, index=True)
    for path in tmp_path.glob("00001*"):
        path.unlink()
    before = {name: (tmp_path / name).read_bytes() for name in everything(tmp_path)}
    with pytest.raises(FileExistsError, match=r"00000-of-00003.tfrecord \(and 1 more\) exists already"):
        write(records_per_shard=4)
    for mode in ("w-", "w"):
        with pytest.raises(FileExistsError, match="a different number of shards"):
            write(records_per_shard=2, mode=mode)
    assert {name: (tmp_path / name).read_bytes() for name in everything(tmp_path)} == before
    write(records_per_shard=4, mode="w")
    # Their sidecars go with them.
    assert everything(tmp_path) == [f"0000{n}-of-00003.tfrecord" for n in range(3)]
    assert ints(tmp_path / "00001-of-00003.tfrecord") == [-4, -5, -6, -7]


def test_shards_that_are_read_are_not_replaced_or_doubled(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    dtf.to_tfrecord(plain(), folder / "x.tfrecord")
    (tmp_path / "link").symlink_to(folder / "x.tfrecord")
    said = {"can't be replaced by what is read from it": (folder / "x.tfrecord", tmp_path / "link")}
    said["would hold every record twice"] = (folder, f"{folder}/")
    for text, targets in said.items():
        for target in targets:
            for write in (dtf.read_tfrecord(folder).to_tfrecord, partial(dtf.copy_tfrecord, folder)):
                with pytest.raises(ValueError, match=text):
                    write(target, mode="w")
    assert counts(folder) == [10]
    dtf.copy_tfrecord(folder, f"{tmp_path}/other/")
    dtf.copy_tfrecord(folder, folder / "more.tfrecord")


def hide_modules(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let imports of a package fail, as if it were not installed."""
    for module in [name, *(module for module in sys.modules if module.startswith(f"{name}."))]:
        monkeypatch.setitem(sys.modules, module, None)


def test_access_points_are_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_modules(monkeypatch, "indexed_gzip")
    with pytest.raises(dtf.TFRecordError, match=r"dask-tfrecord\[gzip-index\]"):
        dtf.to_tfrecord(plain(), tmp_path / "some.tfrecord", compression="gzip", index=True)
    assert not list(tmp_path.iterdir())
    dtf.to_tfrecord(plain(), tmp_path / "some.tfrecord", compression="gzip")
    with pytest.raises(dtf.TFRecordError, match=r"dask-tfrecord\[gzip-index\]"):
        dtf.build_index(tmp_path / "some.tfrecord")
    assert everything(tmp_path) == ["some.tfrecord"]


def test_a_missing_pillow_is_reported_when_the_images_are_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dask_tfrecord.features.images.codecs import require_pillow

    hide_modules(monkeypatch, "PIL")
    require_pillow.cache_clear()
    deep = {"deep": np.zeros((2, 4, 4, 3), np.uint16)}, {"deep": dtf.ImageFeature((4, 4, 3), "uint16")}
    image = {"image": np.zeros((2, 4, 4, 3), np.uint8)}, {"image": dtf.ImageFeature((4, 4, 3))}
    for compute in (True, False):
        for (arrays, features), encoding in ((image, None), (deep, "webp")):
            with pytest.raises(ImportError, match=r"feature .* is ImageFeature.*needs Pillow, .*: pip .*\[image\]"):
                dtf.to_tfrecord(arrays, tmp_path / "x", features=features, encoding=encoding, compute=compute)
    assert everything(tmp_path) == []
    # The library writes PNG of 16 bits per channel itself.
    dtf.to_tfrecord(deep[0], tmp_path / "x", features=deep[1])
    require_pillow.cache_clear()


# -- publication


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no 17"):
        dtf.to_tfrecord({"label": failing(17)}, f"{tmp_path}/a/b/{MANY}", index=True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "keep").write_text("mine")
    with pytest.raises(FeatureError) as caught:
        dtf.to_tfrecord({"x": np.array([1, 2, 300])}, tmp_path / "x", features={"x": dtf.FixedLenFeature((), "int8")})
    place = caught.value.place
    assert place is not None
    assert (place.file, place.record, place.feature) == (str(tmp_path / "x"), 2, "x")
    assert everything(tmp_path) == ["keep"]


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_failure_removes_the_sidecars_of_the_shards_that_it_removes(compression: str | None, tmp_path: Path) -> None:
    if compression == "gzip":
        pytest.importorskip("indexed_gzip")
    label = failing(25, lambda: wait_until(lambda: any(tmp_path.rglob("*.idx"))))
    with dask.config.set(scheduler="threads", num_workers=4), pytest.raises(RuntimeError, match="no 25"):
        dtf.to_tfrecord({"label": label}, tmp_path / MANY, index=True, compression=compression)
    assert everything(tmp_path) == []


def test_an_index_is_that_of_build_index(tmp_path: Path) -> None:
    dtf.to_tfrecord(plain(), tmp_path / MANY, records_per_shard=4, index=True)
    written = {path: path.read_bytes() for path in tmp_path.glob("*.idx")}
    assert len(written) == 3
    for path in written:
        path.unlink()
    dtf.build_index(tmp_path / "*.tfrecord")
    assert {path: path.read_bytes() for path in tmp_path.glob("*.idx")} == written


def test_a_run_goes_on_while_the_store_refuses_its_heartbeats(
    memory: Callable[..., str], monkeypatch: pytest.MonkeyPatch, set_limits: Callable[..., Limits]
) -> None:
    set_limits(heartbeat=0.01)
    pipe, refused = MemoryFileSystem.pipe_file, []

    def refuse(fs: MemoryFileSystem, path: str, value: bytes, **options: Any) -> Any:
        # `create` has written the claim; put writes it again.
        if "claim" in path and fs.exists(path) and len(refused) < 3:
            refused.append(path)
            raise PermissionError("refused")
        return pipe(fs, path, value, **options)

    def wait(block: Any) -> Any:
        if len(block):
            wait_until(lambda: len(refused) == 3)
        return block

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    waiting = da.arange(30, chunks=5).map_blocks(wait, dtype=np.int64, meta=np.zeros(0, np.int64))
    dtf.to_tfrecord({"x": waiting}, f"{memory()}/{MANY}", records_per_shard=10)
    found = dtf.read_tfrecord(f"{memory()}/*.tfrecord", {"x": dtf.FixedLenFeature((), "int64")})
    assert found["x"].compute().tolist() == list(range(30))
    assert [name for name in MemoryFileSystem.store if "claim" in name] == []


def test_records_that_cannot_be_removed_are_named(memory: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("refused")

    monkeypatch.setattr(MemoryFileSystem, "rm", refuse)
    with pytest.warns(UserWarning, match=r"storage/.* can't be removed \(PermissionError: refused\); remove it"):
        dtf.to_tfrecord({"x": np.arange(3)}, f"{memory()}/{MANY}")
    found = dtf.read_tfrecord(f"{memory()}/*.tfrecord", {"x": dtf.FixedLenFeature((), "int64")})
    assert found["x"].compute().tolist() == [0, 1, 2]


@pytest.mark.integration
def test_s3(tmp_path: Path, s3: dict[str, Any]) -> None:
    fsspec.filesystem("s3", **s3).mkdir("shards")
    url = f"s3://shards/deep/{MANY}"
    dtf.to_tfrecord(plain(), url, records_per_shard=4, index=True, storage_options=s3)
    found = dtf.read_tfrecord("s3://shards/deep/*.tfrecord", storage_options=s3)
    assert found["label"].compute().tolist() == list(range(10))
    dtf.to_tfrecord(plain(8), url, records_per_shard=3, mode="w", storage_options=s3)
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
    folders = ("here", "again", "held", "copy")
    wanted, *others = [[Example.FromString(one) for one in payloads(tmp_path / name)] for name in folders]
    assert all(found == wanted for found in others)
    with pytest.raises(FeatureError, match="which does not fit int8"):
        features = {"label": dtf.FixedLenFeature((), "int8")}
        dtf.to_tfrecord(arrays, f"{tmp_path}/bad/{MANY}", features=features, records_per_shard=40)
    assert not (tmp_path / "bad").exists()


# -- TFDS


def test_tfds_metadata_hold_the_features_and_the_counts(tmp_path: Path) -> None:
    arrays = plain() | {"image": np.zeros((10, 4, 5, 3), np.uint8), "raw": np.arange(20.0).reshape(10, 2)}
    features = Schema(
        {
            "image": dtf.ImageFeature((4, 5, 3)),
            "raw": dtf.RawFeature((2,), "float64"),
            "label": dtf.FixedLenFeature((), "int64"),
        },
        classes={"label": [f"class {n}" for n in range(10)]},
    )
    flowers, folder = {"name": "flowers", "version": "1.0.0"}, tmp_path / "flowers" / "1.0.0"
    dtf.to_tfrecord(arrays, folder, features=features, records_per_shard=4, tfds=flowers | {"split": "train"})
    part = {name: array[:3] for name, array in arrays.items()}
    dtf.to_tfrecord(part, folder, features=features, tfds=flowers | {"split": "test"})
    ds = dtf.read_tfrecord(tmp_path / "flowers", split="train+test")
    assert ds.nrows == 13
    assert ds.schema.classes["label"][3] == "class 3"
    assert ds.schema["raw"] == dtf.RawFeature((2,), "float64")
    assert isinstance(ds.schema["text"], dtf.TextFeature)
    assert ds["raw"].compute()[:10].tolist() == arrays["raw"].tolist()
    tensor = {"x": dtf.TensorFeature((2,), "float64")}
    refused: list[tuple[Any, Any, Any, Any, str]] = [
        ({"x": np.arange(3)}, folder, None, {}, "hold other features"),
        (part, folder, features, {"name": "b"}, r"holds flowers 1\.0\.0"),
        ({"x": np.zeros((2, 2))}, tmp_path / "b", tensor, {}, "no class that reads"),
    ]
    for given, target, of, changes, said in refused:
        with pytest.raises(SchemaError, match=said):
            dtf.to_tfrecord(given, target, features=of, tfds=flowers | {"split": "more"} | changes)


def test_a_split_of_tfds_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, folder = {"name": "flowers", "version": "1.0.0"}, tmp_path / "1.0.0"
    train, arrays = names | {"split": "train"}, plain()
    dtf.to_tfrecord(arrays, folder, tfds=names | {"split": "fixed"})
    described = (folder / "features.json").stat()

    def append(rows: int, tfds: dict[str, str] = train, **options: Any) -> None:
        part = {name: array[:rows] for name, array in arrays.items()}
        dtf.to_tfrecord(part, folder, tfds=tfds, records_per_shard=4, mode="a", **options)

    def splits() -> dict[str, Any]:
        return {split["name"]: split for split in json.loads((folder / "dataset_info.json").read_text())["splits"]}

    lengths: list[int] = []
    for rows, shards in ((10, [4, 4, 2]), (3, [3]), (4, [4])):
        append(rows)
        lengths += shards
        files = [folder / f"flowers-train.tfrecord-{number:05d}" for number in range(len(lengths))]
        assert sorted(folder.glob("flowers-train*")) == files
        split = splits()["train"]
        assert split["filepathTemplate"] == "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}"
        assert [*map(int, split["shardLengths"])] == lengths == [len(read_payloads(path)) for path in files]
        assert int(split["numBytes"]) == sum(path.stat().st_size for path in files)
        assert splits()["fixed"]["shardLengths"] == ["10"]
    labels = dtf.read_tfrecord(folder, split="train")["label"].compute()
    assert labels.tolist() == [*range(10), *range(3), *range(4)]
    assert (folder / "features.json").stat().st_mtime_ns == described.st_mtime_ns
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(SchemaError, match=r"total number in their names .*write another split"):
        append(3, names | {"split": "fixed"})
    with pytest.raises(SchemaError, match="hold other features"):
        dtf.to_tfrecord({"x": [1]}, folder, tfds=train, mode="a")
    with monkeypatch.context() as patch:

        def fails(*_: Any) -> None:
            raise OSError("the disk is full")

        patch.setattr("dask_tfrecord.stores.files.publish.write_file", fails)
        with pytest.raises(OSError, match="disk is full"):
            append(9)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    # Of a program that was killed.
    (folder / "flowers-train.tfrecord-00005").write_bytes(b"")
    with pytest.raises(FileExistsError, match=r"6 shards of the split exist, and dataset_info\.json lists 5"):
        append(3)


def test_a_tfds_data_set_is_written_as_tfds_writes_it(tmp_path: Path) -> None:
    ds = dtf.read_tfrecord(EVERY, split="train")
    ds.to_tfrecord(tmp_path / "every" / "1.0.0", tfds={"name": "every", "version": "1.0.0", "split": "train"})
    again = dtf.read_tfrecord(tmp_path / "every", split="train")
    assert len(ds.schema.groups) == 3
    assert again.schema.groups == {group: tuple(sorted(names)) for group, names in ds.schema.groups.items()}
    assert again.schema.classes == ds.schema.classes
    # Features that only TFDS can decode are left out.
    missing = {name for name in ds if name.startswith("missing")}
    assert {name for name in ds if again.schema[name] != ds.schema[name]} == missing
    wanted, found = ds.compute(), again.compute()
    for name in {*ds} - missing:
        assert bits(found[name]) == bits(wanted[name]), name
    for path in EVERY.glob("*.labels.txt"):
        assert (tmp_path / "every" / "1.0.0" / path.name).read_text() == path.read_text()


def test_groups_of_arrays_are_written_and_verified(tmp_path: Path) -> None:
    tfds = {"name": "robot", "version": "1.0.0", "split": "train"}
    columns = {"steps/a/x": [[1, 2], [], [3]], "steps/y": [["a", "b"], [], ["c"]], "note": [[1], [], []]}
    numbers = dtf.VarLenFeature("int64")
    features = {"steps/a/x": numbers, "steps/y": dtf.TextFeature(count=-1), "note": numbers}
    groups, classes = {"steps": ["steps/a/x", "steps/y"]}, {"steps/a/x": ["p", "q", "r", "s"]}
    schema = dtf.Schema(features, groups=groups, classes=classes)
    dtf.to_tfrecord(columns, tmp_path / "robot", features=schema, tfds=tfds)
    found = dtf.read_tfrecord(tmp_path / "robot", split="train")
    assert found.schema.groups == schema.groups
    assert found.schema.classes == schema.classes
    assert found.explode("steps").compute()["steps/y"].tolist() == ["a", "b", "c"]
    # Rows of an array have one length.
    dense = {"s/a": np.arange(6).reshape(3, 2), "s/b": [[1, 2], [3, 4], [5, 6]]}
    pairs = dtf.Schema(dict.fromkeys(dense, numbers), groups={"s": list(dense)})
    dtf.to_tfrecord(dense, tmp_path / "dense", features=pairs, tfds=tfds)
    for wrong, number in (([["a", "b"], ["c"], []], 1), ([["a"], [], []], 0)):
        with pytest.raises(FeatureError, match=rf"record {number}: feature 'steps/y' has 1 item, expected") as caught:
            dtf.to_tfrecord(columns | {"steps/y": wrong}, tmp_path / "wrong", features=schema, tfds=tfds)
        assert caught.value.place is not None
        assert (caught.value.place.record, caught.value.place.feature) == (number, "steps/y")
        assert not (tmp_path / "wrong").exists()
        # Records without metadata may differ.
        dtf.to_tfrecord(columns | {"steps/y": wrong}, tmp_path / f"{number}.tfrecord", features=schema)
    # TFDS lacks a class for groups with other names, or with the name of a column.
    other = schema.with_groups({"all": ["steps/a/x", "note"]})
    with pytest.warns(UserWarning, match="group 'all' is not written: .* begin with 'all/'"):
        dtf.to_tfrecord(columns, tmp_path / "all", features=other, tfds=tfds)
    assert dtf.read_tfrecord(tmp_path / "all", split="train").schema.groups == {}
    with pytest.warns(UserWarning, match="group 'steps' is not written"):
        dtf.to_tfrecord(columns | {"steps": [1, 2, 3]}, tmp_path / "name", features=schema, tfds=tfds)
    assert set(dtf.read_tfrecord(tmp_path / "name", split="train")) == {*columns, "steps"}


# -- copies


def test_records_are_copied_byte_for_byte(tmp_path: Path) -> None:
    rng = random.Random(2)
    records = [rng.randbytes(rng.randrange(50)) for _ in range(100)]
    for number, compression in enumerate(("gzip", None, "zlib")):
        write_oracle(tmp_path / f"part-{number}", records[number * 30 :][: 30 + 10 * (number == 2)], compression)
    pattern = tmp_path / "part-*"
    dtf.copy_tfrecord(pattern, f"{tmp_path}/same/{MANY}")
    dtf.copy_tfrecord(pattern, f"{tmp_path}/less/{MANY}", records_per_shard=45, compression="gzip")
    dtf.copy_tfrecord(pattern, tmp_path / "one" / "all", index=True)
    assert counts(tmp_path / "same") == [30, 30, 40]
    assert counts(tmp_path / "less") == [45, 45, 10]
    assert payloads(tmp_path / "same") == payloads(tmp_path / "less") == records
    assert read_payloads(tmp_path / "one" / "all") == records
    assert everything(tmp_path / "one") == ["all", "all.idx"]


@pytest.mark.parametrize("some", [{}, {"errors": "skip"}, {"filters": [("label", ">", 2)]}], ids=str)
def test_a_name_of_one_file_takes_no_second_shard(some: dict[str, Any], tmp_path: Path) -> None:
    dtf.to_tfrecord(plain(), f"{tmp_path}/x-{MANY}", records_per_shard=4)
    before = everything(tmp_path)
    with pytest.raises(ValueError, match=r"[34] shards are several files: give a template") as caught:
        dtf.copy_tfrecord(f"{tmp_path}/x-*", tmp_path / "y", records_per_shard=3, **some)
    assert "y" in str(caught.value)
    assert everything(tmp_path) == before


def test_copies_with_fewer_features(tmp_path: Path) -> None:
    dtf.to_tfrecord(plain(), tmp_path / "x")
    dtf.copy_tfrecord(tmp_path / "x", tmp_path / "y", columns=["tokens", "label"])
    wanted = read_oracle(tmp_path / "x")
    for message in wanted:
        for name in ("score", "text", "data"):
            del message.features.feature[name]
    assert read_oracle(tmp_path / "y") == wanted
    write_oracle(tmp_path / "mixed", [*read_payloads(tmp_path / "x"), b"no message"])
    write_oracle(tmp_path / "other", [b"\x08\x01\x10\x96\x01"] * 3)
    refused: list[tuple[str, Any, type[Exception], str]] = [
        ("x", ["lable"], UnknownFeatureError, "did you mean 'label'"),
        ("x", "label", SchemaError, "list with at least one name"),
        ("mixed", ["label"], FeatureError, "record 10"),
        ("other", ["label"], FeatureError, "found a protobuf message of another kind"),
    ]
    for source, columns, error, said in refused:
        with pytest.raises(error, match=said):
            dtf.copy_tfrecord(tmp_path / source, tmp_path / "z", columns=columns)
    assert everything(tmp_path) == ["mixed", "other", "x", "y"]
    record = SequenceExample()
    for name in ("a", "b"):
        record.context.feature[f"c{name}"].int64_list.value.append(1)
        record.feature_lists.feature_list[f"l{name}"].feature.add().int64_list.value.append(2)
    write_oracle(tmp_path / "steps", [record.SerializeToString()])
    dtf.copy_tfrecord(tmp_path / "steps", tmp_path / "few", columns=["ca", "lb"])
    (found,) = sequences(tmp_path / "few")
    assert (list(found.context.feature), list(found.feature_lists.feature_list)) == (["ca"], ["lb"])


# -- commands


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dtf.to_tfrecord(plain(), MANY, records_per_shard=4)
    dtf.read_tfrecord(tmp_path).to_zarr("x.zarr")
    command = ["to-tfrecord", "x.zarr", "y-{shard}-of-{shards}"]
    text = shown(*command, "--columns", "label,data", "--threads", 1)
    assert text.startswith("Wrote y-0-of-1: 10 rows of 2 features in ")
    written = tmp_path / "y-0-of-1"
    assert ints(written) == list(range(10))
    assert sorted(read_oracle(written)[0].features.feature) == ["data", "label"]
    refused = run(*command)
    assert refused.exit_code == 1 and "--overwrite replaces" in refused.stderr
    shown(*command, "--overwrite", "--index")
    assert Path("y-0-of-1.idx").exists()
    text = shown("copy", "*.tfrecord", "parts/", "--records-per-shard", 6, "--compression", "gzip")
    names = "parts/data-00000-of-00002.tfrecord to parts/data-00001-of-00002.tfrecord"
    assert text.startswith(f"Wrote 2 shards, {names}: 10 records in ")
    assert counts(tmp_path / "parts") == [6, 4]
    shards = sorted(tmp_path.glob("*-of-*.tfrecord"))
    shown("copy", *shards, "few", "--columns", "label")
    assert [list(message.features.feature) for message in read_oracle(tmp_path / "few")] == [["label"]] * 10
    assert run("copy", *shards, "few", "--columns", "labels", "--overwrite").exit_code == 1


def test_single_files_of_a_store_list_their_directory_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    # Both calls remove what killed runs left.
    listed: list[str] = []
    ls = MemoryFileSystem.ls

    def count(self: MemoryFileSystem, path: str, *arguments: Any, **options: Any) -> Any:
        listed.append(path)
        return ls(self, path, *arguments, **options)

    monkeypatch.setattr(MemoryFileSystem, "ls", count)
    # The cluster of another test may be active, whose processes have memory of their own.
    with dask.config.set(scheduler="sync"):
        dtf.to_tfrecord({"x": [1]}, "memory://single/1.tfrecord")
    assert listed.count("/single") == 2
    with pytest.raises(FileExistsError, match=r"memory://single/1\.tfrecord exists already"):
        dtf.to_tfrecord({"x": [2]}, "memory://single/1.tfrecord")


def test_no_file_is_written_into_a_zarr_store(tmp_path: Path) -> None:
    store = tmp_path / "x.zarr"
    dtf.to_zarr({"x": np.arange(3)}, store)
    dtf.to_tfrecord({"x": np.arange(3)}, tmp_path / "x.tfrecord")
    before = sorted(store.rglob("*"))
    for write in (
        lambda: dtf.to_tfrecord({"x": np.arange(3)}, f"{store}/"),
        lambda: dtf.to_tfrecord({"x": np.arange(3)}, store / "{shard}.tfrecord", mode="w"),
        lambda: dtf.copy_tfrecord(tmp_path / "x.tfrecord", store / "x.tfrecord"),
        lambda: dtf.to_parquet({"x": np.arange(3)}, store, mode="a"),
    ):
        with pytest.raises(FileExistsError, match=r"x\.zarr is a Zarr store: write to another directory"):
            write()
    assert sorted(store.rglob("*")) == before
