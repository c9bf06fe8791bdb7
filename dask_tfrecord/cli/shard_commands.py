"""Commands that read shards and write shards or files next to them: `copy`, `index`, `repair` and `verify`."""

from __future__ import annotations

import time
from typing import Any

import click

from dask_tfrecord.cli.command_options import computing, json_line, options, pattern_argument, plain, write_arguments
from dask_tfrecord.cli.common import writing
from dask_tfrecord.errors import plural


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
    from dask_tfrecord.stores.files.copy import copy_tfrecord

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
    from dask_tfrecord.arrays.counting import write_indexes
    from dask_tfrecord.runtime.progress import show_immediately
    from dask_tfrecord.storage.listing import find_shards

    start = time.perf_counter()
    with show_immediately(), computing(threads):
        written = write_indexes(find_shards(pattern, compression=compression))
    seconds = time.perf_counter() - start
    files, records = sum(len(each.paths) for each in written), sum(each.count for each in written)
    click.echo(f"Wrote {plural(files, 'file')}: index of {plural(records, 'record')} in {seconds:.1f} s")


@click.command()
@pattern_argument()
@options("as_json", "compression", "threads")
@click.pass_context
def verify(ctx: click.Context, pattern: str | list[str], as_json: bool, compression: str | None, threads: int) -> None:
    """Check every record of shards for damage.

    For each damaged file, print the lost byte ranges and the reasons. The exit status is 1 if a file is damaged.
    """
    from dask_tfrecord.arrays import verification

    with computing(threads):
        report = verification.verify(pattern, compression=compression)
    if as_json:
        click.echo(json_line(report.to_json(ensure_ascii=False)))
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

    with computing():
        report = verification.repair(source, target, compression=compression)
    if as_json:
        click.echo(json_line(report.to_dict()))
        return
    lost = f"{plural(len(report.lost), 'range')} of bytes lost" if report.lost else "nothing was lost"
    click.echo(f"Wrote {plain(target)}: {plural(report.records, 'record')}; {lost}")
    for line in report.lines():
        click.echo(plain(line))
