"""File systems of fsspec, opened with timeouts and without retries of their own; directories and small text files.

By default, the clients of HTTP and S3 wait for minutes, and S3 retries at two levels. `file_system` limits the wait of
each request, and `dask_tfrecord.storage.retry` is the only level of retries. Options of the caller take precedence.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import fsspec.core
from fsspec.asyn import sync
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import stringify_path

from dask_tfrecord.errors import Location, StorageError, TFRecordError, redact_url, without_credentials
from dask_tfrecord.settings import limits
from dask_tfrecord.storage.retry import list_directory, remaining_seconds, request_timeout, time_limit, with_retries
from dask_tfrecord.storage.shard import split_chain

__all__ = [
    "check_encoding",
    "explain_missing_extra",
    "file_system",
    "given_timeout",
    "http_timeout",
    "is_directory",
    "join",
    "list_directories",
    "read_at_most",
    "read_text",
    "url_to_fs",
]

# Headers of a request that hold neither credentials nor other data of the caller.
_PLAIN_HEADERS = {"accept", "accept-encoding", "range", "user-agent"}

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
    if str(url).startswith(("http://", "https://")):
        options.setdefault("get_client", open_session)
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
    if protocol in ("http", "https") and not given_timeout(options):
        options["timeout"] = http_timeout(time_limit())
    if protocol in ("gs", "gcs") and "requests_timeout" not in options:
        # gcsfs repeats a request up to five times itself, without an option for it.
        options["requests_timeout"] = http_timeout(time_limit())
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


def given_timeout(storage_options: Mapping[str, Any]) -> bool:
    """Return whether the caller sets timeouts of HTTP."""
    return "timeout" in {*storage_options, *(storage_options.get("client_kwargs") or {})}


def http_timeout(seconds: float | None) -> Any:
    """Return the timeouts of one request: all of it, and the waits for a connection and for the next byte."""
    try:
        import aiohttp
    except ImportError:
        # fsspec reports the missing package.
        return None
    return aiohttp.ClientTimeout(total=seconds, sock_connect=request_timeout(), sock_read=request_timeout())


async def open_session(trace_configs: Sequence[Any] = (), **options: Any) -> Any:
    """Open a session of aiohttp that follows redirects to web servers only, and keeps headers from other hosts."""
    import aiohttp

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_check_redirect)
    return aiohttp.ClientSession(trace_configs=[*trace_configs, trace], **options)


async def _check_redirect(_session: Any, _context: Any, request: Any) -> None:
    response = request.response
    target = response.headers.get("Location") or response.headers.get("URI")
    if target is None:
        return
    try:
        url = request.url.join(type(request.url)(target))
        same = url.origin() == request.url.origin()
    except ValueError:
        url, same = None, False
    if url is None or url.scheme not in ("http", "https"):
        response.close()
        raise StorageError(
            f"the server redirects to {redact_url(target[:200])!r}; only http:// and https:// are followed",
            Location(str(request.url)),
        )
    if not same:
        # aiohttp passes these headers to the next request; it removes Authorization only.
        for name in {name for name in request.headers if name.lower() not in _PLAIN_HEADERS}:
            request.headers.popall(name)


def check_encoding(headers: Mapping[str, str], path: str) -> None:
    """Refuse a response whose content is encoded: it may have any size, and its offsets are others."""
    encoding = headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise StorageError(
            f"expected the stored bytes, the server sent them with Content-Encoding {encoding[:40]!r}; configure it to "
            f"send files unchanged",
            Location(path),
        )


async def read_at_most(content: Any, count: int) -> bytes:
    """Read up to `count` bytes of a response."""
    parts = []
    while count > 0 and (part := await content.read(count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


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
        data = with_retries(lambda: _read_small(fs, path, limits().text_nbytes + 1), str(url), "read the file")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    if len(data) > limits().text_nbytes:
        raise TFRecordError(f"expected a text file of at most {limits().text_nbytes:,} bytes", Location(str(url)))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TFRecordError(f"expected text in UTF-8; {error}", Location(str(url))) from None


def _read_small(fs: Any, path: str, most: int) -> bytes:
    """Read a file up to `most` bytes, in one request."""
    kinds = {kind.__name__ for kind in type(fs).__mro__}
    if isinstance(fs, LocalFileSystem):
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read(most)
    if not kinds & {"HTTPFileSystem", "S3FileSystem"}:
        whole: bytes = fs.cat_file(path)
        return whole
    read = _read_http if "HTTPFileSystem" in kinds else _read_s3
    data: bytes = sync(fs.loop, read, fs, path, most, remaining_seconds())
    return data


async def _read_http(fs: Any, path: str, most: int, seconds: float) -> bytes:
    async with asyncio.timeout(seconds):
        options: dict[str, Any] = dict(fs.kwargs)
        headers = {**options.pop("headers", {}), "Accept-Encoding": "identity"}
        session = await fs.set_session()
        with contextlib.closing(await session.get(fs.encode_url(path), headers=headers, **options)) as response:
            if response.status == 404:
                raise FileNotFoundError(path)
            response.raise_for_status()
            check_encoding(response.headers, path)
            return await read_at_most(response.content, most)


async def _read_s3(fs: Any, path: str, most: int, seconds: float) -> bytes:
    async with asyncio.timeout(seconds):
        bucket, key, version = fs.split_path(path)
        response = await fs._call_s3(
            "get_object", Bucket=bucket, Key=key, **({"VersionId": version} if version else {})
        )
        with contextlib.closing(response["Body"]) as body:
            return await read_at_most(body, most)


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
