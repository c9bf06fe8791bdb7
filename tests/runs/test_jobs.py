"""Outputs in parts: programs that do not talk to each other write the bytes of one run, or are refused.

`test_zarr_jobs` has what only groups have.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import fsspec
import hypothesis.strategies as st
import pytest
from hypothesis import given
from support.callbacks import called_back, calling
from support.commands import run, shown
from support.numbered_shards import write_shards
from support.programs import environment
from support.servers import FileServer, running
from support.waiting import PATIENCE

import dask_tfrecord as dtf
from dask_tfrecord.errors import IncompleteStoreError, ResumeError, ShardChangedError, StoreInUseError

pytest.importorskip("pyarrow")

SHARDS, ROWS = 6, 10
NAMES = "x-{shard:03d}-of-{shards:03d}.tfrecord"
Job = dtf.TFRecordJob | dtf.ParquetJob | dtf.ZarrJob


@dataclass(frozen=True)
class Writer:
    """A writer, and its job; `target` is a directory."""

    name: str
    write: Callable[..., object]
    begin: Callable[..., Job]
    open: Callable[..., Job]
    command: str
    # Name of the output in errors.
    called: str = "these files"


def _copy(ds: dtf.Dataset, target: str, **options: Any) -> object:
    return dtf.copy_tfrecord(ds.origin["files"], f"{target}/{NAMES}", compression="gzip", **options)


def _begin_copy(ds: dtf.Dataset, target: str, **options: Any) -> Job:
    return dtf.TFRecordJob.begin_copy(ds.origin["files"], f"{target}/{NAMES}", compression="gzip", **options)


WRITERS = [
    Writer(
        "tfrecord",
        lambda ds, target, **options: ds.to_tfrecord(f"{target}/{NAMES}", **{"index": True, **options}),
        lambda ds, target, **options: dtf.TFRecordJob.begin(ds, f"{target}/{NAMES}", **{"index": True, **options}),
        lambda target, **options: dtf.TFRecordJob.open(f"{target}/{NAMES}", **options),
        "to-tfrecord",
    ),
    Writer(
        "copy",
        _copy,
        _begin_copy,
        lambda target, **options: dtf.TFRecordJob.open(f"{target}/{NAMES}", **options),
        "copy",
    ),
    Writer(
        "parquet",
        lambda ds, target, **options: ds.to_parquet(target, **options),
        lambda ds, target, **options: dtf.ParquetJob.begin(ds, target, **options),
        lambda target, **options: dtf.ParquetJob.open(target, **options),
        "to-parquet",
    ),
]
ZARR = Writer(
    "zarr",
    lambda ds, target, **options: ds.to_zarr(target, **{"chunks": ROWS, **options}),
    lambda ds, target, **options: dtf.ZarrJob.begin(ds, target, **{"chunks": ROWS, **options}),
    lambda target, **options: dtf.ZarrJob.open(target, **options),
    "to-zarr",
    "this group",
)
writers = pytest.mark.parametrize("writer", WRITERS, ids=lambda each: each.name)
every_writer = pytest.mark.parametrize("writer", [*WRITERS, ZARR], ids=lambda each: each.name)
# Those that read rows, and not records as they are.
of_rows = pytest.mark.parametrize("writer", [WRITERS[0], WRITERS[2], ZARR], ids=lambda each: each.name)


def opened(folder: Path, shards: int = SHARDS, rows: int = ROWS) -> dtf.Dataset:
    (folder / "shards").mkdir()
    write_shards(folder / "shards", shards, rows)
    features = {
        "label": dtf.FixedLenFeature((), "int64"),
        "tokens": dtf.VarLenFeature("int64"),
        "name": dtf.FixedLenFeature((), "bytes"),
    }
    return dtf.read_tfrecord(folder / "shards", features, chunks="shard")


@pytest.fixture
def ds(tmp_path: Path) -> dtf.Dataset:
    return opened(tmp_path)


def files(folder: Path | str) -> dict[str, bytes]:
    """Read the bytes of all files in a directory, files of a job included; the identity of a group differs."""
    fs, inside = fsspec.url_to_fs(str(folder))
    found = {path[len(inside) :].lstrip("/"): fs.cat_file(path) for path in fs.find(inside)}
    if "zarr.json" in found:
        found["zarr.json"] = re.sub(rb'"id\\?": *\\?"\w+', b"", found["zarr.json"])
    return found


@given(data=st.data())
def test_any_parts_in_any_order_write_the_files_of_one_run(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("jobs")
    writer = data.draw(st.sampled_from([*WRITERS, ZARR]), "writer")
    numbers, options = st.integers(1, 30), dict[str, Any]()
    if writer is ZARR:
        unit = data.draw(numbers, "rows of a chunk")
        flat = st.fixed_dictionaries({"tokens.values": numbers, "name.values": numbers})
        chunks = {**dict.fromkeys(("label", "tokens", "name"), unit), **data.draw(flat, "entries of a chunk")}
        options = {"chunks": chunks}
    ds = opened(folder, data.draw(st.integers(1, 5), "shards"), data.draw(st.integers(0, 5), "rows of a shard"))
    writer.write(ds, folder / "one", **options)
    parts = data.draw(st.integers(1, 7), "parts")
    planned = data.draw(st.sampled_from([parts, None]), "parts of the plan")
    writer.begin(ds, folder / "job", parts=planned, **options)
    order = data.draw(st.lists(st.integers(0, parts - 1), max_size=4), "parts that are written first")
    for part in [*order, *data.draw(st.permutations(range(parts)), "order")]:
        writer.open(folder / "job").write(part, parts)
    job = writer.open(folder / "job")
    assert not job.status().missing and job.parts == parts
    job.finish()
    assert files(folder / "job") == files(folder / "one")


@every_writer
def test_finish_lists_what_is_missing_and_is_repeated(writer: Writer, ds: dtf.Dataset, tmp_path: Path) -> None:
    target = tmp_path / "job"
    job = writer.begin(ds, target, parts=3)
    assert job.status().missing == (0, 1, 2)
    job.write(1)
    with pytest.raises(IncompleteStoreError, match=r"2 of 3 parts are not done: 0 \(missing\), 2 \(missing\)"):
        job.finish()
    status = job.status()
    assert [(each.part, each.state) for each in status.parts] == [(0, "missing"), (1, "done"), (2, "missing")]
    assert [each.written for each in status.parts] == [0, status.parts[1].units, 0]
    assert writer is ZARR or [each.units for each in status.parts] == [2, 2, 2]
    assert f"process {os.getpid()} on " in status.parts[1].writer and status.parts[1].since is not None
    assert "0/3   missing" in str(status) and "1/3   missing" in status.to_text(1)
    for part in (0, 2):
        writer.open(target).write(part)
    late = writer.open(target)
    job.finish()
    before = files(target)
    assert not [name for name in before if ".dask" in name]
    for again in (job, late, writer.open(target)):
        again.write(1)
        again.finish()
        assert again.status().complete
    assert files(target) == before
    with pytest.raises(FileNotFoundError, match=r"no job for|no Zarr group"):
        writer.open(tmp_path / "other")


@every_writer
def test_finish_finds_files_that_were_lost_or_changed(writer: Writer, ds: dtf.Dataset, tmp_path: Path) -> None:
    target = tmp_path / "job"
    job = writer.begin(ds, target, parts=3)
    for part in range(3):
        job.write(part)
    found = target.rglob("*") if writer is not ZARR else (target / "label/c").iterdir()
    lost = sorted(path for path in found if writer is ZARR or path.suffix in (".tfrecord", ".parquet"))[2]
    lost.unlink()
    with pytest.raises(IncompleteStoreError, match=r"1 of 3 parts is not done: 1 \(interrupted\)"):
        job.finish()
    job.write(1)
    # Divided again: what is written is kept.
    job = writer.begin(ds, target, parts=2, resume=True)
    assert not job.status().missing
    lost.unlink()
    with pytest.raises(IncompleteStoreError, match=r"1 of 2 parts is not done: 0 \(interrupted\)"):
        job.finish()
    job.write(0)
    job.finish()
    writer.write(ds, tmp_path / "one")
    assert files(target) == files(tmp_path / "one")


@every_writer
def test_what_other_programs_cannot_read_is_refused(writer: Writer, ds: dtf.Dataset, tmp_path: Path) -> None:
    for wrong in (0, True, 1.5):
        with pytest.raises(ValueError, match="parts must be a number, 1 or more"):
            writer.begin(ds, tmp_path / "job", parts=wrong)
    with pytest.raises(ValueError, match="leave out compute="):
        writer.begin(ds, tmp_path / "job", compute=False)
    with pytest.raises(ValueError, match="pass only one"):
        writer.begin(ds, tmp_path / "job", mode="w", resume=True)
    if writer.name != "copy":
        with pytest.raises(ValueError, match="in memory"):
            writer.begin(dtf.Dataset.from_arrays({"x": [1, 2]}), tmp_path / "job")
    assert not (tmp_path / "job").exists()
    job = writer.begin(ds, tmp_path / "job")
    with pytest.raises(ValueError, match="no number of parts"):
        job.write(0)
    with pytest.raises(IncompleteStoreError, match="no part of the job is written"):
        job.finish()
    assert job.status().parts == ()
    job.write(0, 4)
    with pytest.raises(ResumeError, match="this is a part of 5, and the job has 4 parts"):
        job.write(4, 5)
    with pytest.raises(ValueError, match="the job has 4 parts: 0 to 3; got 4"):
        job.write(4, 4)
    with pytest.raises(ValueError, match="part must be a number, 0 or more; got -1"):
        job.write(-1)


def test_iterators_and_credentials_are_refused(ds: dtf.Dataset, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rows of an iterator"):
        dtf.TFRecordJob.begin(iter([{"x": 1}]), tmp_path / "job.tfrecord")  # type: ignore[arg-type]
    with running(FileServer, files={}) as (address, _), pytest.raises(ValueError, match="the URL holds credentials"):
        dtf.TFRecordJob.begin(ds, f"{address.replace('//', '//user:secret@')}/{{shard}}.tfrecord")


@every_writer
def test_options_of_file_systems_are_not_stored(writer: Writer, ds: dtf.Dataset, tmp_path: Path) -> None:
    target, options = tmp_path / "job", {"auto_mkdir": False}
    own = {"storage_options": {"use_listings_cache": False}} if writer.name == "tfrecord" else {}
    if writer.name == "copy":
        job = writer.begin(ds, target, parts=1, storage_options=options)
    else:
        read = dtf.read_tfrecord(ds.origin["files"][0], compression=None, storage_options=options)
        job = writer.begin(read, target, parts=1, **own)
    assert not [each for each in files(target).values() if b"auto_mkdir" in each or b"use_listings_cache" in each]
    with pytest.raises(ValueError, match="source_options"):
        writer.open(target).write(0)
    writer.open(target, source_options=options).write(0)
    job.finish()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owner")
@every_writer
def test_a_plan_of_another_user_is_not_loaded(
    writer: Writer, ds: dtf.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = writer.begin(ds, tmp_path / "job", parts=1)
    user = os.getuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: user + 1)
        with pytest.raises(PermissionError, match="belongs to another user"):
            job.write(0)
    job.write(0)
    job.finish()


@every_writer
def test_a_changed_shard_another_version_and_another_plan_are_refused_by_name(
    writer: Writer, ds: dtf.Dataset, tmp_path: Path
) -> None:
    target = tmp_path / "job"
    old = writer.begin(ds, target, parts=3)
    with (
        mock.patch("importlib.metadata.version", lambda _: "99"),
        pytest.raises(ResumeError, match=r"was made by dask_tfrecord .* on Python 3\..*, and this is dask_tfrecord 99"),
    ):
        old.write(0)
    old.write(0)
    for write in (writer.write, writer.begin):
        with pytest.raises(FileExistsError, match=r"in parts by a job that is not|an interrupted conversion"):
            write(ds, target)
    with pytest.raises(ResumeError, match=r"compress.* was .* and now is"):
        options: dict[str, Any] = {"compressors": None} if writer is ZARR else {"compression": "zstd"}
        if writer.name == "tfrecord":
            options["index"] = False
        if writer.name == "copy":
            dtf.TFRecordJob.begin_copy(ds.origin["files"], f"{target}/{NAMES}", resume=True, **options)
        else:
            writer.begin(ds, target, resume=True, **options)
    job = writer.begin(ds, target, parts=3, mode="w")
    with pytest.raises(IncompleteStoreError, match=f"another conversion has replaced {writer.called}"):
        old.write(1)
    with pytest.raises(IncompleteStoreError, match=f"another conversion has replaced {writer.called}"):
        old.finish()
    job.write(0)
    write_shards(tmp_path / "shards", SHARDS, ROWS + 1)
    with pytest.raises(ShardChangedError, match=r"part-\d\.tfrecord"):
        job.write(1)
    if writer is ZARR:
        assert "6 files changed in all" in run("to-zarr", tmp_path / "shards", target, "--part", "3/3").stderr
    with pytest.raises(ResumeError, match="files changed"):
        writer.begin(dtf.read_tfrecord(tmp_path / "shards", ds.schema, chunks="shard"), target, resume=True)
    writer.write(dtf.read_tfrecord(tmp_path / "shards", chunks="shard"), target, mode="w")
    assert not [name for name in files(target) if ".dask" in name]


@of_rows
def test_an_output_is_not_replaced_while_a_part_is_written(writer: Writer, ds: dtf.Dataset, tmp_path: Path) -> None:
    def refused() -> None:
        if not tried:
            tried.append(True)
            for write in (writer.write, writer.begin):
                with pytest.raises(StoreInUseError, match=f"a part of {writer.called}: process {os.getpid()} on "):
                    write(ds, tmp_path / "job", mode="w")
            states.extend(each.state for each in job.status().parts)

    tried, states = list[bool](), list[str]()
    job = writer.begin(ds.map_blocks(called_back, dict(ds.schema)), tmp_path / "job", parts=3)
    with calling(refused):
        job.write(1)
    assert states == ["missing", "running", "missing"]
    writer.write(ds, tmp_path / "job", mode="w")


@every_writer
def test_a_part_is_refused_while_another_run_owns_the_output(writer: Writer, ds: dtf.Dataset, tmp_path: Path) -> None:
    job = writer.begin(ds, tmp_path / "job", parts=2)
    # Another writer would be refused, or remove the job: of a job, only `begin` and `finish` own the output.
    with job._journal.owned("0123", lambda: None), pytest.raises(StoreInUseError, match="another run is writing"):
        job.write(1)
    job.write(1)


def test_metadata_of_tfds_and_added_shards(ds: dtf.Dataset, tmp_path: Path) -> None:
    tfds = {"name": "rows", "version": "1.0.0", "split": "train"}
    job = dtf.TFRecordJob.begin(ds, tmp_path / "tfds", tfds=tfds, parts=2)
    for part in range(2):
        dtf.TFRecordJob.open(tmp_path / "tfds", tfds=tfds).write(part)
    job.finish()
    ds.to_tfrecord(tmp_path / "one", tfds=tfds)
    assert files(tmp_path / "tfds") == files(tmp_path / "one")
    name = tmp_path / "added" / "y-{shard:02d}.tfrecord"
    ds.to_tfrecord(name)
    for _ in range(2):
        job = dtf.TFRecordJob.begin(ds, name, mode="a", parts=1)
        dtf.TFRecordJob.open(name).write(0)
        job.finish()
    assert sorted(path.name for path in name.parent.iterdir()) == [f"y-{number:02d}.tfrecord" for number in range(18)]


@every_writer
def test_object_stores(writer: Writer, ds: dtf.Dataset, tmp_path: Path) -> None:
    target = f"memory://{tmp_path.name}/job"
    writer.begin(ds, target, parts=2)
    for part in range(2):
        writer.open(target).write(part)
    writer.open(target).finish()
    writer.write(ds, tmp_path / "one")
    assert files(target) == files(tmp_path / "one")


# -- programs


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
@of_rows
def test_killed_programs_are_repeated(writer: Writer, ds: dtf.Dataset, tmp_path: Path) -> None:
    def die(blocks: Mapping[str, Any]) -> Mapping[str, Any]:
        # The plan pickles this function by value, without the module of the test.
        import os
        import signal

        if int(blocks["label"][0]) >= int(os.environ.get("DIES_AT", 1000)):
            os.kill(os.getpid(), signal.SIGKILL)
        return blocks

    ds = ds.map_blocks(die, dict(ds.schema))
    target = tmp_path / "job"
    job = writer.begin(ds, target, parts=2)
    place = f"{target}/{NAMES}" if writer.name == "tfrecord" else str(target)
    command = [
        sys.executable,
        "-c",
        f"import dask_tfrecord; dask_tfrecord.{type(job).__name__}.open({place!r}).write(0)",
    ]
    killed = subprocess.run(command, env=environment() | {"DIES_AT": f"{2 * ROWS}"}, timeout=PATIENCE, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [each.state for each in job.status().parts] == ["interrupted", "missing"]
    with pytest.raises(IncompleteStoreError, match="interrupted"):
        job.finish()
    twice = [subprocess.Popen(command, env=environment()) for _ in range(2)]
    assert not any([each.wait(PATIENCE) for each in twice])
    job.write(1)
    job.finish()
    writer.write(ds, tmp_path / "one")
    assert files(target) == files(tmp_path / "one")


def source_of(writer: Writer, folder: Path) -> Path:
    """Return what the command reads."""
    if writer.command != "to-tfrecord":
        return folder / "shards"
    dtf.read_tfrecord(folder / "shards").to_zarr(folder / "rows.zarr", chunks=ROWS)
    return folder / "rows.zarr"


@writers
def test_commands(writer: Writer, ds: dtf.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = writer.command
    source = source_of(writer, tmp_path)
    target, one = (tmp_path / each / ("" if name == "to-parquet" else NAMES) for each in ("job", "one"))
    refused = run(name, target, "--part", "1/2", "--overwrite")
    assert refused.exit_code == 2 and "--overwrite belongs to --begin" in refused.stderr
    refused = run(name, target)
    assert refused.exit_code == 2 and f"The command {name} takes" in refused.stderr
    assert "--part auto" in shown(name, source, target, "--begin", "--parts", 2)
    assert "1/2   missing" in shown(name, target, "--status")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    assert "part 2 of 2" in shown(name, target, "--part", "auto")
    assert "1 (missing). --part I/2 writes each of them" in run(name, target, "--finish").stderr
    assert "is planned" in shown(name, source, target, "--begin", "--resume", "--parts", 3)
    for part in (1, 2, 3):
        shown(name, target, "--part", f"{part}/3")
    assert "is done: nothing was left" in shown(name, target, "--part", "2/3")
    assert "is complete" in shown(name, target, "--finish")
    assert "is complete" in shown(name, target, "--status")
    shown(name, source, one)
    assert files(tmp_path / "job") == files(tmp_path / "one")


def test_the_record_of_a_job_holds_what_it_reads(ds: dtf.Dataset, tmp_path: Path) -> None:
    WRITERS[0].begin(ds, tmp_path / "job", parts=2)
    [record] = (tmp_path / "job").glob(".dask-tfrecord-*.job")
    assert json.loads(record.read_text())["fingerprint"]["source"]["files"] == ds.origin["files"]
