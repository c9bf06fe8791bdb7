"""`Preview`: the first rows of a `Dataset`, displayed in terminals and notebooks, and written as PNG or HTML."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask
from numpy.typing import NDArray

from dask_tfrecord.arrays.collection import checked_number
from dask_tfrecord.columns.blocks import to_array
from dask_tfrecord.errors import MemoryLimitError, plural, printable
from dask_tfrecord.markup import page
from dask_tfrecord.stores.preview.preview_cells import PreviewContent, preview_column

if TYPE_CHECKING:
    from dask_tfrecord.arrays.dataset import Dataset
    from dask_tfrecord.arrays.sources import Source

__all__ = ["Preview", "preview_dataset"]

# Decoded bytes of a column whose rows are read together.
_READ_NBYTES = 64 << 20


class Preview(PreviewContent):
    """First rows of a `Dataset`. Notebooks display it as HTML, `print` as text for the width of the terminal."""

    __slots__ = ()

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
        from dask_tfrecord.stores.preview.preview_picture import draw_preview

        drawn = draw_preview(self)
        Path(path).write_bytes(drawn)

    def _repr_html_(self) -> str:
        from dask_tfrecord.stores.preview.preview_html import html_preview

        return html_preview(self)

    def __rich__(self) -> Any:
        from dask_tfrecord.stores.preview.preview_text import rich_preview

        return rich_preview(self)

    def __str__(self) -> str:
        from dask_tfrecord.stores.preview.preview_text import text_preview

        return text_preview(self, shutil.get_terminal_size().columns)

    def __repr__(self) -> str:
        return str(self)


def preview_dataset(dataset: Dataset, n: int) -> Preview:
    """Read the first rows of a data set for display; `Dataset.preview` documents it."""
    checked = checked_number("n", n)
    schema = dataset.schema
    if dataset.nrows is None:
        first = dataset.head(checked)
        rows: Mapping[str, Iterable[Any]] = first
        nrows = len(next(iter(first.values()))) if first else 0
    else:
        nrows = min(checked, dataset.nrows)
        rows = _first_rows(dataset, nrows)
    columns = tuple(
        preview_column(name, feature, rows[name], schema.classes.get(name, ())) for name, feature in schema.items()
    )
    whole = "an unknown number of records" if dataset.nrows is None else plural(dataset.nrows, "record")
    return Preview(nrows, printable(f"First {nrows:,} of {whole}{_origin(dataset)}"), columns)


def _first_rows(dataset: Dataset, nrows: int) -> Mapping[str, Iterable[Any]]:
    """Return the first rows of each column; rows that take much memory together are read one by one."""
    source = dataset.source
    if source is None or not len(dataset):
        return dataset.head(nrows)
    limited = source.with_memory_limit(_READ_NBYTES)
    try:
        return _read(limited, tuple(dataset), 0, nrows)
    except MemoryLimitError:
        return {name: _single_rows(source, limited, name, nrows) for name in dataset}


def _single_rows(source: Source, limited: Source, name: str, nrows: int) -> Iterator[Any]:
    """Yield the rows of a column, and the error of a row above the memory limit in its place."""
    try:
        yield from _read(limited, (name,), 0, nrows)[name]
    except MemoryLimitError:
        for row in range(nrows):
            try:
                yield from _read(source, (name,), row, row + 1)[name]
            except MemoryLimitError as error:
                yield error


def _read(source: Source, names: tuple[str, ...], start: int, stop: int) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = dask.delayed(_rows, pure=False)(source, names, start, stop).compute()
    return found


def _rows(source: Source, names: tuple[str, ...], start: int, stop: int) -> dict[str, NDArray[Any]]:
    return {name: to_array(block) for name, block in source.read(names, slice(start, stop)).items()}


def _origin(dataset: Dataset) -> str:
    files = dataset.origin.get("files")
    if isinstance(files, list) and files:
        return f" of {files[0]}" if len(files) == 1 else f" of {plural(len(files), 'file')}"
    return f" of {dataset.origin['store']}" if "store" in dataset.origin else ""
