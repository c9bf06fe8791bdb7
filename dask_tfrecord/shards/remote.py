"""Remote files: clients with timeouts, calls that are repeated after transient failures, and ranges of bytes.

By default, the clients of HTTP and S3 wait for minutes, and S3 retries at two levels. `file_system` limits the wait of
each request, and `with_retries` is the only level of retries. Its waits double and are random, so that many tasks do
not retry at the same moment. The settings ``storage.attempts`` and ``storage.timeout`` limit the attempts of a call and
their time. Options of the caller take precedence. Other errors are raised unchanged, except for their credentials.

Object stores and HTTP servers are read with one request per range, without an open connection in between. Each response
is compared with the listing, so that a changed file is detected. Other file systems (archives, sftp, caches) are read
through an open file. A server without support of ranges is read sequentially from the beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import logging
import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import fsspec.core
from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem, sync
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import registry
from fsspec.utils import stringify_path

from dask_tfrecord.errors import (
    Location,
    ShardChangedError,
    ShardNotFoundError,
    Spelled,
    StorageError,
    TFRecordError,
    describe_error,
    explain_missing,
    hide_credentials,
    near_misses,
    plural,
    redact,
    redact_url,
    without_credentials,
)
from dask_tfrecord.settings import full_name, limits, read_count, read_seconds, this_worker
from dask_tfrecord.shards.object_store import PROTOCOL, StoreFileSystem
from dask_tfrecord.shards.shard import NOT_REGULAR, Shard, check_encodable, has_changed, is_local, split_chain

# Part of the time limit of a call that one request may wait.
_REQUEST_PART = 1 / 4
_MAX_WAIT = 10.0

# From this number of files on, listing their remote directory is cheaper than looking up each file.
MIN_LOOKUPS_TO_LIST = 8

# HTTP statuses of transient failures: timeout, too early, too many requests, and errors of the server or its proxies.
_TRANSIENT_STATUS = {408, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524}

# An OSError without a status is transient, unless its errno is one of these.
_PERMANENT_ERRNO = {
    *(errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENOSYS),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.EBADF, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EROFS),
}
_PERMANENT = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, TFRecordError)

# Names of exceptions for failed connections, of clients that this module does not import.
_TRANSIENT_NAMES = {
    *("ClientConnectionError", "ClientPayloadError"),  # aiohttp
    *("HTTPClientError", "IncompleteReadError", "ResponseParserError"),  # botocore
    *("EndpointConnectionError", "ConnectTimeoutError"),
    *("ProtocolError", "IncompleteRead"),  # urllib3, http.client
    *("ServiceRequestError", "ServiceResponseError", "TransportError"),  # azure, google
}

# Permanent errors that callers expect.
_EXPECTED = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, NotImplementedError)

# Names of exceptions for missing credentials: of botocore, and of Google.
_WITHOUT_KEYS = {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "TokenRetrievalError"}
_WITHOUT_KEYS |= {"DefaultCredentialsError", "RefreshError"}

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

# Time at which the current call of `with_retries` has to end.
_DEADLINE: ContextVar[float] = ContextVar("deadline")


def request_timeout() -> float:
    """Return the seconds without a byte after which a request fails."""
    return time_limit() * _REQUEST_PART


def time_limit() -> float:
    """Return the seconds that a call may take with all its attempts."""
    return read_seconds("storage.timeout")


def remaining_seconds() -> float:
    """Return the seconds until the time limit of the current call of `with_retries`."""
    return max(0.001, _DEADLINE.get() - time.monotonic())


def with_retries(call: Callable[[], Result], path: str, what: str, stopped: threading.Event | None = None) -> Result:
    """Call a function until it succeeds, or fails with an error that is not transient.

    `path` and `what` ("read bytes 0 to 99") are for errors. `stopped` ends the retries when the result is not
    needed. Raises StorageError if all attempts failed with transient errors, or at the time limit; the last error is
    its cause.
    """
    stopped = stopped or threading.Event()
    started = time.monotonic()
    limit = time_limit()
    attempts = read_count("storage.attempts")
    for attempt in range(1, attempts + 1):
        token = _DEADLINE.set(started + limit)
        try:
            return call()
        except Exception as error:
            failed = error
        finally:
            _DEADLINE.reset(token)
        transient = not stopped.is_set() and is_transient(failed)
        # Clients report a file as not found when the connection failed.
        reason = [*_causes_of(failed)][-1] if isinstance(failed, FileNotFoundError) else failed
        if isinstance(reason, StorageError):
            # A server that was refused: its file may exist.
            raise reason.with_traceback(None) from None
        # Outside the except block, so that an error with credentials does not become the context of another.
        cleaned = without_credentials(failed)
        if not transient:
            raise _permanent_error(failed, cleaned, path, what)
        seconds = time.monotonic() - started
        wait = min(limits().first_retry_wait * 2 ** (attempt - 1), _MAX_WAIT) * random.uniform(0.5, 1)
        if attempt == attempts or seconds + wait >= limit:
            raise StorageError(
                f"could not {what} in {plural(attempt, 'attempt')} over {seconds:.0f} s; the last one failed with "
                f"{describe_error(reason)}. Try again when the store responds; dask.config "
                f"{full_name('storage.timeout')!r} limits the time, now to {limit:g} s",
                Location(path),
            ) from cleaned
        place, text = Location(path), describe_error(reason)
        _log.warning("%s: attempt %d to %s failed (%s); retrying in %.1f s", place, attempt, what, text, wait)
        stopped.wait(wait)
    raise AssertionError("the last attempt returns or raises")


def call_once(call: Callable[[], Result], path: str, what: str) -> Result:
    """Call a function of a file system that repeats its requests itself; its errors hold the path, no credentials.

    `path` and `what` are as for `with_retries`.
    """
    try:
        return call()
    except Exception as error:
        failed = error
    raise _permanent_error(failed, without_credentials(failed), path, what)


_CREDENTIALS = Spelled(
    "; pass credentials in storage_options, or for a public bucket anon=True for S3 and token='anon' for Google",
    "; credentials come from the environment (AWS_ACCESS_KEY_ID and others); for a public bucket set "
    """FSSPEC_S3='{"anon": true}' for S3 and FSSPEC_GS='{"token": "anon"}' for Google""",
)


def _permanent_error(failed: Exception, cleaned: Exception, path: str, what: str) -> Exception:
    """Choose the error to raise for a call that is not repeated: with its path, which errors of clients lack.

    `cleaned` is `failed` without credentials. It is the cause of an error of another class, and is returned itself if
    it names a path, or if its class identifies it.
    """
    has_path = getattr(cleaned, "filename", None) or getattr(cleaned, "place", None)
    if has_path or isinstance(cleaned, _EXPECTED):
        return cleaned
    text = f"could not {what}: {describe_error(failed).strip()}"
    named: Exception
    if _WITHOUT_KEYS & class_names(failed):
        named = StorageError(text + _CREDENTIALS, Location(path))
    elif is_denied(failed):
        named = PermissionError(errno.EACCES, text, redact_url(path))
    elif isinstance(cleaned, StorageError) or type(cleaned).__module__ != "builtins":
        named = StorageError(text, Location(path))
    else:
        return cleaned
    named.__cause__ = cleaned
    return named


def file_info(fs: AbstractFileSystem, path: str, url: str) -> dict[str, Any] | None:
    """Return the properties of a file or directory; None if it does not exist."""
    try:
        return dict(with_retries(lambda: fs.info(path), url, "look up the file"))
    except (FileNotFoundError, NotADirectoryError):
        return None


def class_names(thing: object) -> set[str]:
    """Name an object's class and base classes, whose packages aren't imported here."""
    return {kind.__name__ for kind in type(thing).__mro__}


def list_directory(fs: AbstractFileSystem, directory: str) -> dict[str, dict[str, Any]] | None:
    """List a directory by name; None if it does not exist or cannot be listed."""
    try:
        listed = with_retries(lambda: fs.ls(directory, detail=True), directory, "list the directory")
    except (FileNotFoundError, NotADirectoryError, NotImplementedError):
        return None
    return {info["name"].rstrip("/").rpartition("/")[2]: info for info in listed}


def files_below(fs: AbstractFileSystem, directory: str) -> Iterator[str]:
    """List the files of a directory and of all directories below it; links are not followed.

    `find` and `walk` of fsspec leave out directories that cannot be listed; here they raise.
    """
    pending = [directory]
    while pending:
        for info in (list_directory(fs, pending.pop()) or {}).values():
            if info["type"] == "directory":
                pending.append(info["name"])
            else:
                yield str(info["name"])


def is_transient(error: BaseException) -> bool:
    """Return whether the same call may succeed when it is repeated."""
    chain = list(_causes_of(error))
    reported = isinstance(error, FileNotFoundError) and not isinstance(error, TFRecordError)
    links = chain if reported else chain[:1]
    lost = any(isinstance(link, ConnectionError | TimeoutError) for link in links)
    if lost or any(_TRANSIENT_NAMES & class_names(link) for link in links):
        # Checked before the status, because parsers assign one to interrupted responses. botocore raises its errors
        # without a cause, so the context is searched for an unknown host.
        return not any(_is_unknown_host(link) for link in _causes_of(error, context=True))
    status = http_status(error)
    if status is not None:
        return status in _TRANSIENT_STATUS
    if isinstance(error, _PERMANENT) or is_denied(error):
        return False
    for link in _causes_of(error):
        if isinstance(link, OSError) and (link.errno in _PERMANENT_ERRNO or _is_unknown_host(link)):
            return False
    return isinstance(error, OSError | TimeoutError)


def is_denied(error: BaseException) -> bool:
    """Return whether an error reports missing permission or credentials."""
    # The error of gcsfs lacks another sign: https://github.com/fsspec/gcsfs/blob/main/gcsfs/retry.py
    forbidden = type(error) is OSError and error.errno is None and str(error).startswith("Forbidden: ")
    return isinstance(error, PermissionError) or forbidden or http_status(error) in (401, 403)


def http_status(error: BaseException) -> int | None:
    """Return the HTTP status in an error or one of its causes."""
    for link in _causes_of(error):
        response = getattr(link, "response", None)
        if isinstance(response, Mapping):
            # botocore
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if isinstance(status, int):
                return status
        for name in ("status", "status_code", "code"):
            status = getattr(link, name, None)
            if isinstance(status, int) and 100 <= status < 600:
                return status
    return None


def _is_unknown_host(error: BaseException) -> bool:
    # Error numbers of getaddrinfo differ between platforms. The failure of a name server has another message.
    return type(error).__name__ == "gaierror" and "ame or service not known" in str(error)


def _causes_of(error: BaseException, context: bool = False) -> Iterator[BaseException]:
    """Yield an error and its causes, and errors during which they were raised if `context`."""
    link: BaseException | None = error
    for _ in range(8):
        if link is None:
            return
        yield link
        link = link.__cause__ or (link.__context__ if context else None)


# Headers of a request that hold neither credentials nor other data of the caller.
_PLAIN_HEADERS = {"accept", "accept-encoding", "range", "user-agent"}

# Protocols of fsspec that errors suggest.
_PROTOCOLS = ("s3", "gs", "az", "http", "https", "hf", "hdfs", "ssh", "ftp", "file")

# Module of a file system, and the extra that installs it.
_EXTRAS = {"s3fs": "s3", "gcsfs": "gcs"}


@contextmanager
def explain_missing_extra() -> Iterator[None]:
    """Name the extra that installs a missing file system, and the file systems that exist."""
    try:
        yield
    except OSError as error:
        if "libjvm" not in str(error):
            raise
        # pyarrow lists all paths where it has looked.
        raise OSError(
            "this URL needs Hadoop's libhdfs and a Java virtual machine, which pyarrow does not find: set JAVA_HOME, "
            "HADOOP_HOME and CLASSPATH, or use webhdfs://"
        ) from error
    except ValueError as error:
        unknown = re.match(r"Protocol not known: (\S+)", str(error))
        if unknown is None:
            raise
        raise ValueError(
            f"no file system is known for {unknown[1]}:// URLs{near_misses(unknown[1], _PROTOCOLS)}"
        ) from error
    except ImportError as error:
        for module, extra in _EXTRAS.items():
            if error.name == module or module in str(error):
                with explain_missing("this URL needs", module, extra):
                    raise
        # fsspec names the package of a file system that is not installed.
        found = re.search(r"^Install (\S+)|\"(aiohttp)\"", str(error))
        if found is None:
            raise
        package = found[1] or found[2]
        message = f"this URL needs {package}, which is not installed: pip install {package}"
        raise ImportError(message, name=package) from error


def url_to_fs(url: Any, **options: Any) -> tuple[Any, str]:
    """Open the file system of a URL with the timeouts and retries of its client, as for uploads.

    Return it with the path in it. The option `store` is a store of obstore that has the path. Errors contain no
    credentials.
    """
    if "store" in options:
        fs = StoreFileSystem(**options)
        return fs, store_url(str(stringify_path(url)), options).removeprefix(f"{PROTOCOL}://")
    if str(url).startswith(("http://", "https://")) and not _is_obstore(str(url).partition("://")[0]):
        options.setdefault("get_client", open_session)

    def open_url() -> tuple[Any, str]:
        if "::" in (path := str(stringify_path(url))) and is_local(path):
            # fsspec would open the file of the name before the colons.
            return fsspec.filesystem("file", **options), check_encodable(Path(path).absolute().as_posix())
        with explain_missing_extra():
            fs, path = fsspec.core.url_to_fs(url, **options)
        return fs, check_encodable(path) if isinstance(fs, LocalFileSystem) else path

    return hide_credentials(open_url)


def check_slashes(url: str) -> None:
    """Refuse the path of a new file that begins like a URL, which would be a local directory ``s3:``."""
    if match := re.match(f"(?:{'|'.join(_PROTOCOLS)}):/(?!/)", url):
        raise ValueError(f"{redact(url)!r} is a local path; did you mean {match[0]}/…?")


def store_url(url: str, storage_options: Mapping[str, Any] | None) -> str:
    """Return the URL of a path in the store of `storage_options`; without a store, the path or URL itself.

    Raises ValueError if it is a URL of a file system.
    """
    check_slashes(url)
    if "store" not in (storage_options or {}):
        return url
    path = url.removeprefix(f"{PROTOCOL}://")
    if "://" in path or "::" in path:
        raise ValueError(f"expected a path in storage_options['store'], such as 'train/x'; got {redact(url)!r}")
    return f"{PROTOCOL}://{path.strip('/')}"


def file_system(url: str, storage_options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """Open a URL's file system for `with_retries`: short timeouts, no retries by the client.

    Every read passes here, on workers too, with the `storage_options` that its shards carry. The options of chained
    URLs are passed on unchanged. Errors contain no credentials.
    """
    options = dict(storage_options or {})
    protocol = "" if "::" in url else url.partition("://")[0]
    if "store" in options or _is_obstore(protocol):
        # Its client has limits and retries of its own, and other options than the clients below.
        return url_to_fs(url, **options)
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


def _is_obstore(protocol: str) -> bool:
    """Return whether the user has registered obstore for a protocol; nothing is imported."""
    kinds = getattr(registry.get(protocol), "__mro__", ())
    return any(kind.__module__ == "obstore.fsspec" for kind in kinds)


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
    """Refuse redirects to other protocols, and send no credentials to another host."""
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
    start = links[index]
    links[index] = start + name if start.endswith("://") else f"{start.rstrip('/')}/{name}"
    return "::".join(links)


def read_text(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> str | None:
    """Read a text file; None if it does not exist.

    Raises TFRecordError if it is not encoded in UTF-8, and StorageError if the path is a pipe, socket or device.
    """
    fs, path = file_system(str(stringify_path(url)), storage_options)
    if isinstance(fs, LocalFileSystem) and os.path.exists(path) and not os.path.isfile(path) | os.path.isdir(path):  # noqa: PTH110, PTH112, PTH113
        raise StorageError(NOT_REGULAR, Location(str(url)))
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


def _read_small(fs: AbstractFileSystem, path: str, most: int) -> bytes:
    """Read a file up to `most` bytes, in one request."""
    if isinstance(fs, LocalFileSystem):
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read(most)
    if isinstance(fs, StoreFileSystem):
        return fs.read(path, most)[0]
    if "HTTPFileSystem" in class_names(fs):
        return _run_in_time(fs, _read_http(fs, path, most))
    return read_object(fs, path, most)


def read_object(fs: AbstractFileSystem, path: str, most: int = sys.maxsize) -> bytes:
    """Read an object, of S3 up to `most` bytes, in one request; s3fs would look up its size before."""
    if "S3FileSystem" in class_names(fs):
        return _run_in_time(fs, read_s3(fs, path, most))
    return bytes(fs.cat_file(path))


def _run_in_time(fs: AbstractFileSystem, request: Coroutine[Any, Any, bytes]) -> bytes:
    """Run a request in its file system's event loop, within the time limit of `with_retries`."""
    seconds = remaining_seconds()

    async def limited() -> bytes:
        async with asyncio.timeout(seconds):
            return await request

    return bytes(sync(fs.loop, limited))


