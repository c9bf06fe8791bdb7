"""Format versions of Zarr stores: earlier layouts are read, newer ones are refused.

``data/zarr/format1.zip`` holds three groups of the same rows, written in format 1: in chunks of 3 rows, in shards of 3
rows, and an interrupted conversion. Rows, features and options are those of `ROWS`, `FEATURES` and `OPTIONS`.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

import dask_tfrecord as dtf
from dask_tfrecord.errors import IncompleteStoreError, ResumeError, UnsupportedFormatError

STEPS = (3, 0, 2, 1, 4, 0, 1)
ROWS: dict[str, list[Any]] = {
    "label": list(range(7)),
    "name": [f"episode {row}" for row in range(7)],
    "steps/reward": [(np.arange(steps, dtype=np.float32) + 10 * row).tolist() for row, steps in enumerate(STEPS)],
    "steps/action": [(np.arange(2 * n).reshape(n, 2) + 100 * row).tolist() for row, n in enumerate(STEPS)],
    "steps/note": [[b"x" * (step + 1) for step in range(steps)] for steps in STEPS],
    "raw": [bytes(range(row)) for row in range(7)],
    "nested": [[list(range(step)) for step in range(steps)] for steps in STEPS],
}


def plain(value: Any) -> Any:
    """Convert a row to nested lists."""
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with zipfile.ZipFile(Path(__file__).parent / "data/zarr/format1.zip") as file:
        file.extractall(tmp_path / "format1.zarr")
    return tmp_path / "format1.zarr"


def set_version(group: Path, value: Any) -> None:
    document = json.loads((group / "zarr.json").read_text())
    own = document["attributes"]["dask_tfrecord"]
    own.pop("format", None)
    own["format_version"] = value
    (group / "zarr.json").write_text(json.dumps(document))


@pytest.mark.parametrize("component", ["chunked", "sharded"])
def test_a_store_of_format_1_is_read(store: Path, component: str) -> None:
    ds = dtf.from_zarr(store, component=component)
    assert {name: plain(column) for name, column in ds.compute().items()} == ROWS
    assert plain(ds.rows[[4, 0]]["steps/action"].compute()) == [ROWS["steps/action"][4], ROWS["steps/action"][0]]


def test_rows_of_format_1_are_written_in_the_current_format(store: Path, tmp_path: Path) -> None:
    dtf.from_zarr(store, component="chunked").to_zarr(tmp_path / "again.zarr")
    written = json.loads((tmp_path / "again.zarr/zarr.json").read_text())["attributes"]["dask_tfrecord"]
    assert written["format_version"] == 2
    again = dtf.from_zarr(tmp_path / "again.zarr")
    assert {name: plain(column) for name, column in again.compute().items()} == ROWS


def test_an_interrupted_conversion_of_format_1_is_not_mixed_with_another_one(store: Path) -> None:
    ds = dtf.from_zarr(store, component="chunked")
    with pytest.raises(ResumeError):
        ds.to_zarr(store, component="interrupted", chunks=3, resume=True)
    with pytest.raises(FileExistsError, match="interrupted conversion"):
        ds.to_zarr(store, component="interrupted")


def test_a_conversion_that_began_in_format_1_is_completed(tmp_path: Path) -> None:
    feature = dtf.VarLenFeature("float32")
    ds = dtf.Dataset.from_arrays({"tokens": ROWS["steps/reward"]}, {"tokens": feature})
    ds.to_zarr(tmp_path / "s.zarr", chunks=2, compute=False)
    file = tmp_path / "s.zarr/zarr.json"
    document = json.loads(file.read_text())
    own = document["attributes"]["dask_tfrecord"]
    own["format"] = own.pop("format_version") - 1
    file.write_text(json.dumps(document))
    plan = next((tmp_path / "s.zarr/.dask_tfrecord").rglob("plan.json"))
    layout = json.loads(plan.read_text())
    for array in layout["arrays"]:
        del array["group"]
    plan.write_text(json.dumps(layout))
    with pytest.raises(ResumeError, match="groups"):
        ds.to_zarr(tmp_path / "s.zarr", chunks=2, groups={"g": ["tokens"]}, resume=True)
    ds.to_zarr(tmp_path / "s.zarr", chunks=2, resume=True)
    assert plain(dtf.from_zarr(tmp_path / "s.zarr")["tokens"].compute()) == ROWS["steps/reward"]


def test_a_newer_format_is_refused(store: Path) -> None:
    group = store / "chunked"
    ds = dtf.from_zarr(store, component="sharded")
    set_version(group, 3)
    with pytest.raises(UnsupportedFormatError, match=r"format version 3, and .* reads versions 1 to 2") as caught:
        dtf.from_zarr(group)
    assert caught.value.place is not None and caught.value.place.file == str(group)
    before = sorted(path.relative_to(group) for path in group.rglob("*"))
    with pytest.raises(UnsupportedFormatError, match="format version 3"):
        ds.to_zarr(group, resume=True)
    with pytest.raises(FileExistsError, match="mode='w' replaces it"):
        ds.to_zarr(group)
    assert sorted(path.relative_to(group) for path in group.rglob("*")) == before
    with dask.config.set(scheduler="sync"):
        ds.to_zarr(group, mode="w")
    assert plain(dtf.from_zarr(group)["label"].compute()) == ROWS["label"]


@pytest.mark.parametrize("value", [0, -1, "2", 2.0, True, None, []])
def test_a_version_that_is_not_a_number_is_refused(store: Path, value: Any) -> None:
    set_version(store / "chunked", value)
    with pytest.raises(IncompleteStoreError, match="not written by to_zarr"):
        dtf.from_zarr(store, component="chunked")
