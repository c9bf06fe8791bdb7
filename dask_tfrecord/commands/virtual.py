"""The command `virtual`, which writes references to the values within shards."""

from __future__ import annotations

import time

import click
import dask

from dask_tfrecord.arrays.progress import at_once
from dask_tfrecord.commands.common import (
    columns_option,
    debug,
    features_option,
    many,
    pattern_argument,
    plain,
    threads_option,
)
from dask_tfrecord.stores.references import JSON_SUFFIXES, PARQUET_SUFFIXES, check_target
from dask_tfrecord.stores.virtual import virtual_zarr

__all__ = ["virtual"]


@click.command()
@pattern_argument
@click.argument("target")
@features_option
@columns_option
@threads_option
@debug
def virtual(
    pattern: str | list[str], target: str, features: str | None, columns: list[str] | None, threads: int
) -> None:
    """Refer to values within shards as a Zarr store, without copying them.

    TARGET ends in .json, or in .parquet for millions of records: kerchunk references, which zarr and xarray open.
    Floats of a known number and, where --features says what they are, raw bytes of a known size can be referred to.
    """
    # Before all records are read.
    check_target(target, (*JSON_SUFFIXES, *PARQUET_SUFFIXES))
    start = time.perf_counter()
    with at_once(), dask.config.set(scheduler="threads", num_workers=threads):
        found = virtual_zarr(pattern, features, columns=columns)
    (found.to_json if target.endswith(JSON_SUFFIXES) else found.to_parquet)(target)
    seconds = time.perf_counter() - start
    click.echo(
        f"Wrote {plain(target)}: references to {many(found.nrecords, 'record')} of "
        f"{many(len(found.arrays), 'feature')} in {seconds:.1f} s"
    )