async def _get(fs: AbstractFileSystem, url: str, path: str, headers: Mapping[str, str], **options: Any) -> Any:
    """Request a file from a web server; return the response to a request that succeeded."""
    options = {**fs.kwargs, **options}
    headers = {**options.pop("headers", {}), **headers, "Accept-Encoding": "identity"}
    session = await fs.set_session()
    response = await session.get(url, headers=headers, **options)
    try:
        if response.status == 404:
            raise FileNotFoundError(url)
        response.raise_for_status()
        check_encoding(response.headers, path)
    except BaseException:
        response.close()
        raise
    return response


async def _get_s3(fs: AbstractFileSystem, path: str, **options: Any) -> Any:
    """Request an object of S3; return the response."""
    bucket, key, version = fs.split_path(path)
    versioned = {"VersionId": version} if version else {}
    return await fs._call_s3("get_object", Bucket=bucket, Key=key, **versioned, **options)


async def _read_http(fs: AbstractFileSystem, path: str, most: int) -> bytes:
    with contextlib.closing(await _get(fs, fs.encode_url(path), path, {})) as response:
        return await read_at_most(response.content, most)


async def read_s3(fs: AbstractFileSystem, path: str, most: int = sys.maxsize) -> bytes:
    """Read an object of S3, up to `most` bytes."""
    response = await _get_s3(fs, path)
    with contextlib.closing(response["Body"]) as body:
        return await read_at_most(body, most)


