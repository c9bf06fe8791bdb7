"""Terminal output of commands: readable at 80 columns, with existing file names and uniform counts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import dask_tfrecord as dtf
from dask_tfrecord.cli.main import tfrecord
from dask_tfrecord.errors import plural

POSIX = pytest.mark.skipif(os.name == "nt", reason="needs POSIX terminals")
LONG = "steps/observation/of/the/left/camera/which/hangs/below/the/wrist/image"
NAMES = ["label", "image/object/bounding_box/top_left", LONG, f"{LONG}/{LONG}"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a shard of features with long names, each of a different class."""
    path = tmp_path_factory.mktemp("long") / "long-names.tfrecord"
    rng = np.random.default_rng(0)
    columns = [
        rng.integers(0, 5, 1200),
        rng.normal(size=(1200, 4)).astype("float32"),
        [f"a text of row {row}" for row in range(1200)],
        [np.arange(row % 7) for row in range(1200)],
    ]
    dtf.to_tfrecord(
        {name: np.array(c) if isinstance(c[0], str) else c for name, c in zip(NAMES, columns, strict=True)}, path
    )
    return path


def at_a_terminal(*arguments: object, columns: int) -> str:
    """Return the output of a command in a terminal of this width."""
    import pty

    ours, theirs = pty.openpty()
    code = "import sys; from dask_tfrecord.cli.main import main; main()"
    environment = {
        **os.environ,
        "COLUMNS": str(columns),
        "TERM": "xterm",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=environment) as process:
        os.close(theirs)
        shown = bytearray()
        try:
            while part := os.read(ours, 1 << 16):
                shown += part
        except OSError:  # Linux reports the end of a terminal as an error.
            pass
        _, errors = process.communicate(timeout=120)
    os.close(ours)
    assert process.returncode == 0, errors.decode()
    return re.sub(r"\x1b\[[\d;?]*\w", "", shown.decode()).replace("\r\n", "\n")


def too_long(text: str, columns: int) -> list[str]:
    """Return the lines that a terminal must wrap, except those of a single word."""
    return [line for line in text.splitlines() if len(line) > columns and len(line.split()) > 1]


@pytest.mark.integration
@POSIX
@pytest.mark.parametrize(
    "columns", [pytest.param(60, marks=pytest.mark.slow), 80, pytest.param(120, marks=pytest.mark.slow)]
)
def test_info_breaks_no_cell_at_a_narrow_terminal(shards: Path, columns: int) -> None:
    shown = at_a_terminal("info", shards, columns=columns)
    lines = shown.splitlines()
    assert not too_long(shown, columns)
    assert set(NAMES) <= set(lines)
    assert re.search(r"^    FixedLenFeature +float32 +\(4,\) +256 of 256 +4$", shown, re.MULTILINE)
    assert "    looks like text" in lines


@pytest.mark.integration
@POSIX
def test_info_is_a_table_where_the_terminal_is_wide(shards: Path) -> None:
    shown = at_a_terminal("info", shards, columns=300)
    assert re.search(rf"^{LONG} +FixedLenFeature +bytes +\(\) +256 of 256 +1 +text *$", shown, re.MULTILINE)


@pytest.mark.integration
@POSIX
@pytest.mark.parametrize("columns", [80, pytest.param(100, marks=pytest.mark.slow)])
def test_a_plan_breaks_no_cell_at_a_narrow_terminal(shards: Path, tmp_path: Path, columns: int) -> None:
    shown = at_a_terminal("to-zarr", shards, tmp_path / "some.zarr", "--plan", columns=columns)
    assert not too_long(shown, columns)
    assert re.search(r"^    <i8 +1,200 +1,200 +- +9\.38 kiB$", shown, re.MULTILINE)
    assert "    codecs blosc(cname=lz4, clevel=5, shuffle=shuffle)" in shown.splitlines()
    assert re.search(r"^peak memory of a worker", shown, re.MULTILINE)


def test_a_pipe_gets_one_line_for_each_feature_whatever_its_length(shards: Path, tmp_path: Path) -> None:
    info = CliRunner(env={"COLUMNS": "500"}).invoke(tfrecord, ["info", str(shards)]).stdout
    plan = CliRunner().invoke(tfrecord, ["to-zarr", str(shards), str(tmp_path / "some.zarr"), "--plan"]).stdout
    for name in NAMES:
        assert re.search(rf"^{name} +\w+Feature .*256 of 256", info, re.MULTILINE)
    assert len(re.findall(r"^  .* blosc\(", plan, re.MULTILINE)) == 6


def test_commands_that_write_shards_report_how_many_and_their_names(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    copied = CliRunner().invoke(tfrecord, ["copy", str(shards), "parts/", "--records-per-shard", "500"]).stdout
    names = "parts/data-00000-of-00003.tfrecord to parts/data-00002-of-00003.tfrecord"
    assert copied.startswith(f"Wrote 3 shards, {names}: 1,200 records in ")
    assert (tmp_path / "parts" / "data-00002-of-00003.tfrecord").exists()
    assert CliRunner().invoke(tfrecord, ["to-zarr", str(shards), "some.zarr", "--columns", "label"]).exit_code == 0
    written = CliRunner().invoke(tfrecord, ["to-tfrecord", "some.zarr", "one-{shard}-of-{shards}.tfrecord"]).stdout
    assert written.startswith("Wrote one-0-of-1.tfrecord: 1,200 rows of 1 feature in ")


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 records"), (1, "1 record"), (2, "2 records"), (1200, "1,200 records")]
)
def test_counts_have_separators_and_the_right_plural(number: int, text: str) -> None:
    assert plural(number, "record") == text


def test_one_of_each_is_singular_in_every_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dtf.to_tfrecord({"x": np.array([1])}, "one.tfrecord")
    ds = dtf.read_tfrecord("one.tfrecord")
    report = dtf.inspect_records("one.tfrecord")
    texts = [repr(each) for each in (ds, ds.schema, ds.plan_zarr(), report, dtf.verify("one.tfrecord"))]
    for arguments in (["info"], ["verify"], ["index"], ["to-zarr"], ["copy"]):
        target = {"to-zarr": ["one.zarr"], "copy": ["copy.tfrecord"]}.get(arguments[0], [])
        done = CliRunner().invoke(tfrecord, [*arguments, "one.tfrecord", *target])
        assert done.exit_code == 0, done.output
        texts.append(done.output)
    with pytest.raises(dtf.FeatureError) as error:
        dtf.read_tfrecord("one.tfrecord", {"x": dtf.FixedLenFeature((2,), "int64")}).compute()
    for text in [*texts, str(error.value)]:
        assert not re.search(
            r"\b1 (record|shard|file|feature|chunk|task|array|thread|value|write unit|byte|place)s\b", text
        )
