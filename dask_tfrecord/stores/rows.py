"""Tasks over the rows of a data set, and the sizes of these rows.

A source reads rows within the task; rows in memory are taken from chunks that exist already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from typing import Any

import dask
import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.arrays.rows import Chunk
from dask_tfrecord.arrays.sources import Source, fill, probe_rows
from dask_tfrecord.columns.blocks import Block, block_nbytes, concatenate, rows_of, take_rows, zero_rows
from dask_tfrecord.runtime.progress import ProgressBar, follow_tasks, report_progress
from dask_tfrecord.schema import Schema
from dask_tfrecord.settings import limits
from dask_tfrecord.stores.flat_arrays import (
    BorderCounts,
    Levels,
    check_group_lengths,
    flat_levels,
)

# Borders that are counted per unit of rows, and limit of all borders unless there are more units.
_UNIT_BORDERS, _MAX_BORDERS = 8, 1 << 14


@dataclass(frozen=True, slots=True, eq=False)
class RowSizes:
    """Decoded bytes of a row; estimated from the first rows where rows differ.

    Attributes
    ----------
    columns : dict of str to float
        Decoded bytes of a row, by column.
    largest, by_rows : float
        Decoded bytes of a row in the largest array that is chunked along rows, and in all of these.
    read : float
        Decoded bytes that are read for a row, the inputs of functions included.
    """

    columns: Mapping[str, float]
    largest: float
    by_rows: float
    read: float


@dataclass(frozen=True, slots=True, eq=False)
class _Chunks(Source):
    """Rows of adjacent chunks.

    Attributes
    ----------
    chunks : sequence of ndarray of object
        One dict of blocks each.
    borders : sequence of int
        First row of each chunk, and the end of the last one.
    schema : Schema
        Schema of the blocks.
    """

    chunks: Sequence[NDArray[np.object_]]
    borders: Sequence[int]
    schema: Schema

    @property
    def rows(self) -> None:
        """None: rows have the numbers of the data set."""
        return None

    def read(self, names: Sequence[str], key: Any, out: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Block]:
        """Return a slice of the rows."""
        return fill({name: self._rows(name, key.start, key.stop) for name in names}, out)

    def _rows(self, name: str, start: int, stop: int) -> Block:
        blocks: list[Block] = []
        for chunk, (first, past) in zip(self.chunks, pairwise(self.borders), strict=True):
            if max(start, first) < min(stop, past):
                blocks.append(rows_of(chunk[0][name], max(start, first) - first, min(stop, past) - first))
        rows: Block = concatenate(blocks or [zero_rows(self.schema[name])])
        return rows


def task_name(step: Callable[..., Any], token: str) -> str:
    """Return the name of the tasks of a step; their keys are ``(name, 0)``, ``(name, 1)`` and so on."""
    # Dashboards group tasks by the words before the token, if these are letters only.
    return f"tfrecord-{step.__name__.strip('_').replace('_', '-')}-{token}"


class RowTasks:
    """Builder of tasks over the rows of a data set.

    Parameters
    ----------
    dataset : Dataset
        The rows, counted.
    token : str
        Suffix of the names of tasks.
    schema : Schema, optional
        Schema of the rows, if its groups differ from those of the data set.
    """

    def __init__(self, dataset: Dataset, token: str, schema: Schema | None = None) -> None:
        self.dataset, self.schema, self.token = dataset, dataset.schema if schema is None else schema, token
        self.source = dataset._source
        self.borders = np.asarray(dataset._borders)
        self.rows: Any = dataset._merged().chunks(tuple(dataset)) if self.source is None else None
        if self.source is not None:
            self.rows = dask.delayed(self.source, name=f"tfrecord-source-{token}", traverse=False)

    def build(
        self,
        step: Callable[..., Any],
        arguments: Iterable[tuple[tuple[int, int], Sequence[str], tuple[Any, ...]]],
        last: Callable[..., Any],
        first: tuple[Any, ...],
        *shared: Delayed,
    ) -> Delayed:
        """Build a task for each range of rows, and a last one of all their results.

        Parameters
        ----------
        step : callable
            Called as ``step(*shared, *arguments, source, *rest)``, where ``source(*rest)`` is a `Source`.
        arguments : iterable of ((int, int), sequence of str, tuple)
            Rows, columns and arguments of each task.
        last : callable
            Called as ``last(*first, results)``.
        first : tuple
            First arguments of the last task.
        *shared : Delayed
            Values that all tasks share.
        """
        # A plain graph: a `Delayed` for each of many thousand tasks would take minutes.
        name, end = task_name(step, self.token), task_name(last, self.token)
        keys = [delayed.key for delayed in shared]
        copies: dict[Any, Any] = {}
        tasks: dict[Any, Any] = {
            (name, number): (step, *keys, *values, *self._rest(*rows, tuple(names), copies))
            for number, (rows, names, values) in enumerate(arguments)
        }
        graph: dict[Any, Any] = {}
        for collection in (self.rows, *shared):
            graph |= dict(collection.__dask_graph__())
        return Delayed(end, graph | copies | tasks | {end: (last, *first, list(tasks))})

    def _rest(self, start: int, stop: int, names: tuple[str, ...], copies: dict[Any, Any]) -> tuple[Any, ...]:
        """Return the arguments that give a task its rows; add tasks to `copies` that copy rows out of chunks."""
        if self.source is not None:
            return _identity, self.rows.key
        number = len(self.borders) - 1
        low = min(int(np.searchsorted(self.borders, start, side="right")) - 1, number - 1)
        high = max(low, int(np.searchsorted(self.borders, stop, side="left")))
        chunks: list[Any] = [(self.rows.name, chunk) for chunk in range(low, high)]
        borders = self.borders[low : high + 1].tolist()
        # A task that waits for other chunks would keep this one in memory for a few rows or one column: copy these.
        for index, (begin, end) in enumerate(list(pairwise(borders))):
            first, past = max(start, begin), min(stop, end)
            few = 2 * (stop - start) <= end - begin or len(names) < len(self.schema)
            if len(chunks) > 1 and few:
                copy = (f"tfrecord-cut-{self.token}", low + index, first, past, *names)
                copies[copy] = (_copy_rows, chunks[index], first - begin, past - begin, names)
                chunks[index], borders[index], borders[index + 1] = copy, first, past
        return _Chunks, chunks, borders, self.schema

    def count_borders(self, unit_rows: int, most_rows: int) -> BorderCounts:
        """Count the items of the flat features in one pass over them."""
        if not flat_levels(self.schema):
            return BorderCounts.concatenate(self.schema, [])
        spans = list(pairwise(self.borders.tolist()))
        # A unit of flat values is read from border to border.
        borders_per_unit = min(_UNIT_BORDERS, max(1, _MAX_BORDERS * unit_rows // max(int(self.borders[-1]), 1)))
        every = unit_rows, max(1, unit_rows // borders_per_unit)
        arguments = ((span, list(self.schema), (span, self.schema, every, most_rows)) for span in spans)
        counting = self.build(count_items, arguments, BorderCounts.concatenate, (self.schema,))
        with (
            ProgressBar("Measuring", len(spans)) as bar,
            follow_tasks(task_name(count_items, self.token), lambda *_: bar.advance()),
        ):
            counts: BorderCounts = dask.compute(counting)[0]
        return counts

    def held_rows(self, rows: int, threads: int) -> float:
        """Return the rows that are in memory per thread besides those of tasks over that many rows.

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
        read, source, rows = sum(sizes.values()), self.source, max(self.source.nrows or 1, 1) if self.source else 1
        while source is not None and source.inner is not None:
            inputs = source.inner.schema.select(source.columns)
            source = source.inner
            nbytes = sum(_row_nbytes(inputs, partial(probe_rows, source)).values())
            read = max(read, nbytes * (source.nrows or 1) / rows)
        return RowSizes(sizes, max(by_rows, default=0.0), sum(by_rows), read)

    def _probe_rows(self, names: Sequence[str]) -> tuple[int, Mapping[str, int]]:
        if self.source is not None:
            return probe_rows(self.source, names)
        chunks = self.dataset.rows[: limits().probe_rows]._merged().chunks(tuple(self.schema))
        blocks: Mapping[str, Block] = chunks[:1].compute()[0]
        return len(blocks[names[0]]), {name: block_nbytes(blocks[name]) for name in names}


