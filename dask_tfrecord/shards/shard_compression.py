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
    """Describe a compression of shards, for `register_compression`.

    Parameters
    ----------
    name : str
        Lower-case name, for `compression=`.
    is_start : function
        Returns whether the first bytes of a file, up to 512, are the start of this compression. Uncompressed shards are
        recognized first, by the CRC of their first header.
    decompressor : function
        Returns a new `Decompressor`, or raises ImportError.
    compressor : function
        Returns a new `Compressor`, or raises ImportError.
    joins : bool, default True
        Whether a file may contain several compressed members one after the other.
    has_access_points : bool, default False
        Whether `FILE.gzidx` lists points at which reading can start; otherwise a file is read from its beginning.
    max_ratio : int, default 1000
        If the decompressed bytes exceed the stored bytes by more than this factor, the file is refused as a
        decompression bomb, after 64 MiB.

    See Also
    --------
    register_compression : Make a compression known.

    Examples
    --------
    Add bzip2. The classes of the standard library have the methods that are needed, but raise OSError for damaged data:

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
