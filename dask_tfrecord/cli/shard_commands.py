"""Commands that read shards and write shards or files next to them: `copy`, `index`, `repair` and `verify`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dask_tfrecord.cli.command_options import options, pattern_argument, write_arguments
from dask_tfrecord.cli.common import threads_of_dask, writing
from dask_tfrecord.cli.terminal import plain
from dask_tfrecord.errors import plural

if TYPE_CHECKING:
    from dask_tfrecord.storage.listing import Shard, Shards

__all__ = ["copy", "index", "repair", "verify"]

Result = TypeVar("Result")


@click.command()
@pattern_argument("source")
@click.argument("target")
@options("columns", "records_per_shard", "written_compression", "index", "overwrite", "threads")
def copy(*, source: str | list[str], target: str, threads: int, **arguments: Any) -> None:
    """Copy records: other shard sizes, compression or features.

    Records of any payload type are copied byte for byte; with --columns they must be Examples or SequenceExamples.
    SOURCE is a PATTERN. TARGET is a template like 'out/train-{shard:05d}-of-{shards:05d}.tfrecord', a name for one
    shard, or a directory. By default each shard becomes one new shard.
    """
    from dask_tfrecord.stores.tfrecord.copy import copy_tfrecord

    with writing(threads):
        copy_tfrecord(source, target, **write_arguments(**arguments))


@click.command()
@pattern_argument()
@options("compression", "threads")
def index(pattern: str | list[str], compression: str | None, threads: int) -> None:
    """Write the index of each shard next to it.

    Shards with an index open without being read. FILE.idx has the format of DALI's and vahidk's tfrecord2idx: one line
    per record with its byte offset and its length. For gzip shards, FILE.gzidx holds the access points at which
    decompression can start; this needs indexed_gzip.
    """
    from dask_tfrecord.records.index_file import write_sidecars
    from dask_tfrecord.storage.listing import find_shards

    start = time.perf_counter()
    written = _map_shards(write_sidecars, find_shards(pattern, compression=compression), threads, "Indexing")
    seconds = time.perf_counter() - start
    files, records = sum(len(each.paths) for each in written), sum(each.count for each in written)
    click.echo(f"Wrote {plural(files, 'file')}: index of {plural(records, 'record')} in {seconds:.1f} s")


def _map_shards(function: Callable[[Shard], Result], shards: Shards, threads: int, description: str) -> list[Result]:
    """Call a function with every shard, and display the progress."""
    from concurrent.futures import ThreadPoolExecutor

    from dask_tfrecord.runtime.progress import ProgressBar, show_immediately
    from dask_tfrecord.storage.interrupt import interrupt_reading

    pool = ThreadPoolExecutor(threads)
    try:
        results = []
        with show_immediately(), ProgressBar(description, len(shards)) as bar:
            for result in pool.map(function, shards):
                results.append(result)
                bar.advance()
        return results
    except KeyboardInterrupt:
        interrupt_reading()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@click.command()
@pattern_argument()
@options("as_json", "compression", "threads")
@click.pass_context
def verify(ctx: click.Context, pattern: str | list[str], as_json: bool, compression: str | None, threads: int) -> None:
    """Check every record of shards for damage.

    For each damaged file, print the lost byte ranges and the reasons. The exit status is 1 if a file is damaged.
    """
    from dask_tfrecord.arrays import verification

    with threads_of_dask(threads):
        report = verification.verify(pattern, compression=compression)
    if as_json:
        click.echo(report.to_json(ensure_ascii=False))
    else:
        for line in repr(report).splitlines():
            click.echo(plain(line))
    if not report.ok:
        ctx.exit(1)


@click.command()
@click.argument("source")
@click.argument("target")
@options("as_json", "repaired_compression")
def repair(source: str, target: str, as_json: bool, compression: str | None) -> None:
    """Write the intact records of SOURCE to TARGET.

    A JSON file next to TARGET lists the lost byte ranges.
    """
    from dask_tfrecord.arrays import verification

    report = verification.repair(source, target, compression=compression)
    if as_json:
        click.echo(json.dumps(report.to_dict(), ensure_ascii=False))
        return
    lost = f"{plural(len(report.lost), 'range')} of bytes lost" if report.lost else "nothing was lost"
    click.echo(f"Wrote {plain(target)}: {plural(report.records, 'record')}; {lost}")
    for line in report.lines():
        click.echo(plain(line))
