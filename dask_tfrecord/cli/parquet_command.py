"""Command `to-parquet`."""

from __future__ import annotations

import click

from dask_tfrecord.cli.command_options import options, pattern_argument, write_arguments
from dask_tfrecord.cli.common import find_schema, writing

__all__ = ["to_parquet"]


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
