"""Errors, features and progress that all commands share."""

from __future__ import annotations

import errno
import os
import select
import shlex
import sys
import warnings
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from dask_tfrecord.cli.command_options import (
    DEBUG,
    GIVEN,
    SOURCES,
    TARGETS,
    TEXT,
    command_line,
    computing,
    is_path,
    plain,
)
from dask_tfrecord.errors import Spelled, TFRecordError, for_commands
from dask_tfrecord.options import SAMPLE

if TYPE_CHECKING:
    from dask_tfrecord.dataset.dataset import Dataset
    from dask_tfrecord.features.inference.report import Report
    from dask_tfrecord.features.schema import Schema
    from dask_tfrecord.records.index import RecordRange
    from dask_tfrecord.rows.where import Alternatives
    from dask_tfrecord.shards.shard import Shards
    from dask_tfrecord.stores.output import WriteSummary


_INTERRUPTED = 130
# Key in the context of a command: its exit status if a reader closes the pipe of its output.
STATUS = "dask_tfrecord.status"
# Reading every record of this many bytes of shards is faster with processes, despite their start.
_PROCESSES_NBYTES = 64 << 20


# Commands that do what commands of other programs do.
_SYNONYMS = {
    **dict.fromkeys(("cat", "show", "print", "dump", "tail", "less"), ("head", "view")),
    **dict.fromkeys(("ls", "list", "count", "wc", "inspect", "stat"), ("info",)),
    **dict.fromkeys(("stats", "statistics", "summary", "summarize"), ("describe",)),
    **dict.fromkeys(("check", "validate", "test", "crc"), ("verify",)),
    **dict.fromkeys(("convert", "export"), ("to-zarr", "to-parquet", "to-lerobot")),
    **dict.fromkeys(("to-csv", "to-json", "to-jsonl", "csv", "json"), ("head --json -n 1000", "to-parquet")),
    **dict.fromkeys(("filter", "merge", "cp"), ("copy",)),
    **dict.fromkeys(("split", "shard"), ("copy --records-per-shard 1000",)),
    **dict.fromkeys(("features", "spec"), ("schema",)),
    **dict.fromkeys(("serve", "gui", "browse", "open"), ("view",)),
    **dict.fromkeys(("images", "to-images", "to-png", "to-html"), ("preview",)),
    **dict.fromkeys(("to-pandas", "to-dataframe", "to-arrow"), ("to-parquet",)),
    "sample": ("head",),
    **dict.fromkeys(("fix", "recover"), ("repair",)),
    "help": ("--help",),
    "version": ("--version",),
}
# Options that do what options of other programs do.
_OPTIONS = {
    **dict.fromkeys(("--mode", "--force", "-f", "-y", "--yes", "--replace"), "--overwrite"),
    **dict.fromkeys(("--limit", "--head", "--rows", "--num", "--count", "--lines", "--number", "--take"), "-n"),
    **dict.fromkeys(("--column", "--cols", "--fields", "--select", "-c"), "--columns"),
    **dict.fromkeys(("--filter", "--query", "--condition"), "--where"),
    **dict.fromkeys(("--workers", "--num-workers", "--jobs", "--processes"), "--threads"),
    **dict.fromkeys(("--gzip", "--gz", "-z", "--compress"), "--compression"),
    **dict.fromkeys(("--schema", "--spec"), "--features"),
    "--json": "--format",
    "--format": "--json",
    "--n": "-n",
    "--host": "--port",
    **dict.fromkeys(("--shards", "--num-shards", "--shard-size"), "--records-per-shard"),
}
# Options of programs that state types in the command.
_TYPES = ("--text", "--image", "--dtype", "--dtypes", "--type", "--types", "--decode", "--cast")


