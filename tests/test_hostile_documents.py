"""Documents that stores hold, changed in every field: the error names the document, and nothing outside changes."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from support.simulation import Killed, Simulation

import dask_tfrecord as dtf

HOSTILE: list[Any] = [None, -1, 0, 10**400, float("nan"), "../../victim", [], {"../../victim": [0, 0, 0]}]
# Texts in the place of a document.
TEXTS = [b"", b"{", b"null", b"[]", b"0", b"\xff", b"[" * 10_000, b'{"a":' * 10_000, b"9" * 5000, b'{"token": 1e999}']
SECONDS = 20


def rows(start: int, stop: int) -> dtf.Dataset:
    return dtf.Dataset.from_arrays({"x": np.arange(start, stop), "t": [[1] * (row % 3) for row in range(start, stop)]})


def append(folder: Path) -> None:
    rows(5, 12).to_zarr(folder / "s.zarr", append_dim="record", resume=True)


def add_column(folder: Path) -> None:
    dtf.Dataset.from_arrays({"y": np.arange(5)}).to_zarr(folder / "s.zarr", mode="a", resume=True)


def begin_append(folder: Path) -> None:
    rows(1, 6).to_zarr(folder / "s.zarr", append_dim="record", chunks=2)


def convert(folder: Path) -> None:
    rows(1, 12).to_zarr(folder / "s.zarr", chunks=2, resume=True)


def shards(folder: Path) -> dtf.Dataset:
    if not (folder / "in.tfrecord").exists():
        dtf.Dataset.from_arrays({"x": np.arange(9)}).to_tfrecord(folder / "in.tfrecord")
    return dtf.read_tfrecord(folder / "in.tfrecord", {"x": dtf.FixedLenFeature((), "int64")})


def begin_group(folder: Path) -> None:
    dtf.ZarrJob.begin(shards(folder), folder / "s.zarr", parts=2, chunks=2).write(0)


def finish_group(folder: Path) -> None:
    job = dtf.ZarrJob.open(folder / "s.zarr")
    str(job.status())
    job.write(0)
    job.finish()


TEMPLATE = "p-{shard:05d}.tfrecord"


def begin_files(folder: Path) -> None:
    dtf.TFRecordJob.begin(shards(folder), folder / TEMPLATE, parts=2, records_per_shard=3).write(0)


def finish_files(folder: Path) -> None:
    job = dtf.TFRecordJob.open(folder / TEMPLATE)
    str(job.status())
    job.write(0)
    job.finish()


def write_files(folder: Path) -> None:
    shards(folder).to_tfrecord(folder / TEMPLATE, mode="w", records_per_shard=3)


def read_group(folder: Path) -> None:
    dtf.from_zarr(folder / "s.zarr").compute()


@dataclass(frozen=True)
class Kind:
    """A document: what makes it, when that is killed, and what reads it."""

    begin: Callable[[Path], None]
    # The run that makes the document is killed before this step: the first of this operation on a name of this form.
    run: Callable[[Path], None] | None
    until: str
    pattern: str
    read: Callable[[Path], None]


def nothing(folder: Path) -> None:
    """Make no output before."""


KINDS = {
    "rows that are added": Kind(begin_append, append, "rename x/zarr.json", ".dask_tfrecord/*/run/plan.json", append),
    "columns that are added": Kind(
        begin_append, add_column, "write y/zarr.json", ".dask_tfrecord/*/run/plan.json", add_column
    ),
    "plan of rows": Kind(begin_append, append, "rename x/zarr.json", ".dask_tfrecord/*/run/plan.json", append),
    "plan of a group": Kind(nothing, convert, "rename x/c/3", ".dask_tfrecord/*/run/plan.json", convert),
    "units of a group": Kind(nothing, convert, "rename x/c/3", ".dask_tfrecord/*/run/units/*.json", convert),
    "plan of a job": Kind(begin_group, None, "", ".dask_tfrecord/*/run/parts/job.json", finish_group),
    "record of files": Kind(begin_files, None, "", ".dask-tfrecord-*.job", finish_files),
    "record of replaced files": Kind(begin_files, None, "", ".dask-tfrecord-*.job", write_files),
    "plan of files": Kind(begin_files, None, "", ".dask-tfrecord-*/job.json", finish_files),
    "reports of files": Kind(begin_files, None, "", ".dask-tfrecord-*/reports-*", finish_files),
    "array": Kind(begin_append, None, "", "s.zarr/x/zarr.json", read_group),
    "complete group": Kind(begin_append, None, "", "s.zarr/zarr.json", read_group),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the directory with a document of each kind."""
    found: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind in found:
            return found[kind]
        own = KINDS[kind]
        base = tmp_path_factory.mktemp("documents").resolve()
        (base / "out").mkdir()
        with dask.config.set(scheduler="synchronous"):
            own.begin(base / "out")
        if own.run is not None:
            run = own.run
            what, _, suffix = own.until.partition(" ")
            whole = Simulation(base, {"A": lambda: run(base / "out")}, ())
            shutil.copytree(base, base.with_name(f"{base.name}-whole"))
            shutil.copytree(base, before := base.with_name(f"{base.name}-before"))
            whole.run()
            step = next(
                number
                for number, each in enumerate(whole.steps)
                if what in each.what and f"{each.path.partition('.partial')[0]}".rpartition(suffix)[1]
            )
            shutil.rmtree(base)
            shutil.move(before, base)
            killed = Simulation(base, {"A": lambda: run(base / "out")}, ((step, "kill"),)).run()
            assert isinstance(killed["A"], Killed)
        found[kind] = base
        return base

    return make