def _copy_rows(chunk: Any, start: int, stop: int, names: Sequence[str]) -> Chunk:
    """Copy some rows of a chunk, so that the chunk can be released."""
    index = np.arange(start, stop)
    return Chunk({name: take_rows(chunk[0][name], index) for name in names})


def _identity(source: Source) -> Source:
    return source


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
    every: tuple[int, int],
    most_rows: int,
    source: Callable[..., Source],
    *rest: Any,
) -> BorderCounts:
    """Count the items of the flat features in some rows, at most `most_rows` of them at once."""
    levels = flat_levels(schema)
    counts: list[BorderCounts] = []
    spans: list[tuple[int, int]] = []
    step = min(limits().probe_rows, most_rows)

    def growing() -> Iterator[tuple[int, int]]:
        start = rows[0]
        while start < rows[1]:
            spans.append((start, min(start + step, rows[1])))
            start = spans[-1][1]
            yield spans[-1]

    row_source = source(*rest)
    for blocks in row_source.measure().read_spans(tuple(levels), growing()):
        check_group_lengths(schema.groups, blocks, partial(row_source.locate, start=spans[-1][0]))
        counts.append(_count_block(blocks, levels, spans[-1][0], every))
        nbytes = int(counts[-1].sizes[-1]) / len(range(*spans[-1]))
        # The size of the next rows is estimated; most rows are only counted, without memory for them.
        step = max(1, int(min(limits().write_unit_nbytes / max(nbytes, 1), 4 * step, most_rows)))
    report_progress()
    return BorderCounts.concatenate(schema, counts)


def _count_block(
    blocks: Mapping[str, Block], levels: Mapping[str, Levels], first: int, every: tuple[int, int]
) -> BorderCounts:
    """Count the items of blocks: at the borders of units, within units, and at least every `Limits.granule_nbytes`."""
    items = {name: each.items(blocks[name]) for name, each in levels.items()}
    sizes = reduce(np.add, [each.nbytes(items[name]) for name, each in levels.items()])
    count = len(sizes) - 1
    regular = [np.arange(-first % rows, count, rows) for rows in every]
    granule = limits().granule_nbytes
    granules = np.searchsorted(sizes, np.arange(granule, sizes[-1], granule), side="right") - 1
    borders = np.unique(np.concatenate([[0], *regular, granules, [count]]))
    before = {name: np.stack([each[borders] for each in found], axis=1) for name, found in items.items()}
    return BorderCounts(borders + first, before, sizes[borders])
