"""Task of a conversion: read rows in blocks, and write each unit whole when it is full.

A task holds one block of rows, and at most one partial unit of each array.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.arrays.sources import OutputBuffer, Source
from dask_tfrecord.columns.blocks import Block, block_nbytes, concatenate, zero_rows
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.runtime.cancellation import run_write
from dask_tfrecord.runtime.memory import release_freed
from dask_tfrecord.runtime.progress import report_progress
from dask_tfrecord.schema import Schema
from dask_tfrecord.settings import limits
from dask_tfrecord.stores.flat_arrays import Levels, check_group_lengths, flatten_block, shapes_of
from dask_tfrecord.stores.write_progress import WriteReport, peak_memory
from dask_tfrecord.stores.zarr.checkpoint import Checkpoint, CompletedUnit
from dask_tfrecord.stores.zarr.compat import chunk_key, write_sequentially
from dask_tfrecord.stores.zarr.group import Put, TargetGroup
from dask_tfrecord.stores.zarr.layout import ArraySpec
from dask_tfrecord.stores.zarr.write_units import WriteTask, WriteUnit

__all__ = ["WriteContext", "write_units"]

_log = logging.getLogger(__name__)

_Span = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class WriteContext:
    """Values that all tasks of a conversion share; sent once to each worker.

    Attributes
    ----------
    run : str
        Name of this run, for cancellation.
    target : TargetGroup
        The group.
    checkpoint : Checkpoint
        Record of completed units.
    schema : Schema
        Features.
    nrows : int
        Rows.
    specs : tuple of ArraySpec
        Specifications of the arrays.
    arrays : mapping of str to array-like
        Arrays of the group, opened for writing.
    place : str
        The group, for errors.
    """

    run: str
    target: TargetGroup
    checkpoint: Checkpoint
    schema: Schema
    nrows: int
    specs: tuple[ArraySpec, ...]
    arrays: Mapping[str, Any]
    place: str


def write_units(context: WriteContext, task: WriteTask, source: Callable[..., Source], *rest: Any) -> WriteReport:
    """Write the units of a task that are not recorded, from the rows of ``source(*rest)``."""
    # The worker that wrote recorded units may be lost, and its reports with it.
    completed = context.checkpoint.recorded(unit.number for unit in task.units)
    units = [unit for unit in task.units if unit.number not in completed]
    reports = list(completed.values())
    if units and not _is_finished(context):
        with write_sequentially(), context.target.writing() as put:
            completions = _CheckpointBuffer(context)
            writers = [_UnitWriter(context, put, completions, unit) for unit in units]
            _write(writers, task.spans, source(*rest))
            completions.flush()
        reports += [writer.report for writer in writers]
    _log.debug("%s: wrote %d of %d units of a task", context.place, len(units), len(task.units))
    report = replace(WriteReport.sum(reports), peak=peak_memory())
    report_progress(report)
    return report


def _is_finished(context: WriteContext) -> bool:
    """Return True if other copies of the tasks have written everything.

    Raises
    ------
    IncompleteStoreError
        If another conversion has replaced the group.
    """
    if context.checkpoint.has_plan():
        return False
    return bool(context.target.update_attributes(context.checkpoint.identity)["written"])


class _CheckpointBuffer:
    """Record completed units, several MiB at once: a record takes as long to write as a small chunk."""

    def __init__(self, context: WriteContext) -> None:
        self._context, self._units, self._nbytes = context, list[tuple[_UnitWriter, CompletedUnit]](), 0

    def add(self, writer: _UnitWriter, completed: CompletedUnit) -> None:
        """Add a completed unit."""
        self._units.append((writer, completed))
        self._nbytes += completed.report.nbytes
        if self._nbytes >= limits().write_unit_nbytes:
            self.flush()

    def flush(self) -> None:
        """Write the record of all added units."""
        context, units = self._context, {writer.unit.number: completed for writer, completed in self._units}

        def record() -> None:
            if not _is_finished(context):
                reports = context.checkpoint.record(units)
                for writer, _ in self._units:
                    writer.report = reports[writer.unit.number]

        if units:
            run_write(context.run, context.place, record)
        self._units, self._nbytes = [], 0


class _UnitWriter:
    """Writer of the entries of one unit."""

    def __init__(self, context: WriteContext, put: Put, completions: _CheckpointBuffer, unit: WriteUnit) -> None:
        self.context, self.unit, self.report = context, unit, WriteReport(0, 0)
        self._put, self._completions = put, completions
        self._nbytes, self._objects = 0, list[str]()

    def covers(self, span: _Span) -> bool:
        """Return True if a span is inside the unit; a span is never partly inside."""
        return self.unit.first <= span[0] < self.unit.past

    def put(self, spec: ArraySpec, start: int, stop: int, entries: NDArray[Any]) -> None:
        """Write entries of one array."""
        self._nbytes += block_nbytes(entries)
        if not entries.size:
            # Zarr writes no object for an empty range.
            return
        array = self.context.arrays[spec.name]
        units = range(start // spec.unit, -(-stop // spec.unit))
        objects = [f"{spec.name}/{chunk_key(array, unit)}" for unit in units]

        def write() -> None:
            if spec.unit != spec.chunk or stop % spec.unit:
                if _is_finished(self.context):
                    # Another copy of the task has written the unit, and the group is complete.
                    return
                # zarr reads an existing shard, or an existing last chunk, before writing it; it may be truncated.
                self.context.checkpoint.objects.drop(objects)
            self._put(array, start, stop, entries)

        run_write(self.context.run, self.context.place, write)
        self._objects += objects

    def close(self) -> None:
        """Pass the unit to the checkpoint."""
        records = 0 if self.unit.array else self.unit.stop - self.unit.start
        self._completions.add(self, CompletedUnit(WriteReport(records, self._nbytes), self._objects))
        release_freed(self._nbytes)


def _write(writers: Sequence[_UnitWriter], spans: Sequence[_Span], source: Source) -> None:
    """Read the rows of units, each span once, and write each unit after its last rows."""
    schema = writers[0].context.schema
    rows = [_RowEntries(writer, sum(map(writer.covers, spans))) for writer in writers if writer.unit.array is None]
    flat = [_FlatEntries(writer, writer.unit.array) for writer in writers if writer.unit.array is not None]

    def unit_and_features(span: _Span) -> tuple[_RowEntries | None, tuple[str, ...]]:
        """Return the unit of rows that holds a span, and the features to read."""
        for unit in rows:
            if unit.writer.covers(span):
                return unit, tuple(schema)
        features = {entries.spec.feature for entries in flat if entries.writer.covers(span)}
        return None, tuple(name for name in schema if name in features)

    for (unit, names), run in groupby(spans, unit_and_features):
        read = list(run) if names else []
        values = [entries for entries in flat if any(map(entries.writer.covers, read))]
        receivers: list[_RowEntries | _FlatEntries] = [*values, *filter(None, [unit])]
        # Splits need only the sizes of values.
        reader = source if values else source.measure()
        into: dict[str, NDArray[Any] | OutputBuffer] = {} if unit is None else dict(unit.arrays)
        by_feature: dict[str, list[_FlatEntries]] = {}
        for entries in values:
            by_feature.setdefault(entries.spec.feature, []).append(entries)
        into.update({name: partial(_output_buffer, entries) for name, entries in by_feature.items()})
        for span, blocks in zip(read, reader.read_spans(names, read, into), strict=True):
            check_group_lengths(schema.groups, blocks, partial(source.locate, start=span[0]))
            for receiver in receivers:
                if receiver.writer.covers(span):
                    receiver.add(blocks)
                    if span[1] == receiver.writer.unit.past:
                        receiver.close()
    without_rows: list[_RowEntries | _FlatEntries] = [*rows, *flat]
    for receiver in without_rows:
        if receiver.writer.unit.first == receiver.writer.unit.past:
            receiver.close()


def _output_buffer(values: Sequence[_FlatEntries], span: _Span) -> NDArray[Any] | None:
    """Return memory for the values of the next rows: the buffer of the unit that they continue."""
    buffers = (entries.output_buffer() for entries in values if entries.writer.covers(span))
    return next((buffer for buffer in buffers if buffer is not None), None)


class _RowEntries:
    """Entries of all arrays that are chunked along rows: dense rows, splits and shapes."""

    def __init__(self, writer: _UnitWriter, nspans: int) -> None:
        self.writer, self._nspans = writer, nspans
        specs = writer.context.specs
        self._dense = [spec for spec in specs if spec.part == "dense"]
        self._splits = [_FlatEntries(writer, spec) for spec in specs if spec.by_rows and spec.part != "dense"]
        self._blocks: dict[str, list[Block]] = {spec.feature: [] for spec in self._dense}
        self._arrays: dict[str, NDArray[Any]] | None = None

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Output arrays of dense features that are read in several spans."""
        if self._arrays is None:
            schema, unit = self.writer.context.schema, self.writer.unit
            several = [name for name in self._blocks if self._nspans > 1 and schema[name].is_dense]
            self._arrays = {
                name: np.empty((unit.stop - unit.start, *schema[name].block_shape), schema[name].block_dtype)
                for name in several
            }
        return self._arrays

    def add(self, blocks: Mapping[str, Block]) -> None:
        """Add the next rows."""
        for name, found in self._blocks.items():
            if name not in self.arrays:
                found.append(blocks[name])
        for entries in self._splits:
            entries.add(blocks)

    def close(self) -> None:
        """Write the remaining entries and complete the unit."""
        for entries in self._splits:
            entries.end()
        unit, arrays = self.writer.unit, self.arrays
        for spec in self._dense:
            parts = self._blocks.pop(spec.feature) or [zero_rows(self.writer.context.schema[spec.feature])]
            rows = arrays[spec.feature] if spec.feature in arrays else concatenate(parts)
            self.writer.put(spec, unit.start, unit.stop, np.asarray(rows))
        self._arrays = {}
        self.writer.close()


