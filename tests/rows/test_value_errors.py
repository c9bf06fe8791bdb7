"""Values that can't be decoded are filled, or their rows left out; plain Python and TensorFlow say which those are."""

from __future__ import annotations

import io
import json
import logging
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from cases import OUTPUTS
from distributed import Client
from oracle import write_oracle
from support.commands import run
from support.few import mostly_slow
from support.images import by_pillow, noise
from support.programs import run_python
from support.repeating import Repeating
from support.store_round_trip import assert_same
from support.wire import example, sequence_example

import dask_tfrecord as dtf
from dask_tfrecord.errors import FeatureValueError

FOLDER = Path(__file__).parents[1] / "data" / "value_errors"
SHARD = FOLDER / "values.tfrecord"
PROGRAM = Path(__file__).parents[1] / "support" / "tensorflow_ignore_errors.py"
KEPT = json.loads((FOLDER / "values.json").read_text())
IMAGE = dtf.ImageFeature((8, 8, 3))
FEATURES = {
    "jpeg": IMAGE,
    "png": IMAGE,
    "raw": dtf.RawFeature((3,), "float32"),
    "tensor": dtf.TensorFeature((2, 2), "int32"),
    "text": dtf.TextFeature(),
    "packed": dtf.RawFeature((4,), "uint8", compression_type="ZLIB"),
}
ID = {"id": dtf.FixedLenFeature((), "int64")}
# TensorFlow accepts zlib data that is cut within its checksum.
ACCEPTED_BY_TENSORFLOW = {"packed": {12}, "all": {12}}


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("chunks", [5, "auto"])
def test_rows_are_left_out_where_tensorflow_ignores_errors(name: str, chunks: Any) -> None:
    decoded = FEATURES if name == "all" else {name: FEATURES[name]}
    ds = dtf.read_tfrecord(SHARD, ID | decoded, value_errors="skip", chunks=chunks)
    wanted = [number for number in KEPT[name] if number not in ACCEPTED_BY_TENSORFLOW.get(name, ())]
    assert ds.nrows == len(wanted)
    assert ds["id"].compute().tolist() == wanted
    assert ds.compute()["id"].tolist() == wanted


@pytest.mark.tensorflow
def test_tensorflow_gives_these_answers(tensorflow: str) -> None:
    answer = run_python(PROGRAM, SHARD, python=tensorflow).stdout
    assert json.loads(answer) == KEPT


def load(value: bytes) -> Any:
    """Read a .npy file."""
    return np.load(io.BytesIO(value))


def dump(array: Any) -> bytes:
    """Write a .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


MIXED = {
    "image": dtf.ImageFeature(),
    "array": dtf.FunctionFeature(load, (2,), "int64", dump),
    "text": dtf.TextFeature(default_value="none"),
    "rows": dtf.RawFeature((-1, 2), ">i2"),
    "small": dtf.FixedLenFeature((), "uint8"),
    "flag": dtf.RawFeature((), "bool"),
    "id": dtf.FixedLenFeature((), "int64"),
}
FILL: dict[str, Any] = {
    "image": np.full((1, 2, 3), 9, np.uint8),
    "array": [-1, -2],
    "rows": np.zeros((0, 2), np.int16),
    "small": 255,
    "flag": True,
}
REFUSED: dict[str, Any] = {
    "image": b"\xff\xd8\xff\xe0",
    "array": b"no array",
    "text": b"\xff",
    "rows": b"12345",
    "small": 256,
    "flag": b"\2",
}


def write_mixed(folder: Path, count: int = 23, share: float = 0.2) -> tuple[dict[str, list[Any]], dict[str, set[int]]]:
    """Write shards with values that are refused here and there; return the values, filled, and which they are."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(count)
    values: dict[str, list[Any]] = {name: [] for name in MIXED}
    refused: dict[str, set[int]] = {name: set() for name in MIXED}
    records = []
    for number in range(count):
        pixels = noise(int(rng.integers(1, 4)), 2, 3, seed=number)
        rows = rng.integers(-9, 9, (int(rng.integers(0, 3)), 2)).astype(np.int16)
        pairs: dict[str, tuple[Any, Any]] = {
            "image": (pixels, by_pillow(pixels, "PNG")),
            "array": (np.array([number, 1]), dump(np.array([number, 1]))),
            "text": (f"wörd {number}", f"wörd {number}".encode()),
            "rows": (rows, rows.astype(">i2").tobytes()),
            "small": (number, number),
            "flag": (number % 2 == 0, bytes([number % 2 == 0])),
            "id": (number, number),
        }
        stored = {}
        for name, (value, written) in pairs.items():
            if name != "id" and rng.random() < share:
                refused[name].add(number)
                value, written = FILL.get(name, "none"), REFUSED[name]
            values[name].append(value)
            stored[name] = [written]
        records.append(example(**stored))
    for shard, start in enumerate(range(0, count, 9)):
        write_oracle(folder / f"{shard}.tfrecord", records[start : start + 9])
    return values, refused


