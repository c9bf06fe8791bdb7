"""Files that are added by calls that are killed anywhere, and made again: each row is there once."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy as np
import pytest
from support.faults import FaultError, Faults, Killed
from support.few import rising

import dask_tfrecord as dtf

TFDS = {"name": "n", "version": "1.0.0", "split": "train"}
SPEC = {"x": dtf.FixedLenFeature((), "int64")}


def rows(first: int, past: int) -> dict[str, Any]:
    return {"x": np.arange(first, past)}


def tfds(root: str, first: int, past: int, mode: str) -> None:
    dtf.to_tfrecord(rows(first, past), f"{root}/1.0.0", tfds=TFDS, records_per_shard=2, mode=mode)  # type: ignore[arg-type]


def shards(root: str, first: int, past: int, mode: str) -> None:
    names = f"{root}/p-{{shard:05d}}.tfrecord"
    dtf.to_tfrecord(rows(first, past), names, records_per_shard=2, mode=mode, index=True)  # type: ignore[arg-type]


def read(root: str, write: Callable[..., None]) -> list[int]:
    if write is shards:
        found = dtf.read_tfrecord(f"{root}/p-*.tfrecord", SPEC)
    else:
        found = dtf.read_tfrecord(f"{root}/1.0.0", split="train")
    values: list[int] = found["x"].compute().tolist()
    return values


@pytest.mark.filterwarnings("ignore:.* can't be removed")
@pytest.mark.parametrize("kind", [Killed, FaultError])
@pytest.mark.parametrize("mode", ["a", "w"])
@pytest.mark.parametrize("place", ["directory", pytest.param("memory", marks=pytest.mark.slow)])
@pytest.mark.parametrize("write", [shards, tfds])
@pytest.mark.parametrize("every", rising(67, 7, 1))
def test_a_call_that_failed_anywhere_is_repeated(
    write: Callable[..., None], place: str, mode: str, kind: type[BaseException], every: int, tmp_path: Path
) -> None:
    at, before = 1, list(range(6))
    after = [*before, 10, 11, 12, 13] if mode == "a" else [10, 11, 12, 13, 14, 15]
    with dask.config.set(scheduler="synchronous"):
        while True:
            root = f"{tmp_path}/{at}" if place == "directory" else f"memory://{tmp_path.name}/{mode}-{at}"
            write(root, 0, 6, "a")
            own = root.removeprefix("memory:/")
            faults = Faults(at, kind, lambda path, own=own: str(path).startswith(own))  # type: ignore[misc]
            arguments = (root, 10, after[-1] + 1, mode)
            with suppress(Killed, OSError), faults.injected():
                write(*arguments)
            if kind is FaultError:
                assert read(root, write) in (before, after)
            if faults.calls >= at and (kind is Killed or read(root, write) != after):
                write(*arguments)
            assert read(root, write) == after
            fs, inside = fsspec.url_to_fs(root)
            left = [name for name in fs.find(inside) if "/." in name.removeprefix(inside)]
            assert kind is FaultError or not [name for name in left if not name.endswith((".partial", ".claim"))]
            if write is tfds:
                info = json.loads(fs.cat_file(f"{inside}/1.0.0/dataset_info.json"))
                assert sum(map(int, info["splits"][0]["shardLengths"])) == len(after)
            if faults.calls < at:
                break
            at += every
    assert at > 20
