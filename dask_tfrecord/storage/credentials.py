"""Removal of credentials from the errors of file systems.

Clients put URLs and headers of requests into their errors, which tracebacks, logs and clusters copy. Every call of a
file system therefore passes its errors through `without_credentials`.
"""

from __future__ import annotations

from dask_tfrecord.errors import StorageError, redact, redact_url

__all__ = ["without_credentials"]

# Builtin exceptions that callers distinguish; subclasses come before their base classes.
_BUILTINS: tuple[type[Exception], ...] = (
    *(FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError, TimeoutError),
    *(ConnectionError, ValueError, TypeError, NotImplementedError),
)
_MAX_DEPTH = 8


def without_credentials(error: Exception) -> Exception:
    """Return an error that displays and pickles without credentials.

    Parameters
    ----------
    error : Exception
        Error of a file system.

    Returns
    -------
    Exception
        The error itself if it contains no credentials, with its causes cleaned. Otherwise a new error of the same
        builtin class, or a `StorageError`. Raise it outside the ``except`` block, or the original becomes its context.
    """
    cleaned = _clean(error, 0)
    return cleaned if isinstance(cleaned, Exception) else error


def _clean(error: BaseException | None, depth: int) -> BaseException | None:
    if error is None or depth >= _MAX_DEPTH:
        return None
    cause, context = _clean(error.__cause__, depth + 1), _clean(error.__context__, depth + 1)
    cleaned = _redacted_copy(error) if _may_hold_credentials(error) else error
    cleaned.__cause__, cleaned.__context__ = cause, context
    cleaned.__suppress_context__ = error.__suppress_context__
    return cleaned


def _may_hold_credentials(error: BaseException) -> bool:
    if hasattr(error, "request_info"):
        # Errors of aiohttp hold the headers of the request.
        return True
    names = (getattr(error, "filename", None), getattr(error, "filename2", None))
    texts = [str(error), *map(str, error.args), repr(error), *(name for name in names if isinstance(name, str))]
    return any(redact(text) != text for text in texts)


def _redacted_copy(error: BaseException) -> BaseException:
    """Create an error of the same builtin class with a redacted message."""
    kind = next((kind for kind in _BUILTINS if isinstance(error, kind)), None)
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        copy: BaseException = OSError(error.errno, redact(error.strerror), redact_url(str(error.filename)))
    elif kind is not None:
        copy = kind(redact(error))
    else:
        copy = StorageError(f"{type(error).__name__}: {redact(error)}")
    status = getattr(error, "status", None)
    if isinstance(status, int):
        # Callers distinguish errors by the HTTP status.
        copy.__dict__["status"] = status
    return copy
