"""The commands: `dask-tfrecord …`, and the same as `dask tfrecord …` through dask's own command line.

Results go to stdout; progress and errors go to stderr. This module may import all others, and holds nothing that a
Python program would miss.
"""

from __future__ import annotations

import errno
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, TypeVar

import click
import dask
from dask.callbacks import Callback
from dask.system import CPU_COUNT
from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from dask_tfrecord.arrays.inspect import inspect_shards
from dask_tfrecord.arrays.read import read_tfrecord
from dask_tfrecord.columns.report import Report
from dask_tfrecord.records.index import ShardIndex, scan_shard
from dask_tfrecord.records.sidecar import write_sidecars
from dask_tfrecord.storage.files import COMPRESSIONS, Shard, Shards, find_shards
from dask_tfrecord.stores.zarr import WriteReport

__all__ = ["main", "tfrecord"]

_INTERRUPTED = 130
_DEBUG = "dask_tfrecord.debug"

# Bytes of shards from which on reading all records is worth the start of processes.
_WORTH_PROCESSES = 64 << 20

# Where output goes to a file or a program, nothing is folded.
_WIDE = 1000

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Result = TypeVar("Result")


class _Commands(click.Group):
    """A group whose commands fail with one line on stderr."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error is a line, and a traceback only after ``--debug``."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            if ctx.meta.get(_DEBUG):
                raise
            click.echo("Interrupted", err=True)
            ctx.exit(_INTERRUPTED)
        except Exception as error:
            # Who closes the pipe, as `head` does, has seen enough: click knows what to do.
            if ctx.meta.get(_DEBUG) or (isinstance(error, OSError) and error.errno == errno.EPIPE):
                raise
            click.echo(f"Error: {_one_line(error)}", err=True)
            ctx.exit(1)


def _one_line(error: Exception) -> str:
    """Put into a line what an error says."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return _plain(f"{error.filename}: {error.strerror}")
    said = " ".join(str(error).split("\n")).strip()
    return _plain(said or f"{type(error).__name__}, of which nothing more is known; --debug shows where")


