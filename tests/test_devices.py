"""Arrays of other libraries: copied to the host where a value leaves for a file or a column, never implicitly."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from support.device import DeviceArray, Sparse, to_device
from support.engine import da

import dask_tfrecord as dtf
from dask_tfrecord.blocks import RaggedBlock
from dask_tfrecord.errors import SchemaError

VALUES = np.arange(60, dtype=np.float32).reshape(20, 3)


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> dtf.Dataset:
    path = tmp_path_factory.mktemp("devices") / "a.tfrecord"
    tokens = [list(range(row % 4)) for row in range(20)]
    dtf.to_tfrecord({"v": VALUES, "label": np.arange(20), "tokens": tokens, "name": ["n"] * 20}, path)
    return dtf.read_tfrecord(path, chunks=6)


def on_device(array: da.Array) -> da.Array:
    return array.map_blocks(DeviceArray, dtype=array.dtype, meta=DeviceArray(np.empty((0, 0), array.dtype)))


def hidden(array: da.Array) -> da.Array:
    return array.map_blocks(DeviceArray, dtype=array.dtype, meta=np.empty((0, 0), array.dtype))


OUTPUTS: dict[str, Callable[[dtf.Dataset, Path], Any]] = {
    "compute": lambda ds, _: ds.compute()["y"],
    "compute on other schedulers": lambda ds, _: dask.compute(ds, scheduler="sync")[0]["y"],
    "head": lambda ds, _: ds.head(20)["y"],
    "to_zarr": lambda ds, path: ds.to_zarr(path / "a.zarr") or dtf.from_zarr(path / "a.zarr")["y"].compute(),
    "to_tfrecord": lambda ds, path: ds.to_tfrecord(path / "b") or dtf.read_tfrecord(path / "b")["y"].compute(),
    "map_blocks": lambda ds, _: ds.map_blocks(lambda blocks: {"y": blocks["y"] + 0})["y"].compute(),
    "batches": lambda ds, _: np.concatenate([batch["y"] for batch in ds.batches(7)]),
    "rows": lambda ds, _: ds.rows[:].compute()["y"],
    "where": lambda ds, _: ds.where(lambda blocks: DeviceArray(blocks["y"] >= 0).values.all(1))["y"].compute(),
    "persist": lambda ds, _: ds.persist().compute()["y"],
}


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("place", [on_device, hidden])
def test_columns_on_a_device_leave_as_arrays_of_numpy(
    ds: dtf.Dataset, tmp_path: Path, name: str, place: Callable[[da.Array], da.Array]
) -> None:
    found = OUTPUTS[name](ds.assign(y=place(ds["v"])), tmp_path)
    assert type(found) is np.ndarray
    assert np.array_equal(found, VALUES)


def test_inputs_and_results_of_functions_on_a_device(ds: dtf.Dataset, tmp_path: Path) -> None:
    made = dtf.Dataset.from_arrays({"x": DeviceArray(VALUES), "rows": [DeviceArray(row) for row in VALUES]})
    assert np.array_equal(made.compute()["x"], VALUES)
    assert np.array_equal(made.compute()["rows"], VALUES)
    dtf.to_tfrecord({"x": DeviceArray(VALUES)}, tmp_path / "a")
    assert np.array_equal(dtf.read_tfrecord(tmp_path / "a")["x"].compute(), VALUES)
    for template in (None, {"z": dtf.FixedLenFeature((3,), "float32")}):
        mapped = ds.map_blocks(lambda blocks: {"z": DeviceArray(blocks["v"])}, template)
        assert np.array_equal(mapped["z"].compute(), VALUES)

    def ragged(blocks: dict[str, Any]) -> dict[str, Any]:
        tokens = blocks["tokens"]
        return {"t": RaggedBlock(DeviceArray(tokens.values), DeviceArray(tokens.row_splits))}

    assert [row.tolist() for row in ds.map_blocks(ragged)["t"].compute()] == [[*range(row % 4)] for row in range(20)]
    assert ds.where(lambda blocks: DeviceArray(blocks["label"]) % 2 == 0, ["label"]).nrows == 10
    assert ds.rows[(on_device(ds["v"]).sum(axis=1) > 90)].nrows == 10
    assert ds.rows[DeviceArray(np.array([3, 1]))]["label"].compute().tolist() == [3, 1]


def test_sparse_arrays_are_refused_with_a_remedy(ds: dtf.Dataset, tmp_path: Path) -> None:
    message = r"'y' is sparse, of type support.Sparse: array.todense\(\), or of a dask array array.map_blocks"
    with pytest.raises(SchemaError, match=f"array {message}"):
        dtf.Dataset.from_arrays({"y": Sparse(VALUES)})
    with pytest.raises(SchemaError, match=f"array {message}"):
        dtf.to_tfrecord({"y": Sparse(VALUES)}, tmp_path / "a")
    known = ds["v"].map_blocks(Sparse, dtype="f4", meta=Sparse(np.empty((0, 0), "f4")))
    with pytest.raises(SchemaError, match=f"column {message}"):
        ds.assign(y=known)
    unknown = ds.assign(y=ds["v"].map_blocks(Sparse, dtype="f4", meta=np.empty((0, 0), "f4")))
    with pytest.raises(SchemaError, match=f"column {message}"):
        unknown.compute()
    with pytest.raises(SchemaError, match=f"map_blocks returned {message}"):
        ds.map_blocks(lambda blocks: {"y": Sparse(blocks["v"])})


def test_a_data_set_on_a_backend_of_dask(ds: dtf.Dataset, tmp_path: Path) -> None:
    moved = ds.to_backend("device")
    column = moved["v"].compute()
    assert isinstance(column, DeviceArray)
    assert isinstance(moved["v", "label"][1].compute(), DeviceArray)
    assert isinstance(moved["v"].mean(axis=0).compute(), DeviceArray)
    assert np.array_equal(moved["v"].mean(axis=0).compute().get(), VALUES.mean(axis=0))
    # Text stays, and compute and files have arrays of NumPy.
    assert moved["name"].compute().tolist() == [b"n"] * 20
    assert type(moved.compute()["v"]) is np.ndarray

    def scale(blocks: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(blocks["v"], DeviceArray) and isinstance(blocks["tokens"].values, DeviceArray)
        assert type(blocks["name"]) is np.ndarray
        return {"v": blocks["v"] * 2, "tokens": blocks["tokens"], "name": blocks["name"], "label": blocks["label"]}

    mapped = moved.map_blocks(scale)
    assert mapped.schema["tokens"] == ds.schema["tokens"]
    for picked in (mapped, mapped[["v"]], mapped.rows[:], mapped.where([("label", ">=", 0)]), mapped.persist()):
        assert np.array_equal(picked.compute()["v"], 2 * VALUES)
        assert isinstance(picked["v"].compute(), DeviceArray)
    again = pickle.loads(pickle.dumps(moved.assign(w=moved["v"] + 1)))
    assert isinstance(again["w"].compute(), DeviceArray)
    again.to_zarr(tmp_path / "a.zarr")
    assert np.array_equal(dtf.from_zarr(tmp_path / "a.zarr")["w"].compute(), VALUES + 1)
    assert isinstance(moved.explode(["tokens"])["tokens"].compute(), DeviceArray)
    assert type(again.to_backend("numpy")["w"].compute()) is np.ndarray
    assert type(next(iter(moved.batches(5)))["v"]) is np.ndarray
    with pytest.raises(ValueError, match="nowhere"):
        ds.to_backend("nowhere")
    assert to_device(column) is column


def test_functions_return_as_many_rows_as_they_get(ds: dtf.Dataset) -> None:
    with pytest.raises(SchemaError, match=r"got blocks of no rows.* returned 10 rows of 'z'"):
        ds.map_blocks(lambda blocks: {"z": np.zeros(10)})
    # Rows of a RaggedBlock are iterated, also in the trial without rows.
    summed = ds.map_blocks(
        lambda blocks: {
            "n": np.array([len(row) + n for row, n in zip(blocks["tokens"], blocks["label"], strict=True)], np.int64)
        }
    )
    assert summed["n"].compute().tolist() == [row % 4 + row for row in range(20)]
