"""Commands that display features and the first records: `schema`, `head` and `preview`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dask_tfrecord.cli.command_options import computing, json_line, options, pattern_argument, plain
from dask_tfrecord.cli.common import find_schema
from dask_tfrecord.errors import plural

if TYPE_CHECKING:
    from dask_tfrecord.arrays.dataset import Dataset
    from dask_tfrecord.schema import Schema


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
        from dask_tfrecord.metadata.tfmd import pbtxt

        click.echo(pbtxt(found), nl=False)
    elif format == "python":
        from dask_tfrecord.metadata.schema_files import schema_code

        click.echo(schema_code(found))
    else:
        from dask_tfrecord.cli.info_table import print_schema

        print_schema(found)


@click.command()
@pattern_argument()
@options("number", "rows_json", "split", "features", "sample", "columns", "compression", "threads")
def head(*, pattern: str | list[str], n: int, as_json: bool, threads: int, **reading: Any) -> None:
    """Print the first records.

    Features are those of the command schema. With --json, each record is one line: an object of its features. Bytes are
    text if they are UTF-8 without control characters, otherwise {"base64": …}. NaN and infinities are the strings
    "NaN", "Infinity" and "-Infinity", as in the JSON of protobuf. Complex numbers are [real, imaginary].
    """
    with computing(threads):
        dataset = _open(pattern, threads, **reading)
        if as_json:
            from dask_tfrecord.preview.preview import json_rows

            for line in json_rows(dataset.head(n)):
                click.echo(json_line(line))
            return
        found = dataset.preview(n)
    from rich.console import Console

    from dask_tfrecord.preview.preview import rich_preview

    Console(highlight=False, emoji=False).print(rich_preview(found, pictures=False))


@click.command()
@pattern_argument()
@click.argument("target")
@options("preview_number", "split", "features", "sample", "columns", "overwrite", "compression", "threads")
def preview(*, pattern: str | list[str], target: str, n: int, overwrite: bool, threads: int, **reading: Any) -> None:
    """Draw the first records: a contact sheet of images, and a table of other features.

    TARGET ends in .png, or in .html for a page; - displays images and table in the terminal. Features are those of the
    command schema, and bytes that are encoded images are decoded. This needs Pillow.
    """
    path = Path(target)
    if target != "-" and path.suffix.lower() not in (".png", ".html"):
        raise click.UsageError(f"expected a TARGET that ends in .png or .html, or -; got {target!r}")
    if target != "-" and path.exists() and not overwrite:
        raise click.UsageError(f"{target} exists: give --overwrite to replace it")
    with computing(threads):
        found = _open(pattern, threads, **reading).preview(n)
    if target == "-":
        from rich.console import Console

        Console(highlight=False, emoji=False).print(found)
        return
    (found.to_png if path.suffix.lower() == ".png" else found.to_html)(path)
    click.echo(f"Wrote {plain(target)}: {plural(found.nrows, 'record')} of {plural(len(found.columns), 'feature')}")


def _open(
    pattern: str | list[str],
    threads: int,
    *,
    split: str | None,
    features: str | None,
    sample: int | str | None,
    columns: list[str] | None,
    compression: str | None,
) -> Dataset:
    from dask_tfrecord.arrays.read import read_tfrecord

    schema = find_schema(pattern, features, sample, split, compression, threads)
    return read_tfrecord(pattern, schema, columns=columns, split=split, compression=compression)


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
        from dask_tfrecord.schema import Schema

        return Schema.read(found)
    if found is None:
        from dask_tfrecord.arrays.read import resolve_collection

        found = resolve_collection(pattern, split, compression=compression, storage_options=None).schema()
        assert found is not None, "find_schema returns None for metadata alone"
    return found
