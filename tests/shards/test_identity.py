"""Identity of files: replaced files, changing sidecars, pipes and devices, and links."""

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.programs import run_python

import dask_tfrecord as dtf
from dask_tfrecord.errors import ResumeError, StorageError

FEATURES = {"x": dtf.FixedLenFeature((), "int64")}
ROWS = 400


def write(path: Path, start: int = 0, rows: int = ROWS, **options: Any) -> bytes:
    dtf.to_tfrecord({"x": np.arange(start, start + rows)}, path, mode="w", **options)
    return path.read_bytes()


def test_a_replaced_file_has_another_identity(tmp_path: Path) -> None:
    path, store = tmp_path / "x", tmp_path / "s.zarr"
    write(path, 1 << 20)
    write(tmp_path / "y", (1 << 20) + ROWS)
    ds = dtf.read_tfrecord(path, FEATURES)
    assert dtf.read_tfrecord(path, FEATURES)["x"].name == ds["x"].name
    ds.to_zarr(store)
    # By a file of the same size and time.
    known = path.stat()
    os.utime(tmp_path / "y", ns=(known.st_atime_ns, known.st_mtime_ns))
    assert (tmp_path / "y").replace(path).stat().st_size == known.st_size
    other = dtf.read_tfrecord(path, FEATURES)
    assert other["x"].name != ds["x"].name
    assert other["x"].compute()[0] == (1 << 20) + ROWS
    with pytest.raises(ResumeError, match=r"x was written again or replaced since"):
        other.to_zarr(store, resume=True)


def test_permissions_and_links_keep_the_identity_of_a_file(tmp_path: Path) -> None:
    write(tmp_path / "x")
    dataset = dtf.read_tfrecord(tmp_path / "x", FEATURES)
    (tmp_path / "x").chmod(0o600)
    (tmp_path / "link").hardlink_to(tmp_path / "x")
    assert dtf.read_tfrecord(tmp_path / "x", FEATURES)["x"].name == dataset["x"].name
    assert dataset["x"].sum().compute() == sum(range(ROWS))


@pytest.mark.integration
def test_an_object_is_identified_by_its_etag(tmp_path: Path, s3: dict[str, Any]) -> None:
    import s3fs

    fs = s3fs.S3FileSystem(**s3)
    if not fs.exists("identity"):
        fs.mkdir("identity")
    names = []
    for start in (1 << 20, (1 << 20) + ROWS, 1 << 20):
        fs.pipe_file("identity/x", write(tmp_path / "x", start))
        dataset = dtf.read_tfrecord("s3://identity/x", FEATURES, storage_options=s3)
        assert "s3cret" not in repr(dataset) + str(dataset.origin)
        names.append(dataset["x"].name)
    assert names[0] == names[2] != names[1]


@pytest.mark.integration
def test_an_index_that_another_process_builds_is_used(tmp_path: Path) -> None:
    pytest.importorskip("indexed_gzip")
    path = tmp_path / "x.gz"
    dtf.to_tfrecord({"x": np.random.default_rng(0).integers(0, 1 << 62, 1 << 16)}, path, compression="gzip")
    early = dtf.read_tfrecord(path, FEATURES)
    assert not any(early.as_rows().source.collection.shards.access)
    expected = early["x"].compute()
    for time in (1, 2):
        (tmp_path / "x.gz.gzidx").unlink(missing_ok=True)
        run_python("-c", f"import dask_tfrecord as dtf; dtf.build_index({str(path)!r})")
        # Same path, another sidecar.
        os.utime(tmp_path / "x.gz.gzidx", (time, time))
        late = dtf.read_tfrecord(path, FEATURES)
        assert all(late.as_rows().source.collection.shards.access)
        for dataset in (late, early):
            assert np.array_equal(dataset["x"][-5:].compute(), expected[-5:])


@pytest.mark.parametrize(
    ("pipe", "said"),
    [
        ("x", "expected a regular file; this is a pipe"),
        ("x.idx", "x.idx: expected a regular file; this is a pipe"),
        ("x.gzidx", "400"),
        ("dataset_info.json", "expected a regular file; this is a pipe"),
    ],
)
def test_a_pipe_is_refused_without_waiting(tmp_path: Path, pipe: str, said: str) -> None:
    write(tmp_path / "x", compression="gzip" if pipe == "x.gzidx" else None)
    if pipe == "x.gzidx":
        (tmp_path / "x.idx").write_text("0 1\n")
    if pipe == "x":
        (tmp_path / "x").unlink()
    os.mkfifo(tmp_path / pipe)
    path = tmp_path if pipe == "dataset_info.json" else tmp_path / "x"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            found = str(len(dtf.read_tfrecord(path, FEATURES).compute()["x"]))
        except dtf.TFRecordError as error:
            found = str(error)
    assert said in "\n".join([found, *(str(warning.message) for warning in warned)])


def test_a_shard_that_became_a_pipe_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "x")
    dataset = dtf.read_tfrecord(tmp_path / "x", FEATURES)
    (tmp_path / "x").unlink()
    os.mkfifo(tmp_path / "x")
    with pytest.raises(StorageError, match="x: expected a regular file; this is a pipe"):
        dataset.compute()


def test_links_at_outputs_are_replaced(tmp_path: Path) -> None:
    pytest.importorskip("indexed_gzip")
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    names = ["x", "x.idx", "x.gzidx", "r", "r.damage.json", "c"]
    for name in names:
        (tmp_path / name).symlink_to(victim)
    write(tmp_path / "x", compression="gzip")
    dtf.build_index(tmp_path / "x")
    dtf.repair(tmp_path / "x", tmp_path / "r")
    dtf.copy_tfrecord(tmp_path / "x", tmp_path / "c", mode="w")
    assert victim.read_text() == "untouched"
    assert not any((tmp_path / name).is_symlink() for name in names)
    assert dtf.read_tfrecord(tmp_path / "x", FEATURES).nrows == ROWS
