"""A function that fails within `map_blocks`: the error is its own, and names the files and records of the block."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dask_tfrecord as dtf

ROWS = 40
SPEC = {"label": dtf.FixedLenFeature((), "int64")}
NOTE = "map_blocks: the function failed on "


def fail_at_13(blocks: dict[str, Any]) -> dict[str, Any]:
    if 13 in blocks["label"]:
        raise ValueError("unlucky")
    return {"label": blocks["label"]}


def return_too_few(blocks: dict[str, Any]) -> dict[str, Any]:
    return {"label": blocks["label"][1:] if 13 in blocks["label"] else blocks["label"]}


def note_of(compute: Callable[[], object]) -> str:
    with pytest.raises(ValueError, match=r"unlucky|returned") as caught:
        compute()
    # The text of the traceback.
    text = "".join(traceback.format_exception(caught.value))
    (note,) = {line for line in text.splitlines() if line.startswith(NOTE)}
    return note.removeprefix(NOTE)


def test_threads_report_the_records_of_the_block(shards: Path, tmp_path: Path) -> None:
    ds = dtf.read_tfrecord(shards / "part-[01].*", SPEC, chunks=5)
    mapped, second = ds.map_blocks(fail_at_13), f"{shards}/part-1.tfrecord"
    assert note_of(mapped["label"].compute) == f"{second}: records 0 to 4"
    assert note_of(mapped.persist) == f"{second}: records 0 to 4"
    assert note_of(mapped.rows[[10, 13]].compute) == f"2 of the records: {second}: records 0 to 3"
    assert note_of(mapped.rows[13].compute) == f"{second}: record 3"
    assert note_of(mapped.map_blocks(dict)["label"].compute) == f"{second}: records 0 to 4"
    assert second in note_of(mapped.compute)
    assert second in note_of(lambda: mapped.to_zarr(tmp_path / "store.zarr"))
    assert second in note_of(lambda: mapped.to_tfrecord(tmp_path / "out.tfrecord"))
    assert note_of(ds.map_blocks(return_too_few)["label"].compute) == f"{second}: records 0 to 4"
    error = ValueError("the same object")

    def fail(blocks: dict[str, Any]) -> dict[str, Any]:
        raise error

    for _ in range(2):
        with pytest.raises(ValueError, match="the same object"):
            ds.map_blocks(fail, SPEC).rows[13]["label"].compute(scheduler="sync")
    assert error.__notes__ == [f"{NOTE}{second}: record 3"]
    across = dtf.read_tfrecord(shards, SPEC, chunks=20).map_blocks(fail_at_13)
    assert note_of(across["label"].compute) == f"{shards}/part-0.tfrecord: record 0 to {second}: record 9"


def test_other_sources_report_what_they_read(shards: Path, tmp_path: Path) -> None:
    second = f"{shards}/part-1.tfrecord"
    uncounted = dtf.read_tfrecord(shards, SPEC, counts=None, chunks="shard").map_blocks(fail_at_13)
    assert note_of(uncounted.compute) == second
    filled = dtf.read_tfrecord(shards, SPEC, errors="fill", fill_values={"label": 0}, chunks=5).map_blocks(fail_at_13)
    assert note_of(filled["label"].compute) == f"{second}: rows 0 to 4"
    ds = dtf.read_tfrecord(shards, SPEC, chunks=5)
    held = ds.persist().map_blocks(fail_at_13)
    assert note_of(held.compute) == f"rows 10 to 14 of {shards}/part-0.tfrecord to {shards}/part-3.tfrecord"
    assigned = ds.assign(y=np.arange(ROWS)).map_blocks(fail_at_13)
    assert note_of(assigned.compute) == f"rows 10 to 14 of {shards}/part-0.tfrecord to {shards}/part-3.tfrecord"
    ds.to_zarr(tmp_path / "store.zarr", chunks=5)
    stored = dtf.from_zarr(tmp_path / "store.zarr").map_blocks(fail_at_13)
    assert note_of(stored["label"].compute) == f"{tmp_path}/store.zarr: rows 10 to 14"


@pytest.mark.slow
def test_processes_report_the_records_of_the_block(shards: Path) -> None:
    mapped = dtf.read_tfrecord(shards, SPEC, chunks=5).map_blocks(fail_at_13)
    note = note_of(lambda: mapped["label"].compute(scheduler="processes", num_workers=2))
    assert note == f"{shards}/part-1.tfrecord: records 0 to 4"
