"""How far a writing is, shown while it runs, and summed up at its end: one implementation for all that is written.

How tasks are followed and where a bar is seen is in `dask_tfrecord.arrays.progress`.
"""

from __future__ import annotations

import os
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

from dask_tfrecord.arrays.display import many
from dask_tfrecord.arrays.progress import Bar, at_once, followed, is_seen
from dask_tfrecord.arrays.source import Source
from dask_tfrecord.arrays.stored import stored_nbytes
from dask_tfrecord.stores.write_report import WriteReport

__all__ = ["Reading", "Summary", "Work", "shown", "summed_up"]


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What the tasks of a writing read.

    Attributes
    ----------
    tasks : ndarray of float64, shape (ntasks,)
        How much each of them reads.
    before : float
        How much those have read that were done when the writing was gone on with.
    nbytes : int or None
        Stored bytes of all TFRecord shards that are read, each once, whoever reads it again; None where rows come from
        elsewhere.
    """

    tasks: NDArray[np.float64]
    before: float
    nbytes: int | None

    @classmethod
    def of(
        cls,
        source: Source | None,
        nrows: int,
        spans: Sequence[tuple[int, int]],
        whole: Sequence[tuple[int, int]] = (),
    ) -> Reading:
        """Find what tasks read of rows.

        Parameters
        ----------
        source : Source or None
            Whose rows.
        nrows : int
            How many it has.
        spans : sequence of (int, int)
            First row and past-the-last row of each task.
        whole : sequence of (int, int), optional
            The same of all tasks that there would be if nothing were done, where something is.
        """
        table = np.array([*spans, *whole, (0, nrows)], np.int64)
        nbytes = stored_nbytes(source, table)
        read = (table[:, 1] - table[:, 0]).astype(np.float64) if nbytes is None else nbytes
        now, of_all = read[: len(spans)], read[len(spans) : -1]
        stored = None if nbytes is None else round(float(nbytes[-1]))
        return cls(now, max(float(of_all.sum() - now.sum()), 0.0), stored)


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What is to be written.

    Attributes
    ----------
    place : str
        Where to, for people.
    tasks : str
        The name in the keys of the tasks.
    records : int or None
        How many will be written in all; None where nobody knows.
    features : int or None
        How many each of them has; None where nobody looks.
    reading : Reading
        What is read for it.
    units : int
        How many write units or shards it is, those that are there included.
    there : sequence of WriteReport
        What was written before.
    """

    place: str
    tasks: str
    records: int | None
    features: int | None
    reading: Reading
    units: int
    there: Sequence[WriteReport] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """What was written, and what it took.

    Attributes
    ----------
    place : str
        Where to.
    records : int
        How many.
    features : int or None
        How many each of them has.
    units, before : int
        How many write units or shards it is, and how many of them were there before.
    seconds : float
        How long it took.
    nbytes_in : int or None
        Stored bytes of the TFRecord shards that were read, each once; None if it was not these.
    decoded : int
        Decoded bytes that were written.
    nbytes_out : int
        Stored bytes of what was written.
    rate : float
        Bytes in, or decoded ones where these are not known, a second; what was there before not counted.
    peak : int
        The most memory that one of the processes which wrote has held since it began; 0 where the system does not tell.
    """

    place: str
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
        what = many(self.records, "record")
        if self.features is not None:
            what += f" of {many(self.features, 'feature')}"
        if self.before:
            what += f" ({self.before:,} of {many(self.units, 'write unit')} before)"
        # What lies here is named as people do.
        place = self.place.removeprefix(f"{Path.cwd()}{os.sep}")
        said = [f"Wrote {place}: {what} in {self.seconds:.1f} s; {self._bytes()}{self._ratio()}"]
        said.append(f"{decimal(int(self.rate))}/s")
        if self.peak:
            said.append(f"peak memory {decimal(self.peak)}")
        return ", ".join(said)

    def _bytes(self) -> str:
        return _bytes_in_and_out(self.nbytes_in, self.decoded, self.nbytes_out)

    def _ratio(self) -> str:
        """Say how many times smaller or larger it has become."""
        read = self.decoded if self.nbytes_in is None else self.nbytes_in
        if not read or not self.nbytes_out:
            return ""
        smaller = read >= self.nbytes_out
        ratio = f"{read / self.nbytes_out if smaller else self.nbytes_out / read:.2f}"
        return f" ({ratio} times {'smaller' if smaller else 'larger'})" if ratio != "1.00" else ""


