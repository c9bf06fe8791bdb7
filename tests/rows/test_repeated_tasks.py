"""Tasks that run twice, late, concurrently or after their successors leave what one run of each leaves."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import fsspec
import numpy as np
import pytest
from oracle import read_payloads
from support.few import mostly_slow
from support.numbered_shards import damage, write_shards
from support.repeating import Repeating
from support.store_round_trip import files_in, files_of

import dask_tfrecord as dtf
from dask_tfrecord.errors import IncompleteStoreError
from dask_tfrecord.shards.objects import ABANDONED_AFTER

MANY = "{shard:05d}-of-{shards:05d}.tfrecord"
SEEDS = [0, pytest.param(1, marks=pytest.mark.slow), *(pytest.param(n, marks=pytest.mark.nightly) for n in (2, 3, 4))]


def identical(folder: Path, reference: Path) -> None:
    found, wanted = files_in(folder), files_in(reference)
    assert list(found) == list(wanted)
    assert found == wanted
    assert not list(folder.rglob(".*"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    write_shards(folder, 4, 25, most_tokens=7)
    return folder


Write = Callable[..., Any]


def to_tfrecord(source: Path, target: str, **options: Any) -> Any:
    return dtf.read_tfrecord(source).to_tfrecord(target, records_per_shard=30, **options)


def from_xarray(source: Path, target: str, **options: Any) -> Any:
    xarray: Any = pytest.importorskip("xarray")
    labelled = xarray.Dataset({"label": ("row", da.arange(100, chunks=13), {"units": "m"})}, {"run": 3})
    return dtf.to_tfrecord(labelled, target, records_per_shard=30, **options)


def copy(source: Path, target: str, **options: Any) -> Any:
    return dtf.copy_tfrecord(source, target, records_per_shard=30, **options)


def to_parquet(source: Path, target: str, **options: Any) -> Any:
    pytest.importorskip("pyarrow")
    ds = dtf.read_tfrecord(source, chunks=30)
    return ds.to_parquet(target.removesuffix(MANY), **options)


WRITES = [to_tfrecord, from_xarray, copy]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("write", [*WRITES, to_parquet])
def test_files_of_repeated_tasks(write: Write, seed: int, source: Path, tmp_path: Path) -> None:
    # Four seeds have all combinations.
    number = [*WRITES, to_parquet].index(write) + seed
    compute = number % 2 == 0
    options: dict[str, Any] = {"mode": ["w", "w-"][number // 2 % 2]}
    if write is not to_parquet:
        options |= {"index": True, "compression": [None, "gzip"][seed % 2]}
    new, once = f"{tmp_path}/new/{MANY}", f"{tmp_path}/once/{MANY}"
    with dask.config.set(scheduler="synchronous"):
        if options["mode"] == "w":
            # Files and sidecars of another write are in the way.
            write(source, new, **options | {"compression": None})
        write(source, once, **options)
    repeating, before = Repeating(seed), files_in(tmp_path)
    with dask.config.set(scheduler=repeating.get()):
        if compute:
            write(source, new, **options)
        else:
            later = write(source, new, compute=False, **options)
            assert files_in(tmp_path) == before
            for _ in range(2):
                later.compute()
                identical(tmp_path / "new", tmp_path / "once")
    assert repeating.runs >= 8
    identical(tmp_path / "new", tmp_path / "once")
    assert repeating.run_late() == [] or compute
    identical(tmp_path / "new", tmp_path / "once")


@pytest.mark.parametrize(("mode", "compute"), [("w-", True), ("w", False)])
def test_values_that_differ_at_each_run(mode: str, compute: bool, tmp_path: Path) -> None:
    """The first shard that a run publishes stays, so sizes and records agree although functions are not pure."""
    generator = np.random.default_rng(0)

    def noise(block: Any) -> Any:
        return generator.integers(0, 1 << 40, len(block))

    label = da.arange(40, chunks=10).map_blocks(noise, dtype=np.int64, meta=np.zeros(0, np.int64))
    for seed in range(3):
        folder = tmp_path / str(seed)
        with dask.config.set(scheduler=Repeating(seed, after_last=compute).get()):
            dask.compute(dtf.to_tfrecord({"label": label}, f"{folder}/{MANY}", mode=mode, compute=compute))
        assert [len(read_payloads(path)) for path in sorted(folder.iterdir())] == [10] * 4


def test_a_delayed_write_refuses_shards_that_appeared_since(tmp_path: Path) -> None:
    arrays = {"x": da.arange(20, chunks=5)}
    later = dtf.to_tfrecord(arrays, tmp_path / MANY, compute=False)
    replacing = dtf.to_tfrecord(arrays, tmp_path / MANY, mode="w", compute=False)
    dtf.to_tfrecord({"x": -da.arange(20, chunks=5)}, tmp_path / MANY, index=True)
    before = files_in(tmp_path)
    with pytest.raises(FileExistsError, match=r"tfrecord exists already, and this write did not make it"):
        later.compute(scheduler="synchronous")
    assert files_in(tmp_path) == before
    replacing.compute()
    assert dtf.read_tfrecord(tmp_path)["x"].compute().tolist() == list(range(20))
    assert len(files_in(tmp_path)) == 4
    dtf.to_tfrecord({"x": np.arange(3)}, tmp_path / "other" / MANY)
    (tmp_path / "00000-of-00001.tfrecord").write_bytes((tmp_path / "other/00000-of-00001.tfrecord").read_bytes())
    with pytest.raises(FileExistsError, match="a different number of shards"):
        replacing.compute()


def test_late_tasks_of_a_failed_write_publish_nothing(source: Path, tmp_path: Path) -> None:
    repeating, compute = Repeating(0), Repeating(1).get()

    def fail(graph: Any, keys: Any, **options: Any) -> Any:
        repeating.get()(graph, keys)
        raise RuntimeError("the cluster is gone")

    for write in WRITES:
        with dask.config.set(scheduler=fail), pytest.raises(RuntimeError, match="cluster is gone"):
            write(source, f"{tmp_path}/{write.__name__}/{MANY}")
    # Another run may have begun since.
    with dask.config.set(scheduler=compute):
        copy(source, f"{tmp_path}/copy/{MANY}")
    before = files_in(tmp_path)
    repeating.run_late()
    assert files_in(tmp_path) == before


@contextmanager
def losing(folder: Path, change: Callable[[Path], None]) -> Iterator[None]:
    """Change a file once the tasks of a graph have run, as a program that knows nothing of them does."""

    def get(graph: Any, keys: Any, **options: Any) -> Any:
        results = Repeating(0).get()(graph, keys)
        if folder.is_dir() and len(list(folder.rglob("*.tf*"))) >= 4:
            change(folder)
        return results

    with dask.config.set(scheduler=get):
        yield


def remove(folder: Path) -> None:
    next(folder.rglob("*00001*-of*")).unlink()


def lengthen(folder: Path) -> None:
    with next(folder.rglob("*00001*-of*")).open("ab") as file:
        file.write(b"more")


@pytest.mark.parametrize(("change", "said"), [(remove, "found no file"), (lengthen, "expected [0-9,]+ bytes, found")])
@pytest.mark.parametrize("write", mostly_slow(WRITES, 2))
def test_the_client_verifies_what_tasks_reported(
    write: Write, change: Callable[[Path], None], said: str, source: Path, tmp_path: Path
) -> None:
    expected = rf"1 of [48] files .*{re.escape(str(tmp_path))}/00001.*{said}"
    with losing(tmp_path, change), pytest.raises(IncompleteStoreError, match=expected):
        write(source, f"{tmp_path}/{MANY}")


def test_a_lost_index_is_noticed(source: Path, tmp_path: Path) -> None:
    for path in source.iterdir():
        os.link(path, tmp_path / path.name)
    lost = tmp_path / "part-2.tfrecord.idx"
    with (
        losing(tmp_path, lambda folder: lost.unlink()),
        pytest.raises(IncompleteStoreError, match=r"part-2.tfrecord.idx \(expected"),
    ):
        dtf.build_index(tmp_path / "part-*.tfrecord")


def test_metadata_of_tfds_are_written_once_all_shards_are_verified(tmp_path: Path) -> None:
    tfds = {"name": "numbers", "version": "1.0.0", "split": "train"}
    arrays = {"x": da.arange(20, chunks=5)}
    with losing(tmp_path / "lost", remove), pytest.raises(IncompleteStoreError, match="found no file"):
        dtf.to_tfrecord(arrays, tmp_path / "lost", tfds=tfds)
    assert not (tmp_path / "lost" / "dataset_info.json").exists()
    dtf.to_tfrecord(arrays, tmp_path / "once", tfds=tfds)
    with dask.config.set(scheduler=Repeating(0).get()):
        dtf.to_tfrecord(arrays, tmp_path / "repeated", tfds=tfds)
    identical(tmp_path / "repeated", tmp_path / "once")
    later = dtf.to_tfrecord(arrays, tmp_path / "later", tfds=tfds, compute=False)
    repeating = Repeating(1)
    later.compute(scheduler=repeating.get())
    repeating.run_late()
    identical(tmp_path / "later", tmp_path / "once")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_other_graphs_of_the_library(seed: int, source: Path, tmp_path: Path) -> None:
    repeating = Repeating(seed)
    for folder in ("once", "new"):
        shutil.copytree(source, tmp_path / folder)
        damage(tmp_path / folder / "part-1.tfrecord")

    def everything(folder: Path) -> list[Any]:
        reports = [report.to_dict() for report in dtf.verify(folder).files]
        repaired = dtf.repair(folder / "part-1.tfrecord", folder / "repaired.tfrecord")
        (folder / "part-1.tfrecord").unlink()
        (folder / "repaired.tfrecord.damage.json").unlink()
        counted = dtf.read_tfrecord(folder).nrows
        indexed = [Path(path).name for path in dtf.build_index(folder)]
        ds = dtf.read_tfrecord(folder)
        held = ds.persist()
        values = {name: list(map(str, column)) for name, column in held.compute().items()}
        named = str(reports).replace(str(folder), ""), str(repaired.to_dict()).replace(str(folder), "")
        report = str(dtf.inspect_records(folder, sample=None)), str(dtf.infer_schema(folder, sample=None))
        return [named, counted, indexed, values, report, int(ds["label"].sum().compute())]

    with dask.config.set(scheduler="synchronous"):
        wanted = everything(tmp_path / "once")
    with dask.config.set(scheduler=repeating.get()):
        assert everything(tmp_path / "new") == wanted
    identical(tmp_path / "new", tmp_path / "once")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("grid", mostly_slow([{"chunks": 4, "shards": 16}, {"chunks": 10}], 2), ids=str)
def test_stores_of_repeated_tasks(grid: dict[str, Any], seed: int, source: Path, tmp_path: Path) -> None:
    ds = dtf.read_tfrecord(source)
    with dask.config.set(scheduler="synchronous"):
        ds.to_zarr(tmp_path / "once", **grid)
    wanted = files_of(tmp_path / "once")
    repeating = Repeating(seed, alone="finish")
    with dask.config.set(scheduler=repeating.get()):
        ds.to_zarr(tmp_path / "new", **grid)
        ds.persist().to_zarr(tmp_path / "held", **grid)
    later = ds.to_zarr(tmp_path / "later", compute=False, **grid)
    later.compute(scheduler=repeating.get())
    repeating.run_late()
    for folder in ("new", "held", "later"):
        assert files_of(tmp_path / folder) == wanted
        assert dtf.from_zarr(tmp_path / folder).nrows == 100


@pytest.mark.parametrize("kind", ["zarr", "tfrecord"])
def test_what_is_written_is_not_read_again(kind: str, source: Path, tmp_path: Path) -> None:
    read: list[int] = []

    def note(blocks: dict[str, Any]) -> dict[str, Any]:
        read.extend(blocks["label"].tolist())
        return blocks

    ds = dtf.read_tfrecord(source, columns=["label"])
    # Two copies at once may both read their units.
    repeating = Repeating(0, alone="")
    with dask.config.set(scheduler=repeating.get()):
        mapped = ds.map_blocks(note, dict(ds.schema))
        if kind == "zarr":
            mapped.to_zarr(tmp_path / "store", chunks=10)
        else:
            mapped.to_tfrecord(tmp_path / MANY, records_per_shard=10)
    assert sorted(read) == list(range(100))


# -- what killed workers leave


@pytest.mark.parametrize("write", [to_tfrecord, copy])
def test_temporary_files_of_dead_writers_go_after_a_day(write: Write, source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    old, young = [folder / f".part.tfrecord.{digit * 32}.tmp" for digit in "ab"]
    run = folder / f".dask-tfrecord-{'c' * 32}"
    others = [folder / ".hidden", folder / f"part.{'d' * 32}.tmp", folder / f".{'e' * 31}.tmp"]
    run.mkdir(parents=True)
    for path in (old, young, run / "claim", *others):
        path.write_bytes(b"begun")
    now = time.time()
    for path in (old, run / "claim", run, *others):
        os.utime(path, (now - ABANDONED_AFTER - 60,) * 2)
    os.utime(young, (now - ABANDONED_AFTER / 2,) * 2)
    write(source, f"{folder}/{MANY}")
    assert {path.name for path in folder.iterdir() if not path.name.endswith((".tfrecord", ".xarray.json"))} == {
        path.name for path in (young, *others)
    }
    others[1].unlink()
    for pattern in (folder, f"{folder}/*", f"{folder}/**/*"):
        assert dtf.read_tfrecord(pattern).nrows == 100
    os.utime(young, (now - ABANDONED_AFTER - 60,) * 2)
    dtf.build_index(folder)
    assert not young.exists()


def test_stores_that_are_no_file_systems(memory: Callable[..., str]) -> None:
    arrays, repeating, url = {"x": da.arange(20, chunks=5)}, Repeating(0), memory()
    with dask.config.set(scheduler=repeating.get()):
        dtf.to_tfrecord(arrays, f"{url}/{MANY}", mode="w", index=True)
        dtf.to_tfrecord(arrays, f"{url}/{MANY}", mode="w", index=True, compute=False).compute()
    repeating.run_late()
    assert len(fsspec.filesystem("memory").find("/storage")) == 8
    assert dtf.read_tfrecord(f"{url}/*")["x"].compute().tolist() == list(range(20))
