"""Round trips through Zarr stores: written columns are read back unchanged, by every reader."""

from __future__ import annotations

import asyncio
import difflib
import json
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
import zarr.storage
from oracle import write_oracle
from oracle.messages import SequenceExample
from support.any_columns import FEATURES, dataset_of, fitting_rows, rows_like, written_as
from support.few import mostly_slow
from support.programs import run_python
from support.store_round_trip import CountingStore, assert_identity, assert_same, assert_same_array, files_of

import dask_tfrecord as dtf
from dask_tfrecord.errors import ResumeError, SchemaError
from dask_tfrecord.features import Feature
from dask_tfrecord.settings import Limits

ROWS = 31
# Columns of records, with names that stores have to encode.
KINDS: dict[str, Feature] = {
    "label": dtf.FixedLenFeature((), "int64"),
    **{name: FEATURES[name] for name in ("dense", "text", "bytes", "pair", "ragged", "boxes", "nested", "tensor")},
    "ragged/values": FEATURES["words"],
    "": FEATURES["grid"],
}


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> dtf.Dataset:
    """Records in five shards and an empty one."""
    folder, schema = tmp_path_factory.mktemp("shards"), written_as(KINDS, steps=False)
    blocks = {name: fitting_rows(feature, ROWS, np.random.default_rng(7)) for name, feature in KINDS.items()}
    dtf.to_tfrecord(dataset_of(blocks, KINDS, (ROWS,)), f"{folder}/{{shard}}", features=schema, records_per_shard=7)
    write_oracle(folder / "2-empty", [])
    return dtf.read_tfrecord(folder, schema)


@pytest.fixture(scope="module")
def few(ds: dtf.Dataset) -> dtf.Dataset:
    """Columns of four kinds."""
    return ds[["label", "text", "pair", "ragged"]]


@pytest.fixture(scope="module")
def every() -> dtf.Dataset:
    """Every kind of column, in chunks of differing sizes."""
    blocks = {name: rows_like(feature, 25, np.random.default_rng(5)) for name, feature in FEATURES.items()}
    return dataset_of(blocks, FEATURES, (7, 0, 1, 13, 4))


# ------------------------------------------------------------------------------------------------- the same again


@pytest.mark.parametrize("grid", [{}, {"chunks": 2, "shards": 4}], ids=str)
def test_plain_arrays(tmp_path: Path, grid: dict[str, int], set_limits: Any) -> None:
    set_limits(small_rechunk_nbytes=0)
    rng, text = np.random.default_rng(0), np.array(["ä", "", "b\0"] + ["c"] * 8)
    arrays = {
        "f2": rng.random((11, 2, 3)).astype("f2"),
        "f8": da.from_array(rng.random((11, 9)), chunks=(4, 2)),
        "u4": da.arange(11, dtype="u4", chunks=5),
        "i2": np.arange(11, dtype="i2"),
        "c8": np.full(11, complex(-0.0, 0.0), "c8"),
        "minus": np.full((11, 2), -0.0, "f4"),
        "nan": np.full(11, np.nan).view("i8").__ior__(3).view("f8"),
        "bool": np.zeros(11, bool),
        "none": np.zeros((11, 0), "i8"),
        "text": text.astype(np.dtypes.StringDType()),
        "fixed": text,
        "fixed lazily": da.from_array(text, chunks=5),
    }
    with pytest.warns(da.PerformanceWarning, match="'f8' is rechunked|'u4' is rechunked|'fixed lazily' is rechunked"):
        assert dtf.to_zarr(arrays, tmp_path / "store.zarr", **grid) is None
    wanted = {name: np.asarray(array) for name, array in arrays.items()}
    wanted |= dict.fromkeys(("fixed", "fixed lazily"), wanted["text"])
    assert_same(dtf.from_zarr(tmp_path / "store.zarr").compute(), wanted)
    none = {name: np.asarray(array)[:0] for name, array in arrays.items()}
    dtf.to_zarr(none, tmp_path / "none.zarr", **grid)
    assert_same(dtf.from_zarr(tmp_path / "none.zarr").compute(), {name: array[:0] for name, array in wanted.items()})


