"""A preview as text for a terminal: pictures in half blocks, and tables of the width of the terminal."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from rich import box
from rich.cells import cell_len
from rich.color import Color
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from dask_tfrecord.stores.preview.preview_cells import Cell, Picture, PreviewContent, Spark, averaged
from dask_tfrecord.stores.preview.preview_html import captions

__all__ = ["rich_preview", "text_preview"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 16
# Spaces between columns of a table.
_APART = 3
# Columns of a picture of the contact sheet, and letters of a cell of the table.
_PICTURE_WIDTH = 18
_CELL_WIDTH = 32


def text_preview(preview: PreviewContent, width: int) -> str:
    """Return a preview as text without colours, in lines of at most `width` letters."""
    with io.StringIO() as file:
        # Without force_jupyter=False, rich would display the text in a notebook and leave the file empty.
        console = Console(
            file=file, width=max(width, 20), color_system=None, highlight=False, emoji=False, force_jupyter=False
        )
        console.print(rich_preview(preview))
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def rich_preview(preview: PreviewContent, pictures: bool = True) -> Group:
    """Return a preview for rich: pictures if the terminal has colours, then all cells."""
    parts: list[Any] = [Text(preview.title, "bold", overflow="fold")]
    return Group(*parts, *([_ContactSheet(preview)] if pictures else []), _Cells(preview))


class _Cells:
    """Cells of all columns, in as many tables as the width requires."""

    def __init__(self, preview: PreviewContent) -> None:
        self.preview = preview

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        preview, numbers = self.preview, len(str(max(0, self.preview.nrows - 1)))
        limit = max(1, min(_CELL_WIDTH, options.max_width - numbers - _APART))
        texts = [[_text(cell) for cell in column.cells] for column in preview.columns]
        widths = [
            min(limit, max(map(cell_len, [column.name, column.about, *cells])))
            for column, cells in zip(preview.columns, texts, strict=True)
        ]
        start = 0
        while start < len(widths):
            stop, left = start, options.max_width - numbers
            while stop == start or (stop < len(widths) and left >= widths[stop] + _APART):
                left -= widths[stop] + _APART
                stop += 1
            yield self._table(texts, widths, range(start, stop))
            if stop < len(widths):
                yield Text()
            start = stop

    def _table(self, texts: list[list[str]], widths: list[int], columns: range) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        table.add_column("", no_wrap=True, justify="right", style="dim")
        for number in columns:
            column = self.preview.columns[number]
            title = Text.assemble((column.name, "cyan"), "\n", (column.about, "dim"), overflow="ellipsis", no_wrap=True)
            side: JustifyMethod = "right" if column.right else "left"
            table.add_column(title, no_wrap=True, justify=side, width=widths[number])
        for row in range(self.preview.nrows):
            cells = (Text(texts[number][row], overflow="ellipsis", no_wrap=True) for number in columns)
            table.add_row(str(row), *cells)
        return table


class _ContactSheet:
    """Pictures in half blocks: each letter displays two pixels. Nothing without colours."""

    def __init__(self, preview: PreviewContent) -> None:
        self.preview = preview

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        tiles = [
            (picture, " ".join([str(row), *(text for _, text in captions(self.preview.columns, row))]))
            for row in range(self.preview.nrows)
            for column in self.preview.columns
            if isinstance(cell := column.cells[row], tuple)
            for picture in cell
        ]
        if console.color_system is None or not tiles:
            return
        each = max(1, (options.max_width + 2) // (_PICTURE_WIDTH + 2))
        for start in range(0, len(tiles), each):
            line = tiles[start : start + each]
            drawn = [_half_blocks(picture) for picture, _ in line]
            for number in range(max(map(len, drawn))):
                for rows in drawn:
                    yield from rows[number] if number < len(rows) else [Segment(" " * _PICTURE_WIDTH)]
                    yield Segment("  ")
                yield Segment.line()
            for _, caption in line:
                text = Text(caption, "dim")
                text.truncate(_PICTURE_WIDTH, overflow="ellipsis", pad=True)
                yield Segment(text.plain + "  ")
            yield Segment.line()


def _half_blocks(picture: Picture) -> list[list[Segment]]:
    """Return lines of segments: the upper pixel is the colour of the letter, the lower that of the background."""
    pixels = picture.pixels
    height, width = pixels.shape[:2]
    wide = _PICTURE_WIDTH if width >= height else max(1, _PICTURE_WIDTH * width // height)
    high = max(1, wide * height // width)
    if high <= height and wide <= width:
        pixels = averaged(pixels, high, wide)
    else:
        pixels = pixels[(np.arange(high) * height // high)[:, None], np.arange(wide) * width // wide]
    colours = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels[..., :3]
    lines = []
    for top in range(0, high, 2):
        line = []
        for column in range(wide):
            lower = Color.from_rgb(*colours[top + 1, column]) if top + 1 < high else None
            line.append(Segment("▀", Style(color=Color.from_rgb(*colours[top, column]), bgcolor=lower)))
        lines.append([*line, Segment(" " * (_PICTURE_WIDTH - wide))])
    return lines


def _text(cell: Cell) -> str:
    if isinstance(cell, Spark):
        return f"{_spark(cell.values)} {cell.text}"
    if isinstance(cell, tuple):
        return ", ".join(picture.text for picture in cell)
    return cell


def _spark(values: Sequence[float]) -> str:
    """Draw numbers as blocks of eight heights; spaces are gaps."""
    if len(values) > _SPARK_WIDTH:
        edges = [number * len(values) // _SPARK_WIDTH for number in range(_SPARK_WIDTH + 1)]
        values = [sum(value / (stop - start) for value in values[start:stop]) for start, stop in pairwise(edges)]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return " " * len(values)
    low, high = min(finite), max(finite)
    levels = ((value / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5 for value in values)
    return "".join(_BLOCKS[min(7, int(level * 8))] if math.isfinite(level) else " " for level in levels)
