"""Progress and summary of a write, the same for all writers.

`dask_tfrecord.runtime.progress` follows tasks and displays the bar.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.filesize import decimal

from dask_tfrecord.arrays.sources import Source
from dask_tfrecord.errors import plural, printable, redact_url
from dask_tfrecord.runtime.progress import ProgressBar, follow_tasks, is_displayed, show_immediately


@dataclass(frozen=True, slots=True, eq=False)
class ReadVolume:
    """Amount of data that the tasks of a write read.

    Attributes
    ----------
    tasks : ndarray of float64, shape (ntasks,)
        Amount that each task reads: stored bytes, or rows.
    before : float
        Amount that was read for units written before a resume.
    nbytes : int or None
        Stored bytes of all TFRecord shards that are read, each counted once; None for rows of other sources.
    """

    tasks: NDArray[np.float64]
    before: float
    nbytes: int | None

    @classmethod
    def from_spans(
        cls,
        source: Source | None,
        nrows: int,
        spans: Sequence[tuple[int, int]],
        all_spans: Sequence[tuple[int, int]] = (),
    ) -> ReadVolume:
        """Return the amount that tasks over these rows read.

        Parameters
        ----------
        source : Source or None
            Source of the rows.
        nrows : int
            Rows of the source.
        spans : sequence of (int, int)
            Range of rows of each task.
        all_spans : sequence of (int, int), optional
            Ranges of all tasks of the whole write, if it is resumed.
        """
        table = np.array([*spans, *all_spans, (0, nrows)], np.int64)
        nbytes = None if source is None else source.cost(table)
        read = (table[:, 1] - table[:, 0]).astype(np.float64) if nbytes is None else nbytes
        now, whole = read[: len(spans)], read[len(spans) : -1]
        stored = None if nbytes is None else round(float(nbytes[-1]))
        return cls(now, max(float(whole.sum() - now.sum()), 0.0), stored)


@dataclass(frozen=True, slots=True, eq=False)
class WriteWork:
    """Description of a write.

    Attributes
    ----------
    location : str
        Destination, for display.
    tasks : str
        Name in the keys of the tasks.
    records : int or None
        Number of records; None if it is unknown.
    features : int or None
        Features of each record; None if records are copied unparsed.
    read_volume : ReadVolume
        Amount of data to read.
    units : int
        Number of write units or shards, completed ones included.
    completed : sequence of WriteReport
        Reports of units that were written before.
    """

    location: str
    tasks: str
    records: int | None
    features: int | None
    read_volume: ReadVolume
    units: int
    completed: Sequence[WriteReport] = ()


@dataclass(frozen=True, slots=True)
class WriteSummary:
    """Summary of a finished write.

    Attributes
    ----------
    location : str
        Destination.
    records : int
        Number of records.
    features : int or None
        Features of each record; None if records are copied unparsed.
    units, before : int
        Number of write units or shards, and how many of them were written before.
    seconds : float
        Duration.
    nbytes_in : int or None
        Stored bytes of the TFRecord shards that were read, each counted once; None for other sources.
    decoded : int
        Decoded bytes that were written.
    nbytes_out : int
        Stored bytes that were written.
    rate : float
        Bytes read per second, or decoded bytes if those are unknown; units written before are excluded.
    peak : int
        Largest peak memory of a process that wrote; 0 if the system does not report it.
    """

    location: str
    records: int
    features: int | None
    units: int
    before: int
    seconds: float
    nbytes_in: int | None
    decoded: int
    nbytes_out: int
    rate: float
    peak: int

    def __str__(self) -> str:
        amount = plural(self.records, "record" if self.features is None else "row")
        if self.features is not None:
            amount += f" of {plural(self.features, 'feature')}"
        if self.before:
            amount += f" ({self.before:,} of {plural(self.units, 'write unit')} before)"
        # Paths below the working directory are displayed relative to it.
        location = self.location.removeprefix(f"{Path.cwd()}{os.sep}")
        phrases = [f"Wrote {printable(location)}: {amount} in {self.seconds:.1f} s; {self._bytes()}{self._ratio()}"]
        phrases.append(f"{decimal(int(self.rate))}/s")
        if self.peak:
            phrases.append(f"peak memory {decimal(self.peak)}")
        return ", ".join(phrases)

    def _bytes(self) -> str:
        return _bytes_in_and_out(self.nbytes_in, self.decoded, self.nbytes_out)

    def _ratio(self) -> str:
        """Describe the ratio of bytes read to bytes written."""
        read = self.decoded if self.nbytes_in is None else self.nbytes_in
        if not read or not self.nbytes_out:
            return ""
        smaller = read >= self.nbytes_out
        ratio = f"{read / self.nbytes_out if smaller else self.nbytes_out / read:.2f}"
        return f" ({ratio} times {'smaller' if smaller else 'larger'})" if ratio != "1.00" else ""


_log = logging.getLogger(__name__)

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
    began, place, left = time.monotonic(), redact_url(work.location), work.units - len(work.completed)
    _log.info("%s: writing %s, %d of them were written before", place, plural(work.units, "unit"), len(work.completed))
    with _displayed(work):
        yield
    _log.info("%s: wrote %s in %.1f s", place, plural(left, "unit"), time.monotonic() - began)


@contextmanager
def _displayed(work: WriteWork) -> Iterator[None]:
    collector = _collector.get()
    if collector is None and not is_displayed():
        yield
        return
    total = _RunningTotal(work)
    bar = ProgressBar("Writing", total.read_total, before=work.read_volume.before, line=total.line)

    def done(number: int, report: WriteReport) -> None:
        bar.advance(total.read(number, 1.0))
        total.add(report)

    def part(number: int, share: float) -> None:
        bar.advance(total.read(number, share))

    with bar:
        with follow_tasks(work.tasks, done, part):
            yield
        summary = total.summary()
        if collector is None:
            bar.end_with(str(summary))
        else:
            collector.append(summary)


class _RunningTotal:
    """Sum of the reports of tasks."""

    def __init__(self, work: WriteWork) -> None:
        self._work, self._began = work, time.perf_counter()
        # One thread adds reports, and another one displays them.
        self._lock = threading.Lock()
        self._records = sum(report.records for report in work.completed)
        self._decoded = self._decoded_before = sum(report.nbytes for report in work.completed)
        self._stored = sum(report.stored for report in work.completed)
        self._read, self._peak = work.read_volume.before, 0
        # Share of each task that is counted in `_read`.
        self._shares: dict[int, float] = {}
        self.read_total = work.read_volume.before + float(work.read_volume.tasks.sum())

    def read(self, number: int, share: float) -> float:
        """Count what a task has read so far; return how much more that is. A task that runs again adds nothing."""
        with self._lock:
            gain = max(share - self._shares.get(number, 0.0), 0.0)
            self._shares[number] = self._shares.get(number, 0.0) + gain
            amount = gain * float(self._work.read_volume.tasks[number])
            self._read += amount
        return amount

    def add(self, report: WriteReport) -> None:
        """Add the report of a task."""
        with self._lock:
            self._records += report.records
            self._decoded += report.nbytes
            self._stored += report.stored
            self._peak = max(self._peak, report.peak)

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
            nbytes_in = self._shard_nbytes(self._read)
            processed = self._decoded - self._decoded_before if nbytes_in is None else nbytes_in - (self._before or 0)
            return WriteSummary(
                work.location,
                self._records,
                work.features,
                work.units,
                len(work.completed),
                seconds,
                nbytes_in,
                self._decoded,
                self._stored,
                processed / max(seconds, 1e-9),
                self._peak,
            )

    @property
    def _before(self) -> int | None:
        return self._shard_nbytes(self._work.read_volume.before)

    def _shard_nbytes(self, read: float) -> int | None:
        """Return the bytes of shards that are read by now, as a share of all reading."""
        nbytes = self._work.read_volume.nbytes
        return (
            None if nbytes is None else round(nbytes * min(read / self.read_total, 1.0)) if self.read_total else nbytes
        )


def _bytes_in_and_out(nbytes_in: int | None, decoded: int, nbytes_out: int) -> str:
    read = f"{decimal(decoded)} decoded" if nbytes_in is None else f"{decimal(nbytes_in)} in"
    return f"{read}, {decimal(nbytes_out)} out"


@dataclass(frozen=True, slots=True)
class WriteReport:
    """Rows and bytes that were written, of a unit or by a task.

    Attributes
    ----------
    records : int
        Rows; 0 for flat values.
    nbytes : int
        Decoded bytes.
    stored : int
        Stored bytes.
    peak : int
        Peak memory of the process of the task in bytes; 0 if the system does not report it.
    """

    records: int
    nbytes: int
    stored: int = 0
    peak: int = 0

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
    """Report of a task that published one shard.

    Attributes
    ----------
    sidecars : tuple of (str, int)
        Path and bytes of each file that was written next to the shard.
    version : str or None
        Version of the stored file.
    checksum : int or None
        CRC-32C of the stored bytes.
    """

    sidecars: tuple[tuple[str, int], ...] = ()
    version: str | None = None
    checksum: int | None = None


def peak_memory() -> int:
    """Return the peak memory of this process in bytes; 0 if the system does not report it."""
    if sys.platform == "win32":
        return 0
    if sys.platform == "linux":
        # getrusage may report the process that this one was forked from.
        for line in Path("/proc/self/status").read_text("ascii", "replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, others KiB.
    return peak if sys.platform == "darwin" else peak * 1024
