"""Passes over all rows of a data set that are continued span by span while a page follows them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dask_tfrecord.blocks import block_nbytes, release_memory
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.extras.statistics.summaries import ColumnStatistics, Numbers
from dask_tfrecord.extras.view.cells import as_json
from dask_tfrecord.extras.view.opened import Opened, filtered_code
from dask_tfrecord.markup import time_text
from dask_tfrecord.settings import limits

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
                    self.data.wait(0, 0.1, known)
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
    """Rows for which an expression holds."""

    def __init__(self, data: Opened, expression: str) -> None:
        from dask_tfrecord.rows.where import Filters, as_stored, parse_expression

        schema = data.schema
        if schema is None:
            raise SchemaError("filters need features, and those of these records are unknown")
        parsed = as_stored(schema, parse_expression(expression, schema))
        self.filters = Filters.parse(parsed).resolve(schema)
        super().__init__(data, self.filters.columns)
        self.code = filtered_code(data.code, parsed)
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
            parts = [self.columns[name]] if name in self.columns else []
            part = ColumnStatistics.of(name, self.data.schema[name], blocks[name])
            self.columns[name] = ColumnStatistics.merged([*parts, part])

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as JSON values."""
        return {name: _statistics(column) for name, column in list(self.columns.items())}


def _statistics(column: ColumnStatistics) -> dict[str, Any]:
    """Describe a column's distribution as JSON values, with the bars of a histogram."""
    numbers, lengths = column.numbers or column.sizes, column.lengths
    if numbers is not None and not numbers.count:
        numbers = None
    shown = _json_of_numbers(column, numbers)
    return {
        "missing": column.missing,
        "lengths": None if lengths is None or not lengths.count else [lengths.minimum, lengths.maximum],
        "top": _frequent_values(column),
        "bins": [] if numbers is None else list(_histogram_bars(column, numbers, shown)),
        "of": "sizes" if column.numbers is None else "values",
        **{
            short: None if numbers is None else shown(getattr(numbers, name))
            for short, name in (("min", "minimum"), ("max", "maximum"), ("mean", "mean"))
        },
    }


def _json_of_numbers(column: ColumnStatistics, numbers: Numbers | None) -> Callable[[Any], Any]:
    """Return the function that makes numbers JSON values: times are text, with the digits that their range needs."""
    if numbers is None or column.numbers is None or not column.dtype.startswith(("datetime64", "timedelta64")):
        return as_json
    extent = int(numbers.maximum or 0) - int(numbers.minimum or 0)
    step = next(step for step in (10**9, 10**6, 10**3, 1) if extent >= 100 * step or step == 1)
    return lambda value: _time(column, math.floor(value) // step * step)


def _time(column: ColumnStatistics, nanoseconds: int) -> str:
    return time_text(np.int64(nanoseconds).view(column.dtype))


def _frequent_values(column: ColumnStatistics) -> list[dict[str, Any]]:
    """Return frequent values, if some occur several times and all are short."""
    known = column.frequencies
    frequent = [] if known is None or known.error else known.top(_TOP)
    if not frequent or frequent[0][1] < 2 or any(len(value) > _LETTERS for value, _ in frequent):
        return []
    labels = [value.decode("utf-8", "backslashreplace") for value, _ in frequent]
    is_text = column.dtype == "text"
    return [
        {"label": label, "count": count, "expression": _bar_condition(column, ("==", label if is_text else value))}
        for label, (value, count) in zip(labels, frequent, strict=True)
    ]


def _histogram_bars(
    column: ColumnStatistics, numbers: Numbers, shown: Callable[[Any], Any]
) -> Iterator[dict[str, Any]]:
    """Yield the bars of a histogram."""
    bars = list(numbers.bars(_BINS))
    for place, (first, last, count) in enumerate(bars):
        expression = None
        if column.numbers is not None:
            low, high = _literal(column, first), _literal(column, last)
            # A float on the border of two bars is in the second one.
            below = "<" if isinstance(last, float) and place + 1 < len(bars) else "<="
            pairs = [("==", low)] if low == high else [(">=", low), (below, high)]
            expression = _bar_condition(column, *pairs)
        yield {"low": shown(first), "high": shown(last), "count": count, "expression": expression}


def _literal(column: ColumnStatistics, value: Any) -> Any:
    if column.dtype == "bool":
        return bool(value)
    return _time(column, value) if column.dtype.startswith(("datetime64", "timedelta64")) else value


def _bar_condition(column: ColumnStatistics, *parts: tuple[str, Any]) -> str | None:
    """Return the expression of a bar of a column with one value per row."""
    if column.lengths is not None or column.shape:
        return None
    from dask_tfrecord.rows.where import condition_text

    return " and ".join(condition_text(column.name, comparison, value) for comparison, value in parts)
