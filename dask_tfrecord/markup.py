"""Self-contained HTML and SVG for notebooks and files: one style sheet, tables, bars, histograms and spark-lines.

Colours follow the theme of JupyterLab where it sets variables, the attributes that documentation tools and VS Code set,
and otherwise the colour scheme of the browser.
"""

from __future__ import annotations

import math
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from html import escape

import numpy as np

from dask_tfrecord.errors import printable

_TIME = re.compile(r"(-?\d{4}(?:-\d\d(?:-\d\d(?:[T ]\d\d(?::\d\d(?::\d\d(?:\.\d{1,9})?)?)?)?)?)?)Z?")
_DURATION = re.compile(r"(-?)(\d{1,10})(?:\.(\d{1,9}))?s")
_LIGHT = "--dtf-own-text: #1f2328; --dtf-own-muted: #59636e; --dtf-own-line: #d1d9e0; --dtf-own-accent: #0969da;"
_DARK = "--dtf-own-text: #e6edf3; --dtf-own-muted: #9198a1; --dtf-own-line: #3d444d; --dtf-own-accent: #58a6ff;"
_DARK_PAGES = 'html[theme="dark"], html[data-theme="dark"], body[data-jp-theme-light="false"], body.vscode-dark'
_LIGHT_PAGES = 'html[theme="light"], html[data-theme="light"], body[data-jp-theme-light="true"], body.vscode-light'
_STYLE = f"""
.dtf {{ {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ .dtf {{ {_DARK} }} }}
:is({_DARK_PAGES}) .dtf {{ {_DARK} }}
:is({_LIGHT_PAGES}) .dtf {{ {_LIGHT} }}
.dtf {{
  --dtf-text: var(--jp-content-font-color0, var(--dtf-own-text));
  --dtf-muted: var(--jp-content-font-color2, var(--dtf-own-muted));
  --dtf-line: var(--jp-border-color2, var(--dtf-own-line));
  --dtf-accent: var(--jp-brand-color1, var(--dtf-own-accent));
  color: var(--dtf-text); font: 13px/1.45 system-ui, sans-serif; max-width: 100%;
}}
.dtf p {{ margin: 0.4em 0; overflow-wrap: anywhere; }}
.dtf small {{ color: var(--dtf-muted); font-size: 11px; font-weight: normal; }}
.dtf-title {{ font-weight: 600; }}
.dtf-note {{ color: var(--dtf-muted); }}
.dtf-scroll {{ overflow-x: auto; max-width: 100%; }}
.dtf table {{ border-collapse: collapse; border: 0; margin: 0.4em 0; font-size: 13px; }}
.dtf th, .dtf td {{
  padding: 4px 12px 4px 0; border: 0; border-bottom: 1px solid var(--dtf-line); vertical-align: top;
  background: none; color: var(--dtf-text); max-width: 28em; overflow-wrap: break-word;
}}
.dtf th {{ vertical-align: bottom; white-space: nowrap; max-width: none; }}
.dtf-short {{ white-space: nowrap; font-variant-numeric: tabular-nums; }}
.dtf-long {{ min-width: 18em; }}
.dtf svg {{ display: block; max-width: none; color: var(--dtf-accent); overflow: visible; }}
.dtf details svg {{ stroke: var(--dtf-text) !important; }}
.dtf details svg text {{ fill: var(--dtf-text); stroke: none; }}
.dtf summary {{ cursor: pointer; color: var(--dtf-muted); }}
.dtf-chunks, .dtf-sheet {{ display: flex; flex-wrap: wrap; gap: 14px; margin: 0.6em 0; align-items: flex-start; }}
.dtf figure {{ margin: 0; max-width: 100%; }}
.dtf-chunks figure {{ overflow-x: auto; }}
.dtf-sheet figure {{ width: 132px; }}
.dtf-sheet img {{
  display: block; max-width: 100%; margin: 0 0 4px; image-rendering: pixelated;
  background: repeating-conic-gradient(#8884 0 25%, #0000 0 50%) 0 0 / 12px 12px;
}}
.dtf-sheet img.dtf-smooth {{ image-rendering: auto; }}
.dtf figcaption {{ font-size: 12px; overflow-wrap: anywhere; }}
.dtf-bar {{ display: inline-block; width: 80px; height: 8px; border: 1px solid var(--dtf-line); border-radius: 2px; }}
.dtf-bar i {{ display: block; height: 100%; background: var(--dtf-accent); }}
.dtf pre {{ overflow-x: auto; font-size: 12px; background: none; color: var(--dtf-text); }}
"""
_HEIGHT = 24
_BIN_WIDTH = 8


