"""A data set as text and as HTML, for people."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dask_tfrecord.arrays.dataset import Dataset

__all__ = ["html_table", "many", "text_table"]

_LONGEST = 100
_HEADER = ("column", "dtype", "shape", "read as")


def many(number: int, noun: str) -> str:
    """Write a number of things."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def text_table(dataset: Dataset) -> str:
    """One line on the whole, one per column."""
    table = [_HEADER, *_rows(dataset)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    return "\n".join([_title(dataset), *(f"  {line.rstrip()}" for line in lines)])


def html_table(dataset: Dataset) -> str:
    """Say the same in an HTML table."""

    def row(cells: tuple[str, ...], tag: str) -> str:
        style = ' style="text-align: left"'
        return "<tr>" + "".join(f"<{tag}{style}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(row(cells, "td") for cells in _rows(dataset))
    return (
        f"<div><p>{escape(_title(dataset))}</p><table><thead>{row(_HEADER, 'th')}</thead><tbody>{body}</tbody></table>"
        f"</div>"
    )


def _title(dataset: Dataset) -> str:
    rows = "unknown number of" if dataset.nrecords is None else f"{dataset.nrecords:,}"
    title = f"<dask_tfrecord.Dataset: {rows} record{'' if dataset.nrecords == 1 else 's'}"
    title += f" in {dataset.npartitions:,} chunk{'' if dataset.npartitions == 1 else 's'}"
    if dataset.nrecords is not None:
        sizes = np.asarray(dataset.chunks, np.int64)
        low, high = int(sizes.min()), int(sizes.max())
        title += f" of {low:,}" if low == high else f" of {low:,} to {high:,}"
    return f"{title}, {_files(dataset.origin)}>"


def _files(origin: Mapping[str, object]) -> str:
    files = origin.get("files")
    if not isinstance(files, list):
        return f"from {origin.get('store', 'memory')}"
    return f"from {files[0]}" if len(files) == 1 else f"from {len(files):,} files"


def _rows(dataset: Dataset) -> list[tuple[str, str, str, str]]:
    rows: str = "n" if dataset.nrecords is None else str(dataset.nrecords)
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
