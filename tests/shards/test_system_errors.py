"""Errors of the system name the file that is written, and what killed writers leave goes with the next one."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.programs import environment, run_program

import dask_tfrecord as dtf

ROWS = 40


def copy(ds: dtf.Dataset, shards: Path, target: Path) -> None:
    dtf.copy_tfrecord(shards, target / "x-{shard}.tfrecord", mode="w")


def repair(ds: dtf.Dataset, shards: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    dtf.repair(shards / "part-0.tfrecord", target / "repaired.tfrecord")


def build_index(ds: dtf.Dataset, shards: Path, target: Path) -> None:
    dtf.build_index(shards)


def to_parquet(ds: dtf.Dataset, shards: Path, target: Path) -> None:
    pytest.importorskip("pyarrow")
    ds.to_parquet(target, mode="w")


WRITES: dict[str, Callable[[dtf.Dataset, Path, Path], object]] = {
    "zarr": lambda ds, shards, target: ds.to_zarr(target, mode="w"),
    "tfrecord": lambda ds, shards, target: ds.to_tfrecord(target / "x-{shard}.tfrecord", mode="w"),
    "copy": copy,
    "parquet": to_parquet,
    "repair": repair,
    "index": build_index,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_failing_disk(
    ds: dtf.Dataset, shards: Path, tmp_path: Path, write: Callable[..., object], call: str, monkeypatch: Any
) -> None:
    """The calls that have only the number of a file."""
    target, failed = tmp_path / "out", []
    if call == "fsync":
        write(ds, shards, target)

    def fail(*_: object) -> None:
        failed.append(True)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for owner, name in ((os, "fsync"),) if call == "fsync" else ((os, "write"), (os, "fsync")):
        monkeypatch.setattr(owner, name, fail)
    if write is WRITES["zarr"] and call == "fsync":
        pytest.skip("chunks are not synchronized")
    with pytest.raises(OSError, match=os.strerror(errno.EIO)) as caught:
        write(ds, shards, target)
    assert failed and str(shards if write is build_index else target) in str(caught.value.filename)


@pytest.mark.parametrize("write", [WRITES["parquet"], WRITES["tfrecord"]], ids=["parquet", "tfrecord"])
def test_a_file_in_place_of_the_directory(
    ds: dtf.Dataset, shards: Path, tmp_path: Path, write: Callable[..., object]
) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"a file")
    with pytest.raises(NotADirectoryError, match="expected a directory to write to, this is a file") as caught:
        write(ds, shards, target)
    assert caught.value.filename == str(target) and target.read_bytes() == b"a file"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no directory that refuses others")
@pytest.mark.parametrize("write", [WRITES["zarr"], WRITES["tfrecord"]], ids=["zarr", "tfrecord"])
def test_a_directory_that_cannot_be_made(ds: dtf.Dataset, shards: Path, write: Callable[..., object]) -> None:
    with pytest.raises(OSError, match="cannot make a directory to write to") as caught:
        write(ds, shards, Path("/proc/new/out"))
    assert str(caught.value.filename).startswith("/proc/new")


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="processes can't be told apart there")
@pytest.mark.parametrize("call", ["repair", "build_index"])
def test_temporary_files_of_a_killed_process_go_with_the_next_call(shards: Path, tmp_path: Path, call: str) -> None:
    program = f"""
import os, sys
import dask, dask_tfrecord as dtf
from test_system_errors import {call}
from pathlib import Path
os.fsync = lambda file: os._exit(9)
with dask.config.set(scheduler="sync"):
    {call}(None, Path(sys.argv[1]), Path(sys.argv[2]))
"""
    target = tmp_path / "out"
    assert run_program(sys.executable, "-c", program, shards, target, env=environment()).returncode == 9
    folder = target if call == "repair" else shards
    (left,) = folder.glob(".*.tmp")
    # The file of another process stays: the process may be alive.
    other = left.with_name(f"{left.name[:-36]}{'0' * 32}.tmp")
    other.write_bytes(np.arange(3).tobytes())
    WRITES["repair" if call == "repair" else "index"](dtf.read_tfrecord(shards), shards, target)
    assert list(folder.glob(".*.tmp")) == [other]
