"""Groups that are written, or replaced, by runs that end anywhere: readers find the old group, the new one, or none."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray
import zarr
from support.faults import FaultError, Faults, Killed
from support.few import mostly_slow, rising

import dask_tfrecord as dtf
from dask_tfrecord.errors import StoreInUseError
from dask_tfrecord.settings import replaced_limits
from dask_tfrecord.shards import process
from dask_tfrecord.stores.zarr.append import AddedColumns, AddedRows, NewGroup

OLD, NEW = np.arange(1, 8), np.arange(101, 110)


def columns(rows: np.ndarray) -> dict[str, Any]:
    return {"x": rows, "tokens": [[int(row)] * (row % 3) for row in rows]}


def readers(store: Path) -> dict[str, Callable[[], list[int]]]:
    return {
        "from_zarr": lambda: dtf.from_zarr(store)["x"].compute().tolist(),
        "xarray": lambda: xarray.open_zarr(store, chunks=None)["x"].to_numpy().tolist(),
        "xarray without": lambda: xarray.open_zarr(store, chunks=None, consolidated=False)["x"].to_numpy().tolist(),
        "zarr group": lambda: zarr.open_group(store, mode="r")["x"][:].tolist(),  # type: ignore[index, union-attr]
        "zarr array": lambda: zarr.open_array(store / "x", mode="r")[:].tolist(),  # type: ignore[union-attr, index]
    }


def found(store: Path) -> dict[str, list[int] | None]:
    """Return what each reader finds; None for an error."""
    values: dict[str, list[int] | None] = {}
    for name, read in readers(store).items():
        try:
            # zarr warns of the folder of a run that could not remove it.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                values[name] = read()
        except Exception:
            values[name] = None
    return values


@pytest.mark.parametrize("every", rising(17, 3, 1))
@pytest.mark.parametrize("kind", mostly_slow([Killed, FaultError], 2))
@pytest.mark.parametrize("before", [None, OLD], ids=["new", "replaced"])
def test_readers_find_the_old_group_the_new_one_or_none(
    before: np.ndarray | None, kind: type[BaseException], every: int, tmp_path: Path
) -> None:
    store, at, old = tmp_path / "x.zarr", 1, None if before is None else before.tolist()
    if before is not None:
        dtf.to_zarr(columns(before), tmp_path / "old.zarr", chunks=4)
    with dask.config.set(scheduler="synchronous"):
        while True:
            if before is not None:
                shutil.copytree(tmp_path / "old.zarr", store)
            faults = Faults(at, kind, lambda path: str(path).startswith(str(store)))
            resume = before is None and at % 2 == 0
            mode: Any = {} if resume else {"mode": "w"}
            try:
                with faults.injected():
                    dtf.to_zarr(columns(NEW), store, chunks=4, resume=resume, **mode)
            except (Exception, Killed):
                values = found(store)
                assert all(value in (None, old, NEW.tolist()) for value in values.values()), (at, values)
                if kind is FaultError and before is not None:
                    # The process has brought back what was there.
                    assert values == dict.fromkeys(values, NEW.tolist()) or values == dict.fromkeys(values, old)
            # The same call ends what was left, or takes it back.
            dtf.to_zarr(columns(NEW), store, chunks=4, resume=resume, **mode)
            assert found(store) == dict.fromkeys(readers(store), NEW.tolist())
            assert {path.name for path in store.iterdir()} - {"tokens.values", "tokens.row_splits"} == {
                "x",
                "zarr.json",
            }
            shutil.rmtree(store)
            if faults.calls < at:
                break
            at += every
    assert at > 60


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
        rows = found(store)["from_zarr"]
        if rows is None:
            # The run was moving arrays: only a call that continues or replaces it may go on.
            with pytest.raises(FileExistsError, match="interrupted conversion"):
                dtf.to_zarr(columns(NEW), store, append_dim="record")
            dtf.to_zarr(columns(NEW), store, mode="w", chunks=4)
        else:
            dtf.to_zarr(columns(NEW), store, append_dim="record")
        now = dtf.from_zarr(store)["x"].compute().tolist()
        assert now == [*(rows or ()), *NEW]
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
