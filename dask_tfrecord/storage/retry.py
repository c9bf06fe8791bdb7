"""Retries of calls to disks and object stores.

A call is repeated after a lost connection, a timeout or the error of a busy server. The waits double and are random, so
that many tasks do not retry at the same moment. The settings ``storage.attempts`` and ``storage.timeout`` limit the
attempts of a call and their time. Other errors are raised unchanged, except for their credentials.
"""

from __future__ import annotations

import errno
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

from dask_tfrecord.errors import Location, StorageError, TFRecordError, describe_error, plural, without_credentials
from dask_tfrecord.settings import full_name, limits, read_count, read_seconds

__all__ = [
    "MIN_LOOKUPS_TO_LIST",
    "http_status",
    "is_transient",
    "list_directory",
    "remaining_seconds",
    "request_timeout",
    "time_limit",
    "with_retries",
]

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
    """Call a function, and repeat the call after transient failures.

    Parameters
    ----------
    call : callable
        Function without arguments that can be called repeatedly.
    path : str
        File or directory, for error messages.
    what : str
        Description of the call for error messages: "read bytes 0 to 99".
    stopped : threading.Event, optional
        Ends the retries when the result is no longer needed.

    Returns
    -------
    object
        Result of the call.

    Raises
    ------
    StorageError
        If the last attempt failed with a transient error, or the time limit was reached. Its cause is the last error.
    """
    stopped = stopped or threading.Event()
    started, limit, attempts = time.monotonic(), read_seconds("storage.timeout"), read_count("storage.attempts")
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
        reason = [*_chain(failed)][-1] if isinstance(failed, FileNotFoundError) else failed
        if isinstance(reason, StorageError):
            # A server that was refused: its file may exist.
            raise reason.with_traceback(None) from None
        # Outside the except block, so that an error with credentials does not become the context of another.
        cleaned = without_credentials(failed)
        if not transient:
            raise cleaned
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


def list_directory(fs: Any, directory: str) -> list[dict[str, Any]] | None:
    """List a directory; None if it is not a directory, or the server cannot list.

    Raises
    ------
    StorageError
        If listing fails in every attempt.
    """
    try:
        return list(with_retries(lambda: fs.ls(directory, detail=True), directory, "list the directory"))
    except (FileNotFoundError, NotADirectoryError, NotImplementedError):
        return None


def is_transient(error: BaseException) -> bool:
    """Return whether the same call may succeed when it is repeated."""
    chain = list(_chain(error))
    reported = isinstance(error, FileNotFoundError) and not isinstance(error, TFRecordError)
    links = chain if reported else chain[:1]
    lost = any(isinstance(link, ConnectionError | TimeoutError) for link in links)
    if lost or any(kind.__name__ in _TRANSIENT_NAMES for link in links for kind in type(link).__mro__):
        # Checked before the status, because parsers assign one to interrupted responses. botocore raises its errors
        # without a cause, so the context is searched for an unknown host.
        return not any(_is_unknown_host(link) for link in _chain(error, context=True))
    status = http_status(error)
    if status is not None:
        return status in _TRANSIENT_STATUS
    if isinstance(error, _PERMANENT):
        return False
    for link in _chain(error):
        if isinstance(link, OSError) and (link.errno in _PERMANENT_ERRNO or _is_unknown_host(link)):
            return False
    return isinstance(error, OSError | TimeoutError)


def http_status(error: BaseException) -> int | None:
    """Return the HTTP status of an error or of one of its causes."""
    for link in _chain(error):
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


def _chain(error: BaseException, context: bool = False) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(8):
        if link is None:
            return
        yield link
        link = link.__cause__ or (link.__context__ if context else None)
