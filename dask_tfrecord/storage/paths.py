"""Paths and URLs of files in directories, and small text files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import stringify_path

from dask_tfrecord.errors import Location, StorageError, TFRecordError
from dask_tfrecord.storage.clients import file_system
from dask_tfrecord.storage.retry import list_directory, with_retries
from dask_tfrecord.storage.shard import split_chain

__all__ = ["is_directory", "join", "list_directories", "read_text"]


def join(url: str | os.PathLike[str], name: str) -> str:
    """Return the path or URL of a file in a directory; of a chained URL, in the link that holds the path."""
    links, index = split_chain(str(stringify_path(url)))
    links[index] = f"{links[index].rstrip('/')}/{name}"
    return "::".join(links)


def read_text(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> str | None:
    """Read a text file.

    Parameters
    ----------
    url : str or os.PathLike
        Path or fsspec URL.
    storage_options : mapping, optional
        Options of the fsspec file system.

    Returns
    -------
    str or None
        None if the file does not exist.

    Raises
    ------
    TFRecordError
        If the file is not encoded in UTF-8.
    StorageError
        If the path is a pipe, socket or device.
    """
    fs, path = file_system(str(stringify_path(url)), storage_options)
    if isinstance(fs, LocalFileSystem) and os.path.exists(path) and not os.path.isfile(path) | os.path.isdir(path):  # noqa: PTH110, PTH112, PTH113
        raise StorageError("expected a regular file; this is a pipe, socket or device", Location(str(url)))
    try:
        data: bytes = with_retries(lambda: fs.cat_file(path), str(url), "read the file")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TFRecordError(f"expected text in UTF-8; {error}", Location(str(url))) from None


def is_directory(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> bool:
    """Return whether a path or URL is an existing directory."""
    fs, path = file_system(str(stringify_path(url)), storage_options)
    return bool(with_retries(lambda: fs.isdir(path), str(url), "check whether it is a directory"))


def list_directories(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Return the sorted names of the subdirectories of a directory; empty if it cannot be listed."""
    fs, path = file_system(str(stringify_path(url)), storage_options)
    found = list_directory(fs, path) or ()
    names = (info["name"].rstrip("/").rpartition("/")[2] for info in found if info["type"] == "directory")
    return tuple(sorted(names))
