"""Steps of a conversion that is divided among programs: ``--begin``, ``--part``, ``--finish`` and ``--status``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import dask_tfrecord
from dask_tfrecord.cli.command_options import plain, plain_lines
from dask_tfrecord.cli.common import metavars, one_line, writing

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
# Options of a command that has these steps, and of one that resumes nothing else.
STEPS = ("begin", "parts", "part", "finish", "status")
RESUMED_STEPS = (*STEPS, "begin_resume")


def _check_steps(pattern: str | list[str] | None, parts: int | None, *, resume: bool = False) -> bool:
    """Return True if the command continues a job; refuse options that do not belong together.

    `resume` comes from a command that resumes nothing else.
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
        first, last = metavars(ctx)
        raise click.UsageError(f"Missing argument {first!r}: name what to read before the {last}.")
    return False


def divisible(
    job: str, *, begin: str = "begin", resumes: bool = True, place: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command divide its conversion among programs, as a class of jobs of this library does.

    The command gets `begin`: a function that plans the conversion with the arguments of the one that writes it, or None
    to write it at once. Other steps need only the job.

    Parameters
    ----------
    job, begin : str
        Name of the class, and of its method that plans.
    resumes : bool
        Whether ``--resume`` is about jobs only, as "begin_resume" of `RESUMED_STEPS` is.
    place : sequence of str
        Options that say where the job is, besides the target.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(*, parts: int | None, part: str | None, **given: Any) -> None:
            is_begun, finish, _ = (given.pop(step) for step in ("begin", "finish", "status"))
            resume = {"resume": given.pop("resume")} if resumes else {}
            read, target = (
                each.name for each in click.get_current_context().command.params if isinstance(each, click.Argument)
            )
            cls = getattr(dask_tfrecord, job)
            if _check_steps(given[read], parts, **resume):
                try:
                    opened = cls.open(given[target], **{name: given[name] for name in place})
                except FileNotFoundError as error:
                    raise click.UsageError(
                        f"Nothing is planned at {plain(given[target])}: give --begin first, with the same "
                        f"{target.upper()}. ({one_line(error)})"
                    ) from None
                # The command that reads a store does not read shards, which would be checked.
                shards = None if read == "store" else given[read]
                _continue(opened, given[target], shards, given["threads"], part=part, finish=finish)
                return

            def plan(*arguments: Any, **named: Any) -> None:
                getattr(cls, begin)(*arguments, parts=parts, **resume, **named)
                which = (
                    "--part I/N for any N" if parts is None else f"--part 1/{parts} to {parts}/{parts}, or --part auto"
                )
                click.echo(f"{plain(given[target])} is planned: write it with {which}, and then --finish")

            command(begin=plan if is_begun else None, **given)

        return run

    return decorate


def _continue(
    job: Job, place: str, pattern: str | list[str] | None, threads: int, *, part: str | None, finish: bool
) -> None:
    """Write a part of a job, finish it, or print its status; check the shards of `pattern` if there is one."""
    from dask_tfrecord.shards.listing import find_shards

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
        raise click.UsageError(
            f"--part auto works in a job array, which sets one of these variables: {', '.join(_ARRAYS)}."
        )
    name, text = next(iter(found.items()))
    parts = job.parts
    if parts is None:
        raise click.UsageError("--part auto needs the number of parts: give --parts N to --begin.")
    number = int(text) - _ARRAYS[name]
    if not 0 <= number < parts:
        last = parts - 1 + _ARRAYS[name]
        raise click.UsageError(f"{name} is {text}, and the job has parts {_ARRAYS[name]} to {last}.")
    return number, parts
