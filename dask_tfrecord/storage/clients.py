"""File systems of fsspec, opened with timeouts and without retries of their own; directories and small text files.

By default, the clients of HTTP and S3 wait for minutes, and S3 retries at two levels. `file_system` limits the wait of
each request, and `dask_tfrecord.storage.retry` is the only level of retries. Options of the caller take precedence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import fsspec.core
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import stringify_path

from dask_tfrecord.errors import Location, StorageError, TFRecordError, without_credentials
from dask_tfrecord.storage.retry import list_directory, request_timeout, with_retries
from dask_tfrecord.storage.shard import split_chain

__all__ = [
    "explain_missing_extra",
    "file_system",
    "is_directory",
    "join",
    "list_directories",
    "read_text",
    "url_to_fs",
]

# Module of a file system, and the extra that installs it.
_EXTRAS = {"s3fs": "s3", "gcsfs": "gcs"}


@contextmanager
def explain_missing_extra() -> Iterator[None]:
    """Name the extra that installs a missing file system.

    Raises
    ------
    ImportError
        If the file system of a URL is not installed.
    """
    try:
        yield
    except ImportError as error:
        for module, extra in _EXTRAS.items():
            if error.name == module or module in str(error):
                message = f'this URL needs {module}, which is not installed: pip install "dask-tfrecord[{extra}]"'
                raise ImportError(message, name=module) from error
        raise


def url_to_fs(url: Any, **options: Any) -> tuple[Any, str]:
    """Open the file system of a URL with the timeouts and retries of its client, as for uploads.

    Parameters
    ----------
    url : str or os.PathLike
        Path or URL.
    **options
        Options of the fsspec file system.

    Returns
    -------
    fs, path : fsspec.AbstractFileSystem, str
        File system, and the path in it. Errors contain no credentials.

    Raises
    ------
    ImportError
        If the file system is not installed.
    """
    try:
        with explain_missing_extra():
            fs, path = fsspec.core.url_to_fs(url, **options)
        return fs, path
    except Exception as error:
        failed = error
    raise without_credentials(failed)


def file_system(url: str, storage_options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """Open the file system of a URL for calls of `with_retries`: short timeouts, no retries of the client.

    Parameters
    ----------
    url : str
        Path or URL. The options of chained URLs are passed on unchanged.
    storage_options : mapping, optional
        Options of the fsspec file system.

    Returns
    -------
    fs, path : fsspec.AbstractFileSystem, str
        File system, and the path in it. Errors contain no credentials.

    Raises
    ------
    ImportError
        If the file system is not installed.
    """
    options = dict(storage_options or {})
    protocol = "" if "::" in url else url.partition("://")[0]
    if protocol in ("http", "https") and "timeout" not in {*options, *(options.get("client_kwargs") or {})}:
        options["timeout"] = _http_timeout()
    if protocol not in ("s3", "s3a"):
        return url_to_fs(url, **options)
    given = options.get("config_kwargs") or {}
    timeouts = {"connect_timeout": request_timeout(), "read_timeout": request_timeout()}
    options["config_kwargs"] = {**timeouts, "retries": {"max_attempts": 0}, **given}
    fs, path = url_to_fs(url, **options)
    if "retries" not in given:
        # s3fs retries on top of botocore. The number is a class attribute, not an option.
        fs.retries = 1
    return fs, path


def _http_timeout() -> Any:
    try:
        import aiohttp
    except ImportError:
        # fsspec reports the missing package.
        return None
    # A download may take any time, but a connection that receives no byte fails.
    return aiohttp.ClientTimeout(total=None, sock_connect=request_timeout(), sock_read=request_timeout())


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