class Commands(click.Group):
    """Command group that reports an error as one line on stderr."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments, which errors repeat as a command that works."""
        ctx.meta[GIVEN] = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.possibilities and not _owners(self, ctx, error.option_name):
                raise
            if own := _with_two_dashes(ctx, _names_of_options(self, ctx)):
                raise click.UsageError(f"No such option {own[1:]!r}. Write {command_line(ctx, own)}", ctx) from None
            advice = "Write the options of a command after its name."
            if error.option_name == "-V":
                advice = f"Write {command_line(ctx, '--version')}"
            raise click.UsageError(f"{error.message} {advice}", ctx) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; the error about an unknown one names commands that do the same, or all of them."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            name, lower = args[0], args[0].lower()
            same = _SYNONYMS.get(lower, (lower,) if lower in self.list_commands(ctx) else ())
            if same:
                # The suffix of the output selects the command.
                if "to-zarr" in same and args[-1].endswith(TEXT):
                    same = _SYNONYMS["to-csv"]
                same = tuple(each for each in same if args[-1].endswith(each.removeprefix("to-"))) or same
                commands = [_same_command(ctx, each, args[1:]) for each in same]
                advice = f"No such command {name!r}. Write {', or '.join(commands)}"
            elif is_path(name):
                advice = f"A command comes before the files. Write {command_line(ctx, 'info', *args)}"
            elif getattr(error, "possibilities", None):
                raise
            else:
                advice = f"{error.message} Write one of these: {', '.join(self.list_commands(ctx))}."
            raise click.UsageError(advice, ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; show tracebacks only with ``--debug``."""
        ctx.with_resource(_plain_warnings())
        try:
            return super().invoke(ctx)
        except click.BadOptionUsage as error:
            raise self._with_value(ctx, error) from None
        except click.UsageError as error:
            raise _explained(error) from None
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt as error:
            from dask_tfrecord.shards.streams import interrupt_reading

            # The process waits for the threads of dask before it exits.
            interrupt_reading()
            if ctx.meta.get(DEBUG):
                raise
            click.echo("Interrupted", err=True)
            _echo_notes(error)
            ctx.exit(_INTERRUPTED)
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE and _is_closed(sys.stdout):
                # `head` and other readers close the pipe when they have what they want. Python would fail to flush it.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                ctx.exit(ctx.meta.get(STATUS, 0))
            if ctx.meta.get(DEBUG):
                raise
            click.echo(f"Error: {one_line(error)}", err=True)
            _echo_notes(error)
            ctx.exit(1)

    def _with_value(self, ctx: click.Context, error: click.BadOptionUsage) -> click.UsageError:
        """Add what an option takes to the error about its missing value."""
        command = self.get_command(ctx, ctx.meta[GIVEN][0])
        options = [each for each in command.params if error.option_name in each.opts] if command else []
        if not options or not isinstance(options[0], click.Option) or "requires" not in error.message:
            return error
        option = options[0]
        value = _number(option) if isinstance(option.type, click.types.IntParamType) else option.metavar or "VALUE"
        return click.UsageError(f"{error.message} Write {error.option_name} {value}: {option.help}", error.ctx)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print warnings as one line each, without the line of a program."""

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any) -> None:
        said = message.args[0] if isinstance(message, Warning) else message
        click.echo(f"Warning: {plain(for_commands(said))}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _number(option: click.Parameter) -> str:
    """Return an example of the number that an option takes."""
    return "8123" if option.name == "port" else "5"


def _names_of_options(command: click.Command | None, ctx: click.Context) -> set[str]:
    return {name for each in (command.get_params(ctx) if command else ()) for name in each.opts}


def _owners(group: click.Group, ctx: click.Context, option: str) -> list[str]:
    """Name the commands that have an option."""
    return [name for name in group.list_commands(ctx) if option in _names_of_options(group.get_command(ctx, name), ctx)]


def _with_two_dashes(ctx: click.Context, names: Container[str]) -> str:
    """Return the option of these that was given with one dash; empty text without one."""
    return next((f"-{each}" for each in ctx.meta[GIVEN] if f"-{each}" in names), "")


def _same_command(ctx: click.Context, command: str, arguments: list[str]) -> str:
    """Return a command with the arguments of one that converts to text, or another one."""
    program, *options = command.split()
    if program.startswith("-"):
        return command_line(ctx, *arguments[:1], program)
    if not arguments:
        arguments = [SOURCES.get(program, "train-*.tfrecord")]
    # A shell makes several sources of a glob, without a target.
    if program in TARGETS and (len(arguments) == 1 or Path(arguments[-1]).is_file()):
        arguments = [*arguments, TARGETS[program]]
    if len(arguments) < 2 or not arguments[-1].endswith(TEXT):
        return command_line(ctx, program, *options, *arguments)
    *sources, target = arguments
    stem = target.rpartition(".")[0]
    if program == "head":
        return f"{command_line(ctx, program, *options, *sources)} > {shlex.quote(f'{plain(stem)}.jsonl')}"
    return command_line(ctx, command, *sources, stem)


def _about_option(error: click.NoSuchOption, ctx: click.Context, dashed: str) -> str:
    """Say what to write for an option that a command does not have; empty text if click names similar ones."""
    command, group, option = ctx.command, ctx.parent and ctx.parent.command, error.option_name
    named = {name: each for each in command.params if isinstance(each, click.Option) for name in each.opts}
    if same := named.get(dashed or _OPTIONS.get(option, "")):
        value = "" if same.is_flag else f" {same.make_metavar(ctx)}"
        return f"Write {dashed or same.opts[0]}{value}: {same.help}"
    if option in ("-o", "--out", "--output"):
        if command.name == "index":
            return "The command writes an index next to each shard."
        writes = command.name in TARGETS
        return (
            "The new file or store is the last argument." if writes else "The command prints: write > FILE at the end."
        )
    if "--features" in named and option in _TYPES:
        made = "write dask-tfrecord schema PATTERN --format json > features.json, edit the file, and give "
        return f"To change types, {made}--features features.json"
    if isinstance(group, click.Group) and option in _names_of_options(group, ctx):
        return f"Write {command_line(ctx, option)}"
    if isinstance(group, click.Group) and (owners := _owners(group, ctx, option)):
        return f"{command.name} does not have it, but these commands do: {', '.join(owners)}"
    if error.possibilities:
        return ""
    number = option[1:]
    if number.isdecimal() and "-n" in named:
        rest = [each for each in ctx.meta[GIVEN] if each != option]
        return f"Write {command_line(ctx, *rest, '-n', number)}"
    names = [each.opts[0] for each in dict.fromkeys(named.values()) if not each.hidden]
    return f"Leave it out, or write one of the options of {command.name}: {', '.join(names)}."


def _explained(error: click.UsageError) -> click.UsageError:
    """Add what to write to the error about an option or argument that a command does not have."""
    if error.ctx is None:
        return error
    parameters = error.ctx.command.params
    if isinstance(error, click.NoSuchOption):
        dashed = _with_two_dashes(error.ctx, _names_of_options(error.ctx.command, error.ctx))
        said = _about_option(error, error.ctx, dashed)
        message = f"No such option {dashed[1:]!r}." if dashed else error.message
        return click.UsageError(f"{message} {said}", error.ctx) if said else error
    if error.message.startswith("Missing command"):
        written = f"{command_line(error.ctx, 'info', 'train-*.tfrecord')}, or {command_line(error.ctx, '--help')}"
        return click.UsageError(f"{error.message} Write {written} for all commands", error.ctx)
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Option):
        option = error.param.opts[0]
        return click.UsageError(f"Missing option {option!r}. Write {option} 10: {error.param.help}", error.ctx)
    if isinstance(error, click.MissingParameter) or error.message.startswith("Missing argument"):
        name, given = error.ctx.command.name or "", error.ctx.meta[GIVEN][1:]
        if name not in ("to-tfrecord", "view") and given and Path(given[0]).is_dir():
            from dask_tfrecord.shards.listing import find_shards

            try:
                find_shards(given[0])
            except TFRecordError as refusal:
                # It names what reads a store.
                return click.UsageError(one_line(refusal), error.ctx)
        written = example(error.ctx, error.ctx.command, given if len(given) == 1 and given[0][:1] != "-" else ())
        return click.UsageError(
            f"The command {name} takes {' and '.join(metavars(error.ctx))}. Write {written}", error.ctx
        )
    if isinstance(error, click.BadParameter) and error.param is not None:
        integer = f"an integer. Write a number: {error.param.opts[0]} {_number(error.param)}"
        message = error.message.replace("a valid integer range.", integer)
        if " is not in the range " in message:
            message += f" Write {error.param.opts[0]} {_number(error.param)}"
        return click.BadParameter(message, error.ctx, error.param)
    if "unexpected extra argument" in error.message:
        takes = [f"one {each.name}".upper().replace("ONE", "one") for each in parameters if _is_argument(each)]
        name = error.ctx.command.name or ""
        text = f"{error.message}. The command {name} takes {' and '.join(takes)}."
        # A shell makes several sources of a glob.
        given = [each for each in error.ctx.meta[GIVEN][1:] if not each.startswith("-")]
        if len(takes) == 2 and len(given) > 2:
            *sources, target = given
            if Path(target).is_file():
                sources, target = given, TARGETS.get(name, "new")
            commands = [command_line(error.ctx, name, each, named_after(target, each)) for each in sources[:2]]
            more = ", and so on" if len(sources) > 2 else ""
            text += f" Write a command for each: {', and '.join(commands)}{more}"
        return click.UsageError(text, error.ctx)
    return error


