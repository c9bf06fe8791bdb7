"""`Preview`: first rows displayed as HTML, as text for terminals and as PNG; and rows as lines of JSON."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.cells import cell_len
from rich.color import Color
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from dask_tfrecord.arrays.collection import checked_number
from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.errors import plural, printable
from dask_tfrecord.images.pixels import encode_png
from dask_tfrecord.inspection.content_detection import is_probably_text
from dask_tfrecord.markup import fragment, page, spark_runs, spark_svg, table
from dask_tfrecord.preview.cells import Cell, Picture, PreviewColumn, Spark, averaged, preview_columns

# Pixels of the longer side of a picture in HTML and PNG, letters of a caption, and of a cell on one line.
_SIDE = 128
_MOST_CAPTION = 60
_SHORT = 36
# Names of integers that describe a picture better than others.
_LABEL = re.compile("label|class", re.IGNORECASE)
_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 16
# Spaces between columns of a table.
_APART = 3
# Columns of a picture of the contact sheet, and letters of a cell of the table.
_PICTURE_WIDTH = 18
_CELL_WIDTH = 32
# Of the PNG, in pixels.
_WIDTH = 1200
_MARGIN = 16
_GAP = 16
_LINE = 18
_SIZE = 13
_COLUMN = 260
_SPARK = (120, 14)
_TEXT, _MUTED, _RULE, _ACCENT, _PAPER = "#1f2328", "#59636e", "#d1d9e0", "#0969da", "#ffffff"
_FONTS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "arial.ttf")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Preview:
    """First rows of a `Dataset`. Notebooks display it as HTML, `print` as text for the width of the terminal.

    Attributes
    ----------
    nrows : int
        Number of rows.
    title : str
        Number of rows, and the origin.
    columns : tuple of PreviewColumn
        Cells of each column.
    """

    nrows: int
    title: str
    columns: tuple[PreviewColumn, ...]

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write one self-contained HTML file, in the light or dark colours that the reader's browser prefers."""
        Path(path).write_text(page(self.title, self._repr_html_()), "utf-8")

    def to_png(self, path: str | os.PathLike[str]) -> None:
        """Write a PNG: the contact sheet of the pictures, and the table of all other columns.

        Raises
        ------
        ImportError
            If Pillow is not installed (the extra ``image``).
        """
        Path(path).write_bytes(_draw(self))

    def _repr_html_(self) -> str:
        return _html(self)

    def __rich__(self) -> Any:
        return rich_preview(self)

    def __str__(self) -> str:
        return _text_of(self, shutil.get_terminal_size().columns)

    def __repr__(self) -> str:
        return str(self)


def preview_dataset(dataset: Dataset, n: int) -> Preview:
    """Read the first rows of a data set for display; `Dataset.preview` documents it."""
    nrows, columns = preview_columns(dataset, checked_number("n", n))
    whole = "an unknown number of records" if dataset.nrows is None else plural(dataset.nrows, "record")
    return Preview(nrows, printable(f"First {nrows:,} of {whole}{_origin(dataset)}"), columns)


def _origin(dataset: Dataset) -> str:
    files = dataset.origin.get("files")
    if isinstance(files, list) and files:
        return f" of {files[0]}" if len(files) == 1 else f" of {plural(len(files), 'file')}"
    return f" of {dataset.origin['store']}" if "store" in dataset.origin else ""


def _divided(preview: Preview) -> tuple[list[PreviewColumn], list[PreviewColumn]]:
    """Return the columns of pictures, and the others."""
    pictures = [column for column in preview.columns if column.role == "picture"]
    return pictures, [column for column in preview.columns if column.role != "picture"]


