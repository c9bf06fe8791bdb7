"""Lists of Examples (ELWC of TF-Ranking): context features and items, read, stored, written and refused.

`test_round_trips` reads, explodes and writes lists of any schema.
"""

from __future__ import annotations

import os
import pickle
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import expected_columns, read_payloads, write_oracle
from oracle.messages import ExampleListWithContext
from support.numbered_shards import damage
from support.paths import TESTS
from support.store_round_trip import assert_same
from support.wire import example, sequence_example

import dask_tfrecord as dtf
from dask_tfrecord.errors import CorruptRecordError, FeatureError, SchemaError, UnknownFeatureError
from dask_tfrecord.features.code import schema_code
from dask_tfrecord.features.schema import Schema, pbtxt

CONTEXT = {"query": dtf.TextFeature(), "length": dtf.FixedLenFeature((), "int16")}
ITEM = {
    "label": dtf.FixedLenFeature((), "int32", default_value=-1),
    "scores": dtf.FixedLenFeature((2,), "float32"),
    "tokens": dtf.VarLenFeature("int64"),
    "title": dtf.TextFeature(default_value="none"),
    "pixels": dtf.RawFeature((2, 2), "uint8"),
}


def record(number: int) -> ExampleListWithContext:
    """Record with `number % 4` items; the odd ones lack what has a default."""
    made = ExampleListWithContext()
    made.context.MergeFromString(example(query=[f"query {number}".encode()], length=[number]))
    for item in range(number % 4):
        values: dict[str, list[Any]] = {"scores": [number + 0.5, float(item)], "pixels": [bytes([number, item, 0, 1])]}
        if item % 2 == 0:
            values |= {"label": [number * 10 + item], "tokens": [*range(item + 1)], "title": [f"title {item}".encode()]}
        made.examples.add().MergeFromString(example(**values))
    return made


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    """Two shards of 9 and 11 records, one of them gzip."""
    payloads = [record(number).SerializeToString() for number in range(20)]
    write_oracle(tmp_path / "a", payloads[:9])
    write_oracle(tmp_path / "b", payloads[9:], "gzip")
    return [str(tmp_path / "a"), str(tmp_path / "b")]


def read(paths: Any, **options: Any) -> dtf.Dataset:
    return dtf.read_tfrecord(paths, CONTEXT, example_features=ITEM, **options)


def test_items_are_rows_of_lists(shards: list[str]) -> None:
    ds = read(shards, chunks=7)
    assert {name: (of.dtype, of.shape) for name, of in ds.schema.items()} == {
        "query": ("bytes", ()),
        "length": ("int16", ()),
        "examples/label": ("int32", (-1,)),
        "examples/scores": ("float32", (-1, 2)),
        "examples/tokens": ("int64", (-1, -1)),
        "examples/title": ("bytes", (-1,)),
        "examples/pixels": ("uint8", (2, 2)),
    }
    assert ds.schema.groups == {"examples": tuple(f"examples/{key}" for key in ITEM)}
    columns = ds.compute()
    payloads = [record(number).SerializeToString() for number in range(20)]
    assert_same(columns, expected_columns(payloads, Schema(CONTEXT, example_features=ITEM)))
    assert columns["examples/label"][3].tolist() == [30, -1, 32]
    some = dtf.read_tfrecord(shards, CONTEXT, example_features=ITEM, columns=["examples/tokens", "query"]).compute()
    assert_same(some, {name: columns[name] for name in ("examples/tokens", "query")})
    uncounted = read(shards[:1], counts=None, chunks="1 kiB").compute()
    assert_same(uncounted, {name: column[:9] for name, column in columns.items()})


