"""Files that are written at once, each under a temporary name: any names and sizes, and what cannot be written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dask_tfrecord.errors import StoreInUseError
from dask_tfrecord.shards.objects import DirectoryObjects, objects_in

VALUES: dict[str, bytes | memoryview] = {
    **{f"a/c/{size}": bytes(range(256)) * (size // 256) + b"x" * (size % 256) for size in (0, 1, 255, 300_000)},
    "größe/c/0": memoryview(b"text"),
    "top": b"",
}


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_files_of_any_folder_are_written_and_replaced(tmp_path: Path) -> None:
    objects = DirectoryObjects(str(tmp_path / "new"))
    for values in (dict.fromkeys(VALUES, b"before"), VALUES):
        objects.put_all(values)
        assert files_in(tmp_path / "new") == {name: bytes(value) for name, value in values.items()}
        sizes = {name: len(value) for name, value in values.items()}
        assert objects.sizes([*values, "a/c/7", "b/c/0"]) == sizes | {"a/c/7": None, "b/c/0": None}


@pytest.mark.parametrize("folder", ["a", "a/c"], ids=["the folder of an array", "the folder of its chunks"])
def test_the_files_before_one_that_cannot_be_written_are_complete(tmp_path: Path, folder: str) -> None:
    (tmp_path / "b/c").mkdir(parents=True)
    (tmp_path / folder).parent.mkdir(exist_ok=True)
    (tmp_path / folder).write_bytes(b"no folder")
    with pytest.raises(NotADirectoryError, match=r"(?i)a directory"):
        DirectoryObjects(str(tmp_path)).put_all({"b/c/0": b"first", "a/c/0": b"refused", "b/c/1": b"never"})
    assert files_in(tmp_path) == {"b/c/0": b"first", folder: b"no folder"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a limit of file sizes")
def test_a_file_that_is_cut_by_the_system_is_removed(tmp_path: Path) -> None:
    import resource
    import signal

    limit, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            DirectoryObjects(str(tmp_path)).put_all({"0": b"short", "1": bytes(2000), "2": b"never"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.filename == str(tmp_path / "1")
    assert files_in(tmp_path) == {"0": b"short"}


@pytest.mark.parametrize("place", ["s3", "obstore"])
def test_an_object_is_emptied_unless_another_run_writes_it(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url, options = f"obstore://{tmp_path.name}", dict[str, Any]()
    if place == "s3":
        url, options = f"s3://bucket/{tmp_path.name}", request.getfixturevalue("s3")
        request.getfixturevalue("bucket")
    else:
        options = {"store": pytest.importorskip("obstore").store.MemoryStore()}
    objects: Any = objects_in(url, options)
    assert objects.create("x", b"old") and not objects.create("x", b"other")
    with pytest.raises(StoreInUseError, match="another run has written x meanwhile"):
        objects.empty("x", lambda: objects.put("x", b"new"))
    assert objects.get(["x"]) == {"x": b"new"}
    objects.empty("x", lambda: None)
    objects.empty("missing", lambda: None)
    assert objects.get(["x", "missing"]) == {"x": b"", "missing": None}
