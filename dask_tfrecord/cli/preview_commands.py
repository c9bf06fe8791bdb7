"""Commands that display features and the first records: `schema`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dask_tfrecord.cli.command_options import options, pattern_argument
from dask_tfrecord.cli.common import find_schema
from dask_tfrecord.cli.terminal import json_line

if TYPE_CHECKING:
    from dask_tfrecord.schema import Schema

__all__ = ["schema"]


@click.command()
@pattern_argument()
@options("schema_format", "split", "features", "sample", "compression", "threads")
def schema(
    *,
    pattern: str | list[str],
    format: str,
    split: str | None,
    features: str | None,
    sample: int | str | None,
    compression: str | None,
    threads: int,
) -> None:
    """Print the features of shards.

    Features come from --features, else from the metadata of a TFDS data set, else they are inferred. The JSON has all
    arguments of the features, class names and groups. TFMD is the text of a schema.pbtxt of TensorFlow Metadata, which
    has no casts and no decoding of bytes. Python code assigns an equal schema.
    """
    found = _known_schema(pattern, features, sample, split, compression, threads)
    if format == "json":
        click.echo(json_line(found.to_json()))
    elif format == "tfmd":
        from dask_tfrecord.metadata.tfmd_writing import to_tfmd

        click.echo(to_tfmd(found), nl=False)
    elif format == "python":
        from dask_tfrecord.metadata.schema_code import schema_code

        click.echo(schema_code(found))
    else:
        from dask_tfrecord.cli.info_table import print_schema

        print_schema(found)


def _known_schema(
    pattern: str | list[str],
    features: str | None,
    sample: int | str | None,
    split: str | None,
    compression: str | None,
    threads: int,
) -> Schema:
    """Return the features that a conversion with these options would use."""
    found = find_schema(pattern, features, sample, split, compression, threads)
    if isinstance(found, str):
        from dask_tfrecord.metadata.schema_files import read_schema

        return read_schema(found)
    if found is None:
        from dask_tfrecord.arrays.resolve import resolve_collection

        found = resolve_collection(pattern, split, compression=compression, storage_options=None).schema()
        assert found is not None, "find_schema returns None for metadata alone"
    return found
