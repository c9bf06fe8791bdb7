"""Stores that other programs changed, or earlier versions wrote: rows as they were written, or errors that name it all.

``data/zarr/format1.zip`` holds three groups of the same rows, written in format 1: in chunks of 3 rows, in shards of 3
rows, and an interrupted conversion. Rows, features and options are `ROWS`, `FEATURES` and `OPTIONS`.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import zarr
import zarr.codecs
import zarr.storage
from support.any_columns import listed
from support.few import mostly_slow
from support.paths import DATA
from support.store_round_trip import CountingStore

import dask_tfrecord as dtf
from dask_tfrecord.errors import IncompleteStoreError, ResumeError, UnsupportedFormatError
from dask_tfrecord.settings import replaced_limits

STEPS = (3, 0, 2, 1, 4, 0, 1)
ROWS: dict[str, list[Any]] = {
    "label": list(range(7)),
    "name": [f"episode {row}" for row in range(7)],
    "steps/reward": [(np.arange(steps, dtype=np.float32) + 10 * row).tolist() for row, steps in enumerate(STEPS)],
    "steps/action": [(np.arange(2 * n).reshape(n, 2) + 100 * row).tolist() for row, n in enumerate(STEPS)],
    "steps/note": [[b"x" * (step + 1) for step in range(steps)] for steps in STEPS],
    "raw": [bytes(range(row)) for row in range(7)],
    "nested": [[list(range(step)) for step in range(steps)] for steps in STEPS],
}


def edit(group: Path, change: Callable[[dict[str, Any]], object], file: str = "zarr.json") -> None:
    document = json.loads((group / file).read_text())
    change(document)
    (group / file).write_text(json.dumps(document))


def own_of(document: dict[str, Any]) -> dict[str, Any]:
    found: Any = document["attributes"]["dask_tfrecord"]
    own: dict[str, Any] = json.loads(found) if isinstance(found, str) else found
    return own


def set_own(group: Path, **values: Any) -> None:
    """Change attributes of this library."""

    def change(document: dict[str, Any]) -> None:
        document["attributes"]["dask_tfrecord"] = json.dumps(own_of(document) | values)

    edit(group, change)


def drop_own(group: Path, name: str) -> None:
    """Remove an attribute of this library."""

    def change(document: dict[str, Any]) -> None:
        document["attributes"]["dask_tfrecord"] = json.dumps(
            {key: value for key, value in own_of(document).items() if key != name}
        )

    edit(group, change)


def refused(store: Path, said: str) -> None:
    with pytest.raises(IncompleteStoreError, match=said) as caught:
        dtf.from_zarr(store)
    assert str(store) in str(caught.value)


# ----------------------------------------------------------------------------------------------- attributes and arrays


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    columns = {"label": np.arange(20), "tokens": [list(range(row % 3)) for row in range(20)]}
    for name, consolidated in (("consolidated", True), ("plain", False)):
        dtf.to_zarr(columns, folder / name, chunks=7, consolidated=consolidated)
    return folder


@pytest.fixture
def store(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written / "consolidated", tmp_path / "store.zarr")


FEATURE = {"name": "label", "class": "FixedLenFeature", "shape": [-3], "dtype": "int64"}
WRONG: dict[str, list[Any]] = {
    "records": [-1, 10**15, 2**70, 19, "20", 20.0, None, True, [20]],
    "unit_rows": [0, -7, 2**70, "7", None, True],
    "schema": [None, [], "x", {}, {"features": 3}, {"features": [{"name": "label"}]}, {"features": [FEATURE]}],
    "source": [None, [], "x", 3, {"schema": 3}, {"schema": {"features": [1]}}],
    "complete": ["yes", 1, None, []],
    "id": [None, 3, {}],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_or_missing_attribute_is_reported(store: Path, name: str) -> None:
    for value in WRONG[name]:
        set_own(store, **{name: value})
        refused(store, rf"dask_tfrecord\.{name}")
    drop_own(store, name)
    if name != "source":
        refused(store, rf"dask_tfrecord\.{name} of the group is missing")


def test_a_deep_schema_and_too_many_units_are_refused(store: Path) -> None:
    deep: Any = []
    for _ in range(400):
        deep = [deep]
    set_own(store, schema={"features": deep})
    refused(store, r"dask_tfrecord\.schema")
    set_own(store, records=10**15, unit_rows=1, schema={"features": []})
    refused(store, r"dask_tfrecord\.unit_rows of the group is 1 for 1,000,000,000,000,000 records; expected at most")


@pytest.mark.parametrize("kind", ["consolidated", "plain"])
@pytest.mark.parametrize(
    ("array", "shape", "dtype", "said"),
    [
        ("label", (21,), "i8", r"array 'label' has shape \(21,\) .* expect \(20\) and int64"),
        ("tokens.row_splits", (21, 2), "i8", r"'tokens.row_splits' has shape \(21, 2\) .* expect \(21\) and int64"),
        ("tokens.values", (3,), "f4", "'tokens.values' has shape .* and dtype float32; .* expect .*any length"),
        ("label", None, None, "'label' is not an array of the group"),
    ],
)
def test_arrays_that_contradict_the_attributes_are_reported(
    written: Path, tmp_path: Path, kind: str, array: str, shape: Any, dtype: Any, said: str
) -> None:
    store = shutil.copytree(written / kind, tmp_path / "store.zarr")
    group = zarr.open_group(store, mode="r+", use_consolidated=False)
    attributes = dict(group.attrs)
    if shape is None:
        (store / array / "zarr.json").unlink()
    else:
        group.create_array(array, shape=shape, dtype=dtype, overwrite=True)
    group.attrs.put(attributes)
    # It would still describe the other array.
    edit(store, lambda document: document.pop("consolidated_metadata", None))
    refused(store, said)


def test_metadata_that_cannot_be_read_name_the_group_or_the_array(store: Path) -> None:
    edit(store, lambda document: document.pop("consolidated_metadata"))
    array, group = store / "label/zarr.json", store / "zarr.json"
    for text in ("[]", "null", "{}", "{", '{"zarr_format": 3, "node_type": "array"}'):
        array.write_text(text)
        refused(store, "'label'")
    for text in ("[]", "null", "3", "{}", '{"zarr_format": 3, "node_type": "group", "attributes": []}'):
        group.write_text(text)
        with pytest.raises((IncompleteStoreError, FileNotFoundError), match=re.escape(str(store))):
            dtf.from_zarr(store)
    group.write_text('{"zarr_format": 3, "node_type')
    refused(store, "the metadata of the group is not JSON")


def test_contradicting_groups_are_refused(tmp_path: Path) -> None:
    columns = {"label": [1, 2], "a": [[1], [2, 3]], "b": [[1.0], [2.0, 3.0]]}
    dtf.to_zarr(columns, tmp_path / "s.zarr", groups={"steps": ["a", "b"]})
    schema = json.loads(dtf.from_zarr(tmp_path / "s.zarr").schema.to_json())
    for groups in (3, {"steps": 3}, {"steps": ["nothing"]}, {"steps": ["label"]}, {"new": ["a"]}):
        set_own(tmp_path / "s.zarr", schema=schema | {"groups": groups})
        refused(tmp_path / "s.zarr", "schema|row_splits")


# -------------------------------------------------------------------------------------------- lost and damaged chunks


@pytest.fixture(scope="module", params=mostly_slow([{"chunks": 4}, {"chunks": 2, "shards": 6}], 2), ids=str)
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Store of rows that hold only fill values, except for the first row, as dense, text, bytes and ragged columns."""
    first = np.arange(11) == 0
    columns = {
        "image": np.repeat(first, 12).reshape(11, 4, 3).astype("uint8"),
        "none": np.zeros((11, 0), "int64"),
        "score": np.where(first, 1, np.nan).astype("float32"),
        "title": np.array(["title"] + [""] * 10, np.dtypes.StringDType()),
        "name": [b"\0" * 3] * 11,
        "boxes": [np.full((1, 4), one, "float32") for one in first],
        "cube": [np.full((1, 2), one, "uint8") for one in first],
    }
    features = {"cube": dtf.TensorFeature((None, None), "uint8"), "boxes": dtf.VarLenFeature("float32", shape=(-1, 4))}
    rows = dtf.Dataset.from_arrays(columns, features)
    store = tmp_path_factory.mktemp("filled") / "store.zarr"
    rows.to_zarr(store, fill_values={"score": float("nan")}, compressors=zarr.codecs.Crc32cCodec(), **request.param)
    return store


