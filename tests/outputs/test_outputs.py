"""Any sequence of writes, faults, kills, concurrent runs and damage leaves one whole data set, or a refusal.

`test_exploration` kills and stops single runs at every step.

The machine drives every writer in a directory and in a store without directories. Calls of the file system fail, or end
the process as far as it can be seen, at any number.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import dask
import fsspec
import hypothesis.strategies as st
import numpy as np
import pytest
import xarray
import zarr
from google.protobuf.wrappers_pb2 import Int64Value
from hypothesis import Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.faults import FaultError, Faults, Killed
from support.few import rising

import dask_tfrecord as dtf
from dask_tfrecord.errors import StoreInUseError

ROWS, SHARD = 12, 4
# Rows of a chunk: the last one of a store is not full.
CHUNK = 5
NAMES = "x-{shard}.tfrecord"
Job = dtf.ZarrJob | dtf.TFRecordJob | dtf.ParquetJob
# Outputs that have the bytes of their sources.
RECORDS = ("tfrecord", "messages", "copy")


class FirstRead(Faults):
    """Call of a function when a task reads a source in memory for the first time: while the output has an owner."""

    def __init__(self, act: Callable[[], None], source: str, output: str) -> None:
        super().__init__(0, Killed, lambda path: source in str(path))
        self.act, self.output = act, output

    def call(self, path: Any) -> None:
        fs, inside = fsspec.url_to_fs(self.output)
        is_owned = fs.exists(inside) and any(name.endswith(".claim") for name in fs.find(inside))
        if self.counts(path) and not self.calls and is_owned:
            self.calls += 1
            self.act()


def rows(seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.arange(ROWS) + 1000 * seed


def read_episodes(target: Path) -> list[tuple[float, str]]:
    """Read the frames that `meta/info.json` counts, as LeRobot does; compare all metadata."""
    parquet = pytest.importorskip("pyarrow.parquet")
    info = json.loads((target / "meta/info.json").read_text())

    def rows(part: str, count: int) -> list[dict[str, Any]]:
        files = sorted(target.glob(f"{part}/*/*.parquet"))
        found = [row for file in files for row in parquet.read_table(file).to_pylist()][:count]
        assert len(found) == count
        return found

    frames, episodes = rows("data", info["total_frames"]), rows("meta/episodes", info["total_episodes"])
    tasks = parquet.read_table(target / "meta/tasks.parquet").to_pydict()
    numbers = dict(zip(tasks["task_index"], tasks["task"], strict=True))
    assert [frame["index"] for frame in frames] == [*range(len(frames))]
    assert [episode["episode_index"] for episode in episodes] == [*range(len(episodes))]
    assert episodes[-1]["dataset_to_index"] == len(frames)
    for episode in episodes:
        of = frames[episode["dataset_from_index"] : episode["dataset_to_index"]]
        assert {frame["episode_index"] for frame in of} == {episode["episode_index"]}
        assert {numbers[frame["task_index"]] for frame in of} == {*episode["tasks"]}
        assert [frame["frame_index"] for frame in of] == [*range(episode["length"])]
    return [(frame["x"], numbers[frame["task_index"]]) for frame in frames]


def column(name: str, x: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the values of an added column."""
    return x * 10 + int(name[1:])


