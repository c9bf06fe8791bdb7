"""Rows of a `Dataset` as dask arrays: a source and its chunk borders, or chunks that exist already.

Rule: columns requested together are decoded together, and a key of a graph has one definition.

A single column is `da.from_array` over a `LazyColumn`: dask merges slices and ints of rows into the read. dask does not
merge lists and masks, so `Dataset.rows` handles those. Several columns share one task per chunk that decodes exactly
these columns; the name of the task identifies the set. Building a graph reads nothing.

dask may fuse a task into its only reader. The reader's key then has another definition than in a graph where the task
has two readers. A cluster that holds both graphs warns and may keep tasks forever. Tasks that read chunks therefore
have a second dependency, which excludes them from low-level fusion, and layers of chunks are annotated, which excludes
them from blockwise fusion.
"""

from __future__ import annotations

import math
import operator
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Self, TypeVar

import dask
import dask.local
import dask.threaded
import numpy as np
from dask.base import get_scheduler, normalize_token, tokenize
from dask.delayed import Delayed
from dask.utils import format_bytes
from numpy.typing import NDArray

from dask_tfrecord.blocks import (
    Block,
    RaggedBlock,
    allocating,
    block_nbytes,
    concatenate,
    frozen,
    rows_of,
    splits_of,
    take_rows,
    to_array,
    union,
    write_rows,
    zero_rows,
)
from dask_tfrecord.columns.conversions import conform, host_array
from dask_tfrecord.columns.records import renamed_records
from dask_tfrecord.errors import Location, SchemaError, plural, printable
from dask_tfrecord.features import Feature
from dask_tfrecord.features.metadata.labels import Labels, read_labels
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.rows.chunk_borders import borders_by_rows, distinct
from dask_tfrecord.rows.collection import RowNumbers, pick_rows, row_numbers
from dask_tfrecord.rows.counting import Attempts, raise_first
from dask_tfrecord.rows.dask_private import active_client
from dask_tfrecord.rows.engine import da, from_graph
from dask_tfrecord.rows.functions import BlockFunction, Mapped, OnBackend
from dask_tfrecord.rows.objects import as_chunk
from dask_tfrecord.rows.sources import (
    AnySource,
    CountedRows,
    RecordSource,
    RowChunks,
    UncountedChunks,
    UncountedSource,
)
from dask_tfrecord.rows.steps import Place, Renamed, Step, StepChunks, StepRows
from dask_tfrecord.rows.workers import Workers
from dask_tfrecord.settings import limits


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Blocks of some columns, as a chunk of an object array with one element.

    It reports its real size to dask. An object array of NumPy would report 8 bytes, so that a worker would not spill
    it.
    """

    blocks: dict[str, Block]

    def __getitem__(self, key: Any) -> Any:
        return self.blocks if key == 0 else self

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + sum(map(block_nbytes, self.blocks.values()))


class LazyColumn:
    """Array-like of one column of a source; indexing reads only the selected rows."""

    def __init__(self, source: CountedRows, name: str) -> None:
        feature = source.schema[name]
        self.source, self.name = source, name
        self.shape = (source.nrows, *feature.block_shape)
        self.dtype = feature.block_dtype
        self.ndim = len(self.shape)

    def __dask_tokenize__(self) -> object:
        return normalize_token(("dask_tfrecord.LazyColumn", self.source, self.name))

    def __getitem__(self, key: Any) -> Any:
        rows, *rest = key if isinstance(key, tuple) else (key,)
        if rows is Ellipsis:
            rows = slice(None)
        one = isinstance(rows, int | np.integer)
        block = self.source.read((self.name,), [rows] if one else rows)[self.name]
        array = as_chunk(block, self.name)
        return array[(0, *rest)] if one else array[(slice(None), *rest)]

    def in_chunks(self, sizes: Sequence[float]) -> da.Array:
        """Return a dask array in chunks of `sizes` rows."""
        chunks = (tuple(sizes), *((size,) for size in self.shape[1:]))
        array: da.Array = da.from_array(
            self,
            chunks=chunks,
            name=column_key("read", self.name, tokenize(self, np.asarray(sizes))),
            asarray=False,
            lock=False,
            meta=np.empty((0,) * self.ndim, self.dtype),
            # dask would fuse the node of a column with a single chunk into its reader, and only there.
            inline_array=len(sizes) == 1,
        )
        return array


def column_key(step: str, column: str, token: str) -> str:
    """Return a name of tasks that the dashboard of dask groups by step and column.

    `dask.utils.key_split` takes the first word of a name whole. Words are divided by hyphens, and it ends a name before
    the first of the others that is not of letters alone, or has eight and begins with one of a to f, like "counting".
    """
    return f"tfrecord:{step}:{printable(column).replace('-', chr(0x2010))}-{token}"


def shared(value: object, prefix: str) -> Delayed:
    """Return a graph node for an argument of many tasks, which is sent once per worker instead of with each task."""
    key = f"tfrecord:{prefix}-{tokenize(value)}"
    node: Delayed = dask.delayed(value, name=key, traverse=False)
    return node


def chunk_array(step: Callable[..., Chunk], name: str, number: int, *arguments: da.Array | Delayed) -> da.Array:
    """Return an object array with ``step(*arguments)`` per chunk, where each array contributes its chunk.

    At least two arguments are required, so that dask does not fuse the tasks with their inputs.
    """
    with dask.annotate(tfrecord=name):
        chunks: da.Array = da.map_blocks(
            step, *arguments, name=name, chunks=((1,) * number,), dtype=object, meta=np.empty(0, object)
        )
    return chunks


def read_chunk(
    source: AnySource, plan: tuple[tuple[str, ...], NDArray[np.int64] | None], block_id: tuple[int] = (0,)
) -> Chunk:
    """Read a chunk by a plan of column names and chunk borders."""
    names, borders = plan
    (number,) = block_id
    if not names:
        return Chunk({})
    if isinstance(source, UncountedChunks):
        return Chunk(source.read_chunk(names, number))
    assert borders is not None
    return Chunk(source.read(names, slice(*borders[number : number + 2].tolist())))


def block_array(
    step: Callable[..., NDArray[Any]],
    chunks: da.Array,
    option: object,
    name: str,
    shape: tuple[Any, ...],
    dtype: np.dtype[Any],
    *others: da.Array,
) -> da.Array:
    """Return an array of the blocks ``step(chunk, option, *others)``; of `others`, each block gets its element.

    `shape` has the rows of each block as a tuple, then the sizes of the other axes.
    """
    axes = tuple(range(len(shape)))
    array: da.Array = da.blockwise(
        step,
        axes,
        chunks,
        (0,),
        shared(option, "option"),
        None,
        *(argument for other in others for argument in (other, (0,))),
        name=name,
        dtype=dtype,
        meta=np.empty((0,) * len(axes), dtype),
        adjust_chunks={0: shape[0]},
        new_axes=dict(zip(axes[1:], shape[1:], strict=True)),
        align_arrays=False,
    )
    return array


def _view(name: str, chunk: Chunk, _: None) -> NDArray[Any]:
    return as_chunk(chunk.blocks[name], name)


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
        old, new = (splits_of(chunks[0]) for chunks in (self.before, self.after))
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
class Assigned:
    """A column that was added to those of a source or of blocks."""

    feature: Feature
    array: da.Array


class HasRows(ABC):
    """Collections that writers and other outputs take: their columns are `Rows`."""

    __slots__ = ()

    @abstractmethod
    def as_rows(self) -> Rows:
        """Return the columns, and how they are read."""


@dataclass(frozen=True, eq=False)
class Rows(HasRows):
    """Columns in chunks of rows: read from a source on demand, or existing blocks, and arrays that were assigned.

    Functions that open or convert data return rows; stores, batches and other outputs take them. `Dataset` holds them.

    No chunk is empty, except the only one of a data set without rows: dask's slices skip rows across empty chunks.
    `of_source` and `of_chunks` remove empty chunks. Chunks that are not counted may be empty.
    """

    # Features of the source, or of all blocks of a chunk; `schema` describes the columns.
    stored_schema: Schema
    # First row of each chunk, and the number of rows; None if rows are not counted.
    borders: NDArray[np.int64] | None
    nchunks: int
    stored_source: AnySource | None
    # One `Chunk` per element, unless there is a source.
    blocks: da.Array | None
    held_origin: Mapping[str, Any] | None = None
    rechunked: tuple[Rechunked, ...] = ()
    # Names of the columns, in order; None for those of the source or the blocks.
    selected: tuple[str, ...] | None = None
    # Columns that were added to those of the source or the blocks, in chunks of the same rows.
    assigned: Mapping[str, Assigned] = field(default_factory=dict)
    # Backend of dask that arrays of numbers are moved to.
    backend: str | None = None

    def __post_init__(self) -> None:
        borders = self.borders
        if borders is not None and not ((np.diff(borders) > 0).all() or borders.tolist() == [0, 0]):
            raise AssertionError(f"a chunk is empty: {borders}")

    @classmethod
    def of_source(cls, source: AnySource, borders: NDArray[np.int64] | None, nchunks: int = 1) -> Rows:
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
        borders = splits_of(list(map(int, sizes)))
        kept = nonempty_chunks(sizes)
        if len(kept) < len(sizes):
            # A task with two inputs, which dask does not fuse.
            name, index = f"tfrecord-filled-{tokenize(blocks.name, kept)}", shared(kept, "filled")
            tasks: dict[Any, Any] = {
                (name, number): (_same, (blocks.name, old), index.key) for number, old in enumerate(kept)
            }
            graph = {**blocks.__dask_graph__(), **index.__dask_graph__(), **tasks}
            blocks = from_graph(graph, name, ((1,) * len(kept),), np.empty(0, object))
            borders = distinct(borders)
        return cls(schema, borders, len(kept), None, blocks, origin, rechunked)

    @classmethod
    def of_arrays(
        cls, arrays: Mapping[str, da.Array], schema: Schema, sizes: Sequence[float], origin: Mapping[str, Any]
    ) -> Rows:
        """Combine dask arrays in chunks of `sizes` rows; arrays with other chunks are rechunked."""
        arrays = {name: without_empty_chunks(array) for name, array in arrays.items()}
        sizes = tuple(sizes[number] for number in nonempty_chunks(sizes))
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

    @classmethod
    def in_memory(cls, arrays: Mapping[str, NDArray[Any]], schema: Schema, sizes: Sequence[int]) -> Rows:
        """Divide NumPy arrays into chunks of `sizes` rows; objects become flat buffers once."""
        borders = splits_of(sizes).tolist()
        name = f"tfrecord-arrays-{tokenize(list(arrays.items()), tuple(sizes))}"
        chunks: dict[Any, Any] = {
            (name, number): _collect(schema, *(array[start:stop] for array in arrays.values()))
            for number, (start, stop) in enumerate(pairwise(borders))
        }
        return cls.of_chunks(from_graph(chunks, name, ((1,) * len(sizes),), np.empty(0, object)), schema, sizes, {})

    def as_rows(self) -> Rows:
        """Return these rows."""
        return self

    def __dask_tokenize__(self) -> object:
        arrays = [added.array.name for added in self.assigned.values()]
        return normalize_token(("dask_tfrecord.Rows", self._stored_token(), self.names, list(self.assigned), arrays))

    def _stored_token(self) -> object:
        """Return the identity of the source or the blocks, whatever columns of them are selected."""
        if self.stored_source is None:
            assert self.blocks is not None
            return "dask_tfrecord.Held", self.blocks.name
        return normalize_token(("dask_tfrecord.Lazy", self.stored_source, self.borders, self.nchunks))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(self.stored_schema) if self.selected is None else self.selected

    @property
    def stored_names(self) -> tuple[str, ...]:
        """Names of the columns that are not assigned."""
        return tuple(name for name in self.names if name not in self.assigned)

    @cached_property
    def schema(self) -> Schema:
        """Features of the columns."""
        stored, names, own = self.stored_schema, self.names, self.stored_names
        features = {name: self.assigned[name].feature if name in self.assigned else stored[name] for name in names}
        whole = not self.assigned and set(names) == set(stored)
        kept = {name: stored.classes[name] for name in own if name in stored.classes}
        groups: dict[str, Any] = {"groups": stored.groups_of(own), "inner_groups": stored.inner_groups}
        sampling = stored.sampling if whole else None
        return Schema(features, sampling, classes=kept, report=stored.report, records=stored.records, **groups)

    @property
    def source(self) -> AnySource | None:
        """Source that reads all columns on demand; None for chunks that exist, and if columns are assigned."""
        return None if self.assigned else self.stored_source

    @property
    def counted_source(self) -> CountedRows | None:
        """The source, if its rows are counted."""
        return self.source if isinstance(self.source, CountedRows) else None

    @property
    def chunked_source(self) -> UncountedChunks | None:
        """The source as one of chunks."""
        source = self.source
        if isinstance(source, CountedRows):
            assert self.borders is not None
            return RowChunks(source, self.borders)
        return source

    @cached_property
    def sizes(self) -> tuple[float, ...]:
        """Rows of each chunk; NaN if they are not counted. dask adds them up once for all arrays with this tuple."""
        return (np.nan,) * self.nchunks if self.borders is None else tuple(np.diff(self.borders).tolist())

    @property
    def nrows(self) -> int | None:
        """Number of rows; None if they are not counted."""
        return None if self.borders is None else int(self.borders[-1])

    def check_counted(self) -> None:
        """Raise ValueError if rows that are to be written are not counted."""
        if self.borders is None:
            raise ValueError("rows must be counted before they are written: open with counts='auto'")

    @property
    def origin(self) -> Mapping[str, Any]:
        """Origin of the rows, as JSON values."""
        return self.stored_source.origin if self.stored_source is not None else self.held_origin or {}

    def labels(self) -> Labels | None:
        """Return the labels next to the first shard of records that are read unchanged."""
        source = self.counted_source
        if source is None or source.inner is not None or not source.shards:
            return None
        return read_labels(source.shards[0])

    def array(self, name: str) -> da.Array:
        """Return one column, decoded on its own; slices restrict the rows that are read."""
        if name in self.assigned:
            return self._moved(self.assigned[name].array)
        if not isinstance(self.stored_source, CountedRows):
            return self._moved(self._taken([name])[name])
        return self._moved(LazyColumn(self.stored_source, name).in_chunks(self.sizes))

    def arrays(self, names: Sequence[str]) -> dict[str, da.Array]:
        """Return columns that are decoded together: each takes its block from every chunk."""
        own = [name for name in names if name not in self.assigned]
        # One column can't share its decoding with others.
        taken = self._taken(own) if len(own) > 1 else {}
        return {name: self._moved(taken[name]) if name in taken else self.array(name) for name in names}

    def _taken(self, names: Sequence[str]) -> dict[str, da.Array]:
        chunks, features = self.chunks(names), {name: self.stored_schema[name] for name in names}
        return {
            name: block_array(
                partial(_view, name),
                chunks,
                # All columns share their second input: dask visits each node once for every other column.
                None,
                column_key("take", name, tokenize(chunks.name, name)),
                (self.sizes, *feature.block_shape),
                feature.block_dtype,
            )
            for name, feature in features.items()
        }

    def _moved(self, array: da.Array) -> da.Array:
        """Move an array of numbers to the backend."""
        return array if self.backend is None or array.dtype.kind not in "biufc" else array.to_backend(self.backend)

    def chunks(self, names: Sequence[str]) -> da.Array:
        """Return an object array with one `Chunk` of these columns per element, decoded by one task each."""
        if any(name in self.assigned for name in names):
            return self.select_columns(names).merged().chunks(names)
        if self.stored_source is not None:
            plan = (tuple(sorted(names)), self.borders)
            key = f"tfrecord-decode-{tokenize(self.stored_source, plan, self.nchunks)}"
            parts = shared(self.stored_source, "source"), shared(plan, "plan")
            return chunk_array(read_chunk, key, self.nchunks, *parts)
        assert self.blocks is not None
        if set(names) == set(self.stored_schema):
            return self.blocks
        return each_chunk(_only, tuple(sorted(names)), self.blocks)

    def chunk(self, names: Sequence[str], number: int) -> dict[str, Block]:
        """Read one chunk of some columns in this thread."""
        if isinstance(self.source, UncountedChunks):
            return self.source.read_chunk(names, number)
        found: Chunk = self.chunks(names)[number].compute(scheduler="synchronous")
        return found.blocks

    def select_columns(self, names: Sequence[str]) -> Rows:
        """Return some columns, in this order; the others are not read."""
        return replace(
            self,
            selected=tuple(names),
            assigned={name: self.assigned[name] for name in names if name in self.assigned},
        )

    def without_others(self, names: Sequence[str]) -> Rows:
        """Return some columns, in this order, in chunks that their source has for them alone."""
        rows, source = self.select_columns(names), self.stored_source
        if rows.assigned or not isinstance(source, CountedRows) or self.borders is None:
            return rows
        borders = source.borders_of(names, self.borders)
        return replace(rows, borders=borders, nchunks=len(borders) - 1)

    def encoded(self, images: Sequence[str]) -> Rows:
        """Return the same rows with the bytes of some images of their source, which it does not decode."""
        assert self.counted_source is not None
        rows = Rows.of_source(self.counted_source.encoded(images), self.borders, self.nchunks)
        return replace(rows, selected=self.selected, backend=self.backend)

    def assign(self, added: Mapping[str, tuple[Feature, da.Array]]) -> Rows:
        """Add or replace columns by arrays in the same chunks of rows."""
        assigned = {name: Assigned(feature, without_empty_chunks(array)) for name, (feature, array) in added.items()}
        names = tuple(dict.fromkeys([*self.names, *added]))
        return replace(self, selected=names, assigned={**self.assigned, **assigned})

    def merged(self) -> Rows:
        """Return the same columns as a source, or as chunks that include the assigned ones."""
        if not self.assigned:
            return self
        schema = self.schema
        arrays = {name: added.array for name, added in self.assigned.items()}
        added = Rows.of_arrays(arrays, schema.select(self.assigned), self.sizes, self.origin)
        made = self._join(self.stored_names, added, schema) if self.stored_names else added
        return replace(made, selected=self.names, backend=self.backend)

    def map(self, function: BlockFunction, schema: Schema) -> Rows:
        """Pass every chunk through a function: rows of a source in the task that decodes them."""
        return self.apply(Mapped(self.names, OnBackend(function, self.backend), schema))

    def rename(self, names: Mapping[str, str]) -> Rows:
        """Return some columns under new names; `names` are the present ones by the new ones."""
        rows = self.merged()
        schema = rows.stored_schema.renamed(names, renamed_records(rows.stored_schema, names))
        return replace(rows.apply(Renamed(names, schema)), selected=tuple(names))

    def apply(self, step: Step, sizes: Sequence[float] | None = None) -> Rows:
        """Apply a step: to rows of a source in the task that decodes them, else to every chunk.

        `sizes` are the rows that chunks have after a step that changes their number, if they are counted.
        """
        rows = self.merged()
        if isinstance(rows.source, CountedRows) and step.keeps_rows:
            made = Rows.of_source(StepRows(rows.source, step), rows.borders)
        elif rows.chunked_source is not None:
            made = Rows.of_source(StepChunks(rows.chunked_source, step), None, rows.nchunks)
        else:
            option = step, rows.sizes, files_of(rows.origin)
            chunks = each_chunk(_apply, option, rows.chunks(step.needs(tuple(step.schema))))
            if sizes is None:
                sizes = rows.sizes if step.keeps_rows else (np.nan,) * rows.nchunks
            made = Rows.of_chunks(chunks, step.schema, sizes, step.origin(rows.origin), rows.rechunked)
        return replace(made, backend=self.backend)

    def _join(self, names: Sequence[str], added: Rows, schema: Schema) -> Rows:
        """Combine these columns with added ones, chunk by chunk."""
        assert added.blocks is not None
        if self.stored_source is None:
            blocks = each_chunk(_join, schema, self.chunks(names), added.blocks)
        else:
            # A task reads its rows once the added columns exist.
            plan = (tuple(sorted(names)), self.borders)
            token = tokenize(self._stored_token(), sorted(names), added.blocks.name, schema)
            parts = shared(self.stored_source, "source"), shared(plan, "plan"), shared(schema, "schema")
            name = f"tfrecord-read-and-join-{token}"
            blocks = chunk_array(_read_and_join, name, self.nchunks, added.blocks, *parts)
        return Rows.of_chunks(blocks, schema, added.sizes, added.origin, self.rechunked + added.rechunked)

    def select(self, key: Any) -> Rows:
        """Select rows and plan chunks anew: of a source only those rows are read, of blocks only those are sent."""
        if self.borders is None:
            raise ValueError("rows can't be picked where counts=None left them uncounted; open with counts='auto'")
        picked = pick_rows(range(int(self.borders[-1])), key)
        if isinstance(self.stored_source, CountedRows):
            made = Rows.of_source(self.stored_source.select(key), _clipped(self.borders, picked))
        else:
            made = self._take(row_numbers(picked), self.borders)
        assigned = {
            name: Assigned(added.feature, without_empty_chunks(added.array[key]))
            for name, added in self.assigned.items()
        }
        return replace(made, selected=self.selected, assigned=assigned, backend=self.backend)

    def head(self, nrows: int) -> dict[str, NDArray[Any]]:
        """Compute the first rows, or all if there are fewer; chunks of unknown sizes until there are enough rows."""
        if isinstance(self.source, UncountedSource) and self.names:
            first = dask.delayed(UncountedSource.first, pure=False)(self.source, self.names, nrows)
            return {name: to_array(block) for name, block in first.compute().items()}
        if self.nrows is not None:
            return self.select(slice(nrows)).compute()
        return first_rows(self.chunks(self.names), self.schema, nrows)

    def count(self) -> int:
        """Return the number of rows; count them now if they are not counted."""
        return count_rows(self.chunks(self.names[:1])) if self.nrows is None else self.nrows

    def compute(self, **options: Any) -> dict[str, NDArray[Any]]:
        """Compute all columns as NumPy arrays; threads decode records directly into the results."""
        active_client()
        scheduler = get_scheduler(collections=[self], scheduler=options.get("scheduler"))
        local = scheduler in (dask.threaded.get, dask.local.get_sync)
        if local and self.borders is not None and isinstance(self.stored_source, CountedRows):
            arrays = {name: added.array for name, added in self.assigned.items()}
            return compute_in_place(self.stored_source, self.borders, self.schema, arrays, options)
        columns: dict[str, NDArray[Any]] = dask.compute(self, **options)[0]
        return columns

    def to_delayed(self) -> list[Delayed]:
        """Return a delayed dict of arrays for each chunk."""
        columns = each_chunk(_as_columns, self.schema, self.chunks(self.names))
        # An optimised graph would not refer to the futures of persisted chunks, so that a cluster could release them.
        chunks: list[Delayed] = columns.to_delayed(optimize_graph=False).ravel().tolist()
        return chunks

    def _parts(self) -> list[da.Array]:
        """Return the chunks of the stored columns, and the assigned arrays in the order of the columns."""
        added = [self.assigned[name].array for name in self.names if name in self.assigned]
        return [self.chunks(self.stored_names), *added]

    def __dask_graph__(self) -> dict[Any, Any]:
        return {key: task for part in self._parts() for key, task in part.__dask_graph__().items()}

    def __dask_keys__(self) -> list[Any]:
        return [part.__dask_keys__() for part in self._parts()]

    @property
    def __dask_optimize__(self) -> Callable[..., Any]:
        # dask optimizes collections of one function together.
        optimize: Callable[..., Any] = da.Array.__dask_optimize__
        return optimize

    __dask_scheduler__ = staticmethod(dask.threaded.get)

    def __dask_postcompute__(self) -> tuple[Callable[..., dict[str, NDArray[Any]]], tuple[Any, ...]]:
        finalizers = [part.__dask_postcompute__() for part in self._parts()[1:]]
        names = [name for name in self.names if name in self.assigned]
        return gather, (self.names, self.schema, dict(zip(names, finalizers, strict=True)))

    def __dask_postpersist__(self) -> tuple[Callable[..., Rows], tuple[Any, ...]]:
        rebuilders = [part.__dask_postpersist__() for part in self._parts()]
        own = self.stored_schema.select(self.stored_names)
        features = {name: self.assigned[name].feature for name in self.names if name in self.assigned}
        kept = {"selected": self.names, "backend": self.backend}
        return _rebuild, (rebuilders, features, (own, self.sizes, self.origin), kept)

    def _take(self, index: NDArray[np.int64], borders: NDArray[np.int64]) -> Rows:
        assert self.blocks is not None
        cuts = _clipped(borders, index)
        name = f"tfrecord-rows-{tokenize(self.blocks.name, borders, index)}"
        tasks: dict[Any, Any] = {}
        schema = shared(self.stored_schema, "schema")
        for chunk, (start, stop) in enumerate(pairwise(cuts.tolist())):
            rows = index[start:stop]
            origins = np.searchsorted(borders, rows, side="right") - 1
            numbers = union(origins).tolist()
            if len(numbers) == 1:
                # One task: dask would fuse two in some graphs and not in others.
                tasks[name, chunk] = _take, (self.blocks.name, numbers[0]), rows - borders[numbers[0]], schema.key
                continue
            parts = []
            for number in numbers:
                part = (f"{name}-part", chunk, number)
                tasks[part] = _take, (self.blocks.name, number), rows[origins == number] - borders[number], schema.key
                parts.append(part)
            order = np.argsort(np.argsort(origins, kind="stable"))
            tasks[name, chunk] = _put, parts, order, schema.key
        graph = {**self.blocks.__dask_graph__(), **schema.__dask_graph__(), **tasks}
        picked = from_graph(graph, name, ((1,) * (len(cuts) - 1),), np.empty(0, object))
        return Rows.of_chunks(picked, self.stored_schema, np.diff(cuts).tolist(), self.origin, self.rechunked)


def _rebuild(
    dsk: Any,
    rebuilders: Sequence[tuple[Any, tuple[Any, ...]]],
    features: Mapping[str, Feature],
    stored: tuple[Schema, tuple[float, ...], Mapping[str, Any]],
    kept: Mapping[str, Any],
    *,
    rename: Mapping[str, str] | None = None,
) -> Rows:
    chunks, *arrays = (rebuild(dsk, *options, rename=rename) for rebuild, options in rebuilders)
    assigned = {
        name: Assigned(feature, without_empty_chunks(array))
        for (name, feature), array in zip(features.items(), arrays, strict=True)
    }
    return replace(Rows.of_chunks(chunks, *stored), assigned=assigned, **kept)


def nonempty_chunks(sizes: Sequence[float]) -> list[int]:
    """Return the numbers of the chunks with rows; the first one if there are no rows."""
    return [number for number, size in enumerate(sizes) if size] or [0]


def without_empty_chunks(array: da.Array) -> da.Array:
    """Remove the empty chunks of rows of an array."""
    kept = nonempty_chunks(array.chunks[0])
    if len(kept) == len(array.chunks[0]):
        return array
    filled: da.Array = array.blocks[kept]
    return filled


def each_chunk(step: Callable[..., Any], option: object, *chunks: da.Array) -> da.Array:
    """Call ``step(*chunks, option)`` for every chunk."""
    token = tokenize([array.name for array in chunks], option)
    prefix = step.__name__.strip("_").replace("_", "-")
    return chunk_array(step, f"tfrecord-{prefix}-{token}", chunks[0].numblocks[0], *chunks, shared(option, prefix))


def _same(chunk: Chunk, _: list[int]) -> Chunk:
    return chunk


def _only(chunk: Chunk, names: tuple[str, ...]) -> Chunk:
    return Chunk({name: chunk.blocks[name] for name in names})


def _apply(chunk: Chunk, option: tuple[Step, tuple[float, ...], str], block_id: tuple[int] = (0,)) -> Chunk:
    step, sizes, files = option
    blocks = {name: frozen(block) for name, block in chunk.blocks.items()}
    return Chunk(step.apply(blocks, tuple(step.schema), place_of_chunk(sizes, files, block_id[0])))


def place_of_chunk(sizes: tuple[float, ...], files: str, number: int) -> Place:
    """Return where the rows of a chunk that exists are from: assigned columns have no records."""
    start, size = float(np.sum(sizes[:number])), sizes[number]
    if np.isnan(start + size):
        return Place(lambda: f"chunk {number} of {files}")
    rows = range(int(start), int(start + size))
    return Place(lambda: f"rows {rows.start} to {rows.stop - 1} of {files}", rows)


def locate_in_chunk(
    source: AnySource | None, borders: NDArray[np.int64] | None, number: int, row: int, feature: str
) -> Location:
    """Return the location of a row of a chunk, for errors; without a source, rows are in memory."""
    start = 0 if borders is None else int(borders[number])
    if isinstance(source, CountedRows):
        return source.locate(row, feature, start)
    if borders is not None:
        return Location("rows in memory", start + row, feature=feature)
    place = "rows in memory" if source is None else source.describe_chunk(number)
    return Location(f"{place}: row {row} of chunk {number}", feature=feature)


def files_of(origin: Mapping[str, Any]) -> str:
    """Return the files of an origin as text, for errors."""
    files = origin.get("files", [origin["store"]] if "store" in origin else [])
    return (files[0] if len(files) == 1 else f"{files[0]} to {files[-1]}") if files else "the data set"


def _take(chunk: Chunk, index: NDArray[np.int64], schema: Schema) -> Chunk:
    return Chunk({name: take_rows(chunk.blocks[name], index) for name in schema})


def _put(parts: Sequence[Chunk], order: NDArray[np.int64], schema: Schema) -> Chunk:
    blocks = {name: concatenate([part.blocks[name] for part in parts] or [zero_rows(schema[name])]) for name in schema}
    if (np.diff(order) > 0).all():
        return Chunk(blocks)
    return Chunk({name: take_rows(block, order) for name, block in blocks.items()})


def _collect(schema: Schema, *blocks: NDArray[Any]) -> Chunk:
    return _checked_block(
        {
            name: conform(schema[name], block, f"array {name!r}", lossless=True)
            for name, block in zip(schema, blocks, strict=True)
        }
    )


def _read_and_join(
    added: Chunk,
    source: AnySource,
    plan: tuple[tuple[str, ...], NDArray[np.int64] | None],
    schema: Schema,
    block_id: tuple[int] = (0,),
) -> Chunk:
    return _join(read_chunk(source, plan, block_id), added, schema)


def _join(first: Chunk, second: Chunk, schema: Schema) -> Chunk:
    blocks = first.blocks | second.blocks
    return _checked_block({name: blocks[name] for name in schema})


def _checked_block(blocks: dict[str, Block]) -> Chunk:
    rows = {name: len(block) for name, block in blocks.items()}
    if len(set(rows.values())) > 1:
        raise SchemaError(f"columns must have the same number of rows; a chunk has {rows}")
    return Chunk(blocks)


def _clipped(borders: NDArray[np.int64], picked: RowNumbers) -> NDArray[np.int64]:
    """Cut selected rows into chunks: at their chunks' borders if they ascend, else evenly."""
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
        return borders_by_rows(count, rows)
    return union([0], cuts, [count])


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


