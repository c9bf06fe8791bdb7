"""Batches: the order of rows, padding, states, errors and threads, against the rows that `compute` returns."""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bits import assert_blocks_equal
from support.numbered_shards import write_shards

import dask_tfrecord as dtf
from dask_tfrecord.errors import FeatureError, ResumeError, SchemaError

ROWS, SHARDS = 100, 3
TOTAL = ROWS * SHARDS
FEATURES = {
    "label": dtf.FixedLenFeature((), "int64"),
    "tokens": dtf.VarLenFeature("int64"),
    "name": dtf.FixedLenFeature((), "bytes"),
}
KINDS: list[dict[str, Any]] = [
    {"shuffle": False},
    {"shuffle": "window", "seed": 3, "window": 40},
    {"shuffle": "full", "seed": 3, "window": 70},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("batches")
    write_shards(folder, SHARDS, ROWS)
    return folder


@pytest.fixture(scope="module")
def ds(folder: Path) -> dtf.Dataset:
    return dtf.read_tfrecord(str(folder / "*.tfrecord"), FEATURES, chunks=23)


def labels(batches: Iterator[dict[str, Any]]) -> list[int]:
    return [int(label) for batch in batches for label in batch["label"]]


def assert_same_batch(batch: dict[str, Any], other: dict[str, Any]) -> None:
    assert_blocks_equal(batch, {name: np.asarray(block) for name, block in other.items()})


def reading_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("tfrecord-batches")]


def wait_for_end_of_threads() -> None:
    limit = time.monotonic() + 60
    while reading_threads() and time.monotonic() < limit:
        time.sleep(0.01)
    assert not reading_threads()