_asking: ContextVar[list[Summary] | None] = ContextVar("asking", default=None)


@contextmanager
def summed_up() -> Iterator[list[Summary]]:
    """Collect the summaries of what is written within, which are printed by nobody else then; bars show at once."""
    found: list[Summary] = []
    token = _asking.set(found)
    try:
        with at_once():
            yield found
    finally:
        _asking.reset(token)


@contextmanager
def shown(work: Work) -> Iterator[None]:
    """Show how far a writing is that is computed within, and sum it up, where somebody looks or asks."""
    asking = _asking.get()
    if asking is None and not is_seen():
        yield
        return
    written = _Written(work)
    bar = Bar("Writing", written.total, before=work.reading.before, line=written.line)

    def done(number: int, report: WriteReport) -> None:
        written.add(number, report)
        bar.advance(float(work.reading.tasks[number]))

    with bar:
        with followed(work.tasks, done):
            yield
        summary = written.summary()
        if asking is None:
            bar.end_with(str(summary))
        else:
            asking.append(summary)


class _Written:
    """Adds up what tasks have written."""

    def __init__(self, work: Work) -> None:
        self._work, self._began = work, time.perf_counter()
        # Reports come in one thread, and are shown in another.
        self._lock = threading.Lock()
        self._records = sum(report.records for report in work.there)
        self._decoded = self._decoded_before = sum(report.nbytes for report in work.there)
        self._stored = sum(report.stored for report in work.there)
        self._read, self._peak = work.reading.before, 0
        self.total = work.reading.before + float(work.reading.tasks.sum())

    def add(self, number: int, report: WriteReport) -> None:
        """Take the report of a task."""
        with self._lock:
            self._records += report.records
            self._decoded += report.nbytes
            self._stored += report.stored
            self._read += float(self._work.reading.tasks[number])
            self._peak = max(self._peak, report.peak)

    def line(self) -> str:
        """Say how far it is."""
        now, of = self.summary(), self._work.records
        records = f"{now.records:,} of {of:,}" if of is not None else f"{now.records:,}"
        amounts = _bytes_in_and_out(now.nbytes_in, now.decoded, now.nbytes_out)
        return f"{records} records, {amounts}, {decimal(int(now.rate))}/s"

    def summary(self) -> Summary:
        """Sum up what there is."""
        work, seconds = self._work, time.perf_counter() - self._began
        with self._lock:
            nbytes_in = self._part(self._read)
            gone = self._decoded - self._decoded_before if nbytes_in is None else nbytes_in - (self._before or 0)
            return Summary(
                work.place,
                self._records,
                work.features,
                work.units,
                len(work.there),
                seconds,
                nbytes_in,
                self._decoded,
                self._stored,
                gone / max(seconds, 1e-9),
                self._peak,
            )

    @property
    def _before(self) -> int | None:
        return self._part(self._work.reading.before)

    def _part(self, read: float) -> int | None:
        """Find the bytes of shards that are read by now, each once: their part of all reading."""
        nbytes = self._work.reading.nbytes
        return None if nbytes is None else round(nbytes * min(read / self.total, 1.0)) if self.total else nbytes


def _bytes_in_and_out(nbytes_in: int | None, decoded: int, nbytes_out: int) -> str:
    read = f"{decimal(decoded)} decoded" if nbytes_in is None else f"{decimal(nbytes_in)} in"
    return f"{read}, {decimal(nbytes_out)} out"