def compute_in_place(
    source: CountedRows,
    borders: NDArray[np.int64],
    schema: Schema,
    assigned: Mapping[str, da.Array],
    options: Mapping[str, Any],
) -> dict[str, NDArray[Any]]:
    """Compute all columns with threads of this process, which decode directly into the results."""
    rows = int(borders[-1])
    results: dict[str, NDArray[Any]] = {}
    for name, feature in schema.items():
        with allocating(name, feature):
            results[name] = np.empty((rows, *feature.block_shape), feature.block_dtype)
    own = {name: array for name, array in results.items() if name not in assigned}
    tasks = []
    written: dict[str, list[int]] = {name: [] for name in schema}
    if own:
        stored, order = _in_stored_order(source)
        borders = stored.refine(borders, _read_nbytes(stored, schema, options))
        reads = _ReadIntoResults(stored, borders, own, order, written)
        tasks.append(reads.tasks(f"tfrecord-compute-{uuid.uuid4().hex}"))
    if assigned:
        targets: list[Any] = [_Unmasked(name, results[name], written[name]) for name in assigned]
        tasks.append(da.store(list(assigned.values()), targets, lock=False, compute=False))
    done = dask.compute(*tasks, **options)
    if own:
        raise_first(done[0])
    for name, counts in written.items():
        # Memory that was not written holds anything. dask does not store arrays without values.
        if results[name].size and sum(counts) != rows:
            raise SchemaError(f"column {name!r}: expected {plural(rows, 'row')}, found {sum(counts):,} in its chunks")
    return results


