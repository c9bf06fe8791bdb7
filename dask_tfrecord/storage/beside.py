"""Small texts that lie beside shards, and the directories they lie in; read whole, through fsspec.

Imports errors and fsspec only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import fsspec
from fsspec.utils import stringify_path

from dask_tfrecord.errors import Place, TFRecordError
from dask_tfrecord.storage.retry import list_directory

__all__ = ["is_directory", "join", "list_directories", "read_text"]


def join(url: str | os.PathLike[str], name: str) -> str:
    """Path or URL of a file in a directory; of a chained URL, in the link that has a path."""
    links = str(stringify_path(url)).split("::")
    place = next((place for place, link in enumerate(links) if "://" in link), 0)
    links[place] = f"{links[place].rstrip('/')}/{name}"
    return "::".join(links)


def read_text(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> str | None:
    """Read a text file.

    Parameters
    ----------
    url : str or os.PathLike
        Path or fsspec URL.
    storage_options : mapping, optional
        What fsspec takes beside a URL.

    Returns
    -------
    str or None
        None if there is no such file.

    Raises
    ------
    TFRecordError
        If the file is no UTF-8.
    """
    fs, path = fsspec.core.url_to_fs(str(stringify_path(url)), **(storage_options or {}))
    try:
        data: bytes = fs.cat_file(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TFRecordError(f"expected text in UTF-8; {error}", Place(str(url))) from None


def is_directory(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> bool:
    """Whether a path or URL is a directory that can be looked into."""
    fs, path = fsspec.core.url_to_fs(str(stringify_path(url)), **(storage_options or {}))
    return bool(fs.isdir(path))


def list_directories(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Names of the directories within a directory, in order; none if it is none, or can't be listed."""
    fs, path = fsspec.core.url_to_fs(str(stringify_path(url)), **(storage_options or {}))
    found = list_directory(fs, path) or ()
    names = (info["name"].rstrip("/").rpartition("/")[2] for info in found if info["type"] == "directory")
    return tuple(sorted(names))
