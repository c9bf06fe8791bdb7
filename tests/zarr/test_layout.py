"""The layout of stores: names of arrays, dimensions, rows of write units, and the rows that tasks read for them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.any_columns import FEATURES, any_features, dataset_of, rows_like
from support.store_round_trip import assert_identity

import dask_tfrecord as dtf
from dask_tfrecord.features import Feature, FixedLenFeature
from dask_tfrecord.settings import Limits, replaced_limits
from dask_tfrecord.stores.zarr.plan import plan_tasks, plan_units

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
