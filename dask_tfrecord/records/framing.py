"""TFRecord framing: reading and writing of records, and errors for damaged ones.

A record is a little-endian uint64 length, the uint32 masked CRC-32C of these 8 bytes, the payload, and the uint32
masked CRC-32C of the payload:
https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details

The native core checks CRCs while it scans or decodes. `framing_error` checks the refused record again with the `crc32c`
package, so that an error is confirmed by a second implementation.
"""

from __future__ import annotations

import os
import struct
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping
from io import BytesIO
from types import TracebackType
from typing import Any, Self

from dask_tfrecord.advice import explain_arguments
from dask_tfrecord.errors import CorruptRecordError, Location, Spelled, plural
from dask_tfrecord.records.window import FOOTER, HEADER, MAX_RECORD_BYTES, Window, describe_head
from dask_tfrecord.shards.checksums import mask_crc32c, masked_crc32c
from dask_tfrecord.shards.listing import find_shards
from dask_tfrecord.shards.shard import Shard
from dask_tfrecord.shards.streams import ByteSink, open_sink

_HEAD = struct.Struct("<QI")
_CRC = struct.Struct("<I")

# Advice for every damaged record, the end of an error.
_REMEDY = Spelled(
    '; read_tfrecord(…, errors="skip") drops damaged records, and repair copies the others to a new file',
    "; --errors skip drops damaged records, and the command repair copies the others to a new file",
)


def framing_error(window: Window, record: int) -> CorruptRecordError:
    """Return the error for a record that was refused, whose header is at the window, which is moved.

    The record is read again in blocks, so its length allocates no memory.
    """
    location = Location(window.shard.path, record, window.offset)
    have = window.fill(HEADER)
    if have < HEADER:
        text = f"truncated header: expected {HEADER} bytes, found {have} before the end of the file"
        if record == 0:
            return _not_a_shard(window, text, location)
        causes = "The file was truncated, is still being written, or has other data appended"
        return CorruptRecordError(f"{text}. {causes}" + _REMEDY, location)
    length, stored = _HEAD.unpack(window.view(0, HEADER))
    computed = masked_crc32c(window.view(0, 8))
    if stored != computed:
        found = f"the CRC of the length does not match (stored {stored:#010x}, computed {computed:#010x})"
        if record == 0:
            return _not_a_shard(window, found, location)
        return CorruptRecordError(
            f"{found}; the header declares {plural(length, 'byte')}. Fetch or write the file again" + _REMEDY, location
        )
    return _payload_error(window, length, location)


def _not_a_shard(window: Window, found: str, location: Location) -> CorruptRecordError:
    """Return the error about a file whose first header is refused: what it seems to be, what to do, what was found."""
    directory, _, name = window.shard.path.rpartition("/")
    inside = f", inflated from {window.compression}," if window.compression else ""
    text = f"this is not a TFRecord file, or its start is damaged: it{inside} begins with {describe_head(window)}"
    if "tfrecord" not in name and "::" not in window.shard.path:
        text += f". Pass only TFRecord files, as in {directory}/*.tfrecord"
    return CorruptRecordError(f"{text}. Details: {found}", location)


def _payload_error(window: Window, length: int, location: Location) -> CorruptRecordError:
    """Describe the damage of a record whose header, at the window, is intact, as arguments of its error."""
    import crc32c

    window.advance(HEADER)
    size = window.shard.size if window.compression is None else None
    nbytes, crc = 0, 0
    # The size of an uncompressed file shows truncation without reading.
    if size is None or window.offset + length <= size:
        while nbytes < length and window.ensure():
            part = min(length - nbytes, window.end - window.begin)
            crc = crc32c.crc32c(window.view(0, part), crc)
            window.advance(part)
            nbytes += part
    else:
        nbytes = size - window.offset
    advice = "The file was truncated, or is still being written"
    if nbytes < length:
        expected = plural(length, "byte")
        text = f"truncated payload: expected {expected}, found {nbytes:,} before the end of the file. {advice}"
        return CorruptRecordError(text + _REMEDY, location)
    have = window.fill(FOOTER)
    if have < FOOTER:
        text = f"truncated footer: expected {FOOTER} bytes, found {have} before the end of the file. {advice}"
        return CorruptRecordError(text + _REMEDY, location)
    (stored,) = _CRC.unpack(window.view(0, FOOTER))
    computed = mask_crc32c(crc)
    if stored != computed:
        text = (
            f"the CRC of the payload does not match (stored {stored:#010x}, computed {computed:#010x}, "
            f"{plural(length, 'byte')}). Fetch or write the file again"
        ) + Spelled("; check_crc=False reads the payload as it is", "")
        return CorruptRecordError(text + _REMEDY, location)
    if length > window.max_record_bytes:
        text = (
            f"the record has {plural(length, 'byte')}, but max_record_bytes allows {window.max_record_bytes:,}; "
            f"pass a higher limit to read_records if you trust the file"
        )
        return CorruptRecordError(text, location)
    text = (
        "the record was refused, but is intact when read again: the file is being changed, or the memory or the disk "
        "is failing"
    )
    return CorruptRecordError(text, location)


