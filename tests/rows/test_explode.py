"""`Dataset.explode`: items of records as rows, compared with the lists that the records were written from."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from oracle import read_payloads, write_oracle
from oracle.messages import Example
from support.any_columns import FEATURES, dataset_of, listed, rows_like, rows_of
from support.damage import flip
from support.few import mostly_slow
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.blocks import RaggedBlock
from dask_tfrecord.errors import MemoryLimitError, ResumeError, SchemaError, UnknownFeatureError

GROUP = {"steps/action": dtf.VarLenFeature("float32", shape=(-1, 2)), "steps/reward": dtf.VarLenFeature("int64")}
FEATURES_OF_EPISODES = {**GROUP, "id": dtf.FixedLenFeature((), "int64"), "name": dtf.TextFeature()}
LENGTHS = [3, 0, 5, 1, 0, 0, 7, 2, 0]


def episode(number: int, steps: int) -> dict[str, Any]:
    """Return the values of a record with any number of steps."""
    return {
        "steps/action": [[number, step] for step in range(steps)],
        "steps/reward": [1000 * number + step for step in range(steps)],
        "id": 7 * number,
        "name": f"episode {number}",
    }


def payload(values: Mapping[str, Any]) -> bytes:
    """Serialize a record of these values."""
    action = [float(number) for pair in values["steps/action"] for number in pair]
    steps = {"steps/action": action, "steps/reward": values["steps/reward"]}
    return example(**steps, id=[values["id"]], name=[values["name"].encode()])


RECORDS = [episode(number, steps) for number, steps in enumerate(LENGTHS)]
ITEMS = [
    {name: values[name][step] for name in GROUP} | {"record": number}
    for number, values in enumerate(RECORDS)
    for step in range(LENGTHS[number])
]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write episodes to three shards; one shard holds only episodes without steps."""
    folder = tmp_path_factory.mktemp("episodes")
    for shard, (start, stop) in enumerate(pairwise([0, 4, 6, len(LENGTHS)])):
        write_oracle(folder / f"e-{shard:05d}-of-00003.tfrecord", map(payload, RECORDS[start:stop]))
    return folder


@pytest.fixture
def episodes(shards: Path) -> dtf.Dataset:
    return dtf.read_tfrecord(shards, FEATURES_OF_EPISODES)


def test_items_are_rows(episodes: dtf.Dataset, store: Path) -> None:
    """`test_dataset_states` explodes data sets before and after other operations."""
    steps = episodes.explode("steps")
    assert (steps.nrows, steps.chunks) == (18, (9, 9))
    assert dict(steps.schema) == {
        "steps/action": dtf.FixedLenFeature((2,), "float32"),
        "steps/reward": dtf.FixedLenFeature((), "int64"),
        "record": dtf.FixedLenFeature((), "int64"),
    }
    assert rows_of(steps.compute()) == rows_of(pickle.loads(pickle.dumps(steps)).compute()) == ITEMS
    assert steps.verify().ok
    assert "18 rows in 2 chunks" in repr(steps) and "steps/action" in steps._repr_html_()
    assert dask.base.tokenize(steps) == dask.base.tokenize(episodes.explode("steps"))
    for _ in range(2):
        episodes.explode("steps").to_zarr(store, chunks=4, resume=True)
    with pytest.raises(ResumeError):
        episodes.explode(["steps/reward"]).to_zarr(store, chunks=4, resume=True)


