"""Writes that an exploration executes: two runs of each output, what readers find, and the rules they have to obey."""

from __future__ import annotations

import atexit
import json
import shutil
import struct
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

import dask_tfrecord as dtf
from dask_tfrecord.errors import ResumeError, StoreInUseError
from support.simulation import STOP, Scenario, Simulation

# Rows of each call: none of them is a fill value.
OLD, ROWS = [*range(1, 7)], {"A": [*range(101, 109)], "B": [*range(201, 209)]}
# What a reader finds: rows, or the kind of an error.
Found = list[int] | str


@dataclass(frozen=True)
class Write:
    """A call of an output with rows.

    `adds` is true if it adds to what exists, else it makes or replaces the output; `old` are the rows of the output
    that exists before, if one does.
    """

    name: str
    call: Callable[[Path, list[int]], object]
    read: Callable[[Path], dict[str, Found]]
    begin: Callable[[Path], object] | None = None
    adds: bool = False
    # Readers may find some of the new files, because files of a plain pattern do not appear in one step.
    by_files: bool = False
    # Readers may get an error while several renames replace the old output by the new one.
    gap: bool = False
    # Methods that are steps too.
    announces: Callable[[], list[tuple[type, str]]] = list

    def allowed(self, done: Sequence[str], killed: Sequence[str]) -> list[Found]:
        """Return what readers may find when some calls have succeeded, and others were killed."""
        old = [] if self.begin is None else OLD
        if not self.adds:
            found: list[Found] = [ROWS[name] for name in (*done, *killed)]
            if not done:
                found.append(OLD if self.begin is not None else "error")
            return found
        every: list[Found] = []
        for number in range(len(killed) + 1):
            for names in permutations((*done, *killed), len(done) + number):
                if {*done} <= {*names}:
                    every.append([*old, *(row for name in names for row in ROWS[name])])
        return every if old or done else [*every, "error"]

    def scenario(self, names: str = "AB", *, again: Sequence[str] = "AB") -> Scenario:
        """Return the scenario of calls of these names; those that did not end are made again in an order."""

        def check(out: str, simulation: Simulation, outcomes: Mapping[str, object]) -> str | None:
            return judge(self, Path(out), simulation, outcomes, again)

        def begin(out: str) -> None:
            if self.begin is not None:
                self.begin(Path(out))

        calls = {name: (lambda out, rows=ROWS[name]: self.call(Path(out), rows)) for name in names}
        return Scenario(self.name, calls, begin, check, self.announces)


def judge(
    write: Write, folder: Path, simulation: Simulation, outcomes: Mapping[str, object], order: Sequence[str]
) -> str | None:
    """Return which rule the outcome breaks, or None; calls that did not end are made again in an order."""
    done = [name for name, outcome in outcomes.items() if not isinstance(outcome, BaseException)]
    killed = [actor.name for actor in simulation.actors if actor.killed]
    # A run that fails while it cleans up has published.
    failed = [name for name in outcomes if name not in (*done, *killed)]
    wrong = compare(write, folder, done, [*killed, *failed], partial=bool(killed))
    if wrong is not None:
        rule = "rule 1" if killed or not done else "rule 2" if len(outcomes) > 1 else "rule 5"
        rule = "rule 5" if not done and not killed else rule
        return f"{rule}: {wrong}"
    return again(write, folder, simulation, done, sorted([*killed, *failed], key=order.index))


def again(write: Write, folder: Path, simulation: Simulation, done: list[str], left: Sequence[str]) -> str | None:
    """Make the calls that were killed or failed again, as a user does; return which rule their outcome breaks."""
    waiting, refused = [name for name in left if write.adds or not done], 0
    while waiting and refused < len(waiting):
        name = waiting.pop(0)
        calls = {name: simulation.call_of(name)}
        later = Simulation(folder.parent, calls, (), simulation.clock + STOP, simulation.announces)
        outcome = later.run()[name]
        if isinstance(outcome, ResumeError | StoreInUseError):
            # The other run has to be made again first.
            waiting.append(name)
            refused += 1
            continue
        maybe = [each for each in left if each not in (*done, name)]
        if isinstance(outcome, FileExistsError) and compare(write, folder, [name], maybe, partial=False) is None:
            # It was killed when nothing was left to do.
            return None if not any(folder.rglob("*.claim")) else f"rule 4: {name} again: {outcome}"
        if isinstance(outcome, BaseException):
            return f"rule 4: {name} again: {type(outcome).__name__}: {outcome}"
        refused = 0
        done = [*done, name]
        wrong = compare(write, folder, done, maybe, partial=False)
        if wrong is not None:
            return f"rule 4: {name} again: {wrong}"
        waiting = waiting if write.adds else []
    return f"rule 4: {waiting} are refused for ever" if waiting else None