@given(data=st.data())
def test_every_row_occurs_once_in_each_epoch_across_shards(ds: dtf.Dataset, data: st.DataObject) -> None:
    rows = data.draw(st.integers(0, TOTAL))
    size, number = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 5))
    shuffle = data.draw(st.sampled_from([False, "window", "full"]))
    window = data.draw(st.none() | st.integers(1, 2 * TOTAL)) if shuffle else None
    drop = data.draw(st.booleans())
    options = {"shuffle": shuffle, "window": window, "seed": data.draw(st.integers(0, 9)), "drop_remainder": drop}
    part = ds.rows[:rows][["label"]]
    for epochs in (1, 2):
        found = []
        counts = []
        for index in range(number):
            batches = part.batches(size, shard=(index, number), epochs=epochs, **options)
            made = list(batches)
            counts.append(len(made))
            assert len(made) == (batches.batches_per_epoch or 0) * epochs
            sizes = [len(batch["label"]) for batch in made]
            assert all(each == size for each in sizes) if drop else sum(sizes) % max(epochs, 1) == 0
            found.append(labels(iter(made)))
        if drop:
            assert set(counts) == {rows // number // size * epochs}
        else:
            assert max(map(len, found)) - min(map(len, found)) <= epochs
            assert sorted(label for each in found for label in each) == sorted([*range(rows)] * epochs)


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_the_order_depends_on_the_seed_alone(ds: dtf.Dataset, options: dict[str, Any]) -> None:
    made = []
    for workers in (1, 2, 5):
        with dask.config.set(scheduler="threads", num_workers=workers):
            made.append(list(ds.batches(32, epochs=2, prefetch=workers, **options)))
    with dask.config.set(scheduler="synchronous"):
        made.append(list(ds.batches(32, epochs=2, **options)))
    for other in made[1:]:
        for one, same in zip(made[0], other, strict=True):
            assert list(one) == ["label", "tokens", "name"]
            assert_same_batch(one, same)
    order = labels(iter(made[0]))
    first, second = order[:TOTAL], order[TOTAL:]
    assert sorted(first) == sorted(second) == list(range(TOTAL))
    if options["shuffle"]:
        assert first != second != list(range(TOTAL))
        assert labels(ds.batches(32, **{**options, "seed": 4})) != first
    else:
        assert first == second == list(range(TOTAL))
    # Whole rows move, with the values of `compute`.
    expected = ds.compute()
    for batch in made[0]:
        assert_same_batch(batch, {name: column[batch["label"]] for name, column in expected.items()})


def test_the_order_of_a_release_is_that_of_the_next_one(ds: dtf.Dataset) -> None:
    # States of older releases continue with these orders: change the version of the states with them.
    assert labels(ds.rows[:8].batches(8, shuffle="full", seed=1)) == [0, 2, 7, 5, 4, 3, 1, 6]
    mixed = labels(ds.rows[:30].batches(8, shuffle="window", seed=1, window=4))
    assert (mixed[:5], mixed[-7:]) == ([1, 2, 0, 3, 4], [24, 23, 25, 28, 26, 27, 29])
    # Seed 4 begins with the second chunk.
    assert labels(ds.rows[:30].batches(8, shuffle="window", seed=4, window=1))[:3] == [23, 24, 25]


def test_rows_of_a_window_move_by_less_than_the_window(ds: dtf.Dataset) -> None:
    one_chunk = dtf.read_tfrecord(ds.origin["files"], FEATURES, chunks=TOTAL)[["label"]]
    order = np.array(labels(one_chunk.batches(50, shuffle="window", seed=0, window=30)))
    moved = np.abs(order - np.arange(TOTAL))
    assert 0 < moved.max() < 30
    assert (moved > 5).mean() > 0.3


def test_a_permutation_is_uniform(ds: dtf.Dataset) -> None:
    few = ds.rows[:4][["label"]]
    found = {tuple(labels(few.batches(4, shuffle="full", seed=seed))) for seed in range(300)}
    assert len(found) == 24


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_states_continue_exactly(ds: dtf.Dataset, options: dict[str, Any]) -> None:
    settings = {"epochs": 2, "pad": {"tokens": None}, **options}
    whole = list(ds.batches(48, **settings))
    for stop in range(len(whole) + 1):
        with ds.batches(48, **settings) as batches:
            for _ in range(stop):
                next(batches)
            state = json.loads(json.dumps(batches.state_dict()))
            copy = pickle.loads(pickle.dumps(batches))
        again = ds.batches(48, **{**settings, "prefetch": 1})
        again.load_state_dict(state)
        for rest in (list(again), list(copy)) if stop in (3, 8) else (list(again),):
            assert len(rest) == len(whole) - stop
            for one, other in zip(rest, whole[stop:], strict=True):
                assert_same_batch(one, other)


def test_a_state_of_a_random_seed_has_the_seed(ds: dtf.Dataset) -> None:
    with ds.batches(10, shuffle="full") as first:
        next(first)
        state = first.state_dict()
        again = ds.batches(10, shuffle="full")
        again.load_state_dict(state)
        rest = labels(first)
    assert labels(again) == rest != labels(ds.batches(10, shuffle="full"))[10:]
    assert again.state_dict()["options"]["seed"] == state["options"]["seed"]


SCRIPT = """
import json, sys
import dask_tfrecord as dtf
features = {"label": dtf.FixedLenFeature((), "int64"), "tokens": dtf.VarLenFeature("int64"),
            "name": dtf.FixedLenFeature((), "bytes")}
ds = dtf.read_tfrecord(sys.argv[1] + "/*.tfrecord", features, chunks=23)
batches = ds.batches(48, shuffle="window", seed=3, window=40)
batches.load_state_dict(json.loads(sys.argv[2]))
print(json.dumps([batch["label"].tolist() for batch in batches]))
# The program ends without closing this iterator.
other = ds.batches(3, epochs=None)
next(other)
"""


@pytest.mark.integration
def test_a_state_continues_in_another_process(ds: dtf.Dataset, folder: Path) -> None:
    with ds.batches(48, shuffle="window", seed=3, window=40) as batches:
        next(batches)
        next(batches)
        state = json.dumps(batches.state_dict())
        command = [sys.executable, "-W", "error", "-c", SCRIPT, str(folder), state]
        rest = [batch["label"].tolist() for batch in batches]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == rest


def test_states_of_other_data_or_options_are_refused(ds: dtf.Dataset, tmp_path: Path) -> None:
    options: dict[str, Any] = {"shuffle": "window", "seed": 3, "window": 40, "pad": {"tokens": 20}}
    state = ds.batches(10, **options).state_dict()
    for changed in (
        {"seed": 4},
        {"window": 41},
        {"drop_remainder": True},
        {"shard": (0, 2)},
        {"pad": None},
        {"pad": {"tokens": dtf.Pad(20, -1)}},
        {"shuffle": "full"},
    ):
        with pytest.raises(ResumeError, match=f"option {next(iter(changed))} was"):
            ds.batches(10, **{**options, **changed}).load_state_dict(state)
    with pytest.raises(ResumeError, match="option batch_size was 10 and now is 11"):
        ds.batches(11, **options).load_state_dict(state)
    write_shards(tmp_path, SHARDS, ROWS, most_tokens=5)
    other = dtf.read_tfrecord(str(tmp_path / "*.tfrecord"), FEATURES, chunks=23)
    for data, message in (
        (other, "the files"),
        (ds.rows[1:], "the number of rows"),
        (ds.rows[::-1], r"rows\[…\]"),
        (ds[["label", "tokens"]], "the features of the columns"),
        (ds.map_blocks(lambda blocks: blocks), "the functions"),
        (dtf.read_tfrecord(ds.origin["files"], FEATURES, chunks=50), "the chunks"),
    ):
        with pytest.raises(ResumeError, match=message):
            data.batches(10, **options).load_state_dict(state)
    longer = ds.batches(10, epochs=None, prefetch=9, **options)
    longer.load_state_dict(state)


WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    1,
    2,
    10**6,
    10**30,
    0.5,
    "x",
    b"x",
    [],
    [1],
    {},
    {5: 5},
    np.int64(1),
    np.arange(2),
    {1},
)


