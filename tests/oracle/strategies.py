"""Hypothesis strategies that draw schemas, and features of every class except images."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

import dask_tfrecord as dtf
from dask_tfrecord import Schema
from dask_tfrecord import features as classes
from dask_tfrecord.features import Feature
from oracle.tensors import LISTS
from oracle.values import oracle_dtype

# Characters of any category. `st.characters` sorts all of them into categories first, which takes seconds.
CHARACTERS = (st.integers(0, 0x7F) | st.integers(0x80, 0xD7FF) | st.integers(0xE000, 0x10FFFF)).map(chr)
NAMES = st.text(CHARACTERS, max_size=8)
_SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)
_INNER = st.lists(st.integers(1, 3), max_size=2).map(tuple)
STORED: dict[str, st.SearchStrategy[Any]] = {
    "bytes": st.binary(max_size=12),
    "float32": st.floats(width=32),
    "int64": st.integers(-(2**63), 2**63 - 1),
}
_DTYPES = st.sampled_from(
    ["bytes", "float32", "int64"] * 3
    + ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64", "float16", "float64"]
)
_RAW_DTYPES = st.sampled_from(["bool", "uint8", "int8", "<i2", ">i2", "<u4", ">i8", "<f2", ">f4", "<f8", ">c8"])
# Shapes of one open size, at any position.
_ONE_OPEN = st.builds(lambda before, after: (*before, -1, *after), _INNER, _INNER)
_COUNTS = st.sampled_from([-1, 1, 2])
_COMPRESSION = st.sampled_from([None, None, None, "ZLIB", "GZIP"])
# Excludes bfloat16, which requires ml_dtypes.
_TENSOR_DTYPES = st.sampled_from([dtype for dtype in LISTS if dtype != "bfloat16"])
_KEYED = (classes.RowLengths, classes.RowSplits, classes.ValueRowIds, classes.RowLimits, classes.RowStarts)


# ---- features and schemas


def values_that_fit(dtype: str) -> st.SearchStrategy[Any]:
    """Return the strategy of stored values in range of a dtype."""
    if dtype in STORED:
        return STORED[dtype]
    if dtype == "float64":
        return STORED["float32"]
    if dtype in ("float16", "bfloat16"):
        return st.floats(-65000, 65000, width=32) | st.sampled_from([-0.0, math.inf, -math.inf, math.nan])
    bits = 1 if dtype == "bool" else min(8 * oracle_dtype(dtype).itemsize, 63 + (dtype == "int64"))
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if dtype[0] == "i" else st.integers(0, 2**bits - 1)


def _defaults(dtype: str, shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """No default value, one for all items, or one per item."""
    one, count = values_that_fit(dtype), math.prod(shape)
    return (
        st.none() | one | st.lists(one, min_size=count, max_size=count).map(lambda items: items if shape else items[0])
    )


@st.composite
def _fixed(draw: st.DrawFn, key: Callable[[], str]) -> Feature:
    dtype, shape = draw(_DTYPES), draw(_SHAPES | st.just((0,)))
    return dtf.FixedLenFeature(shape, dtype, draw(_defaults(dtype, shape)))


@st.composite
def _sequence(draw: st.DrawFn, key: Callable[[], str], missing: st.SearchStrategy[bool]) -> Feature:
    dtype = draw(_DTYPES)
    length = draw(st.none() | st.integers(0, 6))
    default = draw(st.none() | values_that_fit(dtype))
    return dtf.FixedLenSequenceFeature(draw(_INNER), dtype, draw(missing), default, length=length)


@st.composite
def _sparse(draw: st.DrawFn, key: Callable[[], str]) -> Feature:
    size = draw(st.lists(st.integers(0, 6) | st.just(2**63 - 1), min_size=1, max_size=3))
    return dtf.SparseFeature(tuple(key() for _ in size), key(), draw(_DTYPES), tuple(size), draw(st.booleans()))


@st.composite
def _ragged(draw: st.DrawFn, key: Callable[[], str], *, decoded: bool) -> Feature:
    partitions: list[classes.Partition] = []
    for cls in draw(st.lists(st.sampled_from([*_KEYED, classes.UniformRowLength]), max_size=3)):
        partitions.append(cls(draw(st.integers(1, 3))) if cls is classes.UniformRowLength else cls(key()))
    values = draw(_VALUES) if decoded and draw(st.booleans()) else None
    dtype = draw(_DTYPES) if values is None else "bytes"
    return dtf.RaggedFeature(dtype, key() if draw(st.booleans()) else None, tuple(partitions), values=values)


@st.composite
def _tensor(draw: st.DrawFn, key: Callable[[], str]) -> Feature:
    sizes = draw(st.lists(st.sampled_from([-1, 0, 1, 2, 3]), max_size=3))
    count = draw(st.none() | (st.just(-1) if -1 in sizes else _COUNTS))
    return dtf.TensorFeature(tuple(sizes), draw(_TENSOR_DTYPES), count=count)


_VALUES = st.one_of(
    st.builds(dtf.RawFeature, _SHAPES, _RAW_DTYPES, compression_type=_COMPRESSION),
    st.builds(dtf.TensorFeature, _SHAPES, _TENSOR_DTYPES),
    st.just(dtf.TextFeature()),
)
_Maker = Callable[[Callable[[], str]], st.SearchStrategy[Feature]]
_VARLEN = st.builds(dtf.VarLenFeature, _DTYPES, shape=_INNER.map(lambda inner: (-1, *inner)))
# Functions that return the strategy of a feature class. Their argument draws a new key.
_OF_RECORDS: dict[type[Feature], _Maker] = {
    dtf.FixedLenFeature: lambda key: _fixed(key),
    dtf.VarLenFeature: lambda key: _VARLEN,
    dtf.FixedLenSequenceFeature: lambda key: _sequence(key, st.just(True)),
    dtf.SparseFeature: lambda key: _sparse(key),
    dtf.RaggedFeature: lambda key: _ragged(key, decoded=True),
    dtf.RawFeature: lambda key: st.one_of(
        st.builds(dtf.RawFeature, _SHAPES | _ONE_OPEN, _RAW_DTYPES, compression_type=_COMPRESSION),
        st.builds(dtf.RawFeature, _SHAPES, _RAW_DTYPES, count=_COUNTS, compression_type=_COMPRESSION),
        st.builds(dtf.RawFeature, _ONE_OPEN, _RAW_DTYPES, count=st.just(-1), compression_type=_COMPRESSION),
    ),
    dtf.TextFeature: lambda key: (
        st.builds(dtf.TextFeature, default_value=st.none() | NAMES) | st.builds(dtf.TextFeature, count=_COUNTS)
    ),
    dtf.TensorFeature: lambda key: _tensor(key),
}
_OF_LISTS: dict[type[Feature], _Maker] = {
    dtf.FixedLenSequenceFeature: lambda key: _sequence(key, st.booleans()),
    dtf.VarLenFeature: _OF_RECORDS[dtf.VarLenFeature],
    dtf.RaggedFeature: lambda key: _ragged(key, decoded=False),
    dtf.RawFeature: lambda key: st.builds(
        dtf.RawFeature, _SHAPES | _ONE_OPEN, _RAW_DTYPES, compression_type=_COMPRESSION
    ),
    dtf.TensorFeature: lambda key: st.builds(dtf.TensorFeature, _SHAPES | _ONE_OPEN, _TENSOR_DTYPES),
    dtf.TextFeature: lambda key: st.just(dtf.TextFeature()),
}
_OF_ITEMS: dict[type[Feature], _Maker] = {
    dtf.FixedLenFeature: lambda key: _fixed(key).filter(lambda feature: 0 not in feature.shape),
    dtf.VarLenFeature: _OF_RECORDS[dtf.VarLenFeature],
    dtf.RaggedFeature: lambda key: _ragged(key, decoded=False),
    dtf.RawFeature: _OF_LISTS[dtf.RawFeature],
    dtf.TensorFeature: _OF_LISTS[dtf.TensorFeature],
    dtf.TextFeature: lambda key: st.builds(dtf.TextFeature, default_value=st.none() | NAMES),
}
CLASSES: tuple[type[Feature], ...] = tuple(_OF_RECORDS)
ITEMS: tuple[type[Feature], ...] = tuple(_OF_ITEMS)
STEPS: tuple[type[Feature], ...] = tuple(_OF_LISTS)


@st.composite
def features(draw: st.DrawFn, of: Sequence[type[Feature]] = CLASSES) -> Feature:
    """Features of any class except images, with any shape and dtype."""
    return draw(_OF_RECORDS[draw(st.sampled_from(of))](lambda: draw(NAMES)))


@st.composite
def schemas(
    draw: st.DrawFn,
    *,
    min_size: int = 0,
    max_size: int = 5,
    of: Sequence[type[Feature]] = CLASSES,
    steps: Sequence[type[Feature]] | None = None,
    items: Sequence[type[Feature]] | None = None,
) -> Schema:
    """Schemas with any names that protobuf accepts, the empty one included. Features never share a key or column."""
    taken: set[str] = set()

    def fresh() -> str:
        # Column names extend feature names by a suffix, so a name must not be the prefix of another one.
        name: str = draw(NAMES.filter(lambda name: not any(_clash(name, other) for other in taken)))
        taken.add(name)
        return name

    def some(rules: Mapping[type[Feature], _Maker], of: Sequence[type[Feature]]) -> dict[str, Feature]:
        picked = draw(st.lists(st.sampled_from(of), min_size=min_size, max_size=max_size))
        return {fresh(): draw(rules[cls](fresh)) for cls in picked}

    context = some(_OF_RECORDS, of)
    return Schema(
        context,
        sequence_features=None if steps is None else some(_OF_LISTS, steps),
        example_features=None if items is None else some(_OF_ITEMS, items),
    )


def _clash(name: str, other: str) -> bool:
    return name == other or name.startswith(f"{other}.") or other.startswith(f"{name}.")
