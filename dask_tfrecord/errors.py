"""Exceptions of the library, and removal of credentials from the URLs that they display.

Each exception derives from `TFRecordError` and from the closest builtin exception. It holds the location (file, record,
byte offset, feature), the expected and the found value, and can be pickled: workers raise it, clients read it.

`redact` and `redact_url` are called by every module that displays, logs or stores a URL. File systems put URLs and
headers of requests into their errors: every call of a file system passes through `hide_credentials`, `with_retries` or
`call_once`, or its errors through `without_credentials`.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

# One URL in a chain like `simplecache::https://host/file`.
_LINK = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*?)(?=::[A-Za-z][A-Za-z0-9+.-]*://|$)", re.DOTALL)
# In a text, a URL or a chain ends at a space or a quote.
_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>`]+")
_PUNCTUATION = ".,:;)]}"
# File names of these protocols may contain any character.
_LOCAL = {"file", "local", "memory", "obstore"}
# Query and fragment begin at `?` and `#` in these protocols. In others, `?` may be a wildcard.
_WEB = {"http", "https", "webdav", "webhdfs"}
# The text before `@` is a container, bucket or account, or for the last two a repository: not a password.
_CONTAINERS = {"abfs", "abfss", "adl", "az", "oci", "wasb", "wasbs"}
_REPOSITORIES = {"git", "github"}
_QUERY = re.compile(r"\?(?!versionId=[^&]*$)[A-Za-z][\w.-]*=.*", re.DOTALL)

Result = TypeVar("Result")

# Names that an unknown name is compared with, which takes about 25 µs each; of more, those that begin like it.
_COMPARED = 2_000


def redact_url(url: str) -> str:
    """Remove user info, query and fragment from a URL, or from each URL of a chain.

    Local paths, wildcards, object versions, containers and repositories are kept.
    """
    if "://" not in url or url.startswith("/"):
        return url
    return _LINK.sub(lambda link: f"{link[1]}://{_redact_rest(link[1].lower(), link[2])}", url)


def printable(text: str) -> str:
    """Escape control characters and other letters without a glyph, so that no terminal obeys them."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def printable_lines(text: str) -> str:
    """Apply `printable` to each line of a text that has lines of its own."""
    return "\n".join(map(printable, text.split("\n")))


def redact(text: object) -> str:
    """Remove user info, query and fragment from every URL within a text."""

    def redact_match(match: re.Match[str]) -> str:
        bare = match[0].rstrip(_PUNCTUATION)
        return redact_url(bare) + match[0][len(bare) :]

    text = str(text)
    return _IN_TEXT.sub(redact_match, text) if "://" in text else text


def repr_without_credentials(self: Any) -> str:
    """Return the repr of a dataclass: URLs redacted, and options of stores left out.

    Workers log the repr of the arguments of tasks that fail.
    """
    values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "storage_options"}
    texts = {
        name: repr(redact_url(value)) if isinstance(value, str) else redact(repr(value))
        for name, value in values.items()
    }
    return f"{type(self).__name__}({', '.join(f'{name}={text}' for name, text in texts.items())})"


def describe_error(error: BaseException) -> str:
    """Return the status and message of an error without credentials, for logs and messages, and the type of others'.

    The `repr` of another library's error may hold the headers of its request.
    """
    if hasattr(error, "request_info"):
        # The message of aiohttp comes from the server, and `str` formats whatever it holds.
        url = getattr(error.request_info, "real_url", "")
        return f"{type(error).__name__}: HTTP status {getattr(error, 'status', None)} of {redact(url)}"
    text = redact(error)
    if text and (isinstance(error, TFRecordError) or type(error) in (ValueError, TypeError)):
        return text
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{redact(error.filename)}: {error.strerror}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _redact_rest(protocol: str, rest: str) -> str:
    """Redact the part of a URL after ``protocol://``."""
    if protocol in _LOCAL:
        return rest
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    user = authority.rpartition("@")[0]
    if not (protocol in _REPOSITORIES or (protocol in _CONTAINERS and ":" not in user)):
        port = authority.rpartition(":")[2]
        # An unescaped `/` or `?` in a password ends the authority early, so the text after `:` is not a port number.
        unescaped = not user and ":" in authority and not port.isdigit() and not port.endswith("]")
        rest = rest[(rest if unescaped else authority).rfind("@") + 1 :]
    return re.split("[?#]", rest, maxsplit=1)[0] if protocol in _WEB else _QUERY.sub("", rest)


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the caller's program that called the library, however deep the warning is raised."""
    package = f"{Path(__file__).parent}{os.sep}"
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def plural(number: int, noun: str) -> str:
    """Format a count with its noun: ``1 record``, ``1,200 records``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def span(low: int, high: int) -> str:
    """Format a range of counts: ``3``, ``1 to 1,200``."""
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def clipped(text: str, most: int) -> str:
    """Return a text of at most `most` letters: an ellipsis ends a longer one."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def joined(texts: Sequence[str], most: int) -> str:
    """Join the first texts by commas, and replace the others by an ellipsis."""
    return ", ".join(texts[:most]) + (", …" if len(texts) > most else "")


