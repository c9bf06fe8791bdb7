"""Groups of columns that share their row lengths: one array of splits and one dimension in a Zarr store."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.any_columns import any_features, dataset_of, listed, rows_like
from support.commands import run, shown
from support.paths import DATA
from support.raced_writes import RecordingStore, ShuffledPool, events, recorded
from support.store_round_trip import CountingStore

import dask_tfrecord as dtf
from dask_tfrecord.blocks import Block, RaggedBlock, splits_of, take_rows
from dask_tfrecord.errors import FeatureError, IncompleteStoreError, ResumeError, SchemaError, UnknownFeatureError
from dask_tfrecord.features import Feature, RowLengths

STEPS = (3, 0, 2, 1, 14, 0, 1)
GROUPS = {"steps": "steps"}
EPISODES = DATA / "tfds/every/1.0.0"
FEATURES: Mapping[str, Any] = {
    "label": dtf.FixedLenFeature((), "int64"),
    "steps/reward": dtf.VarLenFeature("float32"),
    "steps/action": dtf.VarLenFeature("int64", shape=(-1, 2)),
    "steps/note": dtf.VarLenFeature("bytes"),
    "steps/words": dtf.RaggedFeature("int64", "steps/words", (RowLengths("steps/words/lengths"),)),
    "tokens": dtf.VarLenFeature("int64"),
}
MEMBERS = ("steps/reward", "steps/action", "steps/note", "steps/words")


def rows(lengths: tuple[int, ...] = STEPS, **changed: tuple[int, ...]) -> dict[str, list[Any]]:
    """Return columns of some number of steps in each row; `changed` has other numbers for a column below ``steps/``."""

    def of(name: str) -> list[int]:
        return list(changed.get(name, lengths))

    return {
        "label": list(range(len(lengths))),
        "steps/reward": [(np.arange(n) + 100.0 * row).tolist() for row, n in enumerate(of("reward"))],
        "steps/action": [(np.arange(2 * n).reshape(n, 2) + 1000 * row).tolist() for row, n in enumerate(of("action"))],
        "steps/note": [[b"n" * (step % 3) for step in range(n)] for n in of("note")],
        "steps/words": [[list(range(step % 4)) for step in range(n)] for n in of("words")],
        "tokens": [list(range(row)) for row in range(len(lengths))],
    }


def read(folder: Path, columns: Mapping[str, Any]) -> dtf.Dataset:
    template = f"{folder}/in/train-{{shard:05d}}-of-{{shards:05d}}.tfrecord"
    dtf.to_tfrecord(columns, template, features=FEATURES, records_per_shard=4, mode="w")
    return dtf.read_tfrecord(f"{folder}/in/*.tfrecord", FEATURES)


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> dtf.Dataset:
    return read(tmp_path_factory.mktemp("episodes"), rows())


@pytest.fixture(scope="module")
def grouped(episodes: dtf.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Store of the episodes; tests do not change it."""
    path = tmp_path_factory.mktemp("grouped") / "s.zarr"
    episodes.to_zarr(path, groups=GROUPS)
    return path


def computed(ds: dtf.Dataset) -> dict[str, Any]:
    return {name: listed(column) for name, column in ds.compute().items()}


@pytest.mark.parametrize(
    ("lengths", "grid"),
    [
        (STEPS, {"chunks": 2}),
        (STEPS, {"chunks": 1, "shards": 3}),
        (STEPS, {"chunks": "64 B"}),
        ((0, 0, 0), {}),
    ],
    ids=repr,
)
def test_columns_of_a_group_share_splits_and_a_dimension(
    tmp_path: Path, lengths: tuple[int, ...], grid: dict[str, Any]
) -> None:
    read(tmp_path, rows(lengths)).to_zarr(tmp_path / "s.zarr", groups=GROUPS, **grid)
    group: Any = zarr.open_group(tmp_path / "s.zarr", mode="r")
    assert {name for name in group.array_keys() if name.startswith("steps")} == {
        *("steps.row_splits", "steps.reward.values", "steps.action.values"),
        *("steps.note.values", "steps.note.byte_splits", "steps.words.values", "steps.words.row_splits_1"),
    }
    np.testing.assert_array_equal(group["steps.row_splits"][:], np.cumsum([0, *lengths]))
    reward, action = group["steps.reward.values"], group["steps.action.values"]
    assert reward.metadata.dimension_names == ("steps",)
    assert action.metadata.dimension_names == ("steps", "steps.action.dim_1")
    assert (reward.chunks[:1], (reward.shards or ())[:1]) == (action.chunks[:1], (action.shards or ())[:1])
    stored = dtf.from_zarr(tmp_path / "s.zarr")
    assert stored.schema.groups == {"steps": MEMBERS}
    assert computed(stored) == rows(lengths)
    picked = [len(lengths) - 1, 0, 1]
    assert computed(stored.rows[picked]) == {n: [column[row] for row in picked] for n, column in rows(lengths).items()}
    assert len(stored.rows[:0]["steps/action"].compute()) == 0
    stored.to_tfrecord(tmp_path / "again.tfrecord")
    assert computed(dtf.read_tfrecord(tmp_path / "again.tfrecord", FEATURES)) == rows(lengths)


