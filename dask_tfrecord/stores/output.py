"""Progress, reports and summary of a write, for all writers."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray
from rich.filesize import decimal

from dask_tfrecord.errors import plural, printable, redact_url
from dask_tfrecord.options import Mode
from dask_tfrecord.rows.progress import (
    ProgressBar,
    follow_tasks,
    is_displayed,
    show_immediately,
)
from dask_tfrecord.rows.sources import CountedRows


def collect(reports: Sequence[Any]) -> list[Any]:
    """Return the reports of all tasks: the last task of a graph that a client waits for."""
    return list(reports)


def check_number(name: str, value: Any, least: int, of: str = "", others: str = "") -> int:
    """Return a number that a user specified; raise ValueError for others, which lists `others` that would do."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a number{of}, {least} or more{others}; got {value!r:.100}")
    return int(value)


def check_mode(mode: str, what: str, *, resume: bool = False) -> Mode:
    """Return the mode; refuse any but the two of all writers, and ``"w"`` to resume."""
    if resume and mode == "w":
        raise ValueError(f"mode='w' replaces {what}, and resume=True continues it: pass only one of them")
    for known in get_args(Mode):
        if mode == known:
            return cast(Mode, mode)
    adds = "'a' (add columns), and append_dim='record' adds rows" if what == "the group" else "'a' (add to what exists)"
    if what == "the group" and mode in ("append", "r+"):
        adds += ": write append_dim='record' to add rows to a store"
    raise ValueError(f"mode must be 'w-' (fail if {what} exists), 'w' (replace what exists) or {adds}; got {mode!r}")


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class WriteWork:
    """Description of a write."""

    location: str  # destination, for display
    tasks: str  # name in the keys of the tasks
    records: int | None  # None if their number is unknown
    features: int | None  # of each record; None if records are copied unparsed
    units: int  # write units or shards, completed ones included
    # Amount that each task reads: stored bytes, or rows.
    reading: NDArray[np.float64]
    # Stored bytes of all TFRecord shards that are read, each counted once; None for rows of other sources.
    nbytes: int | None
    # Amount that was read for units written before a resume, and the reports of these units.
    before: float = 0.0
    completed: Sequence[WriteReport] = ()

    @classmethod
    def of_rows(
        cls,
        location: str,
        tasks: str,
        source: CountedRows | None,
        nrows: int,
        features: int,
        spans: Sequence[tuple[int, int]],
    ) -> WriteWork:
        """Describe tasks over spans of rows of a source."""
        reading, stored = _amounts_to_read(source, nrows, spans)
        return cls(location, tasks, nrows, features, len(spans), reading, stored)

    def resumed(
        self, source: CountedRows | None, spans: Sequence[tuple[int, int]], units: int, completed: Sequence[WriteReport]
    ) -> WriteWork:
        """Describe what is left of a write with `units` units, after those in `completed`; `spans` are of all tasks."""
        whole = _amounts_to_read(source, self.records or 0, spans)[0].sum() if completed else self.reading.sum()
        return replace(self, units=units, before=max(float(whole - self.reading.sum()), 0.0), completed=completed)


def _amounts_to_read(
    source: CountedRows | None, nrows: int, spans: Sequence[tuple[int, int]]
) -> tuple[NDArray[np.float64], int | None]:
    """Return what is read for each span: stored bytes, or rows; and the stored bytes of all rows."""
    table = np.array([*spans, (0, nrows)], np.int64)
    nbytes = None if source is None else source.cost(table)
    if nbytes is None:
        return (table[:-1, 1] - table[:-1, 0]).astype(np.float64), None
    return nbytes[:-1], round(float(nbytes[-1]))


@dataclass(frozen=True, slots=True)
class WriteSummary:
    """Summary of a finished write."""

    location: str  # destination
    records: int
    features: int | None  # of each record; None if records are copied unparsed
    units: int  # write units or shards
    before: int  # units that were written before
    seconds: float
    # Stored bytes of the TFRecord shards that were read, each counted once; None for other sources.
    nbytes_in: int | None
    decoded: int  # decoded bytes that were written
    nbytes_out: int  # stored bytes that were written
    rate: float  # bytes read per second, or decoded bytes if those are unknown; without units written before
    peak: int  # largest peak memory of a process that wrote; 0 if the system does not report it

    def __str__(self) -> str:
        amount = plural(self.records, "record" if self.features is None else "row")
        if self.features is not None:
            amount += f" of {plural(self.features, 'feature')}"
        if self.before:
            amount += f" ({self.before:,} of {plural(self.units, 'write unit')} before)"
        # Paths below the working directory are displayed relative to it.
        location = self.location.removeprefix(f"{Path.cwd()}{os.sep}")
        amounts = _bytes_in_and_out(self.nbytes_in, self.decoded, self.nbytes_out)
        phrases = [f"Wrote {printable(location)}: {amount} in {self.seconds:.1f} s; {amounts}"]
        phrases.append(f"{decimal(int(self.rate))}/s")
        if self.peak:
            phrases.append(f"peak memory {decimal(self.peak)}")
        return ", ".join(phrases)


_collector: ContextVar[list[WriteSummary] | None] = ContextVar("collector", default=None)


@contextmanager
def collect_summaries() -> Iterator[list[WriteSummary]]:
    """Collect the summaries of writes within the context instead of printing them; display bars immediately."""
    found: list[WriteSummary] = []
    token = _collector.set(found)
    try:
        with show_immediately():
            yield found
    finally:
        _collector.reset(token)


