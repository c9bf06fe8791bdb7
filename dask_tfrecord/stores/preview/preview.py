"""`Preview`: the first rows of a `Dataset`, displayed in terminals and notebooks, and written as PNG or HTML."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_tfrecord.arrays.collection import checked_number
from dask_tfrecord.errors import plural, printable
from dask_tfrecord.inspection.markup import page
from dask_tfrecord.stores.preview.preview_cells import PreviewContent, preview_column

if TYPE_CHECKING:
    from dask_tfrecord.arrays.dataset import Dataset

__all__ = ["Preview", "preview_dataset"]


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
    rows = dataset.head(checked)
    schema = dataset.schema
    nrows = len(next(iter(rows.values()))) if rows else min(checked, dataset.nrows or 0)
    columns = tuple(
        preview_column(name, feature, np.asarray(rows[name]), schema.classes.get(name, ()))
        for name, feature in schema.items()
    )
    whole = "an unknown number of records" if dataset.nrows is None else plural(dataset.nrows, "record")
    return Preview(nrows, printable(f"First {nrows:,} of {whole}{_origin(dataset)}"), columns)


def _origin(dataset: Dataset) -> str:
    files = dataset.origin.get("files")
    if isinstance(files, list) and files:
        return f" of {files[0]}" if len(files) == 1 else f" of {plural(len(files), 'file')}"
    return f" of {dataset.origin['store']}" if "store" in dataset.origin else ""