@pytest.mark.parametrize("counts", ["auto", None])
def test_a_state_that_was_changed_is_refused(folder: Path, counts: Any) -> None:
    def changed(value: Any) -> Iterator[Any]:
        """Yield a value with each of its parts replaced or left out."""
        yield from (wrong for wrong in WRONG if type(wrong) is not type(value) or repr(wrong) != repr(value))
        if isinstance(value, dict):
            for name in value:
                yield from ({**value, name: part} for part in changed(value[name]))
                yield {other: part for other, part in value.items() if other != name}

    ds = dtf.read_tfrecord(str(folder / "*.tfrecord"), FEATURES, counts=counts, chunks=70 if counts else "4 kiB")
    batches = ds.batches(10, shuffle="window", window=20, pad={"tokens": None})
    next(batches)
    state = batches.state_dict()
    # The state belongs to the caller.
    batches.state_dict()["options"].clear()
    wrong = list(changed(state))
    assert len(wrong) > 300
    other = ds.batches(10, shuffle="window", window=20, pad={"tokens": None})
    first = labels(other)
    for each in wrong:
        with pytest.raises((ValueError, ResumeError), match="state"):
            other.load_state_dict(each)
    with pytest.raises(ResumeError, match="version 2"):
        other.load_state_dict({**state, "version": 2})
    other.load_state_dict(json.loads(json.dumps(state)))
    assert labels(other) == labels(batches)
    assert sorted(first) == list(range(TOTAL))


def test_padding_is_that_of_padded_batch(ds: dtf.Dataset) -> None:
    rows = ds.compute()["tokens"]
    for pad, length in ((None, None), (20, 20), (dtf.Pad(20, -1), 20), (dtf.Pad(3, 7, truncate=True), 3), (16, 16)):
        value = pad.value if isinstance(pad, dtf.Pad) else 0
        for options in KINDS:
            for batch in ds.batches(13, pad={"tokens": pad}, **options):
                given = [rows[label] for label in batch["label"]]
                longest = max(map(len, given)) if length is None else length
                expected = np.full((len(given), longest), value, np.int64)
                for out, row in zip(expected, given, strict=True):
                    out[: min(len(row), longest)] = row[:longest]
                assert batch["tokens"].dtype == np.int64
                np.testing.assert_array_equal(batch["tokens"], expected)
    with pytest.raises(FeatureError, match=r"part-0\.tfrecord: record 1: column 'tokens' has 13 values where"):
        list(ds.batches(13, pad={"tokens": 5}))


