"""The commands that write shards: `to-tfrecord` and `copy`."""

from __future__ import annotations

import click

from dask_tfrecord.commands.common import columns_option, debug, threads_option, writing
from dask_tfrecord.stores.copying import copy_tfrecord
from dask_tfrecord.stores.zarr_source import from_zarr

__all__ = ["copy", "to_tfrecord"]

_per_shard = click.option(
    "--records-per-shard", type=click.IntRange(1), metavar="N", help="Records of a shard.  [default: as they come]"
)
_written_compression = click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "zlib"]),
    default="none",
    show_default=True,
    callback=lambda _ctx, _option, value: None if value == "none" else value,
    help="Of the shards that are written.",
)
_index = click.option("--index", is_flag=True, help="Write FILE.idx beside each shard.")
_overwrite = click.option("--overwrite", is_flag=True, help="Replace shards that exist.")


@click.command("to-tfrecord")
@click.argument("store")
@click.argument("target")
@click.option("--component", metavar="NAME", help="Group of the store to read.  [default: its root]")
@columns_option
@_per_shard
@_written_compression
@_index
@_overwrite
@threads_option
@debug
def to_tfrecord(
    *,
    store: str,
    target: str,
    component: str | None,
    columns: list[str] | None,
    records_per_shard: int | None,
    compression: str | None,
    index: bool,
    overwrite: bool,
    threads: int,
) -> None:
    """Write a Zarr store that to-zarr made as shards, in bounded memory.

    TARGET is a template such as 'out/train-{shard:05d}-of-{shards:05d}.tfrecord', a name, which is one shard, or a
    directory. By default a write unit of the store becomes a shard.
    """
    with writing(threads):
        dataset = from_zarr(store, component=component)
        if columns is not None:
            dataset = dataset[columns]
        dataset.to_tfrecord(
            target,
            records_per_shard=records_per_shard,
            compression=compression,
            index=index,
            mode="w" if overwrite else "w-",
        )


@click.command()
@click.argument("source", nargs=-1, required=True)
@click.argument("target")
@columns_option
@_per_shard
@_written_compression
@_index
@_overwrite
@threads_option
@debug
def copy(
    *,
    source: tuple[str, ...],
    target: str,
    columns: list[str] | None,
    records_per_shard: int | None,
    compression: str | None,
    index: bool,
    overwrite: bool,
    threads: int,
) -> None:
    """Copy records to other shards: of other sizes, compressed, or with fewer features.

    Records are copied as they are, whatever they hold; with --columns they have to be Examples or SequenceExamples.
    SOURCE is a PATTERN; TARGET is a template such as 'out/train-{shard:05d}-of-{shards:05d}.tfrecord', a name, which is
    one shard, or a directory. By default each shard becomes a shard.
    """
    with writing(threads):
        copy_tfrecord(
            source[0] if len(source) == 1 else list(source),
            target,
            columns=columns,
            records_per_shard=records_per_shard,
            compression=compression,
            index=index,
            mode="w" if overwrite else "w-",
        )
