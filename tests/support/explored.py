"""Writes that an exploration executes: two runs of each output, what readers find, and the rules they have to obey."""

from __future__ import annotations

import atexit
import io
import json
import shutil
import struct
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import dask.array as da
import fsspec
import numpy as np

import dask_tfrecord as dtf
from dask_tfrecord.errors import ResumeError, StoreInUseError
from support.simulated_store import PROTOCOL, S3FileSystem
from support.simulation import STOP, Scenario, Simulation

# Rows of each call: none of them is a fill value, and those of A and B have the same size.
OLD, ROWS = [*range(1, 7)], {"A": [*range(101, 109)], "B": [*range(111, 119)]}
# What a reader finds: rows, or the kind of an error.
Found = list[int] | str


@dataclass(frozen=True)
class Write:
    """A call of an output with rows.

    `adds` is true if it adds to what exists, else it makes or replaces the output; `old` are the rows of the output
    that exists before, if one does.
    """

    name: str
    call: Callable[[str, list[int]], object]
    read: Callable[[str], dict[str, Found]]
    begin: Callable[[str], object] | None = None
    adds: bool = False
    # Readers may find some of the new files, because files of a plain pattern do not appear in one step.
    by_files: bool = False
    # Readers may get an error while several renames replace the old output by the new one.
    gap: bool = False
    # Readers get an error after a failure, because the old output was removed before.
    removes_first: bool = False
    # What a user calls again after a kill or a failure, if that is not the same call.
    call_again: Callable[[str, list[int]], object] | None = None
    # Methods that are steps too.
    announces: Callable[[], list[tuple[type, str]]] = list
    # In an object store with conditional puts and without renames; else in a directory.
    in_store: bool = False

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
            return judge(self, self.place(out), simulation, outcomes, again)

        before: list[str] = []

        def begin(out: str) -> None:
            before.append(out)
            if self.begin is not None:
                self.begin(self.place(out))

        calls = {name: (lambda out, rows=ROWS[name]: self.call(self.place(out), rows)) for name in names}

        def restore(out: str) -> None:
            if self.in_store:
                S3FileSystem.restore(before[0].lstrip("/"), out.lstrip("/"))

        return Scenario(self.name, calls, begin, check, self.announces, restore)

    def place(self, out: str) -> str:
        """Return the path or URL of an output."""
        return f"{PROTOCOL}:/{out}" if self.in_store else out


def judge(
    write: Write, place: str, simulation: Simulation, outcomes: Mapping[str, object], order: Sequence[str]
) -> str | None:
    """Return which rule the outcome breaks, or None; calls that did not end are made again in an order."""
    done = [name for name, outcome in outcomes.items() if not isinstance(outcome, BaseException)]
    killed = [actor.name for actor in simulation.actors if actor.killed]
    # A run that fails while it cleans up has published.
    failed = [name for name in outcomes if name not in (*done, *killed)]
    wrong = compare(write, place, done, [*killed, *failed], partial=bool(killed))
    if wrong is not None:
        rule = "rule 1" if killed or not done else "rule 2" if len(outcomes) > 1 else "rule 5"
        rule = "rule 5" if not done and not killed else rule
        if rule == "rule 2" and any(simulation.steps[at].what == "delete" for at in simulation.schedule):
            # Clients of object stores can't delete an object on a condition.
            return None
        return f"{rule}: {wrong}"
    return again(write, place, simulation, done, sorted([*killed, *failed], key=order.index))


def again(write: Write, place: str, simulation: Simulation, done: list[str], left: Sequence[str]) -> str | None:
    """Make the calls that were killed or failed again, as a user does; return which rule their outcome breaks."""
    waiting, refused = [name for name in left if write.adds or not done], 0
    call = write.call_again or write.call
    while waiting and refused < len(waiting):
        name = waiting.pop(0)
        calls = {name: (lambda rows=ROWS[name]: call(place, rows))}
        later = Simulation(Path(simulation.base), calls, (), simulation.clock + STOP, simulation.announces)
        outcome = later.run()[name]
        if isinstance(outcome, ResumeError | StoreInUseError):
            # The other run has to be made again first.
            waiting.append(name)
            refused += 1
            continue
        maybe = [each for each in left if each not in (*done, name)]
        if isinstance(outcome, FileExistsError) and compare(write, place, [name], maybe, partial=False) is None:
            # It was killed when nothing was left to do.
            claims = [each for each in leftovers(place) if each.endswith(".claim")]
            return None if not claims else f"rule 4: {name} again: {outcome}"
        if isinstance(outcome, BaseException):
            return f"rule 4: {name} again: {type(outcome).__name__}: {outcome}"
        refused = 0
        done = [*done, name]
        wrong = compare(write, place, done, maybe, partial=False)
        if wrong is not None:
            return f"rule 4: {name} again: {wrong}"
        waiting = waiting if write.adds else []
        # A claim waits for the call that it answers; the next run removes temporary files and folders without a run.
        kept = [each for each in leftovers(place) if not each.endswith((".claim", ".partial", ".tmp"))]
        # The shards of appended rows are part of the group.
        kept = [each for each in kept if ".gone/" not in each and ".dask_tfrecord.appends/" not in each]
        if kept and len(simulation.actors) == 1:
            return f"rule 4: {name} again leaves {kept}"
    return f"rule 4: {waiting} are refused for ever" if waiting else None


