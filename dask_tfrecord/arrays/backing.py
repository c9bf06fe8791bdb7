"""What stands behind the columns of a `Dataset`: a source that is read on demand, or chunks that exist already."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import dask
import dask.array as da
import numpy as np
from dask.base import normalize_token, tokenize
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray

from dask_tfrecord.arrays.graph import Chunk, alone, chunk_array, lazy_chunks, read_chunk, shared, views
from dask_tfrecord.arrays.plan import Rows, pick_rows, row_numbers
from dask_tfrecord.arrays.recut import Recut, recut_arrays
from dask_tfrecord.arrays.source import BlockFunction, MappedSource, Source, apply, origin_of_mapped
from dask_tfrecord.columns.blocks import Block, concatenate, frozen, take_rows, zero_rows
from dask_tfrecord.columns.conform import conform, feature_of
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema import Schema

__all__ = ["Backing", "Held", "Lazy", "as_array", "as_column", "cut_along_rows", "held_arrays", "with_any_length"]

# Of an array that is read on demand, what is read at once.
_READ_NBYTES = 64 << 20


class Backing(Protocol):
    """Columns in chunks of rows."""

    @property
    def schema(self) -> Schema:
        """The columns there are."""

    @property
    def sizes(self) -> tuple[float, ...]:
        """Rows of each chunk, NaN where they are not counted."""

    @property
    def origin(self) -> Mapping[str, Any]:
        """Where the rows come from."""

    @property
    def recut(self) -> tuple[Recut, ...]:
        """Columns that had to be rechunked."""

    def array(self, name: str) -> da.Array:
        """One column by itself."""

    def arrays(self, names: Sequence[str]) -> dict[str, da.Array]:
        """Columns that are asked for together."""

    def chunks(self, names: Sequence[str]) -> da.Array:
        """Make an object array of one element per chunk: the dict of blocks of these columns."""

    def map(self, function: BlockFunction, columns: tuple[str, ...], schema: Schema) -> Backing:
        """Every chunk passed through a function."""

    def joined(self, names: Sequence[str], added: Held, schema: Schema) -> Held:
        """Make chunks of these columns and of those that are added."""

    def rows(self, key: Any) -> Backing:
        """Only those rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Lazy:
    """Columns read from a source when they are needed.

    Attributes
    ----------
    source : Source
        Where rows come from.
    borders : ndarray of int64 or None
        First row of each chunk, and the number of rows; None where rows are not counted.
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
        """The columns there are."""
        return self.source.schema

    @property
    def sizes(self) -> tuple[float, ...]:
        """Rows of each chunk, NaN where they are not counted."""
        if self.borders is None:
            return (np.nan,) * self.number
        return tuple(np.diff(self.borders).tolist())

    @property
    def origin(self) -> Mapping[str, Any]:
        """Where the rows come from."""
        return self.source.origin

    @property
    def recut(self) -> tuple[Recut, ...]:
        """None are: rows are read as they are needed."""
        return ()

    def array(self, name: str) -> da.Array:
        """One column by itself."""
        if self.borders is None:
            return self.arrays([name])[name]
        return alone(self.source, name, self.borders)

    def arrays(self, names: Sequence[str]) -> dict[str, da.Array]:
        """Columns that are asked for together."""
        features = {name: self.schema[name] for name in names}
        return views(self.chunks(names), features, self.sizes)

    def chunks(self, names: Sequence[str]) -> da.Array:
        """One dict of blocks per chunk."""
        return lazy_chunks(self.source, names, self.borders, self.number)

    def map(self, function: BlockFunction, columns: tuple[str, ...], schema: Schema) -> Lazy:
        """Every chunk passed through a function, within the task that decodes it."""
        return Lazy(MappedSource(self.source, columns, function, schema), self.borders, self.number)

    def joined(self, names: Sequence[str], added: Held, schema: Schema) -> Held:
        """Make chunks of these columns and of those that are added: read when the others are there."""
        plan, token = (tuple(sorted(names)), self.borders), tokenize(self, sorted(names), added.blocks.name, schema)
        parts = shared(self.source, "source"), shared(plan, "plan"), shared(schema, "schema")
        blocks = chunk_array(_read_beside, f"tfrecord-beside-{token}", self.number, added.blocks, *parts)
        return Held(blocks, schema, added.sizes, added.origin, added.recut)

    def rows(self, key: Any) -> Lazy:
        """Only those rows: replanned, so that nothing else is read."""
        source = self.source.select(key)
        if self.borders is None:
            raise ValueError("rows of an uncounted source")
        picked = pick_rows(range(int(self.borders[-1])), key)
        borders = _clipped(self.borders, picked)
        return Lazy(source, borders, len(borders) - 1)


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Columns in chunks that exist already, or follow from such.

    Attributes
    ----------
    blocks : dask array of object, shape (nchunks,)
        One dict of blocks per chunk.
    schema : Schema
        The columns there are.
    sizes : tuple of int or nan
        Rows of each chunk.
    origin : mapping
        Where the rows came from.
    recut : tuple of Recut
        Columns that had to be rechunked.
    """

    blocks: da.Array
    schema: Schema
    sizes: tuple[float, ...]
    origin: Mapping[str, Any]
    recut: tuple[Recut, ...] = ()

    def __dask_tokenize__(self) -> object:
        return "dask_tfrecord.Held", self.blocks.name

    def array(self, name: str) -> da.Array:
        """One column by itself."""
        return self.arrays([name])[name]

    def arrays(self, names: Sequence[str]) -> dict[str, da.Array]:
        """Columns that are asked for together."""
        return views(self.blocks, {name: self.schema[name] for name in names}, self.sizes)

    def chunks(self, names: Sequence[str]) -> da.Array:
        """One dict of blocks per chunk."""
        if set(names) == set(self.schema):
            return self.blocks
        return _each_chunk(_only, tuple(sorted(names)), self.blocks)

    def map(self, function: BlockFunction, columns: tuple[str, ...], schema: Schema) -> Held:
        """Every chunk passed through a function."""
        mapped = _each_chunk(_apply, (function, schema), self.chunks(columns))
        return Held(mapped, schema, self.sizes, origin_of_mapped(self.origin), self.recut)

    def joined(self, names: Sequence[str], added: Held, schema: Schema) -> Held:
        """Make chunks of these columns and of those that are added."""
        blocks = _each_chunk(_join, schema, self.chunks(names), added.blocks)
        return Held(blocks, schema, added.sizes, added.origin, self.recut + added.recut)

    def rows(self, key: Any) -> Held:
        """Only those rows, in the chunks that `Lazy` would make of them; just the rows picked leave their chunk."""
        if np.isnan(self.sizes).any():
            raise ValueError("rows can't be picked where counts=None left them uncounted; open with counts='auto'")
        borders = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)
        index = row_numbers(pick_rows(range(int(borders[-1])), key))
        cuts = _clipped(borders, index)
        name = f"tfrecord-rows-{tokenize(self.blocks.name, borders, index)}"
        tasks: dict[Any, Any] = {}
        schema = shared(self.schema, "schema")
        for place, (start, stop) in enumerate(pairwise(cuts.tolist())):
            rows = index[start:stop]
            origins = np.searchsorted(borders, rows, side="right") - 1
            parts = []
            for number in np.unique(origins).tolist():
                part = (f"{name}-part", place, number)
                tasks[part] = _take, (self.blocks.name, number), rows[origins == number] - borders[number], schema.key
                parts.append(part)
            order = np.argsort(np.argsort(origins, kind="stable"))
            tasks[name, place] = _put, parts, order, schema.key
        sources: list[Any] = [self.blocks, schema]
        graph = HighLevelGraph.from_collections(name, tasks, sources)
        picked = da.Array(graph, name, ((1,) * (len(cuts) - 1),), meta=np.empty(0, object))
        return Held(picked, self.schema, tuple(np.diff(cuts).tolist()), self.origin, self.recut)


