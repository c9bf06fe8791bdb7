"""Conversions that were cut short and are gone on with: what is written stays, the rest follows, nothing is mixed."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import oracle
import pytest
import zarr
import zarr.storage
from support.numbered_shards import example

import dask_tfrecord as dtf
from dask_tfrecord.errors import CorruptRecordError, IncompleteStoreError, ResumeError, ShardChangedError
from dask_tfrecord.stores.zarr import store as store_module
from dask_tfrecord.stores.zarr import write
from dask_tfrecord.stores.zarr.store import TargetGroup

ROWS = 120
GRIDS: list[dict[str, Any]] = [
    {"chunks": 7},
    {"chunks": 4, "shards": 16},
    {"chunks": {"tokens.values": 50, "label": 30}},
]


def arrays(store: Any, **where: Any) -> dict[str, Any]:
    """Read what zarr itself finds."""
    return {name: array[:] for name, array in zarr.open_group(store, mode="r", **where).arrays()}


def data(store: Path) -> dict[str, bytes]:
    """Every file of a store but the metadata of its group, in which conversions have names."""
    found = {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}
    del found["zarr.json"]
    return found


def marked_by(mark: Path) -> list[str]:
    return [name for unit in json.loads(mark.read_text()).values() for name in unit["objects"]]


def times(store: Path) -> dict[str, int]:
    found = {str(path.relative_to(store)): path.stat().st_mtime_ns for path in store.rglob("c/*") if path.is_file()}
    return found | {
        str(path.relative_to(store)): path.stat().st_mtime_ns for path in store.rglob("c/*/*") if path.is_file()
    }


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A disk that is full after the number of chunks in the list."""
    from zarr.storage import _local

    put, left = _local._put, [10**9]

    def limited(path: Path, value: Any, exclusive: bool = False) -> int:
        if "c" in path.parts[-3:-1]:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return put(path, value, exclusive)

    monkeypatch.setattr(_local, "_put", limited)
    yield left


def cut_short(ds: dtf.Dataset, store: Path, broken: list[int], after: int, **options: Any) -> None:
    """Convert until the disk is full, then free space."""
    broken[0] = after
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as caught:
        ds.to_zarr(store, resume=True, **options)
    assert caught.value.__notes__ == ["written units are kept: the same call with resume=True continues it"]
    broken[0] = 10**9
    with pytest.raises(IncompleteStoreError, match="never finished"):
        dtf.from_zarr(store)


# ------------------------------------------------------------------------------------------------------- going on