def leftovers(place: str) -> list[str]:
    """List what runs keep next to an output."""
    fs, inside = fsspec.url_to_fs(place)
    return [name for name in fs.find(inside) if "/.dask" in name.removeprefix(inside)]


def compare(write: Write, place: str, done: Sequence[str], maybe: Sequence[str], *, partial: bool) -> str | None:
    """Return what readers find that they must not find, when other calls may have succeeded."""
    allowed = write.allowed(done, maybe)
    for reader, rows in write.read(place).items():
        found = "error" if isinstance(rows, str) else rows
        if write.gap and (partial or (write.removes_first and not done)) and found == "error":
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


# -- Zarr: a column of numbers, and one of lists, which is two arrays


def with_lists(rows: list[int], name: str = "x") -> dtf.Dataset:
    lists = {f"{name}s": dtf.VarLenFeature("int64")}
    return dtf.Dataset.from_arrays({name: np.array(rows), f"{name}s": [[row] * (row % 3) for row in rows]}, lists)


def checked(rows: Any, lists: Any) -> list[int]:
    """Return rows if their lists belong to them."""
    found = [int(row) for row in rows]
    return found if [[*map(int, each)] for each in lists] == [[row] * (row % 3) for row in found] else [0]


def read_group(place: str, *, consolidated: Sequence[bool] = (True,)) -> dict[str, Found]:
    """Return what several readers find: the rows of the first columns, and of those that calls have added."""
    import xarray as xr
    import zarr

    path = f"{place}/s.zarr"

    def rows_of(columns: Any, lists_of: Callable[[str], Any]) -> Iterator[int]:
        yield from checked(columns["x"], lists_of("xs"))
        for rows in ROWS.values():
            if (name := f"c{rows[0]}") in columns:
                yield from rows if checked(columns[name], lists_of(f"{name}s")) == rows[: len(OLD)] else [0]

    def ours() -> Iterator[int]:
        found = dtf.from_zarr(path).compute(scheduler="synchronous")
        return rows_of(found, lambda name: found[name])

    def foreign(arrays: Any) -> Iterator[int]:
        def lists(name: str) -> list[Any]:
            values, splits = (np.asarray(arrays[f"{name}.{part}"][:]) for part in ("values", "row_splits"))
            return np.split(values, splits[1:-1])

        return rows_of({name: np.asarray(arrays[name][:]) for name in arrays if "." not in name}, lists)

    found = {"from_zarr": result(ours), "zarr": result(lambda: foreign(zarr.open_group(path, mode="r")))}
    for each in consolidated:
        name = "xarray" if each else "xarray, without consolidated metadata"
        found[name] = result(lambda each=each: foreign(xr.open_zarr(path, chunks=None, consolidated=each)))
    return found


def read_whole(place: str) -> dict[str, Found]:
    """Return what readers find without consolidated metadata, too, which see appended rows array by array."""
    return read_group(place, consolidated=(True, False))


def new_group(place: str, rows: list[int]) -> None:
    with_lists(rows).to_zarr(f"{place}/s.zarr", chunks=4, resume=True)


def replaced_group(place: str, rows: list[int]) -> None:
    with_lists(rows).to_zarr(f"{place}/s.zarr", chunks=4, mode="w")


def continued_group(place: str, rows: list[int]) -> None:
    """Continue the replacement that was killed, or begin it again."""
    try:
        new_group(place, rows)
    except (ResumeError, FileExistsError):
        replaced_group(place, rows)


def appended_rows(place: str, rows: list[int]) -> None:
    with_lists(rows).to_zarr(f"{place}/s.zarr", append_dim="record", chunks=4, resume=True)


