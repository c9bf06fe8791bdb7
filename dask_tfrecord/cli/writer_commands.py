"""Commands that are made from the options of the writers; `main.py` has those with options of their own, as to-zarr."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import click

from dask_tfrecord.cli.command_options import (
    flags,
    names_of_flags,
    options,
    path_argument,
    pattern_argument,
    write_arguments,
)
from dask_tfrecord.cli.common import Commands, example, open_rows, writing
from dask_tfrecord.cli.jobs import RESUMED_STEPS, divisible
from dask_tfrecord.options import COMMANDS, WriterCommand

_FEATURES = (
    "The features come from --features, otherwise from the metadata of a TFDS data set; otherwise they are inferred. "
    "The compression of the shards is detected from their bytes."
)
_STEPS = (
    "Without a scheduler, --begin plans the files, --part writes one part in any process on any machine, and --finish "
    "verifies all files. --part, --finish and --status need only the TARGET."
)


class AllCommands(Commands):
    """Group of commands, with those that other packages add by entry points."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*super().list_commands(ctx), *(each.name for each in COMMANDS)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Find a command; commands of other packages come last."""
        found = super().get_command(ctx, cmd_name)
        found = found or next((writer_command(each) for each in COMMANDS if each.name == cmd_name), None)
        if found is not None and not found.epilog:
            found.epilog = f"Example: {example(ctx, found)}"
        return found


def writer_command(of: WriterCommand) -> click.Command:
    """Make a writer's command: options for reading, and flags for its own options.

    It opens the shards of a PATTERN as `read_tfrecord` does, and calls the function with the Dataset.
    """
    own = names_of_flags(of.options)

    def run(
        *,
        pattern: str | list[str],
        target: str,
        chunks: int | str | None,
        overwrite: bool,
        threads: int,
        begin: Callable[..., None] | None = None,
        **given: Any,
    ) -> None:
        arguments = write_arguments(overwrite, **{name: given.pop(name) for name in own})
        if overwrite and arguments.get("resume"):
            raise click.UsageError("--overwrite replaces what exists and --resume continues it: give one of them.")
        module, _, name = of.function.partition(":")
        write = getattr(import_module(module), name)
        with writing(threads):
            dataset = open_rows(pattern, threads, chunks=chunks or "auto", compression="infer", **given)
            (begin or write)(dataset, target, **arguments)

    run.__doc__ = "\n\n".join([of.help, _FEATURES, *([] if of.job is None else [_STEPS])])
    steps = () if of.job is None else RESUMED_STEPS
    reading = ("split", "features", "message", "sample", "columns", "where", "file_chunks", "overwrite")
    command = run if of.job is None else divisible(of.job)(run)
    for add in (
        options(*reading, *map(flags(of.options), own), "errors", "value_errors", "threads", *steps),
        path_argument("target"),
        pattern_argument(required=of.job is None),
    ):
        command = add(command)
    return click.command(of.name)(command)
