"""The layout of stores: names of arrays, dimensions, rows of write units, and the rows that tasks read for them."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.any_columns import FEATURES, any_features, dataset_of, rows_like
from support.faults import Faults, Killed
from support.store_round_trip import assert_identity, assert_same, files_of

import dask_tfrecord as dtf
from dask_tfrecord.features import Feature, FixedLenFeature
from dask_tfrecord.settings import Limits, replaced_limits
from dask_tfrecord.stores.zarr.layout import plan_tasks, plan_units

PARTS = ("values", "row_splits", "row_splits_1", "row_splits_12", "byte_splits", "shapes", "item_shapes")
# Letters and words that names are confused by.
NASTY = st.text(st.sampled_from("/.%_ 2EFa:*zarrjson\\\n\x00é"), max_size=8)
WORDS = st.lists(
    st.sampled_from(["", *PARTS, "shape", "x", ".", "..", "%", "zarr.json", "zarr", "json", "__", "c"]),
    max_size=4,
).map("/".join)
# Limits so small that few rows make many units, tasks, pieces and chunks.
SMALL = {
    "read_nbytes": [1, 400, 100_000],
    "item_count_interval_nbytes": [1, 300, 100_000],
    "probe_rows": [1, 3, 64],
    "write_unit_nbytes": [8, 56, 500],
    "chunk_nbytes": [8, 24],
    "flat_chunk_nbytes": [1, 100, 100_000],
    "min_write_tasks": [1, 8, 256],
    "small_rows_nbytes": [16, 100, 100_000],
}
LIMITS = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in SMALL.items()})


@settings(max_examples=settings().max_examples // 2)
@given(st.sets(NASTY | WORDS, min_size=1, max_size=12), st.data())
def test_names_can_stand_in_any_store_and_dimensions_are_no_arrays(names: set[str], data: st.DataObject) -> None:
    kinds = {name: data.draw(any_features()) for name in names}
    rng = np.random.default_rng(0)
    rows = {name: rows_like(feature, 3, rng) for name, feature in kinds.items()}
    with dask.config.set(scheduler="sync"):
        arrays = dataset_of(rows, kinds, [3]).plan_zarr().arrays
    found = [array.name for array in arrays]
    assert len(set(found)) == len(found) >= len(names)
    for name in found:
        assert not re.search(r'[/\\<>:"|?*\x00-\x1f]|^__| $|^\.*$|^zarr\.json$', name)
    sizes: dict[str, int] = {}
    for array in arrays:
        assert len(array.dimensions) == len(set(array.dimensions)) == len(array.shape)
        for dimension, size in zip(array.dimensions, array.shape, strict=True):
            assert sizes.setdefault(dimension, size) == size
            assert dimension not in found


NAMES = {
    "label": "label",
    "image/encoded": "image.encoded",
    "größe": "größe",
    "a.b": "a%2Eb",
    "a%b": "a%25b",
    "": "%",
    "/": "%2F",
    **{f"x/{part}": f"x%2F{part}" for part in ("values", "shapes", "row_splits_3")},
    "x.shape": "x%2Eshape",
    "x/shape": "x.shape",
    "values": "values",
    "zarr.json": "zarr%2Ejson",
    "zarr/json": "zarr%2Fjson",
    "__reserved": "%5F_reserved",
    "tab\t": "tab%09",
    "end ": "end%20",
}


def test_what_names_become() -> None:
    assert [array.name for array in dtf.plan_zarr({name: [1] for name in NAMES}).arrays] == list(NAMES.values())


@settings(max_examples=settings().max_examples // 4)
@given(st.data())
def test_any_layout_holds_what_was_written(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Units cut flat arrays anywhere: each reads the rows that hold its entries."""
    features: dict[str, Feature] = data.draw(
        st.dictionaries(NASTY | WORDS, any_features() | st.sampled_from([*FEATURES.values()]), min_size=1, max_size=3)
    )
    sizes = data.draw(st.lists(st.integers(0, 15), min_size=1, max_size=3))
    chunk = data.draw(st.integers(1, 12))
    shards = data.draw(st.sampled_from([None, chunk, 2 * chunk, 3 * chunk]))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    rows = {name: rows_like(feature, sum(sizes), rng) for name, feature in features.items()}
    with dask.config.set(scheduler="sync"), replaced_limits(**data.draw(LIMITS)):
        folder = tmp_path_factory.mktemp("store")
        assert_identity(dataset_of(rows, features, sizes), folder / "a.zarr", chunks=chunk, shards=shards)


