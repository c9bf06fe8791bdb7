"""The layout of stores, as pure values: names, grids, write units and the rows that are read for them."""

from __future__ import annotations

import math
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.any_columns import FEATURES, any_features, listed, rows_like

import dask_tfrecord as dtf
from dask_tfrecord.arrays.sources import Source
from dask_tfrecord.columns.blocks import Block, BytesBlock, rows_of, zero_rows
from dask_tfrecord.columns.user_blocks import conform
from dask_tfrecord.features import FixedLenFeature, VarLenFeature
from dask_tfrecord.schema import Schema
from dask_tfrecord.settings import Limits, replaced_limits
from dask_tfrecord.stores.units import BorderCounts, Levels, count_items, flatten_block, is_flat, shapes_of
from dask_tfrecord.stores.zarr import plan
from dask_tfrecord.stores.zarr.plan import (
    RowGrid,
    WriteTask,
    WriteUnit,
    ZarrLayout,
    array_name,
    plan_single_tasks,
    plan_tasks,
    plan_units,
    zarr_layout,
)

PARTS = ("values", "row_splits", "row_splits_1", "row_splits_12", "byte_splits", "shapes", "item_shapes")
# Letters that names are confused by.
NASTY = st.text(st.sampled_from("/.%_ 2EFa:*zarrjson\\\n\x00é"), max_size=8)
WORDS = st.lists(
    st.sampled_from(["", *PARTS, "shape", "x", ".", "..", "%", "zarr.json", "zarr", "json", "__", "c"]),
    max_size=4,
).map("/".join)


# ---------------------------------------------------------------------------------------------------------- names


@given(st.sets(NASTY | WORDS, min_size=1, max_size=12))
def test_names_can_stand_in_any_store_and_no_two_arrays_share_one(features: set[str]) -> None:
    names = {feature: array_name(feature) for feature in features}
    arrays = [*names.values(), *(f"{name}.{part}" for name in names.values() for part in PARTS)]
    assert len(set(arrays)) == (1 + len(PARTS)) * len(features)
    for array in arrays:
        assert array
        assert not set(array) & set('/\\<>:"|?*')
        assert not any(ord(char) < 32 for char in array)
        assert not array.startswith("__")
        assert array.strip(".")
        assert array != "zarr.json"
        assert not array.endswith(" ")


@pytest.mark.parametrize(
    ("feature", "name"),
    [
        ("label", "label"),
        ("image/encoded", "image.encoded"),
        ("größe", "größe"),
        ("a.b", "a%2Eb"),
        ("a%b", "a%25b"),
        ("", "%"),
        ("/", "%2F"),
        ("x/values", "x%2Fvalues"),
        ("x/shapes", "x%2Fshapes"),
        ("x/row_splits_3", "x%2Frow_splits_3"),
        ("x.shape", "x%2Eshape"),
        ("x/shape", "x.shape"),
        ("values", "values"),
        ("zarr.json", "zarr%2Ejson"),
        ("zarr/json", "zarr%2Fjson"),
        ("__reserved", "%5F_reserved"),
        ("tab\t", "tab%09"),
        ("end ", "end%20"),
    ],
)
def test_what_names_become(feature: str, name: str) -> None:
    assert array_name(feature) == name


# ---------------------------------------------------------------------------------------------------------- units

SCHEMA = Schema(FEATURES)


class Held(Source):
    """Rows in memory, read in spans; requests are logged."""

    rows = None

    def __init__(self, blocks: dict[str, Block]) -> None:
        self.blocks = blocks
        self.asked: list[tuple[int, int]] = []

    def read(self, names: Any, key: Any, out: Any = None) -> Any:
        raise NotImplementedError

    def read_spans(self, names: Any, spans: Any, out: Any = None) -> Any:
        for start, stop in spans:
            self.asked.append((start, stop))
            yield {name: rows_of(self.blocks[name], start, stop) for name in names}


@st.composite
def flat_rows(draw: st.DrawFn) -> dict[str, Block]:
    """Rows of the flat features, some of them long and many of them empty."""
    count = draw(st.integers(0, 40))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    return {name: rows_like(feature, count, rng) for name, feature in SCHEMA.items() if is_flat(feature)}


