"""Names of features, files and groups reach no terminal with control characters or changes of direction."""

import json
import shutil
import sys
import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from support.commands import run
from support.damage import flip
from support.programs import run_python
from support.wire import example

import dask_tfrecord as dtf

HOSTILE = "a\x1b[31m\x9b2J\u202eb\u2028c"
# Names of Zarr arrays encode other parts of the name.
ESCAPED = r"\x9b2J\u202eb\u2028c"
ITEMS = f"{HOSTILE}/items"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards: their names, and the names and texts of their features, are hostile."""
    directory = tmp_path_factory.mktemp("hostile")
    records = [
        example(**{HOSTILE: [float(number)], ITEMS: range(number), f"{HOSTILE} unset": []}) for number in range(4)
    ]
    for number in range(2):
        oracle.write_oracle(directory / f"{HOSTILE}-{number}.tfrecord", records)
    return directory


@pytest.fixture(scope="module")
def damaged(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damaged") / f"{HOSTILE}.tfrecord"
    shutil.copy(folder / f"{HOSTILE}-0.tfrecord", path)
    flip(path, 20)
    return path


def assert_printable(text: str) -> None:
    assert all(letter.isprintable() for line in text.split("\n") for letter in line), ascii(text)
    assert not any(unicodedata.bidirectional(letter) in {"RLO", "LRO", "RLE", "LRE"} for letter in text)
    assert ESCAPED in text


def error_of(call: Callable[[], object]) -> str:
    with pytest.raises(Exception, match=r"\w") as raised:
        call()
    return str(raised.value)


SCHEMA = dtf.Schema(
    {HOSTILE: dtf.FixedLenFeature((), "float32"), ITEMS: dtf.VarLenFeature("int64")},
    classes={ITEMS: [HOSTILE, "b"]},
    groups={HOSTILE: [ITEMS]},
)


def open_shards(folder: Path) -> dtf.Dataset:
    return dtf.read_tfrecord(folder, SCHEMA)


def workers_report() -> Any:
    from dask_tfrecord.extras.workers import PathCheck, WorkerCheck, WorkersReport

    path = PathCheck(f"/{HOSTILE}", None, f"no file /{HOSTILE}")
    worker = WorkerCheck("tcp://a:1", "a", HOSTILE, 1, None, "3.11.1", {}, 0.0, (path,), (f"no file /{HOSTILE}",))
    return WorkersReport((worker,), {}, 0.1)


SHOWN: dict[str, Callable[[Path, Path, Path], object]] = {
    "schema": lambda folder, damaged, out: SCHEMA,
    "inferred schema": lambda folder, damaged, out: dtf.infer_schema(folder),
    "report": lambda folder, damaged, out: dtf.inspect_records(folder),
    "feature": lambda folder, damaged, out: dtf.RaggedFeature("int64", value_key=HOSTILE),
    "dataset": lambda folder, damaged, out: open_shards(folder),
    "dataset of one file": lambda folder, damaged, out: dtf.read_tfrecord(folder / f"{HOSTILE}-0.tfrecord", SCHEMA),
    "column": lambda folder, damaged, out: open_shards(folder)[HOSTILE],
    "plan": lambda folder, damaged, out: open_shards(folder).plan_zarr(memory_limit="1 KiB"),
    "virtual": lambda folder, damaged, out: dtf.virtual_zarr(folder, {HOSTILE: dtf.FixedLenFeature((), "float32")}),
    "sequence": lambda folder, damaged, out: open_shards(folder).as_sequence(),
    "batches": lambda folder, damaged, out: [repr(open_shards(folder).batches(2)), ESCAPED],
    "preview": lambda folder, damaged, out: open_shards(folder).preview(2),
    "statistics": lambda folder, damaged, out: open_shards(folder).describe(),
    "verification": lambda folder, damaged, out: dtf.verify(damaged),
    "workers": lambda folder, damaged, out: workers_report(),
    "error of damage": lambda folder, damaged, out: error_of(lambda: dtf.read_tfrecord(damaged, SCHEMA).compute()),
    "unknown feature": lambda folder, damaged, out: error_of(lambda: SCHEMA["missing"]),
    "unknown hostile name": lambda folder, damaged, out: error_of(lambda: open_shards(folder)[f"{HOSTILE}x"]),
    "wrong class": lambda folder, damaged, out: error_of(
        lambda: dtf.read_tfrecord(folder, {HOSTILE: dtf.FixedLenFeature((), "int64")}).compute()
    ),
    "missing file": lambda folder, damaged, out: error_of(lambda: dtf.read_tfrecord(out / HOSTILE)),
    "existing store": lambda folder, damaged, out: error_of(
        lambda: [open_shards(folder).to_zarr(out / f"{HOSTILE}.zarr") for _ in range(2)]
    ),
    "warning of damage": lambda folder, damaged, out: warned(lambda: dtf.read_tfrecord(damaged, errors="skip")),
}


def warned(call: Callable[[], object]) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return "\n".join([ESCAPED, *(str(each.message) for each in caught)])


@pytest.mark.parametrize("shown", SHOWN)
def test_reprs_reports_plans_and_errors_escape_names(shown: str, folder: Path, damaged: Path, tmp_path: Path) -> None:
    found = SHOWN[shown](folder, damaged, tmp_path)
    texts = found if isinstance(found, list) else [found]
    assert_printable("\n".join(map(str, texts)))
    for text in texts:
        if not isinstance(text, str):
            assert_printable(repr(text) + ESCAPED)
        if hasattr(text, "_repr_html_"):
            assert_printable(text._repr_html_() + ESCAPED)


def test_the_place_of_an_error_keeps_the_name(damaged: Path) -> None:
    with pytest.raises(dtf.CorruptRecordError) as raised:
        dtf.read_tfrecord(damaged, SCHEMA).compute()
    assert raised.value.place is not None
    assert raised.value.place.file == str(damaged)


COMMANDS = [
    ["info"],
    ["info", "--json"],
    ["info", "--spec"],
    ["schema"],
    *(["schema", "--format", form] for form in ("json", "python")),
    ["head"],
    ["head", "--json"],
    ["verify", "--json"],
    ["-vv", "verify"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_commands_escape_names(arguments: list[str], folder: Path, damaged: Path) -> None:
    path = damaged if "verify" in arguments else folder
    result = run(*arguments, path)
    assert_printable(result.output + ESCAPED)
    assert "Traceback" not in result.output
    if "--json" in arguments:
        # JSON has other escapes for the same names.
        first = json.loads(result.stdout.splitlines()[0])
        paths = [each["path"] for each in first.get("shards", first.get("files", ()))]
        assert any(HOSTILE in name for name in paths or first)


def test_commands_that_write_escape_names(folder: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(folder, copied)
    target = tmp_path / HOSTILE
    for arguments in (
        ["to-zarr", "--plan", copied, f"{target}.zarr"],
        ["-vv", "to-zarr", copied, f"{target}.zarr"],
        ["to-zarr", copied, f"{target}.zarr"],
        ["to-zarr", "--columns", f"{HOSTILE}x", copied, f"{target}2.zarr"],
        ["copy", copied, f"{target}.tfrecord"],
        ["repair", copied / f"{HOSTILE}-0.tfrecord", f"{target}-repaired.tfrecord"],
    ):
        assert_printable(run(*arguments).output)


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names do not depend on the locale")
def test_a_name_that_the_locale_lacks(tmp_path: Path) -> None:
    dtf.to_tfrecord({"x": np.arange(3)}, tmp_path / "a.tfrecord")
    program = f"""
import numpy as np, dask_tfrecord as dtf
here, rows, other = {str(tmp_path)!r}, {{"x": np.arange(3), "record": np.arange(3)}}, chr(252)
calls = [
    lambda: dtf.to_zarr(rows, here + "/" + other),
    lambda: dtf.to_zarr(rows, here, component=other),
    lambda: dtf.to_zarr({{other: np.arange(3)}}, here + "/store"),
    lambda: dtf.to_tfrecord(rows, here + "/" + other),
    lambda: dtf.to_parquet(rows, here + "/" + other),
    lambda: dtf.copy_tfrecord(here + "/a.tfrecord", here + "/" + other),
    lambda: dtf.repair(here + "/a.tfrecord", here + "/" + other),
    lambda: dtf.read_tfrecord(here + "/" + other),
    lambda: dtf.from_zarr(here + "/" + other),
]
for call in calls:
    try:
        call()
    except OSError as error:
        assert other in str(error) and "PYTHONUTF8=1" in str(error), error
    else:
        raise AssertionError
"""
    run_python("-c", program, LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    assert {path.name for path in tmp_path.iterdir()} <= {"a.tfrecord", "store"}
