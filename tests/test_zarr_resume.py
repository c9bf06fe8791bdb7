"""Conversions that were cut short and are gone on with: what is written stays, the rest follows, nothing is mixed."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import oracle
import pytest
import zarr
import zarr.storage
from support.numbered_shards import example
from support.store_round_trip import files_of

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


def marked_by(mark: Path) -> list[str]:
    return [name for unit in json.loads(mark.read_text()).values() for name in unit["objects"]]


def times(store: Path) -> dict[str, int]:
    files = (path for path in store.rglob("*") if path.is_file() and "c" in path.relative_to(store).parts)
    return {str(path.relative_to(store)): path.stat().st_mtime_ns for path in files}


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
    assert files_of(store) == files_of(tmp_path / "whole.zarr")
    assert sorted(path.name for path in store.iterdir()) == sorted(["zarr.json", *arrays(store)])


@pytest.mark.parametrize("resume", ["to_zarr", "plan", "delayed"])
def test_only_what_is_missing_is_written_and_nothing_is_counted_again(
    ds: dtf.Dataset, store: Path, broken: list[int], monkeypatch: pytest.MonkeyPatch, resume: str
) -> None:
    with dask.config.set(scheduler="sync"):
        cut_short(ds, store, broken, 20, chunks=7)
        before, plan = times(store), ds.plan_zarr(chunks=7)
        assert len(before) == 20
        marked = {name for path in store.rglob("units/*.json") for name in marked_by(path)}
        # So a process that is killed leaves a file that it was writing.
        torn = store / "label" / "c" / f"3.{'0' * 32}.partial"
        torn.write_bytes(b"half")
        monkeypatch.delattr("dask_tfrecord.stores.units.count_items")
        if resume == "delayed":
            written = ds.to_zarr(store, resume=True, chunks=7, compute=False)
            with pytest.raises(IncompleteStoreError, match="never finished"):
                dtf.from_zarr(store)
            written.compute()
        elif resume == "plan":
            plan.to_zarr(store, resume=True)
        else:
            ds.to_zarr(store, resume=True, chunks=7)
    after = times(store)
    assert {name for name, written in before.items() if after[name] == written} == marked
    assert 0 < len(marked) < len(after)
    assert not torn.exists()
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))


@pytest.mark.parametrize(
    ("harm", "grid"),
    [*((harm, GRIDS[0]) for harm in ("cut", "gone", "empty", "mark cut", "mark gone")), ("cut", GRIDS[1])],
)
def test_damaged_units_are_written_again(
    ds: dtf.Dataset, store: Path, tmp_path: Path, broken: list[int], harm: str, grid: dict[str, Any]
) -> None:
    ds.to_zarr(tmp_path / "whole.zarr", **grid)
    with dask.config.set(scheduler="sync"):
        cut_short(ds, store, broken, 20, **grid)
        mark = min(store.rglob("units/*.json"))
        torn = mark if "mark" in harm else store / marked_by(mark)[0]
        if harm.endswith("cut"):
            torn.write_bytes(torn.read_bytes()[:-3])
        elif harm == "empty":
            torn.write_bytes(b"")
        else:
            torn.unlink()
        # zarr reads the last object of an array, which is not full, before it writes it.
        last = store / "label" / "c" / str((ROWS - 1) // grid.get("shards", grid["chunks"]))
        last.parent.mkdir(parents=True, exist_ok=True)
        last.write_bytes(b"torn")
        ds.to_zarr(store, resume=True, **grid)
    assert files_of(store) == files_of(tmp_path / "whole.zarr")


def test_a_complete_group_is_not_changed(ds: dtf.Dataset, store: Path) -> None:
    ds.to_zarr(store, resume=True)
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    ds.to_zarr(store, resume=True)
    ds.plan_zarr().to_zarr(store, resume=True)
    delayed = ds.to_zarr(store, resume=True, compute=False)
    assert delayed.compute() is None
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before


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
        patch.setattr(write.GroupOutput, "abort", lambda output: None)
        ds.to_zarr(store, chunks=11)
    ds.to_zarr(store, resume=True, chunks=7)
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


OTHERS: dict[str, tuple[Callable[[dtf.Dataset], dtf.Dataset], str]] = {
    "columns": (lambda ds: ds[["label", "name"]], "feature 'tokens' was removed"),
    "dtype": (
        lambda ds: dtf.read_tfrecord(ds.origin["files"], {**ds.schema, "label": dtf.FixedLenFeature((), "int32")}),
        r"feature 'label' was FixedLenFeature\(.*int64\) and now is .*int32\)",
    ),
    "rows": (lambda ds: ds.rows[:-1], "the number of records was 120 and now is 119"),
    "order": (lambda ds: ds.rows[::-1], r"other rows are read, or in another way: rows\[…\]"),
    "function": (lambda ds: ds.map_blocks(dict), "0 functions were passed to map_blocks and now are 1"),
    "kept": (lambda ds: ds.persist(), "other rows"),
}
OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"chunks": 8}, "chunks was 7 and now is 8"),
    ({"chunks": None}, "chunks was 7 and now is null"),
    ({"chunks": "1 MiB"}, 'chunks was 7 and now is "1048576 B"'),
    ({"compressors": None}, 'compressors was "auto" and now is null'),
    ({"dimension_names": {"tokens": ()}}, "dimension_names was null"),
    ({"fill_values": {"label": 5}}, "fill_values was null"),
    ({"consolidated": False}, "consolidated was true"),
]


@pytest.mark.parametrize("finished", [False, True])
def test_changed_inputs_are_refused(
    ds: dtf.Dataset, shards: Path, store: Path, broken: list[int], finished: bool
) -> None:
    cut_short(ds, store, broken, 20, chunks=7)
    if finished:
        ds.to_zarr(store, chunks=7, resume=True)
    before = files_of(store)

    def refused(dataset: dtf.Dataset, said: str, **options: Any) -> None:
        with pytest.raises(ResumeError, match=said) as caught:
            dataset.to_zarr(store, resume=True, **({"chunks": 7} | options))
        assert str(store) in str(caught.value) and "mode='w'" in str(caught.value)
        assert files_of(store) == before

    for options, said in OPTIONS:
        refused(ds, said, **options)
    for change, said in OTHERS.values():
        refused(change(ds), said)
    path, away = shards / "part-2.tfrecord", shards.parent / "away"
    known, whole = path.stat(), path.read_bytes()
    for number in range(10):
        oracle.write_oracle(shards / f"part-{number + 4}.tfrecord", [])
    refused(dtf.read_tfrecord(shards), r"part-4\.tfrecord was added.*… 10 files are new in all")
    for number in range(10):
        (shards / f"part-{number + 4}.tfrecord").unlink()
    path.rename(away)
    refused(dtf.read_tfrecord(shards), r"part-2\.tfrecord is missing from the files")
    oracle.write_oracle(path, map(example, range(31)))
    refused(dtf.read_tfrecord(shards), rf"part-2\.tfrecord had {len(whole):,} bytes and now has")
    path.write_bytes(whole)
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns + 1_000_000_000))
    refused(dtf.read_tfrecord(shards), r"part-2\.tfrecord was written again or replaced since")
    # The original file, not only a file of the same size and time.
    away.replace(path)
    dtf.read_tfrecord(shards).to_zarr(store, chunks=7, resume=True)
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))


def test_a_changed_function_is_refused(ds: dtf.Dataset, store: Path) -> None:
    def scaled(factor: int) -> Any:
        return lambda blocks: {"label": blocks["label"] * factor}

    for _ in range(2):
        ds.map_blocks(scaled(2)).to_zarr(store, resume=True)
    for function, said in (
        (scaled(3), "its variable 'factor' of a function passed to map_blocks has changed"),
        (lambda blocks: {"label": blocks["label"] * 2}, "its code of a function passed to map_blocks has changed"),
    ):
        with pytest.raises(ResumeError, match=said):
            ds.map_blocks(function).to_zarr(store, resume=True)


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
    assert files_of(store) == files_of(tmp_path / "whole.zarr")
