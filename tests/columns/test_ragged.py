"""`ragged` and `padded` for every kind of row; size and pickling of blocks."""

from __future__ import annotations

import math
import pickle
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from numpy.typing import NDArray
from oracle import write_oracle
from support.any_columns import FEATURES, dataset_of, every_column, listed, rows_like
from support.few import mostly_slow
from support.images import by_pillow
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.blocks import ArraysBlock, BytesBlock, RaggedBlock, block_nbytes
from dask_tfrecord.errors import FeatureError, SchemaError
from dask_tfrecord.features import Feature
from dask_tfrecord.rows.graph import Chunk

SIZES = (7, 0, 1, 13, 4)
ROWS = [name for name, feature in FEATURES.items() if feature.ragged_rank and not feature.own_shapes]
ARRAYS = [name for name, feature in FEATURES.items() if feature.own_shapes and not feature.ragged_rank]


@pytest.fixture(scope="module")
def every() -> dtf.Dataset:
    return every_column(SIZES)


def nested(values: Any, *splits: Any) -> list[Any]:
    """Return nested rows of values, by the definition of row splits."""
    rows = listed(values)
    for ends in splits[::-1]:
        rows = [rows[start:stop] for start, stop in pairwise(ends.tolist())]
    return rows


@pytest.mark.parametrize("name", mostly_slow(ROWS, 3))
def test_values_and_row_splits(every: dtf.Dataset, name: str) -> None:
    feature = every.schema[name]
    for way in (every, every.persist()):
        values, *splits = way.ragged(name)
        assert len(splits) == feature.ragged_rank
        assert splits[0].shape == (sum(SIZES) + 1,)
        assert all(ends.dtype == np.int64 and math.isnan(ends.shape[0]) for ends in splits[1:])
        assert (values.dtype, values.shape[1:]) == (feature.item_dtype, feature.item_shape)
        found, *ends = dask.compute(values, *splits)
        assert found.dtype == feature.item_dtype
        assert all(view[0] == 0 and view.dtype == np.int64 for view in ends)
        assert repr(nested(found, *ends)) == repr(listed(way[name].compute()))


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_their_own_shapes(every: dtf.Dataset, name: str) -> None:
    values, splits, shapes = every.ragged(name)
    axes = every.schema[name].own_shapes
    assert (splits.shape, shapes.shape) == ((sum(SIZES) + 1,), (sum(SIZES), axes))
    found, ends, sizes = dask.compute(values, splits, shapes)
    assert found.ndim == 1
    for row, wanted in enumerate(every[name].compute()):
        made = found[ends[row] : ends[row + 1]].reshape(sizes[row])
        assert made.dtype == wanted.dtype
        assert repr(made.tolist()) == repr(wanted.tolist())


# ------------------------------------------------------------------------------------------------------- padded


def test_a_row_that_is_too_long_is_named_with_its_record(tmp_path: Path) -> None:
    feature = {"v": dtf.VarLenFeature("int64")}
    dtf.to_tfrecord(
        {"v": [[1], [2], [], [3, 4, 5]]}, tmp_path / "{shard}.tfrecord", records_per_shard=2, features=feature
    )
    second = str(tmp_path / "1.tfrecord")
    ds = dtf.read_tfrecord(tmp_path, feature, chunks=3)
    for way in (ds, ds.rows[1:], ds.rows[[3, 0]], ds.map_blocks(lambda blocks: blocks)):
        with pytest.raises(FeatureError, match="'v' holds 3 values, but padded") as caught:
            way.padded("v", 2).compute()
        assert caught.value.place is not None
        assert (caught.value.place.file, caught.value.place.record, caught.value.place.feature) == (second, 1, "v")
    with pytest.raises(FeatureError, match=f"{re.escape(second)}: row 1 of chunk 1: feature 'v' holds 3 values"):
        dtf.read_tfrecord(tmp_path, feature, counts=None, chunks="shard").padded("v", 2).compute()


def test_assigned_columns_are_padded_and_flat() -> None:
    ds = dtf.Dataset.from_arrays({"n": np.arange(2)}).assign(v=[[1], [2, 3]])
    assert ds.padded("v", 2).compute().tolist() == [[1, 0], [2, 3]]
    assert [array.compute().tolist() for array in ds.ragged("v")] == [[1, 2, 3], [0, 1, 3]]


