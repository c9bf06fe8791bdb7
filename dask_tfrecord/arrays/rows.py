"""Rows of a `Dataset`: a source and its chunk borders, or chunks that exist already."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.base import normalize_token, tokenize
from dask.utils import format_bytes
from numpy.typing import NDArray

from dask_tfrecord.arrays.collection import RowNumbers, distinct, pick_rows, row_numbers
from dask_tfrecord.arrays.graph import Chunk, chunk_array, column_arrays, lazy_chunks, lazy_column, read_chunk, shared
from dask_tfrecord.arrays.mapped_source import BlockFunction, MappedSource, apply, located
from dask_tfrecord.arrays.sources import Source
from dask_tfrecord.columns.blocks import Block, concatenate, frozen, take_rows, zero_rows
from dask_tfrecord.columns.user_blocks import conform
from dask_tfrecord.errors import SchemaError, plural
from dask_tfrecord.schema import Schema


@dataclass(frozen=True, slots=True)
class Rechunked:
    """An array that has to be rechunked, which holds parts of it in memory twice."""

    name: str
    before: tuple[tuple[int, ...], ...]
    # Rows are chunked as in the data set; other axes have one chunk.
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


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Columns in chunks of rows: read from a source on demand, or existing blocks.

    No chunk is empty, except the only one of a data set without rows: dask's slices skip rows across empty chunks.
    `of_source` and `of_chunks` remove empty chunks. Chunks that are not counted may be empty.
    """

    schema: Schema
    # First row of each chunk, and the number of rows; None if rows are not counted.
    borders: NDArray[np.int64] | None
    nchunks: int
    source: Source | None
    # One `Chunk` per element, unless there is a source.
    blocks: da.Array | None
    held_origin: Mapping[str, Any] | None = None
    rechunked: tuple[Rechunked, ...] = ()

    def __post_init__(self) -> None:
        borders = self.borders
        if borders is not None and not ((np.diff(borders) > 0).all() or borders.tolist() == [0, 0]):
            raise AssertionError(f"a chunk is empty: {borders}")

    @classmethod
    def of_source(cls, source: Source, borders: NDArray[np.int64] | None, nchunks: int = 1) -> Rows:
        """Chunk the rows of a source by borders; rows that are not counted have the chunks of their source."""
        if borders is not None:
            borders = distinct(borders)
            nchunks = len(borders) - 1
        return cls(source.schema, borders, nchunks, source, None)

    @classmethod
    def of_chunks(
        cls,
        blocks: da.Array,
        schema: Schema,
        sizes: Sequence[float],
        origin: Mapping[str, Any],
        rechunked: tuple[Rechunked, ...] = (),
    ) -> Rows:
        """Hold blocks of `sizes` rows; NaN if they are not counted."""
        if np.isnan(sizes).any():
            return cls(schema, None, len(sizes), None, blocks, origin, rechunked)
        borders = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        kept = filled_chunks(sizes)
        if len(kept) < len(sizes):
            # A task with two inputs, which dask does not fuse.
            name, index = f"tfrecord-filled-{tokenize(blocks.name, kept)}", shared(kept, "filled")
            tasks: dict[Any, Any] = {
                (name, number): (_same, (blocks.name, old), index.key) for number, old in enumerate(kept)
            }
            graph = {**blocks.__dask_graph__(), **index.__dask_graph__(), **tasks}
            blocks = da.Array(graph, name, ((1,) * len(kept),), meta=np.empty(0, object))
            borders = distinct(borders)
        return cls(schema, borders, len(kept), None, blocks, origin, rechunked)

    @classmethod
    def of_arrays(
        cls, arrays: Mapping[str, da.Array], schema: Schema, sizes: Sequence[float], origin: Mapping[str, Any]
    ) -> Rows:
        """Combine dask arrays in chunks of `sizes` rows; arrays with other chunks are rechunked."""
        arrays = {name: without_empty_chunks(array) for name, array in arrays.items()}
        sizes = tuple(sizes[number] for number in filled_chunks(sizes))
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
        return cls.of_chunks(blocks, schema, sizes, origin, find_rechunked(arrays.items(), sizes))

    def __dask_tokenize__(self) -> object:
        if self.source is None:
            assert self.blocks is not None
            return "dask_tfrecord.Held", self.blocks.name
        return normalize_token(("dask_tfrecord.Lazy", self.source, self.borders, self.nchunks))

    @property
    def sizes(self) -> tuple[float, ...]:
        """Rows of each chunk; NaN if they are not counted."""
        return (np.nan,) * self.nchunks if self.borders is None else tuple(np.diff(self.borders).tolist())

    @property
    def nrows(self) -> int | None:
        """Number of rows; None if they are not counted."""
        return None if self.borders is None else int(self.borders[-1])

    @property
    def origin(self) -> Mapping[str, Any]:
        """Origin of the rows, as JSON values."""
        return self.source.origin if self.source is not None else self.held_origin or {}

    def array(self, name: str) -> da.Array:
        """Return one column, decoded on its own."""
        if self.source is None or self.borders is None:
            return self.arrays([name])[name]
        return lazy_column(self.source, name, self.borders)

    def arrays(self, names: Sequence[str]) -> dict[str, da.Array]:
        """Return columns that are decoded together."""
        return column_arrays(self.chunks(names), {name: self.schema[name] for name in names}, self.sizes)

    def chunks(self, names: Sequence[str]) -> da.Array:
        """Return an object array with one `Chunk` of these columns per element."""
        if self.source is not None:
            return lazy_chunks(self.source, names, self.borders, self.nchunks)
        assert self.blocks is not None
        if set(names) == set(self.schema):
            return self.blocks
        return _each_chunk(_only, tuple(sorted(names)), self.blocks)

    def map(self, function: BlockFunction, columns: tuple[str, ...], schema: Schema) -> Rows:
        """Pass every chunk through a function: rows of a source in the task that decodes them."""
        if self.source is not None:
            source = MappedSource(self.source, columns, function, schema)
            return Rows.of_source(source, self.borders, self.nchunks)
        mapped = _each_chunk(_apply, (function, schema, self.sizes, _files(self.origin)), self.chunks(columns))
        return Rows.of_chunks(mapped, schema, self.sizes, self.origin, self.rechunked)

    def join(self, names: Sequence[str], added: Rows, schema: Schema) -> Rows:
        """Combine these columns with added ones, chunk by chunk."""
        assert added.blocks is not None
        if self.source is None:
            blocks = _each_chunk(_join, schema, self.chunks(names), added.blocks)
        else:
            # A task reads its rows once the added columns exist.
            plan, token = (tuple(sorted(names)), self.borders), tokenize(self, sorted(names), added.blocks.name, schema)
            parts = shared(self.source, "source"), shared(plan, "plan"), shared(schema, "schema")
            name = f"tfrecord-read_and_join-{token}"
            blocks = chunk_array(_read_and_join, name, self.nchunks, added.blocks, *parts)
        return Rows.of_chunks(blocks, schema, added.sizes, added.origin, self.rechunked + added.rechunked)

    def select(self, key: Any) -> Rows:
        """Select rows and plan chunks anew: of a source only those rows are read, of blocks only those are sent."""
        if self.source is not None:
            source = self.source.select(key)
            if self.borders is None:
                raise ValueError("rows of an uncounted source")
            return Rows.of_source(source, _clipped(self.borders, pick_rows(range(int(self.borders[-1])), key)))
        if self.borders is None:
            raise ValueError("rows can't be picked where counts=None left them uncounted; open with counts='auto'")
        return self._take(row_numbers(pick_rows(range(int(self.borders[-1])), key)), self.borders)

    def _take(self, index: NDArray[np.int64], borders: NDArray[np.int64]) -> Rows:
        assert self.blocks is not None
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
        return Rows.of_chunks(picked, self.schema, np.diff(cuts).tolist(), self.origin, self.rechunked)


def filled_chunks(sizes: Sequence[float]) -> list[int]:
    """Return the numbers of the chunks with rows; the first one if there are no rows."""
    return [number for number, size in enumerate(sizes) if size] or [0]


def without_empty_chunks(array: da.Array) -> da.Array:
    """Remove the empty chunks of rows of an array."""
    kept = filled_chunks(array.chunks[0])
    if len(kept) == len(array.chunks[0]):
        return array
    filled: da.Array = array.blocks[kept]
    return filled


def _each_chunk(step: Callable[..., Chunk], option: object, *chunks: da.Array) -> da.Array:
    """Call ``step(*chunks, option)`` for every chunk."""
    token = tokenize([array.name for array in chunks], option)
    prefix = step.__name__.strip("_")
    return chunk_array(step, f"tfrecord-{prefix}-{token}", chunks[0].numblocks[0], *chunks, shared(option, prefix))


def _same(chunk: Chunk, _: list[int]) -> Chunk:
    return chunk


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


def _clipped(borders: NDArray[np.int64], picked: RowNumbers) -> NDArray[np.int64]:
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
