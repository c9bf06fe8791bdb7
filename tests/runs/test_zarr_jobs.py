"""Conversions in parts: programs that do not talk to each other write the bytes of one conversion, or are refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from argparse import Namespace
from ast import literal_eval
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zarr
from support.commands import run, shown
from support.numbered_shards import write_shards
from support.pages import blocks
from support.programs import run_program

import dask_tfrecord as dtf
from dask_tfrecord.errors import ResumeError
from dask_tfrecord.settings import replaced_limits
from dask_tfrecord.shards.objects import DirectoryObjects

ROWS = 60


def files(store: Path) -> dict[str, bytes]:
    """Return the bytes of all files of a store; the identity of the conversion differs between stores."""
    found = {path.relative_to(store).as_posix(): path.read_bytes() for path in store.rglob("*") if path.is_file()}
    group = json.loads(found["zarr.json"])
    own = json.loads(group["attributes"]["dask_tfrecord"])
    assert own.pop("complete") and own.pop("written")
    del own["id"]
    group["attributes"]["dask_tfrecord"] = own
    return found | {"zarr.json": json.dumps(group).encode()}


def begun(ds: dtf.Dataset, store: Path, parts: int | None = 3, **options: Any) -> dtf.ZarrJob:
    return dtf.ZarrJob.begin(ds, store, parts=parts, **{"chunks": 7, **options})


def test_a_part_plans_its_tasks_some_at_a_time(ds: dtf.Dataset, tmp_path: Path) -> None:
    job = begun(ds, tmp_path / "job", 2, chunks=1)
    with replaced_limits(tasks_per_thread=1):
        for part in range(2):
            job.write(part)
    job.finish()
    ds.to_zarr(tmp_path / "one", chunks=1)
    assert files(tmp_path / "job") == files(tmp_path / "one")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["memory", "component"])
def test_other_places(ds: dtf.Dataset, tmp_path: Path, place: str) -> None:
    stores = {"memory": zarr.storage.MemoryStore(), "component": tmp_path / "x"}
    where = {"component": "a/b"} if place == "component" else {}
    dtf.ZarrJob.begin(ds, stores[place], chunks=7, parts=2, **where)
    for part in range(2):
        dtf.ZarrJob.open(stores[place], **where).write(part)
    dtf.ZarrJob.open(stores[place], **where).finish()
    np.testing.assert_array_equal(dtf.from_zarr(stores[place], **where)["label"], np.arange(ROWS))


def test_functions_and_chosen_rows_are_part_of_the_plan(ds: dtf.Dataset, tmp_path: Path) -> None:
    rows = ds.map_blocks(lambda blocks: {"x": blocks["label"] * 2}, {"x": dtf.FixedLenFeature((), "int64")}).rows[::-3]
    job = begun(rows, tmp_path / "job", 2)
    for part in range(2):
        dtf.ZarrJob.open(tmp_path / "job").write(part)
    job.finish()
    np.testing.assert_array_equal(dtf.from_zarr(tmp_path / "job")["x"], 2 * np.arange(ROWS)[::-3])


def test_one_conversion_continues_a_job_and_a_job_continues_a_conversion(ds: dtf.Dataset, tmp_path: Path) -> None:
    begun(ds, tmp_path / "a").write(1)
    ds.to_zarr(tmp_path / "a", chunks=7, resume=True)
    ds.to_zarr(tmp_path / "b", chunks=7, compute=False)
    with pytest.raises(ResumeError, match=r"not divided into parts: ZarrJob.begin\(…, resume=True\)"):
        dtf.ZarrJob.open(tmp_path / "b").write(0, 2)
    job = begun(ds, tmp_path / "b", 2, resume=True)
    job.write(0)
    # Divided again.
    job = begun(ds, tmp_path / "b", 5, resume=True)
    assert job.status().missing == (2, 3, 4)
    for part in range(5):
        job.write(part)
    job.finish()
    assert files(tmp_path / "a") == files(tmp_path / "b")


# -- refusals


def test_options_of_other_calls_are_refused(ds: dtf.Dataset, tmp_path: Path) -> None:
    for option, said in {"compute": "begin writes no row", "mode": "mode must be"}.items():
        with pytest.raises(ValueError, match=said):
            begun(ds, tmp_path / "job", **{option: False})
    assert not (tmp_path / "job").exists()


# -- programs


@pytest.mark.parametrize(
    ("name", "first"),
    [("SLURM_ARRAY_TASK_ID", 1), ("PBS_ARRAY_INDEX", 1), ("SGE_TASK_ID", 1), ("AWS_BATCH_JOB_ARRAY_INDEX", 0)],
)
def test_arrays_of_jobs_number_the_parts(
    name: str, first: int, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "job"
    assert "--part auto" in shown("to-zarr", shards, store, "--begin", "--parts", 2, "--chunks", 7)
    refused = run("to-zarr", store, "--part", "auto")
    assert refused.exit_code == 2 and name in refused.stderr
    monkeypatch.setenv("SGE_TASK_ID", "undefined")
    for number in (first, first + 1):
        monkeypatch.setenv(name, str(number))
        assert f"part {number - first + 1} of 2" in shown("to-zarr", store, "--part", "auto")
    monkeypatch.setenv(name, str(first + 2))
    refused = run("to-zarr", store, "--part", "auto")
    assert refused.exit_code == 2 and f"the job has parts {first} to {first + 1}" in refused.stderr
    shown("to-zarr", shards, store, "--finish")


def test_steps_of_a_job_take_the_options_of_the_plan(shards: Path, tmp_path: Path) -> None:
    store = tmp_path / "job"
    for arguments, said in (
        ([store, "--part", "1/2", "--chunks", "7"], "--chunks belongs to --begin"),
        ([store, "--part", "1/2", "--finish"], "--part and --finish are steps"),
        ([shards, store, "--parts", "2"], "--parts is the number of parts that --begin plans"),
        ([store], "The command to-zarr takes PATTERN and STORE."),
        ([store, "--part", "0/2"], "a job of 2 parts has 1/2 to 2/2"),
        ([shards, store, "--begin", "--plan"], "--plan writes nothing"),
    ):
        refused = run("to-zarr", *arguments)
        assert refused.exit_code == 2 and said in refused.stderr
    assert not store.exists()
    shown("to-zarr", shards, store, "--begin", "--chunks", 7)
    refused = run("to-zarr", store, "--part", "auto")
    assert "--part auto works in a job array" in refused.stderr
    shown("to-zarr", store, "--part", "2/2")
    assert "1 (missing). --part I/2 writes each of them" in run("to-zarr", store, "--finish").stderr
    assert "part 2/2" in shown("to-zarr", store, "--part", "2/2")
    assert "1/2   missing" in shown("to-zarr", store, "--status")


# Programs that start the jobs of an array at once: sbatch of Slurm, and the client of AWS.
# The first lines are a program of the shell and a string of Python: the path of Python may have spaces.
SCHEDULER = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
'''
import os, re, subprocess, sys
given = " ".join(sys.argv[1:])
if "sbatch" in sys.argv[0]:
    command, variable, array = sys.argv[-1], "SLURM_ARRAY_TASK_ID", re.search(r"--array=(\\d+)-(\\d+)", given)
    jobs = range(int(array[1]), int(array[2]) + 1) if array else [None]
else:
    command = re.search(r"command=(\\S+)", given)[1].replace(",", " ")
    variable, array = "AWS_BATCH_JOB_ARRAY_INDEX", re.search(r"size=(\\d+)", given)
    jobs = range(int(array[1])) if array else [None]
for job in jobs:
    own = {{}} if job is None else {{variable: str(job)}}
    subprocess.run(command, shell=True, check=True, stdout=sys.stderr, env=os.environ | own)
print("1234")
"""