def padded(rows: Any, lengths: tuple[int, ...], inner: tuple[int, ...], value: Any, dtype: Any) -> NDArray[Any]:
    """Pad row by row."""
    out = np.empty((len(rows), *lengths, *inner), dtype)
    out[...] = value
    for number, row in enumerate(rows):
        for place, item in enumerate(row if len(lengths) == 1 else padded(row, lengths[1:], inner, value, dtype)):
            out[number, place] = item
    return out


@pytest.mark.parametrize("name", mostly_slow(ROWS, 3))
def test_padded_to_the_longest(every: dtf.Dataset, name: str) -> None:
    feature = every.schema[name]
    _, *splits = dask.compute(*every.ragged(name))
    lengths = tuple(int(np.diff(ends).max()) for ends in splits)
    value: Any = {"O": b"?", "T": "?"}.get(feature.item_dtype.kind, 7)
    array = every.padded(name, lengths if len(lengths) > 1 else lengths[0], value)
    assert array.shape == (sum(SIZES), *lengths, *feature.item_shape)
    wanted = padded(every[name].compute(), lengths, feature.item_shape, value, feature.item_dtype)
    found = array.compute()
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert (found == wanted).all() if found.dtype.kind in "OT" else found.tobytes() == wanted.tobytes()
    assert repr(array[5:9].compute()) == repr(found[5:9])
    for level in range(len(lengths)):
        short = (*lengths[:level], lengths[level] - 1, *lengths[level + 1 :])
        longest = np.flatnonzero(np.diff(splits[level]) == lengths[level])
        for ends in splits[:level][::-1]:
            longest = np.searchsorted(ends, longest, side="right") - 1
        rows = "|".join(map(str, longest))
        with pytest.raises(
            FeatureError, match=f"record ({rows}): feature '{name}' holds {lengths[level]} .*but padded"
        ):
            every.padded(name, short if len(short) > 1 else short[0]).compute()


@pytest.mark.parametrize(
    ("dtype", "fits", "refused"),
    [
        ("uint8", [0, 255, True, 3.0], [-1, 256, 0.5, np.inf, 1j, "x"]),
        ("uint64", [2**64 - 1, np.uint64(2**63)], [-1, 2**64, 1e300]),
        ("int8", [-128, np.float32(127)], [128, -129]),
        ("bool", [True, False, 1, 0.0], [2, -1, 0.5]),
        ("float16", [1 / 3, np.nan, -np.inf, 65504], [1e6, 2**70, 1j]),
        ("float64", [1e300, -0.0], [b"", [1.0]]),
        ("complex64", [1j, complex(np.nan, 1), 2, np.inf], [1e300, "x"]),
        ("bfloat16", [1.5, 1e38, np.nan], [1e300, 1j]),
    ],
)
def test_paddings_of_every_kind_of_number(dtype: str, fits: list[Any], refused: list[Any]) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    feature = dtf.RawFeature((-1,), dtype)
    values = np.zeros(3, feature.item_dtype)
    dataset = dataset_of({"x": RaggedBlock(values, np.array([0, 0, 3]))}, {"x": feature}, (1, 1))
    for value in [*fits, None]:
        found = dataset.padded("x", 4, value).compute()
        wanted = np.asarray(0 if value is None else value).astype(feature.item_dtype)
        assert found.dtype == wanted.dtype
        assert [item.tobytes() for item in found[0]] == [wanted.tobytes()] * 4
    for value in refused:
        with pytest.raises(ValueError, match=f"does not fit {dtype}, the dtype of 'x'"):
            dataset.padded("x", 4, value)


def test_columns_that_cannot_be_padded(every: dtf.Dataset) -> None:
    arguments: list[tuple[str, Any, type[Exception], str]] = [
        ("nested", 3, ValueError, r"'nested' has 2 levels of rows.*give a tuple of as many lengths; got length=3"),
        ("ragged", (3, 3), ValueError, "got length="),
        ("nested", (3, -1), ValueError, "0 or more values"),
        ("image", 3, SchemaError, "of arrays: batches"),
    ]
    for name, length, kind, message in arguments:
        with pytest.raises(kind, match=message):
            every.padded(name, length)
    for name in ("dense", "steps", "text", "names"):
        with pytest.raises(SchemaError, match="with the same shape in all rows"):
            every.ragged(name)


