"""Option ``--scheduler``: the dask scheduler that a command computes with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from click.core import ParameterSource

from dask_tfrecord.cli.terminal import plain

__all__ = ["computing", "set_scheduler"]

# Keys in the context of a command: the value of the option, and the client of a cluster.
_SCHEDULER, _CLIENT = "dask_tfrecord.scheduler", "dask_tfrecord.client"
_LOCAL = ("threads", "processes", "synchronous")
# Seconds in which the scheduler of a cluster has to answer.
_PATIENCE = "10s"
_ADDRESS = re.compile(r"(\w+://)?[^\s/]+:\d+/?|inproc://\S+")


def set_scheduler(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    """Store the option; it is accepted before the command and after it."""
    if value is None:
        return
    if value not in _LOCAL and not _ADDRESS.fullmatch(value):
        raise click.BadParameter(
            f"{plain(value)!r} is neither the address of a scheduler, like tcp://host:8786, nor {', '.join(_LOCAL)}."
        )
    ctx.meta[_SCHEDULER] = value


@contextmanager
def computing(threads: int | None = None, *, local: str = "threads") -> Iterator[None]:
    """Compute on the scheduler of ``--scheduler``.

    Parameters
    ----------
    threads : int, optional
        Threads or processes of a local scheduler.
    local : {"threads", "processes"}
        Scheduler without the option.

    Raises
    ------
    ConnectionError
        If a scheduler does not answer at the address.
    click.UsageError
        If ``--threads`` is given for a cluster, whose workers have threads of their own.
    """
    import dask

    ctx = click.get_current_context()
    scheduler = ctx.meta.get(_SCHEDULER, local)
    if scheduler in _LOCAL:
        with dask.config.set(scheduler=scheduler, num_workers=threads):
            yield
        return
    if ctx.get_parameter_source("threads") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--threads is for local schedulers: `dask worker --nthreads` sets those of a cluster.")
    with dask.config.set(scheduler=_client(ctx, scheduler)):
        yield


def _client(ctx: click.Context, address: str) -> Any:
    """Return the client of the command, which is closed when the command ends."""
    if _CLIENT not in ctx.meta:
        # Imported here: only a cluster needs it.
        from distributed import Client

        try:
            client = Client(address, timeout=_PATIENCE, set_as_default=False)
        except (OSError, ValueError, ImportError) as error:
            raise ConnectionError(
                f"no scheduler answers at {address}: {error}. Start one with `dask scheduler`, and workers with `dask "
                f"worker {address}`"
            ) from error
        ctx.meta[_CLIENT] = client
        ctx.find_root().call_on_close(client.close)
        if not client.scheduler_info(n_workers=-1)["workers"]:
            click.echo(f"The scheduler at {plain(address)} has no workers; waiting for the first one", err=True)
    return ctx.meta[_CLIENT]
