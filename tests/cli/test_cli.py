"""Commands: output, written files, errors, width of a terminal, and availability in dask's own command line."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import zarr
from click.shell_completion import ShellComplete
from click.testing import Result
from PIL import Image
from support.commands import run, shown
from support.damage import flip
from support.paths import DATA
from support.programs import environment, run_program, run_python
from support.store_round_trip import assert_same
from support.terminals import Terminal
from support.waiting import PATIENCE, wait_until
from support.wire import example, sequence_example

import dask_tfrecord as dtf
from dask_tfrecord.cli.main import tfrecord
from dask_tfrecord.errors import UnknownFeatureError, plural

POSIX = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals, limits or terminals")
EVERY = DATA / "tfds" / "every" / "1.0.0"


def assert_one_line_of_error(result: Result, *said: str) -> None:
    assert result.exit_code == 1
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("Error: ")
    for part in said:
        assert part in line


def assert_usage(result: Result, said: str) -> None:
    """Check that click refuses the options."""
    assert result.exit_code == 2
    assert said in result.stderr


def assert_stored(store: Path, source: object, **arguments: Any) -> None:
    """Compare a store with the data set that a command converts to it."""
    component = arguments.pop("component", None)
    assert_same(dtf.from_zarr(store, component=component).compute(), dtf.read_tfrecord(source, **arguments).compute())


def pasted(code: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"dtf": dtf}
    exec(code, namespace)
    return namespace


def examples(number: int, start: int = 0) -> list[bytes]:
    pixels = np.random.default_rng(start).integers(0, 256, (number, 192), np.uint8)
    rows = enumerate(pixels, start)
    return [example(image=[each.tobytes()], label=[row % 5], tokens=[*range(row % 7 + 1)]) for row, each in rows]


def damaged(path: Path, payloads: list[bytes], at: int) -> Path:
    """Write a shard in which one byte is changed."""
    oracle.write_oracle(path, payloads)
    flip(path, at)
    return path


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of two shards, 12 and 8 records."""
    directory = tmp_path_factory.mktemp("shards")
    oracle.write_oracle(directory / "train-00000-of-00002.tfrecord", examples(12))
    oracle.write_oracle(directory / "train-00001-of-00002.tfrecord", examples(8, 12))
    return directory


def facts(text: str) -> dict[str, str]:
    """Return the lines above the table, by their first word."""
    lines = text.split("\n\n")[0].splitlines()
    return {line.split()[0]: line.split(maxsplit=1)[1].strip() for line in lines}


def features(text: str) -> dict[str, list[str]]:
    """Return the rows of the table, by the name of the feature."""
    (table,) = re.findall(r"^feature .*\n─+\n((?:.+\n)+)", text, re.MULTILINE)
    return {line.split()[0]: re.split(r"  +", line.strip())[1:] for line in table.splitlines()}


# -- info --------------------------------------------------------------------------------------------------------------


def test_info_shows_shards_records_bytes_compression_and_features(shards: Path) -> None:
    result = run("info", shards / "train-*.tfrecord")
    assert facts(result.stdout) == {
        "shards": "2",
        "records": "20, 8 to 12 per shard",
        "bytes": f"{sum(path.stat().st_size for path in shards.iterdir()):,}",
        "compression": "none",
    }
    assert "3 features, inferred from 20 records of 2 shards" in result.stdout
    assert features(result.stdout) == {
        "image": ["FixedLenFeature", "bytes", "()", "20 of 20", "1", "192 bytes each"],
        "label": ["FixedLenFeature", "int64", "()", "20 of 20", "1"],
        "tokens": ["VarLenFeature", "int64", "(-1,)", "20 of 20", "1 to 7"],
    }
    assert result.stderr == ""
    # An expanded glob, a directory, a template.
    for paths in (sorted(shards.iterdir()), [shards], [shards / "train@2.tfrecord"], [shards, "--sample", "all"]):
        assert shown("info", *paths, "--threads", 1) == result.stdout
    assert features(shown("info", shards, "--sample", 2))["label"][-2] == "2 of 2"
    for senseless in ("0", "-1", "some", "1.5"):
        assert_usage(run("info", shards, "--sample", senseless), "neither a number of records")


def test_info_as_json_and_as_code(shards: Path, golden: Path) -> None:
    document = json.loads(shown("info", shards, "--json"))
    assert [(shard["records"], shard["compression"]) for shard in document["shards"]] == [(12, None), (8, None)]
    assert [shard["path"] for shard in document["shards"]] == [str(path) for path in sorted(shards.iterdir())]
    schema = dtf.infer_schema(shards)
    assert document["report"] == json.loads(schema.report.to_json())
    assert document["spec"] == schema.report.spec() == shown("info", shards, "--spec").strip()
    assert pasted(document["spec"])["features"] == dict(schema)
    assert_usage(run("info", shards, "--json", "--spec"), "give one of them")
    empty = json.loads(shown("info", golden / "empty_file.tfrecord", "--json"))
    assert (empty["shards"][0]["records"], empty["report"], empty["spec"]) == (0, None, None)
    text = shown("info", golden / "empty_file.tfrecord")
    assert facts(text)["records"] == "0" and "feature" not in text


