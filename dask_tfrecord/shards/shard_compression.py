"""The interface of a compression of shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

# Deflate compresses at most 1032 times. Real data does not approach this ratio for long, decompression bombs do.
MAX_RATIO = 1000


class Decompressor(Protocol):
    """Decompresses one member, as `bz2.BZ2Decompressor` does."""

    @property
    def eof(self) -> bool:
        """True after the end of the member."""

    @property
    def needs_input(self) -> bool:
        """False if more bytes can be returned without further input."""

    @property
    def unused_data(self) -> bytes:
        """Input after the end of the member."""

    def decompress(self, data: bytes | memoryview, max_length: int = -1, /) -> bytes:
        """Return up to `max_length` decompressed bytes, all if it is negative; raise ValueError for damaged data."""


class Compressor(Protocol):
    """Compresses one member, as `bz2.BZ2Compressor` does; the same input gives the same bytes in every process."""

    def compress(self, data: bytes | bytearray | memoryview, /) -> bytes:
        """Return compressed bytes that are ready."""

    def flush(self) -> bytes:
        """Return the rest of the member."""


@dataclass(frozen=True, slots=True)
class ShardCompression:
    """A compression of shards.

    Parameters
    ----------
    name : str
        Lower-case name, for `compression=`.
    is_start : function
        Returns whether bytes, up to 512 of the beginning of a file, begin a member. Uncompressed shards are recognized
        before, by the CRC of their first header.
    decompressor : function
        Returns a new `Decompressor`, or raises ImportError.
    compressor : function
        Returns a new `Compressor`, or raises ImportError.
    joins : bool, default True
        A file may contain several members one after the other.
    has_access_points : bool, default False
        `FILE.gzidx` holds points at which reading can start; else a file is read from its beginning.
    max_ratio : int, default 1000
        Ratio of decompressed to stored bytes above which a file is refused as a decompression bomb, after 64 MiB.

    See Also
    --------
    register_compression : Make a compression known by its name.

    Examples
    --------
    bzip2, whose classes in the standard library have the needed methods, but raise OSError for damaged data:

    >>> import bz2
    >>> import dask_tfrecord as dtf
    >>> class Decompressor:
    ...     def __init__(self):
    ...         self._bz2 = bz2.BZ2Decompressor()
    ...     def __getattr__(self, name):
    ...         return getattr(self._bz2, name)
    ...     def decompress(self, data, max_length=-1):
    ...         try:
    ...             return self._bz2.decompress(data, max_length)
    ...         except OSError as error:
    ...             raise ValueError(str(error)) from error
    >>> bzip2 = dtf.ShardCompression(
    ...     "bzip2", lambda head: head.startswith(b"BZh"), Decompressor, bz2.BZ2Compressor
    ... )
    >>> dtf.register_compression(bzip2)
    >>> report = dtf.to_tfrecord({"x": [1, 2]}, "bzip2.tfrecord", compression="bzip2")
    >>> dtf.read_tfrecord("bzip2.tfrecord").compute()["x"]
    array([1, 2])
    """

    name: str
    is_start: Callable[[bytes], bool]
    decompressor: Callable[[], Decompressor]
    compressor: Callable[[], Compressor]
    joins: bool = True
    has_access_points: bool = False
    max_ratio: int = MAX_RATIO