@explain_arguments("dtf.read_records('train.tfrecord')")
def read_records(
    urlpath: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    compression: str | None = "infer",
    check_crc: bool = True,
    max_record_bytes: int = MAX_RECORD_BYTES,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[bytes]:
    """Iterate over the payloads of all records, whatever they contain.

    Parameters
    ----------
    urlpath : str, os.PathLike or list of these
        A path, fsspec URL, glob, directory or template (``name@8``, ``name-?????-of-00008``).
    compression : {"infer", None, "gzip", "zlib", "zstd"}
        ``"infer"`` detects the compression from the first bytes, not from the file name.
    check_crc : bool, default True
        Check both CRCs of every record.
    max_record_bytes : int, default 2 GiB
        A longer record is an error, which is raised before memory is allocated for it.
    storage_options : mapping, optional
        Options for the fsspec file system.

    Yields
    ------
    bytes
        Payload of each record, in the order of the shards.

    Raises
    ------
    ShardNotFoundError
        If the files do not exist; the call itself raises this, before the first record.
    CorruptRecordError
        If a record is damaged; the records before it are yielded first, and then the error is raised.
    """
    shards = find_shards(urlpath, compression=compression, storage_options=storage_options)
    return (
        payload
        for shard in shards
        for _, payload in iterate_records(shard, check_crc=check_crc, max_record_bytes=max_record_bytes)
    )


def iterate_records(
    shard: Shard,
    *,
    check_crc: bool = True,
    record: int = 0,
    offset: int = 0,
    stop: int | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
) -> Generator[tuple[int, bytes], None, None]:
    """Iterate over the offsets and payloads of the records of one shard.

    The first record has the number `record`, and its header is at `offset`. The caller will probably stop at `stop`,
    which limits remote ranges; iteration continues past it. The file is open until the generator ends or is closed.
    """
    with Window(shard, offset, stop=stop, max_record_bytes=max_record_bytes) as window:
        while window.ensure(HEADER):
            length, stored = _HEAD.unpack(window.view(0, HEADER))
            if check_crc and masked_crc32c(window.view(0, 8)) != stored:
                raise framing_error(window, record)
            size = HEADER + length + FOOTER
            if not window.ensure(size):
                raise framing_error(window, record)
            payload = bytes(window.view(HEADER, HEADER + length))
            if check_crc and masked_crc32c(payload) != _CRC.unpack(window.view(HEADER + length, size))[0]:
                raise framing_error(window, record)
            yield window.offset, payload
            window.advance(size)
            record += 1
        if not window.exhausted:
            raise framing_error(window, record)


class RecordWriter:
    """Write records with any payload to a file, with both CRCs.

    The file appears under its name when you close the writer. If the ``with`` block raises an exception, the new file
    is discarded, and an older file of that name is kept.

    Parameters
    ----------
    path : str or os.PathLike
        Path or fsspec URL.
    compression : {None, "gzip", "zlib", "zstd"}
        Compression of the file; its name does not matter.
    storage_options : mapping, optional
        Options for the fsspec file system.

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
        sink = open_sink(path, compression, storage_options)
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
            If `record` is not bytes-like, for example if it is a dict or a message that is not serialized. Nothing is
            appended, and you can go on using the writer.
        """
        if self._sink is None:
            raise ValueError("the writer is closed; open another one")
        try:
            payload = memoryview(record).cast("B")
        except TypeError:
            raise TypeError(f"records must be bytes, bytearray or memoryview; got {_describe_object(record)}") from None
        try:
            write_record(self._sink, payload)
        except BaseException:
            # The file may end within a record.
            self.discard()
            raise

    def close(self) -> None:
        """Finish the file, which then appears under its name; a second call does nothing."""
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
        """Remove the unfinished file; after `close`, this does nothing."""
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


def write_record(sink: ByteSink | BytesIO, payload: bytes | memoryview) -> None:
    """Append one framed record to a sink: length, CRC of the length, payload, CRC of the payload."""
    length = len(payload).to_bytes(8, "little")
    sink.write(length + _CRC.pack(masked_crc32c(length)))
    sink.write(payload)
    sink.write(_CRC.pack(masked_crc32c(payload)))


def _discard_abandoned(sink: ByteSink, pid: int) -> None:
    # The file belongs to the process that opened it, not to its forks.
    if os.getpid() == pid:
        sink.discard()


def _describe_object(record: object) -> str:
    """Describe an object that is not a payload, and how to serialize it."""
    name = type(record).__name__
    if hasattr(record, "SerializeToString"):
        return f"a message {name}: write(message.SerializeToString())"
    if isinstance(record, Mapping):
        return f"a {name}: to_tfrecord({{name: rows, …}}, path) writes columns, Example.SerializeToString() one record"
    if isinstance(record, str):
        return "str: write(text.encode())"
    return name