@st.composite
def layouts(draw: st.DrawFn, stack: ExitStack) -> tuple[ZarrLayout, dict[str, Block]]:
    """A layout on small grids of odd sizes, and the rows it was counted from."""
    small = {
        "read_nbytes": [1, 400, 100_000],
        "granule_nbytes": [1, 300, 100_000],
        "probe_rows": [1, 3, 64],
        "write_unit_nbytes": [8, 56, 500],
        "chunk_nbytes": [8, 24],
        "flat_chunk_nbytes": [1, 100, 100_000],
        "min_write_tasks": [1, 8, 256],
    }
    stack.enter_context(replaced_limits(**{name: draw(st.sampled_from(values)) for name, values in small.items()}))
    blocks = draw(flat_rows())
    count = len(blocks["bytes"])
    chunk = draw(st.integers(1, 12))
    grid = RowGrid(chunk, chunk * draw(st.sampled_from([1, 1, 2, 3])), draw(st.sampled_from([1, 5, 1000])))
    cuts = sorted({0, count, *draw(st.lists(st.integers(0, count), max_size=3))})
    held = Held(blocks)
    every = grid.unit, draw(st.integers(1, grid.unit))
    tallies = [count_items(span, SCHEMA, every, grid.most, held) for span in pairwise(cuts)]
    assert all(stop - start <= grid.most for start, stop in held.asked)
    return zarr_layout(SCHEMA, count, grid, BorderCounts.concatenate(SCHEMA, tallies)), blocks


def expected(blocks: dict[str, Block], feature: str, part: str) -> NDArray[Any]:
    """Return the expected entries of a flat array."""
    flat: Any = blocks[feature]
    if part in ("shapes", "item_shapes"):
        return shapes_of(flat)
    arrays: dict[str, NDArray[Any]] = {}
    while not isinstance(flat, np.ndarray):
        name = "row_splits" if not arrays else f"row_splits_{len(arrays)}"
        if isinstance(flat, BytesBlock):
            arrays["byte_splits" if arrays else name] = flat.splits
        else:
            arrays[name] = flat.row_splits
        flat = flat.values
    return {**arrays, "values": flat}[part]


