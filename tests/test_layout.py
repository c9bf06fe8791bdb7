"""The layout of stores, as pure values: names, grids, write units and the rows that are read for them."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dask_tfrecord import testing
from dask_tfrecord.columns.blocks import Block, BytesBlock, RaggedBlock, rows_of
from dask_tfrecord.columns.conform import conform
from dask_tfrecord.features import FixedLenFeature, RawFeature, TextFeature, VarLenFeature
from dask_tfrecord.schema import Schema
from dask_tfrecord.stores import feed, layout
from dask_tfrecord.stores.feed import count_rows
from dask_tfrecord.stores.layout import Layout, RowGrid, Tally, Unit, array_name, default_rows, is_flat, zarr_layout

PARTS = ("values", "row_splits", "byte_splits")
# Letters that names are confused by.
NASTY = st.text(st.sampled_from("/.%_ 2EFa:*zarrjson\\\n\x00é") | st.characters(codec="utf-8"), max_size=8)
WORDS = st.lists(
    st.sampled_from(
        ["", "values", "row_splits", "byte_splits", "x", ".", "..", "%", "zarr.json", "zarr", "json", "__", "c"]
    ),
    max_size=4,
).map("/".join)


# ---------------------------------------------------------------------------------------------------------- names


@given(st.sets(NASTY | WORDS, min_size=2, max_size=12))
@settings(max_examples=500, deadline=None)
def test_no_two_arrays_share_a_name(features: set[str]) -> None:
    names = {feature: array_name(feature) for feature in features}
    arrays = [*names.values(), *(f"{name}.{part}" for name in names.values() for part in PARTS)]
    assert len(set(arrays)) == 4 * len(features)


@given(NASTY | WORDS)
@settings(max_examples=500, deadline=None)
def test_names_can_stand_in_any_store(feature: str) -> None:
    name = array_name(feature)
    for array in (name, *(f"{name}.{part}" for part in PARTS)):
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

SCHEMA = Schema(
    {
        "dense": FixedLenFeature((2,), "float32"),
        "raw": RawFeature((3,), "uint8"),
        "text": TextFeature(),
        "bytes": FixedLenFeature((), "bytes"),
        "pair": FixedLenFeature((2,), "bytes"),
        "none": FixedLenFeature((0,), "bytes"),
        "ragged": VarLenFeature("int64"),
        "boxes": VarLenFeature("float32", shape=(-1, 4)),
        "words": VarLenFeature("bytes"),
        "grid": VarLenFeature("bytes", shape=(-1, 2)),
    }
)


class Held:
    """Rows that are there, given in pieces; what was asked for is noted."""

    def __init__(self, blocks: dict[str, Block]) -> None:
        self.blocks = blocks
        self.asked: list[tuple[int, int]] = []

    def pieces(self, names: Any, spans: Any, out: Any = None) -> Any:
        for start, stop in spans:
            self.asked.append((start, stop))
            yield {name: rows_of(self.blocks[name], start, stop) for name in names}


@st.composite
def flat_rows(draw: st.DrawFn) -> dict[str, Block]:
    """Rows of the flat features, some of them long and many of them empty."""
    count = draw(st.integers(0, 40))
    length = st.sampled_from([0, 0, 0, 1, 2, 3, 30])
    rows: dict[str, Block] = {}
    for name, feature in SCHEMA.items():
        if not is_flat(feature):
            continue
        inner = feature.shape[1:] if isinstance(feature, VarLenFeature) else feature.shape
        array: Any = (
            np.empty((count, *inner), object) if isinstance(feature, FixedLenFeature) else np.empty(count, object)
        )
        if isinstance(feature, FixedLenFeature):
            array.reshape(-1)[:] = [bytes(draw(length)) for _ in range(array.size)]
        for row in range(count if isinstance(feature, VarLenFeature) else 0):
            values: Any = np.zeros((draw(length), *inner), "int64" if feature.dtype == "bytes" else feature.dtype)
            if feature.dtype == "bytes":
                values = values.astype(object)
                values.reshape(-1)[:] = [bytes(draw(length)) for _ in range(values.size)]
            array[row] = values
        rows[name] = conform(feature, array, name)
    return rows


@st.composite
def layouts(draw: st.DrawFn, monkeypatch: pytest.MonkeyPatch) -> tuple[Layout, dict[str, Block]]:
    """A layout on small grids of odd sizes, and the rows it was counted from."""
    for module in (layout, feed):
        monkeypatch.setattr(module, "PIECE_NBYTES", draw(st.sampled_from([1, 400, 100_000])))
    monkeypatch.setattr(feed, "GRANULE_NBYTES", draw(st.sampled_from([1, 300, 100_000])))
    monkeypatch.setattr(feed, "_PROBE_ROWS", draw(st.sampled_from([1, 3, 64])))
    monkeypatch.setattr(layout, "UNIT_NBYTES", draw(st.sampled_from([8, 56, 500])))
    monkeypatch.setattr(layout, "CHUNK_NBYTES", draw(st.sampled_from([8, 24])))
    blocks = draw(flat_rows())
    count = len(blocks["bytes"])
    chunk = draw(st.integers(1, 12))
    grid = RowGrid(chunk, chunk * draw(st.sampled_from([1, 1, 2, 3])), draw(st.sampled_from([1, 5, 1000])))
    cuts = sorted({0, count, *draw(st.lists(st.integers(0, count), max_size=3))})
    held = Held(blocks)
    tallies = [count_rows(span, SCHEMA, grid.unit, grid.most, lambda: held) for span in pairwise(cuts)]
    assert all(stop - start <= grid.most for start, stop in held.asked)
    return zarr_layout(SCHEMA, count, grid, Tally.joined(SCHEMA, tallies)), blocks


def expected(blocks: dict[str, Block], feature: str, part: str) -> NDArray[Any]:
    """What a flat array has to hold."""
    block = blocks[feature]
    if isinstance(block, BytesBlock):
        return block.values if part == "values" else block.splits
    assert isinstance(block, RaggedBlock)
    if part == "row_splits":
        return block.row_splits
    if isinstance(block.values, BytesBlock):
        return block.values.values if part == "values" else block.values.splits
    return block.values


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_every_entry_is_written_by_one_unit_from_rows_that_hold_it(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        planned, blocks = data.draw(layouts(monkeypatch))
        units = list(planned.units(SCHEMA))
        most = planned.grid.most
    for spec in planned.arrays:
        if spec.part != "dense":
            assert spec.shape == expected(blocks, spec.feature, spec.part).shape
        written = np.zeros(spec.shape[0], int)
        writers: dict[int, int] = {}
        for number, unit in enumerate(units):
            if unit.array is not None and unit.array != spec:
                continue
            if unit.array is None and spec.part in ("values", "byte_splits"):
                continue
            start, stop = written_by(unit, spec, planned.nrows)
            written[start:stop] += 1
            for chunk in range(start // spec.unit, math.ceil(stop / spec.unit)) if stop > start else ():
                assert writers.setdefault(chunk, number) == number, (spec.name, chunk)
        assert (written == 1).all(), spec
        assert spec.unit % spec.chunk == 0
    for unit in units:
        check_rows(unit, planned, blocks, most)


def written_by(unit: Unit, spec: layout.ArraySpec, nrows: int) -> tuple[int, int]:
    """Entries of an array that a unit writes."""
    if unit.array is not None or spec.part == "dense":
        return unit.start, unit.stop
    per_row = math.prod(SCHEMA[spec.feature].shape) if isinstance(SCHEMA[spec.feature], FixedLenFeature) else 1
    return unit.start * per_row, unit.stop * per_row + (unit.stop == nrows)


def check_rows(unit: Unit, planned: Layout, blocks: dict[str, Block], most: int) -> None:
    """The rows that are read are consecutive, in pieces, and begin and end with the values that the unit says."""
    assert all(before[1] == after[0] for before, after in pairwise(unit.spans))
    assert all(0 < stop - start <= most for start, stop in unit.spans) or not planned.nrows
    first, past = (unit.spans[0][0], unit.spans[-1][1]) if unit.spans else (0, 0)
    if unit.array is None:
        assert (first, past) == (unit.start, unit.stop)
    for name, (values, nbytes) in unit.before.items():
        read = rows_of(blocks[name], first, past)
        count, size = len(read), 0
        flat = read
        if isinstance(read, RaggedBlock):
            flat, count = read.values, len(read.values)
        elif isinstance(read, BytesBlock):
            count = len(read) * math.prod(read.shape[1:])
        if isinstance(flat, BytesBlock):
            size = int(flat.splits[-1])
        assert unit.past[name] == (values + count, nbytes + size)
    if unit.array is not None:
        at, entries = first_entry(unit), expected(blocks, unit.array.feature, unit.array.part)
        read = rows_of(blocks[unit.array.feature], first, past)
        held = expected({unit.array.feature: read}, unit.array.feature, unit.array.part)
        # The last split of an array belongs to no row.
        own = len(held) - (unit.array.part != "values")
        stop = min(unit.stop, len(entries) - (unit.array.part != "values"))
        assert at <= unit.start
        assert stop <= at + own


def first_entry(unit: Unit) -> int:
    """Entries before the first row that is read."""
    assert unit.array is not None
    feature = SCHEMA[unit.array.feature]
    values, nbytes = unit.before[unit.array.feature]
    if unit.array.part == "byte_splits":
        return values * math.prod(feature.shape[1:])
    return nbytes if feature.dtype == "bytes" else values


def test_a_group_without_rows_still_has_splits() -> None:
    empty = {
        name: rows_of(conform(f, np.empty((0, *f.block_shape), object), name), 0, 0)
        for name, f in SCHEMA.items()
        if is_flat(f)
    }
    tally = count_rows((0, 0), SCHEMA, 5, 5, lambda: Held(empty))
    planned = zarr_layout(SCHEMA, 0, RowGrid(5, 5, 5), Tally.joined(SCHEMA, [tally]))
    assert [(unit.start, unit.stop) for unit in planned.units(SCHEMA) if unit.array is None] == [(0, 0)]
    assert {spec.shape[0] for spec in planned.arrays if spec.part.endswith("splits")} == {1}


def test_units_of_prime_size_are_read_in_pieces_all_the_same() -> None:
    schema = Schema({"image": FixedLenFeature((), "bytes")})
    image = bytes(100_000)
    rows = conform(schema["image"], np.array([image] * 101, object), "image")
    tally = count_rows((0, 101), schema, 101, 1000, lambda: Held({"image": rows}))
    planned = zarr_layout(schema, 101, RowGrid(101, 101, 1000), Tally.joined(schema, [tally]))
    for unit in planned.units(schema):
        assert all((stop - start) * len(image) <= 2 << 20 for start, stop in unit.spans)
        rows_read = unit.spans[-1][1] - unit.spans[0][0]
        if unit.array is not None:
            assert rows_read * len(image) <= (unit.stop - unit.start) + 2 * (600 << 10)


# ---------------------------------------------------------------------------------------------------- what it says


@given(testing.schemas(min_size=1))
@settings(max_examples=100, deadline=None)
def test_dimensions_are_no_arrays_and_of_one_size(schema: Schema) -> None:
    none = np.zeros(2, np.int64)
    flat = [name for name, feature in schema.items() if is_flat(feature)]
    tally = Tally(np.array([0, 7]), dict.fromkeys(flat, none), dict.fromkeys(flat, none), none)
    arrays = zarr_layout(schema, 7, RowGrid(2, 4, 4), tally).arrays
    names = [array.name for array in arrays]
    assert len(set(names)) == len(names)
    sizes: dict[str, int] = {}
    for array in arrays:
        assert len(array.dimensions) == len(set(array.dimensions)) == len(array.shape)
        for dimension, size in zip(array.dimensions, array.shape, strict=True):
            assert sizes.setdefault(dimension, size) == size
            assert dimension not in names


def test_how_many_rows_a_unit_has() -> None:
    unit, most = layout.UNIT_NBYTES, layout.SPAN_NBYTES
    assert default_rows(unit, 8, 8) == unit // 8
    # A label beside images: the task that writes labels and splits has to read the images.
    assert default_rows(unit, 16, 100_016) == most // 100_016
    assert default_rows(unit, 16, 1 << 40) == default_rows(unit, 1 << 40, 1 << 40) == 1
    assert default_rows(unit, 0, 0) == unit
    assert default_rows(unit // 8, 16, 100_016) == most // 8 // 100_016


def test_short_flat_arrays_have_short_shards() -> None:
    # The index of a shard has 16 bytes for each chunk it could hold.
    schema = Schema({"x": VarLenFeature("int64")})
    counts = {"x": np.array([0, 3])}
    tally = Tally(np.array([0, 2]), counts, {"x": np.zeros(2, np.int64)}, np.array([0, 40]))
    values = zarr_layout(schema, 2, RowGrid(1, 2, 2), tally).arrays[0]
    assert values.unit // values.chunk == 1
