"""Passes over all rows of a data set that are continued span by span while a page follows them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_tfrecord.columns.blocks import block_nbytes, release_memory
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.settings import limits
from dask_tfrecord.statistics.summaries import ColumnStatistics
from dask_tfrecord.view.cells import number
from dask_tfrecord.view.opened import Opened, filtered_code

# Seconds of a step of a pass, after which the page gets a message.
_STEP = 0.3
_BINS = 20
_TOP = 10
_LETTERS = 80


class Pass:
    """Rows that were read so far; pages that follow the same pass continue it in turn."""

    def __init__(self, data: Opened, names: Sequence[str]) -> None:
        self.data, self.names = data, tuple(names)
        self.rows = 0
        self._size = limits().probe_rows
        self._lock = threading.Lock()

    @property
    def done(self) -> bool:
        """True if all rows were read."""
        known = self.data.known
        return known.counted and self.rows >= known.rows

    def advance(self, ended: threading.Event) -> None:
        """Read spans for a moment, or until the page is closed."""
        with self._lock:
            until = time.monotonic() + _STEP
            while not ended.is_set() and not self.data.closing.is_set() and time.monotonic() < until:
                known = self.data.known
                stop = min(self.rows + self._size, known.rows)
                if stop == self.rows:
                    if known.counted:
                        return
                    self.data.changes(known, 0.1)
                    continue
                nbytes = 0
                for start, blocks in self.data.read_span(self.names, self.rows, stop):
                    if not isinstance(blocks, str):
                        self.take(start, blocks)
                        nbytes += sum(map(block_nbytes, blocks.values()))
                row_nbytes = max(1.0, nbytes / (stop - self.rows))
                self.rows = stop
                self._size = int(np.clip(limits().read_nbytes / row_nbytes, 1, 4 * self._size))
            # Each step may run in another thread, whose allocator would keep the memory of blocks.
            release_memory()

    def take(self, start: int, blocks: dict[str, Any]) -> None:
        """Use the blocks of consecutive rows."""
        raise NotImplementedError


class Search(Pass):
    """Rows for which an expression holds.

    Raises
    ------
    ValueError
        If the expression cannot be parsed.
    SchemaError
        If a condition does not fit its column.
    """

    def __init__(self, data: Opened, expression: str) -> None:
        from dask_tfrecord.arrays.filters import Filters, as_stored, parse_expression

        schema = data.schema
        if schema is None:
            raise SchemaError("filters need features, and those of these records are unknown")
        parsed = [as_stored(schema, each) for each in parse_expression(expression)]
        self.filters = Filters.parse(parsed).resolve(schema)
        super().__init__(data, self.filters.columns)
        self.code = filtered_code(data.code, parsed[0] if len(parsed) == 1 else parsed)
        self._found: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        self.count = 0

    def take(self, start: int, blocks: dict[str, Any]) -> None:
        """Keep the numbers of the rows that are found."""
        numbers = np.flatnonzero(self.filters(blocks)) + start
        if numbers.size:
            self._found.append(numbers)
            self.count += len(numbers)

    def found(self, start: int, stop: int) -> list[int]:
        """Return the numbers of some of the rows that were found."""
        if len(self._found) > 1:
            with self._lock:
                self._found = [np.concatenate(self._found)]
        return self._found[0][start:stop].tolist() if self._found else []


class Refined(Pass):
    """Statistics of all columns, of the rows that were read so far."""

    def __init__(self, data: Opened) -> None:
        super().__init__(data, tuple(data.schema or ()))
        self.columns: dict[str, ColumnStatistics] = {}

    def take(self, start: int, blocks: dict[str, Any]) -> None:
        """Merge the statistics of a span."""
        for name in self.names:
            assert self.data.schema is not None
            part = ColumnStatistics.of(name, self.data.schema[name], blocks[name])
            before = self.columns.get(name)
            self.columns[name] = part if before is None else ColumnStatistics.merged([before, part])

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as JSON values."""
        return {name: _statistics(column) for name, column in list(self.columns.items())}


def _statistics(column: ColumnStatistics) -> dict[str, Any]:
    numbers = column.numbers or column.sizes
    lengths, top, histogram = column.lengths, None, None
    if column.frequencies is not None:
        top = [
            {"label": _label(value), "count": count, "expression": f"{column.name} == {_literal(value, column)}"}
            for value, count in column.frequencies.top(_TOP)
        ]
        repeated = not column.frequencies.error and any(count > 1 for _, count in column.frequencies.top(1))
        top = top if repeated and all(len(str(each["label"])) <= _LETTERS for each in top) else None
    if numbers is not None and numbers.count:
        bins = numbers.histogram(_BINS)
        edges = [*(low for low, _, _ in bins), *(high for _, high, _ in bins[-1:])]
        histogram = {"edges": list(map(number, edges)), "counts": [round(count) for _, _, count in bins]}
    return {
        "count": column.values,
        "missing": column.missing,
        "distinct": column.distinct,
        "lengths": None
        if lengths is None or not lengths.count
        else {"min": number(lengths.minimum), "max": number(lengths.maximum), "mean": number(lengths.mean)},
        "histogram": histogram,
        "top": top,
        "of": "sizes" if column.numbers is None else "values",
        **{
            short: None if numbers is None or not numbers.count else number(getattr(numbers, name))
            for short, name in (("min", "minimum"), ("max", "maximum"), ("mean", "mean"), ("std", "std"))
        },
    }


def _label(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _literal(value: bytes, column: ColumnStatistics) -> str:
    return repr(value.decode("utf-8", "replace") if column.dtype == "text" else value)
