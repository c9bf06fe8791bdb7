"""Calls to disks and stores that are made again when they fail in passing.

A dropped connection, a timeout or a busy server is asked again, `ATTEMPTS` times in all, after waits that double and
are spread at random, so that a thousand tasks do not come back at once. What a file system retries by itself comes on
top of it. Whatever else fails is raised as it is. Imports errors only.
"""

from __future__ import annotations

import errno
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from dask_tfrecord.errors import Place, StorageError, TFRecordError

__all__ = ["ATTEMPTS", "http_status", "is_transient", "list_directory", "persist"]

# Calls in all; the waits between them come to 6 to 13 seconds.
ATTEMPTS = 8
_FIRST_WAIT = 0.1
_LONGEST_WAIT = 10.0

# Too early, too many, and what a server says of itself but for "not implemented" and such.
_PASSING_STATUS = {408, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524}

# An OSError without a status passes unless it is one of these: no second try finds another answer.
_LASTING_ERRNO = {
    *(errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENOSYS),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.EBADF, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EROFS),
}
_LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, TFRecordError)

# Clients that are not imported here say by their own classes that the connection failed.
_PASSING_NAMES = {
    *("ClientConnectionError", "ClientPayloadError"),  # aiohttp
    *("HTTPClientError", "IncompleteReadError", "ResponseParserError"),  # botocore
    *("ProtocolError", "IncompleteRead"),  # urllib3, http.client
    *("ServiceRequestError", "ServiceResponseError", "TransportError"),  # azure, google
}

_log = logging.getLogger(__name__)

Result = TypeVar("Result")


def persist(call: Callable[[], Result], path: str, what: str, stopped: threading.Event | None = None) -> Result:
    """Call until it works, for as long as the failures are passing ones.

    Parameters
    ----------
    call : callable
        To be called without arguments; it has to bear being called again.
    path : str
        The file or directory, for the error.
    what : str
        What is being tried: "read bytes 0 to 99".
    stopped : threading.Event, optional
        Once set, nobody waits for the result any more.

    Returns
    -------
    object
        What the call returned.

    Raises
    ------
    StorageError
        If the last attempt failed in passing too; what failed is its cause.
    """
    stopped = stopped or threading.Event()
    began = time.monotonic()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return call()
        except Exception as error:
            if stopped.is_set() or not is_transient(error):
                raise
            if attempt == ATTEMPTS:
                seconds = time.monotonic() - began
                raise StorageError(
                    f"could not {what} in {ATTEMPTS} attempts over {seconds:.0f} s; the last one failed with "
                    f"{type(error).__name__}: {error}. Try again when the store answers",
                    Place(path),
                ) from error
            wait = min(_FIRST_WAIT * 2 ** (attempt - 1), _LONGEST_WAIT) * random.uniform(0.5, 1)
            _log.info("%s: attempt %d to %s failed (%r); again in %.1f s", path, attempt, what, error, wait)
        stopped.wait(wait)
    raise AssertionError("the last attempt returns or raises")


def list_directory(fs: Any, directory: str) -> list[dict[str, Any]] | None:
    """List a directory of a file system; None where it is none, or its server does not list.

    Raises
    ------
    StorageError
        As `persist` does.
    """
    try:
        return list(persist(lambda: fs.ls(directory, detail=True), directory, "list it"))
    except (FileNotFoundError, NotADirectoryError, NotImplementedError):
        return None


def is_transient(error: BaseException) -> bool:
    """Whether the same call may well work in a moment."""
    if any(kind.__name__ in _PASSING_NAMES for kind in type(error).__mro__):
        # Before statuses: a parser gives one to an answer that broke off.
        return not any(_is_unknown_host(link) for link in _chain(error))
    status = http_status(error)
    if status is not None:
        return status in _PASSING_STATUS
    if isinstance(error, _LASTING):
        return False
    for link in _chain(error):
        if isinstance(link, OSError) and (link.errno in _LASTING_ERRNO or _is_unknown_host(link)):
            return False
    return isinstance(error, OSError | TimeoutError)


def http_status(error: BaseException) -> int | None:
    """Find the status that a server answered with, in the error or in what it came from."""
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
    # getaddrinfo numbers its errors its own way, and a name server that does not answer is another error.
    return type(error).__name__ == "gaierror" and "ame or service not known" in str(error)


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(8):
        if link is None:
            return
        yield link
        link = link.__cause__
