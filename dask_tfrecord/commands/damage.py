"""The commands for damaged shards: `verify` and `repair`."""

from __future__ import annotations

import json

import click
import dask

from dask_tfrecord.arrays import checking
from dask_tfrecord.commands.common import compression_of_shards, debug, many, pattern_argument, plain, threads_option
from dask_tfrecord.records.damage import ShardReport

__all__ = ["repair", "verify"]

_json = click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
_compression = click.option(
    "--compression",
    type=click.Choice(["same", "none", "gzip", "zlib"]),
    default="same",
    show_default=True,
    callback=lambda _ctx, _option, value: None if value == "none" else value,
    help="Of the file that is written.",
)


@click.command()
@pattern_argument
@_json
@compression_of_shards
@threads_option
@debug
@click.pass_context
def verify(ctx: click.Context, pattern: str | list[str], as_json: bool, compression: str | None, threads: int) -> None:
    """Check every record of shards; the exit status is 1 if there is damage.

    For each file that is damaged, the ranges of bytes that are lost, and why.
    """
    with dask.config.set(scheduler="threads", num_workers=threads):
        report = checking.verify(pattern, compression=compression)
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
@_json
@_compression
@debug
def repair(source: str, target: str, as_json: bool, compression: str | None) -> None:
    """Write the records of SOURCE that hold to TARGET, and beside it what was lost, as JSON."""
    report = checking.repair(source, target, compression=compression)
    if as_json:
        click.echo(json.dumps(report.to_dict(), ensure_ascii=False))
        return
    click.echo(f"Wrote {plain(target)}: {many(report.records, 'record')}; {_lost(report)}")
    for line in report.lines():
        click.echo(plain(line))


def _lost(report: ShardReport) -> str:
    if not report.lost:
        return "nothing was lost"
    return f"{many(len(report.lost), 'range')} of bytes lost"