def test_info_finds_compression_in_the_bytes(shards: Path, tmp_path: Path) -> None:
    plain, other = sorted(shards.iterdir())
    shutil.copy(plain, tmp_path / "a.gz")
    (tmp_path / "b").write_bytes(gzip.compress(other.read_bytes()))
    found = facts(shown("info", tmp_path))
    assert found["compression"] == "none (1 shard), gzip (1 shard)"
    stored, inflated = (sum(path.stat().st_size for path in folder.iterdir()) for folder in (tmp_path, shards))
    assert found["bytes"] == f"{stored:,}, {inflated:,} inflated"
    assert_one_line_of_error(run("info", tmp_path, "--compression", "gzip"), "a.gz")


def test_info_shows_conflicts_instead_of_failing(tmp_path: Path) -> None:
    oracle.write_oracle(tmp_path / "part-0", [example(**{"x": [1], "never": [], "": [1]})])
    oracle.write_oracle(tmp_path / "part-1", [example(**{"x": [1.0], "never": [], "": [1]})])
    text = shown("info", tmp_path)
    assert features(text)["x"][:2] == ["(several kinds)", "int64, float32"]
    assert features(text)["never"] == ["(never set)", "0 of 2"]
    assert "''" in features(text)
    assert f"float32 in 1 record of 1 shard ({tmp_path / 'part-1'}: 1)" in text
    assert '# "x": ' in shown("info", tmp_path, "--spec")


def test_items_of_a_prefix_are_shown_and_written(tmp_path: Path) -> None:
    path, store = tmp_path / "x.tfrecord", tmp_path / "s.zarr"
    empty = oracle.messages.Feature(int64_list=oracle.messages.Int64List())
    items = [[0, 1], empty, [0, 1, 2]]
    oracle.write_oracle(path, [example(**{"a/b/x": each, "a/b/y": each, "id": [n]}) for n, each in enumerate(items)])
    assert "prefix 'a/b': a/b/x, a/b/y" in shown("info", path)
    command = ["to-zarr", path, store, "--overwrite"]
    for explode in ("a/b", "a/b/x,a/b/y"):
        shown(*command, "--explode", explode, "--repeat", "id")
        found = dtf.from_zarr(store).compute()
        assert {name: column.tolist() for name, column in found.items()} == {
            "a/b/x": [0, 1, 0, 1, 2],
            "a/b/y": [0, 1, 0, 1, 2],
            "id": [0, 0, 2, 2, 2],
            "record": [0, 0, 2, 2, 2],
        }
    assert "a.b.x" in shown(*command, "--explode", "a/b", "--plan")
    assert_one_line_of_error(run(*command, "--explode", "a/c"), "no group or column 'a/c'", "'a/b'")
    assert_one_line_of_error(run(*command, "--explode", "id"), "--repeat repeats it for each item")
    assert_usage(run(*command, "--repeat", "id"), "--explode")


def test_splits_of_tfds(tmp_path: Path) -> None:
    store = tmp_path / "train.zarr"
    shown("to-zarr", EVERY, store, "--split", "train[2:5]", "--columns", "label")
    assert_stored(store, EVERY, split="train[2:5]", columns=["label"])
    document = json.loads(shown("info", EVERY, "--split", "train", "--json"))
    assert sum(shard["records"] for shard in document["shards"]) == 7
    assert_one_line_of_error(run("info", EVERY, "--split", "validation"), "validation")
    splits = [{"name": name, "shardLengths": ["1"]} for name in ("train", "val")]
    (tmp_path / "dataset_info.json").write_text(json.dumps({"name": "x", "version": "1.0.0", "splits": splits}))
    (tmp_path / "features.json").write_text("{}")
    oracle.write_oracle(tmp_path / "x-train.tfrecord-00000-of-00001", examples(1))
    missing = run("info", tmp_path)
    assert_one_line_of_error(missing, "splits 'train', 'val' is missing; give --split to read one", "x-val")
    assert "records      1" in shown("info", tmp_path, "--split", "train")


def test_messages_other_than_examples(tmp_path: Path) -> None:
    walks, lines = tmp_path / "walks", tmp_path / "lines"
    oracle.write_oracle(walks, [sequence_example({"id": [n]}, t=[[n, n]] * n) for n in (1, 2)])
    text = shown("info", walks)
    assert "2 features, inferred from 2 SequenceExamples of 1 shard" in text
    assert features(text)["t"][:3] == ["FixedLenSequenceFeature", "int64", "(2,)"]
    assert "sequence_features = {" in shown("info", walks, "--spec")
    (tmp_path / "both.json").write_text(dtf.infer_schema(walks).to_json())
    for options in ([], ["--sample", "256"], ["--sample", "all"], ["--features", tmp_path / "both.json"]):
        shown("to-zarr", walks, tmp_path / "walks.zarr", "--overwrite", *options)
        assert_stored(tmp_path / "walks.zarr", walks, features=dtf.infer_schema(walks))
    oracle.write_oracle(lines, [b'{"label": 3}'] * 3)
    result = run("info", lines)
    assert facts(result.stdout)["records"] == "3"
    assert_one_line_of_error(result, "expected an Example, found JSON text", "read_bag(urlpath, decode=json.loads)")


