"""Write units: tasks over rows, their sizes, and the flat arrays of ragged columns.

A source reads rows within the task; rows in memory are taken from chunks that exist already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial, reduce
from itertools import pairwise
from typing import Any

import dask
import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from dask_tfrecord.blocks import (
    ArraysBlock,
    Block,
    BytesBlock,
    RaggedBlock,
    block_nbytes,
    flatten_block,
    splits_of,
    take_rows,
    union,
)
from dask_tfrecord.errors import FeatureError, Location, plural
from dask_tfrecord.features import Feature
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.rows.chunk_borders import joined_parts
from dask_tfrecord.rows.graph import Chunk
from dask_tfrecord.rows.lengths import kept_lengths
from dask_tfrecord.rows.progress import ProgressBar, follow_tasks, report_progress
from dask_tfrecord.rows.rows import Rows
from dask_tfrecord.rows.sources import ChunkSource, CountedRows, GrowingSpans, probe_rows
from dask_tfrecord.rows.task_names import task_name
from dask_tfrecord.settings import limits

# Items are counted at 8 borders in each unit of rows, but at most 16,384 in all, and at least once a unit.
_UNIT_BORDERS, _MAX_BORDERS = 8, 1 << 14


@dataclass(frozen=True, slots=True, eq=False)
class RowSizes:
    """Decoded bytes of a row; estimated from the first rows where rows differ."""

    columns: Mapping[str, float]  # by column
    largest: float  # in the largest array that is chunked along rows
    by_rows: float  # in all arrays that are chunked along rows
    read: float  # bytes that are read for a row, the inputs of functions included


def _rows_of_chunks(chunks: Sequence[Chunk], borders: Sequence[int], schema: Schema) -> ChunkSource:
    """Return the rows of adjacent chunks, by their numbers in the data set."""
    return ChunkSource.of_all(schema, borders, lambda _, number: chunks[number][0])


def build_tasks(
    step: Callable[..., Any],
    arguments: Iterable[tuple[Any, ...]],
    last: tuple[Any, ...],
    *shared: Delayed,
    token: str,
    graph: Mapping[Any, Any] | None = None,
    start: int = 0,
) -> Delayed:
    """Build a task ``step(*shared, *arguments)`` for each of many arguments, and one that gets all results.

    `last` is the function of that task and its other arguments. Tasks are numbered from `start`.
    """
    # A plain graph: a `Delayed` for each of many thousand tasks would take minutes.
    name, end = task_name(step, token), task_name(last[0], token)
    keys = [delayed.key for delayed in shared]
    tasks: dict[Any, Any] = {(name, number): (step, *keys, *values) for number, values in enumerate(arguments, start)}
    whole = {**(graph or {}), **tasks, end: (*last, list(tasks))}
    for delayed in shared:
        whole |= dict(delayed.__dask_graph__())
    return Delayed(end, whole)


class RowTasks:
    """Builder of tasks over the counted rows of a data set.

    The groups of the schema may differ from the data set's.

    Tasks over rows of shards depend on one node, the source. An example of three rows that are in memory, rows 0 and 1
    in one chunk and row 2 in another: a task that writes one of several columns of rows 1 and 2 depends on two tasks.
    Each of the two copies the needed rows out of a chunk, so that the chunk need not stay in memory.
    """

    def __init__(self, rows: Rows, token: str, schema: Schema | None = None) -> None:
        self.rows = rows
        self.schema = rows.schema if schema is None else schema
        self.token = token
        self.source = rows.counted_source
        self.borders = np.asarray(rows.borders)
        # Input of the tasks: existing chunks, or a node with the source.
        self._read: Any = rows.chunks(rows.names) if self.source is None else None
        if self.source is not None:
            self._read = dask.delayed(self.source, name=f"tfrecord-source-{token}", traverse=False)

    def build(
        self,
        step: Callable[..., Any],
        arguments: Iterable[tuple[tuple[int, int], Sequence[str], tuple[Any, ...]]],
        last: tuple[Any, ...],
        *shared: Delayed,
    ) -> Delayed:
        """Build a task ``step(*shared, *arguments, source)`` for each range of rows, and one that gets all results.

        `arguments` holds the rows, the columns and the arguments of each task; `last`, the function of the last task
        and its other arguments.
        """
        copies: dict[Any, Any] = {}
        own = [(*values, self._source_of_task(*rows, tuple(names), copies)) for rows, names, values in arguments]
        graph = {**self._read.__dask_graph__(), **copies}
        return build_tasks(step, own, last, *shared, token=self.token, graph=graph)

    def _source_of_task(self, start: int, stop: int, names: tuple[str, ...], copies: dict[Any, Any]) -> Any:
        """Return the source of a task, as in a graph; add tasks to `copies` that copy rows out of chunks."""
        if self.source is not None:
            return self._read.key
        number = len(self.borders) - 1
        low = min(int(np.searchsorted(self.borders, start, side="right")) - 1, number - 1)
        high = max(low, int(np.searchsorted(self.borders, stop, side="left")))
        chunks: list[Any] = [(self._read.name, chunk) for chunk in range(low, high)]
        borders = self.borders[low : high + 1].tolist()
        # A task that waits for other chunks would keep this one in memory for a few rows or one column: copy these.
        for index, (begin, end) in enumerate(list(pairwise(borders))):
            first, past = max(start, begin), min(stop, end)
            few = 2 * (stop - start) <= end - begin or len(names) < len(self.schema)
            if len(chunks) > 1 and few:
                copy = (f"tfrecord-cut-{self.token}", low + index, first, past, *names)
                copies[copy] = (_copy_rows, chunks[index], first - begin, past - begin, names)
                chunks[index], borders[index], borders[index + 1] = copy, first, past
        return (_rows_of_chunks, chunks, borders, self.schema)

    def count_borders(self, units: Sequence[int], most_rows: int, before: int = 0) -> BorderCounts:
        """Count the items of the flat features in one pass over them, at the ends of units.

        `units` are lengths of units in rows; the rows follow on `before` others.
        """
        levels = flat_levels(self.schema)
        if not levels:
            return BorderCounts.concatenate(self.schema, [])
        spans, unit_rows = list(pairwise(self.borders.tolist())), min(units)
        # A unit of flat values is read from border to border.
        borders_per_unit = min(_UNIT_BORDERS, max(1, _MAX_BORDERS * unit_rows // max(int(self.borders[-1]), 1)))
        every = *units, max(1, unit_rows // borders_per_unit)
        # Opening may have measured all rows, or their lengths are next to the shards.
        measured, nrows = kept_lengths.of(self.source), int(self.borders[-1])
        if all(each.fits(nrows, measured.get(name, ())) for name, each in levels.items()):
            items = {name: each.items(nrows, [*map(splits_of, measured[name])]) for name, each in levels.items()}
            if _have_equal_lengths(self.schema, items):
                return _counts_at_borders(items, levels, 0, before, every)
        arguments = ((span, list(self.schema), (span, self.schema, every, before, most_rows)) for span in spans)
        counting = self.build(count_items, arguments, (BorderCounts.concatenate, self.schema))
        with (
            ProgressBar("Measuring", len(spans)) as bar,
            follow_tasks(task_name(count_items, self.token), lambda *_: bar.advance()),
        ):
            counts: BorderCounts = dask.compute(counting)[0]
        return counts

    def extra_rows_per_thread(self, rows: int, threads: int) -> float:
        """Return how many rows a thread keeps in memory beyond the rows of its task.

        These are rows of existing chunks, or the other items of the records that items are read from.
        """
        if self.source is not None:
            return 2.0 * self.source.most_items
        # One chunk is written while the next one is computed; a task over several chunks holds all of them.
        longest = max(2 * int(np.diff(self.borders).max(initial=0)), rows)
        return min(float(longest), 2 * float(self.borders[-1]) / threads)

    def row_sizes(self) -> RowSizes:
        """Estimate the decoded bytes of a row."""
        sizes = _row_nbytes(self.schema, self._probe_rows)
        levels = {name: Levels.from_feature(feature) for name, feature in self.schema.items()}
        # Columns of a group share the splits of its first column.
        shared_splits = {name for names in self.schema.groups.values() for name in names[1:]}
        by_rows = [
            nbytes
            for name, each in levels.items()
            for nbytes in (each.row_nbytes() if each.splits else (sizes[name],))
            if name not in shared_splits
        ]
        read = sum(sizes.values())
        source = self.source
        rows = max(self.source.nrows, 1) if self.source else 1
        while source is not None and source.inner is not None:
            inputs = source.inner.schema.select(source.columns)
            source = source.inner
            nbytes = sum(_row_nbytes(inputs, partial(probe_rows, source)).values())
            read = max(read, nbytes * (source.nrows or 1) / rows)
        return RowSizes(sizes, max(by_rows, default=0.0), sum(by_rows), read)

    def _probe_rows(self, names: Sequence[str]) -> tuple[int, Mapping[str, int]]:
        """Read a few rows; return their number, and their decoded bytes by column."""
        if self.source is not None:
            return probe_rows(self.source, names)
        chunks = self.rows.select(slice(limits().probe_rows)).chunks(tuple(self.schema))
        blocks: Mapping[str, Block] = chunks[:1].compute()[0]
        return len(blocks[names[0]]), {name: block_nbytes(blocks[name]) for name in names}


def _copy_rows(chunk: Any, start: int, stop: int, names: Sequence[str]) -> Chunk:
    """Copy some rows of a chunk, so that the chunk can be released."""
    index = np.arange(start, stop)
    return Chunk({name: take_rows(chunk[0][name], index) for name in names})


def _row_nbytes(schema: Schema, probe: Callable[[Sequence[str]], tuple[int, Mapping[str, int]]]) -> dict[str, float]:
    """Return the decoded bytes of a row by feature; variable-length features are probed."""
    sizes = {
        name: float(feature.block_dtype.itemsize * np.prod(feature.block_shape))
        for name, feature in schema.items()
        if feature.is_dense
    }
    others = [name for name in schema if name not in sizes]
    if others:
        rows, nbytes = probe(others)
        sizes |= {name: nbytes[name] / max(rows, 1) for name in others}
    return sizes


def count_items(
    rows: tuple[int, int],
    schema: Schema,
    every: tuple[int, ...],
    before: int,
    most_rows: int,
    source: CountedRows,
) -> BorderCounts:
    """Count the items of the flat features in some rows, at most `most_rows` of them at once if values are kept."""
    levels, measured = flat_levels(schema), source.measure()
    names, counts = tuple(levels), list[BorderCounts]()
    keeps_values = measured.keeps_values(names)
    if keeps_values:
        # Rows may be larger than the estimate behind `most_rows`.
        first_rows = min(max(limits().probe_rows, most_rows // 8), most_rows)
        spans = GrowingSpans(*rows, first_rows, limits().write_unit_nbytes, most_rows)
    else:
        # Few spans: each costs as much Python as counting a MiB takes. Inner rows may be any number.
        nbytes = limits().write_unit_nbytes // 4
        is_nested = any(len(each.splits) > 1 for each in levels.values())
        # Bytes values of a row of the shape (0,) have no splits.
        splits_nbytes = max(8.0, sum(each.row_nbytes()[0] for each in levels.values()))
        spans = GrowingSpans(*rows, most_rows if is_nested else max(1, int(nbytes / splits_nbytes)), nbytes)
    for blocks in measured.read_spans(names, spans):
        first = spans.span[0]
        check_group_lengths(schema.groups, blocks, partial(source.locate, start=first))
        splits = {name: flatten_block(block)[0] for name, block in blocks.items()}
        items = {name: each.items(len(blocks[name]), splits[name]) for name, each in levels.items()}
        counts.append(_counts_at_borders(items, levels, first, before, every))
        held = (ends.nbytes for own in splits.values() for ends in own)
        spans.adapt(int(counts[-1].sizes[-1]) if keeps_values else sum(held))
    report_progress()
    return counts[0] if len(counts) == 1 else BorderCounts.concatenate(schema, counts)


def _have_equal_lengths(schema: Schema, items: Mapping[str, Sequence[_Ints]]) -> bool:
    """Return whether the columns of each group are known to have one number of items in each row."""
    return all(
        name in items and np.array_equal(items[name][1], items[names[0]][1])
        for names in schema.groups.values()
        for name in names
    )


def _counts_at_borders(
    items: Mapping[str, Sequence[_Ints]],
    levels: Mapping[str, Levels],
    first: int,
    lead: int,
    every: tuple[int, ...],
) -> BorderCounts:
    """Count items at unit borders, within units, and at intervals of bytes; `items` has those before each row."""
    sizes = reduce(np.add, [each.nbytes(items[name]) for name, each in levels.items()])
    count = len(sizes) - 1
    regular = [np.arange(-(lead + first) % rows, count, rows) for rows in every]
    interval = limits().item_count_interval_nbytes
    intervals = np.searchsorted(sizes, np.arange(interval, sizes[-1], interval), side="right") - 1
    borders = union([0], *regular, intervals, [count])
    before = {name: np.stack([each[borders] for each in found], axis=1) for name, found in items.items()}
    return BorderCounts(borders + first, before, sizes[borders])


_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Levels:
    """The flat arrays of a column."""

    # Suffixes of the splits, outermost first; none if the column is one array.
    splits: tuple[str, ...]
    # Entries of each per item of its level; an item with a shape has several bytes values.
    strides: tuple[int, ...]
    # Decoded bytes of an item of the last level.
    item_nbytes: int
    # Axes of arrays with shapes of their own; else 0.
    axes: int
    # Level whose items have these shapes: 0 if rows are arrays, 1 if rows are lists of arrays.
    shapes_level: int

    @property
    def shapes(self) -> str | None:
        """Suffix of the shapes' array: ``"shapes"`` for rows, ``"item_shapes"`` for items, or None."""
        if not self.axes:
            return None
        return "item_shapes" if self.shapes_level else "shapes"

    @classmethod
    @lru_cache
    def from_feature(cls, feature: Feature) -> Levels:
        """Return the levels of the column of a feature.

        An example: rows of lists of strings have the splits "row_splits", which divide strings among rows, and
        "byte_splits", which divide bytes among strings. A row that is one string has only "row_splits", of bytes.
        """
        strides = [1] * (feature.ragged_rank + bool(feature.own_shapes))
        item_nbytes = math.prod(feature.item_shape) * feature.item_dtype.itemsize
        if feature.is_bytes:
            strides.append(math.prod(feature.item_shape))
            item_nbytes = 1
        names = ["row_splits" if level == 0 else f"row_splits_{level}" for level in range(len(strides))]
        if feature.is_bytes and len(names) > 1:
            names[-1] = "byte_splits"
        return cls(tuple(names), tuple(strides), item_nbytes, feature.own_shapes, feature.ragged_rank)

    def row_nbytes(self) -> tuple[float, float]:
        """Return the bytes of a row in the arrays along the rows: splits and shapes."""
        return 8.0 * self.strides[0], 0.0 if self.shapes_level else 8.0 * self.axes

    def level_and_stride(self, suffix: str) -> tuple[int, int]:
        """Return at which level of its column an array is, and how many entries it has per item there."""
        if suffix in self.splits:
            level = self.splits.index(suffix)
            return level, self.strides[level]
        return (len(self.splits) if suffix == "values" else self.shapes_level), 1

    def entries(self, suffix: str, items: Sequence[int]) -> int:
        """Return the entries of an array for these items of each level, without the final split."""
        level, stride = self.level_and_stride(suffix)
        return items[level] * stride

    def fits(self, rows: int, lengths: Sequence[_Ints]) -> bool:
        """Return whether a number of rows can have these lengths, one array per level."""
        if len(lengths) != len(self.strides):
            return False
        for each, stride in zip(lengths, self.strides, strict=True):
            if len(each) != rows * stride:
                return False
            rows = int(each.sum())
        return True

    def items(self, rows: int, every: Sequence[_Ints]) -> list[_Ints]:
        """Count the items at each level before each row, and after the last row, from the splits."""
        found = [np.arange(rows + 1)]
        for splits, stride in zip(every, self.strides, strict=True):
            # The first splits have one entry per row.
            found.append(splits if len(found) == stride == 1 else splits[found[-1] * stride])
        return found

    def items_at(self, splits: Sequence[_Ints], row: int) -> tuple[int, ...]:
        """Count the items at each level before a row of a block with these splits, or after its last row."""
        found = [row]
        for ends, stride in zip(splits, self.strides, strict=True):
            found.append(int(ends[found[-1] * stride]))
        return tuple(found)

    def nbytes(self, items: Sequence[_Ints]) -> _Ints:
        """Return the decoded bytes of these items of each level."""
        nbytes: _Ints = items[-1] * self.item_nbytes
        for level, stride in zip(items, self.strides, strict=False):
            nbytes += level * (8 * stride)
        return nbytes + items[self.shapes_level] * (8 * self.axes)

    def to_block(
        self, feature: Feature, rows: int, splits: Sequence[_Ints], values: NDArray[Any], shapes: _Ints | None
    ) -> Block:
        """Assemble a block of rows from splits (the outermost first, each starting at 0), values and shapes."""
        block: Any = values
        *outer, last = splits
        if feature.is_bytes:
            items = int(outer[-1][-1]) if outer else rows
            block = BytesBlock(values, last, (items, *feature.item_shape))
        else:
            outer.append(last)
        if shapes is not None:
            block = ArraysBlock(block, outer.pop(), shapes)
        for ends in reversed(outer):
            block = RaggedBlock(block, ends)
        made: Block = block
        return made