def test_padding_of_nested_rows_and_bytes(tmp_path: Path) -> None:
    nested = dtf.RaggedFeature("float32", value_key="v", partitions=[dtf.RaggedFeature.RowLengths("n")])
    features = {
        "nested": nested,
        "words": dtf.VarLenFeature("bytes"),
        "boxes": dtf.VarLenFeature("float32", shape=(-1, 2)),
    }
    rows = {
        "nested": [[[1, 2], []], [], [[3], [4, 5, 6], [7]]],
        "words": [[b"a"], [], [b"b", b"cc"]],
        "boxes": [[[1, 2]], [[3, 4], [5, 6]], []],
    }
    ds = dtf.read_tfrecord(str(_nested_shard(tmp_path, rows)), features)
    (batch,) = ds.batches(
        3, pad={"nested": (None, dtf.Pad().length), "words": None, "boxes": dtf.Pad(1, 9, truncate=True)}
    )
    assert batch["nested"].tolist() == [
        [[1, 2, 0], [0, 0, 0], [0, 0, 0]],
        [[0, 0, 0], [0, 0, 0], [0, 0, 0]],
        [[3, 0, 0], [4, 5, 6], [7, 0, 0]],
    ]
    assert batch["words"].tolist() == [[b"a", b""], [b"", b""], [b"b", b"cc"]]
    assert batch["boxes"].tolist() == [[[1, 2]], [[3, 4]], [[9, 9]]]
    (batch,) = ds.batches(3, pad={"nested": dtf.Pad((2, 2), -1, truncate=True)})
    assert batch["nested"].tolist() == [[[1, 2], [-1, -1]], [[-1, -1], [-1, -1]], [[3, -1], [4, 5]]]
    with pytest.raises(FeatureError, match=r"record 2: column 'nested' has 3 values"):
        list(ds.batches(3, pad={"nested": (3, 2)}))


def _nested_shard(folder: Path, rows: dict[str, list[Any]]) -> Path:
    path = folder / "nested.tfrecord"
    with dtf.RecordWriter(path) as writer:
        for nested, words, boxes in zip(*rows.values(), strict=True):
            message = dtf.messages.Example()
            feature = message.features.feature
            feature["v"].float_list.value.extend(value for row in nested for value in row)
            feature["n"].int64_list.value.extend(map(len, nested))
            feature["words"].bytes_list.value.extend(words)
            feature["boxes"].float_list.value.extend(value for box in boxes for value in box)
            writer.write(message.SerializeToString())
    return path


def test_ragged_columns_are_blocks_of_map_blocks(ds: dtf.Dataset) -> None:
    batch = next(ds.batches(5))
    assert isinstance(batch["tokens"], dtf.RaggedBlock)
    assert batch["tokens"].row_splits[0] == 0
    assert batch["name"].tolist() == [b"row %d" % row for row in range(5)]


def variants(ds: dtf.Dataset, folder: Path) -> dict[str, dtf.Dataset]:
    """Return data sets of the same labels and tokens with every backing."""
    ds[["label", "tokens"]].to_zarr(folder / "store.zarr", chunks=60)
    squares = ds["label"].compute() ** 2
    return {
        "rows": ds.rows[np.arange(TOTAL)],
        "reversed twice": ds.rows[::-1].rows[::-1],
        "map_blocks": ds.map_blocks(lambda blocks: {**blocks, "more": blocks["label"] + 1}),
        "assign": ds.assign(squares=squares),
        "persist": ds.persist(scheduler="threads"),
        "from_zarr": dtf.from_zarr(folder / "store.zarr"),
        "from_arrays": dtf.Dataset.from_arrays({"label": np.arange(TOTAL)}),
    }


def test_every_backing(ds: dtf.Dataset, tmp_path: Path) -> None:
    rows = ds.compute()["tokens"]
    for backing, data in variants(ds, tmp_path).items():
        for options in KINDS:
            pad = {"tokens": 17} if "tokens" in data else None
            whole = list(data.batches(64, pad=pad, **options))
            assert sorted(labels(iter(whole))) == list(range(TOTAL)), backing
            for batch in whole:
                for row, label in enumerate(batch["label"]):
                    if pad:
                        assert batch["tokens"][row, : len(rows[label])].tolist() == rows[label].tolist(), backing
                    if "squares" in batch:
                        assert batch["squares"][row] == label**2
                # The arrays belong to the caller.
                batch["label"][:] = -1
            with data.batches(64, pad=pad, **options) as batches:
                next(batches)
                again = data.batches(64, pad=pad, **options)
                again.load_state_dict(batches.state_dict())
                assert labels(again) == labels(batches), backing
        assert data["label"].compute().tolist() == list(range(TOTAL)), backing