class _FlatEntries:
    """Entries of a flat array: filled from consecutive blocks, and written when complete."""

    def __init__(self, writer: _UnitWriter, spec: ArraySpec) -> None:
        self.writer, self.spec = writer, spec
        context, unit = writer.context, writer.unit
        self._levels = Levels.from_feature(context.schema[spec.feature])
        self._level, self._stride = self._levels.level_and_stride(spec.part)
        self._start, self._stop = unit.start, unit.stop
        if unit.array is None:
            # The last unit also writes the final split.
            end = 1 if spec.part in self._levels.splits and unit.stop == context.nrows else 0
            self._start, self._stop = unit.start * self._stride, unit.stop * self._stride + end
        self._items = unit.before[spec.feature]
        self._buffer: NDArray[Any] | None = None

    def add(self, blocks: Mapping[str, Block]) -> None:
        """Add the entries of the next rows."""
        block = blocks[self.spec.feature]
        splits, values = flatten_block(block)
        entries: NDArray[Any] = values
        if self.spec.part == self._levels.shapes:
            entries = shapes_of(block)
        elif self.spec.part in self._levels.splits:
            entries = splits[self._level][:-1] + self._items[self._level + 1]
        at = self._items[self._level] * self._stride
        low, high = max(at, self._start), min(at + len(entries), self._stop)
        if low < high:
            self._fill(low, entries[low - at : high - at])
        added = (len(block), *(int(ends[-1]) for ends in splits))
        self._items = tuple(before + more for before, more in zip(self._items, added, strict=True))

    def output_buffer(self) -> NDArray[Any] | None:
        """Return memory for the next values, if they belong to the unit."""
        at = self._items[self._level] * self._stride
        if self.spec.part != "values" or self.spec.dtype == "string" or not self._start <= at < self._stop:
            return None
        return self._memory()[at - self._start :]

    def end(self) -> None:
        """Write the final split.

        Raises
        ------
        SchemaError
            If the number of entries differs from the count.
        """
        name, spec = self.spec.feature, self.spec
        if self._items != self.writer.unit.after[name]:
            raise SchemaError(
                f"the number of values of feature {name!r} differs from the earlier count: a file has changed, or "
                f"a function passed to map_blocks returns another result when it is called again"
            )
        if spec.part in self._levels.splits and self._start < self._stop == spec.shape[0]:
            self._fill(self._stop - 1, np.array([self._items[self._level + 1]]))

    def close(self) -> None:
        """Write the remaining entries and complete the unit."""
        self.end()
        self.writer.close()

    def _memory(self) -> NDArray[Any]:
        if self._buffer is None:
            dtype = np.dtypes.StringDType() if self.spec.dtype == "string" else np.dtype(self.spec.dtype)
            self._buffer = np.empty((self._stop - self._start, *self.spec.shape[1:]), dtype)
        return self._buffer

    def _fill(self, start: int, entries: NDArray[Any]) -> None:
        memory, past = self._memory(), start + len(entries)
        # The decoder may have written the entries into this buffer.
        if entries.base is not memory:
            memory[start - self._start : past - self._start] = entries
        if past == self._stop:
            self._buffer = None
            self.writer.put(self.spec, self._start, self._stop, memory)