def unresumed_rows(place: str, rows: list[int]) -> None:
    # Such a run discards the plan of a dead one, where `resume` refuses that of other rows.
    with_lists(rows).to_zarr(f"{place}/s.zarr", append_dim="record", chunks=4)


def rows_in_shards(place: str, rows: list[int]) -> None:
    grid = {"chunks": 2, "shards": 4}
    with_lists(rows).to_zarr(f"{place}/s.zarr", append_dim="record", consolidated=False, resume=True, **grid)  # type: ignore[arg-type]


def read_rows(place: str) -> dict[str, Found]:
    """Return what our reader finds: others see the arrays of a store without consolidated metadata grow in turn."""
    return {"from_zarr": read_group(place, consolidated=())["from_zarr"]}


def old_group(place: str) -> None:
    appended_rows(place, OLD)


def added_columns(place: str, rows: list[int]) -> None:
    # The names of the columns say which call has added them.
    with_lists(rows[: len(OLD)], f"c{rows[0]}").to_zarr(f"{place}/s.zarr", mode="a", resume=True)


# -- a commit of Icechunk, whose client announces no operation on files: a step is a call of its session or store


def session_of(place: str) -> Any:
    import icechunk

    storage = icechunk.local_filesystem_storage(f"{place}/i")
    return icechunk.Repository.open_or_create(storage).writable_session("main")


def committed_rows(place: str, rows: list[int]) -> None:
    dataset(rows).to_zarr(session_of(place), append_dim="record", chunks=4)


def replaced_commit(place: str, rows: list[int]) -> None:
    dataset(rows).to_zarr(session_of(place), chunks=3, mode="w")


def old_commit(place: str) -> None:
    committed_rows(place, OLD)


def read_commit(place: str) -> dict[str, Found]:
    import icechunk
    import zarr

    storage = icechunk.local_filesystem_storage(f"{place}/i")
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


def files_like(place: str, pattern: str) -> list[bytes]:
    """Return the contents of files; raise FileNotFoundError without one."""
    fs, inside = fsspec.url_to_fs(place)
    paths = sorted(name for name in fs.glob(f"{inside}/{pattern}") if "/." not in name.removeprefix(inside))
    if not paths:
        raise FileNotFoundError(pattern)
    return [fs.cat_file(path) for path in paths]


def write_split(place: str, rows: list[int], mode: Any = "a") -> None:
    described = {"name": "n", "version": "1.0.0", "split": "train"}
    dataset(rows).to_tfrecord(f"{place}/n/1.0.0", tfds=described, mode=mode, records_per_shard=3)


def old_split(place: str) -> None:
    write_split(place, OLD)


def read_split(place: str) -> dict[str, Found]:
    def described() -> Iterator[int]:
        # As TensorFlow Datasets does: files and numbers of records come from the description.
        (split,) = json.loads(files_like(place, "n/1.0.0/dataset_info.json")[0])["splits"]
        lengths = [int(each) for each in split["shardLengths"]]
        of = f"-of-{len(lengths):05d}" if "X_OF_Y" in split["filepathTemplate"] else ""
        for number, length in enumerate(lengths):
            (data,) = files_like(place, f"n/1.0.0/n-train.tfrecord-{number:05d}{of}")
            found = [payloads()[payload] for payload in frames(data)]
            yield from found if len(found) == length else [0]

    def ours() -> Any:
        return dtf.read_tfrecord(f"{place}/n/1.0.0", split="train")["x"].compute(scheduler="synchronous")

    return {"description": result(described), "read_tfrecord": result(ours)}


TEMPLATE = "p-{shard:05d}.tfrecord"


def write_shards(place: str, rows: list[int], mode: Any) -> None:
    dataset(rows).to_tfrecord(f"{place}/t/{TEMPLATE}", mode=mode, records_per_shard=3, index=True)


def old_shards(place: str) -> None:
    write_shards(place, OLD, "a")


def read_shards(place: str) -> dict[str, Found]:
    def foreign() -> Iterator[int]:
        for data in files_like(place, "t/p-*.tfrecord"):
            yield from (payloads()[payload] for payload in frames(data))

    def ours() -> Any:
        features = {"x": dtf.FixedLenFeature((), "int64")}
        return dtf.read_tfrecord(f"{place}/t/p-*.tfrecord", features)["x"].compute(scheduler="synchronous")

    return {"frames": result(foreign), "read_tfrecord": result(ours)}