def test_exploded_rows(ds: dtf.Dataset) -> None:
    steps = ds.explode(["tokens"], repeat=["label"])
    expected = steps.compute()
    pairs = sorted(zip(expected["label"].tolist(), expected["tokens"].tolist(), strict=True))
    assert len(pairs) > TOTAL
    for options in KINDS:
        found = list(steps.batches(100, **options))
        rows = [pair for batch in found for pair in zip(batch["label"].tolist(), batch["tokens"].tolist(), strict=True)]
        assert sorted(rows) == pairs
    assert steps.as_sequence()[-1]["tokens"] == expected["tokens"][-1]


def test_rows_that_are_not_counted(folder: Path) -> None:
    ds = dtf.read_tfrecord(str(folder / "*.tfrecord"), FEATURES, counts=None, chunks="4 kiB")
    assert ds.npartitions > 3
    for data in (ds, ds.persist(scheduler="threads")):
        for options in ({"shuffle": False}, {"shuffle": "window", "seed": 1, "window": 50}):
            whole = list(data.batches(32, epochs=2, pad={"tokens": None}, **options))
            order = labels(iter(whole))
            assert sorted(order[:TOTAL]) == sorted(order[TOTAL:]) == list(range(TOTAL))
            assert (order[:TOTAL] == list(range(TOTAL))) == (not options["shuffle"])
            for stop in (1, 5, 10, 11):
                batches = data.batches(32, epochs=2, pad={"tokens": None}, **options)
                with batches:
                    for _ in range(stop):
                        next(batches)
                again = data.batches(32, epochs=2, pad={"tokens": None}, **options)
                again.load_state_dict(batches.state_dict())
                assert labels(again) == labels(iter(whole[stop:]))
            assert batches.batches_per_epoch is None
    for refused in ({"shuffle": "full"}, {"shard": (0, 2)}):
        with pytest.raises(ValueError, match="counts='auto'"):
            ds.batches(32, **refused)
    with pytest.raises(ValueError, match="counts='auto'"):
        ds.as_sequence()


@pytest.mark.parametrize(
    ("options", "damaged"), [*((options, 137) for options in KINDS), (KINDS[0], 0), (KINDS[0], 9)], ids=str
)
def test_an_error_of_a_record_is_raised_at_its_batch(
    folder: Path, tmp_path: Path, options: dict[str, Any], damaged: int
) -> None:
    for path in folder.glob("*.tfrecord"):
        data = path.read_bytes()
        (tmp_path / path.name).write_bytes(data.replace(b"row %d" % damaged, b"ROW %d" % damaged))
    ds = dtf.read_tfrecord(str(tmp_path / "*.tfrecord"), FEATURES, chunks=50)
    order = labels(dtf.read_tfrecord(str(folder / "*.tfrecord"), FEATURES, chunks=50).batches(10, **options))
    batches = ds.batches(10, **options)
    good = order.index(damaged) // 10
    for number in range(good):
        assert next(batches)["label"].tolist() == order[10 * number : 10 * number + 10]
    for _ in range(2):
        # The iterator stays at the batch.
        message = rf"part-{damaged // ROWS}\.tfrecord: record {damaged % ROWS} "
        with pytest.raises(dtf.CorruptRecordError, match=message):
            next(batches)
        assert batches.state_dict()["position"]["batch"] == good
    wait_for_end_of_threads()


def test_threads_end_with_the_iterator(ds: dtf.Dataset) -> None:
    wait_for_end_of_threads()
    for options in KINDS:
        batches = ds.batches(7, epochs=None, **options)
        assert not reading_threads()
        next(batches)
        assert reading_threads()
        batches.close()
        assert not reading_threads()
        # It continues after close.
        assert len(next(batches)["label"]) == 7
        del batches
        gc.collect()
        wait_for_end_of_threads()
        list(ds.batches(50, **options))
        assert not reading_threads()
        for _ in ds.batches(7, epochs=None, **options):
            break
        gc.collect()
        wait_for_end_of_threads()


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals of threads")
def test_an_interrupt_stops_the_threads(ds: dtf.Dataset) -> None:
    entered, released = threading.Event(), threading.Event()

    def wait(blocks: dict[str, Any]) -> dict[str, Any]:
        if len(blocks["label"]):
            entered.set()
            released.wait(60)
        return blocks

    def interrupt() -> None:
        entered.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.1)
        released.set()

    # Dense columns: no row is read before the first batch.
    batches = ds[["label"]].map_blocks(wait).batches(10)
    other = threading.Thread(target=interrupt)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    other.join()
    assert not reading_threads()
    assert labels(batches) == list(range(TOTAL))


