"""Display a `Dataset`: its columns as text and HTML, its first rows as a table."""

from __future__ import annotations

from html import escape
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import UnknownFeatureError, clipped, joined, near_misses, plural, printable, span
from dask_tfrecord.features.schema import align_columns, group_lines
from dask_tfrecord.markup import html_table
from dask_tfrecord.rows.graph import origin_title
from dask_tfrecord.rows.rows import Rows

_LONGEST = 100
# Code of features that a hint names, and how many of them.
_DECODED = ("dtf.ImageFeature", "dtf.TensorFeature")
_MOST_HINTS = 3
# Most columns whose chunks are drawn, most drawings that are visible at once, and the size that dask draws them in.
_MOST_PICTURES = 24
_OPEN_PICTURES = 8
_PICTURE = 90
_HEADER = ("column", "dtype", "shape", "read as")


def dataset_text(given: Rows) -> str:
    """Return the columns as an aligned table, with their groups and hints."""
    lines = [*align_columns([_HEADER, *_table(given)]), *group_lines(given.schema), *_content_hints(given)]
    return "\n".join([f"<dask_tfrecord.{_dataset_title(given)}>", *(f"  {line}" for line in lines)])


def dataset_html(given: Rows) -> str:
    """Return the columns as a table for notebooks, with pictures of their chunks."""
    notes = [*group_lines(given.schema), *_content_hints(given)]
    return html_table(_dataset_title(given), _HEADER, _table(given), notes, more=_chunk_pictures(given))


def _chunk_pictures(given: Rows) -> str:
    """Draw the chunks of each column, as dask does for an array; empty if the rows are not counted, or zero."""
    if not given.nrows or not given.schema:
        return ""
    from dask.array.svg import svg

    rows, figures = tuple(map(int, given.sizes)), []
    for name, feature in list(given.schema.items())[:_MOST_PICTURES]:
        shape = (given.nrows, *feature.block_shape)
        # dask draws no axis of length 0.
        picture = svg((rows, *((size,) for size in feature.block_shape)), size=_PICTURE) if all(shape) else ""
        figures.append(f"<figure><figcaption>{escape(printable(name))}</figcaption>{picture}</figure>")
    left = len(given.schema) - len(figures)
    rest = f"<p>{plural(left, 'more column')}</p>" if left else ""
    state = " open" if len(figures) <= _OPEN_PICTURES else ""
    return f'<details{state}><summary>chunks</summary><div class="dtf-chunks">{"".join(figures)}</div>{rest}</details>'


def _dataset_title(given: Rows) -> str:
    """Say how many rows in how many chunks a data set has, and where they are from."""
    rows = "unknown number of rows" if given.nrows is None else plural(given.nrows, "row")
    title = f"Dataset: {rows} in {plural(given.nchunks, 'chunk')}"
    if given.nrows is not None:
        sizes = np.asarray(given.sizes, np.int64)
        title += f" of {span(int(sizes.min()), int(sizes.max()))}"
    return f"{title}, from {origin_title(given.origin) or 'memory'}"


def _content_hints(given: Rows) -> list[str]:
    """Return a line with the features that decode bytes in which inference recognised images or tensors, if any."""
    schema, report = given.schema, given.schema.report
    if report is None:
        return []
    different: list[str] = report.different_shards()
    hints = [
        (feature.name, suggestion)
        for feature in report.features
        for suggestion in feature.suggestions
        if schema.get(feature.name) == feature.feature and (suggestion.feature or "").startswith(_DECODED)
    ]
    if not hints:
        return different
    held = joined([f"{name!r} holds {suggestion.what}" for name, suggestion in hints], _MOST_HINTS)
    spec = joined([f"{name!r}: {suggestion.feature}" for name, suggestion in hints], _MOST_HINTS)
    argument = f"{spec} in features=" if report.sequences else f"features={{**ds.schema, {spec}}}"
    return [f"hint: {held}; decode with {argument}", *different]


def _table(given: Rows) -> list[tuple[str, str, str, str]]:
    """List name, dtype, shape and feature of each column, as texts."""
    rows: str = "n" if given.nrows is None else str(given.nrows)
    table, schema = [], given.schema
    for name, feature in schema.items():
        shape = f"({', '.join([rows, *map(str, feature.block_shape)])}{',' if not feature.block_shape else ''})"
        dtype = "text" if isinstance(feature.block_dtype, np.dtypes.StringDType) else str(feature.block_dtype)
        # Defaults may be whole arrays.
        read_as = clipped(repr(feature), _LONGEST)
        if name in schema.classes:
            read_as += f", {len(schema.classes[name]):,} classes"
        table.append((name, dtype, shape, read_as))
    return table


class FirstRows(dict[str, NDArray[Any]]):
    """Columns of a few rows, displayed as a table; a wrong name is an error with similar ones."""

    def __missing__(self, name: object) -> NoReturn:
        raise UnknownFeatureError(f"no column {name!r}{near_misses(name, self)}")

    def _table(self) -> list[tuple[str, ...]]:
        return [tuple(map(_cell, values)) for values in zip(*self.values(), strict=True)]

    def __repr__(self) -> str:
        rows = self._table()
        return "\n".join([plural(len(rows), "row"), *(f"  {line}" for line in align_columns([tuple(self), *rows]))])

    def _repr_html_(self) -> str:
        rows = self._table()
        return html_table(plural(len(rows), "row"), tuple(map(printable, self)), rows, [])


# Values of a row, and letters, that a cell shows.
_CELL_VALUES, _CELL_LETTERS = 6, 60


def _cell(value: Any) -> str:
    """Write a value of the first rows as short text."""
    # Imported here: it loads protobuf.
    from dask_tfrecord.features.inference.payload_type import is_probably_text

    if isinstance(value, np.ndarray) and value.ndim:
        if value.size > _CELL_VALUES:
            return f"{value.dtype} of shape {value.shape}"
        # NumPy's own digits: a float32 as a Python float has a float64's.
        text = f"[{', '.join(map(_cell, value))}]"
    elif isinstance(value, bytes):
        text = value.decode() if is_probably_text(value) or not value else plural(len(value), "byte")
    else:
        text = str(value)
    return printable(clipped(text, _CELL_LETTERS))
