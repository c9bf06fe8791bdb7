"""Output of `info` and `schema`: facts about shards and tables of their features, as text and as JSON values."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from dask_tfrecord.cli.command_options import output, plain
from dask_tfrecord.errors import for_commands, joined, plural, redact_url, span
from dask_tfrecord.features.code import schema_code
from dask_tfrecord.features.inference.report import FeatureReport, Report
from dask_tfrecord.features.schema import Schema, feature_cells, group_lines
from dask_tfrecord.markup import stack_columns
from dask_tfrecord.records.shard_check import ShardReport
from dask_tfrecord.shards.shard import Shards

_HEADER = ("feature", "class", "dtype", "shape", "present", "values", "looks like")
# Class names that a table lists.
_MOST_NAMES = 5


def print_facts(shards: Shards, reports: Sequence[ShardReport], more: Mapping[str, str]) -> None:
    """Print the numbers of shards, records and bytes, the compression, and more facts."""
    counts = [each.records for each in reports]
    stored, inflated = int(shards.sizes.sum()), sum(each.nbytes for each in reports)
    found = Counter(each.compression or "none" for each in reports).most_common()
    facts = {
        "shards": f"{len(shards):,}",
        "records": f"{sum(counts):,}" + (f", {span(min(counts), max(counts))} per shard" if len(shards) > 1 else ""),
        "bytes": f"{stored:,}" + (f", {inflated:,} inflated" if inflated != stored else ""),
        "compression": ", ".join(
            f"{name} ({plural(number, 'shard')})" if found[1:] else name for name, number in found
        ),
        **more,
    }
    lines = (Text.assemble((f"{name:<13}", "bold"), value) for name, value in facts.items())
    _print(output(), Text("\n").join(lines))


def print_report(report: Report) -> None:
    """Print the features of a report, as a table where the terminal is wide enough."""
    console = output()
    title = _source_text(report) if report.refusal is None else f"The first record is a {report.message}"
    header, rows = report.table()
    if report.refusal is None and report.message_type is None:
        header, rows = _HEADER, [_feature_cells(row, each) for row, each in zip(rows, report.features, strict=True)]
    _print(console, Text(f"\n{title}\n", "bold"))
    _print_table(console, header, [tuple(map(plain, row)) for row in rows])
    if notes := report.notes():
        _print(console, Text("\n" + "\n".join(plain(for_commands(line)) for line in notes)))


def print_schema(schema: Schema) -> None:
    """Print the features of a schema, with the numbers of sampled records that set them and the class names."""
    console = output()
    header: tuple[str, ...] = ("feature", "class", "dtype", "shape", "present", "class names")
    rows = []
    for row in schema.rows():
        names = schema.classes.get(row[0], ())
        rows.append((*map(plain, row), plain(f"{len(names):,}: {joined(names, _MOST_NAMES)}") if names else ""))
    kept = [column for column in range(len(header)) if column < 4 or any(row[column] for row in rows)]
    header = tuple(header[column] for column in kept)
    _print_table(console, header, [tuple(row[column] for column in kept) for row in rows])
    for line in group_lines(schema):
        _print(console, Text(plain(line)))


def document(shards: Shards, reports: Sequence[ShardReport], found: Report | Schema | None) -> dict[str, Any]:
    """Return facts, and a report or the schema of metadata as JSON values."""
    report = found if isinstance(found, Report) else None
    spec = None if report is None or report.refusal is not None else report.spec()
    return {
        "shards": [
            {"path": redact_url(path), "records": each.records, "bytes": size, "inflated": each.nbytes}
            | {"compression": each.compression, "lost": [asdict(lost) for lost in each.lost]}
            for path, size, each in zip(shards.paths, shards.sizes.tolist(), reports, strict=True)
        ],
        "report": None if report is None else json.loads(report.to_json()),
        "schema": json.loads(found.to_json()) if isinstance(found, Schema) else None,
        "spec": schema_code(found) if isinstance(found, Schema) else spec,
    }


def _print(console: Console, text: Text) -> None:
    # The terminal wraps long lines, so that a path or a name can be selected and copied whole.
    console.print(text, soft_wrap=True)


def _source_text(report: Report) -> str:
    """Return the number of features and of the records that they were inferred from."""
    found = f"{plural(sum(bool(feature.kinds) for feature in report.features), 'feature')}, inferred from "
    what = "record" if report.message == "Example" else report.message
    if report.message_type is not None:
        found = f"{plural(len(report.features), 'field')} of {report.message}, seen in "
        what = "record"
    return f"{found}{plural(report.records, what)} of {plural(report.shards, 'shard')}"


def _feature_cells(row: Sequence[str], feature: FeatureReport) -> tuple[str, ...]:
    """Return the cells of one feature, in the order of the header."""
    name, kind, present, values, looks = row
    cells = ("(several kinds)" if feature.kinds else "(never set)", kind if feature.kinds else "", "")
    if (known := feature.feature) is not None:
        cells = feature_cells(known)
    return (name, *cells, present, values, looks)


def _print_table(console: Console, header: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    """Print one line per feature, or several where the terminal is too narrow."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title in header:
        table.add_column(title, no_wrap=True)
    for name, *cells in rows:
        table.add_row(Text(name, "cyan"), *map(Text, cells))
    needed = Measurement.get(console, console.options.update(width=sys.maxsize), table).maximum
    if needed <= console.width:
        console.print(table)
        return
    for line in stack_columns(header, rows, console.width, apart=[len(header) - 1]):
        name, gap, rest = line.partition("  ")
        _print(console, Text.assemble((name, "" if line.startswith((" ", "─")) else "cyan"), gap, rest))
