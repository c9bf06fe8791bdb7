"""`to_zarr` with a session of Icechunk: one commit or none, on threads and on a cluster, and virtual references."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster
from support.any_columns import FEATURES, dataset_of, rows_like
from support.pages import blocks
from support.paths import REPOSITORY
from support.programs import run_python
from support.repeating import Repeating
from support.store_round_trip import assert_same

import dask_tfrecord as dtf
from dask_tfrecord.errors import IncompleteStoreError, SchemaError, StorageError
from dask_tfrecord.stores.zarr import write

icechunk = pytest.importorskip("icechunk")
# One of each layout that differs in its arrays; each chunk is one file of the repository, forced to the disk.
KINDS = {name: FEATURES[name] for name in ("dense", "text", "words", "nested", "tensor")}


@pytest.fixture
def repository(tmp_path: Path) -> Any:
    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repository")))


@pytest.fixture
def ds() -> dtf.Dataset:
    return dtf.Dataset.from_arrays({"a": np.arange(50), "t": [[1] * (row % 4) for row in range(50)]})


def messages(repository: Any) -> list[str]:
    return [each.message for each in repository.ancestry(branch="main")]


def assert_stored(repository: Any, expected: dtf.Dataset, component: str | None = None) -> None:
    found = dtf.from_zarr(repository.readonly_session("main").store, component=component)
    assert_same(found.compute(), expected.compute())


@pytest.mark.parametrize("of_session", [lambda session: session, lambda session: session.store])
def test_columns_in_one_commit(repository: Any, of_session: Any) -> None:
    blocks = {name: rows_like(each, 30, np.random.default_rng(3)) for name, each in KINDS.items()}
    ds, session = dataset_of(blocks, KINDS, (10, 0, 20)), repository.writable_session("main")
    ds.to_zarr(of_session(session), component="train/a", chunks=6, shards=12)
    assert messages(repository)[:-1] == ["Write 30 records of 5 features with dask_tfrecord"]
    assert session.read_only and session.snapshot_id == next(iter(repository.ancestry(branch="main"))).id
    assert_stored(repository, ds, "train/a")
    with pytest.raises(ValueError, match=r"session is read-only: pass repository\.writable_session"):
        ds.to_zarr(of_session(session))


def test_mode(repository: Any, ds: dtf.Dataset) -> None:
    ds.to_zarr(repository.writable_session("main"), chunks=10)
    session = repository.writable_session("main")
    with pytest.raises(FileExistsError, match="mode='w' replaces it"):
        ds.to_zarr(session)
    assert not session.has_uncommitted_changes
    ds[["a"]].rows[:20].to_zarr(session, mode="w", chunks=10)
    assert_stored(repository, ds[["a"]].rows[:20])
    assert len(messages(repository)) == 3


def test_rows_and_columns_are_added_by_one_commit_each(repository: Any) -> None:
    blocks = {name: rows_like(each, 30, np.random.default_rng(3)) for name, each in KINDS.items()}
    ds = dataset_of(blocks, KINDS, (10, 0, 20))
    expected, wanted = [], ["Repository initialized"]
    for cut in (slice(0, 7), slice(7, 7), slice(7, 29), slice(29, 30)):
        ds.rows[cut].to_zarr(
            repository.writable_session("main"), append_dim="record", component="a", chunks=2, shards=4
        )
        expected.append(ds.rows[: cut.stop])
        number = cut.stop - cut.start
        wanted.insert(0, f"{'Append' if cut.start else 'Write'} {number} records of 5 features with dask_tfrecord")
    more = {"a": np.arange(30), "t": [[1] * (row % 4) for row in range(30)]}
    dtf.to_zarr(more, repository.writable_session("main"), mode="a", component="a", chunks=3)
    expected.append(ds.assign(more))
    assert messages(repository) == ["Add 2 features of 30 records with dask_tfrecord", *wanted]
    # Old snapshots keep their rows and columns.
    for snapshot, each in zip(repository.ancestry(branch="main"), reversed(expected), strict=False):
        store = repository.readonly_session(snapshot_id=snapshot.id).store
        assert_same(dtf.from_zarr(store, component="a").compute(), each.compute())
    group = zarr.open_group(repository.readonly_session("main").store, mode="r", path="a")
    assert {array.shape[0] for name, array in group.arrays() if "." not in name} == {30}


def test_a_failed_addition_commits_nothing(repository: Any, ds: dtf.Dataset) -> None:
    ds.to_zarr(repository.writable_session("main"), chunks=10)
    session = repository.writable_session("main")

    def fail(blocks: dict[str, Any]) -> dict[str, Any]:
        if len(blocks["a"]):
            raise RuntimeError("no more")
        return blocks

    with pytest.raises(RuntimeError, match="no more"):
        ds.map_blocks(fail, dict(ds.schema)).to_zarr(session, append_dim="record")
    assert not session.has_uncommitted_changes
    with pytest.raises(SchemaError, match="the store has 50 rows, and the given columns have 20"):
        ds[["a"]].rows[:20].rename({"a": "b"}).to_zarr(session, mode="a")
    assert_stored(repository, ds)
    assert len(messages(repository)) == 2


@pytest.mark.integration
def test_shards_on_a_cluster(repository: Any, ds: dtf.Dataset, tmp_path: Path) -> None:
    ds.to_tfrecord(f"{tmp_path}/train-{{shard}}.tfrecord", records_per_shard=20)
    read = dtf.read_tfrecord(tmp_path / "train-*.tfrecord")
    with LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0") as cluster, Client(cluster):
        read.to_zarr(repository.writable_session("main"), chunks=10)
    assert_stored(repository, read)
    assert len(messages(repository)) == 2


@pytest.mark.parametrize("seed", range(2))
def test_tasks_that_run_twice(repository: Any, ds: dtf.Dataset, seed: int) -> None:
    with dask.config.set(scheduler=Repeating(seed, alone="finish").get()):
        ds.to_zarr(repository.writable_session("main"), chunks=10)
    assert_stored(repository, ds)


def test_a_failure_commits_nothing_and_leaves_the_session_clean(
    repository: Any, ds: dtf.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = repository.writable_session("main")

    def fail(blocks: Any) -> Any:
        raise OSError("no such disk")

    template = dtf.Schema({"a": dtf.FixedLenFeature((), "int64")})
    with dask.config.set(scheduler="threads"), pytest.raises(OSError, match="no such disk"):
        ds.map_blocks(fail, template).to_zarr(session)
    # The sessions of all tasks but one are delivered. No scheduler loses one, so the step that gathers them does.
    with monkeypatch.context() as patch:
        patch.setattr(write, "collect", lambda forks: forks[1:])
        with pytest.raises(IncompleteStoreError, match="'a' has 4 of 5 chunks after the merge: nothing is committed"):
            ds[["a"]].to_zarr(session, chunks=10)
    assert not session.has_uncommitted_changes and len(messages(repository)) == 1
    ds.to_zarr(session, chunks=10)
    assert_stored(repository, ds)


def test_a_conflict_is_resolved_by_a_rebase(repository: Any, ds: dtf.Dataset) -> None:
    ds.to_zarr(repository.writable_session("main"), component="first")
    late = repository.writable_session("main")
    ds.to_zarr(repository.writable_session("main"), component="second")
    with pytest.raises(icechunk.ConflictError):
        ds.to_zarr(late, component="third")
    late.rebase(icechunk.ConflictDetector())
    late.commit("Write the third")
    for component in ("first", "second", "third"):
        assert_stored(repository, ds, component)


def test_options_that_a_session_refuses(repository: Any, ds: dtf.Dataset) -> None:
    session = repository.writable_session("main")
    for options, expected in (
        ({"resume": True}, "commits all or nothing"),
        ({"compute": False}, "compute now"),
        ({"storage_options": {"anon": True}}, "storage_options are for URLs"),
        ({"mode": "r+"}, "mode must be 'w-'"),
    ):
        with pytest.raises(ValueError, match=expected):
            ds.to_zarr(session, **options)
    with pytest.raises(ValueError, match="pass the rows to to_zarr"):
        ds.plan_zarr().to_zarr(session.store)
    with pytest.raises(
        SchemaError, match=r"array .* has an unknown number of rows|all arrays must have the same number of rows"
    ):
        dtf.to_zarr({"a": np.arange(5), "b": np.arange(4)}, session)
    zarr.create_group(session.store, path="other")
    with pytest.raises(ValueError, match="uncommitted changes, which failures discard: commit them before"):
        ds.to_zarr(session)


def test_virtual_references(tmp_path: Path) -> None:
    virtualizarr = pytest.importorskip("virtualizarr")
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore

    values = np.arange(40, dtype=np.float32).reshape(10, 4)
    dtf.to_tfrecord({"vector": values}, tmp_path / "train.tfrecord")
    url = f"file://{tmp_path}/"
    config = icechunk.RepositoryConfig.default()
    chunks = icechunk.VirtualChunkContainer(url, icechunk.local_filesystem_store(str(tmp_path)))
    config.set_virtual_chunk_container(chunks)
    access = getattr(icechunk.credentials, "LocalFileSystemAccess", None)  # None in Icechunk 1
    allowed = icechunk.containers_credentials({url: access})
    storage = icechunk.local_filesystem_storage(str(tmp_path / "repository"))
    repository = icechunk.Repository.create(storage, config, authorize_virtual_chunk_access=allowed)
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    parser = dtf.TFRecordParser({"vector": dtf.FixedLenFeature((4,), "float32")})
    session = repository.writable_session("main")
    with virtualizarr.open_virtual_dataset(f"{url}train.tfrecord", registry=registry, parser=parser) as dataset:
        dataset.vz.to_icechunk(session.store)
    session.commit("Refer to the shard")
    group = zarr.open_group(repository.readonly_session("main").store, mode="r")
    assert np.array_equal(group["vector"][:], values)
    files = (path.read_bytes() for path in (tmp_path / "repository").rglob("*") if path.is_file())
    assert not any(values.tobytes()[:16] in data for data in files)


@pytest.mark.integration
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_python(REPOSITORY / "examples" / "sample_shards.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    found = blocks("docs/how-to/icechunk.md", "py")
    assert found
    namespace: dict[str, Any] = {}
    for block in found:
        exec(block.text, namespace)


@pytest.mark.parametrize(("kind", "text"), [("RustPanic", "rust future panicked"), ("IcechunkError", "No space left")])
def test_a_failure_inside_icechunk_is_an_error_with_a_sentence(
    repository: Any, ds: dtf.Dataset, kind: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = type(kind, (Exception,), {})

    def fail(*_: object) -> None:
        raise failure(f"  x {text}\n  | context of Rust")

    # A full disk makes threads of Icechunk panic, at a place that differs between its versions.
    monkeypatch.setattr(write, "_check_chunks", fail)
    session = repository.writable_session("main")
    with pytest.raises(StorageError, match=rf"Icechunk could not write \(x {text}\), and nothing is committed"):
        ds.to_zarr(session, chunks=10)
    assert not session.has_uncommitted_changes
    assert len(messages(repository)) == 1