def test_an_interrupt_while_the_threads_start_stops_them(ds: dtf.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    start, entered = threading.Thread.start, threading.Event()

    def enter(blocks: dict[str, Any]) -> dict[str, Any]:
        entered.set()
        return blocks

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "tfrecord-batches":
            assert entered.wait(60)
            raise KeyboardInterrupt

    batches = ds[["label"]].map_blocks(enter).batches(10)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
    assert not reading_threads()
    assert labels(batches) == list(range(TOTAL))


def test_close_in_another_thread_ends_a_waiting_caller(ds: dtf.Dataset) -> None:
    entered, released = threading.Event(), threading.Event()

    def wait(blocks: dict[str, Any]) -> dict[str, Any]:
        if len(blocks["label"]):
            entered.set()
            released.wait(60)
        return blocks

    def close() -> None:
        entered.wait(60)
        closing = threading.Thread(target=batches.close)
        closing.start()
        time.sleep(0.1)
        released.set()
        closing.join()

    batches = ds[["label"]].map_blocks(wait).batches(10, epochs=None)
    other = threading.Thread(target=close)
    other.start()
    # The batch that is being made, or none.
    made = next(batches, None)
    assert made is None or made["label"].tolist() == list(range(10))
    other.join()
    batches.close()
    wait_for_end_of_threads()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .*is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own(ds: dtf.Dataset) -> None:
    batches = ds.batches(16, shuffle="full", seed=1)
    next(batches)
    expected = labels(ds.batches(16, shuffle="full", seed=1))[16:]
    process = os.fork()
    if process == 0:
        # os._exit skips the clean-up of pytest.
        try:
            os._exit(0 if labels(batches) == expected else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert labels(batches) == expected


def test_options_are_checked(ds: dtf.Dataset) -> None:
    for options, message in (
        ({"batch_size": 0}, "batch_size is at least 1; got 0"),
        ({"batch_size": 2.0}, "batch_size is an int"),
        ({"shuffle": True}, "shuffle is False"),
        ({"shuffle": "yes"}, "shuffle is False"),
        ({"epochs": 0}, "epochs is at least 1"),
        ({"prefetch": 0}, "prefetch is at least 1"),
        ({"seed": -1}, "seed is at least 0"),
        ({"window": 5}, "window= is an option of"),
        ({"shuffle": "window", "window": 0}, "window is 1 to"),
        ({"drop_remainder": 1}, "drop_remainder is True or False"),
        ({"shard": 3}, "shard is a pair"),
        ({"shard": (2, 2)}, "the index of a shard is 0 to 1; got 2"),
        ({"shuffle": "full", "shard": (0, 2)}, "the same seed"),
        ({"pad": "tokens"}, "pad is a mapping"),
        ({"pad": {"token": None}}, "no column 'token'; did you mean 'tokens'"),
        ({"pad": {"label": 3}}, "of one shape in all rows"),
        ({"pad": {"tokens": -1}}, "non-negative"),
        ({"pad": {"tokens": (1, 2)}}, "has 1 levels"),
        ({"pad": {"tokens": dtf.Pad(3, 0.5)}}, "0.5"),
        ({"pad": {"tokens": dtf.Pad(3, truncate=1)}}, "truncate"),  # type: ignore[arg-type]
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            ds.batches(**{"batch_size": 4, **options})
    with pytest.raises(SchemaError, match="at least one column"):
        ds[[]].batches(2)
    assert list(ds.rows[:0].batches(3, epochs=None)) == []
    assert list(ds.rows[:2].batches(3, epochs=None, drop_remainder=True)) == []


def test_a_sequence_of_rows(ds: dtf.Dataset, tmp_path: Path) -> None:
    expected = ds.compute()
    for data in (ds, ds.persist(scheduler="threads"), ds.rows[np.arange(TOTAL)], ds.map_blocks(dict)):
        rows = data.as_sequence()
        copy = pickle.loads(pickle.dumps(rows))
        assert len(rows) == len(copy) == TOTAL
        for sequence in (rows, copy):
            for index in (0, 41, -1, np.int64(199), -TOTAL):
                row = sequence[index]
                assert {name: type(value) for name, value in row.items()} == {
                    "label": np.int64,
                    "tokens": np.ndarray,
                    "name": bytes,
                }
                assert row["label"] == expected["label"][index]
                assert row["name"] == expected["name"][index]
                np.testing.assert_array_equal(row["tokens"], expected["tokens"][index])
            several = [5, 250, 5, -1, 0]
            assert [row["label"] for row in sequence.__getitems__(several)] == [5, 250, 5, TOTAL - 1, 0]
            assert sequence.__getitems__([]) == []
        for index in (TOTAL, -TOTAL - 1):
            with pytest.raises(IndexError, match="out of bounds for 300 rows"):
                rows[index]
        for index in ("label", 1.0, slice(2)):
            with pytest.raises(TypeError):
                rows[index]  # type: ignore[index]
    assert "300 rows: label, tokens, name" in repr(rows)
    assert [row["label"] for row in ds.rows[:3].as_sequence()] == [0, 1, 2]
    text = dtf.read_tfrecord(ds.origin["files"], {"name": dtf.TextFeature()}).as_sequence()
    assert text[3]["name"] == "row 3"


TENSORFLOW = """
import sys
import numpy as np
import tensorflow as tf

spec = {"tokens": tf.io.VarLenFeature(tf.int64), "name": tf.io.FixedLenFeature([], tf.string)}
records = tf.data.TFRecordDataset([f"{sys.argv[1]}/part-{number}.tfrecord" for number in range(3)])
parsed = records.map(lambda record: tf.sparse.to_dense(tf.io.parse_single_example(record, spec)["tokens"]))
arrays = {}
for case, (length, value) in enumerate([(None, 0), (17, 0), (20, -1)]):
    batches = parsed.padded_batch(13, padded_shapes=[length], padding_values=tf.constant(value, tf.int64))
    arrays |= {f"{case}-{number}": batch.numpy() for number, batch in enumerate(batches)}
np.savez(sys.argv[2], **arrays)
"""


@pytest.mark.tensorflow
def test_padding_equals_padded_batch_of_tensorflow(
    ds: dtf.Dataset, folder: Path, tensorflow: str, tmp_path: Path
) -> None:
    path = tmp_path / "batches.npz"
    done = subprocess.run([tensorflow, "-c", TENSORFLOW, folder, path], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    expected = np.load(path)
    for case, pad in enumerate([None, 17, dtf.Pad(20, value=-1)]):
        batches = list(ds.batches(13, pad={"tokens": pad}))
        assert len(batches) == sum(name.startswith(f"{case}-") for name in expected)
        for number, batch in enumerate(batches):
            assert_same_batch({"tokens": batch["tokens"]}, {"tokens": expected[f"{case}-{number}"]})


@pytest.mark.slow
@pytest.mark.integration
def test_chunks_on_a_cluster(ds: dtf.Dataset, client: Any) -> None:
    kept = ds.persist()
    for options in KINDS:
        assert sorted(labels(kept.batches(32, **options))) == list(range(TOTAL))
        # Without a cluster the order is the same.
        with dask.config.set(scheduler="threads"):
            expected = labels(ds.batches(32, **options))
        if options["shuffle"] != "window":
            assert labels(kept.batches(32, **options)) == expected
    assert kept.as_sequence()[-1]["name"] == b"row 299"


MEMORY = """
import sys
import numpy as np
import dask_tfrecord as dtf

def resident():
    for line in open("/proc/self/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024

features = {"label": dtf.FixedLenFeature((), "int64"), "tokens": dtf.VarLenFeature("int64")}
ds = dtf.read_tfrecord(sys.argv[1] + "/*.tfrecord", features)
for shuffle in (False, "window", "full"):
    seen = []
    with ds.batches(64, shuffle=shuffle, epochs=20, pad={"tokens": None}) as batches:
        for batch in batches:
            if len(seen) < batches.epoch:
                seen.append(resident())
    print(shuffle, [round(each) for each in seen])
    assert len(seen) == 20
    # Single values are larger while a unit is exchanged.
    assert np.median(seen[10:]) < np.median(seen[:10]) + 15, (shuffle, seen)
"""


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_does_not_grow_over_epochs(tmp_path: Path) -> None:
    # About 25 MB decoded: ten epochs that each keep a tenth of it would exceed the limit.
    write_shards(tmp_path, 2, 6000, most_tokens=500)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
