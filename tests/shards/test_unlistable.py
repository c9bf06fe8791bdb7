"""Patterns over several folders while one can't be listed: no shard is left out without an error."""

import contextlib
import errno
import glob
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import servers
from support.object_stores import make_store
from support.privileges import without_privileges

import dask_tfrecord as dtf
from dask_tfrecord.errors import ShardNotFoundError, StorageError
from dask_tfrecord.settings import Limits
from dask_tfrecord.shards.listing import find_shards

FEATURES = {"x": dtf.FixedLenFeature((), "int64")}
PATTERNS = ["*/s.tfrecord", "*/*.tfrecord", "**/*.tfrecord", "**", "[ab]/s.*", "?/s.tfrecord", "**/b/s.tfrecord"]
# Errors of a folder are not hidden by patterns that can't match anything in it.
OTHERS = ["a/*.tfrecord", "[ac]/*", "[!b]/s.tfrecord"]


@pytest.fixture
def folders() -> Iterator[Path]:
    """Return a directory that each user may list, with shards of 10 rows in `a`, `b` and `c`."""
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    for name in "abc":
        (root / name).mkdir(mode=0o755)
        dtf.to_tfrecord({"x": np.arange(10)}, str(root / name / "s.tfrecord"), features=FEATURES)
    yield root
    (root / "b").chmod(0o755)
    shutil.rmtree(root)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_local_folder_without_permission(folders: Path, pattern: str) -> None:
    urlpath = str(folders / pattern)
    assert len(find_shards(urlpath)) in (1, 2, 3)
    (folders / "b").chmod(0)
    calls: list[Callable[[], object]] = [
        lambda: dtf.read_tfrecord(urlpath, FEATURES),
        lambda: dtf.verify(urlpath),
        lambda: dtf.build_index(urlpath),
        lambda: dtf.read_tfrecord([str(folders / "a" / "*"), urlpath], FEATURES),
    ]
    with without_privileges():
        for call in calls:
            with pytest.raises(PermissionError, match=re.escape(str(folders / "b"))):
                call()


@pytest.mark.parametrize("pattern", OTHERS)
def test_a_folder_that_the_pattern_excludes_is_not_listed(folders: Path, pattern: str) -> None:
    (folders / "b").chmod(0)
    with without_privileges():
        assert len(find_shards(str(folders / pattern))) in (1, 2)