class Outputs(RuleBasedStateMachine):
    """One output at a time, against the rows that it should hold."""

    @initialize(
        kind=st.sampled_from(["tfrecord", "messages", "copy", "parquet", "zarr", "lerobot"]),
        place=st.sampled_from(["directory", "memory"]),
    )
    def begin(self, kind: str, place: str) -> None:
        if kind == "lerobot":
            pytest.importorskip("av")
        self.folder, self.kind, self.place = Path(tempfile.mkdtemp()), kind, place
        self.sources = f"memory://sources/{self.folder.name}"
        for seed in range(3):
            name = self.folder / f"source-{seed}" / NAMES
            dtf.to_tfrecord({"x": rows(seed)}, name, records_per_shard=SHARD, **self.spec())
            for path in name.parent.iterdir():
                fsspec.filesystem("memory").pipe_file(f"{self.sources}/{seed}/{path.name}", path.read_bytes())
        self.root = str(self.folder / "out") if place == "directory" else f"memory://outputs/{self.folder.name}"
        self.stored = None
        # A run may have left parts of a data set, which can't be read.
        self.has_parts = False
        # Hidden files of a run that failed or was killed.
        self.has_leftovers = False

    def spec(self) -> dict[str, Any]:
        """Return the arguments that read and write the column."""
        if self.kind == "messages":
            return {"features": {"x": dtf.ProtoFeature("value")}, "message": Int64Value}
        return {"features": {"x": dtf.FixedLenFeature((), "int64")}}

    def write(self, seed: int, act: Callable[[], None] | None = None, **options: Any) -> None:
        called: list[bool] = []

        def call(blocks: dict[str, Any]) -> dict[str, Any]:
            if act is not None and not called:
                called.append(True)
                act()
            return blocks

        source, target = f"{self.folder}/source-{seed}/*", self.root
        with dask.config.set(scheduler="synchronous"):
            ds = dtf.read_tfrecord(source, **self.spec())
            ds = ds.map_blocks(call, dict(ds.schema))
            if options.get("append_dim"):
                ds = ds.assign({name: column(name, rows(seed)) for name in self.columns})
            if self.kind in ("tfrecord", "messages"):
                ds.to_tfrecord(f"{target}/{NAMES}", records_per_shard=SHARD, **self.spec(), **options)
            elif self.kind == "copy":
                first = FirstRead(act, f"/sources/{self.folder.name}", target) if act is not None else None
                with nullcontext() if first is None else first.injected():
                    dtf.copy_tfrecord(f"{self.sources}/{seed}/*", f"{target}/{NAMES}", **options)
                assert first is None or first.calls
            elif self.kind == "parquet":
                ds.to_parquet(target, **options)
            elif self.kind == "lerobot":
                ds.assign({"record": rows(seed) // SHARD}).to_lerobot(target, fps=10, episodes_per_file=1, **options)
            else:
                ds.to_zarr(target, chunks=CHUNK, **options)

    @property
    def stored(self) -> int | None:
        """Seed of the last complete run; None before the first, or after a run has damaged it."""
        return self._stored

    @stored.setter
    def stored(self, seed: int | None) -> None:
        self._stored = seed
        # Seeds of the runs that appended rows since, and names of the columns that were added.
        self.appended: list[int] = []
        self.columns: list[str] = []

    def expected(self) -> list[int]:
        """Return the rows of the last complete run, and those that are appended."""
        seeds = [] if self.stored is None else [self.stored, *self.appended]
        return [int(row) for seed in seeds for row in rows(seed)]

    def read(self) -> list[int]:
        if self.kind == "zarr":
            return self.read_columns()["x"]
        if self.kind == "lerobot":
            return self.read_frames()
        if self.kind == "parquet":
            parquet, fs = pytest.importorskip("pyarrow.parquet"), fsspec.url_to_fs(self.root)[0]
            files = sorted(fs.glob(f"{self.root}/part.*"))
            return [int(x) for file in files for x in parquet.read_table(fs.open(file))["x"].to_pylist()]
        return dtf.read_tfrecord(f"{self.root}/x-*", **self.spec())["x"].compute().tolist()  # type: ignore[no-any-return]

    def read_columns(self) -> dict[str, list[int]]:
        """Return the columns of a store, which three readers find."""
        ds = dtf.from_zarr(self.root)
        found: dict[str, list[int]] = {name: ds[name].compute().tolist() for name in ds.schema}
        group: Any = zarr.open_group(self.root, mode="r")
        opened = xarray.open_zarr(self.root, chunks=None)
        assert {*map(str, opened.variables)} == {*group.array_keys()} == {*found}
        for name, values in found.items():
            assert values == group[name][:].tolist() == opened[name].to_numpy().tolist()
            assert name == "x" or values == column(name, np.array(found["x"])).tolist()
        return found

    def read_frames(self) -> list[int]:
        """Return the frames of a LeRobot data set, as its metadata count them."""
        if self.place == "directory":
            return [int(x) for x, _ in read_episodes(Path(self.root))]
        copied = self.folder / "copied"
        shutil.rmtree(copied, ignore_errors=True)
        for name, data in self.files().items():
            path = Path(f"{copied}{name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return [int(x) for x, _ in read_episodes(copied)]

    def files(self) -> dict[str, bytes]:
        fs, path = fsspec.url_to_fs(self.root)
        return {name[len(path) :]: fs.cat_file(name) for name in fs.find(path)} if fs.exists(path) else {}

    def data(self) -> dict[str, bytes]:
        """Return the files without those of runs."""
        return {name: data for name, data in self.files().items() if "/.dask" not in name}

    @rule(seed=st.integers(0, 2), mode=st.sampled_from(["w", "w-"]))
    def complete(self, seed: int, mode: str) -> None:
        """Write without a fault."""
        if mode == "w-" and (self.stored is not None or self.has_parts):
            before = self.data()
            try:
                self.write(seed, mode=mode)
            except FileExistsError:
                # It may have removed what a killed run left apart from the data.
                assert self.data() == before or self.has_parts
                return
            # A run that was killed before it published anything left nothing that forbids the write.
            assert self.stored is None
        else:
            self.write(seed, mode=mode)
        self.stored, self.has_parts = seed, False

    @rule(
        seed=st.integers(0, 2),
        mode=st.sampled_from(["w", "w-"]),
        at=st.integers(1, 60),
        kind=st.sampled_from([FaultError, Killed]),
    )
    def fail(self, seed: int, mode: str, at: int, kind: type[BaseException]) -> None:
        """Write with a fault, or a kill."""
        own = self.root.removeprefix("memory:/")
        self.has_leftovers = True
        faults, before = Faults(at, kind, lambda path: str(path).startswith(own)), self.files()
        try:
            with faults.injected():
                self.write(seed, mode=mode)
        except (Exception, Killed) as error:
            failed = error
        else:
            # The fault came too late, or where it does not matter.
            self.stored, self.has_parts = seed, False
            return
        after = self.files()
        if self.stored is not None and (mode == "w-" or {k: after.get(k) for k in before} == before):
            # A refused run changes nothing.
            return
        assert not (isinstance(failed, FileExistsError) and self.stored is not None and mode == "w"), failed
        self.stored, self.has_parts = None, True

    @rule(seed=st.integers(0, 2), other=st.integers(0, 2), mode=st.sampled_from(["w", "w-"]))
    def race(self, seed: int, other: int, mode: str) -> None:
        """Write while another run writes."""

        def refused() -> None:
            with pytest.raises(StoreInUseError):
                self.write(other, mode=mode)

        self.write(seed, refused, mode="w")
        self.stored, self.has_parts = seed, False

    @rule(seed=st.integers(0, 2), other=st.integers(0, 2))
    @precondition(lambda self: self.kind in ("zarr", "lerobot") and self.stored is not None)
    def append(self, seed: int, other: int) -> None:
        """Append rows, while readers find the old ones and another append is refused."""
        before = self.expected()
        adding: dict[str, Any] = {"append_dim": "record"} if self.kind == "zarr" else {"mode": "a"}

        def meanwhile() -> None:
            assert self.read() == before
            for options in (adding, {**adding, "resume": True}, {"mode": "a"}):
                with pytest.raises(StoreInUseError):
                    self.write(other, **options)

        # The borders of episodes are read before a run owns the data set.
        self.write(seed, meanwhile if self.kind == "zarr" else None, **adding)
        self.appended.append(seed)

    @rule()
    @precondition(lambda self: self.kind == "zarr" and self.stored is not None and len(self.columns) < 3)
    def add_column(self) -> None:
        """Add a column; resumed, it is not added again."""
        before, name = self.read_columns(), f"y{len(self.columns)}"
        values = column(name, np.array(self.expected()))
        for resume in (False, True):
            with dask.config.set(scheduler="synchronous"):
                dtf.to_zarr({name: values}, self.root, mode="a", chunks=CHUNK, resume=resume)
        assert self.read_columns() == {**before, name: values.tolist()}
        self.columns.append(name)

    @rule(
        seed=st.integers(0, 2),
        parts=st.integers(1, 4),
        order=st.permutations(range(4)),
        steps=st.lists(st.sampled_from(["whole", "killed", "twice at once", "again"]), min_size=6, max_size=6),
        at=st.integers(1, 40),
    )
    @precondition(lambda self: self.kind != "lerobot")
    def write_in_parts(self, seed: int, parts: int, order: list[int], steps: list[str], at: int) -> None:
        """Begin, write parts in any order and finish, each step whole, killed and repeated, or twice."""
        own = self.root.removeprefix("memory:/")

        def run(how: str, step: Callable[[], object]) -> None:
            if how == "killed":
                self.has_leftovers = True
                with (
                    suppress(Exception, Killed),
                    Faults(at, Killed, lambda path: str(path).startswith(own)).injected(),
                ):
                    step()
            if how == "twice at once":
                with ThreadPoolExecutor(2) as threads:
                    list(threads.map(lambda _: step(), range(2)))
                return
            step()
            if how == "again":
                step()

        def begin() -> None:
            self.begin_job(seed, parts, mode="w")

        open_job = self.open_job
        self.before = self.files()
        with dask.config.set(scheduler="synchronous"):
            first, *others, last = steps
            run("again" if first == "twice at once" else first, begin)
            written = set[int]()
            for part, how in zip([each for each in order if each < parts], others, strict=False):
                missing = open_job().status().missing
                assert not {*missing} & written
                if missing:
                    with pytest.raises(dtf.errors.IncompleteStoreError, match="not done"):
                        open_job().finish()
                self.check_parts(seed)
                if how == "killed":
                    # An older plan.
                    old = open_job()
                    begin()
                    with pytest.raises(dtf.errors.IncompleteStoreError, match="another conversion has replaced"):
                        old.write(part)
                    for each in written:
                        open_job().write(each)
                run(how, lambda part=part: open_job().write(part, parts))  # type: ignore[misc]
                written.add(part)
            run("again" if last == "twice at once" else last, lambda: open_job().finish())
        self.stored, self.has_parts = seed, False

    def begin_job(self, seed: int, parts: int | None, **options: Any) -> Job:
        """Begin a job of the rows of a source."""
        ds, names = dtf.read_tfrecord(f"{self.folder}/source-{seed}/*", **self.spec()), f"{self.root}/{NAMES}"
        if self.kind == "zarr":
            return dtf.ZarrJob.begin(ds, self.root, parts=parts, chunks=CHUNK, **options)
        if self.kind == "parquet":
            return dtf.ParquetJob.begin(ds, self.root, parts=parts, **options)
        if self.kind == "copy":
            return dtf.TFRecordJob.begin_copy(f"{self.sources}/{seed}/*", names, parts=parts, **options)
        return dtf.TFRecordJob.begin(ds, names, parts=parts, records_per_shard=SHARD, **self.spec(), **options)

    def open_job(self) -> Job:
        """Open the job, as another program does."""
        if self.kind == "zarr":
            return dtf.ZarrJob.open(self.root)
        if self.kind == "parquet":
            return dtf.ParquetJob.open(self.root)
        return dtf.TFRecordJob.open(f"{self.root}/{NAMES}")

    def check_parts(self, seed: int) -> None:
        """Check what an unfinished job shows: a store can't be opened, and files are old or whole."""
        if self.kind == "zarr":
            with pytest.raises((dtf.errors.IncompleteStoreError, FileNotFoundError)):
                self.read()
            return
        assert not self.open_job().status().complete
        found = {name: data for name, data in self.files().items() if "/." not in name}
        if self.kind in RECORDS:
            wanted = {f"/{path.name}": path.read_bytes() for path in (self.folder / f"source-{seed}").iterdir()}
            before = [self.before.get(name) for name in found]
            assert all(data in (wanted[name], old) for (name, data), old in zip(found.items(), before, strict=True))
        elif not {*found.values()} & {*self.before.values()}:
            assert {*self.read()} <= {*rows(seed).tolist()}

    @rule()
    @precondition(lambda self: self.kind in RECORDS and self.stored is not None)
    def damage(self) -> None:
        """Flip a byte, find it, and write again."""
        fs, path = fsspec.url_to_fs(f"{self.root}/x-1.tfrecord")
        data = bytearray(fs.cat_file(path))
        data[len(data) // 2] ^= 1
        fs.pipe_file(path, bytes(data))
        assert not dtf.verify(f"{self.root}/x-*").ok
        self.write(self.stored or 0, mode="w")

    @invariant()
    def holds_what_was_written(self) -> None:
        if getattr(self, "stored", None) is not None:
            assert self.read() == self.expected()
            if self.kind in RECORDS:
                source = self.folder / f"source-{self.stored}"
                wanted = {f"/{path.name}": path.read_bytes() for path in source.iterdir()}
                assert {name: data for name, data in self.files().items() if "/." not in name} == wanted
            assert self.has_leftovers or not [name for name in self.files() if "/." in name]

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)
            for place in (self.root, self.sources):
                fs, path = fsspec.url_to_fs(place)
                if fs.exists(path):
                    fs.rm(path, recursive=True)


@pytest.mark.parametrize(("examples", "steps"), rising((2, 6), (8, 10), (20, 10)))
def test_an_output_holds_what_the_last_whole_run_wrote(examples: int, steps: int) -> None:
    chosen = settings(max_examples=examples, stateful_step_count=steps, phases=[Phase.generate])
    run_state_machine_as_test(Outputs, settings=chosen)


@pytest.mark.parametrize("place", ["directory", "memory"])
def test_files_are_added_after_those_that_exist(place: str, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow.parquet")
    root = str(tmp_path) if place == "directory" else f"memory://added/{tmp_path.name}"
    fs, inside = fsspec.url_to_fs(root)
    for start, stop in ((0, 6), (6, 10), (10, 11)):
        rows = {"x": np.arange(start, stop)}
        before = {name: fs.cat_file(name) for name in fs.find(inside)} if fs.exists(inside) else {}
        dtf.to_tfrecord(rows, f"{root}/shards/x-{{shard}}.tfrecord", records_per_shard=4, mode="a")
        dtf.to_parquet(rows, f"{root}/files", mode="a")
        dtf.copy_tfrecord(f"{root}/shards/x-0.tfrecord", f"{root}/copies/y-{{shard}}.tfrecord", mode="a")
        after = {name: fs.cat_file(name) for name in fs.find(inside)}
        assert {name: after[name] for name in before} == before
        features = {"x": dtf.FixedLenFeature((), "int64")}
        assert dtf.read_tfrecord(f"{root}/shards/*", features)["x"].compute().tolist() == [*range(stop)]
        files = sorted(fs.glob(f"{inside}/files/*"))
        assert [x for file in files for x in pyarrow.read_table(fs.open(file))["x"].to_pylist()] == [*range(stop)]
    assert len(fs.glob(f"{inside}/shards/*")) == 4
    assert len(fs.glob(f"{inside}/copies/*")) == 3
    with pytest.raises(ValueError, match=r"give a template with \{shard\} and without \{shards\}"):
        dtf.to_tfrecord(rows, f"{root}/x-{{shard}}-of-{{shards}}.tfrecord", mode="a")