def test_missing_and_damaged_chunks_are_not_read_as_fill_values(filled: Path) -> None:
    opened = dtf.from_zarr(filled)
    files = [path for path in sorted(filled.rglob("*")) if path.is_file() and path.name != "zarr.json"]
    assert {path.relative_to(filled).parts[0] for path in files} == {
        *("image", "score", "title", "name.values", "name.row_splits"),
        *("boxes.values", "boxes.row_splits", "cube.values", "cube.shapes", "cube.row_splits"),
    }
    for path in files:
        array, whole = path.relative_to(filled).parts[0], path.read_bytes()
        column, key = opened[array.partition(".")[0]], path.relative_to(filled)
        path.unlink()
        with pytest.raises(IncompleteStoreError, match=" is missing: ") as lost:
            column.compute()
        assert str(lost.value).startswith(f"{filled}/{array}: {key} is missing: ")
        assert str(pickle.loads(pickle.dumps(lost.value))) == str(lost.value)
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(IncompleteStoreError, match=r"cannot read entries \d+ to \d+: ") as cut:
            column.compute()
        assert str(cut.value).startswith(f"{filled}/{array}: cannot read entries ")
        path.write_bytes(whole)
    assert opened["image"].sum().compute() == 12 and opened["title"].compute().tolist() == ["title"] + [""] * 10