@pytest.mark.parametrize("scheduler", [pytest.param("sync", marks=pytest.mark.slow), "threads"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_full_disk(
    ds: dtf.Dataset, store: Path, tmp_path: Path, broken: list[int], scheduler: str, grid: dict[str, Any]
) -> None:
    ds.to_zarr(tmp_path / "whole.zarr", **grid)
    with dask.config.set(scheduler=scheduler, num_workers=3):
        for after in (0, 1, 3, 9):
            cut_short(ds, store, broken, after, **grid)
            assert (store / ".dask_tfrecord").is_dir()
        ds.to_zarr(store, resume=True, **grid)
    assert data(store) == data(tmp_path / "whole.zarr")
    assert dtf.from_zarr(store).nrows == ROWS


def test_only_what_is_missing_is_written(ds: dtf.Dataset, store: Path, broken: list[int]) -> None:
    with dask.config.set(scheduler="sync"):
        cut_short(ds, store, broken, 20, chunks=7)
        before = times(store)
        assert len(before) == 20
        marked = {name for path in store.rglob("units/*.json") for name in marked_by(path)}
        time.sleep(0.01)
        ds.to_zarr(store, resume=True, chunks=7)
    after = times(store)
    assert {name for name, written in before.items() if after[name] == written} == marked
    assert 0 < len(marked) < len(after)


def test_nothing_is_counted_again(
    ds: dtf.Dataset, store: Path, broken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dask_tfrecord.stores import units

    with dask.config.set(scheduler="sync"):
        cut_short(ds, store, broken, 20, chunks=7)
        monkeypatch.delattr(units, "count_items")
        ds.to_zarr(store, resume=True, chunks=7)
    assert (dtf.from_zarr(store)["label"] == np.arange(ROWS)).all().compute()


@pytest.mark.parametrize("harm", ["cut", "gone", "empty", "mark cut", "mark gone"])
def test_damaged_units_are_written_again(
    ds: dtf.Dataset, store: Path, tmp_path: Path, broken: list[int], harm: str
) -> None:
    ds.to_zarr(tmp_path / "whole.zarr", chunks=7)
    with dask.config.set(scheduler="sync"):
        cut_short(ds, store, broken, 20, chunks=7)
        mark = min(store.rglob("units/*.json"))
        torn = mark if "mark" in harm else store / marked_by(mark)[0]
        if harm.endswith("cut"):
            torn.write_bytes(torn.read_bytes()[:-3])
        elif harm == "empty":
            torn.write_bytes(b"")
        else:
            torn.unlink()
        ds.to_zarr(store, resume=True, chunks=7)
    assert data(store) == data(tmp_path / "whole.zarr")


def test_resume_without_an_earlier_conversion_starts_one(ds: dtf.Dataset, store: Path) -> None:
    ds.to_zarr(store, resume=True)
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))


def test_a_complete_group_is_not_changed(ds: dtf.Dataset, store: Path) -> None:
    ds.to_zarr(store)
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    ds.to_zarr(store, resume=True)
    ds.plan_zarr().to_zarr(store, resume=True)
    delayed = ds.to_zarr(store, resume=True, compute=False)
    assert delayed.compute() is None
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before


def test_a_complete_group_has_no_leftovers(ds: dtf.Dataset, store: Path, broken: list[int]) -> None:
    cut_short(ds, store, broken, 20, chunks=7)
    # So a process that is killed leaves a file that it was writing.
    torn = store / "label" / "c" / f"3.{'0' * 32}.partial"
    torn.write_bytes(b"half")
    ds.to_zarr(store, resume=True, chunks=7)
    assert not torn.exists()
    assert sorted(path.name for path in store.iterdir()) == sorted(["zarr.json", *arrays(store)])


def test_units_lost_during_the_conversion_are_reported(ds: dtf.Dataset, store: Path) -> None:
    def spoil(blocks: dict[str, Any]) -> dict[str, Any]:
        if blocks["label"][0] == 91 and not (store.parent / "spoiled").exists():
            (store.parent / "spoiled").touch()
            (store / "label/c/2").unlink()
        return blocks

    spoiled = ds[["label"]].map_blocks(spoil, {"label": ds.schema["label"]})
    with dask.config.set(scheduler="sync"):
        with pytest.raises(IncompleteStoreError, match="1 of 18 write units differ from what was written"):
            spoiled.to_zarr(store, chunks=7, resume=True)
        spoiled.to_zarr(store, chunks=7, resume=True)
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))


def test_a_store_that_loses_units_is_reported(ds: dtf.Dataset, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lose(*_: object) -> None:
        pass

    monkeypatch.setattr(zarr.AsyncArray, "setitem", lose)
    with (
        dask.config.set(scheduler="sync"),
        pytest.raises(IncompleteStoreError, match=r"'label/c/\d+' was written and is missing"),
    ):
        ds[["label"]].to_zarr(store, chunks=7)
    assert not store.exists()


@pytest.mark.parametrize("step", ["close", "remove_torn", "consolidate"])
def test_an_interrupted_last_task_is_resumed(
    ds: dtf.Dataset, store: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    owner = store_module.Checkpoint if step == "close" else TargetGroup

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(owner, step, stop)
        ds.to_zarr(store)
    with pytest.raises(IncompleteStoreError, match="never finished"):
        dtf.from_zarr(store)
    before = times(store)
    ds.to_zarr(store, resume=True)
    assert times(store) == before
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))
    assert not (store / ".dask_tfrecord").exists()


def test_an_interrupted_creation_is_resumed(ds: dtf.Dataset, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a group with some arrays and no plan: nothing was written, so another plan may take the place."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(store_module.Checkpoint, "begin", stop)
        patch.setattr(write._GroupOutput, "abort", lambda output: None)
        ds.to_zarr(store, chunks=11)
    ds.to_zarr(store, resume=True, chunks=7)
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))


def test_a_plan_is_resumed(ds: dtf.Dataset, store: Path, broken: list[int]) -> None:
    cut_short(ds, store, broken, 5, chunks=7)
    plan = ds.plan_zarr(chunks=7)
    plan.to_zarr(store, resume=True)
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))


def test_later(ds: dtf.Dataset, store: Path, broken: list[int]) -> None:
    cut_short(ds, store, broken, 20, chunks=7)
    written = ds.to_zarr(store, resume=True, chunks=7, compute=False)
    with pytest.raises(IncompleteStoreError):
        dtf.from_zarr(store)
    written.compute()
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))


def test_a_store_in_memory(ds: dtf.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    store, write = zarr.storage.MemoryStore(), zarr.Array.__setitem__

    def fail(array: zarr.Array, *arguments: Any) -> None:
        if array.basename == "tokens.values":
            raise OSError("no room")
        write(array, *arguments)

    with dask.config.set(scheduler="sync"):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="no room"):
            patch.setattr(zarr.Array, "__setitem__", fail)
            ds.to_zarr(store, chunks=7, resume=True)
        with pytest.raises(IncompleteStoreError, match="never finished"):
            dtf.from_zarr(store)
        ds.to_zarr(store, chunks=7, resume=True)
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))
    np.testing.assert_array_equal(arrays(store)["tokens.values"], ds.ragged("tokens")[0])