@dataclass(frozen=True, slots=True)
class Location:
    """Location of an error: file, record, byte offset and feature.

    Attributes
    ----------
    file : str
        Path or URL of the shard, without credentials.
    record : int or None
        Zero-based number of the record in the shard.
    offset : int or None
        Offset of the record's header in the shard, or in its decompressed stream.
    feature : str or None
        Name of the feature.
    """

    file: str
    record: int | None = None
    offset: int | None = None
    feature: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "file", redact_url(self.file))

    def __str__(self) -> str:
        parts = [self.file]
        if self.record is not None:
            parts.append(f"record {self.record}" + ("" if self.offset is None else f" (byte {self.offset})"))
        elif self.offset is not None:
            parts.append(f"byte {self.offset}")
        return printable(": ".join(parts))


class Spelled(str):
    """A text that names arguments of Python, and as `command` the options of the command line.

    Adding a text before or after it extends both.
    """

    __slots__ = ("command",)

    command: str

    def __new__(cls, python: str, command: str) -> Spelled:
        """Pair the two texts."""
        spelled = super().__new__(cls, python)
        spelled.command = command
        return spelled

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        """Return the arguments of `__new__`, for pickle."""
        return str(self), self.command

    def __add__(self, end: str) -> Spelled:
        """Append a text."""
        return Spelled(str(self) + str(end), self.command + for_commands(end))

    def __radd__(self, start: str) -> Spelled:
        """Prepend a text."""
        return Spelled(start + str(self), start + self.command)


def for_commands(text: str) -> str:
    """Return a text as the command line displays it."""
    return text.command if isinstance(text, Spelled) else text


# Arguments that errors recommend.
OVERWRITE = Spelled("mode='w'", "--overwrite")
RESUME = Spelled("resume=True", "--resume")
COMPONENT = Spelled("component=", "--component NAME")
FEATURES = Spelled("features=", "--features")
SPLIT = Spelled("split=", "--split")
WRITE_AGAIN = Spelled("to_zarr(…, mode='w')", "to-zarr --overwrite") + " writes the group again"


class TFRecordError(Exception):
    """Base class of the exceptions of this library.

    Parameters
    ----------
    message : str
        The problem, with the expected and the found value, and how to fix it.
    place : Location, optional
        Place of the error, shown before the message.
    """

    def __init__(self, message: str, place: Location | None = None) -> None:
        cleaned = printable_lines(redact(message))
        if isinstance(message, Spelled):
            cleaned = Spelled(cleaned, printable_lines(redact(message.command)))
        # Unpickling calls the class with `args`.
        super().__init__(cleaned, place)
        self.message = cleaned
        self.place = place

    def __str__(self) -> str:
        return str(self.message) if self.place is None else f"{self.place}: {self.message}"

    def for_commands(self) -> str:
        """Return the text of the error with options of the command line."""
        return ("" if self.place is None else f"{self.place}: ") + for_commands(self.message)


class CorruptRecordError(TFRecordError, ValueError):
    """The framing of a file is damaged: a CRC does not match, a record is truncated, or the file has another format."""


class FeatureError(TFRecordError, ValueError):
    """A record is intact, but its features contradict the schema, or its payload is not an Example."""


class FeatureValueError(FeatureError):
    """A value has the kind and number of its feature, but can't be decoded: ``value_errors`` of `read_tfrecord`."""


class SchemaError(TFRecordError, ValueError):
    """A schema contradicts itself, the data or the requested columns."""


class UnknownFeatureError(SchemaError, KeyError):
    """A name that is neither a feature nor a column of the data set."""


class SchemaNotFoundError(SchemaError, FileNotFoundError):
    """The file of a schema does not exist."""


class ShardNotFoundError(TFRecordError, FileNotFoundError):
    """No shard matches a path, glob, directory or template."""


class IncompleteStoreError(TFRecordError, ValueError):
    """A store is unfinished, has lost chunks or files, or was not written by this library."""