@pytest.mark.parametrize("codec", ["Zstd", "Gzip", None])
def test_chunks_that_are_cut_are_damaged_for_every_codec(tmp_path: Path, codec: str | None) -> None:
    compressors = None if codec is None else getattr(zarr.codecs, f"{codec}Codec")()
    dtf.to_zarr({"x": np.arange(9.0), "t": ["a"] * 9}, tmp_path / "s.zarr", compressors=compressors)
    for path in tmp_path.glob("s.zarr/*/c/0"):
        path.write_bytes(path.read_bytes()[:-5])
    for column in dtf.from_zarr(tmp_path / "s.zarr").values():
        with pytest.raises(IncompleteStoreError, match="cannot read entries 0 to 9"):
            column.compute()


@pytest.mark.parametrize("make", [zarr.storage.MemoryStore, lambda: "memory://lost/store.zarr"])
def test_lost_objects_of_stores(make: Any) -> None:
    store = make()
    dtf.to_zarr({"x": np.zeros(9)}, store, chunks=3, component="a/b")
    opened = dtf.from_zarr(store, component="a/b")
    assert not opened["x"].compute().any()
    path = zarr.open_array(store, path="a/b/x", mode="r+").store_path
    asyncio.run((path / "c" / "1").delete())
    with pytest.raises(IncompleteStoreError, match=r"a/b/x: x/c/1 is missing: .* 3 to 6; .* as 0\.0\. "):
        opened["x"].compute()


def test_a_store_that_was_replaced_is_not_read_as_the_one_before(store: Path) -> None:
    back = dtf.from_zarr(store)
    dtf.to_zarr({"label": np.arange(20)[::-1]}, store, mode="w")
    with pytest.raises(IncompleteStoreError, match="open it again"):
        back.compute()


@pytest.mark.parametrize("consolidated", [True, False])
def test_tasks_of_a_process_read_metadata_once(consolidated: bool) -> None:
    """A group in a store that was replaced is noticed when the metadata are read again."""
    store = CountingStore(zarr.storage.MemoryStore())
    values = {"x": np.arange(40.0), "rows": [np.arange(row % 3) for row in range(40)]}
    dtf.to_zarr(values, store, chunks=2, consolidated=consolidated)
    with replaced_limits(look_again=1e9), dask.config.set(scheduler="threads", num_workers=4):
        back = dtf.from_zarr(store)
        store.reads.clear()
        back.compute()
        assert back["x"].sum().compute() == 780
        metadata = {key: count for key, count in store.reads.items() if key.endswith("zarr.json")}
        arrays = () if consolidated else (f"{name}/zarr.json" for name in ("x", "rows.values", "rows.row_splits"))
        assert set(metadata) == set(arrays)
        # Threads that begin at the same time may open an array each.
        assert max(metadata.values(), default=0) <= 4
    dtf.to_zarr({"x": np.zeros(40)}, store, mode="w")
    with replaced_limits(look_again=0), pytest.raises(IncompleteStoreError, match="open it again"):
        back.compute()


# ------------------------------------------------------------------------------------------------------ other programs


