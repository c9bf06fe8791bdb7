"""The commands: `dask-tfrecord …`, and the same as `dask tfrecord …` through dask's own command line.

Results go to stdout; progress and errors go to stderr. This module may import all others, and holds nothing that a
Python program would miss.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import click
import dask
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dask_tfrecord.arrays.counting import index_shards
from dask_tfrecord.arrays.folders import find_collection
from dask_tfrecord.arrays.progress import Bar, at_once
from dask_tfrecord.columns.report import Report
from dask_tfrecord.commands.common import (
    Commands,
    compression_of_shards,
    debug,
    many,
    pattern_argument,
    plain,
    split_option,
    threads_option,
)
from dask_tfrecord.commands.converting import to_zarr
from dask_tfrecord.commands.damage import repair, verify
from dask_tfrecord.commands.sampling import looked_at, sample_option
from dask_tfrecord.commands.virtual import virtual
from dask_tfrecord.commands.writing import copy, to_tfrecord
from dask_tfrecord.records.index import ShardIndex
from dask_tfrecord.records.sidecar import write_sidecars
from dask_tfrecord.storage.files import Shard, Shards, find_shards
from dask_tfrecord.storage.interrupt import interrupt_reading

__all__ = ["main", "tfrecord"]

# Where output goes to a file or a program, nothing is folded.
_WIDE = 1000

Result = TypeVar("Result")


@click.group(name="tfrecord", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dask-tfrecord")
@debug
def tfrecord() -> None:
    """TFRecord shards: what they hold, and conversion to Zarr.

    A PATTERN is a path, a URL, a directory, a glob such as 'train-*.tfrecord' (quoted, for natural order), or a
    template such as train@8.
    """


for command in (copy, repair, to_tfrecord, to_zarr, verify, virtual):
    tfrecord.add_command(command)


def main() -> None:
    """Run `dask-tfrecord`."""
    tfrecord(prog_name="dask-tfrecord")


@tfrecord.command()
@pattern_argument
@split_option
@sample_option(default="256")
@click.option("--spec", is_flag=True, help="Print the features as Python code, and nothing else.")
@click.option("--json", "as_json", is_flag=True, help="Print all that is found as JSON.")
@compression_of_shards
@threads_option
@debug
def info(
    *,
    pattern: str | list[str],
    split: str | None,
    sample: int | str,
    spec: bool,
    as_json: bool,
    compression: str | None,
    threads: int,
) -> None:
    """Say what shards hold: records, bytes, compression, features; with --split those that hold any of the split.

    Headers are read to count the records; features are inferred from the first records of some shards. What bytes look
    like is suggested where all that were looked at agree.
    """
    if spec and as_json:
        raise click.UsageError("--spec and --json are two forms of output: give one of them.")
    if split is None:
        shards = find_shards(pattern, compression=compression)
    else:
        shards = find_collection(pattern, split, compression=compression, storage_options=None).shards
    if spec:
        report = looked_at(shards, sample, threads)
        if not report.features:
            # There is no code to print, and that is why.
            report.schema  # noqa: B018
        click.echo(report.spec())
        return
    indexes = _scan(shards, threads)
    holds = any(index.count for index in indexes)
    if as_json:
        found = looked_at(shards, sample, threads) if holds else None
        click.echo(json.dumps(_document(shards, indexes, found), ensure_ascii=False))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    console.print(_facts(shards, indexes))
    if holds:
        report = looked_at(shards, sample, threads)
        console.print(Text(f"\n{_source(report)}\n", "bold"))
        console.print(_features(report))
        for conflict in report.conflicts:
            console.print(f"\n{plain(conflict.name)} has values of several kinds:", markup=False)
            for kind in conflict.kinds:
                console.print(f"  {plain(str(kind))}", markup=False)


@tfrecord.command()
@pattern_argument
@compression_of_shards
@threads_option
@debug
def index(pattern: str | list[str], compression: str | None, threads: int) -> None:
    """Write the index of each shard beside it, so that opening need not read the shards.

    FILE.idx has the format of DALI's and vahidk's tfrecord2idx: a line for each record, its byte and its length. For
    gzip, FILE.gzidx holds places where inflating can begin; that takes indexed_gzip.
    """
    start = time.perf_counter()
    written = _each(write_sidecars, find_shards(pattern, compression=compression), threads, "Indexing")
    seconds = time.perf_counter() - start
    files, records = sum(len(each.paths) for each in written), sum(each.count for each in written)
    click.echo(f"Wrote {many(files, 'file')}: the places of {many(records, 'record')} in {seconds:.1f} s")


def _scan(shards: Shards, threads: int) -> list[ShardIndex]:
    """Count the records of every shard, of a large one in parts."""
    with dask.config.set(scheduler="threads", num_workers=threads):
        return index_shards(shards, sidecars=False)[1]


def _each(function: Callable[[Shard], Result], shards: Shards, threads: int, what: str) -> list[Result]:
    """Call a function with every shard, and show how far it is."""
    pool = ThreadPoolExecutor(threads)
    try:
        results = []
        with at_once(), Bar(what, len(shards)) as bar:
            for result in pool.map(function, shards):
                results.append(result)
                bar.advance()
        return results
    except KeyboardInterrupt:
        interrupt_reading()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _facts(shards: Shards, indexes: Sequence[ShardIndex]) -> Text:
    """Tell what is known without looking into records."""
    counts = [index.count for index in indexes]
    stored, inflated = int(shards.sizes.sum()), sum(index.nbytes for index in indexes)
    found = Counter(index.compression or "none" for index in indexes).most_common()
    facts = {
        "shards": f"{len(shards):,}",
        "records": f"{sum(counts):,}" + (f", {_range(counts)} per shard" if len(shards) > 1 else ""),
        "bytes": f"{stored:,}" + (f", {inflated:,} inflated" if inflated != stored else ""),
        "compression": ", ".join(f"{name} ({many(number, 'shard')})" if found[1:] else name for name, number in found),
    }
    lines = (Text.assemble((f"{name:<13}", "bold"), value) for name, value in facts.items())
    return Text("\n").join(lines)


def _document(shards: Shards, indexes: Sequence[ShardIndex], report: Report | None) -> dict[str, Any]:
    """Put what is known into JSON values."""
    return {
        "shards": [
            {"path": path, "records": index.count, "bytes": size, "inflated": index.nbytes, "compression": compression}
            for path, size, index in zip(shards.paths, shards.sizes.tolist(), indexes, strict=True)
            for compression in [index.compression]
        ],
        "report": None if report is None else json.loads(report.to_json()),
        "spec": None if report is None else report.spec(),
    }


def _source(report: Report) -> str:
    """Say what features were inferred from."""
    found = f"{many(sum(bool(feature.kinds) for feature in report.features), 'feature')}, inferred from "
    what = "record" if report.message == "Example" else report.message
    return f"{found}{many(report.records, what)} of {many(report.shards, 'shard')}"


def _features(report: Report) -> Table:
    """Show what was found, a feature per row."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("feature", overflow="fold")
    for header in ("class", "dtype", "shape", "present", "values"):
        table.add_column(header, no_wrap=True)
    table.add_column("looks like", overflow="fold")
    for row, feature in zip(report.rows(), report.features, strict=True):
        name, kind, present, values, looks = map(plain, row)
        known = feature.feature
        cells = ("(several kinds)" if feature.kinds else "(never set)", kind if feature.kinds else "", "")
        if known is not None:
            cells = (type(known).__name__, str(known.dtype), str(known.shape))
        table.add_row(Text(name, "cyan"), *map(Text, (*cells, present, values, looks)))
    return table


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