def shapes_of(block: Block) -> _Ints:
    """List the shapes of a block's arrays: rows, or their items."""
    arrays = block.values if isinstance(block, RaggedBlock) else block
    assert isinstance(arrays, ArraysBlock)
    return arrays.shapes


def is_flat(feature: Feature) -> bool:
    """Return True if the column of a feature is stored as flat values and splits."""
    return bool(Levels.from_feature(feature).splits)


def flat_levels(schema: Schema) -> dict[str, Levels]:
    """Return the levels of the columns that are stored as flat values and splits."""
    levels = {name: Levels.from_feature(feature) for name, feature in schema.items()}
    return {name: each for name, each in levels.items() if each.splits}


def check_group_lengths(
    groups: Mapping[str, Sequence[str]], blocks: Mapping[str, Block], locate: Callable[[int, str], Location]
) -> None:
    """Check that the columns of each group have one number of items in each row, or raise FeatureError.

    Columns without a block are not checked. `locate` returns the location of a row of the blocks and of a feature.
    """
    for group, names in groups.items():
        first, *others = [name for name in names if name in blocks] or [""]
        for name in others:
            splits, own = (_row_splits(blocks[each]) for each in (first, name))
            if not np.array_equal(splits, own):
                lengths, found = np.diff(splits), np.diff(own)
                row = int(np.flatnonzero(lengths != found)[0])
                number = plural(int(found[row]), "item")
                raise FeatureError(
                    f"feature {name!r} has {number}, expected {lengths[row]:,} as in {first!r}: features of group "
                    f"{group!r} must have the same number of items in each record. Pass to_zarr groups= without one of "
                    "them, or to_tfrecord features= with a Schema that has other groups",
                    locate(row, name),
                )


