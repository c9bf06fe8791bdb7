"""What all commands share: how they fail, their options, words of their output."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import dask
from dask.system import CPU_COUNT

from dask_tfrecord.arrays.display import many
from dask_tfrecord.errors import FeatureError, IncompleteStoreError, ResumeError
from dask_tfrecord.storage.files import COMPRESSIONS
from dask_tfrecord.storage.interrupt import interrupt_reading
from dask_tfrecord.stores.progress import Summary, summed_up

__all__ = [
    "Commands",
    "columns_option",
    "compression_of_shards",
    "debug",
    "features_option",
    "many",
    "pattern_argument",
    "plain",
    "plain_lines",
    "split_option",
    "threads_option",
    "writing",
]

_INTERRUPTED = 130
_DEBUG = "dask_tfrecord.debug"

# What a Python program is told to write, and what that is here.
_OPTIONS = {
    "to_zarr(…, resume=True)": "to-zarr --resume",
    "the same call with resume=True": "--resume",
    "resume=True": "--resume",
    "mode='w'": "--overwrite",
    "component=": "--component NAME",
    "infer_schema(urlpath, sample=None) reads all of them": "--sample all reads all of them",
    "give features=": "give --features",
}


class Commands(click.Group):
    """A group whose commands fail with one line on stderr."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error is a line, and a traceback only after ``--debug``."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt as error:
            # The threads of dask are waited for at the end.
            interrupt_reading()
            if ctx.meta.get(_DEBUG):
                raise
            click.echo("Interrupted", err=True)
            _echo_notes(error)
            ctx.exit(_INTERRUPTED)
        except Exception as error:
            # Who closes the pipe, as `head` does, has seen enough: click knows what to do.
            if ctx.meta.get(_DEBUG) or (isinstance(error, OSError) and error.errno == errno.EPIPE):
                raise
            click.echo(f"Error: {one_line(error)}", err=True)
            _echo_notes(error)
            ctx.exit(1)


def one_line(error: Exception) -> str:
    """Put into a line what an error says."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return plain(f"{error.filename}: {error.strerror}")
    said = " ".join(str(error).split("\n")).strip()
    return plain(said or f"{type(error).__name__}, of which nothing more is known; --debug shows where")


def _echo_notes(error: BaseException) -> None:
    """Say what else there is to know, such as what is left of the work."""
    for note in getattr(error, "__notes__", ()):
        click.echo(plain(_spelled(note)), err=True)


def plain(text: str) -> str:
    """Text out of files, with what a terminal would obey spelled out."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def plain_lines(text: str) -> str:
    """Do the same to lines, which stay lines."""
    return "\n".join(map(plain, text.split("\n")))


def _set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    # It may stand before the command or after it.
    if value:
        ctx.meta[_DEBUG] = True


debug = click.option(
    "--debug", is_flag=True, expose_value=False, callback=_set_debug, help="Show the traceback of an error."
)
compression_of_shards = click.option(
    "--compression",
    type=click.Choice(["none" if name is None else name for name in COMPRESSIONS]),
    default="infer",
    show_default=True,
    callback=lambda _ctx, _option, value: None if value == "none" else value,
    help="Of the shards; infer looks at their bytes.",
)
threads_option = click.option(
    "--threads",
    type=click.IntRange(1),
    default=CPU_COUNT,
    show_default="one per core",
    metavar="N",
    help="Threads that read and write.",
)


def _names(_ctx: click.Context, _option: click.Parameter, columns: tuple[str, ...]) -> list[str] | None:
    """Take names from lists of them; all columns are None."""
    return [name for part in columns for name in part.split(",")] or None


columns_option = click.option(
    "--columns", multiple=True, metavar="NAME,…", callback=_names, help="Only these features; may be repeated."
)


features_option = click.option(
    "--features",
    metavar="FILE",
    help="What records hold: a schema.pbtxt, a features.json or the JSON of a Schema.  [default: inferred]",
)


def _urlpath(_ctx: click.Context, _argument: click.Parameter, pattern: tuple[str, ...]) -> str | list[str]:
    # A glob that the shell has expanded comes as a list.
    return pattern[0] if len(pattern) == 1 else list(pattern)


pattern_argument = click.argument("pattern", nargs=-1, required=True, callback=_urlpath)


split_option = click.option("--split", metavar="SPLIT", help="Of a TFDS data set: train, test[:10%], train+test, all.")


@contextmanager
def writing(threads: int) -> Iterator[list[Summary]]:
    """Show how far writing is, on threads of this process, and say what was written."""
    with summed_up() as written, dask.config.set(scheduler="threads", num_workers=threads), _spelled_as_options():
        yield written
    for summary in written:
        click.echo(plain(str(summary)))


@contextmanager
def _spelled_as_options() -> Iterator[None]:
    """Say by which option it is done, where the error names the argument of a function."""
    try:
        yield
    except (FeatureError, FileExistsError, IncompleteStoreError, ResumeError) as error:
        raise type(error)(_spelled(str(error))) from error


def _spelled(said: str) -> str:
    for argument, option in _OPTIONS.items():
        said = said.replace(argument, option)
    return said