def compare(write: Write, folder: Path, done: Sequence[str], maybe: Sequence[str], *, partial: bool) -> str | None:
    """Return what readers find that they must not find, when other calls may have succeeded."""
    allowed = write.allowed(done, maybe)
    for reader, rows in write.read(folder).items():
        found = "error" if isinstance(rows, str) else rows
        if write.gap and partial and found == "error":
            continue
        if found not in allowed and not (write.by_files and partial and is_part(write, found, allowed)):
            return f"{reader} finds {rows}, expected one of {allowed} (done {done}, perhaps {[*maybe]})"
    return None


def is_part(write: Write, found: Found, allowed: Sequence[Found]) -> bool:
    """Return whether rows are whole files of one state, nothing twice; with all old ones, if the write adds some."""
    if isinstance(found, str):
        return not write.adds
    least = {*OLD} if write.adds and write.begin is not None else set()
    return len({*found}) == len(found) and any(
        least <= {*found} <= {*most} for most in allowed if not isinstance(most, str)
    )


def result(read: Callable[[], Any]) -> Found:
    """Return the rows that a reader finds, or its error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [int(row) for row in read()]
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]


def dataset(rows: list[int], name: str = "x") -> dtf.Dataset:
    return dtf.Dataset.from_arrays({name: np.array(rows)})


# -- Zarr


def read_zarr(folder: Path) -> dict[str, Found]:
    import xarray as xr
    import zarr

    path = str(folder / "s.zarr")
    return {
        "from_zarr": result(lambda: dtf.from_zarr(path)["x"].compute(scheduler="synchronous")),
        "zarr": result(lambda: zarr.open_group(path, mode="r")["x"][:]),  # type: ignore[index]
        "xarray": result(lambda: xr.open_zarr(path)["x"].to_numpy()),
    }


def new_group(folder: Path, rows: list[int]) -> None:
    dataset(rows).to_zarr(folder / "s.zarr", chunks=3, resume=True)


def replaced_group(folder: Path, rows: list[int]) -> None:
    dataset(rows).to_zarr(folder / "s.zarr", chunks=3, mode="w")


def appended_rows(folder: Path, rows: list[int]) -> None:
    dataset(rows).to_zarr(folder / "s.zarr", append_dim="record", chunks=4, resume=True)


def old_group(folder: Path) -> None:
    appended_rows(folder, OLD)


def added_columns(folder: Path, rows: list[int]) -> None:
    # The names of the columns say which call has added them.
    dataset(rows[: len(OLD)], f"c{rows[0]}").to_zarr(folder / "s.zarr", mode="a", resume=True)


def read_columns(folder: Path) -> dict[str, Found]:
    import zarr

    path = str(folder / "s.zarr")

    def ours() -> Iterator[int]:
        ds = dtf.from_zarr(path)
        for rows in (OLD, ROWS["A"], ROWS["B"]):
            name = "x" if rows is OLD else f"c{rows[0]}"
            if name in ds:
                found = ds[name].compute(scheduler="synchronous").tolist()
                yield from rows if found == rows[: len(OLD)] else [0]

    def foreign() -> Iterator[int]:
        group: Any = zarr.open_group(path, mode="r")
        for rows in (OLD, ROWS["A"], ROWS["B"]):
            name = "x" if rows is OLD else f"c{rows[0]}"
            if name in group:
                yield from rows if group[name][:].tolist() == rows[: len(OLD)] else [0]

    return {"from_zarr": result(ours), "zarr": result(foreign)}


# -- a commit of Icechunk, whose client announces no operation on files: a step is a call of its session or store


def session_of(folder: Path) -> Any:
    import icechunk

    storage = icechunk.local_filesystem_storage(str(folder / "i"))
    return icechunk.Repository.open_or_create(storage).writable_session("main")


def committed_rows(folder: Path, rows: list[int]) -> None:
    dataset(rows).to_zarr(session_of(folder), append_dim="record", chunks=4)


def replaced_commit(folder: Path, rows: list[int]) -> None:
    dataset(rows).to_zarr(session_of(folder), chunks=3, mode="w")


def old_commit(folder: Path) -> None:
    committed_rows(folder, OLD)


def read_commit(folder: Path) -> dict[str, Found]:
    import icechunk
    import zarr

    storage = icechunk.local_filesystem_storage(str(folder / "i"))
    store = icechunk.Repository.open(storage).readonly_session("main").store
    return {
        "from_zarr": result(lambda: dtf.from_zarr(store)["x"].compute(scheduler="synchronous")),
        "zarr": result(lambda: zarr.open_group(store, mode="r")["x"][:]),  # type: ignore[index]
    }


def steps_of_commits() -> list[tuple[type, str]]:
    from icechunk import Session

    from dask_tfrecord.stores.zarr.store import StoreObjects

    return [
        *((Session, name) for name in ("merge", "commit")),
        *((StoreObjects, name) for name in ("put_all", "change")),
    ]


# -- files


@cache
def payloads() -> dict[bytes, int]:
    """Return the row of each payload that a call writes."""
    folder, rows = Path(tempfile.mkdtemp()), [*OLD, *ROWS["A"], *ROWS["B"]]
    try:
        dataset(rows).to_tfrecord(folder / "all.tfrecord")
        return dict(zip(frames((folder / "all.tfrecord").read_bytes()), rows, strict=True))
    finally:
        shutil.rmtree(folder)


def frames(data: bytes) -> Iterator[bytes]:
    """Yield the payloads of a shard, without its checksums."""
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        payload = data[at + 12 : at + 12 + length]
        if len(payload) < length:
            raise ValueError("a record is cut off")
        yield payload
        at += 16 + length


def add_to_split(folder: Path, rows: list[int]) -> None:
    described = {"name": "n", "version": "1.0.0", "split": "train"}
    dataset(rows).to_tfrecord(folder / "n" / "1.0.0", tfds=described, mode="a", records_per_shard=3)


def old_split(folder: Path) -> None:
    add_to_split(folder, OLD)


def read_split(folder: Path) -> dict[str, Found]:
    def described() -> Iterator[int]:
        # As TensorFlow Datasets does: files and numbers of records come from the description.
        (split,) = json.loads((folder / "n/1.0.0/dataset_info.json").read_text())["splits"]
        lengths = [int(each) for each in split["shardLengths"]]
        for number, length in enumerate(lengths):
            path = folder / "n/1.0.0" / f"n-train.tfrecord-{number:05d}"
            found = [payloads()[payload] for payload in frames(path.read_bytes())]
            yield from found if len(found) == length else [0]

    def ours() -> Any:
        return dtf.read_tfrecord(folder / "n" / "1.0.0", split="train")["x"].compute(scheduler="synchronous")

    return {"description": result(described), "read_tfrecord": result(ours)}


TEMPLATE = "p-{shard:05d}.tfrecord"


def write_shards(folder: Path, rows: list[int], mode: Any) -> None:
    dataset(rows).to_tfrecord(folder / "t" / TEMPLATE, mode=mode, records_per_shard=3)


def new_shards(folder: Path, rows: list[int]) -> None:
    write_shards(folder, rows, "w-")


def replaced_shards(folder: Path, rows: list[int]) -> None:
    write_shards(folder, rows, "w")


def added_shards(folder: Path, rows: list[int]) -> None:
    write_shards(folder, rows, "a")


def old_shards(folder: Path) -> None:
    write_shards(folder, OLD, "a")


def read_shards(folder: Path) -> dict[str, Found]:
    def foreign() -> Iterator[int]:
        paths = sorted((folder / "t").glob("p-*.tfrecord"))
        if not paths:
            raise FileNotFoundError("no shard")
        for path in paths:
            yield from (payloads()[payload] for payload in frames(path.read_bytes()))

    def ours() -> Any:
        features = {"x": dtf.FixedLenFeature((), "int64")}
        return dtf.read_tfrecord(folder / "t" / "p-*.tfrecord", features)["x"].compute(scheduler="synchronous")

    return {"frames": result(foreign), "read_tfrecord": result(ours)}


def write_parquet(folder: Path, rows: list[int], mode: Any) -> None:
    # A file is a chunk.
    dtf.Dataset.from_arrays({"x": da.from_array(np.array(rows), chunks=3)}).to_parquet(folder / "q", mode=mode)


def new_parquet(folder: Path, rows: list[int]) -> None:
    write_parquet(folder, rows, "w-")


def replaced_parquet(folder: Path, rows: list[int]) -> None:
    write_parquet(folder, rows, "w")


def added_parquet(folder: Path, rows: list[int]) -> None:
    write_parquet(folder, rows, "a")


def old_parquet(folder: Path) -> None:
    write_parquet(folder, OLD, "a")


def read_parquet(folder: Path) -> dict[str, Found]:
    from pyarrow import parquet

    def foreign() -> Iterator[int]:
        paths = sorted((folder / "q").glob("[!.]*.parquet"))
        if not paths:
            raise FileNotFoundError("no file")
        for path in paths:
            yield from parquet.read_table(path)["x"].to_pylist()

    return {"pyarrow": result(foreign)}


# -- LeRobot


@cache
def episodes(first: int) -> dtf.Dataset:
    """Return episodes of three frames or fewer, whose actions are the rows of a call."""
    rows = next(each for each in (OLD, *ROWS.values()) if each[0] == first)
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    columns = {"steps/action": dtf.VarLenFeature("float32", shape=(-1, 1))}
    columns["steps/language_instruction"] = dtf.TextFeature(count=-1)
    cuts = [np.array(rows[at : at + 3], "f4")[:, None] for at in range(0, len(rows), 3)]
    values = {"steps/action": cuts, "steps/language_instruction": [["t"] * len(each) for each in cuts]}
    described = {"name": "robot", "version": "1.0.0", "split": "train"}
    features = dtf.Schema(columns, groups={"steps": list(columns)})
    dtf.to_tfrecord(values, folder / "robot" / "1.0.0", features=features, tfds=described)
    return dtf.read_tfrecord(folder / "robot" / "1.0.0", split="train").explode("steps")


def write_lerobot(folder: Path, rows: list[int], mode: Any) -> None:
    episodes(rows[0]).to_lerobot(folder / "l", fps=10, episodes_per_file=1, mode=mode, resume=mode != "w")


def new_lerobot(folder: Path, rows: list[int]) -> None:
    write_lerobot(folder, rows, "w-")


def replaced_lerobot(folder: Path, rows: list[int]) -> None:
    write_lerobot(folder, rows, "w")


def added_lerobot(folder: Path, rows: list[int]) -> None:
    write_lerobot(folder, rows, "a")


def old_lerobot(folder: Path) -> None:
    write_lerobot(folder, OLD, "a")


def read_lerobot(folder: Path) -> dict[str, Found]:
    from pyarrow import parquet

    def foreign() -> list[int]:
        root = folder / "l"
        info = json.loads((root / "meta/info.json").read_text())
        tables = [parquet.read_table(path).to_pylist() for path in sorted(root.glob("data/**/*.parquet"))]
        frames = [row for table in tables for row in table if row["episode_index"] < info["total_episodes"]]
        rows = [int(np.ravel(frame["action"])[0]) for frame in frames]
        stats = json.loads((root / "meta/stats.json").read_text())["action"]
        found = int(np.ravel(stats["count"])[0]), int(np.ravel(stats["max"])[0]), info["total_frames"]
        if found != (len(rows), max(rows), len(rows)):
            # Users normalise by the statistics of other frames.
            return [0]
        return rows

    return {"pyarrow": result(foreign)}


WRITES = {
    write.name: write
    for write in (
        Write("new group", new_group, read_zarr),
        Write("replaced group", replaced_group, read_zarr, old_group, gap=True),
        Write("appended rows", appended_rows, read_zarr, old_group, adds=True),
        Write("first rows", appended_rows, read_zarr, adds=True),
        Write("committed rows", committed_rows, read_commit, old_commit, adds=True, announces=steps_of_commits),
        Write("replaced commit", replaced_commit, read_commit, old_commit, announces=steps_of_commits),
        Write("added columns", added_columns, read_columns, old_group, adds=True),
        Write("new shards", new_shards, read_shards, by_files=True),
        Write("replaced shards", replaced_shards, read_shards, old_shards, by_files=True),
        Write("added shards", added_shards, read_shards, old_shards, adds=True, by_files=True),
        Write("added split", add_to_split, read_split, old_split, adds=True, gap=True),
        Write("new Parquet", new_parquet, read_parquet, by_files=True),
        Write("replaced Parquet", replaced_parquet, read_parquet, old_parquet, by_files=True),
        Write("added Parquet", added_parquet, read_parquet, old_parquet, adds=True, by_files=True),
        Write("new LeRobot", new_lerobot, read_lerobot),
        Write("replaced LeRobot", replaced_lerobot, read_lerobot, old_lerobot, gap=True),
        Write("added LeRobot", added_lerobot, read_lerobot, old_lerobot, adds=True, gap=True),
    )
}
