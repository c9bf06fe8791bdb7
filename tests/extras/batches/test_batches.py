"""Batches: the order of rows, padding, states, errors and threads, against the rows that `compute` returns."""

from __future__ import annotations

import abc
import gc
import json
import os
import pickle
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bits import assert_blocks_equal
from support.few import mostly_slow
from support.numbered_shards import write_shards
from support.programs import run_python
from support.waiting import in_background, wait_until

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
    dtf.read_tfrecord(str(folder / "*.tfrecord"), FEATURES).to_zarr(folder / "store.zarr", chunks=60)
    return folder


def opened(folder: Path, **options: Any) -> dtf.Dataset:
    return dtf.read_tfrecord(str(folder / "*.tfrecord"), FEATURES, **{"chunks": 23, **options})


@pytest.fixture(scope="module")
def ds(folder: Path) -> dtf.Dataset:
    return opened(folder)


def labels(batches: Iterable[dict[str, Any]]) -> list[int]:
    return [int(label) for batch in batches for label in batch["label"]]


def assert_same_batch(batch: dict[str, Any], other: dict[str, Any]) -> None:
    assert_blocks_equal(batch, {name: np.asarray(block) for name, block in other.items()})


def reading_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("tfrecord-batches")]


# --------------------------------------------------------------------------------------------------------------- order