def test_rows_read_only_their_records(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    write_oracle(path, map(payload, RECORDS))
    steps = dtf.read_tfrecord(path, FEATURES_OF_EPISODES).explode("steps")
    dtf.build_index(path)
    stored, information = path.read_bytes(), path.stat()
    flip(path, *(stored.index(RECORDS[number]["name"].encode()) for number in (0, 2, 7)))
    os.utime(path, ns=(information.st_atime_ns, information.st_mtime_ns))
    # Items 8 to 15 belong to records 3 and 6.
    assert rows_of(steps.rows[8:16].compute()) == ITEMS[8:16]
    assert rows_of(steps.rows[[15, 8, 9]].compute()) == [ITEMS[item] for item in (15, 8, 9)]
    with pytest.raises(dtf.CorruptRecordError, match="record 2 "):
        steps.rows[7].compute()
    # The numbers of the records are known without them.
    assert steps["record"].compute().tolist() == [item["record"] for item in ITEMS]


def test_a_plan_counts_the_records_that_items_are_read_from(tmp_path: Path) -> None:
    peaks = []
    for lengths in ([1000] * 1000, [0] * 999 + [1_000_000]):
        values = RaggedBlock(np.zeros(1_000_000, np.float32), np.append(0, np.cumsum(lengths)))
        dtf.to_tfrecord({"x": values}, tmp_path / "a.tfrecord", mode="w")
        steps = dtf.read_tfrecord(tmp_path, {"x": dtf.VarLenFeature("float32")}).explode("x")
        peaks.append(steps.plan_zarr(chunks=1000).memory.peak_nbytes)
    # Items of the longest record twice, for each thread: with the column record, 12 bytes each.
    assert peaks[1] - peaks[0] >= 2 * 12 * (1_000_000 - 1000)


@pytest.mark.parametrize(
    "name", mostly_slow([name for name, of in FEATURES.items() if of.ragged_rank or name in ("tensor", "strings")], 3)
)
def test_every_kind_of_column(name: str) -> None:
    sizes = (7, 0, 1, 13, 4)
    feature = FEATURES[name]
    block = rows_like(feature, sum(sizes), np.random.default_rng(5))
    dataset = dataset_of({name: block, "row": np.arange(sum(sizes))}, {name: feature, "row": np.arange(0)}, sizes)
    items = dataset.explode([name], repeat=["row"])
    rows = listed(dataset[name].compute())
    # repr: NaN differs from itself.
    expected = [item for row in rows for item in row]
    found = items.compute()
    assert repr(listed(found[name])) == repr(expected)
    assert found["row"].tolist() == found["record"].tolist() == [row for row, of in enumerate(rows) for _ in of]
    assert items[name].dtype == found[name].dtype
    assert items[name].shape == found[name].shape
    assert repr(listed(items.rows[::-3].compute()[name])) == repr(expected[::-3])


def test_only_the_images_of_the_items_are_decoded(tmp_path: Path) -> None:
    images = np.random.default_rng(1).integers(0, 256, (5, 4, 3, 3), np.uint8)
    features = {"steps/image": dtf.ImageFeature((-1, 4, 3, 3)), "steps/x": dtf.VarLenFeature("int64")}
    path = tmp_path / "a.tfrecord"
    dtf.to_tfrecord({"steps/image": [images[:2], images[2:]], "steps/x": [[0, 1], [2, 3, 4]]}, path, features=features)
    messages = [Example.FromString(each) for each in read_payloads(path)]
    messages[1].features.feature["steps/image"].bytes_list.value[1] = b"no image"
    write_oracle(path, [message.SerializeToString() for message in messages])
    ds = dtf.read_tfrecord(path, features)
    steps = ds.explode("steps")
    assert steps.schema["steps/image"] == dtf.ImageFeature((4, 3, 3))
    for key in ([0, 4, 2], slice(0, 3), slice(4, 5)):
        assert (steps.rows[key].compute()["steps/image"] == images[key]).all()
    offset = 16 + len(messages[0].SerializeToString())
    for key in ([4, 3], slice(1, 4)):
        with pytest.raises(dtf.FeatureError, match="feature 'steps/image' holds") as caught:
            steps.rows[key].compute(scheduler="sync")
        assert caught.value.place is not None
        assert (caught.value.place.record, caught.value.place.offset) == (1, offset)
    with dask.config.set({"tfrecord.decode.memory-limit": 100}):
        assert (steps.rows[:2]["steps/image"].compute() == images[:2]).all()
        with pytest.raises(MemoryLimitError, match=r"record \d .*feature .steps/image. decodes to"):
            steps.rows[[0, 4, 2]]["steps/image"].compute()
    with pytest.raises(dtf.FeatureError, match="record 1"):
        ds.compute(scheduler="sync")


def test_a_record_that_several_spans_divide_is_decoded_once(tmp_path: Path) -> None:
    write_oracle(tmp_path / "a.tfrecord", [payload(episode(number, 40)) for number in range(3)])
    seen: list[int] = []

    def note(blocks: dict[str, Any]) -> dict[str, Any]:
        seen.append(len(blocks["id"]))
        return dict(blocks)

    ds = dtf.read_tfrecord(tmp_path, FEATURES_OF_EPISODES).map_blocks(note, FEATURES_OF_EPISODES)
    source = ds.explode(["steps/reward"]).as_rows().source
    assert source is not None
    seen.clear()
    spans = [(start, start + 10) for start in range(0, 120, 10)]
    found = [block["steps/reward"].tolist() for block in source.read_spans(["steps/reward"], spans)]
    assert np.concatenate(found).tolist() == [1000 * number + step for number in range(3) for step in range(40)]
    assert seen == [1, 1, 1]


def test_unequal_lengths(tmp_path: Path, shards: Path) -> None:
    wrong = episode(1, 4) | {"steps/reward": [1, 2, 3]}
    path = tmp_path / "a.tfrecord"
    write_oracle(path, [payload(episode(0, 2)), payload(wrong), payload(episode(2, 1))])
    ds = dtf.read_tfrecord(path, FEATURES_OF_EPISODES)
    offset = 16 + len(payload(episode(0, 2)))
    expected = rf"record 1 \(byte {offset}\): feature 'steps/reward' holds 3 items; expected 4, as in 'steps/action'"
    for attempt in (ds, ds.map_blocks(dict)):
        with pytest.raises(dtf.FeatureError, match=expected) as caught:
            attempt.explode("steps")
        place = caught.value.place
        assert place is not None
        assert (place.file, place.record, place.feature) == (str(path), 1, "steps/reward")
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(dtf.FeatureError, match=r"row 1: feature 'steps/reward' holds 3 items"):
        ds.persist().explode("steps")
    with pytest.raises(dtf.FeatureError, match=r"a.tfrecord.*row 1 of the chunk: feature 'steps/reward' holds 3 items"):
        dtf.read_tfrecord(path, FEATURES_OF_EPISODES, counts=None).explode("steps").compute()


PADDED = {
    "x": dtf.FixedLenSequenceFeature((), "int64", allow_missing=True),
    "x.lengths": dtf.FixedLenFeature((), "int64"),
}


@pytest.mark.parametrize("stated", [4, 9, 2**40, 2**63 - 1, -1])
def test_lengths_beyond_the_padded_steps(tmp_path: Path, stated: int) -> None:
    path = tmp_path / "a.tfrecord"
    lengths = [1, stated, 3]
    records = [example(**{"x": [11, 12, 13][:number], "x.lengths": [lengths[number - 1]]}) for number in (1, 2, 3)]
    write_oracle(path, records)
    ds = dtf.read_tfrecord(path, PADDED)
    held = f"holds 3 steps, padding included, and its length in 'x.lengths' is {stated:,}; expected 0 to 3"
    expected = rf"a.tfrecord: record 1 \(byte \d+\): feature 'x' {held}"
    assigned = ds[["x"]].assign(**{"x.lengths": np.array(lengths)})
    for rows, message in ((ds, expected), (ds.map_blocks(dict), expected), (ds.persist(), held), (assigned, held)):
        for divide in (lambda rows: rows.explode(["x"]), lambda rows: rows.windows(["x"], past=1, pad="drop")):
            with pytest.raises(dtf.FeatureError, match=message):
                divide(rows)
    uncounted = dtf.read_tfrecord(path, {**PADDED, "x": replace(PADDED["x"], length=3)}, counts=None)
    for name in ("x", "record"):
        with pytest.raises(dtf.FeatureError, match=rf"a.tfrecord.*row 1 of the chunk: feature 'x' {held}"):
            uncounted.explode(["x"], repeat=["x.lengths"])[name if name == "x" else "x.lengths"].compute()


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32"])
def test_lengths_are_integers(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "a.tfrecord"
    stored = [1.0, 2.0] if dtype == "float32" else [1, 2]
    records = [example(**{"x": [11, 12][: int(length)], "x.lengths": [length]}) for length in stored]
    write_oracle(path, records)
    ds = dtf.read_tfrecord(path, PADDED | {"x.lengths": dtf.FixedLenFeature((), dtype)})
    if dtype == "float32":
        with pytest.raises(SchemaError, match=r"'x.lengths' is FixedLenFeature\(\(\), 'float32'\), not one integer"):
            ds.explode(["x"])
        # It is a column of its own, and all steps are written.
        ds.to_tfrecord(tmp_path / "b.tfrecord")
        again = dtf.read_tfrecord(tmp_path / "b.tfrecord", ds.schema)
        assert again["x"].compute().tolist() == [[11, 0], [11, 12]]
        assert again["x.lengths"].compute().tolist() == stored
    else:
        assert ds.explode(["x"])["x"].compute().tolist() == [11, 11, 12]


def test_rows_that_change_after_they_were_counted(episodes: dtf.Dataset) -> None:
    state = {"extra": 0}

    def unstable(blocks: dict[str, Any]) -> dict[str, Any]:
        lengths = np.diff(blocks["steps/reward"].row_splits) + state["extra"]
        return {"x": RaggedBlock(np.zeros(lengths.sum()), np.append(0, np.cumsum(lengths)))}

    items = episodes.map_blocks(unstable).explode("x")
    state["extra"] = 1
    with pytest.raises(dtf.FeatureError, match=r"expected \d, as counted by explode: the rows have changed"):
        items.compute(scheduler="sync")


@pytest.mark.parametrize(
    ("group", "repeat", "kind", "message"),
    [
        ("step", (), UnknownFeatureError, "no group or column 'step'; did you mean 'steps'"),
        (["steps/actions"], (), UnknownFeatureError, "did you mean 'steps/action'"),
        ("id", (), SchemaError, r"column 'id' is FixedLenFeature\(\(\), 'int64'\): its rows do not vary in length"),
        (["steps/reward", "id"], (), SchemaError, "column 'id' is FixedLenFeature"),
        ("steps", ["nme"], UnknownFeatureError, "repeat: no column 'nme'; did you mean 'name'"),
        ("steps", ["steps/reward"], SchemaError, "'steps/reward' is in group and in repeat"),
        (["steps/reward", "steps/reward"], (), SchemaError, "can be given only once"),
        ([], (), SchemaError, "at least one column"),
        (None, (), TypeError, "group must be a name or a list of names"),
        ("steps", 3, TypeError, "repeat must be a name or a list of names"),
    ],
)
def test_wrong_arguments(episodes: dtf.Dataset, group: Any, repeat: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        episodes.explode(group, repeat=repeat)


def test_names_that_are_taken(episodes: dtf.Dataset, shards: Path) -> None:
    classes = {"steps/reward": ["cat", "dog"], "id": ["a", "b"], "name": ["x"]}
    ds = dtf.read_tfrecord(shards, dtf.Schema(FEATURES_OF_EPISODES, classes=classes))
    kept = ds.explode("steps", repeat="id").schema.classes
    assert {name: list(names) for name, names in kept.items()} == {name: classes[name] for name in kept}
    assert list(kept) == ["steps/reward", "id"]
    numbered = episodes.assign(record=np.arange(len(LENGTHS)))
    with pytest.raises(SchemaError, match="'record' would be replaced"):
        numbered.explode("steps", repeat=["record"])
    assert numbered.explode("steps")["record"].compute().max() == 7
    padded = dtf.Dataset.from_arrays({"a": np.zeros((2, 3))}).map_blocks(
        dict, {"a": dtf.FixedLenSequenceFeature((), "float64", length=3)}
    )
    with pytest.raises(SchemaError, match=r"'a' is padded, and there is no column 'a\.lengths'"):
        padded.explode("a")


def test_sparse_values_are_items(tmp_path: Path) -> None:
    write_oracle(tmp_path / "a.tfrecord", [example(ix=[5, 2], val=[0.5, 0.25]), example()])
    ds = dtf.read_tfrecord(tmp_path, {"s": dtf.SparseFeature("ix", "val", "float32", 9)})
    found = ds.explode("s").compute()
    assert {name: column.tolist() for name, column in found.items()} == {
        "s.indices": [[2], [5]],
        "s.values": [0.25, 0.5],
        "record": [0, 0],
    }


def test_lost_records_are_filled(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    write_oracle(path, map(payload, RECORDS))
    dtf.build_index(path)
    flip(path, path.read_bytes().index(b"episode 2"))
    os.utime(path.with_name("a.tfrecord.idx"))
    features = {"steps/reward": dtf.VarLenFeature("int64"), "id": dtf.FixedLenFeature((), "int64", -1)}
    ds = dtf.read_tfrecord(path, features, errors="fill", fill_values={"steps/reward": [-5, -6]})
    found = ds.explode("steps", repeat="id").compute()
    assert found["steps/reward"][3:5].tolist() == [-5, -6]
    assert found["id"][3:5].tolist() == [-1, -1]
    assert found["record"][3:6].tolist() == [2, 2, 3]
    assert not ds.explode("steps/reward").verify().ok


def test_times_are_padded_with_times(tmp_path: Path) -> None:
    write_oracle(tmp_path / "a", [example(x=[1, 2]), example(x=[3])])
    ds = dtf.read_tfrecord(tmp_path / "a", {"x": dtf.VarLenFeature("datetime64[s]")})
    found = [
        ds.padded("x", 2, value=value).compute()[1, 1]
        for value in (np.datetime64("NaT", "s"), np.datetime64(5, "s"), 7)
    ]
    assert np.isnat(found[0]) and [each.astype(int).item() for each in found[1:]] == [5, 7]
    for value in (np.datetime64(5, "ms"), np.timedelta64(5, "s"), "5"):
        with pytest.raises(ValueError, match=r"does not fit datetime64\[s\], the dtype of 'x'"):
            ds.padded("x", 2, value=value)
