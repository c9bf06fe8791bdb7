"""What the tasks of a conversion do: read rows in pieces, and write each unit whole when it is full.

No task holds more than the units that it has begun, one of each array, and a piece of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.arrays.progress import tell
from dask_tfrecord.arrays.source import Room
from dask_tfrecord.columns.blocks import ArraysBlock, Block, block_nbytes, concatenate, zero_rows
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema import Schema
from dask_tfrecord.stores.failure import named, under_way, uninterrupted
from dask_tfrecord.stores.feed import Pieces
from dask_tfrecord.stores.freeing import freed
from dask_tfrecord.stores.journal import Journal, Written
from dask_tfrecord.stores.layout import UNIT_NBYTES, ArraySpec
from dask_tfrecord.stores.levels import Levels, flat_arrays
from dask_tfrecord.stores.units import Job, Unit
from dask_tfrecord.stores.write_report import WriteReport, peak_memory
from dask_tfrecord.stores.zarr import Put, Target
from dask_tfrecord.stores.zarr_settings import frugal

__all__ = ["Writer", "write_units"]

_Span = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Writer:
    """What all tasks of a conversion share; it travels once to each worker.

    Attributes
    ----------
    run : str
        What this run of the conversion calls itself, by which it is called off.
    target : Target
        The group.
    journal : Journal
        What is written already.
    schema : Schema
        The features.
    nrows : int
        Rows.
    specs : tuple of ArraySpec
        The arrays of the group.
    arrays : mapping of str to array-like
        The same, to be written to.
    """

    run: str
    target: Target
    journal: Journal
    schema: Schema
    nrows: int
    specs: tuple[ArraySpec, ...]
    arrays: Mapping[str, Any]


def write_units(writer: Writer, job: Job, source: Callable[..., Pieces], *rest: Any) -> WriteReport:
    """Write the units of a job from the rows that ``source(*rest)`` gives, those that are not there."""
    # The worker that had their reports may be lost.
    there = writer.journal.written(unit.number for unit in job.units)
    units = [unit for unit in job.units if unit.number not in there]
    reports = list(there.values())
    if units and not _is_finished(writer):
        with frugal(), writer.target.writing() as put:
            marks = _Marks(writer)
            places = [_Place(writer, put, marks, unit) for unit in units]
            _write(places, job.spans, source(*rest))
            marks.flush()
        reports += [place.report for place in places]
    report = replace(WriteReport.joined(reports), peak=peak_memory())
    tell(report)
    return report


def _is_finished(writer: Writer) -> bool:
    """Whether all is written, by tasks that nobody heard of.

    Raises
    ------
    IncompleteStoreError
        If another conversion has taken the place of this one.
    """
    return not writer.journal.is_kept() and bool(writer.target.note(writer.journal.identity)["written"])


class _Marks:
    """Notes which units are written, some MiB of them at once: a mark takes as long to write as a small chunk."""

    def __init__(self, writer: Writer) -> None:
        self._writer, self._units, self._nbytes = writer, list[tuple[_Place, Written]](), 0

    def add(self, place: _Place, written: Written) -> None:
        """Take note of a unit."""
        self._units.append((place, written))
        self._nbytes += written.report.nbytes
        if self._nbytes >= UNIT_NBYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is noted."""
        writer, units = self._writer, {place.unit.number: written for place, written in self._units}
        with under_way(writer.run) as on:
            if on and units:
                with named(str(writer.target)):
                    reports = uninterrupted(lambda: writer.journal.mark(units))
                for place, _ in self._units:
                    place.report = reports[place.unit.number]
        self._units, self._nbytes = [], 0


