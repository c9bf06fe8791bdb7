"""A preview as PNG: a contact sheet of pictures with captions, and a table with spark-lines, drawn by Pillow."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from typing import Any

from dask_tfrecord.stores.preview.preview_cells import Cell, Picture, PreviewColumn, PreviewContent, Spark
from dask_tfrecord.stores.preview.preview_html import captions, displayed_size, short_name

__all__ = ["draw_preview"]

# In pixels.
_WIDTH = 1200
_MARGIN = 16
_SIDE = 128
_GAP = 16
_LINE = 18
_SIZE = 13
_COLUMN = 260
_SPARK = (120, 14)
_TEXT, _MUTED, _RULE, _ACCENT, _PAPER = "#1f2328", "#59636e", "#d1d9e0", "#0969da", "#ffffff"
_FONTS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "arial.ttf")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def draw_preview(preview: PreviewContent) -> bytes:
    """Draw a preview; return the bytes of the PNG.

    Raises
    ------
    ImportError
        If Pillow is not installed.
    """
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise ImportError("drawing a PNG needs Pillow: pip install 'dask-tfrecord[image]'", name="PIL") from error
    sheet = _Canvas(Image, _font(ImageFont))
    sheet.text(_MARGIN, _MARGIN, preview.title, _WIDTH - 2 * _MARGIN)
    top = _MARGIN + 2 * _LINE
    pictures = [column for column in preview.columns if column.role == "picture"]
    others = [column for column in preview.columns if column.role != "picture"]
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
    """Drawing steps that are executed once the height of the image is known.

    Attributes
    ----------
    steps : list of callable
        Functions of an image and its drawing context.
    """

    def __init__(self, pillow: Any, font: Any) -> None:
        self.steps: list[Any] = []
        self._pillow, self._font = pillow, font

    def fitted(self, text: str, width: float) -> str:
        """Cut a text that is wider than `width` pixels."""
        if self._font.getlength(text) <= width:
            return text
        low, high = 0, len(text)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._font.getlength(f"{text[:middle]}…") <= width else (low, middle - 1)
        return f"{text[:low]}…"

    def width(self, text: str) -> int:
        """Return the width of a text in pixels."""
        length: float = self._font.getlength(text)
        return math.ceil(length)

    def text(self, x: int, y: int, text: str, width: int, colour: str = _TEXT, right: bool = False) -> None:
        """Draw one line of text, aligned within `width` pixels."""
        fitted = self.fitted(text, width)
        left = x + width - self.width(fitted) if right else x
        self.steps.append(lambda _, draw: draw.text((left, y), fitted, fill=colour, font=self._font))

    def line(self, points: list[tuple[float, float]], colour: str) -> None:
        """Draw connected lines, or a dot."""
        if len(points) == 1:
            ((x, y),) = points
            points = [(x - 1, y), (x + 1, y)]
        self.steps.append(lambda _, draw: draw.line(points, fill=colour, width=1))

    def picture(self, x: int, y: int, picture: Picture) -> None:
        """Draw a picture with its pixels repeated, or averaged if it is larger than a tile."""
        width, height = displayed_size(picture, _SIDE)
        pixels = picture.pixels
        mode = _MODES[pixels.shape[2]]
        drawn = self._pillow.frombytes(mode, pixels.shape[1::-1], pixels.tobytes())
        filter = self._pillow.Resampling.BOX if pixels.shape[1] > width else self._pillow.Resampling.NEAREST
        drawn = drawn.resize((width, height), filter)
        self.steps.append(lambda image, _: image.paste(drawn, (x, y), drawn if mode == "RGBA" else None))


def _draw_pictures(sheet: _Canvas, preview: PreviewContent, columns: list[PreviewColumn], top: int) -> int:
    """Draw a tile for each row and picture; return the first line of pixels below."""
    for column in columns:
        sheet.text(_MARGIN, top, f"{column.name}: {column.about}", _WIDTH - 2 * _MARGIN, _MUTED)
        top += _LINE
    tiles: list[tuple[Cell, Picture | None, list[str]]] = []
    for row in range(preview.nrows):
        labels = [f"{name} {value}" for name, value in captions(preview.columns, row)]
        for column in columns:
            cell = column.cells[row]
            name = f"{row} {short_name(column.name, preview.columns)}" if len(columns) > 1 else str(row)
            pictures: Iterable[Picture | None] = cell if isinstance(cell, tuple) else (None,)
            tiles += [
                (cell, picture, [f"{name}: {picture.text if picture else cell}", *labels]) for picture in pictures
            ]
    each = (_WIDTH - 2 * _MARGIN + _GAP) // (_SIDE + _GAP)
    for start in range(0, len(tiles), each):
        line = tiles[start : start + each]
        high = max((displayed_size(picture, _SIDE)[1] for _, picture, _ in line if picture), default=0)
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
                _draw_cell(sheet, column, column.cells[row], (left, y + (2 + row) * _LINE + 4), width)
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


def _draw_cell(sheet: _Canvas, column: PreviewColumn, cell: Cell, place: tuple[int, int], width: int) -> None:
    x, y = place
    if not isinstance(cell, Spark):
        sheet.text(x, y, str(cell), width, _TEXT, column.right)
        return
    finite = [value for value in cell.values if math.isfinite(value)]
    low, span = (min(finite), max(finite) - min(finite)) if finite else (0.0, 0.0)
    run: list[tuple[float, float]] = []
    step = (_SPARK[0] - 2) / max(1, len(cell.values) - 1)
    for number, value in enumerate([*cell.values, math.nan]):
        if math.isfinite(value):
            level = (value - low) / span if span else 0.5
            run.append((x + 1 + number * step, y + 1 + (1 - level) * _SPARK[1]))
        elif run:
            sheet.line(run, _ACCENT)
            run = []
    sheet.text(x + _SPARK[0] + 8, y, cell.text, width - _SPARK[0] - 8, _MUTED)