@pytest.mark.integration
@pytest.mark.skipif(os.name == "nt", reason="the scripts are of bash")
@pytest.mark.parametrize("script", ["xargs -P 4", "xargs -P 2", "sbatch", "aws batch"])
def test_scripts_of_the_page_convert_in_parts(script: str, tmp_path: Path) -> None:
    write_shards(tmp_path, 2, ROWS // 2)
    for name in ("sbatch", "aws"):
        (tmp_path / name).write_text(SCHEDULER.format(python=sys.executable))
        (tmp_path / name).chmod(0o755)
    [text] = [each.text for each in blocks("docs/how-to/without-a-scheduler.md", "sh") if script in each.text]
    for shown_there, here in {"s3://bucket/": "", "/scratch/$USER/": "", "train-*": "part-*", "64": "2"}.items():
        text = text.replace(shown_there, here)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = run_program("bash", "-c", text, cwd=tmp_path, env=os.environ | {"PATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    copied, store = tmp_path / "copied", tmp_path / "train.zarr"
    rows = dtf.read_tfrecord(copied) if copied.exists() else dtf.from_zarr(store)
    np.testing.assert_array_equal(rows["label"], np.arange(ROWS))


@pytest.mark.integration
@pytest.mark.skipif(os.name == "nt", reason="the commands are of bash")
def test_rules_of_snakemake_convert_in_parts(tmp_path: Path) -> None:
    write_shards(tmp_path, 2, ROWS // 2)
    [rules] = [each.text for each in blocks("docs/how-to/without-a-scheduler.md", "text") if "rule finish" in each.text]
    (tmp_path / "Snakefile").write_text(rules.replace("64", "3").replace("train-*", "part-*"))
    # Snakemake is in an environment of its own: its dependencies differ from this package's.
    snakemake = os.environ.get("DASK_TFRECORD_SNAKEMAKE") or shutil.which("snakemake")
    if snakemake is None:
        commands = [literal_eval(text) for text in re.findall(r'shell: (".*")', rules)]
        rules_first = [commands[2].format(STORE="train.zarr", PARTS=3)]
        parts = [Namespace(part=part) for part in (3, 1, 2)]
        rules_first += [commands[1].format(STORE="train.zarr", PARTS=3, wildcards=each, threads=1) for each in parts]
        text = "\n".join(["set -e", *rules_first, commands[0].format(STORE="train.zarr")]).replace("train-*", "part-*")
        command = ["bash", "-c", text]
    else:
        command = [snakemake, "--cores", "2"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    own = {"PATH": path, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run_program(*command, cwd=tmp_path, env=os.environ | own)
    assert done.returncode == 0, done.stdout + done.stderr
    np.testing.assert_array_equal(dtf.from_zarr(tmp_path / "train.zarr")["label"], np.arange(ROWS))


def test_the_status_of_a_part_that_is_being_recorded(tmp_path: Path) -> None:
    dtf.to_tfrecord({"x": np.arange(ROWS)}, tmp_path / "a.tfrecord")
    store = tmp_path / "store.zarr"
    job = dtf.ZarrJob.begin(dtf.read_tfrecord(tmp_path / "a.tfrecord"), store, parts=2, chunks=5)
    states = set()

    def watched(call: Any) -> Any:
        def watch(*arguments: Any, **options: Any) -> None:
            states.add(tuple(part.state for part in dtf.ZarrJob.open(store).status().parts))
            call(*arguments, **options)

        return watch

    put_all = mock.patch.object(DirectoryObjects, "put_all", watched(DirectoryObjects.put_all))
    with put_all, mock.patch("os.replace", watched(os.replace)), mock.patch("os.link", watched(os.link)):
        job.write(1, 2)
    assert ("missing", "running") in states and {part for part, _ in states} == {"missing"}
    assert [part.state for part in job.status().parts] == ["missing", "done"]