def _read_nbytes(source: CountedRows, schema: Schema, options: Mapping[str, Any]) -> int:
    """Return the stored bytes of one read.

    Bytes exist twice, as flat buffers and as objects, for one read only. Larger reads cost less Python, for which
    threads wait for each other, and add little to the results of large data. Blocks of functions, and decoded arrays
    of different shapes, may be much larger than what is stored, so their reads stay small.
    """
    least, most = limits().compute_read_nbytes, limits().most_compute_read_nbytes
    total = source.cost(np.array([[0, source.nrows]]))
    if total is None or not isinstance(source, RecordSource) or any(each.own_shapes for each in schema.values()):
        return least
    with dask.config.set({name: options[name] for name in ("scheduler", "num_workers", "pool") if name in options}):
        threads = Workers.of_this_process().threads
    return int(np.clip(total[0] / (limits().reads_of_a_thread * threads), least, most))


def _in_stored_order(source: CountedRows) -> tuple[CountedRows, NDArray[np.int64] | None]:
    """Return a source with the rows in stored order, so that each range of bytes is read once.

    The second value is the original position of each row; None if the order is unchanged.
    """
    rows = source.rows
    if rows.step > 0 if isinstance(rows, range) else (np.diff(rows) >= 0).all():
        return source, None
    order = np.argsort(row_numbers(rows), kind="stable")
    return source.select(order), order


