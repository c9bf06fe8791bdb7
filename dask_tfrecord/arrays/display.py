"""A data set as text and as HTML, for people."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Protocol

import numpy as np

from dask_tfrecord.errors import plural, printable
from dask_tfrecord.markup import html_table
from dask_tfrecord.schema import Schema, align_columns, group_lines

_LONGEST = 100
_INDENT = "    "
# Code of features that a hint names, and how many of them.
_DECODED = ("dtf.ImageFeature", "dtf.TensorFeature")
_MOST_HINTS = 3
# Columns whose chunks are drawn, the number up to which they are visible at once, and dask's size of a drawing.
_MOST_PICTURES = 24
_OPEN_PICTURES = 8
_PICTURE = 90
_HEADER = ("column", "dtype", "shape", "read as")


class _Displayed(Protocol):
    """Properties of a `Dataset` that its tables show."""

    @property
    def schema(self) -> Schema: ...

    @property
    def nrows(self) -> int | None: ...

    @property
    def npartitions(self) -> int: ...

    @property
    def chunks(self) -> Any: ...

    @property
    def origin(self) -> Mapping[str, object]: ...


def text_dataset(dataset: _Displayed) -> str:
    """Describe a data set as text: a title, a line per column, and a hint if there is one."""
    lines = [*align_columns([_HEADER, *_rows(dataset)]), *group_lines(dataset.schema), *_hints(dataset)]
    return "\n".join([_title(dataset), *(f"  {line}" for line in lines)])


def html_dataset(dataset: _Displayed) -> str:
    """Describe a data set as `text_dataset` does, in HTML, with dask's picture of the chunks of each column."""
    notes = [*group_lines(dataset.schema), *_hints(dataset)]
    return html_table(_title(dataset), _HEADER, _rows(dataset), notes, more=_chunk_pictures(dataset))


def _chunk_pictures(dataset: _Displayed) -> str:
    """Draw the chunks of each column, as dask does for an array; empty if rows are not counted, or there are none."""
    if not dataset.nrows or not dataset.schema:
        return ""
    from dask.array.svg import svg

    rows, figures = tuple(map(int, dataset.chunks)), []
    for name, feature in list(dataset.schema.items())[:_MOST_PICTURES]:
        shape = (dataset.nrows, *feature.block_shape)
        # dask draws no axis of length 0.
        picture = svg((rows, *((size,) for size in feature.block_shape)), size=_PICTURE) if all(shape) else ""
        figures.append(f"<figure><figcaption>{escape(printable(name))}</figcaption>{picture}</figure>")
    left = len(dataset.schema) - len(figures)
    rest = f"<p>{plural(left, 'more column')}</p>" if left else ""
    state = " open" if len(figures) <= _OPEN_PICTURES else ""
    return f'<details{state}><summary>chunks</summary><div class="dtf-chunks">{"".join(figures)}</div>{rest}</details>'


def stack_columns(header: Sequence[str], rows: Sequence[Sequence[str]], width: int, apart: Sequence[int]) -> list[str]:
    """Lay a table out for a terminal that is narrower than the table.

    The first cell of a row stands above the others, which are indented and aligned. No cell is cut or broken within a
    word, so only a single word that is too long makes a line longer than `width`.

    Parameters
    ----------
    header : sequence of str
        Names of the columns.
    rows : sequence of sequence of str
        Cells.
    width : int
        Columns of the terminal.
    apart : sequence of int
        Columns of long text: each has lines of its own, which begin with its name.

    Returns
    -------
    list of str
        Lines: those of the header, a rule, those of the rows.
    """
    header, *rows = table = [list(map(printable, row)) for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    groups: list[list[int]] = []
    left = 0
    for column in range(1, len(header)):
        if column in apart:
            continue
        if not groups or widths[column] > left:
            groups.append([])
            left = width - len(_INDENT)
        groups[-1].append(column)
        left -= widths[column] + 2
    lines = []
    for row in table:
        aligned = ("  ".join(row[column].ljust(widths[column]) for column in group).rstrip() for group in groups)
        lines += [row[0], *(f"{_INDENT}{line}" for line in aligned if line)]
        if row is header:
            lines.append("─" * width)
            continue
        for column in apart:
            text = f"{header[column]} {row[column]}" if row[column] else ""
            wrapped = textwrap.wrap(text, width - len(_INDENT), break_long_words=False, break_on_hyphens=False)
            lines += [f"{_INDENT}{line}" for line in wrapped]
    return lines


def _title(dataset: _Displayed) -> str:
    rows = "unknown number of rows" if dataset.nrows is None else plural(dataset.nrows, "row")
    title = f"<dask_tfrecord.Dataset: {rows} in {plural(dataset.npartitions, 'chunk')}"
    if dataset.nrows is not None:
        sizes = np.asarray(dataset.chunks, np.int64)
        low, high = int(sizes.min()), int(sizes.max())
        title += f" of {low:,}" if low == high else f" of {low:,} to {high:,}"
    return f"{title}, {_files(dataset.origin)}>"


def _files(origin: Mapping[str, object]) -> str:
    files = origin.get("files")
    if not isinstance(files, list):
        return printable(f"from {origin.get('store', 'memory')}")
    return printable(f"from {files[0]}") if len(files) == 1 else f"from {plural(len(files), 'file')}"


def _hints(dataset: _Displayed) -> list[str]:
    """Return a line with the features that decode bytes in which inference recognised images or tensors, if any."""
    schema, report = dataset.schema, dataset.schema.report
    if report is None:
        return []
    found = [
        (feature.name, suggestion)
        for feature in report.features
        for suggestion in feature.suggestions
        if schema.get(feature.name) == feature.feature and (suggestion.feature or "").startswith(_DECODED)
    ]
    if not found:
        return []
    held = ", ".join(f"{name!r} holds {suggestion.what}" for name, suggestion in found[:_MOST_HINTS])
    spec = ", ".join(f"{name!r}: {suggestion.feature}" for name, suggestion in found[:_MOST_HINTS])
    rest = ", …" if len(found) > _MOST_HINTS else ""
    given = f"{spec}{rest} in features=" if report.sequences else f"features={{**ds.schema, {spec}{rest}}}"
    return [f"hint: {held}{rest}; decode with {given}"]


def _rows(dataset: _Displayed) -> list[tuple[str, str, str, str]]:
    rows: str = "n" if dataset.nrows is None else str(dataset.nrows)
    table, schema = [], dataset.schema
    for name, feature in schema.items():
        shape = f"({', '.join([rows, *map(str, feature.block_shape)])}{',' if not feature.block_shape else ''})"
        dtype = "text" if isinstance(feature.block_dtype, np.dtypes.StringDType) else str(feature.block_dtype)
        read_as = repr(feature)
        if len(read_as) > _LONGEST:  # defaults may be whole arrays
            read_as = f"{read_as[: _LONGEST - 1]}…"
        if name in schema.classes:
            read_as += f", {len(schema.classes[name]):,} classes"
        table.append((name, dtype, shape, read_as))
    return table
