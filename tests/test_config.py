"""Settings below `tfrecord` in dask's configuration: defaults, schema, page, environment, files, wrong values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import yaml
from support.paths import REPOSITORY
from support.programs import run_python

import dask_tfrecord as dtf
from dask_tfrecord.settings import DEFAULTS_FILE, read_count, read_nbytes, read_seconds

DEFAULTS: dict[str, Any] = yaml.safe_load(DEFAULTS_FILE.read_text("utf-8"))
SCHEMA: dict[str, Any] = yaml.safe_load(DEFAULTS_FILE.with_name("tfrecord-schema.yaml").read_text("utf-8"))
PAGE = REPOSITORY / "docs" / "how-to" / "configuration.md"
TYPES = {"boolean": bool, "integer": int, "number": float, "string": str, "null": type(None)}


def leaves(section: Mapping[str, Any], inner: Callable[[Any], Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the full name and the entry of each setting; `inner` returns the settings below an entry."""
    for key, value in section.items():
        if below := inner(value):
            yield from leaves(below, inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def defaults() -> dict[str, Any]:
    return dict(leaves(DEFAULTS, lambda value: value if isinstance(value, dict) else None))


def test_the_schema_describes_every_default() -> None:
    schema = dict(leaves(SCHEMA["properties"], lambda value: value.get("properties")))
    assert list(defaults()) == list(schema)
    for name, value in defaults().items():
        kinds = schema[name]["type"]
        assert isinstance(value, tuple(TYPES[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds))), name
        assert len(schema[name]["description"]) > 60
    # One namespace, and a comment for each line.
    assert list(DEFAULTS) == ["tfrecord"]
    for name in defaults():
        assert re.search(rf"^ +{name.rpartition('.')[2]}: .* # \w", DEFAULTS_FILE.read_text("utf-8"), re.MULTILINE)


def test_the_page_lists_every_setting_with_its_default_and_its_environment_variable() -> None:
    rows = re.findall(r"^\| `(tfrecord\.[\w.-]+)` \| `(.*?)` \| `(DASK_\w+)` \| (.{30,}) \|$", PAGE.read_text(), re.M)
    assert {name: yaml.safe_load(value) for name, value, _, _ in rows} == defaults()
    for name, _, variable, _ in rows:
        assert variable == "DASK_" + name.replace(".", "__").replace("-", "_").upper()


# Programs that a new process runs with DASK_CONFIG at a directory of mine: `dask.config.set` of another test may have
# removed the defaults of this one.
PROGRAMS = {
    "defaults come with dask": "import dask, dask_tfrecord; assert dask.config.get('tfrecord.progress') is True",
    "or at the first use": (
        "import dask_tfrecord, dask\n"
        "assert dask.config.get('tfrecord', None) is None\n"
        "dask_tfrecord.read_tfrecord\n"
        f"assert dask.config.get('tfrecord') == {DEFAULTS['tfrecord']!r}\n"
    ),
    "values set before the defaults are loaded end without them": (
        "import sys, dask_tfrecord, dask\n"
        "assert 'dask_tfrecord.settings' not in sys.modules\n"
        "with dask.config.set({'tfrecord.storage.attempts': 3}):\n"
        "    from dask_tfrecord.settings import read_count, read_seconds\n"
        "    assert (read_count('storage.attempts'), read_seconds('storage.timeout')) == (3, 120)\n"
        "assert (read_count('storage.attempts'), read_seconds('storage.timeout')) == (8, 120)\n"
        "dask.config.refresh()\n"
        "assert dask.config.get('tfrecord.storage.attempts') == 8\n"
    ),
}


@pytest.mark.integration
@pytest.mark.parametrize("program", PROGRAMS)
def test_defaults_appear_in_a_new_process(program: str, tmp_path: Path) -> None:
    run_python("-c", PROGRAMS[program], DASK_CONFIG=str(tmp_path))
    # No file is written without a request.
    assert not list(tmp_path.iterdir())


@pytest.mark.integration
def test_files_and_environment_variables_precede_the_defaults(tmp_path: Path) -> None:
    mine = {"tfrecord": {"storage": {"timeout": "7s", "range-size": "1 MiB"}, "decode": None}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(mine))
    code = (
        "from dask_tfrecord.settings import *;print(read_seconds('storage.timeout'), read_nbytes('storage.range-size'),"
        " read_setting('decode.memory-limit'), read_setting('progress'), read_count('storage.attempts'))"
    )
    variables = {"DASK_TFRECORD__STORAGE__RANGE_SIZE": "2 MiB", "DASK_TFRECORD__PROGRESS": "False"}
    printed = run_python("-c", code, DASK_CONFIG=str(tmp_path), **variables).stdout
    assert printed.strip() == f"7.0 {2 << 20} auto False 8"


def test_the_defaults_can_be_copied_to_a_file_of_the_user(tmp_path: Path) -> None:
    dask.config.ensure_file(str(DEFAULTS_FILE), destination=str(tmp_path))
    lines = (tmp_path / "tfrecord.yaml").read_text("utf-8").splitlines()
    assert all(line.startswith("#") or not line.strip() for line in lines)


@pytest.mark.parametrize(
    ("name", "values", "read"),
    [
        ("storage.attempts", [0, -1, "many", None, 2.5, True], read_count),
        ("storage.range-size", [0, "-1", "large", None, True, [1]], read_nbytes),
        ("storage.timeout", [0, "soon", None, float("nan"), float("inf"), {}], read_seconds),
    ],
)
def test_wrong_values_name_their_setting(name: str, values: list[Any], read: Any) -> None:
    for value in values:
        with (
            dask.config.set({f"tfrecord.{name}": value}),
            pytest.raises(ValueError, match=rf"dask\.config 'tfrecord\.{name}' must be a .*; got"),
        ):
            read(name)


def test_an_unknown_kind_of_limit_is_refused_where_shards_are_read(tmp_path: Path) -> None:
    dtf.to_tfrecord({"x": np.arange(3)}, tmp_path / "x.tfrecord")
    ds = dtf.read_tfrecord(tmp_path / "x.tfrecord")
    with (
        dask.config.set({"tfrecord.decode.memory-limit": "half"}),
        pytest.raises(ValueError, match=r"'tfrecord.decode.memory-limit' must be .*, 'auto' or None; got 'half'"),
    ):
        ds.compute()