SMALL_AND_LARGE = {"id": FixedLenFeature((), "bytes"), "image": FixedLenFeature((32, 32), "float32")}


@pytest.mark.parametrize(("sizes", "most"), [((14, 14), 1.0), ((8, 20), 1.3)], ids=["of one size", "of any size"])
def test_small_values_beside_large_rows_do_not_make_tasks_read_on(
    tmp_path: Path, sizes: tuple[int, int], most: float
) -> None:
    rng = np.random.default_rng(0)
    ids = [bytes(size) for size in rng.integers(sizes[0], sizes[1] + 1, 2000).tolist()]
    dtf.to_tfrecord({"id": ids, "image": np.zeros((len(ids), 32, 32), np.float32)}, tmp_path / "shard")
    spans = spans_of(dtf.read_tfrecord(tmp_path / "shard", SMALL_AND_LARGE), chunks=100)
    assert len(ids) <= sum(stop - start for start, stop in spans) <= most * len(ids)


def test_units_of_small_values_are_read_with_the_rows_of_a_task(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 40, (2, 8000)).tolist()
    columns = {name: [bytes(size) for size in sizes] for name, sizes in zip("ab", lengths, strict=True)}
    dtf.to_tfrecord(columns | {"label": np.arange(8000)}, tmp_path / "shard")
    with replaced_limits(flat_chunk_nbytes=2000, item_count_interval_nbytes=1000, write_unit_nbytes=20_000):
        ds = dtf.read_tfrecord(tmp_path / "shard")
        plan, spans = ds.plan_zarr(chunks=1000), spans_of(ds, chunks=1000)
        units = {array.name: array.shape[0] // array.chunks[0] for array in plan.arrays}
        assert min(units["a.values"], units["b.values"]) >= 3 * plan.tasks
        # Four reads of the rows of a task, one before them and one behind them.
        assert len(spans) <= 6 * plan.tasks
        ds.to_zarr(tmp_path / "store.zarr", chunks=1000)
    found = zarr.open_group(tmp_path / "store.zarr", mode="r")
    for name, values in columns.items():
        assert np.array_equal(found[f"{name}.values"][:], [*b"".join(values)])  # type: ignore[index,arg-type]


def test_units_of_prime_size_are_read_in_pieces_all_the_same(tmp_path: Path) -> None:
    image = bytes(100_000)
    dtf.to_tfrecord({"image": [image] * 101}, tmp_path / "shard")
    ds = dtf.read_tfrecord(tmp_path / "shard", {"image": SMALL_AND_LARGE["id"]})
    spans = spans_of(ds, chunks=101)
    assert all((stop - start) * len(image) <= Limits().read_nbytes for start, stop in spans)
    # A unit of values reads the rows that hold them, and some that it enters by.
    tasks = ds.plan_zarr(chunks=101).tasks
    assert sum(stop - start for start, stop in spans) <= 2 * 101 + 12 * tasks


def spans_of(ds: dtf.Dataset, **grid: Any) -> list[tuple[int, int]]:
    """Return the rows that all tasks of a conversion read."""
    layout = ds.plan_zarr(**grid)._conversion.layout
    return [
        span for job in plan_tasks(layout, [*plan_units(layout, ds.schema)], shares_reads=True) for span in job.spans
    ]


def test_how_many_rows_a_unit_has() -> None:
    def unit_rows(rows: int = 1 << 31, **shapes: tuple[int, ...]) -> int:
        many = {name: da.zeros((rows, *shape), np.int64, chunks=-1) for name, shape in shapes.items()}
        return dtf.plan_zarr(many).unit_rows

    unit = Limits().write_unit_nbytes
    assert unit_rows(a=()) == unit_rows(a=(), b=()) == unit // 8
    # Columns of a wide table share four units of memory, not one.
    wide = {f"column {number}": () for number in range(100)}
    assert unit_rows(400 * (4 * unit // 800), **wide) == 4 * unit // 800
    assert unit_rows(a=(), b=(1 << 40,)) == unit_rows(b=(1 << 40,)) == 1
    assert unit_rows(a=(0,)) == unit
    # A label next to images: the task that writes labels and splits has to read the images.
    labelled = {"label": np.arange(1000), "image": [bytes(1000)] * 1000}
    rows = 4 * (64 << 10) // 1016
    # Equal units, one row shorter for the final number of the splits.
    assert dtf.plan_zarr(labelled, chunks="64 KiB").unit_rows == math.ceil(1000 / math.ceil(1000 / rows)) - 1


def test_short_flat_arrays_have_short_shards() -> None:
    # The index of a shard has 16 bytes for each chunk it could hold.
    values = dtf.plan_zarr({"x": [[1], [2, 3]]}, chunks=1, shards=2).arrays[0]
    assert values.name == "x.values"
    assert values.shards is None or values.shards == values.chunks


COLUMNS_OF_ANY_SIZE = {
    "label": FixedLenFeature((), "int64"),
    "vector": FixedLenFeature((30,), "float32"),
    "image": FixedLenFeature((), "bytes"),
    "tokens": dtf.VarLenFeature("int64"),
}


def columns_of_any_size(rows: int, wide: int) -> dict[str, Any]:
    numbers = np.arange(rows)
    return {
        "label": numbers + 1,
        "vector": np.repeat(numbers + 1, 30).reshape(rows, 30).astype(np.float32),
        "image": [bytes([1 + number % 255]) * (wide + number % 7) for number in numbers.tolist()],
        "tokens": [[number + 1] * (number % 4) for number in numbers.tolist()],
    }


def assert_arrays(store: Path, columns: dict[str, Any], *, one_chunk_more: bool) -> None:
    """Assert what plain zarr and xarray read; only splits may have a chunk for the final number alone."""
    group = zarr.open_group(store, mode="r")
    rows, sizes = len(columns["label"]), {"row_splits": [*map(len, columns["tokens"])]}
    wanted = {
        "label": columns["label"],
        "vector": columns["vector"],
        "tokens.values": [token for row in columns["tokens"] for token in row],
        "tokens.row_splits": np.cumsum([0, *sizes["row_splits"]]),
        "image.values": [*b"".join(columns["image"])],
        "image.row_splits": np.cumsum([0, *map(len, columns["image"])]),
    }
    opened = xarray.open_zarr(store)
    for name, array in wanted.items():
        found: Any = group[name]
        assert np.array_equal(found[:], array)
        assert np.array_equal(opened[name].to_numpy(), array)
        chunks = -(-found.shape[0] // found.chunks[0])
        assert one_chunk_more or rows < 16 or chunks <= max(1, -(-rows // found.chunks[0])) or ".values" in name


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(st.data())
def test_any_chunks_hold_what_was_written_killed_divided_and_appended(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Chunks of several units of rows, as columns of small rows have: one task writes each, whatever fails."""
    folder = tmp_path_factory.mktemp("store")
    limits = {name: data.draw(st.sampled_from(values), name) for name, values in SMALL.items()}
    names = st.sampled_from([*COLUMNS_OF_ANY_SIZE])
    chunks = data.draw(
        st.none()
        | st.integers(1, 30)
        | st.sampled_from(["100 B", "1 kB"])
        | st.dictionaries(names, st.sampled_from([2, 4, 12, 48]), max_size=2),
        "chunks",
    )
    shards = data.draw(st.sampled_from([None, None, "2 kB"]) if not isinstance(chunks, int) else st.none(), "shards")
    options: dict[str, Any] = {"chunks": chunks, "shards": shards}
    columns = columns_of_any_size(data.draw(st.integers(0, 70), "rows"), data.draw(st.sampled_from([0, 90]), "wide"))
    rows = len(columns["label"])
    dtf.to_tfrecord(columns, f"{folder}/part-{{shard}}", features=COLUMNS_OF_ANY_SIZE, records_per_shard=23)
    with dask.config.set(scheduler="sync"), replaced_limits(**limits):
        ds = dtf.read_tfrecord(f"{folder}/part-*", COLUMNS_OF_ANY_SIZE) if rows else dataset_of_no_rows(columns)
        ds.to_zarr(folder / "one", **options)
        exact = chunks is None and shards is None
        assert_arrays(folder / "one", columns, one_chunk_more=not exact)
        wanted = files_of(folder / "one")
        target, at = folder / "killed", data.draw(st.integers(1, 300), "call that fails")
        with suppress(Killed), Faults(at, Killed, lambda path: str(path).startswith(str(target))).injected():
            ds.to_zarr(target, **options)
        ds.to_zarr(target, **options, resume=True)
        assert files_of(target) == wanted
        if rows:
            parts = data.draw(st.integers(1, 4), "parts")
            job = dtf.ZarrJob.begin(ds, folder / "job", parts=parts, **options)
            for part in data.draw(st.permutations(range(parts)), "order"):
                job.write(part)
            job.finish()
            assert files_of(folder / "job") == wanted
        cuts = sorted(data.draw(st.lists(st.integers(0, rows), max_size=3), "cuts"))
        grows = data.draw(st.booleans(), "grows")
        for number, (start, stop) in enumerate(pairwise([0, *cuts, rows])):
            kept: dict[str, Any] = {} if number else options
            append_dim = "record" if number or grows else None
            ds.rows[start:stop].to_zarr(folder / "grown", append_dim=append_dim, **kept)
        assert_arrays(folder / "grown", columns, one_chunk_more=True)
        assert_same(dtf.from_zarr(folder / "grown").compute(), ds.compute())


def dataset_of_no_rows(columns: dict[str, Any]) -> dtf.Dataset:
    return dtf.Dataset.from_arrays(columns, COLUMNS_OF_ANY_SIZE)


def test_labels_beside_images_are_few_chunks() -> None:
    """The layout of ImageNet: no unit, and no user's chunk of labels, takes more memory than its images need."""
    rows = 1_281_167
    image = da.zeros((rows, 224, 224, 3), dtype=np.uint8, chunks=(50, -1, -1, -1))
    arrays = {"image": image, "label": da.zeros(rows, dtype=np.int64, chunks=50)}
    for options, most in [({}, 200), ({"chunks": {"label": 100_000}}, 13), ({"shards": "64 MiB"}, 200)]:
        plan = dtf.plan_zarr(arrays, **options)
        chunks = {array.name: -(-rows // (array.shards or array.chunks)[0]) for array in plan.arrays}
        assert chunks["label"] <= most
        assert plan.nfiles == 3 + sum(chunks.values()) < 30_000
        assert f"{plan.nfiles:,} files" in repr(plan)
        per_thread = plan.memory.peak_nbytes - plan.memory.imports_nbytes - plan.memory.overhead_nbytes
        assert (
            per_thread / plan.memory.threads < 512 << 20 if "shards" in options else plan.memory.peak_nbytes < 1 << 30
        )
    more = dtf.plan_zarr({"image": da.zeros((20 * rows, 224, 224, 3), dtype=np.uint8, chunks=(50, -1, -1, -1))})
    assert more.arrays[0].shards is not None
    assert more.nfiles < 110_000
