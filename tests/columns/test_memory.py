"""Records of a few bytes that decode to much: blocks are limited, pieces are planned, and errors say where."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from oracle import write_oracle
from oracle.messages import TensorProto
from support.few import mostly_slow
from support.images import by_pillow
from support.programs import run_python
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.errors import MemoryLimitError

SETTING = "tfrecord.decode.memory-limit"
MIB = 1 << 20


def tensor(nbytes: int) -> bytes:
    """Serialize a tensor whose single value is repeated to `nbytes` bytes."""
    message = TensorProto(dtype=1, float_val=[1.5])
    message.tensor_shape.dim.add(size=nbytes // 4)
    return message.SerializeToString()


def strings(nbytes: int) -> bytes:
    """Serialize a tensor of empty strings; each needs eight bytes for its split."""
    message = TensorProto(dtype=7, string_val=[b""])
    message.tensor_shape.dim.add(size=nbytes // 8)
    return message.SerializeToString()


def image(nbytes: int) -> bytes:
    """Encode a black PNG that is 1024 pixels wide."""
    return by_pillow(np.zeros((max(nbytes // 1024, 1), 1024), np.uint8), "png")


def write(path: Path, values: Sequence[Sequence[bytes] | None]) -> Path:
    """Write records of one feature, x, with these values; None is an empty record."""
    write_oracle(path, [b"" if each is None else example(x=each) for each in values])
    return path


CASES: dict[str, tuple[Any, Any]] = {
    "tensor of an open size": (tensor, dtf.TensorFeature((None,), "float32")),
    "tensor of a known size": (tensor, dtf.TensorFeature((MIB // 4,), "float32")),
    "strings": (strings, dtf.TensorFeature((None,), "bytes")),
    "image of an open size": (image, dtf.ImageFeature((None, None, 1))),
    "image of a known size": (image, dtf.ImageFeature((1024, 1024, 1))),
    "images": (image, dtf.ImageFeature((None, 1024, 1024, 1))),
    "defaults of empty records": (None, dtf.FixedLenFeature((MIB // 4,), "float32", default_value=0.5)),
}


@pytest.mark.parametrize("counts", ["scan", None])
@pytest.mark.parametrize("case", mostly_slow(CASES, 2))
def test_a_block_larger_than_the_limit_is_refused_where_it_exceeds_it(
    tmp_path: Path, case: str, counts: str | None
) -> None:
    make, feature = CASES[case]
    path = write(tmp_path / "a", [[make(MIB)] if make else None] * 12)
    ds = dtf.read_tfrecord(path, {"x": feature}, counts=counts, chunks="shard")
    with dask.config.set({SETTING: "4.5 MiB", "scheduler": "sync"}):
        with pytest.raises(MemoryLimitError, match=rf"a: record 4 \(byte \d+\): feature 'x' .*{SETTING}") as caught:
            ds["x"].persist()
        if counts:
            assert len(dtf.read_tfrecord(path, {"x": feature}, chunks=4)["x"].compute()) == 12
    assert caught.value.place is not None
    assert caught.value.place.feature == "x"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with dask.config.set({SETTING: None}):
        assert len(ds["x"].compute()) == 12


@pytest.mark.parametrize("value", ["0", -1])
def test_a_limit_is_a_number_of_bytes(tmp_path: Path, value: Any) -> None:
    path = write(tmp_path / "a", [[tensor(8)]])
    ds = dtf.read_tfrecord(path, {"x": dtf.TensorFeature((2,), "float32")})
    with dask.config.set({SETTING: value}), pytest.raises(ValueError, match=f"{SETTING}' must be a number of bytes"):
        ds["x"].compute()


@pytest.mark.parametrize("case", mostly_slow(["tensor of an open size", "image of an open size"], 2))
def test_rows_that_grow_are_opened_and_written_in_pieces(tmp_path: Path, case: str) -> None:
    make, feature = CASES[case]
    path = write(tmp_path / "a", [[make(1024)]] * 20 + [[make(MIB)]] * 44)
    # Less than the rows that are probed, and the rows that the first ones let expect in one piece.
    with dask.config.set({SETTING: "10 MiB", "scheduler": "sync"}):
        ds = dtf.read_tfrecord(path, {"x": feature})
        ds.to_zarr(tmp_path / "a.zarr")
        ds.to_tfrecord(tmp_path / "b.tfrecord")
        assert dtf.verify(path).ok
    for again in (dtf.from_zarr(tmp_path / "a.zarr"), dtf.read_tfrecord(tmp_path / "b.tfrecord", {"x": feature})):
        assert len(again["x"]) == 64
        for row in (19, 20, 63):
            assert np.array_equal(again.rows[row : row + 1]["x"].compute()[0], ds.rows[row : row + 1]["x"].compute()[0])


@pytest.mark.parametrize("names", [("ThreadPool",), ("owner",), ("ThreadPool", "dask_tfrecord")])
def test_a_refused_thread_is_a_matter_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    dtf.to_tfrecord({"x": np.arange(64)}, tmp_path / "a.tfrecord")
    ds, start = dtf.read_tfrecord(tmp_path / "a.tfrecord", chunks=4), threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(names):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch, dask.config.set(pool=ThreadPoolExecutor(8)):
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(MemoryLimitError, match=r"the system refuses another thread.* Use fewer threads"):
            ds.to_zarr(tmp_path / "a.zarr")
    # The failed conversion has released the group.
    ds.to_zarr(tmp_path / "a.zarr", mode="w" if (tmp_path / "a.zarr").exists() else "w-")
    assert dtf.from_zarr(tmp_path / "a.zarr")["x"].compute().tolist() == list(range(64))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [2, 8])
def test_ragged_rows_are_converted_in_a_gibibyte_of_addresses(tmp_path: Path, threads: int) -> None:
    pytest.importorskip("resource")
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 1 << 40, size) for size in rng.integers(20, 512, 20_000)]
    dtf.to_tfrecord({"tokens": rows}, tmp_path / "t-{shard}.tfrecord", records_per_shard=2_500)
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "import dask, dask_tfrecord as dtf; dask.config.set(num_workers=int(sys.argv[1]))\n"
        "dtf.read_tfrecord(sys.argv[2], {'tokens': dtf.VarLenFeature('int64')}).to_zarr(sys.argv[3])"
    )
    run_python("-c", program, threads, tmp_path / "t-*.tfrecord", tmp_path / "t.zarr")
    found = dtf.from_zarr(tmp_path / "t.zarr")["tokens"].compute()
    assert all(np.array_equal(row, wanted) for row, wanted in zip(found, rows, strict=True))


def test_memory_that_there_is_not_is_an_error_with_the_feature(tmp_path: Path) -> None:
    write_oracle(tmp_path / "a", [b""] * 4)
    ds = dtf.read_tfrecord(tmp_path / "a", {"x": dtf.FixedLenFeature((1 << 45,), "int64")}, chunks=1)
    with pytest.raises(MemoryLimitError, match=r"feature 'x', shape \(35184372088832,\) of int64"):
        ds.compute()
    with dask.config.set({SETTING: None}), pytest.raises(MemoryLimitError, match=r"a: record 0: feature 'x', shape"):
        ds["x"].blocks[0].persist(scheduler="sync")