@contextmanager
def show_progress(work: WriteWork) -> Iterator[None]:
    """Display the progress of a write within the context, and its summary, in terminals and notebooks; log it."""
    began = time.monotonic()
    place = redact_url(work.location)
    left = work.units - len(work.completed)
    _log.info("%s: writing %s, %d of them were written before", place, plural(work.units, "unit"), len(work.completed))
    collector = _collector.get()
    if collector is None and not is_displayed():
        yield
    else:
        total = _RunningTotal(work)
        with total.bar:
            with follow_tasks(work.tasks, total.done, total.part):
                yield
            if collector is None:
                total.bar.end_with(str(total.summary()))
            else:
                collector.append(total.summary())
    _log.info("%s: wrote %s in %.1f s", place, plural(left, "unit"), time.monotonic() - began)


class _RunningTotal:
    """Sum of the reports of tasks, and its progress bar."""

    def __init__(self, work: WriteWork) -> None:
        self._work, self._began = work, time.perf_counter()
        # One thread adds reports, and another one displays them.
        self._lock = threading.Lock()
        self._before = self._sum = replace(WriteReport.sum(work.completed), peak=0)
        self._read, self._whole = work.before, work.before + float(work.reading.sum())
        self.bar = ProgressBar("Writing", self._whole, before=work.before, line=self.line)

    def part(self, number: int, gain: float) -> None:
        """Count what a task has read since the last call, as a share of its reading."""
        amount = gain * float(self._work.reading[number])
        with self._lock:
            self._read += amount
        self.bar.advance(amount)

    def done(self, number: int, report: WriteReport) -> None:
        """Add the report of a task."""
        with self._lock:
            self._sum = WriteReport.sum([self._sum, report])

    def line(self) -> str:
        """Describe the progress in one line."""
        now, of = self.summary(), self._work.records
        unit = "record" if self._work.features is None else "row"
        rows = f"{now.records:,} of {plural(of, unit)}" if of is not None else plural(now.records, unit)
        amounts = _bytes_in_and_out(now.nbytes_in, now.decoded, now.nbytes_out)
        return f"{rows}, {amounts}, {decimal(int(now.rate))}/s"

    def summary(self) -> WriteSummary:
        """Summarize the reports so far."""
        work, seconds = self._work, time.perf_counter() - self._began
        with self._lock:
            total, read = self._sum, self._read
        nbytes_in, before = self._shard_nbytes(read), self._shard_nbytes(work.before)
        processed = total.nbytes - self._before.nbytes if nbytes_in is None else nbytes_in - (before or 0)
        return WriteSummary(
            work.location,
            total.records,
            work.features,
            work.units,
            len(work.completed),
            seconds,
            nbytes_in,
            total.nbytes,
            total.stored,
            processed / max(seconds, 1e-9),
            total.peak,
        )

    def _shard_nbytes(self, read: float) -> int | None:
        """Return the bytes of shards that are read by now, as a share of all reading."""
        nbytes = self._work.nbytes
        return nbytes if nbytes is None or not self._whole else round(nbytes * min(read / self._whole, 1.0))


def _bytes_in_and_out(nbytes_in: int | None, decoded: int, nbytes_out: int) -> str:
    read = f"{decimal(decoded)} decoded" if nbytes_in is None else f"{decimal(nbytes_in)} in"
    return f"{read}, {decimal(nbytes_out)} out"


@dataclass(frozen=True, slots=True)
class WriteReport:
    """Rows and bytes that were written, of a unit or by a task."""

    records: int  # rows; 0 for flat values
    nbytes: int  # decoded bytes
    stored: int = 0  # stored bytes
    peak: int = 0  # peak memory of the process of the task in bytes; 0 if the system does not report it

    @classmethod
    def sum(cls, reports: Sequence[WriteReport]) -> WriteReport:
        """Add reports."""
        return cls(
            sum(report.records for report in reports),
            sum(report.nbytes for report in reports),
            sum(report.stored for report in reports),
            max((report.peak for report in reports), default=0),
        )


@dataclass(frozen=True, slots=True)
class ShardWriteReport(WriteReport):
    """Report of a task that published one shard."""

    sidecars: tuple[tuple[str, int], ...] = ()  # path and bytes of each file next to the shard
    version: str | None = None  # of the stored file
    checksum: int | None = None  # CRC-32C of the stored bytes

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ShardWriteReport:
        """Read a report that was stored as JSON."""
        return cls(**{**document, "sidecars": tuple((name, size) for name, size in document["sidecars"])})

    @classmethod
    def list_from_json(cls, data: bytes | None) -> list[ShardWriteReport]:
        """Read the reports of a part of a job; none if they are missing or damaged."""
        try:
            return [cls.from_json(each) for each in json.loads(data or b"[]")]
        except (ValueError, TypeError, KeyError, RecursionError):
            return []


def peak_memory() -> int:
    """Return the peak memory of this process in bytes; 0 if the system does not report it."""
    if sys.platform == "win32":
        return 0
    if sys.platform == "linux":
        # getrusage may report the process that this one was forked from.
        # Each task asks: no text is decoded.
        with open("/proc/self/status", "rb", buffering=0) as file:  # noqa: PTH123
            _, found, after = file.read().partition(b"VmHWM:")
        if found:
            return int(after.split(None, 1)[0]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, others KiB.
    return peak if sys.platform == "darwin" else peak * 1024