def test_folders_without_shards_by_their_names_are_not_listed(folders: Path) -> None:
    for name in ("_temporary", ".Trash", "lost+found"):
        (folders / name).mkdir(mode=0)
    with without_privileges():
        assert len(find_shards(str(folders / "**" / "*.tfrecord"))) == 3
        assert len(find_shards(str(folders / "*" / "s.tfrecord"))) == 3
        with pytest.raises(PermissionError, match="_temporary"):
            find_shards(str(folders / "_*" / "*.tfrecord"))


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("pattern", ["*/*.tfrecord", "**/*.tfrecord", "b/*.tfrecord"])
def test_a_disk_that_fails(
    folders: Path, pattern: str, number: int, monkeypatch: pytest.MonkeyPatch, set_limits: Callable[..., Limits]
) -> None:
    set_limits(first_retry_wait=0.001)
    scandir = os.scandir

    def failing(path: Any = ".") -> Any:
        if os.fspath(path).rstrip("/") == str(folders / "b"):
            raise OSError(number, os.strerror(number), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(
        StorageError, match=rf"{re.escape(str(folders / 'b'))}: could not list the folder .*{os.strerror(number)}"
    ):
        find_shards(str(folders / pattern))


def test_links_to_folders(folders: Path) -> None:
    (folders / "link").symlink_to(folders / "a")
    (folders / "d").mkdir()
    (folders / "d" / "cycle").symlink_to(folders)
    (folders / "broken").symlink_to("gone")
    assert len(find_shards(str(folders / "*" / "s.tfrecord"))) == 4
    assert len(find_shards(str(folders / "*" / "*.tfrecord"))) == 4
    assert len(find_shards(str(folders / "**" / "*.tfrecord"))) == 3


NAMES = st.sampled_from(["a", "b", "ab", "x.1", ".h", "_t", "[a]"])
PARTS = st.sampled_from(["a", "*", "?", "**", "a*", "[ab]", "[!a]*", "*.1", "[[]a]", "x.?", "_*", ".*"])


@given(
    st.sets(st.lists(NAMES, min_size=1, max_size=4).map(tuple), max_size=12), st.lists(PARTS, min_size=1, max_size=4)
)
def test_patterns_match_as_in_python(files: set[tuple[str, ...]], pattern: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for parts in files:
            with contextlib.suppress(OSError):
                root.joinpath(*parts[:-1]).mkdir(parents=True, exist_ok=True)
                root.joinpath(*parts).touch()
        hidden = tuple(prefix for prefix in "._" if not any(part.startswith(prefix) for part in pattern))
        # Python matches the folder itself and folders, too.
        matched = {Path(path) for path in glob.glob(str(root.joinpath(*pattern)), recursive=True, include_hidden=True)}  # noqa: PTH207
        relative = {path.relative_to(root).parts for path in matched if path.is_file()}
        expected = {parts for parts in relative if not any(part.startswith(hidden) for part in parts if hidden)}
        try:
            found = {
                Path(path).relative_to(root.resolve()).parts
                for path in find_shards(f"{root}/{'/'.join(pattern)}").paths
            }
        except ShardNotFoundError:
            found = set()
        if len(expected) or not (root.joinpath(*pattern)).exists():
            assert found == expected


class Tree(servers.FileServer):
    """Serve folders with pages that link to their files and folders; `broken` folders answer with a status."""

    broken: dict[str, int]

    def answer(self, body: bytes) -> tuple[int, dict[str, str], bytes, int | None]:
        inside = self.path.strip("/")
        if inside in self.broken:
            return self.broken[inside], {}, b"", None
        prefix = f"{inside}/" if inside else ""
        below = {name.removeprefix(prefix).partition("/") for name in self.files if name.startswith(prefix)}
        if inside in self.files or not below:
            return super().answer(body)
        page = "".join(f'<a href="{head}{slash}">{head}</a>\n' for head, slash, _ in sorted(below))
        return 200, {"Content-Type": "text/html"}, page.encode(), None


@pytest.mark.parametrize("pattern", ["*/*.tfrecord", "**/*.tfrecord"])
def test_folders_of_a_web_server(pattern: str, set_limits: Callable[..., Limits]) -> None:
    set_limits(first_retry_wait=0.001)
    files = {f"d/{name}/s.tfrecord": b"1" for name in "abc"}
    broken: dict[str, int] = {}
    with servers.running(Tree, files=files, etags={}, broken=broken) as (address, _):
        assert len(find_shards(f"{address}/d/{pattern}")) == 3
        for status, kind in {403: PermissionError, 401: PermissionError, 404: StorageError, 503: StorageError}.items():
            broken["d/b"] = status
            with pytest.raises(kind, match=f"{address}/d/b"):
                find_shards(f"{address}/d/{pattern}")
            with pytest.raises((kind, ShardNotFoundError), match=f"{address}/d/b"):
                find_shards(f"{address}/d/b/*.tfrecord")


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["s3", "obstore", "gcs"])
@pytest.mark.parametrize("pattern", ["*/*.tfrecord", "**/*.tfrecord", "b/*.tfrecord"])
def test_a_prefix_of_a_bucket_without_permission(kind: str, pattern: str, request: pytest.FixtureRequest) -> None:
    with ExitStack() as stack:
        store = make_store(kind, request, stack)
        for name in "abc":
            store.put(f"{name}/s.tfrecord", b"1")
        options = store.options
        expected = len(find_shards(f"{store.url}/{pattern}", storage_options=options))
        assert expected == (1 if pattern[0] == "b" else 3)
        closed = "prefix=d/" if kind != "obstore" and "**" in pattern else "prefix=d/b/"
        store.log.alter = lambda *response: (
            (403, {}, b"") if closed in store.log.asked[-1].path.replace("%2F", "/") else response
        )
        stack.callback(setattr, store.log, "alter", lambda *response: response)
        with pytest.raises(PermissionError, match=r"permission to list this folder is denied.*d"):
            find_shards(f"{store.url}/{pattern}", storage_options=options)


@pytest.mark.slow
def test_s3_without_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    options = {"endpoint_url": "http://127.0.0.1:9"}
    columns = {"x": np.arange(3)}
    calls: dict[str, Callable[[str], object]] = {
        "x.tfrecord": lambda url: dtf.read_tfrecord(url, FEATURES, storage_options=options),
        "x-*.tfrecord": lambda url: dtf.verify(url, storage_options=options),
        "y.tfrecord": lambda url: dtf.to_tfrecord(columns, url, storage_options=options),
        "y.zarr": lambda url: dtf.Dataset.from_arrays(columns).to_zarr(url, storage_options=options),
        "z.zarr": lambda url: dtf.from_zarr(url, storage_options=options),
    }
    for name, call in calls.items():
        with pytest.raises(
            StorageError, match=rf"^s3://bucket/{re.escape(name)}.*: could not .*storage_options"
        ) as caught:
            call(f"s3://bucket/{name}")
        assert "redentials" in str(caught.value)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no /proc on this system")
def test_files_whose_size_is_reported_as_zero() -> None:
    for call in (lambda: dtf.read_tfrecord("/proc/self/maps", FEATURES), lambda: dtf.verify("/proc/self/maps")):
        with pytest.raises(StorageError, match=r"/proc/self/maps: the file has content"):
            call()
