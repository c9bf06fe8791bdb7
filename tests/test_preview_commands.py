"""Commands `schema`, `head` and `preview`, and ``python -m dask_tfrecord``."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import oracle
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import dask_tfrecord as dtf
from dask_tfrecord.cli.main import tfrecord
from dask_tfrecord.metadata.labels import schema_code


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(tfrecord, [str(argument) for argument in arguments], prog_name="dask-tfrecord")
    assert result.exit_code == 0, result.output
    return result


def pasted(code: str) -> dtf.Schema:
    namespace: dict[str, dtf.Schema] = {}
    exec(code, namespace)
    return namespace["schema"]


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "some.tfrecord"
    columns = {
        "image": np.arange(12 * 8 * 8 * 3, dtype=np.uint8).reshape(12, 8, 8, 3),
        "label": np.arange(12) % 3,
        "score": np.linspace(0, 1, 12, dtype=np.float32),
        "te\x1b[31mxt": np.array(
            [b"plain", b"\x1b]0;owned\x07", "\u202eréd \x9b2J".encode(), b"\xff\xfe\x00"] * 3, object
        ),
        "tokens": np.array([np.arange(n) for n in range(12)], object),
    }
    dtf.to_tfrecord(columns, path)
    return path


@pytest.mark.integration
def test_python_m_runs_the_command_line() -> None:
    command = [sys.executable, "-m", "dask_tfrecord", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "Inspect, convert and repair TFRecord shards." in done.stdout


def test_every_format_of_schema_is_read_back(shard: Path, tmp_path: Path) -> None:
    expected = dtf.infer_schema(shard)
    assert pasted(run("schema", shard, "--format", "python").stdout) == expected
    for format, name in (("json", "schema.json"), ("tfmd", "schema.pbtxt")):
        text = run("schema", shard, "--format", format).stdout
        assert all(line.isprintable() for line in text.splitlines())
        (tmp_path / name).write_text(text, "utf-8")
        assert dtf.Schema.read(tmp_path / name) == expected
    # The file is an argument of the next command.
    again = run("schema", shard, "--features", tmp_path / "schema.json", "--format", "python").stdout
    assert pasted(again) == expected
    table = run("schema", shard).stdout
    rows = {line.split()[0]: line.split()[1:] for line in table.splitlines()[2:]}
    assert rows["tokens"] == ["VarLenFeature", "int64", "(-1,)", "12", "of", "12"]
    assert rows["te\\x1b[31mxt"][0] == "FixedLenFeature"


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
    table = run("schema", shard, "--features", tmp_path / "schema.json").stdout
    assert "8: cat, d\\x1bog, a, b, c, …" in table
    assert "group 'steps': steps/a, steps/b" in table
    code = run("schema", shard, "--features", tmp_path / "schema.json", "--format", "python").stdout
    assert (pasted(code), pasted(code).classes, pasted(code).groups) == (made, made.classes, made.groups)


@given(st.one_of(oracle.schemas(), oracle.schemas(steps=[dtf.VarLenFeature])))
def test_python_code_of_any_schema_builds_an_equal_one(made: dtf.Schema) -> None:
    again = pasted(schema_code(made))
    assert again == made
    assert list(again) == list(made)


def test_python_code_has_numbers_without_a_literal_and_partitions() -> None:
    made = dtf.Schema(
        {
            "a\"'\n": dtf.FixedLenFeature((2,), "float32", default_value=(math.nan, -math.inf)),
            "b": dtf.RaggedFeature("int64", value_key="v", partitions=[dtf.RaggedFeature.RowLengths("n")]),
            "c": dtf.FixedLenFeature((), "bytes", default_value=b"\x00'"),
        }
    )
    assert pasted(schema_code(made)) == made


def test_head_prints_a_table_of_80_columns(shard: Path) -> None:
    result = CliRunner().invoke(tfrecord, ["head", str(shard), "-n", "4"], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert all(line.isprintable() and len(line) <= 80 for line in lines)
    assert "te\\x1b[31mxt" in result.stdout
    assert any(line.split()[:2] == ["3", "4 bytes:"] or "3 bytes: ff fe 00" in line for line in lines)
    assert "0, 1, 2" in result.stdout


def test_head_prints_json_lines(tmp_path: Path) -> None:
    columns = {
        "text": np.array(["é\x1b\x9b".encode(), b"\xff\x00", b"a\nb"], object),
        "score": np.array([[0.1, math.nan], [math.inf, -math.inf], [1, 2]], np.float32),
        "label": np.arange(3) == 1,
    }
    dtf.to_tfrecord(columns, tmp_path / "a.tfrecord")
    arguments = ["head", tmp_path / "a.tfrecord", "-n", 3, "--json", "--columns", "text,score"]
    lines = run(*arguments).stdout.splitlines()
    assert all(line.isprintable() for line in lines)
    assert [json.loads(line) for line in lines] == [
        {"text": {"base64": "w6kbwps="}, "score": [0.1, "NaN"]},
        {"text": {"base64": "/wA="}, "score": ["Infinity", "-Infinity"]},
        {"text": "a\nb", "score": [1.0, 2.0]},
    ]


def test_preview_draws_files(shard: Path, tmp_path: Path) -> None:
    (tmp_path / "features.json").write_text(
        dtf.Schema({**dtf.infer_schema(shard), "image": dtf.FixedLenFeature((8, 8, 3), "uint8")}).to_json(), "utf-8"
    )
    given = (shard, "--features", tmp_path / "features.json", "-n", 2)
    said = run("preview", *given, tmp_path / "a.png").stdout
    assert said.endswith("a.png: 2 records of 5 features\n")
    with Image.open(tmp_path / "a.png") as image:
        pixels = np.asarray(image)
    first = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    np.testing.assert_array_equal(pixels[70:198:16, 16:144:16], first)
    run("preview", *given, tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text("utf-8").count("<img ") == 2
    assert "8 x 8 x 3" in run("preview", *given, "-").stdout
    for target, said in ((tmp_path / "a.png", "--overwrite"), (tmp_path / "a.txt", ".png or .html")):
        result = CliRunner().invoke(tfrecord, ["preview", *map(str, given), str(target)])
        assert result.exit_code == 2
        assert said in result.stderr
    run("preview", *given, tmp_path / "a.png", "--overwrite")