def columns(values: Mapping[str, list[Any]], kept: Any) -> dict[str, Any]:
    found = {}
    for name, rows in values.items():
        picked = [rows[number] for number in kept]
        if name in ("image", "rows"):
            found[name] = np.empty(len(picked), object)
            found[name][:] = picked
        else:
            found[name] = np.array(picked, MIXED[name].item_dtype)
    return found


@pytest.fixture
def mixed(tmp_path: Path) -> tuple[Path, dict[str, list[Any]], dict[str, set[int]]]:
    return tmp_path / "in", *write_mixed(tmp_path / "in")


@pytest.mark.parametrize(
    ("mode", "output"),
    mostly_slow(((mode, output) for mode in ("fill", "skip") for output in OUTPUTS), 4),
)
def test_every_output_has_the_rows(mixed: Any, mode: str, output: str, tmp_path: Path) -> None:
    folder, values, refused = mixed
    count = len(values["id"])
    kept = [each for each in range(count) if mode == "fill" or not any(each in rows for rows in refused.values())]
    options = {"fill_values": FILL} if mode == "fill" else {}
    with dask.config.set(scheduler="sync"):
        ds = dtf.read_tfrecord(folder, MIXED, value_errors=mode, chunks=4, **options)
        if output == "virtual Zarr":
            assert ds.nrows == len(kept)
            return
        OUTPUTS[output](ds, columns(values, kept), tmp_path)


@pytest.mark.parametrize("filters", [None, [("id", ">", 10**6)]])
def test_marks_are_columns_without_rows(mixed: Any, tmp_path: Path, filters: Any) -> None:
    folder = mixed[0]
    if filters is None:
        folder = tmp_path / "empty.tfrecord"
        folder.touch()
    ds = dtf.read_tfrecord(folder, MIXED, value_errors="mark", fill_values=FILL, filters=filters)
    assert {*ds} == {*MIXED, *(f"{name}.valid" for name in MIXED if name != "id")}
    assert all(len(column) == 0 for column in ds.compute().values())


def test_marks_tell_filled_values_from_others(mixed: Any) -> None:
    folder, values, refused = mixed
    ds = dtf.read_tfrecord(folder, MIXED, value_errors="mark", fill_values=FILL, chunks=7)
    assert [*ds] == [*MIXED, *(f"{name}.valid" for name in MIXED if name != "id")]
    found = ds.compute()
    numbers = range(len(values["id"]))
    for name in MIXED:
        if name != "id":
            assert found[f"{name}.valid"].tolist() == [each not in refused[name] for each in numbers]
    assert_same({name: found[name] for name in MIXED}, columns(values, numbers))
    picked = [20, 3, 3, 11, 0]
    for key, rows in ((picked, picked), (slice(None, None, -1), [*numbers][::-1]), (slice(2, 19, 3), range(2, 19, 3))):
        chosen = ds.rows[key]
        assert_same(chosen[list(MIXED)].compute(), columns(values, rows))
        assert chosen["array.valid"].compute().tolist() == [each not in refused["array"] for each in rows]
    assert ds.where([("image.valid", "==", False)])["id"].compute().tolist() == sorted(refused["image"])
    assert "image.valid" in repr(ds.describe())


# Values that are filled or left out are reported to users by a warning of the logger, and nowhere else.


