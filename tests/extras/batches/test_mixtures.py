"""`sample_from_datasets`: exactness, order, states, shards and statistics of mixtures, and TensorFlow's semantics."""

from __future__ import annotations

import json
import pickle
import subprocess
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.numbered_shards import write_shards

import dask_tfrecord as dtf
from dask_tfrecord.errors import ResumeError, SchemaError, UnknownFeatureError

# Values of data set `i` are from `i * FIRST` on, in the order of its rows.
FIRST = 1_000_000
SHUFFLES: list[Any] = [False, "window", "full"]


def numbered(sizes: Sequence[int], chunk: int = 11) -> list[dtf.Dataset]:
    """Return data sets of these sizes, whose rows have distinct numbers and ragged values."""
    made = []
    for part, size in enumerate(sizes):
        values = np.arange(size) + part * FIRST
        ds = dtf.Dataset.from_arrays(
            {"id": values, "list": [[value] * (value % 3) for value in values.tolist()]}, LISTS
        )
        # Several chunks, so that the ranges of a window have an order.
        made.append(
            ds if size <= chunk else dtf.Dataset.from_arrays({name: ds[name].rechunk(chunk) for name in ds}, LISTS)
        )
    return made


LISTS = {"list": dtf.VarLenFeature("int64")}


def ids(batches: Iterable[dict[str, Any]]) -> list[int]:
    found = []
    for batch in batches:
        for number, values in zip(batch["id"].tolist(), np.asarray(batch["list"]), strict=True):
            assert values.tolist() == [number] * (number % 3)
            found.append(number)
    return found


def everything(sizes: Sequence[int]) -> list[int]:
    return [number + part * FIRST for part, size in enumerate(sizes) for number in range(size)]


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[list[int], list[float], dict[str, Any]]:
    """Draw sizes, weights (at least one is positive), and options."""
    sizes = draw(st.lists(st.integers(0, 20), min_size=1, max_size=3))
    weight = st.sampled_from([0.0, 1e-300, 0.01, 0.5, 1.0, 3.0, 1e300])
    weights = draw(st.lists(weight, min_size=len(sizes), max_size=len(sizes)).filter(any))
    return sizes, weights, {"seed": draw(st.integers(0, 5)), "stop_on_empty_dataset": draw(st.booleans())}