def test_items_share_row_splits_in_zarr_and_become_lists_again(shards: list[str], tmp_path: Path) -> None:
    ds = read(shards)
    ds.to_zarr(tmp_path / "store.zarr")
    names = {path.parent.name for path in (tmp_path / "store.zarr").glob("*/zarr.json")}
    assert {name for name in names if name.endswith("row_splits")} == {"examples.row_splits"}

    def written(columns: dtf.Dataset) -> ExampleListWithContext:
        columns.to_tfrecord(tmp_path / "written.tfrecord", mode="w")
        return ExampleListWithContext.FromString(read_payloads(tmp_path / "written.tfrecord")[3])

    stored = dtf.from_zarr(tmp_path / "store.zarr")
    assert_same(stored.compute(), ds.compute())
    again = written(stored)
    assert [[*item.features.feature["label"].int64_list.value] for item in again.examples] == [[30], [-1], [32]]
    assert again.context == record(3).context
    only, bare = written(ds[["query"]]), written(ds[["examples/scores"]])
    assert not only.examples and only.context.features.feature["query"].bytes_list.value == [b"query 3"]
    assert len(bare.examples) == 3 and not bare.HasField("context")


def test_arrays_become_lists_of_examples(tmp_path: Path) -> None:
    arrays = {"query": ["a", "b"], "examples/label": [[1, 2], []], "examples/words": [[[b"x"], [b"y", b"z"]], []]}
    features = {"label": dtf.FixedLenFeature((), "int64"), "words": dtf.VarLenFeature("bytes")}
    context = {"query": dtf.TextFeature()}
    dtf.to_tfrecord(arrays, tmp_path / "x.tfrecord", features=context, example_features=features)
    first, second = map(ExampleListWithContext.FromString, read_payloads(tmp_path / "x.tfrecord"))
    assert [[*item.features.feature["words"].bytes_list.value] for item in first.examples] == [[b"x"], [b"y", b"z"]]
    assert not second.examples and second.context.features.feature["query"].bytes_list.value == [b"b"]
    arrays["examples/label"] = [[1, 2], [3]]
    with pytest.raises(FeatureError, match="record 1: feature 'examples/words' holds 0 items; expected 1, as in 'exam"):
        dtf.to_tfrecord(arrays, tmp_path / "y.tfrecord", features=context, example_features=features)


def at_item(number: int, key: str, change: Callable[[Any], object]) -> Callable[[ExampleListWithContext], object]:
    """Return a change of a feature of an item."""
    return lambda made: change(made.examples[number].features.feature[key])


