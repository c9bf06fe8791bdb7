"""Steps of a conversion that is divided among programs: ``--begin``, ``--part``, ``--finish`` and ``--status``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from dask_tfrecord.cli.command_options import plain, plain_lines
from dask_tfrecord.cli.common import writing

if TYPE_CHECKING:
    from dask_tfrecord.stores.job import Job

# Variables that number the jobs of an array, and the number of the first one: Slurm, PBS Professional, Torque, Grid
# Engine and LSF, whose users choose the numbers; AWS Batch, Google Cloud Batch, Cloud Run and Kubernetes.
_ARRAYS = {
    "SLURM_ARRAY_TASK_ID": 1,
    "PBS_ARRAY_INDEX": 1,
    "PBS_ARRAYID": 1,
    "SGE_TASK_ID": 1,
    "LSB_JOBINDEX": 1,
    "AWS_BATCH_JOB_ARRAY_INDEX": 0,
    "BATCH_TASK_INDEX": 0,
    "CLOUD_RUN_TASK_INDEX": 0,
    "JOB_COMPLETION_INDEX": 0,
}
_STEPS = ("begin", "part", "finish", "status")
# Options of steps that read the plan of --begin.
_OF_STEPS = {"pattern", "source", "store", "target", "component", "compression", "threads", "verbose", "debug", *_STEPS}
# Options of a command that has these steps.
STEPS = ("begin", "parts", "part", "finish", "status")


def check_steps(pattern: str | list[str] | None, parts: int | None, *, resume: bool = False) -> bool:
    """Return True if the command continues a job; refuse options that do not belong together.

    `resume` is that of a command that resumes nothing else.
    """
    ctx = click.get_current_context()
    flags = {each.name: each.opts[0] for each in ctx.command.params if each.name}
    given = [name for name in flags if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    steps = [name for name in _STEPS if name in given]
    if len(steps) > 1:
        raise click.UsageError(f"{flags[steps[0]]} and {flags[steps[1]]} are steps of a job: give one of them.")
    if parts is not None and steps != ["begin"]:
        raise click.UsageError("--parts is the number of parts that --begin plans; --part I/N writes one of them.")
    if steps and steps != ["begin"]:
        for name in given:
            if name not in _OF_STEPS:
                raise click.UsageError(f"{flags[name]} belongs to --begin; {flags[steps[0]]} reads its plan.")
        return True
    if resume and not steps:
        raise click.UsageError("--resume divides the job of an earlier --begin again: give --begin too.")
    if resume and "overwrite" in given:
        raise click.UsageError("--overwrite replaces what exists and --resume continues it: give one of them.")
    if not pattern:
        first, last = (
            each.make_metavar(ctx).translate({ord("["): "", ord("]"): ""})
            for each in ctx.command.params
            if isinstance(each, click.Argument)
        )
        raise click.UsageError(f"Missing argument {first!r}: what is read comes before the {last}.")
    return False


def say_begun(place: str, parts: int | None) -> None:
    """Print how a job that was begun is continued."""
    which = "--part I/N for any N" if parts is None else f"--part 1/{parts} to {parts}/{parts}, or --part auto"
    click.echo(f"{plain(place)} is planned: write it with {which}, and then --finish")


def continue_job(
    job: Job,
    place: str,
    pattern: str | list[str] | None,
    threads: int,
    *,
    part: str | None,
    finish: bool,
) -> None:
    """Write a part of a job, finish it, or print its status; check the shards of `pattern` if there is one."""
    from dask_tfrecord.storage.listing import find_shards

    if pattern:
        job.check_shards(find_shards(pattern))
    if part is not None:
        with writing(threads) as summaries:
            job.write(*_part(job, part))
        if not summaries:
            click.echo(f"part {plain(part)} of {plain(place)} is done: nothing was left to write")
    elif finish:
        job.finish()
        click.echo(f"{plain(place)} is complete")
    else:
        click.echo(plain_lines(job.status().to_text(1)))


def _part(job: Job, part: str) -> tuple[int, int | None]:
    """Return the number of a part, from 0, and the number of parts."""
    if part != "auto":
        number, of = map(int, part.split("/"))
        return number - 1, of
    # Grid Engine sets "undefined" outside of arrays.
    found = {name: text for name in _ARRAYS if (text := os.environ.get(name, "")).isdecimal()}
    if not found:
        raise click.UsageError(f"--part auto needs the number of a job in an array: {', '.join(_ARRAYS)}.")
    name, text = next(iter(found.items()))
    parts = job.parts
    if parts is None:
        raise click.UsageError("--part auto needs the number of parts: give --parts N to --begin.")
    number = int(text) - _ARRAYS[name]
    if not 0 <= number < parts:
        last = parts - 1 + _ARRAYS[name]
        raise click.UsageError(f"{name} is {text}, and the job has parts {_ARRAYS[name]} to {last}.")
    return number, parts
