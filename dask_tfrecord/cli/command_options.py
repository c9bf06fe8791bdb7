"""Options and arguments of all commands, each defined once; the scheduler they choose, and their text on a terminal.

A command lists the names of its options: ``@options("columns", "threads")``. Names and values are as in the Python
functions, so that a command passes them on.
"""

from __future__ import annotations

import errno
import glob
import itertools
import json
import logging
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from dask_tfrecord.errors import for_commands, printable, redact
from dask_tfrecord.options import COMMANDS, REQUIRED, SAMPLE, LeRobotOptions, ShardOptions, options_of, summary
from dask_tfrecord.settings import limits, parse_size
from dask_tfrecord.shards.compressions import COMPRESSIONS, normalize_compression

if TYPE_CHECKING:
    from rich.console import Console

    from dask_tfrecord.rows.where import Alternatives


def plain(text: str) -> str:
    """Return text from a file without credentials; control characters are escaped, so that no terminal obeys them."""
    return printable(redact(text))


def json_line(values: Any) -> str:
    """Return values, or the JSON text of values, as one line of JSON that no terminal obeys."""
    text = values if isinstance(values, str) else json.dumps(values, ensure_ascii=False)
    # Other letters than printable ones occur in strings only.
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in text)


def output() -> Console:
    """Return a console on stdout; it raises BrokenPipeError where rich's would end the process."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError(errno.EPIPE, "the reader closed the pipe")

    return Output(highlight=False, emoji=False)


def output_width() -> int | None:
    """Return $COLUMNS if it is set, else the columns of the terminal; None where stdout is a file or a pipe."""
    from dask_tfrecord.markup import terminal_width

    return shutil.get_terminal_size().columns if os.environ.get("COLUMNS") else terminal_width()


def plain_lines(text: str) -> str:
    """Apply `plain` to each line."""
    return "\n".join(map(plain, text.split("\n")))


class _StderrHandler(logging.Handler):
    """Print messages on the current stderr: a progress bar replaces it, and moves below the text."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message on one line."""
        click.echo(plain(f"{record.levelname.lower()}: {record.getMessage()}"), err=True)


# Keys in the context of a command: the value of the option, and the client of a cluster.
_SCHEDULER, _CLIENT = "dask_tfrecord.scheduler", "dask_tfrecord.client"
_LOCAL = ("threads", "processes", "synchronous")
_ADDRESS = re.compile(r"(\w+://)?[^\s/]+:\d+/?|inproc://\S+")