@pytest.mark.parametrize("kind", ["group", "array"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_store_of_another_program_is_named_as_such(tmp_path: Path, kind: str, zarr_format: Any) -> None:
    store, error = tmp_path / "other.zarr", FileNotFoundError if (zarr_format, kind) != (3, "group") else ValueError
    if kind == "group":
        zarr.open_group(store, mode="w", zarr_format=zarr_format)["x"] = np.arange(3)
    else:
        zarr.create_array(store, data=np.arange(3), zarr_format=zarr_format)
    opens = "xarray.open_zarr" if kind == "group" else "da.from_zarr"
    with pytest.raises(error, match=rf"to_zarr did not write.*{opens}|not written by to_zarr.*{opens}"):
        dtf.from_zarr(store)


# ------------------------------------------------------------------------------------------------------------- formats


@pytest.fixture
def format1(tmp_path: Path) -> Path:
    with zipfile.ZipFile(DATA / "zarr/format1.zip") as file:
        file.extractall(tmp_path / "format1.zarr")
    return tmp_path / "format1.zarr"


def set_version(group: Path, value: Any) -> None:
    drop_own(group, "format")
    set_own(group, format_version=value)


def rows_of(ds: dtf.Dataset) -> dict[str, Any]:
    return {name: listed(column) for name, column in ds.compute().items()}


@pytest.mark.parametrize("component", ["chunked", "sharded"])
def test_a_store_of_format_1_is_read_and_written_in_the_current_one(
    format1: Path, tmp_path: Path, component: str
) -> None:
    ds = dtf.from_zarr(format1, component=component)
    assert rows_of(ds) == ROWS
    assert listed(ds.rows[[4, 0]]["steps/action"].compute()) == [ROWS["steps/action"][4], ROWS["steps/action"][0]]
    ds.to_zarr(tmp_path / "again.zarr")
    assert own_of(json.loads((tmp_path / "again.zarr/zarr.json").read_text()))["format_version"] == 4
    assert rows_of(dtf.from_zarr(tmp_path / "again.zarr")) == ROWS


def test_attributes_that_are_a_mapping_are_read(tmp_path: Path) -> None:
    """Stores of earlier versions have a mapping where text is written now."""
    ds = dtf.Dataset.from_arrays({"label": np.arange(7), "tokens": [[1]] * 7})
    ds.to_zarr(tmp_path / "a.zarr", chunks=2)

    def change(document: dict[str, Any]) -> None:
        document["attributes"]["dask_tfrecord"] = own_of(document)

    edit(tmp_path / "a.zarr", change)
    assert rows_of(dtf.from_zarr(tmp_path / "a.zarr")) == rows_of(ds)
    set_own(tmp_path / "a.zarr", complete=False)
    edit(tmp_path / "a.zarr", change)
    refused(tmp_path / "a.zarr", "never finished")


def test_an_interrupted_conversion_of_format_1_is_not_mixed_with_another_one(format1: Path) -> None:
    ds = dtf.from_zarr(format1, component="chunked")
    with pytest.raises(ResumeError):
        ds.to_zarr(format1, component="interrupted", chunks=3, resume=True)
    with pytest.raises(FileExistsError, match="interrupted conversion"):
        ds.to_zarr(format1, component="interrupted")


def test_what_an_earlier_version_did_not_finish_is_refused_by_name(tmp_path: Path) -> None:
    store = tmp_path / "s.zarr"
    ds = dtf.Dataset.from_arrays({"x": np.arange(7)})
    ds.to_zarr(store, chunks=2)
    (store / ".dask_tfrecord").mkdir()
    (store / ".dask_tfrecord/append.json").write_text("{}")
    with pytest.raises(ResumeError, match=r"earlier version .* began to add .*append\.json.* to this group"):
        ds.to_zarr(store, append_dim="record")
    set_own(store, complete=False, written=False)
    with pytest.raises(ResumeError, match=r"earlier version of dask_tfrecord began to write this group.*mode='w'"):
        ds.to_zarr(store, chunks=2, resume=True)
    with pytest.raises(FileExistsError, match="interrupted conversion of an earlier version"):
        ds.to_zarr(store)
    refused(store, "never finished")
    ds.rows[:3].to_zarr(store, mode="w")
    assert dtf.from_zarr(store)["x"].compute().tolist() == [0, 1, 2]
    assert not (store / ".dask_tfrecord").exists()


def test_a_newer_format_is_refused(format1: Path) -> None:
    group = format1 / "chunked"
    ds = dtf.from_zarr(format1, component="sharded")
    set_version(group, 5)
    with pytest.raises(UnsupportedFormatError, match=r"format version 5, and .* reads versions 1 to 4") as caught:
        dtf.from_zarr(group)
    assert caught.value.place is not None and caught.value.place.file == str(group)
    before = sorted(path.relative_to(group) for path in group.rglob("*"))
    with pytest.raises(UnsupportedFormatError, match="format version 5"):
        ds.to_zarr(group, resume=True)
    with pytest.raises(FileExistsError, match="mode='w' replaces it"):
        ds.to_zarr(group)
    assert sorted(path.relative_to(group) for path in group.rglob("*")) == before
    ds.to_zarr(group, mode="w")
    assert listed(dtf.from_zarr(group)["label"].compute()) == ROWS["label"]


def test_a_version_that_is_not_a_number_is_refused(format1: Path) -> None:
    for value in (0, -1, "2", 2.0, True, None, []):
        set_version(format1 / "chunked", value)
        refused(format1 / "chunked", "not written by to_zarr")


@pytest.mark.parametrize("program", ["zarr", "xarray"])
@pytest.mark.parametrize("columns", [["label"], list(ROWS)], ids=len)
def test_rows_that_another_program_appended(tmp_path: Path, program: str, columns: list[str]) -> None:
    store = tmp_path / "store.zarr"
    dtf.to_zarr({name: listed(ROWS[name]) for name in columns}, store, chunks=3)
    if program == "zarr":
        group = zarr.open_group(store, use_consolidated=False)
        for _, array in group.arrays():
            if array.shape[0] in (7, 8):
                array.append(array[:1])
    else:
        xarray: Any = pytest.importorskip("xarray")
        row = xarray.open_zarr(store)[["label"]].isel({"record": slice(0, 1)}).load().drop_encoding()
        # xarray drops the consolidated metadata.
        row.to_zarr(store, append_dim="record", consolidated=False)
    refused(store, r"label/zarr.json has 8 rows, and the consolidated metadata of the group 7|'label' has shape \(8,\)")
    dtf.to_zarr({"label": np.arange(4)}, store, mode="w")
    assert dtf.from_zarr(store).nrows == 4


@pytest.mark.slow
def test_small_columns_are_read_in_whole_chunks(tmp_path: Path, set_limits: Any) -> None:
    """Labels that are selected alone have few chunks, and each stored chunk is read once."""
    set_limits(
        min_write_tasks=4, write_unit_nbytes=2000, least_unit_nbytes=1000, small_rows_nbytes=400, chunk_nbytes=800
    )
    columns = {
        "image": np.arange(300 * 100, dtype="i8").reshape(300, 100),
        "label": np.arange(300),
        "x": np.arange(300.0),
    }
    dtf.to_zarr(columns, tmp_path / "s.zarr")
    stored = zarr.open_group(tmp_path / "s.zarr", mode="r")["label"].chunks[0]
    ds = dtf.from_zarr(CountingStore(zarr.storage.LocalStore(tmp_path / "s.zarr")))
    CountingStore.reads.clear()
    assert (ds["label"].sum().compute(), ds[["label", "x"]].rows[7:290]["x"].compute()[0]) == (sum(range(300)), 7)
    assert ds.npartitions > 4 * ds["label"].npartitions
    assert ds.npartitions > ds[["label", "x"]].npartitions == ds[["label", "x"]][["x", "label"]].npartitions
    assert all(size % stored == 0 for size in ds["label"].chunks[0][:-1])
    reads = {key: count for key, count in CountingStore.reads.items() if "label/c/" in key}
    assert len(reads) == -(-300 // stored) and set(reads.values()) == {1}
    assert not [key for key in CountingStore.reads if "image/c/" in key]
    # Other columns keep their chunks, whatever comes first.
    both = {"label": ds["label"], "image": ds["image"]}
    assert dtf.Dataset.from_arrays(both).chunks == ds.chunks == ds["image"].chunks[0]
    assert [array.chunks[0] for array in ds["label", "image"]] == [ds.chunks] * 2
    ds.assign(label=ds["label"] + 1).to_zarr(tmp_path / "t.zarr")
    assert np.array_equal(dtf.from_zarr(tmp_path / "t.zarr")["label"].compute(), columns["label"] + 1)
