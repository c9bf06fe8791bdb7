"""The command that converts shards to Zarr: `to-zarr`."""

from __future__ import annotations

from typing import Any

import click

from dask_tfrecord.arrays.folders import find_collection
from dask_tfrecord.arrays.read import read_tfrecord
from dask_tfrecord.commands.common import (
    columns_option,
    compression_of_shards,
    debug,
    features_option,
    pattern_argument,
    plain,
    plain_lines,
    split_option,
    threads_option,
    writing,
)
from dask_tfrecord.commands.sampling import looked_at, sample_option
from dask_tfrecord.schema import Schema

__all__ = ["to_zarr"]


@click.command("to-zarr")
@pattern_argument
@click.argument("store")
@split_option
@features_option
@sample_option()
@columns_option
@click.option("--chunks", type=int, metavar="ROWS", help="Records of a Zarr chunk.  [default: 8 MiB at most]")
@click.option("--shards", type=int, metavar="ROWS", help="Records of a Zarr shard.  [default: no shards]")
@click.option("--target-chunk-bytes", metavar="SIZE", help="Decoded bytes of the largest chunk, such as 1MiB.")
@click.option("--target-shard-bytes", metavar="SIZE", help="Decoded bytes of the largest shard, such as 64MiB.")
@click.option("--component", metavar="NAME", help="Group of the store to write to.  [default: its root]")
@click.option("--overwrite", is_flag=True, help="Replace the group if it exists.")
@click.option("--resume", is_flag=True, help="Go on with what was begun; what fails now is kept.")
@click.option("--plan", "planned", is_flag=True, help="Print what would be written, and the memory; write nothing.")
@click.option("--memory-limit", metavar="SIZE", help="Fail if the conversion may take more, such as 2GiB.")
@compression_of_shards
@threads_option
@debug
def to_zarr(
    *,
    pattern: str | list[str],
    store: str,
    split: str | None,
    features: str | None,
    sample: int | str | None,
    columns: list[str] | None,
    chunks: int | None,
    shards: int | None,
    target_chunk_bytes: str | None,
    target_shard_bytes: str | None,
    component: str | None,
    overwrite: bool,
    resume: bool,
    planned: bool,
    memory_limit: str | None,
    compression: str | None,
    threads: int,
) -> None:
    """Convert shards to a Zarr store, in bounded memory.

    Features are what --features says, else what the metadata of a TFDS data set say, else inferred, as they are with
    --sample; bytes stay bytes then. What they stand for (arrays, text) is in the JSON of a Schema, which Schema.to_json
    writes. After Ctrl-C the same command with --resume goes on; a conversion that fails removes what it wrote, unless
    it was begun with --resume.
    """
    if overwrite and resume:
        raise click.UsageError("--overwrite replaces what is there, and --resume goes on with it: give one of them.")
    if features is not None and sample is not None:
        raise click.UsageError("--features says what --sample would find out: give one of them.")
    schema: Schema | str | None = features
    if sample is not None:
        found = find_collection(pattern, split, compression=compression, storage_options=None)
        schema = looked_at(found.shards, sample, threads).schema
    with writing(threads) as written:
        dataset = read_tfrecord(pattern, schema, columns=columns, split=split, compression=compression)
        sizes = {"target_chunk_bytes": target_chunk_bytes, "target_shard_bytes": target_shard_bytes}
        options: dict[str, Any] = {"chunks": chunks, "shards": shards, "memory_limit": memory_limit or "auto"}
        options |= {name: size for name, size in sizes.items() if size is not None}
        if planned:
            click.echo(plain_lines(repr(dataset.plan_zarr(**options))))
            return
        dataset.to_zarr(store, component=component, mode="w" if overwrite else "w-", resume=resume, **options)
    if not written:
        click.echo(f"{plain(store)} is complete: nothing was left to be written")
