"""Complete stores that lose or damage chunks: neither fill values nor garbage are returned as rows."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import zarr
import zarr.codecs
import zarr.storage

import dask_tfrecord as dtf
from dask_tfrecord import messages
from dask_tfrecord.errors import IncompleteStoreError

SCHEMA = dtf.Schema(
    {
        "image": dtf.RawFeature((4, 3), "uint8"),
        "none": dtf.FixedLenFeature((0,), "int64"),
        "label": dtf.FixedLenFeature((), "int64", default_value=-1),
        "score": dtf.FixedLenFeature((), "float32", default_value=float("nan")),
        "title": dtf.TextFeature(default_value=""),
        "name": dtf.FixedLenFeature((), "bytes"),
        "boxes": dtf.VarLenFeature("float32", shape=(-1, 4)),
        "cube": dtf.TensorFeature((None, None), "uint8"),
    }
)
ROWS = 11
GRIDS: list[dict[str, Any]] = [{"chunks": 4}, {"chunks": 2, "shards": 6}]


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> dtf.Dataset:
    """Rows that hold only fill values, except for the first row."""
    payloads = []
    for row in range(ROWS):
        message = messages.Example()
        held = message.features.feature
        first = int(row == 0)
        held["image"].bytes_list.value.append(bytes([first] * 12))
        if first:
            held["label"].int64_list.value.append(1)
            held["score"].float_list.value.append(1)
            held["title"].bytes_list.value.append(b"title")
        held["none"].int64_list.SetInParent()
        held["name"].bytes_list.value.append(b"\0" * 3)
        held["boxes"].float_list.value.extend([first] * 4)
        cube = messages.TensorProto(dtype=4, tensor_content=bytes([first] * 2))
        for length in (1, 2):
            cube.tensor_shape.dim.add(size=length)
        held["cube"].bytes_list.value.append(cube.SerializeToString())
        payloads.append(message.SerializeToString())
    path = tmp_path_factory.mktemp("shards") / "part"
    oracle.write_oracle(path, payloads)
    return dtf.read_tfrecord(path, SCHEMA)


def bits(column: Any) -> list[bytes]:
    return [np.asarray(row).tobytes() for row in column]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_missing_chunk_is_not_read_as_fill_values(ds: dtf.Dataset, tmp_path: Path, grid: dict[str, Any]) -> None:
    store = tmp_path / "store.zarr"
    ds.to_zarr(store, **grid)
    opened, wanted = dtf.from_zarr(store), ds.compute()
    files = [path for path in sorted(store.rglob("*")) if path.is_file() and path.name != "zarr.json"]
    assert {path.relative_to(store).parts[0] for path in files} == {
        *("image", "label", "score", "title", "name.values", "name.row_splits"),
        *("boxes.values", "boxes.row_splits", "cube.values", "cube.shapes", "cube.row_splits"),
    }
    for path in files:
        array = path.relative_to(store).parts[0]
        aside = path.rename(tmp_path / "aside")
        with pytest.raises(IncompleteStoreError, match=" is missing: ") as raised:
            opened[array.partition(".")[0]].compute()
        assert str(raised.value).startswith(f"{store}/{array}: {path.relative_to(store)} is missing: ")
        assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
        aside.rename(path)
    for name in SCHEMA:
        assert bits(opened[name].compute()) == bits(wanted[name])


@pytest.mark.parametrize("grid", [GRIDS[0], pytest.param(GRIDS[1], marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(
    "codec",
    [
        # Blosc itself reads on behind a chunk that is cut.
        [zarr.codecs.BloscCodec(), zarr.codecs.Crc32cCodec()],
        pytest.param(zarr.codecs.ZstdCodec(), marks=pytest.mark.slow),
        pytest.param(zarr.codecs.GzipCodec(), marks=pytest.mark.slow),
        zarr.codecs.Crc32cCodec(),
        None,
    ],
    ids=lambda codec: type(codec).__name__,
)
def test_damaged_chunks_are_reported(ds: dtf.Dataset, tmp_path: Path, codec: Any, grid: dict[str, Any]) -> None:
    store = tmp_path / "store.zarr"
    ds.to_zarr(store, compressors=codec, **grid)
    opened = dtf.from_zarr(store)
    for path in sorted(store.rglob("*")):
        if path.is_dir() or path.name == "zarr.json":
            continue
        array, whole = path.relative_to(store).parts[0], path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(IncompleteStoreError, match=r"cannot read entries \d+ to \d+: ") as raised:
            opened[array.partition(".")[0]].compute()
        assert str(raised.value).startswith(f"{store}/{array}: cannot read entries ")
        path.write_bytes(whole)


@pytest.mark.parametrize("make", [zarr.storage.MemoryStore, lambda: "memory://lost/store.zarr"])
def test_objects_of_stores(make: Any) -> None:
    store = make()
    dtf.to_zarr({"x": np.zeros(9)}, store, chunks=3, component="a/b")
    opened = dtf.from_zarr(store, component="a/b")
    assert not opened["x"].compute().any()
    path = zarr.open_array(store, path="a/b/x", mode="r+").store_path
    asyncio.run((path / "c" / "1").delete())
    with pytest.raises(IncompleteStoreError, match=r"a/b/x: x/c/1 is missing: .* 3 to 6; .* as 0\.0\. "):
        opened["x"].compute()


def test_stored_fill_values_are_read(tmp_path: Path) -> None:
    for value in (0.0, float("nan"), -0.0, 7.0):
        x = np.full((7, 2), value)
        dtf.to_zarr({"x": x}, tmp_path / "store.zarr", chunks=2, fill_values={"x": value}, mode="w")
        assert dtf.from_zarr(tmp_path / "store.zarr")["x"].compute().tobytes() == x.tobytes()
