"""URLs of file systems that other packages bring: what fsspec registers for a protocol opens them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import _registry

import dask_tfrecord as dtf


@pytest.fixture(params=["abfs", "hf"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Register a directory as the file system of a protocol, and return the URL of a folder in it."""

    class Rooted(DirFileSystem):
        protocol = request.param
        cachable = False

        def __init__(self, account_name: str = "", token: str = "") -> None:
            super().__init__(path=str(tmp_path), fs=LocalFileSystem())

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return str(path).removeprefix(f"{request.param}://").rstrip("/")

    monkeypatch.setitem(_registry, request.param, Rooted)
    (tmp_path / "datasets" / "user").mkdir(parents=True)
    return f"{request.param}://datasets/user"


def test_shards_are_read_by_url(url: str, tmp_path: Path) -> None:
    dtf.to_tfrecord({"x": np.arange(20)}, tmp_path / "datasets/user/train-{shard:02d}.tfrecord", records_per_shard=10)
    options = {"account_name": "a"} if url.startswith("abfs") else {"token": "t"}
    ds = dtf.read_tfrecord(f"{url}/train-*.tfrecord", storage_options=options)
    np.testing.assert_array_equal(ds["x"].compute(), np.arange(20))
    np.testing.assert_array_equal(ds.rows[15:]["x"].compute(), np.arange(15, 20))
