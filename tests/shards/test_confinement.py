"""Objects stay below the root of their store: names that leave it, links, and devices in it."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr.storage

import dask_tfrecord as dtf
from dask_tfrecord.errors import IncompleteStoreError
from dask_tfrecord.shards.objects import DirectoryObjects, NotAFileError, UrlObjects
from dask_tfrecord.stores.zarr.store import StoreObjects

OUTSIDE = [
    *("", ".", "..", "../x", "a/..", "a/../../x", "a/./x", "/etc/x", "//server/x"),
    *("a\0b", "x::file:///etc/x", "file:///etc/x"),
    *(("\\x", "a\\..\\x", "a\\b", "C:/x", "c:x") if sys.platform == "win32" else ()),
]
STORES: dict[str, Callable[[Path], Any]] = {
    "directory": lambda path: DirectoryObjects(str(path / "root")),
    "url": lambda path: UrlObjects("memory://confinement", {}),
    "store": lambda path: StoreObjects(zarr.storage.MemoryStore(), ""),
    "group of a store": lambda path: StoreObjects(zarr.storage.MemoryStore(), "a/b"),
}
needs_links = pytest.mark.skipif(sys.platform == "win32", reason="links need privileges there")


def operations(objects: Any, name: str) -> Iterator[Callable[[], object]]:
    """Yield each operation on an object of that name."""
    yield lambda: objects.put(name, b"")
    yield lambda: objects.create(name, b"")
    yield lambda: objects.get([name])
    yield lambda: objects.drop([name])
    if hasattr(objects, "put_all"):
        yield lambda: objects.put_all({"good": b"", name: b""})
        yield lambda: objects.sizes([name])
        yield lambda: objects.remove(name)
        if name:
            yield lambda: objects.names(name)


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("kind", STORES)
def test_names_that_leave_the_root_are_refused(kind: str, name: str, tmp_path: Path) -> None:
    for operation in operations(STORES[kind](tmp_path), name):
        with pytest.raises(IncompleteStoreError, match="is not a name within the store"):
            operation()
    assert not (tmp_path / "root").exists()


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Make a directory that belongs to other programs, and links to it in a directory of objects."""
    (tmp_path / "victim/c").mkdir(parents=True)
    (tmp_path / "victim/c/0").write_text("thesis")
    (tmp_path / "root/a").mkdir(parents=True)
    (tmp_path / "root/link").symlink_to("../victim")
    (tmp_path / "root/a/link").symlink_to("../../victim")
    (tmp_path / "root/a/file").symlink_to("../../victim/c/0")
    (tmp_path / "root/a/device").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "root/a/pipe")
    return tmp_path / "victim"


def assert_untouched(victim: Path) -> None:
    assert {path.relative_to(victim).as_posix() for path in victim.rglob("*")} == {"c", "c/0"}
    assert (victim / "c/0").read_text() == "thesis"


@needs_links
@pytest.mark.parametrize("name", ["link/c/0", "link/x", "a/link/c/0", "a/link/x/y"])
def test_nothing_is_changed_behind_a_link(victim: Path, name: str) -> None:
    objects = DirectoryObjects(str(victim.parent / "root"))
    changes: list[Callable[[], object]] = [
        lambda: objects.put(name, b""),
        lambda: objects.put_all({"b/0": b"", name: b""}),
        lambda: objects.create(name, b""),
        lambda: objects.drop([name]),
        lambda: objects.remove(name),
    ]
    for change in changes:
        with pytest.raises(NotAFileError, match="this is a link to another one") as caught:
            change()
        assert str(caught.value.filename).endswith("link")
    assert_untouched(victim)


@needs_links
def test_links_pipes_and_devices_are_removed_and_replaced_themselves(victim: Path) -> None:
    root = victim.parent / "root"
    objects = DirectoryObjects(str(root))
    assert objects.names("link") == objects.names("a/link") == []
    objects.put_all({"a/device": b"1", "a/file": b"2", "a/pipe": b"3"})
    assert objects.get(["a/device", "a/file", "a/pipe"]) == {"a/device": b"1", "a/file": b"2", "a/pipe": b"3"}
    os.mkfifo(root / "pipe")
    for name in ("a", "link", "pipe", "gone", "gone/deeper"):
        objects.remove(name)
    assert list(root.iterdir()) == []
    assert_untouched(victim)


@needs_links
def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to("disk")
    DirectoryObjects(str(tmp_path / "root")).put_all({"a/0": b"1"})
    assert (tmp_path / "disk/a/0").read_bytes() == b"1"


def add_rows(store: Path) -> None:
    dtf.Dataset.from_arrays({"x": np.arange(4)}).to_zarr(store, append_dim="record")


def add_column(store: Path) -> None:
    dtf.Dataset.from_arrays({"y": np.arange(4)}).to_zarr(store, mode="a")


def replace(store: Path) -> None:
    dtf.Dataset.from_arrays({"x": np.arange(4)}).to_zarr(store, mode="w")


@needs_links
@pytest.mark.parametrize("write", [add_rows, add_column, replace])
@pytest.mark.parametrize("name", [".dask_tfrecord", "x", "x/c", ".dask_tfrecord.claim"])
def test_a_store_with_links_in_it(tmp_path: Path, write: Callable[[Path], None], name: str) -> None:
    store, victim = tmp_path / "s.zarr", tmp_path / "victim"
    add_rows(store)
    (victim / "sub").mkdir(parents=True)
    (victim / "sub/0").write_text("thesis")
    link = store / name
    if link.exists():
        link.rename(tmp_path / "before")
    link.symlink_to(victim)
    try:
        write(store)
    except (OSError, dtf.TFRecordError) as error:
        assert str(store) in str(error)
    assert {path.relative_to(victim).as_posix() for path in victim.rglob("*")} == {"sub", "sub/0"}
    assert (victim / "sub/0").read_text() == "thesis"


def test_an_error_of_a_stored_chunk_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dtf.Dataset.from_arrays({"x": np.arange(12)}).to_zarr(tmp_path / "s.zarr", chunks=4)
    ds, real = dtf.from_zarr(tmp_path / "s.zarr"), Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if str(path).endswith("/c/1"):
            # The system does not know the name of what it can't read.
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    for read in (lambda: ds["x"].compute(scheduler="synchronous"), lambda: next(ds.batches(12))):
        with pytest.raises(OSError, match="error") as caught:
            read()
        assert caught.value.errno == errno.EIO
        assert str(caught.value.filename) == str(tmp_path / "s.zarr/x/c/1")


def test_the_cost_of_a_new_directory_does_not_depend_on_the_others(tmp_path: Path) -> None:
    def cost(folders: int) -> float:
        objects = DirectoryObjects(str(tmp_path / str(folders)))
        values = {f"{number}/c/0": b"x" for number in range(folders)}
        began = time.process_time()
        objects.put_all(values)
        return (time.process_time() - began) / folders

    cost(10)
    assert min(cost(4000), cost(4001)) < 4 * min(cost(500), cost(501), cost(502))
