"""Columns of every kind: features, rows of any sizes, data sets of them, and records that can store them."""

from __future__ import annotations

import io
import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

import dask_tfrecord as dtf
from dask_tfrecord.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock, splits_of, take_rows
from dask_tfrecord.features import Feature, Partition, RowLengths, UniformRowLength
from support.engine import da


def load_npy(value: bytes) -> Any:
    """Read a .npy file."""
    return np.load(io.BytesIO(value))


def dump_npy(array: Any) -> bytes:
    """Write a .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def load_text(value: bytes) -> Any:
    """Read text in JSON."""
    return json.loads(value)


def dump_text(array: Any) -> bytes:
    """Write text in JSON."""
    return json.dumps(array.tolist()).encode()


# One feature per layout of columns.
FEATURES: dict[str, Feature] = {
    "dense": dtf.FixedLenFeature((2,), "float32"),
    "raw": dtf.RawFeature((3,), "uint8"),
    "text": dtf.TextFeature(),
    "bytes": dtf.FixedLenFeature((), "bytes"),
    "pair": dtf.FixedLenFeature((2,), "bytes"),
    "none": dtf.FixedLenFeature((0,), "bytes"),
    "ragged": dtf.VarLenFeature("int64"),
    "boxes": dtf.VarLenFeature("float32", shape=(-1, 4)),
    "words": dtf.VarLenFeature("bytes"),
    "grid": dtf.VarLenFeature("bytes", shape=(-1, 2)),
    "steps": dtf.FixedLenSequenceFeature((2,), "bytes", length=3),
    "padded": dtf.FixedLenSequenceFeature((2,), "uint8", length=3),
    "names": dtf.TensorFeature((2, 1), "bytes"),
    "frames": dtf.ImageFeature((-1, 1, 2, 3)),
    "samples": dtf.RawFeature((-1, 2), ">c8"),
    "views": dtf.ImageFeature((2, 1, 2, 3)),
    "states": dtf.RawFeature((2,), ">i2", count=-1),
    "pairs": dtf.RawFeature((3,), "float64", count=2, compression_type="ZLIB"),
    "columns": dtf.RawFeature((2, -1), "uint16"),
    "sized": dtf.RawFeature(("sized/height", "sized/width", 3), ">u2"),
    "rows": dtf.RawFeature(("rows/count", 2), "float64", compression_type="GZIP"),
    "latin": dtf.TextFeature(encoding="latin-1"),
    "utf16": dtf.TextFeature(encoding="utf-16", count=-1),
    "phrases": dtf.TextFeature(count=-1),
    "captions": dtf.TextFeature(count=2),
    "grids": dtf.TensorFeature((2, 2), "int16", count=-1),
    "labels": dtf.TensorFeature((2,), "bytes", count=3),
    "crops": dtf.ImageFeature((-1, -1, -1, 3)),
    "blocks": dtf.TensorFeature((-1, 2), "float32", count=-1),
    "tables": dtf.RawFeature((-1, 3), "int16", count=-1),
    "lines": dtf.TensorFeature((-1,), "bytes", count=-1),
    "poses": dtf.RaggedFeature("bytes", partitions=(RowLengths("p"),), values=dtf.RawFeature((3,), "float64")),
    "notes": dtf.RaggedFeature("bytes", partitions=(RowLengths("n"), RowLengths("m")), values=dtf.TextFeature()),
    "albums": dtf.RaggedFeature("bytes", partitions=(RowLengths("i"),), values=dtf.ImageFeature((2, 1, 3))),
    "nested": dtf.VarLenFeature("int8", shape=(-1, -1, 2)),
    "deep": dtf.RaggedFeature("bytes", partitions=(RowLengths("a"), RowLengths("b"), UniformRowLength(2))),
    "image": dtf.ImageFeature(),
    "tensor": dtf.TensorFeature((-1, 3), "float64"),
    "strings": dtf.TensorFeature((-1, -1), "bytes"),
    "curves": dtf.FunctionFeature(load_npy, (-1, 2), "float64", dump_npy),
    "planes": dtf.FunctionFeature(load_npy, (2, -1), "int16", dump_npy),
    "cubes": dtf.FunctionFeature(load_npy, (2, 2), "complex64", dump_npy, count=-1),
    "points": dtf.FunctionFeature(load_npy, (3,), "bool", dump_npy),
    "day": dtf.FunctionFeature(load_npy, (), "datetime64[D]", dump_npy),
    "spans": dtf.FunctionFeature(load_npy, (-1, 2), "timedelta64[ms]", dump_npy),
    "heights": dtf.VarLenFeature("float32", shape=("heights/rows", 2, "heights/columns")),
    "lists": dtf.VarLenFeature("bytes", shape=(-1, -1), size_keys=["lists/shape"]),
    "moments": dtf.FixedLenFeature((2,), "datetime64[s]"),
    "instants": dtf.VarLenFeature("datetime64[us]"),
    "title": dtf.FunctionFeature(load_text, (), str, dump_text),
    "verses": dtf.FunctionFeature(load_text, (-1,), str, dump_text),
}
_NUMBERS = ("int64", "float32", "int8", "uint16", "bool", "float16", "float64", "uint64")


def any_features() -> st.SearchStrategy[Feature]:
    """Draw features of every class that makes one column, of any dtype that can be stored."""
    sizes, counts = st.integers(1, 3), st.sampled_from([-1, 2])
    shapes = st.lists(st.integers(0, 3), max_size=2).map(tuple)
    inner = st.lists(sizes, max_size=2).map(tuple)
    listed = st.sampled_from((*_NUMBERS, "bytes"))
    stored = st.sampled_from((*_NUMBERS, "complex64", "complex128", "int16"))
    rows = st.tuples(st.integers(1, 3), inner).map(lambda of: (-1,) * of[0] + of[1])
    cuts: st.SearchStrategy[Partition] = st.sampled_from([RowLengths("k"), UniformRowLength(2)])
    open_shapes = st.lists(st.sampled_from([-1, 1, 3]), min_size=1, max_size=3).map(tuple)
    return st.one_of(
        st.builds(dtf.FixedLenFeature, shapes, listed),
        st.builds(dtf.RawFeature, shapes, stored),
        st.sampled_from([dtf.TextFeature(), dtf.TextFeature(count=-1), dtf.TextFeature(count=2, encoding="cp1252")]),
        st.builds(dtf.RawFeature, st.sampled_from([(), (2, 3)]), st.sampled_from([">i2", "float64"]), count=counts),
        st.builds(dtf.TensorFeature, shapes, st.sampled_from(["int16", "bytes"]), count=counts),
        st.sampled_from([dtf.RawFeature((2, -1), "int8"), dtf.RawFeature((-1,), "int8", compression_type="GZIP")]),
        st.builds(dtf.TensorFeature, open_shapes, st.sampled_from(["int16", "bytes"]), count=st.just(-1)),
        st.builds(
            lambda of, values: dtf.RaggedFeature("bytes", partitions=tuple(of), values=values),
            st.lists(cuts, max_size=2),
            st.sampled_from([dtf.RawFeature((2,), "<i2"), dtf.TensorFeature((1,), "bytes"), dtf.TextFeature()]),
        ),
        st.sampled_from([dtf.RawFeature((2, -1), "int8", count=-1), dtf.ImageFeature((-1, -1, 2, 3))]),
        st.builds(lambda dtype, shape: dtf.VarLenFeature(dtype, shape=shape), listed, rows),
        st.builds(lambda shape, dtype: dtf.RawFeature((-1, *shape), dtype), inner, stored),
        st.builds(
            lambda shape, dtype, length: dtf.FixedLenSequenceFeature(shape, dtype, length=length),
            inner,
            listed,
            st.integers(0, 3),
        ),
        st.builds(lambda dtype, of: dtf.RaggedFeature(dtype, partitions=tuple(of)), listed, st.lists(cuts, max_size=3)),
        st.builds(dtf.TensorFeature, open_shapes, st.one_of(stored, st.just("bytes"))),
        st.sampled_from(
            [
                dtf.ImageFeature(),
                dtf.ImageFeature((2, 1, 3)),
                *(dtf.ImageFeature((n, 2, 1, 3), "uint16") for n in (-1, 2)),
            ]
        ),
    )


def rows_like(feature: Feature, count: int, rng: np.random.Generator) -> Block:
    """Generate rows of any sizes: many of them empty, some long, values of any bits."""
    sizes = [0, 0, 0, 1, 2, 3, rng.choice([3, 30])]
    splits, shapes = [], None
    for _ in range(feature.ragged_rank):
        splits.append(splits_of(rng.choice(sizes, count)))
        count = int(splits[-1][-1])
    if feature.own_shapes:
        shapes = rng.choice([0, 1, 2, 3], (count, feature.own_shapes))
        known = feature.row_shape[feature.ragged_rank :]
        shapes = np.where(np.array(known) == -1, shapes, known)
        splits.append(splits_of(shapes.prod(axis=1)))
        count = int(splits[-1][-1])
    block = _values(feature, (count, *feature.item_shape), sizes, rng)
    if shapes is not None:
        block = ArraysBlock(block, splits.pop(), shapes)
    for ends in reversed(splits):
        block = RaggedBlock(block, ends)
    made: Block = block
    return made


def _values(feature: Feature, shape: tuple[int, ...], sizes: list[int], rng: np.random.Generator) -> Any:
    if feature.item_dtype.kind == "T":
        texts = ["ä" * int(size) for size in rng.choice([0, 1, 30], math.prod(shape))]
        return np.array(texts, np.dtypes.StringDType()).reshape(shape)
    if feature.is_bytes:
        ends = splits_of(rng.choice(sizes, math.prod(shape)))
        return BytesBlock(rng.integers(0, 255, int(ends[-1]), np.uint8), ends, shape)
    dtype = feature.item_dtype
    if dtype.kind in "mM":
        # Some are NaT.
        times = rng.integers(-(10**5), 10**5, shape)
        return np.where(times % 7 == 0, np.iinfo(np.int64).min, times).view(dtype)
    highest = 2 if dtype.kind == "b" else 256
    return rng.integers(0, highest, math.prod(shape) * dtype.itemsize, np.uint8).view(dtype).reshape(shape)


class Picked:
    """Return a function for `map_blocks` that picks the rows given by the column `row`."""

    def __init__(self, blocks: Mapping[str, Block]) -> None:
        self.blocks = dict(blocks)

    def __call__(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Pick rows."""
        return {name: take_rows(block, given["row"]) for name, block in self.blocks.items()}