class _Unmasked:
    """Result of an assigned array that refuses masked blocks, and blocks of other shapes, which NumPy would accept."""

    def __init__(self, name: str, result: NDArray[Any], written: list[int]) -> None:
        self.name, self.result, self.written = name, result, written

    def __setitem__(self, key: Any, block: Any) -> None:
        start, target = key[0].start or 0, self.result[key]
        block = host_array(block, f"column {self.name!r}", start)
        if np.shape(block) != target.shape:
            raise SchemaError(
                f"column {self.name!r}: the chunk of row {start} has shape {np.shape(block)}; expected {target.shape}, "
                f"as its array declares"
            )
        self.result[key] = block
        if all((part.start or 0) == 0 for part in key[1:]):
            self.written.append(len(target))


@dataclass(frozen=True, eq=False)
class _ReadIntoResults:
    """Read a source's rows straight into all result columns."""

    source: CountedRows
    borders: NDArray[np.int64]  # first row of each read, and the number of rows
    results: Mapping[str, NDArray[Any]]
    order: NDArray[np.int64] | None  # row of a result for each row of the source; None if they are the same
    written: Mapping[str, list[int]]  # rows that were written, by column
    attempts: Attempts = field(default_factory=Attempts)

    def tasks(self, name: str) -> da.Array:
        """Return a task for each read: an element is its error, so that the first in the order of rows is raised."""
        number = len(self.borders) - 1
        tasks: dict[Any, Any] = {(name, read): (self._attempt, read) for read in range(number)}
        return from_graph(tasks, name, ((1,) * number,), np.empty(0, object))

    def _attempt(self, number: int) -> NDArray[np.object_]:
        done = np.empty(1, np.object_)
        done[0] = self.attempts.call(number, partial(self._read, number))
        return done

    def _read(self, number: int) -> None:
        start, stop = self.borders[number : number + 2].tolist()
        target = slice(start, stop) if self.order is None else self.order[start:stop]
        dense = {}
        if self.order is None:
            dense = {name: array[target] for name, array in self.results.items() if array.dtype.kind in "biufc"}
        blocks = self.source.read(tuple(self.results), slice(start, stop), dense)
        for name, block in blocks.items():
            self.written[name].append(len(block))
            if name not in dense:
                # Only decoded values belong to these rows alone: functions and chunks may return parts of others.
                views = isinstance(self.source, RecordSource)
                if isinstance(target, slice):
                    write_rows(block, self.results[name][target], views=views)
                elif views and isinstance(block, RaggedBlock):
                    self.results[name][target] = block.views()
                else:
                    self.results[name][target] = to_array(block)