class UnsupportedFormatError(TFRecordError, ValueError):
    """A store was written by a newer version of this library, in a layout that this version does not know."""


class ResumeError(TFRecordError, ValueError):
    """A conversion cannot be resumed: its inputs or options have changed."""


class StoreInUseError(TFRecordError, FileExistsError):
    """Another run is writing the store that this run would create, resume or replace."""


class ClusterError(TFRecordError, RuntimeError):
    """Workers of a cluster lack software, or do not reach a path."""


class ShardChangedError(CorruptRecordError):
    """A file has changed since it was listed, so plans and indexes made for it are invalid."""


class MemoryLimitError(MemoryError, TFRecordError):
    """A decoded block would exceed the memory limit or the available memory."""

    # MemoryError is the first base class: unpickling calls its `__new__`.
    def __init__(self, message: str, place: Location | None = None) -> None:
        TFRecordError.__init__(self, message, place)

    __str__ = TFRecordError.__str__


@contextmanager
def explain_refused_memory() -> Iterator[None]:
    """Raise MemoryLimitError if the system refuses memory, or a thread, whose error is a RuntimeError of Python."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        what = "memory" if isinstance(error, MemoryError) else "another thread"
        if isinstance(error, TFRecordError) or (what != "memory" and "can't start new thread" not in str(error)):
            raise
        raise MemoryLimitError(refused(what)) from error


def refused(what: str) -> str:
    """Return a message that the system refuses memory or a thread to this process, and what to do."""
    limit = ""
    if sys.platform != "win32":
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        if most != resource.RLIM_INFINITY:
            limit = (
                f", whose addresses are limited to {most >> 20:,} MiB (ulimit -v): threads reserve more than they use"
            )
    return (
        f"the system refuses {what} to this process{limit}. Use fewer threads, as with dask.config.set(num_workers=2)"
    )


class StorageError(TFRecordError, OSError):
    """A disk or an object store failed in every attempt, or a file is not a regular file."""


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


def hide_credentials(call: Callable[[], Result]) -> Result:
    """Call a function of a file system; its errors contain no credentials."""
    try:
        return call()
    except Exception as error:
        failed = error
    raise without_credentials(failed)


def _clean(error: BaseException | None, depth: int) -> BaseException | None:
    """Remove credentials from an error and the errors that it was raised for, down to a depth."""
    if error is None or depth >= _MAX_DEPTH:
        return None
    cause, context = _clean(error.__cause__, depth + 1), _clean(error.__context__, depth + 1)
    cleaned = _redacted_copy(error) if _may_hold_credentials(error) else error
    cleaned.__cause__, cleaned.__context__ = cause, context
    cleaned.__suppress_context__ = error.__suppress_context__
    return cleaned


def _may_hold_credentials(error: BaseException) -> bool:
    """Return whether a text or attribute of an error shows credentials."""
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


@contextmanager
def explain_missing(what: str, package: str, extra: str) -> Iterator[None]:
    """Name the extra of this library that installs a missing package; `what` ends with the verb: "LazyFrames need"."""
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"{what} {package}, which is not installed: pip install 'dask-tfrecord[{extra}]'",
            name=error.name or package,
        ) from error


def near_misses(name: object, names: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: names that are similar, or all of them."""
    names = [str(known) for known in names]
    shown = joined(list(map(repr, names[:11])), 10)
    if len(names) > _COMPARED:
        start = str(name)[:3].casefold()
        names = [known for known in names if known[:3].casefold() == start][:_COMPARED]
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.6)
    nested = [known for known in names if known.endswith(f"/{name}") or known.startswith(f"{name}/")]
    if close := list(dict.fromkeys([*nested, *(known for known in near if _is_near(name, known))]))[:3]:
        return f"; did you mean {' or '.join(map(repr, close))}?"
    return f"; there are {shown or 'none'}"


def _is_near(name: object, known: str) -> bool:
    """Return whether names are similar before their first dot, because files share suffixes."""
    stem, dot, _ = str(name).partition(".")
    if not stem or not dot:
        return True
    other = known.partition(".")[0]
    return other.startswith(stem) or difflib.SequenceMatcher(None, stem, other).ratio() >= 0.5


@contextmanager
def add_path_to_errors(path: str) -> Iterator[None]:
    """Add a path to an `OSError` without one, as for a full disk."""
    try:
        yield
    except OSError as error:
        add_path(error, path)
        raise


def add_path(error: OSError, path: str) -> None:
    """Add a path to an error of the system that lacks one."""
    if error.errno is not None and error.filename is None:
        error.filename = redact_url(path)