def _captions(columns: tuple[PreviewColumn, ...], row: int) -> list[tuple[str, str]]:
    """Return the names and values below the pictures of a row: classes, else an integer, and a text."""
    labels = [column for column in columns if column.role == "class"]
    integers = [column for column in columns if column.role == "integer"]
    labels = labels or sorted(integers, key=lambda column: not _LABEL.search(column.name))[:1]
    chosen = [*labels, *[column for column in columns if column.role == "text"][:1]]
    found = [(_short_name(column.name, columns), str(column.cells[row])) for column in chosen]
    return [(name, text if len(text) <= _MOST_CAPTION else f"{text[: _MOST_CAPTION - 1]}…") for name, text in found]


def _short_name(name: str, columns: tuple[PreviewColumn, ...]) -> str:
    """Return the end of a nested name that differs from the ends of the other names: captions are narrow."""
    parts = name.split("/")
    ends = ("/".join(parts[first:]) for first in range(len(parts) - 1, 0, -1))
    names = [f"/{column.name}" for column in columns]
    return next((end for end in ends if end and sum(each.endswith(f"/{end}") for each in names) == 1), name)


def _displayed_size(picture: Picture) -> tuple[int, int]:
    """Return the width and height of a picture in HTML and PNG: small pixels are repeated."""
    height, width = picture.pixels.shape[:2]
    longer = max(height, width)
    if longer <= _SIDE:
        return width * (_SIDE // longer), height * (_SIDE // longer)
    return max(1, width * _SIDE // longer), max(1, height * _SIDE // longer)


# ----------------------------------------------------------------------------------------------------------------- HTML


def _html(preview: Preview) -> str:
    """Format a preview as one HTML element without references to other files."""
    pictures, others = _divided(preview)
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


def _figure(preview: Preview, columns: list[PreviewColumn], row: int) -> str:
    parts = []
    for column in columns:
        cell = column.cells[row]
        pictures = cell if isinstance(cell, tuple) else ()
        parts += [_image(picture, f"{column.name} of row {row}") for picture in pictures]
        name = f"{_short_name(column.name, preview.columns)} " if len(columns) > 1 else ""
        text = ", ".join(dict.fromkeys(picture.text for picture in pictures)) if pictures else str(cell)
        parts.append(f"<small>{escape(name + text)}</small><br>")
    lines = [f"<small>{escape(name)}</small> {escape(value)}" for name, value in _captions(preview.columns, row)]
    caption = "<br>".join([f"<b>{row}</b>", *lines]) if not lines else f"<b>{row}</b> {'<br>'.join(lines)}"
    return f"<figure>{''.join(parts)}<figcaption>{caption}</figcaption></figure>"


def _image(picture: Picture, description: str) -> str:
    width, height = _displayed_size(picture)
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


# ----------------------------------------------------------------------------------------------------------------- text


def _text_of(preview: Preview, width: int) -> str:
    """Return a preview as text without colours, in lines of at most `width` letters."""
    with io.StringIO() as file:
        # Without force_jupyter=False, rich would display the text in a notebook and leave the file empty.
        console = Console(
            file=file, width=max(width, 20), color_system=None, highlight=False, emoji=False, force_jupyter=False
        )
        console.print(rich_preview(preview))
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def rich_preview(preview: Preview, pictures: bool = True) -> Group:
    """Return a preview for rich: pictures if the terminal has colours, then all cells."""
    parts: list[Any] = [Text(preview.title, "bold", overflow="fold")]
    return Group(*parts, *([_ContactSheet(preview)] if pictures else []), _Cells(preview))


class _Cells:
    """Cells of all columns, in as many tables as the width requires."""

    def __init__(self, preview: Preview) -> None:
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

    def __init__(self, preview: Preview) -> None:
        self.preview = preview

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        tiles = [
            (picture, " ".join([str(row), *(text for _, text in _captions(self.preview.columns, row))]))
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


# ------------------------------------------------------------------------------------------------------------------ PNG


def _draw(preview: Preview) -> bytes:
    """Draw a preview as PNG, with Pillow: a contact sheet and a table."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise ImportError("drawing a PNG needs Pillow: pip install 'dask-tfrecord[image]'", name="PIL") from error
    sheet = _Canvas(Image, _font(ImageFont))
    sheet.text(_MARGIN, _MARGIN, preview.title, _WIDTH - 2 * _MARGIN)
    top = _MARGIN + 2 * _LINE
    pictures, others = _divided(preview)
    if pictures and preview.nrows:
        top = _draw_pictures(sheet, preview, pictures, top)
    if others:
        top = _draw_table(sheet, preview.nrows, others, top)
    image = Image.new("RGB", (_WIDTH, top + _MARGIN), _PAPER)
    draw = ImageDraw.Draw(image)
    for step in sheet.steps:
        step(image, draw)
    file = io.BytesIO()
    image.save(file, "png", optimize=True)
    return file.getvalue()


def _font(fonts: Any) -> Any:
    """Return a font of the system that has many alphabets, or Pillow's own, which has few letters beyond ASCII."""
    for name in _FONTS:
        try:
            return fonts.truetype(name, _SIZE)
        except OSError:
            continue
    return fonts.load_default(_SIZE)


class _Canvas:
    """Drawing steps, which are executed once the height of the image is known."""

    def __init__(self, pillow: Any, font: Any) -> None:
        self.steps: list[Any] = []
        self._pillow, self._font = pillow, font

    def fitted(self, text: str, width: float) -> str:
        if self._font.getlength(text) <= width:
            return text
        low, high = 0, len(text)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._font.getlength(f"{text[:middle]}…") <= width else (low, middle - 1)
        return f"{text[:low]}…"

    def width(self, text: str) -> int:
        length: float = self._font.getlength(text)
        return math.ceil(length)

    def text(self, x: int, y: int, text: str, width: int, colour: str = _TEXT, right: bool = False) -> None:
        """Draw one line of text, aligned within `width` pixels."""
        fitted = self.fitted(text, width)
        left = x + width - self.width(fitted) if right else x
        self.steps.append(lambda _, draw: draw.text((left, y), fitted, fill=colour, font=self._font))

    def line(self, points: list[tuple[float, float]], colour: str) -> None:
        if len(points) == 1:
            ((x, y),) = points
            points = [(x - 1, y), (x + 1, y)]
        self.steps.append(lambda _, draw: draw.line(points, fill=colour, width=1))

    def picture(self, x: int, y: int, picture: Picture) -> None:
        width, height = _displayed_size(picture)
        pixels = picture.pixels
        mode = _MODES[pixels.shape[2]]
        drawn = self._pillow.frombytes(mode, pixels.shape[1::-1], pixels.tobytes())
        filter = self._pillow.Resampling.BOX if pixels.shape[1] > width else self._pillow.Resampling.NEAREST
        drawn = drawn.resize((width, height), filter)
        self.steps.append(lambda image, _: image.paste(drawn, (x, y), drawn if mode == "RGBA" else None))


def _draw_pictures(sheet: _Canvas, preview: Preview, columns: list[PreviewColumn], top: int) -> int:
    """Draw a tile for each row and picture; return the first line of pixels below."""
    for column in columns:
        sheet.text(_MARGIN, top, f"{column.name}: {column.about}", _WIDTH - 2 * _MARGIN, _MUTED)
        top += _LINE
    tiles: list[tuple[Cell, Picture | None, list[str]]] = []
    for row in range(preview.nrows):
        labels = [f"{name} {value}" for name, value in _captions(preview.columns, row)]
        for column in columns:
            cell = column.cells[row]
            name = f"{row} {_short_name(column.name, preview.columns)}" if len(columns) > 1 else str(row)
            pictures: Iterable[Picture | None] = cell if isinstance(cell, tuple) else (None,)
            tiles += [
                (cell, picture, [f"{name}: {picture.text if picture else cell}", *labels]) for picture in pictures
            ]
    each = (_WIDTH - 2 * _MARGIN + _GAP) // (_SIDE + _GAP)
    for start in range(0, len(tiles), each):
        line = tiles[start : start + each]
        high = max((_displayed_size(picture)[1] for _, picture, _ in line if picture), default=0)
        for number, (_, picture, texts) in enumerate(line):
            left = _MARGIN + number * (_SIDE + _GAP)
            if picture is not None:
                sheet.picture(left, top, picture)
            for count, text in enumerate(texts):
                sheet.text(left, top + high + 4 + count * _LINE, text, _SIDE, _TEXT if count else _MUTED)
        top += high + 4 + max(len(texts) for *_, texts in line) * _LINE + _GAP
    return top


def _draw_table(sheet: _Canvas, nrows: int, columns: list[PreviewColumn], top: int) -> int:
    """Draw the table, in several parts if the columns are wider than the image; return the first line below."""
    widths = [_column_width(sheet, column) for column in columns]
    left_of_all = _MARGIN + sheet.width(str(nrows)) + _GAP
    start = 0
    while start < len(columns):
        stop, left = start, left_of_all
        while stop == start or (stop < len(columns) and left + widths[stop] <= _WIDTH - _MARGIN):
            column, width, y = columns[stop], widths[stop], top
            sheet.text(left, y, column.name, width, _TEXT, column.right)
            sheet.text(left, y + _LINE, column.about, width, _MUTED, column.right)
            for row in range(nrows):
                _draw_cell(sheet, column, row, (left, y + (2 + row) * _LINE + 4), width)
            left += width + _GAP
            stop += 1
        for row in range(nrows):
            sheet.text(_MARGIN, top + (2 + row) * _LINE + 4, str(row), left_of_all - _MARGIN - _GAP, _MUTED, True)
        rule = float(top + 2 * _LINE + 1)
        sheet.line([(_MARGIN, rule), (left - _GAP, rule)], _RULE)
        top += (2 + nrows) * _LINE + _GAP
        start = stop
    return top


def _column_width(sheet: _Canvas, column: PreviewColumn) -> int:
    widths = [sheet.width(column.name), sheet.width(column.about)]
    for cell in column.cells:
        widths.append(_SPARK[0] + 8 + sheet.width(cell.text) if isinstance(cell, Spark) else sheet.width(str(cell)))
    return min(max(widths), _COLUMN)


def _draw_cell(sheet: _Canvas, column: PreviewColumn, row: int, place: tuple[int, int], width: int) -> None:
    (x, y), cell = place, column.cells[row]
    if not isinstance(cell, Spark):
        sheet.text(x, y, str(cell), width, _TEXT, column.right)
        return
    for run in spark_runs(cell.values, _SPARK[0] - 2, _SPARK[1]):
        sheet.line([(x + 1 + across, y + 1 + down) for across, down in run], _ACCENT)
    sheet.text(x + _SPARK[0] + 8, y, cell.text, width - _SPARK[0] - 8, _MUTED)


# ----------------------------------------------------------------------------------------------------------------- JSON


def json_rows(columns: Mapping[str, NDArray[Any]]) -> Iterator[str]:
    """Yield each row as the text of a JSON object.

    Bytes are text if they are UTF-8 without control characters, otherwise an object with the key "base64". NaN and
    infinities are strings, as in the JSON mapping of protobuf. Complex numbers are a list of two.
    """
    for row in zip(*columns.values(), strict=True):
        document = {name: _json_value(value) for name, value in zip(columns, row, strict=True)}
        yield json.dumps(document, ensure_ascii=False, allow_nan=False)


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode() if is_probably_text(value) else {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, np.ndarray):
        return [_json_value(item) for item in value]
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    if isinstance(value, complex | np.complexfloating):
        return [_json_value(float(value.real)), _json_value(float(value.imag))]
    number = float(value)
    if math.isfinite(number):
        # The shortest digits of a float32 or float16 are those of its own precision.
        return float(str(value)) if isinstance(value, np.floating) else number
    return "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"