# ------------------------------------------------------------------------------- size and pickling of blocks


def buffers(block: Any) -> list[NDArray[Any]]:
    """Return all arrays of a block."""
    if isinstance(block, np.ndarray):
        return [block]
    ends = block.splits if isinstance(block, BytesBlock) else block.row_splits
    return [*buffers(block.values), ends, *([block.shapes] if isinstance(block, ArraysBlock) else [])]


# Columns of flat buffers. NumPy stores strings outside of the array, and pickles times into the stream.
FLAT = [
    name
    for name, feature in FEATURES.items()
    if (feature.ragged_rank or feature.own_shapes or feature.is_bytes) and feature.item_dtype.kind not in "TmM"
]


@pytest.mark.parametrize("name", mostly_slow(FLAT, 3))
def test_blocks_pickle_as_their_buffers(name: str) -> None:
    feature = FEATURES[name]
    for rows in (50, 500):
        block = rows_like(feature, rows, np.random.default_rng(1))
        arrays = buffers(block)
        out: list[pickle.PickleBuffer] = []
        stream = pickle.dumps(block, protocol=5, buffer_callback=out.append)
        # One out-of-band buffer per array, sharing its memory; the stream itself lacks the values.
        memory = [np.frombuffer(buffer.raw(), np.uint8) for buffer in out]
        assert len(memory) == len(arrays)
        for array in arrays:
            assert not array.nbytes or sum(np.shares_memory(array, view) for view in memory) == 1
        assert sum(view.nbytes for view in memory) == sum(array.nbytes for array in arrays)
        assert len(stream) < 1500
        made = pickle.loads(stream, buffers=out)
        assert type(made) is type(block)
        assert repr(listed(np.asarray(made))) == repr(listed(np.asarray(block)))
        # For dask, a block or a chunk is as large as its buffers.
        weight = sum(array.nbytes for array in arrays)
        assert block_nbytes(block) == weight
        assert weight <= sys.getsizeof(block) < weight + 1000
        assert weight <= sys.getsizeof(Chunk({name: block})) < weight + 2000
        # Rows that share the memory of a block have sizes of their own.
        sizes = [sys.getsizeof(block.rows(row, row + 1)) for row in range(50)]
        assert sum(sizes) < sys.getsizeof(block) + 50 * 1000


def test_computed_rows_share_memory_without_overlap(tmp_path: Path) -> None:
    lists = [list(range(row % 5)) for row in range(30)]
    dtf.to_tfrecord({"x": [np.array(each, np.int64) for each in lists]}, tmp_path / "x.tfrecord")
    ds = dtf.read_tfrecord(tmp_path / "x.tfrecord", {"x": dtf.VarLenFeature("int64")}, chunks=7)
    rows = ds.compute()["x"]
    rows[9][:] = -1
    assert [row.tolist() for row in rows] == [*lists[:9], [-1] * 4, *lists[10:]]
    # Rows of a lazy array own their memory, because most of a chunk may be dropped.
    assert all(row.base is None for row in ds["x"][::3].compute())


@pytest.mark.parametrize(
    ("feature", "weight"),
    [
        (dtf.RawFeature((-1, 2), "complex64"), 960 + 8),
        (dtf.ImageFeature((-1, 10, 10, 3)), 3 * 300 + 8),
        (dtf.ImageFeature(), 300 + 8 + 24),
    ],
    ids=str,
)
def test_partitions_are_planned_by_the_size_of_rows(feature: Feature, weight: int, tmp_path: Path) -> None:
    encoded = [bytes(960)]
    if isinstance(feature, dtf.ImageFeature):
        encoded = [by_pillow(np.zeros((10, 10, 3), np.uint8), "png")] * (3 if feature.ragged_rank else 1)
    write_oracle(tmp_path / "shard", [example(x=encoded)] * 300)
    chunks = dtf.read_tfrecord(tmp_path / "shard", {"x": feature}, chunks="30 kB").chunks
    assert 0.8 * 30_000 < max(chunks) * weight <= 30_000