def write_parquet(place: str, rows: list[int], mode: Any) -> None:
    # A file is a chunk.
    dtf.Dataset.from_arrays({"x": da.from_array(np.array(rows), chunks=3)}).to_parquet(f"{place}/q", mode=mode)


def old_parquet(place: str) -> None:
    write_parquet(place, OLD, "a")


def read_parquet(place: str) -> dict[str, Found]:
    from pyarrow import parquet

    def foreign() -> Iterator[int]:
        for data in files_like(place, "q/*.parquet"):
            yield from parquet.read_table(io.BytesIO(data))["x"].to_pylist()

    return {"pyarrow": result(foreign)}


# -- jobs: each call takes all steps; a repeated call continues the job that it finds


@cache
def shards_of(first: int) -> dtf.Dataset:
    """Return the rows of a call, which programs read from files."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    rows = next(each for each in (OLD, *ROWS.values()) if each[0] == first)
    with_lists(rows).to_tfrecord(folder / "{shard}.tfrecord", records_per_shard=3)
    return dtf.read_tfrecord(folder, dict(with_lists(rows).schema), chunks="shard")


def finish(opened: Callable[[], Any], begin: Callable[[], Any]) -> None:
    """Begin a job unless there is one that is not finished, write its two parts, and finish it."""
    try:
        job = opened()
        if job.status().complete:
            job = begin()
    except (FileNotFoundError, ResumeError):
        job = begin()
    for part in range(2):
        job.write(part, 2)
    job.finish()


def job_of_shards(place: str, rows: list[int]) -> None:
    names, kept = f"{place}/t/{TEMPLATE}", shards_of(rows[0])[["x"]]
    finish(
        lambda: dtf.TFRecordJob.open(names),
        lambda: dtf.TFRecordJob.begin(kept, names, parts=2, records_per_shard=3, mode="w"),
    )


def job_of_copies(place: str, rows: list[int]) -> None:
    names, read = f"{place}/t/{TEMPLATE}", shards_of(rows[0]).origin["files"]
    finish(
        lambda: dtf.TFRecordJob.open(names),
        lambda: dtf.TFRecordJob.begin_copy(read, names, parts=2, columns=["x"], mode="w"),
    )


def job_of_parquet(place: str, rows: list[int]) -> None:
    kept = shards_of(rows[0])[["x"]]
    finish(
        lambda: dtf.ParquetJob.open(f"{place}/q"),
        lambda: dtf.ParquetJob.begin(kept, f"{place}/q", parts=2, mode="w"),
    )


def job_of_group(place: str, rows: list[int]) -> None:
    path = f"{place}/s.zarr"
    finish(
        lambda: dtf.ZarrJob.open(path),
        lambda: dtf.ZarrJob.begin(shards_of(rows[0]), path, parts=2, chunks=4, mode="w"),
    )


def job_of_rows(place: str, rows: list[int]) -> None:
    job = dtf.ZarrJob.begin(shards_of(rows[0]), f"{place}/s.zarr", parts=2, append_dim="record", chunks=4, resume=True)
    for part in range(2):
        job.write(part)
    job.finish()


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


def write_lerobot(place: str, rows: list[int], mode: Any) -> None:
    episodes(rows[0]).to_lerobot(f"{place}/l", fps=10, episodes_per_file=1, mode=mode, resume=mode != "w")


def old_lerobot(place: str) -> None:
    write_lerobot(place, OLD, "a")


def read_lerobot(place: str) -> dict[str, Found]:
    from pyarrow import parquet

    def rows_of(part: str, count: int) -> list[dict[str, Any]]:
        tables = [parquet.read_table(io.BytesIO(data)) for data in files_like(place, f"l/{part}/*/*.parquet")]
        rows = [row for table in tables for row in table.to_pylist()][:count]
        if len(rows) < count:
            raise ValueError("rows are missing")
        return rows

    def foreign() -> list[int]:
        info = json.loads(files_like(place, "l/meta/info.json")[0])
        frames, episodes = rows_of("data", info["total_frames"]), rows_of("meta/episodes", info["total_episodes"])
        tasks = parquet.read_table(io.BytesIO(files_like(place, "l/meta/tasks.parquet")[0])).to_pydict()
        numbers = dict(zip(tasks["task_index"], tasks["task"], strict=True))
        rows = [int(np.ravel(frame["action"])[0]) for frame in frames]
        stats = json.loads(files_like(place, "l/meta/stats.json")[0])["action"]
        found = int(np.ravel(stats["count"])[0]), int(np.ravel(stats["max"])[0])
        of_episodes = [
            (episode["episode_index"], frame)
            for episode in episodes
            for frame in range(episode["dataset_from_index"], episode["dataset_to_index"])
        ]
        described = (
            # Users normalise by the statistics of all frames, and of these alone.
            found == (len(rows), max(rows))
            and of_episodes == [(frame["episode_index"], frame["index"]) for frame in frames]
            and all(numbers[frame["task_index"]] == "t" for frame in frames)
        )
        return rows if described else [0]

    return {"pyarrow": result(foreign)}


def in_mode(write: Callable[[str, list[int], Any], object], mode: str) -> Callable[[str, list[int]], object]:
    return lambda place, rows: write(place, rows, mode)


def elsewhere(write: Write) -> Write:
    """Return a write to an object store, where a group that will be replaced is removed first."""
    removes = write.call is replaced_group
    return replace(write, name=f"{write.name} in a store", in_store=True, removes_first=removes)


_NEW_GROUP = Write("new group", new_group, read_whole)
_GROUP = Write("replaced group", replaced_group, read_whole, old_group, gap=True)
_NEW_SHARDS = Write("new shards", in_mode(write_shards, "w-"), read_shards, by_files=True)
_MORE_SHARDS = Write("added shards", in_mode(write_shards, "a"), read_shards, old_shards, adds=True, by_files=True)
_SHARDS = Write("replaced shards", in_mode(write_shards, "w"), read_shards, old_shards, by_files=True)
_MORE_OF_SPLIT = Write("added split", write_split, read_split, old_split, adds=True, gap=True)
_SPLIT = Write("replaced split", in_mode(write_split, "w"), read_split, old_split, gap=True)
_ROWS = Write("appended rows", appended_rows, read_group, old_group, adds=True)
_UNRESUMED_ROWS = replace(_ROWS, name="rows without resume", call=unresumed_rows, call_again=appended_rows)
_SHARDED_ROWS = Write("rows in shards", rows_in_shards, read_rows, lambda place: rows_in_shards(place, OLD), adds=True)
_MORE_OF_LEROBOT = Write("added LeRobot", in_mode(write_lerobot, "a"), read_lerobot, old_lerobot, adds=True, gap=True)
_COLUMNS = Write("added columns", added_columns, read_group, old_group, adds=True)
_PARQUET = Write("replaced Parquet", in_mode(write_parquet, "w"), read_parquet, old_parquet, by_files=True)
WRITES = {
    write.name: write
    for write in (
        _NEW_GROUP,
        _GROUP,
        replace(_GROUP, name="replaced group, resumed", call_again=continued_group),
        _ROWS,
        Write("first rows", appended_rows, read_group, adds=True),
        _SHARDED_ROWS,
        _UNRESUMED_ROWS,
        Write("committed rows", committed_rows, read_commit, old_commit, adds=True, announces=steps_of_commits),
        Write("replaced commit", replaced_commit, read_commit, old_commit, announces=steps_of_commits),
        _COLUMNS,
        _NEW_SHARDS,
        _SHARDS,
        _MORE_SHARDS,
        _SPLIT,
        _MORE_OF_SPLIT,
        Write("new Parquet", in_mode(write_parquet, "w-"), read_parquet, by_files=True),
        _PARQUET,
        Write("added Parquet", in_mode(write_parquet, "a"), read_parquet, old_parquet, adds=True, by_files=True),
        Write("new LeRobot", in_mode(write_lerobot, "w-"), read_lerobot),
        Write("replaced LeRobot", in_mode(write_lerobot, "w"), read_lerobot, old_lerobot, gap=True),
        _MORE_OF_LEROBOT,
        replace(_SHARDS, name="job of shards", call=job_of_shards),
        replace(_SHARDS, name="job of copies", call=job_of_copies),
        replace(_PARQUET, name="job of Parquet", call=job_of_parquet),
        Write("job of a group", job_of_group, read_group, old_group, gap=True),
        replace(_ROWS, name="job of appended rows", call=job_of_rows),
        *map(elsewhere, (_NEW_GROUP, _GROUP, _UNRESUMED_ROWS, _SHARDED_ROWS, _COLUMNS)),
        *map(elsewhere, (_SHARDS, _MORE_SHARDS, _SPLIT, _MORE_OF_SPLIT, _MORE_OF_LEROBOT)),
    )
}