def _plain(text: str) -> str:
    """Text out of files, with what a terminal would obey spelled out."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    # It may stand before the command or after it.
    if value:
        ctx.meta[_DEBUG] = True


_debug = click.option(
    "--debug", is_flag=True, expose_value=False, callback=_set_debug, help="Show the traceback of an error."
)
_compression = click.option(
    "--compression",
    type=click.Choice(["none" if name is None else name for name in COMPRESSIONS]),
    default="infer",
    show_default=True,
    callback=lambda _ctx, _option, value: None if value == "none" else value,
    help="Of the shards; infer looks at their bytes.",
)
_threads = click.option(
    "--threads",
    type=click.IntRange(1),
    default=CPU_COUNT,
    show_default="one per core",
    metavar="N",
    help="Threads that read and write.",
)


def _urlpath(_ctx: click.Context, _argument: click.Parameter, pattern: tuple[str, ...]) -> str | list[str]:
    # A glob that the shell has expanded comes as a list.
    return pattern[0] if len(pattern) == 1 else list(pattern)


_pattern = click.argument("pattern", nargs=-1, required=True, callback=_urlpath)


@click.group(name="tfrecord", cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dask-tfrecord")
@_debug
def tfrecord() -> None:
    """TFRecord shards: what they hold, and conversion to Zarr.

    A PATTERN is a path, a URL, a directory, a glob such as 'train-*.tfrecord' (quoted, for natural order), or a
    template such as train@8.
    """


def main() -> None:
    """Run `dask-tfrecord`."""
    tfrecord(prog_name="dask-tfrecord")


def _number_or_all(_ctx: click.Context, _option: click.Parameter, value: str) -> int | None:
    """Read a number of records; all of them are None."""
    if value == "all":
        return None
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"{value!r} is neither a number of records, 1 or more, nor 'all'.")
    return int(value)


@tfrecord.command()
@_pattern
@click.option(
    "--sample",
    callback=_number_or_all,
    default="256",
    show_default=True,
    metavar="N|all",
    help="Records to infer features from; all reads every one, with as many processes as --threads says.",
)
@click.option("--spec", is_flag=True, help="Print the features as Python code, and nothing else.")
@click.option("--json", "as_json", is_flag=True, help="Print all that is found as JSON.")
@_compression
@_threads
@_debug
def info(
    pattern: str | list[str], sample: int | None, spec: bool, as_json: bool, compression: str | None, threads: int
) -> None:
    """Say what shards hold: records, bytes, compression, features.

    Headers are read to count the records; features are inferred from the first records of some shards. What bytes look
    like is suggested where all that were looked at agree.
    """
    if spec and as_json:
        raise click.UsageError("--spec and --json are two forms of output: give one of them.")
    shards = find_shards(pattern, compression=compression)
    if spec:
        report = _report(shards, sample, threads)
        if not report.features:
            # There is no code to print, and that is why.
            report.schema  # noqa: B018
        click.echo(report.spec())
        return
    indexes = _scan(shards, threads)
    holds = any(index.count for index in indexes)
    if as_json:
        found = _report(shards, sample, threads) if holds else None
        click.echo(json.dumps(_document(shards, indexes, found), ensure_ascii=False))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    console.print(_facts(shards, indexes))
    if holds:
        report = _report(shards, sample, threads)
        console.print(Text(f"\n{_source(report)}\n", "bold"))
        console.print(_features(report))
        for conflict in report.conflicts:
            console.print(f"\n{_plain(conflict.name)} has values of several kinds:", markup=False)
            for kind in conflict.kinds:
                console.print(f"  {_plain(str(kind))}", markup=False)


@tfrecord.command()
@_pattern
@_compression
@_threads
@_debug
def index(pattern: str | list[str], compression: str | None, threads: int) -> None:
    """Write the index of each shard beside it, so that opening need not read the shards.

    FILE.idx has the format of DALI's and vahidk's tfrecord2idx: a line for each record, its byte and its length. For
    gzip, FILE.gzidx holds places where inflating can begin; that takes indexed_gzip.
    """
    start = time.perf_counter()
    written = _each(write_sidecars, find_shards(pattern, compression=compression), threads, "Indexing")
    seconds = time.perf_counter() - start
    files, records = sum(len(each.paths) for each in written), sum(each.count for each in written)
    click.echo(f"Wrote {_many(files, 'file')}: the places of {_many(records, 'record')} in {seconds:.1f} s")


@tfrecord.command("to-zarr")
@_pattern
@click.argument("store")
@click.option("--columns", multiple=True, metavar="NAME,…", help="Only these features; may be repeated.")
@click.option("--chunks", type=int, metavar="ROWS", help="Records of a Zarr chunk.  [default: some 4 MiB]")
@click.option("--shards", type=int, metavar="ROWS", help="Records of a Zarr shard.  [default: no shards]")
@click.option("--component", metavar="NAME", help="Group of the store to write to.  [default: its root]")
@click.option("--overwrite", is_flag=True, help="Replace the group if it exists.")
@_compression
@_threads
@_debug
def to_zarr(
    pattern: str | list[str],
    store: str,
    columns: tuple[str, ...],
    chunks: int | None,
    shards: int | None,
    component: str | None,
    overwrite: bool,
    compression: str | None,
    threads: int,
) -> None:
    """Convert shards to a Zarr store, in bounded memory.

    Features are inferred, and bytes stay bytes: what they stand for (arrays, text) is said in Python, by
    read_tfrecord(features=…).to_zarr(…).
    """
    names = [name for part in columns for name in part.split(",")] or None
    # This command shows by itself how far it is.
    quiet = {"dask-tfrecord.progress": False}
    with dask.config.set(quiet, scheduler="threads", num_workers=threads):
        with Console(stderr=True).status("Counting records"):
            dataset = read_tfrecord(pattern, columns=names, compression=compression)
        start = time.perf_counter()
        bar = _Bar(dataset.nrecords or 0)
        try:
            with bar:
                dataset.to_zarr(
                    store, component=component, mode="w" if overwrite else "w-", chunks=chunks, shards=shards
                )
        except FileExistsError as error:
            # What a Python program is told to write is spelled another way here.
            said = str(error).replace("mode='w' replaces", "--overwrite replaces")
            raise FileExistsError(said.replace("component= writes", "--component NAME writes")) from error
        finally:
            bar.stop()
    seconds = time.perf_counter() - start
    click.echo(f"Wrote {store}: {_many(bar.records, 'record')} of {_many(len(dataset), 'feature')} in {seconds:.1f} s")


class _Bar(Callback):
    """Moves a progress bar as dask finishes the tasks of a conversion.

    Parameters
    ----------
    total : int
        Records that will be written.
    """

    def __init__(self, total: int) -> None:
        self.records = self.nbytes = 0
        self._total, self._began = total, 0.0
        self._progress = _progress(transient=False)
        self._task = self._progress.add_task("Measuring", done="")

    def stop(self) -> None:
        """Leave the bar as it stands."""
        self._progress.stop()

    def _start_state(self, dsk: Any, state: Any) -> None:
        # Shown from the first task on. What differs in size from record to record is measured by a graph of its own.
        self._progress.start()
        self._began = time.perf_counter()
        self._progress.reset(self._task, total=len(state["waiting"]) + len(state["ready"]))

    def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker: Any) -> None:
        self._progress.advance(self._task)
        if isinstance(result, WriteReport):
            self.records += result.records
            self.nbytes += result.nbytes
            rate = decimal(int(self.nbytes / (time.perf_counter() - self._began)))
            self._progress.update(
                self._task, description="Writing", done=f"{self.records:,}/{self._total:,} records {rate}/s"
            )


def _progress(*, transient: bool) -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TextColumn("{task.fields[done]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=transient,
        disable=transient and not console.is_terminal,
        expand=True,
    )


def _scan(shards: Shards, threads: int) -> list[ShardIndex]:
    """Count the records of every shard."""
    return _each(scan_shard, shards, threads, "Counting")


def _each(function: Callable[[Shard], Result], shards: Shards, threads: int, what: str) -> list[Result]:
    """Call a function with every shard, and show how far it is."""
    pool = ThreadPoolExecutor(threads)
    try:
        with _progress(transient=True) as progress:
            task = progress.add_task(what, done="")
            return list(progress.track(pool.map(function, shards), total=len(shards), task_id=task))
    finally:
        pool.shutdown(cancel_futures=True)


def _facts(shards: Shards, indexes: Sequence[ShardIndex]) -> Text:
    """Tell what is known without looking into records."""
    counts = [index.count for index in indexes]
    stored, inflated = int(shards.sizes.sum()), sum(index.nbytes for index in indexes)
    found = Counter(index.compression or "none" for index in indexes).most_common()
    facts = {
        "shards": f"{len(shards):,}",
        "records": f"{sum(counts):,}" + (f", {_range(counts)} per shard" if len(shards) > 1 else ""),
        "bytes": f"{stored:,}" + (f", {inflated:,} inflated" if inflated != stored else ""),
        "compression": ", ".join(f"{name} ({_many(number, 'shard')})" if found[1:] else name for name, number in found),
    }
    lines = (Text.assemble((f"{name:<13}", "bold"), value) for name, value in facts.items())
    return Text("\n").join(lines)


def _report(shards: Shards, sample: int | None, threads: int) -> Report:
    """Look at records; at all of them in processes, because protobuf holds Python's lock."""
    many = sample is None and threads > 1 and int(shards.sizes.sum()) > _WORTH_PROCESSES
    scheduler = "processes" if many else "threads"
    status = Console(stderr=True).status("Reading all records") if sample is None else nullcontext()
    with dask.config.set(scheduler=scheduler, num_workers=threads), status:
        return inspect_shards(shards, sample)