# -- schema, head, preview ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a shard of columns of several kinds, with hostile text."""
    path = tmp_path_factory.mktemp("some") / "some.tfrecord"
    texts = [b"plain", b"\x1b]0;owned\x07", "\u202eréd \x9b2J".encode(), b"\xff\xfe\x00"]
    columns = {
        "image": np.arange(12 * 8 * 8 * 3, dtype=np.uint8).reshape(12, 8, 8, 3),
        "label": np.arange(12) % 3,
        "te\x1b[31mxt": np.array(texts * 3, object),
        "tokens": np.array([np.arange(n) for n in range(12)], object),
    }
    dtf.to_tfrecord(columns, path)
    return path


def test_every_format_of_schema_is_read_back(shard: Path, tmp_path: Path) -> None:
    expected = dtf.infer_schema(shard)
    assert pasted(shown("schema", shard, "--format", "python"))["schema"] == expected
    for format, name in (("json", "schema.json"), ("tfmd", "schema.pbtxt")):
        text = shown("schema", shard, "--format", format)
        assert all(line.isprintable() for line in text.splitlines())
        (tmp_path / name).write_text(text, "utf-8")
        assert dtf.Schema.read(tmp_path / name) == expected
    again = shown("schema", shard, "--features", tmp_path / "schema.json", "--format", "python")
    assert pasted(again)["schema"] == expected
    assert features(shown("schema", shard))["tokens"] == ["VarLenFeature", "int64", "(-1,)", "12 of 12"]


@pytest.mark.parametrize("sample", ["256", "2", "all"])
def test_schema_is_inferred_from_the_records_of_where(tmp_path: Path, sample: str) -> None:
    label, path = np.arange(40) % 4, tmp_path / "train-{shard:05d}-of-{shards:05d}.tfrecord"
    dtf.to_tfrecord({"label": label, "tokens": [[7] * n for n in label]}, path, records_per_shard=7)
    given = ("schema", tmp_path / "train-*.tfrecord", "--sample", sample, "--format", "python")
    for number in range(1, 4):
        fixed = pasted(shown(*given, "--where", f"label == {number}"))["schema"]
        assert fixed["tokens"].shape == ((number,) if number > 1 else ())
    assert pasted(shown(*given, "--where", "label >= 2"))["schema"]["tokens"].ragged_rank == 1
    for arguments, reason in (
        (["--where", "label == 9"], "no record meets the conditions"),
        (["--where", "label == 1", "--features", tmp_path / "schema.json"], "those of --features are not inferred"),
    ):
        (tmp_path / "schema.json").write_text(dtf.infer_schema(tmp_path / "train-*.tfrecord").to_json())
        plain = run(*given[:2], *arguments)
        assert plain.exit_code == 2 and reason in plain.stderr


def test_commands_that_read_rows_pass_over_damage_and_take_conditions() -> None:
    # Indexes and reports of damage are of all records, and references name records as they are.
    for name in set(tfrecord.commands) - {"index", "verify", "repair", "virtual"}:
        options = {each.name for each in tfrecord.commands[name].params}
        assert "where" in options, name
        assert "errors" in options or name == "to-tfrecord", name


def test_schema_displays_class_names_and_groups(tmp_path: Path, shard: Path) -> None:
    made = dtf.Schema(
        {
            "steps/a": dtf.VarLenFeature("int64"),
            "steps/b": dtf.VarLenFeature("float32"),
            "label": dtf.FixedLenFeature((), "int64"),
        },
        classes={"label": ["cat", "d\x1bog", *"abcdef"]},
        groups={"steps": ["steps/a", "steps/b"]},
    )
    (tmp_path / "schema.json").write_text(made.to_json())
    table = shown("schema", shard, "--features", tmp_path / "schema.json")
    assert "8: cat, d\\x1bog, a, b, c, …" in table
    assert "group 'steps': steps/a, steps/b" in table
    code = shown("schema", shard, "--features", tmp_path / "schema.json", "--format", "python")
    again = pasted(code)["schema"]
    assert (again, again.classes, again.groups) == (made, made.classes, made.groups)


def test_head_prints_a_table_or_json_lines(shard: Path, tmp_path: Path) -> None:
    table = shown("head", shard, "-n", 4, columns=80)
    assert all(line.isprintable() and len(line) <= 80 for line in table.splitlines())
    for cell in ("te\\x1b[31mxt", "3 bytes: ff fe 00", "0, 1, 2"):
        assert cell in table
    columns = {
        "text": np.array(["é\x1b\x9b".encode(), b"\xff\x00", b"a\nb"], object),
        "score": np.array([[0.1, np.nan], [np.inf, -np.inf], [1, 2]], np.float32),
        "label": np.arange(3) == 1,
    }
    dtf.to_tfrecord(columns, tmp_path / "a.tfrecord")
    lines = shown("head", tmp_path / "a.tfrecord", "-n", 3, "--json", "--columns", "text,score").splitlines()
    assert all(line.isprintable() for line in lines)
    assert [json.loads(line) for line in lines] == [
        {"text": {"base64": "w6kbwps="}, "score": [0.1, "NaN"]},
        {"text": {"base64": "/wA="}, "score": ["Infinity", "-Infinity"]},
        {"text": "a\nb", "score": [1.0, 2.0]},
    ]


