"""A preview as HTML: figures of pictures with captions, and a table with spark-lines."""

from __future__ import annotations

import base64
import re
from html import escape

from dask_tfrecord.images.encode_image import encode_png
from dask_tfrecord.markup import fragment, spark_svg, table
from dask_tfrecord.stores.preview.preview_cells import Cell, Picture, PreviewColumn, PreviewContent, Spark

__all__ = ["captions", "displayed_size", "html_preview", "short_name"]

# Pixels of the longer side of a picture on the page.
_SIDE = 128
_MOST_CAPTION = 60
_SHORT = 36
# Names of integers that describe a picture better than others.
_LABEL = re.compile("label|class", re.IGNORECASE)


def html_preview(preview: PreviewContent) -> str:
    """Format a preview as one HTML element without references to other files."""
    pictures = [column for column in preview.columns if column.role == "picture"]
    others = [column for column in preview.columns if column.role != "picture"]
    parts = [f'<p class="dtf-title">{escape(preview.title)}</p>']
    if pictures:
        notes = "; ".join(f"{column.name}: {column.about}" for column in pictures)
        figures = "".join(_figure(preview, pictures, row) for row in range(preview.nrows))
        parts += [f'<p class="dtf-note">{escape(notes)}</p>', f'<div class="dtf-sheet">{figures}</div>']
    if others:
        header = ["", *(f"{escape(column.name)}<br><small>{escape(column.about)}</small>" for column in others)]
        rows = [[str(row), *(_cell(column.cells[row]) for column in others)] for row in range(preview.nrows)]
        right = [0, *(number for number, column in enumerate(others, 1) if column.right)]
        parts.append(table(header, rows, right))
    return fragment(*parts)


def captions(columns: tuple[PreviewColumn, ...], row: int) -> list[tuple[str, str]]:
    """Return the names and values below the pictures of a row: classes, else an integer, and a text."""
    labels = [column for column in columns if column.role == "class"]
    integers = [column for column in columns if column.role == "integer"]
    labels = labels or sorted(integers, key=lambda column: not _LABEL.search(column.name))[:1]
    chosen = [*labels, *[column for column in columns if column.role == "text"][:1]]
    found = [(short_name(column.name, columns), str(column.cells[row])) for column in chosen]
    return [(name, text if len(text) <= _MOST_CAPTION else f"{text[: _MOST_CAPTION - 1]}…") for name, text in found]


def short_name(name: str, columns: tuple[PreviewColumn, ...]) -> str:
    """Return the end of a nested name that differs from the ends of the other names: captions are narrow."""
    parts = name.split("/")
    ends = ("/".join(parts[first:]) for first in range(len(parts) - 1, 0, -1))
    names = [f"/{column.name}" for column in columns]
    return next((end for end in ends if end and sum(each.endswith(f"/{end}") for each in names) == 1), name)


def displayed_size(picture: Picture, side: int) -> tuple[int, int]:
    """Return the width and height of a picture whose longer side has up to `side` pixels; small pixels are repeated."""
    height, width = picture.pixels.shape[:2]
    longer = max(height, width)
    if longer <= side:
        return width * (side // longer), height * (side // longer)
    return max(1, width * side // longer), max(1, height * side // longer)


def _figure(preview: PreviewContent, columns: list[PreviewColumn], row: int) -> str:
    parts = []
    for column in columns:
        cell = column.cells[row]
        pictures = cell if isinstance(cell, tuple) else ()
        parts += [_image(picture, f"{column.name} of row {row}") for picture in pictures]
        name = f"{short_name(column.name, preview.columns)} " if len(columns) > 1 else ""
        text = ", ".join(dict.fromkeys(picture.text for picture in pictures)) if pictures else str(cell)
        parts.append(f"<small>{escape(name + text)}</small><br>")
    lines = [f"<small>{escape(name)}</small> {escape(value)}" for name, value in captions(preview.columns, row)]
    caption = "<br>".join([f"<b>{row}</b>", *lines]) if not lines else f"<b>{row}</b> {'<br>'.join(lines)}"
    return f"<figure>{''.join(parts)}<figcaption>{caption}</figcaption></figure>"


def _image(picture: Picture, description: str) -> str:
    width, height = displayed_size(picture, _SIDE)
    data = base64.b64encode(encode_png(picture.pixels)).decode("ascii")
    smooth = ' class="dtf-smooth"' if picture.pixels.shape[1] > width else ""
    return (
        f'<img{smooth} width="{width}" height="{height}" alt="{escape(description)}" '
        f'title="{escape(f"{description}: {picture.text}")}" src="data:image/png;base64,{data}">'
    )


def _cell(cell: Cell) -> str:
    if isinstance(cell, Spark):
        return f'{spark_svg(cell.values)}<small class="dtf-short">{escape(cell.text)}</small>'
    text = str(cell)
    # A short value stays on one line; a long text has room for some words in each line.
    return f'<div class="{"dtf-short" if len(text) <= _SHORT else "dtf-long"}">{escape(text)}</div>'