def dataset_of(blocks: Mapping[str, Block], features: Mapping[str, Feature], sizes: Sequence[int]) -> dtf.Dataset:
    """Make a Dataset from the rows of blocks, in chunks of these sizes."""
    rows = dtf.Dataset.from_arrays({"row": da.from_array(np.arange(sum(sizes)), chunks=(tuple(sizes),))})
    return rows.map_blocks(Picked(blocks), features)


def every_column(sizes: Sequence[int] = (4, 0, 5)) -> dtf.Dataset:
    """Return a Dataset of every kind of column, in chunks of these sizes."""
    rng = np.random.default_rng(1)
    return dataset_of({name: rows_like(each, sum(sizes), rng) for name, each in FEATURES.items()}, FEATURES, sizes)


def listed(value: Any) -> Any:
    """Convert nested arrays to nested lists."""
    return [listed(item) for item in value] if isinstance(value, np.ndarray) else value


def fitting_rows(feature: Feature, count: int, rng: np.random.Generator) -> Block:
    """Generate rows like `rows_like` that records can store: listed values fit, images have pixels."""
    if isinstance(feature, dtf.ImageFeature) and feature.own_shapes:
        rows = splits_of(rng.choice([0, 0, 1, 3], count)) if feature.ragged_rank else None
        images = count if rows is None else int(rows[-1])
        shapes = np.stack([*rng.integers(1, 5, (2, images)), rng.choice([1, 3, 4], images)], axis=1)
        shapes = np.where(np.array(feature.value_shape) == -1, shapes, feature.value_shape)
        ends = splits_of(shapes.prod(axis=1))
        block = ArraysBlock(rng.integers(0, 256, int(ends[-1]), np.uint8), ends, shapes)
        return block if rows is None else RaggedBlock(block, rows)
    block = rows_like(feature, count, rng)
    return _listable(block) if isinstance(feature, _LISTED) else block