def test_preview_draws_files(shard: Path, tmp_path: Path) -> None:
    schema = dtf.Schema({**dtf.infer_schema(shard), "image": dtf.FixedLenFeature((8, 8, 3), "uint8")})
    (tmp_path / "features.json").write_text(schema.to_json(), "utf-8")
    command = ["preview", shard, "--features", tmp_path / "features.json", "-n", 2]
    assert shown(*command, tmp_path / "a.png").endswith("a.png: 2 records of 4 features\n")
    with Image.open(tmp_path / "a.png") as image:
        pixels = np.asarray(image)
    first = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    np.testing.assert_array_equal(pixels[70:198:16, 16:144:16], first)
    shown(*command, tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text("utf-8").count("<img ") == 2
    assert "8 x 8 x 3" in shown(*command, "-")
    for target, said in (("a.png", "--overwrite"), ("a.txt", ".png or .html")):
        assert_usage(run(*command, tmp_path / target), said)
    shown(*command, tmp_path / "a.png", "--overwrite")


# -- to-zarr -----------------------------------------------------------------------------------------------------------


def test_to_zarr_writes_what_read_tfrecord_reads(shards: Path, tmp_path: Path) -> None:
    store = tmp_path / "train.zarr"
    result = run("to-zarr", *sorted(shards.iterdir()), store)
    assert re.fullmatch(rf"Wrote {re.escape(str(store))}: 20 rows of 3 features in [\d.]+ s; .*\n", result.stdout)
    # A bar is displayed only in a terminal.
    assert not result.stderr
    assert_stored(store, shards)
    options = ["--chunks", 2, "--shards", 6, "--columns", "label,tokens", "--component", "some/where", "--threads", 1]
    shown("to-zarr", shards, tmp_path / "a.zarr", *options)
    label = zarr.open_array(tmp_path / "a.zarr", path="some/where/label", mode="r")
    assert (label.chunks, label.shards) == ((2,), (6,))
    assert_stored(tmp_path / "a.zarr", shards, component="some/where", columns=["label", "tokens"])
    shown("to-zarr", shards, tmp_path / "b.zarr", "--columns", "label", "--columns", "image")
    assert set(dtf.from_zarr(tmp_path / "b.zarr")) == {"label", "image"}
    # An existing store stays.
    refused = run("to-zarr", shards, tmp_path / "b.zarr")
    assert_one_line_of_error(refused, "b.zarr exists", "--overwrite", "--component NAME")
    shown("to-zarr", shards, tmp_path / "b.zarr", "--overwrite")
    assert_stored(tmp_path / "b.zarr", shards)


def test_to_zarr_reads_all_records_to_infer_what_a_sample_does_not_show(tmp_path: Path) -> None:
    path, store = tmp_path / "shard", tmp_path / "all.zarr"
    oracle.write_oracle(path, [example(label=[1])] * 299 + [example()])
    said = "'label' is missing", "--sample all reads all of them, or give --features"
    assert_one_line_of_error(run("to-zarr", path, store), *said)
    shown("to-zarr", path, store, "--sample", "all")
    assert dtf.from_zarr(store)["label"].compute()[-2].tolist() == [1]
    assert_usage(run("to-zarr", path, store, "--sample", 3, "--features", "schema.json"), "give one of them")


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["info", "to-zarr"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("damaged_not_a_tfrecord", "this is not a TFRecord file"),
        ("damaged_truncated_header", "truncated header"),
        ("damaged_length_bit", "CRC of the length"),
        ("damaged_payload_bit", "CRC of the payload"),
        ("damaged_trailing_garbage", ""),
        ("nothing_of_that_name", "no file or directory"),
    ],
)
def test_bad_files_are_one_line_of_error(command: str, name: str, said: str, golden: Path, tmp_path: Path) -> None:
    store = tmp_path / "some.zarr"
    result = run(command, golden / f"{name}.tfrecord", *([store] if command == "to-zarr" else []))
    assert_one_line_of_error(result, name, said)
    assert not store.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--columns", "lable"], "did you mean 'label'"),
        (["--chunks", "3", "--shards", "4"], "multiple"),
        (["--features", "nowhere.json"], "nowhere.json"),
    ],
)
def test_wrong_values_are_one_line_of_error(arguments: list[str], said: str, shards: Path, tmp_path: Path) -> None:
    assert_one_line_of_error(run("to-zarr", shards, tmp_path / "some.zarr", *arguments), said)
    assert not (tmp_path / "some.zarr").exists()


@pytest.mark.parametrize(
    "arguments", ["info", "to-zarr one", "to-zarr one two --chunks some", "info x --compression zip", "nothing"]
)
def test_wrong_usage_is_clicks_own_error(arguments: str) -> None:
    assert_usage(run(*arguments.split()), "Usage: dask-tfrecord")


def test_help_and_version_print_text() -> None:
    assert "to-zarr" in shown("--help")
    assert "also for SequenceExamples and ELWC" in " ".join(shown("to-zarr", "--help").split())
    assert re.match(r"dask-tfrecord, version \d", shown("--version"))