def gather(
    results: Sequence[Any], names: Sequence[str], schema: Schema, finalizers: Mapping[str, tuple[Any, Any]]
) -> dict[str, NDArray[Any]]:
    """Concatenate chunks of blocks, and results of assigned arrays, to one array per column."""
    # A worker may hold the same chunk objects for other tasks: they must not be modified.
    chunks: list[dict[str, Block]] = [chunk.blocks for chunk in results[0]]
    rest = dict(zip(finalizers, results[1:], strict=True))
    columns = {}
    for name in names:
        if name in rest:
            finalize, extra = finalizers[name]
            columns[name] = host_array(finalize(rest[name], *extra), f"column {name!r}")
        else:
            columns[name] = to_array(concatenate([zero_rows(schema[name]), *(chunk[name] for chunk in chunks)]))
    rows = {name: len(column) for name, column in columns.items()}
    if len(set(rows.values())) > 1:
        # If rows are not counted, a mismatch is only known now.
        raise SchemaError(f"columns must have the same number of rows; got {rows}")
    return columns


def _as_columns(chunk: Chunk, schema: Schema) -> dict[str, NDArray[Any]]:
    return gather([[chunk]], tuple(schema), schema, {})


def first_rows(chunks: da.Array, schema: Schema, rows: int) -> dict[str, NDArray[Any]]:
    """Return the first rows of chunks of unknown sizes; chunks are computed one by one until there are enough rows."""
    blocks_of: dict[str, list[Block]] = {name: [zero_rows(feature)] for name, feature in schema.items()}
    for number in range(chunks.numblocks[0] if schema else 0):
        if rows <= 0:
            break
        chunk: Chunk = chunks[number : number + 1].compute()
        for name, block in chunk.blocks.items():
            blocks_of[name].append(rows_of(block, 0, min(rows, len(block))))
        rows -= len(block)
    return {name: to_array(concatenate(blocks)) for name, blocks in blocks_of.items()}


