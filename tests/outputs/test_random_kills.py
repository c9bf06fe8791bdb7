"""Rows and columns that are added to a store on S3 by runs that are killed anywhere: readers find those before, or all.

The exploration executes runs in directories and in memory. Here a random request, and all after it, get no answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import dask
import numpy as np
import pytest
import xarray
import zarr
from support.faults import FaultError, Faults, Killed
from support.few import rising

import dask_tfrecord as dtf

# More calls than an addition makes: some runs end.
CALLS = 100


def rows_of(start: int, stop: int) -> dict[str, Any]:
    numbers = range(start + 1, stop + 1)
    return {
        "x": np.array(numbers, np.int64),
        "text": np.array([f"row {number}" for number in numbers], np.dtypes.StringDType()),
        "tokens": [[number] * (number % 4) for number in numbers] or np.zeros((0, 2), np.int64),
    }


def more_columns(start: int, stop: int) -> dict[str, Any]:
    numbers = np.arange(start + 1, stop + 1)
    return {"y": numbers / 2, "pair": np.stack([numbers, -numbers], 1)}


class Store:
    """A store, and the rows and columns that readers should find."""

    def __init__(self, root: str, rng: np.random.Generator, options: dict[str, Any]) -> None:
        self.root, self.rng, self.storage_options = root, rng, options
        self.is_consolidated = rng.random() < 0.8
        self.rows, self.has_columns = int(rng.integers(1, 9)), False
        self.grid = [{"chunks": 3}, {"chunks": 4}, {"chunks": 2, "shards": 4}][rng.integers(3)]
        given: dict[str, Any] = {"consolidated": self.is_consolidated, **self.grid}
        if rng.random() < 0.5:
            given["append_dim"] = "record"
        dtf.to_zarr(self.features(rows_of(0, self.rows)), root, storage_options=options, **given)

    @staticmethod
    def features(columns: dict[str, Any]) -> dtf.Dataset:
        """Return columns with the features of the store, which few rows don't show."""
        tokens = {"tokens": dtf.VarLenFeature("int64")} if "tokens" in columns else {}
        if "tokens" in columns and isinstance(columns["tokens"], np.ndarray):
            columns["tokens"] = []
        return dtf.Dataset.from_arrays(columns, features=tokens)

    def add(self, kind: str, number: int, *, resume: bool) -> None:
        if kind == "rows":
            start, stop = self.rows, self.rows + number
            columns = rows_of(start, stop) | (more_columns(start, stop) if self.has_columns else {})
            how: dict[str, Any] = {"append_dim": "record"}
        else:
            columns, how = more_columns(0, self.rows), {"mode": "a", **self.grid}
        self.features(columns).to_zarr(self.root, resume=resume, storage_options=self.storage_options, **how)

    def found(self, copy: Path | None = None) -> tuple[int, bool]:
        """Return the rows and columns that all readers find, after a comparison of their values.

        Readers of S3 find the objects in a new directory `copy`, where they need no request.
        """
        root, options = self.root, self.storage_options
        if copy is not None:
            root, options = str(copy), {}
            copy_objects(self.root, copy)
        ds = dtf.from_zarr(root, storage_options=options)
        rows, has_columns = ds.nrows or 0, "y" in ds.schema
        wanted = rows_of(0, rows) | (more_columns(0, rows) if has_columns else {})
        found = ds.compute()
        assert [*found] == [*wanted]
        for name, values in wanted.items():
            assert [np.asarray(row).tolist() for row in found[name]] == [np.asarray(row).tolist() for row in values]
        if not self.is_consolidated:
            # Other readers find arrays of several lengths for a moment.
            return rows, has_columns
        flat = [token for row in wanted["tokens"] for token in row]
        splits = np.append(0, np.cumsum([*map(len, wanted["tokens"])])).tolist()
        arrays = {**wanted, "tokens.values": flat, "tokens.row_splits": splits}
        del arrays["tokens"]
        opened = xarray.open_zarr(root, storage_options=options or None, chunks=None)
        group: Any = zarr.open_group(root, mode="r", storage_options=options or None)
        assert {*map(str, opened.variables)} == {*group.array_keys()} == {*arrays}
        for name, values in arrays.items():
            assert opened[name].to_numpy().tolist() == group[name][:].tolist() == np.asarray(values).tolist()
        return rows, has_columns


def copy_objects(url: str, directory: Path) -> None:
    """Copy the objects below a URL from the memory of the S3 server, which runs in this process."""
    core, models = pytest.importorskip("moto.core"), pytest.importorskip("moto.s3.models")
    name, _, prefix = url.removeprefix("s3://").partition("/")
    buckets = models.s3_backends[core.DEFAULT_ACCOUNT_ID]["aws"].buckets
    for key in buckets[name].keys.values():
        if key.name.startswith(f"{prefix}/"):
            path = directory / key.name.removeprefix(f"{prefix}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(key.value)


@contextmanager
def killed(root: str, at: int) -> Iterator[Faults]:
    """Let a request and all later ones fail: fsspec ignores exceptions that end a process."""
    s3fs = pytest.importorskip("s3fs")
    faults, real = Faults(at, Killed, lambda path: True), s3fs.S3FileSystem._call_s3

    async def call(fs: Any, *args: Any, **options: Any) -> Any:
        try:
            faults.call(root)
        except Killed:
            raise FaultError(28, "no space", root) from None
        return await real(fs, *args, **options)

    with mock.patch.object(s3fs.S3FileSystem, "_call_s3", call):
        yield faults


def kill_additions(store: Store, copies: Path) -> int:
    """Add rows and columns, each after runs that were killed; return the number of kills."""
    rng, kills = store.rng, 0
    for _ in range(int(rng.integers(1, 4))):
        kind = "rows" if store.has_columns or rng.random() < 0.6 else "columns"
        number = int(rng.integers(1, 8))
        before = store.rows, store.has_columns
        after = (store.rows + number, store.has_columns) if kind == "rows" else (store.rows, True)
        found = before
        for _ in range(int(rng.integers(1, 4))):
            # A run that finds everything added is a new addition, unless it resumes.
            resume = bool(rng.random() < 0.5) or found == after
            with killed(store.root, int(rng.integers(1, CALLS))) as faults:
                try:
                    store.add(kind, number, resume=resume)
                except Exception:
                    if faults.calls < faults.at:
                        raise
                    kills += 1
            found = store.found(copies / uuid.uuid4().hex)
            assert found in (before, after)
        store.add(kind, number, resume=True)
        assert store.found(copies / uuid.uuid4().hex) == after
        store.rows, store.has_columns = after
    return kills


@pytest.mark.slow
@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("least", rising(3, 20, 100))
def test_killed_additions_are_invisible_or_whole(least: int, s3: dict[str, Any], tmp_path: Path) -> None:
    kills, number = 0, 0
    with dask.config.set(scheduler="synchronous"):
        while kills < least:
            root = f"s3://bucket/{tmp_path.name}-{number}.zarr"
            store = Store(root, np.random.default_rng([least, number]), s3)
            kills += kill_additions(store, tmp_path)
            number += 1
        assert store.found() == (store.rows, store.has_columns)