def test_errors_recommend_options(tmp_path: Path) -> None:
    mixed, walks, store = tmp_path / "mixed", tmp_path / "walks", tmp_path / "store.zarr"
    oracle.write_oracle(mixed, [sequence_example({"id": [1]}, s=[[1], [2.5]])])
    oracle.write_oracle(walks, [sequence_example({"id": [1]}, t=[[1]])])
    (tmp_path / "schema.json").write_text(dtf.Schema({"id": dtf.FixedLenFeature((), "int64")}).to_json())
    without = "give --features the JSON of a Schema without it; info --sample all reports all"
    both = "give --features the JSON of a Schema with both parts, context and feature lists"
    for arguments, said in (
        ([mixed], without),
        ([mixed, "--sample", "all"], without),
        ([walks, "--features", tmp_path / "schema.json"], both),
    ):
        result = run("to-zarr", *arguments, store)
        assert_one_line_of_error(result, said)
        assert not re.search(r"features=|inspect_records|read_tfrecord", result.stderr)


@pytest.mark.parametrize("options", [[], ["--overwrite"], ["--sample", "all"]])
def test_to_zarr_refuses_a_directory_of_other_things_before_it_reads(options: list[str], tmp_path: Path) -> None:
    """The damaged shard would be an error of its own if a record was read or counted."""
    (tmp_path / "damaged.tfrecord").write_bytes(b"damaged")
    result = run("to-zarr", tmp_path / "damaged.tfrecord", tmp_path, *options)
    assert_one_line_of_error(result, "is not a Zarr group")
    assert [path.name for path in tmp_path.iterdir()] == ["damaged.tfrecord"]


@pytest.mark.parametrize("resume", [False, True])
def test_a_record_that_breaks_in_the_middle(resume: bool, tmp_path: Path) -> None:
    # After the records that features are inferred from.
    path, store = damaged(tmp_path / "broken", examples(400), -1), tmp_path / "some.zarr"
    options = ["--columns", "label", "--chunks", 50, "--threads", 1]
    result = run("to-zarr", path, store, *options, *(["--resume"] if resume else []))
    assert result.exit_code == 1
    # At most one bar; its state when the task failed is not deterministic.
    error, *notes = [line for line in result.stderr.splitlines() if "%" not in line]
    assert error.startswith(f"Error: {path}: record 399 (byte ")
    # All records are read at once, before a unit is written.
    said = "no unit is complete yet, and the plan is kept: --resume begins with it"
    assert notes == ([said] if resume else [])
    assert store.exists() == resume
    assert_usage(run("to-zarr", path, store, "--overwrite", "--resume"), "give one of them")


@pytest.mark.parametrize(("errors", "labels"), [("skip", [1, 2]), ("fill", [0, 1, 2])])
def test_errors_of_damage_name_options_that_convert_the_rest(tmp_path: Path, errors: str, labels: list[int]) -> None:
    path, store = damaged(tmp_path / "a.tfrecord", examples(3), 30), tmp_path / "a.zarr"
    schema = dtf.Schema({"label": dtf.FixedLenFeature((), "int64", default_value=0)})
    (tmp_path / "schema.json").write_text(schema.to_json())
    options = ["--features", tmp_path / "schema.json", "--columns", "label"]
    refused = run("to-zarr", path, store, *options)
    assert_one_line_of_error(refused, "--errors skip drops damaged records", "command repair")
    assert "errors=" not in refused.stderr
    with pytest.raises(dtf.CorruptRecordError, match=r'errors="skip"') as raised:
        dtf.read_tfrecord(path, schema).compute()
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.for_commands()) == (str(raised.value), raised.value.for_commands())
    shown("to-zarr", path, store, *options, "--errors", errors)
    assert dtf.from_zarr(store)["label"].compute().tolist() == labels


@pytest.fixture
def torn(tmp_path: Path) -> Path:
    """Write three shards of ten records each, and damage the first record of the first shard and the third one."""
    folder = tmp_path / "damaged"
    for number in range(3):
        records = {"label": np.arange(10) + 10 * number, "word": [f"w{n % 2}".encode() for n in range(10)]}
        dtf.to_tfrecord(records, folder / f"s-{number}.tfrecord")
    shutil.copytree(folder, tmp_path / "intact")
    for number in (0, 2):
        flip(folder / f"s-{number}.tfrecord", 14)
    return folder


INTACT = [*range(1, 20), *range(21, 30)]