def count_rows(chunks: da.Array) -> int:
    """Count the rows of chunks of unknown sizes."""
    counts = da.map_blocks(_chunk_rows, chunks, dtype=np.int64, meta=np.empty(0, np.int64))
    return int(counts.sum().compute())


def _chunk_rows(chunk: Chunk) -> NDArray[np.int64]:
    for block in chunk.blocks.values():
        return np.array([len(block)], np.int64)
    raise ValueError("rows without a column cannot be counted; open with counts='auto'")


Result = TypeVar("Result")


class ChunkIterator(Iterator[Result]):
    """Results of a function for each chunk of columns, made ahead; nothing without columns."""

    def __init__(self, rows: Rows, names: Sequence[str], step: Callable[[Chunk, int], Result]) -> None:
        self._results = _iterate_chunks(rows, tuple(sorted(names)), step)

    def __next__(self) -> Result:
        return next(self._results)

    def close(self) -> None:
        """Stop the tasks."""
        self._results.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _iterate_chunks(
    rows: Rows, names: tuple[str, ...], step: Callable[[Chunk, int], Result]
) -> Generator[Result, None, None]:
    """Yield the result of a function for each chunk, called in the thread or the worker that read it.

    Chunks that are begun and not yielded are at most one more than there are threads. An error of a chunk is raised in
    its turn. Closing the generator cancels chunks that are not started, and waits for those that are.
    """
    number, client = rows.nchunks if names else 0, active_client()
    if client is not None:
        yield from _from_cluster(client, rows, names, step, number)
        return
    source, chunks = rows.source, [] if rows.source is not None else rows.chunks(names).to_delayed().ravel()

    def read(number: int) -> Result:
        if source is not None:
            return _read_step(source, (names, rows.borders), step, number)
        return step(chunks[number].compute(scheduler="sync"), number)

    if get_scheduler() is dask.local.get_sync:
        yield from map(read, range(number))
        return
    threads = Workers.active().threads
    with ThreadPoolExecutor(threads, "dask-tfrecord") as pool:
        futures: deque[Any] = deque()
        try:
            yield from _ahead(number, 1 + threads, lambda chunk: pool.submit(read, chunk), futures)
        finally:
            for future in futures:
                future.cancel()


