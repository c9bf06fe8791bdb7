"""The commands of `dask-tfrecord`, which dask's own command line offers as `dask tfrecord`.

Results go to stdout, progress and errors to stderr.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from dask_tfrecord.cli.command_options import (
    command_line,
    common_options,
    computing,
    flags,
    is_path,
    json_line,
    options,
    output,
    output_width,
    path_argument,
    pattern_argument,
    plain,
    plain_lines,
    refuse_existing,
    write_arguments,
)
from dask_tfrecord.cli.common import (
    STATUS,
    check_one_source_of_features,
    find_schema,
    inspect_matching,
    inspect_sample,
    keep_where,
    named_after,
    open_rows,
    writing,
)
from dask_tfrecord.cli.jobs import RESUMED_STEPS, STEPS, divisible
from dask_tfrecord.cli.writer_commands import AllCommands, writer_command
from dask_tfrecord.errors import FeatureError, SchemaError, TFRecordError, UnknownFeatureError, for_commands, plural
from dask_tfrecord.options import (
    COMMANDS,
    SAMPLE,
    CopyOptions,
    LeRobotOptions,
    ShardOptions,
    ZarrOptions,
    ZarrTargetOptions,
    ZarrWriteOptions,
    complete,
    options_of,
)

if TYPE_CHECKING:
    from dask_tfrecord.rows.where import Alternatives


_zarr = flags(ZarrOptions, ZarrTargetOptions, ZarrWriteOptions)
_shards = flags(ShardOptions, CopyOptions)
_lerobot = flags(LeRobotOptions)

# Fields of a record that `head` prints without the type of the message.
_WIRE_FIELDS = 1_000


@click.group(name="tfrecord", cls=AllCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dask-tfrecord")
@common_options
def tfrecord() -> None:
    """Inspect, convert and repair TFRecord shards.

    A PATTERN is a path, a URL, a directory, a glob like 'train-*.tfrecord' (in quotes, so that shards are in natural
    order), or a template like train@8.
    """


def main() -> None:
    """Run `dask-tfrecord`."""
    tfrecord(prog_name="dask-tfrecord")


@tfrecord.command()
@pattern_argument()
@options("split", "message", "sample", "where", "spec", "as_json", "compression", _shards("errors"), "threads")
def info(
    *,
    pattern: str | list[str],
    split: str | None,
    message: str | None,
    sample: int | str | None,
    where: Alternatives,
    spec: bool,
    as_json: bool,
    compression: str | None,
    errors: str,
    threads: int,
) -> None:
    """Show the records, bytes, compression and features of shards.

    The features come from the metadata of a TFDS data set. Without metadata, or with --sample, they are inferred from
    the first records of some shards, and the last column guesses what bytes contain. With --message, they are the
    fields of that message. --split shows only the shards of one split; --where also counts the records that meet the
    condition.
    """
    if spec and as_json:
        raise click.UsageError("--spec and --json are two forms of output: give one of them.")
    if spec and where:
        raise click.UsageError("--spec prints features, which --where does not change: give one of them.")
    from dask_tfrecord.cli.info_table import document, print_facts, print_report, print_schema
    from dask_tfrecord.features.metadata.splits import ResolvedPath, resolve_collection
    from dask_tfrecord.features.schema import group_lines, prefix_lines
    from dask_tfrecord.records.shard_check import DamageReport, ShardReport
    from dask_tfrecord.rows.counting import index_shards
    from dask_tfrecord.rows.damaged_records import check_shards
    from dask_tfrecord.shards.listing import find_shards

    try:
        # Without a split, the shards of all splits.
        resolved = resolve_collection(pattern, split, compression=compression, storage_options=None, default="all")
    except SchemaError as error:
        if split is not None:
            raise
        _report_metadata(error)
        resolved = ResolvedPath(find_shards(pattern, compression=compression))
    shards = resolved.shards
    try:
        metadata = resolved.schema()
    except SchemaError as error:
        _report_metadata(error)
        metadata = None
    known = metadata if sample is None and message is None else None
    sample = sample or SAMPLE
    if spec and known is not None:
        from dask_tfrecord.features.code import schema_code

        click.echo(schema_code(known))
        return
    if spec:
        report = inspect_sample(shards, sample, threads, message, errors=errors)
        if not report.features:
            # Raises the error that states the reason.
            report.schema  # noqa: B018
        click.echo(report.spec())
        return
    with computing(threads):
        if errors == "raise":
            listed = zip(shards, index_shards(shards, sidecars=False)[1], strict=True)
            reports = [ShardReport.from_index(*each) for each in listed]
        else:
            reports = check_shards(shards)
    more = {} if errors == "raise" else {"damage": DamageReport(tuple(reports)).total}
    has_records = any(each.records for each in reports)
    matching = None
    if where and has_records:
        with computing(threads):
            # A known schema needs no sample.
            reading: dict[str, Any] = {"sample": None if message or known is not None else sample}
            reading |= {"message": message, "split": split, "compression": compression, "errors": errors}
            matching = keep_where(open_rows(pattern, threads, features=None, **reading), where, None).nrows
    if as_json:
        is_inferred = has_records and known is None
        found = inspect_sample(shards, sample, threads, message, errors=errors) if is_inferred else None
        groups = None if metadata is None else {group: list(names) for group, names in metadata.groups.items()}
        values = {**document(shards, reports, known or found), **({"matching": matching or 0} if where else {})}
        click.echo(json_line({**values, "groups": groups}))
        return
    print_facts(shards, reports, more | ({"matching": f"{matching or 0:,}"} if where else {}))
    nested: list[str] = []
    if known is not None:
        click.echo(f"\n{plural(len(known), 'feature')} of the metadata\n")
        print_schema(known)
        return
    if has_records:
        report = inspect_sample(shards, sample, threads, message, errors=errors)
        print_report(report)
        nested = prefix_lines({each.name: each.feature for each in report.features if each.feature is not None})
    for line in nested if metadata is None else group_lines(metadata):
        click.echo(plain(line))


def _report_metadata(error: SchemaError) -> None:
    click.echo(f"Groups are unknown: {plain(str(error))}", err=True)


def _suffix(path: str) -> str:
    """Return a path's suffix without the shard's number: '.tfrecord' for 'train.tfrecord-00001-of-00002'."""
    return Path(path).suffix.partition("-")[0]


@tfrecord.command()
@pattern_argument("source", required=False)
@path_argument("target")
@options(
    *("features", "columns", "where", _shards("records_per_shard"), "written_compression"),
    *(_shards("index"), "overwrite", _shards("errors"), "threads", *RESUMED_STEPS),
)
@divisible("TFRecordJob", begin="begin_copy")
def copy(
    *,
    source: str | list[str],
    target: str,
    features: str | None,
    where: Alternatives,
    errors: Literal["raise", "skip"],
    threads: int,
    begin: Callable[..., None] | None,
    **arguments: Any,
) -> None:
    """Copy records to shards of a new size or compression.

    --where and --columns copy only some records or features. Records with any payload are copied byte for byte; with
    --columns, they must be Examples or SequenceExamples. --where needs the features that it compares: from --features,
    otherwise from the metadata of a TFDS data set, otherwise inferred.

    SOURCE is a PATTERN. TARGET is a template like 'out/train-{shard:05d}-of-{shards:05d}.tfrecord', the name of a
    single shard, or a directory. By default each shard becomes one new shard.

    Without a scheduler, --begin plans the copies, --part writes one part in any process on any machine, and --finish
    verifies all shards. --part, --finish and --status need only the TARGET.
    """
    from dask_tfrecord.stores.files.tfrecord import copy_tfrecord

    if features is not None and not where:
        raise click.UsageError(
            "--features describes what --where compares: give --where too, or --columns to copy fewer features."
        )
    if not isinstance(source, str) and not arguments["overwrite"] and Path(target).is_file():
        # A glob that the shell expanded has the target in it, which --overwrite would destroy.
        # Another file is not a source: a missing name would make it one.
        sources = [*source, target] if target not in source and _suffix(target) in map(_suffix, source) else source
        written = command_line(click.get_current_context(), "copy", *sources, "copied.tfrecord")
        raise click.UsageError(f"The last argument is the file to write, and {plain(target)} exists. Write {written}")
    kept: dict[str, Any] = {"errors": errors}
    if where:
        from dask_tfrecord.features.schema import Schema
        from dask_tfrecord.rows.where import as_stored

        reading = {"compression": "infer", "errors": errors}
        found = find_schema(source, threads, features, None, split=None, default="all", **reading)
        schema = found if isinstance(found, Schema) else Schema.read(found or "")
        kept |= {"features": schema, "filters": as_stored(schema, where)}
    with writing(threads):
        (begin or copy_tfrecord)(source, target, **kept, **write_arguments(**arguments))


@tfrecord.command()
@pattern_argument()
@options("features", "compression", "threads")
def index(pattern: str | list[str], features: str | None, compression: str | None, threads: int) -> None:
    """Write an index next to each shard.

    A shard that has an index opens without being scanned. FILE.idx has the format of tfrecord2idx, as DALI and vahidk
    read it: one line per record, with its byte offset and its length. For gzip shards, FILE.gzidx lists the points at
    which decompression can start; this needs indexed_gzip. With --features, FILE.lengths.idx lists the lengths of
    ragged rows, so that to-zarr with the same features reads the shards only once.
    """
    from dask_tfrecord.rows.counting import write_indexes
    from dask_tfrecord.rows.progress import show_immediately
    from dask_tfrecord.shards.listing import find_shards

    start = time.perf_counter()
    with show_immediately(), computing(threads):
        written = write_indexes(find_shards(pattern, compression=compression), features)
    seconds = time.perf_counter() - start
    files, records = sum(len(each.files) for each in written), sum(each.records for each in written)
    click.echo(f"Wrote {plural(files, 'file')}: index of {plural(records, 'record')} in {seconds:.1f} s")


@tfrecord.command()
@pattern_argument()
@options("as_json", "compression", "threads")
@click.pass_context
def verify(ctx: click.Context, pattern: str | list[str], as_json: bool, compression: str | None, threads: int) -> None:
    """Check every record for damage.

    For each damaged file, print the byte ranges that are lost, and why. The exit status is 1 if any file is damaged.
    """
    from dask_tfrecord.rows import damaged_records

    with computing(threads):
        report = damaged_records.verify(pattern, compression=compression)
    # A reader that closes the pipe does not turn damage into success.
    ctx.meta[STATUS] = 0 if report.ok else 1
    if as_json:
        click.echo(json_line(report.to_json(ensure_ascii=False)))
    else:
        for line in repr(report).splitlines():
            click.echo(plain(line))
    ctx.exit(ctx.meta[STATUS])


@tfrecord.command()
@path_argument("source")
@path_argument("target")
@options("as_json", "overwrite", "repaired_compression")
def repair(source: str, target: str, as_json: bool, overwrite: bool, compression: str | None) -> None:
    """Copy the intact records of SOURCE to a new file, TARGET.

    TARGET.damage.json lists the byte ranges that are lost.
    """
    from dask_tfrecord.rows import damaged_records

    if Path(target).exists() and not overwrite:
        # Of two shards that a shell makes of a glob, the second one would be lost.
        context, names = click.get_current_context(), dict.fromkeys((source, target))
        commands = [command_line(context, "repair", each, named_after("repaired.tfrecord", each)) for each in names]
        if len(commands) == 1:
            raise click.UsageError(f"SOURCE and TARGET are the same file. Write {commands[0]}")
        raise click.UsageError(
            f"{plain(target)} exists. Write a command for each: {', and '.join(commands)}. --overwrite replaces the "
            f"output of an earlier command."
        )
    with computing():
        report = damaged_records.repair(source, target, compression=compression)
    if as_json:
        click.echo(json_line(report.to_dict()))
        return
    lost = f"{plural(len(report.lost), 'range')} of bytes lost" if report.lost else "nothing was lost"
    click.echo(f"Wrote {plain(target)}: {plural(report.records, 'record')}; {lost}")
    for line in report.lines():
        click.echo(plain(line))


@tfrecord.command()
@pattern_argument()
@options("schema_format", "split", "features", "sample", "where", "compression", _shards("errors"), "threads")
def schema(
    *,
    pattern: str | list[str],
    format: str,
    features: str | None,
    sample: int | str | None,
    where: Alternatives,
    threads: int,
    **reading: Any,
) -> None:
    """Print the features of shards.

    The features come from --features, otherwise from the metadata of a TFDS data set; otherwise they are inferred (with
    --where, from the records that meet the condition). The JSON keeps every argument of the features, class names and
    groups. tfmd is a schema.pbtxt of TensorFlow Metadata, which can't express casts or how bytes are decoded. The
    Python code builds the same schema.
    """
    from dask_tfrecord.features.schema import Schema

    found = find_schema(pattern, threads, features, sample, **reading)
    if not isinstance(found, Schema):
        found = Schema.read(found or "")
    if where:
        if features is not None or found.sampling is None:
            source = "the metadata" if features is None else "--features"
            raise click.UsageError(
                f"--where chooses records to infer features from, but those of {source} are not inferred"
                + (": give --sample N to infer them." if features is None else ".")
            )
        found = inspect_matching(pattern, found, where, sample or SAMPLE, threads, **reading).schema
    if format == "json":
        click.echo(json_line(found.to_json()))
    elif format == "tfmd":
        from dask_tfrecord.features.schema import pbtxt

        click.echo(pbtxt(found), nl=False)
    elif format == "python":
        from dask_tfrecord.features.code import schema_code

        click.echo(schema_code(found))
    else:
        from dask_tfrecord.cli.info_table import print_schema

        print_schema(found)


@tfrecord.command()
@pattern_argument()
@options(
    *("number", "rows_json", "split", "features", "message", "sample", "columns", "where", "compression"),
    *("errors", "value_errors", "threads"),
)
def head(*, pattern: str | list[str], n: int, as_json: bool, threads: int, **reading: Any) -> None:
    """Print the first records.

    The features are those that the schema command prints. With --json, each record is one line: an object with its
    features. Bytes become text if they are UTF-8 without control characters, otherwise {"base64": …}. NaN and
    infinities become the strings "NaN", "Infinity" and "-Infinity", and times become text, as in protobuf's JSON.
    Complex numbers become [real, imaginary].

    If the records are other protobuf messages and --message is missing, head prints the wire format: field numbers, the
    likeliest values, and the types that fit. With --json, each candidate is a pair of a type and a value.
    """
    number = next((each for each in pattern if each.isdecimal() and not is_path(each)), "")
    if not isinstance(pattern, str) and number:
        files = [each for each in pattern if each != number]
        written = command_line(click.get_current_context(), "head", "-n", number, *files)
        raise click.UsageError(f"No file is named {number}. For that number of records, write {written}")
    with computing(threads):
        try:
            dataset = open_rows(pattern, threads, first=True, **reading)
        except FeatureError:
            given = ("split", "features", "message", "columns", "where")
            if any(reading[name] for name in given) or not _print_wire(pattern, n, as_json, reading["compression"]):
                raise
            return
        if as_json:
            from dask_tfrecord.extras.preview import json_rows

            rows = dataset.head(n)
            for line in json_rows(rows):
                click.echo(json_line(line))
            nrows = len(next(iter(rows.values()), ()))
        else:
            from dask_tfrecord.extras.preview import rich_preview

            found = dataset.preview(n)
            output().print(rich_preview(found, pictures=False))
            nrows = found.nrows
    if n and not nrows and reading["where"]:
        click.echo("No record meets the conditions of --where", err=True)


def _print_wire(pattern: str | list[str], n: int, as_json: bool, compression: str | None) -> bool:
    """Print the wire format of the first records; return False, without output, if the first is not of `MESSAGES`."""
    from dask_tfrecord.features.inference.payload_type import ADVICE, MESSAGES, detect_payload_type
    from dask_tfrecord.features.inference.wire import wire_fields, wire_lines
    from dask_tfrecord.records.index import full_run, iterate_payloads
    from dask_tfrecord.shards.listing import find_shards

    runs = map(full_run, find_shards(pattern, compression=compression))
    first = ""
    with closing(iterate_payloads(runs)) as records:
        for number, (_, payload) in enumerate(islice(records, n)):
            found, detected = wire_fields(payload, _WIRE_FIELDS), detect_payload_type(payload)
            first = first or detected
            if first not in MESSAGES:
                return False
            if as_json:
                fields = None if found is None else asdict(found)["children"]
                click.echo(json_line({"record": number, "type": detected.partition(" ")[2], "fields": fields}))
                continue
            click.echo(f"record {number}: {detected}, {plural(len(payload), 'byte')}")
            for line in () if found is None else wire_lines(found, "  "):
                click.echo(plain(line))
            if found is not None and not found.complete:
                click.echo(f"  … only {_WIRE_FIELDS:,} fields are shown")
    if first:
        click.echo(plain(for_commands(ADVICE[first])), err=as_json)
    return bool(first)


@tfrecord.command()
@pattern_argument()
@path_argument("target")
@options(
    *("preview_number", "split", "features", "message", "sample", "columns", "where", "overwrite", "compression"),
    *("errors", "value_errors", "threads"),
)
def preview(*, pattern: str | list[str], target: str, n: int, overwrite: bool, threads: int, **reading: Any) -> None:
    """Draw the first records, as images and a table.

    TARGET ends in .png, or in .html for a page; - shows the images and the table in the terminal. The features are
    those that the schema command prints, and bytes that contain encoded images are decoded. Needs Pillow.
    """
    path = Path(target)
    if target != "-" and path.suffix.lower() not in (".png", ".html"):
        raise click.UsageError(
            f"expected a TARGET that ends in .png or .html, or -; got {plain(target)}. Write {plain(path.stem)}.png"
        )
    refuse_existing(None if target == "-" else target, overwrite=overwrite)
    with computing(threads):
        found = open_rows(pattern, threads, first=True, **reading).preview(n)
    if target == "-":
        output().print(found)
        return
    (found.to_png if path.suffix.lower() == ".png" else found.to_html)(path)
    click.echo(f"Wrote {plain(target)}: {plural(found.nrows, 'record')} of {plural(len(found.columns), 'feature')}")


@tfrecord.command()
@pattern_argument()
@options(
    *("split", "features", "message", "sample", "columns", "where"),
    *("statistics_json", "html", "tfmd", "overwrite", "errors", "value_errors", "compression", "threads"),
)
def describe(
    *,
    pattern: str | list[str],
    as_json: bool,
    html: str | None,
    tfmd: str | None,
    overwrite: bool,
    threads: int,
    **reading: Any,
) -> None:
    """Compute statistics of every feature in one pass.

    The features are those that the schema command prints. With --json, the statistics are one line, in which NaN and
    infinities are the strings "NaN", "Infinity" and "-Infinity". To read the file that --tfmd writes, call
    load_stats_text of TensorFlow Data Validation.
    """
    refuse_existing(html, tfmd, overwrite=overwrite)
    with computing(threads):
        found = open_rows(pattern, threads, **reading).describe()
    if html is not None:
        found.to_html(html)
    if tfmd is not None:
        found.to_pbtxt(tfmd)
    for path in (html, tfmd):
        if path is not None:
            click.echo(f"Wrote {plain(path)}", err=True)
    from dask_tfrecord.extras.statistics.statistics import text_statistics

    click.echo(json_line(found.to_json()) if as_json else plain_lines(text_statistics(found, output_width())))


@tfrecord.command()
@path_argument("paths", nargs=-1, required=True, metavar="PATTERN|STORE…")
@options("split", "features", "message", "where", "compression", "errors", "port", "browser", "view_memory_limit")
def view(*, paths: tuple[str, ...], port: int, browser: bool, memory_limit: str | None, **reading: Any) -> None:
    """Show rows, statistics, episodes and bytes in the browser.

    Each argument is a data set: a PATTERN, or a Zarr store that to-zarr wrote. Only this machine can open the page,
    until you press Ctrl-C. The features come from --features or the fields of --message, otherwise from metadata;
    otherwise they are inferred. A damaged row shows its error in place, unless --errors skips or fills it.
    """
    from dask_tfrecord.extras.view.opened import BlockCache, check_format, open_path
    from dask_tfrecord.extras.view.server import Server

    cache = BlockCache(memory_limit)
    sets = [open_path(path, cache, **reading) for path in paths]
    for each in sets:
        # Damage is shown, and the file of another program is not.
        check_format(each)
    with Server(sets, port) as server:
        click.echo(server.url)
        click.echo("Press Ctrl-C to stop", err=True)
        if browser:
            server.open_browser()
        server.wait()


def _not_held(pattern: str | list[str], store: str, component: str | None, reading: dict[str, Any]) -> str | list[str]:
    """Return the shards that a store does not hold, to be read with its features unless `reading` has others."""
    from dask_tfrecord.features.metadata.splits import resolve_collection
    from dask_tfrecord.features.schema import Schema
    from dask_tfrecord.stores.zarr.additions import shards_to_append
    from dask_tfrecord.stores.zarr.store import TargetGroup

    target = TargetGroup.from_arguments(store, component, None)
    source = target.stored_attributes().get("source", {})
    if not source.get("files"):
        return pattern
    found = resolve_collection(pattern, reading["split"], compression=reading["compression"], storage_options=None)
    if reading["features"] is None and reading["message"] is None and "schema" in source:
        reading["features"] = Schema.from_json(json.dumps(source["schema"]))
    reading["split"] = None
    return shards_to_append(target, found.shards)


@tfrecord.command("to-zarr")
@pattern_argument(required=False)
@path_argument("store")
@options(
    *("split", "features", "message", "sample", "columns", "where", _zarr("chunks"), _zarr("shards")),
    *("explode", "repeat", "groups", _zarr("component"), "overwrite", _zarr("resume"), "planned"),
    *(_zarr("memory_limit"), _zarr("encoded_images"), "compression", "errors", "value_errors", "threads"),
    *("append", "add_columns", *STEPS),
)
@divisible("ZarrJob", resumes=False, place=("component",))
def to_zarr(
    *,
    pattern: str | list[str],
    store: str,
    explode: str | list[str] | None,
    repeat: list[str] | None,
    overwrite: bool,
    planned: bool,
    threads: int,
    append: bool,
    add_columns: bool,
    begin: Callable[..., None] | None,
    **given: Any,
) -> None:
    """Convert shards to a Zarr store in bounded memory.

    The features come from --features, otherwise from the metadata of a TFDS data set; otherwise they are inferred, and
    bytes stay bytes. To decode arrays and text in bytes, pass --features a file with the JSON of Schema.to_json. With
    --explode, each row is an item: a step of an episode, or a box in an image. After Ctrl-C, run the same command with
    --resume to continue. A conversion that fails removes what it wrote, unless it was started with --resume.

    --append appends the shards that the store does not contain yet, with the features of the store, and leaves out the
    others. The store is created if it does not exist.

    --add-columns adds the columns that the store does not contain yet to its rows: give the shards that the store was
    converted from, in the same order. --columns chooses the columns to add; a column that the store already contains is
    an error.

    Without a scheduler, --begin plans the conversion, --part writes one part in any process on any machine, and
    --finish completes the store. --part, --finish and --status need only the STORE.
    """
    from dask_tfrecord.stores.zarr.store import TargetGroup
    from dask_tfrecord.stores.zarr.write import open_target
    from dask_tfrecord.stores.zarr.write import to_zarr as write_zarr

    target: ZarrTargetOptions = {"component": given.pop("component"), "resume": given.pop("resume")}
    if overwrite and target["resume"]:
        raise click.UsageError("--overwrite replaces the existing store and --resume continues it: give one of them.")
    if repeat is not None and explode is None:
        raise click.UsageError("--repeat repeats features for each item of --explode: give --explode, too.")
    check_one_source_of_features(given["features"], given["sample"])
    layout = {name: given.pop(name) for name in options_of(ZarrOptions) if name in given}
    arguments = write_arguments(overwrite, **layout)
    if append and (overwrite or planned):
        raise click.UsageError("--append adds rows to the store: give it without --overwrite and --plan.")
    if add_columns and (append or overwrite or planned):
        raise click.UsageError(
            "--add-columns adds columns to the store: give it without --append, --overwrite and --plan."
        )
    if add_columns:
        arguments["mode"] = "a"
    if append:
        arguments["append_dim"] = "record"
        pattern = _not_held(pattern, store, target["component"], given)
        if not pattern:
            click.echo(f"{plain(store)} already contains all of these shards: nothing is left to append")
            return
    if planned and begin:
        raise click.UsageError("--plan writes nothing, and --begin creates the store: give one of them.")
    if not (planned or append or add_columns):
        # A wrong target is refused before records are read and counted.
        given_target: ZarrTargetOptions = {**target, "mode": arguments["mode"]}
        open_target(store, {}, complete(ZarrTargetOptions, given_target))
    with writing(threads) as summaries:
        dataset = open_rows(pattern, threads, **given)
        if explode is not None:
            dataset = dataset.explode(explode, repeat=repeat or ())
        if add_columns and given["columns"] is None:
            group = TargetGroup.from_arguments(store, target["component"], None)
            held = {each["name"] for each in group.stored_attributes().get("schema", {}).get("features", ())}
            if not (new := [name for name in dataset.schema if name not in held]):
                click.echo(f"{plain(store)} already contains all of these columns: nothing is left to add")
                return
            dataset = dataset[new]
        if planned:
            from dask_tfrecord.stores.zarr.zarr_plan import text_plan

            del arguments["mode"]
            click.echo(plain_lines(text_plan(dataset.plan_zarr(**arguments), output_width(), store)))
            return
        (begin or write_zarr)(dataset, store, **target, **arguments)
    if begin is None and not summaries:
        click.echo(f"{plain(store)} is complete: nothing was left to write")


@tfrecord.command("to-tfrecord")
@pattern_argument("store", required=False, metavar="STORE")
@path_argument("target")
@options(
    *(_zarr("component"), "message", "columns", "where", _shards("records_per_shard"), "written_compression"),
    *(_shards("index"), "overwrite", "errors", "threads", *RESUMED_STEPS),
)
@divisible("TFRecordJob")
def to_tfrecord(
    *,
    store: str | list[str],
    target: str,
    component: str | None,
    message: str | None,
    columns: list[str] | None,
    where: Alternatives,
    errors: str,
    threads: int,
    begin: Callable[..., None] | None,
    **arguments: Any,
) -> None:
    """Convert a Zarr store that to-zarr wrote to TFRecord shards.

    TARGET is a template like 'out/train-{shard:05d}-of-{shards:05d}.tfrecord', the name of a single shard, or a
    directory. By default each write unit of the store becomes a shard. Memory is bounded. Columns that were read from
    messages are written as the same messages. --message writes messages of another type; STORE may then also be a
    TFRecord shard with such messages, and --errors skips or fills its damaged records.

    Without a scheduler, --begin plans the shards, --part writes one part in any process on any machine, and --finish
    verifies all shards. --part, --finish and --status need only the TARGET.
    """
    from dask_tfrecord.dataset.reading import read_tfrecord
    from dask_tfrecord.dataset.reading_zarr import from_zarr
    from dask_tfrecord.shards.listing import find_shards, is_zarr_group
    from dask_tfrecord.stores.files.tfrecord import to_tfrecord as write_tfrecord

    if not isinstance(store, str):
        written = command_line(click.get_current_context(), "copy", *store, target)
        raise click.UsageError(f"to-tfrecord reads one Zarr store; got several paths. For shards, write {written}")
    with writing(threads):
        is_shard = message is not None and not is_zarr_group(store)
        if message is None and component is None and not is_zarr_group(store):
            with suppress(TFRecordError):
                shards = find_shards(store)
                raise click.UsageError(
                    f"to-tfrecord reads a Zarr store, and {plain(store)} matches {plural(len(shards), 'file')}: the "
                    f"command copy writes shards to other shards, with --where, --columns and --records-per-shard"
                )
        if errors != "raise" and not is_shard:
            raise click.UsageError(
                "--errors is for the records of shards, and this is a Zarr store: leave the option out."
            )
        reading: Any = {"message": message, "errors": errors}
        dataset = read_tfrecord(store, **reading) if is_shard else from_zarr(store, component=component)
        dataset = keep_where(dataset, where, columns)
        (begin or write_tfrecord)(dataset, target, message=message, **write_arguments(**arguments))


@tfrecord.command()
@pattern_argument()
@path_argument("target")
@options("features", "columns", "threads")
def virtual(
    pattern: str | list[str], target: str, features: str | None, columns: list[str] | None, threads: int
) -> None:
    """Write a Zarr store that refers to shards, without a copy.

    TARGET ends in .json or .parquet. It contains kerchunk references to ranges of records; zarr and xarray open them
    where this package is installed. Ragged rows in several chunks need zarr 3.2 or later with its setting
    array.rectilinear_chunks, as in ZARR_ARRAY__RECTILINEAR_CHUNKS=1.
    """
    from dask_tfrecord.rows.progress import show_immediately
    from dask_tfrecord.stores.virtual.references import JSON_SUFFIXES, PARQUET_SUFFIXES, check_target, virtual_zarr

    # Report a wrong target before all records are read.
    check_target(target, (*JSON_SUFFIXES, *PARQUET_SUFFIXES))
    start = time.perf_counter()
    with show_immediately(), computing(threads):
        found = virtual_zarr(pattern, features, columns=columns)
    (found.to_json if target.endswith(JSON_SUFFIXES) else found.to_parquet)(target)
    seconds = time.perf_counter() - start
    click.echo(
        f"Wrote {plain(target)}: references to {plural(found.nrecords, 'record')} of "
        f"{plural(len(found.arrays), 'feature')} in {seconds:.1f} s"
    )


for _each in COMMANDS.built_in.values():
    tfrecord.add_command(writer_command(_each))


@tfrecord.command("to-lerobot")
@pattern_argument()
@path_argument("target")
@options(
    *("split", "features", "sample", "columns", "where", "steps", "repeat", _lerobot("fps")),
    *(_lerobot("task"), "rename", _lerobot("robot_type"), "video", "images", "overwrite", "append_episodes"),
    *(_lerobot("resume"), "compression", "errors", "value_errors", "threads"),
)
def to_lerobot(
    *,
    pattern: str | list[str],
    target: str,
    explode: str | list[str],
    repeat: list[str] | None,
    images: bool,
    overwrite: bool,
    append: bool,
    threads: int,
    **given: Any,
) -> None:
    """Convert episodes to a LeRobot data set of format 3.0.

    TARGET is a directory with Parquet files of frames and episodes, metadata, statistics, and a video per camera. The
    features are found as in to-zarr. If you start a conversion with --resume and press Ctrl-C, run the same command
    again to continue. Needs pyarrow and av.

    --append adds the episodes to those in TARGET, or creates it if it does not exist. --fps, the columns and the
    encoder must be the same as in TARGET.
    """
    if overwrite and append:
        raise click.UsageError("--overwrite replaces the existing data set and --append adds to it: give one of them")
    if overwrite and given["resume"]:
        raise click.UsageError("--overwrite replaces the existing data set and --resume continues it: give one of them")
    arguments = {name: given.pop(name) for name in options_of(LeRobotOptions) if name in given}
    if images:
        arguments["video"] = None
    with writing(threads):
        dataset = open_rows(pattern, threads, **given)
        try:
            dataset = dataset.explode(explode, repeat=repeat or ())
        except UnknownFeatureError as error:
            raise click.UsageError(
                f"{plain(str(error))}. LeRobot has a row per frame: name the features that have a value per frame with "
                "--explode NAME,…"
            ) from None
        dataset.to_lerobot(target, **arguments, **({"mode": "a"} if append else write_arguments(overwrite)))