def test_columns_have_modes_of_their_own(mixed: Any, caplog: pytest.LogCaptureFixture) -> None:
    folder, values, refused = mixed
    modes = {"image": "skip", "array": "mark", "text": "fill"}
    with caplog.at_level(logging.WARNING):
        ds = dtf.read_tfrecord(
            folder, MIXED, columns=["image", "array", "text", "id"], value_errors=modes, fill_values={"array": [-1, -2]}
        )
    kept = [number for number in range(len(values["id"])) if number not in refused["image"]]
    assert ds["id"].compute().tolist() == kept
    assert ds["array.valid"].compute().tolist() == [number not in refused["array"] for number in kept]
    (text,) = caplog.messages
    for name in ("image", "array", "text"):
        assert f"'{name}' in {len(refused[name])} record" in text
    assert f"{len(refused['image'])} rows left out; the first: " in text
    with pytest.raises(FeatureValueError, match="'small' holds 256, which uint8 can't hold") as caught:
        dtf.read_tfrecord(folder, MIXED, value_errors={"image": "skip"})["small"].compute()
    assert type(pickle.loads(pickle.dumps(caught.value))) is FeatureValueError


def test_filters_come_first(mixed: Any, caplog: pytest.LogCaptureFixture) -> None:
    folder, _values, refused = mixed
    with caplog.at_level(logging.WARNING):
        ds = dtf.read_tfrecord(
            folder,
            MIXED,
            columns=["image", "id"],
            filters=[("small", ">", 4), ("id", "<", 20)],
            value_errors="skip",
        )
    tested = [number for number in range(5, 20) if number not in refused["small"]]
    assert ds["id"].compute().tolist() == [number for number in tested if number not in refused["image"]]
    bad = [number for number in tested if number in refused["image"]]
    assert bad
    assert f"'image' in {len(bad)} record" in caplog.messages[-1]


def test_rows_are_counted_once_though_tasks_run_twice(mixed: Any, caplog: pytest.LogCaptureFixture) -> None:
    folder, values, refused = mixed
    repeating = Repeating(seed=3)
    with caplog.at_level(logging.WARNING), dask.config.set(scheduler=repeating.get()):
        ds = dtf.read_tfrecord(folder, MIXED, value_errors="mark", fill_values=FILL, chunks=3)
        found = ds[list(MIXED)].compute()
        assert_same(found, columns(values, range(len(values["id"]))))
    assert repeating.run_late() == []
    assert len(caplog.messages) == 1
    assert f"'image' in {len(refused['image'])} records" in caplog.messages[0]


@pytest.mark.integration
def test_on_a_cluster(mixed: Any) -> None:
    folder, values, _refused = mixed
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None):
        ds = dtf.read_tfrecord(folder, MIXED, value_errors="fill", fill_values=FILL, chunks=4)
        assert_same(ds.compute(), columns(values, range(len(values["id"]))))


def test_steps_of_a_group_are_filled_together(tmp_path: Path) -> None:
    lists = [{"frame": [by_pillow(noise(1, 2, 3), "PNG")] * 2, "action": [1, 2]} for _ in range(3)]
    lists[1]["frame"] = [b"\x89PNG"]
    lists[1]["action"] = [3]
    write_oracle(tmp_path / "a", [example(**{"steps/" + name: each for name, each in row.items()}) for row in lists])
    schema = dtf.Schema(
        {"steps/frame": dtf.ImageFeature((-1, 1, 2, 3)), "steps/action": dtf.VarLenFeature("int64")},
        groups={"steps": ["steps/frame", "steps/action"]},
    )
    ds = dtf.read_tfrecord(tmp_path / "a", schema, value_errors="fill")
    assert [len(row) for row in ds["steps/action"].compute()] == [2, 0, 2]
    assert ds.explode("steps")["steps/action"].compute().tolist() == [1, 2, 1, 2]
    assert dtf.read_tfrecord(tmp_path / "a", schema, value_errors="skip").explode("steps").nrows == 4
    write_oracle(tmp_path / "b", [sequence_example({}, word=words) for words in ([[b"a"], [b"\xff"]], [[b"b"]])])
    lists_of = {"word": dtf.TextFeature()}
    ds = dtf.read_tfrecord(tmp_path / "b", {}, sequence_features=lists_of, value_errors="fill")
    assert ds["word.lengths"].compute().tolist() == [0, 1]
    assert [row.tolist() for row in ds["word"].compute()] == [[], ["b"]]


def test_lost_records_and_values_are_filled_together(mixed: Any) -> None:
    folder, values, _refused = mixed
    path = folder / "0.tfrecord"
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    filling = {**FILL, "id": -1}
    ds = dtf.read_tfrecord(folder, MIXED, errors="fill", value_errors="fill", fill_values=filling)
    found = columns(values, range(len(values["id"])))
    for name, column in found.items():
        column[0] = "none" if name == "text" else filling[name]
    assert_same(ds.compute(), found)


