"""Arrays of other libraries: copied to the host where a value leaves for a file or a column, never implicitly."""

from __future__ import annotations

import contextlib
import pickle
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from support.device import DeviceArray, Sparse, to_device
from support.engine import da
from support.few import mostly_slow

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
@pytest.mark.parametrize("place", mostly_slow([on_device, hidden], 2))
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
    message = r"'y' is sparse, of type support.Sparse: write array.todense\(\) to make it dense, or array.map_blocks"
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
    with pytest.raises(SchemaError, match=r"called with 0 rows.* returned 10 rows of 'z'"):
        ds.map_blocks(lambda blocks: {"z": np.zeros(10)})
    # Rows of a RaggedBlock are iterated, also in the trial without rows.
    summed = ds.map_blocks(
        lambda blocks: {
            "n": np.array([len(row) + n for row, n in zip(blocks["tokens"], blocks["label"], strict=True)], np.int64)
        }
    )
    assert summed["n"].compute().tolist() == [row % 4 + row for row in range(20)]


class _Pinned(np.ndarray[Any, Any]):
    """Pinned memory."""


class _Event:
    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def synchronize(self) -> None:
        self.calls.append("synchronize")


class _Cupy(types.ModuleType):
    """The functions of CuPy that batches use, which check that copies read pinned memory."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self.__spec__ = ModuleSpec("cupy", None)
        self.calls: list[str] = []
        self.cuda = types.SimpleNamespace(Device=self._device, get_current_stream=lambda: self.stream)
        self.stream = types.SimpleNamespace(record=lambda: _Event(self.calls))

    def _device(self, number: int) -> Any:
        self.calls.append(f"device {number}")
        return contextlib.nullcontext()

    def empty(self, shape: Any, dtype: Any) -> DeviceArray:
        if np.dtype(dtype).name == "uint16":
            raise TypeError("unsupported dtype uint16")
        made = DeviceArray(np.empty(shape, dtype))

        def fill(values: Any, stream: Any) -> None:
            assert isinstance(values, _Pinned) and stream is self.stream
            made.values[...] = values

        made.set = fill  # type: ignore[attr-defined]
        return made


class _Tensor(DeviceArray):
    pinned = False
    device = "cpu"

    def pin_memory(self) -> _Tensor:
        made = _Tensor(self.values)
        made.pinned = True
        return made

    def to(self, device: Any, non_blocking: bool = False) -> _Tensor:
        assert self.pinned == non_blocking == (device.type == "cuda")
        made = _Tensor(self.values)
        made.device = device.name
        return made

    def view(self, dtype: Any) -> _Tensor:
        return _Tensor(self.values.view(dtype))


def _torch() -> types.ModuleType:
    torch: Any = types.ModuleType("torch")
    torch.__spec__ = ModuleSpec("torch", None)
    torch.device = lambda name: types.SimpleNamespace(type=name.partition(":")[0], name=name)
    torch.from_numpy = _Tensor
    torch.bfloat16 = np.dtype("int16")
    made: types.ModuleType = torch
    return made


def _collected(batches: Any, name: str) -> list[Any]:
    return [row for batch in batches for row in batch[name].get().tolist()]


@pytest.mark.parametrize("shuffle", [False, "full"])
def test_batches_on_a_device_by_cupy(ds: dtf.Dataset, monkeypatch: pytest.MonkeyPatch, shuffle: Any) -> None:
    cupy, cupyx = _Cupy(), types.ModuleType("cupyx")
    cupyx.empty_pinned = lambda shape, dtype: np.empty(shape, dtype).view(_Pinned)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupyx", cupyx)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"batches\(device='mps'\) needs torch, which is not installed"):
        ds.batches(3, device="mps")
    expected = [row for batch in ds.batches(3, shuffle=shuffle, seed=1) for row in batch["v"].tolist()]
    batches = ds.batches(3, shuffle=shuffle, seed=1, device="cuda:1")
    first = next(batches)
    assert isinstance(first["v"], DeviceArray) and isinstance(first["tokens"].values, DeviceArray)
    assert isinstance(first["name"], np.ndarray)
    assert first["v"].get().tolist() + _collected(batches, "v") == expected
    assert cupy.calls[0] == "device 1" and cupy.calls.count("synchronize") == 5
    # A copy in another process has a copier of its own, and a failed copy loses no batch.
    with pytest.raises(SchemaError, match=r"column 'v' of uint16 is no array of the device \(unsupported dtype"):
        next(ds.map_blocks(lambda blocks: {"v": blocks["v"].astype(np.uint16)}).batches(3, device="cuda"))
    mixture = dtf.sample_from_datasets([ds[["v"]], ds[["v"]]], seed=0)
    assert isinstance(next(mixture.batches(3, device="cuda"))["v"], DeviceArray)


def test_batches_on_a_device_by_torch(ds: dtf.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", _torch())
    for device in ("cuda:1", "cpu"):
        batches = ds.batches(7, pad={"tokens": None}, device=device)
        first = next(batches)
        assert isinstance(first["tokens"], _Tensor) and first["tokens"].device == device
        again = pickle.loads(pickle.dumps(batches))
        assert first["v"].get().tolist() + _collected(batches, "v") == VALUES.tolist()
        assert _collected(again, "v") == VALUES[7:].tolist()
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError, match="needs torch or CuPy, which is not installed"):
        ds.batches(3, device="cuda")


def test_batches_are_taken_by_dlpack(ds: dtf.Dataset) -> None:
    batch = next(ds.batches(5))
    assert np.from_dlpack(batch["v"]).tolist() == VALUES[:5].tolist()
