"""Logs below `dask_tfrecord`: messages, levels, the page that lists them, and the option `--verbose`."""

from __future__ import annotations

import ast
import errno
import logging
import os
import re
from pathlib import Path
from typing import Any

import dask
import pytest
from support.commands import run
from support.disk_writes import put_each
from support.numbered_shards import damage
from support.paths import REPOSITORY

import dask_tfrecord as dtf
from dask_tfrecord.shards.objects import DirectoryObjects

PACKAGE = Path(dtf.errors.__file__).parent
PAGE = REPOSITORY / "docs" / "how-to" / "configuration.md"
ROWS = 40


def loggers() -> dict[str, set[str]]:
    """Levels of the messages of each module that logs."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        if "_log." not in path.read_text("utf-8"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            function = getattr(node, "func", None)
            if isinstance(function, ast.Attribute) and getattr(function.value, "id", "") == "_log":
                name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
                found.setdefault(name, set()).add(function.attr)
    return {name: levels - {"isEnabledFor"} for name, levels in found.items()}


def messages(caplog: pytest.LogCaptureFixture, name: str, level: int) -> list[str]:
    found = [each for each in caplog.records if each.name == f"dask_tfrecord.{name}" and each.levelno == level]
    return [record.getMessage() for record in found]


def test_the_page_lists_every_logger_with_its_levels() -> None:
    listed: dict[str, set[str]] = {}
    name = ""
    for given, level in re.findall(
        r"^\| (?:`(dask_tfrecord[\w.]*)`)? ?\| (debug|info|warning) \|", PAGE.read_text(), re.M
    ):
        name = given or name
        listed.setdefault(name, set()).add(level)
    assert listed == loggers()


def test_no_handler_is_installed_and_ordinary_work_warns_of_nothing(
    shards: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "dask_tfrecord"):
        dtf.read_tfrecord(shards).to_zarr(tmp_path / "a.zarr")
        dtf.from_zarr(tmp_path / "a.zarr").to_tfrecord(tmp_path / "a.tfrecord")
    assert {record.levelname for record in caplog.records} == {"DEBUG", "INFO"}
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] == "dask_tfrecord"]
    assert names
    assert not [name for name in names if logging.getLogger(name).handlers]


def test_opening_reports_shards_records_and_the_indexes_that_were_used(
    shards: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dtf.build_index(sorted(shards.iterdir())[:3])
    with caplog.at_level(logging.DEBUG, "dask_tfrecord"):
        dtf.read_tfrecord(shards, chunks=8)
        [counted] = messages(caplog, "rows.counting", logging.INFO)
        assert re.search(
            r"part-0\S* and 3 others: counted 40 records of 4 shards, 3 by their index, in 1 task", counted
        )
        [opened] = messages(caplog, "rows.read", logging.INFO)
        assert re.search(r"opened .+ and 3 others: 4 shards of [\d,]+ bytes, 40 records of 3 features, 5 ch", opened)
        [headers] = messages(caplog, "records.index", logging.DEBUG)
        assert headers.endswith("part-3.tfrecord: counted 10 records by their headers")
        dtf.read_tfrecord(shards, counts=None)
        assert ", uncounted records of" in messages(caplog, "rows.read", logging.INFO)[1]


def test_damage_that_is_passed_over_is_a_warning(shards: Path, caplog: pytest.LogCaptureFixture) -> None:
    damage(shards / "part-1.tfrecord")
    assert dtf.read_tfrecord(shards, errors="skip").nrows == ROWS - 1
    [warning] = messages(caplog, "rows.damaged_records", logging.WARNING)
    assert "4 files, 39 records, damage in 1: 1 record lost; errors='skip' reads the other records" in warning


def test_writers_report_units_published_shards_and_resume_decisions(
    shards: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds, store = dtf.read_tfrecord(shards), tmp_path / "a.zarr"
    with caplog.at_level(logging.INFO, "dask_tfrecord"), dask.config.set(scheduler="sync"):
        ds.to_tfrecord(tmp_path / "a-{shard:02d}.tfrecord")
        published = [text.rpartition(": ") for text in messages(caplog, "stores.files.publish", logging.INFO)]
        assert sorted(Path(path).name for path, _, _ in published) == [f"a-{n:02d}.tfrecord" for n in range(4)]
        assert {text for _, _, text in published} == {"wrote 10 records"}

        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
            put, left = DirectoryObjects.put, iter(range(20))

            def limited(self: DirectoryObjects, name: str, value: Any) -> None:
                if "/c/" in name and next(left, None) is None:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                put(self, name, value)

            patch.setattr(DirectoryObjects, "put", limited)
            patch.setattr(DirectoryObjects, "put_all", put_each)
            ds.to_zarr(store, chunks=5, resume=True)
        caplog.clear()
        ds.to_zarr(store, chunks=5, resume=True)
        ds.to_zarr(store, chunks=5, resume=True)
        assert messages(caplog, "stores.zarr.write", logging.INFO) == [
            f"{store}: resuming the interrupted run",
            f"{store}: all is written already",
        ]
        begin, end = messages(caplog, "stores.output", logging.INFO)
    found = re.fullmatch(rf"{re.escape(str(store))}: writing (\d+) units, (\d+) of them were written before", begin)
    assert found
    assert 0 < int(found[2]) < int(found[1])
    assert re.fullmatch(rf"{re.escape(str(store))}: wrote {int(found[1]) - int(found[2])} units? in \d+\.\d s", end)


def test_verbose_prints_logs_on_stderr_for_one_command(shards: Path, tmp_path: Path) -> None:
    logger = logging.getLogger("dask_tfrecord")
    before = logger.level
    plain = run("verify", shards)
    for arguments in (["-v", "copy", shards, tmp_path / "a"], ["copy", shards, tmp_path / "b", "--verbose"]):
        result = run(*arguments)
        assert result.exit_code == 0, result.stderr
        lines = result.stderr.splitlines()
        assert len([line for line in lines if line.startswith("info: ") and line.endswith(": wrote 40 records")]) == 1
        assert {line.split(":")[0] for line in lines} == {"info"}
    debug = run("to-zarr", "-vv", shards, tmp_path / "a.zarr").stderr
    assert {line.split(":")[0] for line in debug.splitlines()} == {"info", "debug"}
    assert not logger.handlers
    assert logger.level == before
    again = run("verify", shards)
    assert (again.stdout, again.stderr) == (plain.stdout, plain.stderr)
