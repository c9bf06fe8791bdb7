"""Groups that one run replaces, and another one adds to: they take turns, or the first one is killed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import zarr
from support.faults import Faults, Killed

import dask_tfrecord as dtf
from dask_tfrecord.errors import IncompleteStoreError, StoreInUseError
from dask_tfrecord.settings import replaced_limits
from dask_tfrecord.shards import process
from dask_tfrecord.stores.zarr.additions import AddedColumns, AddedRows, NewGroup

OLD, NEW = np.arange(1, 8), np.arange(101, 110)


def columns(rows: np.ndarray) -> dict[str, Any]:
    return {"x": rows, "tokens": [[int(row)] * (row % 3) for row in rows]}


@pytest.mark.slow
def test_a_killed_replacement_is_taken_back_by_an_append(tmp_path: Path) -> None:
    store, at = tmp_path / "x.zarr", 1
    while True:
        dtf.to_zarr(columns(OLD), store, chunks=4)
        faults = Faults(at, Killed, lambda path: str(path).startswith(str(store)))
        try:
            with faults.injected(), dask.config.set(scheduler="synchronous"):
                dtf.to_zarr(columns(NEW), store, chunks=4, mode="w")
        except Killed:
            pass
        if faults.calls < at:
            break
        try:
            rows = dtf.from_zarr(store)["x"].compute().tolist()
        except (IncompleteStoreError, FileNotFoundError):
            rows = []
        if not rows:
            # The run was moving arrays: only a call that continues or replaces it may go on.
            with pytest.raises(FileExistsError, match="interrupted conversion"):
                dtf.to_zarr(columns(NEW), store, append_dim="record")
            dtf.to_zarr(columns(NEW), store, mode="w", chunks=4)
        else:
            dtf.to_zarr(columns(NEW), store, append_dim="record")
        now = dtf.from_zarr(store)["x"].compute().tolist()
        assert now == [*rows, *NEW]
        shutil.rmtree(store)
        at += 9


@pytest.mark.parametrize("how", ["append", "replace", "columns"])
@pytest.mark.parametrize("place", ["directory", "obstore"])
def test_a_run_that_wakes_after_a_takeover_changes_nothing(
    how: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A is stopped while it plans; B, on another machine, takes over and ends; then A goes on."""
    store: Any = tmp_path / "x.zarr"
    if place == "obstore":
        store = zarr.storage.ObjectStore(pytest.importorskip("obstore").store.MemoryStore())
    dtf.to_zarr({"x": OLD}, store, append_dim="record", chunks=4)
    options: dict[str, Any] = {"append": {"append_dim": "record"}, "replace": {"mode": "w"}, "columns": {"mode": "a"}}[
        how
    ]
    kind = {"append": AddedRows, "replace": NewGroup, "columns": AddedColumns}[how]
    real, once = kind.checked, [True]
    monkeypatch.setattr(process, "machine", lambda: "machine A")

    def checked(self: Any, *args: Any) -> Any:
        planned = real(self, *args)
        if once:
            once.clear()
            with monkeypatch.context() as other:
                other.setattr(process, "machine", lambda: "machine B")
                dtf.to_zarr({"x": NEW}, store, append_dim="record")
        return planned

    monkeypatch.setattr(kind, "checked", checked)
    name = "y" if how == "columns" else "x"
    with (
        replaced_limits(stale_owner=0, heartbeat=1000),
        pytest.raises(StoreInUseError, match="another run has taken over"),
    ):
        dtf.to_zarr({name: OLD + 50}, store, **options)  # type: ignore[arg-type]
    values = dtf.from_zarr(store).compute()
    assert list(values) == ["x"]
    assert values["x"].tolist() == [*OLD, *NEW]
    assert zarr.open_group(store, mode="r")["x"][:].tolist() == [*OLD, *NEW]  # type: ignore[index, union-attr]