@pytest.mark.parametrize(
    ("record", "match"),
    [
        (example(text=[b"a"]), "'id' is missing"),
        (example(text=[b"a", b"b"], id=[1]), "'text' holds 2 values"),
        (example(text=[1], id=[1]), "'text' holds an int64 list"),
        (b"\xff\xff", "record 1"),
    ],
)
def test_records_of_another_form_are_always_errors(record: bytes, match: str, tmp_path: Path) -> None:
    write_oracle(tmp_path / "a", [example(text=[b"\xff"], id=[0]), record])
    with pytest.raises(dtf.FeatureError, match=match):
        dtf.read_tfrecord(tmp_path / "a", ID | {"text": dtf.TextFeature()}, value_errors="skip").compute()


def test_damaged_framing_is_always_an_error(mixed: Any) -> None:
    path = mixed[0] / "1.tfrecord"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(dtf.CorruptRecordError):
        dtf.read_tfrecord(mixed[0], MIXED, value_errors="skip").compute()


def wrong(**options: Any) -> Callable[[], Any]:
    return lambda: dtf.read_tfrecord(SHARD, ID | FEATURES, **options)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            wrong(value_errors="ignore"),
            "value_errors must be 'raise', 'fill', 'mark', 'skip', or one of them by column",
        ),
        (wrong(value_errors={"jpeg": "drop"}), "one of them by column"),
        (wrong(value_errors={"jpg": "skip"}), "value_errors: no column 'jpg'; did you mean 'jpeg'"),
        (wrong(value_errors="skip", counts=None), "needs counted records"),
        (wrong(value_errors={"jpeg": "fill"}), "'jpeg'.*needs a value for what can't be decoded.*value_errors='skip'"),
        (wrong(value_errors="skip", fill_values={"jpeg": 0}), "fill_values need"),
        (wrong(value_errors={"jpeg": "fill"}, fill_values={"jpg": 0}), "fill_values: no column 'jpg'"),
    ],
)
def test_wrong_arguments_are_named(call: Callable[[], Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        call()


def test_the_command_line_leaves_rows_out(tmp_path: Path) -> None:
    schema = dtf.Schema(ID | {"text": FEATURES["text"]})
    (tmp_path / "schema.json").write_text(schema.to_json())
    options = ("--features", tmp_path / "schema.json", "--value-errors", "skip")
    result = run("to-zarr", SHARD, tmp_path / "z", *options)
    assert result.exit_code == 0, result.output
    assert dtf.from_zarr(tmp_path / "z")["id"].compute().tolist() == KEPT["text"]
    assert run("head", SHARD, "-n", 30, "--json", *options).stdout.count('"id"') == len(KEPT["text"])
    assert run("head", SHARD, "--where", "id > 8", "--json", *options).stdout.startswith('{"id": 11')


@pytest.mark.parametrize("names", [["s"], ["s.values", "s.indices"], ["u", "s"]], ids=str)
def test_a_name_of_several_columns_stands_for_all(names: list[str], tmp_path: Path) -> None:
    write_oracle(tmp_path / "a", [example(i=[at], v=[at], u=[row]) for row, at in enumerate([0, 9, 1])])
    features = {"s": dtf.SparseFeature("i", "v", "int64", 5), "u": dtf.FixedLenFeature((), "int64")}
    columns = [each for name in names for each in ([f"s.{of}" for of in PARTS] if name == "s" else [name])]
    read = partial(dtf.read_tfrecord, tmp_path / "a", features, columns=names)
    assert list(read()) == columns
    skipped = read(value_errors="skip")
    assert list(skipped) == columns and skipped["s.values"].compute()[1].tolist() == [1]
    filling = {"s.indices": np.zeros((0, 1)), "s.values": [], "s.shape": 5}
    marked = read(value_errors="mark", fill_values=filling)
    assert list(marked)[: len(columns)] == columns and "s.values.valid" in marked
    assert marked["s.values.valid"].compute().tolist() == [True, False, True]
    kept = read(filters=[("u", "==", 2)])
    assert list(kept) == columns and kept["s.values"].compute()[0].tolist() == [1]
    both = read(value_errors="skip", filters=[("any(s.values)", "<", 9)])
    assert list(both) == columns and both.nrows == 2


PARTS = ("indices", "values", "shape")