ERRORS: dict[str, Callable[[ExampleListWithContext], object]] = {
    "feature 'examples/scores' in item 2 holds 3 values, but FixedLenFeature((2,), 'float32') takes 2": at_item(
        2, "scores", lambda feature: feature.float_list.value.append(1)
    ),
    "feature 'examples/pixels' in item 1 is missing, and RawFeature((2, 2), 'uint8') needs it; other items of": (
        lambda made: made.examples[1].features.feature.pop("pixels")
    ),
    "feature 'examples/pixels' in item 1 holds 3 bytes": at_item(
        1, "pixels", lambda feature: feature.bytes_list.value.__setitem__(0, b"abc")
    ),
    "feature 'examples/label' in item 0 holds 1099511627776, which int32 can't hold": at_item(
        0, "label", lambda feature: feature.int64_list.value.__setitem__(0, 1 << 40)
    ),
    "feature 'examples/title' in item 2 is not valid UTF-8": at_item(
        2, "title", lambda feature: feature.bytes_list.value.__setitem__(0, b"\xff")
    ),
    "feature 'query' is missing": lambda made: made.ClearField("context"),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors_name_record_feature_and_item(tmp_path: Path, message: str) -> None:
    made = record(3)
    ERRORS[message](made)
    payloads = [record(2).SerializeToString(), made.SerializeToString(), record(3).SerializeToString()]
    write_oracle(tmp_path / "x", payloads)
    with pytest.raises(FeatureError) as caught:
        read(tmp_path / "x").compute()
    assert caught.value.message.startswith(message)
    place = caught.value.place
    assert place is not None and (place.file, place.record) == (str(tmp_path / "x"), 1)
    assert place.offset == len(payloads[0]) + 16


def test_errors_name_the_argument_and_the_partition(tmp_path: Path) -> None:
    write_oracle(tmp_path / "x", [record(2).SerializeToString()])
    made = ExampleListWithContext()
    made.examples.add().MergeFromString(example(tokens=[1], label=[1]))
    made.examples.add().MergeFromString(example(tokens=[1], label=[7]))
    write_oracle(tmp_path / "y", [made.SerializeToString()])
    partitions = {"r": dtf.RaggedFeature("int64", "tokens", [dtf.RaggedFeature.RowLengths("label")])}
    cases: list[tuple[str, Any, Any, str]] = [
        ("x", {"scores": dtf.FixedLenFeature((2,), "float32")}, {}, "it is a feature of the items: specify it in exam"),
        (
            "x",
            {},
            {"length": dtf.FixedLenFeature((), "int64")},
            "it is a feature of the context: specify it in features",
        ),
        ("y", {}, partitions, r"feature 'examples/r' in item 1 holds \[7\] as RowLengths"),
    ]
    for name, context, items, message in cases:
        with pytest.raises(FeatureError, match=message):
            dtf.read_tfrecord(tmp_path / name, context, example_features=items).compute()


def test_other_messages_are_refused(shards: list[str], tmp_path: Path) -> None:
    odd = example(**{"": [1]})
    # protobuf parses this Example as a list whose item has unknown fields.
    assert ExampleListWithContext.FromString(odd).examples
    for payload in (odd, b"\x1a\x00", b"text that is no message"):
        write_oracle(tmp_path / "x", [payload])
        with pytest.raises(FeatureError, match="expected an ExampleListWithContext, found"):
            dtf.read_tfrecord(tmp_path / "x", {}, example_features=ITEM).compute()
    for options in ({}, {"sequence_features": {}}):
        with pytest.raises(FeatureError, match="found an ExampleListWithContext"):
            dtf.read_tfrecord(shards, {"query": dtf.TextFeature()}, **options).compute()


def test_unknown_fields_of_a_list_are_skipped(tmp_path: Path) -> None:
    # A context with an unknown field in its map, and a map entry with a key alone.
    payload = bytes.fromhex("0a0e0a0c0a0a0a04612f623012021200120e0a0c120a8a04612f620a12021a00")
    assert list(ExampleListWithContext.FromString(payload).examples[0].features.feature) == ["a/b0"]
    write_oracle(tmp_path / "x", [payload])
    scores = {"a/b0": dtf.VarLenFeature("float32")}
    found = dtf.read_tfrecord(tmp_path / "x", {}, example_features=scores).compute()["examples/a/b0"]
    assert [[values.tolist() for values in items] for items in found] == [[[]]]
    # An item with the feature lists of a SequenceExample: protobuf would drop them.
    lists = b"\x12\x00"
    write_oracle(tmp_path / "x", [payload[:2] + payload[2:16] + payload[:1] + bytes([16]) + payload[2:16] + lists])
    with pytest.raises(FeatureError, match=r"found an ExampleListWithContext of .* that holds fields of another mess"):
        dtf.read_tfrecord(tmp_path / "x", {}, example_features=scores).compute()


def test_damage(shards: list[str]) -> None:
    damage(Path(shards[0]))
    with pytest.raises(CorruptRecordError):
        read(shards).compute()
    wanted = read(shards, errors="skip").compute()
    filled = read(shards, errors="fill", fill_values={"query": "lost", "length": 0}).compute()
    assert len(filled["query"]) == 20 and len(wanted["query"]) == 19
    (lost,) = np.flatnonzero(filled["query"] == "lost")
    assert all(len(column[lost]) == 0 for name, column in filled.items() if name.startswith("examples/"))
    assert_same({name: np.delete(column, lost) for name, column in filled.items() if column.ndim == 1}, wanted)


def test_arguments(shards: list[str]) -> None:
    steps = {"x": dtf.FixedLenSequenceFeature((), "int64", allow_missing=True)}
    for options, message in (
        ({"sequence_features": {}, "example_features": {}}, "give one of them"),
        ({"example_features": steps}, r"FixedLenSequenceFeature.* is not supported in example_features.*VarLenFe"),
        ({"example_features": ["label"]}, "example_features must be a mapping of names to features"),
    ):
        with pytest.raises(SchemaError, match=message):
            dtf.read_tfrecord(shards, {}, **options)
    with pytest.raises(SchemaError, match="'examples/x' is in both features and example_features"):
        Schema({"examples/x": dtf.TextFeature()}, example_features={"x": dtf.TextFeature()})
    with pytest.raises(SchemaError, match="group 'examples' is reserved for the items"):
        Schema({"a": dtf.VarLenFeature("int64")}, example_features={}, groups={"examples": ["a"]})
    schema = Schema(CONTEXT, example_features=ITEM)
    assert schema.message == "ExampleListWithContext" and schema.sequence_features is None
    assert schema.example_features == ITEM and schema.context_features == CONTEXT
    assert schema.select(["examples/label"]).example_features == {"label": ITEM["label"]}
    assert schema != Schema(CONTEXT, sequence_features={f"examples/{key}": of for key, of in ITEM.items()})
    with pytest.raises(UnknownFeatureError, match="did you mean 'examples/label'"):
        schema["label"]


def test_inferred_schemas_and_reports(shards: list[str], tmp_path: Path) -> None:
    schema = dtf.infer_schema(shards, sample=None)
    assert dict(schema) == {
        "length": dtf.FixedLenFeature((), "int64"),
        "query": dtf.FixedLenFeature((), "bytes"),
        "examples/label": dtf.VarLenFeature("int64"),
        "examples/pixels": dtf.FixedLenFeature((), "bytes"),
        "examples/scores": dtf.FixedLenFeature((2,), "float32"),
        "examples/title": dtf.VarLenFeature("bytes"),
        "examples/tokens": dtf.VarLenFeature("int64"),
    }
    assert schema.message == "ExampleListWithContext"
    payloads = [record(number).SerializeToString() for number in range(20)]
    wanted = expected_columns(payloads, Schema(schema.context_features, example_features=schema.example_features))
    assert_same(dtf.read_tfrecord(shards, schema).compute(), wanted)
    report = dtf.inspect_records(shards, sample=None)
    assert "Report on 20 ExampleListWithContexts of 2 shards" in str(report)
    assert '"scores": dtf.FixedLenFeature((2,), "float32")' in report.spec().split("example_features = ")[1]
    scores = next(each for each in report.features if each.name == "examples/scores")
    assert (scores.present, scores.values) == (15, "2 in each of 1 to 3 items")
    # Keys that the sample lacks are errors: of an item, and one that was never set.
    made = record(3)
    made.examples[1].features.feature["new"].SetInParent()
    write_oracle(tmp_path / "new", [record(2).SerializeToString(), made.SerializeToString()])
    with pytest.raises(FeatureError, match=r"record 1 .*feature 'examples/new' in item 1 is not in the schema"):
        dtf.read_tfrecord(tmp_path / "new", dtf.infer_schema(tmp_path / "new", sample=1)).compute()
    never = dtf.infer_schema(tmp_path / "new")
    assert never.sampling is not None and never.sampling.unset == ("examples/new",)
    assert dtf.read_tfrecord(tmp_path / "new", never).nrows == 2
    made.examples[1].MergeFromString(example(new=[1]))
    write_oracle(tmp_path / "set", [made.SerializeToString()])
    with pytest.raises(FeatureError, match="feature 'examples/new' in item 1 holds an int64 list, but no sampled"):
        dtf.read_tfrecord(tmp_path / "set", never).compute()


def test_messages_without_features_are_decided_by_other_records(tmp_path: Path) -> None:
    empty = [b"", b"\x0a\x00", b"\x12\x00", b"\x0a\x00\x12\x00", b"\x0a\x00\x0a\x00"]
    write_oracle(tmp_path / "x", [*empty, record(2).SerializeToString(), *empty])
    schema = dtf.infer_schema(tmp_path / "x", sample=None)
    assert schema.message == "ExampleListWithContext"
    assert schema["examples/scores"] == dtf.VarLenFeature("float32")
    items = dtf.read_tfrecord(tmp_path / "x", {}, example_features={"tokens": dtf.VarLenFeature("int64")})
    lengths = [len(row) for row in items["examples/tokens"].compute()]
    assert lengths == [0, 1, 0, 1, 2, 2, 0, 1, 0, 1, 2]
    write_oracle(tmp_path / "y", [*empty[:2], example(a=[1]), *empty[:2]])
    assert dtf.infer_schema(tmp_path / "y").message == "Example"
    made = ExampleListWithContext()
    made.examples.add().MergeFromString(example(a=[1]))
    write_oracle(tmp_path / "first", [b"\x0a\x00", made.SerializeToString()])
    assert dtf.infer_schema(tmp_path / "first")["examples/a"] == dtf.VarLenFeature("int64")
    mixed = [record(2).SerializeToString(), example(a=[1])]
    for payloads in (mixed, mixed[::-1]):
        write_oracle(tmp_path / "z", payloads)
        with pytest.raises(FeatureError, match="is an ExampleListWithContext, and another message is at"):
            dtf.infer_schema(tmp_path / "z")


def test_metadata_and_code_of_schemas(shards: list[str], tmp_path: Path) -> None:
    schema = Schema(CONTEXT, example_features=ITEM)
    with pytest.raises(SchemaError, match="not lists of Examples"):
        pbtxt(schema)
    with pytest.raises(SchemaError, match="TFDS reads Examples only, and these records are ExampleListWithContexts"):
        read(shards).to_tfrecord(tmp_path / "tfds", tfds={"name": "x", "version": "1.0.0", "split": "train"})
    names: dict[str, Any] = {}
    exec(schema_code(schema), names)
    assert names["schema"] == schema


def test_feature_lists_that_are_never_set(tmp_path: Path) -> None:
    write_oracle(tmp_path / "x", [sequence_example({"both": []}, both=[[7], [7, 7]], never=[[], []])])
    schema = dtf.infer_schema(tmp_path / "x")
    assert schema.sampling is not None and schema.sampling.unset == ("both", "never")
    (steps,) = dtf.read_tfrecord(tmp_path / "x", schema)["both"].compute()
    assert [step.tolist() for step in steps] == [[7], [7, 7]]
    assert dtf.read_tfrecord(tmp_path / "x", schema).compute()["both.lengths"].tolist() == [2]
    write_oracle(tmp_path / "y", [sequence_example({"both": []}, both=[[7], [7, 7]], never=[[], [1]])])
    with pytest.raises(FeatureError, match="feature 'never' in step 1 holds an int64 list, but no sampled record"):
        dtf.read_tfrecord(tmp_path / "y", schema).compute()


# -- compared with TF-Ranking ------------------------------------------------------------------------------------------

# TF-Ranking pads the lists of a batch with Examples without features, so dense features of items need a default.
RANKED_CONTEXT = {
    "query": ("FixedLenFeature", {"shape": (), "dtype": "string"}),
    "length": ("FixedLenFeature", {"shape": (2,), "dtype": "int64", "default_value": [7, 8]}),
}
RANKED_ITEMS = {
    "label": ("FixedLenFeature", {"shape": (), "dtype": "int64", "default_value": -1}),
    "scores": ("FixedLenFeature", {"shape": (2,), "dtype": "float32", "default_value": [0.5, -0.5]}),
    "title": ("FixedLenFeature", {"shape": (), "dtype": "string", "default_value": "none"}),
    "rank": ("FixedLenFeature", {"shape": (), "dtype": "float32", "default_value": 0.0}),
    "tokens": ("VarLenFeature", {"dtype": "int64"}),
    "words": ("VarLenFeature", {"dtype": "string"}),
}


def features(descriptions: Any) -> dict[str, Any]:
    return {name: getattr(dtf, cls)(**arguments) for name, (cls, arguments) in descriptions.items()}


def ranked_records(seed: int) -> list[bytes]:
    """Random records with up to five items; features with a default, and lists of any length, are sometimes missing."""
    rng = random.Random(seed)
    made = []
    for number in range(60):
        record = ExampleListWithContext()
        record.context.MergeFromString(example(query=[f"query {number}".encode()]))
        if rng.random() < 0.5:
            record.context.MergeFromString(example(length=[number, -number]))
        for _ in range(rng.randint(0, 5) if number else 5):
            optional: dict[str, list[Any]] = {
                "label": [rng.randint(-5, 1 << 40)],
                "scores": [1.5, np.float32(rng.random()).item()],
                "title": [rng.randbytes(rng.randint(0, 5))],
                "tokens": [rng.randint(0, 1 << 20) for _ in range(rng.randint(1, 4))],
                "words": [rng.randbytes(3) for _ in range(rng.randint(1, 3))],
            }
            chosen = {key: values for key, values in optional.items() if rng.random() < 0.7}
            item = example(rank=[np.float32(rng.random()).item()], **chosen)
            record.examples.add().MergeFromString(item)
        made.append(record.SerializeToString())
    return made


def parse_with_ranking(interpreter: str, payloads: list[bytes], context: Any, items: Any) -> dict[str, Any]:
    script = TESTS / "support" / "ranking_parser.py"
    request = pickle.dumps((payloads, context, items))
    done = subprocess.run([interpreter, str(script)], input=request, capture_output=True, timeout=600, check=False)
    if done.returncode == 3:
        pytest.skip(f"TF-Ranking is not installed for {interpreter}: {done.stderr.decode()[-200:]}")
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    answers: dict[str, Any] = pickle.loads(done.stdout)
    return answers


@pytest.fixture
def ranking(request: pytest.FixtureRequest) -> str:
    """Interpreter of an environment with TF-Ranking."""
    named = os.environ.get("DASK_TFRECORD_RANKING")
    return named if named else str(request.getfixturevalue("tensorflow"))


def rows_of(answer: Any, sizes: list[int]) -> list[list[Any]]:
    """Return the items of each record, without the padding of the batch."""
    if answer[0] == "dense":
        return [row[:size] for row, size in zip(answer[1], sizes, strict=True)]
    rows: list[list[Any]] = [[[] for _ in range(size)] for size in sizes]
    for (record, item, _), value in zip(answer[1], answer[2], strict=True):
        rows[record][item].append(value)
    return rows


def plain(row: Any) -> Any:
    return [plain(item) for item in row] if isinstance(row, np.ndarray | list) else row


def compare(answers: dict[str, Any], ds: dtf.Dataset, context: Any, items: Any) -> None:
    columns = ds.compute()
    sizes = answers["size"][1]
    for name in context:
        assert columns[name].tolist() == answers[name][1], name
    for key in items:
        found = [plain(row.tolist()) for row in columns[f"examples/{key}"]]
        assert found == rows_of(answers[key], sizes), key


@pytest.mark.tensorflow
def test_ranking_reads_generated_lists(ranking: str, tmp_path: Path) -> None:
    payloads = ranked_records(5)
    write_oracle(tmp_path / "x", payloads)
    answers = parse_with_ranking(ranking, payloads, RANKED_CONTEXT, RANKED_ITEMS)
    ds = dtf.read_tfrecord(tmp_path / "x", features(RANKED_CONTEXT), example_features=features(RANKED_ITEMS))
    compare(answers, ds, RANKED_CONTEXT, RANKED_ITEMS)
    # TF-Ranking reads what this library writes.
    ds.to_tfrecord(tmp_path / "y")
    again = parse_with_ranking(ranking, read_payloads(tmp_path / "y"), RANKED_CONTEXT, RANKED_ITEMS)
    compare(again, ds, RANKED_CONTEXT, RANKED_ITEMS)


def test_lists_are_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from dask_tfrecord.rows import rows as rows_module

    converted: list[str] = []
    conform = rows_module.conform

    def counted(feature: Any, array: Any, owner: str, **options: Any) -> Any:
        converted.append(owner)
        return conform(feature, array, owner, **options)

    monkeypatch.setattr(rows_module, "conform", counted)
    rows = [list(range(row % 5)) for row in range(300)]
    ds = dtf.Dataset.from_arrays({"label": np.arange(300), "tokens": rows, "word": [b"w"] * 300})
    shuffled = ds.batches(7, shuffle="full", seed=0, window=20)
    assert sum(len(row) for batch in shuffled for row in batch["tokens"]) == sum(map(len, rows))
    sequence = ds.as_sequence()
    assert [sequence[row]["tokens"].tolist() for row in range(20)] == rows[:20]
    assert [row.tolist() for row in ds["tokens"].compute()] == rows
    # Once per column of the only chunk. Conversions are counted, because no result depends on their number.
    assert len(converted) == 3
