"""What the tasks of a conversion do: read the rows of a write unit in pieces, and write the unit whole.

No task holds more than its unit and a piece of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.arrays.progress import tell
from dask_tfrecord.columns.blocks import ArraysBlock, Block, block_nbytes, concatenate, zero_rows
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema import Schema
from dask_tfrecord.stores.failure import named, under_way, uninterrupted
from dask_tfrecord.stores.feed import Pieces
from dask_tfrecord.stores.freeing import freed
from dask_tfrecord.stores.journal import Journal
from dask_tfrecord.stores.layout import ArraySpec, Unit
from dask_tfrecord.stores.levels import Levels, flat_arrays
from dask_tfrecord.stores.write_report import WriteReport, peak_memory
from dask_tfrecord.stores.zarr import Target, frugal

__all__ = ["Writer", "write_unit"]


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


def write_unit(writer: Writer, unit: Unit, source: Callable[..., Pieces], *rest: Any) -> WriteReport:
    """Write a unit from the rows that ``source(*rest)`` gives, if it is not there."""
    report = _written(writer, unit)
    if report is None:
        places, pieces = _Places(writer), source(*rest)
        with frugal():
            if unit.array is None:
                _write_rows(places, unit, pieces.sized())
            else:
                _write_flat(places, unit.array, unit, pieces)
        report = places.mark(unit)
        freed(report.nbytes)
    tell(report)
    return report


def _written(writer: Writer, unit: Unit) -> WriteReport | None:
    """Tell what is written of a unit: the worker that had its report may be lost, or all is finished.

    Raises
    ------
    IncompleteStoreError
        If another conversion has taken the place of this one.
    """
    report = writer.journal.written(unit.number)
    if report is None and not writer.journal.is_kept() and writer.target.note(writer.journal.identity)["written"]:
        return WriteReport(0, 0)
    return report


class _Places:
    """Where a task puts the entries of its unit."""

    def __init__(self, writer: Writer) -> None:
        self.writer, self.nbytes = writer, 0
        self._objects: list[str] = []

    def put(self, spec: ArraySpec, start: int, stop: int, entries: NDArray[Any]) -> None:
        """Write entries of one array."""
        self.nbytes += block_nbytes(entries)
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
            array[start:stop] = entries

        with under_way(self.writer.run) as on:
            if on:
                with named(str(self.writer.target)):
                    uninterrupted(write)
        self._objects += objects

    def mark(self, unit: Unit) -> WriteReport:
        """Note that the unit is written."""
        report = WriteReport(0 if unit.array else unit.stop - unit.start, self.nbytes, peak=peak_memory())
        with under_way(self.writer.run) as on:
            if not on:
                return report
            with named(str(self.writer.target)):
                return uninterrupted(lambda: self.writer.journal.mark(unit.number, report, self._objects))


def _write_rows(places: _Places, unit: Unit, pieces: Pieces) -> None:
    """Write rows of everything that is laid out by rows: of what differs in size, the splits alone."""
    writer = places.writer
    # Numbers are decoded into their place where there are several pieces; what is flat leaves its splits and goes.
    several = {
        name: np.empty((unit.stop - unit.start, *feature.block_shape), feature.block_dtype)
        for name, feature in writer.schema.items()
        if len(unit.spans) > 1 and feature.block_dtype.kind in "biufc"
    }
    flat = [_Entries(writer, spec, unit) for spec in writer.specs if spec.by_rows and spec.part != "dense"]
    whole: dict[str, list[Block]] = {
        spec.feature: [] for spec in writer.specs if spec.part == "dense" and spec.feature not in several
    }
    for blocks in pieces.pieces(tuple(writer.schema), unit.spans, several):
        for name in whole:
            whole[name].append(blocks[name])
        for entries in flat:
            entries.add(blocks[entries.spec.feature])
    for entries in flat:
        entries.write(places)
    for spec in writer.specs:
        if spec.part == "dense":
            parts = whole.pop(spec.feature, None) or [zero_rows(writer.schema[spec.feature])]
            rows = several[spec.feature] if spec.feature in several else concatenate(parts)
            places.put(spec, unit.start, unit.stop, np.asarray(rows))


def _write_flat(places: _Places, spec: ArraySpec, unit: Unit, pieces: Pieces) -> None:
    """Write entries of one flat array."""
    entries = _Entries(places.writer, spec, unit)
    for blocks in pieces.pieces((spec.feature,), unit.spans):
        entries.add(blocks[spec.feature])
    entries.write(places)


class _Entries:
    """Entries of a flat array, filled in from blocks of rows that follow each other."""

    def __init__(self, writer: Writer, spec: ArraySpec, unit: Unit) -> None:
        self.spec, self.unit = spec, unit
        self.levels = Levels.of(writer.schema[spec.feature])
        self.level, self.stride = self.levels.place(spec.part)
        self.start, self.stop = unit.start, unit.stop
        if unit.array is None:
            # The last unit writes the end of the last row, too.
            end = 1 if spec.part in self.levels.splits and unit.stop == writer.nrows else 0
            self.start, self.stop = unit.start * self.stride, unit.stop * self.stride + end
        self.items = unit.before[spec.feature]
        self.buffer = np.empty((self.stop - self.start, *spec.shape[1:]), spec.dtype)

    def add(self, block: Block) -> None:
        """Take what a block of the next rows has for the array."""
        splits, values = flat_arrays(block)
        entries: NDArray[Any] = values
        if self.spec.part == "shapes" and isinstance(block, ArraysBlock):
            entries = block.shapes
        elif self.spec.part in self.levels.splits:
            entries = splits[self.level][:-1] + self.items[self.level + 1]
        at = self.items[self.level] * self.stride
        low, high = max(at, self.start), min(at + len(entries), self.stop)
        if low < high:
            self.buffer[low - self.start : high - self.start] = entries[low - at : high - at]
        added = (len(block), *(int(ends[-1]) for ends in splits))
        self.items = tuple(before + more for before, more in zip(self.items, added, strict=True))

    def write(self, places: _Places) -> None:
        """Write all of them."""
        name, spec = self.spec.feature, self.spec
        if self.items != self.unit.past[name]:
            raise SchemaError(
                f"the values of feature {name!r} are not as many as when they were counted: a file has changed since, "
                f"or a function given to map_blocks does not return the same when it is called again"
            )
        if spec.part in self.levels.splits and self.start < self.stop == spec.shape[0]:
            self.buffer[-1] = self.items[self.level + 1]
        places.put(spec, self.start, self.stop, self.buffer)
