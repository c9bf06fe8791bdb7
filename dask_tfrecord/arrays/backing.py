"""Backings of a `Dataset`: a lazy source, or chunks of existing dask arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import dask
import dask.array as da
import numpy as np
from dask.base import normalize_token, tokenize
from dask.utils import format_bytes
from numpy.typing import NDArray

from dask_tfrecord.arrays.collection import Rows, pick_rows, row_numbers
from dask_tfrecord.arrays.graph import Chunk, chunk_array, column_arrays, lazy_chunks, lazy_column, read_chunk, shared
from dask_tfrecord.arrays.mapped_source import BlockFunction, MappedSource, apply, located
from dask_tfrecord.arrays.sources import Source
from dask_tfrecord.columns.blocks import Block, concatenate, frozen, take_rows, zero_rows
from dask_tfrecord.columns.user_blocks import conform
from dask_tfrecord.errors import SchemaError, plural
from dask_tfrecord.schema import Schema

__all__ = ["Backing", "ChunkBacking", "LazyBacking", "Rechunked", "backing_from_arrays"]


@dataclass(frozen=True, slots=True)
class Rechunked:
    """An array that has to be rechunked, which holds parts of it in memory twice.

    Attributes
    ----------
    name : str
        Name of the column.
    before, after : tuple of tuple of int
        Chunks before and after: after, rows are chunked as in the data set, and other axes have one chunk.
    itemsize : int
        Bytes of a value.
    """

    name: str
    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    itemsize: int

    @property
    def held_nbytes(self) -> int:
        """Most bytes of old chunks that one new chunk is made of, which are in memory together."""
        old, new = (np.concatenate([[0], np.cumsum(chunks[0])]) for chunks in (self.before, self.after))
        low = np.searchsorted(old, new[:-1], side="right") - 1
        high = np.maximum(np.searchsorted(old, new[1:], side="left"), low)
        rows = int((old[high] - old[low]).max(initial=0))
        return rows * math.prod(map(sum, self.after[1:])) * self.itemsize

    @staticmethod
    def largest(chunks: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
        """Return the shape of the largest chunk."""
        return tuple(map(max, chunks))

    def __str__(self) -> str:
        rows = ", ".join(f"{size:,}" for size in self.after[0][:3]) + (", …" if len(self.after[0]) > 3 else "")
        return (
            f"{self.name!r} is rechunked from {_chunks(self.before)} to {_chunks(self.after)}, which holds "
            f"{format_bytes(self.held_nbytes)} of it for each thread: chunks of ({rows}) rows, whole along other axes, "
            f"are taken as they are"
        )


class Backing(Protocol):
    """Columns in chunks of rows."""

    @property
    def schema(self) -> Schema:
        """Schema of the columns."""

    @property
    def sizes(self) -> tuple[float, ...]:
        """Rows of each chunk; NaN if they are not counted."""

    @property
    def origin(self) -> Mapping[str, Any]:
        """Origin of the rows, as JSON values."""

    @property
    def rechunked(self) -> tuple[Rechunked, ...]:
        """Columns that had to be rechunked."""

    def array(self, name: str) -> da.Array:
        """Return one column, decoded on its own."""

    def arrays(self, names: Sequence[str]) -> dict[str, da.Array]:
        """Return columns that are decoded together."""

    def chunks(self, names: Sequence[str]) -> da.Array:
        """Return an object array with one `Chunk` of these columns per element."""

    def map(self, function: BlockFunction, columns: tuple[str, ...], schema: Schema) -> Backing:
        """Pass every chunk through a function."""

    def join(self, names: Sequence[str], added: ChunkBacking, schema: Schema) -> ChunkBacking:
        """Combine these columns with added ones, chunk by chunk."""

    def rows(self, key: Any) -> Backing:
        """Select rows."""


@dataclass(frozen=True, slots=True, eq=False)
class LazyBacking:
    """Columns that are read from a source on demand.

    Attributes
    ----------
    source : Source
        Source of the rows.
    borders : ndarray of int64 or None
        First row of each chunk, and the number of rows; None if rows are not counted.
    number : int
        Number of chunks.
    """

    source: Source
    borders: NDArray[np.int64] | None
    number: int

    def __dask_tokenize__(self) -> object:
        return normalize_token(("dask_tfrecord.Lazy", self.source, self.borders, self.number))

    @property
    def schema(self) -> Schema:
        """Schema of the columns."""
        return self.source.schema

    @property
    def sizes(self) -> tuple[float, ...]:
        """Rows of each chunk; NaN if they are not counted."""
        if self.borders is None:
            return (np.nan,) * self.number
        return tuple(np.diff(self.borders).tolist())

    @property
    def origin(self) -> Mapping[str, Any]:
        """Origin of the rows, as JSON values."""
        return self.source.origin

    @property
    def rechunked(self) -> tuple[Rechunked, ...]:
        """None: rows are read in the chunks of the data set."""
        return ()

    def array(self, name: str) -> da.Array:
        """Return one column, decoded on its own."""
        if self.borders is None:
            return self.arrays([name])[name]
        return lazy_column(self.source, name, self.borders)

    def arrays(self, names: Sequence[str]) -> dict[str, da.Array]:
        """Return columns that are decoded together."""
        features = {name: self.schema[name] for name in names}
        return column_arrays(self.chunks(names), features, self.sizes)

    def chunks(self, names: Sequence[str]) -> da.Array:
        """Return an object array with one `Chunk` of these columns per element."""
        return lazy_chunks(self.source, names, self.borders, self.number)

    def map(self, function: BlockFunction, columns: tuple[str, ...], schema: Schema) -> LazyBacking:
        """Pass every chunk through a function, in the task that decodes it."""
        return LazyBacking(MappedSource(self.source, columns, function, schema), self.borders, self.number)

    def join(self, names: Sequence[str], added: ChunkBacking, schema: Schema) -> ChunkBacking:
        """Combine these columns with added ones; a task reads them once the added ones exist."""
        plan, token = (tuple(sorted(names)), self.borders), tokenize(self, sorted(names), added.blocks.name, schema)
        parts = shared(self.source, "source"), shared(plan, "plan"), shared(schema, "schema")
        blocks = chunk_array(_read_and_join, f"tfrecord-read_and_join-{token}", self.number, added.blocks, *parts)
        return ChunkBacking(blocks, schema, added.sizes, added.origin, added.rechunked)

    def rows(self, key: Any) -> LazyBacking:
        """Select rows and plan chunks anew, so that only those rows are read."""
        source = self.source.select(key)
        if self.borders is None:
            raise ValueError("rows of an uncounted source")
        picked = pick_rows(range(int(self.borders[-1])), key)
        borders = _clipped(self.borders, picked)
        return LazyBacking(source, borders, len(borders) - 1)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkBacking:
    """Columns in existing chunks, or in chunks computed from such.

    Attributes
    ----------
    blocks : dask array of object, shape (nchunks,)
        One `Chunk` per element.
    schema : Schema
        Schema of the columns.
    sizes : tuple of int or nan
        Rows of each chunk.
    origin : mapping
        Origin of the rows.
    rechunked : tuple of Rechunked
        Columns that had to be rechunked.
    """

    blocks: da.Array
    schema: Schema
    sizes: tuple[float, ...]
    origin: Mapping[str, Any]
    rechunked: tuple[Rechunked, ...] = ()

    def __dask_tokenize__(self) -> object:
        return "dask_tfrecord.Held", self.blocks.name

    def array(self, name: str) -> da.Array:
        """Return one column, decoded on its own."""
        return self.arrays([name])[name]

    def arrays(self, names: Sequence[str]) -> dict[str, da.Array]:
        """Return columns that are decoded together."""
        return column_arrays(self.blocks, {name: self.schema[name] for name in names}, self.sizes)

    def chunks(self, names: Sequence[str]) -> da.Array:
        """Return an object array with one `Chunk` of these columns per element."""
        if set(names) == set(self.schema):
            return self.blocks
        return _each_chunk(_only, tuple(sorted(names)), self.blocks)

    def map(self, function: BlockFunction, columns: tuple[str, ...], schema: Schema) -> ChunkBacking:
        """Pass every chunk through a function."""
        mapped = _each_chunk(_apply, (function, schema, self.sizes, _files(self.origin)), self.chunks(columns))
        return ChunkBacking(mapped, schema, self.sizes, self.origin, self.rechunked)

    def join(self, names: Sequence[str], added: ChunkBacking, schema: Schema) -> ChunkBacking:
        """Combine these columns with added ones, chunk by chunk."""
        blocks = _each_chunk(_join, schema, self.chunks(names), added.blocks)
        return ChunkBacking(blocks, schema, added.sizes, added.origin, self.rechunked + added.rechunked)

    def rows(self, key: Any) -> ChunkBacking:
        """Select rows, chunked as by `LazyBacking`; only the selected rows are sent between workers."""
        if np.isnan(self.sizes).any():
            raise ValueError("rows can't be picked where counts=None left them uncounted; open with counts='auto'")
        borders = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)
        index = row_numbers(pick_rows(range(int(borders[-1])), key))
        cuts = _clipped(borders, index)
        name = f"tfrecord-rows-{tokenize(self.blocks.name, borders, index)}"
        tasks: dict[Any, Any] = {}
        schema = shared(self.schema, "schema")
        for chunk, (start, stop) in enumerate(pairwise(cuts.tolist())):
            rows = index[start:stop]
            origins = np.searchsorted(borders, rows, side="right") - 1
            numbers = np.unique(origins).tolist()
            if len(numbers) == 1:
                # One task: dask would fuse two in some graphs and not in others.
                tasks[name, chunk] = _take_chunk, (self.blocks.name, numbers[0]), rows - borders[numbers[0]], schema.key
                continue
            parts = []
            for number in numbers:
                part = (f"{name}-part", chunk, number)
                tasks[part] = _take, (self.blocks.name, number), rows[origins == number] - borders[number], schema.key
                parts.append(part)
            order = np.argsort(np.argsort(origins, kind="stable"))
            tasks[name, chunk] = _put, parts, order, schema.key
        graph = {**self.blocks.__dask_graph__(), **schema.__dask_graph__(), **tasks}
        picked = da.Array(graph, name, ((1,) * (len(cuts) - 1),), meta=np.empty(0, object))
        return ChunkBacking(picked, self.schema, tuple(np.diff(cuts).tolist()), self.origin, self.rechunked)


def backing_from_arrays(
    arrays: Mapping[str, da.Array], schema: Schema, sizes: tuple[float, ...], origin: Mapping[str, Any]
) -> ChunkBacking:
    """Combine dask arrays in chunks of `sizes` rows; arrays with other chunks are rechunked."""
    pairs: list[Any] = []
    for number, array in enumerate(arrays.values()):
        # One chunk along all axes but the rows. Each array has index numbers of its own.
        whole = array.rechunk({0: sizes} | {axis: -1 for axis in range(1, array.ndim)})
        pairs += [whole, (0, *(axis + 100 * number for axis in range(1, array.ndim)))]
    name = f"tfrecord-collect-{tokenize([array.name for array in arrays.values()], tuple(arrays), sizes)}"
    with dask.annotate(tfrecord=name):
        blocks = da.blockwise(
            _collect,
            (0,),
            shared(schema, "schema"),
            None,
            *pairs,
            name=name,
            dtype=object,
            meta=np.empty(0, object),
            concatenate=True,
            align_arrays=False,
            adjust_chunks={0: (1,) * len(sizes)},
        )
    return ChunkBacking(blocks, schema, sizes, origin, find_rechunked(arrays.items(), sizes))


def _each_chunk(step: Callable[..., Chunk], option: object, *chunks: da.Array) -> da.Array:
    """Call ``step(*chunks, option)`` for every chunk."""
    token = tokenize([array.name for array in chunks], option)
    prefix = step.__name__.strip("_")
    return chunk_array(step, f"tfrecord-{prefix}-{token}", chunks[0].numblocks[0], *chunks, shared(option, prefix))


def _only(chunk: Chunk, names: tuple[str, ...]) -> Chunk:
    return Chunk({name: chunk.blocks[name] for name in names})


def _apply(
    chunk: Chunk, option: tuple[BlockFunction, Schema, tuple[float, ...], str], block_id: tuple[int] = (0,)
) -> Chunk:
    function, schema, sizes, files = option
    blocks = {name: frozen(block) for name, block in chunk.blocks.items()}
    with located(partial(_describe, sizes, files, block_id[0])):
        return Chunk(apply(function, blocks, schema, tuple(schema)))


def _describe(sizes: tuple[float, ...], files: str, number: int) -> str:
    """Return the rows of a chunk as text, for errors; assigned columns have no records."""
    start = float(np.sum(sizes[:number]))
    if np.isnan(start + sizes[number]):
        return f"chunk {number} of {files}"
    return f"rows {int(start)} to {int(start + sizes[number]) - 1} of {files}"


def _files(origin: Mapping[str, Any]) -> str:
    files = origin.get("files", [origin["store"]] if "store" in origin else [])
    return (files[0] if len(files) == 1 else f"{files[0]} to {files[-1]}") if files else "the data set"


def _take(chunk: Chunk, index: NDArray[np.int64], schema: Schema) -> dict[str, Block]:
    return {name: take_rows(chunk.blocks[name], index) for name in schema}


def _take_chunk(chunk: Chunk, index: NDArray[np.int64], schema: Schema) -> Chunk:
    return Chunk(_take(chunk, index, schema))


def _put(parts: Sequence[dict[str, Block]], order: NDArray[np.int64], schema: Schema) -> Chunk:
    blocks = {name: concatenate([part[name] for part in parts] or [zero_rows(schema[name])]) for name in schema}
    if (np.diff(order) > 0).all():
        return Chunk(blocks)
    return Chunk({name: take_rows(block, order) for name, block in blocks.items()})


def _collect(schema: Schema, *blocks: NDArray[Any]) -> Chunk:
    return _checked(
        {
            name: conform(schema[name], block, f"array {name!r}", lossless=True)
            for name, block in zip(schema, blocks, strict=True)
        }
    )


def _read_and_join(
    added: Chunk,
    source: Source,
    plan: tuple[tuple[str, ...], NDArray[np.int64] | None],
    schema: Schema,
    block_id: tuple[int] = (0,),
) -> Chunk:
    return _join(read_chunk(source, plan, block_id), added, schema)


def _join(first: Chunk, second: Chunk, schema: Schema) -> Chunk:
    blocks = first.blocks | second.blocks
    return _checked({name: blocks[name] for name in schema})


def _checked(blocks: dict[str, Block]) -> Chunk:
    rows = {name: len(block) for name, block in blocks.items()}
    if len(set(rows.values())) > 1:
        raise SchemaError(f"columns must have the same number of rows; a chunk has {rows}")
    return Chunk(blocks)


def _clipped(borders: NDArray[np.int64], picked: Rows) -> NDArray[np.int64]:
    """Return chunk borders of selected rows: those of their chunks if they ascend, else the mean rows of a chunk."""
    count = len(picked)
    if count == 0:
        return np.array([0, 0])
    if isinstance(picked, range) and picked.step > 0:
        # Number of rows before each border, rounded up, without an array: there may be billions of rows.
        cuts = np.clip(-((picked.start - borders[1:-1]) // picked.step), 0, count)
    elif not isinstance(picked, range) and (np.diff(picked) >= 0).all():
        cuts = np.searchsorted(picked, borders[1:-1])
    else:
        rows = max(1, int(borders[-1]) // max(1, len(borders) - 1))
        return np.append(np.arange(0, count, rows), count)
    return np.unique(np.concatenate([[0], cuts, [count]]))


def find_rechunked(arrays: Iterable[tuple[str, da.Array]], sizes: Sequence[float]) -> tuple[Rechunked, ...]:
    """Return the arrays whose chunks differ from `sizes` rows; unknown sizes count as equal."""
    found = []
    for name, array in arrays:
        after = (tuple(sizes), *((size,) for size in array.shape[1:]))
        rows = [size for size in array.chunks[0] if size]
        differ = not np.isnan(rows).any() and rows != [size for size in sizes if size]
        if differ or any(number > 1 for number in array.numblocks[1:]):
            found.append(Rechunked(name, array.chunks, after, array.dtype.itemsize))
    return tuple(found)


def _chunks(chunks: tuple[tuple[int, ...], ...]) -> str:
    number = math.prod(map(len, chunks))
    largest = " x ".join(f"{size:,}" for size in Rechunked.largest(chunks))
    return f"{plural(number, 'chunk')} of {'' if number == 1 else 'up to '}{largest}"