# ------------------------------------------------------------------------------------------------------- refusals


def test_mode_w_and_resume_exclude_each_other(ds: dtf.Dataset, store: Path) -> None:
    with pytest.raises(ValueError, match="pass only one of them"):
        ds.to_zarr(store, mode="w", resume=True)


def test_an_interrupted_conversion_is_not_overwritten_by_default(
    ds: dtf.Dataset, store: Path, broken: list[int]
) -> None:
    cut_short(ds, store, broken, 5, chunks=7)
    with pytest.raises(FileExistsError, match="resume=True continues it, mode='w' replaces it"):
        ds.to_zarr(store, chunks=7)
    ds.to_zarr(store, chunks=9, mode="w")
    assert dtf.from_zarr(store).chunks[0] == 9


def test_other_groups_are_not_resumed(ds: dtf.Dataset, store: Path) -> None:
    zarr.open_group(store, mode="w").create_array("x", shape=(3,), dtype="i4")
    with pytest.raises(FileExistsError, match="exists"):
        ds.to_zarr(store, resume=True)


@pytest.mark.parametrize("finished", [False, True])
def test_changed_inputs_are_refused(
    ds: dtf.Dataset, shards: Path, store: Path, broken: list[int], finished: bool
) -> None:
    cut_short(ds, store, broken, 20, chunks=7)
    if finished:
        ds.to_zarr(store, chunks=7, resume=True)
    before = data(store)

    def refused(dataset: dtf.Dataset, said: str, **options: Any) -> None:
        with pytest.raises(ResumeError, match=said) as caught:
            dataset.to_zarr(store, resume=True, **({"chunks": 7} | options))
        assert str(store) in str(caught.value)
        assert "mode='w'" in str(caught.value)
        assert data(store) == before

    refused(ds, "chunks was 7 and now is 8", chunks=8)
    refused(ds, "chunks was 7 and now is null", chunks=None)
    refused(ds, 'compressors was "auto" and now is null', compressors=None)
    refused(ds, 'chunks was 7 and now is "1048576 B"', chunks="1 MiB")
    refused(ds[["label", "name"]], "feature 'tokens' was removed")
    other = dict(ds.schema) | {"label": dtf.FixedLenFeature((), "int32")}
    refused(dtf.read_tfrecord(shards, other), r"feature 'label' was FixedLenFeature\(.*int64\) and now is .*int32\)")
    refused(ds.rows[:-1], "the number of records was 120 and now is 119")
    refused(ds.rows[::-1], r"other rows are read, or in another way: rows\[…\]")
    refused(ds.map_blocks(lambda blocks: blocks), "0 functions were passed to map_blocks and now are 1")
    refused(ds.persist(), "other rows")
    path = shards / "part-2.tfrecord"
    known, whole = path.stat(), path.read_bytes()
    oracle.write_oracle(shards / "part-4.tfrecord", [])
    refused(dtf.read_tfrecord(shards), r"part-4\.tfrecord was added")
    (shards / "part-4.tfrecord").unlink()
    path.rename(shards / "part-5.tfrecord")
    refused(dtf.read_tfrecord(shards), r"part-2\.tfrecord is missing from the files")
    oracle.write_oracle(path, map(example, range(31)))
    (shards / "part-5.tfrecord").rename(shards.parent / "away")
    refused(dtf.read_tfrecord(shards), rf"part-2\.tfrecord had {len(whole):,} bytes and now has")
    path.write_bytes(whole)
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns + 1_000_000_000))
    refused(dtf.read_tfrecord(shards), r"part-2\.tfrecord was written again or replaced since")
    # The original file, not only a file of the same size and time.
    (shards.parent / "away").replace(path)
    dtf.read_tfrecord(shards).to_zarr(store, chunks=7, resume=True)
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))


def test_many_differences_are_counted(tmp_path: Path, shards: Path, store: Path) -> None:
    dtf.read_tfrecord(shards).to_zarr(store)
    for number in range(10):
        oracle.write_oracle(shards / f"more-{number}.tfrecord", [])
    with pytest.raises(ResumeError, match="… 10 files are new in all"):
        dtf.read_tfrecord(shards).to_zarr(store, resume=True)


