"""Write records of any kind to a new file, with both CRCs."""

from __future__ import annotations

import os
import struct
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from dask_tfrecord.storage.compression import create_stream, masked_crc32c
from dask_tfrecord.storage.streams import ByteSink

__all__ = ["RecordWriter", "write_record"]

_CRC = struct.Struct("<I")


class RecordWriter:
    """Write records of any kind to a file, with both CRCs.

    The complete file is published under its name when the writer is closed. If the with-block raises, the new file is
    discarded and an older file of that name is kept.

    Parameters
    ----------
    path : str or os.PathLike
        Path or fsspec URL.
    compression : {None, "gzip", "zlib"}
        The compression does not depend on the file name.
    storage_options : mapping, optional
        Options of the fsspec file system.

    Examples
    --------
    >>> with RecordWriter("some.tfrecord") as writer:  # doctest: +SKIP
    ...     writer.write(b"payload")
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        compression: str | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        sink = create_stream(path, compression, storage_options)
        self._sink: ByteSink | None = sink
        # A writer that is neither closed nor discarded leaves no temporary file.
        self._finalizer = weakref.finalize(self, _discard_abandoned, sink, os.getpid())

    def write(self, record: bytes | bytearray | memoryview) -> None:
        """Append one record.

        Parameters
        ----------
        record : bytes, bytearray or memoryview
            Payload of the record.

        Raises
        ------
        TypeError
            If `record` is not bytes-like, for example a dict or a message that is not serialized. Nothing is
            appended, and the writer remains usable.
        """
        if self._sink is None:
            raise ValueError("the writer is closed; open another one")
        try:
            payload = memoryview(record).cast("B")
        except TypeError:
            raise TypeError(f"a record is bytes, bytearray or memoryview; got {_describe(record)}") from None
        try:
            write_record(self._sink, payload)
        except BaseException:
            # The file may end within a record.
            self.discard()
            raise

    def close(self) -> None:
        """Publish the file; a second call does nothing."""
        if self._sink is None:
            return
        try:
            self._sink.close()
        except BaseException:
            self.discard()
            raise
        self._sink = None
        self._finalizer.detach()

    def discard(self) -> None:
        """Remove the unfinished file; after `close`, do nothing."""
        if self._sink is not None:
            self._finalizer.detach()
            self._sink.discard()
            self._sink = None

    def __enter__(self) -> Self:
        """Close the file at the end of the with-block, or discard it if that raises."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close or discard the file."""
        if kind is None:
            self.close()
        else:
            self.discard()


def write_record(sink: ByteSink, payload: bytes | memoryview) -> None:
    """Append one framed record to a sink: length, CRC of the length, payload, CRC of the payload."""
    length = len(payload).to_bytes(8, "little")
    sink.write(length + _CRC.pack(masked_crc32c(length)))
    sink.write(payload)
    sink.write(_CRC.pack(masked_crc32c(payload)))


def _discard_abandoned(sink: ByteSink, pid: int) -> None:
    # The file belongs to the process that opened it, not to its forks.
    if os.getpid() == pid:
        sink.discard()


def _describe(record: object) -> str:
    """Describe an object that is not a payload, and how to serialize it."""
    name = type(record).__name__
    if hasattr(record, "SerializeToString"):
        return f"a message {name}: write(message.SerializeToString())"
    if isinstance(record, Mapping):
        return f"a {name}: to_tfrecord({{name: rows, …}}, path) writes columns, Example.SerializeToString() one record"
    if isinstance(record, str):
        return "str: write(text.encode())"
    return name