def changed(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield each place in a document, with the document for each value in that place."""
    yield path, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from changed(each, (*path, key))


MISSING = object()


def with_value(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a document with a value at a place, or without that place."""
    if not path:
        return value
    made = dict(document) if isinstance(document, dict) else list(document)
    if len(path) == 1 and value is MISSING:
        del made[path[0]]
    else:
        made[path[0]] = with_value(document[path[0]], path[1:], value)
    return made


def variants(data: bytes) -> list[tuple[str, bytes]]:
    """Return a document with each field changed; the attributes of this library are JSON within JSON."""
    document = json.loads(data)
    found = [(repr(text[:20]), text) for text in TEXTS]
    for path, _ in changed(document):
        for value in (*HOSTILE, MISSING)[: -1 if not path else None]:
            name = f"{path} {'is missing' if value is MISSING else repr(value)[:40]}"
            found.append((name, json.dumps(with_value(document, path, value)).encode()))
    own = document.get("attributes", {}).get("dask_tfrecord") if isinstance(document, dict) else None
    if isinstance(own, str):
        for name, text in variants(own.encode()):
            inner = {**document["attributes"], "dask_tfrecord": text.decode("utf-8", "replace")}
            found.append((f"own {name}", json.dumps({**document, "attributes": inner}).encode()))
    return found


def check(base: Path, kind: str, name: str, text: bytes) -> None:
    """Read a changed document: it succeeds or names its place in an error, within some seconds, and changes no file."""
    now = base.with_name(f"{base.name}-now")
    shutil.rmtree(now, ignore_errors=True)
    shutil.copytree(base, now)
    victim = now / "victim"
    victim.mkdir()
    (victim / "thesis.txt").write_text("x")
    (victim / "zarr.json").write_text("{}")
    document = next(now.glob(f"out/**/{KINDS[kind].pattern}"))
    document.write_bytes(text)
    began = time.monotonic()
    simulation = Simulation(now, {"A": lambda: KINDS[kind].read(now / "out")}, ())
    outcome = simulation.run()["A"]
    assert time.monotonic() - began < SECONDS, f"{kind}: {name} takes {time.monotonic() - began:.0f} s"
    if isinstance(outcome, ValueError) and "no number of parts" in str(outcome):
        return
    assert not simulation.escapes, f"{kind}: {name} changes {simulation.escapes[0]}"
    assert {path.name for path in victim.iterdir()} == {"thesis.txt", "zarr.json"}
    if isinstance(outcome, BaseException) and not isinstance(outcome, dtf.TFRecordError | OSError):
        raise AssertionError(f"{kind}: {name}: {type(outcome).__name__}: {outcome}") from outcome


# Fields of a plan that contradict each other, and metadata of new columns that zarr refuses, are not checked yet.
UNCHECKED = {"plan of rows", "plan of a group", "columns that are added", "complete group"}


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - UNCHECKED))
def test_some_fields(kind: str, made: Callable[[str], Path]) -> None:
    base = made(kind)
    found = variants(next(base.glob(f"out/**/{KINDS[kind].pattern}")).read_bytes())
    for name, text in random.Random(kind).sample(found, min(len(found), 4)):
        check(base, kind, name, text)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - UNCHECKED))
def test_every_field(kind: str, made: Callable[[str], Path]) -> None:
    base = made(kind)
    wrong = []
    for name, text in variants(next(base.glob(f"out/**/{KINDS[kind].pattern}")).read_bytes()):
        try:
            check(base, kind, name, text)
        except AssertionError as error:
            wrong.append(str(error)[:300])
    assert not wrong, f"{len(wrong)} of them:\n" + "\n".join(wrong[:40])