FUNCTIONS = """
def scaled(blocks):
    return {{"label": blocks["label"] * {factor}}}
"""
PROGRAM = """
import dask, sys
sys.path.insert(0, sys.argv[3])
import dask_tfrecord as dtf
from functions import scaled
dtf.read_tfrecord(sys.argv[1]).map_blocks(scaled).to_zarr(sys.argv[2], chunks=7, resume=True)
"""


@pytest.mark.integration
@pytest.mark.slow
def test_a_function_of_a_module_that_was_edited(shards: Path, store: Path, tmp_path: Path) -> None:
    def convert(factor: int) -> subprocess.CompletedProcess[str]:
        (tmp_path / "functions.py").write_text(FUNCTIONS.format(factor=factor))
        command = [sys.executable, "-B", "-c", PROGRAM, str(shards), str(store), str(tmp_path)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)

    assert convert(2).returncode == 0
    assert convert(2).stderr == ""
    assert "its code of a function passed to map_blocks has changed" in convert(3).stderr
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS) * 2)


# ------------------------------------------------------------------------------------- sources that change midway


@pytest.mark.parametrize("change", ["grows", "shrinks", "vanishes", "is written again"])
def test_a_source_that_changes_midway(shards: Path, store: Path, tmp_path: Path, change: str) -> None:
    ds = dtf.read_tfrecord(shards)
    ds.to_zarr(tmp_path / "whole.zarr", chunks=7)
    path = shards / "part-2.tfrecord"
    whole, known = path.read_bytes(), path.stat()

    def spoil(blocks: dict[str, Any]) -> dict[str, Any]:
        if blocks["label"][0] == 28 and not (tmp_path / "spoiled").exists():
            (tmp_path / "spoiled").touch()
            if change == "vanishes":
                path.rename(shards.parent / "away")
            else:
                path.write_bytes({"grows": whole * 2, "shrinks": whole[:-100], "is written again": whole}[change])
                os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns + 1_000_000_000))
        return blocks

    spoiled = ds.map_blocks(spoil, dict(ds.schema))
    with (
        dask.config.set(scheduler="sync"),
        pytest.raises((CorruptRecordError, FileNotFoundError), match=r"part-2\.tfrecord") as caught,
    ):
        spoiled.to_zarr(store, chunks=7, resume=True)
    assert isinstance(caught.value, FileNotFoundError if change == "vanishes" else ShardChangedError)
    with pytest.raises(IncompleteStoreError):
        dtf.from_zarr(store)

    def go_on() -> None:
        dtf.read_tfrecord(shards, ds.schema).map_blocks(spoil, dict(ds.schema)).to_zarr(store, chunks=7, resume=True)

    if change == "shrinks":
        with pytest.raises(CorruptRecordError, match=r"part-2\.tfrecord: record 28 .* truncated"):
            go_on()
    else:
        with pytest.raises(ResumeError, match=r"part-2\.tfrecord (had|was written again|is missing from the files)"):
            go_on()
    # Another file in its place would be another source.
    if change == "vanishes":
        (shards.parent / "away").rename(path)
    else:
        path.write_bytes(whole)
        os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))
    go_on()
    assert data(store) == data(tmp_path / "whole.zarr")


# ------------------------------------------------------------------------------------------------- killed programs

KILLED = """
import os, random, signal, sys
import dask
import dask_tfrecord as dtf
from zarr.storage import _local

put, left = _local._put, [int(sys.argv[3])]

def put_or_die(path, value, exclusive=False):
    left[0] -= 1
    if left[0] < 0:
        # Half of a file, as zarr writes it.
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix("." + "0" * 32 + ".partial").write_bytes(value.to_bytes()[: len(value) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    return put(path, value, exclusive)

_local._put = put_or_die
with dask.config.set(scheduler="threads", num_workers=3):
    dtf.read_tfrecord(sys.argv[1]).to_zarr(sys.argv[2], resume=True, **eval(sys.argv[4]))
"""


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
@pytest.mark.slow
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_program_killed_five_times(shards: Path, store: Path, tmp_path: Path, grid: dict[str, Any]) -> None:
    dtf.read_tfrecord(shards).to_zarr(tmp_path / "whole.zarr", **grid)
    rng = random.Random(str(grid))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def convert(puts: int) -> int:
        command = [sys.executable, "-c", KILLED, str(shards), str(store), str(puts), repr(grid)]
        return subprocess.run(command, cwd=tmp_path, env=environment).returncode

    for _ in range(5):
        assert convert(rng.randrange(1, 12)) == -signal.SIGKILL
        with pytest.raises((IncompleteStoreError, FileNotFoundError)):
            dtf.from_zarr(store)
    assert convert(10**6) == 0
    assert data(store) == data(tmp_path / "whole.zarr")
    assert dtf.from_zarr(store).nrows == ROWS