class _Place:
    """Where the entries of a unit go."""

    def __init__(self, writer: Writer, put: Put, marks: _Marks, unit: Unit) -> None:
        self.writer, self.unit, self.report = writer, unit, WriteReport(0, 0)
        self._put, self._marks = put, marks
        self._nbytes, self._objects = 0, list[str]()

    def covers(self, span: _Span) -> bool:
        """Whether rows that are read at once are rows of the unit; all of them are then."""
        return self.unit.first <= span[0] < self.unit.past

    def put(self, spec: ArraySpec, start: int, stop: int, entries: NDArray[Any]) -> None:
        """Write entries of one array."""
        self._nbytes += block_nbytes(entries)
        if not entries.size:
            # Zarr has no objects for rows without a value.
            return
        array, inner = self.writer.arrays[spec.name], (0,) * (len(spec.shape) - 1)
        units = range(start // spec.unit, -(-stop // spec.unit))
        objects = [f"{spec.name}/{array.metadata.encode_chunk_key((unit, *inner))}" for unit in units]

        def write() -> None:
            if spec.unit != spec.chunk or stop % spec.unit:
                # Zarr would read what there is of a shard, and of a chunk at the end, and that may be torn.
                self.writer.journal.objects.drop(objects)
            self._put(array, start, stop, entries)

        with under_way(self.writer.run) as on:
            if on:
                with named(str(self.writer.target)):
                    uninterrupted(write)
        self._objects += objects

    def close(self) -> None:
        """Have it noted that the unit is written."""
        records = 0 if self.unit.array else self.unit.stop - self.unit.start
        self._marks.add(self, Written(WriteReport(records, self._nbytes), self._objects))
        freed(self._nbytes)


def _write(places: Sequence[_Place], spans: Sequence[_Span], pieces: Pieces) -> None:
    """Read what units need, each piece of rows once, and write each unit as its last rows come."""
    schema = places[0].writer.schema
    rows = [_Rows(place, sum(map(place.covers, spans))) for place in places if place.unit.array is None]
    flat = [_Entries(place, place.unit.array) for place in places if place.unit.array is not None]

    def wanted(span: _Span) -> tuple[_Rows | None, tuple[str, ...]]:
        """Find the unit of rows that a span is in, and the features that are wanted of it."""
        for unit in rows:
            if unit.place.covers(span):
                return unit, tuple(schema)
        features = {entries.spec.feature for entries in flat if entries.place.covers(span)}
        return None, tuple(name for name in schema if name in features)

    for (unit, names), run in groupby(spans, wanted):
        read = list(run) if names else []
        values = [entries for entries in flat if any(map(entries.place.covers, read))]
        takers: list[_Rows | _Entries] = [*values, *filter(None, [unit])]
        # For splits alone nothing else has to be decoded.
        source = pieces if values else pieces.sized()
        into: dict[str, NDArray[Any] | Room] = {} if unit is None else dict(unit.arrays)
        for name in {entries.spec.feature for entries in values}:
            into[name] = partial(_room, [entries for entries in values if entries.spec.feature == name])
        for span, blocks in zip(read, source.pieces(names, read, into), strict=True):
            for taker in takers:
                if taker.place.covers(span):
                    taker.add(blocks)
                    if span[1] == taker.place.unit.past:
                        taker.close()
    without_rows: list[_Rows | _Entries] = [*rows, *flat]
    for taker in without_rows:
        if taker.place.unit.first == taker.place.unit.past:
            taker.close()


def _room(values: Sequence[_Entries], span: _Span) -> NDArray[Any] | None:
    """Find memory that the values of the next rows may begin in: that of the unit which they go on with."""
    rooms = (entries.room() for entries in values if entries.place.covers(span))
    return next((room for room in rooms if room is not None), None)


class _Rows:
    """Rows of everything that is laid out by rows: of what differs in size, the splits alone."""

    def __init__(self, place: _Place, npieces: int) -> None:
        self.place, self._npieces = place, npieces
        writer = place.writer
        self._dense = [spec for spec in writer.specs if spec.part == "dense"]
        self._splits = [_Entries(place, spec) for spec in writer.specs if spec.by_rows and spec.part != "dense"]
        self._blocks: dict[str, list[Block]] = {spec.feature: [] for spec in self._dense}
        self._arrays: dict[str, NDArray[Any]] | None = None

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Arrays that numbers are decoded into, where they come in several pieces."""
        if self._arrays is None:
            schema, unit = self.place.writer.schema, self.place.unit
            several = [name for name in self._blocks if self._npieces > 1 and schema[name].is_dense]
            self._arrays = {
                name: np.empty((unit.stop - unit.start, *schema[name].block_shape), schema[name].block_dtype)
                for name in several
            }
        return self._arrays

    def add(self, blocks: Mapping[str, Block]) -> None:
        """Take the next rows."""
        for name, found in self._blocks.items():
            if name not in self.arrays:
                found.append(blocks[name])
        for entries in self._splits:
            entries.add(blocks)

    def close(self) -> None:
        """Write what is not written, and note that the unit is."""
        for entries in self._splits:
            entries.end()
        unit, arrays = self.place.unit, self.arrays
        for spec in self._dense:
            parts = self._blocks.pop(spec.feature) or [zero_rows(self.place.writer.schema[spec.feature])]
            rows = arrays[spec.feature] if spec.feature in arrays else concatenate(parts)
            self.place.put(spec, unit.start, unit.stop, np.asarray(rows))
        self._arrays = {}
        self.place.close()


class _Entries:
    """Entries of a flat array, filled in from blocks of rows that follow each other, and written when all are there."""

    def __init__(self, place: _Place, spec: ArraySpec) -> None:
        self.place, self.spec = place, spec
        writer, unit = place.writer, place.unit
        self._levels = Levels.of(writer.schema[spec.feature])
        self._level, self._stride = self._levels.place(spec.part)
        self._start, self._stop = unit.start, unit.stop
        if unit.array is None:
            # The last unit writes the end of the last row, too.
            end = 1 if spec.part in self._levels.splits and unit.stop == writer.nrows else 0
            self._start, self._stop = unit.start * self._stride, unit.stop * self._stride + end
        self._items = unit.before[spec.feature]
        self._buffer: NDArray[Any] | None = None

    def add(self, blocks: Mapping[str, Block]) -> None:
        """Take what the next rows have for the array."""
        block = blocks[self.spec.feature]
        splits, values = flat_arrays(block)
        entries: NDArray[Any] = values
        if self.spec.part == "shapes" and isinstance(block, ArraysBlock):
            entries = block.shapes
        elif self.spec.part in self._levels.splits:
            entries = splits[self._level][:-1] + self._items[self._level + 1]
        at = self._items[self._level] * self._stride
        low, high = max(at, self._start), min(at + len(entries), self._stop)
        if low < high:
            self._fill(low, entries[low - at : high - at])
        added = (len(block), *(int(ends[-1]) for ends in splits))
        self._items = tuple(before + more for before, more in zip(self._items, added, strict=True))

    def room(self) -> NDArray[Any] | None:
        """Give memory for values from the next ones on, if these are the unit's."""
        at = self._items[self._level] * self._stride
        if self.spec.part != "values" or not self._start <= at < self._stop:
            return None
        return self._memory()[at - self._start :]

    def end(self) -> None:
        """Write the end of the last row, which no row begins with.

        Raises
        ------
        SchemaError
            If there were not as many entries as were counted.
        """
        name, spec = self.spec.feature, self.spec
        if self._items != self.place.unit.after[name]:
            raise SchemaError(
                f"the values of feature {name!r} are not as many as when they were counted: a file has changed since, "
                f"or a function given to map_blocks does not return the same when it is called again"
            )
        if spec.part in self._levels.splits and self._start < self._stop == spec.shape[0]:
            self._fill(self._stop - 1, np.array([self._items[self._level + 1]]))

    def close(self) -> None:
        """Write what is not written, and note that the unit is."""
        self.end()
        self.place.close()

    def _memory(self) -> NDArray[Any]:
        if self._buffer is None:
            self._buffer = np.empty((self._stop - self._start, *self.spec.shape[1:]), self.spec.dtype)
        return self._buffer

    def _fill(self, start: int, entries: NDArray[Any]) -> None:
        memory, past = self._memory(), start + len(entries)
        # What the decoder was given room for lies there.
        if entries.base is not memory:
            memory[start - self._start : past - self._start] = entries
        if past == self._stop:
            self._buffer = None
            self.place.put(self.spec, self._start, self._stop, memory)
