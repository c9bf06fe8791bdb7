"""`Rows` of a `Dataset`: a source and its chunk borders, or chunks that exist already, and what is done with them.

The tasks and arrays of dask are made in `rows/graph.py`, results in `rows/compute.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import dask
import dask.local
import dask.threaded
import numpy as np
from dask.base import get_scheduler, normalize_token, tokenize
from dask.delayed import Delayed
from numpy.typing import NDArray

from dask_tfrecord.blocks import Block, concatenate, frozen, splits_of, take_rows, to_array, union, zero_rows
from dask_tfrecord.columns.conversions import conform
from dask_tfrecord.columns.records import renamed_records
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features import Feature
from dask_tfrecord.features.metadata.labels import Labels, read_labels
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.rows.chunk_borders import borders_by_rows, distinct
from dask_tfrecord.rows.collection import RowKey, RowNumbers, pick_rows, row_numbers
from dask_tfrecord.rows.compute import compute_in_place, count_rows, first_rows, gather
from dask_tfrecord.rows.dask_private import active_client
from dask_tfrecord.rows.engine import da, from_graph
from dask_tfrecord.rows.functions import BlockFunction, Mapped, OnBackend
from dask_tfrecord.rows.graph import (
    Chunk,
    LazyColumn,
    Rechunked,
    block_array,
    chunk_array,
    each_chunk,
    files_of,
    find_rechunked,
    nonempty_chunks,
    place_of_chunk,
    read_chunk,
    shared,
    without_empty_chunks,
)
from dask_tfrecord.rows.object_array import as_chunk
from dask_tfrecord.rows.sources import AnySource, CountedRows, RowChunks, UncountedChunks, UncountedSource
from dask_tfrecord.rows.steps import Place, Renamed, Step, StepChunks, StepRows
from dask_tfrecord.rows.task_names import column_key, label_key, step_key


def _view_column(name: str, chunk: Chunk, _: None) -> NDArray[Any]:
    return as_chunk(chunk.blocks[name], name)


@dataclass(frozen=True, slots=True, eq=False)
class Assigned:
    """A column that was added to a source or to blocks."""

    feature: Feature
    array: da.Array


# Function of the blocks of a chunk, and of where its rows are from.
OfChunk = Callable[[Mapping[str, Block], Place], NDArray[Any]]


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
    # Names of the columns, in order; None for the columns of the source or the blocks.
    selected: tuple[str, ...] | None = None
    # Columns that were added to the source or the blocks, in chunks of the same rows.
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
            name, index = step_key("filled", blocks.name, kept), shared(kept, "filled")
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
        name = step_key("collect", [array.name for array in arrays.values()], tuple(arrays), sizes)
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
        name = step_key("arrays", list(arrays.items()), tuple(sizes))
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
        has_all = not self.assigned and set(names) == set(stored)
        return Schema(
            features,
            # Sampling describes all inferred features together.
            stored.sampling if has_all else None,
            classes={name: stored.classes[name] for name in own if name in stored.classes},
            report=stored.report,
            records=stored.records,
            groups=stored.groups_of(own),
            inner_groups=stored.inner_groups,
        )

    @property
    def source(self) -> AnySource | None:
        """Source that reads all columns on demand; None for chunks that exist, and if columns are assigned."""
        return None if self.assigned else self.stored_source

    @property
    def counted_source(self) -> CountedRows | None:
        """The source, if its rows are counted."""
        return self.source if isinstance(self.source, CountedRows) else None

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
            return self._moved(self._stored_arrays([name])[name])
        return self._moved(LazyColumn(self.stored_source, name).in_chunks(self.sizes))

    def arrays(self, names: Sequence[str]) -> dict[str, da.Array]:
        """Return columns that are decoded together: each takes its block from every chunk."""
        own = [name for name in names if name not in self.assigned]
        # One column can't share its decoding with others.
        taken = self._stored_arrays(own) if len(own) > 1 else {}
        return {name: self._moved(taken[name]) if name in taken else self.array(name) for name in names}

    def _stored_arrays(self, names: Sequence[str]) -> dict[str, da.Array]:
        """Make the arrays of stored columns, which share one task per chunk."""
        chunks = self.chunks(names)
        features = {name: self.stored_schema[name] for name in names}
        return {
            name: block_array(
                partial(_view_column, name),
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
            key = step_key("decode", self.stored_source, plan, self.nchunks)
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
        """Return some columns, in this order, in the chunks that their source makes for reading only these."""
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
        source = rows.source
        if isinstance(source, CountedRows) and step.keeps_rows:
            made = Rows.of_source(StepRows(source, step), rows.borders)
        elif source is not None:
            if isinstance(source, CountedRows):
                assert rows.borders is not None
                source = RowChunks(source, rows.borders)
            made = Rows.of_source(StepChunks(source, step), None, rows.nchunks)
        else:
            option = step, rows.sizes, files_of(rows.origin)
            chunks = each_chunk(_apply, option, rows.chunks(step.needs(tuple(step.schema))))
            if sizes is None:
                sizes = rows.sizes if step.keeps_rows else (np.nan,) * rows.nchunks
            made = Rows.of_chunks(chunks, step.schema, sizes, step.origin(rows.origin), rows.rechunked)
        return replace(made, backend=self.backend)

    def compute_by_chunk(
        self, function: OfChunk, label: str, names: Sequence[str], sizes: Sequence[float], dtype: type
    ) -> NDArray[Any]:
        """Compute ``function(blocks, place)`` for every chunk of some columns, and join the arrays of `sizes`."""
        chunks, option = self.chunks(names), (function, self.sizes, files_of(self.origin))
        name, numbers = label_key(label, chunks.name, option), da.arange(self.nchunks, chunks=1)
        arrays = block_array(_of_chunk, chunks, option, name, (tuple(sizes),), np.dtype(dtype), numbers)
        joined: NDArray[Any] = arrays.compute()
        return joined

    def _join(self, names: Sequence[str], added: Rows, schema: Schema) -> Rows:
        """Combine these columns with added ones, chunk by chunk."""
        assert added.blocks is not None
        if self.stored_source is None:
            blocks = each_chunk(_join, schema, self.chunks(names), added.blocks)
        else:
            # A task reads its rows once the added columns exist.
            plan = (tuple(sorted(names)), self.borders)
            parts = shared(self.stored_source, "source"), shared(plan, "plan"), shared(schema, "schema")
            name = step_key("read-and-join", self._stored_token(), sorted(names), added.blocks.name, schema)
            blocks = chunk_array(_read_and_join, name, self.nchunks, added.blocks, *parts)
        return Rows.of_chunks(blocks, schema, added.sizes, added.origin, self.rechunked + added.rechunked)

    def select(self, key: RowKey) -> Rows:
        """Select rows and plan chunks anew: of a source only those rows are read, of blocks only those are sent."""
        if self.borders is None:
            raise ValueError("rows can't be picked where counts=None left them uncounted; open with counts='auto'")
        picked = pick_rows(range(int(self.borders[-1])), key)
        if isinstance(self.stored_source, CountedRows):
            made = Rows.of_source(self.stored_source.select(key), _cut_selected(self.borders, picked))
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

    def _graph_parts(self) -> list[da.Array]:
        """Return the chunks of the stored columns, and the assigned arrays in the order of the columns."""
        added = [self.assigned[name].array for name in self.names if name in self.assigned]
        return [self.chunks(self.stored_names), *added]

    def __dask_graph__(self) -> dict[Any, Any]:
        return {key: task for part in self._graph_parts() for key, task in part.__dask_graph__().items()}

    def __dask_keys__(self) -> list[Any]:
        return [part.__dask_keys__() for part in self._graph_parts()]

    @property
    def __dask_optimize__(self) -> Callable[..., Any]:
        # dask optimizes collections of one function together.
        optimize: Callable[..., Any] = da.Array.__dask_optimize__
        return optimize

    __dask_scheduler__ = staticmethod(dask.threaded.get)

    def __dask_postcompute__(self) -> tuple[Callable[..., dict[str, NDArray[Any]]], tuple[Any, ...]]:
        finalizers = [part.__dask_postcompute__() for part in self._graph_parts()[1:]]
        names = [name for name in self.names if name in self.assigned]
        return gather, (self.names, self.schema, dict(zip(names, finalizers, strict=True)))

    def __dask_postpersist__(self) -> tuple[Callable[..., Rows], tuple[Any, ...]]:
        rebuilders = [part.__dask_postpersist__() for part in self._graph_parts()]
        own = self.stored_schema.select(self.stored_names)
        features = {name: self.assigned[name].feature for name in self.names if name in self.assigned}
        kept = {"selected": self.names, "backend": self.backend}
        return _rebuild, (rebuilders, features, (own, self.sizes, self.origin), kept)

    def _take(self, index: NDArray[np.int64], borders: NDArray[np.int64]) -> Rows:
        """Pick rows of chunks that exist; each new chunk takes its rows from the old ones that hold them."""
        assert self.blocks is not None
        cuts = _cut_selected(borders, index)
        name = step_key("rows", self.blocks.name, borders, index)
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
    """Make the rows again after dask has replaced their graph, as `persist` does."""
    chunks, *arrays = (rebuild(dsk, *options, rename=rename) for rebuild, options in rebuilders)
    assigned = {
        name: Assigned(feature, without_empty_chunks(array))
        for (name, feature), array in zip(features.items(), arrays, strict=True)
    }
    return replace(Rows.of_chunks(chunks, *stored), assigned=assigned, **kept)


def _same(chunk: Chunk, _: list[int]) -> Chunk:
    return chunk


def _only(chunk: Chunk, names: tuple[str, ...]) -> Chunk:
    return Chunk({name: chunk.blocks[name] for name in names})


def _apply(chunk: Chunk, option: tuple[Step, tuple[float, ...], str], block_id: tuple[int] = (0,)) -> Chunk:
    step, sizes, files = option
    blocks = {name: frozen(block) for name, block in chunk.blocks.items()}
    return Chunk(step.apply(blocks, tuple(step.schema), place_of_chunk(sizes, files, block_id[0])))


def _of_chunk(chunk: Chunk, option: tuple[OfChunk, tuple[float, ...], str], number: NDArray[np.int64]) -> NDArray[Any]:
    function, sizes, files = option
    blocks = {name: frozen(block) for name, block in chunk.blocks.items()}
    return function(blocks, place_of_chunk(sizes, files, int(number[0])))


def _take(chunk: Chunk, index: NDArray[np.int64], schema: Schema) -> Chunk:
    return Chunk({name: take_rows(chunk.blocks[name], index) for name in schema})


def _put(parts: Sequence[Chunk], order: NDArray[np.int64], schema: Schema) -> Chunk:
    blocks = {name: concatenate([part.blocks[name] for part in parts] or [zero_rows(schema[name])]) for name in schema}
    if (np.diff(order) > 0).all():
        return Chunk(blocks)
    return Chunk({name: take_rows(block, order) for name, block in blocks.items()})


def _collect(schema: Schema, *blocks: NDArray[Any]) -> Chunk:
    """Make a chunk of the blocks of arrays, converted to the features of its columns."""
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
    """Read a chunk of a source, and add the columns of another chunk to it."""
    return _join(read_chunk(source, plan, block_id), added, schema)


def _join(first: Chunk, second: Chunk, schema: Schema) -> Chunk:
    blocks = first.blocks | second.blocks
    return _checked_block({name: blocks[name] for name in schema})


def _checked_block(blocks: dict[str, Block]) -> Chunk:
    rows = {name: len(block) for name, block in blocks.items()}
    if len(set(rows.values())) > 1:
        raise SchemaError(f"columns must have the same number of rows; a chunk has {rows}")
    return Chunk(blocks)


def _cut_selected(borders: NDArray[np.int64], picked: RowNumbers) -> NDArray[np.int64]:
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


def _as_columns(chunk: Chunk, schema: Schema) -> dict[str, NDArray[Any]]:
    return gather([[chunk]], tuple(schema), schema, {})