def example(ctx: click.Context, command: click.Command, sources: Sequence[str] = ()) -> str:
    """Spell a command with these sources, or with examples, and with the options that it requires."""
    name = command.name or ""
    needed = [each for each in command.params if isinstance(each, click.Option) and each.required]
    options = [text for each in needed for text in (each.opts[0], "10")]
    target = [TARGETS[name]] if name in TARGETS else []
    return command_line(ctx, name, *(sources or [SOURCES.get(name, "train-*.tfrecord")]), *target, *options)


def metavars(ctx: click.Context) -> list[str]:
    """Name a command's arguments, without the brackets around optional ones."""
    return [
        each.make_metavar(ctx).replace("[", "").replace("]", "").rstrip(".")
        for each in ctx.command.params
        if _is_argument(each)
    ]


def _is_argument(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Argument)


def named_after(target: str, source: str) -> str:
    """Return a name of a target for one of several sources."""
    path = Path(target)
    if target.endswith("/") or path.is_dir():
        return str(path / Path(source).name)
    return str(path.with_name(f"{path.stem}-{Path(source).stem}{path.suffix}"))


def _is_closed(stream: IO[str]) -> bool:
    """Return whether the reader of a pipe has closed it; sockets raise the same error."""
    if not hasattr(select, "poll"):
        return True
    poll = select.poll()
    poll.register(stream, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def one_line(error: Exception) -> str:
    """Return the message of an error as one line."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return plain(f"{error.filename}: {error.strerror}")
    # The text of a builtin exception is its argument.
    said = error.args[0] if error.args and isinstance(error.args[0], Spelled) else str(error)
    text = error.for_commands() if isinstance(error, TFRecordError) else for_commands(said)
    message = " ".join(text.split("\n")).strip()
    return plain(message or f"{type(error).__name__} without a message; --debug shows its traceback")


def _echo_notes(error: BaseException) -> None:
    for note in getattr(error, "__notes__", ()):
        click.echo(plain(for_commands(note)), err=True)


@contextmanager
def writing(threads: int) -> Iterator[list[WriteSummary]]:
    """Compute, display the progress, and print a summary of each write."""
    from dask_tfrecord.stores.output import collect_summaries

    with collect_summaries() as summaries, computing(threads):
        yield summaries
    for summary in summaries:
        click.echo(plain(str(summary)))


def check_one_source_of_features(features: str | None, sample: int | str | None) -> None:
    """Refuse --features with --sample."""
    if features is not None and sample is not None:
        raise click.UsageError("--features specifies the features that --sample would infer: give one of them.")


def keep_where(dataset: Dataset, conditions: Alternatives | None, columns: list[str] | None) -> Dataset:
    """Return the rows of --where and the columns of --columns; text is bytes where the column has bytes."""
    if conditions:
        from dask_tfrecord.rows.where import as_stored

        dataset = dataset.where(as_stored(dataset.schema, conditions))
    return dataset if columns is None else dataset[columns]


def open_rows(
    pattern: str | list[str],
    threads: int,
    *,
    where: Alternatives | None = None,
    columns: list[str] | None = None,
    first: bool = False,
    **reading: Any,
) -> Dataset:
    """Open shards with the features and rows that the options describe; `reading` has options of `read_tfrecord`.

    For the `first` rows of a filter, records are not counted, where their number is not needed otherwise.
    """
    from dask_tfrecord.dataset.reading import read_tfrecord
    from dask_tfrecord.features.schema import Schema
    from dask_tfrecord.rows.read import open_lengths

    schema = find_schema(pattern, threads, reading.pop("features"), reading.pop("sample"), **reading)
    if not where:
        return read_tfrecord(pattern, schema, columns=columns, **reading)
    # A split of rows, rows that are left out, and lengths that are open are known by a pass over all records.
    has_errors = reading["errors"] != "raise" or reading.get("value_errors", "raise") != "raise"
    needs_counts = reading["split"] is not None or has_errors or not isinstance(schema, Schema) or open_lengths(schema)
    if first and not needs_counts:
        reading["counts"] = None
    return keep_where(read_tfrecord(pattern, schema, **reading), where, columns)


def find_schema(
    pattern: str | list[str], threads: int, features: str | None, sample: int | str | None, **reading: Any
) -> Schema | str | None:
    """Find the features to convert: from the file of --features, else from metadata, else inferred.

    With --message and no file, return None, which selects all fields. `reading` has options of `read_tfrecord`, and the
    `default` split.

    Raises
    ------
    click.UsageError
        If --features and --sample are both given, or --message and --sample.
    """
    check_one_source_of_features(features, sample)
    message, compression, errors = reading.get("message"), reading["compression"], reading.get("errors", "raise")
    if message is not None and sample is not None:
        raise click.UsageError("--message specifies the fields that --sample would infer: give one of them.")
    if features is not None or message is not None:
        return features
    from dask_tfrecord.features.metadata.splits import resolve_collection

    found = resolve_collection(
        pattern, reading["split"], compression=compression, storage_options=None, default=reading.get("default")
    )
    known = found.schema() if sample is None else None
    if known is not None:
        return known
    return found.with_classes(inspect_sample(found.shards, sample or SAMPLE, threads, errors=errors).schema)


def inspect_sample(
    shards: Shards, sample: int | str, threads: int, message: str | None = None, *, errors: str = "raise"
) -> Report:
    """Inspect a number of records, or all; all records of large shards in processes, because protobuf holds the GIL."""
    from rich.console import Console

    from dask_tfrecord.features.message_types import MessageType
    from dask_tfrecord.rows.damaged_records import runs_left
    from dask_tfrecord.rows.partitions import inspect_shards

    type_ = None if message is None else MessageType.of(message)
    whole = sample == "all"
    with_processes = whole and threads > 1 and int(shards.sizes.sum()) > _PROCESSES_NBYTES
    status = Console(stderr=True).status("Reading all records") if whole else nullcontext()
    with computing(threads, local="processes" if with_processes else "threads"), status:
        number = None if isinstance(sample, str) else sample
        return inspect_shards(shards, number, type_, runs_left(shards, errors))


def inspect_matching(
    pattern: str | list[str], schema: Schema, conditions: Alternatives, sample: int | str, threads: int, **reading: Any
) -> Report:
    """Inspect records that meet conditions on a schema's features, or all records.

    Raises click.UsageError without features.
    """
    import numpy as np

    from dask_tfrecord.rows.partitions import inspect_shards
    from dask_tfrecord.rows.read import read_rows
    from dask_tfrecord.rows.sources import RecordSource
    from dask_tfrecord.rows.where import as_stored

    with computing(threads):
        source = read_rows(pattern, schema, filters=as_stored(schema, conditions), **reading).source
        assert isinstance(source, RecordSource)
        collection, rows = source.collection, np.asarray(source.rows, np.int64)
        if not rows.size:
            raise click.UsageError("no record meets the conditions of --where, and features are inferred from records")

        def runs_of(number: int) -> Iterator[RecordRange]:
            start, stop = np.searchsorted(rows, collection.starts[number : number + 2])
            return collection.picks(rows[start:stop])

        return inspect_shards(collection.shards, None if isinstance(sample, str) else sample, None, runs_of)