def _from_cluster(
    client: Any, rows: Rows, names: tuple[str, ...], step: Callable[[Chunk, int], Result], number: int
) -> Iterator[Result]:
    name, futures, reader = f"tfrecord-read-ahead-{uuid.uuid4().hex}", deque[Any](), []
    if rows.source is not None:
        # A task of its own, so that the source is sent once.
        read = partial(_read_step, rows.source, (names, rows.borders), step)
        reader.append(client.submit(partial, read, key=f"{name}-source"))

        def start(chunk: int) -> Any:
            return client.submit(operator.call, *reader, chunk, key=(name, chunk))

    else:
        call = dask.delayed(step, name=f"{name}-step", traverse=False)
        chunks = rows.chunks(names).to_delayed().ravel()

        def start(chunk: int) -> Any:
            return client.compute(call(chunks[chunk], chunk))

    try:
        yield from _ahead(number, 1 + sum(client.nthreads().values()), start, futures)
    finally:
        # The connection may be closed.
        if futures and client.status == "running":
            client.cancel(list(futures))
        for future in (*futures, *reader):
            future.release()


def _ahead(number: int, most: int, start: Callable[[int], Any], futures: deque[Any]) -> Iterator[Any]:
    """Yield results in order, with at most `most` futures begun and not yielded."""
    started = 0
    for _ in range(number):
        while started < number and len(futures) < max(1, most):
            futures.append(start(started))
            started += 1
        yield _result(futures.popleft())


def _result(future: Any) -> Any:
    """Return the result of a future, without a reference to it that would keep the chunk in memory."""
    try:
        return future.result()
    finally:
        # The traceback of an error refers to the future of a cluster.
        if hasattr(future, "release"):
            future.release()


def _read_step(
    source: AnySource,
    plan: tuple[tuple[str, ...], NDArray[np.int64] | None],
    step: Callable[[Chunk, int], Result],
    number: int,
) -> Result:
    return step(read_chunk(source, plan, (number,)), number)
