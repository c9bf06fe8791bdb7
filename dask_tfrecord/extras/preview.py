"""`Preview`: first rows displayed as HTML, as text for terminals and as PNG; and rows as lines of JSON."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from html import escape
from itertools import accumulate, islice, pairwise, starmap
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import dask
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

from dask_tfrecord.advice import no_attribute
from dask_tfrecord.blocks import to_array
from dask_tfrecord.errors import MemoryLimitError, clipped, explain_missing, joined, plural, printable, span
from dask_tfrecord.features import Feature, ImageFeature, dtype_name
from dask_tfrecord.features.images.codecs import ImageError, simplejpeg_or_none
from dask_tfrecord.features.images.pixels import check_shown, decode_image, encode_png
from dask_tfrecord.features.inference.payload_type import BytesContent, detect_image, is_probably_text
from dask_tfrecord.markup import fragment, json_number, page, spark_heights, spark_runs, spark_svg, table, time_text
from dask_tfrecord.options import checked_integer
from dask_tfrecord.rows.chunk_borders import joined_parts
from dask_tfrecord.rows.graph import origin_title
from dask_tfrecord.rows.memory import block_limit
from dask_tfrecord.rows.sources import CountedRows
from dask_tfrecord.shards.streams import write_file

if TYPE_CHECKING:
    from dask_tfrecord.rows.rows import Rows

# Pixels of the longer side of a picture, letters of a text, values of a list, pictures of a row, points of a line.
_IMAGE_SIDE = 256
_LETTERS = 200
_LISTED = 4
_PICTURES = 4
_POINTS = 64
# Arrays of one channel with shorter sides are matrices rather than pictures.
_SHORTEST = 8
# Arrays with an axis of channels are pictures from this size on.
_SHORTEST_WITH_CHANNELS = 4
_MOST_OBLONG = 8
_BYTES = 6
# Decoded bytes of a column whose rows are read together, and values of an image that are converted at once.
_READ_NBYTES = 64 << 20
_BAND_VALUES = 1 << 20
# Pixels of encoded images that are decoded for a column.
_DECODED_PIXELS = 1 << 27
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
# Lines of a large terminal; several tables have to fit into it.
_SCREEN = 50
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


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """Displayed image, with at most `_IMAGE_SIDE` pixels a side."""

    pixels: NDArray[np.uint8]  # (height, width, 1, 3 or 4)
    text: str  # size of the whole image

    @property
    def shown(self) -> tuple[int, int]:
        """Width and height in HTML and PNG: small pixels are repeated."""
        height, width = self.pixels.shape[:2]
        longer = max(height, width)
        if longer <= _SIDE:
            return width * (_SIDE // longer), height * (_SIDE // longer)
        return max(1, width * _SIDE // longer), max(1, height * _SIDE // longer)


@dataclass(frozen=True, slots=True)
class Spark:
    """Numbers of a vector to draw as a line: at most `_POINTS`, means of a longer vector."""

    values: tuple[float, ...]
    text: str  # number of values, and their range


Cell = str | Spark | tuple[Picture, ...]
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True, eq=False)
class PreviewColumn:
    """Cells of one column; all text is printable."""

    name: str
    about: str  # dtype, shape and displayed range of pixels
    cells: tuple[Cell, ...]
    role: Literal["picture", "class", "integer", "text", "other"]  # captions of pictures are chosen by it
    right: bool = False  # numbers, aligned to the right


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
        write_file(path, page(self.title, self._repr_html_()).encode())

    def to_png(self, path: str | os.PathLike[str]) -> None:
        """Write a PNG: the contact sheet of the pictures, and the table of all other columns.

        Raises
        ------
        ValueError
            If the name does not end in ``.png``.
        ImportError
            If Pillow is not installed (the extra ``image``).
        """
        if not os.fspath(path).lower().endswith(".png"):
            raise ValueError(
                f"pictures are written as PNG: write to_png({f'{PurePath(path).stem}.png'!r}); got {path!r:.100}"
            )
        write_file(path, _draw(self))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("preview", self, name)

    def _repr_html_(self) -> str:
        """Format the preview as one HTML element without references to other files."""
        pictures, others = _divide_columns(self)
        parts = [f'<p class="dtf-title">{escape(self.title)}</p>']
        if pictures:
            notes = "; ".join(f"{column.name}: {column.about}" for column in pictures)
            figures = "".join(_draw_figure(self, pictures, row) for row in range(self.nrows))
            parts += [f'<p class="dtf-note">{escape(notes)}</p>', f'<div class="dtf-sheet">{figures}</div>']
        if others:
            header = ["", *(f"{escape(column.name)}<br><small>{escape(column.about)}</small>" for column in others)]
            rows = [[str(row), *(_cell_html(column.cells[row]) for column in others)] for row in range(self.nrows)]
            right = [0, *(number for number, column in enumerate(others, 1) if column.right)]
            parts.append(table(header, rows, right))
        return fragment(*parts)

    def __rich__(self) -> Any:
        return rich_preview(self)

    def __str__(self) -> str:
        with io.StringIO() as file:
            # Without force_jupyter=False, rich would display the text in a notebook and leave the file empty.
            width = max(shutil.get_terminal_size().columns, 20)
            console = Console(
                file=file, width=width, color_system=None, highlight=False, emoji=False, force_jupyter=False
            )
            console.print(rich_preview(self))
            return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

    __repr__ = __str__


def preview_rows(given: Rows, n: int) -> Preview:
    """Read the first rows for display; `Dataset.preview` documents it."""
    schema, nrows = given.schema, checked_integer("the number of rows n", n, 0)
    if given.nrows is None:
        first = given.head(nrows)
        rows: Mapping[str, Iterable[Any]] = first
        nrows = len(next(iter(first.values()))) if first else 0
    else:
        nrows = min(nrows, given.nrows)
        rows = _first_rows(given, nrows)
    columns = tuple(
        _preview_column(name, feature, rows[name], schema.classes.get(name, ())) for name, feature in schema.items()
    )
    whole = "an unknown number of records" if given.nrows is None else plural(given.nrows, "record")
    title = origin_title(given.origin)
    return Preview(nrows, f"First {nrows:,} of {whole}{'' if title is None else f' of {title}'}", columns)


def _divide_columns(preview: Preview) -> tuple[list[PreviewColumn], list[PreviewColumn]]:
    """Return the columns of pictures, and the others."""
    pictures = [column for column in preview.columns if column.role == "picture"]
    return pictures, [column for column in preview.columns if column.role != "picture"]


def _captions(columns: tuple[PreviewColumn, ...], row: int) -> list[tuple[str, str]]:
    """Return names and values below the pictures of a row: classes, else an integer, and a text without its name."""
    labels = [column for column in columns if column.role == "class"]
    integers = [column for column in columns if column.role == "integer"]
    labels = labels or sorted(integers, key=lambda column: not _LABEL.search(column.name))[:1]
    texts = [column for column in columns if column.role == "text"][:1]
    named = [(_short_caption(each.name, columns), each) for each in labels] + [("", each) for each in texts]
    return [(name, clipped(str(each.cells[row]), _MOST_CAPTION)) for name, each in named]


def _short_caption(name: str, columns: tuple[PreviewColumn, ...]) -> str:
    """Return the end of a nested name that differs from the ends of the other names: captions are narrow."""
    parts = name.split("/")
    ends = ("/".join(parts[first:]) for first in range(len(parts) - 1, 0, -1))
    names = [f"/{column.name}" for column in columns]
    return next((end for end in ends if end and sum(each.endswith(f"/{end}") for each in names) == 1), name)


# ----------------------------------------------------------------------------------------------------------------- HTML


def _draw_figure(preview: Preview, columns: list[PreviewColumn], row: int) -> str:
    """Draw the pictures of a row with a caption of its other values, as HTML."""
    parts = []
    for column in columns:
        cell = column.cells[row]
        pictures = cell if isinstance(cell, tuple) else ()
        parts += [_image_cell(picture, f"{column.name} of row {row}") for picture in pictures]
        name = f"{_short_caption(column.name, preview.columns)} " if len(columns) > 1 else ""
        text = ", ".join(dict.fromkeys(picture.text for picture in pictures)) if pictures else str(cell)
        parts.append(f"<small>{escape(name + text)}</small><br>")
    named = _captions(preview.columns, row)
    lines = [f"<small>{escape(name)}</small> {escape(value)}" if name else escape(value) for name, value in named]
    caption = "<br>".join([f"<b>{row}</b>", *lines]) if not lines else f"<b>{row}</b> {'<br>'.join(lines)}"
    return f"<figure>{''.join(parts)}<figcaption>{caption}</figcaption></figure>"


def _image_cell(picture: Picture, description: str) -> str:
    """Embed a picture in HTML, as a PNG in its URL."""
    width, height = picture.shown
    data = base64.b64encode(encode_png(picture.pixels)).decode("ascii")
    smooth = ' class="dtf-smooth"' if picture.pixels.shape[1] > width else ""
    return (
        f'<img{smooth} width="{width}" height="{height}" alt="{escape(description)}" '
        f'title="{escape(f"{description}: {picture.text}")}" src="data:image/png;base64,{data}">'
    )


def _cell_html(cell: Cell) -> str:
    """Write a cell as HTML: a curve, or text that wraps if it is long."""
    if isinstance(cell, Spark):
        return f'{spark_svg(cell.values)}<small class="dtf-short">{escape(cell.text)}</small>'
    text = str(cell)
    # A short value stays on one line; a long text gets some words in each line.
    return f'<div class="{"dtf-short" if len(text) <= _SHORT else "dtf-long"}">{escape(text)}</div>'


# ----------------------------------------------------------------------------------------------------------------- text


def rich_preview(preview: Preview, pictures: bool = True) -> Group:
    """Return a preview for rich: pictures if the terminal has colours, then all cells."""
    parts: list[Any] = [Text(preview.title, "bold", overflow="fold")]
    return Group(*parts, *([_ContactSheet(preview)] if pictures else []), _Cells(preview))


def _side_by_side(widths: Sequence[int], most: int) -> Iterator[range]:
    """Return the columns of each table: all that fit into the width, and at least one."""
    return starmap(range, pairwise(joined_parts(([0, *accumulate(widths)], most))))


@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    """Cells of all columns, in as many tables as the width requires."""

    preview: Preview

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        preview, numbers = self.preview, len(str(max(0, self.preview.nrows - 1)))
        limit = max(1, min(_CELL_WIDTH, options.max_width - numbers - _APART))
        texts = [[_cell_text(cell) for cell in column.cells] for column in preview.columns]
        widths = [
            min(limit, max(map(cell_len, [column.name, column.about, *cells])))
            for column, cells in zip(preview.columns, texts, strict=True)
        ]
        tables = list(_side_by_side([width + _APART for width in widths], options.max_width - numbers))
        # Each has a header of two lines, a rule and a line below.
        if len(tables) > 1 and len(tables) * (preview.nrows + 4) > max(_SCREEN, len(widths)):
            yield from self._table_by_column(texts, widths, options.max_width)
            return
        for columns in tables:
            if columns.start:
                yield Text()
            yield self._table(texts, widths, columns)

    def _table(self, texts: list[list[str]], widths: list[int], columns: range) -> Table:
        """Lay out some columns as a table of rich, with widths that are known."""
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

    def _table_by_column(self, texts: list[list[str]], widths: list[int], most: int) -> RenderResult:
        """Yield a table with a line per column, and the rows that fit next to its name and in the terminal's height."""
        columns = self.preview.columns
        # Long names share their fronts.
        long = max(_CELL_WIDTH, most // 3)
        names = [each.name if cell_len(each.name) <= long else f"…{each.name[1 - long :]}" for each in columns]
        first = max(map(cell_len, names)) + max(cell_len(column.about) for column in columns) + 2 * _APART
        rows = max(1, min(self.preview.nrows, (most - first) // (max(widths) + _APART)))
        is_seen = sys.stdout is not None and sys.stdout.isatty()
        # The title, the header, its rule, the line below and the prompt.
        shown = max(1, shutil.get_terminal_size().lines - 5) if is_seen else len(columns)
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        table.add_column("column", no_wrap=True, style="cyan")
        table.add_column("", no_wrap=True, style="dim")
        for row in range(rows if self.preview.nrows else 0):
            table.add_column(f"row {row}", no_wrap=True, overflow="ellipsis")
        for column, name, cells in list(zip(columns, names, texts, strict=True))[:shown]:
            table.add_row(name, column.about, *(Text(cell, overflow="ellipsis") for cell in cells[:rows]))
        yield table
        if left := len(columns) - shown:
            yield Text(f"… {plural(left, 'more column')}: preview a selection of columns", "dim")


@dataclass(frozen=True, slots=True, eq=False)
class _ContactSheet:
    """Pictures in half blocks: each letter displays two pixels. Nothing without colours."""

    preview: Preview

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
    """Draw two pixels a character: the letter has the upper colour, the background the lower."""
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


def _cell_text(cell: Cell) -> str:
    """Write a cell as text: a curve by blocks of eight heights, pictures by their sizes."""
    if isinstance(cell, Spark):
        # Blocks of eight heights; spaces are gaps.
        levels = spark_heights(_means_of_parts(np.array(cell.values), _SPARK_WIDTH))
        drawn = (_BLOCKS[min(7, int(level * 8))] if math.isfinite(level) else " " for level in levels)
        return f"{''.join(drawn)} {cell.text}"
    if isinstance(cell, tuple):
        return ", ".join(picture.text for picture in cell)
    return cell


# ------------------------------------------------------------------------------------------------------------------ PNG


def _draw(preview: Preview) -> bytes:
    """Draw a preview as PNG, with Pillow: a contact sheet and a table."""
    with explain_missing("drawing a PNG needs", "Pillow", "image"):
        from PIL import Image
    font = _font()
    title = _Strip(font, _MARGIN + 2 * _LINE)
    title.text(_MARGIN, _MARGIN, preview.title, _WIDTH - 2 * _MARGIN)
    pictures, others = _divide_columns(preview)
    strips = [title]
    if pictures and preview.nrows:
        strips += _picture_strips(font, preview, pictures)
    strips += _table_strips(font, preview.nrows, others)
    image = Image.new("RGB", (_WIDTH, sum(strip.image.height for strip in strips) + _MARGIN), _PAPER)
    top = 0
    for strip in strips:
        image.paste(strip.image, (0, top))
        top += strip.image.height
    file = io.BytesIO()
    image.save(file, "png", optimize=True)
    return file.getvalue()


def _font() -> Any:
    """Return a font of the system that has many alphabets, or Pillow's own, which has few letters beyond ASCII."""
    from PIL import ImageFont

    for name in _FONTS:
        with suppress(OSError):
            return ImageFont.truetype(name, _SIZE)
    return ImageFont.load_default(_SIZE)


class _Strip:
    """Part of the image, as wide as all of it."""

    def __init__(self, font: Any, height: int) -> None:
        from PIL import Image, ImageDraw

        self.image = Image.new("RGB", (_WIDTH, height), _PAPER)
        self.draw, self.font = ImageDraw.Draw(self.image), font

    def text(self, x: int, y: int, text: str, width: float, colour: str = _TEXT, right: bool = False) -> None:
        """Draw one line of text, aligned within `width` pixels."""
        kept = len(text)
        while kept and self.font.getlength(text) > width:
            kept -= 1
            text = f"{text[:kept]}…"
        left = x + width - _text_width(self.font, text) if right else x
        self.draw.text((left, y), text, fill=colour, font=self.font)

    def line(self, points: list[tuple[float, float]], colour: str) -> None:
        if len(points) == 1:
            ((x, y),) = points
            points = [(x - 1, y), (x + 1, y)]
        self.draw.line(points, fill=colour, width=1)

    def picture(self, x: int, picture: Picture) -> None:
        """Paste a picture at a place, scaled to the size that it is shown with."""
        from PIL import Image

        mode, pixels = _MODES[picture.pixels.shape[2]], picture.pixels
        smaller = pixels.shape[1] > picture.shown[0]
        drawn = Image.frombytes(mode, pixels.shape[1::-1], pixels.tobytes())
        drawn = drawn.resize(picture.shown, Image.Resampling.BOX if smaller else Image.Resampling.NEAREST)
        self.image.paste(drawn, (x, 0), drawn if mode == "RGBA" else None)


def _text_width(font: Any, text: str) -> int:
    length: float = font.getlength(text)
    return math.ceil(length)


def _picture_strips(font: Any, preview: Preview, columns: list[PreviewColumn]) -> Iterator[_Strip]:
    """Draw the names of the columns, and a tile for each row and picture."""
    for column in columns:
        strip = _Strip(font, _LINE)
        strip.text(_MARGIN, 0, f"{column.name}: {column.about}", _WIDTH - 2 * _MARGIN, _MUTED)
        yield strip
    tiles: list[tuple[Picture | None, list[str]]] = []
    for row in range(preview.nrows):
        labels = [f"{name}: {value}" if name else value for name, value in _captions(preview.columns, row)]
        for column in columns:
            cell = column.cells[row]
            name = f"{row} {_short_caption(column.name, preview.columns)}" if len(columns) > 1 else f"row {row}"
            pictures: Iterable[Picture | None] = cell if isinstance(cell, tuple) else (None,)
            tiles += [(picture, [f"{name}: {picture.text if picture else cell}", *labels]) for picture in pictures]
    each = (_WIDTH - 2 * _MARGIN + _GAP) // (_SIDE + _GAP)
    for start in range(0, len(tiles), each):
        line = tiles[start : start + each]
        high = max((picture.shown[1] for picture, _ in line if picture), default=0) + 4
        strip = _Strip(font, high + max(len(texts) for _, texts in line) * _LINE + _GAP)
        for place, (picture, texts) in enumerate(line):
            left = _MARGIN + place * (_SIDE + _GAP)
            if picture is not None:
                strip.picture(left, picture)
            for number, text in enumerate(texts):
                strip.text(left, high + number * _LINE, text, _SIDE, _TEXT if number else _MUTED)
        yield strip


def _table_strips(font: Any, nrows: int, columns: list[PreviewColumn]) -> Iterator[_Strip]:
    """Draw the table, in several parts if the columns are wider than the image."""
    widths = []
    for column in columns:
        lines = [_text_width(font, line) for line in (column.name, column.about)]
        lines += [_text_width(font, cell) for cell in column.cells if isinstance(cell, str)]
        lines += [_SPARK[0] + 8 + _text_width(font, cell.text) for cell in column.cells if isinstance(cell, Spark)]
        widths.append(min(max(lines), _COLUMN))
    numbers = _text_width(font, str(nrows))
    for part in _side_by_side([width + _GAP for width in widths], _WIDTH - 2 * _MARGIN - numbers):
        strip, left = _Strip(font, (2 + nrows) * _LINE + _GAP), _MARGIN + numbers + _GAP
        tops = [(2 + row) * _LINE + 4 for row in range(nrows)]
        for column, width in zip(columns[part.start : part.stop], widths[part.start : part.stop], strict=True):
            strip.text(left, 0, column.name, width, _TEXT, column.right)
            strip.text(left, _LINE, column.about, width, _MUTED, column.right)
            for top, cell in zip(tops, column.cells, strict=True):
                if isinstance(cell, Spark):
                    for run in spark_runs(cell.values, _SPARK[0] - 2, _SPARK[1]):
                        strip.line([(left + 1 + across, top + 1 + down) for across, down in run], _ACCENT)
                    strip.text(left + _SPARK[0] + 8, top, cell.text, width - _SPARK[0] - 8, _MUTED)
                else:
                    strip.text(left, top, str(cell), width, _TEXT, column.right)
            left += width + _GAP
        for row, top in enumerate(tops):
            strip.text(_MARGIN, top, str(row), numbers, _MUTED, True)
        strip.line([(_MARGIN, 2 * _LINE + 1), (left - _GAP, 2 * _LINE + 1)], _RULE)
        yield strip


# ----------------------------------------------------------------------------------------------------------------- JSON


def json_rows(columns: Mapping[str, NDArray[Any]]) -> Iterator[str]:
    """Yield each row as the text of a JSON object.

    Bytes are text if they are UTF-8 without control characters, otherwise an object with the key "base64". NaN and
    infinities are strings, and times are text, as in the JSON mapping of protobuf. Complex numbers are a list of two.
    """
    for row in zip(*columns.values(), strict=True):
        document = {name: value_as_json(value) for name, value in zip(columns, row, strict=True)}
        yield json.dumps(document, ensure_ascii=False, allow_nan=False)


def value_as_json(value: Any) -> Any:
    """Return a value of a row, of any type and shape, as JSON values; see `json_rows`."""
    if isinstance(value, bytes):
        return value.decode() if is_probably_text(value) else {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, np.ndarray):
        return [value_as_json(item) for item in value]
    if isinstance(value, np.datetime64 | np.timedelta64):
        return time_text(value)
    if isinstance(value, int | np.bool_ | np.integer):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, complex | np.complexfloating):
        return [value_as_json(float(value.real)), value_as_json(float(value.imag))]
    # The shortest digits of a float32 or float16 depend on its own precision.
    return json_number(float(str(value)) if isinstance(value, np.generic) else float(value))


def _first_rows(given: Rows, nrows: int) -> Mapping[str, Iterable[Any]]:
    """Return the first rows of each column; rows that take much memory together are read one by one."""
    source = given.counted_source
    if source is None or not given.names:
        return given.head(nrows)
    limited = source.with_memory_limit(_READ_NBYTES)
    try:
        return _read_rows(limited, given.names, 0, nrows)
    except MemoryLimitError:
        return {name: _single_rows(source, limited, name, nrows) for name in given.names}


def _single_rows(source: CountedRows, limited: CountedRows, name: str, nrows: int) -> Iterator[Any]:
    """Yield the rows of a column, and the error of a row above the memory limit in its place."""
    try:
        yield from _read_rows(limited, (name,), 0, nrows)[name]
    except MemoryLimitError:
        for row in range(nrows):
            try:
                yield from _read_rows(source, (name,), row, row + 1)[name]
            except MemoryLimitError as error:
                yield error


def _read_rows(source: CountedRows, names: tuple[str, ...], start: int, stop: int) -> dict[str, NDArray[Any]]:
    # On the cluster of an active client, which may be the only one that reaches the files.
    return dask.delayed(_row_cells, pure=False)(source, names, start, stop).compute()  # type: ignore[no-any-return]


def _row_cells(source: CountedRows, names: tuple[str, ...], start: int, stop: int) -> dict[str, NDArray[Any]]:
    return {name: to_array(block) for name, block in source.read(names, slice(start, stop)).items()}


# --------------------------------------------------------------------------------------------------------------- cells


def _preview_column(name: str, feature: Feature, rows: Iterable[Any], classes: Sequence[str]) -> PreviewColumn:
    """Convert the rows of a column to cells.

    A row is a value as `Dataset.compute` returns it, or the `MemoryLimitError` of a row that was not read. Images are
    reduced one by one, while the rows are iterated.
    """
    title, about = printable(name), type_text(feature)
    images, values = _images_of_rows(feature, rows)
    if images is not None:
        cells, note = _scale_images(images)
        return PreviewColumn(title, f"{about}{note}", cells, "picture")
    if feature.block_shape == () and not feature.ragged_rank and not feature.own_shapes:
        texts = tuple(_convert_values(values, lambda value: _scalar_cell(value, classes)))
        kind = feature.item_dtype.kind
        words = kind in "OT" and all(
            isinstance(value, str) or (isinstance(value, bytes) and is_probably_text(value)) for value in values
        )
        role: Literal["class", "integer", "text", "other"] = "text" if words else "other"
        if kind in "iu":
            role = "class" if classes else "integer"
        return PreviewColumn(title, about, texts, role, right=feature.is_dense and role != "class")
    spread = max((np.size(value) for value in values), default=0) > _LISTED
    arrays = tuple(_convert_values(values, lambda value: _array_cell(np.asarray(value), classes, spread)))
    return PreviewColumn(title, about, arrays, "other")


def _convert_values(values: Iterable[Any], convert: Callable[[Any], _Made]) -> list[_Made | str]:
    """Convert values; a text takes the place of a row above the memory limit."""
    return [_above_limit(value) if isinstance(value, MemoryLimitError) else convert(value) for value in values]


def _above_limit(error: MemoryLimitError) -> str:
    feature = "" if error.place is None else f"feature {error.place.feature!r} "
    return clipped(printable(error.message.removeprefix(feature)), _LETTERS)


def type_text(feature: Feature) -> str:
    """Return dtype and shape of a row: ``float32 (?, 4)``."""
    dtype = dtype_name(feature.item_dtype)
    sizes = [*["?"] * (feature.own_shapes or feature.ragged_rank), *map(str, feature.item_shape)]
    return f"{dtype} ({', '.join(sizes)})" if sizes else dtype


# ------------------------------------------------------------------------------------------------------------ pictures


@dataclass(frozen=True, slots=True, eq=False)
class _Reduced:
    """Image with at most `_IMAGE_SIDE` pixels a side: uint8, or means of other values as float64."""

    pixels: NDArray[np.uint8] | NDArray[np.float64]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    # Least and greatest finite value of the whole image; None without one, and of uint8.
    extent: tuple[float, float] | None


def _images_of_rows(feature: Feature, rows: Iterable[Any]) -> tuple[list[list[_Reduced] | str] | None, list[Any]]:
    """Return the images of each row, or a text for a row without one; None, and the values, without images."""
    if feature.is_image:
        return _convert_values(rows, _row_images), []
    if feature.is_dense and is_picture(feature.block_shape, feature.item_dtype):
        return _convert_values(rows, _row_images) or None, []
    values = list(rows)
    read = [value for value in values if not isinstance(value, MemoryLimitError)]
    if feature.is_bytes and not feature.own_shapes:
        if all(isinstance(item, bytes) for value in read for item in flat_items(value)):
            images = [*_detected_images(values)]
            return (images if any(isinstance(row, list) for row in images) else None), values
    elif read and all(isinstance(value, np.ndarray) and is_picture(value.shape, value.dtype) for value in read):
        return _convert_values(values, _row_images), []
    return None, values


def _row_images(value: Any) -> list[_Reduced] | str:
    return [_reduced_image(image) for image in islice(flat_images(value), _PICTURES)] or "no image"


def _detected_images(values: Iterable[Any]) -> Iterator[list[_Reduced] | str]:
    """Decode bytes that are images; describe other bytes, and images past the pixels of a column."""
    left = _DECODED_PIXELS
    for value in values:
        if isinstance(value, MemoryLimitError):
            yield _above_limit(value)
            continue
        images, items = [], flat_items(value)
        for item in items[:_PICTURES]:
            if (decoded := _decode_if_image(item, left)) is not None:
                images.append(decoded[0])
                left -= decoded[1]
        yield images or ", ".join(map(_bytes_text, items[:_LISTED])) or "no values"


def flat_items(value: Any) -> list[Any]:
    """List the bytes or texts in a row, nested rows included."""
    return [value] if isinstance(value, bytes) else list(np.ravel(value))


def flat_images(value: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the images of a row as arrays of shape (height, width, channels)."""
    if value.dtype != object and value.ndim == 2:
        yield value[..., None]
    elif value.dtype != object and value.ndim == 3:
        yield value
    else:
        for item in value:
            yield from flat_images(item)


def _decode_if_image(value: bytes, most: int) -> tuple[_Reduced, int] | None:
    """Decode bytes that are an image, and count the pixels that are decoded for it.

    None for other bytes, for images that are damaged or have more than `most` pixels, and without Pillow.
    """
    content = detect_image(value)
    if content is None or _is_above_limit(content):
        return None
    height, width, channels = content.shape
    try:
        pixels = check_shown(value, height or 0, width or 0)
        if pixels > most:
            return None
        library = simplejpeg_or_none()
        longer = max(height or 0, width or 0)
        if content.format == "JPEG" and height and width and channels and library and longer > 2 * _IMAGE_SIDE:
            # The decoder halves the sides while it decodes.
            least = {"min_height": height * _IMAGE_SIDE // longer, "min_width": width * _IMAGE_SIDE // longer}
            with suppress(ValueError):
                scaled = library.decode_jpeg(value, {1: "GRAY", 3: "RGB"}[channels], **least)
                return replace(_reduced_image(scaled), shape=(height, width, channels)), pixels
        return _reduced_image(decode_image(value, ImageFeature(dtype=content.dtype))), pixels
    except (ImageError, ImportError):
        return None


def _is_above_limit(found: BytesContent) -> bool:
    limit, (height, width, channels) = block_limit(), found.shape
    nbytes = (height or 0) * (width or 0) * (channels or 4) * np.dtype(found.dtype).itemsize
    return limit is not None and nbytes > limit.nbytes


def is_picture(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether arrays of a shape and dtype are drawn as images."""
    if len(shape) not in (2, 3) or 0 in shape:
        return False
    if dtype.kind not in "biuf" and dtype.name != "bfloat16":
        return False
    shorter, longer = sorted(shape[:2])
    if longer > _MOST_OBLONG * shorter:
        return False
    if len(shape) == 2:
        return shorter >= _SHORTEST
    return shape[2] in (1, 3, 4) and shorter >= _SHORTEST_WITH_CHANNELS


def _scale_images(rows: list[list[_Reduced] | str]) -> tuple[tuple[Cell, ...], str]:
    """Scale images of one column to 8 bits by one range; return a note on the range, unless it is a usual one."""
    # Detected images of one column may have 8 and 16 bits.
    of_dtype: dict[Any, list[_Reduced]] = {}
    for row in rows:
        for image in row if isinstance(row, list) else ():
            of_dtype.setdefault(image.dtype, []).append(image)
    ranges = {dtype: _displayed_range(dtype, images) for dtype, images in of_dtype.items()}
    unusual = [f"{low:.4g} to {high:.4g}" for low, high in ranges.values() if (low, high) not in ((0, 255), (0, 1))]
    note = f", black to white: {'; '.join(unusual)}" if unusual else ""
    cells = (
        row if isinstance(row, str) else tuple(_to_picture(one, *ranges[one.dtype]) for one in row) for row in rows
    )
    return tuple(cells), note


def _displayed_range(dtype: np.dtype[Any], images: Sequence[_Reduced]) -> tuple[float, float]:
    """Return the values that are displayed as black and white."""
    if dtype == np.uint8:
        return 0, 255
    if dtype.kind == "b":
        return 0, 1
    extents = [image.extent for image in images if image.extent is not None]
    low = min((low for low, _ in extents), default=0)
    high = max((high for _, high in extents), default=1)
    if dtype.kind in "iu":
        # 8 bits in a wider type; 16 bits of a camera rarely use the whole range.
        return (0, 255) if low >= 0 and high <= 255 else (min(low, 0), high)
    return (0, 1) if low >= 0 and high <= 1 else (low, high)


def _reduced_image(image: NDArray[Any]) -> _Reduced:
    """Reduce an image, without a copy of all its pixels."""
    height, width, _ = image.shape
    longer = max(height, width)
    extents = []
    if image.dtype != np.uint8:
        step = max(1, _BAND_VALUES // max(1, image[:1].size))
        for top in range(0, height, step):
            band = _doubled_pixels(image[top : top + step])
            if (finite := band[np.isfinite(band)]).size:
                extents.append((float(finite.min()), float(finite.max())))
    extent = (min(low for low, _ in extents), max(high for _, high in extents)) if extents else None
    if longer > _IMAGE_SIDE and image.size:
        pixels = averaged(image, max(1, height * _IMAGE_SIDE // longer), max(1, width * _IMAGE_SIDE // longer))
    else:
        # A copy, because the image may be a view of a larger block.
        pixels = image.copy() if image.dtype == np.uint8 else _doubled_pixels(image)
    return _Reduced(pixels, image.shape, image.dtype, extent)


def picture(image: NDArray[Any]) -> Picture:
    """Return an image, of shape (height, width, channels), as it is displayed."""
    reduced = _reduced_image(image)
    return _to_picture(reduced, *_displayed_range(reduced.dtype, [reduced]))


def _to_picture(image: _Reduced, low: float, high: float) -> Picture:
    """Scale the levels of an image to 8 bits between a low and a high one."""
    if not image.pixels.size:
        return Picture(np.zeros((1, 1, 1), np.uint8), _size(image.shape))
    levels = image.pixels
    if levels.dtype != np.uint8:
        with np.errstate(all="ignore"):
            unit = np.nan_to_num((levels - low) / ((high - low) or 1), nan=0, posinf=1, neginf=0)
        levels = np.rint(np.clip(unit, 0, 1) * 255).astype(np.uint8)
    if levels.shape[2] == 2:  # gray and alpha
        levels = levels[..., [0, 0, 0, 1]]
    return Picture(np.ascontiguousarray(levels), _size(image.shape))


def _size(shape: Sequence[int | None]) -> str:
    height, width, channels = shape
    return f"{height:,} x {width:,}" + (f" x {channels}" if channels not in (1, None) else "")


def averaged(pixels: NDArray[Any], height: int, width: int) -> Any:
    """Average blocks of pixels to fewer ones: uint8 of uint8, else float64; values that are not finite are left out."""
    rows, columns = (
        np.arange(target + 1) * size // target for size, target in zip(pixels.shape, (height, width), strict=False)
    )
    means = np.empty((height, width, pixels.shape[2]))
    for number, (top, bottom) in enumerate(pairwise(rows.tolist())):
        if pixels.dtype == np.uint8:
            sums = pixels[top:bottom].sum(axis=0, dtype=np.uint32)
            counts: Any = (np.diff(columns) * (bottom - top))[:, None]
        else:
            band = _doubled_pixels(pixels[top:bottom])
            finite = np.isfinite(band)
            counts = np.add.reduceat(finite.sum(axis=0), columns[:-1], axis=0)
            # Without a finite value the first one is displayed.
            sums = np.where(finite, band, 0).sum(axis=0)
        totals = np.add.reduceat(sums, columns[:-1], axis=0, dtype=np.float64)
        if pixels.dtype == np.uint8:
            means[number] = totals / counts
        else:
            means[number] = np.where(counts > 0, totals / np.maximum(counts, 1), band[0, columns[:-1]])
    return np.rint(means).astype(np.uint8) if pixels.dtype == np.uint8 else means


# ---------------------------------------------------------------------------------------------------- text and numbers


def _scalar_cell(value: Any, classes: Sequence[str] = ()) -> str:
    """Write one value as text, a class with its name."""
    if isinstance(value, bytes):
        return _bytes_text(value)
    if isinstance(value, str):
        return clipped(printable(value), _LETTERS)
    if isinstance(value, np.datetime64 | np.timedelta64):
        return time_text(value)
    number = value.item() if isinstance(value, np.generic) and value.dtype.kind != "V" else value
    if isinstance(number, bool | int):
        known = classes and not isinstance(number, bool) and 0 <= number < len(classes)
        return f"{number} {printable(classes[number])}" if known else str(number)
    if isinstance(number, complex):
        return f"{number:.4g}"
    return f"{float(number):.4g}"


def _bytes_text(value: bytes) -> str:
    """Return UTF-8 as text; of other bytes, the number and the first ones in hexadecimal."""
    if is_probably_text(value):
        return clipped(printable(value.decode()), _LETTERS)
    content = detect_image(value)
    if content is not None:
        size = "" if None in content.shape[:2] else f" of {_size(content.shape)}"
        above = ", above the memory limit" if _is_above_limit(content) else ""
        return f"{content.format} image{size}{above}, {plural(len(value), 'byte')}"
    more = " …" if len(value) > _BYTES else ""
    return f"{plural(len(value), 'byte')}: {value[:_BYTES].hex(' ')}{more}"


def _array_cell(array: NDArray[Any], classes: Sequence[str], spread: bool) -> Cell:
    """Draw an array's cell: few values as a list, many as a line, several axes as a summary."""
    if array.dtype.kind in "OT":
        return _describe_objects(array)
    if array.ndim != 1:
        shape = f"({', '.join(map(str, array.shape))})"
        extent = extent_text(array)
        return f"{shape}: {extent}" if extent else shape
    if not array.size:
        return "no values"
    if classes or not spread or array.dtype.kind in "cmM":
        return joined([_scalar_cell(each, classes) for each in array[: _LISTED + 1]], _LISTED)
    return Spark(
        _means_of_parts(_doubled_pixels(array), _POINTS), f"{plural(array.size, 'value')}, {extent_text(array)}"
    )


def _describe_objects(array: NDArray[Any]) -> str:
    """Describe bytes, strings, or rows of rows."""
    flat = array.ravel()
    if flat.size and not isinstance(flat[0], bytes | str):
        inner = [np.asarray(row) for row in flat]
        sizes = [len(row) for row in inner]
        return f"{plural(len(flat), 'row')} of {span(min(sizes), max(sizes))}"
    if not flat.size:
        return "no values"
    shape = f"({', '.join(map(str, array.shape))}): " if array.ndim > 1 else ""
    return clipped(shape + joined([_quoted_text(each) for each in flat[: _LISTED + 1]], _LISTED), _LETTERS)


def _quoted_text(value: bytes | str) -> str:
    text = _scalar_cell(value)
    return f"“{text}”" if isinstance(value, str) or is_probably_text(value) else text


def _doubled_pixels(array: NDArray[Any]) -> NDArray[np.float64]:
    # NumPy warns of signalling NaN, which any bytes may contain.
    with np.errstate(invalid="ignore"):
        return array.astype(np.float64)


def extent_text(array: NDArray[Any]) -> str:
    """Return the range of the finite values, and the number of others."""
    if array.dtype.kind == "c" or not array.size:
        return ""
    numbers = array if array.dtype.kind in "biumM" else _doubled_pixels(array)
    finite = numbers[np.isfinite(numbers)]
    others = array.size - finite.size
    if not finite.size:
        return "no finite value"
    low, high = _scalar_cell(finite.min()), _scalar_cell(finite.max())
    extent = low if low == high else f"{low} to {high}"
    return f"{extent}, {others:,} not finite" if others else extent


def _means_of_parts(numbers: NDArray[np.float64], most: int) -> tuple[float, ...]:
    """Return at most as many numbers: means of consecutive values, NaN where one of them is not finite."""
    numbers = np.where(np.isfinite(numbers), numbers, math.nan)
    if len(numbers) > most:
        edges = np.arange(most) * len(numbers) // most
        # Divide the values first: a sum of large ones could overflow.
        counts = np.diff(np.append(edges, len(numbers)))
        numbers = np.add.reduceat(numbers / np.repeat(counts, counts), edges)
    return tuple(numbers.tolist())
