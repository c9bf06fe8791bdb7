"""Tasks that need rows, and how much these hold: a source reads them in the task, or chunks of them exist already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from typing import Any, Protocol

import dask
import numpy as np
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.arrays.graph import Chunk
from dask_tfrecord.arrays.progress import Bar, followed, tell
from dask_tfrecord.arrays.source import MappedSource, Out, fill, parts, probe_rows
from dask_tfrecord.columns.blocks import Block, block_nbytes, concatenate, rows_of, take_rows, zero_rows
from dask_tfrecord.schema import Schema
from dask_tfrecord.stores.layout import GRANULE_NBYTES, UNIT_NBYTES, Tally
from dask_tfrecord.stores.levels import Levels, is_flat

__all__ = ["Feed", "Pieces", "RowSizes", "count_rows"]

# Borders of a tally in a unit of rows, and in all of them, as long as there are not more units.
_BORDERS, _MOST_BORDERS = 8, 1 << 14
# Rows that are read to learn how large they are.
_PROBE_ROWS = 64


class Pieces(Protocol):
    """What gives rows in pieces."""

    def pieces(
        self, names: Sequence[str], spans: Iterable[tuple[int, int]], out: Out | None = None
    ) -> Iterator[dict[str, Block]]:
        """Rows ``start`` to ``stop`` of one span after the other; arrays of `out` are filled span by span."""

    def sized(self) -> Pieces:
        """Give the same rows to whom sizes are enough: where rows differ in size, their values may be zeros."""


@dataclass(frozen=True, slots=True, eq=False)
class RowSizes:
    """How large rows are: of the first ones, where they differ.

    Attributes
    ----------
    columns : dict of str to float
        Decoded bytes of a row, column by column.
    largest, by_rows : float
        Decoded bytes of a row in the largest array that is laid out by rows, and in all of these.
    read : float
        Decoded bytes that are read for a row, by all that reads.
    """

    columns: Mapping[str, float]
    largest: float
    by_rows: float
    read: float


@dataclass(frozen=True, slots=True, eq=False)
class _Chunks:
    """Rows of neighbouring chunks.

    Attributes
    ----------
    chunks : sequence of ndarray of object
        One dict of blocks each.
    borders : sequence of int
        First row of each chunk, and the one past the last.
    schema : Schema
        What the blocks hold.
    """

    chunks: Sequence[NDArray[np.object_]]
    borders: Sequence[int]
    schema: Schema

    def pieces(
        self, names: Sequence[str], spans: Iterable[tuple[int, int]], out: Out | None = None
    ) -> Iterator[dict[str, Block]]:
        """Rows of one span after the other."""
        for rows, into in parts(spans, out):
            yield fill({name: self._rows(name, rows.start, rows.stop) for name in names}, into)

    def sized(self) -> Pieces:
        """Give the same, which is there."""
        return self

    def _rows(self, name: str, start: int, stop: int) -> Block:
        found: list[Block] = []
        for chunk, (first, past) in zip(self.chunks, pairwise(self.borders), strict=True):
            if max(start, first) < min(stop, past):
                found.append(rows_of(chunk[0][name], max(start, first) - first, min(stop, past) - first))
        rows: Block = concatenate(found or [zero_rows(self.schema[name])])
        return rows


class Feed:
    """Makes tasks over the rows of a data set.

    Parameters
    ----------
    dataset : Dataset
        Whose rows; they are counted.
    token : str
        Names the tasks.
    """

    def __init__(self, dataset: Dataset, token: str) -> None:
        self.dataset, self.schema, self.token = dataset, dataset.schema, token
        self.source = dataset.source
        self.borders = np.asarray(dataset.borders)
        self.rows: Any = dataset.merged().chunks(tuple(dataset)) if self.source is None else None
        if self.source is not None:
            self.rows = dask.delayed(self.source, name=f"tfrecord-source-{token}", traverse=False)

    def tasks(self, step: Callable[..., Any]) -> str:
        """Name the tasks of a step: their keys are ``(name, 0)``, ``(name, 1)`` and so on."""
        # Dashboards take the words before the token for the kind of a task, if they are letters alone.
        return f"tfrecord-{step.__name__.strip('_').replace('_', '-')}-{self.token}"

    def run(
        self,
        step: Callable[..., Any],
        jobs: Iterable[tuple[tuple[int, int], Sequence[str], tuple[Any, ...]]],
        last: Callable[..., Any],
        first: tuple[Any, ...],
        *shared: Delayed,
    ) -> Delayed:
        """Make a task of each job, and a last one of what all of them return.

        Parameters
        ----------
        step : callable
            Called as ``step(*shared, *arguments, source, *rest)``, where ``source(*rest)`` gives rows in `Pieces`.
        jobs : iterable of ((int, int), sequence of str, tuple)
            The rows, the columns and the arguments of each task.
        last : callable
            Called as ``last(*first, results)``.
        first : tuple
            For the last task.
        *shared : Delayed
            What all tasks are given.
        """
        # One layer, made by hand: a `Delayed` for each of many thousand tasks would take minutes.
        name, end = self.tasks(step), self.tasks(last)
        keys = [delayed.key for delayed in shared]
        cuts: dict[Any, Any] = {}
        tasks: dict[Any, Any] = {
            (name, number): (step, *keys, *arguments, *self._rest(*rows, tuple(names), cuts))
            for number, (rows, names, arguments) in enumerate(jobs)
        }
        needed: list[Any] = [self.rows, *shared]
        graph = HighLevelGraph.from_collections(end, tasks | cuts | {end: (last, *first, list(tasks))}, needed)
        return Delayed(end, graph)

    def _rest(self, start: int, stop: int, names: tuple[str, ...], cuts: dict[Any, Any]) -> tuple[Any, ...]:
        """Find what gives a task its rows, and add what cuts them out of chunks."""
        if self.source is not None:
            return _itself, self.rows.key
        number = len(self.borders) - 1
        low = min(int(np.searchsorted(self.borders, start, side="right")) - 1, number - 1)
        high = max(low, int(np.searchsorted(self.borders, stop, side="left")))
        chunks: list[Any] = [(self.rows.name, chunk) for chunk in range(low, high)]
        borders = self.borders[low : high + 1].tolist()
        # Who waits for other chunks would keep this one, for a few of its rows or a column.
        for place, (begin, end) in enumerate(list(pairwise(borders))):
            first, past = max(start, begin), min(stop, end)
            few = 2 * (stop - start) <= end - begin or len(names) < len(self.schema)
            if len(chunks) > 1 and few:
                cut = (f"tfrecord-cut-{self.token}", low + place, first, past, *names)
                cuts[cut] = (_cut, chunks[place], first - begin, past - begin, names)
                chunks[place], borders[place], borders[place + 1] = cut, first, past
        return _Chunks, chunks, borders, self.schema

    def tally(self, unit_rows: int, most_rows: int) -> Tally:
        """Count what the flat features hold, which takes a pass over them."""
        if not any(map(is_flat, self.schema.values())):
            return Tally.joined(self.schema, [])
        spans = list(pairwise(self.borders.tolist()))
        # Each unit of flat values is read from border to border.
        parts = min(_BORDERS, max(1, _MOST_BORDERS * unit_rows // max(int(self.borders[-1]), 1)))
        every = unit_rows, max(1, unit_rows // parts)
        jobs = ((span, list(self.schema), (span, self.schema, every, most_rows)) for span in spans)
        counting = self.run(count_rows, jobs, Tally.joined, (self.schema,))
        with Bar("Measuring", len(spans)) as bar, followed(self.tasks(count_rows), lambda *_: bar.advance()):
            (tally,) = dask.compute(counting)
        counted: Tally = tally
        return counted

    def held(self, rows: int, threads: int) -> float:
        """Count the rows of chunks that are there for each thread, of tasks over that many rows."""
        if self.source is not None:
            return 0.0
        # One chunk is written, and one is made of what others give; a task over many chunks has them all.
        longest = max(2 * int(np.diff(self.borders).max(initial=0)), rows)
        return min(float(longest), 2 * float(self.borders[-1]) / threads)

    def row_sizes(self) -> RowSizes:
        """Find how large rows are."""
        sizes = _row_nbytes(self.schema, self._probe_rows)
        levels = {name: Levels.of(feature) for name, feature in self.schema.items()}
        by_rows = [
            nbytes
            for name, of in levels.items()
            for nbytes in ((8.0 * of.strides[0], 8.0 * of.axes) if of.splits else (sizes[name],))
        ]
        read, source = sum(sizes.values()), self.source
        while isinstance(source, MappedSource):
            given = source.source.schema.select(source.columns)
            source = source.source
            read = max(read, sum(_row_nbytes(given, partial(probe_rows, source)).values()))
        return RowSizes(sizes, max(by_rows, default=0.0), sum(by_rows), read)

    def _probe_rows(self, names: Sequence[str]) -> Mapping[str, Block]:
        if self.source is not None:
            return probe_rows(self.source, names)
        chunks = self.dataset.rows[:_PROBE_ROWS].merged().chunks(tuple(self.schema))
        blocks: Mapping[str, Block] = chunks[:1].compute()[0]
        return blocks


def _cut(chunk: Any, start: int, stop: int, names: Sequence[str]) -> Chunk:
    """Copy some rows of a chunk, so that they don't keep it."""
    index = np.arange(start, stop)
    return Chunk({name: take_rows(chunk[0][name], index) for name in names})