@pytest.mark.filterwarnings("ignore:batches. drop_remainder leaves no batch:UserWarning")
@given(data=st.data())
def test_every_row_occurs_once_in_each_epoch_across_shards(ds: dtf.Dataset, data: st.DataObject) -> None:
    rows = data.draw(st.integers(0, TOTAL))
    size, number = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 5))
    shuffle = data.draw(st.sampled_from([False, "window", "full"]))
    window = data.draw(st.none() | st.integers(1, 2 * TOTAL)) if shuffle else None
    drop, epochs = data.draw(st.booleans()), data.draw(st.integers(1, 2))
    options = {"shuffle": shuffle, "window": window, "seed": data.draw(st.integers(0, 9)), "drop_remainder": drop}
    part = ds.rows[:rows][["label"]]
    found, counts = [], []
    for index in range(number):
        batches = part.batches(size, shard=(index, number), epochs=epochs, **options)
        made = list(batches)
        counts.append(len(made))
        assert len(made) == (batches.batches_per_epoch or 0) * epochs
        sizes = [len(batch["label"]) for batch in made]
        assert all(each == size for each in sizes) if drop else sum(sizes) % epochs == 0
        found.append(labels(made))
    if drop:
        assert set(counts) == {rows // number // size * epochs}
    else:
        assert max(map(len, found)) - min(map(len, found)) <= epochs
        assert sorted(label for each in found for label in each) == sorted([*range(rows)] * epochs)


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_the_order_depends_on_the_seed_alone(ds: dtf.Dataset, options: dict[str, Any]) -> None:
    made = []
    for settings in ({"num_workers": 1}, {"num_workers": 5}, {"scheduler": "synchronous"}):
        with dask.config.set({"scheduler": "threads", **settings}):
            made.append(list(ds.batches(32, epochs=2, prefetch=settings.get("num_workers", 4), **options)))
    for other in made[1:]:
        for one, same in zip(made[0], other, strict=True):
            assert list(one) == list(FEATURES)
            assert_same_batch(one, same)
    order, ascending = labels(made[0]), list(range(TOTAL))
    first, second = order[:TOTAL], order[TOTAL:]
    assert sorted(first) == sorted(second) == ascending
    if options["shuffle"]:
        assert first != second != ascending
        assert labels(ds.batches(32, **{**options, "seed": 4})) != first
    else:
        assert first == second == ascending


def test_the_order_of_a_release_is_that_of_the_next_one(ds: dtf.Dataset) -> None:
    # States of older releases continue with these orders: change the version of the states with them.
    assert labels(ds.rows[:8].batches(8, shuffle="full", seed=1)) == [0, 2, 7, 5, 4, 3, 1, 6]
    mixed = labels(ds.rows[:30].batches(8, shuffle="window", seed=1, window=4))
    assert (mixed[:5], mixed[-7:]) == ([1, 2, 0, 3, 4], [24, 23, 25, 28, 26, 27, 29])
    # Seed 4 begins with the second chunk.
    assert labels(ds.rows[:30].batches(8, shuffle="window", seed=4, window=1))[:3] == [23, 24, 25]


# ---------------------------------------------------------------------------------------------------- backings, states


def with_more(blocks: dict[str, Any]) -> dict[str, Any]:
    return {**blocks, "more": blocks["label"] + 1}


BACKINGS: dict[str, Callable[[dtf.Dataset, Path], dtf.Dataset]] = {
    "files": lambda ds, folder: ds,
    "rows": lambda ds, folder: ds.rows[np.arange(TOTAL)],
    "reversed twice": lambda ds, folder: ds.rows[::-1].rows[::-1],
    "map_blocks": lambda ds, folder: ds.map_blocks(with_more),
    "assign": lambda ds, folder: ds.assign(squares=ds["label"].compute() ** 2),
    "persist": lambda ds, folder: opened(folder, chunks=ROWS).persist(scheduler="threads"),
    "from_zarr": lambda ds, folder: dtf.from_zarr(folder / "store.zarr"),
    "from_arrays": lambda ds, folder: dtf.Dataset.from_arrays({"label": np.arange(TOTAL)}),
    "explode": lambda ds, folder: ds.explode(["tokens"], repeat=["label"]),
    "not counted": lambda ds, folder: opened(folder, counts=None, chunks="4 kiB"),
    "kept, not counted": lambda ds, folder: opened(folder, counts=None, chunks="4 kiB").persist(scheduler="threads"),
}


# A permutation needs the number of rows.
MIXED = [(backing, kind) for backing in BACKINGS for kind in (KINDS[:2] if "not counted" in backing else KINDS)]


@pytest.mark.parametrize(("backing", "options"), mostly_slow(MIXED, 2), ids=str)
def test_whole_rows_of_every_backing_and_states_continue(
    ds: dtf.Dataset, folder: Path, backing: str, options: dict[str, Any]
) -> None:
    data = BACKINGS[backing](ds, folder)
    epochs, stops = (2, {0, 3, 5, 9, 10}) if backing in ("files", "not counted") else (1, {3})
    pad = {"tokens": 17} if "tokens" in data and backing != "explode" else None
    settings = {"batch_size": 64, "epochs": epochs, "pad": pad, **options}
    whole, states = [], []
    with data.batches(**settings) as batches:
        states.append(batches.state_dict())
        for batch in batches:
            whole.append(batch)
            states.append(json.loads(json.dumps(batches.state_dict())))
            if len(whole) == 3:
                copy = pickle.loads(pickle.dumps(batches))
    expected = {name: column.tolist() for name, column in data.compute().items()}
    if pad:
        expected["tokens"] = [[*row.tolist(), *[0] * (17 - len(row))] for row in expected["tokens"]]
    found = {name: [value for batch in whole for value in batch[name].tolist()] for name in expected}
    if options["shuffle"]:
        assert found["label"] != expected["label"] * epochs
        found, expected = ({"rows": sorted(zip(*each.values(), strict=True))} for each in (found, expected))
    assert found == {
        name: sorted(rows * epochs) if options["shuffle"] else rows * epochs for name, rows in expected.items()
    }
    for stop in stops:
        again = data.batches(**{**settings, "prefetch": 1})
        again.load_state_dict(states[stop])
        for one, other in zip(again, whole[stop:], strict=True):
            assert_same_batch(one, other)
    assert labels(copy) == labels(whole[3:])
    # The arrays belong to the caller.
    for batch in whole:
        batch["label"][:] = -1
    assert (data["label"].compute() >= 0).all()


def test_what_needs_the_number_of_rows(folder: Path) -> None:
    ds = opened(folder, counts=None, chunks="4 kiB")
    assert ds.batches(32).batches_per_epoch is None
    for refused in ({"shuffle": "full"}, {"shard": (0, 2)}):
        with pytest.raises(ValueError, match="counts='auto'"):
            ds.batches(32, **refused)
    with pytest.raises(ValueError, match="counts='auto'"):
        ds.as_sequence()


def test_a_state_of_a_random_seed_has_the_seed(ds: dtf.Dataset) -> None:
    with ds.batches(10, shuffle="full") as first:
        next(first)
        state = first.state_dict()
        again = ds.batches(10, shuffle="full")
        again.load_state_dict(state)
        rest = labels(first)
    assert labels(again) == rest != labels(ds.batches(10, shuffle="full"))[10:]
    assert again.state_dict()["options"]["seed"] == state["options"]["seed"]


def test_states_of_other_data_or_options_are_refused(ds: dtf.Dataset, folder: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"batch_size": 10, "shuffle": "window", "seed": 3, "window": 40, "pad": {"tokens": 20}}
    state = ds.batches(**options).state_dict()
    write_shards(tmp_path, SHARDS, ROWS, most_tokens=5)
    for data, changed, message in (
        (ds, {"seed": 4}, "option seed was"),
        (ds, {"window": 41}, "option window was"),
        (ds, {"drop_remainder": True}, "option drop_remainder was"),
        (ds, {"shard": (0, 2)}, "option shard was"),
        (ds, {"pad": None}, "option pad was"),
        (ds, {"pad": {"tokens": dtf.Pad(20, -1)}}, "option pad was"),
        (ds, {"shuffle": "full"}, "option shuffle was"),
        (ds, {"batch_size": 11}, "option batch_size was 10 and now is 11"),
        (opened(tmp_path), {}, "the files"),
        (ds.rows[1:], {}, "the number of rows"),
        (ds.rows[::-1], {}, r"rows\[…\]"),
        (ds[["label", "tokens"]], {}, "the features of the columns"),
        (ds.map_blocks(lambda blocks: blocks), {}, "the functions"),
        (opened(folder, chunks=50), {}, "the chunks"),
    ):
        with pytest.raises(ResumeError, match=message):
            data.batches(**{**options, **changed}).load_state_dict(state)
    ds.batches(epochs=None, prefetch=9, **options).load_state_dict(state)


NUMBERS: tuple[Any, ...] = (True, -1, 1, 2, 10**30, 0.5, np.int64(1), np.arange(2))
WRONG = (*NUMBERS, None, "x", b"x", [], [1], {}, {5: 5}, {1})


@pytest.mark.parametrize("counts", ["auto", None])
def test_a_state_that_was_changed_is_refused(folder: Path, counts: Any) -> None:
    def changed(value: Any) -> Iterator[Any]:
        """Yield a value with each of its parts replaced or left out."""
        yield from (wrong for wrong in WRONG if type(wrong) is not type(value) or repr(wrong) != repr(value))
        if isinstance(value, dict):
            for name in value:
                yield from ({**value, name: part} for part in changed(value[name]))
                yield {other: part for other, part in value.items() if other != name}

    options = {"shuffle": "window", "window": 20, "pad": {"tokens": None}}
    ds = opened(folder, counts=counts, chunks=70 if counts else "4 kiB")
    batches, other = ds.batches(10, **options), ds.batches(10, **options)
    next(batches)
    state = batches.state_dict()
    # The state belongs to the caller.
    batches.state_dict()["options"].clear()
    wrong = list(changed(state))
    assert len(wrong) > 300
    for each in wrong:
        with pytest.raises((ValueError, ResumeError), match="state"):
            other.load_state_dict(each)
    with pytest.raises(ResumeError, match="version 1"):
        other.load_state_dict({**state, "version": 1})
    other.load_state_dict(json.loads(json.dumps(state)))
    assert labels(other) == labels(batches)


# ------------------------------------------------------------------------------------------------------------- padding


def test_padding_is_that_of_padded_batch(ds: dtf.Dataset) -> None:
    rows = ds.compute()["tokens"]
    for pad, length in ((None, None), (20, 20), (dtf.Pad(20, -1), 20), (dtf.Pad(3, 7, truncate=True), 3), (16, 16)):
        value = pad.value if isinstance(pad, dtf.Pad) else 0
        for batch in ds.batches(13, pad={"tokens": pad}, **KINDS[2]):
            given = [rows[label] for label in batch["label"]]
            longest = max(map(len, given)) if length is None else length
            expected = np.full((len(given), longest), value, np.int64)
            for out, row in zip(expected, given, strict=True):
                out[: min(len(row), longest)] = row[:longest]
            assert_same_batch({"tokens": batch["tokens"]}, {"tokens": expected})
    with pytest.raises(FeatureError, match=r"part-0\.tfrecord: record 1: column 'tokens' has 13 values, but"):
        list(ds.batches(13, pad={"tokens": 5}))


def test_padding_of_nested_rows_and_bytes() -> None:
    """`test_ragged` pads every kind of column."""
    nested, words = [[[1, 2], []], [], [[3], [4, 5, 6], [7]]], [[b"a"], [], [b"b", b"cc"]]
    ds = dtf.Dataset.from_arrays({"nested": nested, "words": words})
    (batch,) = ds.batches(3, pad={"nested": (None, dtf.Pad().length), "words": None})
    assert batch["nested"].shape == (3, 3, 3) and batch["nested"][2].tolist() == [[3, 0, 0], [4, 5, 6], [7, 0, 0]]
    assert batch["words"].tolist() == [[b"a", b""], [b"", b""], [b"b", b"cc"]]
    (batch,) = ds.batches(3, pad={"nested": dtf.Pad((2, 2), -1, truncate=True)})
    assert batch["nested"].tolist() == [[[1, 2], [-1, -1]], [[-1, -1], [-1, -1]], [[3, -1], [4, 5]]]
    assert isinstance(batch["words"], dtf.RaggedBlock) and batch["words"].row_splits.tolist() == [0, 1, 1, 3]
    with pytest.raises(FeatureError, match=r"column 'nested' has 3 values"):
        list(ds.batches(3, pad={"nested": (3, 2)}))


# -------------------------------------------------------------------------------------------------- errors and options


@pytest.mark.parametrize(
    ("options", "damaged"), [*((options, 137) for options in KINDS), (KINDS[0], 0), (KINDS[0], 9)], ids=str
)
def test_an_error_of_a_record_is_raised_at_its_batch(
    folder: Path, tmp_path: Path, options: dict[str, Any], damaged: int
) -> None:
    for path in folder.glob("*.tfrecord"):
        data = path.read_bytes()
        (tmp_path / path.name).write_bytes(data.replace(b"row %d" % damaged, b"ROW %d" % damaged))
    order = labels(opened(folder, chunks=50).batches(10, **options))
    batches = opened(tmp_path, chunks=50).batches(10, **options)
    good = order.index(damaged) // 10
    for number in range(good):
        assert next(batches)["label"].tolist() == order[10 * number : 10 * number + 10]
    for _ in range(2):
        # The iterator stays at the batch.
        message = rf"part-{damaged // ROWS}\.tfrecord: record {damaged % ROWS} "
        with pytest.raises(dtf.CorruptRecordError, match=message):
            next(batches)
        assert batches.state_dict()["position"]["batch"] == good
    wait_until(lambda: not reading_threads())


def test_options_are_checked(ds: dtf.Dataset) -> None:
    for options, message in (
        ({"batch_size": 0}, "batch_size must be at least 1; got 0"),
        ({"batch_size": 2.0}, "batch_size must be an int"),
        ({"shuffle": True}, "shuffle must be False"),
        ({"shuffle": "yes"}, "shuffle must be False"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"prefetch": 0}, "prefetch must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"window": 5}, "window= needs"),
        ({"shuffle": "window", "window": 0}, "window must be 1 to"),
        ({"drop_remainder": 1}, "drop_remainder must be True or False"),
        ({"shard": 3}, "shard must be a pair"),
        ({"shard": (2, 2)}, "the index of a shard must be 0 to 1; got 2"),
        ({"shuffle": "full", "shard": (0, 2)}, "must share a seed"),
        ({"pad": "tokens"}, "pad must be a mapping"),
        ({"pad": {"token": None}}, "no column 'token'; did you mean 'tokens'"),
        ({"pad": {"label": 3}}, "with the same shape in all rows"),
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
    with pytest.warns(UserWarning, match="drop_remainder leaves no batch of 3 rows: there are 2 rows"):
        assert list(ds.rows[:2].batches(3, epochs=None, drop_remainder=True)) == []


# ------------------------------------------------------------------------------------------------------------- threads


@pytest.mark.slow
def test_threads_end_with_the_iterator(ds: dtf.Dataset) -> None:
    wait_until(lambda: not reading_threads())
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
        wait_until(lambda: not reading_threads())
        list(ds.batches(50, **options))
        assert not reading_threads()


class Gate:
    """Batches of labels whose first reading waits until it is released."""

    def __init__(self, ds: dtf.Dataset, batch_size: int = 10, **options: Any) -> None:
        self.entered, self.released = threading.Event(), threading.Event()
        # Dense columns: no row is read before the first batch.
        self.batches = ds[["label"]].map_blocks(self._wait).batches(batch_size, **options)

    def _wait(self, blocks: dict[str, Any]) -> dict[str, Any]:
        if len(blocks["label"]):
            self.entered.set()
            assert self.released.wait(60)
        return blocks


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals of threads")
def test_an_interrupt_stops_the_threads(ds: dtf.Dataset) -> None:
    gate = Gate(ds)

    def interrupt() -> None:
        assert gate.entered.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        gate.released.set()

    with in_background(interrupt), pytest.raises(KeyboardInterrupt):
        next(gate.batches)
    assert not reading_threads()
    assert labels(gate.batches) == list(range(TOTAL))


def test_an_interrupt_while_the_threads_start_stops_them(ds: dtf.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, start = Gate(ds), threading.Thread.start
    gate.released.set()

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "tfrecord-batches":
            assert gate.entered.wait(60)
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(gate.batches)
    assert not reading_threads()
    assert labels(gate.batches) == list(range(TOTAL))


def test_close_in_another_thread_ends_a_waiting_caller(ds: dtf.Dataset) -> None:
    # One batch of all units while some are not read yet.
    gate = Gate(ds, TOTAL)

    def close() -> None:
        assert gate.entered.wait(60)
        with in_background(gate.batches.close):
            # `close` waits for the unit that is being read. Only this attribute shows that it has begun.
            wait_until(lambda: gate.batches._pipeline is None)
            gate.released.set()

    with in_background(close):
        # The batch that is being made, or none.
        made = next(gate.batches, None)
    assert made is None or made["label"].tolist() == list(range(TOTAL))
    gate.batches.close()
    wait_until(lambda: not reading_threads())


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


@pytest.mark.slow
@pytest.mark.integration
def test_chunks_on_a_cluster(ds: dtf.Dataset, client: Any) -> None:
    kept = ds.persist()
    for options in KINDS:
        # Without a cluster the order is the same, except that windows begin with other units.
        with dask.config.set(scheduler="threads"):
            expected = labels(ds.batches(32, **options))
        found = labels(kept.batches(32, **options))
        assert sorted(found) == list(range(TOTAL)) if options["shuffle"] == "window" else found == expected
    assert kept.as_sequence()[-1]["name"] == b"row 299"


MEMORY = """
import sys
import numpy as np
import dask_tfrecord as dtf

def resident():
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024

features = {"label": dtf.FixedLenFeature((), "int64"), "tokens": dtf.VarLenFeature("int64")}
ds = dtf.read_tfrecord(sys.argv[1] + "/*.tfrecord", features)
for shuffle in (False, "window", "full"):
    seen = []
    with ds.batches(64, shuffle=shuffle, epochs=20, pad={"tokens": None}) as batches:
        for batch in batches:
            if len(seen) < batches.epoch:
                seen.append(resident())
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
    run_python("-W", "error", "-c", MEMORY, tmp_path)


# ------------------------------------------------------------------------------------------------------------ sequence


@pytest.mark.parametrize("backing", ["files", "rows", "persist", "map_blocks", "explode"])
def test_a_sequence_of_rows(ds: dtf.Dataset, folder: Path, backing: str) -> None:
    data = BACKINGS[backing](ds, folder)
    expected, total = data.compute(), data.nrows or 0
    rows = data.as_sequence()
    for sequence in (rows, pickle.loads(pickle.dumps(rows))):
        assert len(sequence) == total
        several = [5, 250, 5, -1, 0]
        found = [(index, sequence[index]) for index in (*several, np.int64(199), -total)]
        for index, row in [*found, *zip(several, sequence.__getitems__(several), strict=True)]:
            for name, column in expected.items():
                assert type(row[name]) is type(column[index])
                np.testing.assert_array_equal(row[name], column[index])
        assert sequence.__getitems__([]) == []
    for index in (total, -total - 1):
        with pytest.raises(IndexError, match="out of bounds for"):
            rows[index]
    for index in ("label", 1.0, slice(2)):
        with pytest.raises(TypeError):
            rows[index]  # type: ignore[index]
    assert f"{total:,} rows: {', '.join(data)}" in repr(rows)


def test_a_sequence_ends_and_has_text(ds: dtf.Dataset) -> None:
    assert [row["label"] for row in ds.rows[:3].as_sequence()] == [0, 1, 2]
    text = dtf.read_tfrecord(ds.origin["files"], {"name": dtf.TextFeature()}).as_sequence()
    assert text[3]["name"] == "row 3"


@pytest.mark.parametrize("kind", KINDS)
def test_threads_share_an_iterator(ds: dtf.Dataset, kind: dict[str, Any]) -> None:
    alone = ds.batches(7, epochs=2, **kind)
    expected = [tuple(batch["label"].tolist()) for batch in alone]
    batches = ds.batches(7, epochs=2, **kind)
    found: list[tuple[int, ...]] = []
    threads = []
    for _ in range(4):
        # A loop that begins after the end of another one would read the next epochs.
        rest = iter(partial(next, batches, None), None)
        thread = threading.Thread(
            target=lambda rest=rest: found.extend(tuple(batch["label"].tolist()) for batch in rest), daemon=True
        )
        threads.append(thread)
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert sorted(found) == sorted(expected)
    assert batches.state_dict() == alone.state_dict()
    assert next(batches, None) is None


def test_an_error_reaches_a_thread_and_stops_no_other(ds: dtf.Dataset) -> None:
    fails = [True]

    def unsteady(blocks: dict[str, Any]) -> dict[str, Any]:
        if fails and 60 in blocks["label"]:
            fails.pop()
            raise OSError("once")
        return {"label": blocks["label"]}

    batches = ds.map_blocks(unsteady, {"label": FEATURES["label"]}).batches(7)
    found, errors = list[int](), list[str]()

    def read() -> None:
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except OSError as error:
                errors.append(str(error))
            else:
                found.extend(batch["label"].tolist())

    threads = [threading.Thread(target=read, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert sorted(found) == list(range(TOTAL)) and len(errors) <= 1


def test_closing_stops_all_threads_that_share_an_iterator(ds: dtf.Dataset) -> None:
    batches = ds.batches(1, epochs=None)
    threads = [threading.Thread(target=lambda: [None for _ in batches], daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    next(batches)
    for _ in range(600):
        # A thread between two batches begins again, as any call after `close` does.
        batches.close()
        for thread in threads:
            thread.join(0.1 / len(threads))
        if not any(thread.is_alive() for thread in threads):
            break
    assert not any(thread.is_alive() for thread in threads)


READS_TO_THE_END = """
import sys, threading
import dask_tfrecord as dtf

ds = dtf.read_tfrecord(sys.argv[1])
batches = ds.batches(500, epochs=None)
reads = {"compute": lambda: ds.compute(scheduler="sync"), "batches": lambda: next(batches)}[sys.argv[2]]
begun = threading.Semaphore(0)

def read():
    while True:
        reads()
        begun.release()

for _ in range(3):
    threading.Thread(target=read, daemon=True).start()
for _ in range(10):
    begun.acquire()
"""


@pytest.mark.integration
@pytest.mark.parametrize("reads", ["compute", "batches"])
def test_a_process_ends_while_daemon_threads_read(tmp_path: Path, reads: str) -> None:
    # A cluster of other tests would be sent the array.
    with dask.config.set(scheduler="sync"):
        dtf.to_tfrecord({"x": np.zeros((50_000, 64), np.float32)}, tmp_path / "a.tfrecord")
    for _ in range(2):
        done = run_python("-c", READS_TO_THE_END, tmp_path / "a.tfrecord", reads)
        assert "terminate" not in done.stderr


def test_images_that_differ_in_size_are_padded(tmp_path: Path) -> None:
    images = [np.full((2 + row, 5 - row, 3), row + 1, np.uint8) for row in range(4)]
    features = {"image": dtf.ImageFeature(), "label": dtf.FixedLenFeature((), "int64")}
    dtf.to_tfrecord({"image": images, "label": np.arange(4)}, tmp_path / "a.tfrecord", features=features)
    ds = dtf.read_tfrecord(tmp_path / "a.tfrecord", features)
    for pad, shape in ((None, (5, 5)), ((6, 8), (6, 8)), ((None, 7), (5, 7)), (6, (6, 5))):
        batch = next(ds.batches(4, pad={"image": dtf.Pad(pad, value=9)}))["image"]
        assert batch.shape == (4, *shape, 3) and batch.dtype == np.uint8
        for row, image in enumerate(images):
            high, wide = image.shape[:2]
            np.testing.assert_array_equal(batch[row, :high, :wide], image)
            assert (batch[row, high:] == 9).all() and (batch[row, :, wide:] == 9).all()
    cut = next(ds.batches(4, pad={"image": dtf.Pad((3, 3), truncate=True)}))["image"]
    np.testing.assert_array_equal(cut[3, :3, :2], images[3][:3, :2])
    with pytest.raises(FeatureError, match=r"record 2.*'image' has an array of shape \(4, 3, 3\), but pad= allows"):
        next(ds.batches(4, pad={"image": (3, 8)}))
    with pytest.raises(ValueError, match="have 3 axes"):
        ds.batches(4, pad={"image": (1, 2, 3, 4)})


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"shuffle": "full", "seed": 3}, {"shuffle": "window"}])
def test_workers_of_torch_divide_the_rows_of_each_epoch(
    monkeypatch: pytest.MonkeyPatch, workers: int, options: dict[str, Any]
) -> None:
    torch = types.SimpleNamespace(IterableDataset=abc.ABCMeta("IterableDataset", (), {}), get_worker_info=lambda: None)
    monkeypatch.setitem(sys.modules, "torch.utils.data", torch)
    ds = dtf.Dataset.from_arrays({"label": np.arange(50)})
    batches = ds.batches(4, **options)
    assert isinstance(batches, torch.IterableDataset)
    # A process has a copy of the iterator.
    copies = [pickle.loads(pickle.dumps(batches)) for _ in range(workers)]
    epochs = []
    for base in (700, 800):
        found = []
        for worker, own in enumerate(copies):
            info = types.SimpleNamespace(id=worker, num_workers=workers, seed=base + worker)
            monkeypatch.setattr(torch, "get_worker_info", lambda info=info: info)
            found += [batch["label"].tolist() for batch in own]
        epochs.append([label for batch in found for label in batch])
        assert sorted(epochs[-1]) == list(range(50))
    assert (epochs[0] == epochs[1]) is not bool(options)
    monkeypatch.setattr(torch, "get_worker_info", lambda: None)
    # Another loop of the process continues with the next epoch, too.
    assert [sorted(np.concatenate([batch["label"] for batch in batches])) for _ in "ab"] == [list(range(50))] * 2


def test_rows_that_are_not_counted_have_no_workers_of_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    info = types.SimpleNamespace(id=0, num_workers=2, seed=1)
    torch = types.SimpleNamespace(IterableDataset=abc.ABCMeta("Data", (), {}), get_worker_info=lambda: info)
    monkeypatch.setitem(sys.modules, "torch.utils.data", torch)
    dtf.to_tfrecord({"label": np.arange(5)}, tmp_path / "s.tfrecord")
    with pytest.raises(ValueError, match="open with counts='auto', or give num_workers=0"):
        iter(dtf.read_tfrecord(tmp_path / "s.tfrecord", counts=None).batches(2))