def as_column(given: Any, sizes: Sequence[float], owner: str) -> da.Array:
    """Make an array a column, beside chunks of `sizes` rows; what is NumPy's is cut as they are.

    Raises
    ------
    SchemaError
        If it has another number of rows, or none that is known, or is of a dtype that no feature has.
    """
    array = as_array(given)
    feature_of(array, owner)
    rows = float(np.sum(sizes))
    if np.isnan(rows):
        chunks = array.chunks[0] if isinstance(array, da.Array) else array.shape[:1]
        if len(chunks) != len(sizes) or not np.isnan(chunks).all():
            raise SchemaError(
                f"{owner} has chunks of {chunks[:5]} rows where rows are not counted: only what follows from the "
                f"columns, chunk by chunk, is known to have as many; open with counts='auto'"
            )
    elif array.shape[0] != rows:
        raise SchemaError(f"{owner} has shape {array.shape} where {int(rows)} rows are needed")
    if isinstance(array, da.Array):
        return array
    column: da.Array = da.from_array(array, chunks=(tuple(sizes), *(-1,) * (array.ndim - 1)))
    return column


def as_array(given: Any) -> Any:
    """Make sure of a dask or NumPy array, of which strings are of any length; what is read on demand stays so."""
    array: Any = given
    if not hasattr(given, "chunks"):
        array = np.asarray(given)
    elif not isinstance(given, da.Array):  # Zarr's and HDF5's, of which a chunk is read whole
        rows = (given.chunks or (1,))[0]
        nbytes = max(1, int(given.dtype.itemsize * np.prod(given.shape[1:])))
        array = cut_along_rows(given, max(1, _READ_NBYTES // nbytes // rows) * rows)
    return with_any_length(array)


def cut_along_rows(array: Any, rows: int | tuple[int, ...]) -> da.Array:
    """Make chunks of rows of what is read on demand."""
    # Named by chance: what it holds may change, and by content would mean to read it all.
    name = f"tfrecord-array-{uuid.uuid4().hex}"
    made: da.Array = da.from_array(array, chunks=(rows, *(-1,) * (len(array.shape) - 1)), name=name)
    return made


def with_any_length(array: Any) -> Any:
    """Make strings of a fixed width, of a dask or NumPy array, text."""
    return array.astype(np.dtypes.StringDType()) if array.dtype.kind == "U" else array


def held_arrays(
    arrays: Mapping[str, da.Array], schema: Schema, sizes: tuple[float, ...], origin: Mapping[str, Any]
) -> Held:
    """Dask arrays as chunks of `sizes` rows; those that are cut otherwise are rechunked."""
    pairs: list[Any] = []
    for number, array in enumerate(arrays.values()):
        # One block per chunk: all axes but the rows in one piece, under index numbers of their own.
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
    return Held(blocks, schema, sizes, origin, recut_arrays(arrays.items(), sizes))


def _each_chunk(step: Callable[..., Chunk], option: object, *chunks: da.Array) -> da.Array:
    """``step(*chunks, option)`` for every chunk."""
    token = tokenize([array.name for array in chunks], option)
    prefix = step.__name__.strip("_")
    return chunk_array(step, f"tfrecord-{prefix}-{token}", chunks[0].numblocks[0], *chunks, shared(option, prefix))


def _only(chunk: Chunk, names: tuple[str, ...]) -> Chunk:
    return Chunk({name: chunk.blocks[name] for name in names})


def _apply(chunk: Chunk, option: tuple[BlockFunction, Schema]) -> Chunk:
    function, schema = option
    return Chunk(apply(function, {name: frozen(block) for name, block in chunk.blocks.items()}, schema, tuple(schema)))


def _take(chunk: Chunk, index: NDArray[np.int64], schema: Schema) -> dict[str, Block]:
    return {name: take_rows(chunk.blocks[name], index) for name in schema}


def _put(parts: Sequence[dict[str, Block]], order: NDArray[np.int64], schema: Schema) -> Chunk:
    blocks = {name: concatenate([part[name] for part in parts] or [zero_rows(schema[name])]) for name in schema}
    if (np.diff(order) > 0).all():
        return Chunk(blocks)
    return Chunk({name: take_rows(block, order) for name, block in blocks.items()})


def _collect(schema: Schema, *blocks: NDArray[Any]) -> Chunk:
    return _checked(
        {name: conform(schema[name], block, f"array {name!r} came") for name, block in zip(schema, blocks, strict=True)}
    )


def _read_beside(
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
        raise SchemaError(f"all columns have as many rows; a chunk of them has {rows}")
    return Chunk(blocks)


def _clipped(borders: NDArray[np.int64], picked: Rows) -> NDArray[np.int64]:
    """Borders for the rows picked: the chunks they lie in where they ascend, else as many rows as a chunk had."""
    count = len(picked)
    if count == 0:
        return np.array([0, 0])
    if isinstance(picked, range) and picked.step > 0:
        # How many of the rows lie before each border, rounded up; they may be billions.
        cuts = np.clip(-((picked.start - borders[1:-1]) // picked.step), 0, count)
    elif not isinstance(picked, range) and (np.diff(picked) >= 0).all():
        cuts = np.searchsorted(picked, borders[1:-1])
    else:
        rows = max(1, int(borders[-1]) // max(1, len(borders) - 1))
        return np.append(np.arange(0, count, rows), count)
    return np.unique(np.concatenate([[0], cuts, [count]]))