def test_every_command_skips_damage_among_the_first_records(torn: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    skip = ["--errors", "skip"]
    targets: dict[str, list[Any]] = {
        **{name: [] for name in ("info", "head", "describe", "schema")},
        **{name: [f"{tmp_path}/{name}/"] for name in ("to-zarr", "to-parquet", "copy")},
        "preview": [tmp_path / "p.html"],
    }
    for command, target in targets.items():
        refused = run(command, torn, *target)
        assert_one_line_of_error(refused, ".tfrecord: record 0", "--errors skip")
        done = run(command, torn, *target, *skip)
        assert done.exit_code == 0, (command, done.output)
    assert dtf.from_zarr(tmp_path / "to-zarr")["label"].compute().tolist() == INTACT
    assert pandas.read_parquet(tmp_path / "to-parquet")["label"].tolist() == INTACT
    copied = dtf.read_tfrecord(tmp_path / "copy")
    assert (copied["label"].compute().tolist(), copied.npartitions) == (INTACT, 3)
    lines = shown("head", torn, "-n", 99, "--json", *skip).splitlines()
    assert [json.loads(line)["label"] for line in lines] == INTACT
    text = shown("info", torn, *skip, "--sample", "all", "--where", "label > 3")
    assert "records      28, 9 to 10 per shard" in text and "matching     25" in text
    assert "damage       3 files, 28 records, damage in 2: 2 records lost" in text.replace("unknown number of", "2")
    found = json.loads(shown("info", torn, *skip, "--json"))
    assert [bool(shard["lost"]) for shard in found["shards"]] == [True, False, True]
    assert dtf.infer_schema(torn, errors="skip") == dtf.infer_schema(torn / "s-1.tfrecord")
    assert dtf.inspect_records(torn, errors="skip", sample=None).records == 28
    for call in (dtf.infer_schema, partial(dtf.copy_tfrecord, target=tmp_path / "x")):
        with pytest.raises(ValueError, match="errors must be 'raise' or 'skip'; got 'fill'"):
            call(torn, errors="fill")


@pytest.mark.parametrize("skipped", [False, True])
@pytest.mark.parametrize("records", [None, 4])
def test_copies_of_some_records_have_their_bytes(torn: Path, tmp_path: Path, skipped: bool, records: Any) -> None:
    source = torn if skipped else torn / "s-1.tfrecord"
    options: list[Any] = ["--where", "word == 'w1'", "--where", "label > 4"] + ["--errors", "skip"] * skipped
    if records:
        options += ["--records-per-shard", records]
    shown("copy", source, f"{tmp_path}/out/c-{{shard}}.tfrecord", *options)
    wanted = [label for label in (INTACT if skipped else range(10, 20)) if label % 2 and label > 4]
    kept = {
        dtf.messages.Example.FromString(payload).features.feature["label"].int64_list.value[0]: payload
        for number in ((0, 1, 2) if skipped else (1,))
        for payload in oracle.read_payloads(tmp_path / "intact" / f"s-{number}.tfrecord")
    }
    found = [oracle.read_payloads(path) for path in sorted((tmp_path / "out").glob("c-*"))]
    assert [payload for shard in found for payload in shard] == [kept[label] for label in wanted]
    sizes = [sum(1 for label in wanted if label // 10 == shard) for shard in (0, 1, 2)]
    if records:
        assert all(len(shard) == records for shard in found[:-1])
    else:
        assert list(map(len, found)) == (sizes if skipped else sizes[1:2])
    assert_usage(run("copy", source, tmp_path / "y", "--features", "f.json"), "--where compares")


def test_copies_of_no_record_are_empty_shards(torn: Path, tmp_path: Path) -> None:
    dtf.copy_tfrecord(torn / "s-1.tfrecord", tmp_path / "none.tfrecord", filters=[("label", ">", 99)])
    assert (tmp_path / "none.tfrecord").read_bytes() == b""
    with pytest.raises(UnknownFeatureError, match="did you mean 'label'"):
        dtf.copy_tfrecord(torn / "s-1.tfrecord", tmp_path / "x", filters=[("labels", ">", 99)])
    with pytest.raises(ValueError, match="give filters="):
        dtf.copy_tfrecord(torn / "s-1.tfrecord", tmp_path / "x", features={"label": dtf.FixedLenFeature((), "int64")})


def test_info_shows_the_features_that_head_reads(tmp_path: Path) -> None:
    """The metadata of TFDS name shapes and classes that no inference finds."""
    listed = [line.split() for line in shown("schema", EVERY, "--split", "train").splitlines()]
    text = shown("info", EVERY)
    assert f"{len(dtf.read_tfrecord(EVERY, split='train').schema)} features of the metadata" in text
    assert all(line in [each.split() for each in text.splitlines()] for line in listed if line)
    found = json.loads(shown("info", EVERY, "--json"))
    schema = dtf.read_tfrecord(EVERY, split="train").schema
    # The schema of columns also contains the schema of their records.
    wanted = {key: value for key, value in json.loads(schema.to_json()).items() if key != "records"}
    assert found["schema"] == wanted and found["report"] is None
    assert pasted(shown("info", EVERY, "--spec"))["schema"] == schema
    assert "inferred from" in shown("info", EVERY, "--sample", 3)
    shown("copy", EVERY, tmp_path / "all.tfrecord", "--where", "label == 1")
    counts = [(dtf.read_tfrecord(EVERY, split=split)["label"].compute() == 1).sum() for split in ("train", "test")]
    assert dtf.verify(tmp_path / "all.tfrecord").records == sum(counts)


@POSIX
@pytest.mark.integration
@pytest.mark.parametrize(("command", "status"), [("info", 0), ("head", 0), ("describe", 0), ("verify", 0), ("bad", 1)])
def test_a_reader_may_close_the_pipe(shards: Path, golden: Path, command: str, status: int) -> None:
    """`info | head -1` succeeds; `verify` of a damaged file does not."""
    arguments = ["verify", golden / "damaged_payload_bit.tfrecord"] if command == "bad" else [command, shards]
    process = subprocess.Popen(
        [sys.executable, "-m", "dask_tfrecord", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(PATIENCE), said) == (status, "")


def test_shards_are_no_store(shards: Path, tmp_path: Path) -> None:
    for source in (shards, shards / "train-*.tfrecord"):
        assert_usage(run("to-tfrecord", source, tmp_path / "out.tfrecord"), "the command copy writes shards")


@pytest.mark.parametrize("where", [0, 1])
def test_debug_raises_before_and_after_the_command(where: int, golden: Path) -> None:
    arguments: list[object] = ["info", golden / "damaged_truncated_header.tfrecord"]
    arguments.insert(2 * where, "--debug")
    assert isinstance(run(*arguments).exception, dtf.CorruptRecordError)


# -- width and counts --------------------------------------------------------------------------------------------------

LONG = "steps/observation/of/the/left/camera/which/hangs/below/the/wrist/image"
NAMES = ["label", "image/object/bounding_box/top_left", LONG, f"{LONG}/{LONG}"]


@pytest.fixture(scope="module")
def long_names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a shard of features with long names, each of a different class."""
    path = tmp_path_factory.mktemp("long") / "long-names.tfrecord"
    texts = np.array([f"a text of row {row}" for row in range(1200)])
    columns = [np.arange(1200), np.zeros((1200, 4), np.float32), texts, [np.arange(row % 7) for row in range(1200)]]
    dtf.to_tfrecord(dict(zip(NAMES, columns, strict=True)), path)
    return path


def at_a_terminal(columns: int, *arguments: object) -> str:
    """Return the output of a command in a terminal of this width."""
    screen = Terminal()
    command = [sys.executable, "-m", "dask_tfrecord", *map(str, arguments)]
    variables = {**environment(), "COLUMNS": str(columns), "TERM": "xterm"}
    done = subprocess.run(command, stdout=screen.theirs, stderr=subprocess.PIPE, env=variables, timeout=120)
    text = screen.close()
    assert done.returncode == 0, done.stderr.decode()
    return text.replace("\r\n", "\n")


def piped(columns: int, *arguments: object) -> str:
    return shown(*arguments, columns=columns)


INFO = {
    80: [r"^    FixedLenFeature +float32 +\(4,\) +256 of 256 +4$", r"^    looks like text$", rf"^{LONG}/{LONG}$"],
    300: [rf"^{LONG} +FixedLenFeature +bytes +\(\) +256 of 256 +1 +text *$"],
}
PLAN = {
    80: [r"^    int64 +1,200 +1,200 +- +9\.38 kiB$", r"^    codecs blosc\(cname=lz4, clevel=5, shuffle=shuffle\)$"],
    300: [r"^peak memory of a worker"],
}


@pytest.mark.parametrize(
    "printed", [piped, pytest.param(at_a_terminal, marks=[pytest.mark.integration, POSIX])], ids=["piped", "terminal"]
)
def test_no_cell_is_broken_at_a_narrow_terminal(printed: Callable[..., str], long_names: Path, tmp_path: Path) -> None:
    for command, patterns in ((["info", long_names], INFO), (["to-zarr", long_names, tmp_path / "a", "--plan"], PLAN)):
        if printed is piped and patterns is PLAN:
            # A pipe gets one line for each array, whatever its length.
            assert len(re.findall(r"^  .* blosc\(", piped(80, *command), re.MULTILINE)) == 6
            continue
        for columns, expected in patterns.items():
            text = printed(columns, *command)
            # A terminal must wrap long words.
            assert not [line for line in text.splitlines() if len(line) > columns and len(line.split()) > 1]
            for pattern in expected:
                assert re.search(pattern, text, re.MULTILINE), text


def test_piped_info_fits_80_columns(tmp_path: Path) -> None:
    names = [f"observation/of/a/long/name/{number}" for number in range(3)]
    oracle.write_oracle(tmp_path / "a", [example(**{name: [b"\xff\xd8\xff" * 9] for name in names})])
    text = shown("info", tmp_path / "a", columns=None)
    assert names[2] in text
    assert max(map(len, text.splitlines())) <= 80


def test_counts_have_separators_and_the_right_plural(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [plural(n, "record") for n in (0, 1, 1200)] == ["0 records", "1 record", "1,200 records"]
    monkeypatch.chdir(tmp_path)
    dtf.to_tfrecord({"x": np.array([1])}, "one.tfrecord")
    ds = dtf.read_tfrecord("one.tfrecord")
    report = dtf.inspect_records("one.tfrecord")
    texts = [repr(each) for each in (ds, ds.schema, ds.plan_zarr(), report, dtf.verify("one.tfrecord"))]
    targets = {"info": [], "verify": [], "index": [], "to-zarr": ["one.zarr"], "copy": ["copy.tfrecord"]}
    texts += [shown(command, "one.tfrecord", *target) for command, target in targets.items()]
    with pytest.raises(dtf.FeatureError) as error:
        dtf.read_tfrecord("one.tfrecord", {"x": dtf.FixedLenFeature((2,), "int64")}).compute()
    for text in [*texts, str(error.value)]:
        assert not re.search(
            r"\b1 (record|shard|file|feature|chunk|task|array|thread|value|write unit|byte|place)s\b", text
        )


# -- programs ----------------------------------------------------------------------------------------------------------


def program(name: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    path = shutil.which(name, path=str(Path(sys.executable).parent))
    assert path, f"{name} not found next to {sys.executable}: install the package there"
    return run_program(path, *arguments, **options)


@pytest.mark.integration
def test_dask_has_the_same_commands(shards: Path, golden: Path) -> None:
    bad = golden / "damaged_not_a_tfrecord.tfrecord"
    for arguments, status in ((["info", shards], 0), (["info", bad], 1)):
        ours, dasks = program("dask-tfrecord", *arguments), program("dask", "tfrecord", *arguments)
        assert (ours.returncode, ours.stdout, ours.stderr) == (dasks.returncode, dasks.stdout, dasks.stderr)
        assert (ours.returncode, len(ours.stderr.splitlines())) == (status, status)
    debugged = program("dask-tfrecord", "info", bad, "--debug")
    assert debugged.returncode == 1
    assert re.search(r"Traceback \(most recent call last\)[^$]*CorruptRecordError", debugged.stderr)


@pytest.mark.integration
@pytest.mark.slow
def test_info_reads_all_records_in_processes(shards: Path) -> None:
    # Without the limit, these shards are too small for processes.
    limit = "common._PROCESSES_NBYTES"
    code = f"from dask_tfrecord.cli import common, main; assert {limit}; {limit} = 0; main()"
    done = run_python("-c", code, "info", shards, "--sample", "all", "--threads", 2)
    assert done.stdout == shown("info", shards, columns=None)


@pytest.mark.integration
@POSIX
def test_a_full_disk_is_one_line_and_leaves_no_store(tmp_path: Path) -> None:
    import resource

    def limit() -> None:
        # Limit the files of this process to 100 kB, like a full disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    oracle.write_oracle(tmp_path / "noise", examples(4000))
    done = program("dask-tfrecord", "to-zarr", tmp_path / "noise", tmp_path / "noise.zarr", preexec_fn=limit)
    assert done.returncode == 1
    assert re.search(r"^Error: .*File too large", done.stderr, re.MULTILINE)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "noise.zarr").exists()


@pytest.mark.integration
@POSIX
def test_a_repair_on_a_full_disk_leaves_the_older_file(tmp_path: Path) -> None:
    import resource

    oracle.write_oracle(tmp_path / "torn", examples(4000))
    data = (tmp_path / "torn").read_bytes()
    (tmp_path / "torn").write_bytes(data[:-1])
    (tmp_path / "repaired").write_bytes(b"older")
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (100_000, 100_000))
    done = program("dask-tfrecord", "repair", "--overwrite", tmp_path / "torn", tmp_path / "repaired", preexec_fn=limit)
    assert len(data) > 200_000 and done.returncode == 1
    assert (
        re.search(r"^Error: .*repaired.*File too large", done.stderr, re.MULTILINE) and "Traceback" not in done.stderr
    )
    assert (tmp_path / "repaired").read_bytes() == b"older"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["repaired", "torn"]


@pytest.mark.integration
@pytest.mark.slow
@POSIX
def test_an_interrupt_exits_with_status_130_and_can_be_resumed(tmp_path: Path) -> None:
    many, store = tmp_path / "many", tmp_path / "many.zarr"
    oracle.write_oracle(many, examples(2000))
    command = ["to-zarr", str(many), str(store), "--columns", "label", "--chunks", "1"]
    arguments = [sys.executable, "-m", "dask_tfrecord", *command]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: any(store.glob(".dask_tfrecord/**/units/*")) or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert errors.splitlines()[-2:] == ["Interrupted", "written units are kept: --resume continues it"]
    assert "Traceback" not in errors
    written = len(list((store / "label" / "c").iterdir()))
    for refused, said in (
        (command, ["an interrupted conversion: --resume continues it, --overwrite replaces it"]),
        ([*command[:-1], "2", "--resume"], ["chunks was 1 and now is 2", "Pass --overwrite to start over"]),
        (
            ["to-tfrecord", store, tmp_path / "again.tfrecord"],
            ["never finished: to-zarr --resume continues it, --overwrite starts over"],
        ),
    ):
        assert_one_line_of_error(run(*refused), *said)
    resumed = shown(*command, "--resume")
    found = re.search(r"2,000 rows of 1 feature \(([\d,]+) of 2,000 write units before\) in ", resumed)
    # The interrupted write unit is not in the checkpoint.
    assert found and 0 < int(found[1].replace(",", "")) <= written
    assert_stored(store, many, columns=["label"])
    assert shown(*command, "--resume").endswith("complete: nothing was left to write\n")


@pytest.mark.parametrize("name", sorted(tfrecord.commands))
def test_a_shell_completes_the_names_of_files(name: str) -> None:
    completion = ShellComplete(tfrecord, {}, "dask-tfrecord", "_DASK_TFRECORD_COMPLETE")
    assert {(item.value, item.type) for item in completion.get_completions([name], "tra")} == {("tra", "file")}
    files = [
        option
        for parameter in tfrecord.commands[name].params
        for option in parameter.opts
        if option in ("--features", "--html", "--tfmd", "--message")
    ]
    for option in files:
        assert [item.type for item in completion.get_completions([name, option], "sch")] == ["file"], option
