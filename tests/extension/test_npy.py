"""A writer in one file outside of the package: the package provides owner, resume after a kill, and verification."""

import os
import re
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from click.testing import CliRunner
from support.programs import environment, run_program

import dask_tfrecord as dtf
from dask_tfrecord.cli.main import tfrecord
from dask_tfrecord.options import COMMANDS
from dask_tfrecord.stores.journal import Owner
from extension.npy import COMMAND, NpyFiles, to_npy

FEATURES = {"x": dtf.FixedLenFeature((), "int64"), "a/b": dtf.FixedLenFeature((2,), "float32")}
COLUMNS = {"x": np.arange(20), "a/b": np.arange(40, dtype="float32").reshape(20, 2)}


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    dtf.to_tfrecord(COLUMNS, tmp_path / "x.tfrecord", features=FEATURES)
    return tmp_path / "x.tfrecord"


def opened(shard: Path) -> dtf.Dataset:
    """Return five chunks, whose reads are logged next to the shard; a file `fatal` names one that kills its process."""
    return dtf.read_tfrecord(shard, FEATURES, chunks=4).map_blocks(partial(logged, folder=shard.parent), FEATURES)


def logged(blocks: dict[str, Any], folder: Path) -> dict[str, Any]:
    number, fatal = int(blocks["x"][0]) // 4, folder / "fatal"
    with (folder / "log").open("a") as log:
        log.write(f"{number}\n")
    if fatal.exists() and int(fatal.read_text()) == number:
        os.kill(os.getpid(), signal.SIGKILL)
    return blocks


def read(folder: Path) -> dict[str, Any]:
    """Return the columns of all files."""
    return {
        name: np.concatenate([np.load(file) for file in sorted(folder.glob(f"{name.replace('/', '.')}.*.npy"))])
        for name in COLUMNS
    }


def check(folder: Path) -> None:
    for name, wanted in COLUMNS.items():
        assert np.array_equal(read(folder)[name], wanted)
    names = [f"{name}.{unit:05d}.npy" for name in ("a.b", "x") for unit in range(5)]
    assert sorted(path.name for path in folder.iterdir()) == [*names[:5], "columns.json", *names[5:]]


def test_columns_are_written_as_files_of_chunks(shard: Path, tmp_path: Path) -> None:
    ds = dtf.read_tfrecord(shard, FEATURES, chunks=4)
    to_npy(ds, tmp_path / "out")
    check(tmp_path / "out")
    with pytest.raises(FileExistsError, match="mode='w' replaces it"):
        to_npy(ds, tmp_path / "out")
    to_npy(ds.rows[:8], tmp_path / "out", mode="w")
    assert read(tmp_path / "out")["x"].tolist() == list(range(8))
    with pytest.raises(dtf.SchemaError, match="fixed shapes"):
        to_npy(dtf.Dataset.from_arrays({"r": [[1], [1, 2]]}), tmp_path / "other")


def test_its_command_is_made_of_its_options(shard: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(*command: object, status: int = 0) -> str:
        result = CliRunner().invoke(tfrecord, list(map(str, command)))
        assert result.exit_code == status, result.output
        return result.output

    assert "to-npy" not in shown("--help")
    monkeypatch.setitem(COMMANDS.added, "to-npy", COMMAND)
    assert re.search("to-npy +Write columns", shown("--help"))
    described = " ".join(shown("to-npy", "--help").split())
    assert "TARGET is a local directory. The features come from --features" in described
    assert "--resume Resume an interrupted write of the same rows. --errors" in described
    out = tmp_path / "out"
    command = "to-npy", shard, out, "--chunks", 4
    shown(*command, "--resume")
    check(out)
    assert "mode='w'" not in (refused := shown(*command, status=1)) and "--overwrite replaces it" in refused
    shown(*command[:-1], 10, "--overwrite", "--where", "x < 10", "--columns", "x")
    assert [path.name for path in sorted(out.iterdir())] == ["columns.json", "x.00000.npy"]
    assert np.load(out / "x.00000.npy").tolist() == list(range(10))
    assert "continues it: give one of them" in shown(*command, "--overwrite", "--resume", status=2)


def test_an_entry_point_adds_the_command(shard: Path, tmp_path: Path) -> None:
    package = tmp_path / "npy-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: npy\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[dask_tfrecord.commands]\nnpy = extension.npy:COMMAND\n")
    environ = environment()
    environ["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
    written = run_program(
        sys.executable, "-m", "dask_tfrecord", "to-npy", shard, tmp_path / "out", "--chunks", 4, env=environ
    )
    assert written.returncode == 0, written.stderr
    check(tmp_path / "out")


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_a_killed_write_is_resumed_where_it_ended(shard: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    (tmp_path / "fatal").write_text("2")
    code = "import sys, dask; dask.config.set(scheduler='synchronous'); from pathlib import Path\n"
    code += "from extension.npy import to_npy; from extension.test_npy import opened\n"
    code += "to_npy(opened(Path(sys.argv[1])), Path(sys.argv[2]), resume=True)"
    killed = run_program(sys.executable, "-c", code, shard, out, env=environment())
    assert killed.returncode == -signal.SIGKILL
    *survived, last = log.read_text().split()
    assert last == "2" and len(survived) == 2
    assert len(list(out.rglob("*.npy"))) == 4 and not (out / "columns.json").exists()
    (tmp_path / "fatal").unlink()
    log.unlink()
    with dask.config.set(scheduler="synchronous"):
        to_npy(opened(shard), out, resume=True)
        check(out)
        # Published units are not read again, and a complete data set does not change.
        assert {*log.read_text().split()} == {*"01234"} - {*survived}
        before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
        to_npy(opened(shard), out, resume=True)
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    with pytest.raises(FileExistsError, match="belongs to another data set or conversion"):
        to_npy(dtf.read_tfrecord(shard, FEATURES, chunks=5), out, resume=True)


def test_a_second_run_is_refused_while_one_writes(shard: Path, tmp_path: Path) -> None:
    out, said = tmp_path / "out", []

    def interfere(blocks: dict[str, Any]) -> dict[str, Any]:
        with pytest.raises(dtf.errors.StoreInUseError) as caught:
            to_npy(dtf.read_tfrecord(shard, FEATURES, chunks=4), out, mode="w")
        said.append(str(caught.value))
        return blocks

    ds = dtf.read_tfrecord(shard, FEATURES, chunks=4).map_blocks(interfere, FEATURES)
    with dask.config.set(scheduler="synchronous"):
        to_npy(ds, out)
    check(out)
    assert len(said) == 5 and f"process {Owner.of_this_process('t').pid}" in said[0]


def test_a_file_that_another_program_changes_is_found(
    shard: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = NpyFiles.verify

    def tampered(files: NpyFiles, reports: Any) -> None:
        [path] = (tmp_path / "out").glob(".*/new/x.00001.npy")
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        verify(files, reports)

    monkeypatch.setattr(NpyFiles, "verify", tampered)
    with pytest.raises(dtf.errors.IncompleteStoreError, match=r"x\.00001\.npy \(expected checksum"):
        to_npy(dtf.read_tfrecord(shard, FEATURES, chunks=4), tmp_path / "out")
    # Readers never find files of a failed write.
    assert not (tmp_path / "out").exists()