@pytest.mark.slow
@given(st.data())
def test_every_entry_is_written_by_one_unit_from_rows_that_hold_it(data: st.DataObject) -> None:
    with ExitStack() as stack:
        planned, blocks = data.draw(layouts(stack))
        found = list(plan_units(planned, SCHEMA))
        # Some may be there already.
        missing = [unit for unit in found if data.draw(st.integers(0, 9)) or len(found) > 50]
        jobs = [*plan_tasks(planned, missing)]
        single = [*plan_single_tasks(planned, missing)]
    for spec in planned.arrays:
        if spec.part != "dense":
            assert spec.shape == expected(blocks, spec.feature, spec.part).shape
        written = np.zeros(spec.shape[0], int)
        writers: dict[int, int] = {}
        for number, unit in enumerate(found):
            if unit.array is not None and unit.array != spec:
                continue
            if unit.array is None and not spec.by_rows:
                continue
            start, stop = written_by(unit, spec, planned.nrows)
            written[start:stop] += 1
            for chunk in range(start // spec.unit, math.ceil(stop / spec.unit)) if stop > start else ():
                assert writers.setdefault(chunk, number) == number, (spec.name, chunk)
        assert (written == 1).all(), spec
        assert spec.unit % spec.chunk == 0
    items = {
        (name, row): items_in(rows_of(block, 0, row)) for name, block in blocks.items() for row in range(len(block) + 1)
    }
    for unit in found:
        check_rows(unit, blocks, items)
    assert [job.units for job in single] == [(unit,) for unit in missing]
    assert sorted(unit.number for job in jobs for unit in job.units) == [unit.number for unit in missing]
    for job in (*jobs, *single):
        check_reading(job, planned.grid.most)


def written_by(unit: WriteUnit, spec: plan.ArraySpec, nrows: int) -> tuple[int, int]:
    """Entries of an array that a unit writes."""
    if unit.array is not None or spec.part in ("dense", "shapes"):
        return unit.start, unit.stop
    feature = SCHEMA[spec.feature]
    per_row = 1 if feature.ragged_rank or feature.own_shapes else math.prod(feature.item_shape)
    return unit.start * per_row, unit.stop * per_row + (unit.stop == nrows)


def check_reading(job: WriteTask, most: int) -> None:
    """Check that a task reads the rows of its units once, in order, and no others."""
    assert all(before[1] <= after[0] for before, after in pairwise(job.spans))
    assert all(0 < stop - start <= most for start, stop in job.spans)
    read = [row for span in job.spans for row in range(*span)]
    assert set(read) == {row for unit in job.units for row in range(unit.first, unit.past)}
    for unit in job.units:
        covered = [span for span in job.spans if span[0] < unit.past and span[1] > unit.first]
        assert all(unit.first <= start and stop <= unit.past for start, stop in covered)


def check_rows(unit: WriteUnit, blocks: dict[str, Block], items: dict[tuple[str, int], tuple[int, ...]]) -> None:
    """Check the item counts of a unit at its first row and past its last row."""
    first, past = unit.first, unit.past
    if unit.array is None:
        assert (first, past) == (unit.start, unit.stop)
    for name, before in unit.before.items():
        assert (before, unit.after[name]) == (items[name, first], items[name, past])
    if unit.array is not None:
        spec = unit.array
        at = first_entry(unit)
        entries = expected(blocks, spec.feature, spec.part)
        held = expected({spec.feature: rows_of(blocks[spec.feature], first, past)}, spec.feature, spec.part)
        # The last split of an array belongs to no row.
        final = "splits" in spec.part
        own, stop = len(held) - final, min(unit.stop, len(entries) - final)
        assert at <= unit.start
        assert stop <= at + own


def items_in(block: Any) -> tuple[int, ...]:
    """Items of each level of a block, counted from the outside in."""
    found = [len(block)]
    while not isinstance(block, np.ndarray):
        ends = block.splits if isinstance(block, BytesBlock) else block.row_splits
        found.append(int(ends[-1]))
        block = block.values
    return tuple(found)


def first_entry(unit: WriteUnit) -> int:
    """Entries before the first row that is read."""
    assert unit.array is not None
    feature, part, before = SCHEMA[unit.array.feature], unit.array.part, unit.before[unit.array.feature]
    if part == "byte_splits":
        return before[-2] * math.prod(feature.item_shape)
    if part == "item_shapes":
        return before[1]
    return before[-1] if part == "values" else before[int(part.removeprefix("row_splits_"))]


@given(flat_rows(), st.integers(0, 40), st.integers(0, 40))
def test_blocks_are_taken_apart_and_put_together_again(blocks: dict[str, Block], start: int, count: int) -> None:
    for name, block in blocks.items():
        levels = Levels.from_feature(SCHEMA[name])
        start = min(start, len(block))
        part = rows_of(block, start, min(start + count, len(block)))
        splits, values = flatten_block(part)
        shapes = shapes_of(part) if levels.shapes else None
        made = levels.to_block(SCHEMA[name], len(part), splits, values, shapes)
        assert type(made) is type(part)
        assert made.shape == part.shape
        assert repr(listed(np.asarray(made))) == repr(listed(np.asarray(part)))
        items = levels.items(part)
        assert tuple(level[-1] for level in items) == items_in(part)
        # All buffers, less the ends that belong to no row.
        assert levels.nbytes(items)[-1] == part.nbytes - 8 * len(splits)


def test_a_group_without_rows_still_has_splits() -> None:
    empty = {name: zero_rows(feature) for name, feature in SCHEMA.items() if is_flat(feature)}
    counts = count_items((0, 0), SCHEMA, (5, 5), 5, Held(empty))
    planned = zarr_layout(SCHEMA, 0, RowGrid(5, 5, 5), BorderCounts.concatenate(SCHEMA, [counts]))
    assert [(unit.start, unit.stop) for unit in plan_units(planned, SCHEMA) if unit.array is None] == [(0, 0)]
    assert {spec.shape[0] for spec in planned.arrays if "splits" in spec.part} == {1}
    assert {spec.shape[0] for spec in planned.arrays if "splits" not in spec.part} == {0}


def test_units_of_prime_size_are_read_in_pieces_all_the_same() -> None:
    schema = Schema({"image": FixedLenFeature((), "bytes")})
    image = bytes(100_000)
    rows = conform(schema["image"], np.array([image] * 101, object), "image")
    counts = count_items((0, 101), schema, (101, 101), 1000, Held({"image": rows}))
    planned = zarr_layout(schema, 101, RowGrid(101, 101, 1000), BorderCounts.concatenate(schema, [counts]))
    found = list(plan_units(planned, schema))
    for unit in found:
        if unit.array is not None:
            assert (unit.past - unit.first) * len(image) <= (unit.stop - unit.start) + 2 * (600 << 10)
    for job in plan_tasks(planned, found):
        assert all((stop - start) * len(image) <= Limits().read_nbytes for start, stop in job.spans)


SMALL_AND_LARGE = Schema({"id": FixedLenFeature((), "bytes"), "image": FixedLenFeature((32, 32), "float32")})


@pytest.mark.parametrize(("sizes", "most"), [((14, 14), 1.0), ((8, 20), 1.3)], ids=["of one size", "of any size"])
def test_small_values_beside_large_rows_do_not_make_tasks_read_on(
    tmp_path: Path, sizes: tuple[int, int], most: float
) -> None:
    rng = np.random.default_rng(0)
    ids = [bytes(size) for size in rng.integers(sizes[0], sizes[1] + 1, 2000).tolist()]
    dtf.to_tfrecord({"id": ids, "image": np.zeros((len(ids), 32, 32), np.float32)}, tmp_path / "shard")
    ds = dtf.read_tfrecord(tmp_path / "shard", SMALL_AND_LARGE)
    found = ds.plan_zarr(chunks=100)._conversion.layout
    read = sum(stop - start for job in plan_tasks(found, [*plan_units(found, ds.schema)]) for start, stop in job.spans)
    assert len(ids) <= read <= most * len(ids)


# ---------------------------------------------------------------------------------------------------- description


@given(st.dictionaries(WORDS, any_features(), min_size=1, max_size=4).map(Schema) | st.just(SCHEMA))
def test_dimensions_are_no_arrays_and_of_one_size(schema: Schema) -> None:
    flat = {
        name: np.zeros((2, 1 + len(Levels.from_feature(feature).splits)), np.int64) for name, feature in schema.items()
    }
    arrays = zarr_layout(
        schema, 7, RowGrid(2, 4, 4), BorderCounts(np.array([0, 7]), flat, np.zeros(2, np.int64))
    ).arrays
    names = [array.name for array in arrays]
    assert len(set(names)) == len(names)
    sizes: dict[str, int] = {}
    for array in arrays:
        assert len(array.dimensions) == len(set(array.dimensions)) == len(array.shape)
        for dimension, size in zip(array.dimensions, array.shape, strict=True):
            assert sizes.setdefault(dimension, size) == size
            assert dimension not in names


def test_how_many_rows_a_unit_has() -> None:
    # The public functions choose rows from sizes that would need gigabytes of records.
    default_rows, unit, most = plan._default_rows, Limits().write_unit_nbytes, plan.SPAN_NBYTES
    assert default_rows(unit, 8, 8, 8) == default_rows(unit, 8, 16, 16) == unit // 8
    # Columns of a wide table share four units of memory, not one.
    assert default_rows(unit, 8, 800, 800) == 4 * unit // 800
    # A label next to images: the task that writes labels and splits has to read the images.
    assert default_rows(unit, 8, 16, 100_016) == most // 100_016
    assert default_rows(unit, 8, 16, 1 << 40) == default_rows(unit, 1 << 40, 1 << 40, 1 << 40) == 1
    assert default_rows(unit, 0, 0, 0) == unit
    assert default_rows(unit // 8, 8, 16, 100_016) == most // 8 // 100_016


def test_short_flat_arrays_have_short_shards() -> None:
    # The index of a shard has 16 bytes for each chunk it could hold.
    schema = Schema({"x": VarLenFeature("int64")})
    counts = BorderCounts(np.array([0, 2]), {"x": np.array([[0, 0], [2, 3]])}, np.array([0, 40]))
    values = zarr_layout(schema, 2, RowGrid(1, 2, 2), counts).arrays[0]
    assert values.unit // values.chunk == 1