_LISTED = (dtf.FixedLenFeature, dtf.VarLenFeature, dtf.FixedLenSequenceFeature, dtf.RaggedFeature)


def _listable(block: Any) -> Any:
    """Restrict numbers to those that float32 or int64 represent."""
    if isinstance(block, RaggedBlock):
        return RaggedBlock(_listable(block.values), block.row_splits)
    if isinstance(block, ArraysBlock):
        return ArraysBlock(_listable(block.values), block.row_splits, block.shapes)
    if isinstance(block, BytesBlock) or block.dtype.name not in ("float64", "uint64"):
        return block
    if block.dtype.name == "uint64":
        return block >> np.uint64(1)
    with np.errstate(all="ignore"):
        return block.view(np.float32)[..., ::2].reshape(block.shape).astype(np.float64)


def written_as(features: Mapping[str, Feature], *, steps: bool) -> dtf.Schema:
    """Return features of records that store these columns; with `steps`, nested rows become steps of feature lists."""
    context: dict[str, Feature] = {}
    lists: dict[str, Feature] = {}
    for name, feature in features.items():
        if steps and isinstance(feature, dtf.FixedLenSequenceFeature):
            lists[name] = feature
        elif steps and isinstance(feature, dtf.VarLenFeature) and feature.ragged_rank == 2:
            lists[name] = dtf.VarLenFeature(feature.dtype, shape=feature.shape[1:])
        elif (
            steps
            and isinstance(feature, dtf.RawFeature | dtf.TensorFeature | dtf.TextFeature | dtf.FunctionFeature)
            and feature.count == -1
        ):
            lists[name] = replace(feature, count=None)
        elif steps and isinstance(feature, dtf.ImageFeature) and feature.ragged_rank:
            lists[name] = replace(feature, shape=feature.value_shape)
        else:
            context[name] = _of_record(name, feature)
    return dtf.Schema(context, sequence_features=lists if steps else None)


def _of_record(name: str, feature: Feature) -> Feature:
    if isinstance(feature, dtf.FixedLenSequenceFeature):
        return replace(feature, allow_missing=True)
    if isinstance(feature, dtf.RaggedFeature) or (isinstance(feature, dtf.VarLenFeature) and feature.ragged_rank > 1):
        levels = [RowLengths(f"{name} {level}") for level in range(feature.ragged_rank - 1)]
        values = feature.values if isinstance(feature, dtf.RaggedFeature) else None
        sizes = feature.item_shape if values is None else feature.uniform_sizes  # type: ignore[union-attr]
        return dtf.RaggedFeature(feature.dtype, partitions=(*levels, *map(UniformRowLength, sizes)), values=values)
    return feature


def rows_of(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return computed columns as rows of lists."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*map(listed, columns.values()), strict=True)]


# What each operator means for one value.
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda value, values: value in values,
    "not in": lambda value, values: value not in values,
}