def is_directory(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> bool:
    """Return whether a path or URL is an existing directory."""
    fs, path = file_system(str(stringify_path(url)), storage_options)
    return bool(with_retries(lambda: fs.isdir(path), str(url), "check whether it is a directory"))


def list_directories(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Return the sorted names of the subdirectories of a directory; empty if it cannot be listed."""
    fs, path = file_system(str(stringify_path(url)), storage_options)
    listed = list_directory(fs, path) or {}
    return tuple(sorted(name for name, info in listed.items() if info["type"] == "directory"))


# Bytes that are discarded at a time before the start of a range, if the server sends the whole file.
_DISCARD_SIZE = 1 << 20


class RangeFetcher:
    """Fetch complete ranges of one file, with retries.

    `read` returns the bytes between two offsets, and fewer only if the file is shorter. `current_info` returns the
    current properties of the file, and `concurrent` whether several threads may call `read` now.
    """

    def __init__(
        self,
        shard: Shard,
        read: Callable[[int, int], bytes],
        current_info: Callable[[], dict[str, Any]],
        close: Callable[[], None] = lambda: None,
        concurrent: Callable[[], bool] = lambda: True,
    ) -> None:
        self._shard, self._read, self._current_info, self._close = shard, read, current_info, close
        self.concurrent = concurrent
        self._stopped = threading.Event()

    def __call__(self, start: int, stop: int) -> bytes:
        """Return bytes ``start`` to ``stop`` of the file, unless it has changed or does not exist any more."""
        what = f"read bytes {start} to {stop}"
        try:
            return with_retries(lambda: self._read_complete(start, stop), self._shard.path, what, self._stopped)
        except FileNotFoundError as error:
            raise not_found_error(self._shard) from error

    def stop(self) -> None:
        """End the retries after the current attempt."""
        self._stopped.set()

    def close(self) -> None:
        """Close open files and connections."""
        self.stop()
        self._close()

    def _read_complete(self, start: int, stop: int) -> bytes:
        """Read a range; if fewer bytes arrive, find out whether the file has changed."""
        try:
            data = self._read(start, stop)
        except Exception as error:
            # 412: the ETag differs. 416: the range begins past the end of the file.
            if http_status(error) in (412, 416):
                raise changed_error(self._shard) from error
            raise
        if len(data) == stop - start:
            return data
        info = self._current_info()
        if has_changed(self._shard, info):
            raise changed_error(self._shard, info.get("size"))
        raise ConnectionError(f"received {len(data)} of {stop - start} bytes")


def open_ranges(shard: Shard) -> RangeFetcher:
    """Open a remote file for reading ranges; raise ShardChangedError if it is known to have changed."""
    fs, path = file_system(shard.path, shard.storage_options)
    kinds = class_names(fs)
    info_of = partial(_current_info, fs, path)
    if isinstance(fs, StoreFileSystem):
        return RangeFetcher(shard, partial(_read_store_range, shard, fs, path), info_of)
    if "S3FileSystem" in kinds:
        return RangeFetcher(shard, partial(_read_s3_range, shard, fs, path), info_of)
    if "HTTPFileSystem" in kinds:
        whole = _HttpRanges(shard, fs, path)
        return RangeFetcher(shard, whole.read, info_of, whole.close, lambda: whole.sends_ranges)
    info = with_retries(info_of, shard.path, "look up the file")
    if has_changed(shard, info):
        raise changed_error(shard, info.get("size"))
    if isinstance(fs, AsyncFileSystem):
        return RangeFetcher(shard, lambda start, stop: fs.cat_file(path, start=start, end=stop), info_of)
    file = _FileRanges(fs, path)
    return RangeFetcher(shard, file.read, info_of, file.close, lambda: False)


def changed_error(shard: Shard, size: int | None = None) -> ShardChangedError:
    """Return the error for a file that has changed since it was listed."""
    if size is not None and size != shard.size:
        message = f"the file had {shard.size:,} bytes when it was listed and ends after {size:,} now: it was "
        message += "truncated or replaced" if size < shard.size else "appended to or replaced"
    else:
        message = "the file has changed since it was listed: it was written to or replaced"
    return ShardChangedError(f"{message}; call read_tfrecord again", Location(shard.path))


def not_found_error(shard: Shard) -> ShardNotFoundError:
    """Return the error for a file that was listed and is not found: it was removed, or a worker does not see it."""
    place, worker = Location(shard.path), this_worker()
    if worker is None:
        return ShardNotFoundError("the file is gone since it was listed; call read_tfrecord again", place)
    return ShardNotFoundError(
        f"worker {worker.name} ({worker.address}) does not find this file, which was listed: it is gone since then, or "
        f"this worker does not see the path; check_workers(client, {redact_url(shard.path)!r}) shows which workers do",
        place,
    )


def check_range(given: str, start: int, stop: int, path: str) -> None:
    """Check a Content-Range, which may end before the requested range at the end of the file only."""
    found = re.fullmatch(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", given)
    if found is None or int(found[1]) != start:
        raise ConnectionError(f"requested bytes from {start}, received {given[:80]!r}")
    if int(found[2]) >= stop:
        raise StorageError(
            f"the server answered a request of bytes {start} to {stop} with {given!r}; it does not follow HTTP",
            Location(path),
        )


def _current_info(fs: AbstractFileSystem, path: str) -> dict[str, Any]:
    fs.invalidate_cache()
    return dict(fs.info(path))


def _read_store_range(shard: Shard, fs: StoreFileSystem, path: str, start: int, stop: int) -> bytes:
    """Read a range of an object of a store, and compare the object with the listed one."""
    try:
        data, info = fs.read(path, stop - start, range=(start, stop))
    except StorageError:
        # The range may begin past the end of the file.
        info = _current_info(fs, path)
        if not has_changed(shard, info):
            raise
    if has_changed(shard, info):
        raise changed_error(shard, info["size"])
    return data


def _read_s3_range(shard: Shard, fs: AbstractFileSystem, path: str, start: int, stop: int) -> bytes:
    """Read a range of an object of S3. The server compares its ETag with the listed one."""
    # VAST servers do not support the condition; s3fs documents the option for them.
    condition = {} if getattr(fs, "local_expiry_check", False) else {"IfMatch": f'"{shard.version}"'}

    async def read() -> bytes:
        response = await _get_s3(fs, path, Range=f"bytes={start}-{stop - 1}", **condition)
        with contextlib.closing(response["Body"]) as body:
            if has_changed(shard, {"ETag": response.get("ETag")}):
                raise changed_error(shard)
            check_range(response.get("ContentRange", ""), start, stop, shard.path)
            return await read_at_most(body, stop - start)

    return _run_in_time(fs, read())


class _HttpRanges:
    """File of a web server, with or without support of ranges."""

    def __init__(self, shard: Shard, fs: AbstractFileSystem, path: str) -> None:
        self._shard = shard
        self._fs = fs
        self._url = fs.encode_url(path)
        # Response of a server that sends the whole file: the following ranges are read from it.
        self._whole: Any = None
        self._position = 0
        self.sends_ranges = False

    def read(self, start: int, stop: int) -> bytes:
        return bytes(sync(self._fs.loop, self._read, start, stop, remaining_seconds()))

    def close(self) -> None:
        if self._whole is not None:
            self._fs.loop.call_soon_threadsafe(self._whole.close)
            self._whole = None

    async def _read(self, start: int, stop: int, seconds: float) -> bytes:
        """Read a range, of a server without ranges from a stream that goes on."""
        async with asyncio.timeout(seconds):
            if self._whole is None or start < self._position:
                response = await self._request(start, stop)
                if response.status == 206:
                    self.sends_ranges = True
                    # Not returned to the pool of connections: a response may be longer than the range.
                    with contextlib.closing(response):
                        return await read_at_most(response.content, stop - start)
                if self.sends_ranges:
                    # Other threads may read.
                    response.close()
                    raise ConnectionError("requested a range as before, received the whole file")
                self._whole, self._position = response, 0
        try:
            while self._position < start:
                async with asyncio.timeout(seconds):
                    await self._take(min(start - self._position, _DISCARD_SIZE))
            async with asyncio.timeout(seconds):
                return await self._take(stop - start)
        except BaseException:
            self._whole.close()
            self._whole = None
            raise

    async def _request(self, start: int, stop: int) -> Any:
        """Request a range, and check the head of the response."""
        if self._whole is not None:
            self._whole.close()
            self._whole = None
        # The caller may take any time between two parts of a whole file; `_read` limits each of them.
        options = {} if given_timeout(self._shard.storage_options) else {"timeout": http_timeout(None)}
        wanted = {"Range": f"bytes={start}-{stop - 1}"}
        response = await _get(self._fs, self._url, self._shard.path, wanted, **options)
        try:
            self._check_response(response, start, stop)
        except BaseException:
            response.close()
            raise
        return response

    def _check_response(self, response: Any, start: int, stop: int) -> None:
        """Check that the response holds the requested range, of the file that was listed."""
        info = {key: response.headers[key] for key in ("ETag", "Last-Modified") if key in response.headers}
        if response.status == 206:
            given = response.headers.get("Content-Range", "")
            check_range(given, start, stop, self._shard.path)
            total = given.rpartition("/")[2]
        else:
            total = response.headers.get("Content-Length", "")
        if total.isdigit():
            info["size"] = int(total)
        if has_changed(self._shard, info):
            raise changed_error(self._shard, info.get("size"))

    async def _take(self, count: int) -> bytes:
        """Read the next bytes of the whole file; an early end is an error that is tried again."""
        data = await read_at_most(self._whole.content, count)
        self._position += len(data)
        if len(data) < count and self._position < self._shard.size:
            raise ConnectionError(f"the connection ended after {self._position} of {self._shard.size} bytes")
        return data


class _FileRanges:
    """File that fsspec opens, for one reader at a time."""

    def __init__(self, fs: AbstractFileSystem, path: str) -> None:
        # The reference keeps the archive open that contains the file.
        self._fs = fs
        self._path = path
        self._file: BinaryIO | None = None
        self._position = 0

    def read(self, start: int, stop: int) -> bytes:
        """Read a range from an open file."""
        try:
            if self._file is None:
                self._file, self._position = self._open(), 0
            if self._position != start:
                self._file.seek(start)
            parts = []
            while start < stop and (part := self._file.read(stop - start)):
                parts.append(part)
                start += len(part)
            self._position = start
            return b"".join(parts)
        except BaseException:
            # The next attempt opens the file again.
            self.close()
            raise

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> BinaryIO:
        """Open the file, without a cache of fsspec."""
        file: BinaryIO = self._fs.open(self._path, "rb", cache_type="none")
        if isinstance(file, io.BytesIO):
            # All readers of a memory file share one object and its position. The copy shares only its bytes.
            return io.BytesIO(file.getvalue())
        return file