def _row_splits(block: Block) -> _Ints:
    """Return the splits of ragged rows; rows of an array have one length."""
    if isinstance(block, RaggedBlock):
        return block.row_splits
    return np.arange(len(block) + 1, dtype=np.int64) * block.shape[1]


@dataclass(frozen=True, slots=True, eq=False)
class BorderCounts:
    """Items of the flat features before some borders between rows."""

    # The borders, ascending: the first row, the first row of each unit, the number of rows.
    rows: NDArray[np.int64]
    # Items of each level of a feature before each border, rows first.
    items: dict[str, NDArray[np.int64]]
    # Decoded bytes of all flat features before each border.
    sizes: NDArray[np.int64]

    @classmethod
    def concatenate(cls, schema: Schema, counts: Sequence[BorderCounts]) -> BorderCounts:
        """Concatenate the counts of consecutive rows; each starts at its own first row with zero items."""
        none = np.zeros(1, np.int64)
        items = {
            name: _join_cumulative([each.items[name] for each in counts], (len(levels.splits) + 1,))
            for name, levels in flat_levels(schema).items()
        }
        rows = np.concatenate([none, *(each.rows[1:] for each in counts)])
        return cls(rows, items, _join_cumulative([each.sizes for each in counts], ()))

    def after(self, items: Mapping[str, Sequence[int]]) -> BorderCounts:
        """Shift counts so that they follow on each feature's items; row numbers stay."""
        return replace(self, items={name: each + np.array(items[name]) for name, each in self.items.items()})

    def at(self, border: int, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Return the items of some features before a border."""
        return {name: tuple(self.items[name][border].tolist()) for name in names}

    def between(self, low: int, high: int) -> BorderCounts:
        """Return the counts at the borders `low` to `high`, both included."""
        chosen = slice(low, high + 1)
        return BorderCounts(
            self.rows[chosen], {name: each[chosen] for name, each in self.items.items()}, self.sizes[chosen]
        )

    def spans(self, low: int, high: int, most_rows: int) -> tuple[tuple[int, int], ...]:
        """Divide the rows between two borders into spans of at most `most_rows` and `Limits.read_nbytes` each.

        The last span may exceed them by an eighth: a unit of values with the rest of its last row is read at once.
        """
        rows, sizes = self.rows[low : high + 1].tolist(), self.sizes[low : high + 1].tolist()
        bounds = (sizes, limits().read_nbytes), (rows, most_rows)
        borders = joined_parts(*bounds)
        if len(borders) > 2 and all(8 * (sums[-1] - sums[borders[-3]]) <= 9 * most for sums, most in bounds):
            del borders[-2]
        return tuple(pairwise([rows[border] for border in borders]))


def _join_cumulative(totals: Sequence[NDArray[np.int64]], shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Join cumulative sums of that shape that each start at zero."""
    steps = [np.diff(part, axis=0) for part in totals]
    return np.cumsum(np.concatenate([np.zeros((1, *shape), np.int64), *steps]), axis=0)