def set_scheduler(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    """Store the option; it is accepted before the command and after it."""
    if value is None:
        return
    if value not in _LOCAL and not _ADDRESS.fullmatch(value):
        local = next((each for each in _LOCAL if value and each.startswith(value)), "")
        host = re.fullmatch(r"(?:\w+://)?([\w.-]+)/?", value)
        written = local or f"tcp://{host[1] if host else 'localhost'}:8786"
        raise click.BadParameter(
            f"{plain(value)!r} is neither the address of a scheduler, with its port, nor {', '.join(_LOCAL)}. Write "
            f"--scheduler {written}"
        )
    ctx.meta[_SCHEDULER] = value


@contextmanager
def computing(threads: int | None = None, *, local: str = "threads") -> Iterator[None]:
    """Compute on the scheduler of ``--scheduler``, or on a number of local threads or processes without it.

    Raises ConnectionError if a scheduler does not answer at the address, and click.UsageError if ``--threads`` is given
    for a cluster, whose workers have threads of their own.
    """
    import dask
    import dask.threaded

    ctx = click.get_current_context()
    scheduler = ctx.meta.get(_SCHEDULER, local)
    if scheduler == "threads":
        # By its name dask finds the scheduler only after importing distributed, which takes as long as all the rest.
        scheduler = dask.threaded.get
    if scheduler in (*_LOCAL, dask.threaded.get):
        with dask.config.set(scheduler=scheduler, num_workers=threads):
            yield
        return
    if ctx.get_parameter_source("threads") is ParameterSource.COMMANDLINE:
        raise click.UsageError(
            "--threads is for local schedulers: `dask worker --nthreads` sets the threads of a cluster."
        )
    with dask.config.set(scheduler=_client(ctx, scheduler)):
        yield


def _client(ctx: click.Context, address: str) -> Any:
    """Return the client of the command, which is closed when the command ends."""
    if _CLIENT not in ctx.meta:
        # Imported here: only a cluster needs it.
        from distributed import Client

        try:
            client = Client(address, timeout=limits().scheduler_answer, set_as_default=False)
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


def is_path(given: str) -> bool:
    """Return whether an argument is the path, the glob or the URL of a file."""
    return "*" in given or "://" in given or os.path.exists(given)  # noqa: PTH110 - False for a name that is too long


def command_line(ctx: click.Context, *arguments: str) -> str:
    """Spell a command as a user types it; if it is long, the first arguments and the last one."""
    # `dask tfrecord`, or the name of our own program.
    program = (ctx if isinstance(ctx.command, click.Group) else ctx.parent or ctx).command_path
    given = [shlex.quote(plain(each)) for each in _with_glob(arguments)]
    if len(given) > _REPEATED:
        given = [*given[: _REPEATED - 1], "…", given[-1]]
    return " ".join([program, *given])


def _with_glob(arguments: Sequence[str]) -> list[str]:
    """Replace names of files by the glob that a shell made them of, if there is one."""
    files = [each for each in arguments if Path(each).is_file()]
    kinds = {(Path(each).parent, re.split(r"\d", Path(each).name)[0], Path(each).suffix) for each in files}
    if len(files) < 3 or len(kinds) > 1:
        return list(arguments)
    folder, start, suffix = kinds.pop()
    pattern = f"{glob.escape(start)}*{suffix}"
    if set(folder.glob(pattern)) != set(map(Path, files)):
        return list(arguments)
    at = arguments.index(files[0])
    return [*arguments[:at], str(folder / pattern), *(each for each in arguments[at:] if each not in files)]


# Key in the context of a command: the arguments after the name of the program.
GIVEN = "dask_tfrecord.given"
# Most arguments of a command that an error repeats.
_REPEATED = 6
# Key of `--debug` in the context of a command.
DEBUG = "dask_tfrecord.debug"

Command = TypeVar("Command", bound=Callable[..., Any])


def _set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    # The option is accepted before the command and after it.
    if value:
        ctx.meta[DEBUG] = True


def _set_verbose(ctx: click.Context, _: click.Parameter, count: int) -> None:
    """Print messages of the library until the command ends."""
    if not count:
        return
    logger, handler = logging.getLogger("dask_tfrecord"), _StderrHandler()
    ctx.find_root().call_on_close(partial(logger.setLevel, logger.level))
    ctx.find_root().call_on_close(partial(logger.removeHandler, handler))
    logger.setLevel(logging.INFO if count == 1 else logging.DEBUG)
    logger.addHandler(handler)


def complete_files(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete the names of files."""
    return [CompletionItem(incomplete, type="file")]


def _split_names(_ctx: click.Context, _option: click.Parameter, lists: tuple[str, ...]) -> list[str] | None:
    """Join comma-separated lists of names; return None for an empty list."""
    return [name.strip() for names in lists for name in names.split(",")] or None


def _check_message(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        from dask_tfrecord.features.message_types import MessageType

        MessageType.of(value, "--message")
    return value


def _number_or_all(_ctx: click.Context, _option: click.Parameter, value: str | None) -> int | str | None:
    if value is None or value == "all":
        return value
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"{value!r} is neither a number of records, 1 or more, nor 'all'.")
    return int(value)


def _rows_or_size(_ctx: click.Context, _option: click.Parameter, value: str | None) -> int | str | None:
    if value is None or value.isdecimal():
        return None if value is None else int(value)
    nbytes = parse_size(value) if value[:1].isdecimal() else None
    if nbytes is None or nbytes < 1:
        raise click.BadParameter(f"{value!r} is neither a number of records, 1 or more, nor a size such as 8MiB.")
    return value


def _parsed_conditions(ctx: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> Alternatives:
    """Parse conditions that must all hold."""
    if not texts:
        return []
    from dask_tfrecord.rows.where import parse_expressions

    try:
        return parse_expressions(texts)
    except ValueError as error:
        refusal = click.BadParameter(plain(for_commands(error.args[0])))
    # A condition without quotes is several arguments.
    _, *after = itertools.dropwhile(lambda each: each != "--where", ctx.meta.get(GIVEN, ["--where"]))
    condition = " ".join("==" if each == "=" else each for each in after[:3])
    with suppress(ValueError):
        if after[:1] == [texts[0]]:
            parse_expressions([condition])
            raise click.BadParameter(f"Write quotes around the condition: --where {shlex.quote(plain(condition))}")
    raise refusal


def _check_part(_ctx: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", value or "")
    if value in (None, "auto") or (match is not None and 1 <= int(match[1]) <= int(match[2])):
        return value
    if match is not None and (number := int(match[2])):
        raise click.BadParameter(f"a job of {number} parts has 1/{number} to {number}/{number}; got {value}.")
    raise click.BadParameter(f"{value!r} is neither I/N, such as 1/8 to 8/8, nor auto.")


def _cores() -> int:
    from dask.system import CPU_COUNT

    return CPU_COUNT


def _renamed_columns(_ctx: click.Context, _option: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str | None]:
    """Read pairs like ``steps/action=action``."""
    for pair in pairs:
        if "=" not in pair:
            raise click.BadParameter(f"expected NAME=NEW, or NAME= to leave a feature out; got {pair}")
    return {name: new or None for name, _, new in (pair.rpartition("=") for pair in pairs)}


def _summary(name: str, *given: type) -> str:
    """Return the first sentence about an option; code in the documentation of Python is a word on the command line."""
    return re.sub(r'``"?(.*?)"?``|`(.*?)`', r"\1\2", summary(name, *given))


def _compression(default: str, help: str) -> Callable[[Command], Command]:
    names = list(dict.fromkeys([default, "none", *COMPRESSIONS.built_in]))

    def checked(_ctx: click.Context, _option: click.Parameter, value: str) -> str | None:
        if value.lower() == "none":
            return None
        try:
            return normalize_compression(value, default)
        except ValueError:
            # Other packages may add compressions, whose names the help leaves out.
            raise click.BadParameter(f"{value!r} is not one of {', '.join(map(repr, names))}.") from None

    metavar = f"[{'|'.join(names)}]"
    return click.option(
        "--compression", metavar=metavar, default=default, show_default=True, callback=checked, help=help
    )


_COMMON = (
    click.option(
        "--scheduler",
        metavar="ADDRESS|threads|processes|synchronous",
        expose_value=False,
        callback=set_scheduler,
        help="Compute on this dask scheduler, such as tcp://host:8786.  [default: threads]",
    ),
    click.option(
        "-v", "--verbose", count=True, expose_value=False, callback=_set_verbose, help="Log on stderr; -vv logs more."
    ),
    click.option(
        "--debug", is_flag=True, expose_value=False, callback=_set_debug, help="Show the traceback of an error."
    ),
)


def _flag(spelled: str, help: str, name: str | None = None) -> Callable[[Command], Command]:
    return click.option(spelled, *([] if name is None else [name]), is_flag=True, help=help)


def _choice(spelled: str, choices: Sequence[str], help: str) -> Callable[[Command], Command]:
    """Make an option with a few words as values; the first one is its default."""
    kind = click.Choice(choices, case_sensitive=False)
    return click.option(spelled, type=kind, default=choices[0], show_default=True, help=help)


def _file(spelled: str, help: str) -> Callable[[Command], Command]:
    return click.option(spelled, metavar="FILE", shell_complete=complete_files, help=help)


def _records(default: int) -> Callable[[Command], Command]:
    kind = click.IntRange(0)
    return click.option("-n", metavar="N", type=kind, default=default, show_default=True, help="Number of records.")


_OPTIONS: Mapping[str, Callable[[Any], Any]] = {
    "split": click.option(
        "--split", metavar="SPLIT", help="Split of a TFDS data set, like train, test[:10%] or train+test."
    ),
    "features": _file(
        "--features",
        "File with the features: a schema.pbtxt, a features.json, or the JSON of a Schema, also for SequenceExamples "
        "and ELWC.  [default: inferred]",
    ),
    "message": click.option(
        "--message",
        callback=_check_message,
        metavar="FILE:NAME",
        shell_complete=complete_files,
        help="Type of the records if they are protobuf messages other than Examples: scene.desc:package.Scene, from a "
        "descriptor set or a .proto file.",
    ),
    "sample": click.option(
        "--sample",
        callback=_number_or_all,
        metavar="N|all",
        help="Number of records to infer features from; all reads every record, in --threads processes.  [default: "
        f"{SAMPLE}]",
    ),
    "columns": click.option(
        "--columns", multiple=True, metavar="NAME,…", callback=_split_names, help="Features to keep. May be repeated."
    ),
    "where": click.option(
        "--where",
        multiple=True,
        metavar="CONDITION",
        callback=_parsed_conditions,
        help="Keep only records that meet this condition, such as \"label == 3 or label == 5\", \"name in ['a', 'b']\" "
        'or "len(tokens) > 5". Repeated conditions must all hold.',
    ),
    "file_chunks": click.option(
        "--chunks",
        metavar="ROWS|SIZE",
        callback=_rows_or_size,
        help="Records per file, or a decoded size such as 64MiB.  [default: by shards, up to 128MiB]",
    ),
    "groups": click.option(
        "--group",
        "groups",
        multiple=True,
        metavar="PREFIX",
        callback=lambda _ctx, _option, prefixes: {prefix: prefix for prefix in prefixes} or None,
        help="Ragged features below PREFIX/ have the same row lengths: store them with one dimension. May be repeated. "
        " [default: groups in the metadata]",
    ),
    "explode": click.option(
        "--explode",
        metavar="GROUP|NAME,…",
        callback=lambda _ctx, _option, value: value.split(",") if value and "," in value else value,
        help="Write one row for each item of these ragged features: a group that info lists, or names.",
    ),
    "repeat": click.option(
        "--repeat",
        multiple=True,
        metavar="NAME,…",
        callback=_split_names,
        help="With --explode: features to repeat for each item of their record.",
    ),
    "steps": click.option(
        "--explode",
        metavar="GROUP|NAME,…",
        default="steps",
        show_default=True,
        callback=lambda _ctx, _option, value: value.split(",") if "," in value else value,
        help="Features with a value for each frame of an episode: a group that info lists, or names.",
    ),
    "rename": click.option(
        "--rename",
        "names",
        multiple=True,
        metavar="NAME=NEW",
        callback=_renamed_columns,
        help="Rename a feature in the data set; NAME= leaves it out. May be repeated.",
    ),
    "video": click.option(
        "--video", metavar="CODEC", default="libx264", show_default=True, help=_summary("video", LeRobotOptions)
    ),
    "images": _flag("--images", "Store PNG images in the Parquet files instead of videos."),
    "errors": _choice(
        "--errors",
        ["raise", "skip", "fill"],
        "What to do about damaged records: stop with an error, skip them, or fill their rows with default values.",
    ),
    "value_errors": _choice(
        "--value-errors",
        ["raise", "skip", "fill", "mark"],
        "What to do about values that can't be decoded: stop with an error, skip their records, fill them with default "
        "values, or fill them and mark them in columns NAME.valid.",
    ),
    "overwrite": _flag("--overwrite", "Replace the output if it exists."),
    "planned": _flag("--plan", "Print the layout and the memory that the conversion needs; write nothing.", "planned"),
    "append": _flag(
        "--append", "Append the shards that the store does not contain yet; refuse shards that have changed."
    ),
    "append_episodes": _flag("--append", "Add the episodes to those in TARGET."),
    "add_columns": _flag("--add-columns", "Add the columns that the store does not contain yet to its rows."),
    "begin": _flag("--begin", "Plan a conversion that several programs write in parts, without a scheduler."),
    "parts": click.option("--parts", type=click.IntRange(1), metavar="N", help="With --begin: the number of parts."),
    "part": click.option(
        "--part",
        metavar="I/N|auto",
        callback=_check_part,
        help="Write part I of N, from 1/N to N/N. auto takes the number from the job array, which counts from 1 in "
        "Slurm, PBS, SGE and LSF, and from 0 in AWS Batch, Google Cloud and Kubernetes.",
    ),
    "begin_resume": _flag("--resume", "With --begin: divide an earlier job again, and keep what is written."),
    "finish": _flag("--finish", "Verify all parts and complete the output."),
    "status": _flag("--status", "Show which parts are written, and by whom, and which are missing."),
    "port": click.option(
        "--port",
        metavar="PORT",
        type=click.IntRange(0, 65535),
        default=0,
        show_default="a free one",
        help="Port of the page, which only this machine can open.",
    ),
    "browser": click.option("--browser/--no-browser", default=True, show_default=True, help="Open the browser."),
    "view_memory_limit": click.option(
        "--memory-limit", metavar="SIZE", help="Memory for rows, 64MiB or more.  [default: 512MiB]"
    ),
    "spec": _flag("--spec", "Print only the features, as Python code."),
    "as_json": _flag("--json", "Print the report as JSON.", "as_json"),
    "schema_format": _choice(
        "--format",
        ["table", "json", "tfmd", "python"],
        "Print a table, the JSON that --features reads, a schema.pbtxt, or Python code to paste.",
    ),
    "number": _records(5),
    "preview_number": _records(16),
    "rows_json": _flag("--json", "Print one JSON object per record.", "as_json"),
    "statistics_json": _flag("--json", "Print the statistics as JSON.", "as_json"),
    "html": _file("--html", "Write an HTML page with histograms."),
    "tfmd": _file("--tfmd", "Write the statistics as text for TensorFlow Data Validation."),
    "compression": _compression("infer", "Compression of the shards; infer detects it from their bytes."),
    "written_compression": _compression("none", _summary("compression", ShardOptions)),
    "repaired_compression": _compression("same", "Compression of the new file."),
    "threads": click.option(
        "--threads",
        type=click.IntRange(1),
        default=_cores,
        show_default="one per core",
        metavar="N",
        help="How many threads read and write.",
    ),
}


def common_options(command: Command) -> Command:
    """Add the options that are accepted before a command and after it."""
    for option in reversed(_COMMON):
        command = option(command)
    return command


def options(*given: str | Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Add options to a command, in this order, and the common ones."""

    def add(command: Command) -> Command:
        command = common_options(command)
        for option in reversed(given):
            command = (_OPTIONS[option] if isinstance(option, str) else option)(command)
        return command

    return add


# Values on the command line that are more than a text.
_PARSERS = {"ROWS|SIZE": _rows_or_size}


def flags(*given: type) -> Callable[[str], Callable[[Any], Any]]:
    """Make flags from a writer's options, by their types, defaults and documentation.

    `given` are the TypedDicts that `with_options` gives to the writer. An option that is not on the command line is
    None, or its default if that is text or a number.
    """

    def flag(name: str) -> Callable[[Any], Any]:
        kind, option = options_of(given[-1])[name]
        kinds, has_default = get_args(kind), isinstance(option.default, str | int | float) and kind is not bool
        spelled = f"--{name.replace('_', '-')}"
        choices = [each for each in (kind, *kinds) if get_origin(each) is Literal]
        arguments: dict[str, Any] = {"metavar": option.metavar, "help": _summary(name, *given)}
        if kind is bool and option.default:
            spelled += f"/--no-{spelled[2:]}"
            arguments |= {"default": True, "show_default": True}
        elif kind is bool:
            arguments["is_flag"] = True
        elif choices:
            arguments["type"] = click.Choice(get_args(choices[0]), case_sensitive=False)
        elif option.metavar in _PARSERS:
            arguments["callback"] = _PARSERS[option.metavar]
        elif kind is int or (int in kinds and str not in kinds):
            arguments |= {"type": click.IntRange(1), "metavar": "N"}
        elif float in (kind, *kinds) and str not in kinds:
            arguments |= {"type": click.FLOAT, "metavar": "X"}
        if has_default:
            arguments |= {"default": option.default, "show_default": True}
        return click.option(spelled, name, required=option.default is REQUIRED, **arguments)

    return flag


def names_of_flags(given: type) -> list[str]:
    """Return the options of a writer that text can express, without `mode` and `compute`."""
    simple = (bool, int, float, str)
    return [
        name
        for name, (kind, _) in options_of(given).items()
        if name not in ("mode", "compute")
        and any(
            each in simple or get_origin(each) is Literal
            for each in (get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,))
        )
    ]


def write_arguments(overwrite: bool, **values: Any) -> dict[str, Any]:
    """Return keyword arguments of a writing function: `mode`, and the options that the user specified."""
    specified = {name: value for name, value in values.items() if value is not None}
    return {"mode": "w" if overwrite else "w-", **specified}


def refuse_existing(*paths: str | None, overwrite: bool) -> None:
    """Refuse to replace files, unless the user allows it."""
    for path in paths:
        if path is not None and Path(path).exists() and not overwrite:
            raise click.UsageError(f"{plain(path)} exists: give --overwrite to replace it")


def _check_no_value(ctx: click.Context, path: str, *, is_last_of_several: bool) -> None:
    """Refuse words that would be taken for files: a second name after --columns, a condition without --where."""
    given = ctx.meta.get(GIVEN, [])
    lists = {name for each in ctx.command.params if "NAME,…" in (each.metavar or "") for name in each.opts}
    threes = zip(given, given[1:], given[2:], strict=False)
    option, first, second = next((three for three in threes if three[0] in lists), ("",) * 3)
    # A writer takes the second name as its target, and its target as the last of its sources.
    if (path == second or (second[:1] not in ("", "-") and is_last_of_several)) and not is_path(path):
        raise click.UsageError(
            f"No file is named {plain(second)}. Join names with commas: {option} {plain(first)},{plain(second)}"
        )
    if path.endswith(".json") and "--json" in given and not is_path(path):
        raise click.UsageError(f"No file is named {plain(path)}. --json prints: write > {plain(path)} at the end.")
    if "where" not in {each.name for each in ctx.command.params} or not re.search("[=<>]", path):
        return
    from dask_tfrecord.rows.where import parse_expression

    with suppress(ValueError, OSError):
        if not Path(path).exists() and parse_expression(path):
            written = f"--where {shlex.quote(plain(path))}"
            raise click.UsageError(f"No file is named {plain(path)}. Write --where before each condition: {written}")


def _urlpath(ctx: click.Context, _argument: click.Parameter, paths: tuple[str, ...]) -> str | list[str]:
    for path in paths:
        _check_no_value(ctx, path, is_last_of_several=path == paths[-1] != paths[0])
    # The shell expands an unquoted glob to several paths.
    return paths[0] if len(paths) == 1 else list(paths)


# Suffixes of text, and of other files that are outputs and no sources.
TEXT = (".csv", ".json", ".jsonl")
_OUTPUTS = (*TEXT, ".parq", ".parquet")

# Commands that write files of a suffix; none writes others.
_WRITERS = {
    **dict.fromkeys((".tfrecord", ".tfrec"), "copy"),
    **dict.fromkeys((".png", ".html"), "preview"),
    **dict.fromkeys((".parquet", ".parq"), "to-parquet"),
    **dict.fromkeys((".h5", ".hdf5", ".nc", ".npz"), ""),
    ".zarr": "to-zarr",
}
# Commands that write a directory, and those that write another file than a shard.
_DIRECTORIES, _FILES = ("to-zarr", "to-parquet", "to-lerobot"), ("preview", "virtual")
# Examples of the first argument of a command, and of the last one.
SOURCES = {"repair": "damaged.tfrecord", "to-tfrecord": "train.zarr"}
TARGETS = {
    "preview": "rows.png",
    "copy": "copied.tfrecord",
    "repair": "repaired.tfrecord",
    "to-zarr": "out.zarr",
    "to-tfrecord": "out.tfrecord",
    "to-lerobot": "out",
    "virtual": "references.json",
    **{each.name: each.target for each in COMMANDS.built_in.values()},
}


def _target(ctx: click.Context, _argument: click.Parameter, target: str) -> str:
    """Refuse an existing file as target after a source that does not exist: their order is wrong."""
    read = ctx.params.get(next(each.name for each in ctx.command.params if isinstance(each, click.Argument)) or "")
    first, *others = [read] if isinstance(read, str) else read or [""]
    is_source = "*" in target or (Path(target).is_file() and Path(target).suffix not in _OUTPUTS)
    if first and is_source and not is_path(first) and "--overwrite" not in ctx.meta.get(GIVEN, ()):
        written = command_line(ctx, ctx.command.name or "", *others, target, first)
        raise click.UsageError(f"{plain(first)} does not exist, and the new file or store comes last. Write {written}")
    name = ctx.command.name or ""
    sources = [first, *others] if first else []
    is_shard = Path(target).suffix in {Path(each).suffix for each in sources}
    if sources and Path(target).is_file() and (name in _DIRECTORIES or (name in _FILES and is_shard)):
        stores = [each for each in sources if Path(each, "zarr.json").is_file()]
        shards = [each for each in (*sources, *([target] if is_shard or stores else [])) if each not in stores]
        written = command_line(ctx, name, *shards, *(stores[:1] or [TARGETS[name]]))
        raise click.UsageError(f"The last argument is what to write, and {plain(target)} is a file. Write {written}")
    if target.endswith(TEXT) and name in _DIRECTORIES:
        written = command_line(ctx, "head", "--json", "-n", "1000", *sources)
        raise click.UsageError(f"{name} does not write text. Write {written} > {Path(target).stem}.jsonl")
    suffix = Path(target).suffix.lower()
    other = _WRITERS.get(suffix, name)
    if name in ("copy", *_DIRECTORIES) and other != name and not is_path(target):
        written = command_line(ctx, other or name, *sources, target if other else TARGETS[name])
        raise click.UsageError(f"{name} does not write {suffix} files: did you mean {written}?")
    return target


def path_argument(name: str, **attributes: Any) -> Callable[[Any], Any]:
    """Return the argument for a path, which a shell completes with the names of files."""
    if name in ("target", "store"):
        attributes = {"callback": _target, **attributes}
    return click.argument(name, shell_complete=complete_files, **attributes)


def pattern_argument(
    name: str = "pattern", *, required: bool = True, metavar: str | None = None
) -> Callable[[Command], Command]:
    """Return the argument for paths, URLs, directories, globs or templates of shards."""
    return path_argument(name, nargs=-1, required=required, callback=_urlpath, metavar=metavar)