def test_metadata_of_tfds_make_groups_whose_steps_are_selected_by_one_range(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    ds = dtf.read_tfrecord(EPISODES, split="train")
    members = ("steps/action", "steps/instruction", "steps/is_last", "steps/observation/image")
    assert ds.schema.groups == {
        "ragged/box": ("ragged/box/boxes", "ragged/box/label"),
        "sequence/dict": ("sequence/dict/deep/x", "sequence/dict/id", "sequence/dict/name"),
        "steps": (*members, "steps/observation/words"),
    }
    assert "group 'steps': steps/action" in repr(ds) and "&#x27;steps&#x27;: steps/action" in ds._repr_html_()
    assert "group 'steps': steps/action" in repr(ds.schema)
    ds = ds[[name for name in ds if ds.schema.group_of(name)]]
    ds.to_zarr(tmp_path / "s.zarr", chunks={"steps.action.values": 2})
    assert dtf.from_zarr(tmp_path / "s.zarr").schema.groups == ds.schema.groups
    store = CountingStore(zarr.storage.LocalStore(tmp_path / "s.zarr"))
    opened = xarray.open_zarr(store)
    fields = [f"{name.replace('/', '.')}.values" for name in members if name != "steps/instruction"]
    store.reads.clear()
    with dask.config.set(scheduler="sync"):
        found = opened[fields].isel(steps=slice(2, 4)).load()
    assert store.reads == {f"{field}/c/1{'/0' * (found[field].ndim - 1)}": 1 for field in fields}
    for field in fields:
        whole = ds[field.removesuffix(".values").replace(".", "/")].compute()
        np.testing.assert_array_equal(found[field], np.concatenate([row for row in whole if len(row)])[2:4])


def test_columns_of_a_group_are_read_with_one_read_of_their_splits(grouped: Path) -> None:
    store = CountingStore(zarr.storage.LocalStore(grouped))
    ds = dtf.from_zarr(store)
    store.reads.clear()
    ds.rows[1:3].compute(scheduler="sync")
    assert store.reads["steps.row_splits/c/0"] == 1


def test_attributes_follow_the_cf_conventions_and_survive_xarray(grouped: Path, tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    opened = xarray.open_zarr(grouped)
    opened.to_zarr(tmp_path / "copy.zarr", consolidated=False)
    for each in (opened, xarray.open_zarr(tmp_path / "copy.zarr", consolidated=False)):
        splits = each["steps.row_splits"]
        assert splits.attrs["divides"] == "steps" == each["steps.reward.values"].dims[0]
        assert splits.attrs["group"] == "steps" and splits.attrs["features"] == list(MEMBERS)
        assert each["tokens.row_splits"].attrs["divides"] == each["tokens.values"].dims[0]
        inner = each["steps.words.row_splits_1"].attrs["divides"]
        assert inner == each["steps.words.values"].dims[0]
        np.testing.assert_array_equal(np.diff(splits), STEPS)


@pytest.mark.parametrize(("name", "found"), [("reward", 15), ("note", 13), ("words", 14 + 9)])
def test_unequal_lengths_name_file_record_and_feature(tmp_path: Path, name: str, found: int) -> None:
    ds = read(tmp_path, rows(**{name: (*STEPS[:4], found, *STEPS[5:])}))
    place = (f"{tmp_path}/in/train-00001-of-00002.tfrecord", 0)
    wrong, expected = (f"steps/{name}", 14) if name != "reward" else ("steps/action", found)
    number = found if name != "reward" else 14
    for write in (ds.to_zarr, dtf.read_tfrecord(f"{tmp_path}/in/*.tfrecord", FEATURES, errors="skip").to_zarr):
        with pytest.raises(FeatureError, match=f"{wrong!r} has {number} items, expected {expected}") as caught:
            write(tmp_path / "s.zarr", groups=GROUPS)
        error = caught.value
        assert error.place is not None and (error.place.file, error.place.record) == place
        assert error.place.feature == wrong and "'steps'" in str(error)
        assert not (tmp_path / "s.zarr").exists()
    ds.to_zarr(tmp_path / "s.zarr")
    assert dtf.from_zarr(tmp_path / "s.zarr").schema.groups == {}
    with pytest.raises(FeatureError, match=r"s\.zarr: record 4: .*expected"):
        dtf.from_zarr(tmp_path / "s.zarr").to_zarr(tmp_path / "t.zarr", groups=GROUPS)
    with pytest.raises(FeatureError, match=r"rows in memory: record 4: .*expected"):
        ds.persist().to_zarr(tmp_path / "t.zarr", groups=GROUPS)


def test_lengths_that_change_after_the_count_raise_in_the_task(episodes: dtf.Dataset, tmp_path: Path) -> None:
    """The number of values of each write unit is the same, and rows differ."""
    swapped = False

    def swap(blocks: dict[str, Any]) -> dict[str, Any]:
        action = blocks["steps/action"]
        splits = action.row_splits.copy()
        if swapped and len(splits) > 3:
            splits[2] = splits[3]
        return {"steps/reward": blocks["steps/reward"], "steps/action": RaggedBlock(action.values, splits)}

    with dask.config.set(scheduler="sync"):
        plan = episodes.map_blocks(swap).plan_zarr(groups=GROUPS)
        swapped = True
        with pytest.raises(FeatureError, match="'steps/action' has 2 items, expected 0") as caught:
            plan.to_zarr(tmp_path / "s.zarr")
    assert caught.value.place is not None and caught.value.place.record == 1


TWO = ["steps/action", "steps/reward"]


@pytest.mark.parametrize(
    ("groups", "error", "said"),
    [
        ({"steps": "step"}, UnknownFeatureError, "^group.*did you mean 'steps|there are 'steps"),
        ({"steps": ["steps/acton"]}, UnknownFeatureError, "^group.*did you mean 'steps"),
        ({"x": "label"}, UnknownFeatureError, "^group.*there are 'steps"),
        ({"x": ["label", "tokens"]}, SchemaError, "the rows of 'label' are not ragged"),
        ({"a": ["tokens"], "b": ["tokens"]}, SchemaError, "'tokens' is in group 'a' and again in group 'b'"),
        ({"tokens": TWO}, SchemaError, "group 'tokens' has the name of a feature"),
        ({"": "steps"}, SchemaError, "a group must be a name with a list of features"),
        ({"x": []}, SchemaError, "a group must be a name with a list of features"),
        ("steps", TypeError, "groups must map names"),
    ],
)
def test_groups_that_do_not_fit(episodes: dtf.Dataset, groups: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        episodes.plan_zarr(groups=groups)


def test_a_group_with_the_name_of_a_column_or_of_the_rows(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    columns = {"steps": np.arange(3), "record": [[1], [2, 3], []], "b": [[1.0], [2.0, 3.0], []]}
    ds = dtf.Dataset.from_arrays(columns, {"record": dtf.VarLenFeature("int64"), "b": dtf.VarLenFeature("float32")})
    for group in ("steps", "record"):
        ds.to_zarr(tmp_path / "s.zarr", groups={group: ["record", "b"]}, mode="w")
        opened = xarray.open_zarr(tmp_path / "s.zarr")
        assert opened["b.values"].dims == opened["record.values"].dims == (f"{group}%",)
        np.testing.assert_array_equal(opened.isel({f"{group}%": slice(1, 3)})["b.values"], [2, 3])
        assert listed(dtf.from_zarr(tmp_path / "s.zarr")["b"].compute()) == columns["b"]


def test_chunks_of_one_array_are_those_of_the_group(episodes: dtf.Dataset) -> None:
    plan = episodes.plan_zarr(groups=GROUPS, chunks={"steps.action.values": 5}, shards={"steps.action.values": 10})
    grids = {array.name: (array.chunks[0], array.shards and array.shards[0]) for array in plan.arrays}
    assert grids["steps.action.values"] == grids["steps.reward.values"] == (5, 10)
    with pytest.raises(ValueError, match="items of group 'steps' must have the same chunk"):
        episodes.plan_zarr(groups=GROUPS, chunks={"steps.action.values": 5, "steps.reward.values": 6})
    compressors = {"steps.row_splits": None, "steps/action": None}
    arrays = {array.name: array for array in episodes.plan_zarr(groups=GROUPS, compressors=compressors).arrays}
    assert arrays["steps.row_splits"].compressors == arrays["steps.action.values"].compressors == ()
    assert arrays["steps.reward.values"].compressors


def test_changed_columns_leave_their_group(episodes: dtf.Dataset, tmp_path: Path) -> None:
    for members in (TWO, tuple(TWO)):
        episodes.to_zarr(tmp_path / "s.zarr", groups={"part": members}, mode="w")
        assert dtf.from_zarr(tmp_path / "s.zarr").schema.groups == {"part": tuple(TWO)}
    names = set(zarr.open_group(tmp_path / "s.zarr", mode="r").array_keys())
    assert {"part.row_splits", "steps.note.row_splits", "steps.words.row_splits"} <= names
    assert computed(dtf.from_zarr(tmp_path / "s.zarr")) == rows()
    episodes.to_zarr(tmp_path / "s.zarr", groups={"steps": "steps", "other": ["tokens"]}, mode="w")
    ds = dtf.from_zarr(tmp_path / "s.zarr")
    assert ds[["label", "steps/note", "steps/action"]].schema.groups == {"steps": ("steps/action", "steps/note")}
    assert ds[["label"]].schema.groups == {}
    assert ds.rows[2:].schema.groups == ds.persist().schema.groups == ds.schema.groups
    assigned = ds.assign(tokens=ds["label"])
    assert assigned.schema.groups == {"steps": MEMBERS}
    assert ds.map_blocks(lambda blocks: blocks).schema.groups == {}
    mapped = ds[["steps/note", "steps/action"]].map_blocks(dict, ds.schema.select(["steps/note", "steps/action"]))
    for same in (mapped, mapped.persist(), mapped.persist().map_blocks(dict, mapped.schema)):
        assert same.schema.groups == {"steps": ("steps/action", "steps/note")}
    assigned.to_zarr(tmp_path / "t.zarr")
    assert dtf.from_zarr(tmp_path / "t.zarr").schema.groups == {"steps": MEMBERS}
    assert computed(dtf.from_zarr(tmp_path / "t.zarr")) == rows() | {"tokens": rows()["label"]}


def test_a_schema_keeps_its_groups(tmp_path: Path) -> None:
    schema = dtf.Schema(FEATURES, groups={"steps": MEMBERS})
    for copy in (pickle.loads(pickle.dumps(schema)), dtf.Schema.from_json(schema.to_json()), schema.select(schema)):
        assert copy.groups == {"steps": MEMBERS} and copy == schema
    ds = read(tmp_path, rows())
    grouped = dtf.read_tfrecord(f"{tmp_path}/in/*.tfrecord", schema)
    assert grouped.schema.groups == {"steps": MEMBERS} and ds.schema.groups == {}
    for groups, stored in ((None, {"steps": MEMBERS}), ({}, {})):
        grouped.to_zarr(tmp_path / "s.zarr", groups=groups, mode="w")
        assert dtf.from_zarr(tmp_path / "s.zarr").schema.groups == stored


def test_an_interrupted_conversion_is_resumed_with_the_same_groups(episodes: dtf.Dataset, tmp_path: Path) -> None:
    episodes.to_zarr(tmp_path / "s.zarr", groups=GROUPS, chunks=2, compute=False)
    for groups, said in (({"steps": TWO}, "the groups of the schema was"), (None, "groups")):
        with pytest.raises(ResumeError, match=said):
            episodes.to_zarr(tmp_path / "s.zarr", groups=groups, chunks=2, resume=True)
    episodes.to_zarr(tmp_path / "s.zarr", groups=GROUPS, chunks=2, resume=True)
    assert computed(dtf.from_zarr(tmp_path / "s.zarr")) == rows()
    (tmp_path / "s.zarr/steps.row_splits/c/0").unlink()
    for name in MEMBERS:
        with pytest.raises(IncompleteStoreError, match=r"steps\.row_splits"):
            dtf.from_zarr(tmp_path / "s.zarr").rows[:1][name].compute()


@pytest.mark.slow
@settings(max_examples=max(6, settings().max_examples // 4))
@given(
    features=st.lists(any_features().filter(lambda feature: feature.ragged_rank > 0), min_size=1, max_size=4),
    counts=st.lists(st.integers(0, 5), max_size=9),
    seed=st.integers(0, 2**32),
    grid=st.sampled_from([{}, {"chunks": 2}, {"chunks": 1, "shards": 2}, {"chunks": "64 B"}]),
)
def test_groups_of_any_ragged_columns(
    features: list[Feature], counts: list[int], seed: int, grid: dict[str, Any]
) -> None:
    rng, splits = np.random.default_rng(seed), splits_of(np.array(counts, np.int64))
    named = {f"steps/{number}": feature for number, feature in enumerate(features)}
    blocks: dict[str, Block] = {}
    for name, feature in named.items():
        values: Any = np.empty(0)
        while not len(values):
            values = rows_like(feature, 30, rng).values  # type: ignore[union-attr]
        blocks[name] = RaggedBlock(take_rows(values, rng.integers(0, len(values), splits[-1])), splits)
    ds = dataset_of({**blocks, "row": np.arange(len(counts))}, {**named, "row": FEATURES["label"]}, [len(counts)])
    store = zarr.storage.MemoryStore()
    with dask.config.set(scheduler="sync"):
        ds.to_zarr(store, groups={"steps": "steps"}, **grid)
        stored = dtf.from_zarr(store)
        assert stored.schema.groups == {"steps": tuple(named)}
        expected, found = ds.compute(), stored.compute()
    for name in named:
        np.testing.assert_equal(listed(found[name]), listed(expected[name]))
    np.testing.assert_array_equal(zarr.open_group(store, mode="r")["steps.row_splits"][:], splits)


@pytest.mark.slow
def test_each_chunk_of_a_group_is_written_once(tmp_path: Path) -> None:
    columns = rows(tuple(np.random.default_rng(2).integers(0, 9, 40).tolist()))
    log, plan = tmp_path / "log", read(tmp_path, columns).plan_zarr(groups=GROUPS, chunks=3, shards=9)
    with ShuffledPool(3, 5) as pool, dask.config.set(scheduler="threads", pool=pool):
        written = plan.to_zarr(RecordingStore.at(tmp_path / "s.zarr", log, 5), compute=False)
        assert written is not None
        recorded(written, log, 5).compute()
    happened = events(log)
    writes = Counter(event.key for event in happened if event.what == "write")
    steps = {key for key in writes if key.startswith("steps.row_splits/")}
    assert set(writes.values()) == {1} and len(steps) == -(-41 // 9)
    assert not [event for event in happened if event.what == "read"]
    assert computed(dtf.from_zarr(tmp_path / "s.zarr")) == columns


def test_commands_take_and_show_groups(tmp_path: Path) -> None:
    assert "group 'sequence/dict': sequence/dict/deep/x, " in shown("info", EPISODES, "--split", "train")
    # Without --split, of the shards of all splits.
    for folder in (EPISODES, EPISODES.parent):
        text = shown("info", folder)
        assert "group 'steps': steps/action, " in text and "shards       6" in text
    document = json.loads(shown("info", EPISODES, "--json"))
    assert document["groups"]["ragged/box"] == ["ragged/box/boxes", "ragged/box/label"]
    for shard in EPISODES.glob("*-train.tfrecord-*"):
        (tmp_path / shard.name).write_bytes(shard.read_bytes())
    for name, text, options in (("features.json", "{", ["--split", "train"]), ("dataset_info.json", "[", [])):
        (tmp_path / "dataset_info.json").write_bytes((EPISODES / "dataset_info.json").read_bytes())
        (tmp_path / name).write_text(text)
        result = run("info", tmp_path, *options)
        assert (result.exit_code, "prefix 'steps': steps/action, " in result.stdout) == (0, True), result.output
        assert "Groups are unknown: " in result.stderr
    columns = [name for name in dtf.read_tfrecord(EPISODES, split="train").schema if name.startswith("steps/")]
    command = ["to-zarr", EPISODES, tmp_path / "s.zarr", "--split", "train", "--columns", ",".join(columns)]
    shown(*command, "--group", "steps")
    assert dtf.from_zarr(tmp_path / "s.zarr").schema.groups == {"steps": tuple(columns)}
    refused = run(*command, "--overwrite", "--group", "step")
    assert refused.exit_code == 1 and "did you mean 'steps'" in refused.output
