"""Commands that convert: `to-zarr`, `to-tfrecord`, `to-parquet` and `virtual`."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Any, Literal

import click

from dask_tfrecord.cli.command_options import computing, options, pattern_argument, plain, plain_lines, write_arguments
from dask_tfrecord.cli.common import check_one_source_of_features, find_schema, writing
from dask_tfrecord.errors import plural


@click.command("to-zarr")
@pattern_argument()
@click.argument("store")
@options(
    *("split", "features", "sample", "columns", "chunks", "shards"),
    *("explode", "repeat", "groups", "component", "overwrite", "resume", "planned", "memory_limit", "compression"),
    *("errors", "threads"),
)
def to_zarr(
    *,
    pattern: str | list[str],
    store: str,
    split: str | None,
    features: str | None,
    sample: int | str | None,
    columns: list[str] | None,
    explode: str | list[str] | None,
    repeat: list[str] | None,
    component: str | None,
    overwrite: bool,
    resume: bool,
    planned: bool,
    compression: str | None,
    errors: Literal["raise", "skip", "fill"],
    threads: int,
    **layout: Any,
) -> None:
    """Convert shards to a Zarr store in bounded memory.

    Features come from --features, else from the metadata of a TFDS data set, else they are inferred from Examples or
    SequenceExamples, always so with --sample; inferred bytes stay bytes. To decode arrays and text from bytes, give
    --features the JSON that Schema.to_json writes, with context features and feature lists for SequenceExamples. After
    Ctrl-C, the same command with --resume continues. A conversion that fails removes what it wrote, unless it was
    started with --resume. With --explode, rows are items: the steps of episodes, the boxes of images.
    """
    if overwrite and resume:
        raise click.UsageError("--overwrite replaces the existing store and --resume continues it: give one of them.")
    if repeat is not None and explode is None:
        raise click.UsageError("--repeat repeats features for each item of --explode: give --explode too.")
    from dask_tfrecord.arrays.read import read_tfrecord

    check_one_source_of_features(features, sample)
    arguments = write_arguments(overwrite, **layout)
    if not planned:
        from dask_tfrecord.stores.zarr.write import open_target

        # A wrong target is refused before records are read and counted.
        open_target(store, component, None, {}, mode=arguments["mode"], resume=resume)
    schema = find_schema(pattern, features, sample, split, compression, threads)
    with writing(threads) as summaries:
        dataset = read_tfrecord(pattern, schema, columns=columns, split=split, compression=compression, errors=errors)
        if explode is not None:
            dataset = dataset.explode(explode, repeat=repeat or ())
        if planned:
            from dask_tfrecord.stores.zarr.api import text_plan

            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
            del arguments["mode"]
            click.echo(plain_lines(text_plan(dataset.plan_zarr(**arguments), width)))
            return
        dataset.to_zarr(store, component=component, resume=resume, **arguments)
    if not summaries:
        click.echo(f"{plain(store)} is complete: nothing was left to write")


@click.command("to-tfrecord")
@click.argument("store")
@click.argument("target")
@options("component", "columns", "records_per_shard", "written_compression", "index", "overwrite", "threads")
def to_tfrecord(
    *, store: str, target: str, component: str | None, columns: list[str] | None, threads: int, **arguments: Any
) -> None:
    """Write a Zarr store of to-zarr to TFRecord shards.

    TARGET is a template like 'out/train-{shard:05d}-of-{shards:05d}.tfrecord', a name for one shard, or a directory.
    By default each write unit of the store becomes a shard. Memory is bounded.
    """
    from dask_tfrecord.stores.zarr.read import from_zarr

    with writing(threads):
        dataset = from_zarr(store, component=component)
        if columns is not None:
            dataset = dataset[columns]
        dataset.to_tfrecord(target, **write_arguments(**arguments))


@click.command()
@pattern_argument()
@click.argument("target")
@options("features", "columns", "threads")
def virtual(
    pattern: str | list[str], target: str, features: str | None, columns: list[str] | None, threads: int
) -> None:
    """Write a Zarr store of references into shards.

    Values are not copied. TARGET ends in .json, or in .parquet for millions of records: kerchunk references, which zarr
    and xarray open. Possible for float features of a fixed number of values and, with --features, for raw bytes of a
    fixed size.
    """
    from dask_tfrecord.runtime.progress import show_immediately
    from dask_tfrecord.stores.virtual.references import JSON_SUFFIXES, PARQUET_SUFFIXES, check_target, virtual_zarr

    # Report a wrong target before all records are read.
    check_target(target, (*JSON_SUFFIXES, *PARQUET_SUFFIXES))
    start = time.perf_counter()
    with show_immediately(), computing(threads):
        found = virtual_zarr(pattern, features, columns=columns)
    (found.to_json if target.endswith(JSON_SUFFIXES) else found.to_parquet)(target)
    seconds = time.perf_counter() - start
    click.echo(
        f"Wrote {plain(target)}: references to {plural(found.nrecords, 'record')} of "
        f"{plural(len(found.arrays), 'feature')} in {seconds:.1f} s"
    )


@click.command("to-parquet")
@pattern_argument()
@click.argument("target")
@options(
    *("split", "features", "sample", "columns", "file_chunks", "overwrite", "parquet_compression", "threads"),
)
def to_parquet(
    *,
    pattern: str | list[str],
    target: str,
    split: str | None,
    features: str | None,
    sample: int | str | None,
    columns: list[str] | None,
    chunks: int | str | None,
    overwrite: bool,
    compression: str,
    threads: int,
) -> None:
    """Convert shards to a directory of Parquet files, one per chunk.

    TARGET is a directory; its files are part.00000.parquet and so on, in the order of the records. Features come from
    --features, else from the metadata of a TFDS data set, else they are inferred. The compression of the shards is
    found from their bytes. This needs pyarrow.
    """
    from dask_tfrecord.arrays.read import read_tfrecord

    schema = find_schema(pattern, features, sample, split, "infer", threads)
    with writing(threads):
        dataset = read_tfrecord(pattern, schema, columns=columns, split=split, chunks=chunks or "auto")
        dataset.to_parquet(target, compression=compression, **write_arguments(overwrite))
