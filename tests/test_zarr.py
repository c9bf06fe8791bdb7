"""Round trips through Zarr stores: written columns are read back unchanged, by every reader."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import pickle
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import oracle
import pytest
import zarr
import zarr.storage
from dask.callbacks import Callback
from dask.delayed import Delayed
from support.few import mostly_slow
from support.store_round_trip import assert_identity, assert_same, assert_same_array

import dask_tfrecord as dtf
from dask_tfrecord import messages
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.settings import Limits
from dask_tfrecord.stores.zarr import plan as planning
from dask_tfrecord.stores.zarr.plan import ZarrLayout, array_name

GOLDEN = (
    "scalars.tfrecord",
    "scalars_gzip.tfrecord.gz",
    "scalars_zlib.tfrecord.zlib",
    "one_record.tfrecord",
    "fixed_shapes.tfrecord",
    "varlen.tfrecord",
    "ragged.tfrecord",
    "decode_raw.tfrecord",
    "unicode_names.tfrecord",
    "empty_file.tfrecord",
    "wire_encodings.tfrecord",
)
SCHEMA = dtf.Schema(
    {
        "label": dtf.FixedLenFeature((), "int64"),
        "vector": dtf.FixedLenFeature((3,), "float32"),
        "array": dtf.RawFeature((2, 2), ">i2"),
        "title": dtf.TextFeature(),
        "image/encoded": dtf.FixedLenFeature((), "bytes"),
        "pair": dtf.FixedLenFeature((2,), "bytes"),
        "tokens": dtf.VarLenFeature("int64"),
        "boxes": dtf.VarLenFeature("float32", shape=(-1, 4)),
        "tokens/values": dtf.VarLenFeature("bytes"),
        "": dtf.VarLenFeature("bytes", shape=(-1, 2)),
    }
)
SIZES = (5, 0, 13, 1, 12)


def example(rng: random.Random) -> bytes:
    """A record that fits `SCHEMA`, in rows of differing length."""
    message = messages.Example()
    held = message.features.feature
    held["label"].int64_list.value.append(rng.randrange(-(2**63), 2**63))
    held["vector"].float_list.value.extend(rng.choice([0.0, -0.0, rng.random()]) for _ in range(3))
    held["array"].bytes_list.value.append(rng.randbytes(8))
    held["title"].bytes_list.value.append(rng.choice(["", "größe", "a\0", "long " * 9]).encode())
    held["image/encoded"].bytes_list.value.append(rng.randbytes(rng.randrange(40)))
    held["pair"].bytes_list.value.extend([rng.randbytes(rng.randrange(3)), b"\0"])
    held["tokens"].int64_list.value.extend(range(rng.choice([0, 1, 30])))
    held["boxes"].float_list.value.extend([rng.random()] * 4 * rng.randrange(3))
    held["tokens/values"].bytes_list.value.extend(rng.randbytes(rng.randrange(9)) for _ in range(rng.randrange(4)))
    if rng.random() < 0.5:
        held[""].bytes_list.value.extend([b"x" * rng.randrange(9)] * 2 * rng.randrange(4))
    return message.SerializeToString()


def write_shards(folder: Path, sizes: tuple[int, ...] = SIZES) -> str:
    rng = random.Random(7)
    for number, size in enumerate(sizes):
        oracle.write_oracle(folder / f"part-{number:05d}.tfrecord", [example(rng) for _ in range(size)])
    return str(folder / "part-*.tfrecord")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_shards(tmp_path_factory.mktemp("shards"))


@pytest.fixture
def ds(shards: str) -> dtf.Dataset:
    return dtf.read_tfrecord(shards, SCHEMA)


def files(store: Path) -> dict[str, bytes]:
    """Every file of a store but its own metadata, which differs from conversion to conversion."""
    found = {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}
    del found["zarr.json"]
    return found


# ------------------------------------------------------------------------------------------------- the same again


def corpus_examples(corpus: Path) -> Iterator[tuple[Path, int]]:
    """Every file of Examples with its number of records, by the index of the corpus."""
    for line in (corpus / "INDEX.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 8 and cells[5] == "Example":
            yield corpus / cells[0], int(cells[4])


@pytest.mark.slow
def test_corpus_files(corpus: Path, tmp_path: Path) -> None:
    seen = 0
    for path, records in corpus_examples(corpus):
        dataset = dtf.read_tfrecord(path, dtf.infer_schema(path, sample=None))
        assert dataset.nrows == records
        rows = records // 3 + 1
        assert_identity(dataset, tmp_path / f"{seen}.zarr", chunks=rows)
        if records < 100:
            assert_identity(
                dataset, tmp_path / f"{seen}-sharded.zarr", chunks=rows // 3 + 1, shards=2 * (rows // 3 + 1)
            )
        seen += 1
    assert seen == 28


@pytest.mark.parametrize(
    "grid",
    [
        {},
        {"chunks": 1},
        {"chunks": 4},
        {"chunks": 31},
        {"chunks": 1000},
        {"shards": 6},
        {"chunks": 3, "shards": 9},
        {"chunks": 7, "shards": 70},
        {"chunks": 5, "compressors": None},
    ],
    ids=str,
)
def test_chunks_that_divide_nothing(ds: dtf.Dataset, tmp_path: Path, grid: dict[str, Any]) -> None:
    back = assert_identity(ds, tmp_path / "store.zarr", **grid)
    unit = grid.get("shards", grid.get("chunks", 31))
    assert back.chunks == tuple(min(unit, 31 - start) for start in range(0, 31, unit))


@pytest.mark.parametrize("key", [slice(0, 0), slice(4, 5), slice(3, 29, 5), slice(None, None, -3), [30, 2, 2, -1, 7]])
def test_selections(ds: dtf.Dataset, tmp_path: Path, key: Any) -> None:
    picked = ds.rows[key][["tokens", "title", "pair", "label"]]
    back = assert_identity(picked, tmp_path / "store.zarr", chunks=2)
    assert_same(back.rows[[-1, 0]].compute(), picked.rows[[-1, 0]].compute()) if back.nrows else None


@pytest.mark.slow
def test_rows_of_a_store(ds: dtf.Dataset, tmp_path: Path) -> None:
    back = assert_identity(ds, tmp_path / "store.zarr", chunks=4)
    whole = ds.compute()
    for key in (slice(5, 19), slice(30, None, -4), [29, 3, 3, 17], np.arange(31) % 3 == 0):
        picked = back.rows[key]
        assert_same(picked.compute(), {name: array[key] for name, array in whole.items()})
        assert_identity(picked, tmp_path / "store.zarr", component="again", mode="w", chunks=3)
    assert_same_array(back["label"][3:9].compute(), whole["label"][3:9])
    assert_same(
        dict(zip(("pair", "title"), dask.compute(*back["pair", "title"]), strict=True)),
        back[["pair", "title"]].compute(),
    )


def test_persisted(ds: dtf.Dataset, tmp_path: Path) -> None:
    assert_identity(ds.persist(), tmp_path / "store.zarr", chunks=4)
    assert_identity(ds.persist().rows[3:25:2], tmp_path / "rows.zarr", chunks=5, shards=10)
    assert_identity(ds.rows[:0].persist(), tmp_path / "none.zarr")


def half(blocks: dict[str, Any]) -> dict[str, Any]:
    """Dense, text, bytes and ragged columns made of others, each row by itself."""
    tokens = blocks["tokens"]
    return {
        "vector": blocks["vector"] / np.float32(2),
        "title": np.strings.add(blocks["title"], "!"),
        "image": blocks["image/encoded"],
        "tokens": dtf.RaggedBlock(tokens.values[::-1] * 0 + 7, tokens.row_splits),
        "words": blocks["tokens/values"],
        "flag": blocks["label"] > 0,
    }


def test_mapped(ds: dtf.Dataset, tmp_path: Path) -> None:
    template = {
        "vector": ds.schema["vector"],
        "title": dtf.TextFeature(),
        "image": dtf.FixedLenFeature((), "bytes"),
        "tokens": ds.schema["tokens"],
        "words": dtf.VarLenFeature("bytes"),
        "flag": dtf.RawFeature((), "bool"),
    }
    back = assert_identity(ds.map_blocks(half, template), tmp_path / "store.zarr", chunks=4)
    assert back.schema == template
    again = back.map_blocks(
        lambda blocks: {"n": np.diff(blocks["tokens"].row_splits)}, {"n": dtf.FixedLenFeature((), "int64")}
    )
    assert_identity(again, tmp_path / "again.zarr", chunks=3)
    assert_identity(ds.persist().map_blocks(half, template), tmp_path / "persisted.zarr", chunks=5)


def test_assigned(ds: dtf.Dataset, tmp_path: Path) -> None:
    added = ds.assign(
        mean=ds["vector"].mean(axis=1),
        label=np.arange(31),
        cut=da.arange(31 * 6, chunks=50).reshape(31, 6).rechunk((4, 5)),
        text=np.array([f"row {row}" for row in range(31)], np.dtypes.StringDType()),
    )
    with pytest.warns(da.PerformanceWarning, match="'cut' is rechunked"):
        assert_identity(added, tmp_path / "store.zarr", chunks=4)
    assert_identity(added[["text", "tokens", "mean"]].rows[5:20], tmp_path / "rows.zarr", chunks=7)
    with pytest.warns(da.PerformanceWarning, match="'cut' is rechunked"):
        assert_identity(added.persist(), tmp_path / "persisted.zarr")


@pytest.mark.parametrize("grid", [{}, {"chunks": 3}, {"chunks": 2, "shards": 4}], ids=str)
def test_plain_arrays(tmp_path: Path, grid: dict[str, int]) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "f2": rng.random((11, 2, 3)).astype("f2"),
        "f8": da.from_array(rng.random((11, 9)), chunks=(4, 2)),
        "u4": da.arange(11, dtype="u4", chunks=5),
        "i2": np.arange(11, dtype="i2"),
        "c8": np.full(11, complex(-0.0, 0.0), "c8"),
        "minus": np.full((11, 2), -0.0, "f4"),
        "nan": np.full(11, np.nan).view("i8").__ior__(3).view("f8"),
        "bool": np.zeros(11, bool),
        "none": np.zeros((11, 0), "i8"),
        "text": np.array(["ä", "", "b\0"] + ["c"] * 8, np.dtypes.StringDType()),
    }
    with pytest.warns(da.PerformanceWarning, match="'f8' is rechunked|'u4' is rechunked"):
        assert dtf.to_zarr(arrays, tmp_path / "store.zarr", **grid) is None
    found = dtf.from_zarr(tmp_path / "store.zarr").compute()
    assert_same(found, {name: np.asarray(array) for name, array in arrays.items()})


def test_plain_arrays_without_rows(tmp_path: Path) -> None:
    arrays = {"x": np.zeros((0, 3)), "y": da.zeros(0, dtype="i8"), "t": np.zeros(0, np.dtypes.StringDType())}
    dtf.to_zarr(arrays, tmp_path / "store.zarr")
    back = dtf.from_zarr(tmp_path / "store.zarr")
    assert back.nrows == 0
    assert_same(back.compute(), {name: np.asarray(array) for name, array in arrays.items()})


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({}, "one or more arrays"),
        ({"x": np.zeros(3), "y": np.zeros(4)}, "4"),
        ({"x": np.array([1, "b"], object)}, "of no one feature"),
        ({"x": np.array([b"a", b"b"])}, "drops trailing zero bytes"),
        ({"x": np.array(1.0)}, "rows"),
        ({"x": np.zeros(3, "M8[s]")}, "no feature"),
    ],
)
def test_arrays_that_are_no_columns(tmp_path: Path, arrays: dict[str, Any], said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        dtf.to_zarr(arrays, tmp_path / "store.zarr")
    assert not (tmp_path / "store.zarr").exists()


# ------------------------------------------------------------------------------------------------ what others read


def test_the_layout_is_as_documented(ds: dtf.Dataset, tmp_path: Path) -> None:
    ds.to_zarr(tmp_path / "store.zarr", chunks=4)
    group = zarr.open_group(tmp_path / "store.zarr", mode="r")
    whole = ds.compute()
    assert set(group.array_keys()) == {
        *("label", "vector", "array", "title", "image.encoded.values", "image.encoded.row_splits"),
        *("pair.values", "pair.row_splits", "tokens.values", "tokens.row_splits", "boxes.values", "boxes.row_splits"),
        *("tokens%2Fvalues.values", "tokens%2Fvalues.row_splits", "tokens%2Fvalues.byte_splits"),
        *("%.values", "%.row_splits", "%.byte_splits"),
    }
    for name in ("label", "vector", "array", "title"):
        assert_same_array(np.asarray(group[name][:]), whole[name])
    for name in ("tokens", "boxes"):
        values, splits = group[f"{name}.values"][:], group[f"{name}.row_splits"][:]
        for row, (start, stop) in enumerate(itertools.pairwise(splits)):
            assert_same_array(values[start:stop], whole[name][row])
    for name in ("image/encoded", "pair"):
        data, splits = group[f"{array_name(name)}.values"][:].tobytes(), group[f"{array_name(name)}.row_splits"][:]
        found = [data[start:stop] for start, stop in itertools.pairwise(splits)]
        assert found == whole[name].ravel().tolist()
    for name in ("tokens/values", ""):
        path = array_name(name)
        data, ends = group[f"{path}.values"][:].tobytes(), group[f"{path}.byte_splits"][:]
        items = [data[start:stop] for start, stop in itertools.pairwise(ends)]
        splits = group[f"{path}.row_splits"][:]
        each = 2 if name == "" else 1
        for row, (start, stop) in enumerate(itertools.pairwise(splits * each)):
            assert items[start:stop] == whole[name][row].ravel().tolist()


def test_attributes_of_the_group(ds: dtf.Dataset, tmp_path: Path, shards: str) -> None:
    ds.to_zarr(tmp_path / "store.zarr")
    group = zarr.open_group(tmp_path / "store.zarr", mode="r", use_consolidated=True)
    noted: Any = group.attrs["dask_tfrecord"]
    assert (noted["complete"], noted["records"]) == (True, 31)
    assert dtf.Schema.from_json(json.dumps(noted["schema"])) == SCHEMA
    assert noted["source"]["files"] == sorted(map(str, Path(shards).parent.iterdir()))
    assert noted["source"]["sizes"] == [Path(file).stat().st_size for file in noted["source"]["files"]]
    assert group["tokens.values"].metadata.dimension_names == ("tokens.value",)  # type: ignore[union-attr]


def test_xarray_reads_it(ds: dtf.Dataset, tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    named = ds.assign(record=np.arange(31) * 2.0)
    named.to_zarr(tmp_path / "store.zarr", chunks=6)
    with xr.open_zarr(tmp_path / "store.zarr") as opened:
        assert not opened.coords  # what is a coordinate is read at once
        assert opened["vector"].dims == ("record%", "vector.dim_1")
        assert opened["boxes.values"].dims == ("boxes.value", "boxes.dim_1")
        assert opened.sizes["record%"] == 31
        assert opened["label"].chunksizes["record%"] == (6, 6, 6, 6, 6, 1)
        whole = named.compute()
        for name in ("label", "vector", "array", "title", "record"):
            assert_same_array(opened[name].to_numpy(), whole[name])
        assert opened["tokens.values"].to_numpy().tolist() == np.concatenate(list(whole["tokens"])).tolist()


def test_xarray_reads_the_record_dimension(tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    dtf.to_zarr({"x": np.zeros((4, 2, 3)), "t": np.array(["a"] * 4, np.dtypes.StringDType())}, tmp_path / "store.zarr")
    with xr.open_dataset(tmp_path / "store.zarr", engine="zarr") as opened:
        assert dict(opened.sizes) == {"record": 4, "x.dim_1": 2, "x.dim_2": 3}


# ------------------------------------------------------------------------------------------------ whoever writes it


class Busy(Callback):  # type: ignore[misc]
    """Notes which chunk files each task has written, where tasks run one at a time."""

    def __init__(self, store: Path) -> None:
        super().__init__(posttask=self._note)
        self.store = store
        self.seen = self._state()
        self.writers: dict[str, list[str]] = {}

    def _state(self) -> dict[str, tuple[int, int]]:
        stats = ((path, path.stat()) for path in self.store.rglob("*") if "c" in path.parts and path.is_file())
        return {str(path.relative_to(self.store)): (stat.st_ino, stat.st_mtime_ns) for path, stat in stats}

    def _note(self, key: Any, *_: Any) -> None:
        now = self._state()
        for name in now:
            if now[name] != self.seen.get(name):
                self.writers.setdefault(name, []).append(str(key))
        self.seen = now


@pytest.mark.parametrize("jobs", mostly_slow([1, 4, 256], 2))
@pytest.mark.parametrize("grid", [{"chunks": 4}, {"chunks": 2, "shards": 6}, {"chunks": 31}], ids=str)
def test_every_chunk_is_written_once_by_one_task(
    ds: dtf.Dataset, tmp_path: Path, grid: dict[str, int], jobs: int, set_limits: Callable[..., Limits]
) -> None:
    set_limits(write_unit_nbytes=64, chunk_nbytes=16, min_write_tasks=jobs)
    store = tmp_path / "store.zarr"
    written: Delayed = ds.to_zarr(store, **grid, compute=False)
    with Busy(store) as busy:
        written.compute(scheduler="sync")
    assert busy.writers
    assert {name: keys for name, keys in busy.writers.items() if len(keys) != 1} == {}
    group = zarr.open_group(store, mode="r")
    for name, array in group.arrays():
        counts = [math.ceil(size / unit) for size, unit in zip(array.shape, array.shards or array.chunks, strict=True)]
        assert sum(written.startswith(f"{name}/c") for written in busy.writers) == math.prod(counts)
    assert_same(dtf.from_zarr(store).compute(), ds.compute())


@pytest.fixture
def small_units(set_limits: Callable[..., Limits]) -> None:
    """Many units for a little data."""
    set_limits(write_unit_nbytes=100)


@pytest.mark.usefixtures("small_units")
def test_order_and_threads_do_not_change_the_store(
    ds: dtf.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds.to_zarr(tmp_path / "first.zarr", chunks=3, compute=False).compute(scheduler="sync")
    wanted = files(tmp_path / "first.zarr")
    assert len(wanted) > 100

    def shuffled(plan: ZarrLayout, missing: list[planning.WriteUnit]) -> list[planning.WriteTask]:
        # Units in shared tasks or in tasks of their own: the store is the same.
        found = list(rng.choice([planning.plan_tasks, planning.plan_single_tasks])(plan, missing))
        rng.shuffle(found)
        return found

    monkeypatch.setattr("dask_tfrecord.stores.zarr.write.plan_tasks", shuffled)
    for seed in range(4):
        rng = random.Random(seed)
        store = tmp_path / f"{seed}.zarr"
        with dask.config.set(scheduler="sync" if seed == 0 else "threads", num_workers=16):
            ds.to_zarr(store, chunks=3)
        assert files(store) == wanted


@pytest.mark.slow
@pytest.mark.usefixtures("small_units")
def test_processes_write_the_same_store(ds: dtf.Dataset, tmp_path: Path) -> None:
    ds.to_zarr(tmp_path / "threads.zarr", chunks=8)
    with dask.config.set(scheduler="processes", num_workers=2):
        ds.to_zarr(tmp_path / "processes.zarr", chunks=8)
        kept = ds.persist()
    assert files(tmp_path / "processes.zarr") == files(tmp_path / "threads.zarr")
    assert_identity(kept, tmp_path / "kept.zarr", chunks=8)


def test_flat_values_are_written_with_the_rows_in_which_they_begin(ds: dtf.Dataset, tmp_path: Path) -> None:
    plan = ds.plan_zarr(chunks=4)
    written = plan.to_zarr(tmp_path / "store.zarr", compute=False)
    with Busy(tmp_path / "store.zarr") as busy:
        written.compute(scheduler="sync")
    by_rows = {key for name, keys in busy.writers.items() if name.startswith("label/c") for key in keys}
    flat = {key for name, keys in busy.writers.items() if ".values/c" in name for key in keys}
    assert len(by_rows) == plan.tasks == math.ceil(plan.nrows / 4)
    assert flat <= by_rows


def test_conversions_run_within_a_running_event_loop(ds: dtf.Dataset, tmp_path: Path) -> None:
    async def convert(name: str) -> None:
        with dask.config.set(scheduler="sync"):
            ds.to_zarr(tmp_path / name)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, convert("store.zarr")).result()
    asyncio.run(convert("main.zarr"))
    assert files(tmp_path / "store.zarr") == files(tmp_path / "main.zarr")


def test_a_writer_travels(ds: dtf.Dataset, tmp_path: Path) -> None:
    written = ds.to_zarr(tmp_path / "store.zarr", chunks=8, compute=False)
    pickle.loads(pickle.dumps(written)).compute(scheduler="sync")
    assert_same(dtf.from_zarr(tmp_path / "store.zarr").compute(), ds.compute())


def test_relative_paths(ds: dtf.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written = ds.to_zarr("store.zarr", compute=False)
    back = dtf.from_zarr
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    written.compute()
    assert_same(back(tmp_path / "store.zarr").compute(), ds.compute())
    assert not list((tmp_path / "elsewhere").iterdir())


# ------------------------------------------------------------------------------------------------------ where to


@pytest.mark.parametrize("grid", [{"chunks": 4}, {"chunks": 2, "shards": 6}], ids=str)
def test_a_store_in_memory(ds: dtf.Dataset, grid: dict[str, int]) -> None:
    assert_identity(ds, zarr.storage.MemoryStore(), **grid)
    assert_identity(ds, {}, **grid)


def test_a_store_object(ds: dtf.Dataset, tmp_path: Path) -> None:
    assert_identity(ds, zarr.storage.LocalStore(tmp_path / "store.zarr"), chunks=4)
    assert_same(dtf.from_zarr(tmp_path / "store.zarr").compute(), ds.compute())


def test_urls(ds: dtf.Dataset, tmp_path: Path) -> None:
    assert_identity(ds, "memory://folder/store.zarr", component="a/b", chunks=4)
    assert_identity(ds, f"file://{tmp_path}/store.zarr", chunks=4)
    assert_same(dtf.from_zarr(tmp_path / "store.zarr").compute(), ds.compute())
    assert_identity(ds, zarr.storage.FsspecStore.from_url("memory://folder/other.zarr"), chunks=4)


def test_components_of_one_store(ds: dtf.Dataset, tmp_path: Path) -> None:
    store = tmp_path / "new" / "store.zarr"
    assert_identity(ds, store, component="train", chunks=4)
    assert_identity(ds.rows[:3], store, component="/val/first/")
    assert_same(dtf.from_zarr(store, component="train").compute(), ds.compute())
    root = zarr.open_group(store, mode="r")
    assert sorted(root.group_keys()) == ["train", "val"]
    assert_same(dtf.from_zarr(store, component="val/first").compute(), ds.rows[:3].compute())


@pytest.mark.parametrize("component", ["..", "a/../..", "./a"])
def test_components_outside_of_the_store_are_refused(ds: dtf.Dataset, tmp_path: Path, component: str) -> None:
    with pytest.raises(ValueError, match="within the store"):
        ds.to_zarr(tmp_path / "store.zarr", component=component)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "a"}, "mode is 'w-'"),
        ({"chunks": 0}, "chunks must be a number of rows"),
        ({"chunks": 2.5}, "chunks must be a number of rows"),
        ({"shards": True}, "shards must be a number of rows"),
        ({"chunks": 4, "shards": 6}, "6 rows are not a multiple of 4"),
    ],
)
def test_invalid_options(ds: dtf.Dataset, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ds.to_zarr(tmp_path / "store.zarr", **options)
    assert not list(tmp_path.iterdir())


def test_uncounted_rows_are_refused(shards: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="counts='auto'"):
        dtf.read_tfrecord(shards, SCHEMA, counts=None).to_zarr(tmp_path / "store.zarr")


# ----------------------------------------------------------------------------------------------------- how large


def test_units_follow_the_size_of_rows(tmp_path: Path) -> None:
    numbers = {"x": np.zeros(3_000_000, "i8")}
    dtf.to_zarr(numbers, tmp_path / "numbers.zarr")
    assert dtf.from_zarr(tmp_path / "numbers.zarr").chunks == (1_000_000,) * 3
    # The size of a string is the size of its characters.
    text = da.from_array(np.array(["x" * 10_000] * 4000, np.dtypes.StringDType()), chunks=1000)
    dtf.to_zarr({"text": text}, tmp_path / "text.zarr")
    assert dtf.from_zarr(tmp_path / "text.zarr").chunks[0] < 1000
    # Long rows of bytes, kept in memory: neither the splits nor the values want all of them at once.
    held = dtf.Dataset.from_arrays({"n": da.arange(4000, chunks=1000)})
    template = {"n": dtf.FixedLenFeature((), "int64"), "blob": dtf.VarLenFeature("int64")}
    held = held.map_blocks(
        lambda b: b | {"blob": dtf.RaggedBlock(np.zeros(5000 * len(b["n"]), "i8"), 5000 * np.arange(len(b["n"]) + 1))},
        template,
    )
    held.to_zarr(tmp_path / "held.zarr")
    assert 500 < dtf.from_zarr(tmp_path / "held.zarr").chunks[0] < 1000


def test_strings_count_when_records_are_cut_into_chunks(tmp_path: Path) -> None:
    payload = messages.Example()
    payload.features.feature["text"].bytes_list.value.append(b"x" * 10_000)
    oracle.write_oracle(tmp_path / "shard", [payload.SerializeToString()] * 300)
    ds = dtf.read_tfrecord(tmp_path / "shard", {"text": dtf.TextFeature()}, chunks="1 MiB")
    assert 3 <= ds.npartitions <= 4
    assert_identity(ds, tmp_path / "store.zarr", chunks=70)


def test_shards_of_a_prime_size_have_no_tiny_chunks(tmp_path: Path) -> None:
    dtf.to_zarr({"x": np.zeros((20_011, 64))}, tmp_path / "store.zarr", shards=10_007)
    (_, array), *_ = zarr.open_group(tmp_path / "store.zarr", mode="r").arrays()
    assert array.chunks[0] == 10_007


def test_a_function_receives_limited_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = messages.Example()
    payload.features.feature["image"].bytes_list.value.append(bytes(40_000))
    oracle.write_oracle(tmp_path / "shard", [payload.SerializeToString()] * 700)
    seen: list[int] = []

    def mean(blocks: dict[str, Any]) -> dict[str, Any]:
        seen.append(blocks["image"].nbytes)
        return {"mean": blocks["image"].mean(axis=1)}

    images = dtf.read_tfrecord(tmp_path / "shard", {"image": dtf.RawFeature((10_000,), "float32")})
    images.map_blocks(mean, {"mean": dtf.FixedLenFeature((), "float32")}).to_zarr(tmp_path / "store.zarr", chunks=700)
    assert max(seen) <= Limits().write_unit_nbytes


def test_other_selections_have_other_names(tmp_path: Path) -> None:
    dtf.to_zarr({"x": np.arange(5000)}, tmp_path / "s.zarr")
    ds = dtf.from_zarr(tmp_path / "s.zarr")
    one = [*range(0, 4000, 2)]
    other = [*one[:1000], *(row + 1 for row in one[1000:1100]), *one[1100:]]
    assert ds.rows[one]["x"].name != ds.rows[other]["x"].name
    assert ds.rows[one]["x"].name == dtf.from_zarr(tmp_path / "s.zarr").rows[one]["x"].name
