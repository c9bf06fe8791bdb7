"""Every exception of the library.

Each derives from `TFRecordError` and from the builtin that fits, says where it happened (file, record, byte offset,
feature), what was expected and what was there, and survives pickling: workers raise them, clients read them.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "CorruptRecordError",
    "FeatureError",
    "IncompleteStoreError",
    "Place",
    "ResumeError",
    "SchemaError",
    "ShardChangedError",
    "ShardNotFoundError",
    "StorageError",
    "TFRecordError",
    "UnknownFeatureError",
]


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a collection something was found.

    Attributes
    ----------
    file : str
        Path or URL of the shard.
    record : int or None
        Number of the record in that shard, from 0.
    offset : int or None
        Byte where the record's header begins, in the decompressed stream where the shard is compressed.
    feature : str or None
        Name of the feature.
    """

    file: str
    record: int | None = None
    offset: int | None = None
    feature: str | None = None

    def __str__(self) -> str:
        parts = [self.file]
        if self.record is not None:
            parts.append(f"record {self.record}" + ("" if self.offset is None else f" (byte {self.offset})"))
        elif self.offset is not None:
            parts.append(f"byte {self.offset}")
        return ": ".join(parts)


class TFRecordError(Exception):
    """Base of every error that this library raises on purpose.

    Parameters
    ----------
    message : str
        What was expected, what was found, and what to do.
    place : Place, optional
        Where; it leads the text of the error.
    """

    def __init__(self, message: str, place: Place | None = None) -> None:
        # All arguments go to `args`: that is what pickling calls the class with.
        super().__init__(message, place)
        self.message = message
        self.place = place

    def __str__(self) -> str:
        return self.message if self.place is None else f"{self.place}: {self.message}"


class CorruptRecordError(TFRecordError, ValueError):
    """The framing is damaged: a CRC that does not hold, a cut record, bytes that are no TFRecord."""


class FeatureError(TFRecordError, ValueError):
    """A record holds, but a feature of it is not what the schema says, or the record is no Example."""


class SchemaError(TFRecordError, ValueError):
    """A schema contradicts itself, the data, or what was asked of it."""


class UnknownFeatureError(SchemaError, KeyError):
    """A feature or column name that the data set does not have."""

    # KeyError would show the message in quotes.
    __str__ = TFRecordError.__str__


class ShardNotFoundError(TFRecordError, FileNotFoundError):
    """A path, glob or directory that names no shard."""

    # OSError has its own idea of two arguments (errno, text).
    __str__ = TFRecordError.__str__


class IncompleteStoreError(TFRecordError, ValueError):
    """A store whose writing was never finished, that has lost what was written, or that this library did not write."""


class ResumeError(TFRecordError, ValueError):
    """A conversion that can't be gone on with: what it was begun with is not what there is now."""


class ShardChangedError(CorruptRecordError):
    """A file is not what it was when it was listed: nothing that was planned for it holds."""


class StorageError(TFRecordError, OSError):
    """A disk or a store failed, again and again."""

    # OSError has its own idea of two arguments (errno, text).
    __str__ = TFRecordError.__str__