def test_padded_lists_of_bytes_that_are_all_empty(tmp_path: Path) -> None:
    dtf.to_tfrecord({"row": np.arange(3)}, tmp_path / "x.tfrecord")
    features = {"x": dtf.FixedLenSequenceFeature((), "bytes", allow_missing=True)}
    dtf.read_tfrecord(tmp_path / "x.tfrecord", features).to_zarr(tmp_path / "x.zarr")
    assert dtf.from_zarr(tmp_path / "x.zarr")["x"].compute().shape == (3, 0)


def test_bfloat16_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    pytest.importorskip("ml_dtypes")
    dataset = dtf.Dataset.from_arrays({"row": np.arange(3)})

    def never(blocks: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError("nothing is read")

    for feature, said in (
        (dtf.RawFeature((2,), "bfloat16"), r"blocks\['x'\].astype\('float32'\)"),
        (dtf.VarLenFeature("bfloat16"), r"RaggedBlock\(blocks\['x'\].values.astype\('float32'\), .*\.row_splits\)"),
        (dtf.TensorFeature((-1,), "bfloat16"), r"\[row.astype\('float32'\) for row in blocks\['x'\]\] and a template"),
    ):
        with pytest.raises(SchemaError, match=f"cannot write column 'x': Zarr has no name for .*{said}"):
            dataset.map_blocks(never, {"x": feature}).to_zarr(tmp_path / "store.zarr")
    assert not list(tmp_path.iterdir())


def test_arrays_of_zarr_are_read_as_they_are_written(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "from.zarr", mode="w")
    image = group.create_array("image", shape=(90, 4, 3), chunks=(20, 2, 3), dtype="float32")
    text = group.create_array("text", shape=(90,), chunks=(30,), dtype="string")
    rows = {"image": image, "text": text, "number": np.arange(90)}
    dataset = dtf.Dataset.from_arrays(rows).assign(again=text)
    image[:] = np.arange(1080).reshape(90, 4, 3)  # were they read already, these would be zeros
    text[:] = np.array([f"row {row}" for row in range(90)], np.dtypes.StringDType())
    dataset.to_zarr(tmp_path / "to.zarr", chunks=7)
    back = dtf.from_zarr(tmp_path / "to.zarr")
    for name, array in (rows | {"again": text}).items():
        assert_same_array(back[name].compute(), np.asarray(array[:]))
    dtf.to_zarr(rows, tmp_path / "begun.zarr", resume=True)
    with pytest.raises(ResumeError):  # they may have changed
        dtf.to_zarr(rows, tmp_path / "begun.zarr", resume=True)


def test_arrays_of_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    rows = {"number": np.arange(100), "vector": np.arange(300, dtype="f4").reshape(100, 3)}
    with h5py.File(tmp_path / "some.h5", "w") as file:
        file["vector"] = rows["vector"]
        file.create_dataset("number", data=rows["number"], chunks=(32,), compression="gzip")
        dtf.to_zarr(file, tmp_path / "store.zarr", chunks=7)
        dtf.to_tfrecord(file, tmp_path / "some.tfrecord")
    for back in (dtf.from_zarr(tmp_path / "store.zarr"), dtf.read_tfrecord(tmp_path / "some.tfrecord")):
        assert_same(back.compute(), rows)


# ------------------------------------------------------------------------------------------------ what others read


def test_steps_class_names_and_attributes_are_stored(tmp_path: Path) -> None:
    message, path = SequenceExample(), tmp_path / "shard"
    message.context.feature["label"].int64_list.value.append(1)
    for step in range(3):
        message.feature_lists.feature_list["tokens"].feature.add().int64_list.value.extend(range(step))
        message.feature_lists.feature_list["points"].feature.add().float_list.value.extend([step, 0.5])
    write_oracle(path, [message.SerializeToString(), SequenceExample(context=message.context).SerializeToString()])
    schema = dtf.Schema(
        {"label": dtf.FixedLenFeature((), "uint8")},
        sequence_features={
            "tokens": dtf.VarLenFeature("int64"),
            "points": dtf.FixedLenSequenceFeature((2,), "float32", allow_missing=True),
        },
        classes={"label": ["cat", "dog"], "tokens": ["the", "a"]},
    )
    back = assert_identity(dtf.read_tfrecord(path, schema), tmp_path / "store.zarr", chunks=1)
    assert back.schema.classes == {"label": ("cat", "dog"), "tokens": ("the", "a")}
    assert back.schema["tokens"] == dtf.VarLenFeature("int64", shape=(-1, -1))
    assert back["points.lengths"].compute().tolist() == [3, 0]
    assert back[["tokens"]].schema.classes == {"tokens": ("the", "a")}
    assert back.assign(label=np.zeros(2)).schema.classes == {"tokens": ("the", "a")}
    group = zarr.open_group(tmp_path / "store.zarr", mode="r", use_consolidated=True)
    own: Any = json.loads(str(group.attrs["dask_tfrecord"]))
    assert (own["complete"], own["records"]) == (True, 2)
    assert dtf.Schema.from_json(json.dumps(own["schema"])).classes == back.schema.classes
    assert own["source"]["files"] == [str(path)] and own["source"]["sizes"] == [path.stat().st_size]


def test_names_of_arrays(every: dtf.Dataset) -> None:
    parts: dict[str, list[str]] = {}
    for array in every.plan_zarr().arrays:
        name, _, part = array.name.partition(".")
        parts.setdefault(name, []).append(part)
    one, ragged, own = [""], ["row_splits", "values"], ["row_splits", "shapes", "values"]
    assert {name: sorted(found) for name, found in parts.items()} == {
        **dict.fromkeys(("dense", "raw", "text", "padded", "views", "pairs", "captions", "latin", "points"), one),
        **dict.fromkeys(("bytes", "pair", "none", "steps", "names", "labels"), ragged),
        **dict.fromkeys(("ragged", "boxes", "frames", "samples", "states", "phrases", "grids"), ragged),
        **dict.fromkeys(("cubes", "curves", "rows", "utf16", "instants", "spans", "verses"), ragged),
        **dict.fromkeys(("day", "moments", "title"), one),
        "heights": own,
        "lists": ["byte_splits", "row_splits", "shapes", "values"],
        "words": ["byte_splits", *ragged],
        "grid": ["byte_splits", *ragged],
        **dict.fromkeys(("image", "tensor", "columns", "planes", "sized"), own),
        **{key: ["item_shapes", "row_splits", "row_splits_1", "values"] for key in ("crops", "blocks", "tables")},
        "lines": ["byte_splits", "item_shapes", "row_splits", "row_splits_1", "values"],
        **{key: ["row_splits", "row_splits_1", "values"] for key in ("nested", "poses", "albums")},
        "notes": ["row_splits", "row_splits_1", "row_splits_2", "values"],
        "deep": ["byte_splits", "row_splits", "row_splits_1", "row_splits_2", "values"],
        "strings": ["byte_splits", *own],
    }


def test_xarray_reads_it(ds: dtf.Dataset, tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    named, store = ds.assign(record=np.arange(ROWS) * 2.0), tmp_path / "store.zarr"
    named.to_zarr(store, chunks=6)
    with xr.open_zarr(store) as opened:
        assert not opened.coords  # what is a coordinate is read at once
        assert opened.sizes["record%"] == ROWS
        assert opened["label"].chunksizes["record%"] == (6, 6, 6, 6, 6, 1)
        assert {name: opened[name].dims for name in ("dense", "boxes.values", "nested.values")} == {
            "dense": ("record%", "dense.dim_1"),
            "boxes.values": ("boxes.value", "boxes.dim_1"),
            "nested.values": ("nested.value", "nested.dim_1"),
        }
        assert opened["nested.row_splits_1"].dims == ("nested.row_split_1",)
        assert opened["tensor.shapes"].dims == ("record%", "tensor.axis")
        assert opened["ragged%2Fvalues.byte_splits"].dims == ("ragged%2Fvalues.byte_split",)
        whole = named.compute()
        for name in ("label", "dense", "text", "record"):
            assert_same_array(opened[name].to_numpy(), whole[name])
        assert opened["ragged.values"].to_numpy().tolist() == np.concatenate(list(whole["ragged"])).tolist()
    dtf.to_zarr({"x": np.zeros((4, 2, 3)), "t": ["a"] * 4}, tmp_path / "plain.zarr")
    with xr.open_dataset(tmp_path / "plain.zarr", engine="zarr") as opened:
        assert dict(opened.sizes) == {"record": 4, "x.dim_1": 2, "x.dim_2": 3}


# ------------------------------------------------------------------------------------------------- on any scheduler


def test_conversions_run_within_a_running_event_loop(few: dtf.Dataset, tmp_path: Path) -> None:
    async def convert(name: str) -> None:
        with dask.config.set(scheduler="sync"):
            few.to_zarr(tmp_path / name)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, convert("store.zarr")).result()
    asyncio.run(convert("main.zarr"))
    assert files_of(tmp_path / "store.zarr") == files_of(tmp_path / "main.zarr")


def test_delayed_writes_travel_and_keep_their_relative_path(
    few: dtf.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    written = pickle.dumps(few.to_zarr("store.zarr", chunks=8, compute=False))
    monkeypatch.chdir(tmp_path / "elsewhere")
    pickle.loads(written).compute(scheduler="sync")
    assert_same(dtf.from_zarr(tmp_path / "store.zarr").compute(), few.compute())
    assert not list((tmp_path / "elsewhere").iterdir())


# ------------------------------------------------------------------------------------------------------ where to

STORES: dict[str, Callable[[Path], Any]] = {
    "memory": lambda path: zarr.storage.MemoryStore(),
    "dict": lambda path: {},
    "URL": lambda path: f"memory://{path.name}/store.zarr",
    "FsspecStore": lambda path: zarr.storage.FsspecStore.from_url(f"memory://{path.name}/store.zarr"),
    "LocalStore": lambda path: zarr.storage.LocalStore(path / "store.zarr"),
    "file URL": lambda path: f"file://{path}/store.zarr",
    "new folder": lambda path: path / "new" / "store.zarr",
    "obstore": lambda path: zarr.storage.ObjectStore(pytest.importorskip("obstore.store").LocalStore(path)),
}


@pytest.mark.parametrize("kind", mostly_slow(STORES, 2))
def test_stores_and_their_components(few: dtf.Dataset, tmp_path: Path, kind: str) -> None:
    store, two = STORES[kind](tmp_path), few[["label", "ragged"]]
    assert_identity(two, store, component="train", chunks=10)
    assert_identity(two.rows[:3], store, component="/val/first/", chunks=2, shards=4)
    assert_same(dtf.from_zarr(store, component="train").compute(), two.compute())
    assert_same(dtf.from_zarr(store, component="val/first").compute(), two.rows[:3].compute())
    assert sorted(zarr.open_group(store, mode="r").group_keys()) == ["train", "val"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *(({"component": component}, "within the store") for component in ("..", "a/../..", "./a")),
        ({"mode": "r+"}, "mode must be 'w-'"),
        ({"mode": "w", "resume": True}, "pass only one of them"),
        ({"chunks": 4, "shards": 6}, "6 rows are not a multiple of 4"),
        ({"chunks": {"label": 4}, "shards": {"label": 6}}, "6 rows are not a multiple of 4"),
        ({"chunks": {"label": 4, "text": 6}}, "6 rows of 'text' must be a multiple of the 4 of 'label'"),
        ({"shards": {"ragged.values": 6}}, r"chunks=\{'ragged.values'"),
        ({"memory_limit": 0}, "memory_limit must be a number of bytes"),
    ],
    ids=str,
)
def test_invalid_options(few: dtf.Dataset, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        few.to_zarr(tmp_path / "store.zarr", **options)
    assert not list(tmp_path.iterdir())
    with pytest.raises(TypeError, match="store must be a path"):
        few.to_zarr(None)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------- how large


def test_units_follow_the_size_of_rows() -> None:
    def unit_rows(arrays: Any) -> int:
        return dtf.plan_zarr(arrays).unit_rows

    # The size of a string is the size of its characters.
    text = da.from_array(np.array(["x" * 10_000] * 4000, np.dtypes.StringDType()), chunks=1000)
    assert unit_rows({"text": text}) < 1000
    # Long rows of bytes, kept in memory: neither the splits nor the values want all of them at once.
    template = {"n": dtf.FixedLenFeature((), "int64"), "blob": dtf.VarLenFeature("int64")}
    held = dtf.Dataset.from_arrays({"n": da.arange(4000, chunks=1000)}).map_blocks(
        lambda b: b | {"blob": dtf.RaggedBlock(np.zeros(5000 * len(b["n"]), "i8"), 5000 * np.arange(len(b["n"]) + 1))},
        template,
    )
    assert 100 < unit_rows(held) < 1000
    # Shards of a prime size do not get tiny chunks.
    assert dtf.plan_zarr({"x": np.zeros((20_011, 64))}, shards=10_007).arrays[0].chunks == (10_007, 64)


def test_records_of_text_are_cut_by_its_size_and_functions_receive_limited_rows(tmp_path: Path) -> None:
    seen: list[int] = []

    def mean(blocks: dict[str, Any]) -> dict[str, Any]:
        seen.append(blocks["image"].nbytes)
        return {"mean": blocks["image"].mean(axis=1)}

    columns = {"text": ["x" * 10_000] * 700, "image": np.zeros((700, 10_000), "f4")}
    dtf.to_tfrecord(columns, tmp_path / "shard", features={"image": dtf.RawFeature((10_000,), "float32")})
    texts = dtf.read_tfrecord(tmp_path / "shard", {"text": dtf.TextFeature()}, chunks="1 MiB")
    assert 6 <= texts.npartitions <= 36
    images = dtf.read_tfrecord(tmp_path / "shard", {"image": dtf.RawFeature((10_000,), "float32")})
    images.map_blocks(mean, {"mean": dtf.FixedLenFeature((), "float32")}).to_zarr(tmp_path / "store.zarr", chunks=700)
    assert max(seen) <= Limits().write_unit_nbytes


def test_other_selections_have_other_names(tmp_path: Path) -> None:
    dtf.to_zarr({"x": np.arange(5000)}, tmp_path / "s.zarr")
    ds = dtf.from_zarr(tmp_path / "s.zarr")
    one = [*range(0, 4000, 2)]
    other = [*one[:1000], *(row + 1 for row in one[1000:1100]), *one[1100:]]
    assert ds.rows[one]["x"].name != ds.rows[other]["x"].name
    assert ds.rows[one]["x"].name == dtf.from_zarr(tmp_path / "s.zarr").rows[one]["x"].name


@pytest.mark.slow
def test_each_column_costs_as_much_among_many() -> None:
    """The metadata of the group grow with the columns, and are not read for each of them."""
    read = []
    for columns in (10, 60):
        CountingStore.reads.clear()
        store = CountingStore(zarr.storage.MemoryStore())
        dtf.to_zarr({f"column {number}": np.arange(3) for number in range(columns)}, store)
        read.append(store.reads["zarr.json"])
    assert 0 < read[0] == read[1]


def test_a_name_without_a_feature_is_compared_with_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    features = {f"g/{number}": dtf.VarLenFeature("int64") for number in range(3)}
    ds = dtf.Dataset.from_arrays({name: [[1, 2], [3]] for name in features}, features)
    monkeypatch.setattr(difflib, "get_close_matches", lambda *_, **__: pytest.fail("names are compared"))
    store = zarr.storage.MemoryStore()
    ds.to_zarr(store, groups={"g": list(features)}, fill_values=dict.fromkeys(features, 1))
    assert dtf.from_zarr(store).schema.groups == {"g": tuple(features)}


@pytest.mark.integration
def test_assertions_are_not_needed(tmp_path: Path) -> None:
    program = f"""
import numpy as np, dask_tfrecord as dtf
rows = {{"x": np.arange(5), "text": list("abcde")}}
for component in ("a/b", "a/c", "a/b"):
    dtf.to_zarr(rows, {str(tmp_path)!r}, component=component, mode="w", chunks=2)
print(dtf.from_zarr({str(tmp_path)!r}, component="a/b")["x"].compute().tolist())
"""
    assert run_python("-O", "-c", program).stdout == "[0, 1, 2, 3, 4]\n"