def _document(shards: Shards, indexes: Sequence[ShardIndex], report: Report | None) -> dict[str, Any]:
    """Put what is known into JSON values."""
    return {
        "shards": [
            {"path": path, "records": index.count, "bytes": size, "inflated": index.nbytes, "compression": compression}
            for path, size, index in zip(shards.paths, shards.sizes.tolist(), indexes, strict=True)
            for compression in [index.compression]
        ],
        "report": None if report is None else json.loads(report.to_json()),
        "spec": None if report is None else report.spec(),
    }


def _source(report: Report) -> str:
    """Say what features were inferred from."""
    found = f"{_many(sum(bool(feature.kinds) for feature in report.features), 'feature')}, inferred from "
    what = "record" if report.message == "Example" else report.message
    return f"{found}{_many(report.records, what)} of {_many(report.shards, 'shard')}"


def _features(report: Report) -> Table:
    """Show what was found, a feature per row."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("feature", overflow="fold")
    for header in ("class", "dtype", "shape", "present", "values"):
        table.add_column(header, no_wrap=True)
    table.add_column("looks like", overflow="fold")
    for row, feature in zip(report.rows(), report.features, strict=True):
        name, kind, present, values, looks = map(_plain, row)
        known = feature.feature
        cells = ("(several kinds)" if feature.kinds else "(never set)", kind if feature.kinds else "", "")
        if known is not None:
            cells = (type(known).__name__, str(known.dtype), str(known.shape))
        table.add_row(Text(name, "cyan"), *map(Text, (*cells, present, values, looks)))
    return table


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