def fragment(*parts: str) -> str:
    """Join parts of HTML to one element, with the style sheet."""
    return f'<div class="dtf">{"".join(parts)}<style>{_STYLE}</style></div>'


def page(title: str, body: str) -> str:
    """Return a complete HTML document in the colour scheme of the browser."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(printable(title))}</title></head><body>{body}</body></html>\n"
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> str:
    """Format a table whose cells are HTML; columns in `right` are aligned to the right."""

    def row(cells: Sequence[str], tag: str) -> str:
        styled = (
            f'<{tag} style="text-align: {"right" if column in right else "left"}">{cell}</{tag}>'
            for column, cell in enumerate(cells)
        )
        return f"<tr>{''.join(styled)}</tr>"

    head, body = row(header, "th"), "".join(row(cells, "td") for cells in rows)
    return f'<div class="dtf-scroll"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def html_table(
    title: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    notes: Iterable[str],
    right: Collection[int] = (),
    more: str = "",
) -> str:
    """Format a table in HTML, with a title above and notes below; columns in `right` are aligned to the right.

    All arguments are text, except `more`: HTML that follows the notes.
    """
    cells = [[escape(printable(cell)) for cell in row] for row in rows]
    paragraphs = "".join(f"<p>{escape(printable(note))}</p>" for note in notes)
    heading = f'<p class="dtf-title">{escape(printable(title))}</p>'
    return fragment(heading, table(list(map(escape, header)), cells, right), paragraphs, more)


def presence_bar(part: int, whole: int) -> str:
    """Draw the share of records that set a feature as a bar."""
    percent = 100 * part / whole if whole else 0
    return f'<span class="dtf-bar" title="{part:,} of {whole:,}"><i style="width: {percent:.4g}%"></i></span>'


def time_text(value: np.datetime64 | np.timedelta64) -> str:
    """Format a time as the JSON of protobuf does: ``2001-09-09T01:46:40.500Z``, or ``-1.500s`` for a duration."""
    if np.isnat(value):
        return "NaT"
    is_duration = isinstance(value, np.timedelta64)
    total = int(value.astype("m8[ns]" if is_duration else "M8[ns]").astype(np.int64))
    seconds, rest = divmod(abs(total) if is_duration else total, 10**9)
    digits = next(digits for digits in (0, 3, 6, 9) if rest % 10 ** (9 - digits) == 0)
    fraction = f".{rest:09d}"[: digits + 1] if digits else ""
    if is_duration:
        return f"{'-' if total < 0 else ''}{seconds}{fraction}s"
    return f"{np.datetime64(seconds, 's')}{fraction}Z"


def parse_time(text: str, *, is_duration: bool) -> np.datetime64 | np.timedelta64:
    """Parse a time as `time_text` formats it, or any part of one from the year on, to nanoseconds."""
    form, example = (_DURATION, "1.500s") if is_duration else (_TIME, "2001-09-09T01:46:40.500Z")
    try:
        match = form.fullmatch(text)
        if match is None:
            raise ValueError
        if is_duration:
            return np.timedelta64(int(match[1] + match[2] + (match[3] or "").ljust(9, "0")), "ns")
        time = np.datetime64(match[1])
        nanoseconds: np.datetime64 = time.astype("M8[ns]")
        if nanoseconds.astype(time.dtype) != time:
            raise ValueError
        return nanoseconds
    except (ValueError, OverflowError):
        what = "duration" if is_duration else "time"
        raise ValueError(f"expected a {what} like {example!r}; got {text!r:.50}") from None


def bins_svg(
    bins: Sequence[tuple[float, float, int]], most: int = 40, text: Callable[[float], str] = "{:,}".format
) -> str:
    """Draw a histogram of (first number, last number, frequency); several bins share a bar if there are many."""
    each = math.ceil(len(bins) / most) or 1
    joined = [bins[start : start + each] for start in range(0, len(bins), each)]
    bars = [(group[0][0], group[-1][1], sum(times for *_, times in group)) for group in joined]
    highest = max((times for *_, times in bars), default=1)
    drawn = []
    for number, (first, last, times) in enumerate(bars):
        height = max(1.0, _HEIGHT * times / highest)
        span = text(first) if first == last else f"{text(first)} to {text(last)}"
        drawn.append(
            f'<rect x="{number * _BIN_WIDTH}" y="{_HEIGHT - height:.1f}" width="{_BIN_WIDTH - 1}" '
            f'height="{height:.1f}"><title>{escape(printable(span))}: {times:,}</title></rect>'
        )
    width = max(1, len(bars)) * _BIN_WIDTH
    return f'<svg width="{width}" height="{_HEIGHT}" fill="currentColor">{"".join(drawn)}</svg>'


def json_number(value: float) -> float | str:
    """Return a number, or text for NaN and infinities, which JSON lacks."""
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def spark_heights(values: Sequence[float]) -> list[float]:
    """Return numbers from 0, the least one, to 1; 0.5 if all are equal, and NaN, a gap, for NaN and infinities."""
    # Halves, because the difference of large numbers is infinite.
    finite = [value / 2 for value in values if math.isfinite(value)]
    low = min(finite, default=0.0)
    span = max(finite, default=0.0) - low
    heights = []
    for value in values:
        height = (value / 2 - low) / span if span else 0.5
        heights.append(height if math.isfinite(value) else math.nan)
    return heights


def spark_runs(values: Sequence[float], width: float, height: float) -> Iterator[list[tuple[float, float]]]:
    """Yield the points of each line of numbers, which has gaps at NaN and infinities."""
    step = width / max(1, len(values) - 1)
    run: list[tuple[float, float]] = []
    for number, level in enumerate([*spark_heights(values), math.nan]):
        if math.isfinite(level):
            run.append((number * step, height * (1 - level)))
        elif run:
            yield run
            run = []


def spark_svg(values: Sequence[float], width: int = 120) -> str:
    """Draw numbers as lines; a number between two gaps is a dot."""
    drawn = []
    for run in spark_runs(values, width - 4, _HEIGHT - 6):
        points = [f"{2 + x:.1f},{3 + y:.1f}" for x, y in run]
        if len(run) == 1:
            x, y = points[0].split(",")
            drawn.append(f'<circle cx="{x}" cy="{y}" r="1.5" fill="currentColor"/>')
        else:
            line = " ".join(points)
            drawn.append(f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="1.5"/>')
    return f'<svg width="{width}" height="{_HEIGHT}">{"".join(drawn)}</svg>'


_INDENT = "    "


def terminal_width() -> int | None:
    """Return the columns of the terminal that stdout is; None for a file, a pipe or a notebook."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def stack_columns(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    apart: Sequence[int],
    right: Collection[int] = (),
) -> list[str]:
    """Lay a table out for a terminal that is narrower than the table.

    A row is one line if its cells fit, without the columns `apart`. Otherwise the first cell of a row is above the
    others, indented and aligned. No cell is cut or broken within a word, so only a single word that is too long makes
    a line longer than `width`.

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
    right : collection of int, optional
        Columns that are aligned to the right.

    Returns
    -------
    list of str
        Lines: the header, a rule, the rows.
    """
    header, *rows = table = [list(map(printable, row)) for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    together = [column for column in range(len(header)) if column not in apart]
    is_line = sum(widths[column] + 2 for column in together) - 2 <= width
    groups: list[list[int]] = []
    left = 0
    for column in range(1, len(header)) if not is_line else ():
        if column in apart:
            continue
        if not groups or widths[column] > left:
            groups.append([])
            left = width - len(_INDENT)
        groups[-1].append(column)
        left -= widths[column] + 2
    lines = []

    def aligned(row: Sequence[str], columns: Sequence[int]) -> str:
        cells = (row[each].rjust(widths[each]) if each in right else row[each].ljust(widths[each]) for each in columns)
        return "  ".join(cells).rstrip()

    for row in table:
        if is_line:
            lines.append(aligned(row, together))
        else:
            lines += [row[0], *(f"{_INDENT}{line}" for group in groups if (line := aligned(row, group)))]
        if row is header:
            lines.append("─" * width)
            continue
        for column in apart:
            text = f"{header[column]} {row[column]}" if row[column] else ""
            # A short quotation is not broken, and a count in parentheses stays on the line of its value.
            text = re.sub("“[^”]{,24}”| [(]", lambda kept: kept[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
            wrapped = textwrap.wrap(text, width - len(_INDENT), break_long_words=False, break_on_hyphens=False)
            lines += [f"{_INDENT}{line}".replace("\N{NO-BREAK SPACE}", " ") for line in wrapped]
    return lines
