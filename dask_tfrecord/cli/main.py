"""The command group `dask-tfrecord`, which dask's own command line offers as `dask tfrecord`, and the command `info`.

Results go to stdout, progress and errors to stderr.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dask_tfrecord.cli.command_options import (
    SAMPLE,
    common_options,
    computing,
    json_line,
    options,
    pattern_argument,
    plain,
)
from dask_tfrecord.cli.common import Commands, inspect_sample
from dask_tfrecord.cli.preview_commands import head, preview, schema
from dask_tfrecord.cli.shard_commands import copy, index, repair, verify
from dask_tfrecord.cli.zarr_commands import to_parquet, to_tfrecord, to_zarr, virtual
from dask_tfrecord.errors import SchemaError

if TYPE_CHECKING:
    from dask_tfrecord.arrays.read import ResolvedPath
    from dask_tfrecord.schema import Schema


@click.group(name="tfrecord", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dask-tfrecord")
@common_options
def tfrecord() -> None:
    """Inspect, convert and repair TFRecord shards.

    A PATTERN is a path, a URL, a directory, a glob like 'train-*.tfrecord' (quoted, for natural order), or a template
    like train@8.
    """


for command in (copy, head, index, preview, repair, schema, to_parquet, to_tfrecord, to_zarr, verify, virtual):
    tfrecord.add_command(command)


def main() -> None:
    """Run `dask-tfrecord`."""
    tfrecord(prog_name="dask-tfrecord")


@tfrecord.command()
@pattern_argument()
@options("split", "sample", "spec", "as_json", "compression", "threads")
def info(
    *,
    pattern: str | list[str],
    split: str | None,
    sample: int | str | None,
    spec: bool,
    as_json: bool,
    compression: str | None,
    threads: int,
) -> None:
    """Show records, bytes, compression and features of shards.

    With --split, only shards that contain records of the split. Groups are features that share their row lengths by the
    metadata of TFDS. Without metadata, ragged features under one prefix are shown, and their lengths are not compared.
    Records are counted from their headers; features are inferred from the first records of some shards. The last column
    names the detected content of bytes features.
    """
    if spec and as_json:
        raise click.UsageError("--spec and --json are two forms of output: give one of them.")
    from dask_tfrecord.arrays.counting import index_shards
    from dask_tfrecord.arrays.read import resolve_collection
    from dask_tfrecord.cli.info_table import document, print_facts, print_report
    from dask_tfrecord.features.name_prefixes import prefix_lines
    from dask_tfrecord.schema import group_lines

    if split is None:
        resolved = _resolve_without_split(pattern, compression)
    else:
        resolved = resolve_collection(pattern, split, compression=compression, storage_options=None)
    shards = resolved.shards
    sample = sample or SAMPLE
    if spec:
        report = inspect_sample(shards, sample, threads)
        if not report.features:
            # Raises the error that states the reason.
            report.schema  # noqa: B018
        click.echo(report.spec())
        return
    with computing(threads):
        indexes = index_shards(shards, sidecars=False)[1]
    has_records = any(index.count for index in indexes)
    if as_json:
        found = inspect_sample(shards, sample, threads) if has_records else None
        metadata = _metadata(resolved)
        groups = None if metadata is None else {group: list(names) for group, names in metadata.groups.items()}
        click.echo(json_line({**document(shards, indexes, found), "groups": groups}))
        return
    print_facts(shards, indexes)
    nested: list[str] = []
    if has_records:
        report = inspect_sample(shards, sample, threads)
        print_report(report)
        nested = prefix_lines({each.name: each.feature for each in report.features if each.feature is not None})
    metadata = _metadata(resolved)
    for line in nested if metadata is None else group_lines(metadata):
        click.echo(plain(line))


def _resolve_without_split(pattern: str | list[str], compression: str | None) -> ResolvedPath:
    """Find the shards of a pattern, of all splits; report metadata that can't be read, and find the shards without."""
    from dask_tfrecord.arrays.read import ResolvedPath, resolve_splits
    from dask_tfrecord.storage.listing import find_shards

    try:
        return resolve_splits(pattern, compression=compression)
    except SchemaError as error:
        _report_metadata(error)
        return ResolvedPath(find_shards(pattern, compression=compression))


def _metadata(resolved: ResolvedPath) -> Schema | None:
    """Return the schema of the metadata; report metadata that can't be read, and return None."""
    try:
        return resolved.schema()
    except SchemaError as error:
        _report_metadata(error)
        return None


def _report_metadata(error: SchemaError) -> None:
    click.echo(f"Groups are unknown: {plain(str(error))}", err=True)
