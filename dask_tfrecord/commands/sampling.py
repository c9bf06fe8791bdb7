"""How many records commands look at to infer features."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

import click
import dask
from rich.console import Console

from dask_tfrecord.arrays.inspect import inspect_shards
from dask_tfrecord.columns.report import Report
from dask_tfrecord.storage.files import Shards

__all__ = ["looked_at", "sample_option"]

# Bytes of shards from which on reading all records is worth the start of processes.
_WORTH_PROCESSES = 64 << 20

Command = TypeVar("Command", bound=Callable[..., Any])


def _number_or_all(_ctx: click.Context, _option: click.Parameter, value: str | None) -> int | str | None:
    """Read a number of records, or that all are meant."""
    if value is None or value == "all":
        return value
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"{value!r} is neither a number of records, 1 or more, nor 'all'.")
    return int(value)


def sample_option(default: str | None = None) -> Callable[[Command], Command]:
    """Make the option that says so; without a default, nothing may be said."""
    return click.option(
        "--sample",
        callback=_number_or_all,
        default=default,
        show_default=True,
        metavar="N|all",
        help="Records to infer features from; all reads every one, with as many processes as --threads says.",
    )


def looked_at(shards: Shards, sample: int | str, threads: int) -> Report:
    """Look at records; at all of them in processes, because protobuf holds Python's lock."""
    whole = sample == "all"
    many = whole and threads > 1 and int(shards.sizes.sum()) > _WORTH_PROCESSES
    scheduler = "processes" if many else "threads"
    status = Console(stderr=True).status("Reading all records") if whole else nullcontext()
    with dask.config.set(scheduler=scheduler, num_workers=threads), status:
        return inspect_shards(shards, None if isinstance(sample, str) else sample)
