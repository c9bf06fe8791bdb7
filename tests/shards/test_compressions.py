"""Compressions of shards, and files of other formats."""

import io
import random
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dask_tfrecord as dtf
from dask_tfrecord.shards.compressions import find_compression

NAMES = ["gzip", "zlib", "zstd"]
COLUMNS = {"x": np.arange(1000), "b": [random.Random(number).randbytes(40) + bytes(60) for number in range(1000)]}
FEATURES = {"x": dtf.FixedLenFeature((), "int64"), "b": dtf.FixedLenFeature((), "bytes")}


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "zstd":
        try:
            find_compression("zstd").decompressor()
        except ImportError:
            pytest.skip("no library for zstd")
    return str(request.param)


@pytest.fixture
def stored(name: str, tmp_path: Path) -> bytes:
    dtf.to_tfrecord(COLUMNS, tmp_path / "a.tfrecord", compression=name, features=FEATURES)
    return (tmp_path / "a.tfrecord").read_bytes()


def payloads(path: Path, data: bytes, **options: Any) -> list[bytes]:
    path.write_bytes(data)
    return list(dtf.read_records(path, **options))


def test_shards_are_written_found_and_read(name: str, stored: bytes, tmp_path: Path) -> None:
    dtf.to_tfrecord(COLUMNS, tmp_path / "plain.tfrecord", features=FEATURES)
    plain = (tmp_path / "plain.tfrecord").read_bytes()
    assert len(stored) < len(plain)
    expected = list(dtf.read_records(tmp_path / "plain.tfrecord"))
    for compression in ("infer", name, name.upper()):
        assert payloads(tmp_path / "b.tfrecord", stored, compression=compression) == expected
    ds = dtf.read_tfrecord(tmp_path / "a.tfrecord", FEATURES, chunks=300)
    assert ds["x"][999].compute() == 999
    ds.to_zarr(tmp_path / "a.zarr")
    assert dtf.from_zarr(tmp_path / "a.zarr")["x"].sum().compute() == sum(range(1000))
    assert dtf.verify(tmp_path / "a.tfrecord").ok
    # The same rows are the same bytes, because tasks may run twice.
    dtf.to_tfrecord(COLUMNS, tmp_path / "c.tfrecord", compression=name, features=FEATURES)
    assert (tmp_path / "c.tfrecord").read_bytes() == stored
    # Members in a row, with padding.
    if find_compression(name).joins:
        assert payloads(tmp_path / "b.tfrecord", stored + bytes(100) + stored) == 2 * expected
    else:
        with pytest.raises(dtf.CorruptRecordError, match="other data follows"):
            payloads(tmp_path / "b.tfrecord", stored + stored)


def test_cut_and_damaged_data_are_errors_after_intact_records(name: str, stored: bytes, tmp_path: Path) -> None:
    dtf.to_tfrecord(COLUMNS, tmp_path / "plain.tfrecord", features=FEATURES)
    expected = list(dtf.read_records(tmp_path / "plain.tfrecord"))
    rng = random.Random(0)
    for number in range(8):
        place = rng.randrange(20, len(stored) - 1)
        damaged = bytearray(stored)
        damaged[place] ^= 1 << rng.randrange(8)
        (tmp_path / "x.tfrecord").write_bytes(stored[:place] if number % 2 else damaged)
        found = []
        try:
            for payload in dtf.read_records(tmp_path / "x.tfrecord", compression=name):
                found.append(payload)
        except dtf.CorruptRecordError as error:
            assert "x.tfrecord" in str(error)
        else:
            # A flag without effect, like the time in a gzip header.
            assert not number % 2 and found == expected
        assert found == expected[: len(found)]


@pytest.mark.slow
def test_data_without_end_are_refused(name: str, tmp_path: Path) -> None:
    compressor = find_compression(name).compressor()
    piece = bytes(1 << 20)
    data = b"".join(compressor.compress(piece) for _ in range(70)) + compressor.flush()
    (tmp_path / "x.tfrecord").write_bytes(data)
    with pytest.raises(dtf.CorruptRecordError):
        list(dtf.read_records(tmp_path / "x.tfrecord", compression=name))
    report = dtf.verify(tmp_path / "x.tfrecord", compression=name)
    assert not report.ok


def test_names_of_compressions(tmp_path: Path) -> None:
    plain = lambda head: head.startswith(b"plain")  # noqa: E731
    taken = find_compression("gzip")
    for unusable in ("gzip", "zstd", "infer", "Upper", "a b"):
        with pytest.raises(ValueError, match="expected an unused name"):
            dtf.register_compression(dtf.ShardCompression(unusable, plain, taken.decompressor, taken.compressor))
    with pytest.raises(ValueError, match=r"compression must be one of None, 'gzip', 'zlib', 'zstd'.*; got 'lzma'"):
        dtf.to_tfrecord({"x": [1]}, tmp_path / "x.tfrecord", compression="lzma")


def tar() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("000.jpg"), io.BytesIO())
    return data.getvalue()


def archive() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as written:
        written.writestr("x", "y")
    return data.getvalue()


def parquet() -> bytes:
    pa = pytest.importorskip("pyarrow")
    data = io.BytesIO()
    pytest.importorskip("pyarrow.parquet").write_table(pa.table({"x": [1]}), data)
    return data.getvalue()


def hdf5() -> bytes:
    data = io.BytesIO()
    with pytest.importorskip("h5py").File(data, "w") as file:
        file["x"] = [1]
    return data.getvalue()


FOREIGN: dict[str, Callable[[], bytes]] = {
    "a tar archive": tar,
    "a zip archive": archive,
    "a Parquet file": parquet,
    "an HDF5 file": hdf5,
    # The first bytes as their specifications give them.
    "a Riegeli or ArrayRecord file": lambda: bytes.fromhex("83af70d10d884a3f") + bytes(56),
    "a RecordIO file of MXNet": lambda: bytes.fromhex("0a23d7ce10000000") + bytes(56),
    "snappy data": lambda: b"\xff\x06\x00\x00sNaPpY" + bytes(50),
    "an LMDB database": lambda: bytes(16) + bytes.fromhex("dec0efbe01000000") + bytes(4072),
    "bzip2 data": lambda: __import__("bz2").compress(b"x" * 100),
    "xz data": lambda: __import__("lzma").compress(b"x" * 100),
    "an Arrow file": lambda: b"ARROW1\0\0" + bytes(50),
    "a Git LFS pointer": lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n",
}


@pytest.mark.parametrize("what", FOREIGN)
def test_files_of_other_formats_are_named(what: str, tmp_path: Path) -> None:
    (tmp_path / "x.tfrecord").write_bytes(FOREIGN[what]())
    with pytest.raises(dtf.CorruptRecordError, match=rf"begins with {re.escape(what)}"):
        list(dtf.read_records(tmp_path / "x.tfrecord"))