def assert_is_prefix_of_each(found: Sequence[int], sizes: Sequence[int], weights: Sequence[float], stop: bool) -> None:
    """Check the rows of a mixture in order: the first rows of each data set, or all of them."""
    counts = np.bincount(np.array(found, np.int64) // FIRST, minlength=len(sizes)).tolist()
    for part, (count, size) in enumerate(zip(counts, sizes, strict=True)):
        assert [each for each in found if each // FIRST == part] == [part * FIRST + row for row in range(count)]
        assert count <= size if stop and weights[part] else count == (size if weights[part] else 0)
    # A mixture ends early where a data set ends.
    assert any(count == size for count, size, weight in zip(counts, sizes, weights, strict=True) if weight)


@given(data=st.data(), given_mixture=mixtures())
def test_rows_occur_once_in_every_order(
    data: st.DataObject, given_mixture: tuple[list[int], list[float], dict[str, Any]]
) -> None:
    sizes, weights, options = given_mixture
    mixture = dtf.sample_from_datasets(numbered(sizes), weights, **options)
    stop = options["stop_on_empty_dataset"]
    in_order = ids(mixture.batches(data.draw(st.integers(1, 50))))
    assert_is_prefix_of_each(in_order, sizes, weights, stop)
    assert len(in_order) == mixture.nrows == sum(mixture.counts)
    assert [int(row["id"]) for row in mixture.as_sequence().__getitems__(range(mixture.nrows))] == in_order
    shuffle, epochs = data.draw(st.sampled_from(SHUFFLES)), data.draw(st.integers(1, 2))
    settings = {"seed": 3, "epochs": epochs, "window": data.draw(st.none() | st.integers(1, 90)) if shuffle else None}
    found = ids(mixture.batches(data.draw(st.integers(1, 50)), shuffle=shuffle, **settings))
    assert len(found) == epochs * mixture.nrows
    for epoch in range(epochs):
        part = found[epoch * mixture.nrows : (epoch + 1) * mixture.nrows]
        assert len(set(part)) == len(part)
        assert set(part) <= {each for each in everything(sizes) if weights[each // FIRST]}
        assert sorted(each // FIRST for each in part) == sorted(each // FIRST for each in in_order)


@pytest.mark.filterwarnings("ignore:batches. drop_remainder leaves no batch:UserWarning")
@pytest.mark.slow
@given(data=st.data(), given_mixture=mixtures())
def test_shards_divide_an_epoch_and_states_continue(
    data: st.DataObject, given_mixture: tuple[list[int], list[float], dict[str, Any]]
) -> None:
    sizes, weights, options = given_mixture
    mixture = dtf.sample_from_datasets(numbered(sizes), weights, **options)
    number, size, drop = data.draw(st.integers(1, 3)), data.draw(st.integers(3, 20)), data.draw(st.booleans())
    shuffle = data.draw(st.sampled_from(SHUFFLES))
    settings: dict[str, Any] = {"shuffle": shuffle, "seed": 1, "epochs": 2, "drop_remainder": drop}
    if shuffle:
        settings["window"] = data.draw(st.integers(1, 40))
    found, lengths = [], []
    for index in range(number):
        with mixture.batches(size, shard=(index, number), **settings) as batches:
            states, made = [batches.state_dict()], []
            for batch in batches:
                made.append(batch)
                states.append(batches.state_dict())
        assert len(made) == 2 * (batches.batches_per_epoch or 0)
        lengths.append(len(made))
        found.append(ids(made))
        stop = data.draw(st.integers(0, len(made)))
        # In another process: new data sets, and a state that was text.
        other = dtf.sample_from_datasets(numbered(sizes), weights, **options)
        again = other.batches(size, shard=(index, number), **settings)
        again.load_state_dict(json.loads(json.dumps(states[stop])))
        assert ids(pickle.loads(pickle.dumps(again))) == ids(again) == ids(made[stop:])
    if drop:
        assert set(lengths) == {2 * (mixture.nrows // number // size)}
    else:
        whole = ids(mixture.batches(size, **settings))
        assert max(map(len, found)) - min(map(len, found)) <= 2
        halves = [(part[: len(part) // 2], part[len(part) // 2 :]) for part in found]
        assert [row for half in halves for row in half[0]] == whole[: mixture.nrows] or shuffle == "window"
        for epoch in (0, 1):
            rows = [row for half in halves for row in half[epoch]]
            assert sorted(rows) == sorted(whole[epoch * mixture.nrows : (epoch + 1) * mixture.nrows])


def test_weights_hold_until_a_data_set_ends() -> None:
    sizes, weights = [30_000, 20_000, 60_000], [0.2, 0.3, 0.5]
    data = [dtf.Dataset.from_arrays({"id": np.arange(size) + part * FIRST}) for part, size in enumerate(sizes)]
    for seed in range(5):
        mixture = dtf.sample_from_datasets(data, weights, seed=seed, stop_on_empty_dataset=True)
        counts, expected = np.array(mixture.counts), mixture.nrows * np.array(weights)
        assert (((counts - expected) ** 2) / expected).sum() < 18.4  # exceeded once in 10,000 (2 degrees of freedom)
        for shuffle in SHUFFLES:
            (first,) = [next(mixture.batches(20_000, shuffle=shuffle, seed=seed))["id"] // FIRST]
            part = np.bincount(first, minlength=3)
            assert (((part - 20_000 * np.array(weights)) ** 2) / (20_000 * np.array(weights))).sum() < 18.4
        # Choices are independent of each other: pairs of neighbours have the products of the weights.
        chosen = np.concatenate([batch["id"] for batch in mixture.batches(10_000)]) // FIRST
        pairs = np.bincount(3 * chosen[:-1:2] + chosen[1::2], minlength=9)
        products = pairs.sum() * np.outer(weights, weights).ravel()
        assert (((pairs - products) ** 2) / products).sum() < 31.8  # 8 degrees of freedom
    whole = dtf.sample_from_datasets(data, weights, seed=0)
    chosen = np.concatenate([batch["id"] for batch in whole.batches(10_000)]) // FIRST
    # The second data set ends after about 66,667 rows; the others continue 2 to 5.
    end = int(np.flatnonzero(chosen == 1)[-1]) + 1
    rest = chosen[end : end + 10_000]
    assert abs((rest == 0).mean() - 2 / 7) < 4 * (2 / 7 * 5 / 7 / 10_000) ** 0.5


@pytest.mark.slow
def test_epochs_choose_alike_and_read_other_rows_of_large_data_sets() -> None:
    small, large = numbered([20, 5000], chunk=100)
    mixture = dtf.sample_from_datasets([small, large], [0.5, 0.5], seed=0, stop_on_empty_dataset=True)
    seen: set[int] = set()
    for shuffle in ("window", "full"):
        epochs = np.array(ids(mixture.batches(10, shuffle=shuffle, seed=2, epochs=30))).reshape(30, -1)
        assert all(sorted(epoch[epoch < FIRST].tolist()) == list(range(20)) for epoch in epochs)
        assert len({tuple(epoch.tolist()) for epoch in epochs}) == 30
        seen = set(epochs[epochs >= FIRST].tolist())
        assert len(seen) > 400
    plain = ids(mixture.batches(10, epochs=2))
    assert plain[: mixture.nrows] == plain[mixture.nrows :]
    # The same data sets are chosen for other seeds of the shuffle, and others for another seed of the mixture.
    kinds = [np.array(ids(mixture.batches(9, shuffle="full", seed=seed))) // FIRST for seed in (1, 2)]
    assert kinds[0].tolist() == kinds[1].tolist()
    other = dtf.sample_from_datasets([small, large], [0.5, 0.5], seed=1, stop_on_empty_dataset=True)
    assert ids(other.batches(9)) != plain[: mixture.nrows]


def test_the_order_of_a_release_is_that_of_the_next_one() -> None:
    # States of older releases continue with these orders: change the version of the states with them.
    mixture = dtf.sample_from_datasets(numbered([3, 4]), [0.4, 0.6], seed=5)
    assert [number % FIRST + 10 * (number // FIRST) for number in ids(mixture.batches(7))] == ORDER
    shuffled = ids(mixture.batches(7, shuffle="full", seed=1))
    assert [number % FIRST + 10 * (number // FIRST) for number in shuffled] == SHUFFLED


ORDER = [10, 0, 1, 2, 11, 12, 13]
SHUFFLED = [11, 0, 2, 1, 10, 13, 12]


# ------------------------------------------------------------------------------------------------ files, states, errors


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    found = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    for folder, rows in zip(found, (40, 150), strict=True):
        write_shards(folder, 2, rows // 2)
    return found


def with_source(part: int) -> Any:
    return lambda blocks: {**blocks, "source": np.full(len(blocks["label"]), part)}


def opened(folders: Sequence[Path]) -> list[dtf.Dataset]:
    return [dtf.read_tfrecord(folder, chunks=17).map_blocks(with_source(part)) for part, folder in enumerate(folders)]


def test_images_are_those_of_each_data_set(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    pixels = np.random.default_rng(0).integers(0, 256, (20, 4, 3, 3), np.uint8)
    label = dtf.FixedLenFeature((), "int64")
    stored = {"image": dtf.ImageFeature((4, 3, 3)), "label": label}
    dtf.to_tfrecord({"image": pixels, "label": np.arange(20)}, tmp_path / "x.tfrecord", features=stored)
    images = {"image": dtf.ImageFeature((4, 3, 3), dtype="float32"), "label": label}
    resized = {"image": dtf.ImageFeature((-1, -1, 3), dtype="float32", size=(4, 3)), "label": label}
    whole, other = (dtf.read_tfrecord(tmp_path / "x.tfrecord", features) for features in (images, resized))
    wanted = whole.compute()["image"]
    for second in (whole, whole.map_blocks(dict), other, whole.persist(scheduler="threads")):
        for shuffle in SHUFFLES:
            mixture = dtf.sample_from_datasets([whole, second], seed=0)
            for batch in mixture.batches(16, shuffle=shuffle, seed=0):
                assert np.array_equal(batch["image"], wanted[batch["label"]])


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_files_chunks_and_functions_are_mixed(folders: list[Path], shuffle: Any) -> None:
    first, second = opened(folders)
    assigned = second.assign(source=np.full(150, 2)).persist(scheduler="threads")
    mixture = dtf.sample_from_datasets([first, second, assigned], [1, 2, 3], seed=0)
    whole = list(mixture.batches(32, shuffle=shuffle, seed=0, pad={"tokens": None}))
    found = sorted(
        (int(source), int(label))
        for batch in whole
        for source, label in zip(batch["source"], batch["label"], strict=True)
    )
    assert found == [(part, label) for part, size in enumerate((40, 150, 150)) for label in range(size)]
    rows = mixture.as_sequence()
    assert len(rows) == 340
    some = rows.__getitems__([5, -1, 5])
    assert [int(row["label"]) for row in some] == [int(rows[index]["label"]) for index in (5, 339, 5)]


def test_a_state_has_the_random_seeds_and_refuses_other_mixtures(folders: list[Path]) -> None:
    data = opened(folders)
    mixture = dtf.sample_from_datasets(data, stop_on_empty_dataset=True)
    with mixture.batches(10, shuffle="window") as batches:
        next(batches)
        state = json.loads(json.dumps(batches.state_dict()))
        rest = [batch["label"].tolist() for batch in batches]
    other = dtf.sample_from_datasets(opened(folders), stop_on_empty_dataset=True)
    again = other.batches(10, shuffle="window")
    again.load_state_dict(state)
    assert [batch["label"].tolist() for batch in again] == rest
    for changed, message in (
        (dtf.sample_from_datasets(data), "stop_on_empty_dataset"),
        (dtf.sample_from_datasets(data, [1, 2], stop_on_empty_dataset=True), "weights"),
        (dtf.sample_from_datasets(data, seed=1, stop_on_empty_dataset=True), "seed"),
        (dtf.sample_from_datasets(data[::-1], stop_on_empty_dataset=True), "the files"),
        (dtf.sample_from_datasets([data[0], data[1].rows[1:]], stop_on_empty_dataset=True), "the number of rows"),
        (data[0], "option mixture"),
    ):
        with pytest.raises(ResumeError, match=message):
            changed.batches(10, shuffle="window").load_state_dict(state)
    with pytest.raises(ValueError, match="seed= to sample_from_datasets"):
        mixture.batches(10, shard=(0, 2))


def test_data_sets_that_differ_are_refused_or_reduced() -> None:
    one = dtf.Dataset.from_arrays({"image": np.zeros((3, 4, 4, 3), np.uint8), "id": np.arange(3), "depth": np.ones(3)})
    two = dtf.Dataset.from_arrays({"id": np.arange(3), "image": np.zeros((3, 8, 8, 3), np.uint8), "wrist": np.ones(3)})
    with pytest.raises(
        SchemaError, match=r"only data set 0 has 'depth'; only data set 1 has 'wrist'.*columns=\"common\""
    ):
        dtf.sample_from_datasets([one, two])
    form = r"'image' is uint8 of shape \(n, 4, 4, 3\) in data set 0 and uint8 of shape \(n, 8, 8, 3\) in data set 1"
    with pytest.raises(SchemaError, match=f"{form}.*resize_images.*columns="):
        dtf.sample_from_datasets([one, two], columns="common")
    assert list(dtf.sample_from_datasets([one, two], columns=["id"]).schema) == ["id"]
    assert list(dtf.sample_from_datasets([one, two[["wrist", "id"]]], columns="common").schema) == ["id"]
    # Columns are in the order of the first data set.
    (batch,) = dtf.sample_from_datasets([one[["image", "id"]], one[["id", "image"]]], seed=0).batches(6)
    assert list(batch) == ["image", "id"]
    with pytest.raises(UnknownFeatureError, match="data set 1: no column 'depth'"):
        dtf.sample_from_datasets([one, two], columns=["depth"])
    with pytest.raises(SchemaError, match="no common column"):
        dtf.sample_from_datasets([one[["depth"]], two[["wrist"]]], columns="common")
    # A data set of weight 0 is left out.
    assert list(dtf.sample_from_datasets([one, two], [1, 0]).schema) == ["image", "id", "depth"]


def test_arguments_that_are_refused(folders: list[Path]) -> None:
    for weights in ([1.0], [1.0, -0.5], [1.0, float("nan")], [1.0, float("inf")], [0.0, 0.0], [[1.0, 1.0]]):
        with pytest.raises(ValueError, match="weights"):
            dtf.sample_from_datasets(numbered([2, 2]), weights)  # type: ignore[arg-type]
    for kinds in (["1", "2"], [True, False]):
        with pytest.raises(TypeError, match="weights"):
            dtf.sample_from_datasets(numbered([2, 2]), kinds)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one data set"):
        dtf.sample_from_datasets([])
    for wrong in (numbered([2])[0], [1], "x"):
        with pytest.raises(TypeError, match="list of Dataset"):
            dtf.sample_from_datasets(wrong)  # type: ignore[arg-type]
    for options in ({"seed": 1.5}, {"seed": True}, {"stop_on_empty_dataset": 1}):
        with pytest.raises(TypeError, match=next(iter(options))):
            dtf.sample_from_datasets(numbered([2]), **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 0"):
        dtf.sample_from_datasets(numbered([2]), seed=-1)
    with pytest.raises(ValueError, match=r"data set 1.*counts='auto'"):
        dtf.sample_from_datasets([dtf.read_tfrecord(folders[0]), dtf.read_tfrecord(folders[1], counts=None)])
    with pytest.raises(ValueError, match="common"):
        dtf.sample_from_datasets(numbered([2]), columns="id")  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------------- TensorFlow

PROGRAM = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
answers = []
for sizes, weights, stop, seed in json.load(sys.stdin):
    data = [tf.data.Dataset.range(part * 1_000_000, part * 1_000_000 + size) for part, size in enumerate(sizes)]
    mixed = tf.data.Dataset.sample_from_datasets(data, weights, seed=seed, stop_on_empty_dataset=stop)
    answers.append([[int(value) for value in mixed.as_numpy_iterator()] for _ in range(2)])
errors = []
for data, weights in (([], None), (["x"], [0.5, 0.5]), (["x", "x"], [1, 2])):
    data = [tf.data.Dataset.range(3) for _ in data]
    try:
        tf.data.Dataset.sample_from_datasets(data, weights)
    except (ValueError, TypeError) as error:
        errors.append(type(error).__name__)
print(json.dumps([answers, errors]))
"""
CASES: list[tuple[list[int], list[float] | None, bool]] = [
    ([3, 5], None, False),
    ([3, 0, 5], [0.2, 0.5, 0.3], False),
    ([30, 50, 20], [0.0, 0.5, 0.5], False),
    ([30, 50], [1.0, 0.0], True),
    ([0, 50], [0.0, 1.0], True),
    ([40, 50], [5.0, 3.0], False),
    ([7], [2.0], True),
    ([0, 0], None, False),
]
# Sizes and weights of mixtures that end early, and their mean length: draws until a row is missing.
ENDING: list[tuple[list[int], list[float], float]] = [
    ([5, 10_000], [0.5, 0.5], 11.0),
    ([0, 10_000], [0.1, 0.9], 9.0),
    ([10_000, 2], [0.75, 0.25], 11.0),
]
SEEDS = 60


@pytest.mark.tensorflow
def test_rows_end_as_in_tensorflow(tensorflow: str) -> None:
    ending = [(sizes, weights, True, seed) for sizes, weights, _ in ENDING for seed in range(SEEDS)]
    requests = [(*case, 1) for case in CASES] + ending
    done = subprocess.run(
        [tensorflow, "-c", textwrap.dedent(PROGRAM)],
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        check=True,
        timeout=500,
    )
    answers, errors = json.loads(done.stdout.splitlines()[-1])
    lengths: dict[str, list[int]] = {"theirs": [], "ours": []}
    for (sizes, weights, stop, seed), (theirs, again) in zip(requests, answers, strict=True):
        mixture = dtf.sample_from_datasets(numbered(sizes, 10_000), weights, seed, stop)
        ours = ids(mixture.batches(100))
        for found in (theirs, ours):
            assert_is_prefix_of_each(found, sizes, weights or [1.0] * len(sizes), stop)
        # Every epoch has the same order.
        assert again == theirs
        if (sizes, weights, stop) in CASES:
            assert len(ours) == len(theirs)
        lengths["theirs"].append(len(theirs))
        lengths["ours"].append(len(ours))
    for number, (_, weights, mean) in enumerate(ENDING):
        for found in lengths.values():
            part = found[len(CASES) + number * SEEDS :][:SEEDS]
            assert abs(np.mean(part) - mean) < 5 * np.std(part) / SEEDS**0.5, weights
    # Weights that are ints are accepted here.
    assert errors == ["ValueError", "ValueError", "TypeError"]
