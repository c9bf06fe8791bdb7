"""Writing records of any kind to a new file, with both CRCs. Imports storage only."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from dask_tfrecord.storage.compression import create_stream, masked_crc32c
from dask_tfrecord.storage.streams import ByteSink

__all__ = ["RecordWriter"]

_CRC = struct.Struct("<I")


class RecordWriter:
    """Write records of any kind to a file, with both CRCs.

    The file appears under its name, whole, when the writer is closed; if the with-block raises, nothing is left and
    an older file of that name stays.

    Parameters
    ----------
    path : str or os.PathLike
        Path or fsspec URL.
    compression : {None, "gzip", "zlib"}
        The name of the file says nothing about it.
    storage_options : mapping, optional
        What fsspec takes beside a URL.

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
        self._sink: ByteSink | None = create_stream(path, compression, storage_options)

    def write(self, record: bytes | bytearray | memoryview) -> None:
        """Append one record.

        Parameters
        ----------
        record : bytes, bytearray or memoryview
            Its payload.
        """
        payload = memoryview(record).cast("B")
        if self._sink is None:
            raise ValueError("the writer is closed; open another one")
        length = len(payload).to_bytes(8, "little")
        try:
            self._sink.write(length + _CRC.pack(masked_crc32c(length)))
            self._sink.write(payload)
            self._sink.write(_CRC.pack(masked_crc32c(payload)))
        except BaseException:
            # Half a record may have been written: there is no way on from here.
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

    def discard(self) -> None:
        """Leave nothing of the file; after `close`, do nothing."""
        if self._sink is not None:
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