def _itself(source: Pieces) -> Pieces:
    return source


def _row_nbytes(schema: Schema, read: Callable[[Sequence[str]], Mapping[str, Block]]) -> dict[str, float]:
    """Find the decoded bytes of a row, feature by feature: of the first rows where they differ."""
    sizes = {
        name: float(feature.block_dtype.itemsize * np.prod(feature.block_shape))
        for name, feature in schema.items()
        if feature.is_dense
    }
    others = [name for name in schema if name not in sizes]
    if others:
        blocks = read(others)
        sizes |= {name: block_nbytes(blocks[name]) / max(len(blocks[name]), 1) for name in others}
    return sizes


def count_rows(
    rows: tuple[int, int],
    schema: Schema,
    every: tuple[int, int],
    most_rows: int,
    source: Callable[..., Pieces],
    *rest: Any,
) -> Tally:
    """Tally the flat features of some rows, reading no more than `most_rows` of them at once."""
    levels = {name: Levels.of(feature) for name, feature in schema.items() if is_flat(feature)}
    tallies: list[Tally] = []
    spans: list[tuple[int, int]] = []
    step = min(_PROBE_ROWS, most_rows)

    def growing() -> Iterator[tuple[int, int]]:
        start = rows[0]
        while start < rows[1]:
            spans.append((start, min(start + step, rows[1])))
            start = spans[-1][1]
            yield spans[-1]

    for blocks in source(*rest).sized().pieces(tuple(levels), growing()):
        tallies.append(_tally(blocks, levels, spans[-1][0], every))
        nbytes = int(tallies[-1].sizes[-1]) / len(range(*spans[-1]))
        # How large the next rows are is a guess. Most of them are counted and not there.
        step = max(1, int(min(UNIT_NBYTES / max(nbytes, 1), 4 * step, most_rows)))
    tell()
    return Tally.joined(schema, tallies)


def _tally(blocks: Mapping[str, Block], levels: Mapping[str, Levels], first: int, every: tuple[int, int]) -> Tally:
    """Tally blocks of the rows from `first` on: with borders where units begin, within them, and not too far apart."""
    items = {name: of.items(blocks[name]) for name, of in levels.items()}
    sizes = reduce(np.add, [of.nbytes(items[name]) for name, of in levels.items()])
    count = len(sizes) - 1
    regular = [np.arange(-first % rows, count, rows) for rows in every]
    granules = np.searchsorted(sizes, np.arange(GRANULE_NBYTES, sizes[-1], GRANULE_NBYTES), side="right") - 1
    borders = np.unique(np.concatenate([[0], *regular, granules, [count]]))
    before = {name: np.stack([each[borders] for each in found], axis=1) for name, found in items.items()}
    return Tally(borders + first, before, sizes[borders])
